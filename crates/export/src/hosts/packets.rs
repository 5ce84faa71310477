//! The packets that hosts reported, and their points.

use std::collections::{BTreeMap, HashMap};

use dta_proto::key::Key;
use dta_proto::trace::{HOPS, Named, PacketSighting, path_key, store};
use dta_rpc::{Ask, AskKeys, ClientError};

/// A packet on a host, as the host reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRecord {
    /// The first point.
    pub seen: PacketSighting,
    /// How many of the host's points saw it.
    pub points: u8,
    /// Its digest at the last point.
    pub left: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropRecord {
    pub seen: PacketSighting,
    /// The kernel's number of the reason.
    pub reason: u32,
}

/// Names that hosts reported, by host, kind and number.
pub type HostNames = BTreeMap<(u16, Named, u32), String>;

/// A host as people read it: its name, with its number in brackets.
pub fn host_name(names: &HostNames, host: u16) -> String {
    name_with_number(names.get(&(host, Named::Host, 0)), "", host.into())
}

/// A host's drop reason as people read it.
pub fn reason_name(names: &HostNames, host: u16, reason: u32) -> String {
    name_with_number(names.get(&(host, Named::Reason, reason)), "reason ", reason)
}

fn name_with_number(name: Option<&String>, what: &str, number: u32) -> String {
    name.map_or_else(|| format!("{what}{number}"), |name| format!("{name} ({number})"))
}

/// The host of each hop on the path. Hosts whose names are no longer in the ring are known from the first points of
/// their packets.
pub fn hosts_of_hops(names: &HostNames, packets: &[PacketRecord]) -> [Option<u16>; HOPS as usize] {
    let mut hosts = [None; HOPS as usize];
    for (host, _, hop) in names.keys().filter(|(_, of, _)| *of == Named::Point) {
        if let Some(place) = hosts.get_mut(*hop as usize) {
            *place = Some(*host);
        }
    }
    for record in packets {
        if let Some(place) = hosts.get_mut(usize::from(record.seen.hop)) {
            *place = place.or(Some(record.seen.host));
        }
    }
    hosts
}

/// A packet at a point, on the clock of the point's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisitStop {
    pub hop: u8,
    /// When, in nanoseconds.
    pub time: u64,
}

/// What one host saw of a packet, in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    pub host: u16,
    /// Whether PTP keeps its clock.
    pub synced: bool,
    /// The packet's flow at the first point.
    pub flow: Key,
    /// The points, at least one.
    pub stops: Vec<VisitStop>,
    /// How many other points of the host saw it.
    pub missing: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedPacket {
    pub records: Vec<PacketRecord>,
    /// What each host saw.
    pub visits: Vec<Visit>,
    /// Hosts that saw it but whose points are lost: later packets overwrote them.
    pub lost: Vec<u16>,
}

/// The packets of these records that satisfy `wanted`, with their points, which are queried.
pub async fn with_points(
    ask: &dyn Ask,
    names: &HostNames,
    records: &[PacketRecord],
    wanted: impl Fn(&[PacketRecord]) -> bool,
) -> Result<Vec<TracedPacket>, ClientError> {
    let groups: Vec<Vec<PacketRecord>> =
        group_by_packet(records).into_iter().filter(|group| wanted(group)).collect();
    let visits = groups.iter().flatten().map(|record| (record.seen.digest, record.seen.host));
    let mut visits: Vec<(u64, u16)> = visits.collect();
    visits.sort_unstable();
    visits.dedup();
    let rows = fetch_hop_times(ask, &visits).await?;
    let hosts = hosts_of_hops(names, records);
    let packet = |records: Vec<PacketRecord>| {
        let mut packet = TracedPacket::default();
        let mut of_host: BTreeMap<(u16, u64), Vec<&PacketRecord>> = BTreeMap::new();
        for one in &records {
            of_host.entry((one.seen.host, one.seen.digest)).or_default().push(one);
        }
        for ((host, digest), of_packet) in of_host {
            match rows.get(&(digest, host)).and_then(|row| visit_from_row(host, row, &of_packet, &hosts)) {
                Some(visit) => packet.visits.push(visit),
                None => packet.lost.push(host),
            }
        }
        TracedPacket { records, ..packet }
    };
    Ok(groups.into_iter().map(packet).collect())
}

/// Digests that address translation turned into others.
#[derive(Debug, Default)]
pub struct Translations {
    before: HashMap<u64, u64>,
}

impl Translations {
    pub fn from_records<'a>(records: impl IntoIterator<Item = &'a PacketRecord>) -> Self {
        let translated =
            records.into_iter().filter(|record| record.left != record.seen.digest && record.left != 0);
        Self { before: translated.map(|record| (record.left, record.seen.digest)).collect() }
    }

    pub fn first_digest(&self, mut digest: u64) -> u64 {
        // Each translation is one step back; the limit breaks cycles.
        for _ in 0..8 {
            match self.before.get(&digest) {
                Some(before) => digest = *before,
                None => break,
            }
        }
        digest
    }
}

/// Groups records by packet: those with the same digest, or with digests that address translation turned into each
/// other.
pub fn group_by_packet(packets: &[PacketRecord]) -> Vec<Vec<PacketRecord>> {
    let translations = Translations::from_records(packets);
    let mut at: HashMap<u64, usize> = HashMap::new();
    let mut groups: Vec<Vec<PacketRecord>> = Vec::new();
    for record in packets {
        let place = *at.entry(translations.first_digest(record.seen.digest)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(*record);
    }
    groups
}

type HopTimes = [Option<u32>; HOPS as usize];

async fn fetch_hop_times(
    ask: &dyn Ask,
    visits: &[(u64, u16)],
) -> Result<HashMap<(u64, u16), HopTimes>, ClientError> {
    let keys: Vec<Key> = visits.iter().map(|(digest, host)| path_key(*digest, *host)).collect();
    let answers = ask.query_paths(store::PATHS, &keys).await?;
    let mut rows = HashMap::with_capacity(visits.len());
    for (visit, answer) in visits.iter().zip(answers).filter(|(_, answer)| answer.found) {
        let mut row = [None; HOPS as usize];
        for (place, (value, present)) in row.iter_mut().zip(answer.hops.iter().zip(&answer.present)) {
            *place = present.then_some(*value);
        }
        rows.insert(*visit, row);
    }
    Ok(rows)
}

/// What a host saw of a packet: its hops in the row, with the upper bits of their times from the entry. `None` if no
/// entry fits the row, which then belongs to a later packet with the same digest.
fn visit_from_row(
    host: u16,
    row: &HopTimes,
    records: &[&PacketRecord],
    hosts: &[Option<u16>; HOPS as usize],
) -> Option<Visit> {
    let fits = |record: &&&PacketRecord| {
        row.get(usize::from(record.seen.hop)).copied().flatten() == Some(record.seen.time as u32)
    };
    // A host may report a packet in two parts if much time passed between them: the first part has the earliest point.
    let first = records.iter().filter(fits).min_by_key(|record| record.seen.time)?;
    let latest = records.iter().filter(fits).max_by_key(|record| record.seen.time)?;
    // Unless they are two packets with the same bytes, of which the row has the later one.
    let base = if latest.seen.time - first.seen.time > u64::from(u32::MAX) { latest } else { first };
    let seen = &base.seen;
    let mut stops: Vec<VisitStop> = (0u8..)
        .zip(row.iter().zip(hosts))
        .filter(|(_, (_, of))| **of == Some(host))
        .filter_map(|(hop, (value, _))| {
            let since = value.as_ref()?.wrapping_sub(seen.time as u32);
            Some(VisitStop { hop, time: seen.time.saturating_add(since.into()) })
        })
        .collect();
    stops.sort_by_key(|stop| stop.time);
    let points: usize = records.iter().filter(fits).map(|record| usize::from(record.points)).sum();
    let missing = points.saturating_sub(stops.len()) as u8;
    (!stops.is_empty()).then_some(Visit { host, synced: seen.synced, flow: seen.flow, stops, missing })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(host: u16, digest: u64, left: u64, hop: u8, time: u64) -> PacketRecord {
        PacketRecord {
            seen: PacketSighting { time, digest, host, hop, ..PacketSighting::default() },
            points: 3,
            left,
        }
    }

    #[test]
    fn entries_of_one_packet_are_together_through_translations() {
        let all = [
            record(1, 10, 10, 0, 1),
            record(2, 10, 11, 3, 2),
            record(3, 11, 12, 6, 3),
            record(1, 20, 20, 0, 4),
            record(4, 12, 12, 9, 5),
        ];
        let groups = group_by_packet(&all);
        let hosts = |group: &[PacketRecord]| group.iter().map(|record| record.seen.host).collect::<Vec<_>>();
        assert_eq!(groups.iter().map(|group| hosts(group)).collect::<Vec<_>>(), [vec![1, 2, 3, 4], vec![1]]);
    }

    #[test]
    fn times_are_whole_across_a_turn_of_the_low_bits() {
        let hosts = std::array::from_fn(|hop| Some(if hop < 6 { 1 } else { 2 }));
        let start = (7 << 32) - 5;
        let mut row: HopTimes = [None; HOPS as usize];
        (row[0], row[2], row[1], row[6]) = (Some(start as u32), Some(3), Some(20), Some(9));
        let entry = record(1, 10, 10, 0, start);
        let visit = visit_from_row(1, &row, &[&entry], &hosts).unwrap();
        let stops: Vec<_> = visit.stops.iter().map(|stop| (stop.hop, stop.time - start)).collect();
        assert_eq!(stops, [(0, 0), (2, 8), (1, 25)]);
        assert_eq!(visit.missing, 0);
        let more = PacketRecord { points: 5, ..entry };
        assert_eq!(super::visit_from_row(1, &row, &[&more], &hosts).unwrap().missing, 2);
        // The row is of a later packet with the same bytes.
        let earlier = record(1, 10, 10, 0, start - 1_000_000);
        assert_eq!(super::visit_from_row(1, &row, &[&earlier], &hosts), None);
        assert!(super::visit_from_row(1, &row, &[&earlier, &entry], &hosts).is_some());
    }
}

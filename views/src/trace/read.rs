//! Reads what hosts reported: lists of events, and paths of packets.

use std::collections::{BTreeMap, HashMap};

use dta_client::{Ask, AskKeys, ClientError};
use dta_proto::control::TailRequest;
use dta_proto::key::Key;
use dta_proto::trace::{Books, Entry, HOPS, Named, Seen, list, path_key, store};

use crate::int::Missed;

/// A packet on a host, as the host reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketRecord {
    pub(super) seen: Seen,
    pub(super) left: u64,
}

/// A dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DropRecord {
    pub(super) seen: Seen,
    pub(super) reason: u32,
}

/// A packet beyond the threshold of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlowRecord {
    pub(super) seen: Seen,
    pub(super) from: u8,
    pub(super) latency: u64,
}

/// The contents of the lists.
#[derive(Debug, Default)]
pub(super) struct TraceEvents {
    pub(super) packets: Vec<PacketRecord>,
    pub(super) drops: Vec<DropRecord>,
    pub(super) slow: Vec<SlowRecord>,
    /// Names by host, kind and number.
    pub(super) names: BTreeMap<(u16, Named, u32), String>,
    /// By host.
    pub(super) books: BTreeMap<u16, Books>,
    pub(super) missed: [Missed; list::COUNT as usize],
}

impl TraceEvents {
    /// Reads the lists as far as they go.
    pub(super) async fn of(ask: &dyn Ask) -> Result<TraceEvents, ClientError> {
        let mut events = TraceEvents::default();
        for list in 0..list::COUNT {
            // From the very first batch, so that those that the ring no longer holds are counted.
            let request = TailRequest {
                store: store::EVENTS.to_owned(),
                list,
                from_sequence: 1,
                until_caught_up: true,
                ..TailRequest::default()
            };
            let mut following = ask.tail(request).await?;
            while let Some(message) = following.message().await? {
                let missed = &mut events.missed[list as usize];
                missed.overwritten += message.overwritten_batches;
                missed.missing += message.missing_batches;
                missed.damaged += message.damaged_batches;
                for bytes in &message.entries {
                    match Entry::parse(bytes) {
                        Some(entry) => events.take(entry),
                        None => events.missed[list as usize].unreadable += 1,
                    }
                }
            }
        }
        Ok(events)
    }

    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Packet { seen, left, .. } => self.packets.push(PacketRecord { seen, left }),
            Entry::Drop { seen, reason, .. } => self.drops.push(DropRecord { seen, reason }),
            Entry::Slow { seen, from, latency } => self.slow.push(SlowRecord { seen, from, latency }),
            Entry::Name { host, of, number, name, .. } => {
                self.names.insert((host, of, number), name.text());
            }
            Entry::Books { host, books, .. } => {
                self.books.insert(host, books);
            }
        }
    }

    /// The host of each hop on the path.
    pub(super) fn hosts(&self) -> [Option<u16>; HOPS as usize] {
        let mut hosts = [None; HOPS as usize];
        for (host, _, hop) in self.names.keys().filter(|(_, of, _)| *of == Named::Point) {
            if let Some(place) = hosts.get_mut(*hop as usize) {
                *place = Some(*host);
            }
        }
        // A host whose names are no longer in the ring is known by the first points of its packets.
        for told in &self.packets {
            if let Some(place) = hosts.get_mut(usize::from(told.seen.hop)) {
                *place = place.or(Some(told.seen.host));
            }
        }
        hosts
    }
}

/// A packet at a point, on the clock of the point's host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) hop: u8,
    pub(super) time: u64,
}

/// What one host saw of a packet, by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub(super) host: u16,
    pub(super) synced: bool,
    pub(super) flow: Key,
    pub(super) stops: Vec<Stop>,
}

/// A packet, with what each host saw of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) visits: Vec<Visit>,
}

/// The packets with known points, the number of all, and the number of visits to hosts whose paths were overwritten.
#[derive(Debug, Default)]
pub(super) struct Packets {
    pub(super) packets: Vec<Packet>,
    pub(super) told: u64,
    pub(super) lost: u64,
}

impl Packets {
    /// Reads the paths of the packets whose entries satisfy `wanted`.
    pub(super) async fn of(
        ask: &dyn Ask,
        events: &TraceEvents,
        wanted: impl Fn(&[PacketRecord]) -> bool,
    ) -> Result<Packets, ClientError> {
        let groups: Vec<Vec<PacketRecord>> =
            groups(&events.packets).into_iter().filter(|group| wanted(group)).collect();
        let visits = groups.iter().flatten().map(|told| (told.seen.digest, told.seen.host));
        let mut visits: Vec<(u64, u16)> = visits.collect();
        visits.sort_unstable();
        visits.dedup();
        let rows = rows(ask, &visits).await?;
        let hosts = events.hosts();
        let mut all = Packets { told: groups.len() as u64, ..Packets::default() };
        for group in groups {
            let mut packet = Packet::default();
            let mut of_host: BTreeMap<(u16, u64), Vec<&PacketRecord>> = BTreeMap::new();
            group
                .iter()
                .for_each(|told| of_host.entry((told.seen.host, told.seen.digest)).or_default().push(told));
            for ((host, digest), told) in of_host {
                match rows.get(&(digest, host)).and_then(|row| visit(host, row, &told, &hosts)) {
                    Some(visit) => packet.visits.push(visit),
                    None => all.lost += 1,
                }
            }
            if !packet.visits.is_empty() {
                all.packets.push(packet);
            }
        }
        Ok(all)
    }
}

/// Groups entries by packet: those with the same digest, or with digests that address translation turned into each
/// other.
fn groups(packets: &[PacketRecord]) -> Vec<Vec<PacketRecord>> {
    let first: HashMap<u64, u64> = packets
        .iter()
        .filter(|told| told.left != told.seen.digest && told.left != 0)
        .map(|told| (told.left, told.seen.digest))
        .collect();
    let root = |mut digest: u64| {
        // Each translation is one step back; the limit breaks cycles.
        for _ in 0..8 {
            match first.get(&digest) {
                Some(before) => digest = *before,
                None => break,
            }
        }
        digest
    };
    let mut at: HashMap<u64, usize> = HashMap::new();
    let mut groups: Vec<Vec<PacketRecord>> = Vec::new();
    for told in packets {
        let place = *at.entry(root(told.seen.digest)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(*told);
    }
    groups
}

type HopTimes = [Option<u32>; HOPS as usize];

async fn rows(ask: &dyn Ask, visits: &[(u64, u16)]) -> Result<HashMap<(u64, u16), HopTimes>, ClientError> {
    let keys: Vec<Key> = visits.iter().map(|(digest, host)| path_key(*digest, *host)).collect();
    let answers = ask.path(store::PATHS, &keys).await?;
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
fn visit(
    host: u16,
    row: &HopTimes,
    told: &[&PacketRecord],
    hosts: &[Option<u16>; HOPS as usize],
) -> Option<Visit> {
    let fits = |told: &&&PacketRecord| {
        row.get(usize::from(told.seen.hop)).copied().flatten() == Some(told.seen.time as u32)
    };
    // A host may report a packet in two parts if much time passed between them: the first part has the earliest point.
    let first = told.iter().filter(fits).min_by_key(|told| told.seen.time)?;
    let latest = told.iter().filter(fits).max_by_key(|told| told.seen.time)?;
    // Unless they are two packets with the same bytes, of which the row has the later one.
    let base = if latest.seen.time - first.seen.time > u64::from(u32::MAX) { latest } else { first };
    let seen = &base.seen;
    let mut stops: Vec<Stop> = (0u8..)
        .zip(row.iter().zip(hosts))
        .filter(|(_, (_, of))| **of == Some(host))
        .filter_map(|(hop, (value, _))| {
            let since = value.as_ref()?.wrapping_sub(seen.time as u32);
            Some(Stop { hop, time: seen.time.saturating_add(since.into()) })
        })
        .collect();
    stops.sort_by_key(|stop| stop.time);
    (!stops.is_empty()).then_some(Visit { host, synced: seen.synced, flow: seen.flow, stops })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(host: u16, digest: u64, left: u64, hop: u8, time: u64) -> PacketRecord {
        PacketRecord { seen: Seen { time, digest, host, hop, ..Seen::default() }, left }
    }

    #[test]
    fn entries_of_one_packet_are_together_through_translations() {
        let all = [
            told(1, 10, 10, 0, 1),
            told(2, 10, 11, 3, 2),
            told(3, 11, 12, 6, 3),
            told(1, 20, 20, 0, 4),
            told(4, 12, 12, 9, 5),
        ];
        let groups = groups(&all);
        let hosts = |group: &[PacketRecord]| group.iter().map(|told| told.seen.host).collect::<Vec<_>>();
        assert_eq!(groups.iter().map(|group| hosts(group)).collect::<Vec<_>>(), [vec![1, 2, 3, 4], vec![1]]);
    }

    #[test]
    fn times_are_whole_across_a_turn_of_the_low_bits() {
        let hosts = std::array::from_fn(|hop| Some(if hop < 6 { 1 } else { 2 }));
        let start = (7 << 32) - 5;
        let mut row: HopTimes = [None; HOPS as usize];
        (row[0], row[2], row[1], row[6]) = (Some(start as u32), Some(3), Some(20), Some(9));
        let entry = told(1, 10, 10, 0, start);
        let visit = visit(1, &row, &[&entry], &hosts).unwrap();
        let stops: Vec<_> = visit.stops.iter().map(|stop| (stop.hop, stop.time - start)).collect();
        assert_eq!(stops, [(0, 0), (2, 8), (1, 25)]);
        // The row is of a later packet with the same bytes.
        let earlier = told(1, 10, 10, 0, start - 1_000_000);
        assert_eq!(super::visit(1, &row, &[&earlier], &hosts), None);
        assert!(super::visit(1, &row, &[&earlier, &entry], &hosts).is_some());
    }
}

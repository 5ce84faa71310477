//! A query of flow records, the same whoever answers it: entries of a list, filtered, grouped and summed, the `n` largest
//! groups, optionally per time bucket.
//!
//! A [`FlowQuestion`] says which records count and what groups them. A [`FlowTally`] takes entries, as the ring in memory or
//! a table of history holds them; tallies of several lists, threads and collectors merge. [`FlowTally::rank_groups`] is the
//! answer.
//!
//! Sums are multiplied by the sampling rate. Several exporters may see a flow, and one may count it twice, where it enters
//! and where it leaves. So only the exporter (and direction) with the most bytes counts for each flow; if exporters are
//! grouped separately, only the direction with the most bytes. That takes a table of flows, which a tally keeps only if [it
//! needs one](FlowTally::needs_flows): if all records are of one exporter and direction, no flow counts twice.

mod filter;
mod groups;

use core::cmp::Reverse;
use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BinaryHeap, HashMap};

pub use filter::{AddressNames, ColumnNames, FilterError, FlowFilter, address_value};

use self::groups::GroupTable;
use crate::flow_record::{Column, ColumnType, ENTRY_LEN};
use crate::key::{self, Flow};

/// Most groups of a tally, with flows kept apart: 1,048,576. Records beyond them are summed together.
pub const MAX_GROUPS: usize = 1 << 20;
/// Most columns to group by.
pub const MAX_COLUMNS: usize = 16;

crate::named! {
    /// What groups are ranked by.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[repr(u8)]
    pub enum FlowSum {
        /// Bytes, from the IP header on.
        #[default]
        Bytes = 1: "bytes",
        /// Packets.
        Packets = 2: "packets",
        /// Flow records.
        Flows = 3: "flows",
    }
}

crate::parse_by_name!(FlowSum);

/// Sums of records; bytes and packets are multiplied by the sampling rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowSums {
    /// Bytes, from the IP header on.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Records.
    pub flows: u64,
}

impl FlowSums {
    /// The sums of one entry.
    #[inline]
    pub fn from_entry(entry: &[u8; ENTRY_LEN]) -> FlowSums {
        let rate = u64::from(u32::from_be_bytes(bytes_at(entry, RATE.offset)).max(1));
        let count = |column: &Column| u64::from_be_bytes(bytes_at(entry, column.offset)).saturating_mul(rate);
        FlowSums { bytes: count(&BYTES), packets: count(&PACKETS), flows: 1 }
    }

    /// Adds other sums, saturating.
    #[inline]
    pub fn add(&mut self, other: FlowSums) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.packets = self.packets.saturating_add(other.packets);
        self.flows = self.flows.saturating_add(other.flows);
    }

    /// The sum to rank by.
    pub fn value_of(&self, sum: FlowSum) -> u64 {
        match sum {
            FlowSum::Bytes => self.bytes,
            FlowSum::Packets => self.packets,
            FlowSum::Flows => self.flows,
        }
    }
}

const fn column(name: &str) -> Column {
    match Column::from_name_const(name) {
        Some(column) => column,
        None => panic!("no such column"),
    }
}

const RECEIVED: Column = column("received");
const START: Column = column("start");
const END: Column = column("end");
const BYTES: Column = column("bytes");
const PACKETS: Column = column("packets");
const RATE: Column = column("sampling-rate");
const EXPORTER: Column = column("exporter");
const DIRECTION: Column = column("direction");
const PROTOCOL: Column = column("protocol");
const SRC: Column = column("src");
const DST: Column = column("dst");
const SRC_PORT: Column = column("src-port");
const DST_PORT: Column = column("dst-port");

/// What a scan of lists came across.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanCounts {
    /// Batches read.
    pub batches: u64,
    /// Batches that a writer replaced while the scan was under way.
    pub overwritten: u64,
    /// Batches that never came, although later ones did.
    pub missing: u64,
    /// Ring places without a whole batch: being written, or damaged.
    pub torn: u64,
}

impl ScanCounts {
    /// Adds the counts of another scan.
    pub fn add(&mut self, other: ScanCounts) {
        self.batches += other.batches;
        self.overwritten += other.overwritten;
        self.missing += other.missing;
        self.torn += other.torn;
    }
}

/// The columns that identify a flow.
pub static FLOW_COLUMNS: [Column; 5] = [SRC, DST, SRC_PORT, DST_PORT, PROTOCOL];
/// Bytes of a flow within a key.
const FLOW_LEN: usize = 37;

fn bytes_at<const LEN: usize>(entry: &[u8; ENTRY_LEN], offset: usize) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes.copy_from_slice(&entry[offset..offset + LEN]);
    bytes
}

/// What to ask of flow records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowQuestion {
    /// Which records count.
    pub filter: FlowFilter,
    /// The columns to group by; empty = one group.
    pub group: Vec<&'static Column>,
    /// Counts records received from this time on, in nanoseconds since 1970.
    pub since: u64,
    /// Counts records received before this time; 0 = until now.
    pub until: u64,
    /// Length of a time bucket in nanoseconds; 0 = no buckets.
    pub per: u64,
}

/// Why records cannot be grouped so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// There is no such column.
    #[error("there is no column `{0}` to group by; `dta-collector flows --help` lists them")]
    UnknownColumn(String),
    /// There are too many columns.
    #[error("at most {MAX_COLUMNS} columns can group")]
    TooMany,
}

impl FlowQuestion {
    /// Parses column names separated by commas; `flow` stands for the five of a flow. Repeated names are ignored.
    ///
    /// # Errors
    /// An unknown column, or too many columns.
    pub fn parse_group(text: &str) -> Result<Vec<&'static Column>, GroupError> {
        let mut group: Vec<&'static Column> = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let named: &[&str] = match name {
                "flow" => &["src", "dst", "src-port", "dst-port", "protocol"],
                _ => &[name],
            };
            for name in named {
                let unknown = || GroupError::UnknownColumn((*name).to_owned());
                let column = Column::from_name(name).ok_or_else(unknown)?;
                if !group.contains(&column) {
                    group.push(column);
                }
            }
        }
        if group.len() > MAX_COLUMNS { Err(GroupError::TooMany) } else { Ok(group) }
    }

    fn groups_by(&self, column: &Column) -> bool {
        self.group.contains(&column)
    }

    /// Whether records of different exporters or directions that the question groups together may be of the same flow.
    fn may_count_twice(&self, has_exporters: bool, has_directions: bool) -> bool {
        let apart = (self.groups_by(&EXPORTER), self.groups_by(&DIRECTION));
        match apart {
            (true, true) => false,
            (true, false) => has_directions,
            (false, _) => has_exporters || has_directions,
        }
    }

    /// Whether an entry is in the time range and meets the condition.
    #[inline]
    pub fn includes(&self, entry: &[u8; ENTRY_LEN]) -> bool {
        let received = u64::from_be_bytes(bytes_at(entry, RECEIVED.offset));
        received >= self.since && (self.until == 0 || received < self.until) && self.filter.includes(entry)
    }
}

/// A column's bytes in the key of a group.
#[derive(Clone, Copy, Debug)]
struct KeyPart {
    from: usize,
    to: usize,
    len: usize,
}

/// Sums by group, over the records added so far.
#[derive(Clone, Debug)]
pub struct FlowTally {
    question: FlowQuestion,
    parts: Vec<KeyPart>,
    /// Where a key has its time bucket, if the question asks for buckets.
    bucket: Option<usize>,
    /// Whether flows, exporters and directions are kept apart.
    per_flow: bool,
    table: GroupTable,
    /// Sums of records without a group, because there were too many groups.
    beyond: FlowSums,
    /// Exporter and direction of the first record.
    observer: Option<(u128, u8)>,
    has_exporters: bool,
    has_directions: bool,
}

/// A group by rank: the sum that decides, its key and all its sums. Of two equal sums, the lower key ranks higher.
type RankedGroup<'a> = (u64, Reverse<&'a [u8]>, FlowSums);

/// Most bytes that the sums of a group take in a message.
const SUMS_LEN: usize = 32;
/// Bytes of flow, exporter and direction at the beginning of a key.
const OBSERVED_LEN: usize = FLOW_LEN + 17;

impl FlowTally {
    /// An empty tally. With `per_flow`, only the exporter with the most bytes of each flow counts in the answer.
    pub fn new(question: FlowQuestion, per_flow: bool) -> FlowTally {
        let (mut parts, mut to) = (Vec::new(), 0);
        let mut add = |column: &Column| {
            let len = column.kind.width();
            parts.push(KeyPart { from: column.offset, to, len });
            to += len;
        };
        if per_flow {
            FLOW_COLUMNS.iter().chain([&EXPORTER, &DIRECTION]).for_each(&mut add);
        }
        question.group.iter().for_each(|column| add(column));
        let bucket = (question.per != 0).then_some(to);
        let len = to + if bucket.is_some() { 8 } else { 0 };
        FlowTally {
            question,
            parts,
            bucket,
            per_flow,
            table: GroupTable::new(len, MAX_GROUPS),
            beyond: FlowSums::default(),
            observer: None,
            has_exporters: false,
            has_directions: false,
        }
    }

    /// The question that it answers.
    pub fn question(&self) -> &FlowQuestion {
        &self.question
    }

    /// Whether records of several exporters or directions were added, so that a flow may count twice: then only a tally with
    /// `per_flow` has the answer.
    pub fn needs_flows(&self) -> bool {
        !self.per_flow && self.question.may_count_twice(self.has_exporters, self.has_directions)
    }

    /// Adds those entries that the question includes, from runs of back-to-back entries. More entries per call are faster.
    #[inline]
    pub fn add_entries<'e>(&mut self, runs: impl IntoIterator<Item = &'e [u8]>) {
        let entries = runs.into_iter().flat_map(|run| run.as_chunks::<ENTRY_LEN>().0);
        for entry in entries {
            if self.question.includes(entry) {
                self.push_included(entry);
            }
        }
        self.beyond.add(self.table.add_pending());
    }

    #[inline]
    fn push_included(&mut self, entry: &[u8; ENTRY_LEN]) {
        let exporter = u128::from_be_bytes(bytes_at(entry, EXPORTER.offset));
        let direction = entry[DIRECTION.offset];
        let (first, one) = *self.observer.get_or_insert((exporter, direction));
        self.has_exporters |= exporter != first;
        self.has_directions |= direction != one;
        self.table.push_row(FlowSums::from_entry(entry), |key| {
            for KeyPart { from, to, len } in &self.parts {
                // Copies of constant length need no call.
                match len {
                    16 => key[*to..*to + 16].copy_from_slice(&entry[*from..*from + 16]),
                    8 => key[*to..*to + 8].copy_from_slice(&entry[*from..*from + 8]),
                    4 => key[*to..*to + 4].copy_from_slice(&entry[*from..*from + 4]),
                    2 => key[*to..*to + 2].copy_from_slice(&entry[*from..*from + 2]),
                    _ => key[*to] = entry[*from],
                }
            }
            if let Some(at) = self.bucket {
                let received = u64::from_be_bytes(bytes_at(entry, RECEIVED.offset));
                let start = received - received % self.question.per;
                key[at..at + 8].copy_from_slice(&start.to_be_bytes());
            }
        });
    }

    fn add_groups<'k>(&mut self, groups: impl Iterator<Item = (&'k [u8], FlowSums)>) {
        self.beyond.add(self.table.add_groups(groups));
    }

    /// Adds tallies of the same question with the same `per_flow`.
    pub fn merge(&mut self, others: &[FlowTally]) {
        for other in others {
            self.note_observers(other.observer, other.has_exporters, other.has_directions);
            self.beyond.add(other.beyond);
        }
        let tables: Vec<&GroupTable> = others.iter().map(|other| &other.table).collect();
        self.beyond.add(self.table.merge(&tables));
    }

    fn note_observers(&mut self, observer: Option<(u128, u8)>, has_exporters: bool, has_directions: bool) {
        if let (Some((a, one)), Some((b, other))) = (self.observer, observer) {
            self.has_exporters |= a != b;
            self.has_directions |= one != other;
        }
        self.observer = self.observer.or(observer);
        self.has_exporters |= has_exporters;
        self.has_directions |= has_directions;
    }

    /// The sums to send, for [`FlowTally::add_parts`]. If the groups take more than `most_bytes`, the smallest are summed
    /// together.
    pub fn to_parts(&self, by: FlowSum, most_bytes: usize) -> FlowTallyParts {
        let most = most_bytes / (self.table.key_len() + SUMS_LEN);
        let mut beyond = self.beyond;
        let mut groups: Vec<(&[u8], FlowSums)> = self.table.iter().collect();
        if groups.len() > most {
            groups.select_nth_unstable_by_key(most, |(_, sums)| Reverse(sums.value_of(by)));
            groups.drain(most..).for_each(|(_, sums)| beyond.add(sums));
        }
        FlowTallyParts {
            per_flow: self.per_flow,
            keys: groups.iter().flat_map(|(key, _)| key.iter().copied()).collect(),
            sums: groups.iter().map(|(_, sums)| *sums).collect(),
            beyond,
            observer: self.observer,
            has_exporters: self.has_exporters,
            has_directions: self.has_directions,
        }
    }

    /// Adds what another program has summed for the same question. Returns `false`, with nothing added, if the parts have
    /// another key length or another `per_flow`.
    #[must_use]
    pub fn add_parts(&mut self, parts: &FlowTallyParts) -> bool {
        let len = self.table.key_len();
        if parts.per_flow != self.per_flow || parts.keys.len() != len * parts.sums.len() {
            return false;
        }
        self.note_observers(parts.observer, parts.has_exporters, parts.has_directions);
        let keys = (0..parts.sums.len()).map(|number| &parts.keys[number * len..][..len]);
        self.add_groups(keys.zip(parts.sums.iter().copied()));
        self.beyond.add(parts.beyond);
        true
    }

    /// The answer: the `most` groups with the largest sum, largest first.
    pub fn rank_groups(mut self, by: FlowSum, most: usize) -> FlowAnswer {
        if self.per_flow {
            self = self.without_repeats();
        }
        let mut total = self.beyond;
        // Sums of each group over all time buckets.
        let over_time = self.bucket.map(|group_len| self.sum_over_time(group_len));
        let totals = over_time.as_ref().unwrap_or(&self.table);
        let groups = totals.len() as u64;
        // A heap of the largest groups so far, the smallest on top; of equal ones, the lowest keys stay.
        let mut largest: BinaryHeap<Reverse<RankedGroup<'_>>> = BinaryHeap::new();
        for (key, sums) in totals.iter() {
            total.add(sums);
            let value = sums.value_of(by);
            if largest.len() < most || largest.peek().is_some_and(|Reverse((least, ..))| value >= *least) {
                largest.push(Reverse((value, Reverse(key), sums)));
                if largest.len() > most {
                    largest.pop();
                }
            }
        }
        let ranked: Vec<(&[u8], FlowSums)> = largest
            .into_sorted_vec()
            .into_iter()
            .map(|Reverse((_, Reverse(key), sums))| (key, sums))
            .collect();
        let mut rows: Vec<FlowRow> = ranked
            .iter()
            .map(|(key, sums)| FlowRow { values: self.read_values(key), sums: *sums, series: Vec::new() })
            .collect();
        if let Some(at) = self.bucket {
            let mut places: Vec<(&[u8], usize)> =
                ranked.iter().enumerate().map(|(place, (key, _))| (*key, place)).collect();
            places.sort_unstable();
            for (key, sums) in self.table.iter() {
                if let Ok(found) = places.binary_search_by_key(&&key[..at], |(key, _)| key) {
                    let mut start = [0; 8];
                    start.copy_from_slice(&key[at..at + 8]);
                    rows[places[found].1].series.push((u64::from_be_bytes(start), sums));
                }
            }
            rows.iter_mut().for_each(|row| row.series.sort_unstable_by_key(|(start, _)| *start));
        }
        let (group, beyond) = (self.question.group.clone(), self.beyond);
        FlowAnswer { group, rows, total, groups, beyond, unreachable: Vec::new() }
    }

    /// Sums of groups over all time buckets; a bucket's start follows the first `group_len` bytes of a key.
    fn sum_over_time(&self, group_len: usize) -> GroupTable {
        let mut totals = GroupTable::new(group_len, usize::MAX);
        totals.add_groups(self.table.iter().map(|(key, sums)| (&key[..group_len], sums)));
        totals
    }

    /// The values of a group's columns.
    fn read_values(&self, key: &[u8]) -> Vec<u128> {
        let parts = self.parts.iter().map(|part| &key[part.to..part.to + part.len]);
        parts.map(|bytes| bytes.iter().fold(0, |value, byte| value << 8 | u128::from(*byte))).collect()
    }

    /// The tally without flows: for each, only what the exporter and direction with the most bytes counted.
    fn without_repeats(self) -> FlowTally {
        let groups_exporters = self.question.groups_by(&EXPORTER);
        // The key bytes within which observers compete: those of one flow, or of one flow at one exporter.
        let contest_len = if groups_exporters { OBSERVED_LEN - 1 } else { FLOW_LEN };
        // No limit: the table's own rows all fit, but the shorter keys fall into other shards.
        let mut observers = GroupTable::new(OBSERVED_LEN, usize::MAX);
        observers.add_groups(self.table.iter().map(|(key, sums)| (&key[..OBSERVED_LEN], sums)));
        // The most bytes win, then the lowest address.
        let mut winners: HashMap<&[u8], (u64, Reverse<&[u8]>)> = HashMap::with_capacity(observers.len());
        for (observer, sums) in observers.iter() {
            let counted = (sums.bytes, Reverse(observer));
            winners
                .entry(&observer[..contest_len])
                .and_modify(|winner| *winner = counted.max(*winner))
                .or_insert(counted);
        }
        let counts = |observer: &[u8]| {
            winners.get(&observer[..contest_len]).is_some_and(|(_, Reverse(winner))| *winner == observer)
        };
        let mut kept = FlowTally::new(self.question.clone(), false);
        kept.beyond = self.beyond;
        let counted = self.table.iter().filter(|(key, _)| counts(&key[..OBSERVED_LEN]));
        kept.add_groups(counted.map(|(key, sums)| (&key[OBSERVED_LEN..], sums)));
        kept
    }
}

/// The sums of a [`FlowTally`], without its question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowTallyParts {
    /// Whether flows, exporters and directions are kept apart.
    pub per_flow: bool,
    /// The keys of all groups, back to back.
    pub keys: Vec<u8>,
    /// Their sums.
    pub sums: Vec<FlowSums>,
    /// Sums of records without a group.
    pub beyond: FlowSums,
    /// Exporter and direction of the first record.
    pub observer: Option<(u128, u8)>,
    /// Whether records of other exporters were added.
    pub has_exporters: bool,
    /// Whether records of other directions were added.
    pub has_directions: bool,
}

/// The largest groups.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowAnswer {
    /// The columns that the records were grouped by.
    pub group: Vec<&'static Column>,
    /// The groups, largest first.
    pub rows: Vec<FlowRow>,
    /// Sums of all groups, shown or not.
    pub total: FlowSums,
    /// How many groups there are.
    pub groups: u64,
    /// Records in the total but in no group: there were more than [`MAX_GROUPS`]. Flows among them count once for each
    /// exporter that saw them.
    pub beyond: FlowSums,
    /// The addresses of collectors that did not answer: their records are missing.
    pub unreachable: Vec<String>,
}

/// A group.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRow {
    /// The values of the columns grouped by.
    pub values: Vec<u128>,
    /// Its sums.
    pub sums: FlowSums,
    /// Sums by start of time bucket, in nanoseconds since 1970, if asked for. Empty buckets are left out.
    pub series: Vec<(u64, FlowSums)>,
}

/// The flow whose [`FLOW_COLUMNS`] have these values.
pub fn flow_from_values(values: &[u128]) -> Option<Flow> {
    let [src, dst, sport, dport, proto] = *<&[u128; 5]>::try_from(values).ok()?;
    let address = |value| {
        let address = Ipv6Addr::from_bits(value);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    };
    Some(Flow {
        src: address(src),
        dst: address(dst),
        sport: sport.try_into().ok()?,
        dport: dport.try_into().ok()?,
        proto: proto.try_into().ok()?,
    })
}

/// A column's value, for people: `192.0.2.1`, `tcp`, `443`.
pub fn format_value(column: &Column, value: u128) -> String {
    match column.kind {
        ColumnType::Address => {
            let address = Ipv6Addr::from_bits(value);
            address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4).to_string()
        }
        _ if column.name == PROTOCOL.name => match u8::try_from(value).ok().and_then(key::protocol_name) {
            Some(name) => name.to_owned(),
            None => value.to_string(),
        },
        _ => value.to_string(),
    }
}

#[cfg(test)]
mod tests;

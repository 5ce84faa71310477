//! How the program for Tofino differs from that for bmv2: tables, counters, and which stores it can write.
//! `translator-p4/README.md` describes the same.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use dta_proto::program::Primitive;
use dta_proto::store::StoreKind;
use serde::{Deserialize, Serialize};

use super::bfrt_json::BfrtInfo;
use super::counters::SwitchCounts;
use super::places::PlaceCapacity;
use super::row::{ActionOf, FirstBits, RowAction as _, actions, tables};
use super::schema::{Used, UsedTable};
use super::translator::{
    self, AppendStore, KeyIncrementStore, KeyWriteStore, NACK_SESSION, PostcardingStore, Store, UseList,
};

dta_proto::named! {
    /// What a Tofino's program supports: not everything fits at once.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Profile {
        /// Key-write, key-increment, batches of 16 bytes, and postcards.
        #[default]
        Postcards: "postcards",
        /// Key-write of 12 and 28 bytes, key-increment, batches of 16 bytes, and sketch columns.
        Sketches: "sketches",
        /// Batches of 32 and 64 bytes only.
        Batches: "batches",
    }
}

/// The pipe of a Tofino port: port numbers are 128 times the pipe, plus the number there.
pub const fn pipe_of_port(port: u16) -> u16 {
    port >> 7
}

/// The mirror session that sends a postcard through ingress again.
pub const AGAIN_SESSION: u32 = 2;
/// Ports of mirror sessions: recirculation ports of pipe 0. Whatever is sent to them returns to ingress.
pub const SESSION_PORTS: [(u32, u32); 2] = [(NACK_SESSION, 68), (AGAIN_SESSION, 69)];
/// Mirrored bytes of a report that gets a NACK: its headers up to the sequence, and a few more.
pub const NACK_BYTES: u16 = 64;
/// The length of copies that are not cut.
pub const WHOLE: u16 = 0x3fff;
/// Most batches in a ring, as a power of two.
const RING_SHIFT: u32 = 20;

/// The counter of reports by their number in a frame, and the bmv2 counter it replaces.
const BY_NUMBER: (&str, &str) = ("emitted_reports", "emitted");
/// The same for postcard rows, by the bitmap of their hops.
const BY_HOPS: (&str, &str) = ("rows_discarded", "discarded");
/// The same for reports superseded in a column, by their number.
const BY_UNSENT: (&str, &str) = ("superseded_by_number", "egress_superseded");
/// A register that sums requested sequences, modulo 2^32.
pub const NACKED: &str = "nacked_sequences";

/// Everything the control plane uses of the program for Tofino, by profile.
pub fn required_schema(profile: Profile) -> &'static Used {
    static USED: LazyLock<[Used; 3]> = LazyLock::new(|| Profile::ALL.map(build_required_schema));
    &USED[profile as usize]
}

/// The profile that a program was compiled for, by what it has; `None` if that does not tell.
pub fn profile_of(info: &BfrtInfo) -> Option<Profile> {
    let mark = |profile: &Profile| match profile {
        Profile::Postcards => "row_region",
        Profile::Sketches => "sketch_reporter",
        Profile::Batches => LAST_WORD,
    };
    Profile::ALL.into_iter().find(|profile| info.table_by_name(mark(profile)).is_some())
}

/// Whether the switch runs the profile that it should.
///
/// # Errors
/// What to do, in words.
pub fn check_profile(profile: Profile, info: &BfrtInfo) -> Result<(), String> {
    match profile_of(info) {
        Some(other) if other != profile => Err(format!(
            "its program is of the profile \"{}\", and `profile` of the configuration is \"{}\": load the other one, or change that",
            other.name(),
            profile.name()
        )),
        Some(_) | None => Ok(()),
    }
}

/// The register of the last word of a held batch, where batches have up to 64 bytes.
const LAST_WORD: &str = "list_word_12";

actions! {
    /// `others` is `expected_reporters` less 1, as the program compares it, and `columns` their number.
    SketchMergeStore = "sketch_merge_store" {
        number: u32 = 8,
        rows: u8 = 8,
        merge: u8 = 8,
        expected_reporters: u8 = 16,
        others: u8 = 8,
        columns_shift: u32 = 8,
        columns: u32 = 32,
        epochs_mask: u32 = 32,
        element_shift: u32 = 8,
        state_base: u32 = 32,
    }
    UseRowRegion = "use_row_region" { pair: u32 = 8, address: u64 = 64, rkey: u32 = 32 }
}

tables! {
    OWN_TABLES:
    Lists = "lists" { store: u16 = 16, list: FirstBits = 32 } => [UseList]
    /// The region of a postcard store, for the keys of rows that leave.
    RowRegion = "row_region" { store: u16 = 16, bucket: RangeInclusive<u8> = 8 } => [UseRowRegion]
}

impl ActionOf<Store> for SketchMergeStore {}

fn build_required_schema(profile: Profile) -> Used {
    let is_there = |table: &&UsedTable| match table.name {
        "sketch_reporter" => profile == Profile::Sketches,
        "row_region" => profile == Profile::Postcards,
        _ => true,
    };
    let is_own = |table: &UsedTable| OWN_TABLES.iter().any(|own| own.name == table.name);
    let others = translator::USED.tables.iter().filter(|table| !is_own(table));
    let mut tables: Vec<UsedTable> = others.chain(OWN_TABLES).filter(is_there).cloned().collect();
    for table in tables.iter_mut().filter(|table| table.name == "store") {
        table.actions = match profile {
            Profile::Postcards => {
                &[KeyWriteStore::USED, KeyIncrementStore::USED, AppendStore::USED, PostcardingStore::USED]
            }
            Profile::Sketches => {
                &[KeyWriteStore::USED, KeyIncrementStore::USED, AppendStore::USED, SketchMergeStore::USED]
            }
            Profile::Batches => &[AppendStore::USED],
        };
    }
    let mut counters = vec![
        ("received", 6),
        ("accepted", 6),
        ("dropped", 32),
        ("immediate_ignored", 1),
        ("nacks", 1),
        ("answers", 3),
        ("emitted_reports", 128),
        ("operations", 6),
        ("lost", 6),
        ("store_frames", 256),
        ("pair_frames", 64),
    ];
    match profile {
        Profile::Postcards => {
            counters.extend([("superseded", 1), ("rows_discarded", 64), ("partial_rows", 1)]);
        }
        Profile::Sketches => counters.extend([
            ("egress_accepted", 6),
            ("egress_dropped", 32),
            ("superseded_by_number", 33),
            ("egress_immediate_ignored", 1),
        ]),
        Profile::Batches => {}
    }
    Used {
        tables: Cow::Owned(tables),
        counters: Cow::Owned(counters),
        // Registers are written like tables: no packets are sent.
        packet_out: &[],
    }
}

/// Why a profile of the program cannot write a store; `None` if it can.
pub fn cannot_write(profile: Profile, kind: &StoreKind) -> Option<String> {
    let what = match *kind {
        StoreKind::KeyWrite { value_len, .. } if value_len > 28 => {
            return Some(format!(
                "values of {value_len} bytes, and the program for Tofino writes 4, 12 or 28"
            ));
        }
        StoreKind::Postcarding { hops, .. } if hops != 6 => {
            return Some(format!("paths of {hops} hops, and the program for Tofino has rows of 6"));
        }
        StoreKind::Append { batch_len, .. } if batch_len > 64 => {
            return Some(format!(
                "batches of {batch_len} bytes, and the program for Tofino makes 16, 32 or 64"
            ));
        }
        StoreKind::Append { ring, .. } if ring > 1 << RING_SHIFT => {
            return Some(format!(
                "rings of {ring} batches, and the program for Tofino has {} at most",
                1 << RING_SHIFT
            ));
        }
        StoreKind::KeyWrite { value_len, .. } => format!("values of {value_len} bytes"),
        StoreKind::Postcarding { .. } => "postcards".to_owned(),
        StoreKind::SketchMerge { .. } => "columns of sketches".to_owned(),
        StoreKind::Append { batch_len, .. } => format!("batches of {batch_len} bytes"),
        _ => format!("elements of {}", kind.primitive()),
    };
    (!supports_store(profile, kind)).then(|| {
        let others: Vec<String> = Profile::ALL
            .into_iter()
            .filter(|other| supports_store(*other, kind))
            .map(|other| format!("\"{}\"", other.name()))
            .collect();
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        format!(
            "{what}, which the profile \"{}\" of the program for Tofino does not support; profiles that do: {others}",
            profile.name(),
        )
    })
}

/// Whether a profile has what makes the elements of a store of this kind, whatever their size.
fn supports_store(profile: Profile, kind: &StoreKind) -> bool {
    match *kind {
        StoreKind::KeyWrite { value_len: 4, .. } | StoreKind::Postcarding { .. } => {
            profile == Profile::Postcards
        }
        StoreKind::KeyWrite { .. } | StoreKind::KeyIncrement { .. } => profile != Profile::Batches,
        StoreKind::Append { batch_len, .. } => (profile == Profile::Batches) == (batch_len != 16),
        StoreKind::SketchMerge { .. } if profile == Profile::Sketches => true,
        _ => false,
    }
}

/// How many lists, rows and columns a profile holds: four registers of them fit in a stage with room for other tables.
pub fn place_capacity(profile: Profile) -> PlaceCapacity {
    match profile {
        Profile::Postcards => PlaceCapacity { lists: 65_536, rows: 16_384, columns: 0 },
        Profile::Sketches => PlaceCapacity { lists: 65_536, rows: 0, columns: 32_768 },
        Profile::Batches => PlaceCapacity { lists: 16_384, rows: 0, columns: 0 },
    }
}

/// The newest sequence of a list as the program's register has it: 1 comes after 2^32 - 1, and also after 0.
pub const fn register_sequence(sequence: u32) -> u32 {
    if sequence == u32::MAX { 0 } else { sequence }
}

/// The prefixes that together cover a range of numbers, both ends included.
pub(super) fn range_prefixes(first: u32, last: u32) -> Vec<FirstBits> {
    let (mut all, mut first, last) = (Vec::new(), u64::from(first), u64::from(last));
    while first <= last {
        // As many as its zeros at the end allow, and no more than are left.
        let mut bits = first.trailing_zeros().min(32);
        while first + (1 << bits) - 1 > last {
            bits -= 1;
        }
        all.push(FirstBits { value: first as u32, len: 32 - bits as u16 });
        first += 1 << bits;
    }
    all
}

/// Most nodes of a multicast group: this many from its number on.
pub(super) const NODES: u32 = 8;
/// The register of the next frame's PSN, by queue pair; its low 24 bits count.
pub const NEXT_PSN: &str = "next_psn";
/// Per list: the entries that are held.
pub const LIST_COUNT: &str = "list_count";
/// Per list: the sequence of its newest batch ([`register_sequence`]).
pub const LIST_SEQUENCE: &str = "list_sequence";
/// Per row of postcards: its hops and path length; 0 if it is free.
pub const ROW_HEAD: &str = "row_head";
/// Per row of postcards: the words of its key.
pub const ROW_KEY: [&str; 4] = ["row_key_a", "row_key_b", "row_key_c", "row_key_d"];
/// Per column: whether anything is in it.
pub const COLUMN_USED: &str = "column_used";
/// Per column: how many reports in it have not left.
pub const COLUMN_UNSENT: &str = "column_unsent";
/// Per column: its epoch, the first of two words.
pub const COLUMN_EPOCH: &str = "column_epoch";

/// The registers that are written or read.
pub fn registers_of(profile: Profile) -> &'static [&'static str] {
    match profile {
        Profile::Postcards => {
            &[NEXT_PSN, LIST_COUNT, LIST_SEQUENCE, ROW_HEAD, ROW_KEY[0], ROW_KEY[1], ROW_KEY[2], ROW_KEY[3]]
        }
        Profile::Sketches => &[NEXT_PSN, LIST_COUNT, LIST_SEQUENCE, COLUMN_USED, COLUMN_UNSENT, COLUMN_EPOCH],
        Profile::Batches => &[NEXT_PSN, LIST_COUNT, LIST_SEQUENCE],
    }
}

/// The recirculation port by which a command comes to a pipe, 0 to 3: the first of each.
pub const fn command_port(pipe: u8) -> u16 {
    128 * pipe as u16 + 68
}

/// The pipe of the CPU port of a chip with this many pipes: it is port 192 of two pipes, and port 320 of four.
pub const fn cpu_port_pipe(pipes: usize) -> usize {
    pipe_of_port(if pipes > 2 { 320 } else { 192 }) as usize
}

/// Turns a counter by the reports of a packet into one that counts them in bits: bit b stands for 2^b each.
/// `of` gives the start of the 8 bits of an index, and its reports.
fn count_in_bits(counts: &mut SwitchCounts, names: (&str, &str), of: impl Fn(usize) -> (usize, usize)) {
    let Some(cells) = counts.0.remove(names.0) else { return };
    let bits = counts.0.entry(names.1.into()).or_default();
    for (index, count) in cells.iter().enumerate() {
        let (first, reports) = of(index);
        bits.resize(bits.len().max(first + 8), 0);
        for bit in (0..8).filter(|bit| reports >> bit & 1 == 1) {
            bits[first + bit] += count;
        }
    }
}

/// Renames counters as on bmv2. `nacked` is the number of sequences requested.
pub fn name_counts(counts: &mut SwitchCounts, nacked: u64) {
    // Index 0 has only datagrams that cannot be read, not all.
    if let Some(received) = counts.0.get_mut("received") {
        let all = received.iter().sum();
        if let Some(first) = received.first_mut() {
            *first = all;
        }
    }
    // 16 numbers of a primitive become 8 bits; columns of sketches, which are the last, have more.
    let sketch = usize::from(Primitive::SketchMerge.opcode());
    count_in_bits(counts, BY_NUMBER, |index| match index / 16 {
        primitive if primitive < sketch => (primitive * 8, index % 16),
        _ => (sketch * 8, index - sketch * 16),
    });
    count_in_bits(counts, BY_HOPS, |hops| (0, hops.count_ones() as usize));
    count_in_bits(counts, BY_UNSENT, |reports| (sketch * 8, reports));
    counts.0.insert(NACKED.into(), vec![nacked]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_bits() {
        let mut counts = SwitchCounts::default();
        counts.0.insert("received".into(), vec![2, 3, 0, 0, 5, 0, 0, 0]);
        let mut emitted = vec![0; 256];
        // Of postcards, 10 rows of 6 and 4 of 3; of lists, 7 batches of 2.
        (emitted[4 * 16 + 6], emitted[4 * 16 + 3], emitted[2 * 16 + 2]) = (10, 4, 7);
        counts.0.insert("emitted_reports".into(), emitted);
        // Three rows with hops 0 and 2, four with hops 3 to 5.
        let mut rows = vec![0; 64];
        (rows[0b000101], rows[0b111000]) = (3, 4);
        counts.0.insert("rows_discarded".into(), rows);
        // Of columns, 3 of 17 reports; 2 lost 5 each to a later epoch.
        counts.0.get_mut("emitted_reports").unwrap()[5 * 16 + 17] = 3;
        counts.0.insert("superseded_by_number".into(), vec![9, 0, 0, 0, 0, 2]);
        name_counts(&mut counts, 9);
        assert_eq!(counts.counts_named("received")[..6], [10, 3, 0, 0, 5, 0]);
        assert_eq!(counts.counts_named("emitted")[32..36], [4, 14, 10, 0]);
        assert_eq!(counts.counts_named("emitted")[16..20], [0, 7, 0, 0]);
        assert_eq!(counts.counts_named("discarded")[..4], [4, 7, 0, 0]);
        assert_eq!(counts.counts_named("emitted")[40..46], [3, 0, 0, 0, 3, 0]);
        assert_eq!(counts.counts_named("egress_superseded")[40..44], [2, 0, 2, 0]);
        assert_eq!(
            (counts.count_at("nacked_sequences", 0), counts.counts_named("emitted_reports").len()),
            (9, 0)
        );
    }

    #[test]
    fn the_last_sequence_is_followed_by_the_first() {
        // The register's place of the next batch is what it holds, and the sequence is one more.
        assert_eq!([0, 1, u32::MAX - 1, u32::MAX].map(register_sequence), [0, 1, u32::MAX - 1, 0]);
    }

    #[test]
    fn prefixes_are_the_range_and_nothing_else() {
        let of = |first, last| {
            let all = range_prefixes(first, last).into_iter();
            all.map(|bits| (bits.value, bits.len)).collect::<Vec<_>>()
        };
        assert_eq!(of(0, 3), [(0, 30)]);
        assert_eq!(of(5, 5), [(5, 32)]);
        assert_eq!(of(1, 8), [(1, 32), (2, 31), (4, 30), (8, 32)]);
        assert_eq!(of(0, u32::MAX), [(0, 0)]);
        assert_eq!(of(u32::MAX, u32::MAX), [(u32::MAX, 32)]);
        for (low, high) in [(3, 300), (7, 64), (0, 999), (65_530, 70_000)] {
            let all = of(low, high);
            let holds = |number: u32| {
                all.iter().filter(|(value, len)| number >> (32 - len) == *value >> (32 - len)).count()
            };
            for number in 0..71_000 {
                assert_eq!(holds(number), usize::from((low..=high).contains(&number)), "{number}");
            }
        }
    }
}

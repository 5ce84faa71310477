//! Stores that are large enough for given traffic, and the memory that they take, by the formulas of
//! [`dta_proto::layout`].
//!
//! - [`rates`]: how many reports for a store can be taken, from measured parts.

pub mod rates;

use std::time::Duration;

use anyhow::Context;
use dta_cli::number::parse_short;
use dta_collector::epochs;
use dta_files::span;
use dta_memory::region;
use dta_proto::layout::load;
use dta_proto::store::{MAX_REDUNDANCY, SlotKeys, StoreKind, StoreSpec};
use dta_translator::config::FlushTimes;
use serde::Serialize;

/// What is reported, and what is to be found of it.
#[derive(Clone, Debug, clap::Args)]
pub struct SizingTraffic {
    /// Keys reported within the retention; with --epoch, within an epoch
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_short)]
    pub flows: u64,
    /// Reports per second
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_short)]
    pub reports: u64,
    /// How long entries of lists and epochs of sketches stay in memory
    #[arg(long, value_name = "SPAN", default_value = "60s", value_parser = span::parse_duration)]
    pub retention: Duration,
    // Here it is a share of 1.
    /// Per cent of the keys that are found, or whose counts are exact
    #[arg(long, value_name = "PERCENT", default_value = "99", value_parser = parse_share)]
    pub survival: f64,
    /// Copies of each key [default: as few as will do]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_REDUNDANCY)))]
    pub copies: Option<u8>,
    /// Keep a history, in epochs of this length
    #[arg(long, value_name = "SPAN", value_parser = span::parse_duration)]
    pub epoch: Option<Duration>,
}

/// A share above 0 and below 1, in per cent.
fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().map(|percent| percent / 100.0);
    let share = share.filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "must be above 0 and below 100".to_owned())
}

/// A store of the right size, and what it takes.
#[derive(Clone, Debug, Serialize)]
pub struct StoreSize {
    #[serde(flatten)]
    pub store: StoreSpec,
    /// Bytes of memory, in all generations.
    pub memory_bytes: u64,
    /// The same for a million keys; of a list store, for a million entries.
    pub memory_bytes_per_million: u64,
    /// Pages of 2 MiB that it takes from the pool, in anonymous memory.
    pub huge_pages: u64,
    /// Share of the keys that are found with N = 1 to 4 in as many slots (key-write, postcarding), or whose count is exact
    /// (key-increment; sketch-merge with 1 to 4 rows).
    pub survival: Option<[f64; 4]>,
    /// The N with the best survival; a sketch has no N.
    pub advised_redundancy: Option<u8>,
    /// Bytes of history per day, as far as measured.
    pub history_bytes_per_day: Option<u64>,
    /// Frames that the translator sends for a report.
    pub frames_per_report: f64,
}

impl StoreSize {
    /// Makes a store like `shape` large enough; `sketch_epoch` is the length of an epoch of sketches.
    ///
    /// # Errors
    /// The shape is invalid, or no store is large enough.
    pub fn for_traffic(
        shape: StoreSpec,
        sketch_epoch: Duration,
        traffic: &SizingTraffic,
    ) -> anyhow::Result<StoreSize> {
        // The shape is checked first: sizes are divided by a batch's number of entries.
        shape.validate()?;
        let store = large_enough(shape, sketch_epoch, traffic)?;
        store.validate()?;
        let memory_bytes = epochs::memory_len(&store, traffic.epoch.is_some());
        let of = match store.kind {
            StoreKind::Append { .. } => {
                store.element_count() as f64 / frames_per_report(&store, traffic.reports)
            }
            _ => traffic.flows as f64,
        };
        let survival = survival_by_copies(&store, traffic.flows as f64);
        let advised = store.redundancy().map(|_| load::advised_redundancy(load(&store, traffic)));
        Ok(StoreSize {
            memory_bytes,
            memory_bytes_per_million: (memory_bytes as f64 * 1e6 / of) as u64,
            huge_pages: memory_bytes / store.region_len() * region::pool_pages(store.region_len()),
            survival,
            advised_redundancy: advised,
            history_bytes_per_day: history_bytes_per_day(&store, traffic),
            frames_per_report: frames_per_report(&store, traffic.reports),
            store,
        })
    }
}

fn load(store: &StoreSpec, traffic: &SizingTraffic) -> f64 {
    load::load(traffic.flows as f64, store.element_count())
}

fn large_enough(
    mut store: StoreSpec,
    sketch_epoch: Duration,
    traffic: &SizingTraffic,
) -> anyhow::Result<StoreSpec> {
    let flows = traffic.flows as f64;
    let name = store.name.clone();
    let slots_for = |keys, copies| {
        load::slots_for(keys, traffic.survival, copies)
            .with_context(|| format!("store `{name}`: no size is large enough for {} keys", traffic.flows))
    };
    let frames_per_report = frames_per_report(&store, traffic.reports);
    let most = store.max_redundancy();
    match &mut store.kind {
        StoreKind::Append { lists, ring, .. } => {
            let reports = traffic.reports as f64 * traffic.retention.as_secs_f64();
            let batches = reports * frames_per_report / f64::from(*lists);
            *ring = (batches.ceil() as u64).checked_next_power_of_two().unwrap_or(u64::MAX);
        }
        StoreKind::SketchMerge { columns, rows, epochs, .. } => {
            // Each row has cells of its own for all keys, where copies share the slots.
            let (least, _) = slots_for(flows / f64::from(*rows), *rows..=*rows)?;
            *columns = u32::try_from(least).unwrap_or(u32::MAX);
            let kept = traffic.retention.as_secs_f64() / sketch_epoch.as_secs_f64();
            // One more for the epoch that is being merged.
            *epochs = (kept.ceil() as u32).saturating_add(1).checked_next_power_of_two().unwrap_or(u32::MAX);
        }
        kind => {
            let unknown = || format!("store `{name}`: the required size is unknown");
            let (slots, redundancy) = kind.slots_mut().with_context(unknown)?;
            let copies = traffic.copies.map_or(1..=most, |n| n..=n);
            (*slots, *redundancy) = slots_for(flows, copies)?;
        }
    }
    Ok(store)
}

/// Frames per report. Assumes that a path is reported hop by hop, and a column by all of its reporters. A batch leaves
/// when it is full, or with what came within the translator's flush time.
fn frames_per_report(store: &StoreSpec, reports: u64) -> f64 {
    let most = f64::from(store.reports_per_element());
    let together = match store.kind {
        StoreKind::Append { lists, .. } => {
            let flush = f64::from(FlushTimes::default().append_ms) / 1e3;
            (reports as f64 / f64::from(lists) * flush).clamp(1.0, most)
        }
        _ => most,
    };
    f64::from(store.redundancy().unwrap_or(1)) / together
}

fn survival_by_copies(store: &StoreSpec, flows: f64) -> Option<[f64; 4]> {
    let cells = |n: u8| match store.kind {
        StoreKind::SketchMerge { columns, .. } => u64::from(columns) * u64::from(n),
        _ => store.element_count(),
    };
    let found = |n| load::survival_probability(load::load(flows, cells(n)), n);
    (!matches!(store.kind, StoreKind::Append { .. })).then(|| [1, 2, 3, 4].map(found))
}

/// Bytes of a used slot in the history: 12-byte values, and paths of up to 6 hops (docs/decisions/history.md).
const VALUE_ROW: f64 = 13.3;
const PATH_ROW: f64 = 10.4;

fn history_bytes_per_day(store: &StoreSpec, traffic: &SizingTraffic) -> Option<u64> {
    let row = match store.kind {
        StoreKind::KeyWrite { value_len: 12, keys: SlotKeys::Hashed, .. } => VALUE_ROW,
        StoreKind::Postcarding { hops: 6, .. } => PATH_ROW,
        _ => return None,
    };
    let used = load::used_slot_share(load(store, traffic), store.redundancy()?);
    let epochs = 86_400.0 / traffic.epoch?.as_secs_f64();
    Some((store.element_count() as f64 * used * row * epochs) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use dta_collector::config::default_stores;
    use dta_proto::key::Key;
    use dta_proto::layout::hash;
    use dta_proto::wire::dta::Primitive;

    use super::*;

    const TRAFFIC: SizingTraffic = SizingTraffic {
        flows: 20_000,
        reports: 50_000,
        retention: Duration::from_secs(60),
        survival: 0.98,
        copies: None,
        epoch: None,
    };
    const SKETCH_EPOCH: Duration = Duration::from_secs(10);

    fn shape(primitive: Primitive) -> StoreSpec {
        default_stores().into_iter().find(|store| store.kind.primitive() == primitive).unwrap()
    }

    fn size(primitive: Primitive, traffic: &SizingTraffic) -> StoreSize {
        StoreSize::for_traffic(shape(primitive), SKETCH_EPOCH, traffic).unwrap()
    }

    #[test]
    fn keys_are_found_as_wanted_and_half_of_it_is_too_little() {
        for primitive in [Primitive::KeyWrite, Primitive::Postcarding, Primitive::KeyIncrement] {
            let of = size(primitive, &TRAFFIC);
            let slots = of.store.element_count();
            let n = of.store.redundancy().unwrap();
            assert!(of.survival.unwrap()[usize::from(n) - 1] >= TRAFFIC.survival, "{of:?}");
            let half = load::load(TRAFFIC.flows as f64, slots / 2);
            assert!((1..=4).all(|n| load::survival_probability(half, n) < TRAFFIC.survival), "{of:?}");
            assert_eq!(of.memory_bytes, slots * of.store.element_len());
            assert_eq!(of.memory_bytes_per_million, of.memory_bytes * 50);
            assert_eq!(of.frames_per_report, f64::from(n) / f64::from(of.store.reports_per_element()));
            let one = size(primitive, &SizingTraffic { copies: Some(1), ..TRAFFIC });
            assert_eq!(one.store.redundancy(), Some(1));
            assert!(one.store.element_count() > slots, "{one:?}");
        }
    }

    #[test]
    fn counts_of_a_sketch_are_exact_as_often_as_computed() {
        let of = size(Primitive::SketchMerge, &TRAFFIC);
        let StoreKind::SketchMerge { columns, rows, epochs, .. } = of.store.kind else { panic!() };
        assert_eq!(epochs, 8, "six epochs of 10 s, one that is open, and a power of two");
        assert!(of.survival.unwrap()[usize::from(rows) - 1] >= TRAFFIC.survival);
        let key = |number: u64| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            Key(bytes)
        };
        let cells = |number| {
            let slots = hash::key_slots(&key(number), rows, columns.into());
            slots.iter().copied().enumerate().collect::<Vec<_>>()
        };
        let mut keys_in = HashMap::new();
        (0..TRAFFIC.flows).flat_map(cells).for_each(|cell| *keys_in.entry(cell).or_insert(0) += 1);
        let exact =
            (0..TRAFFIC.flows).filter(|number| cells(*number).iter().any(|cell| keys_in[cell] == 1)).count();
        let exact = exact as f64 / TRAFFIC.flows as f64;
        let computed = of.survival.unwrap()[usize::from(rows) - 1];
        assert!((exact - computed).abs() < 0.005, "{exact}, and {computed} was computed");
    }

    #[test]
    fn lists_hold_what_comes_in_the_retention() {
        for reports in [5, 100, 500, 50_000, 3_000_000] {
            let of = size(Primitive::Append, &SizingTraffic { reports, ..TRAFFIC });
            let StoreKind::Append { lists, ring, batch_len: 64, entry_len: 16, .. } = of.store.kind else {
                panic!()
            };
            // Entries that come to a list in the 100 ms that a batch waits, 3 at most.
            let filled = (reports as f64 / f64::from(lists) * 0.1).clamp(1.0, 3.0);
            assert_eq!(of.frames_per_report, 1.0 / filled);
            let held = u64::from(lists) as f64 * ring as f64 * filled;
            let wanted = reports as f64 * 60.0;
            assert!(held >= wanted && (ring == 1 || held / 2.0 < wanted), "{reports}: {held}");
            assert_eq!(of.memory_bytes_per_million, (64e6 / filled) as u64);
            assert_eq!((of.survival, of.advised_redundancy), (None, None));
        }
    }

    #[test]
    fn epochs_take_more_memory_and_disk() {
        let with = SizingTraffic { epoch: Some(Duration::from_secs(60)), flows: 200_000, ..TRAFFIC };
        let without = SizingTraffic { epoch: None, ..with.clone() };
        for primitive in Primitive::ALL {
            let (with, without) = (size(primitive, &with), size(primitive, &without));
            let replaced = matches!(primitive, Primitive::KeyWrite | Primitive::Postcarding);
            assert_eq!(with.memory_bytes, without.memory_bytes * if replaced { 3 } else { 1 }, "{primitive}");
            assert_eq!(with.huge_pages, with.memory_bytes >> 21, "{primitive}");
            assert_eq!(with.history_bytes_per_day.is_some(), replaced, "{primitive}");
            assert_eq!(without.history_bytes_per_day, None);
        }
        // A slot is used unless each copy of each key missed it.
        let of = size(Primitive::KeyWrite, &with);
        let (slots, copies) =
            (of.store.element_count() as f64, f64::from(of.store.redundancy().unwrap()) * 200_000.0);
        let rows = slots * (1.0 - (1.0 - 1.0 / slots).powf(copies));
        let ratio = of.history_bytes_per_day.unwrap() as f64 / (rows * VALUE_ROW * 1440.0);
        assert!((ratio - 1.0).abs() < 1e-4, "{ratio}");
        // Other rows were not measured; small regions are in no huge page.
        let mut wide = shape(Primitive::KeyWrite);
        let StoreKind::KeyWrite { value_len, .. } = &mut wide.kind else { panic!() };
        *value_len = 28;
        assert_eq!(StoreSize::for_traffic(wide, SKETCH_EPOCH, &with).unwrap().history_bytes_per_day, None);
        assert_eq!(size(Primitive::KeyWrite, &SizingTraffic { flows: 100, ..with }).huge_pages, 0);
    }

    #[test]
    fn rows_of_the_history_are_as_measured() {
        let page = include_str!("../../../docs/decisions/history.md");
        for (columns, bytes) in [
            ("key-write, 12-byte `value` as binary", VALUE_ROW),
            ("postcarding, a column for each field and hop", PATH_ROW),
        ] {
            assert!(page.contains(&format!("| {columns} | {bytes} |")), "{columns}");
        }
    }
}

//! How full a store is, how that affects its answers, and which N would serve better.

use dta_proto::layout::load;
use dta_proto::queue_pair::Purpose;

use super::Store;
use crate::region::AccessError;

/// Most bytes read in one store: a millisecond or two of memory bandwidth.
const BUDGET: u64 = 16 << 20;
/// Bytes per read.
const RUN: u64 = 16 << 10;

/// How full a store is. Estimated from a sample if the store is larger than 16 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Keys (key-write, postcarding, key-increment), batches (append) or columns (sketch-merge)
    /// that the store holds.
    pub used: u64,
    pub capacity: u64,
    /// `used / capacity`: keys per slot for keyed stores.
    pub load: f64,
    /// Predicted share of keys that are still there, or whose count is exact if operations add.
    pub survival: Option<f64>,
    /// The best N at this load; none for an empty store.
    pub advised_redundancy: Option<u8>,
}

/// Measures a store. An element is in use if any of its bytes is not 0.
///
/// # Errors
/// An element lies outside the region: the region does not match the store's description.
pub fn measure_load(store: &Store) -> Result<Load, AccessError> {
    let elements = store.spec.element_count();
    let element = store.spec.element_len();
    // Hashing spreads keys evenly, so neighbours are as good a sample as any and fast to read; rings and epochs fill
    // in order, so their sample must be spread.
    let keyed = store.spec.redundancy();
    let per_run = if keyed.is_some() { (RUN / element).min(elements) } else { 1 };
    let budget = if keyed.is_some() { BUDGET / element } else { 1 << 16 };
    let runs = (budget.min(elements) / per_run).max(1);
    let stride = (elements / runs).max(per_run);
    let mut buffer = vec![0u8; (per_run * element) as usize];
    let (mut sampled, mut used) = (0u64, 0u64);
    for run in 0..runs {
        store.region.read(run * stride * element, &mut buffer)?;
        sampled += per_run;
        used += buffer.chunks_exact(element as usize).filter(|e| e.iter().any(|b| *b != 0)).count() as u64;
    }
    let scale = elements as f64 / sampled as f64;
    let Some(n) = keyed else {
        let used = used as f64 * scale;
        return Ok(Load {
            used: used.round() as u64,
            capacity: elements,
            load: used / elements as f64,
            ..Load::default()
        });
    };
    // A sample without a free slot says only "at least this many".
    let keys = load::estimate_keys(used.min(sampled - 1), sampled, n).unwrap_or_default() * scale;
    let a = load::load(keys, elements);
    let survival = match store.spec.kind.primitive().queue_pair_purpose() {
        // A counter is exact if at least one of the key's slots is used by no other key, earlier or later.
        Purpose::Atomic => load::survival_probability(a, n),
        Purpose::Write => load::mean_survival(a, n),
    };
    Ok(Load {
        used: keys.round() as u64,
        capacity: elements,
        load: a,
        survival: Some(survival),
        // An empty store gives no reason to prefer any N.
        advised_redundancy: (used > 0).then(|| load::advised_redundancy(a).min(store.spec.max_redundancy())),
    })
}

//! How full a store is, how that affects its answers, and which N would serve better.

use dta_proto::layout::append::{TRAILER_LEN, ring_place};
use dta_proto::layout::load;
use dta_proto::queue_pair::Purpose;
use dta_proto::store::StoreKind;

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
    /// Predicted share of keys that are still in the store, or, for counters, whose count is exact.
    pub survival: Option<f64>,
    /// The best N at this load; none for an empty store.
    pub advised_redundancy: Option<u8>,
    /// Batches of lists that later batches have overwritten, computed from their sequences.
    pub overwritten: Option<u64>,
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
    let mut turns = RingTurns::new(&store.spec.kind);
    for run in 0..runs {
        store.region.read(run * stride * element, &mut buffer)?;
        if let Some(turns) = &mut turns {
            turns.add_batch(run * stride, &buffer);
        }
        sampled += per_run;
        used += buffer.chunks_exact(element as usize).filter(|element| is_in_use(element)).count() as u64;
    }
    let scale = elements as f64 / sampled as f64;
    let Some(n) = keyed else {
        let used = used as f64 * scale;
        return Ok(Load {
            used: used.round() as u64,
            capacity: elements,
            load: used / elements as f64,
            overwritten: turns.map(|turns| turns.overwritten()),
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
        overwritten: None,
    })
}

/// Whether any byte of an element is not 0. Checks whole words, because mostly empty stores are read to the end.
fn is_in_use(element: &[u8]) -> bool {
    let (words, rest) = element.as_chunks::<8>();
    words.iter().any(|word| u64::from_ne_bytes(*word) != 0) || rest.iter().any(|byte| *byte != 0)
}

/// Counts the batches of lists that were overwritten.
struct RingTurns {
    ring: u64,
    /// The list being read, and its latest batch.
    list: u64,
    newest: u64,
    /// Batches overwritten in the lists before.
    overwritten: u64,
}

impl RingTurns {
    /// `None` for a store without lists.
    fn new(kind: &StoreKind) -> Option<RingTurns> {
        let StoreKind::Append { ring, .. } = *kind else { return None };
        Some(RingTurns { ring, list: 0, newest: 0, overwritten: 0 })
    }

    /// Elements come in order. Checking each batch would cost more than everything else here: a sequence that
    /// belongs in its place is trusted.
    fn add_batch(&mut self, element: u64, batch: &[u8]) {
        let (list, place) = (element / self.ring, element % self.ring);
        if list != self.list {
            self.overwritten += self.newest.saturating_sub(self.ring);
            (self.list, self.newest) = (list, 0);
        }
        let trailer = batch.last_chunk::<TRAILER_LEN>().and_then(|trailer| trailer.first_chunk::<4>());
        let sequence = trailer.map_or(0, |sequence| u32::from_be_bytes(*sequence));
        if sequence != 0 && ring_place(sequence, self.ring) == place {
            self.newest = self.newest.max(sequence.into());
        }
    }

    fn overwritten(&self) -> u64 {
        self.overwritten + self.newest.saturating_sub(self.ring)
    }
}

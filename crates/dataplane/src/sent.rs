//! List batches sent on UC, kept for a while: after a collector restart, nobody knows which of the last ones
//! arrived.

const BATCHES: usize = 4096;
/// How long a batch is kept, in nanoseconds.
const FOR: u64 = 60_000_000_000;

/// The last batches of one store, in a ring.
#[derive(Default)]
pub(crate) struct SentBatches {
    batches: Vec<SentBatch>,
    /// Their bytes, all of equal length.
    bytes: Vec<u8>,
    /// The next place once the ring is full: that of the oldest.
    next: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct SentBatch {
    pub(crate) collector: u8,
    pub(crate) list: u32,
    pub(crate) sequence: u32,
    pub(crate) at: u64,
}

impl SentBatches {
    /// Keeps a batch, replacing the oldest if full.
    pub(crate) fn keep_batch(&mut self, batch: SentBatch, bytes: &[u8]) {
        if self.batches.len() < BATCHES {
            if self.batches.is_empty() {
                self.batches.reserve_exact(BATCHES);
                self.bytes.reserve_exact(BATCHES * bytes.len());
            }
            self.batches.push(batch);
            self.bytes.extend_from_slice(bytes);
            return;
        }
        self.batches[self.next] = batch;
        self.bytes[self.next * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
        self.next = (self.next + 1) % BATCHES;
    }

    /// Recent batches to a collector with their bytes, oldest first.
    pub(crate) fn recent_batches_to(
        &self,
        collector: u8,
        now: u64,
    ) -> impl Iterator<Item = (SentBatch, &[u8])> {
        let len = self.bytes.len() / self.batches.len().max(1);
        let (newer, older) = self.batches.split_at(self.next);
        let places = (self.next..self.next + older.len()).chain(0..newer.len());
        let wanted =
            move |batch: &SentBatch| batch.collector == collector && now.saturating_sub(batch.at) < FOR;
        places
            .map(move |place| (self.batches[place], &self.bytes[place * len..][..len]))
            .filter(move |(batch, _)| wanted(batch))
    }

    pub(crate) fn forget_batches(&mut self, is_over: impl Fn(&SentBatch) -> bool) {
        // Frees the batch: no collector has this number.
        let over = self.batches.iter_mut().filter(|batch| is_over(batch));
        over.for_each(|batch| batch.collector = u8::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_kept_in_their_order() {
        let mut sent = SentBatches::default();
        assert_eq!(sent.recent_batches_to(0, 0).count(), 0);
        for sequence in 1..=BATCHES as u32 + 10 {
            let collector = u8::from(sequence % 5 == 0);
            sent.keep_batch(SentBatch { collector, list: 3, sequence, at: 7 }, &sequence.to_be_bytes());
        }
        let all = sent.recent_batches_to(0, 8).map(|(batch, bytes)| {
            assert_eq!(bytes, batch.sequence.to_be_bytes());
            batch.sequence
        });
        let expected = (11..=BATCHES as u32 + 10).filter(|n| n % 5 != 0).collect::<Vec<_>>();
        assert_eq!(all.collect::<Vec<_>>(), expected);
        assert_eq!(sent.recent_batches_to(0, FOR + 7).count(), 0);
        sent.forget_batches(|batch| batch.list == 3 && batch.sequence < 4000);
        assert_eq!(sent.recent_batches_to(1, 8).next().map(|(batch, _)| batch.sequence), Some(4000));
    }
}

//! Sizes of flows in epochs: a count-min sketch of this host, which the translator merges with other hosts'.

use dta_proto::key::Flow;
use dta_proto::layout::hash;
use dta_proto::trace::flow_size_key;

use super::stores::SizeStore;

/// The sketch of the current epoch.
pub(super) struct Sizes {
    store: SizeStore,
    /// Length of an epoch in nanoseconds.
    length: u64,
    /// The current epoch; `None` until the first tick.
    epoch: Option<u32>,
    /// Cells of all columns, column after column.
    cells: Vec<u32>,
    has_some: bool,
}

impl Sizes {
    pub(super) fn new(store: SizeStore, seconds: u32) -> Sizes {
        let cells = vec![0; store.columns as usize * usize::from(store.rows)];
        Sizes { store, length: u64::from(seconds) * 1_000_000_000, epoch: None, cells, has_some: false }
    }

    /// Adds bytes to a flow.
    pub(super) fn add(&mut self, flow: &Flow, bytes: u64) {
        let (columns, rows) = (u64::from(self.store.columns), self.store.rows);
        let hash = hash::key_hash(&flow_size_key(flow));
        for row in 0..usize::from(rows) {
            let cell =
                &mut self.cells[hash::slot_index(hash, row, columns) as usize * usize::from(rows) + row];
            *cell = cell.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        }
        self.has_some |= bytes != 0;
    }

    /// Reports the epoch that ended before `now`, if there is one: store, epoch, column and the column's
    /// cells, big-endian.
    pub(super) fn report_past_epoch<E>(
        &mut self,
        now: u64,
        report: impl FnMut(u16, u32, u32, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let epoch = (now / self.length) as u32;
        if self.epoch.is_some_and(|before| before != epoch) {
            self.report_epoch(report)?;
        }
        self.epoch = Some(epoch);
        Ok(())
    }

    /// Reports the current epoch, if it holds anything. If the store waits for several hosts, it gets every
    /// column from each of them.
    pub(super) fn report_epoch<E>(
        &mut self,
        mut report: impl FnMut(u16, u32, u32, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(epoch) = self.epoch else { return Ok(()) };
        if !self.has_some && self.store.expected == 1 {
            return Ok(());
        }
        let rows = usize::from(self.store.rows);
        for (column, cells) in (0..).zip(self.cells.chunks_exact_mut(rows)) {
            let mut bytes = [0; 16];
            for (place, cell) in bytes.chunks_exact_mut(4).zip(cells.iter_mut()) {
                place.copy_from_slice(&std::mem::take(cell).to_be_bytes());
            }
            report(self.store.id, epoch, column, &bytes[..4 * rows])?;
        }
        self.has_some = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_reported_when_the_next_one_begins() {
        let flow: Flow = "10.0.0.1:1->10.0.0.2:2/udp".parse().unwrap();
        let mut sizes = Sizes::new(SizeStore { id: 36, columns: 16, rows: 3, expected: 1 }, 10);
        let turn = |sizes: &mut Sizes, seconds: u64| {
            let mut columns = Vec::new();
            let report = |store, epoch, column, cells: &[u8]| {
                assert_eq!((store, cells.len()), (36, 12));
                columns.push((epoch, column, cells.to_vec()));
                Ok(())
            };
            sizes.report_past_epoch::<()>(seconds * 1_000_000_000, report).unwrap();
            columns
        };
        assert_eq!(turn(&mut sizes, 21), []);
        sizes.add(&flow, 700);
        sizes.add(&flow, 800);
        assert_eq!(turn(&mut sizes, 29), []);
        let columns = turn(&mut sizes, 30);
        assert_eq!((columns.len(), columns[0].0, columns[15].1), (16, 2, 15));
        let hash = hash::key_hash(&flow_size_key(&flow));
        for row in 0..3 {
            let (_, _, cells) = &columns[hash::slot_index(hash, row, 16) as usize];
            assert_eq!(cells[4 * row..4 * row + 4], 1500u32.to_be_bytes());
        }
        // Nothing was added, so nothing is reported.
        assert_eq!(turn(&mut sizes, 40), []);
    }
}

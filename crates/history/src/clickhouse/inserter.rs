//! The epochs of one table on their way into a server.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::position::{Position, Positions};
use super::{ClickHouseError, ClickHouseServer, rows};
use crate::epoch::KeptEpoch;
use crate::{EpochTable, HistoryError};

/// Most rows in a block. ClickHouse inserts a block whole or not at all; each is held in memory here.
pub const BLOCK: u64 = 100_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InsertProgress {
    /// Epochs that the server has received.
    pub epochs: u64,
    /// Rows that the server has received.
    pub rows: u64,
    /// Epochs that the server will not receive, or only in part: they were removed from the table first, were merged into a longer epoch while
    /// being inserted, or cannot be read.
    pub missed: u64,
    pub made: u64,
}

pub struct Inserter {
    server: Arc<ClickHouseServer>,
    name: String,
    /// What the server has, and where that is saved; read on first use.
    position: Option<(Position, Positions)>,
    /// Epochs that the table had when last checked and the server lacks.
    waiting: BTreeMap<u64, Arc<KeptEpoch>>,
}

impl Inserter {
    /// The inserter of the table whose folder has this name; the server's table has the same name.
    pub fn new(server: Arc<ClickHouseServer>, name: &str) -> Inserter {
        Inserter { server, name: name.to_owned(), position: None, waiting: BTreeMap::new() }
    }

    pub fn waiting_epoch_count(&self) -> usize {
        self.waiting.len()
    }

    /// Inserts the next new epoch and returns whether there was one. Progress is added to `done` even if the call then fails; the next call
    /// continues from there.
    ///
    /// # Errors
    /// The server does not answer or refuses; the table cannot be read; the position cannot be saved.
    pub fn insert_next_epoch(
        &mut self,
        table: &EpochTable,
        done: &mut InsertProgress,
    ) -> Result<bool, ClickHouseError> {
        self.update_waiting(table, done)?;
        let Some(next) = self.waiting.values().next().cloned() else { return Ok(false) };
        match self.insert_epoch(table, &next, done) {
            Ok(()) => {
                self.waiting.remove(&next.epoch.number);
                Ok(true)
            }
            // The next call finds it gone, or in another file.
            Err(ClickHouseError::Table(HistoryError::NotKept(_))) => Ok(true),
            Err(ClickHouseError::Table(error)) => {
                // Damaged or missing epochs must not hold up the others. After an I/O error, the epoch may be readable later.
                let may_pass =
                    matches!(&error, HistoryError::Io { source, .. } if source.kind() != ErrorKind::NotFound);
                if !may_pass {
                    self.pass_over(&next, done)?;
                }
                Err(error.into())
            }
            Err(error) => Err(error),
        }
    }

    /// Inserts all new epochs, one [`Inserter::insert_next_epoch`] at a time.
    pub fn insert_new_epochs(
        &mut self,
        table: &EpochTable,
        done: &mut InsertProgress,
    ) -> Result<(), ClickHouseError> {
        while self.insert_next_epoch(table, done)? {}
        Ok(())
    }

    /// Finds out which epochs are waiting, and which were removed before they were inserted.
    pub fn update_waiting(
        &mut self,
        table: &EpochTable,
        done: &mut InsertProgress,
    ) -> Result<(), ClickHouseError> {
        let (position, _) = self.position_mut(table)?;
        let position = position.clone();
        let epochs = table.kept_epochs()?;
        let is_new = |kept: &&Arc<KeptEpoch>| !position.contains_epoch(kept);
        let new = epochs.iter().filter(is_new).map(|kept| (kept.epoch.number, kept.clone())).collect();
        let before = std::mem::replace(&mut self.waiting, new);
        // An epoch merged into a longer one arrives with that one. If the log is damaged, what else the table has is unknown.
        let is_part = |kept: &KeptEpoch| epochs.iter().any(|by| by.epoch.covers_epoch(&kept.epoch));
        let is_missed = |(number, kept): &(&u64, &Arc<KeptEpoch>)| {
            !self.waiting.contains_key(number) && !position.contains_epoch(kept) && !is_part(kept)
        };
        if table.log_damage().is_empty() {
            done.missed += before.iter().filter(is_missed).count() as u64;
        }
        Ok(())
    }

    /// Inserts the rows of an epoch that the server lacks.
    fn insert_epoch(
        &mut self,
        table: &EpochTable,
        kept: &KeptEpoch,
        done: &mut InsertProgress,
    ) -> Result<(), ClickHouseError> {
        let Some(mut inserted) = self.position_mut(table)?.0.inserted_rows(kept) else {
            // Its rows have changed, and some of the old ones were already inserted.
            return self.pass_over(kept, done);
        };
        let layout = table.layout.clone();
        let columns = rows::column_types(&layout);
        let before = rows::epoch_cells(self.server.collector(), &kept.epoch);
        let number = kept.epoch.number;
        let (mut block, mut row, mut failed) = (Vec::new(), 0, None);
        table.scan_rows(number, |slot, element| {
            row += 1;
            if row <= inserted {
                return ControlFlow::Continue(());
            }
            block.extend(&before);
            rows::append_cells(&mut block, &layout, number, slot, element);
            if row - inserted == BLOCK {
                match self.insert_rows(table, kept, &columns, inserted..row, &block, done) {
                    Ok(()) => inserted = row,
                    Err(error) => {
                        failed = Some(error);
                        return ControlFlow::Break(());
                    }
                }
                block.clear();
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        if !block.is_empty() {
            self.insert_rows(table, kept, &columns, inserted..row, &block, done)?;
        }
        done.epochs += 1;
        self.update_position(|position| position.has_whole(kept))
    }

    /// Inserts rows of an epoch and saves the new position.
    fn insert_rows(
        &mut self,
        table: &EpochTable,
        kept: &KeptEpoch,
        columns: &[(&str, String)],
        of: std::ops::Range<u64>,
        block: &[u8],
        done: &mut InsertProgress,
    ) -> Result<(), ClickHouseError> {
        let (number, opened) = (kept.epoch.number, kept.epoch.opened);
        let token = format!("{}-{number}-{opened}-{}", table.id(), of.start);
        done.made += u64::from(self.server.insert_block(&self.name, columns, &token, block)?);
        done.rows += of.end - of.start;
        // The last row is recorded together with the whole epoch.
        if of.end < kept.rows {
            self.update_position(|position| position.set_inserted_rows(kept, of.end))
        } else {
            Ok(())
        }
    }

    /// Gives up on the rest of an epoch.
    fn pass_over(&mut self, kept: &KeptEpoch, done: &mut InsertProgress) -> Result<(), ClickHouseError> {
        done.missed += 1;
        self.update_position(|position| position.has_whole(kept))
    }

    fn position_mut(&mut self, table: &EpochTable) -> Result<&mut (Position, Positions), ClickHouseError> {
        if self.position.is_none() {
            let positions = Positions::read(table.table_path())?;
            self.position = Some((positions.get(&self.server.server_identity()), positions));
        }
        Ok(self.position.as_mut().expect("it is read"))
    }

    /// Changes the position in memory, then on disk.
    fn update_position(&mut self, change: impl FnOnce(&mut Position)) -> Result<(), ClickHouseError> {
        let (position, positions) = self.position.as_mut().expect("a look comes first");
        change(position);
        positions.store_position(&self.server.server_identity(), position)
    }
}

//! The epochs of one table on their way into a server.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::position::{Position, Positions};
use super::{ClickHouseError, ClickHouseServer, rows};
use crate::epoch::KeptEpoch;
use crate::{EpochTable, HistoryError};

/// Most rows of a block. ClickHouse inserts a block whole or not at all; it is in memory here.
pub const BLOCK: u64 = 100_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InsertProgress {
    /// Epochs that the server has got.
    pub epochs: u64,
    /// Rows that it has got.
    pub rows: u64,
    /// Epochs that it will not get, or not whole: they were removed from the table before, were made part of a longer epoch while they were being
    /// inserted, or cannot be read.
    pub missed: u64,
    pub made: u64,
}

pub struct Inserter {
    server: Arc<ClickHouseServer>,
    name: String,
    /// What the server has, and where that is kept; read at first use.
    position: Option<(Position, Positions)>,
    /// Epochs that the table had when it was last looked at, and the server has not.
    waiting: BTreeMap<u64, Arc<KeptEpoch>>,
}

impl Inserter {
    /// That of the table whose folder has this name; the server's table has it, too.
    pub fn new(server: Arc<ClickHouseServer>, name: &str) -> Inserter {
        Inserter { server, name: name.to_owned(), position: None, waiting: BTreeMap::new() }
    }

    /// How many epochs of the table wait.
    pub fn waiting_epoch_count(&self) -> usize {
        self.waiting.len()
    }

    /// Inserts the next epoch that is new; says whether there was one. What was done is added to `done`, also if the rest failed: the next
    /// call goes on.
    ///
    /// # Errors
    /// The server does not answer or refuses; the table cannot be read; it cannot be kept what was inserted.
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
            // The next look finds it gone, or in another file.
            Err(ClickHouseError::Table(HistoryError::NotKept(_))) => Ok(true),
            Err(ClickHouseError::Table(error)) => {
                // Others do not wait for what is damaged or gone. What the system refuses may be read later.
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

    /// Inserts all epochs that are new, by [`Inserter::insert_next_epoch`].
    pub fn insert_new_epochs(
        &mut self,
        table: &EpochTable,
        done: &mut InsertProgress,
    ) -> Result<(), ClickHouseError> {
        while self.insert_next_epoch(table, done)? {}
        Ok(())
    }

    /// Looks which epochs wait, and which went before they were inserted.
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
        // One that was made part of a longer one comes with that. Of a damaged log it is not known what else the table has.
        let is_part = |kept: &KeptEpoch| epochs.iter().any(|by| by.epoch.covers_epoch(&kept.epoch));
        let is_missed = |(number, kept): &(&u64, &Arc<KeptEpoch>)| {
            !self.waiting.contains_key(number) && !position.contains_epoch(kept) && !is_part(kept)
        };
        if table.log_damage().is_empty() {
            done.missed += before.iter().filter(is_missed).count() as u64;
        }
        Ok(())
    }

    /// Inserts what is missing of an epoch.
    fn insert_epoch(
        &mut self,
        table: &EpochTable,
        kept: &KeptEpoch,
        done: &mut InsertProgress,
    ) -> Result<(), ClickHouseError> {
        let Some(mut inserted) = self.position_mut(table)?.0.inserted_rows(kept) else {
            // Its rows are others now, and some of what they were is there.
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

    /// Inserts rows of an epoch, and keeps that they are there.
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
        // That the last one is there is kept with the whole.
        if of.end < kept.rows {
            self.update_position(|position| position.set_inserted_rows(kept, of.end))
        } else {
            Ok(())
        }
    }

    /// Leaves out what is missing of an epoch.
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

    /// Changes the position, here and then on disk.
    fn update_position(&mut self, change: impl FnOnce(&mut Position)) -> Result<(), ClickHouseError> {
        let (position, positions) = self.position.as_mut().expect("a look comes first");
        change(position);
        positions.store_position(&self.server.server_identity(), position)
    }
}

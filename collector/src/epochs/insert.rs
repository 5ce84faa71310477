//! The thread that inserts histories into ClickHouse.

use std::sync::Arc;

use dta_history::EpochTable;
use dta_history::clickhouse::{ClickHouseError, ClickHouseServer, InsertProgress, Inserter};
use dta_proto::counter::collector as names;
use tokio::sync::watch;

use super::keeper::add_to_counter;
use super::{StoreEpochs, follow};

dta_proto::shared_counters! {
    /// What became of epochs on their way there.
    pub(super) struct InsertCounters {
        epochs = names::INSERT_EPOCHS,
        waiting = names::INSERT_WAITING,
        missed = names::INSERT_MISSED,
        rows = names::INSERT_ROWS,
        failed = names::INSERT_FAILED,
    }
}

impl InsertCounters {
    fn add(&self, table: &EpochTable, done: InsertProgress) {
        let InsertProgress { epochs, rows, missed, made } = done;
        for (counter, by) in [(&self.epochs, epochs), (&self.rows, rows), (&self.missed, missed)] {
            add_to_counter(counter, by);
        }
        let table = table.table_path().display();
        if made > 0 {
            tracing::info!(%table, "ClickHouse had no table for it: created one");
        }
        if missed > 0 {
            tracing::warn!(%table, missed, "some epochs were not inserted completely: they were removed, changed or damaged first");
        }
    }
}

/// Checks a server. One that does not answer is tried again when there is something to insert.
pub(super) fn check_server(server: &ClickHouseServer) -> Result<(), ClickHouseError> {
    match server.check_server() {
        Ok(()) => tracing::info!(?server, "ClickHouse is accepting histories"),
        Err(error) if error.is_transient() => {
            tracing::warn!(%error, "ClickHouse does not answer: histories stay here until it does");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

pub(super) struct Inserts {
    of: Vec<(Arc<StoreEpochs>, Vec<Inserter>)>,
    counters: Arc<InsertCounters>,
    stop: watch::Receiver<bool>,
}

impl Inserts {
    pub(super) fn new(
        server: &Arc<ClickHouseServer>,
        all: Vec<Arc<StoreEpochs>>,
        stop: watch::Receiver<bool>,
    ) -> Inserts {
        let inserters = |of: Arc<StoreEpochs>| {
            let inserters =
                of.history_tables().map(|table| Inserter::new(server.clone(), &table.table_name())).collect();
            (of, inserters)
        };
        Inserts { of: all.into_iter().map(inserters).collect(), counters: Arc::default(), stop }
    }

    pub(super) fn shared_counters(&self) -> Arc<InsertCounters> {
        self.counters.clone()
    }

    pub(super) fn run(mut self) {
        let (counters, stop) = (self.counters.clone(), self.stop.clone());
        follow::run("ClickHouse", &stop, &counters.failed, &counters.waiting, || self.insert_new_epochs());
    }

    /// Inserts everything new. Returns the first failure, or one that concerns all tables.
    fn insert_new_epochs(&mut self) -> Result<(), ClickHouseError> {
        let mut all: Result<(), ClickHouseError> = Ok(());
        for (of, inserters) in &mut self.of {
            for (table, inserter) in of.history_tables().zip(inserters) {
                let mut more = true;
                while std::mem::take(&mut more) && !*self.stop.borrow() {
                    let (mut done, before) = (InsertProgress::default(), inserter.waiting_epoch_count());
                    // If the server accepts nothing, still count what is waiting and what is removed meanwhile.
                    let stepped = match &all {
                        Err(error) if error.is_of_all() => {
                            inserter.update_waiting(table, &mut done).map(|()| false)
                        }
                        _ => inserter.insert_next_epoch(table, &mut done),
                    };
                    follow::adjust_waiting(&self.counters.waiting, before, inserter.waiting_epoch_count());
                    self.counters.add(table, done);
                    match stepped {
                        Ok(stepped) => more = stepped,
                        Err(error) if all.is_ok() || error.is_of_all() => all = Err(error),
                        Err(_) => {}
                    }
                }
            }
        }
        all
    }
}

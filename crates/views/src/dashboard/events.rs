//! The lists of events, followed while their page is open.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_export::directory::Directory;
use dta_export::kind::EventKind;
use dta_export::names::Names;
use dta_export::source::{EntryBatch, EventSource, Lost, SourceOptions};
use dta_rpc::Ask;

use crate::int::StoreCatalog;
use crate::int::event::{Filter, IntEvent};

pub(super) const MAX_EVENTS: usize = 500;
/// How long to wait for more events before showing the current ones, and the limit if more keep coming.
const QUIET: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// The contents of the lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EventLog {
    /// The newest events, oldest first.
    pub(super) newest: VecDeque<IntEvent>,
    /// Counts of all events, by kind.
    pub(super) of_kind: [u64; EventKind::NAMES.len()],
    pub(super) missed: Lost,
}

impl EventLog {
    /// The count of a kind; `None` = of all.
    pub(super) fn event_count(&self, kind: Option<EventKind>) -> u64 {
        kind.map_or_else(|| self.of_kind.iter().sum(), |kind| self.of_kind[kind as usize])
    }

    fn take(&mut self, event: IntEvent) {
        self.of_kind[event.kind as usize] += 1;
        // Lists are read in parallel, so past events are sorted by time.
        let later = self.newest.iter().rev().take_while(|other| other.time > event.time).count();
        self.newest.insert(self.newest.len() - later, event);
        if self.newest.len() > MAX_EVENTS {
            self.newest.pop_front();
        }
    }
}

pub(super) struct EventFollower {
    source: EventSource,
    directory: Directory,
    names: Arc<Names>,
    seen: EventLog,
}

impl EventFollower {
    /// Begins with the oldest events in the rings.
    ///
    /// # Errors
    /// There is no event store, in a sentence.
    pub(super) async fn from_oldest_event(ask: &Arc<dyn Ask>, names: Arc<Names>) -> Result<Self, String> {
        let catalog = StoreCatalog::fetch_from(&**ask).await.map_err(|error| error.to_string())?;
        let options = SourceOptions::default();
        if !catalog.has_store(&options.store, dta_proto::wire::dta::Primitive::Append) {
            let stores = catalog.store_names();
            return Err(format!(
                "no events here: they are in {}, an append store that a translator fills from INT and flow records \
                 (docs/int.md, docs/flows.md); this collector has {stores}",
                options.store
            ));
        }
        let source = EventSource::new(ask.clone(), &options, Arc::default());
        Ok(Self { source, directory: Directory::default(), names, seen: EventLog::default() })
    }

    pub(super) async fn read(&mut self) -> Result<&EventLog, String> {
        let began = Instant::now();
        while began.elapsed() < LONGEST
            && let Ok(Some(batch)) = tokio::time::timeout(QUIET, self.source.next()).await
        {
            self.take(&batch.map_err(|error| error.to_string())?);
        }
        Ok(&self.seen)
    }

    fn take(&mut self, batch: &EntryBatch) {
        self.seen.missed.add(&batch.lost);
        let filter = Filter::default();
        for entry in &batch.entries {
            self.directory.take(entry);
            let event = IntEvent::from_entry(entry, &mut self.directory, &self.names);
            if filter.admits(&event) {
                self.seen.take(event);
            }
        }
    }
}

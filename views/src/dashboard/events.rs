//! The lists of events, followed while their page is open.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_client::Ask;
use dta_export::directory::Directory;
use dta_export::names::Names;
use dta_export::source::{Batch, Options, Source};

use crate::int::event::{Event, Filter, Kind};
use crate::int::{Missed, StoreCatalog};

/// Events that are kept, at most.
pub(super) const MAX_EVENTS: usize = 500;
/// How long to wait for more before showing what is there, and how long at most if more keeps coming.
const QUIET: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// What the lists held.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct EventLog {
    /// The newest, the last one at the end.
    pub(super) newest: VecDeque<Event>,
    /// All that came, by kind.
    pub(super) of_kind: [u64; Kind::NAMES.len()],
    pub(super) missed: Missed,
}

impl EventLog {
    /// How many came of a kind; `None` = of all.
    pub(super) fn total(&self, kind: Option<Kind>) -> u64 {
        kind.map_or_else(|| self.of_kind.iter().sum(), |kind| self.of_kind[kind as usize])
    }

    fn take(&mut self, event: Event) {
        self.of_kind[event.kind as usize] += 1;
        // Lists are read side by side: those of the past are put in the order of their times.
        let later = self.newest.iter().rev().take_while(|other| other.time > event.time).count();
        self.newest.insert(self.newest.len() - later, event);
        if self.newest.len() > MAX_EVENTS {
            self.newest.pop_front();
        }
    }
}

/// The lists that are followed.
pub(super) struct EventFollower {
    source: Source,
    directory: Directory,
    names: Arc<Names>,
    seen: EventLog,
}

impl EventFollower {
    /// Begins with the oldest events that are there.
    ///
    /// # Errors
    /// There is no store of events, in a sentence.
    pub(super) async fn follow(ask: &Arc<dyn Ask>, names: Arc<Names>) -> Result<Self, String> {
        let catalog = StoreCatalog::of(&**ask).await.map_err(|error| error.to_string())?;
        let options = Options::default();
        if !catalog.has(&options.store, dta_proto::wire::dta::Primitive::Append) {
            return Err(format!("this collector has no store {}", options.store));
        }
        let source = Source::new(ask.clone(), &options, Arc::default());
        Ok(Self { source, directory: Directory::default(), names, seen: EventLog::default() })
    }

    /// Takes what is there.
    ///
    /// # Errors
    /// The lists cannot be followed at the moment.
    pub(super) async fn read(&mut self) -> Result<&EventLog, String> {
        let began = Instant::now();
        while began.elapsed() < LONGEST
            && let Ok(Some(batch)) = tokio::time::timeout(QUIET, self.source.next()).await
        {
            self.take(&batch.map_err(|error| error.to_string())?);
        }
        Ok(&self.seen)
    }

    fn take(&mut self, batch: &Batch) {
        self.seen.missed.add(&batch.lost);
        let filter = Filter::default();
        for entry in &batch.entries {
            self.directory.take(entry);
            let event = Event::of(entry, &mut self.directory, &self.names);
            if filter.admits(&event) {
                self.seen.take(event);
            }
        }
    }
}

//! The current contents of the event lists.

use std::sync::Arc;

use dta_client::{Ask, ClientError};
use dta_export::source::{Batch, Begin, LISTS, Lost, Options, Source};
use serde::Serialize;

/// What could not be read of a list since its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Missed {
    /// Batches that the ring overwrote.
    pub overwritten: u64,
    /// Batches that never came.
    pub missing: u64,
    /// Batches that are damaged.
    pub damaged: u64,
    /// Entries that this version cannot read.
    pub unreadable: u64,
}

impl Missed {
    /// Adds the result of one reading.
    pub fn add(&mut self, lost: &Lost) {
        self.overwritten += lost.overwritten;
        self.missing += lost.missing;
        self.damaged += lost.damaged;
        self.unreadable += lost.unreadable;
    }

    /// Batches.
    pub fn batches(&self) -> u64 {
        self.overwritten + self.missing + self.damaged
    }
}

/// Reads some lists of an event store completely, and passes entries on as they come.
///
/// # Errors
/// A list cannot be read.
pub async fn read(
    ask: &Arc<dyn Ask>,
    store: &str,
    of: &[u32],
    mut with: impl FnMut(Batch),
) -> Result<(), ClientError> {
    let mut begin = [None; LISTS];
    of.iter().for_each(|list| begin[*list as usize] = Some(Begin::First));
    let options = Options { store: store.to_owned(), begin, once: true };
    let mut source = Source::new(ask.clone(), &options, Arc::default());
    while let Some(batch) = source.next().await {
        with(batch?);
    }
    Ok(())
}

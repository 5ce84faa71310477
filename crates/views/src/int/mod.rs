//! Answers from the stores for INT, for people and programs: one flow with its path ([`flow`], drawn by [`draw`]),
//! events in words ([`event`]), ranked flows ([`top`]), and the network that the paths form ([`map`]). The command
//! line, the dashboard and the page show the same answers.
//!
//! It queries only through [`dta_rpc::Ask`]. `dta-export` follows the lists and resolves keys and numbers to
//! names.

pub mod draw;
pub mod drops;
pub mod event;
pub mod event_reader;
pub mod flow;
pub mod flow_history;
pub mod map;
pub mod moment;
pub mod sources;
pub(crate) mod stores;
pub mod top;

use std::fmt;
use std::sync::Arc;

use dta_export::source::{Begin, EntryBatch, EventSource, LISTS, SourceOptions};
use dta_rpc::{Ask, ClientError};
pub use stores::StoreCatalog;

/// Why a query has no answer.
#[derive(Debug)]
pub enum IntError {
    /// The collector did not answer.
    Client(ClientError),
    /// It has no store for this; the sentence says what to do.
    NoStore(String),
    /// It has nothing of the moment asked about; the sentence says why.
    NotKept(String),
}

impl fmt::Display for IntError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(error) => error.fmt(f),
            Self::NoStore(what) | Self::NotKept(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for IntError {}

impl From<ClientError> for IntError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

/// Reads some lists of an event store completely, and passes entries on as they come.
pub async fn read(
    ask: &Arc<dyn Ask>,
    store: &str,
    of: &[u32],
    mut with: impl FnMut(EntryBatch),
) -> Result<(), ClientError> {
    let mut begin = [None; LISTS];
    of.iter().for_each(|list| begin[*list as usize] = Some(Begin::First));
    let options = SourceOptions { store: store.to_owned(), begin, once: true };
    let mut source = EventSource::new(ask.clone(), &options, Arc::default());
    while let Some(batch) = source.next().await {
        with(batch?);
    }
    Ok(())
}

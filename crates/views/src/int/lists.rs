//! The current contents of the event lists.

use std::sync::Arc;

use dta_export::source::{Begin, EntryBatch, EventSource, LISTS, SourceOptions};
use dta_rpc::{Ask, ClientError};

/// Reads some lists of an event store completely, and passes entries on as they come.
///
/// # Errors
/// A list cannot be read.
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

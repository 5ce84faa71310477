//! The entries of a list, epoch after epoch.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use dta_history::{HistoryError, KeptEpoch};
use dta_memory::reader::append::{Lists, ReadStart};
use dta_memory::reader::follow::{BATCHES, News};
use dta_memory::store::Store;
use dta_proto::control::Epoch;
use dta_proto::flow_query::FlowTally;
use dta_proto::layout::append::{batches_between, is_sequence_after, next};
use dta_rpc::Span;

use super::known_epochs::{EpochStorage, KnownEpoch, epochs_in_span};
use super::lists::start_behind;
use super::{Epochs, MomentError, StoreEpochs};

/// A list during a span of time.
pub struct ListThen {
    of: Arc<StoreEpochs>,
    list: u32,
    /// The kept epochs, oldest first, each with the sequence of the last batch before it, if known.
    kept: Vec<(Epoch, Option<u32>)>,
    pub open: Option<OpenList>,
}

pub struct OpenList {
    pub epoch: Epoch,
    pub store: Arc<Store>,
    pub start: ReadStart,
}

impl Epochs {
    /// A list of a store in the epochs of a span.
    ///
    /// # Errors
    /// A [`MomentError`], also if the span contains no epoch.
    ///
    /// # Panics
    /// If the store has no lists.
    pub fn list_in_span(&self, store: &str, list: u32, span: Span) -> Result<ListThen, MomentError> {
        let of = self.store_epochs(store)?;
        // Whatever is in none of these kept epochs is read from the ring.
        let all = of.known_epochs(span)?;
        let (before, last) = sequences(&all, list);
        let oldest = all.first().map(|known| known.epoch.opened);
        let (mut kept, mut open) = (Vec::new(), None);
        for KnownEpoch { epoch, held } in epochs_in_span(all, span) {
            match held {
                EpochStorage::Kept(_) => {
                    let before = before.get(&epoch.number).copied();
                    kept.push((epoch, before));
                }
                EpochStorage::InMemory(store) => {
                    let lists = Lists::new(&store).expect("a store of lists");
                    let start = match last {
                        // All of its batches came in this epoch.
                        None if !store.region.is_preexisting() => ReadStart::At(1),
                        last => {
                            start_behind(lists, list, last).map_err(|error| store.outside_region(error))?
                        }
                    };
                    open = Some(OpenList { epoch, store, start });
                }
            }
        }
        if kept.is_empty() && open.is_none() {
            let oldest = oldest.unwrap_or_else(super::now);
            return Err(MomentError::NotKept { store: store.to_owned(), at: span.since, oldest });
        }
        Ok(ListThen { of: Arc::clone(of), list, kept, open })
    }
}

impl Epochs {
    /// Adds the flow records that a store's history has for a span. Returns the sequence of the last batch
    /// that the history has of each list; `None` if the store has no epochs.
    ///
    /// # Errors
    /// The history cannot be read.
    pub fn tally_kept_flows(
        &self,
        store: &str,
        span: Span,
        tally: &mut FlowTally,
    ) -> Result<Option<BTreeMap<u32, u32>>, MomentError> {
        let Ok(of) = self.store_epochs(store) else { return Ok(None) };
        let mut last = BTreeMap::new();
        let all = of.known_epochs(Span::default())?;
        let mut kept: Vec<Arc<KeptEpoch>> = Vec::new();
        for known in &all {
            if let EpochStorage::Kept(epoch) = &known.held {
                kept.push(Arc::clone(epoch));
            }
        }
        kept.sort_by_key(|kept| kept.epoch.number);
        kept.iter().for_each(|kept| last.extend(kept.epoch.lists.iter().copied()));
        for known in epochs_in_span(all, span) {
            if let EpochStorage::Kept(kept) = known.held {
                let scanned = of.history.scan_entries(kept.epoch.number, |entry| {
                    tally.add_entries([entry.bytes]);
                    ControlFlow::Continue(())
                });
                match scanned {
                    // It has been removed since.
                    Err(HistoryError::NotKept(_)) => {}
                    scanned => scanned?,
                }
            }
        }
        Ok(Some(last))
    }
}

/// For each kept epoch, by number: the sequence of a list's last batch before it, if the previous epoch is
/// kept, too. Also the sequence of the last batch in any of them.
fn sequences(all: &[KnownEpoch], list: u32) -> (BTreeMap<u64, u32>, Option<u32>) {
    let of = |known: &KnownEpoch| match &known.held {
        EpochStorage::Kept(kept) => Some(Arc::clone(kept)),
        EpochStorage::InMemory(_) => None,
    };
    let mut kept: Vec<Arc<KeptEpoch>> = all.iter().filter_map(of).collect();
    kept.sort_by_key(|kept| kept.epoch.number);
    let (mut before, mut newest) = (BTreeMap::new(), None);
    // The number of an epoch, and the last sequence known at its end.
    let mut known: (u64, Option<u32>) = (0, None);
    for epoch in kept.iter().map(|kept| &kept.epoch) {
        let last = known.1.filter(|_| epoch.number == known.0 + 1);
        before.extend(last.map(|last| (epoch.number, last)));
        let here = epoch.lists.iter().find(|(of, _)| *of == list).map(|(_, last)| *last);
        known = (epoch.number, here.or(last));
        newest = here.or(newest);
    }
    (before, newest)
}

impl ListThen {
    /// Passes on what the history has, some batches at a time, until `each` breaks; returns whether it did.
    /// Each epoch is passed on before its entries.
    pub fn visit_kept(
        &self,
        mut each: impl FnMut(Option<Epoch>, News) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, HistoryError> {
        for (epoch, before) in &self.kept {
            let flow = match self.visit_epoch(epoch, *before, &mut each) {
                // It has been removed since.
                Err(HistoryError::NotKept(_)) => continue,
                read => read?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn visit_epoch(
        &self,
        epoch: &Epoch,
        mut last: Option<u32>,
        each: &mut impl FnMut(Option<Epoch>, News) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, HistoryError> {
        let (mut begun, mut news, mut flow) = (false, News::default(), ControlFlow::Continue(()));
        self.of.history.scan_entries(epoch.number, |entry| {
            if !begun {
                begun = true;
                flow = each(Some(epoch.clone()), News::default());
                flow?;
            }
            if entry.list != self.list {
                return ControlFlow::Continue(());
            }
            if last != Some(entry.sequence) {
                if news.progress.batches == BATCHES {
                    flow = each(None, std::mem::take(&mut news));
                    flow?;
                }
                news.progress.missing += last.map_or(0, |last| missing_batches(last, entry.sequence));
                news.progress.batches += 1;
                news.sequence = entry.sequence;
                last = Some(entry.sequence);
            }
            news.progress.entries += 1;
            news.entries.push(entry.bytes.to_vec());
            ControlFlow::Continue(())
        })?;
        if !begun {
            flow = each(Some(epoch.clone()), News::default());
        }
        if flow.is_continue() && !news.is_empty() {
            flow = each(None, news);
        }
        Ok(flow)
    }
}

/// How many batches are missing between two; none if the list began again.
fn missing_batches(last: u32, sequence: u32) -> u64 {
    let expected = next(last);
    if is_sequence_after(sequence, expected) { batches_between(expected, sequence).into() } else { 0 }
}

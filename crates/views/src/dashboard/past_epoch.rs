//! Steps through the epochs of a store, for pages that can show another moment.

use dta_files::moment;
use dta_proto::control::{Epoch, EpochsRequest};
use dta_rpc::Ask;

/// A past epoch being shown, and the store whose epochs it was chosen from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PastEpoch {
    pub(super) store: String,
    pub(super) epoch: Epoch,
}

impl PastEpoch {
    /// The moment to ask stores about: the middle, as other stores' epochs begin and end a little earlier or later.
    pub(super) fn middle_moment(&self) -> u64 {
        let Epoch { opened, flipped_from, .. } = self.epoch;
        opened + flipped_from.saturating_sub(opened) / 2
    }

    /// Its span, to the second: `2026-11-22T05:01:00 to 05:02:00 UTC`.
    pub(super) fn format_span(&self) -> String {
        let [opened, end] = [self.epoch.opened, self.epoch.flipped_from].map(moment::format_utc);
        // The day and the time of day, to the second.
        let (from, to) = (opened.get(..19).unwrap_or(&opened), end.get(..19).unwrap_or(&end));
        let to = if from.get(..11) == to.get(..11) { to.get(11..).unwrap_or(to) } else { to };
        format!("{from} to {to} UTC")
    }
}

/// A step to an older or a newer epoch.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EpochStep {
    /// The epoch shown; `None` = now.
    pub(super) from: Option<PastEpoch>,
    pub(super) to: To,
    /// The stores whose epochs to use: the first one that has some.
    pub(super) stores: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    Older,
    Newer,
}

/// Where a step leads; `None` = to now.
pub(super) async fn resolve_step(ask: &dyn Ask, step: &EpochStep) -> Result<Option<PastEpoch>, String> {
    match (&step.from, step.to) {
        (Some(PastEpoch { store, epoch }), To::Older) => {
            older_epoch(ask, store, epoch.opened).await.map(Some)
        }
        (Some(PastEpoch { store, epoch }), To::Newer) => newer_epoch(ask, store, epoch).await,
        (None, To::Newer) => Ok(None),
        (None, To::Older) => {
            for store in &step.stores {
                let newest = EpochsRequest { store: store.clone(), most: 1, ..EpochsRequest::default() };
                match ask.fetch_epochs(newest).await {
                    Ok(answer) => {
                        let open = answer.epochs.first().map_or(0, |epoch| epoch.opened);
                        return older_epoch(ask, store, open).await.map(Some);
                    }
                    Err(error) if error.is_unimplemented() => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            Err("no store of this collector has epochs: only the present can be shown".into())
        }
    }
}

async fn older_epoch(ask: &dyn Ask, store: &str, opened: u64) -> Result<PastEpoch, String> {
    let request = EpochsRequest { store: store.to_owned(), since: 0, until: opened, most: 1 };
    let answer = ask.fetch_epochs(request).await.map_err(|error| error.to_string())?;
    let epoch = answer.epochs.into_iter().next();
    let epoch = epoch.ok_or_else(|| format!("no older epoch of {store} is kept"))?;
    Ok(PastEpoch { store: store.to_owned(), epoch })
}

async fn newer_epoch(ask: &dyn Ask, store: &str, shown: &Epoch) -> Result<Option<PastEpoch>, String> {
    let later = ask.all_epochs(store, shown.flipped_from, 0).await.map_err(|error| error.to_string())?;
    let next = later.into_iter().rev().find(|epoch| epoch.opened > shown.opened);
    // An open epoch counts as now.
    Ok(next.filter(|epoch| epoch.flipped_from != 0).map(|epoch| PastEpoch { store: store.to_owned(), epoch }))
}

//! What became of the reports of past epochs, store by store.

use std::collections::BTreeMap;

use dta_files::moment::{format_utc, now};
use dta_proto::control::{Counter, Epoch, EpochState, Waterfall};
use dta_rpc::{Ask, ClientError, Span};
use serde::Serialize;

/// What became of the reports of one store in the epochs of a span of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfStore {
    pub store: String,
    /// When the first of these epochs was opened, and when the last one ended; `null` = there are none.
    pub from: Option<String>,
    /// See `from`.
    pub to: Option<String>,
    /// Epochs for which the fate of their reports is known; the figures cover these.
    pub epochs: u64,
    /// Epochs for which it is unknown: they began before the collector started.
    pub unknown: u64,
    /// Epochs that are open, or not written yet.
    pub not_written: u64,
    /// Spans for which nothing is kept.
    pub not_kept: Vec<[String; 2]>,
    /// Reports of the store's primitive that translators received.
    pub sent: u64,
    /// Reports that were made into operations and are not known to be lost.
    pub landed: u64,
    pub frames: u64,
    /// Reports or frames of all stores that did not arrive, by reason.
    pub lost: BTreeMap<String, u64>,
    /// For lists: batches that were overwritten before they were read.
    pub overwritten: u64,
    /// For lists: batches that never came.
    pub missing: u64,
    /// For lists: damaged batches.
    pub damaged: u64,
}

/// What became of reports in a span of time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PastWaterfall {
    pub stores: Vec<OfStore>,
    /// Stores without epochs: only their present is known.
    pub without_epochs: Vec<String>,
}

/// Queries the epochs of stores, by name.
pub async fn past_waterfall(
    ask: &dyn Ask,
    stores: &[String],
    span: Span,
) -> Result<PastWaterfall, ClientError> {
    let mut then = PastWaterfall::default();
    for store in stores {
        match ask.all_epochs(store, span.since, span.until).await {
            Ok(epochs) => then.stores.push(summarize_store(store, epochs, span)),
            Err(error) if error.is_unimplemented() => then.without_epochs.push(store.clone()),
            Err(error) => return Err(error),
        }
    }
    Ok(then)
}

/// Summarizes a store from its epochs, which are given newest first.
fn summarize_store(store: &str, mut epochs: Vec<Epoch>, span: Span) -> OfStore {
    epochs.reverse();
    let not_kept = gaps_in_span(&epochs, span).into_iter().map(|moments| moments.map(format_utc)).collect();
    let mut of = OfStore { store: store.to_owned(), not_kept, ..OfStore::default() };
    let all = epochs.len() as u64;
    epochs.retain(|epoch| epoch.state() == EpochState::Kept);
    of.not_written = all - epochs.len() as u64;
    of.from = epochs.iter().map(|epoch| epoch.opened).min().map(format_utc);
    of.to = epochs.iter().map(|epoch| epoch.flipped_from).max().map(format_utc);
    for waterfall in epochs.into_iter().map(|epoch| epoch.waterfall.unwrap_or_default()) {
        of.overwritten += waterfall.overwritten_batches;
        of.missing += waterfall.missing_batches;
        of.damaged += waterfall.damaged_batches;
        let Waterfall { sent: Some(sent), landed: Some(landed), frames: Some(frames), lost, .. } = waterfall
        else {
            of.unknown += 1;
            continue;
        };
        of.epochs += 1;
        of.sent += sent;
        of.landed += landed;
        of.frames += frames;
        for Counter { name, value } in lost {
            *of.lost.entry(name).or_default() += value;
        }
    }
    of
}

/// The parts of a span that are in no epoch, for each collector. `epochs` has the oldest first.
fn gaps_in_span(epochs: &[Epoch], Span { since, until }: Span) -> Vec<[u64; 2]> {
    if epochs.is_empty() {
        return vec![[since, if until == 0 { now() } else { until }]];
    }
    let mut gaps = Vec::new();
    // How far epochs are known, by collector.
    let mut known: BTreeMap<&str, u64> = BTreeMap::new();
    for epoch in epochs {
        let known = known.entry(&epoch.collector).or_insert(since);
        if *known < epoch.opened {
            gaps.push([*known, epoch.opened]);
        }
        let end = match epoch.state() {
            EpochState::Open => u64::MAX,
            EpochState::Closed => epoch.flipped_from,
            EpochState::Kept => epoch.flipped_to,
        };
        *known = end.max(*known);
    }
    gaps.extend(known.into_values().filter(|known| *known < until).map(|known| [known, until]));
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(second: u64, waterfall: Option<Waterfall>) -> Epoch {
        let [opened, end] = [second * 1000, second * 1000 + 1000];
        let state = EpochState::Kept.into();
        Epoch { opened, flipped_from: end, flipped_to: end + 5, state, waterfall, ..Epoch::default() }
    }

    fn lost(name: &str, value: u64) -> Counter {
        Counter { name: name.to_owned(), value }
    }

    #[test]
    fn epochs_are_added_up_and_what_is_not_known_of_them_is_named() {
        let known = |sent, lost: &[Counter]| Waterfall {
            sent: Some(sent),
            landed: Some(sent - 1),
            frames: Some(2 * sent),
            lost: lost.to_vec(),
            missing_batches: 1,
            ..Waterfall::default()
        };
        let one = known(10, &[lost("dropped.nic.icrc", 3), lost("lost.injected", 1)]);
        let two = known(20, &[lost("lost.injected", 4)]);
        // The collector started during the third; the fourth is not kept; the sixth is open.
        let of_lists = Waterfall { overwritten_batches: 7, ..Waterfall::default() };
        let open = Epoch { opened: 6000, ..Epoch::default() };
        let third = kept(3, Some(of_lists));
        let newest_first = vec![open, kept(5, None), third, kept(2, Some(two)), kept(1, Some(one))];
        let of = summarize_store("flows", newest_first.clone(), Span { since: 500, until: 0 });
        let moment = |millis: u64| format!("1970-01-01T00:00:{:06.3}Z", millis as f64 / 1000.0);
        let expected = OfStore {
            store: "flows".into(),
            from: Some(moment(1000)),
            to: Some(moment(6000)),
            epochs: 2,
            unknown: 2,
            not_written: 1,
            not_kept: vec![[moment(500), moment(1000)], [moment(4005), moment(5000)]],
            sent: 30,
            landed: 28,
            frames: 60,
            lost: BTreeMap::from([("dropped.nic.icrc".into(), 3), ("lost.injected".into(), 5)]),
            overwritten: 7,
            missing: 2,
            damaged: 0,
        };
        assert_eq!(of, expected);
        // With two collectors, each has its own gaps.
        let other = Epoch { collector: "b:1".into(), ..kept(2, None) };
        let both = [vec![other], newest_first[2..].to_vec()].concat();
        let of = summarize_store("flows", both, Span { since: 1000, until: 4000 });
        assert_eq!(of.not_kept, [[moment(1000), moment(2000)], [moment(3005), moment(4000)]]);
        let none = summarize_store("flows", Vec::new(), Span { since: 1000, until: 2000 });
        assert_eq!((none.from, none.not_kept), (None, vec![[moment(1000), moment(2000)]]));
    }
}

//! What the epochs of stores held about a flow, one after another.

use std::sync::Arc;

use dta_proto::control::{CounterAnswer, Epoch, EpochsRequest, KeyWriteAnswer, Policy};
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, store};
use dta_proto::wire::dta::Primitive;
use dta_rpc::{Ask, AskKeys, ClientError, QuestionKind, Span};
use serde::Serialize;

use super::{IntError, StoreCatalog};

/// Most epochs of a series.
const MOST_EPOCHS: u32 = 2000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowHistory {
    pub flow: Flow,
    pub series: Vec<FlowSeries>,
    /// What has no history, and why, in sentences.
    pub unknown: Vec<String>,
}

/// What one store held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowSeries {
    /// `latency` in nanoseconds, `reports`, `packets`, `bytes`, or `value` and `count` in stores of reports.
    pub figure: &'static str,
    pub store: String,
    /// By epoch, oldest first.
    pub points: Vec<HistoryPoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HistoryPoint {
    /// When the epoch began and ended, in milliseconds since 1970; `to` is `None` while it goes on.
    pub from: u64,
    pub to: Option<u64>,
    /// What it held; for counts, since the epoch began; `None` = nothing.
    pub value: Option<u64>,
    /// How many copies hold it, and how many were read; `None` for a count, which is the least of its copies.
    pub agreeing: Option<u32>,
    pub copies: Option<u32>,
}

/// The figures that stores with epochs held about a flow.
///
/// # Errors
/// The collector does not answer, or the span has too many epochs.
pub async fn fetch_flow_history(
    ask: &Arc<dyn Ask>,
    flow: &Flow,
    span: Span,
) -> Result<FlowHistory, IntError> {
    let catalog = StoreCatalog::fetch_from(&**ask).await?;
    let key = flow.to_key();
    let mut asked: Vec<(&'static str, String, Primitive, Key)> = [
        ("latency", store::VALUES, Primitive::KeyWrite, key),
        ("reports", store::COUNTERS, Primitive::KeyIncrement, key),
        ("packets", store::COUNTERS, Primitive::KeyIncrement, telemetry::packets_key(flow)),
        ("bytes", store::COUNTERS, Primitive::KeyIncrement, telemetry::bytes_key(flow)),
    ]
    .into_iter()
    .filter(|(_, store, primitive, _)| catalog.has_store(store, *primitive))
    .map(|(figure, store, primitive, key)| (figure, store.to_owned(), primitive, key))
    .collect();
    let dta = catalog.dta_stores();
    asked.extend(dta.counters.into_iter().map(|store| ("count", store, Primitive::KeyIncrement, key)));
    asked.extend(dta.values.into_iter().map(|store| ("value", store, Primitive::KeyWrite, key)));
    let mut history = FlowHistory { flow: *flow, series: Vec::new(), unknown: Vec::new() };
    let mut without_epochs: Vec<String> = Vec::new();
    for (figure, store, primitive, key) in asked {
        if without_epochs.contains(&store) {
            continue;
        }
        if !has_epochs(&**ask, &store, span).await? {
            without_epochs.push(store);
            continue;
        }
        let points = match primitive {
            Primitive::KeyWrite => {
                let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
                read_points(&**ask, &store, key, kind, span, point_of_value).await?
            }
            _ => read_points(&**ask, &store, key, QuestionKind::KeyIncrement, span, point_of_count).await?,
        };
        if points.iter().any(|point| point.value.is_some()) {
            history.series.push(FlowSeries { figure, store, points });
        }
    }
    history.unknown = without_epochs
        .into_iter()
        .map(|store| {
            format!("Store {store} has no epochs, and so no history: give it some with epoch = \"60s\".")
        })
        .collect();
    Ok(history)
}

/// Whether a store has epochs; an error if this span has more than a series may have.
async fn has_epochs(ask: &dyn Ask, store: &str, span: Span) -> Result<bool, IntError> {
    let Span { since, until } = span;
    let request = EpochsRequest { store: store.to_owned(), since, until, most: MOST_EPOCHS + 1 };
    match ask.newest_epochs(request).await {
        Ok(answer) if answer.epochs.len() > MOST_EPOCHS as usize => Err(IntError::NotKept(format!(
            "{store} has more than {MOST_EPOCHS} epochs in this time: ask about less"
        ))),
        Ok(_) => Ok(true),
        Err(error) if error.is_unimplemented() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn read_points<A>(
    ask: &dyn Ask,
    store: &str,
    key: Key,
    kind: QuestionKind,
    span: Span,
    point: impl Fn(&Epoch, &A) -> HistoryPoint,
) -> Result<Vec<HistoryPoint>, ClientError>
where
    A: TryFrom<dta_rpc::KeyAnswer, Error = ClientError> + Send,
{
    let series = ask.series_of::<A>(store, &[key], kind, span).await?;
    Ok(series.iter().filter_map(|(epoch, answers)| Some(point(epoch, answers.first()?))).collect())
}

fn empty_point(epoch: &Epoch) -> HistoryPoint {
    let to = (epoch.flipped_from != 0).then_some(epoch.flipped_from);
    HistoryPoint { from: epoch.opened, to, value: None, agreeing: None, copies: None }
}

fn point_of_value(epoch: &Epoch, answer: &KeyWriteAnswer) -> HistoryPoint {
    // In other stores, a value may be a number of four or eight bytes.
    let number = |bytes: &[u8]| match bytes.len() {
        8 => bytes.try_into().ok().map(u64::from_be_bytes),
        _ => bytes.first_chunk().map(|first| u32::from_be_bytes(*first).into()),
    };
    // An open epoch also answers with what the previous one had; this point is only about its own.
    let own = answer.value.as_deref().filter(|_| answer.earlier.is_none());
    let (agreeing, copies) = (Some(answer.agreeing), Some(answer.copies));
    HistoryPoint { value: own.and_then(number), agreeing, copies, ..empty_point(epoch) }
}

fn point_of_count(epoch: &Epoch, answer: &CounterAnswer) -> HistoryPoint {
    HistoryPoint { value: (answer.value != 0).then_some(answer.value), ..empty_point(epoch) }
}

#[cfg(test)]
mod tests {
    use dta_proto::control::EarlierEpoch;

    use super::*;

    #[test]
    fn a_point_has_what_its_epoch_holds_and_how_many_copies_agree() {
        let epoch = |opened, flipped_from| Epoch { opened, flipped_from, ..Epoch::default() };
        let value = |bytes: &[u8]| KeyWriteAnswer {
            value: Some(bytes.to_vec()),
            agreeing: 2,
            copies: 3,
            ..KeyWriteAnswer::default()
        };
        let latency = value(&[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        let point = point_of_value(&epoch(5, 9), &latency);
        let expected =
            HistoryPoint { from: 5, to: Some(9), value: Some(256), agreeing: Some(2), copies: Some(3) };
        assert_eq!(point, expected);
        assert_eq!(point_of_value(&epoch(9, 0), &value(&[0, 0, 0, 1, 0, 0, 0, 0])).value, Some(1 << 32));
        let of_before = KeyWriteAnswer { earlier: Some(EarlierEpoch::default()), ..latency };
        assert_eq!(point_of_value(&epoch(9, 0), &of_before).value, None);
        let count = CounterAnswer { value: 4, ..CounterAnswer::default() };
        assert_eq!((point_of_count(&epoch(9, 0), &count).value, point.to), (Some(4), Some(9)));
        assert_eq!(point_of_count(&epoch(9, 0), &CounterAnswer::default()).value, None);
    }
}

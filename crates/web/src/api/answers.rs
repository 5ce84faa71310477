//! The answers of each route.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dta_export::alert::AlertsDocument;
use dta_export::kind::EventKind;
use dta_files::{moment, span};
use dta_proto::control::{
    AlertsRequest, CounterAnswer, Epoch, EpochsRequest, KeyWriteAnswer, PathAnswer, Policy, SketchAnswer,
};
use dta_proto::flow_query::{FlowAnswer, FlowSum};
use dta_proto::flow_record::{COLUMNS, Column};
use dta_proto::key::Flow;
use dta_proto::prefix::Prefix;
use dta_proto::store::{self, StoreSpec};
use dta_rpc::{Ask as _, AskKeys as _, ClientError, KeyAnswer, QuestionKind, Span};
use dta_views::answers::{
    CounterResult, NamedKey, PathResult, SketchResult, ValueResult, fetch_missing_counts,
};
use dta_views::attention::{Notice, find_notices};
use dta_views::epoch::EpochSummary;
use dta_views::flows::{FlowQueryText, FlowsDocument, render_flows_csv};
use dta_views::int::StoreCatalog;
use dta_views::int::drops::DropCounter;
use dta_views::int::event::Filter;
use dta_views::int::event_reader::{EventLine, EventReader, PastEvents};
use dta_views::int::flow::{DtaStores, FlowQuery};
use dta_views::int::flow_history::fetch_flow_history;
use dta_views::int::map::{MapCriteria, map_network};
use dta_views::int::sources::list_sources;
use dta_views::int::top::{By, Criteria, Keys, Ranking};
use dta_views::members::fetch_member_rows;
use dta_views::memory::{fetch_elements, map_memory};
use dta_views::sessions::fetch_session_rows;
use dta_views::stores::StoreRow;
use dta_views::trace;
use dta_views::waterfall::{self, Rates, StatisticsDocument, WaterfallStage};
use http::StatusCode;
use serde::Serialize;

use super::{CSV, Download, PARQUET, WebAnswer, WebServer, to_json};
use crate::live;
use crate::parameters::Parameters;
use crate::problem::Problem;

/// Greatest age of figures about stores: measuring them reads a sample of all memory, and an open page
/// requests the waterfall every second.
const STORE_AGE: Duration = Duration::from_secs(2);
pub(crate) const WATERFALL_STORE_AGE: Duration = Duration::from_secs(10);
/// Most events in an answer, and most events that drops are counted in.
const MOST_EVENTS: u64 = 10_000;
/// Most flows in an answer: each takes a query of many keys.
const MOST_FLOWS: usize = 32;
/// Most groups of flow records in an answer, and most time buckets over all groups.
const MOST_GROUPS: u64 = 10_000;
const MOST_BUCKETS: usize = 100_000;
/// Most flows in a map, each of which takes a query of some keys, and most nodes, which a browser must draw.
const MOST_MAP_FLOWS: u64 = 10_000;
const MOST_MAP_NODES: u64 = 500;

type Answer = Result<WebAnswer, Problem>;

fn json_answer(document: &(impl Serialize + ?Sized)) -> Answer {
    Ok(WebAnswer::Json(to_json(document)?.into()))
}

#[derive(Serialize)]
struct HealthDocument<'a> {
    collector: &'a str,
    version: &'a str,
    /// Now, in UTC, by the clock of the answering process.
    time: String,
    collectors: Vec<String>,
    /// Collectors that do not answer; the other figures lack theirs.
    unreachable: Vec<String>,
    notices: Vec<Notice>,
}

pub(super) async fn health(server: Arc<WebServer>, _: Parameters) -> Answer {
    let stores = server.stores_younger_than(STORE_AGE).await?;
    let sessions = fetch_session_rows(&server.spread).await?;
    let nodes = waterfall::ordered_nodes(server.ask.statistics().await?);
    let members = server.spread.members();
    let own_notices = server.own_notices.clone();
    let own = tokio::task::spawn_blocking(move || own_notices()).await.unwrap_or_default();
    let mut notices = find_notices(&stores, &sessions.sessions, &nodes);
    notices.extend(own);
    notices.sort_by_key(|notice| notice.severity);
    json_answer(&HealthDocument {
        collector: &server.title,
        version: server.version,
        time: moment::format_utc(moment::now()),
        collectors: members.iter().map(|member| member.address.clone()).collect(),
        unreachable: server.spread.unreachable_addresses(),
        notices,
    })
}

pub(super) async fn alerts(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let request = AlertsRequest { after: 0, most: parameters.number("number", 100, 1000)? as u32 };
    json_answer(&AlertsDocument::from(server.ask.fetch_alerts(request).await?))
}

/// The waterfall at a moment.
#[derive(Serialize)]
pub(crate) struct WaterfallDocument {
    /// In UTC.
    time: String,
    stages: Vec<WaterfallStage>,
    /// The age in seconds of the oldest translator counters.
    age_seconds: f64,
}

/// Reads the counters of all nodes, and builds stages from them and from how full these stores are; `rates`
/// has the previous counters.
pub(crate) async fn read_waterfall(
    server: &WebServer,
    stores: &[StoreRow],
    rates: &mut Rates,
) -> Result<WaterfallDocument, Problem> {
    let nodes = waterfall::ordered_nodes(server.ask.statistics().await?);
    rates.take(&nodes);
    Ok(WaterfallDocument {
        time: moment::format_utc(moment::now()),
        stages: waterfall::waterfall_stages(&nodes, stores, rates),
        age_seconds: nodes.iter().map(|node| node.age).fold(0.0, f64::max),
    })
}

pub(super) async fn waterfall(server: Arc<WebServer>, _: Parameters) -> Answer {
    let stores = server.stores_younger_than(WATERFALL_STORE_AGE).await?;
    json_answer(&read_waterfall(&server, &stores, &mut Rates::default()).await?)
}

pub(super) async fn live_waterfall(server: Arc<WebServer>, _: Parameters) -> Answer {
    Ok(WebAnswer::Events(live::stream_waterfall(&server)?))
}

/// The requested span, a moment being a span of a millisecond. `None` = now.
fn requested_span(parameters: &Parameters) -> Result<Option<Span>, Problem> {
    let [at, since, until] = ["at", "since", "until"].map(|name| parameters.moment(name));
    match (at?, since?, until?) {
        (Some(_), Some(_), _) => Err(Problem::bad_request("give at or since, not both")),
        (_, None, Some(_)) => Err(Problem::bad_request("until is for since")),
        (Some(at), None, None) => Ok(Some(Span { since: at, until: at + 1 })),
        (None, Some(since), until) => Ok(Some(Span { since, until: until.unwrap_or_default() })),
        (None, None, None) => Ok(None),
    }
}

pub(super) async fn stats(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let Some(span) = requested_span(&parameters)? else {
        let nodes = waterfall::ordered_nodes(server.spread.statistics_by_address().await?);
        return json_answer(&StatisticsDocument::from_nodes(&nodes));
    };
    let names: Vec<String> = store_specs(&server).await?.into_iter().map(|spec| spec.name).collect();
    json_answer(&waterfall::past_waterfall(&*server.ask, &names, span).await?)
}

async fn store_specs(server: &WebServer) -> Result<Vec<StoreSpec>, Problem> {
    let stores = server.spread.placement_that_answers().await?.stores;
    Ok(stores.into_iter().filter_map(|place| StoreSpec::try_from(&place.store?).ok()).collect())
}

pub(super) async fn stores(server: Arc<WebServer>, _: Parameters) -> Answer {
    json_answer(&server.stores_younger_than(STORE_AGE).await?[..])
}

pub(super) async fn sessions(server: Arc<WebServer>, _: Parameters) -> Answer {
    json_answer(&fetch_session_rows(&server.spread).await?.sessions)
}

pub(super) async fn members(server: Arc<WebServer>, _: Parameters) -> Answer {
    json_answer(&fetch_member_rows(&server.spread).await)
}

pub(super) async fn epochs(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let request = EpochsRequest {
        store: parameters.get("store").unwrap_or_default().to_owned(),
        since: parameters.moment("since")?.unwrap_or_default(),
        until: parameters.moment("until")?.unwrap_or_default(),
        most: parameters.number("number", 100, 4096)? as u32,
    };
    let epochs = server.spread.newest_epochs(request).await?.epochs;
    json_answer(&epochs.iter().map(EpochSummary::from).collect::<Vec<_>>())
}

type Answered<A> = Vec<(NamedKey, A, Option<Epoch>)>;

async fn query_keys<A>(
    server: &WebServer,
    parameters: &Parameters,
    kind: QuestionKind,
) -> Result<Answered<A>, Problem>
where
    A: TryFrom<KeyAnswer, Error = ClientError> + Send,
{
    let keys: Vec<NamedKey> = parameters.parse_each("key")?;
    let ask = server.spread.clone().at_moment(parameters.moment("at")?.unwrap_or_default().into());
    let store = parameters.get("store").unwrap_or_default();
    let by_epoch = ask.ask_by_epoch(store, &NamedKey::keys(&keys), kind).await?;
    let answers = by_epoch
        .into_iter()
        .flat_map(|(epoch, answers)| answers.into_iter().map(move |answer| (answer, epoch.clone())));
    Ok(keys.into_iter().zip(answers).map(|(key, (answer, epoch))| (key, answer, epoch)).collect())
}

pub(super) async fn values(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let answers = query_keys::<KeyWriteAnswer>(&server, &parameters, kind).await?;
    let result =
        |(key, answer, epoch): &(_, _, Option<Epoch>)| ValueResult::from_answer(key, answer, epoch.as_ref());
    json_answer(&answers.iter().map(result).collect::<Vec<_>>())
}

pub(super) async fn paths(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let answers = query_keys::<PathAnswer>(&server, &parameters, QuestionKind::Postcarding).await?;
    let result =
        |(key, answer, epoch): &(_, _, Option<Epoch>)| PathResult::from_answer(key, answer, epoch.as_ref());
    json_answer(&answers.iter().map(result).collect::<Vec<_>>())
}

pub(super) async fn counts(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let answers = query_keys::<CounterAnswer>(&server, &parameters, QuestionKind::KeyIncrement).await?;
    // What is missing is known only for now.
    let missing = match parameters.get("at") {
        None => {
            let store = parameters.get("store").unwrap_or_default();
            Some(fetch_missing_counts(&server.spread, store).await?.1)
        }
        Some(_) => None,
    };
    let result = |(key, answer, epoch): &(NamedKey, CounterAnswer, Option<Epoch>)| CounterResult {
        key: key.clone(),
        counted: answer.value,
        lacks: missing.as_ref(),
        epoch: epoch.as_ref().map(EpochSummary::from),
    };
    json_answer(&answers.iter().map(result).collect::<Vec<_>>())
}

pub(super) async fn sketches(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let number = parameters.number("epoch", 0, u32::MAX.into())? as u32;
    let kind = QuestionKind::SketchMerge { epoch: number };
    let answers = query_keys::<SketchAnswer>(&server, &parameters, kind).await?;
    let result = |(key, answer, epoch): &(_, _, Option<Epoch>)| {
        SketchResult::from_answer(key, answer, number, epoch.as_ref())
    };
    json_answer(&answers.iter().map(result).collect::<Vec<_>>())
}

fn requested_flows(parameters: &Parameters) -> Result<Vec<Flow>, Problem> {
    let flows: Vec<Flow> = parameters.parse_each("flow")?;
    match flows.len() > MOST_FLOWS {
        true => Err(Problem::bad_request(format!("more than {MOST_FLOWS} flows: ask in several requests"))),
        false => Ok(flows),
    }
}

pub(super) async fn flows(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let flows = requested_flows(&parameters)?;
    // As in the dashboard: if there are no stores for INT, use those of DTA reports that are queried by flow.
    let catalog = StoreCatalog::fetch_from(&*server.ask).await?;
    let dta = if catalog.has_int_stores() { DtaStores::default() } else { catalog.dta_stores() };
    let (ask, names, at) = (server.ask.clone(), server.names.clone(), parameters.moment("at")?);
    json_answer(&FlowQuery { ask, dta, names, at }.summarize_flows(&flows).await?)
}

pub(super) async fn flow_history(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let flow = parameters.parse_as::<Flow>("flow")?.ok_or_else(|| Problem::bad_request("give a flow"))?;
    let hour = || moment::now().saturating_sub(3_600_000);
    let since = parameters.moment("since")?.unwrap_or_else(hour);
    let span = Span { since, until: parameters.moment("until")?.unwrap_or_default() };
    json_answer(&fetch_flow_history(&server.ask, &flow, span).await?)
}

pub(super) async fn sources(server: Arc<WebServer>, _: Parameters) -> Answer {
    json_answer(&list_sources(&server.ask, &server.names).await?)
}

pub(super) async fn flow_records(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let format = match parameters.get("format") {
        None | Some("json") => None,
        Some("csv") => Some(CSV),
        Some("parquet") => Some(PARQUET),
        Some(other) => {
            let detail = format!("format is {other:?}, but may be json, csv or parquet");
            return Err(Problem::bad_request(detail));
        }
    };
    let per = parameters.get("per").map(span::parse_duration).transpose();
    let text = FlowQueryText {
        group: parameters.get("group").unwrap_or("flow"),
        condition: parameters.get("where").unwrap_or_default(),
        exporter: parameters.get("exporter"),
        at: parameters.moment("at")?,
        since: parameters.moment("since")?,
        until: parameters.moment("until")?,
        per: per.map_err(|must| Problem::bad_request(format!("per must be {must}")))?,
    };
    let question =
        text.to_question(&server.names).map_err(|error| Problem::bad_request(error.to_string()))?;
    let by = parameters.parse_as::<FlowSum>("by")?.unwrap_or_default();
    let most = parameters.number("number", 10, MOST_GROUPS)? as usize;
    let store = parameters.get("store").unwrap_or_default();
    let (answer, scanned) = server.spread.query_flows(store, &question, by, most).await?;
    let buckets: usize = answer.rows.iter().map(|row| row.series.len()).sum();
    if buckets > MOST_BUCKETS {
        let advice = format!("{buckets} time buckets: make them longer, or ask for fewer groups");
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, advice));
    }
    let Some(format) = format else {
        return json_answer(&FlowsDocument::new(by, &answer, scanned, &server.names));
    };
    let content = match format.is_text {
        true => (render_flows_csv(&answer, question.per, &server.names) + "\n").into(),
        false => flows_as_parquet(answer, question.per != 0).await?,
    };
    Ok(WebAnswer::Download(Download { format, content }))
}

/// Compresses on a thread where others need not wait for it.
async fn flows_as_parquet(answer: FlowAnswer, has_buckets: bool) -> Result<Bytes, Problem> {
    let failed = |why: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("no Parquet: {why}"));
    let written = tokio::task::spawn_blocking(move || dta_history::write_flow_groups(&answer, has_buckets));
    let written = written.await.map_err(|error| failed(error.to_string()))?;
    Ok(written.map_err(|error| failed(error.to_string()))?.into())
}

#[derive(Serialize)]
struct FlowColumn {
    name: &'static str,
    help: &'static str,
}

pub(super) async fn flow_columns(_: Arc<WebServer>, _: Parameters) -> Answer {
    let column = |column: &Column| FlowColumn { name: column.name, help: column.help };
    json_answer(&COLUMNS.iter().map(column).collect::<Vec<_>>())
}

pub(super) async fn traces(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let mut traces = Vec::new();
    for flow in requested_flows(&parameters)? {
        traces.push(trace::flow::trace_flow(&*server.ask, &flow).await?);
    }
    json_answer(&traces)
}

pub(super) async fn top_flows(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let criteria = Criteria {
        by: parameters.parse_as::<By>("by")?,
        most: parameters.number("number", 20, 10_000)? as usize,
        prefix: parameters.parse_as::<Prefix>("prefix")?,
        keys: parameters.get("keys").map_or(Keys::Directory, |store| Keys::Store(store.to_owned())),
        store: parameters.get("store").map(str::to_owned),
        at: parameters.moment("at")?,
        names: server.names.clone(),
    };
    json_answer(&Ranking::new(server.ask.clone(), criteria).rank_flows().await?)
}

fn requested_events(server: &WebServer, parameters: &Parameters) -> Result<Filter, Problem> {
    let number_of = |switch: &str| {
        let number = server.names.number_of(switch).or_else(|| switch.parse().ok());
        number.ok_or_else(|| {
            Problem::bad_request(format!(
                "no switch is called {switch:?} in the file of names, and it is not a number"
            ))
        })
    };
    Ok(Filter {
        kinds: parameters.parse_each::<EventKind>("kind")?,
        flow: parameters.parse_as("flow")?,
        prefix: parameters.parse_as("prefix")?,
        switch: parameters.get("switch").map(number_of).transpose()?,
    })
}

/// Reads past events, at most `most` of those in the rings.
async fn read_events(
    server: &WebServer,
    parameters: &Parameters,
    filter: Filter,
    most: u64,
    mut each: impl FnMut(EventLine) -> Result<(), Problem> + Send,
) -> Result<(), Problem> {
    let mut reader = EventReader::new(server.names.clone(), filter);
    match requested_span(parameters)? {
        None => {
            let newest = PastEvents::Newest(most as usize);
            reader.read_past_events(&server.ask, newest, each).await.map(drop)
        }
        Some(span) => {
            let mut count = 0;
            let too_many = || {
                let advice = format!("more than {MOST_EVENTS} events: ask about a shorter time, or filter");
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, advice)
            };
            let counted = |line| {
                count += 1;
                if count > MOST_EVENTS { Err(too_many()) } else { each(line) }
            };
            reader.read_epoch_events(&server.ask, span, counted).await.map(drop)
        }
    }
}

pub(super) async fn events(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let filter = requested_events(&server, &parameters)?;
    let most = parameters.number("number", 200, MOST_EVENTS)?;
    let mut lines = Vec::new();
    let take = |line| {
        lines.push(line);
        Ok(())
    };
    read_events(&server, &parameters, filter, most, take).await?;
    json_answer(&lines)
}

pub(super) async fn live_events(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let filter = requested_events(&server, &parameters)?;
    Ok(WebAnswer::Events(live::stream_events(&server, filter)?))
}

pub(super) async fn drops(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let filter = Filter { kinds: vec![EventKind::Drop], ..requested_events(&server, &parameters)? };
    let mut counter = DropCounter::default();
    let take = |line| {
        counter.add_line(line);
        Ok(())
    };
    read_events(&server, &parameters, filter, MOST_EVENTS, take).await?;
    json_answer(&counter.into_summary())
}

pub(super) async fn network_map(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let criteria = MapCriteria {
        flows: parameters.number("flows", 2000, MOST_MAP_FLOWS)? as usize,
        nodes: parameters.number("number", 100, MOST_MAP_NODES)? as usize,
        around: parameters.get("around").map(str::to_owned),
    };
    json_answer(&map_network(&server.ask, &server.names, &criteria).await?)
}

async fn requested_store(server: &WebServer, parameters: &Parameters) -> Result<StoreSpec, Problem> {
    let (name, specs) = (parameters.get("store").unwrap_or_default(), store_specs(server).await?);
    store::find_store(specs.iter(), |spec| spec, name).cloned().ok_or_else(|| {
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let detail = format!("there is no store {name:?}; there are {}", names.join(", "));
        Problem::new(StatusCode::NOT_FOUND, detail)
    })
}

pub(super) async fn memory_map(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let store = requested_store(&server, &parameters).await?;
    let cells = parameters.number("cells", 1024, 4096)?;
    json_answer(&map_memory(&*server.ask, &store, cells).await?)
}

pub(super) async fn memory(server: Arc<WebServer>, parameters: Parameters) -> Answer {
    let store = requested_store(&server, &parameters).await?;
    let first = parameters.number("first", 0, u64::MAX)?;
    let count = parameters.number("count", 16, 256)?;
    if first >= store.element_count() {
        let detail = format!("the store {} has {} elements", store.name, store.element_count());
        return Err(Problem::new(StatusCode::NOT_FOUND, detail));
    }
    json_answer(&fetch_elements(&*server.ask, &store, first, count).await?)
}

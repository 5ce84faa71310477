//! The dashboard's source of figures: any [`Ask`], whether a running collector or only its memory.

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_export::names::Names;
use dta_proto::control::{ReadMemoryRequest, TailRequest};
use dta_proto::key::{Flow, Key};
use dta_proto::store::StoreSpec;
use dta_proto::trace::store as trace_store;
use dta_proto::wire::dta::Primitive;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, ClientError, Question, QuestionKind, TailMessages};

use super::app::{ListEntries, ListId, MemoryWindow, RankedBy, Snapshot, Tab, TypedQuery};
use super::events::EventFollower;
use super::past_epoch::{self, EpochStep, PastEpoch};
use crate::epoch::EpochSummary;
use crate::int::flow::{DtaStores, FlowQuery};
use crate::int::top::{Criteria, Ranking, Top};
use crate::int::{StoreCatalog, draw, stores};
use crate::{trace, waterfall};

/// How long an answer may take before the dashboard reports that the collector does not answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long to wait for more entries of a followed list before showing those already there.
const QUIET: Duration = Duration::from_millis(20);

const TOP: usize = 100;

/// Typed in place of a store: the trace of a flow through hosts.
const TRACE: &str = "trace";

/// Entries kept of the followed list.
pub(super) const MAX_ENTRIES: usize = 200;

/// A source of figures. Clones share it.
#[derive(Clone)]
pub struct DataSource {
    ask: Arc<dyn Ask>,
    title: String,
    /// Whether it has sessions and counters: memory alone has none.
    running: bool,
    names: Arc<Names>,
}

pub(super) struct FollowedList {
    list: ListId,
    following: TailMessages,
    seen: ListEntries,
}

impl DataSource {
    /// A running collector; `address` appears in the title.
    pub fn from_collector(client: RemoteCollector, address: &str) -> Self {
        Self::from_ask(Arc::new(client), format!("collector {address}"), true)
    }

    /// Any implementation of [`Ask`]. `running` = it has sessions and counters.
    pub fn from_ask(ask: Arc<dyn Ask>, title: String, running: bool) -> Self {
        Self { ask, title, running, names: Arc::default() }
    }

    /// Adds names of switches, ports and drop reasons.
    pub fn with_names(self, names: Names) -> Self {
        Self { names: Arc::new(names), ..self }
    }

    pub(super) fn title(&self) -> String {
        self.title.clone()
    }

    /// Where reports went; memory alone has no counters, so there what it contains.
    pub(super) fn first_page(&self) -> Tab {
        if self.running { Tab::Waterfall } else { Tab::Stores }
    }

    pub(super) async fn fetch_snapshot(&self) -> Result<Snapshot, String> {
        let stores = await_answer(self.ask.fetch_stores()).await?;
        let (mut sessions, mut nodes) = (Vec::new(), Vec::new());
        if self.running {
            sessions = await_answer(self.ask.fetch_sessions()).await?.sessions;
            nodes = waterfall::ordered_nodes(await_answer(self.ask.statistics()).await?);
        }
        Ok(Snapshot { stores, sessions, nodes, taken: Instant::now(), live: self.running })
    }

    pub(super) async fn memory_bytes(&self, window: &MemoryWindow) -> Result<Vec<u8>, String> {
        let MemoryWindow { store, offset, length } = window.clone();
        Ok(await_answer(self.ask.read_memory(ReadMemoryRequest { store, offset, length })).await?.data)
    }

    /// Follows a list from its oldest batch.
    pub(super) async fn follow_list(&self, list: &ListId) -> Result<FollowedList, String> {
        let request = TailRequest {
            store: list.store.clone(),
            list: list.list,
            from_start: true,
            ..TailRequest::default()
        };
        let following = await_answer(self.ask.tail_list(request)).await?;
        Ok(FollowedList { list: list.clone(), following, seen: ListEntries::default() })
    }

    pub(super) async fn follow_events(&self) -> Result<EventFollower, String> {
        with_timeout(EventFollower::from_oldest_event(&self.ask, self.names.clone())).await?
    }

    pub(super) fn new_ranking(&self, by: RankedBy, at: Option<u64>) -> Ranking {
        Ranking::new(self.ask.clone(), Criteria { by, most: TOP, at, ..Criteria::default() })
    }

    /// The top flows of `ranking`.
    pub(super) async fn rank_flows(&self, ranking: &mut Ranking) -> Result<Top, String> {
        with_timeout(ranking.rank_flows()).await?.map_err(|error| error.to_string())
    }

    /// Where a step through epochs leads.
    pub(super) async fn resolve_step(&self, step: &EpochStep) -> Result<Option<PastEpoch>, String> {
        with_timeout(past_epoch::resolve_step(&*self.ask, step)).await?
    }

    /// Everything known about a flow at a moment, drawn as a path.
    pub(super) async fn draw_flow(&self, flow: Flow, at: Option<u64>) -> Result<Vec<String>, String> {
        let catalog =
            with_timeout(StoreCatalog::fetch_from(&*self.ask)).await?.map_err(|error| error.to_string())?;
        let dta = if catalog.has_int_stores() { DtaStores::default() } else { catalog.dta_stores() };
        let asking = FlowQuery { ask: self.ask.clone(), dta, names: self.names.clone(), at };
        let reports =
            with_timeout(asking.summarize_flows(&[flow])).await?.map_err(|error| error.to_string())?;
        let mut lines: Vec<String> = reports.iter().flat_map(draw::flow_lines).collect();
        if at.is_none() && catalog.has_store(trace_store::EVENTS, Primitive::Append) {
            let traced = self.fetch_flow_trace(flow).await?;
            if traced.found {
                lines.extend([String::new(), "Traced by hosts:".into(), String::new()]);
                lines.extend(trace::draw::trace_lines(&traced));
            }
        }
        Ok(lines)
    }

    /// The trace of a flow through hosts.
    async fn fetch_flow_trace(&self, flow: Flow) -> Result<trace::flow::FlowTrace, String> {
        with_timeout(trace::flow::trace_flow(&*self.ask, &flow)).await?.map_err(|error| error.to_string())
    }

    /// The answer as lines to show.
    pub(super) async fn answer_query(&self, question: &TypedQuery) -> Result<Vec<String>, String> {
        if question.store == TRACE {
            let flow = Flow::from_str(&question.key).map_err(|error| error.to_string())?;
            return Ok(trace::draw::trace_lines(&self.fetch_flow_trace(flow).await?));
        }
        let stores = await_answer(self.ask.placement()).await?.stores;
        let specs: Vec<_> = stores.iter().filter_map(|place| place.store.as_ref()).collect();
        let spec = specs.iter().find(|spec| spec.name == question.store).ok_or_else(|| {
            let have: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
            format!("there is no store {:?}; there are {}", question.store, have.join(", "))
        })?;
        let primitive = StoreSpec::try_from(*spec).map_err(|e| e.to_string())?.kind.primitive();
        let kind = QuestionKind::default_for(primitive, question.epoch)
            .ok_or("an append store has lists, not keys: see the Lists tab")?;
        let keys = [Key::from_str(&question.key).map_err(|e| e.to_string())?];
        let (ask, store) = (stores::at_moment(&self.ask, question.at), &question.store);
        let answers = await_answer(ask.query_keys(Question::now(store, keys, kind))).await?;
        let mut said = answers.of_keys.first().ok_or("no answer")?.describe_lines();
        if let Some(at) = question.at {
            let epoch = await_answer(stores::epoch_at_moment(&*self.ask, store, at)).await?;
            said.extend(epoch.iter().map(|epoch| format!("of {}", EpochSummary::from(epoch).describe())));
        }
        Ok(said)
    }
}

impl FollowedList {
    pub(super) fn is_following(&self, list: &ListId) -> bool {
        self.list == *list
    }

    /// Reads what is there; the stream stays open while it is quiet. A writer that is never quiet does not keep the
    /// screen from being drawn.
    pub(super) async fn read(&mut self) -> Result<&ListEntries, String> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE
            && let Ok(message) = tokio::time::timeout(QUIET, self.following.next_message()).await
        {
            let Some(news) = message.map_err(|error| error.to_string())? else { break };
            self.seen.overwritten += news.overwritten_batches;
            self.seen.torn += news.torn;
            self.seen.sequence = self.seen.sequence.max(news.sequence);
            keep_newest(&mut self.seen, news.entries);
        }
        Ok(&self.seen)
    }
}

/// Waits for an answer, at most [`PATIENCE`]; an error as one sentence.
async fn await_answer<T>(answer: impl Future<Output = Result<T, ClientError>>) -> Result<T, String> {
    with_timeout(answer).await?.map_err(|error| error.to_string())
}

/// Waits for a future, at most [`PATIENCE`].
async fn with_timeout<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let patient = tokio::time::timeout(PATIENCE, work).await;
    patient.map_err(|_| format!("the collector has not answered for {} s", PATIENCE.as_secs()))
}

fn keep_newest(seen: &mut ListEntries, news: Vec<Vec<u8>>) {
    seen.total += news.len() as u64;
    let skip = news.len().saturating_sub(MAX_ENTRIES);
    seen.newest.extend(news.into_iter().skip(skip));
    while seen.newest.len() > MAX_ENTRIES {
        VecDeque::pop_front(&mut seen.newest);
    }
}

#[cfg(test)]
mod tests {
    use dta_proto::control::PathAnswer;
    use dta_proto::store::StoreKind;

    use super::*;
    use crate::test_collector::TestCollector;

    #[tokio::test]
    async fn unknown_hops_at_the_end_of_a_path_are_shown() {
        let key: Key = "10.0.0.1:1->10.0.0.2:2/udp".parse().unwrap();
        let mut fake = TestCollector::with_stores([(
            "s",
            StoreKind::Postcarding { slots: 1 << 8, hops: 6, redundancy: 2 },
        )]);
        let (hops, present) = (vec![10, 0, 30, 0, 0], vec![true, false, true, false, false]);
        fake.put_answer(
            "s",
            key,
            PathAnswer {
                found: true,
                hops,
                present,
                path_length: 5,
                agreeing: 1,
                copies: 2,
                ..PathAnswer::default()
            },
        );
        let source = DataSource::from_ask(Arc::new(fake), "x".into(), false);
        let question =
            TypedQuery { store: "s".into(), key: key.to_string(), epoch: 0, at: None, text: String::new() };
        assert_eq!(
            source.answer_query(&question).await.unwrap(),
            ["10 → ? → 30 → ? → ?", "partial, 1 of 2 copies"]
        );
    }
}

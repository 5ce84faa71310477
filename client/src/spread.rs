//! Several collectors that share stores, asked as one.
//!
//! Each says of each store which buckets of keys and which lists it has ([`StoreInfo::buckets`],
//! [`StoreInfo::lists`]). A key goes to the collector of its bucket, a list to the one that has it. A
//! store that one collector alone has is asked there. One that does not answer is missed by what it has
//! alone: what the others say that they have is asked of them.

use std::sync::Arc;

use dta_proto::buckets::{self, Buckets};
use dta_proto::control::{
    self, ListSessionsResponse, NodeStatistics, QueryCounterRequest, QueryCounterResponse,
    QueryKeyWriteRequest, QueryKeyWriteResponse, QueryPathRequest, QueryPathResponse, QuerySketchRequest,
    QuerySketchResponse, ReadMemoryRequest, ReadMemoryResponse, StoreInfo, TailRequest,
};
use dta_proto::key::Key;
use dta_proto::layout::load;
use dta_proto::list_range::ListRange;
use dta_proto::store::{self, StoreSpec};
use dta_proto::telemetry;
use dta_proto::wire::dta::Primitive;
use tonic::{Code, Status};

use crate::{Ask, ClientError, Following};

/// One of several collectors.
#[derive(Clone)]
pub struct Member {
    /// Its address, for messages.
    pub address: String,
    /// How it is asked.
    pub ask: Arc<dyn Ask>,
}

/// Several collectors, asked as one. With one of them, it is asked as it is.
#[derive(Clone)]
pub struct Spread {
    members: Vec<Member>,
}

/// What is known of a store.
struct Parts {
    /// Its name.
    name: String,
    /// What each collector that answers has of it; none is without any.
    all: Vec<Part>,
    /// Why one of the collectors did not answer.
    away: Option<Status>,
}

/// A part of a store.
struct Part {
    member: usize,
    spec: StoreSpec,
    /// Whether anything of the store is at this collector.
    is_here: bool,
    /// Whether a session that is open writes there.
    is_written: bool,
    buckets: Buckets,
    lists: Vec<ListRange>,
}

/// The only one of these parts or, of several, the only one that is written to. None is `Err(None)`, and of
/// several two.
fn the_one<'a>(have: impl Iterator<Item = &'a Part>) -> Result<&'a Part, Option<[&'a Part; 2]>> {
    let have: Vec<&Part> = have.collect();
    let mut written = have.iter().filter(|part| part.is_written);
    match (&have[..], written.next(), written.next()) {
        ([], ..) => Err(None),
        ([only], ..) | (_, Some(only), None) => Ok(only),
        ([a, b, ..], None, _) => Err(Some([a, b])),
        (_, Some(a), Some(b)) => Err(Some([a, b])),
    }
}

impl Spread {
    /// Asks all of these. There must be one at least.
    pub fn new(members: Vec<Member>) -> Spread {
        Spread { members }
    }

    fn only(&self) -> Option<&Arc<dyn Ask>> {
        match &self.members[..] {
            [only] => Some(&only.ask),
            _ => None,
        }
    }

    /// What each collector that answers has, and why one of the others did not answer.
    async fn infos(&self) -> Result<(Vec<(usize, StoreInfo)>, Option<Status>), ClientError> {
        let (mut all, mut away) = (Vec::new(), None);
        for (member, Member { address, ask }) in self.members.iter().enumerate() {
            match ask.stores().await {
                Ok(infos) => all.extend(infos.into_iter().map(|info| (member, info))),
                Err(error) if is_away(&error) => {
                    away = Some(Status::unavailable(format!(
                        "the collector at {address} does not answer: {error}"
                    )));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((all, away))
    }

    /// The collectors.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// [`Ask::statistics`], where nodes of the collectors themselves have the address of theirs as their session,
    /// if there are several.
    ///
    /// # Errors
    /// As [`Ask::statistics`].
    pub async fn statistics_by_address(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        let is_one = self.only().is_some();
        let with_address = |(member, mut node): (usize, NodeStatistics)| {
            if node.session.is_empty() && !is_one {
                node.session.clone_from(&self.members[member].address);
            }
            node
        };
        Ok(self.nodes().await?.into_iter().map(with_address).collect())
    }

    /// The nodes of all collectors that answer, and which of them told. A node that hands its counters to each of
    /// them is told once, by its last word.
    async fn nodes(&self) -> Result<Vec<(usize, NodeStatistics)>, ClientError> {
        let mut all: Vec<(usize, NodeStatistics)> = Vec::new();
        let mut answers = Answers::default();
        for (member, Member { ask, .. }) in self.members.iter().enumerate() {
            for node in answers.next(ask.statistics().await)?.unwrap_or_default() {
                let is_same = |(_, known): &&mut (usize, NodeStatistics)| {
                    let of = |n: &NodeStatistics| (n.node.clone(), n.session.clone(), n.life);
                    !node.session.is_empty() && of(known) == of(&node)
                };
                match all.iter_mut().find(is_same) {
                    Some((_, known)) if known.age_seconds <= node.age_seconds => {}
                    Some(known) => *known = (member, node),
                    None => all.push((member, node)),
                }
            }
        }
        answers.any()?;
        Ok(all)
    }

    /// The stores of those collectors that answer: one of each name.
    pub async fn stores_that_answer(&self) -> Result<Vec<StoreInfo>, ClientError> {
        if let Some(only) = self.only() {
            return only.stores().await;
        }
        match self.infos().await? {
            (infos, Some(away)) if infos.is_empty() => Err(away.into()),
            (infos, _) => Ok(summed(infos)),
        }
    }

    /// The parts of a store at all collectors. An empty name stands for the only store of the primitive that
    /// is not one for INT.
    async fn parts(&self, name: &str, primitive: Primitive) -> Result<Parts, ClientError> {
        let (infos, away) = self.infos().await?;
        let mut all: Vec<Part> = infos.into_iter().filter_map(|(member, info)| part(member, info)).collect();
        let known = match name {
            // Whether it is the only one, those say that answer; and all have to.
            "" => away.clone().map_or_else(|| only_name(&all, primitive), |away| Err(away.into())),
            name => match store::named(all.iter(), |part| &part.spec, name) {
                Some(part) => Ok(part.spec.name.clone()),
                None => {
                    Err(away.clone().unwrap_or_else(|| Status::not_found(self.unknown(name, &all))).into())
                }
            },
        };
        let name = known?;
        all.retain(|part| part.spec.name == name);
        if let Some(other) = all.iter().find(|part| part.spec.kind.primitive() != primitive) {
            let kind = other.spec.kind.primitive();
            return Err(refusal(format!("store {name:?} is a {kind} store, and {primitive} is asked for")));
        }
        all.retain(|part| part.is_here);
        Ok(Parts { name, all, away })
    }

    fn unknown(&self, name: &str, all: &[Part]) -> String {
        let mut have: Vec<&str> = all.iter().map(|part| part.spec.name.as_str()).collect();
        have.sort_unstable();
        have.dedup();
        format!("there is no store {name:?} at {}; they have {}", self.addresses(), have.join(", "))
    }

    fn addresses(&self) -> String {
        self.members.iter().map(|member| member.address.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Refuses that `what` is at two collectors, as far as they say.
    fn at_both(&self, what: &str, parts: [&Part; 2]) -> ClientError {
        let [a, b] = parts.map(|part| &self.members[part.member].address);
        refusal(format!(
            "{what} of store {:?} is at {a} and at {b}, as both say; if these are two stores, ask one collector at a time",
            parts[0].spec.name
        ))
    }

    /// The member that each key is asked at, and the name of the store.
    fn members_of(&self, parts: &Parts, keys: &[Vec<u8>]) -> Result<Vec<usize>, ClientError> {
        let whole = |key: &Vec<u8>| <[u8; 16]>::try_from(&key[..]).map(Key);
        let member = |key: &Vec<u8>| {
            let key = whole(key)
                .map_err(|_| refusal(format!("a key has {} bytes, but must have 16", key.len())))?;
            let bucket = buckets::of_key(&key);
            match the_one(parts.all.iter().filter(|part| part.buckets.contains(bucket))) {
                Ok(part) => Ok(part.member),
                Err(Some(two)) => Err(self.at_both(&format!("bucket {bucket}"), two)),
                Err(None) => Err(self.at_none(&format!("bucket {bucket}, that of {key},"), parts)),
            }
        };
        keys.iter().map(member).collect()
    }

    /// Refuses what no collector has that answers.
    fn at_none(&self, what: &str, Parts { name, away, .. }: &Parts) -> ClientError {
        if let Some(away) = away {
            let message = format!(
                "{what} of store {name:?} is at none of the collectors that answer; {}",
                away.message()
            );
            return Status::unavailable(message).into();
        }
        let message = format!(
            "{what} of store {name:?} is at none of {}: name the collector that has it, too (--collector A,B)",
            self.addresses()
        );
        Status::failed_precondition(message).into()
    }

    /// Asks each member for its keys with `ask` (name of the store, keys), and gives answers in the order of
    /// all keys.
    async fn by_key<A, F>(
        &self,
        (name, primitive): (&str, Primitive),
        keys: &[Vec<u8>],
        ask: impl Fn(Arc<dyn Ask>, String, Vec<Vec<u8>>) -> F,
    ) -> Result<Vec<A>, ClientError>
    where
        F: Future<Output = Result<Vec<A>, ClientError>>,
    {
        let parts = self.parts(name, primitive).await?;
        let members = self.members_of(&parts, keys)?;
        let mut answers: Vec<Option<A>> = keys.iter().map(|_| None).collect();
        for (member, asked) in self.members.iter().enumerate() {
            let mine: Vec<usize> = (0..keys.len()).filter(|at| members[*at] == member).collect();
            if mine.is_empty() {
                continue;
            }
            let of_mine = mine.iter().map(|at| keys[*at].clone()).collect();
            let told = ask(asked.ask.clone(), parts.name.clone(), of_mine).await?;
            for (at, answer) in mine.into_iter().zip(told) {
                answers[at] = Some(answer);
            }
        }
        let all: Option<Vec<A>> = answers.into_iter().collect();
        all.ok_or_else(|| Status::internal("a collector answered fewer keys than it was asked for").into())
    }
}

fn refusal(message: String) -> ClientError {
    Status::invalid_argument(message).into()
}

fn part(member: usize, info: StoreInfo) -> Option<Part> {
    let spec = StoreSpec::try_from(info.store.as_ref()?).ok()?;
    // What it has of nothing it does not tell: then it is everything.
    let buckets = control::buckets(&info.buckets).ok()?;
    let lists = info.lists.into_iter().map(ListRange::from).collect();
    Some(Part { member, spec, is_here: info.elsewhere.is_empty(), is_written: info.written, buckets, lists })
}

fn only_name(all: &[Part], primitive: Primitive) -> Result<String, ClientError> {
    let of_kind =
        |part: &&Part| part.spec.kind.primitive() == primitive && !telemetry::is_store(&part.spec.name);
    let mut names: Vec<&str> = all.iter().filter(of_kind).map(|part| part.spec.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [only] => Ok(only.to_owned()),
        [] => Err(Status::not_found(format!("there is no {primitive} store")).into()),
        _ => Err(refusal(format!("there are several {primitive} stores: name one of {}", names.join(", ")))),
    }
}

/// One store of each name: as the first collector that has it tells it, with what is used summed over all
/// that have a part of it.
fn summed(infos: Vec<(usize, StoreInfo)>) -> Vec<StoreInfo> {
    let name = |info: &StoreInfo| info.store.as_ref().map(|store| store.name.clone());
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        infos.into_iter().map(|(_, info)| info).partition(|info| info.elsewhere.is_empty());
    let mut all: Vec<StoreInfo> = Vec::new();
    for info in here {
        match all.iter_mut().find(|known| name(known) == name(&info)) {
            Some(known) => {
                // Of all keys, each survives as those of its collector do.
                known.survival = match (known.survival, info.survival) {
                    (Some(a), Some(b)) if known.used + info.used > 0 => {
                        let of = |survival: f64, used: u64| survival * used as f64;
                        Some((of(a, known.used) + of(b, info.used)) / (known.used + info.used) as f64)
                    }
                    (a, b) => a.or(b),
                };
                known.used += info.used;
                known.capacity += info.capacity;
                known.length += info.length;
                known.load = known.used as f64 / (known.capacity as f64).max(1.0);
                if known.advised_redundancy.or(info.advised_redundancy).is_some() {
                    known.advised_redundancy = Some(load::advised_redundancy(known.load).into());
                }
                known.buckets.extend(info.buckets);
                known.lists.extend(info.lists);
            }
            None => all.push(info),
        }
    }
    for info in elsewhere {
        if !all.iter().any(|known| name(known) == name(&info)) {
            all.push(info);
        }
    }
    all
}

#[tonic::async_trait]
impl Ask for Spread {
    /// One of each name, where several share it with what is used summed over all. All must answer.
    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        match self.infos().await? {
            (_, Some(away)) => Err(away.into()),
            (infos, None) => Ok(summed(infos)),
        }
    }

    async fn query_key_write(
        &self,
        request: QueryKeyWriteRequest,
    ) -> Result<QueryKeyWriteResponse, ClientError> {
        if let Some(only) = self.only() {
            return only.query_key_write(request).await;
        }
        let QueryKeyWriteRequest { store, keys, policy, at_least } = request;
        let ask = |ask: Arc<dyn Ask>, store, keys| async move {
            Ok(ask.query_key_write(QueryKeyWriteRequest { store, keys, policy, at_least }).await?.answers)
        };
        let answers = self.by_key((&store, Primitive::KeyWrite), &keys, ask).await?;
        Ok(QueryKeyWriteResponse { answers, generation: 0 })
    }

    async fn query_path(&self, request: QueryPathRequest) -> Result<QueryPathResponse, ClientError> {
        if let Some(only) = self.only() {
            return only.query_path(request).await;
        }
        let ask = |ask: Arc<dyn Ask>, store, keys| async move {
            Ok(ask.query_path(QueryPathRequest { store, keys }).await?.answers)
        };
        let answers = self.by_key((&request.store, Primitive::Postcarding), &request.keys, ask).await?;
        Ok(QueryPathResponse { answers, generation: 0 })
    }

    async fn query_counter(&self, request: QueryCounterRequest) -> Result<QueryCounterResponse, ClientError> {
        if let Some(only) = self.only() {
            return only.query_counter(request).await;
        }
        let ask = |ask: Arc<dyn Ask>, store, keys| async move {
            Ok(ask.query_counter(QueryCounterRequest { store, keys }).await?.answers)
        };
        let answers = self.by_key((&request.store, Primitive::KeyIncrement), &request.keys, ask).await?;
        Ok(QueryCounterResponse { answers, generation: 0 })
    }

    /// A sketch is at one collector, whole.
    async fn query_sketch(&self, request: QuerySketchRequest) -> Result<QuerySketchResponse, ClientError> {
        if let Some(only) = self.only() {
            return only.query_sketch(request).await;
        }
        let parts = self.parts(&request.store, Primitive::SketchMerge).await?;
        match the_one(parts.all.iter()) {
            Ok(part) => {
                let store = parts.name.clone();
                self.members[part.member].ask.query_sketch(QuerySketchRequest { store, ..request }).await
            }
            Err(Some(two)) => Err(self.at_both("a sketch", two)),
            Err(None) => Err(self.at_none("a sketch", &parts)),
        }
    }

    async fn tail(&self, request: TailRequest) -> Result<Following, ClientError> {
        if let Some(only) = self.only() {
            return only.tail(request).await;
        }
        let parts = self.parts(&request.store, Primitive::Append).await?;
        let has = |part: &&Part| {
            part.lists.is_empty() || part.lists.iter().any(|range| range.contains(request.list))
        };
        match the_one(parts.all.iter().filter(has)) {
            Ok(part) => {
                let store = parts.name.clone();
                self.members[part.member].ask.tail(TailRequest { store, ..request }).await
            }
            Err(Some(two)) => Err(self.at_both(&format!("list {}", request.list), two)),
            Err(None) => Err(self.at_none(&format!("list {}", request.list), &parts)),
        }
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        match self.only() {
            Some(only) => only.read_memory(request).await,
            None => Err(refusal("memory is read of one collector at a time".into())),
        }
    }

    /// Those of all collectors that answer. The NIC told is that of the first of them.
    async fn sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        let mut all = ListSessionsResponse::default();
        let mut answers = Answers::default();
        for Member { ask, .. } in &self.members {
            let Some(told) = answers.next(ask.sessions().await)? else { continue };
            if all.device.is_empty() {
                (all.device, all.collector) = (told.device, told.collector);
            }
            all.sessions.extend(told.sessions);
        }
        answers.any()?;
        Ok(all)
    }

    /// Those of all collectors that answer.
    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        Ok(self.nodes().await?.into_iter().map(|(_, node)| node).collect())
    }
}

/// Answers of several collectors, of which one at least has to be there.
#[derive(Default)]
struct Answers {
    is_there: bool,
    away: Option<ClientError>,
}

impl Answers {
    /// The next one; nothing of a collector that is away.
    fn next<A>(&mut self, answer: Result<A, ClientError>) -> Result<Option<A>, ClientError> {
        match answer {
            Ok(answer) => {
                self.is_there = true;
                Ok(Some(answer))
            }
            Err(error) if is_away(&error) => {
                self.away = Some(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn any(self) -> Result<(), ClientError> {
        match self.away {
            Some(error) if !self.is_there => Err(error),
            _ => Ok(()),
        }
    }
}

/// Whether a collector did not answer at all.
fn is_away(error: &ClientError) -> bool {
    error.status().is_some_and(|status| status.code() == Code::Unavailable)
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;

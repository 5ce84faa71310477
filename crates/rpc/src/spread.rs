//! Several collectors that share stores, queried as one.
//!
//! Each says which buckets of keys and which lists of each store it has ([`Ask::placement`]). A query for a key goes to the
//! collector of its bucket, one for a list to the collector that has it, and one for a store on a single collector there. If one
//! does not answer, only what it alone has is missing: queries for the rest go to the others.
//!
//! Placements are cached for keys, until an answer has another version or a refusal may come from an outdated placement.
//!
//! Keys that several collectors have are asked of all of them: `replicas.rs`.
//!
//! In a cluster, collectors come and go ([`Spread::set_members`]): `everywhere.rs`, `tails.rs`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use dta_proto::buckets::{self, Copies};
use dta_proto::control::{
    self, Alert, AlertState, AlertsRequest, AlertsResponse, EntriesRequest, EpochsRequest, EpochsResponse,
    FlowsRequest, FlowsResponse, ListSessionsResponse, NodeStatistics, PlacementResponse, ReadMemoryRequest,
    ReadMemoryResponse, StoreInfo, StorePlacement, TailRequest,
};
use dta_proto::key::Key;
use dta_proto::layout::load;
use dta_proto::list_range::ListRange;
use dta_proto::store::{self, MAX_REDUNDANCY, StoreKind, StoreSpec};
use dta_proto::telemetry;
use dta_proto::wire::dta::{Addressing, Primitive, Replicas};
use futures_util::future::join_all;
use tonic::{Code, Status};

use crate::unreachable::{REST, UnreachableMembers, patiently};
use crate::{
    Ask, ClientError, KeyAnswer, Moment, QueryAnswers, Question, Series, Span, TailMessages, epochs, flows,
    tails,
};

/// One of several collectors.
#[derive(Clone)]
pub struct SpreadMember {
    /// Its address, for messages.
    pub address: String,
    /// How to query it.
    pub ask: Arc<dyn Ask>,
}

/// Several collectors, queried as one; a single one is used as it is. Clones share the collectors and the cache.
#[derive(Clone)]
pub struct Spread {
    group: Arc<Mutex<Arc<CollectorGroup>>>,
    /// The moment to use for questions about now.
    at: Moment,
}

/// The collectors at one time, and what is known about them.
pub(crate) struct CollectorGroup {
    pub(crate) members: Arc<[SpreadMember]>,
    kept: Mutex<Option<Arc<GroupPlacement>>>,
    pub(crate) away: UnreachableMembers,
}

/// What the answering collectors know about a question's keys.
#[derive(Debug)]
pub struct KnownAnswers {
    /// About the other keys, in their order.
    pub answers: QueryAnswers,
    /// The places of keys that only silent collectors have.
    pub unanswered: Vec<usize>,
    /// Why keys are unanswered, if any are.
    pub reason: Option<ClientError>,
}

impl From<QueryAnswers> for KnownAnswers {
    fn from(answers: QueryAnswers) -> Self {
        Self { answers, unanswered: Vec::new(), reason: None }
    }
}

impl KnownAnswers {
    /// From the answer about each key, if any; `reason` explains why some have none.
    pub(crate) fn from_each_key(
        of_keys: Vec<Option<KeyAnswer>>,
        reason: Option<ClientError>,
        rest: QueryAnswers,
    ) -> Result<Self, ClientError> {
        let is_unanswered = |(place, answer): (usize, &Option<KeyAnswer>)| answer.is_none().then_some(place);
        let unanswered: Vec<usize> = of_keys.iter().enumerate().filter_map(is_unanswered).collect();
        if reason.is_none() && !unanswered.is_empty() {
            return Err(fewer_keys());
        }
        let of_keys = of_keys.into_iter().flatten().collect();
        // A silent collector may have none of these keys.
        let reason = reason.filter(|_| !unanswered.is_empty());
        Ok(Self { answers: QueryAnswers { of_keys, ..rest }, unanswered, reason })
    }

    /// The answers, if there is one for each key.
    fn into_whole(self) -> Result<QueryAnswers, ClientError> {
        self.reason.map_or(Ok(self.answers), Err)
    }
}

/// What several collectors answered, each with its index.
type ByMember<T> = Vec<(usize, T)>;

/// What the answering collectors have.
pub(crate) struct GroupPlacement {
    parts: Vec<StorePart>,
    /// Whether one of the collectors is in a cluster.
    is_cluster: bool,
    /// Of each collector; 0 = the placement may change without notice, or it did not answer.
    pub(crate) versions: Vec<u64>,
    /// When each collector started, by its clock; 0 = unknown.
    pub(crate) started: Vec<u64>,
    /// Why one of the collectors did not answer, if so.
    away: Option<Status>,
    /// Until when this is kept, if one did not answer.
    until: Option<Instant>,
}

/// What is known about a store.
pub(crate) struct StoreParts<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// What each answering collector has of it; never empty.
    pub(crate) all: Vec<&'a StorePart>,
    /// Why one of the collectors did not answer, if so.
    away: Option<&'a Status>,
}

/// A part of a store.
pub(crate) struct StorePart {
    pub(crate) member: usize,
    pub(crate) spec: StoreSpec,
    /// Whether anything of the store is at this collector.
    is_here: bool,
    /// Whether an open session writes there, if that is known.
    is_written: Option<bool>,
    pub(crate) buckets: Copies,
    lists: Vec<ListRange>,
}

impl StoreParts<'_> {
    /// How many collectors have each key.
    pub(crate) fn replica_count(&self) -> usize {
        let of = |part: &&StorePart| match part.spec.kind {
            StoreKind::KeyIncrement { replicas, .. } => replicas.into(),
            _ => part.buckets.copy_count(),
        };
        self.all.iter().map(of).max().unwrap_or(1)
    }
}

/// The only one of these parts or, if there are several, the only one that is being written. `Err(None)` if there is none;
/// otherwise the error has two of them.
pub(crate) fn authoritative_part<'a>(
    have: impl Iterator<Item = &'a StorePart>,
) -> Result<&'a StorePart, Option<[&'a StorePart; 2]>> {
    let mut have: Vec<&StorePart> = have.collect();
    // Those being written first, then those where that is unknown.
    have.sort_by_key(|part| std::cmp::Reverse(part.is_written.map_or(1, |is| 2 * u8::from(is))));
    match have[..] {
        [] => Err(None),
        [only] => Ok(only),
        [a, b, ..] if (a.is_written, b.is_written) == (Some(true), Some(false)) => Ok(a),
        [a, b, ..] => Err(Some([a, b])),
    }
}

/// A member, and the places of its keys in a question.
type MemberKeys = (usize, Vec<usize>);

impl Spread {
    /// Queries these collectors, at least one.
    pub fn new(members: Vec<SpreadMember>) -> Spread {
        Spread { group: Arc::new(Mutex::new(CollectorGroup::new(members))), at: Moment::Now }
    }

    /// Sends all further queries to these collectors; with none, queries fail.
    pub fn set_members(&self, members: Vec<SpreadMember>) {
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = CollectorGroup::new(members);
    }

    fn current_group(&self) -> Arc<CollectorGroup> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The addresses of collectors that did not answer their last question, a short time ago.
    pub fn unreachable_addresses(&self) -> Vec<String> {
        let group = self.current_group();
        let is_away = |(n, _): &(usize, &SpreadMember)| group.away.unreachable_reason(*n).is_some();
        group.members.iter().enumerate().filter(is_away).map(|(_, member)| member.address.clone()).collect()
    }

    /// The same collectors, with questions about now being about this moment instead.
    pub fn at_moment(self, at: Moment) -> Spread {
        Spread { at, ..self }
    }

    /// The collectors.
    pub fn members(&self) -> Arc<[SpreadMember]> {
        self.current_group().members.clone()
    }

    /// [`Ask::statistics`]; with several collectors, their own nodes have their collector's address as session.
    ///
    /// # Errors
    /// As [`Ask::statistics`].
    pub async fn statistics_by_address(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        let group = self.current_group();
        let is_one = group.only_member().is_some();
        let with_address = |(member, mut node): (usize, NodeStatistics)| {
            if node.session.is_empty() && !is_one {
                node.session.clone_from(&group.members[member].address);
            }
            node
        };
        Ok(group.query_nodes().await?.into_iter().map(with_address).collect())
    }

    /// The stores of those collectors that answer: one of each name.
    pub async fn stores_that_answer(&self) -> Result<Vec<StoreInfo>, ClientError> {
        let group = self.current_group();
        Ok(group.merge_stores(group.query_reachable(|ask| async move { ask.fetch_stores().await }).await?))
    }

    /// [`Ask::query_keys`] of those collectors that answer: what they know, and which keys only others have.
    pub async fn query_known_keys(&self, mut question: Question) -> Result<KnownAnswers, ClientError> {
        let group = self.current_group();
        if question.at == Moment::Now {
            question.at = self.at;
        }
        if let Some(only) = group.only_member() {
            return Ok(only.query_keys(question).await?.into());
        }
        let is_fresh = |kept: &Arc<GroupPlacement>| kept.until.is_none_or(|until| Instant::now() < until);
        let kept = group.lock_placement().clone().filter(is_fresh);
        if let Some(kept) = kept {
            match group.query_by_member(&kept, &question).await {
                Ok((known, false)) if known.reason.is_none() => return Ok(known),
                Err(error) if !may_be_old(&error) => return Err(error),
                _ => {}
            }
        }
        let placement = group.fetch_placement().await?;
        Ok(group.query_by_member(&placement, &question).await?.0)
    }

    /// [`Ask::placement`] of those collectors that answer.
    pub async fn placement_that_answers(&self) -> Result<PlacementResponse, ClientError> {
        let group = self.current_group();
        Ok(group.merge_placements(group.query_reachable(|ask| async move { ask.placement().await }).await?))
    }
}

impl CollectorGroup {
    fn new(members: Vec<SpreadMember>) -> Arc<CollectorGroup> {
        let away = UnreachableMembers::all_reachable(members.len());
        Arc::new(CollectorGroup { members: members.into(), kept: Mutex::default(), away })
    }

    fn only_member(&self) -> Option<&Arc<dyn Ask>> {
        match &self.members[..] {
            [only] => Some(&only.ask),
            _ => None,
        }
    }

    /// What each answering collector returns for `ask`, and why one of the others did not answer. All are queried in parallel.
    pub(crate) async fn query_members<T, F>(
        &self,
        ask: impl Fn(Arc<dyn Ask>) -> F,
    ) -> Result<(ByMember<T>, Option<Status>), ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        self.collect_answers(join_all(self.members.iter().map(|member| ask(member.ask.clone()))).await)
    }

    /// The answers of those that answered, and why one of the others did not.
    fn collect_answers<T>(
        &self,
        answers: Vec<Result<T, ClientError>>,
    ) -> Result<(ByMember<T>, Option<Status>), ClientError> {
        if self.members.is_empty() {
            return Err(Status::unavailable("the cluster has no collectors").into());
        }
        let (mut all, mut away) = (Vec::new(), None);
        for (member, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => {
                    self.away.record_outcome(member, None);
                    all.push((member, answer));
                }
                Err(error) if is_unreachable(&error) && self.members.len() > 1 => {
                    self.away.record_outcome(member, error.status().cloned());
                    away = Some(self.is_silent(member, &error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((all, away))
    }

    /// The status that says, with its address, that a collector does not answer.
    pub(crate) fn is_silent(&self, member: usize, error: &ClientError) -> Status {
        let address = &self.members[member].address;
        Status::unavailable(format!("the collector at {address} does not answer: {error}"))
    }

    /// As [`CollectorGroup::query_members`], but at least one must answer.
    async fn query_reachable<T, F>(&self, ask: impl Fn(Arc<dyn Ask>) -> F) -> Result<ByMember<T>, ClientError>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        match self.query_members(ask).await? {
            (all, Some(away)) if all.is_empty() => Err(away.into()),
            (all, _) => Ok(all),
        }
    }

    /// Queries who has what. Caches it if all answers have a version; if some are missing but others may have the same, only for
    /// a short time.
    async fn fetch_placement(&self) -> Result<Arc<GroupPlacement>, ClientError> {
        let asked = self.members.iter().map(|member| member.ask.placement());
        let (answered, away) = self.collect_answers(patiently(asked).await)?;
        let (until, none) = (away.is_some().then(|| Instant::now() + REST), vec![0; self.members.len()]);
        let (parts, versions) = (Vec::new(), none.clone());
        let mut placement = GroupPlacement { parts, is_cluster: false, versions, started: none, away, until };
        let mut all_versioned = true;
        for (member, PlacementResponse { version, stores, started, cluster }) in answered {
            all_versioned &= version != 0;
            placement.is_cluster |= cluster != 0;
            (placement.versions[member], placement.started[member]) = (version, started);
            placement.parts.extend(stores.into_iter().filter_map(|store| parse_store_part(member, store)));
        }
        let has_replicas = placement.parts.iter().any(|part| part.buckets.copy_count() > 1);
        let placement = Arc::new(placement);
        let is_kept = all_versioned && (until.is_none() || has_replicas);
        *self.lock_placement() = is_kept.then(|| placement.clone());
        Ok(placement)
    }

    fn lock_placement(&self) -> MutexGuard<'_, Option<Arc<GroupPlacement>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The nodes of all answering collectors, each with the collector that reported it. A node that reports to several of them
    /// appears once, with its latest counters.
    async fn query_nodes(&self) -> Result<ByMember<NodeStatistics>, ClientError> {
        let mut all: ByMember<NodeStatistics> = Vec::new();
        for (member, nodes) in self.query_reachable(|ask| async move { ask.statistics().await }).await? {
            for node in nodes {
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
        Ok(all)
    }

    /// The placements of several collectors as one; a single one unchanged. The generation of a store on several collectors is
    /// the sum of theirs, so it changes when any of them gets other memory.
    fn merge_placements(&self, answers: ByMember<PlacementResponse>) -> PlacementResponse {
        let mut answers = answers.into_iter().map(|(_, answer)| answer);
        if self.only_member().is_some() {
            return answers.next().unwrap_or_default();
        }
        let (mut stores, mut newest): (Vec<StorePlacement>, u64) = (Vec::new(), 0);
        let of_answer = |answer: PlacementResponse| {
            newest = newest.max(answer.cluster);
            answer.stores
        };
        for StorePlacement { store, generation, .. } in answers.flat_map(of_answer) {
            let name = |store: &Option<control::Store>| store.as_ref().map(|store| store.name.clone());
            match stores.iter_mut().find(|known| name(&known.store) == name(&store)) {
                Some(known) => known.generation = known.generation.wrapping_add(generation),
                None => stores.push(StorePlacement { store, generation, ..StorePlacement::default() }),
            }
        }
        PlacementResponse { stores, cluster: newest, ..PlacementResponse::default() }
    }

    /// The stores of several collectors as one; those of a single one unchanged.
    fn merge_stores(&self, answered: ByMember<Vec<StoreInfo>>) -> Vec<StoreInfo> {
        let infos = answered.into_iter().flat_map(|(_, infos)| infos);
        if self.only_member().is_some() { infos.collect() } else { merge_store_infos(infos) }
    }

    /// The parts of a store at all collectors. An empty name stands for the only store of the primitive, not counting
    /// those for INT.
    fn find_store_parts<'a>(
        &self,
        placement: &'a GroupPlacement,
        name: &str,
        primitive: Primitive,
    ) -> Result<StoreParts<'a>, ClientError> {
        let GroupPlacement { parts, away, .. } = placement;
        let away = away.as_ref();
        let name: &str = match (name, away) {
            // Only all collectors together know whether it is the only one.
            ("", Some(away)) => return Err(away.clone().into()),
            ("", None) => only_name(parts, primitive)?,
            (name, _) => match store::find_store(parts.iter(), |part| &part.spec, name) {
                Some(part) => &part.spec.name,
                None => {
                    let unknown = || Status::not_found(self.unknown_store_message(name, parts));
                    return Err(away.cloned().unwrap_or_else(unknown).into());
                }
            },
        };
        let all: Vec<&StorePart> = parts.iter().filter(|part| part.spec.name == name).collect();
        if let Some(other) = all.iter().find(|part| part.spec.kind.primitive() != primitive) {
            let kind = other.spec.kind.primitive();
            return Err(invalid_argument(format!("store {name:?} is a {kind} store, not {primitive}")));
        }
        Ok(StoreParts { name, all: all.into_iter().filter(|part| part.is_here).collect(), away })
    }

    fn unknown_store_message(&self, name: &str, all: &[StorePart]) -> String {
        let mut have: Vec<&str> = all.iter().map(|part| part.spec.name.as_str()).collect();
        have.sort_unstable();
        have.dedup();
        format!("there is no store {name:?} at {}; they have {}", self.addresses(), have.join(", "))
    }

    fn addresses(&self) -> String {
        self.members.iter().map(|member| member.address.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The error for `what` being at two collectors, according to both.
    pub(crate) fn two_holders_error(&self, what: &str, parts: [&StorePart; 2]) -> ClientError {
        let [a, b] = parts.map(|part| &self.members[part.member].address);
        invalid_argument(format!(
            "{what} of store {:?} is at {a} and at {b}, according to both; if these are two stores, ask one collector at a time",
            parts[0].spec.name
        ))
    }

    /// The member to query for a key, or for a sketch, which is whole at one collector.
    fn member_of(
        &self,
        parts: &StoreParts<'_>,
        primitive: Primitive,
        key: &Key,
    ) -> Result<usize, ClientError> {
        let is_sketch = primitive.addressing() == Addressing::Column;
        let bucket = buckets::bucket_of_key(key);
        let of_replica = |n: usize| -> Result<&StorePart, Option<[&StorePart; 2]>> {
            let has = |part: &&StorePart| is_sketch || part.buckets.buckets_of_copy(n).contains(bucket);
            authoritative_part(parts.all.iter().copied().filter(has))
        };
        // If several have it, the first that answers.
        let answers = |found: &Result<&StorePart, Option<[&StorePart; 2]>>| match found {
            Ok(part) => self.away.unreachable_reason(part.member).is_none(),
            Err(claims) => claims.is_some(),
        };
        let further = (1..parts.replica_count()).map(of_replica);
        let found = std::iter::once(of_replica(0)).chain(further).find(answers);
        match found.unwrap_or_else(|| of_replica(0)) {
            Ok(part) => Ok(part.member),
            Err(Some(two)) if is_sketch => Err(self.two_holders_error("a sketch", two)),
            Err(None) if is_sketch => Err(self.no_holder_error("a sketch", parts)),
            Err(Some(two)) => Err(self.two_holders_error(&format!("bucket {bucket}"), two)),
            Err(None) => Err(self.no_holder_error(&format!("bucket {bucket}, of {key},"), parts)),
        }
    }

    /// The member that has a list.
    fn member_of_list(&self, parts: &StoreParts<'_>, list: u32) -> Result<usize, ClientError> {
        let has =
            |part: &&&StorePart| part.lists.is_empty() || part.lists.iter().any(|range| range.contains(list));
        let what = format!("list {list}");
        match authoritative_part(parts.all.iter().filter(has).copied()) {
            Ok(part) => Ok(part.member),
            Err(Some(two)) => Err(self.two_holders_error(&what, two)),
            Err(None) => Err(self.no_holder_error(&what, parts)),
        }
    }

    /// The error for something that no answering collector has.
    pub(crate) fn no_holder_error(
        &self,
        what: &str,
        StoreParts { name, away, .. }: &StoreParts<'_>,
    ) -> ClientError {
        if let Some(away) = away {
            let message = format!(
                "{what} of store {name:?} is at none of the answering collectors; {}",
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

    /// The places of the question's keys that each member has, without members that have none; and why some keys are at no
    /// answering member.
    fn keys_by_member(
        &self,
        parts: &StoreParts<'_>,
        question: &Question,
    ) -> Result<(Vec<MemberKeys>, Option<ClientError>), ClientError> {
        let mut places: Vec<MemberKeys> = (0..self.members.len()).map(|n| (n, Vec::new())).collect();
        let mut missing = None;
        for (place, key) in question.keys.iter().enumerate() {
            match self.member_of(parts, question.kind.primitive(), key) {
                Ok(member) => places[member].1.push(place),
                Err(error) if is_unreachable(&error) => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        places.retain(|(_, places)| !places.is_empty());
        Ok((places, missing))
    }

    /// Queries each member for its keys in parallel; returns what is known, and whether a member's placement has changed since
    /// `placement`.
    async fn query_by_member(
        &self,
        placement: &GroupPlacement,
        question: &Question,
    ) -> Result<(KnownAnswers, bool), ClientError> {
        let primitive = question.kind.primitive();
        let parts = self.find_store_parts(placement, &question.store, primitive)?;
        // Counts stay where they were counted.
        let is_past = question.at != Moment::Now || primitive.replicas() == Replicas::Counts;
        let everywhere = placement.is_cluster && is_past;
        if parts.replica_count() > 1 {
            return self.ask_replicas(placement, &parts, question, everywhere).await;
        }
        if everywhere {
            return Ok((self.query_all_members(&parts, question).await?.into(), false));
        }
        let (places, mut missing) = self.keys_by_member(&parts, question)?;
        let answered = join_all(places.iter().map(|(member, places)| {
            self.members[*member].ask.query_keys(sub_question(question, parts.name, places))
        }));
        let (mut of_keys, mut is_old): (Vec<Option<KeyAnswer>>, _) = (vec![None; question.keys.len()], false);
        let (mut generation, mut epochs) = (0, Vec::new());
        for ((member, mine), answers) in places.iter().zip(answered.await) {
            let answers = match answers {
                Ok(answers) => answers,
                Err(error) if is_unreachable(&error) => {
                    missing = Some(self.is_silent(*member, &error).into());
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_old |= answers.placement != placement.versions[*member];
            generation = if places.len() == 1 { answers.generation } else { 0 };
            epochs.push(answers.epoch);
            if answers.of_keys.len() != mine.len() {
                return Err(fewer_keys());
            }
            for (place, answer) in mine.iter().zip(answers.of_keys) {
                of_keys[*place] = Some(answer);
            }
        }
        let epoch = epochs::in_common(epochs);
        let rest = QueryAnswers { generation, epoch, ..QueryAnswers::default() };
        Ok((KnownAnswers::from_each_key(of_keys, missing, rest)?, is_old))
    }
}

/// A collector that leaves out keys violates the protocol.
pub(crate) fn fewer_keys() -> ClientError {
    Status::internal("a collector answered fewer keys than it was asked for").into()
}

/// A question about some of a question's keys.
pub(crate) fn sub_question(question: &Question, store: &str, places: &[usize]) -> Question {
    let keys = places.iter().map(|place| question.keys[*place]).collect();
    Question { store: store.to_owned(), keys, kind: question.kind, at: question.at }
}

pub(crate) fn invalid_argument(message: String) -> ClientError {
    Status::invalid_argument(message).into()
}

fn parse_store_part(member: usize, store: StorePlacement) -> Option<StorePart> {
    let spec = StoreSpec::try_from(store.store.as_ref()?).ok()?;
    // An empty list of ranges means everything.
    let buckets = control::copies_from_ranges(&store.buckets).ok()?;
    let lists = store.lists.into_iter().map(ListRange::from).collect();
    let is_here = store.elsewhere.is_empty();
    Some(StorePart { member, spec, is_here, is_written: store.written, buckets, lists })
}

fn only_name(all: &[StorePart], primitive: Primitive) -> Result<&str, ClientError> {
    let of_kind = |part: &&StorePart| {
        part.spec.kind.primitive() == primitive && !telemetry::is_telemetry_store(&part.spec.name)
    };
    let mut names: Vec<&str> = all.iter().filter(of_kind).map(|part| part.spec.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names[..] {
        [only] => Ok(only),
        [] => Err(Status::not_found(format!("there is no {primitive} store")).into()),
        _ => Err(invalid_argument(format!(
            "there are several {primitive} stores: name one of {}",
            names.join(", ")
        ))),
    }
}

/// One store of each name: as described by the first collector that has it, with usage summed over all that have a part of it.
fn merge_store_infos(infos: impl Iterator<Item = StoreInfo>) -> Vec<StoreInfo> {
    let name = |info: &StoreInfo| info.store.as_ref().map(|store| store.name.clone());
    let (here, elsewhere): (Vec<_>, Vec<_>) = infos.partition(|info| info.elsewhere.is_empty());
    let mut all: Vec<StoreInfo> = Vec::new();
    for info in here {
        match all.iter_mut().find(|known| name(known) == name(&info)) {
            Some(known) => {
                // A key's survival is that of the other keys at its collector.
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
                    let spec = known.store.as_ref().and_then(|store| StoreSpec::try_from(store).ok());
                    let most = spec.map_or(MAX_REDUNDANCY, |spec| spec.max_redundancy());
                    known.advised_redundancy = Some(load::advised_redundancy(known.load).min(most).into());
                }
                known.written = known.written.max(info.written);
                known.overwritten = match (known.overwritten, info.overwritten) {
                    (Some(a), Some(b)) => Some(a + b),
                    (a, b) => a.or(b),
                };
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
    /// One store of each name, with usage summed if several share it. All must answer.
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        let group = self.current_group();
        Ok(group
            .merge_stores(group.query_with_coverage(|ask| async move { ask.fetch_stores().await }, 1).await?))
    }

    /// One store of each name, which the collectors have in full together. All must answer.
    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        let group = self.current_group();
        Ok(group.merge_placements(
            group.query_with_coverage(|ask| async move { ask.placement().await }, 1).await?,
        ))
    }

    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        self.query_known_keys(question).await?.into_whole()
    }

    /// Each collector has its own epochs, with the answers for its keys. If several have a key, one is asked.
    async fn query_keys_in_span(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        let group = self.current_group();
        if let Some(only) = group.only_member() {
            return only.query_keys_in_span(question, span).await;
        }
        let placement = group.fetch_placement().await?;
        let parts = group.find_store_parts(&placement, &question.store, question.kind.primitive())?;
        if placement.is_cluster {
            return group.series_of_all(&parts, &question, span).await;
        }
        let (places, missing) = group.keys_by_member(&parts, &question)?;
        missing.map_or(Ok(()), Err)?;
        let asked = places.into_iter().map(|(member, places)| {
            group.members[member].ask.query_keys_in_span(sub_question(&question, parts.name, &places), span)
        });
        let answered = join_all(asked).await.into_iter().collect::<Result<Vec<Series>, _>>()?;
        // After the earliest end of an answer, all are asked again.
        let next = answered.iter().filter_map(|series| series.next).min();
        let is_before = |answers: &QueryAnswers| {
            answers.epoch.as_ref().is_some_and(|epoch| next.is_none_or(|next| epoch.opened < next.get()))
        };
        let epochs = answered.into_iter().flat_map(|series| series.epochs).filter(is_before);
        let mut epochs: Vec<QueryAnswers> =
            epochs.map(|answers| QueryAnswers { placement: 0, ..answers }).collect();
        epochs.sort_by_key(|answers| answers.epoch.as_ref().map(|epoch| epoch.opened));
        Ok(Series { epochs, next })
    }

    /// The epochs of each collector that has a part of the store, with its address.
    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        let group = self.current_group();
        if let Some(only) = group.only_member() {
            return only.fetch_epochs(request).await;
        }
        let placement = group.fetch_placement().await?;
        let named = store::find_store(placement.parts.iter(), |part| &part.spec, &request.store);
        let primitive = named.map_or(Primitive::KeyWrite, |part| part.spec.kind.primitive());
        let parts = group.find_store_parts(&placement, &request.store, primitive)?;
        let request = EpochsRequest { store: parts.name.to_owned(), ..request };
        if placement.is_cluster {
            return group.epochs_of_all(request, parts.replica_count()).await;
        }
        // Without the epochs of a silent collector, the list would only look complete.
        if let Some(away) = parts.away.filter(|_| parts.replica_count() == 1) {
            return Err(away.clone().into());
        }
        let asked = join_all(
            parts.all.iter().map(|part| group.members[part.member].ask.fetch_epochs(request.clone())),
        );
        let mut answered = Vec::new();
        for (part, answer) in parts.all.iter().zip(asked.await) {
            answered.push((group.members[part.member].address.as_str(), answer?));
        }
        Ok(epochs::merge_epoch_lists(answered))
    }

    async fn tail_list(&self, request: TailRequest) -> Result<TailMessages, ClientError> {
        let group = self.current_group();
        // Followed lists have no version that would reveal an outdated cached placement.
        let placement = match (group.only_member(), group.fetch_placement().await) {
            (None, placement) => placement?,
            // A cluster may have a single collector for now.
            (Some(_), Ok(placement)) if placement.is_cluster => placement,
            (Some(only), _) => return only.tail_list(request).await,
        };
        let parts = group.find_store_parts(&placement, &request.store, Primitive::Append)?;
        let member = &group.members[group.member_of_list(&parts, request.list)?];
        let request = TailRequest { store: parts.name.to_owned(), ..request };
        // Sequences belong to one collector, but all begin with 1.
        match (placement.is_cluster, request.from_sequence, request.until_caught_up) {
            (true, 0, false) => tails::follow_list(self.clone(), request, member.address.clone()).await,
            (true, 0 | 1, true) => Ok(tails::read_list_once(self, request, member.address.clone())),
            _ => member.ask.tail_list(request).await,
        }
    }

    async fn stream_entries(&self, request: EntriesRequest) -> Result<TailMessages, ClientError> {
        let group = self.current_group();
        if let Some(only) = group.only_member() {
            return only.stream_entries(request).await;
        }
        let placement = group.fetch_placement().await?;
        let parts = group.find_store_parts(&placement, &request.store, Primitive::Append)?;
        let request = EntriesRequest { store: parts.name.to_owned(), ..request };
        if placement.is_cluster {
            return group.entries_of_all(request).await;
        }
        let member = group.member_of_list(&parts, request.list)?;
        group.members[member].ask.stream_entries(request).await
    }

    /// The flows of those that answer; the others are named. A collector without the store has no records.
    async fn fetch_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        let group = &self.current_group();
        if let Some(only) = group.only_member() {
            return only.fetch_flows(request).await;
        }
        let fetch = |request: FlowsRequest| async move {
            let ask = |ask: Arc<dyn Ask>| {
                let request = request.clone();
                async move {
                    match ask.fetch_flows(request).await {
                        Err(error) if is_not_found(&error) => Ok(Err(error)),
                        answered => answered.map(Ok),
                    }
                }
            };
            let (mut responses, mut without_store) = (Vec::new(), None);
            let mut unreachable: Vec<String> =
                group.members.iter().map(|member| member.address.clone()).collect();
            for (member, answered) in group.query_reachable(ask).await? {
                unreachable.retain(|address| *address != group.members[member].address);
                match answered {
                    Ok(response) => responses.push(response),
                    Err(error) => without_store = Some(error),
                }
            }
            match without_store {
                Some(error) if responses.is_empty() => Err(error),
                _ => Ok((responses, unreachable)),
            }
        };
        flows::merge_answers(&request, fetch).await
    }

    /// The alerts of those that answer. Without a cluster, several collectors' transitions are ordered only by their times.
    async fn fetch_alerts(&self, request: AlertsRequest) -> Result<AlertsResponse, ClientError> {
        let group = self.current_group();
        if let Some(only) = group.only_member() {
            return only.fetch_alerts(request).await;
        }
        let mut all = AlertsResponse::default();
        for (_, answered) in
            group.query_reachable(|ask| async move { ask.fetch_alerts(request).await }).await?
        {
            all.alerts.extend(answered.alerts);
            all.transitions.extend(answered.transitions);
            all.rules = all.rules.max(answered.rules);
        }
        // If several see the same condition, it is one alert: the one that has lasted longest.
        all.alerts.sort_by(|a, b| {
            let [a, b] = [a, b].map(|alert| (&alert.fingerprint, &alert.state, alert.since));
            a.cmp(&b)
        });
        all.alerts.dedup_by(|a, b| a.fingerprint == b.fingerprint && a.state == b.state);
        all.alerts.sort_by_key(rank_for_people);
        all.transitions.sort_by_key(|transition| (transition.at, transition.number));
        // In a cluster, each collector has the same transitions.
        all.transitions.dedup();
        let surplus = all.transitions.len().saturating_sub(request.most as usize);
        all.transitions.drain(..surplus);
        Ok(all)
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        let group = self.current_group();
        match group.only_member() {
            Some(only) => only.read_memory(request).await,
            None => Err(invalid_argument("memory can be read from one collector at a time".into())),
        }
    }

    /// The sessions of all collectors that answer. The NIC is that of the first one.
    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        let group = self.current_group();
        let mut all = ListSessionsResponse::default();
        for (_, answered) in group.query_reachable(|ask| async move { ask.fetch_sessions().await }).await? {
            if all.device.is_empty() {
                (all.device, all.collector) = (answered.device, answered.collector);
            }
            all.sessions.extend(answered.sessions);
        }
        Ok(all)
    }

    /// The nodes of all collectors that answer.
    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        let group = self.current_group();
        Ok(group.query_nodes().await?.into_iter().map(|(_, node)| node).collect())
    }
}

/// The order in which people see alerts: by state, then severity, then age.
fn rank_for_people(alert: &Alert) -> (usize, usize, u64) {
    let position =
        |order: [&str; 3], name: &str| order.into_iter().position(|known| known == name).unwrap_or(3);
    let states = [AlertState::Firing, AlertState::Pending, AlertState::Resolved];
    let state = position(states.map(AlertState::name), &alert.state);
    (state, position(["critical", "warning", "info"], &alert.severity), alert.since)
}

/// Whether a collector did not answer at all.
pub(crate) fn is_unreachable(error: &ClientError) -> bool {
    error.status().is_some_and(|status| status.code() == Code::Unavailable)
}

/// Whether a collector does not have what it was asked about.
fn is_not_found(error: &ClientError) -> bool {
    error.status().is_some_and(|status| status.code() == Code::NotFound)
}

/// Whether a collector has nothing for the moment that it was asked about.
pub(crate) fn is_not_kept(error: &ClientError) -> bool {
    error.status().is_some_and(|status| status.code() == Code::OutOfRange)
}

/// Whether a refusal may come from an outdated placement.
fn may_be_old(error: &ClientError) -> bool {
    use Code::{FailedPrecondition, InvalidArgument, NotFound, Unavailable};
    let codes = [FailedPrecondition, InvalidArgument, NotFound, Unavailable];
    error.status().is_some_and(|status| codes.contains(&status.code()))
}

#[cfg(test)]
#[path = "spread_tests.rs"]
mod tests;

//! Several made-up collectors, each of which says what it has.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dta_proto::control::{
    AlertTransition, CounterAnswer, Epoch, KeyWriteAnswer, Policy, TailResponse, bucket_ranges,
};
use dta_proto::flow_query::{FlowQuestion, FlowSum, FlowTally, ScanCounts};
use dta_proto::flow_record::FlowRecord;
use dta_proto::layout::key_increment::{CountingRole, total_count};
use dta_proto::store::{Merge, StoreKind};
use tokio::sync::Barrier;

use super::*;
use crate::{AskKeys, QuestionKind};

/// A collector that answers with its own number. Clones are the same one.
#[derive(Clone, Default)]
struct Fake {
    number: u8,
    stores: Vec<StoreInfo>,
    /// The version of its placement.
    version: u64,
    /// The version of the cluster.
    cluster: u64,
    /// Newest first, two in each answer.
    epochs: Vec<Epoch>,
    is_away: bool,
    /// What it has counted for each key, by colour; without colours, nothing for the last key.
    counts: Vec<u64>,
    alerts: AlertsResponse,
    /// How often it was asked for its stores and for its placement.
    asked: Arc<[AtomicU32; 2]>,
    /// Where queries of keys wait for each other.
    together: Option<Arc<Barrier>>,
}

impl Fake {
    fn there<A>(&self, answer: A) -> Result<A, ClientError> {
        if self.is_away {
            return Err(Status::unavailable("nobody is there").into());
        }
        Ok(answer)
    }

    fn refuses<A>(&self) -> Result<A, ClientError> {
        Err(Status::internal(format!("{} was asked", self.number)).into())
    }
}

#[tonic::async_trait]
impl Ask for Fake {
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        self.asked[0].fetch_add(1, Ordering::Relaxed);
        self.there(self.stores.clone())
    }

    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        self.asked[1].fetch_add(1, Ordering::Relaxed);
        let placement = |info: StoreInfo| {
            let StoreInfo { store, buckets, lists, elsewhere, written, generation, .. } = info;
            StorePlacement { store, buckets, lists, elsewhere, written, generation }
        };
        let stores = self.stores.iter().cloned().map(placement).collect();
        let (version, cluster, started) = (self.version, self.cluster, self.number.into());
        self.there(PlacementResponse { version, stores, started, cluster })
    }

    async fn query_keys(&self, question: Question) -> Result<QueryAnswers, ClientError> {
        if let Some(together) = &self.together {
            together.wait().await;
        }
        let keys = question.keys.iter().map(|key| key.0.to_vec());
        let mut of_keys: Vec<KeyAnswer> = match question.kind {
            QuestionKind::KeyWrite { .. } => {
                let value = Some(vec![self.number]);
                let answer = |key| KeyWriteAnswer { key, value: value.clone(), ..KeyWriteAnswer::default() };
                keys.map(|key| answer(key).into()).collect()
            }
            QuestionKind::KeyIncrement => {
                let value = total_count(&self.counts);
                keys.map(|key| CounterAnswer { key, value, by_colour: self.counts.clone() }.into()).collect()
            }
            _ => return self.refuses(),
        };
        if question.kind == QuestionKind::KeyIncrement && self.counts.is_empty() {
            // This collector forgets the last key.
            of_keys.pop();
        }
        let epoch = self.epochs.first().cloned();
        self.there(QueryAnswers { of_keys, generation: 3, placement: self.version, epoch })
    }

    /// Each of its epochs, two in each answer.
    async fn query_keys_in_span(&self, question: Question, span: Span) -> Result<Series, ClientError> {
        let all: Vec<Epoch> = self.epochs.iter().rev().cloned().collect();
        let first = all.partition_point(|epoch| epoch.opened <= span.since).saturating_sub(1);
        let mut epochs = Vec::new();
        for epoch in all.iter().skip(first).take(2) {
            epochs.push(QueryAnswers {
                epoch: Some(epoch.clone()),
                ..self.query_keys(question.clone()).await?
            });
        }
        let next = all.get(first + 2).and_then(|epoch| NonZeroU64::new(epoch.opened));
        self.there(Series { epochs, next })
    }

    async fn fetch_epochs(&self, request: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        let first = self.epochs.partition_point(|epoch| request.until != 0 && epoch.opened >= request.until);
        let epochs: Vec<Epoch> = self.epochs[first..].iter().take(2).cloned().collect();
        let older = if self.epochs.len() > first + 2 { epochs[1].opened } else { 0 };
        self.there(EpochsResponse { epochs, older })
    }

    async fn tail_list(&self, _: TailRequest) -> Result<TailMessages, ClientError> {
        self.refuses()
    }

    /// An entry with its number in each of its epochs, oldest first.
    async fn stream_entries(&self, _: EntriesRequest) -> Result<TailMessages, ClientError> {
        if self.epochs.is_empty() {
            return self.refuses();
        }
        let messages = self.epochs.clone().into_iter().rev().flat_map(|epoch| {
            let epoch = TailResponse { epoch: Some(epoch), ..TailResponse::default() };
            [epoch, TailResponse { entries: vec![vec![self.number]], ..TailResponse::default() }]
        });
        let messages: Vec<_> = messages.map(Ok).collect();
        self.there(TailMessages::new(tokio_stream::iter(messages)))
    }

    /// A record of as many bytes as its number; number 0 has no such store.
    async fn fetch_flows(&self, request: FlowsRequest) -> Result<FlowsResponse, ClientError> {
        let mut tally = FlowTally::new(flows::parse_request(&request)?, request.per_flow);
        let record = FlowRecord { bytes: self.number.into(), ..FlowRecord::EMPTY };
        tally.add_entries([&record.to_entry()[..]]);
        let answer = flows::answer_request(&request, tally, ScanCounts::default());
        let has_store = self.is_away || self.number != 0;
        self.there(if has_store { answer } else { Err(Status::not_found("no such store").into()) })?
    }

    async fn fetch_alerts(&self, _: AlertsRequest) -> Result<AlertsResponse, ClientError> {
        self.there(self.alerts.clone())
    }

    async fn read_memory(&self, _: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.refuses()
    }

    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        self.refuses()
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        let node = |node: &str, session: &str| NodeStatistics {
            node: node.into(),
            session: session.into(),
            age_seconds: (5 - self.number).into(),
            life: 7,
            ..NodeStatistics::default()
        };
        self.there(vec![node("nic/test", ""), node("translator/leaf", "leaf")])
    }
}

fn store(id: u16, name: &str, kind: StoreKind) -> StoreInfo {
    let spec = StoreSpec { id, name: name.into(), kind };
    StoreInfo { store: Some((&spec).into()), used: 10, capacity: 100, length: 1000, ..StoreInfo::default() }
}

/// A collector with these buckets, the lists from `first` on, and the sketch if no other has it.
fn fake(number: u8, buckets: &str, first: u32, sketch_at: &str) -> Fake {
    let buckets = bucket_ranges(&buckets.parse().unwrap());
    let lists = vec![ListRange { store: "events".into(), first, count: 4 }.into()];
    let append = StoreKind::Append { lists: 8, ring: 64, batch_len: 32, entry_len: 8, notify: false };
    let sketch = StoreKind::SketchMerge { columns: 4, rows: 2, epochs: 2, merge: Merge::Sum, expected: 1 };
    let stores = vec![
        StoreInfo {
            buckets: buckets.clone(),
            ..store(
                1,
                "flows",
                StoreKind::KeyWrite { slots: 64, value_len: 4, redundancy: 2, keys: Default::default() },
            )
        },
        StoreInfo { lists, ..store(2, "events", append) },
        StoreInfo {
            buckets,
            ..store(3, "counts", StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 1 })
        },
        StoreInfo { elsewhere: sketch_at.into(), ..store(4, "sketch", sketch) },
    ];
    Fake { number, stores, ..Fake::default() }
}

fn spread(fakes: &[Fake]) -> Spread {
    let member =
        |fake: &Fake| SpreadMember { address: format!("{}:1", fake.number), ask: Arc::new(fake.clone()) };
    Spread::new(fakes.iter().map(member).collect())
}

/// Other members in place of these, with what was learned from the old ones.
fn with_members(of: &Spread, fakes: &[Fake]) -> Spread {
    let other = spread(fakes);
    *other.current_group().lock_placement() = of.current_group().lock_placement().clone();
    other
}

fn keys() -> Vec<Key> {
    (0..64u8).map(|n| Key([n; 16])).collect()
}

/// The collector that answered for each key.
async fn asked(spread: &Spread, store: &str, keys: &[Key]) -> Result<Vec<u8>, String> {
    let answers = spread.key_write(store, keys, Policy::First, 0).await.map_err(|e| e.to_string())?;
    assert!(answers.iter().zip(keys).all(|(answer, key)| answer.key == key.0));
    Ok(answers.into_iter().map(|answer| answer.value.unwrap()[0]).collect())
}

async fn refusal<A>(answer: impl Future<Output = Result<A, ClientError>>) -> String {
    answer.await.err().expect("it is refused").to_string()
}

#[tokio::test]
async fn each_key_list_and_sketch_is_asked_where_it_is() {
    let (a, b) = (fake(1, "0-99", 0, ""), fake(2, "100-255", 4, "1:1"));
    let keys = keys();
    let expected: Vec<u8> =
        keys.iter().map(|key| if buckets::bucket_of_key(key) < 100 { 1 } else { 2 }).collect();
    assert!(expected.contains(&1) && expected.contains(&2));
    for order in [[a.clone(), b.clone()], [b.clone(), a.clone()]] {
        let both = spread(&order);
        for name in ["", "flows", "1"] {
            assert_eq!(asked(&both, name, &keys).await, Ok(expected.clone()));
        }
        for (list, number) in [(0, 1), (3, 1), (4, 2), (7, 2)] {
            let request = TailRequest { store: "events".into(), list, ..TailRequest::default() };
            assert!(refusal(both.tail_list(request)).await.contains(&format!("{number} was asked")));
            let request = EntriesRequest { store: "events".into(), list, ..EntriesRequest::default() };
            assert!(refusal(both.stream_entries(request)).await.contains(&format!("{number} was asked")));
        }
        assert!(refusal(both.query_sketches("", &keys[..1], 0)).await.contains("1 was asked"));
        let stores = both.fetch_stores().await.unwrap();
        assert_eq!(stores.iter().map(|info| info.used).collect::<Vec<_>>(), [20, 20, 20, 10]);
        assert!(stores[3].elsewhere.is_empty());
    }
    // A translator that reports its counters to both appears once, with the latest.
    let by_address = spread(&[a.clone(), b.clone()]).statistics_by_address().await.unwrap();
    let sessions = by_address.iter().map(|node| node.session.as_str()).collect::<Vec<_>>();
    assert_eq!((sessions[0], sessions[2]), ("1:1", "2:1"));
    let nodes = spread(&[a, b.clone()]).statistics().await.unwrap();
    let ages = nodes.iter().map(|node| (node.node.as_str(), node.age_seconds)).collect::<Vec<_>>();
    assert_eq!(ages, [("nic/test", 4.0), ("translator/leaf", 3.0), ("nic/test", 3.0)]);
    // A single collector is queried directly, whatever it has.
    assert_eq!(asked(&spread(&[b]), "flows", &keys).await, Ok(vec![2; keys.len()]));
}

#[test]
fn a_store_that_is_shared_survives_as_its_parts_do() {
    let info = |used, survival, advised_redundancy| StoreInfo {
        used,
        capacity: 1000,
        survival,
        advised_redundancy,
        ..StoreInfo::default()
    };
    let whole = merge_store_infos([info(300, Some(0.9), Some(3)), info(100, Some(0.5), Some(4))].into_iter());
    assert_eq!((whole.len(), whole[0].used, whole[0].capacity, whole[0].load), (1, 400, 2000, 0.2));
    assert!((whole[0].survival.unwrap() - 0.8).abs() < 1e-9);
    let advised = dta_proto::layout::load::advised_redundancy(0.2);
    assert_eq!(whole[0].advised_redundancy, Some(advised.into()));
    // Lists have neither.
    let turned = |used, overwritten| StoreInfo { overwritten, ..info(used, None, None) };
    let lists = merge_store_infos([turned(3, Some(40)), turned(0, Some(2))].into_iter());
    assert_eq!((lists[0].used, lists[0].survival, lists[0].advised_redundancy), (3, None, None));
    assert_eq!((lists[0].overwritten, whole[0].overwritten), (Some(42), None));
}

#[tokio::test]
async fn of_two_that_say_to_have_a_key_the_one_that_is_written_to_has_it() {
    let keys = keys();
    let fake = |number, written| {
        let mut fake = fake(number, "0-255", 0, "");
        fake.stores.iter_mut().for_each(|store| store.written = written);
        fake
    };
    let (whole, spread_once) = (fake(1, Some(false)), fake(2, Some(true)));
    for order in [[whole.clone(), spread_once.clone()], [spread_once.clone(), whole.clone()]] {
        let both = spread(&order);
        assert_eq!(asked(&both, "flows", &keys).await, Ok(vec![2; keys.len()]));
        let list = TailRequest { store: "events".into(), list: 1, ..TailRequest::default() };
        assert!(refusal(both.tail_list(list)).await.contains("2 was asked"));
        assert!(refusal(both.query_sketches("", &keys[..1], 0)).await.contains("2 was asked"));
    }
    // A collector that does not say whether it is being written to may be.
    let unsaid = fake(1, None);
    for others in [vec![whole.clone()], vec![spread_once.clone()], vec![spread_once, whole]] {
        let all = spread(&[others, vec![unsaid.clone()]].concat());
        assert!(asked(&all, "flows", &keys).await.unwrap_err().contains("according to both"));
    }
}

#[tokio::test]
async fn who_has_what_is_asked_once_until_an_answer_says_that_it_is_old() {
    let keys = keys();
    let versioned = |number, buckets, version| Fake { version, ..fake(number, buckets, 0, "") };
    let (mut a, mut b) = (versioned(1, "0-99", 5), versioned(2, "100-255", 7));
    let counts = [a.asked.clone(), b.asked.clone()];
    let asked_for = |of: usize| counts.each_ref().map(|counts| counts[of].load(Ordering::Relaxed));
    let both = spread(&[a.clone(), b.clone()]);
    let of_a =
        |limit: u8| keys.iter().map(|key| if buckets::bucket_of_key(key) < limit { 1 } else { 2 }).collect();
    for _ in 0..5 {
        assert_eq!(asked(&both.clone(), "flows", &keys).await, Ok(of_a(100)));
    }
    assert_eq!((asked_for(0), asked_for(1)), ([0, 0], [1, 1]));

    // Their placement changes: a caller with a cached placement asks again, once.
    (a, b) = (
        Fake { asked: a.asked, ..versioned(1, "0-199", 6) },
        Fake { asked: b.asked, ..versioned(2, "200-255", 8) },
    );
    let later = with_members(&both, &[a.clone(), b]);
    for _ in 0..5 {
        assert_eq!(asked(&later, "flows", &keys).await, Ok(of_a(200)));
    }
    assert_eq!((asked_for(0), asked_for(1)), ([0, 0], [2, 2]));

    // What a collector that is down had is asked of the one that has it now; this is not cached.
    let whole = Fake { asked: counts[1].clone(), ..versioned(2, "0-255", 9) };
    let later = with_members(&later, &[Fake { is_away: true, ..a }, whole]);
    for _ in 0..2 {
        assert_eq!(asked(&later, "flows", &keys).await, Ok(vec![2; keys.len()]));
    }
    assert_eq!((asked_for(0), asked_for(1)), ([0, 0], [4, 4]));
}

#[tokio::test]
async fn in_a_cluster_collectors_come_and_go_and_what_moved_is_asked_of_all() {
    let of_cluster = |number, buckets| Fake { version: 5, cluster: 3, ..fake(number, buckets, 0, "") };
    let cluster = spread(&[of_cluster(1, "0-99"), of_cluster(2, "100-255")]);
    let becomes = |fakes: &[Fake]| cluster.set_members(spread(fakes).members().to_vec());
    let keys = keys();
    let both: Vec<u8> =
        keys.iter().map(|key| if buckets::bucket_of_key(key) < 100 { 1 } else { 2 }).collect();
    assert_eq!(asked(&cluster, "flows", &keys).await, Ok(both));
    // For a past moment, all are asked. Each answers, and the first one's value is taken.
    let past = cluster.clone().at_moment(Moment::UnixMillis(NonZeroU64::new(7).unwrap()));
    assert_eq!(asked(&past, "flows", &keys).await, Ok(vec![1; keys.len()]));
    // A collector that was down says what it had before.
    let since = |opened, fake| Fake { epochs: vec![Epoch { opened, ..Epoch::default() }], ..fake };
    becomes(&[since(3000, of_cluster(1, "0-99")), since(9000, of_cluster(2, "100-255"))]);
    assert_eq!(asked(&past, "flows", &keys).await, Ok(vec![2; keys.len()]));
    // One collector comes, another goes.
    becomes(&[of_cluster(2, "0-199"), of_cluster(3, "200-255")]);
    let others: Vec<u8> =
        keys.iter().map(|key| if buckets::bucket_of_key(key) < 200 { 2 } else { 3 }).collect();
    assert_eq!(asked(&cluster, "flows", &keys).await, Ok(others));
    // Counters need all collectors.
    becomes(&[of_cluster(2, "0-255"), Fake { is_away: true, ..of_cluster(3, "0-255") }]);
    assert!(
        refusal(cluster.query_counters("counts", &keys)).await.contains("collector at 3:1 does not answer")
    );
    becomes(&[]);
    assert!(refusal(cluster.query_counters("counts", &keys)).await.contains("the cluster has no collectors"));
}

#[tokio::test]
async fn in_a_cluster_the_past_is_asked_of_all_and_in_order() {
    let of_cluster = |number, buckets, opened: &[u64]| {
        let epoch = |opened: &u64| Epoch {
            opened: *opened,
            flipped_from: *opened + 60_000,
            flipped_to: *opened + 60_000,
            ..Epoch::default()
        };
        let epochs = opened.iter().map(epoch).collect();
        Fake { version: 5, cluster: 3, epochs, ..fake(number, buckets, 0, "") }
    };
    // The second one has nothing any more.
    let a = of_cluster(1, "0-255", &[240_020, 180_000, 120_020]);
    let mut b = of_cluster(2, "0-255", &[180_010, 120_000, 60_000]);
    b.stores.iter_mut().for_each(|store| store.elsewhere = "1:1".into());
    let both = spread(&[a, b.clone()]);
    let epochs = both.all_epochs("flows", 0, 0).await.unwrap();
    let listed: Vec<_> = epochs.iter().map(|epoch| (epoch.opened, epoch.collector.as_str())).collect();
    let all = [(240_020, "1:1"), (180_010, "2:1"), (180_000, "1:1"), (120_020, "1:1"), (120_000, "2:1")];
    assert_eq!(listed, [all.as_slice(), &[(60_000, "2:1")]].concat());
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let series = both.series_of::<KeyWriteAnswer>("flows", &keys(), kind, Span::default()).await.unwrap();
    let answered: Vec<_> = series
        .iter()
        .map(|(epoch, answers)| (epoch.opened, answers[0].value.as_ref().unwrap()[0], answers.len()))
        .collect();
    let all = [(60_000, 2), (120_020, 2), (180_010, 1), (240_020, 1)];
    assert_eq!(answered, all.map(|(opened, number)| (opened, number, keys().len())));
    let request = EntriesRequest { store: "events".into(), list: 1, ..EntriesRequest::default() };
    let (mut entries, mut found, mut of) =
        (both.stream_entries(request.clone()).await.unwrap(), Vec::new(), 0);
    while let Some(message) = entries.next_message().await.unwrap() {
        of = message.epoch.map_or(of, |epoch| epoch.opened);
        found.extend(message.entries.iter().map(|entry| (of, entry[0])));
    }
    let all = [(60_000, 2), (120_000, 2), (120_020, 1), (180_000, 1), (180_010, 2), (240_020, 1)];
    assert_eq!(found, all);
    // What a silent collector has may be missing.
    let some = spread(&[Fake { is_away: true, ..of_cluster(1, "0-255", &[60_000]) }, b]);
    assert!(
        refusal_of(some.stream_entries(request).await.map(drop)).contains("collector at 1:1 does not answer")
    );
    let refused = some.series_of::<KeyWriteAnswer>("flows", &keys(), kind, Span::default()).await;
    assert!(refusal_of(refused.map(drop)).contains("collector at 1:1 does not answer"));
}

fn refusal_of(answer: Result<(), ClientError>) -> String {
    answer.unwrap_err().to_string()
}

#[tokio::test]
async fn collectors_are_asked_side_by_side() {
    let together = Some(Arc::new(Barrier::new(2)));
    let fakes = [fake(1, "0-99", 0, ""), fake(2, "100-255", 4, "")];
    let both = spread(&fakes.map(|fake| Fake { together: together.clone(), ..fake }));
    let keys = keys();
    let asking = both.key_write("flows", &keys, Policy::First, 0);
    let answered = tokio::time::timeout(Duration::from_secs(60), asking);
    assert_eq!(answered.await.expect("one waits for the other").unwrap().len(), 64);
}

#[tokio::test]
async fn what_two_or_none_have_is_refused_in_words() {
    let keys = keys();
    let both = spread(&[fake(1, "0-200", 0, ""), fake(2, "100-255", 2, "")]);
    let refused = asked(&both, "flows", &keys).await.unwrap_err();
    assert!(refused.contains("is at 1:1 and at 2:1") && refused.contains("bucket"), "{refused}");
    let list = |list| TailRequest { store: "events".into(), list, ..TailRequest::default() };
    assert!(
        refusal(both.tail_list(list(3))).await.contains("list 3 of store \"events\" is at 1:1 and at 2:1")
    );
    assert!(
        refusal(both.tail_list(list(6))).await.contains("list 6 of store \"events\" is at none of 1:1, 2:1")
    );
    assert!(refusal(both.query_sketches("", &keys[..1], 0)).await.contains("a sketch"));
    let holes = spread(&[fake(1, "0-99", 0, ""), fake(2, "128-255", 4, "1:1")]);
    let refused = asked(&holes, "flows", &keys).await.unwrap_err();
    assert!(refused.contains("at none of 1:1, 2:1") && refused.contains("--collector A,B"), "{refused}");
    let refused = asked(&both, "others", &keys).await.unwrap_err();
    assert!(refused.contains("counts, events, flows, sketch"), "{refused}");
    assert!(asked(&both, "events", &keys).await.unwrap_err().contains("append"));
    // An answer that lacks a key is no answer.
    let whole = spread(&[fake(1, "0-99", 0, ""), fake(2, "100-255", 4, "1:1")]);
    assert!(refusal(whole.query_counters("counts", &keys[..1])).await.contains("fewer keys"));
}

#[tokio::test]
async fn a_collector_that_is_away_is_missed_by_what_it_has_alone() {
    let away = Fake { is_away: true, ..fake(2, "128-255", 4, "1:1") };
    let both = spread(&[fake(1, "0-127", 0, ""), away.clone()]);
    let (here, there): (Vec<Key>, Vec<Key>) =
        keys().into_iter().partition(|key| buckets::bucket_of_key(key) < 128);
    assert_eq!(asked(&both, "flows", &here).await, Ok(vec![1; here.len()]));
    for (store, keys) in [("flows", &there), ("", &here), ("others", &here)] {
        let refused = asked(&both, store, keys).await.unwrap_err();
        assert!(refused.contains("collector at 2:1 does not answer"), "{refused}");
    }
    assert_eq!(both.stores_that_answer().await.unwrap().len(), 4);
    assert_eq!(both.placement_that_answers().await.unwrap().stores.len(), 4);
    assert!(both.placement().await.unwrap_err().to_string().contains("collector at 2:1 does not answer"));
    assert!(
        both.fetch_stores().await.is_err()
            && spread(&[away.clone(), away]).stores_that_answer().await.is_err()
    );
}

#[tokio::test]
async fn what_is_known_comes_with_what_is_missing() {
    let a = fake(1, "0-99", 0, "");
    let b = Fake { is_away: true, ..fake(2, "100-255", 4, "1:1") };
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let keys = keys();
    let is_known = |place: &usize| buckets::bucket_of_key(&keys[*place]) < 100;
    let (known, unknown): (Vec<usize>, Vec<usize>) = (0..keys.len()).partition(is_known);
    let all_there = spread(&[a.clone(), fake(2, "100-255", 4, "1:1")]);
    asked(&all_there, "flows", &keys).await.unwrap();
    // Whether it was away when asked what it has, or only when asked for the keys.
    for both in [spread(&[a.clone(), b.clone()]), with_members(&all_there, &[a.clone(), b.clone()])] {
        let partial = both.query_known_keys(Question::now("flows", keys.clone(), kind)).await.unwrap();
        assert_eq!(partial.unanswered, unknown);
        let expected: Vec<&[u8]> = known.iter().map(|place| &keys[*place].0[..]).collect();
        assert_eq!(partial.answers.of_keys.iter().map(KeyAnswer::key).collect::<Vec<_>>(), expected);
        let reason = partial.reason.unwrap().to_string();
        assert!(reason.contains("the collector at 2:1 does not answer"), "{reason}");
        // A caller that wants all is refused.
        assert!(both.query_keys(Question::now("flows", keys.clone(), kind)).await.is_err());
        let mine: Vec<Key> = known.iter().map(|place| keys[*place]).collect();
        let partial = both.query_known_keys(Question::now("flows", mine, kind)).await.unwrap();
        assert!(partial.unanswered.is_empty() && partial.reason.is_none());
    }
    // The same with keys that two of three collectors have: there, both must be away.
    let away = |fake: Fake| Fake { is_away: true, ..fake };
    let replicas = [
        away(replica(1, ["0-99", "100-199"])),
        replica(2, ["100-199", "200-255"]),
        away(replica(3, ["200-255", "0-99"])),
    ];
    let partial =
        spread(&replicas).query_known_keys(Question::now("flows", keys.clone(), kind)).await.unwrap();
    assert_eq!((partial.unanswered, partial.reason.is_some()), (known, true));
}

#[tokio::test]
async fn other_memory_at_any_collector_is_another_generation() {
    let of = |generations: [u64; 2]| async move {
        let mut members = [fake(1, "0-127", 0, ""), fake(2, "128-255", 4, "1:1")];
        for (member, generation) in members.iter_mut().zip(generations) {
            member.stores.iter_mut().for_each(|store| store.generation = generation);
        }
        spread(&members).placement().await.unwrap().stores[0].generation
    };
    assert_eq!((of([1, 1]).await, of([2, 1]).await, of([1, 2]).await), (2, 3, 3));
}

#[tokio::test]
async fn epochs_of_all_collectors_are_listed_and_answers_name_what_they_have_in_common() {
    let with = |fake: Fake, opened: &[u64]| {
        let epoch = |opened: &u64| Epoch { generation: 1, opened: *opened, ..Epoch::default() };
        Fake { epochs: opened.iter().map(epoch).collect(), ..fake }
    };
    let a = with(fake(1, "0-127", 0, ""), &[181, 121, 61]);
    let b = with(fake(2, "128-255", 4, ""), &[180, 120, 60, 30]);
    let both = spread(&[a, b.clone()]);
    let epochs = both.all_epochs("flows", 0, 0).await.unwrap();
    let listed: Vec<_> = epochs.iter().map(|epoch| (epoch.opened, epoch.collector.as_str())).collect();
    let of_a = [181, 121, 61].map(|opened| (opened, "1:1"));
    let mut all: Vec<_> = [180, 120, 60, 30].map(|opened| (opened, "2:1")).into_iter().chain(of_a).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(listed, all);
    let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
    let epoch = both.query_keys(Question::now("flows", keys(), kind)).await.unwrap().epoch.unwrap();
    assert_eq!((epoch.opened, epoch.generation), (181, 0));
    // A series has each epoch of each collector once, though both continue with each answer.
    let series = both.series_of::<KeyWriteAnswer>("flows", &keys(), kind, Span::default()).await.unwrap();
    let answered: Vec<_> = series
        .iter()
        .map(|(epoch, answers)| (epoch.opened, answers[0].value.as_ref().unwrap()[0], answers.len()))
        .collect();
    let here = keys().iter().filter(|key| buckets::bucket_of_key(key) < 128).count();
    let mut all: Vec<_> = [30, 60, 120, 180].map(|opened| (opened, 2, keys().len() - here)).into();
    all.extend([61, 121, 181].map(|opened| (opened, 1, here)));
    all.sort_unstable();
    assert_eq!(answered, all);
    // A silent collector may have more of them.
    let away = Fake { is_away: true, ..fake(1, "0-127", 0, "") };
    let refused = spread(&[away, b]).all_epochs("flows", 0, 0).await.unwrap_err();
    assert!(refused.to_string().contains("collector at 1:1 does not answer"), "{refused}");
    let refused = both.all_epochs("others", 0, 0).await.unwrap_err();
    assert!(refused.to_string().contains("there is no store"), "{refused}");
}

/// A collector with these buckets by copy in `flows`.
fn replica(number: u8, copies: [&str; 2]) -> Fake {
    let mut fake = Fake { version: 5, ..fake(number, "0-255", 0, "") };
    let copies = copies.map(|text| text.parse().unwrap()).into_iter().collect();
    fake.stores[0].buckets = bucket_ranges(&copies);
    fake
}

#[tokio::test]
async fn copies_at_two_collectors_are_weighed_together_and_one_may_be_away() {
    let keys = keys();
    let (late, early) = (replica(2, ["0-127", "128-255"]), replica(1, ["128-255", "0-127"]));
    let both = spread(&[late.clone(), early.clone()]);
    let common_answer = async |all: &Spread, policy, at_least| {
        let answers = all.key_write("flows", &keys, policy, at_least).await.unwrap();
        assert_eq!(answers.len(), keys.len());
        assert!(answers.iter().zip(&keys).all(|(answer, key)| answer.key == key.0));
        let fields = |answer: &KeyWriteAnswer| {
            (answer.value.clone(), answer.agreeing, answer.differing, answer.copies)
        };
        assert!(answers.iter().all(|answer| fields(answer) == fields(&answers[0])), "{answers:?}");
        fields(&answers[0])
    };
    // They differ: the one that started first wins.
    assert_eq!(common_answer(&both, Policy::First, 0).await, (Some(vec![1]), 1, 1, 2));
    assert_eq!(common_answer(&both, Policy::Plurality, 0).await, (Some(vec![1]), 1, 1, 2));
    assert_eq!(common_answer(&both, Policy::AtLeast, 2).await, (None, 1, 1, 2));
    assert_eq!(common_answer(&both, Policy::AtLeast, 1).await, (Some(vec![1]), 1, 1, 2));
    for wrong in [0, 3] {
        let refused = refusal(both.key_write("flows", &keys, Policy::AtLeast, wrong)).await;
        assert!(refused.contains(&format!("`at_least` is {wrong}")), "{refused}");
    }
    assert!(both.unreachable_addresses().is_empty());

    let gone = Fake { is_away: true, ..early.clone() };
    let asked = || gone.asked[1].load(Ordering::Relaxed);
    let before = asked();
    for (members, learned) in [([late.clone(), gone.clone()], false), ([gone.clone(), late.clone()], true)] {
        // One group knew both; the other finds one away.
        let all = match learned {
            false => with_members(&both, &members),
            true => spread(&members),
        };
        for _ in 0..3 {
            assert_eq!(common_answer(&all, Policy::First, 0).await, (Some(vec![2]), 1, 0, 1));
            assert_eq!(all.unreachable_addresses(), ["1:1"]);
        }
    }
    // It was asked what it has once, by the group that found it away.
    assert_eq!(asked() - before, 1);
    let nobody = spread(&[Fake { is_away: true, ..late }, gone.clone()]);
    assert!(refusal(nobody.key_write("flows", &keys, Policy::First, 0)).await.contains("does not answer"));
}

#[tokio::test]
async fn of_a_moment_fewer_may_be_away_than_have_each_key() {
    let (keys, moment) = (keys(), Moment::UnixMillis(NonZeroU64::new(7).unwrap()));
    let asked = async |away: [bool; 3]| {
        let [a, b, c] = away;
        let member = |number, copies, is_away| Fake { cluster: 9, is_away, ..replica(number, copies) };
        let members = [
            member(1, ["0-99", "100-199"], a),
            member(2, ["100-199", "200-255"], b),
            member(3, ["200-255", "0-99"], c),
        ];
        let answered = spread(&members).at_moment(moment).key_write("flows", &keys, Policy::First, 0).await;
        answered.map(|answers| answers.len()).map_err(|error| error.to_string())
    };
    assert_eq!(asked([false; 3]).await, Ok(keys.len()));
    assert_eq!(asked([true, false, false]).await, Ok(keys.len()));
    let refused = asked([true, false, true]).await.unwrap_err();
    assert!(refused.contains("does not answer"), "{refused}");
}

#[tokio::test]
async fn two_that_say_to_have_the_same_copy_are_refused() {
    let both = spread(&[replica(1, ["0-255", "9"]), replica(2, ["0-127", "128-255"])]);
    let refused = asked(&both, "flows", &keys()).await.unwrap_err();
    assert!(refused.contains("is at 1:1 and at 2:1"), "{refused}");
}

#[tokio::test]
async fn what_two_collectors_count_together_is_known_while_either_is_there() {
    let of = |colour, lanes: [u64; 4]| CountingRole { colour, lanes: [true; 4] }.by_colour(&lanes);
    let counter = |number, cluster, copies: [&str; 2], counts: Vec<u64>| {
        let mut fake = Fake { cluster, counts, ..replica(number, copies) };
        let kind = StoreKind::KeyIncrement { slots: 8, redundancy: 1, replicas: 2 };
        let spec = StoreSpec { kind, ..StoreSpec::try_from(fake.stores[0].store.as_ref().unwrap()).unwrap() };
        fake.stores[0].store = Some((&spec).into());
        fake
    };
    let counts = async |members: &[Fake], keys: &[Key]| {
        let answers = spread(members).query_counters("flows", keys).await.map_err(|e| e.to_string())?;
        Ok::<Vec<u64>, String>(answers.into_iter().map(|answer| answer.value).collect())
    };
    let away = |fake: &Fake| Fake { is_away: true, ..fake.clone() };
    let (low, high) = keys().into_iter().partition::<Vec<Key>, _>(|key| buckets::bucket_of_key(key) < 128);
    let each = [low[0], high[0]];
    // In a cluster the third has something, though it is given nothing now. The first has missed 2 of what both counted.
    let mut in_cluster = [
        counter(1, 9, ["0-127", "128-255"], of(0, [0, 60, 10, 0])),
        counter(2, 9, ["128-255", "0-127"], of(1, [60, 0, 5, 0])),
        counter(3, 9, ["0-127", "128-255"], of(2, [12, 5, 0, 0])),
    ];
    (in_cluster[2].stores[0].buckets, in_cluster[2].stores[0].elsewhere) = (Vec::new(), "1:1".into());
    assert_eq!(counts(&in_cluster, &each).await, Ok(vec![77, 77]));
    let [first, second, third] = &in_cluster;
    assert_eq!(counts(&[away(first), second.clone(), third.clone()], &each).await, Ok(vec![77, 77]));
    assert_eq!(counts(&[first.clone(), second.clone(), away(third)], &each).await, Ok(vec![75, 75]));
    let refused = counts(&[first.clone(), away(second), away(third)], &each).await.unwrap_err();
    assert!(refused.contains("does not answer"), "{refused}");
    // With a file of collectors, both collectors of a key are asked.
    let by_file = [
        counter(1, 0, ["0-127", "128-255"], of(1, [70, 0, 0, 0])),
        counter(2, 0, ["128-255", "0-127"], of(0, [0, 60, 0, 0])),
    ];
    assert_eq!(counts(&by_file, &each).await, Ok(vec![70, 70]));
    assert_eq!(counts(&[away(&by_file[0]), by_file[1].clone()], &each).await, Ok(vec![60, 60]));
}

#[tokio::test]
async fn sums_of_flows_name_who_is_missing_and_pass_over_who_has_no_records() {
    let member = |number, is_away| Fake { number, is_away, ..Fake::default() };
    let asked = async |members: &[Fake]| {
        let (answer, _) =
            spread(members).query_flows("", &FlowQuestion::default(), FlowSum::Bytes, 1).await?;
        Ok::<_, ClientError>((answer.total.bytes, answer.unreachable))
    };
    let (with_records, away, without_store) = (member(5, false), member(7, true), member(0, false));
    let all = [with_records.clone(), away.clone(), without_store.clone(), member(9, false)];
    assert_eq!(asked(&all).await.unwrap(), (14, vec!["7:1".to_owned()]));
    assert_eq!(asked(&[with_records, without_store.clone()]).await.unwrap(), (5, Vec::new()));
    assert!(is_not_found(&asked(&[without_store.clone(), without_store, away]).await.unwrap_err()));
}

#[tokio::test]
async fn alerts_of_several_are_one_list_in_the_order_for_people_with_the_latest_transitions() {
    let alert = |fingerprint: &str, severity: &str, state: &str, since| Alert {
        fingerprint: fingerprint.into(),
        severity: severity.into(),
        state: state.into(),
        since,
        ..Alert::default()
    };
    let transitions =
        |moments: [u64; 2]| moments.map(|at| AlertTransition { at, ..Default::default() }).into();
    let first = AlertsResponse {
        alerts: vec![
            alert("a", "critical", "resolved", 1),
            alert("b", "info", "firing", 2),
            alert("c", "warning", "pending", 3),
            alert("d", "critical", "firing", 4),
        ],
        transitions: transitions([10, 40]),
        rules: 3,
    };
    // The states of one condition alternate over time.
    let second = AlertsResponse {
        alerts: vec![alert("c", "warning", "firing", 4), alert("d", "critical", "firing", 2)],
        transitions: transitions([20, 30]),
        rules: 2,
    };
    let third = AlertsResponse { alerts: vec![alert("c", "warning", "pending", 5)], ..Default::default() };
    let fakes = [first, second, third].map(|alerts| Fake { alerts, ..Fake::default() });
    let request = AlertsRequest { after: 0, most: 3 };
    let all = spread(&fakes).fetch_alerts(request).await.unwrap();
    let listed = all.alerts.iter().map(|a| (&*a.fingerprint, &*a.state, a.since));
    let wanted = [
        ("d", "firing", 2),
        ("c", "firing", 4),
        ("b", "firing", 2),
        ("c", "pending", 3),
        ("a", "resolved", 1),
    ];
    assert_eq!(listed.collect::<Vec<_>>(), wanted);
    assert_eq!(all.transitions.iter().map(|t| t.at).collect::<Vec<_>>(), [20, 30, 40]);
    assert_eq!(all.rules, 3);
}

//! Several collectors that are not there, each of which says what it has.

use dta_proto::control::{CounterAnswer, KeyWriteAnswer, Policy, bucket_ranges};
use dta_proto::store::{Merge, StoreKind};

use super::*;

/// A collector that answers with its own number.
#[derive(Clone, Default)]
struct Fake {
    number: u8,
    stores: Vec<StoreInfo>,
    is_away: bool,
}

impl Fake {
    fn answers<A>(&self, keys: Vec<Vec<u8>>, answer: impl Fn(Vec<u8>) -> A) -> Result<Vec<A>, ClientError> {
        if self.is_away {
            return Err(Status::unavailable("nobody is there").into());
        }
        Ok(keys.into_iter().map(answer).collect())
    }

    fn refuses<A>(&self) -> Result<A, ClientError> {
        Err(Status::internal(format!("{} was asked", self.number)).into())
    }
}

#[tonic::async_trait]
impl Ask for Fake {
    async fn stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        self.answers(vec![], |_| ()).map(|_| self.stores.clone())
    }

    async fn query_key_write(
        &self,
        request: QueryKeyWriteRequest,
    ) -> Result<QueryKeyWriteResponse, ClientError> {
        let value = Some(vec![self.number]);
        let answer = |key| KeyWriteAnswer { key, value: value.clone(), ..KeyWriteAnswer::default() };
        Ok(QueryKeyWriteResponse { answers: self.answers(request.keys, answer)?, generation: 3 })
    }

    async fn query_path(&self, _: QueryPathRequest) -> Result<QueryPathResponse, ClientError> {
        self.refuses()
    }

    async fn query_counter(&self, request: QueryCounterRequest) -> Result<QueryCounterResponse, ClientError> {
        // One that forgets the last key.
        let mut answers =
            self.answers(request.keys, |key| CounterAnswer { key, ..CounterAnswer::default() })?;
        answers.pop();
        Ok(QueryCounterResponse { answers, generation: 3 })
    }

    async fn query_sketch(&self, _: QuerySketchRequest) -> Result<QuerySketchResponse, ClientError> {
        self.refuses()
    }

    async fn tail(&self, _: TailRequest) -> Result<Following, ClientError> {
        self.refuses()
    }

    async fn read_memory(&self, _: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.refuses()
    }

    async fn sessions(&self) -> Result<ListSessionsResponse, ClientError> {
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
        self.answers(vec![], |_| ())?;
        Ok(vec![node("nic/test", ""), node("translator/leaf", "leaf")])
    }
}

fn store(id: u16, name: &str, kind: StoreKind) -> StoreInfo {
    let spec = StoreSpec { id, name: name.into(), kind };
    StoreInfo { store: Some((&spec).into()), used: 10, capacity: 100, length: 1000, ..StoreInfo::default() }
}

/// A collector with these buckets, the lists from `first` on, and the sketch if nobody else has it.
fn fake(number: u8, buckets: &str, first: u32, sketch_at: &str) -> Fake {
    let buckets = bucket_ranges(buckets.parse().unwrap());
    let lists = vec![ListRange { store: "events".into(), first, count: 4 }.into()];
    let append = StoreKind::Append { lists: 8, ring: 64, batch_len: 32, entry_len: 8, notify: false };
    let sketch = StoreKind::SketchMerge { columns: 4, rows: 2, epochs: 2, merge: Merge::Sum, expected: 1 };
    let stores = vec![
        StoreInfo {
            buckets: buckets.clone(),
            ..store(1, "flows", StoreKind::KeyWrite { slots: 64, value_len: 4, redundancy: 2 })
        },
        StoreInfo { lists, ..store(2, "events", append) },
        StoreInfo { buckets, ..store(3, "counts", StoreKind::KeyIncrement { slots: 64, redundancy: 2 }) },
        StoreInfo { elsewhere: sketch_at.into(), ..store(4, "sketch", sketch) },
    ];
    Fake { number, stores, is_away: false }
}

fn spread(fakes: &[Fake]) -> Spread {
    let member = |fake: &Fake| Member { address: format!("{}:1", fake.number), ask: Arc::new(fake.clone()) };
    Spread::new(fakes.iter().map(member).collect())
}

fn keys() -> Vec<Key> {
    (0..64u8).map(|n| Key([n; 16])).collect()
}

/// The collector that answered for each of the keys.
async fn asked(spread: &Spread, store: &str, keys: &[Key]) -> Result<Vec<u8>, String> {
    let answers = spread.clone().key_write(store, keys, Policy::First, 0).await.map_err(|e| e.to_string())?;
    assert!(answers.iter().zip(keys).all(|(answer, key)| answer.key == key.0));
    Ok(answers.into_iter().map(|answer| answer.value.unwrap()[0]).collect())
}

async fn told<A>(answer: impl Future<Output = Result<A, ClientError>>) -> String {
    answer.await.err().expect("it is refused").to_string()
}

#[tokio::test]
async fn each_key_list_and_sketch_is_asked_where_it_is() {
    let (a, b) = (fake(1, "0-99", 0, ""), fake(2, "100-255", 4, "1:1"));
    let keys = keys();
    let expected: Vec<u8> = keys.iter().map(|key| if buckets::of_key(key) < 100 { 1 } else { 2 }).collect();
    assert!(expected.contains(&1) && expected.contains(&2));
    for order in [[a.clone(), b.clone()], [b.clone(), a.clone()]] {
        let both = spread(&order);
        for name in ["", "flows", "1"] {
            assert_eq!(asked(&both, name, &keys).await, Ok(expected.clone()));
        }
        for (list, number) in [(0, 1), (3, 1), (4, 2), (7, 2)] {
            let request = TailRequest { store: "events".into(), list, ..TailRequest::default() };
            assert!(told(both.tail(request)).await.contains(&format!("{number} was asked")));
        }
        assert!(told(both.query_sketch(QuerySketchRequest::default())).await.contains("1 was asked"));
        let stores = both.stores().await.unwrap();
        assert_eq!(stores.iter().map(|info| info.used).collect::<Vec<_>>(), [20, 20, 20, 10]);
        assert!(stores[3].elsewhere.is_empty());
    }
    // A translator that tells both is counted once, by its last word.
    let by_address = spread(&[a.clone(), b.clone()]).statistics_by_address().await.unwrap();
    let sessions = by_address.iter().map(|node| node.session.as_str()).collect::<Vec<_>>();
    assert_eq!((sessions[0], sessions[2]), ("1:1", "2:1"));
    let nodes = spread(&[a, b.clone()]).statistics().await.unwrap();
    let ages = nodes.iter().map(|node| (node.node.as_str(), node.age_seconds)).collect::<Vec<_>>();
    assert_eq!(ages, [("nic/test", 4.0), ("translator/leaf", 3.0), ("nic/test", 3.0)]);
    // One alone is asked as it is, whatever it has.
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
    let whole = summed(vec![(0, info(300, Some(0.9), Some(3))), (1, info(100, Some(0.5), Some(4)))]);
    assert_eq!((whole.len(), whole[0].used, whole[0].capacity, whole[0].load), (1, 400, 2000, 0.2));
    assert!((whole[0].survival.unwrap() - 0.8).abs() < 1e-9);
    let advised = dta_proto::layout::load::advised_redundancy(0.2);
    assert_eq!(whole[0].advised_redundancy, Some(advised.into()));
    // Lists have neither.
    let lists = summed(vec![(0, info(3, None, None)), (1, info(0, None, None))]);
    assert_eq!((lists[0].used, lists[0].survival, lists[0].advised_redundancy), (3, None, None));
}

#[tokio::test]
async fn of_two_that_say_to_have_a_key_the_one_that_is_written_to_has_it() {
    let keys = keys();
    let (whole, mut spread_once) = (fake(1, "0-255", 0, ""), fake(2, "0-255", 0, ""));
    spread_once.stores.iter_mut().for_each(|store| store.written = true);
    for order in [[whole.clone(), spread_once.clone()], [spread_once.clone(), whole]] {
        let both = spread(&order);
        assert_eq!(asked(&both, "flows", &keys).await, Ok(vec![2; keys.len()]));
        let list = TailRequest { store: "events".into(), list: 1, ..TailRequest::default() };
        assert!(told(both.tail(list)).await.contains("2 was asked"));
        assert!(told(both.query_sketch(QuerySketchRequest::default())).await.contains("2 was asked"));
    }
}

#[tokio::test]
async fn what_two_or_none_have_is_refused_in_words() {
    let keys = keys();
    let both = spread(&[fake(1, "0-200", 0, ""), fake(2, "100-255", 2, "")]);
    let refused = asked(&both, "flows", &keys).await.unwrap_err();
    assert!(refused.contains("is at 1:1 and at 2:1") && refused.contains("bucket"), "{refused}");
    let list = |list| TailRequest { store: "events".into(), list, ..TailRequest::default() };
    assert!(told(both.tail(list(3))).await.contains("list 3 of store \"events\" is at 1:1 and at 2:1"));
    assert!(told(both.tail(list(6))).await.contains("list 6 of store \"events\" is at none of 1:1, 2:1"));
    assert!(told(both.query_sketch(QuerySketchRequest::default())).await.contains("a sketch"));
    let holes = spread(&[fake(1, "0-99", 0, ""), fake(2, "128-255", 4, "1:1")]);
    let refused = asked(&holes, "flows", &keys).await.unwrap_err();
    assert!(refused.contains("at none of 1:1, 2:1") && refused.contains("--collector A,B"), "{refused}");
    let refused = asked(&both, "others", &keys).await.unwrap_err();
    assert!(refused.contains("counts, events, flows, sketch"), "{refused}");
    assert!(asked(&both, "events", &keys).await.unwrap_err().contains("append"));
    // An answer that lacks a key is none.
    let whole = spread(&[fake(1, "0-99", 0, ""), fake(2, "100-255", 4, "1:1")]);
    assert!(told(whole.clone().counter("counts", &keys[..1])).await.contains("fewer keys"));
}

#[tokio::test]
async fn a_collector_that_is_away_is_missed_by_what_it_has_alone() {
    let away = Fake { is_away: true, ..fake(2, "128-255", 4, "1:1") };
    let both = spread(&[fake(1, "0-127", 0, ""), away.clone()]);
    let (here, there): (Vec<Key>, Vec<Key>) = keys().into_iter().partition(|key| buckets::of_key(key) < 128);
    assert_eq!(asked(&both, "flows", &here).await, Ok(vec![1; here.len()]));
    for (store, keys) in [("flows", &there), ("", &here), ("others", &here)] {
        let refused = asked(&both, store, keys).await.unwrap_err();
        assert!(refused.contains("collector at 2:1 does not answer"), "{refused}");
    }
    assert_eq!(both.stores_that_answer().await.unwrap().len(), 4);
    assert!(
        both.stores().await.is_err() && spread(&[away.clone(), away]).stores_that_answer().await.is_err()
    );
}

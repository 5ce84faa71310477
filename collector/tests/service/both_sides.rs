//! The same questions to every side of [`Ask`]: a running collector over gRPC, the same one in this process,
//! and its region files. Answers and refusals have to be the same.

use std::time::Duration;

use crate::common::{config, key, start};
use dta_collector::answers::Memory;
use dta_collector::config::{Config, MemoryBacking};
use dta_collector::server::RunningCollector;
use dta_proto::control::{
    EpochsRequest, MAX_KEYS, MAX_READ, Policy, ReadMemoryRequest, StoreInfo, StorePlacement, TailRequest,
    TailResponse,
};
use dta_proto::key::Key;
use dta_proto::layout::{append, hash, key_increment, key_write, postcarding, sketch_merge};
use dta_proto::store::{Merge, SlotKeys, StoreKind, StoreSpec};
use dta_rpc::{Ask, AskKeys, ClientError, Moment, QueryAnswers, Question, QuestionKind, Span, TailMessages};
use tonic::Code;

const RING: u64 = 64;
const EPOCH: u32 = 7;
const KEY_WRITE: QuestionKind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };

fn stores() -> Vec<StoreSpec> {
    let kinds = [
        (
            "flows",
            StoreKind::KeyWrite { slots: 1 << 12, value_len: 12, redundancy: 2, keys: Default::default() },
        ),
        ("paths", StoreKind::Postcarding { slots: 1 << 10, hops: 6, redundancy: 2 }),
        ("events", StoreKind::Append { lists: 4, ring: RING, batch_len: 64, entry_len: 4, notify: false }),
        ("bytes", StoreKind::KeyIncrement { slots: 1 << 12, redundancy: 2, replicas: 1 }),
        (
            "packets",
            StoreKind::SketchMerge { columns: 1 << 8, rows: 3, epochs: 2, merge: Merge::Sum, expected: 2 },
        ),
        (
            "int-values",
            StoreKind::KeyWrite { slots: 1 << 12, value_len: 12, redundancy: 2, keys: SlotKeys::Inline },
        ),
    ];
    let spec = |(id, (name, kind)): (usize, (&str, StoreKind))| StoreSpec {
        id: id as u16 + 1,
        name: name.into(),
        kind,
    };
    kinds.into_iter().enumerate().map(spec).collect()
}

/// All sides of one collector.
struct Sides {
    server: RunningCollector,
    all: [(&'static str, Box<dyn Ask>); 3],
    directory: tempfile::TempDir,
}

impl Sides {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let memory = MemoryBacking::Directory(directory.path().to_owned());
        let (server, client) = start(&Config { memory, stores: stores(), ..config() }).await;
        let all: [(_, Box<dyn Ask>); 3] = [
            ("over gRPC", Box::new(client)),
            ("in the collector", Box::new(server.service().clone())),
            ("from its files", Box::new(Memory::open(directory.path()).unwrap())),
        ];
        fill(&server);
        Self { server, all, directory }
    }

    /// The answer, which has to be that of all sides.
    async fn ask<T: PartialEq + std::fmt::Debug>(
        &self,
        question: impl AsyncFn(&dyn Ask) -> Result<T, ClientError>,
    ) -> Result<T, (Code, String)> {
        let mut first = None;
        for (side, ask) in &self.all {
            let answer = question(&**ask).await.map_err(|error| match error {
                ClientError::Status(status) => {
                    // What is shown to a person is what was said.
                    assert_eq!(ClientError::from(status.clone()).to_string(), status.message());
                    (status.code(), status.message().to_owned())
                }
                other => panic!("{side}: not a status: {other}"),
            });
            match &first {
                Some(first) => assert_eq!(&answer, first, "{side}"),
                None => first = Some(answer),
            }
        }
        first.unwrap()
    }

    /// Code and words of a refusal, which have to be those of all sides.
    async fn refusal<T: PartialEq + std::fmt::Debug>(
        &self,
        question: impl AsyncFn(&dyn Ask) -> Result<T, ClientError>,
    ) -> (Code, String) {
        self.ask(question).await.expect_err("must be refused")
    }
}

fn write(server: &RunningCollector, store: &str, at: u64, bytes: &[u8]) {
    server.stores().get(store).unwrap().region.write(at, bytes).unwrap();
}

fn put_batch(server: &RunningCollector, list: u32, sequence: u32) {
    let mut batch = [0; 64];
    append::encode_batch(&mut batch, list, sequence, 2, &sequence.to_be_bytes().repeat(2));
    write(server, "events", append::batch_offset(list, sequence, RING, 64), &batch);
}

/// Something in every store, as a NIC would write it.
fn fill(server: &RunningCollector) {
    for i in 0..50 {
        let mut slot = [0; 16];
        key_write::encode_slot(&mut slot, &key(i), &[i as u8; 12]);
        for (n, at) in hash::key_slots(&key(i), 2, 1 << 12).iter().enumerate() {
            // Every fifth key has an older value in its second copy.
            if n == 1 && i % 5 == 0 {
                key_write::encode_slot(&mut slot, &key(i), &[0xaa; 12]);
            }
            write(server, "flows", key_write::slot_offset(*at, 12), &slot);
            let mut held = [0; 32];
            key_write::encode_slot(
                &mut held,
                &key(i),
                &key_write::inline_value(&key(i), &slot[4..]).unwrap(),
            );
            write(server, "int-values", key_write::slot_offset(*at, 28), &held);
        }
        for at in hash::key_slots(&key(i), 2, 1 << 12).iter() {
            let at = key_increment::counter_offset(*at);
            server.stores().get("bytes").unwrap().region.fetch_add(at, 1000 + u64::from(i)).unwrap();
        }
    }
    // A complete path; a partial one of known length; and one of unknown length.
    for (i, length, hops) in [(1, 3, &[0, 1, 2][..]), (2, 5, &[0, 2]), (3, 0, &[1])] {
        let mut path = postcarding::PostcardPath { length, ..Default::default() };
        hops.iter().for_each(|hop| assert!(path.set(*hop, 100 + u32::from(*hop))));
        let mut row = [0; 32];
        postcarding::encode_row(&mut row, &key(i), &path);
        for at in hash::key_slots(&key(i), 2, 1 << 10).iter() {
            write(server, "paths", postcarding::row_offset(*at, 6), &row);
        }
    }
    for i in 0..3 {
        for column in sketch_merge::columns_of(&key(i), 3, 1 << 8).iter() {
            let mut bytes = [0; 32];
            let of_epoch =
                sketch_merge::SketchColumn { epoch: EPOCH, merged: 1, expected: 2, cells: [50, 60, 70, 0] };
            sketch_merge::encode_column(&mut bytes, 3, &of_epoch);
            let len = sketch_merge::column_len(3) as usize;
            let at = sketch_merge::column_offset(EPOCH, *column as u32, 2, 1 << 8, 3);
            write(server, "packets", at, &bytes[..len]);
        }
    }
    // List 1: more than its ring holds, one batch that never came, and one that is damaged.
    (1..=100).filter(|sequence| *sequence != 90).for_each(|sequence| put_batch(server, 1, sequence));
    write(server, "events", append::batch_offset(1, 95, RING, 64), &[0xff]);
    // List 2: nothing but bytes of no batch.
    (1..=RING as u32)
        .for_each(|n| write(server, "events", append::batch_offset(2, n, RING, 64), &[0xff; 64]));
}

fn keys(which: impl IntoIterator<Item = u32>) -> Vec<Key> {
    which.into_iter().map(key).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_side_gives_the_same_answers() {
    let sides = Sides::start().await;

    // Files do not know which stores are being written, nor a version.
    let stores = sides.ask(async |ask| {
        let unsaid = |info| StoreInfo { written: None, ..info };
        Ok(ask.fetch_stores().await?.into_iter().map(unsaid).collect::<Vec<_>>())
    });
    let stores = stores.await.unwrap();
    let placed = sides.ask(async |ask| {
        let unsaid = |place| StorePlacement { written: None, ..place };
        Ok(ask.placement().await?.stores.into_iter().map(unsaid).collect::<Vec<_>>())
    });
    let placed: Vec<_> =
        placed.await.unwrap().into_iter().map(|place| (place.store, place.generation)).collect();
    let as_listed: Vec<_> = stores.iter().map(|info| (info.store.clone(), info.generation)).collect();
    assert_eq!(placed, as_listed);
    assert!(stores.iter().all(|info| info.generation == 1), "{stores:?}");
    let names: Vec<_> = stores.iter().map(|info| info.store.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(names, ["flows", "paths", "events", "bytes", "packets", "int-values"]);
    assert!(stores.iter().all(|info| info.used > 0), "{stores:?}");

    let keys_0_to_59 = keys(0..60);
    for (policy, at_least) in [(Policy::First, 0), (Policy::Plurality, 0), (Policy::AtLeast, 2)] {
        let question = Question::now("flows", &*keys_0_to_59, QuestionKind::KeyWrite { policy, at_least });
        // Only the running collector has a placement of a version.
        let whole = async |ask: &dyn Ask| {
            Ok(QueryAnswers { placement: 0, ..ask.query_keys(question.clone()).await? })
        };
        assert_eq!(sides.ask(whole).await.unwrap().generation, 1);
        let answers = async |ask: &dyn Ask| ask.key_write("flows", &keys_0_to_59, policy, at_least).await;
        let answers = sides.ask(answers).await.unwrap();
        let found = answers.iter().filter(|answer| answer.value.is_some()).count();
        let whole = if policy == Policy::AtLeast { 30..=40 } else { 48..=50 };
        assert!(whole.contains(&found), "{found} found, {policy:?}");
        assert!(answers[..50].iter().any(|answer| answer.differing == 1));
        assert_eq!(answers.len(), 60);
        // The same slots with their keys: the same answers.
        let inline = async |ask: &dyn Ask| ask.key_write("int-values", &keys_0_to_59, policy, at_least).await;
        assert_eq!(sides.ask(inline).await.unwrap(), answers);
    }

    // An empty name stands for the only one.
    let answer = sides.ask(async |ask| ask.query_paths("", &keys(0..5)).await).await.unwrap();
    assert_eq!(answer.iter().map(|path| path.found).collect::<Vec<_>>(), [false, true, true, true, false]);
    assert_eq!((&answer[1].hops[..], answer[1].complete), (&[100, 101, 102][..], true));
    assert_eq!((&answer[2].hops[..], answer[2].path_length), (&[100, 0, 102, 0, 0][..], 5));
    assert_eq!(answer[3].present, [false, true]);

    let answer = sides.ask(async |ask| ask.query_counters("bytes", &keys_0_to_59).await).await.unwrap();
    assert!((0..50).all(|i| answer[i].value >= 1000 + i as u64), "{answer:?}");

    let some = keys([0, 1, 99]);
    let answer = sides.ask(async |ask| ask.query_sketches("packets", &some, EPOCH).await).await.unwrap();
    assert_eq!((answer[0].estimate, answer[0].merged, answer[0].expected), (Some(50), 1, 2));
    assert_eq!(answer[2].estimate, None);
    // Epochs that share its place in the ring, and one that does not.
    for not_held in [EPOCH - 2, EPOCH + 2, EPOCH + 1] {
        let answer =
            sides.ask(async |ask| ask.query_sketches("packets", &some, not_held).await).await.unwrap();
        assert!(answer.iter().all(|answer| answer.estimate.is_none() && answer.merged == 0), "{answer:?}");
    }

    let at = key_write::slot_offset(hash::key_slots(&key(1), 2, 1 << 12)[0], 12);
    let request = ReadMemoryRequest { store: "flows".into(), offset: at, length: 16 };
    let answer = sides.ask(async |ask| ask.read_memory(request.clone()).await).await.unwrap();
    assert_eq!(answer.data[4..], [1; 12]);
    sides.server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_side_refuses_in_the_same_words() {
    let sides = Sides::start().await;
    let read = |store: &str, offset, length| ReadMemoryRequest { store: store.into(), offset, length };
    let tail = |store: &str, list| TailRequest { store: store.into(), list, ..Default::default() };

    for (store, code, words) in [
        ("nowhere", Code::NotFound, "events (append)"),
        ("events", Code::InvalidArgument, "is for append; stores for key-write are here: flows"),
    ] {
        let values = async |ask: &dyn Ask| ask.key_write(store, &keys([1]), Policy::First, 0).await;
        let refused = sides.refusal(values).await;
        assert!(refused.0 == code && refused.1.contains(words), "{refused:?}");
    }
    // Each question has its own store.
    let key_write = |policy, at_least| QuestionKind::KeyWrite { policy, at_least };
    let ask = async |store: &str, count, kind| {
        let question = Question::now(store, vec![key(1); count], kind);
        sides.refusal(async |ask| ask.query_keys(question.clone()).await).await
    };
    let refusals = [
        ask("flows", 0, QuestionKind::Postcarding).await,
        ask("flows", 0, QuestionKind::KeyIncrement).await,
        ask("flows", 0, QuestionKind::SketchMerge { epoch: EPOCH }).await,
        sides.refusal(async |ask| followed(ask.tail_list(tail("flows", 0)).await).await).await,
    ];
    for ((code, words), kind) in
        refusals.iter().zip(["postcarding", "key-increment", "sketch-merge", "append"])
    {
        assert!(*code == Code::InvalidArgument && words.contains(kind), "{code} {words}");
    }

    for (count, kind, words) in [
        (MAX_KEYS + 1, key_write(Policy::First, 0), "ask in several"),
        (MAX_KEYS + 1, QuestionKind::SketchMerge { epoch: EPOCH }, "ask in several"),
        (1, key_write(Policy::AtLeast, 3), "ask for 1 to 2"),
        (1, key_write(Policy::AtLeast, 0), "ask for 1 to 2"),
    ] {
        let refused = ask("", count, kind).await;
        assert!(refused.0 == Code::InvalidArgument && refused.1.contains(words), "{refused:?}");
    }
    let then = Moment::from(1_700_000_000_000);
    let question = Question { at: then, ..Question::now("flows", keys([1]), key_write(Policy::First, 0)) };
    let refused = sides.refusal(async |ask| ask.query_keys(question.clone()).await).await;
    assert!(refused.0 == Code::Unimplemented && refused.1.contains("no history"), "{refused:?}");
    for (store, code, words) in [
        ("flows", Code::Unimplemented, "no history"),
        ("events", Code::Unimplemented, "no history"),
        ("nowhere", Code::NotFound, "events (append)"),
    ] {
        let request = EpochsRequest { store: store.into(), ..EpochsRequest::default() };
        let refused = sides.refusal(async |ask| ask.fetch_epochs(request.clone()).await).await;
        assert!(refused.0 == code && refused.1.contains(words), "{refused:?}");
    }
    for (store, kind) in [("flows", KEY_WRITE), ("bytes", QuestionKind::KeyIncrement)] {
        let series = Question::now(store, keys([1]), kind);
        let refused =
            sides.refusal(async |ask| ask.query_keys_in_span(series.clone(), Span::default()).await).await;
        assert!(refused.0 == Code::Unimplemented && refused.1.contains("no history"), "{refused:?}");
    }

    for (request, code, words) in [
        (read("nowhere", 0, 1), Code::NotFound, "flows (key-write)"),
        (read("flows", 0, MAX_READ + 1), Code::InvalidArgument, "read in several"),
        (read("flows", 1 << 16, 1), Code::OutOfRange, "store \"flows\" has 65536 bytes"),
        (read("flows", (1 << 16) - 1, 2), Code::OutOfRange, "2 bytes at offset 65535"),
        (read("flows", u64::MAX, 16), Code::OutOfRange, "65536 bytes"),
    ] {
        let refused = sides.refusal(async |ask| ask.read_memory(request.clone()).await).await;
        assert!(refused.0 == code && refused.1.contains(words), "{refused:?}");
    }

    for (request, code, words) in [
        (tail("nowhere", 0), Code::NotFound, "events (append)"),
        (tail("events", 4), Code::InvalidArgument, "there is no list 4: store \"events\" has lists 0 to 3"),
        (tail("", u32::MAX), Code::InvalidArgument, "store \"events\" has lists 0 to 3"),
    ] {
        let refused = sides.refusal(async |ask| followed(ask.tail_list(request.clone()).await).await).await;
        assert!(refused.0 == code && refused.1.contains(words), "{refused:?}");
    }
    sides.server.shut_down().await.unwrap();
}

/// Everything from a list up to its end.
async fn followed(following: Result<TailMessages, ClientError>) -> Result<TailResponse, ClientError> {
    let (mut following, mut sum) = (following?, TailResponse::default());
    while let Some(message) = following.next_message().await? {
        // How often a batch was looked at before it was given up is a matter of time.
        add(&mut sum, TailResponse { torn: 0, ..message });
    }
    Ok(sum)
}

fn add(sum: &mut TailResponse, message: TailResponse) {
    sum.entries.extend(message.entries);
    sum.overwritten_batches += message.overwritten_batches;
    sum.missing_batches += message.missing_batches;
    sum.damaged_batches += message.damaged_batches;
    sum.sequence = sum.sequence.max(message.sequence);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_side_follows_lists_in_the_same_way() {
    let sides = Sides::start().await;
    let request =
        TailRequest { store: "events".into(), list: 1, until_caught_up: true, ..Default::default() };

    let oldest = TailRequest { from_start: true, ..request.clone() };
    let answer = sides.ask(async |ask| followed(ask.tail_list(oldest.clone()).await).await).await.unwrap();
    // The oldest is batch 26, for 90 never came to its place; where 95 is damaged, nobody can tell that 31 is
    // gone.
    let gaps = (answer.overwritten_batches, answer.missing_batches, answer.damaged_batches);
    assert_eq!((gaps, answer.sequence), ((9, 1, 2), 100), "{answer:?}");
    assert_eq!(answer.entries[0][..], 26u32.to_be_bytes());
    assert_eq!(answer.entries.last().unwrap()[..], 100u32.to_be_bytes());

    let first = TailRequest { from_sequence: 1, ..request.clone() };
    let answer = sides.ask(async |ask| followed(ask.tail_list(first.clone()).await).await).await.unwrap();
    assert_eq!(answer.sequence, 100);
    assert!(answer.overwritten_batches >= 25, "{answer:?}");

    let next = request.clone();
    let answer = sides.ask(async |ask| followed(ask.tail_list(next.clone()).await).await).await.unwrap();
    assert_eq!(answer, TailResponse::default());

    let torn = TailRequest { list: 2, from_start: true, ..request.clone() };
    let answer = sides.ask(async |ask| followed(ask.tail_list(torn.clone()).await).await).await.unwrap();
    assert_eq!(answer, TailResponse { damaged_batches: RING, ..TailResponse::default() });

    // Those that wait are there when the call returns, and are given what is written after it.
    let waiting = TailRequest { until_caught_up: false, ..request };
    let mut streams = Vec::new();
    for (side, ask) in &sides.all {
        streams.push((side, ask.tail_list(waiting.clone()).await.unwrap(), TailResponse::default()));
    }
    (101..=110)
        .filter(|sequence| *sequence != 105)
        .for_each(|sequence| put_batch(&sides.server, 1, sequence));
    read_to(&mut streams, 110).await;
    for (side, _, sum) in &streams {
        let expected: Vec<u32> = (101..=110).filter(|s| *s != 105).flat_map(|s| [s, s]).collect();
        let entries: Vec<u32> =
            sum.entries.iter().map(|e| u32::from_be_bytes(e[..].try_into().unwrap())).collect();
        assert_eq!((entries, sum.missing_batches, sum.overwritten_batches), (expected, 1, 0), "{side}");
    }
    // A collector that ends says so; files do not end.
    sides.server.shut_down().await.unwrap();
    for (side, stream, _) in &mut streams[..2] {
        let ended =
            tokio::time::timeout(Duration::from_secs(60), stream.next_message()).await.expect("it ends");
        let status = crate::common::status_of(ended);
        assert!(
            status.code() == Code::Unavailable && status.message().contains("again later"),
            "{side}: {status}"
        );
    }
    let files = tokio::time::timeout(Duration::from_millis(300), streams[2].1.next_message()).await;
    assert!(files.is_err(), "{files:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_side_answers_from_memory_that_took_the_place_of_other() {
    let sides = Sides::start().await;
    (1..=10).for_each(|sequence| put_batch(&sides.server, 2, sequence));
    let request = TailRequest { store: "events".into(), list: 2, from_start: true, ..Default::default() };
    let mut streams = Vec::new();
    for (side, ask) in &sides.all {
        streams.push((side, ask.tail_list(request.clone()).await.unwrap(), TailResponse::default()));
    }
    read_to(&mut streams, 10).await;
    for store in ["events", "flows"] {
        sides.server.stores().replace_memory(sides.server.stores().successor(store).unwrap(), false).unwrap();
    }
    for (side, stream, _) in &mut streams {
        // An earlier batch was torn, which is reported once.
        let refused = async {
            while stream.next_message().await?.expect("it goes on").entries.is_empty() {}
            Ok(())
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), refused).await.expect("it ends");
        let status = crate::common::status_of(ended);
        assert!(
            status.code() == Code::Aborted && status.message().contains("follow the list again"),
            "{side}: {status}"
        );
    }
    (11..=15).for_each(|sequence| put_batch(&sides.server, 2, sequence));
    let mut streams = Vec::new();
    for (side, ask) in &sides.all {
        streams.push((side, ask.tail_list(request.clone()).await.unwrap(), TailResponse::default()));
    }
    read_to(&mut streams, 15).await;
    for (side, _, sum) in &streams {
        let expected: Vec<Vec<u8>> = (11..=15u32)
            .flat_map(|sequence| [sequence.to_be_bytes().to_vec(), sequence.to_be_bytes().to_vec()])
            .collect();
        assert_eq!((&sum.entries, sum.sequence), (&expected, 15), "{side}");
    }
    let question = Question::now("", keys(0..50), KEY_WRITE);
    let whole =
        async |ask: &dyn Ask| Ok(QueryAnswers { placement: 0, ..ask.query_keys(question.clone()).await? });
    assert_eq!(sides.ask(whole).await.unwrap().generation, 2);
    let values = async |ask: &dyn Ask| ask.key_write("", &question.keys, Policy::First, 0).await;
    let answers = sides.ask(values).await.unwrap();
    assert!(answers.iter().all(|answer| answer.value.is_none()), "{answers:?}");
    sides.server.shut_down().await.unwrap();
}

/// Reads all up to a sequence.
async fn read_to(streams: &mut [(&&str, TailMessages, TailResponse)], sequence: u64) {
    for (side, stream, sum) in streams {
        while sum.sequence < sequence {
            let message = tokio::time::timeout(Duration::from_secs(60), stream.next_message()).await;
            add(
                sum,
                message.unwrap_or_else(|_| panic!("{side}: {sum:?}, and no more")).unwrap().expect("no end"),
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_counters_are_known_to_a_running_collector_alone() {
    let sides = Sides::start().await;
    for (_, ask) in &sides.all[..2] {
        ask.query_counters("", &keys(0..3)).await.unwrap();
        let nodes = ask.statistics().await.unwrap();
        assert!(nodes.iter().any(|node| node.node == "nic/soft"), "{nodes:?}");
        assert_eq!(ask.fetch_sessions().await.unwrap().device, "soft");
    }
    // Both sides of one collector are counted together.
    let nodes = sides.all[0].1.statistics().await.unwrap();
    let own = nodes.iter().find(|node| node.node == "collector").unwrap();
    let asked = own.counters.iter().find(|counter| counter.name == "query.counter.keys").unwrap();
    assert_eq!(asked.value, 6);
    let files = &sides.all[2].1;
    for refused in [files.fetch_sessions().await.map(drop), files.statistics().await.map(drop)] {
        let status = crate::common::status_of(refused);
        assert!(status.code() == Code::Unimplemented && status.message().contains("running collector"));
    }
    sides.server.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_a_collector_that_has_ended_answer() {
    let sides = Sides::start().await;
    let keys = keys([1]);
    let before = sides.all[0].1.key_write("", &keys, Policy::First, 0).await.unwrap();
    sides.server.shut_down().await.unwrap();
    let files = Memory::open(sides.directory.path()).unwrap();
    assert_eq!(files.key_write("", &keys, Policy::First, 0).await.unwrap(), before);
    let empty = tempfile::tempdir().unwrap();
    let error = Memory::open(empty.path()).map(drop).unwrap_err().to_string();
    assert!(error.contains("no region file") && error.contains("`memory` directory"), "{error}");
    let error = Memory::open(&empty.path().join("none")).map(drop).unwrap_err().to_string();
    assert!(error.contains("cannot read the memory directory"), "{error}");
}

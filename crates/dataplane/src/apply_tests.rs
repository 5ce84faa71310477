//! Changes that arrive as text from any caller of the service: applied completely, or refused completely with
//! the reason, and never a panic.

use dta_proto::store::StoreSpec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::{AP, Bench, KW, PC, SM, any_body, datagram, program};
use super::{EngineLimits, SetupError};
use dta_proto::program::*;

/// The sample, every table of it, as JSON.
fn entries() -> Vec<Value> {
    let mut program = program(Transport::Uc, false);
    program.set(DataPlaneEntry::SketchReporter(SketchReporter { store: SM, reporter: 3, bit: 1 }));
    program.set(DataPlaneEntry::Session(ProgramSession { collector: 0, generation: 1 }));
    program.entries().map(|entry| json!(entry)).collect()
}

/// The entry of a table with a key of that value.
fn entry(table: &str, key: &str, is: impl Into<Value>) -> Value {
    let is = is.into();
    entries().into_iter().find(|e| e["table"] == table && e[key] == is).expect("the sample has it")
}

fn with(mut entry: Value, pointer: &str, value: impl Into<Value>) -> Value {
    *entry.pointer_mut(pointer).expect("the entry has it") = value.into();
    entry
}

fn store(id: u16) -> Value {
    entries().into_iter().find(|e| e["table"] == "store" && e["spec"]["id"] == id).expect("the sample has it")
}

fn insert(entry: &Value) -> Value {
    json!({"change": "insert", "entry": entry})
}

fn delete(entry: &Value) -> Value {
    json!({"change": "delete", "entry": entry})
}

fn forget(entry: &Value) -> Value {
    json!({"change": "forget", "entry": entry})
}

fn parse(changes: &[Value]) -> Vec<DataPlaneChange> {
    serde_json::from_str(&json!(changes).to_string()).expect("they are changes")
}

#[test]
fn what_cannot_be_held_is_refused_with_the_reason_before_anything_is_applied() {
    let spec = "/spec";
    let kind = |id, field: &str, value: u64| with(store(id), &format!("{spec}/{field}"), value);
    let mut two_bits = entry("sketch-reporter", "bit", 1);
    two_bits["reporter"] = json!(4);
    for (changes, reason) in [
        (vec![insert(&kind(KW, "value_len", 252))], "value_len is 252"),
        (vec![insert(&with(kind(AP, "batch_len", 4), "/spec/entry_len", 0))], "batch_len is 4"),
        (vec![insert(&kind(AP, "entry_len", 0))], "entry_len is 0"),
        (vec![insert(&kind(AP, "ring", 3))], "ring is 3"),
        (vec![insert(&kind(SM, "rows", 9))], "rows is 9"),
        (vec![insert(&kind(SM, "expected", 33))], "expected is 33"),
        (vec![insert(&with(store(PC), "/spec/hops", 7))], "hops is 7"),
        (vec![insert(&with(store(KW), "/address", 4096))], "must be aligned"),
        (vec![insert(&with(store(KW), "/length", 16))], "holds its whole store"),
        (vec![insert(&with(store(KW), "/length", (1u64 << 20) + 1))], "a power of two"),
        (vec![insert(&with(store(KW), "/queue_pair", "atomic"))], "the queue pair for writes"),
        (
            vec![insert(&with(entry("queue-pair", "purpose", "write"), "/remote_qpn", 1 << 24))],
            "a 24-bit number",
        ),
        (vec![insert(&with(entry("queue-pair", "purpose", "atomic"), "/transport", "uc"))], "needs RC"),
        (
            vec![insert(&with(entry("queue-pair", "purpose", "write"), "/source/ip", "::1"))],
            "of the same IP version",
        ),
        (vec![insert(&with(entry("lists", "first", 4), "/count", 5))], "lists 4 to 8"),
        (vec![insert(&with(entry("lists", "first", 4), "/first", 3))], "list 4 of store 2 is named twice"),
        (vec![insert(&with(entry("lists", "first", 4), "/store", KW))], "no append store"),
        (vec![insert(&with(entry("sketch-reporter", "bit", 1), "/bit", 32))], "0 to 31"),
        (vec![insert(&two_bits)], "bit 1 of store 5 is given to reporters 3 and 4"),
        (vec![delete(&store(AP))], "lists refers to store 2"),
        (vec![delete(&store(KW))], "version0 refers to store 1"),
        (vec![delete(&with(entry("lists", "first", 4), "/first", 7))], "does not have it"),
        (vec![forget(&with(store(PC), "/spec/id", 77))], "does not have it"),
        (vec![forget(&store(AP))], "gathered for postcarding and sketch-merge stores only"),
        (vec![forget(&entry("lists", "first", 4))], "gathered for postcarding and sketch-merge stores only"),
        (
            vec![forget(&store(PC)), forget(&store(KW))],
            "gathered for postcarding and sketch-merge stores only",
        ),
        (
            vec![
                delete(&entry("sketch-reporter", "bit", 1)),
                insert(&with(kind(SM, "columns", 1 << 12), "/length", 1 << 17)),
            ],
            "keeps at most",
        ),
        (vec![insert(&kind(SM, "rows", 1))], "sketch-reporter refers to store 5"),
        (
            vec![json!({"change": "modify", "from": store(KW), "to": store(AP)})],
            "delete one and insert the other",
        ),
    ] {
        let limits = EngineLimits { sketch_columns: 1 << 12, ..EngineLimits::default() };
        let mut bench = Bench::new(&program(Transport::Uc, false), limits);
        let reserved = parse(&[insert(&entry("sketch-reporter", "bit", 1))]);
        bench.engine.apply_changes(0, &reserved, &mut bench.out).unwrap();
        let before = bench.engine.installed_program().clone();
        // Valid changes before and after it are not applied either.
        let good = |ms: u64| insert(&with(entry("flush", "primitive", "append"), "/after_ms", ms));
        let all = [&[good(77)][..], &changes, &[good(78)]].concat();
        let result = bench.engine.apply_changes(0, &parse(&all), &mut bench.out).map_err(|e| e.to_string());
        assert!(result.as_ref().is_err_and(|error| error.contains(reason)), "{reason}: {result:?}");
        assert_eq!(bench.engine.installed_program(), &before, "{reason}");
    }
}

#[test]
fn reporters_may_change_their_bits() {
    let mut bench = Bench::new(&program(Transport::Uc, false), EngineLimits::default());
    let reporter = |reporter: u16, bit: u8| json!({"table": "sketch-reporter", "store": SM, "reporter": reporter, "bit": bit});
    let change = |from: &Value, to: &Value| json!({"change": "modify", "from": from, "to": to});
    let mut apply = |changes: &[Value]| bench.engine.apply_changes(0, &parse(changes), &mut bench.out);
    apply(&[insert(&reporter(1, 0)), insert(&reporter(2, 1))]).unwrap();
    let swap = [change(&reporter(1, 0), &reporter(1, 1)), change(&reporter(2, 1), &reporter(2, 0))];
    let twice = "bit 1 of store";
    assert!(matches!(apply(&swap[..1]), Err(SetupError::Check(why)) if why.to_string().starts_with(twice)));
    apply(&swap).unwrap();
}

#[test]
fn a_store_may_be_replaced_by_one_of_another_id() {
    let mut bench = Bench::new(&program(Transport::Uc, false), EngineLimits::default());
    let mut want = program(Transport::Uc, false);
    let Some(DataPlaneEntry::Store(store)) = want.remove(&EntryKey::Store(KW, 0)) else { panic!() };
    want.set(DataPlaneEntry::Store(Store { spec: StoreSpec { id: 99, ..store.spec }, ..store }));
    want.set(DataPlaneEntry::Version0(Version0 { primitive: Primitive::KeyWrite, store: 99 }));
    let changes = diff_programs(bench.engine.installed_program(), &want);
    bench.engine.apply_changes(0, &changes, &mut bench.out).unwrap();
    assert_eq!(bench.engine.installed_program(), &want);
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..70,
        prop::sample::select(vec![128, 252, 255, 256, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 31, 1 << 32]),
        prop::sample::select(vec![u64::from(u16::MAX), u64::from(u32::MAX), 1 << 48, 1 << 63, u64::MAX]),
    ]
}

fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "x",
        "uc",
        "rc",
        "write",
        "atomic",
        "append",
        "key-write",
        "postcarding",
        "key-increment",
        "sketch-merge",
        "::1",
        "10.9.0.3",
        "sum",
        "max",
        "00:00:00:00:00:01",
    ])
}

type Mutation = (prop::sample::Index, u64, &'static str);

fn leaves(value: &mut Value) -> Vec<&mut Value> {
    match value {
        Value::Object(map) => map.values_mut().flat_map(leaves).collect(),
        Value::Array(items) => items.iter_mut().flat_map(leaves).collect(),
        leaf => vec![leaf],
    }
}

fn mutate(entry: &mut Value, (which, number, word): &Mutation) {
    let mut leaves = leaves(entry);
    let leaf = which.get_mut(&mut leaves);
    **leaf = match leaf {
        Value::Number(_) => json!(number),
        Value::Bool(it) => json!(!*it),
        _ => json!(word),
    };
}

fn change() -> impl Strategy<Value = Value> {
    let mutation = (any::<prop::sample::Index>(), number(), word());
    let mutations = prop::collection::vec(mutation, 0..3);
    (0u8..5, any::<prop::sample::Index>(), mutations).prop_map(|(kind, which, mutations)| {
        let entries = entries();
        let from = which.get(&entries).clone();
        let mut to = from.clone();
        mutations.iter().for_each(|mutation| mutate(&mut to, mutation));
        match kind {
            0 => delete(&to),
            1 => json!({"change": "modify", "from": from, "to": to}),
            2 => forget(&to),
            _ => insert(&to),
        }
    })
}

proptest! {
    /// Any changes as JSON, and any reports after them: nothing panics, what is refused changes nothing, and
    /// every report is accounted for.
    #[test]
    fn no_change_that_can_be_written_down_breaks_the_engine(
        rounds in prop::collection::vec(
            (prop::collection::vec(change(), 0..4), prop::collection::vec((any_body(), 0u8..16), 0..12)), 1..12),
        writes_on_rc: bool,
        name_reports: bool,
    ) {
        let limits = EngineLimits { postcard_rows: 4, sketch_columns: 1 << 12, name_reports, ..EngineLimits::default() };
        let transport = if writes_on_rc { Transport::Rc } else { Transport::Uc };
        let mut bench = Bench::new(&program(transport, false), limits);
        for (now, (changes, reports)) in rounds.iter().enumerate() {
            let now = now as u64 * 6_000_000;
            let changes: Vec<DataPlaneChange> =
                changes.iter().filter_map(|c| serde_json::from_str(&c.to_string()).ok()).collect();
            let before = bench.engine.installed_program().clone();
            match bench.engine.apply_changes(now, &changes, &mut bench.out) {
                Ok(()) => prop_assert_eq!(Ok(bench.engine.installed_program().clone()), apply_changes(&before, &changes)),
                Err(_) => prop_assert_eq!(bench.engine.installed_program(), &before),
            }
            bench.out.clear();
            for ((store, bytes), argument) in reports {
                let opcode = match store { 6 => 2, s => *s as u8 };
                let sequence = bench.sequence.to_be_bytes();
                bench.sequence += 1;
                let mut payload = vec![opcode, sequence[3], 0x81, *argument];
                payload.extend_from_slice(&store.to_be_bytes());
                payload.extend_from_slice(&[0, argument & 3]);
                payload.extend_from_slice(&sequence);
                payload.extend_from_slice(bytes);
                bench.ingest(now, &[datagram(&payload)]);
            }
            bench.engine.run_timers(now + 3_000_000, &mut bench.out);
            bench.out.clear();
            prop_assert_eq!(bench.engine.engine_counters().find_imbalance(), None);
        }
        bench.engine.flush_held_reports(u64::MAX / 2, &mut bench.out);
        bench.out.clear();
        prop_assert_eq!(bench.engine.engine_counters().find_imbalance(), None);
        let held: u64 = bench.engine.engine_counters().primitives.iter().map(|p| p.held).sum();
        prop_assert_eq!(held, 0);
    }
}

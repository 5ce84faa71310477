//! A P4 switch as `dta-translator setup --switch` programs it, over the real protocol, without a switch.

#[path = "../common/chaos.rs"]
mod chaos;
mod commands;
#[allow(dead_code, reason = "nobody sends to the NIC here")]
#[path = "../common/mod.rs"]
mod common;
mod failing;
mod profiles;
mod reporter;
mod shared;
#[path = "../common/simple_switch.rs"]
mod simple_switch;
mod switch;
mod tofino;

use std::fmt::Write as _;
use std::path::Path;

use common::Fake;
use dta_proto::buckets::Buckets;
use dta_proto::counter::find_counter;
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Primitive, Program, Store};
use dta_proto::store::StoreKind;
use dta_switch::messages::bfruntime::bfrt::data_field;
use dta_switch::messages::p4runtime::read_p4info;
use dta_switch::p4runtime::Compiled;
use dta_switch::pipeline::TRANSLATOR;
use dta_switch::runtime::BATCH;
use dta_switch::schema::Schema;
use dta_switch::tables::{Holds, Item, Match, Tables};
use dta_switch::tofino::Profile;
use dta_switch::tofino::required_schema;
use dta_switch::translator::{SET_LIST, SET_PSN, USED};
use dta_switch::{After, ApplyError, Target, TargetError};
use dta_translator::config::Config;
use dta_translator::setup;
use dta_translator::targets::any_switch;
use simple_switch::SimpleSwitch;
use switch::{FakeSwitch, number};

thread_local! {
    /// One for each test: connections last from one call to the next.
    static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// Applies a program. If the switch has restarted, the next attempt comes after opening the sessions again, as with a
/// lease.
fn attempt(
    target: &mut impl Target,
    program: &Program,
    after: &mut After,
) -> Result<Vec<DataPlaneChange>, ApplyError> {
    let done = block_on(target.apply_program(program, *after));
    if done.as_ref().is_err_and(|error| matches!(error.error, TargetError::Restarted)) {
        *after = After::Open;
    }
    done
}

/// A collector, a switch, and a place for its state file.
struct Bed {
    fake: Fake,
    _nic: common::Nic,
    switch: FakeSwitch,
    dir: tempfile::TempDir,
}

impl Bed {
    fn start() -> Bed {
        let (fake, nic) = Fake::start();
        Bed { fake, _nic: nic, switch: FakeSwitch::start(), dir: tempfile::tempdir().unwrap() }
    }

    /// The configuration of the bed, with more in the switch's table.
    fn config(&self, more: &str) -> Config {
        self.config_of("", more)
    }

    fn config_of(&self, translator: &str, more: &str) -> Config {
        let text = format!(
            "[translator]\ncollector = '{}'\nlisten = '10.0.0.1:40040'\nsource = '10.0.0.1'\nmac = '02:00:00:00:00:02'\n{translator}\n\
             [switch.b1]\ntype = 'bmv2'\ncontrol = '{}'\nstate = '{}'\ncollector_ports = [1]\ncollector_macs = ['02:00:00:00:00:01']\n{more}\n",
            self.fake.url(),
            self.switch.address,
            self.kept().display(),
        );
        let (config, _) = Config::parse(&text, Path::new("t.toml")).unwrap();
        config.check_values().unwrap();
        config
    }

    fn kept(&self) -> std::path::PathBuf {
        self.dir.path().join("kept.json")
    }

    /// What the switch holds, as text.
    fn text(&self, config: &Config) -> String {
        let tables = block_on(profiles::target(config).runtime_mut().read()).unwrap().expect("its program");
        // The socket that stands for the NIC has any port.
        let port = format!("{:#x}", self.fake.nic_port());
        text_of(&tables).replace(&format!(" {port},"), " NIC,")
    }
}

/// Tables as text.
fn text_of(tables: &Tables) -> String {
    let mut text = String::new();
    for (item, holds) in tables.iter() {
        let item = match item {
            Item::Node(id) => format!("node {id}"),
            Item::Group(id) => format!("group {id}"),
            Item::Clone(id) => format!("clone {id}"),
            Item::Deflection(pipe) => format!("deflection of pipe {pipe}"),
            Item::Default { table } => format!("{table} default"),
            Item::Row { table, key, order } => {
                let key = key.iter().map(|matched| match matched {
                    Match::Exact(value) => format!("{value:#x}"),
                    Match::Prefix { value, len } => format!("{value:#x}/{len}"),
                    Match::Masked { value, mask } => format!("{value:#x}&{mask:#x}"),
                    Match::Range { low, high } => format!("{low:#x}..{high:#x}"),
                });
                let order = if *order == 0 { String::new() } else { format!(" ({order})") };
                format!("{table} {}{order}", key.collect::<Vec<_>>().join(" "))
            }
        };
        match holds {
            Holds::Copies(copies) => writeln!(text, "{item}: {copies:?}").unwrap(),
            Holds::Mirror(mirror) => writeln!(text, "{item}: {mirror:?}").unwrap(),
            Holds::Queue { port, queue } => writeln!(text, "{item}: queue {queue} of port {port}").unwrap(),
            Holds::Action { name, params } => {
                let params = params.iter().map(|param| format!("{param:#x}"));
                writeln!(text, "{item}: {name}({})", params.collect::<Vec<_>>().join(", ")).unwrap();
            }
        }
    }
    text
}

/// What the switch of the bed holds when it is programmed. `DTA_WRITE_GOLDEN=1` writes it.
fn is_golden(text: &str) {
    is_as_in("golden.txt", text);
}

fn is_as_in(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/p4").join(name);
    if std::env::var_os("DTA_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&path).unwrap(), "{}", path.display());
}

#[test]
fn the_compiled_program_has_all_that_is_used() {
    let compiled = Compiled::load(&TRANSLATOR, None).unwrap();
    assert!(compiled.schema.check_required(&USED).is_ok());
    let changed = |change: fn(&mut dta_switch::messages::p4runtime::config::P4Info)| {
        let mut info = read_p4info(&compiled.p4info).unwrap();
        change(&mut info);
        Schema::of_p4info(&info).check_required(&USED).unwrap_err().to_string()
    };
    let error = changed(|info| {
        let table =
            info.tables.iter_mut().map(|t| t.preamble.as_mut().unwrap()).find(|p| p.name.ends_with(".store"));
        table.unwrap().name = "Admission.stores".into();
    });
    assert!(error.ends_with("there is no table store"), "{error}");
    let error = changed(|info| {
        let action =
            info.actions.iter_mut().find(|a| a.preamble.as_ref().unwrap().name.ends_with(".use_region"));
        action.unwrap().params[2].bitwidth = 31;
    });
    assert!(error.contains("the parameters of action use_region of table region"), "{error}");
    let error = changed(|info| {
        let table = info.tables.iter_mut().find(|t| t.preamble.as_ref().unwrap().name.ends_with(".answer"));
        table.unwrap().match_fields[1].name = "qpn".into();
    });
    assert!(error.contains("the key of table answer"), "{error}");
    let error =
        changed(|info| info.counters.retain(|c| !c.preamble.as_ref().unwrap().name.ends_with(".dropped")));
    assert!(error.ends_with("there are no counters dropped"), "{error}");
    let error = changed(|info| info.controller_packet_metadata.clear());
    assert!(error.contains("the fields of packet_out"), "{error}");
}

#[test]
fn setup_makes_the_golden_state_and_a_second_one_writes_nothing() {
    let bed = Bed::start();
    let config = bed.config("");
    block_on(async {
        let all = setup::program_switch(&config, "b1").await.unwrap();
        assert!(all.len() > 8, "{all:?}");
        let (requests, loads) = bed.switch.with(|state| (state.requests, state.loads));
        assert_eq!((requests, loads), (1, 1));
        assert_eq!(setup::program_switch(&config, "b1").await.unwrap(), []);
        assert_eq!(bed.switch.with(|state| (state.requests, state.loads)), (1, 1));
        let want = setup::preview_program(&config.translator_of("b1").unwrap()).await.unwrap();
        let mut b1 = any_switch(&config, "b1").unwrap();
        assert_eq!(b1.required_changes(&want, After::Open).await.unwrap(), []);
        assert_eq!(b1.held_program().await.unwrap().entries().count(), want.entries().count());
        // Both queue pairs begin where the session says.
        let commands = bed.switch.with(|state| state.commands.clone());
        let psns: Vec<_> = commands.iter().filter(|values| values[0] == number(SET_PSN.into())).collect();
        let is_of = |entry: &&DataPlaneEntry| matches!(entry, DataPlaneEntry::QueuePair(_));
        assert_eq!(psns.len(), want.entries().filter(is_of).count());
    });
    is_golden(&bed.text(&config));
}

#[test]
fn setup_that_was_killed_after_any_update_is_finished_by_the_next() {
    let bed = Bed::start();
    let config = bed.config("");
    block_on(setup::program_switch(&config, "b1")).unwrap();
    let (golden, of) = (bed.switch.holds(), bed.switch.with(|state| state.updates));
    is_golden(&bed.text(&config));
    for made in 0..of {
        // A new switch each time, and every other time the answer is lost with the connection.
        bed.switch.with(|state| {
            *state =
                switch::State { fails_after: Some(made), dies: made % 2 == 1, ..switch::State::default() };
        });
        if made % 3 == 0 {
            let _ = std::fs::remove_file(bed.kept());
        }
        block_on(async {
            let error = setup::program_switch(&config, "b1").await.unwrap_err();
            let failed = error.downcast_ref::<ApplyError>().expect("the target's own error");
            assert!(failed.error.is_retryable(), "{failed}");
            bed.switch.with(|state| state.fails_after = None);
            assert!(!setup::program_switch(&config, "b1").await.unwrap().is_empty());
            assert_eq!(setup::program_switch(&config, "b1").await.unwrap(), []);
        });
        assert_eq!(bed.switch.holds(), golden, "after {made}");
        let state = bed.switch.with(|state| (state.updates, state.loads));
        assert_eq!(state, (of, 1), "no update was made twice");
    }
}

/// 4,000 stations, 4,000 routes and 1,000 listed reporters, each of which has two rows.
fn with_ten_thousand_rows(mut config: Config) -> Config {
    use dta_proto::program::Mac;
    use dta_switch::options::{Station, SwitchRoute};
    use dta_translator::config::{ListedReporter, Switch};
    let byte = |number: u16, place: usize| number.to_be_bytes()[place];
    let Some(Switch::Bmv2(p4) | Switch::Tofino(p4)) = config.switch.get_mut("b1") else { panic!() };
    p4.stations =
        (0..4000).map(|i| Station { mac: Mac([2, 0, 0, 1, byte(i, 0), byte(i, 1)]), port: i % 64 }).collect();
    p4.routes = (0..4000)
        .map(|i| SwitchRoute {
            prefix: format!("10.{}.{}.0/24", byte(i, 0), byte(i, 1)).parse().unwrap(),
            port: 1,
            source: Mac([2, 0, 0, 0, 0, 2]),
            destination: Mac([2, 0, 0, 0, 0, 7]),
        })
        .collect();
    config.translator.reporters = (0..1000)
        .map(|i| ListedReporter { id: i + 1, address: (0x0a63_0000 + u32::from(i)).into() })
        .collect();
    config.check_values().unwrap();
    config
}

#[test]
fn ten_thousand_entries_take_few_requests() {
    let bed = Bed::start();
    let config = with_ten_thousand_rows(bed.config(""));
    block_on(setup::program_switch(&config, "b1")).unwrap();
    let (requests, updates) = bed.switch.with(|state| (state.requests, state.updates));
    assert!(
        updates >= 10_000 && requests <= 100 && requests == updates.div_ceil(BATCH),
        "{updates} in {requests}"
    );
    assert_eq!(bed.switch.rows(".l2") + bed.switch.rows(".l3") + bed.switch.rows(".reporter"), 10_000);
    block_on(setup::program_switch(&config, "b1")).unwrap();
    assert_eq!(bed.switch.with(|state| state.requests), requests);
    // What the configuration no longer has is deleted.
    block_on(setup::program_switch(&bed.config(""), "b1")).unwrap();
    assert_eq!(bed.switch.rows(".l2") + bed.switch.rows(".l3") + bed.switch.rows(".reporter"), 0);
}

#[test]
fn a_new_queue_pair_gets_its_psn_and_lists_their_positions() {
    let bed = Bed::start();
    let config = bed.config("");
    block_on(setup::program_switch(&config, "b1")).unwrap();
    bed.switch.with(|state| state.commands.clear());
    let before = bed.switch.with(|state| state.updates);
    // The collector lost its sessions.
    bed.fake.state.lock().unwrap().generation = 7;
    let changes = block_on(setup::program_switch(&config, "b1")).unwrap();
    assert!(changes.len() >= 4, "{changes:?}");
    let commands = bed.switch.with(|state| state.commands.clone());
    let of = |command: u8| commands.iter().filter(|values| values[0] == number(command.into())).count();
    assert_eq!((of(SET_PSN), of(SET_LIST)), (2, 4), "{commands:?}");
    // The rows of both queue pairs, which have other numbers, and no other.
    assert_eq!(bed.switch.with(|state| state.updates), before + 2);
    assert_eq!(block_on(setup::program_switch(&config, "b1")).unwrap(), []);
}

#[test]
fn rows_that_somebody_changed_are_written_again() {
    let bed = Bed::start();
    let config = bed.config("");
    block_on(setup::program_switch(&config, "b1")).unwrap();
    let golden = bed.switch.holds();
    bed.switch.with(|state| {
        let first = state.entities.keys().next().unwrap().clone();
        state.entities.remove(&first);
        let last = state.entities.keys().next_back().unwrap().clone();
        state.entities.remove(&last);
    });
    block_on(setup::program_switch(&config, "b1")).unwrap();
    assert_eq!(bed.switch.holds(), golden);
    // Another program was loaded: everything is written again.
    bed.switch.with(|state| *state = switch::State::default());
    block_on(setup::program_switch(&config, "b1")).unwrap();
    assert_eq!(bed.switch.holds(), golden);
}

#[test]
fn groups_of_another_program_are_deleted_before_the_own_one_is_loaded() {
    let bed = Bed::start();
    let config = bed.config("");
    block_on(setup::program_switch(&config, "b1")).unwrap();
    let golden = bed.switch.holds();
    // Somebody loads another program, and the replication engine keeps its groups, as in bmv2.
    bed.switch.with(|state| {
        state.pipeline.as_mut().unwrap().cookie = None;
        state.loads = 0;
    });
    block_on(setup::program_switch(&config, "b1")).unwrap();
    assert_eq!(bed.switch.with(|state| (state.loads, state.copies_at_load)), (1, 0));
    assert_eq!(bed.switch.holds(), golden);
}

#[test]
fn an_emptied_switch_has_no_row_of_a_session() {
    let bed = Bed::start();
    let config = bed.config("stations = [{ mac = '02:00:00:00:00:09', port = 3 }]");
    block_on(async {
        setup::program_switch(&config, "b1").await.unwrap();
        setup::clear_switch(&config, "b1").await.unwrap();
        assert!(any_switch(&config, "b1").unwrap().held_program().await.unwrap().is_empty());
    });
    for table in USED.tables.iter() {
        let rows = bed.switch.rows(&format!(".{}", table.name));
        assert_eq!(rows, usize::from(table.name == "l2"), "{}", table.name);
    }
}

#[test]
fn what_a_switch_cannot_do_is_refused_before_the_first_write() {
    let bed = Bed::start();
    let refused = |config: &Config| block_on(setup::program_switch(config, "b1")).unwrap_err().to_string();
    let error = refused(&bed.config("listen = '10.0.0.1:40041'"));
    assert!(error.contains("only at UDP port 40040"), "{error}");
    let text = "listen = '10.0.0.1:40040'";
    let config = bed.config(text);
    let mut target = profiles::target(&config);
    let mut refused = |change: fn(&mut Store)| {
        let sample: Program =
            serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
        let mut entries: Vec<DataPlaneEntry> = sample.into();
        for entry in &mut entries {
            match entry {
                DataPlaneEntry::Store(store) => change(store),
                DataPlaneEntry::QueuePair(pair) => pair.source.mac = "02:00:00:00:00:02".parse().unwrap(),
                _ => {}
            }
        }
        block_on(target.apply_program(&Program::from(entries), After::Open)).unwrap_err().to_string()
    };
    let error = refused(|store| {
        if let StoreKind::Append { batch_len, .. } = &mut store.spec.kind {
            *batch_len = 128;
        }
    });
    assert!(error.contains("store ap cannot be written by this switch"), "{error}");
    let error = refused(|store| {
        if let StoreKind::KeyWrite { .. } = store.spec.kind {
            store.buckets =
                [Buckets::from_range(0, 127), Buckets::from_range(128, 255)].into_iter().collect();
        }
    });
    assert!(error.contains("store kw cannot be written") && error.contains("spread_copies"), "{error}");
    // One of two collectors that count all keys.
    let error = refused(|store| {
        if let StoreKind::KeyIncrement { replicas, .. } = &mut store.spec.kind {
            *replicas = 2;
        }
    });
    assert!(error.contains("store ki cannot be written") && error.contains("replicas"), "{error}");
    assert_eq!(bed.switch.with(|state| (state.requests, state.loads)), (0, 0));
}

#[test]
fn what_a_switch_counts_has_the_names_of_every_translator() {
    let bed = Bed::start();
    let config = bed.config("");
    block_on(setup::program_switch(&config, "b1")).unwrap();
    let info = read_p4info(&Compiled::load(&TRANSLATOR, None).unwrap().p4info).unwrap();
    let id = |name: &str| {
        let all = info.counters.iter().map(|c| c.preamble.as_ref().unwrap());
        all.clone().find(|p| p.name.rsplit('.').next() == Some(name)).unwrap().id
    };
    let append = i64::from(Primitive::Append.opcode());
    bed.switch.with(|state| {
        for (name, index, count) in [
            ("received", 0, 30),
            ("received", append, 25),
            ("accepted", append, 21),
            ("dropped", 8, 4),
            ("dropped", 1, 5),
            // 3 batches of 1, 2 of 8.
            ("emitted", append * 8, 3),
            ("emitted", append * 8 + 3, 2),
            ("operations", append, 5),
            ("pair_frames", 0, 5),
            ("store_frames", 1, 5),
            ("nacked_sequences", 4, 2),
        ] {
            state.counters.insert((id(name), index), count);
        }
    });
    let nodes = block_on(async { any_switch(&config, "b1").unwrap().statistics().await.unwrap() });
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].node, "translator/b1");
    for counter in &nodes[0].counters {
        let found = find_counter(&nodes[0].node, &counter.name);
        assert!(found.is_some_and(|found| found.known), "{}", counter.name);
    }
    let count = |name: &str| {
        let found = nodes[0].counters.iter().find(|counter| counter.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).value
    };
    for (name, value) in [
        ("received", 30),
        ("accepted", 21),
        ("append.emitted", 19),
        ("append.held", 2),
        ("held", 2),
        ("operations", 5),
        ("frames", 5),
        ("dropped.unknown_store", 4),
        ("dropped.header", 5),
        ("queue_pair.write.sent", 5),
        ("store.events.frames", 5),
        ("nacked_sequences", 32),
    ] {
        assert_eq!(count(name), value, "{name}");
    }
}

/// A configuration with a Tofino in the place of the bed's switch.
fn tofino_config(bed: &Bed, tofino: &tofino::FakeTofino, more: &str) -> Config {
    let config = bed.config(more);
    let text = toml_of(&config).replace("\"bmv2\"", "\"tofino\"");
    let text = text.replace(&bed.switch.address.to_string(), &tofino.address.to_string());
    let (config, _) = Config::parse(&text, Path::new("t.toml")).unwrap();
    config.check_values().unwrap();
    config
}

fn toml_of(config: &Config) -> String {
    toml::to_string(config).unwrap()
}

#[test]
fn a_tofino_gets_the_same_rows_and_is_finished_after_any_kill() {
    let bed = Bed::start();
    bed.fake.state.lock().unwrap().batch_len = 16;
    let tofino = tofino::FakeTofino::start(&tofino::program());
    let config = tofino_config(&bed, &tofino, "");
    let all = block_on(setup::program_switch(&config, "b1")).unwrap();
    assert!(all.len() > 8, "{all:?}");
    assert_eq!(block_on(setup::program_switch(&config, "b1")).unwrap(), []);
    let golden = tofino.with(|state| state.entries.clone());
    let of = tofino.with(|state| state.updates);
    // Each table has the rows that a bmv2 has, and groups have their copies. The four lists are one prefix.
    let other = bed.config("");
    std::fs::remove_file(bed.kept()).unwrap();
    block_on(setup::program_switch(&other, "b1")).unwrap();
    let used = required_schema(Profile::Postcards);
    for table in used.tables.iter().filter(|table| table.name != "row_region") {
        let rows = (tofino.rows(table.name), bed.switch.rows(&format!(".{}", table.name)));
        assert_eq!(rows.0, rows.1, "{}", table.name);
    }
    // NACKs, and postcards that come once more.
    assert_eq!((tofino.rows("$pre.mgid"), tofino.rows("$pre.node"), tofino.rows("$mirror.cfg")), (8, 20, 2));
    assert_eq!(tofino.register("list_sequence", 1), Some(vec![0, 0, 0, 5]));
    assert!(tofino.register("next_psn", 0).is_some() && tofino.register("next_psn", 1).is_some());

    for made in 0..of {
        tofino.with(|state| {
            state.entries.clear();
            (state.updates, state.fails_after) = (0, Some(made));
        });
        let _ = std::fs::remove_file(bed.kept());
        block_on(async {
            let error = setup::program_switch(&config, "b1").await.unwrap_err();
            assert!(error.downcast_ref::<ApplyError>().expect("the target's own error").error.is_retryable());
            tofino.with(|state| state.fails_after = None);
            setup::program_switch(&config, "b1").await.unwrap();
            assert_eq!(setup::program_switch(&config, "b1").await.unwrap(), []);
        });
        let mut now = tofino.with(|state| state.entries.clone());
        // The first PSN is another one each time.
        let mut golden = golden.clone();
        let psn = tofino.id("next_psn");
        let is_psn = |(table, _): &(u32, Vec<u8>), _: &mut _| *table != psn;
        now.retain(is_psn);
        golden.retain(is_psn);
        assert_eq!(now, golden, "after {made}");
    }
}

#[test]
fn ten_thousand_entries_take_a_tofino_few_requests() {
    let bed = Bed::start();
    bed.fake.state.lock().unwrap().batch_len = 16;
    let tofino = tofino::FakeTofino::start(&tofino::program());
    let mut config = with_ten_thousand_rows(tofino_config(&bed, &tofino, ""));
    // The program has room for 2,048 routes.
    let Some(dta_translator::config::Switch::Tofino(p4)) = config.switch.get_mut("b1") else { panic!() };
    p4.routes.truncate(2000);
    config.translator.reporters.extend((0..1040).map(|i| dta_translator::config::ListedReporter {
        id: i + 1001,
        address: (0x0a64_0000 + u32::from(i)).into(),
    }));
    block_on(setup::program_switch(&config, "b1")).unwrap();
    let (requests, updates) = tofino.with(|state| (state.requests, state.updates));
    assert!(updates >= 10_000 && requests <= 100, "{updates} in {requests}");
    let rows = tofino.rows("l2") + tofino.rows("l3") + tofino.rows("reporter");
    assert_eq!(rows, 4000 + 2000 + 2 * 2040);
    block_on(setup::program_switch(&config, "b1")).unwrap();
    assert_eq!(tofino.with(|state| state.requests), requests);
}

#[test]
fn a_tofino_floods_all_ports_that_are_named() {
    let bed = Bed::start();
    bed.fake.state.lock().unwrap().batch_len = 16;
    let tofino = tofino::FakeTofino::start(&tofino::program());
    let mut ports: Vec<u32> = (0..40).rev().map(|port| 4 * port).filter(|port| *port != 68).collect();
    let config = tofino_config(&bed, &tofino, &format!("flood = {ports:?}"));
    block_on(setup::program_switch(&config, "b1")).unwrap();
    assert_eq!(block_on(setup::program_switch(&config, "b1")).unwrap(), []);
    let (node, port) = (tofino.id("$pre.node"), 4);
    let flooded = tofino.with(|state| {
        let nodes = state.entries.iter().filter(|((table, _), _)| *table == node);
        let fields = nodes.flat_map(|(_, entry)| &entry.data.as_ref().unwrap().fields);
        let lists = fields.filter(|field| field.field_id == port).filter_map(|field| match &field.value {
            Some(data_field::Value::IntArrVal(list)) => Some(list.val.clone()),
            _ => None,
        });
        lists.max_by_key(Vec::len).unwrap()
    });
    ports.reverse();
    assert_eq!(flooded, ports);
}

#[test]
fn a_tofino_refuses_stores_that_its_program_cannot_write() {
    let bed = Bed::start();
    let tofino = tofino::FakeTofino::start(&tofino::program());
    // Batches of 32 bytes.
    let error =
        block_on(setup::program_switch(&tofino_config(&bed, &tofino, ""), "b1")).unwrap_err().to_string();
    assert!(error.contains("store events cannot be written by this switch: batches of 32 bytes"), "{error}");
    assert_eq!(tofino.with(|state| state.requests), 0);
}

#[test]
fn a_tofino_whose_program_has_other_tables_is_refused() {
    let bed = Bed::start();
    let refusal = |change: fn(&mut serde_json::Value)| {
        let mut program = tofino::program();
        change(&mut program);
        let tofino = tofino::FakeTofino::start(&program);
        let error =
            block_on(setup::program_switch(&tofino_config(&bed, &tofino, ""), "b1")).unwrap_err().to_string();
        assert_eq!(tofino.with(|state| state.requests), 0);
        error
    };
    let error =
        refusal(|program| tofino::table_of(program, "store")["name"] = "pipe.Admission.stores".into());
    assert!(error.ends_with("there is no table store"), "{error}");
    let error = refusal(|program| {
        let actions = tofino::table_of(program, "region")["action_specs"].as_array_mut().unwrap();
        let action =
            actions.iter_mut().find(|action| action["name"].as_str().unwrap().ends_with("use_region"));
        action.unwrap()["data"][2]["type"]["width"] = 31.into();
    });
    assert!(error.contains("the parameters of action use_region"), "{error}");
    let error = refusal(|program| {
        let tables = program["tables"].as_array_mut().unwrap();
        tables.retain(|table| !table["name"].as_str().unwrap().ends_with(".next_psn"));
    });
    assert!(error.ends_with("has no registers next_psn"), "{error}");
}

#[test]
fn a_real_switch_holds_what_the_one_of_tests_does() {
    let test = "a_real_switch_holds_what_the_one_of_tests_does";
    if !simple_switch::is_there(test) {
        return;
    }
    let control = simple_switch::free_address().to_string();
    let _switch = SimpleSwitch::start(&[], &control);
    let bed = Bed::start();
    let text = toml_of(&bed.config("")).replace(&bed.switch.address.to_string(), &control);
    let (config, _) = Config::parse(&text, Path::new("t.toml")).unwrap();
    block_on(setup::program_switch(&config, "b1")).unwrap();
    is_golden(&bed.text(&config));
    assert_eq!(block_on(setup::program_switch(&config, "b1")).unwrap(), []);
    block_on(setup::clear_switch(&config, "b1")).unwrap();
    assert!(block_on(profiles::target(&config).held_program()).unwrap().is_empty());
    block_on(setup::program_switch(&config, "b1")).unwrap();
    is_golden(&bed.text(&config));
    shared::is_programmed(&bed, &config);
}

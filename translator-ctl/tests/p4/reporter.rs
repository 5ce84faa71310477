//! A reporter switch as `dta-translator setup --switch` programs it, over the real protocols, without a switch.

use std::path::Path;
use std::process::{Command, Output};

use dta_switch::bfruntime;
use dta_switch::messages::p4runtime::read_p4info;
use dta_switch::p4runtime::Compiled;
use dta_switch::pipeline::REPORTER;
use dta_switch::reporter::{ReporterSwitch, tables::USED, tofino::USED as TOFINO};
use dta_switch::schema::Schema;
use dta_switch::tables::{Holds, Item, SwitchUpdate, Tables};
use dta_switch::{ApplyError, TargetError};
use dta_translator::config::{Config, ConfigError, Switch};
use dta_translator::targets::reporter_switch;

use super::simple_switch::{self, SimpleSwitch};
use super::switch::{self, FakeSwitch, State};
use super::tofino::{self, FakeTofino};
use super::{block_on, is_as_in, text_of};

const FILE: &str = include_str!("reporter.toml");

fn parse(text: &str) -> Result<Config, ConfigError> {
    let (config, _) = Config::parse(text, Path::new("t.toml"))?;
    config.check_values()?;
    Ok(config)
}

/// The configuration of the file, at an address.
fn config(control: &str) -> Config {
    parse(&FILE.replace("CONTROL", control)).unwrap()
}

/// The same on Tofino, whose traffic manager deflects what it would drop.
fn text_on_tofino(control: &str, deflect: &str) -> String {
    let text = FILE.replace("CONTROL", control).replace("\"bmv2\"", "\"tofino\"");
    text.replace("every_packet = false\n", &format!("every_packet = false\n{deflect}\n"))
}

const DEFLECT: &str = "deflect = [{ port = 68, queue = 1 }]";

fn on_tofino(control: &str) -> Config {
    parse(&text_on_tofino(control, DEFLECT)).unwrap()
}

fn reporter(config: &Config) -> ReporterSwitch {
    reporter_switch(config, "edge1").unwrap().expect("a reporter")
}

async fn setup(config: &Config) -> anyhow::Result<Vec<SwitchUpdate>> {
    Ok(reporter(config).apply_settings().await?)
}

#[test]
fn setup_makes_the_golden_state_of_a_reporter_and_a_second_one_writes_nothing() {
    let switch = FakeSwitch::start();
    let config = config(&switch.address.to_string());
    block_on(async {
        let mut edge1 = reporter(&config);
        assert_eq!(text_of(&edge1.held_tables().await.unwrap()), "");
        let lacking = edge1.required_updates().await.unwrap();
        assert_eq!(setup(&config).await.unwrap(), lacking);
        assert_eq!(switch.with(|state| (state.requests, state.loads)), (1, 1));
        assert_eq!(setup(&config).await.unwrap(), []);
        assert_eq!(switch.with(|state| (state.requests, state.loads)), (1, 1));
        assert_eq!(edge1.required_updates().await.unwrap(), []);
        let held = edge1.held_tables().await.unwrap();
        assert_eq!(held, edge1.wanted_tables());
        is_as_in("reporter-bmv2.txt", &text_of(&held));
    });
}

/// It ends with this.
struct Watch(std::process::Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_watched_reporter_gets_its_entries_again_after_a_restart_and_its_counters_are_logged() {
    let switch = FakeSwitch::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("translator.toml");
    std::fs::write(&file, FILE.replace("CONTROL", &switch.address.to_string())).unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let watch = Command::new(env!("CARGO_BIN_EXE_dta-translator"))
        .args(["watch", "--switch", "edge1", "--config"])
        .arg(&file)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut watch = Watch(watch);
    let config = config(&switch.address.to_string());
    let wanted = block_on(async { reporter(&config).wanted_tables() });
    let is_whole = || block_on(async { reporter(&config).held_tables().await.unwrap() == wanted });
    let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_so() {
            assert!(std::time::Instant::now() < until, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    let has_program = || switch.with(|state| state.loads) > 0;
    wait_until("it is programmed", &|| has_program() && is_whole());
    // Like a restarted switch: no program, no rows. Its connection stays.
    switch.with(|state| *state = State { primary: state.primary, ..State::default() });
    wait_until("it is programmed again", &|| has_program() && is_whole());
    // Somebody deletes a row.
    switch.with(|state| {
        let first = state.entities.keys().next().unwrap().clone();
        let gone = state.entities.remove(&first);
        assert!(gone.is_some());
    });
    wait_until("it has its row again", &is_whole);
    let requests = switch.with(|state| state.requests);
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(switch.with(|state| state.requests), requests, "what is whole is not written again");
    switch.with(|state| {
        let info = state.info.clone().unwrap();
        let received = info.counters.iter().map(|c| c.preamble.as_ref().unwrap());
        let received = received.filter(|p| p.name.ends_with(".received")).map(|p| p.id).next().unwrap();
        state.counters.insert((received, 1), 7);
    });
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(watch.0.id() as i32).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let status = watch.0.wait().unwrap();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(status.success(), "{status}: {log}");
    assert!(log.contains("received.1 7"), "{log}");
    assert_eq!(log.matches("switch programmed").count(), 3, "{log}");
}

#[test]
fn a_tofino_gets_the_golden_state_of_a_reporter() {
    let tofino = FakeTofino::start_as("reporter", &tofino::program_of("reporter"));
    let config = on_tofino(&tofino.address.to_string());
    block_on(async {
        let lacking = reporter(&config).required_updates().await.unwrap();
        assert_eq!(setup(&config).await.unwrap(), lacking);
        let requests = tofino.with(|state| state.requests);
        assert_eq!(setup(&config).await.unwrap(), []);
        assert_eq!(tofino.with(|state| state.requests), requests);
        let held = reporter(&config).held_tables().await.unwrap();
        assert_eq!(held, reporter(&config).wanted_tables());
        is_as_in("reporter-tofino.txt", &text_of(&held));
    });
}

#[test]
fn setup_of_a_reporter_that_was_killed_after_any_update_is_finished_by_the_next() {
    let switch = FakeSwitch::start();
    let config = config(&switch.address.to_string());
    block_on(setup(&config)).unwrap();
    let (golden, of) = (switch.holds(), switch.with(|state| state.updates));
    assert_eq!(of, 49);
    for made in 0..of {
        // A new switch each time, and the answer is lost with the connection each other time.
        switch.with(|state| {
            *state =
                switch::State { fails_after: Some(made), dies: made % 2 == 1, ..switch::State::default() };
        });
        block_on(async {
            let error = setup(&config).await.unwrap_err();
            let failed = error.downcast_ref::<ApplyError>().expect("the target's own error");
            assert!(failed.error.is_retryable(), "{failed}");
            switch.with(|state| state.fails_after = None);
            assert_eq!(setup(&config).await.unwrap().len(), of - made);
            assert_eq!(setup(&config).await.unwrap(), []);
        });
        assert_eq!(switch.holds(), golden, "after {made}");
        assert_eq!(switch.with(|state| (state.updates, state.loads)), (of, 1), "no update was made twice");
    }
}

#[test]
fn setup_of_a_tofino_reporter_that_was_killed_after_any_update_is_finished_by_the_next() {
    let tofino = FakeTofino::start_as("reporter", &tofino::program_of("reporter"));
    let config = on_tofino(&tofino.address.to_string());
    block_on(setup(&config)).unwrap();
    let (golden, of) = tofino.with(|state| (state.entries.clone(), state.updates));
    for made in 0..of {
        tofino.with(|state| {
            state.entries.clear();
            (state.updates, state.fails_after) = (0, Some(made));
        });
        block_on(async {
            let error = setup(&config).await.unwrap_err();
            assert!(error.downcast_ref::<ApplyError>().expect("the target's own error").error.is_retryable());
            tofino.with(|state| state.fails_after = None);
            assert_eq!(setup(&config).await.unwrap().len(), of - made);
        });
        let (now, updates) = tofino.with(|state| (state.entries.clone(), state.updates));
        assert_eq!((now, updates), (golden.clone(), of), "after {made}");
    }
}

/// Which packets of watched flows are deflected.
fn deflected(tables: &Tables) -> Vec<u128> {
    let of = |(item, holds): (&Item, &Holds)| match (item, holds) {
        (Item::Row { table, .. }, Holds::Action { name, params })
            if table == "watchlist" && name == "watch" =>
        {
            Some(params[3])
        }
        _ => None,
    };
    tables.iter().filter_map(of).collect()
}

#[test]
fn a_traffic_manager_deflects_where_the_configuration_says() {
    let tofino = FakeTofino::start_as("reporter", &tofino::program_of("reporter"));
    tofino.with(|state| state.pipes = 2);
    let control = tofino.address.to_string();
    block_on(async {
        let held = async |config: &Config| reporter(config).held_tables().await.unwrap();
        let place = |tables: &Tables, pipe| tables.get(&Item::Deflection(pipe)).cloned();
        let queue = |port, queue| Some(Holds::Queue { port, queue });
        // No target is configured: nothing requests deflection, and the traffic manager is left alone.
        let none = parse(&text_on_tofino(&control, "")).unwrap();
        tofino.with(|state| state.lacks = Some("tf1.tm.pipe.cfg"));
        setup(&none).await.unwrap();
        assert_eq!(deflected(&held(&none).await), [0, 0, 0, 0]);
        let error = setup(&on_tofino(&control)).await.unwrap_err().to_string();
        let words = "has no table tf1.tm.pipe.cfg with mirror_drop_pg_id, mirror_drop_pg_queue,";
        assert!(
            error.contains(words) && error.contains("leave `deflect` out of [switch.NAME.reporter]"),
            "{error}"
        );
        tofino.with(|state| state.lacks = None);

        // Only those flows whose drops are watched.
        let one = on_tofino(&control);
        assert_eq!(place(&held(&one).await, 0), queue(0, 0));
        let updates = setup(&one).await.unwrap();
        assert!(matches!(updates[0], SwitchUpdate::Modify(Item::Deflection(0), _)), "{updates:?}");
        assert_eq!(updates.len(), 1 + 3);
        assert_eq!(deflected(&held(&one).await), [1, 0, 1, 1]);
        assert_eq!(setup(&one).await.unwrap(), []);

        // Another place, and one for another pipe; and somebody else's change is seen.
        let two = "deflect = [{ port = 71 }, { port = 196, queue = 7 }]";
        let two = parse(&text_on_tofino(&control, two)).unwrap();
        assert_eq!(setup(&two).await.unwrap().len(), 2);
        let now = held(&two).await;
        assert_eq!((place(&now, 0), place(&now, 1)), (queue(71, 0), queue(196, 7)));
        setup(&one).await.unwrap();
        assert_eq!(reporter(&two).required_updates().await.unwrap().len(), 1);

        // It stays when reporting stops; nothing requests deflection then.
        reporter(&one).stop_reporting().await.unwrap();
        let now = held(&one).await;
        assert_eq!((place(&now, 0), deflected(&now)), (queue(68, 1), vec![]));
        assert_eq!(reporter(&one).stop_reporting().await.unwrap(), []);

        // A queue that the port does not have.
        let none = parse(&text_on_tofino(&control, "deflect = [{ port = 68, queue = 8 }]")).unwrap();
        let error = setup(&none).await.unwrap_err();
        let cause = error.downcast_ref::<ApplyError>().map(|error| &error.error);
        let words = "has no queue 8 of port 68, which `deflect` names";
        assert!(matches!(cause, Some(TargetError::Refused(message)) if message.ends_with(words)), "{error}");
    });
}

#[test]
fn places_for_deflected_packets_that_cannot_be_are_refused() {
    let refusal = |deflect: &str| parse(&text_on_tofino("127.0.0.1:1", deflect)).unwrap_err().to_string();
    for (deflect, words) in [
        ("deflect = [{ port = 512 }]", "reporter.deflect.port is 512, but must be a port of the switch"),
        ("deflect = [{ port = 68, queue = 32 }]", "reporter.deflect.queue is 32"),
        (
            "deflect = [{ port = 68 }, { port = 69 }]",
            "reporter.deflect.port is 69, but must be in another pipe: a pipe has one such port",
        ),
        (
            "deflect = [{ port = 196 }]",
            "reporter.deflect is without a port of pipe 0, but must be a list with a port of each egress pipe",
        ),
        ("deflect = [{ queue = 1 }]", "missing field `port`"),
    ] {
        let error = refusal(deflect);
        assert!(error.contains(words), "{deflect}: {error}");
    }
    let on_bmv2 = text_on_tofino("127.0.0.1:1", DEFLECT).replace("\"tofino\"", "\"bmv2\"");
    let error = parse(&on_bmv2).unwrap_err().to_string();
    let words = "switch.edge1.reporter.deflect is given, but must be left out of type \"bmv2\"";
    assert!(error.starts_with(words), "{error}");
    let config = on_tofino("127.0.0.1:1");
    assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
}

#[test]
fn a_change_of_the_configuration_writes_the_difference() {
    let switch = FakeSwitch::start();
    let address = switch.address.to_string();
    block_on(async {
        setup(&config(&address)).await.unwrap();
        // The order of the watchlist is part of it: all of its entries move but the ones before.
        let text = FILE.replace("CONTROL", &address).replace("interval_ns = 536870912\n", "");
        let text = text.replace("    { destination = \"10.0.2.99\", report = [] },\n", "");
        let changed = parse(&text).unwrap();
        let updates = setup(&changed).await.unwrap();
        let defaults = updates.iter().filter(|update| matches!(update, SwitchUpdate::Modify(..))).count();
        assert_eq!((defaults, updates.len()), (1, 1 + 5 + 4), "{updates:?}");
        assert_eq!(reporter(&changed).held_tables().await.unwrap(), reporter(&changed).wanted_tables());
    });
}

#[test]
fn a_reporter_that_is_torn_down_forwards_as_before() {
    let switch = FakeSwitch::start();
    let config = config(&switch.address.to_string());
    block_on(async {
        // No program is loaded for that.
        assert_eq!(reporter(&config).stop_reporting().await.unwrap(), []);
        assert_eq!(switch.with(|state| state.loads), 0);
        setup(&config).await.unwrap();
        reporter(&config).stop_reporting().await.unwrap();
        for table in ["excluded", "watchlist", "queue_limits", "report", "destination"] {
            assert_eq!(switch.rows(&format!(".{table}")), 0, "{table}");
        }
        for (table, rows) in [("l2", 6), ("l3", 3), ("acl", 3), ("ingress_port", 4), ("egress_port", 3)] {
            assert_eq!(switch.rows(&format!(".{table}")), rows, "{table}");
        }
        assert_eq!(reporter(&config).stop_reporting().await.unwrap(), []);
        setup(&config).await.unwrap();
        assert_eq!(reporter(&config).held_tables().await.unwrap(), reporter(&config).wanted_tables());
    });
}

#[test]
fn the_compiled_reporters_have_all_that_is_used() {
    let compiled = Compiled::load(&REPORTER, None).unwrap();
    compiled.schema.check_required(&USED).unwrap();
    let tofino = |program: serde_json::Value| {
        bfruntime::schema_from_bfrt(&serde_json::from_value(program).unwrap()).check_required(&TOFINO)
    };
    tofino(tofino::program_of("reporter")).unwrap();
    // Each used table, key, action and parameter is missed if renamed or of another width.
    let missed = |change: &dyn Fn(&mut dta_switch::messages::p4runtime::config::P4Info)| {
        let mut info = read_p4info(&compiled.p4info).unwrap();
        change(&mut info);
        Schema::of_p4info(&info).check_required(&USED).is_err()
    };
    let tables = read_p4info(&compiled.p4info).unwrap().tables.len();
    assert_eq!(tables, USED.tables.len());
    for table in 0..tables {
        assert!(missed(&|info| info.tables[table].preamble.as_mut().unwrap().name.push('x')), "{table}");
        let keys = read_p4info(&compiled.p4info).unwrap().tables[table].match_fields.len();
        for key in 0..keys {
            assert!(missed(&|info| info.tables[table].match_fields[key].bitwidth += 1), "{table} {key}");
            assert!(missed(&|info| info.tables[table].match_fields[key].name.push('x')), "{table} {key}");
        }
    }
    let actions: usize = USED.tables.iter().map(|table| table.actions.len()).sum();
    let mut used = 0;
    for action in read_p4info(&compiled.p4info).unwrap().actions {
        let name = action.preamble.as_ref().unwrap().name.rsplit('.').next().unwrap().to_owned();
        let of = USED.tables.iter().flat_map(|table| table.actions).filter(|of| of.name == name).count();
        used += of;
        let id = action.preamble.as_ref().unwrap().id;
        for param in 0..if of == 0 { 0 } else { action.params.len() } {
            let change = |info: &mut dta_switch::messages::p4runtime::config::P4Info| {
                let of = |a: &&mut dta_switch::messages::p4runtime::config::Action| {
                    a.preamble.as_ref().unwrap().id == id
                };
                info.actions.iter_mut().find(of).unwrap().params[param].bitwidth += 1;
            };
            assert!(missed(&change), "{name} {param}");
        }
    }
    assert!(used >= actions, "{used} of {actions}");
    let renamed = |table: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut program = tofino::program_of("reporter");
        change(tofino::table_of(&mut program, table));
        tofino(program).unwrap_err().to_string()
    };
    let error = renamed("watchlist", &|table| table["key"][3]["type"]["width"] = 15.into());
    assert!(error.contains("the key of table watchlist"), "{error}");
    let error = renamed("settings", &|table| table["action_specs"][0]["data"][3]["name"] = "mask".into());
    assert!(error.contains("the parameters of action set of table settings"), "{error}");
}

#[test]
fn a_switch_of_another_program_and_one_without_room_are_refused() {
    let tofino = FakeTofino::start(&tofino::program());
    let error = block_on(setup(&on_tofino(&tofino.address.to_string()))).unwrap_err().to_string();
    assert!(error.contains("it does not run the program reporter"), "{error}");

    let watch: Vec<String> = (0..600).map(|i| format!("\"10.{}.{}.0/24\"", i / 256, i % 256)).collect();
    let many = format!("watch_subnets = [{}]", watch.join(", "));
    let text =
        |control: &str| FILE.replace("CONTROL", control).replace("watch_subnets = [\"10.7.0.0/16\"]", &many);
    let switch = FakeSwitch::start();
    let error = block_on(setup(&parse(&text(&switch.address.to_string())).unwrap())).unwrap_err().to_string();
    let words = "[switch.edge1] has 1203 entries for table watchlist, but the switch has room for 1024";
    assert_eq!(error, words);
    assert_eq!(switch.with(|state| (state.requests, state.loads)), (0, 0));
    let tofino = FakeTofino::start_as("reporter", &tofino::program_of("reporter"));
    let text = text(&tofino.address.to_string()).replace("\"bmv2\"", "\"tofino\"");
    let error = block_on(setup(&parse(&text).unwrap())).unwrap_err();
    let cause = error.downcast_ref::<ApplyError>().map(|error| &error.error);
    assert!(
        matches!(cause, Some(TargetError::Refused(message)) if message.ends_with("room for 512")),
        "{error}"
    );
    assert_eq!(tofino.with(|state| state.requests), 0);
}

/// What `scripts/netcfg-to-toml` prints of a netcfg: its tables and its notes, or its error.
fn convert_netcfg(netcfg: &Path, arguments: &[&str]) -> Result<(String, String), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/netcfg-to-toml");
    let output = Command::new("python3").arg(script).arg(netcfg).args(arguments).output().unwrap();
    let [tables, notes] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    if output.status.success() { Ok((tables, notes)) } else { Err(notes) }
}

#[test]
fn a_netcfg_of_sd_fabric_says_what_is_reported() {
    let switch = FakeSwitch::start();
    let netcfg = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/p4/netcfg.json");
    let (tables, notes) = convert_netcfg(&netcfg, &["leaf1"]).unwrap();
    let of_switch =
        format!("[switch.leaf1]\ntype = 'bmv2'\nrole = 'reporter'\ncontrol = '{}'", switch.address);
    let of_reporter = "[switch.leaf1.reporter]\nports = [{ port = 284 }, { port = 296 }]";
    let text = tables.replace("[switch.leaf1]", &of_switch).replace("[switch.leaf1.reporter]", of_reporter);
    let config = parse(&text).unwrap();
    block_on(async {
        let mut leaf1 = reporter_switch(&config, "leaf1").unwrap().unwrap();
        leaf1.apply_settings().await.unwrap();
        is_as_in("reporter-netcfg.txt", &text_of(&leaf1.held_tables().await.unwrap()));
        assert_eq!(leaf1.apply_settings().await.unwrap(), []);
    });
    assert_eq!(
        notes.lines().collect::<Vec<_>>(),
        [
            "report.minFlowHopLatencyChangeNs is 300 and is rounded down to 256, as in SD-Fabric",
            "report.queueReportLatencyThresholds.3 has no triggerNs: the queue is not reported",
            "report.dropReportEnabled is not used",
            "apps.org.onosproject.core is not used",
            "devices.device:leaf2 is not used",
            "device:leaf1.segmentrouting.isEdgeRouter is not used",
            "device:leaf1.segmentrouting.adjacencySids is not used",
            "device:leaf1.basic is not used",
            "hosts.00:00:00:00:00:1A/None is not used",
            "ports is not used",
        ]
    );
    let (other, _) = convert_netcfg(&netcfg, &["tor", "--device", "device:leaf2"]).unwrap();
    assert!(other.contains("switch_id = 102") && !other.contains("port = 296"), "{other}");
    for (arguments, words) in [
        (&["tor"][..], "give --device, the one"),
        (&["leaf1", "--device", "device:leaf9"], "no device 'device:leaf9'"),
    ] {
        let error = convert_netcfg(&netcfg, arguments).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn what_is_wrong_in_a_netcfg_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("netcfg.json");
    assert!(convert_netcfg(&path, &["s"]).unwrap_err().contains("cannot be read"));
    let refusal = |text: &str| {
        std::fs::write(&path, text).unwrap();
        convert_netcfg(&path, &["s"]).unwrap_err()
    };
    assert!(refusal("{").contains("is not JSON"));
    assert!(refusal("[]").contains("says the file is []"));
    assert!(refusal("{\"apps\":{}}").contains("report: it does not say what is reported"));
    for (report, words) in [
        (r#"{"collectorIp":"::1","collectorPort":1}"#, "report.collectorIp is \"::1\""),
        (r#"{"collectorIp":"10.0.0.1"}"#, "without a collectorPort"),
        (r#"{"collectorPort":5500}"#, "without a collectorIp"),
        (r#"{"collectorIp":"10.0.0.1","collectorPort":70000}"#, "collectorPort is 70000"),
        (r#"{"minFlowHopLatencyChangeNs":-1}"#, "minFlowHopLatencyChangeNs is -1"),
        (r#"{"watchSubnets":["10.0.0.0/40"]}"#, "report.watchSubnets is"),
        (r#"{"queueReportLatencyThresholds":{"x":{}}}"#, "\"x\" is not a queue number"),
        (
            r#"{"queueReportLatencyThresholds":{"1":{"triggerNs":"a"}}}"#,
            "report.queueReportLatencyThresholds.1.triggerNs is \"a\"",
        ),
    ] {
        let app = "org.stratumproject.fabric.tna.inbandtelemetry";
        let error = refusal(&format!("{{\"apps\":{{\"{app}\":{{\"report\":{report}}}}}}}"));
        assert!(error.contains(words), "{report}: {error}");
    }
}

#[test]
fn what_is_wrong_is_refused_with_its_key() {
    let refusal = |from: &str, to: &str| {
        assert!(FILE.contains(from), "{from}");
        parse(&FILE.replacen(from, to, 1)).unwrap_err().to_string()
    };
    for (from, to, words) in [
        ("switch_id = 7\n", "", "switch.edge1.reporter.switch_id is missing"),
        ("source = \"198.18.9.7\"\n", "", "switch.edge1.source is missing"),
        ("mac = \"02:00:00:00:00:77\"\n", "", "switch.edge1.mac is missing"),
        ("role = \"reporter\"\n", "", "switch.edge1.reporter is given, but must be left out, or `role`"),
        ("role = \"reporter\"", "role = \"repeater\"", "unknown variant `repeater`"),
        (
            "role = \"reporter\"",
            "role = \"reporter\"\nlisten = '10.0.0.1:40040'",
            "switch.edge1.listen is given",
        ),
        (
            "interval_ns = 536870912",
            "interval_ns = 1000",
            "reporter.interval_ns is 1000, but must be a power of two",
        ),
        ("change_ns = 1024", "change_ns = 1000", "min_flow_hop_latency_change_ns is 1000"),
        ("\"10.7.0.0/16\"", "\"2001:db8::/32\"", "is not an IPv4 prefix"),
        ("\"5000-5999\"", "\"5999-5000\"", "a range of them"),
        ("protocol = \"tcp\"", "protocol = \"gre\"", "the number of an IP protocol"),
        ("{ queue = 3,", "{ queue = 8,", "queue_report_latency_thresholds.queue is 8"),
        ("dscp = 46", "dscp = 64", "queues.dscp is 64"),
        ("hop = 2", "hop = 16", "ports.hop is 16"),
        ("{ port = 3 }", "{ port = 2 }", "ports.port is 2, but must be unique: it is listed twice"),
        ("{ port = 3 }", "{ port = 512 }", "ports.port is 512"),
        ("name = \"t2\"", "name = \"t1\"", "destination.name is \"t1\" twice"),
        ("port = 4\n", "", "destination.port is missing, but must be given because no route leads there"),
        ("hardware = 5", "hardware = 64", "destination.hardware is 64"),
        ("reporter = 77", "packet_bytes = 77", "destination.packet_bytes is given"),
        ("hardware = 5", "reporter = 5", "destination.reporter is 5"),
        ("to = \"t1\"", "to = \"t9\"", "report.to is \"t9\""),
        ("to = \"t1\"\n", "", "report.to is missing"),
        (
            "store = \"lengths\"",
            "store = \"widths\"",
            "report.store is \"widths\", but must be a store whose id",
        ),
        ("as = \"postcard\"", "as = \"postcard\"\nlist = 3", "report.list is given, but must be of append"),
        ("as = \"postcard\"", "as = \"telemetry-report\"", "a translator accepts no Telemetry Reports"),
        ("to = \"t2\"", "to = \"int\"", "an INT collector accepts nothing else"),
        ("redundancy = 2", "redundancy = 5", "report.redundancy is 5"),
        ("key = \"drops\"\n", "", "report.key is missing"),
        ("entry = \"flow\"\n", "", "report.entry is missing"),
        ("key = \"flow\"", "key = \"drops\"", "report.key is of other reports, but must be for drops only"),
        ("of = [\"drop\"]", "of = []", "report.of is empty"),
        (
            "mac = \"02:00:00:00:00:dd\"",
            "mac = \"02:00:00:00:0a:01\"",
            "drop_macs is 02:00:00:00:0a:01 and in another list",
        ),
        (
            "prefix = \"10.9.3.0/24\"",
            "prefix = \"10.0.2.0/24\"",
            "drop_routes is 10.0.2.0/24 and in another list",
        ),
        ("every_packet", "each_packet", "unknown field `each_packet`"),
    ] {
        let error = refusal(from, to);
        assert!(error.contains(words), "{from} -> {to}: {error}");
    }
    let error =
        parse("[switch.a]\ntype = 'bmv2'\nrole = 'reporter'\ncontrol = 'x:1'").unwrap_err().to_string();
    assert!(error.contains("switch.a.reporter.ports is empty"), "{error}");
    // The error says on which line it is.
    let text = FILE.replacen("hop = 2", "hop = 16", 1);
    let (config, places) = Config::parse(&text, Path::new("t.toml")).unwrap();
    let line = 1 + text.lines().position(|line| line.contains("hop = 16")).unwrap();
    let error = places.locate_error(config.check_values().unwrap_err()).to_string();
    assert!(
        error.starts_with(&format!("t.toml, line {line}: switch.edge1.reporter.ports.hop is 16")),
        "{error}"
    );
}

#[test]
fn the_configuration_of_a_reporter_is_written_and_read_again() {
    let config = config("127.0.0.1:1");
    let text = toml::to_string(&config).unwrap();
    assert_eq!(parse(&text).unwrap(), config, "{text}");
    assert!(config.translator_of("edge1").unwrap_err().to_string().contains("is a reporter"));
    let Switch::Bmv2(p4) = config.find_switch("edge1").unwrap() else { panic!() };
    assert!(p4.is_reporter());
}

#[test]
fn what_is_left_out_is_what_the_stores_for_int_want() {
    let text = "[switch.edge1]\ntype = 'bmv2'\nrole = 'reporter'\ncontrol = '127.0.0.1:1'\nsource = '10.0.0.1'\nmac = '02:00:00:00:00:01'\n\
                [switch.edge1.reporter]\nswitch_id = 1\nports = [{ port = 1 }]\nwatch_subnets = ['0.0.0.0/0']\n\
                destination = [{ name = 't', collector_ip = '10.0.0.2', port = 1, mac = '02:00:00:00:00:02' }]\n";
    let config = parse(text).unwrap();
    let wanted = block_on(async { reporter(&config).wanted_tables() });
    is_as_in("reporter-defaults.txt", &text_of(&wanted));
}

#[test]
fn the_examples_of_the_page_are_taken() {
    let page = include_str!("../../../docs/switches.md");
    let blocks = page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let blocks: Vec<&str> = blocks.filter(|block| block.contains("switch.edge1")).collect();
    assert_eq!(blocks.len(), 2);
    let config = parse(&blocks.concat()).unwrap();
    let (_, settings) = config.reporter_of("edge1").unwrap().unwrap();
    assert_eq!(
        (settings.watch.len(), settings.reports.len(), settings.thresholds[0].quota),
        (2, 1, Some(1024))
    );
}

#[test]
fn kinds_that_become_nothing_have_no_clone_session() {
    let before = FILE.split("[[switch.edge1.reporter.report]]").next().unwrap();
    let text = format!(
        "{before}[[switch.edge1.reporter.report]]\nof = ['drop']\nto = 't1'\nas = 'append'\nstore = 'int-events'\n"
    );
    let config = parse(&text.replace("CONTROL", "127.0.0.1:1")).unwrap();
    let wanted = block_on(async { reporter(&config).wanted_tables() });
    for session in 1..=4 {
        let copies = (session == 4).then(|| Holds::Copies(vec![(3, 1)]));
        assert_eq!(wanted.get(&Item::Clone(session)), copies.as_ref(), "{session}");
    }
}

#[test]
fn what_a_reporter_counts_has_the_names_of_its_program() {
    let switch = FakeSwitch::start();
    let config = config(&switch.address.to_string());
    block_on(setup(&config)).unwrap();
    let info = read_p4info(&Compiled::load(&REPORTER, None).unwrap().p4info).unwrap();
    let id = |name: &str| {
        let mut all = info.counters.iter().map(|c| c.preamble.as_ref().unwrap());
        all.find(|p| p.name.rsplit('.').next() == Some(name)).unwrap().id
    };
    switch.with(|state| {
        for (name, index, count) in [
            ("received", 1, 30),
            ("watched", 0, 20),
            ("dropped", 80, 4),
            ("mirrored", 3, 2),
            ("sent", 2, 7),
            ("sent", 9, 1),
            ("no_flow", 0, 3),
        ] {
            state.counters.insert((id(name), index), count);
        }
    });
    let node = block_on(async { reporter(&config).statistics().await }).unwrap();
    let counters: Vec<_> = node.counters.iter().map(|c| (c.name.as_str(), c.value)).collect();
    assert_eq!(node.node, "reporter/edge1");
    assert_eq!(
        counters,
        [
            ("dropped.80", 4),
            ("mirrored.flow-and-queue", 2),
            ("no_flow.ipv6", 3),
            ("received.1", 30),
            ("sent.t2", 7),
            ("sent.9", 1),
            ("watched", 20),
        ]
    );
}

/// Runs the program with a configuration.
fn run(folder: &Path, control: &str, arguments: &[&str]) -> Output {
    let path = folder.join("t.toml");
    std::fs::write(&path, FILE.replace("CONTROL", control)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dta-translator"));
    command.args(arguments).arg("--config").arg(path).output().unwrap()
}

#[test]
fn commands_of_a_reporter_do_what_they_say_or_refuse() {
    let switch = FakeSwitch::start();
    let folder = tempfile::tempdir().unwrap();
    let done = |arguments: &[&str]| {
        let output = run(folder.path(), &switch.address.to_string(), arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (status, shown, stderr) = done(&["plan", "--switch", "edge1"]);
    assert_eq!(status, Some(0), "{stderr}");
    assert!(shown.contains("watch: drops 1, flows 1, queues 1"), "{shown}");
    let (_, shown, _) = done(&["status", "--switch", "edge1"]);
    assert!(shown.contains("holds no reporter entries"), "{shown}");
    let (status, shown, _) = done(&["setup", "--switch", "edge1", "-o", "json"]);
    let updates: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((status, updates[0]["change"].as_str()), (Some(0), Some("insert")), "{shown}");
    let (status, shown, _) = done(&["plan", "--switch", "edge1", "--against"]);
    assert_eq!(status, Some(0));
    assert!(shown.contains("nothing to change"), "{shown}");
    let (_, shown, _) = done(&["status", "--switch", "edge1", "-o", "json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&shown).unwrap();
    let row = rows.iter().find(|row| row["table"] == "watchlist" && row["key"]["order"] == 1).unwrap();
    assert_eq!(row["key"]["source"], "10.0.0.0&255.0.0.0", "{row}");
    assert_eq!(row["params"]["flows"], 1);
    assert_eq!(done(&["stats", "--switch", "edge1"]).0, Some(0));
    let (status, _, stderr) = done(&["flush", "--switch", "edge1"]);
    assert_eq!(status, Some(1));
    assert!(stderr.contains("[switch.edge1] is a reporter: it holds no reports"), "{stderr}");
    let (status, _, stderr) = done(&["plan", "--switch", "edge1", "--against", "127.0.0.1:1"]);
    assert_eq!(status, Some(1));
    assert!(stderr.contains("give --against without 127.0.0.1:1"), "{stderr}");
    let (status, shown, _) = done(&["teardown", "--switch", "edge1"]);
    assert_eq!(status, Some(0));
    assert!(shown.contains("stopped reporting; forwarding is unchanged"), "{shown}");
}

#[test]
fn a_real_switch_holds_what_the_reporter_of_tests_does() {
    if !simple_switch::is_there("a_real_switch_holds_what_the_reporter_of_tests_does") {
        return;
    }
    let control = simple_switch::free_address().to_string();
    let _switch = SimpleSwitch::start(&[], &control);
    let config = config(&control);
    block_on(setup(&config)).unwrap();
    block_on(async {
        is_as_in("reporter-bmv2.txt", &text_of(&reporter(&config).held_tables().await.unwrap()));
        assert_eq!(setup(&config).await.unwrap(), []);
        reporter(&config).stop_reporting().await.unwrap();
        setup(&config).await.unwrap();
        is_as_in("reporter-bmv2.txt", &text_of(&reporter(&config).held_tables().await.unwrap()));
    });
}

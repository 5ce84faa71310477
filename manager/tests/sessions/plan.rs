//! `dta-translator plan` looks, and changes nothing.

use dta_proto::key::Key;
use dta_proto::wire::dta::DtaBody;
use serde_json::Value;

use crate::ground::{Ground, wait_until};

const KEY: Key = Key([5; 16]);

fn session(ground: &Ground, name: &str) -> Value {
    let mut session = ground.session(name).expect("the session is open");
    // Time passes, and frames arrive.
    session["expires_in"] = session["expires_in"].is_null().into();
    for pair in session["queue_pairs"].as_array_mut().unwrap() {
        pair["counters"] = Value::Null;
        pair["expected_psn"] = Value::Null;
    }
    session
}

fn entries<'a>(plan: &'a Value, table: &str) -> Vec<&'a Value> {
    plan.as_array().unwrap().iter().filter(|e| e["table"] == table).collect()
}

#[test]
fn a_plan_without_a_session_opens_none() {
    let ground = Ground::start();
    let config = "[translator]\nname = 'leaf'\nsource = '127.71.3.1'\n";
    let plan = ground.translator_json(config, &["plan", "--show-secrets"]);
    assert!(ground.sessions().is_empty());
    let stores = entries(&plan, "store");
    assert_eq!(stores.len(), 4);
    assert!(stores.iter().all(|s| s["rkey"] == 0 && s["address"] != 0), "{plan:#}");
    let pairs = entries(&plan, "queue-pair");
    assert!(pairs.len() == 2 && pairs.iter().all(|p| p["remote_qpn"] == 0), "{plan:#}");
    let output = ground.translator(config, &["plan"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("not open"), "{output:?}");
}

#[test]
fn a_plan_leaves_the_session_of_a_switch_without_expiry() {
    let ground = Ground::start();
    let switch = ground.run_translator("[translator]\nname = 'x'\nsource = '127.71.4.1'\n", &["--blank"]);
    let config = format!(
        "[translator]\nname = 'leaf'\nsource = '127.71.4.1'\nlease_seconds = 3\n\
         [switch.s]\ntype = 'software'\ncontrol = '{}'\n",
        switch.control()
    );
    assert!(ground.translator(&config, &["setup", "--switch", "s"]).status.success());
    let before = session(&ground, "s");
    assert_eq!(before["expires_in"], true, "it does not expire: {before}");

    let plan = ground.translator_json(&config, &["plan", "--switch", "s", "--show-secrets"]);
    assert!(entries(&plan, "store").iter().all(|s| s["rkey"] != 0), "{plan:#}");
    let lacks = ground.translator_json(&config, &["plan", "--switch", "s", "--against"]);
    assert_eq!(lacks, serde_json::json!([]));
    // Nor with another address, about which it warns.
    let elsewhere = config.replace("127.71.4.1", "127.71.4.9");
    let output = ground.translator(&elsewhere, &["plan", "--switch", "s"]);
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("replaces that translator"), "{output:?}");
    assert_eq!(session(&ground, "s"), before);
}

#[test]
fn each_switch_has_a_session_of_its_own() {
    let ground = Ground::start();
    let start = |source: &str| {
        ground.run_translator(&format!("[translator]\nname = 'x'\nsource = '{source}'\n"), &["--blank"])
    };
    let (mut one, mut two) = (start("127.71.6.1"), start("127.71.6.2"));
    let switch = |name: &str, control: &str, source: &str, first: u32| {
        format!(
            "[switch.{name}]\ntype = 'software'\ncontrol = '{control}'\nsource = '{source}'\n\
             lists = [{{ store = 'events', first = {first}, count = 2 }}]\n"
        )
    };
    let config = [
        "[translator]\nname = 'leaf'\nsource = '127.71.6.9'\nstores = ['flows', 'events']\n".into(),
        switch("tor1", &one.control(), "127.71.6.1", 0),
        switch("tor2", &two.control(), "127.71.6.2", 2),
    ]
    .concat();
    for (name, source) in [("tor1", "127.71.6.1"), ("tor2", "127.71.6.2")] {
        assert!(ground.translator(&config, &["setup", "--switch", name]).status.success());
        let plan = ground.translator_json(&config, &["plan", "--switch", name]);
        let pairs = entries(&plan, "queue-pair");
        assert!(!pairs.is_empty() && pairs.iter().all(|p| p["source"]["ip"] == source), "{plan:#}");
        let session = ground.session(name).expect("it is open");
        assert!(session["translator"].as_str().unwrap().starts_with(source), "{session:#}");
    }
    assert_eq!(ground.sessions().len(), 2);
    // The second has not taken the place of the first: both write, each into lists of its own.
    for (translator, list, byte) in [(&mut one, 0, 1), (&mut two, 2, 2)] {
        translator.report(1, DtaBody::KeyWrite { redundancy: 0, key: Key([byte; 16]), value: &[byte; 12] });
        for _ in 0..3 {
            translator.report(2, DtaBody::Append { list, value: &[byte; 8] });
        }
    }
    for (byte, list) in [(1u8, "0"), (2, "2")] {
        wait_until("the value is there", || {
            let answer = ground.collector(&["query", "key-write", &Key([byte; 16]).to_string()]);
            answer.to_string().contains(&format!("{byte:02x}").repeat(12))
        });
        wait_until("the entries are there", || ground.tail(list).len() == 3);
    }
    // To end one leaves the other.
    assert!(ground.translator(&config, &["teardown", "--switch", "tor1"]).status.success());
    assert_eq!(ground.sessions().iter().map(|s| s["name"].clone()).collect::<Vec<_>>(), ["tor2"]);
}

#[test]
fn a_plan_does_not_disturb_the_translator_that_runs() {
    let ground = Ground::start();
    // The kernel chooses its port, which is in no configuration.
    let config =
        "[translator]\nname = 'leaf'\nsource = '127.71.5.1'\nsource_port = 0\nlisten = '127.0.0.1:0'\n";
    let mut leaf = ground.run_translator(config, &[]);
    let before = session(&ground, "leaf");
    let lacks = ground.translator_json(config, &["plan", "--against", &leaf.control()]);
    assert_eq!(lacks, serde_json::json!([]));
    assert!(ground.translator(config, &["plan"]).status.success());
    assert_eq!(session(&ground, "leaf"), before);

    leaf.report(1, DtaBody::KeyWrite { redundancy: 0, key: KEY, value: &[9; 12] });
    wait_until("the value is there", || {
        let answer = ground.collector(&["query", "key-write", &KEY.to_string()]);
        answer.to_string().contains("090909090909090909090909")
    });
    assert!(leaf.daemon.runs());
}

//! The program `dta-collector` under a service manager: what it sends to NOTIFY_SOCKET.

#[path = "../../testbed/tests/shared/supervised.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod supervised;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use supervised::{PATIENCE, Supervised};

/// A collector on free ports. `config` is the text of its configuration, and `folder` holds its files.
fn start(folder: &Path, config: &str, watchdog: Option<Duration>) -> Supervised {
    std::fs::write(folder.join("collector.toml"), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dta-collector"));
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--config"])
        .arg(folder.join("collector.toml"))
        .arg("--memory")
        .arg(folder.join("memory"));
    Supervised::start(command, folder, watchdog)
}

#[test]
fn the_service_manager_is_notified_of_start_life_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = start(folder.path(), "", Some(Duration::from_secs(2)));
    assert!(collector.logs(" ready").contains(collector.said("listen")));
    let ready = collector.message_about("READY=1");
    assert!(ready.contains("STATUS=16 stores, 0 sessions, gRPC on 127.0.0.1:"), "{ready}");
    collector.message_about("WATCHDOG=1");
    collector.message_about("WATCHDOG=1");

    // A stopped program makes no progress and reports none.
    collector.signal(Signal::STOP);
    collector.manager.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    let mut bytes = [0; 1024];
    while collector.manager.recv(&mut bytes).is_ok() {}
    collector.signal(Signal::CONT);
    collector.manager.set_read_timeout(Some(PATIENCE)).unwrap();
    collector.message_about("WATCHDOG=1");

    collector.signal(Signal::TERM);
    collector.message_about("STOPPING=1");
    assert!(collector.child.wait().unwrap().success());
}

#[test]
fn without_a_watchdog_no_sign_of_life_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let collector = start(folder.path(), "", None);
    collector.message_about("READY=1");
    collector.manager.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut bytes = [0; 1024];
    if let Ok(len) = collector.manager.recv(&mut bytes) {
        panic!("{}", String::from_utf8_lossy(&bytes[..len]));
    }
}

#[test]
fn sighup_is_a_reload_and_never_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = start(folder.path(), "", None);
    collector.message_about("READY=1");
    assert!(collector.logs("configuration read").contains("collector.toml"));
    let write = |text: &str| std::fs::write(folder.path().join("collector.toml"), text).unwrap();
    let reload = |collector: &Supervised| {
        collector.signal(Signal::HUP);
        let message = collector.message_about("RELOADING=1");
        assert!(message.contains("MONOTONIC_USEC="), "{message}");
        collector.message_about("READY=1");
        collector.logs("reloaded")
    };
    assert!(reload(&collector).contains("nothing has changed"));
    write("[limits]\ntails = 3\n");
    assert!(reload(&collector).contains("limits.tails"));
    write("[limits]\ntails = 5\n[collector]\ntransport = \"rc\"\n");
    let line = reload(&collector);
    assert!(line.contains("not reloaded") && line.contains("collector.transport cannot change"), "{line}");
    write("[limits]\n\ntails = \"many\"\n");
    let line = reload(&collector);
    assert!(line.contains("collector.toml, line 3, key `limits.tails`"), "{line}");
    assert!(collector.child.try_wait().unwrap().is_none(), "it goes on");
    collector.signal(Signal::TERM);
    assert!(collector.child.wait().unwrap().success());
}

#[test]
fn a_broken_file_of_names_costs_the_names_and_not_the_collector() {
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("names.toml");
    let config = format!("[collector]\nnames = {names:?}\n");
    // It starts with a file that says nonsense, and with one that is not there.
    for (text, says) in
        [(Some("[switch.6]\nname = \"leaf\"\n[switch.spine]\n"), "line 3"), (None, "No such file")]
    {
        match text {
            Some(text) => std::fs::write(&names, text).unwrap(),
            None => std::fs::remove_file(&names).unwrap(),
        }
        let mut collector = start(folder.path(), &config, None);
        let line = collector.logs("names.toml");
        assert!(line.contains("ERROR") && line.contains(says) && line.contains("have no names"), "{line}");
        collector.message_about("READY=1");
        collector.signal(Signal::TERM);
        assert!(collector.child.wait().unwrap().success());
        std::fs::remove_file(folder.path().join("notify")).unwrap();
        // check-config says so beforehand.
        let checked = Command::new(env!("CARGO_BIN_EXE_dta-collector"))
            .args(["check-config", "--config"])
            .arg(folder.path().join("collector.toml"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(checked.status.code() == Some(2) && said.contains(says), "{:?}: {said}", checked.status);
    }
}

#[test]
fn cancelled_calls_keep_neither_sessions_nor_the_end_waiting() {
    use dta_rpc::{Ask, ClientOptions, collector::RemoteCollector};
    let folder = tempfile::tempdir().unwrap();
    let mut collector = start(folder.path(), "", None);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client =
            RemoteCollector::connect(&ClientOptions::without_tls(collector.said("listen"))).await.unwrap();
        // Each reads the memory of all stores.
        for _ in 0..100 {
            let begin = |_| {
                let client = client.clone();
                tokio::spawn(async move { client.fetch_stores().await.map(drop) })
            };
            let calls: Vec<_> = (0..16).map(begin).collect();
            tokio::time::sleep(Duration::from_millis(4)).await;
            calls.iter().for_each(|call| call.abort());
        }
        // Another call waits for those whose work has begun, and for no others. A busy server that accepts calls late may
        // close a connection on which so many are cancelled; the next call connects again.
        let mut answer = tokio::time::timeout(PATIENCE, client.fetch_stores()).await.expect("an answer");
        if answer.is_err() {
            answer = tokio::time::timeout(PATIENCE, client.fetch_stores()).await.expect("an answer");
        }
        answer.unwrap();
    });
    collector.signal(Signal::TERM);
    // Other tests may run beside this one. `make soak` holds each daemon under attack to the ten seconds of
    // docs/operating.md, and tests of `dta_rpc::transport` see that the work of cancelled calls is dropped.
    let until = Instant::now() + 2 * PATIENCE;
    let status = loop {
        if let Some(status) = collector.child.try_wait().unwrap() {
            break status;
        }
        assert!(Instant::now() < until, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    let log: Vec<String> = collector.log.iter().collect();
    assert!(!log.iter().any(|line| line.contains("are stuck")), "{log:#?}");
}

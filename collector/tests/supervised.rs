//! The program `dta-collector` under a service manager: what it tells through NOTIFY_SOCKET.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(60);

/// A collector on free ports, with a service manager that is this test.
struct Supervised {
    child: Child,
    manager: UnixDatagram,
    log: Receiver<String>,
    address: String,
}

impl Supervised {
    /// `config` is the text of its configuration, and `folder` holds its files.
    fn start(folder: &Path, config: &str, watchdog: Option<Duration>) -> Self {
        std::fs::write(folder.join("collector.toml"), config).unwrap();
        let socket = folder.join("notify");
        let manager = UnixDatagram::bind(&socket).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_dta-collector"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DTA_")) {
            command.env_remove(name);
        }
        if let Some(watchdog) = watchdog {
            command.env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        }
        let mut child = command
            .env("NOTIFY_SOCKET", &socket)
            .env_remove("WATCHDOG_PID")
            .args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--config"])
            .arg(folder.join("collector.toml"))
            .arg("--memory")
            .arg(folder.join("memory"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).expect("a ready line");
        let address = ready["listen"].as_str().unwrap().to_owned();
        Supervised { child, manager, log, address }
    }

    /// The next message, whatever it is.
    fn told(&self) -> String {
        let mut bytes = [0; 1024];
        let len = self.manager.recv(&mut bytes).expect("a message");
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    }

    /// The next message with these words.
    fn told_of(&self, words: &str) -> String {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let told = self.told();
            if told.contains(words) {
                return told;
            }
        }
        panic!("nothing about {words:?}");
    }

    /// The next line of the log with these words.
    fn logs(&self, words: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let line = self.log.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.unwrap_or_else(|_| panic!("no log about {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_service_manager_is_told_of_start_life_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = Supervised::start(folder.path(), "", Some(Duration::from_secs(2)));
    assert!(collector.logs(" ready").contains(&collector.address));
    let ready = collector.told_of("READY=1");
    assert!(ready.contains("STATUS=15 stores, 0 sessions, gRPC on 127.0.0.1:"), "{ready}");
    collector.told_of("WATCHDOG=1");
    collector.told_of("WATCHDOG=1");

    // A program that is stopped makes no progress and tells none.
    collector.signal(Signal::STOP);
    collector.manager.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    let mut bytes = [0; 1024];
    while collector.manager.recv(&mut bytes).is_ok() {}
    collector.signal(Signal::CONT);
    collector.manager.set_read_timeout(Some(PATIENCE)).unwrap();
    collector.told_of("WATCHDOG=1");

    collector.signal(Signal::TERM);
    collector.told_of("STOPPING=1");
    assert!(collector.child.wait().unwrap().success());
}

#[test]
fn without_a_watchdog_none_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Supervised::start(folder.path(), "", None);
    collector.told_of("READY=1");
    collector.manager.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut bytes = [0; 1024];
    if let Ok(len) = collector.manager.recv(&mut bytes) {
        panic!("{}", String::from_utf8_lossy(&bytes[..len]));
    }
}

#[test]
fn sighup_is_a_reload_and_never_an_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut collector = Supervised::start(folder.path(), "", None);
    collector.told_of("READY=1");
    assert!(collector.logs("the configuration was read").contains("collector.toml"));
    let write = |text: &str| std::fs::write(folder.path().join("collector.toml"), text).unwrap();
    let reload = |collector: &Supervised| {
        collector.signal(Signal::HUP);
        let told = collector.told_of("RELOADING=1");
        assert!(told.contains("MONOTONIC_USEC="), "{told}");
        collector.told_of("READY=1");
        collector.logs("the configuration was read anew")
    };
    assert!(reload(&collector).contains("nothing has changed"));
    write("[limits]\ntails = 3\n");
    assert!(reload(&collector).contains("limits.tails"));
    write("[limits]\ntails = 5\n[collector]\ntransport = \"rc\"\n");
    let line = reload(&collector);
    assert!(line.contains("is not taken") && line.contains("collector.transport cannot change"), "{line}");
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
        let mut collector = Supervised::start(folder.path(), &config, None);
        let line = collector.logs("names.toml");
        assert!(line.contains("ERROR") && line.contains(says) && line.contains("without names"), "{line}");
        collector.told_of("READY=1");
        collector.signal(Signal::TERM);
        assert!(collector.child.wait().unwrap().success());
        std::fs::remove_file(folder.path().join("notify")).unwrap();
        // Who asks before is told that it is wrong.
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
    use dta_client::{Ask, ClientOptions, collector::Client};
    let folder = tempfile::tempdir().unwrap();
    let mut collector = Supervised::start(folder.path(), "", None);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&ClientOptions::plain(&collector.address)).await.unwrap();
        // Each reads the memory of all stores.
        for _ in 0..100 {
            let begin = |_| {
                let client = client.clone();
                tokio::spawn(async move { client.stores().await.map(drop) })
            };
            let calls: Vec<_> = (0..16).map(begin).collect();
            tokio::time::sleep(Duration::from_millis(4)).await;
            calls.iter().for_each(|call| call.abort());
        }
        // Another call waits for those whose work has begun, and for no others.
        tokio::time::timeout(PATIENCE, client.stores()).await.expect("an answer").unwrap();
    });
    collector.signal(Signal::TERM);
    // Other tests may run beside this one. `make soak` holds each daemon under attack to the ten seconds of
    // docs/operating.md, and tests of dta-grpc see that the work of cancelled calls is dropped.
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
    assert!(!log.iter().any(|line| line.contains("stand still")), "{log:#?}");
}

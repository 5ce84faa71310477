//! Daemons whose clocks jump by a day and back, by libfaketime.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime};

use common::MANAGER;
use common::daemon::{Daemon, counter};
use common::int_bed::PATIENCE;
use dta_client::collector::Client;
use dta_client::{Ask as _, ClientOptions, ClientTls, KeyAnswer, Question, QuestionKind};
use dta_proto::control::Policy;
use dta_proto::key::Key;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// Clocks of programs, which differ from the machine's by what a file says.
struct Clock {
    library: String,
    file: String,
    /// Whether the monotonic clock stays as it is.
    wall_alone: bool,
}

impl Clock {
    fn new(folder: &Path, wall_alone: bool) -> Self {
        let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
        let library =
            folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists());
        let library = library.expect("Debian's faketime (scripts/install-deps test)").display().to_string();
        let clock = Self { library, file: folder.join("clock").display().to_string(), wall_alone };
        clock.set("+0");
        clock
    }

    /// Ahead of the machine's by this many seconds.
    fn set(&self, ahead: &str) {
        let new = format!("{}.new", self.file);
        std::fs::write(&new, format!("{ahead}\n")).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    fn variables(&self) -> Vec<(&str, &str)> {
        let mut all = vec![
            ("LD_PRELOAD", self.library.as_str()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.as_str()),
            ("FAKETIME_NO_CACHE", "1"),
        ];
        if self.wall_alone {
            all.push(("FAKETIME_DONT_FAKE_MONOTONIC", "1"));
        }
        all
    }
}

const DAY: &str = "+86400";

/// Certificates that end in half a day: of the authority, of the daemons, and one of a reader that lasts.
struct Files(PathBuf);

impl Files {
    fn make(folder: &Path) -> Self {
        let files = Self(folder.to_owned());
        let key = KeyPair::generate().unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        files.write("ca.pem", &authority.self_signed(&key).unwrap().pem());
        let issuer = Issuer::new(authority, key);
        for (name, hours) in [("collector", 12), ("translator", 12), ("reader", 1200)] {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.not_before = (SystemTime::now() - Duration::from_secs(3600)).into();
            params.not_after = (SystemTime::now() + Duration::from_secs(3600 * hours)).into();
            files.write(&format!("{name}.pem"), &params.signed_by(&key, &issuer).unwrap().pem());
            files.write(&format!("{name}.key"), &key.serialize_pem());
        }
        files
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn of(&self, name: &str) -> ClientTls {
        let file = |end: &str| self.path(&format!("{name}.{end}"));
        ClientTls {
            ca: self.path("ca.pem"),
            cert: file("pem"),
            key: file("key"),
            domain: Some("collector".into()),
        }
    }
}

/// A collector and a translator with such a clock.
struct Bed {
    folder: tempfile::TempDir,
    clock: Clock,
    collector: Daemon,
    translator: Daemon,
    client: Client,
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
struct Counts {
    renewed: u64,
    expired: u64,
    opened: u64,
    executed: u64,
}

impl Bed {
    fn start(wall_alone: bool, tls: bool) -> Self {
        Bed::start_with(wall_alone, tls, "")
    }

    /// `more` of the collector's configuration, in which FOLDER is the bed's.
    fn start_with(wall_alone: bool, tls: bool, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::new(folder.path(), wall_alone);
        let files = Files::make(folder.path());
        let table = |table: &str, name: &str, authority: &str, more: &str| {
            let dir = folder.path().display();
            let text = format!(
                "[{table}]\ncert = \"{dir}/{name}.pem\"\nkey = \"{dir}/{name}.key\"\n{authority} = \"{dir}/ca.pem\"\n{more}\n"
            );
            if tls { text } else { String::new() }
        };
        let start = |program: &str, name: &str, more: &[&str], text: String| {
            let path = folder.path().join(format!("{name}.toml"));
            std::fs::write(&path, text).unwrap();
            let arguments = [&[program], more, &["--config", path.to_str().unwrap()]].concat();
            Daemon::start_with(&arguments, &clock.variables())
        };
        let text = format!(
            "[collector]\nname = \"clocks\"\nlisten = \"127.0.0.1:0\"\nmemory = \"{}/memory\"\n[soft]\nport = 0\n{}{}",
            folder.path().display(),
            table("tls", "collector", "client_ca", ""),
            more.replace("FOLDER", folder.path().to_str().unwrap())
        );
        let collector = start("__collector", "collector", &["serve"], text);
        let source = [127, 98, (std::process::id() >> 8) as u8, std::process::id() as u8]
            .map(|part| part.to_string())
            .join(".");
        let text = format!(
            "[translator]\nname = \"clocks\"\nlisten = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\ncollector = \"{}\"\n\
             source = \"{source}\"\nsource_port = 0\n{}",
            collector.said("listen"),
            table("translator.tls", "translator", "ca", "domain = \"collector\"")
        );
        let translator = start("__translator", "translator", &["run", "--ready"], text);
        // By the machine's clock.
        let options = ClientOptions::new(collector.said("listen"), tls.then(|| files.of("reader")));
        let client = Client::connect_lazy(&ClientOptions { call: Some(PATIENCE), ..options }).unwrap();
        Bed { folder, clock, collector, translator, client }
    }

    async fn counts(&self) -> Counts {
        let nodes = self.client.statistics().await.unwrap();
        let of = |name: &str| counter(&nodes, "collector", name);
        Counts {
            renewed: of("session.renewed"),
            expired: of("session.expired"),
            opened: of("session.opened"),
            executed: counter(&nodes, "nic/", "executed.write"),
        }
    }

    /// Sends some reports of one key.
    fn report(&self, value: &str) {
        let sent = Command::new(MANAGER)
            .args([
                "__reporter",
                "send",
                "--to",
                self.translator.said("listen"),
                "--unchecked",
                "--store",
                "1",
            ])
            .args(["--count", "20", "key-write", "--key", "07", "--value", value])
            .output()
            .unwrap();
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    }

    /// Sends reports until the lease was renewed five more times and this many of them were written. Returns the
    /// counts then.
    async fn goes_on(&self, what: &str) -> Counts {
        let before = self.counts().await;
        let begun = Instant::now();
        loop {
            self.report("1,2,3");
            let now = self.counts().await;
            if now.renewed >= before.renewed + 5 && now.executed >= before.executed + 100 {
                return now;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {before:?} {now:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What a client that reconnects sees, by the clock that jumps.
    fn stores(&self) -> Output {
        let file = |name: &str| self.folder.path().join(name);
        Command::new(MANAGER)
            .args([
                "__collector",
                "stores",
                "--collector",
                self.collector.said("listen"),
                "--tls-domain",
                "collector",
                "--ca",
            ])
            .arg(file("ca.pem"))
            .arg("--client-cert")
            .arg(file("reader.pem"))
            .arg("--client-key")
            .arg(file("reader.key"))
            .envs(self.clock.variables())
            .output()
            .unwrap()
    }

    fn end(self) {
        for daemon in [self.translator, self.collector] {
            let (status, _) = daemon.terminate(PATIENCE);
            assert!(status.success(), "{status}");
        }
    }
}

#[tokio::test]
#[ignore = "needs Debian's faketime (scripts/install-deps test)"]
async fn a_wall_clock_that_jumps_ends_no_session_and_a_certificate_that_expires_by_it_no_connection() {
    let bed = Bed::start(true, true);
    bed.goes_on("before").await;
    assert!(bed.stores().status.success(), "{}", String::from_utf8_lossy(&bed.stores().stderr));
    bed.clock.set(DAY);
    let later = bed.goes_on("a day later").await;
    // New clients learn what is wrong.
    let refused = bed.stores();
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("its certificate expired 12 hours ago"), "{told}");
    bed.clock.set("+0");
    let after = bed.goes_on("back").await;
    assert!(bed.stores().status.success());
    assert_eq!((later.expired, after.expired, after.opened), (0, 0, 1), "{later:?} {after:?}");
    bed.end();
}

/// As where a machine was stopped and its clock goes on with the hours that have passed. It never goes back.
#[tokio::test]
#[ignore = "needs Debian's faketime (scripts/install-deps test)"]
async fn after_a_jump_of_all_clocks_the_session_is_opened_again_and_reports_go_on() {
    let bed = Bed::start(false, false);
    bed.goes_on("before").await;
    bed.clock.set(DAY);
    let later = bed.goes_on("a day later").await;
    assert_eq!((later.expired, later.opened), (1, 2), "{later:?}");
    bed.end();
}

/// An epoch as the log of its history has it.
#[derive(Clone, Debug, serde::Deserialize)]
struct Kept {
    number: u64,
    opened: u64,
    flipped_from: u64,
    flipped_to: u64,
    rows: u64,
}

/// The epochs that a history has.
fn kept(history: &Path) -> BTreeMap<u64, Kept> {
    let mut files: BTreeMap<String, Vec<Kept>> = BTreeMap::new();
    let log = std::fs::read_dir(history.join("_delta_log")).unwrap();
    let mut commits: Vec<PathBuf> = log.map(|file| file.unwrap().path()).collect();
    commits.retain(|path| path.extension().is_some_and(|end| end == "json"));
    commits.sort();
    for commit in commits {
        for line in std::fs::read_to_string(commit).unwrap().lines() {
            let action: serde_json::Value = serde_json::from_str(line).unwrap();
            let path = |of: &serde_json::Value| of["path"].as_str().unwrap().to_owned();
            if let Some(add) = action.get("add") {
                let epochs = add["tags"]["dta.epochs"].as_str().unwrap();
                files.insert(path(add), serde_json::from_str(epochs).unwrap());
            } else if let Some(remove) = action.get("remove") {
                files.remove(&path(remove));
            }
        }
    }
    files.into_values().flatten().map(|kept| (kept.number, kept)).collect()
}

#[tokio::test]
#[ignore = "needs Debian's faketime (scripts/install-deps test)"]
async fn epochs_go_on_when_the_wall_clock_jumps_by_an_hour_and_back_and_none_is_lost() {
    let bed = Bed::start_with(
        true,
        false,
        "[history]\ndirectory = 'FOLDER/history'\nkeep = '30m'\n[[store]]\nid = 1\nname = 'flows'\nkind = 'key-write'\n\
         slots = 1024\nvalue_len = 12\nredundancy = 2\nepoch = '2s'\n",
    );
    let history = bed.folder.path().join("history/flows");
    // The value of the key in the middle of an epoch.
    let held = async |kept: &Kept| {
        let kind = QuestionKind::KeyWrite { policy: Policy::First, at_least: 0 };
        let at = kept.opened.midpoint(kept.flipped_from);
        let mut key = [0; 16];
        key[0] = 7;
        let question = Question { at: at.into(), ..Question::now("flows", &[Key(key)], kind) };
        match bed.client.ask(question).await.unwrap().of_keys.remove(0) {
            KeyAnswer::KeyWrite(answer) => answer.value.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let mut all: Vec<(Kept, u8)> = Vec::new();
    for (value, ahead) in [(1u8, "+0"), (2, "+3600"), (3, "+0"), (4, "-3600"), (5, "+0")] {
        bed.clock.set(ahead);
        // Epochs of which neither begin nor end is on the other side of the jump.
        let since = kept(&history).keys().last().copied().unwrap_or_default() + 2;
        let begun = Instant::now();
        while kept(&history).range(since + 1..).filter(|(_, kept)| kept.rows > 0).count() < 3 {
            assert!(begun.elapsed() < PATIENCE, "{ahead}: {:?}", kept(&history));
            bed.report(&format!("{value},{value},{value}"));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for (_, kept) in kept(&history).range(since + 1..).filter(|(_, kept)| kept.rows > 0) {
            assert_eq!(held(kept).await[3], value, "{kept:?} of {ahead}");
            all.push((kept.clone(), value));
        }
    }
    let now = kept(&history);
    assert_eq!(
        now.keys().copied().collect::<Vec<_>>(),
        (1..=now.len() as u64).collect::<Vec<_>>(),
        "none is lost"
    );
    for kept in now.values() {
        assert!(kept.opened < kept.flipped_from && kept.flipped_from <= kept.flipped_to, "{kept:?}");
        assert!(kept.flipped_to - kept.opened < 2 * 3_600_000, "{kept:?}");
    }
    // Those of the first, the third and the last are what the clock shows now, and are found as before.
    for (kept, value) in all.iter().filter(|(_, value)| value % 2 == 1) {
        assert_eq!(held(kept).await[3], *value, "{kept:?}");
    }
    let nodes = bed.client.statistics().await.unwrap();
    assert_eq!(counter(&nodes, "collector", "epochs.lost"), 0);
    bed.end();
}

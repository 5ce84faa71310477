//! Daemons whose clocks jump by a day and back, by libfaketime.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime};

use common::MANAGER;
use common::daemon::{Daemon, counter};
use common::int_bed::PATIENCE;
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask as _, ClientOptions, ClientTls};
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
    client: RemoteCollector,
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
            "[collector]\nname = \"clocks\"\nlisten = \"127.0.0.1:0\"\nmemory = \"{}/memory\"\n[soft]\nport = 0\n{}",
            folder.path().display(),
            table("tls", "collector", "client_ca", "")
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
        let client =
            RemoteCollector::connect_lazy(&ClientOptions { call: Some(PATIENCE), ..options }).unwrap();
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

    /// Sends reports until the lease was renewed five more times and this many of them were written. Returns the
    /// counts then.
    async fn goes_on(&self, what: &str) -> Counts {
        let before = self.counts().await;
        let begun = Instant::now();
        loop {
            let sent = Command::new(MANAGER)
                .args([
                    "__reporter",
                    "send",
                    "--to",
                    self.translator.said("listen"),
                    "--unchecked",
                    "--store",
                    "1",
                    "--count",
                    "20",
                ])
                .args(["key-write", "--key", "07", "--value", "1,2,3"])
                .output()
                .unwrap();
            assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
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
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("its certificate expired 12 hours ago"), "{stderr}");
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

//! bmv2's `simple_switch_grpc` for a test.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dta_testbed::bmv2::{options_of_build, read_help_text};

/// The file of its log.
const LOG: &str = "switch.log";
/// How long it may take until it listens.
const READY: Duration = Duration::from_secs(120);

/// Whether there is one on PATH; if not, says that a test is skipped.
pub(crate) fn is_there(test: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join("simple_switch_grpc").is_file());
    if !is_there {
        println!("SKIPPED: {test}: simple_switch_grpc is not on PATH");
    }
    is_there
}

/// An address of loopback that is free at the moment.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

/// A switch without a program; it ends with this.
pub(crate) struct SimpleSwitch {
    child: Child,
    /// Of its log and its sockets.
    pub(crate) folder: tempfile::TempDir,
}

impl Drop for SimpleSwitch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SimpleSwitch {
    /// One on interfaces, each `PORT@INTERFACE`, that listens for P4Runtime at `control`.
    pub(crate) fn start(interfaces: &[&str], control: &str) -> SimpleSwitch {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let log = File::create(folder.path().join(LOG)).expect("a log");
        let thrift = free_address().port();
        let help = read_help_text().unwrap_or_else(|error| panic!("{error}"));
        let child = Command::new("simple_switch_grpc")
            .arg("--no-p4")
            .args(options_of_build(&help, thrift, &folder.path().join("notifications")))
            .args(interfaces.iter().flat_map(|interface| ["-i", interface]))
            .args(["--", "--grpc-server-addr", control, "--cpu-port", "255"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("simple_switch_grpc starts");
        let mut switch = SimpleSwitch { child, folder };
        let until = Instant::now() + READY;
        while TcpStream::connect(control).is_err() {
            switch.is_at_work();
            assert!(Instant::now() < until, "simple_switch_grpc does not listen:\n{}", switch.log());
            std::thread::sleep(Duration::from_millis(50));
        }
        switch
    }

    /// Fails the test, with what it has written, if it has ended.
    pub(crate) fn is_at_work(&mut self) {
        if let Some(status) = self.child.try_wait().expect("it can be asked") {
            panic!("simple_switch_grpc ended ({status}):\n{}", self.log());
        }
    }

    /// What it has written.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join(LOG)).unwrap_or_default()
    }
}

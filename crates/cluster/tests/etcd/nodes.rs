//! Three nodes of etcd (Debian's `etcd-server`) on loopback, ended with the test.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use dta_cluster::Config;
use tempfile::TempDir;

pub(super) struct Nodes {
    folder: TempDir,
    address: Ipv4Addr,
    running: Vec<Option<Child>>,
    scheme: &'static str,
    arguments: Vec<String>,
}

const CLIENTS: u16 = 2379;
const PEERS: u16 = 2389;

impl Nodes {
    /// Three nodes that have never run.
    pub(super) fn start() -> Nodes {
        Nodes::with(3, "http", |_| Vec::new())
    }

    /// So many nodes with further arguments, which may name files in the folder.
    pub(super) fn with(
        count: u16,
        scheme: &'static str,
        arguments: impl FnOnce(&TempDir) -> Vec<String>,
    ) -> Nodes {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let folder = tempfile::tempdir().unwrap();
        let arguments = arguments(&folder);
        // An address of loopback that no other test has.
        let pid = std::process::id();
        let address =
            Ipv4Addr::new(127, 64 + NEXT.fetch_add(1, Ordering::Relaxed), (pid >> 8) as u8, pid as u8);
        let mut nodes = Nodes { folder, address, running: Vec::new(), scheme, arguments };
        nodes.running = (0..count).map(|_| None).collect();
        (0..count).for_each(|n| nodes.start_node(n));
        nodes
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The default lease is longer than a busy machine stands still.
    pub(super) fn config(&self) -> Config {
        let url = |n| format!("{}://{}:{}", self.scheme, self.address, CLIENTS + n);
        Config::new((0..self.running.len() as u16).map(url).collect())
    }

    /// Starts a node, which has what it had when it was killed.
    pub(super) fn start_node(&mut self, n: u16) {
        let peer = |n: u16| format!("http://{}:{}", self.address, PEERS + n);
        let clients = format!("{}://{}:{}", self.scheme, self.address, CLIENTS + n);
        let all: Vec<String> = (0..self.running.len() as u16).map(|n| format!("n{n}={}", peer(n))).collect();
        let log = std::fs::File::options().create(true).append(true).open(self.log(n)).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "etcd", "--logger", "zap", "--name", &format!("n{n}")])
            .arg("--data-dir")
            .arg(self.folder.path().join(format!("n{n}")))
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peer(n), "--initial-advertise-peer-urls", &peer(n)])
            .args(["--initial-cluster", &all.join(","), "--initial-cluster-state", "new"])
            // Nodes are killed; the machine is not. Others may keep the disk busy.
            .arg("--unsafe-no-fsync")
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("etcd-server is installed (scripts/install-deps test)");
        self.running[usize::from(n)] = Some(child);
    }

    /// Kills a node, with -9.
    pub(super) fn kill(&mut self, n: u16) {
        let mut child = self.running[usize::from(n)].take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn log(&self, n: u16) -> PathBuf {
        self.folder.path().join(format!("n{n}.log"))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for n in 0..self.running.len() as u16 {
                let log = std::fs::read_to_string(self.log(n)).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                eprintln!("node {n}, the newest first: {last:#?}");
            }
        }
    }
}

//! Machines for tests: each is a network and a process namespace with an sshd of its own. Needs root, ip, unshare and
//! sshd.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::common::MANAGER;

/// One test at a time: they are heavy, and wait for each other's processes otherwise.
static TURN: Mutex<()> = Mutex::new(());

/// Names of machines, and the last byte of their addresses. The manager is one, too, without an sshd.
pub const MACHINES: [(&str, u8); 3] = [("store", 1), ("edge", 2), ("load", 3)];
const MANAGER_AT: u8 = 10;

pub fn must(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output().expect(command[0]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn wait_until(what: &str, patience: Duration, is_so: impl Fn() -> bool) {
    let until = Instant::now() + patience;
    while !is_so() {
        assert!(Instant::now() < until, "after {patience:?} it is not so: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Files of a folder of /proc that is named by a number.
fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn process_namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()
}

fn command_line(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// A machine: its namespaces last as long as its first process, sshd.
pub struct Machine {
    pub name: &'static str,
    pub network: String,
    unshare: Child,
    /// The sshd, by its number outside.
    pub sshd: u32,
}

impl Machine {
    /// Processes there but for the sshd that waits for connections.
    pub fn running(&self) -> Vec<String> {
        let Some(own) = process_namespace(self.sshd) else { return Vec::new() };
        let of_it =
            processes().filter(|pid| *pid != self.sshd && process_namespace(*pid).as_ref() == Some(&own));
        of_it.map(|pid| format!("{pid} {}", command_line(pid))).collect()
    }

    /// What is left in its shared memory, which is its own, and in the folder of copies.
    pub fn files(&self) -> String {
        let enter = format!("--mount=/proc/{}/ns/mnt", self.sshd);
        must(&["nsenter", &enter, "sh", "-c", "ls /dev/shm; ls -d /tmp/dta-deploy-* 2>/dev/null || true"])
    }

    /// It is gone without a word, as by a power cut.
    pub fn dies(&mut self) {
        must(&["ip", "-n", &self.network, "link", "set", "eth0", "down"]);
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Machines at one bridge.
pub struct Bed {
    folder: tempfile::TempDir,
    prefix: String,
    pub machines: Vec<Machine>,
    _turn: MutexGuard<'static, ()>,
}

/// Makes the machines, or says why this test goes without.
pub fn bed(test: &str) -> Option<Bed> {
    bed_of(test, &MACHINES)
}

/// Makes machines of these names, each with the last byte of its address.
pub fn bed_of(test: &str, machines: &[(&'static str, u8)]) -> Option<Bed> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    for program in ["/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"] {
        if !Path::new(program).exists() {
            println!("SKIPPED: {test}: there is no {program} (packages openssh-server and openssh-client)");
            return None;
        }
    }
    let folder = tempfile::Builder::new().prefix("dta-machines-").tempdir().unwrap();
    let mut bed =
        Bed { folder, prefix: format!("dtam{}", std::process::id()), machines: Vec::new(), _turn: turn };
    bed.set_up(machines);
    Some(bed)
}

impl Bed {
    pub fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub fn network(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn join(&self, name: &str, last: u8) -> String {
        let (lan, network) = (self.network("lan"), self.network(name));
        must(&["ip", "netns", "add", &network]);
        must(&["ip", "-n", &network, "link", "set", "lo", "up"]);
        must(&[
            "ip", "-n", &lan, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &network,
        ]);
        must(&["ip", "-n", &lan, "link", "set", name, "master", "br0", "up"]);
        must(&["ip", "-n", &network, "address", "add", &format!("198.18.9.{last}/24"), "dev", "eth0"]);
        must(&["ip", "-n", &network, "link", "set", "eth0", "up"]);
        network
    }

    fn set_up(&mut self, machines: &[(&'static str, u8)]) {
        let lan = self.network("lan");
        must(&["ip", "netns", "add", &lan]);
        must(&["ip", "-n", &lan, "link", "add", "br0", "type", "bridge"]);
        must(&["ip", "-n", &lan, "link", "set", "br0", "up"]);
        self.join("manager", MANAGER_AT);
        must(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &self.path("key")]);
        // Where sshd keeps its unprivileged half.
        std::fs::create_dir_all("/run/sshd").unwrap();
        let mut known = String::new();
        for &(name, last) in machines {
            let network = self.join(name, last);
            let host_key = self.path(&format!("{name}-host-key"));
            must(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &host_key]);
            let public = std::fs::read_to_string(format!("{host_key}.pub")).unwrap();
            writeln!(known, "198.18.9.{last} {public}").unwrap();
            let config = self.path(&format!("{name}-sshd"));
            let text = format!(
                "ListenAddress 198.18.9.{last}\nHostKey {host_key}\nPidFile none\nAuthorizedKeysFile {}\nStrictModes no\n\
                 UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nAllowUsers root\n\
                 SetEnv PATH={}\n",
                self.path("key.pub"),
                std::env::var("PATH").unwrap()
            );
            std::fs::write(&config, text).unwrap();
            let log = std::fs::File::create(self.path(&format!("{name}-sshd.log"))).unwrap();
            let line = format!("mount -t tmpfs none /dev/shm && exec /usr/sbin/sshd -D -e -f {config}");
            let unshare = Command::new("ip")
                .args([
                    "netns",
                    "exec",
                    &network,
                    "unshare",
                    "--pid",
                    "--fork",
                    "--kill-child",
                    "--mount",
                    "--mount-proc",
                ])
                .args(["sh", "-c", &line])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap();
            let pid = unshare.id();
            let mut machine = Machine { name, network, unshare, sshd: 0 };
            wait_until("sshd listens", Duration::from_secs(60), || {
                child_of(pid).is_some_and(|child| {
                    command_line(child).contains("listener") && { machine_sockets(child).contains(":0016 ") }
                })
            });
            machine.sshd = child_of(pid).unwrap();
            self.machines.push(machine);
        }
        std::fs::write(self.path("known_hosts"), known).unwrap();
        let config = format!(
            "IdentityFile {}\nIdentitiesOnly yes\nUserKnownHostsFile {}\nGlobalKnownHostsFile /dev/null\nUser root\n\
             ServerAliveInterval 1\n",
            self.path("key"),
            self.path("known_hosts")
        );
        std::fs::write(self.path("ssh_config"), config).unwrap();
    }

    /// A topology file with the machines; `change` gives more of the table of a machine.
    pub fn topology(&self, change: impl Fn(&str) -> String) -> String {
        let embedded = include_str!("../../../testbed/topologies/embedded.toml");
        // Smaller sketches, so that a run takes seconds.
        let mut text = embedded.replace("columns = 8192", "columns = 2048");
        text += "\n[ssh]\nconfig = \"ssh_config\"\n\
                 options = [\"ServerAliveInterval=1\", \"ServerAliveCountMax=10\", \"ConnectTimeout=30\"]\n";
        for ((name, last), role) in MACHINES.into_iter().zip(["collector", "translator", "host"]) {
            let more = change(name);
            let program = if more.contains("program") || more.contains("deploy") {
                String::new()
            } else {
                format!("program = \"{MANAGER}\"\n")
            };
            let ssh =
                if more.contains("ssh =") { String::new() } else { format!("ssh = \"198.18.9.{last}\"\n") };
            let address = if more.contains("address") {
                String::new()
            } else {
                format!("address = \"198.18.9.{last}\"\n")
            };
            write!(
                text,
                "\n[[machine]]\nname = \"{name}\"\nroles = [\"{role}\"]\n{ssh}{address}{program}{more}\n"
            )
            .unwrap();
        }
        let path = self.path("hardware.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Adds machines with one role to a topology file: name, last byte of the address, more of its table.
    pub fn add(&self, topology: &str, role: &str, machines: &[(&str, u8, &str)]) {
        let mut text = std::fs::read_to_string(topology).unwrap();
        for (name, last, more) in machines {
            let address = match more.contains("address") {
                true => String::new(),
                false => format!("address = \"198.18.9.{last}\"\n"),
            };
            write!(
                text,
                "\n[[machine]]\nname = \"{name}\"\nroles = [\"{role}\"]\nssh = \"198.18.9.{last}\"\nprogram = \"{MANAGER}\"\n\
                 {address}{more}\n"
            )
            .unwrap();
        }
        std::fs::write(topology, text).unwrap();
    }

    pub fn command(&self, topology: &str, more: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.network("manager"), MANAGER, "run-testbed", "-o", "json"]);
        command.args(["--topology", topology]).args(more);
        command
    }

    pub fn run(&self, topology: &str, more: &[&str]) -> Output {
        self.command(topology, more).output().unwrap()
    }

    /// Starts a long run, and waits until each machine has a process with its word in the command line.
    pub fn long_run(&self, topology: &str, words: [&str; 3]) -> Child {
        self.started(topology, &["--reports", "100000000"], &words)
    }

    /// Starts a run, and waits until each machine has a process with its word in the command line.
    pub fn started(&self, topology: &str, more: &[&str], words: &[&str]) -> Child {
        let child =
            self.command(topology, more).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        for (machine, word) in self.machines.iter().zip(words) {
            wait_until(&format!("{word} runs on {}", machine.name), Duration::from_secs(60), || {
                machine.running().iter().any(|line| line.contains(word))
            });
        }
        // Reports are on their way then.
        std::thread::sleep(Duration::from_secs(2));
        child
    }

    /// Starts a run, and waits until something is so that it brings about. What it says on standard error is kept.
    pub fn started_until(&self, topology: &str, more: &[&str], is_so: impl Fn() -> bool) -> Child {
        let mut child = self.command(topology, more).stderr(Stdio::piped()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            let ended = child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > until {
                let _ = child.kill();
                panic!("{}", stderr_of(&child.wait_with_output().unwrap()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child
    }

    /// Connects two machines by a wire of its own, each end with its name and Ethernet address.
    pub fn wire(&self, ends: [(&str, &str, &str); 2]) {
        let [(one, name, mac), (other, peer, peer_mac)] = ends;
        let (one, other) = (self.network(one), self.network(other));
        must(&[
            "ip", "-n", &one, "link", "add", name, "address", mac, "type", "veth", "peer", "name", peer,
            "address", peer_mac, "netns", &other,
        ]);
        for (network, name) in [(&one, name), (&other, peer)] {
            // The kernel's own packets would be frames that nobody sent.
            let setting = format!("net.ipv6.conf.{name}.disable_ipv6=1");
            must(&["ip", "netns", "exec", network, "sysctl", "-qw", &setting]);
            // What reads whole frames has to find whole checksums.
            must(&["ip", "netns", "exec", network, "ethtool", "-K", name, "tx", "off"]);
            must(&["ip", "-n", network, "link", "set", name, "up"]);
        }
    }

    /// Does something in the network of a machine.
    pub fn inside<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        let path = format!("/run/netns/{}", self.network(name));
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                let network = std::fs::File::open(path).unwrap();
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                work()
            });
            work.join().unwrap()
        })
    }

    pub fn is_clean(&self) {
        // All of them first: the folder of copies, /tmp, is the same one on all.
        for machine in &self.machines {
            wait_until(&format!("nothing is left on {}", machine.name), Duration::from_secs(120), || {
                machine.running().is_empty()
            });
        }
        for machine in &self.machines {
            if process_namespace(machine.sshd).is_some() {
                assert_eq!(machine.files(), "", "{}", machine.name);
            }
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for machine in &mut self.machines {
            let _ = machine.unshare.kill();
            let _ = machine.unshare.wait();
        }
        let networks: Vec<String> = self.machines.iter().map(|machine| machine.network.clone()).collect();
        for network in networks.into_iter().chain(["manager", "lan"].map(|name| self.network(name))) {
            let _ = Command::new("ip").args(["netns", "delete", &network]).status();
        }
    }
}

fn child_of(parent: u32) -> Option<u32> {
    let of = |pid: u32| {
        let about = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        about.rsplit(") ").next()?.split(' ').nth(1)?.parse::<u32>().ok()
    };
    processes().find(|pid| of(*pid) == Some(parent))
}

/// TCP sockets of the network that a process is in.
fn machine_sockets(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default()
}

/// What the NIC of each collector executed, by its address, where there are several.
pub fn executed(outcome: &Value) -> Vec<(String, u64)> {
    let nics = outcome["nodes"].as_array().unwrap().iter().filter(|node| node["stage"] == "nic");
    let of = |node: &Value| {
        let count = |name: &str| node["counters"][name].as_u64().unwrap_or(0);
        let address = node["session"].as_str().unwrap_or_default().to_owned();
        (address, count("executed.write") + count("executed.fetch_add"))
    };
    nics.map(of).collect()
}

pub fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn outcome(output: &Output) -> (i32, Value) {
    let stderr = stderr_of(output);
    assert!(!stderr.contains("did not end within"), "a connection did not end by itself: {stderr}");
    let outcome = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
    (output.status.code().unwrap_or(-1), outcome)
}

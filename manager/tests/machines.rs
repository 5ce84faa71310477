//! `run-testbed` on other machines, started over ssh: each is a network and a process namespace with an sshd of its
//! own. Needs root, ip, unshare and sshd.

mod common;

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{MANAGER, assert_good, captures, number};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// One test at a time: they are heavy, and wait for each other's processes otherwise.
static TURN: Mutex<()> = Mutex::new(());

/// Names of machines, and the last byte of their addresses. The manager is one, too, without an sshd.
const MACHINES: [(&str, u8); 3] = [("store", 1), ("edge", 2), ("load", 3)];
const MANAGER_AT: u8 = 10;

fn must(command: &[&str]) -> String {
    let output = Command::new(command[0]).args(&command[1..]).output().expect(command[0]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {told}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn wait_until(what: &str, patience: Duration, is_so: impl Fn() -> bool) {
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
struct Machine {
    name: &'static str,
    network: String,
    unshare: Child,
    /// The sshd, by its number outside.
    sshd: u32,
}

impl Machine {
    /// Processes there but for the sshd that waits for connections.
    fn running(&self) -> Vec<String> {
        let Some(own) = process_namespace(self.sshd) else { return Vec::new() };
        let of_it =
            processes().filter(|pid| *pid != self.sshd && process_namespace(*pid).as_ref() == Some(&own));
        of_it.map(|pid| format!("{pid} {}", command_line(pid))).collect()
    }

    /// What is left in its shared memory, which is its own, and in the folder of copies.
    fn files(&self) -> String {
        let enter = format!("--mount=/proc/{}/ns/mnt", self.sshd);
        must(&["nsenter", &enter, "sh", "-c", "ls /dev/shm; ls -d /tmp/dta-deploy-* 2>/dev/null || true"])
    }

    /// It is gone without a word, as by a power cut.
    fn dies(&mut self) {
        must(&["ip", "-n", &self.network, "link", "set", "eth0", "down"]);
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Machines at one bridge.
struct Bed {
    folder: tempfile::TempDir,
    prefix: String,
    machines: Vec<Machine>,
    _turn: MutexGuard<'static, ()>,
}

/// Makes the machines, or says why this test goes without.
fn bed(test: &str) -> Option<Bed> {
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
    bed.set_up();
    Some(bed)
}

impl Bed {
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn network(&self, name: &str) -> String {
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

    fn set_up(&mut self) {
        let lan = self.network("lan");
        must(&["ip", "netns", "add", &lan]);
        must(&["ip", "-n", &lan, "link", "add", "br0", "type", "bridge"]);
        must(&["ip", "-n", &lan, "link", "set", "br0", "up"]);
        self.join("manager", MANAGER_AT);
        must(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &self.path("key")]);
        // Where sshd keeps its unprivileged half.
        std::fs::create_dir_all("/run/sshd").unwrap();
        let mut known = String::new();
        for (name, last) in MACHINES {
            let network = self.join(name, last);
            let host_key = self.path(&format!("{name}-host-key"));
            must(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &host_key]);
            let public = std::fs::read_to_string(format!("{host_key}.pub")).unwrap();
            writeln!(known, "198.18.9.{last} {public}").unwrap();
            let config = self.path(&format!("{name}-sshd"));
            let text = format!(
                "ListenAddress 198.18.9.{last}\nHostKey {host_key}\nPidFile none\nAuthorizedKeysFile {}\nStrictModes no\n\
                 UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nAllowUsers root\n",
                self.path("key.pub")
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
            wait_until("sshd listens", Duration::from_secs(20), || {
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
    fn topology(&self, change: impl Fn(&str) -> String) -> String {
        let embedded = include_str!("../../testbed/topologies/embedded.toml");
        // Smaller sketches, so that a run takes seconds.
        let mut text = embedded.replace("columns = 8192", "columns = 2048");
        text +=
            "\n[ssh]\nconfig = \"ssh_config\"\noptions = [\"ServerAliveInterval=1\", \"ConnectTimeout=5\"]\n";
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

    fn command(&self, topology: &str, more: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.network("manager"), MANAGER, "run-testbed", "-o", "json"]);
        command.args(["--topology", topology]).args(more);
        command
    }

    fn run(&self, topology: &str, more: &[&str]) -> Output {
        self.command(topology, more).output().unwrap()
    }

    fn is_clean(&self) {
        // All of them first: the folder of copies, /tmp, is the same one on all.
        for machine in &self.machines {
            wait_until(&format!("nothing is left on {}", machine.name), Duration::from_secs(40), || {
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
        for name in MACHINES.iter().map(|(name, _)| *name).chain(["manager", "lan"]) {
            let _ = Command::new("ip").args(["netns", "delete", &self.network(name)]).status();
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

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn outcome(output: &Output) -> (i32, Value) {
    let told = told(output);
    let outcome = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {told}"));
    (output.status.code().unwrap_or(-1), outcome)
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_capture_played_on_three_machines_is_exact_and_nothing_is_left() {
    let test = "a_capture_played_on_three_machines_is_exact_and_nothing_is_left";
    let (Some(bed), Some(captures)) = (bed(test), captures(test)) else { return };
    let capture = captures.join("traffic/real-1kxun.pcap").display().to_string();
    let logs = bed.path("logs");
    let topology = bed.topology(|_| String::new());
    for transport in ["uc", "rc"] {
        let output = bed.run(&topology, &["--pcap", &capture, "--transport", transport, "--logs", &logs]);
        let result = outcome(&output);
        assert_good(transport, &result);
        assert_eq!(result.1["run"]["packets"], 1723);
        assert!(number(&result.1["sent"]) > 14_000, "{:#}", result.1);
        bed.is_clean();
    }
    for (name, last) in [("store-collector.log", "store open"), ("edge-translator.log", "stopped accepted=")]
    {
        let log = std::fs::read_to_string(Path::new(&logs).join(name)).unwrap();
        assert!(log.contains(last), "{name}: {log}");
    }
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_program_that_is_copied_is_exact_and_is_gone_afterwards() {
    let Some(bed) = bed("a_program_that_is_copied_is_exact_and_is_gone_afterwards") else { return };
    let topology = bed.topology(|_| "deploy = true".into());
    let output = bed.run(&topology, &["--reports", "20000"]);
    assert_good("copied", &outcome(&output));
    bed.is_clean();
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn what_keeps_a_machine_from_working_is_told_with_what_to_do() {
    let Some(bed) = bed("what_keeps_a_machine_from_working_is_told_with_what_to_do") else { return };
    let other = bed.path("other");
    let script = "#!/bin/sh\necho '{\"version\":\"0.0.1 (commit x)\",\"folder\":\"/x\"}'\ncat >/dev/null\n";
    std::fs::write(&other, script).unwrap();
    must(&["chmod", "755", &other]);
    let silent = bed.path("silent");
    std::fs::write(&silent, "no program").unwrap();
    for (of, change, expect) in [
        ("edge", "port = 2222".to_owned(), "edge (ssh 198.18.9.2): it cannot be reached"),
        ("load", "ssh = \"198.18.9.77\"".to_owned(), "load (ssh 198.18.9.77): it cannot be reached"),
        ("store", "ssh = \"nobody@198.18.9.1\"".to_owned(), "it does not let you in"),
        (
            "store",
            "program = \"/nowhere/dta-manager\"".to_owned(),
            "there is no program /nowhere/dta-manager there",
        ),
        ("edge", format!("program = \"{silent}\""), "cannot be run there"),
        ("edge", format!("program = \"{other}\""), "dta-manager 0.0.1 (commit x), and this one is"),
        ("edge", "program = \"/bin/true\"".to_owned(), "another version, or no dta-manager"),
        ("load", "address = \"198.18.9.99\"".to_owned(), "load: "),
    ] {
        let topology = bed.topology(|name| if name == of { change.clone() } else { String::new() });
        let output = bed.run(&topology, &["--reports", "2000"]);
        let told = told(&output);
        assert_eq!(output.status.code(), Some(1), "{change}: {told}");
        assert!(told.contains(expect), "{change}: {told}");
        assert!(!told.contains("PRIVATE") && told.lines().count() < 20, "{told}");
        bed.is_clean();
    }
    // Wrong in the file itself: its line and key.
    for (change, expect) in [
        ("adress = 1", "machine.adress"),
        ("switch = { type = \"abacus\" }", "switch.type"),
        ("simple_switch = [\"1@eth0\"]", "simple_switch"),
    ] {
        let topology = bed.topology(|name| if name == "edge" { change.to_owned() } else { String::new() });
        let output = bed.run(&topology, &[]);
        let told = told(&output);
        assert!(
            output.status.code() == Some(2) && told.contains(expect) && told.contains(", line "),
            "{told}"
        );
    }
    // A port that another program has.
    let bind = "import socket,time\ns=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
                s.bind(('198.18.9.1',4791))\nprint(1,flush=True)\ntime.sleep(600)";
    let mut other = Command::new("ip")
        .args(["netns", "exec", &bed.network("store"), "python3", "-c", bind])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut one = [0];
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut one).unwrap();
    let output = bed.run(&bed.topology(|_| String::new()), &["--reports", "2000"]);
    let told_of_port = told(&output);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(told_of_port.contains("store: the collector") && told_of_port.contains("4791"), "{told_of_port}");
    // A host key that nobody has seen.
    std::fs::write(bed.path("known_hosts"), "").unwrap();
    let output = bed.run(&bed.topology(|_| String::new()), &["--reports", "2000"]);
    assert!(told(&output).contains("its host key is not known here"), "{}", told(&output));
    bed.is_clean();
}

/// Starts a long run, and waits until all machines have their processes.
fn long_run(bed: &Bed, topology: &str) -> Child {
    let child = bed
        .command(topology, &["--reports", "100000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for (machine, role) in bed.machines.iter().zip(["__collector", "__translator", "__machine"]) {
        wait_until(&format!("{role} runs on {}", machine.name), Duration::from_secs(60), || {
            machine.running().iter().any(|line| line.contains(role))
        });
    }
    // Reports are on their way then.
    std::thread::sleep(Duration::from_secs(2));
    child
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn a_machine_that_dies_is_named_and_the_others_are_left_clean() {
    for (index, (name, _)) in MACHINES.into_iter().enumerate() {
        let Some(mut bed) = bed("a_machine_that_dies_is_named_and_the_others_are_left_clean") else { return };
        let topology = bed.topology(|_| String::new());
        let child = long_run(&bed, &topology);
        bed.machines[index].dies();
        let died = Instant::now();
        let output = child.wait_with_output().unwrap();
        let told = told(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("{name} (ssh 198.18.9.")), "{name}: {told}");
        assert!(died.elapsed() < Duration::from_secs(90), "{:?}", died.elapsed());
        bed.is_clean();
    }
}

#[test]
#[ignore = "needs root, ip, unshare and sshd: make test runs it"]
fn however_the_manager_ends_nothing_is_left() {
    let Some(bed) = bed("however_the_manager_ends_nothing_is_left") else { return };
    for copied in [false, true] {
        let topology = bed.topology(|_| if copied { "deploy = true".into() } else { String::new() });
        for (signal, status) in [(Signal::INT, Some(130)), (Signal::TERM, Some(143)), (Signal::KILL, None)] {
            let mut child = long_run(&bed, &topology);
            kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
            let ended = child.wait().unwrap();
            assert!(ended.code() == status && ended.signal().is_some() == status.is_none(), "{ended}");
            bed.is_clean();
        }
    }
}

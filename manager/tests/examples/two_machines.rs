//! The page on two machines, followed word for word: each block is run on the machine that it names, and what it shows is
//! compared with what is printed. A machine is a network and a mount namespace of its own, with addresses that the page
//! gives. Two programs are stand-ins: `systemctl`, which starts what the unit says as the unit's user and waits until that
//! is ready, and `scp`, which copies into the home folder of the machine with that address.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::MANAGER;
use crate::console::is_as_shown;
use crate::found::root;
use crate::room::{Room, script};

pub(crate) const PAGE: &str = "docs/two-machines.md";

/// Machines with the networks that they are in, and their addresses there.
const MACHINES: [(&str, &[(&str, &str)]); 4] = [
    ("collector", &[("core", "10.20.0.5/24")]),
    ("translator", &[("core", "10.20.0.4/24"), ("reports", "10.10.0.4/24")]),
    ("desk", &[("core", "10.20.0.9/24")]),
    ("reporter", &[("reports", "10.10.0.9/24")]),
];

/// How long anything may take to come about.
const PATIENCE: Duration = Duration::from_secs(60);

/// What of a machine is its own; `$1` is its folder, `$2` the program, `$3` the repository.
const SET_UP: &str = r#"
set -e
mount --make-rprivate /
mkdir -p "$1/etc" "$1/root"
cp -a /etc/. "$1/etc/"
mount --bind "$1/etc" /etc
for folder in /dev/shm /run /usr/local; do mount -t tmpfs none $folder; done
mkdir -p /usr/local/bin /usr/local/share/dta /etc/dta
for program in collector translator reporter; do
    printf '#!/bin/sh\nexec /usr/local/bin/dta __%s "$@"\n' $program > /usr/local/bin/dta-$program
done
cp "$3/packaging/systemd"/*.service "$3/packaging/test/notify-socket" /usr/local/share/dta/
cp "$1/../systemctl" "$1/../scp" /usr/local/bin/
chmod -R a+rX /usr/local
chmod a+x /usr/local/bin/*
touch /usr/local/bin/dta
mount --bind "$2" /usr/local/bin/dta
mkdir /run/state
for user in dta-collector dta-translator; do id $user >/dev/null 2>&1 || useradd --system --user-group $user; done
ip link set lo up
"#;

/// Starts what is written to its fifo.
const FIRST_PROCESS: &str = r#"while true; do while read -r line; do eval "$line"; done <"$1"; done"#;

const SYSTEMCTL: &str = r#"#!/bin/bash
# systemctl enable --now|start|stop|reload UNIT, of the units in this repository and of nftables.
set -e
verb=$1; shift
if [ "$1" = --now ]; then verb=start; shift; fi
name=$1; unit=/usr/local/share/dta/$name.service; pid=/run/$name.pid
[ -e "$unit" ] || unit=/lib/systemd/system/$name.service
of() { sed -n "s/^$1=//p" "$unit" | head -1; }
case $verb in
start)
    line=$(of ExecStart)
    if [ "$(of Type)" = oneshot ]; then exec $line; fi
    user=$(of User)
    folder=$(of RuntimeDirectory)
    [ -z "$folder" ] || install -d -m 700 -o "$user" -g "$user" "/run/$folder"
    state=$(of StateDirectory)
    [ -z "$state" ] || install -d -m 700 -o "$user" -g "$user" "/run/state/$state"
    rm -f /run/$name.notify /run/$name.messages
    python3 /usr/local/share/dta/notify-socket /run/$name.notify /run/$name.messages >/dev/null 2>&1 </dev/null &
    until [ -S /run/$name.notify ]; do sleep 0.05; done
    rm -f $pid
    # The first process of the machine is the parent: a program that is run for tests ends with its parent.
    echo "HOME=/nonexistent NOTIFY_SOCKET=/run/$name.notify STATE_DIRECTORY=/run/state/$state setpriv --reuid $user --regid $user \
        --clear-groups --no-new-privs --bounding-set -all ${line/#\/usr\/bin/\/usr\/local\/bin} \
        >>/run/$name.log 2>&1 </dev/null & echo \$! >$pid" >"$DTA_MACHINE/starts"
    for _ in $(seq 600); do
        if grep -q READY=1 /run/$name.messages 2>/dev/null; then exit 0; fi
        [ ! -s $pid ] || kill -0 "$(cat $pid)" 2>/dev/null || break
        sleep 0.1
    done
    cat /run/$name.log >&2
    exit 1
    ;;
stop)
    kill "$(cat $pid)"
    while kill -0 "$(cat $pid)" 2>/dev/null; do sleep 0.05; done
    ;;
reload)
    : >/run/$name.messages
    kill -HUP "$(cat $pid)"
    for _ in $(seq 600); do
        if grep -q READY=1 /run/$name.messages; then exit 0; fi
        sleep 0.1
    done
    cat /run/$name.log >&2
    exit 1
    ;;
*) echo "not known here: systemctl $verb" >&2; exit 9 ;;
esac
"#;

/// One block of the page, or one command of one with what it shows.
struct Step {
    place: String,
    machines: Vec<String>,
    lines: String,
    shown: Option<Vec<String>>,
}

/// What every shell is given first, and the steps.
fn steps(text: &str) -> (String, Vec<Step>) {
    let mut everywhere = String::new();
    let mut steps: Vec<Step> = Vec::new();
    let mut fence: Option<&str> = None;
    let mut begins = false;
    for (number, line) in text.lines().enumerate() {
        let place = format!("{PAGE}:{}", number + 1);
        if let Some(info) = line.strip_prefix("```") {
            fence = if fence.is_some() { None } else { Some(info) };
            begins = true;
            continue;
        }
        match fence {
            None => {}
            Some("sh everywhere") => everywhere += &format!("{line}\n"),
            Some("sh") if begins => {
                let machines =
                    line.strip_prefix("# ").unwrap_or_else(|| panic!("{place}: where is it typed?"));
                let machines = machines.split(", ").map(str::to_owned).collect();
                steps.push(Step { place, machines, lines: String::new(), shown: None });
            }
            Some("sh") => {
                steps.last_mut().expect("a block has begun").lines += &format!("{line}\n");
            }
            Some("console") => match line.split_once("$ ") {
                Some((machine, typed)) if MACHINES.iter().any(|(name, _)| *name == machine) => {
                    steps.push(Step {
                        place,
                        machines: vec![machine.to_owned()],
                        lines: typed.to_owned(),
                        shown: Some(Vec::new()),
                    })
                }
                _ => {
                    let last = steps.last_mut().and_then(|step| step.shown.as_mut());
                    last.unwrap_or_else(|| panic!("{place}: output of no command")).push(line.to_owned());
                }
            },
            Some(other) => panic!("{place}: a block of {other:?}, which nobody runs"),
        }
        begins = false;
    }
    (everywhere, steps)
}

struct Machine {
    name: &'static str,
    folder: PathBuf,
    /// Its namespaces last as long as this.
    holder: Child,
}

impl Machine {
    fn new(machines: &Path, name: &'static str, networks: &[(&str, &str)]) -> Self {
        let folder = machines.join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let mut holder = Command::new("unshare");
        let starts = folder.join("starts");
        succeeds("mkfifo", Command::new("mkfifo").arg(&starts).output());
        holder.args(["--net", "--mount", "bash", "-c", FIRST_PROCESS, "_"]).arg(&starts);
        let machine = Self { name, folder, holder: holder.spawn().expect("unshare") };
        let start = Instant::now();
        let namespace = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        while namespace(machine.holder.id()) == namespace(std::process::id()) {
            assert!(start.elapsed() < PATIENCE, "{name} has no namespaces");
            std::thread::sleep(Duration::from_millis(10));
        }
        let (folder, root) = (machine.folder.display().to_string(), root().display().to_string());
        let set_up = [SET_UP, "_", &folder, MANAGER, &root];
        succeeds("the machine", machine.command(&[&["bash", "-c"], &set_up[..]].concat()).output());
        let pid = machine.holder.id().to_string();
        for (network, address) in networks {
            let (outer, bridge) = (format!("{network}-{}", &name[..3]), format!("br-{network}"));
            for line in [
                format!("link add {outer} type veth peer name {network} netns {pid}"),
                format!("link set {outer} master {bridge} up"),
            ] {
                succeeds(&line, Command::new("ip").args(line.split(' ')).output());
            }
            machine.must(&format!("ip addr add {address} dev {network} && ip link set {network} up"));
        }
        machine
    }

    /// In its namespaces, with its home as the folder.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let pid = self.holder.id().to_string();
        command.args(["--target", &pid, "--net", "--mount"]).args(words);
        command
            .env("HOME", self.folder.join("root"))
            .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("DTA_MACHINE", &self.folder)
            .env("DTA_MACHINES", self.folder.parent().expect("it is in one"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, lines: &str) -> Output {
        let lines = format!("cd \"$HOME\"\n{lines}");
        self.command(&[
            "env",
            "--default-signal=INT",
            "timeout",
            "--kill-after=5",
            "300",
            "bash",
            "-ec",
            &lines,
        ])
        .output()
        .expect("nsenter")
    }

    fn must(&self, lines: &str) -> String {
        succeeds(&format!("{}: {lines}", self.name), Ok(self.run(lines)))
    }

    /// How many packets its firewall has dropped.
    fn strangers(&self) -> u64 {
        let printed = self.must("nft -j list counter inet dta strangers");
        let json: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
        let counters = json["nftables"].as_array().expect("a list").iter();
        counters.filter_map(|entry| entry["counter"]["packets"].as_u64()).sum()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn succeeds(what: &str, output: std::io::Result<Output>) -> String {
    let output = output.unwrap_or_else(|e| panic!("{what}: {e}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{what}: {:?} {stdout}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

/// Runs a step on its machines. What is shown may take a while to be so.
fn follow(machines: &[Machine], everywhere: &str, step: &Step) {
    for name in &step.machines {
        let machine = machines.iter().find(|machine| machine.name == name);
        let machine = machine.unwrap_or_else(|| panic!("{}: no machine {name}", step.place));
        eprintln!("{} {name}", step.place);
        let lines = format!("{everywhere}{}", step.lines);
        let Some(shown) = &step.shown else {
            machine.must(&lines);
            continue;
        };
        let start = Instant::now();
        loop {
            let done = machine.run(&format!("exec 2>&1\n{lines}"));
            let printed = String::from_utf8_lossy(&done.stdout).into_owned();
            let as_lines: Vec<_> = printed.lines().map(str::to_owned).collect();
            if is_as_shown(shown, &as_lines) {
                break;
            }
            if start.elapsed() > PATIENCE {
                for machine in machines {
                    eprintln!("{}", machine.must("tail -n 20 /run/*.log || true"));
                }
                panic!("{}: {} shows\n{}\nand printed\n{printed}", step.place, step.lines, shown.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Follows the page, then looks at what it promises of strangers.
pub(crate) fn run(room: &Room) {
    let text = std::fs::read_to_string(root().join(PAGE)).expect("the page");
    let (everywhere, steps) = steps(&text);
    assert!(steps.len() > 15, "the page has {} blocks", steps.len());
    let folder = room.here().join("machines");
    std::fs::create_dir_all(&folder).expect("a folder");
    script(&folder.join("systemctl"), SYSTEMCTL);
    script(&folder.join("scp"), &scp());
    for bridge in ["br-core", "br-reports"] {
        for line in [format!("link add {bridge} type bridge"), format!("link set {bridge} up")] {
            succeeds(&line, Command::new("ip").args(line.split(' ')).output());
        }
    }
    let machines: Vec<_> =
        MACHINES.iter().map(|(name, networks)| Machine::new(&folder, name, networks)).collect();
    for step in &steps {
        follow(&machines, &everywhere, step);
    }
    let [collector, translator, desk, reporter] = &machines[..] else { unreachable!("four machines") };
    strangers_are_kept_out(&everywhere, collector, translator, desk, reporter);
}

fn strangers_are_kept_out(
    everywhere: &str,
    collector: &Machine,
    translator: &Machine,
    desk: &Machine,
    reporter: &Machine,
) {
    // Nobody who belongs here was dropped.
    assert_eq!((collector.strangers(), translator.strangers()), (0, 0));
    // Whom the firewall does pass is asked for a certificate, whatever else is right.
    let refused = desk.run(&format!("{everywhere}dta-collector stores --collector \"$COLLECTOR:40050\""));
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && stderr.contains("TLS"), "{stderr}");
    // A certificate of another authority is refused, too.
    let other = "\
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=stranger \
            -addext subjectAltName=DNS:operator.example -keyout stranger.key -out stranger.crt 2>/dev/null
        dta-collector stores --collector \"$COLLECTOR:40050\" --ca dta-authority/ca.crt --client-cert stranger.crt \
            --client-key stranger.key";
    let refused = desk.run(&format!("{everywhere}{other}"));
    assert!(!refused.status.success(), "{}", String::from_utf8_lossy(&refused.stdout));
    assert_eq!(collector.strangers(), 0);
    // A reporter from elsewhere is dropped by the firewall, and nothing of it lands.
    let key = "'10.0.0.9:1->10.0.0.2:1/udp'";
    reporter.must("ip addr add 10.30.0.9/24 dev reports");
    reporter.must(&format!(
        "{everywhere}dta-reporter send key-write --store 1 --key {key} --value 1 --translator \"$REPORTS:40040\" \
         --from 10.30.0.9:0 --unchecked"
    ));
    let start = Instant::now();
    while translator.strangers() == 0 {
        assert!(start.elapsed() < PATIENCE, "the firewall has dropped nothing");
        std::thread::sleep(Duration::from_millis(100));
    }
    let asked = desk.run(&format!(". ./dta.env; dta-collector query key-write {key}"));
    assert_eq!(asked.status.code(), Some(3), "{}", String::from_utf8_lossy(&asked.stdout));
    // Nor does anybody but translator and desk reach the collector.
    desk.must("ip addr flush dev core && ip addr add 10.20.0.99/24 dev core");
    let refused = desk.run(". ./dta.env; timeout 10 dta-collector stores");
    assert!(!refused.status.success() && collector.strangers() > 0, "{}", collector.strangers());
}

/// `scp FILE... root@ADDRESS:`
fn scp() -> String {
    let homes: String = MACHINES
        .iter()
        .flat_map(|(name, networks)| networks.iter().map(move |(_, address)| (name, address)))
        .map(|(name, address)| {
            format!(
                "root@{}:) home=$DTA_MACHINES/{name}/root ;;\n",
                address.split('/').next().unwrap_or_default()
            )
        })
        .collect();
    format!(
        "#!/bin/bash\nset -e\nto=${{!#}}\ncase $to in\n{homes}*) echo \"scp: no machine $to\" >&2; exit 1 ;;\nesac\n\
         cp -- \"${{@:1:$#-1}}\" \"$home/\"\n"
    )
}

//! The machines of a topology file.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use dta_files::config_file::KeyPositions;
use dta_proto::program::Mac;
use serde::Deserialize;

use crate::share;
use crate::topology::{TopologyError, reject_value};

/// How to reach all machines: table `[ssh]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ssh {
    /// A configuration file of the client (`ssh -F`), instead of the user's; relative to the topology file.
    pub config: Option<PathBuf>,
    /// Options of ssh_config(5), each as `Name=value`.
    pub options: Vec<String>,
}

dta_proto::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum MachineRole {
        /// A collector: several machines may have this role, and share the stores.
        Collector: "collector",
        /// The translator; for a P4 switch, its control plane.
        Translator: "translator",
        /// Reporters that play the traffic; several machines may have this role.
        Host: "host",
        /// A reporter switch, with its control plane; several machines may have this role.
        Reporter: "reporter",
        /// The hosts whose traffic a reporter switch forwards: a machine for each of these.
        Traffic: "traffic",
    }
}

impl MachineRole {
    /// The order in which roles end: senders before receivers. A translator hands its last counters to the collector.
    pub fn end_order(self) -> u8 {
        match self {
            Self::Host | Self::Traffic => 0,
            Self::Reporter => 1,
            Self::Translator => 2,
            Self::Collector => 3,
        }
    }
}

/// One of the machines: table `[[machine]]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name in messages and in names of logs.
    pub name: String,
    /// Where ssh finds it: `[USER@]HOST`, or a `Host` of ssh_config.
    pub ssh: String,
    /// Port of its sshd; by default as in ssh_config.
    pub port: Option<u16>,
    pub roles: Vec<MachineRole>,
    /// Its address in the network of reports and RoCEv2 frames; for a P4 switch, the switch's.
    pub address: Ipv4Addr,
    /// Path of the program there. `~/` in front is the user's home.
    #[serde(default = "default_program")]
    pub program: String,
    /// Whether to copy this program there for the run.
    #[serde(default)]
    pub deploy: bool,
    /// For a collector with the software NIC: its link, as in `[soft] link`.
    pub link: Option<String>,
    /// For a translator: the switch to program, as in `[switch.NAME]` of dta-translator, and `mac`, its Ethernet
    /// address. Without it, the software translator runs there. For a reporter: [`OF_REPORTER`].
    pub switch: Option<toml::Table>,
    /// For a bmv2: it is started there, too, on these interfaces, each as `PORT@INTERFACE`.
    #[serde(default)]
    pub simple_switch: Vec<String>,
    /// For a reporter: its ports to its machine with the role traffic, in the order of `interfaces` there.
    #[serde(default)]
    pub host_ports: Vec<u16>,
    /// For a reporter: the link to the translator.
    pub translator: Option<TranslatorLink>,
    /// For the traffic: the interfaces to the reporter, one for each of two hosts.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// For the traffic: the name of the machine with its reporter; may be left out if there is only one.
    pub reporter: Option<String>,
}

/// The link from a reporter switch to the translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranslatorLink {
    pub port: u16,
    /// The translator's Ethernet address.
    pub mac: Mac,
}

/// The keys of a reporter switch. The run, which knows the capture, adds all others.
pub const OF_REPORTER: [&str; 4] = ["type", "control", "device", "mac"];

impl Machine {
    pub fn has_role(&self, role: MachineRole) -> bool {
        self.roles.contains(&role)
    }
}

fn default_program() -> String {
    "dta-manager".into()
}

/// Longest name of a machine: it is part of the path of a socket, which Linux limits to 108 bytes.
const LONGEST_NAME: usize = 24;

pub(crate) fn check_machines(machines: &[Machine], places: &KeyPositions) -> Result<(), TopologyError> {
    if machines.is_empty() {
        return Ok(());
    }
    let count_of = |role: MachineRole| machines.iter().filter(|machine| machine.has_role(role)).count();
    let reporters = count_of(MachineRole::Reporter);
    for role in MachineRole::ALL {
        let count = count_of(role);
        let is_right = match role {
            MachineRole::Collector => (1..=share::MOST).contains(&count),
            MachineRole::Translator => count == 1,
            MachineRole::Host => (count > 0) != (reporters > 0),
            MachineRole::Reporter | MachineRole::Traffic => count == reporters,
        };
        if !is_right {
            let value = format!("a list with {count} of role {}", role.name());
            return reject_value(
                places,
                "machine",
                value,
                "one to 16 machines of the role collector and one of the role translator, and one or more of the role host; or, \
                 instead of these, one or more of the role reporter and as many of the role traffic",
            );
        }
    }
    for (index, machine) in machines.iter().enumerate() {
        let fail = |field: &str, value: &str, must| {
            reject_value(places, &format!("machine[{index}].{field}"), format!("{value:?}"), must)
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if !(1..=LONGEST_NAME).contains(&machine.name.len()) || !machine.name.chars().all(is_plain) {
            return fail("name", &machine.name, "1 to 24 letters, digits and hyphens");
        }
        if machines[..index].iter().any(|other| other.name == machine.name) {
            return fail("name", &machine.name, "another name than those of the machines before");
        }
        if machine.ssh.is_empty() || machine.ssh.starts_with('-') {
            return fail("ssh", &machine.ssh, "[USER@]HOST, or a Host of ssh_config");
        }
        if machine.program.is_empty() {
            return fail("program", "", "the path of dta-manager on that machine");
        }
        if machine.deploy && machine.program != default_program() {
            return fail("program", &machine.program, "left out where deploy = true copies it");
        }
        let (is_translator, is_reporter) =
            (machine.has_role(MachineRole::Translator), machine.has_role(MachineRole::Reporter));
        if machine.switch.is_some() && !is_translator && !is_reporter {
            return fail("switch", "a table", "at machines with the roles translator and reporter alone");
        }
        let kind = machine.switch.as_ref().and_then(|switch| switch.get("type")?.as_str());
        if machine.switch.is_some() && !matches!(kind, Some("bmv2" | "tofino")) {
            return fail(
                "switch.type",
                kind.unwrap_or_default(),
                "\"bmv2\" or \"tofino\"; without the table switch, the software translator runs",
            );
        }
        if !machine.simple_switch.is_empty() && kind != Some("bmv2") {
            return fail(
                "simple_switch",
                &machine.simple_switch.join(", "),
                "at a machine whose switch is of type \"bmv2\"",
            );
        }
        if let Some((key, value, must)) = wrong_for_reporter(machine) {
            return fail(key, &value, must);
        }
        if machine.link.is_some() && !machine.has_role(MachineRole::Collector) {
            let link = machine.link.as_deref().unwrap_or_default();
            return fail("link", link, "at machines with the role collector alone");
        }
        if let Some((value, must)) = wrong_reporter(machine, &machines[..index], machines, reporters) {
            return fail("reporter", value, must);
        }
    }
    Ok(())
}

/// What is wrong with the reporter that a machine names, and what it has to be. `before` are the machines before it.
fn wrong_reporter<'a>(
    machine: &'a Machine,
    before: &[Machine],
    all: &[Machine],
    reporters: usize,
) -> Option<(&'a str, &'static str)> {
    let named = machine.reporter.as_deref();
    if !machine.has_role(MachineRole::Traffic) {
        return named.map(|name| (name, "at machines with the role traffic alone"));
    }
    let Some(name) = named else {
        return (reporters > 1)
            .then_some(("", "the name of the machine with the reporter that `interfaces` lead to"));
    };
    if !all.iter().any(|other| other.name == name && other.has_role(MachineRole::Reporter)) {
        return Some((name, "the name of a machine with the role reporter"));
    }
    let is_taken = before.iter().any(|other| other.reporter.as_deref() == Some(name));
    is_taken.then_some((name, "another reporter than that of the traffic before: each has its own"))
}

/// What makes a machine unfit for a run with a reporter switch: key, value, and what it has to be.
fn wrong_for_reporter(machine: &Machine) -> Option<(&'static str, String, &'static str)> {
    let is_reporter = machine.has_role(MachineRole::Reporter);
    let ports = format!("{:?}", machine.host_ports);
    let interfaces = machine.interfaces.join(", ");
    if machine.has_role(MachineRole::Traffic) {
        if machine.interfaces.len() != 2 {
            return Some(("interfaces", interfaces, "two interfaces that lead to the reporter"));
        }
    } else if !machine.interfaces.is_empty() {
        return Some(("interfaces", interfaces, "at machines with the role traffic alone"));
    }
    if !is_reporter {
        return match (&machine.host_ports[..], &machine.translator) {
            ([], None) => None,
            ([], Some(_)) => {
                Some(("translator", "a table".into(), "at machines with the role reporter alone"))
            }
            _ => Some(("host_ports", ports, "at machines with the role reporter alone")),
        };
    }
    if machine.has_role(MachineRole::Translator) {
        return Some(("roles", "reporter, translator".into(), "one of both: a machine has one switch"));
    }
    let Some(switch) = &machine.switch else {
        return Some((
            "switch",
            String::new(),
            "the table of the reporter switch: type, control, device and mac",
        ));
    };
    if let Some(other) = switch.keys().find(|key| !OF_REPORTER.contains(&&***key)) {
        return Some(("switch", other.clone(), "type, control, device and mac alone: the run says the rest"));
    }
    let is_bmv2 = switch.get("type").and_then(toml::Value::as_str) == Some("bmv2");
    if is_bmv2 && machine.simple_switch.is_empty() {
        return Some((
            "simple_switch",
            String::new(),
            "the interfaces of bmv2, which the run starts, each as PORT@INTERFACE",
        ));
    }
    if machine.host_ports.len() != 2 || machine.host_ports[0] == machine.host_ports[1] {
        return Some(("host_ports", ports, "the two ports of the switch that lead to the traffic"));
    }
    if machine.translator.is_none_or(|link| machine.host_ports.contains(&link.port)) {
        return Some(("translator", String::new(), "{ port, mac } of the translator, at a port of its own"));
    }
    None
}

/// Makes the path of ssh's configuration relative to the topology file.
pub(crate) fn resolve_ssh_config(ssh: &mut Ssh, topology: &Path) {
    if let (Some(config), Some(folder)) = (&mut ssh.config, topology.parent()) {
        *config = folder.join(&*config);
    }
}

//! The machines of a topology file.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use dta_cli::config_file::Places;
use serde::Deserialize;

use crate::topology::{TopologyError, fail};

/// How all machines are reached: table `[ssh]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ssh {
    /// A configuration file of the client (`ssh -F`), instead of the user's; relative to the topology file.
    pub config: Option<PathBuf>,
    /// Options of ssh_config(5), each as `Name=value`.
    pub options: Vec<String>,
}

/// What runs on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The collector.
    Collector,
    /// The translator; of a P4 switch, its control plane.
    Translator,
    /// The reporters that play the traffic.
    Host,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Collector, Role::Translator, Role::Host];

    /// As the file spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Collector => "collector",
            Self::Translator => "translator",
            Self::Host => "host",
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
    /// Port of its sshd; left out, as ssh_config says.
    pub port: Option<u16>,
    /// What runs there.
    pub roles: Vec<Role>,
    /// Its address in the network of reports and RoCEv2 frames; of a P4 switch, the one that the switch has.
    pub address: Ipv4Addr,
    /// The program there. `~/` in front is the home of the user.
    #[serde(default = "program")]
    pub program: String,
    /// Whether this program is copied there for the run.
    #[serde(default)]
    pub deploy: bool,
    /// Of a collector with the software NIC: how frames come in, as `[soft] link` says it.
    pub link: Option<String>,
    /// Of a translator: the switch that is programmed, as `[switch.NAME]` of dta-translator says it, and
    /// `mac`, its Ethernet address. Left out, the software translator runs there.
    pub switch: Option<toml::Table>,
    /// Of a bmv2: it is started there too, on these interfaces, each as `PORT@INTERFACE`.
    #[serde(default)]
    pub simple_switch: Vec<String>,
}

fn program() -> String {
    "dta-manager".into()
}

/// Longest name of a machine: it is part of the path of a socket, which Linux bounds at 108 bytes.
const LONGEST_NAME: usize = 24;

/// Whether the machines of a file can be used.
pub(crate) fn check(machines: &[Machine], places: &Places) -> Result<(), TopologyError> {
    if machines.is_empty() {
        return Ok(());
    }
    for role in Role::ALL {
        let count = machines.iter().filter(|machine| machine.roles.contains(&role)).count();
        if count != 1 {
            let value = format!("a list with {count} of role {}", role.name());
            return fail(
                places,
                "machine",
                value,
                "one machine of each role: collector, translator and host",
            );
        }
    }
    for (index, machine) in machines.iter().enumerate() {
        let fail = |field: &str, value: &str, must| {
            fail(places, &format!("machine[{index}].{field}"), format!("{value:?}"), must)
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
        if machine.deploy && machine.program != program() {
            return fail("program", &machine.program, "left out where deploy = true copies it");
        }
        let is_translator = machine.roles.contains(&Role::Translator);
        if machine.switch.is_some() && !is_translator {
            return fail("switch", "a table", "at the machine with the role translator alone");
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
        if machine.link.is_some() && !machine.roles.contains(&Role::Collector) {
            let link = machine.link.as_deref().unwrap_or_default();
            return fail("link", link, "at the machine with the role collector alone");
        }
    }
    Ok(())
}

/// Makes the path of ssh's configuration relative to the topology file.
pub(crate) fn resolve(ssh: &mut Ssh, topology: &Path) {
    if let (Some(config), Some(folder)) = (&mut ssh.config, topology.parent()) {
        *config = folder.join(&*config);
    }
}

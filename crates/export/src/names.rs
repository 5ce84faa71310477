//! People's names for switches, their ports, drop reasons and [networks](crate::networks), from an optional TOML file:
//!
//! ```toml
//! drop-reasons = "fabric-tna-1.1"
//! networks = "networks.csv"
//! maxmind = ["GeoLite2-ASN.mmdb"]
//!
//! [switch."10.200.0.1"]
//! name = "edge1"
//! [switch.6]
//! name = "leaf1"
//! drop-reasons = "fabric-tna-1.0"
//! [switch.6.port]
//! 12 = "uplink"
//!
//! [drop-reason]
//! 200 = "quota"
//! ```
//!
//! Drop reasons have names without a file: those of sFlow their own, those of INT from a [`DropReasonTable`], for which the
//! file says whose numbers a switch uses. `drop-reason` is for INT numbers. What has no name is shown as its number.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dta_files::config_file::{self, FileError};
use dta_proto::drop_reason::{DropReason, DropReasonTable};
use dta_proto::key::Flow;
use dta_proto::telemetry::SwitchNumber;
use serde::Deserialize;

use crate::networks::{FlowNetworks, Networks};

/// The default file, if it exists: `~/.config/dta/names.toml`, or `/etc/dta/names.toml`.
pub const FILE: &str = "names.toml";

/// Longest name in characters: more would fill a line of a terminal.
const LONGEST: usize = 40;

/// Names of switches, ports and drop reasons. The default has only those of the default [`DropReasonTable`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    switches: BTreeMap<u32, Switch>,
    reasons: BTreeMap<DropReason, String>,
    table: DropReasonTable,
    networks: Option<Arc<Networks>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Switch {
    name: Option<String>,
    ports: BTreeMap<u32, String>,
    table: Option<DropReasonTable>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct NamesFile {
    drop_reasons: Option<String>,
    networks: Option<PathBuf>,
    maxmind: Vec<PathBuf>,
    switch: BTreeMap<String, SwitchTable>,
    drop_reason: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct SwitchTable {
    name: Option<String>,
    drop_reasons: Option<String>,
    port: BTreeMap<String, String>,
}

impl Names {
    /// No names at all, not even for drop reasons.
    pub fn empty() -> Self {
        Self { table: DropReasonTable::None, ..Self::default() }
    }

    /// The names in the requested file, or else in the usual place ([`FILE`]), or else none; and which file it was. The
    /// name `none` means no file.
    pub fn find_and_load(asked: Option<&Path>) -> Result<(Self, Option<PathBuf>), FileError> {
        match config_file::find_config_file(asked, FILE) {
            Some(path) => Ok((Self::load(&path)?, Some(path))),
            None => Ok((Self::default(), None)),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// A sentence that names the file, the line and the key.
    pub fn load(path: &Path) -> Result<Self, FileError> {
        Self::parse(&config_file::read(path, "the names in")?, path)
    }

    /// Like [`Names::load`], but from text; `path` is only for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, FileError> {
        let (file, places) = config_file::parse_config::<NamesFile>(text, path)?;
        let mut names = Self::default();
        let table = |text: Option<String>, key: &str| {
            let table = text.map(|text| text.parse::<DropReasonTable>()).transpose();
            table.map_err(|error| places.value_error(key, error.to_string()))
        };
        names.table = table(file.drop_reasons, "drop-reasons")?.unwrap_or_default();
        if file.networks.is_some() || !file.maxmind.is_empty() {
            // Relative paths are relative to this file.
            let beside = |file: PathBuf| path.parent().unwrap_or(Path::new("")).join(file);
            let key = if file.networks.is_some() { "networks" } else { "maxmind" };
            let maxmind = file.maxmind.into_iter().map(beside).collect();
            let networks = Networks::open(file.networks.map(beside), maxmind);
            names.networks = Some(networks.map_err(|what| places.value_error(key, what))?);
        }
        for (number, SwitchTable { name, drop_reasons, port }) in file.switch {
            let key = format!("switch.{number}");
            let number = parse_switch(&number).map_err(|what| places.value_error(&key, what))?;
            if names.switches.contains_key(&number) {
                let what = format!("another table is of this switch, {}: write one", SwitchNumber(number));
                return Err(places.value_error(&key, what));
            }
            let table = table(drop_reasons, &format!("{key}.drop-reasons"))?;
            let mut switch = Switch { table, ..Switch::default() };
            if let Some(name) = name {
                let key = format!("{key}.name");
                let name = of_switch(name).map_err(|what| places.value_error(&key, what))?;
                if names.number_of(&name).is_some() {
                    let what = format!("another switch is called {name:?}: give each its own name");
                    return Err(places.value_error(&key, what));
                }
                switch.name = Some(name);
            }
            for (port, name) in port {
                let key = format!("{key}.port.{port}");
                let port =
                    self::parse_number(&port, u32::MAX - 1).map_err(|what| places.value_error(&key, what))?;
                let name = validate_name(name).map_err(|what| places.value_error(&key, what))?;
                if switch.ports.values().any(|other| *other == name) {
                    let what =
                        format!("another port of this switch is called {name:?}: give each its own name");
                    return Err(places.value_error(&key, what));
                }
                switch.ports.insert(port, name);
            }
            names.switches.insert(number, switch);
        }
        for (reason, name) in file.drop_reason {
            let key = format!("drop-reason.{reason}");
            let reason =
                self::parse_number(&reason, u8::MAX.into()).map_err(|what| places.value_error(&key, what))?;
            let name = validate_name(name).map_err(|what| places.value_error(&key, what))?;
            // Cannot fail: the number is at most 255.
            names.reasons.insert(DropReason::from_int(u8::try_from(reason).unwrap_or(u8::MAX)), name);
        }
        Ok(names)
    }

    pub fn switch_name(&self, number: u32) -> Option<&str> {
        self.switches.get(&number)?.name.as_deref()
    }

    /// A switch or exporter as people read it: what it is, its name if any, and its number or address.
    pub fn describe_switch(&self, number: u32) -> String {
        describe_switch(number, self.switch_name(number))
    }

    pub fn port_name(&self, switch: u32, port: u32) -> Option<&str> {
        self.switches.get(&switch)?.ports.get(&port).map(String::as_str)
    }

    /// The name of a switch's port, either of which may be unavailable.
    pub fn port_name_if_known(&self, switch: Option<u32>, port: Option<u32>) -> Option<&str> {
        self.port_name(switch?, port?)
    }

    /// The name of a switch's drop reason: from the file, or else from the switch's table; sFlow's are the same for all.
    pub fn drop_reason(&self, switch: Option<u32>, reason: DropReason) -> Option<&str> {
        let own = switch.and_then(|switch| self.switches.get(&switch)?.table);
        self.reasons
            .get(&reason)
            .map(String::as_str)
            .or_else(|| own.unwrap_or(self.table).reason_name(reason))
    }

    /// The name of a reason for which several switches dropped packets; `None` if they mean different things by it.
    pub fn common_drop_reason(
        &self,
        switches: impl IntoIterator<Item = u32>,
        reason: DropReason,
    ) -> Option<&str> {
        let mut names = switches.into_iter().map(|switch| self.drop_reason(Some(switch), reason));
        let first = names.next().unwrap_or_else(|| self.drop_reason(None, reason));
        first.filter(|first| names.all(|name| name == Some(first)))
    }

    /// The networks at the ends of a flow, as far as files say.
    pub fn flow_networks(&self, flow: Option<Flow>) -> FlowNetworks {
        let ends = |networks: &Arc<Networks>| Some(networks.flow_networks(&flow?));
        self.networks.as_ref().and_then(ends).unwrap_or_default()
    }

    pub fn number_of(&self, name: &str) -> Option<u32> {
        let mut all = self.switches.iter();
        all.find(|(_, switch)| switch.name.as_deref() == Some(name)).map(|(number, _)| *number)
    }
}

/// As [`Names::describe_switch`], with the name given: `switch leaf1 (6)`, `exporter 10.200.0.1`.
pub fn describe_switch(number: u32, name: Option<&str>) -> String {
    let number = SwitchNumber(number);
    match name {
        Some(name) => format!("{} {name} ({number})", number.role_name()),
        None => format!("{} {number}", number.role_name()),
    }
}

/// A switch's number, or an exporter's address.
fn parse_switch(text: &str) -> Result<u32, String> {
    match text.parse::<Ipv4Addr>() {
        Ok(address) if address != Ipv4Addr::BROADCAST => Ok(address.to_bits()),
        _ => parse_number(text, u32::MAX - 1).map_err(|what| format!("{what}, nor an IPv4 address")),
    }
}

/// A number without sign or leading zeros, so that no two keys mean the same.
fn parse_number(text: &str, most: u32) -> Result<u32, String> {
    let read = text.parse::<u32>().ok().filter(|read| read.to_string() == text && *read <= most);
    read.ok_or_else(|| format!("{text:?} is not a number from 0 to {most}"))
}

/// A name that fits on one line.
fn validate_name(name: String) -> Result<String, String> {
    let fits = (1..=LONGEST).contains(&name.chars().count()) && name.trim() == name;
    if fits && !name.chars().any(char::is_control) {
        return Ok(name);
    }
    Err(format!(
        "a name has 1 to {LONGEST} characters, none of them a control character, and no blank at its ends"
    ))
}

/// A switch's name: queries accept it, so it must not look like a number.
fn of_switch(name: String) -> Result<String, String> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("{name:?} reads as the number or address of a switch: give it a letter"));
    }
    validate_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Names, String> {
        Names::parse(text, Path::new("names.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn switches_ports_and_reasons_have_names() {
        let names = parse(
            "[switch.6]\nname = \"leaf1\"\n[switch.6.port]\n12 = \"uplink\"\n[switch.4.port]\n1 = \"uplink\"\n\
             [drop-reason]\n200 = \"quota\"\n80 = \"firewall\"\n",
        )
        .unwrap();
        assert_eq!(
            (names.switch_name(6), names.switch_name(4), names.switch_name(7)),
            (Some("leaf1"), None, None)
        );
        assert_eq!(
            (names.port_name(6, 12), names.port_name(4, 1), names.port_name(6, 1)),
            (Some("uplink"), Some("uplink"), None)
        );
        assert_eq!((names.number_of("leaf1"), names.number_of("x")), (Some(6), None));
        let reason = |reason| names.drop_reason(None, DropReason::from_int(reason));
        assert_eq!((reason(200), reason(80)), (Some("quota"), Some("firewall")));
        assert_eq!((reason(71), reason(1)), (Some("traffic-manager"), None));
        assert_eq!(parse("").unwrap(), Names::default());
    }

    #[test]
    fn an_exporter_is_named_by_its_address_and_shown_by_it() {
        let names = parse("[switch.\"10.200.0.1\"]\nname = \"edge1\"\n[switch.6]\nname = \"leaf1\"").unwrap();
        let [edge1, other] = [1, 2].map(|host| u32::from_be_bytes([10, 200, 0, host]));
        assert_eq!((names.switch_name(edge1), names.number_of("edge1")), (Some("edge1"), Some(edge1)));
        assert_eq!(
            [edge1, other, 6, 7].map(|number| names.describe_switch(number)),
            ["exporter edge1 (10.200.0.1)", "exporter 10.200.0.2", "switch leaf1 (6)", "switch 7"]
        );
    }

    #[test]
    fn a_drop_reason_has_the_name_that_its_switch_gives_it() {
        let of = |text: &str, switch, reason| {
            parse(text)
                .unwrap()
                .drop_reason(switch, DropReason::from_int(reason))
                .map(str::to_owned)
                .unwrap_or_default()
        };
        assert_eq!(of("", Some(6), 133), "upf-downlink-session-drop");
        assert_eq!(of("drop-reasons = \"fabric-tna-1.0\"", Some(6), 133), "upf-uplink-pdr-miss");
        assert_eq!(of("drop-reasons = \"none\"", None, 71), "");
        assert_eq!(Names::empty().drop_reason(None, DropReason::from_int(71)), None);
        let mixed = "drop-reasons = \"switch.p4\"\n[switch.6]\ndrop-reasons = \"fabric-tna-1.0\"\n\
                     [drop-reason]\n133 = \"mine\"";
        assert_eq!(of(mixed, Some(6), 71), "traffic-manager");
        assert_eq!((of(mixed, Some(7), 71), of(mixed, Some(7), 51)), ("".into(), "traffic-manager".into()));
        assert_eq!((of(mixed, Some(6), 133), of(mixed, None, 133)), ("mine".into(), "mine".into()));
        let mixed = parse(mixed).unwrap();
        let ttl_zero = DropReason::from_int(26);
        assert_eq!(mixed.common_drop_reason([6, 6], ttl_zero), Some("ip-ttl-zero"));
        assert_eq!(mixed.common_drop_reason([6, 7], ttl_zero), None, "two that do not mean the same");
        assert_eq!(mixed.common_drop_reason([], ttl_zero), Some("outer-ip-ttl-zero"));
        let of_sflow = |number| mixed.common_drop_reason([6, 7], DropReason::from_sflow(number));
        assert_eq!((of_sflow(269), of_sflow(133)), (Some("blackhole-route"), None));
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_line_and_key() {
        let long = format!("[switch.1]\nname = \"{}\"", "x".repeat(41));
        for (text, wanted) in [
            (
                "[switch.6]\nname = \"a\"\n\n[switch.x]\n",
                "names.toml, line 4, key `switch.x`: \"x\" is not a number from 0 to",
            ),
            ("[switch.06]\n", "line 1, key `switch.06`: \"06\" is not a number"),
            ("[switch.4294967295]\n", "is not a number from 0 to 4294967294"),
            ("[switch.6]\nnme = \"a\"\n", "line 2, key `switch.6.nme`: unknown field"),
            ("[switch.6]\nname = 7\n", "line 2, key `switch.6.name`: invalid type"),
            ("[switch.6]\nname = \"\"\n", "line 2, key `switch.6.name`: a name has 1 to 40 characters"),
            (
                "[switch.6]\nname = \"7\"\n",
                "line 2, key `switch.6.name`: \"7\" reads as the number or address of a switch",
            ),
            (&long, "line 2, key `switch.1.name`: a name has"),
            (
                "[switch.1]\nname = \"a\"\n[switch.2]\nname = \"a\"\n",
                "line 4, key `switch.2.name`: another switch is called",
            ),
            ("[switch.\"10.0.0.256\"]\n", "is not a number from 0 to 4294967294, nor an IPv4 address"),
            (
                "[switch.167772161]\n[switch.\"10.0.0.1\"]\n",
                "line 1, key `switch.167772161`: another table is of this switch, 10.0.0.1: write one",
            ),
            (
                "[switch.1.port]\n1 = \"a\"\n2 = \"a\"\n",
                "line 3, key `switch.1.port.2`: another port of this switch",
            ),
            ("[switch.1.port]\n-1 = \"a\"\n", "line 2, key `switch.1.port.-1`"),
            (
                "[drop-reason]\n256 = \"a\"\n",
                "line 2, key `drop-reason.256`: \"256\" is not a number from 0 to 255",
            ),
            ("[drop-reason]\n1 = \"a\\nb\"\n", "line 2, key `drop-reason.1`: a name has"),
            ("[ports]\n", "line 1, key `ports`: unknown field"),
            ("\nnetworks = \"no.csv\"\n", "line 2, key `networks`: no.csv: No such file"),
            ("maxmind = [\"/no.mmdb\"]\n", "line 1, key `maxmind`: /no.mmdb: "),
            (
                "drop-reasons = \"fabric\"\n",
                "line 1, key `drop-reasons`: \"fabric\" is not a table of drop reasons: write fabric-tna-1.1",
            ),
            (
                "[switch.1]\ndrop-reasons = \"x\"\n",
                "line 2, key `switch.1.drop-reasons`: \"x\" is not a table",
            ),
            ("[switch.6\n", "line 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}

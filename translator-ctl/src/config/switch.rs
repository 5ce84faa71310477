//! Switches for `setup`: tables `[switch.NAME]`.
//!
//! Each switch has its own session with the collector. Its own settings for that session are in [`SessionOverrides`];
//! anything missing there comes from `[translator]`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::reporter::SwitchReporterTable;
use super::settings;
use super::{Config, ConfigError, ListRange, TranslatorConfig};
use dta_proto::name;
use dta_proto::program::Mac;
use dta_switch::options::{Station, SwitchOptions, SwitchRoute, TranslatorOptions};
use dta_switch::platform::Platform;
use dta_switch::tofino::{Profile, pipe_of_port};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Switch {
    Software(Software),
    /// A software switch that runs P4 programs: `simple_switch_grpc`.
    Bmv2(P4),
    /// A switch with a Tofino, by its driver (`bf_switchd`).
    Tofino(P4),
}

/// The types of switch that this build can program, as [`Switch`] spells them.
pub const SWITCH_TYPES: &[&str] = &["software", "bmv2", "tofino"];

/// A running software translator, started with `dta-translator run --blank`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// Where its own gRPC service listens: HOST:PORT or `unix:PATH`.
    pub control: String,
    /// Its side of the session.
    #[serde(flatten)]
    pub own: SessionOverrides,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchRole {
    /// It runs `translator-p4`.
    #[default]
    Translator,
    /// It runs `reporter-p4`.
    Reporter,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct P4 {
    #[serde(default)]
    pub role: SwitchRole,
    /// Where its control plane listens: HOST:PORT.
    pub control: String,
    #[serde(default)]
    pub device: u64,
    /// Its side of the session.
    #[serde(flatten)]
    pub own: SessionOverrides,
    /// Directory of the compiled program; default: the built-in one.
    pub program: Option<PathBuf>,
    /// The profile of its program. Translators on Tofino only; default: `postcards`.
    pub profile: Option<Profile>,
    /// The kernel's interface to the switch's CPU port, for flush and probe commands: `bf_pci0`. Translators
    /// on Tofino only; without it, there are no such commands.
    pub cpu_interface: Option<String>,
    /// File for the state that cannot be read back from the switch; default: one named after the switch in
    /// the user's state directory.
    pub state: Option<PathBuf>,
    /// Whether rkeys may be sent to a switch on another host in plain text although the collector sent them
    /// over TLS.
    #[serde(default)]
    pub insecure: bool,
    /// Rows in the cache of each postcard store, a power of two; at most 65,536 in total.
    #[serde(default = "postcard_rows")]
    pub postcard_rows: u32,
    /// Port to each collector, by its index; the last one applies to any further ones.
    #[serde(default)]
    pub collector_ports: Vec<u16>,
    /// Ethernet address of each collector, if the collector does not provide it.
    #[serde(default)]
    pub collector_macs: Vec<Mac>,
    /// Ports for broadcast frames. Empty = none.
    #[serde(default)]
    pub flood: Vec<u16>,
    /// The switch's own Ethernet addresses as a router: frames to them are routed.
    #[serde(default)]
    pub router_macs: Vec<Mac>,
    #[serde(default)]
    pub stations: Vec<Station>,
    /// Routes of IPv4 prefixes, for routed packets.
    #[serde(default)]
    pub routes: Vec<SwitchRoute>,
    /// What it reports. Reporters only.
    pub reporter: Option<Box<SwitchReporterTable>>,
}

fn postcard_rows() -> u32 {
    16_384
}

impl P4 {
    pub fn is_reporter(&self) -> bool {
        self.role == SwitchRole::Reporter
    }

    /// What its API and its forwarding need.
    pub fn switch_options(&self) -> SwitchOptions {
        let deflect = self.reporter.iter().flat_map(|reporter| &reporter.deflect);
        SwitchOptions {
            control: self.control.clone(),
            device: self.device,
            program: self.program.clone(),
            profile: self.profile.unwrap_or_default(),
            cpu_interface: self.cpu_interface.clone(),
            deflecting: deflect.map(|to| pipe_of_port(to.port)).collect(),
            postcard_rows: self.postcard_rows,
            collector_ports: self.collector_ports.clone(),
            collector_macs: self.collector_macs.clone(),
            flood: self.flood.clone(),
            router_macs: self.router_macs.clone(),
            stations: self.stations.clone(),
            routes: self.routes.clone(),
        }
    }

    /// The switch of this name as a translator; `translator` is its side of the session.
    pub fn translator_options(&self, name: &str, translator: &TranslatorConfig) -> TranslatorOptions {
        TranslatorOptions {
            switch: self.switch_options(),
            name: name.into(),
            session: translator.name.clone(),
            state: self.state.clone(),
            reporters: translator.reporters.iter().map(|listed| (listed.id, listed.address)).collect(),
        }
    }

    /// The ports that frames are sent to.
    fn frame_ports(&self) -> impl Iterator<Item = u16> {
        let ports = self.collector_ports.iter().chain(&self.flood);
        ports
            .chain(self.stations.iter().map(|station| &station.port))
            .chain(self.routes.iter().map(|route| &route.port))
            .copied()
    }

    /// Checks that its settings are possible.
    fn check_values(&self, table: &str) -> Result<(), ConfigError> {
        let fail = |key: &str, value: String, must: &str| {
            Err(ConfigError::invalid_value(format!("{table}.{key}"), value, must))
        };
        if !self.postcard_rows.is_power_of_two() || self.postcard_rows > 65_536 {
            return fail("postcard_rows", self.postcard_rows.to_string(), "a power of two, 65,536 at most");
        }
        if let Some(port) = self.frame_ports().find(|port| *port > MAX_PORT) {
            return fail("ports", port.to_string(), "a port of the switch, 511 at most");
        }
        if let Some(route) = self.routes.iter().find(|route| route.prefix.written_address().is_ipv6()) {
            return fail("routes.prefix", route.prefix.to_string(), "an IPv4 address or prefix");
        }
        if let Some(name) = &self.cpu_interface
            && (name.is_empty() || name.len() > 15 || name.contains(['/', ' ']))
        {
            let must = "the name of a network interface, such as bf_pci0: 15 bytes at most";
            return fail("cpu_interface", format!("{name:?}"), must);
        }
        if self.reporter.is_some() && !self.is_reporter() {
            return fail("reporter", "given".into(), "left out, or `role` \"reporter\"");
        }
        Ok(())
    }
}

/// The highest port of a switch: ports have 9 bits.
pub(super) const MAX_PORT: u16 = 511;

/// Whether a port of a Tofino recirculates: the last four of each pipe. No cable leads there.
const fn is_recirculation(port: u16) -> bool {
    matches!(port % 128, 68..=71)
}

/// A switch's own settings for its session. Anything left out is as in `[translator]`, except for the
/// session's name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionOverrides {
    /// Name of its session; default: the switch's own name.
    pub session: Option<String>,
    /// UDP address and port for reports.
    #[serde(deserialize_with = "dta_files::host::serde::some_socket")]
    pub listen: Option<SocketAddr>,
    /// Source address of its RoCEv2 frames, to which answers go.
    #[serde(deserialize_with = "dta_files::host::serde::deserialize_some_ip")]
    pub source: Option<IpAddr>,
    pub source_port: Option<u16>,
    /// Ethernet address of this side.
    pub mac: Option<String>,
    /// Queue pair numbers at its side, for writes and for atomics; 24 bits. For further collectors as in
    /// `[translator]`.
    pub queue_pairs: Option<[u32; 2]>,
    /// Stores to use, by name; empty = all.
    pub stores: Option<Vec<String>>,
    /// Append lists to use; empty = all lists of these stores.
    pub lists: Option<Vec<ListRange>>,
}

impl Switch {
    /// Its control address, its side of the session, and for a P4 switch the whole table.
    fn as_parts(&self) -> (&str, &SessionOverrides, Option<(Platform, &P4)>) {
        match self {
            Switch::Software(of) => (&of.control, &of.own, None),
            Switch::Bmv2(of) => (&of.control, &of.own, Some((Platform::Bmv2, of))),
            Switch::Tofino(of) => (&of.control, &of.own, Some((Platform::Tofino, of))),
        }
    }

    pub fn control_address(&self) -> &str {
        self.as_parts().0
    }

    pub fn session_overrides(&self) -> &SessionOverrides {
        self.as_parts().1
    }

    /// Its table and platform; `None` for a software translator.
    pub fn p4_config(&self) -> Option<(Platform, &P4)> {
        self.as_parts().2
    }

    /// Whether it is a reporter, which has no session.
    pub fn is_reporter(&self) -> bool {
        self.p4_config().is_some_and(|(_, p4)| p4.is_reporter())
    }
}

impl SessionOverrides {
    /// The switch of this name as a translator: `[translator]` with the switch's own settings.
    fn apply_to(&self, switch: &str, translator: &TranslatorConfig) -> TranslatorConfig {
        let SessionOverrides { session, listen, source, source_port, mac, queue_pairs, stores, lists } =
            self.clone();
        let t = translator.clone();
        TranslatorConfig {
            name: session.unwrap_or_else(|| switch.into()),
            listen: listen.map_or(t.listen, Into::into),
            source: source.unwrap_or(t.source),
            source_port: source_port.unwrap_or(t.source_port),
            mac: mac.or(t.mac),
            queue_pairs: queue_pairs.unwrap_or(t.queue_pairs),
            stores: stores.unwrap_or(t.stores),
            lists: lists.unwrap_or(t.lists),
            ..t
        }
    }

    /// Whether the switch replaces `[translator]`, which then only provides its defaults.
    fn stands_in(&self) -> bool {
        self.source.is_none() && self.queue_pairs.is_none()
    }
}

impl Config {
    pub fn find_switch(&self, name: &str) -> Result<&Switch, ConfigError> {
        self.switch.get(name).ok_or_else(|| {
            let have = match self.switch.len() {
                0 => "none".into(),
                _ => self.switch.keys().cloned().collect::<Vec<_>>().join(", "),
            };
            ConfigError::new("", format!("there is no [switch.{name}] in the configuration; it has {have}"))
        })
    }

    /// A switch as a translator: `[translator]` with the switch's own settings and its own session.
    pub fn translator_of(&self, switch: &str) -> Result<TranslatorConfig, ConfigError> {
        match self.find_switch(switch)? {
            reporter if reporter.is_reporter() => Err(ConfigError::new(
                format!("switch.{switch}.role"),
                format!("[switch.{switch}] is a reporter (`role`), which has no session with a collector"),
            )),
            translator => Ok(translator.session_overrides().apply_to(switch, &self.translator)),
        }
    }

    /// Checks the switches' own settings, and that sessions, queue pairs and control addresses are unique.
    pub(super) fn check_switches(&self) -> Result<(), ConfigError> {
        let mut before = vec![("[translator]".to_owned(), self.translator.clone(), false)];
        let mut controls: Vec<(String, &str)> = Vec::new();
        for (name, switch) in &self.switch {
            let table = format!("switch.{name}");
            let who = format!("[{table}]");
            let control = switch.control_address();
            if let Some((other, _)) = controls.iter().find(|(_, theirs)| *theirs == control) {
                let twice = format!(
                    "{other} and {who} have the same control address, {control}: each would overwrite the other's program"
                );
                return Err(ConfigError::new(format!("{table}.control"), twice));
            }
            controls.push((who.clone(), control));
            if let Some((platform, p4)) = switch.p4_config() {
                p4.check_values(&table)?;
                let is_of_tofino = platform == Platform::Tofino && !p4.is_reporter();
                for (key, value, must) in [
                    (
                        "profile",
                        p4.profile.map(Profile::name),
                        "left out: only a translator of type \"tofino\" has profiles",
                    ),
                    (
                        "cpu_interface",
                        p4.cpu_interface.as_deref(),
                        "left out: only a translator of type \"tofino\" receives commands through its CPU port",
                    ),
                ] {
                    if let (Some(value), false) = (value, is_of_tofino) {
                        return Err(ConfigError::invalid_quoted(format!("{table}.{key}"), value, must));
                    }
                }
                // What returns through them may be a command, and only the control plane may give commands.
                if is_of_tofino && let Some(port) = p4.frame_ports().find(|port| is_recirculation(*port)) {
                    let must = "a port of the network: 68 to 71 of each pipe recirculate, and the program alone sends to them";
                    return Err(ConfigError::invalid_value(format!("{table}.ports"), port, must));
                }
                if p4.is_reporter() {
                    let deflects = p4.reporter.as_ref().is_some_and(|reporter| !reporter.deflect.is_empty());
                    if deflects && platform == Platform::Bmv2 {
                        let must = "left out of type \"bmv2\": it cannot report drops in queues";
                        return Err(ConfigError::invalid_value(
                            format!("{table}.reporter.deflect"),
                            "given",
                            must,
                        ));
                    }
                    settings::resolve_settings(p4, name)?;
                    continue;
                }
                // It is not known beforehand which index a collector gets.
                if self.translator.cluster.is_some() {
                    let fail = |key: &str, value: String, must: &str| {
                        Err(ConfigError::invalid_value(format!("{table}.{key}"), value, must))
                    };
                    if p4.collector_ports.len() > 1 {
                        let must = "one port, which leads to all collectors of the cluster";
                        return fail("collector_ports", format!("{:?}", p4.collector_ports), must);
                    }
                    if !p4.collector_macs.is_empty() {
                        let must =
                            "left out: collectors of a cluster announce the Ethernet addresses of their NICs";
                        return fail("collector_macs", "given".into(), must);
                    }
                }
            }
            let translator = switch.session_overrides().apply_to(name, &self.translator);
            if !name::is_session(&translator.name) {
                return Err(ConfigError::invalid_quoted(
                    format!("{table}.session"),
                    translator.name,
                    name::SESSION,
                ));
            }
            translator.check_session(&table)?;
            for (other, theirs, is_switch) in &before {
                if theirs.name == translator.name {
                    let twice = format!(
                        "{other} and {who} would both open session {:?} and take it from each other: give them different \
                         names (`session` of a switch, by default its own name; `name` of [translator])",
                        translator.name
                    );
                    return Err(ConfigError::new(format!("{table}.session"), twice));
                }
                let apart = !is_switch && switch.session_overrides().stands_in();
                if !apart && let Some((queue_pair, address)) = common_queue_pair(theirs, &translator) {
                    let twice = format!(
                        "{other} and {who} both send from {address} with queue pair number {queue_pair:#08x} (or another \
                         one with the same low 14 bits): give the switch its own `source` or `queue_pairs`"
                    );
                    return Err(ConfigError::new(format!("{table}.queue_pairs"), twice));
                }
            }
            before.push((who, translator, true));
        }
        Ok(())
    }
}

/// A queue pair number that both have at the same address, or that gives the same UDP source port (0xc000 and
/// the low 14 bits).
fn common_queue_pair(one: &TranslatorConfig, other: &TranslatorConfig) -> Option<(u32, IpAddr)> {
    let port = |number: u32| number & 0x3fff;
    let common = |number: &u32| one.all_queue_pairs().any(|theirs| port(theirs) == port(*number));
    if one.source != other.source {
        return None;
    }
    other.all_queue_pairs().find(common).map(|number| (number, one.source))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(text: &str) -> Result<Config, ConfigError> {
        let (config, _) = Config::parse(text, Path::new("t.toml"))?;
        config.check_values()?;
        Ok(config)
    }

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    /// A switch `name`, with `rest` in its table.
    fn switch(name: &str, rest: &str) -> String {
        format!("[switch.{name}]\ntype = 'software'\ncontrol = 'http://127.0.0.1:{}'\n{rest}\n", name.len())
    }

    #[test]
    fn switches_of_other_types_say_which_there_are() {
        let error = refusal("[switch.tor1]\ntype = 'unheard'\ncontrol = 'x'");
        assert_eq!(
            error,
            "t.toml, line 2: switch tor1 is of type \"unheard\", but this build programs: software, bmv2, tofino"
        );
        let error = refusal("[switch.tor1]\ncontrol = 'x'");
        assert!(error.contains("t.toml") && error.contains("missing field `type`"), "{error}");
        let config = parse(&switch("a", "")).unwrap();
        assert!(config.find_switch("a").is_ok());
        assert!(config.find_switch("b").unwrap_err().to_string().contains("it has a"));
        assert!(Config::default().find_switch("b").unwrap_err().to_string().contains("it has none"));
        // The names in configuration.
        for kind in SWITCH_TYPES {
            parse(&format!("[switch.a]\ntype = '{kind}'\ncontrol = 'x:1'")).unwrap();
        }
    }

    #[test]
    fn unknown_and_wrong_fields_of_a_switch_are_named() {
        for (rest, words) in [
            ("sorce = '10.0.0.1'", "unknown field `sorce`"),
            (
                "source = 'x y'",
                "line 4, key `switch.a.source`: \"x y\" is neither an address nor the name of a host",
            ),
            ("queue_pairs = [1, 2, 3]", "line 4, key `switch.a.queue_pairs`: invalid length 3"),
            ("source = '::1'", "switch.a.source is ::1, but must be"),
            ("listen = '[::1]:1'", "switch.a.listen is [::1]:1, but must be"),
            ("mac = '02:00'", "switch.a.mac is \"02:00\", but must be"),
            ("queue_pairs = [5, 5]", "switch.a.queue_pairs is [5, 5], but must be"),
            ("session = 'a b'", "switch.a.session is \"a b\", but must be"),
            ("lists = [{ store = 's', first = 0, count = 0 }]", "switch.a.lists.count is 0"),
            (
                "lists = [{ store = 's', first = 0, count = 4 }, { store = 's', first = 3, count = 1 }]",
                "switch.a.lists names list 3",
            ),
        ] {
            let error = refusal(&switch("a", rest));
            assert!(error.contains(words), "{rest}: {error}");
        }
        let error = refusal(&switch("\"a b\"", ""));
        assert!(error.contains("switch.a b.session is \"a b\""), "{error}");
        let error = refusal("[switch.a]\ntype = 'software'");
        assert!(error.contains("missing field `control`"), "{error}");
    }

    #[test]
    fn a_switch_is_the_translator_but_for_what_is_its_own() {
        let translator = "[translator]\nname = 't'\nsource = '10.0.0.1'\nmac = '02:00:00:00:00:01'\ntos = 8\nstores = ['s']\n";
        let own = "session = 'x'\nlisten = '10.0.0.9:1'\nsource = '10.0.0.2'\nsource_port = 7\nmac = '02:00:00:00:00:02'\n\
                   queue_pairs = [8, 9]\nstores = ['u']\nlists = [{ store = 'u', first = 0, count = 1 }]";
        let config = parse(&[translator, &switch("a", ""), &switch("bb", own)].concat()).unwrap();
        let a = config.translator_of("a").unwrap();
        assert_eq!(a, TranslatorConfig { name: "a".into(), ..config.translator.clone() });
        let b = config.translator_of("bb").unwrap();
        assert_eq!(
            b,
            TranslatorConfig {
                name: "x".into(),
                listen: "10.0.0.9:1".parse().unwrap(),
                source: "10.0.0.2".parse().unwrap(),
                source_port: 7,
                mac: Some("02:00:00:00:00:02".into()),
                queue_pairs: [8, 9],
                stores: vec!["u".into()],
                lists: vec![ListRange { store: "u".into(), first: 0, count: 1 }],
                ..config.translator.clone()
            }
        );
        assert!(config.translator_of("c").unwrap_err().to_string().starts_with("there is no [switch.c]"));
        // And it can be written and read again.
        let text = toml::to_string(&config).unwrap();
        assert_eq!(parse(&text).unwrap(), config, "{text}");
    }

    #[test]
    fn the_interface_of_a_cpu_port_is_of_a_translator_with_a_tofino() {
        let of = |kind: &str, rest: &str| {
            format!("[switch.a]\ntype = '{kind}'\ncontrol = 'x:1'\ncpu_interface = 'bf_pci0'\n{rest}")
        };
        let config = parse(&of("tofino", "")).unwrap();
        let Switch::Tofino(p4) = config.find_switch("a").unwrap() else { panic!() };
        assert_eq!(p4.cpu_interface.as_deref(), Some("bf_pci0"));
        assert_eq!(parse(&toml::to_string(&config).unwrap()).unwrap(), config);
        for text in [of("bmv2", ""), of("tofino", "role = 'reporter'")] {
            let error = refusal(&text);
            let words = "switch.a.cpu_interface is \"bf_pci0\", but must be left out: only a translator of type \"tofino\"";
            assert!(error.starts_with(words), "{error}");
        }
        assert!(refusal(&of("software", "")).contains("unknown field `cpu_interface`"));
        for name in ["", "bf/pci0", "an-interface-of-17"] {
            let error = refusal(&of("tofino", "").replace("bf_pci0", name));
            assert!(error.contains("but must be the name of a network interface"), "{error}");
        }
    }

    #[test]
    fn nothing_is_sent_to_recirculation_ports_of_a_tofino() {
        let of = |kind: &str, rest: &str| format!("[switch.a]\ntype = '{kind}'\ncontrol = 'x:1'\n{rest}");
        let station = |port: u16| format!("stations = [{{ mac = '02:00:00:00:00:01', port = {port} }}]");
        let route = |port: u16| {
            format!(
                "[[switch.a.routes]]\nprefix = '10.0.0.0/8'\nport = {port}\nsource = '02:00:00:00:00:01'\ndestination = '02:00:00:00:00:02'"
            )
        };
        for port in [68, 71, 196, 324, 455] {
            let ports = [
                format!("collector_ports = [1, {port}]"),
                format!("flood = [{port}]"),
                station(port),
                route(port),
            ];
            for text in ports {
                let error = refusal(&of("tofino", &text));
                let words = format!(
                    "switch.a.ports is {port}, but must be a port of the network: 68 to 71 of each pipe"
                );
                assert!(error.starts_with(&words), "{error}");
                parse(&of("bmv2", &text)).unwrap();
            }
        }
        for port in [0, 63, 67, 72, 127, 192, 320] {
            parse(&of("tofino", &station(port))).unwrap();
        }
    }

    #[test]
    fn two_do_not_open_one_session() {
        let error = refusal(&["[translator]\nname = 'a'\n", &switch("a", "")].concat());
        assert!(error.starts_with("[translator] and [switch.a] would both open session \"a\""), "{error}");
        let other = "source = '10.0.0.2'\nsession = 'a'";
        let error = refusal(&[switch("a", "source = '10.0.0.1'"), switch("bb", other)].concat());
        assert!(error.starts_with("[switch.a] and [switch.bb] would both open session \"a\""), "{error}");
        parse(&[switch("a", "source = '10.0.0.1'"), switch("bb", "source = '10.0.0.2'")].concat()).unwrap();
    }

    #[test]
    fn two_do_not_send_with_one_queue_pair_number_from_one_address() {
        // Two that replace [translator].
        let error = refusal(&[switch("a", ""), switch("bb", "")].concat());
        let words = "[switch.a] and [switch.bb] both send from 127.0.0.2 with queue pair number 0x000011";
        assert!(error.starts_with(words), "{error}");
        parse(&[switch("a", ""), switch("bb", "source = '127.0.0.3'")].concat()).unwrap();
        parse(&[switch("a", ""), switch("bb", "queue_pairs = [0x21, 0x22]")].concat()).unwrap();
        // The low 14 bits determine the UDP port.
        let error = refusal(&[switch("a", ""), switch("bb", "queue_pairs = [0x21, 0x4012]")].concat());
        assert!(error.contains("number 0x004012"), "{error}");
        // One with its own numbers coexists with [translator].
        let error = refusal(&switch("a", "queue_pairs = [0x12, 0x13]"));
        assert!(error.starts_with("[translator] and [switch.a] both send"), "{error}");
        parse(&switch("a", "queue_pairs = [0x13, 0x14]")).unwrap();
        // With several collectors, each takes two.
        let two = "[translator]\ncollector = ['a:1', 'b:1']\n";
        let error = refusal(&[two, &switch("a", "queue_pairs = [0x13, 0x14]")].concat());
        assert!(error.contains("number 0x000013"), "{error}");
        parse(&[two, &switch("a", "queue_pairs = [0x15, 0x16]")].concat()).unwrap();
    }

    #[test]
    fn in_a_cluster_all_collectors_are_behind_one_port() {
        let with = |rest: &str| {
            let cluster = "[translator.cluster]\nendpoints = ['http://10.0.0.1:2379']\n";
            format!("{cluster}[switch.a]\ntype = 'bmv2'\ncontrol = '127.0.0.1:1'\n{rest}\n")
        };
        parse(&with("collector_ports = [1]")).unwrap();
        let error = refusal(&with("collector_ports = [1, 2]"));
        assert!(error.contains("one port, which leads to all collectors"), "{error}");
        let error = refusal(&with("collector_macs = ['02:00:00:00:00:01']"));
        assert!(error.contains("left out: collectors of a cluster"), "{error}");
    }

    #[test]
    fn a_switch_has_the_collectors_of_the_translator() {
        let two = "[translator]\ncollector = ['a:1', { address = 'b:1', stores = ['s'] }]\n";
        let config = parse(&[two, &switch("a", "")].concat()).unwrap();
        assert_eq!(config.translator_of("a").unwrap().collector, config.translator.collector);
        let error = refusal(&[two, &switch("a", "stores = ['t']")].concat());
        assert!(error.starts_with("switch.a.stores is [\"t\"], but must be left out"), "{error}");
        let error = refusal(&[two, &switch("a", "queue_pairs = [16777214, 5]")].concat());
        assert!(error.starts_with("switch.a.queue_pairs is [16777214, 5], but must be"), "{error}");
    }

    #[test]
    fn the_example_of_the_manual_is_taken() {
        let manual = include_str!("../../../docs/operating.md");
        let example = manual.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        let config = parse(example).unwrap();
        let of = |switch| config.translator_of(switch).unwrap();
        assert_eq!((of("tor1").name, of("tor1").source), ("tor1".into(), "10.0.1.1".parse().unwrap()));
        assert_eq!(of("tor2").lists, [ListRange { store: "events".into(), first: 2, count: 2 }]);
        assert_eq!(of("tor2").stores, ["flows", "events"]);
    }

    #[test]
    fn two_are_not_one_program() {
        let two = [switch("a", "source = '10.0.0.1'"), switch("b", "source = '10.0.0.2'")].concat();
        let error = refusal(&two);
        assert!(error.starts_with("[switch.a] and [switch.b] have the same control address"), "{error}");
    }
}

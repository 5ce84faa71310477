//! Resolved settings of a reporter switch: its table with defaults, and names looked up.

use std::collections::HashSet;
use std::fmt::Display;
use std::net::Ipv4Addr;

use dta_proto::program::Mac;

use dta_switch::matches::{Masked, PortRange, Protocol};
use dta_switch::reporter::settings::{
    Becomes, EntryKind, Excluded, KeyKind, ReceiverKind, ReportReceiver, ReporterWatchRule,
    ResolvedReportOutput, SwitchReportKind, SwitchReporterSettings, Threshold, ValueKind,
};
use dta_switch::tofino::pipe_of_port;

use super::reporter::{
    As, Destination, DestinationKind, REPORTS_PORT, SwitchReportOutput, SwitchReporterTable,
};
use super::switch::{MAX_PORT, P4};
use super::{Config, ConfigError, SessionOverrides};

/// The highest queue whose quota the programs count separately.
const MAX_QUEUE: u8 = 7;
/// The highest queue that a port of a Tofino can have.
const MAX_TOFINO_QUEUE: u8 = 31;
/// Default UDP source port of reports, minus the number of their destination.
const SOURCE_PORT: u16 = 50_000;
/// Default quota of a queue's reports, as in SD-Fabric.
const QUOTA: u16 = 1024;
/// Most destinations, and most outputs.
const MOST: usize = 255;

/// The collector's default INT stores and their ids.
const INT_STORES: [(&str, u16); 4] =
    [("int-values", 17), ("int-events", 18), ("int-counters", 19), ("int-postcards", 20)];
/// The lists of `int-events` for drops and for congestion.
const DROPS_LIST: u32 = 1;
const CONGESTION_LIST: u32 = 2;

/// Refuses the keys of `SessionOverrides` and of a translator's switch, which a reporter does not have.
fn check_foreign(p4: &P4, table: &str) -> Result<(), ConfigError> {
    let SessionOverrides { session, listen, source: _, source_port, mac: _, queue_pairs, stores, lists } =
        &p4.own;
    let foreign = [
        ("session", session.is_some()),
        ("listen", listen.is_some()),
        ("source_port", source_port.is_some()),
        ("queue_pairs", queue_pairs.is_some()),
        ("stores", stores.is_some()),
        ("lists", lists.is_some()),
        ("collector_ports", !p4.collector_ports.is_empty()),
        ("collector_macs", !p4.collector_macs.is_empty()),
        ("state", p4.state.is_some()),
        ("insecure", p4.insecure),
    ];
    match foreign.into_iter().find(|(_, is_there)| *is_there) {
        Some((key, _)) => Err(ConfigError::invalid_value(
            format!("{table}.{key}"),
            "given",
            "left out of a switch of the role \"reporter\": a translator has it",
        )),
        None => Ok(()),
    }
}

impl Config {
    /// What a switch with the role `reporter` should do; `None` for other switches.
    pub fn reporter_of(&self, switch: &str) -> Result<Option<(&P4, SwitchReporterSettings)>, ConfigError> {
        let p4 = self.find_switch(switch)?.p4_config().map(|(_, p4)| p4).filter(|p4| p4.is_reporter());
        p4.map(|p4| Ok((p4, resolve_settings(p4, switch)?))).transpose()
    }
}

/// What a reporter switch should do, by its table.
pub(super) fn resolve_settings(p4: &P4, switch: &str) -> Result<SwitchReporterSettings, ConfigError> {
    let table = format!("switch.{switch}");
    check_foreign(p4, &table)?;
    let own = p4.reporter.clone().unwrap_or_default();
    let reader = SettingsReader { p4, own: &own, table: &table };
    reader.check_ranges()?;
    let switch_id = own
        .switch_id
        .ok_or_else(|| reader.wrong_value("switch_id", "missing", "this switch's number in reports"))?;
    let source = reader.report_source()?;
    let destinations = reader.destinations(switch_id)?;
    let subnets = own.watch_subnets.as_ref();
    let of_subnet = |subnet: &Masked| {
        let any = ReporterWatchRule {
            source: Masked::default(),
            destination: Masked::default(),
            protocol: None,
            source_ports: PortRange::ALL,
            destination_ports: PortRange::ALL,
            report: SwitchReportKind::ALL.to_vec(),
        };
        [
            ReporterWatchRule { source: *subnet, ..any.clone() },
            ReporterWatchRule { destination: *subnet, ..any },
        ]
    };
    let of_receiver = |receiver: &ReportReceiver| {
        let destination = Masked::from_address(receiver.to.0);
        // The program recognises reports to their own port.
        let is_known = receiver.to.1 == REPORTS_PORT;
        (!is_known).then_some(Excluded { destination, protocol: Protocol::UDP, port: Some(receiver.to.1) })
    };
    let mut excluded: Vec<Excluded> = destinations.iter().filter_map(of_receiver).collect();
    for one in &own.excluded {
        if !excluded.contains(one) {
            excluded.push(one.clone());
        }
    }
    let thresholds = own.queue_report_latency_thresholds.as_ref();
    let whole = |one: &Threshold| Threshold {
        reset_ns: Some(one.reset_ns.unwrap_or(one.trigger_ns / 2)),
        quota: Some(one.quota.unwrap_or(QUOTA)),
        ..*one
    };
    Ok(SwitchReporterSettings {
        switch_id,
        every_packet: own.every_packet,
        interval_mask: reader.interval_mask()?,
        latency_mask: reader.latency_mask()?,
        time_offset_ns: own.time_offset_ns,
        watch: own.watch.iter().cloned().chain(subnets.into_iter().flatten().flat_map(of_subnet)).collect(),
        excluded,
        thresholds: thresholds.into_iter().flatten().map(whole).collect(),
        queues: own.queues.clone(),
        deflect: own.deflect.clone(),
        ports: own.ports.clone(),
        acl: own.acl.clone(),
        flood_macs: own.flood_macs.clone().unwrap_or_else(|| vec![Mac([0xff; 6])]),
        drop_macs: own.drop_macs.clone(),
        drop_routes: own.drop_routes.clone(),
        source,
        reports: reader.resolve_outputs(&destinations)?,
        destinations,
    })
}

struct SettingsReader<'a> {
    p4: &'a P4,
    own: &'a SwitchReporterTable,
    /// `switch.NAME`.
    table: &'a str,
}

impl SettingsReader<'_> {
    fn wrong_value(&self, key: &str, value: impl Display, must: &str) -> ConfigError {
        ConfigError::invalid_value(format!("{}.reporter.{key}", self.table), value, must)
    }

    fn check_at_most(
        &self,
        key: &str,
        number: impl Into<u16>,
        most: u16,
        must: &str,
    ) -> Result<(), ConfigError> {
        let number = number.into();
        if number > most { Err(self.wrong_value(key, number, must)) } else { Ok(()) }
    }

    fn check_port(&self, key: &str, port: Option<u16>) -> Result<(), ConfigError> {
        self.check_at_most(key, port.unwrap_or(0), MAX_PORT, "a port of the switch, 511 at most")
    }

    fn check_queue(&self, key: &str, queue: u8, most: u8) -> Result<(), ConfigError> {
        self.check_at_most(key, queue, most.into(), &format!("a queue, {most} at most"))
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let own = self.own;
        if own.ports.is_empty() {
            let must = "the ports in use: packets at others are dropped";
            return Err(self.wrong_value("ports", "empty", must));
        }
        let mut ports = HashSet::new();
        for (i, port) in own.ports.iter().enumerate() {
            self.check_at_most(&format!("ports[{i}].hop"), port.hop, 15, "0 to 15")?;
            let key = format!("ports[{i}].port");
            self.check_port(&key, Some(port.port))?;
            if !ports.insert(port.port) {
                return Err(self.wrong_value(&key, port.port, "unique: it is listed twice"));
            }
        }
        self.check_forwarding()?;
        self.check_deflect()?;
        for (i, limit) in own.queue_report_latency_thresholds.iter().flatten().enumerate() {
            let key = |key| format!("queue_report_latency_thresholds[{i}].{key}");
            self.check_port(&key("port"), limit.port)?;
            self.check_queue(&key("queue"), limit.queue, MAX_QUEUE)?;
        }
        for (i, acl) in own.acl.iter().enumerate() {
            self.check_port(&format!("acl[{i}].ingress_port"), acl.ingress_port)?;
        }
        for (i, to) in own.destination.iter().enumerate() {
            self.check_port(&format!("destination[{i}].port"), to.port)?;
        }
        for (i, of) in own.queues.iter().enumerate() {
            self.check_queue(&format!("queues[{i}].queue"), of.queue, MAX_QUEUE)?;
            self.check_at_most(&format!("queues[{i}].dscp"), of.dscp, 63, "a DSCP, 63 at most")?;
        }
        for (i, of) in own.drop_routes.iter().enumerate() {
            if of.prefix.written_address().is_ipv6() {
                let must = "an IPv4 address or prefix";
                return Err(self.wrong_value(&format!("drop_routes[{i}].prefix"), of.prefix, must));
            }
        }
        Ok(())
    }

    /// Rejects two entries for one address.
    fn check_forwarding(&self) -> Result<(), ConfigError> {
        let (p4, own) = (self.p4, self.own);
        let flood = own.flood_macs.iter().flatten().copied();
        let macs = p4.stations.iter().map(|station| station.mac).chain(p4.router_macs.iter().copied());
        let macs = macs.chain(own.drop_macs.iter().map(|drop| drop.mac)).chain(flood);
        let mut seen = HashSet::new();
        for mac in macs {
            if !seen.insert(mac.0) {
                let must = "in one of `stations`, `router_macs`, `drop_macs` and `flood_macs`, once";
                return Err(self.wrong_value("drop_macs", format!("{mac} and in another list"), must));
            }
        }
        let routes = p4.routes.iter().map(|route| route.prefix);
        let mut seen = HashSet::new();
        for prefix in routes.chain(own.drop_routes.iter().map(|drop| drop.prefix)) {
            if !seen.insert((Masked::from(prefix).value, prefix.length_in_bits())) {
                let must = "in one of `routes` and `drop_routes`, once";
                return Err(self.wrong_value("drop_routes", format!("{prefix} and in another list"), must));
            }
        }
        Ok(())
    }

    /// A pipe has one deflection port, and if any pipe has one, each must.
    fn check_deflect(&self) -> Result<(), ConfigError> {
        let own = self.own;
        let mut pipes = HashSet::new();
        for (i, to) in own.deflect.iter().enumerate() {
            let key = |name: &str| format!("deflect[{i}].{name}");
            self.check_port(&key("port"), Some(to.port))?;
            self.check_queue(&key("queue"), to.queue, MAX_TOFINO_QUEUE)?;
            if !pipes.insert(pipe_of_port(to.port)) {
                return Err(self.wrong_value(
                    &key("port"),
                    to.port,
                    "in another pipe: a pipe has one such port",
                ));
            }
        }
        let left = own.ports.iter().find(|port| port.egress && !pipes.contains(&pipe_of_port(port.port)));
        match left {
            Some(port) if !pipes.is_empty() => {
                let value = format!("without a port of pipe {}", pipe_of_port(port.port));
                let must = "a list with a port of each egress pipe: pipe N has the ports from 128 N on";
                Err(self.wrong_value("deflect", value, must))
            }
            _ => Ok(()),
        }
    }

    fn interval_mask(&self) -> Result<u64, ConfigError> {
        match self.own.interval_ns {
            None => Ok(u64::MAX << 30),
            Some(0) => Ok(0),
            Some(ns) if ns.is_power_of_two() => Ok(!(ns - 1)),
            Some(ns) => {
                Err(self.wrong_value("interval_ns", ns, "a power of two such as 1073741824 (2^30), or 0"))
            }
        }
    }

    fn latency_mask(&self) -> Result<u32, ConfigError> {
        let ns = self.own.min_flow_hop_latency_change_ns.unwrap_or(1 << 14);
        match u32::try_from(ns) {
            Ok(0) => Ok(u32::MAX),
            Ok(ns) if ns.is_power_of_two() => Ok(!(ns - 1)),
            Err(_) if ns == 1 << 32 => Ok(0),
            _ => Err(self.wrong_value(
                "min_flow_hop_latency_change_ns",
                ns,
                "a power of two such as 16384 (2^14), 2^32 at most, or 0",
            )),
        }
    }

    fn report_source(&self) -> Result<(Mac, Ipv4Addr), ConfigError> {
        let wrong = |key: &str, value: String, must: &str| {
            ConfigError::invalid_value(format!("{}.{key}", self.table), value, must)
        };
        let ip = match self.p4.own.source {
            Some(std::net::IpAddr::V4(ip)) if !ip.is_unspecified() => ip,
            other => {
                let value = other.map_or("missing".into(), |ip| ip.to_string());
                return Err(wrong("source", value, "the IPv4 address that reports come from"));
            }
        };
        let Some(text) = &self.p4.own.mac else {
            return Err(wrong("mac", "missing".into(), "the Ethernet address that reports come from"));
        };
        let mac = text.parse().map_err(|_| {
            wrong("mac", format!("{text:?}"), "an Ethernet address such as 02:00:00:00:00:01")
        })?;
        Ok((mac, ip))
    }

    fn destinations(&self, switch_id: u32) -> Result<Vec<ReportReceiver>, ConfigError> {
        let all = &self.own.destination;
        if all.is_empty() || all.len() > MOST {
            let must = "1 to 255 destinations of reports";
            return Err(self.wrong_value("destination", format!("a list of {}", all.len()), must));
        }
        let of = |(index, one): (usize, &Destination)| {
            if all[..index].iter().any(|other| other.name == one.name) {
                let must = "the name of one destination";
                return Err(self.wrong_value(
                    &format!("destination[{index}].name"),
                    format!("{:?} twice", one.name),
                    must,
                ));
            }
            self.destination(index, one, switch_id)
        };
        all.iter().enumerate().map(of).collect()
    }

    fn destination(
        &self,
        index: usize,
        one: &Destination,
        switch_id: u32,
    ) -> Result<ReportReceiver, ConfigError> {
        let key = |key: &str| format!("destination[{index}].{key}");
        let default = if one.collector_port == REPORTS_PORT {
            DestinationKind::Translator
        } else {
            DestinationKind::IntCollector
        };
        let kind = match one.kind.unwrap_or(default) {
            DestinationKind::Translator => {
                for (name, is_there) in
                    [("hardware", one.hardware.is_some()), ("packet_bytes", one.packet_bytes.is_some())]
                {
                    if is_there {
                        return Err(self.wrong_value(&key(name), "given", "left out of a translator"));
                    }
                }
                let number = one.reporter.or(u16::try_from(switch_id).ok());
                let must = "given: `switch_id` has more than 16 bits";
                let reporter = number.ok_or_else(|| self.wrong_value(&key("reporter"), "missing", must))?;
                ReceiverKind::Translator { reporter }
            }
            DestinationKind::IntCollector => {
                if let Some(reporter) = one.reporter {
                    return Err(self.wrong_value(&key("reporter"), reporter, "left out of an INT collector"));
                }
                let hardware = one.hardware.unwrap_or(0);
                self.check_at_most(&key("hardware"), hardware, 63, "63 at most")?;
                ReceiverKind::IntCollector { hardware, packet_bytes: one.packet_bytes.unwrap_or(128) }
            }
        };
        if one.collector_port == 0 {
            return Err(self.wrong_value(&key("collector_port"), 0, "a UDP port"));
        }
        let routes = self.p4.routes.iter().filter(|route| route.prefix.contains(one.collector_ip.into()));
        let route = routes.max_by_key(|route| route.prefix.length_in_bits());
        let (port, mac) = (one.port.or(route.map(|r| r.port)), one.mac.or(route.map(|r| r.destination)));
        let must = "given because no route leads there: the switch's port to it";
        let port = port.ok_or_else(|| self.wrong_value(&key("port"), "missing", must))?;
        let must = "given because no route leads there: its Ethernet address, or the next router's";
        let mac = mac.ok_or_else(|| self.wrong_value(&key("mac"), "missing", must))?;
        let number = u16::try_from(index + 1).unwrap_or(u16::MAX);
        Ok(ReportReceiver {
            name: one.name.clone(),
            kind,
            to: (one.collector_ip, one.collector_port),
            by: (port, mac),
            source_port: one.source_port.unwrap_or(SOURCE_PORT.saturating_add(number)),
            tos: one.tos,
        })
    }

    fn resolve_store_id(&self, key: &str, name: &str) -> Result<u16, ConfigError> {
        let of_int = INT_STORES.iter().find(|(store, _)| *store == name).map(|(_, id)| *id);
        let id = self.own.stores.get(name).copied().or(of_int);
        let must = "a store whose id is in `stores`";
        id.ok_or_else(|| self.wrong_value(key, format!("{name:?}"), must))
    }

    /// Outputs; by default, what the collector's default INT stores need.
    fn resolve_outputs(
        &self,
        destinations: &[ReportReceiver],
    ) -> Result<Vec<ResolvedReportOutput>, ConfigError> {
        if self.own.report.is_empty() {
            let mut all = Vec::new();
            for (index, receiver) in destinations.iter().enumerate() {
                let to = u8::try_from(index + 1).unwrap_or(u8::MAX);
                for (of, becomes) in self.default_outputs(receiver.kind)? {
                    all.push(ResolvedReportOutput { of, to, becomes });
                }
            }
            return Ok(all);
        }
        if self.own.report.len() > MOST {
            return Err(self.wrong_value(
                "report",
                format!("a list of {}", self.own.report.len()),
                "a list of 255 at most",
            ));
        }
        let of = |(index, report)| self.resolve_output(index, report, destinations);
        self.own.report.iter().enumerate().map(of).collect()
    }

    fn default_outputs(
        &self,
        kind: ReceiverKind,
    ) -> Result<Vec<(Vec<SwitchReportKind>, Becomes)>, ConfigError> {
        if matches!(kind, ReceiverKind::IntCollector { .. }) {
            return Ok(vec![(SwitchReportKind::ALL.to_vec(), Becomes::TelemetryReport)]);
        }
        let store = |name| self.resolve_store_id("stores", name);
        let (key, value) = (KeyKind::HopLatency, ValueKind::HopLatency);
        let (values, events, counters) = (store("int-values")?, store("int-events")?, store("int-counters")?);
        let drops =
            |key| Becomes::KeyIncrement { store: counters, redundancy: 0, key, value: ValueKind::One };
        let append = |list, entry| Becomes::Append { store: events, list, entry, immediate: false };
        let postcard = Becomes::Postcard { store: store("int-postcards")?, value: ValueKind::Switch };
        Ok(vec![
            (
                vec![SwitchReportKind::Flow],
                Becomes::KeyWrite { store: values, redundancy: 0, key, value, time: true },
            ),
            (vec![SwitchReportKind::Flow], postcard),
            (vec![SwitchReportKind::Drop], append(DROPS_LIST, EntryKind::Drop)),
            (vec![SwitchReportKind::Drop], drops(KeyKind::Drops)),
            (vec![SwitchReportKind::Drop], drops(KeyKind::FlowDrops)),
            (vec![SwitchReportKind::Queue], append(CONGESTION_LIST, EntryKind::Congestion)),
        ])
    }

    fn resolve_output(
        &self,
        index: usize,
        one: &SwitchReportOutput,
        destinations: &[ReportReceiver],
    ) -> Result<ResolvedReportOutput, ConfigError> {
        let key = |key: &str| format!("report[{index}].{key}");
        let missing = |name: &str, must| self.wrong_value(&key(name), "missing", must);
        if one.of.is_empty() {
            return Err(self.wrong_value(&key("of"), "empty", "one or more of flow, queue and drop"));
        }
        let to = match (&one.to, destinations) {
            (Some(name), _) => destinations.iter().position(|receiver| receiver.name == *name),
            (None, [_]) => Some(0),
            (None, _) => None,
        };
        let Some(place) = to else {
            let value = one.to.as_ref().map_or("missing".into(), |name| format!("{name:?}"));
            return Err(self.wrong_value(&key("to"), value, "the name of a destination"));
        };
        let is_translator = matches!(destinations[place].kind, ReceiverKind::Translator { .. });
        if is_translator == (one.becomes == As::TelemetryReport) {
            let must = match is_translator {
                true => "another one: a translator accepts no Telemetry Reports",
                false => "\"telemetry-report\": an INT collector accepts nothing else",
            };
            return Err(self.wrong_value(&key("as"), format!("{:?}", one.becomes), must));
        }
        self.check_fields(index, one)?;
        let store = || match &one.store {
            Some(name) => self.resolve_store_id(&key("store"), name),
            None => Err(missing("store", "the name of a store")),
        };
        let redundancy = one.redundancy.unwrap_or(0);
        self.check_at_most(&key("redundancy"), redundancy, 4, "4 at most, or 0: as many as the store has")?;
        let only = match one.of[..] {
            [only] => Some(only),
            _ => None,
        };
        // Only drops have a reason, and so on.
        let must_be = |name: &str, what: SwitchReportKind, is_so: bool, must| match is_so
            && one.of.iter().any(|of| *of != what)
        {
            true => Err(self.wrong_value(&key(name), "of other reports", must)),
            false => Ok(()),
        };
        let of_drops = matches!(one.key, Some(KeyKind::Drops | KeyKind::FlowDrops));
        must_be("key", SwitchReportKind::Drop, of_drops, "for drops only: others have no reason")?;
        let becomes = match one.becomes {
            As::KeyWrite => Becomes::KeyWrite {
                store: store()?,
                redundancy,
                key: one.key.unwrap_or(KeyKind::HopLatency),
                value: one.value.unwrap_or(ValueKind::HopLatency),
                time: one.time.unwrap_or(true),
            },
            As::Postcard => {
                Becomes::Postcard { store: store()?, value: one.value.unwrap_or(ValueKind::Switch) }
            }
            As::Append => {
                let of_kind = only.map(|of| match of {
                    SwitchReportKind::Flow => EntryKind::Flow,
                    SwitchReportKind::Queue => EntryKind::Congestion,
                    SwitchReportKind::Drop => EntryKind::Drop,
                });
                let must = "given for reports of several kinds: drop, congestion or flow";
                let entry = one.entry.or(of_kind).ok_or_else(|| missing("entry", must))?;
                must_be("entry", SwitchReportKind::Drop, entry == EntryKind::Drop, "for drops only")?;
                must_be("entry", SwitchReportKind::Queue, entry == EntryKind::Congestion, "for queues only")?;
                let of_entry = match entry {
                    EntryKind::Drop => Some(DROPS_LIST),
                    EntryKind::Congestion => Some(CONGESTION_LIST),
                    EntryKind::Flow => None,
                };
                let list = one.list.or(of_entry).ok_or_else(|| missing("list", "the number of a list"))?;
                Becomes::Append { store: store()?, list, entry, immediate: one.immediate.unwrap_or(false) }
            }
            As::KeyIncrement => Becomes::KeyIncrement {
                store: store()?,
                redundancy,
                key: one.key.ok_or_else(|| missing("key", "what is counted, such as \"packets\""))?,
                value: one.value.unwrap_or(ValueKind::One),
            },
            As::TelemetryReport => Becomes::TelemetryReport,
        };
        Ok(ResolvedReportOutput {
            of: one.of.clone(),
            to: u8::try_from(place + 1).unwrap_or(u8::MAX),
            becomes,
        })
    }

    /// Rejects fields that an output does not have.
    fn check_fields(&self, index: usize, one: &SwitchReportOutput) -> Result<(), ConfigError> {
        use As::{Append, KeyIncrement, KeyWrite, Postcard};
        let (stored, keyed) = ([KeyWrite, Postcard, Append, KeyIncrement], [KeyWrite, KeyIncrement]);
        let fields: [(&str, bool, &[As], &str); 8] = [
            ("store", one.store.is_some(), &stored, "left out of Telemetry Reports"),
            ("key", one.key.is_some(), &keyed, "of key-write or key-increment"),
            (
                "value",
                one.value.is_some(),
                &[KeyWrite, Postcard, KeyIncrement],
                "of key-write, postcard or key-increment",
            ),
            ("time", one.time.is_some(), &[KeyWrite], "of key-write"),
            ("redundancy", one.redundancy.is_some(), &keyed, "of key-write or key-increment"),
            ("list", one.list.is_some(), &[Append], "of append"),
            ("entry", one.entry.is_some(), &[Append], "of append"),
            ("immediate", one.immediate.is_some(), &[Append], "of append"),
        ];
        for (name, is_there, of, must) in fields {
            if is_there && !of.contains(&one.becomes) {
                return Err(self.wrong_value(&format!("report[{index}].{name}"), "given", must));
            }
        }
        Ok(())
    }
}

//! The parts of an SD-Fabric network configuration (ONOS netcfg) that concern a reporter.
//!
//! The names are those of `stratum/fabric-tna` (`IntReportConfig`) and of ONOS' segment routing: the report
//! section of the INT application, the device's `segmentrouting` section, and the collector among `hosts`.

use std::net::Ipv4Addr;

use dta_proto::program::Mac;
use serde_json::{Map, Value};

use dta_switch::matches::Masked;
use dta_switch::reporter::settings::Threshold;

/// The application whose `report` section is read.
const APP: &str = "org.stratumproject.fabric.tna.inbandtelemetry";

/// A netcfg's settings for one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Netcfg {
    pub(super) collector: Option<(Ipv4Addr, u16)>,
    /// The least change of hop latency to report, in nanoseconds, a power of two.
    pub(super) min_flow_hop_latency_change_ns: Option<u64>,
    pub(super) watch_subnets: Option<Vec<Masked>>,
    /// Queue thresholds, for all ports.
    pub(super) thresholds: Option<Vec<Threshold>>,
    /// The device's number: its node SID.
    pub(super) switch_id: Option<u32>,
    pub(super) source: Option<Ipv4Addr>,
    /// Its Ethernet address, as a router.
    pub(super) mac: Option<Mac>,
    /// The collector's Ethernet address, and the device's port to it.
    pub(super) collector_at: Option<(Mac, u16)>,
    /// Settings that are ignored or treated differently, one per line.
    pub(super) notes: Vec<String>,
}

/// An error: a key, and what it must be.
type Fault = String;

/// Reads a netcfg for a switch. `device` is its name there; the default is `device:SWITCH`, or the only
/// device.
pub(super) fn read(text: &str, switch: &str, device: Option<&str>) -> Result<Netcfg, Fault> {
    let whole: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    let whole = require_object(&whole, "the file")?;
    let mut netcfg = Netcfg::default();
    let apps = whole.get("apps").map(|apps| require_object(apps, "apps")).transpose()?;
    let app = apps.and_then(|apps| apps.get(APP));
    let report = app.and_then(|app| app.get("report"));
    let Some(report) = report else {
        return Err(format!("has no apps → {APP} → report: it does not say what is reported"));
    };
    netcfg.read_report(require_object(report, "report")?)?;
    netcfg.note_unused_keys(apps, &[APP], "apps");
    netcfg.note_unused_keys(app.and_then(Value::as_object), &["report"], APP);
    let devices = whole.get("devices").map(|devices| require_object(devices, "devices")).transpose()?;
    let name = device_of(devices, switch, device)?;
    if let Some(name) = &name {
        netcfg.note_unused_keys(devices, &[name], "devices");
        let own = devices.and_then(|devices| devices.get(name));
        netcfg.read_device(name, require_object(own.unwrap_or(&Value::Null), name)?)?;
        if let Some(hosts) = whole.get("hosts") {
            netcfg.read_hosts(name, require_object(hosts, "hosts")?)?;
        }
    }
    netcfg.note_unused_keys(Some(whole), &["apps", "devices", "hosts"], "");
    Ok(netcfg)
}

fn require_object<'a>(value: &'a Value, key: &str) -> Result<&'a Map<String, Value>, Fault> {
    value.as_object().ok_or_else(|| wrong_value(key, value, "an object"))
}

fn wrong_value(key: &str, value: &Value, must: &str) -> Fault {
    format!("says {key} is {value}, but it must be {must}")
}

/// The number at a key, if present.
fn optional_number(of: &Map<String, Value>, key: &str, at: &str, most: u64) -> Result<Option<u64>, Fault> {
    match of.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64().filter(|number| *number <= most) {
            Some(number) => Ok(Some(number)),
            None => Err(wrong_value(&format!("{at}.{key}"), value, &format!("a number, {most} at most"))),
        },
    }
}

/// The text at a key, parsed, if present.
fn optional_text<T: std::str::FromStr>(
    of: &Map<String, Value>,
    key: &str,
    at: &str,
    must: &str,
) -> Result<Option<T>, Fault> {
    match of.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let read = value.as_str().and_then(|text| text.parse().ok());
            read.map(Some).ok_or_else(|| wrong_value(&format!("{at}.{key}"), value, must))
        }
    }
}

/// The device name of a switch.
fn device_of(
    devices: Option<&Map<String, Value>>,
    switch: &str,
    device: Option<&str>,
) -> Result<Option<String>, Fault> {
    let names: Vec<&String> = devices.into_iter().flat_map(Map::keys).collect();
    let own = format!("device:{switch}");
    match (device, &names[..]) {
        (Some(device), _) if names.iter().any(|name| *name == device) => Ok(Some(device.into())),
        (Some(device), _) => Err(format!("has no device {device:?} in devices; it has {names:?}")),
        (None, _) if names.contains(&&own) => Ok(Some(own)),
        (None, []) => Ok(None),
        (None, [only]) => Ok(Some((*only).clone())),
        (None, _) => Err(format!(
            "has {names:?} in devices, and none is {own:?}: set `netcfg_device` to the one that is this switch"
        )),
    }
}

impl Netcfg {
    fn note_unused_keys(&mut self, of: Option<&Map<String, Value>>, used: &[&str], at: &str) {
        let unused = of.into_iter().flat_map(Map::keys).filter(|key| !used.contains(&key.as_str()));
        let dot = if at.is_empty() { "" } else { "." };
        self.notes.extend(unused.map(|key| format!("{at}{dot}{key} is not used")));
    }

    fn read_report(&mut self, report: &Map<String, Value>) -> Result<(), Fault> {
        let ip = optional_text(report, "collectorIp", "report", "an IPv4 address")?;
        let port = optional_number(report, "collectorPort", "report", u64::from(u16::MAX))?;
        match (ip, port.and_then(|port| u16::try_from(port).ok())) {
            (Some(ip), Some(port)) => self.collector = Some((ip, port)),
            (None, None) => {}
            (Some(_), None) => return Err("has a report.collectorIp without a collectorPort".into()),
            (None, Some(_)) => return Err("has a report.collectorPort without a collectorIp".into()),
        }
        let change = optional_number(report, "minFlowHopLatencyChangeNs", "report", i32::MAX as u64)?;
        // If absent, each change is reported; other numbers round down to a power of two: both as in
        // SD-Fabric.
        let power = change.unwrap_or(0).max(1);
        let power = 1 << power.ilog2();
        if let Some(change) = change.filter(|change| *change > power) {
            self.notes.push(format!(
                "report.minFlowHopLatencyChangeNs is {change} and is rounded down to {power}, as in SD-Fabric"
            ));
        }
        self.min_flow_hop_latency_change_ns = Some(power);
        if let Some(subnets) = report.get("watchSubnets") {
            let must = "a list of IPv4 prefixes such as \"10.0.0.0/8\"";
            let bad = || wrong_value("report.watchSubnets", subnets, must);
            let one = |subnet: &Value| subnet.as_str()?.parse().ok();
            let all = subnets.as_array().ok_or_else(bad)?.iter().map(one).collect::<Option<_>>();
            self.watch_subnets = Some(all.ok_or_else(bad)?);
        }
        if let Some(thresholds) = report.get("queueReportLatencyThresholds") {
            self.read_thresholds(require_object(thresholds, "report.queueReportLatencyThresholds")?)?;
        }
        let used = [
            "collectorIp",
            "collectorPort",
            "minFlowHopLatencyChangeNs",
            "watchSubnets",
            "queueReportLatencyThresholds",
        ];
        self.note_unused_keys(Some(report), &used, "report");
        Ok(())
    }

    fn read_thresholds(&mut self, thresholds: &Map<String, Value>) -> Result<(), Fault> {
        let mut all = Vec::new();
        for (name, of) in thresholds {
            let at = format!("report.queueReportLatencyThresholds.{name}");
            let Ok(queue) = name.parse() else {
                return Err(format!("has {at}, and {name:?} is not a queue number"));
            };
            let of = require_object(of, &at)?;
            let ns = |key: &str| optional_number(of, key, &at, u64::from(u32::MAX));
            let as_ns = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
            let reset_ns = ns("resetNs")?.map(as_ns);
            match ns("triggerNs")?.map(as_ns) {
                Some(trigger_ns) => {
                    all.push(Threshold { queue, trigger_ns, reset_ns, ..Threshold::default() })
                }
                None => self.notes.push(format!("{at} has no triggerNs: the queue is not reported")),
            }
            self.note_unused_keys(Some(of), &["triggerNs", "resetNs"], &at);
        }
        self.thresholds = Some(all);
        Ok(())
    }

    fn read_device(&mut self, name: &str, device: &Map<String, Value>) -> Result<(), Fault> {
        if let Some(routing) = device.get("segmentrouting") {
            let at = format!("{name}.segmentrouting");
            let routing = require_object(routing, &at)?;
            let sid = optional_number(routing, "ipv4NodeSid", &at, u64::from(u32::MAX))?;
            self.switch_id = sid.and_then(|sid| u32::try_from(sid).ok());
            self.source = optional_text(routing, "ipv4Loopback", &at, "an IPv4 address")?;
            self.mac = optional_text(routing, "routerMac", &at, "an Ethernet address")?;
            self.note_unused_keys(Some(routing), &["ipv4NodeSid", "ipv4Loopback", "routerMac"], &at);
        }
        self.note_unused_keys(Some(device), &["segmentrouting"], name);
        Ok(())
    }

    /// The collector among the hosts: `"MAC/VLAN": { "basic": { "ips": [...], "locations": ["DEVICE/PORT"] } }`.
    fn read_hosts(&mut self, device: &str, hosts: &Map<String, Value>) -> Result<(), Fault> {
        let Some((collector, _)) = self.collector else {
            self.note_unused_keys(Some(hosts), &[], "hosts");
            return Ok(());
        };
        for (id, host) in hosts {
            let basic = &host["basic"];
            let texts = |key: &str| basic[key].as_array().into_iter().flatten().filter_map(Value::as_str);
            if !texts("ips").any(|ip| ip.parse() == Ok(collector)) {
                self.notes.push(format!("hosts.{id} is not used"));
                continue;
            }
            let Some(mac) = id.split('/').next().and_then(|mac| mac.parse().ok()) else {
                return Err(format!("has hosts.{id}, whose name does not start with an Ethernet address"));
            };
            let here = texts("locations").find_map(|place| parse_location_port(place, device));
            match here {
                Some(port) => self.collector_at = Some((mac, port)),
                None => {
                    self.notes.push(format!("hosts.{id} is the collector, but not at a port of {device}"))
                }
            }
        }
        Ok(())
    }
}

/// The port in a device's location: `DEVICE/296`, or `DEVICE/[1/0](296)`.
fn parse_location_port(location: &str, device: &str) -> Option<u16> {
    let port = location.strip_prefix(device)?.strip_prefix('/')?;
    let number = port.strip_suffix(')').and_then(|port| port.rsplit_once('(')).map(|(_, number)| number);
    number.unwrap_or(port).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FABRIC: &str = include_str!("../../tests/p4/netcfg.json");

    #[test]
    fn a_netcfg_of_a_fabric_is_read_and_what_is_left_out_is_told() {
        let netcfg = read(FABRIC, "leaf1", None).unwrap();
        let threshold =
            |queue, trigger_ns, reset_ns| Threshold { queue, trigger_ns, reset_ns, ..Threshold::default() };
        assert_eq!(netcfg.collector, Some((Ipv4Addr::new(10, 32, 11, 2), 32_766)));
        assert_eq!(netcfg.min_flow_hop_latency_change_ns, Some(256));
        let subnets: Vec<String> = netcfg.watch_subnets.iter().flatten().map(ToString::to_string).collect();
        assert_eq!(subnets, ["10.32.11.0/24", "192.168.0.0/16"]);
        assert_eq!(netcfg.thresholds, Some(vec![threshold(0, 2000, Some(500)), threshold(7, 500, None)]));
        assert_eq!((netcfg.switch_id, netcfg.source), (Some(101), Some(Ipv4Addr::new(10, 128, 100, 38))));
        assert_eq!(netcfg.mac, Some("00:00:0a:4c:1c:46".parse().unwrap()));
        assert_eq!(netcfg.collector_at, Some(("00:90:fb:71:64:8a".parse().unwrap(), 296)));
        assert_eq!(
            netcfg.notes,
            [
                "report.minFlowHopLatencyChangeNs is 300 and is rounded down to 256, as in SD-Fabric",
                "report.queueReportLatencyThresholds.3 has no triggerNs: the queue is not reported",
                "report.dropReportEnabled is not used",
                "apps.org.onosproject.core is not used",
                "devices.device:leaf2 is not used",
                "device:leaf1.segmentrouting.adjacencySids is not used",
                "device:leaf1.segmentrouting.isEdgeRouter is not used",
                "device:leaf1.basic is not used",
                "hosts.00:00:00:00:00:1A/None is not used",
                "ports is not used",
            ]
        );
        let other = read(FABRIC, "tor", Some("device:leaf2")).unwrap();
        assert_eq!((other.switch_id, other.collector_at), (Some(102), None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let told = |text: &str| read(text, "s", None).unwrap_err();
        let report = |report: &str| format!("{{\"apps\":{{\"{APP}\":{{\"report\":{report}}}}}}}");
        assert!(told("{").contains("is not JSON"));
        assert!(told("{\"apps\":{}}").contains("report: it does not say what is reported"));
        for (text, words) in [
            (r#"{"collectorIp":"::1","collectorPort":1}"#, "report.collectorIp is \"::1\""),
            (r#"{"collectorIp":"10.0.0.1"}"#, "without a collectorPort"),
            (r#"{"collectorPort":5500}"#, "without a collectorIp"),
            (r#"{"collectorIp":"10.0.0.1","collectorPort":70000}"#, "collectorPort is 70000"),
            (r#"{"minFlowHopLatencyChangeNs":-1}"#, "minFlowHopLatencyChangeNs is -1"),
            (r#"{"watchSubnets":["10.0.0.0/40"]}"#, "report.watchSubnets is"),
            (r#"{"queueReportLatencyThresholds":{"x":{}}}"#, "\"x\" is not a queue number"),
            (
                r#"{"queueReportLatencyThresholds":{"1":{"triggerNs":"a"}}}"#,
                "report.queueReportLatencyThresholds.1.triggerNs is \"a\"",
            ),
        ] {
            let error = told(&report(text));
            assert!(error.contains(words), "{text}: {error}");
        }
        let error = read(FABRIC, "tor", None).unwrap_err();
        assert!(error.contains("set `netcfg_device` to the one"), "{error}");
        let error = read(FABRIC, "leaf1", Some("device:leaf9")).unwrap_err();
        assert!(error.contains("no device \"device:leaf9\""), "{error}");
    }
}

//! Events in words: one line for each entry of the lists, with names.

use dta_cli::number::{format_count, format_grouped};
use dta_export::directory::Directory;
use dta_export::fields::EventFields;
use dta_export::kind::EventKind;
use dta_export::names::{Names, describe_switch};
use dta_export::networks::FlowNetworks;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::prefix::Prefix;
use dta_proto::telemetry::{self, Location, SwitchNumber, SwitchPath, TelemetryEntry, Why};
use serde::Serialize;

use super::moment;

/// An event with all its fields; `None` = the event has no such field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IntEvent {
    pub kind: EventKind,
    /// Nanoseconds since 1970, or a switch's own time; keys have none.
    pub time: Option<u64>,
    /// The same in UTC, if it is since 1970.
    pub utc: Option<String>,
    /// The flow, if known.
    pub flow: Option<Flow>,
    #[serde(flatten)]
    pub ends: FlowNetworks,
    /// The key of its subject; for drops and congested packets the flow's. `None` if the packet could not be read.
    pub key: Option<Key>,
    pub switch: Option<u32>,
    pub switch_name: Option<String>,
    pub port: Option<u32>,
    pub port_name: Option<String>,
    /// The ingress port of a dropped packet.
    pub ingress_port: Option<u32>,
    pub ingress_port_name: Option<String>,
    pub queue: Option<u32>,
    pub why: Option<Why>,
    /// The value reported before; for a path, its number of hops.
    pub old: Option<u64>,
    /// The value; for a path, its number of hops.
    pub new: Option<u64>,
    /// The switches of a path, in the order in which packets pass them; an unknown one is `None`. The whole path is
    /// `None` if it has more hops than an event has room for, and for other events.
    pub path: Option<Vec<Option<u32>>>,
    /// Whether a path passes a switch twice.
    pub looped: Option<bool>,
    /// Why a packet was dropped.
    pub reason: Option<DropReason>,
    /// Whose number the reason is: `int` or `sflow`.
    pub reason_source: Option<&'static str>,
    pub reason_name: Option<String>,
    /// The occupancy of the queue in which a packet waited.
    pub occupancy: Option<u32>,
    /// Nanoseconds that the packet spent in the switch.
    pub latency: Option<u32>,
}

impl IntEvent {
    pub fn from_entry(entry: &TelemetryEntry, directory: &mut Directory, names: &Names) -> IntEvent {
        let fields = EventFields::from_entry(entry, |key| directory.resolve_key(key));
        let Location { switch, port, queue } = fields.place;
        IntEvent {
            kind: fields.kind,
            time: fields.time,
            utc: fields.time.and_then(moment::format_utc),
            flow: fields.flow,
            ends: names.flow_networks(fields.flow),
            key: fields.key,
            switch,
            switch_name: switch.and_then(|switch| names.switch_name(switch)).map(str::to_owned),
            port,
            port_name: port_name(switch, port, names),
            ingress_port: fields.ingress_port,
            ingress_port_name: port_name(switch, fields.ingress_port, names),
            queue,
            why: fields.why,
            old: fields.old,
            new: fields.new,
            path: fields.path.map(|path| known_switches(&path)),
            looped: fields.looped,
            reason: fields.reason,
            reason_source: fields.reason.map(DropReason::source_name),
            reason_name: fields
                .reason
                .and_then(|reason| names.drop_reason(switch, reason))
                .map(str::to_owned),
            occupancy: fields.occupancy,
            latency: fields.latency,
        }
    }

    /// The event in one line: time, kind, subject, and what happened.
    pub fn to_line(&self) -> String {
        let time = match (&self.utc, self.time) {
            (Some(utc), _) => utc.clone(),
            (None, Some(time)) => time.to_string(),
            (None, None) => "-".to_owned(),
        };
        format!("{time:24}  {:16}  {}", self.kind.name(), self.describe())
    }

    /// Its subject, and what happened.
    pub fn describe(&self) -> String {
        format!("{}: {}", self.describe_subject(), self.describe_occurrence())
    }

    /// Its subject: the flow, and the place.
    pub(crate) fn describe_subject(&self) -> String {
        let mut about: Vec<String> = Vec::new();
        match (self.flow, self.key, self.kind) {
            (Some(flow), ..) => about.push(flow.to_string()),
            (None, Some(key), EventKind::Key) if self.switch.is_none() => about.push(format!("key {key}")),
            (None, Some(key), EventKind::FlowPath | EventKind::FlowLatency | EventKind::Loop) => {
                about.push(format!("flow {key} (not in the directory)"));
            }
            (None, Some(key), EventKind::Drop | EventKind::CongestedPacket) => {
                about.push(format!("flow {key} (not in the directory)"));
            }
            (None, _, EventKind::HopLatency) => about.push("a flow that is not in the directory".into()),
            (None, None, _) => about.push("a packet that could not be read".into()),
            (None, Some(_), _) => {}
        }
        about.extend(self.ends.describe());
        about.extend(self.where_it_was());
        about.join(", ")
    }

    fn where_it_was(&self) -> Vec<String> {
        let numbered = |what: &str, name: &Option<String>, number: Option<u32>| {
            number.map(|number| match name {
                Some(name) => format!("{what} {name} ({number})"),
                None => format!("{what} {number}"),
            })
        };
        // For a path, the switch is the one that reported it, which the words say.
        let switch = self.switch.filter(|_| self.kind != EventKind::FlowPath);
        let port = if self.kind == EventKind::Drop { "out of port" } else { "port" };
        [
            switch.map(|switch| describe_switch(switch, self.switch_name.as_deref())),
            numbered("in at port", &self.ingress_port_name, self.ingress_port),
            numbered(port, &self.port_name, self.port),
            numbered("queue", &None, self.queue),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    pub(crate) fn describe_occurrence(&self) -> String {
        let hops = |n: u64| format_count(n, "hop", "hops");
        let path = || match &self.path {
            Some(switches) => {
                let name = |switch: &Option<u32>| {
                    switch.map_or("?".into(), |switch| SwitchNumber(switch).to_string())
                };
                switches.iter().map(name).collect::<Vec<_>>().join(":")
            }
            None => format!("of {}", hops(self.new.unwrap_or(0))),
        };
        let (old, new) = (self.old.unwrap_or(0), self.new.unwrap_or(0));
        match self.kind {
            EventKind::FlowPath => {
                let path = match self.why {
                    Some(Why::New) => format!("new path {}", path()),
                    Some(Why::Moved) if old == new => {
                        format!("path changed, now {}, {} as before", path(), hops(new))
                    }
                    Some(Why::Moved) => format!("path changed, now {}, before {}", path(), hops(old)),
                    Some(Why::Learning) => format!("path {} so far", path()),
                    _ => format!("path {}, as before", path()),
                };
                let Some(number) = self.switch else { return path };
                let seen = if SwitchNumber(number).is_address() { "seen" } else { "reported" };
                format!("{path}, {seen} by {}", describe_switch(number, self.switch_name.as_deref()))
            }
            EventKind::Loop => format!("the path {} passes a switch twice", path()),
            EventKind::FlowLatency | EventKind::HopLatency => self.describe_change("latency", " ns"),
            EventKind::QueueOccupancy => self.describe_change("occupancy", ""),
            EventKind::QueueCongestion => self.describe_change("congestion", ""),
            EventKind::LinkUtilization => self.describe_change("utilization", ""),
            EventKind::Drop => self.reason.map_or("dropped".into(), |reason| {
                format!("dropped, {}", describe_reason(reason, self.reason_name.as_deref()))
            }),
            EventKind::CongestedPacket => {
                let mut what = "waited in a congested queue".to_owned();
                if let Some(occupancy) = self.occupancy {
                    what += &format!(", occupancy {}", format_grouped(occupancy.into()));
                }
                if let Some(latency) = self.latency {
                    what += &format!(", {} ns in the switch", format_grouped(latency.into()));
                }
                what
            }
            EventKind::Key => {
                let kind = self.key.and_then(|key| key.0.last_chunk::<4>().copied());
                let what = match kind.as_ref() {
                    Some(b"hlat") => "hop latency",
                    Some(b"qocc") => "queue occupancy",
                    Some(b"qcon") => "queue congestion",
                    Some(b"util") => "link utilization",
                    Some(b"drop" | b"fdrp") => "drops",
                    _ => "flow",
                };
                match self.reason {
                    Some(reason) => {
                        format!("key of {what}, {}", describe_reason(reason, self.reason_name.as_deref()))
                    }
                    None => format!("key of a {what}"),
                }
            }
        }
    }

    fn describe_change(&self, what: &str, unit: &str) -> String {
        let new = format_grouped(self.new.unwrap_or(0));
        let old = format_grouped(self.old.unwrap_or(0));
        match self.why {
            Some(Why::New | Why::Learning | Why::Loop) | None => format!("{what} {new}{unit}, new"),
            Some(Why::Moved) => format!("{what} {new}{unit}, before {old}{unit}"),
            Some(Why::KeepAlive) if self.old == self.new => format!("{what} {new}{unit}, as before"),
            Some(Why::KeepAlive) => format!("{what} {new}{unit}, still close to {old}{unit}"),
        }
    }
}

/// Which events are wanted; the default takes all but the key directory's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// Only these kinds; empty = all but keys.
    pub kinds: Vec<EventKind>,
    /// Only events about this flow.
    pub flow: Option<Flow>,
    /// Only events about flows with an end in this prefix.
    pub prefix: Option<Prefix>,
    /// Only events at this switch.
    pub switch: Option<u32>,
}

impl Filter {
    pub fn admits(&self, event: &IntEvent) -> bool {
        self.admits_kind(event.kind)
            && self.flow.is_none_or(|flow| is_about_flow(event, &flow))
            && self.prefix.is_none_or(|prefix| event.flow.is_some_and(|flow| prefix.has_end_of(&flow)))
            && self.switch.is_none_or(|switch| event.switch == Some(switch))
    }

    fn admits_kind(&self, kind: EventKind) -> bool {
        if self.kinds.is_empty() { kind != EventKind::Key } else { self.kinds.contains(&kind) }
    }

    /// The lists that can have wanted events.
    pub fn relevant_lists(&self) -> Vec<u32> {
        let lists = 0..telemetry::list::COUNT;
        let has = |list: &u32| {
            EventKind::ALL.iter().any(|kind| kind.list_number() == *list && self.admits_kind(*kind))
        };
        lists.filter(has).collect()
    }
}

/// Whether an event is about a flow, even if the directory does not know the flow.
fn is_about_flow(event: &IntEvent, flow: &Flow) -> bool {
    if event.flow.is_some() {
        return event.flow == Some(*flow);
    }
    let of_hop = event.switch.map(|switch| telemetry::hop_latency_key(flow, switch));
    event.key.is_some() && (event.key == Some(flow.to_key()) || event.key == of_hop)
}

/// A drop reason, as `traffic-manager (71)`, `acl (sflow 258)` or `reason 201`.
pub(super) fn describe_reason(reason: DropReason, name: Option<&str>) -> String {
    match name {
        Some(name) => format!("{name} ({reason})"),
        None => format!("reason {reason}"),
    }
}

/// The switches of a path; `None` for an unknown one.
pub(super) fn known_switches(path: &SwitchPath) -> Vec<Option<u32>> {
    path.stored_switches().iter().map(|switch| Some(*switch).filter(|switch| *switch != u32::MAX)).collect()
}

fn port_name(switch: Option<u32>, port: Option<u32>, names: &Names) -> Option<String> {
    names.port_name(switch?, port?).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dta_proto::telemetry::{Means, Metric, Via};

    use super::*;

    const TIME: u64 = 1_795_323_662_123_456_789;

    fn flow() -> Flow {
        "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap()
    }

    fn v6() -> Flow {
        "[2001:db8::1]:1->[2001:db8::2]:2/tcp".parse().unwrap()
    }

    fn names() -> Names {
        let text = "[switch.6]\nname = \"leaf1\"\n[switch.6.port]\n12 = \"uplink\"\n3 = \"host3\"\n";
        Names::parse(text, Path::new("x")).unwrap()
    }

    fn change(metric: Metric, why: Why, old: u64, new: u64, key: Key, place: Location) -> TelemetryEntry {
        let path = (metric == Metric::FlowPath).then(|| match new & 0xff {
            2 => Via::Path(telemetry::SwitchPath::from_switches(&[6, u32::MAX])),
            3 => Via::Path(telemetry::SwitchPath::from_switches(&[6, 5, 4])),
            _ => Via::Digest(7),
        });
        TelemetryEntry::Change { time: TIME, key, metric, why, old, new, place, path }
    }

    fn place(switch: u32, port: u32, queue: u32) -> Location {
        Location { switch: Some(switch), port: Some(port), queue: Some(queue) }
    }

    fn event(entry: TelemetryEntry) -> IntEvent {
        let mut directory = Directory::default();
        let hop = telemetry::hop_latency_key(&flow(), 6);
        directory.take(&TelemetryEntry::Key { key: hop, means: Means::Hop(flow().to_key(), 6) });
        directory.take(&entry);
        IntEvent::from_entry(&entry, &mut directory, &names())
    }

    #[test]
    fn each_kind_has_its_words() {
        let key = flow().to_key();
        let hop = telemetry::hop_latency_key(&flow(), 6);
        let queue = telemetry::queue_occupancy_key(6, Some(12), Some(5));
        let at = place(6, 12, 5);
        let none = Location::default();
        let exporter = u32::from_be_bytes([10, 200, 0, 1]);
        let utilization = telemetry::link_utilization_key(exporter, None);
        let at_hop = Location { queue: None, ..at };
        let drop = TelemetryEntry::Drop {
            time: TIME,
            key,
            place: at,
            ingress_port: Some(3),
            reason: DropReason::from_int(71),
        };
        let lost = TelemetryEntry::Drop {
            time: 5,
            key: Key::default(),
            place: none,
            ingress_port: None,
            reason: DropReason::from_int(201),
        };
        let waited = TelemetryEntry::Congestion {
            time: TIME,
            key: v6().to_key(),
            place: at,
            occupancy: Some(2000),
            latency: None,
        };
        let flow = flow().to_string();
        for (entry, kind, words) in [
            (change(Metric::FlowPath, Why::New, 0, 3, key, none), EventKind::FlowPath, format!("{flow}: new path 6:5:4")),
            (
                change(Metric::FlowPath, Why::Moved, 1, 2, key, Location { switch: Some(6), ..none }),
                EventKind::FlowPath,
                format!("{flow}: path changed, now 6:?, before 1 hop, reported by switch leaf1 (6)"),
            ),
            (
                change(Metric::FlowPath, Why::New, 0, 3, key, Location { switch: Some(exporter), ..none }),
                EventKind::FlowPath,
                format!("{flow}: new path 6:5:4, seen by exporter 10.200.0.1"),
            ),
            (
                change(Metric::LinkUtilization, Why::New, 0, 3, utilization, Location { switch: Some(exporter), ..none }),
                EventKind::LinkUtilization,
                "exporter 10.200.0.1: utilization 3, new".into(),
            ),
            (
                change(Metric::FlowPath, Why::Learning, 2, 3, key, none),
                EventKind::FlowPath,
                format!("{flow}: path 6:5:4 so far"),
            ),
            (
                change(Metric::FlowPath, Why::Loop, 3, 1 << 8 | 9, key, none),
                EventKind::Loop,
                format!("{flow}: the path of 9 hops passes a switch twice"),
            ),
            (
                change(Metric::FlowLatency, Why::Moved, 408, 12_000, key, none),
                EventKind::FlowLatency,
                format!("{flow}: latency 12,000 ns, before 408 ns"),
            ),
            (
                change(Metric::HopLatency, Why::New, 0, 4, hop, at_hop),
                EventKind::HopLatency,
                format!("{flow}, switch leaf1 (6), port uplink (12): latency 4 ns, new"),
            ),
            (
                change(Metric::HopLatency, Why::KeepAlive, 5, 4, telemetry::hop_latency_key(&v6(), 7), place(7, 1, 2)),
                EventKind::HopLatency,
                "a flow that is not in the directory, switch 7, port 1, queue 2: latency 4 ns, still close to 5 ns".into(),
            ),
            (
                change(Metric::QueueOccupancy, Why::KeepAlive, 6, 6, queue, at),
                EventKind::QueueOccupancy,
                "switch leaf1 (6), port uplink (12), queue 5: occupancy 6, as before".into(),
            ),
            (
                drop,
                EventKind::Drop,
                format!("{flow}, switch leaf1 (6), in at port host3 (3), out of port uplink (12), queue 5: dropped, traffic-manager (71)"),
            ),
            (lost, EventKind::Drop, "a packet that could not be read: dropped, reason 201".into()),
            (
                waited,
                EventKind::CongestedPacket,
                format!(
                    "flow {} (not in the directory), switch leaf1 (6), port uplink (12), queue 5: \
                     waited in a congested queue, occupancy 2,000",
                    v6().to_key()
                ),
            ),
            (
                TelemetryEntry::Key { key: telemetry::drops_key(6, DropReason::from_sflow(269)), means: Means::Itself },
                EventKind::Key,
                "switch leaf1 (6): key of drops, blackhole-route (sflow 269)".into(),
            ),
            (TelemetryEntry::Key { key: v6().to_key(), means: Means::Flow(v6()) }, EventKind::Key, format!("{}: key of a flow", v6())),
        ] {
            let event = event(entry);
            assert_eq!((event.kind, event.describe()), (kind, words));
        }
        assert!(
            event(drop).to_line().starts_with("2026-11-22T05:01:02.123Z  drop              10.0.0.1:5000->")
        );
        assert!(event(lost).to_line().starts_with("5                         drop              a packet"));
    }

    #[test]
    fn filters_take_what_they_name() {
        let at = place(6, 12, 5);
        let drop = |flow: &Flow, switch| {
            let place = Location { switch: Some(switch), ..at };
            event(TelemetryEntry::Drop {
                time: TIME,
                key: flow.to_key(),
                place,
                ingress_port: None,
                reason: DropReason::from_int(71),
            })
        };
        let hop = |flow: &Flow| {
            event(change(
                Metric::HopLatency,
                Why::New,
                0,
                4,
                telemetry::hop_latency_key(flow, 7),
                place(7, 1, 1),
            ))
        };
        let key = event(TelemetryEntry::Key { key: v6().to_key(), means: Means::Flow(v6()) });
        let all = Filter::default();
        assert!(all.admits(&drop(&flow(), 6)) && !all.admits(&key));
        let kinds = Filter { kinds: vec![EventKind::Key, EventKind::Drop], ..all.clone() };
        assert!(kinds.admits(&key) && kinds.admits(&drop(&flow(), 6)) && !kinds.admits(&hop(&flow())));
        assert_eq!((all.relevant_lists(), kinds.relevant_lists()), (vec![0, 1, 2], vec![1, 3]));
        // Here the directory knows neither the flow nor the hop of an IPv6 flow.
        let one = Filter { flow: Some(v6()), ..all.clone() };
        assert!(one.admits(&drop(&v6(), 6)) && one.admits(&hop(&v6())) && !one.admits(&drop(&flow(), 6)));
        let prefix = Filter { prefix: Some("10.0.0.2/32".parse().unwrap()), ..all.clone() };
        assert!(prefix.admits(&drop(&flow(), 6)) && !prefix.admits(&drop(&v6(), 6)));
        let switch = Filter { switch: Some(7), ..all };
        assert!(switch.admits(&hop(&flow())) && !switch.admits(&drop(&flow(), 6)));
    }

    #[test]
    fn names_of_kinds_are_in_their_order() {
        for (name, kind) in EventKind::NAMES.into_iter().zip(EventKind::ALL) {
            assert_eq!((kind.name(), name.parse()), (name, Ok(kind)));
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
        }
        assert!("x".parse::<EventKind>().unwrap_err().contains("flow-path"));
    }
}

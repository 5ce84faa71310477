//! Turns events into points of a database.

use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{Location, Metric, SwitchNumber, SwitchPath, TelemetryEntry, Why};
use dta_proto::to_hex_digits;
use serde::{Deserialize, Serialize};

use crate::directory::Meaning;
use crate::events::TelemetryEvent;
use crate::names::Names;
use crate::point::{InfluxPoint, PointValue};

dta_proto::named! {
    /// Naming scheme of events in a database.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Schema {
        /// A measurement for each kind of event, with its subject in tags.
        ///
        /// | measurement | tags | fields |
        /// |---|---|---|
        /// | `flow_path` | flow | `path`, `hops`, `loop`, `why` |
        /// | `flow_latency` | flow | `value` (ns), `old`, `why`, `path` |
        /// | `hop_latency` | flow, `switch` | `value` (ns), `old`, `why` |
        /// | `queue_occupancy`, `queue_congestion` | `switch`, `port`, `queue` | `value`, `old`, `why` |
        /// | `link_utilization` | `switch`, `port` | `value`, `old`, `why` |
        /// | `drops` | flow, `switch`, `reason`, `reason_source` (of sFlow) | `value` (1), `ingress_port`, `egress_port`, `queue` |
        /// | `congestion` | flow, `switch`, `port`, `queue` | `occupancy`, `latency` (ns), `value` (1) |
        ///
        /// A flow is the tags `flow` (`10.0.0.1:5000->10.0.0.2:5000/udp`), `src`, `dst`, `sport`, `dport` and `proto`; an unknown
        /// one is the tag `key` in hex. What was not available is left out. Switches, ports and reasons with a name ([`Names`])
        /// have it in the additional tags `switch_name`, `port_name` and `reason_name`; a drop's ports have theirs in the fields
        /// `ingress_port_name` and `egress_port_name`.
        #[default]
        Tags: "tags",
        /// The names, fields and values of INTCollector's InfluxDB client, where the name of a measurement contains what are tags
        /// elsewhere. It has no points for drops, queue congestion and loops.
        ///
        /// | measurement | fields |
        /// |---|---|
        /// | `flow_stat,SRC:PORT->DST:PORT,proto=N` | `flow_latency`, `path` |
        /// | `flow_hop_latency,SRC:PORT->DST:PORT,proto=N,sw_id=N` | `value` |
        /// | `port_tx_utilize,sw_id=N,port_id=N` | `value` |
        /// | `queue_occupancy,sw_id=N,queue_id=N` | `value` |
        ///
        /// Numbers are floats, and a port or queue that is not available is 0, as there. An unknown flow is its key in
        /// hex.
        IntCollector: "intcollector",
    }
}

impl Schema {
    /// The point of an event; `None` if this schema has none.
    pub fn build_point(self, event: &TelemetryEvent, names: &Names) -> Option<InfluxPoint> {
        match self {
            Schema::Tags => tagged_point(event, names),
            Schema::IntCollector => intcollector(event),
        }
    }
}

dta_proto::parse_by_name!(Schema);

/// The previous value; a new key has none.
fn known_before(why: Why, old: u64) -> Option<u64> {
    Some(old).filter(|_| why != Why::New)
}

fn number_text(number: Option<u32>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

/// The tags of an event's subject.
fn flow_tags(meaning: Option<Meaning>, key: &Key, names: &Names) -> Vec<(&'static str, String)> {
    match meaning.and_then(|meaning| meaning.known_flow()) {
        Some(flow) => {
            let ends = names.flow_networks(Some(flow));
            vec![
                ("dport", flow.dport.to_string()),
                ("dst", flow.dst.to_string()),
                ("dst_as", number_text(ends.destination_as)),
                ("dst_network", ends.destination_network.unwrap_or_default()),
                ("flow", flow.to_string()),
                ("proto", flow.proto.to_string()),
                ("sport", flow.sport.to_string()),
                ("src", flow.src.to_string()),
                ("src_as", number_text(ends.source_as)),
                ("src_network", ends.source_network.unwrap_or_default()),
            ]
        }
        None if *key == Key::default() => Vec::new(),
        None => vec![("key", to_hex_digits(&key.0))],
    }
}

fn number_fields(
    numbers: &[(&'static str, Option<u32>)],
) -> impl Iterator<Item = (&'static str, PointValue)> {
    numbers.iter().filter_map(|(name, number)| Some((*name, PointValue::Integer((*number)?.into()))))
}

fn tagged_point(event: &TelemetryEvent, names: &Names) -> Option<InfluxPoint> {
    match event.entry {
        TelemetryEntry::Change { time, key, metric, why, old, new, place, .. } => {
            let measurement = metric.name().replace('-', "_");
            let mut fields = Vec::new();
            let tags = match metric {
                Metric::FlowPath => {
                    fields.extend(event.path.map(|path| ("path", PointValue::Text(path.to_string()))));
                    fields.push(("hops", PointValue::Integer(new & 0xff)));
                    fields.push(("loop", PointValue::Bool(new >> 8 != 0)));
                    flow_tags(event.meaning, &key, names)
                }
                Metric::FlowLatency => flow_tags(event.meaning, &key, names),
                Metric::HopLatency => {
                    let mut tags = flow_tags(event.meaning, &key, names);
                    tags.extend(switch_tags(place.switch, names));
                    tags
                }
                Metric::QueueOccupancy | Metric::QueueCongestion => place_tags(place, names),
                Metric::LinkUtilization => place_tags(Location { queue: None, ..place }, names),
            };
            if metric != Metric::FlowPath {
                fields.push(("value", PointValue::Integer(new)));
                fields.extend(known_before(why, old).map(|old| ("old", PointValue::Integer(old))));
                fields.extend(event.path.map(|path| ("path", PointValue::Text(path.to_string()))));
            }
            fields.push(("why", PointValue::Text(why.name().into())));
            Some(InfluxPoint { measurement, tags, fields, time })
        }
        TelemetryEntry::Drop { time, key, place, ingress_port, reason } => {
            let mut tags = flow_tags(event.meaning, &key, names);
            let reason_name = names.drop_reason(place.switch, reason).unwrap_or_default();
            let source = if reason.is_sflow() { reason.source_name() } else { "" };
            tags.extend([
                ("reason", reason.number().to_string()),
                ("reason_name", reason_name.to_owned()),
                ("reason_source", source.to_owned()),
            ]);
            tags.extend(switch_tags(place.switch, names));
            let mut fields = vec![("value", PointValue::Integer(1))];
            fields.extend(number_fields(&[
                ("ingress_port", ingress_port),
                ("egress_port", place.port),
                ("queue", place.queue),
            ]));
            for (field, port) in [("ingress_port_name", ingress_port), ("egress_port_name", place.port)] {
                let name = names.port_name_if_known(place.switch, port);
                fields.extend(name.map(|name| (field, PointValue::Text(name.to_owned()))));
            }
            Some(InfluxPoint { measurement: "drops".into(), tags, fields, time })
        }
        TelemetryEntry::Congestion { time, key, place, occupancy, latency } => {
            let mut tags = flow_tags(event.meaning, &key, names);
            tags.extend(place_tags(place, names));
            let mut fields = vec![("value", PointValue::Integer(1))];
            fields.extend(number_fields(&[("occupancy", occupancy), ("latency", latency)]));
            Some(InfluxPoint { measurement: "congestion".into(), tags, fields, time })
        }
        TelemetryEntry::Key { .. } => None,
    }
}

fn place_tags(place: Location, names: &Names) -> Vec<(&'static str, String)> {
    let name = names.port_name_if_known(place.switch, place.port).unwrap_or_default().to_owned();
    let mut tags =
        vec![("port", number_text(place.port)), ("port_name", name), ("queue", number_text(place.queue))];
    tags.extend(switch_tags(place.switch, names));
    tags
}

/// A switch with its name. An empty text is not a tag.
fn switch_tags(switch: Option<u32>, names: &Names) -> [(&'static str, String); 2] {
    let name = switch.and_then(|switch| names.switch_name(switch)).unwrap_or_default();
    let number = switch.map(|switch| SwitchNumber(switch).to_string()).unwrap_or_default();
    [("switch", number), ("switch_name", name.to_owned())]
}

/// A flow as INTCollector writes it.
fn intcollector_flow(meaning: Option<Meaning>, key: &Key) -> String {
    match meaning.and_then(|meaning| meaning.known_flow()) {
        Some(Flow { src, dst, sport, dport, proto }) => format!("{src}:{sport}->{dst}:{dport},proto={proto}"),
        None => to_hex_digits(&key.0),
    }
}

fn intcollector(event: &TelemetryEvent) -> Option<InfluxPoint> {
    let TelemetryEntry::Change { time, key, metric, why, new, place, .. } = event.entry else { return None };
    let number = |number: Option<u32>| number.unwrap_or(0);
    let flow = || intcollector_flow(event.meaning, &key);
    let path = |path: SwitchPath| ("path", PointValue::Text(path.to_string()));
    let value = vec![("value", PointValue::Number(new))];
    let (measurement, fields) = match metric {
        Metric::FlowPath if why == Why::Loop => return None,
        Metric::FlowPath => {
            let mut fields: Vec<_> = event.path.map(path).into_iter().collect();
            fields.extend(event.latency.map(|latency| ("flow_latency", PointValue::Number(latency.into()))));
            if fields.is_empty() {
                return None;
            }
            (format!("flow_stat,{}", flow()), fields)
        }
        Metric::FlowLatency => {
            let mut fields = vec![("flow_latency", PointValue::Number(new))];
            fields.extend(event.path.map(path));
            (format!("flow_stat,{}", flow()), fields)
        }
        Metric::HopLatency => (format!("flow_hop_latency,{},sw_id={}", flow(), number(place.switch)), value),
        Metric::LinkUtilization => {
            let (switch, port) = (number(place.switch), number(place.port));
            (format!("port_tx_utilize,sw_id={switch},port_id={port}"), value)
        }
        Metric::QueueOccupancy => {
            let (switch, queue) = (number(place.switch), number(place.queue));
            (format!("queue_occupancy,sw_id={switch},queue_id={queue}"), value)
        }
        Metric::QueueCongestion => return None,
    };
    Some(InfluxPoint { measurement, tags: Vec::new(), fields, time })
}

//! Traffic by exporter, interface and protocol: sums of flow records as counters, from which anybody can take rates; and
//! the largest flows of the last minute.
//!
//! Sums are multiplied by the sampling rate. An exporter may count a flow twice, where it enters and where it leaves. A
//! record from where a flow leaves counts only if the flow enters by an interface where the exporter does not count.
//! Conversely, what leaves by an interface is taken from records made there, if there are any. What several exporters
//! see is in the sums of each.
//!
//! Anyone who can send records can invent exporters and interfaces. So the series of each kind are limited: what has no
//! room is summed as `other`, and existing series go on.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::Ipv6Addr;

use dta_proto::flow_query::FlowSums;
use dta_proto::flow_record::{DIRECTION_EGRESS, ENTRY_LEN, FlowRecord, switch_from_exporter};
use dta_proto::key::{Flow, protocol_name};

use crate::gauges::{add_name_label, flow_labels};
use crate::metrics::{Labels, MetricKind, MetricsPage};
use crate::names::Names;

/// Most exporters with sums of their own.
pub const MAX_EXPORTERS: usize = 256;
/// Most interfaces of all exporters with sums of their own.
pub const MAX_INTERFACES: usize = 4096;
/// Most pairs of an exporter and a protocol with sums of their own.
pub const MAX_PROTOCOLS: usize = 2048;
/// The prefix of this module's metrics.
pub(crate) const PREFIX: &str = "dta_traffic_";

/// Stands for everything without sums of its own.
const OTHER: &str = "other";

/// An exporter; `None` for those without room.
type Exporter = Option<Ipv6Addr>;

/// Values by key, up to a limit.
#[derive(Debug)]
struct BoundedTable<K, V> {
    values: HashMap<K, V>,
    limit: usize,
}

impl<K: Eq + Hash, V: Default> BoundedTable<K, V> {
    fn with_limit(limit: usize) -> Self {
        Self { values: HashMap::new(), limit }
    }

    fn has_room(&self, key: &K) -> bool {
        self.values.len() < self.limit || self.values.contains_key(key)
    }

    /// The value of a key, or of `other` if there is no room for it. Values of `other` keys come on top of the limit.
    fn value_of(&mut self, key: K, other: K) -> &mut V {
        self.entry_of(key, other).0
    }

    /// As [`Self::value_of`], and whether the value is the key's own.
    fn entry_of(&mut self, key: K, other: K) -> (&mut V, bool) {
        let is_own = self.has_room(&key);
        (self.values.entry(if is_own { key } else { other }).or_default(), is_own)
    }
}

/// Traffic that enters and leaves by an interface.
#[derive(Clone, Copy, Debug, Default)]
struct InterfaceTraffic {
    entering: FlowSums,
    leaving: FlowSums,
    /// Whether the exporter counts flows here as they enter.
    counts_entering: bool,
    /// Whether the exporter counts flows here as they leave.
    counts_leaving: bool,
}

/// Batches of records missing from the sums, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissedBatches {
    /// Newer batches overwrote them before they were read.
    pub overwritten: u64,
    /// They never came, although later ones did.
    pub missing: u64,
    /// Their bytes stayed wrong.
    pub damaged: u64,
}

/// Sums of flow records since this began.
#[derive(Debug)]
pub struct Traffic {
    exporters: BoundedTable<Exporter, FlowSums>,
    /// By exporter and interface number; `None` for those without room.
    interfaces: BoundedTable<(Exporter, Option<u32>), InterfaceTraffic>,
    /// By exporter and protocol; `None` for those without room.
    protocols: BoundedTable<(Exporter, Option<u8>), FlowSums>,
    largest: Vec<(Flow, FlowSums)>,
    missed: MissedBatches,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            exporters: BoundedTable::with_limit(MAX_EXPORTERS),
            interfaces: BoundedTable::with_limit(MAX_INTERFACES),
            protocols: BoundedTable::with_limit(MAX_PROTOCOLS),
            largest: Vec::new(),
            missed: MissedBatches::default(),
        }
    }
}

impl Traffic {
    /// Adds entries of the list, which lie back to back.
    pub fn add_entries(&mut self, entries: &[u8]) {
        let (entries, _) = entries.as_chunks::<ENTRY_LEN>();
        for entry in entries {
            self.add_record(&FlowRecord::from_entry(entry));
        }
    }

    fn add_record(&mut self, record: &FlowRecord) {
        let sums = FlowSums { bytes: record.total_bytes(), packets: record.total_packets(), flows: 1 };
        let counted_leaving = record.direction == DIRECTION_EGRESS;
        let exporter = Some(record.exporter).filter(|exporter| self.exporters.has_room(&Some(*exporter)));
        let of_exporter = self.exporters.value_of(exporter, None);
        // Interfaces of several exporters have nothing in common but their numbers.
        let interface = |number| (exporter, exporter.map(|_| number));

        // What one interface counts says nothing about the others in the shared entry of those without room.
        let (entry, is_own) = self.interfaces.entry_of(interface(record.in_if), (exporter, None));
        entry.counts_entering |= !counted_leaving && is_own && exporter.is_some();
        if !counted_leaving || !entry.counts_entering {
            entry.entering.add(sums);
            of_exporter.add(sums);
            self.protocols.value_of((exporter, Some(record.protocol)), (exporter, None)).add(sums);
        }
        let (exit, is_own) = self.interfaces.entry_of(interface(record.out_if), (exporter, None));
        exit.counts_leaving |= counted_leaving && is_own && exporter.is_some();
        if counted_leaving || !exit.counts_leaving {
            exit.leaving.add(sums);
        }
    }

    /// Counts batches whose records were not added.
    pub fn count_missed(&mut self, missed: MissedBatches) {
        self.missed.overwritten += missed.overwritten;
        self.missed.missing += missed.missing;
        self.missed.damaged += missed.damaged;
    }

    /// Replaces the largest flows of the last minute.
    pub fn set_largest_flows(&mut self, largest: Vec<(Flow, FlowSums)>) {
        self.largest = largest;
    }

    /// Adds all series to a page. Exporters and interfaces with names have them in labels; `reported_name` is an
    /// interface's name as its exporter gives it.
    pub fn add_to_page(
        &self,
        page: &mut MetricsPage,
        names: &Names,
        reported_name: &dyn Fn(u32, u32) -> Option<String>,
    ) {
        let mut add = |family: &str, kind, help: &'static str, labels: &Labels, value| {
            page.add(format!("{PREFIX}{family}"), kind, help, labels.clone(), value);
        };
        for (exporter, sums) in &self.exporters.values {
            let labels = exporter_labels(*exporter, names);
            add("exporter_bytes", MetricKind::Counter, EXPORTER_BYTES, &labels, sums.bytes);
            add("exporter_packets", MetricKind::Counter, EXPORTER_PACKETS, &labels, sums.packets);
            add("exporter_records", MetricKind::Counter, EXPORTER_RECORDS, &labels, sums.flows);
        }
        for ((exporter, interface), traffic) in &self.interfaces.values {
            let mut labels = exporter_labels(*exporter, names);
            let number = match interface {
                Some(0) => "unknown".to_owned(),
                Some(number) => number.to_string(),
                None => OTHER.to_owned(),
            };
            labels.push(("interface".into(), number));
            if let (Some(exporter), Some(interface)) = (exporter, interface) {
                let switch = switch_from_exporter((*exporter).into());
                let own = names.port_name(switch, *interface).map(str::to_owned);
                let name = own.or_else(|| reported_name(switch, *interface));
                add_name_label(&mut labels, "interface_name", name.as_deref());
            }
            for (direction, sums) in [("in", &traffic.entering), ("out", &traffic.leaving)] {
                if sums.flows == 0 {
                    continue;
                }
                let mut labels = labels.clone();
                labels.push(("direction".into(), direction.into()));
                add("interface_bytes", MetricKind::Counter, INTERFACE_BYTES, &labels, sums.bytes);
                add("interface_packets", MetricKind::Counter, INTERFACE_PACKETS, &labels, sums.packets);
            }
        }
        for ((exporter, protocol), sums) in &self.protocols.values {
            let mut labels = exporter_labels(*exporter, names);
            let protocol = match protocol {
                Some(number) => protocol_name(*number).map_or_else(|| number.to_string(), str::to_owned),
                None => OTHER.to_owned(),
            };
            labels.push(("protocol".into(), protocol));
            add("protocol_bytes", MetricKind::Counter, PROTOCOL_BYTES, &labels, sums.bytes);
            add("protocol_packets", MetricKind::Counter, PROTOCOL_PACKETS, &labels, sums.packets);
        }
        for (flow, sums) in &self.largest {
            let labels = flow_labels(*flow);
            add("largest_flow_bytes", MetricKind::Gauge, FLOW_BYTES, &labels, sums.bytes);
            add("largest_flow_packets", MetricKind::Gauge, FLOW_PACKETS, &labels, sums.packets);
        }
        let MissedBatches { overwritten, missing, damaged } = self.missed;
        for (cause, batches) in [("overwritten", overwritten), ("missing", missing), ("damaged", damaged)] {
            let labels = vec![("cause".into(), cause.to_owned())];
            add("missed_batches", MetricKind::Counter, MISSED, &labels, batches);
        }
    }
}

const EXPORTER_BYTES: &str =
    "bytes of the flows that an exporter reported, from the IP header on, times the sampling rate";
const EXPORTER_PACKETS: &str = "packets of the flows that an exporter reported, times the sampling rate";
const EXPORTER_RECORDS: &str = "flow records of an exporter that are in its sums";
const INTERFACE_BYTES: &str = "bytes of flows that entered (direction in) or left (out) by an exporter's interface, times the sampling rate";
const INTERFACE_PACKETS: &str = "packets of flows that entered (direction in) or left (out) by an exporter's interface, times the sampling rate";
const PROTOCOL_BYTES: &str =
    "bytes of the flows that an exporter reported, by IP protocol, times the sampling rate";
const PROTOCOL_PACKETS: &str =
    "packets of the flows that an exporter reported, by IP protocol, times the sampling rate";
const FLOW_BYTES: &str = "bytes of the largest flows whose records came in the last minute";
const FLOW_PACKETS: &str = "packets of the largest flows whose records came in the last minute";
const MISSED: &str = "batches of flow records that are in none of these sums, by cause";

fn exporter_labels(exporter: Exporter, names: &Names) -> Labels {
    let Some(exporter) = exporter else { return vec![("exporter".into(), OTHER.into())] };
    let address = std::net::IpAddr::V6(exporter).to_canonical();
    let mut labels = vec![("exporter".into(), address.to_string())];
    add_name_label(&mut labels, "exporter_name", names.switch_name(switch_from_exporter(address)));
    labels
}

#[cfg(test)]
mod tests {
    use dta_proto::flow_record::{DIRECTION_INGRESS, to_mapped_address};

    use super::*;

    /// A record of the exporter of this number, from interface 1 to 2.
    fn record(exporter: u32) -> FlowRecord {
        FlowRecord {
            exporter: std::net::Ipv4Addr::from_bits(0x0a00_0000 + exporter).to_ipv6_mapped(),
            bytes: 1000,
            packets: 3,
            in_if: 1,
            out_if: 2,
            protocol: 6,
            ..FlowRecord::EMPTY
        }
    }

    fn traffic(records: impl IntoIterator<Item = FlowRecord>) -> Traffic {
        let mut traffic = Traffic::default();
        let entries: Vec<u8> = records.into_iter().flat_map(|record| record.to_entry()).collect();
        traffic.add_entries(&entries);
        traffic
    }

    fn metrics_page(traffic: &Traffic, names: &str) -> MetricsPage {
        let names = Names::parse(names, std::path::Path::new("names.toml")).unwrap();
        let mut page = MetricsPage::default();
        traffic.add_to_page(&mut page, &names, &|_, interface| (interface == 2).then(|| "wan".into()));
        page
    }

    /// The series of a family, without the prefix.
    fn series(traffic: &Traffic, family: &str) -> Vec<String> {
        let text = metrics_page(traffic, "").into_text();
        let begin = format!("{PREFIX}{family}");
        text.lines().filter_map(|line| line.strip_prefix(&begin)).map(str::to_owned).collect()
    }

    /// How many series a family has, and their sum.
    fn count_and_sum(traffic: &Traffic, family: &str) -> (usize, u64) {
        let values = series(traffic, family);
        let value = |line: &String| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        (values.len(), values.iter().map(value).sum())
    }

    #[test]
    fn sums_are_multiplied_by_the_sampling_rate_and_have_names() {
        let mut first = record(1);
        first.sampling_rate = 100;
        let icmp = FlowRecord { protocol: 1, in_if: 0, ..record(1) };
        let mut traffic = traffic([first, icmp, FlowRecord { protocol: 200, ..record(2) }]);
        traffic.count_missed(MissedBatches { overwritten: 4, missing: 0, damaged: 1 });
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:443/tcp".parse().unwrap();
        traffic.set_largest_flows(vec![(flow, FlowSums { bytes: 7, packets: 5, flows: 1 })]);
        let names = "[switch.\"10.0.0.1\"]\nname = \"edge1\"\n[switch.\"10.0.0.1\".port]\n1 = \"lan\"\n";
        let text = metrics_page(&traffic, names).into_text();
        let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(PREFIX)).collect();
        let flow = "{flow=\"10.0.0.1:5000->10.0.0.2:443/tcp\",src=\"10.0.0.1\",sport=\"5000\",dst=\"10.0.0.2\",dport=\"443\",proto=\"6\"}";
        let edge1 = "exporter=\"10.0.0.1\",exporter_name=\"edge1\"";
        let other = "exporter=\"10.0.0.2\"";
        let mut expected = Vec::new();
        for (family, one, two, three) in [("bytes", 100_000, 1000, 1000), ("packets", 300, 3, 3)] {
            expected.extend([
                format!("exporter_{family}_total{{{edge1}}} {}", one + two),
                format!("exporter_{family}_total{{{other}}} {three}"),
                format!("interface_{family}_total{{{edge1},interface=\"1\",interface_name=\"lan\",direction=\"in\"}} {one}"),
                format!("interface_{family}_total{{{edge1},interface=\"2\",interface_name=\"wan\",direction=\"out\"}} {}", one + two),
                format!("interface_{family}_total{{{edge1},interface=\"unknown\",direction=\"in\"}} {two}"),
                format!("interface_{family}_total{{{other},interface=\"1\",direction=\"in\"}} {three}"),
                format!("interface_{family}_total{{{other},interface=\"2\",interface_name=\"wan\",direction=\"out\"}} {three}"),
                format!("protocol_{family}_total{{{edge1},protocol=\"icmp\"}} {two}"),
                format!("protocol_{family}_total{{{edge1},protocol=\"tcp\"}} {one}"),
                format!("protocol_{family}_total{{{other},protocol=\"200\"}} {three}"),
            ]);
        }
        expected.extend([
            format!("exporter_records_total{{{edge1}}} 2"),
            format!("exporter_records_total{{{other}}} 1"),
            format!("largest_flow_bytes{flow} 7"),
            format!("largest_flow_packets{flow} 5"),
            "missed_batches_total{cause=\"damaged\"} 1".into(),
            "missed_batches_total{cause=\"missing\"} 0".into(),
            "missed_batches_total{cause=\"overwritten\"} 4".into(),
        ]);
        expected.sort();
        let mut sorted = lines.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected);
    }

    #[test]
    fn what_an_exporter_counts_where_it_enters_and_where_it_leaves_counts_once() {
        let ingress = FlowRecord { direction: DIRECTION_INGRESS, ..record(1) };
        let egress = FlowRecord { direction: DIRECTION_EGRESS, ..record(1) };
        let both = traffic([ingress, egress, ingress, egress]);
        assert_eq!(series(&both, "exporter_bytes"), ["_total{exporter=\"10.0.0.1\"} 2000"]);
        assert_eq!(count_and_sum(&both, "protocol_bytes"), (1, 2000));
        // The first record adds to what leaves by 2 before it is known that the exporter counts there.
        assert_eq!(
            series(&both, "interface_bytes"),
            [
                "_total{exporter=\"10.0.0.1\",interface=\"1\",direction=\"in\"} 2000",
                "_total{exporter=\"10.0.0.1\",interface=\"2\",interface_name=\"wan\",direction=\"out\"} 3000"
            ]
        );
        // At one interface alone: what comes from there is counted as it enters, what goes there as it leaves.
        let back = FlowRecord { in_if: 2, out_if: 1, ..ingress };
        let one = traffic([egress, back, egress, back]);
        assert_eq!(series(&one, "exporter_bytes"), ["_total{exporter=\"10.0.0.1\"} 4000"]);
        assert_eq!(count_and_sum(&one, "interface_bytes"), (4, 8000));
        // Only where flows leave.
        assert_eq!(series(&traffic([egress; 3]), "exporter_bytes"), ["_total{exporter=\"10.0.0.1\"} 3000"]);
    }

    /// Below the limit, at it, and beyond it.
    #[test]
    fn what_has_no_room_is_summed_as_other() {
        type NumberedRecord = fn(u32) -> FlowRecord;
        let kinds: [(usize, &str, NumberedRecord); 3] = [
            (MAX_EXPORTERS, "exporter_bytes", record),
            (MAX_INTERFACES, "interface_bytes", |n| FlowRecord { in_if: n + 1, out_if: n + 1, ..record(0) }),
            (MAX_PROTOCOLS, "protocol_bytes", |n| FlowRecord { protocol: n as u8, ..record(n >> 8) }),
        ];
        for (limit, family, number) in kinds {
            let directions = if family == "interface_bytes" { 2 } else { 1 };
            for (count, others) in [(limit - 1, 0), (limit, 0), (limit + 1, 1), (limit + 7, 1)] {
                let mut traffic = traffic((0..count as u32).map(number));
                // Existing series go on.
                traffic.add_record(&number(0));
                let lines = series(&traffic, family);
                assert_eq!(lines.len(), directions * (count.min(limit) + others), "{family} of {count}");
                let other: Vec<_> = lines.iter().filter(|line| line.contains("=\"other\"")).collect();
                assert_eq!(other.len(), directions * others, "{other:?}");
                let beyond = count.saturating_sub(limit) * 1000;
                assert!(other.iter().all(|line| line.ends_with(&format!(" {beyond}"))), "{other:?}");
                let all = (directions * (count + 1) * 1000) as u64;
                assert_eq!(count_and_sum(&traffic, family).1, all, "{family} of {count}");
            }
        }
    }

    #[test]
    fn nothing_is_left_out_of_what_has_no_room() {
        let without_room = MAX_EXPORTERS as u32;
        let egress = |n| FlowRecord { direction: DIRECTION_EGRESS, ..record(n) };
        let mut traffic = traffic((0..without_room).map(record));
        [record(without_room), egress(without_room + 1), egress(without_room + 2)]
            .iter()
            .for_each(|record| traffic.add_record(record));
        let lines = series(&traffic, "exporter_bytes");
        assert!(lines.contains(&"_total{exporter=\"other\"} 3000".to_owned()), "{lines:?}");
    }

    #[test]
    fn an_exporter_at_an_ipv6_address_is_shown_by_it() {
        let exporter = to_mapped_address("2001:db8::7".parse().unwrap());
        let lines = series(&traffic([FlowRecord { exporter, ..record(1) }]), "exporter_bytes");
        assert_eq!(lines, ["_total{exporter=\"2001:db8::7\"} 1000"]);
    }
}

//! What rules are about: flow records as they are, and INT events and readings of stores as entries with
//! columns of their own, so that conditions, groups and sums work the same for all.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use dta_export::fields::EventFields;
use dta_export::kind::EventKind;
use dta_export::names::Names;
use dta_proto::drop_reason::DropReason;
use dta_proto::flow_query::{FlowSums, format_value};
use dta_proto::flow_record::{Column, ColumnType, ENTRY_LEN, to_mapped_address};
use dta_proto::key::Flow;
use dta_proto::telemetry::{Location, SwitchNumber, Why};

dta_proto::named! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub(super) enum Source {
        #[default]
        FlowRecords: "flow-records",
        IntEvents: "int-events",
        Counters: "counters",
        Values: "values",
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(name: &str) -> Result<Source, String> {
        let why = match name {
            "sketches" => "; a sketch does not have its keys, so that none can be compared",
            _ => "",
        };
        Source::from_name(name).ok_or_else(|| format!("must be one of {}{why}", Source::NAMES.join(", ")))
    }
}

dta_proto::serde_as_text!(Source);

pub(super) type Entry = [u8; ENTRY_LEN];

const NUMBER: ColumnType = ColumnType::Number { width: 4 };
const PORT: ColumnType = ColumnType::Number { width: 2 };

const fn place_column(name: &'static str, kind: ColumnType, offset: usize, help: &'static str) -> Column {
    Column { name, kind, offset, help }
}

/// Columns of events and readings. A value they lack is 0; an unknown switch, port or queue has all bits set.
static PLACE_COLUMNS: [Column; 15] = [
    place_column("switch", ColumnType::Address, 0, "Switch, or exporter: its name, number or address"),
    place_column("src", ColumnType::Address, 16, "Source address of the flow"),
    place_column("dst", ColumnType::Address, 32, "Destination address of the flow"),
    place_column("value", ColumnType::Count, 48, "The new value; of a path, its number of hops"),
    place_column("old", ColumnType::Count, 56, "The value before"),
    place_column("port", NUMBER, 64, "Egress port"),
    place_column("queue", NUMBER, 68, "Queue"),
    place_column("ingress-port", NUMBER, 72, "Ingress port of a dropped packet"),
    place_column("reason", NUMBER, 76, "Why a packet was dropped; sFlow's numbers have bit 31 set"),
    place_column("latency", NUMBER, 80, "Nanoseconds that a packet spent in the switch"),
    place_column("occupancy", NUMBER, 84, "Occupancy of the queue in which a packet waited"),
    place_column("src-port", PORT, 88, "Source port of the flow"),
    place_column("dst-port", PORT, 90, "Destination port of the flow"),
    place_column("protocol", ColumnType::Number { width: 1 }, 92, "IP protocol of the flow"),
    place_column("age", NUMBER, 96, "Seconds since the value was written"),
];

impl Source {
    pub(super) fn column(self, name: &str) -> Option<&'static Column> {
        if self == Source::FlowRecords {
            return Column::from_name(name);
        }
        let name = name.replace('_', "-");
        let is_there = match self {
            Source::FlowRecords | Source::IntEvents => name != "age",
            Source::Counters => !matches!(&*name, "value" | "old" | "age"),
            Source::Values => true,
        };
        PLACE_COLUMNS.iter().find(|column| is_there && column.name == name)
    }

    /// Whether it is read at the end of each bucket rather than followed.
    pub(super) fn is_read(self) -> bool {
        matches!(self, Source::Counters | Source::Values)
    }

    /// What an entry adds to sums.
    #[inline]
    pub(super) fn sums_of_entry(self, entry: &Entry) -> FlowSums {
        match self {
            Source::FlowRecords => FlowSums::from_entry(entry),
            Source::Counters => {
                let mut count = [0; 8];
                count.copy_from_slice(&entry[48..56]);
                let count = u64::from_be_bytes(count);
                FlowSums { bytes: count, packets: count, flows: 1 }
            }
            Source::IntEvents | Source::Values => FlowSums { flows: 1, ..FlowSums::default() },
        }
    }
}

/// The entry of an event; `None` if no rule can be about it: of paths, only changes count.
pub(super) fn event_to_entry(fields: &EventFields) -> Option<Entry> {
    if fields.kind == EventKind::Key || (fields.kind == EventKind::FlowPath && fields.why != Some(Why::Moved))
    {
        return None;
    }
    let mut entry = place_entry(fields.place, fields.flow, fields.reason);
    let mut put = |offset: usize, bytes: &[u8]| entry[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(48, &fields.new.unwrap_or(0).to_be_bytes());
    put(56, &fields.old.unwrap_or(0).to_be_bytes());
    put(72, &fields.ingress_port.unwrap_or(u32::MAX).to_be_bytes());
    put(80, &fields.latency.unwrap_or(0).to_be_bytes());
    put(84, &fields.occupancy.unwrap_or(0).to_be_bytes());
    Some(entry)
}

/// An entry that says where something was seen, in which flow, and why it was dropped.
pub(super) fn place_entry(place: Location, flow: Option<Flow>, reason: Option<DropReason>) -> Entry {
    let mut entry = [0; ENTRY_LEN];
    let mut put = |offset: usize, bytes: &[u8]| entry[offset..offset + bytes.len()].copy_from_slice(bytes);
    let switch = place.switch.unwrap_or(u32::MAX);
    put(0, &Ipv4Addr::from_bits(switch).to_ipv6_mapped().octets());
    if let Some(flow) = flow {
        put(16, &to_mapped_address(flow.src).octets());
        put(32, &to_mapped_address(flow.dst).octets());
        put(88, &flow.sport.to_be_bytes());
        put(90, &flow.dport.to_be_bytes());
        put(92, &[flow.proto]);
    }
    for (offset, number) in [(64, place.port), (68, place.queue)] {
        put(offset, &number.unwrap_or(u32::MAX).to_be_bytes());
    }
    put(76, &reason.map_or(0, DropReason::to_bits).to_be_bytes());
    entry
}

/// Addresses by name: exporters from the file of names, and switches by their number, too.
pub(super) fn address_by_name(name: &str, names: &Names) -> Option<IpAddr> {
    let number = names.number_of(name).or_else(|| name.parse().ok());
    number.map(|number| IpAddr::V4(Ipv4Addr::from_bits(number)))
}

/// A column's value in a form for people.
pub(super) fn describe_value(source: Source, column: &Column, value: u128, names: &Names) -> String {
    let switch = || Ipv6Addr::from_bits(value).to_ipv4_mapped().map(Ipv4Addr::to_bits);
    let numbered = |number: u32| match names.switch_name(number) {
        Some(name) => name.to_owned(),
        None if number == u32::MAX => "unknown".to_owned(),
        None => SwitchNumber(number).to_string(),
    };
    match (source, column.name) {
        (Source::FlowRecords, "exporter") => {
            let name = switch().and_then(|number| names.switch_name(number));
            name.map_or_else(|| format_value(column, value), str::to_owned)
        }
        (Source::FlowRecords, _) => format_value(column, value),
        (_, "switch") => switch().map_or_else(|| format_value(column, value), numbered),
        (_, "port" | "queue" | "ingress-port") if value == u32::MAX.into() => "unknown".to_owned(),
        (_, "reason") => {
            let reason = DropReason::from_bits(value as u32);
            names.drop_reason(None, reason).map_or_else(|| reason.to_string(), str::to_owned)
        }
        _ => format_value(column, value),
    }
}

/// The switch number in its column; `None` if the event did not say.
pub(super) fn switch_from_value(value: u128) -> Option<u32> {
    let number = Ipv6Addr::from_bits(value).to_ipv4_mapped()?.to_bits();
    (number != u32::MAX).then_some(number)
}

/// A condition for this value, written with addresses and numbers so that it can be parsed without names.
pub(super) fn condition_text(column: &Column, value: u128) -> String {
    format!("{} = {}", column.name, format_value(column, value))
}

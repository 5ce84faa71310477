//! Keys, values and entries of INT's metrics: the keys as another implementation makes them
//! (`vectors/telemetry.py`), the rest by writing and reading.

use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{
    self, ENTRY_LEN, InterfaceCounter, Location, Means, Metric, SwitchPath, TelemetryEntry, TimedValue, Via,
    Why,
};
use dta_proto::trace::TraceName;
use proptest::prelude::*;
use serde_json::Value as Json;

#[test]
fn keys_are_those_of_the_vectors() {
    let vectors: Json = serde_json::from_str(include_str!("../vectors/telemetry.json")).unwrap();
    let cases = vectors["keys"].as_array().unwrap();
    assert!(cases.len() >= 16);
    for case in cases {
        let number = |n: usize| case["numbers"][n].as_u64().map(|number| number as u32);
        let reason = |n| DropReason::from_bits(number(n).unwrap());
        let flow = || case["flow"].as_str().unwrap().parse::<Flow>().unwrap();
        let key = match case["kind"].as_str().unwrap() {
            "hlat" => telemetry::hop_latency_key(&flow(), number(0).unwrap()),
            "fdrp" => telemetry::flow_drops_key(&flow(), reason(0)),
            "pkts" => telemetry::packets_key(&flow()),
            "byts" => telemetry::bytes_key(&flow()),
            "ifnm" => telemetry::interface_name_key(number(0).unwrap(), number(1).unwrap()),
            "ifct" => {
                let counter = InterfaceCounter::ALL[number(2).unwrap() as usize];
                telemetry::interface_counter_key(number(0).unwrap(), number(1).unwrap(), counter)
            }
            "qocc" => telemetry::queue_occupancy_key(number(0).unwrap(), number(1), number(2)),
            "qcon" => telemetry::queue_congestion_key(number(0).unwrap(), number(1), number(2)),
            "util" => telemetry::link_utilization_key(number(0).unwrap(), number(1)),
            "drop" => telemetry::drops_key(number(0).unwrap(), reason(1)),
            other => panic!("{other}"),
        };
        assert_eq!(key, case["key"].as_str().unwrap().parse::<Key>().unwrap(), "{case}");
        assert_eq!(key.to_ipv4_flow(), None, "no key of a metric is taken for a flow's: {case}");
    }
}

#[test]
fn a_counter_of_an_interface_wraps_around_or_begins_anew() {
    let (octets, errors) = (InterfaceCounter::OutOctets, InterfaceCounter::InErrors);
    assert_eq!(
        [octets.increase_between(5, 1 << 40), octets.increase_between(5, 4)],
        [Some((1 << 40) - 5), None]
    );
    let last = u64::from(u32::MAX);
    assert_eq!(
        [errors.increase_between(3, 5), errors.increase_between(last, 2), errors.increase_between(1000, 2)],
        [Some(2), Some(3), None]
    );
}

#[test]
fn a_path_as_people_read_it() {
    let path = SwitchPath::from_switches(&[6, 5, 4]);
    assert_eq!((path.to_string().as_str(), path.looped), ("6:5:4", false));
    assert!(
        SwitchPath::from_switches(&[1, 2, 1]).looped
            && !SwitchPath::from_switches(&[u32::MAX, u32::MAX]).looped
    );
    assert_eq!(SwitchPath::from_switches(&[1, u32::MAX]).to_string(), "1:?");
    let long: Vec<u32> = (0..300).collect();
    assert_eq!(SwitchPath::from_switches(&long).hops, 255);
    assert!(SwitchPath::from_switches(&long).to_string().ends_with(":13:..."));
}

/// The layouts of docs/int.md, byte by byte, as another implementation writes them.
#[test]
fn entries_that_carry_a_path_or_a_port_are_those_of_the_vectors() {
    let vectors: Json = serde_json::from_str(include_str!("../vectors/telemetry.json")).unwrap();
    let flow: Flow = "10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap();
    let (time, key) = (0x18EA_6B6C_F9F8_3A15, flow.to_key());
    let of_path = |switches: &[u32], why, switch| {
        let path = SwitchPath::from_switches(switches);
        let new = u64::from(path.looped) << 8 | u64::from(path.hops);
        let place = Location { switch, ..Location::default() };
        let path = Some(Via::from_path(&path));
        TelemetryEntry::Change { time, key, metric: Metric::FlowPath, why, old: 2, new, place, path }
    };
    let long: Vec<u32> = (1..=8).chain([1]).collect();
    let latency = TelemetryEntry::Change {
        time,
        key,
        metric: Metric::FlowLatency,
        why: Why::Moved,
        old: 408,
        new: 12,
        place: Location::default(),
        path: Some(Via::Digest(SwitchPath::from_switches(&[6, 5, 4]).path_digest())),
    };
    let leaves = TelemetryEntry::Key {
        key: telemetry::hop_latency_key(&flow, 4),
        means: Means::Leaves { flow: key, switch: 4, port: Some(3), time },
    };
    for (name, entry) in [
        ("path", of_path(&[6, 5, 4], Why::Moved, None)),
        ("trail", of_path(&[7, 5, 9], Why::Learning, Some(9))),
        ("seven_hops", of_path(&[1, 2, 3, 4, 5, 6, 1], Why::Loop, None)),
        ("long_path", of_path(&long, Why::Moved, None)),
        ("flow_latency", latency),
        ("hop", leaves),
    ] {
        let bytes = dta_proto::to_hex_digits(entry.to_bytes().as_ref());
        assert_eq!(vectors["int_entries"][name], bytes, "{name}");
        assert_eq!(TelemetryEntry::parse_bytes(&entry.to_bytes()), Some(entry), "{name}");
    }
}

#[test]
fn a_name_that_is_too_long_ends_at_a_character() {
    let means = |name: &str| Means::Name(TraceName::new(name));
    let read = |name: &str| {
        let entry = TelemetryEntry::Key { key: telemetry::interface_name_key(4, 3), means: means(name) };
        TelemetryEntry::parse_bytes(&entry.to_bytes()).unwrap()
    };
    let long = format!("{}é", "x".repeat(38));
    assert_eq!(read(&long), read(&long[..38]));
    assert_eq!(read(&"x".repeat(60)), read(&"x".repeat(39)));
}

fn number() -> impl Strategy<Value = Option<u32>> {
    prop::option::of(0..u32::MAX)
}

fn place() -> impl Strategy<Value = Location> {
    (number(), number(), number()).prop_map(|(switch, port, queue)| Location { switch, port, queue })
}

fn entry() -> impl Strategy<Value = TelemetryEntry> {
    let key = || any::<[u8; 16]>().prop_map(Key);
    let why = || prop::sample::select(&[Why::New, Why::Moved, Why::KeepAlive, Why::Loop, Why::Learning][..]);
    let change =
        (any::<u64>(), key(), prop::sample::select(&Metric::ALL[2..]), why(), any::<(u64, u64)>(), place());
    // For a latency the path's digest; 0 means none.
    let latency = (any::<(u64, u64, u64)>(), key(), why(), number(), number(), any::<u32>()).prop_map(
        |((time, old, new), key, why, switch, port, digest)| TelemetryEntry::Change {
            time,
            key,
            metric: Metric::FlowLatency,
            why,
            old,
            new,
            place: Location { switch, port, queue: None },
            path: Some(Via::Digest(digest)).filter(|_| digest != 0),
        },
    );
    // For a path up to seven hops, and with up to six of them the switch that reported for itself.
    let switches = prop::collection::vec(prop_oneof![0..6u32, any::<u32>()], 1..20);
    let path = (any::<(u64, u8)>(), key(), why(), switches, number()).prop_map(
        |((time, old), key, why, switches, reporter)| {
            let path = SwitchPath::from_switches(&switches);
            let switch = reporter.filter(|_| switches.len() < 7);
            TelemetryEntry::Change {
                time,
                key,
                metric: Metric::FlowPath,
                why,
                old: old.into(),
                new: u64::from(path.looped) << 8 | u64::from(path.hops),
                place: Location { switch, ..Location::default() },
                path: Some(Via::from_path(&path)),
            }
        },
    );
    let v6 = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<(u16, u16, u8)>()).prop_map(
        |(src, dst, (sport, dport, proto))| {
            Means::Flow(Flow { src: src.into(), dst: dst.into(), sport, dport, proto })
        },
    );
    let hop = (key(), any::<u32>()).prop_map(|(key, switch)| Means::Hop(key, switch));
    let leaves = (key(), any::<u32>(), number(), any::<u64>())
        .prop_map(|(flow, switch, port, time)| Means::Leaves { flow, switch, port, time });
    let name = (any::<(u32, u32)>(), "[a-zA-Z0-9/.é-]{1,19}").prop_map(|((switch, port), name)| {
        let key = telemetry::interface_name_key(switch, port);
        TelemetryEntry::Key { key, means: Means::Name(TraceName::new(&name)) }
    });
    prop_oneof![
        change.prop_map(|(time, key, metric, why, (old, new), place)| TelemetryEntry::Change {
            time,
            key,
            metric,
            why,
            old,
            new,
            place,
            path: None
        }),
        latency,
        path,
        (any::<u64>(), key(), place(), number(), any::<u32>().prop_map(DropReason::from_bits)).prop_map(
            |(time, key, place, ingress_port, reason)| TelemetryEntry::Drop {
                time,
                key,
                place,
                ingress_port,
                reason
            }
        ),
        (any::<u64>(), key(), place(), number(), number()).prop_map(
            |(time, key, place, occupancy, latency)| TelemetryEntry::Congestion {
                time,
                key,
                place,
                occupancy,
                latency
            }
        ),
        (key(), prop_oneof![Just(Means::Itself), v6, hop, leaves])
            .prop_map(|(key, means)| TelemetryEntry::Key { key, means }),
        name,
    ]
}

proptest! {
    #[test]
    fn entries_are_read_as_they_were_written(entry in entry()) {
        prop_assert_eq!(TelemetryEntry::parse_bytes(&entry.to_bytes()), Some(entry));
    }

    #[test]
    fn any_bytes_are_an_entry_or_none(kind in 0..5usize, bytes: [u8; ENTRY_LEN], len in 0..=ENTRY_LEN) {
        let mut bytes = bytes;
        bytes[..4].copy_from_slice([b"chng", b"drop", b"cong", b"keys", b"none"][kind]);
        let _ = TelemetryEntry::parse_bytes(&bytes);
        prop_assert!(len == ENTRY_LEN || TelemetryEntry::parse_bytes(&bytes[..len]).is_none());
        let _ = (SwitchPath::parse_bytes(&bytes).map(|path| path.to_string()), TimedValue::parse_bytes(&bytes[..len]));
    }

    #[test]
    fn values_and_paths_are_read_as_they_were_written(value: u32, time: u64, path: Vec<u32>) {
        let value = TimedValue { value, time };
        prop_assert_eq!(TimedValue::parse_bytes(&value.to_bytes()), Some(value));
        let path = SwitchPath::from_switches(&path);
        prop_assert_eq!(SwitchPath::parse_bytes(&path.to_bytes()), Some(path));
    }
}

use dta_proto::drop_reason::DropReason;
use dta_proto::telemetry;

use dta_export::directory::{Directory, Meaning};
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{Means, TelemetryEntry};

fn flow(text: &str) -> Flow {
    text.parse().unwrap()
}

#[test]
fn short_keys_say_what_they_stand_for() {
    let mut directory = Directory::new(8);
    let v4 = flow("10.0.0.1:1->10.0.0.2:2/udp");
    for (key, meaning) in [
        (v4.to_key(), Meaning::Flow(v4)),
        (
            telemetry::queue_occupancy_key(7, Some(3), None),
            Meaning::Queue { switch: 7, port: Some(3), queue: None },
        ),
        (
            telemetry::queue_congestion_key(7, None, Some(5)),
            Meaning::Queue { switch: 7, port: None, queue: Some(5) },
        ),
        (telemetry::link_utilization_key(9, Some(1)), Meaning::Port { switch: 9, port: Some(1) }),
        (
            telemetry::drops_key(4, DropReason::from_int(71)),
            Meaning::SwitchDrops { switch: 4, reason: DropReason::from_int(71) },
        ),
        (
            telemetry::drops_key(4, DropReason::from_sflow(266)),
            Meaning::SwitchDrops { switch: 4, reason: DropReason::from_sflow(266) },
        ),
    ] {
        assert_eq!(directory.resolve_key(&key), Some(meaning));
    }
    assert_eq!(directory.resolve_key(&telemetry::hop_latency_key(&v4, 4)), None);
}

#[test]
fn long_keys_are_named_once_they_were_reported() {
    let mut directory = Directory::new(8);
    let v6 = flow("[2001:db8::1]:1->[2001:db8::2]:2/tcp");
    let hop = telemetry::hop_latency_key(&v6, 4);
    let reason = DropReason::from_sflow(295);
    let drops = telemetry::flow_drops_key(&v6, reason);
    directory.take(&TelemetryEntry::Key { key: hop, means: Means::Hop(v6.to_key(), 4) });
    directory.take(&TelemetryEntry::Key { key: drops, means: Means::Hop(v6.to_key(), reason.to_bits()) });
    let flow_key = v6.to_key();
    assert_eq!(directory.resolve_key(&hop), Some(Meaning::Hop { flow: None, flow_key, switch: 4 }));
    directory.take(&TelemetryEntry::Key { key: flow_key, means: Means::Flow(v6) });
    assert_eq!(directory.resolve_key(&hop), Some(Meaning::Hop { flow: Some(v6), flow_key, switch: 4 }));
    let meaning = directory.resolve_key(&drops).unwrap();
    assert_eq!(meaning, Meaning::FlowDrops { flow: Some(v6), flow_key, reason });
    assert_eq!(meaning.known_flow(), Some(v6));
    assert_eq!(directory.flow_of_key(&flow_key), Some(v6));
}

#[test]
fn what_falls_out_was_used_longest_ago_and_is_counted() {
    let mut directory = Directory::new(2);
    let keys: Vec<Key> = (0..3).map(|n| flow(&format!("10.0.0.{n}:1->10.0.0.9:2/udp")).to_key()).collect();
    directory.remember_key(keys[0], Means::Itself);
    directory.remember_key(keys[1], Means::Itself);
    directory.resolve_key(&keys[0]);
    directory.remember_key(keys[2], Means::Itself);
    assert_eq!(directory.known_keys().collect::<Vec<_>>(), [keys[2], keys[0]]);
    assert_eq!((directory.len(), directory.forgotten()), (2, 1));
    // Reported again, nothing is pushed out.
    directory.remember_key(keys[2], Means::Itself);
    assert_eq!((directory.len(), directory.forgotten()), (2, 1));
}

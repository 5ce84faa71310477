//! Paths on which a packet's buffer is rebuilt: its digest identifies it.

use dta_reporter::packet_trace::journey::Journeys;
use dta_reporter::packet_trace::kernel::TracerOptions;

use crate::bed::{Bed, collect, run, socket, tracer};
use crate::switch::Switch;

const PACKETS: usize = 100;

/// Sends packets and expects each at all points.
fn all_meet(near: &str, far: &str, addresses: (&str, &str), points: &[String]) {
    let (from, to) = (format!("{}:7001", addresses.0), format!("{}:7002", addresses.1));
    let sender = socket(near, &from);
    let receiver = socket(far, &to);
    sender.send_to(b"first", &to).unwrap();
    receiver.recv(&mut [0; 9]).unwrap();
    let table = dta_reporter::packet_trace::filter::compile_filter("udp dst port 7002").unwrap();
    let mut tracer = tracer(&TracerOptions { table, ..TracerOptions::default() }, points);
    for number in 0..PACKETS {
        sender.send_to(format!("packet {number:08}").as_bytes(), &to).unwrap();
        receiver.recv(&mut [0; 99]).unwrap();
    }
    let mut records = Vec::new();
    collect(&mut tracer, &mut records, |records| records.len() >= PACKETS * points.len());
    let mut journeys = Journeys::default();
    records.iter().for_each(|record| journeys.add_record(*record, 0));
    let lengths: Vec<_> = journeys.take_settled(0).iter().map(|journey| journey.records.len()).collect();
    assert_eq!(lengths, vec![points.len(); PACKETS]);
}

#[test]
#[ignore = "needs root and network namespaces"]
fn native_xdp_rebuilds_buffers_and_every_packet_is_matched() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.2.1/24"), (&far, "e0", "10.7.2.2/24"));
    let points = [
        format!("netns:{near}/iface:e0/egress"),
        format!("netns:{far}/xdp:e0"),
        format!("netns:{far}/iface:e0/ingress"),
    ];
    all_meet(&near, &far, ("10.7.2.1", "10.7.2.2"), &points);
}

#[test]
#[ignore = "needs root, network namespaces and openvswitch-switch"]
fn open_vswitch_in_user_space_replaces_buffers_and_every_packet_is_matched() {
    let mut bed = Bed::new();
    let [near, middle, far] = ["n", "m", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.3.1/24"), (&middle, "a", ""));
    bed.veth((&far, "e0", "10.7.3.2/24"), (&middle, "b", ""));
    // The switch takes packets with a packet socket and does not complete checksums.
    run(&format!(
        "ip netns exec {near} ethtool -K e0 tx off >/dev/null && ip netns exec {far} ethtool -K e0 tx off >/dev/null"
    ));
    let _switch = Switch::start(&middle, "netdev", ["a", "b"]);
    let points = [
        format!("netns:{near}/iface:e0/egress"),
        format!("netns:{middle}/iface:a/ingress"),
        format!("netns:{middle}/iface:b/egress"),
        format!("netns:{far}/iface:e0/ingress"),
    ];
    all_meet(&near, &far, ("10.7.3.1", "10.7.3.2"), &points);
}

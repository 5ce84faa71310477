//! Address translation by nftables: a packet stays one, by its buffer.

use dta_reporter::packet_trace::journey::Journeys;
use dta_reporter::packet_trace::kernel::TracerOptions;
use dta_reporter::packet_trace::record::flags;

use crate::bed::{Bed, collect, run, socket, tracer};

const PACKETS: usize = 100;

#[test]
#[ignore = "needs root, network namespaces and nftables"]
fn a_packet_is_followed_through_address_translation() {
    let mut bed = Bed::new();
    let [inside, router, outside] = ["i", "r", "o"].map(|name| bed.namespace(name));
    bed.veth((&inside, "e0", "10.7.4.1/24"), (&router, "in", "10.7.4.254/24"));
    bed.veth((&outside, "e0", "192.0.2.1/24"), (&router, "out", "192.0.2.254/24"));
    run(&format!(
        "ip -n {inside} route add default via 10.7.4.254 && ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1 &&
         ip netns exec {router} nft 'add table ip t; add chain ip t post {{ type nat hook postrouting priority 100; }};
            add rule ip t post oifname out masquerade'"
    ));
    let sender = socket(&inside, "10.7.4.1:7001");
    let receiver = socket(&outside, "192.0.2.1:7002");
    sender.send_to(b"first", "192.0.2.1:7002").unwrap();
    let (_, seen) = receiver.recv_from(&mut [0; 9]).unwrap();
    assert_eq!(seen.ip().to_string(), "192.0.2.254", "the router translates");

    // The filter names the address before translation: what it chose stays chosen.
    let table = dta_reporter::packet_trace::filter::compile_filter("udp and src host 10.7.4.1").unwrap();
    let points = [
        format!("netns:{inside}/iface:e0/egress"),
        format!("netns:{router}/iface:in/ingress"),
        format!("netns:{router}/iface:out/egress"),
        format!("netns:{outside}/iface:e0/ingress"),
    ];
    let mut tracer = tracer(&TracerOptions { table, ..TracerOptions::default() }, &points);
    for number in 0..PACKETS {
        sender.send_to(format!("packet {number:08}").as_bytes(), "192.0.2.1:7002").unwrap();
        receiver.recv(&mut [0; 99]).unwrap();
    }
    let mut records = Vec::new();
    collect(&mut tracer, &mut records, |records| records.len() >= 4 * PACKETS);
    let mut journeys = Journeys::default();
    records.iter().for_each(|record| journeys.add_record(*record, 0));
    let journeys = journeys.take_settled(0);
    assert_eq!(journeys.len(), PACKETS);
    for journey in &journeys {
        let way: Vec<_> = journey
            .records
            .iter()
            .map(|record| (record.point, record.flags & flags::TRANSLATED != 0))
            .collect();
        // The number of the inner interface's egress is 0; each `iface:…/SIDE` is one point.
        assert_eq!(way, [(0, false), (1, false), (2, true), (3, true)]);
        assert_eq!(journey.records[3].flow.src.to_string(), "192.0.2.254");
    }
}

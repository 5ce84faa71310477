//! Tracepoints at one interface: its queue, its driver, and what it receives.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dta_reporter::packet_trace::journey::Journeys;
use dta_reporter::packet_trace::kernel::{Tracer, TracerOptions};
use dta_reporter::packet_trace::point::At;
use dta_reporter::packet_trace::record::TraceRecord;

use crate::bed::{Bed, PATIENCE, collect, run, socket, tracer};
use crate::books::balance;

const PACKETS: usize = 100;

/// The points of each packet, in their order, with how many packets had them.
fn ways(records: &[TraceRecord]) -> HashMap<Vec<u16>, usize> {
    let mut journeys = Journeys::default();
    records.iter().for_each(|record| journeys.add_record(*record, 0));
    let mut ways = HashMap::new();
    for journey in journeys.take_settled(0) {
        *ways.entry(journey.records.iter().map(|record| record.point).collect()).or_default() += 1;
    }
    ways
}

fn wait_until(tracer: &mut Tracer, what: &str, holds: impl Fn(&Tracer) -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds(tracer) {
        assert!(Instant::now() < end, "{what}");
        tracer.wait_for_records(Duration::from_millis(10)).unwrap();
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_tracepoint_at_an_interface_sees_no_other_interface() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    // The first interface of both namespaces has the same index.
    let make = |bed: &Bed| bed.veth((&near, "e0", "10.7.11.1/24"), (&far, "e0", "10.7.11.2/24"));
    make(&bed);
    let table = dta_reporter::packet_trace::filter::compile_filter("udp port 7002").unwrap();
    let points = [
        format!("netns:{near}/iface:e0/queue"),
        format!("netns:{near}/iface:e0/driver"),
        format!("netns:{far}/iface:e0/receive"),
    ];
    let mut tracer = tracer(&TracerOptions { table, ..TracerOptions::default() }, &points);
    // There and back.
    let pass = |tracer: &mut Tracer, each: usize| {
        let here = socket(&near, "10.7.11.1:7001");
        let there = socket(&far, "10.7.11.2:7002");
        for number in 0..PACKETS {
            here.send_to(format!("there {number:08}").as_bytes(), "10.7.11.2:7002").unwrap();
            there.recv(&mut [0; 99]).unwrap();
            there.send_to(format!("back {number:08}").as_bytes(), "10.7.11.1:7001").unwrap();
            here.recv(&mut [0; 99]).unwrap();
        }
        let mut records = Vec::new();
        collect(tracer, &mut records, |records| records.len() >= each * PACKETS);
        ways(&records)
    };
    assert_eq!(pass(&mut tracer, 3), HashMap::from([(vec![0, 1, 2], PACKETS)]));
    assert!(tracer.read_books().unwrap().iter().all(|books| balance(&books.total)));

    // The same tracepoint for all interfaces beside: each packet is at one of the two points.
    let all = At::Tracepoint("net_dev_queue".into());
    assert_eq!(tracer.attach(&all).unwrap(), 3);
    assert_eq!(pass(&mut tracer, 4), HashMap::from([(vec![0, 1, 2], PACKETS), (vec![3], PACKETS)]));
    // Without it, it is as before; and so it is when the first point of a program goes.
    tracer.detach(&all);
    assert_eq!(pass(&mut tracer, 3), HashMap::from([(vec![0, 1, 2], PACKETS)]));
    tracer.detach(&points[0].parse().unwrap());
    assert_eq!(pass(&mut tracer, 2), HashMap::from([(vec![1, 2], PACKETS)]));
    // ARP is sent now and then, and is not an IP packet.
    let seen = |point: usize| tracer.read_books().unwrap()[point].total.seen as usize / PACKETS;
    assert_eq!([0, 1, 2, 3].map(seen), [3, 4, 4, 1]);

    // An interface that is recreated is seen again.
    run(&format!("ip -n {far} link del e0"));
    wait_until(&mut tracer, "the points lose their interfaces", |tracer| {
        tracer.points().iter().all(|point| !point.is_attached())
    });
    make(&bed);
    wait_until(&mut tracer, "the points are attached again", |tracer| {
        tracer.points()[1..3].iter().all(|point| point.is_attached())
    });
    assert_eq!(pass(&mut tracer, 2), HashMap::from([(vec![1, 2], PACKETS)]));
}

//! Features that most machines' kernels have and locked-down ones lack: kprobes and fentry; netem; Open
//! vSwitch; and interfaces without tcx. Run in `testbed/rxe-guest`, whose kernel is Debian's 6.1
//! (`run-tests`).
#![cfg(all(feature = "ebpf", target_os = "linux"))]

#[path = "live/bed.rs"]
mod bed;
#[path = "live/switch.rs"]
mod switch;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bed::{Bed, collect, run, socket, tracer};
use dta_reporter::packet_trace::journey::Journeys;
use dta_reporter::packet_trace::kernel::TracerOptions;
use dta_reporter::packet_trace::record::TraceRecord;

const PACKETS: usize = 50;

/// Two hosts with a wire between them, and a socket at each.
fn hosts(bed: &mut Bed) -> ([String; 2], UdpSocket, UdpSocket) {
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.9.1/24"), (&far, "e0", "10.7.9.2/24"));
    let (sender, receiver) = sockets(&near, &far);
    ([near, far], sender, receiver)
}

/// A socket at each host, between which one packet has passed.
fn sockets(near: &str, far: &str) -> (UdpSocket, UdpSocket) {
    let sender = socket(near, "10.7.9.1:7001");
    let receiver = socket(far, "10.7.9.2:7002");
    sender.send_to(b"first", "10.7.9.2:7002").unwrap();
    receiver.recv(&mut [0; 9]).unwrap();
    (sender, receiver)
}

fn options() -> TracerOptions {
    TracerOptions {
        table: dta_reporter::packet_trace::filter::compile_filter("udp dst port 7002").unwrap(),
        ..TracerOptions::default()
    }
}

fn pass(sender: &UdpSocket, receiver: &UdpSocket) {
    for number in 0..PACKETS {
        sender.send_to(format!("packet {number}").as_bytes(), "10.7.9.2:7002").unwrap();
        receiver.recv(&mut [0; 64]).unwrap();
    }
}

/// Traces this many packets at these points; returns the records of each packet in order.
fn traced(points: &[String], sender: &UdpSocket, receiver: &UdpSocket) -> Vec<Vec<TraceRecord>> {
    timed(points, sender, receiver).0
}

/// The same, and how long the packets took, one after the other.
fn timed(points: &[String], sender: &UdpSocket, receiver: &UdpSocket) -> (Vec<Vec<TraceRecord>>, Duration) {
    let mut tracer = tracer(&options(), points);
    let each = tracer.points().len();
    let begun = Instant::now();
    pass(sender, receiver);
    let took = begun.elapsed();
    let mut records = Vec::new();
    collect(&mut tracer, &mut records, |records| records.len() >= each * PACKETS);
    let mut journeys = Journeys::default();
    records.iter().for_each(|record| journeys.add_record(*record, 0));
    let journeys: Vec<_> = journeys.take_settled(0).into_iter().map(|journey| journey.records).collect();
    assert_eq!(journeys.len(), PACKETS);
    assert!(journeys.iter().all(|records| records.len() == each));
    (journeys, took)
}

#[test]
#[ignore = "needs root and a kernel with kprobes"]
fn functions_are_traced_by_fentry_and_by_kprobe() {
    let mut bed = Bed::new();
    let (_, sender, receiver) = hosts(&mut bed);
    let points = ["tp:netif_receive_skb", "fentry:ip_rcv", "kprobe:ip_rcv"].map(String::from);
    for records in traced(&points, &sender, &receiver) {
        assert_eq!(records[0].point, 0, "the tracepoint comes first");
        assert!(
            records.iter().all(|record| record.digest == records[0].digest && record.flow == records[0].flow)
        );
    }
}

#[test]
#[ignore = "needs root and a kernel with netem"]
fn a_delay_of_netem_is_measured() {
    const DELAY: f64 = 5e6;
    let mut bed = Bed::new();
    let ([near, _], sender, receiver) = hosts(&mut bed);
    run(&format!("tc -n {near} qdisc add dev e0 root netem delay 5ms"));
    let points = ["tp:net_dev_queue", "tp:net_dev_start_xmit"].map(String::from);
    let (journeys, took) = timed(&points, &sender, &receiver);
    let waits: Vec<u64> = journeys.iter().map(|records| records[1].time - records[0].time).collect();
    // The kernel's timer is never early, and late when the machine does other things. One packet waits at a time.
    assert!(waits.iter().all(|wait| *wait as f64 >= 0.9 * DELAY), "{waits:?}");
    assert!(u128::from(waits.iter().sum::<u64>()) <= took.as_nanos(), "{waits:?} in {took:?}");
}

#[test]
#[ignore = "needs root and a kernel without tcx"]
fn without_tcx_interfaces_are_traced_by_clsact() {
    let mut bed = Bed::new();
    let ([near, far], sender, receiver) = hosts(&mut bed);
    let filters =
        || ["ingress", "egress"].map(|side| run(&format!("tc -n {near} filter show dev e0 {side} || true")));
    let points = [format!("netns:{near}/iface:e0"), format!("netns:{far}/iface:e0/ingress")];
    {
        let tracer = tracer(&options(), &points);
        assert!(filters().iter().all(|text| text.contains("direct-action")), "{:?}", filters());
        assert_eq!(tracer.points().len(), 3);
    }
    assert!(filters().iter().all(|text| !text.contains("direct-action")), "they are taken away");
    let points = [format!("netns:{near}/iface:e0/egress"), format!("netns:{far}/iface:e0/ingress")];
    for records in traced(&points, &sender, &receiver) {
        assert_eq!([records[0].point, records[1].point], [0, 1]);
    }
}

#[test]
#[ignore = "needs root, openvswitch-switch and its kernel module"]
fn packets_through_the_kernel_s_open_vswitch_are_matched() {
    run("modprobe openvswitch");
    let mut bed = Bed::new();
    let [near, middle, far] = ["n", "m", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.9.1/24"), (&middle, "a", ""));
    bed.veth((&far, "e0", "10.7.9.2/24"), (&middle, "b", ""));
    let _switch = switch::Switch::start(&middle, "system", ["a", "b"]);
    let (sender, receiver) = sockets(&near, &far);
    let points = [
        format!("netns:{near}/iface:e0/egress"),
        format!("netns:{middle}/iface:a/ingress"),
        format!("netns:{middle}/iface:b/egress"),
        format!("netns:{far}/iface:e0/ingress"),
    ];
    for records in traced(&points, &sender, &receiver) {
        let way: Vec<u16> = records.iter().map(|record| record.point).collect();
        assert_eq!(way, [0, 1, 2, 3]);
    }
}

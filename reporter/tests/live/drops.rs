//! A slow queue: what it drops is reported with its reason, and how long packets wait in it.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::RangeInclusive;

use dta_reporter::packet_trace::journey::{Journey, Journeys};
use dta_reporter::packet_trace::kernel::TracerOptions;
use dta_reporter::packet_trace::record::flags;

use crate::bed::{Bed, collect, collect_reported, run, socket, tracer};

const PACKETS: usize = 400;
/// Bytes on the wire of each packet, 1,000 of them UDP payload.
const FRAME: u64 = 1042;
const QUEUE: u64 = 30;
/// So few that a slow machine, too, sends faster than the queue drains.
const BITS_A_SECOND: u64 = 1_000_000;

/// How many of `all` may have been reported.
fn all_but(unreported: usize, all: usize) -> RangeInclusive<usize> {
    all.saturating_sub(unreported)..=all
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_queue_drops_as_many_packets_as_are_reported_with_its_reason() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.1.1/24"), (&far, "e0", "10.7.1.2/24"));
    run(&format!(
        "tc -n {near} qdisc add dev e0 root handle 1: htb default 1 &&
         tc -n {near} class add dev e0 parent 1: classid 1:1 htb rate {BITS_A_SECOND}bit burst 2k cburst 2k &&
         tc -n {near} qdisc add dev e0 parent 1:1 handle 2: pfifo limit {QUEUE}"
    ));
    let sender = socket(&near, "10.7.1.1:7001");
    let receiver = socket(&far, "10.7.1.2:7002");
    sender.send_to(b"first", "10.7.1.2:7002").unwrap();
    receiver.recv(&mut [0; 9]).unwrap();
    // If sending is as fast as the queue drains, more is sent than a receiver's buffer holds, which drops
    // too.
    std::thread::spawn(move || while receiver.recv(&mut [0; 9]).is_ok() {});

    let table = dta_reporter::packet_trace::filter::compile_filter("udp dst port 7002").unwrap();
    let points = ["tp:net_dev_queue", "tp:net_dev_start_xmit", "tp:kfree_skb"].map(String::from);
    let mut tracer = tracer(&TracerOptions { table, ..TracerOptions::default() }, &points);
    for number in 0..PACKETS {
        let mut payload = [7; 1000];
        payload[..8].copy_from_slice(&number.to_be_bytes());
        // A datagram's sender also gets an error for the queue's drop.
        let _ = sender.send_to(&payload, "10.7.1.2:7002");
    }
    let leaf = || {
        let statistics = run(&format!("tc -n {near} -s qdisc show dev e0"));
        statistics.split_once("pfifo 2:").expect("tc shows the leaf").1.to_owned()
    };
    let mut records = Vec::new();
    collect(&mut tracer, &mut records, |_| leaf().contains("backlog 0b 0p"));
    // Each packet ends by leaving, or by being dropped.
    let unreported = collect_reported(&mut tracer, &mut records, |records, unreported| {
        records.iter().filter(|record| record.point > 0).count() + unreported >= PACKETS
    });

    let drops: Vec<_> = records.iter().filter(|record| record.flags & flags::DROPPED != 0).collect();
    let statistics = leaf();
    let dropped = statistics.split("dropped ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
    let dropped: usize = dropped.expect("tc counts drops");
    assert!(dropped > unreported, "{statistics}");
    assert!(
        all_but(unreported, dropped).contains(&drops.len()),
        "{} reported, {unreported} unreported: {statistics}",
        drops.len()
    );
    let mut reasons: HashMap<String, usize> = HashMap::new();
    drops
        .iter()
        .for_each(|record| *reasons.entry(tracer.kernel().reason_name(record.reason)).or_default() += 1);
    assert_eq!(reasons, HashMap::from([("QDISC_DROP".to_owned(), drops.len())]));

    let mut journeys = Journeys::default();
    records.iter().for_each(|record| journeys.add_record(*record, 0));
    let journeys = journeys.take_settled(0);
    assert!(all_but(unreported, PACKETS).contains(&journeys.len()), "{}", journeys.len());
    let left: Vec<_> = journeys
        .iter()
        .filter(|journey| journey.records.last().is_some_and(|last| last.point == 1))
        .collect();
    // One found a full queue, and waited until what was before it had left. On a busy machine, another may have waited longer.
    let leaves = |journey: &Journey| journey.records.last().map_or(0, |record| record.time);
    let before = |of: &Journey| {
        let waited = of.records[0].time..leaves(of);
        left.iter().filter(|journey| waited.contains(&leaves(journey))).count() as u64
    };
    let last = left.iter().max_by_key(|journey| before(journey)).expect("some packets left");
    let before = before(last);
    let queue = QUEUE.saturating_sub(unreported as u64).max(2);
    assert!((queue - 1..=QUEUE + 1).contains(&before), "{before} packets left before it");
    // Two of them may leave at once. On a busy machine everything takes longer.
    let least = (queue - 2) * FRAME * 8 * 1_000_000_000 / BITS_A_SECOND;
    assert!(last.total_duration() >= least, "it waited {} ns, of {least} at least", last.total_duration());
    // Flows are counted where packets are dropped.
    let flow = records[0].flow;
    let counted: u64 = tracer
        .read_flows()
        .unwrap()
        .iter()
        .filter(|(at, _)| at.flow == flow)
        .map(|(_, count)| count.drops)
        .sum();
    assert!(
        all_but(unreported, dropped).contains(&(counted as usize)),
        "{counted} counted, {unreported} unreported: {statistics}"
    );
}

#[test]
#[ignore = "needs root and network namespaces"]
fn what_a_full_receive_buffer_drops_is_reported_with_its_own_reason() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.2.1/24"), (&far, "e0", "10.7.2.2/24"));
    let sender = socket(&near, "10.7.2.1:7001");
    let receiver = socket(&far, "10.7.2.2:7002");
    sender.send_to(b"first", "10.7.2.2:7002").unwrap();
    receiver.recv(&mut [0; 9]).unwrap();

    let table = dta_reporter::packet_trace::filter::compile_filter("udp dst port 7002").unwrap();
    let mut tracer =
        tracer(&TracerOptions { table, ..TracerOptions::default() }, &["tp:kfree_skb".to_owned()]);
    for _ in 0..PACKETS {
        sender.send_to(&[7; 1000], "10.7.2.2:7002").unwrap();
    }
    let mut records = Vec::new();
    collect(&mut tracer, &mut records, |records| !records.is_empty());
    // What does not wait in the buffer was dropped: no link and no queue drops here.
    receiver.set_nonblocking(true).unwrap();
    let kept = Cell::new(0);
    let dropped = || -> usize {
        // The last column of the socket's line.
        let sockets = run(&format!("ip netns exec {far} cat /proc/net/udp"));
        let line = sockets.lines().find(|line| line.contains(":1B5A ")).expect("a socket of port 7002");
        line.split_whitespace().next_back().and_then(|drops| drops.parse().ok()).expect("a number of drops")
    };
    collect(&mut tracer, &mut records, |_| {
        kept.set(kept.get() + std::iter::from_fn(|| receiver.recv(&mut [0; 9]).ok()).count());
        kept.get() + dropped() >= PACKETS
    });
    let dropped = dropped();
    assert_eq!(kept.get() + dropped, PACKETS);
    assert!(dropped > 0);
    let unreported = collect_reported(&mut tracer, &mut records, |records, unreported| {
        records.len() + unreported >= dropped
    });
    assert!(
        all_but(unreported, dropped).contains(&records.len()),
        "{dropped} dropped, {} reported, {unreported} unreported",
        records.len()
    );
    for record in &records {
        assert_eq!(tracer.kernel().reason_name(record.reason), "SOCKET_RCVBUFF");
    }
}

/// Sends an IPv4 datagram behind two VLAN tags, so often.
const SEND_TAGGED: &str = "\
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(('e0', 0))
payload = bytes([7]) * 100
udp = bytes.fromhex('1b591b64006c0000') + payload
ip = bytes.fromhex('450000800001000040110000') + bytes([10, 7, 4, 1, 10, 7, 4, 2])
frame = b'\\xff' * 6 + b'\\x02' * 6 + bytes.fromhex('88a8000a810000140800') + ip + udp
for _ in range(int(sys.argv[1])):
    link.send(frame)";

#[test]
#[ignore = "needs root and network namespaces"]
fn a_dropped_packet_with_two_vlan_tags_is_a_drop_of_its_flow() {
    const SENT: usize = 20;
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    bed.veth((&near, "e0", "10.7.3.1/24"), (&far, "e0", "10.7.3.2/24"));
    let table = dta_reporter::packet_trace::filter::compile_filter("udp dst port 7012").unwrap();
    let mut tracer =
        tracer(&TracerOptions { table, ..TracerOptions::default() }, &["tp:kfree_skb".to_owned()]);
    // The other host has no such VLANs: it drops what comes.
    let mut sender = std::process::Command::new("ip");
    sender.args(["netns", "exec", &near, "python3", "-c", SEND_TAGGED, &SENT.to_string()]);
    assert!(sender.status().expect("python runs").success());
    let mut records = Vec::new();
    let unreported =
        collect_reported(&mut tracer, &mut records, |records, unreported| records.len() + unreported >= SENT);
    assert!(all_but(unreported, SENT).contains(&records.len()), "{} of {SENT}", records.len());
    let flow = "10.7.4.1:7001->10.7.4.2:7012/udp".parse().unwrap();
    assert!(records.iter().all(|record| record.flow == flow), "{records:?}");
}

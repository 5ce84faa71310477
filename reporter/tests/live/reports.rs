//! A tracer whose records leave as reports over what it traces.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use dta_reporter::packet_trace::kernel::{Tracer, TracerOptions};

use crate::bed::{Bed, PATIENCE, collect, run, socket, tracer};
use crate::books::balance;

const PACKETS: usize = 40;
const TRANSLATOR: &str = "10.7.13.2:40040";

struct Ways {
    bed: Bed,
    far: String,
    user: UdpSocket,
    reporter: UdpSocket,
    points: Vec<String>,
}

/// A veth pair; a user and a reporter at one end, the translator's address at the other.
fn ways() -> Ways {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    for namespace in [&near, &far] {
        run(&format!(
            "ip netns exec {namespace} sysctl -qw net.ipv6.conf.default.disable_ipv6=1 net.ipv4.icmp_ratelimit=0"
        ));
    }
    bed.veth((&near, "e0", "10.7.13.1/24"), (&far, "e0", "10.7.13.2/24"));
    let points = ["iface:e0", "iface:e0/queue"].map(|point| format!("netns:{near}/{point}"));
    let mut points = Vec::from(points);
    points.extend(["iface:e0/ingress", "xdp:e0", "iface:e0/receive"].map(|at| format!("netns:{far}/{at}")));
    let (user, reporter) = (socket(&near, "10.7.13.1:7001"), socket(&near, "10.7.13.1:7003"));
    Ways { bed, far, user, reporter, points }
}

fn books(tracer: &Tracer) -> HashMap<String, (u64, u64)> {
    let all = tracer.points().iter().zip(tracer.read_books().unwrap());
    all.map(|(point, books)| {
        assert!(balance(&books.total), "{}: {:?}", point.at, books.total);
        let at = point.at.to_string();
        let (_, at) = at.split_once('/').unwrap();
        let side = if point.at.to_string().contains("f/") { "far" } else { "near" };
        (format!("{side} {at}"), (books.total.reported, books.total.own))
    })
    .collect()
}

#[test]
#[ignore = "needs root and network namespaces"]
fn what_comes_of_reports_is_left_out_at_every_point() {
    let Ways { bed: _bed, far, user, reporter, points } = ways();
    let sink = socket(&far, "10.7.13.2:7002");
    let translator = TRANSLATOR.parse().unwrap();
    for (filter, follow) in [("", true), ("", false), ("udp or icmp", true), ("udp or icmp", false)] {
        let table = dta_reporter::packet_trace::filter::compile_filter(filter).unwrap();
        let options =
            TracerOptions { translator: Some(translator), follow, table, ..TracerOptions::default() };
        let mut tracer = tracer(&options, &points);
        for number in 0..PACKETS {
            // Nobody listens there: the report comes back in an ICMP message.
            let report = format!("a report of more than 32 bytes, and its number: {number:08}");
            let _ = reporter.send_to(report.as_bytes(), translator);
            let frame = format!("a RoCEv2 frame, or its acknowledgement, number {number:08}");
            let _ = reporter.send_to(frame.as_bytes(), "10.7.13.2:4791");
            user.send_to(format!("a user's datagram, number {number:016}").as_bytes(), "10.7.13.2:7002")
                .unwrap();
            sink.recv(&mut [0; 99]).unwrap();
        }
        let nack = socket(&far, TRANSLATOR);
        for number in 0..PACKETS {
            nack.send_to(
                format!("NACK {number:08}, padded to the least length").as_bytes(),
                "10.7.13.1:7003",
            )
            .unwrap();
            while reporter.recv(&mut [0; 99]).is_err() {}
        }
        let mut records = Vec::new();
        collect(&mut tracer, &mut records, |records| records.len() >= 5 * PACKETS);
        for record in &records {
            assert_eq!(record.flow.dport, 7002, "{filter:?}: {:?}", record.flow);
        }
        let (n, books) = (PACKETS as u64, books(&tracer));
        for point in [
            "near iface:e0/egress",
            "near iface:e0/queue",
            "far iface:e0/ingress",
            "far xdp:e0",
            "far iface:e0/receive",
        ] {
            assert_eq!(books[point], (n, 2 * n), "{filter:?}, {follow}: {point}: {books:?}");
        }
        // NACKs, and what says that nobody listened; the kernel does not send that for each datagram.
        let (reported, own) = books["near iface:e0/ingress"];
        assert!(reported == 0 && own > n, "{books:?}");
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn reports_over_a_traced_interface_make_no_reports() {
    let Ways { bed: _bed, user, reporter, points, .. } = ways();
    let options = TracerOptions { translator: Some(TRANSLATOR.parse().unwrap()), ..TracerOptions::default() };
    let mut tracer = tracer(&options, &points);
    for number in 0..PACKETS {
        user.send_to(format!("a user's datagram, number {number:016}").as_bytes(), "10.7.13.2:7002").unwrap();
    }
    let (mut all, mut quiet) = (0, 0);
    let until = Instant::now() + PATIENCE;
    // Five records per datagram, and perhaps the ICMP message that nobody listens there; and then no more.
    while all < 5 * PACKETS || quiet < 200 {
        assert!(Instant::now() < until, "{all} records");
        let before = all;
        tracer.read(|_| {
            all += 1;
            let _ = reporter.send_to(&[7; 60], TRANSLATOR);
        });
        quiet = if all > before { 0 } else { quiet + 1 };
        assert!(all <= 6 * PACKETS, "{all} records");
        tracer.wait_for_records(Duration::from_millis(5)).unwrap();
    }
}

#[test]
#[ignore = "needs root and network namespaces"]
fn reading_ends_though_records_come_faster() {
    let Ways { bed: _bed, user, points, .. } = ways();
    let options = TracerOptions { ring: 1 << 16, ..TracerOptions::default() };
    let mut tracer = tracer(&options, &points);
    // The neighbour is known once it has come: from then on, a datagram's records are there when it is sent.
    user.send_to(b"first", "10.7.13.2:7002").unwrap();
    collect(&mut tracer, &mut Vec::new(), |records| records.iter().any(|record| record.flow.dport == 7002));
    let _ = user.send_to(b"second", "10.7.13.2:7002");
    let mut all = 0;
    let read = tracer.read(|_| {
        all += 1;
        assert!(all < 10_000, "it does not end");
        // Each makes more than one.
        let _ = user.send_to(&[7; 60], "10.7.13.2:7002");
    });
    assert!(read > 100 && read <= (1 << 16) / 104, "{read}");
}

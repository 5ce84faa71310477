//! Reads the captures of INT reports that other projects' generators made. They lie outside the repository, in
//! `$DTA_CAPTURES/int` (default `../shared/data`); without them the tests say so and pass, except in CI.

#[path = "../../../testbed/tests/shared/captures.rs"]
mod beside;

use std::collections::BTreeMap;
use std::path::Path;

use dta_proto::wire::{ethernet, ipv4, udp};
use dta_telemetry::int::{
    DatagramSource, Dialect, IntReport, IntSettings, ReportVersion, Time, parse_reports,
};

use beside::captures;

/// The UDP payloads of a little-endian classic pcap with microseconds.
fn payloads(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(20)), (0xa1b2_c3d4, 1), "a pcap of Ethernet");
    let mut payloads = Vec::new();
    let mut at = 24;
    while at < bytes.len() {
        let len = word(at + 8) as usize;
        let frame = ethernet::EthernetFrame::new_checked(&bytes[at + 16..at + 16 + len]).unwrap();
        let packet = ipv4::Ipv4Packet::new_checked(frame.payload()).unwrap();
        payloads.push(udp::UdpPacket::new_checked(packet.payload()).unwrap().payload().to_vec());
        at += 16 + len;
    }
    payloads
}

/// Parses every report of a capture, first as its sender's and then by a guess, and passes it on. All must be
/// complete and equal both times.
fn each(file: &str, dialect: Dialect, mut look: impl FnMut(DatagramSource, IntReport<'_>)) -> usize {
    let Some(folder) = captures(file, "int") else { return 0 };
    let payloads = payloads(&folder.join(file));
    assert!(!payloads.is_empty());
    for payload in &payloads {
        let read = |dialect| {
            let mut reports =
                parse_reports(payload, &IntSettings { dialect, ..IntSettings::default() }).unwrap();
            let (source, report) = (reports.datagram_source(), reports.next().unwrap().unwrap());
            assert!(reports.next().is_none());
            assert_eq!(report.packet.as_ref().err(), None);
            (source, report)
        };
        let (source, report) = read(dialect);
        let (_, guessed) = read(Dialect::Auto);
        assert_eq!(format!("{report:?}"), format!("{guessed:?}"));
        look(source, report);
    }
    payloads.len()
}

/// Switches of all hops, in the order in which the packet passed them.
fn path(report: &IntReport<'_>) -> Vec<u32> {
    let mut path: Vec<_> = report.hops_with_switches().filter_map(|(switch, _)| switch).collect();
    path.reverse();
    path
}

#[test]
fn three_reports_of_v10() {
    let mut seen = Vec::new();
    let n = each("int-v1.0-three-reports.pcap", Dialect::IntCollector, |_, report| {
        assert_eq!(report.version, ReportVersion::V10);
        assert_eq!(report.packet.unwrap().flow.to_string(), "10.0.0.1:5000->10.0.0.2:5000/udp");
        let hops: Vec<_> = report.hops_with_switches().map(|(_, hop)| hop).collect();
        let latency: u64 = hops.iter().map(|hop| hop.node_latency().unwrap()).sum();
        let (queue, congestion) = (hops[0].queue_fill(), hops[0].congestion());
        assert_eq!((queue.id, congestion.id), (Some(5), Some(5)));
        assert_eq!((hops[0].ingress_port(), hops[0].egress_port()), (Some(5), Some(3)));
        let newest = [queue.value, congestion.value, hops[0].utilization()].map(Option::unwrap);
        seen.push((path(&report), latency, hops[0].node_latency().unwrap(), newest));
    });
    if n != 0 {
        let path = vec![6, 5, 4];
        assert_eq!(seen[0], (path.clone(), 408, 400, [600, 1000, 1]));
        assert_eq!(seen[1], (path.clone(), 408, 400, [600, 1000, 1]));
        assert_eq!(seen[2], (path, 12, 4, [6, 10, 1000]));
    }
}

/// All eight fields of six hops, newest first: what the generator counts up.
fn six_hops(file: &str, version: ReportVersion, first: u32) {
    let mut flows = std::collections::BTreeSet::new();
    let n = each(file, Dialect::IntCollector, |_, report| {
        assert_eq!(report.version, version);
        flows.insert(report.packet.unwrap().flow.to_key());
        let hops: Vec<_> = report.hops_with_switches().collect();
        assert_eq!(hops.len(), 6);
        for (n, (switch, hop)) in (0..).zip(hops) {
            assert_eq!(switch, Some(first + n));
            assert_eq!((hop.ingress_port(), hop.egress_port()), (Some(2), Some(3)));
            assert_eq!(hop.node_latency(), Some(u64::from(4 + n)));
            assert_eq!((hop.queue_fill().id, hop.queue_fill().value), (Some(5), Some(6)));
            assert_eq!(hop.ingress_time(), Some(Time::Short(7 + n)));
            assert_eq!(hop.egress_time(), Some(Time::Short(0x5ad9_f940)));
            assert_eq!((hop.congestion().id, hop.congestion().value), (Some(5), Some(10 + n)));
            assert_eq!(hop.utilization(), Some(11 + n));
        }
    });
    assert!(n == 0 || (n == 100 && flows.len() == 100), "{n} reports of {} flows", flows.len());
}

#[test]
fn six_hops_with_all_fields_of_v05() {
    six_hops("int-v0.5-6-hops-all-fields.pcap", ReportVersion::V05, 0);
}

#[test]
fn six_hops_with_all_fields_of_v10() {
    six_hops("int-v1.0-6-hops-all-fields.pcap", ReportVersion::V10, 1);
}

#[test]
fn paths_of_a_thousand_flows() {
    let mut paths = BTreeMap::new();
    let n = each("int-v0.5-1000-flows-paths.pcap", Dialect::IntCollector, |_, report| {
        paths.insert(report.packet.unwrap().flow, path(&report));
    });
    assert!(n == 0 || paths.len() == 1000);
    assert!(paths.values().all(|path| *path == [5, 4, 3, 2, 1, 0]));
}

#[test]
fn latencies_of_the_third_hop() {
    let mut latencies = Vec::new();
    let n = each("int-v0.5-latency-events.pcap", Dialect::IntCollector, |_, report| {
        let hops: Vec<_> =
            report.hops_with_switches().map(|(switch, hop)| (switch, hop.node_latency())).collect();
        assert_eq!((hops[0], hops[1]), ((Some(4), Some(40)), (Some(5), Some(41))));
        assert_eq!(hops[2].0, Some(6));
        latencies.push(hops[2].1.unwrap());
    });
    if n != 0 {
        assert_eq!((n, latencies[0], latencies[1]), (100, 200, 202));
        assert!(latencies.windows(2).any(|pair| pair[0] >> 6 != pair[1] >> 6), "{latencies:?}");
    }
}

#[test]
fn sdfabric_flows_queues_and_drops() {
    let (mut drops, mut kinds) = (BTreeMap::new(), [0; 3]);
    let mut numbers: BTreeMap<_, Vec<u32>> = BTreeMap::new();
    let n = each("sdfabric-v0.5-real-traffic.pcap", Dialect::SdFabric, |source, report| {
        let switch = source.switch.unwrap();
        numbers.entry((switch, source.hardware)).or_default().push(source.sequence);
        if report.flags.dropped {
            *drops.entry((switch, report.local.drop_reason().unwrap().number())).or_insert(0) += 1;
            kinds[0] += 1;
        } else {
            assert!(report.flags.tracked && report.local.node_latency().is_some());
            kinds[if report.flags.congested { 1 } else { 2 }] += 1;
        }
    });
    if n != 0 {
        assert_eq!((n, kinds), (3579, [21, 38, 3520]));
        let expected = [
            ((3, 26), 1),
            ((3, 29), 4),
            ((3, 71), 1),
            ((3, 89), 1),
            ((3, 129), 1),
            ((3, 130), 1),
            ((3, 131), 2),
            ((3, 133), 1),
            ((4, 26), 2),
            ((4, 29), 2),
            ((4, 89), 1),
            ((4, 130), 1),
            ((4, 131), 2),
            ((4, 133), 1),
        ];
        assert_eq!(drops.into_iter().collect::<Vec<_>>(), expected);
        for (source, numbers) in numbers {
            assert!(numbers.iter().zip(1..).all(|(number, n)| *number == n), "{source:?}");
        }
    }
}

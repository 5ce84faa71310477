//! The specifications' own examples, the encoder's output, and nearly valid bytes.
//!
//! The examples of Telemetry Report v2.0 and INT v2.1 are drawings with names in their fields: the numbers in
//! those fields are ours. No captures of these two versions are available, so only the drawings and the
//! encoder test them; v0.5 and v1.0 are tested on captures too (`tests/int_captures.rs`).

use proptest::prelude::*;

use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::wire::{Layer, WireErrorKind, ipv4};
use dta_telemetry::int::emit::{self, Carrier, Hop, Local, Variant};
use dta_telemetry::int::*;

fn flow(text: &str) -> Flow {
    text.parse().unwrap()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn only<'a>(bytes: &'a [u8], settings: &IntSettings) -> (DatagramSource, IntReport<'a>) {
    let mut reports = parse_reports(bytes, settings).unwrap();
    let report = reports.next().unwrap().unwrap();
    assert!(reports.next().is_none());
    (reports.datagram_source(), report)
}

/// An IPv4 header from 10.0.0.1 to 10.0.0.2.
fn ip(protocol: u32, length: u32) -> Vec<u32> {
    vec![0x4500_0000 | length, 0x0001_0000, 0x4000_0000 | protocol << 16, 0x0a00_0001, 0x0a00_0002]
}

/// A TCP header from port 5000 to 80.
const TCP: [u32; 5] = [0x1388_0050, 0, 0, 0x5010_2000, 0];
/// A UDP destination port that says "INT", which the specification leaves open.
const INT_PORT: u32 = 0x7ffe;

/// Telemetry Report v2.0, "Example with Baseline Metadata and Truncated IPv4".
#[test]
fn report_v20_with_baseline_metadata() {
    let group = [2 << 28 | 5 << 22 | 0x01_2345, 3];
    let head = [0x140e_0220, 0x5000_0000, 0, 0x0003_0004, 0x0500_0258];
    let bytes = words(&[&group[..], &head, &ip(6, 1000), &TCP].concat());
    assert_eq!(bytes.len(), 8 + 4 + 14 * 4, "as long as the example says");
    for dialect in [Dialect::Auto, Dialect::V20] {
        let (source, report) = only(&bytes, &IntSettings { dialect, ..IntSettings::default() });
        assert_eq!(
            source,
            DatagramSource { switch: Some(3), hardware: 5, sequence: 0x01_2345, sequence_bits: 22 }
        );
        assert_eq!((report.version, report.switch), (ReportVersion::V20, Some(3)));
        assert_eq!(report.flags, Flags { tracked: true, ..Flags::default() });
        assert_eq!((report.local.ingress_port(), report.local.egress_port()), (Some(3), Some(4)));
        assert_eq!(report.local.queue_fill(), Fill { id: Some(5), value: Some(600) });
        assert_eq!((report.local.node_latency(), report.local.drop_reason()), (None, None));
        let packet = report.packet.unwrap();
        assert_eq!((packet.flow, packet.length), (flow("10.0.0.1:5000->10.0.0.2:80/tcp"), 1000));
        assert!(packet.stack.is_none());
        assert_eq!(report.hops_with_switches().map(|(switch, _)| switch).collect::<Vec<_>>(), [Some(3)]);
    }
}

/// Telemetry Report v2.0, the example with domain metadata, extension data and a packet in TLVs. The drawing
/// says a metadata length of 2 where three words are drawn; by the text it is 3.
#[test]
fn report_v20_with_domain_metadata_and_tlvs() {
    let head = [0x1112_0320, 0x5000_abcd, 0x8000_0007, 0x0003_0004, 0x0500_0258, 0xdddd_dddd];
    let tlvs = [0x0001_0009, 0xeeee_eeee, 0x200a_0000];
    let bytes = words(&[&[2 << 28, 3][..], &head, &tlvs, &ip(6, 40), &TCP].concat());
    let (_, report) = only(&bytes, &IntSettings::default());
    assert_eq!(report.local.queue_fill(), Fill { id: Some(5), value: Some(600) });
    assert_eq!(report.packet.unwrap().flow, flow("10.0.0.1:5000->10.0.0.2:80/tcp"));
}

/// Telemetry Report v2.0, "Example with Embedded INT-MD in a TCP Packet"; its inside is INT v2.1, "Example with new
/// UDP header and INT-MD inserted before TCP".
#[test]
fn report_v20_with_int_before_tcp() {
    let head = [0x1417_0120, 0x1000_0000, 0, 0x0500_0003];
    let udp = [0x9999_0000 | INT_PORT, 0x0044_0000];
    let int = [0x1807_0006, 0x2000_0206, 0x9000_0000, 0];
    let stack = [2, 0x0500_0002, 1, 0x0500_0001];
    let bytes = words(&[&[2 << 28, 3][..], &head, &ip(17, 80), &udp, &int, &stack, &TCP].concat());
    assert_eq!(bytes.len(), 8 + 4 + 23 * 4, "as long as the example says");
    for mark in [Mark::ByDialect, Mark::Port(INT_PORT as u16), Mark::Always] {
        let (_, report) = only(&bytes, &IntSettings { mark, ..IntSettings::default() });
        let packet = report.packet.unwrap();
        assert_eq!(packet.flow, flow("10.0.0.1:5000->10.0.0.2:80/tcp"), "the flow as host 1 sent it");
        let hops: Vec<_> =
            report.hops_with_switches().map(|(switch, hop)| (switch, hop.queue_fill().value)).collect();
        assert_eq!(hops, [(Some(3), Some(3)), (Some(2), Some(2)), (Some(1), Some(1))], "newest first");
    }
    let (_, without) = only(&bytes, &IntSettings { mark: Mark::Port(9), ..IntSettings::default() });
    assert!(without.packet.unwrap().stack.is_none());
}

/// Telemetry Report v2.0, "Example with Embedded INT-MD over UDP in a VXLAN Packet". The drawing's shim length (7)
/// is that of two hops, where three are drawn and counted in the report's length: 9.
#[test]
fn report_v20_with_int_over_udp_and_vxlan() {
    let udp = [0xddd5_0000 | INT_PORT, 0x0070_0000];
    let int = [0x1409_0000 | 4789, 0x2000_0205, 0xc000_0000, 0];
    let stack = [3, 0x0001_0002, 2, 0x0003_0004, 1, 0x0005_0006];
    let outer = [0x4500_0084, 0, 0x4011_0000, 0xc0a8_0101, 0xc0a8_0202];
    let mut bytes = words(&[&[2 << 28, 3, 0x0421_0020][..], &outer, &udp, &int, &stack].concat());
    bytes.extend(words(&[0x0800_0000, 77 << 8]));
    bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    bytes.extend(words(&[0x4500_0028, 0, 0x4006_0000, 0x0a0a_0101, 0x0a0a_0202]));
    bytes.extend(words(&TCP));
    // The example counts 4 words for Ethernet's 14 bytes.
    bytes.extend([0, 0]);
    assert_eq!(bytes.len(), 8 + 4 + 33 * 4);
    let (_, report) = only(&bytes, &IntSettings::default());
    assert!(!report.local.is_hop());
    let packet = report.packet.unwrap();
    assert_eq!(packet.flow, flow("192.168.1.1:56789->192.168.2.2:4789/udp"), "the old port is back");
    let inner = flow("10.10.1.1:5000->10.10.2.2:80/tcp");
    assert_eq!(packet.tunnel, Some(Tunnel { kind: TunnelKind::Vxlan(77), flow: inner }));
    assert_eq!(*packet.inner_flow(), inner);
    let hops: Vec<_> = report.hops_with_switches().map(|(switch, hop)| (switch, hop.egress_port())).collect();
    assert_eq!(hops, [(Some(3), Some(2)), (Some(2), Some(4)), (Some(1), Some(6))]);
}

/// INT v2.1 in a v1.0 report: "Example with INT-MD over TCP", marked by DSCP 0x17.
#[test]
fn int_v21_over_tcp_by_dscp() {
    let mut ip = ip(6, 100);
    ip[0] |= 0x17 << 18;
    let int = [0x1007_0000, 0x2000_0206, 0x9000_0000, 0, 2, 0x0500_0002, 1, 0x0500_0001, 0x6162_6364];
    let report = [0x1420_0040, 9, 1, 0x0000_1000];
    let bytes = words(&[&report[..], &ip, &TCP, &int].concat());
    let dscp = Mark::Dscp { value: 0x17, mask: 0x3f };
    let (source, report) = only(&bytes, &IntSettings { mark: dscp, ..IntSettings::default() });
    assert_eq!((source.switch, source.sequence, source.sequence_bits), (Some(9), 1, 32));
    assert_eq!(report.hops_with_switches().filter_map(|(switch, _)| switch).collect::<Vec<_>>(), [2, 1]);
    let other = Mark::Dscp { value: 0x18, mask: 0x3f };
    let (_, report) = only(&bytes, &IntSettings { mark: other, ..IntSettings::default() });
    assert_eq!(report.hops_with_switches().count(), 0);
}

/// INT v2.1, "Example with INT-MD including domain specific source-only metadata".
#[test]
fn int_v21_with_source_only_metadata() {
    let of = |words| IntSettings { mark: Mark::Always, source_only_words: words, ..IntSettings::default() };
    // Transparent Security's domain, whose words are known, and another.
    for (domain, setting, hops) in [(0x5453, 2, 3), (0x5453, 0, 3), (0x5454, 2, 3), (0x5454, 0, 0)] {
        let head = [0x1008_0000, 0x2000_0105, 0x8000_0000 | domain, 0x8000_4000];
        let int = [&head[..], &[3, 2, 1, 0xa61a_f6b1, 0x647d_0000]].concat();
        let bytes = words(&[&[0x1420_0040, 9, 1, 0][..], &ip(6, 100), &TCP, &int].concat());
        let (_, report) = only(&bytes, &of(setting));
        let switches: Vec<_> = report.hops_with_switches().filter_map(|(switch, _)| switch).collect();
        assert_eq!(switches, [3, 2, 1][..hops]);
        // The bytes alone do not show it if hops are one word long.
        assert_eq!(report.packet.unwrap().has_unread_int, hops == 0);
    }
}

/// INT v1.0, "Example with INT over TCP": two hops of node and queue, marked by DSCP.
#[test]
fn int_v10_over_tcp() {
    let int = [0x0100_0700, 0x1000_0206, 0x9000_0000, 2, 0x0500_0002, 1, 0x0500_0001];
    let mut bytes = words(&[&[0x1420_0040, 9, 1, 0][..], &ip(6, 100), &TCP, &int].concat());
    let (_, report) = only(&bytes, &IntSettings::default());
    let hops: Vec<_> =
        report.hops_with_switches().map(|(switch, hop)| (switch, hop.queue_fill().value)).collect();
    assert_eq!(hops, [(Some(2), Some(2)), (Some(1), Some(1))]);
    // One hop less than the length says.
    bytes.truncate(bytes.len() - 8);
    for mark in [Mark::Guess, Mark::Always] {
        let packet = only(&bytes, &IntSettings { mark, ..IntSettings::default() }).1.packet.unwrap();
        assert!(packet.stack.is_none() && packet.has_unread_int);
    }
}

/// The drop header of v0.5, drawn in its text.
#[test]
fn report_v05_of_a_drop() {
    let mut bytes = words(&[0x0180_0003, 7, 1000, 4, 0x0001_0002, 0x031d_0000]);
    bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
    bytes.extend(words(&ip(17, 28)));
    bytes.extend(words(&[0x1388_0035, 0x0008_0000]));
    for dialect in [Dialect::Auto, Dialect::V05, Dialect::SdFabric] {
        let (source, report) = only(&bytes, &IntSettings { dialect, ..IntSettings::default() });
        assert_eq!(source, DatagramSource { switch: Some(4), hardware: 3, sequence: 7, sequence_bits: 32 });
        assert!(report.flags.dropped && !report.flags.tracked);
        assert_eq!(
            (report.local.drop_queue(), report.local.drop_reason()),
            (Some(3), Some(DropReason::from_int(29)))
        );
        assert_eq!(report.local.ingress_time(), Some(Time::Short(1000)));
        assert_eq!(report.packet.unwrap().flow, flow("10.0.0.1:5000->10.0.0.2:53/udp"));
    }
}

#[test]
fn a_drop_report_without_a_readable_packet_is_a_report() {
    let mut bytes = words(&[0x0180_0003, 7, 1000, 4, 0x0001_0002, 0x031d_0000]);
    bytes.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6]);
    let (_, report) = only(&bytes, &IntSettings::default());
    assert_eq!(report.local.drop_reason(), Some(DropReason::from_int(29)));
    assert_eq!(report.packet.unwrap_err().kind, WireErrorKind::Protocol(0x0806));
}

#[test]
fn short_timestamps_wrap_and_long_ones_do_not() {
    let (short, long) = (Time::Short, Time::Long);
    assert_eq!(short(5).nanos_since(short(u32::MAX - 4)), Some(10));
    assert_eq!(long(1 << 33 | 5).nanos_since(short(u32::MAX - 4)), Some(10));
    assert_eq!(long(1 << 33).nanos_since(long(5)), Some((1 << 33) - 5));
    assert_eq!(long(5).nanos_since(long(6)), None);
}

#[test]
fn noviflow_hop_latencies_come_from_the_timestamps() {
    let hop = |switch, ingress, egress| Hop {
        switch: Some(switch),
        latency: Some(0),
        ingress_time: Some(ingress),
        egress_time: Some(egress),
        queue: Fill { id: Some(1), value: Some(9) },
        ports: [Some(1), Some(2)],
        ..Hop::default()
    };
    let hops = vec![hop(2, 0xffff_ff00, 0x2c), hop(1, 100, 400)];
    let stack = emit::Stack::new(IntVersion::V10, 0xfc00, hops);
    let mut packet = emit::EmittedPacket::new(flow("10.0.0.1:5000->10.0.0.2:80/tcp")).with_stack(stack);
    packet.vlans = vec![5];
    packet.tcp_options = vec![1; 12];
    packet.int_before_options = true;
    let bytes = datagram(ReportVersion::V10, packet).to_bytes();
    let of = |dialect| IntSettings { dialect, ..IntSettings::default() };
    let latencies = |dialect| -> Vec<_> {
        only(&bytes, &of(dialect)).1.hops_with_switches().map(|(_, hop)| hop.node_latency()).collect()
    };
    assert_eq!(latencies(Dialect::NoviFlow), [Some(300), Some(300)]);
    assert_eq!(latencies(Dialect::V10), [Some(0), Some(0)]);
}

#[test]
fn gtp_u_and_its_extension_headers() {
    let inner = emit::EmittedPacket::new(flow("172.16.0.1:1234->8.8.8.8:53/udp"));
    let mut outer = emit::EmittedPacket::new(flow("10.0.0.1:2152->10.0.0.2:2152/udp"));
    outer.tunnel = Some((TunnelKind::GtpU(0xaabb_ccdd), Box::new(inner)));
    let mut datagram = datagram(ReportVersion::V05, outer);
    datagram.reports[0].local = Local::SwitchLocal;
    let bytes = datagram.to_bytes();
    let sdfabric = IntSettings { dialect: Dialect::SdFabric, ..IntSettings::default() };
    let packet = only(&bytes, &sdfabric).1.packet.unwrap();
    let kind = TunnelKind::GtpU(0xaabb_ccdd);
    assert_eq!(packet.tunnel, Some(Tunnel { kind, flow: flow("172.16.0.1:1234->8.8.8.8:53/udp") }));
}

/// A tunnel of each kind, the flow around it, and the flow in it.
fn tunnels() -> Vec<(TunnelKind, Flow, Flow)> {
    let (v4, v6) =
        (flow("172.16.0.1:1234->8.8.8.8:5353/tcp"), flow("[2001:db8::1]:1234->[2001:db8::2]:5353/tcp"));
    let udp = |dport| Flow { dport, ..flow("10.0.0.1:40123->10.0.0.2:1/udp") };
    let ip = |proto| Flow { proto, sport: 0, dport: 0, ..udp(0) };
    let over_v6 = Flow { proto: 47, sport: 0, dport: 0, ..flow("[2001:db8::7]:1->[2001:db8::8]:1/udp") };
    vec![
        (TunnelKind::Vxlan(0xff_fffe), udp(4789), v4),
        (TunnelKind::Geneve(0xff_fffe), udp(6081), v6),
        (TunnelKind::GtpU(u32::MAX - 1), udp(2152), v4),
        (TunnelKind::Gre(None), ip(47), v4),
        (TunnelKind::Gre(Some(u32::MAX - 1)), ip(47), v6),
        (TunnelKind::Gre(None), over_v6, v4),
        (TunnelKind::Erspan(1022), ip(47), v4),
        (TunnelKind::MplsInUdp(0xf_fffe), udp(6635), v4),
        (TunnelKind::MplsInUdp(16), udp(6635), v6),
        (TunnelKind::Ip, ip(4), v4),
        (TunnelKind::Ip, ip(41), v6),
    ]
}

fn tunneled(kind: TunnelKind, around: Flow, inside: Flow) -> emit::EmittedPacket {
    let mut packet = emit::EmittedPacket::new(around);
    packet.tunnel = Some((kind, Box::new(emit::EmittedPacket::new(inside))));
    packet
}

#[test]
fn the_flow_in_each_kind_of_tunnel_is_found_and_in_a_cut_one_it_is_not_made_up() {
    for (kind, around, inside) in tunnels() {
        let mut datagram = datagram(ReportVersion::V05, tunneled(kind, around, inside));
        datagram.reports[0].local = Local::SwitchLocal;
        let bytes = datagram.to_bytes();
        let settings = IntSettings { mark: Mark::Never, ..IntSettings::default() };
        let packet = only(&bytes, &settings).1.packet.unwrap();
        assert_eq!((packet.flow, packet.tunnel), (around, Some(Tunnel { kind, flow: inside })));
        assert_eq!(*packet.inner_flow(), inside);
        for len in 0..bytes.len() {
            let Ok(mut cut) = parse_reports(&bytes[..len], &settings) else { continue };
            if let Some(Ok(IntReport { packet: Ok(packet), .. })) = cut.next()
                && let Some(tunnel) = packet.tunnel
            {
                // Without its last bytes, a flow has no ports.
                let portless = Flow { sport: 0, dport: 0, ..inside };
                assert!(
                    tunnel.kind == kind && [inside, portless].contains(&tunnel.flow),
                    "{kind:?} {len}: {tunnel:?}"
                );
            }
        }
    }
}

#[test]
fn what_only_looks_like_a_tunnel_is_none() {
    // What GRE, and ERSPAN in it, must not be: source-routed, of another version, of an unknown protocol or frame type.
    let erspan_3 = |flags: u32| [0x1000_22eb, 1, 0x2005_0007, 0, flags];
    let bad = [
        vec![0x4000_0800],
        vec![0x0001_0800],
        vec![0x0000_0806],
        erspan_3(0x1800).to_vec(),
        // The top of the labels, without an end.
        vec![0x0000_8847, 0x0001_0040],
    ];
    let of = |gre: &[u32]| {
        let around = Flow { proto: 47, sport: 0, dport: 0, ..flow("10.0.0.7:1->10.0.0.8:1/udp") };
        let payload = words(&[gre, &ip(6, 40), &TCP].concat());
        let mut datagram =
            datagram(ReportVersion::V05, emit::EmittedPacket { payload, ..emit::EmittedPacket::new(around) });
        datagram.reports[0].local = Local::SwitchLocal;
        let settings = IntSettings { mark: Mark::Never, ..IntSettings::default() };
        only(&datagram.to_bytes(), &settings).1.packet.map(|packet| packet.tunnel)
    };
    let inside = flow("10.0.0.1:5000->10.0.0.2:80/tcp");
    for gre in bad {
        assert_eq!(of(&gre).unwrap(), None, "{gre:x?}");
    }
    let good = [
        (vec![0x0000_0800], TunnelKind::Gre(None)),
        (vec![0xb000_0800, 0, 5, 6], TunnelKind::Gre(Some(5))),
        (vec![0x0000_8847, 0x0001_0040, 0x0002_0140], TunnelKind::Gre(None)),
        // Type III: IP in it, and with a header of the platform's own.
        ([&erspan_3(0x0800)[..], &[]].concat(), TunnelKind::Erspan(7)),
        ([&erspan_3(0x0801)[..], &[0, 0]].concat(), TunnelKind::Erspan(7)),
    ];
    for (gre, kind) in good {
        assert_eq!(of(&gre).unwrap(), Some(Tunnel { kind, flow: inside }), "{gre:x?}");
    }
}

#[test]
#[ignore = "needs tshark: `make test` installs it and runs this"]
fn tshark_finds_the_same_flows_and_numbers_in_tunnels() {
    let mut pcap = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 1].map(u32::to_le_bytes).concat();
    for (kind, around, inside) in tunnels() {
        let mut frame = Vec::new();
        tunneled(kind, around, inside).put_ethernet_frame(&mut frame);
        let len = frame.len() as u32;
        pcap.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        pcap.extend(frame);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tunnels.pcap");
    std::fs::write(&file, pcap).unwrap();
    let numbers = ["vxlan.vni", "geneve.vni", "gtp.teid", "gre.key", "erspan.spanid", "mpls.label"];
    let mut tshark = std::process::Command::new("tshark");
    tshark.arg("-r").arg(&file).args(["-T", "fields", "-E", "separator=|", "-E", "aggregator=,"]);
    for field in
        ["ip.src", "ip.dst", "ipv6.src", "ipv6.dst", "tcp.srcport", "tcp.dstport"].iter().chain(&numbers)
    {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().expect("tshark starts: apt-get install tshark");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), tunnels().len());
    for (line, (kind, around, inside)) in text.lines().zip(tunnels()) {
        let fields: Vec<Vec<&str>> = line.split('|').map(|field| field.split(',').collect()).collect();
        let addresses = |v4: usize, v6: usize| {
            let outer = if around.src.is_ipv4() { fields[v4][0] } else { fields[v6][0] };
            let inner = if inside.src.is_ipv4() { &fields[v4] } else { &fields[v6] };
            (outer.to_owned(), inner.last().unwrap().to_string())
        };
        assert_eq!(addresses(0, 2), (around.src.to_string(), inside.src.to_string()), "{line}");
        assert_eq!(addresses(1, 3), (around.dst.to_string(), inside.dst.to_string()), "{line}");
        assert_eq!((fields[4][0], fields[5][0]), ("1234", "5353"), "{line}");
        let number = |field: &str| {
            let text = fields[6 + numbers.iter().position(|name| *name == field).unwrap()][0];
            let hex = text.strip_prefix("0x").map(|digits| u32::from_str_radix(digits, 16).unwrap());
            hex.or_else(|| text.parse().ok())
        };
        let (field, expected) = match kind {
            TunnelKind::Vxlan(of) => ("vxlan.vni", Some(of)),
            TunnelKind::Geneve(of) => ("geneve.vni", Some(of)),
            TunnelKind::GtpU(of) => ("gtp.teid", Some(of)),
            TunnelKind::Gre(of) => ("gre.key", of),
            TunnelKind::Erspan(of) => ("erspan.spanid", Some(of.into())),
            TunnelKind::MplsInUdp(of) => ("mpls.label", Some(of)),
            TunnelKind::Ip => ("gre.key", None),
        };
        assert_eq!(number(field), expected, "{line}");
    }
}

#[test]
fn versions_that_do_not_exist_are_refused() {
    for (bytes, field) in
        [(&[0x30, 0][..], "version"), (&[0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "next_protocol")]
    {
        let error = parse_reports(bytes, &IntSettings::default()).unwrap_err();
        assert_eq!((error.layer, error.field), (Layer::TelemetryReport, field));
    }
    assert!(parse_reports(&[], &IntSettings::default()).is_err());
    assert!(parse_reports(&words(&[2 << 28, 1]), &IntSettings::default()).is_err(), "a group of none");
}

#[test]
fn behind_a_report_of_an_unknown_type_the_next_is_read() {
    let good = [0x140c_0020, 0, 0];
    let bytes = words(
        &[&[2 << 28, 3, 0x9401_0020, 7][..], &good, &ip(6, 40), &TCP, &[0x14ff_0020, 0, 0], &ip(6, 40), &TCP]
            .concat(),
    );
    let all: Vec<_> = parse_reports(&bytes, &IntSettings::default()).unwrap().collect();
    assert_eq!(all.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true, true]);
    // One that says more than there is ends the datagram.
    let bytes = words(&[&[2 << 28, 3, 0x9440_0020, 7][..], &good].concat());
    assert_eq!(
        parse_reports(&bytes, &IntSettings::default()).unwrap().map(|r| r.is_ok()).collect::<Vec<_>>(),
        [false]
    );
}

fn datagram(version: ReportVersion, packet: emit::EmittedPacket) -> emit::EmittedDatagram {
    let hop = Hop { ingress_time: Some(1), ..Hop::default() };
    let flags = Flags { tracked: true, ..Flags::default() };
    let report = emit::EmittedReport {
        flags,
        local: Local::Nothing,
        hop,
        halved_queue: false,
        packet,
        ethernet: true,
    };
    emit::EmittedDatagram {
        version,
        version_nibble: 0,
        switch: 7,
        hardware: 5,
        sequence: 9,
        reports: vec![report],
    }
}

/// Any number but all ones, and sometimes none.
fn maybe(bits: u32) -> impl Strategy<Value = Option<u32>> {
    prop::option::weighted(0.9, 0..((1u64 << bits) - 1) as u32)
}

fn fill(halved: bool) -> impl Strategy<Value = Fill> {
    let (id, value) = if halved { (16, 16) } else { (8, 24) };
    (maybe(id), maybe(value)).prop_map(|(id, value)| Fill { id, value })
}

fn hop(halved: bool) -> impl Strategy<Value = Hop> {
    let port = || maybe(16).prop_map(|port| port.map(|port| port as u16));
    let time = || prop::option::weighted(0.9, 0..u64::from(u32::MAX));
    let rest = (maybe(32), maybe(32), maybe(32), fill(halved));
    (maybe(32), port(), port(), maybe(32), fill(halved), time(), time(), fill(halved), rest).prop_map(
        |(switch, ingress, egress, latency, queue, ingress_time, egress_time, congestion, rest)| Hop {
            switch,
            ports: [ingress, egress],
            latency,
            queue,
            ingress_time,
            egress_time,
            congestion,
            level2: [rest.0, rest.1],
            utilization: rest.2,
            buffer: rest.3,
            drop: (None, 0),
        },
    )
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let ports = (any::<u16>(), prop_oneof![Just(1u16), Just(80), Just(0xfffe)]);
    (any::<bool>(), any::<[u8; 16]>(), any::<[u8; 16]>(), ports, prop_oneof![Just(6u8), Just(17)]).prop_map(
        |(v6, a, b, (sport, dport), proto)| {
            let first = |bytes: [u8; 16]| [bytes[0], bytes[1], bytes[2], bytes[3]];
            if v6 {
                Flow { src: a.into(), dst: b.into(), sport, dport, proto }
            } else {
                Flow { src: first(a).into(), dst: first(b).into(), sport, dport, proto }
            }
        },
    )
}

#[derive(Clone, Debug)]
struct Case {
    settings: IntSettings,
    datagram: emit::EmittedDatagram,
}

fn case() -> impl Strategy<Value = Case> {
    let version = prop_oneof![Just(IntVersion::V05), Just(IntVersion::V10), Just(IntVersion::V21)];
    let report = prop_oneof![Just(ReportVersion::V05), Just(ReportVersion::V10), Just(ReportVersion::V20)];
    let shape = (version, report, any::<bool>(), 0..3u8, 0..3u8, any::<u16>());
    shape.prop_flat_map(|(int, version, halved, variant, carrier, instructions)| {
        // At least the switch; v0.5 and v1.0 have no bits from 8 to 14 that could be read.
        let instructions = 0x8000 | instructions & if int == IntVersion::V21 { 0xff81 } else { 0xff01 };
        let details =
            (any_flow(), 0..3usize, 0..4usize, 0..4usize, any::<bool>(), any::<bool>(), any::<[bool; 4]>());
        let numbers = (any::<u32>(), 0..64u8, any::<u32>(), 0..4u8, any::<u16>(), 0..2usize);
        (prop::collection::vec(hop(halved), 1..20), hop(halved), details, numbers).prop_map(
            move |(mut hops, local_hop, details, (switch, hardware, sequence, words, local, source_only))| {
                let (flow, vlans, ip_options, tcp_options, before, ethernet, flags) = details;
                // What the length field can say: 255 words.
                hops.truncate(if int == IntVersion::V21 { 10 } else { 18 });
                let variant = match (int, variant) {
                    (IntVersion::V10, 1) => Variant::ShortBit6,
                    (IntVersion::V10, 2) => Variant::WideTimes,
                    _ => Variant::Specified,
                };
                // Bit 6 separate, and times separate from bit 6: they are parsed as for that many words.
                let clash = variant != Variant::Specified || int != IntVersion::V10;
                let instructions = if clash { instructions } else { instructions & !0x0200 | 0x0400 };
                let instructions = match variant {
                    Variant::ShortBit6 => instructions | 0x0200,
                    Variant::WideTimes => instructions & !0x0200 | 0x0c00,
                    Variant::Specified => instructions,
                };
                let mut stack = emit::Stack::new(int, instructions, hops);
                (stack.variant, stack.halved_queue) = (variant, halved);
                stack.carrier = match (int, carrier, flow.proto) {
                    (IntVersion::V05 | IntVersion::V21, 1, 17) => Carrier::Port(0x7ffe),
                    (IntVersion::V21, 2, _) => Carrier::NewUdp(0x7ffe),
                    _ => Carrier::Behind,
                };
                let mut settings = IntSettings::default();
                if int == IntVersion::V21 && words > 0 {
                    // Neither in hops nor of the source: then the domain asks for nothing.
                    let asks = words > 1 || source_only > 0;
                    stack.domain = (0x5454, if asks { 0x8000 } else { 0 }, words - 1);
                    stack.source_only = vec![0xaa; source_only * 8];
                    settings.source_only_words = (source_only * 2) as u8;
                }
                let mut packet = emit::EmittedPacket::new(flow).with_stack(stack);
                packet.vlans = vec![3; vlans];
                packet.ip_options = vec![1; ip_options * 4];
                packet.tcp_options = vec![1; tcp_options * 4];
                packet.int_before_options = before;
                packet.payload = vec![0x55; 20];
                settings.dialect = match version {
                    ReportVersion::V05 => Dialect::V05,
                    ReportVersion::V10 => Dialect::V10,
                    ReportVersion::V20 => Dialect::V20,
                };
                if halved {
                    settings.dialect = Dialect::IntCollector;
                }
                settings.mark = if before { Mark::Guess } else { Mark::Always };
                let mut datagram = datagram(version, packet);
                (datagram.switch, datagram.hardware, datagram.sequence) = (switch, hardware, sequence);
                datagram.version_nibble = halved.into();
                let report = &mut datagram.reports[0];
                let [dropped, congested, tracked, intermediate] = flags;
                // Where INT is a guess, none is looked for in packets of other flows.
                report.flags = Flags { dropped, congested, tracked: tracked || before, intermediate };
                (report.hop, report.halved_queue) = (local_hop, halved);
                report.hop.drop = (Some(3), 71);
                report.ethernet = ethernet || version == ReportVersion::V05;
                report.local = match version {
                    ReportVersion::V05 if halved => Local::Nothing,
                    ReportVersion::V05 => {
                        [Local::Nothing, Local::Drop, Local::SwitchLocal][usize::from(local) % 3]
                    }
                    ReportVersion::V10 => Local::Bits(local & 0x3f),
                    ReportVersion::V20 => Local::Bits(local & 0x7f81),
                };
                if version == ReportVersion::V20 {
                    let again = report.clone();
                    datagram.reports.push(again);
                }
                Case { settings, datagram }
            },
        )
    })
}

/// What the metadata says of the fields that were asked for.
fn check(
    read: Metadata<'_>,
    asked: impl Fn(&str) -> bool,
    wrote: &Hop,
    wide: bool,
) -> Result<(), TestCaseError> {
    let time =
        |time: Option<u64>| time.map(|time| if wide { Time::Long(time) } else { Time::Short(time as u32) });
    let ask = |name: &str, value| if asked(name) { value } else { None };
    let ports = match asked("ports") {
        true => wrote.ports.map(|port| port.map(u32::from)),
        false => wrote.level2.map(|port| ask("level2", port)),
    };
    prop_assert_eq!([read.ingress_port(), read.egress_port()], ports);
    prop_assert_eq!(read.utilization(), ask("utilization", wrote.utilization));
    prop_assert_eq!(read.queue_fill(), if asked("queue") { wrote.queue } else { Fill::default() });
    prop_assert_eq!(read.congestion(), if asked("congestion") { wrote.congestion } else { Fill::default() });
    prop_assert_eq!(read.buffer_fill(), if asked("buffer") { wrote.buffer } else { Fill::default() });
    let (ingress, egress) = (time(wrote.ingress_time), time(wrote.egress_time));
    if asked("ingress_time") {
        prop_assert_eq!(read.ingress_time(), ingress);
    }
    prop_assert_eq!(read.egress_time(), if asked("egress_time") { egress } else { None });
    if asked("latency") && wrote.latency.is_some() {
        prop_assert_eq!(read.node_latency(), wrote.latency.map(u64::from));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn what_is_written_is_read(case in case()) {
        let Case { settings, datagram } = &case;
        let bytes = datagram.to_bytes();
        let read = parse_reports(&bytes, settings).unwrap();
        let v05 = datagram.version == ReportVersion::V05;
        let source = read.datagram_source();
        prop_assert_eq!(source.hardware, datagram.hardware);
        let mask = ((1u64 << source.sequence_bits) - 1) as u32;
        prop_assert_eq!(source.sequence, datagram.sequence & mask);
        let read: Vec<_> = read.collect();
        prop_assert_eq!(read.len(), datagram.reports.len());
        for (read, wrote) in read.into_iter().zip(&datagram.reports) {
            let read = read.unwrap();
            let flags = match datagram.version {
                ReportVersion::V20 => wrote.flags,
                _ => Flags { intermediate: false, ..wrote.flags },
            };
            prop_assert_eq!(read.flags, flags);
            if !v05 || wrote.local != Local::Nothing {
                prop_assert_eq!(read.switch, Some(datagram.switch).filter(|s| !v05 || *s != u32::MAX));
            }
            let report_asked = |name: &str| match (wrote.local, datagram.version) {
                (Local::Bits(bits), ReportVersion::V10) => {
                    let bit = ["ports", "latency", "queue", "egress_time", "drop", "utilization"];
                    bit.iter().position(|b| *b == name).is_some_and(|bit| bits & 0x20 >> bit != 0)
                }
                (Local::Bits(bits), _) => {
                    let bit = ["", "ports", "latency", "queue", "ingress_time", "egress_time", "level2", "utilization",
                        "buffer"];
                    bit.iter().position(|b| *b == name).is_some_and(|bit| bits & 0x8000 >> bit != 0)
                }
                (Local::SwitchLocal, _) => ["ports", "queue", "egress_time"].contains(&name),
                (Local::Drop, _) => name == "ports",
                (Local::Nothing, _) => false,
            };
            check(read.local, report_asked, &wrote.hop, datagram.version == ReportVersion::V20)?;
            let packet = read.packet.unwrap();
            prop_assert_eq!(packet.flow, wrote.packet.flow);
            let stack = packet.stack.expect("the stack");
            let stack_wrote = wrote.packet.stack.as_ref().unwrap();
            prop_assert_eq!(stack.len(), stack_wrote.hops.len());
            let asked = |name: &str| {
                let sixth = match (stack_wrote.version, stack_wrote.variant) {
                    (IntVersion::V05, _) | (_, Variant::ShortBit6) => "congestion",
                    _ => "level2",
                };
                let bits = ["switch", "ports", "latency", "queue", "ingress_time", "egress_time", sixth, "utilization",
                    "buffer"];
                bits.iter().position(|b| *b == name)
                    .is_some_and(|bit| stack_wrote.instructions & 0x8000 >> bit != 0)
            };
            let wide = stack_wrote.version == IntVersion::V21 || stack_wrote.variant == Variant::WideTimes;
            for (read, wrote) in stack.hops_newest_first().zip(&stack_wrote.hops) {
                prop_assert_eq!(read.switch_number(), wrote.switch);
                check(read, asked, wrote, wide)?;
            }
        }
    }

    /// Cut anywhere, a datagram is an error or fewer reports, never a panic.
    #[test]
    fn cut_short(case in case(), at: prop::sample::Index) {
        let bytes = case.datagram.to_bytes();
        if let Ok(read) = parse_reports(&bytes[..at.index(bytes.len())], &case.settings) {
            for report in read.flatten() {
                report.hops_with_switches().for_each(|(_, hop)| { hop.node_latency(); });
            }
        }
    }
}

#[test]
fn ipv4_fragments_without_ports_have_none() {
    let mut bytes =
        datagram(ReportVersion::V05, emit::EmittedPacket::new(flow("10.0.0.1:5->10.0.0.2:6/udp"))).to_bytes();
    let at = 12 + 14 + 6;
    bytes[at..at + 2].copy_from_slice(&[0, 5]);
    let packet = only(&bytes, &IntSettings::default()).1.packet.unwrap();
    assert_eq!((packet.flow.sport, packet.flow.dport, packet.flow.proto), (0, 0, ipv4::PROTOCOL_UDP));
}

/// INT v2.1, the examples with INT-MX, in a report of a switch that it asked for its queue: bit 0 of the instructions
/// is not repeated there, as the group has the node.
#[test]
fn int_mx_is_read_and_leaves_the_flow_as_its_sender_wrote_it() {
    let mx = [0x2000_0000, 0x9000_0000, 0];
    let udp = |behind: &[u32]| [&[0x9999_0000 | INT_PORT, 0x0044_0000][..], behind].concat();
    let inserted = [0x2000_0000, 0x9000_abcd, 0xc000_0000, 15, 0x1234_5678];
    for (name, protocol, transport, wanted) in [
        // "Example with INT-MX over TCP".
        ("tcp", 6, [&TCP[..], &[0x3003_0000], &mx, &[0x6162_6364]].concat(), "5000->10.0.0.2:80/tcp"),
        // "Example with INT-MX in-between UDP header and UDP payload".
        ("udp", 17, udp(&[&[0x3403_0035][..], &mx, &[7]].concat()), "39321->10.0.0.2:53/udp"),
        // "Example with new UDP header and INT-MX inserted before TCP".
        ("new udp", 17, udp(&[&[0x3803_0006][..], &mx, &TCP].concat()), "5000->10.0.0.2:80/tcp"),
        // "Example with INT-MX including domain specific source-inserted metadata".
        ("inserted", 17, udp(&[&[0x3805_0006][..], &inserted, &TCP].concat()), "5000->10.0.0.2:80/tcp"),
    ] {
        let head = [0x14ff_0120, 0x1000_0000, 0, 0x0500_0258];
        let length = 20 + 4 * transport.len() as u32;
        let bytes = words(&[&[2 << 28, 3][..], &head, &ip(protocol, length), &transport].concat());
        let (_, report) = only(&bytes, &IntSettings::default());
        let packet = report.packet.unwrap();
        assert_eq!(packet.flow, flow(&format!("10.0.0.1:{wanted}")), "{name}");
        assert!(report.is_int_mx() && packet.stack.unwrap().is_empty(), "{name}");
        let hops: Vec<_> =
            report.hops_with_switches().map(|(switch, hop)| (switch, hop.queue_fill().value)).collect();
        assert_eq!(hops, [(Some(3), Some(600))], "{name}");
    }
    // What a guess must not accept: reserved bits, a wrong length, and text.
    let plain = "10.0.0.1:39321->10.0.0.2:32766/udp";
    for not in [
        udp(&[0x3403_0035, 0x2000_0001, 0x9000_0000, 0, 7]),
        udp(&[0x3405_0035, 0x2000_0000, 0x9000_0000, 0, 7, 8]),
        udp(&[0x3230_3234, 0x2031_3233, 0x3435_3637, 0x3839_3031]),
    ] {
        let head = [0x14ff_0120, 0x1000_0000, 0, 0x0500_0258];
        let bytes = words(&[&[2 << 28, 3][..], &head, &ip(17, 20 + 4 * not.len() as u32), &not].concat());
        let (_, report) = only(&bytes, &IntSettings::default());
        assert!(!report.is_int_mx());
        assert_eq!(report.packet.unwrap().flow, flow(plain));
    }
    // Where a packet is known to carry it, reserved bits are ignored, and half a header is an error.
    let known = IntSettings { mark: Mark::Port(INT_PORT as u16), ..IntSettings::default() };
    let head = [0x14ff_0120, 0x1000_0000, 0, 0x0500_0258];
    let reserved = udp(&[0x3403_0035, 0x2000_0001, 0x9000_0000, 0, 7]);
    let bytes = words(&[&[2 << 28, 3][..], &head, &ip(17, 48), &reserved].concat());
    assert!(only(&bytes, &known).1.is_int_mx());
    let short = udp(&[0x3403_0035, 0x2000_0000, 0x9000_0000]);
    let bytes = words(&[&[2 << 28, 3][..], &head, &ip(17, 40), &short].concat());
    assert_eq!(only(&bytes, &known).1.packet.unwrap_err().layer, Layer::Int);
}

#[test]
fn a_stack_that_is_cut_is_not_read_and_leaves_the_flow() {
    use dta_telemetry::int::emit::Stack;
    let of = "10.0.0.1:5->10.0.0.2:6/udp";
    let hops = || (1..4).map(|n| Hop { switch: Some(n), latency: Some(n), ..Hop::default() }).collect();
    for version in [IntVersion::V05, IntVersion::V10, IntVersion::V21] {
        let whole = datagram(
            ReportVersion::V10,
            emit::EmittedPacket::new(flow(of)).with_stack(Stack::new(version, 0xa000, hops())),
        )
        .to_bytes();
        let dialects =
            [IntSettings::default(), IntSettings { dialect: Dialect::V10, ..IntSettings::default() }];
        for settings in dialects {
            let read = |bytes: &[u8]| {
                let report = parse_reports(bytes, &settings).unwrap().next().unwrap().unwrap();
                report.packet.map(|packet| (packet.flow, packet.stack.is_some(), packet.has_unread_int))
            };
            assert_eq!(read(&whole), Ok((flow(of), true, false)), "{version:?}");
            // In v0.5, the tail may be missing, and 4 bytes more are within the last hop.
            assert_eq!(read(&whole[..whole.len() - 8]), Ok((flow(of), false, true)), "{version:?}");
        }
    }
    // What is not INT is still not INT, and so are TCP options, which may start like it.
    let plain = datagram(ReportVersion::V10, emit::EmittedPacket::new(flow(of))).to_bytes();
    assert!(only(&plain, &IntSettings::default()).1.packet.unwrap().stack.is_none());
    let group = [2 << 28 | 5 << 22 | 0x01_2345, 3];
    let head = [0x1411_0220, 0x5000_0000, 0, 0x0003_0004, 0x0500_0258];
    let tcp = [0x1388_0050, 0, 0, 0x8010_2000, 0, 0x0101_080a, 0x0000_0100, 0x8000_0000];
    let stamped = words(&[&group[..], &head, &ip(6, 52), &tcp].concat());
    assert!(only(&stamped, &IntSettings::default()).1.packet.unwrap().stack.is_none());
}

//! Checks the P4 reporter's output against the truth, which is computed from the input packets and the
//! entries written by `reporter-p4/test/drive.py`, with this project's own decoders.
//!
//! Each run reads the capture that is committed beside the compiled program; `reporter-p4/test/run` makes a new one on
//! bmv2 and names it in `DTA_REPORTER_CAPTURE`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;
use dta_proto::telemetry::{self, Location, TelemetryEntry};
use dta_proto::wire::datagram::{UdpDatagram, udp_checksum_ok};
use dta_proto::wire::dta::{DtaBody, DtaReport};
use dta_proto::wire::{checksum, ethernet};
use dta_telemetry::int::{Dialect, IntSettings, Time, parse_reports};

const SWITCH: u32 = 7;
const TIME_OFFSET: u64 = 1_000_000_000_000_000_000;
/// Of a Telemetry Report, what it holds of the packet.
const PACKET_BYTES: usize = 128;
/// The interval of phase 2, as a power of two of nanoseconds.
const INTERVAL: u32 = 29;
/// Largest drift between the capture's and the switch's clock in one run, in nanoseconds.
const DRIFT: i128 = 20_000_000;

const FLOW: u8 = 1;
const QUEUE: u8 = 2;
const DROP: u8 = 4;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reporter-p4/compiled/v1model")
}

fn tool(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A frame that went in or came out.
#[derive(Clone, Debug)]
struct Frame {
    port: u32,
    /// Nanoseconds: before sending, or after receiving.
    time: i128,
    bytes: Vec<u8>,
}

impl Frame {
    /// The id of its outer IPv4 header, unique among packets.
    fn id(&self) -> Option<u16> {
        let ip = ip_at(&self.bytes)?;
        Some(u16::from_be_bytes([self.bytes[ip + 4], self.bytes[ip + 5]]))
    }
}

/// What happened with the same settings.
#[derive(Default)]
struct Phase {
    sent: Vec<Frame>,
    received: Vec<Frame>,
}

struct Capture {
    /// Digests of the sources of the program.
    program: String,
    phases: BTreeMap<u32, Phase>,
}

impl Capture {
    fn read(mut bytes: &[u8]) -> Capture {
        let mut capture = Capture { program: String::new(), phases: BTreeMap::new() };
        let mut phase = 0;
        while let Some((head, rest)) = bytes.split_first_chunk::<14>() {
            let time = u64::from_be_bytes(head[2..10].try_into().unwrap());
            let len = u32::from_be_bytes(head[10..].try_into().unwrap()) as usize;
            let (content, behind) = rest.split_at(len);
            let frame = Frame { port: head[1].into(), time: time.into(), bytes: content.to_vec() };
            match head[0] {
                0 => capture.phases.entry(phase).or_default().sent.push(frame),
                1 => capture.phases.entry(phase).or_default().received.push(frame),
                2 => phase = frame.port,
                _ => capture.program = String::from_utf8(frame.bytes).unwrap(),
            }
            bytes = behind;
        }
        assert!(bytes.is_empty(), "the capture ends in the middle of a record");
        capture
    }
}

/// Where the IPv4 header is, behind VLAN tags.
fn ip_at(frame: &[u8]) -> Option<usize> {
    let mut at = 12;
    while [[0x81, 0], [0x88, 0xa8]].contains(frame[at..].first_chunk()?) {
        at += 4;
    }
    (frame[at..at + 2] == [8, 0]).then_some(at + 2)
}

/// The outer and the inner flow, as the decoder of Telemetry Reports reads packets.
fn flows(frame: &[u8]) -> Option<(Flow, Flow)> {
    ip_at(frame)?;
    let mut report = vec![0; 12];
    report.extend_from_slice(frame);
    let settings = IntSettings { dialect: Dialect::SdFabric, ..IntSettings::default() };
    let report = parse_reports(&report, &settings).unwrap().next().unwrap().unwrap();
    let packet = report.packet.unwrap();
    Some((packet.flow, *packet.inner_flow()))
}

fn octets(address: std::net::IpAddr) -> [u8; 4] {
    let std::net::IpAddr::V4(address) = address else { panic!("IPv6") };
    address.octets()
}

/// What to report of a flow: the entries of `excluded` and `watchlist`.
fn watched(frame: &[u8]) -> u8 {
    let Some((outer, inner)) = flows(frame) else { return 0 };
    let dta =
        |flow: Flow| flow.proto == 17 && (flow.sport == 40040 || [40040, 40044, 4791].contains(&flow.dport));
    if dta(outer)
        || dta(inner)
        || (octets(outer.dst) == [10, 0, 3, 9] && outer.proto == 17 && outer.dport == 54321)
    {
        return 0;
    }
    let (src, dst) = (octets(inner.src), octets(inner.dst));
    if dst == [10, 0, 2, 99] {
        0
    } else if src[0] == 10 {
        FLOW | QUEUE | DROP
    } else if (dst[0], dst[3]) == (172, 7) && inner.proto == 17 && (5000..=5999).contains(&inner.dport) {
        FLOW
    } else {
        0
    }
}

/// Destination of a frame.
enum Way {
    /// Out of these ports, with these bytes.
    Out(Vec<u32>, Vec<u8>),
    /// Nowhere: the reason, and the port at which it was refused.
    Dropped(u8, Option<u32>),
}

/// The path of a frame by the entries of the forwarding tables.
fn way(frame: &Frame) -> Way {
    let bytes = &frame.bytes;
    if frame.port == 5 {
        return Way::Dropped(55, None);
    }
    let ip = ip_at(bytes);
    if let (Some(ip), Some((outer, _))) = (ip, flows(bytes)) {
        let ports = bytes[ip + 6] & 0x1f == 0 && bytes[ip + 7] == 0;
        if octets(outer.dst)[..3] == [10, 0, 66]
            && outer.proto == 6
            && ports
            && (100..=200).contains(&outer.dport)
        {
            return Way::Dropped(80, None);
        }
    }
    match bytes[5] {
        0x01 => Way::Out(vec![1], bytes.clone()),
        0x02 => Way::Out(vec![2], bytes.clone()),
        0xff => Way::Out([1, 2].into_iter().filter(|port| *port != frame.port).collect(), bytes.clone()),
        0x55 => Way::Dropped(130, Some(5)),
        0xdd => Way::Dropped(128, None),
        0xfe => {
            let Some(ip) = ip else { return Way::Dropped(29, None) };
            if bytes[ip + 8] <= 1 {
                return Way::Dropped(26, None);
            }
            match bytes[ip + 16..ip + 19] {
                [10, 0, 2] => Way::Out(vec![2], routed(bytes, ip)),
                [10, 9, 3] => Way::Dropped(134, None),
                _ => Way::Dropped(29, None),
            }
        }
        _ => Way::Dropped(89, None),
    }
}

/// The frame after a router: other addresses, a lower TTL, and a new checksum.
fn routed(frame: &[u8], ip: usize) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0x0a, 2, 2, 0, 0, 0, 0, 0xfe]);
    frame[ip + 8] -= 1;
    frame[ip + 10..ip + 12].fill(0);
    let end = ip + usize::from(frame[ip] & 0xf) * 4;
    let sum = checksum::fold_checksum(checksum::add(0, &frame[ip..end]));
    frame[ip + 10..ip + 12].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A report without what only the switch knows: times, latencies, occupancies.
type PlainReport = (u8, String);

/// A packet, and what should be reported of it.
struct Event<'a> {
    kinds: u8,
    /// As it left; if it was dropped before, as it arrived.
    frame: &'a [u8],
    bytes: usize,
    ingress: u32,
    egress: Option<u32>,
    queue: Option<u32>,
    reason: u8,
}

/// The reports that the entries of `report` and the clone sessions make of it: destination and text.
fn reports_of(event: &Event<'_>) -> Vec<PlainReport> {
    let (_, flow) = flows(event.frame).expect("an IPv4 flow");
    let key = flow.to_key();
    let mut all = Vec::new();
    let mut put = |destination: u8, text: String| all.push((destination, text));
    if event.kinds & FLOW != 0 {
        let hlat = telemetry::hop_latency_key(&flow, SWITCH);
        put(1, format!("store 11 key-write 2 {hlat:?} latency"));
        let qocc = telemetry::queue_occupancy_key(SWITCH, event.egress, event.queue);
        put(1, format!("store 11 key-write 2 {qocc:?} occupancy"));
        // Frames from port 1 are at hop 2, others at hop 0; what leaves at port 2 is at its end.
        let hop = if event.ingress == 1 { 2 } else { 0 };
        let path = if event.egress == Some(2) { hop + 1 } else { 0 };
        put(1, format!("store 12 postcard {key:?} hop {hop} of {path} value {SWITCH}"));
        put(2, format!("store 13 key-increment 0 {:?} by 1", telemetry::packets_key(&flow)));
        put(2, format!("store 13 key-increment 0 {:?} by {}", telemetry::bytes_key(&flow), event.bytes));
        put(1, format!("store 14 append 5 {:?} immediate", key.0));
        put(1, format!("store 15 key-write 0 {key:?} latency without time"));
    }
    let place = Location { switch: Some(SWITCH), port: event.egress, queue: event.queue };
    if event.kinds & QUEUE != 0 {
        put(1, format!("store 16 append 2 congestion {key:?} {place:?}"));
    }
    if event.kinds & DROP != 0 {
        let ingress = event.ingress;
        put(1, format!("store 16 append 1 drop {key:?} {place:?} from {ingress} because {}", event.reason));
        let drops = telemetry::drops_key(SWITCH, DropReason::from_int(event.reason));
        put(2, format!("store 13 key-increment 2 {drops:?} by 1"));
        let of_flow = telemetry::flow_drops_key(&flow, DropReason::from_int(event.reason));
        put(2, format!("store 13 key-increment 2 {of_flow:?} by 1"));
    }
    let [dropped, congested, tracked] = [DROP, QUEUE, FLOW].map(|kind| event.kinds & kind != 0);
    let narrow = |number: Option<u32>, bits: u32| number.unwrap_or((1 << bits) - 1);
    let (out, queue) = (narrow(event.egress, 16), narrow(event.queue, 8));
    let reason = dropped.then(|| DropReason::from_int(event.reason));
    let packet = &event.frame[..event.frame.len().min(PACKET_BYTES)];
    put(
        3,
        format!(
            "{dropped} {congested} {tracked} switch {SWITCH} {} {out} {queue} {reason:?} {packet:?}",
            event.ingress
        ),
    );
    all
}

/// A report that came, decoded.
struct Came {
    report: PlainReport,
    sequence: u32,
    restarted: bool,
    /// Full time and latency of a hop-latency report; low 32 bits of the time, and latency, of a Telemetry Report.
    moment: Option<(u64, u32)>,
    flow: Option<Flow>,
    packet: Option<u16>,
    received: i128,
}

/// Decodes a frame with a report, and checks its headers.
fn came(frame: &Frame) -> Came {
    let packet = ethernet::EthernetFrame::new_checked(&frame.bytes).unwrap();
    assert_eq!(frame.bytes[..14], [2, 0, 0, 0, 0, 0x88, 2, 0, 0, 0, 0, 0x77, 8, 0]);
    let ip = packet.payload();
    assert_eq!(checksum::fold_checksum(checksum::add(0, &ip[..20])), 0, "IPv4 header checksum");
    let datagram = UdpDatagram::parse_exact(ip).unwrap();
    // Nothing pads the shortest frames on a veth pair.
    assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
    assert_eq!(*datagram.source().ip(), Ipv4Addr::new(10, 0, 3, 7));
    let (to, port, tos) = match (datagram.destination().ip().octets(), datagram.source().port()) {
        ([10, 0, 3, 1], 50001) => (1, 3, 4),
        ([10, 0, 4, 1], 50002) => (2, 4, 0),
        ([10, 0, 3, 9], 50003) => (3, 3, 0),
        other => panic!("a report to {other:?}"),
    };
    assert_eq!((frame.port, ip[1], ip[8]), (port, tos, 64), "port, TOS and TTL");
    if to == 3 { telemetry_report(frame, &datagram) } else { dta_report(frame, to, ip, &datagram) }
}

fn dta_report(frame: &Frame, to: u8, ip: &[u8], datagram: &UdpDatagram<'_>) -> Came {
    assert_eq!(datagram.destination().port(), 40040);
    assert_ne!(ip[26..28], [0, 0], "a UDP checksum");
    assert!(udp_checksum_ok(ip), "UDP checksum");
    let report = DtaReport::parse_payload(datagram.payload()).unwrap();
    assert!(!report.retransmittable);
    assert_eq!(report.reporter, 76 + u16::from(to));
    let store = report.store;
    let mut moment = None;
    let text = match report.body {
        DtaBody::KeyWrite { redundancy, key, value } => {
            let what = match (store, &key.0[12..]) {
                (11, b"qocc") => "occupancy",
                (11, _) => "latency",
                _ => "latency without time",
            };
            if store == 11 {
                let value = telemetry::TimedValue::parse_bytes(value).unwrap();
                assert!(value.time > TIME_OFFSET && value.value < u32::MAX);
                if what == "latency" {
                    moment = Some((value.time, value.value));
                }
            } else {
                assert_eq!(value.len(), 4);
            }
            format!("store {store} key-write {redundancy} {key:?} {what}")
        }
        DtaBody::Append { list, value } if value.len() == 16 => {
            assert!(report.immediate);
            format!("store {store} append {list} {value:?} immediate")
        }
        DtaBody::Append { list, value } => match TelemetryEntry::parse_bytes(value).unwrap() {
            TelemetryEntry::Drop { time, key, place, ingress_port, reason } => {
                assert!(time > TIME_OFFSET && value[45..] == [0; 15]);
                let ingress = ingress_port.unwrap();
                format!("store {store} append {list} drop {key:?} {place:?} from {ingress} because {reason}")
            }
            TelemetryEntry::Congestion { time, key, place, occupancy, latency } => {
                assert!(time > TIME_OFFSET && value[48..] == [0; 12]);
                assert!(occupancy.is_some() && latency.is_some_and(|latency| latency >= 1));
                format!("store {store} append {list} congestion {key:?} {place:?}")
            }
            other => panic!("{other:?}"),
        },
        DtaBody::KeyIncrement { redundancy, key, delta } => {
            format!("store {store} key-increment {redundancy} {key:?} by {delta}")
        }
        DtaBody::Postcard { key, hop, path_length, value } => {
            format!("store {store} postcard {key:?} hop {hop} of {path_length} value {value}")
        }
        DtaBody::SketchMerge { .. } => panic!("no such report"),
    };
    let (sequence, restarted) = (report.sequence, report.restarted);
    Came { report: (to, text), sequence, restarted, moment, flow: None, packet: None, received: frame.time }
}

fn telemetry_report(frame: &Frame, datagram: &UdpDatagram<'_>) -> Came {
    assert_eq!(datagram.destination().port(), 54321);
    let settings = IntSettings { dialect: Dialect::SdFabric, ..IntSettings::default() };
    let payload = datagram.payload();
    let mut all = parse_reports(payload, &settings).unwrap();
    let source = all.datagram_source();
    assert_eq!((source.switch, source.hardware), (Some(SWITCH), 5));
    let report = all.next().unwrap().unwrap();
    let (local, flags) = (report.local, report.flags);
    let (dropped, congested, tracked) = (flags.dropped, flags.congested, flags.tracked);
    let packet = &payload[if dropped { 24 } else { 28 }..];
    let (ingress, out) =
        (u16::from_be_bytes([payload[16], payload[17]]), u16::from_be_bytes([payload[18], payload[19]]));
    let (queue, reason) = (payload[20], local.drop_reason());
    let moment = match (local.ingress_time(), local.egress_time()) {
        (Some(Time::Short(from)), Some(Time::Short(to))) => Some((to.into(), to.wrapping_sub(from))),
        _ => None,
    };
    let text = format!(
        "{dropped} {congested} {tracked} switch {SWITCH} {ingress} {out} {queue} {reason:?} {packet:?}"
    );
    let inside = Frame { port: 0, time: 0, bytes: packet.to_vec() };
    Came {
        report: (3, text),
        sequence: source.sequence,
        restarted: false,
        moment,
        flow: flows(packet).map(|(_, inner)| inner),
        packet: inside.id(),
        received: frame.time,
    }
}

/// Checks that the received reports are the expected ones, with their multiplicity.
fn compare(phase: u32, truth: &[PlainReport], reports: &[Came]) {
    let count = |all: &mut dyn Iterator<Item = &PlainReport>| {
        let mut counts = BTreeMap::<PlainReport, i64>::new();
        all.for_each(|report| *counts.entry(report.clone()).or_default() += 1);
        counts
    };
    let expected = count(&mut truth.iter());
    let found = count(&mut reports.iter().map(|came| &came.report));
    for (report, times) in &expected {
        assert_eq!(found.get(report).copied().unwrap_or(0), *times, "phase {phase}: {report:?}");
    }
    for (report, times) in &found {
        assert!(
            expected.contains_key(report),
            "phase {phase}: reported {times} times without a reason: {report:?}"
        );
    }
}

/// Splits a phase: the reports, and the forwarded frames by their id.
fn taken_apart(phase: &Phase) -> (Vec<Came>, Vec<&Frame>) {
    let (reports, forwarded): (Vec<_>, Vec<_>) = phase.received.iter().partition(|frame| frame.port >= 3);
    (reports.into_iter().map(came).collect(), forwarded)
}

/// Checks that frames were forwarded as the entries say, byte for byte; returns what should be reported of
/// each packet if everything is, in sending order.
fn forwarded<'a>(
    phase: &'a Phase,
    out: &[&Frame],
    room: &'a mut Vec<Vec<u8>>,
) -> Vec<(&'a Frame, Event<'a>)> {
    let mut expected = Vec::new();
    let mut pending = Vec::new();
    for frame in &phase.sent {
        match way(frame) {
            Way::Out(ports, bytes) => {
                for port in ports {
                    expected.push((port, bytes.clone()));
                    room.push(bytes.clone());
                    pending.push((frame, Some(room.len() - 1), port, 0));
                }
            }
            Way::Dropped(reason, port) => pending.push((frame, None, port.unwrap_or(u32::MAX), reason)),
        }
    }
    let mut found: Vec<_> = out.iter().map(|frame| (frame.port, frame.bytes.clone())).collect();
    expected.sort();
    found.sort();
    assert_eq!(found.len(), expected.len(), "frames forwarded");
    assert!(found == expected, "a frame was forwarded with other bytes, or another way");
    let room: &'a Vec<Vec<u8>> = room;
    pending
        .into_iter()
        .filter_map(|(frame, left, port, reason)| {
            let kinds = watched(&frame.bytes) & if left.is_some() { FLOW } else { DROP };
            // DSCP 46 has queue 3; what is dropped before has none.
            let dscp = ip_at(&frame.bytes).map_or(0, |ip| frame.bytes[ip + 1] >> 2);
            let event = Event {
                kinds,
                frame: left.map_or(&frame.bytes, |index| &room[index]),
                bytes: frame.bytes.len(),
                ingress: frame.port,
                egress: (port != u32::MAX).then_some(port),
                queue: (port != u32::MAX).then_some(if dscp == 46 { 3 } else { 0 }),
                reason,
            };
            (kinds != 0).then_some((frame, event))
        })
        .collect()
}

fn check(bytes: &[u8]) -> Capture {
    let capture = Capture::read(bytes);
    assert_eq!(capture.phases.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let mut sequences = BTreeMap::<u8, Vec<(u32, bool)>>::new();
    // The lowest and the highest that the switch's clock can be before the capture's.
    let (mut low, mut high) = (i128::MIN, i128::MAX);

    for (number, phase) in &capture.phases {
        let (reports, out) = taken_apart(phase);
        for came in &reports {
            sequences.entry(came.report.0).or_default().push((came.sequence, came.restarted));
        }
        let mut room = Vec::new();
        let events = forwarded(phase, &out, &mut room);
        match number {
            // Each packet.
            1 => {
                assert!(events.len() > 300, "only {} packets to report", events.len());
                let reasons: BTreeSet<u8> = events
                    .iter()
                    .filter(|(_, event)| event.kinds == DROP)
                    .map(|(_, event)| event.reason)
                    .collect();
                assert_eq!(
                    reasons,
                    BTreeSet::from([26, 29, 55, 80, 89, 128, 130, 134]),
                    "reasons that came up"
                );
                let truth: Vec<PlainReport> =
                    events.iter().flat_map(|(_, event)| reports_of(event)).collect();
                compare(*number, &truth, &reports);
                times_agree(&reports);
                (low, high) = clocks(phase, &reports);
            }
            // Each flow once in each interval in which it had a packet.
            2 => {
                let mut demanded = BTreeSet::new();
                for (frame, event) in &events {
                    let left = out.iter().find(|one| one.id() == frame.id()).expect("it was forwarded");
                    let earliest = (frame.time + low.min(high) - DRIFT) >> INTERVAL;
                    let latest = (left.time + low.max(high) + DRIFT) >> INTERVAL;
                    let flow = flows(event.frame).unwrap().1;
                    if earliest == latest {
                        demanded.insert((flow, earliest));
                    }
                }
                let watched: BTreeSet<Flow> = demanded.iter().map(|(flow, _)| *flow).collect();
                assert_eq!(watched.len(), 4, "flows of which a packet was surely in one interval");
                let mut found = BTreeSet::new();
                for came in reports.iter().filter(|came| came.report.0 == 3) {
                    let (time, flow) = (full_time(came, &reports), came.flow.unwrap());
                    let new = found.insert((flow, i128::from(time) >> INTERVAL));
                    assert!(new, "{flow} was reported twice in one interval");
                }
                let missing: Vec<_> = demanded.difference(&found).collect();
                assert!(missing.is_empty(), "not reported in an interval: {missing:?}");
                let others: Vec<_> = found.iter().filter(|(flow, _)| !watched.contains(flow)).collect();
                assert!(others.is_empty(), "not watched, and reported: {others:?}");
                // And each with all its reports.
                let of: BTreeSet<u16> = reports.iter().filter_map(|came| came.packet).collect();
                let reported =
                    events.iter().filter(|(frame, _)| frame.id().is_some_and(|id| of.contains(&id)));
                let truth: Vec<PlainReport> = reported.flat_map(|(_, event)| reports_of(event)).collect();
                compare(*number, &truth, &reports);
            }
            // At each change of port and queue.
            3 => {
                let mut last = BTreeMap::new();
                let changed = |(_, event): &&(&Frame, Event<'_>)| {
                    let now = (event.ingress, event.egress, event.queue);
                    last.insert(flows(event.frame).unwrap().1, now) != Some(now)
                };
                let truth: Vec<PlainReport> =
                    events.iter().filter(changed).flat_map(|(_, event)| reports_of(event)).collect();
                assert_eq!(truth.len() / 8, 11, "changes");
                compare(*number, &truth, &reports);
            }
            // A congested queue: three packets, and three behind the reset; the first one is a new flow.
            4 => {
                let kinds =
                    [vec![FLOW | QUEUE, QUEUE, QUEUE], vec![0; 13], vec![QUEUE; 3], vec![0; 5]].concat();
                assert_eq!(events.len(), kinds.len());
                let truth = events.into_iter().zip(kinds).filter(|(_, kinds)| *kinds != 0);
                let truth: Vec<PlainReport> =
                    truth.flat_map(|((_, event), kinds)| reports_of(&Event { kinds, ..event })).collect();
                compare(*number, &truth, &reports);
            }
            // At each change of the latency from one range of 2^10 ns to another, and no other packet.
            _ => {
                let of: BTreeSet<u16> = reports.iter().filter_map(|came| came.packet).collect();
                let reported: Vec<_> = events
                    .iter()
                    .filter(|(frame, _)| frame.id().is_some_and(|id| of.contains(&id)))
                    .collect();
                let truth: Vec<PlainReport> =
                    reported.iter().flat_map(|(_, event)| reports_of(event)).collect();
                compare(*number, &truth, &reports);
                let telemetry = reports.iter().filter(|came| came.report.0 == 3);
                let latencies: Vec<u32> = telemetry.map(|came| came.moment.unwrap().1 >> 10).collect();
                assert!(latencies.len() > 1, "no change of 60 latencies was reported");
                assert!(
                    latencies.windows(2).all(|two| two[0] != two[1]),
                    "reported without a change: {latencies:?}"
                );
            }
        }
    }
    for (destination, mut numbers) in sequences {
        numbers.sort_unstable();
        let want: Vec<_> =
            (0..).map(|number| (number, number == 0 && destination != 3)).take(numbers.len()).collect();
        assert!(numbers == want, "sequences to destination {destination}, and which report begins them");
    }
    capture
}

/// Each Telemetry Report of a flow has the time and latency of a hop-latency report.
fn times_agree(reports: &[Came]) {
    let moments = |telemetry: bool| {
        let of = reports.iter().filter(|came| (came.report.0 == 3) == telemetry);
        let mut all: Vec<_> =
            of.filter_map(|came| came.moment).map(|(time, latency)| (time as u32, latency)).collect();
        all.sort_unstable();
        all
    };
    let (of_dta, of_telemetry) = (moments(false), moments(true));
    assert!(!of_dta.is_empty() && of_dta == of_telemetry, "times and latencies");
}

/// The whole time of a Telemetry Report: that of the hop-latency report that was received next to it.
fn full_time(report: &Came, all: &[Came]) -> u64 {
    let (low, latency) = report.moment.unwrap();
    let same = all.iter().filter(|came| came.report.0 == 1);
    let same = same.filter_map(|came| {
        came.moment.filter(|(time, of)| (*time as u32, *of) == (low as u32, latency)).map(|m| (came, m.0))
    });
    same.min_by_key(|(came, _)| (came.received - report.received).abs())
        .expect("a report of its hop latency")
        .1
}

/// Bounds of the switch's lead over the capture's clock.
fn clocks(phase: &Phase, reports: &[Came]) -> (i128, i128) {
    let sent: BTreeMap<_, _> =
        phase.sent.iter().filter_map(|frame| Some((frame.id()?, frame.time))).collect();
    let (mut low, mut high) = (i128::MIN, i128::MAX);
    for came in reports.iter().filter(|came| came.report.0 == 3 && came.moment.is_some()) {
        let time = i128::from(full_time(came, reports));
        low = low.max(time - came.received);
        high = high.min(time - sent[&came.packet.unwrap()]);
    }
    assert!(high - low < 5_000_000_000 && low - high < DRIFT, "the clock is between {low} and {high}");
    (low, high)
}

#[test]
fn the_committed_capture_holds_the_reports_of_its_packets() {
    let bytes = tool(Command::new("gzip").arg("-dc").arg(folder().join("reports.cap.gz")));
    let capture = check(&bytes);
    let program = std::fs::read_to_string(folder().join("sources.sha256")).unwrap();
    assert_eq!(
        capture.program, program,
        "the capture is of another program: run `reporter-p4/test/run --commit`"
    );
}

#[test]
#[ignore = "reads the capture of a run on bmv2, which reporter-p4/test/run makes"]
fn a_run_on_bmv2_reports_its_packets() {
    let Some(capture) = std::env::var_os("DTA_REPORTER_CAPTURE") else {
        println!("SKIPPED: reporter-p4: no DTA_REPORTER_CAPTURE; reporter-p4/test/run sets it");
        return;
    };
    check(&std::fs::read(capture).unwrap());
}

#[test]
fn the_compiled_program_is_that_of_the_sources() {
    let digest = folder().join("sources.sha256");
    let program = folder().join("../..");
    tool(
        Command::new("sha256sum").args(["--check", "--strict", "--quiet"]).arg(&digest).current_dir(&program),
    );
    let listed = std::fs::read_to_string(&digest).unwrap();
    let listed: BTreeSet<_> =
        listed.lines().filter_map(|line| line.split_once("  ")).map(|(_, name)| name.to_owned()).collect();
    for part in ["shared", "v1model"] {
        for file in std::fs::read_dir(program.join(part)).unwrap() {
            let name = format!("{part}/{}", file.unwrap().file_name().to_string_lossy());
            assert!(
                !name.ends_with(".p4") || listed.contains(&name),
                "{name} is not compiled: run reporter-p4/compile"
            );
        }
    }
}

/// One block of P4Info's text: its own lines, and the blocks in it.
#[derive(Default)]
struct Block {
    lines: BTreeMap<String, String>,
    blocks: Vec<(String, Block)>,
}

impl Block {
    fn read(lines: &mut std::str::Lines<'_>) -> Block {
        let mut block = Block::default();
        while let Some(line) = lines.next().map(str::trim).filter(|line| *line != "}") {
            if let Some(name) = line.strip_suffix(" {") {
                block.blocks.push((name.to_owned(), Block::read(lines)));
            } else if let Some((name, value)) = line.split_once(": ") {
                block.lines.insert(name.to_owned(), value.trim_matches('"').to_owned());
            }
        }
        block
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Block> {
        self.blocks.iter().filter(move |(one, _)| one == name).map(|(_, block)| block)
    }

    fn name(&self) -> &str {
        self.all("preamble").next().map_or_else(|| &*self.lines["name"], |preamble| &*preamble.lines["name"])
    }
}

#[test]
fn the_readme_has_the_tables_of_the_program() {
    let info = std::fs::read_to_string(folder().join("reporter.p4info.txtpb")).unwrap();
    let readme = std::fs::read_to_string(folder().join("../../README.md")).unwrap();
    let info = Block::read(&mut info.lines());
    let actions: BTreeMap<&str, &Block> = info
        .all("actions")
        .map(|action| (&*action.all("preamble").next().unwrap().lines["id"], action))
        .collect();
    let mut rows = BTreeSet::new();
    for table in info.all("tables") {
        let keys: Vec<_> = table
            .all("match_fields")
            .map(|key| {
                format!(
                    "`{}` {} {}",
                    key.name(),
                    key.lines["bitwidth"],
                    key.lines["match_type"].to_lowercase()
                )
            })
            .collect();
        let keys = if keys.is_empty() { "none".to_owned() } else { keys.join(", ") };
        let of_table: Vec<_> = table
            .all("action_refs")
            .map(|action| actions[&*action.lines["id"]])
            .filter(|action| action.name() != "NoAction")
            .map(|action| {
                let params =
                    action.all("params").map(|param| format!("{} {}", param.name(), param.lines["bitwidth"]));
                format!("`{}({})`", action.name(), params.collect::<Vec<_>>().join(", "))
            })
            .collect();
        let size = &table.lines["size"];
        rows.insert(format!("| `{}` | {size} | {keys} | {} |", table.name(), of_table.join("; ")));
    }
    assert!(rows.len() >= 12);
    for row in &rows {
        assert!(readme.contains(row.as_str()), "reporter-p4/README.md lacks\n{row}");
    }
    let written =
        readme.lines().filter(|line| line.starts_with("| `Arrival.") || line.starts_with("| `Departure."));
    let written = written.filter(|line| line.matches('|').count() == 5);
    assert_eq!(written.count(), rows.len(), "rows of tables in reporter-p4/README.md");
    for counter in info.all("counters").chain(info.all("direct_counters")) {
        let last = counter.name().rsplit('.').next().unwrap();
        assert!(
            readme.contains(&format!("`{}`", counter.name())) || readme.contains(&format!("`{last}`")),
            "{last}"
        );
    }
}

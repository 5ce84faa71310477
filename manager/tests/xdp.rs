//! Collector and translator, each a process, whose frames go by AF_XDP over a veth pair, or which take reports so.

mod common;
mod exact;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::daemon::counter;
use common::int_bed::{self, IntBed, Setup, int_capture};
use common::manager;
use common::namespaces::{Namespaces, run};
use dta_proto::control::Policy;
use dta_proto::flow_query::{FLOW_COLUMNS, FlowQuestion, FlowRow, FlowSum, flow_from_values};
use dta_proto::key::Key;
use dta_proto::telemetry::{Metric, TelemetryEntry, TimedValue, list};
use dta_proto::wire::dta::{DtaBody, DtaReport, Nack};
use dta_rpc::{Ask, AskKeys};
use dta_telemetry::flows::emit;
use dta_telemetry::int::emit::{EmittedDatagram, EmittedPacket, EmittedReport, Hop, Local, Stack};
use dta_telemetry::int::{Fill, Flags, IntVersion, ReportVersion};
use exact::{Bed, Counted, KEYS, PATIENCE};
use rustix::thread::UnshareFlags;

/// Runs `test` in a thread with a network namespace of its own, in which `near` and `far` are the ends of a veth
/// pair. Its child processes are in there, too.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let joined = std::thread::spawn(|| {
        enter_namespace();
        for step in
            ["link set lo up", "link add near type veth peer name far", "link set near up", "link set far up"]
        {
            let status = Command::new("ip").args(step.split(' ')).status().expect("iproute2 is installed");
            assert!(status.success(), "ip {step}");
        }
        test();
    })
    .join();
    if let Err(panic) = joined {
        std::panic::resume_unwind(panic);
    }
}

#[allow(unsafe_code)]
fn enter_namespace() {
    // SAFETY: a new network namespace does not touch file descriptors or memory that others rely on.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.expect("root may make namespaces");
}

/// What is at an interface, by `ip -d link`.
fn link_of(interface: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", interface]).output().expect("iproute2");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn answers_exactly(transport: &str, [nic, source]: [&str; 2]) {
    let collector = format!(
        "listen = '127.0.0.1:0'\ntransport = '{transport}'\n\
         [soft]\naddress = '{nic}'\nlink = 'xdp:near'\nmac = '02:00:00:00:08:01'"
    );
    let mut bed = Bed::start(&collector, &format!("source = '{source}'\nlink = 'xdp:far'"), || ());
    for interface in ["near", "far"] {
        assert!(link_of(interface).contains("prog/xdp"), "{}", link_of(interface));
    }
    let landed = |counted: &Counted| {
        let executed = counted.nic("executed.write") + counted.nic("executed.fetch_add");
        executed == counted.translator("operations")
            && counted.translator("link.roce.sent") == counted.nic("link.received")
            && counted.translator("link.roce.received") == counted.nic("link.sent")
    };
    let counted = bed.answers_exactly(landed).await;
    assert!(counted.translator("link.roce.sent") > KEYS.into());
    assert!(counted.translator("link.roce.received") > 0);
    // What has ended has left nothing at the interfaces.
    drop(bed);
    let begun = Instant::now();
    while ["near", "far"].iter().any(|interface| link_of(interface).contains("prog/xdp")) {
        assert!(begun.elapsed() < PATIENCE, "{}{}", link_of("near"), link_of("far"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn answers_over_af_xdp_are_exact() {
    let (ipv4, ipv6) = (["10.8.0.1", "10.8.0.2"], ["2001:db8::1", "2001:db8::2"]);
    for (transport, addresses) in [("uc", ipv4), ("rc", ipv4), ("rc", ipv6)] {
        in_namespace(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(answers_exactly(transport, addresses));
        });
    }
}

/// Sockets in the sender's namespace, whose datagrams the sending end spreads over its queues.
const SENDERS: usize = 32;
/// Reports of each of them.
const REPORTS: u32 = 100;
/// Of the store `int-values`, which is there without a configuration.
const VALUES_STORE: u16 = 17;

fn report_key(sender: usize, number: u32) -> Key {
    let mut key = [0xa5; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    key[4] = sender as u8;
    Key(key)
}

fn report_value(sender: usize, number: u32) -> Vec<u8> {
    [number ^ 0x5a5a_0000, sender as u32, 7].map(u32::to_be_bytes).concat()
}

/// Sends the reports of all senders, each a reporter, and waits until the translator has them. One report of the first
/// is left out, and must be asked for.
async fn send_reports(bed: &mut IntBed, senders: &[UdpSocket], to: &str) {
    for number in 0..REPORTS {
        for (sender, socket) in senders.iter().enumerate() {
            if (sender, number) == (0, 10) {
                continue;
            }
            let value = report_value(sender, number);
            let body = DtaBody::KeyWrite { redundancy: 0, key: report_key(sender, number), value: &value };
            let report = DtaReport {
                sequence: number,
                reporter: 1 + sender as u16,
                retransmittable: true,
                ..DtaReport::new(VALUES_STORE, body)
            };
            let mut bytes = [0; 200];
            let len = report.encode_into(&mut bytes).unwrap();
            socket.send_to(&bytes[..len], to).unwrap();
        }
        // Less than a queue holds is on its way.
        if number % 25 == 24 {
            let least = u64::from(number) * senders.len() as u64;
            bed.until("reports", |counted| counted.own("received") >= least).await;
        }
    }
    let all = u64::from(REPORTS) * senders.len() as u64 - 1;
    bed.until("reports in memory", |counted| counted.own("received") == all && counted.is_executed()).await;
    let mut nack = [0; 64];
    senders[0].set_read_timeout(Some(PATIENCE)).unwrap();
    let (len, from) = senders[0].recv_from(&mut nack).unwrap();
    assert_eq!(from.to_string(), to);
    assert_eq!(Nack::parse_payload(&nack[..len]).unwrap(), Nack::V1 { reporter: 1, first: 10, count: 1 });
}

/// Asks for all reports that were sent.
async fn reported(bed: &IntBed, senders: usize) {
    for sender in 0..senders {
        let keys: Vec<_> = (0..REPORTS).map(|number| report_key(sender, number)).collect();
        let answers = bed.client.key_write("int-values", &keys, Policy::First, 0).await.unwrap();
        for (number, answer) in (0..).zip(answers) {
            let expected = ((sender, number) != (0, 10)).then(|| report_value(sender, number));
            assert_eq!(answer.value, expected, "report {number} of {sender}");
        }
    }
}

/// A datagram of NetFlow v5 with a record of one flow.
fn netflow(number: u16) -> Vec<u8> {
    let mut bytes = [5, 1].map(u16::to_be_bytes).concat();
    bytes.resize(16, 0);
    bytes.extend(u32::from(number).to_be_bytes());
    bytes.resize(24, 0);
    bytes.extend([[10, 0, 0, 1], [10, 0, 0, 2]].concat());
    bytes.extend([0; 8]);
    bytes.extend([7, 1000 + u32::from(number)].map(u32::to_be_bytes).concat());
    bytes.extend([0; 8]);
    bytes.extend([number, 443].map(u16::to_be_bytes).concat());
    bytes.extend([0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    bytes
}

/// What is in memory after everything was sent, and what was counted.
#[derive(Debug, PartialEq)]
struct InMemory {
    /// Events without their times.
    events: BTreeSet<String>,
    values: BTreeMap<[u8; 16], Option<u32>>,
    /// Packets and bytes of each flow, by its source port.
    flows: BTreeMap<u16, (u64, u64)>,
    counters: BTreeMap<String, u64>,
}

/// Sends reports, a capture of INT and NetFlow from the other end of a pair with two queues to a translator that listens
/// at these places, and collects what came of them.
async fn in_memory(
    ground: &Namespaces,
    [listen, int, flows]: [&str; 3],
) -> Option<(InMemory, BTreeMap<String, u64>)> {
    let capture = int_capture("int-v1.0-6-hops-all-fields.pcap")?;
    let tables = format!(
        "[translator.int]\nlisten = ['{int}?dialect=auto']\ntimestamps = 'raw'\n[translator.flows]\nlisten = ['{flows}']\n"
    );
    let setup = Setup { listen: Some(listen), translator: &tables, ..Setup::default() };
    let mut bed = IntBed::start(&setup).await;
    let open = || (0..SENDERS).map(|_| UdpSocket::bind("10.98.0.1:0").unwrap()).collect::<Vec<_>>();
    let senders = ground.inside(0, open);
    send_reports(&mut bed, &senders, "10.98.0.2:40040").await;
    reported(&bed, SENDERS).await;

    let replay = ["replay", capture.to_str().unwrap(), "--to", "10.98.0.2:32766", "--port", "54321,32766"];
    let output = ground.inside(0, || manager(&replay));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for number in 0..300 {
        senders[usize::from(number) % 2].send_to(&netflow(number), "10.98.0.2:2055").unwrap();
    }
    let counted = bed
        .until("everything in memory", |counted| {
            let own = |name| counted.own(name);
            let taken = own("int.reports") == 100 && own("flows.datagrams") == 300;
            let waits = own("int.counts_held") + own("held");
            taken && waits == 0 && counted.is_executed()
        })
        .await;

    let (mut events, mut keys) = (BTreeSet::new(), BTreeSet::new());
    for of in [list::CHANGES, list::KEYS] {
        let (entries, lost) = bed.entries(of).await;
        assert_eq!(lost, 0, "list {of}");
        for entry in entries {
            if let TelemetryEntry::Change { key, .. } = entry {
                keys.insert(key.0);
            }
            let text = format!("{entry:?}");
            let (before, after) = text.split_once("time: ").unwrap_or((&text, ""));
            events.insert(format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit())));
        }
    }
    assert!(keys.len() > 100, "{events:?}");
    let all: Vec<_> = keys.iter().map(|key| Key(*key)).collect();
    let answers = bed.client.key_write("int-values", &all, Policy::First, 0).await.unwrap();
    let value = |bytes: &[u8]| TimedValue::parse_bytes(bytes).unwrap().value;
    let values = answers.iter().map(|answer| answer.value.as_deref().map(value));
    let values = keys.into_iter().zip(values).collect();
    let question = FlowQuestion { group: FLOW_COLUMNS.iter().collect(), ..FlowQuestion::default() };
    let (answer, _) = bed.client.query_flows("", &question, FlowSum::Bytes, u32::MAX as usize).await.unwrap();
    let flow =
        |row: &FlowRow| (flow_from_values(&row.values).unwrap().sport, (row.sums.packets, row.sums.bytes));
    let flows: BTreeMap<_, _> = answer.rows.iter().map(flow).collect();
    let expected: BTreeMap<_, _> = (0..300).map(|number| (number, (7, 1000 + u64::from(number)))).collect();
    assert_eq!(flows, expected);

    let all = counted.all_own();
    // What depends on how reports arrived together is left out.
    let is_of_input = |name: &str| {
        let of_link = ["link.reports.", "link.int.", "link.flows."].iter().any(|link| name.starts_with(link));
        let counts = ["int.", "flows.", "dropped.", "key_write.", "received", "accepted", "nacks"]
            .iter()
            .any(|part| name.starts_with(part));
        (of_link && !name.contains(".xdp.")) || (counts && !name.contains("counts_"))
    };
    let counters =
        all.iter().filter(|(name, _)| is_of_input(name)).map(|(name, count)| (name.clone(), *count));
    Some((InMemory { events, values, flows, counters: counters.collect() }, all))
}

/// Whether the second end of the pair answers an echo request.
fn is_answered_by_ping() -> bool {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto, sockopt};
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
    // Type, code, checksum, identifier and number.
    let request = [8, 0, 0xe5, 0xc8, 0x12, 0x34, 0, 3];
    let to = std::net::SocketAddrV4::new([10, 98, 0, 2].into(), 0);
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &to).unwrap();
    let mut packet = [0; 100];
    let (len, _) = rustix::net::recv(&socket, &mut packet, RecvFlags::empty()).unwrap();
    packet[20..len] == [0, 0, 0xed, 0xc8, 0x12, 0x34, 0, 3]
}

/// Whether other traffic passes between the ends while reports are taken: ping, a connection, and datagrams.
fn other_traffic_passes(ground: &Namespaces) {
    ground.inside(0, || assert!(is_answered_by_ping()));
    let (tcp, udp) = (TcpListener::bind("10.98.0.2:0").unwrap(), UdpSocket::bind("10.98.0.2:0").unwrap());
    let (to, udp_to) = (tcp.local_addr().unwrap(), udp.local_addr().unwrap());
    ground.inside(0, || {
        TcpStream::connect(to).unwrap().write_all(&[7; 100_000]).unwrap();
        UdpSocket::bind("10.98.0.1:0").unwrap().send_to(&[8; 100], udp_to).unwrap();
    });
    let copied = std::io::copy(&mut tcp.accept().unwrap().0, &mut std::io::sink()).unwrap();
    assert_eq!(copied, 100_000);
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(udp.recv(&mut [0; 200]).unwrap(), 100);
}

/// Runs `test` in the second namespace of a pair with two queues at each end.
fn between_two_queues(test: impl AsyncFnOnce(&Namespaces) + Send) {
    let ground = Namespaces::with_queues(2);
    ground.inside(1, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(&ground));
    });
}

/// How many frames the program saw on each queue of `vb`.
fn frames_by_queue() -> Vec<u64> {
    let statistics = run("ethtool -S vb");
    let of_queue = |line: &str| {
        let (name, count) = line.trim().split_once(": ")?;
        (name.starts_with("rx_queue_") && name.ends_with("_xdp_packets")).then(|| count.parse().unwrap())
    };
    statistics.lines().filter_map(of_queue).collect()
}

#[test]
#[ignore = "needs root and ethtool: makes two network namespaces with a veth pair"]
fn reports_int_and_flows_are_the_same_by_af_xdp_as_by_sockets() {
    between_two_queues(async |ground| {
        let sockets = ["10.98.0.2:40040", "udp://10.98.0.2:32766", "udp://10.98.0.2:2055"];
        let Some((by_sockets, _)) = in_memory(ground, sockets).await else { return };
        let (by_xdp, counters) = in_memory(ground, ["xdp:vb", "xdp:vb", "xdp:vb"]).await.unwrap();
        assert_eq!(by_xdp, by_sockets);
        for link in ["reports", "int", "flows"] {
            let count = |what: &str| counters.get(&format!("link.{link}.{what}")).copied();
            assert_eq!(count("xdp.received"), count("received"), "{counters:#?}");
        }
        let queues = frames_by_queue();
        assert!(queues.len() == 2 && queues.iter().all(|frames| *frames > 100), "{queues:?}");
    });
}

/// The payloads of UDP datagrams in a capture of Ethernet.
fn payloads_of(capture: &str) -> Option<Vec<Vec<u8>>> {
    let bytes = std::fs::read(int_capture(capture)?).unwrap();
    let (mut rest, mut payloads) = (&bytes[24..], Vec::new());
    while let Some(header) = rest.first_chunk::<16>() {
        let len = u32::from_le_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let frame = &rest[16..16 + len];
        rest = &rest[16 + len..];
        let udp = 14 + usize::from(frame[14] & 0xf) * 4;
        let end = udp + usize::from(u16::from_be_bytes([frame[udp + 4], frame[udp + 5]]));
        payloads.push(frame[udp + 8..end].to_vec());
    }
    Some(payloads)
}

/// Any generator does; this one is xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Where int_flood's reports have their switch, their reported packet, and the values of each hop.
const FLOOD_SWITCH: usize = 4;
const FLOOD_IP: usize = 16 + 14;
const FLOOD_STACK: usize = FLOOD_IP + 20 + 8 + 4 + 8;
const FLOOD_HOP: usize = 36;

/// A flood as of dta-telemetry's `int_flood`, of a hundred random flows: from several switches, some unknown, with gaps
/// between their numbers; some values are new, and some reports are damaged anywhere.
fn flood_reports(count: usize) -> Vec<Vec<u8>> {
    let hop = Hop {
        switch: Some(1),
        ports: [Some(1), Some(2)],
        latency: Some(1),
        queue: Fill { id: Some(1), value: Some(1) },
        ingress_time: Some(1),
        egress_time: Some(2),
        level2: [Some(1), Some(2)],
        utilization: Some(1),
        ..Hop::default()
    };
    let packet = EmittedPacket::new("10.0.0.1:5000->10.0.0.2:80/udp".parse().unwrap())
        .with_stack(Stack::new(IntVersion::V10, 0xff00, vec![hop; 3]));
    let flags = Flags { tracked: true, ..Flags::default() };
    let report =
        EmittedReport { flags, local: Local::Nothing, hop, halved_queue: false, packet, ethernet: true };
    let template = EmittedDatagram {
        version: ReportVersion::V10,
        version_nibble: 0,
        switch: 9,
        hardware: 1,
        sequence: 0,
        reports: vec![report],
    }
    .to_bytes();
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut made = |number: usize| {
        let mut datagram = template.clone();
        let flow = random.below(100);
        let mut of_flow = Random(0x9abc_def1_1234_5678 + flow);
        let switch = if random.below(16) == 0 { random.below(1 << 32) as u32 } else { 9 + flow as u32 % 3 };
        datagram[FLOOD_SWITCH..FLOOD_SWITCH + 4].copy_from_slice(&switch.to_be_bytes());
        let sequence = number as u32 + random.below(3) as u32;
        datagram[FLOOD_SWITCH + 4..FLOOD_SWITCH + 8].copy_from_slice(&sequence.to_be_bytes());
        datagram[FLOOD_IP + 12..FLOOD_IP + 20].copy_from_slice(&of_flow.below(u64::MAX).to_be_bytes());
        for hop in datagram[FLOOD_STACK..].chunks_exact_mut(FLOOD_HOP) {
            let (switch, values) = (of_flow.below(100) as u32, of_flow.below(u64::MAX));
            let is_new = random.below(30) == 0;
            let values = if is_new { random.below(u64::MAX) } else { values };
            hop[..4].copy_from_slice(&switch.to_be_bytes());
            hop[8..16].copy_from_slice(&values.to_be_bytes());
        }
        if random.below(16) == 0 {
            // But for the version: datagrams of v2.0 have any number of reports.
            let at = 1 + random.below(datagram.len() as u64 - 1) as usize;
            datagram[at] = random.below(256) as u8;
        }
        datagram
    };
    (0..count).map(&mut made).collect()
}

/// Reports of 40 flows through 3 to 6 hops, whose values mostly stay: in v0.5 and v1.0, over TCP and UDP, some with a hop
/// of the reporting switch, some that the program leaves to the translator.
fn generated_reports(rounds: u32) -> Vec<Vec<u8>> {
    let mut generator = Random(0x1234_5678_9abc_def1);
    let mut random = move |bound: u64| generator.below(bound);
    let mut sequences = [0; 4];
    let report = |flow: u64| {
        let is_v05 = flow.is_multiple_of(2);
        let hops = (0..3 + flow % 4).map(|hop| {
            let moved = u64::from(random(300) == 0);
            let or_unknown = |value: u64| (flow % 7 != 6).then_some(value as u32);
            Hop {
                switch: or_unknown(1 + hop + moved),
                ports: [Some(1), Some(2 + (random(200) == 0) as u16)],
                latency: (flow % 5 != 4).then(|| 100 + random(20) as u32 + 400 * u32::from(random(150) == 0)),
                queue: Fill { id: Some(1), value: Some(if random(400) == 0 { 70 } else { 9 }) },
                ingress_time: Some(random(1 << 31)),
                egress_time: Some(random(1 << 31)),
                congestion: Fill { id: Some(1), value: Some(4 + random(2) as u32) },
                utilization: or_unknown(50 + random(4)),
                ..Hop::default()
            }
        });
        let proto = if flow.is_multiple_of(3) { "tcp" } else { "udp" };
        let key = format!("10.0.0.{}:{}->10.0.1.1:80/{proto}", 1 + flow, 5000 + flow);
        let version = if is_v05 { IntVersion::V05 } else { IntVersion::V10 };
        let packet =
            EmittedPacket::new(key.parse().unwrap()).with_stack(Stack::new(version, 0xff00, hops.collect()));
        let dropped = random(300) == 0;
        let flags = Flags { tracked: true, congested: random(300) == 0, dropped, ..Flags::default() };
        let local = match (flow % 8, is_v05) {
            (4, true) => Local::SwitchLocal,
            (5, false) => Local::Bits(0b11_1100),
            _ => Local::Nothing,
        };
        let queue = Fill { id: Some(2), value: Some(1 + random(3) as u32) };
        let (ports, latency) = ([Some(4), Some(5)], Some(60));
        let hop = Hop {
            switch: Some(9),
            ports,
            latency,
            queue,
            ingress_time: Some(random(1 << 31)),
            egress_time: Some(random(1 << 31)),
            ..Hop::default()
        };
        let report = EmittedReport { flags, local, hop, halved_queue: false, packet, ethernet: true };
        let sequence = &mut sequences[flow as usize % 4];
        *sequence += 1;
        let version = if is_v05 { ReportVersion::V05 } else { ReportVersion::V10 };
        let switch = flow as u32 % 4;
        let reports = vec![report];
        EmittedDatagram { version, version_nibble: 0, switch, hardware: 1, sequence: *sequence, reports }
            .to_bytes()
    };
    (0..rounds).flat_map(|_| 0..40).map(report).collect()
}

/// What came of reports.
#[derive(PartialEq)]
struct Outcome {
    /// In their order.
    changes: Vec<TelemetryEntry>,
    values: BTreeMap<[u8; 16], Option<Vec<u8>>>,
    paths: BTreeMap<[u8; 16], Option<Vec<u8>>>,
    counts: BTreeMap<[u8; 16], u64>,
    counters: BTreeMap<String, u64>,
}

/// Sends reports to a translator that listens so, in bursts that it takes one after the other, and collects what came of
/// them, and how many the program has dropped.
async fn outcome_of(
    ground: &Namespaces,
    listen: &str,
    keys: usize,
    reports: &[Vec<u8>],
    burst: usize,
) -> (Outcome, u64) {
    let metrics = [
        "flow-path",
        "flow-latency",
        "hop-latency",
        "queue-occupancy",
        "queue-congestion",
        "link-utilization",
    ]
    .map(|metric| format!("[translator.int.metric.{metric}]\nkeep_alive_ms = 0\n"))
    .concat();
    // Paths of switches that report for themselves are learned for longer than this takes, so that time does not matter.
    let tables = format!(
        "[translator.int]\nlisten = ['{listen}']\ntimestamps = 'raw'\nlearning_ms = 3600000\nkeys = {keys}\n{metrics}"
    );
    let setup = Setup { translator: &tables, ..Setup::default() };
    let mut bed = IntBed::start(&setup).await;
    let socket = ground.inside(0, || UdpSocket::bind("10.98.0.1:0").unwrap());
    let mut sent = 0;
    for burst in reports.chunks(burst) {
        burst.iter().for_each(|report| _ = socket.send_to(report, "10.98.0.2:32766").unwrap());
        sent += burst.len() as u64;
        bed.until("reports", |counted| counted.own("int.reports") == sent).await;
    }
    let counted = bed.until("reports in memory", |counted| counted.is_in_memory(sent)).await;
    let (mut changes, lost) = bed.entries(list::CHANGES).await;
    assert_eq!(lost, 0);
    let mut of_metric = BTreeSet::new();
    for entry in &mut changes {
        if let TelemetryEntry::Change { key, metric, time, .. } = entry {
            of_metric.insert(key.0);
            // The path of switches that report for themselves has the time of arrival.
            *time *= u64::from(*metric != Metric::FlowPath);
        }
    }
    let keys: Vec<_> = of_metric.into_iter().map(Key).collect();
    let values = |store: &'static str| {
        let (client, keys) = (&bed.client, &keys);
        async move {
            let answers = client.key_write(store, keys, Policy::First, 0).await.unwrap();
            keys.iter().map(|key| key.0).zip(answers.into_iter().map(|answer| answer.value)).collect()
        }
    };
    let (values, paths) = (values("int-values").await, values("int-paths").await);
    let counts = bed.client.query_counters("int-counters", &keys).await.unwrap();
    let counts = keys.iter().map(|key| key.0).zip(counts.iter().map(|answer| answer.value)).collect();
    let is_of_input = |name: &str| {
        let counts = ["int.", "link.int."].iter().any(|part| name.starts_with(part));
        // What depends on how reports arrived together, and on when they were counted, is left out.
        let together = ["int.primitives", "int.superseded", "int.counts_"];
        counts && !name.contains(".xdp.") && !together.iter().any(|part| name.starts_with(part))
    };
    let all = counted.all_own();
    let counters =
        all.iter().filter(|(name, _)| is_of_input(name)).map(|(name, count)| (name.clone(), *count));
    let dropped = all.get("link.int.xdp.unchanged").copied().unwrap_or(0);
    (Outcome { changes, values, paths, counts, counters: counters.collect() }, dropped)
}

#[test]
#[ignore = "needs root: makes two network namespaces with a veth pair"]
fn events_are_the_same_where_the_program_drops_unchanged_reports() {
    between_two_queues(async |ground| {
        let mut inputs =
            vec![("generated", generated_reports(20), "auto"), ("flood", flood_reports(2000), "auto")];
        for (capture, dialect) in [
            ("int-v0.5-6-hops-all-fields.pcap", "intcollector"),
            ("int-v1.0-6-hops-all-fields.pcap", "intcollector"),
            ("int-v0.5-latency-events.pcap", "intcollector"),
            ("int-v0.5-1000-flows-paths.pcap", "intcollector"),
            ("sdfabric-v0.5-real-traffic.pcap", "sdfabric"),
        ] {
            // More than once, so that most say nothing new.
            inputs.extend(payloads_of(capture).map(|mut reports| {
                reports.truncate(200);
                (capture, vec![reports; 3].concat(), dialect)
            }));
        }
        for (name, reports, dialect) in &inputs {
            let is_left = |(index, _): &(usize, &Vec<u8>)| index * 7 % 10 != 3;
            let with_loss: Vec<_> =
                reports.iter().enumerate().filter(is_left).map(|(_, report)| report.clone()).collect();
            let few = &with_loss[..with_loss.len().min(120)];
            // Small tables are full at once. Which key gives its place then depends on the batch, so reports come one by one.
            for (keys, reports, burst) in
                [(1 << 16, &reports[..], 20), (1 << 16, &with_loss[..], 20), (64, few, 1)]
            {
                let at = |place: &str, more: &str| format!("{place}?dialect={dialect}{more}");
                let plain = at("udp://10.98.0.2:32766", "");
                let (plain, _) = outcome_of(ground, &plain, keys, reports, burst).await;
                let kernel = at("xdp:vb", "&events=kernel");
                let (kernel, dropped) = outcome_of(ground, &kernel, keys, reports, burst).await;
                let case = format!("{name}, {keys} keys, {} reports, {dropped} dropped", reports.len());
                println!("{case}");
                assert_eq!(kernel.counters, plain.counters, "{case}");
                assert_eq!(kernel.changes, plain.changes, "{case}");
                assert!(kernel == plain, "{case}");
                let can_be_dropped = !name.starts_with("sdfabric") && keys > 64;
                // While one waits for the translator, the others of its burst are passed on.
                assert!(!can_be_dropped || dropped > 0, "{case}");
            }
        }
    });
}

#[test]
#[ignore = "needs root: makes two network namespaces with a veth pair"]
fn two_workers_take_the_reports_of_two_queues_and_other_traffic_passes() {
    between_two_queues(async |ground| {
        let setup = Setup { listen: Some("xdp:vb"), translator: "workers = 2", ..Setup::default() };
        let mut bed = IntBed::start(&setup).await;
        assert_eq!(bed.translator.said("listen"), "xdp:vb:40040");
        other_traffic_passes(ground);
        let open = || (0..SENDERS).map(|_| UdpSocket::bind("10.98.0.1:0").unwrap()).collect::<Vec<_>>();
        let senders = ground.inside(0, open);
        send_reports(&mut bed, &senders, "10.98.0.2:40040").await;
        reported(&bed, SENDERS).await;
        let counted = bed.until("counters", |_| true).await;
        let all = u64::from(REPORTS) * SENDERS as u64 - 1;
        assert_eq!((counted.own("link.reports.xdp.received"), counted.own("accepted")), (all, all));
        other_traffic_passes(ground);
        // What has ended has left nothing at the interface.
        drop(bed);
        let begun = Instant::now();
        while link_of("vb").contains("prog/xdp") {
            assert!(begun.elapsed() < PATIENCE, "{}", link_of("vb"));
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// Exporters' addresses, of two workers.
const EXPORTERS: [&str; 2] = ["10.98.0.1", "10.98.0.3"];
const LISTS: u32 = 4;

/// A datagram of NetFlow v9 with two records, by the first also with their template.
fn netflow_v9(sender: usize, sequence: u32) -> Vec<u8> {
    let flow = format!("10.0.0.1:{}->10.0.0.2:443/tcp", 1 + sender).parse().unwrap();
    let record = |number: u32| emit::encode_record(&emit::unsampled_record(flow, 1, number.into()));
    let records = emit::set(256, &[record(1 + 2 * sequence), record(2 + 2 * sequence)].concat());
    let template = emit::set(0, &emit::encode_template(256, &emit::FIELDS));
    let sets = if sequence == 0 { vec![template, records] } else { vec![records] };
    emit::netflow_v9_datagram(sequence, 0, &sets)
}

#[test]
#[ignore = "needs root and ethtool: makes two network namespaces with a veth pair"]
fn flow_exports_by_any_queue_reach_the_worker_of_their_exporter_in_order() {
    between_two_queues(async |ground| {
        run(&format!("ip -n {} addr add {}/24 dev va", ground.0[0], EXPORTERS[1]));
        let tables = "workers = 2\n[translator.flows]\nlisten = ['xdp:vb']";
        let mut bed = IntBed::start(&Setup { translator: tables, ..Setup::default() }).await;
        assert_eq!(bed.translator.ready["flows"][0], "xdp:vb:2055");
        let sockets = EXPORTERS.map(|exporter| {
            ground.inside(0, || {
                (0..SENDERS).map(|_| UdpSocket::bind((exporter, 0)).unwrap()).collect::<Vec<_>>()
            })
        });
        let mut sent = 0;
        let mut send = |sockets: &[UdpSocket], sequence| {
            for (sender, socket) in sockets.iter().enumerate() {
                socket.send_to(&netflow_v9(sender, sequence), "10.98.0.2:2055").unwrap();
                sent += 1;
            }
            sent
        };
        let are_in_memory = |sent| {
            move |counted: &int_bed::Counted| {
                counted.own("flows.datagrams") == sent && counted.own("held") == 0 && counted.is_executed()
            }
        };
        // Each exporter has one worker, and its datagrams come by both queues.
        for exporter in &sockets {
            let before = frames_by_queue();
            let all = send(exporter, 0);
            bed.until("the templates", are_in_memory(all)).await;
            let after = frames_by_queue();
            assert!(before.len() == 2 && after.iter().zip(&before).all(|(after, before)| after > before));
        }
        const DATAGRAMS: u32 = 20;
        for sequence in 1..DATAGRAMS {
            // Less than a queue holds is on its way.
            let all = sockets.iter().map(|exporter| send(exporter, sequence)).max().unwrap();
            bed.until("datagrams", |counted| counted.own("flows.datagrams") + 64 >= all).await;
        }
        let all = 2 * SENDERS as u64 * u64::from(DATAGRAMS);
        let counted = bed.until("all in memory", are_in_memory(all)).await;
        let own = |name| counted.own(name);
        assert_eq!(
            [own("link.flows.xdp.received"), own("flows.appended")],
            [all, 2 * all],
            "{:#?}",
            counted.all_own()
        );
        assert_eq!([own("flows.gaps"), own("flows.sources")], [0, 2 * SENDERS as u64]);
        let mut lists_of: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
        let mut numbers_of: BTreeMap<_, Vec<u64>> = BTreeMap::new();
        for list in 0..LISTS {
            for record in bed.flow_records(list).await {
                lists_of.entry(record.exporter).or_default().insert(list);
                numbers_of.entry((record.exporter, record.src_port)).or_default().push(record.bytes);
            }
        }
        assert_eq!(lists_of.len(), 2);
        assert!(lists_of.values().all(|lists| lists.len() == 1), "{lists_of:?}");
        let workers: BTreeSet<_> = lists_of.values().flatten().map(|list| list % 2).collect();
        assert_eq!(workers.len(), 2, "{lists_of:?}");
        assert_eq!(numbers_of.len(), 2 * SENDERS);
        for (of, numbers) in numbers_of {
            assert!(numbers.iter().copied().eq(1..=2 * u64::from(DATAGRAMS)), "{of:?}: {numbers:?}");
        }

        // What was sent before a stop is not left between two workers.
        let all = sockets.iter().map(|exporter| send(exporter, DATAGRAMS)).max().unwrap();
        let IntBed { translator, client, .. } = bed;
        assert!(translator.terminate(PATIENCE).0.success());
        let nodes = client.statistics().await.unwrap();
        let reported = |name| counter(&nodes, "translator/", name);
        assert_eq!([reported("flows.datagrams"), reported("flows.appended")], [all, 2 * all]);
    });
}

/// Each report is either dropped by the program or read, until the stop.
#[test]
#[ignore = "needs root: makes two network namespaces with a veth pair"]
fn what_the_program_drops_until_the_stop_is_counted() {
    between_two_queues(async |ground| {
        let tables = "[translator.int]\nlisten = ['xdp:vb?dialect=auto&events=kernel']\nstores = { counters = 'none' }";
        let mut bed = IntBed::start(&Setup { translator: tables, ..Setup::default() }).await;
        // Most say nothing new.
        let reports = generated_reports(20);
        let socket = ground.inside(0, || UdpSocket::bind("10.98.0.1:0").unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let sender = std::thread::spawn(move || {
            for report in reports.iter().cycle().take_while(|_| !until.load(Ordering::Relaxed)) {
                socket.send_to(report, "10.98.0.2:32766").unwrap();
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        bed.until("reports dropped", |counted| counted.own("link.int.xdp.unchanged") > 1000).await;
        let IntBed { translator, client, .. } = bed;
        assert!(translator.terminate(PATIENCE).0.success());
        is_over.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        let nodes = client.statistics().await.unwrap();
        let reported = |name| counter(&nodes, "translator/", name);
        assert!(reported("link.int.xdp.unchanged") > 1000);
        assert_eq!(reported("int.datagrams"), reported("link.int.received"));
    });
}

#[test]
#[ignore = "needs root: makes two network namespaces with a veth pair"]
fn a_translator_with_more_workers_than_queues_says_what_to_do() {
    between_two_queues(async |_| {
        let run = |arguments: &[&str]| {
            let common =
                ["__translator", "run", "--config", "none", "--control", "127.0.0.1:0", "--metrics", "off"];
            let output = manager(&[&common[..], arguments].concat());
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let error = run(&["--listen", "xdp:vb", "--workers", "3"]);
        assert!(
            error.contains("vb has 2 receive queue(s) for 3 threads") && error.contains("ethtool -L"),
            "{error}"
        );
        let error = run(&["--listen", "xdp:nowhere"]);
        assert!(error.contains("there is no interface nowhere"), "{error}");
        let error = run(&["--listen", "xdp:vb", "--int", "xdp:nowhere?dialect=v1.0"]);
        assert!(error.contains("there is no interface nowhere"), "{error}");
        let error = run(&["--flows", "xdp:lo"]);
        assert!(error.contains("MTU of 65536") && error.contains("a UDP address for a listener"), "{error}");
    });
}

//! A capture replayed over a veth pair: the counters of each flow equal what is in it, whatever is sampled.

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use dta_reporter::packet_trace::counts::FlowCount;
use dta_reporter::packet_trace::digest::Sampling;
use dta_reporter::packet_trace::kernel::{Tracer, TracerOptions};

use crate::bed::{Bed, PATIENCE, run, tracer};
use crate::beside::captures;
use crate::twin::packet::{Refused, Start, read};

/// Sends the frames of a pcap file (microseconds, little-endian). It pauses, as the kernel queues 1,000 packets for a
/// CPU, and on a busy machine takes none of them before.
const REPLAY: &str = "\
import itertools, socket, struct, sys, time
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(('e0', 0))
with open(sys.argv[1], 'rb') as file:
    file.read(24)
    for number in itertools.count():
        head = file.read(16)
        if not head:
            break
        link.send(file.read(struct.unpack('<IIII', head)[2]))
        if number % 64 == 63:
            time.sleep(0.002)";

/// The frames of a pcap file.
fn frames(bytes: &[u8]) -> Vec<&[u8]> {
    assert_eq!(bytes[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    let mut rest = &bytes[24..];
    let mut frames = Vec::new();
    while let Some((head, behind)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        frames.push(&behind[..length]);
        rest = &behind[length..];
    }
    frames
}

#[test]
#[ignore = "needs root and network namespaces"]
fn counters_of_flows_equal_the_capture_whatever_is_sampled() {
    let Some(file) =
        captures("counters_of_flows_equal_the_capture_whatever_is_sampled", "traffic/real-1kxun.pcap")
    else {
        return;
    };
    let bytes = std::fs::read(&file).unwrap();
    let frames = frames(&bytes);
    let mut expected = HashMap::<_, FlowCount>::new();
    let (mut not_ip, mut chosen, sampling) = (0, 0, Sampling::one_in(8));
    for frame in &frames {
        match read(frame, Start::Ethernet) {
            Ok(packet) => {
                let count = expected.entry(packet.flow()).or_default();
                count.packets += 1;
                count.bytes += u64::from(packet.length);
                chosen += u64::from(sampling.includes_packet(packet.identity.digest()));
            }
            Err(Refused::NotIp) => not_ip += 1,
            Err(error) => panic!("{error}"),
        }
    }

    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    for namespace in [&near, &far] {
        run(&format!("ip netns exec {namespace} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"));
    }
    bed.veth((&near, "e0", ""), (&far, "e0", ""));
    run(&format!("ip -n {near} link set e0 mtu 65535 && ip -n {far} link set e0 mtu 65535"));
    let points = [format!("netns:{near}/iface:e0/egress"), format!("netns:{far}/iface:e0/ingress")];
    let mut tracer = tracer(&TracerOptions { sampling, ..TracerOptions::default() }, &points);
    let sent = Command::new("ip")
        .args(["netns", "exec", &near, "python3", "-c", REPLAY])
        .arg(&file)
        .status()
        .unwrap();
    assert!(sent.success());
    let totals = |tracer: &Tracer| -> Vec<_> {
        tracer.read_books().unwrap().iter().map(|books| books.total).collect()
    };
    let end = Instant::now() + PATIENCE;
    while totals(&tracer).iter().any(|total| total.seen < frames.len() as u64) {
        assert!(Instant::now() < end, "{:?}", totals(&tracer));
        tracer.wait_for_records(Duration::from_millis(10)).unwrap();
    }
    for (point, total) in totals(&tracer).iter().enumerate() {
        assert_eq!((total.seen, total.not_ip, total.unreadable), (frames.len() as u64, not_ip, 0));
        assert_eq!((total.reported, total.flows_full), (chosen, 0));
        let counted: HashMap<_, _> = tracer
            .read_flows()
            .unwrap()
            .into_iter()
            .filter(|(at, _)| usize::from(at.point) == point)
            .map(|(at, count)| (at.flow, count))
            .collect();
        assert_eq!(counted.len(), expected.len());
        for (flow, count) in &expected {
            assert_eq!(counted.get(flow), Some(count), "{flow} at {}", points[point]);
        }
    }
}

//! Frames of all sorts: they pass unchanged, and the programs in the kernel read them as `packet` does.

#[path = "../frames/mod.rs"]
mod list;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use dta_proto::to_hex_digits;
use dta_reporter::packet_trace::kernel::TracerOptions;
use dta_reporter::packet_trace::record::{TraceRecord, flags};

use crate::bed::{Bed, collect, run, tracer};
use crate::twin::packet::{Start, read};

/// Sends the frames of standard input, one a line in hex.
const SEND: &str = "\
import socket, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
link.bind(('e0', 0))
for line in sys.stdin:
    link.send(bytes.fromhex(line))";

/// Prints the given number of frames in hex. The kernel strips tags, so it restores them.
const RECEIVE: &str = "\
import socket, struct, sys
link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
link.bind(('e0', 3))
link.setsockopt(263, 8, 1)
print('ready', flush=True)
left = int(sys.argv[1])
while left:
    frame, extra, _, address = link.recvmsg(2000, 200)
    if address[2] == 4 or frame[12:14] == b'\\x86\\xdd' and frame[20] == 58:
        continue
    for level, kind, data in extra:
        status, _, _, _, _, tag, protocol = struct.unpack('IIIHHHH', data[:20])
        if level == 263 and status & 16:
            frame = frame[:12] + struct.pack('>HH', protocol, tag) + frame[12:]
    left -= 1
    print(frame.hex(), flush=True)";

fn python(namespace: &str, script: &str, argument: usize) -> Child {
    Command::new("ip")
        .args(["netns", "exec", namespace, "python3", "-c", script, &argument.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs")
}

/// Sends all frames and returns what came out.
fn pass(near: &str, far: &str) -> Vec<String> {
    let frames = list::all();
    let mut receiver = python(far, RECEIVE, frames.len());
    let mut lines = BufReader::new(receiver.stdout.take().expect("an output")).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let mut sender = python(near, SEND, 0);
    let mut input = sender.stdin.take().expect("an input");
    for frame in &frames {
        let hex = to_hex_digits(&frame.bytes);
        writeln!(input, "{hex}").unwrap();
    }
    drop(input);
    assert!(sender.wait().unwrap().success());
    let came = lines.collect();
    assert!(receiver.wait().unwrap().success());
    came
}

#[test]
#[ignore = "needs root and network namespaces"]
fn frames_pass_byte_for_byte_and_are_read_as_in_plain_rust() {
    let mut bed = Bed::new();
    let [near, far] = ["n", "f"].map(|name| bed.namespace(name));
    for namespace in [&near, &far] {
        run(&format!("ip netns exec {namespace} sysctl -qw net.ipv6.conf.default.disable_ipv6=1"));
    }
    bed.veth((&near, "e0", ""), (&far, "e0", ""));
    let frames = list::all();
    let sent: Vec<String> = frames.iter().map(|frame| to_hex_digits(&frame.bytes)).collect();
    assert_eq!(pass(&near, &far), sent, "without tracing");

    let points = [
        format!("netns:{near}/iface:e0/egress"),
        format!("netns:{far}/xdp:e0"),
        format!("netns:{far}/iface:e0/ingress"),
        "tp:net_dev_queue".into(),
        "tp:netif_receive_skb".into(),
    ];
    let mut tracer = tracer(&TracerOptions { follow: false, ..TracerOptions::default() }, &points);
    assert_eq!(pass(&near, &far), sent, "with tracing");
    let mut records = Vec::new();
    let own = {
        let inode = |name: &str| {
            std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(format!("/run/netns/{name}")).unwrap())
                as u32
        };
        [inode(&near), inode(&far)]
    };
    let ours = |record: &&TraceRecord| own.contains(&record.namespace);
    collect(&mut tracer, &mut records, |records| {
        records.iter().filter(ours).count() >= frames.len() * points.len()
    });
    for point in 0..points.len() as u16 {
        let seen: Vec<&TraceRecord> =
            records.iter().filter(ours).filter(|record| record.point == point).collect();
        assert_eq!(seen.len(), frames.len(), "at {}", points[usize::from(point)]);
        for (record, frame) in seen.iter().zip(&frames) {
            let at = format!("{} at {}", frame.name, points[usize::from(point)]);
            let plain = read(&frame.bytes, Start::Ethernet).unwrap();
            assert_eq!((record.digest, record.core), (frame.full, frame.core), "{at}");
            assert_eq!(
                (record.flow, record.length, record.first),
                (plain.flow(), plain.length, frame.full),
                "{at}"
            );
            assert_eq!(record.flags & !flags::LEAVES, plain.flags, "{at}");
            assert_eq!((record.segments, record.reason), (1, 0), "{at}");
        }
    }
}

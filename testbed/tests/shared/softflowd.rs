//! Flows of real traffic: as Debian's softflowd and pmacct export them, and as tshark counts them. Tests of several crates take
//! this file by `#[path]`.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dta_proto::key::{Flow, has_ports};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;

/// Packets and bytes: of frames behind their Ethernet header, as softflowd counts them, which includes padding.
pub(crate) type Flows = BTreeMap<Flow, (u64, u64)>;

const CAPTURES: [&str; 2] = ["real-1kxun.pcap", "real-wechat.pcap"];

/// The captures of traffic below the folder of captures.
pub(crate) fn traffic(folder: &Path) -> Vec<PathBuf> {
    CAPTURES.iter().map(|file| folder.join("traffic").join(file)).collect()
}

/// A packet of IP, as tshark sees it.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    pub(crate) flow: Flow,
    /// Behind the Ethernet header, padding included.
    pub(crate) frame_bytes: u64,
    /// As the IP header says.
    #[allow(dead_code, reason = "not every test that takes this file reads it")]
    pub(crate) ip_bytes: u64,
}

/// Every packet of a capture, in order; `None` for those without IP. Fragments are not put together, as routers do not.
pub(crate) fn packets(capture: &Path) -> Vec<Option<Packet>> {
    let fields = [
        "ip.src",
        "ip.dst",
        "ip.proto",
        "frame.len",
        "ipv6.src",
        "ipv6.dst",
        "ipv6.nxt",
        "ipv6.hopopts.nxt",
        "tcp.srcport",
        "tcp.dstport",
        "udp.srcport",
        "udp.dstport",
        "ip.len",
        "ipv6.plen",
    ];
    let mut tshark = Command::new("tshark");
    tshark.arg("-r").arg(capture).args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"]);
    tshark.args(["-o", "ip.defragment:FALSE", "-o", "ipv6.defragment:FALSE"]);
    fields.iter().for_each(|field| _ = tshark.args(["-e", field]));
    let output = tshark.output().expect("tshark starts: scripts/install-deps test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let packet = |line: &str| {
        let of: Vec<&str> = line.split('|').collect();
        let number = |at: usize| of[at].parse::<u64>().unwrap_or(0);
        let (at, proto, ip_bytes) = match (of[0].is_empty(), of[4].is_empty()) {
            (false, _) => (0, number(2), number(12)),
            // Behind options for every hop.
            (true, false) if number(6) == 0 => (4, number(7), number(13) + 40),
            (true, false) => (4, number(6), number(13) + 40),
            (true, true) => return None,
        };
        let proto = proto as u8;
        let ports = if proto == 6 { 8 } else { 10 };
        let port = |at: usize| if has_ports(proto) { number(at) as u16 } else { 0 };
        let flow = Flow {
            src: of[at].parse().unwrap(),
            dst: of[at + 1].parse().unwrap(),
            sport: port(ports),
            dport: port(ports + 1),
            proto,
        };
        Some(Packet { flow, frame_bytes: number(3) - 14, ip_bytes })
    };
    String::from_utf8(output.stdout).unwrap().lines().map(packet).collect()
}

/// Every flow of a capture, by softflowd's count of bytes.
pub(crate) fn truth(capture: &Path) -> Flows {
    flows_of_packets(capture, |packet| packet.frame_bytes)
}

/// Every flow of a capture, with the bytes that its IP headers say: pmacct's count.
#[allow(dead_code, reason = "not every test that takes this file reads it")]
pub(crate) fn ip_truth(capture: &Path) -> Flows {
    flows_of_packets(capture, |packet| packet.ip_bytes)
}

fn flows_of_packets(capture: &Path, bytes: impl Fn(&Packet) -> u64) -> Flows {
    let mut flows = Flows::new();
    for packet in packets(capture).into_iter().flatten() {
        let counted = flows.entry(packet.flow).or_default();
        *counted = (counted.0 + 1, counted.1 + bytes(&packet));
    }
    assert!(flows.len() > 100, "{} flows", flows.len());
    flows
}

/// What softflowd exports of a capture, in its order.
pub(crate) fn exported(capture: &Path, version: u8) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut softflowd = Command::new("softflowd");
    softflowd
        .arg("-d")
        .arg("-r")
        .arg(capture.canonicalize().unwrap())
        .args(["-n", &socket.local_addr().unwrap().to_string()]);
    softflowd.args(["-v", &version.to_string()]);
    // With a control socket it waits for somebody to call, and reads nothing.
    softflowd.current_dir(folder.path()).args(["-p", "pid", "-c", "none"]);
    received_from(&mut softflowd, &socket)
}

/// What pmacct's probe exports of a capture as NetFlow 5, 9 or IPFIX (10), in its order.
#[allow(dead_code, reason = "not every test that takes this file calls it")]
pub(crate) fn exported_by_pmacct(capture: &Path, version: u8) -> Vec<Vec<u8>> {
    exported_by_plugin(
        capture,
        "nfprobe",
        &format!("aggregate: src_host, dst_host, src_port, dst_port, proto, tos\nnfprobe_version: {version}"),
    )
}

/// What pmacct's sFlow agent 10.200.0.2 exports of a capture: a sample of every packet.
#[allow(dead_code, reason = "not every test that takes this file calls it")]
pub(crate) fn sampled_by_pmacct(capture: &Path) -> Vec<Vec<u8>> {
    exported_by_plugin(capture, "sfprobe", "sampling_rate: 1\nsfprobe_agentip: 10.200.0.2")
}

fn exported_by_plugin(capture: &Path, plugin: &str, more: &str) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // Buffers that hold all of a capture, which is read at once.
    let config = format!(
        "daemonize: false\npcap_savefile: {}\nplugins: {plugin}\n{plugin}_receiver: {}\n{more}\n\
         plugin_buffer_size: 1048576\nplugin_pipe_size: 67108864\n",
        capture.canonicalize().unwrap().display(),
        socket.local_addr().unwrap(),
    );
    let file = folder.path().join("pmacctd.conf");
    std::fs::write(&file, config).unwrap();
    let mut pmacctd = Command::new("pmacctd");
    pmacctd.arg("-f").arg(&file);
    received_from(&mut pmacctd, &socket)
}

/// All that an exporter sends until it ends.
fn received_from(exporter: &mut Command, socket: &UdpSocket) -> Vec<Vec<u8>> {
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // A capture is read at once, and this thread may not run meanwhile. Only root may have more than the system's limit.
    let _ = set_socket_recv_buffer_size_force(socket, 16 << 20);
    let child = exporter.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("{exporter:?}: {error} (scripts/install-deps test)"));
    let (mut datagrams, mut buffer, mut ended) = (Vec::new(), [0; 2048], false);
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => datagrams.push(buffer[..length].to_vec()),
            // What it sent last has come.
            Err(_) if ended => break,
            Err(_) => ended = child.try_wait().unwrap().is_some(),
        }
    }
    assert!(datagrams.len() > 5, "{} datagrams", datagrams.len());
    datagrams
}

/// Whether a lossy exporter loses the n-th of its datagrams. The first has the templates, the first two say how softflowd
/// numbers IPFIX, and what is lost after the last is never missed.
pub(crate) fn is_lost(n: usize, datagrams: usize) -> bool {
    n + 1 != datagrams && n % 3 == 2
}

/// The numbers of the lost ones, by those that softflowd wrote: of IPFIX where each message ends, of v5 where it begins.
pub(crate) fn missing(datagrams: &[Vec<u8>], version: u8) -> u64 {
    let number = |n: usize| {
        let at = if version == 5 { 16 } else { 8 };
        u64::from(u32::from_be_bytes(datagrams[n][at..at + 4].try_into().unwrap()))
    };
    let numbers = |n: usize| match version {
        5 => number(n + 1) - number(n),
        9 => 1,
        _ => number(n) - number(n - 1),
    };
    (0..datagrams.len()).filter(|n| is_lost(*n, datagrams.len())).map(numbers).sum()
}

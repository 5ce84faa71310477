//! Network namespaces for a test, removed at its end.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dta_reporter::packet_trace::kernel::{Tracer, TracerOptions};
use dta_reporter::packet_trace::point::At;
use dta_reporter::packet_trace::record::TraceRecord;

/// How long a test waits for what must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One at a time: a tracer sees the packets of every namespace.
static TURN: Mutex<()> = Mutex::new(());

/// Namespaces of one test, with unique names.
pub(crate) struct Bed {
    prefix: String,
    names: Vec<String>,
    _turn: MutexGuard<'static, ()>,
}

/// Runs a command line and fails with its output.
pub(crate) fn run(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().expect("sh runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{line}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

impl Bed {
    pub(crate) fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self { prefix: format!("dt{}", std::process::id()), names: Vec::new(), _turn: turn }
    }

    /// A new namespace, with its loopback up and no packets of IPv6's own.
    pub(crate) fn namespace(&mut self, name: &str) -> String {
        let name = format!("{}{name}", self.prefix);
        run(&format!("ip netns add {name}"));
        self.names.push(name.clone());
        run(&format!("ip -n {name} link set lo up"));
        run(&format!(
            "ip netns exec {name} sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.default.router_solicitations=0"
        ));
        name
    }

    /// A veth pair between two namespaces, both ends up, with addresses where one is given.
    pub(crate) fn veth(&self, a: (&str, &str, &str), b: (&str, &str, &str)) {
        run(&format!("ip -n {} link add {} type veth peer name {} netns {}", a.0, a.1, b.1, b.0));
        for (namespace, device, address) in [a, b] {
            if !address.is_empty() {
                run(&format!(
                    "ip -n {namespace} addr add {address} dev {device} {}",
                    if address.contains(':') { "nodad" } else { "" }
                ));
            }
            run(&format!("ip -n {namespace} link set dev {device} up"));
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// Runs a function inside a namespace.
pub(crate) fn within<T: Send>(namespace: &str, what: impl FnOnce() -> T + Send) -> T {
    let file = std::fs::File::open(format!("/run/netns/{namespace}")).expect("the namespace is there");
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let kind = rustix::thread::LinkNameSpaceType::Network;
            rustix::thread::move_into_link_name_space(file.as_fd(), Some(kind))
                .expect("the namespace can be entered");
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// A UDP socket in a namespace.
pub(crate) fn socket(namespace: &str, address: &str) -> UdpSocket {
    let address: SocketAddr = address.parse().expect("an address");
    let socket = within(namespace, || UdpSocket::bind(address)).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    socket
}

/// The object to test for scripts/build-ebpf, built by another compiler.
pub(crate) fn object() -> Option<std::sync::Arc<[u8]>> {
    std::env::var_os("DTA_TRACE_OBJECT").map(|file| std::fs::read(file).expect("an object").into())
}

/// A tracer with these points.
pub(crate) fn tracer(options: &TracerOptions, points: &[String]) -> Tracer {
    let options = TracerOptions { object: object(), ..options.clone() };
    let mut tracer = Tracer::start(&options).unwrap_or_else(|error| panic!("{error}"));
    for at in points.iter().flat_map(|point| At::parse_points(point).expect("a point")) {
        tracer.attach(&at).unwrap_or_else(|error| panic!("{error}"));
    }
    tracer
}

/// Collects records until a condition holds.
pub(crate) fn collect(
    tracer: &mut Tracer,
    records: &mut Vec<TraceRecord>,
    enough: impl Fn(&[TraceRecord]) -> bool,
) {
    collect_reported(tracer, records, |records, _| enough(records));
}

/// Collects records until a condition on them and on the number of packets of which there is none holds, and
/// returns that number: the kernel may skip a program while others on the machine keep it busy.
pub(crate) fn collect_reported(
    tracer: &mut Tracer,
    records: &mut Vec<TraceRecord>,
    enough: impl Fn(&[TraceRecord], usize) -> bool,
) -> usize {
    let end = Instant::now() + PATIENCE;
    loop {
        let books = tracer.total_books().expect("books");
        let unreported = (books.missed + books.ring_full) as usize;
        tracer.read(|record| records.push(record));
        if enough(records, unreported) {
            return unreported;
        }
        assert!(Instant::now() < end, "only {} records came: {books:?}", records.len());
        tracer.wait_for_records(Duration::from_millis(10)).expect("waiting works");
    }
}

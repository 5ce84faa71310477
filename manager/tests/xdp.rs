//! Collector and translator, each a process, whose frames go by AF_XDP over a veth pair.

mod common;

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use common::daemon::{Daemon, counter};
use dta_client::collector::Client;
use dta_client::{Ask, AskKeys, ClientOptions, translator};
use dta_proto::control::{NodeStatistics, Policy};
use dta_proto::key::Key;
use dta_proto::wire::dta::{Body, Report, Version};
use rustix::thread::UnshareFlags;

const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: u32 = 1000;
/// Times that a key's counter is added to.
const ADDS: u64 = 3;

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

fn key(number: u32) -> Key {
    let mut key = [0xa5; 16];
    key[..4].copy_from_slice(&number.to_be_bytes());
    Key(key)
}

fn value(number: u32) -> Vec<u8> {
    (number ^ 0x5a5a_0000).to_be_bytes().repeat(3)
}

/// Reports of all keys: a value, and `ADDS` additions of the key's number.
fn reports() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut add = |body: Body<'_>| {
        let store = match body {
            Body::KeyWrite { .. } => 1,
            _ => 2,
        };
        let report = Report {
            version: Version::V1,
            immediate: false,
            retransmittable: false,
            restarted: false,
            sequence: all.len() as u32,
            reporter: 7,
            store,
            body,
        };
        let mut bytes = [0; 200];
        let len = report.emit(&mut bytes).expect("a report");
        all.push(bytes[..len].to_vec());
    };
    for number in 0..KEYS {
        add(Body::KeyWrite { redundancy: 0, key: key(number), value: &value(number) });
        for _ in 0..ADDS {
            add(Body::KeyIncrement { redundancy: 0, key: key(number), delta: number.into() });
        }
    }
    all
}

struct Bed {
    collector: Daemon,
    client: Client,
    control: translator::Client,
    translator: Daemon,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn start(transport: &str, way: &str) -> Bed {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let text = format!(
            "[collector]\nname = 'xdp'\nlisten = '127.0.0.1:0'\nmemory = '{}'\ntransport = '{transport}'\n\
             [soft]\naddress = '10.8.0.1'\nlink = '{way}:near'\nmac = '02:00:00:00:08:01'\n\
             [[store]]\nid = 1\nname = 'values'\nkind = 'key-write'\nslots = 262144\nvalue_len = 12\nredundancy = 2\n\
             [[store]]\nid = 2\nname = 'sums'\nkind = 'key-increment'\nslots = 262144\nredundancy = 2\n",
            path("memory")
        );
        std::fs::write(path("collector.toml"), text).expect("written");
        let collector = Daemon::start(&["__collector", "serve", "--config", &path("collector.toml")]);
        let text = format!(
            "[translator]\nname = 'xdp'\nlisten = '127.0.0.1:0'\ncontrol = '127.0.0.1:0'\n\
             collector = 'http://{}'\nsource = '10.8.0.2'\nlink = '{way}:far'\n",
            collector.said("listen")
        );
        std::fs::write(path("translator.toml"), text).expect("written");
        let translator =
            Daemon::start(&["__translator", "run", "--ready", "--config", &path("translator.toml")]);
        let plain = ClientOptions::plain(collector.said("listen"));
        let options = ClientOptions { call: Some(Duration::from_secs(10)), ..plain };
        let client = Client::connect_lazy(&options).expect("an address");
        let control = translator::Client::connect_lazy(translator.said("control")).expect("an address");
        Bed { collector, client, control, translator, _folder: folder }
    }

    /// Waits until all reports are in memory, and each end's link has received what the other's sent; gives the
    /// counters of translator and collector.
    async fn landed(&mut self, reports: u64) -> (Vec<NodeStatistics>, Vec<NodeStatistics>) {
        let begun = Instant::now();
        loop {
            self.control.flush().await.expect("a flush");
            let translator = self.control.statistics().await.expect("statistics");
            let collector = self.client.statistics().await.expect("statistics");
            let own = |name| counter(&translator, "translator/", name);
            let nic = |name| counter(&collector, "nic/", name);
            if own("received") == reports
                && own("held") == 0
                && nic("executed.write") + nic("executed.fetch_add") == own("operations")
                && own("link.roce.sent") == nic("link.received")
                && own("link.roce.received") == nic("link.sent")
            {
                return (translator, collector);
            }
            assert!(begun.elapsed() < PATIENCE, "{translator:#?}\n{collector:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What is at an interface, by `ip -d link`.
fn told(interface: &str) -> String {
    let output = Command::new("ip").args(["-d", "link", "show", interface]).output().expect("iproute2");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn answers_exactly(transport: &str) {
    let mut bed = Bed::start(transport, "xdp");
    for interface in ["near", "far"] {
        assert!(told(interface).contains("prog/xdp"), "{}", told(interface));
    }
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(bed.translator.said("listen")).expect("an address");
    let reports = reports();
    for (number, report) in reports.iter().enumerate() {
        socket.send(report).expect("sent");
        // Less than the translator's queue holds is on its way.
        if number % 500 == 499 {
            let begun = Instant::now();
            while counter(&bed.control.statistics().await.unwrap(), "translator/", "received")
                <= number as u64
            {
                assert!(begun.elapsed() < PATIENCE, "the translator takes its reports");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
    let (translator, collector) = bed.landed(reports.len() as u64).await;

    let keys: Vec<_> = (0..KEYS).map(key).collect();
    let values = bed.client.key_write("values", &keys, Policy::First, 0).await.expect("answers");
    let sums = bed.client.counter("sums", &keys).await.expect("answers");
    for number in 0..KEYS {
        let at = number as usize;
        assert_eq!(values[at].value.as_deref(), Some(&value(number)[..]), "{transport}: key {number}");
        assert_eq!(sums[at].value, ADDS * u64::from(number), "{transport}: key {number}");
    }

    // The books close: what one end sent, the other received, as `landed` saw, and nothing was lost in between.
    let own = |name| counter(&translator, "translator/", name);
    assert!(own("link.roce.sent") > u64::from(KEYS) && own("link.roce.received") > 0);
    for node in translator.iter().chain(&collector) {
        let lost = |name: &str| name.contains("link.") && (name.contains("dropped") || name.contains("lost"));
        for counter in node.counters.iter().filter(|counter| lost(&counter.name)) {
            assert_eq!(counter.value, 0, "{}: {}", node.node, counter.name);
        }
    }
    // What has ended has left nothing at the interfaces.
    drop((bed.translator, bed.collector));
    let begun = Instant::now();
    while ["near", "far"].iter().any(|interface| told(interface).contains("prog/xdp")) {
        assert!(begun.elapsed() < PATIENCE, "{}{}", told("near"), told("far"));
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs root: makes a network namespace with a veth pair"]
fn answers_over_af_xdp_are_exact() {
    for transport in ["uc", "rc"] {
        in_namespace(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(answers_exactly(transport));
        });
    }
}

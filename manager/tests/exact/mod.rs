//! Collector and translator, each a process; reports of values and sums, and what they must answer.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use dta_proto::control::{NodeStatistics, Policy};
use dta_proto::key::Key;
use dta_proto::wire::dta::{DtaBody, DtaReport};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask, AskKeys, ClientOptions, translator};

use crate::common::daemon::{Daemon, counter};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const KEYS: u32 = 1000;
/// Times that a key's counter is added to.
pub(crate) const ADDS: u64 = 3;

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
    let mut add = |body: DtaBody<'_>| {
        let store = match body {
            DtaBody::KeyWrite { .. } => 1,
            _ => 2,
        };
        let report = DtaReport { sequence: all.len() as u32, reporter: 7, ..DtaReport::new(store, body) };
        let mut bytes = [0; 200];
        let len = report.encode_into(&mut bytes).expect("a report");
        all.push(bytes[..len].to_vec());
    };
    for number in 0..KEYS {
        add(DtaBody::KeyWrite { redundancy: 0, key: key(number), value: &value(number) });
        for _ in 0..ADDS {
            add(DtaBody::KeyIncrement { redundancy: 0, key: key(number), delta: number.into() });
        }
    }
    all
}

pub(crate) struct Bed {
    _collector: Daemon,
    client: RemoteCollector,
    control: translator::RemoteTranslator,
    translator: Daemon,
    _folder: tempfile::TempDir,
}

/// Counters of translator and collector.
pub(crate) struct Counted {
    translator: Vec<NodeStatistics>,
    collector: Vec<NodeStatistics>,
}

impl Counted {
    pub(crate) fn translator(&self, name: &str) -> u64 {
        counter(&self.translator, "translator/", name)
    }

    pub(crate) fn nic(&self, name: &str) -> u64 {
        counter(&self.collector, "nic/", name)
    }
}

impl Bed {
    /// Starts the collector with these lines of `[collector]` and further tables, then the translator with these of
    /// `[translator]`; `between` is done in between.
    pub(crate) fn start(collector: &str, translator: &str, between: impl FnOnce()) -> Bed {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let text = format!(
            "[collector]\nname = 'exact'\nmemory = '{}'\n{collector}\n\
             [[store]]\nid = 1\nname = 'values'\nkind = 'key-write'\nslots = 262144\nvalue_len = 12\nredundancy = 2\n\
             [[store]]\nid = 2\nname = 'sums'\nkind = 'key-increment'\nslots = 262144\nredundancy = 2\n",
            path("memory")
        );
        std::fs::write(path("collector.toml"), text).expect("written");
        let collector = Daemon::start(&["__collector", "serve", "--config", &path("collector.toml")]);
        between();
        let text = format!(
            "[translator]\nname = 'exact'\nlisten = '127.0.0.1:0'\ncontrol = '127.0.0.1:0'\ncollector = 'http://{}'\n{translator}\n",
            collector.said("listen")
        );
        std::fs::write(path("translator.toml"), text).expect("written");
        let translator =
            Daemon::start(&["__translator", "run", "--ready", "--config", &path("translator.toml")]);
        let plain = ClientOptions::without_tls(collector.said("listen"));
        let options = ClientOptions { call: Some(PATIENCE), ..plain };
        let client = RemoteCollector::connect_lazy(&options).expect("an address");
        let control =
            translator::RemoteTranslator::connect_lazy(translator.said("control")).expect("an address");
        Bed { _collector: collector, client, control, translator, _folder: folder }
    }

    /// Sends all reports, waits until they are in memory, as `landed` says of the counters, and asks for what they said.
    pub(crate) async fn answers_exactly(&mut self, landed: impl Fn(&Counted) -> bool) -> Counted {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(self.translator.said("listen")).expect("an address");
        let reports = reports();
        for (number, report) in reports.iter().enumerate() {
            socket.send(report).expect("sent");
            // Less than the translator's queue holds is on its way.
            if number % 500 == 499 {
                self.until(|counted| counted.translator("received") > number as u64).await;
            }
        }
        let all = reports.len() as u64;
        let in_memory = |counted: &Counted| {
            counted.translator("received") == all && counted.translator("held") == 0 && landed(counted)
        };
        let counted = self.until(in_memory).await;

        let keys: Vec<_> = (0..KEYS).map(key).collect();
        let values = self.client.key_write("values", &keys, Policy::First, 0).await.expect("answers");
        let sums = self.client.query_counters("sums", &keys).await.expect("answers");
        for number in 0..KEYS {
            let at = number as usize;
            assert_eq!(values[at].value.as_deref(), Some(&value(number)[..]), "key {number}");
            assert_eq!(sums[at].value, ADDS * u64::from(number), "key {number}");
        }

        // The books close: nothing was lost in between.
        for node in counted.translator.iter().chain(&counted.collector) {
            let lost =
                |name: &str| name.contains("link.") && (name.contains("dropped") || name.contains("lost"));
            for counter in node.counters.iter().filter(|counter| lost(&counter.name)) {
                assert_eq!(counter.value, 0, "{}: {}", node.node, counter.name);
            }
        }
        counted
    }

    async fn until(&mut self, there: impl Fn(&Counted) -> bool) -> Counted {
        let begun = Instant::now();
        loop {
            self.control.flush_reports().await.expect("a flush");
            let translator = self.control.statistics().await.expect("statistics");
            let collector = self.client.statistics().await.expect("statistics");
            let counted = Counted { translator, collector };
            if there(&counted) {
                return counted;
            }
            assert!(begun.elapsed() < PATIENCE, "{:#?}\n{:#?}", counted.translator, counted.collector);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

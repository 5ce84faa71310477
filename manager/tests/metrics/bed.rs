//! A collector and a translator that take captures of INT and exports of flows, and are scraped.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::int_bed::{Counted, IntBed, PATIENCE, Setup, int_capture};
use crate::http;

pub(crate) struct Bed {
    pub(crate) int: IntBed,
    reports: u64,
}

impl Bed {
    /// With telemetry of this schema, from reports of this dialect.
    pub(crate) async fn start(schema: &str, dialect: &str) -> Bed {
        Self::with(schema, dialect, "").await
    }

    /// As [`Bed::start`], with more tables of the collector's configuration.
    pub(crate) async fn with(schema: &str, dialect: &str, more: &str) -> Bed {
        Self::with_names(schema, dialect, more, "").await
    }

    /// As [`Bed::with`], with a file of names.
    pub(crate) async fn with_names(schema: &str, dialect: &str, more: &str, names: &str) -> Bed {
        let collector = format!("[metrics]\nlisten = \"127.0.0.1:0\"\ntelemetry = \"{schema}\"\n{more}");
        let setup = Setup {
            dialects: &[dialect],
            flows: true,
            names,
            collector: &collector,
            translator: "metrics = \"127.0.0.1:0\"",
            ..Setup::default()
        };
        Bed { int: IntBed::start(&setup).await, reports: 0 }
    }

    /// Replays a capture of so many reports, and waits until all are in memory and the collector has the counters. `false`
    /// if there are no captures.
    pub(crate) async fn replay(&mut self, capture: &str, reports: u64) -> bool {
        let Some(capture) = int_capture(capture) else { return false };
        self.int.replay(&capture, 0, &[]);
        self.reports += reports;
        let reports = self.reports;
        let is_reported = |counted: &Counted| counted.is_in_memory(reports) && counted.is_reported();
        self.int.until("reports in memory", is_reported).await;
        true
    }

    /// Sends records from an exporter, which counts one packet in so many.
    pub(crate) fn send_flows(&self, exporter: &str, rate: u16, records: &[SentRecord]) {
        let to: SocketAddrV4 = self.int.translator.ready["flows"][0].as_str().unwrap().parse().unwrap();
        let socket = UdpSocket::bind((exporter, 0)).unwrap();
        socket.send_to(&netflow_v5(rate, records), to).unwrap();
    }

    /// Where both are scraped.
    pub(crate) fn addresses(&self) -> [String; 2] {
        let collector = self.int.collector.as_ref().expect("it runs");
        [collector, &self.int.translator].map(|daemon| daemon.said("metrics").to_owned())
    }

    /// What both report, once it is current.
    pub(crate) fn pages(&self) -> [String; 2] {
        // A page is made once a second.
        std::thread::sleep(Duration::from_millis(1100));
        let begun = Instant::now();
        self.addresses().map(|address| {
            loop {
                let (status, page) = http::get(&address, "/metrics").expect("an answer");
                // A translator says so when its data plane is slow to answer.
                if status != 503 || begun.elapsed() > PATIENCE {
                    assert_eq!(status, 200, "{page}");
                    return page;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        })
    }
}

/// A record of NetFlow v5, between ports of two hosts.
#[derive(Clone, Copy)]
pub(crate) struct SentRecord {
    pub(crate) ports: [u16; 2],
    pub(crate) protocol: u8,
    /// By which it enters and leaves.
    pub(crate) interfaces: [u16; 2],
    pub(crate) packets: u32,
    pub(crate) bytes: u32,
}

/// Traffic of two protocols through two interfaces.
pub(crate) const RECORDS: [SentRecord; 3] = [
    SentRecord { ports: [5000, 443], protocol: 6, interfaces: [1, 2], packets: 10, bytes: 9000 },
    SentRecord { ports: [443, 5000], protocol: 6, interfaces: [2, 1], packets: 5, bytes: 400 },
    SentRecord { ports: [53, 53], protocol: 17, interfaces: [1, 2], packets: 2, bytes: 130 },
];

/// A datagram of NetFlow v5 (Cisco, "NetFlow Export Datagram Format", version 5).
fn netflow_v5(rate: u16, records: &[SentRecord]) -> Vec<u8> {
    let mut bytes = [5, records.len() as u16].map(u16::to_be_bytes).concat();
    bytes.resize(22, 0);
    // The mode in the upper two bits.
    bytes.extend((0x4000 | rate).to_be_bytes());
    for record in records {
        bytes.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend(Ipv4Addr::UNSPECIFIED.octets());
        bytes.extend(record.interfaces.map(u16::to_be_bytes).concat());
        bytes.extend([record.packets, record.bytes, 0, 0].map(u32::to_be_bytes).concat());
        bytes.extend(record.ports.map(u16::to_be_bytes).concat());
        bytes.extend([0, 0, record.protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
    bytes
}

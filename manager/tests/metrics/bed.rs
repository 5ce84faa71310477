//! A collector and a translator that take captures of INT and are scraped.

use std::time::Duration;

use crate::common::int_bed::{Counted, IntBed, Setup, int_capture};
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
        let collector = format!("[metrics]\nlisten = \"127.0.0.1:0\"\ntelemetry = \"{schema}\"\n{more}");
        let setup = Setup {
            dialects: &[dialect],
            collector: &collector,
            translator: "metrics = \"127.0.0.1:0\"\nlease_seconds = 6",
            ..Setup::default()
        };
        Bed { int: IntBed::start(&setup).await, reports: 0 }
    }

    /// Replays a capture of so many reports, and waits until all are in memory and the collector was told. `false` if
    /// there are no captures.
    pub(crate) async fn replay(&mut self, capture: &str, reports: u64) -> bool {
        let Some(capture) = int_capture(capture) else { return false };
        self.int.replay(&capture, 0, &[]);
        self.reports += reports;
        let reports = self.reports;
        let is_told = |counted: &Counted| {
            counted.is_in_memory(reports) && counted.told("received") == counted.own("received")
        };
        self.int.until("reports in memory", is_told).await;
        true
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
        self.addresses().map(|address| {
            let (status, page) = http::get(&address, "/metrics").expect("an answer");
            assert_eq!(status, 200, "{page}");
            page
        })
    }
}

//! Reporters on another machine.

use std::net::SocketAddrV4;
use std::sync::Arc;

use dta_proto::wire::dta::{Body, MAX_REPORT_LEN, Report, Version};

use super::machine::Machine;
use super::protocol::{Outgoing, Reported, Request};
use crate::testbed::accounting::ReporterSide;
use crate::testbed::reporters::Told;

/// The most reports in one request.
const PART: usize = 1024;

/// A reporter for each switch, all on one machine. Reports leave when it is polled.
pub struct FarReporters {
    machine: Arc<Machine>,
    waiting: Vec<Outgoing>,
    side: ReporterSide,
}

impl FarReporters {
    /// Opens `count` of them, which send to `translator`.
    pub async fn open(
        machine: Arc<Machine>,
        count: u16,
        translator: SocketAddrV4,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let source = machine.settings.address;
        machine.call::<()>(&Request::Reporters { count, source, translator, seed }).await?;
        Ok(Self { machine, waiting: Vec::new(), side: ReporterSide::default() })
    }

    /// Takes a report. `at_once` says whether it leaves before the next one of another switch.
    pub fn take(
        &mut self,
        switch: u16,
        store: u16,
        body: Body<'_>,
        retransmittable: bool,
        at_once: bool,
    ) -> anyhow::Result<()> {
        let report = Report {
            version: Version::V1,
            immediate: false,
            retransmittable,
            restarted: false,
            // Its reporter numbers it.
            sequence: 0,
            reporter: 0,
            store,
            body,
        };
        let mut bytes = vec![0; MAX_REPORT_LEN];
        let length = report.emit(&mut bytes)?;
        bytes.truncate(length);
        self.waiting.push(Outgoing { switch, at_once, bytes });
        Ok(())
    }

    /// Sends what was taken, takes NACKs and sends again what they ask for. Gives what became of reports.
    pub async fn poll(&mut self) -> anyhow::Result<Vec<Told>> {
        let mut told = Vec::new();
        loop {
            let part = self.waiting.len().min(PART);
            let reports = self.waiting.drain(..part).collect();
            let reported: Reported = self.machine.call(&Request::Report { reports }).await?;
            told.extend(reported.told);
            self.side = reported.side;
            if self.waiting.is_empty() {
                return Ok(told);
            }
        }
    }

    /// Counters of all of them, by the last answer.
    pub fn side(&self) -> ReporterSide {
        self.side
    }
}

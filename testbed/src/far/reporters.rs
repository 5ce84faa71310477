//! Reporters on other machines.

use std::net::SocketAddrV4;
use std::sync::Arc;

use dta_link::fault::Faults;
use dta_proto::wire::dta::{DtaBody, DtaReport, MAX_REPORT_LEN, Version};

use super::machine::RemoteMachine;
use super::protocol::{Outgoing, Reported, Request};
use crate::accounting::ReporterSide;
use crate::share::part_of_place;

/// The most reports in one request.
const PART: usize = 1024;

/// A reporter for each switch; each machine has those of consecutive switches. Reports are sent, in order, when it is
/// polled.
pub struct FarReporters {
    hosts: Vec<ReporterHost>,
    switches: u16,
    waiting: Vec<Outgoing>,
}

struct ReporterHost {
    machine: Arc<RemoteMachine>,
    /// From its last answer.
    side: ReporterSide,
}

impl FarReporters {
    /// Opens `switches` of them, which send to `translator`, on one machine or more. `faults` act on what they send.
    pub async fn open(
        machines: Vec<Arc<RemoteMachine>>,
        switches: u16,
        translator: SocketAddrV4,
        faults: Faults,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut hosts = Vec::new();
        for machine in machines {
            // Each machine opens one for every switch; those of other machines' switches stay silent.
            let source = machine.settings.address;
            let open = Request::Reporters { count: switches, source, translator, faults, seed };
            machine.call::<()>(&open).await?;
            hosts.push(ReporterHost { machine, side: ReporterSide::default() });
        }
        Ok(Self { hosts, switches, waiting: Vec::new() })
    }

    /// Takes a report. `at_once` says whether it must be sent before the next one of another switch.
    pub fn take(
        &mut self,
        switch: u16,
        store: u16,
        body: DtaBody<'_>,
        retransmittable: bool,
        at_once: bool,
    ) -> anyhow::Result<()> {
        let report = DtaReport {
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
        let length = report.encode_into(&mut bytes)?;
        bytes.truncate(length);
        self.waiting.push(Outgoing { switch, at_once, bytes });
        Ok(())
    }

    /// Sends what was taken, takes NACKs and sends again what they ask for. Returns what became of reports.
    pub async fn poll(&mut self) -> anyhow::Result<Reported> {
        let (mut all, mut asked) = (Reported::default(), vec![false; self.hosts.len()]);
        while let Some(first) = self.waiting.first() {
            // One after the other, as reports of one machine would overtake those of another.
            let of = |switch: u16| part_of_place(switch.into(), self.switches.into(), self.hosts.len());
            let host = of(first.switch);
            let is_there = |report: &&Outgoing| of(report.switch) == host;
            let part = self.waiting.iter().take(PART).take_while(is_there).count();
            let reports = self.waiting.drain(..part).collect();
            self.hosts[host].send_reports(reports, &mut all).await?;
            asked[host] = true;
        }
        for (host, _) in self.hosts.iter_mut().zip(asked).filter(|(_, asked)| !asked) {
            host.send_reports(Vec::new(), &mut all).await?;
        }
        all.side = self.reporter_side();
        Ok(all)
    }

    /// Counters of all of them, from the last answers.
    pub fn reporter_side(&self) -> ReporterSide {
        self.hosts.iter().fold(ReporterSide::default(), |sum, host| sum.merged_with(&host.side))
    }
}

impl ReporterHost {
    /// Adds what became of reports to `all`.
    async fn send_reports(&mut self, reports: Vec<Outgoing>, all: &mut Reported) -> anyhow::Result<()> {
        let reported: Reported = self.machine.call(&Request::Report { reports }).await?;
        self.side = reported.side;
        all.deliveries.extend(reported.deliveries);
        all.held.extend(reported.held);
        Ok(())
    }
}

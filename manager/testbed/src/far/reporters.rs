//! Reporters on other machines.

use std::net::SocketAddrV4;
use std::sync::Arc;

use dta_proto::wire::dta::{Body, MAX_REPORT_LEN, Report, Version};

use super::machine::Machine;
use super::protocol::{Outgoing, Reported, Request};
use crate::accounting::ReporterSide;
use crate::reporters::Told;

/// The most reports in one request.
const PART: usize = 1024;

/// A reporter for each switch; each machine has those of consecutive switches. Reports are sent, in order, when it is
/// polled.
pub struct FarReporters {
    hosts: Vec<Host>,
    switches: u16,
    waiting: Vec<Outgoing>,
}

struct Host {
    machine: Arc<Machine>,
    /// From its last answer.
    side: ReporterSide,
}

impl FarReporters {
    /// Opens `switches` of them, which send to `translator`, on one machine or more.
    pub async fn open(
        machines: Vec<Arc<Machine>>,
        switches: u16,
        translator: SocketAddrV4,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let mut hosts = Vec::new();
        for machine in machines {
            // Those of other machines' switches stay silent and unnoticed.
            let source = machine.settings.address;
            machine.call::<()>(&Request::Reporters { count: switches, source, translator, seed }).await?;
            hosts.push(Host { machine, side: ReporterSide::default() });
        }
        Ok(Self { hosts, switches, waiting: Vec::new() })
    }

    /// Takes a report. `at_once` says whether it must be sent before the next one of another switch.
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
        let (mut told, mut asked) = (Vec::new(), vec![false; self.hosts.len()]);
        while let Some(first) = self.waiting.first() {
            // One after the other, as reports of one machine would overtake those of another.
            let host = host_of(first.switch, self.switches, self.hosts.len());
            let is_there =
                |report: &&Outgoing| host_of(report.switch, self.switches, self.hosts.len()) == host;
            let part = self.waiting.iter().take(PART).take_while(is_there).count();
            let reports = self.waiting.drain(..part).collect();
            told.extend(self.hosts[host].report(reports).await?);
            asked[host] = true;
        }
        for (host, _) in self.hosts.iter_mut().zip(asked).filter(|(_, asked)| !asked) {
            told.extend(host.report(Vec::new()).await?);
        }
        Ok(told)
    }

    /// Counters of all of them, from the last answers.
    pub fn side(&self) -> ReporterSide {
        self.hosts.iter().fold(ReporterSide::default(), |sum, host| sum.plus(&host.side))
    }
}

impl Host {
    async fn report(&mut self, reports: Vec<Outgoing>) -> anyhow::Result<Vec<Told>> {
        let reported: Reported = self.machine.call(&Request::Report { reports }).await?;
        self.side = reported.side;
        Ok(reported.told)
    }
}

/// The place of the machine that has the reporter of a switch.
fn host_of(switch: u16, switches: u16, hosts: usize) -> usize {
    usize::from(switch) * hosts / usize::from(switches.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_has_as_many_switches_as_the_others_as_far_as_they_go() {
        let hosts = |count| (0..10).map(|switch| host_of(switch, 10, count)).collect::<Vec<_>>();
        assert_eq!(hosts(1), [0; 10]);
        assert_eq!(hosts(3), [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]);
        assert_eq!(hosts(10), (0..10).collect::<Vec<_>>());
        assert!(hosts(20).into_iter().all(|host| host < 20));
    }
}

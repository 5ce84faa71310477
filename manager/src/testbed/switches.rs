//! The simulated switches on the wire: each is a reporter with a socket of its own.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use dta_link::LinkError;
use dta_link::fault::{Fate, FaultCounts, Faults};
use dta_reporter::{Config, Reporter, Sent};

use super::accounting::ReporterSide;
use super::journal::Journal;
use super::workload::{Report, Workload};
use crate::topology::{Primitive, Topology};

/// Reports that a switch keeps to send again. The translator asks for those of its window, 1,024, alone.
const BACKUP: usize = 4096;

/// Reports that a switch may send as one message: few, so that a receive queue does not hold more of
/// them than it seems to (see `feed`).
pub const RUN: usize = 16;

/// All switches.
pub struct Switches {
    reporters: Vec<Reporter>,
    /// Whether a report waits for others to leave with.
    gathered: bool,
    /// What the links did, until it is noted in the journal.
    fates: Arc<Mutex<Vec<(u16, Fate, Sent)>>>,
    stores: [u16; 5],
    retransmit: [bool; 5],
    corrupts: bool,
}

impl Switches {
    /// Opens a reporter per switch. `faults` act on what is sent; corruption needs CAP_NET_RAW. `runs`
    /// says whether reports may leave as runs: the kernel counts a run that it delivers as one datagram.
    pub fn open(
        topology: &Topology,
        translator: SocketAddrV4,
        faults: Faults,
        seed: u64,
        runs: bool,
    ) -> anyhow::Result<Self> {
        let fates = Arc::new(Mutex::new(Vec::new()));
        let mut reporters = Vec::new();
        for switch in 0..topology.network.tiers.iter().sum() {
            let mut reporter = Reporter::open(Config {
                reporter: Workload::switch_id(switch) as u16,
                // The journal numbers from 0, too.
                first_sequence: Some(0),
                backup: BACKUP,
                batch: RUN,
                runs,
                faults,
                seed: seed.wrapping_mul(0x9e37_79b9).wrapping_add(switch.into()),
                ..Config::new(translator).bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
            })
            .with_context(|| format!("switch {}", Workload::switch_id(switch)))?;
            let fates = Arc::clone(&fates);
            reporter.observe(move |fate, sent| {
                fates.lock().unwrap_or_else(PoisonError::into_inner).push((switch, fate, sent));
            });
            reporters.push(reporter);
        }
        Ok(Self {
            reporters,
            gathered: false,
            fates,
            stores: Primitive::ALL.map(|p| topology.store(p).id),
            retransmit: Primitive::ALL.map(|p| topology.run.retransmit.contains(&p)),
            corrupts: faults.corrupts(),
        })
    }

    /// Notes a report in the journal and sends it at once: the hops of a packet report in the order in
    /// which it crosses them.
    pub fn send(&mut self, report: Report, workload: &Workload, journal: &mut Journal) -> anyhow::Result<()> {
        let (switch, before) = (report.switch, self.fates_so_far());
        let number = self.take(report, workload, journal)?;
        self.reporters[usize::from(switch)].flush()?;
        // A report whose fate is not told at once is held back: other switches' reports overtake it
        // even if none of its own does.
        let fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        let left = fates[before..].iter().any(|(s, _, sent)| *s == switch && sent.sequence == number);
        if !left && let Some(fate) = journal.fate_mut(switch, number) {
            fate.moved = true;
        }
        Ok(())
    }

    /// Notes a report in the journal. It leaves with the next ones of its switch, or with
    /// [`Switches::send_gathered`]. For reports whose place among those of other switches says nothing.
    pub fn gather(
        &mut self,
        report: Report,
        workload: &Workload,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        self.take(report, workload, journal)?;
        self.gathered = true;
        Ok(())
    }

    /// Sends what waits for others to leave with.
    pub fn send_gathered(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.gathered) {
            for reporter in &mut self.reporters {
                reporter.flush()?;
            }
        }
        Ok(())
    }

    /// Gives the report's number at its switch.
    fn take(&mut self, report: Report, workload: &Workload, journal: &mut Journal) -> anyhow::Result<u32> {
        let switch = report.switch;
        let primitive = report.body.primitive().index();
        let mut room = [0; 16];
        let body = workload.on_wire(&report, &mut room);
        let options = dta_reporter::Options { retransmittable: self.retransmit[primitive], immediate: false };
        let reporter = &mut self.reporters[usize::from(switch)];
        let sequence = reporter
            .report_with(self.stores[primitive], body, options)
            .with_context(|| format!("switch {} cannot report {body:?}", Workload::switch_id(switch)))?;
        let number = journal.add(report);
        debug_assert_eq!(sequence, number, "the journal numbers as the reporter does");
        Ok(number)
    }

    fn fates_so_far(&self) -> usize {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes NACKs, sends again what they ask for, and lets go of what the faults held back long
    /// enough. Notes in the journal what the links did.
    pub fn poll(&mut self, journal: &mut Journal) -> Result<(), LinkError> {
        self.gathered = false;
        for reporter in &mut self.reporters {
            reporter.flush()?;
        }
        for (switch, fate, sent) in self.fates.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            note(journal, switch, fate, sent.sequence);
        }
        Ok(())
    }

    /// Counters of this side of the link, of all switches together.
    pub fn side(&self) -> ReporterSide {
        let mut side = ReporterSide { checksum: self.corrupts, ..ReporterSide::default() };
        for reporter in &self.reporters {
            let counters = reporter.counters();
            let (f, l) = (&counters.fault, &counters.link);
            side.faults = FaultCounts {
                frames: side.faults.frames + f.frames,
                passed: side.faults.passed + f.passed,
                dropped: side.faults.dropped + f.dropped,
                duplicated: side.faults.duplicated + f.duplicated,
                reordered: side.faults.reordered + f.reordered,
                corrupted: side.faults.corrupted + f.corrupted,
                held: side.faults.held + f.held,
            };
            side.sent += l.sent;
            side.unsent += l.unsent();
            side.received += l.received;
            side.kernel += l.dropped_by_kernel + l.dropped_too_long;
            side.nacks += counters.nacks;
            side.retransmitted += counters.retransmitted;
        }
        side
    }
}

fn note(journal: &mut Journal, switch: u16, fate: Fate, number: u32) {
    let Some(known) = journal.fate_mut(switch, number) else { return };
    let first = known.sent == 0;
    let none_arrived = known.sent == known.lost;
    known.sent += 1;
    match fate {
        Fate::Dropped | Fate::Corrupted { .. } => known.lost += 1,
        Fate::Reordered { .. } => known.moved = true,
        // A repeat that is the first to arrive comes after reports that were made later.
        Fate::Passed | Fate::Duplicated => known.moved |= !first && none_arrived,
    }
}

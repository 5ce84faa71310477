//! The sockets of simulated switches, and the fate of each report on their links.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use dta_link::LinkError;
use dta_link::fault::{FaultOutcome, Faults};
use dta_proto::wire::dta::DtaBody;
use dta_reporter::{Config, ReportOptions, Reporter};
use serde::{Deserialize, Serialize};

use super::accounting::ReporterSide;
use super::workload::Workload;

/// Reports that a switch keeps to send again. The translator requests only those of its window, 1,024.
const BACKUP: usize = 4096;

/// Reports that a switch may send as one message: few, so that a receive queue does not hold more of them than it
/// seems to (see `feed`).
pub const RUN: usize = 16;

/// What a link did to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatagramFate {
    Lost,
    Moved,
    /// Sent in its place, once or twice.
    Came,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub switch: u16,
    /// The report's number at its switch, from 0.
    pub number: u32,
    pub what: DatagramFate,
}

/// A reporter for each switch.
pub struct Reporters {
    reporters: Vec<Reporter>,
    /// What the links did, until it is taken.
    fates: Arc<Mutex<Vec<Delivery>>>,
    corrupts: bool,
}

impl Reporters {
    /// Opens `count` of them, which send from `source` to `translator`; `faults`, `seed` and `runs` as in [`Config`].
    pub fn open(
        count: u16,
        translator: SocketAddrV4,
        source: Ipv4Addr,
        faults: Faults,
        seed: u64,
        runs: bool,
    ) -> anyhow::Result<Self> {
        let fates = Arc::new(Mutex::new(Vec::new()));
        let mut reporters = Vec::new();
        for switch in 0..count {
            let mut reporter = Reporter::open(Config {
                reporter: Workload::switch_id(switch) as u16,
                // The journal numbers from 0, too.
                first_sequence: Some(0),
                backup: BACKUP,
                batch: RUN,
                runs,
                faults,
                seed: seed.wrapping_mul(0x9e37_79b9).wrapping_add(switch.into()),
                ..Config::new(translator).bind(SocketAddrV4::new(source, 0))
            })
            .with_context(|| format!("switch {}", Workload::switch_id(switch)))?;
            let fates = Arc::clone(&fates);
            reporter.set_observer(move |fate, sent| {
                let what = match fate {
                    FaultOutcome::Dropped | FaultOutcome::Corrupted { .. } => DatagramFate::Lost,
                    FaultOutcome::Reordered { .. } => DatagramFate::Moved,
                    FaultOutcome::Passed | FaultOutcome::Duplicated => DatagramFate::Came,
                };
                let delivery = Delivery { switch, number: sent.sequence, what };
                fates.lock().unwrap_or_else(PoisonError::into_inner).push(delivery);
            });
            reporters.push(reporter);
        }
        Ok(Self { reporters, fates, corrupts: faults.can_corrupt() })
    }

    /// Takes a report of a switch; returns its number there. It is sent with the next ones, or on a flush.
    pub fn take(
        &mut self,
        switch: u16,
        store: u16,
        body: DtaBody<'_>,
        retransmittable: bool,
    ) -> anyhow::Result<u32> {
        let reporter = self.reporters.get_mut(usize::from(switch)).context("there is no such switch")?;
        reporter
            .report_with(store, body, ReportOptions { retransmittable, immediate: false })
            .with_context(|| format!("switch {} cannot report {body:?}", Workload::switch_id(switch)))
    }

    /// Takes a report of a switch and sends it, with what waits there. Returns its number, and whether its fate is
    /// already known.
    pub fn send(
        &mut self,
        switch: u16,
        store: u16,
        body: DtaBody<'_>,
        retransmittable: bool,
    ) -> anyhow::Result<(u32, bool)> {
        let before = self.fates.lock().unwrap_or_else(PoisonError::into_inner).len();
        let number = self.take(switch, store, body, retransmittable)?;
        self.reporters[usize::from(switch)].flush()?;
        let fates = self.fates.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((number, fates[before..].iter().any(|fate| fate.switch == switch && fate.number == number)))
    }

    /// Sends what all switches have taken, and repeats what is requested; receives NACKs.
    pub fn flush_all(&mut self) -> Result<(), LinkError> {
        self.reporters.iter_mut().try_for_each(Reporter::flush)
    }

    /// What the links did since the last call.
    pub fn take_deliveries(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.fates.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counters of this side of the link, of all switches together.
    pub fn reporter_side(&self) -> ReporterSide {
        let mut side = ReporterSide { checksum: self.corrupts, ..ReporterSide::default() };
        for reporter in &self.reporters {
            let counters = reporter.counters();
            let l = &counters.link;
            side.faults.add(&counters.fault);
            side.sent += l.sent;
            side.unsent += l.unsent_packets();
            side.received += l.received;
            side.kernel += l.dropped_by_kernel + l.dropped_too_long;
            side.nacks += counters.nacks;
            side.retransmitted += counters.retransmitted;
        }
        side
    }
}

//! The simulated switches: each is a reporter with its own socket, here or on another machine.

use std::net::{Ipv4Addr, SocketAddrV4};

use dta_link::fault::Faults;

use super::accounting::ReporterSide;
use super::far::FarReporters;
use super::journal::Journal;
use super::reporters::{DatagramFate, Delivery, Reporters};
use super::workload::{SwitchReport, Workload};
use crate::topology::{Primitive, Topology};

enum Senders {
    Here(Reporters),
    There(FarReporters),
}

pub struct Switches {
    place: Senders,
    /// Whether a report waits to be sent with others.
    gathered: bool,
    stores: [u16; Primitive::ALL.len()],
    retransmit: [bool; Primitive::ALL.len()],
}

impl Switches {
    /// Opens a reporter per switch. `faults` act on what is sent; corruption needs CAP_NET_RAW. `runs` says whether
    /// reports may be sent as runs: the kernel then counts runs.
    pub fn open(
        topology: &Topology,
        translator: SocketAddrV4,
        faults: Faults,
        seed: u64,
        runs: bool,
    ) -> anyhow::Result<Self> {
        let count = topology.network.tiers.iter().sum();
        let reporters = Reporters::open(count, translator, Ipv4Addr::LOCALHOST, faults, seed, runs)?;
        Ok(Self::with_senders(topology, Senders::Here(reporters)))
    }

    /// Switches whose reporters are on another machine.
    pub fn with_remote_reporters(topology: &Topology, reporters: FarReporters) -> Self {
        Self::with_senders(topology, Senders::There(reporters))
    }

    fn with_senders(topology: &Topology, place: Senders) -> Self {
        Self {
            place,
            gathered: false,
            stores: Primitive::ALL.map(|p| topology.store_of_primitive(p).id),
            retransmit: Primitive::ALL.map(|p| topology.run.retransmit.contains(&p)),
        }
    }

    /// Adds a report to the journal and sends it at once: the hops of a packet report in the order in which it
    /// crosses them. Those of another machine are sent with the next [`Switches::poll`], in this order.
    pub fn send(
        &mut self,
        report: SwitchReport,
        workload: &Workload,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        self.take(report, true, workload, journal)
    }

    /// Adds a report to the journal. It is sent with the next ones of its switch, or with
    /// [`Switches::send_gathered`]. For reports whose place among those of other switches does not matter.
    pub fn gather_report(
        &mut self,
        report: SwitchReport,
        workload: &Workload,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        self.take(report, false, workload, journal)?;
        self.gathered = true;
        Ok(())
    }

    /// Sends what waits for others.
    pub fn send_gathered(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.gathered)
            && let Senders::Here(reporters) = &mut self.place
        {
            reporters.flush_all()?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        report: SwitchReport,
        at_once: bool,
        workload: &Workload,
        journal: &mut Journal,
    ) -> anyhow::Result<()> {
        let switch = report.switch;
        let primitive = report.body.primitive().index();
        let mut room = [0; 16];
        let body = workload.to_wire_body(&report, &mut room);
        let (store, again) = (self.stores[primitive], self.retransmit[primitive]);
        // Another machine says later what became of its reports, and which of them were held back.
        let (sequence, is_fate_known) = match &mut self.place {
            Senders::Here(reporters) if at_once => {
                let (sequence, is_fate_known) = reporters.send(switch, store, body, again)?;
                (Some(sequence), is_fate_known)
            }
            Senders::Here(reporters) => (Some(reporters.take(switch, store, body, again)?), true),
            Senders::There(reporters) => {
                reporters.take(switch, store, body, again, at_once)?;
                (None, true)
            }
        };
        let number = journal.add(report);
        debug_assert!(sequence.is_none_or(|it| it == number), "the journal numbers as the reporter does");
        if !is_fate_known {
            note_held(journal, switch, number);
        }
        Ok(())
    }

    /// Receives NACKs, repeats what they request, and releases what the faults have held back long enough. Notes in
    /// the journal what the links did.
    pub async fn poll(&mut self, journal: &mut Journal) -> anyhow::Result<()> {
        self.gathered = false;
        let deliveries = match &mut self.place {
            Senders::Here(reporters) => {
                reporters.flush_all()?;
                reporters.take_deliveries()
            }
            Senders::There(reporters) => {
                let reported = reporters.poll().await?;
                reported.held.into_iter().for_each(|(switch, number)| note_held(journal, switch, number));
                reported.deliveries
            }
        };
        for delivery in deliveries {
            note_delivery(journal, delivery);
        }
        Ok(())
    }

    /// Counters of this side of the link, of all switches together.
    pub fn reporter_side(&self) -> ReporterSide {
        match &self.place {
            Senders::Here(reporters) => reporters.reporter_side(),
            Senders::There(reporters) => reporters.reporter_side(),
        }
    }
}

/// A report whose fate is not known at once is held back: other switches' reports overtake it even if none of its own
/// does.
fn note_held(journal: &mut Journal, switch: u16, number: u32) {
    if let Some(fate) = journal.fate_mut(switch, number) {
        fate.moved = true;
    }
}

fn note_delivery(journal: &mut Journal, Delivery { switch, number, what }: Delivery) {
    journal.note_sent(switch, number);
    let Some(known) = journal.fate_mut(switch, number) else { return };
    let first = known.sent == 0;
    let none_arrived = known.sent == known.lost;
    known.sent += 1;
    match what {
        DatagramFate::Lost => known.lost += 1,
        DatagramFate::Moved => known.moved = true,
        // A repeat that arrives first comes after reports that were made later.
        DatagramFate::Came => known.moved |= !first && none_arrived,
    }
}

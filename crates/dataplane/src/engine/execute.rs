//! Turns admitted reports, from any source, into operations on their stores.

use dta_proto::program::Primitive;
use dta_proto::wire::dta::DtaBody;

use super::Engine;
use crate::context::Context;
use crate::counters::Reason;
use crate::frame::EngineOutput;
use crate::losses::Origin;
use crate::run::{DropEvidence, KeyWriteRun};

/// An admitted report: contents, store and sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted<'a> {
    pub(crate) body: &'a DtaBody<'a>,
    pub(crate) store: u16,
    /// Its reporter; 0 if unknown.
    pub(crate) reporter: u16,
    /// Its sequence number among the reporter's reports.
    pub(crate) sequence: u32,
    /// Whether `sequence` counts modulo 2^32 and is unique per report. It then tells a postcard that comes
    /// after its path was sent from one of a new path.
    pub(crate) numbered: bool,
    /// Whether it asks to wake a reader now. For stores that wake no reader (all but lists marked `notify`)
    /// it is executed as usual, and counted.
    pub(crate) immediate: bool,
}

impl Engine {
    #[cfg(test)]
    pub(crate) fn execute_reports<'a>(
        &mut self,
        now: u64,
        reports: impl IntoIterator<Item = Admitted<'a>>,
        out: &mut EngineOutput,
    ) {
        self.clock = self.clock.max(now);
        for report in reports {
            self.execute_counted(report, out);
        }
        self.end_batch(out);
    }

    /// Executes a batch of reports that another source has parsed and admitted, each with the id of its store: no
    /// window is checked and no NACK sent. They are counted like those of [`Engine::ingest_packets`]. Frames are added to
    /// `out`; consecutive key-writes for one store become frames together.
    pub fn execute_unnumbered<'a>(
        &mut self,
        now: u64,
        reports: impl IntoIterator<Item = (u16, DtaBody<'a>)>,
        out: &mut EngineOutput,
    ) {
        self.clock = self.clock.max(now);
        let mut run = KeyWriteRun::new();
        for (store, body) in reports {
            if let DtaBody::KeyWrite { redundancy, key, value } = body
                && let Ok(value) = value.try_into()
                && let of = (store, redundancy)
                && (run.can_continue_with(of) || self.begin_run(of, &mut run, out))
            {
                run.push(key, value, DropEvidence::Reporter(0));
                self.count_received(Primitive::KeyWrite);
                continue;
            }
            self.send_run(&mut run, out);
            let report =
                Admitted { body: &body, store, reporter: 0, sequence: 0, numbered: false, immediate: false };
            self.execute_counted(report, out);
        }
        self.send_run(&mut run, out);
        self.end_batch(out);
    }

    #[inline]
    pub(super) fn count_received(&mut self, primitive: Primitive) {
        self.egress.counters.received += 1;
        self.egress.counters.primitive_counters_mut(primitive).received += 1;
    }

    fn execute_counted(&mut self, report: Admitted<'_>, out: &mut EngineOutput) {
        self.count_received(report.body.primitive());
        let restarts = self.reporters.restart_count();
        if let Err(reason) = self.execute_one(report, restarts, out) {
            self.egress.counters.count_dropped(reason);
            self.offenders.note_admitted(reason, report.reporter, report.store);
        }
    }

    /// Executes one report. It is counted as accepted, or the reason for dropping it is returned. `restarts`
    /// is the number of reporter restarts when it was admitted.
    #[inline(always)] // on the path of every report: no call, and no copy of the report
    pub(super) fn execute_one(
        &mut self,
        report: Admitted<'_>,
        restarts: u32,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        let primitive = report.body.primitive();
        let store = self.stores.find_store(report.store).ok_or(Reason::UnknownStore)?;
        let origin = Origin { serial: self.serial, sequence: report.sequence, reporter: report.reporter };
        let context =
            &mut Context { now: self.clock, regions: &store.regions, egress: &mut self.egress, out };
        let restarts = (report.numbered && !self.reference).then_some(restarts);
        store.state.ingest_report(report, origin, restarts, &mut self.increments, context)?;
        if report.immediate && !store.state.wakes_reader() {
            self.egress.counters.immediate_ignored += 1;
        }
        self.egress.counters.primitive_counters_mut(primitive).accepted += 1;
        self.serial = self.serial.wrapping_add(1);
        Ok(())
    }

    /// Sends what was held only for the length of a batch, and what queue pairs have room for.
    #[inline]
    pub(super) fn end_batch(&mut self, out: &mut EngineOutput) {
        self.increments.send(self.clock, &mut self.egress, out);
        self.egress.transmit_waiting(self.clock, out);
    }
}

//! Turns admitted reports, from any source, into operations on their stores.

use dta_proto::program::Primitive;
use dta_proto::wire::dta::DtaBody;

use super::Engine;
use super::runs::{begin_run, send_run};
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
    /// Whether `sequence` counts modulo 2^32 and is unique per report. If so, it tells a postcard that
    /// arrives after its path was sent from one of a new path.
    pub(crate) numbered: bool,
    /// Whether it asks to wake a reader now. For stores that wake no reader (all but lists marked `notify`),
    /// it is executed as usual and the request is counted.
    pub(crate) immediate: bool,
}

#[cfg(test)]
pub(super) fn execute_reports<'a>(
    engine: &mut Engine,
    now: u64,
    reports: impl IntoIterator<Item = Admitted<'a>>,
    out: &mut EngineOutput,
) {
    engine.clock = engine.clock.max(now);
    for report in reports {
        execute_counted(engine, report, out);
    }
    end_batch(engine, out);
}

pub(super) fn execute_unnumbered<'a>(
    engine: &mut Engine,
    now: u64,
    reports: impl IntoIterator<Item = (u16, DtaBody<'a>)>,
    out: &mut EngineOutput,
) {
    engine.clock = engine.clock.max(now);
    let mut run = KeyWriteRun::new();
    for (store, body) in reports {
        if let DtaBody::KeyWrite { redundancy, key, value } = body
            && let Ok(value) = value.try_into()
            && let of = (store, redundancy)
            && (run.can_continue_with(of) || begin_run(engine, of, &mut run, out))
        {
            run.push(key, value, DropEvidence::Reporter(0));
            count_received(engine, Primitive::KeyWrite);
            continue;
        }
        send_run(engine, &mut run, out);
        let report =
            Admitted { body: &body, store, reporter: 0, sequence: 0, numbered: false, immediate: false };
        execute_counted(engine, report, out);
    }
    send_run(engine, &mut run, out);
    end_batch(engine, out);
}

#[inline]
pub(super) fn count_received(engine: &mut Engine, primitive: Primitive) {
    engine.egress.counters.received += 1;
    engine.egress.counters.primitive_counters_mut(primitive).received += 1;
}

fn execute_counted(engine: &mut Engine, report: Admitted<'_>, out: &mut EngineOutput) {
    count_received(engine, report.body.primitive());
    let restarts = engine.reporters.restart_count();
    if let Err(reason) = execute_one(engine, report, restarts, out) {
        engine.egress.counters.count_dropped(reason);
        engine.offenders.note_admitted(reason, report.reporter, report.store);
    }
}

/// Executes one report. It is counted as accepted, or the reason for dropping it is returned. `restarts`
/// is the number of reporter restarts when it was admitted.
#[inline(always)] // on the path of every report: no call, and no copy of the report
pub(super) fn execute_one(
    engine: &mut Engine,
    report: Admitted<'_>,
    restarts: u32,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    let primitive = report.body.primitive();
    let store = engine.stores.find_store(report.store).ok_or(Reason::UnknownStore)?;
    let origin = Origin { serial: engine.serial, sequence: report.sequence, reporter: report.reporter };
    let context =
        &mut Context { now: engine.clock, regions: &store.regions, egress: &mut engine.egress, out };
    let restarts = (report.numbered && !engine.reference).then_some(restarts);
    store.state.ingest_report(report, origin, restarts, &mut engine.increments, context)?;
    if report.immediate && !store.state.wakes_reader() {
        engine.egress.counters.immediate_ignored += 1;
    }
    engine.egress.counters.primitive_counters_mut(primitive).accepted += 1;
    engine.serial = engine.serial.wrapping_add(1);
    Ok(())
}

/// Sends what was held only until the end of the batch, and what queue pairs have room for.
#[inline]
pub(super) fn end_batch(engine: &mut Engine, out: &mut EngineOutput) {
    engine.increments.send(engine.clock, &mut engine.egress, out);
    engine.egress.transmit_waiting(engine.clock, out);
}

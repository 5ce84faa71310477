//! The engine as one of several workers: it hands over reports that belong to another.

use dta_proto::wire;
use dta_proto::wire::dta::{DtaBody, DtaReport, MAX_REPORT_LEN, Primitive, Version};

use super::Engine;
use super::execute::{Admitted, count_received, end_batch, execute_one, execute_unnumbered};
use super::ingest::{admit_report, execute_alone, store_of_version0};
use super::ingest::{admitted_report, payload_of, reason_of};
use super::runs::{gather_key_write, send_run};
use crate::counters::Reason;
use crate::frame::EngineOutput;
use crate::reporters::PackedSocketAddr;
use crate::run::{DropEvidence, KeyWriteRun};
use crate::workers::{Crew, HandoverMessage, Stage};

pub(super) fn ingest_among<'a>(
    engine: &mut Engine,
    now: u64,
    packets: impl IntoIterator<Item = &'a [u8]>,
    crew: &mut Crew,
    out: &mut EngineOutput,
) {
    engine.clock = engine.clock.max(now);
    let mut run = KeyWriteRun::new();
    for packet in packets {
        if let Err(reason) = ingest_one_among(engine, packet, &mut run, crew, out) {
            engine.egress.counters.count_dropped(reason);
            engine.offenders.note_packet(reason, packet);
        }
    }
    // First, so that the others can start meanwhile.
    crew.publish_handovers();
    send_run(engine, &mut run, out);
    end_batch(engine, out);
}

pub(super) fn take_handovers(
    engine: &mut Engine,
    now: u64,
    crew: &mut Crew,
    out: &mut EngineOutput,
) -> usize {
    engine.clock = engine.clock.max(now);
    let taken = crew.take_handovers(|group, crew| {
        let mut run = KeyWriteRun::new();
        for taken in group {
            take_message(engine, &taken.as_message(), &mut run, crew, out);
        }
        send_run(engine, &mut run, out);
    });
    if taken != 0 {
        end_batch(engine, out);
    }
    taken
}

pub(super) fn execute_unnumbered_among<'a>(
    engine: &mut Engine,
    now: u64,
    reports: impl IntoIterator<Item = (u16, DtaBody<'a>)>,
    crew: &mut Crew,
    out: &mut EngineOutput,
) {
    let mut lost = Vec::new();
    let own = reports.into_iter().filter(|(store, body)| {
        // Lists and postcards have one writer. Keys are written here: copies of a value replace each other,
        // and increments add up, whichever worker writes them.
        let single = matches!(body, DtaBody::Append { .. } | DtaBody::Postcard { .. });
        let Some(worker) = crew.executor_of(body).filter(|_| single) else { return true };
        let mut bytes = [0; MAX_REPORT_LEN];
        let handed = match DtaReport::new(*store, *body).encode_into(&mut bytes) {
            Ok(len) => crew.try_hand_over(worker, &bytes[..len]),
            Err(_) => false,
        };
        if !handed {
            lost.push((*store, body.primitive()));
        }
        false
    });
    execute_unnumbered(engine, now, own, out);
    crew.publish_handovers();
    for (store, primitive) in lost {
        count_received(engine, primitive);
        engine.egress.counters.count_dropped(Reason::Handover);
        engine.offenders.note_admitted(Reason::Handover, 0, store);
    }
}

#[inline]
fn ingest_one_among<'a>(
    engine: &mut Engine,
    packet: &'a [u8],
    run: &mut KeyWriteRun<'a>,
    crew: &mut Crew,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    let (payload, source, destination) = match payload_of(packet) {
        Ok(parts) => parts,
        Err(reason) => {
            engine.egress.counters.received += 1;
            return Err(reason);
        }
    };
    // As in `ingest_one`: where the compiler knows the primitive, the report is never materialised.
    if !DtaReport::has_v1_prefix(Primitive::KeyWrite, payload) {
        send_run(engine, run, out);
        return ingest_other_among(engine, payload, (source, destination), crew, out);
    }
    let report = match DtaReport::parse_payload(payload) {
        Ok(report) => report,
        Err(error) => return Err(count_unparsed(engine, error)),
    };
    let Some((_, restarts)) = keep_among(engine, &report, payload, (source, destination), crew, out)? else {
        return Ok(());
    };
    if gather_key_write(engine, &report, DropEvidence::Packet(packet), run, out) {
        return Ok(());
    }
    send_run(engine, run, out);
    execute_alone(engine, payload, restarts, out)
}

#[inline(never)]
fn ingest_other_among(
    engine: &mut Engine,
    payload: &[u8],
    between: (PackedSocketAddr, PackedSocketAddr),
    crew: &mut Crew,
    out: &mut EngineOutput,
) -> Result<(), Reason> {
    // Used in place: moving it takes as long as parsing it.
    let parsed = DtaReport::parse_payload(payload);
    let report = match &parsed {
        Ok(report) => report,
        Err(error) => return Err(count_unparsed(engine, *error)),
    };
    match keep_among(engine, report, payload, between, crew, out)? {
        Some((store, restarts)) => execute_one(engine, admitted_report(report, store), restarts, out),
        None => Ok(()),
    }
}

/// Counts a report that cannot be parsed.
#[cold]
fn count_unparsed(engine: &mut Engine, error: wire::Error) -> Reason {
    engine.egress.counters.received += 1;
    reason_of(error)
}

/// As [`judge_among`], but hands the report over if another worker has to judge it.
#[inline(always)] // on the path of every report
fn keep_among(
    engine: &mut Engine,
    report: &DtaReport<'_>,
    payload: &[u8],
    (source, destination): (PackedSocketAddr, PackedSocketAddr),
    crew: &mut Crew,
    out: &mut EngineOutput,
) -> Result<Option<(u16, u32)>, Reason> {
    if let Some(judge) = crew.judging_worker(report, source.ip_address()) {
        let message =
            HandoverMessage { stage: Stage::Judge, restarts: 0, source, destination, report: payload };
        crew.hand_over(judge, &message);
        return Ok(None);
    }
    judge_among(engine, report, payload, (source, destination), crew, out)
}

/// Judges and counts a report whose reporter's window is here. Returns its store and the number of reporter
/// restarts if this worker must execute it; otherwise hands it over.
#[inline(always)] // on the path of every report
fn judge_among(
    engine: &mut Engine,
    report: &DtaReport<'_>,
    payload: &[u8],
    (source, destination): (PackedSocketAddr, PackedSocketAddr),
    crew: &mut Crew,
    out: &mut EngineOutput,
) -> Result<Option<(u16, u32)>, Reason> {
    let store = match admit_report(engine, report, source, destination, out) {
        Ok(store) => store,
        Err(reason) => {
            count_received(engine, report.body.primitive());
            return Err(reason);
        }
    };
    let restarts = crew.total_restarts(engine.reporters.restart_count());
    if let Some(worker) = crew.executor_of(&report.body) {
        crew.hand_over(
            worker,
            &HandoverMessage { stage: Stage::Execute, restarts, source, destination, report: payload },
        );
        return Ok(None);
    }
    count_received(engine, report.body.primitive());
    Ok(Some((store, restarts)))
}

#[inline(always)] // on the path of every report
fn take_message(
    engine: &mut Engine,
    message: &HandoverMessage<'_>,
    run: &mut KeyWriteRun<'_>,
    crew: &mut Crew,
    out: &mut EngineOutput,
) {
    // As in `ingest_one`.
    if message.stage == Stage::Execute
        && DtaReport::has_v1_prefix(Primitive::KeyWrite, message.report)
        && let Ok(report) = DtaReport::parse_payload(message.report)
        && gather_key_write(engine, &report, DropEvidence::Reporter(report.reporter), run, out)
    {
        count_received(engine, report.body.primitive());
        return;
    }
    send_run(engine, run, out);
    take_other(engine, message, crew, out);
}

#[inline(never)]
fn take_other(engine: &mut Engine, message: &HandoverMessage<'_>, crew: &mut Crew, out: &mut EngineOutput) {
    // The worker that handed it over has parsed it.
    let parsed = DtaReport::parse_payload(message.report);
    let Ok(report) = &parsed else { return };
    let ended = match message.stage {
        Stage::Judge => {
            let between = (message.source, message.destination);
            let kept = judge_among(engine, report, message.report, between, crew, out);
            kept.and_then(|kept| match kept {
                Some((store, restarts)) => execute_one(engine, admitted_report(report, store), restarts, out),
                None => Ok(()),
            })
        }
        Stage::Execute => {
            count_received(engine, report.body.primitive());
            let store = match report.version {
                Version::V1 => Ok(report.store),
                Version::V0 => store_of_version0(engine, report),
            };
            store.and_then(|store| execute_one(engine, admitted_report(report, store), message.restarts, out))
        }
        Stage::ExecuteUnnumbered => {
            count_received(engine, report.body.primitive());
            let unnumbered = Admitted { numbered: false, ..admitted_report(report, report.store) };
            execute_one(engine, unnumbered, message.restarts, out)
        }
    };
    if let Err(reason) = ended {
        engine.egress.counters.count_dropped(reason);
        engine.offenders.note_admitted(reason, report.reporter, report.store);
    }
}

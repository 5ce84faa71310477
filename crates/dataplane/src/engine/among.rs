//! The engine as one of several workers: it hands over reports that belong to another.

use dta_proto::wire;
use dta_proto::wire::dta::{DtaReport, Primitive, Version};

use super::Engine;
use super::ingest::{admitted_report, payload_of, reason_of};
use crate::counters::Reason;
use crate::frame::EngineOutput;
use crate::reporters::PackedSocketAddr;
use crate::run::{DropEvidence, KeyWriteRun};
use crate::workers::{Crew, HandoverMessage, Stage};

impl Engine {
    /// As [`Engine::ingest_packets`], for one of several workers. There must be [room](Crew::has_room_for) for the whole
    /// batch. The worker where a report ends counts it.
    pub fn ingest_among<'a>(
        &mut self,
        now: u64,
        packets: impl IntoIterator<Item = &'a [u8]>,
        crew: &mut Crew,
        out: &mut EngineOutput,
    ) {
        self.clock = self.clock.max(now);
        let mut run = KeyWriteRun::new();
        for packet in packets {
            if let Err(reason) = self.ingest_one_among(packet, &mut run, crew, out) {
                self.egress.counters.count_dropped(reason);
                self.offenders.note_packet(reason, packet);
            }
        }
        // First, so that the others can start meanwhile.
        crew.publish_handovers();
        self.send_run(&mut run, out);
        self.end_batch(out);
    }

    /// Takes what other workers have handed over. Returns how many reports that were.
    pub fn take_handovers(&mut self, now: u64, crew: &mut Crew, out: &mut EngineOutput) -> usize {
        self.clock = self.clock.max(now);
        let taken = crew.take_handovers(|group, crew| {
            let mut run = KeyWriteRun::new();
            for taken in group {
                self.take_message(&taken.as_message(), &mut run, crew, out);
            }
            self.send_run(&mut run, out);
        });
        if taken != 0 {
            self.end_batch(out);
        }
        taken
    }

    #[inline]
    fn ingest_one_among<'a>(
        &mut self,
        packet: &'a [u8],
        run: &mut KeyWriteRun<'a>,
        crew: &mut Crew,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        let (payload, source, destination) = match payload_of(packet) {
            Ok(parts) => parts,
            Err(reason) => {
                self.egress.counters.received += 1;
                return Err(reason);
            }
        };
        // Where the compiler knows the primitive, the report is never materialised: as in `ingest_one`.
        if !DtaReport::has_v1_prefix(Primitive::KeyWrite, payload) {
            self.send_run(run, out);
            return self.ingest_other_among(payload, (source, destination), crew, out);
        }
        let report = match DtaReport::parse_payload(payload) {
            Ok(report) => report,
            Err(error) => return Err(self.count_unparsed(error)),
        };
        let Some((_, restarts)) = self.keep_among(&report, payload, (source, destination), crew, out)? else {
            return Ok(());
        };
        if self.gather_key_write(&report, DropEvidence::Packet(packet), run, out) {
            return Ok(());
        }
        self.send_run(run, out);
        self.execute_alone(payload, restarts, out)
    }

    #[inline(never)]
    fn ingest_other_among(
        &mut self,
        payload: &[u8],
        between: (PackedSocketAddr, PackedSocketAddr),
        crew: &mut Crew,
        out: &mut EngineOutput,
    ) -> Result<(), Reason> {
        // Used in place: moving it takes as long as parsing it.
        let parsed = DtaReport::parse_payload(payload);
        let report = match &parsed {
            Ok(report) => report,
            Err(error) => return Err(self.count_unparsed(*error)),
        };
        match self.keep_among(report, payload, between, crew, out)? {
            Some((store, restarts)) => self.execute_one(admitted_report(report, store), restarts, out),
            None => Ok(()),
        }
    }

    /// Counts a report that cannot be parsed.
    #[cold]
    fn count_unparsed(&mut self, error: wire::Error) -> Reason {
        self.egress.counters.received += 1;
        reason_of(error)
    }

    /// As [`Engine::judge_among`], if another worker may have to judge.
    #[inline(always)] // on the path of every report
    fn keep_among(
        &mut self,
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
        self.judge_among(report, payload, (source, destination), crew, out)
    }

    /// Judges and counts a report of a reporter whose window is here. Returns its store and the number of
    /// reporter restarts if this worker must execute it; otherwise it is handed over.
    #[inline(always)] // on the path of every report
    fn judge_among(
        &mut self,
        report: &DtaReport<'_>,
        payload: &[u8],
        (source, destination): (PackedSocketAddr, PackedSocketAddr),
        crew: &mut Crew,
        out: &mut EngineOutput,
    ) -> Result<Option<(u16, u32)>, Reason> {
        let store = match self.admit_report(report, source, destination, out) {
            Ok(store) => store,
            Err(reason) => {
                self.count_received(report.body.primitive());
                return Err(reason);
            }
        };
        let restarts = crew.total_restarts(self.reporters.restart_count());
        if let Some(worker) = crew.executor_of(&report.body) {
            crew.hand_over(
                worker,
                &HandoverMessage { stage: Stage::Execute, restarts, source, destination, report: payload },
            );
            return Ok(None);
        }
        self.count_received(report.body.primitive());
        Ok(Some((store, restarts)))
    }

    #[inline(always)] // on the path of every report
    fn take_message(
        &mut self,
        message: &HandoverMessage<'_>,
        run: &mut KeyWriteRun<'_>,
        crew: &mut Crew,
        out: &mut EngineOutput,
    ) {
        // As in `ingest_one`.
        if message.stage == Stage::Execute
            && DtaReport::has_v1_prefix(Primitive::KeyWrite, message.report)
            && let Ok(report) = DtaReport::parse_payload(message.report)
            && self.gather_key_write(&report, DropEvidence::Reporter(report.reporter), run, out)
        {
            self.count_received(report.body.primitive());
            return;
        }
        self.send_run(run, out);
        self.take_other(message, crew, out);
    }

    #[inline(never)]
    fn take_other(&mut self, message: &HandoverMessage<'_>, crew: &mut Crew, out: &mut EngineOutput) {
        // The worker that handed it over has parsed it.
        let parsed = DtaReport::parse_payload(message.report);
        let Ok(report) = &parsed else { return };
        let ended = match message.stage {
            Stage::Judge => {
                let between = (message.source, message.destination);
                let kept = self.judge_among(report, message.report, between, crew, out);
                kept.and_then(|kept| match kept {
                    Some((store, restarts)) => {
                        self.execute_one(admitted_report(report, store), restarts, out)
                    }
                    None => Ok(()),
                })
            }
            Stage::Execute => {
                self.count_received(report.body.primitive());
                let store = match report.version {
                    Version::V1 => Ok(report.store),
                    Version::V0 => self.store_of_version0(report),
                };
                store
                    .and_then(|store| self.execute_one(admitted_report(report, store), message.restarts, out))
            }
        };
        if let Err(reason) = ended {
            self.egress.counters.count_dropped(reason);
            self.offenders.note_admitted(reason, report.reporter, report.store);
        }
    }
}

//! The engine as one of several workers: it hands over reports that belong to another.

use dta_proto::wire;
use dta_proto::wire::dta::{Primitive, Report, Version};

use super::Engine;
use super::ingest::{admitted, payload_of, reason_of};
use crate::counters::Reason;
use crate::frame::Output;
use crate::reporters::Source;
use crate::run::{Run, Shown};
use crate::workers::{Crew, Message, Stage};

impl Engine {
    /// As [`Engine::ingest`], for one of several workers. There must be [room](Crew::has_room) for the whole
    /// batch. The worker where a report ends counts it.
    pub fn ingest_among<'a>(
        &mut self,
        now: u64,
        packets: impl IntoIterator<Item = &'a [u8]>,
        crew: &mut Crew,
        out: &mut Output,
    ) {
        self.clock = self.clock.max(now);
        let mut run = Run::new();
        for packet in packets {
            if let Err(reason) = self.ingest_one_among(packet, &mut run, crew, out) {
                self.egress.counters.drop_one(reason);
                self.offenders.note(reason, packet);
            }
        }
        // First, so that the others can start meanwhile.
        crew.publish();
        self.send_run(&mut run, out);
        self.end_batch(out);
    }

    /// Takes what other workers have handed over. Returns how many reports that were.
    pub fn take_in(&mut self, now: u64, crew: &mut Crew, out: &mut Output) -> usize {
        self.clock = self.clock.max(now);
        let taken = crew.take_in(|group, crew| {
            let mut run = Run::new();
            for taken in group {
                self.take_one(&taken.message(), &mut run, crew, out);
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
        run: &mut Run<'a>,
        crew: &mut Crew,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let (payload, source, destination) = match payload_of(packet) {
            Ok(parts) => parts,
            Err(reason) => {
                self.egress.counters.received += 1;
                return Err(reason);
            }
        };
        // Where the compiler knows the primitive, the report is never materialised: as in `ingest_one`.
        if !Report::is_v1_of(Primitive::KeyWrite, payload) {
            self.send_run(run, out);
            return self.ingest_other_among(payload, (source, destination), crew, out);
        }
        let report = match Report::parse(payload) {
            Ok(report) => report,
            Err(error) => return Err(self.unread(error)),
        };
        let Some((_, restarts)) = self.keep_among(&report, payload, (source, destination), crew, out)? else {
            return Ok(());
        };
        if self.gather(&report, Shown::Packet(packet), run, out) {
            return Ok(());
        }
        self.send_run(run, out);
        self.execute_alone(payload, restarts, out)
    }

    #[inline(never)]
    fn ingest_other_among(
        &mut self,
        payload: &[u8],
        between: (Source, Source),
        crew: &mut Crew,
        out: &mut Output,
    ) -> Result<(), Reason> {
        // Used in place: moving it takes as long as parsing it.
        let parsed = Report::parse(payload);
        let report = match &parsed {
            Ok(report) => report,
            Err(error) => return Err(self.unread(*error)),
        };
        match self.keep_among(report, payload, between, crew, out)? {
            Some((store, restarts)) => self.execute_one(admitted(report, store), restarts, out),
            None => Ok(()),
        }
    }

    /// Counts a report that cannot be parsed.
    #[cold]
    fn unread(&mut self, error: wire::Error) -> Reason {
        self.egress.counters.received += 1;
        reason_of(error)
    }

    /// As [`Engine::judge_among`], if another worker may have to judge.
    #[inline(always)] // on the path of every report
    fn keep_among(
        &mut self,
        report: &Report<'_>,
        payload: &[u8],
        (source, destination): (Source, Source),
        crew: &mut Crew,
        out: &mut Output,
    ) -> Result<Option<(u16, u32)>, Reason> {
        if let Some(judge) = crew.judge_of(report, source.ip()) {
            let message = Message { stage: Stage::Judge, restarts: 0, source, destination, report: payload };
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
        report: &Report<'_>,
        payload: &[u8],
        (source, destination): (Source, Source),
        crew: &mut Crew,
        out: &mut Output,
    ) -> Result<Option<(u16, u32)>, Reason> {
        let store = match self.judge(report, source, destination, out) {
            Ok(store) => store,
            Err(reason) => {
                self.count_received(report.body.primitive());
                return Err(reason);
            }
        };
        let restarts = crew.restarts(self.reporters.restarts());
        if let Some(worker) = crew.executor_of(&report.body) {
            crew.hand_over(
                worker,
                &Message { stage: Stage::Execute, restarts, source, destination, report: payload },
            );
            return Ok(None);
        }
        self.count_received(report.body.primitive());
        Ok(Some((store, restarts)))
    }

    #[inline(always)] // on the path of every report
    fn take_one(&mut self, message: &Message<'_>, run: &mut Run<'_>, crew: &mut Crew, out: &mut Output) {
        // As in `ingest_one`.
        if message.stage == Stage::Execute
            && Report::is_v1_of(Primitive::KeyWrite, message.report)
            && let Ok(report) = Report::parse(message.report)
            && self.gather(&report, Shown::Reporter(report.reporter), run, out)
        {
            self.count_received(report.body.primitive());
            return;
        }
        self.send_run(run, out);
        self.take_other(message, crew, out);
    }

    #[inline(never)]
    fn take_other(&mut self, message: &Message<'_>, crew: &mut Crew, out: &mut Output) {
        // The worker that handed it over has parsed it.
        let parsed = Report::parse(message.report);
        let Ok(report) = &parsed else { return };
        let ended = match message.stage {
            Stage::Judge => {
                let between = (message.source, message.destination);
                let kept = self.judge_among(report, message.report, between, crew, out);
                kept.and_then(|kept| match kept {
                    Some((store, restarts)) => self.execute_one(admitted(report, store), restarts, out),
                    None => Ok(()),
                })
            }
            Stage::Execute => {
                self.count_received(report.body.primitive());
                let store = match report.version {
                    Version::V1 => Ok(report.store),
                    Version::V0 => self.store_of_version0(report),
                };
                store.and_then(|store| self.execute_one(admitted(report, store), message.restarts, out))
            }
        };
        if let Err(reason) = ended {
            self.egress.counters.drop_one(reason);
            self.offenders.note_admitted(reason, report.reporter, report.store);
        }
    }
}

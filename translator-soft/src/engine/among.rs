//! The engine as one worker among several: reports that belong to another are handed over.

use dta_proto::wire::dta::{Primitive, Report, Version};

use super::Engine;
use super::execute::Admitted;
use super::ingest::{admitted, payload_of, reason_of};
use crate::counters::Reason;
use crate::frame::Output;
use crate::reporters::Source;
use crate::workers::{Crew, Message, Stage};

impl Engine {
    /// As [`Engine::ingest`], by one worker among several. There has to be [room](Crew::has_room) for
    /// the whole batch. What is handed over is counted by the worker where it ends.
    pub fn ingest_among<'a>(
        &mut self,
        now: u64,
        packets: impl IntoIterator<Item = &'a [u8]>,
        crew: &mut Crew,
        out: &mut Output,
    ) {
        self.clock = self.clock.max(now);
        for packet in packets {
            if let Err(reason) = self.ingest_one_among(packet, crew, out) {
                self.egress.counters.drop_one(reason);
                self.offenders.note(reason, packet);
            }
        }
        crew.publish();
        self.end_batch(out);
    }

    /// Takes what other workers have handed over. How many reports that were.
    pub fn take_in(&mut self, now: u64, crew: &mut Crew, out: &mut Output) -> usize {
        self.clock = self.clock.max(now);
        let taken = crew.take_in(|message, crew| self.take_one(message, crew, out));
        if taken != 0 {
            self.end_batch(out);
        }
        taken
    }

    #[inline]
    fn ingest_one_among(&mut self, packet: &[u8], crew: &mut Crew, out: &mut Output) -> Result<(), Reason> {
        let (payload, source, destination) = match payload_of(packet) {
            Ok(parts) => parts,
            Err(reason) => {
                self.egress.counters.received += 1;
                return Err(reason);
            }
        };
        // The same either way: as in `ingest_one`.
        match Report::is_v1_of(Primitive::KeyWrite, payload) {
            true => self.ingest_payload_among(payload, source, destination, crew, out),
            false => self.ingest_other_among(payload, source, destination, crew, out),
        }
    }

    #[inline(never)]
    fn ingest_other_among(
        &mut self,
        payload: &[u8],
        source: Source,
        destination: Source,
        crew: &mut Crew,
        out: &mut Output,
    ) -> Result<(), Reason> {
        self.ingest_payload_among(payload, source, destination, crew, out)
    }

    #[inline(always)]
    fn ingest_payload_among(
        &mut self,
        payload: &[u8],
        source: Source,
        destination: Source,
        crew: &mut Crew,
        out: &mut Output,
    ) -> Result<(), Reason> {
        // Looked at where it is: to move it takes as long as to parse it.
        let parsed = Report::parse(payload);
        let report = match &parsed {
            Ok(report) => report,
            Err(error) => {
                self.egress.counters.received += 1;
                return Err(reason_of(*error));
            }
        };
        if let Some(judge) = crew.judge_of(report, source.ip()) {
            let message = Message { stage: Stage::Judge, restarts: 0, source, destination, report: payload };
            crew.hand_over(judge, &message);
            return Ok(());
        }
        self.judge_among(report, payload, (source, destination), crew, out)
    }

    /// Judges a report of a reporter whose window is here.
    #[inline(always)] // on the path of every report
    fn judge_among(
        &mut self,
        report: &Report<'_>,
        payload: &[u8],
        (source, destination): (Source, Source),
        crew: &mut Crew,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let store = match self.judge(report, source, destination, out) {
            Ok(store) => store,
            Err(reason) => {
                self.count_received(report);
                return Err(reason);
            }
        };
        let restarts = crew.restarts(self.reporters.restarts());
        if let Some(worker) = crew.executor_of(&report.body) {
            crew.hand_over(
                worker,
                &Message { stage: Stage::Execute, restarts, source, destination, report: payload },
            );
            return Ok(());
        }
        self.count_received(report);
        self.execute_one(admitted(report, store), restarts, out)
    }

    #[inline(always)] // on the path of every report
    fn take_one(&mut self, message: &Message<'_>, crew: &mut Crew, out: &mut Output) {
        // The same either way: as in `ingest_one`.
        let usual = message.stage == Stage::Execute && Report::is_v1_of(Primitive::KeyWrite, message.report);
        match usual {
            true => self.take_message(message, crew, out),
            false => self.take_other(message, crew, out),
        }
    }

    #[inline(never)]
    fn take_other(&mut self, message: &Message<'_>, crew: &mut Crew, out: &mut Output) {
        self.take_message(message, crew, out);
    }

    #[inline(always)]
    fn take_message(&mut self, message: &Message<'_>, crew: &mut Crew, out: &mut Output) {
        // It was parsed by who handed it over.
        let parsed = Report::parse(message.report);
        let Ok(report) = &parsed else { return };
        let ended = match message.stage {
            Stage::Judge => {
                let between = (message.source, message.destination);
                self.judge_among(report, message.report, between, crew, out)
            }
            Stage::Execute => {
                self.count_received(report);
                let store = match report.version {
                    Version::V1 => Ok(report.store),
                    Version::V0 => self.store_of_version0(report),
                };
                store.and_then(|store| self.execute_one(admitted(report, store), message.restarts, out))
            }
            Stage::ExecuteUnnumbered => {
                self.count_received(report);
                let unnumbered = Admitted { numbered: false, ..admitted(report, report.store) };
                self.execute_one(unnumbered, message.restarts, out)
            }
        };
        if let Err(reason) = ended {
            self.egress.counters.drop_one(reason);
            self.offenders.note_admitted(reason, report.reporter, report.store);
        }
    }

    #[inline]
    fn count_received(&mut self, report: &Report<'_>) {
        let counters = &mut self.egress.counters;
        counters.received += 1;
        counters.of(report.body.primitive()).received += 1;
    }
}

//! The engine: what the program holds, and the path of a report through it. [`Engine`] is here; the steps of
//! each task are functions on it, in separate files.
//!
//! | task | file |
//! |---|---|
//! | adding and removing program entries | `program.rs`, with the stores in `stores.rs` |
//! | reports from the network: parse, then judge | `ingest.rs`, `admission.rs` |
//! | the same, as one of several workers | `among.rs` |
//! | key-writes of a batch, turned into operations together | `runs.rs` |
//! | admitted reports, from any source: operations | `execute.rs` |
//! | answers from the collector's queue pairs | `answers.rs` |
//! | timers | `time.rs` |
//! | status of queue pairs | `status.rs` |

mod admission;
mod among;
mod answers;
mod execute;
mod ingest;
mod offenders;
mod program;
mod runs;
mod status;
mod stores;
mod time;

use std::net::Ipv4Addr;

use dta_proto::program::{DataPlaneChange, Primitive, Program};
use dta_proto::wire::dta::{self, DtaBody};
use dta_proto::wire::roce::Psn;

use self::offenders::Offenders;
use self::stores::InstalledStores;
use super::counters::{EngineCounters, LossCause, Reason};
use super::egress::Egress;
use super::frame::EngineOutput;
use super::losses::{FrameMeta, Origins};
use super::primitive::increment::Increments;
use super::reporters::Reporters;
use super::requester::{ResponderAnswer, Timing};
use super::version0::Version0Reporters;
use super::workers::Crew;

pub(crate) use execute::Admitted;
pub use offenders::Offender;
pub use program::SetupError;
pub use status::QueuePairStatus;

/// Limits of the engine. Memory is allocated when the program is applied, not per report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Maximum number of version-1 reporters with windows, and of version-0 sources.
    pub reporters: usize,
    /// Maximum number of NACKs per second for one version-0 source; 0 = none. The sender of a version-0
    /// report is not verified, and one report causes up to 32 NACKs.
    pub version0_nacks: u32,
    /// Rows in the cache of each postcarding store.
    pub postcard_rows: usize,
    /// Maximum number of columns with state in a sketch-merge store, over all epochs.
    pub sketch_columns: u64,
    /// Times and limits of RC queue pairs.
    pub rc: Timing,
    /// Whether to keep the origins of reports until the fate of their frames is known, for the
    /// ledger.
    pub name_reports: bool,
    /// Whether operations leave as [work requests](EngineOutput::requests) for an RDMA device, which builds
    /// the frames and retransmits them; [`Engine::handle_completions`] takes the outcomes.
    pub posts: bool,
}

impl Default for EngineLimits {
    fn default() -> Self {
        EngineLimits {
            reporters: 4096,
            version0_nacks: 0,
            postcard_rows: 1 << 16,
            sketch_columns: 1 << 22,
            rc: Timing::default(),
            name_reports: false,
            posts: false,
        }
    }
}

pub struct Engine {
    program: Program,
    limits: EngineLimits,
    egress: Egress,
    stores: InstalledStores,
    /// Store ids of version-0 primitives.
    version0: [Option<u16>; Primitive::ALL.len()],
    flush_ns: [u64; Primitive::ALL.len()],
    reporters: Reporters,
    reporters0: Version0Reporters,
    increments: Increments,
    /// Whether the engine is restricted to what a switch does: `docs/reference-mode.md`.
    reference: bool,
    serial: u32,
    service: (Ipv4Addr, u16),
    clock: u64,
    answers_ignored: u64,
    offenders: Offenders,
}

impl Engine {
    /// An engine that holds no program: every report is dropped as `no_queue_pair` or
    /// `unknown_store`.
    pub fn new(limits: EngineLimits) -> Self {
        Engine {
            program: Program::default(),
            limits,
            egress: Egress::new(limits.rc, limits.name_reports, limits.posts),
            stores: InstalledStores::new(),
            version0: [None; Primitive::ALL.len()],
            flush_ns: [0; Primitive::ALL.len()],
            reporters: Reporters::new(limits.reporters),
            reporters0: Version0Reporters::new(limits.reporters, limits.version0_nacks),
            increments: Increments::new(true),
            reference: false,
            serial: 0,
            service: (Ipv4Addr::UNSPECIFIED, dta::PORT),
            clock: 0,
            answers_ignored: 0,
            offenders: Offenders::new(),
        }
    }

    /// Sets the newest sequence that an earlier run of this translator heard from each reporter (by id).
    /// Sequences between it and the reporter's first report here count as missing.
    pub fn heard_earlier(&mut self, reporters: &[(u16, u32)]) {
        for &(id, newest) in reporters {
            self.reporters.heard_earlier(id, newest);
        }
    }

    /// Accepts only these version-1 reporters, each from its own address, and version-0 reports only from
    /// these addresses. Without any, accepts everybody.
    pub fn list_reporters(&mut self, reporters: &[(u16, Ipv4Addr)]) {
        self.reporters.accept_only(reporters);
        self.reporters0.accept_only(reporters.iter().map(|(_, address)| *address));
    }

    /// Sets the limit of NACKs per second for one version-0 source; 0 = none.
    pub fn set_version0_nacks(&mut self, a_second: u32) {
        self.limits.version0_nacks = a_second;
        self.reporters0.set_nacks(a_second);
    }

    /// Ends all queue pairs: unacknowledged operations count as lost.
    pub fn end_queue_pairs(&mut self, out: &mut EngineOutput) {
        self.egress.end_queue_pairs(out);
    }

    /// Whether losing a frame means losing its reports. On RC it does not, because the frame is sent again.
    pub fn leaves_once(&self, meta: &FrameMeta) -> bool {
        self.egress.leaves_once(meta)
    }

    /// Counts a frame that a fault injector kept from arriving, if it [leaves
    /// once](Engine::leaves_once).
    pub fn injected_loss(&mut self, meta: &FrameMeta) {
        self.egress.injected_loss(meta);
    }

    pub fn check_changes(&self, changes: &[DataPlaneChange]) -> Result<(), SetupError> {
        program::check_changes(self, changes)
    }

    /// Applies changes in order. Operations that this releases go to `out`.
    ///
    /// # Errors
    /// A [`SetupError`] that names the offending entry; nothing has changed then.
    pub fn apply_changes(
        &mut self,
        now: u64,
        changes: &[DataPlaneChange],
        out: &mut EngineOutput,
    ) -> Result<(), SetupError> {
        program::apply_changes(self, now, changes, out)
    }

    /// Processes a batch of reports, each an IPv4 packet. Frames and NACKs are added to `out`.
    pub fn ingest_packets<'a>(
        &mut self,
        now: u64,
        packets: impl IntoIterator<Item = &'a [u8]>,
        out: &mut EngineOutput,
    ) {
        ingest::ingest_packets(self, now, packets, out)
    }

    /// As [`Engine::ingest_packets`], for one of several workers. There must be [room](Crew::has_room_for)
    /// for the whole batch. Each report is counted by the worker where it ends up.
    pub fn ingest_among<'a>(
        &mut self,
        now: u64,
        packets: impl IntoIterator<Item = &'a [u8]>,
        crew: &mut Crew,
        out: &mut EngineOutput,
    ) {
        among::ingest_among(self, now, packets, crew, out)
    }

    /// Takes the reports that other workers have handed over. Returns their number.
    pub fn take_handovers(&mut self, now: u64, crew: &mut Crew, out: &mut EngineOutput) -> usize {
        among::take_handovers(self, now, crew, out)
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
        execute::execute_unnumbered(self, now, reports, out)
    }

    /// As [`Engine::execute_unnumbered`], for one of several workers. List entries and postcards that belong to other
    /// workers are handed over; if there is no room, they are dropped and counted. Flow records are too long to hand
    /// over, so they must be for a list of this worker: one whose number modulo the number of workers is this worker's.
    pub fn execute_unnumbered_among<'a>(
        &mut self,
        now: u64,
        reports: impl IntoIterator<Item = (u16, DtaBody<'a>)>,
        crew: &mut Crew,
        out: &mut EngineOutput,
    ) {
        among::execute_unnumbered_among(self, now, reports, crew, out)
    }

    #[cfg(test)]
    pub(crate) fn execute_reports<'a>(
        &mut self,
        now: u64,
        reports: impl IntoIterator<Item = Admitted<'a>>,
        out: &mut EngineOutput,
    ) {
        execute::execute_reports(self, now, reports, out)
    }

    /// Handles a batch of IPv4 packets: RoCEv2 answers to RC queue pairs. Others are counted and ignored.
    pub fn handle_answers<'a>(
        &mut self,
        now: u64,
        packets: impl IntoIterator<Item = &'a [u8]>,
        out: &mut EngineOutput,
    ) {
        answers::handle_answers(self, now, packets, out)
    }

    /// Handles an RDMA device's completions of work requests on RC: the place of the queue pair, the PSN, and the answer that the
    /// completion amounts to. A [`ResponderAnswer::Ack`] also covers all earlier requests of the queue pair.
    pub fn handle_completions(
        &mut self,
        now: u64,
        completions: impl IntoIterator<Item = (u8, Psn, ResponderAnswer)>,
        out: &mut EngineOutput,
    ) {
        answers::handle_completions(self, now, completions, out)
    }

    /// Counts a work request that did not become a frame, with its reports, if it [leaves once](Engine::leaves_once).
    pub fn lose_request(&mut self, meta: &FrameMeta, cause: LossCause, out: &mut EngineOutput) {
        self.egress.lose_request(meta, cause, out);
    }

    /// Lets time pass: sends what has been held long enough, and recovers silent queue pairs.
    pub fn run_timers(&mut self, now: u64, out: &mut EngineOutput) {
        time::run_timers(self, now, out)
    }

    /// Sends everything held, by store id and then by place (lists by number). Returns the number of reports
    /// sent.
    pub fn flush_held_reports(&mut self, now: u64, out: &mut EngineOutput) -> u64 {
        time::flush_held_reports(self, now, out)
    }

    /// When [`Engine::run_timers`] is next needed, if ever.
    pub fn next_deadline(&self) -> Option<u64> {
        time::next_deadline(self)
    }

    pub fn installed_program(&self) -> &Program {
        &self.program
    }

    pub fn engine_counters(&self) -> &EngineCounters {
        &self.egress.counters
    }

    /// Takes the first report dropped for each reason since the last call.
    pub fn take_offenders(&mut self) -> impl Iterator<Item = (Reason, Offender)> + '_ {
        self.offenders.take()
    }

    /// The version-1 reporters that are known.
    pub fn reporters(&self) -> &Reporters {
        &self.reporters
    }

    /// RoCEv2 packets received that were damaged, or that answered none of our queue pairs.
    pub fn answers_ignored(&self) -> u64 {
        self.answers_ignored
    }

    /// Origins of the reports in recent frames.
    pub fn report_origins(&self) -> &Origins {
        &self.egress.origins
    }

    /// How many former regions have unacknowledged operations in flight. Until there are none, their rkeys
    /// must stay valid.
    pub fn former_regions(&self) -> usize {
        self.egress.former_regions()
    }

    /// How many operations every queue pair has room for while half of its queue is kept free for those that
    /// arrive meanwhile. Operations that do not fit in the queue are lost.
    pub fn queue_headroom(&self) -> usize {
        self.egress.queue_pairs().map(|(_, pair)| pair.requester.queue_headroom()).min().unwrap_or(usize::MAX)
    }

    /// As [`Engine::queue_headroom`], for the queue pairs that a store's operations use; 0 if there is no such store.
    pub fn store_headroom(&self, store: u16) -> usize {
        let regions = self.stores.iter().find(|installed| installed.id == store).map(|found| &found.regions);
        let places =
            regions.iter().flat_map(|of| of.collectors().filter_map(|collector| of.of_collector(collector)));
        places.map(|place| self.egress.headroom_of(place)).min().unwrap_or(0)
    }

    /// The states of the queue pairs, by collector, then purpose.
    pub fn queue_pairs(&self) -> Vec<QueuePairStatus> {
        self.egress.queue_pairs().map(|(_, pair)| QueuePairStatus::new(pair)).collect()
    }
}

//! The engine: what the program holds, and the path of a report through it.
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
//! | status | `status.rs` |

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

use dta_proto::program::{Primitive, Program};
use dta_proto::wire::dta;

use self::offenders::Offenders;
use self::stores::InstalledStores;
use super::egress::Egress;
use super::frame::EngineOutput;
use super::losses::FrameMeta;
use super::primitive::increment::Increments;
use super::reporters::Reporters;
use super::requester::Timing;
use super::version0::Version0Reporters;

pub(crate) use execute::Admitted;
pub use offenders::Offender;
pub use program::SetupError;
pub use status::QueuePairStatus;

/// Limits of the engine. Memory is allocated when the program is applied, not per report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimits {
    /// Most version-1 reporters with windows, and most version-0 sources.
    pub reporters: usize,
    /// Most NACKs per second for one version-0 source; 0 = none. The sender of a version-0 report is not
    /// verified, and one report causes up to 32 NACKs.
    pub version0_nacks: u32,
    /// Rows in the cache of each postcarding store.
    pub postcard_rows: usize,
    /// Most columns with state in a sketch-merge store, over all epochs.
    pub sketch_columns: u64,
    /// Times and limits of RC queue pairs.
    pub rc: Timing,
    /// Whether to keep the origins of reports until the fate of their frames is known, for the
    /// ledger.
    pub name_reports: bool,
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
    /// Whether it is restricted to what a switch does: `docs/reference-mode.md`.
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
            egress: Egress::new(limits.rc, limits.name_reports),
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

    /// Sets how far an earlier run of this translator had heard its reporters (id and newest sequence): what
    /// is between that and a reporter's first report here counts as missing.
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

    /// Whether the loss of a frame means the loss of its reports: not on RC, where it is sent again.
    pub fn leaves_once(&self, meta: &FrameMeta) -> bool {
        self.egress.leaves_once(meta)
    }

    /// Counts a frame that a fault injector kept from arriving, if it [leaves
    /// once](Engine::leaves_once).
    pub fn injected_loss(&mut self, meta: &FrameMeta) {
        self.egress.injected_loss(meta);
    }
}

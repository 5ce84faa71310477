//! The engine: what the program holds, and the path of a report through it.
//!
//! | door | file |
//! |---|---|
//! | entries of the program come and go | `program.rs`, with the stores in `stores.rs` |
//! | reports from the network: parse, then judge | `ingest.rs`, `admission.rs` |
//! | the same, of one worker among several | `among.rs` |
//! | key-writes of a batch, which become operations together | `runs.rs` |
//! | reports that were admitted, from there or from anywhere else: operations | `execute.rs` |
//! | answers of the collector's queue pairs | `answers.rs` |
//! | time passes | `time.rs` |
//! | questions | `status.rs` |

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
use self::stores::Stores;
use super::egress::Egress;
use super::frame::Output;
use super::losses::FrameMeta;
use super::primitive::increment::Increments;
use super::reporters::Reporters;
use super::requester::Timing;
use super::version0::Version0Reporters;

pub use execute::Admitted;
pub use offenders::Offender;
pub use program::SetupError;
pub use status::QueuePairStatus;

/// What the engine may use at most. Memory is taken when the program is applied, not per report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Version-1 reporters that windows are kept for, and as many version-0 sources.
    pub reporters: usize,
    /// NACKs a second that one version-0 source may draw; 0 = none. Nobody knows who sent a
    /// version-0 report, and one draws up to 32 of them.
    pub version0_nacks: u32,
    /// Rows of the cache of each postcarding store.
    pub postcard_rows: usize,
    /// Columns of a sketch-merge store, all epochs together, that state is kept for.
    pub sketch_columns: u64,
    /// Times and limits of RC queue pairs.
    pub rc: Timing,
    /// Whether to keep the names of reports until the fate of their frames is known, for the
    /// ledger.
    pub name_reports: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            reporters: 4096,
            version0_nacks: 0,
            postcard_rows: 1 << 16,
            sketch_columns: 1 << 22,
            rc: Timing::default(),
            name_reports: false,
        }
    }
}

/// The software data plane.
pub struct Engine {
    program: Program,
    limits: Limits,
    egress: Egress,
    stores: Stores,
    /// Store ids of version-0 primitives.
    version0: [Option<u16>; Primitive::ALL.len()],
    flush_ns: [u64; Primitive::ALL.len()],
    reporters: Reporters,
    reporters0: Version0Reporters,
    increments: Increments,
    /// Whether it does what a switch does, and no more: `docs/reference-mode.md`.
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
    pub fn new(limits: Limits) -> Self {
        Engine {
            program: Program::default(),
            limits,
            egress: Egress::new(limits.rc, limits.name_reports),
            stores: Stores::new(),
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

    /// Tells how far an earlier life of this translator had heard its reporters (id and newest
    /// sequence): what neither heard is counted as missing when this one hears them.
    pub fn heard_earlier(&mut self, reporters: &[(u16, u32)]) {
        for &(id, newest) in reporters {
            self.reporters.heard_earlier(id, newest);
        }
    }

    /// Takes reports of these version-1 reporters alone, each from its own address; version-0
    /// reports from these addresses. Of everybody if there are none.
    pub fn list_reporters(&mut self, reporters: &[(u16, Ipv4Addr)]) {
        self.reporters.list(reporters);
        self.reporters0.list(reporters.iter().map(|(_, address)| *address));
    }

    /// Lets one version-0 source draw so many NACKs a second; 0 = none.
    pub fn set_version0_nacks(&mut self, a_second: u32) {
        self.limits.version0_nacks = a_second;
        self.reporters0.set_nacks(a_second);
    }

    /// Ends all queue pairs: what was not acknowledged is counted lost.
    pub fn end(&mut self, out: &mut Output) {
        self.egress.end(out);
    }

    /// Whether what becomes of a frame on its way says what becomes of its reports: not on RC,
    /// where it is sent again.
    pub fn leaves_once(&self, meta: &FrameMeta) -> bool {
        self.egress.leaves_once(meta)
    }

    /// Counts a frame that a fault injector kept from arriving, if it [leaves
    /// once](Engine::leaves_once).
    pub fn injected_loss(&mut self, meta: &FrameMeta) {
        self.egress.injected_loss(meta);
    }
}

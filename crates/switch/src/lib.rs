//! Switches as targets: a [`Target`] turns reports into frames once it holds a program.
//!
//! Code that programs a target does not ask for its kind. Each kind lowers a program to rows of its tables,
//! reads what it holds, and writes the difference. P4 switches are here: translators ([`P4Switch`]) over
//! P4Runtime ([`p4runtime`]) and BfRuntime ([`bfruntime`]), and [reporters](reporter), which are programmed
//! without a session. The configuration of a switch comes as [options].

pub mod bfrt_json;
pub mod bfruntime;
pub mod counters;
pub mod cpu_port;
pub mod lower;
pub mod matches;
pub mod messages;
pub mod options;
mod p4_switch;
pub mod p4runtime;
pub mod pipeline;
pub mod places;
pub mod platform;
pub mod reporter;
mod row;
pub mod runtime;
pub mod schema;
pub mod state;
pub mod tables;
pub mod tofino;
pub mod translator;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddrV4;

use dta_link::shared_ring::JoinOffer;
use dta_proto::control::NodeStatistics;
use dta_proto::program::{DataPlaneChange, Endpoint, Primitive, Program, RowFields, Transport};
use dta_rpc::ClientError;
use tonic::Code;

pub use self::p4_switch::P4Switch;

/// A programmable device or process that turns reports into frames.
#[tonic::async_trait]
pub trait Target: Send {
    /// What it holds. Fields that its rows lack are empty, and rkeys that it does not reveal are 0.
    async fn held_program(&mut self) -> Result<Program, TargetError>;

    /// The changes that would make it hold `want`; none is applied.
    async fn required_changes(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, TargetError>;

    /// Makes it hold `want`, and returns the changes that this took. Also completes what an earlier attempt
    /// left undone.
    ///
    /// # Errors
    /// As [`Target::required_changes`], with how far it got.
    async fn apply_program(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, ApplyError>;

    /// Whether it could hold `want`, as far as can be known without changing anything.
    async fn could_hold(&mut self, want: &Program) -> Result<(), TargetError> {
        let _ = want;
        Ok(())
    }

    /// Whether it has lost what was applied.
    async fn has_restarted(&mut self) -> Result<bool, TargetError> {
        Ok(false)
    }

    /// Sets how far earlier translators of its sessions had heard their reporters, as reporter and newest
    /// sequence. For a target about to be programmed for the first time.
    async fn heard_earlier(&mut self, reporters: &[(u16, u32)]) -> Result<(), TargetError>;

    /// Routes frames to a collector's NIC through a shared-memory ring, or by whatever else is available.
    /// Call this before applying the collector's grant, so that frames of one queue pair use one way.
    async fn join_ring(&mut self, collector: u8, ring: Option<&RingAt>) -> Result<(), TargetError> {
        let _ = (collector, ring);
        Ok(())
    }

    /// The source of frames to a collector if an RDMA device sends them: the session must be opened with it.
    /// `writes` is the transport of writes. Call this before each opening: the device may have come and gone.
    ///
    /// # Errors
    /// [`TargetError::Failed`] while the device is away.
    async fn device_source(
        &mut self,
        collector: u8,
        writes: Transport,
    ) -> Result<Option<DeviceSource>, TargetError> {
        let _ = (collector, writes);
        Ok(None)
    }

    /// Its counters, and the state of its queue pairs.
    async fn read_status(&mut self) -> Result<TargetStatus, TargetError>;

    /// Its counters. Nothing is sent to probe queue pairs.
    async fn statistics(&mut self) -> Result<Vec<NodeStatistics>, TargetError> {
        Ok(self.read_status().await?.nodes)
    }

    /// Makes it send what it holds. Returns the number of reports sent.
    async fn flush_all(&mut self) -> Result<u64, TargetError>;

    /// Whether it renews its own lease, flushes by age, and empties itself when its session ends, as a running translator
    /// does. If not, this is done from outside, by the methods below.
    fn looks_after_itself(&self) -> bool;

    /// Why it cannot be made to flush and probe, and what to do; `None` if it can.
    fn cannot_command(&self) -> Option<String> {
        None
    }

    /// The flush times of the applied program, in milliseconds; 0 = no limit.
    fn flush_times(&mut self) -> Result<BTreeMap<Primitive, u32>, TargetError> {
        Ok(BTreeMap::new())
    }

    /// Flushes what the switch has gathered of a primitive for at least `older_us` microseconds, in `count`
    /// places from `first`. Returns whether there are more places after these. Sketch columns have no known
    /// age: every one with something unsent is flushed.
    ///
    /// # Errors
    /// The switch does not answer, or [takes no commands](Target::cannot_command).
    async fn flush_places(
        &mut self,
        primitive: Primitive,
        older_us: u32,
        first: usize,
        count: usize,
    ) -> Result<bool, TargetError> {
        let _ = (primitive, older_us, first, count);
        Ok(false)
    }
}

/// A ring that a collector offers.
#[derive(Clone, Debug)]
pub struct RingAt {
    pub offer: JoinOffer,
    /// Address and port of the NIC.
    pub nic: SocketAddrV4,
}

/// The translator's side of frames that an RDMA device sends to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSource {
    pub endpoint: Endpoint,
    /// Numbers of its queue pairs, for writes and for atomics.
    pub queue_pairs: [u32; 2],
}

/// The call to a collector that changed the program for a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The session was opened. Another translator may have written to its stores since the target was
    /// programmed.
    Open,
    /// The session was renewed. Nobody else had it meanwhile.
    Renewal,
}

impl After {
    /// The changes from `have` to `want`, for a target whose rows have these fields.
    pub fn changes_between(self, fields: RowFields, have: &Program, want: &Program) -> Vec<DataPlaneChange> {
        match self {
            After::Open => fields.changes_for_session(have, want),
            After::Renewal => fields.diff_programs(have, want),
        }
    }
}

/// A target's counters, and the state of its queue pairs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetStatus {
    /// Its counters and those of the reporters that it hears.
    pub nodes: Vec<NodeStatistics>,
    /// Indices of collectors with a queue pair that does not answer, as far as the target knows.
    pub silent: BTreeSet<u8>,
    /// How many former regions, at all collectors, have operations in flight that may be resent; `None` if
    /// the target does not say.
    pub former_regions: Option<usize>,
    /// How frames to each collector travel, by index; only for targets that know.
    pub frames_by: BTreeMap<u8, String>,
}

/// Why a target cannot be queried or programmed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It cannot hold the program.
    #[error("{0}")]
    Refused(String),
    /// It failed to do what was requested, but may succeed the next time.
    #[error("{0}")]
    Failed(String),
    /// It lost its program under open sessions. Only reopening them shows where queue pairs and lists continue.
    #[error("the switch restarted without its program")]
    Restarted,
    /// This process's data plane has ended.
    #[error("the data plane has stopped")]
    Stopped,
    /// A running translator did not answer, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// rkeys would be sent where others can read them.
    #[error(
        "the rkeys for the collector's memory came over TLS and would go to {control} without it: let the \
        translator serve its control on a unix socket (`control = \"unix:PATH\"`), and give that address"
    )]
    Exposed {
        /// Where the rkeys would go.
        control: String,
    },
}

impl TargetError {
    /// Whether a retry may help without a change of program or configuration.
    pub fn is_retryable(&self) -> bool {
        match self {
            TargetError::Failed(_) | TargetError::Restarted => true,
            TargetError::Client(error) => error
                .status()
                .is_some_and(|status| matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded)),
            TargetError::Refused(_) | TargetError::Stopped | TargetError::Exposed { .. } => false,
        }
    }
}

/// Why a target does not hold what it should, and how far programming got.
#[derive(Debug)]
pub struct ApplyError {
    pub progress: ApplyProgress,
    /// Why it got no further.
    pub error: TargetError,
}

/// How far a target got with changes, which it applies in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyProgress {
    Nothing,
    /// The first `applied` of `of` changes were applied.
    Part {
        applied: usize,
        of: usize,
    },
    /// The target's answer was lost: either all were applied or none.
    Unknown,
}

impl ApplyError {
    pub fn before_first_change(error: impl Into<TargetError>) -> ApplyError {
        ApplyError { progress: ApplyProgress::Nothing, error: error.into() }
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.progress {
            ApplyProgress::Nothing => self.error.fmt(f),
            ApplyProgress::Part { applied, of } => {
                write!(
                    f,
                    "{applied} of {of} changes were applied (the next attempt applies the others), then: {}",
                    self.error
                )
            }
            ApplyProgress::Unknown => {
                write!(f, "it is unknown whether the changes were applied: {}", self.error)
            }
        }
    }
}

// Not a source: the text contains the error's own message.
impl std::error::Error for ApplyError {}

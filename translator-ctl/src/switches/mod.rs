//! What is programmed. A [`Target`] makes frames: the software data plane of this process, a running
//! software translator, or a P4 switch.
//!
//! The leases of sessions ([`crate::lease`]) and [`crate::setup`] use targets and know none in
//! particular: [`any_switch`] makes one of each type of switch. Each kind of target has a file here. It
//! lowers a program to the rows of its tables, reads what it holds, and writes the difference; which of
//! the fields that not every target uses are in its rows is in its [`Fields`].

pub mod p4;
pub mod software;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use dta_client::ClientError;
use dta_proto::control::NodeStatistics;
use dta_proto::program::{Change, Fields, Program};
use tonic::Code;

use self::p4::P4Switch;
use self::software::Remote;
use crate::config::Config;
use crate::session::RingAt;

/// What makes frames out of reports, and is programmed to do so.
#[tonic::async_trait]
pub trait Target: Send {
    /// What it holds. Fields that its rows do not have are empty, and keys that it does not give are 0.
    ///
    /// # Errors
    /// It does not answer, or not as it should.
    async fn held(&mut self) -> Result<Program, TargetError>;

    /// The changes by which it comes to hold `want`. Nothing changes.
    ///
    /// # Errors
    /// As [`Target::held`]; and a program that it cannot hold.
    async fn lacks(&mut self, want: &Program, after: After) -> Result<Vec<Change>, TargetError>;

    /// Makes it hold `want`, and gives the changes that this took. What an earlier attempt left
    /// undone is found and done.
    ///
    /// # Errors
    /// As [`Target::lacks`], with how far it got.
    async fn apply(&mut self, want: &Program, after: After) -> Result<Vec<Change>, ApplyError>;

    /// Whether it could hold `want`, as far as that shows without a change.
    ///
    /// # Errors
    /// Why not.
    async fn could_hold(&mut self, want: &Program) -> Result<(), TargetError> {
        let _ = want;
        Ok(())
    }

    /// Tells it how far earlier translators of its sessions had heard their reporters, as reporter
    /// and newest sequence. For a target that is about to be programmed for the first time.
    ///
    /// # Errors
    /// As [`Target::held`].
    async fn heard_earlier(&mut self, reporters: &[(u16, u32)]) -> Result<(), TargetError>;

    /// Lets frames to the NIC of a collector go through a ring in shared memory, or by whatever else
    /// there is where that cannot be. To be called before what the collector grants is applied: frames
    /// of one queue pair then leave one way.
    ///
    /// # Errors
    /// [`TargetError::Stopped`].
    async fn join(&mut self, collector: u8, ring: Option<&RingAt>) -> Result<(), TargetError> {
        let _ = (collector, ring);
        Ok(())
    }

    /// What it counts, and how its queue pairs are.
    ///
    /// # Errors
    /// As [`Target::held`].
    async fn status(&mut self) -> Result<Status, TargetError>;

    /// What it counts. Nothing is sent to a queue pair to see whether it answers.
    ///
    /// # Errors
    /// As [`Target::held`].
    async fn statistics(&mut self) -> Result<Vec<NodeStatistics>, TargetError> {
        Ok(self.status().await?.nodes)
    }

    /// Makes it send what it holds. Gives how many reports that were.
    ///
    /// # Errors
    /// As [`Target::held`].
    async fn flush_all(&mut self) -> Result<u64, TargetError>;
}

/// A switch of the configuration, whatever its type.
pub type AnySwitch = Box<dyn Target>;

/// The switch of a name. Nothing is asked yet.
///
/// # Errors
/// A configuration that cannot be used, or a switch without a session.
pub fn any_switch(config: &Config, switch: &str) -> anyhow::Result<AnySwitch> {
    Ok(match P4Switch::of(config, switch)? {
        Some(p4) => Box::new(p4),
        None => Box::new(Remote::new(&config.translator_of(switch)?, config.switch(switch)?.control())?),
    })
}

/// The call to a collector that changed the program which a target is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Its session was opened. Another translator may have written to its stores since the target
    /// was programmed.
    Open,
    /// Its session was renewed. Nobody else had it meanwhile.
    Renewal,
}

impl After {
    /// The changes that lead from `have` to `want`, for a target whose rows have these fields.
    pub fn changes(self, fields: Fields, have: &Program, want: &Program) -> Vec<Change> {
        match self {
            After::Open => fields.changes_for_session(have, want),
            After::Renewal => fields.diff(have, want),
        }
    }
}

/// What a target counts, and how its queue pairs are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Its counters and those of the reporters that it hears.
    pub nodes: Vec<NodeStatistics>,
    /// Indices of the collectors to which a queue pair does not answer, as far as the target knows.
    pub silent: BTreeSet<u8>,
    /// How many regions that stores of all collectors had before have operations on their way to
    /// them that are not acknowledged; `None` where the target does not say.
    pub former_regions: Option<usize>,
    /// How frames to each collector travel, in words, by index; of a target that knows.
    pub frames_by: BTreeMap<u8, String>,
}

/// Why a target cannot be asked or programmed.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// It cannot hold what is wanted.
    #[error("{0}")]
    Refused(String),
    /// It did not do what it was asked; it may the next time.
    #[error("{0}")]
    Failed(String),
    /// The data plane of this process has ended.
    #[error("the data plane has stopped")]
    Stopped,
    /// A running translator did not answer, or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Keys would go where others can read them.
    #[error(
        "the keys to the collector's memory came with TLS and would go to {control} without: let the translator serve its control on \
         a unix socket (`control = \"unix:PATH\"`), and give that address"
    )]
    Exposed {
        /// Where the keys would go.
        control: String,
    },
}

impl TargetError {
    /// Whether asking again may help without a change of program or configuration.
    pub fn may_pass(&self) -> bool {
        match self {
            TargetError::Failed(_) => true,
            TargetError::Client(error) => error
                .status()
                .is_some_and(|status| matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded)),
            TargetError::Refused(_) | TargetError::Stopped | TargetError::Exposed { .. } => false,
        }
    }
}

/// Why a target does not hold what it should, and how far it got.
#[derive(Debug)]
pub struct ApplyError {
    /// How far it got.
    pub progress: Progress,
    /// Why it got no further.
    pub error: TargetError,
}

/// How far a target got with changes, which it makes in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing has changed.
    Nothing,
    /// The first `applied` of `of` changes were made.
    Part {
        /// Those that were made.
        applied: usize,
        /// All.
        of: usize,
    },
    /// The target's answer was lost: all were made, or none.
    Unknown,
}

impl ApplyError {
    /// An error before the first change.
    pub fn nothing(error: impl Into<TargetError>) -> ApplyError {
        ApplyError { progress: Progress::Nothing, error: error.into() }
    }
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.progress {
            Progress::Nothing => self.error.fmt(f),
            Progress::Part { applied, of } => {
                write!(
                    f,
                    "{applied} of {of} changes were made (the next attempt makes the others), then: {}",
                    self.error
                )
            }
            Progress::Unknown => write!(f, "whether the changes were made is not known: {}", self.error),
        }
    }
}

// Not a source: the text has the error's own words in it.
impl std::error::Error for ApplyError {}

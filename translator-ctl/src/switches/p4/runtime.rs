//! The API by which a switch is programmed: the one place that knows which platform has which.

use std::time::Duration;

use dta_grpc::dial;
use dta_proto::store::StoreKind;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::bfruntime::BfRuntime;
use super::counters::Counts;
use super::p4runtime::P4Runtime;
use super::pipeline::Pipeline;
use super::places::Room;
use super::schema::Used;
use super::tables::{Tables, Update};
use super::translator::Command;
use crate::config::{P4, Platform};
use crate::switches::TargetError;

/// The most updates in one request.
pub const BATCH: usize = 500;
/// Longest time for one call.
pub(super) const CALL: Duration = Duration::from_secs(30);
/// The longest answer: a pipeline with its description, or all rows.
pub(super) const MAX_ANSWER: usize = 64 << 20;

/// The way to a switch that runs a program. Nothing is asked yet.
///
/// # Errors
/// A configuration that cannot be used.
pub fn open(
    platform: Platform,
    config: &P4,
    pipeline: &'static Pipeline,
) -> Result<Box<dyn Runtime>, TargetError> {
    Ok(match platform {
        Platform::Bmv2 => Box::new(P4Runtime::new(config, pipeline)?),
        Platform::Tofino => Box::new(BfRuntime::new(config, pipeline)?),
    })
}

/// The connection to the control plane of a switch, made when it is first used.
pub(super) fn connect(address: &str) -> Result<Channel, TargetError> {
    let endpoint = Endpoint::from_shared(format!("http://{}", address.trim_start_matches("http://")));
    let endpoint = endpoint
        .map_err(|error| TargetError::Refused(format!("{address:?} is no address of a switch: {error}")))?;
    Ok(dial::connect_lazy(&endpoint.connect_timeout(Duration::from_secs(5)).timeout(CALL)))
}

/// An error that a switch answers with. `text` says the same in words.
pub(super) fn error(status: &Status, text: String) -> TargetError {
    match status.code() {
        Code::InvalidArgument | Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange => {
            TargetError::Refused(text)
        }
        _ => TargetError::Failed(text),
    }
}

/// The API by which a switch is programmed.
#[tonic::async_trait]
pub trait Runtime: Send {
    /// What the switch runs on.
    fn platform(&self) -> Platform;

    /// What is used of its program.
    fn used(&self) -> &'static Used;

    /// How many rows a table of its program holds; `None` where the program does not have it, or was not asked yet.
    fn room(&self, table: &str) -> Option<u64>;

    /// How many lists, rows and columns it holds, of all stores.
    fn places(&self) -> Room {
        Room::ALL
    }

    /// Why this switch cannot write a store that P4 switches can; `None` where it can.
    fn cannot_write(&self, _: &StoreKind) -> Option<String> {
        None
    }

    /// What the switch holds; `None` where it does not run the program that it should. Nothing changes.
    ///
    /// # Errors
    /// It does not answer, or not as it should.
    async fn read(&mut self) -> Result<Option<Tables>, TargetError>;

    /// Becomes the one that writes, and lets the switch run its program. Gives whether it did not before: then all
    /// of its tables and registers are empty now.
    ///
    /// # Errors
    /// As [`Runtime::read`].
    async fn load(&mut self) -> Result<bool, TargetError>;

    /// Makes updates, [`BATCH`] at most, in one request.
    ///
    /// # Errors
    /// How many of them were made, and why not all.
    async fn write(&mut self, updates: &[Update]) -> Result<(), WriteError>;

    /// Why it cannot be made to flush and to probe, and what to do; `None` where it can.
    fn cannot_command(&self) -> Option<String> {
        None
    }

    /// Sends commands to the data plane, and waits until it has done them. `rows` are those of the program that the
    /// switch holds.
    ///
    /// # Errors
    /// It has not.
    async fn command(&mut self, commands: &[Command], rows: &Tables) -> Result<(), TargetError>;

    /// All counters by name.
    ///
    /// # Errors
    /// As [`Runtime::read`].
    async fn counters(&mut self) -> Result<Counts, TargetError>;
}

/// Why updates were not made.
#[derive(Debug)]
pub struct WriteError {
    /// How many were; `None` where that is not known.
    pub made: Option<usize>,
    /// Why not all.
    pub error: TargetError,
}

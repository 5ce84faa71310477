//! The API for programming a switch: the only place that knows which platform uses which.

use std::time::Duration;

use dta_proto::store::StoreKind;
use dta_rpc::transport::dial;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::bfruntime::BfRuntime;
use super::counters::SwitchCounts;
use super::p4runtime::P4Runtime;
use super::pipeline::P4Pipeline;
use super::places::PlaceCapacity;
use super::schema::Used;
use super::tables::{SwitchUpdate, Tables};
use super::translator::Command;
use crate::TargetError;
use crate::options::SwitchOptions;
use crate::platform::Platform;

/// Maximum number of updates in one request.
pub const BATCH: usize = 500;
pub(super) const CALL: Duration = Duration::from_secs(30);
/// Longest answer: a pipeline with its description, or all rows.
pub(super) const MAX_ANSWER: usize = 64 << 20;

/// The runtime for a switch that runs a program. Nothing is requested yet.
pub fn open(
    platform: Platform,
    options: &SwitchOptions,
    pipeline: &'static P4Pipeline,
) -> Result<Box<dyn Runtime>, TargetError> {
    Ok(match platform {
        Platform::Bmv2 => Box::new(P4Runtime::new(options, pipeline)?),
        Platform::Tofino => Box::new(BfRuntime::new(options, pipeline)?),
    })
}

/// The connection to a switch's control plane, made on first use.
pub(super) fn connect_lazy(address: &str) -> Result<Channel, TargetError> {
    let endpoint = Endpoint::from_shared(format!("http://{}", address.trim_start_matches("http://")));
    let endpoint = endpoint.map_err(|error| {
        TargetError::Refused(format!("{address:?} is not an address of a switch: {error}"))
    })?;
    Ok(dial::connect_lazy(&endpoint.connect_timeout(Duration::from_secs(5)).timeout(CALL)))
}

/// An error answered by a switch. `text` describes it.
pub(super) fn error_from_status(status: &Status, text: String) -> TargetError {
    match status.code() {
        Code::InvalidArgument | Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange => {
            TargetError::Refused(text)
        }
        _ => TargetError::Failed(text),
    }
}

/// The API for programming a switch.
#[tonic::async_trait]
pub trait Runtime: Send {
    fn platform(&self) -> Platform;

    /// What the control plane uses of its program.
    fn required_schema(&self) -> &'static Used;

    /// How many rows fit in a table of its program; `None` if the program does not have it or is not known yet.
    fn table_capacity(&self, table: &str) -> Option<u64>;

    /// How many lists, rows and columns it holds, for all stores.
    fn place_capacity(&self) -> PlaceCapacity {
        PlaceCapacity::ALL
    }

    /// Why this switch cannot write a store that P4 switches in general can; `None` if it can.
    fn cannot_write(&self, _: &StoreKind) -> Option<String> {
        None
    }

    /// What the switch holds; `None` if it does not run the right program. Nothing changes.
    async fn read(&mut self) -> Result<Option<Tables>, TargetError>;

    /// Becomes the client that writes, and makes the switch run its program. Returns `true` if it did not run
    /// it before: then all its tables and registers are now empty.
    async fn load(&mut self) -> Result<bool, TargetError>;

    /// Applies updates, at most [`BATCH`], in one request.
    ///
    /// # Errors
    /// How many of them were applied, and why not all.
    async fn write_updates(&mut self, updates: &[SwitchUpdate]) -> Result<(), WriteError>;

    /// Why it cannot be made to flush and probe, and what to do; `None` if it can.
    fn cannot_command(&self) -> Option<String> {
        None
    }

    /// Sends commands to the data plane, and waits until they are done. `rows` are the program's rows in the
    /// switch.
    async fn run_commands(&mut self, commands: &[Command], rows: &Tables) -> Result<(), TargetError>;

    async fn read_counters(&mut self) -> Result<SwitchCounts, TargetError>;
}

/// Why updates were not applied.
#[derive(Debug)]
pub struct WriteError {
    /// How many were; `None` if unknown.
    pub made: Option<usize>,
    pub error: TargetError,
}

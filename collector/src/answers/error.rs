//! Why a question is refused, and the gRPC status of each refusal.

use dta_memory::region::{AccessError, RegionError};
use dta_memory::store::{MemoryError, StoreError};
use dta_proto::control::{MAX_KEYS, MAX_READ};
use dta_rpc::ClientError;
use tonic::{Code, Status};

use super::keys::QueryError;
use crate::cluster::Adrift;
use crate::epochs::MomentError;

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No store of this name, or one of another kind.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// More keys than one query takes.
    #[error("{0} keys in one query, but at most {MAX_KEYS} are answered; ask in several")]
    TooManyKeys(usize),
    /// There is nothing to say about another moment.
    #[error(transparent)]
    Moment(#[from] MomentError),
    /// A list that the store does not have.
    #[error("there is no list {list}: store {store:?} has lists 0 to {last}")]
    List {
        store: String,
        list: u32,
        /// Its last list.
        last: u32,
    },
    /// Something held by another collector.
    #[error(
        "{what} of store {store:?} is at the collector at {address}: several collectors share the store; ask that one, or all \
         (--collector A,B, or --cluster)"
    )]
    Elsewhere {
        /// The key with its bucket, or the list.
        what: String,
        store: String,
        /// The other's gRPC address.
        address: String,
    },
    /// Something in a cluster whose collector is gone or not yet assigned.
    #[error("{what} of store {store:?} is at no collector of the cluster now; ask again")]
    Nowhere {
        /// The key with its bucket, or the list.
        what: String,
        store: String,
    },
    /// This collector may not answer for its share.
    #[error(transparent)]
    Adrift(#[from] Adrift),
    /// A read that is too long.
    #[error("{0} bytes in one read, but at most {MAX_READ} are allowed; read in several")]
    TooManyBytes(u32),
    /// A read beyond the end of the store.
    #[error("store {store:?} has {len} bytes: {source}")]
    BeyondEnd {
        store: String,
        /// Its length in bytes.
        len: u64,
        source: AccessError,
    },
    /// The store does not match its description.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A list that does not hold flow records.
    #[error("the entries of store {0:?} are no flow records")]
    NoFlowRecords(String),
    /// The store does not answer this question about keys.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// A replacement region file cannot be read.
    #[error(transparent)]
    File(#[from] RegionError),
    /// The memory of the list being followed was replaced.
    #[error("the memory of store {0:?} was replaced; follow the list again, from its start")]
    Replaced(String),
    /// Something that only a running collector knows.
    #[error("memory alone has no {0}: ask the running collector, by its address")]
    MemoryAlone(&'static str),
    #[error("the collector is shutting down; tail again later")]
    Stopping,
    /// The thread that was to answer panicked or was cancelled.
    #[error("the call failed: {0}")]
    Ended(String),
}

impl AskError {
    fn status_code(&self) -> Code {
        match self {
            Self::Store(StoreError::Unknown { .. }) => Code::NotFound,
            Self::Store(StoreError::Kind { .. } | StoreError::Ambiguous { .. })
            | Self::TooManyKeys(_)
            | Self::Query(QueryError::AtLeast(_) | QueryError::NoCopy { .. })
            | Self::List { .. }
            | Self::NoFlowRecords(_)
            | Self::TooManyBytes(_) => Code::InvalidArgument,
            Self::BeyondEnd { .. } => Code::OutOfRange,
            Self::Elsewhere { .. } => Code::FailedPrecondition,
            Self::Nowhere { .. } | Self::Adrift(_) => Code::Unavailable,
            Self::Moment(MomentError::Future { .. } | MomentError::Empty { .. }) => Code::InvalidArgument,
            Self::Moment(MomentError::NotKept { .. }) => Code::OutOfRange,
            Self::Moment(MomentError::History(_) | MomentError::Memory(_) | MomentError::Region(_)) => {
                Code::Internal
            }
            Self::Moment(MomentError::NoHistory(_)) | Self::MemoryAlone(_) => Code::Unimplemented,
            Self::Replaced(_) => Code::Aborted,
            Self::Stopping => Code::Unavailable,
            Self::Memory(_)
            | Self::File(_)
            | Self::Query(QueryError::Memory(_) | QueryError::Layout)
            | Self::Ended(_) => Code::Internal,
        }
    }
}

/// The text reaches clients of the gRPC service word for word.
impl From<AskError> for Status {
    fn from(error: AskError) -> Self {
        Status::new(error.status_code(), error.to_string())
    }
}

impl From<AskError> for ClientError {
    fn from(error: AskError) -> Self {
        Self::Status(error.into())
    }
}

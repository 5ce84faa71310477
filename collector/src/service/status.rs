//! Errors as gRPC statuses: the code tells a program what to do next, the message tells a person.

use dta_memory::nic::NicError;
use dta_memory::store::StoreError;
use dta_rpc::ClientError;
use tonic::Status;

use crate::answers::AskError;
use crate::session::{LeaseError, SessionError, StateError};

/// The status of a refused session call: `NOT_FOUND` = open it, `ABORTED` = another translator has it,
/// `FAILED_PRECONDITION` = another session owns a store.
pub(super) fn from_session_error(error: SessionError) -> Status {
    let message = error.to_string();
    match error {
        SessionError::Lease(error) => match error {
            LeaseError::Unknown(_) => Status::not_found(message),
            LeaseError::Superseded(_) => Status::aborted(message),
            LeaseError::Owned(_) => Status::failed_precondition(message),
            LeaseError::Foreign(_) => Status::permission_denied(message),
            LeaseError::TooMany(_) => Status::resource_exhausted(message),
            LeaseError::Request(_) => Status::invalid_argument(message),
        },
        SessionError::Nic(error) => from_nic_error(error),
        SessionError::NoAtomics { .. } => Status::failed_precondition(message),
        SessionError::HeldBack { .. } => Status::unavailable(message),
        // A full disk, for example, may have room again later.
        SessionError::State(StateError::File { .. }) => Status::unavailable(message),
        SessionError::State(_) | SessionError::Memory(_) => Status::internal(message),
    }
}

pub(super) fn from_nic_error(error: NicError) -> Status {
    let message = error.to_string();
    match error {
        NicError::TooManyRegistrations { .. } | NicError::TooManyQueuePairs { .. } => {
            Status::resource_exhausted(message)
        }
        NicError::Request { .. } => Status::invalid_argument(message),
        NicError::Stopped { .. } | NicError::Lost { .. } => Status::unavailable(message),
        NicError::Verbs(error) if error.is_transient() => Status::unavailable(message),
        NicError::Verbs(_) => Status::failed_precondition(message),
        _ => Status::internal(message),
    }
}

/// The status of a refused query; the error usually is one already.
pub(super) fn from_client_error(error: ClientError) -> Status {
    match error {
        ClientError::Status(status) => status,
        other => Status::internal(other.to_string()),
    }
}

pub(super) fn from_store_error(error: StoreError) -> Status {
    AskError::from(error).into()
}

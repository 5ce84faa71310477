//! Conversion between messages and Rust types.

use crate::list_range::ListRange;
use crate::queue_pair;
use crate::store::SpecError;

/// What is wrong with a message, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MessageError(pub(super) String);

impl From<SpecError> for MessageError {
    fn from(error: SpecError) -> Self {
        MessageError(error.to_string())
    }
}

/// A value that the protobuf enumeration does not define.
pub(super) fn unknown_value(field: &str, value: i32) -> MessageError {
    MessageError(format!("{field} is {value}, which is unknown"))
}

impl From<queue_pair::Purpose> for super::Purpose {
    fn from(purpose: queue_pair::Purpose) -> Self {
        match purpose {
            queue_pair::Purpose::Write => super::Purpose::Write,
            queue_pair::Purpose::Atomic => super::Purpose::Atomic,
        }
    }
}

impl From<queue_pair::Transport> for super::Transport {
    fn from(transport: queue_pair::Transport) -> Self {
        match transport {
            queue_pair::Transport::Uc => super::Transport::Uc,
            queue_pair::Transport::Rc => super::Transport::Rc,
        }
    }
}

impl From<ListRange> for super::ListRange {
    fn from(range: ListRange) -> Self {
        let ListRange { store, first, count } = range;
        super::ListRange { store, first, count }
    }
}

impl From<super::ListRange> for ListRange {
    fn from(range: super::ListRange) -> Self {
        let super::ListRange { store, first, count } = range;
        ListRange { store, first, count }
    }
}

/// The value of a `Purpose` field.
pub fn parse_purpose(value: i32) -> Result<queue_pair::Purpose, MessageError> {
    match super::Purpose::try_from(value) {
        Ok(super::Purpose::Write) => Ok(queue_pair::Purpose::Write),
        Ok(super::Purpose::Atomic) => Ok(queue_pair::Purpose::Atomic),
        Err(_) => Err(unknown_value("purpose", value)),
    }
}

/// The value of a `Transport` field.
pub fn transport(value: i32) -> Result<queue_pair::Transport, MessageError> {
    match super::Transport::try_from(value) {
        Ok(super::Transport::Uc) => Ok(queue_pair::Transport::Uc),
        Ok(super::Transport::Rc) => Ok(queue_pair::Transport::Rc),
        Err(_) => Err(unknown_value("transport", value)),
    }
}

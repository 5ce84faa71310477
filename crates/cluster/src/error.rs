//! Errors in words.

/// Why something in etcd could not be read or changed, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EtcdError(pub(crate) String);

//! What can be wrong with a configuration.

use std::fmt::Display;
use std::net::SocketAddr;

use dta_files::config_file::{At, FileError};
use dta_proto::store::SpecError;

/// Why a configuration cannot be used, in words that say what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is no configuration.
    #[error(transparent)]
    File(#[from] FileError),
    /// Something in a file that parses but cannot be used.
    #[error(transparent)]
    At(#[from] At<ConfigError>),
    /// A value outside its range.
    #[error("{key} is {value:?}, but must be {must}")]
    Value {
        /// The key, with its table.
        key: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        must: String,
    },
    /// An address that is none, or a host that nobody knows.
    #[error("{key}: {why}")]
    Address {
        /// The key, with its table.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A store's own description is wrong.
    #[error(transparent)]
    Store(#[from] SpecError),
    /// The table `[export]`.
    #[error(transparent)]
    Export(#[from] dta_export::config::ConfigError),
    /// No store at all.
    #[error("no store: add a [[store]] table (`dta-collector config --example` shows one of each kind)")]
    NoStore,
    /// Two stores of one id.
    #[error(
        "stores {first:?} and {second:?} have the same id {id}: reports name a store by its id, so give each its own"
    )]
    DoubleStoreId {
        /// The id.
        id: u16,
        /// Name of the store that had it first.
        first: String,
        /// Name of the other.
        second: String,
    },
    /// Two stores of one name.
    #[error("two stores are called {name:?}: queries name a store by its name, so give each its own")]
    DoubleStoreName {
        /// The name.
        name: String,
    },
    /// gRPC in the open.
    #[error(
        "refusing to listen on {listen} without TLS: whoever opens a session gets keys to this machine's memory. \
         Give [tls] cert, key and client_ca (--tls-cert, --tls-key, --tls-client-ca), listen on loopback, \
         or say --insecure if the network itself keeps others out"
    )]
    Exposed {
        /// The address.
        listen: SocketAddr,
    },
}

impl ConfigError {
    /// The key at fault; empty where there is none.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Value { key, .. } | Self::Address { key, .. } => key,
            Self::Export(error) => error.key,
            Self::Exposed { .. } => "collector.listen",
            Self::Store(_) | Self::NoStore | Self::DoubleStoreId { .. } | Self::DoubleStoreName { .. } => {
                "store"
            }
            Self::File(_) | Self::At(_) => "",
        }
    }

    /// The key of the store's table that is at fault.
    pub(super) fn field_of_store(&self) -> &'static str {
        match self {
            Self::Store(error) => error.field,
            Self::DoubleStoreName { .. } => "name",
            _ => "id",
        }
    }

    /// A value outside its range.
    pub(crate) fn value(key: &'static str, value: impl Display, must: impl Into<String>) -> Self {
        Self::Value { key, value: value.to_string(), must: must.into() }
    }
}

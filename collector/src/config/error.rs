//! What can be wrong with a configuration.

use std::fmt::Display;
use std::net::SocketAddr;

use dta_files::config_file::{At, FileError};
use dta_proto::store::SpecError;

/// Why a configuration cannot be used; the text says what to change.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be parsed.
    #[error(transparent)]
    File(#[from] FileError),
    /// A value in a file that parses but cannot be used.
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
    /// A malformed address, or a host that cannot be resolved.
    #[error("{key}: {why}")]
    Address {
        /// The key, with its table.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A store's own settings are wrong.
    #[error(transparent)]
    Store(#[from] SpecError),
    /// The table `[export]`.
    #[error(transparent)]
    Export(#[from] dta_export::config::ConfigError),
    /// No store at all.
    #[error("no store: add a [[store]] table (`dta-collector config --example` shows one of each kind)")]
    NoStore,
    /// Two stores with the same id.
    #[error(
        "stores {first:?} and {second:?} have the same id {id}: reports name a store by its id, so give each its own"
    )]
    DoubleStoreId {
        /// The id.
        id: u16,
        /// Name of the first store.
        first: String,
        /// Name of the second one.
        second: String,
    },
    /// Two stores with the same name.
    #[error("two stores are called {name:?}: queries name a store by its name, so give each its own")]
    DoubleStoreName {
        /// The name.
        name: String,
    },
    /// gRPC without TLS on an address that is not loopback.
    #[error(
        "refusing to listen on {listen} without TLS: anyone who opens a session gets keys to this machine's memory. \
         Give [tls] cert, key and client_ca (--tls-cert, --tls-key, --tls-client-ca), listen on loopback, \
         or pass --insecure if the network itself keeps others out"
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

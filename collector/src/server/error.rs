//! Why a collector does not start, or ended.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::ConfigError;
use crate::epochs::EpochsError;
use crate::nic::NicError;
use crate::region::RegionError;
use crate::session::StateError;

/// Why a collector does not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The gRPC address.
    #[error("cannot listen for gRPC on {address}: {source}{}", listen_hint(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The port of metrics.
    #[error(transparent)]
    Metrics(#[from] dta_metrics::PortError),
    /// The TLS files.
    #[error(transparent)]
    Tls(#[from] dta_grpc::tls::TlsError),
    /// The names of switches, ports and drop reasons.
    #[error(transparent)]
    Names(#[from] dta_files::config_file::FileError),
    /// Making or locking the memory directory failed.
    #[error("cannot {action} the memory directory {}: {source}; choose another with --memory", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Stores larger than the place for them.
    #[error(
        "the stores need {need} bytes, but {place} has {have} in all; make them smaller, or choose another place with --memory"
    )]
    TooLarge {
        /// Bytes of all regions.
        need: u64,
        /// Its total bytes, used or not.
        have: u64,
        /// This machine's memory, or the directory's file system.
        place: String,
    },
    /// Another collector has the directory.
    #[error(
        "another collector uses the memory directory {}; stop it, or give this one another name or directory \
         ([collector] name, --memory)", path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// A region.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// The NIC.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Epochs of a store, or their history.
    #[error(transparent)]
    Epochs(#[from] EpochsError),
    /// The kept state.
    #[error(transparent)]
    State(#[from] StateError),
    /// Exports to databases.
    #[error(transparent)]
    Export(#[from] dta_export::ExportError),
    /// The gRPC service ended unexpectedly.
    #[error("the gRPC service ended: {0}")]
    Ended(String),
}

fn listen_hint(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another program (another collector?) listens there: stop it, or choose another port with --listen"
        }
        std::io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need a privilege",
        _ => "",
    }
}

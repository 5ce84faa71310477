//! Why an RDMA device cannot be used, and what to do about it.

#[cfg(feature = "verbs")]
use std::fmt::Display;
#[cfg(feature = "verbs")]
use std::io;

#[cfg(feature = "verbs")]
use rustix::io::Errno;

#[cfg(feature = "verbs")]
use crate::nic::NicError;

/// Why an RDMA device cannot be used, and what to do about it, in words.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// This program was built without libibverbs.
    #[error(
        "this program was built without libibverbs and cannot use RDMA devices; build it with `make`, or with `cargo build --release --features dta-collector/verbs,dta-translator/verbs` after `scripts/install-deps build`, or use `--device soft` at the collector and no `--device` at the translator"
    )]
    NotBuilt,
    /// Waiting may help: the device, its port or the peer may come back.
    #[error("{0}")]
    Away(String),
    /// Waiting does not help.
    #[error("{0}")]
    Unusable(String),
}

impl VerbsError {
    pub fn is_transient(&self) -> bool {
        matches!(self, VerbsError::Away(_))
    }
}

#[cfg(feature = "verbs")]
pub(super) fn cannot_open(device: &str, source: impl Display) -> VerbsError {
    VerbsError::Away(format!(
        "cannot open the RDMA device `{device}`: {source}; make sure that this user may read and write /dev/infiniband/uverbs*"
    ))
}

/// Why a queue pair did not move to RTR, for which the kernel resolves the peer's Ethernet address.
#[cfg(feature = "verbs")]
pub(super) fn cannot_receive_from(
    peer: std::net::IpAddr,
    device: &str,
    interface: &str,
    source: io::Error,
) -> NicError {
    match Errno::from_io_error(&source) {
        Some(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => VerbsError::Away(format!(
            "the peer {peer} cannot be reached: nobody answered for its Ethernet address; make sure that it is up, or add an entry: `ip neigh replace {peer} lladdr MAC nud permanent dev {interface}`"
        ))
        .into(),
        _ => NicError::System { action: format!("move a queue pair to RTR on `{device}`"), source },
    }
}

/// The error for a kernel without any RDMA support.
#[cfg(feature = "verbs")]
pub(super) fn no_kernel_support(source: impl Display) -> VerbsError {
    VerbsError::Unusable(format!(
        "the kernel has no RDMA support ({source}); load its module: `modprobe ib_uverbs`"
    ))
}

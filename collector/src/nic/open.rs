//! The NIC that a configuration names. The one place where back ends are chosen.

use std::net::SocketAddrV4;
use std::sync::Arc;

use super::soft::{SoftNic, SoftNicConfig};
use super::{Nic, NicError};
use crate::config::{Config, Memory, SoftLink};

/// Name of the software NIC in `device`.
pub const SOFT: &str = "soft";

/// Why there is no NIC.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An RDMA device, and a program without verbs.
    #[error(
        "device {device:?} needs libibverbs, and this program was built without it: build it with \
         `cargo build --release --features verbs` (Debian: apt-get install libibverbs-dev), \
         or use the software NIC (--device soft)"
    )]
    NoVerbs {
        /// The device.
        device: String,
    },
    /// The back end.
    #[error(transparent)]
    Nic(#[from] NicError),
}

/// Opens the device of a configuration: `soft`, or an RDMA device by its name.
pub fn open(config: &Config) -> Result<Arc<dyn Nic>, OpenError> {
    if config.device != SOFT {
        return Err(OpenError::NoVerbs { device: config.device.clone() });
    }
    let soft = &config.soft;
    let mut nic = SoftNicConfig::new(SocketAddrV4::new(soft.address, soft.port));
    nic.counter_file = match &config.memory {
        Memory::Anonymous => None,
        Memory::Directory(dir) => Some(dir.join("nic.counters")),
    };
    nic.faults = soft.faults;
    nic.seed = soft.fault_seed;
    let nic = match &soft.link {
        SoftLink::Udp => SoftNic::udp(nic),
        SoftLink::Packet { interface } => SoftNic::raw(nic, interface),
    };
    Ok(Arc::new(nic?))
}

//! RDMA devices through libibverbs: `mlx5_0` as well as the kernel's soft-RoCE (`rxe0`).
//!
//! The library is used if this crate is built with its feature `verbs`; without it, the errors of [`open`] and
//! [`list_devices`] say how to get it. `docs/decisions/verbs-binding.md` gives the reasons for this binding.
//!
//! - [`gid`]: chooses the entry of the GID table for the collector.
//! - `ffi`: the library's objects as safe types; all unsafe code of this module.
//! - `query`: which devices exist and what they can do.
//! - `open_device`: regions and queue pairs of an open device.
//! - `back_end`: the [`super::Nic`], which survives when the device goes and comes back.
//! - [`send`]: what a translator needs to send; `send_device` implements it.
//! - `requester`: the other side, with which tests compare the software NIC to a real device; only with the
//!   feature `verbs-requester`.

mod devices;
mod error;
pub mod gid;

#[cfg(feature = "verbs")]
mod back_end;
// Plain code: tested even without libibverbs.
#[cfg(any(feature = "verbs", test))]
#[cfg_attr(not(feature = "verbs"), allow(dead_code))]
mod counters;
#[cfg(feature = "verbs")]
mod ffi;
#[cfg(feature = "verbs")]
mod open_device;
#[cfg(feature = "verbs")]
mod query;
#[cfg(feature = "verbs-requester")]
pub mod requester;
pub mod send;
#[cfg(feature = "verbs")]
mod send_device;

use std::path::PathBuf;
use std::sync::Arc;

pub use devices::{DeviceInfo, DeviceLimits, PortInfo};
pub use error::VerbsError;
pub use gid::{GidEntry, GidError, GidType, GidWish};

#[cfg(feature = "verbs")]
pub use back_end::VerbsNic;

use super::{Nic, NicError};

/// How to use a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsOptions {
    /// The device's name, as `dta-collector devices` lists it.
    pub device: String,
    /// Its port, from 1; without it, the first port that is up and has a usable GID.
    pub port: Option<u8>,
    pub gid: GidWish,
    /// Most atomics and reads in flight that a queue pair answers; without it, what the device offers, up to 128.
    pub max_dest_rd_atomic: Option<u8>,
    /// File that holds where the device's counters began to count; without it, counting begins each time the device is
    /// opened.
    pub counter_file: Option<PathBuf>,
}

#[cfg(feature = "verbs")]
pub fn open(options: &VerbsOptions) -> Result<Arc<dyn Nic>, NicError> {
    Ok(Arc::new(VerbsNic::open(options)?))
}

/// Returns an error that says how to get a program that can open devices: this one was built without libibverbs.
#[cfg(not(feature = "verbs"))]
pub fn open(_options: &VerbsOptions) -> Result<Arc<dyn Nic>, NicError> {
    Err(VerbsError::NotBuilt.into())
}

/// The RDMA devices of this machine, by name.
#[cfg(feature = "verbs")]
pub fn list_devices() -> Result<Vec<DeviceInfo>, NicError> {
    Ok(query::list_devices()?)
}

/// Returns an error that says how to get a program that can list devices: this one was built without libibverbs.
#[cfg(not(feature = "verbs"))]
pub fn list_devices() -> Result<Vec<DeviceInfo>, NicError> {
    Err(VerbsError::NotBuilt.into())
}

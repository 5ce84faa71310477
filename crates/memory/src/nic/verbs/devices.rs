//! The RDMA devices of this machine, as `dta-collector devices` and `dta-manager doctor` show them.

use serde::Serialize;

use super::GidEntry;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Name, as `--device` takes it.
    pub name: String,
    /// Firmware version; empty if there is none.
    pub firmware: String,
    /// Atomic capability: `none`, `device` (atomic among this device's operations) or `global` (also with the CPU's).
    pub atomics: &'static str,
    #[serde(flatten)]
    pub limits: DeviceLimits,
    /// Its ports, from 1.
    pub ports: Vec<PortInfo>,
}

/// Limits of a device that matter to a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceLimits {
    /// Bytes of the largest region.
    #[serde(rename = "largest_region")]
    pub region_len: u64,
    pub regions: u32,
    pub queue_pairs: u32,
    /// Atomics and reads in flight that one queue pair answers (`max_qp_rd_atom`).
    #[serde(rename = "atomics_in_flight")]
    pub rd_atomic: u32,
    /// Atomics and reads in flight that one queue pair may have sent (`max_qp_init_rd_atom`).
    #[serde(skip)]
    pub rd_atomic_sent: u32,
    /// Receives, or work requests, posted to one queue pair.
    #[serde(skip)]
    pub work_requests: u32,
    /// Entries of one completion queue.
    #[serde(skip)]
    pub completions: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortInfo {
    /// Number, from 1.
    pub number: u8,
    /// State, in the InfiniBand specification's words: `active`, `down`, …
    pub state: &'static str,
    /// Link layer: `ethernet` or `infiniband`.
    pub link: &'static str,
    /// Payload bytes of one packet, as the link currently allows.
    #[serde(rename = "mtu")]
    pub active_mtu: u32,
    /// Its GID table, by index.
    pub gids: Vec<GidEntry>,
}

//! The memory of Direct Telemetry Access (DTA): regions that a NIC writes, the NICs, stores in the regions, and readers
//! of stores.
//!
//! Dependencies point one way: [`region`] ← [`nic`], [`store`] ← [`reader`]. Nothing here knows sessions, the gRPC
//! service or configuration files: the caller passes options when it opens a NIC or a store.

pub mod nic;
pub mod reader;
pub mod region;
pub mod store;

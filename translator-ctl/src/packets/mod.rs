//! The thread that moves packets between the links and the software data plane, and its counters.
//!
//! It knows neither sessions nor targets; [`Command`]s control it.

mod bell;
mod device_link;
#[cfg(test)]
mod device_link_tests;
pub mod faults;
mod flow_handover;
mod flow_listeners;
mod int_side;
mod listener;
mod packet_thread;
mod roce_link;
mod stats;
pub mod steering;

pub use bell::Bell;
pub use device_link::{DeviceCounters, DeviceLink};
pub use flow_handover::ExportsInTransit;
pub use int_side::{IntSide, MOST_LISTENERS};
pub use packet_thread::{
    Command, DirectPath, Dropped, PacketPath, PacketThread, PacketThreadError, PacketThreadMember,
    ProgramRefusal, Snapshot,
};
pub use roce_link::{PacketTooLong, RoceLink};
pub(crate) use stats::for_collector;
pub use stats::node_statistics;

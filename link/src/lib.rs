//! Batched datagram I/O of Direct Telemetry Access (DTA), with fault injection.
//!
//! Code above a link sees IPv4 packets (IPv4 header onwards) in a [`dta_proto::batch::Batch`], whatever carries them:
//!
//! - [`udp`]: UDP sockets, unprivileged. The 28 bytes of IPv4 and UDP header are put in front of each
//!   payload on receive and stripped on send.
//! - [`packet`]: whole Ethernet frames on an interface (AF_PACKET), which needs CAP_NET_RAW.
//! - [`xdp`]: the same through AF_XDP, past the kernel's network stack.
//! - [`wire`]: either of these two, as the configuration says.
//! - [`ethernet`]: packets under an address of the link's own on such an interface, with ARP.
//! - [`ring`]: batches handed from thread to thread in one process.
//! - [`shared_ring`]: frames between two processes of one machine, in shared memory.
//! - [`host`]: a UDP link that sends to who has joined a shared ring by that.
//!
//! On top of these:
//!
//! - [`fault`]: drops, duplicates, reorders and corrupts frames before they are sent, seeded.
//! - [`netstat`]: the kernel's own counters, by which its losses are told from ours.
//! - [`bare`]: system calls with nothing around them, for benchmarks.
//!
//! Nothing here allocates per datagram, and no system call is made per datagram: all goes by batches.

pub mod bare;
mod counters;
mod error;
pub mod ethernet;
pub mod fault;
pub mod host;
mod link;
mod neighbours;
pub mod netstat;
pub mod packet;
pub mod ring;
pub mod shared_ring;
mod sys;
pub mod udp;
pub mod wire;
pub mod xdp;

pub use counters::LinkCounters;
pub use error::{LinkError, Result};
pub use ethernet::EthernetLink;
pub use host::HostLink;
pub use link::{Link, Scope, wait_readable};
pub use packet::{PacketConfig, PacketLink};
pub use shared_ring::RingCounters;
pub use udp::{RunUse, UdpConfig, UdpLink};
pub use wire::{Way, Wire, WireLink};
pub use xdp::{XdpConfig, XdpLink};

/// Tells the kernel that the calling thread works in batches (SCHED_BATCH). A frame that arrives
/// then wakes it as ever where a processor is idle, but does not take the processor from who is
/// still sending the rest of a batch: without this, a receiver on the sender's processor runs once
/// per frame. It needs a queue that holds what comes in a time slice, as a raw link's ring does.
///
/// # Errors
/// The system refuses; the thread then goes on as before.
pub fn work_in_batches() -> std::io::Result<()> {
    sys::schedule_batch()
}

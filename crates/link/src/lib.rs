//! Batched datagram I/O of Direct Telemetry Access (DTA), with fault injection.
//!
//! Code above a link sees IPv4 packets (IPv4 header onwards) in a [`dta_proto::batch::PacketBatch`], whatever carries
//! them:
//!
//! - [`udp`]: UDP sockets, unprivileged. The 28 bytes of IPv4 and UDP header are added to each payload on
//!   receive and stripped on send. [`UdpListener`] only receives, over IPv6 too (48 bytes), and [`Ipv6FrameLink`] is for
//!   RoCEv2 frames over IPv6.
//! - [`packet`]: whole Ethernet frames on an interface (AF_PACKET), which needs CAP_NET_RAW.
//! - [`xdp`]: the same through AF_XDP, bypassing the kernel's network stack.
//! - [`wire`]: either of these two, by configuration.
//! - [`ethernet`]: packets under the link's own address on such an interface, with ARP.
//! - [`intake`]: datagrams to a port, by a UDP socket or AF_XDP.
//! - [`shared_ring`]: frames between two processes of one machine, in shared memory.
//! - [`host`]: a UDP link that uses shared rings to their members.
//!
//! On top of these:
//!
//! - [`fault`]: drops, duplicates, reorders and corrupts frames before they are sent, seeded.
//! - [`netstat`]: the kernel's own counters, to distinguish its losses from ours.
//! - [`bare`]: bare system calls, for benchmarks.
//!
//! Nothing here allocates or makes a system call per datagram: everything works in batches.

pub mod bare;
mod counters;
mod error;
pub mod ethernet;
pub mod fault;
pub mod host;
pub mod intake;
mod link;
mod neighbours;
pub mod netstat;
pub mod packet;
pub mod shared_ring;
mod sys;
pub mod udp;
pub mod wire;
pub mod xdp;

pub use counters::LinkCounters;
pub use error::{LinkError, Result};
pub use ethernet::EthernetLink;
pub use host::HostLink;
pub use intake::{IntakeLink, IntakeOpener};
pub use link::{Link, Scope, wait_readable};
pub use packet::{PacketConfig, PacketLink};
pub use shared_ring::RingCounters;
pub use udp::{Ipv6FrameLink, RunUse, UdpConfig, UdpLink, UdpListener};
pub use wire::{SocketKind, Wire, WireLink};
pub use xdp::{XdpConfig, XdpLink};

/// Tells the kernel that the calling thread works in batches (SCHED_BATCH). An arriving frame still wakes it on an idle
/// processor, but does not preempt a sender in the middle of a batch: without this, a receiver on the sender's processor
/// runs once per frame. The receive queue must hold what arrives in a time slice, as a raw link's ring does.
///
/// # Errors
/// The system refuses; the thread then continues as before.
pub fn work_in_batches() -> std::io::Result<()> {
    sys::schedule_batch()
}

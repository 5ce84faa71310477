//! The kernel programs' counters, per point and per flow.

use dta_proto::counter::reporter as names;
use dta_proto::key::Flow;

dta_proto::published_counters! {
    /// What became of the packets at a point. `seen` is the sum of all others except `missed` and `flows_full`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Books {
        pub seen: u64 = names::SEEN,
        pub reported: u64 = names::REPORTED,
        pub filtered: u64 = names::FILTERED,
        pub sampled_out: u64 = names::SAMPLED_OUT,
        /// Packets of our own reports: see `TracerOptions::translator` in `kernel`.
        pub own: u64 = names::OWN_REPORTS,
        pub flows_full: u64 = names::FLOWS_FULL,
        /// Records that found the ring full.
        pub ring_full: u64,
        /// Refused: neither IPv4 nor IPv6.
        pub not_ip: u64,
        /// Refused: a header where the program cannot read.
        pub unreadable: u64,
        /// Not seen: the kernel skipped the program because it was already running on this processor.
        pub missed: u64,
    }
}

impl Books {
    /// Packets without a record because they could not be parsed.
    pub fn unparsed_packets(&self) -> u64 {
        self.not_ip + self.unreadable
    }
}

/// Where a flow was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowAt {
    /// The flow of the innermost packet.
    pub flow: Flow,
    /// The network namespace's inode; 0 if the packet has no device.
    pub namespace: u32,
    /// The interface's index; 0 if the packet has no device.
    pub interface: u32,
    pub point: u16,
}

/// Counts of a flow at a point: every packet that passes the filter, sampled or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Packets, including each one in a combined buffer (GSO).
    pub packets: u64,
    /// Their bytes, from the outermost IP header. In a combined buffer, headers count once.
    pub bytes: u64,
    /// Number of packets dropped here.
    pub drops: u64,
}

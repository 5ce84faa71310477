//! What the kernel's programs count: of each point, and of each flow.

use dta_proto::key::Flow;

/// What became of the packets that a point saw. `seen` is the sum of all others but `missed` and `flows_full`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Packets that came to the point.
    pub seen: u64,
    /// Records in the ring.
    pub reported: u64,
    /// Packets that the filter does not choose.
    pub filtered: u64,
    /// Packets that the rate of sampling leaves out.
    pub sampled_out: u64,
    /// Packets that come of the tracer's own reports: see [`Options::translator`](crate::kernel::Options::translator).
    pub own: u64,
    /// Records that found the ring full.
    pub ring_full: u64,
    /// Refused: neither IPv4 nor IPv6.
    pub not_ip: u64,
    /// Refused: a header lies where the program cannot read.
    pub unreadable: u64,
    /// Not seen: the kernel did not run the program, because it interrupted itself on this processor.
    pub missed: u64,
    /// Packets that were not counted for their flow, because the table of flows was full. They are in the counts above.
    pub flows_full: u64,
}

impl Books {
    /// Packets without a record because they could not be read.
    pub fn refused(&self) -> u64 {
        self.not_ip + self.unreadable
    }

    /// Whether every packet that was seen is accounted for. (Read while packets pass, it may be off by those on the way.)
    pub fn balance(&self) -> bool {
        self.seen
            == self.reported + self.filtered + self.sampled_out + self.own + self.ring_full + self.refused()
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self {
            seen: self.seen + other.seen,
            reported: self.reported + other.reported,
            filtered: self.filtered + other.filtered,
            sampled_out: self.sampled_out + other.sampled_out,
            own: self.own + other.own,
            ring_full: self.ring_full + other.ring_full,
            not_ip: self.not_ip + other.not_ip,
            unreadable: self.unreadable + other.unreadable,
            missed: self.missed + other.missed,
            flows_full: self.flows_full + other.flows_full,
        }
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
    /// The number of the point.
    pub point: u16,
}

/// What was counted of a flow at a point: every packet that the filter chooses, sampled or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// Packets; each of those that travel as one buffer (GSO) counts.
    pub packets: u64,
    /// Their bytes, from the outermost IP header on. Of packets in one buffer, the headers are counted once.
    pub bytes: u64,
    /// How many of the packets were dropped here.
    pub drops: u64,
}

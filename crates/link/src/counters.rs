//! A link's counters.

use dta_proto::counter::{LinkIgnored, LinkLoss, LinkXdp};
use serde::{Deserialize, Serialize};

dta_proto::counters! {
    /// Packets and bytes through one link, and its losses by reason, since the link was opened.
    ///
    /// Bytes count from the IPv4 header, whatever carries the packets.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct LinkCounters {
        /// Packets handed to the caller.
        pub received: u64,
        /// Bytes of these.
        pub received_bytes: u64,
        /// Packets that the kernel, or the ring's other end, accepted for sending.
        pub sent: u64,
        /// Bytes of these.
        pub sent_bytes: u64,
    }
    by losses_by_reason: LinkLoss {
        dropped_too_long = TooLong,
        dropped_by_kernel = ReceiveQueue,
        unsent_queue_full = UnsentQueueFull,
        unsent_no_buffers = UnsentNoBuffers,
        unsent_too_long = UnsentTooLong,
        unsent_unreachable = UnsentUnreachable,
        unsent_forbidden = UnsentForbidden,
        unsent_no_source = UnsentNoSource,
        unsent_malformed = UnsentMalformed,
        unsent_other = UnsentOther,
    }
    by ignored_by_reason: LinkIgnored {
        ignored_vlan = Vlan,
        ignored_roce_v1 = RoceV1,
        ignored_ipv6 = Ipv6,
    }
    by xdp_counts: LinkXdp {
        xdp_received = Received,
        xdp_unchanged = Unchanged,
        xdp_ring_full = RingFull,
        xdp_no_free_frame = NoFreeFrame,
        xdp_checksum = Checksum,
        xdp_malformed = Malformed,
    }
}

impl LinkCounters {
    /// Packets handed to `send` but not sent, for all reasons.
    pub fn unsent_packets(&self) -> u64 {
        self.losses_by_reason().iter().filter(|(loss, _)| loss.is_unsent()).map(|(_, packets)| packets).sum()
    }

    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }

    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }

    /// Counts the packets of a run, and their bytes together.
    pub(crate) fn count_run_sent(&mut self, packets: usize, bytes: usize) {
        self.sent += packets as u64;
        self.sent_bytes += bytes as u64;
    }

    /// Counts one packet that the kernel refused with `error`.
    pub(crate) fn count_unsent(&mut self, error: &std::io::Error) {
        *match error.raw_os_error() {
            Some(libc::EAGAIN) => &mut self.unsent_queue_full,
            Some(libc::ENOBUFS) => &mut self.unsent_no_buffers,
            Some(libc::EMSGSIZE) => &mut self.unsent_too_long,
            Some(libc::ENETUNREACH | libc::EHOSTUNREACH) => &mut self.unsent_unreachable,
            Some(libc::EPERM) => &mut self.unsent_forbidden,
            _ => &mut self.unsent_other,
        } += 1;
    }
}

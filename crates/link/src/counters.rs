//! A link's counters.

use dta_proto::counter::{LinkIgnored, LinkLoss};
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
        /// Received datagrams longer than a slot, dropped.
        pub dropped_too_long: u64,
        /// Frames to a port of this link that are in a VLAN, not taken.
        pub ignored_vlan: u64,
        /// Frames of RoCEv1, not taken.
        pub ignored_roce_v1: u64,
        /// Frames to a port of this link over IPv6, not taken.
        pub ignored_ipv6: u64,
        /// Datagrams that the kernel dropped at this link's receive queue: the queue was full, or (UDP) the
        /// checksum was wrong; for AF_XDP, there was no free chunk, or the frame was longer than one. The kernel
        /// counts messages: where runs are received whole ([`crate::RunUse::receive`]), each is one datagram, or
        /// a run of up to 64.
        pub dropped_by_kernel: u64,
        /// Packets not sent because the send queue stayed full (EAGAIN) through all retries.
        pub unsent_queue_full: u64,
        /// Packets not sent because the kernel had no buffers (ENOBUFS) through all retries.
        pub unsent_no_buffers: u64,
        /// Packets not sent because they exceed the path MTU with DF set (EMSGSIZE).
        pub unsent_too_long: u64,
        /// Packets not sent because there is no route or the neighbour is unreachable (ENETUNREACH,
        /// EHOSTUNREACH).
        pub unsent_unreachable: u64,
        /// Packets not sent because a firewall rule on output refused them (EPERM).
        pub unsent_forbidden: u64,
        /// Packets not sent because their source address and port could not be bound.
        pub unsent_no_source: u64,
        /// Packets not sent because this link cannot carry them: not IPv4 with UDP, or without Ethernet header.
        pub unsent_malformed: u64,
        /// Packets not sent for any other error.
        pub unsent_other: u64,
    }
}

impl LinkCounters {
    /// Packets handed to `send` but not sent, for all reasons.
    pub fn unsent_packets(&self) -> u64 {
        self.losses_by_reason().iter().filter(|(loss, _)| loss.is_unsent()).map(|(_, packets)| packets).sum()
    }

    /// Each reason for which packets were lost in the link, the zero ones too, in the order of
    /// [`LinkLoss::ALL`].
    pub fn losses_by_reason(&self) -> [(LinkLoss, u64); 10] {
        [
            (LinkLoss::TooLong, self.dropped_too_long),
            (LinkLoss::ReceiveQueue, self.dropped_by_kernel),
            (LinkLoss::UnsentQueueFull, self.unsent_queue_full),
            (LinkLoss::UnsentNoBuffers, self.unsent_no_buffers),
            (LinkLoss::UnsentTooLong, self.unsent_too_long),
            (LinkLoss::UnsentUnreachable, self.unsent_unreachable),
            (LinkLoss::UnsentForbidden, self.unsent_forbidden),
            (LinkLoss::UnsentNoSource, self.unsent_no_source),
            (LinkLoss::UnsentMalformed, self.unsent_malformed),
            (LinkLoss::UnsentOther, self.unsent_other),
        ]
    }

    /// Frames that a link of raw frames does not take, by reason.
    pub fn ignored_by_reason(&self) -> [(LinkIgnored, u64); 3] {
        [
            (LinkIgnored::Vlan, self.ignored_vlan),
            (LinkIgnored::RoceV1, self.ignored_roce_v1),
            (LinkIgnored::Ipv6, self.ignored_ipv6),
        ]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loss_is_told_once_in_order() {
        let losses = LinkCounters::default().losses_by_reason().map(|(loss, _)| loss);
        assert_eq!(losses, LinkLoss::ALL);
    }
}

//! Counters of links and fault injectors, whichever node has them.

use super::{VariableValue, values};

/// Declares the losses with both spellings: the software NIC's counter files have underscores.
macro_rules! losses {
    ($($Variant:ident = $name:literal $underscores:literal, $meaning:literal;)+) => {
        values! {
            /// Why a packet was lost in a link.
            LinkLoss { $($Variant = $name, $meaning;)+ }
        }

        impl LinkLoss {
            /// [`LinkLoss::VALUES`] under the software NIC's names.
            pub const VALUES_OF_NIC: &'static [VariableValue] = &[$(VariableValue { name: $underscores, meaning: $meaning },)+];
        }
    };
}

losses! {
    TooLong = "too-long" "too_long", "received, but longer than a slot of the link";
    ReceiveQueue = "receive-queue" "receive_queue",
        "dropped by the kernel at the receive queue: it was full (AF_XDP: no free frame), or the UDP checksum was wrong (a run received as one message counts as one; of reports, `gaps` counts each; of frames, as many are missing as were sent but not received)";
    UnsentQueueFull = "unsent-queue-full" "unsent_queue_full",
        "not sent: the send queue stayed full through all retries";
    UnsentNoBuffers = "unsent-no-buffers" "unsent_no_buffers",
        "not sent: the kernel had no buffers through all retries";
    UnsentTooLong = "unsent-too-long" "unsent_too_long", "not sent: longer than the path MTU";
    UnsentUnreachable = "unsent-unreachable" "unsent_unreachable",
        "not sent: no route, or the neighbour does not answer";
    UnsentForbidden = "unsent-forbidden" "unsent_forbidden", "not sent: a firewall rule on output refused it";
    UnsentNoSource = "unsent-no-source" "unsent_no_source",
        "not sent: its source address and port were not available";
    UnsentMalformed = "unsent-malformed" "unsent_malformed",
        "not sent: this link cannot carry it (not IPv4 with UDP, or without Ethernet header)";
    UnsentOther = "unsent-other" "unsent_other", "not sent for any other error";
}

values! {
    /// Why a link of raw frames does not take a frame that looks as if it were for it. No loss: our own nodes send none of these.
    LinkIgnored {
        Vlan = "vlan", "to a port of the link, but in a VLAN (a priority tag, of VLAN 0, is none)";
        RoceV1 = "roce_v1", "RoCEv1, which has no UDP";
        Ipv6 = "ipv6", "to a port of the link, but over IPv6";
    }
}

values! {
    /// What a link of datagrams counts where AF_XDP takes them past the kernel's network stack.
    LinkXdp {
        Received = "received", "came this way; the others received came by the socket behind it";
        Unchanged = "unchanged",
            "of those: Telemetry Reports that the program at the interface dropped because they say nothing new; the translator counts them, too";
        RingFull = "ring_full", "of those dropped as `receive-queue`: the ring was full";
        NoFreeFrame = "no_free_frame",
            "of those dropped as `receive-queue`: no frame of the link's memory was free (without copies: times that the driver found none; it then drops in the device)";
        Checksum = "checksum", "of those dropped as `receive-queue`: the UDP checksum was wrong";
        Malformed = "malformed",
            "dropped: lengths that contradict each other, or a wrong IPv4 checksum; a kernel drops these before any socket";
    }
}

impl LinkLoss {
    /// Losses of packets to send, names and meanings.
    pub const UNSENT: &'static [VariableValue] =
        LinkLoss::VALUES.split_at(LinkLoss::UnsentQueueFull as usize).1;

    /// Its name in the software NIC's counters.
    pub const fn name_at_nic(self) -> &'static str {
        LinkLoss::VALUES_OF_NIC[self as usize].name
    }

    /// Whether it is a loss of packets to send.
    pub const fn is_unsent(self) -> bool {
        self as usize >= LinkLoss::UnsentQueueFull as usize
    }

    /// Why a packet was not sent, from the name of a loss in either spelling, or from a newer program's. `None` for losses on
    /// receipt.
    pub fn unsent_reason(name: &str) -> Option<&str> {
        name.strip_prefix("unsent").and_then(|rest| rest.strip_prefix(['-', '_']))
    }
}

values! {
    /// What a fault injector did to a packet.
    Fault {
        Dropped = "dropped", "packets that it dropped";
        Duplicated = "duplicated", "packets that it sent twice";
        Reordered = "reordered", "packets that it sent late";
        Corrupted = "corrupted", "packets in which it flipped a bit";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unsent_is_called_so_in_both_spellings() {
        for loss in LinkLoss::ALL {
            assert_eq!(loss.name().replace('-', "_"), loss.name_at_nic());
            for name in [loss.name(), loss.name_at_nic()] {
                assert_eq!(LinkLoss::unsent_reason(name).is_some(), loss.is_unsent(), "{name}");
            }
        }
        assert_eq!(LinkLoss::UNSENT.len() + 2, LinkLoss::ALL.len());
        assert_eq!(LinkLoss::unsent_reason("unsent-forbidden"), Some("forbidden"));
        assert_eq!(LinkLoss::from_name("receive-queue"), Some(LinkLoss::ReceiveQueue));
    }
}

//! What links and fault injectors count, whichever node they are of.

use super::{Value, values};

/// Declares the losses with both spellings: the software NIC's counter files have underscores.
macro_rules! losses {
    ($($Variant:ident = $name:literal $underscores:literal, $meaning:literal;)+) => {
        values! {
            /// Why a packet was lost in a link.
            LinkLoss { $($Variant = $name, $meaning;)+ }
        }

        impl LinkLoss {
            /// As [`LinkLoss::VALUES`], with the names that the software NIC uses.
            pub const VALUES_OF_NIC: &'static [Value] = &[$(Value { name: $underscores, meaning: $meaning },)+];
        }
    };
}

losses! {
    TooLong = "too-long" "too_long", "received, and longer than a slot of the link";
    ReceiveQueue = "receive-queue" "receive_queue",
        "dropped by the kernel at the receive queue: it was full (of AF_XDP, no memory for the frame was free), or the UDP checksum was wrong (of reports, a run that came as one message counts as one; `gaps` counts each)";
    UnsentQueueFull = "unsent-queue-full" "unsent_queue_full",
        "not sent: the send queue stayed full through all retries";
    UnsentNoBuffers = "unsent-no-buffers" "unsent_no_buffers",
        "not sent: the kernel had no buffers through all retries";
    UnsentTooLong = "unsent-too-long" "unsent_too_long", "not sent: longer than the path takes";
    UnsentUnreachable = "unsent-unreachable" "unsent_unreachable",
        "not sent: no route, or the neighbour does not answer";
    UnsentForbidden = "unsent-forbidden" "unsent_forbidden", "not sent: a firewall rule on output refused it";
    UnsentNoSource = "unsent-no-source" "unsent_no_source",
        "not sent: its source address and port could not be had";
    UnsentMalformed = "unsent-malformed" "unsent_malformed",
        "not sent: this link cannot carry it (not IPv4 with UDP, or without Ethernet header)";
    UnsentOther = "unsent-other" "unsent_other", "not sent for any other error";
}

impl LinkLoss {
    /// Losses of packets that were to be sent, names and meanings.
    pub const UNSENT: &'static [Value] = LinkLoss::VALUES.split_at(LinkLoss::UnsentQueueFull as usize).1;

    /// Its name at the software NIC.
    pub const fn name_at_nic(self) -> &'static str {
        LinkLoss::VALUES_OF_NIC[self as usize].name
    }

    /// Whether it is of packets that were to be sent.
    pub const fn is_unsent(self) -> bool {
        self as usize >= LinkLoss::UnsentQueueFull as usize
    }

    /// Of a loss's name in either spelling, also a newer program's: why a packet was not sent.
    /// `None` for what was received.
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

//! Counters of a NIC: the software one, or an RDMA device.

use super::{
    CounterStep, CounterTable, Definition, Fault, LinkIgnored, LinkLoss, Unit, Values, Variable,
    VariableValue, ring, table,
};

/// The name of the software NIC's device.
pub const SOFT: &str = "soft";

pub(super) static SOFT_TABLES: &[&CounterTable] = &[&SOFT_NIC, &SOFT_LINK, &ring::RING];
pub(super) static DEVICE_TABLES: &[&CounterTable] = &[&DEVICE];

/// Declares the counters of the software NIC's responder in groups of one definition each.
macro_rules! soft_nic {
    ($($GROUP:ident $pattern:literal $prefix:literal $word:literal, $unit:ident, $step:ident, $about:literal {
        $($Variant:ident = $part:literal $(, $meaning:literal)?;)+
    })+) => {
        /// A counter of the software NIC's responder. Every packet received has exactly one fate:
        /// `received` = all `executed.*` + all `duplicate.*` + all `dropped.*`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Counter {
            $($(#[doc = concat!("`", $prefix, $part, "`" $(, ": ", $meaning)?, ".")] $Variant,)+)+
        }

        impl Counter {
            /// All counters, in display order.
            pub const ALL: [Counter; [$($($part),+),+].len()] = [$($(Counter::$Variant),+),+];

            /// Its dotted name.
            pub const fn name(self) -> &'static str {
                match self { $($(Counter::$Variant => concat!($prefix, $part),)+)+ }
            }

            /// Its definition, which it may share with others.
            pub fn definition(self) -> &'static Definition {
                match self { $($(Counter::$Variant => &$GROUP,)+)+ }
            }
        }

        $(
            #[doc = concat!("`", $pattern, "`: ", $about, ".")]
            pub static $GROUP: Definition = Definition::new($pattern, Unit::$unit, CounterStep::$step, $about).with_variables(
                if $word.is_empty() {
                    &[]
                } else {
                    &[Variable {
                        word: $word,
                        values: Values::Of(&[$(VariableValue { name: $part, meaning: concat!($($meaning)?) }),+]),
                    }]
                },
            );
        )+

        /// Counters of the software NIC's responder.
        pub static SOFT_NIC: CounterTable = CounterTable { title: "software NIC", definitions: &[$(&$GROUP),+] };
    };
}

soft_nic! {
    RECEIVED "received" "" "", Packets, In, "packets handed to the NIC" {
        Received = "received";
    }
    EXECUTED "executed.OPERATION" "executed." "OPERATION", Packets, Executed, "packets that the NIC executed" {
        ExecutedWrite = "write", "WRITE packets whose data was written";
        ExecutedProbe = "probe",
            "WRITEs without data: the requester probes the responder's PSN, or the operation's store is gone";
        ExecutedFetchAdd = "fetch_add", "FETCH_ADDs executed";
        ExecutedCompareSwap = "compare_swap", "CMP_SWAPs executed, whether they swapped or not";
        ExecutedRead = "read", "READs executed";
    }
    DUPLICATE "duplicate.OPERATION" "duplicate." "OPERATION", Packets, Duplicate, "packets that the NIC had seen before" {
        DuplicateWrite = "write", "(RC) repeated WRITEs: acknowledged again, not written again";
        DuplicateAtomic = "atomic",
            "(RC) repeated atomics: the first answer is sent again, nothing executed";
        DuplicateRead = "read", "(RC) repeated READs: answered again";
    }
    DROPPED "dropped.REASON" "dropped." "REASON", Packets, Dropped, "packets that the NIC did not execute" {
        DroppedNotRoce = "not_roce", "not IPv4 with UDP to the RoCEv2 port";
        DroppedLength = "malformed.length", "truncated, or lengths that contradict each other";
        DroppedFragment = "malformed.fragment", "a fragment of an IPv4 packet; RoCEv2 does not fragment";
        DroppedOptions = "malformed.ip_options", "IPv4 options, which are not supported";
        DroppedVersion = "malformed.transport_version", "a transport version other than 0";
        DroppedIpChecksum = "ip_checksum",
            "wrong IPv4 header checksum: damaged on the way (raw frames only; on sockets the kernel drops such packets)";
        DroppedUdpChecksum = "udp_checksum", "wrong UDP checksum: damaged on the way";
        DroppedIcrc = "icrc", "the iCRC is wrong: damaged on the way, or made by a faulty sender";
        DroppedDestination = "destination", "sent to another IP address than this NIC's";
        DroppedUnknownQueuePair = "unknown_queue_pair",
            "no queue pair with that number: the requester still uses one of an earlier session";
        DroppedOpcode = "opcode", "an operation that is unknown, of another transport, or an answer";
        DroppedPeer = "peer", "sent by another IP address than the queue pair's peer";
        DroppedPkey = "pkey", "of another partition";
        DroppedQueuePairError = "queue_pair_error", "the queue pair is in ERROR and must be replaced";
        DroppedPsn = "psn",
            "(RC) ahead of the expected PSN: earlier packets are missing. (UC) out of sequence within a message";
        DroppedIncompleteMessage = "incomplete_message",
            "the rest of a message whose start was lost or refused";
        DroppedRkey = "rkey", "no region with that rkey: one of an earlier session, or of a region since replaced";
        DroppedRange = "range", "outside the region";
        DroppedPermission = "permission", "the queue pair or the region does not permit this operation";
        DroppedPayloadLength = "payload_length",
            "the payload length does not match the message's length or the path MTU";
        DroppedMisaligned = "misaligned", "an atomic at an address that is not a multiple of 8";
        DroppedNoResources = "no_responder_resources",
            "(RC) an atomic or READ on a queue pair without responder resources";
        DroppedNoReceive = "no_receive",
            "a WRITE with immediate while the reader had not taken the earlier ones";
        DroppedForgotten = "answer_forgotten",
            "(RC) a repeated atomic or READ whose first answer is no longer kept, or that differs from the first";
        DroppedKilled = "killed", "in progress when an earlier process of this NIC died";
    }
    SENT "sent.ANSWER" "sent." "ANSWER", Answers, Answered, "answers that the NIC sent" {
        SentAck = "ack", "ACKs sent";
        SentAtomicAck = "atomic_ack", "answers to atomics sent";
        SentReadResponse = "read_response", "packets sent in answer to READs";
        SentNakSequence = "nak.sequence", "NAKs sent: sequence error";
        SentNakInvalid = "nak.invalid_request", "NAKs sent: invalid request";
        SentNakAccess = "nak.remote_access", "NAKs sent: remote access error";
        SentRnr = "nak.receiver_not_ready", "NAKs sent: receiver not ready";
    }
    UNSENT_ANSWER "unsent.answer" "" "", Answers, Lost, "answers of the NIC not sent for lack of room" {
        UnsentAnswer = "unsent.answer";
    }
    IMMEDIATES "immediates" "" "", Immediates, Beside, "immediates handed to readers" {
        Immediates = "immediates";
    }
    QUEUE_PAIR_ERRORS "queue_pair_errors" "" "", QueuePairs, Beside, "queue pairs that went to ERROR" {
        QueuePairErrors = "queue_pair_errors";
    }
}

impl Counter {
    /// The counter with this name; `None` for one of a newer program.
    pub fn from_name(name: &str) -> Option<Counter> {
        Counter::ALL.into_iter().find(|counter| counter.name() == name)
    }

    /// Whether this is a final fate of received packets.
    pub fn is_final_fate(self) -> bool {
        matches!(
            self.definition().step,
            CounterStep::Executed | CounterStep::Duplicate | CounterStep::Dropped
        )
    }
}

const LOSS: Variable = Variable { word: "REASON", values: Values::Of(LinkLoss::VALUES_OF_NIC) };
const IGNORED: Variable = Variable { word: "REASON", values: Values::Of(LinkIgnored::VALUES) };
const FAULT: Variable = Variable { word: "FAULT", values: Values::Of(Fault::VALUES) };

table! {
    /// Counters of the software NIC's link and fault injector.
    SOFT_LINK "software NIC, link" {
        LINK_RECEIVED: "link.received", Packets, Beside, "packets received on the NIC's link" .as_detail();
        LINK_RECEIVED_BYTES: "link.received_bytes", Bytes, Beside, "bytes received on the NIC's link" .as_detail();
        LINK_SENT: "link.sent", Packets, Beside, "packets sent on the NIC's link" .as_detail();
        LINK_SENT_BYTES: "link.sent_bytes", Bytes, Beside, "bytes sent on the NIC's link" .as_detail();
        LINK_LOST: "link.lost.REASON", Packets, Beside, "packets lost in the NIC's link" .with_variables(&[LOSS]) .as_detail();
        LINK_IGNORED: "link.ignored.REASON", Packets, Beside, "frames to the NIC's link that it does not take: in a VLAN (`vlan`), of RoCEv1 (`roce_v1`), over IPv6 (`ipv6`)" .with_variables(&[IGNORED]) .as_detail();
        FAULTS: "faults.FAULT", Packets, Beside, "answers that the fault injector changed, dropped, doubled or delayed"
            .with_variables(&[FAULT]);
    }
}

const NAME: Variable = Variable { word: "NAME", values: Values::Any };

table! {
    /// Counters of an RDMA device.
    DEVICE "RDMA device" {
        DEVICE_RECEIVED: "received", Packets, In,
            "packets that a working queue pair of the device accepted; absent where the device does not count packets (rxe does: `rcvd_pkts`)";
        DEVICE_LINK_RECEIVED: "link.received", Packets, Beside, "packets that a working queue pair of the device accepted, as `received`" .as_detail();
        DEVICE_SENT: "sent.packets", Packets, Answered,
            "packets that the device sent; only where it counts packets (rxe: `sent_pkts`)";
        DEVICE_LINK_SENT: "link.sent", Packets, Beside, "packets that the device sent, as `sent.packets`" .as_detail();
        DEVICE_COUNTER: "device.NAME", Kernel, Beside, "the kernel's own counters of the port, by its names"
            .with_variables(&[NAME]);
        DEVICE_QUEUE_PAIR_ERRORS: "queue_pairs.errors", QueuePairs, Beside, "queue pairs that went to ERROR";
        DEVICE_IMMEDIATES: "immediates", Immediates, Beside, "immediates handed to readers";
        DEVICE_LOST: "device_lost", Times, Beside,
            "times the device was removed while this collector used it";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counter::CounterNode;

    #[test]
    fn every_counter_of_the_responder_is_found_by_its_name() {
        for counter in Counter::ALL {
            let found = CounterNode::SoftNic.find_counter(counter.name()).unwrap();
            assert!(found.known && found.definition == counter.definition(), "{}", counter.name());
            // Counter files have room for 47 bytes.
            assert!(counter.name().len() < 48);
        }
    }

    #[test]
    fn fates_are_what_a_packet_can_come_to() {
        assert!(Counter::DroppedIcrc.is_final_fate() && Counter::ExecutedWrite.is_final_fate());
        assert!(
            !Counter::Received.is_final_fate()
                && !Counter::SentAck.is_final_fate()
                && !Counter::Immediates.is_final_fate()
        );
    }
}

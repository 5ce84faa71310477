//! What the software NIC counts, by name.
//!
//! Every packet received has exactly one fate: `received` = all `executed.*` + all `duplicate.*` + all `dropped.*`.

/// Declares the counters once: variant, name, documentation.
macro_rules! counters {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)+) => {
        /// A counter of the software NIC.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Counter { $($(#[$doc])+ $variant,)+ }

        impl Counter {
            /// All counters, in the order in which they are shown.
            pub const ALL: [Counter; [$($name),+].len()] = [$(Counter::$variant),+];

            /// Its dotted name.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)+ }
            }
        }
    };
}

counters! {
    /// Packets handed to the NIC.
    Received = "received",

    /// WRITE packets whose data was written.
    ExecutedWrite = "executed.write",
    /// WRITEs without data: a requester asking where the responder stands.
    ExecutedProbe = "executed.probe",
    /// FETCH_ADDs executed.
    ExecutedFetchAdd = "executed.fetch_add",
    /// CMP_SWAPs executed, whether they swapped or not.
    ExecutedCompareSwap = "executed.compare_swap",
    /// READs executed.
    ExecutedRead = "executed.read",

    /// (RC) WRITEs seen before: acknowledged again, not written again.
    DuplicateWrite = "duplicate.write",
    /// (RC) Atomics seen before: the first answer given again, not executed again.
    DuplicateAtomic = "duplicate.atomic",
    /// (RC) READs seen before: answered again.
    DuplicateRead = "duplicate.read",

    /// Not IPv4 and UDP to the port of RoCEv2.
    DroppedNotRoce = "dropped.not_roce",
    /// Cut off, or lengths that contradict each other.
    DroppedLength = "dropped.malformed.length",
    /// A fragment of an IPv4 packet; RoCEv2 does not fragment.
    DroppedFragment = "dropped.malformed.fragment",
    /// IPv4 options, which are not supported.
    DroppedOptions = "dropped.malformed.ip_options",
    /// A transport version other than 0.
    DroppedVersion = "dropped.malformed.transport_version",
    /// The UDP checksum is there and wrong: damaged on the way.
    DroppedUdpChecksum = "dropped.udp_checksum",
    /// The iCRC is wrong: damaged on the way, or made by a faulty sender.
    DroppedIcrc = "dropped.icrc",
    /// Sent to another IP address than this NIC's.
    DroppedDestination = "dropped.destination",
    /// There is no queue pair of that number: a requester that still uses one of an earlier session.
    DroppedUnknownQueuePair = "dropped.unknown_queue_pair",
    /// An operation that is unknown, of another transport, or an answer.
    DroppedOpcode = "dropped.opcode",
    /// Sent by another IP address than the queue pair's peer.
    DroppedPeer = "dropped.peer",
    /// Of another partition.
    DroppedPkey = "dropped.pkey",
    /// The queue pair is in ERROR: it has to be made anew.
    DroppedQueuePairError = "dropped.queue_pair_error",
    /// (RC) Ahead of the expected PSN: packets before it are missing. (UC) In the middle of a message, out of step.
    DroppedPsn = "dropped.psn",
    /// The rest of a message whose beginning was lost or refused.
    DroppedIncompleteMessage = "dropped.incomplete_message",
    /// No region has that key: a key of an earlier session.
    DroppedRkey = "dropped.rkey",
    /// Outside the region.
    DroppedRange = "dropped.range",
    /// The queue pair or the region does not grant this operation.
    DroppedPermission = "dropped.permission",
    /// The payload is not as long as the message says, or as the path MTU wants.
    DroppedPayloadLength = "dropped.payload_length",
    /// An atomic at an address that is not a multiple of 8.
    DroppedMisaligned = "dropped.misaligned",
    /// (RC) Atomics and reads are not served: the queue pair has no responder resources.
    DroppedNoResources = "dropped.no_responder_resources",
    /// A WRITE with immediate, and the reader had not taken the earlier ones yet.
    DroppedNoReceive = "dropped.no_receive",
    /// (RC) A repeated atomic or read whose first answer is no longer kept, or that differs from the first.
    DroppedForgotten = "dropped.answer_forgotten",
    /// In hand when an earlier process of this NIC died.
    DroppedKilled = "dropped.killed",

    /// ACKs sent.
    SentAck = "sent.ack",
    /// Answers to atomics sent.
    SentAtomicAck = "sent.atomic_ack",
    /// Packets of answers to READs sent.
    SentReadResponse = "sent.read_response",
    /// NAKs sent: sequence error.
    SentNakSequence = "sent.nak.sequence",
    /// NAKs sent: invalid request.
    SentNakInvalid = "sent.nak.invalid_request",
    /// NAKs sent: remote access error.
    SentNakAccess = "sent.nak.remote_access",
    /// NAKs sent: receiver not ready.
    SentRnr = "sent.nak.receiver_not_ready",
    /// Answers for which there was no room to leave.
    UnsentAnswer = "unsent.answer",

    /// Immediates handed to readers.
    Immediates = "immediates",
    /// Queue pairs that fell into ERROR.
    QueuePairErrors = "queue_pair_errors",
}

impl Counter {
    /// Whether this counts packets that were received and are done with.
    pub fn is_fate(self) -> bool {
        ["executed.", "duplicate.", "dropped."].iter().any(|prefix| self.name().starts_with(prefix))
    }
}

/// One number per counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts([u64; Counter::ALL.len()]);

impl Default for Counts {
    fn default() -> Self {
        Counts([0; Counter::ALL.len()])
    }
}

impl Counts {
    /// Adds one.
    #[inline(always)]
    pub fn count(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }

    /// Adds `n`.
    #[inline(always)]
    pub fn add(&mut self, counter: Counter, n: u64) {
        self.0[counter as usize] += n;
    }

    /// The number of a counter.
    #[inline(always)]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Sets the number of a counter.
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.0[counter as usize] = value;
    }

    /// Packets received whose fate is not counted: 0 between batches.
    pub fn unfinished(&self) -> u64 {
        let fates: u64 = Counter::ALL.iter().filter(|c| c.is_fate()).map(|&c| self.get(c)).sum();
        self.get(Counter::Received).saturating_sub(fates)
    }

    /// The counters that are not zero, by name.
    pub fn named(&self) -> Vec<(String, u64)> {
        Counter::ALL
            .iter()
            .filter(|&&c| self.get(c) > 0)
            .map(|&c| (c.name().to_owned(), self.get(c)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_short_enough_for_the_counter_file() {
        let mut names: Vec<_> = Counter::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Counter::ALL.len());
        assert!(names.iter().all(|n| n.len() < 48));
    }

    #[test]
    fn every_counter_is_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/counters.md");
        let text = std::fs::read_to_string(path).unwrap();
        for counter in Counter::ALL {
            assert!(text.contains(&format!("| `{}` |", counter.name())), "{}", counter.name());
        }
    }

    #[test]
    fn fates_are_what_a_packet_can_come_to() {
        assert!(Counter::DroppedIcrc.is_fate() && Counter::ExecutedWrite.is_fate());
        assert!(
            !Counter::Received.is_fate() && !Counter::SentAck.is_fate() && !Counter::Immediates.is_fate()
        );
    }
}

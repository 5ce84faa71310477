//! A reporter's own counters, and what its translator counts of it.

use super::{CounterKind, CounterTable, Fault, LinkLoss, Values, Variable, table, values};

const FAULT: Variable = Variable { word: "FAULT", values: Values::Of(Fault::VALUES) };
const LOSS: Variable = Variable { word: "REASON", values: Values::Of(LinkLoss::UNSENT) };

pub(super) static OWN_TABLES: &[&CounterTable] = &[&OWN, &TRACE];
pub(super) static HEARD_TABLES: &[&CounterTable] = &[&HEARD];
pub(super) static AGENT_TABLES: &[&CounterTable] = &[&AGENT];

table! {
    /// A reporter's own counters.
    OWN "reporter" {
        REPORTS: "reports", Reports, In, "reports accepted: they have a sequence number";
        REFUSED: "refused", Reports, Beside,
            "reports that the format cannot express; they have no sequence number";
        RETRANSMITTED: "retransmitted", Reports, Beside, "reports retransmitted because a NACK asked for them";
        PENDING: "pending", Reports, Held, "reports in the batch that is being filled" .with_kind(CounterKind::Now);
        NACKS: "nacks", Nacks, Beside, "NACKs taken";
        NACKED: "nacked", Sequences, Beside,
            "sequences that NACKs asked for: `retransmitted + nack-unavailable + nack-refused`";
        NACK_UNAVAILABLE: "nack-unavailable", Sequences, Beside, "asked for, but never kept or no longer kept";
        NACK_REFUSED: "nack-refused", Sequences, Beside,
            "asked for, but over a limit: 8 retransmissions per report, 20,000 per second (2,048 at once), 4,096 sequences looked up per poll";
        NACK_MALFORMED: "nack-malformed", Datagrams, Beside, "datagrams that are not NACKs of this version";
        NACK_FOREIGN: "nack-foreign", Nacks, Beside,
            "NACKs for another reporter, or not from the translator's address and port";
        FAULTS: "fault.FAULT", Packets, Beside, "reports that the fault injector changed, dropped, doubled or delayed"
            .with_variables(&[FAULT]);
        FAULT_HELD: "fault.held", Packets, Beside, "packets that the fault injector is delaying"
            .with_kind(CounterKind::Now);
        SENT: "sent", Packets, Beside, "datagrams handed to the kernel: one for each report that left";
        UNSENT: "dropped.reporter.REASON", Packets, Dropped, "reports that did not leave"
            .with_variables(&[LOSS]);
    }
}

const AGENT_LOSS: Variable = Variable { word: "REASON", values: Values::Of(AgentLoss::VALUES) };

values! {
    /// Why a packet seen at a point was not reported: `dropped.agent.REASON`.
    AgentLoss {
        RingFull = "ring-full", "the ring between kernel and agent was full";
        NotIp = "not-ip", "neither IPv4 nor IPv6";
        Unreadable = "unreadable", "a header where the kernel's program cannot read";
        Missed = "missed", "the kernel skipped the program because it was already running on this processor; not in `trace.seen`";
        UnknownPoint = "unknown-point", "a record of a point that the agent does not have (any longer)";
        Repeat = "repeat",
            "the packet was already seen at that point on another interface: a tracepoint fires for each device on the path";
        SharedDigest = "shared-digest",
            "a packet with this digest was already seen at that point and interface and is not reported yet: an identical one, or the same one in a loop";
        NoStore = "no-store", "the collector has no store for this";
    }
}

table! {
    /// A tracing agent's further counters.
    TRACE "reporter, trace" {
        SEEN: "trace.seen", Packets, In,
            "packets seen at a point, once per point: `trace.reported + trace.filtered + trace.sampled-out + trace.own` and those dropped as `ring-full`, `not-ip` and `unreadable`";
        REPORTED: "trace.reported", Packets, Beside, "of these, those that the kernel passed up as records";
        FILTERED: "trace.filtered", Packets, Beside, "of these, those that the filter excludes";
        SAMPLED_OUT: "trace.sampled-out", Packets, Beside, "of these, those that sampling excludes";
        OWN_REPORTS: "trace.own", Packets, Beside,
            "of these, DTA's own traffic, which is excluded: to and from the translator, RoCEv2 to and from its address, and ICMP errors about these";
        FLOWS_FULL: "trace.flows-full", Packets, Beside,
            "packets not counted for their flow because the kernel's flow table was full";
        RECORDS: "trace.records", Packets, Beside, "records that the agent read";
        TRACED: "trace.packets", Packets, Beside, "packets reported, each with all of its points";
        HELD_PACKETS: "trace.held", Packets, Beside, "packets waiting to be seen at more points" .with_kind(CounterKind::Now);
        EARLY: "trace.early", Packets, Beside,
            "packets reported early because another one needed the place; later sightings are reported too";
        DROPS: "trace.drops", Packets, Beside, "records of dropped packets";
        SLOW: "trace.slow", Packets, Beside, "packets that took longer than the threshold";
        PARTIAL: "trace.partial", Packets, Beside,
            "records whose digest may differ from other points' because the payload lay where the kernel's program cannot read";
        SEGMENTS: "trace.segments", Packets, Beside,
            "records of buffers with several packets (GSO, GRO), which another host sees one by one";
        AGENT_DROPPED: "dropped.agent.REASON", Packets, Dropped, "packets seen at a point of an agent but not reported"
            .with_variables(&[AGENT_LOSS]);
    }
}

const BOOKS_LOSS: Variable = Variable { word: "REASON", values: Values::Of(BooksLoss::VALUES) };

values! {
    /// Why a packet at a point of a host is in no trace: `dropped.REASON`, as the collector reads it from the
    /// agent's stores.
    BooksLoss {
        RingFull = "ring-full", "the ring between kernel and agent was full";
        Refused = "refused", "neither IPv4 nor IPv6, or a header where the kernel's program cannot read";
    }
}

table! {
    /// Counters that a tracing agent writes to its stores.
    AGENT "agent" {
        BOOKS_SEEN: "seen", Packets, In,
            "packets seen at a point of a host, once per point: `reported + left-out` and those dropped as `ring-full` and `refused`";
        BOOKS_REPORTED: "reported", Packets, Accepted, "packets at a point that the kernel passed up to the agent";
        BOOKS_LEFT_OUT: "left-out", Packets, Superseded,
            "packets at a point that filter or sampling exclude, or that are DTA's own traffic";
        BOOKS_DROPPED: "dropped.REASON", Packets, Dropped, "packets at a point of a host that are in no trace"
            .with_variables(&[BOOKS_LOSS]);
    }
}

table! {
    /// A translator's counters for a reporter.
    HEARD "reporter, heard" {
        RECEIVED: "received", Reports, In, "reports of a reporter, decoded";
        GAPS: "gaps", Sequences, Beside, "sequences of a reporter that were skipped";
        GAPS_FILLED: "gaps_filled", Sequences, Beside,
            "skipped sequences of a reporter that arrived later; `gaps - gaps_filled` are missing";
        DUPLICATES: "duplicates", Reports, Beside, "reports of a reporter with a sequence already seen";
        OUT_OF_WINDOW: "out_of_window", Reports, Beside, "reports 1,024 or more behind or ahead of the newest of their reporter";
        RESTARTS: "restarts", Times, Beside, "times that a reporter's sequence restarted";
        HEARD_NACKS: "nacks", Nacks, Beside, "NACKs sent to a reporter";
        NEWEST: "newest", Sequences, Beside, "the newest sequence heard: a position, not a count"
            .with_kind(CounterKind::Position) .as_detail();
    }
}

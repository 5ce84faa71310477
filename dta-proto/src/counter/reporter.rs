//! What a reporter counts of itself, and what its translator counts of it.

use super::{Fault, Kind, LinkLoss, Table, Values, Variable, table, values};

const FAULT: Variable = Variable { word: "FAULT", values: Values::Of(Fault::VALUES) };
const LOSS: Variable = Variable { word: "REASON", values: Values::Of(LinkLoss::UNSENT) };

pub(super) static OWN_TABLES: &[&Table] = &[&OWN, &TRACE];
pub(super) static HEARD_TABLES: &[&Table] = &[&HEARD];
pub(super) static AGENT_TABLES: &[&Table] = &[&AGENT];

table! {
    /// What a reporter counts of itself.
    OWN "reporter" {
        REPORTS: "reports", Reports, In, "reports taken: they have a sequence number";
        REFUSED: "refused", Reports, Beside,
            "reports that the format cannot say; they have no sequence number";
        RETRANSMITTED: "retransmitted", Reports, Beside, "reports sent again because a NACK asked for them";
        PENDING: "pending", Reports, Held, "reports in the batch that is being filled" .kind(Kind::Now);
        NACKS: "nacks", Nacks, Beside, "NACKs taken";
        NACKED: "nacked", Sequences, Beside,
            "sequences that they asked for: `retransmitted + nack-unavailable + nack-refused`";
        NACK_UNAVAILABLE: "nack-unavailable", Sequences, Beside, "asked for, and never kept or no longer";
        NACK_REFUSED: "nack-refused", Sequences, Beside,
            "asked for, and not sent again: a report is sent again 8 times at most, 20,000 reports are in a second (2,048 at once), and 4,096 sequences are looked for in one poll";
        NACK_MALFORMED: "nack-malformed", Datagrams, Beside, "datagrams that are no NACK of this version";
        NACK_FOREIGN: "nack-foreign", Nacks, Beside,
            "NACKs for another reporter, or not from the address and port that reports go to";
        FAULTS: "fault.FAULT", Packets, Beside, "reports to which the fault injector did something"
            .with(&[FAULT]);
        FAULT_HELD: "fault.held", Packets, Beside, "packets that the injector holds back, to send them late"
            .kind(Kind::Now);
        SENT: "sent", Packets, Beside, "datagrams that the kernel took: one for each report that left";
        UNSENT: "dropped.reporter.REASON", Packets, Dropped, "reports that did not leave"
            .with(&[LOSS]);
    }
}

const AGENT_LOSS: Variable = Variable { word: "REASON", values: Values::Of(AgentLoss::VALUES) };

values! {
    /// Why what a point saw was not told: `dropped.agent.REASON`.
    AgentLoss {
        RingFull = "ring-full", "the ring between kernel and agent was full";
        NotIp = "not-ip", "neither IPv4 nor IPv6";
        Unreadable = "unreadable", "a header lies where the kernel's program cannot read";
        Missed = "missed", "not in `trace.seen`: the kernel did not run the program, as it interrupted itself on this processor";
        UnknownPoint = "unknown-point", "a record of a point that the agent does not have (any more)";
        Repeat = "repeat",
            "the packet was at that point already, at another interface: a tracepoint fires for each device on its way";
        SharedDigest = "shared-digest",
            "a packet with this digest was at that point and interface already, and is not told yet: one that repeats the other's bytes (or the same one, in a loop)";
        NoStore = "no-store", "the collector has no store for it";
    }
}

table! {
    /// What an agent that traces counts beside.
    TRACE "reporter, trace" {
        SEEN: "trace.seen", Packets, In,
            "packets that came to a point, once for each point: `trace.reported + trace.filtered + trace.sampled-out + trace.own` and those dropped as `ring-full`, `not-ip` and `unreadable`";
        REPORTED: "trace.reported", Packets, Beside, "of them, those that the kernel handed up as records";
        FILTERED: "trace.filtered", Packets, Beside, "of them, those that the filter does not choose";
        SAMPLED_OUT: "trace.sampled-out", Packets, Beside, "of them, those that the rate of sampling leaves out";
        OWN_REPORTS: "trace.own", Packets, Beside,
            "of them, those that are left out because they come of reports: to and from the translator, RoCEv2 to and from its address, and ICMP errors about these";
        FLOWS_FULL: "trace.flows-full", Packets, Beside,
            "packets that were not counted for their flow, as the kernel's table of flows was full";
        RECORDS: "trace.records", Packets, Beside, "records that the agent took";
        TRACED: "trace.packets", Packets, Beside, "packets that were told, each with all of its points";
        HELD_PACKETS: "trace.held", Packets, Beside, "packets of which more may be seen" .kind(Kind::Now);
        EARLY: "trace.early", Packets, Beside,
            "packets that were told before their time, as another one needed the place; what is seen of them later is told, too";
        DROPS: "trace.drops", Packets, Beside, "records of dropped packets";
        SLOW: "trace.slow", Packets, Beside, "packets that took longer than the threshold";
        PARTIAL: "trace.partial", Packets, Beside,
            "records whose digest may differ from that of other points, as payload lay where the kernel's program cannot read";
        SEGMENTS: "trace.segments", Packets, Beside,
            "records of buffers that carry several packets (GSO, GRO), which another host sees one by one";
        AGENT_DROPPED: "dropped.agent.REASON", Packets, Dropped, "packets that a point of an agent saw and the agent did not report"
            .with(&[AGENT_LOSS]);
    }
}

const BOOKS_LOSS: Variable = Variable { word: "REASON", values: Values::Of(BooksLoss::VALUES) };

values! {
    /// Why a packet at a point of a host is in no trace: `dropped.REASON` of the books that the collector reads.
    BooksLoss {
        RingFull = "ring-full", "the ring between kernel and agent was full";
        Refused = "refused", "neither IPv4 nor IPv6, or a header lies where the kernel's program cannot read";
    }
}

table! {
    /// What an agent that traces says of itself in its stores.
    AGENT "agent" {
        BOOKS_SEEN: "seen", Packets, In,
            "packets that came to a point of a host, once for each point: `reported + left-out` and those dropped as `ring-full` and `refused`";
        BOOKS_REPORTED: "reported", Packets, Accepted, "packets at a point that the kernel handed up to the agent";
        BOOKS_LEFT_OUT: "left-out", Packets, Superseded,
            "packets at a point that nobody asked for: the filter or the rate of sampling leaves them out, or they come of reports";
        BOOKS_DROPPED: "dropped.REASON", Packets, Dropped, "packets at a point of a host that are in no trace"
            .with(&[BOOKS_LOSS]);
    }
}

table! {
    /// What a translator counts of a reporter.
    HEARD "reporter, heard" {
        RECEIVED: "received", Reports, In, "reports of a reporter that could be decoded";
        GAPS: "gaps", Sequences, Beside, "sequences of a reporter skipped when a later one came";
        GAPS_FILLED: "gaps_filled", Sequences, Beside,
            "skipped sequences of a reporter that came after all; `gaps - gaps_filled` are missing";
        DUPLICATES: "duplicates", Reports, Beside, "reports of a reporter whose sequence had been seen";
        OUT_OF_WINDOW: "out_of_window", Reports, Beside, "reports 1,024 or more behind the newest of their reporter";
        RESTARTS: "restarts", Times, Beside, "times that a reporter's sequence began anew";
        HEARD_NACKS: "nacks", Nacks, Beside, "NACKs sent to a reporter";
        NEWEST: "newest", Sequences, Beside, "the newest sequence heard: the one number here that is no count"
            .kind(Kind::Position) .detail();
    }
}

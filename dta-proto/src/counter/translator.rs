//! What a translator counts.

use super::{
    Discard, Fault, IntReason, Kind, LinkLoss, LossCause, Reason, Table, Value, Values, Variable, ring, table,
};
use crate::queue_pair::Purpose;
use crate::telemetry::Metric;
use crate::wire::dta::Primitive;

/// The tables, in the order of the document.
pub(super) static TABLES: &[&Table] =
    &[&OWN, &OF_PRIMITIVE, &NOT_ACCEPTED, &KNOWN_LOST, &QUEUE_PAIR, &LINKS, &ring::RING, &INT];

const PRIMITIVES: [Value; Primitive::ALL.len()] = {
    let mut names = [Value::plain(""); Primitive::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Value::plain(Primitive::ALL[at].name());
        at += 1;
    }
    names
};
const PURPOSES: [Value; 2] = [Value::plain(Purpose::ALL[0].name()), Value::plain(Purpose::ALL[1].name())];

const PRIMITIVE: Variable = Variable { word: "PRIMITIVE", values: Values::Of(&PRIMITIVES) };
const STORE: Variable = Variable { word: "STORE", values: Values::Any };
const REASON: Variable = Variable { word: "REASON", values: Values::Of(Reason::VALUES) };
const DISCARD: Variable = Variable { word: "REASON", values: Values::Of(Discard::VALUES) };
const CAUSE: Variable = Variable { word: "CAUSE", values: Values::Of(LossCause::VALUES) };
const METRICS: [Value; Metric::ALL.len()] = {
    let mut names = [Value::plain(""); Metric::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = Value::plain(Metric::ALL[at].name());
        at += 1;
    }
    names
};
const METRIC: Variable = Variable { word: "METRIC", values: Values::Of(&METRICS) };
const SOURCE: Variable = Variable { word: "SOURCE", values: Values::Any };
const INT_REASON: Variable = Variable { word: "REASON", values: Values::Of(IntReason::VALUES) };
const COLLECTOR: Variable = Variable { word: "COLLECTOR", values: Values::Number };
const PURPOSE: Variable = Variable { word: "PURPOSE", values: Values::Of(&PURPOSES) };
const LINK: Variable = Variable {
    word: "LINK",
    values: Values::Of(&[Value::plain(REPORTS), Value::plain(ROCE), Value::plain(INT_LINK)]),
};
const LOSS: Variable = Variable { word: "REASON", values: Values::Of(LinkLoss::VALUES) };
const FAULTY: Variable = Variable {
    word: "LINK",
    values: Values::Of(&[Value::plain(ROCE), Value::plain(NACK), Value::plain(ANSWERS)]),
};
const FAULT: Variable = Variable { word: "FAULT", values: Values::Of(Fault::VALUES) };

/// The link that reports come in by, and NACKs leave by.
pub const REPORTS: &str = "reports";
/// The links of all listeners for INT, in sum.
pub const INT_LINK: &str = "int";
/// The link that frames leave by, and answers come in by; the faults on frames.
pub const ROCE: &str = "roce";
/// The faults on NACKs.
pub const NACK: &str = "nack";
/// The faults on answers as they come in.
pub const ANSWERS: &str = "answers";

table! {
    /// What a translator counts of all its reports and frames.
    OWN "translator" {
        RECEIVED: "received", Reports, In, "datagrams taken as reports";
        ACCEPTED: "accepted", Reports, Accepted, "reports that passed every check";
        EMITTED: "emitted", Reports, Emitted,
            "reports made into RDMA operations, which may still be lost on the way (`lost`)";
        HELD: "held", Reports, Held,
            "reports that wait: in a batch that is not full, a path with hops missing, a column with reporters missing"
            .kind(Kind::Held { becomes: &HELD_AT_RESTART });
        SUPERSEDED: "superseded", Reports, Superseded,
            "reports replaced in the translator before they left: a hop's value by a newer one of the same hop, a column by one of a later epoch in its place of the ring";
        DISCARDED: "discarded.REASON", Reports, Discarded, "accepted reports thrown away before they left"
            .with(&[DISCARD]);
        HELD_AT_RESTART: "discarded.held_at_restart", Reports, Discarded,
            "reports that were still `held` in the last counters that an earlier run of this translator handed in; the collector counts them";
        OPERATIONS: "operations", Operations, Operations, "RDMA writes and FETCH_ADDs made, every copy";
        LOST: "lost", Reports, Lost, "emitted reports that are known to be lost, `lost.CAUSE` in sum";
        LOST_OPERATIONS: "lost_operations", Operations, Lost, "operations that are known to be lost"
            .detail();
        FRAMES: "frames", Frames, Frames,
            "frames given to the link, those that were sent again and idle ones included";
        IDLE_FRAMES: "idle_frames", Frames, Frames,
            "frames that were zero-length WRITEs in the place of operations on RC whose store is gone";
        REPEATED_FRAMES: "repeated_frames", Frames, Frames,
            "frames of batches of lists that were sent again on UC, because their collector was started again or made its queue pairs anew and may not have had them";
        STORE_FRAMES: "store.STORE.frames", Frames, Beside,
            "frames into the memory of one store; the dashboard's write rates are made of it"
            .with(&[STORE]);
        NACKS: "nacks", Nacks, Beside, "NACK datagrams sent";
        NACKED_SEQUENCES: "nacked_sequences", Sequences, Beside, "sequences asked for in NACKs";
        NACKS_WITHHELD: "nacks_withheld", Nacks, Beside,
            "NACK datagrams not sent: their reporter had had 10,000 in a second, or (version 0) what `version0_nacks` allows, which is none unless it is set";
        REPORTERS_EVICTED: "reporters_evicted", Times, Beside,
            "times that a reporter that had been idle for 30 s gave its place to another (`limits.reporters`)";
        REPORTERS_HEARD_ONCE: "reporters_heard_once", Times, Beside,
            "times that a reporter of which a single report was heard gave its place to another";
        VERSION0_GAPS: "version0_gaps", Sequences, Beside,
            "sequences that version-0 reporters skipped, as far as their retransmittable reports tell";
        PARTIAL_ROWS: "partial_rows", Rows, Beside,
            "postcard rows sent with hops missing: they waited longer than the flush time, or another key needed their place";
        JOINED_POSTCARDS: "joined_postcards", Reports, Beside,
            "postcards that came after their path had left with hops missing, or of a path that lost others on the way, and were put together with what had left: what was written then is the whole path";
        IMMEDIATE_IGNORED: "immediate_ignored", Reports, Beside,
            "accepted reports that asked to wake a reader (the immediate flag), but are for a store that wakes none: any but a list store with `notify`. They were taken as all others, and a reader finds them when it looks";
        ANSWERS_IGNORED: "answers_ignored", Packets, Beside,
            "RoCEv2 packets that were no ACK or NAK of a queue pair of ours, or damaged";
    }
}

table! {
    /// The same of one primitive.
    OF_PRIMITIVE "translator, of one primitive" {
        OF_RECEIVED: "PRIMITIVE.received", Reports, In, "reports decoded as this primitive"
            .with(&[PRIMITIVE]) .detail();
        OF_ACCEPTED: "PRIMITIVE.accepted", Reports, Accepted, "reports of this primitive that passed every check"
            .with(&[PRIMITIVE]) .detail();
        OF_EMITTED: "PRIMITIVE.emitted", Reports, Emitted,
            "reports of this primitive made into RDMA operations" .with(&[PRIMITIVE]) .detail();
        OF_HELD: "PRIMITIVE.held", Reports, Held, "reports of this primitive that wait"
            .kind(Kind::Held { becomes: &OF_HELD_AT_RESTART }) .with(&[PRIMITIVE]) .detail();
        OF_HELD_AT_RESTART: "PRIMITIVE.discarded.held_at_restart", Reports, Discarded,
            "reports of this primitive that were still held in the last counters that an earlier run of the translator handed in" .with(&[PRIMITIVE]) .detail();
        OF_SUPERSEDED: "PRIMITIVE.superseded", Reports, Superseded,
            "reports of this primitive replaced before they left"
            .with(&[PRIMITIVE]) .detail();
        OF_OPERATIONS: "PRIMITIVE.operations", Operations, Operations,
            "RDMA writes or FETCH_ADDs made of this primitive, every copy"
            .with(&[PRIMITIVE]) .detail();
        OF_COALESCED: "PRIMITIVE.coalesced", Reports, Beside,
            "increments that went into another's FETCH_ADD" .with(&[PRIMITIVE]) .detail();
        OF_LOST: "PRIMITIVE.lost", Reports, Lost, "emitted reports of this primitive that are known to be lost"
            .with(&[PRIMITIVE]) .detail();
        OF_LOST_OPERATIONS: "PRIMITIVE.lost_operations", Operations, Lost,
            "operations of this primitive that are known to be lost" .with(&[PRIMITIVE]) .detail();
    }
}

table! {
    /// Why reports were not accepted.
    NOT_ACCEPTED "translator, not accepted" {
        DROPPED: "dropped.REASON", Reports, Dropped, "reports that were not accepted" .with(&[REASON]);
    }
}

table! {
    /// Why emitted reports are known to be lost.
    KNOWN_LOST "translator, lost" {
        LOST_BY: "lost.CAUSE", Reports, Lost, "emitted reports that are known to be lost" .with(&[CAUSE]);
        LOST_OPERATIONS_BY: "lost_operations.CAUSE", Operations, Lost, "operations that are known to be lost, by the causes of `lost.CAUSE`"
            .with(&[CAUSE]) .detail();
    }
}

table! {
    /// What a queue pair of a translator counts.
    QUEUE_PAIR "translator, queue pairs" {
        PAIR_SENT: "queue_pair.[COLLECTOR.]PURPOSE.sent", Operations, Beside, "operations sent on a queue pair, each once"
            .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_RETRANSMITTED: "queue_pair.[COLLECTOR.]PURPOSE.retransmitted", Frames, Beside,
            "frames sent again on a queue pair (RC)" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_ACKNOWLEDGED: "queue_pair.[COLLECTOR.]PURPOSE.acknowledged", Operations, Beside,
            "operations that the NIC acknowledged on a queue pair (RC)" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_OUTSTANDING: "queue_pair.[COLLECTOR.]PURPOSE.outstanding", Operations, Beside,
            "operations that were sent on a queue pair and are not acknowledged"
            .kind(Kind::Now) .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_WAITING: "queue_pair.[COLLECTOR.]PURPOSE.waiting", Operations, Beside,
            "operations that wait to be sent on a queue pair" .kind(Kind::Now) .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_ANSWERS: "queue_pair.[COLLECTOR.]PURPOSE.answers", Answers, Beside, "ACKs and NAKs received on a queue pair"
            .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_STALE_ANSWERS: "queue_pair.[COLLECTOR.]PURPOSE.stale_answers", Answers, Beside,
            "ACKs and NAKs that said nothing new: repeats, or too late" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_NAK_SEQUENCE: "queue_pair.[COLLECTOR.]PURPOSE.nak_sequence", Answers, Beside,
            "NAKs received because frames before one are missing" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_RECEIVER_NOT_READY: "queue_pair.[COLLECTOR.]PURPOSE.receiver_not_ready", Answers, Beside,
            "NAKs received because the receiver was not ready" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_NAK_ERROR: "queue_pair.[COLLECTOR.]PURPOSE.nak_error", Answers, Beside,
            "NAKs received because an operation was refused, which ended the queue pair" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_GO_BACKS: "queue_pair.[COLLECTOR.]PURPOSE.go_backs", Times, Beside,
            "times that a queue pair went back to send again" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_TIMEOUTS: "queue_pair.[COLLECTOR.]PURPOSE.timeouts", Times, Beside,
            "times that a queue pair went back to send again because no answer came in time" .with(&[COLLECTOR, PURPOSE]) .detail();
        PAIR_REPLACED: "queue_pair.[COLLECTOR.]PURPOSE.replaced", Times, Beside,
            "times that another queue pair took the place of one" .with(&[COLLECTOR, PURPOSE]) .detail();
    }
}

table! {
    /// What a translator's links and fault injectors count.
    LINKS "translator, links" {
        LINK_RECEIVED: "link.LINK.received", Packets, Beside, "packets received on a link: reports, answers"
            .with(&[LINK]) .detail();
        LINK_SENT: "link.LINK.sent", Packets, Beside, "packets sent on a link: NACKs, frames"
            .with(&[LINK]) .detail();
        LINK_DROPPED: "link.LINK.dropped.REASON", Packets, Beside, "packets lost in a link"
            .with(&[LINK, LOSS]);
        FAULTS_FRAMES: "faults.LINK.frames", Packets, Beside, "packets handed to the fault injector"
            .with(&[FAULTY]);
        FAULTS: "faults.LINK.FAULT", Packets, Beside, "packets to which the fault injector did something"
            .with(&[FAULTY, FAULT]);
    }
}

table! {
    /// What a translator counts of Telemetry Reports of INT, before they are primitives.
    INT "translator, INT" {
        INT_DATAGRAMS: "int.datagrams", Datagrams, Beside, "datagrams taken as Telemetry Reports";
        INT_REPORTS: "int.reports", Reports, Beside,
            "Telemetry Reports received: v2.0 has several in one datagram; a datagram that cannot be read counts as one. `int.reports = int.dropped.* + int.not_watched + int.unchanged + int.changed`";
        INT_DROPPED: "int.dropped.REASON", Reports, Beside, "Telemetry Reports that were not taken" .with(&[INT_REASON]);
        INT_NOT_WATCHED: "int.not_watched", Reports, Beside, "Telemetry Reports of flows that are not on the watchlist";
        INT_UNCHANGED: "int.unchanged", Reports, Beside,
            "Telemetry Reports in which nothing had changed: at most the count of their flow was raised";
        INT_CHANGED: "int.changed", Reports, Beside, "Telemetry Reports of which values, events or counts of drops were made";
        INT_PRIMITIVES: "int.primitives", Reports, Beside,
            "key-writes, entries, increments and postcards made of Telemetry Reports. Each is one of `received` from here on";
        INT_EVENTS: "int.events", Reports, Beside, "entries of the event lists made of Telemetry Reports" .detail();
        INT_SUPERSEDED: "int.superseded", Times, Beside,
            "values that were not written, as a later one of the same key came in the same batch. What they make known as events is told all the same"
            .detail();
        INT_SUPPRESSED: "int.suppressed.METRIC", Times, Beside,
            "values that were not told: they are as the one told last" .with(&[METRIC]) .detail();
        INT_COUNTS_HELD: "int.counts_held", Reports, Beside,
            "Telemetry Reports that are added up in the count of their flow, which is not written yet: it waits for `count_wait_ms`" .kind(Kind::Now);
        INT_COUNTS_EARLY: "int.counts_early", Reports, Beside,
            "Telemetry Reports whose count was written before its time, as another flow took its place" .detail();
        INT_XD: "int.xd", Reports, Beside,
            "Telemetry Reports of INT-XD: one switch reports for itself on a tracked flow. Such a flow has a path, put together of its switches, and no latency through all hops";
        INT_MX: "int.mx", Reports, Beside,
            "Telemetry Reports of INT-MX: one switch reports for itself, as instructions in the packet ask. Path and latency are as with `int.xd`";
        INT_LONG_TRAILS: "int.long_trails", Times, Beside,
            "times that a switch reported a flow that six others had reported before: it is not put on the flow's path";
        INT_GAPS: "int.gaps", Sequences, Beside, "datagrams missing by the sequence numbers of switches";
        INT_GAPS_FILLED: "int.gaps_filled", Sequences, Beside,
            "missing datagrams of switches that came after all; `int.gaps - int.gaps_filled` are lost";
        INT_GAPS_OF: "int.gaps_of.SOURCE", Sequences, Beside,
            "datagrams missing of one switch, named `SWITCH/PART`, or of one that does not say its number, as `ADDRESS/PART`: of the 32 with most"
            .with(&[SOURCE]) .detail();
        INT_GAPS_FILLED_OF: "int.gaps_filled_of.SOURCE", Sequences, Beside, "missing datagrams of one switch that came after all"
            .with(&[SOURCE]) .detail();
        INT_REPEATS: "int.repeats", Datagrams, Beside,
            "datagrams of switches whose number had been seen. They are taken nevertheless: some senders do not count";
        INT_RESTARTS: "int.restarts", Times, Beside, "times that a switch began its numbers anew";
        INT_SOURCES: "int.sources", Times, Beside, "switches, and parts of them that number by themselves, heard of"
            .kind(Kind::Now);
        INT_SOURCES_BEYOND: "int.sources_beyond", Datagrams, Beside,
            "datagrams of switches that there was no more room for: their numbers are not looked at";
        INT_KEYS: "int.keys", Keys, Beside, "keys of which it is remembered what was told" .kind(Kind::Now);
        INT_EVICTED: "int.evicted", Keys, Beside,
            "keys that lost their places to others. When they come again they are new: an event too many, never one too few";
    }
}

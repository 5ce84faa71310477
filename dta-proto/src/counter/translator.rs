//! A translator's counters.

use super::{
    CounterKind, CounterTable, Discard, Enterprise, Fault, FlowReason, IntReason, LinkIgnored, LinkLoss,
    LinkXdp, LossCause, Reason, Values, Variable, VariableValue, ring, table,
};
use crate::queue_pair::Purpose;
use crate::telemetry::Metric;
use crate::wire::dta::Primitive;

/// The tables, in the order of the document.
pub(super) static TABLES: &[&CounterTable] =
    &[&OWN, &OF_PRIMITIVE, &NOT_ACCEPTED, &KNOWN_LOST, &QUEUE_PAIR, &LINKS, &ring::RING, &INT, &FLOWS];

const PRIMITIVES: [VariableValue; Primitive::ALL.len()] = {
    let mut names = [VariableValue::without_meaning(""); Primitive::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = VariableValue::without_meaning(Primitive::ALL[at].canonical_name());
        at += 1;
    }
    names
};
const PURPOSES: [VariableValue; 2] = [
    VariableValue::without_meaning(Purpose::ALL[0].name()),
    VariableValue::without_meaning(Purpose::ALL[1].name()),
];

const PRIMITIVE: Variable = Variable { word: "PRIMITIVE", values: Values::Of(&PRIMITIVES) };
const STORE: Variable = Variable { word: "STORE", values: Values::Any };
const REASON: Variable = Variable { word: "REASON", values: Values::Of(Reason::VALUES) };
const DISCARD: Variable = Variable { word: "REASON", values: Values::Of(Discard::VALUES) };
const CAUSE: Variable = Variable { word: "CAUSE", values: Values::Of(LossCause::VALUES) };
const METRICS: [VariableValue; Metric::ALL.len()] = {
    let mut names = [VariableValue::without_meaning(""); Metric::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = VariableValue::without_meaning(Metric::ALL[at].name());
        at += 1;
    }
    names
};
const METRIC: Variable = Variable { word: "METRIC", values: Values::Of(&METRICS) };
const SOURCE: Variable = Variable { word: "SOURCE", values: Values::Any };
const INT_REASON: Variable = Variable { word: "REASON", values: Values::Of(IntReason::VALUES) };
const FLOW_REASON: Variable = Variable { word: "REASON", values: Values::Of(FlowReason::VALUES) };
const ENTERPRISE: Variable = Variable { word: "ENTERPRISE", values: Values::Of(Enterprise::VALUES) };
const COLLECTOR: Variable = Variable { word: "COLLECTOR", values: Values::Number };
const PURPOSE: Variable = Variable { word: "PURPOSE", values: Values::Of(&PURPOSES) };
const LINK: Variable = Variable {
    word: "LINK",
    values: Values::Of(&[
        VariableValue::without_meaning(REPORTS),
        VariableValue::without_meaning(ROCE),
        VariableValue::without_meaning(INT_LINK),
        VariableValue::without_meaning(FLOWS_LINK),
    ]),
};
const LOSS: Variable = Variable { word: "REASON", values: Values::Of(LinkLoss::VALUES) };
const IGNORED: Variable = Variable { word: "REASON", values: Values::Of(LinkIgnored::VALUES) };
const XDP: Variable = Variable { word: "WHAT", values: Values::Of(LinkXdp::VALUES) };
const FAULTY: Variable = Variable {
    word: "LINK",
    values: Values::Of(&[
        VariableValue::without_meaning(ROCE),
        VariableValue::without_meaning(NACK),
        VariableValue::without_meaning(ANSWERS),
    ]),
};
const FAULT: Variable = Variable { word: "FAULT", values: Values::Of(Fault::VALUES) };

/// The link for incoming reports and outgoing NACKs.
pub const REPORTS: &str = "reports";
/// All INT listeners' links, summed.
pub const INT_LINK: &str = "int";
/// All listeners for flow exports, summed.
pub const FLOWS_LINK: &str = "flows";
/// The link for outgoing frames and incoming answers; faults on frames.
pub const ROCE: &str = "roce";
/// Faults on NACKs.
pub const NACK: &str = "nack";
/// Faults on incoming answers.
pub const ANSWERS: &str = "answers";

table! {
    /// Totals over all reports and frames.
    OWN "translator" {
        RECEIVED: "received", Reports, In, "datagrams received as reports";
        ACCEPTED: "accepted", Reports, Accepted, "reports that passed every check";
        EMITTED: "emitted", Reports, Emitted,
            "reports made into RDMA operations, which may still be lost on the way (`lost`)";
        HELD: "held", Reports, Held,
            "reports waiting: in a batch that is not full, a path with hops missing, a column with reporters missing"
            .with_kind(CounterKind::Held { becomes: &HELD_AT_RESTART });
        SUPERSEDED: "superseded", Reports, Superseded,
            "reports replaced in the translator before they left: a hop's value by a newer one, a column by one of a later epoch in the same ring slot";
        DISCARDED: "discarded.REASON", Reports, Discarded, "accepted reports discarded before they left"
            .with_variables(&[DISCARD]);
        HELD_AT_RESTART: "discarded.held_at_restart", Reports, Discarded,
            "reports still `held` in the last counters of an earlier run of this translator; the collector counts them";
        OPERATIONS: "operations", Operations, Operations, "RDMA writes and FETCH_ADDs made, every copy";
        LOST: "lost", Reports, Lost, "emitted reports that are known to be lost, `lost.CAUSE` in sum";
        LOST_OPERATIONS: "lost_operations", Operations, Lost, "operations that are known to be lost"
            .as_detail();
        FRAMES: "frames", Frames, Frames,
            "frames given to the link, including retransmissions and idle frames";
        IDLE_FRAMES: "idle_frames", Frames, Frames,
            "zero-length WRITEs sent in place of RC operations whose store is gone";
        REPEATED_FRAMES: "repeated_frames", Frames, Frames,
            "frames of list batches resent on UC because their collector restarted or replaced its queue pairs and may have missed them";
        STORE_FRAMES: "store.STORE.frames", Frames, Beside,
            "frames into the memory of one store; the source of the dashboard's write rates"
            .with_variables(&[STORE]);
        NACKS: "nacks", Nacks, Beside, "NACK datagrams sent";
        NACKED_SEQUENCES: "nacked_sequences", Sequences, Beside, "sequences asked for in NACKs";
        NACKS_WITHHELD: "nacks_withheld", Nacks, Beside,
            "NACK datagrams not sent: their reporter had 10,000 in one second, or (version 0) as many as `version0_nacks` allows, which is none by default";
        REPORTERS_EVICTED: "reporters_evicted", Times, Beside,
            "times that a reporter idle for 30 s was evicted for another (`limits.reporters`)";
        REPORTERS_HEARD_ONCE: "reporters_heard_once", Times, Beside,
            "times that a reporter with a single report was evicted for another";
        VERSION0_GAPS: "version0_gaps", Sequences, Beside,
            "sequences skipped by version-0 reporters, as far as their retransmittable reports show";
        PARTIAL_ROWS: "partial_rows", Rows, Beside,
            "postcard rows sent with hops missing: the flush time ran out, or another key needed their place";
        JOINED_POSTCARDS: "joined_postcards", Reports, Beside,
            "postcards of a path already sent with hops missing, merged with what was sent: the row then written has the whole path";
        IMMEDIATE_IGNORED: "immediate_ignored", Reports, Beside,
            "accepted reports with the immediate flag for a store that wakes no reader (any but a list store with `notify`). They are stored as usual, and a reader finds them when it polls";
        ANSWERS_IGNORED: "answers_ignored", Packets, Beside,
            "RoCEv2 packets that were damaged, or not an ACK or NAK for one of our queue pairs";
    }
}

table! {
    /// Totals for one primitive.
    OF_PRIMITIVE "translator, of one primitive" {
        OF_RECEIVED: "PRIMITIVE.received", Reports, In, "reports decoded as this primitive"
            .with_variables(&[PRIMITIVE]) .as_detail();
        OF_ACCEPTED: "PRIMITIVE.accepted", Reports, Accepted, "reports of this primitive that passed every check"
            .with_variables(&[PRIMITIVE]) .as_detail();
        OF_EMITTED: "PRIMITIVE.emitted", Reports, Emitted,
            "reports of this primitive made into RDMA operations" .with_variables(&[PRIMITIVE]) .as_detail();
        OF_HELD: "PRIMITIVE.held", Reports, Held, "reports of this primitive waiting"
            .with_kind(CounterKind::Held { becomes: &OF_HELD_AT_RESTART }) .with_variables(&[PRIMITIVE]) .as_detail();
        OF_HELD_AT_RESTART: "PRIMITIVE.discarded.held_at_restart", Reports, Discarded,
            "reports of this primitive still held in the last counters of an earlier run of the translator" .with_variables(&[PRIMITIVE]) .as_detail();
        OF_SUPERSEDED: "PRIMITIVE.superseded", Reports, Superseded,
            "reports of this primitive replaced before they left"
            .with_variables(&[PRIMITIVE]) .as_detail();
        OF_OPERATIONS: "PRIMITIVE.operations", Operations, Operations,
            "RDMA writes or FETCH_ADDs made of this primitive, every copy"
            .with_variables(&[PRIMITIVE]) .as_detail();
        OF_COALESCED: "PRIMITIVE.coalesced", Reports, Beside,
            "increments merged into another's FETCH_ADD" .with_variables(&[PRIMITIVE]) .as_detail();
        OF_LOST: "PRIMITIVE.lost", Reports, Lost, "emitted reports of this primitive that are known to be lost"
            .with_variables(&[PRIMITIVE]) .as_detail();
        OF_LOST_OPERATIONS: "PRIMITIVE.lost_operations", Operations, Lost,
            "operations of this primitive that are known to be lost" .with_variables(&[PRIMITIVE]) .as_detail();
    }
}

table! {
    /// Why reports were rejected.
    NOT_ACCEPTED "translator, not accepted" {
        DROPPED: "dropped.REASON", Reports, Dropped, "reports rejected" .with_variables(&[REASON]);
    }
}

table! {
    /// Why emitted reports are known to be lost.
    KNOWN_LOST "translator, lost" {
        LOST_BY: "lost.CAUSE", Reports, Lost, "emitted reports that are known to be lost" .with_variables(&[CAUSE]);
        LOST_OPERATIONS_BY: "lost_operations.CAUSE", Operations, Lost, "operations that are known to be lost, by the causes of `lost.CAUSE`"
            .with_variables(&[CAUSE]) .as_detail();
    }
}

table! {
    /// Counters of a translator's queue pair.
    QUEUE_PAIR "translator, queue pairs" {
        PAIR_SENT: "queue_pair.[COLLECTOR.]PURPOSE.sent", Operations, Beside, "operations sent on a queue pair, each once"
            .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_RETRANSMITTED: "queue_pair.[COLLECTOR.]PURPOSE.retransmitted", Frames, Beside,
            "frames retransmitted on a queue pair (RC)" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_ACKNOWLEDGED: "queue_pair.[COLLECTOR.]PURPOSE.acknowledged", Operations, Beside,
            "operations that the NIC acknowledged on a queue pair (RC)" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_OUTSTANDING: "queue_pair.[COLLECTOR.]PURPOSE.outstanding", Operations, Beside,
            "operations sent on a queue pair and not yet acknowledged"
            .with_kind(CounterKind::Now) .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_WAITING: "queue_pair.[COLLECTOR.]PURPOSE.waiting", Operations, Beside,
            "operations waiting to be sent on a queue pair" .with_kind(CounterKind::Now) .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_ANSWERS: "queue_pair.[COLLECTOR.]PURPOSE.answers", Answers, Beside, "ACKs and NAKs received on a queue pair"
            .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_STALE_ANSWERS: "queue_pair.[COLLECTOR.]PURPOSE.stale_answers", Answers, Beside,
            "ACKs and NAKs with nothing new: repeated, or too late" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_NAK_SEQUENCE: "queue_pair.[COLLECTOR.]PURPOSE.nak_sequence", Answers, Beside,
            "NAKs received because earlier frames are missing" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_RECEIVER_NOT_READY: "queue_pair.[COLLECTOR.]PURPOSE.receiver_not_ready", Answers, Beside,
            "NAKs received because the receiver was not ready" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_NAK_ERROR: "queue_pair.[COLLECTOR.]PURPOSE.nak_error", Answers, Beside,
            "NAKs received because an operation was refused, which ended the queue pair" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_GO_BACKS: "queue_pair.[COLLECTOR.]PURPOSE.go_backs", Times, Beside,
            "times that a queue pair went back to retransmit" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_TIMEOUTS: "queue_pair.[COLLECTOR.]PURPOSE.timeouts", Times, Beside,
            "times that a queue pair went back to retransmit because no answer came in time" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
        PAIR_REPLACED: "queue_pair.[COLLECTOR.]PURPOSE.replaced", Times, Beside,
            "times that a queue pair was replaced" .with_variables(&[COLLECTOR, PURPOSE]) .as_detail();
    }
}

table! {
    /// Counters of a translator's links and fault injectors.
    LINKS "translator, links" {
        LINK_RECEIVED: "link.LINK.received", Packets, Beside, "packets received on a link: reports, answers"
            .with_variables(&[LINK]) .as_detail();
        LINK_SENT: "link.LINK.sent", Packets, Beside, "packets sent on a link: NACKs, frames"
            .with_variables(&[LINK]) .as_detail();
        LINK_DROPPED: "link.LINK.dropped.REASON", Packets, Beside, "packets lost in a link"
            .with_variables(&[LINK, LOSS]);
        LINK_IGNORED: "link.LINK.ignored.REASON", Packets, Beside, "frames to a link that it does not take: in a VLAN (`vlan`), of RoCEv1 (`roce_v1`), over IPv6 (`ipv6`)"
            .with_variables(&[LINK, IGNORED]);
        LINK_XDP: "link.LINK.xdp.WHAT", Packets, Beside, "datagrams of a listener at `xdp:INTERFACE`"
            .with_variables(&[LINK, XDP]) .as_detail();
        DEVICE_LOST: "device.lost", Times, Beside, "times that the RDMA device that sends was lost";
        DEVICE_QUEUE_PAIR_ERRORS: "device.queue_pair_errors", Times, Beside,
            "times that a queue pair of the RDMA device that sends failed";
        DEVICE_DOORBELLS: "device.doorbells", Times, Beside,
            "lists of work requests posted to the RDMA device that sends; `link.roce.sent` counts the requests" .as_detail();
        FAULTS_FRAMES: "faults.LINK.frames", Packets, Beside, "packets handed to the fault injector"
            .with_variables(&[FAULTY]);
        FAULTS: "faults.LINK.FAULT", Packets, Beside, "packets that the fault injector changed, dropped, doubled or delayed"
            .with_variables(&[FAULTY, FAULT]);
    }
}

table! {
    /// A translator's counters of INT Telemetry Reports, before they become primitives.
    INT "translator, INT" {
        INT_DATAGRAMS: "int.datagrams", Datagrams, Beside, "datagrams received as Telemetry Reports";
        INT_REPORTS: "int.reports", Reports, Beside,
            "Telemetry Reports received: v2.0 has several in one datagram; an invalid datagram counts as one. `int.reports = int.dropped.* + int.not_watched + int.unchanged + int.changed`";
        INT_DROPPED: "int.dropped.REASON", Reports, Beside, "Telemetry Reports rejected" .with_variables(&[INT_REASON]);
        INT_NOT_WATCHED: "int.not_watched", Reports, Beside, "Telemetry Reports of flows not on the watchlist";
        INT_UNCHANGED: "int.unchanged", Reports, Beside,
            "Telemetry Reports without a change: at most their flow's count was raised";
        INT_CHANGED: "int.changed", Reports, Beside, "Telemetry Reports that led to values, events or drop counts";
        INT_PRIMITIVES: "int.primitives", Reports, Beside,
            "key-writes, entries, increments and postcards made from Telemetry Reports. Each then counts in `received`";
        INT_EVENTS: "int.events", Reports, Beside, "event list entries made from Telemetry Reports and flow records" .as_detail();
        INT_SUPERSEDED: "int.superseded", Times, Beside,
            "values not written because a later one of the same key came in the same batch. Their events are still written"
            .as_detail();
        INT_SUPPRESSED: "int.suppressed.METRIC", Times, Beside,
            "values not written: same as the last one written" .with_variables(&[METRIC]) .as_detail();
        INT_COUNTS_HELD: "int.counts_held", Reports, Beside,
            "Telemetry Reports summed in their flow's count but not written yet, for up to `count_wait_ms`" .with_kind(CounterKind::Now);
        INT_COUNTS_EARLY: "int.counts_early", Reports, Beside,
            "Telemetry Reports whose count was written early because another flow took its place" .as_detail();
        INT_UNREAD: "int.unread", Reports, Beside,
            "Telemetry Reports whose packet has INT that is not read: it is cut short, or the source's words cannot be told from hops (`source-only-words`). The rest of the report counts";
        INT_XD: "int.xd", Reports, Beside,
            "INT-XD Telemetry Reports: one switch reports for itself on a tracked flow. The flow's path is assembled from its switches; there is no end-to-end latency";
        INT_MX: "int.mx", Reports, Beside,
            "INT-MX Telemetry Reports: one switch reports for itself, as instructions in the packet request. Path and latency as with `int.xd`";
        INT_LONG_TRAILS: "int.long_trails", Times, Beside,
            "times that a switch reported a flow already reported by six others: it is left out of the flow's path";
        INT_GAPS: "int.gaps", Sequences, Beside, "datagrams missing according to the switches' sequence numbers";
        INT_GAPS_FILLED: "int.gaps_filled", Sequences, Beside,
            "missing datagrams of switches that arrived later; `int.gaps - int.gaps_filled` are lost";
        INT_GAPS_OF: "int.gaps_of.SOURCE", Sequences, Beside,
            "datagrams missing of one switch, named `SWITCH/PART`, or `ADDRESS/PART` if it does not send its number; the 32 with the most"
            .with_variables(&[SOURCE]) .as_detail();
        INT_GAPS_FILLED_OF: "int.gaps_filled_of.SOURCE", Sequences, Beside, "missing datagrams of one switch that arrived later"
            .with_variables(&[SOURCE]) .as_detail();
        INT_REPEATS: "int.repeats", Datagrams, Beside,
            "datagrams of switches with a number already seen. They are still processed: some senders do not number them";
        INT_RESTARTS: "int.restarts", Times, Beside, "times that a switch restarted its numbering";
        INT_SOURCES: "int.sources", Times, Beside, "switches heard from, or their separately numbering parts"
            .with_kind(CounterKind::Now);
        INT_SOURCES_BEYOND: "int.sources_beyond", Datagrams, Beside,
            "datagrams of switches beyond the table's capacity: their numbers are not checked";
        INT_KEYS: "int.keys", Keys, Beside, "keys whose last written values are remembered" .with_kind(CounterKind::Now);
        INT_EVICTED: "int.evicted", Keys, Beside,
            "keys evicted by others. When seen again they count as new: an extra event, never a missing one";
    }
}

table! {
    /// A translator's counters of flow exports, before they become primitives.
    FLOWS "translator, flows" {
        FLOWS_DATAGRAMS: "flows.datagrams", Datagrams, Beside, "datagrams received as flow exports";
        FLOWS_BYTES: "flows.bytes", Bytes, Beside,
            "bytes of these datagrams. `flows.bytes = flows.read_bytes + flows.unread_bytes.*`";
        FLOWS_READ_BYTES: "flows.read_bytes", Bytes, Beside, "bytes that were read, padding included" .as_detail();
        FLOWS_UNREAD_BYTES: "flows.unread_bytes.REASON", Bytes, Beside, "bytes that were not read"
            .with_variables(&[FLOW_REASON]) .as_detail();
        FLOWS_RECORDS: "flows.records", Reports, Beside,
            "flow records, samples of packets and notices of drops received; a part of a datagram that cannot be read counts as one. `flows.records = flows.dropped.* + flows.not_watched + flows.appended + flows.drops`";
        FLOWS_DROPPED: "flows.dropped.REASON", Reports, Beside, "flow records rejected" .with_variables(&[FLOW_REASON]);
        FLOWS_NOT_WATCHED: "flows.not_watched", Reports, Beside, "notices of drops of flows not on the watchlist";
        FLOWS_APPENDED: "flows.appended", Reports, Beside, "records that became entries of `flow-records`";
        FLOWS_COUNTED: "flows.counted", Reports, Beside,
            "of `flows.appended`, those of flows on the watchlist: their packets and bytes were added to counters, too" .as_detail();
        FLOWS_UNCOUNTED: "flows.uncounted", Reports, Beside,
            "of `flows.appended`, those of flows on the watchlist that were not added to counters: the queue pair had no room" .as_detail();
        FLOWS_SAMPLED: "flows.sampled", Reports, Beside, "of `flows.appended`, those of sampled packets" .as_detail();
        FLOWS_DROPS: "flows.drops", Reports, Beside, "notices of packets that an exporter dropped";
        FLOWS_NAMES: "flows.names", Times, Beside, "names of interfaces read from options data" .as_detail();
        FLOWS_INTERFACES: "flows.interfaces", Times, Beside, "counters of interfaces read from sFlow" .as_detail();
        FLOWS_HOPS: "flows.hops", Times, Beside, "queues and latencies of sampled packets read from sFlow" .as_detail();
        FLOWS_UNUSED: "flows.unused", Times, Beside, "samples of sFlow with nothing that is used: counters of hosts, formats of vendors" .as_detail();
        FLOWS_PRIMITIVES: "flows.primitives", Reports, Beside,
            "increments, entries and key-writes made from these. Each then counts in `received`";
        FLOWS_ENTERPRISE_SETS: "flows.enterprise_sets.ENTERPRISE", Times, Beside,
            "sets of IPFIX whose templates have elements of this vendor and count no flows" .with_variables(&[ENTERPRISE]) .as_detail();
        FLOWS_OPTIONS: "flows.options", Times, Beside, "sampling rates read from options data" .as_detail();
        FLOWS_TEMPLATES: "flows.templates", Times, Beside, "templates held" .with_kind(CounterKind::Now);
        FLOWS_GAPS: "flows.gaps", Sequences, Beside,
            "sequence numbers missing: datagrams of NetFlow v9 and sFlow, records of NetFlow v5 and IPFIX";
        FLOWS_GAPS_FILLED: "flows.gaps_filled", Sequences, Beside,
            "missing sequence numbers that arrived later; `flows.gaps - flows.gaps_filled` are lost";
        FLOWS_GAPS_OF: "flows.gaps_of.SOURCE", Sequences, Beside,
            "sequence numbers missing of one exporter, named `ADDRESS/FORMAT/DOMAIN` (`v5`, `v9`, `ipfix` or `sflow`); the 32 of each worker with the most"
            .with_variables(&[SOURCE]) .as_detail();
        FLOWS_GAPS_FILLED_OF: "flows.gaps_filled_of.SOURCE", Sequences, Beside,
            "missing sequence numbers of one exporter that arrived later" .with_variables(&[SOURCE]) .as_detail();
        FLOWS_REPEATS: "flows.repeats", Datagrams, Beside,
            "datagrams of exporters with a number already seen. They are still processed";
        FLOWS_RESTARTS: "flows.restarts", Times, Beside, "times that an exporter restarted its numbering";
        FLOWS_SOURCES: "flows.sources", Times, Beside, "exporters heard from, by format and domain" .with_kind(CounterKind::Now);
    }
}

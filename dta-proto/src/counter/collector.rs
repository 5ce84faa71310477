//! Counters of the collector's service.

use super::{CounterKind, CounterTable, Values, Variable, VariableValue, table};
use crate::wire::dta::Primitive;

pub(super) static TABLES: &[&CounterTable] = &[&OWN, &EXPORT];

const KIND: Variable = Variable { word: "KIND", values: Values::Of(&KINDS) };

/// The kinds of queries, in the order of tables.
const KINDS: [VariableValue; count_of_kinds()] = {
    let mut kinds = [VariableValue::without_meaning(""); count_of_kinds()];
    let (mut kind, mut at) = (0, 0);
    while at < Primitive::IN_TABLES.len() {
        if let Some(query) = Primitive::IN_TABLES[at].description().query {
            kinds[kind] = VariableValue::without_meaning(query);
            kind += 1;
        }
        at += 1;
    }
    kinds
};

const fn count_of_kinds() -> usize {
    let (mut count, mut at) = (0, 0);
    while at < Primitive::IN_TABLES.len() {
        count += Primitive::IN_TABLES[at].description().query.is_some() as usize;
        at += 1;
    }
    count
}

const SINK: Variable = Variable {
    word: "SINK",
    values: Values::Of(&[
        VariableValue::without_meaning("influx"),
        VariableValue::without_meaning("json"),
        VariableValue::without_meaning("kafka"),
        VariableValue::without_meaning("otlp-host-traces"),
        VariableValue::without_meaning("otlp-logs"),
        VariableValue::without_meaning("otlp-metrics"),
        VariableValue::without_meaning("otlp-traces"),
        VariableValue::without_meaning("remote-write"),
    ]),
};

table! {
    /// The collector's own counters.
    OWN "collector" {
        SESSION_OPENED: "session.opened", Sessions, Beside, "sessions opened under a new name";
        SESSION_RESUMED: "session.resumed", Sessions, Beside, "sessions opened again under their own name";
        SESSION_RENEWED: "session.renewed", Sessions, Beside, "renewals of sessions";
        SESSION_EXPIRED: "session.expired", Sessions, Beside, "sessions that expired";
        SESSION_ENDED: "session.ended", Sessions, Beside,
            "sessions ended by their translator or an operator";
        SESSION_REFUSED: "session.refused", Sessions, Beside, "refused opens and renewals of sessions";
        SESSION_QUEUE_PAIRS_REBUILT: "session.queue_pairs_rebuilt", QueuePairs, Beside,
            "queue pairs replaced during a live session: they were in ERROR, were lost with an earlier collector, or the translator reopened the session and asked for new ones (it restarted, or they did not answer)";
        SESSION_REBUILDS_HELD_BACK: "session.rebuilds_held_back", QueuePairs, Beside,
            "queue pairs that a renewal or an open left in place because they had just been replaced eight times";
        SESSION_STATISTICS_LEFT_OUT: "session.statistics_left_out", Nodes, Beside,
            "nodes handed in by a translator and rejected: a name is invalid, or the node has more than 1,024 counters";
        SESSION_STATISTICS_NO_ROOM: "session.statistics_no_room", Nodes, Beside,
            "times that a node, or some counts of its earlier runs (1,024 names at most), could not be kept for lack of room";
        EPOCHS_SEALED: "epochs.sealed", Epochs, Beside, "epochs of stores that are over and can no longer be written to";
        EPOCHS_WRITTEN: "epochs.written", Epochs, Beside, "epochs that were written to the history";
        EPOCHS_PUT_OFF: "epochs.put_off", Epochs, Beside,
            "ends of epochs that were postponed because the epoch before was not written yet: the open epoch lasted longer instead";
        EPOCHS_LOST: "epochs.lost", Epochs, Beside,
            "epochs that could not be written to the history, and are lost";
        EPOCHS_FAILED: "epochs.failed", Times, Beside,
            "times that an epoch could not be written, or that there was no memory for the next one, which is retried; or that the table of its flows could not be written, which is not";
        EPOCHS_OVERWRITTEN: "epochs.overwritten", Batches, Beside,
            "batches of lists with epochs that were overwritten before they were read: their entries are not in the history";
        EPOCHS_DAMAGED: "epochs.damaged", Times, Beside,
            "damaged places in the logs of histories, each named in the collector's log: what only they record is not found"
            .with_kind(CounterKind::Now);
        UPLOAD_EPOCHS: "upload.epochs", Epochs, Beside,
            "epochs uploaded to object storage (`[history] url`); an epoch of a store and those of its tables of flows, metrics and drops count each";
        UPLOAD_WAITING: "upload.waiting", Epochs, Beside, "epochs in histories that are not in object storage yet" .with_kind(CounterKind::Now);
        UPLOAD_MISSED: "upload.missed", Epochs, Beside,
            "epochs deleted from a history before they were uploaded: object storage was unavailable for longer than they are kept";
        UPLOAD_BYTES: "upload.bytes", Bytes, Beside, "bytes of data files uploaded to object storage";
        UPLOAD_COMMITS: "upload.commits", Times, Beside, "commits of tables in object storage";
        UPLOAD_REMOVED: "upload.removed", Times, Beside, "data files removed from object storage";
        UPLOAD_FAILED: "upload.failed", Times, Beside,
            "times that a history could not be copied to object storage: this is retried";
        INSERT_EPOCHS: "insert.epochs", Epochs, Beside,
            "epochs whose rows were inserted into ClickHouse (`[history.clickhouse]`); an epoch of a store and those of its tables of flows, metrics and drops count each";
        INSERT_WAITING: "insert.waiting", Epochs, Beside, "epochs in histories that ClickHouse does not have yet" .with_kind(CounterKind::Now);
        INSERT_MISSED: "insert.missed", Epochs, Beside,
            "epochs that ClickHouse does not get completely: they were deleted from a history first, merged into a longer epoch while being inserted, or cannot be read";
        INSERT_ROWS: "insert.rows", Rows, Beside, "rows of histories inserted into ClickHouse";
        INSERT_FAILED: "insert.failed", Times, Beside,
            "times that rows of a history could not be inserted into ClickHouse: this is retried";
        QUERY_KEYS: "query.KIND.keys", Keys, Beside, "keys asked for in queries" .with_variables(&[KIND]);
        QUERY_FOUND: "query.KIND.found", Keys, Beside,
            "keys asked for in queries that had an answer: for a counter, a value other than 0; for a sketch, a known one"
            .with_variables(&[KIND]);
        TAIL_ENTRIES: "tail.entries", Entries, Beside,
            "append entries handed to tails, of now and of past epochs; two tails of one list count twice";
        TAIL_WOKEN: "tail.woken", Times, Beside,
            "times the NIC woke a waiting tail (lists marked `notify`); it wakes every waiting tail, whichever list it follows";
        TAIL_OVERWRITTEN: "tail.overwritten", Batches, Beside,
            "batches that a tail skipped: overwritten before it read them";
        TAIL_MISSING: "tail.missing", Batches, Beside, "batches that a tail, of now or of past epochs, skipped: they never arrived";
        TAIL_DAMAGED: "tail.damaged", Batches, Beside,
            "batches that a tail skipped: their bytes stayed invalid";
        CONNECTIONS_ACCEPTED: "connections.accepted", Connections, Beside,
            "gRPC connections that completed TLS (where required) and started HTTP/2";
        CONNECTIONS_REFUSED: "connections.refused", Connections, Beside,
            "gRPC connections refused by `[limits]`: too many in total or from that address";
        CONNECTIONS_SILENT: "connections.silent", Connections, Beside,
            "gRPC connections closed because TLS and the first bytes of HTTP/2 took longer than `handshake_seconds`";
        CONNECTIONS_DISPLACED: "connections.displaced", Connections, Beside,
            "gRPC connections closed to make room for a new one at the limit: first silent ones still within `handshake_seconds`, then those of the address with the most";
        CONNECTIONS_HANDSHAKE_FAILED: "connections.handshake_failed", Connections, Beside,
            "gRPC connections closed because TLS failed or they did not speak HTTP/2";
        CONNECTIONS_ACCEPT_ERRORS: "connections.accept_errors", Times, Beside,
            "errors of the gRPC listener, such as too many open files";
        CONNECTIONS_UNREAD: "connections.unread", Connections, Beside,
            "gRPC connections closed because the client did not read an answer within `call_seconds`, or within 2 s while others with fewer calls waited";
        CALLS_REFUSED: "calls.refused", Times, Beside,
            "gRPC calls refused because 128 calls of their caller or 4,096 in total were waiting, or because there was no room for their message within 10 s";
        CALLS_LATE: "calls.late", Times, Beside,
            "gRPC calls refused because their message did not arrive within 10 s";
        CALLS_DISPLACED: "calls.displaced", Times, Beside,
            "gRPC calls refused because their long message was not processed within 2 s while smaller ones waited for its room";
        WEB_REQUESTS: "web.requests", Times, Beside, "requests to the page and its HTTP interface";
        WEB_REFUSED: "web.refused", Times, Beside,
            "requests to the page refused: made by another site's page, to a host name that is not known here, or without the token";
        WEB_BUSY: "web.busy", Times, Beside,
            "requests to the page refused because four others were being answered for 5 s";
        WEB_MALFORMED: "web.malformed", Connections, Beside,
            "connections to the page closed because what came was no HTTP, or its head was too long";
        WEB_DISPLACED: "web.displaced", Connections, Beside,
            "connections to the page closed to make room for a new one at the limit of 128: first those without a request";
        WEB_UNREAD: "web.unread", Connections, Beside,
            "connections to the page closed because an answer was not read for 10 s";
        WEB_SKIPPED: "web.skipped", Times, Beside,
            "events that live views of the page skipped because their reader was too slow";
        ALERTS_ENTRIES: "alerts.entries", Entries, Beside, "flow records and events that alert rules were evaluated on";
        ALERTS_SKIPPED: "alerts.skipped", Entries, Beside,
            "flow records and events that alert rules did not see because their evaluation was behind: the others stand for them";
        ALERTS_LATE: "alerts.late", Entries, Beside,
            "flow records that came too late for the window of an alert rule; one that is late for several rules counts for each";
        ALERTS_NO_ROOM: "alerts.no_room", Entries, Beside,
            "flow records and events in no group of an alert rule because it had as many groups as it may";
        ALERTS_OVERWRITTEN: "alerts.overwritten", Batches, Beside,
            "batches that were overwritten before alert rules were evaluated on them";
        ALERTS_MISSING: "alerts.missing", Batches, Beside, "batches that alert rules did not see: they never arrived";
        ALERTS_DAMAGED: "alerts.damaged", Batches, Beside, "batches that alert rules did not see: their bytes stayed invalid";
        ALERTS_FIRED: "alerts.fired", Times, Beside, "alerts that fired";
        ALERTS_RESOLVED: "alerts.resolved", Times, Beside, "alerts that were resolved after they had fired";
        ALERTS_LEFT_OUT: "alerts.left_out", Times, Beside,
            "groups for which a condition held without an alert, because its rule had 100 alerts";
        ALERTS_DELIVERED: "alerts.delivered", Times, Beside,
            "alerts that receivers accepted; Alertmanager is sent those that fire once a minute";
        ALERTS_RETRIED: "alerts.retried", Times, Beside, "alerts that are sent again because a receiver did not accept them";
        ALERTS_REJECTED: "alerts.rejected", Times, Beside, "alerts that receivers rejected for good";
        ALERTS_FORGOTTEN: "alerts.forgotten", Times, Beside,
            "transitions of alerts that a webhook was not sent: it was down while 1,000 others came";
    }
}

table! {
    /// Counters of an exporter, the collector's own or one beside it.
    EXPORT "collector, exporters" {
        EXPORT_ENTRIES: "export.SINK.entries", Entries, Beside,
            "entries read from the event lists, those of the key directory included" .with_variables(&[SINK]);
        EXPORT_UNREADABLE: "export.SINK.unreadable", Entries, Beside,
            "entries of the event lists that cannot be decoded: of a newer version, or not written by a translator" .with_variables(&[SINK]);
        EXPORT_OVERWRITTEN: "export.SINK.overwritten", Batches, Beside,
            "batches overwritten before the exporter read them: it was down or too slow for longer than a ring lasts"
            .with_variables(&[SINK]);
        EXPORT_MISSING: "export.SINK.missing", Batches, Beside,
            "batches that never arrived although later ones did" .with_variables(&[SINK]);
        EXPORT_DAMAGED: "export.SINK.damaged", Batches, Beside,
            "batches whose bytes stayed invalid" .with_variables(&[SINK]);
        EXPORT_INTERRUPTED: "export.SINK.interrupted", Times, Beside,
            "times that the exporter could not follow a list because the collector was unreachable" .with_variables(&[SINK]);
        EXPORT_EVENTS: "export.SINK.events", Entries, Beside, "events taken: entries of all lists but the key directory; of `otlp-host-traces`, packets"
            .with_variables(&[SINK]);
        EXPORT_SKIPPED: "export.SINK.skipped", Entries, Beside,
            "events that do not fit the schema, or are no traces by the rule" .with_variables(&[SINK]);
        EXPORT_UNNAMED: "export.SINK.unnamed", Entries, Beside,
            "events whose key did not appear in the key directory within a second: exported with the key in hex"
            .with_variables(&[SINK]);
        EXPORT_WITHOUT_PATH: "export.SINK.without_path", Entries, Beside,
            "changes of a path or flow latency whose path was missing or different when looked up: exported without it; of `otlp-host-traces`, packets some of whose points are unknown"
            .with_variables(&[SINK]);
        EXPORT_FORGOTTEN: "export.SINK.forgotten", Keys, Beside,
            "keys whose meaning was evicted because 262,144 others were used since" .with_variables(&[SINK]);
        EXPORT_WITHOUT_PAGE: "export.SINK.without_page", Times, Beside,
            "times that no metrics were exported, because the collector did not answer" .with_variables(&[SINK]);
        EXPORT_FOUND: "export.SINK.found", Points, Beside, "points in the spool at the start" .with_variables(&[SINK]);
        EXPORT_MADE: "export.SINK.made", Points, Beside,
            "points (or lines) made and put into the spool (or the file)" .with_variables(&[SINK]);
        EXPORT_STATE: "export.SINK.state", Points, Beside,
            "points made from values exported every `state_seconds` rather than from an event" .with_variables(&[SINK]);
        EXPORT_TRAFFIC: "export.SINK.traffic", Points, Beside,
            "points made from the sums of flow records every `traffic_seconds`" .with_variables(&[SINK]);
        EXPORT_DELIVERED: "export.SINK.delivered", Points, Beside, "points that the receiver accepted, or lines written"
            .with_variables(&[SINK]);
        EXPORT_SPOOLED: "export.SINK.spooled", Points, Beside, "points in the spool that the receiver has not accepted yet"
            .with_kind(CounterKind::Now) .with_variables(&[SINK]);
        EXPORT_DROPPED_SPOOL_FULL: "export.SINK.dropped.spool_full", Points, Beside,
            "points dropped because the spool was full: the oldest go first" .with_variables(&[SINK]);
        EXPORT_DROPPED_SPOOL_DAMAGED: "export.SINK.dropped.spool_damaged", Points, Beside,
            "points lost because spool files were damaged or removed" .with_variables(&[SINK]);
        EXPORT_DROPPED_REJECTED: "export.SINK.dropped.rejected", Points, Beside,
            "points that the receiver rejects permanently, such as those older than its retention or with a field of another type" .with_variables(&[SINK]);
        EXPORT_RETRIED: "export.SINK.retried", Times, Beside, "requests to the receiver (or writes to the file) that failed and were retried"
            .with_variables(&[SINK]);
    }
}

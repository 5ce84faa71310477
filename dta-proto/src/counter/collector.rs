//! What the collector's service counts.

use super::{Kind, Table, Value, Values, Variable, table};
use crate::wire::dta::Primitive;

pub(super) static TABLES: &[&Table] = &[&OWN, &EXPORT];

const KIND: Variable = Variable { word: "KIND", values: Values::Of(&KINDS) };

/// The kinds of queries, in the order of tables.
const KINDS: [Value; count_of_kinds()] = {
    let mut kinds = [Value::plain(""); count_of_kinds()];
    let (mut kind, mut at) = (0, 0);
    while at < Primitive::IN_TABLES.len() {
        if let Some(query) = Primitive::IN_TABLES[at].description().query {
            kinds[kind] = Value::plain(query);
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

const SINK: Variable =
    Variable { word: "SINK", values: Values::Of(&[Value::plain("influx"), Value::plain("json")]) };

table! {
    /// What the collector counts itself.
    OWN "collector" {
        SESSION_OPENED: "session.opened", Sessions, Beside, "sessions opened under a new name";
        SESSION_RESUMED: "session.resumed", Sessions, Beside, "sessions opened again under their own name";
        SESSION_RENEWED: "session.renewed", Sessions, Beside, "renewals of sessions";
        SESSION_EXPIRED: "session.expired", Sessions, Beside, "sessions that ran out";
        SESSION_ENDED: "session.ended", Sessions, Beside,
            "sessions ended by their translator or an operator";
        SESSION_REFUSED: "session.refused", Sessions, Beside, "opens and renewals of sessions that were refused";
        SESSION_QUEUE_PAIRS_REBUILT: "session.queue_pairs_rebuilt", QueuePairs, Beside,
            "queue pairs made anew under a living session: they had fallen into ERROR, were lost with an earlier collector, or the translator opened the session again and asked for new ones (it started, or they did not answer)";
        SESSION_REBUILDS_HELD_BACK: "session.rebuilds_held_back", QueuePairs, Beside,
            "queue pairs that a renewal or an open would have made anew and left as they are, because that had happened eight times shortly before";
        SESSION_STATISTICS_LEFT_OUT: "session.statistics_left_out", Nodes, Beside,
            "times that a node that a translator handed in was not kept: a name of it is none, or it has more than 1,024 counters";
        SESSION_STATISTICS_NO_ROOM: "session.statistics_no_room", Nodes, Beside,
            "times that a node was not kept, or not all that its earlier lives counted (1,024 names at most), because there was no room";
        QUERY_KEYS: "query.KIND.keys", Keys, Beside, "keys asked for in queries" .with(&[KIND]);
        QUERY_FOUND: "query.KIND.found", Keys, Beside,
            "keys asked for in queries that had an answer: for a counter, one that is not 0; for a sketch, one that is known"
            .with(&[KIND]);
        TAIL_ENTRIES: "tail.entries", Entries, Beside,
            "append entries handed to tails; two tails of one list count twice";
        TAIL_WOKEN: "tail.woken", Times, Beside,
            "times the NIC woke a tail that waited: lists marked `notify`; it wakes all that wait, whichever list they follow";
        TAIL_OVERWRITTEN: "tail.overwritten", Batches, Beside,
            "batches that a tail passed over: overwritten before it read them";
        TAIL_MISSING: "tail.missing", Batches, Beside, "batches that a tail passed over: they never arrived";
        TAIL_DAMAGED: "tail.damaged", Batches, Beside,
            "batches that a tail passed over: bytes that stayed those of no batch";
        CONNECTIONS_ACCEPTED: "connections.accepted", Connections, Beside,
            "gRPC connections that came through TLS (where it is wanted) and began with HTTP/2";
        CONNECTIONS_REFUSED: "connections.refused", Connections, Beside,
            "gRPC connections refused because `[limits]` allows no more, in all or from that address";
        CONNECTIONS_SILENT: "connections.silent", Connections, Beside,
            "gRPC connections cut off because TLS and the first bytes of HTTP/2 took longer than `handshake_seconds`";
        CONNECTIONS_DISPLACED: "connections.displaced", Connections, Beside,
            "gRPC connections cut off because places were full and a new one came: silent ones before `handshake_seconds`, then those of the address that had most";
        CONNECTIONS_HANDSHAKE_FAILED: "connections.handshake_failed", Connections, Beside,
            "gRPC connections cut off because TLS failed, or because they spoke something else";
        CONNECTIONS_ACCEPT_ERRORS: "connections.accept_errors", Times, Beside,
            "errors of the gRPC listener, such as too many open files";
        CONNECTIONS_UNREAD: "connections.unread", Connections, Beside,
            "gRPC connections cut off because an answer on them was not read within `call_seconds`, or within 2 s while others with fewer calls waited";
        CALLS_REFUSED: "calls.refused", Times, Beside,
            "gRPC calls refused because as many of their caller (128), or of all (4,096), waited already, or because their message found no room in 10 s";
        CALLS_LATE: "calls.late", Times, Beside,
            "gRPC calls refused because their message did not come within 10 s";
        CALLS_DISPLACED: "calls.displaced", Times, Beside,
            "gRPC calls refused because their message was long and not worked on within 2 s, and others with less waited for its room";
    }
}

table! {
    /// What an exporter counts: that of the collector itself, or one beside it.
    EXPORT "collector, exporters" {
        EXPORT_ENTRIES: "export.SINK.entries", Entries, Beside,
            "entries that were read from the lists of events, those of the key directory among them" .with(&[SINK]);
        EXPORT_UNREADABLE: "export.SINK.unreadable", Entries, Beside,
            "entries of the lists of events that cannot be read: of a newer version, or not the translator's" .with(&[SINK]);
        EXPORT_OVERWRITTEN: "export.SINK.overwritten", Batches, Beside,
            "batches of the lists that were overwritten before the exporter read them: it was away, or too slow, for longer than a ring lasts"
            .with(&[SINK]);
        EXPORT_MISSING: "export.SINK.missing", Batches, Beside,
            "batches of the lists that never came although later ones did" .with(&[SINK]);
        EXPORT_DAMAGED: "export.SINK.damaged", Batches, Beside,
            "batches of the lists whose bytes stayed wrong" .with(&[SINK]);
        EXPORT_INTERRUPTED: "export.SINK.interrupted", Times, Beside,
            "times that a list could not be followed any longer, because the collector was away" .with(&[SINK]);
        EXPORT_EVENTS: "export.SINK.events", Entries, Beside, "events taken: entries of all lists but the key directory"
            .with(&[SINK]);
        EXPORT_SKIPPED: "export.SINK.skipped", Entries, Beside,
            "events that the schema has no place for" .with(&[SINK]);
        EXPORT_UNNAMED: "export.SINK.unnamed", Entries, Beside,
            "events whose key was not explained within a second: they are exported with the key in hex"
            .with(&[SINK]);
        EXPORT_WITHOUT_PATH: "export.SINK.without_path", Entries, Beside,
            "events that are changes of a path or flow latency whose path was another, or not there, when it was looked up: they are exported without it"
            .with(&[SINK]);
        EXPORT_FORGOTTEN: "export.SINK.forgotten", Keys, Beside,
            "keys whose meaning was forgotten because 262,144 others were used since" .with(&[SINK]);
        EXPORT_FOUND: "export.SINK.found", Points, Beside, "points that were in the spool at the start" .with(&[SINK]);
        EXPORT_MADE: "export.SINK.made", Points, Beside,
            "points (or lines) made and put into the spool (or the file)" .with(&[SINK]);
        EXPORT_STATE: "export.SINK.state", Points, Beside,
            "points made of values that are told every `state_seconds`, and not of an event" .with(&[SINK]);
        EXPORT_DELIVERED: "export.SINK.delivered", Points, Beside, "points that the database took, or lines that were written"
            .with(&[SINK]);
        EXPORT_SPOOLED: "export.SINK.spooled", Points, Beside, "points in the spool that the database has not taken yet"
            .kind(Kind::Now) .with(&[SINK]);
        EXPORT_DROPPED_SPOOL_FULL: "export.SINK.dropped.spool_full", Points, Beside,
            "points dropped because the spool was full: the oldest go first" .with(&[SINK]);
        EXPORT_DROPPED_SPOOL_DAMAGED: "export.SINK.dropped.spool_damaged", Points, Beside,
            "points lost because files of the spool were damaged on disk, or removed" .with(&[SINK]);
        EXPORT_DROPPED_REJECTED: "export.SINK.dropped.rejected", Points, Beside,
            "points that the database refuses for good: older than it keeps, or with a field of another type" .with(&[SINK]);
        EXPORT_RETRIED: "export.SINK.retried", Times, Beside, "requests to the database (or writes to the file) that failed and were made again"
            .with(&[SINK]);
    }
}

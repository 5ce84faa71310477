//! The table of routes.

use std::sync::Arc;

use super::{Answering, WebServer, answers};
use crate::parameters::{Parameter, ParameterKind, Parameters};

/// A path of the interface.
pub(crate) struct Route {
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) schema: AnswerSchema,
    pub(crate) answer: fn(Arc<WebServer>, Parameters) -> Answering,
}

/// The schema of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnswerSchema {
    Document(SchemaFile),
    /// The first for now, the second if another moment is requested.
    NowOrThen(SchemaFile, SchemaFile),
    List(SchemaFile),
    /// Server-sent events, each with such a document.
    Events(SchemaFile),
}

/// A file that flow records can be saved as.
#[derive(Debug)]
pub(crate) struct DownloadFormat {
    /// Its name in `format`, and the extension of the file.
    pub(crate) name: &'static str,
    pub(crate) content_type: &'static str,
    /// Whether an agent can read it.
    pub(crate) is_text: bool,
}

static DOWNLOADS: [DownloadFormat; 2] = [
    DownloadFormat { name: "csv", content_type: "text/csv; charset=utf-8", is_text: true },
    DownloadFormat { name: "parquet", content_type: "application/vnd.apache.parquet", is_text: false },
];
pub(crate) const CSV: &DownloadFormat = &DOWNLOADS[0];
pub(crate) const PARQUET: &DownloadFormat = &DOWNLOADS[1];

/// A JSON schema with its name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemaFile {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// A schema that a command uses, too.
macro_rules! command_schema {
    ($name:literal) => {
        SchemaFile { name: $name, text: include_str!(concat!("../../../../docs/schemas/", $name, ".json")) }
    };
}

macro_rules! web_schema {
    ($name:literal) => {
        SchemaFile { name: $name, text: include_str!(concat!("../../schemas/", $name, ".json")) }
    };
}

/// Schemas that others refer to.
pub(crate) const REFERRED_SCHEMAS: [SchemaFile; 2] = [command_schema!("epoch"), command_schema!("store")];

const fn optional(name: &'static str, kind: ParameterKind, description: &'static str) -> Parameter {
    Parameter { name, description, kind, required: false }
}

const fn required(name: &'static str, kind: ParameterKind, description: &'static str) -> Parameter {
    Parameter { name, description, kind, required: true }
}

const AT: Parameter = optional(
    "at",
    ParameterKind::Moment,
    "the moment that is asked about, instead of now; of stores with epochs",
);
const SINCE: Parameter = optional("since", ParameterKind::Moment, "from this moment on");
const UNTIL: Parameter = optional("until", ParameterKind::Moment, "with since: only up to this moment");
const STORE: Parameter =
    optional("store", ParameterKind::Text, "name of the store; without it, the only one of the primitive");
const NAMED_STORE: Parameter = required("store", ParameterKind::Text, "name of the store");
const KEY: Parameter = required(
    "key",
    ParameterKind::Texts,
    "a flow such as 10.0.0.1:5000->10.0.0.2:5000/udp, or up to 32 hex digits; may be repeated",
);
const FLOW: Parameter = required(
    "flow",
    ParameterKind::Texts,
    "a flow such as 10.0.0.1:5000->10.0.0.2:5000/udp; may be repeated",
);
const KIND: Parameter =
    optional("kind", ParameterKind::Texts, "only events of this kind, such as drop; may be repeated");
const OF_FLOW: Parameter = optional("flow", ParameterKind::Text, "only events of this flow");
const PREFIX: Parameter =
    optional("prefix", ParameterKind::Text, "only flows with an end in this prefix, such as 10.0.0.0/8");
const SWITCH: Parameter =
    optional("switch", ParameterKind::Text, "only events at this switch, by number or name");

macro_rules! route {
    ($path:literal, $summary:literal, [$($parameter:expr),*], $schema:expr, $answer:ident) => {
        Route {
            path: $path,
            summary: $summary,
            parameters: &[$($parameter),*],
            schema: $schema,
            answer: |server, parameters| Box::pin(answers::$answer(server, parameters)),
        }
    };
}

pub(crate) const ROUTES: &[Route] = &[
    route!(
        "/api/v1/health",
        "whose figures these are, and what needs attention",
        [],
        AnswerSchema::Document(web_schema!("health")),
        health
    ),
    route!(
        "/api/v1/alerts",
        "alerts that are pending, firing or lately resolved, with evidence, and the transitions before them",
        [optional(
            "number",
            ParameterKind::Number,
            "how many transitions at most, the latest; 100 without it"
        )],
        AnswerSchema::Document(command_schema!("dta-collector-alerts")),
        alerts
    ),
    route!(
        "/api/v1/waterfall",
        "where reports went: stages with what ended there",
        [],
        AnswerSchema::Document(web_schema!("waterfall")),
        waterfall
    ),
    route!(
        "/api/v1/waterfall/live",
        "the waterfall once a second, with rates (events `waterfall`, `problem`)",
        [],
        AnswerSchema::Events(web_schema!("waterfall")),
        live_waterfall
    ),
    route!(
        "/api/v1/stats",
        "the counters of every node; with at or since, what became of the reports of past epochs",
        [AT, SINCE, UNTIL],
        AnswerSchema::NowOrThen(
            command_schema!("dta-collector-stats"),
            command_schema!("dta-collector-stats-at")
        ),
        stats
    ),
    route!(
        "/api/v1/stores",
        "stores with load and survival",
        [],
        AnswerSchema::Document(command_schema!("dta-collector-stores")),
        stores
    ),
    route!(
        "/api/v1/sessions",
        "sessions of translators and their queue pairs",
        [],
        AnswerSchema::Document(command_schema!("dta-collector-sessions")),
        sessions
    ),
    route!(
        "/api/v1/members",
        "the collectors that are asked as one, each with its part of the stores, and whether it answers",
        [],
        AnswerSchema::List(web_schema!("member")),
        members
    ),
    route!(
        "/api/v1/epochs",
        "the epochs of a store, the newest first",
        [
            NAMED_STORE,
            SINCE,
            UNTIL,
            optional("number", ParameterKind::Number, "how many at most, 100 without it")
        ],
        AnswerSchema::Document(command_schema!("dta-collector-history")),
        epochs
    ),
    route!(
        "/api/v1/query/key-write",
        "the last value of keys",
        [KEY, STORE, AT],
        AnswerSchema::Document(command_schema!("dta-collector-query-key-write")),
        values
    ),
    route!(
        "/api/v1/query/postcarding",
        "the path of keys",
        [KEY, STORE, AT],
        AnswerSchema::Document(command_schema!("dta-collector-query-postcarding")),
        paths
    ),
    route!(
        "/api/v1/query/key-increment",
        "the count of keys, and what it may be missing",
        [KEY, STORE, AT],
        AnswerSchema::Document(command_schema!("dta-collector-query-key-increment")),
        counts
    ),
    route!(
        "/api/v1/query/sketch-merge",
        "the estimate of keys in one epoch of reporters",
        [KEY, STORE, AT, required("epoch", ParameterKind::Number, "the epoch, as reporters number them")],
        AnswerSchema::Document(command_schema!("dta-collector-query-sketch-merge")),
        sketches
    ),
    route!(
        "/api/v1/flow",
        "all that is known of flows: path, latencies, queues, counts, drops",
        [FLOW, AT],
        AnswerSchema::Document(command_schema!("dta-collector-query-flow")),
        flows
    ),
    route!(
        "/api/v1/flow/history",
        "what the epochs of stores held of a flow, and how many copies agree",
        [
            required("flow", ParameterKind::Text, "a flow such as 10.0.0.1:5000->10.0.0.2:5000/udp"),
            optional("since", ParameterKind::Moment, "from this moment on, the last hour without it"),
            optional("until", ParameterKind::Moment, "only up to this moment")
        ],
        AnswerSchema::Document(web_schema!("flow-history")),
        flow_history
    ),
    route!(
        "/api/v1/flows",
        "the largest groups of flow records, each flow counted once: by the exporter and direction with most bytes",
        [
            optional("by", ParameterKind::Text, "bytes, packets or flows, which are records"),
            optional(
                "group",
                ParameterKind::Text,
                "columns that group, separated by commas; `flow`, the default, names those of a flow, `total` groups nothing"
            ),
            optional(
                "where",
                ParameterKind::Text,
                "only records for which this holds, such as dst-port = 443 and not src in 10.0.0.0/8"
            ),
            optional(
                "exporter",
                ParameterKind::Text,
                "only records of this exporter, by its address or name"
            ),
            optional("number", ParameterKind::Number, "how many groups at most, 10 without it"),
            optional(
                "per",
                ParameterKind::Text,
                "the sums of each group in time buckets of this length, such as 10s"
            ),
            optional(
                "at",
                ParameterKind::Moment,
                "only flows that ran at this moment, by their exporters' clocks"
            ),
            SINCE,
            optional("until", ParameterKind::Moment, "only up to this moment"),
            optional("store", ParameterKind::Text, "the store, if it has another name than flow-records"),
            optional(
                "format",
                ParameterKind::Text,
                "json, or a row for each group or time bucket as csv or parquet, with columns as history has them"
            )
        ],
        AnswerSchema::Document(command_schema!("dta-collector-flows")),
        flow_records
    ),
    route!(
        "/api/v1/flows/columns",
        "the columns of flow records, which filter and group",
        [],
        AnswerSchema::List(web_schema!("flow-column")),
        flow_columns
    ),
    route!(
        "/api/v1/trace",
        "where packets of flows spent their time in hosts",
        [FLOW],
        AnswerSchema::Document(command_schema!("dta-collector-trace")),
        traces
    ),
    route!(
        "/api/v1/top",
        "the flows with most",
        [
            optional("by", ParameterKind::Text, "latency, drops, packets, bytes or reports"),
            optional("number", ParameterKind::Number, "how many at most, 20 without it"),
            PREFIX,
            optional("store", ParameterKind::Text, "rank by this store's figures instead"),
            optional("keys", ParameterKind::Text, "take flows from this append store of keys"),
            AT
        ],
        AnswerSchema::Document(command_schema!("dta-collector-top")),
        top_flows
    ),
    route!(
        "/api/v1/events",
        "the newest events, or those of past epochs, in order of time",
        [
            KIND,
            OF_FLOW,
            PREFIX,
            SWITCH,
            optional("number", ParameterKind::Number, "how many at most, 200 without it"),
            AT,
            SINCE,
            UNTIL
        ],
        AnswerSchema::List(command_schema!("dta-collector-tail-events")),
        events
    ),
    route!(
        "/api/v1/events/live",
        "events as they come (events `event`, `skipped`)",
        [KIND, OF_FLOW, PREFIX, SWITCH],
        AnswerSchema::Events(command_schema!("dta-collector-tail-events")),
        live_events
    ),
    route!(
        "/api/v1/sources",
        "switches and exporters of flow records with their last sign of life, those that were silent for longest first",
        [],
        AnswerSchema::List(web_schema!("source")),
        sources
    ),
    route!(
        "/api/v1/drops",
        "dropped packets by place and reason",
        [OF_FLOW, PREFIX, SWITCH, AT, SINCE, UNTIL],
        AnswerSchema::Document(web_schema!("drops")),
        drops
    ),
    route!(
        "/api/v1/map",
        "the network as the paths of recent flows connect it: hosts, switches, exporters, and links with use and drops",
        [
            optional(
                "around",
                ParameterKind::Text,
                "only the node of this id, or those with this in their id or name, and what is one link away"
            ),
            optional("number", ParameterKind::Number, "how many nodes at most, the busiest; 100 without it"),
            optional(
                "flows",
                ParameterKind::Number,
                "by the paths of this many flows, those reported last; 2000 without it"
            )
        ],
        AnswerSchema::Document(web_schema!("map")),
        network_map
    ),
    route!(
        "/api/v1/memory/map",
        "how full a store is from its first element to its last",
        [NAMED_STORE, optional("cells", ParameterKind::Number, "how many cells at most, 1024 without it")],
        AnswerSchema::Document(web_schema!("memory-map")),
        memory_map
    ),
    route!(
        "/api/v1/memory",
        "elements of a store with their bytes",
        [
            NAMED_STORE,
            optional("first", ParameterKind::Number, "the first element, 0 without it"),
            optional("count", ParameterKind::Number, "how many, 16 without it")
        ],
        AnswerSchema::Document(web_schema!("memory")),
        memory
    ),
];

impl Route {
    /// Its formats besides JSON.
    pub(crate) fn downloads(&self) -> &'static [DownloadFormat] {
        match self.parameters.iter().any(|parameter| parameter.name == "format") {
            true => &DOWNLOADS,
            false => &[],
        }
    }

    pub(crate) fn operation_name(&self) -> String {
        self.path.trim_start_matches("/api/v1/").replace(['/', '-'], "_")
    }
}

impl AnswerSchema {
    pub(crate) fn files(self) -> Vec<SchemaFile> {
        match self {
            Self::Document(file) | Self::List(file) | Self::Events(file) => vec![file],
            Self::NowOrThen(now, then) => vec![now, then],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_is_json_and_every_path_is_there_once() {
        for (n, route) in ROUTES.iter().enumerate() {
            assert!(ROUTES[..n].iter().all(|other| other.path != route.path), "{}", route.path);
            for schema in route.schema.files() {
                let document: serde_json::Value = serde_json::from_str(schema.text).unwrap();
                assert!(document["description"].is_string(), "{}", schema.name);
            }
        }
    }
}

//! Events and alerts as log records.

use std::sync::Arc;

use dta_files::moment::now_ns;
use dta_proto::control::{Alert, AlertState};
use dta_proto::key::Flow;
use dta_proto::telemetry::{SwitchNumber, TelemetryEntry, is_since_1970};
use opentelemetry_proto::tonic::collector::logs::v1::logs_service_client::LogsServiceClient;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use tonic::Status;
use tonic::transport::Channel;

use super::{attribute, collector_resource, instrumentation_scope, signal};
use crate::alert::AlertMessage;
use crate::encode::EncodeEvents;
use crate::events::TelemetryEvent;
use crate::json::EventLine;
use crate::kind::EventKind;
use crate::names::Names;
use crate::unique::{Ids, SeriesTimes};

pub(super) type Request = ExportLogsServiceRequest;

impl signal::Request for Request {
    type Item = LogRecord;
    type Response = ExportLogsServiceResponse;
    const PATH: &str = "/v1/logs";

    fn items_mut(&mut self) -> Option<&mut Vec<LogRecord>> {
        Some(&mut self.resource_logs.first_mut()?.scope_logs.first_mut()?.log_records)
    }

    fn count_points(_: &LogRecord) -> u64 {
        1
    }

    async fn call(
        channel: Channel,
        request: tonic::Request<Request>,
    ) -> Result<ExportLogsServiceResponse, Status> {
        Ok(LogsServiceClient::new(channel).export(request).await?.into_inner())
    }

    fn rejected_parts(response: ExportLogsServiceResponse) -> Option<(i64, String)> {
        response.partial_success.map(|part| (part.rejected_log_records, part.error_message))
    }
}

pub(super) struct Logs {
    resource: Resource,
    names: Arc<Names>,
    ids: Ids,
    records: Vec<LogRecord>,
}

impl Logs {
    pub(super) fn new(name: &str, names: Arc<Names>) -> Self {
        Self { resource: collector_resource(name), names, ids: Ids::new(), records: Vec::new() }
    }
}

impl EncodeEvents for Logs {
    fn encode_event(&mut self, event: &TelemetryEvent, _: &mut SeriesTimes) -> bool {
        let Some(line) = EventLine::from_event(event, &self.names) else { return false };
        let kind = EventKind::from_entry(&event.entry);
        let severity = match event.entry {
            TelemetryEntry::Drop { .. } | TelemetryEntry::Congestion { .. } => SeverityNumber::Warn,
            _ if kind == EventKind::Loop => SeverityNumber::Warn,
            _ => SeverityNumber::Info,
        };
        let id = format!("{:032x}", self.ids.next());
        let mut attributes = vec![attribute("log.record.uid", Value::StringValue(id))];
        attributes.extend(line_attributes(&line));
        attributes.extend(flow_attributes(event.meaning.and_then(|meaning| meaning.known_flow())));
        self.records.push(LogRecord {
            time_unix_nano: if is_since_1970(line.time) { line.time } else { 0 },
            observed_time_unix_nano: now_ns(),
            severity_number: severity.into(),
            severity_text: if severity == SeverityNumber::Warn { "WARN".into() } else { "INFO".into() },
            body: Some(AnyValue { value: Some(Value::StringValue(event_sentence(&line))) }),
            event_name: format!("dta.{}", kind.name()),
            attributes,
            ..LogRecord::default()
        });
        true
    }

    fn encode_alert(&mut self, message: &AlertMessage) -> bool {
        let Some(alert) = &message.transition.alert else { return false };
        let (severity, severity_text) = match alert.severity.as_str() {
            _ if alert.has_state(AlertState::Resolved) => (SeverityNumber::Info, "INFO"),
            "critical" => (SeverityNumber::Error, "ERROR"),
            "warning" => (SeverityNumber::Warn, "WARN"),
            _ => (SeverityNumber::Info, "INFO"),
        };
        self.records.push(LogRecord {
            time_unix_nano: message.transition.at.saturating_mul(1_000_000),
            observed_time_unix_nano: now_ns(),
            severity_number: severity.into(),
            severity_text: severity_text.into(),
            body: Some(AnyValue { value: Some(Value::StringValue(alert.text.clone())) }),
            event_name: "dta.alert".into(),
            attributes: alert_attributes(message, alert),
            ..LogRecord::default()
        });
        true
    }

    fn take(&mut self) -> Vec<u8> {
        let scope_logs = ScopeLogs {
            scope: Some(instrumentation_scope()),
            log_records: std::mem::take(&mut self.records),
            ..ScopeLogs::default()
        };
        let resource_logs = ResourceLogs {
            resource: Some(self.resource.clone()),
            scope_logs: vec![scope_logs],
            ..ResourceLogs::default()
        };
        Request { resource_logs: vec![resource_logs] }.encode_to_vec()
    }
}

/// What an alert says, except its text.
fn alert_attributes(message: &AlertMessage, alert: &Alert) -> Vec<KeyValue> {
    let text = |text: &str| Value::StringValue(text.to_owned());
    let mut all = vec![
        attribute("log.record.uid", text(&message.id)),
        attribute("dta.value", Value::DoubleValue(alert.value)),
        attribute("dta.rows", Value::ArrayValue(text_array(&alert.rows))),
        attribute("dta.notes", Value::ArrayValue(text_array(&alert.notes))),
    ];
    for (name, value) in [
        ("dta.rule", &alert.rule),
        ("dta.severity", &alert.severity),
        ("dta.state", &alert.state),
        ("dta.fingerprint", &alert.fingerprint),
        ("dta.unit", &alert.unit),
        ("dta.command", &alert.command),
        ("dta.runbook", &alert.runbook),
    ] {
        all.push(attribute(name, text(value)));
    }
    all.extend(message.url.iter().map(|url| attribute("dta.url", text(url))));
    let labels = alert.labels.iter();
    all.extend(labels.map(|(name, value)| attribute(format!("dta.label.{name}"), text(value))));
    all
}

fn text_array(texts: &[String]) -> ArrayValue {
    let values = texts.iter().map(|text| AnyValue { value: Some(Value::StringValue(text.clone())) });
    ArrayValue { values: values.collect() }
}

/// The fields of a line of JSON, under the same names with the prefix `dta.`.
pub(super) fn line_attributes(line: &EventLine) -> Vec<KeyValue> {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(line) else { return Vec::new() };
    // These have places of their own.
    let fields = fields.into_iter().filter(|(name, _)| !["time", "event"].contains(&name.as_str()));
    fields
        .filter_map(|(name, value)| Some(attribute(format!("dta.{name}"), value_from_json(value)?)))
        .collect()
}

/// A value of JSON; `None` for null. A number beyond an `i64` becomes its largest.
pub(super) fn value_from_json(value: serde_json::Value) -> Option<Value> {
    Some(match value {
        serde_json::Value::Bool(truth) => Value::BoolValue(truth),
        serde_json::Value::Number(number) => {
            Value::IntValue(number.as_u64().map_or(i64::MAX, |number| number.min(i64::MAX as u64) as i64))
        }
        serde_json::Value::String(text) => Value::StringValue(text),
        serde_json::Value::Array(values) => {
            let values = values.into_iter().map(|value| AnyValue { value: value_from_json(value) });
            Value::ArrayValue(ArrayValue { values: values.collect() })
        }
        serde_json::Value::Null | serde_json::Value::Object(_) => return None,
    })
}

/// The flow, under the names of OpenTelemetry's conventions.
pub(super) fn flow_attributes(flow: Option<Flow>) -> Vec<KeyValue> {
    let Some(flow) = flow else { return Vec::new() };
    let text = |text: String| Value::StringValue(text);
    let mut all = vec![
        attribute("source.address", text(flow.src.to_string())),
        attribute("source.port", Value::IntValue(flow.sport.into())),
        attribute("destination.address", text(flow.dst.to_string())),
        attribute("destination.port", Value::IntValue(flow.dport.into())),
        attribute("network.type", text(if flow.src.is_ipv4() { "ipv4" } else { "ipv6" }.into())),
    ];
    let transport = match flow.proto {
        6 => Some("tcp"),
        17 => Some("udp"),
        _ => None,
    };
    all.extend(transport.map(|name| attribute("network.transport", text(name.into()))));
    all
}

fn event_sentence(line: &EventLine) -> String {
    let named = |name: &Option<String>, number: u32| name.clone().unwrap_or_else(|| number.to_string());
    let flow = line.flow.clone().or_else(|| line.key.clone());
    let mut at = String::new();
    if let Some(switch) = line.switch {
        let number = SwitchNumber(switch);
        let name = line.switch_name.clone().unwrap_or_else(|| number.to_string());
        at += &format!(" at {} {name}", number.role_name());
    }
    if let Some(port) = line.port {
        at += &format!(", port {}", named(&line.port_name, port));
    }
    if let Some(queue) = line.queue {
        at += &format!(", queue {queue}");
    }
    match (line.event, line.metric, line.value) {
        ("drop", ..) => {
            let reason = match (&line.reason_name, line.reason) {
                (Some(name), _) => name.clone(),
                (None, Some(reason)) => format!("reason {reason}"),
                (None, None) => "reason unknown".to_owned(),
            };
            let flow = flow.map(|flow| format!(" of {flow}")).unwrap_or_default();
            format!("packet{flow} dropped{at}: {reason}")
        }
        (_, Some(metric), Some(value)) => {
            // A switch's own numbers have no flow.
            let of = line.flow.clone().map(|flow| format!(" of {flow}")).unwrap_or_default();
            let old = line.old.map(|old| format!("{old} -> ")).unwrap_or_default();
            format!("{metric}{of}{at}: {old}{value}")
        }
        _ => {
            let flow = flow.map(|flow| format!(" of {flow}")).unwrap_or_default();
            format!("packet{flow} waited in a congested queue{at}")
        }
    }
}

//! Traces: a span for the whole path, and one for each part of it.
//!
//! The parts of a flow's path are its switches. Reports say how long a packet stayed in each switch, but not when it
//! arrived. So the switches' spans follow each other, and the time on links comes after the last one.
//! [`hosts`](super::hosts) builds the parts of a packet's path through hosts.
//!
//! An event that is read again gets the same identifiers.

use std::sync::Arc;

use dta_proto::telemetry::{Metric, SwitchNumber, TelemetryEntry, Why, hashed_key, is_since_1970};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status, status::StatusCode};
use prost::Message;
use tonic::transport::Channel;

use super::{attribute, collector_resource, hosts, instrumentation_scope, logs, signal};
use crate::encode::EncodeEvents;
use crate::events::TelemetryEvent;
use crate::hosts::journey::HostTrace;
use crate::json::EventLine;
use crate::names::Names;
use crate::unique::SeriesTimes;

pub(super) type Request = ExportTraceServiceRequest;

impl signal::Request for Request {
    type Item = Span;
    type Response = ExportTraceServiceResponse;
    const PATH: &str = "/v1/traces";

    fn items_mut(&mut self) -> Option<&mut Vec<Span>> {
        Some(&mut self.resource_spans.first_mut()?.scope_spans.first_mut()?.spans)
    }

    /// A trace counts once, by its first span.
    fn count_points(span: &Span) -> u64 {
        span.parent_span_id.is_empty().into()
    }

    fn count_parts(_: &Span) -> u64 {
        1
    }

    async fn call(
        channel: Channel,
        request: tonic::Request<Request>,
    ) -> Result<ExportTraceServiceResponse, tonic::Status> {
        Ok(TraceServiceClient::new(channel).export(request).await?.into_inner())
    }

    fn rejected_parts(response: ExportTraceServiceResponse) -> Option<(i64, String)> {
        response.partial_success.map(|part| (part.rejected_spans, part.error_message))
    }
}

/// A span before encoding: of the whole, or of a part.
pub(super) struct SpanDraft {
    pub(super) name: String,
    /// Nanoseconds since 1970.
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) attributes: Vec<KeyValue>,
    pub(super) error: Option<String>,
}

pub(super) struct TracesEncoder {
    resource: Resource,
    names: Arc<Names>,
    spans: Vec<Span>,
}

impl TracesEncoder {
    pub(super) fn new(name: &str, names: Arc<Names>) -> Self {
        Self { resource: collector_resource(name), names, spans: Vec::new() }
    }

    /// Adds a trace: the whole, then its parts. Its identifier is a time, and 64 bits for what happened then.
    fn push(&mut self, time: u64, what: [u8; 8], parts: impl IntoIterator<Item = SpanDraft>) {
        let trace_id = [time.to_be_bytes(), what].concat();
        let whole = 1u64.to_be_bytes().to_vec();
        for (n, SpanDraft { name, from, to, attributes, error }) in (1u64..).zip(parts) {
            self.spans.push(Span {
                trace_id: trace_id.clone(),
                span_id: n.to_be_bytes().to_vec(),
                parent_span_id: if n == 1 { Vec::new() } else { whole.clone() },
                name,
                kind: SpanKind::Internal.into(),
                start_time_unix_nano: from,
                end_time_unix_nano: to,
                attributes,
                status: error.map(|message| Status { message, code: StatusCode::Error.into() }),
                ..Span::default()
            });
        }
    }

    fn encode_spans(&mut self) -> Vec<u8> {
        let scope_spans = ScopeSpans {
            scope: Some(instrumentation_scope()),
            spans: std::mem::take(&mut self.spans),
            ..ScopeSpans::default()
        };
        let resource_spans = ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans: vec![scope_spans],
            ..ResourceSpans::default()
        };
        Request { resource_spans: vec![resource_spans] }.encode_to_vec()
    }
}

impl EncodeEvents for TracesEncoder {
    fn encode_event(&mut self, event: &TelemetryEvent, _: &mut SeriesTimes) -> bool {
        let (TelemetryEntry::Change { metric, why, key, time, old, new, .. }, Some(path), Some(hops)) =
            (event.entry, event.path, &event.hops)
        else {
            return false;
        };
        let Some(line) = EventLine::from_event(event, &self.names) else { return false };
        if !is_since_1970(time) {
            return false;
        }
        let whole = if metric == Metric::FlowLatency { Some(new) } else { event.latency.map(u64::from) };
        let in_switches: u64 = hops.iter().flatten().map(|latency| u64::from(*latency)).sum();
        let begin = time.saturating_sub(whole.unwrap_or_default().max(in_switches));
        let mut attributes = logs::line_attributes(&line);
        attributes.extend(logs::flow_attributes(event.meaning.and_then(|meaning| meaning.known_flow())));
        let looped = path.looped || why == Why::Loop;
        let name = line.flow.unwrap_or_else(|| "a flow".into());
        let error = looped.then(|| "the path passes a switch twice".into());
        let mut parts = vec![SpanDraft { name, from: begin, to: time, attributes, error }];
        let mut at = begin;
        for (switch, latency) in path.stored_switches().iter().zip(hops) {
            let (name, attributes) = self.switch_span(*switch, *latency);
            let from = at;
            at += u64::from(latency.unwrap_or_default());
            parts.push(SpanDraft { name, from, to: at, attributes, error: None });
        }
        // For one packet, the latency may have changed with the path; two packets may have come in the same nanosecond.
        let values = [old.to_be_bytes(), new.to_be_bytes()].concat();
        let identity = hashed_key(&[&key.0[..], &[metric as u8], &values].concat(), *b"span").0;
        self.push(time, *identity.first_chunk().unwrap_or(&[0; 8]), parts);
        true
    }

    fn take(&mut self) -> Vec<u8> {
        self.encode_spans()
    }
}

impl EncodeEvents<HostTrace> for TracesEncoder {
    fn encode_event(&mut self, trace: &HostTrace, _: &mut SeriesTimes) -> bool {
        let Some(parts) = hosts::span_drafts(trace) else { return false };
        self.push(trace.first_sighting().time, trace.digest.to_be_bytes(), parts);
        true
    }

    fn take(&mut self) -> Vec<u8> {
        self.encode_spans()
    }
}

impl TracesEncoder {
    /// Name and attributes of a switch's span. An unknown latency has no attribute, and its span no length.
    fn switch_span(&self, switch: u32, latency: Option<u32>) -> (String, Vec<KeyValue>) {
        if switch == u32::MAX {
            return ("unknown switch".into(), Vec::new());
        }
        let mut attributes = vec![attribute("dta.switch", Value::IntValue(switch.into()))];
        let name = self.names.switch_name(switch);
        attributes.extend(name.map(|name| attribute("dta.switch_name", Value::StringValue(name.into()))));
        attributes.extend(latency.map(|latency| attribute("dta.latency", Value::IntValue(latency.into()))));
        let number = SwitchNumber(switch);
        let name = name.map_or_else(|| number.to_string(), str::to_owned);
        (format!("{} {name}", number.role_name()), attributes)
    }
}

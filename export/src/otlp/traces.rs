//! Paths of flows as traces: a span for the way through the network, and one for each switch on it.
//!
//! Reports say how long a packet was in each switch, and not when it came: the spans of switches follow each other, and
//! the time on links is behind the last.

use std::sync::Arc;

use dta_proto::telemetry::{Entry, Metric, Why, is_since_1970};
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

use super::{attribute, logs, resource, scope, signal};
use crate::encode::EncodeEvents;
use crate::events::Event;
use crate::json::Line;
use crate::names::Names;
use crate::unique::{Ids, Times};

pub(super) type Request = ExportTraceServiceRequest;

impl signal::Request for Request {
    type Item = Span;
    type Response = ExportTraceServiceResponse;
    const PATH: &str = "/v1/traces";

    fn items(&mut self) -> Option<&mut Vec<Span>> {
        Some(&mut self.resource_spans.first_mut()?.scope_spans.first_mut()?.spans)
    }

    /// A trace counts once, by its first span.
    fn points(span: &Span) -> u64 {
        span.parent_span_id.is_empty().into()
    }

    fn parts(_: &Span) -> u64 {
        1
    }

    async fn call(
        channel: Channel,
        request: tonic::Request<Request>,
    ) -> Result<ExportTraceServiceResponse, tonic::Status> {
        Ok(TraceServiceClient::new(channel).export(request).await?.into_inner())
    }

    fn rejected(response: ExportTraceServiceResponse) -> Option<(i64, String)> {
        response.partial_success.map(|part| (part.rejected_spans, part.error_message))
    }
}

/// Collects spans.
pub(super) struct Traces {
    resource: Resource,
    names: Arc<Names>,
    ids: Ids,
    spans: Vec<Span>,
}

impl Traces {
    pub(super) fn new(name: &str, names: Arc<Names>) -> Self {
        Self { resource: resource(name), names, ids: Ids::new(), spans: Vec::new() }
    }
}

impl EncodeEvents for Traces {
    fn put(&mut self, event: &Event, _: &mut Times) -> bool {
        let (Entry::Change { metric, why, time, new, .. }, Some(path), Some(hops)) =
            (event.entry, event.path, &event.hops)
        else {
            return false;
        };
        let Some(line) = Line::of(event, &self.names) else { return false };
        if !is_since_1970(time) {
            return false;
        }
        let trace_id = self.ids.next().to_be_bytes().to_vec();
        let id = |n: u64| (n + 1).to_be_bytes().to_vec();
        let whole = if metric == Metric::FlowLatency { Some(new) } else { event.latency.map(u64::from) };
        let in_switches: u64 = hops.iter().flatten().map(|latency| u64::from(*latency)).sum();
        let begin = time.saturating_sub(whole.unwrap_or_default().max(in_switches));
        let name = line.flow.clone().unwrap_or_else(|| "a flow".into());
        let mut attributes = logs::of_line(&line);
        attributes.extend(logs::of_flow(event));
        let looped = path.looped || why == Why::Loop;
        self.spans.push(Span {
            trace_id: trace_id.clone(),
            span_id: id(0),
            name,
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: begin,
            end_time_unix_nano: time,
            attributes,
            status: looped.then(|| Status {
                message: "the path passes a switch twice".into(),
                code: StatusCode::Error.into(),
            }),
            ..Span::default()
        });
        let mut at = begin;
        for ((n, switch), latency) in (1..).zip(path.switches()).zip(hops) {
            let (name, attributes) = self.switch(*switch, *latency);
            let start = at;
            at += u64::from(latency.unwrap_or_default());
            self.spans.push(Span {
                trace_id: trace_id.clone(),
                span_id: id(n),
                parent_span_id: id(0),
                name,
                kind: SpanKind::Internal.into(),
                start_time_unix_nano: start,
                end_time_unix_nano: at,
                attributes,
                ..Span::default()
            });
        }
        true
    }

    fn take(&mut self) -> Vec<u8> {
        let scope_spans = ScopeSpans {
            scope: Some(scope()),
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

impl Traces {
    /// Name and attributes of the span of a switch. One whose latency is unknown has none, and its span no length.
    fn switch(&self, switch: u32, latency: Option<u32>) -> (String, Vec<KeyValue>) {
        if switch == u32::MAX {
            return ("unknown switch".into(), Vec::new());
        }
        let mut attributes = vec![attribute("dta.switch", Value::IntValue(switch.into()))];
        let name = self.names.switch(switch);
        attributes.extend(name.map(|name| attribute("dta.switch_name", Value::StringValue(name.into()))));
        attributes.extend(latency.map(|latency| attribute("dta.latency", Value::IntValue(latency.into()))));
        (format!("switch {}", name.map_or_else(|| switch.to_string(), str::to_owned)), attributes)
    }
}

//! The path of a packet through hosts as a trace: its parts are the stages between points, and those where it was dropped.

use dta_proto::telemetry::is_since_1970;
use dta_proto::to_hex_digits;
use dta_proto::trace::Named;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};

use super::traces::SpanDraft;
use super::{attribute, logs};
use crate::hosts::journey::{HostTrace, Passed, journey_points};
use crate::hosts::packets::{DropRecord, host_name, reason_name};

/// The whole path, and its parts; `None` if its times are not since 1970.
pub(super) fn span_drafts(trace: &HostTrace) -> Option<Vec<SpanDraft>> {
    let stops = journey_points(&trace.packet, &trace.clocks);
    let mut parts: Vec<SpanDraft> =
        stops.windows(2).map(|pair| segment_span(trace, &pair[0], &pair[1])).collect();
    parts.extend(trace.drops.iter().map(|drop| drop_span(trace, &stops, drop)));
    let first = trace.first_sighting();
    let times =
        || stops.iter().map(best_known_time).chain(parts.iter().flat_map(|part| [part.from, part.to]));
    let from = times().min().unwrap_or(first.time);
    let to = times().max().unwrap_or(first.time);
    if !is_since_1970(from) || !is_since_1970(first.time) {
        return None;
    }
    let flow = trace.known_flow();
    let known = flow.map(|flow| ("dta.flow", flow.to_string()));
    let (key, of) = known.unwrap_or_else(|| ("dta.key", to_hex_digits(&first.flow.0)));
    let way = stops.iter().map(|stop| {
        format!("{} of {}", trace.point_name(stop.host, stop.hop), host_name(&trace.names, stop.host))
    });
    let mut attributes = vec![
        text_attribute(key, of.clone()),
        text_attribute("dta.digest", to_hex_digits(&trace.digest.to_be_bytes())),
        attribute("dta.length", Value::IntValue(first.length.into())),
        text_list_attribute("dta.path", way),
    ];
    let missing = trace.describe_missing();
    attributes.extend((!missing.is_empty()).then(|| text_list_attribute("dta.lacks", missing.into_iter())));
    attributes.extend(logs::flow_attributes(flow));
    let name = if flow.is_some() { of } else { "a packet".into() };
    let error = trace.drops.first().map(|drop| drop_message(trace, drop));
    parts.insert(0, SpanDraft { name, from, to, attributes, error });
    Some(parts)
}

/// From one point to the next.
fn segment_span(trace: &HostTrace, from: &Passed, to: &Passed) -> SpanDraft {
    let latency = to.elapsed_since(from);
    let mut attributes = of_points(from.hop, to.hop);
    attributes.extend(latency.map(|latency| attribute("dta.latency", Value::IntValue(latency))));
    if from.host == to.host {
        attributes.extend(host_attributes(trace, from.host));
    } else {
        attributes.push(text_attribute("dta.from_host", host_name(&trace.names, from.host)));
        attributes.push(text_attribute("dta.to_host", host_name(&trace.names, to.host)));
        let clock = serde_json::to_value(trace.clocks.kind_between(from.host, to.host));
        attributes
            .extend(clock.ok().and_then(logs::value_from_json).map(|kind| attribute("dta.clock", kind)));
        let bound =
            trace.clocks.error_bound(from.host, to.host).map(|bound| Value::IntValue(bound.ceil() as i64));
        attributes.extend(bound.map(|bound| attribute("dta.bound", bound)));
    }
    let name = format!("{} to {}", trace.point_name(from.host, from.hop), trace.point_name(to.host, to.hop));
    let begin = best_known_time(from);
    // Reversed, but within the error of the clocks: no length.
    let end = begin.saturating_add(latency.unwrap_or_default().max(0) as u64);
    SpanDraft { name, from: begin, to: end, attributes, error: None }
}

/// From the last point of a host to where the packet was dropped.
fn drop_span(trace: &HostTrace, stops: &[Passed], drop: &DropRecord) -> SpanDraft {
    let seen = &drop.seen;
    let before = stops.iter().rev().find(|stop| stop.host == seen.host && stop.time <= seen.time);
    let here = trace.point_name(seen.host, seen.hop);
    let to = trace.clocks.reference_time(seen.host, seen.time).unwrap_or(seen.time);
    let mut attributes = of_points(before.map_or(seen.hop, |before| before.hop), seen.hop);
    let latency = before.map(|before| seen.time - before.time);
    attributes.extend(latency.map(|latency| attribute("dta.latency", Value::IntValue(latency as i64))));
    attributes.extend(host_attributes(trace, seen.host));
    attributes.push(attribute("dta.reason", Value::IntValue(drop.reason.into())));
    let name = trace.names.get(&(seen.host, Named::Reason, drop.reason));
    attributes.extend(name.map(|name| text_attribute("dta.reason_name", name.clone())));
    attributes.push(text_attribute("error.type", name.cloned().unwrap_or_else(|| drop.reason.to_string())));
    let name = match before {
        Some(before) => format!("{} to {here}", trace.point_name(before.host, before.hop)),
        None => here,
    };
    let from = to - latency.unwrap_or_default().min(to);
    SpanDraft { name, from, to, attributes, error: Some(drop_message(trace, drop)) }
}

fn drop_message(trace: &HostTrace, drop: &DropRecord) -> String {
    let host = drop.seen.host;
    let reason = reason_name(&trace.names, host, drop.reason);
    format!("dropped: {reason}, in host {}", host_name(&trace.names, host))
}

fn best_known_time(stop: &Passed) -> u64 {
    stop.at.unwrap_or(stop.time)
}

fn of_points(from: u8, to: u8) -> Vec<KeyValue> {
    vec![attribute("dta.from", Value::IntValue(from.into())), attribute("dta.to", Value::IntValue(to.into()))]
}

/// The host, under the names of OpenTelemetry's conventions.
fn host_attributes(trace: &HostTrace, host: u16) -> Vec<KeyValue> {
    let name = trace.names.get(&(host, Named::Host, 0)).map(|name| text_attribute("host.name", name.clone()));
    std::iter::once(text_attribute("host.id", host.to_string())).chain(name).collect()
}

fn text_attribute(key: &str, text: String) -> KeyValue {
    attribute(key, Value::StringValue(text))
}

fn text_list_attribute(key: &str, all: impl Iterator<Item = String>) -> KeyValue {
    let values = all.map(|text| AnyValue { value: Some(Value::StringValue(text)) }).collect();
    attribute(key, Value::ArrayValue(ArrayValue { values }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use dta_proto::trace::PacketSighting;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
    use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
    use prost::Message;

    use super::*;
    use crate::encode::EncodeEvents;
    use crate::hosts::clocks::Clocks;
    use crate::hosts::packets::{PacketRecord, TracedPacket, Visit, VisitStop};
    use crate::names::Names;
    use crate::otlp::traces::TracesEncoder;
    use crate::otlp::{collector_resource, instrumentation_scope};
    use crate::unique::SeriesTimes;

    /// 2027-01-15T08:00:00Z.
    const START: u64 = 1_800_000_000_000_000_000;

    /// A packet at two of three points of a host, which drops it.
    fn dropped() -> HostTrace {
        let flow = "10.0.0.1:5000->10.0.0.2:80/tcp".parse::<dta_proto::key::Flow>().unwrap().to_key();
        let seen = PacketSighting {
            time: START,
            flow,
            digest: 0xab,
            host: 7,
            length: 1500,
            ..PacketSighting::default()
        };
        let stops = vec![VisitStop { hop: 0, time: START }, VisitStop { hop: 2, time: START + 1500 }];
        let visit = Visit { host: 7, synced: false, flow, stops, missing: 1 };
        let records = vec![PacketRecord { seen, points: 3, left: 0xab }];
        let drop = DropRecord { seen: PacketSighting { time: START + 4000, hop: 128, ..seen }, reason: 64 };
        let names = BTreeMap::from([
            ((7, Named::Host, 0), "node7".to_owned()),
            ((7, Named::Point, 0), "xdp:eth0".to_owned()),
            ((7, Named::Point, 128), "tp:kfree_skb".to_owned()),
            ((7, Named::Reason, 64), "QDISC_DROP".to_owned()),
        ]);
        HostTrace {
            digest: 0xab,
            packet: TracedPacket { records, visits: vec![visit], lost: Vec::new() },
            drops: vec![drop],
            names: Arc::new(names),
            clocks: Arc::new(Clocks::default()),
        }
    }

    fn number(key: &str, number: i64) -> KeyValue {
        attribute(key, Value::IntValue(number))
    }

    fn word(key: &str, word: &str) -> KeyValue {
        text_attribute(key, word.to_owned())
    }

    #[test]
    fn a_packet_is_these_bytes() {
        let span = |n: u64, name: &str, from: u64, to: u64, attributes: Vec<KeyValue>, error: &str| Span {
            // When it was first seen, and its digest.
            trace_id: vec![0x18, 0xfa, 0xe2, 0x76, 0x93, 0xb4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xab],
            span_id: vec![0, 0, 0, 0, 0, 0, 0, n as u8],
            parent_span_id: if n == 1 { Vec::new() } else { vec![0, 0, 0, 0, 0, 0, 0, 1] },
            name: name.to_owned(),
            kind: SpanKind::Internal as i32,
            start_time_unix_nano: START + from,
            end_time_unix_nano: START + to,
            attributes,
            status: (!error.is_empty())
                .then(|| Status { message: error.to_owned(), code: StatusCode::Error as i32 }),
            ..Span::default()
        };
        let why = "dropped: QDISC_DROP (64), in host node7 (7)";
        let way = ["xdp:eth0 of node7 (7)", "point 2 of node7 (7)"].map(str::to_owned).into_iter();
        let lacks = "Host node7 (7) saw it at 3 points, 1 of which are no longer known.";
        let whole = vec![
            word("dta.flow", "10.0.0.1:5000->10.0.0.2:80/tcp"),
            word("dta.digest", "00000000000000ab"),
            number("dta.length", 1500),
            text_list_attribute("dta.path", way),
            text_list_attribute("dta.lacks", std::iter::once(lacks.to_owned())),
            word("source.address", "10.0.0.1"),
            number("source.port", 5000),
            word("destination.address", "10.0.0.2"),
            number("destination.port", 80),
            word("network.type", "ipv4"),
            word("network.transport", "tcp"),
        ];
        let stage = vec![
            number("dta.from", 0),
            number("dta.to", 2),
            number("dta.latency", 1500),
            word("host.id", "7"),
            word("host.name", "node7"),
        ];
        let end = vec![
            number("dta.from", 2),
            number("dta.to", 128),
            number("dta.latency", 2500),
            word("host.id", "7"),
            word("host.name", "node7"),
            number("dta.reason", 64),
            word("dta.reason_name", "QDISC_DROP"),
            word("error.type", "QDISC_DROP"),
        ];
        let spans = vec![
            span(1, "10.0.0.1:5000->10.0.0.2:80/tcp", 0, 4000, whole, why),
            span(2, "xdp:eth0 to point 2", 0, 1500, stage, ""),
            span(3, "point 2 to tp:kfree_skb", 1500, 4000, end, why),
        ];
        let scope_spans =
            vec![ScopeSpans { scope: Some(instrumentation_scope()), spans, ..ScopeSpans::default() }];
        let resource = Some(collector_resource("test"));
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        let mut traces = TracesEncoder::new("test", Arc::new(Names::default()));
        let encoder: &mut dyn EncodeEvents<HostTrace> = &mut traces;
        assert!(encoder.encode_event(&dropped(), &mut SeriesTimes::new(&[])));
        let bytes = encoder.take();
        assert_eq!(ExportTraceServiceRequest::decode(&bytes[..]).unwrap().resource_spans, resource_spans);
        assert_eq!(bytes, ExportTraceServiceRequest { resource_spans }.encode_to_vec());
        // Nothing of it is left, and the same packet gets the same identifiers again.
        assert!(encoder.encode_event(&dropped(), &mut SeriesTimes::new(&[])));
        assert_eq!(encoder.take(), bytes);
    }

    #[test]
    fn a_time_that_is_not_since_1970_is_no_trace() {
        let mut trace = dropped();
        trace.packet.records[0].seen.time = 5;
        assert!(span_drafts(&trace).is_none());
    }
}

//! The way of a packet through hosts as a trace: parts are the stages between points, and those where it was dropped.

use dta_proto::telemetry::is_since_1970;
use dta_proto::trace::Named;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};

use super::traces::Part;
use super::{attribute, logs};
use crate::hosts::journey::{HostTrace, Passed, journey};
use crate::hosts::packets::{DropRecord, host_name, reason_name};

/// The whole way, and its parts; `None` if its times are not since 1970.
pub(super) fn parts(trace: &HostTrace) -> Option<Vec<Part>> {
    let stops = journey(&trace.packet, &trace.clocks);
    let mut parts: Vec<Part> = stops.windows(2).map(|pair| stage(trace, &pair[0], &pair[1])).collect();
    parts.extend(trace.drops.iter().map(|drop| dropped(trace, &stops, drop)));
    let first = trace.first();
    let times = || stops.iter().map(shown).chain(parts.iter().flat_map(|part| [part.from, part.to]));
    let from = times().min().unwrap_or(first.time);
    let to = times().max().unwrap_or(first.time);
    if !is_since_1970(from) || !is_since_1970(first.time) {
        return None;
    }
    let flow = trace.flow();
    let known = flow.map(|flow| ("dta.flow", flow.to_string()));
    let (key, of) = known.unwrap_or_else(|| ("dta.key", hex(&first.flow.0)));
    let way = stops.iter().map(|stop| {
        format!("{} of {}", trace.point(stop.host, stop.hop), host_name(&trace.names, stop.host))
    });
    let mut attributes = vec![
        text(key, of.clone()),
        text("dta.digest", hex(&trace.digest.to_be_bytes())),
        attribute("dta.length", Value::IntValue(first.length.into())),
        texts("dta.path", way),
    ];
    let lacks = trace.lacks();
    attributes.extend((!lacks.is_empty()).then(|| texts("dta.lacks", lacks.into_iter())));
    attributes.extend(logs::of_flow(flow));
    let name = if flow.is_some() { of } else { "a packet".into() };
    let error = trace.drops.first().map(|drop| why(trace, drop));
    parts.insert(0, Part { name, from, to, attributes, error });
    Some(parts)
}

/// From one point to the next.
fn stage(trace: &HostTrace, from: &Passed, to: &Passed) -> Part {
    let latency = to.since(from);
    let mut attributes = of_points(from.hop, to.hop);
    attributes.extend(latency.map(|latency| attribute("dta.latency", Value::IntValue(latency))));
    if from.host == to.host {
        attributes.extend(of_host(trace, from.host));
    } else {
        attributes.push(text("dta.from_host", host_name(&trace.names, from.host)));
        attributes.push(text("dta.to_host", host_name(&trace.names, to.host)));
        let clock = serde_json::to_value(trace.clocks.between(from.host, to.host));
        attributes.extend(clock.ok().and_then(logs::of_json).map(|kind| attribute("dta.clock", kind)));
        let bound = trace.clocks.bound(from.host, to.host).map(|bound| Value::IntValue(bound.ceil() as i64));
        attributes.extend(bound.map(|bound| attribute("dta.bound", bound)));
    }
    let name = format!("{} to {}", trace.point(from.host, from.hop), trace.point(to.host, to.hop));
    let begin = shown(from);
    // The other way round within the error of the clocks: no length.
    let end = begin.saturating_add(latency.unwrap_or_default().max(0) as u64);
    Part { name, from: begin, to: end, attributes, error: None }
}

/// From the last point of a host to where the packet was dropped.
fn dropped(trace: &HostTrace, stops: &[Passed], drop: &DropRecord) -> Part {
    let seen = &drop.seen;
    let before = stops.iter().rev().find(|stop| stop.host == seen.host && stop.time <= seen.time);
    let here = trace.point(seen.host, seen.hop);
    let to = trace.clocks.time(seen.host, seen.time).unwrap_or(seen.time);
    let mut attributes = of_points(before.map_or(seen.hop, |before| before.hop), seen.hop);
    let latency = before.map(|before| seen.time - before.time);
    attributes.extend(latency.map(|latency| attribute("dta.latency", Value::IntValue(latency as i64))));
    attributes.extend(of_host(trace, seen.host));
    attributes.push(attribute("dta.reason", Value::IntValue(drop.reason.into())));
    let name = trace.names.get(&(seen.host, Named::Reason, drop.reason));
    attributes.extend(name.map(|name| text("dta.reason_name", name.clone())));
    attributes.push(text("error.type", name.cloned().unwrap_or_else(|| drop.reason.to_string())));
    let name = match before {
        Some(before) => format!("{} to {here}", trace.point(before.host, before.hop)),
        None => here,
    };
    let from = to - latency.unwrap_or_default().min(to);
    Part { name, from, to, attributes, error: Some(why(trace, drop)) }
}

fn why(trace: &HostTrace, drop: &DropRecord) -> String {
    let host = drop.seen.host;
    let reason = reason_name(&trace.names, host, drop.reason);
    format!("dropped: {reason}, in host {}", host_name(&trace.names, host))
}

fn shown(stop: &Passed) -> u64 {
    stop.at.unwrap_or(stop.time)
}

fn of_points(from: u8, to: u8) -> Vec<KeyValue> {
    vec![attribute("dta.from", Value::IntValue(from.into())), attribute("dta.to", Value::IntValue(to.into()))]
}

/// The host, under the names of OpenTelemetry's conventions.
fn of_host(trace: &HostTrace, host: u16) -> Vec<KeyValue> {
    let name = trace.names.get(&(host, Named::Host, 0)).map(|name| text("host.name", name.clone()));
    std::iter::once(text("host.id", host.to_string())).chain(name).collect()
}

fn text(key: &str, text: String) -> KeyValue {
    attribute(key, Value::StringValue(text))
}

fn texts(key: &str, all: impl Iterator<Item = String>) -> KeyValue {
    let values = all.map(|text| AnyValue { value: Some(Value::StringValue(text)) }).collect();
    attribute(key, Value::ArrayValue(ArrayValue { values }))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

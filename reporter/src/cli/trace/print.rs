//! One packet on one line.

use std::fmt::Write as _;
use std::path::Path;

use crate::packet_trace::btf::Kernel;
use crate::packet_trace::journey::Journey;
use crate::packet_trace::kernel::{InterfaceNames, Tracer};
use crate::packet_trace::point::At;
use crate::packet_trace::record::{CallingThread, TraceRecord, flags};
use dta_cli::number::format_count;
use serde::Serialize;

/// A packet for programs. Times are nanoseconds.
#[derive(Serialize)]
pub(super) struct Document {
    /// When it was first seen, since 1970 (UTC).
    time: u64,
    /// Its digest where it was first seen, in hex.
    digest: String,
    flow: String,
    /// Length from the outermost IP header.
    length: u32,
    packets: u16,
    /// From the first point to the last.
    total: u64,
    steps: Vec<StopDocument>,
}

/// A packet at a point.
#[derive(Serialize)]
struct StopDocument {
    /// The point, as written by the user.
    at: String,
    /// The interface, after its namespace's name; `-` if the packet had none. For a call, the thread.
    place: String,
    /// Since the first point.
    since: u64,
    flow: String,
    cpu: u16,
    /// The kernel's reason for dropping it here.
    dropped: Option<String>,
}

/// Names for numbers in records, and counts of what was printed.
pub(super) struct Printer {
    places: InterfaceNames,
    kernel: Kernel,
    /// The points for people, and as written.
    points: Vec<String>,
    names: Vec<String>,
    pub(super) packets: u64,
    /// Packets that shared a digest.
    pub(super) shared: u64,
    /// Records of several packets in one buffer.
    pub(super) several: u64,
    /// TAI minus UTC on this host, in nanoseconds.
    pub(super) leap: i64,
}

impl Printer {
    pub(super) fn new(tracer: &Tracer) -> Self {
        let points = tracer.points().iter().map(|point| match &point.at {
            At::Interface { side, .. } => side.as_str().to_owned(),
            At::Tracepoint(name) | At::Fentry(name) | At::Kprobe(name) => name.clone(),
            At::Uprobe { function, .. } => function.clone(),
            At::Program(file) => {
                let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
                name.split('.').next().unwrap_or_default().to_owned()
            }
        });
        Self {
            places: tracer.interface_names(),
            kernel: tracer.kernel().clone(),
            points: points.collect(),
            names: tracer.points().iter().map(|point| point.at.to_string()).collect(),
            packets: 0,
            shared: 0,
            several: 0,
            leap: tracer.tai_offset(),
        }
    }

    /// The line: time of day (UTC), flow, length, each point with the time since the one before, and the total time.
    pub(super) fn format_journey(&mut self, journey: &Journey) -> String {
        let Some(first) = journey.records.first() else { return String::new() };
        if let Some(caller) = first.calling_thread() {
            let point = self.points.get(usize::from(first.point)).map_or("?", String::as_str);
            let time = self.format_time(first.time);
            return format!("{time} {} calls {point} on processor {}", format_caller(&caller), first.cpu);
        }
        let mut line = format!(
            "{} {} {}",
            self.format_time(first.time),
            first.flow,
            format_count(first.length.into(), "byte", "bytes")
        );
        if first.segments > 1 {
            let _ = write!(line, " ({} packets)", first.segments);
        }
        let mut before = first;
        for (index, record) in journey.records.iter().enumerate() {
            let delta = if index > 0 {
                format!(" +{}", format_duration(record.time - before.time))
            } else {
                String::new()
            };
            let _ = write!(
                line,
                "{}{delta} {}",
                if index > 0 { "," } else { ":" },
                self.format_step(record, before)
            );
            before = record;
        }
        if journey.records.len() > 1 {
            let _ = write!(line, " = {}", format_duration(journey.total_duration()));
        }
        line
    }

    pub(super) fn build_document(&mut self, journey: &Journey) -> Document {
        let first = journey.records.first();
        let start = first.map_or(0, |first| first.time);
        Document {
            time: first.map_or(0, |first| first.time.saturating_add_signed(-self.leap)),
            digest: first.map(|first| format!("{:016x}", first.first)).unwrap_or_default(),
            flow: first.map(format_flow).unwrap_or_default(),
            length: first.map_or(0, |first| first.length),
            packets: first.map_or(0, |first| if is_call(first) { 0 } else { first.segments.max(1) }),
            total: if first.is_some() { journey.total_duration() } else { 0 },
            steps: journey.records.iter().map(|record| self.build_stop(record, start)).collect(),
        }
    }

    fn build_stop(&mut self, record: &TraceRecord, start: u64) -> StopDocument {
        StopDocument {
            at: self.names.get(usize::from(record.point)).cloned().unwrap_or_default(),
            place: match record.calling_thread() {
                Some(caller) => format_caller(&caller),
                None => self.places.interface_name(record.namespace, record.interface).to_owned(),
            },
            since: record.time - start,
            flow: format_flow(record),
            cpu: record.cpu,
            dropped: (record.flags & flags::DROPPED != 0).then(|| self.kernel.reason_name(record.reason)),
        }
    }

    fn format_step(&mut self, record: &TraceRecord, before: &TraceRecord) -> String {
        let point = self.points.get(usize::from(record.point)).map_or("?", String::as_str);
        let mut text = format!("{point} {}", self.places.interface_name(record.namespace, record.interface));
        if record.flow != before.flow {
            let _ = write!(text, " as {}", record.flow);
        }
        if record.flags & flags::DROPPED != 0 {
            let _ = write!(text, " DROPPED {}", self.kernel.reason_name(record.reason));
        }
        text
    }

    fn format_time(&self, tai: u64) -> String {
        let utc = tai.saturating_add_signed(-self.leap);
        let (seconds, nanos) = (utc / 1_000_000_000 % 86_400, utc % 1_000_000_000);
        format!("{:02}:{:02}:{:02}.{:06}", seconds / 3600, seconds / 60 % 60, seconds % 60, nanos / 1000)
    }
}

fn is_call(record: &TraceRecord) -> bool {
    record.flags & flags::CALL != 0
}

/// The flow; empty for a call.
fn format_flow(record: &TraceRecord) -> String {
    if is_call(record) { String::new() } else { record.flow.to_string() }
}

/// A thread for people: its name, its process and, if different, its own number.
fn format_caller(caller: &CallingThread) -> String {
    match caller.process == caller.thread {
        true => format!("{}[{}]", caller.name, caller.process),
        false => format!("{}[{}/{}]", caller.name, caller.process, caller.thread),
    }
}

/// A duration with three or four digits.
fn format_duration(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{:.2}µs", nanos as f64 / 1e3),
        10_000..1_000_000 => format!("{:.1}µs", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}ms", nanos as f64 / 1e6),
        _ => format!("{:.2}s", nanos as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        let text: Vec<String> =
            [7, 1_234, 12_345, 999_000, 5_270_000, 2_000_000_000].map(format_duration).to_vec();
        assert_eq!(text, ["0.01µs", "1.23µs", "12.3µs", "999.0µs", "5.27ms", "2.00s"]);
    }
}

//! One packet on one line.

use std::fmt::Write as _;
use std::path::Path;

use dta_cli::number::counted;
use crate::packet_trace::btf::Kernel;
use crate::packet_trace::journey::Journey;
use crate::packet_trace::kernel::{Places, Tracer};
use crate::packet_trace::point::At;
use crate::packet_trace::record::{Caller, Record, flags};
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
    /// Number of packets in the buffer.
    packets: u16,
    /// From the first point to the last.
    total: u64,
    steps: Vec<Stop>,
}

/// A packet at a point.
#[derive(Serialize)]
struct Stop {
    /// The point, as written by the user.
    at: String,
    /// The interface, after its namespace's name; `-` if the packet had none. For a call, the thread.
    place: String,
    /// Since the first point.
    since: u64,
    /// Changed by address translation.
    flow: String,
    cpu: u16,
    /// The kernel's reason for dropping it here.
    dropped: Option<String>,
}

/// Names for numbers in records, and counts of what was printed.
pub(super) struct Printer {
    places: Places,
    kernel: Kernel,
    /// The points for people, and as written.
    points: Vec<String>,
    names: Vec<String>,
    /// Packets on lines.
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
            At::Interface { side, .. } => side.word().to_owned(),
            At::Tracepoint(name) | At::Fentry(name) | At::Kprobe(name) => name.clone(),
            At::Uprobe { function, .. } => function.clone(),
            At::Program(file) => {
                let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
                name.split('.').next().unwrap_or_default().to_owned()
            }
        });
        Self {
            places: tracer.places(),
            kernel: tracer.kernel().clone(),
            points: points.collect(),
            names: tracer.points().iter().map(|point| point.at.to_string()).collect(),
            packets: 0,
            shared: 0,
            several: 0,
            leap: tracer.leap(),
        }
    }

    /// The line: time of day (UTC), flow, length, each point with the time since the one before, the time from first to last.
    pub(super) fn line(&mut self, journey: &Journey) -> String {
        let Some(first) = journey.records.first() else { return String::new() };
        if let Some(caller) = first.caller() {
            let point = self.points.get(usize::from(first.point)).map_or("?", String::as_str);
            let time = self.time(first.time);
            return format!("{time} {} calls {point} on processor {}", named(&caller), first.cpu);
        }
        let mut line = format!(
            "{} {} {}",
            self.time(first.time),
            first.flow,
            counted(first.length.into(), "byte", "bytes")
        );
        if first.segments > 1 {
            let _ = write!(line, " ({} packets)", first.segments);
        }
        let mut before = first;
        for (index, record) in journey.records.iter().enumerate() {
            let delta =
                if index > 0 { format!(" +{}", short(record.time - before.time)) } else { String::new() };
            let _ =
                write!(line, "{}{delta} {}", if index > 0 { "," } else { ":" }, self.step(record, before));
            before = record;
        }
        if journey.records.len() > 1 {
            let _ = write!(line, " = {}", short(journey.total()));
        }
        line
    }

    /// The same for programs.
    pub(super) fn document(&mut self, journey: &Journey) -> Document {
        let first = journey.records.first();
        let start = first.map_or(0, |first| first.time);
        Document {
            time: first.map_or(0, |first| first.time.saturating_add_signed(-self.leap)),
            digest: first.map(|first| format!("{:016x}", first.first)).unwrap_or_default(),
            flow: first.map(flow).unwrap_or_default(),
            length: first.map_or(0, |first| first.length),
            packets: first.map_or(0, |first| if is_call(first) { 0 } else { first.segments.max(1) }),
            total: if first.is_some() { journey.total() } else { 0 },
            steps: journey.records.iter().map(|record| self.stop(record, start)).collect(),
        }
    }

    fn stop(&mut self, record: &Record, start: u64) -> Stop {
        Stop {
            at: self.names.get(usize::from(record.point)).cloned().unwrap_or_default(),
            place: match record.caller() {
                Some(caller) => named(&caller),
                None => self.places.name(record.namespace, record.interface).to_owned(),
            },
            since: record.time - start,
            flow: flow(record),
            cpu: record.cpu,
            dropped: (record.flags & flags::DROPPED != 0).then(|| self.kernel.reason(record.reason)),
        }
    }

    fn step(&mut self, record: &Record, before: &Record) -> String {
        let point = self.points.get(usize::from(record.point)).map_or("?", String::as_str);
        let mut text = format!("{point} {}", self.places.name(record.namespace, record.interface));
        if record.flow != before.flow {
            let _ = write!(text, " as {}", record.flow);
        }
        if record.flags & flags::DROPPED != 0 {
            let _ = write!(text, " DROPPED {}", self.kernel.reason(record.reason));
        }
        text
    }

    fn time(&self, tai: u64) -> String {
        let utc = tai.saturating_add_signed(-self.leap);
        let (seconds, nanos) = (utc / 1_000_000_000 % 86_400, utc % 1_000_000_000);
        format!("{:02}:{:02}:{:02}.{:06}", seconds / 3600, seconds / 60 % 60, seconds % 60, nanos / 1000)
    }
}

fn is_call(record: &Record) -> bool {
    record.flags & flags::CALL != 0
}

/// The flow; empty for a call.
fn flow(record: &Record) -> String {
    if is_call(record) { String::new() } else { record.flow.to_string() }
}

/// A thread for people: its name, its process and, if different, its own number.
fn named(caller: &Caller) -> String {
    match caller.process == caller.thread {
        true => format!("{}[{}]", caller.name, caller.process),
        false => format!("{}[{}/{}]", caller.name, caller.process, caller.thread),
    }
}

/// A duration with three or four digits.
fn short(nanos: u64) -> String {
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
        let text: Vec<String> = [7, 1_234, 12_345, 999_000, 5_270_000, 2_000_000_000].map(short).to_vec();
        assert_eq!(text, ["0.01µs", "1.23µs", "12.3µs", "999.0µs", "5.27ms", "2.00s"]);
    }
}

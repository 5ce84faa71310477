//! Turns what the points of a host see of packets into DTA reports.
//!
//! A [`Tracer`] receives each [`TraceRecord`] that the kernel passes up and, from time to time, the counts of
//! flows. It assembles what the host saw of one packet (`journeys`), and reports to a collector: each point
//! as a postcard, the packet with its flow, drops, slow packets, latencies of flows between two points
//! (`latencies`), and counts (`counts`, `sizes`). [`dta_proto::trace`] defines keys and layouts.
//!
//! This module reads neither the kernel nor a clock: the caller passes the time, by the records' clock, to
//! [`Tracer::report_due`]. [`TracerLimits`] bound what is held.

mod counters;
mod counts;
mod journeys;
mod latencies;
mod sizes;
mod stores;

use std::time::Duration;

use crate::packet_trace::counts::{FlowAt, FlowCount};
use crate::packet_trace::record::{TraceRecord, flags};
use dta_link::LinkError;
use dta_proto::key::Flow;
use dta_proto::trace::{
    Books, EPOCH_SECONDS, HOPS, Named, PacketSighting, TraceEntry, TraceName, bytes_key, drops_key,
    packets_key, path_key,
};
use dta_proto::wire;
use dta_proto::wire::dta::DtaBody;

use crate::Reporter;

pub use counters::TracerCounters;
pub use stores::{BadStore, TraceStores};

use counts::FlowCounts;
use journeys::{Journey, Journeys, Took};
use latencies::Latencies;
use sizes::Sizes;

/// One of the host's points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPoint {
    /// Its number in keys and entries: below [`HOPS`] if it is on the packets' path.
    pub hop: u8,
    pub name: String,
}

impl HostPoint {
    /// Stands in for a removed point, whose late records are counted but not reported.
    pub fn without_hop() -> HostPoint {
        HostPoint { hop: GONE, name: String::new() }
    }
}

/// The hop of a removed point.
const GONE: u8 = u8::MAX;

/// Numbers points in order: those on the packets' path (`true`) from `first`, this host's first number in the
/// whole network; those at which a path ends (drops, and consumed packets) from 128.
///
/// # Errors
/// There are more points on the path than numbers.
pub fn number_points(
    points: impl IntoIterator<Item = (bool, String)>,
    first: u8,
) -> Result<Vec<HostPoint>, TooManyPoints> {
    let (mut next, mut aside) = (first, 128);
    let mut numbered = Vec::new();
    for (is_on_way, name) in points {
        let place = if is_on_way { &mut next } else { &mut aside };
        numbered.push(HostPoint { hop: *place, name });
        *place = place.saturating_add(1);
    }
    match next <= HOPS && aside < u8::MAX {
        true => Ok(numbered),
        false => Err(TooManyPoints { first, last: next.saturating_sub(1) }),
    }
}

/// More points than a path has hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the points of this host would be hops {first} to {last}, but a path has only hops 0 to 13 over all \
    hosts: trace at fewer points, or start with a lower hop"
)]
pub struct TooManyPoints {
    first: u8,
    last: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracerLimits {
    /// Most packets in flight through the host.
    pub packets: usize,
    /// Most flows and segments with known latencies.
    pub segments: usize,
    /// Most flows at points with known counts.
    pub flows: usize,
}

impl Default for TracerLimits {
    /// Some ten megabytes in total.
    fn default() -> Self {
        TracerLimits { packets: 16_384, segments: 16_384, flows: 65_536 }
    }
}

#[derive(Clone, Debug)]
pub struct Setup {
    /// This host's id, which is that of its reporter.
    pub host: u16,
    pub name: String,
    /// Its points, by their numbers in records.
    pub points: Vec<HostPoint>,
    pub stores: TraceStores,
    /// Packets that took longer through this host are reported individually.
    pub slow: Option<Duration>,
    /// A packet is reported when nothing new was seen of it for this long; 1 ms to 2 s.
    pub quiet: Duration,
    /// Interval between reports of names, latencies and totals.
    pub every: Duration,
    /// Seconds per epoch of the sketch.
    pub epoch: u32,
    /// Whether PTP keeps this kernel's TAI, as on other such hosts.
    pub synced: bool,
    /// Limits on what is held.
    pub limits: TracerLimits,
}

impl Setup {
    /// The usual setup: packets are complete after half a second, values are sent every second, epochs last
    /// 10 s, and there is no threshold.
    pub fn new(host: u16, name: impl Into<String>, points: Vec<HostPoint>, stores: TraceStores) -> Setup {
        Setup {
            host,
            name: name.into(),
            points,
            stores,
            slow: None,
            quiet: Duration::from_millis(500),
            every: Duration::from_secs(1),
            epoch: EPOCH_SECONDS,
            synced: false,
            limits: TracerLimits::default(),
        }
    }
}

/// Names a drop reason, by the running kernel.
pub type NameReason = Box<dyn FnMut(u32) -> Option<String> + Send>;

/// Names of points and reasons are reported again after this many intervals of [`Setup::every`].
const NAMES_EVERY: u64 = 10;
/// Most reasons that get a name; the kernel has about a hundred.
const REASONS: usize = 512;

pub struct Tracer {
    reporter: Reporter,
    setup: Setup,
    name_reason: NameReason,
    journeys: Journeys,
    latencies: Latencies,
    counts: FlowCounts,
    sizes: Option<Sizes>,
    reasons: Vec<u32>,
    books: Books,
    /// When values are reported next, by the records' clock; 0 = at the next tick.
    due: u64,
    turns: u64,
    counters: TracerCounters,
}

impl Tracer {
    /// Creates a tracer, allocating everything that it holds.
    pub fn new(reporter: Reporter, setup: Setup, name_reason: NameReason) -> Tracer {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let quiet = nanoseconds(setup.quiet).clamp(1_000_000, 2_000_000_000);
        Tracer {
            journeys: Journeys::new(setup.limits.packets, quiet),
            latencies: Latencies::new(setup.limits.segments),
            counts: FlowCounts::new(setup.limits.flows),
            sizes: setup.stores.sizes.map(|sizes| Sizes::new(sizes, setup.epoch.max(1))),
            reasons: Vec::with_capacity(REASONS),
            books: Books::default(),
            due: 0,
            turns: 0,
            counters: TracerCounters::default(),
            reporter,
            setup,
            name_reason,
        }
    }

    /// Processes a record of a point.
    ///
    /// # Errors
    /// The report format cannot express something: the error names it. That is a bug in the program, not in
    /// the packet.
    pub fn process_record(&mut self, record: &TraceRecord) -> wire::Result<()> {
        self.counters.records += 1;
        let Some(hop) = self.hop_of_point(record.point) else {
            self.counters.unknown_point += 1;
            return Ok(());
        };
        if record.flags & flags::PARTIAL != 0 {
            self.counters.partial += 1;
        }
        if record.flags & flags::SEGMENTS != 0 {
            self.counters.segments += 1;
        }
        if record.flags & flags::DROPPED != 0 {
            self.drop(record, hop)?;
        }
        if hop >= HOPS {
            return Ok(());
        }
        match self.journeys.take(record, hop) {
            Took::New | Took::Next => {}
            Took::Repeat => self.counters.repeats += 1,
            Took::SharedDigest => self.counters.shared_digests += 1,
            Took::Full(journey) => {
                self.counters.early += 1;
                self.report_journey(&journey)?;
            }
        }
        Ok(())
    }

    /// The hop of a point, by its number in records.
    fn hop_of_point(&self, point: u16) -> Option<u8> {
        self.setup.points.get(usize::from(point)).map(|point| point.hop).filter(|hop| *hop != GONE)
    }

    /// From now on, records belong to these points, by their numbers in records. Everything held is reported
    /// first, and the new names with the next tick.
    ///
    /// # Errors
    /// As [`Tracer::process_record`].
    pub fn set_points(&mut self, points: Vec<HostPoint>) -> wire::Result<()> {
        while let Some(journey) = self.journeys.take_quiet(u64::MAX) {
            self.report_journey(&journey)?;
        }
        self.setup.points = points;
        (self.turns, self.due) = (0, 0);
        Ok(())
    }

    /// Processes a flow's total at a point; only the increase since the last call is reported.
    ///
    /// # Errors
    /// As [`Tracer::process_record`].
    pub fn report_flow_count(&mut self, at: &FlowAt, total: FlowCount) -> wire::Result<()> {
        let Some(hop) = self.hop_of_point(at.point) else {
            self.counters.unknown_point += 1;
            return Ok(());
        };
        let (more, is_first) = self.counts.take_increase(at, total);
        let host = self.setup.host;
        self.increment(packets_key(&at.flow, host, hop), more.packets)?;
        self.increment(bytes_key(&at.flow, host, hop), more.bytes)?;
        self.increment(drops_key(&at.flow, host, dta_proto::trace::ANY_REASON), more.drops)?;
        if let Some(sizes) = self.sizes.as_mut().filter(|_| is_first) {
            sizes.add(&at.flow, more.bytes);
        }
        Ok(())
    }

    /// Notes that the kernel counts this flow at this point from 0 again.
    pub fn forget_flow(&mut self, at: &FlowAt) {
        self.counts.forget_flow(at);
    }

    /// Sets the totals of all packets at all points since the programs were attached.
    pub fn set_totals(&mut self, books: &crate::packet_trace::counts::Books) {
        self.books = Books {
            seen: books.seen,
            reported: books.reported,
            left_out: books.filtered + books.sampled_out + books.own,
            ring_full: books.ring_full,
            refused: books.unparsed_packets(),
        };
        self.counters.books = *books;
    }

    /// Reports packets of which nothing new was seen for a while and, when due, names, latencies, sizes and
    /// totals; sends what is pending, and answers NACKs. Must be called several times a second. `now` is the
    /// time by the records' clock.
    ///
    /// # Errors
    /// Socket errors ([`Reporter::poll`]); or as [`Tracer::process_record`].
    pub fn report_due(&mut self, now: u64) -> Result<(), TraceError> {
        while let Some(journey) = self.journeys.take_quiet(now) {
            self.report_journey(&journey)?;
        }
        if now >= self.due {
            self.due = now.saturating_add(self.setup.every.as_nanos() as u64);
            self.report_values(now)?;
        }
        self.reporter.flush()?;
        Ok(())
    }

    /// Reports everything held, and waits for NACKs for the given time.
    ///
    /// # Errors
    /// As [`Tracer::report_due`].
    pub fn finish(&mut self, now: u64, linger: Duration) -> Result<(), TraceError> {
        while let Some(journey) = self.journeys.take_quiet(u64::MAX) {
            self.report_journey(&journey)?;
        }
        self.turns = 0;
        self.report_values(now)?;
        let Tracer { sizes, reporter, .. } = self;
        if let Some(sizes) = sizes {
            sizes.report_epoch(|store, epoch, column, cells| {
                reporter.report(store, DtaBody::SketchMerge { epoch, column, cells }).map(drop)
            })?;
        }
        self.reporter.answer_nacks_for(linger)?;
        Ok(())
    }

    /// The counters, including the reporter's own.
    pub fn counters(&self) -> TracerCounters {
        TracerCounters {
            reporter: self.reporter.counters(),
            held: self.journeys.len() as u64,
            ..self.counters
        }
    }

    /// Becomes readable when a NACK arrives: for an event loop.
    pub fn nack_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reporter.nack_fd()
    }

    fn drop(&mut self, record: &TraceRecord, hop: u8) -> wire::Result<()> {
        self.counters.drops += 1;
        let seen = self.build_seen(record.time, &record.flow, record.first, hop, record.length);
        let (reason, interface) = (record.reason, record.interface);
        self.append_entry(&TraceEntry::Drop { seen, reason, interface })?;
        self.increment(drops_key(&record.flow, self.setup.host, reason), 1)?;
        if !self.reasons.contains(&reason) && self.reasons.len() < REASONS {
            self.reasons.push(reason);
            self.report_reason(record.time, reason)?;
        }
        Ok(())
    }

    fn build_seen(&self, time: u64, flow: &Flow, digest: u64, hop: u8, length: u32) -> PacketSighting {
        let Setup { host, synced, .. } = self.setup;
        PacketSighting { time, flow: flow.to_key(), digest, host, hop, synced, length }
    }

    /// Reports what this host saw of a packet.
    fn report_journey(&mut self, journey: &Journey) -> wire::Result<()> {
        let stops = journey.stops();
        let [first, .., last] = stops else {
            let Some(only) = stops.first() else { return Ok(()) };
            return self.report_path(journey, only.time, only.hop);
        };
        for pair in stops.windows(2) {
            self.latencies.add(
                &journey.flow,
                [pair[0].hop, pair[1].hop],
                pair[1].time - pair[0].time,
                pair[1].time,
            );
        }
        let latency = last.time - first.time;
        if self.setup.slow.is_some_and(|slow| u128::from(latency) > slow.as_nanos()) {
            self.counters.slow += 1;
            let seen = self.build_seen(last.time, &journey.flow, journey.digest, last.hop, journey.length);
            self.append_entry(&TraceEntry::Slow { seen, from: first.hop, latency })?;
        }
        self.report_path(journey, first.time, first.hop)
    }

    fn report_path(&mut self, journey: &Journey, time: u64, hop: u8) -> wire::Result<()> {
        self.counters.packets += 1;
        let seen = self.build_seen(time, &journey.flow, journey.digest, hop, journey.length);
        let stops = journey.stops();
        self.append_entry(&TraceEntry::Packet { seen, points: stops.len() as u8, left: journey.left })?;
        let Some(store) = self.setup.stores.paths else {
            self.counters.no_store += stops.len() as u64;
            return Ok(());
        };
        let key = path_key(journey.digest, self.setup.host);
        for stop in stops {
            let value = stop.time as u32;
            self.reporter.report(store, DtaBody::Postcard { key, hop: stop.hop, path_length: 0, value })?;
        }
        Ok(())
    }

    /// Reports names, latencies, sizes and totals.
    fn report_values(&mut self, now: u64) -> wire::Result<()> {
        let host = self.setup.host;
        if self.turns.is_multiple_of(NAMES_EVERY) {
            let name = TraceName::new(&self.setup.name);
            self.append_entry(&TraceEntry::Name { time: now, host, of: Named::Host, number: 0, name })?;
            for number in 0..self.setup.points.len() {
                let point = &self.setup.points[number];
                if point.hop == GONE {
                    continue;
                }
                let (of, number, name) = (Named::Point, point.hop.into(), TraceName::new(&point.name));
                self.append_entry(&TraceEntry::Name { time: now, host, of, number, name })?;
            }
            for number in 0..self.reasons.len() {
                self.report_reason(now, self.reasons[number])?;
            }
        }
        self.turns += 1;
        let Tracer { latencies, sizes, reporter, setup, counters, .. } = self;
        match setup.stores.latencies {
            Some(store) => latencies.report_news(host, |key, value| {
                reporter
                    .report(store, DtaBody::KeyWrite { redundancy: 0, key, value: &value.to_bytes() })
                    .map(drop)
            })?,
            None => counters.no_store += latencies.discard_news(),
        }
        if let Some(sizes) = sizes {
            sizes.report_past_epoch(now, |store, epoch, column, cells| {
                reporter.report(store, DtaBody::SketchMerge { epoch, column, cells }).map(drop)
            })?;
        }
        self.append_entry(&TraceEntry::Books { time: now, host, books: self.books })
    }

    fn report_reason(&mut self, time: u64, reason: u32) -> wire::Result<()> {
        let Some(name) = (self.name_reason)(reason) else { return Ok(()) };
        let (host, name) = (self.setup.host, TraceName::new(&name));
        self.append_entry(&TraceEntry::Name { time, host, of: Named::Reason, number: reason, name })
    }

    fn append_entry(&mut self, entry: &TraceEntry) -> wire::Result<()> {
        match self.setup.stores.events {
            Some(store) => self
                .reporter
                .report(store, DtaBody::Append { list: entry.list_number(), value: &entry.to_bytes() })
                .map(drop),
            None => {
                self.counters.no_store += 1;
                Ok(())
            }
        }
    }

    fn increment(&mut self, key: dta_proto::key::Key, delta: u64) -> wire::Result<()> {
        match self.setup.stores.counters {
            _ if delta == 0 => Ok(()),
            Some(store) => {
                self.reporter.report(store, DtaBody::KeyIncrement { redundancy: 0, key, delta }).map(drop)
            }
            None => {
                self.counters.no_store += 1;
                Ok(())
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The report format cannot express something.
    #[error("cannot build a report: {0}")]
    Report(#[from] wire::Error),
    #[error("cannot send reports: {0}")]
    Link(#[from] LinkError),
}

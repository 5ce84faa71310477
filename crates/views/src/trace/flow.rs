//! The trace of one flow.

use std::collections::{BTreeMap, HashSet};

use dta_cli::number::{format_count, format_grouped};
pub use dta_export::hosts::clocks::ClockKind;
use dta_export::hosts::clocks::{Clock, Clocks};
use dta_export::hosts::journey::{Passed, journey_points, unknown_clock};
use dta_export::hosts::packets::{PacketRecord, host_name, hosts_of_hops};
use dta_export::source::Lost;
use dta_proto::key::{Flow, Key};
use dta_proto::store::StoreKind;
use dta_proto::trace::{self, ANY_REASON, EPOCH_SECONDS, HOPS, Latency, Named, PacketSighting, list, store};
use dta_proto::wire::dta::Primitive;
use dta_rpc::{Ask, AskKeys};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use super::read::{Packets, TraceEvents};
use crate::int::stores::{query_counts, query_values};
use crate::int::{IntError, StoreCatalog, moment};

/// The IP protocol.
const TCP: u8 = 6;

/// Most epoch queries in flight at once.
const QUESTIONS_AT_ONCE: usize = 8;

/// A point of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowTracePoint {
    /// Its number: 0 to 13 on the path of packets.
    pub hop: u8,
    /// Its name; `None` = no longer known.
    pub name: Option<String>,
    /// The host, by the id of its reporter; `None` = no longer known.
    pub host: Option<u16>,
    pub host_name: Option<String>,
    /// Sampled packets of the flow seen there.
    pub sampled: u64,
    /// All packets of the flow counted there, sampled or not; `None` = none.
    pub packets: Option<u64>,
    /// Their bytes, starting with the outermost IP header.
    pub bytes: Option<u64>,
}

/// Statistics of packet times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TransitTimes {
    pub packets: u64,
    pub least: i64,
    /// Half of the packets took no longer.
    pub median: i64,
    /// 99 % of the packets took no longer.
    pub p99: i64,
    pub most: i64,
}

impl TransitTimes {
    /// The statistics; `None` without times.
    fn from_times(mut all: Vec<i64>) -> Option<TransitTimes> {
        all.sort_unstable();
        let (least, most) = (*all.first()?, *all.last()?);
        // Nearest rank: the shortest time that this percentage did not exceed.
        let rank = |of_hundred: usize| all[(all.len() * of_hundred).div_ceil(100).max(1) - 1];
        Some(TransitTimes { packets: all.len() as u64, least, median: rank(50), p99: rank(99), most })
    }
}

/// From one point to the next one where a packet was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Segment {
    pub from: u8,
    pub to: u8,
    /// Whether it is on the path that most packets took.
    pub on_way: bool,
    /// Sampled packets that took it.
    pub packets: u64,
    /// How long they took; `None` = the clock difference is unknown.
    pub times: Option<TransitTimes>,
    /// How both ends' clocks compare.
    pub clock: ClockKind,
    /// Largest error of each time in nanoseconds, if the ends are on two hosts; `None` if packets do not reveal it.
    pub bound: Option<u64>,
    /// What the host itself reported, if both ends are on one host: over all sampled packets, including those no
    /// longer in the ring.
    pub of_host: Option<HostLatency>,
}

/// What a host reported about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HostLatency {
    /// Nanoseconds; 4294967295 means that or more.
    #[serde(flatten)]
    pub latency: Latency,
    /// The age of the last packet.
    pub age_seconds: Option<f64>,
}

/// A sequence of points that packets took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowPath {
    pub hops: Vec<u8>,
    /// How many sampled packets took it.
    pub packets: u64,
}

/// Drops of the flow on one host for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostDropCount {
    pub host: u16,
    pub host_name: Option<String>,
    /// The kernel's number of the reason; `None` = all drops that the kernel programs counted, for any reason.
    pub reason: Option<u32>,
    /// The reason's name in that kernel.
    pub reason_name: Option<String>,
    /// Their count; if there is a reason, only of sampled packets.
    pub counted: Option<u64>,
    /// How many of them are in the list of drops.
    pub listed: u64,
    /// The age of the last of these.
    pub age_seconds: Option<f64>,
}

/// Packets that took longer than the threshold of their host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slow {
    pub host: u16,
    pub host_name: Option<String>,
    /// How many are in the list.
    pub packets: u64,
    /// Nanoseconds of the slowest one.
    pub most: u64,
    pub between: (u8, u8),
    /// The age of the last one.
    pub age_seconds: Option<f64>,
}

/// How a host's clock compares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostClock {
    pub host: u16,
    pub host_name: Option<String>,
    /// How its clock was converted to the reference.
    pub clock: ClockKind,
    /// Its largest error in nanoseconds.
    pub bound: Option<u64>,
    /// Why its clock could not be compared.
    pub why_not: Option<String>,
}

/// The size of the flow in a finished epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FlowSize {
    /// When the epoch began, in seconds since 1970 by the clocks of the hosts.
    pub began: u64,
    /// How many seconds it lasted.
    pub seconds: u32,
    /// Upper bound of its bytes: other flows may be included. Each host counts a flow at one of its points.
    pub bytes: u64,
    /// Hosts whose sketches it includes.
    pub hosts: u32,
}

/// Everything known about a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowTrace {
    pub flow: Flow,
    /// Whether anything is known about it.
    pub found: bool,
    /// Sampled packets of the flow that hosts reported.
    pub sampled: u64,
    /// Those whose paths are known: times cover these.
    pub with_path: u64,
    /// Points where the flow was seen; first those on the most common path, in its order.
    pub points: Vec<FlowTracePoint>,
    /// The paths that packets took, most common first.
    pub ways: Vec<FlowPath>,
    pub segments: Vec<Segment>,
    /// From the first to the last point of the most common path, over the packets that took it.
    pub total: Option<TransitTimes>,
    /// Largest error of each of these times in nanoseconds, if the ends are on two hosts; `None` if packets do not
    /// reveal it.
    pub total_bound: Option<u64>,
    /// Sizes of the flow in the last epochs that the collector has, newest first.
    pub sizes: Vec<FlowSize>,
    pub drops: Vec<HostDropCount>,
    /// Packets that took too long.
    pub slow: Vec<Slow>,
    /// The clocks of the hosts on the path.
    pub clocks: Vec<HostClock>,
    /// What the answer is missing, in sentences.
    pub lacks: Vec<String>,
}

/// What is known about a flow.
pub async fn trace_flow(ask: &dyn Ask, flow: &Flow) -> Result<FlowTrace, IntError> {
    let catalog = StoreCatalog::fetch_from(ask).await?;
    for (name, primitive) in [(store::EVENTS, Primitive::Append), (store::PATHS, Primitive::Postcarding)] {
        if !catalog.has_store(name, primitive) {
            return Err(IntError::NoStore(format!(
                "this collector has no {} store {name}, where hosts report packets (docs/host-tracing.md); it has {}",
                primitive.canonical_name(),
                catalog.store_names()
            )));
        }
    }
    let events = TraceEvents::read_from(ask).await?;
    let key = flow.to_key();
    let is_of_flow = |group: &[PacketRecord]| group.iter().any(|record| record.seen.flow == key);
    let own = Packets::read_matching(ask, &events, is_of_flow).await?;
    let hosts: HashSet<u16> =
        own.packets.iter().flat_map(|packet| &packet.visits).map(|visit| visit.host).collect();
    // Clocks are compared using the packets of all flows: those of one flow go only one way.
    let clocks = if hosts.len() > 1 {
        let crosses = |group: &[PacketRecord]| {
            group.iter().any(|record| record.seen.host != group[0].seen.host)
                && group.iter().any(|record| hosts.contains(&record.seen.host))
        };
        Clocks::from_packets(&Packets::read_matching(ask, &events, crosses).await?.packets)
    } else {
        Clocks::from_packets(&own.packets)
    };
    let mut report = put_together(flow, &events, &own, &clocks);
    let of = FlowQueries { ask, catalog: &catalog, events: &events, flow };
    of.add_counts(&mut report).await?;
    of.latencies(&mut report).await?;
    of.add_sizes(&mut report).await?;
    report.found = report.sampled > 0
        || !report.drops.is_empty()
        || !report.slow.is_empty()
        || report.points.iter().any(|point| point.packets.is_some());
    report.lacks = describe_gaps(&report, &events, &own, &clocks);
    Ok(report)
}

/// Packets from one point to another.
#[derive(Default)]
struct SegmentTimes {
    packets: u64,
    times: Vec<i64>,
    hosts: [u16; 2],
}

fn put_together(flow: &Flow, events: &TraceEvents, own: &Packets, clocks: &Clocks) -> FlowTrace {
    let (mut ways, mut sampled) = (BTreeMap::<Vec<u8>, Vec<Option<i64>>>::new(), BTreeMap::<u8, u64>::new());
    let mut segments: BTreeMap<(u8, u8), SegmentTimes> = BTreeMap::new();
    for packet in &own.packets {
        let stops = journey_points(packet, clocks);
        for pair in stops.windows(2) {
            let segment = segments.entry((pair[0].hop, pair[1].hop)).or_default();
            segment.packets += 1;
            segment.times.extend(pair[1].elapsed_since(&pair[0]));
            segment.hosts = [pair[0].host, pair[1].host];
        }
        stops.iter().for_each(|stop| *sampled.entry(stop.hop).or_default() += 1);
        ways.entry(stops.iter().map(|stop| stop.hop).collect())
            .or_default()
            .push(Passed::total_latency(&stops));
    }
    let mut ways: Vec<_> = ways.into_iter().collect();
    ways.sort_by_key(|(hops, totals)| (std::cmp::Reverse(totals.len()), hops.clone()));
    let way = ways.first().map(|(hops, _)| hops.clone()).unwrap_or_default();
    let hosts = hosts_of_hops(&events.names, &events.packets);
    let host_of = |hop: u8| hosts.get(usize::from(hop)).copied().flatten();
    let bound_between = |from: u16, to: u16| clocks.error_bound(from, to).map(|bound| bound.ceil() as u64);
    let others = sampled.keys().copied().filter(|hop| !way.contains(hop));
    let points = way.iter().copied().chain(others).map(|hop| {
        let host = host_of(hop);
        let name_of = |of, number| host.and_then(|host| events.names.get(&(host, of, number)).cloned());
        FlowTracePoint {
            hop,
            name: name_of(Named::Point, hop.into()),
            host,
            host_name: name_of(Named::Host, 0),
            sampled: sampled.get(&hop).copied().unwrap_or(0),
            packets: None,
            bytes: None,
        }
    });
    let points = points.collect();
    let place = |hops: &(u8, u8)| way.windows(2).position(|pair| (pair[0], pair[1]) == *hops);
    let mut segments: Vec<_> = segments
        .into_iter()
        .map(|(hops, SegmentTimes { packets, times, hosts: [from, to] })| {
            let (clock, bound) = (clocks.kind_between(from, to), bound_between(from, to));
            let (times, on_way) = (TransitTimes::from_times(times), place(&hops).is_some());
            Segment { from: hops.0, to: hops.1, on_way, packets, times, clock, bound, of_host: None }
        })
        .collect();
    segments.sort_by_key(|segment| place(&(segment.from, segment.to)).unwrap_or(usize::MAX));
    let total = ways
        .first()
        .and_then(|(_, totals)| TransitTimes::from_times(totals.iter().copied().flatten().collect()));
    let ends = way.first().zip(way.last()).and_then(|(from, to)| Some((host_of(*from)?, host_of(*to)?)));
    let clock_of = |(host, clock): (&u16, &Clock)| HostClock {
        host: *host,
        host_name: events.names.get(&(*host, Named::Host, 0)).cloned(),
        clock: clock.clock_kind(),
        bound: clock.error_bound().filter(|bound| *bound > 0.0).map(|bound| bound.ceil() as u64),
        why_not: match clock {
            Clock::Unknown(no) => Some(no.to_string()),
            _ => None,
        },
    };
    let passed: HashSet<u16> =
        own.packets.iter().flat_map(|packet| &packet.visits).map(|visit| visit.host).collect();
    FlowTrace {
        flow: *flow,
        found: false,
        sampled: own.packet_count,
        with_path: own.packets.len() as u64,
        points,
        ways: ways
            .into_iter()
            .map(|(hops, totals)| FlowPath { hops, packets: totals.len() as u64 })
            .collect(),
        segments,
        total,
        total_bound: ends.and_then(|(from, to)| bound_between(from, to)),
        sizes: Vec::new(),
        drops: summarize_drops(events, &flow.to_key(), &own.digests),
        slow: summarize_slow(events, &flow.to_key()),
        clocks: clocks.of.iter().filter(|(host, _)| passed.contains(host)).map(clock_of).collect(),
        lacks: Vec::new(),
    }
}

/// Drops of the flow, even where its addresses had been translated: then the packet's first digest reveals it.
fn summarize_drops(events: &TraceEvents, key: &Key, digests: &HashSet<u64>) -> Vec<HostDropCount> {
    let is_own = |seen: &PacketSighting| seen.flow == *key || digests.contains(&seen.digest);
    let now = moment::now();
    let mut all: BTreeMap<(u16, u32), (u64, u64)> = BTreeMap::new();
    for drop in events.drops.iter().filter(|drop| is_own(&drop.seen)) {
        let (listed, last) = all.entry((drop.seen.host, drop.reason)).or_default();
        *listed += 1;
        *last = (*last).max(drop.seen.time);
    }
    all.into_iter()
        .map(|((host, reason), (listed, last))| HostDropCount {
            host,
            host_name: events.names.get(&(host, Named::Host, 0)).cloned(),
            reason: Some(reason),
            reason_name: events.names.get(&(host, Named::Reason, reason)).cloned(),
            counted: None,
            listed,
            age_seconds: moment::age_in_seconds(last, now),
        })
        .collect()
}

fn summarize_slow(events: &TraceEvents, key: &Key) -> Vec<Slow> {
    let now = moment::now();
    let mut all: BTreeMap<u16, Slow> = BTreeMap::new();
    let mut lasts: BTreeMap<u16, u64> = BTreeMap::new();
    for slow in events.slow.iter().filter(|slow| slow.seen.flow == *key) {
        let host = slow.seen.host;
        let of_host = all.entry(host).or_insert_with(|| Slow {
            host,
            host_name: events.names.get(&(host, Named::Host, 0)).cloned(),
            packets: 0,
            most: 0,
            between: (slow.from, slow.seen.hop),
            age_seconds: None,
        });
        let last = lasts.entry(host).or_insert(0);
        *last = slow.seen.time.max(*last);
        of_host.packets += 1;
        if slow.latency > of_host.most {
            (of_host.most, of_host.between) = (slow.latency, (slow.from, slow.seen.hop));
        }
        // The last by time, as entries of a list may have overtaken one another.
        of_host.age_seconds = moment::age_in_seconds(*last, now);
    }
    all.into_values().collect()
}

struct FlowQueries<'a> {
    ask: &'a dyn Ask,
    catalog: &'a StoreCatalog,
    events: &'a TraceEvents,
    flow: &'a Flow,
}

impl FlowQueries<'_> {
    /// Adds counts at the points of all hosts, and drops.
    async fn add_counts(&self, report: &mut FlowTrace) -> Result<(), IntError> {
        if !self.catalog.has_store(store::COUNTERS, Primitive::KeyIncrement) {
            return Ok(());
        }
        let named = |of: Named| {
            let names = self.events.names.keys().filter(move |(_, is, _)| *is == of);
            names.map(|(host, _, number)| (*host, *number)).collect::<Vec<_>>()
        };
        let points: Vec<(u16, u8)> =
            named(Named::Point).into_iter().map(|(host, hop)| (host, hop as u8)).collect();
        let keys: Vec<Key> = points
            .iter()
            .flat_map(|(host, hop)| {
                [trace::packets_key(self.flow, *host, *hop), trace::bytes_key(self.flow, *host, *hop)]
            })
            .collect();
        let counted = query_counts(self.ask, store::COUNTERS, &keys).await?;
        for (&(host, hop), counted) in points.iter().zip(counted.chunks_exact(2)) {
            if counted[0] == 0 {
                continue;
            }
            let at = match report.points.iter().position(|point| (point.hop, point.host) == (hop, Some(host)))
            {
                Some(at) => at,
                // Only the kernel counters saw the flow there: none of its packets was sampled.
                None if hop < HOPS => {
                    report.points.push(FlowTracePoint {
                        hop,
                        name: self.events.names.get(&(host, Named::Point, hop.into())).cloned(),
                        host: Some(host),
                        host_name: self.events.names.get(&(host, Named::Host, 0)).cloned(),
                        sampled: 0,
                        packets: None,
                        bytes: None,
                    });
                    report.points.len() - 1
                }
                None => continue,
            };
            let point = &mut report.points[at];
            (point.packets, point.bytes) = (Some(counted[0]), Some(counted[1]));
        }
        let mut reasons: Vec<(u16, u32)> = named(Named::Reason);
        reasons.extend(report.drops.iter().filter_map(|drops| Some((drops.host, drops.reason?))));
        reasons.extend(named(Named::Host).into_iter().map(|(host, _)| (host, ANY_REASON)));
        reasons.sort_unstable();
        reasons.dedup();
        let keys: Vec<Key> =
            reasons.iter().map(|(host, reason)| trace::drops_key(self.flow, *host, *reason)).collect();
        let counted = query_counts(self.ask, store::COUNTERS, &keys).await?;
        for (&(host, number), counted) in reasons.iter().zip(counted).filter(|(_, counted)| *counted != 0) {
            let reason = (number != ANY_REASON).then_some(number);
            match report.drops.iter_mut().find(|drops| (drops.host, drops.reason) == (host, reason)) {
                Some(drops) => drops.counted = Some(counted),
                None => report.drops.push(HostDropCount {
                    host,
                    host_name: self.events.names.get(&(host, Named::Host, 0)).cloned(),
                    reason,
                    reason_name: self.events.names.get(&(host, Named::Reason, number)).cloned(),
                    counted: Some(counted),
                    listed: 0,
                    age_seconds: None,
                }),
            }
        }
        report.drops.sort_by_key(|drops| (drops.host, drops.reason));
        Ok(())
    }

    /// Adds the flow's sizes in the epochs that the store has.
    async fn add_sizes(&self, report: &mut FlowTrace) -> Result<(), IntError> {
        let Some(StoreKind::SketchMerge { epochs, .. }) =
            self.catalog.find_store(store::SIZES).map(|spec| &spec.kind)
        else {
            return Ok(());
        };
        let present = moment::now() / 1_000_000_000 / u64::from(EPOCH_SECONDS);
        let keys = [trace::flow_size_key(self.flow)];
        // On a host whose clock is ahead, the epoch may already be over; if it is behind, the epoch lasts longer.
        let all = (present.saturating_sub((*epochs).into())..=present).rev();
        // A query covers one epoch, so several are sent at once.
        let questions: Vec<_> = all
            .map(|epoch| {
                let answers = self.ask.query_sketches(store::SIZES, &keys, epoch as u32);
                async move { answers.await.map(|answers| (epoch, answers)) }
            })
            .collect();
        let mut answers = stream::iter(questions).buffered(QUESTIONS_AT_ONCE);
        while let Some((epoch, answers)) = answers.try_next().await? {
            let known = answers.first().and_then(|answer| Some((answer.estimate?, answer.merged)));
            if let Some((bytes, hosts)) = known.filter(|(bytes, _)| *bytes > 0) {
                let (began, seconds) = (epoch * u64::from(EPOCH_SECONDS), EPOCH_SECONDS);
                report.sizes.push(FlowSize { began, seconds, bytes, hosts });
            }
        }
        Ok(())
    }

    /// Adds what hosts reported about their own segments.
    async fn latencies(&self, report: &mut FlowTrace) -> Result<(), IntError> {
        if !self.catalog.has_store(store::LATENCIES, Primitive::KeyWrite) {
            return Ok(());
        }
        let host_of =
            |hop: u8| report.points.iter().find(|point| point.hop == hop).and_then(|point| point.host);
        let (mut at, mut keys) = (Vec::new(), Vec::new());
        for (n, segment) in report.segments.iter().enumerate() {
            if let (Some(from), Some(to)) = (host_of(segment.from), host_of(segment.to))
                && from == to
            {
                at.push(n);
                keys.push(trace::latency_key(self.flow, from, segment.from, segment.to));
            }
        }
        let now = moment::now();
        let values = query_values(self.ask, store::LATENCIES, &keys).await?;
        for (n, value) in at.into_iter().zip(values) {
            let latency = value.and_then(|value| Latency::parse_bytes(&value));
            report.segments[n].of_host = latency.map(|latency| HostLatency {
                latency,
                age_seconds: moment::age_in_seconds(latency.time, now),
            });
        }
        Ok(())
    }
}

fn describe_gaps(report: &FlowTrace, events: &TraceEvents, own: &Packets, clocks: &Clocks) -> Vec<String> {
    let mut all = Vec::new();
    let host_name = |host: u16| host_name(&events.names, host);
    for clock in report.clocks.iter().filter(|clock| clock.clock == ClockKind::Unknown) {
        let why = clock.why_not.as_deref().unwrap_or("nothing is known about it");
        all.push(unknown_clock(&host_name(clock.host), why));
    }
    for clock in &report.clocks {
        if let Some(Clock::Synchronized { apart: Some(apart), .. }) = clocks.of.get(&clock.host) {
            all.push(format!(
                "PTP should keep the clock of host {}, but packets in both directions show that it is off by at least {} ns: check \
                 its PTP, or remove --synced.",
                host_name(clock.host),
                format_grouped(apart.ceil() as u64)
            ));
        }
    }
    if own.lost > 0 {
        all.push(format!(
            "The points of {} packet visits to hosts are no longer known: later packets overwrote them.",
            own.lost
        ));
    }
    for (host, books) in &events.books {
        if books.ring_full > 0 {
            all.push(format!(
                "Host {} lost {} records of {}, because the ring between its kernel and its agent was full.",
                host_name(*host),
                books.ring_full,
                books.seen
            ));
        }
        if books.refused > 0 {
            all.push(format!(
                "Host {} could not read {} of {}, which were not IP or damaged: they and their drops belong to no flow.",
                host_name(*host),
                format_count(books.refused, "packet", "packets"),
                format_grouped(books.seen)
            ));
        }
    }
    if report.flow.proto == TCP {
        let is_unspecified = |drops: &HostDropCount| drops.reason_name.as_deref() == Some("NOT_SPECIFIED");
        if report.drops.iter().any(is_unspecified) {
            all.push(
                "Of every TCP connection that ends well, the kernel drops one packet without a reason (NOT_SPECIFIED): the last \
                 acknowledgement, which the closed socket no longer needs."
                    .into(),
            );
        } else if report.drops.is_empty() {
            all.push(
                "A SYN that a full accept queue refuses is no drop: the kernel consumes it. On its host, `nstat -az \
                 TcpExtListenOverflows` counts these."
                    .into(),
            );
        }
    }
    for (of, name) in [(list::PACKETS, "packets"), (list::DROPS, "drops"), (list::SLOW, "slow packets")] {
        let Lost { overwritten, missing, damaged, unreadable } = events.missed[of as usize];
        if overwritten > 0 {
            all.push(format!(
                "The ring of {name} no longer has its first {}.",
                format_count(overwritten, "batch", "batches")
            ));
        }
        if missing + damaged + unreadable > 0 {
            all.push(format!(
                "Of the {name}, {} never came, {damaged} are damaged, and {} cannot be read.",
                format_count(missing, "batch", "batches"),
                format_count(unreadable, "entry", "entries")
            ));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dta_export::hosts::packets::DropRecord;
    use dta_proto::control::SketchAnswer;
    use dta_proto::store::Merge;
    use dta_proto::trace::Books;
    use tokio::sync::Barrier;

    use super::*;
    use crate::test_collector::TestCollector;

    #[tokio::test]
    async fn all_epochs_are_asked_at_once() {
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap();
        let append = StoreKind::Append { lists: 8, ring: 16, batch_len: 128, entry_len: 60, notify: false };
        let paths = StoreKind::Postcarding { slots: 1 << 10, hops: 14, redundancy: 1 };
        let sizes =
            StoreKind::SketchMerge { columns: 1 << 10, rows: 4, epochs: 4, merge: Merge::Sum, expected: 2 };
        let mut fake = TestCollector::with_stores([
            (store::EVENTS, append),
            (store::PATHS, paths),
            (store::SIZES, sizes),
        ]);
        let answer = SketchAnswer { estimate: Some(7), merged: 2, ..SketchAnswer::default() };
        fake.put_answer(store::SIZES, trace::flow_size_key(&flow), answer);
        // The current epoch, and the four before it.
        fake.sketches_together = Some(Barrier::new(5));
        let asked = trace_flow(&fake, &flow);
        let report =
            tokio::time::timeout(Duration::from_secs(30), asked).await.expect("all are queried").unwrap();
        assert_eq!(report.sizes.iter().map(|size| (size.bytes, size.hosts)).collect::<Vec<_>>(), [(7, 2); 5]);
        assert!(report.sizes.is_sorted_by_key(|size| std::cmp::Reverse(size.began)));
        assert_eq!(fake.looks.into_inner(), 0, "no query may read all memory");
    }

    #[test]
    fn drops_behind_address_translation_and_those_that_are_none_are_explained() {
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:80/tcp".parse().unwrap();
        let [translated, other] = ["10.0.0.1:5000->192.168.0.9:8080/tcp", "10.0.0.3:1->10.0.0.2:80/tcp"]
            .map(|flow| flow.parse::<Flow>().unwrap().to_key());
        let seen = |flow, digest| PacketSighting {
            flow,
            digest,
            host: 1,
            hop: 2,
            time: 5,
            ..PacketSighting::default()
        };
        let dropped = |flow, digest| DropRecord { seen: seen(flow, digest), reason: 64 };
        // One before the translation, two after it, and one of another flow.
        let drops = vec![
            dropped(flow.to_key(), 7),
            dropped(translated, 8),
            dropped(translated, 9),
            dropped(other, 10),
        ];
        let mut events = TraceEvents { drops, ..TraceEvents::default() };
        let own = Packets { digests: [7, 8, 9].into(), ..Packets::default() };
        let clocks = Clocks::from_packets(&own.packets);
        let mut report = put_together(&flow, &events, &own, &clocks);
        assert_eq!(
            report.drops.iter().map(|drops| (drops.reason, drops.listed)).collect::<Vec<_>>(),
            [(Some(64), 3)]
        );
        let explained = |report: &FlowTrace, events: &TraceEvents| {
            describe_gaps(report, events, &own, &clocks).join("\n")
        };
        assert_eq!(explained(&report, &events), "");
        report.drops[0].reason_name = Some("NOT_SPECIFIED".into());
        assert!(explained(&report, &events).contains("the last acknowledgement"));
        report.drops.clear();
        assert!(explained(&report, &events).contains("TcpExtListenOverflows"));
        report.flow.proto = 17;
        events.books.insert(1, Books { seen: 1000, refused: 12, ..Books::default() });
        assert_eq!(
            explained(&report, &events),
            "Host 1 could not read 12 packets of 1,000, which were not IP or damaged: they and their drops belong to no flow."
        );
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        assert_eq!(TransitTimes::from_times(Vec::new()), None);
        let times = TransitTimes::from_times((1..=200).rev().collect()).unwrap();
        assert_eq!(
            (times.packets, times.least, times.median, times.p99, times.most),
            (200, 1, 100, 198, 200)
        );
        let one = TransitTimes::from_times(vec![7]).unwrap();
        assert_eq!((one.least, one.median, one.p99, one.most), (7, 7, 7, 7));
    }
}

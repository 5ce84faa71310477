//! INT's own part: Telemetry Reports are parsed, judged and counted.

use std::net::IpAddr;

use dta_proto::key::Flow;
use dta_proto::telemetry::{self, Location, Means, Metric, SwitchPath, TelemetryEntry, Via, list};
use dta_proto::wire::{Error, Layer, WireErrorKind};

use super::seen::{Detect, Verdict};
use super::tallies::PendingTally;
use super::{
    ArrivalTime, EgressPortNames, FlowSum, HOP_PORT, IntReason, Key, Named, PrimitiveBatch, Telemetry,
    ValueReport, Whose, means_flow,
};
use crate::int::{self, IntReport, IntSettings, Metadata, ReportedPacket};

/// Maximum number of hops read from one report: the longest stack holds no more, if they have more than their numbers.
const MOST_HOPS: usize = 64;

/// What all reports that are processed together have in common.
struct ReportContext<'a> {
    at: ArrivalTime,
    settings: &'a IntSettings,
    program: Option<u32>,
}

/// Why a report is not processed.
enum Untaken {
    NotWatched,
    Dropped(IntReason),
}

/// Whether a report is about a dropped packet.
#[inline]
fn is_dropped(report: &IntReport<'_>) -> bool {
    report.flags.dropped || report.local.drop_reason().is_some()
}

fn reason_of_error(error: &Error) -> IntReason {
    match (error.layer, error.kind) {
        _ if *error == int::IOAM => IntReason::Ioam,
        (Layer::TelemetryReport, WireErrorKind::UnknownVersion(_)) => IntReason::Version,
        (Layer::TelemetryReport, _) => IntReason::Header,
        (Layer::Int, _) => IntReason::Stack,
        _ => IntReason::Packet,
    }
}

impl Telemetry {
    /// Processes a datagram's payload from an address. The resulting primitives are added to `made`.
    pub fn ingest_datagram(
        &mut self,
        at: ArrivalTime,
        from: IpAddr,
        payload: &[u8],
        settings: &IntSettings,
        made: &mut PrimitiveBatch,
    ) {
        self.ingest_all(at, std::iter::once((from, payload)), settings, None, made);
    }

    /// Processes the payloads of many datagrams, each with its source address. Each report is parsed before
    /// the previous one is judged, so that the cache lines for its flow arrive in time.
    ///
    /// `program`: set if an XDP program has passed them on, to the number by which it knows their listener. The program
    /// follows their sequence numbers, and may [drop](Telemetry::share_with_program) unchanged reports.
    pub fn ingest_all<'a>(
        &mut self,
        at: ArrivalTime,
        datagrams: impl IntoIterator<Item = (IpAddr, &'a [u8])>,
        settings: &IntSettings,
        program: Option<u32>,
        made: &mut PrimitiveBatch,
    ) {
        let context = ReportContext { at, settings, program };
        // The last two reports alternate: each is judged where it was parsed, as moving it costs more than
        // judging it. `last` is the one still to be judged.
        let mut read: [IntReport<'a>; 2] = [IntReport::EMPTY; 2];
        let mut named = [None; 2];
        let mut payloads: [&[u8]; 2] = [&[]; 2];
        let (mut last, mut waits) = (0, false);
        for (from, payload) in datagrams {
            self.counters.datagrams += 1;
            let mut reports = match int::parse_reports(payload, settings) {
                Ok(reports) => reports,
                Err(error) => {
                    self.counters.reports += 1;
                    self.counters.count_dropped(reason_of_error(&error));
                    continue;
                }
            };
            let source = reports.datagram_source();
            // The program follows the numbers of v0.5 and v1.0, which have 32 bits.
            if program.is_none() || source.sequence_bits != 32 {
                self.sources.note_datagram(from, &source);
            }
            loop {
                let next = 1 - last;
                let name = match reports.read(&mut read[next]) {
                    None => break,
                    Some(Ok(())) => self.name_flow(&read[next]),
                    Some(Err(error)) => Err(Untaken::Dropped(reason_of_error(&error))),
                };
                self.counters.reports += 1;
                match name {
                    Ok(name) => {
                        (named[next], payloads[next]) = (name, payload);
                        if waits {
                            self.process_report(&context, payloads[last], &read[last], named[last], made);
                        }
                        (last, waits) = (next, true);
                    }
                    Err(Untaken::Dropped(reason)) => self.counters.count_dropped(reason),
                    Err(Untaken::NotWatched) => self.counters.not_watched += 1,
                }
            }
        }
        if waits {
            self.process_report(&context, payloads[last], &read[last], named[last], made);
        }
    }

    /// Names a report's flow and prefetches what is known of it. `None` if the packet cannot be parsed.
    #[inline]
    fn name_flow(&mut self, report: &IntReport<'_>) -> Result<Option<Named>, Untaken> {
        match &report.packet {
            Ok(packet) => {
                let flow = packet.inner_flow();
                if !self.is_watched(flow) {
                    return Err(Untaken::NotWatched);
                }
                let named = Named::from_flow(flow);
                self.prefetch_report(&Whose::new(flow, named), report);
                Ok(Some(named))
            }
            // Drop and queue information is valid without the packet.
            Err(_) if is_dropped(report) || report.local.is_hop() => Ok(None),
            Err(error) => Err(Untaken::Dropped(reason_of_error(error))),
        }
    }

    /// Judges a report and makes its primitives. It has a name if its packet can be parsed.
    #[inline]
    fn process_report(
        &mut self,
        context: &ReportContext<'_>,
        payload: &[u8],
        report: &IntReport<'_>,
        named: Option<Named>,
        made: &mut PrimitiveBatch,
    ) {
        let at = context.at;
        let packet = report.packet.as_ref().ok();
        self.counters.unread += u64::from(packet.is_some_and(|packet| packet.has_unread_int));
        let whose = named.zip(packet).map(|(named, packet)| Whose::new(packet.inner_flow(), named));
        let (before, superseded) = (made.len(), made.superseded());
        if is_dropped(report) {
            self.drop_report(at, report, whose, made);
        } else if report.flags.congested {
            self.congestion(at, report, whose, made);
        }
        self.process_hops(at, report, whose, made);
        let superseded = made.superseded() - superseded;
        self.counters.superseded += superseded as u64;
        let is_unchanged = made.len() == before && superseded == 0;
        match is_unchanged {
            true => self.counters.unchanged += 1,
            false => self.counters.changed += 1,
        }
        if let (Some(whose), Some(packet)) = (whose, packet) {
            self.count_flow(at, whose, packet, made);
        }
        self.counters.primitives += (made.len() - before) as u64;
        if let (Some(listener), Some(whose), true) = (context.program, whose, is_unchanged) {
            self.share_template(at, listener, payload, report, whose, context.settings, made);
        }
    }

    /// Prefetches all that a report's judgements need at once, rather than waiting for each.
    #[inline]
    fn prefetch_report(&self, whose: &Whose<'_>, report: &IntReport<'_>) {
        if self.rules.gathers_counts() {
            self.tallies.prefetch_sums(whose.home.mixed_hash());
        }
        self.seen.prefetch_buckets(&whose.flow_value_name(Metric::FlowPath as u8));
        self.seen.prefetch_buckets(&whose.flow_value_name(Metric::FlowLatency as u8));
        let hops =
            report.packet_stack().into_iter().flat_map(|stack| stack.hops_newest_first()).take(MOST_HOPS);
        for hop in hops {
            let Some(switch) = hop.switch_number() else { continue };
            self.seen.prefetch_buckets(&whose.hop_latency_name(switch));
            let port = EgressPortNames::new(switch, hop.egress_port());
            self.seen.prefetch_buckets(&port.utilization_name());
            self.seen.prefetch_buckets(&port.queue_value_name(Metric::QueueOccupancy, hop.queue_fill().id));
        }
    }

    fn drop_report(
        &mut self,
        at: ArrivalTime,
        report: &IntReport<'_>,
        whose: Option<Whose<'_>>,
        made: &mut PrimitiveBatch,
    ) {
        let local = &report.local;
        let reason = local.drop_reason().unwrap_or_default();
        let time = self.value_timestamp(at, local.ingress_time());
        let queue = local.drop_queue().map(u32::from);
        let place = Location { switch: report.switch, port: local.egress_port(), queue };
        self.report_packet_drop(at, time, whose, place, local.ingress_port(), reason, made);
    }

    fn congestion(
        &mut self,
        at: ArrivalTime,
        report: &IntReport<'_>,
        whose: Option<Whose<'_>>,
        made: &mut PrimitiveBatch,
    ) {
        let local = &report.local;
        let time = self.value_timestamp(at, local.egress_time().or(local.ingress_time()));
        let queue = local.queue_fill();
        let place = Location { switch: report.switch, port: local.egress_port(), queue: queue.id };
        let latency = local.node_latency().map(|latency| latency.min(u64::from(u32::MAX) - 1) as u32);
        let key = whose.map_or(Key::default(), |whose| whose.key);
        let entry = TelemetryEntry::Congestion { time, key, place, occupancy: queue.value, latency };
        self.append_event(list::CONGESTION, &entry, made);
    }

    /// Processes each hop, and the flow's path and latency through them.
    fn process_hops(
        &mut self,
        at: ArrivalTime,
        report: &IntReport<'_>,
        whose: Option<Whose<'_>>,
        made: &mut PrimitiveBatch,
    ) {
        let mut path = [0; MOST_HOPS];
        // Newest first, so the path is filled from its end.
        let mut first = MOST_HOPS;
        let mut latency = Some(0u64);
        let mut note = |switch: Option<u32>, hop: Metadata<'_>| {
            first -= 1;
            path[first] = switch.unwrap_or(u32::MAX);
            let of_hop = hop.node_latency();
            latency = latency.zip(of_hop).map(|(sum, latency)| sum.saturating_add(latency));
            if let Some(switch) = switch {
                self.process_hop(at, report, whose, switch, &hop, of_hop, made);
            }
        };
        let own = report.is_hop();
        if own {
            note(report.switch, report.local);
        }
        if let Some(stack) = report.packet_stack() {
            stack
                .hops_newest_first()
                .take(MOST_HOPS - usize::from(own))
                .for_each(|hop| note(hop.switch_number(), hop));
        }
        let (Some(whose), path) = (whose, &path[first..]) else { return };
        let time = report.local.ingress_time();
        let is_mx = report.is_int_mx();
        if report.packet_stack().is_some() && !is_mx && !path.is_empty() {
            self.process_path(at, time, whose, path, made);
            let Some(latency) = latency else { return };
            let name = whose.flow_value_name(Metric::FlowLatency as u8);
            if let Some(verdict) = self.apply_metric_rule(Metric::FlowLatency, &name, latency, at.now) {
                let (metric, value) = (Metric::FlowLatency, latency);
                let (key, place, means) = (whose.key, Location::default(), means_flow(whose.flow));
                let path = Some(Via::Digest(SwitchPath::from_switches(path).path_digest()));
                self.report_value(
                    at,
                    &ValueReport { metric, verdict, value, time, key, place, means, path },
                    made,
                );
            }
        } else if let ([switch], true) = (path, report.flags.tracked || is_mx) {
            *(if is_mx { &mut self.counters.mx } else { &mut self.counters.xd }) += 1;
            if *switch != u32::MAX {
                self.process_trail(at, whose, *switch, made);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of one hop, and no struct would be used twice")]
    #[inline]
    fn process_hop(
        &mut self,
        at: ArrivalTime,
        report: &IntReport<'_>,
        whose: Option<Whose<'_>>,
        switch: u32,
        hop: &Metadata<'_>,
        latency: Option<u64>,
        made: &mut PrimitiveBatch,
    ) {
        let time = || hop.egress_time().or(report.local.ingress_time());
        let port = hop.egress_port();
        let place = |queue: Option<u32>| Location { switch: Some(switch), port, queue };
        if let Some(whose) = whose {
            let rule = self.rules.metrics[Metric::HopLatency.index()];
            match latency.filter(|_| rule.on) {
                Some(latency) => {
                    let (detect, keep_alive) = (rule.detect, rule.keep_alive);
                    let name = whose.hop_latency_name(switch);
                    let (verdict, moved) =
                        self.seen.judge_hop(&name, latency, port, at.now, detect, keep_alive);
                    if verdict == Verdict::Same {
                        self.counters.suppressed[Metric::HopLatency.index()] += 1;
                    }
                    if verdict != Verdict::Same || rule.always || moved {
                        self.report_hop_latency(
                            at,
                            whose,
                            Some((latency, verdict)),
                            place(None),
                            time(),
                            moved,
                            made,
                        );
                    }
                }
                // The switch sends no latency, only where the packet left it; a dropped packet did not leave.
                None => {
                    if let Some(number) = port.filter(|_| !is_dropped(report)) {
                        let (name, number) = (whose.hop_value_name(HOP_PORT, switch), number.into());
                        let verdict =
                            self.seen.detect_change(&name, number, at.now, Detect::Any, rule.keep_alive);
                        if verdict != Verdict::Same {
                            self.report_hop_latency(at, whose, None, place(None), time(), true, made);
                        }
                    }
                }
            }
        }
        let of_port = EgressPortNames::new(switch, port);
        let queue = hop.queue_fill();
        if let Some(value) = queue.value.map(u64::from) {
            let metric = Metric::QueueOccupancy;
            let name = of_port.queue_value_name(metric, queue.id);
            if let Some(verdict) = self.apply_metric_rule(metric, &name, value, at.now) {
                let key = telemetry::queue_occupancy_key(switch, port, queue.id);
                let (time, place, means) = (time(), place(queue.id), Means::Itself);
                self.report_value(
                    at,
                    &ValueReport { metric, verdict, value, time, key, place, means, path: None },
                    made,
                );
            }
        }
        let congestion = hop.congestion();
        if let Some(value) = congestion.value.map(u64::from) {
            let metric = Metric::QueueCongestion;
            let name = of_port.queue_value_name(metric, congestion.id);
            if let Some(verdict) = self.apply_metric_rule(metric, &name, value, at.now) {
                let key = telemetry::queue_congestion_key(switch, port, congestion.id);
                let (time, place, means) = (time(), place(congestion.id), Means::Itself);
                self.report_value(
                    at,
                    &ValueReport { metric, verdict, value, time, key, place, means, path: None },
                    made,
                );
            }
        }
        if let Some(value) = hop.utilization().map(u64::from) {
            let metric = Metric::LinkUtilization;
            if let Some(verdict) = self.apply_metric_rule(metric, &of_port.utilization_name(), value, at.now)
            {
                let (key, means) = (telemetry::link_utilization_key(switch, port), Means::Itself);
                let (time, place) = (time(), place(None));
                self.report_value(
                    at,
                    &ValueReport { metric, verdict, value, time, key, place, means, path: None },
                    made,
                );
            }
        }
    }

    /// Counts a flow's report: gathered, or written at once.
    fn count_flow(
        &mut self,
        at: ArrivalTime,
        whose: Whose<'_>,
        packet: &ReportedPacket<'_>,
        made: &mut PrimitiveBatch,
    ) {
        let one = FlowSum { key: whose.key, bytes: packet.length.into() };
        self.count_reports(at.now, one, whose.home.mixed_hash(), 1, Some(whose.flow), made);
    }

    /// As [`Telemetry::count_flow`], for several reports whose flow's sum is at a place.
    pub(super) fn count_reports(
        &mut self,
        now: u64,
        all: FlowSum,
        place: usize,
        count: u32,
        flow: Option<&Flow>,
        made: &mut PrimitiveBatch,
    ) {
        if !self.rules.count_reports && !self.rules.per_packet || self.stores.counters.is_none() {
            return;
        }
        // The keys for packets and bytes derive from the flow, which an IPv6 flow's key does not contain.
        if !self.rules.gathers_counts() || self.rules.per_packet && all.key.to_ipv4_flow().is_none() {
            self.increment_counters(all, count, flow, made);
            return;
        }
        let into = |sum: &mut FlowSum| {
            let is_its = sum.key == all.key;
            if is_its {
                sum.bytes = sum.bytes.saturating_add(all.bytes);
            }
            is_its
        };
        if !self.tallies.add(place, count, into)
            && let Some(PendingTally { sum, reports, .. }) = self.tallies.begin_sum(place, count, all, now)
        {
            self.counters.counts_early += u64::from(reports);
            self.increment_counters(sum, reports, None, made);
        }
    }
}

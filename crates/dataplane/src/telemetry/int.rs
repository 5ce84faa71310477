//! INT's own part: Telemetry Reports are parsed, judged and counted.

use std::net::IpAddr;

use dta_proto::telemetry::{self, Entry, Location, Means, Metric, Path, Via, list};
use dta_proto::wire::int::{self, Metadata, Packet, Report, Settings};

use super::seen::{Detect, Verdict};
use super::tallies::Waiting;
use super::{
    Arrival, FlowSum, HOP_PORT, IntReason, Key, Made, Named, Port, Telemetry, Tell, Whose, means_flow,
};

/// Most hops read from one report: more do not fit into the longest stack with more than their numbers.
const MOST_HOPS: usize = 64;

/// Why a report is not processed.
enum Untaken {
    NotWatched,
    Dropped(IntReason),
}

/// Whether a report is about a dropped packet.
#[inline]
fn is_dropped(report: &Report<'_>) -> bool {
    report.flags.dropped || report.local.drop_reason().is_some()
}

impl Telemetry {
    /// Processes a datagram's payload from an address. The resulting primitives are added to `made`.
    pub fn ingest(
        &mut self,
        at: Arrival,
        from: IpAddr,
        payload: &[u8],
        settings: &Settings,
        made: &mut Made,
    ) {
        self.ingest_all(at, std::iter::once((from, payload)), settings, made);
    }

    /// Processes the payloads of many datagrams, each with its source address. Each report is parsed before
    /// the previous one is judged, so that the cache lines for its flow arrive in time.
    pub fn ingest_all<'a>(
        &mut self,
        at: Arrival,
        datagrams: impl IntoIterator<Item = (IpAddr, &'a [u8])>,
        settings: &Settings,
        made: &mut Made,
    ) {
        // The last two reports alternate: each is judged where it was parsed, as moving it costs more than
        // judging it. `last` is the one still to be judged.
        let mut read: [Report<'a>; 2] = [Report::EMPTY; 2];
        let mut named = [None; 2];
        let (mut last, mut waits) = (0, false);
        for (from, payload) in datagrams {
            self.counters.datagrams += 1;
            let mut reports = match int::reports(payload, settings) {
                Ok(reports) => reports,
                Err(error) => {
                    self.counters.reports += 1;
                    self.counters.drop_one(IntReason::of(&error));
                    continue;
                }
            };
            self.sources.note(from, &reports.source());
            loop {
                let next = 1 - last;
                let name = match reports.read(&mut read[next]) {
                    None => break,
                    Some(Ok(())) => self.name(&read[next]),
                    Some(Err(error)) => Err(Untaken::Dropped(IntReason::of(&error))),
                };
                self.counters.reports += 1;
                match name {
                    Ok(name) => {
                        named[next] = name;
                        if waits {
                            self.judge(at, &read[last], named[last], made);
                        }
                        (last, waits) = (next, true);
                    }
                    Err(Untaken::Dropped(reason)) => self.counters.drop_one(reason),
                    Err(Untaken::NotWatched) => self.counters.not_watched += 1,
                }
            }
        }
        if waits {
            self.judge(at, &read[last], named[last], made);
        }
    }

    /// Names a report's flow and prefetches what is known of it. `None` if the packet cannot be parsed.
    #[inline]
    fn name(&mut self, report: &Report<'_>) -> Result<Option<Named>, Untaken> {
        match &report.packet {
            Ok(packet) => {
                let flow = packet.inner_flow();
                if !self.is_watched(flow) {
                    return Err(Untaken::NotWatched);
                }
                let named = Named::of(flow);
                self.fetch(&Whose::new(flow, named), report);
                Ok(Some(named))
            }
            // Drop and queue information is valid without the packet.
            Err(_) if is_dropped(report) || report.local.is_hop() => Ok(None),
            Err(error) => Err(Untaken::Dropped(IntReason::of(error))),
        }
    }

    /// Judges a report and makes its primitives. If its packet can be parsed, it has a name.
    #[inline]
    fn judge(&mut self, at: Arrival, report: &Report<'_>, named: Option<Named>, made: &mut Made) {
        let packet = report.packet.as_ref().ok();
        let whose = named.zip(packet).map(|(named, packet)| Whose::new(packet.inner_flow(), named));
        let (before, superseded) = (made.len(), made.superseded());
        if is_dropped(report) {
            self.drop_report(at, report, whose, made);
        } else if report.flags.congested {
            self.congestion(at, report, whose, made);
        }
        self.hops(at, report, whose, made);
        let superseded = made.superseded() - superseded;
        self.counters.superseded += superseded as u64;
        match made.len() == before && superseded == 0 {
            true => self.counters.unchanged += 1,
            false => self.counters.changed += 1,
        }
        if let (Some(whose), Some(packet)) = (whose, packet) {
            self.count_flow(at, whose, packet, made);
        }
        self.counters.primitives += (made.len() - before) as u64;
    }

    /// Prefetches all that a report's judgements need at once, rather than waiting for each.
    #[inline]
    fn fetch(&self, whose: &Whose<'_>, report: &Report<'_>) {
        if self.rules.gathers() {
            self.tallies.fetch(whose.home.number());
        }
        self.seen.fetch(&whose.name(Metric::FlowPath as u8));
        self.seen.fetch(&whose.name(Metric::FlowLatency as u8));
        let hops = report.stack().into_iter().flat_map(|stack| stack.hops()).take(MOST_HOPS);
        for hop in hops {
            let Some(switch) = hop.switch() else { continue };
            self.seen.fetch(&whose.hop(switch));
            let port = Port::of(switch, hop.egress_port());
            self.seen.fetch(&port.link());
            self.seen.fetch(&port.queue(Metric::QueueOccupancy, hop.queue().id));
        }
    }

    fn drop_report(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose<'_>>, made: &mut Made) {
        let local = &report.local;
        let reason = local.drop_reason().unwrap_or(0);
        let time = self.moment(at, local.ingress_time());
        let queue = local.drop_queue().map(u32::from);
        let place = Location { switch: report.switch, port: local.egress_port(), queue };
        self.dropped(at, time, whose, place, local.ingress_port(), reason, made);
    }

    fn congestion(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose<'_>>, made: &mut Made) {
        let local = &report.local;
        let time = self.moment(at, local.egress_time().or(local.ingress_time()));
        let queue = local.queue();
        let place = Location { switch: report.switch, port: local.egress_port(), queue: queue.id };
        let latency = local.latency().map(|latency| latency.min(u64::from(u32::MAX) - 1) as u32);
        let key = whose.map_or(Key::default(), |whose| whose.key);
        let entry = Entry::Congestion { time, key, place, occupancy: queue.value, latency };
        self.event(list::CONGESTION, &entry, made);
    }

    /// Processes each hop, and the flow's path and latency through them.
    fn hops(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose<'_>>, made: &mut Made) {
        let mut path = [0; MOST_HOPS];
        // Newest first, so the path is filled from its end.
        let mut first = MOST_HOPS;
        let mut latency = Some(0u64);
        let mut note = |switch: Option<u32>, hop: Metadata<'_>| {
            first -= 1;
            path[first] = switch.unwrap_or(u32::MAX);
            let of_hop = hop.latency();
            latency = latency.zip(of_hop).map(|(sum, latency)| sum.saturating_add(latency));
            if let Some(switch) = switch {
                self.hop(at, report, whose, switch, &hop, of_hop, made);
            }
        };
        let own = report.is_hop();
        if own {
            note(report.switch, report.local);
        }
        if let Some(stack) = report.stack() {
            stack.hops().take(MOST_HOPS - usize::from(own)).for_each(|hop| note(hop.switch(), hop));
        }
        let (Some(whose), path) = (whose, &path[first..]) else { return };
        let time = report.local.ingress_time();
        let is_mx = report.is_mx();
        if report.stack().is_some() && !is_mx && !path.is_empty() {
            self.path(at, time, whose, path, made);
            let Some(latency) = latency else { return };
            let name = whose.name(Metric::FlowLatency as u8);
            if let Some(verdict) = self.judged(Metric::FlowLatency, &name, latency, at.now) {
                let (metric, value) = (Metric::FlowLatency, latency);
                let (key, place, means) = (whose.key, Location::default(), means_flow(whose.flow));
                let path = Some(Via::Digest(Path::of(path).digest()));
                self.tell(at, &Tell { metric, verdict, value, time, key, place, means, path }, made);
            }
        } else if let ([switch], true) = (path, report.flags.tracked || is_mx) {
            *(if is_mx { &mut self.counters.mx } else { &mut self.counters.xd }) += 1;
            if *switch != u32::MAX {
                self.trail(at, whose, *switch, 0, self.rules.learning, made);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of one hop, and no struct would be used twice")]
    #[inline]
    fn hop(
        &mut self,
        at: Arrival,
        report: &Report<'_>,
        whose: Option<Whose<'_>>,
        switch: u32,
        hop: &Metadata<'_>,
        latency: Option<u64>,
        made: &mut Made,
    ) {
        let time = || hop.egress_time().or(report.local.ingress_time());
        let port = hop.egress_port();
        let place = |queue: Option<u32>| Location { switch: Some(switch), port, queue };
        if let Some(whose) = whose {
            let rule = self.rules.metrics[Metric::HopLatency.index()];
            match latency.filter(|_| rule.on) {
                Some(latency) => {
                    let (detect, keep_alive) = (rule.detect, rule.keep_alive);
                    let name = whose.hop(switch);
                    let (verdict, moved) =
                        self.seen.judge_hop(&name, latency, port, at.now, detect, keep_alive);
                    if verdict == Verdict::Same {
                        self.counters.suppressed[Metric::HopLatency.index()] += 1;
                    }
                    if verdict != Verdict::Same || rule.always || moved {
                        self.tell_hop(at, whose, Some((latency, verdict)), place(None), time(), moved, made);
                    }
                }
                // The switch sends no latency, only where the packet left it; a dropped packet did not leave.
                None => {
                    if let Some(number) = port.filter(|_| !is_dropped(report)) {
                        let (name, number) = (whose.of_hop(HOP_PORT, switch), number.into());
                        let verdict = self.seen.judge(&name, number, at.now, Detect::Any, rule.keep_alive);
                        if verdict != Verdict::Same {
                            self.tell_hop(at, whose, None, place(None), time(), true, made);
                        }
                    }
                }
            }
        }
        let of_port = Port::of(switch, port);
        let queue = hop.queue();
        if let Some(value) = queue.value.map(u64::from) {
            let metric = Metric::QueueOccupancy;
            let name = of_port.queue(metric, queue.id);
            if let Some(verdict) = self.judged(metric, &name, value, at.now) {
                let key = telemetry::queue_occupancy_key(switch, port, queue.id);
                let (time, place, means) = (time(), place(queue.id), Means::Itself);
                self.tell(at, &Tell { metric, verdict, value, time, key, place, means, path: None }, made);
            }
        }
        let congestion = hop.congestion();
        if let Some(value) = congestion.value.map(u64::from) {
            let metric = Metric::QueueCongestion;
            let name = of_port.queue(metric, congestion.id);
            if let Some(verdict) = self.judged(metric, &name, value, at.now) {
                let key = telemetry::queue_congestion_key(switch, port, congestion.id);
                let (time, place, means) = (time(), place(congestion.id), Means::Itself);
                self.tell(at, &Tell { metric, verdict, value, time, key, place, means, path: None }, made);
            }
        }
        if let Some(value) = hop.utilization().map(u64::from) {
            let metric = Metric::LinkUtilization;
            if let Some(verdict) = self.judged(metric, &of_port.link(), value, at.now) {
                let (key, means) = (telemetry::link_utilization_key(switch, port), Means::Itself);
                let (time, place) = (time(), place(None));
                self.tell(at, &Tell { metric, verdict, value, time, key, place, means, path: None }, made);
            }
        }
    }

    /// Counts a flow's report: gathered, or written at once.
    fn count_flow(&mut self, at: Arrival, whose: Whose<'_>, packet: &Packet<'_>, made: &mut Made) {
        if !self.rules.count_reports && !self.rules.per_packet || self.stores.counters.is_none() {
            return;
        }
        let one = FlowSum { key: whose.key, bytes: packet.length.into() };
        // The keys for packets and bytes derive from the flow, which an IPv6 flow's key does not contain.
        if !self.rules.gathers() || self.rules.per_packet && whose.key.flow().is_none() {
            self.raise(one, 1, Some(whose.flow), made);
            return;
        }
        let place = whose.home.number();
        let into = |sum: &mut FlowSum| {
            let is_its = sum.key == one.key;
            if is_its {
                sum.bytes = sum.bytes.saturating_add(one.bytes);
            }
            is_its
        };
        if !self.tallies.add(place, into)
            && let Some(Waiting { sum, reports, .. }) = self.tallies.begin(place, one, at.now)
        {
            self.counters.counts_early += u64::from(reports);
            self.raise(sum, reports, None, made);
        }
    }
}

//! From Telemetry Reports of INT to primitives, by rules.
//!
//! [`Int`] is pure: a datagram's bytes and the time go in, primitives come out in a [`Made`]. What was told of
//! which key is remembered in memory that is bounded and taken once ([`seen`], `trails.rs`), so that only what is new,
//! changed, or due for its keep-alive is written and told. `dta_proto::telemetry` has the keys, values and entries.
//!
//! | of a report | primitive |
//! |---|---|
//! | path of a flow through a stack | key-write of the path; an entry of list 0 when it changes, and one when it has a loop |
//! | a switch that reports for itself | postcards of the path heard of so far, when a switch is added, and with the keep-alive |
//! | flow latency, hop latency, queues, links | key-write of the value; an entry of list 0 |
//! | a dropped packet | an entry of list 1; counters of switch and reason, and of flow and reason |
//! | a packet in a congested queue | an entry of list 2 |
//! | a key that is new or due for its keep-alive | an entry of list 3, the key directory |
//! | every report of a flow | a counter of the flow's reports; with `per_packet`, of its packets and bytes |

mod counters;
mod made;
mod prefetch;
mod rules;
mod seen;
mod sources;
mod tallies;
#[cfg(test)]
mod tests;
mod trails;
mod watch;

use std::net::Ipv4Addr;

use dta_proto::counter::translator as names;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Entry, Means, Metric, Path, Place, Value, Why, list};
use dta_proto::wire::int::{self, Metadata, Packet, Report, Settings, Time};

pub use counters::{IntCounters, IntReason};
pub use made::Made;
pub use rules::{MetricRule, Rules, StoreIds, TimeMode};
pub use seen::Detect;
pub use sources::{SourceCounters, SourceName, Sources};
pub use watch::{Watch, WatchError};

use seen::{Home, Name, Seen, Verdict};
use tallies::{Sum, Tallies};
use trails::{Heard, Trails};

/// Hops of one report that are looked at: more do not fit into the longest stack with anything beside
/// their numbers.
const MOST_HOPS: usize = 64;
/// Kinds of keys in the table of what was told: metrics have their numbers, these the ones behind.
const DROP_COUNTER: u8 = 16;
const FLOW_DROP_COUNTER: u8 = 17;
const TRAIL: u8 = 18;
/// Added to the kind where the flow is of IPv6, and its bits in the key are CRCs.
const OF_IPV6: u8 = 0x80;
/// Added to the kind where the switch has more than 24 bits.
const OF_LONG_SWITCH: u8 = 0x40;

/// Turns reports into primitives.
pub struct Int {
    rules: Rules,
    stores: StoreIds,
    seen: Seen,
    trails: Trails,
    tallies: Tallies,
    sources: Sources,
    counters: IntCounters,
}

/// Both clocks at the arrival of a datagram, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// From any fixed point; never goes back.
    pub now: u64,
    /// Since 1970.
    pub wall: u64,
}

/// What became of a report that was taken.
enum Outcome {
    NotWatched,
    Unchanged,
    Changed,
}

/// The flow of a report, its key, and where its values are found.
#[derive(Clone, Copy)]
struct Whose {
    flow: Flow,
    key: Key,
    home: Home,
}

impl Whose {
    #[inline]
    fn of(flow: Flow) -> Whose {
        let key = flow.key();
        Whose { flow, key, home: Home::of(u128::from_be_bytes(key.0)) }
    }

    /// Names a value of the flow itself.
    #[inline]
    fn name(&self, kind: u8) -> Name {
        self.home.value(kind, u128::from_be_bytes(self.key.0))
    }

    /// Names the latency of a hop: by the flow's key, with the switch in place of its last three bytes, which say IPv4
    /// or IPv6 and nothing else; the kind says that here. A switch of more than 24 bits does not fit, and its hop is
    /// named by its own key.
    #[inline]
    fn hop(&self, switch: u32) -> Name {
        let kind = Metric::HopLatency as u8;
        if switch >= 1 << 24 {
            let key = telemetry::hop_latency_key(&self.flow, switch);
            return self.home.hop(kind | OF_LONG_SWITCH, u128::from_be_bytes(key.0), switch);
        }
        let family = if self.key.0[15] == 0 { 0 } else { OF_IPV6 };
        let ident = u128::from_be_bytes(self.key.0) & !0x00ff_ffff | u128::from(switch);
        self.home.hop(kind | family, ident, switch)
    }
}

impl Int {
    /// Takes the memory that the rules ask for.
    pub fn new(rules: Rules) -> Int {
        Int {
            seen: Seen::new(rules.keys),
            trails: Trails::new(rules.trails),
            tallies: Tallies::new(if rules.gathers() { rules.keys / 2 } else { 0 }, rules.count_wait),
            sources: Sources::new(rules.sources),
            counters: IntCounters::default(),
            stores: StoreIds::default(),
            rules,
        }
    }

    /// Names the stores. What has none is not made.
    pub fn set_stores(&mut self, stores: StoreIds) {
        self.stores = stores;
    }

    /// What is counted.
    pub fn counters(&self) -> &IntCounters {
        &self.counters
    }

    /// Who sent, and what of it is missing.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Every counter under its dotted name.
    pub fn named(&self) -> Vec<(String, u64)> {
        let mut list = self.counters.named();
        let sources = self.sources.sum();
        let more = [
            (&names::INT_GAPS, sources.gaps),
            (&names::INT_GAPS_FILLED, sources.gaps_filled),
            (&names::INT_REPEATS, sources.repeats),
            (&names::INT_RESTARTS, sources.restarts),
            (&names::INT_SOURCES, self.sources.iter().count() as u64),
            (&names::INT_SOURCES_BEYOND, self.sources.beyond()),
            (&names::INT_KEYS, self.seen.held()),
            (&names::INT_COUNTS_HELD, self.tallies.held()),
            (&names::INT_EVICTED, self.seen.evicted() + self.trails.evicted()),
        ];
        list.extend(more.map(|(name, count)| (name.of(&[]), count)));
        list
    }

    /// Takes the payload of a datagram that came from an address. What is made of it is added to `made`.
    pub fn ingest(
        &mut self,
        at: Arrival,
        from: Ipv4Addr,
        payload: &[u8],
        settings: &Settings,
        made: &mut Made,
    ) {
        self.counters.datagrams += 1;
        let reports = match int::reports(payload, settings) {
            Ok(reports) => reports,
            Err(error) => {
                self.counters.reports += 1;
                self.counters.drop_one(IntReason::of(&error));
                return;
            }
        };
        self.sources.note(from, &reports.source());
        for report in reports {
            self.counters.reports += 1;
            let before = made.len();
            let outcome = report.map_err(|error| IntReason::of(&error));
            match outcome.and_then(|report| self.report(at, &report, made)) {
                Err(reason) => self.counters.drop_one(reason),
                Ok(Outcome::NotWatched) => self.counters.not_watched += 1,
                Ok(Outcome::Unchanged) => self.counters.unchanged += 1,
                Ok(Outcome::Changed) => self.counters.changed += 1,
            }
            self.counters.primitives += (made.len() - before) as u64;
        }
    }

    /// Takes one report.
    fn report(&mut self, at: Arrival, report: &Report<'_>, made: &mut Made) -> Result<Outcome, IntReason> {
        let before = made.len();
        let dropped = report.flags.dropped || report.local.drop_reason().is_some();
        let whose = match &report.packet {
            Ok(packet) => {
                let flow = packet.inner_flow();
                if !self.rules.watch.is_empty() && !self.rules.watch.iter().any(|watch| watch.admits(&flow)) {
                    return Ok(Outcome::NotWatched);
                }
                let whose = Whose::of(flow);
                self.fetch(&whose, report);
                Some(whose)
            }
            // What is said of a drop or queue is good without the packet.
            Err(_) if dropped || report.local.is_hop() => None,
            Err(error) => return Err(IntReason::of(error)),
        };
        if dropped {
            self.drop_report(at, report, whose, made);
        } else if report.flags.congested {
            self.congestion(at, report, whose, made);
        }
        self.hops(at, report, whose, made);
        let outcome = if made.len() == before { Outcome::Unchanged } else { Outcome::Changed };
        if let (Some(whose), Ok(packet)) = (whose, &report.packet) {
            self.count_flow(at, whose, packet, made);
        }
        Ok(outcome)
    }

    /// Asks memory for all that a report's judgements need, at once: each by itself would be waited for.
    #[inline]
    fn fetch(&self, whose: &Whose, report: &Report<'_>) {
        if self.rules.gathers() {
            self.tallies.fetch(whose.home);
        }
        self.seen.fetch(&whose.name(Metric::FlowPath as u8));
        for (switch, _) in report.hops().take(MOST_HOPS) {
            if let Some(switch) = switch {
                self.seen.fetch(&whose.hop(switch));
            }
        }
    }

    fn drop_report(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose>, made: &mut Made) {
        let local = &report.local;
        let reason = local.drop_reason().unwrap_or(0);
        let time = self.moment(at, local.ingress_time());
        let queue = local.drop_queue().map(u32::from);
        let place = Place { switch: report.switch, port: local.egress_port(), queue };
        let key = whose.map_or(Key::default(), |whose| whose.key);
        let entry = Entry::Drop { time, key, place, ingress_port: local.ingress_port(), reason };
        self.event(list::DROPS, &entry, made);
        if let Some(switch) = report.switch {
            let key = telemetry::drops_key(switch, reason);
            made.increment(self.stores.counters, key, 1);
            self.tell_key(at, DROP_COUNTER, key, Means::Itself, made);
        }
        if let Some(whose) = whose {
            let key = telemetry::flow_drops_key(&whose.flow, reason);
            made.increment(self.stores.counters, key, 1);
            // The reason is told where a switch's number would be.
            self.tell_key(at, FLOW_DROP_COUNTER, key, Means::Hop(whose.key, reason.into()), made);
        }
    }

    fn congestion(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose>, made: &mut Made) {
        let local = &report.local;
        let time = self.moment(at, local.egress_time().or(local.ingress_time()));
        let queue = local.queue();
        let place = Place { switch: report.switch, port: local.egress_port(), queue: queue.id };
        let latency = local.latency().map(|latency| latency.min(u64::from(u32::MAX) - 1) as u32);
        let key = whose.map_or(Key::default(), |whose| whose.key);
        let entry = Entry::Congestion { time, key, place, occupancy: queue.value, latency };
        self.event(list::CONGESTION, &entry, made);
    }

    /// What each hop says, and the path and latency of the flow through them.
    fn hops(&mut self, at: Arrival, report: &Report<'_>, whose: Option<Whose>, made: &mut Made) {
        let mut path = [0; MOST_HOPS];
        // Newest first: the path is filled from its end.
        let mut first = MOST_HOPS;
        let mut latency = Some(0u64);
        for (switch, hop) in report.hops().take(MOST_HOPS) {
            first -= 1;
            path[first] = switch.unwrap_or(u32::MAX);
            let of_hop = hop.latency();
            latency = latency.zip(of_hop).map(|(sum, latency)| sum.saturating_add(latency));
            if let Some(switch) = switch {
                self.hop(at, report, whose, switch, &hop, of_hop, made);
            }
        }
        let (Some(whose), path) = (whose, &path[first..]) else { return };
        let time = report.local.ingress_time();
        if report.stack().is_some() && !path.is_empty() {
            self.path(at, time, whose, path, made);
            if let Some(latency) = latency {
                let place = Place::default();
                self.value(
                    at,
                    time,
                    Metric::FlowLatency,
                    &whose.name(Metric::FlowLatency as u8),
                    || whose.key,
                    latency,
                    place,
                    made,
                    || means_flow(&whose.flow),
                );
            }
        } else if let ([switch], true) = (path, report.flags.tracked) {
            self.trail(at, whose, *switch, made);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "all of one hop, and no struct would be used twice")]
    #[inline]
    fn hop(
        &mut self,
        at: Arrival,
        report: &Report<'_>,
        whose: Option<Whose>,
        switch: u32,
        hop: &Metadata<'_>,
        latency: Option<u64>,
        made: &mut Made,
    ) {
        let time = hop.egress_time().or(report.local.ingress_time());
        let port = hop.egress_port();
        let place = Place { switch: Some(switch), port, queue: None };
        if let (Some(whose), Some(latency)) = (whose, latency) {
            let name = whose.hop(switch);
            let key = || telemetry::hop_latency_key(&whose.flow, switch);
            let means = || Means::Hop(whose.key, switch);
            self.value(at, time, Metric::HopLatency, &name, key, latency, place, made, means);
        }
        let number = |number: Option<u32>| u128::from(number.unwrap_or(u32::MAX));
        let of_port = u128::from(switch) << 64 | number(port) << 32;
        let queue = hop.queue();
        if let Some(occupancy) = queue.value {
            let key = || telemetry::queue_occupancy_key(switch, port, queue.id);
            let name = Name::alone(Metric::QueueOccupancy as u8, of_port | number(queue.id));
            let place = Place { queue: queue.id, ..place };
            let means = || Means::Itself;
            self.value(at, time, Metric::QueueOccupancy, &name, key, occupancy.into(), place, made, means);
        }
        let congestion = hop.congestion();
        if let Some(status) = congestion.value {
            let key = || telemetry::queue_congestion_key(switch, port, congestion.id);
            let name = Name::alone(Metric::QueueCongestion as u8, of_port | number(congestion.id));
            let place = Place { queue: congestion.id, ..place };
            let means = || Means::Itself;
            self.value(at, time, Metric::QueueCongestion, &name, key, status.into(), place, made, means);
        }
        if let Some(utilization) = hop.utilization() {
            let key = || telemetry::link_utilization_key(switch, port);
            let name = Name::alone(Metric::LinkUtilization as u8, of_port);
            self.value(
                at,
                time,
                Metric::LinkUtilization,
                &name,
                key,
                utilization.into(),
                place,
                made,
                || Means::Itself,
            );
        }
    }

    /// Judges a value, and writes and tells what it is to become. `name` names the key to the table of what was told;
    /// the key itself is made only when it is needed.
    #[expect(clippy::too_many_arguments, reason = "one value with all that is known of it")]
    #[inline]
    fn value(
        &mut self,
        at: Arrival,
        time: Option<Time>,
        metric: Metric,
        name: &Name,
        key: impl Fn() -> Key,
        value: u64,
        place: Place,
        made: &mut Made,
        means: impl Fn() -> Means,
    ) {
        let rule = self.rules.metrics[metric.index()];
        if !rule.on {
            return;
        }
        let verdict = self.seen.judge(name, value, at.now, rule.detect, rule.keep_alive);
        if verdict == Verdict::Same {
            self.counters.suppressed[metric.index()] += 1;
            if !rule.always {
                return;
            }
        }
        let (key, time) = (key(), self.moment(at, time));
        let written = Value { value: value.min(u32::MAX.into()) as u32, time };
        made.key_write(self.stores.values, key, &written.bytes());
        let (why, old) = match verdict {
            Verdict::Same => return,
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old),
        };
        self.event(list::CHANGES, &Entry::Change { time, key, metric, why, old, new: value, place }, made);
        if why != Why::Moved {
            self.event(list::KEYS, &Entry::Key { key, means: means() }, made);
        }
    }

    /// The path of a flow through a stack.
    fn path(&mut self, at: Arrival, time: Option<Time>, whose: Whose, switches: &[u32], made: &mut Made) {
        let rule = self.rules.metrics[Metric::FlowPath.index()];
        if !rule.on {
            return;
        }
        let name = whose.name(Metric::FlowPath as u8);
        let verdict = self.seen.judge(&name, summary(switches), at.now, Detect::Any, rule.keep_alive);
        if verdict == Verdict::Same {
            self.counters.suppressed[Metric::FlowPath.index()] += 1;
            if !rule.always {
                return;
            }
        }
        let path = Path::of(switches);
        made.key_write(self.stores.paths, whose.key, &path.bytes());
        let (why, old) = match verdict {
            Verdict::Same => return,
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old & 0xff),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old & 0xff),
        };
        let time = self.moment(at, time);
        let new = u64::from(path.looped) << 8 | u64::from(path.hops);
        let change = |why| Entry::Change {
            time,
            key: whose.key,
            metric: Metric::FlowPath,
            why,
            old,
            new,
            place: Place::default(),
        };
        self.event(list::CHANGES, &change(why), made);
        if path.looped && why != Why::KeepAlive {
            self.event(list::CHANGES, &change(Why::Loop), made);
        }
        if why != Why::Moved {
            self.event(list::KEYS, &Entry::Key { key: whose.key, means: means_flow(&whose.flow) }, made);
        }
    }

    /// A switch that reports a flow for itself: where it stands on the path is known by when it was first heard.
    fn trail(&mut self, at: Arrival, whose: Whose, switch: u32, made: &mut Made) {
        let rule = self.rules.metrics[Metric::FlowPath.index()];
        if !rule.on || self.stores.postcards.is_none() {
            return;
        }
        let switches = match self.trails.hear(whose.key, switch, at.now) {
            Heard::Full => {
                self.counters.long_trails += 1;
                return;
            }
            Heard::Known(switches) | Heard::Added(switches) => switches,
        };
        let (summary, hops) = (summary(switches), switches.len() as u64);
        let verdict = self.seen.judge(&whose.name(TRAIL), summary, at.now, Detect::Any, rule.keep_alive);
        let (why, old) = match verdict {
            Verdict::Same => {
                self.counters.suppressed[Metric::FlowPath.index()] += 1;
                return;
            }
            Verdict::New => (Why::New, 0),
            Verdict::Changed(old) => (Why::Moved, old & 0xff),
            Verdict::KeepAlive(old) => (Why::KeepAlive, old & 0xff),
        };
        made.postcards(self.stores.postcards, whose.key, switches);
        let time = self.moment(at, None);
        let place = Place { switch: Some(switch), ..Place::default() };
        let metric = Metric::FlowPath;
        let entry = Entry::Change { time, key: whose.key, metric, why, old, new: hops, place };
        self.event(list::CHANGES, &entry, made);
        if why != Why::Moved {
            self.event(list::KEYS, &Entry::Key { key: whose.key, means: means_flow(&whose.flow) }, made);
        }
    }

    /// The counters that every report of a flow adds to: gathered, or raised at once.
    fn count_flow(&mut self, at: Arrival, whose: Whose, packet: &Packet<'_>, made: &mut Made) {
        if !self.rules.count_reports && !self.rules.per_packet || self.stores.counters.is_none() {
            return;
        }
        let bytes = u64::from(packet.length);
        let one = Sum::one(whose.key, bytes);
        if !self.rules.gathers() {
            self.raise(one, Some(&whose.flow), made);
            return;
        }
        // The keys of packets and bytes are made of the flow, which the key of one of IPv6 does not tell.
        if self.rules.per_packet && whose.key.flow().is_none() {
            self.raise(one, Some(&whose.flow), made);
            return;
        }
        if let Some(sum) = self.tallies.add(whose.home, whose.key, bytes, at.now) {
            self.counters.counts_early += u64::from(sum.reports);
            self.raise(sum, None, made);
        }
    }

    /// Raises the counters of a flow.
    fn raise(&self, sum: Sum, flow: Option<&Flow>, made: &mut Made) {
        let store = self.stores.counters;
        let reports = u64::from(sum.reports);
        if self.rules.count_reports {
            made.increment(store, sum.key, reports);
        }
        if let (true, Some(flow)) = (self.rules.per_packet, flow.copied().or_else(|| sum.key.flow())) {
            made.increment(store, telemetry::packets_key(&flow), reports);
            made.increment(store, telemetry::bytes_key(&flow), sum.bytes);
        }
    }

    /// Writes the counts of flows that have waited long enough. To be called in each turn, also where nothing came.
    #[inline]
    pub fn tick(&mut self, now: u64, made: &mut Made) {
        if self.tallies.held() != 0 && self.stores.counters.is_some() {
            self.write_counts(made, |tallies, write| tallies.due(now, write));
        }
    }

    /// Writes all counts that wait.
    pub fn flush(&mut self, made: &mut Made) {
        if self.stores.counters.is_some() {
            self.write_counts(made, |tallies, write| tallies.flush(write));
        }
    }

    fn write_counts(&mut self, made: &mut Made, each: impl FnOnce(&mut Tallies, &mut dyn FnMut(Sum))) {
        let before = made.len();
        let mut tallies = std::mem::take(&mut self.tallies);
        each(&mut tallies, &mut |sum| self.raise(sum, None, made));
        self.tallies = tallies;
        self.counters.primitives += (made.len() - before) as u64;
    }

    /// Tells a key in the directory, where it is new or due for its keep-alive.
    fn tell_key(&mut self, at: Arrival, kind: u8, key: Key, means: Means, made: &mut Made) {
        let keep_alive = self.rules.metrics[Metric::FlowPath.index()].keep_alive;
        let name = Name::alone(kind, u128::from_be_bytes(key.0));
        if self.seen.judge(&name, 0, at.now, Detect::Any, keep_alive) != Verdict::Same {
            self.event(list::KEYS, &Entry::Key { key, means }, made);
        }
    }

    fn event(&mut self, list: u32, entry: &Entry, made: &mut Made) {
        if self.stores.events.is_some() {
            self.counters.events += 1;
            made.append(self.stores.events, list, &entry.bytes());
        }
    }

    /// The moment that is written beside a value.
    fn moment(&self, at: Arrival, time: Option<Time>) -> u64 {
        match (self.rules.time, time) {
            (TimeMode::Arrival, _) | (_, None) => at.wall,
            (TimeMode::Raw, Some(time)) => time.raw(),
            (TimeMode::Switch, Some(Time::Long(time))) => time,
            (TimeMode::Switch, Some(Time::Short(time))) => {
                let behind = (at.wall as u32).wrapping_sub(time) as i32;
                at.wall.saturating_add_signed(-i64::from(behind))
            }
        }
    }
}

/// The key directory's words for a flow.
fn means_flow(flow: &Flow) -> Means {
    if flow.src.is_ipv4() && flow.dst.is_ipv4() { Means::Itself } else { Means::Flow(*flow) }
}

/// A path in 64 bits: the number of its hops in the lowest 8, and two CRCs of the switches.
fn summary(switches: &[u32]) -> u64 {
    let mut bytes = [0; 4 * MOST_HOPS];
    for (place, switch) in bytes.chunks_exact_mut(4).zip(switches) {
        place.copy_from_slice(&switch.to_be_bytes());
    }
    let bytes = &bytes[..4 * switches.len().min(MOST_HOPS)];
    let (a, b) = (dta_proto::crc::crc32c(bytes), dta_proto::crc::crc32(bytes));
    u64::from(a) << 32 | u64::from(b) & 0xffff_ff00 | switches.len() as u64 & 0xff
}

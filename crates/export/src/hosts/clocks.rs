//! Converts the times of several hosts to one clock.
//!
//! Hosts synchronised by PTP share their time; the error that packets in both directions reveal is reported with it.
//! Other hosts are compared in pairs that packets cross in both directions ([`dta_proto::clock`]), starting at the
//! host with the most packets.
//!
//! Two clocks do not tell which of two hosts a packet passed first. But its order at the points of one host tells the
//! two directions apart (with one point in each host, source and destination do); and packets from the first to the
//! second host always show more of the second clock, relative to the first, than packets the other way at about the
//! same time.

use std::collections::{BTreeMap, VecDeque};

use dta_proto::clock::{self, Crossing, Fit, NoFit, WINDOW};

use serde::Serialize;

use super::packets::{TracedPacket, Visit};

/// How the times of two points compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockKind {
    Same,
    /// PTP synchronises both hosts: times compare directly.
    #[serde(rename = "kept")]
    Synchronized,
    /// The clocks were compared by packets in both directions.
    Fitted,
    /// The clock difference is unknown: there are no times.
    Unknown,
}

/// How the times of a host were converted to those of the reference.
#[derive(Clone, Debug, PartialEq)]
pub enum Clock {
    Same,
    /// PTP synchronises it and the reference: times are used unchanged. Packets in both directions show that it is
    /// off by at most `bound` nanoseconds, and at least `apart`; `None` = they do not show it.
    Synchronized {
        /// The most it can be off.
        bound: Option<f64>,
        /// The least it is off.
        apart: Option<f64>,
    },
    /// By one or several fitted lines, which are off by at most `bound` nanoseconds in total.
    Fitted {
        /// The lines, from this clock to the reference.
        steps: Vec<ClockFitStep>,
        /// The most it can be off.
        bound: f64,
    },
    /// The clock difference is unknown, and why.
    Unknown(NoFit),
}

/// One comparison, and whether the host is its second one.
#[derive(Clone, Debug, PartialEq)]
pub struct ClockFitStep {
    fit: Fit,
    is_second: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    pub of: BTreeMap<u16, Clock>,
}

impl Clocks {
    /// Compares the clocks of all hosts that these packets passed.
    pub fn from_packets(packets: &[TracedPacket]) -> Clocks {
        let mut seen: BTreeMap<u16, (u64, bool)> = BTreeMap::new();
        for visit in packets.iter().flat_map(|packet| &packet.visits) {
            let (count, synced) = seen.entry(visit.host).or_insert((0, true));
            *count += 1;
            *synced &= visit.synced;
        }
        let Some(reference) = seen.iter().max_by_key(|(_, (count, _))| *count).map(|(host, _)| *host) else {
            return Clocks::default();
        };
        let synced = |host: u16| seen.get(&host).is_some_and(|(_, synced)| *synced);
        let mut of: BTreeMap<u16, Clock> = BTreeMap::from([(reference, Clock::Same)]);
        let mut why = BTreeMap::new();
        let mut queue = VecDeque::from([reference]);
        while let Some(from) = queue.pop_front() {
            for &to in seen.keys() {
                if of.contains_key(&to) {
                    continue;
                }
                let (mut steps, bound) = match &of[&from] {
                    Clock::Fitted { steps, bound } => (steps.clone(), *bound),
                    Clock::Synchronized { bound: Some(bound), .. } => (Vec::new(), *bound),
                    _ => (Vec::new(), 0.0),
                };
                let clock = if synced(from) && synced(to) {
                    match steps.is_empty() {
                        true => synchronized(&compare_clocks(packets, from.min(to), from.max(to))),
                        false => Clock::Fitted { steps, bound },
                    }
                } else {
                    // Each pair in one order, so that both directions agree.
                    let (first, second) = (from.min(to), from.max(to));
                    match compare_clocks(packets, first, second) {
                        Ok(fit) => {
                            let bound = bound + fit.bound;
                            steps.insert(0, ClockFitStep { fit, is_second: to == second });
                            Clock::Fitted { steps, bound }
                        }
                        Err(no) => {
                            why.entry(to).or_insert(no);
                            continue;
                        }
                    }
                };
                of.insert(to, clock);
                queue.push_back(to);
            }
        }
        for host in seen.keys() {
            let no = why.get(host).copied().unwrap_or(NoFit::OneWay);
            of.entry(*host).or_insert(Clock::Unknown(no));
        }
        Clocks { of }
    }

    /// A time of a host on the reference's clock; `None` if unknown.
    pub fn reference_time(&self, host: u16, time: u64) -> Option<u64> {
        match self.of.get(&host)? {
            Clock::Same | Clock::Synchronized { .. } => Some(time),
            Clock::Unknown(_) => None,
            Clock::Fitted { steps, .. } => Some(steps.iter().fold(time, |time, step| match step.is_second {
                true => step.fit.to_first(time),
                false => step.fit.to_second(time),
            })),
        }
    }

    /// Largest error in nanoseconds of a time between two hosts; `None` if unknown, or if there is no such time.
    pub fn error_bound(&self, from: u16, to: u16) -> Option<f64> {
        let bound = self.of.get(&from)?.error_bound()? + self.of.get(&to)?.error_bound()?;
        (from != to).then_some(bound)
    }

    /// How the clocks of two hosts compare.
    pub fn kind_between(&self, from: u16, to: u16) -> ClockKind {
        let kind = |host| self.of.get(&host).map_or(ClockKind::Unknown, Clock::clock_kind);
        match (kind(from), kind(to)) {
            _ if from == to => ClockKind::Same,
            (ClockKind::Unknown, _) | (_, ClockKind::Unknown) => ClockKind::Unknown,
            (ClockKind::Fitted, _) | (_, ClockKind::Fitted) => ClockKind::Fitted,
            _ => ClockKind::Synchronized,
        }
    }
}

impl Clock {
    pub fn clock_kind(&self) -> ClockKind {
        match self {
            Clock::Same => ClockKind::Same,
            Clock::Synchronized { .. } => ClockKind::Synchronized,
            Clock::Fitted { .. } => ClockKind::Fitted,
            Clock::Unknown(_) => ClockKind::Unknown,
        }
    }

    /// Its largest error in nanoseconds.
    pub fn error_bound(&self) -> Option<f64> {
        match self {
            Clock::Same => Some(0.0),
            Clock::Synchronized { bound, .. } => *bound,
            Clock::Fitted { bound, .. } => Some(*bound),
            Clock::Unknown(_) => None,
        }
    }
}

/// What a comparison says about a clock that is used unchanged.
fn synchronized(compared: &Result<Fit, NoFit>) -> Clock {
    let Ok(fit) = compared else { return Clock::Synchronized { bound: None, apart: None } };
    // Packets put the difference at about this, within the bound.
    let off = fit.most_ahead();
    let apart = (off > fit.bound).then_some(off - fit.bound);
    Clock::Synchronized { bound: Some(off + fit.bound), apart }
}

/// A packet in both hosts.
struct VisitPair<'a> {
    first: &'a Visit,
    second: &'a Visit,
}

/// One of the two directions; which one is not known yet.
fn direction_in(visit: &Visit) -> Option<bool> {
    let (first, last) = (visit.stops.first()?.hop, visit.stops.last()?.hop);
    (first != last).then_some(first < last)
}

fn direction_of_flow(visit: &Visit) -> Option<bool> {
    let flow = visit.flow.to_ipv4_flow()?;
    let (from, to) = ((flow.src, flow.sport), (flow.dst, flow.dport));
    (from != to).then_some(from < to)
}

fn compare_clocks(packets: &[TracedPacket], first: u16, second: u16) -> Result<Fit, NoFit> {
    let of = |packet: &'_ TracedPacket, host| packet.visits.iter().position(|visit| visit.host == host);
    let both: Vec<VisitPair<'_>> = packets
        .iter()
        .filter_map(|packet| {
            let (a, b) = (of(packet, first)?, of(packet, second)?);
            Some(VisitPair { first: &packet.visits[a], second: &packet.visits[b] })
        })
        .collect();
    let ways: [fn(&VisitPair<'_>) -> Option<bool>; 3] = [
        |both| direction_in(both.first),
        |both| direction_in(both.second),
        |both| direction_of_flow(both.first),
    ];
    // The method that tells the direction of the most packets, counting the rarer direction.
    let smaller = |way: &fn(&VisitPair<'_>) -> Option<bool>| {
        let count = |direction| both.iter().filter(|both| way(both) == Some(direction)).count();
        count(true).min(count(false))
    };
    let way =
        ways.into_iter().rev().max_by_key(smaller).filter(|way| smaller(way) > 0).ok_or(NoFit::OneWay)?;
    let mut classes: [Vec<&VisitPair<'_>>; 2] = Default::default();
    for both in &both {
        if let Some(direction) = way(both) {
            classes[usize::from(direction)].push(both);
        }
    }
    classes.iter_mut().for_each(|class| class.sort_by_key(|both| entry_time(both.first)));
    let [one, other] = &classes;
    let (forth, back) = if is_forward_class(one, other) { (one, other) } else { (other, one) };
    // A packet to the second host crosses between its last time in the first and its first time in the second; and
    // vice versa.
    let forth =
        forth.iter().map(|both| Crossing { first: exit_time(both.first), second: entry_time(both.second) });
    let back =
        back.iter().map(|both| Crossing { first: entry_time(both.first), second: exit_time(both.second) });
    clock::fit_clocks(&forth.collect::<Vec<_>>(), &back.collect::<Vec<_>>())
}

fn entry_time(visit: &Visit) -> u64 {
    visit.stops.first().map_or(0, |stop| stop.time)
}

fn exit_time(visit: &Visit) -> u64 {
    visit.stops.last().map_or(0, |stop| stop.time)
}

/// Whether the first class goes from the first to the second host: most of its packets show more of the second clock
/// than the packet of the other class nearest in time. Both are sorted by time.
fn is_forward_class(one: &[&VisitPair<'_>], other: &[&VisitPair<'_>]) -> bool {
    let ahead =
        |both: &VisitPair<'_>| i128::from(entry_time(both.second)) - i128::from(entry_time(both.first));
    let (mut more, mut less) = (0u64, 0u64);
    for both in one {
        let at = entry_time(both.first);
        let next = other.partition_point(|other| entry_time(other.first) < at);
        let near = [next.checked_sub(1), Some(next)].into_iter().flatten().filter_map(|n| other.get(n));
        let Some(near) = near.min_by_key(|other| entry_time(other.first).abs_diff(at)) else { continue };
        // Packets far apart in time say little, but may be all there is.
        let weight = if entry_time(near.first).abs_diff(at) <= WINDOW { 1000 } else { 1 };
        if ahead(both) > ahead(near) { more += weight } else { less += weight }
    }
    more >= less
}

#[cfg(test)]
mod tests {
    use super::super::packets::VisitStop;
    use super::*;
    use dta_proto::key::{Flow, Key};

    const START: u64 = 1_795_323_662_000_000_000;

    /// Packets in both directions between two hosts with `points` points each, 20 us apart, 1 us per point; the
    /// second clock is 7.3 ms ahead and gains 40 ppm. Hops of the second host may count the other way.
    fn packets(points: u8, mirrored: bool, synced: bool) -> Vec<TracedPacket> {
        let ahead = |at: u64| at + 7_300_000 + at / 25_000;
        let flow = |text: &str| text.parse::<Flow>().unwrap().to_key();
        let (to, fro) = (flow("10.0.0.1:1->10.0.0.2:2/udp"), flow("10.0.0.2:2->10.0.0.1:1/udp"));
        let visit = |host, flow: Key, hops: Vec<u8>, from: u64, clock: &dyn Fn(u64) -> u64| {
            let stop = |(n, hop): (u64, u8)| VisitStop { hop, time: START + clock(from + 1000 * n) };
            Visit { host, synced, flow, stops: (0..).zip(hops).map(stop).collect(), missing: 0 }
        };
        let here = |at: u64| at;
        (0..2000u64)
            .map(|n| {
                let (at, wait) = (n * 1_000_000, n * 7919 % 50_000);
                let mut first: Vec<u8> = (0..points).collect();
                let mut second: Vec<u8> = (points..2 * points).collect();
                if mirrored {
                    second.reverse();
                }
                let through = 1000 * u64::from(points - 1);
                let visits = if n % 2 == 0 {
                    let there = at + through + 20_000 + wait;
                    vec![visit(1, to, first, at, &here), visit(2, to, second, there, &ahead)]
                } else {
                    first.reverse();
                    second.reverse();
                    let there = at + through + 20_000 + wait;
                    vec![visit(2, fro, second, at, &ahead), visit(1, fro, first, there, &here)]
                };
                TracedPacket { visits, ..TracedPacket::default() }
            })
            .collect()
    }

    /// The host whose clock is the reference, and the other one.
    fn ends(clocks: &Clocks) -> (u16, u16) {
        if clocks.of[&1] == Clock::Same { (1, 2) } else { (2, 1) }
    }

    #[test]
    fn the_clock_of_the_other_host_is_found_whatever_its_points_count_like() {
        for points in [1, 3, 6] {
            for mirrored in [false, true] {
                let packets = packets(points, mirrored, false);
                let clocks = Clocks::from_packets(&packets);
                let (reference, other) = ends(&clocks);
                let bound = clocks.error_bound(1, 2).unwrap();
                assert!(bound < 30_000.0, "{points} points: {bound}");
                for packet in &packets {
                    let time = |host| {
                        let visit = packet.visits.iter().find(|visit| visit.host == host).unwrap();
                        clocks.reference_time(host, entry_time(visit)).unwrap()
                    };
                    let (a, b) = (time(reference) as f64, time(other) as f64);
                    let order = if packet.visits[0].host == reference { b - a } else { a - b };
                    // Through the first host, 20 us of travel and at most 50 us of waiting; the fit may be off by 10
                    // us.
                    let least = 20_000.0 + 1000.0 * f64::from(points - 1);
                    let waited = (least - 10_000.0..least + 60_000.0).contains(&order);
                    assert!(waited, "{points} points, mirrored {mirrored}: {order}");
                }
            }
        }
    }

    #[test]
    fn clocks_kept_by_ptp_are_taken_as_they_are_and_what_packets_show_is_reported() {
        let packets = packets(2, false, true);
        let clocks = Clocks::from_packets(&packets);
        assert_eq!((clocks.reference_time(1, 5), clocks.reference_time(2, 5)), (Some(5), Some(5)));
        assert_eq!(clocks.kind_between(1, 2), ClockKind::Synchronized);
        // They are 7.3 ms apart, and 80 us more at the end.
        let (_, other) = ends(&clocks);
        let Clock::Synchronized { bound: Some(bound), apart: Some(apart) } = clocks.of[&other] else {
            panic!("{clocks:?}")
        };
        assert!((7_300_000.0..7_420_000.0).contains(&bound) && (7_340_000.0..7_385_000.0).contains(&apart));
        // One host without PTP: the pair is compared.
        let mut mixed = packets.clone();
        mixed
            .iter_mut()
            .flat_map(|packet| &mut packet.visits)
            .for_each(|visit| visit.synced = visit.host == 1);
        assert_eq!(Clocks::from_packets(&mixed).kind_between(1, 2), ClockKind::Fitted);
        // Good clocks are off by at most half of the round trip, and packets show no more.
        let mut good = packets.clone();
        for visit in good.iter_mut().flat_map(|packet| &mut packet.visits).filter(|visit| visit.host == 2) {
            for stop in &mut visit.stops {
                let since = stop.time - START - 7_300_000;
                stop.time = START + since - since / 25_001;
            }
        }
        let clocks = Clocks::from_packets(&good);
        let (_, other) = ends(&clocks);
        let Clock::Synchronized { bound: Some(bound), apart: None } = clocks.of[&other] else {
            panic!("{clocks:?}")
        };
        assert!((20_000.0..40_000.0).contains(&bound), "{bound}");
        assert_eq!(clocks.error_bound(1, 2), Some(bound));
        // Only one direction: nothing is known about it.
        let one_way: Vec<TracedPacket> = packets.into_iter().step_by(2).collect();
        let clocks = Clocks::from_packets(&one_way);
        assert_eq!((clocks.kind_between(1, 2), clocks.error_bound(1, 2)), (ClockKind::Synchronized, None));
    }

    #[test]
    fn packets_one_way_leave_the_clock_unknown() {
        let packets: Vec<TracedPacket> = packets(2, false, false).into_iter().step_by(2).collect();
        let clocks = Clocks::from_packets(&packets);
        let (_, other) = ends(&clocks);
        assert_eq!(clocks.of[&other], Clock::Unknown(NoFit::OneWay));
        assert_eq!(clocks.reference_time(other, 5), None);
    }

    #[test]
    fn nobody_to_compare_is_no_fault() {
        assert!(Clocks::from_packets(&[]).of.is_empty());
    }
}

//! The path of one packet through hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dta_proto::key::Flow;
use dta_proto::trace::{Named, PacketSighting};

use super::clocks::{Clock, Clocks};
use super::packets::{DropRecord, HostNames, TracedPacket, host_name};

/// A packet at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    pub hop: u8,
    pub host: u16,
    /// Nanoseconds by the host's clock.
    pub time: u64,
    /// The same on the reference's clock; `None` if unknown.
    pub at: Option<u64>,
}

impl Passed {
    /// Nanoseconds since the packet passed another point; `None` if the clocks' difference is unknown.
    pub fn elapsed_since(&self, before: &Passed) -> Option<i64> {
        let nanoseconds = |a: u64, b: u64| (i128::from(b) - i128::from(a)) as i64;
        match (before.at, self.at) {
            _ if before.host == self.host => Some(nanoseconds(before.time, self.time)),
            (Some(a), Some(b)) => Some(nanoseconds(a, b)),
            _ => None,
        }
    }

    /// Nanoseconds from the first to the last point.
    pub fn total_latency(stops: &[Passed]) -> Option<i64> {
        stops.last()?.elapsed_since(stops.first()?)
    }
}

/// A packet's points in order, on one clock where that is known.
pub fn journey_points(packet: &TracedPacket, clocks: &Clocks) -> Vec<Passed> {
    let mut stops = Vec::new();
    for visit in &packet.visits {
        for stop in &visit.stops {
            let at = clocks.reference_time(visit.host, stop.time);
            stops.push(Passed { hop: stop.hop, host: visit.host, time: stop.time, at });
        }
    }
    if stops.iter().all(|stop| stop.at.is_some()) {
        // At equal times on two hosts, the order of the hops is as good as any.
        stops.sort_by_key(|stop| (stop.at, stop.hop));
    } else {
        // Without a common clock, hosts are ordered by their lowest hops, as their points are numbered.
        let least = |host: u16| stops.iter().filter(|stop| stop.host == host).map(|stop| stop.hop).min();
        let keys: BTreeMap<u16, Option<u8>> =
            stops.iter().map(|stop| (stop.host, least(stop.host))).collect();
        stops.sort_by_key(|stop| (keys[&stop.host], stop.time));
    }
    stops
}

/// Says that there are no times to and from a host.
pub fn unknown_clock(host: &str, why: &str) -> String {
    format!("The clock difference of host {host} is unknown ({why}): times to and from it are missing.")
}

/// A packet that hosts reported, with all that is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTrace {
    /// Its first digest.
    pub digest: u64,
    /// Its points; none if only its drop is known.
    pub packet: TracedPacket,
    pub drops: Vec<DropRecord>,
    /// Names of hosts, points and reasons.
    pub names: Arc<HostNames>,
    pub clocks: Arc<Clocks>,
}

impl HostTrace {
    /// The first report about it, by the hosts' own clocks.
    pub fn first_sighting(&self) -> PacketSighting {
        let records = self.packet.records.iter().map(|record| record.seen);
        let all = records.chain(self.drops.iter().map(|drop| drop.seen));
        all.min_by_key(|seen| (seen.time, seen.host)).unwrap_or_default()
    }

    /// Its flow where it was first seen; `None` if only the key is known, as for IPv6.
    pub fn known_flow(&self) -> Option<Flow> {
        self.first_sighting().flow.to_ipv4_flow()
    }

    pub fn point_name(&self, host: u16, hop: u8) -> String {
        let name = self.names.get(&(host, Named::Point, hop.into()));
        name.cloned().unwrap_or_else(|| format!("point {hop}"))
    }

    /// The hosts that it passed, and those that dropped it.
    pub fn host_ids(&self) -> BTreeSet<u16> {
        let points = self.packet.visits.iter().map(|visit| visit.host);
        points.chain(self.drops.iter().map(|drop| drop.seen.host)).collect()
    }

    pub fn describe_missing(&self) -> Vec<String> {
        let name = |host: u16| host_name(&self.names, host);
        let TracedPacket { visits, lost, .. } = &self.packet;
        let clock = |host: u16| match self.clocks.of.get(&host) {
            Some(Clock::Unknown(no)) => Some(unknown_clock(&name(host), &no.to_string())),
            Some(_) => None,
            None => Some(unknown_clock(&name(host), "no packet crossed several hosts")),
        };
        let hosts = Some(self.host_ids()).filter(|hosts| hosts.len() > 1);
        let mut all: Vec<String> = hosts.into_iter().flatten().filter_map(clock).collect();
        all.extend(lost.iter().map(|host| {
            format!("The points of host {} are no longer known: a later packet overwrote them.", name(*host))
        }));
        all.extend(visits.iter().filter(|visit| visit.missing > 0).map(|visit| {
            let points = visit.stops.len() + usize::from(visit.missing);
            let (host, missing) = (name(visit.host), visit.missing);
            format!("Host {host} saw it at {points} points, {missing} of which are no longer known.")
        }));
        all
    }
}

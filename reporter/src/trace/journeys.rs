//! Collects what a host saw of packets in flight.
//!
//! Records of one packet come from several processors, and so in any order. They are held by the digest that
//! the packet had where the host first saw it, until nothing new has been seen of it for a while, or its
//! place is needed.

use std::collections::{HashMap, VecDeque};

use crate::packet_trace::record::TraceRecord;
use dta_proto::key::Flow;
use dta_proto::trace::HOPS;

/// All times of one packet's hops in a host are within this, so that the low 32 bits of nanoseconds suffice.
const LONGEST: u64 = 4_000_000_000;

/// A packet at a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JourneyStop {
    pub(super) time: u64,
    pub(super) hop: u8,
    interface: (u32, u32),
}

/// What was seen of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Journey {
    /// Its digest where the host first saw it.
    pub(super) digest: u64,
    /// Its digest at the last point.
    pub(super) left: u64,
    /// Its flow at the first point.
    pub(super) flow: Flow,
    /// Its length at the first point.
    pub(super) length: u32,
    stops: [JourneyStop; HOPS as usize],
    count: u8,
}

impl Journey {
    fn new(record: &TraceRecord) -> Journey {
        Journey {
            digest: record.first,
            left: record.digest,
            flow: record.flow,
            length: record.length,
            stops: [JourneyStop::default(); HOPS as usize],
            count: 0,
        }
    }

    /// The points where it was, by time.
    pub(super) fn stops(&self) -> &[JourneyStop] {
        &self.stops[..usize::from(self.count)]
    }

    /// Adds a point, unless the packet was already seen there.
    fn add(&mut self, record: &TraceRecord, hop: u8) -> Took {
        let interface = (record.namespace, record.interface);
        if let Some(before) = self.stops().iter().find(|stop| stop.hop == hop) {
            return if before.interface == interface { Took::SharedDigest } else { Took::Repeat };
        }
        let at = self.stops().partition_point(|stop| stop.time <= record.time);
        if at == 0 {
            (self.flow, self.length) = (record.flow, record.length);
        }
        if at == usize::from(self.count) {
            self.left = record.digest;
        }
        self.stops[at..=usize::from(self.count)].rotate_right(1);
        self.stops[at] = JourneyStop { time: record.time, hop, interface };
        self.count += 1;
        Took::Next
    }

    fn span_with(&self, time: u64) -> u64 {
        let [first, last] =
            [self.stops().first(), self.stops().last()].map(|stop| stop.map_or(time, |s| s.time));
        last.max(time) - first.min(time)
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Took {
    /// The first record of its packet.
    New,
    /// A further record of its packet.
    Next,
    /// Its packet was already seen at that point, on another interface. Not reported.
    Repeat,
    /// A packet with this digest was already seen at that point and interface. Not reported.
    SharedDigest,
    /// The first record of its packet, which evicted the journey held longest.
    Full(Box<Journey>),
}

pub(super) struct Journeys {
    /// The index in `places` of each digest's journey.
    at: HashMap<u64, u32, foldhash::fast::RandomState>,
    places: Vec<Journey>,
    free: Vec<u32>,
    /// Digests by the time at which they may be complete; one that is not complete then is queued again.
    queue: VecDeque<(u64, u64)>,
    most: usize,
    quiet: u64,
}

impl Journeys {
    /// Holds up to `most` packets, which are reported after `quiet` nanoseconds without a record.
    pub(super) fn new(most: usize, quiet: u64) -> Journeys {
        let most = most.max(1);
        Journeys {
            at: HashMap::with_capacity_and_hasher(most, foldhash::fast::RandomState::default()),
            places: Vec::with_capacity(most),
            free: Vec::with_capacity(most),
            queue: VecDeque::with_capacity(most + 1),
            most,
            quiet,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.at.len()
    }

    /// Adds a record of a point on the path (`hop` below [`HOPS`]).
    pub(super) fn take(&mut self, record: &TraceRecord, hop: u8) -> Took {
        if let Some(at) = self.at.get(&record.first) {
            let journey = &mut self.places[*at as usize];
            if journey.span_with(record.time) <= LONGEST {
                return journey.add(record, hop);
            }
            // So far apart, it is another packet with the same bytes.
            let earlier = std::mem::replace(journey, Journey::new(record));
            journey.add(record, hop);
            return Took::Full(Box::new(earlier));
        }
        let full = if self.at.len() == self.most { self.take_oldest() } else { None };
        let mut journey = Journey::new(record);
        journey.add(record, hop);
        let at = match self.free.pop() {
            Some(at) => {
                self.places[at as usize] = journey;
                at
            }
            None => {
                self.places.push(journey);
                (self.places.len() - 1) as u32
            }
        };
        self.at.insert(record.first, at);
        self.queue.push_back((record.time.saturating_add(self.quiet), record.first));
        full.map_or(Took::New, |journey| Took::Full(Box::new(journey)))
    }

    /// Removes and returns a packet of which nothing new has been seen for a while.
    pub(super) fn take_quiet(&mut self, now: u64) -> Option<Journey> {
        loop {
            let (due, digest) = *self.queue.front()?;
            if due > now {
                return None;
            }
            self.queue.pop_front();
            let Some(at) = self.at.get(&digest) else { continue };
            let last = self.places[*at as usize].stops().last().map_or(0, |stop| stop.time);
            let due = last.saturating_add(self.quiet);
            if due <= now {
                return self.remove(digest);
            }
            self.queue.push_back((due, digest));
        }
    }

    fn take_oldest(&mut self) -> Option<Journey> {
        loop {
            let (_, digest) = self.queue.pop_front()?;
            if let Some(journey) = self.remove(digest) {
                return Some(journey);
            }
        }
    }

    fn remove(&mut self, digest: u64) -> Option<Journey> {
        let at = self.at.remove(&digest)?;
        self.free.push(at);
        Some(self.places[at as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUIET: u64 = 1000;

    fn record(digest: u64, time: u64) -> TraceRecord {
        let flow = "10.0.0.1:1->10.0.0.2:2/udp".parse().unwrap();
        let (core, reason, namespace, interface) = (0, 0, 0, 0);
        let (first, flags, length, point, cpu, segments) = (digest, 0, 100, 0, 0, 1);
        TraceRecord {
            time,
            digest,
            first,
            core,
            flow,
            flags,
            length,
            reason,
            namespace,
            interface,
            point,
            cpu,
            segments,
        }
    }

    fn hops(journey: &Journey) -> Vec<(u8, u64)> {
        journey.stops().iter().map(|stop| (stop.hop, stop.time)).collect()
    }

    #[test]
    fn records_in_any_order_are_one_journey_in_the_order_of_time() {
        let mut journeys = Journeys::new(4, QUIET);
        assert_eq!(journeys.take(&TraceRecord { digest: 8, ..record(7, 30) }, 2), Took::New);
        assert_eq!(journeys.take(&TraceRecord { length: 50, ..record(7, 10) }, 0), Took::Next);
        assert_eq!(journeys.take(&record(7, 20), 1), Took::Next);
        assert_eq!(journeys.take(&record(7, 25), 1), Took::SharedDigest);
        assert_eq!(journeys.take(&TraceRecord { interface: 3, ..record(7, 26) }, 1), Took::Repeat);
        assert_eq!(journeys.take_quiet(1029), None);
        let journey = journeys.take_quiet(1030).unwrap();
        assert_eq!(hops(&journey), [(0, 10), (1, 20), (2, 30)]);
        assert_eq!((journey.digest, journey.left, journey.length), (7, 8, 50));
        assert_eq!((journeys.take_quiet(u64::MAX), journeys.len()), (None, 0));
    }

    #[test]
    fn when_there_is_no_room_the_oldest_is_reported_early() {
        let mut journeys = Journeys::new(2, QUIET);
        assert_eq!(journeys.take(&record(1, 10), 0), Took::New);
        assert_eq!(journeys.take(&record(2, 11), 0), Took::New);
        let Took::Full(oldest) = journeys.take(&record(3, 12), 0) else { panic!() };
        assert_eq!((oldest.digest, journeys.len()), (1, 2));
    }

    #[test]
    fn the_same_bytes_much_later_are_another_packet() {
        let mut journeys = Journeys::new(2, QUIET);
        journeys.take(&record(1, 10), 0);
        let Took::Full(earlier) = journeys.take(&record(1, 10 + LONGEST + 1), 1) else { panic!() };
        assert_eq!(hops(&earlier), [(0, 10)]);
        assert_eq!(hops(&journeys.take_quiet(u64::MAX).unwrap()), [(1, 11 + LONGEST)]);
    }

    proptest! {
        /// Each record is in one journey, or a repeat; the limit is never exceeded.
        #[test]
        fn each_record_is_reported_once(
            records in prop::collection::vec((0u64..6, 0u64..5000, 0u8..HOPS, 0u64..50), 0..200), most in 1usize..5,
        ) {
            let mut journeys = Journeys::new(most, QUIET);
            let (mut now, mut taken, mut reported) = (0, 0, 0);
            for (digest, ahead, hop, step) in records {
                now += step;
                match journeys.take(&record(digest, now + ahead), hop) {
                    Took::Repeat | Took::SharedDigest => {}
                    Took::Full(journey) => { reported += journey.stops().len(); taken += 1 }
                    Took::New | Took::Next => taken += 1,
                }
                prop_assert!(journeys.len() <= most);
                while let Some(journey) = journeys.take_quiet(now) {
                    reported += journey.stops().len();
                    let times: Vec<u64> = journey.stops().iter().map(|stop| stop.time).collect();
                    prop_assert!(times.is_sorted());
                    prop_assert!(times.iter().all(|time| time + QUIET <= now));
                }
            }
            while let Some(journey) = journeys.take_quiet(u64::MAX) {
                reported += journey.stops().len();
            }
            prop_assert_eq!((reported, journeys.len()), (taken, 0));
        }
    }
}

//! Assembles the records of one packet into its path through this host.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::packet_trace::record::TraceRecord;

/// One packet's records in order of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journey {
    pub records: Vec<TraceRecord>,
}

impl Journey {
    /// Nanoseconds from the first record to the last.
    pub fn total_duration(&self) -> u64 {
        match (self.records.first(), self.records.last()) {
            (Some(first), Some(last)) => last.time - first.time,
            _ => 0,
        }
    }
}

/// Where a record was made; a packet passes each place once.
type Place = (u16, u32, u32);

struct Open {
    records: Vec<TraceRecord>,
    /// When its last record was added.
    touched: u64,
}

/// Collects records until nothing more arrives for a packet for a while.
///
/// Packets that share a digest are told apart by order: a record belongs to the oldest packet with its
/// digest that has not been at this place yet.
#[derive(Default)]
pub struct Journeys {
    open: HashMap<u64, VecDeque<Open>>,
    /// Digests by the time when they were last touched.
    waiting: BTreeMap<(u64, u64), ()>,
    shared: u64,
}

impl Journeys {
    /// Adds a record; `now` is any monotonic clock, in nanoseconds.
    pub fn add_record(&mut self, record: TraceRecord, now: u64) {
        let place = |record: &TraceRecord| -> Place { (record.point, record.namespace, record.interface) };
        let here = place(&record);
        let packets = self.open.entry(record.first).or_default();
        match packets.iter_mut().find(|packet| packet.records.iter().all(|other| place(other) != here)) {
            Some(packet) => {
                packet.records.push(record);
                packet.touched = now;
            }
            None => {
                self.shared += u64::from(!packets.is_empty());
                packets.push_back(Open { records: vec![record], touched: now });
                self.waiting.insert((now, record.first), ());
            }
        }
    }

    /// Takes the packets without new records since `before`, in the order in which they ended.
    pub fn take_settled(&mut self, before: u64) -> Vec<Journey> {
        let mut out = Vec::new();
        while let Some((&(at, digest), ())) = self.waiting.first_key_value()
            && at <= before
        {
            self.waiting.pop_first();
            let Some(packets) = self.open.get_mut(&digest) else { continue };
            while packets.front().is_some_and(|packet| packet.touched <= before)
                && let Some(packet) = packets.pop_front()
            {
                let mut records = packet.records;
                records.sort_by_key(|record| record.time);
                out.push(Journey { records });
            }
            match packets.front() {
                Some(packet) => {
                    self.waiting.insert((packet.touched, digest), ());
                }
                None => {
                    self.open.remove(&digest);
                }
            }
        }
        out.sort_by_key(|journey| journey.records.last().map(|record| record.time));
        out
    }

    /// How many packets shared their digest with another in flight.
    pub fn shared_digests(&self) -> u64 {
        self.shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(digest: u64, point: u16, time: u64) -> TraceRecord {
        let mut bytes = [0; crate::packet_trace::record::RECORD];
        bytes[..8].copy_from_slice(&time.to_ne_bytes());
        bytes[16..24].copy_from_slice(&digest.to_ne_bytes());
        bytes[88..90].copy_from_slice(&point.to_ne_bytes());
        TraceRecord::read(&bytes).unwrap()
    }

    fn times(journeys: &[Journey]) -> Vec<Vec<u64>> {
        journeys.iter().map(|journey| journey.records.iter().map(|record| record.time).collect()).collect()
    }

    #[test]
    fn records_of_a_packet_meet_whatever_their_order() {
        let mut journeys = Journeys::default();
        for (digest, point, time) in [(1, 2, 30), (1, 0, 10), (2, 0, 15), (1, 1, 20)] {
            journeys.add_record(record(digest, point, time), time);
        }
        assert!(journeys.take_settled(14).is_empty());
        let settled = journeys.take_settled(100);
        assert_eq!(times(&settled), [vec![15], vec![10, 20, 30]]);
        assert_eq!(settled[1].total_duration(), 20);
        let waiting: usize = journeys.open.values().map(VecDeque::len).sum();
        assert_eq!((waiting, journeys.shared_digests()), (0, 0));
    }

    #[test]
    fn packets_with_one_digest_are_distinguished_by_their_order() {
        let mut journeys = Journeys::default();
        for (point, time) in [(0, 1), (0, 2), (1, 3), (1, 4)] {
            journeys.add_record(record(9, point, time), time);
        }
        assert_eq!(times(&journeys.take_settled(100)), [[1, 3], [2, 4]]);
        assert_eq!(journeys.shared_digests(), 1);
    }

    #[test]
    fn a_packet_that_is_on_its_way_waits() {
        let mut journeys = Journeys::default();
        journeys.add_record(record(1, 0, 10), 10);
        journeys.add_record(record(1, 1, 50), 50);
        assert!(journeys.take_settled(40).is_empty());
        assert_eq!(times(&journeys.take_settled(50)), [[10, 50]]);
    }
}

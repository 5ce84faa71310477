//! Latencies of flows between two points of this host: last, minimum, maximum and mean.

use std::num::NonZeroUsize;

use dta_proto::key::{Flow, Key};
use dta_proto::trace::{Latency, latency_key};
use lru::LruCache;

type Segment = (Flow, [u8; 2]);

#[derive(Clone, Copy)]
struct SegmentState {
    last: u64,
    least: u64,
    most: u64,
    sum: u128,
    packets: u64,
    time: u64,
    /// Whether it is waiting to be reported.
    waits: bool,
}

pub(super) struct Latencies {
    segments: LruCache<Segment, SegmentState>,
    news: Vec<Segment>,
}

impl Latencies {
    pub(super) fn new(most: usize) -> Latencies {
        let most = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        Latencies { segments: LruCache::new(most), news: Vec::with_capacity(most.get()) }
    }

    /// Adds the time that a packet took between two hops.
    pub(super) fn add(&mut self, flow: &Flow, hops: [u8; 2], nanoseconds: u64, time: u64) {
        let segment = (*flow, hops);
        let new =
            || SegmentState { last: 0, least: u64::MAX, most: 0, sum: 0, packets: 0, time: 0, waits: false };
        let state = self.segments.get_or_insert_mut(segment, new);
        // Packets do not finish in the order in which they started.
        if time >= state.time {
            (state.last, state.time) = (nanoseconds, time);
        }
        state.least = state.least.min(nanoseconds);
        state.most = state.most.max(nanoseconds);
        state.sum += u128::from(nanoseconds);
        state.packets += 1;
        if !std::mem::replace(&mut state.waits, true) {
            self.news.push(segment);
        }
    }

    pub(super) fn report_news<E>(
        &mut self,
        host: u16,
        mut report: impl FnMut(Key, Latency) -> Result<(), E>,
    ) -> Result<(), E> {
        let word = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        for segment in self.news.drain(..) {
            // A segment evicted since then has no value any more.
            let Some(state) = self.segments.peek_mut(&segment) else { continue };
            state.waits = false;
            let mean = state.sum / u128::from(state.packets.max(1));
            let value = Latency {
                last: word(state.last),
                least: word(state.least),
                most: word(state.most),
                mean: u32::try_from(mean).unwrap_or(u32::MAX),
                packets: word(state.packets),
                time: state.time,
            };
            let (flow, [from, to]) = &segment;
            report(latency_key(flow, host, *from, *to), value)?;
        }
        Ok(())
    }

    /// Drops the unreported values; returns how many there were.
    pub(super) fn discard_news(&mut self) -> u64 {
        let news = self.news.len() as u64;
        let _ = self.report_news::<()>(0, |_, _| Ok(()));
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_reported_is_of_all_packets_and_only_if_there_is_news() {
        let flow: Flow = "10.0.0.1:1->10.0.0.2:2/udp".parse().unwrap();
        let mut latencies = Latencies::new(2);
        for (nanoseconds, time) in [(30, 100), (10, 300), (5_000_000_000, 200)] {
            latencies.add(&flow, [0, 1], nanoseconds, time);
        }
        let reported = |latencies: &mut Latencies| {
            let mut all = Vec::new();
            latencies
                .report_news::<()>(7, |key, value| {
                    all.push((key, value));
                    Ok(())
                })
                .unwrap();
            all
        };
        let value =
            Latency { last: 10, least: 10, most: u32::MAX, mean: 1_666_666_680, packets: 3, time: 300 };
        assert_eq!(reported(&mut latencies), [(latency_key(&flow, 7, 0, 1), value)]);
        assert_eq!(reported(&mut latencies), []);
        // Of three segments, the least recently active one is evicted.
        latencies.add(&flow, [1, 2], 1, 400);
        latencies.add(&flow, [2, 3], 1, 400);
        latencies.add(&flow, [0, 1], 1, 500);
        let keys: Vec<Key> = reported(&mut latencies).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [latency_key(&flow, 7, 2, 3), latency_key(&flow, 7, 0, 1)]);
    }
}

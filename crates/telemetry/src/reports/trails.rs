//! Paths of flows whose switches each report separately (INT-XD, INT-MX): the switches in the order in which
//! they were first heard. Bounded as in [`super::seen`]: an evicted flow starts over.

use dta_proto::crc::crc32c;
use dta_proto::key::Key;

/// Maximum number of switches kept per flow.
pub(crate) const SWITCHES: usize = 6;
const WAYS: usize = 2;

#[derive(Clone, Copy)]
struct Trail {
    key: Key,
    switches: [u32; SWITCHES],
    /// Number of switches; 0 = free.
    count: u32,
    heard: u64,
    /// When the last switch was added.
    added: u64,
}

const FREE: Trail = Trail { key: Key([0; 16]), switches: [0; SWITCHES], count: 0, heard: 0, added: 0 };

pub(crate) struct Trails {
    buckets: Box<[[Trail; WAYS]]>,
    evicted: u64,
}

/// Effect of hearing a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard<'a> {
    /// It is on the path already. The whole path.
    Known(&'a [u32]),
    /// It was added to the path. The whole path, and the time since the switch before it was added; 0 for the
    /// first.
    Added(&'a [u32], u64),
    Full,
}

impl Trails {
    /// Room for at least this many flows (a power of two, at least 2).
    pub(crate) fn new(flows: usize) -> Trails {
        let buckets = flows.next_power_of_two().max(WAYS) / WAYS;
        Trails { buckets: vec![[FREE; WAYS]; buckets].into(), evicted: 0 }
    }

    pub(crate) fn evicted_flows(&self) -> u64 {
        self.evicted
    }

    /// Records that a switch reported a flow.
    pub(crate) fn record_switch_report(&mut self, key: Key, switch: u32, now: u64) -> Heard<'_> {
        let place = crc32c(&key.0).wrapping_mul(0x9e37_79b9) as usize >> 8;
        let bucket = &mut self.buckets[place & (self.buckets.len() - 1)];
        let known = bucket.iter().position(|trail| trail.count != 0 && trail.key == key);
        let way = known.unwrap_or_else(|| {
            let age = |trail: &Trail| (trail.count != 0, trail.heard);
            let way = usize::from(age(&bucket[1]) < age(&bucket[0]));
            self.evicted += u64::from(bucket[way].count != 0);
            bucket[way] = Trail { key, added: now, ..FREE };
            way
        });
        let trail = &mut bucket[way];
        trail.heard = now;
        let count = trail.count as usize;
        if trail.switches[..count].contains(&switch) {
            return Heard::Known(&trail.switches[..count]);
        }
        if count == SWITCHES {
            return Heard::Full;
        }
        trail.switches[count] = switch;
        trail.count += 1;
        let since = now.saturating_sub(trail.added);
        trail.added = now;
        Heard::Added(&trail.switches[..=count], since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_may_be_evicted_and_a_path_may_be_full() {
        let mut trails = Trails::new(2);
        let (a, b, c) = (Key([1; 16]), Key([2; 16]), Key([3; 16]));
        assert_eq!(trails.record_switch_report(a, 7, 1), Heard::Added(&[7], 0));
        assert_eq!(trails.record_switch_report(a, 5, 2), Heard::Added(&[7, 5], 1));
        assert_eq!(trails.record_switch_report(a, 7, 3), Heard::Known(&[7, 5]));
        assert_eq!(trails.record_switch_report(b, 7, 4), Heard::Added(&[7], 0));
        // The flow heard longest ago is evicted and starts over.
        assert_eq!(trails.record_switch_report(c, 7, 5), Heard::Added(&[7], 0));
        assert_eq!(trails.record_switch_report(a, 5, 6), Heard::Added(&[5], 0));
        assert_eq!(trails.evicted_flows(), 2);
        for switch in 10..15 {
            assert!(matches!(trails.record_switch_report(a, switch, 7), Heard::Added(..)));
        }
        assert_eq!(trails.record_switch_report(a, 15, 8), Heard::Full);
        assert_eq!(trails.record_switch_report(a, 14, 9), Heard::Known(&[5, 10, 11, 12, 13, 14]));
    }
}

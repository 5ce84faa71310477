//! Reports kept for retransmission: a ring of fixed size, indexed by sequence.

use dta_proto::wire::dta::MAX_REPORT_LEN;

/// One report as it was sent.
#[derive(Clone, Copy)]
struct SentReport {
    sequence: u32,
    /// 0 = free.
    len: u8,
    /// Number of retransmissions.
    again: u8,
    bytes: [u8; MAX_REPORT_LEN],
}

/// Most retransmissions of one report.
pub const MOST_AGAIN: u8 = 8;

/// Result of looking up a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupLookup<'a> {
    /// It is not kept: it never was, or a later one has replaced it.
    Nothing,
    /// It was retransmitted as often as allowed.
    Enough,
    /// The report.
    Report(&'a [u8]),
}

const _: () = assert!(MAX_REPORT_LEN <= u8::MAX as usize);

/// The last reports, each at its sequence mod the ring's size. Allocates once.
pub struct Backup {
    kept: Box<[SentReport]>,
}

impl Backup {
    /// Room for `reports`, rounded up to a power of two; 0 keeps none.
    pub fn new(reports: usize) -> Self {
        let size = if reports == 0 { 0 } else { reports.next_power_of_two() };
        Backup {
            kept: vec![SentReport { sequence: 0, len: 0, again: 0, bytes: [0; MAX_REPORT_LEN] }; size].into(),
        }
    }

    /// Keeps a report, replacing an older one in its place.
    #[inline]
    pub fn retain_report(&mut self, sequence: u32, report: &[u8]) {
        let Some(mask) = self.kept.len().checked_sub(1) else { return };
        let kept = &mut self.kept[sequence as usize & mask];
        kept.sequence = sequence;
        kept.len = report.len() as u8;
        kept.again = 0;
        kept.bytes[..report.len()].copy_from_slice(report);
    }

    /// Number of sequences that can be kept.
    pub fn capacity(&self) -> usize {
        self.kept.len()
    }

    /// The part of `count` sequences from `first` that can be kept, if the next report will be `next`: its
    /// first sequence and its length. Pure arithmetic, so that requests for nothing cost nothing.
    pub fn retained_range(&self, first: u32, count: u16, next: u32) -> (u32, u32) {
        let size = self.kept.len() as i64;
        let oldest = next.wrapping_sub(size as u32);
        // Signed: the request may begin before the oldest.
        let begin = i64::from(first.wrapping_sub(oldest) as i32);
        let (from, to) = (begin.max(0), (begin + i64::from(count)).min(size));
        (oldest.wrapping_add(from as u32), (to - from).max(0) as u32)
    }

    /// Takes the report with this sequence for retransmission, if it is still kept.
    #[inline]
    pub fn take(&mut self, sequence: u32) -> BackupLookup<'_> {
        let Some(mask) = self.kept.len().checked_sub(1) else { return BackupLookup::Nothing };
        let kept = &mut self.kept[sequence as usize & mask];
        if kept.len == 0 || kept.sequence != sequence {
            return BackupLookup::Nothing;
        }
        if kept.again >= MOST_AGAIN {
            return BackupLookup::Enough;
        }
        kept.again += 1;
        BackupLookup::Report(&kept.bytes[..usize::from(kept.len)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_room_keeps_nothing() {
        let mut backup = Backup::new(0);
        backup.retain_report(1, &[1]);
        assert_eq!(backup.take(1), BackupLookup::Nothing);
        assert_eq!(backup.retained_range(0, u16::MAX, 1).1, 0);
    }

    proptest! {
        /// Whatever is kept, in whatever order, across the wrap: the last report in each place is found
        /// under its own number and no other.
        #[test]
        fn finds_exactly_what_it_holds(size in 1usize..9, kept in prop::collection::vec((0u32..20, 1usize..=MAX_REPORT_LEN), 0..40)) {
            let mut backup = Backup::new(size);
            let size = size.next_power_of_two() as u32;
            let start = u32::MAX - 9;
            for (n, len) in &kept {
                backup.retain_report(start.wrapping_add(*n), &vec![*n as u8; *len]);
            }
            for n in 0..20u32 {
                let sequence = start.wrapping_add(n);
                let last = kept.iter().rev().find(|(m, _)| start.wrapping_add(*m) % size == sequence % size);
                let expect = last.filter(|(m, _)| *m == n).map(|(_, len)| vec![n as u8; *len]);
                let expect = expect.as_deref().map_or(BackupLookup::Nothing, BackupLookup::Report);
                for _ in 0..MOST_AGAIN {
                    prop_assert_eq!(backup.take(sequence), expect);
                }
                if expect != BackupLookup::Nothing {
                    prop_assert_eq!(backup.take(sequence), BackupLookup::Enough);
                }
            }
        }

        /// The range equals the one found by walking.
        #[test]
        fn the_range_is_what_walking_finds(size in 0usize..40, next in any::<u32>(), behind in -100i32..70_000, count: u16) {
            let backup = Backup::new(size);
            let first = next.wrapping_sub(behind as u32);
            let held = |s: u32| (next.wrapping_sub(s).wrapping_sub(1) as usize) < backup.capacity();
            let walked: Vec<u32> = (0..count).map(|n| first.wrapping_add(n.into())).filter(|s| held(*s)).collect();
            let (from, found) = backup.retained_range(first, count, next);
            prop_assert_eq!(found as usize, walked.len());
            if let Some(first) = walked.first() {
                prop_assert_eq!(from, *first);
            }
        }
    }
}

//! The reports that can be sent again: a ring of fixed size, found by sequence.

use dta_proto::wire::dta::MAX_REPORT_LEN;

/// One report as it was sent.
#[derive(Clone, Copy)]
struct Kept {
    sequence: u32,
    /// 0: nothing is kept here.
    len: u8,
    bytes: [u8; MAX_REPORT_LEN],
}

const _: () = assert!(MAX_REPORT_LEN <= u8::MAX as usize);

/// The last reports, each in the place of its sequence mod the ring's size. Allocates once.
pub struct Backup {
    kept: Box<[Kept]>,
}

impl Backup {
    /// Room for `reports`, rounded up to a power of two; 0 keeps none.
    pub fn new(reports: usize) -> Self {
        let size = if reports == 0 { 0 } else { reports.next_power_of_two() };
        Backup { kept: vec![Kept { sequence: 0, len: 0, bytes: [0; MAX_REPORT_LEN] }; size].into() }
    }

    /// Keeps a report, in the place of the one that many sequences before it.
    #[inline]
    pub fn keep(&mut self, sequence: u32, report: &[u8]) {
        let Some(mask) = self.kept.len().checked_sub(1) else { return };
        let kept = &mut self.kept[sequence as usize & mask];
        kept.sequence = sequence;
        kept.len = report.len() as u8;
        kept.bytes[..report.len()].copy_from_slice(report);
    }

    /// The report with this sequence, if it is still kept.
    #[inline]
    pub fn get(&self, sequence: u32) -> Option<&[u8]> {
        let mask = self.kept.len().checked_sub(1)?;
        let kept = &self.kept[sequence as usize & mask];
        (kept.len != 0 && kept.sequence == sequence).then(|| &kept.bytes[..usize::from(kept.len)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn without_room_keeps_nothing() {
        let mut backup = Backup::new(0);
        backup.keep(1, &[1]);
        assert_eq!(backup.get(1), None);
    }

    proptest! {
        /// Whatever is kept in whatever order over the wrap, the last one per place is found under its own number and no other.
        #[test]
        fn finds_exactly_what_it_holds(size in 1usize..9, kept in prop::collection::vec((0u32..20, 1usize..=MAX_REPORT_LEN), 0..40)) {
            let mut backup = Backup::new(size);
            let size = size.next_power_of_two() as u32;
            let start = u32::MAX - 9;
            for (n, len) in &kept {
                backup.keep(start.wrapping_add(*n), &vec![*n as u8; *len]);
            }
            for n in 0..20u32 {
                let sequence = start.wrapping_add(n);
                let last = kept.iter().rev().find(|(m, _)| start.wrapping_add(*m) % size == sequence % size);
                let expect = last.filter(|(m, _)| *m == n).map(|(_, len)| vec![n as u8; *len]);
                prop_assert_eq!(backup.get(sequence), expect.as_deref());
            }
        }
    }
}

//! Which reports are lost with a frame.
//!
//! Every frame has a [`FrameMeta`]. A report with copies is lost when all its copies are. An increment is lost at a collector when any
//! of its copies there is, since a query takes the minimum, and lost altogether when it is lost at all collectors that have the key.
//! Increments of several reports may share a frame, so such frames name their reports one by one in the [`Origins`] ring.

use std::collections::HashMap;

use dta_proto::program::Primitive;

use super::pair_place;

/// The identity of a report in losses and the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Serial number among accepted reports, modulo 2^32.
    pub serial: u32,
    /// The report's sequence (8 bits in version 0).
    pub sequence: u32,
    /// The report's reporter id (0 in version 0).
    pub reporter: u16,
}

/// What a frame carries, kept until its fate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameMeta {
    /// Primitive of the reports; `None` for an idle frame, which has none.
    pub primitive: Option<Primitive>,
    /// Place of its queue pair, among those of all collectors.
    pub pair: u8,
    /// Copy number, from 0; for increments, copies for a second collector follow those for the first.
    pub copy: u8,
    /// Number of copies with the same reports; for increments, at one collector.
    pub copies: u8,
    /// Collectors to which an increment goes; 1 for other primitives.
    pub replicas: u8,
    /// Number of reports in it.
    pub reports: u16,
    /// Number that all copies of the same reports share.
    pub group: u32,
    /// Position in the ring of the first of its `origins`.
    pub first_origin: u64,
    /// How many of its reports are in the ring: all or none.
    pub origins: u16,
}

impl FrameMeta {
    pub const IDLE: FrameMeta = FrameMeta {
        primitive: None,
        pair: pair_place::NONE,
        copy: 0,
        copies: 1,
        replicas: 1,
        reports: 0,
        group: 0,
        first_origin: 0,
        origins: 0,
    };
}

/// Origins of the reports in recent frames, in a ring.
#[derive(Debug)]
pub struct Origins {
    ring: Vec<Origin>,
    next: u64,
}

impl Origins {
    /// Room for the last `capacity` reports, a power of two.
    pub(crate) fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two());
        Origins { ring: vec![Origin::default(); capacity], next: 0 }
    }

    /// Position of the next origin pushed.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn push(&mut self, origin: Origin) {
        let mask = self.ring.len() as u64 - 1;
        self.ring[(self.next & mask) as usize] = origin;
        self.next += 1;
    }

    /// The origins of a frame's reports; fewer than it carries if the ring has wrapped past them, or none if
    /// origins are not kept.
    pub fn frame_origins(&self, meta: &FrameMeta) -> impl Iterator<Item = Origin> + '_ {
        let oldest = self.next.saturating_sub(self.ring.len() as u64);
        let mask = self.ring.len() as u64 - 1;
        let end = meta.first_origin + u64::from(meta.origins);
        (meta.first_origin.max(oldest)..end).map(move |i| self.ring[(i & mask) as usize])
    }
}

/// Losses remembered before the older half is dropped.
const REMEMBERED: usize = 1 << 16;

/// Derives lost reports from lost frames.
#[derive(Debug, Default)]
pub struct LossTracker {
    /// Lost copies per group, in two generations.
    groups: [HashMap<u32, u8>; 2],
    /// Where increments are lost, by serial: a bit for each replica. In two generations.
    increments: [HashMap<u32, u8>; 2],
}

impl LossTracker {
    /// Returns how many more reports are lost now that this frame is.
    pub fn record_lost_frame(&mut self, meta: &FrameMeta, origins: &Origins) -> u64 {
        match meta.primitive {
            None => 0,
            Some(Primitive::KeyIncrement) => {
                let (mut lost, mut named) = (0, 0);
                let replica = 1u8 << (meta.copy / meta.copies.max(1)).min(7);
                for origin in origins.frame_origins(meta) {
                    named += 1;
                    let earlier = self.increments[1].remove(&origin.serial).unwrap_or(0);
                    let replicas = self.increments[0].entry(origin.serial).or_insert(earlier);
                    if *replicas & replica == 0 {
                        *replicas |= replica;
                        lost += u64::from(replicas.count_ones() == u32::from(meta.replicas));
                    }
                }
                if self.increments[0].len() >= REMEMBERED {
                    self.increments.swap(0, 1);
                    self.increments[0].clear();
                }
                // Reports that the ring has wrapped past cannot be told apart, so they are counted once, with
                // the first copy.
                let nameless = u64::from(meta.origins) - named;
                if meta.copy == 0 { lost + nameless } else { lost }
            }
            Some(_) if meta.copies <= 1 => u64::from(meta.reports),
            Some(_) => {
                let earlier = self.groups[1].remove(&meta.group).unwrap_or(0);
                let copies = self.groups[0].entry(meta.group).or_insert(0);
                *copies += earlier + 1;
                let all = *copies >= meta.copies;
                if all {
                    self.groups[0].remove(&meta.group);
                }
                if self.groups[0].len() >= REMEMBERED {
                    self.groups.swap(0, 1);
                    self.groups[0].clear();
                }
                if all { u64::from(meta.reports) } else { 0 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(primitive: Primitive, group: u32, copies: u8, reports: u16) -> FrameMeta {
        FrameMeta { primitive: Some(primitive), copies, reports, group, ..FrameMeta::IDLE }
    }

    #[test]
    fn a_report_with_copies_is_lost_with_the_last_copy() {
        let origins = Origins::new(8);
        let mut tracker = LossTracker::default();
        let row = meta(Primitive::Postcarding, 7, 3, 5);
        assert_eq!(tracker.record_lost_frame(&row, &origins), 0);
        assert_eq!(tracker.record_lost_frame(&meta(Primitive::KeyWrite, 8, 2, 1), &origins), 0);
        assert_eq!(tracker.record_lost_frame(&row, &origins), 0);
        assert_eq!(tracker.record_lost_frame(&row, &origins), 5);
        assert_eq!(tracker.record_lost_frame(&meta(Primitive::Append, 9, 1, 14), &origins), 14);
    }

    #[test]
    fn an_increment_is_lost_once_with_the_first_copy() {
        let mut origins = Origins::new(8);
        for serial in [1, 2, 2, 3] {
            origins.push(Origin { serial, ..Origin::default() });
        }
        let mut tracker = LossTracker::default();
        let first = FrameMeta { first_origin: 0, origins: 2, ..meta(Primitive::KeyIncrement, 0, 2, 2) };
        let second = FrameMeta { first_origin: 2, origins: 2, ..first };
        assert_eq!(tracker.record_lost_frame(&first, &origins), 2);
        assert_eq!(tracker.record_lost_frame(&second, &origins), 1);
    }

    #[test]
    fn an_increment_with_replicas_is_lost_once_it_is_at_all_of_them() {
        let mut origins = Origins::new(8);
        for serial in [1, 2] {
            origins.push(Origin { serial, ..Origin::default() });
        }
        let mut tracker = LossTracker::default();
        let both = FrameMeta { origins: 2, replicas: 2, ..meta(Primitive::KeyIncrement, 0, 2, 2) };
        assert_eq!(tracker.record_lost_frame(&both, &origins), 0);
        assert_eq!(tracker.record_lost_frame(&FrameMeta { copy: 1, ..both }, &origins), 0);
        // That of serial 2 is at the other collector, too.
        let second = FrameMeta { copy: 2, first_origin: 1, origins: 1, ..both };
        assert_eq!(tracker.record_lost_frame(&second, &origins), 1);
        assert_eq!(tracker.record_lost_frame(&FrameMeta { copy: 3, ..second }, &origins), 0);
    }

    #[test]
    fn increments_whose_names_are_gone_are_counted_with_their_first_copy() {
        let mut origins = Origins::new(8);
        (0..20).for_each(|serial| origins.push(Origin { serial, ..Origin::default() }));
        let mut tracker = LossTracker::default();
        let first = FrameMeta { first_origin: 10, origins: 4, ..meta(Primitive::KeyIncrement, 0, 2, 4) };
        // Of serials 10 to 13 the ring still has 12 and 13.
        assert_eq!(tracker.record_lost_frame(&first, &origins), 4);
        assert_eq!(tracker.record_lost_frame(&FrameMeta { copy: 1, ..first }, &origins), 0);
    }
}

//! Key-increment: sums the increments of one ingest batch per counter.

use crate::context::Context;
use crate::counters::{EngineCounters, Reason};
use crate::egress::Egress;
use crate::frame::EngineOutput;
use crate::losses::{FrameMeta, Origin};
use crate::requester::OperationEffect;
use dta_proto::key::Key;
use dta_proto::layout::{hash, key_increment as layout};
use dta_proto::program::Primitive;

/// The sums of one batch, by counter.
pub(crate) struct Increments {
    sums: Vec<Sum>,
    /// The batch's increments in order of arrival; those of one sum are chained.
    parts: Vec<OriginNode>,
    /// Open-addressed: index in `sums` by hash of (store, counter), valid if the stamp is the batch's.
    table: Vec<(u32, u32)>,
    stamp: u32,
    coalesce: bool,
}

/// The shape of one store. Increments for all stores and one batch are held in [`Increments`].
#[derive(Clone, Copy)]
pub(crate) struct KeyIncrementShape {
    pub(crate) slots: u64,
    /// Counters per key at each collector.
    pub(crate) copies: u8,
}

struct Sum {
    store: usize,
    slot: u64,
    delta: u64,
    first: u32,
    last: u32,
    /// Which of the `replicas` collectors that count the key this is for.
    replica: u8,
    replicas: u8,
    copy: u8,
    copies: u8,
}

struct OriginNode {
    origin: Origin,
    next: u32,
}

const NONE: u32 = u32::MAX;
/// Number of sums at which a batch is sent even before it ends.
const MOST: usize = 4096;

impl Increments {
    pub(crate) fn new(coalesce: bool) -> Self {
        Increments {
            sums: Vec::with_capacity(MOST),
            parts: Vec::with_capacity(MOST),
            table: vec![(0, 0); MOST * 2],
            stamp: 1,
            coalesce,
        }
    }

    pub(crate) fn set_coalescing(&mut self, coalesce: bool) {
        self.coalesce = coalesce;
    }

    /// Adds an increment to the sums of its key's counters. A `redundancy` of 0 means all counters.
    #[inline]
    pub(crate) fn ingest_increment(
        &mut self,
        shape: KeyIncrementShape,
        redundancy: u8,
        key: &Key,
        delta: u64,
        origin: Origin,
        context: &mut Context<'_>,
    ) -> Result<(), Reason> {
        let KeyIncrementShape { slots, copies } = shape;
        if redundancy != 0 && redundancy != copies {
            return Err(Reason::Redundancy);
        }
        let h = hash::key_hash(key);
        context.check_reachable(h)?;
        let lanes = context.regions.replica_count();
        if self.parts.len() + usize::from(copies) * lanes > MOST {
            self.send(context.now, context.egress, context.out);
        }
        let counters = &mut context.egress.counters;
        counters.primitive_counters_mut(Primitive::KeyIncrement).emitted += 1;
        // If two collectors count the key, each has a lane of its own.
        let stores = (0..lanes).filter_map(|lane| Some((lane, context.regions.of_replica(h, lane)?)));
        let replicas = stores.clone().count() as u8;
        for (replica, (lane, store)) in (0u8..).zip(stores) {
            for n in 0..copies {
                let part = self.parts.len() as u32;
                self.parts.push(OriginNode { origin, next: NONE });
                let slot = hash::slot_index(h, layout::copy_in_lane(lane, n, copies), slots);
                let copy = replica * copies + n;
                let sum =
                    Sum { store, slot, delta, first: part, last: part, replica, replicas, copy, copies };
                self.add(sum, counters);
            }
        }
        Ok(())
    }

    /// Adds to one sum; the part is already in `parts`.
    #[inline]
    fn add(&mut self, new: Sum, counters: &mut EngineCounters) {
        let mut at = 0;
        if self.coalesce {
            let mask = self.table.len() - 1;
            at = (new.slot ^ (new.store as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 20
                & mask;
            loop {
                let (stamp, index) = self.table[at];
                if stamp != self.stamp {
                    break;
                }
                let sum = &mut self.sums[index as usize];
                let place = |sum: &Sum| (sum.store, sum.slot, sum.replica, sum.replicas);
                if place(sum) == place(&new) {
                    // Modulo 2^64, as in the counter itself.
                    sum.delta = sum.delta.wrapping_add(new.delta);
                    self.parts[sum.last as usize].next = new.first;
                    sum.last = new.first;
                    counters.primitive_counters_mut(Primitive::KeyIncrement).coalesced += 1;
                    return;
                }
                at = (at + 1) & mask;
            }
        }
        if self.coalesce {
            self.table[at] = (self.stamp, self.sums.len() as u32);
        }
        self.sums.push(new);
    }

    /// Ends the batch: one FETCH_ADD per sum, in order of first appearance.
    pub(crate) fn send(&mut self, now: u64, egress: &mut Egress, out: &mut EngineOutput) {
        if self.sums.is_empty() {
            return;
        }
        egress.counters.primitive_counters_mut(Primitive::KeyIncrement).operations += self.sums.len() as u64;
        for sum in &self.sums {
            let first_origin = egress.origins.next();
            let mut part = sum.first;
            while part != NONE {
                let p = &self.parts[part as usize];
                egress.origins.push(p.origin);
                part = p.next;
            }
            let reports = (egress.origins.next() - first_origin) as u16;
            let meta = FrameMeta {
                primitive: Some(Primitive::KeyIncrement),
                pair: egress.pair_place_of(sum.store),
                copy: sum.copy,
                copies: sum.copies,
                replicas: sum.replicas,
                reports,
                group: 0,
                first_origin,
                origins: reports,
            };
            egress.post_operation(
                now,
                (sum.store, layout::counter_offset(sum.slot)),
                OperationEffect::fetch_add(sum.delta),
                &[],
                &meta,
                out,
            );
        }
        self.sums.clear();
        self.parts.clear();
        self.stamp = self.stamp.wrapping_add(1);
        if self.stamp == 0 {
            self.table.fill((0, 0));
            self.stamp = 1;
        }
    }
}

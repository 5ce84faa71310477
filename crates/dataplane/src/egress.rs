//! From operations to frames or work requests: queue pairs, templates, and the reports lost with a queue pair.
//!
//! A store's region may be replaced while operations for it are in flight. An operation that was sent goes to
//! the region and rkey it was sent for as long as it keeps its PSN: a PSN always means one operation at one
//! place, however often it is sent. Unsent operations, and those resent on another queue pair, go to the new
//! region. See `docs/decisions/rc-recovery.md`.

use dta_proto::key::Key;
use dta_proto::layout::key_write::{self, CHECKSUM_LEN};
use dta_proto::wire::roce::Psn;

use super::counters::{EngineCounters, LossCause};
use super::frame::{EngineOutput, IdleFrames, StoreFrames};
use super::losses::{FrameMeta, LossTracker, Origin, Origins};
use super::pair_place;
use super::requester::{
    Depart, Departure, OperationEffect, Requester, RequesterCounters, ResponderAnswer, Successor, Timing,
};
use super::run::VALUE_LEN;
use dta_proto::program::{Primitive, ProgramQueuePair, Store, Transport};

/// Destination of an operation: index of its store in the engine, and byte offset in the store's region.
pub(crate) type Target = (usize, u64);

/// One payload for a store.
#[derive(Clone, Copy)]
pub(crate) struct StoreWrite<'a> {
    pub(crate) action: OperationEffect,
    /// Number of copies, each to its own place.
    pub(crate) copies: u8,
    pub(crate) payload: &'a [u8],
    pub(crate) primitive: Primitive,
    pub(crate) reports: u16,
}

/// Key-writes of 12 bytes for one store, at most as many as a [`KeyWriteRun`](super::run::KeyWriteRun) holds.
pub(crate) struct Elements<'a> {
    pub(crate) keys: &'a [Key],
    pub(crate) values: &'a [[u8; VALUE_LEN]],
    pub(crate) hashes: &'a [u32],
    pub(crate) copies: u8,
}

pub(crate) struct ActiveQueuePair {
    pub(crate) entry: ProgramQueuePair,
    pub(crate) requester: Requester,
    idle: Option<IdleFrames>,
}

/// A store's former region, kept for the operations already sent to it.
struct Former {
    place: usize,
    /// The store as it was then.
    store: Store,
    frames: Option<StoreFrames>,
    /// The requester's operation number after the last of these operations.
    behind: u64,
}

/// An operation for a former region has, instead of a store's place, the region's place in the table plus
/// this. Stores have lower places.
const FORMER: usize = 1 << 16;

/// Everything downstream of the primitives.
pub(crate) struct Egress {
    /// By their places ([`pair_place`]).
    pairs: Vec<Option<ActiveQueuePair>>,
    /// Counters of removed queue pairs, by their places; the next queue pair at a place continues them.
    counted: Vec<RequesterCounters>,
    stores: Vec<Option<StoreFrames>>,
    /// A former region keeps its place as long as it is needed.
    former: Vec<Option<Former>>,
    pub(crate) counters: EngineCounters,
    pub(crate) origins: Origins,
    losses: LossTracker,
    /// Whether frames name all their reports, for the ledger.
    pub(crate) name_reports: bool,
    next_group: u32,
    timing: Timing,
    reference: bool,
    /// Whether operations leave as work requests for an RDMA device.
    posts: bool,
}

/// What a requester needs to make frames and count losses.
struct Sink<'a> {
    stores: &'a [Option<StoreFrames>],
    former: &'a [Option<Former>],
    idle: Option<&'a IdleFrames>,
    counters: &'a mut EngineCounters,
    origins: &'a Origins,
    losses: &'a mut LossTracker,
    name_reports: bool,
    out: &'a mut EngineOutput,
}

impl Depart for Sink<'_> {
    #[inline]
    fn emit_departure(&mut self, departure: Departure<'_>) {
        let frames = match departure.action {
            OperationEffect::IDLE => None,
            _ => self.stores.get(departure.store).and_then(Option::as_ref),
        };
        match frames {
            Some(frames) => {
                frames.write_departure(&departure, self.out);
                self.counters.count_frames(frames.counter, 1);
            }
            None if !self.depart_otherwise(&departure) => return,
            None => {}
        }
        self.out.meta.push(*departure.meta);
    }

    fn note_lost_operation(&mut self, meta: &FrameMeta, cause: LossCause) {
        let Some(primitive) = meta.primitive else { return };
        let reports = self.losses.record_lost_frame(meta, self.origins);
        self.counters.count_lost(cause, primitive, reports);
        if self.name_reports {
            self.out.lost.extend(self.origins.frame_origins(meta).map(|origin| (origin, meta.copy)));
        }
    }
}

impl Sink<'_> {
    /// Sends an operation that is for no current region: to a former one, or nowhere. Returns whether it was
    /// sent.
    #[cold]
    fn depart_otherwise(&mut self, departure: &Departure<'_>) -> bool {
        let former = || self.former.get(departure.store.checked_sub(FORMER)?)?.as_ref()?.frames.as_ref();
        if departure.action != OperationEffect::IDLE
            && let Some(frames) = former()
        {
            frames.write_departure(departure, self.out);
            self.counters.count_frames(frames.counter, 1);
            return true;
        }
        // A removed store takes its operations with it, so nothing else lacks a template.
        debug_assert!(departure.action == OperationEffect::IDLE);
        let Some(idle) = self.idle else { return false };
        idle.append_frame(departure, self.out);
        self.counters.frames += 1;
        self.counters.idle_frames += 1;
        true
    }
}

/// What a key-write store holds for a key: the checksum and the value.
#[inline(always)]
fn encode_element(key: &Key, value: &[u8; VALUE_LEN]) -> [u8; CHECKSUM_LEN + VALUE_LEN] {
    let mut element = [0; CHECKSUM_LEN + VALUE_LEN];
    key_write::encode_slot(&mut element, key, value);
    element
}

impl Egress {
    pub(crate) fn new(timing: Timing, name_reports: bool, posts: bool) -> Self {
        Egress {
            pairs: Vec::new(),
            counted: Vec::new(),
            stores: Vec::new(),
            former: Vec::new(),
            counters: EngineCounters::default(),
            origins: Origins::new(1 << 17),
            losses: LossTracker::default(),
            name_reports,
            next_group: 0,
            timing,
            reference: false,
            posts,
        }
    }

    /// Whether operations on the region at a place have a queue pair.
    #[inline]
    pub(crate) fn has_pair_of(&self, place: usize) -> bool {
        matches!(self.stores.get(place), Some(Some(_)))
    }

    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = (u8, &ActiveQueuePair)> {
        self.pair_places().filter_map(|place| Some((place, self.queue_pair(place)?)))
    }

    #[inline]
    fn queue_pair(&self, place: u8) -> Option<&ActiveQueuePair> {
        self.pairs.get(usize::from(place))?.as_ref()
    }

    /// All places, empty ones too.
    #[inline]
    fn pair_places(&self) -> std::ops::Range<u8> {
        0..self.pairs.len() as u8
    }

    /// The place of the queue pair for a store's frames; [`pair_place::NONE`] if they cannot be sent.
    #[inline]
    pub(crate) fn pair_place_of(&self, store: usize) -> u8 {
        match self.stores.get(store) {
            Some(Some(frames)) => frames.pair,
            _ => pair_place::NONE,
        }
    }

    /// How many operations the queue pair of the region at a place has room for; unlimited if there is none,
    /// since they are lost anyway.
    pub(crate) fn headroom_of(&self, store: usize) -> usize {
        let pair = self.queue_pair(self.pair_place_of(store));
        pair.map_or(usize::MAX, |pair| pair.requester.queue_headroom())
    }

    #[inline(always)] // on the path of every report: the closure must be inlined too
    fn with_requester(
        &mut self,
        place: u8,
        out: &mut EngineOutput,
        f: impl FnOnce(&mut Requester, &mut Sink<'_>),
    ) -> bool {
        let Some(Some(pair)) = self.pairs.get_mut(usize::from(place)) else { return false };
        let mut sink = Sink {
            stores: &self.stores,
            former: &self.former,
            idle: pair.idle.as_ref(),
            counters: &mut self.counters,
            origins: &self.origins,
            losses: &mut self.losses,
            name_reports: self.name_reports,
            out,
        };
        f(&mut pair.requester, &mut sink);
        true
    }

    /// Sends copies of one payload to a store, copy n to `offset_of(n)`. It carries the reports of `origins`.
    #[inline]
    pub(crate) fn write_copies(
        &mut self,
        now: u64,
        store: usize,
        write: &StoreWrite<'_>,
        offset_of: impl Fn(u8) -> u64,
        origins: impl Iterator<Item = Origin>,
        out: &mut EngineOutput,
    ) {
        let StoreWrite { action, copies, payload, .. } = *write;
        let pair = self.pair_place_of(store);
        let meta = FrameMeta { pair, ..self.begin_write(write, origins) };
        // Unacknowledged operations are sent at once and not kept.
        if let Some(Some(ActiveQueuePair { requester, .. })) = self.pairs.get_mut(usize::from(pair))
            && let Some(Some(frames)) = self.stores.get(store)
            && let Some(first) = requester.leave_at_once(copies)
        {
            for copy in 0..copies {
                let (psn, offset) = (first.wrapping_add(copy.into()), offset_of(copy));
                frames.append_frame(psn, false, action, offset, payload, out);
                out.meta.push(FrameMeta { copy, ..meta });
            }
            self.counters.count_frames(frames.counter, copies.into());
            return;
        }
        for copy in 0..copies {
            let meta = FrameMeta { copy, ..meta };
            self.post_operation(now, (store, offset_of(copy)), action, payload, &meta, out);
        }
    }

    /// As [`Egress::write_copies`], with each copy to a target of its own.
    pub(crate) fn write_apart(
        &mut self,
        now: u64,
        write: &StoreWrite<'_>,
        target_of: impl Fn(u8) -> Target,
        origins: impl Iterator<Item = Origin>,
        out: &mut EngineOutput,
    ) {
        let meta = self.begin_write(write, origins);
        for copy in 0..write.copies {
            let target = target_of(copy);
            let meta = FrameMeta { copy, pair: self.pair_place_of(target.0), ..meta };
            self.post_operation(now, target, write.action, write.payload, &meta, out);
        }
    }

    /// Counts a write, and describes what its frames carry, except for their queue pair.
    #[inline]
    fn begin_write(&mut self, write: &StoreWrite<'_>, origins: impl Iterator<Item = Origin>) -> FrameMeta {
        let StoreWrite { copies, primitive, reports, .. } = *write;
        let first_origin = self.origins.next();
        if self.name_reports {
            origins.for_each(|o| self.origins.push(o));
        }
        let named = (self.origins.next() - first_origin) as u16;
        let group = self.next_group;
        self.next_group = group.wrapping_add(1);
        let p = self.counters.primitive_counters_mut(primitive);
        p.emitted += u64::from(reports);
        p.operations += u64::from(copies);
        FrameMeta {
            primitive: Some(primitive),
            copies,
            reports,
            group,
            first_origin,
            origins: named,
            ..FrameMeta::IDLE
        }
    }

    /// Whether operations on the region at a place use UC, so that nothing acknowledges them. Always false in
    /// reference mode, since a switch does not keep sent batches either.
    pub(crate) fn keeps_nothing(&self, place: usize) -> bool {
        let pair = self.queue_pair(self.pair_place_of(place));
        !self.reference && pair.is_some_and(|pair| pair.entry.transport == Transport::Uc)
    }

    /// Resends an operation whose reports are already counted.
    pub(crate) fn resend_operation(
        &mut self,
        now: u64,
        target: Target,
        action: OperationEffect,
        payload: &[u8],
        out: &mut EngineOutput,
    ) {
        let meta = FrameMeta { pair: self.pair_place_of(target.0), ..FrameMeta::IDLE };
        self.counters.repeated_frames += 1;
        self.post_operation(now, target, action, payload, &meta, out);
    }

    /// Sends elements to a store, copy n of the one with hash h to `offset_of(h, n)`, as calling
    /// [`Egress::write_copies`] for each would, but without naming reports.
    #[inline]
    pub(crate) fn write_elements(
        &mut self,
        now: u64,
        store: usize,
        elements: &Elements<'_>,
        offset_of: impl Fn(u32, u8) -> u64,
        out: &mut EngineOutput,
    ) {
        let Elements { keys, values, hashes, copies } = *elements;
        let each = keys.iter().zip(values).zip(hashes);
        let count = each.len();
        let pair = self.pair_place_of(store);
        if let Some(Some(ActiveQueuePair { requester, .. })) = self.pairs.get_mut(usize::from(pair))
            && let Some(Some(frames)) = self.stores.get(store)
            && let Some(mut psn) = requester.leave_at_once(count as u8 * copies)
        {
            let operations = (count * usize::from(copies)) as u64;
            out.meta.reserve(operations as usize);
            let mut meta = FrameMeta {
                primitive: Some(Primitive::KeyWrite),
                pair,
                copies,
                reports: 1,
                group: self.next_group,
                first_origin: self.origins.next(),
                ..FrameMeta::IDLE
            };
            for ((key, value), hash) in each {
                let element = encode_element(key, value);
                for copy in 0..copies {
                    frames.write_element(psn, offset_of(*hash, copy), &element, out);
                    out.meta.push(FrameMeta { copy, ..meta });
                    psn = psn.next();
                }
                meta.group = meta.group.wrapping_add(1);
            }
            self.next_group = meta.group;
            let p = self.counters.primitive_counters_mut(Primitive::KeyWrite);
            p.emitted += count as u64;
            p.operations += operations;
            self.counters.count_frames(frames.counter, operations);
            return;
        }
        for ((key, value), hash) in each {
            let write = StoreWrite {
                action: OperationEffect::WRITE,
                copies,
                payload: &encode_element(key, value),
                primitive: Primitive::KeyWrite,
                reports: 1,
            };
            self.write_copies(now, store, &write, |n| offset_of(*hash, n), std::iter::empty(), out);
        }
    }

    /// Sends one operation on the queue pair that `meta` names. The caller counts its reports.
    #[inline]
    pub(crate) fn post_operation(
        &mut self,
        now: u64,
        target: Target,
        action: OperationEffect,
        payload: &[u8],
        meta: &FrameMeta,
        out: &mut EngineOutput,
    ) {
        let posted = self.with_requester(meta.pair, out, |requester, sink| {
            requester.post_operation(now, action, target, payload, meta, sink)
        });
        if !posted {
            let reports = self.losses.record_lost_frame(meta, &self.origins);
            if let Some(primitive) = meta.primitive {
                self.counters.count_lost(LossCause::QueuePairDown, primitive, reports);
            }
            if self.name_reports {
                out.lost.extend(self.origins.frame_origins(meta).map(|origin| (origin, meta.copy)));
            }
        }
    }

    /// Whether losing a frame means losing its reports. On RC it does not, because the frame is sent again.
    pub(crate) fn leaves_once(&self, meta: &FrameMeta) -> bool {
        let uc = |pair: &ActiveQueuePair| pair.entry.transport == Transport::Uc;
        meta.primitive.is_some() && self.queue_pair(meta.pair).is_some_and(uc)
    }

    /// Counts a frame as lost to a fault injector, unless it is retransmitted.
    pub(crate) fn injected_loss(&mut self, meta: &FrameMeta) {
        let Some(primitive) = meta.primitive.filter(|_| self.leaves_once(meta)) else { return };
        let reports = self.losses.record_lost_frame(meta, &self.origins);
        self.counters.count_lost(LossCause::Injected, primitive, reports);
    }

    /// Counts a UC work request that did not become a frame as lost. On RC, the operation is kept here until it is acknowledged.
    pub(crate) fn lose_request(&mut self, meta: &FrameMeta, cause: LossCause, out: &mut EngineOutput) {
        let Some(primitive) = meta.primitive.filter(|_| self.leaves_once(meta)) else { return };
        let reports = self.losses.record_lost_frame(meta, &self.origins);
        self.counters.count_lost(cause, primitive, reports);
        if self.name_reports {
            out.lost.extend(self.origins.frame_origins(meta).map(|origin| (origin, meta.copy)));
        }
    }

    /// Handles an answer for the queue pair at this place.
    pub(crate) fn handle_answer(
        &mut self,
        now: u64,
        place: u8,
        psn: Psn,
        answer: ResponderAnswer,
        out: &mut EngineOutput,
    ) {
        self.with_requester(place, out, |requester, sink| requester.handle_answer(now, psn, answer, sink));
    }

    /// Sends what is waiting on all queue pairs, as far as there is room.
    #[inline]
    pub(crate) fn transmit_waiting(&mut self, now: u64, out: &mut EngineOutput) {
        for place in self.pair_places() {
            self.with_requester(place, out, |requester, sink| requester.transmit_waiting(now, sink));
        }
    }

    /// Sets whether all frames follow the frame profile.
    pub(crate) fn set_reference(&mut self, reference: bool) {
        self.reference = reference;
        for pair in self.pairs.iter_mut().flatten() {
            pair.requester.set_reference(reference);
        }
    }

    /// Removes a store with its operations.
    pub(crate) fn forget_store(&mut self, store: usize, out: &mut EngineOutput) {
        let of = |former: &Option<Former>| former.as_ref().is_some_and(|former| former.place == store);
        let former = self.former.iter().enumerate().filter(|(_, f)| of(f)).map(|(n, _)| FORMER + n);
        let places: Vec<usize> = former.chain([store]).collect();
        for pair in self.pair_places() {
            self.with_requester(pair, out, |requester, sink| {
                places.iter().for_each(|place| requester.forget_store(*place, sink));
            });
        }
        self.former.iter_mut().filter(|former| of(former)).for_each(|former| *former = None);
    }

    /// Notes that the store at a place has a new region; `before` is the old entry. Call this before
    /// rebuilding the templates.
    pub(crate) fn move_store(&mut self, place: usize, before: &Store) {
        let Self { pairs, former, .. } = self;
        former
            .iter_mut()
            .filter(|f| f.as_ref().is_some_and(|f| !is_needed(pairs, f)))
            .for_each(|f| *f = None);
        let Some(Some(pair)) = pairs.get_mut(usize::from(pair_place::place_for_store(before))) else {
            return;
        };
        let free = former.iter().position(Option::is_none).unwrap_or(former.len());
        let Some(behind) = pair.requester.rename_store(place, FORMER + free) else { return };
        if free == former.len() {
            former.push(None);
        }
        former[free] = Some(Former { place, store: before.clone(), frames: None, behind });
    }

    /// How many former regions have unacknowledged operations in flight. Invalidating their rkeys now would
    /// break the queue pairs.
    pub(crate) fn former_regions(&self) -> usize {
        self.former.iter().flatten().filter(|former| is_needed(&self.pairs, former)).count()
    }

    /// Redirects what was sent to former regions on the queue pair at this place to the current regions.
    fn leave_former(&mut self, pair: u8) {
        let Some(Some(by)) = self.pairs.get_mut(usize::from(pair)) else { return };
        for (n, place) in self.former.iter_mut().enumerate() {
            if let Some(former) = place.take_if(|former| pair_place::place_for_store(&former.store) == pair) {
                by.requester.rename_store(FORMER + n, former.place);
            }
        }
    }

    /// Ends all queue pairs: unacknowledged operations are lost.
    pub(crate) fn end_queue_pairs(&mut self, out: &mut EngineOutput) {
        for place in self.pair_places() {
            self.with_requester(place, out, |requester, sink| requester.end_queue_pair(sink));
        }
    }

    /// Runs the timers of all queue pairs.
    pub(crate) fn run_timers(&mut self, now: u64, out: &mut EngineOutput) {
        for place in self.pair_places() {
            self.with_requester(place, out, |requester, sink| requester.run_timers(now, sink));
        }
    }

    /// Earliest time at which [`Egress::run_timers`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.pairs.iter().flatten().filter_map(|p| p.requester.next_deadline()).min()
    }

    /// Installs or replaces a queue pair; returns whether it differs from the previous one. A new one starts
    /// at its start PSN; one whose entry changed but not its identity (addresses, TOS) continues. Templates
    /// are rebuilt for `stores`.
    pub(crate) fn set_pair(
        &mut self,
        now: u64,
        entry: &ProgramQueuePair,
        stores: &[Option<&Store>],
        out: &mut EngineOutput,
    ) -> bool {
        let place = pair_place::place_for_pair(entry.collector, entry.purpose);
        let at = usize::from(place);
        let mut is_another = true;
        if self.pairs.len() <= at {
            self.pairs.resize_with(at + 1, || None);
            self.counted.resize(at + 1, RequesterCounters::default());
        }
        let idle = IdleFrames::new(entry, self.posts);
        match &mut self.pairs[at] {
            Some(pair) => {
                let old = &pair.entry;
                let identity = |e: &ProgramQueuePair| (e.transport, e.remote_qpn, e.local_qpn, e.generation);
                let unchanged = identity(old) == identity(entry);
                is_another = !unchanged;
                let by = Successor {
                    transport: entry.transport,
                    expected: Psn::new(entry.start_psn),
                    max_dest_rd_atomic: entry.max_dest_rd_atomic,
                    same: (old.transport, old.remote_qpn, old.local_qpn)
                        == (entry.transport, entry.remote_qpn, entry.local_qpn),
                    before: entry
                        .replaced
                        .filter(|ended| ended.qpn == old.remote_qpn)
                        .map(|ended| Psn::new(ended.expected_psn)),
                };
                pair.idle = idle;
                pair.entry = entry.clone();
                self.set_templates(stores);
                if !unchanged {
                    // Another queue pair assigns other PSNs, and the former rkeys may be gone.
                    if !(by.same && by.transport == Transport::Rc) {
                        self.leave_former(place);
                    }
                    self.with_requester(place, out, |requester, sink| {
                        requester.replace_queue_pair(now, &by, sink)
                    });
                }
            }
            none => {
                let mut requester = Requester::new(
                    entry.transport,
                    Psn::new(entry.start_psn),
                    entry.max_dest_rd_atomic,
                    self.timing,
                );
                requester.set_reference(self.reference);
                requester.set_resent_by_device(self.posts);
                requester.counters = self.counted[at];
                *none = Some(ActiveQueuePair { entry: entry.clone(), requester, idle });
            }
        }
        self.set_templates(stores);
        is_another
    }

    /// Removes a queue pair: unacknowledged operations are lost. Templates are rebuilt for `stores`.
    pub(crate) fn remove_pair(
        &mut self,
        entry: &ProgramQueuePair,
        stores: &[Option<&Store>],
        out: &mut EngineOutput,
    ) {
        let place = pair_place::place_for_pair(entry.collector, entry.purpose);
        self.leave_former(place);
        self.with_requester(place, out, |requester, sink| requester.end_queue_pair(sink));
        let at = usize::from(place);
        if let Some(pair) = self.pairs.get_mut(at).and_then(Option::take) {
            self.counted[at] = pair.requester.counters;
        }
        self.set_templates(stores);
    }

    pub(crate) fn set_templates(&mut self, stores: &[Option<&Store>]) {
        let Self { pairs, counters, former, posts, .. } = self;
        let mut frames = |store: &Store| {
            let pair = pairs.get(usize::from(pair_place::place_for_store(store)))?.as_ref()?;
            StoreFrames::new(&pair.entry, store, counters.place_of_store(&store.spec.name), *posts)
        };
        self.stores = stores.iter().map(|store| frames((*store)?)).collect();
        former.iter_mut().flatten().for_each(|former| former.frames = frames(&former.store));
        for store in stores.iter().flatten() {
            if let Some(Some(pair)) = pairs.get_mut(usize::from(pair_place::place_for_store(store))) {
                pair.requester.widen_payloads(store.spec.element_len() as usize);
            }
        }
    }
}

/// Whether operations for a former region are still unacknowledged.
fn is_needed(pairs: &[Option<ActiveQueuePair>], former: &Former) -> bool {
    let pair = pairs.get(usize::from(pair_place::place_for_store(&former.store)));
    pair.and_then(Option::as_ref).is_some_and(|p| p.requester.oldest_number() < former.behind)
}

//! From operations to frames: queue pairs, templates, and what the losses of queue pairs cost.

use dta_proto::wire::roce::Psn;

use super::counters::{Counters, LossCause};
use super::frame::{IdleFrames, Output, StoreFrames};
use super::losses::{FrameMeta, LossTracker, Origin, Origins};
use super::pair_place;
use super::requester::{Action, Answer, Depart, Departure, Requester, RequesterCounters, Successor, Timing};
use dta_proto::program::{Primitive, QueuePair, Store, Transport};

/// Where an operation goes: index of its store in the engine, and byte offset in the store's region.
pub(crate) type Target = (usize, u64);

/// One payload on its way into a store.
#[derive(Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) action: Action,
    /// How often it is sent, each time to another place.
    pub(crate) copies: u8,
    pub(crate) payload: &'a [u8],
    pub(crate) primitive: Primitive,
    /// Reports in it.
    pub(crate) reports: u16,
}

/// A queue pair with its requester.
pub(crate) struct Pair {
    pub(crate) entry: QueuePair,
    pub(crate) requester: Requester,
    idle: Option<IdleFrames>,
}

/// Everything behind the primitives.
pub(crate) struct Egress {
    /// By their places ([`pair_place`]).
    pairs: Vec<Option<Pair>>,
    /// What queue pairs counted that were removed, by their places: the next one counts on.
    counted: Vec<RequesterCounters>,
    stores: Vec<Option<StoreFrames>>,
    pub(crate) counters: Counters,
    pub(crate) origins: Origins,
    losses: LossTracker,
    /// Whether frames name all their reports, for the ledger.
    pub(crate) name_reports: bool,
    next_group: u32,
    timing: Timing,
    reference: bool,
}

/// What a requester needs to make frames and count losses.
struct Sink<'a> {
    stores: &'a [Option<StoreFrames>],
    idle: Option<&'a IdleFrames>,
    counters: &'a mut Counters,
    origins: &'a Origins,
    losses: &'a mut LossTracker,
    name_reports: bool,
    out: &'a mut Output,
}

impl Depart for Sink<'_> {
    #[inline]
    fn depart(&mut self, departure: Departure<'_>) {
        let frames = match departure.action {
            Action::IDLE => None,
            _ => self.stores.get(departure.store).and_then(Option::as_ref),
        };
        match frames {
            Some(frames) => {
                frames.write(&departure, &mut self.out.frames);
                if let Some((_, count)) = self.counters.stores.get_mut(frames.counter) {
                    *count += 1;
                }
            }
            None => {
                // Stores take their operations with them when they go, so nothing else is without a
                // template.
                debug_assert!(departure.action == Action::IDLE);
                let Some(idle) = self.idle else { return };
                idle.write(&departure, &mut self.out.frames);
                self.counters.idle_frames += 1;
            }
        }
        self.out.meta.push(*departure.meta);
        self.counters.frames += 1;
    }

    fn lost(&mut self, meta: &FrameMeta, cause: LossCause) {
        let Some(primitive) = meta.primitive else { return };
        let reports = self.losses.lose(meta, self.origins);
        self.counters.lose(cause, primitive, reports);
        if self.name_reports {
            self.out.lost.extend(self.origins.of(meta).map(|origin| (origin, meta.copy)));
        }
    }
}

impl Egress {
    pub(crate) fn new(timing: Timing, name_reports: bool) -> Self {
        Egress {
            pairs: Vec::new(),
            counted: Vec::new(),
            stores: Vec::new(),
            counters: Counters::default(),
            origins: Origins::new(1 << 17),
            losses: LossTracker::default(),
            name_reports,
            next_group: 0,
            timing,
            reference: false,
        }
    }

    /// Whether operations on a store have a queue pair to go by.
    #[inline]
    pub(crate) fn has_pair_of(&self, store: &Store) -> bool {
        self.pair(pair_place::of_store(store)).is_some()
    }

    /// The queue pairs that there are, with their places.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (u8, &Pair)> {
        self.places().filter_map(|place| Some((place, self.pair(place)?)))
    }

    #[inline]
    fn pair(&self, place: u8) -> Option<&Pair> {
        self.pairs.get(usize::from(place))?.as_ref()
    }

    /// All places, empty ones too.
    #[inline]
    fn places(&self) -> std::ops::Range<u8> {
        0..self.pairs.len() as u8
    }

    /// The place of the queue pair that frames of a store leave by; [`pair_place::NONE`] where they cannot leave.
    #[inline]
    pub(crate) fn pair_of(&self, store: usize) -> u8 {
        match self.stores.get(store) {
            Some(Some(frames)) => frames.pair,
            _ => pair_place::NONE,
        }
    }

    #[inline(always)] // on the path of every report: the closure has to melt into it
    fn with(&mut self, place: u8, out: &mut Output, f: impl FnOnce(&mut Requester, &mut Sink<'_>)) -> bool {
        let Some(Some(pair)) = self.pairs.get_mut(usize::from(place)) else { return false };
        let mut sink = Sink {
            stores: &self.stores,
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
    pub(crate) fn write(
        &mut self,
        now: u64,
        store: usize,
        write: &Write<'_>,
        offset_of: impl Fn(u8) -> u64,
        origins: impl Iterator<Item = Origin>,
        out: &mut Output,
    ) {
        let Write { action, copies, payload, primitive, reports } = *write;
        let first_origin = self.origins.next();
        if self.name_reports {
            origins.for_each(|o| self.origins.push(o));
        }
        let named = (self.origins.next() - first_origin) as u16;
        let pair = self.pair_of(store);
        let group = self.next_group;
        self.next_group = group.wrapping_add(1);
        let p = self.counters.of(primitive);
        p.emitted += u64::from(reports);
        p.operations += u64::from(copies);
        for copy in 0..copies {
            let meta = FrameMeta {
                primitive: Some(primitive),
                pair,
                copy,
                copies,
                reports,
                group,
                first_origin,
                origins: named,
            };
            self.post(now, (store, offset_of(copy)), action, payload, &meta, out);
        }
    }

    /// Sends one operation by the queue pair that `meta` names. Its reports are counted by the caller.
    #[inline]
    pub(crate) fn post(
        &mut self,
        now: u64,
        target: Target,
        action: Action,
        payload: &[u8],
        meta: &FrameMeta,
        out: &mut Output,
    ) {
        let posted = self
            .with(meta.pair, out, |requester, sink| requester.post(now, action, target, payload, meta, sink));
        if !posted {
            let reports = self.losses.lose(meta, &self.origins);
            if let Some(primitive) = meta.primitive {
                self.counters.lose(LossCause::QueuePairDown, primitive, reports);
            }
            if self.name_reports {
                out.lost.extend(self.origins.of(meta).map(|origin| (origin, meta.copy)));
            }
        }
    }

    /// Whether what becomes of a frame on its way says what becomes of its reports: not on RC,
    /// where it is sent again.
    pub(crate) fn leaves_once(&self, meta: &FrameMeta) -> bool {
        let uc = |pair: &Pair| pair.entry.transport == Transport::Uc;
        meta.primitive.is_some() && self.pair(meta.pair).is_some_and(uc)
    }

    /// Counts a frame as lost by a fault injector, if it leaves once.
    pub(crate) fn injected_loss(&mut self, meta: &FrameMeta) {
        let Some(primitive) = meta.primitive.filter(|_| self.leaves_once(meta)) else { return };
        let reports = self.losses.lose(meta, &self.origins);
        self.counters.lose(LossCause::Injected, primitive, reports);
    }

    /// Takes an answer for the queue pair at this place.
    pub(crate) fn answer(&mut self, now: u64, place: u8, psn: Psn, answer: Answer, out: &mut Output) {
        self.with(place, out, |requester, sink| requester.answer(now, psn, answer, sink));
    }

    /// Sends what waits on all queue pairs, as far as there is room.
    #[inline]
    pub(crate) fn transmit(&mut self, now: u64, out: &mut Output) {
        for place in self.places() {
            self.with(place, out, |requester, sink| requester.transmit(now, sink));
        }
    }

    /// Sets whether the frame profile binds all frames.
    pub(crate) fn set_reference(&mut self, reference: bool) {
        self.reference = reference;
        for pair in self.pairs.iter_mut().flatten() {
            pair.requester.set_reference(reference);
        }
    }

    /// A store is gone, and its operations with it.
    pub(crate) fn forget_store(&mut self, store: usize, out: &mut Output) {
        for place in self.places() {
            self.with(place, out, |requester, sink| requester.forget_store(store, sink));
        }
    }

    /// Ends all queue pairs: what is not acknowledged is lost.
    pub(crate) fn end(&mut self, out: &mut Output) {
        for place in self.places() {
            self.with(place, out, |requester, sink| requester.end(sink));
        }
    }

    /// Lets time pass for all queue pairs.
    pub(crate) fn tick(&mut self, now: u64, out: &mut Output) {
        for place in self.places() {
            self.with(place, out, |requester, sink| requester.tick(now, sink));
        }
    }

    /// Earliest time at which [`Egress::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.pairs.iter().flatten().filter_map(|p| p.requester.deadline()).min()
    }

    /// Installs or replaces a queue pair. A new one begins at its start PSN; one whose entry changed but not its identity
    /// (addresses, TOS) goes on where it is. Templates are made anew for `stores`.
    pub(crate) fn set_pair(
        &mut self,
        now: u64,
        entry: &QueuePair,
        stores: &[Option<&Store>],
        out: &mut Output,
    ) {
        let place = pair_place::of_pair(entry.collector, entry.purpose);
        let at = usize::from(place);
        if self.pairs.len() <= at {
            self.pairs.resize_with(at + 1, || None);
            self.counted.resize(at + 1, RequesterCounters::default());
        }
        let idle = IdleFrames::new(entry);
        match &mut self.pairs[at] {
            Some(pair) => {
                let old = &pair.entry;
                let identity = |e: &QueuePair| (e.transport, e.remote_qpn, e.local_qpn, e.generation);
                let unchanged = identity(old) == identity(entry);
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
                    self.with(place, out, |requester, sink| requester.replace(now, &by, sink));
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
                requester.counters = self.counted[at];
                *none = Some(Pair { entry: entry.clone(), requester, idle });
            }
        }
        self.set_templates(stores);
    }

    /// Removes a queue pair: what is not acknowledged is lost. Templates are made anew for `stores`.
    pub(crate) fn remove_pair(&mut self, entry: &QueuePair, stores: &[Option<&Store>], out: &mut Output) {
        let place = pair_place::of_pair(entry.collector, entry.purpose);
        self.with(place, out, |requester, sink| requester.end(sink));
        let at = usize::from(place);
        if let Some(pair) = self.pairs.get_mut(at).and_then(Option::take) {
            self.counted[at] = pair.requester.counters;
        }
        self.set_templates(stores);
    }

    /// Makes the templates of all stores anew.
    pub(crate) fn set_templates(&mut self, stores: &[Option<&Store>]) {
        self.stores = stores
            .iter()
            .map(|store| {
                let store = (*store)?;
                let place = pair_place::of_store(store);
                let pair = self.pairs.get(usize::from(place))?.as_ref()?;
                StoreFrames::new(&pair.entry, store, self.counters.place_of_store(&store.spec.name))
            })
            .collect();
    }
}

//! The engine: what the program holds, and the path of a report through it.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use dta_proto::store::StoreKind;
use dta_proto::wire::datagram::{self, Datagram};
use dta_proto::wire::dta::{self, Body, NACK_PORT_V0, Nack, Report, Version};
use dta_proto::wire::frame::Received;
use dta_proto::wire::roce::{NakCode, Opcode, Psn, Syndrome};
use dta_proto::wire::{self, Kind};

use super::append::AppendState;
use super::counters::{Counters, Reason};
use super::egress::Egress;
use super::frame::{Frames, Output};
use super::increment::Increments;
use super::losses::{FrameMeta, Origin};
use super::postcarding::{self, PostcardState};
use super::reporters::{Admission, Reporters, Source};
use super::requester::{Action, Answer, MAX_PAYLOAD, RequesterCounters, Timing};
use super::sequences::Arrival;
use super::sketch::SketchState;
use super::version0::{Admission0, MOST_NACKS, Version0Reporters};
use dta_proto::layout::{hash, key_write};
use dta_proto::program::{
    Change, CheckError, Entry, EntryKey, Primitive, Program, Purpose, Store, Transport, checked,
};

/// What the engine may use at most. Memory is taken when the program is applied, not per report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Version-1 reporters that windows are kept for, and as many version-0 sources.
    pub reporters: usize,
    /// NACKs a second that one version-0 source may draw; 0 = none. Nobody knows who sent a version-0 report, and one draws up to 32 of them.
    pub version0_nacks: u32,
    /// Rows of the cache of each postcarding store.
    pub postcard_rows: usize,
    /// Columns of a sketch-merge store, all epochs together, that state is kept for.
    pub sketch_columns: u64,
    /// Times and limits of RC queue pairs.
    pub rc: Timing,
    /// Whether to keep the names of reports until the fate of their frames is known, for the ledger.
    pub name_reports: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            reporters: 4096,
            version0_nacks: 0,
            postcard_rows: 1 << 16,
            sketch_columns: 1 << 22,
            rc: Timing::default(),
            name_reports: false,
        }
    }
}

/// Why an entry cannot be held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// What no target can hold.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The sketch is too large.
    #[error(
        "store `{store}` has {columns} columns over all epochs, but this translator keeps at most {limit}; raise `sketch_columns` \
         in its configuration or make the store smaller"
    )]
    SketchTooLarge {
        /// Name of the store.
        store: String,
        /// Columns of all epochs.
        columns: u64,
        /// What is kept at most.
        limit: u64,
    },
}

/// The state of one queue pair, for statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairStatus {
    /// What it is for.
    pub purpose: Purpose,
    /// Its transport.
    pub transport: Transport,
    /// Queue pair number at the collector.
    pub remote_qpn: u32,
    /// Generation of the session that made it.
    pub generation: u64,
    /// PSN of the next frame.
    pub next_psn: u32,
    /// Frames not acknowledged yet (RC).
    pub outstanding: u32,
    /// Operations waiting for room (RC).
    pub waiting: usize,
    /// Whether it is in error or silent, so that a new one is needed.
    pub down: bool,
    /// What it counts.
    pub counters: RequesterCounters,
}

/// State of a store, by its primitive.
enum State {
    KeyWrite { slots: u64, value_len: u8, copies: u8 },
    KeyIncrement { slots: u64, copies: u8 },
    Append(AppendState),
    Postcarding(PostcardState),
    SketchMerge(Box<SketchState>),
}

struct Held {
    entry: Store,
    state: State,
}

/// The software data plane.
pub struct Engine {
    program: Program,
    limits: Limits,
    core: Egress,
    stores: Vec<Option<Held>>,
    /// Index + 1 in `stores` by store id; 0 = none.
    index: Vec<u16>,
    /// Store ids of version-0 primitives.
    version0: [Option<u16>; 5],
    flush_ns: [u64; 5],
    reporters: Reporters,
    reporters0: Version0Reporters,
    increments: Increments,
    /// Whether postcards are judged by the paths that left: a switch remembers none.
    remembers: bool,
    serial: u32,
    service: (Ipv4Addr, u16),
    clock: u64,
    answers_ignored: u64,
}

impl Engine {
    /// An engine that holds no program: every report is dropped as `no_queue_pair` or `unknown_store`.
    pub fn new(limits: Limits) -> Self {
        Engine {
            program: Program::default(),
            limits,
            core: Egress::new(limits.rc, limits.name_reports),
            stores: Vec::new(),
            index: vec![0; 1 << 16],
            version0: [None; 5],
            flush_ns: [0; 5],
            reporters: Reporters::new(limits.reporters),
            reporters0: Version0Reporters::new(limits.reporters, limits.version0_nacks),
            increments: Increments::new(true),
            remembers: true,
            serial: 0,
            service: (Ipv4Addr::UNSPECIFIED, dta::PORT),
            clock: 0,
            answers_ignored: 0,
        }
    }

    /// What the engine holds.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// What it counts.
    pub fn counters(&self) -> &Counters {
        &self.core.counters
    }

    /// Reporters heard, version 1.
    pub fn reporters(&self) -> &Reporters {
        &self.reporters
    }

    /// Tells how far an earlier life of this translator had heard its reporters (id and newest sequence): what neither heard is
    /// counted as missing when this one hears them.
    pub fn heard_earlier(&mut self, reporters: &[(u16, u32)]) {
        for &(id, newest) in reporters {
            self.reporters.heard_earlier(id, newest);
        }
    }

    /// Takes reports of these version-1 reporters alone, each from its own address; version-0 reports from these addresses. Of everybody if
    /// there are none.
    pub fn list_reporters(&mut self, reporters: &[(u16, Ipv4Addr)]) {
        self.reporters.list(reporters);
        self.reporters0.list(reporters.iter().map(|(_, address)| *address));
    }

    /// RoCEv2 packets received that were no answer to a queue pair of ours, or damaged.
    pub fn answers_ignored(&self) -> u64 {
        self.answers_ignored
    }

    /// Names of reports in recent frames.
    pub fn origins(&self) -> &super::losses::Origins {
        &self.core.origins
    }

    /// The queue pairs' states.
    pub fn queue_pairs(&self) -> Vec<QueuePairStatus> {
        let status = |p: &super::egress::Pair| QueuePairStatus {
            purpose: p.entry.purpose,
            transport: p.entry.transport,
            remote_qpn: p.entry.remote_qpn,
            generation: p.entry.generation,
            next_psn: p.requester.next_psn().get(),
            outstanding: p.requester.outstanding(),
            waiting: p.requester.waiting(),
            down: p.requester.is_down(),
            counters: p.requester.counters,
        };
        self.core.pairs.iter().flatten().map(status).collect()
    }

    /// Applies changes, in order. Operations that this sets free go to `out`.
    ///
    /// # Errors
    /// A [`SetupError`] that names the entry which cannot be held; then nothing has changed.
    pub fn apply(&mut self, now: u64, changes: &[Change], out: &mut Output) -> Result<(), SetupError> {
        self.clock = self.clock.max(now);
        checked(&self.program, changes)?;
        for change in changes {
            if let Change::Insert { entry: Entry::Store(store) }
            | Change::Modify { to: Entry::Store(store), .. } = change
            {
                self.check_room(store)?;
            }
        }
        for change in changes {
            match change {
                Change::Insert { entry } => self.set(entry, out),
                Change::Modify { to, .. } => self.set(to, out),
                Change::Delete { entry } => self.delete(&entry.key(), out),
            }
        }
        // Only now, with the keys of all stores: a queue pair that took another's place sends again.
        self.core.transmit(self.clock, out);
        Ok(())
    }

    /// Whether there is memory for what is kept of a store.
    fn check_room(&self, store: &Store) -> Result<(), SetupError> {
        let StoreKind::SketchMerge { columns, epochs, .. } = store.spec.kind else { return Ok(()) };
        let (all, limit) = (u64::from(columns) * u64::from(epochs), self.limits.sketch_columns);
        if all > limit {
            return Err(SetupError::SketchTooLarge { store: store.spec.name.clone(), columns: all, limit });
        }
        Ok(())
    }

    /// Holds an entry that was checked.
    fn set(&mut self, entry: &Entry, out: &mut Output) {
        let now = self.clock;
        match entry {
            Entry::Service(service) => {
                if let IpAddr::V4(ip) = service.address {
                    self.service = (ip, service.port);
                }
            }
            Entry::Mode(mode) => self.set_reference(mode.reference),
            Entry::Flush(flush) => {
                self.flush_ns[flush.primitive.index()] = u64::from(flush.after_ms) * 1_000_000;
            }
            Entry::QueuePair(pair) => {
                let stores: Vec<Option<&Store>> =
                    self.stores.iter().map(|s| s.as_ref().map(|h| &h.entry)).collect();
                self.core.set_pair(now, pair.purpose, Some(pair.clone()), &stores, out);
            }
            Entry::Store(store) => self.set_store(store, out),
            Entry::Lists(lists) => {
                let keep = self.limits.name_reports;
                if let Some((State::Append(state), core)) = self.state_of(lists.store) {
                    state.own(lists, keep, core);
                }
            }
            Entry::Version0(v0) => self.version0[v0.primitive.index()] = Some(v0.store),
            Entry::SketchReporter(e) => {
                if let Some((State::SketchMerge(state), _)) = self.state_of(e.store) {
                    state.reserve(e.bit, Some(e.reporter));
                }
            }
        }
        self.program.set(entry.clone());
    }

    fn set_reference(&mut self, reference: bool) {
        self.increments.set_coalescing(!reference);
        self.remembers = !reference;
        self.core.set_reference(reference);
    }

    fn state_of(&mut self, store: u16) -> Option<(&mut State, &mut Egress)> {
        let at = usize::from(*self.index.get(usize::from(store))?).checked_sub(1)?;
        let held = self.stores.get_mut(at)?.as_mut()?;
        Some((&mut held.state, &mut self.core))
    }

    fn set_store(&mut self, store: &Store, out: &mut Output) {
        let place = usize::from(self.index[usize::from(store.spec.id)]);
        let known = place.checked_sub(1).and_then(|at| self.stores[at].as_mut());
        match known {
            // Base, key or generation moved: what is held stays, and goes to the new region.
            Some(held) if held.entry.spec.kind == store.spec.kind => held.entry = store.clone(),
            _ => {
                if place != 0 {
                    self.remove_store(store.spec.id, out);
                }
                let state = self.new_state(store);
                let held = Some(Held { entry: store.clone(), state });
                let at = match self.stores.iter().position(Option::is_none) {
                    Some(at) => {
                        self.stores[at] = held;
                        at
                    }
                    None => {
                        self.stores.push(held);
                        self.stores.len() - 1
                    }
                };
                self.index[usize::from(store.spec.id)] = at as u16 + 1;
            }
        }
        self.make_templates();
    }

    fn make_templates(&mut self) {
        let stores: Vec<Option<&Store>> = self.stores.iter().map(|s| s.as_ref().map(|h| &h.entry)).collect();
        self.core.set_templates(&stores);
    }

    fn new_state(&self, store: &Store) -> State {
        let names = self.limits.name_reports;
        match store.spec.kind {
            StoreKind::KeyWrite { slots, value_len, redundancy } => {
                State::KeyWrite { slots, value_len, copies: redundancy }
            }
            StoreKind::KeyIncrement { slots, redundancy } => {
                State::KeyIncrement { slots, copies: redundancy }
            }
            StoreKind::Append { lists, ring, batch_len, entry_len, notify } => {
                State::Append(AppendState::new(lists, ring, batch_len, entry_len, notify))
            }
            StoreKind::Postcarding { slots, hops, redundancy } => State::Postcarding(PostcardState::new(
                slots,
                hops,
                redundancy,
                self.limits.postcard_rows,
                names,
            )),
            StoreKind::SketchMerge { columns, rows, epochs, merge, expected } => {
                State::SketchMerge(Box::new(SketchState::new(columns, rows, epochs, merge, expected, names)))
            }
        }
    }

    /// Lets go of an entry that is there.
    fn delete(&mut self, key: &EntryKey, out: &mut Output) {
        let now = self.clock;
        let Some(entry) = self.program.remove(key) else { return };
        match &entry {
            Entry::Service(_) => self.service = (Ipv4Addr::UNSPECIFIED, dta::PORT),
            Entry::Mode(_) => self.set_reference(false),
            Entry::Flush(flush) => self.flush_ns[flush.primitive.index()] = 0,
            Entry::QueuePair(pair) => {
                let stores: Vec<Option<&Store>> =
                    self.stores.iter().map(|s| s.as_ref().map(|h| &h.entry)).collect();
                self.core.set_pair(now, pair.purpose, None, &stores, out);
            }
            Entry::Store(store) => {
                self.remove_store(store.spec.id, out);
                self.make_templates();
            }
            Entry::Lists(lists) => {
                if let Some((State::Append(state), core)) = self.state_of(lists.store) {
                    state.disown(lists.first, core);
                }
            }
            Entry::Version0(v0) => self.version0[v0.primitive.index()] = None,
            Entry::SketchReporter(e) => {
                if let Some((State::SketchMerge(state), _)) = self.state_of(e.store) {
                    state.reserve(e.bit, None);
                }
            }
        }
    }

    fn remove_store(&mut self, id: u16, out: &mut Output) {
        if let Some((state, core)) = self.state_of(id) {
            match state {
                State::Append(state) => state.firsts().into_iter().for_each(|f| state.disown(f, core)),
                State::Postcarding(state) => state.discard(core),
                State::SketchMerge(state) => state.discard(core),
                State::KeyWrite { .. } | State::KeyIncrement { .. } => {}
            }
        }
        let place = std::mem::take(&mut self.index[usize::from(id)]);
        if let Some(at) = usize::from(place).checked_sub(1) {
            self.stores[at] = None;
            self.core.forget_store(at, out);
        }
    }

    /// Takes a batch of reports, each an IPv4 packet. Frames and NACKs are added to `out`.
    pub fn ingest<'a>(&mut self, now: u64, packets: impl IntoIterator<Item = &'a [u8]>, out: &mut Output) {
        self.clock = self.clock.max(now);
        for packet in packets {
            self.core.counters.received += 1;
            if let Err(reason) = self.ingest_one(packet, out) {
                self.core.counters.drop_one(reason);
            }
        }
        self.increments.send(self.clock, &mut self.core, out);
        self.core.transmit(self.clock, out);
    }

    #[inline]
    fn ingest_one(&mut self, packet: &[u8], out: &mut Output) -> Result<(), Reason> {
        let datagram = Datagram::parse(packet).map_err(|_| Reason::Header)?;
        datagram.check().map_err(|_| Reason::Checksum)?;
        let report = Report::parse(datagram.payload()).map_err(reason_of)?;
        let (source, destination) = (Source::of(datagram.source()), Source::of(datagram.destination()));
        let primitive = report.body.primitive();
        self.core.counters.of(primitive).received += 1;
        let store = match report.version {
            Version::V1 => {
                self.admit(&report, source, destination, out)?;
                report.store
            }
            Version::V0 => {
                if !self.reporters0.may_report(source.ip()) {
                    return Err(Reason::NotListed);
                }
                if report.retransmittable {
                    self.admit_version0(&report, source, destination, out)?;
                }
                self.version0[primitive.index()].ok_or(Reason::Version0Store)?
            }
        };
        let place = usize::from(self.index[usize::from(store)]);
        let at = place.checked_sub(1).ok_or(Reason::UnknownStore)?;
        let held = self.stores[at].as_mut().ok_or(Reason::UnknownStore)?;
        if !self.core.has(held.entry.queue_pair) {
            return Err(Reason::NoQueuePair);
        }
        let origin = Origin { serial: self.serial, sequence: report.sequence, reporter: report.reporter };
        let (now, core) = (self.clock, &mut self.core);
        match (report.body, &mut held.state) {
            (Body::KeyWrite { redundancy, key, value }, State::KeyWrite { slots, value_len, copies }) => {
                let copies = match redundancy {
                    0 => *copies,
                    fewer if fewer <= *copies => fewer,
                    _ => return Err(Reason::Redundancy),
                };
                if value.len() > usize::from(*value_len) {
                    return Err(Reason::ValueLength);
                }
                let mut slot = [0; MAX_PAYLOAD];
                let slot = &mut slot[..key_write::CHECKSUM_LEN + usize::from(*value_len)];
                key_write::encode(slot, &key, value);
                let h = hash::key_hash(&key);
                let offset = |n: u8| key_write::offset(hash::slot(h, usize::from(n), *slots), *value_len);
                core.write(
                    now,
                    at,
                    Action::WRITE,
                    copies,
                    offset,
                    slot,
                    Primitive::KeyWrite,
                    1,
                    std::iter::once(origin),
                    out,
                );
            }
            (Body::Append { list, value }, State::Append(state)) => {
                state.ingest(now, at, list, value, report.immediate, origin, core, out)?;
            }
            (Body::KeyIncrement { redundancy, key, delta }, State::KeyIncrement { slots, copies }) => {
                let shape = (*slots, *copies);
                self.increments.ingest(now, at, shape, redundancy, &key, delta, origin, core, out)?;
            }
            (Body::Postcard { key, hop, path_length, value }, State::Postcarding(state)) => {
                let numbered = report.version == Version::V1 && self.remembers;
                let restarts = numbered.then(|| self.reporters.restarts());
                let arrival =
                    postcarding::Arrival { key: &key, hop, length: path_length, value, origin, restarts };
                state.ingest(now, at, &arrival, core, out)?;
            }
            (Body::SketchMerge { epoch, column, cells }, State::SketchMerge(state)) => {
                state.ingest(now, at, epoch, column, cells, origin, core, out)?;
            }
            _ => return Err(Reason::WrongPrimitive),
        }
        self.core.counters.of(primitive).accepted += 1;
        self.serial = self.serial.wrapping_add(1);
        Ok(())
    }

    #[inline]
    fn admit(
        &mut self,
        report: &Report<'_>,
        source: Source,
        destination: Source,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let arrival = Arrival {
            sequence: report.sequence,
            restarted: report.restarted,
            retransmittable: report.retransmittable,
            source,
        };
        match self.reporters.admit(self.clock, report.reporter, &arrival) {
            Admission::Apply(None) => Ok(()),
            Admission::Apply(Some(missing)) => {
                let nack = Nack::V1 { reporter: report.reporter, first: missing.first, count: missing.count };
                self.nack(destination.socket(), source.socket(), &nack, out);
                self.core.counters.nacked_sequences += u64::from(missing.count);
                Ok(())
            }
            Admission::Unasked => {
                self.core.counters.nacks_withheld += 1;
                Ok(())
            }
            Admission::Duplicate => Err(Reason::Duplicate),
            Admission::OutOfWindow => Err(Reason::OutOfWindow),
            Admission::TooMany => Err(Reason::Reporters),
            Admission::NotListed => Err(Reason::NotListed),
        }
    }

    fn admit_version0(
        &mut self,
        report: &Report<'_>,
        source: Source,
        destination: Source,
        out: &mut Output,
    ) -> Result<(), Reason> {
        let sequence = report.sequence as u8;
        match self.reporters0.admit(source.ip(), sequence, report.restarted) {
            Admission0::Duplicate => Err(Reason::Duplicate),
            Admission0::Apply { gap } => {
                self.core.counters.version0_gaps += u64::from(gap);
                let asked = self.reporters0.may_ask(self.clock, source.ip(), gap);
                self.core.counters.nacks_withheld += u64::from(gap.min(MOST_NACKS) - asked);
                let to = SocketAddrV4::new(source.ip(), NACK_PORT_V0);
                for behind in (1..=asked).rev() {
                    let nack = Nack::V0 { sequence: sequence.wrapping_sub(behind) };
                    self.nack(destination.socket(), to, &nack, out);
                }
                self.core.counters.nacked_sequences += u64::from(asked);
                Ok(())
            }
        }
    }

    /// Writes a NACK datagram from the address that the report was sent to.
    fn nack(&mut self, from: SocketAddrV4, to: SocketAddrV4, nack: &Nack, out: &mut Output) {
        let mut payload = [0; dta::NACK_V1_LEN];
        let Ok(len) = nack.emit(&mut payload) else { return };
        let from_ip = if from.ip().is_unspecified() { self.service.0 } else { *from.ip() };
        push_datagram(&mut out.nacks, SocketAddrV4::new(from_ip, from.port()), to, &payload[..len]);
        self.core.counters.nacks += 1;
    }

    /// Takes a batch of RoCEv2 packets, each an IPv4 packet: the answers to RC queue pairs. Others are counted and ignored.
    pub fn answers<'a>(&mut self, now: u64, packets: impl IntoIterator<Item = &'a [u8]>, out: &mut Output) {
        self.clock = self.clock.max(now);
        for packet in packets {
            match self.answer_of(packet) {
                Some((purpose, psn, answer)) => {
                    self.core.answer(self.clock, purpose, psn, answer, out);
                }
                None => self.answers_ignored += 1,
            }
        }
        self.core.transmit(self.clock, out);
    }

    fn answer_of(&self, packet: &[u8]) -> Option<(Purpose, Psn, Answer)> {
        let Received { ipv4, roce: transport, .. } = Received::parse(packet).ok()?;
        let bth = transport.bth();
        let pair = self.core.pairs.iter().flatten().find(|p| p.entry.local_qpn == bth.dest_qp)?;
        if pair.entry.transport != Transport::Rc || pair.entry.destination.ip != IpAddr::V4(ipv4.src()) {
            return None;
        }
        if !matches!(bth.opcode, Opcode::RcAck | Opcode::RcAtomicAck) {
            return None;
        }
        let answer = match transport.aeth().ok()??.syndrome {
            Syndrome::Ack { .. } => Answer::Ack,
            Syndrome::RnrNak { timer } => Answer::ReceiverNotReady(rnr_wait(timer)),
            Syndrome::Nak(NakCode::PsnSequenceError) => Answer::NakSequence,
            Syndrome::Nak(_) => Answer::NakError,
        };
        Some((pair.entry.purpose, bth.psn, answer))
    }

    /// Lets time pass: sends what has been held long enough, and recovers queue pairs that are silent.
    pub fn tick(&mut self, now: u64, out: &mut Output) {
        self.clock = self.clock.max(now);
        let now = self.clock;
        for at in 0..self.stores.len() {
            let Some(held) = &mut self.stores[at] else { continue };
            let after = self.flush_ns[held.entry.spec.kind.primitive().index()];
            if after != 0 && now >= after {
                flush_store(held, now, at, now - after, &mut self.core, out);
            }
        }
        self.core.tick(now, out);
    }

    /// Sends everything held. Gives how many reports that were.
    pub fn flush(&mut self, now: u64, out: &mut Output) -> u64 {
        self.clock = self.clock.max(now);
        let held = |core: &Egress| core.counters.primitives.iter().map(|p| p.held).sum::<u64>();
        let before = held(&self.core);
        for at in 0..self.stores.len() {
            if let Some(store) = &mut self.stores[at] {
                flush_store(store, self.clock, at, u64::MAX, &mut self.core, out);
            }
        }
        self.core.transmit(self.clock, out);
        before - held(&self.core)
    }

    /// When [`Engine::tick`] has something to do next, if ever.
    pub fn deadline(&self) -> Option<u64> {
        let stores = self.stores.iter().flatten().filter_map(|held| {
            let after = self.flush_ns[held.entry.spec.kind.primitive().index()];
            let oldest = match &held.state {
                State::Append(s) => s.oldest(),
                State::Postcarding(s) => s.oldest(),
                State::SketchMerge(s) => s.oldest(),
                State::KeyWrite { .. } | State::KeyIncrement { .. } => None,
            };
            oldest.filter(|_| after != 0).map(|born| born + after)
        });
        stores.chain(self.core.deadline()).min()
    }

    /// Ends all queue pairs: what was not acknowledged is counted lost.
    pub fn end(&mut self, out: &mut Output) {
        self.core.end(out);
    }

    /// Whether what becomes of a frame on its way says what becomes of its reports: not on RC,
    /// where it is sent again.
    pub fn leaves_once(&self, meta: &FrameMeta) -> bool {
        self.core.leaves_once(meta)
    }

    /// Counts a frame that a fault injector kept from arriving, if it [leaves once](Engine::leaves_once).
    pub fn injected_loss(&mut self, meta: &FrameMeta) {
        self.core.injected_loss(meta);
    }
}

fn flush_store(held: &mut Held, now: u64, at: usize, born_by: u64, core: &mut Egress, out: &mut Output) {
    match &mut held.state {
        State::Append(s) => s.flush(now, at, born_by, core, out),
        State::Postcarding(s) => s.flush(now, at, born_by, core, out),
        State::SketchMerge(s) => s.flush(now, at, born_by, core, out),
        State::KeyWrite { .. } | State::KeyIncrement { .. } => {}
    }
}

fn reason_of(error: wire::Error) -> Reason {
    match error.kind {
        Kind::UnknownVersion(_) => Reason::Version,
        Kind::UnknownOpcode(_) => Reason::Opcode,
        Kind::Truncated { .. } | Kind::TooLong { .. } | Kind::Length(_) => Reason::Length,
        Kind::ValueLength(_) | Kind::Rows(_) => Reason::ValueLength,
        Kind::Hop(_) => Reason::Hop,
        Kind::PathLength(_) => Reason::PathLength,
        _ => Reason::Field,
    }
}

/// RNR NAK timer codes in nanoseconds: InfiniBand specification, table 45. Code 0 is the longest.
fn rnr_wait(code: u8) -> u64 {
    const MICROSECONDS: [u64; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
        5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760,
        327_680, 491_520,
    ];
    MICROSECONDS[usize::from(code & 31)] * 1_000
}

fn push_datagram(frames: &mut Frames, from: SocketAddrV4, to: SocketAddrV4, payload: &[u8]) {
    let packet = frames.push(datagram::HEADER_LEN + payload.len());
    packet[..datagram::HEADER_LEN].copy_from_slice(&datagram::header(from, to, payload.len()));
    packet[datagram::HEADER_LEN..].copy_from_slice(payload);
}

//! The requester's side of a queue pair: PSNs, what is out, and recovery after a loss.
//!
//! On UC there is only a PSN to count. On RC the responder takes frames in PSN order alone, sends one NAK at a gap and is then
//! silent until the expected PSN comes. Nothing is retransmitted: what the responder skipped is counted lost, and the requester
//! goes on at the PSN that the responder expects. It learns that PSN from the NAK or, when the NAK is lost too and no ACK has come
//! for [`Timing::silence`], from the answer to a probe: a zero-length WRITE at a PSN executed before, which the responder answers with
//! the last PSN executed.
//!
//! Frames sent before the loss was known may still be on their way, under the PSNs that come next. One that arrives then
//! would be executed in the place of a newer frame, and the newer one taken for its repeat and acknowledged unexecuted. So the PSNs
//! that were out are first used up with zero-length WRITEs, which do nothing whichever of the two is executed, and new operations wait
//! until those are acknowledged. See `docs/decisions/rc-recovery.md`.

use std::collections::VecDeque;

use dta_proto::wire::roce::Psn;

use super::counters::LossCause;
use super::losses::FrameMeta;
use dta_proto::program::Transport;

/// What Linux's soft-RoCE (6.1) answers to a repeat as long as it has executed nothing, instead of the PSN before the first.
const NOTHING_EXECUTED: Psn = Psn::new(0xff_ffff);

/// Largest payload of an operation: a 128-byte append batch.
pub const MAX_PAYLOAD: usize = 128;

/// The kinds of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// WRITE ONLY of the payload.
    Write,
    /// WRITE ONLY of the payload, with immediate.
    WriteImmediate,
    /// FETCH_ADD.
    FetchAdd,
    /// Zero-length WRITE ONLY: a probe or filler.
    Idle,
}

/// What an operation does to memory. Two words, which travel in registers: an enumeration with the numbers inside would go by memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// The kind of operation.
    pub verb: Verb,
    /// The immediate of a write, the addend of a FETCH_ADD; else 0.
    pub number: u64,
}

impl Action {
    /// WRITE ONLY.
    pub const WRITE: Action = Action { verb: Verb::Write, number: 0 };
    /// Zero-length WRITE ONLY.
    pub const IDLE: Action = Action { verb: Verb::Idle, number: 0 };

    /// WRITE ONLY with immediate.
    pub fn write_immediate(immediate: u32) -> Action {
        Action { verb: Verb::WriteImmediate, number: immediate.into() }
    }

    /// FETCH_ADD.
    pub fn fetch_add(addend: u64) -> Action {
        Action { verb: Verb::FetchAdd, number: addend }
    }
}

/// An operation with a PSN, ready to be made into a frame.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'a> {
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether the frame asks for an acknowledgement.
    pub ack_request: bool,
    /// What it does.
    pub action: Action,
    /// Index of its store in the engine; none for [`Action::IDLE`].
    pub store: usize,
    /// Byte offset in the store's region.
    pub offset: u64,
    /// Payload of a write.
    pub payload: &'a [u8],
    /// What it carries.
    pub meta: &'a FrameMeta,
}

/// An operation waiting for its turn.
#[derive(Clone)]
struct Waiting {
    action: Action,
    store: usize,
    offset: u64,
    len: u8,
    payload: [u8; MAX_PAYLOAD],
    meta: FrameMeta,
}

/// Times and limits of RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Operations that may be unacknowledged, 64 to 4096, a power of two: a request for an acknowledgement is among any 64.
    pub window: u32,
    /// Operations that may wait for room in the window.
    pub queue: usize,
    /// Nanoseconds without an answer, with operations out, before the requester probes. Longer than any frame is under way.
    pub silence: u64,
    /// Probes without an answer, each after twice the time of the one before, until the queue pair is given up.
    pub probes: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { window: 64, queue: 16_384, silence: 30_000_000, probes: 8 }
    }
}

/// Frames that may be out after any number of losses, and the step by which they become more.
const LEAST_ALLOWED: u32 = 8;

/// Probes that are remembered until they are answered. Later ones are not: then an older one's answer is waited for, which tells less.
const PROBES_OUT: usize = 16;

/// Times of silence after which the answer to a probe is taken for lost.
const ANSWER_LIFETIME: u64 = 8;

/// Longest time between two probes, in nanoseconds.
const MAX_PROBE_INTERVAL: u64 = 1_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// New operations leave as the window allows.
    Ready,
    /// PSNs before `until` are being used up with idle frames.
    Filling { until: Psn },
    /// Receiver not ready: nothing leaves before `at`, then PSNs before `until` are used up.
    Paused { at: u64, until: Psn },
    /// The queue pair is in error or silent; a new one is needed.
    Down,
}

/// An acknowledgement, as far as the requester needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Everything up to this PSN was executed.
    Ack,
    /// NAK sequence error: the PSN is the one expected.
    NakSequence,
    /// Receiver not ready: the PSN is the one to come again, after this many nanoseconds.
    ReceiverNotReady(u64),
    /// Any other NAK: the frame of this PSN was refused, and the queue pair is in error.
    NakError,
}

/// What the requester counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterCounters {
    /// Frames given PSNs, probes not included.
    pub sent: u64,
    /// Operations (idle ones not included) known to be executed. RC only.
    pub acknowledged: u64,
    /// Answers heard.
    pub answers: u64,
    /// NAKs for a sequence error heard.
    pub nak_sequence: u64,
    /// Receiver-not-ready NAKs heard.
    pub receiver_not_ready: u64,
    /// Error NAKs heard.
    pub nak_error: u64,
    /// Times the requester went on at another PSN than it would have.
    pub recoveries: u64,
    /// Of them, after a probe, since no NAK arrived.
    pub recoveries_by_probe: u64,
    /// Probes sent.
    pub probes: u64,
    /// Idle frames sent to use up PSNs.
    pub fillers: u64,
    /// Answers that told nothing new (repeats) or came at the wrong time.
    pub stale_answers: u64,
}

/// Receives departures; the engine makes frames of them.
pub trait Depart {
    /// Makes a frame of `departure`.
    fn depart(&mut self, departure: Departure<'_>);
    /// Learns that the frame or waiting operation with this meta is lost.
    fn lost(&mut self, meta: &FrameMeta, cause: LossCause);
}

/// The state of one queue pair.
pub struct Requester {
    transport: Transport,
    next: Psn,
    /// RC: oldest PSN not known to be executed.
    oldest: Psn,
    /// RC: meta and whether it is an atomic, by PSN modulo the ring's length.
    out: Vec<(FrameMeta, bool)>,
    atomics_out: u32,
    atomic_limit: u32,
    /// Frames that may be out at the moment: the window, less after losses.
    allowed: u32,
    /// Frames acknowledged since `allowed` grew.
    credit: u32,
    waiting: VecDeque<Waiting>,
    timing: Timing,
    state: State,
    probes: u32,
    probe_due: u64,
    /// Probes not answered yet, oldest first: when each was sent, and the PSN that followed. What left later is not in its answer.
    probed: VecDeque<(u64, Psn)>,
    /// What an answer said that is ahead of all that was sent; believed when a second one says it.
    ahead: Option<Psn>,
    /// The PSN that the last recovery went on at: a repeated NAK for it tells nothing.
    resumed_at: Option<Psn>,
    /// Nothing is known to be executed yet.
    untouched: bool,
    /// What it counts.
    pub counters: RequesterCounters,
}

impl Requester {
    /// A requester that begins at `start_psn`.
    pub fn new(transport: Transport, start_psn: Psn, max_dest_rd_atomic: u32, timing: Timing) -> Self {
        let rc = transport == Transport::Rc;
        let window = timing.window.clamp(64, 4096).next_power_of_two();
        Requester {
            transport,
            next: start_psn,
            oldest: start_psn,
            out: if rc { vec![(FrameMeta::IDLE, false); window as usize] } else { Vec::new() },
            atomics_out: 0,
            atomic_limit: max_dest_rd_atomic.max(1),
            allowed: window,
            credit: 0,
            waiting: VecDeque::with_capacity(if rc { timing.queue } else { 0 }),
            timing: Timing { window, ..timing },
            state: State::Ready,
            probes: 0,
            probe_due: 0,
            probed: VecDeque::with_capacity(PROBES_OUT),
            ahead: None,
            resumed_at: None,
            untouched: true,
            counters: RequesterCounters::default(),
        }
    }

    /// The PSN that the next frame gets.
    pub fn next_psn(&self) -> Psn {
        self.next
    }

    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Whether the queue pair is in error or silent, so that a new one is needed.
    pub fn is_down(&self) -> bool {
        self.state == State::Down
    }

    /// Frames that are out: sent and not known to be executed. 0 on UC, where nobody knows.
    pub fn outstanding(&self) -> u32 {
        if self.transport == Transport::Uc { 0 } else { self.next.since(self.oldest) as u32 }
    }

    /// Operations waiting for room.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sends an operation, now or when there is room. On UC it always leaves now.
    #[inline]
    pub fn post(
        &mut self,
        now: u64,
        action: Action,
        (store, offset): (usize, u64),
        payload: &[u8],
        meta: &FrameMeta,
        to: &mut impl Depart,
    ) {
        if self.transport == Transport::Uc {
            let psn = self.next;
            self.next = psn.next();
            self.counters.sent += 1;
            to.depart(Departure { psn, ack_request: false, action, store, offset, payload, meta });
            return;
        }
        self.post_reliably(now, action, (store, offset), payload, meta, to);
    }

    #[inline(never)]
    fn post_reliably(
        &mut self,
        now: u64,
        action: Action,
        (store, offset): (usize, u64),
        payload: &[u8],
        meta: &FrameMeta,
        to: &mut impl Depart,
    ) {
        if self.state == State::Down {
            to.lost(meta, LossCause::QueuePairDown);
        } else if self.waiting.is_empty() && self.has_room(action) {
            self.send(now, action, (store, offset), payload, meta, to);
        } else if self.waiting.len() >= self.timing.queue {
            to.lost(meta, LossCause::QueueFull);
        } else {
            let mut bytes = [0; MAX_PAYLOAD];
            bytes[..payload.len()].copy_from_slice(payload);
            self.waiting.push_back(Waiting {
                action,
                store,
                offset,
                len: payload.len() as u8,
                payload: bytes,
                meta: *meta,
            });
        }
    }

    fn slot(&self, psn: Psn) -> usize {
        psn.get() as usize & (self.out.len() - 1)
    }

    fn has_room(&self, action: Action) -> bool {
        self.state == State::Ready
            && self.outstanding() < self.allowed
            && !(action.verb == Verb::FetchAdd && self.atomics_out >= self.atomic_limit)
    }

    fn send(
        &mut self,
        now: u64,
        action: Action,
        (store, offset): (usize, u64),
        payload: &[u8],
        meta: &FrameMeta,
        to: &mut impl Depart,
    ) {
        if self.outstanding() == 0 {
            self.start_clock(now);
        }
        let psn = self.next;
        let atomic = action.verb == Verb::FetchAdd;
        let slot = self.slot(psn);
        self.out[slot] = (*meta, atomic);
        self.atomics_out += u32::from(atomic);
        self.next = psn.next();
        self.counters.sent += 1;
        to.depart(Departure { psn, ack_request: wants_ack(psn), action, store, offset, payload, meta });
        // After losses fewer than 64 may be out, among which none may ask for an acknowledgement. The answer is taken for no more
        // than that: repeats of earlier answers may be on their way, and must not be taken for a sign of a gap.
        if self.outstanding() == self.allowed && !self.answer_is_due() {
            self.ask(to);
        }
    }

    fn start_clock(&mut self, now: u64) {
        self.probes = 0;
        self.probe_due = now + self.timing.silence;
    }

    /// Sends what waits, as far as there is room.
    fn drain(&mut self, now: u64, to: &mut impl Depart) {
        while let Some(first) = self.waiting.front() {
            if !self.has_room(first.action) {
                break;
            }
            let Some(w) = self.waiting.pop_front() else { break };
            self.send(now, w.action, (w.store, w.offset), &w.payload[..usize::from(w.len)], &w.meta, to);
        }
    }

    /// Takes PSNs up to `psn` as executed.
    fn acknowledge(&mut self, psn: Psn) {
        while psn.since(self.oldest) >= 0 && self.oldest != self.next {
            let (meta, atomic) = self.out[self.slot(self.oldest)];
            self.atomics_out -= u32::from(atomic);
            self.counters.acknowledged += u64::from(meta.primitive.is_some());
            self.oldest = self.oldest.next();
        }
    }

    /// Counts everything that is out as lost; nothing on UC, where nobody knows.
    fn lose_all(&mut self, cause: LossCause, to: &mut impl Depart) {
        if self.transport == Transport::Uc {
            return;
        }
        while self.oldest != self.next {
            let (meta, _) = self.out[self.slot(self.oldest)];
            if meta.primitive.is_some() {
                to.lost(&meta, cause);
            }
            self.oldest = self.oldest.next();
        }
        self.atomics_out = 0;
    }

    /// Goes on at `expected`, the oldest PSN out: everything that is out is lost, and its PSNs are used up.
    fn resume(&mut self, now: u64, cause: LossCause, to: &mut impl Depart) {
        let expected = self.oldest;
        let until = self.next;
        self.lose_all(cause, to);
        self.oldest = expected;
        self.next = expected;
        self.resumed_at = Some(expected);
        self.forget_answers();
        self.counters.recoveries += 1;
        self.allowed = (self.allowed / 2).max(LEAST_ALLOWED);
        self.credit = 0;
        match cause {
            LossCause::ReceiverNotReady => {}
            _ => self.fill(now, until, to),
        }
    }

    fn fill(&mut self, now: u64, until: Psn, to: &mut impl Depart) {
        self.state = State::Filling { until };
        self.start_clock(now);
        while self.next != until {
            let psn = self.next;
            let last = psn.next() == until;
            let slot = self.slot(psn);
            self.out[slot] = (FrameMeta::IDLE, false);
            self.next = psn.next();
            self.counters.sent += 1;
            self.counters.fillers += 1;
            to.depart(idle(psn, wants_ack(psn) || last));
        }
        self.leave_filling();
    }

    fn leave_filling(&mut self) {
        if let State::Filling { until } = self.state
            && self.oldest.since(until) >= 0
        {
            self.state = State::Ready;
        }
    }

    fn go_down(&mut self, cause: LossCause, to: &mut impl Depart) {
        self.lose_all(cause, to);
        for w in self.waiting.drain(..) {
            to.lost(&w.meta, LossCause::QueuePairDown);
        }
        self.state = State::Down;
    }

    /// Takes an answer of the responder; `psn` is the one in its BTH.
    pub fn answer(&mut self, now: u64, psn: Psn, answer: Answer, to: &mut impl Depart) {
        if self.transport == Transport::Uc || self.state == State::Down {
            self.counters.stale_answers += 1;
            return;
        }
        self.counters.answers += 1;
        // The last PSN executed, as the answer tells it.
        let mut executed = match answer {
            Answer::Ack => psn,
            _ => psn.minus(1),
        };
        let out = 1..=self.outstanding() as i32;
        if self.untouched && executed == NOTHING_EXECUTED && !out.contains(&(executed.since(self.oldest) + 1))
        {
            executed = self.oldest.minus(1);
        }
        let progress = executed.since(self.oldest) + 1;
        self.untouched &= progress <= 0;
        if progress > self.outstanding() as i32 {
            self.hear_ahead(now, executed, to);
            return;
        }
        // A plain acknowledgement, which may be older than any probe: it answers a frame that asked for one.
        let plain = progress > 0 && self.asks_for_answer(psn);
        if progress > 0 {
            self.acknowledge(executed);
            self.grow(progress as u32);
            self.resumed_at = None;
            self.ahead = None;
            self.start_clock(now);
            self.leave_filling();
        }
        match answer {
            Answer::Ack if plain => {}
            Answer::Ack => {
                // Answers keep the order of probes. If not all that had left before the probe is executed, the responder waits at a gap.
                if progress >= 0 && self.answered_probe(now).is_some_and(|next| next.since(self.oldest) > 0) {
                    self.counters.recoveries_by_probe += 1;
                    self.resume(now, LossCause::Sequence, to);
                } else if progress <= 0 {
                    self.counters.stale_answers += 1;
                }
            }
            Answer::NakSequence => {
                self.counters.nak_sequence += 1;
                // A NAK for what was acknowledged since, or a repeat of the one that the last recovery answered.
                let stale = progress < 0 || (self.resumed_at == Some(self.oldest));
                if stale || self.outstanding() == 0 {
                    self.counters.stale_answers += 1;
                } else {
                    self.resume(now, LossCause::Sequence, to);
                }
            }
            Answer::ReceiverNotReady(wait) => {
                self.counters.receiver_not_ready += 1;
                if progress < 0 || self.outstanding() == 0 || matches!(self.state, State::Paused { .. }) {
                    self.counters.stale_answers += 1;
                } else {
                    let until = self.next;
                    self.resume(now, LossCause::ReceiverNotReady, to);
                    self.state = State::Paused { at: now + wait, until };
                }
            }
            Answer::NakError => {
                self.counters.nak_error += 1;
                if progress < 0 || self.outstanding() == 0 {
                    self.counters.stale_answers += 1;
                } else {
                    self.go_down(LossCause::QueuePairError, to);
                }
            }
        }
        self.drain(now, to);
    }

    /// The responder says that it is ahead of everything sent: what was sent were repeats to it. That can be the late answer of an
    /// earlier queue pair, so it is asked again.
    fn hear_ahead(&mut self, now: u64, executed: Psn, to: &mut impl Depart) {
        if self.ahead.is_none_or(|said| executed.since(said) < 0) {
            self.ahead = Some(executed);
            self.counters.stale_answers += 1;
            self.probe(now, to);
            return;
        }
        self.lose_all(LossCause::Sequence, to);
        self.oldest = executed.next();
        self.next = self.oldest;
        match self.state {
            State::Paused { until, .. } if until.since(self.next) > 0 => {}
            _ => self.state = State::Ready,
        }
        self.forget_answers();
        self.resumed_at = None;
        self.counters.recoveries += 1;
        self.start_clock(now);
        self.drain(now, to);
    }

    /// The PSN that followed the oldest probe still unanswered, which now is answered. An answer that was lost is given up after a while;
    /// until then a later one is taken for it, which tells less but nothing wrong.
    fn answered_probe(&mut self, now: u64) -> Option<Psn> {
        let lost = now.saturating_sub(ANSWER_LIFETIME * self.timing.silence);
        while self.probed.front().is_some_and(|(sent, next)| *sent < lost && next.since(self.oldest) <= 0) {
            self.probed.pop_front();
        }
        self.probed.pop_front().map(|(_, next)| next)
    }

    /// Asks where the responder stands, and takes the answer for a sign of a gap if it stops short.
    fn probe(&mut self, now: u64, to: &mut impl Depart) {
        if self.probed.len() < PROBES_OUT {
            self.probed.push_back((now, self.next));
        }
        self.ask(to);
    }

    /// Asks where the responder stands.
    fn ask(&mut self, to: &mut impl Depart) {
        self.counters.probes += 1;
        // The PSN before the oldest one out was executed, so this is a repeat, whatever the responder expects.
        to.depart(idle(self.oldest.minus(1), true));
    }

    /// Whether a frame that is out asks for an acknowledgement.
    fn answer_is_due(&self) -> bool {
        self.atomics_out != 0 || self.oldest.get() >> 6 != self.next.get() >> 6
    }

    /// Lets more frames out as they are acknowledged: one step per window.
    fn grow(&mut self, acknowledged: u32) {
        self.credit += acknowledged;
        if self.credit >= self.allowed {
            self.credit = 0;
            self.allowed = (self.allowed + LEAST_ALLOWED).min(self.timing.window);
        }
    }

    /// Whether the frame that is out under this PSN asked for an acknowledgement.
    fn asks_for_answer(&self, psn: Psn) -> bool {
        let (_, atomic) = self.out[self.slot(psn)];
        atomic || wants_ack(psn)
    }

    /// What was asked before a recovery tells nothing after it.
    fn forget_answers(&mut self) {
        self.probed.clear();
        self.ahead = None;
    }

    /// Lets time pass: probes when nobody answers, ends pauses, and gives up at last.
    pub fn tick(&mut self, now: u64, to: &mut impl Depart) {
        match self.state {
            State::Paused { at, until } if now >= at => {
                self.fill(now, until, to);
                self.drain(now, to);
            }
            State::Paused { .. } | State::Down => return,
            _ => {}
        }
        if self.outstanding() == 0 || now < self.probe_due {
            return;
        }
        if self.probes >= self.timing.probes {
            self.go_down(LossCause::QueuePairDown, to);
            return;
        }
        self.probes += 1;
        let interval = self.timing.silence.saturating_mul(1 << self.probes.min(20)).min(MAX_PROBE_INTERVAL);
        self.probe_due = now + interval.max(self.timing.silence);
        self.probe(now, to);
    }

    /// Puts a new queue pair in the place of the old one: what was out is lost, what waits goes out on the new one.
    pub fn replace(
        &mut self,
        now: u64,
        transport: Transport,
        start_psn: Psn,
        max_dest_rd_atomic: u32,
        to: &mut impl Depart,
    ) {
        self.lose_all(LossCause::QueuePairDown, to);
        let waiting = std::mem::take(&mut self.waiting);
        let counters = self.counters;
        *self = Requester::new(transport, start_psn, max_dest_rd_atomic, self.timing);
        self.counters = counters;
        for w in waiting {
            self.post(now, w.action, (w.store, w.offset), &w.payload[..usize::from(w.len)], &w.meta, to);
        }
    }

    /// Ends the queue pair: what is out and what waits is lost.
    pub fn end(&mut self, to: &mut impl Depart) {
        self.go_down(LossCause::QueuePairDown, to);
    }

    /// When [`Requester::tick`] has something to do next; `None` while nothing is out.
    pub fn deadline(&self) -> Option<u64> {
        match self.state {
            State::Paused { at, .. } => Some(at),
            State::Down => None,
            _ if self.outstanding() == 0 => None,
            _ => Some(self.probe_due),
        }
    }
}

/// By the frame profile, every 64th frame of an RC queue pair asks for an acknowledgement.
fn wants_ack(psn: Psn) -> bool {
    psn.get() & 63 == 63
}

fn idle(psn: Psn, ack_request: bool) -> Departure<'static> {
    Departure {
        psn,
        ack_request,
        action: Action::IDLE,
        store: 0,
        offset: 0,
        payload: &[],
        meta: &FrameMeta::IDLE,
    }
}

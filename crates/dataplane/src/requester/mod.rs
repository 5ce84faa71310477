//! The requester side of a queue pair: PSNs, unacknowledged operations, and retransmission.
//!
//! On UC there is only a PSN to count. On RC it works like an RDMA NIC's requester (InfiniBand specification
//! 1.4, 9.7). Each operation is kept until it is acknowledged. The responder accepts frames only in PSN
//! order, sends one NAK at a gap and is then silent until the expected PSN arrives. So the requester goes
//! back to the PSN in a NAK, or after a timeout to the oldest unacknowledged one, and resends from there,
//! each operation under its old PSN. The responder executes no PSN twice: it acknowledges a repeated WRITE,
//! and answers a repeated FETCH_ADD from its resources, of which it has `max_dest_rd_atomic`; at most that
//! many atomics are outstanding. A late frame does no harm either: its PSN always means the same operation.
//!
//! An acknowledgement of any kind for a PSN says that everything up to it was executed, atomics included. The
//! values that atomics return are not needed.
//!
//! When the responder is silent for too long, or has refused a frame, the queue pair [is
//! down](Requester::is_down) until [`Requester::replace_queue_pair`] installs another. See
//! `docs/decisions/rc-recovery.md`.

mod allowance;
mod patience;
mod ring;

use dta_proto::counter::translator as names;
use dta_proto::wire::roce::Psn;

use self::allowance::Allowance;
use self::patience::Patience;
use self::ring::OperationRing;
use super::counters::LossCause;
use super::losses::FrameMeta;
use dta_proto::program::Transport;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// WRITE ONLY of the payload.
    Write,
    /// WRITE ONLY of the payload, with immediate.
    WriteImmediate,
    FetchAdd,
    /// Zero-length WRITE ONLY, in place of an operation whose store is gone.
    Idle,
}

/// The effect of an operation. Two words, so that it is passed in registers, which an enumeration with the
/// numbers inside would not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationEffect {
    pub verb: Verb,
    /// The immediate of a write, the addend of a FETCH_ADD; else 0.
    pub number: u64,
}

impl OperationEffect {
    /// WRITE ONLY.
    pub const WRITE: OperationEffect = OperationEffect { verb: Verb::Write, number: 0 };
    /// Zero-length WRITE ONLY.
    pub const IDLE: OperationEffect = OperationEffect { verb: Verb::Idle, number: 0 };

    /// WRITE ONLY with immediate.
    pub fn write_immediate(immediate: u32) -> OperationEffect {
        OperationEffect { verb: Verb::WriteImmediate, number: immediate.into() }
    }

    pub fn fetch_add(addend: u64) -> OperationEffect {
        OperationEffect { verb: Verb::FetchAdd, number: addend }
    }
}

/// An operation with a PSN, ready to become a frame.
#[derive(Clone, Copy, Debug)]
pub struct Departure<'a> {
    pub psn: Psn,
    /// Whether the frame asks for an acknowledgement.
    pub ack_request: bool,
    pub action: OperationEffect,
    /// Index of its store in the engine; none for [`OperationEffect::IDLE`].
    pub store: usize,
    /// Byte offset in the store's region.
    pub offset: u64,
    pub payload: &'a [u8],
    pub meta: &'a FrameMeta,
}

/// Timeouts and limits of RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Most unacknowledged operations, 64 to 4096, a power of two.
    pub window: u32,
    /// Most operations kept, unacknowledged or waiting for the window; at least a window.
    pub queue: usize,
    /// Timeout in nanoseconds until the first round trip is measured.
    pub silence: u64,
    /// Retries without progress before the queue pair is given up.
    pub tries: u32,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { window: 256, queue: 16_384, silence: 30_000_000, tries: 16 }
    }
}

/// In the frame profile, any 64 frames include a request for an acknowledgement, so reference mode must allow
/// at least that many outstanding.
const REFERENCE_LEAST: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequesterState {
    /// Operations are sent as the window allows.
    Ready,
    /// Receiver not ready: nothing is sent before this time.
    Paused(u64),
    /// Given up: no answer for too long. The oldest operation is resent now and then; an answer makes the
    /// queue pair ready.
    Silent,
    /// The responder refused a frame, so its queue pair is in ERROR and will not answer again.
    Refused,
    /// The RDMA device that sends has given up. Nobody knows what was executed.
    GivenUp,
}

/// An acknowledgement, reduced to what the requester needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderAnswer {
    /// Everything up to this PSN was executed.
    Ack,
    /// NAK sequence error: this PSN is expected.
    NakSequence,
    /// Receiver not ready: resend this PSN after this many nanoseconds.
    ReceiverNotReady(u64),
    /// Any other NAK: the frame with this PSN was refused, and the queue pair is in ERROR.
    NakError,
    /// The RDMA device that sends for this requester has given up, whatever the PSN.
    GivenUp,
    /// As [`Self::GivenUp`], and the device accepted neither the operation with this PSN nor any after it.
    NotPosted,
}

dta_proto::published_counters! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RequesterCounters(collector, purpose) {
        pub sent: u64 = names::PAIR_SENT,
        pub retransmitted: u64 = names::PAIR_RETRANSMITTED,
        pub acknowledged: u64 = names::PAIR_ACKNOWLEDGED,
        pub answers: u64 = names::PAIR_ANSWERS,
        pub stale_answers: u64 = names::PAIR_STALE_ANSWERS,
        pub nak_sequence: u64 = names::PAIR_NAK_SEQUENCE,
        pub receiver_not_ready: u64 = names::PAIR_RECEIVER_NOT_READY,
        pub nak_error: u64 = names::PAIR_NAK_ERROR,
        pub go_backs: u64 = names::PAIR_GO_BACKS,
        pub timeouts: u64 = names::PAIR_TIMEOUTS,
        pub replaced: u64 = names::PAIR_REPLACED,
    }
}

/// Receives departures; the engine turns them into frames.
pub trait Depart {
    fn emit_departure(&mut self, departure: Departure<'_>);
    /// Called when the operation with this meta is lost.
    fn note_lost_operation(&mut self, meta: &FrameMeta, cause: LossCause);
}

/// The queue pair that replaces another.
#[derive(Clone, Copy, Debug)]
pub struct Successor {
    pub transport: Transport,
    pub expected: Psn,
    /// Atomics that may be in flight.
    pub max_dest_rd_atomic: u32,
    /// Whether it is the same queue pair under another generation.
    pub same: bool,
    /// The PSN that the previous one expected when it ended, if known.
    pub before: Option<Psn>,
}

/// The state of one queue pair.
///
/// Operations are numbered from 0 in order of creation; the PSN of number n is
/// that of 0 plus n. They are kept from `oldest` to `tail`; those before `sent` have left at least
/// once.
pub struct Requester {
    transport: Transport,
    /// PSN of the operation number 0.
    first_psn: Psn,
    /// Oldest one not known to have been executed.
    oldest: u64,
    /// The next to send: before `sent` while resending.
    cursor: u64,
    /// The first never sent.
    sent: u64,
    /// Operations before this one were sent before [`Requester::replace_queue_pair`].
    sent_before: u64,
    /// The number of the next one to be posted.
    tail: u64,
    ring: OperationRing,
    /// Longest payload of its stores' operations.
    payload_len: usize,
    /// Atomics from `oldest` to `sent`.
    atomics_out: u32,
    atomic_limit: u32,
    timing: Timing,
    /// Whether AckReq follows only the frame profile.
    reference: bool,
    /// Whether an RDMA device sends and resends for it: nothing is sent twice here, except on another queue pair.
    resent_by_device: bool,
    allowance: Allowance,
    patience: Patience,
    state: RequesterState,
    /// Retransmission deadline; meaningful while operations are outstanding.
    due: u64,
    /// Retries since the last progress.
    tries: u32,
    /// The operation that it last went back to: another NAK for it is redundant.
    went_back_to: Option<u64>,
    /// Extra copies of the oldest operation to send.
    extra: u32,
    /// Frames since the last request for an acknowledgement.
    unasked: u32,
    /// A frame with AckReq sent exactly once, and when: the round trip being measured.
    timed: Option<(u64, u64)>,
    pub counters: RequesterCounters,
}

impl Requester {
    pub fn new(transport: Transport, start_psn: Psn, max_dest_rd_atomic: u32, timing: Timing) -> Self {
        let window = timing.window.clamp(64, 4096).next_power_of_two();
        let timing = Timing { window, queue: timing.queue.max(window as usize), ..timing };
        Requester {
            transport,
            first_psn: start_psn,
            oldest: 0,
            cursor: 0,
            sent: 0,
            sent_before: 0,
            tail: 0,
            ring: ring_for_transport(transport, &timing, 0),
            payload_len: 0,
            atomics_out: 0,
            atomic_limit: max_dest_rd_atomic.max(1),
            timing,
            reference: false,
            resent_by_device: false,
            allowance: Allowance::new(window),
            patience: Patience::new(timing.silence),
            state: RequesterState::Ready,
            due: 0,
            tries: 0,
            went_back_to: None,
            extra: 0,
            unasked: 0,
            timed: None,
            counters: RequesterCounters::default(),
        }
    }

    /// In reference mode the frame profile applies: AckReq where PSN mod 64 = 63, and nowhere else except on
    /// repeated frames.
    pub fn set_reference(&mut self, reference: bool) {
        self.reference = reference;
        self.allowance.set_least(reference.then_some(REFERENCE_LEAST));
    }

    /// Makes room for operations of up to this many bytes. Operations must not be posted before.
    pub fn widen_payloads(&mut self, payload_len: usize) {
        self.payload_len = self.payload_len.max(payload_len);
        self.ring.widen_payloads(self.payload_len);
    }

    pub fn set_resent_by_device(&mut self, resent_by_device: bool) {
        self.resent_by_device = resent_by_device;
    }

    fn psn_of_number(&self, number: u64) -> Psn {
        self.first_psn.wrapping_add((number & u64::from(Psn::MASK)) as u32)
    }

    pub fn next_psn(&self) -> Psn {
        self.psn_of_number(self.sent)
    }

    /// Whether the queue pair is in ERROR, silent or given up, and must be replaced.
    pub fn is_down(&self) -> bool {
        self.has_ended() || self.state == RequesterState::Silent
    }

    /// Whether nothing is sent, and no answer means anything, before the queue pair is replaced.
    fn has_ended(&self) -> bool {
        matches!(self.state, RequesterState::Refused | RequesterState::GivenUp)
    }

    /// Operations sent and not known to have been executed. 0 on UC, which does not acknowledge.
    pub fn outstanding(&self) -> u32 {
        (self.sent - self.oldest) as u32
    }

    pub fn waiting_operations(&self) -> usize {
        (self.tail - self.sent) as usize
    }

    /// Operations that can be posted before half of the queue is full. Unlimited on UC, which keeps none, and
    /// for a queue pair that is down, since nobody waits for it.
    pub fn queue_headroom(&self) -> usize {
        match self.transport == Transport::Uc || self.is_down() {
            true => usize::MAX,
            false => (self.timing.queue / 2).saturating_sub((self.tail - self.oldest) as usize),
        }
    }

    /// On UC, sends `n` operations now and returns the first PSN. On RC nothing changes, and each must be
    /// [posted](Requester::post_operation).
    #[inline]
    pub fn leave_at_once(&mut self, n: u8) -> Option<Psn> {
        if self.transport != Transport::Uc {
            return None;
        }
        let first = self.psn_of_number(self.tail);
        self.skip_operations(n.into());
        self.counters.sent += u64::from(n);
        Some(first)
    }

    /// Posts an operation. On UC and in reference mode it is sent now, otherwise with the next
    /// [`Requester::transmit_waiting`] or later.
    #[inline]
    pub fn post_operation(
        &mut self,
        now: u64,
        action: OperationEffect,
        (store, offset): (usize, u64),
        payload: &[u8],
        meta: &FrameMeta,
        to: &mut impl Depart,
    ) {
        if let Some(psn) = self.leave_at_once(1) {
            to.emit_departure(Departure { psn, ack_request: false, action, store, offset, payload, meta });
            return;
        }
        if self.tail - self.oldest >= self.timing.queue as u64 {
            to.note_lost_operation(meta, LossCause::QueueFull);
            return;
        }
        self.ring.store_operation(self.tail, action, (store, offset), payload, meta);
        self.tail += 1;
        if self.reference {
            // Frames of all queue pairs are sent in the order of their reports, as by a switch.
            self.transmit_waiting(now, to);
        }
    }

    /// Counts `n` operations as sent and finished.
    fn skip_operations(&mut self, n: u64) {
        self.tail += n;
        (self.oldest, self.cursor, self.sent) = (self.tail, self.tail, self.tail);
    }

    /// Sends new operations and those to resend, as far as there is room.
    pub fn transmit_waiting(&mut self, now: u64, to: &mut impl Depart) {
        if self.transport == Transport::Uc {
            if self.oldest != self.tail {
                self.empty_ring(to);
            }
            return;
        }
        if self.has_ended() || matches!(self.state, RequesterState::Paused(_)) {
            return;
        }
        while self.may_leave(self.cursor) {
            let number = self.cursor;
            self.cursor += 1;
            let again = number < self.sent;
            let atomic = self.ring.operation_at(number).atomic;
            if !again {
                if self.outstanding() == 0 {
                    self.due = now + self.patience.timeout_after(self.tries);
                }
                self.sent += 1;
                self.atomics_out += u32::from(atomic);
                self.counters.sent += 1;
            }
            let ack_request = self.wants_ack(number, again, atomic);
            if ack_request || atomic {
                self.unasked = 0;
                if !again && self.timed.is_none() {
                    self.timed = Some((number, now));
                }
            } else {
                self.unasked += 1;
            }
            let frames = if again && number == self.oldest { 1 + std::mem::take(&mut self.extra) } else { 1 };
            self.counters.retransmitted += u64::from(frames) - u64::from(!again);
            let departure = self.ring.departure(number, self.psn_of_number(number), ack_request);
            for _ in 0..frames {
                to.emit_departure(departure);
            }
        }
    }

    /// Whether the operation with this number exists and may be sent.
    fn may_leave(&self, number: u64) -> bool {
        number < self.tail
            && number - self.oldest < u64::from(self.allowance.max_outstanding())
            && (number < self.sent
                || self.atomics_out < self.atomic_limit
                || !self.ring.operation_at(number).atomic)
    }

    /// Whether a frame requests an acknowledgement. Atomics are answered anyway.
    fn wants_ack(&self, number: u64, again: bool, atomic: bool) -> bool {
        let profile = self.psn_of_number(number).get() & 63 == 63;
        // The last one that may be sent for now, and one per half window; when resending, also the first.
        let asks = || {
            !self.may_leave(number + 1)
                || (self.unasked + 1) * 2 >= self.allowance.max_outstanding()
                || (again && number == self.oldest)
        };
        profile || (!atomic && (again || !self.reference) && asks())
    }

    /// Handles an answer of the responder; `psn` is the one in its BTH. [`Requester::transmit_waiting`] sends what it
    /// releases.
    pub fn handle_answer(&mut self, now: u64, psn: Psn, answer: ResponderAnswer, to: &mut impl Depart) {
        match answer {
            // These come from the device itself, not from the responder.
            ResponderAnswer::GivenUp => return self.give_up(),
            ResponderAnswer::NotPosted => {
                self.take_back_from(psn);
                return self.give_up();
            }
            _ if self.transport == Transport::Uc || self.has_ended() => {
                self.counters.stale_answers += 1;
                return;
            }
            ResponderAnswer::Ack => {}
            ResponderAnswer::NakSequence => self.counters.nak_sequence += 1,
            ResponderAnswer::ReceiverNotReady(_) => self.counters.receiver_not_ready += 1,
            ResponderAnswer::NakError => self.counters.nak_error += 1,
        }
        self.counters.answers += 1;
        // How many outstanding operations it confirms. A NAK refers to the one after them, which must be
        // outstanding as well.
        let (executed, known) = match answer {
            ResponderAnswer::Ack => {
                (psn.distance_from(self.psn_of_number(self.oldest)) + 1, self.outstanding())
            }
            _ => (psn.distance_from(self.psn_of_number(self.oldest)), self.outstanding().saturating_sub(1)),
        };
        let nothing_out = self.outstanding() == 0;
        if nothing_out
            || !(0..=known as i32).contains(&executed)
            || (answer == ResponderAnswer::Ack && executed == 0)
        {
            // Repeated or late; or meant for an earlier requester with this QPN.
            self.counters.stale_answers += 1;
            return;
        }
        if executed > 0 {
            self.confirm_executed(now, self.oldest + executed as u64);
        }
        match answer {
            ResponderAnswer::Ack | ResponderAnswer::GivenUp | ResponderAnswer::NotPosted => {}
            ResponderAnswer::NakSequence if self.went_back_to == Some(self.oldest) => {
                self.counters.stale_answers += 1
            }
            ResponderAnswer::NakSequence => {
                self.allowance.shrink_after_gap();
                self.go_back_to_oldest(now, 1);
            }
            ResponderAnswer::ReceiverNotReady(wait) => {
                self.tries = 0;
                self.state = RequesterState::Paused(now + wait);
            }
            ResponderAnswer::NakError => self.handle_refusal(to),
        }
    }

    /// A refusal says what was executed, so that state stands.
    fn give_up(&mut self) {
        if self.transport == Transport::Rc && self.state != RequesterState::Refused {
            self.state = RequesterState::GivenUp;
        }
    }

    /// Takes back the operation with this PSN, and those after it: they have not left, and wait as if never sent.
    fn take_back_from(&mut self, psn: Psn) {
        let distance = psn.distance_from(self.psn_of_number(self.oldest));
        if self.transport == Transport::Uc || !(0..self.outstanding() as i32).contains(&distance) {
            return;
        }
        // If the PSNs continued on a new queue pair, operations sent before that may have been executed.
        let first = (self.oldest + distance as u64).max(self.sent_before);
        for number in first..self.sent {
            self.atomics_out -= u32::from(self.ring.operation_at(number).atomic);
        }
        self.sent = self.sent.min(first);
        self.cursor = self.cursor.min(first);
    }

    /// Notes that everything before the operation `upto` was executed.
    fn confirm_executed(&mut self, now: u64, upto: u64) {
        if let Some((number, at)) = self.timed
            && number < upto
        {
            self.patience.add_round_trip(now.saturating_sub(at));
            self.timed = None;
        }
        self.allowance.grow_after_acks((upto - self.oldest) as u32);
        self.acknowledge(upto);
        self.tries = 0;
        self.extra = 0;
        self.due = now + self.patience.timeout_after(0);
        if self.state == RequesterState::Silent {
            self.state = RequesterState::Ready;
        }
    }

    fn acknowledge(&mut self, upto: u64) {
        while self.oldest < upto {
            let kept = self.ring.operation_at(self.oldest);
            self.atomics_out -= u32::from(kept.atomic);
            self.counters.acknowledged += u64::from(kept.meta.primitive.is_some());
            self.oldest += 1;
        }
        self.cursor = self.cursor.max(upto);
    }

    /// Resends from the oldest operation on, sending that one in `extra` more frames: until it arrives, the
    /// responder answers nothing else.
    fn go_back_to_oldest(&mut self, now: u64, extra: u32) {
        self.counters.go_backs += 1;
        self.cursor = self.oldest;
        self.went_back_to = Some(self.oldest);
        self.extra = extra;
        self.timed = None;
        self.due = now + self.patience.timeout_after(self.tries);
    }

    /// The responder refused the oldest operation: its queue pair is in ERROR, and nothing after that one was
    /// executed. The cause may be an expired rkey, so the operation is resent once on the next queue pair.
    fn handle_refusal(&mut self, to: &mut impl Depart) {
        self.state = RequesterState::Refused;
        let kept = self.ring.operation_at_mut(self.oldest);
        if !kept.refused {
            kept.refused = true;
            return;
        }
        if kept.meta.primitive.is_some() {
            to.note_lost_operation(&kept.meta, LossCause::QueuePairError);
        }
        kept.make_idle();
    }

    /// Runs the timers: resends after a timeout, ends pauses, and finally gives up.
    pub fn run_timers(&mut self, now: u64, to: &mut impl Depart) {
        match self.state {
            RequesterState::Refused | RequesterState::GivenUp => return,
            RequesterState::Paused(until) if now < until => return,
            RequesterState::Paused(_) => {
                self.state = RequesterState::Ready;
                if self.outstanding() != 0 {
                    self.go_back_to_oldest(now, 0);
                }
            }
            RequesterState::Ready | RequesterState::Silent if self.outstanding() != 0 && now >= self.due => {
                self.tries += 1;
                if self.tries > self.timing.tries {
                    self.state = RequesterState::Silent;
                }
                if self.resent_by_device {
                    self.due = now + self.patience.timeout_after(self.tries);
                    return self.transmit_waiting(now, to);
                }
                self.counters.timeouts += 1;
                self.allowance.shrink_after_timeout();
                self.go_back_to_oldest(now, self.tries.min(3));
            }
            RequesterState::Ready | RequesterState::Silent => {}
        }
        self.transmit_waiting(now, to);
    }

    /// When [`Requester::run_timers`] is next needed; `None` while nothing is outstanding.
    pub fn next_deadline(&self) -> Option<u64> {
        match self.state {
            RequesterState::Paused(until) => Some(until),
            RequesterState::Refused | RequesterState::GivenUp => None,
            _ if self.outstanding() == 0 => None,
            _ => Some(self.due),
        }
    }

    /// Replaces the queue pair. Unacknowledged operations are resent on the new one, except FETCH_ADDs that
    /// may have been executed on the old one: they count as lost, cause [`LossCause::Unknown`]. Nothing is
    /// sent before the next [`Requester::transmit_waiting`], because the stores' rkeys may be about to change as
    /// well.
    pub fn replace_queue_pair(&mut self, now: u64, by: &Successor, to: &mut impl Depart) {
        self.counters.replaced += 1;
        let executed = |psn: Psn| psn.distance_from(self.psn_of_number(self.oldest));
        let known = |psn: Psn| (0..=self.outstanding() as i32).contains(&executed(psn));
        if by.same && by.transport == Transport::Rc {
            // Its PSNs continue: frames may be in flight.
            let upto =
                if known(by.expected) { self.oldest + executed(by.expected) as u64 } else { self.oldest };
            self.acknowledge(upto);
        } else {
            match by.before.filter(|psn| known(*psn)) {
                Some(psn) => self.acknowledge(self.oldest + executed(psn) as u64),
                // The oldest was refused, so everything before it was executed, and nothing from it on.
                None if self.state == RequesterState::Refused => {}
                None => self.forget_atomics(to),
            }
            let offset = (self.oldest & u64::from(Psn::MASK)) as u32;
            self.first_psn = by.expected.wrapping_sub(offset);
            self.sent = self.oldest;
            self.atomics_out = 0;
            self.atomic_limit = by.max_dest_rd_atomic.max(1);
            self.allowance = Allowance::new(self.timing.window);
            self.set_reference(self.reference);
            self.patience = Patience::new(self.timing.silence);
        }
        self.state = RequesterState::Ready;
        self.cursor = self.oldest;
        self.sent_before = self.sent;
        self.tries = 0;
        self.extra = 0;
        self.unasked = 0;
        self.timed = None;
        self.went_back_to = None;
        self.due = now + self.patience.timeout_after(0);
        if self.transport == Transport::Uc && by.transport == Transport::Rc {
            self.ring = ring_for_transport(by.transport, &self.timing, self.payload_len);
        }
        self.transport = by.transport;
    }

    /// Sends what an RC queue pair kept on the UC queue pair that replaces it.
    fn empty_ring(&mut self, to: &mut impl Depart) {
        while self.oldest != self.tail {
            to.emit_departure(self.ring.departure(self.oldest, self.psn_of_number(self.oldest), false));
            self.counters.sent += 1;
            self.oldest += 1;
        }
        self.skip_operations(0);
        self.ring = OperationRing::without_room();
    }

    /// Removes outstanding atomics from the ring. The others keep their order.
    fn forget_atomics(&mut self, to: &mut impl Depart) {
        let mut kept = self.sent;
        for number in (self.oldest..self.sent).rev() {
            let operation = self.ring.operation_at(number);
            if operation.atomic {
                if operation.meta.primitive.is_some() {
                    to.note_lost_operation(&operation.meta, LossCause::Unknown);
                }
            } else {
                kept -= 1;
                self.ring.swap_operations(kept, number);
            }
        }
        self.oldest = kept;
    }

    /// The number of the oldest operation not known to have been executed.
    pub fn oldest_number(&self) -> u64 {
        self.oldest
    }

    /// Reassigns sent operations of `store` to `other`, under their PSNs. All copies of a report go to one
    /// region, so waiting copies of a report are reassigned if another copy was sent. Returns the number
    /// after the last of them; `None` if there are none.
    pub fn rename_store(&mut self, store: usize, other: usize) -> Option<u64> {
        // Copies have consecutive numbers.
        let is_further_copy = |number: &u64| self.ring.operation_at(*number).meta.copy > 0;
        let end = self.sent + (self.sent..self.tail).take_while(is_further_copy).count() as u64;
        let mut behind = None;
        for number in self.oldest..end {
            let kept = self.ring.operation_at_mut(number);
            if kept.store as usize == store && kept.action != OperationEffect::IDLE {
                kept.store = other as u32;
                behind = Some(number + 1);
            }
        }
        behind
    }

    /// Removes a store: its operations become no-ops and count as lost. Zero-length WRITEs use up their PSNs.
    pub fn forget_store(&mut self, store: usize, to: &mut impl Depart) {
        for number in self.oldest..self.tail {
            let kept = self.ring.operation_at_mut(number);
            if kept.store as usize == store && kept.meta.primitive.is_some() {
                to.note_lost_operation(&kept.meta, LossCause::StoreRemoved);
                kept.atomic &= number < self.sent;
                kept.make_idle();
            }
        }
    }

    /// Ends the queue pair: unacknowledged operations are lost.
    pub fn end_queue_pair(&mut self, to: &mut impl Depart) {
        for number in self.oldest..self.tail {
            let kept = self.ring.operation_at(number);
            let cause = match kept.atomic && number < self.sent {
                true => LossCause::Unknown,
                false => LossCause::QueuePairDown,
            };
            if kept.meta.primitive.is_some() {
                to.note_lost_operation(&kept.meta, cause);
            }
        }
        self.skip_operations(0);
        self.atomics_out = 0;
        self.state = RequesterState::Refused;
    }
}

fn ring_for_transport(transport: Transport, timing: &Timing, payload_len: usize) -> OperationRing {
    match transport {
        Transport::Rc => OperationRing::new(timing.queue, payload_len),
        Transport::Uc => OperationRing::without_room(),
    }
}

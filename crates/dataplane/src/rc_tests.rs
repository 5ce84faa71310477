//! RC queue pairs against a model of the responder (InfiniBand specification 9.7, as ROCE-BEHAVIOUR
//! describes it), over a link that loses, repeats and reorders in both directions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dta_proto::wire::roce::Psn;
use proptest::prelude::*;

use super::counters::LossCause;
use super::losses::FrameMeta;
use super::requester::{
    Depart, Departure, OperationEffect, Requester, RequesterCounters, ResponderAnswer, Successor, Timing,
    Verb,
};
use dta_proto::program::{Primitive, Transport};

/// Just before the PSNs wrap.
const START: Psn = Psn::new(0xff_ffc0);
/// Where former queue pairs started.
const FORMER: [Psn; 2] = [Psn::new(0x12_3456), Psn::new(0x7f_fff8)];
const MS: u64 = 1_000_000;
/// The simulation's step, in nanoseconds.
const STEP: u64 = MS / 10;
const ATOMICS: u32 = 16;

fn timing() -> Timing {
    Timing { window: 128, queue: 1 << 14, silence: 10 * MS, tries: 16 }
}

/// A frame on its way: what it does, and the number of its operation.
#[derive(Clone, Copy, Debug)]
struct Frame {
    psn: Psn,
    ack_request: bool,
    action: OperationEffect,
    operation: u32,
}

/// What leaves a requester, and what it counts as lost.
#[derive(Default)]
struct Wire {
    frames: Vec<Frame>,
    lost: BTreeMap<u32, LossCause>,
}

impl Wire {
    fn take(&mut self) -> Vec<Frame> {
        std::mem::take(&mut self.frames)
    }

    fn lost(&self, cause: LossCause) -> Vec<u32> {
        self.lost.iter().filter(|(_, c)| **c == cause).map(|(n, _)| *n).collect()
    }
}

impl Depart for Wire {
    fn emit_departure(&mut self, d: Departure<'_>) {
        let operation = d.meta.group;
        if d.action != OperationEffect::IDLE {
            assert_eq!((d.store, d.offset, d.payload), place_of(operation), "operation {operation}");
        }
        self.frames.push(Frame { psn: d.psn, ack_request: d.ack_request, action: d.action, operation });
    }

    fn note_lost_operation(&mut self, meta: &FrameMeta, cause: LossCause) {
        assert_eq!(self.lost.insert(meta.group, cause), None, "operation {} is lost twice", meta.group);
    }
}

/// Store, offset and payload of an operation: each has its own.
fn place_of(operation: u32) -> (usize, u64, &'static [u8]) {
    const PAYLOAD: [u8; 128] = {
        let mut bytes = [0; 128];
        let mut n = 0;
        while n < 128 {
            bytes[n] = n as u8;
            n += 1;
        }
        bytes
    };
    (operation as usize % 3, u64::from(operation) * 8, &PAYLOAD[..operation as usize % 129])
}

/// The responder: executes only in PSN order; sends one NAK per gap, then nothing until the expected PSN comes.
struct Responder {
    expected: Psn,
    nak_sent: bool,
    error: bool,
    gone: bool,
    /// Acknowledges every repeated WRITE, as soft-RoCE does, or only those that ask for it.
    acknowledges_repeats: bool,
    executed: Vec<u32>,
    /// PSNs of the newest atomics, whose answers are kept.
    resources: VecDeque<Psn>,
    /// Operations refused with an error NAK.
    poison: BTreeSet<u32>,
    /// Operations that find no receive posted, once each.
    not_ready: BTreeSet<u32>,
}

impl Responder {
    fn new(expected: Psn) -> Self {
        Responder {
            expected,
            nak_sent: false,
            error: false,
            gone: false,
            acknowledges_repeats: true,
            executed: Vec::new(),
            resources: VecDeque::new(),
            poison: BTreeSet::new(),
            not_ready: BTreeSet::new(),
        }
    }

    fn take(&mut self, frame: &Frame) -> Option<(Psn, ResponderAnswer)> {
        if self.error || self.gone {
            return None;
        }
        let atomic = frame.action.verb == Verb::FetchAdd;
        let ahead = frame.psn.distance_from(self.expected);
        if ahead > 0 {
            if self.nak_sent {
                return None;
            }
            self.nak_sent = true;
            return Some((self.expected, ResponderAnswer::NakSequence));
        }
        if ahead < 0 {
            // A repeat: the last PSN executed, or the atomic's first answer again if it is still kept.
            if atomic {
                return self.resources.contains(&frame.psn).then_some((frame.psn, ResponderAnswer::Ack));
            }
            let answers = frame.ack_request || self.acknowledges_repeats;
            return answers.then_some((self.expected.wrapping_sub(1), ResponderAnswer::Ack));
        }
        self.nak_sent = false;
        if frame.action != OperationEffect::IDLE {
            if self.poison.contains(&frame.operation) {
                self.error = true;
                return Some((frame.psn, ResponderAnswer::NakError));
            }
            if self.not_ready.remove(&frame.operation) {
                return Some((frame.psn, ResponderAnswer::ReceiverNotReady(MS)));
            }
            self.executed.push(frame.operation);
        }
        if atomic {
            self.resources.push_back(frame.psn);
            if self.resources.len() > ATOMICS as usize {
                self.resources.pop_front();
            }
        }
        self.expected = self.expected.next();
        (atomic || frame.ack_request).then_some((frame.psn, ResponderAnswer::Ack))
    }
}

/// One direction of a link. The fate of the n-th packet follows a repeating pattern: 1 = dropped (or
/// damaged), 2 = twice, 3 to 18 = overtaken by 1 to 16 later ones, or 20 ms late. The others arrive after
/// `delay`.
struct Direction<T> {
    pattern: Vec<u8>,
    seen: usize,
    delay: u64,
    held: Vec<(u8, u64, T)>,
    flying: VecDeque<(u64, T)>,
}

impl<T: Copy> Direction<T> {
    fn new(pattern: Vec<u8>, delay: u64) -> Self {
        Direction { pattern, seen: 0, delay, held: Vec::new(), flying: VecDeque::new() }
    }

    fn leave(&mut self, now: u64, packet: T) {
        let fate = self.pattern[self.seen % self.pattern.len()];
        self.seen += 1;
        for _ in 0..match fate {
            1 => 0,
            2 => 2,
            3..=18 => {
                self.held.push((fate - 2, now, packet));
                return;
            }
            _ => 1,
        } {
            self.flying.push_back((now + self.delay, packet));
        }
        for (places, ..) in &mut self.held {
            *places -= 1;
        }
        self.release(now, |places, _| places == 0);
    }

    fn release(&mut self, now: u64, leaves: impl Fn(u8, u64) -> bool) {
        for (_, _, packet) in self.held.extract_if(.., |(places, since, _)| leaves(*places, *since)) {
            self.flying.push_back((now + self.delay, packet));
        }
    }

    fn arrive(&mut self, now: u64) -> Vec<T> {
        self.release(now, |_, since| now >= since + 20 * MS);
        let mut arrived = Vec::new();
        while self.flying.front().is_some_and(|(at, _)| *at <= now) {
            arrived.extend(self.flying.pop_front().map(|(_, packet)| packet));
        }
        arrived
    }
}

struct World {
    requester: Requester,
    /// What was counted before the test began.
    before: RequesterCounters,
    /// The PSN of the test's first operation.
    start: Psn,
    wire: Wire,
    responder: Responder,
    there: Direction<Frame>,
    back: Direction<(Psn, ResponderAnswer)>,
    now: u64,
    posted: u32,
    atomics: bool,
}

fn requester(start: Psn, atomics: u32, timing: Timing) -> Requester {
    let mut requester = Requester::new(Transport::Rc, start, atomics, timing);
    requester.widen_payloads(128);
    requester
}

impl World {
    fn new(atomics: bool, there: Vec<u8>, back: Vec<u8>) -> World {
        World {
            requester: requester(START, ATOMICS, timing()),
            before: RequesterCounters::default(),
            start: START,
            wire: Wire::default(),
            responder: Responder::new(START),
            there: Direction::new(there, 0),
            back: Direction::new(back, 0),
            now: 0,
            posted: 0,
            atomics,
        }
    }

    fn good(atomics: bool) -> World {
        World::new(atomics, vec![0], vec![0])
    }

    /// A requester on its first queue pair; and one on its third, after two broke with operations on their way.
    fn lives(atomics: bool, there: &[u8], back: &[u8]) -> [World; 2] {
        let mut anew = World::good(atomics);
        anew.requester = requester(FORMER[0], ATOMICS, timing());
        anew.responder = Responder::new(FORMER[0]);
        for (broken, next) in [(5, FORMER[1]), (15, START)] {
            anew.responder.poison.insert(broken);
            anew.post(10);
            assert!(anew.requester.is_down());
            anew.responder.poison.clear();
            anew.replace(next, None);
            anew.finish();
        }
        anew.check_all();
        assert_eq!(anew.requester.counters.nak_error, 2);
        // What follows counts from here.
        (anew.posted, anew.before) = (0, anew.requester.counters);
        anew.responder.executed.clear();
        (anew.there, anew.back) = (Direction::new(there.to_vec(), 0), Direction::new(back.to_vec(), 0));
        anew.start = anew.requester.next_psn();
        [World::new(atomics, there.to_vec(), back.to_vec()), anew]
    }

    /// What was counted since the test began.
    fn counters(&self) -> RequesterCounters {
        let (now, before) = (self.requester.counters, self.before);
        RequesterCounters {
            sent: now.sent - before.sent,
            retransmitted: now.retransmitted - before.retransmitted,
            acknowledged: now.acknowledged - before.acknowledged,
            answers: now.answers - before.answers,
            stale_answers: now.stale_answers - before.stale_answers,
            nak_sequence: now.nak_sequence - before.nak_sequence,
            receiver_not_ready: now.receiver_not_ready - before.receiver_not_ready,
            nak_error: now.nak_error - before.nak_error,
            go_backs: now.go_backs - before.go_backs,
            timeouts: now.timeouts - before.timeouts,
            replaced: now.replaced - before.replaced,
        }
    }

    /// Posts `n` operations in one go.
    fn post(&mut self, n: u32) {
        for _ in 0..n {
            let operation = self.posted;
            self.posted += 1;
            let (store, offset, payload) = place_of(operation);
            let action = if self.atomics { OperationEffect::fetch_add(1) } else { OperationEffect::WRITE };
            self.requester.post_operation(
                self.now,
                action,
                (store, offset),
                payload,
                &meta(operation),
                &mut self.wire,
            );
        }
        self.requester.transmit_waiting(self.now, &mut self.wire);
        self.carry();
    }

    /// Transfers what was sent until nothing moves at this time.
    fn carry(&mut self) {
        loop {
            if self.atomics && self.wire.lost.is_empty() {
                assert!(self.requester.outstanding() <= ATOMICS);
            }
            for frame in self.wire.take() {
                self.there.leave(self.now, frame);
            }
            for frame in self.there.arrive(self.now) {
                if let Some(answer) = self.responder.take(&frame) {
                    self.back.leave(self.now, answer);
                }
            }
            for (psn, answer) in self.back.arrive(self.now) {
                self.requester.handle_answer(self.now, psn, answer, &mut self.wire);
            }
            self.requester.transmit_waiting(self.now, &mut self.wire);
            if self.wire.frames.is_empty() {
                break;
            }
        }
    }

    fn wait(&mut self, time: u64) {
        let until = self.now + time;
        while self.now < until {
            self.now += STEP;
            self.requester.run_timers(self.now, &mut self.wire);
            self.carry();
        }
    }

    /// Waits until everything is acknowledged, and says how long that took.
    fn finish(&mut self) -> u64 {
        let start = self.now;
        while self.requester.outstanding() != 0 || self.requester.waiting_operations() != 0 {
            assert!(self.now < start + 600_000 * MS, "no end: {:?}", self.requester.counters);
            self.wait(MS);
        }
        self.now - start
    }

    /// A new queue pair that expects `expected`, and what is known about the old one.
    fn replace(&mut self, expected: Psn, before: Option<Psn>) {
        let executed = std::mem::take(&mut self.responder.executed);
        let poison = std::mem::take(&mut self.responder.poison);
        // Another number: packets to and from the old one are ignored.
        (self.there.flying, self.back.flying) = Default::default();
        (self.there.held, self.back.held) = Default::default();
        self.responder = Responder { executed, poison, ..Responder::new(expected) };
        let by = Successor {
            transport: Transport::Rc,
            expected,
            max_dest_rd_atomic: ATOMICS,
            same: false,
            before,
        };
        self.requester.replace_queue_pair(self.now, &by, &mut self.wire);
        self.requester.transmit_waiting(self.now, &mut self.wire);
        self.carry();
    }

    /// Every operation was executed exactly once, in order, and none is counted lost.
    fn check_all(&self) {
        assert_eq!(self.responder.executed, (0..self.posted).collect::<Vec<_>>());
        assert!(self.wire.lost.is_empty(), "{:?}", self.wire.lost);
        assert_eq!(self.counters().acknowledged, u64::from(self.posted));
    }
}

fn meta(operation: u32) -> FrameMeta {
    FrameMeta {
        primitive: Some(Primitive::KeyWrite),
        group: operation,
        reports: 1,
        copies: 1,
        ..FrameMeta::IDLE
    }
}

/// `n` packets that arrive, then `fates`, then many more that arrive.
fn after(n: usize, fates: &[u8]) -> Vec<u8> {
    [vec![0; n], fates.to_vec(), vec![0; 10_000]].concat()
}

#[test]
fn without_faults_every_frame_leaves_once() {
    for atomics in [false, true] {
        for mut w in World::lives(atomics, &[0], &[0]) {
            w.post(1000);
            w.post(1);
            assert_eq!((w.requester.outstanding(), w.requester.waiting_operations()), (0, 0));
            w.wait(100 * MS);
            w.check_all();
            let c = w.counters();
            assert_eq!((c.sent, c.retransmitted, c.go_backs, c.stale_answers), (1001, 0, 0, 0));
            // Two in a window, the tail of each burst, and where the profile says so.
            assert!(atomics || c.answers < 40, "{}", c.answers);
        }
    }
}

#[test]
fn a_lost_frame_leaves_again_and_costs_nothing() {
    for atomics in [false, true] {
        for mut w in World::lives(atomics, &after(3, &[1]), &[0]) {
            w.post(10);
            w.check_all();
            let c = w.counters();
            assert_eq!((c.nak_sequence, c.go_backs, c.timeouts), (1, 1, 0));
            // Seven from the lost one on, and that one in two frames.
            assert_eq!(c.retransmitted, 8);
        }
    }
}

#[test]
fn a_lost_nak_is_made_up_for_by_time() {
    // The NAK and further answers are lost.
    for lost in 1..6 {
        let lives = World::lives(false, &after(3, &[1]), &[vec![1; lost], vec![0; 1000]].concat());
        for (life, mut w) in lives.into_iter().enumerate() {
            w.post(10);
            // It waits as long as no answer has come; later, as round trips were.
            if life == 0 {
                w.wait(9 * MS);
                assert_eq!(w.counters().timeouts, 0);
            }
            w.finish();
            w.check_all();
            assert!(w.counters().timeouts >= 1);
        }
    }
}

#[test]
fn a_repeated_nak_is_obeyed_once() {
    for mut w in World::lives(false, &after(3, &[1]), &after(0, &[2])) {
        // Both NAKs arrive before any answer to what leaves again.
        w.back.delay = MS;
        w.post(10);
        w.finish();
        w.check_all();
        let c = w.counters();
        assert_eq!((c.nak_sequence, c.go_backs - c.timeouts), (2, 1));
    }
}

#[test]
fn a_late_nak_for_what_was_executed_since_is_stale() {
    for mut w in World::lives(false, &after(3, &[1]), &[0]) {
        w.post(10);
        w.finish();
        w.post(1);
        w.back.flying.push_back((w.now, (w.start.wrapping_add(3), ResponderAnswer::NakSequence)));
        w.back.flying.push_back((w.now, (w.start.wrapping_add(2), ResponderAnswer::Ack)));
        // And of a PSN that was never sent, as after a restart.
        for answer in [
            ResponderAnswer::Ack,
            ResponderAnswer::NakSequence,
            ResponderAnswer::NakError,
            ResponderAnswer::ReceiverNotReady(MS),
        ] {
            w.back.flying.push_back((w.now, (w.start.wrapping_add(500), answer)));
        }
        w.post(5);
        w.check_all();
        assert_eq!(w.counters().go_backs, 1);
        assert!(!w.requester.is_down());
    }
}

#[test]
fn a_straggler_does_no_harm() {
    // Operation 3 arrives again when it was executed long since, and so does its answer.
    for atomics in [false, true] {
        for mut w in World::lives(atomics, &[0], &[0]) {
            w.post(10);
            let straggler = Frame {
                psn: w.start.wrapping_add(3),
                ack_request: true,
                action: if atomics { OperationEffect::fetch_add(1) } else { OperationEffect::WRITE },
                operation: 3,
            };
            for n in 0..40 {
                w.there.leave(w.now, straggler);
                w.back.leave(w.now, (w.start.wrapping_add(n), ResponderAnswer::Ack));
                w.post(2);
            }
            w.finish();
            w.check_all();
        }
    }
}

#[test]
fn late_answers_of_queue_pairs_that_ended_change_nothing() {
    for atomics in [false, true] {
        let [_, mut w] = World::lives(atomics, &[0], &[1]);
        w.post(10);
        let known = |w: &World| (w.requester.outstanding(), w.requester.is_down(), w.requester.next_psn());
        let (is, counters) = (known(&w), w.counters());
        assert_eq!(is.0, 10);
        let mut late = 0;
        for psn in FORMER.into_iter().flat_map(|former| (0..20).map(move |n| former.wrapping_add(n))) {
            for answer in [
                ResponderAnswer::Ack,
                ResponderAnswer::NakSequence,
                ResponderAnswer::NakError,
                ResponderAnswer::ReceiverNotReady(MS),
            ] {
                w.requester.handle_answer(w.now, psn, answer, &mut w.wire);
                late += 1;
            }
        }
        assert_eq!((known(&w), w.counters().stale_answers), (is, counters.stale_answers + late));
        w.back.pattern = vec![0];
        w.finish();
        w.check_all();
    }
}

#[test]
fn receiver_not_ready_waits_and_sends_again() {
    for mut w in World::lives(false, &[0], &[0]) {
        w.responder.not_ready.extend([5, 9]);
        w.post(10);
        w.post(3);
        assert_eq!(w.responder.executed.len(), 5);
        let counters = w.requester.counters;
        w.wait(MS - STEP);
        assert_eq!(w.requester.counters.retransmitted, counters.retransmitted, "nothing leaves in a pause");
        w.finish();
        w.check_all();
        assert_eq!(w.counters().receiver_not_ready, 2);
    }
}

#[test]
fn the_window_shrinks_with_losses_and_grows_again() {
    let mut w = World::new(false, [vec![0; 19], vec![1]].concat(), vec![0]);
    w.post(4000);
    w.finish();
    let out = |w: &mut World| {
        w.there.delay = 5 * MS;
        w.post(4000);
        let out = w.requester.outstanding();
        w.there.delay = 0;
        out
    };
    w.there.pattern = vec![0];
    let few = out(&mut w);
    assert!(few < 64, "{few}");
    w.finish();
    assert_eq!(out(&mut w), 128);
    w.finish();
    w.check_all();
}

#[test]
fn in_reference_mode_first_frames_ask_by_psn_alone() {
    let mut w = World::new(false, vec![0], vec![0]);
    w.requester.set_reference(true);
    let mut first = START;
    for n in [100, 30, 7, 200] {
        for _ in 0..n {
            w.requester.post_operation(
                w.now,
                OperationEffect::WRITE,
                (0, u64::from(w.posted) * 8),
                &[],
                &meta(w.posted),
                &mut w.wire,
            );
            w.posted += 3 * 43; // store 0, no payload
            for frame in &w.wire.frames {
                if frame.psn.distance_from(first) >= 0 {
                    assert_eq!(frame.psn, first);
                    assert_eq!(frame.ack_request, frame.psn.get() & 63 == 63, "{first:?}");
                    first = first.next();
                }
            }
            w.carry();
        }
        w.wait(50 * MS);
        assert_eq!((w.requester.outstanding(), w.requester.waiting_operations()), (0, 0));
    }
    // The tail of a burst is acknowledged when it is sent again.
    assert!(w.requester.counters.timeouts != 0);
    assert_eq!(w.requester.counters.acknowledged, 337);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut w = World::new(true, vec![1], vec![0]);
    w.requester = requester(START, 4, Timing { queue: 70, window: 64, ..timing() });
    w.post(80);
    assert_eq!((w.requester.outstanding(), w.requester.waiting_operations()), (4, 66));
    assert_eq!(w.wire.lost(LossCause::QueueFull), (70..80).collect::<Vec<_>>());
    w.there.pattern = vec![0];
    w.finish();
    assert_eq!(w.responder.executed, (0..70).collect::<Vec<_>>());
}

#[test]
fn a_silent_queue_pair_is_given_up_and_taken_back_when_it_answers() {
    let mut w = World::good(false);
    w.responder.gone = true;
    w.post(10);
    while !w.requester.is_down() {
        w.wait(MS);
    }
    let c = w.requester.counters;
    assert_eq!(c.timeouts, 17);
    assert!((3_000 * MS..15_000 * MS).contains(&w.now), "{} ms", w.now / MS);
    // What comes meanwhile waits.
    w.post(100);
    w.wait(3000 * MS);
    assert!(w.requester.is_down() && w.wire.lost.is_empty());
    assert!(w.requester.next_deadline().is_some());
    w.responder.gone = false;
    w.finish();
    assert!(!w.requester.is_down());
    w.check_all();
}

#[test]
fn what_was_refused_is_sent_once_more_on_the_next_queue_pair() {
    for atomics in [false, true] {
        for mut w in World::lives(atomics, &[0], &[0]) {
            w.responder.poison.insert(5);
            w.post(20);
            assert!(w.requester.is_down());
            assert_eq!(w.responder.executed, [0, 1, 2, 3, 4]);
            w.post(10);
            w.wait(100 * MS);
            assert!(w.wire.lost.is_empty());
            // Its key is good by now.
            w.responder.poison.clear();
            w.replace(Psn::new(77), None);
            w.finish();
            w.check_all();
        }
    }
    // Refused again, it is lost, and nothing but it.
    let mut w = World::good(true);
    w.responder.poison.insert(5);
    w.post(20);
    w.replace(Psn::new(77), None);
    assert!(w.requester.is_down());
    assert_eq!(w.wire.lost(LossCause::QueuePairError), [5]);
    w.replace(Psn::new(99), None);
    w.finish();
    assert_eq!(w.responder.executed, (0..20).filter(|n| *n != 5).collect::<Vec<_>>());
    assert_eq!(w.wire.lost.len(), 1);
}

#[test]
fn of_a_queue_pair_that_is_gone_writes_leave_again_and_atomics_where_that_is_safe() {
    // Executed up to operation 6, and no answer arrived.
    let world = |atomics| {
        let mut w = World::new(atomics, vec![0], vec![1]);
        w.responder.poison.insert(7);
        w.post(12);
        w.responder.poison.clear();
        assert_eq!(w.responder.executed.len(), 7);
        w.post(10);
        w.back.pattern = vec![0];
        w
    };
    let mut w = world(false);
    w.replace(Psn::new(3), None);
    w.finish();
    assert_eq!(w.responder.executed, (0..7).chain(0..22).collect::<Vec<_>>());
    assert!(w.wire.lost.is_empty());

    let mut w = world(true);
    w.replace(Psn::new(3), Some(START.wrapping_add(7)));
    w.finish();
    w.check_all();

    // Nobody knows: sixteen had left, and the others follow.
    let mut w = world(true);
    w.replace(Psn::new(3), None);
    w.finish();
    assert_eq!(w.wire.lost(LossCause::Unknown), (0..16).collect::<Vec<_>>());
    assert_eq!(w.responder.executed, (0..7).chain(16..22).collect::<Vec<_>>());

    // Claims about another queue pair are not believed.
    let mut w = world(true);
    w.replace(Psn::new(3), Some(Psn::new(0x12_3456)));
    assert_eq!(w.wire.lost(LossCause::Unknown).len(), 16);
}

#[test]
fn what_a_device_did_not_take_before_it_gave_up_waits_for_the_next_queue_pair() {
    // Sixteen of 22 atomics had left, the device took three of them.
    let mut w = World::new(true, vec![1], vec![0]);
    w.post(22);
    w.requester.handle_answer(w.now, START.wrapping_add(3), ResponderAnswer::NotPosted, &mut w.wire);
    let out = |w: &World| (w.requester.outstanding(), w.requester.waiting_operations());
    assert_eq!(out(&w), (3, 19));
    // Nothing leaves before it is replaced, and no answer of it counts.
    w.post(5);
    w.wait(10_000 * MS);
    assert_eq!((out(&w), w.requester.is_down(), w.requester.next_deadline()), ((3, 24), true, None));
    w.requester.handle_answer(w.now, START, ResponderAnswer::GivenUp, &mut w.wire);
    assert_eq!((w.requester.counters.answers, w.requester.counters.stale_answers), (0, 0));
    w.requester.handle_answer(w.now, START, ResponderAnswer::Ack, &mut w.wire);
    assert_eq!((w.requester.counters.answers, w.requester.counters.stale_answers), (0, 1));
    w.there.pattern = vec![0];
    w.replace(Psn::new(3), None);
    w.finish();
    assert_eq!(w.wire.lost(LossCause::Unknown), [0, 1, 2]);
    assert_eq!(w.responder.executed, (3..27).collect::<Vec<_>>());

    // What it did not take a second time, it may have sent the first time.
    let mut w = World::new(true, vec![1], vec![0]);
    w.post(10);
    let by = Successor {
        transport: Transport::Rc,
        expected: START,
        max_dest_rd_atomic: ATOMICS,
        same: true,
        before: None,
    };
    w.requester.replace_queue_pair(w.now, &by, &mut w.wire);
    w.post(3);
    w.requester.handle_answer(w.now, START, ResponderAnswer::NotPosted, &mut w.wire);
    assert_eq!(out(&w), (10, 3));
}

#[test]
fn the_same_queue_pair_under_another_generation_goes_on() {
    for atomics in [false, true] {
        let mut w = World::new(atomics, vec![0], vec![1]);
        w.post(10);
        let by = Successor {
            transport: Transport::Rc,
            expected: w.responder.expected,
            max_dest_rd_atomic: ATOMICS,
            same: true,
            before: None,
        };
        w.requester.replace_queue_pair(w.now, &by, &mut w.wire);
        w.requester.transmit_waiting(w.now, &mut w.wire);
        assert_eq!(w.requester.outstanding(), 0);
        w.back.pattern = vec![0];
        w.post(10);
        w.finish();
        w.check_all();
    }
}

#[test]
fn on_uc_what_waits_leaves_at_once() {
    let mut w = World::new(false, vec![1], vec![0]);
    w.post(300);
    let by = Successor {
        transport: Transport::Uc,
        expected: Psn::new(0xff_fffe),
        max_dest_rd_atomic: 0,
        same: false,
        before: None,
    };
    w.requester.replace_queue_pair(w.now, &by, &mut w.wire);
    w.requester.transmit_waiting(w.now, &mut w.wire);
    let frames = w.wire.take();
    assert_eq!(frames.iter().map(|f| f.operation).collect::<Vec<_>>(), (0..300).collect::<Vec<_>>());
    assert_eq!((frames[0].psn, frames[2].psn), (Psn::new(0xff_fffe), Psn::new(0)));
    assert!(frames.iter().all(|f| !f.ack_request));
    assert_eq!(w.requester.next_psn(), Psn::new(298));
    assert_eq!((w.requester.outstanding(), w.requester.next_deadline()), (0, None));
    let by = Successor { transport: Transport::Rc, expected: START, ..by };
    w.requester.replace_queue_pair(w.now, &by, &mut w.wire);
    w.requester.transmit_waiting(w.now, &mut w.wire);
    w.there.pattern = vec![0];
    w.responder.executed = (0..300).collect();
    w.post(10);
    w.finish();
    assert_eq!(w.responder.executed, (0..310).collect::<Vec<_>>());
}

#[test]
fn operations_of_a_store_that_goes_away_do_nothing_any_more() {
    for atomics in [false, true] {
        let mut w = World::new(atomics, vec![1], vec![0]);
        w.post(30);
        w.requester.forget_store(1, &mut w.wire);
        let gone: Vec<u32> = (0..30).filter(|n| n % 3 == 1).collect();
        assert_eq!(w.wire.lost(LossCause::StoreRemoved), gone);
        w.there.pattern = vec![0];
        w.finish();
        assert_eq!(w.responder.executed, (0..30).filter(|n| n % 3 != 1).collect::<Vec<_>>());
        w.wire.lost.clear();
        w.post(100);
        w.finish();
        assert_eq!(w.responder.executed.len(), 120);
    }
}

#[test]
fn what_is_out_at_the_end_is_lost_or_unknown() {
    let mut w = World::new(true, vec![1], vec![0]);
    w.post(20);
    w.requester.end_queue_pair(&mut w.wire);
    assert_eq!(w.wire.lost(LossCause::Unknown), (0..16).collect::<Vec<_>>());
    assert_eq!(w.wire.lost(LossCause::QueuePairDown), (16..20).collect::<Vec<_>>());
    assert_eq!(
        (w.requester.outstanding(), w.requester.waiting_operations(), w.requester.next_deadline()),
        (0, 0, None)
    );
}

/// What happens to packets: how many of twenty are dropped, sent twice, and reordered.
fn fates((drop, dup, reorder): (u32, u32, u32)) -> impl Strategy<Value = Vec<u8>> {
    let options = prop_oneof![
        20 - drop - dup - reorder => Just(0u8),
        drop => Just(1),
        dup => Just(2),
        reorder => 3u8..=18,
    ];
    prop::collection::vec(options, 50..400)
}

/// 10 % each of drops, repeats, reorderings and damage.
const TENTHS: (u32, u32, u32) = (4, 2, 2);

proptest! {
    /// Whatever is lost, repeated, reordered and damaged, in both directions and without an end:
    /// everything is executed exactly once, in order, and known to be.
    #[test]
    fn every_operation_is_executed_exactly_once(
        atomics: bool,
        acknowledges_repeats: bool,
        reference: bool,
        there in fates(TENTHS),
        back in fates(TENTHS),
        delays in (0..20u64, 0..20u64),
        not_ready in prop::collection::btree_set(0u32..500, 0..5),
        bursts in prop::collection::vec((1u32..200, 0u64..30), 1..12),
    ) {
        let mut w = World::new(atomics, there, back);
        w.requester.set_reference(reference);
        (w.there.delay, w.back.delay) = (delays.0 * STEP, delays.1 * STEP);
        w.responder.acknowledges_repeats = acknowledges_repeats;
        w.responder.not_ready = not_ready;
        for (n, wait) in bursts {
            w.post(n);
            w.wait(wait * MS);
        }
        w.finish();
        w.check_all();
        prop_assert_eq!(w.requester.counters.sent, u64::from(w.posted));
    }

    /// A link that is slow, slower than the timeout, is not taken for a dead one.
    #[test]
    fn a_slow_link_costs_repeats_and_nothing_else(
        atomics: bool,
        steps in prop::collection::vec((0u32..30, 0u64..60, 0u64..60), 1..40),
    ) {
        let mut w = World::good(atomics);
        for (n, there, back) in steps {
            (w.there.delay, w.back.delay) = (there * MS, back * MS);
            w.post(n);
            w.wait(5 * MS);
        }
        w.finish();
        prop_assert!(!w.requester.is_down());
        w.check_all();
    }

    /// Queue pairs that go to ERROR, or vanish: WRITEs are all executed, and in the end in order; a FETCH_ADD
    /// is executed once, or at most once if it is counted as unknown. Where the old queue pair's PSN is known,
    /// nothing is unknown.
    #[test]
    fn queue_pairs_that_end_lose_no_write_and_repeat_no_atomic(
        atomics: bool,
        psn_known: bool,
        there in fates(TENTHS),
        back in fates(TENTHS),
        lives in prop::collection::vec(
            (prop::collection::vec((1u32..100, 0u64..10), 1..4), any::<bool>(), any::<u32>()),
            1..5,
        ),
    ) {
        let mut w = World::new(atomics, there, back);
        for (bursts, vanishes, psn) in lives {
            for (n, wait) in bursts {
                w.post(n);
                w.wait(wait * MS);
            }
            if vanishes {
                w.responder.gone = true;
            } else {
                w.responder.poison.insert(w.requester.counters.acknowledged as u32 + 20);
            }
            w.post(50);
            w.wait(50 * MS);
            w.responder.poison.clear();
            let before = psn_known.then_some(w.responder.expected);
            w.replace(Psn::new(psn), before);
        }
        w.finish();
        let may_be_unknown = atomics && !psn_known;
        let lost = &w.wire.lost;
        prop_assert!(lost.values().all(|c| may_be_unknown && *c == LossCause::Unknown), "{lost:?}");
        let executed = &w.responder.executed;
        if atomics {
            let once: BTreeSet<u32> = executed.iter().copied().collect();
            prop_assert_eq!(once.len(), executed.len(), "executed twice");
            for operation in 0..w.posted {
                prop_assert!(once.contains(&operation) || w.wire.lost.contains_key(&operation), "{operation}");
            }
        } else {
            // The last time that each was executed.
            let mut last: Vec<usize> = vec![usize::MAX; w.posted as usize];
            for (at, operation) in executed.iter().enumerate() {
                last[*operation as usize] = at;
            }
            prop_assert!(last.is_sorted() && !last.contains(&usize::MAX), "{last:?}");
        }
    }
}

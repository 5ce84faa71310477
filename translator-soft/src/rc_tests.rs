//! Recovery of RC queue pairs, against a model of the responder (InfiniBand specification 9.7, as ROCE-BEHAVIOUR tells it).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dta_proto::wire::roce::Psn;
use proptest::prelude::*;

use super::counters::LossCause;
use super::losses::FrameMeta;
use super::requester::{Action, Answer, Depart, Departure, Requester, Timing, Verb};
use dta_proto::program::{Primitive, Transport};

const START: u32 = 0xff_ffc0;
const MS: u64 = 1_000_000;

fn timing() -> Timing {
    Timing { window: 128, queue: 1 << 16, silence: 10 * MS, probes: 6 }
}

/// A frame on its way: PSN, whether an answer is asked for, what it does, and the group of its reports.
#[derive(Clone, Copy, Debug)]
struct Frame {
    psn: Psn,
    ack_request: bool,
    action: Action,
    group: u32,
}

/// What leaves a requester, and what it counts lost.
#[derive(Default)]
struct Wire {
    frames: Vec<Frame>,
    lost: BTreeMap<u32, LossCause>,
}

impl Depart for Wire {
    fn depart(&mut self, d: Departure<'_>) {
        self.frames.push(Frame {
            psn: d.psn,
            ack_request: d.ack_request,
            action: d.action,
            group: d.meta.group,
        });
    }

    fn lost(&mut self, meta: &FrameMeta, cause: LossCause) {
        assert_eq!(self.lost.insert(meta.group, cause), None, "operation {} is lost twice", meta.group);
    }
}

/// The responder: executes in PSN order alone, one NAK per gap, then silence until the expected PSN comes.
struct Responder {
    expected: Psn,
    nak_sent: bool,
    error: bool,
    executed: Vec<u32>,
    /// Operations refused with an error NAK.
    poison: Option<u32>,
    /// Operations that find no receive posted, once each.
    not_ready: BTreeSet<u32>,
}

impl Responder {
    fn new() -> Self {
        Responder {
            expected: Psn::new(START),
            nak_sent: false,
            error: false,
            executed: Vec::new(),
            poison: None,
            not_ready: BTreeSet::new(),
        }
    }

    fn take(&mut self, frame: &Frame) -> Option<(Psn, Answer)> {
        if self.error {
            return None;
        }
        let ahead = frame.psn.since(self.expected);
        if ahead > 0 {
            if self.nak_sent {
                return None;
            }
            self.nak_sent = true;
            return Some((self.expected, Answer::NakSequence));
        }
        let atomic = frame.action.verb == Verb::FetchAdd;
        if ahead < 0 {
            // A repeat: the last PSN executed, or the atomic's first answer again.
            if atomic {
                return Some((frame.psn, Answer::Ack));
            }
            return frame.ack_request.then_some((self.expected.minus(1), Answer::Ack));
        }
        if frame.action != Action::IDLE {
            if self.poison == Some(frame.group) {
                self.error = true;
                return Some((frame.psn, Answer::NakError));
            }
            if self.not_ready.remove(&frame.group) {
                return Some((frame.psn, Answer::ReceiverNotReady(MS)));
            }
            self.executed.push(frame.group);
        }
        self.expected = self.expected.next();
        self.nak_sent = false;
        (atomic || frame.ack_request).then_some((frame.psn, Answer::Ack))
    }
}

/// What happens to frames and answers: `true` = dropped, by a repeating pattern.
struct Faults {
    frames: Vec<u8>,
    answers: Vec<u8>,
    at: (usize, usize),
    held: VecDeque<(usize, Frame)>,
}

impl Faults {
    fn none() -> Self {
        Faults { frames: vec![0], answers: vec![0], at: (0, 0), held: VecDeque::new() }
    }

    /// The frames that arrive now: 1 = dropped, 2 = twice, 3.. = held back for that many frames.
    fn frame(&mut self, frame: Frame) -> Vec<Frame> {
        let fate = self.frames[self.at.0 % self.frames.len()];
        self.at.0 += 1;
        let mut arriving = match fate {
            1 => vec![],
            2 => vec![frame, frame],
            3..=18 => {
                self.held.push_back((usize::from(fate - 2), frame));
                vec![]
            }
            _ => vec![frame],
        };
        for (left, _) in &mut self.held {
            *left = left.saturating_sub(1);
        }
        while let Some(at) = self.held.iter().position(|(left, _)| *left == 0) {
            arriving.extend(self.held.remove(at).map(|(_, f)| f));
        }
        arriving
    }

    fn answer_dropped(&mut self) -> bool {
        let dropped = self.answers[self.at.1 % self.answers.len()] == 1;
        self.at.1 += 1;
        dropped
    }
}

struct World {
    requester: Requester,
    wire: Wire,
    responder: Responder,
    faults: Faults,
    now: u64,
    posted: u32,
    atomics: bool,
    most_out: usize,
}

impl World {
    fn new(atomics: bool, faults: Faults) -> World {
        World {
            requester: Requester::new(Transport::Rc, Psn::new(START), 16, timing()),
            wire: Wire::default(),
            responder: Responder::new(),
            faults,
            now: 0,
            posted: 0,
            atomics,
            most_out: 0,
        }
    }

    fn post(&mut self, n: u32) {
        for _ in 0..n {
            let group = self.posted;
            self.posted += 1;
            let meta =
                FrameMeta { primitive: Some(Primitive::KeyWrite), group, reports: 1, ..FrameMeta::IDLE };
            let action = if self.atomics { Action::fetch_add(1) } else { Action::WRITE };
            self.requester.post(self.now, action, (0, 0), &[], &meta, &mut self.wire);
        }
        self.carry();
    }

    /// Carries frames and answers until nothing moves.
    fn carry(&mut self) {
        while !self.wire.frames.is_empty() {
            if self.atomics {
                self.most_out = self.most_out.max(self.requester.outstanding() as usize);
            }
            let mut answers = Vec::new();
            for frame in std::mem::take(&mut self.wire.frames) {
                for frame in self.faults.frame(frame) {
                    answers.extend(self.responder.take(&frame));
                }
            }
            for (psn, answer) in answers {
                if !self.faults.answer_dropped() {
                    self.requester.answer(self.now, psn, answer, &mut self.wire);
                }
            }
        }
    }

    fn wait(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now += MS;
            // What is held long enough leaves by itself.
            if self.now.is_multiple_of(20 * MS) {
                for (_, frame) in std::mem::take(&mut self.faults.held) {
                    if let Some((psn, answer)) = self.responder.take(&frame)
                        && !self.faults.answer_dropped()
                    {
                        self.requester.answer(self.now, psn, answer, &mut self.wire);
                    }
                }
            }
            self.requester.tick(self.now, &mut self.wire);
            self.carry();
        }
    }

    /// Every operation was executed exactly once, or is counted lost; without reordering not both.
    fn check(&self, exact: bool) {
        let executed: BTreeSet<u32> = self.responder.executed.iter().copied().collect();
        assert_eq!(executed.len(), self.responder.executed.len(), "an operation was executed twice");
        for group in 0..self.posted {
            let (done, lost) = (executed.contains(&group), self.wire.lost.contains_key(&group));
            assert!(done || lost, "operation {group} vanished");
            assert!(!(exact && done && lost), "operation {group} is counted lost but was executed");
        }
    }
}

#[test]
fn without_faults_everything_is_executed_and_acknowledged() {
    for atomics in [false, true] {
        let mut w = World::new(atomics, Faults::none());
        w.post(1000);
        w.wait(40);
        assert_eq!(w.responder.executed, (0..1000).collect::<Vec<_>>());
        assert_eq!((w.requester.outstanding(), w.requester.waiting()), (0, 0));
        assert_eq!(w.requester.counters.acknowledged, 1000);
        assert_eq!(w.requester.counters.recoveries, 0);
        assert!(w.wire.lost.is_empty());
        // Atomics are always answered, so nobody probes; the tail of writes does not ask for an answer.
        assert_eq!(w.requester.counters.probes, u64::from(!atomics));
        if atomics {
            assert_eq!(w.most_out, 16);
        }
    }
}

#[test]
fn a_loss_that_a_nak_tells_of_costs_what_was_under_way() {
    let mut w =
        World::new(false, Faults { frames: [vec![0; 3], vec![1], vec![0; 96]].concat(), ..Faults::none() });
    w.post(10);
    // Operation 3 is lost, 4 to 9 were ahead of it; the NAK came at once.
    assert_eq!(w.wire.lost.keys().copied().collect::<Vec<_>>(), [3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(w.requester.counters.nak_sequence, 1);
    assert_eq!(w.requester.counters.fillers, 7);
    w.post(5);
    w.wait(40);
    assert_eq!(w.responder.executed, [0, 1, 2, 10, 11, 12, 13, 14]);
    w.check(true);
}

#[test]
fn a_lost_nak_is_made_up_for_by_a_probe_even_when_its_answers_are_lost() {
    // All answers of the first 50 ms are lost: the NAK and those of the first probes.
    for lost_answers in [1, 2, 3] {
        let answers = [vec![1; lost_answers], vec![0; 1000]].concat();
        let frames = [vec![0; 3], vec![1], vec![0; 96]].concat();
        let mut w = World::new(false, Faults { frames, answers, ..Faults::none() });
        w.post(10);
        assert!(w.wire.lost.is_empty());
        w.wait(9);
        assert_eq!(w.requester.counters.probes, 0);
        w.wait(400);
        assert_eq!(w.requester.counters.recoveries_by_probe, 1);
        assert_eq!(w.requester.counters.probes, lost_answers as u64);
        w.post(5);
        w.wait(400);
        assert_eq!(w.responder.executed, [0, 1, 2, 10, 11, 12, 13, 14]);
        assert_eq!((w.requester.outstanding(), w.requester.waiting()), (0, 0));
        w.check(true);
    }
}

#[test]
fn a_responder_that_has_executed_nothing_yet_may_say_so_as_soft_roce_does() {
    for start in [0x40, 0x12_3456, 0x9a_bcde] {
        let start = Psn::new(start);
        let mut wire = Wire::default();
        let mut requester = Requester::new(Transport::Rc, start, 4, timing());
        for group in 0..5 {
            let meta =
                FrameMeta { primitive: Some(Primitive::KeyWrite), group, reports: 1, ..FrameMeta::IDLE };
            requester.post(0, Action::WRITE, (0, 0), &[], &meta, &mut wire);
        }
        // All of it is lost, and the NAK to the rest; the probe is answered.
        wire.frames.clear();
        requester.tick(10 * MS, &mut wire);
        assert_eq!(wire.frames.iter().map(|f| f.psn).collect::<Vec<_>>(), [start.minus(1)]);
        wire.frames.clear();
        requester.answer(10 * MS, Psn::new(0xff_ffff), Answer::Ack, &mut wire);
        assert_eq!(requester.counters.recoveries_by_probe, 1);
        assert_eq!(wire.lost.len(), 5);
        assert_eq!(wire.frames[0].psn, start, "it goes on where the responder waits");
        // Once something was executed, the number is one like any other.
        for frame in std::mem::take(&mut wire.frames) {
            requester.answer(11 * MS, frame.psn, Answer::Ack, &mut wire);
        }
        assert_eq!(requester.outstanding(), 0);
        let stale = requester.counters.stale_answers + requester.counters.recoveries;
        requester.answer(12 * MS, Psn::new(0xff_ffff), Answer::Ack, &mut wire);
        assert_eq!(requester.counters.stale_answers + requester.counters.recoveries, stale + 1);
    }
}

#[test]
fn an_acknowledgement_that_overtakes_the_probes_answer_is_not_taken_for_it() {
    for atomics in [false, true] {
        let mut w = World::new(atomics, Faults::none());
        let meta =
            |group| FrameMeta { primitive: Some(Primitive::KeyWrite), group, reports: 1, ..FrameMeta::IDLE };
        let action = if atomics { Action::fetch_add(1) } else { Action::WRITE };
        // Five operations past one that asks for an acknowledgement, and a probe behind them: all under way at once.
        w.posted = if atomics { 5 } else { 69 };
        for group in 0..w.posted {
            w.requester.post(w.now, action, (0, 0), &[], &meta(group), &mut w.wire);
        }
        w.now += 10 * MS;
        w.requester.tick(w.now, &mut w.wire);
        assert_eq!(w.requester.counters.probes, 1);
        for frame in std::mem::take(&mut w.wire.frames) {
            if let Some((psn, answer)) = w.responder.take(&frame) {
                w.requester.answer(w.now, psn, answer, &mut w.wire);
            }
        }
        assert!(w.wire.lost.is_empty());
        w.wait(40);
        assert_eq!(w.requester.counters.recoveries, 0);
        assert_eq!(w.requester.outstanding(), 0);
        w.check(true);
    }
}

#[test]
fn what_leaves_after_a_probe_is_not_taken_for_lost() {
    let mut w = World::new(false, Faults::none());
    w.post(5);
    for _ in 0..10 {
        w.now += MS;
    }
    // The probe leaves; before its answer arrives, an operation follows it.
    w.requester.tick(w.now, &mut w.wire);
    let meta = FrameMeta { primitive: Some(Primitive::KeyWrite), group: 5, reports: 1, ..FrameMeta::IDLE };
    w.requester.post(w.now, Action::WRITE, (0, 0), &[], &meta, &mut w.wire);
    w.posted = 6;
    let frames = std::mem::take(&mut w.wire.frames);
    let (psn, answer) = w.responder.take(&frames[0]).unwrap();
    w.requester.answer(w.now, psn, answer, &mut w.wire);
    assert!(w.wire.lost.is_empty());
    assert_eq!(w.requester.outstanding(), 1);
    assert_eq!(w.responder.take(&frames[1]), None);
    w.wait(40);
    assert_eq!(w.requester.outstanding(), 0);
    w.check(true);
}

#[test]
fn a_straggler_is_not_executed_in_the_place_of_a_newer_operation() {
    // Operation 3 is held back for 16 frames, so it arrives when its PSN has been given anew.
    for atomics in [false, true] {
        let frames = [vec![0; 3], vec![18], vec![0; 1000]].concat();
        let mut w = World::new(atomics, Faults { frames, ..Faults::none() });
        w.post(40);
        w.wait(100);
        w.post(40);
        w.wait(100);
        assert_eq!((w.requester.outstanding(), w.requester.waiting()), (0, 0));
        // Nothing posted later is missing: only what was out when the NAK came.
        assert!(w.wire.lost.keys().all(|g| *g < 40), "{:?}", w.wire.lost);
        w.check(false);
    }
}

#[test]
fn an_error_nak_takes_the_queue_pair_down_until_it_is_replaced() {
    let mut w = World::new(true, Faults::none());
    w.responder.poison = Some(5);
    w.post(40);
    assert!(w.requester.is_down());
    assert_eq!(w.responder.executed, [0, 1, 2, 3, 4]);
    assert_eq!(w.wire.lost.len(), 35);
    assert_eq!(w.wire.lost[&5], LossCause::QueuePairError);
    assert_eq!(w.wire.lost[&39], LossCause::QueuePairDown);
    w.post(1);
    assert_eq!(w.wire.lost[&40], LossCause::QueuePairDown);
    w.responder = Responder { executed: w.responder.executed, ..Responder::new() };
    w.responder.expected = Psn::new(77);
    w.requester.replace(w.now, Transport::Rc, Psn::new(77), 16, &mut w.wire);
    w.post(10);
    w.wait(40);
    assert_eq!(w.responder.executed.len(), 15);
    assert!(!w.requester.is_down());
    w.check(true);
}

#[test]
fn receiver_not_ready_waits_and_goes_on() {
    let mut w = World::new(false, Faults::none());
    w.responder.not_ready.insert(5);
    w.post(10);
    assert_eq!(w.requester.counters.receiver_not_ready, 1);
    assert_eq!(w.wire.lost[&5], LossCause::ReceiverNotReady);
    w.post(3);
    assert_eq!(w.requester.waiting(), 3);
    w.wait(40);
    assert_eq!(w.responder.executed, [0, 1, 2, 3, 4, 10, 11, 12]);
    w.check(true);
}

#[test]
fn a_responder_that_never_answers_takes_the_queue_pair_down() {
    let mut w = World::new(false, Faults { answers: vec![1], ..Faults::none() });
    w.responder.error = true;
    w.post(10);
    w.wait(5000);
    assert!(w.requester.is_down());
    assert_eq!(w.requester.counters.probes, 6);
    assert_eq!(w.wire.lost.len(), 10);
    assert_eq!(w.requester.deadline(), None);
}

#[test]
fn the_waiting_ring_is_bounded() {
    let mut requester = Requester::new(Transport::Rc, Psn::new(0), 4, Timing { queue: 10, ..timing() });
    let mut wire = Wire::default();
    for group in 0..20 {
        let meta = FrameMeta { primitive: Some(Primitive::KeyIncrement), group, ..FrameMeta::IDLE };
        requester.post(0, Action::fetch_add(1), (0, 0), &[], &meta, &mut wire);
    }
    assert_eq!((wire.frames.len(), requester.waiting(), wire.lost.len()), (4, 10, 6));
    assert!(wire.lost.values().all(|c| *c == LossCause::QueueFull));
}

/// A link on which frames and answers take their time, in order; time steps by 1 ms.
struct SlowWorld {
    requester: Requester,
    wire: Wire,
    responder: Responder,
    now: u64,
    posted: u32,
    frames: VecDeque<(u64, Frame)>,
    answers: VecDeque<(u64, Psn, Answer)>,
}

impl SlowWorld {
    fn new() -> SlowWorld {
        SlowWorld {
            requester: Requester::new(Transport::Rc, Psn::new(START), 16, timing()),
            wire: Wire::default(),
            responder: Responder::new(),
            now: 0,
            posted: 0,
            frames: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// Posts `n` operations, then lets a millisecond pass, in which what leaves takes `there` and what comes back `back` ms; every
    /// `drop`-th frame is lost on the way (0 = none).
    fn step(&mut self, n: u32, atomics: bool, (there, back): (u64, u64), drop: usize) {
        for _ in 0..n {
            let group = self.posted;
            self.posted += 1;
            let meta =
                FrameMeta { primitive: Some(Primitive::KeyWrite), group, reports: 1, ..FrameMeta::IDLE };
            let action = if atomics { Action::fetch_add(1) } else { Action::WRITE };
            self.requester.post(self.now, action, (0, 0), &[], &meta, &mut self.wire);
        }
        self.now += MS;
        self.requester.tick(self.now, &mut self.wire);
        self.depart(there, drop);
        while self.frames.front().is_some_and(|(at, _)| *at <= self.now) {
            if let Some((_, frame)) = self.frames.pop_front()
                && let Some((psn, answer)) = self.responder.take(&frame)
            {
                let last = self.answers.back().map_or(0, |a| a.0);
                self.answers.push_back((last.max(self.now + back * MS), psn, answer));
            }
        }
        while self.answers.front().is_some_and(|(at, ..)| *at <= self.now) {
            if let Some((_, psn, answer)) = self.answers.pop_front() {
                self.requester.answer(self.now, psn, answer, &mut self.wire);
                self.depart(there, drop);
            }
        }
    }

    fn depart(&mut self, there: u64, drop: usize) {
        for frame in std::mem::take(&mut self.wire.frames) {
            if drop != 0 && (frame.psn.get() as usize).is_multiple_of(drop) {
                continue;
            }
            let last = self.frames.back().map_or(0, |f| f.0);
            self.frames.push_back((last.max(self.now + there * MS), frame));
        }
    }
}

fn fates(weights: (u32, u32, u32, u32)) -> impl Strategy<Value = Vec<u8>> {
    let (pass, drop, dup, reorder) = weights;
    let mut options = vec![(pass, Just(0u8).boxed())];
    if drop != 0 {
        options.push((drop, Just(1).boxed()));
    }
    if dup != 0 {
        options.push((dup, Just(2).boxed()));
    }
    if reorder != 0 {
        options.push((reorder, (3u8..=18).boxed()));
    }
    prop::collection::vec(prop::strategy::Union::new_weighted(options), 50..400)
}

proptest! {
    /// Losses of frames, NAKs, ACKs and probe answers: everything ends executed or counted lost, never both, and the queue pair works on.
    #[test]
    fn recovers_from_any_losses(
        atomics: bool,
        frames in fates((20, 1, 0, 0)),
        answers in fates((4, 1, 0, 0)),
        bursts in prop::collection::vec((1u32..200, 0u64..30), 1..12),
    ) {
        let mut w = World::new(atomics, Faults { frames, answers, ..Faults::none() });
        for (n, wait) in bursts {
            w.post(n);
            w.wait(wait);
        }
        // The faults end.
        w.faults = Faults::none();
        w.wait(3000);
        prop_assert!(!w.requester.is_down());
        prop_assert_eq!((w.requester.outstanding(), w.requester.waiting()), (0, 0));
        w.check(true);
        let before = w.responder.executed.len();
        w.post(100);
        w.wait(100);
        prop_assert_eq!(w.responder.executed.len(), before + 100);
    }

    /// The same with repeats and stragglers: what is posted is executed at most once, and nothing vanishes uncounted.
    #[test]
    fn nothing_vanishes_among_stragglers(
        atomics: bool,
        frames in fates((40, 1, 1, 2)),
        answers in fates((10, 1, 0, 0)),
        bursts in prop::collection::vec((1u32..200, 0u64..30), 1..12),
    ) {
        let mut w = World::new(atomics, Faults { frames, answers, ..Faults::none() });
        for (n, wait) in bursts {
            w.post(n);
            w.wait(wait);
        }
        w.faults.frames = vec![0];
        w.faults.answers = vec![0];
        w.wait(3000);
        prop_assert_eq!((w.requester.outstanding(), w.requester.waiting()), (0, 0));
        w.check(false);
    }

    /// However slow the link is, and longer than the silence after which is probed: what is not lost is not counted lost.
    #[test]
    fn a_slow_link_is_not_a_lossy_one(
        atomics: bool,
        steps in prop::collection::vec((prop_oneof![3 => Just(0u32), 1 => 1u32..30], 0u64..25, 0u64..25), 1..300),
    ) {
        let mut w = SlowWorld::new();
        for (n, there, back) in steps {
            w.step(n, atomics, (there, back), 0);
        }
        for _ in 0..2000 {
            w.step(0, atomics, (0, 0), 0);
        }
        prop_assert!(w.wire.lost.is_empty(), "{:?}", w.wire.lost);
        prop_assert_eq!(w.responder.executed, (0..w.posted).collect::<Vec<_>>());
        prop_assert_eq!((w.requester.outstanding(), w.requester.waiting()), (0, 0));
    }

    /// The same with losses: everything ends executed or counted lost, and the queue pair works on.
    #[test]
    fn losses_on_a_slow_link_are_made_up_for(
        atomics: bool,
        drop in 5usize..60,
        steps in prop::collection::vec((prop_oneof![3 => Just(0u32), 1 => 1u32..30], 0u64..8, 0u64..8), 1..300),
    ) {
        let mut w = SlowWorld::new();
        for (n, there, back) in steps {
            w.step(n, atomics, (there, back), drop);
        }
        for _ in 0..3000 {
            w.step(0, atomics, (0, 0), 0);
        }
        prop_assert_eq!((w.requester.outstanding(), w.requester.waiting()), (0, 0));
        let executed: BTreeSet<u32> = w.responder.executed.iter().copied().collect();
        for group in 0..w.posted {
            prop_assert!(executed.contains(&group) || w.wire.lost.contains_key(&group), "{group} vanished");
        }
    }
}

//! The link to an RDMA device, over a device that does what a test says.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dta_dataplane::counters::LossCause;
use dta_dataplane::{Engine, EngineLimits, EngineOutput};
use dta_memory::nic::NicError;
use dta_memory::nic::verbs::send::{
    CompletionStatus, SendCompletion, SendDevice, SendOperation, SendPeer, SendRequest,
};
use dta_proto::key::Key;
use dta_proto::program::{
    DataPlaneEntry, Endpoint, Program, ProgramQueuePair, Purpose, Transport, diff_programs,
};
use dta_proto::wire::dta::DtaBody;
use dta_proto::wire::frame::Received;

use super::device_link::DeviceLink;

const DEPTH: u32 = 64;
const SECOND: u64 = 1_000_000_000;

/// A work request, as the device saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Posted {
    qpn: u32,
    id: u64,
    is_signalled: bool,
    effect: (SendOperation, u64, u32, Vec<u8>),
}

#[derive(Default)]
struct DeviceState {
    is_away: bool,
    /// Whether what is signalled completes at once.
    completes: bool,
    /// Maximum number of requests that it takes at once, if limited.
    max_taken: Option<usize>,
    /// Whether the peer does not answer ARP.
    refuses_to_connect: bool,
    next_qpn: u32,
    connected: Vec<(u32, u32)>,
    ended: Vec<u32>,
    /// First PSNs, by queue pair.
    started: Vec<(u32, u32)>,
    posted: Vec<Posted>,
    /// How many came with each doorbell.
    doorbells: Vec<usize>,
    completions: Vec<SendCompletion>,
}

#[derive(Clone, Default)]
struct FakeDevice(Arc<Mutex<DeviceState>>);

impl FakeDevice {
    fn state(&self) -> MutexGuard<'_, DeviceState> {
        self.0.lock().expect("no test panics with it")
    }

    /// Completes the request that was posted as number `index`.
    fn complete(&self, index: usize, status: CompletionStatus) {
        let mut state = self.state();
        let id = state.posted[index].id;
        state.completions.push(SendCompletion { id, status });
    }
}

struct Handle(FakeDevice, std::fs::File);

impl SendDevice for Handle {
    fn local_endpoint(&self) -> Endpoint {
        Endpoint::new([10, 9, 0, 2].into())
    }

    fn is_present(&self) -> bool {
        !self.0.state().is_away
    }

    fn make_queue_pair(&mut self, _: Transport) -> Result<u32, NicError> {
        let mut state = self.0.state();
        state.next_qpn += 1;
        Ok(0x100 + state.next_qpn)
    }

    fn end_queue_pair(&mut self, qpn: u32) {
        self.0.state().ended.push(qpn);
    }

    fn payload_len(&self) -> u32 {
        1024
    }

    fn queue_depth(&self) -> u32 {
        DEPTH
    }

    fn connect(&mut self, qpn: u32, peer: &SendPeer) -> Result<(), NicError> {
        let mut state = self.0.state();
        if state.refuses_to_connect {
            return Err(NicError::Stopped { reason: "nobody answers".into() });
        }
        state.connected.push((qpn, peer.qpn));
        Ok(())
    }

    fn start_sending(&mut self, qpn: u32, start_psn: u32) -> Result<(), NicError> {
        self.0.state().started.push((qpn, start_psn));
        Ok(())
    }

    fn post_requests(&mut self, qpn: u32, requests: &[SendRequest<'_>]) -> Result<usize, NicError> {
        let mut state = self.0.state();
        if state.is_away {
            return Err(NicError::Lost { device: "fake0".into() });
        }
        let requests = &requests[..requests.len().min(state.max_taken.unwrap_or(usize::MAX))];
        for request in requests {
            let SendRequest { id, is_signalled, operation, address, rkey, payload } = *request;
            let effect = (operation, address, rkey, payload.to_vec());
            state.posted.push(Posted { qpn, id, is_signalled, effect });
            if state.completes && is_signalled {
                state.completions.push(SendCompletion { id, status: CompletionStatus::Success });
            }
        }
        state.doorbells.push(requests.len());
        Ok(requests.len())
    }

    fn poll_completions(&mut self, out: &mut Vec<SendCompletion>) -> Result<(), NicError> {
        out.append(&mut self.0.state().completions);
        Ok(())
    }

    fn request_notification(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.1.as_fd()
    }
}

/// A data plane whose operations go to a device.
struct World {
    device: FakeDevice,
    link: DeviceLink,
    engine: Engine,
    out: EngineOutput,
    program: Program,
}

impl World {
    /// With writes on this transport.
    fn new(writes: Transport) -> World {
        let device = FakeDevice::default();
        let opened = device.clone();
        let open = Box::new(move || match opened.state().is_away {
            true => Err(NicError::Lost { device: "fake0".into() }),
            false => Ok(Box::new(Handle(opened.clone(), std::fs::File::open("/dev/null").unwrap())) as _),
        });
        let (link, _) = DeviceLink::open("fake0", open).unwrap();
        let engine = Engine::new(EngineLimits { posts: true, ..EngineLimits::default() });
        let mut world =
            World { device, link, engine, out: EngineOutput::default(), program: Program::default() };
        world.open_session(writes, 17, 5).unwrap();
        world
    }

    /// Programs the queue pairs of a session: at the collector these numbers from `remote` on, with this PSN.
    fn open_session(&mut self, writes: Transport, remote: u32, start_psn: u32) -> Result<(), NicError> {
        let source = self.link.source_for(0, writes)?;
        self.take(1);
        let mut want = program(writes);
        let pairs: Vec<ProgramQueuePair> = want
            .entries()
            .filter_map(|entry| match entry {
                DataPlaneEntry::QueuePair(pair) => Some(pair.clone()),
                _ => None,
            })
            .collect();
        for (index, pair) in pairs.into_iter().enumerate() {
            want.set(DataPlaneEntry::QueuePair(ProgramQueuePair {
                local_qpn: source.queue_pairs[index],
                remote_qpn: remote + index as u32,
                generation: remote.into(),
                start_psn,
                ..pair
            }));
        }
        let changes = diff_programs(&self.program, &want);
        self.link.connect_changed(&changes, &mut self.engine, &mut self.out)?;
        self.engine.apply_changes(0, &changes, &mut self.out).unwrap();
        self.program = want;
        self.post_output();
        Ok(())
    }

    fn post_output(&mut self) {
        self.link.post_requests(&mut self.out, &mut self.engine);
        self.out.clear();
    }

    /// Executes reports: writes to `writes` keys, and this many increments.
    fn report(&mut self, writes: u32, increments: u32) {
        report_to(&mut self.engine, writes, increments, &mut self.out);
        self.post_output();
    }

    fn take(&mut self, now: u64) -> usize {
        let count = self.link.take_answers(now, &mut self.engine, &mut self.out);
        self.engine.run_timers(now, &mut self.out);
        self.post_output();
        count
    }

    fn lost(&self, cause: LossCause) -> (u64, u64) {
        self.engine.engine_counters().lost_by_cause(cause)
    }

    /// Completes all requests that were posted for a queue pair.
    fn complete_all(&self, qpn: u32) {
        let index = self.device.state().posted.iter().rposition(|posted| posted.qpn == qpn).unwrap();
        self.device.complete(index, CompletionStatus::Success);
    }

    fn is_down(&self, purpose: Purpose) -> bool {
        self.engine.queue_pairs().iter().any(|pair| pair.purpose == purpose && pair.down)
    }
}

fn program(writes: Transport) -> Program {
    let all: Program = serde_json::from_str(include_str!("../../../dta-proto/vectors/program.json")).unwrap();
    let mut program = Program::default();
    for entry in all.entries() {
        program.set(match entry {
            DataPlaneEntry::QueuePair(pair) if pair.purpose == Purpose::Write => {
                DataPlaneEntry::QueuePair(ProgramQueuePair { transport: writes, ..pair.clone() })
            }
            entry => entry.clone(),
        });
    }
    program
}

fn report_to(engine: &mut Engine, writes: u32, increments: u32, out: &mut EngineOutput) {
    let key = |n: u32| Key([n as u8 + 1; 16]);
    let all = (0..writes)
        .map(|n| (1, DtaBody::KeyWrite { redundancy: 0, key: key(n), value: &[7; 12] }))
        .chain((0..increments).map(|n| (3, DtaBody::KeyIncrement { redundancy: 0, key: key(n), delta: 3 })))
        // Of a list whose reader is to wake: two entries make a batch.
        .chain((0..2).map(|_| (6, DtaBody::Append { list: 0, value: &[9; 4] })));
    engine.execute_unnumbered(0, all, out);
    engine.flush_held_reports(0, out);
}

#[test]
fn what_is_posted_is_what_the_frames_would_say() {
    for writes in [Transport::Uc, Transport::Rc] {
        let mut world = World::new(writes);
        world.report(5, 3);
        let mut engine = Engine::new(EngineLimits::default());
        let mut out = EngineOutput::default();
        engine.apply_changes(0, &diff_programs(&Program::default(), &world.program), &mut out).unwrap();
        report_to(&mut engine, 5, 3, &mut out);
        let mut frames: Vec<_> = out
            .frames
            .iter()
            .map(|packet| {
                let frame = Received::parse_packet(packet).unwrap().roce;
                match (frame.rdma_header(), frame.atomic_header()) {
                    (Some(rdma), _) => {
                        let operation = match frame.immediate_data() {
                            Some(immediate) => SendOperation::WriteImmediate(immediate.0),
                            None => SendOperation::Write,
                        };
                        (operation, rdma.va, rdma.rkey, frame.payload().to_vec())
                    }
                    (None, Some(atomic)) => {
                        (SendOperation::FetchAdd(atomic.swap_add), atomic.va, atomic.rkey, Vec::new())
                    }
                    _ => panic!("{frame:?}"),
                }
            })
            .collect();
        let state = world.device.state();
        let mut posted: Vec<_> = state.posted.iter().map(|posted| posted.effect.clone()).collect();
        assert_eq!((posted.len(), posted.len()), (frames.len(), 2 * (5 + 3) + 1), "{writes}");
        // Queue pairs have no common order.
        posted.sort_by_key(|(_, address, ..)| *address);
        frames.sort_by_key(|(_, address, ..)| *address);
        assert_eq!(posted, frames);
        assert!(posted.iter().any(|(operation, ..)| matches!(operation, SendOperation::WriteImmediate(_))));
        assert_eq!(state.connected, [(0x101, 17), (0x102, 18)]);
        assert_eq!(state.started, [(0x101, 5), (0x102, 5)], "the PSN of the session");
    }
}

#[test]
fn a_list_of_requests_has_one_doorbell_and_few_completions() {
    let mut world = World::new(Transport::Uc);
    world.device.state().completes = true;
    // 40 values in two copies and one batch of the list: 64 requests, then 17.
    world.report(40, 0);
    {
        let state = world.device.state();
        assert_eq!(state.doorbells, [64, 17]);
        let signalled: Vec<usize> = (0..81).filter(|index| state.posted[*index].is_signalled).collect();
        assert_eq!(signalled, [31, 63, 80], "one in 32, and the last of each list");
    }
    assert_eq!(world.link.link_counters().sent, 81);
    assert_eq!(world.link.device_counters().doorbells, 2);
    assert_eq!(world.take(1), 1, "the first list had to make room for the second");
    assert_eq!(world.take(1), 0);
}

#[test]
fn a_full_queue_waits_for_room_and_then_counts_what_it_cannot_take() {
    let mut world = World::new(Transport::Uc);
    world.report(40, 0);
    assert_eq!(world.device.state().posted.len(), DEPTH as usize);
    let counters = world.link.link_counters();
    assert_eq!((counters.sent, counters.unsent_queue_full), (64, 17));
    // Eight values with both copies, and the batch of two entries.
    assert_eq!(world.lost(LossCause::QueueFull), (8 + 2, 17));
    // Six lists that wait in vain.
    world.report(200, 0);
    assert_eq!(world.link.link_counters().unsent_queue_full, 17 + 401);
    assert_eq!(world.lost(LossCause::QueueFull).1, 17 + 401);
    world.complete_all(0x101);
    world.report(1, 0);
    assert_eq!(world.device.state().posted.len(), DEPTH as usize + 3);
}

#[test]
fn a_device_that_takes_part_of_a_list_gets_the_rest() {
    for writes in [Transport::Uc, Transport::Rc] {
        let posted = |max_taken| {
            let mut world = World::new(writes);
            {
                let mut state = world.device.state();
                (state.completes, state.max_taken) = (true, max_taken);
            }
            world.report(40, 3);
            assert_eq!((world.link.link_counters().sent, world.is_down(Purpose::Write)), (87, false));
            let state = world.device.state();
            let posted: Vec<_> = state.posted.iter().map(|p| (p.qpn, p.id, p.effect.clone())).collect();
            (posted, state.doorbells.clone())
        };
        let (whole, _) = posted(None);
        let (parts, doorbells) = posted(Some(10));
        assert_eq!(parts, whole);
        assert_eq!(doorbells, [10, 10, 10, 10, 10, 10, 4, 10, 7, 6]);
    }
}

#[test]
fn a_psn_that_does_not_follow_is_not_sent() {
    let mut world = World::new(Transport::Rc);
    world.report(2, 0);
    // These numbers never come here.
    report_to(&mut world.engine, 1, 0, &mut world.out);
    world.out.clear();
    world.report(1, 0);
    assert_eq!(world.device.state().posted.len(), 5);
    assert!(world.link.is_down(0));
    assert_eq!((world.link.device_counters().queue_pair_errors, world.link.link_counters().sent), (1, 5));
    world.take(1);
    assert!(world.is_down(Purpose::Write) && !world.is_down(Purpose::Atomic));
    world.open_session(Transport::Rc, 27, 900).unwrap();
    assert_eq!(world.device.state().posted.len(), 5 + 5 + 3 + 3, "all are sent again, in order");
    assert!(!world.is_down(Purpose::Write));
}

#[test]
fn what_has_left_before_a_change_of_transport_is_not_lost() {
    for has_left in [true, false] {
        let mut world = World::new(Transport::Uc);
        world.report(5, 0);
        if has_left {
            world.complete_all(0x101);
        }
        world.open_session(Transport::Rc, 27, 900).unwrap();
        let state = world.device.state();
        assert_eq!((&state.ended[..], state.connected.last()), (&[0x101][..], Some(&(0x102, 28))));
        assert!(state.connected.contains(&(0x103, 27)));
        drop(state);
        assert_eq!(world.lost(LossCause::QueuePairDown), if has_left { (0, 0) } else { (5 + 2, 11) });
        world.report(1, 0);
        assert_eq!(world.device.state().started, [(0x101, 5), (0x103, 900)]);
    }
}

#[test]
fn what_has_not_left_at_the_end_is_lost() {
    let mut world = World::new(Transport::Uc);
    world.report(5, 0);
    // The first four, which are both copies of two values.
    world.device.complete(3, CompletionStatus::Success);
    world.link.finish(&mut world.engine, &mut world.out);
    assert_eq!(world.lost(LossCause::QueuePairDown), (3 + 2, 7));
    // A completion after that changes nothing.
    world.complete_all(0x101);
    world.take(1);
    assert_eq!(world.lost(LossCause::QueuePairDown), (3 + 2, 7));
}

#[test]
fn completions_acknowledge_and_open_the_window() {
    let mut world = World::new(Transport::Rc);
    // 16 atomics may be in flight.
    world.report(0, 20);
    let atomics = |world: &World| {
        let state = world.device.state();
        state.posted.iter().filter(|posted| matches!(posted.effect.0, SendOperation::FetchAdd(_))).count()
    };
    assert_eq!(atomics(&world), 16);
    world.complete_all(0x102);
    assert_eq!(world.take(1), 1);
    assert_eq!(atomics(&world), 32, "one completion stands for all before it");
    let pair = world.engine.queue_pairs().into_iter().find(|pair| pair.purpose == Purpose::Atomic).unwrap();
    assert_eq!((pair.counters.acknowledged, pair.outstanding, pair.waiting), (16, 16, 8));
    // Nothing is posted twice, however long the device takes.
    for second in 1..600 {
        world.take(second * SECOND);
    }
    assert_eq!(atomics(&world), 32);
    assert!(world.is_down(Purpose::Atomic), "it is silent: the session has to be opened again");
    world.device.state().completes = true;
    world.complete_all(0x102);
    (0..4).for_each(|_| _ = world.take(600 * SECOND));
    assert!(!world.is_down(Purpose::Atomic), "it was only slow");
    assert_eq!(atomics(&world), 40);
}

#[test]
fn a_refused_operation_ends_the_queue_pair_and_the_next_one_sends_the_rest() {
    for status in [CompletionStatus::RemoteAccessError, CompletionStatus::RetriesExceeded] {
        let mut world = World::new(Transport::Rc);
        world.report(5, 0);
        let posted = world.device.state().posted.clone();
        assert_eq!(posted.len(), 11);
        world.device.complete(3, status);
        world.device.complete(4, CompletionStatus::Flushed);
        world.take(1);
        assert!(world.is_down(Purpose::Write) && !world.is_down(Purpose::Atomic), "{status:?}");
        assert_eq!(world.link.device_counters().queue_pair_errors, 1);
        world.report(1, 0);
        assert_eq!(world.device.state().posted.len(), 11, "nothing goes to a broken queue pair");
        world.open_session(Transport::Rc, 27, 900).unwrap();
        let state = world.device.state();
        assert_eq!(state.connected[2..], [(0x101, 27), (0x102, 28)]);
        // A refusal says what was executed. Otherwise nobody knows, and writes are sent again.
        let executed = if status == CompletionStatus::RemoteAccessError { 3 } else { 0 };
        let again: Vec<_> = state.posted[11..].iter().map(|posted| &posted.effect).collect();
        let before: Vec<_> = posted[executed..].iter().map(|posted| &posted.effect).collect();
        assert_eq!(again[..before.len()], before, "{status:?}");
        assert_eq!(again.len(), before.len() + 3);
        assert_eq!(state.started.last(), Some(&(0x101, 900)));
        drop(state);
        assert_eq!(world.lost(LossCause::QueuePairError), (0, 0));
    }
}

#[test]
fn completions_of_a_former_connection_mean_nothing() {
    let mut world = World::new(Transport::Rc);
    world.report(2, 0);
    world.open_session(Transport::Rc, 27, 900).unwrap();
    let before = world.engine.queue_pairs();
    world.device.complete(4, CompletionStatus::Success);
    world.device.complete(4, CompletionStatus::Flushed);
    world.take(1);
    assert_eq!(world.engine.queue_pairs(), before);
    assert_eq!(world.link.device_counters().queue_pair_errors, 0);
}

#[test]
fn what_a_broken_pair_of_uc_held_is_lost_and_it_is_connected_again() {
    let mut world = World::new(Transport::Uc);
    world.report(5, 0);
    // The first four of eleven left.
    world.device.complete(4, CompletionStatus::Other(7));
    world.device.complete(5, CompletionStatus::Flushed);
    world.take(1);
    // Values 2 to 4, of which no copy left, and the batch of two entries.
    assert_eq!(world.lost(LossCause::QueuePairDown), (3 + 2, 7));
    world.report(1, 0);
    assert_eq!(world.lost(LossCause::QueuePairDown), (3 + 2 + 1 + 2, 7 + 3));
    assert_eq!(world.link.link_counters().unsent_unreachable, 3);
    world.device.state().refuses_to_connect = true;
    world.take(2 * SECOND);
    world.device.state().refuses_to_connect = false;
    world.take(4 * SECOND);
    assert_eq!(world.device.state().connected.last(), Some(&(0x101, 17)));
    world.report(1, 0);
    assert_eq!(world.device.state().posted.len(), 14);
    assert_eq!(world.lost(LossCause::QueuePairDown).1, 10);
}

#[test]
fn what_left_before_the_device_was_removed_is_not_lost() {
    let mut world = World::new(Transport::Uc);
    world.report(5, 0);
    world.device.complete(3, CompletionStatus::Success);
    assert!(world.link.wait_for_completions(&[], Duration::ZERO).unwrap());
    world.device.complete(5, CompletionStatus::Success);
    world.device.state().is_away = true;
    assert!(world.link.source_for(0, Transport::Uc).is_err());
    world.take(1);
    assert_eq!(world.lost(LossCause::QueuePairDown), (2 + 2, 5));
}

#[test]
fn a_removed_device_is_opened_again_with_the_session() {
    let mut world = World::new(Transport::Uc);
    world.report(2, 2);
    world.device.state().is_away = true;
    // It takes none of these.
    world.report(0, 3);
    world.take(2 * SECOND);
    world.report(0, 1);
    assert!(world.is_down(Purpose::Atomic) && world.link.is_down(0) && world.link.is_down(1));
    assert_eq!(world.link.device_counters().lost, 1);
    assert!(world.open_session(Transport::Uc, 27, 900).is_err());
    world.take(4 * SECOND);
    assert_eq!(world.link.device_counters().lost, 1, "it is lost once");
    world.device.state().is_away = false;
    world.open_session(Transport::Uc, 27, 900).unwrap();
    assert!(!world.link.is_down(0) && !world.link.is_down(1) && !world.is_down(Purpose::Atomic));
    assert_eq!(world.device.state().connected[2..], [(0x103, 27), (0x104, 28)]);
    // For those that it took, nobody knows whether they were executed.
    assert_eq!(world.lost(LossCause::Unknown).1, 4);
    let state = world.device.state();
    assert_eq!(state.posted.iter().filter(|posted| posted.qpn == 0x104).count(), 2 * (3 + 1));
}

#[test]
fn a_device_that_returns_with_the_same_numbers_sends_on_uc_though_the_program_has_not_changed() {
    let mut world = World::new(Transport::Uc);
    world.device.state().is_away = true;
    world.take(2 * SECOND);
    {
        let mut state = world.device.state();
        (state.is_away, state.next_qpn) = (false, 0);
    }
    // The collector keeps its queue pair of UC, which has not failed.
    let source = world.link.source_for(0, Transport::Uc).unwrap();
    assert_eq!(source.queue_pairs, [0x101, 0x102]);
    world.take(2 * SECOND + 1);
    assert!(!world.link.is_down(0), "it is connected as before");
    assert!(world.link.is_down(1), "the PSNs of RC are for the session to say");
    world.report(1, 0);
    assert_eq!(world.device.state().posted.len(), 3);
}

#[test]
fn a_peer_that_cannot_be_reached_leaves_nothing_half_connected() {
    let mut world = World::new(Transport::Rc);
    world.device.state().refuses_to_connect = true;
    assert!(world.open_session(Transport::Rc, 27, 900).is_err());
    assert!(world.link.is_down(0) && world.link.is_down(1));
    world.report(2, 2);
    assert_eq!(world.device.state().posted.len(), 0, "not with the keys and PSNs of the former session");
    world.device.state().refuses_to_connect = false;
    world.open_session(Transport::Rc, 27, 900).unwrap();
    assert_eq!((world.device.state().posted.len(), world.lost(LossCause::Unknown)), (5 + 4, (0, 0)));
    assert_eq!(world.lost(LossCause::QueuePairDown), (0, 0));
}

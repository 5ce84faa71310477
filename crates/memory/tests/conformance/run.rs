//! Puts a case before a responder and says what was not as the list has it.

use std::net::{Ipv4Addr, SocketAddrV4};

use super::list::{Case, ImmediateSeen, QpState, REGIONS, Reply};
use super::packet;

/// A registered region of a responder under test.
#[derive(Clone, Debug)]
pub struct RegionHandle {
    pub name: String,
    pub iova: u64,
    pub rkey: u32,
}

/// What a responder under test made for a case: what the list names by symbol.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Address and port that requests go to.
    pub responder: SocketAddrV4,
    /// Address that requests come from.
    pub requester: Ipv4Addr,
    /// Address and port that answers must go to.
    pub answers_to: SocketAddrV4,
    /// An address that is not the queue pair's peer.
    pub stranger: Ipv4Addr,
    pub qpn: u32,
    pub peer_qpn: u32,
    /// One for each of [`REGIONS`], zeroed.
    pub regions: Vec<RegionHandle>,
    /// A key whose registration has ended.
    pub stale_rkey: u32,
}

impl Handles {
    pub fn region(&self, name: &str) -> &RegionHandle {
        self.regions.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no region `{name}`"))
    }
}

/// A queue pair as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    pub state: QpState,
    pub expected_psn: u32,
}

/// An answer, from its IPv4 header on.
pub type Answer = Vec<u8>;

/// A responder under test. This is all that the runner needs of one.
pub trait Backend {
    /// Makes the queue pair (path MTU 1024) and the regions of a case, with `initial` bytes in memory.
    fn set_up(&mut self, case: &Case) -> Handles;
    /// Sends packets (from the IPv4 header on), in order, and returns all answers to them, in order.
    fn send(&mut self, packets: &[Vec<u8>]) -> Vec<Answer>;
    /// All bytes of a region.
    fn memory(&mut self, region: &str) -> Vec<u8>;
    /// The queue pair.
    fn state(&mut self) -> State;
    /// Immediates received since last asked.
    fn immediates(&mut self) -> Vec<ImmediateSeen>;
    /// What the packets since last asked were counted as, in order of counting; `None` if it does not say.
    fn fates(&mut self) -> Option<Vec<String>>;
}

/// What a responder's memory, state and answers must be after a step.
struct Expected {
    memory: Vec<(String, Vec<u8>)>,
    state: State,
}

/// Runs a case step by step, and once more with all its packets at once; gives the differences,
/// each in one line.
pub fn run(backend: &mut dyn Backend, case: &Case) -> Vec<String> {
    let mut differences = one_by_one(backend, case);
    differences.extend(at_once(backend, case).into_iter().map(|d| format!("all at once: {d}")));
    differences
}

fn expected_at_start(case: &Case) -> Expected {
    let mut memory: Vec<_> =
        REGIONS.iter().map(|(name, len, _)| (name.to_string(), vec![0; *len as usize])).collect();
    for patch in &case.initial {
        apply(&mut memory, patch);
    }
    let state = State { state: QpState::Rtr, expected_psn: case.start_psn };
    Expected { memory, state }
}

fn apply(memory: &mut [(String, Vec<u8>)], patch: &super::list::Patch) {
    let (_, bytes) = memory.iter_mut().find(|(name, _)| *name == patch.region).expect("a region of the list");
    bytes[patch.at..patch.at + patch.bytes.0.len()].copy_from_slice(&patch.bytes.0);
}

fn advance(expected: &mut Expected, case: &Case, step: &super::list::Step) {
    for patch in &step.writes {
        apply(&mut expected.memory, patch);
    }
    if let Some(state) = step.state {
        expected.state.state = state;
    }
    if let Some(psn) = step.next_psn {
        expected.state.expected_psn = (case.start_psn + psn) & 0xff_ffff;
    }
}

fn one_by_one(backend: &mut dyn Backend, case: &Case) -> Vec<String> {
    let handles = backend.set_up(case);
    let mut expected = expected_at_start(case);
    let mut differences = Vec::new();
    for (n, step) in case.step.iter().enumerate() {
        let mut differ = |what: String| differences.push(format!("step {}: {what}", n + 1));
        advance(&mut expected, case, step);
        let packet = packet::emit(&step.send, case.transport, case.start_psn, &handles);
        let answers = backend.send(&[packet]);
        compare_answers(&answers, &step.replies, case, &handles, &mut differ);
        compare_rest(backend, &expected, &mut differ);
        let immediates = backend.immediates();
        if immediates != step.immediates {
            differ(format!("immediates {immediates:?}, expected {:?}", step.immediates));
        }
        if let Some(fates) = backend.fates()
            && fates != [step.fate.as_str()]
        {
            differ(format!("counted as {fates:?}, expected {:?}", step.fate));
        }
    }
    differences
}

fn at_once(backend: &mut dyn Backend, case: &Case) -> Vec<String> {
    let handles = backend.set_up(case);
    let mut expected = expected_at_start(case);
    let mut differences = Vec::new();
    let mut differ = |what: String| differences.push(what);
    let packets: Vec<_> =
        case.step.iter().map(|s| packet::emit(&s.send, case.transport, case.start_psn, &handles)).collect();
    case.step.iter().for_each(|step| advance(&mut expected, case, step));
    let replies: Vec<Reply> = case.step.iter().flat_map(|s| s.replies.clone()).collect();
    let answers = backend.send(&packets);
    compare_answers(&answers, &replies, case, &handles, &mut differ);
    compare_rest(backend, &expected, &mut differ);
    let wanted: Vec<_> = case.step.iter().flat_map(|s| s.immediates.clone()).collect();
    let immediates = backend.immediates();
    if immediates != wanted {
        differ(format!("immediates {immediates:?}, expected {wanted:?}"));
    }
    // Fates of one batch are counted together, so their order is not seen.
    if let Some(mut fates) = backend.fates() {
        let mut wanted: Vec<_> = case.step.iter().map(|s| s.fate.clone()).collect();
        fates.sort();
        wanted.sort();
        if fates != wanted {
            differ(format!("counted as {fates:?}, expected {wanted:?}"));
        }
    }
    differences
}

fn compare_answers(
    answers: &[Answer],
    wanted: &[Reply],
    case: &Case,
    handles: &Handles,
    differ: &mut dyn FnMut(String),
) {
    let mut seen = Vec::new();
    for answer in answers {
        match packet::read(answer, case.start_psn, handles) {
            Ok(reply) => seen.push(reply),
            Err(what) => differ(format!("an answer that cannot be right: {what}")),
        }
    }
    if seen != wanted {
        differ(format!("answered {seen:?}, expected {wanted:?}"));
    }
}

fn compare_rest(backend: &mut dyn Backend, expected: &Expected, differ: &mut dyn FnMut(String)) {
    for (name, wanted) in &expected.memory {
        let has = backend.memory(name);
        if let Some(at) = (0..wanted.len()).find(|&at| has.get(at) != Some(&wanted[at])) {
            differ(format!("memory of `{name}` differs from byte {at} on"));
        }
    }
    let state = backend.state();
    if state != expected.state {
        differ(format!("{state:?}, expected {:?}", expected.state));
    }
}

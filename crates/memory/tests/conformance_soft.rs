//! The conformance list, put before the software NIC's responder.

mod conformance;

use std::collections::BTreeSet;
use std::sync::Arc;

use conformance::list::Transport;
use conformance::list::{ImmediateSeen, QpState};
use conformance::setup::{Device, Memory, PORT, RESPONDER, request, set_up};
use conformance::{Answer, Backend, Case, Handles, State, cases, packet, run};
use dta_memory::nic::soft::{Counter, NicCounts, Responder, ResponderConfig};
use dta_memory::nic::{Access, NicError, QueuePairInfo, QueuePairRequest, QueuePairState, Registration};
use dta_memory::region::Region;
use dta_proto::batch::PacketBatch;

/// The responder without its threads and links.
struct Soft {
    responder: Responder,
    memory: Memory,
    before: NicCounts,
}

fn new_responder(resources: u8) -> Responder {
    Responder::new(ResponderConfig {
        device: "soft".into(),
        ip: RESPONDER.into(),
        port: PORT,
        mtu: 1024,
        max_dest_rd_atomic: resources,
    })
}

impl Device for Responder {
    fn register(&mut self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        Responder::register_region(self, region, access)
    }

    fn deregister(&mut self, rkey: u32) -> Result<(), NicError> {
        Responder::deregister(self, rkey)
    }

    fn create_queue_pair(&mut self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        Responder::create_queue_pair(self, request)
    }
}

impl Backend for Soft {
    fn set_up(&mut self, case: &Case) -> Handles {
        self.responder = new_responder(case.resources);
        self.before = NicCounts::default();
        let (memory, handles) = set_up(&mut self.responder, case);
        self.memory = memory;
        handles
    }

    fn send(&mut self, packets: &[Vec<u8>]) -> Vec<Answer> {
        let mut input = PacketBatch::new(packets.len());
        packets.iter().for_each(|packet| input.push(packet, 0).unwrap());
        // One slot, so that running out of room is the rule here.
        let mut output = self.responder.answer_batch(1);
        let mut answers = Vec::new();
        let mut take = |batch: &mut PacketBatch| {
            answers.extend(batch.iter().map(<[u8]>::to_vec));
            batch.clear();
        };
        self.responder.process_packets(&input, &mut output, &mut take);
        take(&mut output);
        answers
    }

    fn memory(&mut self, region: &str) -> Vec<u8> {
        self.memory.bytes(region)
    }

    fn state(&mut self) -> State {
        let status = &self.responder.queue_pairs()[0];
        let state = match status.state {
            QueuePairState::ReadyToReceive => QpState::Rtr,
            QueuePairState::Error => QpState::Error,
        };
        State { state, expected_psn: status.expected_psn }
    }

    fn immediates(&mut self) -> Vec<ImmediateSeen> {
        self.responder.immediates().drain(..).map(|i| ImmediateSeen { value: i.value, len: i.len }).collect()
    }

    fn fates(&mut self) -> Option<Vec<String>> {
        let now = self.responder.counts().clone();
        assert_eq!(now.unfinished(), 0, "a packet without a fate");
        let fates = Counter::ALL.iter().filter(|c| c.is_final_fate()).flat_map(|&c| {
            let count = now.get(c) - self.before.get(c);
            std::iter::repeat_n(c.name().to_owned(), count as usize)
        });
        let fates = fates.collect();
        self.before = now;
        Some(fates)
    }
}

/// The responder with a queue pair that took the place of a broken one, and frames for that one between all others.
struct Anew {
    soft: Soft,
    stragglers: Vec<Vec<u8>>,
}

/// How far the new one begins beyond the last PSN of the one before.
const STRIDE: u32 = 1 << 16;

impl Anew {
    /// Breaks a new queue pair, if a frame can break it; returns frames for it that would have an effect.
    fn break_queue_pair(&mut self, case: &Case, at: &Handles) -> Vec<Vec<u8>> {
        let frame = |text: &str, start_psn| {
            let send = toml::from_str(text).unwrap();
            packet::emit(&send, case.transport, start_psn, at)
        };
        let start = case.start_psn.wrapping_sub(STRIDE);
        let wrong_key = "op = 'write-only'\npsn = 0\nack = true\nrkey = 'unknown'\npayload = 'ee*8'";
        self.soft.send(&[frame(wrong_key, start)]);
        if case.transport == Transport::Rc {
            assert_eq!(self.soft.state().state, QpState::Error);
        }
        let mut frames = Vec::new();
        let does = ["op = 'write-only'\npayload = 'ee*8'", "op = 'fetch-add'\nadd = 77"];
        // UC has no atomics.
        let kinds = if case.transport == Transport::Rc { 2 } else { 1 };
        for psn in [start, case.start_psn] {
            for does in &does[..kinds] {
                frames.extend(
                    [-1, 0, 1].map(|ahead| frame(&format!("{does}\npsn = {ahead}\nack = true"), psn)),
                );
            }
        }
        frames
    }
}

impl Backend for Anew {
    fn set_up(&mut self, case: &Case) -> Handles {
        let start_psn = case.start_psn.wrapping_sub(STRIDE) & 0xff_ffff;
        let mut at = self.soft.set_up(&Case { start_psn, ..case.clone() });
        self.stragglers = self.break_queue_pair(case, &at);
        // As a session does it: the new one is there before the other ends.
        let new = self.soft.responder.create_queue_pair(&request(case)).unwrap();
        self.soft.responder.destroy_queue_pair(at.qpn).unwrap();
        assert_ne!(new.qpn, at.qpn);
        at.qpn = new.qpn;
        self.soft.before = self.soft.responder.counts().clone();
        at
    }

    fn send(&mut self, packets: &[Vec<u8>]) -> Vec<Answer> {
        let mixed: Vec<_> =
            packets.iter().flat_map(|packet| self.stragglers.iter().chain([packet])).cloned().collect();
        let unknown = Counter::ALL.iter().find(|c| c.name() == "dropped.unknown_queue_pair").unwrap();
        let stragglers = (mixed.len() - packets.len()) as u64;
        let answers = self.soft.send(&mixed);
        self.soft.before.add(*unknown, stragglers);
        answers
    }

    fn memory(&mut self, region: &str) -> Vec<u8> {
        self.soft.memory(region)
    }

    fn state(&mut self) -> State {
        self.soft.state()
    }

    fn immediates(&mut self) -> Vec<ImmediateSeen> {
        self.soft.immediates()
    }

    fn fates(&mut self) -> Option<Vec<String>> {
        self.soft.fates()
    }
}

fn soft() -> Soft {
    Soft { responder: new_responder(1), memory: Memory::default(), before: NicCounts::default() }
}

#[test]
fn every_case_of_the_list() {
    every_case(&mut soft());
}

#[test]
fn every_case_of_the_list_on_a_queue_pair_that_was_made_anew() {
    every_case(&mut Anew { soft: soft(), stragglers: Vec::new() });
}

fn every_case(backend: &mut dyn Backend) {
    let mut failed = Vec::new();
    let cases = cases();
    for case in &cases {
        let differences = run(backend, case);
        failed.extend(differences.into_iter().map(|d| format!("{}: {d}", case.name)));
    }
    assert!(
        failed.is_empty(),
        "{} differences in {} cases:\n{}",
        failed.len(),
        cases.len(),
        failed.join("\n")
    );
}

#[test]
fn the_list_is_complete() {
    let cases = cases();
    let names: BTreeSet<_> = cases.iter().map(|c| &c.name).collect();
    assert_eq!(names.len(), cases.len(), "two cases of one name");
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let fates: BTreeSet<_> = cases.iter().flat_map(|c| &c.step).map(|s| s.fate.as_str()).collect();
    // Not of one packet to one queue pair: what other tests show, or what the list's packets never are.
    let elsewhere = [
        "dropped.not_roce",
        "dropped.malformed.fragment",
        "dropped.malformed.ip_options",
        "dropped.ip_checksum",
        "dropped.destination",
        "dropped.killed",
    ];
    for counter in Counter::ALL.iter().filter(|c| c.is_final_fate()) {
        let name = counter.name();
        assert!(fates.contains(name) != elsewhere.contains(&name), "`{name}`: no case, or one too many");
    }
}

/// Falsifies a case, if it can be falsified in this way.
type Falsify = fn(&mut Case) -> bool;

/// The runner has to see every kind of difference, or the test above shows nothing.
#[test]
fn a_falsified_list_is_noticed() {
    let mut soft = soft();
    let falsify: [(&str, Falsify); 7] = [
        ("an answer left out", |case| case.step.iter_mut().any(|s| s.replies.pop().is_some())),
        ("another PSN", |case| {
            case.step.iter_mut().flat_map(|s| s.replies.first_mut()).map(|r| r.psn += 1).count() > 0
        }),
        ("another MSN", |case| {
            case.step
                .iter_mut()
                .flat_map(|s| s.replies.iter_mut())
                .flat_map(|r| &mut r.msn)
                .map(|m| *m += 1)
                .count()
                > 0
        }),
        ("a write left out", |case| {
            let last = case
                .step
                .iter_mut()
                .rev()
                .find(|s| s.writes.iter().any(|w| w.bytes.0.iter().any(|&b| b > 0)));
            last.is_some_and(|s| s.writes.pop().is_some())
        }),
        ("another state", |case| {
            let error = case.step.iter().any(|s| s.state == Some(QpState::Error));
            let other = if error { QpState::Rtr } else { QpState::Error };
            case.step.last_mut().is_some_and(|s| s.state.replace(other) != Some(other))
        }),
        ("another PSN expected", |case| {
            case.step.iter_mut().flat_map(|s| &mut s.next_psn).map(|psn| *psn += 1).count() > 0
        }),
        ("another fate", |case| case.step.iter_mut().map(|s| s.fate.push('x')).count() > 0),
    ];
    for case in cases() {
        for (what, falsify) in &falsify {
            let mut falsified = case.clone();
            if falsify(&mut falsified) {
                assert!(!run(&mut soft, &falsified).is_empty(), "{}: {what}: not noticed", case.name);
            }
        }
    }
}

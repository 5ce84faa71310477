//! Tests of the checker itself: it reports every kind of error, and nothing that is right.

use dta_proto::layout::sketch_merge::{SketchColumn, columns_of};
use dta_proto::layout::{append::entries_per_batch, hash};
use dta_proto::store::StoreKind;

use super::append::{Gap, TailAnswer};
use super::postcarding::{IncompleteRows, PathAnswer};
use super::sketch_merge::SketchAnswers;
use super::*;
use crate::journal::Journal;
use crate::share::Share;
use crate::topology::{Primitive, Topology};
use crate::traffic::{Synthetic, TrafficShape};
use crate::workload::{ReportBody, SeenFlow, SwitchReport, Workload};

/// The answers of a store without epochs.
fn each<A: Clone>(answers: &[A]) -> Vec<Vec<A>> {
    answers.iter().map(|answer| vec![answer.clone()]).collect()
}

trait Summed {
    fn summed(self) -> (Tally, ReportEnds);
}

impl Summed for (EpochTallies, ReportEnds) {
    fn summed(self) -> (Tally, ReportEnds) {
        (self.0.sum(), self.1)
    }
}

/// A small network after some traffic, with a perfect memory of its own making.
struct World {
    workload: Workload,
    journal: Journal,
    topology: Topology,
}

fn world(packets: usize) -> World {
    let mut topology = Topology::load(None).unwrap();
    topology.run.epoch_packets = 100;
    let mut workload = Workload::new(&topology);
    let mut reports = Vec::new();
    for p in Synthetic::new(TrafficShape { flows: 40, exponent: 1.0, seed: 5 }).take(packets) {
        workload.forward_packet(&p.packet, p.time_ns, &mut reports);
        if workload.epoch_is_full() {
            workload.end_epoch(&mut reports);
        }
    }
    workload.end_epoch(&mut reports);
    let mut journal = Journal::default();
    for report in reports {
        let switch = report.switch;
        let number = journal.add(report);
        journal.fate_mut(switch, number).unwrap().sent = 1;
    }
    World { workload, journal, topology }
}

impl World {
    fn flows(&self) -> &[SeenFlow] {
        self.workload.seen_flows()
    }

    fn kind(&self, primitive: Primitive) -> StoreKind {
        self.topology.store_of_primitive(primitive).kind.clone()
    }

    fn columns(&self) -> u32 {
        match self.kind(Primitive::SketchMerge) {
            StoreKind::SketchMerge { columns, .. } => columns,
            other => panic!("{other:?}"),
        }
    }

    /// Number of the nth report from the end that `wanted` takes, as (switch, number).
    fn nth_last(&self, n: usize, wanted: impl Fn(&ReportBody) -> bool) -> (u16, u32) {
        let mut counts = std::collections::HashMap::<u16, u32>::new();
        let mut found = Vec::new();
        for entry in self.journal.entries() {
            let number = counts.entry(entry.report.switch).or_default();
            if wanted(&entry.report.body) {
                found.push((entry.report.switch, *number));
            }
            *number += 1;
        }
        found[found.len() - 1 - n]
    }

    fn lose(&mut self, (switch, number): (u16, u32)) {
        self.journal.fate_mut(switch, number).unwrap().lost = 1;
    }

    /// Flow with at least `least` packets.
    fn busy(&self, least: usize) -> u32 {
        let mut counts = vec![0; self.flows().len()];
        for (_, entry) in self.journal.reports_of_primitive(Primitive::KeyWrite) {
            if let ReportBody::KeyWrite { flow, .. } = entry.report.body {
                counts[flow as usize] += 1;
            }
        }
        counts.iter().position(|n| *n >= least).unwrap() as u32
    }

    fn values(&self, flow: u32) -> Vec<Vec<u8>> {
        let of_flow = |body: &ReportBody| match body {
            ReportBody::KeyWrite { flow: f, value } if *f == flow => Some(value.to_vec()),
            _ => None,
        };
        self.journal.entries().iter().filter_map(|e| of_flow(&e.report.body)).collect()
    }

    fn last_values(&self) -> Vec<Option<Vec<u8>>> {
        (0..self.flows().len() as u32).map(|flow| self.values(flow).pop()).collect()
    }

    fn key_write(&self, answers: &[Option<Vec<u8>>], pools: &mut Pools) -> (Tally, ReportEnds) {
        key_write::check_answers(
            (&self.kind(Primitive::KeyWrite), Share::ALONE),
            self.flows(),
            &self.journal,
            &Epochs::without_epochs(1),
            &each(answers),
            pools,
        )
        .summed()
    }

    fn paths(&self) -> Vec<Option<PathAnswer>> {
        let path = |flow: &SeenFlow| PathAnswer {
            hops: flow.path.iter().map(|s| Some(Workload::switch_id(*s))).collect(),
            length: flow.path.len() as u32,
        };
        self.flows().iter().map(|flow| Some(path(flow))).collect()
    }

    fn postcarding(&self, answers: &[Option<PathAnswer>]) -> (Tally, ReportEnds) {
        self.postcarding_after(0, answers)
    }

    fn postcarding_after(&self, evicted: u64, answers: &[Option<PathAnswer>]) -> (Tally, ReportEnds) {
        postcarding::check_answers(
            (&self.kind(Primitive::Postcarding), Share::ALONE),
            self.flows(),
            &self.journal,
            &Epochs::without_epochs(1),
            &each(answers),
            IncompleteRows { evicted, ..IncompleteRows::default() },
            &mut Pools::default(),
        )
        .summed()
    }

    fn lists(&self) -> Vec<TailAnswer> {
        let mut lists = vec![TailAnswer::default(); 2];
        for (_, entry) in self.journal.reports_of_primitive(Primitive::Append) {
            if let ReportBody::Append { flow, list } = entry.report.body {
                lists[list as usize].entries.push(self.flows()[flow as usize].key.0.to_vec());
            }
        }
        lists
    }

    fn append(&self, lists: &[TailAnswer], pools: &mut Pools) -> (Tally, ReportEnds) {
        append::check_answers(&self.kind(Primitive::Append), self.flows(), &self.journal, lists, pools)
    }

    fn counters(&self) -> Vec<u64> {
        let mut sums = vec![0; self.flows().len()];
        for (_, entry) in self.journal.reports_of_primitive(Primitive::KeyIncrement) {
            if let ReportBody::KeyIncrement { flow, delta } = entry.report.body
                && entry.fate.has_arrived()
            {
                sums[flow as usize] += delta;
            }
        }
        sums
    }

    fn key_increment(&self, answers: &[u64], pools: &mut Pools) -> (Tally, ReportEnds) {
        key_increment::check_answers(
            (&self.kind(Primitive::KeyIncrement), Share::ALONE),
            self.flows(),
            &self.journal,
            answers,
            pools,
        )
    }

    fn sketches(&self) -> SketchAnswers {
        let mut answers = SketchAnswers {
            memory: vec![
                vec![
                    SketchColumn { epoch: 0, merged: 0, expected: 0, cells: [0; 4] };
                    self.columns() as usize
                ];
                8
            ],
            estimates: Vec::new(),
        };
        for (_, entry) in self.journal.reports_of_primitive(Primitive::SketchMerge) {
            if let ReportBody::SketchMerge { epoch, column, cells } = entry.report.body
                && entry.fate.has_arrived()
            {
                let held = &mut answers.memory[epoch as usize % 8][column as usize];
                let merged = if held.epoch == epoch { held.merged } else { 0 };
                let before = if merged == 0 { [0; 4] } else { held.cells };
                let cells = std::array::from_fn(|row| before[row] + cells[row]);
                *held = SketchColumn { epoch, merged: merged + 1, expected: 2, cells };
            }
        }
        for truth in self.workload.ended_epochs() {
            let estimate = |flow: u32| {
                let columns = columns_of(&self.flows()[flow as usize].key, 4, self.columns());
                let held = |(row, c): (usize, &u64)| {
                    let held = answers.memory[truth.epoch as usize % 8][*c as usize];
                    (held.epoch == truth.epoch && held.merged > 0).then(|| u64::from(held.cells[row]))
                };
                columns
                    .iter()
                    .enumerate()
                    .map(held)
                    .collect::<Option<Vec<_>>>()
                    .map(|cells| *cells.iter().min().unwrap())
            };
            answers.estimates.push(truth.packets.iter().map(|(flow, _)| estimate(*flow)).collect());
        }
        answers
    }

    fn sketch_merge(&self, answers: &SketchAnswers) -> (Tally, ReportEnds) {
        let kind = self.kind(Primitive::SketchMerge);
        let epochs = self.workload.ended_epochs();
        sketch_merge::check_answers(
            &kind,
            self.flows(),
            epochs,
            &self.journal,
            answers,
            &mut Pools::default(),
        )
    }
}

fn all_right((tally, ends): &(Tally, ReportEnds), sent: u64) {
    assert_eq!((tally.right, tally.wrong), (tally.queried, 0), "{tally:?}");
    assert!(tally.queried > 0);
    assert_eq!((ends.total_reports(), ends.missing, ends.lost.len()), (sent, 0, 0), "{ends:?}");
}

#[test]
fn a_perfect_memory_is_right_in_everything() {
    let w = world(300);
    let sent = |p| w.journal.count_reports(p);
    all_right(&w.key_write(&w.last_values(), &mut Pools::default()), sent(Primitive::KeyWrite));
    all_right(&w.postcarding(&w.paths()), sent(Primitive::Postcarding));
    all_right(&w.append(&w.lists(), &mut Pools::default()), sent(Primitive::Append));
    all_right(&w.key_increment(&w.counters(), &mut Pools::default()), sent(Primitive::KeyIncrement));
    all_right(&w.sketch_merge(&w.sketches()), sent(Primitive::SketchMerge));
}

#[test]
fn key_write_an_invented_value_is_wrong_whatever_was_lost() {
    let mut w = world(300);
    let mut answers = w.last_values();
    answers[3] = Some(vec![9; 12]);
    w.lose(w.nth_last(0, |b| matches!(b, ReportBody::KeyWrite { flow: 3, .. })));
    let (tally, ends) = w.key_write(&answers, &mut Pools::default());
    assert_eq!(tally.wrong, 1);
    assert!(tally.examples[0].contains("never reported"));
    assert!(ends.missing > 0);
}

#[test]
fn key_write_an_older_value_is_stale_only_if_the_newer_is_accounted_for() {
    let mut w = world(300);
    let flow = w.busy(4);
    let mut answers = w.last_values();
    let values = w.values(flow);
    answers[flow as usize] = Some(values[values.len() - 2].clone());
    let (tally, ends) = w.key_write(&answers, &mut Pools::default());
    assert_eq!((tally.wrong, tally.stale, ends.missing), (1, 0, 1), "{tally:?}");

    // A loss known only by count excuses as many as were counted.
    let mut pools = Pools::default();
    pools.add("lost.translator-nic", 1);
    let (tally, ends) = w.key_write(&answers, &mut pools);
    assert_eq!((tally.wrong, tally.stale, ends.missing), (0, 1, 0));
    answers[flow as usize] = Some(values[values.len() - 3].clone());
    let mut pools = Pools::default();
    pools.add("lost.translator-nic", 1);
    assert_eq!(w.key_write(&answers, &mut pools).0.wrong, 1);

    // The same answers where both newer ones are recorded as lost, one on each link.
    let newest = w.nth_last(0, |b| matches!(b, ReportBody::KeyWrite { flow: f, .. } if *f == flow));
    let second = w.nth_last(1, |b| matches!(b, ReportBody::KeyWrite { flow: f, .. } if *f == flow));
    w.lose(newest);
    w.journal.fate_mut(second.0, second.1).unwrap().copies_lost = 0b11;
    let (tally, ends) = w.key_write(&answers, &mut Pools::default());
    assert_eq!((tally.wrong, tally.stale, ends.missing), (0, 1, 0));
    assert_eq!((ends.lost[LOST_TO_TRANSLATOR], ends.lost[LOST_TO_NIC]), (1, 1));
    assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::KeyWrite));
}

#[test]
fn key_write_of_two_reports_with_one_value_the_moved_one_may_have_come_last() {
    let mut w = world(300);
    let flow = w.busy(3);
    let values = w.values(flow);
    let value: [u8; 12] = values[values.len() - 2][..].try_into().unwrap();
    // The last three reports of the flow say: a value, the same again, another one.
    let third = w.nth_last(2, |b| matches!(b, ReportBody::KeyWrite { flow: f, .. } if *f == flow));
    w.journal.report_mut(third.0, third.1).unwrap().body = ReportBody::KeyWrite { flow, value };
    let mut answers = w.last_values();
    answers[flow as usize] = Some(value.to_vec());
    assert_eq!(w.key_write(&answers, &mut Pools::default()).0.wrong, 1);
    w.journal.fate_mut(third.0, third.1).unwrap().moved = true;
    let (tally, ends) = w.key_write(&answers, &mut Pools::default());
    assert_eq!((tally.wrong, tally.stale, ends.missing), (0, 1, 0));
    // A report that did not arrive cannot have come last.
    w.lose(third);
    assert_eq!(w.key_write(&answers, &mut Pools::default()).0.wrong, 1);
}

#[test]
fn key_write_an_absent_answer_is_unexplained_unless_all_its_slots_were_taken() {
    let mut w = world(300);
    let flow = w.busy(2);
    let mut answers = w.last_values();
    answers[flow as usize] = None;
    let (tally, ends) = w.key_write(&answers, &mut Pools::default());
    assert_eq!((tally.absent, ends.missing), (1, 1));

    // Another flow whose key has the same slots, reported later.
    let key = w.flows()[flow as usize].key;
    let tiny = (
        &StoreKind::KeyWrite { slots: 1, value_len: 12, redundancy: 2, keys: Default::default() },
        Share::ALONE,
    );
    assert_eq!(hash::key_slots(&key, 2, 1)[..], [0, 0]);
    let last = w.flows().len() as u32;
    assert!(flow + 1 < last);
    let (number, switch) = (
        w.journal
            .add(SwitchReport { switch: 8, body: ReportBody::KeyWrite { flow: flow + 1, value: [7; 12] } }),
        8,
    );
    w.journal.fate_mut(switch, number).unwrap().sent = 1;
    let mut answers = vec![None; w.flows().len()];
    answers[flow as usize + 1] = Some(vec![7; 12]);
    let (tally, ends) = key_write::check_answers(
        tiny,
        w.flows(),
        &w.journal,
        &Epochs::without_epochs(1),
        &each(&answers),
        &mut Pools::default(),
    )
    .summed();
    assert_eq!((tally.right, tally.absent), (1, tally.queried - 1));
    assert_eq!((ends.missing, ends.overwritten), (0, tally.queried - 1));
}

#[test]
fn postcarding_a_foreign_hop_is_wrong_and_a_missing_one_needs_its_reason() {
    let mut w = world(300);
    let flow = w.busy(2) as usize;
    let mut answers = w.paths();
    answers[flow].as_mut().unwrap().hops[2] = Some(77);
    let (tally, _) = w.postcarding(&answers);
    assert_eq!(tally.wrong, 1);

    let mut answers = w.paths();
    answers[flow].as_mut().unwrap().hops[2] = None;
    let (tally, ends) = w.postcarding(&answers);
    assert_eq!((tally.wrong, tally.partial, ends.missing), (1, 0, 1));

    // One row that the translator says it sent early excuses one path, not two.
    let (tally, _) = w.postcarding_after(1, &answers);
    assert_eq!((tally.wrong, tally.partial), (0, 1));
    let mut two = answers.clone();
    two[if flow == 0 { 1 } else { 0 }].as_mut().unwrap().hops[0] = None;
    let (tally, _) = w.postcarding_after(1, &two);
    assert_eq!((tally.wrong, tally.partial), (1, 1));

    let lost =
        w.nth_last(0, |b| matches!(b, ReportBody::Postcard { flow: f, hop: 2 } if *f as usize == flow));
    w.lose(lost);
    let (tally, ends) = w.postcarding(&answers);
    assert_eq!((tally.wrong, tally.partial, ends.missing), (0, 1, 0));
    assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::Postcarding));

    let mut answers = w.paths();
    answers[flow] = None;
    let (tally, ends) = world(300).postcarding(&answers);
    assert_eq!((tally.absent, ends.missing), (1, 5));
}

#[test]
fn append_inventions_repeats_and_silent_gaps_are_wrong() {
    let mut w = world(300);
    let mut lists = w.lists();
    let repeated = lists[0].entries[0].clone();
    lists[0].entries.push(repeated);
    lists[1].entries.push(vec![5; 16]);
    let (tally, _) = w.append(&lists, &mut Pools::default());
    assert_eq!(tally.wrong, 2, "{tally:?}");

    let mut lists = w.lists();
    let missing = lists[1].entries.pop().unwrap();
    let (tally, ends) = w.append(&lists, &mut Pools::default());
    assert_eq!((tally.wrong, ends.missing), (1, 1));
    assert!(tally.examples[0].contains("no gap"));

    let flow = w.flows().iter().position(|f| f.key.0[..] == missing[..]).unwrap() as u32;
    let lost = w.nth_last(0, |b| matches!(b, ReportBody::Append { flow: f, .. } if *f == flow));
    w.lose(lost);
    let (tally, ends) = w.append(&lists, &mut Pools::default());
    assert_eq!((tally.wrong, tally.absent, ends.missing), (0, 1, 0));
    assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::Append));
}

/// Removes the batches of a list's entries, by place; `is_reported` makes the reader report them.
fn without(answer: &mut TailAnswer, places: &[usize], batch: usize, is_reported: bool) {
    for &place in places.iter().rev() {
        answer.entries.drain(place * batch..(place + 1) * batch);
    }
    for (n, place) in places.iter().enumerate() {
        let at = (place - n) * batch;
        match answer.gaps.last_mut().filter(|gap| gap.at == at) {
            Some(gap) => gap.batches += 1,
            None => answer.gaps.push(Gap { at, batches: 1 }),
        }
    }
    answer.missing_batches = if is_reported { places.len() as u64 } else { 0 };
}

#[test]
fn append_a_frame_excuses_exactly_one_missing_batch_of_one_list() {
    let w = world(300);
    let StoreKind::Append { batch_len, entry_len, .. } = w.kind(Primitive::Append) else { unreachable!() };
    let batch = usize::from(entries_per_batch(batch_len, entry_len));
    assert!(w.lists().iter().all(|list| list.entries.len() >= 4 * batch), "{batch}");
    let frames = |count| {
        let mut pools = Pools::default();
        pools.add_frames("lost.translator-nic", count);
        pools
    };
    // One batch of each list, and two of one: as many frames as batches, and no less.
    for places in [[&[1][..], &[1]], [&[1, 2], &[]], [&[0, 2], &[]]] {
        let mut lists = w.lists();
        for (list, places) in lists.iter_mut().zip(places) {
            without(list, places, batch, true);
        }
        let (tally, ends) = w.append(&lists, &mut frames(2));
        assert_eq!((tally.wrong, ends.missing, ends.lost["lost.translator-nic"]), (0, 0, 2 * batch as u64));
        let (_, ends) = w.append(&lists, &mut frames(1));
        assert_eq!(ends.missing, batch as u64, "{places:?}");
    }
    // Entries from two places are not one batch, whatever the reader reports.
    let mut lists = w.lists();
    lists[0].entries.remove(2 * batch);
    lists[0].entries.remove(0);
    lists[0].gaps = vec![Gap { at: 0, batches: 1 }, Gap { at: 2 * batch - 1, batches: 1 }];
    lists[0].missing_batches = 2;
    assert_eq!(w.append(&lists, &mut frames(1)).1.missing, 1);
    // No frame is an excuse where no batch is missing, nor on RC.
    let mut lists = w.lists();
    lists[0].entries.remove(batch);
    let (tally, ends) = w.append(&lists, &mut frames(9));
    assert_eq!((tally.wrong, ends.missing), (1, 1));
    let mut lists = w.lists();
    without(&mut lists[0], &[1], batch, true);
    let mut reliable = frames(9);
    reliable.of_primitive(PrimitiveLimits { reliable: true, ..PrimitiveLimits::default() });
    assert_eq!(w.append(&lists, &mut reliable).1.missing, batch as u64);
}

#[test]
fn append_a_lost_batch_that_the_reader_does_not_report_is_wrong() {
    let mut w = world(300);
    let StoreKind::Append { batch_len, entry_len, .. } = w.kind(Primitive::Append) else { unreachable!() };
    let batch = usize::from(entries_per_batch(batch_len, entry_len));
    let mut lists = w.lists();
    let gone: Vec<_> = lists[0].entries[batch..2 * batch].to_vec();
    for key in &gone {
        let flow = w.flows().iter().position(|f| f.key.0[..] == key[..]).unwrap() as u32;
        let (switch, number) =
            w.nth_last(0, |b| matches!(b, ReportBody::Append { flow: f, .. } if *f == flow));
        w.journal.fate_mut(switch, number).unwrap().copies_lost = 1;
    }
    without(&mut lists[0], &[1], batch, true);
    let (tally, ends) = w.append(&lists, &mut Pools::default());
    assert_eq!((tally.wrong, ends.missing, ends.lost[LOST_TO_NIC]), (0, 0, batch as u64));
    // It reports none, or the gap is elsewhere.
    lists[0].missing_batches = 0;
    assert_eq!(w.append(&lists, &mut Pools::default()).0.wrong, 1);
    lists[0].missing_batches = 1;
    lists[0].gaps[0].at = 2 * batch;
    assert_eq!(w.append(&lists, &mut Pools::default()).0.wrong, batch as u64);
}

#[test]
fn a_frame_excuses_one_copy_one_path_one_column_and_no_increment() {
    let w = world(300);
    let frames = |count| {
        let mut pools = Pools::default();
        pools.add_frames("lost.translator-nic", count);
        pools
    };
    let flow = w.busy(3);
    // Without an answer both copies are gone; with an older one, the copy that it answers from.
    let mut answers = w.last_values();
    answers[flow as usize] = None;
    assert_eq!(w.key_write(&answers, &mut frames(1)).1.missing, 1);
    assert_eq!(w.key_write(&answers, &mut frames(2)).1.missing, 0);
    let values = w.values(flow);
    answers[flow as usize] = Some(values[values.len() - 2].clone());
    assert_eq!(w.key_write(&answers, &mut frames(1)).0.stale, 1);
    answers[flow as usize] = Some(values[values.len() - 3].clone());
    assert_eq!(w.key_write(&answers, &mut frames(1)).0.wrong, 1);

    let kind = w.kind(Primitive::Postcarding);
    let mut paths = w.paths();
    paths[flow as usize] = None;
    let ask = |paths: &[_], pools: &mut Pools| {
        let (epochs, rows) = (Epochs::without_epochs(1), IncompleteRows::default());
        postcarding::check_answers(
            (&kind, Share::ALONE),
            w.flows(),
            &w.journal,
            &epochs,
            &each(paths),
            rows,
            pools,
        )
        .1
    };
    assert_eq!(ask(&paths, &mut frames(2)).lost["lost.translator-nic"], 5);
    assert_eq!(ask(&paths, &mut frames(1)).missing, 5);
    paths[if flow == 0 { 1 } else { 0 }] = None;
    assert_eq!(ask(&paths, &mut frames(3)).missing, 5);

    let kind = w.kind(Primitive::SketchMerge);
    let epochs = w.workload.ended_epochs();
    let mut sketches = w.sketches();
    for column in [5, 6] {
        sketches.memory[2][column].merged = 0;
    }
    let ask = |pools: &mut Pools| {
        sketch_merge::check_answers(&kind, w.flows(), epochs, &w.journal, &sketches, pools).1
    };
    assert_eq!((ask(&mut frames(1)).missing, ask(&mut frames(2)).missing), (2, 0));

    // Atomics go over RC, where what a frame carried is sent again.
    let mut sums = w.counters();
    let Some(ReportBody::KeyIncrement { delta, .. }) = w
        .journal
        .reports_of_primitive(Primitive::KeyIncrement)
        .map(|(_, entry)| &entry.report.body)
        .find(|body| matches!(body, ReportBody::KeyIncrement { flow: f, .. } if *f == flow))
    else {
        panic!("flow {flow} is busy")
    };
    sums[flow as usize] -= delta;
    let (tally, ends) = w.key_increment(&sums, &mut frames(100));
    assert_eq!((tally.wrong, ends.missing), (1, 1));
    // Less than any report.
    sums[flow as usize] = w.counters()[flow as usize] - 1;
    let mut pools = Pools::default();
    pools.add("lost.reporter-translator", 100);
    assert_eq!(w.key_increment(&sums, &mut pools).0.wrong, 1);
}

#[test]
fn append_no_more_is_overwritten_than_the_reader_reported() {
    let w = world(300);
    let StoreKind::Append { batch_len, entry_len, .. } = w.kind(Primitive::Append) else { unreachable!() };
    let batch = usize::from(entries_per_batch(batch_len, entry_len));
    let mut lists = w.lists();
    lists[0].overwritten_batches = 1;
    lists[0].entries.drain(..batch);
    let (tally, ends) = w.append(&lists, &mut Pools::default());
    assert_eq!((tally.wrong, ends.overwritten, ends.missing), (0, batch as u64, 0));
    lists[0].entries.remove(0);
    let (tally, ends) = w.append(&lists, &mut Pools::default());
    assert_eq!((tally.wrong, ends.missing), (1, 1));
}

#[test]
fn key_increment_neither_more_nor_less_than_what_arrived() {
    let mut w = world(300);
    let flow = w.busy(3);
    let mut answers = w.counters();
    answers[flow as usize] += 1;
    assert_eq!(w.key_increment(&answers, &mut Pools::default()).0.wrong, 1);

    let lost = w.nth_last(0, |b| matches!(b, ReportBody::KeyIncrement { flow: f, .. } if *f == flow));
    w.lose(lost);
    let answers = w.counters();
    let (tally, ends) = w.key_increment(&answers, &mut Pools::default());
    assert_eq!((tally.wrong, tally.incomplete, ends.missing), (0, 1, 0));
    assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::KeyIncrement));

    // A frame that its queue pair gave up may have been executed late: both answers are good, and no third.
    let mut late = world(300);
    let full = late.counters();
    let newest = late.nth_last(0, |b| matches!(b, ReportBody::KeyIncrement { flow: f, .. } if *f == flow));
    late.journal.fate_mut(newest.0, newest.1).unwrap().copies_given_up = 0b11;
    let (tally, ends) = late.key_increment(&answers, &mut Pools::default());
    assert_eq!((tally.wrong, tally.incomplete, ends.lost[LOST_TO_NIC]), (0, 1, 1));
    let (tally, ends) = late.key_increment(&full, &mut Pools::default());
    assert_eq!((tally.wrong, tally.incomplete, ends.lost.len()), (0, 0, 0));
    let mut more = full;
    more[flow as usize] += 1;
    assert_eq!(late.key_increment(&more, &mut Pools::default()).0.wrong, 1);

    // The same answer without the record: a counted loss excuses it, and nothing else does.
    let clean = world(300);
    let (tally, ends) = clean.key_increment(&answers, &mut Pools::default());
    assert_eq!((tally.wrong, ends.missing), (1, 1));
    let mut pools = Pools::default();
    pools.add("lost.translator-nic", 1);
    let (tally, ends) = clean.key_increment(&answers, &mut pools);
    assert_eq!((tally.wrong, tally.incomplete, ends.missing), (0, 1, 0));
}

#[test]
fn sketch_every_cell_is_the_merge_of_what_the_column_says() {
    let mut w = world(300);
    let mut answers = w.sketches();
    answers.memory[1][9].cells[3] += 1;
    let (tally, ends) = w.sketch_merge(&answers);
    assert!(tally.wrong >= 1, "{tally:?}");
    assert_eq!(ends.missing, 2);

    // Half merged, and the half that is missing is lost: incomplete answers at most.
    let lost = w.nth_last(0, |b| matches!(b, ReportBody::SketchMerge { epoch: 1, column: 9, .. }));
    let clean = w.sketches();
    w.lose(lost);
    let (tally, ends) = w.sketch_merge(&w.sketches());
    assert_eq!((tally.wrong, ends.missing, ends.lost[LOST_TO_TRANSLATOR]), (0, 0, 1));
    assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::SketchMerge));

    // A column of which nothing came, although nothing is recorded.
    let w = world(300);
    let mut answers = clean;
    answers.memory[2][5].merged = 0;
    let (_, ends) = w.sketch_merge(&answers);
    assert_eq!(ends.missing, 2);

    // An estimate that memory does not bear out.
    let mut answers = w.sketches();
    *answers.estimates[0][0].as_mut().unwrap() += 1;
    assert_eq!(w.sketch_merge(&answers).0.wrong, 1);
}

#[test]
fn sketch_epochs_that_left_the_ring_are_overwritten() {
    let mut w = world(300);
    for store in &mut w.topology.stores {
        if let StoreKind::SketchMerge { epochs, .. } = &mut store.kind {
            *epochs = 2;
        }
    }
    let (tally, ends) = w.sketch_merge(&SketchAnswers {
        memory: vec![w.sketches().memory[2].clone(), w.sketches().memory[3].clone()],
        ..w.sketches()
    });
    assert_eq!((tally.wrong, ends.missing), (0, 0), "{tally:?}");
    assert_eq!(ends.overwritten, 2 * u64::from(w.columns()));
    assert_eq!(ends.queryable, 2 * 2 * u64::from(w.columns()));
}

/// Three epochs, of which the first ended at 2,000 and the second at 4,000; writers took 500 ms to move.
fn three() -> Epochs {
    let epoch = |generation, opened, end: Option<u64>| CollectorEpoch {
        generation,
        opened,
        flipped_from: end,
        flipped_to: end.map(|end| end + 500),
        rows: None,
        ahead: Ahead::default(),
    };
    let all = vec![epoch(1, 0, Some(2000)), epoch(2, 2000, Some(4000)), epoch(3, 4000, None)];
    Epochs::try_from_lists(vec![all], false).unwrap()
}

/// A world whose reports were made evenly over six seconds, each executed within 4 ms.
fn world_of_epochs(packets: usize) -> World {
    let mut w = world(packets);
    let count = w.journal.entries().len();
    let made = (0..count).map(|place| [6000 * place as u64 / count as u64; 2]).collect();
    let idle = (0..7000).step_by(2).map(|at| [at, at + 2]).collect();
    w.journal.set_times(made, idle);
    w
}

impl World {
    /// Which epoch each report is in, if writers moved at these moments.
    fn epoch_at(&self, place: usize, moved: [u64; 2]) -> usize {
        let at = *self.journal.under_way(place, 0).start();
        moved.iter().filter(|moved| at >= **moved).count()
    }

    /// What a perfect memory answers of each flow in each epoch, if writers moved at these moments.
    fn values_in_epochs(&self, moved: [u64; 2]) -> Vec<Vec<Option<Vec<u8>>>> {
        let mut answers = vec![vec![None; 3]; self.flows().len()];
        for (place, entry) in self.journal.reports_of_primitive(Primitive::KeyWrite) {
            if let ReportBody::KeyWrite { flow, value } = entry.report.body {
                answers[flow as usize][self.epoch_at(place, moved)] = Some(value.to_vec());
            }
        }
        answers
    }

    fn paths_in_epochs(&self, moved: [u64; 2]) -> Vec<Vec<Option<PathAnswer>>> {
        let paths = self.paths();
        let mut answers = vec![vec![None; 3]; self.flows().len()];
        for (place, entry) in self.journal.reports_of_primitive(Primitive::Postcarding) {
            if let ReportBody::Postcard { flow, .. } = entry.report.body {
                // A row is written with its last postcard.
                let end = (place..place + 5).take_while(|at| self.is_postcard_of(*at, flow)).last().unwrap();
                answers[flow as usize][self.epoch_at(end, moved)] = paths[flow as usize].clone();
            }
        }
        answers
    }

    fn is_postcard_of(&self, place: usize, of: u32) -> bool {
        let entry = self.journal.entries().get(place);
        entry.is_some_and(|e| matches!(e.report.body, ReportBody::Postcard { flow, .. } if flow == of))
    }

    fn key_write_in(&self, epochs: &Epochs, answers: &[Vec<Option<Vec<u8>>>]) -> (EpochTallies, ReportEnds) {
        let kind = self.kind(Primitive::KeyWrite);
        let share = (&kind, Share::ALONE);
        key_write::check_answers(share, self.flows(), &self.journal, epochs, answers, &mut Pools::default())
    }

    fn postcarding_in(
        &self,
        rows: IncompleteRows,
        answers: &[Vec<Option<PathAnswer>>],
    ) -> (EpochTallies, ReportEnds) {
        let kind = self.kind(Primitive::Postcarding);
        let (share, mut pools) = ((&kind, Share::ALONE), Pools::default());
        postcarding::check_answers(share, self.flows(), &self.journal, &three(), answers, rows, &mut pools)
    }

    /// When values of a flow were reported, with their places.
    fn times(&self, of: u32) -> Vec<(u64, usize)> {
        let all = self.journal.reports_of_primitive(Primitive::KeyWrite);
        let all =
            all.filter(|(_, e)| matches!(e.report.body, ReportBody::KeyWrite { flow, .. } if flow == of));
        all.map(|(place, _)| (*self.journal.under_way(place, 0).start(), place)).collect()
    }

    /// The first flow whose values were reported at times that `are` accepts.
    fn flow_of(&self, are: impl Fn(&[u64]) -> bool) -> u32 {
        let times = |flow: u32| self.times(flow).into_iter().map(|(at, _)| at).collect::<Vec<_>>();
        (0..self.flows().len() as u32).find(|flow| are(&times(*flow))).expect("there is such a flow")
    }

    /// The value of the report at a place, as an answer.
    fn value_at(&self, place: usize) -> Option<Vec<u8>> {
        match self.journal.entries()[place].report.body {
            ReportBody::KeyWrite { value, .. } => Some(value.to_vec()),
            _ => panic!("no value"),
        }
    }

    /// The report at a place, as its switch numbers it.
    fn number_of(&self, place: usize) -> (u16, u32) {
        let switch = self.journal.entries()[place].report.switch;
        let before = self.journal.entries()[..place].iter().filter(|e| e.report.switch == switch);
        (switch, before.count() as u32)
    }

    /// A flow whose value of an epoch was reported when no writer moved.
    fn certain_in(&self, epoch: usize) -> (u32, usize) {
        let certain = [0..1900, 2600..3900, 4600..6000][epoch].clone();
        let is_it = |(place, entry): (usize, &crate::journal::JournalEntry)| match entry.report.body {
            ReportBody::KeyWrite { flow, .. }
                if certain.contains(self.journal.under_way(place, 0).start()) =>
            {
                Some((flow, place))
            }
            _ => None,
        };
        self.journal.reports_of_primitive(Primitive::KeyWrite).filter_map(is_it).last().unwrap()
    }
}

#[test]
fn epochs_are_right_wherever_in_its_time_each_writer_moved() {
    let w = world_of_epochs(1000);
    for moved in [[2000, 4000], [2250, 4499], [2499, 4001]] {
        let (tallies, ends) = w.key_write_in(&three(), &w.values_in_epochs(moved));
        let of_epochs = &tallies.by_collector()[0];
        assert!(
            of_epochs.iter().all(|of| of.queried > 10 && of.right == of.queried),
            "{moved:?}: {tallies:?}"
        );
        assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::KeyWrite));
        assert_eq!((ends.missing, ends.overwritten), (0, 0), "{moved:?}: {ends:?}");
        assert_eq!(ends.queryable, tallies.sum().queried);

        let (tallies, ends) = w.postcarding_in(IncompleteRows::default(), &w.paths_in_epochs(moved));
        let sum = tallies.sum();
        assert_eq!(sum.right, sum.queried, "{moved:?}: {tallies:?}");
        assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::Postcarding));
        assert_eq!((ends.missing, ends.queryable), (0, 5 * sum.queried));
    }
}

#[test]
fn values_that_come_again_are_right_in_whichever_epoch_they_are() {
    let mut w = world_of_epochs(1000);
    let places: Vec<usize> =
        w.journal.reports_of_primitive(Primitive::KeyWrite).map(|(place, _)| place).collect();
    for (n, place) in places.into_iter().enumerate() {
        let (switch, number) = w.number_of(place);
        if let ReportBody::KeyWrite { value, .. } = &mut w.journal.report_mut(switch, number).unwrap().body {
            *value = [(n * n / 3 % 3) as u8; 12];
        }
    }
    for moved in [[2000, 4000], [2250, 4499], [2499, 4001]] {
        let (tallies, ends) = w.key_write_in(&three(), &w.values_in_epochs(moved));
        let sum = tallies.sum();
        assert!(sum.queried > 30 && sum.right == sum.queried, "{moved:?}: {tallies:?}");
        assert_eq!(
            (ends.missing, ends.total_reports()),
            (0, w.journal.count_reports(Primitive::KeyWrite)),
            "{ends:?}"
        );
    }
}

#[test]
fn a_value_of_another_epoch_is_wrong() {
    let w = world_of_epochs(1000);
    let (flow, _) = w.certain_in(1);
    for (from, to) in [(1, 2), (1, 0)] {
        let mut answers = w.values_in_epochs([2250, 4250]);
        answers[flow as usize][to] = answers[flow as usize][from].clone();
        let (tallies, _) = w.key_write_in(&three(), &answers);
        let of_epochs: Vec<u64> = tallies.by_collector()[0].iter().map(|of| of.wrong).collect();
        assert_eq!((of_epochs[to], tallies.sum().wrong), (1, 1), "{tallies:?}");
        assert!(tallies.sum().examples[0].contains(&format!("in epoch {}", to + 1)), "{tallies:?}");
    }
    // A path of a flow that was not reported in an epoch.
    let w = world_of_epochs(100);
    let mut paths = w.paths_in_epochs([2250, 4250]);
    let flow = w.flow_of(|times| !times.is_empty() && times.iter().all(|at| *at < 1900)) as usize;
    paths[flow][2] = paths[flow][0].clone();
    assert_eq!(w.postcarding_in(IncompleteRows::default(), &paths).0.by_collector()[0][2].wrong, 1);
    // Where postcards came late, they may have been written once more; but not for a flow that was not reported at all.
    let joined = IncompleteRows { joined: 1, ..IncompleteRows::default() };
    assert_eq!(w.postcarding_in(joined, &paths).0.by_collector()[0][2].wrong, 1);
}

/// Reports that came while writers moved are in one epoch, and not in both.
#[test]
fn a_report_in_two_epochs_is_wrong_unless_a_queue_pair_was_replaced() {
    let w = world_of_epochs(1000);
    let mut answers = w.values_in_epochs([2000, 4250]);
    // A flow with one report while writers moved, which the second epoch answers, and none after that.
    let flow = w.flow_of(|times| {
        let within = |from, to| times.iter().filter(|at| (from..to).contains(*at)).count();
        within(1990, 2000) == 0 && within(2000, 2500) == 1 && within(2500, 4000) == 0
    }) as usize;
    answers[flow][0] = answers[flow][1].clone();
    let (tallies, _) = w.key_write_in(&three(), &answers);
    assert_eq!(tallies.by_collector()[0][1].wrong, 1, "{tallies:?}");

    let may_repeat = Epochs::try_from_lists(three().by_collector().to_vec(), true).unwrap();
    let (tallies, ends) = w.key_write_in(&may_repeat, &answers);
    assert_eq!((tallies.sum().wrong, ends.missing), (0, 0), "{tallies:?}");
    assert_eq!(ends.total_reports(), w.journal.count_reports(Primitive::KeyWrite));
}

#[test]
fn an_epoch_does_not_answer_what_was_reported_before_the_answer_of_an_earlier_one() {
    let w = world_of_epochs(1000);
    let mut answers = w.values_in_epochs([2250, 4250]);
    // Two reports of a flow while writers moved.
    let moving = 2000..2490;
    let flow = w.flow_of(|times| times.iter().filter(|at| moving.contains(*at)).count() == 2);
    let two: Vec<_> = w.times(flow).into_iter().filter(|(at, _)| moving.contains(at)).collect();
    answers[flow as usize][0] = w.value_at(two[1].1);
    answers[flow as usize][1] = w.value_at(two[0].1);
    let (tallies, _) = w.key_write_in(&three(), &answers);
    assert_eq!(tallies.by_collector()[0][1].wrong, 1, "{tallies:?}");
    assert!(tallies.sum().examples.iter().any(|example| example.contains("earlier epoch")), "{tallies:?}");
}

#[test]
fn what_is_missing_in_an_epoch_needs_its_reason_there() {
    let mut w = world_of_epochs(1000);
    // Reported in the first epoch, twice in the second, and not while writers moved from that.
    let (first, second) = (0..1900, 2600..3900);
    let flow = w.flow_of(|times| {
        let within = |range: &std::ops::Range<u64>| times.iter().filter(|at| range.contains(*at)).count();
        within(&first) > 0 && within(&second) > 1 && within(&(3900..4600)) == 0
    }) as usize;
    let within = |w: &World, range: &std::ops::Range<u64>| {
        let times = w.times(flow as u32).into_iter().filter(|(at, _)| range.contains(at));
        times.map(|(_, place)| place).collect::<Vec<_>>()
    };
    let answers = w.values_in_epochs([2250, 4250]);
    let mut absent = answers.clone();
    absent[flow][1] = None;
    let (tallies, ends) = w.key_write_in(&three(), &absent);
    assert_eq!((tallies.by_collector()[0][1].absent, ends.missing), (1, 1));
    // A loss of the first epoch excuses nothing in the second; its own does, if it is the newest of the key.
    w.lose(w.number_of(within(&w, &first)[0]));
    assert_eq!(w.key_write_in(&three(), &absent).1.missing, 1);
    let of_second = within(&w, &second);
    w.lose(w.number_of(of_second[of_second.len() - 1]));
    assert_eq!(w.key_write_in(&three(), &absent).1.missing, 0);

    // An older value needs a reason, too: here a lost copy of the newer one.
    let mut w = world_of_epochs(1000);
    let mut stale = answers;
    stale[flow][1] = w.value_at(of_second[of_second.len() - 2]);
    assert_eq!(w.key_write_in(&three(), &stale).0.by_collector()[0][1].wrong, 1);
    let (switch, number) = w.number_of(of_second[of_second.len() - 1]);
    w.journal.fate_mut(switch, number).unwrap().copies_lost = 1;
    let (tallies, ends) = w.key_write_in(&three(), &stale);
    assert_eq!((tallies.sum().wrong, tallies.by_collector()[0][1].stale, ends.missing), (0, 1, 0));
}

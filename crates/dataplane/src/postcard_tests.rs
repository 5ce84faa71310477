//! Postcards that arrive after their path was sent.

use dta_proto::layout::postcarding::{self, PostcardPath};
use dta_proto::wire::dta::DtaBody;
use dta_proto::wire::frame::Received;
use proptest::prelude::*;

use super::EngineLimits;
use super::counters::Reason;
use super::tests::{Bench, PC, key, program};
use dta_proto::program::Transport;

const MS: u64 = 1_000_000;

/// Sends a postcard of a path of four hops; returns what was written then, and by a flush.
struct Paths {
    bench: Bench,
}

impl Paths {
    fn new(reference: bool) -> Paths {
        Paths { bench: Bench::new(&program(Transport::Uc, reference), EngineLimits::default()) }
    }

    fn send(&mut self, now: u64, reporter: u16, sequence: u32, hop: u8, value: u32) -> Option<PostcardPath> {
        self.bench.sequence = sequence;
        let body = DtaBody::Postcard { key: key(1), hop, path_length: 4, value };
        let report = self.bench.v1(reporter, PC, body);
        let frames = self.bench.ingest(now, &[report]);
        Self::path(&frames)
    }

    fn flush(&mut self, now: u64) -> Option<PostcardPath> {
        let mut out = std::mem::take(&mut self.bench.out);
        self.bench.engine.run_timers(now, &mut out);
        let frames: Vec<Vec<u8>> = out.frames.iter().map(<[u8]>::to_vec).collect();
        out.clear();
        self.bench.out = out;
        Self::path(&frames)
    }

    fn path(frames: &[Vec<u8>]) -> Option<PostcardPath> {
        let received = Received::parse_packet(frames.last()?).unwrap();
        postcarding::verified_path(received.roce.payload(), &key(1))
    }
}

fn whole(of: u32) -> PostcardPath {
    let mut path = PostcardPath { length: 4, ..PostcardPath::default() };
    (0..4).for_each(|hop| assert!(path.set(hop, of + u32::from(hop))));
    path
}

/// Each switch reports separately: late ones are recognised by what the same switch reported before.
#[test]
fn a_late_postcard_of_an_earlier_packet_does_not_replace_the_path() {
    let mut paths = Paths::new(false);
    // Two packets of a flow; one postcard of the first is overtaken by all of the second.
    assert_eq!(paths.send(0, 10, 100, 0, 1), None);
    for hop in [1, 2, 3] {
        paths.send(0, 10 + hop, 100, hop as u8, 1 + u32::from(hop));
    }
    for hop in 0..4u16 {
        let written = paths.send(MS, 10 + hop, 105, hop as u8, 50 + u32::from(hop));
        assert_eq!(written, (hop == 3).then(|| whole(50)));
    }
    assert_eq!(paths.send(2 * MS, 12, 103, 2, 3), None);
    assert_eq!(paths.flush(1000 * MS), None, "nothing replaces it");
    assert_eq!(paths.bench.drops(Reason::LatePostcard), 1);
    // A third packet is a new path. One that loses a hop contradicts nothing; long after, it is treated as
    // what it is.
    for hop in 0..4u16 {
        let written = paths.send(1001 * MS, 10 + hop, 106, hop as u8, 90 + u32::from(hop));
        assert_eq!(written, (hop == 3).then(|| whole(90)));
    }
    for (at, sequence, present) in [(1500, 107, 4), (1900, 108, 4), (2100, 109, 3)] {
        for hop in 0..3u16 {
            assert_eq!(paths.send(at * MS, 10 + hop, sequence, hop as u8, 90 + u32::from(hop)), None);
        }
        assert_eq!(paths.flush((at + 50) * MS).map(|p| p.present_hops()), Some(present));
    }
    // One that contradicts it is another path at once.
    assert_eq!(paths.send(2200 * MS, 10, 110, 0, 33), None);
    assert_eq!(paths.flush(2250 * MS).map(|p| p.present_hops()), Some(1));
    assert_eq!(paths.bench.drops(Reason::LatePostcard), 1);
}

/// A host reports all hops of a path, one after the other.
#[test]
fn a_late_postcard_of_one_reporter_completes_its_path() {
    let mut paths = Paths::new(false);
    for (sequence, hop) in [(10, 0), (11, 1), (13, 3)] {
        assert_eq!(paths.send(0, 7, sequence, hop, 60 + u32::from(hop)), None);
    }
    assert_eq!(paths.flush(20 * MS).map(|p| p.present_hops()), Some(3));
    assert_eq!(paths.send(21 * MS, 7, 12, 2, 62), Some(whole(60)));
    let c = paths.bench.engine.engine_counters();
    assert_eq!((c.joined_postcards, c.partial_rows), (1, 1));
    // The network repeats the last after so many others that the window has forgotten it: only its
    // sequence shows that.
    assert_eq!(paths.bench.engine.engine_counters().find_imbalance(), None);
}

#[test]
fn a_late_postcard_of_a_switch_that_was_not_heard_completes_the_path() {
    let mut paths = Paths::new(false);
    for hop in [0, 1, 3u16] {
        paths.send(0, 10 + hop, 5, hop as u8, 60 + u32::from(hop));
    }
    assert_eq!(paths.flush(20 * MS).map(|p| p.present_hops()), Some(3));
    assert_eq!(paths.send(30 * MS, 12, 77, 2, 62), None);
    assert_eq!(paths.flush(50 * MS), Some(whole(60)));
    // Long after, it is one of a new path.
    for hop in [0, 1, 3u16] {
        paths.send(60 * MS, 10 + hop, 6, hop as u8, 80 + u32::from(hop));
    }
    paths.flush(80 * MS);
    paths.send(5000 * MS, 12, 78, 2, 82);
    assert_eq!(paths.flush(5020 * MS).map(|p| p.present_hops()), Some(1));
}

#[test]
fn sequences_mean_nothing_after_a_restart_and_a_switch_remembers_nothing() {
    let card = |paths: &mut Paths, sequence: u32| {
        (0..4u8)
            .filter_map(|hop| paths.send(0, 7, sequence + u32::from(hop), hop, 60 + u32::from(hop)))
            .last()
    };
    let mut paths = Paths::new(false);
    assert_eq!(card(&mut paths, 5000), Some(whole(60)));
    // It restarts just below where it was, and announces it by being out of its window for so long.
    for n in 0..1024 {
        paths.bench.sequence = 2900 + n;
        let other = paths.bench.v1(7, 999, DtaBody::Append { list: 0, value: &[0; 4] });
        paths.bench.ingest(0, &[other]);
    }
    assert_eq!(card(&mut paths, 4500), Some(whole(60)));

    let mut switch = Paths::new(true);
    assert_eq!(card(&mut switch, 10), Some(whole(60)));
    for hop in 0..4u8 {
        // All are taken, whatever their sequences.
        assert_eq!(
            switch.send(0, 7, 4 + u32::from(hop), hop, 1),
            (hop == 3).then(|| {
                let mut path = PostcardPath { length: 4, ..PostcardPath::default() };
                (0..4).for_each(|hop| assert!(path.set(hop, 1)));
                path
            })
        );
    }
}

proptest! {
    /// Switches report packets of one flow, in any order within bounds, and some are lost: when everything
    /// has arrived and one packet was complete, the whole path is in memory.
    #[test]
    fn the_whole_path_stands(order in prop::collection::vec(0u32..30, 40), lost in prop::collection::vec(0u8..10, 40)) {
        let mut arriving = Vec::new();
        for packet in 0..10u32 {
            for hop in 0..4u32 {
                let n = (packet * 4 + hop) as usize;
                if packet == 9 || lost[n] != 0 {
                    let delay = if packet == 9 { 0 } else { order[n] };
                    arriving.push((10 * (packet * 4 + hop) + 10 * delay, packet, hop));
                }
            }
        }
        arriving.sort_unstable();
        let mut paths = Paths::new(false);
        let mut last = None;
        for (at, packet, hop) in arriving {
            let now = u64::from(at) * MS / 10;
            last = paths.flush(now).or(last);
            last = paths.send(now, 10 + hop as u16, 1 + packet, hop as u8, 60 + hop).or(last);
        }
        last = paths.flush(100_000 * MS).or(last);
        prop_assert_eq!(last, Some(whole(60)));
    }
}

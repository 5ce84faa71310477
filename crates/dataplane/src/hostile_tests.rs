//! Forged reports among good ones that all get through.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddrV4};

use dta_proto::key::Key;
use dta_proto::random::SplitMix64;
use dta_proto::wire::dta::{DtaBody, DtaReport, Version};

use super::counters::Reason;
use super::tests::{Bench, KW, SM, program};
use super::{Engine, EngineLimits};
use dta_proto::program::Transport;

const SECOND: u64 = 1_000_000_000;
const DST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 40040);
const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 7), 5555);
const ELSEWHERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 66), 6666);
const VALUE: DtaBody<'_> = DtaBody::KeyWrite { redundancy: 1, key: Key([9; 16]), value: &[1; 12] };

fn report(from: SocketAddrV4, reporter: u16, sequence: u32, body: DtaBody<'_>) -> Vec<u8> {
    flagged(from, reporter, sequence, body, false)
}

fn flagged(from: SocketAddrV4, reporter: u16, sequence: u32, body: DtaBody<'_>, restarted: bool) -> Vec<u8> {
    let version = Version::V1;
    let store = if matches!(body, DtaBody::SketchMerge { .. }) { SM } else { KW };
    let report = DtaReport {
        version,
        immediate: false,
        retransmittable: false,
        restarted,
        sequence,
        reporter,
        store,
        body,
    };
    let mut payload = [0; 200];
    let len = report.encode_into(&mut payload).unwrap();
    let mut packet = dta_proto::wire::datagram::encode_header(from, DST, len).to_vec();
    packet.extend_from_slice(&payload[..len]);
    packet
}

fn bench() -> Bench {
    Bench::new(&program(Transport::Uc, false), EngineLimits::default())
}

/// Whether a report was taken.
fn taken(bench: &mut Bench, now: u64, packet: Vec<u8>) -> bool {
    let accepted =
        |bench: &Bench| bench.engine.engine_counters().primitives.iter().map(|p| p.accepted).sum::<u64>();
    let before = accepted(bench);
    bench.ingest(now, &[packet]);
    accepted(bench) != before
}

fn gaps(engine: &Engine) -> (u64, u64) {
    engine
        .reporters()
        .iter()
        .map(|r| (r.counters.gaps, r.counters.gaps_filled))
        .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}

#[test]
fn one_datagram_far_ahead_costs_no_report() {
    for ahead in [255, 256, 257, 1023, 1024, 65_536, 65_537, (1 << 31) - 1, 1 << 31, u32::MAX] {
        for from in [HERE, ELSEWHERE] {
            for restarted in [false, true] {
                let mut bench = bench();
                let start = u32::MAX - 500;
                for n in 0..100 {
                    assert!(taken(&mut bench, 0, report(HERE, 7, start.wrapping_add(n), VALUE)));
                }
                let far = start.wrapping_add(99).wrapping_add(ahead);
                bench.ingest(0, &[flagged(from, 7, far, VALUE, restarted)]);
                for n in 100..3000 {
                    let sequence = start.wrapping_add(n);
                    let taken = taken(&mut bench, 0, report(HERE, 7, sequence, VALUE));
                    assert!(
                        taken || sequence == far,
                        "{n} after one {ahead} ahead from {from}, restarted: {restarted}"
                    );
                }
                let (gaps, filled) = gaps(&bench.engine);
                assert_eq!(gaps, filled, "{ahead} ahead from {from}, restarted: {restarted}");
            }
        }
    }
}

#[test]
fn one_in_a_thousand_hostile_does_not_blind() {
    // What the hostile sender knows of the reporter's sequences.
    type Guess = fn(u32, u64) -> u32;
    let guesses: [(&str, Guess); 6] = [
        ("nothing", |_, random| random as u32),
        ("all, and sends what is near", |now, random| now.wrapping_add(2 + (random % 255) as u32)),
        ("all, and sends the furthest that is believed at once", |now, _| now.wrapping_add(256)),
        ("all, and sends just outside", |now, _| now.wrapping_add(65_536)),
        ("where it began", |_, random| (random % 4) as u32),
        ("a place of its own", |now, _| 0x4000_0000 + now / 1000),
    ];
    for (what, guess) in guesses {
        let mut numbers = SplitMix64(1);
        let mut bench = bench();
        let (mut forged, mut lost) = (HashSet::new(), 0);
        for n in 0..200_000u32 {
            let sequence = n.wrapping_sub(100_000);
            if n % 1000 == 999 {
                let random = numbers.next_u64();
                let from = if random >> 40 & 1 == 0 { HERE } else { ELSEWHERE };
                let guessed = guess(sequence, random);
                forged.insert(guessed);
                bench.ingest(0, &[flagged(from, 7, guessed, VALUE, random >> 41 & 1 == 0)]);
            }
            if !taken(&mut bench, 0, report(HERE, 7, sequence, VALUE)) && !forged.contains(&sequence) {
                lost += 1;
            }
        }
        assert_eq!(lost, 0, "good reports lost to one that knows {what}");
        // The last one that was believed at once is still ahead.
        let (gaps, filled) = gaps(&bench.engine);
        assert!(gaps - filled <= 256, "{gaps} and {filled} to one that knows {what}");
    }
}

/// Forged reports after this many correct ones, the last of which has this sequence: sequences, whether they
/// announce a restart, and the port's number.
type Attack = fn(u32, u32, u64) -> Vec<(u32, bool, u16)>;

/// At most one per nine correct reports, and as many at once as it likes.
const ATTACKS: [(&str, Attack); 4] = [
    ("steps", |n, now, _| match n % 1000 {
        0 => (1..10).map(|step| (now.wrapping_add(step * 255), false, 0)).collect(),
        _ => Vec::new(),
    }),
    ("pairs", |n, _, random| match n % 60 {
        0 => [0, 1].map(|next| ((random as u32).wrapping_add(next), false, 0)).to_vec(),
        _ => Vec::new(),
    }),
    ("near pairs", |n, now, _| match n % 60 {
        0 => [2000, 2001].map(|ahead| (now.wrapping_add(n + ahead), n % 120 == 0, 0)).to_vec(),
        _ => Vec::new(),
    }),
    ("sockets", |n, now, random| match n % 40 {
        0 => (0..4u16)
            .map(|port| {
                let far = (random as u32 >> (8 * port)) % 3000;
                (now.wrapping_add(far), random >> 60 == 0, port % 3)
            })
            .collect(),
        _ => Vec::new(),
    }),
];

/// Forged reports before the reporter's first one, from where it will start.
const BEFORE: u32 = 42;

/// A port of the same host.
fn port_of(host: SocketAddrV4, number: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*host.ip(), host.port() + number)
}

/// Forging the reporter's address and port can get its reports dropped. When that ends, they are accepted
/// again after at most one window of them, and none is dropped from then on.
#[test]
fn a_reporter_whose_socket_was_forged_recovers_within_a_window() {
    let mut figures = Vec::new();
    for (what, attack) in ATTACKS {
        let mut numbers = SplitMix64(3);
        let (mut bench, mut dropped, mut used) = (bench(), 0, HashSet::new());
        for n in 0..20_000 {
            for (forged, restarted, port) in attack(n, n, numbers.next_u64()) {
                used.insert(forged);
                bench.ingest(0, &[flagged(port_of(HERE, port), 7, forged, VALUE, restarted)]);
            }
            dropped += u32::from(!taken(&mut bench, 0, report(HERE, 7, n, VALUE)));
        }
        figures.push((what, dropped, recovery(&mut bench, 20_000, &used)));
    }
    // What follows a step at once, and what came before the reporter.
    for (what, first, steps) in [("many steps", 1000, 200), ("before the first", 0, BEFORE)] {
        let mut bench = bench();
        for sequence in 0..first {
            assert!(taken(&mut bench, 0, report(HERE, 7, sequence, VALUE)));
        }
        let used: HashSet<u32> = (0..steps).map(|step| first + step * 255).collect();
        for step in 0..steps {
            bench.ingest(0, &[report(HERE, 7, first + step * 255, VALUE)]);
        }
        figures.push((what, 0, recovery(&mut bench, first, &used)));
    }
    println!("{figures:?}");
    assert!(figures.iter().all(|(_, _, recovery)| *recovery <= 1023), "{figures:?}");
    // The attacks that silence it do so while they go on, or this test shows nothing.
    assert!(figures.iter().any(|(_, dropped, _)| *dropped > 10_000), "{figures:?}");
    assert!(figures.iter().any(|(_, _, recovery)| *recovery == 1023), "{figures:?}");
}

/// How many of a reporter's next reports it takes until all whose sequences nobody else `used` are accepted.
fn recovery(bench: &mut Bench, first: u32, used: &HashSet<u32>) -> u32 {
    let mut last_dropped = None;
    for n in 0..10_000 {
        if !taken(bench, 0, report(HERE, 7, first + n, VALUE)) && !used.contains(&(first + n)) {
            last_dropped = Some(n);
        }
    }
    last_dropped.map_or(0, |n| n + 1)
}

#[test]
fn invented_ids_shut_nobody_out() {
    let mut bench = bench();
    for id in 0..4096 {
        assert!(taken(&mut bench, 0, report(ELSEWHERE, id, 77, VALUE)));
    }
    // Reporters that were never heard, and one whose id was forged before.
    for id in [5000, 5001, 65_535, 12] {
        for n in 0..2000 {
            // The forged sequence counts as seen.
            let expected = (id, n) != (12, 77);
            assert_eq!(taken(&mut bench, 1, report(HERE, id, n, VALUE)), expected, "report {n} of {id}");
        }
        assert!(!taken(&mut bench, 1, report(HERE, id, 1999, VALUE)), "repeats are known");
    }
    assert_eq!(bench.drops(Reason::Reporters), 0);
}

#[test]
fn ids_invented_with_care_shut_others_out_for_half_a_minute_at_most() {
    let mut bench = bench();
    for id in 0..4096 {
        for sequence in [77, 78] {
            assert!(taken(&mut bench, 0, report(ELSEWHERE, id, sequence, VALUE)));
        }
    }
    assert!(!taken(&mut bench, SECOND, report(HERE, 5000, 1, VALUE)), "all were heard a second ago");
    assert_eq!(bench.drops(Reason::Reporters), 1);
    for id in 5000..6000 {
        assert!(taken(&mut bench, 31 * SECOND, report(HERE, id, 2, VALUE)));
    }
    assert_eq!(bench.drops(Reason::Reporters), 1);
}

/// Found with 644,000 reports: those sent while the translator was down were not counted as missing.
#[test]
fn what_was_sent_while_the_translator_was_away_is_counted_however_much_it_is() {
    for away in [1u32, 1000, 65_535, 65_536, 65_537, 1_000_000, (1 << 31) - 200] {
        let start = u32::MAX - 150;
        // It is stopped for a while.
        let mut first = bench();
        let send = |bench: &mut Bench, range: std::ops::Range<u32>| {
            range.filter(|n| taken(bench, 0, report(HERE, 7, start.wrapping_add(*n), VALUE))).count() as u64
        };
        let mut accepted = send(&mut first, 0..100);
        accepted += send(&mut first, 100 + away..200 + away);
        let (gaps_then, filled) = gaps(&first.engine);
        assert_eq!(accepted + gaps_then - filled, u64::from(200 + away), "{away} while it was stopped");

        // It is killed, and started again.
        let newest = first.engine.reporters().iter().map(|r| r.newest).collect::<Vec<_>>()[0];
        let mut second = bench();
        second.engine.heard_earlier(&[(7, newest)]);
        let end = 200 + u64::from(away) * 2;
        let from = 200 + away;
        let accepted = (0..100)
            .filter(|n| {
                let sequence = start.wrapping_add(from).wrapping_add(away).wrapping_add(*n);
                taken(&mut second, 0, report(HERE, 7, sequence, VALUE))
            })
            .count() as u64;
        let (gaps_now, filled) = gaps(&second.engine);
        assert_eq!(accepted + gaps_now - filled, end + 100 - u64::from(from), "{away} while it was killed");
    }
}

#[test]
fn invented_reporters_take_no_sketch_away() {
    let mut bench = bench();
    let cells = [0, 0, 0, 1, 0, 0, 0, 2];
    let column = |epoch, column| DtaBody::SketchMerge { epoch, column, cells: &cells };
    for id in 0..32 {
        assert!(taken(&mut bench, 0, report(ELSEWHERE, 1000 + id, 5, column(5, 3))));
    }
    let mut sequence = 0;
    for epoch in 5..40 {
        for c in 0..16 {
            for id in [1, 2] {
                assert!(
                    taken(&mut bench, 0, report(HERE, id, sequence, column(epoch, c))),
                    "column {c} of epoch {epoch} of reporter {id}"
                );
            }
            sequence += 1;
        }
    }
    assert_eq!(bench.drops(Reason::SketchReporters), 0);
}

#[test]
fn one_in_a_thousand_hostile_does_not_move_a_sketch() {
    for ahead in [1, 2, 3, 1000, u32::MAX / 2] {
        let mut bench = bench();
        let cells = [0, 0, 0, 1, 0, 0, 0, 2];
        let column = |epoch, column| DtaBody::SketchMerge { epoch, column, cells: &cells };
        let (mut sequence, mut lost, mut sent) = (0, 0, 0);
        for epoch in 5..400u32 {
            for c in 0..16 {
                for id in [1, 2] {
                    sent += 1;
                    if sent % 1000 == 0 {
                        let packet = report(ELSEWHERE, 500 + sent as u16, 1, column(epoch + ahead, c));
                        bench.ingest(0, &[packet]);
                    }
                    lost += u32::from(!taken(&mut bench, 0, report(HERE, id, sequence, column(epoch, c))));
                }
                sequence += 1;
            }
        }
        // One that names a column of the next epoch takes the place of that column's older one: two
        // reporters' parts at most.
        assert!(lost <= 2 * sent / 1000, "{lost} of {sent} lost to one that is {ahead} epochs ahead");
    }
}

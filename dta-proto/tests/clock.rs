//! The clock fit on synthetic delays: of queues that are mostly empty, and full at times.

use dta_proto::clock::{Crossing, Fit, NoFit, fit_clocks};
use dta_proto::random::SplitMix64;
use proptest::prelude::*;

struct Random(SplitMix64);

impl Random {
    /// Above 0, up to 1.
    fn part(&mut self) -> f64 {
        ((self.0.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed.
    fn wait(&mut self, mean: f64) -> f64 {
        -mean * self.part().ln()
    }
}

const START: u64 = 1_795_323_662_123_456_789;

#[derive(Clone, Copy, Debug)]
struct World {
    /// Nanoseconds that the second clock is ahead at the start.
    ahead: i64,
    ppm: f64,
    seconds: f64,
    /// Packets a second, each way.
    rate: f64,
    /// Nanoseconds of the way, without queues, forth and back.
    ways: [f64; 2],
    /// Mean nanoseconds in queues.
    queues: f64,
    /// Every how many seconds a queue is full for a fifth of that time, with 4 ms of waiting.
    bursts: f64,
    seed: u64,
}

impl World {
    fn ahead_at(&self, since: f64) -> f64 {
        self.ahead as f64 + self.ppm * 1e-6 * since
    }

    fn second(&self, since: f64) -> u64 {
        (i128::from(START) + (since + self.ahead_at(since)).round() as i128) as u64
    }

    /// Packets forth and back.
    fn packets(&self) -> [Vec<Crossing>; 2] {
        let mut random = Random(SplitMix64(self.seed));
        [0, 1].map(|back| {
            let mut sent = 0.0;
            let mut all = Vec::new();
            loop {
                sent += random.wait(1e9 / self.rate);
                if sent > self.seconds * 1e9 {
                    return all;
                }
                let mut delay = self.ways[back] + random.wait(self.queues);
                if back == 0 && (sent / 1e9 / self.bursts).fract() < 0.2 {
                    delay += random.wait(4e6);
                }
                let (at_first, at_second) =
                    if back == 0 { (sent, sent + delay) } else { (sent + delay, sent) };
                all.push(Crossing { first: START + at_first.round() as u64, second: self.second(at_second) });
            }
        })
    }

    /// The most nanoseconds that a fit is off, at the start, in the middle and at the end.
    fn error(&self, fit: &Fit) -> f64 {
        let at = |part: f64| {
            let since = (part * self.seconds * 1e9).round();
            let fitted = fit.to_first(self.second(since));
            (i128::from(fitted) - i128::from(START) - since as i128).abs() as f64
        };
        at(0.0).max(at(0.5)).max(at(1.0))
    }
}

const USUAL: World = World {
    ahead: 7_300_000,
    ppm: 40.0,
    seconds: 5.0,
    rate: 400.0,
    ways: [25_000.0, 25_000.0],
    queues: 30_000.0,
    bursts: 0.7,
    seed: 1,
};

#[test]
fn seven_milliseconds_and_forty_ppm_are_found_within_ten_microseconds() {
    for seed in 1..=20 {
        for ppm in [40.0, -40.0] {
            let world = World { seed, ppm, ..USUAL };
            let [forth, back] = world.packets();
            let fit = fit_clocks(&forth, &back).unwrap();
            let error = world.error(&fit);
            assert!(error <= 10_000.0, "seed {seed}: {error} ns off: {fit:?}");
            assert!(error <= fit.bound, "seed {seed}: {error} ns off: {fit:?}");
            assert!(fit.bound < 40_000.0, "seed {seed}: half of the way there and back is 25 us: {fit:?}");
            assert!((fit.drift * 1e6 - ppm).abs() < 3.0, "seed {seed}: {fit:?}");
            assert!(fit.windows >= 45, "{fit:?}");
        }
    }
}

/// A simpler fit would use one constant from the minimum delays of the whole run: it is off by half of the
/// drift.
#[test]
fn one_constant_would_be_off_by_far_more() {
    let [forth, back] = USUAL.packets();
    let ahead = |c: &Crossing| c.second as f64 - c.first as f64;
    let most = forth.iter().map(ahead).fold(f64::INFINITY, f64::min);
    let least = back.iter().map(ahead).fold(f64::NEG_INFINITY, f64::max);
    let constant = (most + least) / 2.0;
    let off = (USUAL.ahead_at(0.0) - constant).abs().max((USUAL.ahead_at(5e9) - constant).abs());
    assert!(off > 50_000.0, "{off}");
}

#[test]
fn ways_that_differ_are_within_the_bound_and_no_better() {
    let world = World { ways: [10_000.0, 90_000.0], ..USUAL };
    let [forth, back] = world.packets();
    let fit = fit_clocks(&forth, &back).unwrap();
    let error = world.error(&fit);
    assert!((30_000.0..=60_000.0).contains(&error), "half of the difference of both ways: {error}, {fit:?}");
    assert!(error <= fit.bound, "{error}, {fit:?}");
}

#[test]
fn a_moment_comes_back_as_it_was() {
    let [forth, back] = USUAL.packets();
    let fit = fit_clocks(&forth, &back).unwrap();
    for since in [0, 1, 12_345_678, 4_999_999_999] {
        let there = fit.to_second(START + since);
        assert!(fit.to_first(there).abs_diff(START + since) <= 1);
    }
}

#[test]
fn what_cannot_be_compared_says_why() {
    let [forth, back] = USUAL.packets();
    assert_eq!(fit_clocks(&forth, &[]), Err(NoFit::OneWay));
    assert_eq!(fit_clocks(&[], &back), Err(NoFit::OneWay));
    // The second clock was set back by half a second in the middle.
    let set = |c: &Crossing| match c.first > START + 2_500_000_000 {
        true => Crossing { second: c.second - 500_000_000, ..*c },
        false => *c,
    };
    let (forth, back): (Vec<_>, Vec<_>) = (forth.iter().map(set).collect(), back.iter().map(set).collect());
    assert_eq!(fit_clocks(&forth, &back), Err(NoFit::NotALine));
}

#[test]
fn few_packets_give_a_wide_bound_that_holds() {
    let world = World { seconds: 0.05, ..USUAL };
    let [forth, back] = world.packets();
    let fit = fit_clocks(&forth[..2], &back[..2]).unwrap();
    assert!(fit.windows == 1 && fit.drift == 0.0, "{fit:?}");
    assert!(world.error(&fit) <= fit.bound + 1e6 * 0.05, "{fit:?}");
    // The same with a packet each way and nothing in common.
    let alone = |first, second| [Crossing { first, second }];
    let fit = dta_proto::clock::fit_clocks(
        &alone(START, START + 900),
        &alone(START + 700_000_000_000, START + 700_000_000_000 - 100),
    );
    let fit = fit.unwrap();
    assert!(fit.bound > 1e6, "nothing is known of the drift in 700 s: {fit:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the clocks, ways and queues are, the truth is within the bound.
    #[test]
    fn the_bound_holds(
        ahead in -40_000_000_000i64..40_000_000_000,
        ppm in -400.0..400.0f64,
        seconds in 0.3..6.0f64,
        rate in 30.0..500.0f64,
        forth in 0.0..200_000.0f64,
        back in 0.0..200_000.0f64,
        queues in 100.0..500_000.0f64,
        seed: u64,
    ) {
        let world = World { ahead, ppm, seconds, rate, ways: [forth, back], queues, bursts: 1.1, seed };
        let [forth, back] = world.packets();
        prop_assume!(!forth.is_empty() && !back.is_empty());
        let fit = fit_clocks(&forth, &back).unwrap();
        // Between the first and the last packet.
        let span = forth.iter().chain(&back).map(|c| c.first - START);
        let (from, to) = span.fold((u64::MAX, 0), |(from, to), at| (from.min(at), to.max(at)));
        for since in [from, (from + to) / 2, to] {
            let fitted = fit.to_first(world.second(since as f64));
            let error = fitted.abs_diff(START + since) as f64;
            prop_assert!(error <= fit.bound + 2.0, "{error} ns off at {since}: {fit:?}");
        }
    }

    /// Any numbers give a fit or a reason.
    #[test]
    fn any_times_do_not_panic(
        forth in prop::collection::vec(any::<(u64, u64)>(), 0..20),
        back in prop::collection::vec(any::<(u64, u64)>(), 0..20),
    ) {
        let crossings = |all: Vec<(u64, u64)>| -> Vec<Crossing> {
            all.into_iter().map(|(first, second)| Crossing { first, second }).collect()
        };
        if let Ok(fit) = fit_clocks(&crossings(forth), &crossings(back)) {
            let _ = (fit.to_first(0), fit.to_first(u64::MAX), fit.to_second(0), fit.to_second(u64::MAX));
        }
    }
}

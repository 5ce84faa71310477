//! Runs work and floor in turns, and keeps the best of each.

use std::time::{Duration, Instant};

use serde::Serialize;

#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Turns of work and floor.
    pub turns: u32,
    pub turn: Duration,
    /// Bytes of the large store, a power of two.
    pub memory: u64,
}

impl Scale {
    /// The settings of the project's figures.
    pub const FULL: Self = Self { turns: 8, turn: Duration::from_millis(400), memory: 1 << 30 };
    /// A glance: about a second for everything in one process.
    pub const GLANCE: Self = Self { turns: 2, turn: Duration::from_millis(40), memory: 1 << 26 };
    /// To see that it works, and roughly how fast.
    pub const QUICK: Self = Self { turns: 3, turn: Duration::from_millis(60), memory: 1 << 26 };
}

/// A figure, as in JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: &'static str,
    /// `ops/s`, or `ns/report`.
    pub unit: &'static str,
    /// Operations per second, or nanoseconds per report.
    pub value: f64,
    /// Floor in the same unit.
    pub floor: f64,
    /// The rate relative to the floor's.
    pub ratio: f64,
    /// The required ratio; 0 if there is none.
    pub least_ratio: f64,
    /// What else the value is compared with.
    #[serde(flatten)]
    pub beside: Beside,
    pub what: &'static str,
}

impl Figure {
    pub fn is_below_required(&self) -> bool {
        self.ratio < self.least_ratio
    }
}

/// What a figure is compared with besides its floor.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// The target rate on a server CPU in operations per second, if there is one.
    Target(Option<f64>),
    /// Nanoseconds measured for INTCollector's XDP program on the same reports, on another machine.
    IntCollector(Option<f64>),
}

/// Runs a benchmark on its own thread, because it pins its thread.
pub(super) fn on_a_thread<T: Send>(
    name: &str,
    run: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<T> {
    let ran = std::thread::scope(|scope| scope.spawn(run).join());
    ran.map_err(|_| anyhow::anyhow!("benchmark {name} panicked"))?
}

/// Operations per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rates {
    pub(crate) work: f64,
    pub(crate) floor: f64,
}

/// Operations of one call, and their time.
pub(super) type Share = (u64, Duration);

/// Measures `work` and `floor` in turns. Each call does part of a turn, some milliseconds at most, and returns the
/// number of operations.
pub(super) fn measure_rates(
    scale: &Scale,
    mut work: impl FnMut() -> u64,
    mut floor: impl FnMut() -> u64,
) -> Rates {
    let timed = |operations: &mut dyn FnMut() -> u64| {
        let start = Instant::now();
        (operations(), start.elapsed())
    };
    measure_shares(scale, || timed(&mut work), |_| timed(&mut floor))
}

/// Like [`measure_rates`], for calls that prepare their input and measure the time of the work themselves. The floor gets
/// the number of its turn: variants of it take turns, and the best one counts.
pub(super) fn measure_shares(
    scale: &Scale,
    mut work: impl FnMut() -> Share,
    mut floor: impl FnMut(u32) -> Share,
) -> Rates {
    // The first calls bring code and data into the caches.
    work();
    floor(0);
    let mut best = Rates { work: 0.0, floor: 0.0 };
    for number in 0..scale.turns {
        best.floor = best.floor.max(best_rate_in_turn(scale.turn, &mut || floor(number)));
        best.work = best.work.max(best_rate_in_turn(scale.turn, &mut work));
    }
    best
}

/// The best rate of a turn, over stretches of a tenth of the turn: an interruption spoils only one of them.
fn best_rate_in_turn(length: Duration, call: &mut impl FnMut() -> Share) -> f64 {
    let (mut all, mut best) = (Duration::ZERO, 0.0f64);
    while all < length {
        let (mut stretch, mut operations) = (Duration::ZERO, 0);
        while stretch < length / 10 {
            let (done, took) = call();
            operations += done;
            // A clock that stands still would make this endless.
            stretch += took.max(Duration::from_nanos(1));
        }
        best = best.max(operations as f64 / stretch.as_secs_f64());
        all += stretch;
    }
    best
}

/// Pins this thread to its current processor. Without permission, it stays unpinned.
pub(super) fn pin_to_current_cpu() {
    let mut set = rustix::thread::CpuSet::new();
    set.set(rustix::thread::sched_getcpu());
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Pins this thread to the processor with this number, among those it may use.
pub(super) fn pin_to_allowed_cpu(number: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let mut processors = (0..rustix::thread::CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor));
    if let Some(processor) = processors.nth(number) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(processor);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// CPU time of this thread: unlike wall time, it does not depend on other programs.
pub(super) fn thread_cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_operations_per_second_of_the_best_stretch() {
        let scale = Scale { turns: 2, turn: Duration::from_millis(20), memory: 0 };
        let sleep = |operations: u64| {
            move || {
                std::thread::sleep(Duration::from_millis(1));
                operations
            }
        };
        let rates = measure_rates(&scale, sleep(10), sleep(30));
        // A sleep is never shorter than requested, however busy the machine is.
        assert!(rates.work > 0.0 && rates.work <= 10_000.0, "{rates:?}");
        assert!(rates.floor > 0.0 && rates.floor <= 30_000.0, "{rates:?}");
    }
}

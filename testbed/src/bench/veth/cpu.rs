//! CPU time of the whole machine.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

/// A time, and how long the processors had been idle until then.
pub(super) struct Moment {
    at: Instant,
    idle: Duration,
    processors: u32,
}

impl Moment {
    pub(super) fn now() -> anyhow::Result<Moment> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let (idle, processors) =
            parse_idle_time(&text).ok_or_else(|| anyhow!("/proc/stat is not as proc(5) describes it"))?;
        Ok(Moment { at: Instant::now(), idle, processors })
    }

    /// The time since then, and the non-idle processor time in it.
    ///
    /// "Not idle" instead of the sum of what the kernel counts as user, system and interrupts:
    /// these it samples at each tick, while it measures idle time (proc(5);
    /// `get_cpu_idle_time_us`).
    pub(super) fn elapsed_until(&self, end: &Moment) -> (Duration, Duration) {
        let took = end.at.duration_since(self.at);
        let idle = end.idle.saturating_sub(self.idle);
        (took, (took * end.processors).saturating_sub(idle))
    }
}

/// Time that all processors were idle or waiting for a disk, and their number.
fn parse_idle_time(stat: &str) -> Option<(Duration, u32)> {
    // user nice system idle iowait irq softirq steal …, in hundredths of a second: USER_HZ is 100
    // wherever Linux runs.
    let all: Vec<u64> = stat
        .lines()
        .find_map(|line| line.strip_prefix("cpu "))?
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let (idle, waiting) = (all.get(3)?, all.get(4)?);
    let processors = stat
        .lines()
        .filter(|line| {
            line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
        .count();
    Some((Duration::from_millis(10 * (idle + waiting)), processors.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_of_all_processors() {
        let stat = "cpu  10 1 20 300 7 0 5 2 0 0\ncpu0 5 1 10 150 3 0 3 1 0 0\ncpu1 5 0 10 150 4 0 2 1 0 0\nintr 5 0\nctxt 9\n";
        assert_eq!(parse_idle_time(stat), Some((Duration::from_millis(3070), 2)));
        assert_eq!(parse_idle_time("cpu  1 2\ncpu0 1 2\n"), None);
        assert_eq!(parse_idle_time("intr 1\n"), None);
    }

    #[test]
    fn work_is_not_idle() {
        let start = Moment::now().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            std::hint::black_box(begun);
        }
        let (took, busy) = start.elapsed_until(&Moment::now().unwrap());
        assert!(took >= Duration::from_millis(200));
        // This thread was busy, unless others had the processors, which then were not idle either.
        assert!(busy >= Duration::from_millis(150), "{busy:?} of {took:?}");
    }
}

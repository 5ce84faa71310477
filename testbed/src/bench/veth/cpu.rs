//! CPU time of the whole machine.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};

/// A time, and what the processors had done until then.
pub(super) struct Moment {
    at: Instant,
    usage: CpuUsage,
}

/// Of all processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuUsage {
    /// Idle, or waiting for a disk.
    idle: Duration,
    /// In interrupts and softirqs.
    interrupts: Duration,
    processors: u32,
}

/// What passed between two moments.
pub(super) struct CpuTime {
    pub(super) took: Duration,
    /// Processor time that was not idle.
    pub(super) busy: Duration,
    /// The part of it in interrupts and softirqs, as the kernel samples it at each tick.
    pub(super) interrupts: Duration,
}

impl Moment {
    pub(super) fn now() -> anyhow::Result<Moment> {
        let text = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let usage =
            CpuUsage::parse(&text).ok_or_else(|| anyhow!("/proc/stat is not as proc(5) describes it"))?;
        Ok(Moment { at: Instant::now(), usage })
    }

    /// The time from this moment to another, and what the processors did in it.
    ///
    /// "Not idle" instead of the sum of what the kernel counts as user, system and interrupts:
    /// these it samples at each tick, while it measures idle time (proc(5);
    /// `get_cpu_idle_time_us`).
    pub(super) fn cpu_time_until(&self, end: &Moment) -> CpuTime {
        let took = end.at.duration_since(self.at);
        let idle = end.usage.idle.saturating_sub(self.usage.idle);
        CpuTime {
            took,
            busy: (took * end.usage.processors).saturating_sub(idle),
            interrupts: end.usage.interrupts.saturating_sub(self.usage.interrupts),
        }
    }
}

impl CpuUsage {
    fn parse(stat: &str) -> Option<CpuUsage> {
        // user nice system idle iowait irq softirq steal …, in hundredths of a second: USER_HZ is 100
        // wherever Linux runs.
        let all: Vec<u64> = stat
            .lines()
            .find_map(|line| line.strip_prefix("cpu "))?
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        let processors = stat
            .lines()
            .filter(|line| {
                line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            })
            .count();
        let time_of =
            |field: usize| Some(Duration::from_millis(10 * (all.get(field)? + all.get(field + 1)?)));
        Some(CpuUsage { idle: time_of(3)?, interrupts: time_of(5)?, processors: processors.try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_all_processors() {
        let stat = "cpu  10 1 20 300 7 0 5 2 0 0\ncpu0 5 1 10 150 3 0 3 1 0 0\ncpu1 5 0 10 150 4 0 2 1 0 0\nintr 5 0\nctxt 9\n";
        let millis = Duration::from_millis;
        let usage = CpuUsage { idle: millis(3070), interrupts: millis(50), processors: 2 };
        assert_eq!(CpuUsage::parse(stat), Some(usage));
        assert_eq!(CpuUsage::parse("cpu  1 2\ncpu0 1 2\n"), None);
        assert_eq!(CpuUsage::parse("intr 1\n"), None);
    }

    #[test]
    fn work_is_not_idle() {
        let start = Moment::now().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(200) {
            std::hint::black_box(begun);
        }
        let CpuTime { took, busy, .. } = start.cpu_time_until(&Moment::now().unwrap());
        assert!(took >= Duration::from_millis(200));
        // This thread was busy, unless others had the processors, which then were not idle either.
        assert!(busy >= Duration::from_millis(150), "{busy:?} of {took:?}");
    }
}

//! Paces the writing of an epoch to a fifth of a processor, since a software NIC and queries share memory
//! bandwidth with it.

use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How long a rest is in relation to the work before it.
const RESTS: u32 = 4;
/// Least work between two rests.
const WORK: Duration = Duration::from_millis(5);

pub struct Pace {
    left: Duration,
    since: Instant,
    stop: watch::Receiver<bool>,
}

impl Pace {
    /// Begins work. Rests take at most `most` altogether, and end once the collector stops.
    pub fn new(most: Duration, stop: &watch::Receiver<bool>) -> Pace {
        Pace { left: most, since: Instant::now(), stop: stop.clone() }
    }

    /// Call it between two pieces of work, however small. Rests from time to time.
    pub fn rest_if_due(&mut self) {
        let worked = self.since.elapsed();
        if worked < WORK {
            return;
        }
        if !*self.stop.borrow() {
            let rest = (worked * RESTS).min(self.left);
            self.left -= rest;
            thread::sleep(rest);
        }
        self.since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_longer_than_work_end_with_what_is_left_and_when_the_collector_stops() {
        let (stop, stopped) = watch::channel(false);
        let hour = Duration::from_secs(3600);
        let mut pace = Pace::new(hour, &stopped);
        thread::sleep(WORK);
        pace.rest_if_due();
        let rested = hour - pace.left;
        assert!(rested >= RESTS * WORK, "{rested:?}");
        let mut short = Pace::new(Duration::from_millis(1), &stopped);
        for _ in 0..2 {
            thread::sleep(WORK);
            short.rest_if_due();
            assert_eq!(short.left, Duration::ZERO);
        }
        stop.send(true).unwrap();
        thread::sleep(WORK);
        pace.rest_if_due();
        assert_eq!(pace.left, hour - rested);
    }
}

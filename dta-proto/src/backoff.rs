//! How long to wait before retrying something that failed.

use std::time::Duration;

/// A pause that doubles each time, up to a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// The first pause, and the longest.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { next: first, longest }
    }

    /// How long to wait this time.
    pub fn next_pause(&mut self) -> Duration {
        let longer = (self.next * 2).min(self.longest);
        std::mem::replace(&mut self.next, longer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let second = Duration::from_secs;
        let mut backoff = Backoff::new(second(2), second(9));
        assert_eq!([(); 4].map(|()| backoff.next_pause()), [2, 4, 8, 9].map(second));
    }
}

//! Whether refreshes succeed, how old the figures are, and when the next try is.

use std::time::{Duration, Instant};

use dta_cli::number::format_duration;

/// The outcome of the last tries.
#[derive(Clone, Debug, Default)]
pub(super) struct RefreshStatus {
    /// When the current figures arrived.
    answered_at: Option<Instant>,
    trouble: Option<Trouble>,
}

#[derive(Clone, Debug)]
struct Trouble {
    error: String,
    since: Instant,
    next: Instant,
}

impl RefreshStatus {
    pub(super) fn record_success(&mut self, answered_at: Instant) {
        *self = Self { answered_at: Some(answered_at), trouble: None };
    }

    /// A try failed at `at`; the next one is at `next`.
    pub(super) fn record_failure(&mut self, error: String, at: Instant, next: Instant) {
        let since = self.trouble.as_ref().map_or(at, |trouble| trouble.since);
        self.trouble = Some(Trouble { error, since, next });
    }

    /// Whether the last try failed.
    pub(super) fn is_lost(&self) -> bool {
        self.trouble.is_some()
    }

    /// How old the figures are.
    pub(super) fn figures_age(&self, now: Instant) -> Option<Duration> {
        self.answered_at.map(|answered_at| now.saturating_duration_since(answered_at))
    }

    /// Whether the figures are stale: a refresh failed, or more than two are missing.
    pub(super) fn is_stale(&self, now: Instant, interval: Duration) -> bool {
        self.is_lost() || self.figures_age(now).is_some_and(|age| age > 2 * interval + Duration::from_secs(1))
    }

    /// The state in a few words.
    pub(super) fn describe_state(&self, now: Instant, interval: Duration) -> String {
        let figures = match self.figures_age(now) {
            Some(age) => format!("figures are {} old", format_duration(age)),
            None => "no figures yet".into(),
        };
        match &self.trouble {
            Some(trouble) => {
                format!(
                    "NO ANSWER for {}, {figures}",
                    format_duration(now.saturating_duration_since(trouble.since))
                )
            }
            None if self.is_stale(now, interval) => format!("waiting, {figures}"),
            None if self.answered_at.is_some() => format!("live, {}", describe_interval(interval)),
            None => "asking".into(),
        }
    }

    /// What went wrong, and when the next try is; `None` = nothing.
    pub(super) fn describe_trouble(&self, now: Instant) -> Option<String> {
        let Trouble { error, next, .. } = self.trouble.as_ref()?;
        let wait = next.saturating_duration_since(now);
        let when = if wait.is_zero() {
            "Trying again now".to_owned()
        } else {
            format!("Trying again in {} s (r: now)", wait.as_secs_f64().ceil())
        };
        Some(format!("{when}: {error}"))
    }
}

fn describe_interval(interval: Duration) -> String {
    format!("every {} s", interval.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_old_and_when_it_tries_again() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let interval = Duration::from_millis(500);
        let mut c = RefreshStatus::default();
        assert_eq!(
            (c.describe_state(at(0.0), interval).as_str(), c.is_stale(at(9.0), interval)),
            ("asking", false)
        );
        c.record_success(at(0.0));
        assert_eq!(c.describe_state(at(1.0), interval), "live, every 0.5 s");
        assert_eq!(c.describe_state(at(3.0), interval), "waiting, figures are 3 s old");
        assert!(c.is_stale(at(3.0), interval) && !c.is_lost() && c.describe_trouble(at(3.0)).is_none());
        c.record_failure("gone".into(), at(3.0), at(4.0));
        c.record_failure("gone".into(), at(4.5), at(6.5));
        assert_eq!(c.describe_state(at(5.2), interval), "NO ANSWER for 2 s, figures are 5 s old");
        assert_eq!(c.describe_trouble(at(5.2)).unwrap(), "Trying again in 2 s (r: now): gone");
        assert_eq!(c.describe_trouble(at(6.5)).unwrap(), "Trying again now: gone");
        c.record_success(at(7.0));
        assert!(!c.is_lost() && !c.is_stale(at(7.5), interval));
    }
}

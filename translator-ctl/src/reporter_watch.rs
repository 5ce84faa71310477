//! `dta-translator watch` for a reporter switch: keeps it programmed, also across restarts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use dta_switch::reporter::ReporterSwitch;

/// Interval between checks of the switch.
const LOOK: Duration = Duration::from_secs(2);
/// Interval between log lines with counters.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Runs until SIGINT or SIGTERM. The switch then continues as it is.
///
/// # Errors
/// A program that it cannot hold, or an invalid address. An unreachable switch is waited for.
pub async fn watch_reporter(mut reporter: ReporterSwitch, switch: &str) -> anyhow::Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (mut is_away, mut is_first, mut logged) = (false, true, LoggedCounters::default());
    loop {
        // A started step is finished before the end, so that the switch holds one whole program.
        match reporter.apply_settings().await {
            Ok(updates) => {
                if is_first || is_away || !updates.is_empty() {
                    info!(switch, updates = updates.len(), "switch programmed");
                }
                (is_first, is_away) = (false, false);
            }
            Err(error) if error.error.is_retryable() => {
                if !is_away {
                    warn!(switch, %error, "cannot program the switch; retrying");
                }
                is_away = true;
            }
            Err(error) => return Err(error.into()),
        }
        if !is_away && logged.at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            logged.log_changed_counters(&mut reporter, switch).await;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stop.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    if !is_away {
        logged.log_changed_counters(&mut reporter, switch).await;
    }
    Ok(())
}

/// The counters last logged, and when.
#[derive(Default)]
struct LoggedCounters {
    at: Option<Instant>,
    counters: BTreeMap<String, u64>,
}

impl LoggedCounters {
    async fn log_changed_counters(&mut self, reporter: &mut ReporterSwitch, switch: &str) {
        let now = match reporter.statistics().await {
            Ok(now) => now.counters.into_iter().map(|counter| (counter.name, counter.value)),
            Err(error) => return warn!(switch, %error, "cannot read the switch's counters"),
        };
        let now: BTreeMap<String, u64> = now.collect();
        let changed = now.iter().filter(|(name, value)| self.counters.get(*name) != Some(*value));
        let words: Vec<String> = changed.map(|(name, value)| format!("{name} {value}")).collect();
        if !words.is_empty() {
            info!(switch, "counters: {}", words.join(", "));
        }
        *self = LoggedCounters { at: Some(Instant::now()), counters: now };
    }
}

//! `dta-translator watch` of a reporter switch: it holds what it should, also after it was restarted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::switches::p4::reporter::ReporterSwitch;

/// Time between two looks at what the switch holds.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two lines of counters.
const TELL: Duration = Duration::from_secs(60);

/// Runs until SIGINT or SIGTERM. The switch goes on as it is then.
///
/// # Errors
/// What it cannot hold, or no way to it. A switch that is away is waited for.
pub async fn watch(mut reporter: ReporterSwitch, switch: &str) -> anyhow::Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (mut is_away, mut is_first, mut told) = (false, true, Told::default());
    loop {
        // What was begun is done before the end: the switch holds one whole program then.
        match reporter.apply().await {
            Ok(updates) => {
                if is_first || is_away || !updates.is_empty() {
                    info!(switch, updates = updates.len(), "the switch is programmed");
                }
                (is_first, is_away) = (false, false);
            }
            Err(error) if error.error.may_pass() => {
                if !is_away {
                    warn!(switch, %error, "the switch cannot be programmed; it is tried again");
                }
                is_away = true;
            }
            Err(error) => return Err(error.into()),
        }
        if !is_away && told.at.is_none_or(|at| at.elapsed() >= TELL) {
            told.tell(&mut reporter, switch).await;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = stop.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    if !is_away {
        told.tell(&mut reporter, switch).await;
    }
    Ok(())
}

/// The counters that were told last, and when.
#[derive(Default)]
struct Told {
    at: Option<Instant>,
    counters: BTreeMap<String, u64>,
}

impl Told {
    /// Tells the counters that have changed.
    async fn tell(&mut self, reporter: &mut ReporterSwitch, switch: &str) {
        let now = match reporter.statistics().await {
            Ok(now) => now.counters.into_iter().map(|counter| (counter.name, counter.value)),
            Err(error) => return warn!(switch, %error, "the counters of the switch cannot be read"),
        };
        let now: BTreeMap<String, u64> = now.collect();
        let changed = now.iter().filter(|(name, value)| self.counters.get(*name) != Some(*value));
        let words: Vec<String> = changed.map(|(name, value)| format!("{name} {value}")).collect();
        if !words.is_empty() {
            info!(switch, "counters: {}", words.join(", "));
        }
        *self = Told { at: Some(Instant::now()), counters: now };
    }
}

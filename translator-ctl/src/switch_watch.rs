//! `dta-translator watch`: keeps a P4 switch in step with its sessions, and flushes what it never sends on
//! its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use dta_proto::program::{DataPlaneChange, Primitive, Program};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, watch};
use tracing::{info, warn};

use crate::cluster::following::{ClusterFollower, DataPlaneSessions};
use crate::config::{Config, TranslatorConfig};
use crate::lease::LeaseEvent;
use crate::targets::{AnySwitch, any_switch, lock_state};
use dta_switch::translator::COLLECTORS;
use dta_switch::{After, ApplyError, Target, TargetError, TargetStatus};

/// Shortest interval between two flushes.
const SHORTEST: Duration = Duration::from_millis(10);
/// A flush reads every place of a switch, which takes a while: at most this fraction of all time.
const SHARE: u32 = 4;
/// Places read at a time; everything else waits for that.
const PART: usize = 1024;

/// Runs until SIGINT or SIGTERM. Calls `ready` when the switch is programmed.
///
/// # Errors
/// A switch that needs no watching, a collector that refuses, a session taken by another translator, or an error of
/// `ready`.
pub async fn watch_switch(
    config: &Config,
    switch: &str,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let target = any_switch(config, switch)?;
    if target.looks_after_itself() {
        bail!(
            "[switch.{switch}] is a software translator, which renews its own lease: start it with `dta-translator run`, without --blank"
        )
    }
    let _locked = lock_state(config, switch)?;
    maintain_switch(&config.translator_of(switch)?, target, ready).await
}

/// A switch that is watched and flushed.
struct WatchedSwitch(Arc<Mutex<AnySwitch>>);

#[tonic::async_trait]
impl Target for WatchedSwitch {
    async fn held_program(&mut self) -> Result<Program, TargetError> {
        self.0.lock().await.held_program().await
    }

    async fn required_changes(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, TargetError> {
        self.0.lock().await.required_changes(want, after).await
    }

    async fn apply_program(
        &mut self,
        want: &Program,
        after: After,
    ) -> Result<Vec<DataPlaneChange>, ApplyError> {
        self.0.lock().await.apply_program(want, after).await
    }

    async fn could_hold(&mut self, want: &Program) -> Result<(), TargetError> {
        self.0.lock().await.could_hold(want).await
    }

    async fn has_restarted(&mut self) -> Result<bool, TargetError> {
        self.0.lock().await.has_restarted().await
    }

    async fn heard_earlier(&mut self, reporters: &[(u16, u32)]) -> Result<(), TargetError> {
        self.0.lock().await.heard_earlier(reporters).await
    }

    async fn read_status(&mut self) -> Result<TargetStatus, TargetError> {
        self.0.lock().await.read_status().await
    }

    async fn flush_all(&mut self) -> Result<u64, TargetError> {
        self.0.lock().await.flush_all().await
    }

    /// It is flushed alongside its lease.
    fn looks_after_itself(&self) -> bool {
        true
    }
}

async fn maintain_switch(
    translator: &TranslatorConfig,
    switch: AnySwitch,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut stop = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (mut cluster, begin) = ClusterFollower::from_config(translator, COLLECTORS)?;
    let mut sessions = DataPlaneSessions::new(begin, translator.frame_endpoint())?;
    let switch = Arc::new(Mutex::new(switch));
    let mut target = WatchedSwitch(switch.clone());
    let report = |event: LeaseEvent<'_>| {
        info!("{event}");
        if event.ready {
            info!("switch programmed");
            ready()?;
        }
        Ok(())
    };
    let mut flushing = std::pin::pin!(flush_by_time(&switch));
    loop {
        let (halt, halted) = watch::channel(false);
        let (mut seen, mut stops) = (None, false);
        {
            let mut leases = std::pin::pin!(sessions.maintain_leases(&mut target, halted, report));
            loop {
                tokio::select! {
                    // An error, or halted: the switch holds one whole program then.
                    ended = &mut leases => {
                        ended?;
                        break;
                    }
                    _ = stop.recv() => stops = true,
                    _ = interrupt.recv() => stops = true,
                    view = cluster.next_view() => seen = Some(view),
                    never = &mut flushing => match never {},
                }
                halt.send_replace(true);
            }
        }
        match seen {
            Some(view) if !stops => drop(cluster.apply_view(&view, std::iter::once(&mut sessions))),
            _ => return Ok(()),
        }
    }
}

/// When to look at a primitive's state next.
struct NextFlush {
    primitive: Primitive,
    at: Instant,
    /// The place to start at.
    first: usize,
}

/// Flushes what is older than the flush times.
async fn flush_by_time(switch: &Mutex<AnySwitch>) -> std::convert::Infallible {
    let mut all: Vec<NextFlush> = Vec::new();
    // Not in the condition, which would keep the switch locked.
    let cannot_command = switch.lock().await.cannot_command();
    if let Some(why) = cannot_command {
        warn!("nothing is flushed by age, and silent RC queue pairs go unnoticed: {why}");
        return std::future::pending().await;
    }
    loop {
        let times = switch.lock().await.flush_times().unwrap_or_default();
        all.retain(|next| times.get(&next.primitive).is_some_and(|after_ms| *after_ms != 0));
        for (primitive, after_ms) in times.into_iter().filter(|(_, after_ms)| *after_ms != 0) {
            let after = Duration::from_millis(after_ms.into()).max(SHORTEST);
            let Some(next) = all.iter_mut().find(|next| next.primitive == primitive) else {
                all.push(NextFlush { primitive, at: Instant::now() + after, first: 0 });
                continue;
            };
            let began = Instant::now();
            if next.at > began {
                continue;
            }
            let older = after_ms.saturating_mul(1000);
            let more = switch.lock().await.flush_places(primitive, older, next.first, PART).await;
            let pause = began.elapsed() * SHARE;
            match more {
                Ok(true) => (next.first, next.at) = (next.first + PART, Instant::now() + pause),
                Ok(false) => (next.first, next.at) = (0, Instant::now() + pause.max(after)),
                Err(error) => {
                    warn!(%error, %primitive, "cannot flush what the switch holds");
                    (next.first, next.at) = (0, Instant::now() + Duration::from_secs(1));
                }
            }
        }
        let due = all.iter().map(|next| next.at).min();
        let wait = due.map_or(Duration::from_secs(1), |at| at.saturating_duration_since(Instant::now()));
        tokio::time::sleep(wait.clamp(SHORTEST, Duration::from_secs(1))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    /// A switch that takes no commands, as a Tofino without `cpu_interface`.
    struct Silent;

    #[tonic::async_trait]
    impl Target for Silent {
        async fn held_program(&mut self) -> Result<Program, TargetError> {
            unreachable!("nothing asks for it")
        }

        async fn required_changes(
            &mut self,
            _: &Program,
            _: After,
        ) -> Result<Vec<DataPlaneChange>, TargetError> {
            unreachable!("nothing asks for it")
        }

        async fn apply_program(&mut self, _: &Program, _: After) -> Result<Vec<DataPlaneChange>, ApplyError> {
            unreachable!("nothing asks for it")
        }

        async fn heard_earlier(&mut self, _: &[(u16, u32)]) -> Result<(), TargetError> {
            unreachable!("nothing asks for it")
        }

        async fn read_status(&mut self) -> Result<TargetStatus, TargetError> {
            unreachable!("nothing asks for it")
        }

        async fn flush_all(&mut self) -> Result<u64, TargetError> {
            unreachable!("nothing asks for it")
        }

        fn looks_after_itself(&self) -> bool {
            false
        }

        fn cannot_command(&self) -> Option<String> {
            Some("it has no CPU port".into())
        }
    }

    #[tokio::test]
    async fn a_switch_that_takes_no_commands_is_not_kept_locked() {
        let switch = Mutex::new(Box::new(Silent) as AnySwitch);
        let mut flushing = std::pin::pin!(flush_by_time(&switch));
        let once =
            |context: &mut std::task::Context<'_>| Poll::Ready(flushing.as_mut().poll(context).is_pending());
        assert!(std::future::poll_fn(once).await);
        assert!(switch.try_lock().is_ok(), "a lease could not be renewed");
    }
}

//! Programs a configured switch: what it should hold, what it holds, and the difference.

use tracing::warn;

use crate::config::{Config, TranslatorConfig};
use crate::program::{Grant, build_program};
use crate::session::{LeasedSession, SessionError};
use crate::software::Remote;
use crate::targets::any_switch;
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Program};
use dta_switch::{After, Target};

/// Sessions with each collector, none of them open.
fn unopened_sessions(config: &TranslatorConfig) -> impl Iterator<Item = Result<LeasedSession, SessionError>> {
    config.collector.indices().map(|collector| LeasedSession::new(config, collector, config.frame_endpoint()))
}

/// The program that all collectors grant together.
fn granted_program(config: &TranslatorConfig, grants: &[Grant]) -> anyhow::Result<Program> {
    let grants: Vec<Option<&Grant>> = grants.iter().map(Some).collect();
    Ok(build_program(&grants, &config.program_settings())?)
}

/// The program of the configured sessions, for display. Nothing changes, neither at a collector nor in a
/// running translator.
pub async fn preview_program(config: &TranslatorConfig) -> anyhow::Result<Program> {
    let mut grants = Vec::new();
    for session in unopened_sessions(config) {
        let mut session = session?;
        let preview = session.preview_grant().await?;
        let (name, collector) = (&config.name, session.collector_address());
        if !preview.is_open {
            warn!(
                session = name,
                collector, "not open: its queue pair numbers and rkeys are not assigned yet, and shown as 0"
            );
        }
        if let Some(translator) = &preview.elsewhere {
            warn!(
                session = name,
                collector, %translator, "open from another address: opening it from here replaces that translator"
            );
        }
        grants.push(preview.grant);
    }
    granted_program(config, &grants)
}

/// Ends the session with each collector, independently of the others. Returns the addresses where it ended,
/// and the others' errors.
pub async fn end_sessions(config: &TranslatorConfig) -> (Vec<String>, Vec<SessionError>) {
    let (mut ended, mut errors) = (Vec::new(), Vec::new());
    for session in unopened_sessions(config) {
        let result = match session {
            Ok(mut session) => {
                session.end_session(Vec::new()).await.map(|()| session.collector_address().to_owned())
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(address) => ended.push(address),
            Err(error) => errors.push(error),
        }
    }
    (ended, errors)
}

/// The changes that a running software translator at `control` needs to hold `want`.
pub async fn required_changes(
    config: &TranslatorConfig,
    control: &str,
    want: &Program,
) -> anyhow::Result<Vec<DataPlaneChange>> {
    Ok(Remote::new(config, control)?.required_changes(want, After::Open).await?)
}

/// Programs a configured switch. Returns the changes that were needed.
pub async fn program_switch(config: &Config, switch: &str) -> anyhow::Result<Vec<DataPlaneChange>> {
    program_target(&config.translator_of(switch)?, &mut *any_switch(config, switch)?).await
}

/// Opens the configured sessions and programs a target. Returns the changes that were needed. After a
/// failure, calling it again does the rest.
pub async fn program_target(
    config: &TranslatorConfig,
    target: &mut dyn Target,
) -> anyhow::Result<Vec<DataPlaneChange>> {
    // Asked before opening a session. A target without a collector's queue pairs knows nothing of earlier
    // frames to it.
    let held = target.held_program().await?;
    let knows = |collector: u8| {
        held.entries()
            .any(|entry| matches!(entry, DataPlaneEntry::QueuePair(pair) if pair.collector == collector))
    };
    let mut grants = Vec::new();
    for session in unopened_sessions(config) {
        let mut session = session?;
        let fresh = !knows(session.collector());
        // No expiry: a switch keeps writing while nobody renews.
        grants.push(session.open(0, fresh).await?.grant);
    }
    let want = granted_program(config, &grants)?;
    Ok(target.apply_program(&want, After::Open).await?)
}

/// Makes a switch send what it holds before its session ends, unless it does so itself. One that cannot be
/// asked has nothing to send.
pub async fn flush_switch(config: &Config, switch: &str) {
    let Ok(mut target) = any_switch(config, switch) else { return };
    if !target.looks_after_itself()
        && let Err(error) = target.flush_all().await
    {
        warn!(%error, "cannot flush the switch before its session ends");
    }
}

/// Removes a session's entries from a switch, unless it does so itself, as a running translator does.
pub async fn clear_switch(config: &Config, switch: &str) -> anyhow::Result<()> {
    let mut target = any_switch(config, switch)?;
    if !target.looks_after_itself() {
        target.apply_program(&Program::default(), After::Renewal).await?;
    }
    Ok(())
}

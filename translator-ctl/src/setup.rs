//! Programming a switch: what it should hold, what it holds, and the difference.

use anyhow::Context as _;
use dta_client::translator::Client;
use dta_grpc::dial::UNIX;
use tracing::warn;

use crate::config::{Config, Translator};
use crate::program::{Grant, build};
use crate::session::{Session, SessionError};
use dta_proto::program::{Change, EntryKey, Program};

/// The session with each collector, none of them open.
fn sessions(config: &Translator) -> impl Iterator<Item = Result<Session, SessionError>> {
    config.collector.indices().map(|collector| Session::new(config, collector, config.endpoint()))
}

/// The program that all collectors grant together.
fn program(config: &Translator, grants: &[Grant]) -> anyhow::Result<Program> {
    let grants: Vec<Option<&Grant>> = grants.iter().map(Some).collect();
    Ok(build(&grants, &config.wanted())?)
}

/// The program of the sessions that the configuration describes, for looking at it. Nothing changes: neither in a collector nor in a
/// running translator.
pub async fn planned(config: &Translator) -> anyhow::Result<Program> {
    let mut grants = Vec::new();
    for session in sessions(config) {
        let mut session = session?;
        let preview = session.preview().await?;
        let (name, collector) = (&config.name, session.address());
        if !preview.is_open {
            warn!(
                session = name,
                collector, "not open: its queue pair numbers and keys are not given out yet, and shown as 0"
            );
        }
        if let Some(translator) = &preview.elsewhere {
            warn!(
                session = name,
                collector, %translator, "open for another address: to open it from here replaces that translator"
            );
        }
        grants.push(preview.grant);
    }
    program(config, &grants)
}

/// Ends the session with each collector; what one refuses keeps no other from ending. Gives the addresses of those that have ended, and
/// what the others said.
pub async fn teardown(config: &Translator) -> (Vec<String>, Vec<SessionError>) {
    let (mut ended, mut errors) = (Vec::new(), Vec::new());
    for session in sessions(config) {
        let result = match session {
            Ok(mut session) => session.end(Vec::new()).await.map(|()| session.address().to_owned()),
            Err(error) => Err(error),
        };
        match result {
            Ok(address) => ended.push(address),
            Err(error) => errors.push(error),
        }
    }
    (ended, errors)
}

/// The changes that a running software translator needs to hold `want`. Keys that it holds are not told, and are 0.
pub async fn lacks(config: &Translator, control: &str, want: &Program) -> anyhow::Result<Vec<Change>> {
    is_for_keys(config, control)?;
    let told = Client::connect_lazy(control)?.compare_program(serde_json::to_string(want)?).await?;
    changes(&told, want)
}

/// Brings a switch of the configuration to what it should hold. Gives the changes that were needed.
pub async fn setup(config: &Config, switch: &str) -> anyhow::Result<Vec<Change>> {
    let control = &config.switch(switch)?.control;
    // Asked before a session is opened for it. One that holds no queue pair of a collector knows nothing of frames to it before.
    let holds = lacks(&config.translator, control, &Program::default()).await?;
    let knows = |collector: u8| {
        holds.iter().any(|change| matches!(change.key(), EntryKey::QueuePair(of, _) if of == collector))
    };
    let mut grants = Vec::new();
    for session in sessions(&config.translator) {
        let mut session = session?;
        let fresh = !knows(session.collector());
        // Without expiry: a switch goes on writing while nobody renews.
        grants.push(session.open(0, fresh).await?.grant);
    }
    let want = program(&config.translator, &grants)?;
    let told = Client::connect_lazy(control)?.apply_program(serde_json::to_string(&want)?).await?;
    changes(&told, &want)
}

/// Refuses to send keys that came with TLS to a port that any program of this host may have taken.
fn is_for_keys(config: &Translator, control: &str) -> anyhow::Result<()> {
    anyhow::ensure!(
        config.tls.is_none() || control.starts_with(UNIX),
        "the keys to the collector's memory came with TLS and would go to {control} without: let the translator serve its control on \
         a unix socket (`control = \"unix:PATH\"`), and give that address"
    );
    Ok(())
}

/// Changes as a translator tells them, with the keys of what is wanted put back.
fn changes(text: &str, want: &Program) -> anyhow::Result<Vec<Change>> {
    let mut changes: Vec<Change> = serde_json::from_str(text)
        .context("the translator's answer cannot be read: is it of another version?")?;
    for change in &mut changes {
        if let Change::Insert { entry } | Change::Modify { to: entry, .. } = change
            && let Some(wanted) = want.get(&entry.key())
        {
            *entry = wanted.clone();
        }
    }
    Ok(changes)
}

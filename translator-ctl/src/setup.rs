//! Programming a switch: what it should hold, what it holds, and the difference.

use anyhow::Context as _;
use dta_client::translator::Client;
use dta_grpc::dial::UNIX;
use tracing::warn;

use crate::config::{Config, Translator};
use crate::session::Session;
use dta_proto::program::{Change, EntryKey, Program};

/// The program of the session that the configuration describes, for looking at it. Nothing changes: neither in the collector nor in a
/// running translator.
pub async fn planned(config: &Translator) -> anyhow::Result<Program> {
    let preview = Session::new(config, config.endpoint())?.preview().await?;
    if !preview.is_open {
        warn!(
            session = config.name,
            "not open: its queue pair numbers and keys are not given out yet, and shown as 0"
        );
    }
    if let Some(translator) = &preview.elsewhere {
        warn!(session = config.name, %translator, "open for another address: to open it from here replaces that translator");
    }
    Ok(preview.program)
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
    // Asked before a session is opened for it. One that holds no queue pair knows nothing of frames before.
    let holds = lacks(&config.translator, control, &Program::default()).await?;
    let fresh = !holds.iter().any(|change| matches!(change.key(), EntryKey::QueuePair(..)));
    // Without expiry: a switch goes on writing while nobody renews.
    let want = Session::new(&config.translator, config.translator.endpoint())?.open(0, fresh).await?.program;
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

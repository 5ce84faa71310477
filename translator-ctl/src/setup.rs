//! Programming a switch of the configuration: what it should hold, what it holds, and the difference.

use tracing::warn;

use crate::config::{Config, Switch, Translator};
use crate::session::Session;
use crate::target::software::Remote;
use crate::target::{After, Target};
use dta_proto::program::{Change, Entry, Program};

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

/// The changes that a running software translator at `control` needs to hold `want`.
pub async fn lacks(config: &Translator, control: &str, want: &Program) -> anyhow::Result<Vec<Change>> {
    Ok(Remote::new(config, control)?.lacks(want, After::Open).await?)
}

/// The changes that a switch of the configuration needs to hold `want`.
pub async fn switch_lacks(config: &Config, switch: &str, want: &Program) -> anyhow::Result<Vec<Change>> {
    let translator = config.translator_of(switch)?;
    match config.switch(switch)? {
        Switch::Software(software) => lacks(&translator, &software.control, want).await,
    }
}

/// Brings a switch of the configuration to what it should hold. Gives the changes that were needed.
pub async fn setup(config: &Config, switch: &str) -> anyhow::Result<Vec<Change>> {
    let translator = config.translator_of(switch)?;
    match config.switch(switch)? {
        Switch::Software(software) => {
            set_up(&translator, &mut Remote::new(&translator, &software.control)?).await
        }
    }
}

/// Opens the session that `config` describes, and makes a target hold its program. Gives the changes that were needed. After a
/// failure it can be called again, and does what was left.
pub async fn set_up(config: &Translator, target: &mut impl Target) -> anyhow::Result<Vec<Change>> {
    // Asked before a session is opened for it. One that holds no queue pair knows nothing of frames before.
    let held = target.held().await?;
    let fresh = !held.entries().any(|entry| matches!(entry, Entry::QueuePair(_)));
    // Without expiry: a switch goes on writing while nobody renews.
    let want = Session::new(config, config.endpoint())?.open(0, fresh).await?.program;
    Ok(target.apply(&want, After::Open).await?)
}

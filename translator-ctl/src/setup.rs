//! Programming a switch: what it should hold, what it holds, and the difference.

use anyhow::Context as _;
use dta_proto::control::{ApplyProgramRequest, ReadProgramRequest};
use tracing::warn;

use crate::client;
use crate::config::{Config, Translator};
use crate::program::{Change, Program, take_up};
use crate::session::Session;

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

/// What a running software translator holds.
pub async fn held(control: &str) -> anyhow::Result<Program> {
    let mut client = client::translator(control)?;
    let answer =
        client.read_program(ReadProgramRequest {}).await.map_err(|s| unreachable(control, &s))?.into_inner();
    serde_json::from_str(&answer.program)
        .context("the translator's program cannot be read: is it of another version?")
}

/// Brings a switch of the configuration to what it should hold. Gives the changes that were needed.
pub async fn setup(config: &Config, switch: &str) -> anyhow::Result<Vec<Change>> {
    let target = config.switch(switch)?;
    let have = held(&target.control).await?;
    // Without expiry: a switch goes on writing while nobody renews. One that has just started knows
    // nothing of frames before.
    let fresh = have.generation().is_none();
    let want = Session::new(&config.translator, config.translator.endpoint())?.open(0, fresh).await?.program;
    let changes = take_up(&have, &want);
    if !changes.is_empty() {
        let text = serde_json::to_string(&changes)?;
        let mut client = client::translator(&target.control)?;
        client
            .apply_program(ApplyProgramRequest { changes: text })
            .await
            .map_err(|s| unreachable(&target.control, &s))?;
    }
    Ok(changes)
}

/// An error of a running translator's service, with what to do.
pub fn unreachable(control: &str, status: &tonic::Status) -> anyhow::Error {
    match status.code() {
        tonic::Code::Unavailable | tonic::Code::Unknown => anyhow::anyhow!(
            "no translator answers at {control}: start one (`dta-translator run`) or give its address ({})",
            status.message()
        ),
        _ => anyhow::anyhow!("the translator at {control} says: {}", status.message()),
    }
}

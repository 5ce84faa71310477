//! Programming a switch of the configuration: what it should hold, what it holds, and the difference.

use tracing::warn;

use crate::config::{Config, P4, Switch, Translator};
use crate::program::{Grant, build};
use crate::session::{Session, SessionError};
use crate::switches::p4::P4Switch;
use crate::switches::p4::bfruntime::BfRuntime;
use crate::switches::p4::p4runtime::P4Runtime;
use crate::switches::p4::pipeline::TRANSLATOR;
use crate::switches::software::Remote;
use crate::switches::{After, Target, TargetError};
use dta_client::translator::Client;
use dta_proto::control::NodeStatistics;
use dta_proto::program::{Change, Entry, Program};

/// The session with each collector, none of them open.
fn sessions(config: &Translator) -> impl Iterator<Item = Result<Session, SessionError>> {
    config.collector.indices().map(|collector| Session::new(config, collector, config.endpoint()))
}

/// The program that all collectors grant together.
fn program(config: &Translator, grants: &[Grant]) -> anyhow::Result<Program> {
    let grants: Vec<Option<&Grant>> = grants.iter().map(Some).collect();
    Ok(build(&grants, &config.wanted())?)
}

/// The program of the sessions that the configuration describes, for looking at it. Nothing
/// changes: neither in a collector nor in a running translator.
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

/// Ends the session with each collector; what one refuses keeps no other from ending. Gives the
/// addresses of those that have ended, and what the others said.
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

/// The changes that a running software translator at `control` needs to hold `want`.
pub async fn lacks(config: &Translator, control: &str, want: &Program) -> anyhow::Result<Vec<Change>> {
    Ok(Remote::new(config, control)?.lacks(want, After::Open).await?)
}

/// The changes that a switch of the configuration needs to hold `want`.
pub async fn switch_lacks(config: &Config, switch: &str, want: &Program) -> anyhow::Result<Vec<Change>> {
    let translator = config.translator_of(switch)?;
    match config.switch(switch)? {
        Switch::Software(software) => lacks(&translator, &software.control, want).await,
        Switch::Bmv2(p4) => Ok(bmv2(switch, p4, &translator)?.lacks(want, After::Open).await?),
        Switch::Tofino(p4) => Ok(tofino(switch, p4, &translator)?.lacks(want, After::Open).await?),
    }
}

/// The switch of this name, which is a bmv2. Nothing is asked yet.
///
/// # Errors
/// A configuration that cannot be used.
pub fn bmv2(switch: &str, p4: &P4, translator: &Translator) -> Result<P4Switch<P4Runtime>, TargetError> {
    may_have_keys(p4, translator)?;
    Ok(P4Switch::new(P4Runtime::new(p4, &TRANSLATOR)?, switch, p4, translator))
}

/// The switch of this name, which has a Tofino. Nothing is asked yet.
///
/// # Errors
/// A configuration that cannot be used.
pub fn tofino(switch: &str, p4: &P4, translator: &Translator) -> Result<P4Switch<BfRuntime>, TargetError> {
    may_have_keys(p4, translator)?;
    Ok(P4Switch::new(BfRuntime::new(p4, &TRANSLATOR)?, switch, p4, translator))
}

/// Whether the switch may be told remote keys.
fn may_have_keys(p4: &P4, translator: &Translator) -> Result<(), TargetError> {
    // The keys have to reach the switch, and it has no TLS.
    if translator.tls.is_some() && !p4.insecure && !is_local(&p4.control) {
        return Err(TargetError::Refused(format!(
            "the keys to the collector's memory came with TLS and would go to {} without: set `insecure = true` if nobody else is on that \
             network",
            p4.control
        )));
    }
    Ok(())
}

/// Whether an address is of this host alone.
fn is_local(control: &str) -> bool {
    let host = control.trim_start_matches("http://").rsplit_once(':').map_or(control, |(host, _)| host);
    host == "localhost"
        || host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Brings a switch of the configuration to what it should hold. Gives the changes that were needed.
pub async fn setup(config: &Config, switch: &str) -> anyhow::Result<Vec<Change>> {
    let translator = config.translator_of(switch)?;
    match config.switch(switch)? {
        Switch::Software(software) => {
            set_up(&translator, &mut Remote::new(&translator, &software.control)?).await
        }
        Switch::Bmv2(p4) => set_up(&translator, &mut bmv2(switch, p4, &translator)?).await,
        Switch::Tofino(p4) => set_up(&translator, &mut tofino(switch, p4, &translator)?).await,
    }
}

/// Opens the sessions that `config` describes, and makes a target hold its program. Gives the
/// changes that were needed. After a failure it can be called again, and does what was left.
pub async fn set_up(config: &Translator, target: &mut impl Target) -> anyhow::Result<Vec<Change>> {
    // Asked before a session is opened for it. One that holds no queue pair of a collector knows
    // nothing of frames to it before.
    let held = target.held().await?;
    let knows = |collector: u8| {
        held.entries().any(|entry| matches!(entry, Entry::QueuePair(pair) if pair.collector == collector))
    };
    let mut grants = Vec::new();
    for session in sessions(config) {
        let mut session = session?;
        let fresh = !knows(session.collector());
        // Without expiry: a switch goes on writing while nobody renews.
        grants.push(session.open(0, fresh).await?.grant);
    }
    let want = program(config, &grants)?;
    Ok(target.apply(&want, After::Open).await?)
}

/// What a switch of the configuration holds. Keys that it does not tell are 0.
pub async fn held(config: &Config, switch: &str) -> anyhow::Result<Program> {
    let translator = config.translator_of(switch)?;
    Ok(match config.switch(switch)? {
        Switch::Software(software) => Remote::new(&translator, &software.control)?.held().await?,
        Switch::Bmv2(p4) => bmv2(switch, p4, &translator)?.held().await?,
        Switch::Tofino(p4) => tofino(switch, p4, &translator)?.held().await?,
    })
}

/// What a switch of the configuration counts.
pub async fn statistics(config: &Config, switch: &str) -> anyhow::Result<Vec<NodeStatistics>> {
    let translator = config.translator_of(switch)?;
    Ok(match config.switch(switch)? {
        Switch::Software(software) => Client::connect_lazy(&software.control)?.statistics().await?,
        Switch::Bmv2(p4) => bmv2(switch, p4, &translator)?.statistics().await?,
        Switch::Tofino(p4) => tofino(switch, p4, &translator)?.statistics().await?,
    })
}

/// Makes a switch of the configuration send what it holds. Gives how many reports that were.
pub async fn flush(config: &Config, switch: &str) -> anyhow::Result<u64> {
    let translator = config.translator_of(switch)?;
    Ok(match config.switch(switch)? {
        Switch::Software(software) => Client::connect_lazy(&software.control)?.flush().await?,
        Switch::Bmv2(p4) => bmv2(switch, p4, &translator)?.flush_all().await?,
        Switch::Tofino(p4) => tofino(switch, p4, &translator)?.flush_all().await?,
    })
}

/// Lets a P4 switch send what it holds before its session ends. One that cannot be asked has nothing to send.
pub async fn send_all(config: &Config, switch: &str) {
    if !matches!(config.switch(switch), Ok(Switch::Bmv2(_) | Switch::Tofino(_))) {
        return;
    }
    if let Err(error) = flush(config, switch).await {
        warn!(%error, "what the switch holds could not be sent before its session ends");
    }
}

/// Takes all of a session out of a P4 switch. A running translator does that by itself.
pub async fn empty(config: &Config, switch: &str) -> anyhow::Result<()> {
    let translator = config.translator_of(switch)?;
    match config.switch(switch)? {
        Switch::Software(_) => Ok(()),
        Switch::Bmv2(p4) => {
            bmv2(switch, p4, &translator)?.apply(&Program::default(), After::Renewal).await?;
            Ok(())
        }
        Switch::Tofino(p4) => {
            tofino(switch, p4, &translator)?.apply(&Program::default(), After::Renewal).await?;
            Ok(())
        }
    }
}

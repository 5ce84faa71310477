//! Reloading the configuration (SIGHUP): everything that can change at run time, or nothing.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::bail;
use dta_proto::program::Endpoint;
use futures_util::future::join_all;
use tracing::{error, info, warn};

use crate::config::TranslatorConfig;
use crate::packets::Command;
use crate::program::Grant;
use crate::session::{LeasedSession, SessionError};

use super::lanes::Lane;

pub type Read<'a> = dyn Fn() -> anyhow::Result<TranslatorConfig> + 'a;

pub(super) type Asked<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Option<PreparedReload>>> + 'a>>;

/// What can change at run time: keys of `[translator]`, with everything below them.
const CHANGEABLE: &[&str] = &[
    "collector.stores",
    "collector.lists",
    "collector.buckets",
    "stores",
    "lists",
    "lease_seconds",
    "flush",
    "version0",
    "version0_nacks",
    "sketch_reporters",
    "reporters",
    "tls.ca",
    "tls.cert",
    "tls.key",
    "tls.domain",
];

const ASK: Duration = Duration::from_secs(5);

/// A configuration that passed the checks.
pub(super) struct PreparedReload {
    config: TranslatorConfig,
    changed: Vec<String>,
    /// What the collectors that answered would grant.
    granted: Vec<(u8, Grant)>,
}

/// Reads the configuration, and checks whether this translator can switch to it. `None` if there is nothing
/// to do. Nothing changes.
///
/// # Errors
/// What is wrong with it, or cannot change.
pub(super) async fn prepare_reload(
    old: &TranslatorConfig,
    endpoint: &Endpoint,
    blank: bool,
    read: &Read<'_>,
) -> anyhow::Result<Option<PreparedReload>> {
    let mut config = read()?;
    if old.cluster.is_some() && config.cluster.is_some() {
        // The collectors are those of the cluster.
        config.collector = old.collector.clone();
    }
    let mut changed = dta_files::config_file::changed_keys(old, &config);
    // The set of collectors cannot change; what to use at them can.
    if let Some(at) = changed.iter().position(|key| key == "collector") {
        let what = old.collector.changed_settings(&config.collector);
        changed.splice(at..=at, what.into_iter().map(|field| format!("collector.{field}")));
    }
    let can = |key: &&String| {
        let under = |name: &&&str| {
            key.strip_prefix(**name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        CHANGEABLE.iter().any(|name| under(&name))
    };
    let fixed: Vec<String> =
        changed.iter().filter(|key| !can(key)).map(|key| format!("translator.{key}")).collect();
    if !fixed.is_empty() {
        bail!("{} cannot change while the translator runs: restart it for that", fixed.join(", "));
    }
    if changed.is_empty() && config.tls.is_none() {
        info!("configuration reloaded: nothing has changed");
        return Ok(None);
    }
    let mut sessions: Vec<LeasedSession> = (config.collector.indices())
        .map(|collector| LeasedSession::new(&config, collector, *endpoint))
        .collect::<Result<_, _>>()?;
    let mut granted = Vec::new();
    if !blank {
        let asked = sessions.iter_mut().map(|session| async {
            let collector = session.collector();
            (collector, tokio::time::timeout(ASK, session.preview_grant()).await)
        });
        for (collector, answer) in join_all(asked).await {
            let address = config.collector.address_at(collector);
            match answer {
                Ok(Ok(preview)) => granted.push((collector, preview.grant)),
                Ok(Err(error @ (SessionError::Refused(_) | SessionError::Security(_)))) => {
                    bail!(error)
                }
                Ok(Err(error)) => {
                    warn!(collector = address, %error, "the collector may refuse the new configuration")
                }
                Err(_) => {
                    warn!(
                        collector = address,
                        "the collector does not answer; it may refuse the new configuration"
                    )
                }
            }
        }
    }
    Ok(Some(PreparedReload { config, changed, granted }))
}

/// Switches to a configuration. The leases must be halted.
///
/// # Errors
/// The data plane cannot hold what it needs. Nothing has changed then.
pub(super) async fn take(
    new: PreparedReload,
    config: &mut TranslatorConfig,
    lanes: &mut [Lane],
) -> anyhow::Result<()> {
    let PreparedReload { config: mut wanted, changed, granted } = new;
    if wanted.cluster.is_some() {
        // Collectors may have come and gone since.
        wanted.collector = config.collector.clone();
    }
    let mut again = Vec::new();
    for (worker, lane) in lanes.iter_mut().enumerate() {
        let wanted = wanted.of_worker(worker);
        // The other workers' grants differ only in queue pair numbers and rkeys.
        let granted = granted.clone();
        lane.sessions
            .kept
            .could_hold(&wanted, &mut lane.target, granted)
            .await
            .map_err(anyhow::Error::msg)?;
        let sessions = lane.sessions.all.iter().map(|session| session.with_config(&wanted));
        again.push((sessions.collect::<Result<Vec<_>, _>>()?, wanted));
    }
    for lane in &*lanes {
        let listed = wanted.accepted_reporters();
        lane.target.send_command(|reply| Command::Reception(listed, wanted.version0_nacks, reply)).await?;
    }
    let changed = match &changed[..] {
        [] => "only the TLS files were reloaded".into(),
        changed => changed.iter().map(|key| format!("translator.{key}")).collect::<Vec<_>>().join(", "),
    };
    info!(changed, "configuration reloaded");
    *config = wanted;
    for (lane, (sessions, config)) in lanes.iter_mut().zip(again) {
        (lane.sessions.all, lane.sessions.config) = (sessions, config);
    }
    Ok(())
}

pub(super) fn log_refusal(why: &anyhow::Error) {
    let why = dta_cli::error_line(why);
    error!(error = why, "configuration not reloaded: nothing has changed");
}

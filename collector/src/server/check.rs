//! Checks made before a collector starts.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::bail;
use dta_export::names::Names;
use dta_memory::nic::Device;
use dta_proto::store::StoreSpec;
use dta_proto::trace;
use dta_rpc::transport::tls::{self, ServerFiles, ServerTls};

use super::certificate;
use crate::alerts::deliver::check_receivers;
use crate::config::{Config, MemoryBacking};
use crate::epochs;

/// Checks whether a collector with this configuration could start: TLS files, and room for the stores. Opens
/// and changes nothing. Returns warnings, in sentences.
pub fn check_config(config: &Config) -> anyhow::Result<Vec<String>> {
    let tls = checked_tls(config)?;
    config.alerts.to_rules(&*load_names(config)?)?;
    let soon = tls.and_then(|tls| certificate::expiry_warning(&tls.validity, SystemTime::now()));
    let path = config.tls.as_ref().map(|tls| tls.cert.display().to_string()).unwrap_or_default();
    let soon = soon.map(|warning| format!("the TLS certificate {path} {warning}"));
    let exposure = exposure_warnings(config);
    let lacks = |name: &str| config.stores.iter().all(|store| store.name != name);
    let no_events = (config.export.has_events() && lacks(&config.export.events)).then(|| {
        format!(
            "no events will be exported: there is no store {:?} of events ([export] events)",
            config.export.events
        )
    });
    let no_hosts = (config.export.has_host_traces() && lacks(trace::store::EVENTS)).then(|| {
        format!("no traces of hosts will be exported: there is no store {:?}", trace::store::EVENTS)
    });
    let clickhouse = config.history.clickhouse.as_ref().filter(|clickhouse| clickhouse.user.is_some());
    let in_clear = clickhouse
        .and_then(|clickhouse| dta_export::run::clear_text_warning("history.clickhouse", &clickhouse.url));
    let alert_receivers = check_receivers(&config.alerts).map_err(anyhow::Error::msg)?;
    Ok(soon
        .into_iter()
        .chain(exposure)
        .chain(no_events)
        .chain(no_hosts)
        .chain(in_clear)
        .chain(dta_export::run::config_warnings(&config.export))
        .chain(alert_receivers)
        .collect())
}

/// Checks that each operation on these stores fits one packet of the device.
///
/// # Errors
/// The first store whose batches are too large.
pub(super) fn check_path_mtu(stores: &[StoreSpec], device: &Device) -> anyhow::Result<()> {
    match stores.iter().find(|store| store.element_len() > device.mtu.into()) {
        Some(store) => bail!(
            "store {:?} has batches of {} bytes, but a packet of the device {:?} carries {} (its path MTU): set a smaller \
             batch_len, or raise the MTU of the interface and restart",
            store.name,
            store.element_len(),
            device.name,
            device.mtu
        ),
        None => Ok(()),
    }
}

pub(super) fn tls_files(config: &Config) -> Option<ServerFiles<'_>> {
    let tls = config.tls.as_ref()?;
    Some(ServerFiles { cert: &tls.cert, key: &tls.key, client_ca: &tls.client_ca })
}

/// Warns about what others could use or read but should not.
pub(super) fn exposure_warnings(config: &Config) -> Vec<String> {
    tls::exposure_warnings(config.listen, tls_files(config).as_ref(), "get keys to memory")
}

pub(super) fn load_names(config: &Config) -> anyhow::Result<Arc<Names>> {
    let (names, path) = Names::find_and_load(config.names.as_deref())?;
    if let Some(path) = path {
        tracing::debug!(path = %path.display(), "names of switches, ports and drop reasons read");
    }
    Ok(Arc::new(names))
}

/// Like [`check_config`], but returns the checked TLS.
pub(super) fn checked_tls(config: &Config) -> anyhow::Result<Option<ServerTls>> {
    config.validate()?;
    let tls = tls_files(config).map(|files| tls::load_server_tls(&files, SystemTime::now())).transpose()?;
    dta_export::run::check_exporters(&config.export)?;
    config.clickhouse()?;
    let need = |store: &StoreSpec| epochs::memory_len(store, config.epochs.contains_key(&store.name));
    let need = config.stores.iter().map(need).fold(0, u64::saturating_add);
    let (have, place) = match &config.memory {
        MemoryBacking::Anonymous => {
            let system = rustix::system::sysinfo();
            let ram = system.totalram as u64;
            (ram.saturating_mul(system.mem_unit.into()), "this machine's memory".to_owned())
        }
        MemoryBacking::Directory(dir) => {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.clone());
            let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
            let fail =
                |errno: rustix::io::Errno| super::directory::directory_error("look at", &dir, errno.into());
            let system = rustix::fs::statvfs(there).map_err(fail)?;
            let place = format!("the file system of {}", dir.display());
            (system.f_blocks.saturating_mul(system.f_frsize), place)
        }
    };
    anyhow::ensure!(
        need <= have,
        "the stores need {need} bytes, but {place} has {have} in all; make them smaller, or choose another place with --memory"
    );
    Ok(tls)
}

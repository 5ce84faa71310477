//! Reloads the configuration of a running collector: either all changes take effect, or none.

use anyhow::{bail, ensure};
use dta_files::config_file::changed_keys;
use dta_proto::queue_pair::Purpose;
use dta_proto::store::StoreSpec;

use super::{Grpc, RunningCollector, alerts, check, notify, operators, serve_grpc};
use crate::alerts::deliver::check_receivers;
use crate::config::Config;

impl RunningCollector {
    /// Switches to another configuration: reloads TLS files, applies new limits and operators, and serves
    /// added stores. Existing connections may finish their calls and are asked to reconnect; tails go on.
    /// Returns what has changed, in words.
    ///
    /// # Errors
    /// Something changed that cannot change while a collector runs, or a collector with this configuration
    /// would not start. Then nothing has changed.
    pub async fn reload_config(&mut self, new: &Config) -> anyhow::Result<Vec<String>> {
        let restart = "cannot change while the collector runs: restart it for that";
        let fixed = changed_fixed_keys(&self.config, new);
        ensure!(fixed.is_empty(), "{} {restart}", fixed.join(", "));
        let tls = check::checked_tls(new)?;
        let rules = new.alerts.to_rules(&self.names)?;
        check_receivers(&new.alerts).map_err(anyhow::Error::msg)?;
        if let Some(store) = new.epochs.keys().find(|name| self.stores.get(name).is_err()) {
            // The thread for its epochs would have to start with it.
            bail!("store {store} (epoch) {restart}");
        }
        #[cfg(feature = "web")]
        let page_access = match &self.page {
            Some(page) => Some(super::web::load_access(new)?).filter(|access| !page.has_access(access)),
            None => None,
        };
        #[cfg(feature = "web")]
        let page_tls = match new.web.exposed_address() {
            Some(_) => super::web::load_page_tls(new)?,
            None => None,
        };
        let added: Vec<StoreSpec> =
            new.stores.iter().filter(|store| !self.config.stores.contains(store)).cloned().collect();
        check::check_path_mtu(&added, &self.device)?;
        let needs_atomics =
            |store: &&StoreSpec| store.kind.primitive().queue_pair_purpose() == Purpose::Atomic;
        if let (Some(store), false) = (added.iter().find(needs_atomics), self.device.atomics) {
            bail!(
                "store {:?} needs atomics, which the device {:?} does not have; leave the store out",
                store.name,
                self.device.name
            );
        }
        let mut changed = changed_keys(&self.config.limits, &new.limits);
        changed.iter_mut().for_each(|key| *key = format!("limits.{key}"));
        if let (Some(old), Some(new)) = (&self.config.tls, &new.tls) {
            changed.extend(changed_keys(old, new).into_iter().map(|key| format!("tls.{key}")));
            changed.push("the TLS files".into());
        }
        changed.extend(added.iter().map(|store| format!("store {} (new)", store.name)));
        changed.extend((self.config.alerts != new.alerts).then(|| "alerts".to_owned()));
        #[cfg(feature = "web")]
        changed.extend(page_access.as_ref().map(|_| "hosts or token of the page".to_owned()));
        if changed.is_empty() {
            return Ok(changed);
        }
        // Steps that can fail come first, memory last, so that nothing has to be rolled back.
        let service = self.service.clone().with_operators(operators(new)).with_limits(&new.limits);
        let service = service.with_replicas(new.replicas.clone());
        if !added.is_empty() {
            let (stores, specs) = (self.stores.clone(), added.clone());
            tokio::task::spawn_blocking(move || stores.add(&specs)).await??;
        }
        let stopped = &self.stopped;
        let connections = self.connections.clone();
        let validity = tls.as_ref().map(|tls| tls.validity);
        let next = serve_grpc(self.listener.clone(), new, tls, &service, &self.health, connections, stopped)?;
        let Grpc { task, halt, certificate } = std::mem::replace(&mut self.grpc, next);
        halt.send_replace(true);
        // Connections accepted from here on use the new configuration.
        halt.closed().await;
        if let Some(certificate) = certificate {
            certificate.abort();
        }
        self.former.retain(|former| !former.is_finished());
        self.former.push(task);
        if !self.wakes && notify::is_wanted(&self.stores) {
            self.wakes = true;
            self.tasks.push(notify::spawn_notifier(
                self.nic.clone(),
                service.wake_signal(),
                self.stopped.clone(),
            ));
        }
        self.metrics.set_certificate(validity);
        #[cfg(feature = "web")]
        if let Some(page) = &self.page {
            page.set_tls(page_tls);
            if let Some(access) = page_access {
                page.set_access(access);
            }
            self.page_members.reload_tls(new);
        }
        self.metrics.follow_telemetry(&new.metrics, &self.names, &self.stores);
        self.metrics.follow_traffic(&new.metrics, &self.names, &self.stores);
        if self.config.alerts != new.alerts {
            let page = self.page_url().unwrap_or_default();
            self.alert_deliveries = alerts::start_deliveries(new, page, &self.alerts)?;
        }
        if self.config.alerts != new.alerts || !added.is_empty() {
            self.alert_rules.change_rules(rules, &self.alerts, &self.stores, &self.names)?;
        }
        if let Some(membership) = &self.membership {
            membership.has_stores_of(new);
        }
        self.service = service;
        self.config = new.clone();
        Ok(changed)
    }
}

/// The keys that differ but cannot change while a collector runs.
fn changed_fixed_keys(old: &Config, new: &Config) -> Vec<String> {
    let mut keys = Vec::new();
    for (key, differs) in [
        ("collector.name", old.name != new.name),
        ("collector.listen", old.listen != new.listen),
        ("collector.insecure", old.insecure != new.insecure),
        ("collector.memory", old.memory != new.memory),
        ("collector.device", old.device != new.device),
        ("collector.transport", old.transport != new.transport),
        ("collector.names", old.names != new.names),
        ("cluster", old.cluster != new.cluster),
        ("tls", old.tls.is_some() != new.tls.is_some()),
        ("web.listen", old.web.listen != new.web.listen),
        // Connections made with a token could not be told apart from those made without one.
        ("web.token_file", old.web.token_file.is_some() != new.web.token_file.is_some()),
    ] {
        if differs {
            keys.push(key.to_owned());
        }
    }
    keys.extend(changed_keys(&old.soft, &new.soft).into_iter().map(|key| format!("soft.{key}")));
    keys.extend(changed_keys(&old.metrics, &new.metrics).into_iter().map(|key| format!("metrics.{key}")));
    keys.extend(changed_keys(&old.verbs, &new.verbs).into_iter().map(|key| format!("verbs.{key}")));
    keys.extend(changed_keys(&old.export, &new.export).into_iter().map(|key| format!("export.{key}")));
    keys.extend(changed_keys(&old.history, &new.history).into_iter().map(|key| format!("history.{key}")));
    for store in &old.stores {
        if old.epochs.get(&store.name) != new.epochs.get(&store.name) {
            keys.push(format!("store {} (epoch)", store.name));
        }
        if old.replicas.get(&store.name) != new.replicas.get(&store.name) {
            keys.push(format!("store {} (spread_copies or replicas)", store.name));
        }
        match new.stores.iter().find(|other| other.name == store.name) {
            Some(other) if other == store => {}
            Some(_) => keys.push(format!("store {}", store.name)),
            None => keys.push(format!("store {} (removed)", store.name)),
        }
    }
    keys
}

//! Alerts in etcd, apart from the keys of the placement, so that watching those does not bring these. The
//! prefix is `/dta-alerts/` if that of the placement is `/dta/`; below it are:
//!
//! | key | value |
//! |---|---|
//! | `found/FINGERPRINT/ID` | an [`Alert`] as JSON that the collector finds, firing or lately resolved, under its lease |
//! | `keeper` | id of the collector that writes the log and delivers it, under that one's lease |
//! | `log/NUMBER` | an [`AlertTransition`] as JSON |
//! | `delivered/RECEIVER` | the number of the last transition that a receiver has |
//!
//! A keeper's writes take effect only if it still is the keeper.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_files::moment;
use dta_proto::control::{Alert, AlertTransition};
use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, KeyValue, PutOptions, Txn, TxnOp, WatchOptions,
    WatchStream,
};
use tokio::sync::watch;

use super::follow::Turns;
use super::lease::obtain_lease;
use crate::alerts::{AlertChannels, DeliveryNote, LogKeeper};
use crate::{AlertLog, ClusterAlerts, Config, EtcdError};

/// Keys to read or write at a time: an alert takes a few KiB, and etcd accepts 1.5 MiB.
const BATCH: usize = 64;
/// How often the keeper looks for alerts that nobody finds any more.
const KEEP_EVERY: Duration = Duration::from_secs(5);

/// Lets a collector take part in the alerts of its cluster, in a task that keeps trying while etcd is
/// unreachable.
pub fn join_alerts(config: Config, id: String) -> Result<ClusterAlerts, EtcdError> {
    Ok(ClusterAlerts::start(|channels| AlertMember { config, id, channels, lease: None }.run()))
}

struct AlertMember {
    config: Config,
    id: String,
    channels: AlertChannels,
    /// The last lease, which may still hold when a connection breaks.
    lease: Option<i64>,
}

/// The log in etcd, and its keeper.
struct WatchedLog {
    log: AlertLog,
    keeper: Option<ElectedKeeper>,
    prefix: String,
    changes: WatchStream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ElectedKeeper {
    lease: i64,
    created: i64,
}

fn alerts_prefix(config: &Config) -> String {
    format!("{}-alerts/", config.prefix.trim_end_matches('/'))
}

fn to_json(value: &impl serde::Serialize) -> Result<Vec<u8>, EtcdError> {
    serde_json::to_vec(value).map_err(|error| EtcdError(error.to_string()))
}

/// Waits until the collector leaves. If it is dropped instead, it ends as if it had died.
async fn wait_for_leave(leaving: &mut watch::Receiver<bool>) {
    if leaving.wait_for(|is_leaving| *is_leaving).await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl AlertMember {
    async fn run(mut self) {
        let mut turns = Turns::new(&self.config);
        while let Err(EtcdError(reason)) = self.until_it_leaves(&mut turns).await {
            turns.record_failure(&EtcdError(format!("alerts: {reason}"))).await;
        }
    }

    /// Takes part over one connection, until that breaks or this collector leaves.
    async fn until_it_leaves(&mut self, turns: &mut Turns) -> Result<(), EtcdError> {
        let mut client = self.config.connect_node(turns.current_node()).await?;
        let begun = Instant::now();
        let (lease, (mut renewer, mut renewed)) =
            obtain_lease(&self.config, &mut self.lease, &mut client).await?;
        let mut watched = WatchedLog::start_watching(&mut client, alerts_prefix(&self.config)).await?;
        turns.record_answer();
        self.extend_lease(begun);
        // What has been announced under this collector's id, perhaps by an earlier run.
        let mut said: BTreeMap<String, Option<Alert>> =
            watched.log.found_by(&self.id).map(|fingerprint| (fingerprint.to_owned(), None)).collect();
        let (mut keeper, mut written, mut is_changed) = (LogKeeper::default(), 0, true);
        let mut renewals = tokio::time::interval(self.config.lease_duration() / 3);
        renewals.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut looks = tokio::time::interval(KEEP_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asked: Option<Instant> = None;
        loop {
            let elected = watched.keeper;
            let is_keeper = elected.is_some_and(|elected| elected.lease == lease);
            if std::mem::take(&mut is_changed) {
                self.channels.log.send_replace(Arc::new(watched.log.clone()));
            }
            // Sent after the log: a new keeper must already have it.
            self.channels.is_keeper.send_if_modified(|was| std::mem::replace(was, is_keeper) != is_keeper);
            self.say_found(&mut client, &watched.prefix, lease, &mut said).await?;
            match elected {
                None => watched.elect(&mut client, &self.id, lease).await?,
                // The keeper must first see what it has written.
                Some(elected) if is_keeper && watched.log.last_number() >= written => {
                    let added = keeper.next_transitions(&watched.log, moment::now(), Instant::now());
                    if watched.write_transitions(&mut client, elected, &added).await? {
                        written = added.last().map_or(written, |last| last.number);
                    }
                }
                Some(_) => {}
            }
            tokio::select! {
                changed = watched.apply_changes() => {
                    changed?;
                    is_changed = true;
                }
                answer = renewed.message() => match answer? {
                    Some(answer) if answer.ttl() > 0 => {
                        asked.take().into_iter().for_each(|asked| self.extend_lease(asked));
                    }
                    _ => {
                        self.channels.lease.send_replace(None);
                        return Err(EtcdError("etcd ended the lease".into()));
                    }
                },
                _ = renewals.tick() => {
                    // Another node may answer while the lease still holds.
                    if asked.replace(Instant::now()).is_some() {
                        return Err(EtcdError("etcd does not renew the lease".into()));
                    }
                    renewer.keep_alive().await?;
                }
                _ = looks.tick() => {}
                Ok(()) = self.channels.found.changed() => {}
                Some(note) = self.channels.notes.recv() => {
                    watched.write_note(&mut client, lease, note).await?;
                }
                () = wait_for_leave(&mut self.channels.leaving) => {
                    self.channels.is_keeper.send_replace(false);
                    return watched.resign(&mut client, lease).await;
                }
            }
        }
    }

    /// Counts the lease from when it was requested: etcd counts from later on.
    fn extend_lease(&self, asked: Instant) {
        self.channels.lease.send_replace(Some(asked + self.config.lease_duration()));
    }

    /// Announces what this collector finds and has not announced yet.
    async fn say_found(
        &mut self,
        client: &mut Client,
        prefix: &str,
        lease: i64,
        said: &mut BTreeMap<String, Option<Alert>>,
    ) -> Result<(), EtcdError> {
        let found = self.channels.found.borrow_and_update().clone();
        let key = |fingerprint: &str| format!("{prefix}found/{fingerprint}/{}", self.id);
        // The value changes all the time, which is no news to others.
        let is_same = |a: &Alert, b: &Alert| {
            (&a.state, a.fired_at, a.resolved_at) == (&b.state, b.fired_at, b.resolved_at)
        };
        let is_said = |fingerprint: &String, alert: &Alert| {
            said.get(fingerprint).is_some_and(|said| said.as_ref().is_some_and(|said| is_same(said, alert)))
        };
        let mut operations = Vec::new();
        for (fingerprint, alert) in found.iter().filter(|(fingerprint, alert)| !is_said(fingerprint, alert)) {
            let options = PutOptions::new().with_lease(lease);
            operations.push(TxnOp::put(key(fingerprint), to_json(alert)?, Some(options)));
        }
        let is_over = |fingerprint: &&String| !found.contains_key(*fingerprint);
        operations
            .extend(said.keys().filter(is_over).map(|fingerprint| TxnOp::delete(key(fingerprint), None)));
        for batch in operations.chunks(BATCH) {
            client.txn(Txn::new().and_then(batch)).await?;
        }
        *said = found.into_iter().map(|(fingerprint, alert)| (fingerprint, Some(alert))).collect();
        Ok(())
    }
}

impl WatchedLog {
    /// Reads all keys, and watches them from there on.
    async fn start_watching(client: &mut Client, prefix: String) -> Result<WatchedLog, EtcdError> {
        // The prefix ends with a slash, and the next character is a zero.
        let end = format!("{}0", prefix.trim_end_matches('/'));
        let (mut from, mut revision, mut all) = (prefix.clone(), 0, Vec::new());
        loop {
            let options = GetOptions::new().with_range(end.as_str()).with_limit(BATCH as i64);
            let mut page = client.get(from.as_str(), Some(options.with_revision(revision))).await?;
            // The header has the newest revision, even when reading at an older one.
            if revision == 0 {
                revision = page.header().map_or(0, |header| header.revision());
            }
            let is_last = !page.more();
            all.extend(page.take_kvs());
            match all.last().and_then(|last| last.key_str().ok()) {
                Some(last) if !is_last => from = format!("{last}\0"),
                _ => break,
            }
        }
        let options = WatchOptions::new().with_range(end).with_start_revision(revision + 1);
        let changes = client.watch(prefix.as_str(), Some(options)).await?;
        let mut watched = WatchedLog { log: AlertLog::default(), keeper: None, prefix, changes };
        all.iter().for_each(|key_value| watched.apply_key_value(key_value, false));
        Ok(watched)
    }

    /// Waits for changes and applies them. Can be dropped at any time without losing any.
    async fn apply_changes(&mut self) -> Result<(), EtcdError> {
        let changes = self.changes.message().await?;
        let changes = changes.filter(|changes| !changes.canceled());
        let changes = changes.ok_or_else(|| EtcdError("etcd ended the watch of alerts".into()))?;
        for event in changes.events() {
            if let Some(key_value) = event.kv() {
                self.apply_key_value(key_value, event.event_type() == EventType::Delete);
            }
        }
        Ok(())
    }

    /// Applies a key. An unreadable value counts as absent.
    fn apply_key_value(&mut self, key_value: &KeyValue, is_deleted: bool) {
        let Some(key) = key_value.key_str().ok().and_then(|key| key.strip_prefix(&self.prefix)) else {
            return;
        };
        let value = (!is_deleted).then(|| key_value.value());
        if key == "keeper" {
            let elected = ElectedKeeper { lease: key_value.lease(), created: key_value.create_revision() };
            self.keeper = value.map(|_| elected);
        } else if let Some((fingerprint, id)) = key.strip_prefix("found/").and_then(|key| key.split_once('/'))
        {
            self.log.set_found(fingerprint, id, value.and_then(|value| serde_json::from_slice(value).ok()));
        } else if let Some(number) = key.strip_prefix("log/").and_then(|number| number.parse().ok()) {
            let transition = value.and_then(|value| serde_json::from_slice::<AlertTransition>(value).ok());
            self.log.set_transition(number, transition);
        } else if let Some(receiver) = key.strip_prefix("delivered/") {
            let number = value.and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
            self.log.set_delivered(receiver, number);
        }
    }

    fn keeper_key(&self) -> String {
        format!("{}keeper", self.prefix)
    }

    fn log_key(&self, number: u64) -> String {
        // Padded, so that keys are in the order of numbers.
        format!("{}log/{number:020}", self.prefix)
    }

    /// Becomes the keeper if there is none. The watch shows whether that succeeded.
    async fn elect(&self, client: &mut Client, id: &str, lease: i64) -> Result<(), EtcdError> {
        let put = TxnOp::put(self.keeper_key(), id, Some(PutOptions::new().with_lease(lease)));
        let is_free = Compare::create_revision(self.keeper_key(), CompareOp::Equal, 0);
        client.txn(Txn::new().when([is_free]).and_then([put])).await?;
        Ok(())
    }

    /// Stops being the keeper, if it is. It may have been elected without having seen that yet.
    async fn resign(&self, client: &mut Client, lease: i64) -> Result<(), EtcdError> {
        let is_own = Compare::lease(self.keeper_key(), CompareOp::Equal, lease);
        client.txn(Txn::new().when([is_own]).and_then([TxnOp::delete(self.keeper_key(), None)])).await?;
        Ok(())
    }

    /// Carries out operations if this is still the keeper; returns whether it was.
    async fn write_as_keeper(
        &self,
        client: &mut Client,
        elected: ElectedKeeper,
        operations: &[TxnOp],
    ) -> Result<bool, EtcdError> {
        let is_keeper = Compare::create_revision(self.keeper_key(), CompareOp::Equal, elected.created);
        Ok(client.txn(Txn::new().when([is_keeper]).and_then(operations)).await?.succeeded())
    }

    /// Adds transitions to the log and removes the oldest ones; returns whether this is still the keeper.
    async fn write_transitions(
        &self,
        client: &mut Client,
        elected: ElectedKeeper,
        added: &[AlertTransition],
    ) -> Result<bool, EtcdError> {
        let mut operations = Vec::new();
        for transition in added {
            operations.push(TxnOp::put(self.log_key(transition.number), to_json(transition)?, None));
        }
        let surplus = self.log.surplus_transitions();
        operations.extend(surplus.into_iter().map(|number| TxnOp::delete(self.log_key(number), None)));
        for batch in operations.chunks(BATCH) {
            if !self.write_as_keeper(client, elected, batch).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn write_note(
        &self,
        client: &mut Client,
        lease: i64,
        DeliveryNote { receiver, number, noted }: DeliveryNote,
    ) -> Result<(), EtcdError> {
        let is_written = match self.keeper.filter(|elected| elected.lease == lease) {
            Some(elected) => {
                let put =
                    TxnOp::put(format!("{}delivered/{receiver}", self.prefix), number.to_string(), None);
                self.write_as_keeper(client, elected, &[put]).await?
            }
            None => false,
        };
        // The sender of the note may be gone.
        _ = noted.send(is_written);
        Ok(())
    }
}

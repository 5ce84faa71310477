//! A collector in the cluster: it is present as long as its lease lasts, and plans if it is elected.

use std::sync::Arc;
use std::time::Instant;

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use tokio::sync::{oneshot, watch};

use super::cluster::{EtcdCluster, collector_key, placement_json, placement_key, planner_key};
use super::follow::{Turns, publish_view};
use super::lease::obtain_lease;
use super::watched::WatchedCluster;
use crate::{CollectorRecord, Config, EtcdError, Membership, View, Views};

/// Lets a collector join, in a task that keeps trying while etcd is unreachable or another collector has this
/// id. What the collector announces about itself may change.
pub fn join_cluster(
    config: Config,
    id: String,
    says: watch::Receiver<CollectorRecord>,
) -> Result<Membership, EtcdError> {
    let (newest, views) = watch::channel(Arc::new(View::default()));
    let (until_sender, until) = watch::channel(None);
    let (leave, leaving) = oneshot::channel();
    let (gone, left) = oneshot::channel();
    let collector = says.borrow().clone();
    let member = ClusterMember { config, id, collector, newest, until: until_sender, lease: None };
    let task = tokio::spawn(member.run(says, leaving, gone));
    Ok(Membership::new(Views::new(views, task), until, leave, left))
}

struct ClusterMember {
    config: Config,
    id: String,
    collector: CollectorRecord,
    newest: watch::Sender<Arc<View>>,
    /// Until when the lease holds at least.
    until: watch::Sender<Option<Instant>>,
    /// The last lease, which may still hold when a connection breaks.
    lease: Option<i64>,
}

impl ClusterMember {
    async fn run(
        mut self,
        mut says: watch::Receiver<CollectorRecord>,
        mut leaving: oneshot::Receiver<()>,
        gone: oneshot::Sender<()>,
    ) {
        let mut turns = Turns::new(&self.config);
        loop {
            self.collector = says.borrow_and_update().clone();
            tokio::select! {
                ended = self.until_it_ends(&mut turns) => {
                    let Err(error) = ended;
                    tokio::select! {
                        () = turns.record_failure(&error) => {}
                        _ = &mut leaving => break,
                    }
                }
                // The record has changed: register it again under the same lease.
                Ok(()) = says.changed() => {}
                _ = &mut leaving => break,
            }
        }
        self.until.send_replace(None);
        if let Some(lease) = self.lease
            && let Err(error) = revoke_lease(&self.config, lease).await
        {
            tracing::warn!("{error}; the collector {} leaves when its lease ends", self.id);
        }
        let _ = gone.send(());
    }

    /// Takes part over one connection, until that breaks.
    async fn until_it_ends(&mut self, turns: &mut Turns) -> Result<std::convert::Infallible, EtcdError> {
        let mut client = self.config.connect_node(turns.current_node()).await?;
        let asked = Instant::now();
        let (lease, (mut keeper, mut kept)) =
            obtain_lease(&self.config, &mut self.lease, &mut client).await?;
        self.register_member(&mut client, lease).await?;
        let last = View::clone(&self.newest.borrow());
        let mut watched = WatchedCluster::start_watching(client.clone(), &self.config.prefix, last).await?;
        watched.learn_earlier(&mut client).await?;
        turns.record_answer();
        // A collector that was away must first learn what others were given meanwhile.
        publish_view(&self.newest, &watched.cluster.view);
        self.holds_from(asked);
        let mut renewals = tokio::time::interval(self.config.lease_duration() / 3);
        renewals.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut asked: Option<Instant> = None;
        loop {
            let there = watched.cluster.view.collectors.get(&self.id);
            if there != Some(&self.collector) {
                self.give_up_lease(&mut client, lease).await;
                return Err(self.loss_reason(there));
            }
            self.plan_placement(&mut client, &watched.cluster, lease).await?;
            tokio::select! {
                changed = watched.apply_changes() => {
                    changed?;
                    publish_view(&self.newest, &watched.cluster.view);
                }
                answer = kept.message() => match answer? {
                    Some(answer) if answer.ttl() > 0 => {
                        asked.take().into_iter().for_each(|asked| self.holds_from(asked));
                    }
                    _ => {
                        self.until.send_replace(None);
                        return Err(EtcdError("etcd ended the lease".into()));
                    }
                },
                _ = renewals.tick() => {
                    // Another node may answer while the lease still holds.
                    if asked.replace(Instant::now()).is_some() {
                        return Err(EtcdError("etcd does not renew the lease".into()));
                    }
                    keeper.keep_alive().await?;
                }
            }
        }
    }

    fn is_other_life(&self, said: &CollectorRecord) -> bool {
        (said.generation, &said.address) != (self.collector.generation, &self.collector.address)
    }

    /// Why this collector is not in the cluster, if its id has this record.
    fn loss_reason(&self, there: Option<&CollectorRecord>) -> EtcdError {
        EtcdError(match there.filter(|said| self.is_other_life(said)) {
            Some(other) => format!(
                "the collector at {} is in the cluster as {:?}: give each an id of its own, or wait until its lease ends",
                other.address, self.id
            ),
            None => format!("{:?} was taken out of the cluster", self.id),
        })
    }

    /// Counts the lease from when it was requested: etcd counts from later on.
    fn holds_from(&self, asked: Instant) {
        self.until.send_replace(Some(asked + self.config.lease_duration()));
    }

    /// Ends the lease of a collector that is not in the cluster; otherwise it would remain the planner, if it is that.
    async fn give_up_lease(&mut self, client: &mut Client, lease: i64) {
        self.until.send_replace(None);
        if client.lease_revoke(lease).await.is_ok() {
            self.lease = None;
        }
    }

    /// Registers this collector, unless another one is present under its id.
    async fn register_member(&mut self, client: &mut Client, lease: i64) -> Result<(), EtcdError> {
        let key = collector_key(&self.config.prefix, &self.id);
        let there = client.get(key.as_str(), None).await?;
        let modified = match there.kvs().first() {
            None => 0,
            Some(there) => {
                let said: Option<CollectorRecord> = serde_json::from_slice(there.value()).ok();
                if there.lease() == lease && said.as_ref() == Some(&self.collector) {
                    return Ok(());
                }
                let is_later = |said: &CollectorRecord| said.generation >= self.collector.generation;
                if let Some(other) = said.filter(|said| self.is_other_life(said) && is_later(said)) {
                    self.give_up_lease(client, lease).await;
                    return Err(self.loss_reason(Some(&other)));
                }
                there.mod_revision()
            }
        };
        let value = serde_json::to_vec(&self.collector).map_err(|error| EtcdError(error.to_string()))?;
        let put = TxnOp::put(key.as_str(), value, Some(PutOptions::new().with_lease(lease)));
        let is_same = Compare::mod_revision(key, CompareOp::Equal, modified);
        match client.txn(Txn::new().when([is_same]).and_then([put])).await?.succeeded() {
            true => Ok(()),
            false => Err(EtcdError(format!("another collector joins as {:?}", self.id))),
        }
    }

    /// Becomes the planner if there is none; writes the next placement if it is the planner. The watch shows
    /// whether that succeeded.
    async fn plan_placement(
        &self,
        client: &mut Client,
        cluster: &EtcdCluster,
        lease: i64,
    ) -> Result<(), EtcdError> {
        let prefix = &self.config.prefix;
        let planner = planner_key(prefix);
        let (when, put) = match &cluster.planner {
            None => {
                let put =
                    TxnOp::put(planner.as_str(), self.id.as_str(), Some(PutOptions::new().with_lease(lease)));
                (vec![Compare::create_revision(planner, CompareOp::Equal, 0)], put)
            }
            Some(elected) if elected.lease == lease => {
                let Some((next, replaces)) = cluster.next_placement() else { return Ok(()) };
                let key = placement_key(prefix);
                let put = TxnOp::put(key.as_str(), placement_json(&next)?, None);
                let is_same = Compare::mod_revision(key, CompareOp::Equal, replaces);
                let is_planner = Compare::create_revision(planner, CompareOp::Equal, elected.created);
                (vec![is_same, is_planner], put)
            }
            Some(_) => return Ok(()),
        };
        client.txn(Txn::new().when(when).and_then([put])).await?;
        Ok(())
    }
}

async fn revoke_lease(config: &Config, lease: i64) -> Result<(), EtcdError> {
    config.connect_any().await?.lease_revoke(lease).await?;
    Ok(())
}

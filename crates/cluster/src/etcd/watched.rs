//! All keys below the prefix, and their changes.

use std::sync::Arc;

use dta_proto::placement::ClusterPlacement;
use etcd_client::{Client, Error, EventType, GetOptions, KeyValue, WatchOptions, WatchStream};
use tonic::Code;

use super::cluster::{EtcdCluster, EtcdValue, PlacementKeyState, placement_key};
use crate::view::{EARLIER, placement_holders};
use crate::{Earlier, EtcdError, View};

/// The contents of etcd, kept up to date.
pub(super) struct WatchedCluster {
    pub(super) cluster: EtcdCluster,
    prefix: String,
    changes: WatchStream,
}

impl WatchedCluster {
    /// Reads all keys, and watches them from there on. `last` is what was known before: its placement is kept
    /// as long as etcd has none.
    pub(super) async fn start_watching(
        mut client: Client,
        prefix: &str,
        last: View,
    ) -> Result<WatchedCluster, EtcdError> {
        let all = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
        let revision = all.header().map_or(0, |header| header.revision());
        let (placement, earlier) = (last.placement, last.earlier);
        let view = View { placement, earlier, ..View::default() };
        let mut cluster = EtcdCluster { view, revision, ..EtcdCluster::default() };
        for key_value in all.kvs() {
            apply_key_value(&mut cluster, prefix, key_value, false);
        }
        let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        let changes = client.watch(prefix, Some(options)).await?;
        Ok(WatchedCluster { cluster, prefix: prefix.to_owned(), changes })
    }

    /// Reads the placements before the present one, including those that were missed.
    ///
    /// # Errors
    /// etcd does not answer. Placements that it has compacted are left out.
    pub(super) async fn learn_earlier(&mut self, client: &mut Client) -> Result<(), EtcdError> {
        let PlacementKeyState::At(mut before) = self.cluster.placed else { return Ok(()) };
        let key = placement_key(&self.prefix);
        let mut earlier: Vec<Earlier> = Vec::new();
        while before > 1 && earlier.len() < EARLIER {
            let at = GetOptions::new().with_revision(before - 1);
            let found = match client.get(key.as_str(), Some(at)).await {
                Err(Error::GRpcStatus(status)) if status.code() == Code::OutOfRange => break,
                found => found?,
            };
            let Some(found) = found.kvs().first() else {
                earlier.push(Earlier::default());
                break;
            };
            let Ok(placement) = serde_json::from_slice::<ClusterPlacement>(found.value()) else { break };
            let is_there = |id: &String| self.cluster.since.get(id).is_some_and(|since| *since < before);
            let is_waited_for = placement_holders(&placement).all(is_there);
            earlier.push(Earlier { placement: Arc::new(placement), is_waited_for });
            before = found.mod_revision();
        }
        let view = &self.cluster.view;
        let first = earlier.last().map_or(view.placement.version, |earlier| earlier.placement.version);
        let known = view.earlier.iter().filter(|known| (1..first).contains(&known.placement.version));
        let still = |known: &Earlier| Earlier {
            is_waited_for: known.is_waited_for && view.can_wait(&known.placement),
            ..known.clone()
        };
        let known: Vec<Earlier> = known.map(still).collect();
        self.cluster.view.earlier = known.into_iter().chain(earlier.into_iter().rev()).collect();
        Ok(())
    }

    /// Waits for changes and applies them. Can be dropped at any time without losing any.
    ///
    /// # Errors
    /// The watch has ended: start again.
    pub(super) async fn apply_changes(&mut self) -> Result<(), EtcdError> {
        let Some(changes) = self.changes.message().await? else {
            return Err(EtcdError("etcd ended the watch".into()));
        };
        if changes.canceled() {
            return Err(EtcdError(match changes.compact_revision() {
                0 => format!("etcd ended the watch: {}", changes.cancel_reason()),
                at => format!("etcd ended the watch: what came before revision {at} is compacted"),
            }));
        }
        for event in changes.events() {
            if let Some(key_value) = event.kv() {
                apply_key_value(
                    &mut self.cluster,
                    &self.prefix,
                    key_value,
                    event.event_type() == EventType::Delete,
                );
            }
        }
        let revision = changes.header().map_or(0, |header| header.revision());
        self.cluster.revision = self.cluster.revision.max(revision);
        Ok(())
    }
}

fn apply_key_value(cluster: &mut EtcdCluster, prefix: &str, key_value: &KeyValue, is_deleted: bool) {
    // Others may write there, too, and name their keys as they like.
    let Some(key) = key_value.key_str().ok().and_then(|key| key.strip_prefix(prefix)) else { return };
    let value = EtcdValue {
        bytes: key_value.value(),
        created: key_value.create_revision(),
        modified: key_value.mod_revision(),
        lease: key_value.lease(),
    };
    cluster.apply_key(key, (!is_deleted).then_some(value));
}

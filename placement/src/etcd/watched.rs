//! All keys below the prefix, and whatever changes among them.

use etcd_client::{Client, EventType, GetOptions, KeyValue, WatchOptions, WatchStream};

use super::cluster::{Cluster, Value};
use crate::{EtcdError, View};

/// What etcd says, kept up to date.
pub(super) struct Watched {
    pub(super) cluster: Cluster,
    prefix: String,
    changes: WatchStream,
}

impl Watched {
    /// Reads all keys and watches them from there on. `last` is what was known before: its placement is kept as long as
    /// etcd has none.
    pub(super) async fn begin(mut client: Client, prefix: &str, last: View) -> Result<Watched, EtcdError> {
        let all = client.get(prefix, Some(GetOptions::new().with_prefix())).await?;
        let revision = all.header().map_or(0, |header| header.revision());
        let view = View { placement: last.placement, ..View::default() };
        let mut cluster = Cluster { view, revision, ..Cluster::default() };
        for key_value in all.kvs() {
            apply(&mut cluster, prefix, key_value, false);
        }
        let options = WatchOptions::new().with_prefix().with_start_revision(revision + 1);
        let changes = client.watch(prefix, Some(options)).await?;
        Ok(Watched { cluster, prefix: prefix.to_owned(), changes })
    }

    /// Waits for changes and takes them in. It can be dropped at any time without a loss.
    ///
    /// # Errors
    /// The watch has ended: begin again.
    pub(super) async fn changed(&mut self) -> Result<(), EtcdError> {
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
                apply(&mut self.cluster, &self.prefix, key_value, event.event_type() == EventType::Delete);
            }
        }
        let revision = changes.header().map_or(0, |header| header.revision());
        self.cluster.revision = self.cluster.revision.max(revision);
        Ok(())
    }
}

fn apply(cluster: &mut Cluster, prefix: &str, key_value: &KeyValue, is_deleted: bool) {
    // Others than ours may write there, and name their keys as they like.
    let Some(key) = key_value.key_str().ok().and_then(|key| key.strip_prefix(prefix)) else { return };
    let value = Value {
        bytes: key_value.value(),
        created: key_value.create_revision(),
        modified: key_value.mod_revision(),
        lease: key_value.lease(),
    };
    cluster.apply(key, (!is_deleted).then_some(value));
}

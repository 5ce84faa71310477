//! When several collectors share stores, refuses queries about what another one has, and names its address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use dta_memory::store::Store;
use dta_proto::buckets::{self, Copies};
use dta_proto::control::{PlacementResponse, StorePlacement, bucket_ranges};
use dta_proto::layout::key_increment::CountingRole;
use dta_proto::placement::usual_colour;
use dta_proto::wire::dta::{Addressing, Primitive, Replicas};
use dta_rpc::{Moment, Question};

use super::CollectorService;
use crate::answers::{AskError, Roles};
use crate::cluster::{Adrift, ClusterMembership, HolderLocation, StoreShare};
use crate::session::CollectorSessions;
use crate::session::sharing::SharingClaims;

impl CollectorService {
    /// Refuses keys and sketches that another collector has. In a cluster, two things are never refused: the contents of
    /// past epochs, which were placed here when reported, and counters, which stay when their keys move.
    pub(super) fn check_placement(
        &self,
        shared: &SharingClaims,
        question: &Question,
    ) -> Result<(), AskError> {
        let (cluster, primitive) = (self.cluster.as_deref(), question.kind.primitive());
        if let Some(cluster) = cluster {
            self.check_counters(question)?;
            if question.at != Moment::Now || primitive.replicas() == Replicas::Counts {
                return Ok(());
            }
            cluster.check_vouched(Instant::now())?;
        } else if shared.is_empty() {
            return Ok(());
        }
        let store = &self.stores.of_primitive(&question.store, primitive)?.spec.name;
        if primitive.addressing() == Addressing::Column {
            let place =
                cluster.map_or_else(|| shared.sketch_place(store), |cluster| cluster.locate_list(store, 0));
            return require_local(place, || "the sketch".into(), store);
        }
        let replicas = self.replica_count(store);
        for key in &question.keys {
            let bucket = buckets::bucket_of_key(key);
            let place = match cluster {
                Some(cluster) => cluster.locate_bucket(store, replicas, bucket),
                None => shared.bucket_place(store, replicas, bucket),
            };
            require_local(place, || format!("key {key} (bucket {bucket})"), store)?;
        }
        Ok(())
    }

    /// How many collectors hold each key of a store.
    pub(super) fn replica_count(&self, store: &str) -> usize {
        self.replicas.get(store).map_or(1, |replicas| usize::from(*replicas))
    }

    /// Refuses counters that two collectors count as long as this one does not know which counts the other one has, too.
    pub(super) fn check_counters(&self, question: &Question) -> Result<(), AskError> {
        let primitive = question.kind.primitive();
        if primitive.replicas() == Replicas::Counts
            && self.cluster.as_ref().is_some_and(|of| of.placement_version() == 0)
        {
            let store = self.stores.of_primitive(&question.store, primitive)?;
            if self.replica_count(&store.spec.name) > 1 {
                return Err(Adrift.into());
            }
        }
        Ok(())
    }

    /// Refuses a list that another collector has. In a cluster, each answers with the entries that it
    /// received, which stay behind when a list moves.
    pub(super) fn check_list(&self, store: &str, list: u32) -> Result<(), AskError> {
        if self.cluster.is_some() {
            return Ok(());
        }
        let shared = self.sessions.sharing_claims();
        if shared.is_empty() {
            return Ok(());
        }
        let store = &self.stores.of_primitive(store, Primitive::Append)?.spec.name;
        require_local(shared.list_place(store, list), || format!("list {list}"), store)
    }

    /// This collector's share of each store.
    pub(super) fn local_placement(&self, shared: &SharingClaims) -> Result<PlacementResponse, AskError> {
        let cluster = self.cluster.as_deref();
        if let Some(cluster) = cluster {
            cluster.check_vouched(Instant::now())?;
        }
        let version = self.placement_version(shared);
        let placement = |store: &Arc<Store>| {
            let (spec, addressing) = (&store.spec, store.spec.kind.primitive().addressing());
            let (name, replicas) = (&spec.name, self.replica_count(&spec.name));
            let (buckets, lists, elsewhere, written) = match cluster {
                Some(cluster) => {
                    let StoreShare { buckets, lists, other } = cluster.store_share(name, replicas);
                    let is_here = match addressing {
                        Addressing::Key => buckets != Copies::NONE,
                        Addressing::List | Addressing::Column => !lists.is_empty(),
                    };
                    let other = || other.unwrap_or_else(|| "no collector".into());
                    (buckets, lists, (!is_here).then(other), is_here)
                }
                None => {
                    let (buckets, lists) = shared.local_share(name, replicas);
                    (buckets, lists, shared.elsewhere(name), shared.is_written(name))
                }
            };
            let mut place = StorePlacement {
                store: Some(spec.into()),
                elsewhere: elsewhere.unwrap_or_default(),
                written: Some(written),
                generation: store.generation,
                ..StorePlacement::default()
            };
            match addressing {
                Addressing::Key => place.buckets = bucket_ranges(&buckets),
                Addressing::List => place.lists = lists.into_iter().map(Into::into).collect(),
                Addressing::Column => {}
            }
            place
        };
        let stores = self.stores.current_stores().iter().map(placement).collect();
        let cluster = cluster.map_or(0, ClusterMembership::placement_version);
        Ok(PlacementResponse { version, stores, started: shared.started, cluster })
    }

    /// The version of [`CollectorService::local_placement`]. It also changes when a store is added; stores are never removed.
    pub(super) fn placement_version(&self, shared: &SharingClaims) -> u64 {
        let of_cluster = self.cluster.as_ref().map_or(0, |cluster| cluster.version_stamp());
        shared.version.wrapping_add(of_cluster).wrapping_add(self.stores.current_stores().len() as u64)
    }
}

/// How a collector counts when translators list the collectors that share stores: the first of a bucket in
/// lane 0, the second in lane 1.
pub(super) fn session_roles(sessions: Arc<CollectorSessions>) -> Arc<Roles> {
    Arc::new(move |store, keys| {
        let shared = sessions.sharing_claims();
        let (here, _) = shared.local_share(store, 2);
        let role = |copy| CountingRole {
            colour: usual_colour(copy),
            lanes: std::array::from_fn(|lane| lane == copy),
        };
        let of_key =
            |key| here.of_bucket(buckets::bucket_of_key(key)).map_or_else(CountingRole::default, role);
        (!shared.is_empty()).then(|| keys.iter().map(of_key).collect())
    })
}

/// How a collector in a cluster counts.
pub(super) fn cluster_roles(cluster: Arc<ClusterMembership>) -> Arc<Roles> {
    Arc::new(move |_, keys| {
        let view = cluster.newest_view();
        let mut of_buckets = BTreeMap::new();
        let of_key = |key| {
            let bucket = buckets::bucket_of_key(key);
            *of_buckets.entry(bucket).or_insert_with(|| view.placement.counting_role(cluster.id(), bucket))
        };
        Some(keys.iter().map(of_key).collect())
    })
}

fn require_local(place: HolderLocation, what: impl FnOnce() -> String, store: &str) -> Result<(), AskError> {
    match place {
        HolderLocation::Here => Ok(()),
        HolderLocation::At(address) => {
            Err(AskError::Elsewhere { what: what(), store: store.into(), address })
        }
        HolderLocation::Gone => Err(AskError::Nowhere { what: what(), store: store.into() }),
    }
}

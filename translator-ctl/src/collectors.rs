//! The configured collectors.

use std::collections::BTreeMap;

use dta_proto::buckets::{Buckets, Copies};
use dta_proto::control::{CollectorShare, bucket_ranges};
use dta_proto::list_range::ListRange;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfiguredCollector {
    /// Its gRPC address: `HOST:PORT`, optionally with `http://` or `https://`.
    pub address: String,
    /// Stores to use, by name; empty = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<String>,
    /// Append lists to use; empty = all lists of these stores.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<ListRange>,
    /// Its key buckets in keyed stores that several collectors share, such as `0-127`, or a list of them by copy, for stores
    /// with replicas; all if not given.
    pub buckets: Option<Copies>,
}

/// All collectors by their indices, which a cluster may leave gaps in. In a file this is one address, a list of addresses and
/// tables, or one `[[translator.collector]]` each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "CollectorsSetting", into = "CollectorsSetting")]
pub struct Collectors(BTreeMap<u8, ConfiguredCollector>);

#[derive(Clone, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a collector is an address, a list of them, or tables with `address`, `stores`, `lists`, `buckets`"
)]
enum CollectorsSetting {
    Address(String),
    List(Vec<Element>),
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a collector is an address, or a table with `address`, `stores`, `lists` and `buckets`"
)]
enum Element {
    Address(String),
    Table(ConfiguredCollector),
}

impl ConfiguredCollector {
    fn may_share_with(&self, other: &ConfiguredCollector) -> bool {
        let all = self.stores.is_empty() || other.stores.is_empty();
        all || self.stores.iter().any(|store| other.stores.contains(store))
    }
}

/// Why the collectors' buckets do not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BucketsMisfit {
    /// A copy of a bucket that two collectors have; their indices.
    Twice { index: u8, copy: usize, bucket: u8, other: u8 },
    /// A bucket of which one collector has two copies.
    Together { index: u8, bucket: u8 },
    /// Buckets of which no collector has this copy.
    Nowhere { copy: usize, buckets: Buckets },
}

impl Collectors {
    /// Checks that, if buckets are given, each copy of each bucket is at exactly one collector, and at a
    /// different one from the other copies.
    pub(crate) fn check_buckets(&self) -> Result<(), BucketsMisfit> {
        let given = || self.indices().zip(self.iter()).filter_map(|(n, c)| Some((n, c, c.buckets?)));
        let mut all = Copies::NONE;
        for (index, collector, buckets) in given() {
            if let Some(bucket) = buckets.repeated_bucket() {
                return Err(BucketsMisfit::Together { index, bucket });
            }
            for (other, earlier, theirs) in given().take_while(|(other, ..)| *other < index) {
                let both = buckets.common_copy(&theirs);
                if let Some((copy, bucket)) = both.filter(|_| collector.may_share_with(earlier)) {
                    return Err(BucketsMisfit::Twice { index, copy, bucket, other });
                }
            }
            all = all.union(buckets);
        }
        match (0..all.copy_count()).find(|copy| !all.buckets_of_copy(*copy).contains_all()) {
            Some(copy) => {
                Err(BucketsMisfit::Nowhere { copy, buckets: all.buckets_of_copy(copy).complement() })
            }
            None => Ok(()),
        }
    }

    /// Names of the settings that differ; if the collectors or their order differ, only the addresses.
    pub(crate) fn changed_settings(&self, new: &Collectors) -> Vec<&'static str> {
        let differs = |a: &ConfiguredCollector, b: &ConfiguredCollector| {
            [a.address != b.address, a.stores != b.stores, a.lists != b.lists, a.buckets != b.buckets]
        };
        if self.count() != new.count() || self.iter().zip(new.iter()).any(|(a, b)| differs(a, b)[0]) {
            return vec!["address"];
        }
        let fields = ["address", "stores", "lists", "buckets"].into_iter().enumerate();
        let any = |field: usize| self.iter().zip(new.iter()).any(|(a, b)| differs(a, b)[field]);
        fields.filter(|(n, _)| any(*n)).map(|(_, name)| name).collect()
    }

    /// Each collector's share, as sent to the collectors; empty where no buckets or lists are set.
    pub(crate) fn collector_shares(&self) -> Vec<CollectorShare> {
        if self.count() < 2 || !self.iter().any(|c| c.buckets.is_some() || !c.lists.is_empty()) {
            return Vec::new();
        }
        let share = |collector: &ConfiguredCollector| CollectorShare {
            address: collector.address.clone(),
            stores: collector.stores.clone(),
            buckets: bucket_ranges(&collector.buckets.unwrap_or_default()),
            lists: collector.lists.iter().cloned().map(Into::into).collect(),
        };
        self.iter().map(share).collect()
    }

    /// Collectors at these addresses, without restrictions.
    pub fn from_addresses<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Collectors {
        let collector =
            |address: A| ConfiguredCollector { address: address.into(), ..ConfiguredCollector::default() };
        Collectors::with_consecutive_indices(addresses.into_iter().map(collector))
    }

    pub(crate) fn from_index_map(collectors: BTreeMap<u8, ConfiguredCollector>) -> Collectors {
        Collectors(collectors)
    }

    /// Collectors from index 0 on. Those beyond the last index are left out; the check of a file counts its collectors.
    fn with_consecutive_indices(collectors: impl IntoIterator<Item = ConfiguredCollector>) -> Collectors {
        Collectors((0..=u8::MAX).zip(collectors).collect())
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn indices(&self) -> impl Iterator<Item = u8> + use<> {
        self.0.keys().copied().collect::<Vec<_>>().into_iter()
    }

    pub fn iter(&self) -> impl Iterator<Item = &ConfiguredCollector> {
        self.0.values()
    }

    /// The collector at a valid index.
    pub fn get(&self, index: u8) -> Option<&ConfiguredCollector> {
        self.0.get(&index)
    }

    /// The address of a collector; empty if there is none at the index.
    pub fn address_at(&self, index: u8) -> &str {
        self.get(index).map_or("", |collector| &collector.address)
    }
}

impl From<CollectorsSetting> for Collectors {
    fn from(written: CollectorsSetting) -> Self {
        let collector = |element| match element {
            Element::Address(address) => ConfiguredCollector { address, ..ConfiguredCollector::default() },
            Element::Table(collector) => collector,
        };
        match written {
            CollectorsSetting::Address(address) => Collectors::from_addresses([address]),
            CollectorsSetting::List(list) => {
                Collectors::with_consecutive_indices(list.into_iter().map(collector))
            }
        }
    }
}

impl From<Collectors> for CollectorsSetting {
    fn from(Collectors(all): Collectors) -> Self {
        let mut all: Vec<ConfiguredCollector> = all.into_values().collect();
        let is_plain =
            |c: &ConfiguredCollector| c.stores.is_empty() && c.lists.is_empty() && c.buckets.is_none();
        if let [one] = &mut all[..]
            && is_plain(one)
        {
            return CollectorsSetting::Address(std::mem::take(&mut one.address));
        }
        let element = |c: ConfiguredCollector| {
            if is_plain(&c) { Element::Address(c.address) } else { Element::Table(c) }
        };
        CollectorsSetting::List(all.into_iter().map(element).collect())
    }
}

//! The stores of a collector, and queries of any number of keys.

use std::sync::Arc;

use dta_proto::control::{Epoch, EpochsRequest, PathAnswer, StorePlacement};
use dta_proto::key::Key;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry;
use dta_proto::wire::dta::Primitive;
use dta_rpc::{Ask, AskKeys, ClientError, Policy, Spread, SpreadMember};

use super::flow::DtaStores;

#[derive(Clone, Debug)]
pub struct StoreCatalog(Vec<(StoreSpec, u64)>);

/// The same collector, with its stores asked about a moment (milliseconds since 1970); `None` = now.
pub(crate) fn at_moment(ask: &Arc<dyn Ask>, at: Option<u64>) -> Arc<dyn Ask> {
    let Some(at) = at else { return ask.clone() };
    let only = SpreadMember { address: String::new(), ask: ask.clone() };
    Arc::new(Spread::new(vec![only]).at_moment(at.into()))
}

/// The epoch of a store that contains a moment; the inner `Err` says why none does.
pub(crate) async fn epoch_at_moment(
    ask: &dyn Ask,
    store: &str,
    at: u64,
) -> Result<Result<Epoch, String>, ClientError> {
    let request = EpochsRequest { store: store.to_owned(), since: at, until: at + 1, most: 1 };
    let none = || format!("Nothing is kept of {store} at that moment.");
    match ask.fetch_epochs(request).await {
        Ok(answer) => Ok(answer.epochs.into_iter().next().ok_or_else(none)),
        Err(error) if error.is_unimplemented() => {
            Ok(Err(format!("Store {store} has no epochs, and so no history.")))
        }
        Err(error) => Err(error),
    }
}

impl StoreCatalog {
    /// The catalog without those of the `asked` stores that have nothing of a moment; and why, in sentences.
    pub(super) async fn with_data_at(
        &self,
        ask: &dyn Ask,
        at: u64,
        asked: impl Fn(&str) -> bool,
    ) -> Result<(Self, Vec<String>), ClientError> {
        let (mut all, mut silent) = (Vec::new(), Vec::new());
        for store in &self.0 {
            let name = &store.0.name;
            if asked(name)
                && !matches!(store.0.kind, StoreKind::Append { .. })
                && let Err(why) = epoch_at_moment(ask, name, at).await?
            {
                silent.push(why);
            } else {
                all.push(store.clone());
            }
        }
        Ok((Self(all), silent))
    }

    /// Asks a collector for its stores without reading their memory.
    pub async fn fetch_from(ask: &dyn Ask) -> Result<Self, ClientError> {
        let stores = ask.placement().await?.stores;
        let spec = |StorePlacement { store, generation, .. }: &StorePlacement| {
            Some((StoreSpec::try_from(store.as_ref()?).ok()?, *generation))
        };
        Ok(Self(stores.iter().filter_map(spec).collect()))
    }

    fn store_specs(&self) -> impl Iterator<Item = &StoreSpec> {
        self.0.iter().map(|(spec, _)| spec)
    }

    pub(super) fn generation(&self, name: &str) -> Option<u64> {
        self.0.iter().find(|(spec, _)| spec.name == name).map(|(_, generation)| *generation)
    }

    pub fn has_store(&self, name: &str, primitive: Primitive) -> bool {
        self.store_specs().any(|spec| spec.name == name && spec.kind.primitive() == primitive)
    }

    pub fn has_int_stores(&self) -> bool {
        self.store_specs().any(|spec| spec.name.starts_with(telemetry::STORE_PREFIX))
    }

    pub(super) fn has_int_keys(&self) -> bool {
        let has_keys = |spec: &StoreSpec| !matches!(spec.kind, StoreKind::Append { .. });
        self.store_specs().any(|spec| spec.name.starts_with(telemetry::STORE_PREFIX) && has_keys(spec))
    }

    /// All stores of DTA reports that can be queried for a flow.
    pub fn dta_stores(&self) -> DtaStores {
        let of = |primitive| {
            let stores = self.store_specs().filter(move |spec| spec.kind.primitive() == primitive);
            stores.map(|spec| spec.name.clone()).filter(|name| !telemetry::is_telemetry_store(name)).collect()
        };
        DtaStores {
            paths: of(Primitive::Postcarding),
            counters: of(Primitive::KeyIncrement),
            values: of(Primitive::KeyWrite),
        }
    }

    /// Append stores whose entries are keys of 16 bytes.
    pub(super) fn key_list_stores(&self) -> impl Iterator<Item = (&str, u32)> {
        self.store_specs().filter_map(|spec| match spec.kind {
            StoreKind::Append { lists, entry_len: 16, .. } => Some((spec.name.as_str(), lists)),
            _ => None,
        })
    }

    /// The names of all stores, for messages.
    pub(crate) fn store_names(&self) -> String {
        self.store_specs().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn find_store(&self, name: &str) -> Option<&StoreSpec> {
        self.store_specs().find(|spec| spec.name == name)
    }
}

/// The value of each key of a key-write store.
pub(crate) async fn query_values(
    ask: &dyn Ask,
    store: &str,
    keys: &[Key],
) -> Result<Vec<Option<Vec<u8>>>, ClientError> {
    let answers = ask.key_write(store, keys, Policy::First, 0).await?;
    Ok(answers.into_iter().map(|answer| answer.value).collect())
}

/// The count of each key of a key-increment store.
pub(crate) async fn query_counts(ask: &dyn Ask, store: &str, keys: &[Key]) -> Result<Vec<u64>, ClientError> {
    Ok(ask.query_counters(store, keys).await?.into_iter().map(|answer| answer.value).collect())
}

/// The path of a key of a postcarding store.
pub(super) async fn query_path(
    ask: &dyn Ask,
    store: &str,
    key: Key,
) -> Result<Option<PathAnswer>, ClientError> {
    Ok(ask.query_paths(store, &[key]).await?.pop().filter(|answer| answer.found))
}

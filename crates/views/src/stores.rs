//! Stores as rows: for people, and for programs as `dta-collector stores -o json` prints them.

use dta_proto::control::{self, MessageError, StoreInfo};
use dta_proto::store::StoreSpec;
use dta_rpc::event_rings::{self, WrappedRing};
use dta_rpc::{ClientError, Spread};
use serde::Serialize;
use tonic::Status;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreRow {
    #[serde(flatten)]
    pub spec: StoreSpec,
    pub generation: u64,
    pub bytes: u64,
    pub memory: String,
    pub file: Option<String>,
    pub used: u64,
    pub capacity: u64,
    pub load: f64,
    pub survival: Option<f64>,
    pub advised_redundancy: Option<u32>,
    /// Batches of lists that later ones overwrote; `null` = no lists.
    pub overwritten: Option<u64>,
    /// The part that is here, if several collectors share the store; `null` = all of it.
    pub here: Option<StoreShareRow>,
    /// For INT events: the rings that have wrapped, and how far back they reach.
    pub rings: Vec<WrappedRing>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreShareRow {
    /// Which of the 256 buckets of keys.
    pub buckets: Option<String>,
    pub lists: Option<Vec<ListRange>>,
    /// The collector that has all of it.
    pub elsewhere: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ListRange {
    pub first: u32,
    pub count: u32,
}

impl StoreShareRow {
    fn from_store_info(info: &StoreInfo) -> Result<Option<StoreShareRow>, MessageError> {
        let buckets = control::copies_from_ranges(&info.buckets)?;
        let lists = || info.lists.iter().map(|l| ListRange { first: l.first, count: l.count }).collect();
        let here = StoreShareRow {
            buckets: (!buckets.is_whole_store()).then(|| buckets.to_string()),
            lists: (!info.lists.is_empty()).then(lists),
            elsewhere: (!info.elsewhere.is_empty()).then(|| info.elsewhere.clone()),
        };
        let is_all = here.buckets.is_none() && here.lists.is_none() && here.elsewhere.is_none();
        Ok((!is_all).then_some(here))
    }

    pub fn describe(&self) -> String {
        if let Some(address) = &self.elsewhere {
            return format!("nothing, {address} has it");
        }
        if let Some(buckets) = &self.buckets {
            return format!("buckets {buckets}");
        }
        let range = |l: &ListRange| match l.count {
            1 => l.first.to_string(),
            count => format!("{}-{}", l.first, u64::from(l.first) + u64::from(count) - 1),
        };
        let lists: Vec<String> = self.lists.iter().flatten().map(range).collect();
        format!("lists {}", lists.join(","))
    }
}

impl TryFrom<StoreInfo> for StoreRow {
    type Error = ClientError;

    fn try_from(info: StoreInfo) -> Result<Self, ClientError> {
        let unreadable =
            |why: String| Status::internal(format!("a store's description cannot be read: {why}"));
        let spec = info.store.as_ref().ok_or_else(|| unreadable("it has no name".into()))?;
        let spec = StoreSpec::try_from(spec).map_err(|error| unreadable(error.to_string()))?;
        let here = StoreShareRow::from_store_info(&info).map_err(|error| unreadable(error.to_string()))?;
        Ok(Self {
            spec,
            generation: info.generation,
            bytes: info.length,
            memory: info.memory,
            file: (!info.file.is_empty()).then_some(info.file),
            used: info.used,
            capacity: info.capacity,
            load: info.load,
            survival: info.survival,
            advised_redundancy: info.advised_redundancy,
            overwritten: info.overwritten,
            here,
            rings: Vec::new(),
        })
    }
}

/// The stores of the collectors that answer, with the rings of INT events that have wrapped.
pub async fn fetch_store_rows(ask: &Spread) -> Result<Vec<StoreRow>, ClientError> {
    let mut stores = Vec::new();
    for info in ask.stores_that_answer().await? {
        let mut store = StoreRow::try_from(info)?;
        // Lists of a shared store may be at another collector; rings that cannot be read here are left out.
        store.rings = event_rings::turned_over(ask, &store.spec).await.unwrap_or_default();
        stores.push(store);
    }
    Ok(stores)
}

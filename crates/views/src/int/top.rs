//! Flows ranked by latency, drops, packets, bytes or reports.
//!
//! Stores hold values under keys, but cannot list their keys. Flows come from the key directory (list 3 of the events), or
//! from another source of keys: an append store whose entries are keys, or a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use dta_cli::number::format_count;
use dta_export::directory::{Directory, Meaning};
use dta_export::names::Names;
use dta_export::networks::FlowNetworks;
use dta_export::source::Lost;
use dta_proto::control::TailRequest;
use dta_proto::flow_query::{
    FLOW_COLUMNS, FlowFilter, FlowQuestion, FlowRow, FlowSum, ScanCounts, flow_from_values,
};
use dta_proto::flow_record;
use dta_proto::key::{Flow, KEY_LEN, Key};
use dta_proto::layout::append::advance_sequence;
use dta_proto::prefix::Prefix;
use dta_proto::store::StoreKind;
use dta_proto::telemetry::{self, TimedValue, list, store};
use dta_proto::wire::dta::Primitive;
use dta_rpc::Ask;
use serde::Serialize;

use super::stores::{self, StoreCatalog};
use super::{IntError, moment};
use crate::epoch::EpochSummary;

dta_proto::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum By {
        /// Nanoseconds through all hops, as last reported.
        Latency: "latency",
        /// Drops, for any reason.
        Drops: "drops",
        Packets: "packets",
        /// Bytes.
        Bytes: "bytes",
        Reports: "reports",
    }
}

dta_proto::parse_by_name!(By);

/// What flows are ranked by if nothing was asked for: the first for which some flow has a figure.
const PREFERRED: [By; 5] = [By::Latency, By::Bytes, By::Packets, By::Reports, By::Drops];

impl By {
    /// The store with these figures for INT and flow records, and that store's primitive.
    fn telemetry_store(self) -> (&'static str, Primitive) {
        match self {
            Self::Latency => (store::VALUES, Primitive::KeyWrite),
            _ => (store::COUNTERS, Primitive::KeyIncrement),
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Latency => "latencies",
            _ => self.name(),
        }
    }
}

/// Where the flows come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Keys {
    /// The key directory; without an event store, the only append store whose entries are keys.
    #[default]
    Directory,
    /// All lists of this append store, whose entries are keys.
    Store(String),
    These(Vec<Flow>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Criteria {
    /// `None` = the first of latency, bytes, packets, reports and drops for which some flow has a figure.
    pub by: Option<By>,
    pub most: usize,
    /// Only flows with an end in it.
    pub prefix: Option<Prefix>,
    /// Where the flows come from.
    pub keys: Keys,
    /// The store with the figures, under the flows' own keys, instead of those for INT.
    pub store: Option<String>,
    /// The moment of the figures, in milliseconds since 1970; `None` = now. The flows are those known now.
    pub at: Option<u64>,
    pub names: Arc<Names>,
}

impl Default for Criteria {
    fn default() -> Self {
        Self {
            by: None,
            most: 10,
            prefix: None,
            keys: Keys::default(),
            store: None,
            at: None,
            names: Arc::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RankedFlow {
    /// The flow; `None` if only its key is known.
    pub flow: Option<Flow>,
    #[serde(flatten)]
    pub ends: FlowNetworks,
    pub key: Key,
    pub value: u64,
    /// The age of a latency; a count has none.
    pub age_seconds: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Top {
    /// What the flows are ranked by: a name of [`By`], or of the store with the figures.
    pub by: String,
    /// The store with the figures.
    pub store: String,
    /// The epoch of the figures, if a moment was asked about.
    pub epoch: Option<EpochSummary>,
    /// Where the flows come from: a store, or `given`.
    pub keys: String,
    /// The top flows, highest first.
    pub flows: Vec<RankedFlow>,
    pub known: u64,
    /// How many of these have a figure, including those beyond `most`.
    pub with_figure: u64,
    /// What could not be read of the key directory.
    pub missed: Lost,
    /// Keys that were forgotten for lack of room.
    pub forgotten: u64,
    /// If no flow has a figure: names of [`By`] for which some flow has one.
    pub others: Vec<&'static str>,
}

impl Top {
    /// What the answer is missing, in sentences.
    pub fn describe_gaps(&self) -> Vec<String> {
        let mut all = Vec::new();
        let missed = &self.missed;
        if missed.overwritten > 0 {
            all.push(format!(
                "The ring of keys in {} no longer has its first {}: flows reported only there are not ranked.",
                self.keys,
                format_count(missed.overwritten, "batch", "batches")
            ));
        }
        let lost = missed.missing + missed.damaged;
        if lost > 0 {
            all.push(format!(
                "{} of keys never came or are damaged: flows in them are not ranked.",
                format_count(lost, "batch", "batches")
            ));
        }
        if missed.unreadable > 0 {
            all.push(format!(
                "{} of keys cannot be read by this version.",
                format_count(missed.unreadable, "entry", "entries")
            ));
        }
        if self.forgotten > 0 {
            all.push(format!(
                "{} had no room here: the flows reported longest ago are not ranked.",
                format_count(self.forgotten, "key", "keys")
            ));
        }
        if self.known == 0 {
            all.push(format!("No flow is known: {} has no keys.", self.keys));
        } else if self.with_figure == 0 {
            all.push(format!("No {} known for these {} flows (store {}).", self.by, self.known, self.store));
            if !self.others.is_empty() {
                all.push(format!("They can be ranked by {} (--by).", self.others.join(", ")));
            }
            if self.store == store::COUNTERS && (self.by == "packets" || self.by == "bytes") {
                all.push("The translator counts packets and bytes with per_packet = true.".into());
            }
        }
        all
    }
}

/// Ranks flows repeatedly: the key directory is read once, then only its new entries.
pub struct Ranking {
    ask: Arc<dyn Ask>,
    criteria: Criteria,
    directory: Directory,
    /// The last batch read, by list.
    read: BTreeMap<u32, u32>,
    missed: Lost,
    /// Generation of the memory that the keys were read from.
    generation: Option<u64>,
}

/// The store with the figures, and its primitive: key-write for latencies, key-increment for counts.
type Figures = (String, Primitive);

impl Ranking {
    pub fn new(ask: Arc<dyn Ask>, criteria: Criteria) -> Self {
        let (directory, ask) = (Directory::default(), stores::at_moment(&ask, criteria.at));
        Self { ask, criteria, directory, read: BTreeMap::new(), missed: Lost::default(), generation: None }
    }

    pub fn criteria(&self) -> &Criteria {
        &self.criteria
    }

    /// Ranks by something else from now on; known flows stay.
    pub fn set_criterion(&mut self, by: Option<By>) {
        self.criteria.by = by;
    }

    /// The current top flows.
    pub async fn rank_flows(&mut self) -> Result<Top, IntError> {
        let catalog = StoreCatalog::fetch_from(&*self.ask).await?;
        let of_records = match self.criteria.by {
            Some(By::Bytes) => Some(FlowSum::Bytes),
            Some(By::Packets) => Some(FlowSum::Packets),
            _ => None,
        };
        if let Some(by) = of_records
            && let Some(top) = self.rank_records(&catalog, by).await?
        {
            return Ok(top);
        }
        let ranked = self.rank_by_figures(&catalog).await;
        let has_latencies =
            ranked.as_ref().is_ok_and(|top| top.by == By::Latency.name() && !top.flows.is_empty());
        if self.criteria.by.is_none()
            && !has_latencies
            && let Some(top) = self.rank_records(&catalog, FlowSum::Bytes).await?
        {
            return Ok(top);
        }
        ranked
    }

    /// The top flows by what stores hold for each key.
    async fn rank_by_figures(&mut self, catalog: &StoreCatalog) -> Result<Top, IntError> {
        let (keys, is_directory) = self.read_keys(catalog).await?;
        let mut flows = self.known_flows();
        if let Some(prefix) = self.criteria.prefix {
            flows.retain(|_, flow| flow.flow.is_some_and(|flow| prefix.has_end_of(&flow)));
        }
        let known = flows.len() as u64;
        let (by, store, mut rows) = match &self.criteria.store {
            Some(name) => {
                let figures = named_figures(catalog, name)?;
                let rows = self.figure_rows(By::Reports, &figures, &flows).await?;
                (name.clone(), figures.0, rows)
            }
            None => {
                let (by, store, rows) = self.rank_by_criterion(catalog, is_directory, &flows).await?;
                (by.name().to_owned(), store, rows)
            }
        };
        let mut others = Vec::new();
        if let (Some(asked), true, false, None) =
            (self.criteria.by, rows.is_empty(), flows.is_empty(), &self.criteria.store)
        {
            for other in By::ALL.into_iter().filter(|by| *by != asked) {
                if let Some(figures) = self.find_figures(catalog, is_directory, other)
                    && self.figure_rows(other, &figures, &flows).await.is_ok_and(|rows| !rows.is_empty())
                {
                    others.push(other.name());
                }
            }
        }
        let epoch = match self.criteria.at {
            Some(at) => {
                let epoch = stores::epoch_at_moment(&*self.ask, &store, at).await?;
                Some(EpochSummary::from(&epoch.map_err(IntError::NotKept)?))
            }
            None => None,
        };
        let with_figure = rows.len() as u64;
        // Equal figures are ordered by key, so that the same query gets the same answer.
        rows.sort_by(|a, b| b.value.cmp(&a.value).then(a.key.cmp(&b.key)));
        rows.truncate(self.criteria.most);
        rows.iter_mut().for_each(|row| row.ends = self.criteria.names.flow_networks(row.flow));
        let (missed, forgotten) = (self.missed, self.directory.forgotten());
        Ok(Top { by, store, epoch, keys, flows: rows, known, with_figure, missed, forgotten, others })
    }

    /// The top flows in flow records, if they are what was asked for and there are any.
    async fn rank_records(&self, catalog: &StoreCatalog, by: FlowSum) -> Result<Option<Top>, IntError> {
        let Criteria { by: _, most, prefix, keys: Keys::Directory, store: None, at: None, names } =
            &self.criteria
        else {
            return Ok(None);
        };
        if !catalog.has_store(flow_record::STORE, Primitive::Append) {
            return Ok(None);
        }
        let question = FlowQuestion {
            filter: prefix.map(|prefix| FlowFilter::either_end_in(&prefix)).unwrap_or_default(),
            group: FLOW_COLUMNS.iter().collect(),
            ..FlowQuestion::default()
        };
        let (answer, scanned) = self.ask.query_flows(flow_record::STORE, &question, by, *most).await?;
        if answer.groups == 0 {
            return Ok(None);
        }
        let row = |row: &FlowRow| {
            let flow = flow_from_values(&row.values)?;
            let ends = names.flow_networks(Some(flow));
            let value = row.sums.value_of(by);
            Some(RankedFlow { flow: Some(flow), ends, key: flow.to_key(), value, age_seconds: None })
        };
        let ScanCounts { missing, torn, .. } = scanned;
        Ok(Some(Top {
            by: by.name().to_owned(),
            store: flow_record::STORE.to_owned(),
            epoch: None,
            keys: flow_record::STORE.to_owned(),
            flows: answer.rows.iter().filter_map(row).collect(),
            known: answer.groups,
            with_figure: answer.groups,
            missed: Lost { missing, damaged: torn, ..Lost::default() },
            forgotten: 0,
            others: Vec::new(),
        }))
    }

    /// Where flows come from, and at most `most` of them, the most recently reported first. Keys without a flow are left out.
    pub(super) async fn list_recent_flows(
        &mut self,
        catalog: &StoreCatalog,
        most: usize,
    ) -> Result<(String, Vec<Flow>), IntError> {
        let (source, _) = self.read_keys(catalog).await?;
        let keys: Vec<Key> = self.directory.known_keys().collect();
        let (mut flows, mut seen) = (Vec::new(), BTreeSet::new());
        for key in keys {
            if flows.len() == most {
                break;
            }
            let flow = self.directory.resolve_key(&key).and_then(|meaning| meaning.known_flow());
            if let Some(flow) = flow
                && seen.insert(flow.to_key())
            {
                flows.push(flow);
            }
        }
        Ok((source, flows))
    }

    /// The keys read so far.
    pub(super) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Reads new keys; returns where they come from, and whether that is the key directory.
    async fn read_keys(&mut self, catalog: &StoreCatalog) -> Result<(String, bool), IntError> {
        let of_keys = match &self.criteria.keys {
            Keys::These(flows) => {
                for flow in flows {
                    self.directory.remember_key(flow.to_key(), telemetry::Means::Flow(*flow));
                }
                return Ok(("given".into(), false));
            }
            Keys::Directory if catalog.has_store(store::EVENTS, Primitive::Append) => {
                store::EVENTS.to_owned()
            }
            Keys::Directory => {
                let mut all = catalog.key_list_stores();
                match (all.next(), all.next()) {
                    (Some((name, _)), None) => name.to_owned(),
                    _ => {
                        let what = format!(
                            "no list of flows here: neither {}, which INT and flow records fill, nor one append store whose \
                             entries are keys (16 bytes); name a store of keys with --keys, or a file of flows with --flows \
                             (this collector has {})",
                            store::EVENTS,
                            catalog.store_names()
                        );
                        return Err(IntError::NoStore(what));
                    }
                }
            }
            Keys::Store(name) => name.clone(),
        };
        if of_keys == store::EVENTS {
            self.read_new_keys(catalog, &of_keys, list::KEYS).await?;
            return Ok((of_keys, true));
        }
        let lists = catalog.key_list_stores().find(|(name, _)| *name == of_keys).map(|(_, lists)| lists);
        let Some(lists) = lists else {
            let what = format!(
                "{of_keys} is no append store whose entries are keys (16 bytes); this collector has {}",
                catalog.store_names()
            );
            return Err(IntError::NoStore(what));
        };
        for list in 0..lists {
            self.read_new_keys(catalog, &of_keys, list).await?;
        }
        Ok((of_keys, false))
    }

    /// Reads new entries in a list of keys, or all of them if the store's memory has changed.
    async fn read_new_keys(
        &mut self,
        catalog: &StoreCatalog,
        store: &str,
        list: u32,
    ) -> Result<(), IntError> {
        let generation = catalog.generation(store);
        if self.generation != generation {
            (self.generation, self.missed) = (generation, Lost::default());
            self.read.clear();
        }
        match self.read.get(&list).copied() {
            Some(last) => self.take(store, list, advance_sequence(last, 1)).await?,
            None => {
                self.take(store, list, 1).await?;
                // Sequences wrap: after two thousand million batches, the first one lies ahead.
                if !self.read.contains_key(&list) {
                    self.take(store, list, 0).await?;
                }
            }
        }
        Ok(())
    }

    /// Reads a list from a sequence on; 0 = from the oldest batch.
    async fn take(&mut self, store: &str, list: u32, from_sequence: u32) -> Result<(), IntError> {
        let request = TailRequest {
            store: store.to_owned(),
            list,
            until_caught_up: true,
            from_start: from_sequence == 0,
            from_sequence,
        };
        let mut following = self.ask.tail_list(request).await?;
        while let Some(message) = following.next_message().await? {
            self.missed.overwritten += message.overwritten_batches;
            self.missed.missing += message.missing_batches;
            self.missed.damaged += message.damaged_batches;
            if message.sequence != 0 {
                self.read.insert(list, message.sequence as u32);
            }
            for entry in &message.entries {
                if store == store::EVENTS {
                    match telemetry::TelemetryEntry::parse_bytes(entry) {
                        Some(entry) => self.directory.take(&entry),
                        None => self.missed.unreadable += 1,
                    }
                } else if let Ok(key) = <[u8; KEY_LEN]>::try_from(&entry[..]) {
                    self.directory.remember_key(Key(key), telemetry::Means::Itself);
                }
            }
        }
        Ok(())
    }

    /// The flows with a figure, for what was asked or, if nothing was, for the first criterion with figures.
    async fn rank_by_criterion(
        &self,
        catalog: &StoreCatalog,
        is_directory: bool,
        flows: &BTreeMap<Key, KnownFlow>,
    ) -> Result<(By, String, Vec<RankedFlow>), IntError> {
        let candidates = self.criteria.by.map_or(PREFERRED.to_vec(), |by| vec![by]);
        let mut without_rows = Err(self.missing_figures(catalog, is_directory));
        for by in candidates {
            let Some(figures) = self.find_figures(catalog, is_directory, by) else { continue };
            match self.figure_rows(by, &figures, flows).await {
                Ok(rows) if !rows.is_empty() => return Ok((by, figures.0, rows)),
                Ok(rows) => without_rows = without_rows.or(Ok((by, figures.0, rows))),
                // Some stores may have epochs while others have none.
                Err(error) if self.criteria.at.is_some() => without_rows = without_rows.or(Err(error)),
                Err(error) => return Err(error),
            }
        }
        without_rows
    }

    /// The store with figures of flows: one for INT and flow records or, for keys of DTA reports, one named after the
    /// criterion.
    fn find_figures(&self, catalog: &StoreCatalog, is_directory: bool, by: By) -> Option<Figures> {
        let (name, primitive) = by.telemetry_store();
        if (is_directory || matches!(self.criteria.keys, Keys::These(_)))
            && catalog.has_store(name, primitive)
        {
            return Some((name.to_owned(), primitive));
        }
        if is_directory {
            return None;
        }
        let primitives = [Primitive::KeyIncrement, Primitive::KeyWrite];
        let primitive = primitives.into_iter().find(|primitive| catalog.has_store(by.name(), *primitive))?;
        Some((by.name().to_owned(), primitive))
    }

    /// Why flows cannot be ranked, and what they can be ranked by.
    fn missing_figures(&self, catalog: &StoreCatalog, is_directory: bool) -> IntError {
        let by = self.criteria.by;
        let is_there = |by: &By| self.find_figures(catalog, is_directory, *by).is_some();
        let others: Vec<_> = By::ALL.into_iter().filter(is_there).map(By::name).collect();
        let advice = match &others[..] {
            [] => "name a store of counts (key-increment) or values (key-write) with --store".to_owned(),
            others => format!("try --by {}", others.join(" or --by ")),
        };
        let why = match by {
            None => "no figures of flows here".to_owned(),
            Some(by) => match catalog.find_store(by.name()) {
                Some(spec) if !is_directory => format!(
                    "store {} is of {}, which answers for one key at a time and is not ranked",
                    spec.name,
                    spec.primitive()
                ),
                _ => format!("no {} here", by.plural()),
            },
        };
        let stores = catalog.store_names();
        IntError::NoStore(format!("{why}; {advice} (this collector has {stores})"))
    }

    /// The flows with a figure.
    async fn figure_rows(
        &self,
        by: By,
        (store, primitive): &Figures,
        flows: &BTreeMap<Key, KnownFlow>,
    ) -> Result<Vec<RankedFlow>, IntError> {
        match primitive {
            Primitive::KeyWrite => self.latencies(store, flows).await,
            _ => self.count_rows(by, store, flows).await,
        }
    }

    /// The moment of the figures, in nanoseconds since 1970.
    fn now(&self) -> u64 {
        self.criteria.at.map_or_else(moment::now, |at| at.saturating_mul(1_000_000))
    }

    /// The known flows, and for each the reasons for which packets were dropped.
    fn known_flows(&mut self) -> BTreeMap<Key, KnownFlow> {
        let mut flows: BTreeMap<Key, KnownFlow> = BTreeMap::new();
        let keys: Vec<Key> = self.directory.known_keys().collect();
        for key in keys {
            match self.directory.resolve_key(&key) {
                Some(Meaning::Flow(flow)) => flows.entry(key).or_default().flow = Some(flow),
                Some(Meaning::Hop { flow, flow_key, .. }) => {
                    let known = flows.entry(flow_key).or_default();
                    known.flow = known.flow.or(flow);
                }
                Some(Meaning::FlowDrops { flow, flow_key, .. }) => {
                    let known = flows.entry(flow_key).or_default();
                    known.flow = known.flow.or(flow);
                    known.drops.push(key);
                }
                Some(Meaning::Queue { .. } | Meaning::Port { .. } | Meaning::SwitchDrops { .. }) => {}
                // The name of an interface.
                None if key.0.ends_with(b"ifnm") => {}
                // A key in a key store need not be an IPv4 flow.
                None => drop(flows.entry(key).or_default()),
            }
        }
        flows
    }

    async fn latencies(
        &self,
        store: &str,
        flows: &BTreeMap<Key, KnownFlow>,
    ) -> Result<Vec<RankedFlow>, IntError> {
        let (keys, now): (Vec<Key>, u64) = (flows.keys().copied().collect(), self.now());
        let values = stores::query_values(&*self.ask, store, &keys).await?;
        let row = |((key, known), value): ((&Key, &KnownFlow), Option<Vec<u8>>)| {
            let value = value?;
            let (number, rest) = value.split_first_chunk()?;
            let time = TimedValue::parse_bytes(&value).filter(|_| rest.len() == 8).map(|value| value.time);
            let age_seconds = time.and_then(|time| moment::age_in_seconds(time, now));
            Some(RankedFlow {
                flow: known.flow,
                ends: FlowNetworks::default(),
                key: *key,
                value: u32::from_be_bytes(*number).into(),
                age_seconds,
            })
        };
        Ok(flows.iter().zip(values).filter_map(row).collect())
    }

    async fn count_rows(
        &self,
        by: By,
        name: &str,
        flows: &BTreeMap<Key, KnownFlow>,
    ) -> Result<Vec<RankedFlow>, IntError> {
        let is_int = name == store::COUNTERS && self.criteria.store.is_none();
        // The keys whose counts are summed, flow by flow.
        let mut keys: Vec<Key> = Vec::new();
        let mut ends = Vec::with_capacity(flows.len());
        for (key, known) in flows {
            match (is_int, by, known.flow) {
                (false, ..) | (true, By::Reports | By::Latency, _) => keys.push(*key),
                (true, By::Drops, _) => keys.extend(&known.drops),
                (true, By::Packets, Some(flow)) => keys.push(telemetry::packets_key(&flow)),
                (true, By::Bytes, Some(flow)) => keys.push(telemetry::bytes_key(&flow)),
                // Without the flow, its other keys cannot be computed.
                (true, By::Packets | By::Bytes, None) => {}
            }
            ends.push(keys.len());
        }
        let counts = stores::query_counts(&*self.ask, name, &keys).await?;
        let mut begin = 0;
        let mut rows = Vec::new();
        for ((key, known), end) in flows.iter().zip(ends) {
            let value = counts[begin..end].iter().sum();
            begin = end;
            if value > 0 {
                rows.push(RankedFlow {
                    flow: known.flow,
                    ends: FlowNetworks::default(),
                    key: *key,
                    value,
                    age_seconds: None,
                });
            }
        }
        Ok(rows)
    }
}

fn named_figures(catalog: &StoreCatalog, name: &str) -> Result<Figures, IntError> {
    match catalog.find_store(name).map(|spec| &spec.kind) {
        Some(StoreKind::KeyIncrement { .. }) => Ok((name.to_owned(), Primitive::KeyIncrement)),
        Some(StoreKind::KeyWrite { value_len: 4.., .. }) => Ok((name.to_owned(), Primitive::KeyWrite)),
        Some(kind) => Err(IntError::NoStore(format!(
            "store {name} is of {}, which has no figures to rank by: name a key-increment store, or a key-write store with \
             values of at least 4 bytes",
            kind.primitive().canonical_name()
        ))),
        None => {
            Err(IntError::NoStore(format!("there is no store {name}; there are {}", catalog.store_names())))
        }
    }
}

#[derive(Default)]
struct KnownFlow {
    flow: Option<Flow>,
    /// Keys of its drops, by reason.
    drops: Vec<Key>,
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::Ordering;

    use dta_proto::control::CounterAnswer;
    use dta_proto::flow_record::FlowRecord;

    use super::*;
    use crate::test_collector::TestCollector;

    #[tokio::test]
    async fn keys_are_read_on_and_anew_once_the_store_has_other_memory() {
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap();
        let keys = StoreKind::Append { lists: 1, ring: 16, batch_len: 64, entry_len: 16, notify: false };
        let counts = StoreKind::KeyIncrement { slots: 1 << 10, redundancy: 2, replicas: 1 };
        let mut fake = TestCollector::with_stores([("keys", keys), ("bytes", counts)]);
        fake.add("keys", 0, [flow.to_key().0.to_vec()]);
        fake.put_answer("bytes", flow.to_key(), CounterAnswer { value: 7, ..CounterAnswer::default() });
        let fake = Arc::new(fake);
        let criteria = Criteria { by: Some(By::Bytes), ..Criteria::default() };
        let mut ranking = Ranking::new(fake.clone(), criteria);
        for generation in [1, 1, 2] {
            fake.generation.store(generation, Ordering::Relaxed);
            assert_eq!(ranking.rank_flows().await.unwrap().flows.len(), 1);
        }
        assert_eq!(*fake.tails.lock().unwrap(), [1, 2, 1]);
        assert_eq!(fake.looks.load(Ordering::Relaxed), 0, "no query may read all memory");
    }

    #[tokio::test]
    async fn bytes_and_packets_are_ranked_by_flow_records_if_there_are_any() {
        let entry_len = flow_record::ENTRY_LEN as u8;
        let kind = StoreKind::Append { lists: 4, ring: 16, batch_len: 1024, entry_len, notify: false };
        let mut fake = TestCollector::with_stores([(flow_record::STORE, kind)]);
        let record = |last, bytes, packets| FlowRecord {
            src: Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped(),
            dst: Ipv4Addr::new(10, 1, 0, last).to_ipv6_mapped(),
            dst_port: 443,
            protocol: 6,
            bytes,
            packets,
            ..FlowRecord::EMPTY
        };
        fake.put_flow_records(&[record(1, 500, 9), record(2, 700, 2), record(1, 300, 1), record(3, 1, 1)]);
        let ask = Arc::new(fake);
        let rank = async |by: Option<By>, prefix: Option<&str>| {
            let prefix = prefix.map(|prefix| prefix.parse().unwrap());
            let criteria = Criteria { by, most: 2, prefix, ..Criteria::default() };
            let top = Ranking::new(ask.clone(), criteria).rank_flows().await.unwrap();
            assert_eq!((&*top.store, &*top.keys), (flow_record::STORE, flow_record::STORE));
            let row = |row: &RankedFlow| (row.flow.unwrap().to_string(), row.value);
            (top.flows.iter().map(row).collect::<Vec<_>>(), top.known)
        };
        let flow = |last: u8, value| (format!("10.0.0.{last}:0->10.1.0.{last}:443/tcp"), value);
        assert_eq!(rank(Some(By::Bytes), None).await, (vec![flow(1, 800), flow(2, 700)], 3));
        assert_eq!(rank(Some(By::Packets), None).await, (vec![flow(1, 10), flow(2, 2)], 3));
        assert_eq!(rank(Some(By::Bytes), Some("10.1.0.2/31")).await, (vec![flow(2, 700), flow(3, 1)], 2));
        assert_eq!(rank(None, None).await.0[0], flow(1, 800), "there are no latencies");
        let criteria = Criteria { by: Some(By::Drops), ..Criteria::default() };
        assert!(Ranking::new(ask.clone(), criteria).rank_flows().await.is_err(), "records have no drops");
    }

    #[tokio::test]
    async fn what_flows_can_be_ranked_by_instead_is_named() {
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap();
        let counts = StoreKind::KeyIncrement { slots: 1 << 10, redundancy: 2, replicas: 1 };
        let keys = StoreKind::Append { lists: 1, ring: 16, batch_len: 64, entry_len: 16, notify: false };
        let mut fake =
            TestCollector::with_stores([("keys", keys), ("packets", counts.clone()), ("bytes", counts)]);
        fake.put_answer("bytes", flow.to_key(), CounterAnswer { value: 7, ..CounterAnswer::default() });
        let ask = Arc::new(fake);
        let rank = async |by| {
            let criteria = Criteria { by: Some(by), keys: Keys::These(vec![flow]), ..Criteria::default() };
            Ranking::new(ask.clone(), criteria).rank_flows().await
        };
        let top = rank(By::Packets).await.unwrap();
        assert_eq!((top.with_figure, &top.others[..]), (0, &["bytes"][..]));
        assert!(
            top.describe_gaps().contains(&"They can be ranked by bytes (--by).".to_owned()),
            "{:?}",
            top.describe_gaps()
        );
        assert_eq!(rank(By::Bytes).await.unwrap().others, [""; 0]);
        let refused = rank(By::Latency).await.unwrap_err().to_string();
        assert!(refused.contains("try --by packets or --by bytes"), "{refused}");
    }
}

//! Switches and exporters of flow records, with their last sign of life.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dta_export::names::Names;
use dta_proto::flow_query::{FlowQuestion, FlowSum};
use dta_proto::flow_record;
use dta_proto::telemetry::{SwitchNumber, TelemetryEntry, is_since_1970, list, store};
use dta_proto::wire::dta::Primitive;
use dta_rpc::Ask;
use serde::Serialize;

use super::{IntError, StoreCatalog, moment};

/// Most sources listed: those silent for longest.
const MOST: usize = 1000;
/// How far back flow records are searched, and in what steps, in nanoseconds.
const LOOK_BACK: u64 = 3_600_000_000_000;
const STEP: u64 = 10_000_000_000;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TelemetrySource {
    /// `switch` or `exporter`.
    pub kind: &'static str,
    /// Its number or address.
    pub number: String,
    pub name: Option<String>,
    /// For switches: INT events in the rings.
    pub events: u64,
    /// For exporters: flow records of the last hour.
    pub records: u64,
    /// Time since the last event or record, for records to within 10 s. `None`: its own clock does not count from 1970.
    pub age_seconds: Option<f64>,
}

/// An exporter's address or a switch's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SourceNumber {
    Switch(u32),
    Exporter(IpAddr),
}

#[derive(Default)]
struct SourceTally {
    events: u64,
    records: u64,
    last: u64,
}

/// Switches and exporters with data in memory, those silent for longest first.
pub async fn list_sources(ask: &Arc<dyn Ask>, names: &Names) -> Result<Vec<TelemetrySource>, IntError> {
    let catalog = StoreCatalog::fetch_from(&**ask).await?;
    let now = moment::now();
    let mut sources: BTreeMap<SourceNumber, SourceTally> = BTreeMap::new();
    if catalog.has_store(store::EVENTS, Primitive::Append) {
        super::read(ask, store::EVENTS, &[list::CHANGES, list::DROPS, list::CONGESTION], |batch| {
            for entry in &batch.entries {
                let (TelemetryEntry::Change { place, time, .. }
                | TelemetryEntry::Drop { place, time, .. }
                | TelemetryEntry::Congestion { place, time, .. }) = entry
                else {
                    continue;
                };
                let Some(switch) = place.switch else { continue };
                let number = match SwitchNumber(switch).is_address() {
                    true => SourceNumber::Exporter(IpAddr::from(switch.to_be_bytes())),
                    false => SourceNumber::Switch(switch),
                };
                let source = sources.entry(number).or_default();
                source.events += 1;
                source.last = source.last.max(*time);
            }
        })
        .await?;
    }
    if catalog.has_store(flow_record::STORE, Primitive::Append) {
        let question = FlowQuestion {
            group: FlowQuestion::parse_group("exporter").unwrap_or_default(),
            since: now.saturating_sub(LOOK_BACK),
            per: STEP,
            ..FlowQuestion::default()
        };
        let (answer, _) = ask.query_flows(flow_record::STORE, &question, FlowSum::Flows, MOST).await?;
        for row in &answer.rows {
            let Some(address) = row.values.first().map(|value| Ipv6Addr::from_bits(*value)) else { continue };
            let source = sources.entry(SourceNumber::Exporter(address.to_canonical())).or_default();
            source.records += row.sums.flows;
            let last = row.series.iter().map(|(start, _)| start.saturating_add(STEP).min(now)).max();
            source.last = source.last.max(last.unwrap_or_default());
        }
    }
    let describe = |(number, tally): (SourceNumber, SourceTally)| {
        let (kind, text, switch) = match number {
            SourceNumber::Switch(number) => ("switch", number.to_string(), number),
            SourceNumber::Exporter(address) => {
                ("exporter", address.to_string(), flow_record::switch_from_exporter(address))
            }
        };
        TelemetrySource {
            kind,
            number: text,
            name: names.switch_name(switch).map(str::to_owned),
            events: tally.events,
            records: tally.records,
            age_seconds: is_since_1970(tally.last).then(|| now.saturating_sub(tally.last) as f64 / 1e9),
        }
    };
    let mut all: Vec<TelemetrySource> = sources.into_iter().map(describe).collect();
    // An unknown age counts as 0.
    let age = |source: &TelemetrySource| source.age_seconds.unwrap_or_default();
    all.sort_by(|a, b| age(b).total_cmp(&age(a)));
    all.truncate(MOST);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use dta_proto::flow_record::FlowRecord;
    use dta_proto::key::Key;
    use dta_proto::store::StoreKind;
    use dta_proto::telemetry::{Location, Metric, Why};

    use super::*;
    use crate::test_collector::TestCollector;

    #[tokio::test]
    async fn each_has_its_last_sign_of_life() {
        let events = StoreKind::Append { lists: 4, ring: 16, batch_len: 128, entry_len: 60, notify: false };
        let entry_len = flow_record::ENTRY_LEN as u8;
        let records = StoreKind::Append { lists: 1, ring: 16, batch_len: 1024, entry_len, notify: false };
        let mut fake = TestCollector::with_stores([(store::EVENTS, events), (flow_record::STORE, records)]);
        let ago = |seconds: u64| moment::now() - seconds * 1_000_000_000;
        for (switch, time) in [(4, ago(600)), (4, ago(300)), (5, 7)] {
            let place = Location { switch: Some(switch), ..Location::default() };
            let (key, metric, why) = (Key([1; 16]), Metric::LinkUtilization, Why::New);
            let entry = TelemetryEntry::Change { time, key, metric, why, old: 0, new: 1, place, path: None };
            fake.add(store::EVENTS, list::CHANGES, [entry.to_bytes().to_vec()]);
        }
        let exporter = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
        let record = |seconds| FlowRecord {
            exporter,
            received: ago(seconds),
            bytes: 1,
            packets: 1,
            ..FlowRecord::EMPTY
        };
        fake.put_flow_records(&[record(1000), record(100)]);
        let ask: Arc<dyn Ask> = Arc::new(fake);
        let sources = list_sources(&ask, &Names::default()).await.unwrap();
        let known: Vec<_> =
            sources.iter().map(|one| (one.kind, &*one.number, one.events, one.records)).collect();
        assert_eq!(known, [("switch", "4", 2, 0), ("exporter", "192.0.2.1", 0, 2), ("switch", "5", 1, 0)]);
        let age = |n: usize| sources[n].age_seconds;
        assert!(age(0).unwrap() >= 300.0 && age(0) > age(1) && age(1).unwrap() >= 90.0);
        assert_eq!(age(2), None);
    }
}

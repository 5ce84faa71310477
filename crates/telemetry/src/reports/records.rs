//! Turns what exporters say into list entries and counts.
//!
//! | record | primitive |
//! |---|---|
//! | every flow record | an entry of `flow-records`, in the list of its exporter |
//! | a flow record of a flow on the watchlist, if there is one | counters of its packets and bytes, too |
//! | a dropped packet | as an INT report about one |
//! | counters of an interface | counters of what it counted since the last reading; the bytes sent, as the utilisation of its link, in hundredths of a percent |
//! | queue and latency of a sampled packet's hop | as those of INT |
//! | the name of an interface | an entry of list 3 |
//!
//! No state is kept per flow: the list is the table of flows, and queries sum it up ([`dta_proto::flow_query`]).

use dta_proto::counter::{FlowReason, translator as names};
use dta_proto::crc::crc32c;
use dta_proto::flow_record::{FlowRecord, switch_from_exporter};
use dta_proto::store::MAX_REDUNDANCY;
use dta_proto::telemetry::{self, InterfaceCounter, Location, Means, Metric, TelemetryEntry, list};

use super::seen::mix_to_u64;
use super::{
    ArrivalTime, Detect, EgressPortNames, INTERFACE_COUNTER, INTERFACE_NAME, Named, PrimitiveBatch,
    Telemetry, ValueName, ValueReport, Verdict, Whose,
};
use crate::exported::{Exported, InterfaceName, InterfaceReading, PacketDrop};

/// Shortest time between two readings of an interface that say enough about its rate, in nanoseconds: what comes earlier is a repeat.
const SHORTEST: u64 = 500_000_000;
/// Maximum number of operations that the counts of a record become: packets and bytes, in all copies.
const COUNT_OPERATIONS: usize = 2 * MAX_REDUNDANCY as usize;

/// The store of flow records, and which of its lists this translator writes: none if there is no such store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordStore {
    pub id: u16,
    pub lists: Vec<u32>,
}

impl RecordStore {
    /// The list for an exporter's records: always the same, so that they stay in order.
    #[inline]
    fn list_of_exporter(&self, record: &FlowRecord) -> Option<u32> {
        let exporter = record.exporter.to_bits();
        let hash = mix_to_u64(exporter as u64, (exporter >> 64) as u64);
        let place = (u128::from(hash) * self.lists.len() as u128) >> 64;
        self.lists.get(place as usize).copied()
    }
}

/// What the queue pairs have room for, in operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRoom {
    /// For lists: usually several records share an operation, but a single one may need it.
    pub records: usize,
    /// For counters.
    pub counts: usize,
}

impl Default for RecordRoom {
    /// No limit.
    fn default() -> RecordRoom {
        RecordRoom { records: usize::MAX, counts: usize::MAX }
    }
}

dta_proto::published_counters! {
    /// Counters of flow records. `records = dropped + not_watched + appended + drops` at any time.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RecordCounters {
        pub records: u64 = names::FLOWS_RECORDS,
        pub not_watched: u64 = names::FLOWS_NOT_WATCHED,
        pub appended: u64 = names::FLOWS_APPENDED,
        pub counted: u64 = names::FLOWS_COUNTED,
        pub uncounted: u64 = names::FLOWS_UNCOUNTED,
        pub sampled: u64 = names::FLOWS_SAMPLED,
        pub drops: u64 = names::FLOWS_DROPS,
        pub primitives: u64 = names::FLOWS_PRIMITIVES,
    }
    by {
        dropped: FlowReason = names::FLOWS_DROPPED,
    }
}

impl RecordCounters {
    pub fn dropped_records(&self, reason: FlowReason) -> u64 {
        self.dropped[reason as usize]
    }

    /// What does not add up.
    pub fn find_imbalance(&self) -> Option<String> {
        let dropped: u64 = self.dropped.iter().sum();
        let ended = dropped + self.not_watched + self.appended + self.drops;
        (self.records != ended).then(|| format!("{} flow records, and {ended} that ended", self.records))
    }
}

impl Telemetry {
    pub fn record_counters(&self) -> &RecordCounters {
        &self.records
    }

    /// Every counter of flow records by its dotted name.
    pub fn named_records(&self) -> Vec<(String, u64)> {
        self.records.named_counters()
    }

    /// Sets where flow records go.
    pub fn set_record_store(&mut self, store: RecordStore) {
        self.record_store = store;
    }

    /// Sets what the queue pairs have room for from now on. Records that do not fit are dropped and counted.
    pub fn set_record_room(&mut self, room: RecordRoom) {
        self.room = room;
    }

    /// Counts a record that could not be read.
    pub fn drop_record(&mut self, reason: FlowReason) {
        self.records.records += 1;
        self.records.dropped[reason as usize] += 1;
    }

    /// Processes what an exporter says. The resulting primitives are added to `made`.
    #[inline]
    pub fn ingest_exported(&mut self, at: ArrivalTime, exported: &Exported, made: &mut PrimitiveBatch) {
        match exported {
            Exported::Flow(record) => self.flow_record(record, made),
            Exported::Drop(drop) => self.packet_drop(at, drop, made),
            Exported::Interface(reading) => self.interface(at, reading, made),
            Exported::Transit(reading) => self.ingest_transit(at, reading, made),
            Exported::Name(name) => self.interface_name(at, name, made),
        }
    }

    /// Appends a record to the list of its exporter.
    #[inline]
    fn flow_record(&mut self, record: &FlowRecord, made: &mut PrimitiveBatch) {
        let Some(list) = self.record_store.list_of_exporter(record) else {
            return self.drop_record(FlowReason::NoStore);
        };
        if self.room.records == 0 {
            return self.drop_record(FlowReason::Congested);
        }
        self.room.records -= 1;
        made.append_record(self.record_store.id, list, &record.to_entry());
        self.records.records += 1;
        self.records.appended += 1;
        self.records.sampled += u64::from(record.sampling_rate > 1);
        self.records.primitives += 1;
        if !self.rules.watch.is_empty() {
            self.count_watched(record, made);
        }
    }

    /// Adds to the packets and bytes of a flow on the watchlist.
    fn count_watched(&mut self, record: &FlowRecord, made: &mut PrimitiveBatch) {
        let flow = record.flow_key();
        if !self.is_watched(&flow) || self.stores.counters.is_none() {
            return;
        }
        if self.room.counts < COUNT_OPERATIONS {
            self.records.uncounted += 1;
            return;
        }
        self.room.counts -= COUNT_OPERATIONS;
        let before = made.len();
        made.increment(self.stores.counters, telemetry::packets_key(&flow), record.total_packets());
        made.increment(self.stores.counters, telemetry::bytes_key(&flow), record.total_bytes());
        self.records.counted += 1;
        self.records.primitives += (made.len() - before) as u64;
    }

    fn packet_drop(&mut self, at: ArrivalTime, drop: &PacketDrop, made: &mut PrimitiveBatch) {
        self.records.records += 1;
        if drop.flow.as_ref().is_some_and(|flow| !self.is_watched(flow)) {
            self.records.not_watched += 1;
            return;
        }
        let before = made.len();
        let whose = drop.flow.as_ref().map(|flow| Whose::new(flow, Named::from_flow(flow)));
        let place =
            Location { switch: Some(switch_from_exporter(drop.exporter)), port: drop.egress, queue: None };
        self.report_packet_drop(at, at.wall, whose, place, drop.ingress, drop.reason, made);
        self.records.drops += 1;
        self.records.primitives += (made.len() - before) as u64;
    }

    /// What an interface counted since the last reading.
    fn interface(&mut self, at: ArrivalTime, of: &InterfaceReading, made: &mut PrimitiveBatch) {
        let (before, switch) = (made.len(), switch_from_exporter(of.exporter));
        for (counter, count) in InterfaceCounter::ALL.into_iter().zip(of.counts) {
            let Some(count) = count else { continue };
            let key = telemetry::interface_counter_key(switch, of.interface, counter);
            let name = ValueName::without_flow(INTERFACE_COUNTER, u128::from_be_bytes(key.0));
            let Some((old, nanoseconds)) = self.seen.replace_if_older(&name, count, at.now, SHORTEST) else {
                continue;
            };
            let Some(more) = counter.increase_between(old, count) else { continue };
            if more > 0 {
                made.increment(self.stores.counters, key, more);
            }
            if counter == InterfaceCounter::OutOctets {
                self.utilization(at, of, more, nanoseconds, made);
            }
        }
        self.records.primitives += (made.len() - before) as u64;
    }

    /// Bytes that left in this time, as the utilisation of the link in hundredths of a percent.
    fn utilization(
        &mut self,
        at: ArrivalTime,
        of: &InterfaceReading,
        bytes: u64,
        nanoseconds: u64,
        made: &mut PrimitiveBatch,
    ) {
        let Some(speed) = of.speed else { return };
        let bits = u128::from(bytes) * 8 * 1_000_000_000;
        let value = bits * 10_000 / (u128::from(speed) * u128::from(nanoseconds)).max(1);
        let (metric, value) = (Metric::LinkUtilization, u64::try_from(value).unwrap_or(u64::MAX));
        let (switch, interface) = (switch_from_exporter(of.exporter), Some(of.interface));
        if let Some(verdict) = self.apply_metric_rule(
            metric,
            &EgressPortNames::new(switch, interface).utilization_name(),
            value,
            at.now,
        ) {
            let key = telemetry::link_utilization_key(switch, interface);
            let place = Location { switch: Some(switch), port: interface, queue: None };
            let means = Means::Itself;
            self.report_value(
                at,
                &ValueReport { metric, verdict, value, time: None, key, place, means, path: None },
                made,
            );
        }
    }

    /// Enters an interface's name into the key directory, if it is new or has changed.
    fn interface_name(&mut self, at: ArrivalTime, of: &InterfaceName, made: &mut PrimitiveBatch) {
        let key = telemetry::interface_name_key(switch_from_exporter(of.exporter), of.interface);
        let name = ValueName::without_flow(INTERFACE_NAME, u128::from_be_bytes(key.0));
        let digest = crc32c(of.name.to_lossy_string().as_bytes());
        let keep_alive = self.rules.metrics[Metric::FlowPath.index()].keep_alive;
        if self.seen.detect_change(&name, digest.into(), at.now, Detect::Any, keep_alive) != Verdict::Same {
            let before = made.len();
            self.append_event(list::KEYS, &TelemetryEntry::Key { key, means: Means::Name(of.name) }, made);
            self.records.primitives += (made.len() - before) as u64;
        }
    }
}

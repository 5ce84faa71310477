//! Flow records become counts of packets and bytes, and entries of the key directory.
//!
//! | record | primitive |
//! |---|---|
//! | every record of a flow | key-write of its bytes, by exporter; postcards of the exporters that the flow passes, when one is added and at each keep-alive |
//! | the same | counters of its records, packets and bytes, if its exporter counts this flow |
//! | a flow or port that is new or due for its keep-alive | an entry of list 3: the flow, and where it leaves the exporter |
//! | a dropped packet | as a report of INT about one |
//! | counters of an interface | counters of what it counted since the last ones; the bytes that left, as the utilisation of its link, in hundredths of a percent |
//! | queue and latency of a sampled packet's hop | as those of INT |
//! | the name of an interface | an entry of list 3 |
//! | the first, and every other sampling rate of a flow | key-write of the rate |
//!
//! Several exporters may see a flow, and one may see it twice, where it enters and where it leaves. The first that reports
//! it counts it. Another takes over when that one has been silent for [`Rules::takeover`](super::Rules::takeover).
//!
//! Records are judged in groups, so that the memory for each arrives in time. A record that differs from one before only
//! in what it counts is added to that one's sum, if it still waits; nothing else is judged of it, and all of this
//! is written when the sum is due.

use std::net::IpAddr;

use dta_proto::counter::{FlowReason, translator as names};
use dta_proto::crc::crc32c;
use dta_proto::flow_record::{DIRECTION_EGRESS, FlowRecord, switch_from_exporter};
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{
    self, InterfaceCounter, Location, Means, Metric, TelemetryEntry, TimedValue, list,
};

use super::record_sums::RecordSum;
use super::tallies::PendingTally;
use super::{
    ArrivalTime, Detect, EgressPortNames, HOP_PORT, INTERFACE_COUNTER, INTERFACE_NAME, KEEPER, Named,
    PrimitiveBatch, RECORDED, SAMPLING, Telemetry, Tell, ValueName, Verdict, Whose, means_flow,
};
use crate::exported::{Exported, InterfaceName, InterfaceReading, PacketDrop};

/// Nanoseconds below which counters of an interface say too little of its rate: what comes earlier is a repeat.
const SHORTEST: u64 = 500_000_000;

/// Records that are judged together.
const GROUP: usize = 16;

/// Records that wait for others to be judged with.
#[derive(Default)]
pub(super) struct RecordGroup {
    at: ArrivalTime,
    records: Vec<(FlowRecord, Flow, Named)>,
}

dta_proto::published_counters! {
    /// Counters of flow records. `records = dropped + not_watched + elsewhere + counted + drops` at
    /// any time.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct RecordCounters {
        pub records: u64 = names::FLOWS_RECORDS,
        pub not_watched: u64 = names::FLOWS_NOT_WATCHED,
        pub elsewhere: u64 = names::FLOWS_ELSEWHERE,
        pub counted: u64 = names::FLOWS_COUNTED,
        pub sampled: u64 = names::FLOWS_SAMPLED,
        pub drops: u64 = names::FLOWS_DROPS,
        pub counts_early: u64 = names::FLOWS_COUNTS_EARLY,
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
        let ended = dropped + self.not_watched + self.elsewhere + self.counted + self.drops;
        (self.records != ended).then(|| format!("{} flow records, and {ended} that ended", self.records))
    }
}

impl Telemetry {
    pub fn record_counters(&self) -> &RecordCounters {
        &self.records
    }

    /// Every counter of flow records by its dotted name.
    pub fn named_records(&self) -> Vec<(String, u64)> {
        let held = (names::FLOWS_COUNTS_HELD.format_name(&[]), self.record_sums.held_reports());
        self.records.named_counters().into_iter().chain([held]).collect()
    }

    /// Counts a record that could not be read.
    pub fn drop_record(&mut self, reason: FlowReason) {
        self.records.records += 1;
        self.records.dropped[reason as usize] += 1;
    }

    /// Processes what an exporter says. The resulting primitives are added to `made`; those of the last few records
    /// with the next [`Telemetry::write_due_counts`].
    #[inline]
    pub fn ingest_exported(&mut self, at: ArrivalTime, exported: &Exported, made: &mut PrimitiveBatch) {
        match exported {
            Exported::Flow(record) => {
                if self.group.records.len() == GROUP || self.group.at != at {
                    self.judge_group(made);
                    self.group.at = at;
                }
                let flow = record.flow_key();
                let named = Named::from_flow(&flow);
                if self.gathers_records() {
                    self.record_sums.prefetch_sums(RecordSum::tally_place(named.home, record));
                }
                self.group.records.push((*record, flow, named));
            }
            Exported::Drop(drop) => self.packet_drop(at, drop, made),
            Exported::Interface(reading) => self.interface(at, reading, made),
            Exported::Transit(reading) => self.ingest_transit(at, reading, made),
            Exported::Name(name) => self.interface_name(at, name, made),
        }
    }

    /// Judges the records that wait for that.
    pub(super) fn judge_group(&mut self, made: &mut PrimitiveBatch) {
        let mut group = std::mem::take(&mut self.group);
        for (record, flow, named) in &group.records {
            self.process_record(group.at, record, flow, *named, made);
        }
        group.records.clear();
        self.group = group;
    }

    fn gathers_records(&self) -> bool {
        self.rules.count_wait != 0 && self.stores.counters.is_some()
    }

    fn process_record(
        &mut self,
        at: ArrivalTime,
        record: &FlowRecord,
        flow: &Flow,
        named: Named,
        made: &mut PrimitiveBatch,
    ) {
        self.records.records += 1;
        if !self.is_watched(flow) {
            self.records.not_watched += 1;
            return;
        }
        let place = RecordSum::tally_place(named.home, record);
        let one =
            if self.gathers_records() { RecordSum::from_record(record, named.key, at.wall) } else { None };
        if let Some(one) = &one {
            let mut counts = false;
            let into = |sum: &mut RecordSum| {
                counts = sum.counts;
                sum.add(one)
            };
            if self.record_sums.add(place, into) {
                self.note_counted(record, counts);
                return;
            }
        }
        let before = made.len();
        let whose = Whose::new(flow, named);
        let switch = switch_from_exporter(IpAddr::V6(record.exporter));
        let ago = if record.start == 0 { 0 } else { at.wall.saturating_sub(record.start) };
        // An exporter may first speak of a flow long after the one before.
        if !self.process_trail(at, whose, switch, ago, u64::MAX, made) {
            self.add_directory_key(at, RECORDED, whose.key, means_flow(whose.flow), made);
        }
        self.tell_port(at, whose, record, made);
        let keeper = u64::from(switch) << 1 | u64::from(record.direction == DIRECTION_EGRESS);
        let counts =
            self.seen.claim_name(&whose.flow_value_name(KEEPER), keeper, at.now, self.rules.takeover);
        self.note_counted(record, counts);
        if counts {
            self.tell_sampling(at, whose, record, made);
        }
        if let Some(mut one) = one {
            one.counts = counts;
            if let Some(gone) = self.record_sums.begin_sum(place, one, at.now) {
                self.records.counts_early += u64::from(gone.reports);
                self.write_records(&gone, made);
            }
        } else {
            let last = TimedValue { value: record.total_bytes().min(u32::MAX.into()) as u32, time: at.wall };
            made.key_write(
                self.stores.values,
                telemetry::last_record_key(whose.flow, switch),
                &last.to_bytes(),
            );
            if counts {
                let (packets, bytes) = (telemetry::packets_key(whose.flow), telemetry::bytes_key(whose.flow));
                let counts =
                    [(whose.key, 1), (packets, record.total_packets()), (bytes, record.total_bytes())];
                self.write_counts_of_records(counts, made);
            }
        }
        self.records.primitives += (made.len() - before) as u64;
    }

    #[inline]
    fn note_counted(&mut self, record: &FlowRecord, counts: bool) {
        if counts {
            self.records.counted += 1;
            self.records.sampled += u64::from(record.sampling_rate > 1);
        } else {
            self.records.elsewhere += 1;
        }
    }

    pub(super) fn write_records(&self, waited: &PendingTally<RecordSum>, made: &mut PrimitiveBatch) {
        let sum = &waited.sum;
        let Some([packets, bytes, last]) = telemetry::record_keys(&sum.flow, sum.exporter) else { return };
        made.key_write(self.stores.values, last, &TimedValue { value: sum.last, time: sum.came }.to_bytes());
        if sum.counts {
            let counts =
                [(sum.flow, waited.reports.into()), (packets, sum.packets.into()), (bytes, sum.bytes)];
            self.write_counts_of_records(counts, made);
        }
    }

    /// Adds to the counts of a flow's records, packets and bytes.
    fn write_counts_of_records(&self, counts: [(Key, u64); 3], made: &mut PrimitiveBatch) {
        let without_records = usize::from(!self.rules.count_reports);
        for (key, count) in &counts[without_records..] {
            made.increment(self.stores.counters, *key, *count);
        }
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
                &Tell { metric, verdict, value, time: None, key, place, means, path: None },
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

    /// Enters the port by which a flow leaves the exporter into the key directory, if it is new or has changed.
    fn tell_port(
        &mut self,
        at: ArrivalTime,
        whose: Whose<'_>,
        record: &FlowRecord,
        made: &mut PrimitiveBatch,
    ) {
        let Some(port) = Some(record.out_if).filter(|port| *port != 0) else { return };
        let switch = switch_from_exporter(IpAddr::V6(record.exporter));
        let keep_alive = self.rules.metrics[Metric::HopLatency.index()].keep_alive;
        let name = whose.hop_value_name(HOP_PORT, switch);
        if self.seen.detect_change(&name, port.into(), at.now, Detect::Any, keep_alive) != Verdict::Same {
            let place = Location { switch: Some(switch), port: Some(port), queue: None };
            self.report_hop_latency(at, whose, None, place, None, true, made);
        }
    }

    /// Writes the sampling rate of a flow, if it is new or due for its keep-alive.
    fn tell_sampling(
        &mut self,
        at: ArrivalTime,
        whose: Whose<'_>,
        record: &FlowRecord,
        made: &mut PrimitiveBatch,
    ) {
        // A rate of 1 is written only where there was another.
        let sampling = u64::from(record.sampling_rate);
        let keep_alive = self.rules.metrics[Metric::FlowPath.index()].keep_alive;
        let verdict = self.seen.detect_change(
            &whose.flow_value_name(SAMPLING),
            sampling,
            at.now,
            Detect::Any,
            keep_alive,
        );
        let is_written = match verdict {
            Verdict::Same => false,
            Verdict::Changed(_) => true,
            Verdict::New | Verdict::KeepAlive(_) => sampling != 1,
        };
        if is_written {
            let value = TimedValue { value: record.sampling_rate, time: at.wall };
            made.key_write(self.stores.values, telemetry::sampling_key(whose.flow), &value.to_bytes());
        }
    }
}

//! Queue and latency of a sampled packet's hop, as sFlow has them: they become the same values as INT's hops.

use dta_proto::flow_record::switch_from_exporter;
use dta_proto::telemetry::{self, Location, Means, Metric};

use super::seen::Verdict;
use super::{ArrivalTime, EgressPortNames, Named, PrimitiveBatch, Telemetry, ValueReport, Whose};
use crate::exported::TransitReading;

impl Telemetry {
    pub(super) fn ingest_transit(
        &mut self,
        at: ArrivalTime,
        reading: &TransitReading,
        made: &mut PrimitiveBatch,
    ) {
        if !self.is_watched(&reading.flow) {
            return;
        }
        let (switch, port) = (switch_from_exporter(reading.exporter), reading.egress);
        let place = |queue: Option<u32>| Location { switch: Some(switch), port, queue };
        let whose = Whose::new(&reading.flow, Named::from_flow(&reading.flow));
        let rule = self.rules.metrics[Metric::HopLatency.index()];
        if let Some(latency) = reading.latency.map(u64::from).filter(|_| rule.on) {
            let name = whose.hop_latency_name(switch);
            let (verdict, moved) =
                self.seen.judge_hop(&name, latency, port, at.now, rule.detect, rule.keep_alive);
            if verdict == Verdict::Same {
                self.counters.suppressed[Metric::HopLatency.index()] += 1;
            }
            if verdict != Verdict::Same || rule.always || moved {
                self.report_hop_latency(at, whose, Some((latency, verdict)), place(None), None, moved, made);
            }
        }
        if let Some(value) = reading.depth.map(u64::from) {
            let metric = Metric::QueueOccupancy;
            let name = EgressPortNames::new(switch, port).queue_value_name(metric, reading.queue);
            if let Some(verdict) = self.apply_metric_rule(metric, &name, value, at.now) {
                let key = telemetry::queue_occupancy_key(switch, port, reading.queue);
                let (place, means) = (place(reading.queue), Means::Itself);
                self.report_value(
                    at,
                    &ValueReport { metric, verdict, value, time: None, key, place, means, path: None },
                    made,
                );
            }
        }
    }
}

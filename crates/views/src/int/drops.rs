//! Dropped packets by place and reason.

use std::collections::{BTreeMap, BTreeSet};

use dta_export::kind::EventKind;
use dta_export::source::Lost;
use dta_proto::drop_reason::DropReason;
use dta_proto::key::Key;
use serde::Serialize;

use super::event_reader::EventLine;

/// Most places and reasons that are counted separately, and most flows of each.
const MOST: usize = 1000;

/// Drops in the events that were read.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DropSummary {
    /// Events of dropped packets.
    pub events: u64,
    /// The times of the first and the last of them, in UTC, if they are since 1970.
    pub first: Option<String>,
    pub last: Option<String>,
    /// By place and reason, most drops first.
    pub places: Vec<DropPlace>,
    /// Events at other places or for other reasons.
    pub others: u64,
    /// Batches that could not be read: their drops are not counted.
    pub missed_batches: u64,
}

/// Drops at one place for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DropPlace {
    pub reason: Option<DropReason>,
    /// Whose number the reason is: `int` or `sflow`.
    pub reason_source: Option<&'static str>,
    pub reason_name: Option<String>,
    pub switch: Option<u32>,
    pub switch_name: Option<String>,
    /// The egress port.
    pub port: Option<u32>,
    pub port_name: Option<String>,
    pub events: u64,
    /// Number of flows among them; at most 1000 are distinguished.
    pub flows: u64,
    pub example: Option<String>,
    pub last: Option<String>,
}

/// Adds up drops as they are read.
#[derive(Debug, Default)]
pub struct DropCounter {
    summary: DropSummary,
    places: BTreeMap<PlaceAndReason, (DropPlace, BTreeSet<Key>)>,
}

/// Switch, egress port, reason.
type PlaceAndReason = (Option<u32>, Option<u32>, Option<DropReason>);

impl DropCounter {
    /// Counts a line, if it is about a drop.
    pub fn add_line(&mut self, line: EventLine) {
        let event = match line {
            EventLine::Event(event) if event.kind == EventKind::Drop => event,
            EventLine::Missed { missed: Lost { overwritten, missing, damaged, .. }, .. } => {
                self.summary.missed_batches += overwritten + missing + damaged;
                return;
            }
            _ => return,
        };
        self.summary.events += 1;
        if self.summary.first.is_none() {
            self.summary.first = event.utc.clone();
        }
        self.summary.last = event.utc.clone().or(self.summary.last.take());
        let place = (event.switch, event.port, event.reason);
        if self.places.len() >= MOST && !self.places.contains_key(&place) {
            self.summary.others += 1;
            return;
        }
        let (counted, flows) = self.places.entry(place).or_insert_with(|| {
            let counted = DropPlace {
                reason: event.reason,
                reason_source: event.reason_source,
                reason_name: event.reason_name.clone(),
                switch: event.switch,
                switch_name: event.switch_name.clone(),
                port: event.port,
                port_name: event.port_name.clone(),
                ..DropPlace::default()
            };
            (counted, BTreeSet::new())
        });
        counted.events += 1;
        counted.last = event.utc.or(counted.last.take());
        if let Some(flow) = event.flow {
            counted.example = Some(flow.to_string());
        }
        if flows.len() < MOST {
            flows.extend(event.key);
        }
    }

    pub fn into_summary(self) -> DropSummary {
        let with_flows =
            |(place, flows): (DropPlace, BTreeSet<Key>)| DropPlace { flows: flows.len() as u64, ..place };
        let mut places: Vec<DropPlace> = self.places.into_values().map(with_flows).collect();
        // Places with equally many drops stay in the order of their numbers.
        places.sort_by_key(|place| std::cmp::Reverse(place.events));
        DropSummary { places, ..self.summary }
    }
}

#[cfg(test)]
mod tests {
    use dta_export::directory::Directory;
    use dta_export::names::Names;
    use dta_proto::key::Flow;
    use dta_proto::telemetry::{Location, TelemetryEntry};

    use super::*;
    use crate::int::event::IntEvent;

    #[test]
    fn drops_are_counted_by_place_and_reason() {
        let mut counter = DropCounter::default();
        let flow = |port: u16| format!("10.0.0.1:{port}->10.0.0.2:2/udp").parse::<Flow>().unwrap();
        for (switch, reason, port) in [(6, 71, 1), (6, 71, 2), (6, 71, 1), (7, 71, 1), (6, 80, 1)] {
            let place = Location { switch: Some(switch), ..Location::default() };
            let key = flow(port).to_key();
            let entry = TelemetryEntry::Drop {
                time: 5,
                key,
                place,
                ingress_port: None,
                reason: DropReason::from_int(reason),
            };
            let event = IntEvent::from_entry(&entry, &mut Directory::default(), &Names::default());
            counter.add_line(EventLine::Event(Box::new(event)));
        }
        let missed = Lost { overwritten: 3, missing: 1, ..Lost::default() };
        counter.add_line(EventLine::Missed { list: "drops", missed });
        let summary = counter.into_summary();
        let counted: Vec<_> = summary
            .places
            .iter()
            .map(|p| (p.switch, p.reason.map(DropReason::number), p.events, p.flows))
            .collect();
        let expected = [(Some(6), Some(71), 3, 2), (Some(6), Some(80), 1, 1), (Some(7), Some(71), 1, 1)];
        assert_eq!((counted.as_slice(), summary.events, summary.missed_batches), (&expected[..], 5, 4));
    }
}

//! What an event says, field by field.

use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{Location, Metric, SwitchPath, TelemetryEntry, Via, Why};

use crate::directory::Meaning;
use crate::kind::EventKind;

/// The fields of an event; `None` = it has no such field, or the switch did not report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventFields {
    pub kind: EventKind,
    /// Nanoseconds since 1970, or a switch's own time; keys have none.
    pub time: Option<u64>,
    /// The key of its subject; for drops and congested packets the flow's. `None` if the packet could not be read.
    pub key: Option<Key>,
    /// The flow, if known.
    pub flow: Option<Flow>,
    /// Switch, egress port and queue.
    pub place: Location,
    /// The ingress port of a dropped packet.
    pub ingress_port: Option<u32>,
    pub why: Option<Why>,
    /// The value reported before. Of a path, its number of hops.
    pub old: Option<u64>,
    /// The value. Of a path, its number of hops.
    pub new: Option<u64>,
    /// The path, if the event has room for it.
    pub path: Option<SwitchPath>,
    /// Whether a path passes a switch twice.
    pub looped: Option<bool>,
    pub reason: Option<DropReason>,
    /// The occupancy of the queue in which a packet waited.
    pub occupancy: Option<u32>,
    /// Nanoseconds that the packet spent in the switch.
    pub latency: Option<u32>,
}

impl EventFields {
    /// The fields of an entry of a list; `meaning` says what its key stands for.
    pub fn from_entry(entry: &TelemetryEntry, meaning: impl FnOnce(&Key) -> Option<Meaning>) -> EventFields {
        let (TelemetryEntry::Change { key, .. }
        | TelemetryEntry::Drop { key, .. }
        | TelemetryEntry::Congestion { key, .. }
        | TelemetryEntry::Key { key, .. }) = entry;
        // Zeros stand for a packet that could not be read.
        let key = Some(*key).filter(|key| *key != Key::default());
        let meaning = key.as_ref().and_then(meaning);
        let mut fields = EventFields {
            kind: EventKind::from_entry(entry),
            time: entry.event_time(),
            key,
            flow: meaning.and_then(|meaning| meaning.known_flow()),
            place: Location::default(),
            ingress_port: None,
            why: None,
            old: None,
            new: None,
            path: None,
            looped: None,
            reason: None,
            occupancy: None,
            latency: None,
        };
        match *entry {
            TelemetryEntry::Change { metric, why, old, new, place, path, .. } => {
                fields.place = place;
                fields.why = Some(why).filter(|why| *why != Why::Loop);
                // A new key has no previous value.
                fields.old = Some(old).filter(|_| why != Why::New);
                fields.new = Some(new);
                if metric == Metric::FlowPath {
                    fields.new = Some(new & 0xff);
                    fields.looped = Some(new >> 8 != 0);
                    fields.path = match path {
                        Some(Via::Path(path)) => Some(path),
                        Some(Via::Digest(_)) | None => None,
                    };
                }
            }
            TelemetryEntry::Drop { place, ingress_port, reason, .. } => {
                (fields.place, fields.ingress_port, fields.reason) = (place, ingress_port, Some(reason));
            }
            TelemetryEntry::Congestion { place, occupancy, latency, .. } => {
                (fields.place, fields.occupancy, fields.latency) = (place, occupancy, latency);
            }
            TelemetryEntry::Key { .. } => {
                if let Some(meaning) = meaning {
                    (fields.place, fields.reason) = (meaning.location(), meaning.drop_reason());
                }
            }
        }
        fields
    }
}

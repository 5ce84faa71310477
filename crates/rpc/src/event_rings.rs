//! How far back the rings of INT events reach: what only they hold must be reported again (the keep-alive) before it is
//! overwritten.

use std::time::{SystemTime, UNIX_EPOCH};

use dta_proto::control::TailRequest;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry::{KEEP_ALIVE_SECONDS, Means, TelemetryEntry, age_in_seconds, list, store};
use serde::Serialize;

use crate::{Ask, ClientError};

/// A ring that has wrapped: its first batches are overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WrappedRing {
    /// The list.
    pub list: &'static str,
    /// Age in seconds of the oldest entry in it.
    pub seconds: f64,
    /// How many batches a ring needs to reach back twice as far as the keep-alive, at this rate.
    pub wants: u64,
}

impl WrappedRing {
    /// Whether entries may be overwritten before they are reported again, at the default keep-alive.
    pub fn is_short(&self) -> bool {
        self.seconds < KEEP_ALIVE_SECONDS as f64
    }

    /// A sentence that says this, and one that says what to do.
    pub fn describe_with_advice(&self) -> (String, String) {
        let WrappedRing { list, seconds, wants } = self;
        (
            format!(
                "the ring of list {list:?} of {} reaches back {seconds:.0} s, and unchanged values are reported again after \
                 {KEEP_ALIVE_SECONDS} s unless keep_alive_ms says otherwise: `query flow` and `top` miss what is overwritten",
                store::EVENTS
            ),
            format!("set ring = {wants} for the store {}, or a shorter keep_alive_ms", store::EVENTS),
        )
    }
}

/// The rings of the INT event store that have wrapped and whose oldest entry has a time since 1970. Empty for any other store.
///
/// # Errors
/// A list cannot be read.
pub async fn turned_over(ask: &dyn Ask, spec: &StoreSpec) -> Result<Vec<WrappedRing>, ClientError> {
    let StoreKind::Append { lists, ring, .. } = spec.kind else { return Ok(Vec::new()) };
    let mut rings = Vec::new();
    if spec.name != store::EVENTS {
        return Ok(rings);
    }
    for of in 0..list::COUNT.min(lists) {
        let request = TailRequest {
            store: spec.name.clone(),
            list: of,
            from_sequence: 1,
            until_caught_up: true,
            ..TailRequest::default()
        };
        let mut messages = ask.tail_list(request).await?;
        // In a cluster, entries of the list at other collectors come first, without sequences.
        let oldest = loop {
            match messages.next_message().await? {
                Some(message) if message.sequence == 0 => {}
                message => break message,
            }
        };
        let Some(oldest) = oldest else { continue };
        let mut times =
            oldest.entries.iter().filter_map(|entry| entry_time(&TelemetryEntry::parse_bytes(entry)?));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let age = times.next().and_then(|time| age_in_seconds(time, now));
        if let (Some(seconds), 1..) = (age, oldest.overwritten_batches) {
            let turns = 2.0 * KEEP_ALIVE_SECONDS as f64 / seconds.max(0.01);
            let wants = ((ring as f64 * turns) as u64).max(1).next_power_of_two();
            rings.push(WrappedRing { list: list::list_name(of), seconds, wants });
        }
    }
    Ok(rings)
}

/// The time of an entry, if it has one.
fn entry_time(entry: &TelemetryEntry) -> Option<u64> {
    match entry {
        TelemetryEntry::Change { time, .. }
        | TelemetryEntry::Drop { time, .. }
        | TelemetryEntry::Congestion { time, .. } => Some(*time),
        TelemetryEntry::Key { means: Means::Leaves { time, .. }, .. } => Some(*time),
        TelemetryEntry::Key { .. } => None,
    }
}

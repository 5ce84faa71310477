//! Refused requests, for the log: one example per reason, so that a flood costs neither time nor lines.

use std::net::IpAddr;

use super::counter::Counter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    pub reason: Counter,
    /// The source address of its packet.
    pub sender: IpAddr,
    pub qpn: u32,
}

/// The first refusal for each reason since the last `take`.
pub(super) struct Refused {
    first: [Option<RefusedRequest>; REASONS.len()],
}

/// Reasons for refusing a requester that asks for what it does not own, in the order of [`reason_index`]. Damage, loss
/// and repeats are not among them.
const REASONS: [Counter; 10] = [
    Counter::DroppedUnknownQueuePair,
    Counter::DroppedOpcode,
    Counter::DroppedPeer,
    Counter::DroppedPkey,
    Counter::DroppedRkey,
    Counter::DroppedRange,
    Counter::DroppedPermission,
    Counter::DroppedPayloadLength,
    Counter::DroppedMisaligned,
    Counter::DroppedNoResources,
];

/// The index of a reason; `None` if it is not logged.
#[inline]
fn reason_index(fate: Counter) -> Option<usize> {
    Some(match fate {
        Counter::DroppedUnknownQueuePair => 0,
        Counter::DroppedOpcode => 1,
        Counter::DroppedPeer => 2,
        Counter::DroppedPkey => 3,
        Counter::DroppedRkey => 4,
        Counter::DroppedRange => 5,
        Counter::DroppedPermission => 6,
        Counter::DroppedPayloadLength => 7,
        Counter::DroppedMisaligned => 8,
        Counter::DroppedNoResources => 9,
        _ => return None,
    })
}

impl Default for Refused {
    fn default() -> Refused {
        Refused { first: [None; REASONS.len()] }
    }
}

impl Refused {
    /// Notes the fate of a request, if it was refused for a reason that is not noted yet.
    #[inline]
    pub(super) fn note_refusal(&mut self, fate: Counter, sender: IpAddr, qpn: u32) {
        if let Some(place) = reason_index(fate) {
            self.first[place].get_or_insert(RefusedRequest { reason: fate, sender, qpn });
        }
    }

    /// The noted refusals, in the order of the reasons; clears them.
    pub(super) fn take(&mut self) -> Vec<RefusedRequest> {
        self.first.iter_mut().filter_map(Option::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_each_reason_is_kept_until_it_is_taken() {
        let mut refused = Refused::default();
        let from = |n| IpAddr::from([10, 0, 0, n]);
        refused.note_refusal(Counter::ExecutedWrite, from(1), 1);
        refused.note_refusal(Counter::DroppedIcrc, from(1), 1);
        refused.note_refusal(Counter::DroppedRange, from(2), 2);
        refused.note_refusal(Counter::DroppedRkey, from(3), 3);
        refused.note_refusal(Counter::DroppedRkey, from(4), 4);
        let taken: Vec<_> = refused.take().iter().map(|r| (r.reason, r.sender, r.qpn)).collect();
        assert_eq!(taken, [(Counter::DroppedRkey, from(3), 3), (Counter::DroppedRange, from(2), 2)]);
        assert!(refused.take().is_empty());
    }

    #[test]
    fn each_reason_has_its_place() {
        for (at, &reason) in REASONS.iter().enumerate() {
            assert_eq!(reason_index(reason), Some(at));
        }
        let places = Counter::ALL.iter().filter(|&&c| reason_index(c).is_some()).count();
        assert_eq!(places, REASONS.len());
    }
}

//! Increments of flow counts at points.

use std::num::NonZeroUsize;

use crate::packet_trace::counts::{FlowAt, FlowCount};
use dta_proto::key::Flow;
use lru::LruCache;

/// The totals last reported, and the point of the host at which each flow was first counted.
pub(super) struct FlowCounts {
    reported: LruCache<FlowAt, FlowCount>,
    first: LruCache<Flow, (u16, u32, u32)>,
}

impl FlowCounts {
    pub(super) fn new(most: usize) -> FlowCounts {
        let most = NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN);
        FlowCounts { reported: LruCache::new(most), first: LruCache::new(most) }
    }

    /// The increase since the last time, and whether this is the point for which the flow's size is reported.
    /// A total below the last one means that counting restarted.
    pub(super) fn take_increase(&mut self, at: &FlowAt, total: FlowCount) -> (FlowCount, bool) {
        let before = self.reported.put(*at, total).unwrap_or_default();
        let began_anew =
            total.packets < before.packets || total.bytes < before.bytes || total.drops < before.drops;
        let before = if began_anew { FlowCount::default() } else { before };
        let place = (at.point, at.namespace, at.interface);
        let first = *self.first.get_or_insert(at.flow, || place);
        let more = FlowCount {
            packets: total.packets - before.packets,
            bytes: total.bytes - before.bytes,
            drops: total.drops - before.drops,
        };
        (more, first == place)
    }

    /// Notes that the kernel counts this flow from 0 again.
    pub(super) fn forget_flow(&mut self, at: &FlowAt) {
        self.reported.pop(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_more_is_reported_and_a_size_at_one_point() {
        let flow = "10.0.0.1:1->10.0.0.2:2/udp".parse().unwrap();
        let at = |point| FlowAt { flow, namespace: 1, interface: 2, point };
        let count = |packets, bytes, drops| FlowCount { packets, bytes, drops };
        let mut counts = FlowCounts::new(8);
        assert_eq!(counts.take_increase(&at(0), count(3, 300, 0)), (count(3, 300, 0), true));
        assert_eq!(counts.take_increase(&at(1), count(3, 450, 1)), (count(3, 450, 1), false));
        assert_eq!(counts.take_increase(&at(0), count(5, 500, 0)), (count(2, 200, 0), true));
        assert_eq!(counts.take_increase(&at(0), count(5, 500, 0)), (count(0, 0, 0), true));
        // The kernel forgot the flow and restarted.
        assert_eq!(counts.take_increase(&at(0), count(1, 100, 0)), (count(1, 100, 0), true));
        counts.forget_flow(&at(0));
        assert_eq!(counts.take_increase(&at(0), count(2, 200, 0)), (count(2, 200, 0), true));
    }
}

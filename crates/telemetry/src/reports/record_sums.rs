//! Sums of flow records, kept by [`super::tallies`]: records of one flow by one exporter are added up if they differ
//! only in their counts.

use std::net::IpAddr;

use dta_proto::flow_record::{FlowRecord, switch_from_exporter};
use dta_proto::key::Key;

use super::seen::Home;
use super::tallies::PendingTally;

/// What all records of a sum have in common, and what they count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecordSum {
    pub(super) flow: Key,
    pub(super) exporter: u32,
    /// 0 = not reported.
    egress: u32,
    sampling: u32,
    direction: u8,
    /// Whether this exporter counts the flow.
    pub(super) counts: bool,
    pub(super) packets: u32,
    pub(super) bytes: u64,
    /// Bytes of the last record, and when it arrived.
    pub(super) last: u32,
    pub(super) came: u64,
}

// One cache line.
const _: () = assert!(size_of::<PendingTally<RecordSum>>() == 64);

impl RecordSum {
    /// The sum of one record, which arrived at `wall`. `None` if it cannot be in a sum: more packets than are summed, or a
    /// flow whose key does not say that it is one.
    #[inline]
    pub(super) fn from_record(record: &FlowRecord, flow: Key, wall: u64) -> Option<RecordSum> {
        let packets = u32::try_from(record.total_packets()).ok()?;
        let bytes = record.total_bytes();
        (record.protocol != 0).then_some(RecordSum {
            flow,
            exporter: switch_from_exporter(IpAddr::V6(record.exporter)),
            egress: record.out_if,
            sampling: record.sampling_rate,
            direction: record.direction,
            counts: false,
            packets,
            bytes,
            last: bytes.min(u32::MAX.into()) as u32,
            came: wall,
        })
    }

    /// Where sums of this flow by this exporter are.
    #[inline]
    pub(super) fn tally_place(home: Home, record: &FlowRecord) -> usize {
        home.mixed_hash() ^ ((record.exporter.to_bits() as u32).wrapping_mul(0x9e37_79b1) >> 8) as usize
    }

    /// Adds a record's sum to this one, if they belong together and there is room. Returns whether it did.
    #[inline]
    pub(super) fn add(&mut self, one: &RecordSum) -> bool {
        let of = |sum: &RecordSum| (sum.flow, sum.exporter, sum.egress, sum.sampling, sum.direction);
        if of(self) != of(one) {
            return false;
        }
        let Some(packets) = self.packets.checked_add(one.packets) else { return false };
        self.packets = packets;
        // Modulo 2^64, as in the counter itself.
        self.bytes = self.bytes.wrapping_add(one.bytes);
        (self.last, self.came) = (one.last, one.came);
        true
    }
}

//! Reports of a stream of packets: exactly as many as requested.
//!
//! A packet makes a report of each primitive and one per hop, and the end of an epoch one per column and sketching
//! switch. A given number of reports includes the columns of the running epoch: its first packet decides whether there
//! is room for them. An epoch without room is not reported at all. The rest, fewer than a packet makes, are further
//! values of one flow.

use super::workload::{SwitchReport, Workload};
use crate::topology::Topology;
use crate::traffic::TrafficPacket;

pub struct Maker {
    packets: Box<dyn Iterator<Item = TrafficPacket>>,
    workload: Workload,
    /// Reports still to be made; `None` = everything that the packets give.
    left: Option<u64>,
    /// Whether the running epoch will be reported.
    sketched: bool,
    ended: bool,
}

impl Maker {
    /// A maker of `wanted` reports; `None` = everything that the packets give.
    pub fn new(
        topology: &Topology,
        packets: Box<dyn Iterator<Item = TrafficPacket>>,
        wanted: Option<u64>,
    ) -> Self {
        Self { packets, workload: Workload::new(topology), left: wanted, sketched: true, ended: false }
    }

    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// Appends the reports of the next packet, and of the epoch that it ends; at the end, the rest. `false` when
    /// there was nothing left.
    pub fn next(&mut self, reports: &mut Vec<SwitchReport>) -> bool {
        if self.ended {
            return false;
        }
        let before = reports.len();
        match self.packets.next() {
            Some(packet) if self.has_room_for(&packet) => {
                self.workload.forward_packet(&packet.packet, packet.time_ns, reports);
                if self.sketched && self.workload.epoch_is_full() {
                    self.workload.end_epoch(reports);
                }
                if let Some(left) = &mut self.left {
                    *left -= (reports.len() - before) as u64;
                }
            }
            last => self.end_epoch_and_fill(last, reports),
        }
        reports.len() > before
    }

    /// Whether all reports of a packet can be made, and later the columns of its epoch.
    fn has_room_for(&mut self, packet: &TrafficPacket) -> bool {
        let Some(left) = self.left else { return true };
        let (cost, columns) = (self.workload.packet_cost(&packet.packet), self.workload.epoch_cost());
        if self.workload.epoch_is_empty() {
            self.sketched = cost + columns <= left;
        }
        cost + if self.sketched { columns } else { 0 } <= left
    }

    /// Ends the running epoch, and fills up with values of a packet whose reports do not all fit.
    fn end_epoch_and_fill(&mut self, packet: Option<TrafficPacket>, reports: &mut Vec<SwitchReport>) {
        self.ended = true;
        let before = reports.len();
        if self.sketched {
            self.workload.end_epoch(reports);
        }
        if let (Some(left), Some(packet)) = (self.left, packet) {
            let left = left - (reports.len() - before) as u64;
            self.workload.values_alone(&packet.packet, packet.time_ns, left, reports);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Primitive;
    use crate::traffic::{Synthetic, TrafficShape};

    fn maker(epoch_packets: u64, packets: usize, wanted: Option<u64>) -> Maker {
        let mut topology = Topology::load(None).unwrap();
        topology.run.epoch_packets = epoch_packets;
        let traffic = Synthetic::new(TrafficShape { flows: 300, exponent: 1.0, seed: 3 }).take(packets);
        Maker::new(&topology, Box::new(traffic), wanted)
    }

    fn all(maker: &mut Maker) -> Vec<SwitchReport> {
        let mut reports = Vec::new();
        while maker.next(&mut reports) {}
        reports
    }

    #[test]
    fn exactly_as_many_reports_as_are_wanted() {
        let columns = Workload::new(&Topology::load(None).unwrap()).epoch_cost();
        for epoch_packets in [10, 3000] {
            for wanted in [1, 7, 8, 9, 3000, columns - 1, columns, columns + 7, columns + 8, 40_000, 100_001]
            {
                let mut maker = maker(epoch_packets, usize::MAX, Some(wanted));
                let reports = all(&mut maker);
                assert_eq!(reports.len() as u64, wanted, "{wanted} reports, epochs of {epoch_packets}");
                // Each epoch that is queried is reported completely.
                let of_columns =
                    reports.iter().filter(|r| r.body.primitive() == Primitive::SketchMerge).count() as u64;
                assert_eq!(of_columns, columns * maker.workload().ended_epochs().len() as u64);
                assert_eq!(of_columns > 0, wanted >= columns + 8, "{wanted} reports");
            }
        }
    }

    #[test]
    fn a_capture_that_ends_earlier_gives_all_it_has() {
        let everything = all(&mut maker(3000, 1000, None)).len() as u64;
        let mut maker = maker(3000, 1000, Some(1_000_000));
        assert_eq!(all(&mut maker).len() as u64, everything);
        assert_eq!((maker.workload().packet_count(), maker.workload().ended_epochs().len()), (1000, 1));
    }
}

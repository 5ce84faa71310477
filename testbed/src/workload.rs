//! Simulated switches: what each of them reports about each packet.

use std::collections::HashMap;

use dta_proto::crc;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::sketch_merge;
use dta_proto::wire::dta;

use crate::capture::DecodedPacket;
use crate::topology::{Primitive, Topology};

/// A report that a switch makes, before it has a sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchReport {
    /// Index of the switch: its reporter.
    pub switch: u16,
    pub body: ReportBody,
}

/// The contents of a report; flows are indices into [`Workload::seen_flows`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportBody {
    /// Length (u32) and time (u64 ns) of the flow's latest packet, big-endian.
    KeyWrite { flow: u32, value: [u8; 12] },
    Postcard {
        flow: u32,
        /// Place on the path, from 0.
        hop: u8,
    },
    /// A flow was seen for the first time; the entry is its key.
    Append {
        flow: u32,
        /// The list of the switch that saw it.
        list: u32,
    },
    /// Bytes of the flow.
    KeyIncrement { flow: u32, delta: u64 },
    /// One column of the switch's sketch of one epoch.
    SketchMerge {
        /// Epoch, from 1.
        epoch: u32,
        column: u32,
        /// Cells by row; unused rows are 0.
        cells: [u32; 4],
    },
}

impl ReportBody {
    pub fn primitive(&self) -> Primitive {
        match self {
            Self::KeyWrite { .. } => Primitive::KeyWrite,
            Self::Postcard { .. } => Primitive::Postcarding,
            Self::Append { .. } => Primitive::Append,
            Self::KeyIncrement { .. } => Primitive::KeyIncrement,
            Self::SketchMerge { .. } => Primitive::SketchMerge,
        }
    }
}

#[derive(Clone, Debug)]
pub struct SeenFlow {
    pub flow: Flow,
    /// Its key in all keyed stores.
    pub key: Key,
    /// Switch of each tier that its packets cross.
    pub path: Vec<u16>,
}

/// The simulated network: what it has seen, and what its switches hold.
pub struct Workload {
    tiers: Vec<u16>,
    /// Number of the first switch of each tier.
    first: Vec<u16>,
    flows: Vec<SeenFlow>,
    index: HashMap<Key, u32>,
    /// Per switch of the first tier: columns x rows cells of the running epoch.
    sketches: Vec<Vec<u32>>,
    columns: u32,
    rows: u8,
    epoch: u32,
    epoch_packets: u64,
    packets: u64,
    /// Packets of the running epoch.
    in_epoch: u64,
    epoch_counts: HashMap<u32, u64>,
    ended: Vec<EpochTruth>,
}

/// The truth for a sketch's answers.
#[derive(Clone, Debug, Default)]
pub struct EpochTruth {
    /// Epoch, from 1.
    pub epoch: u32,
    /// Packets per flow, in order of flows.
    pub packets: Vec<(u32, u64)>,
}

impl Workload {
    pub fn new(topology: &Topology) -> Self {
        let tiers = topology.network.tiers.clone();
        let first = tiers
            .iter()
            .scan(0, |sum, n| {
                let first = *sum;
                *sum += n;
                Some(first)
            })
            .collect();
        let (columns, rows) = match topology.store_of_primitive(Primitive::SketchMerge).kind {
            dta_proto::store::StoreKind::SketchMerge { columns, rows, .. } => (columns, rows),
            _ => unreachable!("the store was looked up by its kind"),
        };
        let sketches = vec![vec![0; columns as usize * usize::from(rows)]; usize::from(tiers[0])];
        Self {
            tiers,
            first,
            flows: Vec::new(),
            index: HashMap::new(),
            sketches,
            columns,
            rows,
            epoch: 1,
            epoch_packets: topology.run.epoch_packets,
            packets: 0,
            in_epoch: 0,
            epoch_counts: HashMap::new(),
            ended: Vec::new(),
        }
    }

    /// A report as sent; `room` holds what is made for it.
    pub fn to_wire_body<'a>(&self, report: &'a SwitchReport, room: &'a mut [u8; 16]) -> dta::DtaBody<'a> {
        let key = |flow: &u32| self.flows[*flow as usize].key;
        match &report.body {
            ReportBody::KeyWrite { flow, value } => {
                dta::DtaBody::KeyWrite { redundancy: 0, key: key(flow), value }
            }
            ReportBody::Postcard { flow, hop } => dta::DtaBody::Postcard {
                key: key(flow),
                hop: *hop,
                path_length: self.tiers.len() as u8,
                value: Self::switch_id(report.switch),
            },
            ReportBody::Append { flow, list } => {
                *room = key(flow).0;
                dta::DtaBody::Append { list: *list, value: room }
            }
            ReportBody::KeyIncrement { flow, delta } => {
                dta::DtaBody::KeyIncrement { redundancy: 0, key: key(flow), delta: *delta }
            }
            ReportBody::SketchMerge { epoch, column, cells } => {
                for (bytes, cell) in room.chunks_exact_mut(4).zip(cells) {
                    bytes.copy_from_slice(&cell.to_be_bytes());
                }
                let cells = &room[..4 * usize::from(self.rows)];
                dta::DtaBody::SketchMerge { epoch: *epoch, column: *column, cells }
            }
        }
    }

    pub fn seen_flows(&self) -> &[SeenFlow] {
        &self.flows
    }

    pub fn packet_count(&self) -> u64 {
        self.packets
    }

    /// Epochs that have ended, oldest first.
    pub fn ended_epochs(&self) -> &[EpochTruth] {
        &self.ended
    }

    /// A switch's value in postcards: its number, from 1 (0 would look like nothing).
    pub fn switch_id(switch: u16) -> u32 {
        u32::from(switch) + 1
    }

    /// Reports that a packet would make, without those of an epoch's end.
    pub fn packet_cost(&self, packet: &DecodedPacket) -> u64 {
        self.tiers.len() as u64 + 2 + u64::from(!self.index.contains_key(&packet.flow.to_key()))
    }

    /// Reports that the end of an epoch makes: every column of every switch of the first tier.
    pub fn epoch_cost(&self) -> u64 {
        u64::from(self.columns) * u64::from(self.tiers[0])
    }

    /// Whether the running epoch has seen no packet.
    pub fn epoch_is_empty(&self) -> bool {
        self.epoch_counts.is_empty()
    }

    /// Whether the running epoch has seen all its packets.
    pub fn epoch_is_full(&self) -> bool {
        self.in_epoch >= self.epoch_packets
    }

    /// The egress switch of a packet's flow reports the packet's value `count` times; nothing else is reported about
    /// it.
    pub fn values_alone(
        &mut self,
        packet: &DecodedPacket,
        time_ns: u64,
        count: u64,
        reports: &mut Vec<SwitchReport>,
    ) {
        let (flow, _) = self.index_flow(&packet.flow);
        let report = self.value_report(flow, packet, time_ns);
        reports.extend(std::iter::repeat_n(report, count as usize));
    }

    fn value_report(&self, flow: u32, packet: &DecodedPacket, time_ns: u64) -> SwitchReport {
        let path = &self.flows[flow as usize].path;
        let mut value = [0; 12];
        value[..4].copy_from_slice(&packet.length.to_be_bytes());
        value[4..].copy_from_slice(&time_ns.to_be_bytes());
        SwitchReport { switch: path[path.len() - 1], body: ReportBody::KeyWrite { flow, value } }
    }

    /// A packet crosses the network; appends its reports to `reports`, in the order in which they are made.
    pub fn forward_packet(&mut self, packet: &DecodedPacket, time_ns: u64, reports: &mut Vec<SwitchReport>) {
        let (flow, new) = self.index_flow(&packet.flow);
        let path = &self.flows[flow as usize].path;
        let (ingress, egress) = (path[0], path[path.len() - 1]);
        if new {
            let list = u32::from(ingress - self.first[0]);
            reports.push(SwitchReport { switch: ingress, body: ReportBody::Append { flow, list } });
        }
        for (hop, &switch) in path.iter().enumerate() {
            reports.push(SwitchReport { switch, body: ReportBody::Postcard { flow, hop: hop as u8 } });
        }
        reports.push(self.value_report(flow, packet, time_ns));
        reports.push(SwitchReport {
            switch: egress,
            body: ReportBody::KeyIncrement { flow, delta: packet.length.into() },
        });

        let key = self.flows[flow as usize].key;
        let sketch = &mut self.sketches[usize::from(ingress)];
        for (row, column) in sketch_merge::columns_of(&key, self.rows, self.columns).iter().enumerate() {
            sketch[*column as usize * usize::from(self.rows) + row] += 1;
        }
        *self.epoch_counts.entry(flow).or_default() += 1;
        self.packets += 1;
        self.in_epoch += 1;
    }

    /// Ends the running epoch if it saw any packet: the switches of the first tier report all columns and start
    /// again.
    pub fn end_epoch(&mut self, reports: &mut Vec<SwitchReport>) {
        if self.epoch_counts.is_empty() {
            return;
        }
        for column in 0..self.columns {
            for switch in 0..self.tiers[0] {
                let rows = usize::from(self.rows);
                let at = column as usize * rows;
                let mut cells = [0; 4];
                cells[..rows].copy_from_slice(&self.sketches[usize::from(switch)][at..at + rows]);
                reports.push(SwitchReport {
                    switch,
                    body: ReportBody::SketchMerge { epoch: self.epoch, column, cells },
                });
            }
        }
        let mut packets: Vec<_> = self.epoch_counts.drain().collect();
        packets.sort_unstable();
        self.ended.push(EpochTruth { epoch: self.epoch, packets });
        self.sketches.iter_mut().for_each(|sketch| sketch.fill(0));
        self.epoch += 1;
        self.in_epoch = 0;
    }

    /// The flow's index, and whether it is new.
    fn index_flow(&mut self, flow: &Flow) -> (u32, bool) {
        let key = flow.to_key();
        if let Some(&index) = self.index.get(&key) {
            return (index, false);
        }
        // A hash that no slot computation uses, so that paths and slots are independent.
        let mut choice = crc::crc32(&[&key.0[..], b"path"].concat());
        let path = self
            .tiers
            .iter()
            .zip(&self.first)
            .map(|(&switches, first)| {
                let taken = choice % u32::from(switches);
                choice = choice.rotate_right(5);
                first + taken as u16
            })
            .collect();
        let index = self.flows.len() as u32;
        self.flows.push(SeenFlow { flow: *flow, key, path });
        self.index.insert(key, index);
        (index, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::{Synthetic, TrafficShape};
    use dta_proto::store::StoreKind;

    fn columns() -> u32 {
        match Topology::load(None).unwrap().store_of_primitive(Primitive::SketchMerge).kind {
            StoreKind::SketchMerge { columns, .. } => columns,
            ref other => panic!("{other:?}"),
        }
    }

    fn run(packets: usize) -> (Workload, Vec<SwitchReport>) {
        let mut topology = Topology::load(None).unwrap();
        topology.run.epoch_packets = 400;
        let mut workload = Workload::new(&topology);
        let mut reports = Vec::new();
        for p in Synthetic::new(TrafficShape { flows: 300, exponent: 1.0, seed: 3 }).take(packets) {
            let before = reports.len() as u64;
            let cost = workload.packet_cost(&p.packet);
            workload.forward_packet(&p.packet, p.time_ns, &mut reports);
            assert_eq!(reports.len() as u64, before + cost);
            if workload.epoch_is_full() {
                workload.end_epoch(&mut reports);
                assert_eq!(reports.len() as u64, before + cost + workload.epoch_cost());
            }
        }
        workload.end_epoch(&mut reports);
        (workload, reports)
    }

    #[test]
    fn each_packet_is_reported_by_every_primitive() {
        let (workload, reports) = run(1000);
        let count = |p| reports.iter().filter(|r| r.body.primitive() == p).count();
        assert_eq!(count(Primitive::KeyWrite), 1000);
        assert_eq!(count(Primitive::KeyIncrement), 1000);
        assert_eq!(count(Primitive::Postcarding), 5000);
        assert_eq!(count(Primitive::Append), workload.seen_flows().len());
        assert_eq!(count(Primitive::SketchMerge), 3 * 2 * columns() as usize);
        assert_eq!(
            workload.ended_epochs().iter().flat_map(|e| &e.packets).map(|(_, n)| n).sum::<u64>(),
            1000
        );
    }

    #[test]
    fn paths_are_fixed_use_every_switch_and_take_one_of_each_tier() {
        let (workload, reports) = run(1000);
        let mut used = std::collections::BTreeSet::<u16>::new();
        for flow in workload.seen_flows() {
            assert!(flow.path.iter().enumerate().all(|(tier, &s)| usize::from(s) / 2 == tier));
            used.extend(&flow.path);
        }
        assert_eq!(used.len(), 10);
        for report in reports {
            if let ReportBody::Postcard { flow, hop } = report.body {
                assert_eq!(workload.seen_flows()[flow as usize].path[usize::from(hop)], report.switch);
            }
        }
    }

    #[test]
    fn the_sum_of_the_switches_sketches_never_counts_a_flow_too_low() {
        let (workload, reports) = run(1000);
        for epoch in workload.ended_epochs() {
            let mut table = vec![[0u32; 4]; columns() as usize];
            for report in &reports {
                if let ReportBody::SketchMerge { epoch: e, column, cells } = report.body
                    && e == epoch.epoch
                {
                    let merged = &mut table[column as usize];
                    (0..4).for_each(|row| merged[row] += cells[row]);
                }
            }
            for &(flow, packets) in &epoch.packets {
                let columns =
                    sketch_merge::columns_of(&workload.seen_flows()[flow as usize].key, 4, columns());
                let cells = columns.iter().enumerate().map(|(row, c)| table[*c as usize][row]);
                assert!(u64::from(cells.min().unwrap()) >= packets);
            }
        }
    }
}

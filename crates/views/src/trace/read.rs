//! Reads what hosts reported: the lists of events.

use std::collections::{BTreeMap, HashSet};

use dta_export::hosts::packets::{
    DropRecord, HostNames, PacketRecord, TracedPacket, group_by_packet, with_points,
};
use dta_export::source::{EntryBatch, Lost};
use dta_proto::control::TailRequest;
use dta_proto::key::Flow;
use dta_proto::trace::{Books, PacketSighting, TraceEntry, list, store};
use dta_rpc::{Ask, ClientError};

/// A packet that exceeded the threshold of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlowRecord {
    pub(super) seen: PacketSighting,
    pub(super) from: u8,
    pub(super) latency: u64,
}

/// The contents of the lists.
#[derive(Debug, Default)]
pub(super) struct TraceEvents {
    pub(super) packets: Vec<PacketRecord>,
    pub(super) drops: Vec<DropRecord>,
    pub(super) slow: Vec<SlowRecord>,
    /// Names by host, kind and number.
    pub(super) names: HostNames,
    pub(super) books: BTreeMap<u16, Books>,
    pub(super) missed: [Lost; list::COUNT as usize],
}

impl TraceEvents {
    /// Reads the lists to their current end.
    pub(super) async fn read_from(ask: &dyn Ask) -> Result<TraceEvents, ClientError> {
        Self::read_lists(ask, 0..list::COUNT).await
    }

    async fn read_lists(
        ask: &dyn Ask,
        lists: impl IntoIterator<Item = u32>,
    ) -> Result<TraceEvents, ClientError> {
        let mut events = TraceEvents::default();
        for list in lists {
            // From the very first batch, so that batches no longer in the ring are counted.
            let request = TailRequest {
                store: store::EVENTS.to_owned(),
                list,
                from_sequence: 1,
                until_caught_up: true,
                ..TailRequest::default()
            };
            let mut following = ask.tail_list(request).await?;
            while let Some(message) = following.next_message().await? {
                let batch = EntryBatch::<TraceEntry>::from_message(list, message);
                events.missed[list as usize].add(&batch.lost);
                batch.entries.into_iter().for_each(|entry| events.take(entry));
            }
        }
        Ok(events)
    }

    fn take(&mut self, entry: TraceEntry) {
        match entry {
            TraceEntry::Packet { seen, points, left } => {
                self.packets.push(PacketRecord { seen, points, left });
            }
            TraceEntry::Drop { seen, reason, .. } => self.drops.push(DropRecord { seen, reason }),
            TraceEntry::Slow { seen, from, latency } => self.slow.push(SlowRecord { seen, from, latency }),
            TraceEntry::Name { host, of, number, name, .. } => {
                self.names.insert((host, of, number), name.to_lossy_string());
            }
            TraceEntry::Books { host, books, .. } => {
                self.books.insert(host, books);
            }
        }
    }
}

/// How many sampled packets of each flow the hosts reported.
pub(crate) async fn count_sampled_packets(ask: &dyn Ask, flows: &[Flow]) -> Result<Vec<u64>, ClientError> {
    let events = TraceEvents::read_lists(ask, [list::PACKETS]).await?;
    let groups = group_by_packet(&events.packets);
    let count = |flow: &Flow| {
        let key = flow.to_key();
        groups.iter().filter(|group| group.iter().any(|record| record.seen.flow == key)).count() as u64
    };
    Ok(flows.iter().map(count).collect())
}

/// The packets with known points, the number of all packets, and the number of visits to hosts whose points were overwritten.
#[derive(Debug, Default)]
pub(super) struct Packets {
    pub(super) packets: Vec<TracedPacket>,
    pub(super) packet_count: u64,
    pub(super) lost: u64,
    /// Digests of all of them, before and after address translation.
    pub(super) digests: HashSet<u64>,
}

impl Packets {
    /// Reads the paths of the packets whose entries satisfy `wanted`.
    pub(super) async fn read_matching(
        ask: &dyn Ask,
        events: &TraceEvents,
        wanted: impl Fn(&[PacketRecord]) -> bool,
    ) -> Result<Packets, ClientError> {
        let mut packets = with_points(ask, &events.names, &events.packets, wanted).await?;
        let lost = packets.iter().map(|packet| packet.lost.len() as u64).sum();
        let packet_count = packets.len() as u64;
        let records = packets.iter().flat_map(|packet| &packet.records);
        let digests = records.flat_map(|record| [record.seen.digest, record.left]);
        let digests = digests.filter(|digest| *digest != 0).collect();
        packets.retain(|packet| !packet.visits.is_empty());
        Ok(Packets { packets, packet_count, lost, digests })
    }
}

//! Output: finished packets in the batches that links send, built from templates
//! ([`dta_proto::wire::frame`]).

use std::net::IpAddr;

use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::frame::{FetchAddTemplate, FrameRoute, WriteImmTemplate, WriteTemplate};
use dta_proto::wire::roce::{self, Psn};

use super::losses::FrameMeta;
use super::pair_place;
use super::requester::{Departure, OperationEffect, Verb};
use dta_proto::program::{ProgramQueuePair, Store, Transport};

const BATCH: usize = 128;
/// Packet size: the longest frame has 192 bytes.
const PACKET: usize = 240;

/// Finished packets from the IPv4 header, in as many batches as needed. A link can send each batch as is.
///
/// Packets are numbered from 0, continuing across [`PacketBatches::clear`]. The number is the packet's cookie in the
/// batch, by which a fault injector reports its fate.
#[derive(Debug)]
pub struct PacketBatches {
    /// The first to `current` are in use, all but that one full.
    batches: Vec<PacketBatch>,
    current: usize,
    /// Number of the next packet.
    next: u64,
}

impl Default for PacketBatches {
    fn default() -> Self {
        PacketBatches { batches: vec![new_batch()], current: 0, next: 0 }
    }
}

fn new_batch() -> PacketBatch {
    PacketBatch::with_packet_capacity(BATCH, PACKET)
}

impl PacketBatches {
    pub fn len(&self) -> usize {
        self.batches().iter().map(PacketBatch::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.batches().iter().all(PacketBatch::is_empty)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.batches().iter().flat_map(PacketBatch::iter)
    }

    /// The batches with the packets, in order: at least one, which may be empty.
    #[inline]
    pub fn batches(&self) -> &[PacketBatch] {
        &self.batches[..=self.current]
    }

    /// The same, to send, which empties them; [`PacketBatches::clear`] must follow.
    #[inline]
    pub fn batches_mut(&mut self) -> &mut [PacketBatch] {
        &mut self.batches[..=self.current]
    }

    /// Removes all packets; keeps the memory.
    pub fn clear(&mut self) {
        self.batches_mut().iter_mut().for_each(PacketBatch::clear);
        self.current = 0;
    }

    /// Adds a UDP datagram of `len` bytes, headers included, and returns it for the caller to fill in; its
    /// contents are arbitrary. Its headers must carry `addresses`.
    #[inline(always)] // on the path of every frame
    pub(crate) fn push(&mut self, len: usize, addresses: Addresses) -> &mut [u8] {
        if self.batches[self.current].is_full() {
            self.next_batch();
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.batches[self.current].add_datagram(len, addresses, number)
    }

    #[cold]
    fn next_batch(&mut self) {
        self.current += 1;
        if self.current == self.batches.len() {
            self.batches.push(new_batch());
        }
    }
}

/// Everything that leaves the data plane at once. Links send these batches without copying.
#[derive(Debug, Default)]
pub struct EngineOutput {
    /// RoCEv2 packets for the collector's NIC, in order of departure.
    pub frames: PacketBatches,
    /// What each of `frames` carries, in the same order.
    pub meta: Vec<FrameMeta>,
    /// NACK datagrams for reporters, as IPv4 packets.
    pub nacks: PacketBatches,
    /// Reports lost with queue pairs, one per report and copy. Filled only if the data plane keeps the
    /// origins of reports.
    pub lost: Vec<(super::losses::Origin, u8)>,
}

impl EngineOutput {
    /// Clears everything; keeps the memory.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.meta.clear();
        self.nacks.clear();
        self.lost.clear();
    }
}

/// Templates of one store's frames on its queue pair.
#[derive(Clone, Debug)]
pub(crate) struct StoreFrames {
    /// Place of the queue pair.
    pub(crate) pair: u8,
    /// Where the frames are counted.
    pub(crate) counter: usize,
    addresses: Addresses,
    base: u64,
    rkey: u32,
    write: WriteTemplate,
    write_immediate: WriteImmTemplate,
    fetch_add: FetchAddTemplate,
}

/// Zero-length WRITEs on one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct IdleFrames {
    addresses: Addresses,
    write: WriteTemplate,
}

/// Everything below the BTH that a queue pair's frames share; `None` for IPv6.
fn frame_route(pair: &ProgramQueuePair) -> Option<FrameRoute> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (pair.source.ip, pair.destination.ip) else { return None };
    let plain = FrameRoute::new(src, dst, pair.remote_qpn);
    Some(FrameRoute { dst_port: pair.destination.port, tos: pair.tos, ..plain })
}

/// Source and destination of a route's frames on a queue pair.
fn addresses(route: &FrameRoute, pair: &ProgramQueuePair) -> Addresses {
    Addresses { source: route.source(), destination: route.destination(), runs: pair.destination.runs }
}

fn transport(pair: &ProgramQueuePair) -> roce::Transport {
    match pair.transport {
        Transport::Uc => roce::Transport::Uc,
        Transport::Rc => roce::Transport::Rc,
    }
}

impl IdleFrames {
    pub(crate) fn new(pair: &ProgramQueuePair) -> Option<IdleFrames> {
        let route = frame_route(pair)?;
        let write = WriteTemplate::new(&route, transport(pair), pair.remote_qpn, 0).ok()?;
        Some(IdleFrames { addresses: addresses(&route, pair), write })
    }

    pub(crate) fn append_frame(&self, departure: &Departure<'_>, frames: &mut PacketBatches) {
        let frame = frames.push(self.write.frame_len(), self.addresses);
        let written = self.write.write_frame(departure.psn, departure.ack_request, 0, 0, &[], frame);
        debug_assert!(written.is_ok());
    }
}

impl StoreFrames {
    pub(crate) fn new(pair: &ProgramQueuePair, store: &Store, counter: usize) -> Option<StoreFrames> {
        let route = frame_route(pair)?;
        let (transport, qpn, len) = (transport(pair), pair.remote_qpn, store.spec.element_len() as usize);
        Some(StoreFrames {
            pair: pair_place::place_for_store(store),
            counter,
            addresses: addresses(&route, pair),
            base: store.address,
            rkey: store.rkey.0,
            write: WriteTemplate::new(&route, transport, qpn, len).ok()?,
            write_immediate: WriteImmTemplate::new(&route, transport, qpn, len).ok()?,
            fetch_add: FetchAddTemplate::new(&route, qpn).ok()?,
        })
    }

    #[inline]
    pub(crate) fn write_departure(&self, departure: &Departure<'_>, frames: &mut PacketBatches) {
        let Departure { psn, ack_request, action, offset, payload, .. } = *departure;
        self.append_frame(psn, ack_request, action, offset, payload, frames);
    }

    /// Appends the frame of a WRITE of 16 bytes at `offset`.
    #[inline(always)] // for runs of them
    pub(crate) fn write_element(
        &self,
        psn: Psn,
        offset: u64,
        element: &[u8; 16],
        frames: &mut PacketBatches,
    ) {
        let frame = frames.push(self.write.frame_len(), self.addresses);
        let written = self.write.write_frame(psn, false, self.base | offset, self.rkey, element, frame);
        // As in `write`.
        debug_assert!(written.is_ok());
    }

    /// Appends the frame of an operation on the element at `offset`.
    #[inline]
    pub(crate) fn append_frame(
        &self,
        psn: Psn,
        ack_request: bool,
        action: OperationEffect,
        offset: u64,
        payload: &[u8],
        frames: &mut PacketBatches,
    ) {
        // Bases are aligned to their region's length.
        let va = self.base | offset;
        let written = match action.verb {
            Verb::Write | Verb::Idle => {
                let frame = frames.push(self.write.frame_len(), self.addresses);
                self.write.write_frame(psn, ack_request, va, self.rkey, payload, frame)
            }
            Verb::WriteImmediate => {
                let immediate = action.number as u32;
                let frame = frames.push(self.write_immediate.frame_len(), self.addresses);
                self.write_immediate.write_frame(psn, ack_request, va, self.rkey, immediate, payload, frame)
            }
            Verb::FetchAdd => {
                let frame = frames.push(self.fetch_add.frame_len(), self.addresses);
                self.fetch_add.write_frame(psn, ack_request, va, self.rkey, action.number, frame)
            }
        };
        // The buffer has the template's length, and the payload is one element of the store.
        debug_assert!(written.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use super::*;

    fn ends(port: u16) -> Addresses {
        let at = |last| SocketAddrV4::new([10, 9, 0, last].into(), port);
        Addresses::new(at(2), at(1))
    }

    /// Adds a packet that contains its number.
    fn add(frames: &mut PacketBatches, number: usize) {
        let packet = frames.push(28 + number % 150, ends(number as u16));
        packet.fill(number as u8);
    }

    #[test]
    fn packets_fill_one_batch_after_another_and_keep_their_numbers() {
        let mut frames = PacketBatches::default();
        assert!(frames.is_empty());
        let mut number = 0;
        for count in [1, BATCH, 3 * BATCH + 5, 0, 2 * BATCH] {
            let first = number;
            for _ in 0..count {
                add(&mut frames, number);
                number += 1;
            }
            assert_eq!((frames.len(), frames.is_empty()), (count, count == 0));
            let batches = frames.batches();
            assert_eq!(batches.len(), count.div_ceil(BATCH).max(1), "no batch is sent for nothing");
            let mut at = first;
            for batch in batches {
                for index in 0..batch.len() {
                    assert_eq!(batch.packet(index), vec![at as u8; 28 + at % 150]);
                    assert_eq!(batch.addresses(index), Some(ends(at as u16)));
                    assert_eq!(batch.packet_cookie(index), at as u64);
                    at += 1;
                }
            }
            assert_eq!(at, number);
            assert_eq!(frames.iter().map(|packet| packet[0]).collect::<Vec<_>>().len(), count);
            frames.clear();
        }
    }

    #[test]
    fn batches_that_a_link_has_emptied_are_filled_anew() {
        let mut frames = PacketBatches::default();
        (0..2 * BATCH).for_each(|number| add(&mut frames, number));
        frames.batches_mut().iter_mut().for_each(PacketBatch::clear);
        assert!(frames.is_empty());
        frames.clear();
        add(&mut frames, 2 * BATCH);
        assert_eq!((frames.batches().len(), frames.len()), (1, 1));
        assert_eq!(frames.batches()[0].packet_cookie(0), 2 * BATCH as u64);
    }
}

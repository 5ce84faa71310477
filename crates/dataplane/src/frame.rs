//! Output: finished packets in the batches that links send, built from templates
//! ([`dta_proto::wire::frame`]); or work requests for an RDMA device, which makes the frames itself.

use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::frame::{FetchAddTemplate, FrameRoute, WriteImmTemplate, WriteTemplate};
use dta_proto::wire::roce::{self, Psn};

use super::losses::FrameMeta;
use super::pair_place;
use super::requester::{Departure, OperationEffect, Verb};
use dta_proto::program::{ProgramQueuePair, Store, Transport};

const BATCH: usize = 128;
/// Packet size until a longer packet comes; a frame with a payload of 128 bytes has 192.
const PACKET: usize = 240;

/// Finished packets from the IP header, in as many batches as needed. A link can send each batch as is.
///
/// Packets are numbered from 0, continuing across [`PacketBatches::clear`]. The number is the packet's cookie in the
/// batch, by which a fault injector reports its fate.
///
/// Slots have the length of the longest packet so far.
#[derive(Debug)]
pub struct PacketBatches {
    /// The batches up to `current` are in use, and all before it are full.
    batches: Vec<PacketBatch>,
    current: usize,
    /// Number of the next packet.
    next: u64,
    /// Longest packet for which a new batch has room.
    packet_len: usize,
}

impl Default for PacketBatches {
    fn default() -> Self {
        let batches = vec![PacketBatch::with_packet_capacity(BATCH, PACKET)];
        PacketBatches { batches, current: 0, next: 0, packet_len: PACKET }
    }
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

    /// The same batches for sending, which empties them; [`PacketBatches::clear`] must follow.
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
    /// contents are arbitrary. Its headers must carry `addresses`, which are left out for IPv6.
    #[inline(always)] // on the path of every frame
    pub(crate) fn push(&mut self, len: usize, addresses: impl Into<Option<Addresses>>) -> &mut [u8] {
        let batch = &self.batches[self.current];
        if batch.is_full() || len > batch.packet_capacity() {
            self.next_batch(len);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.batches[self.current].add_datagram(len, addresses, number)
    }

    /// Moves on to a batch that has room for a packet of `len` bytes.
    #[cold]
    fn next_batch(&mut self, len: usize) {
        self.packet_len = self.packet_len.max(len);
        self.current += usize::from(!self.batches[self.current].is_empty());
        let is_wide = |batch: &PacketBatch| batch.packet_capacity() >= self.packet_len;
        if !self.batches.get(self.current).is_some_and(is_wide) {
            let batch = PacketBatch::with_packet_capacity(BATCH, self.packet_len);
            self.batches.truncate(self.current);
            self.batches.push(batch);
        }
    }
}

/// An operation for an RDMA device to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// Place of its queue pair ([`crate::place_for_pair`]).
    pub pair: u8,
    /// The PSN of its packet on RC; PSNs of one queue pair are consecutive until it is replaced.
    pub psn: Psn,
    /// Whether its completion has to be reported.
    pub ack_request: bool,
    pub effect: OperationEffect,
    /// Address in the collector's region.
    pub address: u64,
    pub rkey: u32,
    /// Where its payload ends within the payloads of all requests.
    payload_end: u32,
}

/// Operations for an RDMA device, in order of departure, with their payloads.
#[derive(Debug, Default)]
pub struct WorkRequests {
    list: Vec<WorkRequest>,
    payloads: Vec<u8>,
}

impl WorkRequests {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Each request with its payload, which is empty if it writes none.
    pub fn iter(&self) -> impl Iterator<Item = (&WorkRequest, &[u8])> {
        let mut start = 0;
        self.list.iter().map(move |request| {
            let payload = &self.payloads[start..request.payload_end as usize];
            start = request.payload_end as usize;
            (request, payload)
        })
    }

    /// Removes all requests; keeps the memory.
    pub fn clear(&mut self) {
        self.list.clear();
        self.payloads.clear();
    }

    fn push(&mut self, request: WorkRequest, payload: &[u8]) {
        self.payloads.extend_from_slice(payload);
        self.list.push(WorkRequest { payload_end: self.payloads.len() as u32, ..request });
    }
}

/// Everything that leaves the data plane in one step. Links send these batches without copying.
#[derive(Debug, Default)]
pub struct EngineOutput {
    /// RoCEv2 packets for the collector's NIC, in order of departure.
    pub frames: PacketBatches,
    /// The same as work requests, in place of `frames`, for a data plane that [posts](crate::EngineLimits::posts).
    pub requests: WorkRequests,
    /// What each of `frames` or `requests` carries, in the same order.
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
        self.requests.clear();
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
    /// Whether operations leave as work requests.
    posts: bool,
    addresses: Option<Addresses>,
    base: u64,
    rkey: u32,
    write: WriteTemplate,
    write_immediate: WriteImmTemplate,
    fetch_add: FetchAddTemplate,
}

/// Zero-length WRITEs on one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct IdleFrames {
    /// Place of the queue pair.
    pair: u8,
    posts: bool,
    addresses: Option<Addresses>,
    write: WriteTemplate,
}

/// Everything below the BTH that a queue pair's frames share; `None` if its ends have addresses of different families.
fn frame_route(pair: &ProgramQueuePair) -> Option<FrameRoute> {
    let plain = FrameRoute::from_addresses(pair.source.ip, pair.destination.ip, pair.remote_qpn)?;
    Some(FrameRoute { dst_port: pair.destination.port, tos: pair.tos, ..plain })
}

fn transport(pair: &ProgramQueuePair) -> roce::Transport {
    match pair.transport {
        Transport::Uc => roce::Transport::Uc,
        Transport::Rc => roce::Transport::Rc,
    }
}

impl IdleFrames {
    pub(crate) fn new(pair: &ProgramQueuePair, posts: bool) -> Option<IdleFrames> {
        let route = frame_route(pair)?;
        let write = WriteTemplate::new(&route, transport(pair), pair.remote_qpn, 0).ok()?;
        let place = pair_place::place_for_pair(pair.collector, pair.purpose);
        Some(IdleFrames {
            pair: place,
            posts,
            addresses: Addresses::from_route(&route, pair.destination.runs),
            write,
        })
    }

    pub(crate) fn append_frame(&self, departure: &Departure<'_>, out: &mut EngineOutput) {
        if self.posts {
            let Departure { psn, ack_request, action: effect, .. } = *departure;
            let request = WorkRequest {
                pair: self.pair,
                psn,
                ack_request,
                effect,
                address: 0,
                rkey: 0,
                payload_end: 0,
            };
            return out.requests.push(request, &[]);
        }
        let frame = out.frames.push(self.write.frame_len(), self.addresses);
        let written = self.write.write_frame(departure.psn, departure.ack_request, 0, 0, &[], frame);
        debug_assert!(written.is_ok());
    }
}

impl StoreFrames {
    pub(crate) fn new(
        pair: &ProgramQueuePair,
        store: &Store,
        counter: usize,
        posts: bool,
    ) -> Option<StoreFrames> {
        let route = frame_route(pair)?;
        let (transport, qpn, len) = (transport(pair), pair.remote_qpn, store.spec.element_len() as usize);
        Some(StoreFrames {
            pair: pair_place::place_for_store(store),
            counter,
            posts,
            addresses: Addresses::from_route(&route, pair.destination.runs),
            base: store.address,
            rkey: store.rkey.0,
            write: WriteTemplate::new(&route, transport, qpn, len).ok()?,
            write_immediate: WriteImmTemplate::new(&route, transport, qpn, len).ok()?,
            fetch_add: FetchAddTemplate::new(&route, qpn).ok()?,
        })
    }

    #[inline]
    pub(crate) fn write_departure(&self, departure: &Departure<'_>, out: &mut EngineOutput) {
        let Departure { psn, ack_request, action, offset, payload, .. } = *departure;
        self.append_frame(psn, ack_request, action, offset, payload, out);
    }

    /// Appends the work request of an operation on the element at `offset`.
    fn append_request(
        &self,
        psn: Psn,
        ack_request: bool,
        effect: OperationEffect,
        offset: u64,
        payload: &[u8],
        requests: &mut WorkRequests,
    ) {
        let address = self.base | offset;
        let (pair, rkey) = (self.pair, self.rkey);
        requests.push(
            WorkRequest { pair, psn, ack_request, effect, address, rkey, payload_end: 0 },
            if effect.verb == Verb::FetchAdd { &[] } else { payload },
        );
    }

    /// Appends the frame of a WRITE of 16 bytes at `offset`.
    #[inline(always)] // for runs of them
    pub(crate) fn write_element(&self, psn: Psn, offset: u64, element: &[u8; 16], out: &mut EngineOutput) {
        if self.posts {
            let effect = OperationEffect::WRITE;
            return self.append_request(psn, false, effect, offset, element, &mut out.requests);
        }
        let frame = out.frames.push(self.write.frame_len(), self.addresses);
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
        out: &mut EngineOutput,
    ) {
        if self.posts {
            return self.append_request(psn, ack_request, action, offset, payload, &mut out.requests);
        }
        let frames = &mut out.frames;
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
    fn longer_packets_get_wider_batches() {
        let mut frames = PacketBatches::default();
        for _ in 0..3 {
            for (number, len) in [64, 1084, 64, 4156, 1084].into_iter().enumerate() {
                frames.push(len, ends(1)).fill(number as u8);
            }
            let packets: Vec<(usize, u8)> = frames.iter().map(|packet| (packet.len(), packet[0])).collect();
            assert_eq!(packets, [(64, 0), (1084, 1), (64, 2), (4156, 3), (1084, 4)]);
            frames.clear();
        }
        assert_eq!(frames.batches().len(), 1, "all fit into one batch once it is wide enough");
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

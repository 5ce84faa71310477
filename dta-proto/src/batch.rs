//! A batch of packets in one preallocated arena, passed between links, data plane and NIC.

use std::net::{SocketAddr, SocketAddrV4};

use crate::wire::AddressPair;
use crate::wire::datagram::{self, UdpDatagram};
use crate::wire::ethernet;
use crate::wire::frame::FrameRoute;

/// Length of an Ethernet header (no VLAN tag).
pub const ETHERNET_LEN: usize = ethernet::HEADER_LEN;

/// Room in front of each packet: the Ethernet header, and 2 bytes to align the IPv4 header.
pub const HEADROOM: usize = 16;

/// Default slot size, headroom included: a full Ethernet frame with room to spare.
pub const SLOT_BYTES: usize = 2048;

/// Default number of slots.
pub const SLOTS: usize = 64;

/// Why a packet could not be added to a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// All slots are in use: send or clear the batch first.
    #[error("the batch is full")]
    Full,
    /// The packet is longer than a slot.
    #[error("a packet of {len} bytes does not fit a slot of {capacity} bytes")]
    TooLong {
        /// Bytes of the packet.
        len: usize,
        /// Packet bytes that a slot holds.
        capacity: usize,
    },
}

/// Source and destination of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Source address and port.
    pub source: SocketAddrV4,
    /// Destination address and port.
    pub destination: SocketAddrV4,
    /// Whether a RoCEv2 frame may leave in a run, numbered by its IPv4 id. Other datagrams always may.
    pub runs: bool,
}

impl Addresses {
    /// The addresses of a datagram; a RoCEv2 frame is not sent in a run.
    pub const fn new(source: SocketAddrV4, destination: SocketAddrV4) -> Addresses {
        Addresses { source, destination, runs: false }
    }

    /// The addresses of a route's frames; `None` for IPv6, where links read the headers.
    pub const fn from_route(route: &FrameRoute, runs: bool) -> Option<Addresses> {
        match route.addresses {
            AddressPair::V4 { source, destination } => Some(Addresses {
                source: SocketAddrV4::new(source, route.src_port),
                destination: SocketAddrV4::new(destination, route.dst_port),
                runs,
            }),
            AddressPair::V6 { .. } => None,
        }
    }
}

/// Metadata of the packet in a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Meta {
    len: u32,
    ethernet: bool,
    verbatim: bool,
    checksum_pending: bool,
    id_unknown: bool,
    /// What the packet's headers say, where its writer recorded it.
    addresses: Option<Addresses>,
    cookie: u64,
}

/// Up to a fixed number of packets, each in its own slot of one reused allocation.
///
/// A packet starts at its IP header. An Ethernet header, if any, lies in the 14 bytes before it
/// ([`PacketBatch::ethernet_frame`]). Each packet carries a cookie, a number of the caller's that `dta_link::fault` hands
/// back with the packet's fate; links do not send it, and received packets have 0.
///
/// [`PacketBatch::add_datagram`], [`PacketBatch::commit_datagram`] and [`PacketBatch::push_datagram`] record the datagram's
/// addresses beside the packet, so that the sending link need not parse the headers.
#[derive(Debug, Clone)]
pub struct PacketBatch {
    bytes: Box<[u8]>,
    meta: Box<[Meta]>,
    stride: usize,
    used: usize,
}

impl Default for PacketBatch {
    fn default() -> Self {
        Self::new(SLOTS)
    }
}

impl PacketBatch {
    /// A batch of `slots` packets of at least 2,032 bytes each.
    pub fn new(slots: usize) -> Self {
        Self::with_packet_capacity(slots, SLOT_BYTES - HEADROOM)
    }

    /// A batch of `slots` packets of at least `packet_bytes` each, such as 9,000 for jumbo frames.
    ///
    /// # Panics
    /// With more than 65,535 slots, or packets longer than 65,535 bytes.
    pub fn with_packet_capacity(slots: usize, packet_bytes: usize) -> Self {
        assert!(slots <= usize::from(u16::MAX), "a batch of {slots} slots, more than 65,535");
        assert!(packet_bytes <= datagram::PACKET_MAX, "packets of {packet_bytes} bytes, more than 65,535");
        // An odd number of cache lines: with 2,048 bytes from slot to slot, the beginnings of all packets
        // would share two of the cache's 64 sets.
        let lines = (HEADROOM + packet_bytes).div_ceil(64) | 1;
        let stride = lines * 64;
        Self {
            bytes: vec![0; slots * stride].into_boxed_slice(),
            meta: vec![Meta::default(); slots].into_boxed_slice(),
            stride,
            used: 0,
        }
    }

    /// Number of slots.
    #[inline]
    pub fn slot_count(&self) -> usize {
        self.meta.len()
    }

    /// Longest packet that fits, without Ethernet header.
    #[inline]
    pub fn packet_capacity(&self) -> usize {
        (self.stride - HEADROOM).min(datagram::PACKET_MAX)
    }

    /// Packets in the batch.
    #[inline]
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Whether all slots are in use.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used == self.slot_count()
    }

    /// Drops all packets; keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds a copy of an IP packet.
    pub fn push(&mut self, packet: &[u8], cookie: u64) -> Result<(), PushError> {
        let slot = self.free_slot_for(packet.len())?;
        slot[..packet.len()].copy_from_slice(packet);
        self.commit_packet(packet.len(), cookie);
        Ok(())
    }

    /// Adds a copy of an Ethernet frame (destination, source, EtherType, packet). A frame shorter than its
    /// 14-byte header becomes a zero-padded header and an empty packet.
    pub fn push_frame(&mut self, frame: &[u8], cookie: u64) -> Result<(), PushError> {
        let split = frame.len().min(ETHERNET_LEN);
        let (ethernet, packet) = frame.split_at(split);
        self.push(packet, cookie)?;
        let mut header = [0; ETHERNET_LEN];
        header[..split].copy_from_slice(ethernet);
        self.set_ethernet(self.used - 1, &header);
        Ok(())
    }

    /// Adds a UDP datagram: the 28-byte header that [`datagram::encode_header`] makes, then `payload`.
    pub fn push_datagram(
        &mut self,
        source: SocketAddrV4,
        destination: SocketAddrV4,
        payload: &[u8],
        cookie: u64,
    ) -> Result<(), PushError> {
        let len = datagram::HEADER_LEN + payload.len();
        let slot = self.free_slot_for(len)?;
        slot[..datagram::HEADER_LEN].copy_from_slice(&datagram::encode_header(
            source,
            destination,
            payload.len(),
        ));
        slot[datagram::HEADER_LEN..len].copy_from_slice(payload);
        self.commit_datagram(len, Addresses::new(source, destination), cookie);
        Ok(())
    }

    /// Adds a UDP datagram of `len` bytes, its header bytes included, and returns it for the caller to
    /// fill in whole: it still holds earlier contents. Its headers must carry `addresses`, if they are given, and the
    /// datagram must fill the packet.
    ///
    /// # Panics
    /// When the batch is full, or `len` is more than [`PacketBatch::packet_capacity`] or less than the headers.
    #[inline]
    pub fn add_datagram(
        &mut self,
        len: usize,
        addresses: impl Into<Option<Addresses>>,
        cookie: u64,
    ) -> &mut [u8] {
        let at = self.used * self.stride + HEADROOM;
        self.commit_datagram(len, addresses, cookie);
        &mut self.bytes[at..at + len]
    }

    /// The next free slot, to write a packet into; [`PacketBatch::commit_packet`] or [`PacketBatch::commit_datagram`] then adds
    /// it. It still holds earlier contents. `None` when the batch is full.
    #[inline]
    pub fn next_slot(&mut self) -> Option<&mut [u8]> {
        if self.is_full() {
            return None;
        }
        let at = self.used * self.stride;
        Some(&mut self.bytes[at + HEADROOM..at + self.stride])
    }

    /// Adds the packet written into the first `len` bytes of [`PacketBatch::next_slot`].
    ///
    /// # Panics
    /// When the batch is full or `len` is more than [`PacketBatch::packet_capacity`].
    #[inline]
    pub fn commit_packet(&mut self, len: usize, cookie: u64) {
        self.commit_with(len, None, cookie);
    }

    /// Adds the UDP datagram written into the first `len` bytes of [`PacketBatch::next_slot`]. Its headers must
    /// carry `addresses`, and it must fill the packet.
    ///
    /// # Panics
    /// As [`PacketBatch::commit_packet`], and when `len` is less than the 28 bytes of header.
    #[inline]
    pub fn commit_datagram(&mut self, len: usize, addresses: impl Into<Option<Addresses>>, cookie: u64) {
        assert!(len >= datagram::HEADER_LEN, "a datagram of {len} bytes, shorter than its headers");
        self.commit_with(len, addresses.into(), cookie);
    }

    #[inline]
    fn commit_with(&mut self, len: usize, addresses: Option<Addresses>, cookie: u64) {
        // Not `is_full`: this form lets the compiler drop the bounds check below.
        assert!(self.used < self.meta.len(), "commit to a full batch");
        assert!(
            len <= self.packet_capacity(),
            "commit of {len} bytes to a slot of {}",
            self.packet_capacity()
        );
        self.meta[self.used] = Meta { len: len as u32, addresses, cookie, ..Meta::default() };
        self.used += 1;
    }

    /// Packet `index`, from its IP header on.
    #[inline]
    pub fn packet(&self, index: usize) -> &[u8] {
        let len = self.packet_meta(index).len as usize;
        let at = index * self.stride + HEADROOM;
        &self.bytes[at..at + len]
    }

    /// Packet `index`, to change in place. From now on its addresses are read from its headers.
    pub fn packet_mut(&mut self, index: usize) -> &mut [u8] {
        let len = self.packet_meta(index).len as usize;
        self.meta[index].addresses = None;
        let at = index * self.stride + HEADROOM;
        &mut self.bytes[at..at + len]
    }

    /// Packet `index` with its Ethernet header, if it has one.
    #[inline]
    pub fn ethernet_frame(&self, index: usize) -> Option<&[u8]> {
        let meta = self.packet_meta(index);
        let at = index * self.stride + HEADROOM;
        meta.ethernet.then(|| &self.bytes[at - ETHERNET_LEN..at + meta.len as usize])
    }

    /// Puts an Ethernet header (destination, source, EtherType; network order) in front of packet `index`.
    pub fn set_ethernet(&mut self, index: usize, header: &[u8; ETHERNET_LEN]) {
        self.packet_meta(index);
        let at = index * self.stride + HEADROOM;
        self.bytes[at - ETHERNET_LEN..at].copy_from_slice(header);
        self.meta[index].ethernet = true;
    }

    /// The UDP payload of packet `index` and its source and destination; `None` when the packet is not IPv4
    /// without options carrying a whole UDP datagram.
    #[inline]
    pub fn udp_datagram(&self, index: usize) -> Option<UdpDatagram<'_>> {
        UdpDatagram::parse_exact(self.packet(index)).ok()
    }

    /// Source and payload of packet `index`, a datagram in IPv4 or IPv6 as [`datagram::source_and_payload`] reads it.
    #[inline]
    pub fn source_and_payload(&self, index: usize) -> Option<(SocketAddr, &[u8])> {
        datagram::source_and_payload(self.packet(index))
    }

    /// Source and destination of packet `index` as its writer recorded them; `None` if it did not.
    /// [`PacketBatch::udp_datagram`] reads them from the headers.
    #[inline]
    pub fn addresses(&self, index: usize) -> Option<Addresses> {
        self.packet_meta(index).addresses
    }

    /// The caller's number for packet `index`.
    #[inline]
    pub fn packet_cookie(&self, index: usize) -> u64 {
        self.packet_meta(index).cookie
    }

    /// Whether packet `index` arrived with its UDP checksum not yet filled in: the sender left that to
    /// hardware, but the path had none (a veth pair, a bridge). The checksum field then proves nothing.
    #[inline]
    pub fn checksum_pending(&self, index: usize) -> bool {
        self.packet_meta(index).checksum_pending
    }

    /// Whether packet `index` must be sent unchanged, UDP checksum included.
    pub fn is_verbatim(&self, index: usize) -> bool {
        self.packet_meta(index).verbatim
    }

    /// Whether the IPv4 id in the header of packet `index` is not the one it was sent with, because its socket does not show
    /// that one.
    #[inline]
    pub fn id_unknown(&self, index: usize) -> bool {
        self.packet_meta(index).id_unknown
    }

    /// All packets in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.used).map(|index| self.packet(index))
    }

    /// Marks packet `index` to be sent unchanged.
    #[inline]
    pub fn set_verbatim(&mut self, index: usize) {
        self.packet_meta(index);
        self.meta[index].verbatim = true;
    }

    /// Records that packet `index` arrived with its UDP checksum not yet filled in.
    #[inline]
    pub fn set_checksum_pending(&mut self, index: usize) {
        self.packet_meta(index);
        self.meta[index].checksum_pending = true;
    }

    /// Records that the IPv4 id of packet `index` is not known.
    #[inline]
    pub fn set_id_unknown(&mut self, index: usize) {
        self.packet_meta(index);
        self.meta[index].id_unknown = true;
    }

    /// All slots, free ones too, from byte `offset` on ([`HEADROOM`] is where packets begin), for the kernel
    /// to receive into.
    #[inline]
    pub fn receive_buffers(&mut self, offset: usize) -> impl Iterator<Item = &mut [u8]> {
        self.bytes.chunks_exact_mut(self.stride).map(move |slot| &mut slot[offset..])
    }

    /// The contents of slot `index`, used or free, from byte `offset` on.
    #[inline]
    pub fn slot_contents(&self, index: usize, offset: usize) -> &[u8] {
        &self.bytes[index * self.stride + offset..(index + 1) * self.stride]
    }

    /// Adds a copy of packet `index` of `other` with its metadata.
    ///
    /// # Panics
    /// When the batch is full or the packet too long.
    #[inline]
    pub fn copy_from(&mut self, other: &PacketBatch, index: usize) {
        self.commit_packet(0, 0);
        self.overwrite(self.used - 1, other, index);
    }

    /// Replaces packet `to` by a copy of packet `index` of `other`, with its metadata.
    ///
    /// # Panics
    /// When the packet is too long.
    #[inline]
    pub fn overwrite(&mut self, to: usize, other: &PacketBatch, index: usize) {
        self.packet_meta(to);
        let len = HEADROOM + other.packet_meta(index).len as usize;
        self.bytes[to * self.stride..][..self.stride][..len]
            .copy_from_slice(&other.slot_contents(index, 0)[..len]);
        self.meta[to] = other.meta[index];
    }

    /// Adds the packet of `len` bytes that the kernel left in slot `index`, at or after the next free one,
    /// moving it down if earlier ones were skipped.
    ///
    /// # Panics
    /// When `index` is no slot, or `len` is more than [`PacketBatch::packet_capacity`].
    #[inline]
    pub fn adopt_received(&mut self, index: usize, len: usize) {
        if index != self.used {
            let at = index * self.stride;
            self.bytes.copy_within(at..at + HEADROOM + len, self.used * self.stride);
        }
        self.commit_packet(len, 0);
    }

    /// Keeps the packets that `keep` accepts, in order. It sees the whole frame if there is an Ethernet
    /// header.
    pub fn retain(&mut self, mut keep: impl FnMut(Option<&[u8]>, &[u8]) -> bool) {
        let mut kept = 0;
        for index in 0..self.used {
            if !keep(self.ethernet_frame(index), self.packet(index)) {
                continue;
            }
            if index != kept {
                let (from, len) = (index * self.stride, HEADROOM + self.meta[index].len as usize);
                self.bytes.copy_within(from..from + len, kept * self.stride);
                self.meta[kept] = self.meta[index];
            }
            kept += 1;
        }
        self.used = kept;
    }

    fn free_slot_for(&mut self, len: usize) -> Result<&mut [u8], PushError> {
        let capacity = self.packet_capacity();
        if len > capacity {
            return Err(PushError::TooLong { len, capacity });
        }
        self.next_slot().ok_or(PushError::Full)
    }

    #[inline]
    fn packet_meta(&self, index: usize) -> &Meta {
        &self.meta[..self.used][index]
    }
}

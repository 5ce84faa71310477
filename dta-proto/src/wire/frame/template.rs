//! Fast writing of frames of one kind: the shared part is written once, and its iCRC computed once.

use super::FrameRoute;
use crate::crc::{crc32_update, crc32_update_masked, crc32_update_words};
use crate::wire::error::saturating_u16;
use crate::wire::roce::{
    ATOMIC_ETH_LEN, AtomicEth, BTH_LEN, Bth, ICRC_IPV6_MASK, ICRC_LEN, ICRC_MASK, ICRC_SEED, IMM_DT_LEN,
    Opcode, Psn, RETH_LEN, Reth, Transport, pad_byte_count,
};
use crate::wire::{AddressPair, Error, Layer, Result, WireErrorKind, datagram, ethernet, ipv4, ipv6, udp};

/// IPv4, UDP, and the BTH up to its destination queue pair, shared by all frames of a template. Over IPv6 the shared bytes
/// are the last ones of the same headers.
const SHARED_LEN: usize = ipv4::HEADER_LEN + udp::HEADER_LEN + BTH_SHARED_LEN;
const BTH_SHARED_LEN: usize = 8;
/// The longest start of a frame before its shared bytes: Ethernet, and the bytes by which IPv6 headers exceed IPv4's.
const START_LEN: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN - ipv4::HEADER_LEN;
/// The rest of the BTH: acknowledgement bit and PSN.
const PSN_LEN: usize = 4;

/// Frames of one opcode and payload length to one queue pair.
#[derive(Clone, Debug)]
struct FrameTemplate {
    /// The bytes before `bytes`; `start_len` of them are used.
    start: [u8; START_LEN],
    start_len: usize,
    bytes: [u8; SHARED_LEN],
    /// Running CRC-32 over the iCRC's eight bytes and the packet to the end of `bytes`, masked.
    icrc: u32,
    payload_len: usize,
    frame_len: usize,
}

impl FrameTemplate {
    fn new(route: &FrameRoute, opcode: Opcode, dest_qp: u32, payload_len: usize) -> Result<FrameTemplate> {
        let too_long = Error::new(Layer::Roce, "frame", 0, WireErrorKind::Length(u16::MAX));
        let mut header = Bth::new(opcode, dest_qp, Psn::default(), false);
        header.pad = pad_byte_count(payload_len);
        let overhead = BTH_LEN + opcode.header_layout().len() + usize::from(header.pad) + ICRC_LEN;
        let header_len = route.addresses.datagram_header_len();
        let most = datagram::PACKET_MAX - header_len - overhead;
        if payload_len > most {
            return Err(too_long);
        }
        let transport_len = overhead + payload_len;
        let mut bth = [0; BTH_LEN];
        header.encode_into(&mut bth);
        let ethernet_len = route.ethernet_len();
        let end = ethernet_len + header_len;
        let mut whole = [0; START_LEN + SHARED_LEN];
        if let Some(header) = route.ethernet_header() {
            whole[..ethernet_len].copy_from_slice(&header);
        }
        route.write_ip_udp(saturating_u16(transport_len), &mut whole[ethernet_len..end]);
        whole[end..][..BTH_SHARED_LEN].copy_from_slice(&bth[..BTH_SHARED_LEN]);
        let mask = match route.addresses {
            AddressPair::V4 { .. } => &ICRC_MASK,
            AddressPair::V6 { .. } => &ICRC_IPV6_MASK,
        };
        let start_len = end + BTH_SHARED_LEN - SHARED_LEN;
        let (mut start, mut bytes) = ([0; START_LEN], [0; SHARED_LEN]);
        start[..start_len].copy_from_slice(&whole[..start_len]);
        bytes.copy_from_slice(&whole[start_len..][..SHARED_LEN]);
        Ok(FrameTemplate {
            start,
            start_len,
            bytes,
            icrc: crc32_update_masked(ICRC_SEED, &whole[ethernet_len..end + BTH_SHARED_LEN], mask),
            payload_len,
            frame_len: end + transport_len,
        })
    }

    #[cold]
    fn too_small(&self, have: usize) -> Error {
        let kind = WireErrorKind::BufferTooSmall {
            need: saturating_u16(self.frame_len),
            have: saturating_u16(have),
        };
        Error::new(Layer::Roce, "frame", 0, kind)
    }

    #[cold]
    fn wrong_payload(&self, payload: &[u8]) -> Error {
        Error::new(Layer::Roce, "payload", 0, WireErrorKind::Length(saturating_u16(payload.len())))
    }

    /// Writes the shared part and the PSN, then `headers`, `payload`, pad bytes and the iCRC.
    #[inline(always)]
    fn write_frame<const N: usize>(
        &self,
        psn: Psn,
        ack_req: bool,
        headers: &[u8; N],
        payload: &[u8],
        buffer: &mut [u8],
    ) -> Result<usize> {
        let have = buffer.len();
        let out = self.begin_frame(payload, buffer)?;
        // Cannot fail: frame_len was computed from the same parts.
        self.fill_frame(psn_bytes(psn, ack_req), headers, payload, out)
            .ok_or_else(|| self.too_small(have))?;
        Ok(self.frame_len)
    }

    /// As [`FrameTemplate::write_frame`], for a WRITE.
    #[inline(always)]
    fn emit_write(
        &self,
        psn: Psn,
        ack_req: bool,
        reth: Reth,
        payload: &[u8],
        buffer: &mut [u8],
    ) -> Result<usize> {
        let Ok(element) = <&[u8; 16]>::try_from(payload) else {
            let mut headers = [0; RETH_LEN];
            reth.encode_into(&mut headers);
            return self.write_frame(psn, ack_req, &headers, payload, buffer);
        };
        let have = buffer.len();
        let out = self.begin_frame(payload, buffer)?;
        self.fill_16_byte_write(psn_bytes(psn, ack_req), reth, element, out)
            .ok_or_else(|| self.too_small(have))?;
        Ok(self.frame_len)
    }

    /// The frame's bytes from the shared ones on, if the payload has the right length.
    #[inline(always)]
    fn begin_frame<'b>(&self, payload: &[u8], buffer: &'b mut [u8]) -> Result<&'b mut [u8]> {
        if payload.len() != self.payload_len {
            return Err(self.wrong_payload(payload));
        }
        let have = buffer.len();
        let Some(out) = buffer.get_mut(..self.frame_len) else {
            return Err(self.too_small(have));
        };
        if self.start_len == 0 {
            return Ok(out);
        }
        let start = self.start.get(..self.start_len).zip(out.split_at_mut_checked(self.start_len));
        let Some((start, (head, rest))) = start else { return Err(self.too_small(have)) };
        head.copy_from_slice(start);
        Ok(rest)
    }

    /// The frame from its shared bytes on; `None` if it does not fit.
    #[inline]
    fn fill_frame<const N: usize>(
        &self,
        psn: [u8; PSN_LEN],
        headers: &[u8; N],
        payload: &[u8],
        out: &mut [u8],
    ) -> Option<()> {
        let (shared, out) = out.split_first_chunk_mut()?;
        *shared = self.bytes;
        let (covered, icrc) = out.split_last_chunk_mut()?;
        let (psn_bytes, rest) = covered.split_first_chunk_mut()?;
        *psn_bytes = psn;
        let (head, rest) = rest.split_first_chunk_mut::<N>()?;
        *head = *headers;
        let (data, pad) = rest.split_at_mut_checked(payload.len())?;
        data.copy_from_slice(payload);
        pad.fill(0);
        *icrc = crc32_update(self.icrc, covered).to_le_bytes();
        Some(())
    }

    /// As [`FrameTemplate::fill_frame`] for a WRITE of 16 bytes, the element of most key-write stores. Values just computed
    /// go into the iCRC from registers, not through memory.
    #[inline]
    fn fill_16_byte_write(
        &self,
        psn: [u8; PSN_LEN],
        reth: Reth,
        payload: &[u8; 16],
        out: &mut [u8],
    ) -> Option<()> {
        // In the same pieces in which elements are written.
        let [a, b, c, d, value @ ..] = *payload;
        let (low, high) = (value.first_chunk::<8>()?, value.last_chunk::<4>()?);
        let payload = u128::from(u32::from_le_bytes([a, b, c, d]))
            | u128::from(u64::from_le_bytes(*low)) << 32
            | u128::from(u32::from_le_bytes(*high)) << 96;
        let reth = reth.to_le_u128();
        let icrc = crc32_update_words(self.icrc, u32::from_le_bytes(psn), [reth, payload]);
        let (shared, out) = out.split_first_chunk_mut()?;
        *shared = self.bytes;
        let (psn_bytes, out) = out.split_first_chunk_mut()?;
        *psn_bytes = psn;
        let (reth_bytes, out) = out.split_first_chunk_mut()?;
        *reth_bytes = reth.to_le_bytes();
        let (payload_bytes, out) = out.split_first_chunk_mut()?;
        *payload_bytes = payload.to_le_bytes();
        *out.first_chunk_mut()? = icrc.to_le_bytes();
        Some(())
    }
}

/// The acknowledgement bit and the PSN.
#[inline]
fn psn_bytes(psn: Psn, ack_req: bool) -> [u8; PSN_LEN] {
    (u32::from(ack_req) << 31 | psn.get()).to_be_bytes()
}

/// WRITE ONLY frames of one payload length to one queue pair.
#[derive(Clone, Debug)]
pub struct WriteTemplate(FrameTemplate);

/// WRITE ONLY with immediate frames of one payload length to one queue pair.
#[derive(Clone, Debug)]
pub struct WriteImmTemplate(FrameTemplate);

/// FETCH_ADD frames to one queue pair.
#[derive(Clone, Debug)]
pub struct FetchAddTemplate(FrameTemplate);

impl WriteTemplate {
    /// A template for `payload_len` bytes. Fails if they exceed a packet.
    pub fn new(
        route: &FrameRoute,
        transport: Transport,
        dest_qp: u32,
        payload_len: usize,
    ) -> Result<WriteTemplate> {
        FrameTemplate::new(route, Opcode::write_only(transport, false), dest_qp, payload_len)
            .map(WriteTemplate)
    }

    /// Length of each frame.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.0.frame_len
    }

    /// Writes a frame to the start of `buffer` and returns its length. Fails if the buffer is too small or
    /// the payload does not have the template's length.
    #[inline]
    pub fn write_frame(
        &self,
        psn: Psn,
        ack_req: bool,
        va: u64,
        rkey: u32,
        payload: &[u8],
        buffer: &mut [u8],
    ) -> Result<usize> {
        let reth = Reth { va, rkey, length: self.0.payload_len as u32 };
        self.0.emit_write(psn, ack_req, reth, payload, buffer)
    }
}

impl WriteImmTemplate {
    /// A template for `payload_len` bytes. Fails if they exceed a packet.
    pub fn new(
        route: &FrameRoute,
        transport: Transport,
        dest_qp: u32,
        payload_len: usize,
    ) -> Result<WriteImmTemplate> {
        FrameTemplate::new(route, Opcode::write_only(transport, true), dest_qp, payload_len)
            .map(WriteImmTemplate)
    }

    /// Length of each frame.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.0.frame_len
    }

    /// Writes a frame to the start of `buffer` and returns its length. Fails if the buffer is too small or
    /// the payload does not have the template's length.
    #[inline]
    #[allow(
        clippy::too_many_arguments,
        reason = "they are the fields of the frame; a struct would be built for each"
    )]
    pub fn write_frame(
        &self,
        psn: Psn,
        ack_req: bool,
        va: u64,
        rkey: u32,
        imm: u32,
        payload: &[u8],
        buffer: &mut [u8],
    ) -> Result<usize> {
        let mut headers = [0; RETH_LEN + IMM_DT_LEN];
        if let Some(reth) = headers.first_chunk_mut() {
            Reth { va, rkey, length: self.0.payload_len as u32 }.encode_into(reth);
        }
        headers[RETH_LEN..].copy_from_slice(&imm.to_be_bytes());
        self.0.write_frame(psn, ack_req, &headers, payload, buffer)
    }
}

impl FetchAddTemplate {
    /// A template for FETCH_ADD.
    pub fn new(route: &FrameRoute, dest_qp: u32) -> Result<FetchAddTemplate> {
        FrameTemplate::new(route, Opcode::RcFetchAdd, dest_qp, 0).map(FetchAddTemplate)
    }

    /// Length of each frame.
    #[inline]
    pub fn frame_len(&self) -> usize {
        self.0.frame_len
    }

    /// Writes a frame to the start of `buffer` and returns its length. Fails if the buffer is too small.
    #[inline]
    pub fn write_frame(
        &self,
        psn: Psn,
        ack_req: bool,
        va: u64,
        rkey: u32,
        add: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let mut atomic = [0; ATOMIC_ETH_LEN];
        AtomicEth { va, rkey, swap_add: add, compare: 0 }.encode_into(&mut atomic);
        self.0.write_frame(psn, ack_req, &atomic, &[], buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ethernet::Mac;
    use crate::wire::roce::{BthFields, RoceRepr, has_valid_icrc};
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    fn routes() -> [FrameRoute; 4] {
        let plain = FrameRoute::new(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 0x11);
        let ethernet = Some((Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])));
        let ends = ["2001:db8::1", "2001:db8::2"].map(|ip| ip.parse().unwrap());
        let ipv6 = FrameRoute::from_addresses(ends[0], ends[1], 0x11).unwrap();
        let other = |plain| FrameRoute { ethernet, tos: 0x62, ttl: 3, ..plain };
        [plain, other(plain), ipv6, other(ipv6)]
    }

    #[test]
    fn refusals() {
        let route = &routes()[0];
        assert!(WriteTemplate::new(route, Transport::Uc, 1, 65_473).is_err());
        assert!(WriteTemplate::new(route, Transport::Uc, 1, usize::MAX).is_err());
        let template = WriteTemplate::new(route, Transport::Uc, 1, 16).unwrap();
        let mut buffer = [0xa5; 100];
        let error = template.write_frame(Psn::new(0), false, 0, 0, &[0; 12], &mut buffer).unwrap_err();
        assert_eq!(error.kind, WireErrorKind::Length(12));
        let error = template.write_frame(Psn::new(0), false, 0, 0, &[0; 16], &mut buffer[..75]).unwrap_err();
        assert_eq!(error.kind, WireErrorKind::BufferTooSmall { need: 76, have: 75 });
        assert_eq!(buffer, [0xa5; 100]);
    }

    proptest! {
        /// A template emits the same bytes as [`FrameRoute::write_frame`].
        #[test]
        fn same_as_the_plain_way(dest_qp in 0u32..1 << 24, psn in 0u32..1 << 24, ack_req: bool, va: u64, rkey: u32,
                                 imm: u32, add: u64, payload in proptest::collection::vec(any::<u8>(), 0..140)) {
            let psn = Psn::new(psn);
            let place = BthFields { dest_qp, psn, ack_req };
            for route in &routes() {
                let mut all: Vec<([u8; 300], Result<usize>, RoceRepr<'_>)> = Vec::new();
                for transport in [Transport::Rc, Transport::Uc] {
                    let mut buffer = [0xa5; 300];
                    let template = WriteTemplate::new(route, transport, dest_qp, payload.len()).unwrap();
                    let len = template.write_frame(psn, ack_req, va, rkey, &payload, &mut buffer);
                    prop_assert_eq!(len, Ok(template.frame_len()));
                    all.push((buffer, len, RoceRepr::write(transport, place, va, rkey, &payload, None)));
                    let mut buffer = [0xa5; 300];
                    let template = WriteImmTemplate::new(route, transport, dest_qp, payload.len()).unwrap();
                    let len = template.write_frame(psn, ack_req, va, rkey, imm, &payload, &mut buffer);
                    prop_assert_eq!(len, Ok(template.frame_len()));
                    all.push((buffer, len, RoceRepr::write(transport, place, va, rkey, &payload, Some(imm))));
                }
                let mut buffer = [0xa5; 300];
                let template = FetchAddTemplate::new(route, dest_qp).unwrap();
                let len = template.write_frame(psn, ack_req, va, rkey, add, &mut buffer);
                prop_assert_eq!(len, Ok(template.frame_len()));
                all.push((buffer, len, RoceRepr::fetch_add(place, va, rkey, add)));
                for (buffer, len, repr) in &all {
                    let mut plain = [0xa5; 300];
                    prop_assert_eq!(route.write_frame(repr, &mut plain), *len);
                    prop_assert_eq!(buffer, &plain);
                    let start = route.ethernet.map_or(0, |_| 14);
                    prop_assert!(has_valid_icrc(&buffer[start..len.unwrap()]));
                }
            }
        }
    }
}

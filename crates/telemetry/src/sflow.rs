//! sFlow version 5: samples of packets, notices of dropped packets, and counters of interfaces.
//!
//! Sources: `sflow_version_5.txt`, `sflow_drops.txt` and `sflow_transit.txt` of sflow.org, and the encoder of Host sFlow. Everything is XDR: words of
//! 4 bytes, big-endian. [`SflowDatagram::parse_payload`] reads the header, and each call of its `next_sample`
//! reads a sample, without allocating. Formats that are not listed here are skipped by their length.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use dta_proto::flow_record::{DIRECTION_EGRESS, DIRECTION_INGRESS, FlowRecord};
use dta_proto::telemetry::{InterfaceCounter, InterfaceCounts};
use dta_proto::wire::{Error, Layer, Result, WireErrorKind, saturating_u16};

use crate::flows::fill_from_packet;
use crate::int;

/// The number of an agent's own interface; in compact forms, the two bits above it say what else a word may be.
const OWN_INTERFACE: u32 = 0x3fff_ffff;
/// Kinds of interfaces, those two bits: one, a packet that was discarded, several.
const ONE_INTERFACE: u32 = 0;
const DISCARDED: u32 = 1;
/// Forwarding status of a packet that was dropped for an unknown reason (RFC 7270 4.12).
const FORWARDING_DROPPED: u8 = 128;

/// Reads words one after another.
#[derive(Clone, Debug)]
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn read_u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    fn read_u64(&mut self) -> Option<u64> {
        Some(u64::from(self.read_u32()?) << 32 | u64::from(self.read_u32()?))
    }

    /// Reads bytes, and skips the padding of their last word.
    fn read_bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let bytes = self.0.get(..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(bytes)
    }

    fn read_words<const N: usize>(&mut self) -> Option<[u32; N]> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.read_u32()?;
        }
        Some(words)
    }

    fn read_ipv6(&mut self) -> Option<Ipv6Addr> {
        self.read_bytes(16)?.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets))
    }

    /// Reads an address after its family, in the form of a column.
    fn read_address(&mut self) -> Option<Ipv6Addr> {
        match self.read_u32()? {
            0 => Some(Ipv6Addr::UNSPECIFIED),
            1 => match self.read_u32()? {
                0 => Some(Ipv6Addr::UNSPECIFIED),
                bits => Some(Ipv4Addr::from_bits(bits).to_ipv6_mapped()),
            },
            2 => self.read_ipv6(),
            _ => None,
        }
    }

    /// An item with its format and length.
    fn read_item(&mut self) -> Option<(u32, Words<'a>)> {
        let (format, len) = (self.read_u32()?, self.read_u32()?);
        Some((format, Words(self.read_bytes(len)?)))
    }
}

#[derive(Clone, Debug)]
pub struct SflowDatagram<'a> {
    /// The address by which the agent names itself; `None` = it does not know one.
    pub agent: Option<IpAddr>,
    /// The part of it that numbers its datagrams.
    pub sub_agent: u32,
    /// Its number.
    pub sequence: u32,
    /// Milliseconds since the agent's start.
    pub uptime: u32,
    samples: Words<'a>,
    left: u32,
}

/// What an agent knows about a sampled packet's way through it (`sflow_transit.txt`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SflowTransit {
    /// The egress queue.
    pub queue: Option<u32>,
    /// Nanoseconds in the device.
    pub latency: Option<u32>,
    /// Bytes in the queue when the packet arrived there.
    pub depth: Option<u32>,
}

/// What is known of a sampled or dropped packet.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// Columns that the sample fills: one packet, and what its headers and the agent's tables say.
    pub record: FlowRecord,
    /// Whether there are headers that can be read.
    pub has_flow: bool,
    /// Its way through the agent.
    pub transit: SflowTransit,
}

#[derive(Clone, Copy, Debug)]
pub enum SflowSample {
    /// A packet, and of how many it was sampled; 0 = not said.
    Packet(Sampled, u32),
    /// A packet that was dropped, and why.
    Dropped(Sampled, u32),
    Interface(SflowInterface),
    /// Anything else.
    Other,
}

/// Counters of an interface since some moment (`if_counters`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SflowInterface {
    /// Its number, the `ifIndex` of SNMP.
    pub index: u32,
    /// Bits per second, not 0; `None` = unknown.
    pub speed: Option<u64>,
    pub counts: InterfaceCounts,
}

fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::Sflow, field, offset, kind)
}

impl<'a> SflowDatagram<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// Another version, or a truncated header.
    pub fn parse_payload(payload: &'a [u8]) -> Result<SflowDatagram<'a>> {
        let truncated =
            || err("header", 0, WireErrorKind::Truncated { need: 28, have: saturating_u16(payload.len()) });
        let mut words = Words(payload);
        match words.read_u32().ok_or_else(truncated)? {
            5 => {}
            other => return Err(err("version", 0, WireErrorKind::UnknownVersion(other.min(255) as u8))),
        }
        let agent = match words.read_u32().ok_or_else(truncated)? {
            0 => None,
            1 => Some(IpAddr::from(words.read_u32().ok_or_else(truncated)?.to_be_bytes())),
            2 => {
                let address = words.read_bytes(16).and_then(|bytes| bytes.first_chunk::<16>());
                Some(IpAddr::from(*address.ok_or_else(truncated)?))
            }
            other => return Err(err("agent", 4, WireErrorKind::Protocol(other.min(0xffff) as u16))),
        };
        let mut next = || words.read_u32().ok_or_else(truncated);
        let (sub_agent, sequence, uptime, left) = (next()?, next()?, next()?, next()?);
        Ok(SflowDatagram { agent, sub_agent, sequence, uptime, samples: words, left })
    }

    /// Length of its header, given the bytes of the whole datagram.
    pub(crate) fn header_len(&self, payload: &[u8]) -> usize {
        payload.len() - self.samples.0.len()
    }

    /// Reads the next sample, and says how many bytes that took. A sample that is damaged inside is followed
    /// by the next; one whose length is wrong, by none. Anything left at the end is not a sample.
    pub(crate) fn next_sample(&mut self) -> Option<(usize, Result<SflowSample>)> {
        self.left = self.left.checked_sub(1)?;
        let before = self.samples.0.len();
        let have = saturating_u16(before);
        let truncated = err("sample", 0, WireErrorKind::Truncated { need: have.saturating_add(4), have });
        let Some((format, body)) = self.samples.read_item() else {
            self.left = 0;
            self.samples = Words(&[]);
            return Some((before, Err(truncated)));
        };
        let len = before - self.samples.0.len();
        Some((len, read_sample(format, body).ok_or(truncated)))
    }

    /// The bytes after the last sample.
    pub(crate) fn bytes_behind_samples(&self) -> &'a [u8] {
        self.samples.0
    }
}

/// An interface, as a sample names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InterfaceWord {
    kind: u32,
    number: u32,
}

impl InterfaceWord {
    fn from_compact(word: u32) -> InterfaceWord {
        InterfaceWord { kind: word >> 30, number: word & OWN_INTERFACE }
    }

    /// Its number; 0 if it is unknown, several, none, or the agent's own, which has no link.
    fn to_number(self) -> u32 {
        if self.kind == ONE_INTERFACE && self.number != OWN_INTERFACE { self.number } else { 0 }
    }
}

/// Reads a sample. `None` if it is truncated.
fn read_sample(format: u32, mut words: Words<'_>) -> Option<SflowSample> {
    // Enterprise 0: the formats of sflow.org. Even and odd differ in contents, the expanded ones have longer numbers.
    match format {
        1 | 3 => {
            let is_expanded = format == 3;
            let source = parse_sample_source(&mut words, is_expanded)?;
            let (rate, _pool, _drops) = (words.read_u32()?, words.read_u32()?, words.read_u32()?);
            // The expanded form has the kind in a word of its own.
            let mut port = || {
                let word = words.read_u32()?;
                Some(match is_expanded {
                    true => InterfaceWord { kind: word, number: words.read_u32()? },
                    false => InterfaceWord::from_compact(word),
                })
            };
            let (ingress, egress) = (port()?, port()?);
            let mut sampled = parse_sampled_packet(words)?;
            let record = &mut sampled.record;
            (record.in_if, record.out_if) = (ingress.to_number(), egress.to_number());
            if egress.kind == DISCARDED {
                record.forwarding = FORWARDING_DROPPED;
            }
            let is_at_egress = source != 0 && source == record.out_if && source != record.in_if;
            record.direction = if is_at_egress { DIRECTION_EGRESS } else { DIRECTION_INGRESS };
            Some(SflowSample::Packet(sampled, rate))
        }
        2 | 4 => {
            parse_sample_source(&mut words, format == 4)?;
            for _ in 0..words.read_u32()? {
                let (1, mut body) = words.read_item()? else { continue };
                let (index, _kind, speed) = (body.read_u32()?, body.read_u32()?, body.read_u64()?);
                let (_direction, _status) = (body.read_u32()?, body.read_u32()?);
                let speed = Some(speed).filter(|speed| !matches!(*speed, 0 | u64::MAX));
                let mut counts = InterfaceCounts::default();
                for (place, counter) in counts.iter_mut().zip(InterfaceCounter::ALL) {
                    // All ones: the agent has no such counter.
                    *place = match counter.is_64_bit() {
                        true => Some(body.read_u64()?).filter(|count| *count != u64::MAX),
                        false => Some(body.read_u32()?).filter(|count| *count != u32::MAX).map(u64::from),
                    };
                }
                return Some(SflowSample::Interface(SflowInterface { index, speed, counts }));
            }
            Some(SflowSample::Other)
        }
        5 => {
            // Always with the expanded form of the source.
            parse_sample_source(&mut words, true)?;
            let (_missed, ingress, egress, reason) =
                (words.read_u32()?, words.read_u32()?, words.read_u32()?, words.read_u32()?);
            let mut sampled = parse_sampled_packet(words)?;
            let number = |number| InterfaceWord { kind: ONE_INTERFACE, number }.to_number();
            (sampled.record.in_if, sampled.record.out_if) = (number(ingress), number(egress));
            Some(SflowSample::Dropped(sampled, reason))
        }
        _ => Some(SflowSample::Other),
    }
}

/// Skips the number of a sample, and reads which interface made it; 0 = none.
fn parse_sample_source(words: &mut Words<'_>, is_expanded: bool) -> Option<u32> {
    let _sequence = words.read_u32()?;
    let (class, number) = if is_expanded {
        (words.read_u32()?, words.read_u32()?)
    } else {
        let word = words.read_u32()?;
        (word >> 24, word & 0x00ff_ffff)
    };
    Some(if class == 0 { number } else { 0 })
}

/// The records of a sample. `None` if one is truncated.
fn parse_sampled_packet(mut words: Words<'_>) -> Option<Sampled> {
    let mut sampled =
        Sampled { record: FlowRecord::EMPTY, has_flow: false, transit: SflowTransit::default() };
    // Headers take precedence over what was decoded from them.
    let mut decoded = None;
    for _ in 0..words.read_u32()? {
        let (format, body) = words.read_item()?;
        let (record, transit) = (&mut sampled.record, &mut sampled.transit);
        match format {
            1 => sampled.has_flow |= read_headers(record, body)?,
            3 | 4 => decoded = Some((format == 4, body)),
            // A damaged record says nothing, and the others are read.
            _ => _ = read_extended(format, body, record, transit),
        }
    }
    if let Some((is_ipv6, body)) = decoded
        && !sampled.has_flow
    {
        read_decoded_headers(&mut sampled.record, is_ipv6, body)?;
        sampled.has_flow = true;
    }
    Some(sampled)
}

/// What the agent's tables say about the packet.
fn read_extended(
    format: u32,
    mut body: Words<'_>,
    record: &mut FlowRecord,
    transit: &mut SflowTransit,
) -> Option<()> {
    match format {
        1001 => {
            let [in_vlan, _, out_vlan, _] = body.read_words()?;
            (record.in_vlan, record.out_vlan) = (in_vlan as u16 & 0x0fff, out_vlan as u16 & 0x0fff);
        }
        1002 => record.next_hop = body.read_address()?,
        1003 => read_gateway(record, body)?,
        1007 => (record.nat_src, record.nat_dst) = (body.read_address()?, body.read_address()?),
        1020 => {
            let [src, dst] = body.read_words()?;
            (record.nat_src_port, record.nat_dst_port) = (src as u16, dst as u16);
        }
        // For the packet as it left, and as it arrived.
        1029 | 1030 if record.vni == 0 => record.vni = body.read_u32()?,
        1036 => transit.queue = Some(body.read_u32()?),
        1039 => transit.latency = Some(body.read_u32()?),
        1040 => transit.depth = Some(body.read_u32()?),
        _ => {}
    }
    Some(())
}

/// The packet's first bytes; `Some(false)` if these cannot be read.
fn read_headers(record: &mut FlowRecord, mut body: Words<'_>) -> Option<bool> {
    let [protocol, _frame, _stripped, len] = body.read_words()?;
    let bytes = body.read_bytes(len)?;
    let packet = match protocol {
        1 => int::packet_in_ethernet(bytes),
        11 | 12 => int::packet_in_ip(bytes),
        _ => return Some(false),
    };
    Some(match packet {
        Ok(packet) => {
            fill_from_packet(record, &packet);
            true
        }
        Err(_) => false,
    })
}

/// `sampled_ipv4` and `sampled_ipv6`: an agent's own reading of the headers.
fn read_decoded_headers(record: &mut FlowRecord, is_ipv6: bool, mut body: Words<'_>) -> Option<()> {
    let [len, protocol] = body.read_words()?;
    [record.src, record.dst] = match is_ipv6 {
        true => [body.read_ipv6()?, body.read_ipv6()?],
        false => [body.read_u32()?, body.read_u32()?].map(|bits| Ipv4Addr::from_bits(bits).to_ipv6_mapped()),
    };
    let [src_port, dst_port, tcp_flags, tos] = body.read_words()?;
    (record.packets, record.bytes, record.protocol) = (1, len.into(), protocol as u8);
    if dta_proto::key::has_ports(record.protocol) {
        (record.src_port, record.dst_port) = (src_port as u16, dst_port as u16);
    }
    (record.tcp_flags, record.dscp) = (tcp_flags as u8, tos as u8 >> 2);
    Some(())
}

/// `extended_gateway`: where the packet came from and goes to in BGP.
fn read_gateway(record: &mut FlowRecord, mut body: Words<'_>) -> Option<()> {
    body.read_address()?;
    let [own, src_as, _peer, segments] = body.read_words()?;
    record.src_as = if src_as != 0 { src_as } else { own };
    for _ in 0..segments {
        let [_kind, len] = body.read_words()?;
        let path = body.read_bytes(len.checked_mul(4)?)?;
        if let Some(last) = path.last_chunk() {
            record.dst_as = u32::from_be_bytes(*last);
        }
    }
    Some(())
}

//! sFlow version 5: samples of packets, notices of dropped packets, and counters of interfaces.
//!
//! Sources: `sflow_version_5.txt` and `sflow_drops.txt` of sflow.org, and the encoder of Host sFlow. Everything is XDR: words of
//! 4 bytes, big-endian. [`SflowDatagram::parse_payload`] reads the header; [`SflowDatagram::samples`] borrows from the payload, without
//! allocating. Formats that are not here are skipped by their length.

use core::net::IpAddr;

use dta_proto::telemetry::{InterfaceCounter, InterfaceCounts};
use dta_proto::wire::{Error, Layer, Result, WireErrorKind, saturating_u16};

use crate::int::{self, ReportedPacket};

/// The number of an agent's own interface; the two bits above it say what else a word may be.
const OWN_INTERFACE: u32 = 0x3fff_ffff;

/// Reads words, one after another.
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

    /// Bytes, and what fills their last word.
    fn read_bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let bytes = self.0.get(..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(bytes)
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
    samples: Words<'a>,
    left: u32,
}

/// What is known of a sampled or dropped packet.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    /// Interface by which it came; `None` = unknown.
    pub ingress: Option<u32>,
    /// Interface by which it left; `None` = unknown, several or none.
    pub egress: Option<u32>,
    /// Its headers.
    pub packet: Result<ReportedPacket<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub enum SflowSample<'a> {
    Packet {
        sampled: Sampled<'a>,
        /// One packet in so many was sampled; not 0.
        rate: u32,
        /// Whether it was sampled where it left, and not where it came.
        at_egress: bool,
    },
    /// A packet that was dropped, and why.
    Dropped(Sampled<'a>, u32),
    /// Counters of an interface.
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
        let (sub_agent, sequence, _uptime, left) = (next()?, next()?, next()?, next()?);
        Ok(SflowDatagram { agent, sub_agent, sequence, samples: words, left })
    }

    /// Its samples, in order. After one that is damaged inside, the next follows; after one whose length is wrong, none.
    pub fn samples(self) -> impl Iterator<Item = Result<SflowSample<'a>>> {
        let SflowDatagram { mut samples, mut left, .. } = self;
        core::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let have = saturating_u16(samples.0.len());
            let truncated = err("sample", 0, WireErrorKind::Truncated { need: have.saturating_add(4), have });
            let Some((format, body)) = samples.read_item() else {
                left = 0;
                return Some(Err(truncated));
            };
            Some(read(format, body).ok_or(truncated))
        })
    }
}

/// An interface by its number. Of several or none the two highest bits are set, and the agent's own has no link.
fn interface(word: u32) -> Option<u32> {
    (1..OWN_INTERFACE).contains(&word).then_some(word)
}

/// Reads a sample. `None` if it is truncated.
fn read(format: u32, mut words: Words<'_>) -> Option<SflowSample<'_>> {
    // Enterprise 0: the formats of sflow.org. Even and odd differ in contents, the expanded ones have longer numbers.
    match format {
        1 | 3 => {
            let expanded = format == 3;
            let source = parse_sample_source(&mut words, expanded)?;
            let (rate, _pool, _drops) = (words.read_u32()?, words.read_u32()?, words.read_u32()?);
            // The expanded form has the two highest bits in a word of their own.
            let mut port = || {
                let kind = if expanded { words.read_u32()? } else { 0 };
                let word = words.read_u32()?;
                Some(interface(word).filter(|_| kind == 0))
            };
            let (ingress, egress) = (port()?, port()?);
            let at_egress = source.is_some() && source == egress && source != ingress;
            let sampled = Sampled { ingress, egress, packet: parse_sampled_packet(words)? };
            Some(SflowSample::Packet { sampled, rate: rate.max(1), at_egress })
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
                    // All ones: it has no such counter.
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
            let (ingress, egress) = (interface(ingress), interface(egress));
            Some(SflowSample::Dropped(
                Sampled { ingress, egress, packet: parse_sampled_packet(words)? },
                reason,
            ))
        }
        _ => Some(SflowSample::Other),
    }
}

/// Skips the number of a sample, and reads who made it: the inner option is `None` if it is not an interface.
fn parse_sample_source(words: &mut Words<'_>, expanded: bool) -> Option<Option<u32>> {
    let _sequence = words.read_u32()?;
    let (class, index) = if expanded {
        (words.read_u32()?, words.read_u32()?)
    } else {
        let word = words.read_u32()?;
        (word >> 24, word & 0x00ff_ffff)
    };
    Some(interface(index).filter(|_| class == 0))
}

/// The packet's headers among the records of a sample. `None` if a record is truncated.
fn parse_sampled_packet(mut words: Words<'_>) -> Option<Result<ReportedPacket<'_>>> {
    let mut packet = Err(err("headers", 0, WireErrorKind::Truncated { need: 1, have: 0 }));
    for _ in 0..words.read_u32()? {
        let (1, mut body) = words.read_item()? else { continue };
        let (protocol, _frame, _stripped, len) =
            (body.read_u32()?, body.read_u32()?, body.read_u32()?, body.read_u32()?);
        let bytes = body.read_bytes(len)?;
        packet = match protocol {
            1 => int::packet_in_ethernet(bytes),
            11 | 12 => int::packet_in_ip(bytes),
            other => Err(err("protocol", 0, WireErrorKind::Protocol(other.min(0xffff) as u16))),
        };
    }
    Some(packet)
}

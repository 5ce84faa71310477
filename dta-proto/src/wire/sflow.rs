//! sFlow version 5: samples of packets, notices of dropped packets, and counters of interfaces.
//!
//! Sources: `sflow_version_5.txt` and `sflow_drops.txt` of sflow.org, and the encoder of Host sFlow. Everything is XDR: words of
//! 4 bytes, big-endian. [`Datagram::parse`] reads the header; [`Datagram::samples`] borrows from the payload, without
//! allocating. Formats that are not here are skipped by their length.

use core::net::IpAddr;

use super::error::len16;
use super::int::{self, Packet};
use super::{Error, Kind, Layer, Result};
use crate::telemetry::{InterfaceCounter, InterfaceCounts};

/// The number of an agent's own interface; the two bits above it say what else a word may be.
const OWN_INTERFACE: u32 = 0x3fff_ffff;

/// Reads words, one after another.
#[derive(Clone, Debug)]
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*word))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from(self.word()?) << 32 | u64::from(self.word()?))
    }

    /// Bytes, and what fills their last word.
    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let len = usize::try_from(len).ok()?;
        let bytes = self.0.get(..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some(bytes)
    }

    /// An item with its format and length.
    fn item(&mut self) -> Option<(u32, Words<'a>)> {
        let (format, len) = (self.word()?, self.word()?);
        Some((format, Words(self.bytes(len)?)))
    }
}

/// A datagram.
#[derive(Clone, Debug)]
pub struct Datagram<'a> {
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
    pub packet: Result<Packet<'a>>,
}

/// A sample.
#[derive(Clone, Copy, Debug)]
pub enum Sample<'a> {
    /// A packet.
    Packet {
        /// The packet.
        sampled: Sampled<'a>,
        /// One packet in so many was sampled; not 0.
        rate: u32,
        /// Whether it was sampled where it left, and not where it came.
        at_egress: bool,
    },
    /// A packet that was dropped, and why.
    Dropped(Sampled<'a>, u32),
    /// Counters of an interface.
    Interface(Interface),
    /// Anything else.
    Other,
}

/// Counters of an interface since some moment (`if_counters`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its number, the `ifIndex` of SNMP.
    pub index: u32,
    /// Bits per second, not 0; `None` = unknown.
    pub speed: Option<u64>,
    /// What it counted.
    pub counts: InterfaceCounts,
}

fn err(field: &'static str, offset: u16, kind: Kind) -> Error {
    Error::new(Layer::Sflow, field, offset, kind)
}

impl<'a> Datagram<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// Another version, or a truncated header.
    pub fn parse(payload: &'a [u8]) -> Result<Datagram<'a>> {
        let truncated = || err("header", 0, Kind::Truncated { need: 28, have: len16(payload.len()) });
        let mut words = Words(payload);
        match words.word().ok_or_else(truncated)? {
            5 => {}
            other => return Err(err("version", 0, Kind::UnknownVersion(other.min(255) as u8))),
        }
        let agent = match words.word().ok_or_else(truncated)? {
            0 => None,
            1 => Some(IpAddr::from(words.word().ok_or_else(truncated)?.to_be_bytes())),
            2 => {
                let address = words.bytes(16).and_then(|bytes| bytes.first_chunk::<16>());
                Some(IpAddr::from(*address.ok_or_else(truncated)?))
            }
            other => return Err(err("agent", 4, Kind::Protocol(other.min(0xffff) as u16))),
        };
        let mut next = || words.word().ok_or_else(truncated);
        let (sub_agent, sequence, _uptime, left) = (next()?, next()?, next()?, next()?);
        Ok(Datagram { agent, sub_agent, sequence, samples: words, left })
    }

    /// Its samples, in order. After one that is damaged inside, the next follows; after one whose length is wrong, none.
    pub fn samples(self) -> impl Iterator<Item = Result<Sample<'a>>> {
        let Datagram { mut samples, mut left, .. } = self;
        core::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let have = len16(samples.0.len());
            let truncated = err("sample", 0, Kind::Truncated { need: have.saturating_add(4), have });
            let Some((format, body)) = samples.item() else {
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
fn read(format: u32, mut words: Words<'_>) -> Option<Sample<'_>> {
    // Enterprise 0: the formats of sflow.org. Even and odd differ in contents, the expanded ones have longer numbers.
    match format {
        1 | 3 => {
            let expanded = format == 3;
            let source = source(&mut words, expanded)?;
            let (rate, _pool, _drops) = (words.word()?, words.word()?, words.word()?);
            // The expanded form has the two highest bits in a word of their own.
            let mut port = || {
                let kind = if expanded { words.word()? } else { 0 };
                let word = words.word()?;
                Some(interface(word).filter(|_| kind == 0))
            };
            let (ingress, egress) = (port()?, port()?);
            let at_egress = source.is_some() && source == egress && source != ingress;
            let sampled = Sampled { ingress, egress, packet: headers(words)? };
            Some(Sample::Packet { sampled, rate: rate.max(1), at_egress })
        }
        2 | 4 => {
            source(&mut words, format == 4)?;
            for _ in 0..words.word()? {
                let (1, mut body) = words.item()? else { continue };
                let (index, _kind, speed) = (body.word()?, body.word()?, body.long()?);
                let (_direction, _status) = (body.word()?, body.word()?);
                let speed = Some(speed).filter(|speed| !matches!(*speed, 0 | u64::MAX));
                let mut counts = InterfaceCounts::default();
                for (place, counter) in counts.iter_mut().zip(InterfaceCounter::ALL) {
                    // All ones: it has no such counter.
                    *place = match counter.is_long() {
                        true => Some(body.long()?).filter(|count| *count != u64::MAX),
                        false => Some(body.word()?).filter(|count| *count != u32::MAX).map(u64::from),
                    };
                }
                return Some(Sample::Interface(Interface { index, speed, counts }));
            }
            Some(Sample::Other)
        }
        5 => {
            // Always with the expanded form of the source.
            source(&mut words, true)?;
            let (_missed, ingress, egress, reason) =
                (words.word()?, words.word()?, words.word()?, words.word()?);
            let (ingress, egress) = (interface(ingress), interface(egress));
            Some(Sample::Dropped(Sampled { ingress, egress, packet: headers(words)? }, reason))
        }
        _ => Some(Sample::Other),
    }
}

/// Skips the number of a sample, and reads who made it: the inner option is `None` if it is not an interface.
fn source(words: &mut Words<'_>, expanded: bool) -> Option<Option<u32>> {
    let _sequence = words.word()?;
    let (class, index) = if expanded {
        (words.word()?, words.word()?)
    } else {
        let word = words.word()?;
        (word >> 24, word & 0x00ff_ffff)
    };
    Some(interface(index).filter(|_| class == 0))
}

/// The packet's headers among the records of a sample. `None` if a record is truncated.
fn headers(mut words: Words<'_>) -> Option<Result<Packet<'_>>> {
    let mut packet = Err(err("headers", 0, Kind::Truncated { need: 1, have: 0 }));
    for _ in 0..words.word()? {
        let (1, mut body) = words.item()? else { continue };
        let (protocol, _frame, _stripped, len) = (body.word()?, body.word()?, body.word()?, body.word()?);
        let bytes = body.bytes(len)?;
        packet = match protocol {
            1 => int::packet_in_ethernet(bytes),
            11 | 12 => int::packet_in_ip(bytes),
            other => Err(err("protocol", 0, Kind::Protocol(other.min(0xffff) as u16))),
        };
    }
    Some(packet)
}

//! Parse and emit errors, with their position.

use core::fmt;

/// The result of parsing or emitting.
pub type Result<T> = core::result::Result<T, Error>;

/// The layer, the field with its offset, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    /// The format.
    pub layer: Layer,
    /// The field, by its name in `docs/wire-format.md`.
    pub field: &'static str,
    /// Offset of the field in the layer.
    pub offset: u16,
    /// The error.
    pub kind: WireErrorKind,
}

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// A DTA report of an unknown version.
    Dta,
    /// A DTA report, version 0.
    DtaV0,
    /// A DTA report, version 1.
    DtaV1,
    /// A DTA NACK of either version.
    Nack,
    /// Ethernet II.
    Ethernet,
    /// ARP.
    Arp,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Neighbour discovery.
    Ndp,
    /// UDP.
    Udp,
    /// InfiniBand transport headers, from the BTH on.
    Roce,
    /// A Telemetry Report of INT.
    TelemetryReport,
    /// INT in a packet, from its shim.
    Int,
    /// The packet in a Telemetry Report or an sFlow sample.
    Reported,
    /// An sFlow datagram.
    Sflow,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WireErrorKind {
    /// The bytes end too early.
    Truncated {
        /// Bytes that the layer needs, counted from its start.
        need: u16,
        /// Bytes available.
        have: u16,
    },
    /// Bytes after the end of the format.
    TooLong {
        /// Bytes that the layer takes, counted from its start.
        most: u16,
        /// Bytes present.
        have: u16,
    },
    /// An unsupported version.
    UnknownVersion(u8),
    /// No operation with this number (in this version).
    UnknownOpcode(u8),
    /// A valid operation that DTA does not use (SEND and its kin).
    UnsupportedOpcode(u8),
    /// A value that is not 4 to 60 bytes, or not a multiple of 4; in version 0, not the only valid length.
    ValueLength(u16),
    /// A hop beyond 13 (version 1), or outside 1 to 14 (version 0).
    Hop(u8),
    /// A path length that is neither 0 (unknown) nor above the hop and at most 14.
    PathLength(u8),
    /// Cells of other than 1 to 4 whole rows; the number is their length in bytes.
    Rows(u16),
    /// A NACK without its flag bit, or for no sequences.
    NotANack,
    /// Two redundant fields that differ.
    Contradiction,
    /// A wrong checksum, as computed over the received bytes.
    Checksum,
    /// An impossible header length or length field.
    Length(u16),
    /// A fragment of an IPv4 packet.
    Fragment,
    /// IPv4 options, which RoCEv2 frames here do not carry.
    Options,
    /// A protocol other than the expected one (EtherType, IP protocol or port).
    Protocol(u16),
    /// A number that the protocol reserves.
    Reserved(u8),
    /// (Emitting) the buffer is too short.
    BufferTooSmall {
        /// Bytes needed.
        need: u16,
        /// Bytes available.
        have: u16,
    },
    /// (Emitting) this version cannot express it.
    NotInVersion,
}

impl Error {
    /// Builds an error.
    pub const fn new(layer: Layer, field: &'static str, offset: u16, kind: WireErrorKind) -> Self {
        Error { layer, field, offset, kind }
    }
}

/// A length in errors: more than 16 bits shows as 65535.
#[inline]
pub const fn saturating_u16(n: usize) -> u16 {
    if n > u16::MAX as usize { u16::MAX } else { n as u16 }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Dta => "DTA",
            Layer::DtaV0 => "DTA version 0",
            Layer::DtaV1 => "DTA version 1",
            Layer::Nack => "DTA NACK",
            Layer::Ethernet => "Ethernet",
            Layer::Arp => "ARP",
            Layer::Ipv4 => "IPv4",
            Layer::Ipv6 => "IPv6",
            Layer::Ndp => "neighbour discovery",
            Layer::Udp => "UDP",
            Layer::Roce => "RoCEv2",
            Layer::TelemetryReport => "Telemetry Report",
            Layer::Int => "INT",
            Layer::Reported => "packet in a report",
            Layer::Sflow => "sFlow",
        })
    }
}

impl fmt::Display for WireErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            WireErrorKind::Truncated { need, have } => write!(f, "needs {need} bytes, has {have}"),
            WireErrorKind::TooLong { most, have } => write!(f, "ends at {most} bytes, has {have}"),
            WireErrorKind::UnknownVersion(v) => write!(f, "unknown version {v}"),
            WireErrorKind::UnknownOpcode(op) => write!(f, "unknown opcode {op:#04x}"),
            WireErrorKind::UnsupportedOpcode(op) => write!(f, "unsupported opcode {op:#04x}"),
            WireErrorKind::ValueLength(n) => write!(f, "a value of {n} bytes"),
            WireErrorKind::Hop(h) => write!(f, "hop {h} out of range"),
            WireErrorKind::PathLength(n) => write!(f, "path length {n} out of range or not beyond the hop"),
            WireErrorKind::Rows(n) => write!(f, "{n} bytes are not 1 to 4 cells"),
            WireErrorKind::NotANack => f.write_str("not a NACK"),
            WireErrorKind::Contradiction => f.write_str("contradicts another field"),
            WireErrorKind::Checksum => f.write_str("does not match"),
            WireErrorKind::Length(n) => write!(f, "impossible length {n}"),
            WireErrorKind::Fragment => f.write_str("a fragment"),
            WireErrorKind::Options => f.write_str("options are not accepted here"),
            WireErrorKind::Protocol(p) => write!(f, "unexpected protocol {p:#06x}"),
            WireErrorKind::Reserved(b) => write!(f, "reserved number {b:#04x}"),
            WireErrorKind::BufferTooSmall { need, have } => {
                write!(f, "{need} bytes do not fit a buffer of {have}")
            }
            WireErrorKind::NotInVersion => f.write_str("cannot be expressed in this version"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} at offset {}: {}", self.layer, self.field, self.offset, self.kind)
    }
}

impl core::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_field_and_offset() {
        let e = Error::new(Layer::DtaV1, "value", 28, WireErrorKind::ValueLength(61));
        assert_eq!(e.to_string(), "DTA version 1: value at offset 28: a value of 61 bytes");
    }
}

//! What was wrong with some bytes, and where.

use core::fmt;

/// The result of parsing or emitting.
pub type Result<T> = core::result::Result<T, Error>;

/// Which layer, which field at which offset, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Error {
    /// The format at fault.
    pub layer: Layer,
    /// The field at fault, as `docs/wire-format.md` calls it.
    pub field: &'static str,
    /// Bytes from the first byte of the layer to the field.
    pub offset: u16,
    /// What is wrong.
    pub kind: Kind,
}

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layer {
    /// A DTA report of a version not known yet.
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
    /// UDP.
    Udp,
    /// InfiniBand transport headers, from the BTH on.
    Roce,
    /// A Telemetry Report of INT.
    TelemetryReport,
    /// INT in a packet, from its shim on.
    Int,
    /// The packet that a Telemetry Report is about.
    Reported,
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The bytes end before the format does.
    Truncated {
        /// Bytes that the layer needs, counted from its start.
        need: u16,
        /// Bytes that are there.
        have: u16,
    },
    /// Bytes follow where the format has ended.
    TooLong {
        /// Bytes that the layer takes, counted from its start.
        most: u16,
        /// Bytes that are there.
        have: u16,
    },
    /// A version that this side does not speak.
    UnknownVersion(u8),
    /// No operation has this number (in this version).
    UnknownOpcode(u8),
    /// The operation exists, but DTA has no use for it (SEND and its kin).
    UnsupportedOpcode(u8),
    /// A value that is not 4 to 60 bytes, or not a multiple of 4; or not the one length that version 0 has.
    ValueLength(u16),
    /// A hop beyond 13 (version 1), or outside 1 to 14 (version 0).
    Hop(u8),
    /// A path length that is not 0 (unknown) and either beyond 14 or not beyond the hop.
    PathLength(u8),
    /// Cells for something else than 1 to 4 rows; here the bytes of the cells.
    Rows(u16),
    /// A NACK without its bit, or for no sequence at all.
    NotANack,
    /// Two fields that say the same thing say different things.
    Contradiction,
    /// A checksum does not match: as computed from what arrived.
    Checksum,
    /// A header length or length field that is impossible.
    Length(u16),
    /// A fragment of an IPv4 packet.
    Fragment,
    /// IPv4 options, which RoCEv2 frames do not carry here.
    Options,
    /// Another protocol than the one expected here (EtherType, IP protocol or port).
    Protocol(u16),
    /// A number that the protocol reserves.
    Reserved(u8),
    /// (Emitting) the buffer is too short.
    BufferTooSmall {
        /// Bytes needed.
        need: u16,
        /// Bytes there.
        have: u16,
    },
    /// (Emitting) this version has no way to say this.
    NotInVersion,
}

impl Error {
    /// Puts an error together.
    pub const fn new(layer: Layer, field: &'static str, offset: u16, kind: Kind) -> Self {
        Error { layer, field, offset, kind }
    }
}

/// A length as errors carry it: what does not fit in 16 bits shows as 65535.
pub(crate) const fn len16(n: usize) -> u16 {
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
            Layer::Udp => "UDP",
            Layer::Roce => "RoCEv2",
            Layer::TelemetryReport => "Telemetry Report",
            Layer::Int => "INT",
            Layer::Reported => "packet in a report",
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::Truncated { need, have } => write!(f, "needs {need} bytes, has {have}"),
            Kind::TooLong { most, have } => write!(f, "ends at {most} bytes, has {have}"),
            Kind::UnknownVersion(v) => write!(f, "unknown version {v}"),
            Kind::UnknownOpcode(op) => write!(f, "unknown opcode {op:#04x}"),
            Kind::UnsupportedOpcode(op) => write!(f, "unsupported opcode {op:#04x}"),
            Kind::ValueLength(n) => write!(f, "a value of {n} bytes"),
            Kind::Hop(h) => write!(f, "hop {h} out of range"),
            Kind::PathLength(n) => write!(f, "path length {n} out of range or not beyond the hop"),
            Kind::Rows(n) => write!(f, "{n} bytes are not 1 to 4 cells"),
            Kind::NotANack => f.write_str("not a NACK"),
            Kind::Contradiction => f.write_str("contradicts another field"),
            Kind::Checksum => f.write_str("does not match"),
            Kind::Length(n) => write!(f, "impossible length {n}"),
            Kind::Fragment => f.write_str("a fragment"),
            Kind::Options => f.write_str("options are not accepted here"),
            Kind::Protocol(p) => write!(f, "protocol {p:#06x} is not the one expected here"),
            Kind::Reserved(b) => write!(f, "reserved number {b:#04x}"),
            Kind::BufferTooSmall { need, have } => write!(f, "{need} bytes do not fit a buffer of {have}"),
            Kind::NotInVersion => f.write_str("cannot be said in this version"),
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
        let e = Error::new(Layer::DtaV1, "value", 28, Kind::ValueLength(61));
        assert_eq!(e.to_string(), "DTA version 1: value at offset 28: a value of 61 bytes");
    }
}

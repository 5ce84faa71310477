//! In-band Network Telemetry (INT): the Telemetry Reports that switches send, and the INT in the reported
//! packets.
//!
//! Sources: Telemetry Report v0.5, v1.0, v2.0 and INT v0.5, v1.0, v2.1 of the P4.org applications group. All
//! integers are big-endian. [`parse_reports`] parses the payload of one UDP datagram into reports that borrow from
//! it, without allocating. No input makes an accessor panic.
//!
//! | file | format |
//! |---|---|
//! | `report_v05.rs`, `report_v10.rs`, `report_v20.rs` | a Telemetry Report of that version |
//! | `int_v05.rs`, `int_v10.rs`, `int_v21.rs` | INT of that version after TCP or UDP |
//! | `packet.rs` | the packet in a report: flow, tunnel |
//! | `dialect.rs` | differences between senders |
//! | `metadata.rs`, `stack.rs` | metadata of a node; the stack of a packet |
//! | `template.rs` | what reports that are read in the same way have in common |
//! | `emit.rs` | encoders: for tests, benchmarks and testbeds (feature `emit`) |

mod dialect;
#[cfg(feature = "emit")]
pub mod emit;
mod int_v05;
mod int_v10;
mod int_v21;
mod metadata;
mod packet;
mod report_v05;
mod report_v10;
mod report_v20;
mod stack;
mod template;
mod tunnel;

pub use dialect::{Dialect, DialectError, IntSettings, Mark};
pub use metadata::{Fill, Metadata, Time};
pub use packet::{LinkTags, PacketHeaders, ReportedPacket, packet_in_ethernet, packet_in_ip};
pub(crate) use report_v20::IOAM;
pub use stack::Stack;
pub(crate) use template::{SlotName, TEMPLATE_WORDS, Template};
pub use tunnel::{Tunnel, TunnelKind};

use dta_proto::wire::{Error, Layer, Result, WireErrorKind, saturating_u16};

use self::dialect::Form;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportVersion {
    V05,
    V10,
    V20,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntVersion {
    V05,
    V10,
    /// v2.0 and v2.1, whose headers are the same.
    V21,
}

/// Who numbered a datagram, and the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramSource {
    /// Number of the switch; `None` in v0.5 without a drop or switch-local header, which does not carry it.
    pub switch: Option<u32>,
    /// The separately numbering part of the switch, 6 bits.
    pub hardware: u8,
    /// Number of the datagram, modulo 2^`sequence_bits`.
    pub sequence: u32,
    /// 32; 22 in v2.0.
    pub sequence_bits: u8,
}

/// The reasons for a report. Several can be set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    pub dropped: bool,
    pub congested: bool,
    pub tracked: bool,
    /// Sent by a node on the path, with the packet's stack so far (v2.0).
    pub intermediate: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct IntReport<'a> {
    pub version: ReportVersion,
    /// Number of the sending switch, if present.
    pub switch: Option<u32>,
    /// The reasons for the report.
    pub flags: Flags,
    pub local: Metadata<'a>,
    /// The packet, or why it cannot be parsed; the rest is valid either way.
    pub packet: Result<ReportedPacket<'a>>,
}

impl<'a> IntReport<'a> {
    /// An empty report, to be overwritten.
    pub const EMPTY: IntReport<'static> = IntReport {
        version: ReportVersion::V10,
        switch: None,
        flags: Flags { dropped: false, congested: false, tracked: false, intermediate: false },
        local: Metadata::NONE,
        packet: packet::NOT_READ,
    };

    pub fn packet_stack(&self) -> Option<&Stack<'a>> {
        self.packet.as_ref().ok().and_then(|packet| packet.stack.as_ref())
    }

    /// Whether the packet carries INT-MX ([`Stack::is_int_mx`]).
    #[inline]
    pub fn is_int_mx(&self) -> bool {
        self.packet_stack().is_some_and(Stack::is_int_mx)
    }

    /// Whether the sending switch is a hop of the report: it sent more than an arrival time, or INT-MX asked
    /// it to report.
    #[inline]
    pub fn is_hop(&self) -> bool {
        self.local.is_hop() || self.is_int_mx()
    }

    /// All hops in the report, newest first: the sending switch if it is one ([`IntReport::is_hop`]), then those
    /// of the packet. Each with its switch's number.
    #[inline]
    pub fn hops_with_switches(&self) -> impl Iterator<Item = (Option<u32>, Metadata<'a>)> + use<'a> {
        let own = self.is_hop().then_some((self.switch, self.local));
        let stack =
            self.packet_stack().map(|stack| stack.hops_newest_first().map(|hop| (hop.switch_number(), hop)));
        own.into_iter().chain(stack.into_iter().flatten())
    }
}

/// The reports of one datagram, in order.
#[derive(Clone, Debug)]
pub struct Reports<'a> {
    source: DatagramSource,
    form: Form,
    next: RemainingReports<'a>,
}

#[derive(Clone, Debug)]
enum RemainingReports<'a> {
    /// A datagram with a valid header and one report.
    One(&'a [u8]),
    /// The reports after a group header.
    Group(&'a [u8]),
}

impl<'a> Reports<'a> {
    /// Who numbered the datagram.
    pub fn datagram_source(&self) -> DatagramSource {
        self.source
    }

    /// Parses the next report into its final place, because moving a report takes a third as long as parsing
    /// it. `None` after the last one. After an error the place's contents are unspecified.
    #[inline(always)] // on the path of every report
    pub fn read(&mut self, into: &mut IntReport<'a>) -> Option<Result<()>> {
        match &mut self.next {
            RemainingReports::One([]) | RemainingReports::Group([]) => None,
            RemainingReports::One(bytes) => {
                let read = match self.form.version {
                    ReportVersion::V05 => report_v05::read(bytes, &self.form, into),
                    _ => report_v10::read(bytes, &self.form, into),
                };
                *bytes = &[];
                Some(read)
            }
            RemainingReports::Group(bytes) => {
                let (report, behind) = report_v20::next(bytes, self.source.switch, &self.form);
                *bytes = behind;
                Some(report.map(|report| *into = report))
            }
        }
    }
}

impl<'a> Iterator for Reports<'a> {
    type Item = Result<IntReport<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let mut report = IntReport::EMPTY;
        let read = self.read(&mut report)?;
        Some(read.map(|()| report))
    }
}

/// Parses the payload of a datagram.
///
/// # Errors
/// An unknown version, or a truncated header.
#[inline]
pub fn parse_reports<'a>(payload: &'a [u8], settings: &IntSettings) -> Result<Reports<'a>> {
    let Some(first) = payload.first_chunk::<2>() else {
        return Err(err(
            "header",
            0,
            WireErrorKind::Truncated { need: 2, have: saturating_u16(payload.len()) },
        ));
    };
    let Some(form) = settings.resolve_form(*first) else {
        return Err(err("version", 0, WireErrorKind::UnknownVersion(first[0] >> 4)));
    };
    let (source, next) = match form.version {
        ReportVersion::V05 => (report_v05::parse_source(payload)?, RemainingReports::One(payload)),
        ReportVersion::V10 => (report_v10::parse_source(payload)?, RemainingReports::One(payload)),
        ReportVersion::V20 => {
            let (source, group) = report_v20::parse_group(payload)?;
            (source, RemainingReports::Group(group))
        }
    };
    Ok(Reports { source, form, next })
}

const fn err(field: &'static str, offset: u16, kind: WireErrorKind) -> Error {
    Error::new(Layer::TelemetryReport, field, offset, kind)
}

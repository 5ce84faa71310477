//! Properties of the decoders on any bytes.
//!
//! Each property is one function from bytes, a [`Target`]. Two drive it: `tests/seeded/`, a loop
//! over seeds and their mutations for a few seconds, in every test run; and libFuzzer
//! (`libfuzzer/`), for as long as somebody likes.

#![forbid(unsafe_code)]

mod dta;
mod flows;
mod int;
mod key;
mod packet;
mod roce;
mod seeds;

#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name here and as a program of libFuzzer.
    pub name: &'static str,
    /// Panics where the property does not hold; gives whether the decoder took the bytes.
    pub check: fn(&[u8]) -> bool,
    /// Bytes to begin with, made from the project's vectors: many of them are taken.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Reports and NACKs: any bytes are a value or an error, and a value's bytes are that value again.
pub const DTA: Target = Target { name: "dta", check: dta::check, seeds: seeds::reports };

/// Transport packets of RoCEv2, without the checksums that would keep a fuzzer out: what parses is
/// emitted as it was.
pub const ROCE: Target = Target { name: "roce", check: roce::check, seeds: seeds::transport };

/// Ethernet, IPv4, UDP and the whole way to a checked RoCEv2 packet.
pub const PACKET: Target = Target { name: "packet", check: packet::check, seeds: seeds::frames };

/// Keys and flows as people write them: any text is a key or an error, and what is shown reads the
/// same again.
pub const KEY: Target = Target { name: "key", check: key::check, seeds: seeds::keys };

/// Telemetry Reports of INT, of every dialect: any bytes are reports or errors, and no accessor panics.
pub const INT: Target = Target { name: "int", check: int::check, seeds: seeds::int_reports };

/// Flow exports of one exporter, one datagram after another: any bytes are records or reasons, and memory is bounded.
pub const FLOWS: Target = Target { name: "flows", check: flows::check, seeds: flows::seeds };

pub const TARGETS: [Target; 6] = [DTA, ROCE, PACKET, KEY, INT, FLOWS];

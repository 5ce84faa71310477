//! The packet suite of the P4 translator.
//!
//! [`generate`] makes a program with stores of every shape, and reports for them. A data plane makes an
//! [`DataPlaneOutcome`] of them. That of the software engine in reference mode ([`run_software`]) and that of a switch are to
//! be equal, byte for byte. What a switch made is kept in a [`capture`], so that the software is held to it where
//! there is no switch. Tests of several crates take these files by `#[path]`.
#![allow(dead_code, reason = "not every test that takes this module runs a switch")]

pub(crate) mod capture;
pub(crate) mod captured;
pub(crate) mod generate;

use std::collections::BTreeMap;

use dta_dataplane::reference::Reference;
use dta_proto::program::Program;
use dta_proto::wire::datagram::{self, UdpDatagram};

/// What a data plane made of reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataPlaneOutcome {
    /// Frames from their IPv4 header on, by the queue pair that they go to (IPv4 destination, number), in the order of
    /// their departure. Between queue pairs the order is free: they may leave by several ports.
    pub(crate) frames: BTreeMap<(u32, u32), Vec<Vec<u8>>>,
    /// NACK datagrams from their IPv4 header on, in order.
    pub(crate) nacks: Vec<Vec<u8>>,
}

impl DataPlaneOutcome {
    pub(crate) fn add_frame(&mut self, frame: &[u8]) -> Result<(), String> {
        let number = |at: std::ops::Range<usize>| {
            let bytes = frame.get(at).ok_or_else(|| format!("a frame of {} bytes", frame.len()))?;
            Ok::<u32, String>(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
        };
        let pair = (number(16..20)?, number(33..36)?);
        self.frames.entry(pair).or_default().push(frame.to_vec());
        Ok(())
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.frames.values().map(Vec::len).sum()
    }

    /// Where this and another outcome differ first, in words; `None` where they are equal.
    pub(crate) fn difference(&self, other: &DataPlaneOutcome, names: [&str; 2]) -> Option<String> {
        let hex = |bytes: Option<&Vec<u8>>| match bytes {
            Some(bytes) => dta_proto::to_hex_digits(bytes),
            None => "nothing".to_owned(),
        };
        let first = |what: &str, ours: &[Vec<u8>], theirs: &[Vec<u8>]| {
            let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
            Some(format!(
                "{what} {at} of {} and {}:\n{:>10} {}\n{:>10} {}",
                ours.len(),
                theirs.len(),
                names[0],
                hex(ours.get(at)),
                names[1],
                hex(theirs.get(at))
            ))
        };
        let pairs = self.frames.keys().chain(other.frames.keys());
        let none = Vec::new();
        let of = |outcome: &DataPlaneOutcome, pair| outcome.frames.get(pair).unwrap_or(&none).clone();
        pairs
            .into_iter()
            .find_map(|pair| {
                first(&format!("queue pair {:#x}, frame", pair.1), &of(self, pair), &of(other, pair))
            })
            .or_else(|| first("NACK", &self.nacks, &other.nacks))
    }
}

/// What the software engine made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Software {
    pub(crate) made: DataPlaneOutcome,
    /// When it was flushed after them.
    pub(crate) flushed: DataPlaneOutcome,
    /// What it had counted before it was flushed.
    pub(crate) counters: Vec<(String, u64)>,
}

/// Lets the software engine in reference mode take packets.
pub(crate) fn run_software(program: &Program, packets: &[Vec<u8>]) -> Result<Software, String> {
    let mut engine =
        Reference::new(program, generate::POSTCARD_ROWS as usize).map_err(|error| error.to_string())?;
    let (mut made, mut flushed) = (DataPlaneOutcome::default(), DataPlaneOutcome::default());
    for packet in packets {
        let report = engine.process_packet(packet);
        for frame in &report.frames {
            made.add_frame(frame)?;
        }
        for payload in &report.nacks {
            let datagram = UdpDatagram::parse_packet(packet).map_err(|error| error.to_string())?;
            let header = datagram::encode_header(datagram.destination(), datagram.source(), payload.len());
            made.nacks.push([&header[..], payload].concat());
        }
    }
    let counters = engine.engine_counters();
    if let Some(wrong) = counters.find_imbalance() {
        return Err(wrong);
    }
    let named = counters.named_counters();
    for frame in engine.flush_held_reports() {
        flushed.add_frame(&frame)?;
    }
    Ok(Software { made, flushed, counters: named })
}

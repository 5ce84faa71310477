//! What the parser of an assembly makes of a packet: which container gets what, and where the payload begins.
//!
//! Checksums are not computed, so none is wrong. Counters are not counted: no state that compares one can be entered. There are no
//! value sets.

use std::collections::{BTreeMap, BTreeSet};

use super::{Block, extraction, parse_pairs, parse_pattern, parse_range};

#[derive(Debug)]
pub(crate) struct Parser {
    start: String,
    /// Containers that several writes add bits to. Others have what was written last.
    added_to: BTreeSet<String>,
    states: BTreeMap<String, ParserState>,
}

#[derive(Debug)]
struct ParserState {
    /// The registers that are compared, the one with the lowest bits last.
    compared: Vec<String>,
    /// The first that fits is taken.
    rows: Vec<ParserRow>,
}

/// What is done for a value of the registers.
#[derive(Debug)]
struct ParserRow {
    value: u64,
    mask: u64,
    /// First and last byte, and the container that gets them.
    extracts: Vec<(usize, usize, String)>,
    constants: Vec<(String, u32)>,
    /// Registers for states behind this one, with their first and last byte.
    loads: Vec<(String, usize, usize)>,
    shift: usize,
    next: String,
}

/// A packet behind the parser.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) containers: BTreeMap<String, u32>,
    /// The first byte that is no header.
    pub(crate) payload: usize,
}

/// A packet as the chip hands it to the parser of ingress: the port that it came in at, and the rest of 16 bytes, first.
pub(crate) fn ingress_packet(port: u16, frame: &[u8]) -> Vec<u8> {
    let mut packet = port.to_be_bytes().to_vec();
    packet.resize(16, 0);
    packet.extend(frame);
    packet
}

/// The bits of a match register.
fn register_width(register: &str) -> usize {
    match register {
        "half" => 16,
        "byte0" | "byte1" => 8,
        _ => panic!("how wide is {register}?"),
    }
}

fn strip_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

impl ParserRow {
    fn from_block(block: &Block) -> ParserRow {
        let (value, mask) = match block.line.trim_end_matches(':') {
            "*" => (0, 0),
            text => parse_pattern(text).unwrap_or_else(|| panic!("what is {text}?")),
        };
        let (mut extracts, mut constants, mut loads) = (Vec::new(), Vec::new(), Vec::new());
        let (mut shift, mut next) = (0, "end".to_owned());
        for part in &block.blocks {
            if let Some((container, _)) = extraction(&part.line) {
                let (first, last) = parse_range(part.line.split(':').next().unwrap());
                extracts.push((first, last, container.to_owned()));
                continue;
            }
            let (name, what) =
                strip_comment(&part.line).split_once(':').unwrap_or_else(|| panic!("{}", part.line));
            match (name, what.trim()) {
                ("load", what) => loads.extend(parse_pairs(what).into_iter().map(|(register, bytes)| {
                    let (first, last) = parse_range(bytes);
                    (register.to_owned(), first, last)
                })),
                ("shift", what) => shift = what.parse().unwrap(),
                ("next", what) => what.clone_into(&mut next),
                ("buf_req" | "intr_md" | "hdr_len_inc_final_amt" | "counter" | "option", _) => {}
                (name, _) if name.starts_with("checksum ") => {}
                (name, what) if name.starts_with(['B', 'H', 'W', 'T']) => {
                    constants.push((name.to_owned(), what.parse().unwrap()));
                }
                _ => panic!("what does {} say?", part.line),
            }
        }
        ParserRow { value, mask, extracts, constants, loads, shift, next }
    }
}

impl ParserState {
    fn from_block(block: &Block) -> ParserState {
        let registers = block.get("match").map(strip_comment).unwrap_or_default();
        let registers = registers.trim_matches(['[', ']', ' ']).split(',').map(|name| name.trim().to_owned());
        let is_row = |block: &&Block| block.line.starts_with(['0', '*']);
        ParserState {
            compared: registers.filter(|name| !name.is_empty()).collect(),
            rows: block.blocks.iter().filter(is_row).map(ParserRow::from_block).collect(),
        }
    }
}

/// The block of a direction's parser.
fn parser_block(text: &str, direction: &str) -> Block {
    let begin = format!("parser {direction}:");
    let all = Block::parse_all(text);
    all.into_iter().find(|block| block.line == begin).unwrap_or_else(|| panic!("no {begin}"))
}

/// States that go several ways and compare nothing: each packet takes the first way.
///
/// # Panics
/// The assembly has no such direction.
pub(crate) fn undecided(text: &str, direction: &str) -> Vec<String> {
    let block = parser_block(text, direction);
    let states = block.children_under("states");
    assert!(!states.is_empty(), "{direction}: no states");
    let ways = |state: &Block| state.blocks.iter().filter(|row| row.line.starts_with(['0', '*'])).count();
    let wrong = states.iter().filter(|state| ways(state) > 1 && state.get("match").is_none());
    wrong.map(|state| state.line.trim_end_matches(':').to_owned()).collect()
}

impl Parser {
    /// Of `ingress` or `egress`.
    ///
    /// # Panics
    /// The assembly has something that is not known here.
    pub(crate) fn from_assembly(text: &str, direction: &str) -> Parser {
        let block = parser_block(text, direction);
        let added_to = block.get("bitwise_or").unwrap_or_default().trim_matches(['[', ']', ' ']);
        let states = block.find_child("states").unwrap().blocks.iter();
        Parser {
            start: block.get("start").unwrap().to_owned(),
            added_to: added_to.split(',').map(|name| name.trim().to_owned()).collect(),
            states: states
                .map(|state| (state.line.trim_end_matches(':').to_owned(), ParserState::from_block(state)))
                .collect(),
        }
    }

    /// Parses a packet with what the chip puts before it. `None`: it ends in a header.
    ///
    /// # Panics
    /// No row of a state fits.
    pub(crate) fn parse_packet(&self, packet: &[u8]) -> Option<Parsed> {
        let (mut containers, mut registers) = (BTreeMap::new(), BTreeMap::new());
        let (mut at, mut next) = (0, self.start.as_str());
        while next != "end" {
            let state = self.states.get(next).unwrap_or_else(|| panic!("no state {next}"));
            let compared = state.compared.iter().fold(0, |value, name| {
                let there = registers.get(name).copied().unwrap_or(0);
                value << register_width(name) | there
            });
            let row = state.rows.iter().find(|row| compared & row.mask == row.value & row.mask);
            let row = row.unwrap_or_else(|| panic!("{next}: no row for {compared:#x}"));
            for (first, last, container) in &row.extracts {
                let bytes = packet.get(at + first..=at + last)?;
                let value = bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
                self.write_container(&mut containers, container, value);
            }
            for (container, value) in &row.constants {
                self.write_container(&mut containers, container, *value);
            }
            for (register, first, last) in &row.loads {
                let bytes = (at + first..=at + last).map(|at| packet.get(at).copied().unwrap_or(0));
                registers.insert(register, bytes.fold(0, |value, byte| value << 8 | u64::from(byte)));
            }
            at += row.shift;
            next = &row.next;
        }
        Some(Parsed { containers, payload: at })
    }

    fn write_container(&self, containers: &mut BTreeMap<String, u32>, container: &str, value: u32) {
        let there = containers.entry(container.to_owned()).or_default();
        *there = if self.added_to.contains(container) { *there | value } else { value };
    }
}

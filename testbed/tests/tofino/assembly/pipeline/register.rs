//! Registers, and what their stateful ALUs do with them.

use std::collections::BTreeMap;

use super::table::parse_fields_by_bit;
use super::{low_bit_mask, parse_number, split_commas};
use crate::assembly::{Block, Slice, parse_pairs, parse_range};

/// A register and the programs of its stateful ALU.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    pub(crate) width: usize,
    /// Words of a cell: one, or two that are read and written at once.
    pub(crate) words: usize,
    pub(crate) size: u32,
    /// The two words of the packet that it is given: fields, and at which bit each begins.
    pub(super) phv: [Vec<(usize, Slice)>; 2],
    pub(crate) programs: BTreeMap<String, Vec<String>>,
    /// Those that are not 0.
    cells: BTreeMap<u32, [u32; 2]>,
}

impl Register {
    pub(super) fn from_block(block: &Block) -> Register {
        // What else it could say, as a value to begin with, would have to be understood here.
        let known = "p4 row logical_bus column maprams home_row input_xbar data_bytemask hash_bytemask format actions vpns";
        for part in &block.blocks {
            let name = part.line.split(':').next().unwrap().trim();
            assert!(known.split(' ').any(|known| known == name), "a register with {}", part.line);
        }
        let format = parse_pairs(block.get("format").unwrap());
        let (width, words) = match format[..] {
            [("lo", width)] => (width, 1),
            [("lo", width), ("hi", other)] if width == other => (width, 2),
            _ => panic!("words of a register: {format:?}"),
        };
        let width: usize = width.parse().unwrap();
        let size = parse_pairs(block.get("p4").unwrap()).iter().find(|(name, _)| *name == "size").unwrap().1;
        let mut phv = [Vec::new(), Vec::new()];
        for input in block.children_under("input_xbar") {
            let (name, fields) = input.line.split_once(':').unwrap();
            if name.starts_with("exact group") && block.get("data_bytemask").is_some() {
                for (bit, field) in parse_fields_by_bit(Some(fields)) {
                    // They begin at byte 8, one word of the register's width behind the other.
                    phv[(bit - 64) / width].push(((bit - 64) % width, field));
                }
            } else if name.starts_with("hash ") && !name.starts_with("hash group") {
                for field in &input.blocks {
                    let (bits, field) = field.line.split_once(':').unwrap();
                    phv[0].push((parse_range(bits).0, Slice::from_text(field)));
                }
            }
        }
        let programs = block.children_under("actions").iter().map(|program| {
            let lines = program.blocks.iter().map(|line| line.line.clone());
            (program.line.trim_end_matches(':').to_owned(), lines.collect())
        });
        Register {
            width,
            words,
            size: size.parse().unwrap(),
            phv,
            programs: programs.collect(),
            cells: BTreeMap::new(),
        }
    }

    /// Runs a program of it on a cell: gives what it gives.
    ///
    /// # Panics
    /// It has an instruction that is not known here.
    pub(crate) fn run(&mut self, program: &str, cell: u32, phv: [u32; 2]) -> u32 {
        assert!(cell < self.size, "no cell {cell} of {}", self.size);
        let mask = low_bit_mask(self.width) as u32;
        let was = self.cells.get(&cell).copied().unwrap_or_default();
        let (mut value, mut compared, mut output) = (was, [None; 2], 0);
        // The half of a cell, or of the ALU.
        let half = |text: &str| match text {
            "lo" => 0,
            "hi" => 1,
            _ => panic!("which half is {text}?"),
        };
        for line in &self.programs[program] {
            let (what, arguments) = line.split_once(' ').unwrap_or((line, ""));
            let arguments = split_commas(arguments);
            let of = |text: &str| -> u32 {
                match text {
                    "lo" => was[0],
                    "hi" => was[1],
                    "phv_lo" => phv[0] & mask,
                    "phv_hi" => phv[1] & mask,
                    _ => parse_number(text).unwrap_or_else(|| panic!("{line}: what is {text}?")) as u32,
                }
            };
            // Sums of a comparison: a minus is of one of them.
            let signed = |text: &str, wide: &dyn Fn(u32) -> i64| match text.strip_prefix('-') {
                Some(text) => -wide(of(text)),
                None => wide(of(text)),
            };
            let unsigned: &dyn Fn(u32) -> i64 = &i64::from;
            let shift = 32 - self.width as u32;
            let with_sign: &dyn Fn(u32) -> i64 = &|value: u32| i64::from((value << shift) as i32 >> shift);
            let sum = |wide| arguments[1..].iter().map(|text| signed(text, wide)).sum::<i64>();
            let compared_as = |kind: &str| match kind {
                "u" => sum(unsigned),
                "s" => sum(with_sign),
                // The difference as a number with a sign, modulo its bits.
                "uus" => with_sign(sum(unsigned) as u32 & mask),
                _ => panic!("{line}: compared as what?"),
            };
            let is = match what.split_once('.').unwrap_or((what, "")) {
                ("equ", _) => Some(sum(unsigned) as u32 & mask == 0),
                ("neq", _) => Some(sum(unsigned) as u32 & mask != 0),
                ("grt", kind) => Some(compared_as(kind) > 0),
                ("geq", kind) => Some(compared_as(kind) >= 0),
                ("lss", kind) => Some(compared_as(kind) < 0),
                ("leq", kind) => Some(compared_as(kind) <= 0),
                _ => None,
            };
            if is.is_some() {
                compared[half(arguments[0])] = is;
                continue;
            }
            match what {
                "output" => {
                    output = match arguments[0] {
                        "mem_lo" => was[0],
                        "mem_hi" => was[1],
                        "alu_lo" => value[0],
                        "alu_hi" => value[1],
                        other => panic!("{line}: what is {other}?"),
                    }
                }
                _ => {
                    let condition = match arguments[0] {
                        "cmplo" => compared[0],
                        "!cmplo" => compared[0].map(|is| !is),
                        "cmphi" => compared[1],
                        "!cmphi" => compared[1].map(|is| !is),
                        _ => Some(true),
                    };
                    let rest = &arguments[usize::from(arguments[0].contains("cmp"))..];
                    let result = match (what, &rest[1..]) {
                        ("alu_a" | "alu_b", [a]) => of(a),
                        ("add", [a, b]) => of(a).wrapping_add(of(b)),
                        ("sub", [a, b]) => of(a).wrapping_sub(of(b)),
                        ("subr", [a, b]) => of(b).wrapping_sub(of(a)),
                        ("saddu", [a, b]) => of(a).checked_add(of(b)).map_or(mask, |sum| sum.min(mask)),
                        ("ssubu", [a, b]) => of(a).saturating_sub(of(b)),
                        ("maxu", [a, b]) => of(a).max(of(b)),
                        ("minu", [a, b]) => of(a).min(of(b)),
                        ("or", [a, b]) => of(a) | of(b),
                        ("and", [a, b]) => of(a) & of(b),
                        ("xor", [a, b]) => of(a) ^ of(b),
                        _ => panic!("what does {line}?"),
                    };
                    if condition.unwrap_or_else(|| panic!("{line}: nothing was compared")) {
                        value[half(rest[0])] = result & mask;
                    }
                }
            }
        }
        self.cells.insert(cell, value);
        output
    }

    /// What the first word of a cell holds.
    pub(crate) fn get(&self, cell: u32) -> u32 {
        self.cells.get(&cell).map_or(0, |words| words[0])
    }

    /// Writes the first word of a cell, as the control plane does; a second one is 0 then.
    pub(crate) fn set(&mut self, cell: u32, value: u32) {
        assert!(cell < self.size && u64::from(value) <= low_bit_mask(self.width), "{value} for cell {cell}");
        self.cells.insert(cell, [value, 0]);
    }
}

//! Registers, and what their stateful ALUs do with them.

use std::collections::BTreeMap;

use super::table::by_bit;
use super::{commas, number, ones};
use crate::assembly::{Block, Slice, pairs};

/// A register and the programs of its stateful ALU.
#[derive(Clone, Debug)]
pub struct Register {
    /// Bits of a cell.
    pub width: usize,
    /// How many cells.
    pub size: u32,
    /// The two words of the packet that it is given.
    pub(super) phv: [Option<Slice>; 2],
    /// Instructions by program.
    pub programs: BTreeMap<String, Vec<String>>,
    /// Those that are not 0.
    cells: BTreeMap<u32, u32>,
}

impl Register {
    pub(super) fn of(block: &Block) -> Register {
        // What else it could say, as a value to begin with, would have to be understood here.
        let known = "p4 row logical_bus column maprams home_row input_xbar data_bytemask hash_bytemask format actions vpns";
        for part in &block.blocks {
            let name = part.line.split(':').next().unwrap().trim();
            assert!(known.split(' ').any(|known| known == name), "a register with {}", part.line);
        }
        let [("lo", width)] = pairs(block.get("format").unwrap())[..] else {
            panic!("a register of two words: {}", block.line)
        };
        let size = pairs(block.get("p4").unwrap()).iter().find(|(name, _)| *name == "size").unwrap().1;
        let mut phv = [None, None];
        for input in block.find("input_xbar").into_iter().flat_map(|xbar| &xbar.blocks) {
            let (name, fields) = input.line.split_once(':').unwrap();
            if name.starts_with("exact group") && block.get("data_bytemask").is_some() {
                for (bit, field) in by_bit(Some(fields)) {
                    phv[bit / 32 - 2] = Some(field);
                }
            } else if name.starts_with("hash ") && !name.starts_with("hash group") {
                for field in &input.blocks {
                    phv[0] = Some(Slice::of(field.line.split_once(':').unwrap().1));
                }
            }
        }
        let programs = block.find("actions").into_iter().flat_map(|actions| &actions.blocks).map(|program| {
            let lines = program.blocks.iter().map(|line| line.line.clone());
            (program.line.trim_end_matches(':').to_owned(), lines.collect())
        });
        Register {
            width: width.parse().unwrap(),
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
    pub fn run(&mut self, program: &str, cell: u32, phv: [u32; 2]) -> u32 {
        assert!(cell < self.size, "no cell {cell} of {}", self.size);
        let mask = ones(self.width) as u32;
        let was = self.cells.get(&cell).copied().unwrap_or(0);
        let (mut value, mut compared, mut output) = (was, None, 0);
        for line in &self.programs[program] {
            let (what, arguments) = line.split_once(' ').unwrap_or((line, ""));
            let arguments = commas(arguments);
            let of = |text: &str| -> u32 {
                match text {
                    "lo" => was,
                    "phv_lo" => phv[0] & mask,
                    "phv_hi" => phv[1] & mask,
                    _ => number(text).unwrap_or_else(|| panic!("{line}: what is {text}?")) as u32,
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
            match what {
                "equ" => compared = Some(sum(unsigned) as u32 & mask == 0),
                "neq" => compared = Some(sum(unsigned) as u32 & mask != 0),
                "grt.u" => compared = Some(sum(unsigned) > 0),
                "grt.s" => compared = Some(sum(with_sign) > 0),
                "lss.u" => compared = Some(sum(unsigned) < 0),
                "lss.s" => compared = Some(sum(with_sign) < 0),
                "output" => {
                    output = match arguments[0] {
                        "mem_lo" => was,
                        "alu_lo" => value,
                        other => panic!("{line}: what is {other}?"),
                    }
                }
                _ => {
                    let condition = match arguments[0] {
                        "cmplo" => compared,
                        "!cmplo" => compared.map(|is| !is),
                        _ => Some(true),
                    };
                    let rest = &arguments[usize::from(arguments[0].ends_with("cmplo"))..];
                    assert_eq!(rest[0], "lo", "{line}");
                    let result = match (what, &rest[1..]) {
                        ("alu_a", [a]) => of(a),
                        ("add", [a, b]) => of(a).wrapping_add(of(b)),
                        ("sub", [a, b]) => of(a).wrapping_sub(of(b)),
                        ("or", [a, b]) => of(a) | of(b),
                        ("and", [a, b]) => of(a) & of(b),
                        ("xor", [a, b]) => of(a) ^ of(b),
                        _ => panic!("what does {line}?"),
                    };
                    if condition.unwrap_or_else(|| panic!("{line}: nothing was compared")) {
                        value = result & mask;
                    }
                }
            }
        }
        self.set(cell, value);
        output
    }

    /// What a cell holds.
    pub fn get(&self, cell: u32) -> u32 {
        self.cells.get(&cell).copied().unwrap_or(0)
    }

    /// Writes a cell, as the control plane does.
    pub fn set(&mut self, cell: u32, value: u32) {
        assert!(cell < self.size && u64::from(value) <= ones(self.width), "{value} for cell {cell}");
        self.cells.insert(cell, value);
    }
}

//! The command that flushes a row, as Tofino's program takes it: tests of several crates take this file by `#[path]`.
#![allow(dead_code, reason = "not every test that takes this file changes the command")]

/// Where the EtherType of a command is.
pub(crate) const TYPE_AT: usize = 12;
/// Where the pipe is that a command is for.
pub(crate) const PIPE_AT: usize = 15;
/// Where the place of a row is.
pub(crate) const ROW_AT: usize = 20;

/// The command that flushes row 7 of store 7 of the sample program in the pipe of the CPU port.
///
/// # Panics
/// The file is damaged.
pub(crate) fn flush_row() -> Vec<u8> {
    let lines = include_str!("../../../translator-p4/frames/tofino-flush-row.hex")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let digits: String = lines.collect::<String>().chars().filter(|digit| !digit.is_whitespace()).collect();
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

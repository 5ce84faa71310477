//! Reads the assembly that the compiler for Tofino made of a program: text in blocks by indentation, as YAML.
//!
//! [`parser`] computes which container gets what of a packet, [`pipeline`] what tables and registers do with it.

pub(crate) mod parser;
pub(crate) mod pipeline;
pub(crate) mod profiles;

use std::io::Read as _;
use std::path::Path;

/// The text of a compressed assembly, a path from the folder `translator-p4`.
///
/// # Panics
/// It cannot be read.
pub(crate) fn read_assembly(path: &str) -> String {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../translator-p4")).join(path);
    let file = std::fs::File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text
}

/// A number: `0x1f`, or `1f` in a place where numbers are hexadecimal.
///
/// # Panics
/// It is none.
pub(crate) fn parse_hex(text: &str) -> u64 {
    let text = text.trim();
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16)
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

/// `3..7`, or `3` alone: the first and the last.
///
/// # Panics
/// It is none.
pub(crate) fn parse_range(text: &str) -> (usize, usize) {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let number = |text: &str| text.trim().parse().unwrap_or_else(|_| panic!("{text} is no number"));
    (number(low), number(high))
}

/// `0x08**`, `0b1*`: value and mask; `None` for other texts.
fn parse_pattern(text: &str) -> Option<(u64, u64)> {
    let bits = match text.get(..2)? {
        "0x" => 4,
        "0o" => 3,
        "0b" => 1,
        _ => return None,
    };
    Some(text[2..].chars().fold((0, 0), |(value, mask), digit| match digit {
        '*' => (value << bits, mask << bits),
        _ => (value << bits | parse_hex(&digit.to_string()), mask << bits | ((1 << bits) - 1)),
    }))
}

/// What a line of a parser's state extracts, `17..20: W61  # ...`: the container, and all that is said behind the colon;
/// `None` for other lines.
pub(crate) fn extraction(line: &str) -> Option<(&str, &str)> {
    let (from, what) = line.split_once(": ")?;
    let is_place = !from.is_empty() && from.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_place.then(|| (what.split(' ').next().unwrap_or(what), what))
}

/// What stands between the bracket that `text` begins behind and the one that closes it, and what follows.
///
/// # Panics
/// It is not closed.
pub(crate) fn split_at_closing(text: &str) -> (&str, &str) {
    let mut depth = 1;
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '{' => depth += 1,
            ')' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    panic!("no end of {text}")
}

/// A field, or bits of it: `hdr.bth.psn`, `hdr.w0.word(16..31)`, `hdr.bth.destination_qp.16-23`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) name: String,
    /// Its lowest and highest bit; `None`: all.
    pub(crate) bits: Option<(usize, usize)>,
}

impl Slice {
    /// Reads one.
    ///
    /// # Panics
    /// Its bits are no numbers.
    pub(crate) fn from_text(text: &str) -> Slice {
        let text = text.trim();
        let (name, slice) = match text.split_once('(') {
            Some((name, slice)) => (name, Some(parse_range(slice.trim_end_matches(')')))),
            None => (text, None),
        };
        // A field that lies in several containers.
        let part = name.rsplit_once('.').and_then(|(name, part)| {
            let (low, high) = part.split_once('-')?;
            Some((name, low.parse::<usize>().ok()?, high.parse::<usize>().ok()?))
        });
        let (name, bits) = match (part, slice) {
            (Some((name, low, _)), Some((from, to))) => (name, Some((low + from, low + to))),
            (Some((name, low, high)), None) => (name, Some((low, high))),
            (None, slice) => (name, slice),
        };
        Slice { name: name.to_owned(), bits }
    }
}

/// A line and those that belong to it.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Without the blanks around it, and the `- ` before an item of a list.
    pub(crate) line: String,
    /// In their order.
    pub(crate) blocks: Vec<Block>,
}

impl Block {
    pub(crate) fn parse_all(text: &str) -> Vec<Block> {
        // Those that are not at their end, with their indentation.
        let mut open = vec![(0, Block { line: String::new(), blocks: Vec::new() })];
        let close = |open: &mut Vec<(usize, Block)>| {
            if let (Some((_, block)), Some((_, around))) = (open.pop(), open.last_mut()) {
                around.blocks.push(block);
            }
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let word = line.trim_start();
            let item = word.strip_prefix("- ");
            // Items stand as deep as what they belong to.
            let depth = 1 + 2 * (line.len() - word.len()) + usize::from(item.is_some());
            while open.last().is_some_and(|(around, _)| *around >= depth) {
                close(&mut open);
            }
            let line = item.unwrap_or(word).trim_end().to_owned();
            open.push((depth, Block { line, blocks: Vec::new() }));
        }
        while open.len() > 1 {
            close(&mut open);
        }
        open.pop().map(|(_, all)| all.blocks).unwrap_or_default()
    }

    /// What stands behind `NAME:`.
    pub(crate) fn named_value(&self, name: &str) -> Option<&str> {
        self.line.strip_prefix(name)?.trim_start().strip_prefix(':').map(str::trim)
    }

    /// The first block in it that is `NAME:`.
    pub(crate) fn find_child(&self, name: &str) -> Option<&Block> {
        self.blocks.iter().find(|block| block.named_value(name).is_some())
    }

    pub(crate) fn children_under(&self, name: &str) -> &[Block] {
        self.find_child(name).map(|block| &block.blocks[..]).unwrap_or_default()
    }

    /// What stands behind `NAME:` in it.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.find_child(name)?.named_value(name)
    }
}

/// The pairs of `{ a: b, c: d }`.
pub(crate) fn parse_pairs(text: &str) -> Vec<(&str, &str)> {
    let text = text.trim().trim_start_matches('{').trim_end_matches('}');
    let (mut pairs, mut from, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices().chain([(text.len(), ',')]) {
        match letter {
            '(' | '{' | '[' => depth += 1,
            ')' | '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                if let Some((name, value)) = text[from..at].split_once(':') {
                    pairs.push((name.trim(), value.trim()));
                }
                from = at + 1;
            }
            _ => {}
        }
    }
    pairs
}

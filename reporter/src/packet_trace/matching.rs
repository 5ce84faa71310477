//! The table by which the kernel's programs choose packets, into which a filter is compiled.
//!
//! A table has *tests*, each of a part of one word of the packet's [`Words`], and *terms*. A test yields one
//! bit: whether the masked word is from `low` to `high`. A term names bits that must be one and bits that must
//! be zero. A packet matches if at least one term holds. So `tcp port 80 and not net 10.0.0.0/8` is a handful of
//! tests and terms, which the kernel evaluates without knowing the language. `reporter/ebpf/matching.h` is the
//! twin of [`FilterTable::matches_packet`].

/// Most tests of a table.
pub const TESTS: usize = 32;
/// Most terms of a table.
pub const TERMS: usize = 64;
/// Length of a table in the kernel's map.
pub const TABLE: usize = 8 + TESTS * 32 + TERMS * 8;
pub const WORDS: usize = 12;

/// Indices of the words. Addresses are two words in network order: the upper and the lower half of 128 bits,
/// IPv4 as `::ffff:a.b.c.d`. Without a tunnel, the outer words equal the inner ones.
pub mod word {
    /// Upper half of the source of the innermost packet; the lower half follows.
    pub const SOURCE: usize = 0;
    /// Upper half of the destination of the innermost packet; the lower half follows.
    pub const DESTINATION: usize = 2;
    /// The innermost packet's [`super::meta`].
    pub const META: usize = 4;
    /// Offset from the three above to those of the outermost packet.
    pub const OUTER: usize = 5;
    /// Length in bytes from the outermost IP header (bits 32 to 63), VLAN number or 0 (bits 16 to 31; the
    /// kernel knows it only where the tag stands in the frame or the driver left it in the buffer), the
    /// record's flags (bits 0 to 15).
    pub const FRAME: usize = 10;
    /// Network namespace's inode (bits 32 to 63), interface index (bits 0 to 31).
    pub const PLACE: usize = 11;
}

/// The parts of the words `META`. The lowest 8 bits are TCP's flags, as in its header's 14th byte; 0 for others.
pub mod meta {
    /// IP version, 4 or 6.
    pub const VERSION: u64 = 0xff << VERSION_SHIFT;
    pub const VERSION_SHIFT: u32 = 56;
    pub const PROTOCOL: u64 = 0xff << PROTOCOL_SHIFT;
    pub const PROTOCOL_SHIFT: u32 = 48;
    /// Source port; ports are 0 in ICMP and in later fragments.
    pub const SOURCE_PORT: u64 = 0xffff << SOURCE_PORT_SHIFT;
    pub const SOURCE_PORT_SHIFT: u32 = 32;
    pub const DESTINATION_PORT: u64 = 0xffff << DESTINATION_PORT_SHIFT;
    pub const DESTINATION_PORT_SHIFT: u32 = 16;
    /// 1 in a fragment other than the first, which has no ports. (For the innermost and the outermost packet
    /// alike.)
    pub const LATER_FRAGMENT: u64 = 1 << 8;
}

/// The words of a packet that tests look at, by their indices in [`word`].
pub type Words = [u64; WORDS];

/// Whether `words[word] & mask` is from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Test {
    /// Index of the word, below [`WORDS`].
    pub word: u32,
    pub mask: u64,
    /// The minimum, shifted like the mask.
    pub low: u64,
    pub high: u64,
}

impl Test {
    fn matches_words(&self, words: &Words) -> bool {
        let part = words[self.word as usize % WORDS] & self.mask;
        self.low <= part && part <= self.high
    }
}

/// Holds if all tests of `ones` hold and none of `zeros` does; bit `i` is test `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Term {
    /// Tests that must hold.
    pub ones: u32,
    /// Tests that must not hold.
    pub zeros: u32,
}

/// A filter as the kernel runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterTable {
    tests: Vec<Test>,
    terms: Vec<Term>,
}

/// A filter that is too long for the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLong {
    #[error("the filter needs {0} different tests of a packet; the kernel's table has room for {TESTS}")]
    Tests(usize),
    #[error("the filter needs {0} combinations of its tests; the kernel's table has room for {TERMS}")]
    Terms(usize),
}

impl FilterTable {
    /// A table of these tests and terms. Without terms, no packet matches.
    pub fn new(tests: Vec<Test>, terms: Vec<Term>) -> Result<Self, TooLong> {
        if tests.len() > TESTS {
            return Err(TooLong::Tests(tests.len()));
        }
        if terms.len() > TERMS {
            return Err(TooLong::Terms(terms.len()));
        }
        Ok(Self { tests, terms })
    }

    /// The table that matches every packet.
    pub fn match_all() -> Self {
        Self { tests: Vec::new(), terms: vec![Term::default()] }
    }

    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether the packet matches; the kernel computes the same.
    pub fn matches_packet(&self, words: &Words) -> bool {
        let bits = self
            .tests
            .iter()
            .enumerate()
            .fold(0u32, |bits, (i, test)| bits | u32::from(test.matches_words(words)) << i);
        self.terms.iter().any(|term| bits & term.ones == term.ones && bits & term.zeros == 0)
    }

    /// The bytes in the kernel's map: number of tests and number of terms (4 bytes each), the tests (word, 4
    /// unused bytes, mask, low, high), the terms (ones, zeros); in the machine's byte order.
    pub fn to_bytes(&self) -> [u8; TABLE] {
        let mut bytes = [0; TABLE];
        let mut put = |at: usize, number: &[u8]| bytes[at..at + number.len()].copy_from_slice(number);
        put(0, &(self.tests.len() as u32).to_ne_bytes());
        put(4, &(self.terms.len() as u32).to_ne_bytes());
        for (i, test) in self.tests.iter().enumerate() {
            let at = 8 + i * 32;
            put(at, &test.word.to_ne_bytes());
            put(at + 8, &test.mask.to_ne_bytes());
            put(at + 16, &test.low.to_ne_bytes());
            put(at + 24, &test.high.to_ne_bytes());
        }
        for (i, term) in self.terms.iter().enumerate() {
            let at = 8 + TESTS * 32 + i * 8;
            put(at, &term.ones.to_ne_bytes());
            put(at + 4, &term.zeros.to_ne_bytes());
        }
        bytes
    }
}

impl Default for FilterTable {
    fn default() -> Self {
        Self::match_all()
    }
}

//! Compiles a filter into the kernel's table.
//!
//! A filter becomes a disjunction of terms, each a set of tests that must hold and a set that must not. Tests
//! are numbered as they appear; contradictory terms are left out, and so are those implied by another.

use std::net::IpAddr;

use super::parse::{End, Test, Tree};
use crate::packet_trace::matching::{self, FilterTable, TERMS, TESTS, Term, TooLong, meta, word};

/// Most distinct tests and terms during compilation; simplification may leave fewer.
const MOST_TESTS: usize = 64;
const MOST_TERMS: usize = 2048;

/// A set of tests that hold, and one of tests that do not: bit i is test i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wide {
    ones: u64,
    zeros: u64,
}

pub(super) fn compile_tree(tree: &Tree) -> Result<FilterTable, TooLong> {
    let mut compiler = Compiler { tests: Vec::new() };
    let terms = compiler.compile_terms(tree, true)?;
    // Removes tests that no term needs any longer.
    let used = terms.iter().fold(0, |used, term| used | term.ones | term.zeros);
    let kept: Vec<usize> = (0..compiler.tests.len()).filter(|i| used >> i & 1 != 0).collect();
    if kept.len() > TESTS {
        return Err(TooLong::Tests(kept.len()));
    }
    if terms.len() > TERMS {
        return Err(TooLong::Terms(terms.len()));
    }
    let narrow = |set: u64| {
        kept.iter().enumerate().fold(0u32, |all, (new, old)| all | u32::from(set >> old & 1 != 0) << new)
    };
    let terms =
        terms.iter().map(|term| Term { ones: narrow(term.ones), zeros: narrow(term.zeros) }).collect();
    FilterTable::new(kept.iter().map(|i| compiler.tests[*i]).collect(), terms)
}

struct Compiler {
    tests: Vec<matching::Test>,
}

impl Compiler {
    /// The terms whose disjunction is the tree (or its negation).
    fn compile_terms(&mut self, tree: &Tree, holds: bool) -> Result<Vec<Wide>, TooLong> {
        match (tree, holds) {
            (Tree::Not(tree), holds) => self.compile_terms(tree, !holds),
            (Tree::Test { outer, test }, holds) => {
                let tests = kernel_tests(*outer, test);
                let mut numbers = Vec::with_capacity(tests.len());
                for test in tests {
                    numbers.push(1u64 << self.test_number(test)?);
                }
                Ok(match holds {
                    true => vec![Wide { ones: numbers.iter().fold(0, |all, bit| all | bit), zeros: 0 }],
                    false => numbers.iter().map(|bit| Wide { ones: 0, zeros: *bit }).collect(),
                })
            }
            (Tree::All(trees), true) | (Tree::Any(trees), false) => {
                let mut all = vec![Wide::default()];
                for tree in trees {
                    let these = self.compile_terms(tree, holds)?;
                    if all.len() * these.len() > MOST_TERMS {
                        return Err(TooLong::Terms(all.len() * these.len()));
                    }
                    let both = |a: &Wide, b: &Wide| Wide { ones: a.ones | b.ones, zeros: a.zeros | b.zeros };
                    all = all.iter().flat_map(|a| these.iter().map(move |b| both(a, b))).collect();
                    all = self.simplified(all);
                }
                Ok(all)
            }
            (Tree::All(trees), false) | (Tree::Any(trees), true) => {
                let mut all = Vec::new();
                for tree in trees {
                    all.extend(self.compile_terms(tree, holds)?);
                    if all.len() > MOST_TERMS {
                        return Err(TooLong::Terms(all.len()));
                    }
                }
                Ok(self.simplified(all))
            }
        }
    }

    /// The number of a test; equal tests share one.
    fn test_number(&mut self, test: matching::Test) -> Result<usize, TooLong> {
        if let Some(at) = self.tests.iter().position(|known| *known == test) {
            return Ok(at);
        }
        if self.tests.len() == MOST_TESTS {
            return Err(TooLong::Tests(MOST_TESTS + 1));
        }
        self.tests.push(test);
        Ok(self.tests.len() - 1)
    }

    /// Removes terms that never hold, tests implied by others in their term, and terms implied by another.
    fn simplified(&self, terms: Vec<Wide>) -> Vec<Wide> {
        let mut kept: Vec<Wide> = Vec::with_capacity(terms.len());
        for term in terms {
            let Some(term) = self.prune_term(term) else { continue };
            let within = |a: &Wide, b: &Wide| a.ones & !b.ones == 0 && a.zeros & !b.zeros == 0;
            if kept.iter().any(|other| within(other, &term)) {
                continue;
            }
            kept.retain(|other| !within(&term, other));
            kept.push(term);
        }
        kept
    }

    /// The term without implied tests; `None` if it never holds.
    fn prune_term(&self, mut term: Wide) -> Option<Wide> {
        if term.ones & term.zeros != 0 {
            return None;
        }
        let bits = |set: u64| (0..self.tests.len()).filter(move |i| set >> i & 1 != 0);
        for one in bits(term.ones) {
            let a = &self.tests[one];
            for other in bits(term.ones).filter(|other| *other != one) {
                let b = &self.tests[other];
                if (a.word, a.mask) != (b.word, b.mask) {
                    continue;
                }
                if a.high < b.low || b.high < a.low {
                    return None;
                }
                // A range inside another implies it. Equal ranges are one test.
                if b.low <= a.low && a.high <= b.high {
                    term.ones &= !(1 << other);
                }
            }
            for other in bits(term.zeros) {
                let b = &self.tests[other];
                if (a.word, a.mask) != (b.word, b.mask) {
                    continue;
                }
                if b.low <= a.low && a.high <= b.high {
                    return None;
                }
                if a.high < b.low || b.high < a.low {
                    term.zeros &= !(1 << other);
                }
            }
        }
        Some(term)
    }
}

/// The kernel's tests for a test of the filter, all of which must hold. Without any, it always holds.
fn kernel_tests(outer: bool, test: &Test) -> Vec<matching::Test> {
    let from = if outer { word::OUTER } else { 0 };
    let of = |at: usize, mask: u64, low: u64, high: u64| matching::Test { word: at as u32, mask, low, high };
    let of_meta = |mask: u64, low: u64, high: u64| {
        let shift = mask.trailing_zeros();
        of(from + word::META, mask, low << shift, high << shift)
    };
    match *test {
        Test::Version(version) => vec![of_meta(meta::VERSION, version.into(), version.into())],
        Test::Protocol(protocol) => vec![of_meta(meta::PROTOCOL, protocol.into(), protocol.into())],
        Test::Port(end, low, high) => {
            let mask = match end {
                End::Source => meta::SOURCE_PORT,
                End::Destination => meta::DESTINATION_PORT,
            };
            vec![of_meta(mask, low.into(), high.into())]
        }
        Test::LaterFragment => vec![of_meta(meta::LATER_FRAGMENT, 1, 1)],
        Test::TcpFlags { mask, equal } => {
            vec![of(from + word::META, u64::from(mask), equal.into(), equal.into())]
        }
        Test::Vlan(number) => {
            const VLAN: u64 = 0xffff << 16;
            let (low, high) = number.map_or((1, 0xffff), |number| (number, number));
            vec![of(word::FRAME, VLAN, u64::from(low) << 16, u64::from(high) << 16)]
        }
        Test::Address(end, net) => {
            let at = from + if end == End::Source { word::SOURCE } else { word::DESTINATION };
            let (bits, length) = match net.address {
                IpAddr::V4(address) => (address.to_ipv6_mapped().to_bits(), 96 + u32::from(net.length)),
                IpAddr::V6(address) => (address.to_bits(), u32::from(net.length)),
            };
            // The version implies an IPv4 address's upper half, which needs no test.
            let (skip, mask) = match net.address {
                IpAddr::V4(_) => {
                    (96, u128::MAX.checked_shl(128 - length).unwrap_or(0) & u128::from(u32::MAX))
                }
                IpAddr::V6(_) => (0, u128::MAX.checked_shl(128 - length).unwrap_or(0)),
            };
            if length == skip {
                return Vec::new();
            }
            let half = |at: usize, mask: u64, bits: u64| of(at, mask, bits & mask, bits & mask);
            let halves =
                [half(at, (mask >> 64) as u64, (bits >> 64) as u64), half(at + 1, mask as u64, bits as u64)];
            halves.into_iter().filter(|half| half.mask != 0).collect()
        }
    }
}

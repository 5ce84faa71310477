//! The result: lines for people, and for programs the outcome that all testbeds have.

use std::collections::BTreeMap;
use std::fmt;

use dta_proto::program::Primitive;

use crate::accounting::LinkAccount;
use crate::check::Tally;
use crate::outcome::{self, LinkOutcome, PrimitiveOutcome, RunFacts};
use crate::statistics::Statistics;

/// Wrong answers described in words.
const EXAMPLES: usize = 5;

/// The result.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What happened, one figure per line.
    lines: Vec<String>,
    /// Answers that are true, that other keys may have overwritten, and all others.
    pub(super) right: u64,
    overwritten: u64,
    wrong: Vec<String>,
    /// What was wrong with default filters.
    pub(super) missed: Vec<String>,
    /// What counters do not account for.
    unexplained: Vec<String>,
    /// Answers of the run in which each packet is reported, by primitive, and how many of them are overwritten.
    answers: BTreeMap<Primitive, (Tally, u64)>,
    /// Operations by primitive.
    pub(super) operations: BTreeMap<Primitive, u64>,
    /// Counters of all nodes.
    pub(super) sent: BTreeMap<Primitive, u64>,
    pub(super) links: Vec<LinkAccount>,
    pub(super) nodes: Statistics,
    pub(super) run: RunFacts,
}

impl Outcome {
    /// Whether nothing is wrong and nothing unexplained.
    pub fn is_good(&self) -> bool {
        self.wrong.is_empty() && self.missed.is_empty() && self.unexplained.is_empty()
    }

    /// The outcome of the run in which each packet is reported, as of other testbeds. What was wrong with default
    /// filters, and what does not add up, is among the contradictions.
    pub fn document(&self) -> outcome::Outcome {
        let of = |primitive: Primitive| {
            let (answers, overwritten) = self.answers.get(&primitive).cloned().unwrap_or_default();
            let sent = self.sent.get(&primitive).copied().unwrap_or(0);
            // List entries and counter increments stay; of a key only the newest report does.
            let queryable = match primitive {
                Primitive::KeyWrite | Primitive::Postcarding => answers.right.min(sent),
                _ if answers.wrong == 0 => sent,
                _ => 0,
            };
            let superseded = match primitive {
                Primitive::KeyWrite | Primitive::Postcarding => sent.saturating_sub(answers.queried),
                _ => 0,
            };
            let operations = self.operations.get(&primitive).copied().unwrap_or(0);
            let primitive = PrimitiveOutcome { name: primitive.name(), sent, operations, answers };
            (primitive, queryable, superseded, overwritten)
        };
        let all: Vec<_> = Primitive::ALL.into_iter().map(of).collect();
        let links: Vec<LinkOutcome> = self
            .links
            .iter()
            .map(|account| LinkOutcome { unexplained: account.unexplained(), account: account.clone() })
            .collect();
        outcome::Outcome {
            sent: all.iter().map(|(primitive, ..)| primitive.sent).sum(),
            queryable: all.iter().map(|(_, queryable, ..)| queryable).sum(),
            superseded: all.iter().map(|(_, _, superseded, _)| superseded).sum(),
            overwritten: all.iter().map(|(.., overwritten)| overwritten).sum(),
            held: 0,
            unexplained: links.iter().map(|link| link.unexplained.unsigned_abs()).sum(),
            losses: BTreeMap::new(),
            primitives: all.into_iter().map(|(primitive, ..)| primitive).collect(),
            epochs: None,
            links,
            contradictions: self.unexplained.iter().chain(&self.missed).cloned().collect(),
            run: self.run.clone(),
            nodes: self.nodes.clone(),
        }
    }

    /// Counts an answer.
    pub(super) fn judge(
        &mut self,
        primitive: Primitive,
        is_right: bool,
        is_excused: bool,
        what: impl FnOnce() -> String,
    ) {
        let (tally, overwritten) = self.answers.entry(primitive).or_default();
        tally.queried += 1;
        match (is_right, is_excused) {
            (true, _) => {
                self.right += 1;
                tally.right += 1;
            }
            (false, true) => {
                self.overwritten += 1;
                *overwritten += 1;
                tally.absent += 1;
            }
            (false, false) => {
                let what = what();
                tally.wrong += 1;
                if tally.examples.len() < EXAMPLES {
                    tally.examples.push(what.clone());
                }
                self.wrong.push(what);
            }
        }
    }

    pub(super) fn line(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    /// Two numbers that must be equal.
    pub(super) fn same(&mut self, what: &str, wanted: u64, found: u64) {
        if wanted != found {
            self.unexplained.push(format!("{what}: {wanted} by the truth, {found} counted"));
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        for line in self.wrong.iter().chain(&self.missed).chain(&self.unexplained).take(20) {
            writeln!(f, "  {line}")?;
        }
        write!(
            f,
            "answers: {} right, {} overwritten by other keys, {} wrong; unexplained: {}",
            self.right,
            self.overwritten,
            self.wrong.len() + self.missed.len(),
            self.unexplained.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_of_a_document_ends_in_one_way() {
        let sent = BTreeMap::from([
            (Primitive::KeyWrite, 10),
            (Primitive::Postcarding, 10),
            (Primitive::Append, 12),
            (Primitive::KeyIncrement, 24),
        ]);
        let mut outcome = Outcome { sent, ..Outcome::default() };
        for n in 0..4 {
            outcome.judge(Primitive::KeyWrite, n > 0, true, || unreachable!("nothing is wrong"));
            outcome.judge(Primitive::Postcarding, true, false, || unreachable!("nothing is wrong"));
        }
        outcome.judge(Primitive::KeyIncrement, true, false, || unreachable!("nothing is wrong"));
        let document = outcome.document();
        assert_eq!((document.sent, document.superseded, document.overwritten), (56, 12, 1));
        assert_eq!(document.queryable, 3 + 4 + 12 + 24);
        assert_eq!(document.sent, document.queryable + document.superseded + document.overwritten);
        assert!(document.is_good() && outcome.is_good());
        outcome.judge(Primitive::Append, false, false, || "list 0".into());
        outcome.missed.push("round 1".into());
        outcome.same("packets", 1, 2);
        let document = outcome.document();
        assert_eq!(document.contradictions, ["packets: 1 by the truth, 2 counted", "round 1"]);
        let append = document.primitives.iter().find(|one| one.name == "append").unwrap();
        assert_eq!((append.answers.wrong, &append.answers.examples[..]), (1, &["list 0".to_owned()][..]));
        assert!(!document.is_good() && !outcome.is_good());
    }
}

//! The result: lines for people, and for programs the outcome that all testbeds have.

use std::collections::BTreeMap;
use std::fmt;

use dta_proto::program::Primitive;

use crate::accounting::LinkAccount;
use crate::check::{ReportEnds, Tally};
use crate::outcome::{self, EpochOutcome, LinkOutcome, PrimitiveOutcome, RunFacts};
use crate::show;
use crate::statistics::TestbedStatistics;

#[derive(Debug, Default)]
pub struct SwitchRunOutcome {
    lines: Vec<String>,
    /// Watched flows that default filters reported in a round.
    pub(super) reported: u64,
    /// What was wrong with default filters, and what has changed that should not.
    pub(super) missed: Vec<String>,
    /// What counters do not account for.
    unexplained: Vec<String>,
    /// Answers of the run in which each packet is reported.
    answers: BTreeMap<Primitive, Tally>,
    /// Where reports ended, for primitives where only a key's newest report counts.
    ends: BTreeMap<Primitive, ReportEnds>,
    pub(super) epochs: Option<Vec<EpochOutcome>>,
    pub(super) operations: BTreeMap<Primitive, u64>,
    pub(super) sent: BTreeMap<Primitive, u64>,
    pub(super) links: Vec<LinkAccount>,
    pub(super) nodes: TestbedStatistics,
    pub(super) run: RunFacts,
}

impl SwitchRunOutcome {
    fn sum(&self, of: impl Fn(&Tally) -> u64) -> u64 {
        self.answers.values().map(of).sum()
    }

    fn missing_reports(&self) -> u64 {
        self.ends.values().map(|ends| ends.missing).sum()
    }

    /// Whether nothing is wrong and nothing unexplained.
    pub fn is_success(&self) -> bool {
        let wrong = self.sum(|answers| answers.wrong) + self.missing_reports();
        wrong == 0 && self.missed.is_empty() && self.unexplained.is_empty()
    }

    /// The outcome of the run in which each packet is reported, in the form that all testbeds have. What was wrong with
    /// default filters, and what does not add up, is among the contradictions.
    pub fn to_testbed_outcome(&self) -> outcome::TestbedOutcome {
        let sent = |primitive: &Primitive| self.sent.get(primitive).copied().unwrap_or(0);
        let mut ends = ReportEnds::default();
        for primitive in &Primitive::ALL {
            match self.ends.get(primitive) {
                Some(known) => ends.add(known),
                // List entries and counter increments stay.
                None if self.answers.get(primitive).is_none_or(|answers| answers.wrong == 0) => {
                    ends.queryable += sent(primitive);
                }
                None => {}
            }
        }
        let primitives = Primitive::ALL.map(|primitive| PrimitiveOutcome {
            name: primitive.canonical_name(),
            sent: sent(&primitive),
            operations: self.operations.get(&primitive).copied().unwrap_or(0),
            answers: self.answers.get(&primitive).cloned().unwrap_or_default(),
        });
        let links: Vec<LinkOutcome> = self
            .links
            .iter()
            .map(|account| LinkOutcome { unexplained: account.unexplained(), account: account.clone() })
            .collect();
        let frames: u64 = links.iter().map(|link| link.unexplained.unsigned_abs()).sum();
        outcome::TestbedOutcome {
            sent: self.sent.values().sum(),
            queryable: ends.queryable,
            superseded: ends.superseded,
            overwritten: ends.overwritten,
            held: 0,
            unexplained: frames + ends.missing,
            losses: ends.lost,
            primitives: primitives.into(),
            epochs: self.epochs.clone(),
            links,
            contradictions: self.unexplained.iter().chain(&self.missed).cloned().collect(),
            run: self.run.clone(),
            nodes: self.nodes.clone(),
        }
    }

    pub(super) fn count_answer(
        &mut self,
        primitive: Primitive,
        is_right: bool,
        what: impl FnOnce() -> String,
    ) {
        let tally = self.answers.entry(primitive).or_default();
        tally.queried += 1;
        match is_right {
            true => tally.right += 1,
            false => tally.count_wrong(what),
        }
    }

    /// Records what a check found.
    pub(super) fn record_check(&mut self, primitive: Primitive, answers: Tally, ends: ReportEnds) {
        self.answers.insert(primitive, answers);
        self.ends.insert(primitive, ends);
    }

    pub(super) fn push_line(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    /// Two numbers that must be equal.
    pub(super) fn expect_equal(&mut self, what: &str, wanted: u64, found: u64) {
        if wanted != found {
            self.unexplained.push(format!("{what}: {wanted} expected, {found} counted"));
        }
    }
}

impl fmt::Display for SwitchRunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        let wrong = self.answers.values().flat_map(|answers| &answers.examples);
        for line in wrong.chain(&self.missed).chain(&self.unexplained).take(20) {
            writeln!(f, "  {line}")?;
        }
        if let Some(epochs) = &self.epochs {
            writeln!(f, "{}", show::render_epochs(epochs))?;
        }
        write!(
            f,
            "answers: {} right, {} overwritten by other keys, {} wrong; unexplained: {}",
            self.sum(|answers| answers.right) + self.reported,
            self.sum(|answers| answers.absent + answers.stale),
            self.sum(|answers| answers.wrong) + self.missed.len() as u64,
            self.unexplained.len() as u64 + self.missing_reports()
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
        let mut outcome = SwitchRunOutcome { sent, ..SwitchRunOutcome::default() };
        let tally = Tally { queried: 4, right: 3, absent: 1, ..Tally::default() };
        let ends = |overwritten| ReportEnds {
            queryable: 4 - overwritten,
            superseded: 6,
            overwritten,
            ..ReportEnds::default()
        };
        outcome.record_check(Primitive::KeyWrite, tally, ends(1));
        let tally = Tally { queried: 4, right: 4, ..Tally::default() };
        outcome.record_check(Primitive::Postcarding, tally, ends(0));
        outcome.count_answer(Primitive::KeyIncrement, true, || unreachable!("nothing is wrong"));
        let document = outcome.to_testbed_outcome();
        assert_eq!((document.sent, document.superseded, document.overwritten), (56, 12, 1));
        assert_eq!(document.queryable, 3 + 4 + 12 + 24);
        assert_eq!(document.sent, document.queryable + document.superseded + document.overwritten);
        assert!(document.is_success() && outcome.is_success());
        outcome.record_check(Primitive::Postcarding, Tally::default(), ReportEnds { missing: 1, ..ends(0) });
        assert!(!outcome.is_success() && outcome.to_testbed_outcome().unexplained == 1);
        outcome.record_check(Primitive::Postcarding, Tally::default(), ends(0));
        outcome.count_answer(Primitive::Append, false, || "list 0".into());
        outcome.missed.push("round 1".into());
        outcome.expect_equal("packets", 1, 2);
        let document = outcome.to_testbed_outcome();
        assert_eq!(document.contradictions, ["packets: 1 expected, 2 counted", "round 1"]);
        let append = document.primitives.iter().find(|one| one.name == "append").unwrap();
        assert_eq!((append.answers.wrong, &append.answers.examples[..]), (1, &["list 0".to_owned()][..]));
        assert!(!document.is_success() && !outcome.is_success());
    }
}

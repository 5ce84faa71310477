//! Tests of rules that users write: flow records second by second, written in the test or kept in a history,
//! and the alerts that must fire; no others may.

use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dta_export::names::Names;
use dta_files::config_file::ConfigError;
use dta_files::moment::parse_moment;
use dta_history::{EpochTable, HistoryEntry, HistoryError, KeptEpoch};
use dta_proto::flow_query::FlowFilter;
use dta_proto::flow_record::{Column, ENTRY_LEN, FlowRecord, STORE};
use dta_proto::store::StoreKind;
use serde::{Deserialize, Serialize};

use super::rule::Length;
use super::source::{Entry, address_by_name};
use super::{AlertBoard, AlertEngine, Evaluation, Rule};

const SECOND: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// When simulations of written records begin: 2026-01-01.
const START: u64 = 1_767_225_600 * SECOND;
/// Longest simulation, and the most records in one.
const MAX_SECONDS: u64 = 7 * 24 * 3600;
const MAX_RECORDS: u64 = 100_000_000;

/// A file with tests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleTests {
    /// A configuration, relative to this file; without one, the default set is tested.
    pub rules: Option<PathBuf>,
    pub test: Vec<RuleTest>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuleTest {
    pub name: String,
    #[serde(default)]
    records: Vec<SimulatedRecords>,
    /// A history, relative to this file, whose flow records are used instead.
    history: Option<PathBuf>,
    /// The span of the history; by default from its beginning to its end.
    since: Option<String>,
    until: Option<String>,
    /// How long the test continues after the last record.
    after: Option<Length>,
    #[serde(default)]
    expect: Vec<ExpectedAlert>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulatedRecords {
    from: Option<Length>,
    to: Length,
    /// Records per second.
    #[serde(default = "default_count")]
    count: u64,
    /// Columns that increase by one with each record.
    #[serde(default)]
    vary: Vec<String>,
    values: BTreeMap<String, toml::Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedAlert {
    rule: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Latest time since the beginning.
    before: Option<Length>,
}

/// What a test found.
#[derive(Debug, PartialEq, Serialize)]
pub struct RuleTestResult {
    pub name: String,
    pub fired: Vec<FiredAlert>,
    pub problems: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct FiredAlert {
    pub rule: String,
    pub labels: BTreeMap<String, String>,
    /// Seconds since the beginning.
    pub fired_after: u64,
    pub resolved_after: Option<u64>,
    pub text: String,
}

fn default_count() -> u64 {
    1
}

fn seconds(length: Option<&Length>) -> u64 {
    length.map_or(0, |length| length.duration().as_secs())
}

/// The wrong key of a test, and the reason.
type KeyError = (String, String);

/// Rules being evaluated second by second.
struct RuleReplay {
    engine: AlertEngine,
    board: AlertBoard,
    began: u64,
    delivered: u64,
    fired: Vec<FiredAlert>,
}

struct PreparedRecords {
    from: u64,
    to: u64,
    count: u64,
    entry: Entry,
    vary: Vec<&'static Column>,
}

impl RuleTest {
    /// Runs rules over the records of a test whose file is in this folder.
    ///
    /// # Errors
    /// An impossible record or an unreadable history: the key in the file, and why.
    pub fn run(
        &self,
        index: usize,
        rules: Vec<Rule>,
        names: &Arc<Names>,
        folder: &Path,
    ) -> Result<RuleTestResult, ConfigError> {
        let fail = |(field, reason): KeyError| ConfigError::new(format!("test[{index}].{field}"), reason);
        // Nothing is known of what comes after a history, so no exporter counts as silent there.
        let longest = match self.history {
            None => rules.iter().map(|rule| 2 * rule.window / SECOND).max().unwrap_or(0),
            Some(_) => 0,
        };
        let after = self.after.as_ref().map_or(longest, |after| seconds(Some(after))).min(MAX_SECONDS);
        let fired = match &self.history {
            None if self.since.is_some() || self.until.is_some() => {
                return Err(fail((
                    "since".into(),
                    "a time span needs a history: give `history`, too".into(),
                )));
            }
            None => self.replay_written(rules, names, after),
            Some(_) if !self.records.is_empty() => {
                Err(("history".into(), "give either `records` or `history`".into()))
            }
            Some(history) => self.replay_history(&folder.join(history), rules, names, after),
        };
        let fired = fired.map_err(fail)?;
        let problems = self.compare(&fired);
        Ok(RuleTestResult { name: self.name.clone(), fired, problems })
    }

    fn replay_written(
        &self,
        rules: Vec<Rule>,
        names: &Arc<Names>,
        after: u64,
    ) -> Result<Vec<FiredAlert>, KeyError> {
        let mut prepared: Vec<PreparedRecords> = Vec::new();
        for (number, records) in self.records.iter().enumerate() {
            let located = |(field, reason)| (format!("records[{number}].{field}"), reason);
            prepared.push(records.prepare(names).map_err(located)?);
        }
        let all = prepared.iter().map(|records| records.count.saturating_mul(records.to - records.from));
        if all.fold(0, u64::saturating_add) > MAX_RECORDS {
            let reason = format!("test {:?}: at most {MAX_RECORDS} records", self.name);
            return Err(("records[0].count".into(), reason));
        }
        let end = prepared.iter().map(|records| records.to).max().unwrap_or(0) + after;
        let mut replay = RuleReplay::new(rules, names, START);
        for second in 0..end {
            let now = START + second * SECOND;
            for records in prepared.iter().filter(|records| (records.from..records.to).contains(&second)) {
                for number in 0..records.count {
                    let entry = records.nth_entry((second - records.from) * records.count + number, now);
                    replay.engine.add_flow_records(&entry, 1, now);
                }
            }
            replay.evaluate(now + SECOND);
        }
        Ok(replay.fired)
    }

    /// Replays the flow records of a history in the order in which they were received.
    fn replay_history(
        &self,
        folder: &Path,
        rules: Vec<Rule>,
        names: &Arc<Names>,
        after: u64,
    ) -> Result<Vec<FiredAlert>, KeyError> {
        let moment =
            |field: &str, text: &Option<String>, otherwise: u64| match text.as_deref().map(parse_moment) {
                None => Ok(otherwise),
                Some(Ok(milliseconds)) => Ok(milliseconds.saturating_mul(MILLISECOND)),
                Some(Err(reason)) => Err((field.to_owned(), reason)),
            };
        let since = moment("since", &self.since, 0)?;
        let until = moment("until", &self.until, u64::MAX)?;
        let of_history = |reason: String| ("history".to_owned(), reason);
        let unreadable = |error: HistoryError| of_history(error.to_string());
        let table = EpochTable::open_existing(folder, STORE).map_err(unreadable)?;
        let entry_len = match table.store_spec().kind {
            StoreKind::Append { entry_len, .. } => usize::from(entry_len),
            _ => 0,
        };
        if entry_len != ENTRY_LEN {
            return Err(of_history(format!("{} has no flow records", folder.display())));
        }
        let mut epochs: Vec<Arc<KeptEpoch>> = table.kept_epochs().map_err(unreadable)?;
        epochs.sort_by_key(|kept| kept.epoch.opened);
        let in_span = |kept: &Arc<KeptEpoch>| {
            let [opened, flipped_to] = [kept.epoch.opened, kept.epoch.flipped_to].map(|at| at * MILLISECOND);
            opened < until && flipped_to >= since
        };
        epochs.retain(in_span);
        let Some(first) = epochs.first() else {
            return Err(of_history("there is no epoch in this span".into()));
        };
        let began = since.max(first.epoch.opened * MILLISECOND).next_multiple_of(SECOND);
        let mut replay = RuleReplay::new(rules, names, began);
        let (mut now, mut end) = (began, began);
        // Records from an epoch's last moments may be in the next one.
        let mut waiting: VecDeque<(u64, Entry)> = VecDeque::new();
        for (place, kept) in epochs.iter().enumerate() {
            let take = |entry: HistoryEntry<'_>| {
                if let Ok(entry) = Entry::try_from(entry.bytes) {
                    let received = FlowRecord::from_entry(&entry).received;
                    if (since..until).contains(&received) {
                        waiting.push_back((received, entry));
                    }
                }
                ControlFlow::Continue(())
            };
            table.scan_entries(kept.epoch.number, take).map_err(unreadable)?;
            waiting.make_contiguous().sort_by_key(|(received, _)| *received);
            end = end.max((kept.epoch.flipped_to * MILLISECOND).min(until));
            let next = epochs.get(place + 1).map_or(end, |next| next.epoch.opened * MILLISECOND);
            now = replay.advance(now, next, &mut waiting);
        }
        replay.advance(now, end + after * SECOND, &mut waiting);
        Ok(replay.fired)
    }

    fn compare(&self, fired: &[FiredAlert]) -> Vec<String> {
        let is_of = |expected: &ExpectedAlert, alert: &FiredAlert| {
            let has =
                |(name, value): (&String, &String)| alert.labels.get(&name.replace('-', "_")) == Some(value);
            alert.rule == expected.rule && expected.labels.iter().all(has)
        };
        let mut problems = Vec::new();
        for expected in &self.expect {
            let first = fired.iter().find(|alert| is_of(expected, alert));
            let latest = expected.before.map(|before| before.duration().as_secs());
            match (first, latest) {
                (None, _) => {
                    problems.push(format!("{} did not fire for {:?}", expected.rule, expected.labels))
                }
                (Some(alert), Some(latest)) if alert.fired_after > latest => {
                    problems.push(format!(
                        "{} fired after {} s, later than {latest} s",
                        expected.rule, alert.fired_after
                    ));
                }
                _ => {}
            }
        }
        let unexpected =
            fired.iter().filter(|alert| !self.expect.iter().any(|expected| is_of(expected, alert)));
        problems.extend(unexpected.map(|alert| {
            format!(
                "{} fired after {} s, which is not expected: {}",
                alert.rule, alert.fired_after, alert.text
            )
        }));
        problems
    }
}

impl RuleReplay {
    fn new(rules: Vec<Rule>, names: &Arc<Names>, began: u64) -> RuleReplay {
        let board = AlertBoard::default();
        board.begin_rules(&rules, began);
        let engine = AlertEngine::new(rules, names.clone(), began);
        RuleReplay { engine, board, began, delivered: 0, fired: Vec::new() }
    }

    /// Advances second by second, each time adding the records received before that moment. Returns the moment reached.
    fn advance(&mut self, from: u64, to: u64, records: &mut VecDeque<(u64, Entry)>) -> u64 {
        let mut now = from;
        while now + SECOND <= to {
            now += SECOND;
            while records.front().is_some_and(|(received, _)| *received < now) {
                let Some((_, entry)) = records.pop_front() else { break };
                self.engine.add_flow_records(&entry, 1, now);
            }
            self.evaluate(now);
        }
        now
    }

    fn evaluate(&mut self, now: u64) {
        for Evaluation { rule, findings, started } in self.engine.evaluate(now) {
            self.board.apply(rule, &findings, now, started);
        }
        // This board has no file, so it cannot fail.
        _ = self.board.publish(now);
        for transition in self.board.transitions_after(self.delivered) {
            self.delivered = transition.number;
            let Some(alert) = transition.alert else { continue };
            let after = (transition.at - self.began / MILLISECOND) / 1000;
            if alert.is_firing() {
                let (rule, labels, text) = (alert.rule, alert.labels, alert.text);
                self.fired.push(FiredAlert { rule, labels, fired_after: after, resolved_after: None, text });
            } else if let Some(open) = self
                .fired
                .iter_mut()
                .rev()
                .find(|open| open.rule == alert.rule && open.labels == alert.labels)
            {
                open.resolved_after = Some(after);
            }
        }
    }
}

impl SimulatedRecords {
    fn prepare(&self, names: &Names) -> Result<PreparedRecords, (&'static str, String)> {
        let (from, to) = (seconds(self.from.as_ref()), seconds(Some(&self.to)));
        if from >= to || to > MAX_SECONDS {
            return Err(("to", "must be later than `from`, and at most 7d".into()));
        }
        let mut entry = [0; ENTRY_LEN];
        for (name, value) in &self.values {
            let column =
                Column::from_name(name).ok_or_else(|| ("values", format!("there is no column `{name}`")))?;
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let filter = FlowFilter::parse(&format!("{name} = {text}"), &|name| address_by_name(name, names))
                .map_err(|error| ("values", error.to_string()))?;
            let value = filter
                .required_value(column)
                .ok_or_else(|| ("values", format!("`{text}` is not a value of `{name}`")))?;
            write_value(&mut entry, column, value);
        }
        let column = |name: &String| {
            Column::from_name(name).ok_or_else(|| ("vary", format!("there is no column `{name}`")))
        };
        let vary = self.vary.iter().map(column).collect::<Result<_, _>>()?;
        Ok(PreparedRecords { from, to, count: self.count, entry, vary })
    }
}

impl PreparedRecords {
    fn nth_entry(&self, number: u64, received: u64) -> Entry {
        let mut entry = self.entry;
        for column in &self.vary {
            write_value(&mut entry, column, column.read_value(&self.entry).wrapping_add(number.into()));
        }
        entry[..8].copy_from_slice(&received.to_be_bytes());
        entry
    }
}

/// Writes a value into its column; bits beyond the column's width are dropped.
fn write_value(entry: &mut Entry, column: &Column, value: u128) {
    let width = column.kind.width();
    entry[column.offset..column.offset + width].copy_from_slice(&value.to_be_bytes()[16 - width..]);
}

#[cfg(test)]
mod tests {
    use dta_history::HistoryEpoch;
    use dta_proto::store::StoreSpec;

    use super::super::AlertsConfig;
    use super::*;

    const TESTS: &str = r#"
[[test]]
name = "flood"
records = [
  { to = "2m", vary = ["src-port"], values = { src = "10.0.0.1", dst = "192.0.2.9", protocol = "tcp", tcp-flags = 0x1b, dst-port = 443, packets = 10, bytes = "5k" } },
  { from = "60s", to = "2m", count = 200, vary = ["src"], values = { src = "10.1.0.0", dst = "192.0.2.7", protocol = "tcp", tcp-flags = "syn", dst-port = 80, packets = 10, bytes = 400 } },
]
"#;

    fn run(expect: &str) -> RuleTestResult {
        let tests: RuleTests = toml::from_str(&format!("{TESTS}{expect}")).unwrap();
        let names = Arc::new(Names::empty());
        let rules = AlertsConfig::default().to_rules(&names).unwrap();
        tests.test[0].run(0, rules, &names, Path::new("")).unwrap()
    }

    #[test]
    fn what_is_missing_late_or_unexpected_is_a_problem() {
        let good = run(
            "expect = [ { rule = \"syn-flood\", labels = { dst = \"192.0.2.7\" }, before = \"2m\" }, { rule = \"syn-flood-sources\" } ]",
        );
        assert_eq!(good.problems, [""; 0]);
        assert!(
            good.fired
                .iter()
                .all(|alert| (60..100).contains(&alert.fired_after) && alert.resolved_after > Some(120))
        );
        let bad =
            run("expect = [ { rule = \"syn-flood\", before = \"61s\" }, { rule = \"port-scan\" } ]").problems;
        assert_eq!(bad.len(), 3, "{bad:?}");
        assert!(bad[0].contains("later than 61 s") && bad[1].contains("port-scan did not fire"), "{bad:?}");
        assert!(bad[2].starts_with("syn-flood-sources fired after"), "{bad:?}");
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        for (records, says) in [
            ("{ to = \"1s\", values = { sport = 1 } }", "there is no column `sport`"),
            ("{ to = \"1s\", values = { dst-port = 65536 } }", "at most 65535"),
            ("{ from = \"2s\", to = \"1s\", values = {} }", "later than `from`"),
            ("{ to = \"1s\", vary = [\"x\"], values = {} }", "there is no column `x`"),
            ("{ to = \"7d\", count = 1_000_000, values = {} }", "at most 100000000 records"),
        ] {
            let test: RuleTest = toml::from_str(&format!("name = \"x\"\nrecords = [{records}]")).unwrap();
            let error = test.run(0, Vec::new(), &Arc::new(Names::empty()), Path::new("")).unwrap_err();
            assert!(error.to_string().contains(says), "{records}: {error}");
            assert!(error.config_key().starts_with("test[0].records[0]."));
        }
    }

    /// Writes a history with one epoch per minute. An epoch's last records are in the next epoch.
    fn write_history(folder: &Path, minutes: u64, records: impl Fn(u64) -> Vec<FlowRecord>) {
        let kind = StoreKind::Append {
            lists: 1,
            ring: 1024,
            batch_len: 1024,
            entry_len: ENTRY_LEN as u8,
            notify: false,
        };
        let spec = StoreSpec { id: 1, name: STORE.into(), kind };
        let table = EpochTable::open(folder, &spec).unwrap();
        for number in 0..minutes {
            let mut flush = table.begin_epoch(number + 1).unwrap();
            let seconds = (number * 60).saturating_sub(1)..number * 60 + 59;
            for (sequence, record) in (1..).zip(seconds.flat_map(&records)) {
                let bytes = &record.to_entry()[..];
                flush.push(HistoryEntry { list: 0, sequence, number: 0, bytes }).unwrap();
            }
            let opened = START / MILLISECOND + number * 60_000;
            let epoch = HistoryEpoch {
                number: number + 1,
                opened,
                flipped_from: opened + 59_900,
                flipped_to: opened + 60_000,
                confirmed: true,
                ..HistoryEpoch::default()
            };
            flush.finish(&epoch).unwrap();
        }
    }

    #[test]
    fn the_records_of_a_history_make_the_same_alerts() {
        let folder = tempfile::tempdir().unwrap();
        write_history(folder.path(), 4, |second| {
            let flood = (60..120).contains(&second);
            let record = |number: u32| FlowRecord {
                received: START + second * SECOND,
                src: std::net::Ipv4Addr::from_bits(0x0a01_0000 + second as u32 * 200 + number)
                    .to_ipv6_mapped(),
                dst: std::net::Ipv4Addr::new(192, 0, 2, 7).to_ipv6_mapped(),
                protocol: 6,
                tcp_flags: if flood { 2 } else { 0x1b },
                packets: 10,
                ..FlowRecord::EMPTY
            };
            (0..if flood { 200 } else { 1 }).map(record).collect()
        });
        let names = Arc::new(Names::empty());
        let rules = || AlertsConfig::default().to_rules(&names).unwrap();
        let run = |more: &str| {
            let text = format!("name = \"x\"\nhistory = \"{}\"\n{more}", folder.path().display());
            let test: RuleTest = toml::from_str(&text).unwrap();
            test.run(0, rules(), &names, Path::new("/nowhere"))
        };
        let found = run("expect = [ { rule = \"syn-flood\" }, { rule = \"syn-flood-sources\" } ]").unwrap();
        assert_eq!(found.problems, [""; 0]);
        assert!(found.fired.iter().all(|alert| (60..100).contains(&alert.fired_after)), "{:?}", found.fired);
        assert!(found.fired.iter().all(|alert| (121..200).contains(&alert.resolved_after.unwrap())));
        let before = run("until = \"2026-01-01T00:01:00Z\"").unwrap();
        assert_eq!((before.fired.len(), before.problems.len()), (0, 0));
        let within = run("since = \"2026-01-01T00:01:30Z\"").unwrap();
        assert!(within.fired.iter().all(|alert| alert.fired_after < 30), "{:?}", within.fired);
        assert_eq!(within.fired.len(), 2);
        for (more, says) in [
            ("since = \"2027-01-01T00:00Z\"", "there is no epoch in this span"),
            ("since = \"yesterday\"", "must be a moment"),
            ("records = [{ to = \"1s\", values = {} }]", "either `records` or `history`"),
        ] {
            let error = run(more).unwrap_err();
            assert!(error.to_string().contains(says), "{more}: {error}");
        }
        let test: RuleTest = toml::from_str("name = \"x\"\nhistory = \"none\"").unwrap();
        let error = test.run(3, rules(), &names, folder.path()).unwrap_err();
        assert_eq!(error.config_key(), "test[3].history");
    }
}

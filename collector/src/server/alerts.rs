//! Evaluates alert rules on what comes into this collector's memory: reads its lists, counters and values on a thread of
//! its own, which gives way to the software NIC and to calls. If it cannot keep up, it takes a sample and says so.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dta_cli::number::{format_bytes, format_count};
use dta_export::directory::Directory;
use dta_export::fields::EventFields;
use dta_export::names::Names;
use dta_files::moment::now_ns;
use dta_memory::reader::append::{ReadProgress, ReadStart};
use dta_memory::reader::flow_scan::{holds_flow_records, tally_flows};
use dta_memory::store::{ServedStores, Store};
use dta_proto::flow_query::{FlowRow, format_value};
use dta_proto::flow_record;
use dta_proto::store::StoreKind;
use dta_proto::telemetry::{self, TelemetryEntry, list};

use super::alert_readings::ReadingPoller;
use super::list_follower::ListFollower;
use crate::alerts::deliver::{AlertDeliveries, DeliveryOptions};
use crate::alerts::{AlertBoard, AlertEngine, Evaluation, Finding, Rule};
use crate::config::{Config, MemoryBacking};

/// How often the lists are read, and how often while a list brings more than a quarter of its ring each time.
const EVERY: Duration = Duration::from_secs(1);
const EVERY_WHEN_BUSY: Duration = Duration::from_millis(50);
/// Batches to read at a time.
const BATCHES: u64 = 256;
/// Under load, at least one batch in this many is evaluated.
const MOST_SKIPPED: u64 = 64;
/// How much this thread yields to others.
const NICE: i32 = 5;
/// Largest rows shown with an alert, and most alerts of an evaluation that get them: each takes a scan of memory.
const ROWS: usize = 3;
const MOST_SCANS: usize = 4;
/// The file that keeps the state, in the memory directory.
const STATE_FILE: &str = "alerts.json";

/// The alerts that an earlier run left in a memory directory. A damaged file does not keep a collector from starting.
pub(super) fn open_board(folder: Option<&Path>) -> AlertBoard {
    let path = folder.map(|folder| folder.join(STATE_FILE));
    AlertBoard::open(path.clone()).unwrap_or_else(|error| {
        let path = path.unwrap_or_default();
        tracing::error!(error, path = %path.display(), "cannot read the alert state: it will not be saved; remove the file");
        AlertBoard::default()
    })
}

/// Makes alerts fire only once in the collector's cluster, if it is in one.
pub(super) fn join_cluster(config: &Config, board: &AlertBoard) -> anyhow::Result<()> {
    if let Some(cluster) = &config.cluster {
        let id = cluster.id(config).to_owned();
        board.set_cluster(dta_cluster::join_alerts(cluster.etcd.clone(), id)?);
    }
    Ok(())
}

/// Hands delivery over to another collector of the cluster, if there is one.
pub(super) async fn leave_cluster(board: &AlertBoard) {
    if let Some(cluster) = board.cluster()
        && tokio::time::timeout(super::cluster::LEAVE, cluster.leave_cluster()).await.is_err()
    {
        tracing::warn!("etcd did not answer: another collector delivers alerts when this one's lease ends");
    }
}

/// How deliveries describe this collector, with links to the page at this address.
pub(super) fn delivery_options(config: &Config, page: String) -> DeliveryOptions {
    let folder = match &config.memory {
        MemoryBacking::Anonymous => None,
        MemoryBacking::Directory(folder) => Some(folder.clone()),
    };
    DeliveryOptions { collector: config.name.clone(), page, folder }
}

/// Starts delivering alerts to the configured receivers.
pub(super) fn start_deliveries(
    config: &Config,
    page: String,
    board: &Arc<AlertBoard>,
) -> anyhow::Result<AlertDeliveries> {
    let options = delivery_options(config, page);
    AlertDeliveries::start(&config.alerts, board, &options).map_err(anyhow::Error::msg)
}

/// Evaluates rules until this is dropped.
#[derive(Debug)]
pub(super) struct AlertFollower {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<RuleEvaluation>>,
}

impl AlertFollower {
    /// Starts evaluating rules on the lists of these stores.
    pub(super) fn start(
        rules: Vec<Rule>,
        board: &Arc<AlertBoard>,
        stores: &Arc<ServedStores>,
        names: &Arc<Names>,
    ) -> std::io::Result<AlertFollower> {
        RuleEvaluation::new(rules, board.clone(), stores, names.clone(), now_ns()).spawn()
    }

    /// Evaluates other rules from now on, or the same ones on the lists of more stores. What is known for
    /// unchanged rules is kept.
    pub(super) fn change_rules(
        &mut self,
        rules: Vec<Rule>,
        board: &Arc<AlertBoard>,
        stores: &Arc<ServedStores>,
        names: &Arc<Names>,
    ) -> std::io::Result<()> {
        // Stop first: the old evaluation must not bring back alerts whose rules are gone.
        *self = match self.stop_evaluation() {
            Some(former) => former.with_rules(rules, now_ns()).spawn()?,
            None => AlertFollower::start(rules, board, stores, names)?,
        };
        Ok(())
    }

    /// Waits until the evaluation has stopped; returns what it knows, unless it failed.
    fn stop_evaluation(&mut self) -> Option<RuleEvaluation> {
        self.stop = None;
        let evaluation = self.thread.take()?.join();
        if evaluation.is_err() {
            tracing::error!("evaluation of alert rules stopped unexpectedly");
        }
        evaluation.ok()
    }
}

impl Drop for AlertFollower {
    fn drop(&mut self) {
        self.stop_evaluation();
    }
}

#[derive(Debug)]
struct RuleEvaluation {
    engine: AlertEngine,
    board: Arc<AlertBoard>,
    stores: Arc<ServedStores>,
    poller: ReadingPoller,
    records: Option<(ListFollower, BatchSampler)>,
    events: Option<(ListFollower, BatchSampler)>,
    directory: Directory,
    is_warned: bool,
}

/// Decides which batches are evaluated: one in `one_in`.
#[derive(Debug)]
struct BatchSampler {
    one_in: u64,
    number: u64,
    /// How many times in a row a list brought more than a quarter of its ring.
    busy: u32,
}

impl BatchSampler {
    fn new() -> BatchSampler {
        BatchSampler { one_in: 1, number: 0, busy: 0 }
    }

    /// How many batches this one stands for, if it is to be evaluated.
    fn weight(&mut self) -> Option<u64> {
        self.number = self.number.wrapping_add(1);
        self.number.is_multiple_of(self.one_in).then_some(self.one_in)
    }

    /// Takes fewer batches if a reader stays busy even though it reads again at once.
    fn adapt(&mut self, is_busy: bool) {
        self.busy = if is_busy { self.busy.saturating_add(1) } else { 0 };
        self.one_in = match self.busy {
            0 => (self.one_in / 2).max(1),
            1 | 2 => self.one_in,
            _ => (self.one_in * 2).min(MOST_SKIPPED),
        };
    }
}

impl RuleEvaluation {
    fn new(
        rules: Vec<Rule>,
        board: Arc<AlertBoard>,
        stores: &Arc<ServedStores>,
        names: Arc<Names>,
        now: u64,
    ) -> RuleEvaluation {
        let engine = AlertEngine::new(Vec::new(), names, now);
        let evaluation = RuleEvaluation {
            engine,
            board,
            stores: stores.clone(),
            poller: ReadingPoller::default(),
            records: None,
            events: None,
            directory: Directory::default(),
            is_warned: false,
        };
        evaluation.with_rules(rules, now)
    }

    /// Continues with other rules, and with the lists of stores that were added.
    fn with_rules(mut self, rules: Vec<Rule>, now: u64) -> RuleEvaluation {
        self.board.begin_rules(&rules, now);
        let stores = &self.stores;
        let follow = |name: &str, is_suitable: fn(&Store) -> bool, start: fn(u32) -> ReadStart| {
            let store = stores.get(name).ok().filter(|store| is_suitable(store))?;
            Some((ListFollower::new(stores.clone(), store, start, "alerts"), BatchSampler::new()))
        };
        if rules.is_empty() {
            (self.records, self.events) = (None, None);
        } else {
            let all = |_| ReadStart::Oldest;
            self.records = self.records.or_else(|| follow(flow_record::STORE, holds_flow_records, all));
            // Old events cannot be assigned to windows: clocks of switches may be wrong.
            let new = |list| match list {
                list::KEYS => ReadStart::Oldest,
                _ => ReadStart::Next,
            };
            self.events = self.events.or_else(|| follow(telemetry::store::EVENTS, holds_events, new));
        }
        self.engine = self.engine.with_rules(rules, now);
        self
    }

    /// Evaluates on a thread of its own.
    fn spawn(mut self) -> std::io::Result<AlertFollower> {
        let (stop, stopped) = channel();
        let run = move || {
            // If the system refuses, the thread keeps the usual priority.
            _ = rustix::process::nice(NICE);
            self.run(&stopped);
            self
        };
        let thread = std::thread::Builder::new().name("alerts".into()).spawn(run)?;
        Ok(AlertFollower { stop: Some(stop), thread: Some(thread) })
    }

    fn run(&mut self, stopped: &Receiver<()>) {
        // Nothing is ever sent: whoever stops this drops the other end.
        self.look_back(|| stopped.try_recv() == Err(TryRecvError::Disconnected));
        loop {
            let is_busy = self.read_lists();
            let now = now_ns();
            self.poller.poll(&mut self.engine, &mut self.directory, &self.stores, now);
            self.evaluate(now);
            let pause = if is_busy { EVERY_WHEN_BUSY } else { EVERY };
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Fills the windows of added rules with records that were read before and are still in memory. If this
    /// is stopped, the next evaluation does it.
    fn look_back(&mut self, is_stopped: impl Fn() -> bool) {
        let Self { engine, records: Some((follower, _)), .. } = self else { return };
        if let Err(error) = engine.look_back(now_ns(), |add| follower.read_again(BATCHES, is_stopped, add)) {
            tracing::warn!(%error, "cannot read earlier flow records: new alert rules start with new records");
        }
    }

    /// Reads what is new; returns whether there may soon be much more.
    fn read_lists(&mut self) -> bool {
        let Self { engine, board, directory, .. } = self;
        let count_losses = |engine: &mut AlertEngine, progress: &ReadProgress, now| {
            engine.note_losses(progress, now);
            let counters = board.counters();
            for (counter, batches) in [
                (&counters.overwritten, progress.overwritten),
                (&counters.missing, progress.missing),
                (&counters.damaged, progress.damaged),
            ] {
                counter.fetch_add(batches, Ordering::Relaxed);
            }
        };
        let mut is_busy = false;
        if let Some((follower, sampler)) = &mut self.events {
            let is_much = follower.read_new_batches(BATCHES, |list, reader| {
                let now = now_ns();
                let progress = reader.read(BATCHES, Instant::now(), |_, entries| {
                    let entries = entries.chunks_exact(telemetry::ENTRY_LEN);
                    if list == list::KEYS {
                        return entries
                            .filter_map(TelemetryEntry::parse_bytes)
                            .for_each(|entry| directory.take(&entry));
                    }
                    let Some(weight) = sampler.weight() else {
                        return engine.note_skipped(entries.len() as u64, now);
                    };
                    for entry in entries.filter_map(TelemetryEntry::parse_bytes) {
                        let fields = EventFields::from_entry(&entry, |key| directory.resolve_key(key));
                        engine.add_event(&fields, weight, now);
                    }
                })?;
                count_losses(engine, &progress, now);
                Ok(progress)
            });
            sampler.adapt(is_much);
            is_busy |= is_much;
        }
        if let Some((follower, sampler)) = &mut self.records {
            let is_much = follower.read_new_batches(BATCHES, |_, reader| {
                let now = now_ns();
                let progress = reader.read(BATCHES, Instant::now(), |_, entries| match sampler.weight() {
                    Some(weight) => engine.add_flow_records(entries, weight, now),
                    None => engine.note_skipped((entries.len() / flow_record::ENTRY_LEN) as u64, now),
                })?;
                count_losses(engine, &progress, now);
                Ok(progress)
            });
            sampler.adapt(is_much);
            is_busy |= is_much;
        }
        is_busy
    }

    fn evaluate(&mut self, now: u64) {
        let store = self.records.as_ref().map(|(follower, _)| follower.store());
        let mut scans = 0;
        for Evaluation { rule, findings, started } in self.engine.evaluate(now) {
            for (fingerprint, finding) in self.board.apply(rule, &findings, now, started) {
                scans += 1;
                if let Some(store) = store.filter(|_| scans <= MOST_SCANS) {
                    self.board.set_rows(&fingerprint, &largest_rows(store, rule, finding));
                }
            }
        }
        self.engine.publish_counters(self.board.counters());
        match self.board.publish(now) {
            Ok(()) => self.is_warned = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_warned, true) {
                    tracing::warn!(%error, "cannot write the alert state; retrying");
                }
            }
        }
    }
}

fn holds_events(store: &Store) -> bool {
    matches!(store.spec.kind, StoreKind::Append { entry_len, .. } if usize::from(entry_len) == telemetry::ENTRY_LEN)
}

/// The largest groups of flow records behind a finding, in words.
fn largest_rows(store: &Store, rule: &Rule, finding: &Finding) -> Vec<String> {
    let Some((question, by)) = finding.to_question(rule) else { return Vec::new() };
    let row = |row: &FlowRow| {
        let values = question.group.iter().zip(&row.values);
        let values =
            values.map(|(column, value)| format!("{} {}", column.name, format_value(column, *value)));
        let sums = row.sums;
        format!(
            "{}: {}, {}",
            values.collect::<Vec<_>>().join(", "),
            format_bytes(sums.bytes),
            format_count(sums.packets, "packet", "packets")
        )
    };
    // One thread is enough: nobody waits for it.
    let tally = tally_flows(store, &question, false, 1);
    tally.map_or(Vec::new(), |(tally, _)| tally.rank_groups(by, ROWS).rows.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use dta_memory::store::MemoryBacking;
    use dta_proto::flow_record::FlowRecord;
    use dta_proto::layout::append::{batch_offset, encode_batch};
    use dta_proto::store::StoreSpec;

    use super::*;
    use crate::alerts::AlertsConfig;

    const RING: u64 = 64;
    const SECOND: u64 = 1_000_000_000;

    fn parse_rules(text: &str) -> Vec<Rule> {
        toml::from_str::<AlertsConfig>(text).unwrap().to_rules(&Names::empty()).unwrap()
    }

    fn evaluation(text: &str) -> (RuleEvaluation, Arc<Store>) {
        let kind = StoreKind::Append {
            lists: 2,
            ring: RING,
            batch_len: 256,
            entry_len: flow_record::ENTRY_LEN as u8,
            notify: false,
        };
        let spec = StoreSpec { id: 1, name: flow_record::STORE.into(), kind };
        let stores = ServedStores::open(&[spec], &MemoryBacking::Anonymous, Default::default()).unwrap();
        let (names, rules) = (Arc::new(Names::empty()), parse_rules(text));
        let store = stores.get(flow_record::STORE).unwrap();
        (RuleEvaluation::new(rules, Arc::default(), &Arc::new(stores), names, now_ns()), store)
    }

    fn write(store: &Store, list: u32, sequences: std::ops::RangeInclusive<u32>) {
        for sequence in sequences {
            let record =
                FlowRecord { packets: 10, bytes: 1000, src_port: 7, received: now_ns(), ..FlowRecord::EMPTY };
            let mut batch = [0; 256];
            encode_batch(&mut batch, list, sequence, 1, &record.to_entry());
            store.region.write(batch_offset(list, sequence, RING, 256), &batch).unwrap();
        }
    }

    #[test]
    fn records_in_memory_make_alerts_with_their_largest_rows() {
        let text = "defaults = false\n[[rule]]\nname = \"busy\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"1h\"\nabove = 50\n";
        let (mut evaluation, store) = evaluation(text);
        write(&store, 0, 1..=4);
        write(&store, 1, 1..=4);
        assert!(!evaluation.read_lists());
        // The bucket of these records has ended.
        let now = now_ns() + 601 * SECOND;
        evaluation.evaluate(now);
        let alerts = evaluation.board.alerts();
        assert_eq!((alerts.len(), alerts[0].value, alerts[0].state.as_str()), (1, 80.0, "firing"));
        assert_eq!(alerts[0].rows.len(), 1, "{alerts:?}");
        assert!(alerts[0].rows[0].contains("src-port 7") && alerts[0].rows[0].ends_with("80 packets"));
        // The writer is a ring and 10 batches ahead.
        write(&store, 0, 5..=4 + RING as u32 + 10);
        assert!(evaluation.read_lists());
        evaluation.evaluate(now);
        let counters = evaluation.board.counters();
        let [entries, overwritten] =
            [&counters.entries, &counters.overwritten].map(|counter| counter.load(Ordering::Relaxed));
        assert_eq!(entries - 8 + overwritten, RING + 10);
        assert!(overwritten >= 10, "{overwritten}");
    }

    #[test]
    fn a_reload_reads_nothing_twice_and_a_new_rule_looks_back() {
        let busy = "[[rule]]\nname = \"busy\"\ngroup = \"dst\"\nmeasure = \"packets\"\nwindow = \"1h\"\nabove = 15\n";
        let (mut evaluation, store) = evaluation(&format!("defaults = false\n{busy}"));
        write(&store, 0, 1..=4);
        evaluation.read_lists();
        let more = busy.replace("busy", "more").replace("dst", "src");
        let rules = parse_rules(&format!("defaults = false\n{more}{busy}severity = \"critical\"\n"));
        evaluation = evaluation.with_rules(rules.clone(), now_ns());
        // What comes meanwhile is read in its turn.
        write(&store, 0, 5..=6);
        evaluation.look_back(|| true);
        evaluation = evaluation.with_rules(rules, now_ns());
        evaluation.look_back(|| false);
        evaluation.look_back(|| false);
        evaluation.read_lists();
        evaluation.evaluate(now_ns() + 601 * SECOND);
        let alerts = evaluation.board.alerts();
        let found: Vec<_> = alerts.iter().map(|alert| (alert.rule.as_str(), alert.value)).collect();
        assert_eq!(found, [("busy", 60.0), ("more", 60.0)]);
        let entries = evaluation.board.counters().entries.load(Ordering::Relaxed);
        assert_eq!(entries, 6, "a record is counted once");
        assert_eq!(alerts[0].severity, "critical");
        assert!(evaluation.with_rules(Vec::new(), now_ns()).records.is_none());
    }

    #[test]
    fn only_who_stays_busy_takes_a_sample() {
        let mut sampler = BatchSampler::new();
        let mut weights = |is_busy: &[bool]| {
            is_busy.iter().for_each(|is_busy| sampler.adapt(*is_busy));
            (0..128).map(|_| sampler.weight().unwrap_or(0)).collect::<Vec<_>>()
        };
        assert_eq!(weights(&[true, true, false, true]), [1; 128]);
        let sampled = weights(&[true, true, true]);
        assert_eq!((sampled.iter().max(), sampled.iter().sum::<u64>()), (Some(&4), 128));
        assert_eq!(weights(&[true; 50]).iter().max(), Some(&MOST_SKIPPED));
        assert_eq!(weights(&[false; 10]), [1; 128]);
    }
}

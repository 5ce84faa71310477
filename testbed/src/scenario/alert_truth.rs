//! How well the default alert rules find what goes wrong, and how often they raise a false alarm.
//!
//! Hours of the network pass as fast as this machine allows: the translator's decoder and rules read what devices send,
//! and the collector's engine evaluates what they make of it. Only transport and the memory of lists are left out; time
//! is simulated.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use comfy_table::{CellAlignment, Table, presets};
use dta_collector::alerts::{AlertBoard, AlertEngine, AlertsConfig, Rule};
use dta_collector::server::alert_readings::ReadingPoller;
use dta_export::directory::Directory;
use dta_export::fields::EventFields;
use dta_export::names::Names;
use dta_memory::store::{MemoryBacking, ServedStores};
use dta_proto::control::Alert;
use dta_proto::flow_record::FlowRecord;
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::layout::key_increment::counter_offset;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry::{self, TelemetryEntry};
use dta_proto::wire::dta::DtaBody;
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, RecordStore, Rules, StoreIds, Telemetry};

use super::background::CaptureBackground;
use super::network::{
    BORDER, agent_name, exporter_address, exporter_name, leaf_of_address, render_names, spine_switch,
    switch_name, uplink_port,
};
use super::{Datagram, Episode, EpisodeKind, Listener, Scenario, archive_host};

const EVENTS: u16 = 18;
const COUNTERS: u16 = 19;
const RECORDS: u16 = 21;
/// Counters of a store, and those of a key.
const SLOTS: u64 = 1 << 20;
const REDUNDANCY: u8 = 2;
const HOUR: u64 = 3600 * 1_000_000_000;
/// Nanoseconds since 1970 when a scenario begins: at 22:13 UTC.
const BEGAN: u64 = 1_700_000_000_000_000_000;
/// Days of the archive's traffic that are replayed before it begins, without any other traffic.
const DAYS_BEFORE: u64 = 4;
/// The hour of each day in which the archive gets more.
const BACKUP_HOUR: u64 = 23;
/// Nanoseconds between the records of what the archive gets.
const ARCHIVE_INTERVAL: u64 = 25_000_000_000;
/// Nothing goes wrong in this time, in which rules learn what is usual.
const QUIET: Duration = Duration::from_secs(65 * 60);
/// From the start of an episode to that of the next.
const SPACING: Duration = Duration::from_secs(10 * 60);
const LENGTH: Duration = Duration::from_secs(4 * 60);
/// An exporter is missed after five minutes.
const DEAD_LENGTH: Duration = Duration::from_secs(8 * 60);
/// Windows of five minutes of counters that come every 20 seconds.
const COUNTED_LENGTH: Duration = Duration::from_secs(9 * 60);
/// An alert needs ten minutes of unusual load.
const UNUSUAL_LENGTH: Duration = Duration::from_secs(20 * 60);

/// An alert that began to fire.
struct Firing {
    rule: String,
    labels: BTreeMap<String, String>,
    /// Since the scenario began.
    at: Duration,
}

/// What an alert says of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It is what the rule is for.
    Found,
    /// It is true, but not what the rule is for.
    SideEffect,
    Unrelated,
}

/// What became of a rule in all runs.
#[derive(Default)]
struct RuleScore {
    episodes: u64,
    found: u64,
    /// From the start of an episode to the alert, in windows of the rule.
    delays: Vec<f64>,
    true_alerts: u64,
    false_alerts: u64,
}

/// From datagrams to alerts.
struct AlertReplay {
    decoder: Decoder,
    telemetry: Telemetry,
    made: PrimitiveBatch,
    directory: Directory,
    stores: ServedStores,
    poller: ReadingPoller,
    engine: AlertEngine,
    board: AlertBoard,
    last_transition: u64,
}

impl AlertReplay {
    fn new() -> anyhow::Result<AlertReplay> {
        let mut telemetry = Telemetry::new(Rules::default());
        telemetry.set_stores(StoreIds {
            events: Some(EVENTS),
            counters: Some(COUNTERS),
            ..StoreIds::default()
        });
        telemetry.set_record_store(RecordStore { id: RECORDS, lists: vec![0] });
        let names = Names::parse(&render_names(), Path::new("names.toml"))?;
        let rules = AlertsConfig::default().to_rules(&names)?;
        let board = AlertBoard::open(None).map_err(|error| anyhow!(error))?;
        let began = BEGAN - DAYS_BEFORE * 24 * HOUR;
        board.begin_rules(&rules, began);
        let kind = StoreKind::KeyIncrement { slots: SLOTS, redundancy: REDUNDANCY, replicas: 1 };
        let counters = StoreSpec { id: COUNTERS, name: telemetry::store::COUNTERS.into(), kind };
        Ok(AlertReplay {
            decoder: Decoder::new(DecoderOptions::default()),
            telemetry,
            made: PrimitiveBatch::default(),
            directory: Directory::default(),
            stores: ServedStores::open(&[counters], &MemoryBacking::Anonymous, Default::default())?,
            poller: ReadingPoller::default(),
            engine: AlertEngine::new(rules, Arc::new(names), began),
            board,
            last_transition: 0,
        })
    }

    /// Takes what came until `now`, in nanoseconds since 1970, with records of other traffic; returns the alerts that fire
    /// then.
    fn take_datagrams(
        &mut self,
        datagrams: &[Datagram],
        others: Vec<FlowRecord>,
        now: u64,
    ) -> anyhow::Result<Vec<Alert>> {
        let at = ArrivalTime { now, wall: now };
        for record in others {
            self.telemetry.ingest_exported(at, &Exported::Flow(record), &mut self.made);
        }
        for Datagram { source, to, payload } in datagrams {
            let Self { decoder, telemetry, made, .. } = self;
            match to {
                Listener::Int => {
                    telemetry.ingest_datagram(at, (*source).into(), payload, &IntSettings::default(), made);
                }
                Listener::Flows => {
                    let from = SocketAddr::from((*source, 2055));
                    decoder.decode_datagram(at, from, payload, |exported| match exported {
                        Ok(exported) => telemetry.ingest_exported(at, &exported, made),
                        Err(reason) => telemetry.drop_record(reason),
                    });
                }
            }
        }
        for (store, body) in self.made.iter() {
            match body {
                DtaBody::Append { value, .. } if store == RECORDS => {
                    self.engine.add_flow_records(value, 1, now);
                }
                DtaBody::Append { value, .. } => {
                    let entry = TelemetryEntry::parse_bytes(value).context("an event")?;
                    self.directory.take(&entry);
                    let fields = EventFields::from_entry(&entry, |key| self.directory.resolve_key(key));
                    self.engine.add_event(&fields, 1, now);
                }
                DtaBody::KeyIncrement { key, delta, .. } => add_to_counter(&self.stores, &key, delta)?,
                _ => {}
            }
        }
        self.made.clear();
        self.poller.poll(&mut self.engine, &mut self.directory, &self.stores, now);
        for evaluation in self.engine.evaluate(now) {
            self.board.apply(evaluation.rule, &evaluation.findings, now, evaluation.started);
        }
        self.board.publish(now)?;
        let transitions = self.board.transitions_after(self.last_transition);
        self.last_transition = transitions.last().map_or(self.last_transition, |last| last.number);
        let alerts = transitions.into_iter().filter_map(|transition| transition.alert);
        Ok(alerts.filter(Alert::is_firing).collect())
    }
}

/// Adds to a counter, as the collector's NIC does.
fn add_to_counter(stores: &ServedStores, key: &Key, delta: u64) -> anyhow::Result<()> {
    let store = stores.get(telemetry::store::COUNTERS)?;
    for slot in hash::key_slots(key, REDUNDANCY, SLOTS).iter() {
        store.region.fetch_add(counter_offset(*slot), delta)?;
    }
    Ok(())
}

/// The records exported at a moment for what clients send to the archive: 60 Mbit/s, and 400 in the hour of the backup.
fn archive_records(now: u64) -> Vec<FlowRecord> {
    if !now.is_multiple_of(ARCHIVE_INTERVAL) {
        return Vec::new();
    }
    let is_backup = now / HOUR % 24 == BACKUP_HOUR;
    let bits_per_second = if is_backup { 400_000_000 } else { 60_000_000 };
    let bytes = bits_per_second / 8 * (ARCHIVE_INTERVAL / 1_000_000_000) / 10;
    let record = |client: u8| FlowRecord {
        received: now,
        start: now - ARCHIVE_INTERVAL,
        end: now,
        exporter: exporter_address(BORDER).to_ipv6_mapped(),
        src: Ipv4Addr::new(203, 0, 113, 200 + client).to_ipv6_mapped(),
        dst: archive_host().to_ipv6_mapped(),
        src_port: 50_000,
        dst_port: 873,
        protocol: 6,
        bytes,
        packets: bytes / 1500,
        ..FlowRecord::EMPTY
    };
    (0..10).map(record).collect()
}

/// The alerts that fire in a scenario of this length. `progress` gets the time that has passed, and the length.
fn replay_scenario(
    seed: u64,
    episodes: &[Episode],
    length: Duration,
    mut background: Option<CaptureBackground>,
    progress: &mut impl FnMut(Duration, Duration),
) -> anyhow::Result<Vec<Firing>> {
    let mut scenario = Scenario::new(seed, episodes.to_vec(), BEGAN).with_interface_counters();
    let mut replay = AlertReplay::new()?;
    // What fires in these days is ignored: the rules know no past yet.
    for moment in (BEGAN - DAYS_BEFORE * 24 * HOUR..BEGAN).step_by(ARCHIVE_INTERVAL as usize) {
        replay.take_datagrams(&[], archive_records(moment), moment)?;
    }
    let mut firings = Vec::new();
    while scenario.elapsed() < length {
        let datagrams = scenario.advance_tick();
        let elapsed = scenario.elapsed();
        let now = BEGAN + elapsed.as_nanos() as u64;
        let mut records = archive_records(now);
        records.extend(background.iter_mut().flat_map(|capture| capture.records_until(elapsed, BEGAN)));
        for Alert { rule, labels, .. } in replay.take_datagrams(&datagrams, records, now)? {
            firings.push(Firing { rule, labels, at: elapsed });
        }
        progress(scenario.elapsed(), length);
    }
    Ok(firings)
}

/// For each limit on an episode's own packets, bytes or ports, an episode 20 % below and one 20 % above it; then one of
/// each kind in its usual size.
fn episodes_of_run(seed: u64) -> Vec<Episode> {
    let near = EpisodeKind::ALL.into_iter().flat_map(|kind| {
        let limits = rules_of_kind(kind).iter().filter_map(|(_, limit)| *limit);
        limits.flat_map(move |limit| sizes_near(kind, limit)).map(move |size| (kind, size))
    });
    let usual = EpisodeKind::ALL.map(|kind| (kind, 100.0));
    let mut start = QUIET;
    let episode = |(number, (kind, size)): (u64, (EpisodeKind, f64))| {
        let length = match kind {
            EpisodeKind::DeadExporter => DEAD_LENGTH,
            EpisodeKind::FullInterface | EpisodeKind::BadCable => COUNTED_LENGTH,
            EpisodeKind::UnusualLoad => UNUSUAL_LENGTH,
            _ => LENGTH,
        };
        let seed = seed.wrapping_mul(0x9e37_79b9) ^ number;
        let episode = Episode::new(kind, start, length, seed).with_size(size);
        // The archive's next one begins when no window contains any of this one.
        start += if kind == EpisodeKind::UnusualLoad { SPACING * 3 } else { SPACING };
        episode
    };
    (0..).zip(near.chain(usual)).map(episode).collect()
}

/// The rules that must find a kind of episode; each with its limit, in percent of the usual size, if it limits the
/// episode's own packets, bytes or ports.
fn rules_of_kind(kind: EpisodeKind) -> &'static [(&'static str, Option<f64>)] {
    match kind {
        // 1,000 SYNs a second; 1,000 in 30 seconds.
        EpisodeKind::SynFlood => {
            &[("syn-flood", Some(50.0)), ("syn-flood-sources", Some(100_000.0 / 30.0 / 2000.0))]
        }
        EpisodeKind::Amplification => &[("amplification", Some(100.0 * 10.0 / 600.0))],
        // 100 in a minute.
        EpisodeKind::PortScan => &[("port-scan", Some(100.0 / 60.0))],
        EpisodeKind::HostScan => &[("host-scan", Some(100.0 / 60.0))],
        EpisodeKind::Elephant => &[("elephant", Some(100.0 * 100.0 / 920.0)), ("link-use", None)],
        EpisodeKind::Microburst => &[("queue-full", None)],
        EpisodeKind::SlowHop => &[("hop-latency", None)],
        EpisodeKind::Blackhole | EpisodeKind::LossyLink => &[("drops", None)],
        EpisodeKind::RoutingLoop => &[("path-loop", None)],
        EpisodeKind::FlappingPath => &[("path-moved", None)],
        // 50 of 300, and 1,000 of 6,000 packets in a minute.
        EpisodeKind::DroppedFlow => &[("flow-drops", Some(100.0 / 6.0))],
        EpisodeKind::DeniedTraffic => &[("discarded-traffic", Some(100.0 / 6.0))],
        EpisodeKind::DeadExporter => &[("exporter-silent", None)],
        // 60 Mbit/s are usual, and ten deviations are as many, because one is at least a tenth.
        EpisodeKind::UnusualLoad => &[("unusual-rate", Some(100.0 * 60.0 / 240.0))],
        // 1,000 of 30,000, and 100 of 3,000 packets in five minutes.
        EpisodeKind::FullInterface => &[("interface-discards", Some(100.0 / 30.0))],
        EpisodeKind::BadCable => &[("interface-errors", Some(100.0 / 30.0))],
    }
}

/// Sizes at which what a rule measures is 20 % below and above its limit.
fn sizes_near(kind: EpisodeKind, limit: f64) -> [f64; 2] {
    // What the archive gets without an episode is measured, too.
    let usual = if kind == EpisodeKind::UnusualLoad { limit } else { 0.0 };
    [0.8, 1.2].map(|share| share * (usual + limit) - usual)
}

/// Whether a rule must find an episode.
fn is_wanted(episode: &Episode, rule: &str) -> bool {
    let is_above = |limit: &Option<f64>| match limit {
        Some(limit) => episode.size > *limit,
        None => episode.size >= 100.0,
    };
    rules_of_kind(episode.kind).iter().any(|(name, limit)| *name == rule && is_above(limit))
}

/// Whether an alert is about an episode that is under way.
fn judge_firing(episode: &Episode, firing: &Firing) -> Verdict {
    let label = |name: &str| firing.labels.get(name).map(String::as_str).unwrap_or_default();
    let is_from = |address: Ipv4Addr| label("src") == address.to_string();
    let is_to = |address: Ipv4Addr| label("dst") == address.to_string();
    let is_behind_leaf =
        |name: &str| label(name).parse().is_ok_and(|address| leaf_of_address(address) == episode.leaf);
    let (victim, source) = (episode.victim, episode.source);
    let (leaf, spine) = (switch_name(episode.leaf), switch_name(spine_switch(episode.spine)));
    let port_of =
        |agent: u32, port: u16| label("switch") == agent_name(agent) && label("port") == port.to_string();
    let is_found = is_wanted(episode, &firing.rule)
        && match episode.kind {
            EpisodeKind::SynFlood | EpisodeKind::Amplification | EpisodeKind::UnusualLoad => is_to(victim),
            EpisodeKind::PortScan => is_from(source) && is_to(victim),
            EpisodeKind::HostScan => is_from(source),
            EpisodeKind::Elephant if firing.rule == "elephant" => is_from(source) && is_to(victim),
            // Each link on its path is full.
            EpisodeKind::Elephant => true,
            EpisodeKind::Microburst => label("switch") == leaf,
            EpisodeKind::SlowHop => label("switch") == spine,
            EpisodeKind::Blackhole => label("switch") == spine && label("reason") == "ip-miss",
            EpisodeKind::LossyLink => label("switch") == agent_name(spine_switch(episode.spine)),
            EpisodeKind::RoutingLoop => is_behind_leaf("dst"),
            EpisodeKind::FlappingPath => is_behind_leaf("src") || is_behind_leaf("dst"),
            EpisodeKind::DroppedFlow => label("switch") == leaf && label("dst_port") == "873",
            EpisodeKind::DeniedTraffic | EpisodeKind::DeadExporter => {
                label("exporter") == exporter_name(episode.leaf)
            }
            EpisodeKind::FullInterface => port_of(episode.leaf, uplink_port(episode.spine)),
            EpisodeKind::BadCable => port_of(spine_switch(episode.spine), episode.leaf as u16),
        };
    let is_side_effect = match episode.kind {
        EpisodeKind::Elephant => {
            ["drops", "flow-drops", "hop-latency", "queue-full"].contains(&&*firing.rule)
        }
        EpisodeKind::Blackhole | EpisodeKind::LossyLink => firing.rule == "flow-drops",
        EpisodeKind::Microburst => firing.rule == "hop-latency" && label("switch") == leaf,
        // What crosses a link twice fills it, and goes another way than before.
        EpisodeKind::RoutingLoop => ["path-moved", "link-use"].contains(&&*firing.rule),
        EpisodeKind::Amplification => firing.rule == "link-use",
        EpisodeKind::DroppedFlow => firing.rule == "drops" && label("switch") == leaf,
        _ => false,
    };
    match (is_found, is_side_effect) {
        (true, _) => Verdict::Found,
        (false, true) => Verdict::SideEffect,
        (false, false) => Verdict::Unrelated,
    }
}

/// Whether an alert may be about an episode by its time: it may be late by a window plus the time its condition must hold.
fn is_in_time(episode: &Episode, rule: &Rule, at: Duration) -> bool {
    let late = rule.window() + rule.lasting() + Duration::from_secs(10);
    (episode.start..episode.end + late).contains(&at)
}

/// The scores of all default rules.
pub struct AlertTruth {
    rules: Vec<Rule>,
    scores: BTreeMap<String, RuleScore>,
    /// What was missed or false, and when, for people.
    problems: Vec<String>,
    simulated: Duration,
}

impl AlertTruth {
    /// Runs scenarios with these seeds, with a capture's traffic beside the network's. `progress` gets the time that has passed in each, and its length.
    ///
    /// # Errors
    /// The default rules or the capture cannot be used.
    pub fn measure(
        seeds: impl IntoIterator<Item = u64>,
        capture: Option<&Path>,
        mut progress: impl FnMut(Duration, Duration),
    ) -> anyhow::Result<AlertTruth> {
        let mut truth = AlertTruth::new()?;
        let background = capture.map(CaptureBackground::read).transpose()?;
        for seed in seeds {
            let episodes = episodes_of_run(seed);
            let length = episodes.iter().map(|episode| episode.end).max().unwrap_or_default() + SPACING;
            let firings = replay_scenario(seed, &episodes, length, background.clone(), &mut progress)?;
            truth.simulated += length;
            truth.add_run(&episodes, &firings);
        }
        Ok(truth)
    }

    fn new() -> anyhow::Result<AlertTruth> {
        let rules = AlertReplay::new()?.engine.rules().cloned().collect();
        Ok(AlertTruth { rules, scores: BTreeMap::new(), problems: Vec::new(), simulated: Duration::ZERO })
    }

    fn add_run(&mut self, episodes: &[Episode], firings: &[Firing]) {
        for rule in &self.rules {
            let score = self.scores.entry(rule.name().to_owned()).or_default();
            let firings: Vec<_> = firings.iter().filter(|firing| firing.rule == rule.name()).collect();
            for firing in &firings {
                let is_true = episodes.iter().any(|episode| {
                    is_in_time(episode, rule, firing.at)
                        && judge_firing(episode, firing) != Verdict::Unrelated
                });
                *(if is_true { &mut score.true_alerts } else { &mut score.false_alerts }) += 1;
                if !is_true {
                    let (at, labels) = (firing.at.as_secs(), &firing.labels);
                    self.problems.push(format!("False after {at} s: {} of {labels:?}", rule.name()));
                }
            }
            for episode in episodes.iter().filter(|episode| is_wanted(episode, rule.name())) {
                score.episodes += 1;
                let found = firings.iter().find(|firing| {
                    is_in_time(episode, rule, firing.at) && judge_firing(episode, firing) == Verdict::Found
                });
                let Episode { kind, size, start, .. } = *episode;
                if let Some(found) = found {
                    score.found += 1;
                    score.delays.push((found.at - start).div_duration_f64(rule.window()));
                } else {
                    let (kind, start) = (kind.name(), start.as_secs());
                    self.problems
                        .push(format!("Missed after {start} s by {}: {kind} of {size:.0} %", rule.name()));
                }
            }
        }
    }

    /// Whether every episode was found, and nothing else.
    pub fn is_perfect(&self) -> bool {
        self.scores.values().all(|score| score.found == score.episodes && score.false_alerts == 0)
    }

    /// A table, in Markdown.
    pub fn render(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header([
            "detector",
            "episodes",
            "recall",
            "precision",
            "median windows to alert",
            "longest",
            "false alarms",
        ]);
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let share = |part: u64, all: u64| match all {
            0 => "–".to_owned(),
            _ => format!("{:.0} %", part as f64 * 100.0 / all as f64),
        };
        for rule in &self.rules {
            let Some(score) = self.scores.get(rule.name()) else { continue };
            let mut delays = score.delays.clone();
            delays.sort_by(f64::total_cmp);
            let windows =
                |delay: Option<&f64>| delay.map_or_else(|| "–".to_owned(), |delay| format!("{delay:.1}"));
            table.add_row([
                rule.name().to_owned(),
                score.episodes.to_string(),
                share(score.found, score.episodes),
                share(score.true_alerts, score.true_alerts + score.false_alerts),
                windows(delays.get(delays.len() / 2)),
                windows(delays.last()),
                score.false_alerts.to_string(),
            ]);
        }
        let hours = self.simulated.as_secs_f64() / 3600.0;
        let problems: String = self.problems.iter().map(|problem| format!("\n{problem}")).collect();
        format!("{table}\n\n{hours:.1} hours of the network in all.{problems}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::capture::{DecodedPacket, write_header, write_packet};

    #[test]
    fn a_flood_is_found_and_nothing_else_and_a_missed_or_false_alert_counts() {
        let episode = |kind| Episode::new(kind, Duration::from_secs(40), Duration::from_secs(60), 3);
        let flood = episode(EpisodeKind::SynFlood);
        let firings = replay_scenario(1, &[flood], Duration::from_secs(120), None, &mut |_, _| {}).unwrap();
        let mut rules: Vec<_> = firings.iter().map(|firing| &*firing.rule).collect();
        rules.sort_unstable();
        assert_eq!(rules, ["syn-flood", "syn-flood-sources"]);
        assert!(firings.iter().all(|firing| judge_firing(&flood, firing) == Verdict::Found));

        let score = |episode: Episode| {
            let mut truth = AlertTruth::new().unwrap();
            truth.add_run(&[episode], &firings);
            truth
        };
        let right = score(flood);
        assert!(right.is_perfect(), "{}", right.render());
        // Of another host, the same alerts are false, and its flood was missed.
        let other = score(Episode { victim: flood.source, ..flood });
        let [found, false_alerts] = ["syn-flood", "syn-flood-sources"]
            .map(|rule| &other.scores[rule])
            .iter()
            .fold([0, 0], |[found, wrong], score| [found + score.found, wrong + score.false_alerts]);
        assert_eq!((found, false_alerts, other.is_perfect()), (0, 2, false));
        assert!(!score(episode(EpisodeKind::PortScan)).is_perfect());
    }

    #[test]
    fn traffic_of_a_capture_is_evaluated() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write_header(&mut file).unwrap();
        for port in 1..=200 {
            let flow = format!("192.0.2.1:5000->192.0.2.2:{port}/udp").parse().unwrap();
            write_packet(&mut file, &DecodedPacket { flow, length: 60 }, port * 10_000_000).unwrap();
        }
        file.flush().unwrap();
        let capture = CaptureBackground::read(file.path()).unwrap();
        let firings = replay_scenario(1, &[], Duration::from_secs(90), Some(capture), &mut |_, _| {});
        let firings = firings.unwrap();
        let found: Vec<_> = firings.iter().map(|firing| (&*firing.rule, &*firing.labels["src"])).collect();
        assert_eq!(found, [("port-scan", "192.0.2.1")]);
    }

    #[test]
    fn episodes_near_a_limit_are_for_or_against_its_rule() {
        for episode in episodes_of_run(1) {
            let wanted = |rule: &str| is_wanted(&episode, rule);
            let rules = rules_of_kind(episode.kind);
            assert!(episode.size != 100.0 || rules.iter().all(|(rule, _)| wanted(rule)), "{episode:?}");
        }
        let sizes = |kind| {
            let episodes = episodes_of_run(1).into_iter().filter(move |episode| episode.kind == kind);
            episodes.map(|episode| episode.size.round()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(EpisodeKind::DroppedFlow), [13.0, 20.0, 100.0]);
        assert_eq!(sizes(EpisodeKind::UnusualLoad), [15.0, 35.0, 100.0]);
        assert_eq!(sizes(EpisodeKind::SynFlood).len(), 5);
    }
}

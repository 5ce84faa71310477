//! How well the default alert rules find what goes wrong, and how often they say that something does where nothing did.
//!
//! Hours of the network pass as fast as this machine is: the translator's decoder and rules read what devices send, and
//! the collector's engine evaluates what they make of it. Only transport and memory are left out; time is simulated.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use comfy_table::{CellAlignment, Table, presets};
use dta_collector::alerts::{AlertBoard, AlertEngine, AlertsConfig, Rule};
use dta_export::directory::Directory;
use dta_export::fields::EventFields;
use dta_export::names::Names;
use dta_proto::flow_record::FlowRecord;
use dta_proto::telemetry::TelemetryEntry;
use dta_proto::wire::dta::DtaBody;
use dta_telemetry::exported::Exported;
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, RecordStore, Rules, StoreIds, Telemetry};

use super::background::CaptureBackground;
use super::network::{agent_name, exporter_name, leaf_of_address, render_names, spine_switch, switch_name};
use super::{Datagram, Episode, EpisodeKind, Listener, Scenario};

const EVENTS: u16 = 18;
const RECORDS: u16 = 21;
/// Nanoseconds since 1970 when a scenario begins.
const BEGAN: u64 = 1_700_000_000_000_000_000;
/// Nothing goes wrong in this time, in which rules learn what is usual.
const QUIET: Duration = Duration::from_secs(65 * 60);
/// From the start of an episode to that of the next.
const SPACING: Duration = Duration::from_secs(10 * 60);
const LENGTH: Duration = Duration::from_secs(4 * 60);
/// An exporter is missed after five minutes.
const DEAD_LENGTH: Duration = Duration::from_secs(8 * 60);

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
    /// It is true, and not what the rule is for.
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
    engine: AlertEngine,
    board: AlertBoard,
    last_transition: u64,
}

impl AlertReplay {
    fn new() -> anyhow::Result<AlertReplay> {
        let mut telemetry = Telemetry::new(Rules::default());
        telemetry.set_stores(StoreIds { events: Some(EVENTS), ..StoreIds::default() });
        telemetry.set_record_store(RecordStore { id: RECORDS, lists: vec![0] });
        let names = Names::parse(&render_names(), Path::new("names.toml"))?;
        let rules = AlertsConfig::default().to_rules(&names)?;
        let board = AlertBoard::open(None).map_err(|error| anyhow!(error))?;
        board.begin_rules(&rules, BEGAN);
        Ok(AlertReplay {
            decoder: Decoder::new(DecoderOptions::default()),
            telemetry,
            made: PrimitiveBatch::default(),
            directory: Directory::default(),
            engine: AlertEngine::new(rules, Arc::new(names), BEGAN),
            board,
            last_transition: 0,
        })
    }

    /// Takes what came until `elapsed`, with records of other traffic, and adds the alerts that fire then.
    fn take_datagrams(
        &mut self,
        datagrams: &[Datagram],
        background: Vec<FlowRecord>,
        elapsed: Duration,
        firings: &mut Vec<Firing>,
    ) -> anyhow::Result<()> {
        let now = BEGAN + elapsed.as_nanos() as u64;
        let at = ArrivalTime { now: elapsed.as_nanos() as u64, wall: now };
        for record in background {
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
            let DtaBody::Append { value, .. } = body else { continue };
            if store == RECORDS {
                self.engine.add_flow_records(value, 1, now);
            } else {
                let entry = TelemetryEntry::parse_bytes(value).context("an event")?;
                self.directory.take(&entry);
                let fields = EventFields::from_entry(&entry, |key| self.directory.resolve_key(key));
                self.engine.add_event(&fields, 1, now);
            }
        }
        self.made.clear();
        for evaluation in self.engine.evaluate(now) {
            self.board.apply(evaluation.rule, &evaluation.findings, now, evaluation.started);
        }
        self.board.publish(now)?;
        for transition in self.board.transitions_after(self.last_transition) {
            self.last_transition = transition.number;
            let alert = transition.alert.context("a transition has an alert")?;
            if alert.is_firing() {
                firings.push(Firing { rule: alert.rule, labels: alert.labels, at: elapsed });
            }
        }
        Ok(())
    }
}

/// The alerts that fire in so much of a scenario. `progress` gets the time that has passed, and all of it.
fn replay_scenario(
    seed: u64,
    episodes: &[Episode],
    length: Duration,
    mut background: Option<CaptureBackground>,
    progress: &mut impl FnMut(Duration, Duration),
) -> anyhow::Result<Vec<Firing>> {
    let (mut scenario, mut replay) = (Scenario::new(seed, episodes.to_vec(), BEGAN), AlertReplay::new()?);
    let mut firings = Vec::new();
    while scenario.elapsed() < length {
        let datagrams = scenario.advance_tick();
        let elapsed = scenario.elapsed();
        let records = background.as_mut().map_or_else(Vec::new, |capture| capture.records_until(elapsed));
        replay.take_datagrams(&datagrams, records, elapsed, &mut firings)?;
        progress(scenario.elapsed(), length);
    }
    Ok(firings)
}

/// Those whose limit is a number of their own packets, bytes or ports, 20 % above it; then one of each kind in its usual
/// size.
fn episodes_of_run(seed: u64) -> Vec<Episode> {
    let weak = EpisodeKind::ALL.into_iter().filter_map(|kind| Some((kind, weak_size(kind)?)));
    let usual = EpisodeKind::ALL.map(|kind| (kind, 100));
    let episode = |(number, (kind, size)): (u32, (EpisodeKind, u32))| {
        let length = if kind == EpisodeKind::DeadExporter { DEAD_LENGTH } else { LENGTH };
        let seed = seed.wrapping_mul(0x9e37_79b9) ^ u64::from(number);
        Episode::new(kind, QUIET + SPACING * number, length, seed).with_size(size)
    };
    (0..).zip(weak.chain(usual)).map(episode).collect()
}

/// The size, in percent of the usual one, that is 20 % above the limit of the rule that is to find it.
fn weak_size(kind: EpisodeKind) -> Option<u32> {
    match kind {
        // 1,200 SYNs a second, 12 Mbit/s, and 120 ports or hosts in a minute.
        EpisodeKind::SynFlood => Some(60),
        EpisodeKind::Amplification | EpisodeKind::PortScan | EpisodeKind::HostScan => Some(2),
        // 120 Mbit/s, 60 drops and 1,200 packets in a minute.
        EpisodeKind::Elephant => Some(13),
        EpisodeKind::DroppedFlow | EpisodeKind::DeniedTraffic => Some(20),
        _ => None,
    }
}

/// The rules that are to find an episode.
fn wanted_rules(episode: &Episode) -> &'static [&'static str] {
    match episode.kind {
        EpisodeKind::SynFlood => &["syn-flood", "syn-flood-sources"],
        EpisodeKind::Amplification => &["amplification"],
        EpisodeKind::PortScan => &["port-scan"],
        EpisodeKind::HostScan => &["host-scan"],
        EpisodeKind::Elephant if episode.size < 100 => &["elephant"],
        EpisodeKind::Elephant => &["elephant", "link-use"],
        EpisodeKind::Microburst => &["queue-full"],
        EpisodeKind::SlowHop => &["hop-latency"],
        EpisodeKind::Blackhole | EpisodeKind::LossyLink => &["drops"],
        EpisodeKind::RoutingLoop => &["path-loop"],
        EpisodeKind::FlappingPath => &["path-moved"],
        EpisodeKind::DroppedFlow => &["flow-drops"],
        EpisodeKind::DeniedTraffic => &["discarded-traffic"],
        EpisodeKind::DeadExporter => &["exporter-silent"],
    }
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
    let is_found = wanted_rules(episode).contains(&&*firing.rule)
        && match episode.kind {
            EpisodeKind::SynFlood | EpisodeKind::Amplification => is_to(victim),
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

/// Whether an alert may be about an episode by its time: an alert is late by a window and by how long its condition must hold.
fn is_in_time(episode: &Episode, rule: &Rule, at: Duration) -> bool {
    let late = rule.window() + rule.lasting() + Duration::from_secs(10);
    (episode.start..episode.end + late).contains(&at)
}

/// The scores of all default rules.
pub struct AlertTruth {
    rules: Vec<Rule>,
    scores: BTreeMap<String, RuleScore>,
    simulated: Duration,
}

impl AlertTruth {
    /// Runs scenarios with these seeds, with the traffic of a capture beside that of the network. `progress` gets the time that has passed in each, and how long it takes.
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
            let length = episodes.iter().map(|episode| episode.start).max().unwrap_or_default() + SPACING;
            let firings = replay_scenario(seed, &episodes, length, background.clone(), &mut progress)?;
            truth.simulated += length;
            truth.add_run(&episodes, &firings);
        }
        Ok(truth)
    }

    fn new() -> anyhow::Result<AlertTruth> {
        let rules = AlertReplay::new()?.engine.rules().cloned().collect();
        Ok(AlertTruth { rules, scores: BTreeMap::new(), simulated: Duration::ZERO })
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
            }
            for episode in episodes.iter().filter(|episode| wanted_rules(episode).contains(&rule.name())) {
                score.episodes += 1;
                let found = firings.iter().find(|firing| {
                    is_in_time(episode, rule, firing.at) && judge_firing(episode, firing) == Verdict::Found
                });
                if let Some(found) = found {
                    score.found += 1;
                    score.delays.push((found.at - episode.start).div_duration_f64(rule.window()));
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
        table.set_header(["detector", "episodes", "recall", "precision", "time to alert", "false alarms"]);
        table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let share = |part: u64, all: u64| match all {
            0 => "–".to_owned(),
            _ => format!("{:.0} %", part as f64 * 100.0 / all as f64),
        };
        for rule in &self.rules {
            let Some(score) = self.scores.get(rule.name()) else { continue };
            let mut delays = score.delays.clone();
            delays.sort_by(f64::total_cmp);
            let delay =
                delays.get(delays.len() / 2).map_or("–".into(), |delay| format!("{delay:.1} windows"));
            table.add_row([
                rule.name().to_owned(),
                score.episodes.to_string(),
                share(score.found, score.episodes),
                share(score.true_alerts, score.true_alerts + score.false_alerts),
                delay,
                score.false_alerts.to_string(),
            ]);
        }
        let hours = self.simulated.as_secs_f64() / 3600.0;
        format!("{table}\n\n{hours:.1} hours of the network in all.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_found_and_nothing_else_and_a_missed_or_false_alert_counts() {
        let episode = |kind| Episode::new(kind, Duration::from_secs(40), Duration::from_secs(60), 3);
        let flood = episode(EpisodeKind::SynFlood);
        let firings = replay_scenario(1, &[flood], Duration::from_secs(120), None, &mut |_, _| {}).unwrap();
        let mut rules: Vec<_> = firings.iter().map(|firing| &*firing.rule).collect();
        rules.sort_unstable();
        assert_eq!(rules, wanted_rules(&flood));
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
}

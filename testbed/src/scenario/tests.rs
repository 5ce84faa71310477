use dta_telemetry::exported::Exported;
use dta_telemetry::flows::{Decoder, DecoderOptions};
use dta_telemetry::int::{IntSettings, parse_reports};
use dta_telemetry::reports::ArrivalTime;

use super::*;

const BEGAN: u64 = 1_700_000_000_000_000_000;

/// What a scenario with these episodes sends in so many seconds, and its truth.
fn run(seed: u64, episodes: &[Episode], seconds: u64) -> (Vec<Datagram>, Truth) {
    let mut scenario = Scenario::new(seed, episodes.to_vec(), BEGAN).with_interface_counters();
    let mut sent = Vec::new();
    while scenario.elapsed() < Duration::from_secs(seconds) {
        sent.extend(scenario.advance_tick());
    }
    (sent, scenario.truth().clone())
}

fn episode(kind: EpisodeKind) -> Episode {
    Episode::new(kind, Duration::from_secs(2), Duration::from_secs(8), 3)
}

fn decode_exports(sent: &[Datagram]) -> Vec<Exported> {
    let mut decoder = Decoder::new(DecoderOptions::default());
    let mut all = Vec::new();
    for datagram in sent.iter().filter(|datagram| datagram.to == Listener::Flows) {
        let from = (datagram.source, 2055).into();
        decoder.decode_datagram(ArrivalTime { now: 0, wall: BEGAN }, from, &datagram.payload, |exported| {
            all.push(exported.expect("each record is readable"));
        });
    }
    let gaps: u64 = decoder.source_gaps().map(|(_, counters)| counters.gaps).sum();
    assert_eq!(gaps, 0);
    all
}

#[test]
fn the_same_seed_gives_the_same_datagrams_and_another_gives_others() {
    let episodes = [episode(EpisodeKind::SynFlood)];
    let (first, _) = run(1, &episodes, 4);
    assert!(first == run(1, &episodes, 4).0);
    assert!(first != run(2, &episodes, 4).0);
}

#[test]
fn a_decoder_reads_the_records_and_notices_that_the_truth_names() {
    let episodes = EpisodeKind::ALL.map(episode);
    let (sent, truth) = run(7, &episodes, 20);
    let (mut sums, mut damaged, mut interfaces) = (RecordSums::default(), 0, BTreeSet::new());
    for exported in decode_exports(&sent) {
        match exported {
            Exported::Flow(record) => {
                assert!(record.start >= BEGAN && record.end >= record.start, "{record:?}");
                sums.records += 1;
                sums.packets += record.packets;
                sums.bytes += record.bytes;
            }
            Exported::Drop(_) => damaged += 1,
            Exported::Interface(reading) => {
                interfaces.insert((reading.exporter, reading.interface));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sums, truth.all);
    let noticed = truth.drops.iter().filter(|((_, reason), _)| reason.is_sflow());
    assert_eq!(damaged, noticed.map(|(_, count)| count).sum::<u64>());
    assert!(damaged > 0);
    assert_eq!(interfaces.len(), 64, "both ends of each link");
}

#[test]
fn a_parser_reads_the_reports_that_the_truth_names() {
    let episodes = EpisodeKind::ALL.map(episode);
    let (sent, truth) = run(7, &episodes, 12);
    let (mut reports, mut drops, mut paths) = (0, BTreeMap::new(), BTreeSet::new());
    for datagram in sent.iter().filter(|datagram| datagram.to == Listener::Int) {
        for report in parse_reports(&datagram.payload, &IntSettings::default()).unwrap() {
            let report = report.unwrap();
            reports += 1;
            if let Some(reason) = report.local.drop_reason() {
                *drops.entry((report.switch.unwrap(), reason)).or_insert(0) += 1;
            } else if !report.flags.congested && report.packet.as_ref().unwrap().flow == tracked_flow() {
                let mut path: Vec<_> =
                    report.hops_with_switches().map(|(switch, _)| switch.unwrap()).collect();
                path.reverse();
                paths.insert(path);
            }
        }
    }
    assert_eq!((reports, paths), (truth.int_reports, truth.tracked_paths));
    let expected: BTreeMap<_, _> =
        truth.drops.into_iter().filter(|((_, reason), _)| !reason.is_sflow()).collect();
    assert_eq!(drops, expected);
}

#[test]
fn each_episode_leaves_its_mark() {
    for kind in EpisodeKind::ALL {
        let (episodes, seconds) = ([episode(kind)], if kind.is_brief() { 12 } else { 40 });
        let (sent, truth) = run(5, &episodes, seconds);
        let (quiet, before) = run(5, &[], seconds);
        let records = truth.of_episodes[0];
        let dropped = |truth: &Truth| truth.drops.values().sum::<u64>();
        let is_marked = match kind {
            EpisodeKind::SynFlood => records.records == 16_000 && records.packets == 16_000,
            EpisodeKind::PortScan | EpisodeKind::HostScan => records.records == 800,
            // 600 and 920 Mbit/s in 8 seconds; the last packet of a flow is a whole one.
            EpisodeKind::Amplification => (600_000_000..600_300_000).contains(&records.bytes),
            EpisodeKind::Elephant => (920_000_000..920_002_000).contains(&records.bytes),
            EpisodeKind::Blackhole | EpisodeKind::LossyLink => dropped(&truth) >= dropped(&before) + 3,
            EpisodeKind::DroppedFlow => dropped(&truth) == dropped(&before) + 40,
            EpisodeKind::DeniedTraffic => records.packets == 800,
            EpisodeKind::FlappingPath => truth.tracked_paths.len() == 2 && before.tracked_paths.len() == 1,
            EpisodeKind::Microburst => truth.int_reports > before.int_reports,
            EpisodeKind::UnusualLoad => (240_000_000..240_036_000).contains(&records.bytes),
            EpisodeKind::SlowHop
            | EpisodeKind::RoutingLoop
            | EpisodeKind::FullInterface
            | EpisodeKind::BadCable => sent != quiet,
            EpisodeKind::DeadExporter => truth.all.records + 10 < before.all.records,
        };
        assert!(is_marked, "{kind:?}: {truth:?}, without it {before:?}");
    }
}

//! Counters at one moment under their dotted names, for `dta.v1`.

use std::time::UNIX_EPOCH;

use dta_link::fault::FaultCounts;
use dta_proto::control::{Counter, NodeStatistics};
use dta_proto::counter::{CounterKind, CounterNode, EVICTED, Stage, reporter as heard, translator as names};

use super::packet_thread::Snapshot;
use dta_proto::program::Purpose;

/// The translator's own node and one node per reporter that it hears. `life` is a number chosen when counting
/// started.
pub fn node_statistics(name: &str, life: u64, snapshot: &Snapshot) -> Vec<NodeStatistics> {
    let time_us = snapshot.at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    let node = |name, life, counters| build_node(name, life, time_us, counters);
    let mut counters = snapshot.counters.named_counters();
    for pair in &snapshot.queue_pairs {
        let purpose = pair.purpose.name();
        let collector = collector_label(pair.collector);
        counters.extend(pair.counters.named_counters(&collector, purpose));
        for (counter, value) in
            [(&names::PAIR_OUTSTANDING, pair.outstanding.into()), (&names::PAIR_WAITING, pair.waiting as u64)]
        {
            counters.push((counter.format_name(&[&collector, purpose]), value));
        }
    }
    counters.push((names::ANSWERS_IGNORED.format_name(&[]), snapshot.answers_ignored));
    counters.push((names::REPORTERS_EVICTED.format_name(&[]), snapshot.evictions.0));
    counters.push((names::REPORTERS_HEARD_ONCE.format_name(&[]), snapshot.evictions.1));
    counters.extend(snapshot.int.iter().cloned());
    push_link_counters(&mut counters, names::REPORTS, &snapshot.reports_link);
    if let Some(of_int) = &snapshot.int_link {
        push_link_counters(&mut counters, names::INT_LINK, of_int);
    }
    if let Some(of_flows) = &snapshot.flows_link {
        push_link_counters(&mut counters, names::FLOWS_LINK, of_flows);
    }
    push_link_counters(&mut counters, names::ROCE, &snapshot.roce_link);
    if snapshot.ring.opened != 0 {
        counters.extend(snapshot.ring.named_counters());
    }
    if let Some(device) = &snapshot.device {
        counters.extend(device.named_counters());
    }
    push_fault_counters(&mut counters, names::ROCE, &snapshot.roce_faults);
    push_fault_counters(&mut counters, names::NACK, &snapshot.nack_faults);
    push_fault_counters(&mut counters, names::ANSWERS, &snapshot.answer_faults);

    let mut nodes = vec![node(Stage::Translator.node_name(name), life, counters)];
    for reporter in &snapshot.reporters {
        let mut counters = reporter.counters.named_counters();
        // From here the next run of this translator knows what it missed.
        counters.push((heard::NEWEST.format_name(&[]), reporter.newest.into()));
        // A reporter that was evicted and returned counts from 0, like a new one.
        let id = reporter.id.to_string();
        nodes.push(node(Stage::Reporter.node_name(&id), life.wrapping_add(reporter.since), counters));
    }
    if snapshot.evicted.received != 0 {
        nodes.push(node(EVICTED.into(), life, snapshot.evicted.named_counters()));
    }
    nodes
}

/// A collector's number in names of counters; omitted for the first.
fn collector_label(collector: u8) -> String {
    if collector == 0 { String::new() } else { collector.to_string() }
}

/// What to send to a collector: each reporter's last counters, without numbers meant only for this
/// translator's own statistics.
///
/// `among_others` is the collector's index if it is one of several: it then gets the reports of the whole
/// translator, but only its own frames, for comparison with what its NIC received.
pub(crate) fn for_collector(nodes: &mut Vec<NodeStatistics>, among_others: Option<u8>) {
    nodes.retain(|node| node.node != EVICTED);
    for node in nodes {
        let of = CounterNode::from_node_name(&node.node);
        let only_here =
            |name: &str| of.find_counter(name).is_some_and(|found| found.definition.kind == CounterKind::Now);
        node.counters.retain(|counter| !only_here(&counter.name));
        if let (CounterNode::Translator, Some(collector)) = (of, among_others) {
            frames_to(collector, &mut node.counters);
        }
    }
}

/// Keeps only those of a translator's frame counters that concern one collector.
fn frames_to(collector: u8, counters: &mut Vec<Counter>) {
    let collector = collector_label(collector);
    let of_pairs: Vec<String> = Purpose::ALL
        .iter()
        .flat_map(|purpose| {
            [names::PAIR_SENT, names::PAIR_RETRANSMITTED]
                .map(|name| name.format_name(&[&collector, purpose.name()]))
        })
        .collect();
    let sum = counters.iter().filter(|counter| of_pairs.contains(&counter.name)).map(|c| c.value).sum();
    // The link does not know whose its frames are.
    let (sent, frames) = (names::LINK_SENT.format_name(&[names::ROCE]), names::FRAMES.format_name(&[]));
    counters.retain(|counter| counter.name != sent);
    counters.iter_mut().filter(|counter| counter.name == frames).for_each(|counter| counter.value = sum);
}

fn build_node(node: String, life: u64, time_us: u64, counters: Vec<(String, u64)>) -> NodeStatistics {
    let counters = counters.into_iter().map(|(name, value)| Counter { name, value }).collect();
    NodeStatistics { node, counters, age_seconds: 0.0, session: String::new(), life, time_us }
}

fn push_link_counters(counters: &mut Vec<(String, u64)>, name: &str, link: &dta_link::LinkCounters) {
    counters.push((names::LINK_RECEIVED.format_name(&[name]), link.received));
    counters.push((names::LINK_SENT.format_name(&[name]), link.sent));
    for (loss, count) in link.losses_by_reason().into_iter().filter(|(_, count)| *count != 0) {
        counters.push((names::LINK_DROPPED.format_name(&[name, loss.name()]), count));
    }
    for (what, count) in link.xdp_counts().into_iter().filter(|(_, count)| *count != 0) {
        counters.push((names::LINK_XDP.format_name(&[name, what.name()]), count));
    }
    for (reason, count) in link.ignored_by_reason().into_iter().filter(|(_, count)| *count != 0) {
        counters.push((names::LINK_IGNORED.format_name(&[name, reason.name()]), count));
    }
}

fn push_fault_counters(counters: &mut Vec<(String, u64)>, name: &str, faults: &FaultCounts) {
    if faults.frames == faults.passed {
        return;
    }
    counters.push((names::FAULTS_FRAMES.format_name(&[name]), faults.frames));
    counters.extend(
        faults
            .counts_by_fault()
            .map(|(fault, count)| (names::FAULTS.format_name(&[name, fault.name()]), count)),
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::packets::DeviceCounters;
    use dta_dataplane::counters::EngineCounters;
    use dta_dataplane::requester::RequesterCounters;
    use dta_dataplane::{QueuePairStatus, ReporterCounters, ReporterStatus};
    use dta_proto::counter::{FlowReason, find_counter};
    use dta_proto::program::Transport;

    /// A translator with every counter nonzero.
    fn snapshot() -> Snapshot {
        let link = dta_link::LinkCounters {
            dropped_too_long: 1,
            dropped_by_kernel: 1,
            unsent_queue_full: 1,
            unsent_no_buffers: 1,
            unsent_too_long: 1,
            unsent_unreachable: 1,
            unsent_forbidden: 1,
            unsent_no_source: 1,
            unsent_malformed: 1,
            unsent_other: 1,
            ignored_vlan: 1,
            ignored_roce_v1: 1,
            ignored_ipv6: 1,
            xdp_received: 1,
            xdp_ring_full: 1,
            xdp_no_free_frame: 1,
            xdp_checksum: 1,
            xdp_malformed: 1,
            ..dta_link::LinkCounters::default()
        };
        let faults = FaultCounts { frames: 1, ..FaultCounts::default() };
        let mut counters = EngineCounters::default();
        counters.stores.push(("flows".into(), 1));
        let pair = |collector, purpose| QueuePairStatus {
            collector,
            purpose,
            transport: Transport::Rc,
            remote_qpn: 1,
            generation: 1,
            next_psn: 1,
            outstanding: 1,
            waiting: 1,
            down: false,
            counters: RequesterCounters {
                sent: 10 + u64::from(collector),
                retransmitted: 1,
                ..RequesterCounters::default()
            },
        };
        let pairs = [0, 1].iter().flat_map(|collector| Purpose::ALL.map(|purpose| pair(*collector, purpose)));
        let heard = ReporterCounters { received: 1, ..ReporterCounters::default() };
        Snapshot {
            at: UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001),
            counters,
            reporters: vec![ReporterStatus { id: 7, counters: heard, newest: 1, since: 0 }],
            evicted: heard,
            evictions: (1, 1),
            queue_pairs: pairs.collect(),
            answers_ignored: 1,
            former_regions: 1,
            int: of_int(),
            int_link: Some(link),
            flows_link: Some(link),
            reports_link: link,
            roce_link: link,
            ring: dta_link::RingCounters { opened: 1, ..Default::default() },
            device: Some(DeviceCounters { lost: 1, queue_pair_errors: 1, doorbells: 1 }),
            roce_faults: faults,
            nack_faults: faults,
            answer_faults: faults,
        }
    }

    /// INT and flows, with every reason and a gap.
    fn of_int() -> Vec<(String, u64)> {
        let mut telemetry = dta_telemetry::reports::Telemetry::new(dta_telemetry::reports::Rules::default());
        FlowReason::ALL.iter().for_each(|reason| telemetry.drop_record(*reason));
        let mut decoder = dta_telemetry::flows::Decoder::new(Default::default());
        for sequence in [1, 3] {
            let header = [0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, sequence, 0, 0, 0, 0];
            decoder.decode_datagram(Default::default(), ([10, 0, 0, 1], 2055).into(), &header, |_| {});
        }
        let flows = decoder.named_counters();
        assert!(flows.contains(&("flows.gaps_of.10.0.0.1/v9/0".into(), 1)), "{flows:?}");
        [telemetry.named_counters(), telemetry.named_records(), flows].concat()
    }

    fn names_of(nodes: &[NodeStatistics]) -> Vec<(&str, &str)> {
        let mut all = Vec::new();
        for node in nodes {
            all.extend(node.counters.iter().map(|counter| (node.node.as_str(), counter.name.as_str())));
        }
        all
    }

    #[test]
    fn every_counter_of_a_translator_is_defined() {
        let nodes = node_statistics("t", 1, &snapshot());
        let all = names_of(&nodes);
        assert!(all.len() > 100, "{all:?}");
        for (node, name) in all {
            assert!(find_counter(node, name).is_some_and(|found| found.known), "{node}: {name}");
        }
    }

    #[test]
    fn what_is_held_goes_to_the_collector_and_what_is_on_its_way_does_not() {
        let mut nodes = node_statistics("t", 1, &snapshot());
        let own: Vec<_> = nodes.iter().map(|node| node.node.clone()).collect();
        assert_eq!(own, ["translator/t", "reporter/7", EVICTED]);
        assert!(nodes.iter().all(|node| node.time_us == 1_700_000_000_000_001), "all were read at one time");
        for_collector(&mut nodes, None);
        let sent = names_of(&nodes);
        for (node, counter, is) in [
            ("translator/t", "held", true),
            ("translator/t", "append.held", true),
            ("translator/t", "append.accepted", true),
            ("translator/t", "queue_pair.write.sent", true),
            ("translator/t", "queue_pair.write.outstanding", false),
            ("translator/t", "queue_pair.atomic.waiting", false),
            ("reporter/7", "newest", true),
            (EVICTED, "received", false),
        ] {
            assert_eq!(sent.contains(&(node, counter)), is, "{counter}");
        }
    }

    #[test]
    fn one_of_several_collectors_gets_the_count_of_frames_to_it_alone() {
        for (collector, frames) in [(0, 22), (1, 24)] {
            let mut nodes = node_statistics("t", 1, &snapshot());
            for_collector(&mut nodes, Some(collector));
            let counter = |name| nodes[0].counters.iter().find(|c| c.name == name).map(|c| c.value);
            assert_eq!(counter("frames"), Some(frames));
            assert_eq!(counter("link.roce.sent"), None);
            assert!(counter("link.reports.sent").is_some() && counter("queue_pair.1.write.sent").is_some());
        }
    }
}

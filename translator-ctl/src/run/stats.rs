//! Counters of a moment under their dotted names, for `dta.v1`.

use dta_link::fault::FaultCounts;
use dta_proto::control::{Counter, NodeStatistics};

use super::packet_thread::Snapshot;
use dta_dataplane::ReporterCounters;

/// The translator's own node and one node per reporter that it hears. `life` is a number chosen when counting began.
pub fn nodes(name: &str, life: u64, snapshot: &Snapshot) -> Vec<NodeStatistics> {
    let mut counters = snapshot.counters.named();
    for pair in &snapshot.queue_pairs {
        let of = match pair.collector {
            0 => format!("queue_pair.{}", pair.purpose),
            further => format!("queue_pair.{further}.{}", pair.purpose),
        };
        let c = &pair.counters;
        let named = [
            ("sent", c.sent),
            ("retransmitted", c.retransmitted),
            ("acknowledged", c.acknowledged),
            // Not counts: how many there are now.
            ("outstanding", pair.outstanding.into()),
            ("waiting", pair.waiting as u64),
            ("answers", c.answers),
            ("stale_answers", c.stale_answers),
            ("nak_sequence", c.nak_sequence),
            ("receiver_not_ready", c.receiver_not_ready),
            ("nak_error", c.nak_error),
            ("go_backs", c.go_backs),
            ("timeouts", c.timeouts),
            ("replaced", c.replaced),
        ];
        counters.extend(named.map(|(name, value)| (format!("{of}.{name}"), value)));
    }
    counters.push(("answers_ignored".into(), snapshot.answers_ignored));
    counters.push(("reporters_evicted".into(), snapshot.evictions.0));
    counters.push(("reporters_heard_once".into(), snapshot.evictions.1));
    link(&mut counters, "reports", &snapshot.reports_link);
    link(&mut counters, "roce", &snapshot.roce_link);
    faults(&mut counters, "roce", &snapshot.roce_faults);
    faults(&mut counters, "nack", &snapshot.nack_faults);
    faults(&mut counters, "answers", &snapshot.answer_faults);

    let mut nodes = vec![node(format!("translator/{name}"), life, counters)];
    for reporter in &snapshot.reporters {
        let mut counters = of_reporter(&reporter.counters);
        // Not a count: from here the next life of this translator knows what it missed.
        counters.push(("newest".into(), reporter.newest.into()));
        // One that gave up its place and is back counts from 0, as a new life does.
        nodes.push(node(format!("reporter/{}", reporter.id), life.wrapping_add(reporter.since), counters));
    }
    if snapshot.evicted.received != 0 {
        nodes.push(node(EVICTED.into(), life, of_reporter(&snapshot.evicted)));
    }
    nodes
}

/// The sum of the reporters that gave up their places. Not for the collector: it keeps the last word of each.
pub(super) const EVICTED: &str = "reporter/evicted";

fn of_reporter(c: &ReporterCounters) -> Vec<(String, u64)> {
    let named = [
        ("received", c.received),
        ("gaps", c.gaps),
        ("gaps_filled", c.gaps_filled),
        ("duplicates", c.duplicates),
        ("out_of_window", c.out_of_window),
        ("restarts", c.restarts),
        ("nacks", c.nacks),
    ];
    named.map(|(name, value)| (name.to_string(), value)).into()
}

fn node(node: String, life: u64, counters: Vec<(String, u64)>) -> NodeStatistics {
    let counters = counters.into_iter().map(|(name, value)| Counter { name, value }).collect();
    NodeStatistics { node, counters, age_seconds: 0.0, session: String::new(), life }
}

fn link(counters: &mut Vec<(String, u64)>, name: &str, link: &dta_link::Counters) {
    counters.push((format!("link.{name}.received"), link.received));
    counters.push((format!("link.{name}.sent"), link.sent));
    for (reason, count) in link.losses() {
        if count != 0 {
            counters.push((format!("link.{name}.dropped.{reason}"), count));
        }
    }
}

fn faults(counters: &mut Vec<(String, u64)>, name: &str, faults: &FaultCounts) {
    if faults.frames == faults.passed {
        return;
    }
    let named = [
        ("frames", faults.frames),
        ("dropped", faults.dropped),
        ("duplicated", faults.duplicated),
        ("reordered", faults.reordered),
        ("corrupted", faults.corrupted),
    ];
    counters.extend(named.map(|(fault, value)| (format!("faults.{name}.{fault}"), value)));
}

//! Accounts for reports and frames: matches each link's frames, and checks that each report ended exactly once.

use std::collections::BTreeMap;

use dta_link::fault::FaultCounts;
use dta_link::udp::RUN_MAX;
use dta_proto::counter::nic::{self, Counter};
use dta_proto::counter::{CounterStep, Definition, Fault, LinkLoss, Reason, Stage, translator};
use serde::{Deserialize, Serialize};

use super::check::{
    DROPPED_BY_TRANSLATOR, HELD, LOST_TO_NIC, LOST_TO_TRANSLATOR, Pools, PrimitiveLimits, ReportEnds,
};
use super::ground::WireCounts;
use super::statistics::{NodeCounters, TestbedStatistics};
use crate::topology::{Primitive, Transport};

const REPORTS: &str = "reporter-translator";
const NACKS: &str = "translator-reporter";

/// The frames of one link in one direction: sent there, received here, and everything known about the
/// difference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LinkAccount {
    /// `reporter-translator`, `translator-reporter`, `translator-nic` or `nic-translator`.
    pub name: &'static str,
    /// Frames that the sender made.
    pub sent: u64,
    /// Frames that the fault injector dropped.
    pub dropped: u64,
    /// Frames that it sent twice.
    pub duplicated: u64,
    /// Frames that it sent late.
    pub reordered: u64,
    /// Frames in which it flipped a bit.
    pub corrupted: u64,
    /// Corrupted frames that the kernel's checksum stops (the receiver must find the others). For whole frames to an
    /// RDMA device, see `stopped_on_the_wire`.
    pub corrupted_stopped: u64,
    /// Frames that the sender's link did not send, by its own count.
    pub unsent: u64,
    /// Frames that the kernel dropped, by its own count: full receive queues, closed ports.
    pub kernel: u64,
    /// Frames that reached an RDMA device's port but that it did not take, by the kernel's count less the device's: a
    /// wrong iCRC, or no working queue pair. The software NIC counts those itself, by reason.
    pub device: u64,
    /// Frames in the socket of a process when it was killed.
    pub killed: u64,
    /// Frames that the receiver's link received.
    pub received: u64,
}

impl LinkAccount {
    /// Unaccounted frames: lost, or (negative) received beyond what was sent.
    pub fn unexplained(&self) -> i64 {
        let left = self.sent + self.duplicated;
        let gone = self.dropped
            + self.corrupted_stopped
            + self.unsent
            + self.kernel
            + self.device
            + self.killed
            + self.received;
        left as i64 - gone as i64
    }

    fn with_faults(mut self, counts: &FaultCounts) -> Self {
        (self.dropped, self.duplicated) = (counts.dropped, counts.duplicated);
        (self.reordered, self.corrupted) = (counts.reordered, counts.corrupted);
        self
    }
}

/// What the manager's side of the reporters' link counted.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ReporterSide {
    pub faults: FaultCounts,
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it did not take.
    pub unsent: u64,
    pub received: u64,
    /// The translator's datagrams that the kernel dropped at the reporters' sockets.
    pub kernel: u64,
    pub nacks: u64,
    pub retransmitted: u64,
    /// Whether a corrupted datagram is stopped by the receiving kernel's UDP checksum.
    pub checksum: bool,
}

impl ReporterSide {
    pub fn merged_with(mut self, other: &ReporterSide) -> ReporterSide {
        self.faults.add(&other.faults);
        self.sent += other.sent;
        self.unsent += other.unsent;
        self.received += other.received;
        self.kernel += other.kernel;
        self.nacks += other.nacks;
        self.retransmitted += other.retransmitted;
        self.checksum |= other.checksum;
        self
    }
}

/// What happened in the kernel, and around killed processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    /// The kernel's `RcvbufErrors` during the run: an upper limit of real overflows, because a socket's own drop
    /// count includes wrong checksums.
    pub receive_buffer_errors: u64,
    /// Packets that the kernel dropped at `lo` during the run, of all programs: an upper limit too.
    pub loopback_dropped: u64,
    /// Whether reports may leave in runs, each of which the kernel counts as one packet.
    pub reports_in_runs: bool,
    /// The same for frames and their answers.
    pub frames_in_runs: bool,
    /// Frames to the NIC's port while no process had it open, by the kernel's `NoPorts`.
    pub nic_port_closed: u64,
    /// Frames in the NIC's socket when its process was killed.
    pub nic_socket: u64,
    /// See [`device_dropped`].
    pub device_dropped: u64,
    /// Whether frames to the software NIC, and its answers, are raw: with a bit flipped in their headers, nobody takes them.
    pub raw_frames: bool,
    /// If a device sends the translator's frames: what passed between it and the collector's device.
    pub wire: Option<WireCounts>,
    /// Frames that the wire dropped and nobody sends again.
    pub lost_on_wire: u64,
    /// Frames that came while a killed collector had no queue pairs.
    pub no_queue_pair: u64,
    /// Reports in the translator's socket when its process was killed.
    pub reports_socket: u64,
    /// Reports that the kernel dropped while the translator was stopped (queue full) or dead (`NoPorts`).
    pub reports_dropped: u64,
}

impl Gaps {
    /// The most packets of a link that the kernel counts as one.
    fn longest_run_of(&self, link: &LinkAccount) -> u64 {
        let has_runs = match link.name {
            REPORTS => self.reports_in_runs,
            // The translator sends them in runs where it can.
            NACKS => true,
            _ => self.frames_in_runs,
        };
        if has_runs { RUN_MAX as u64 } else { 1 }
    }
}

/// Frames that reached an RDMA device's UDP port but that it did not take: all datagrams that the kernel delivered
/// meanwhile, less reports, NACKs and what the device counts. Nothing else may use UDP meanwhile.
pub fn device_dropped(statistics: &TestbedStatistics, reporters: &ReporterSide, in_datagrams: u64) -> u64 {
    let reports = statistics
        .stage_total(Stage::Translator)
        .get_with_parts(&translator::LINK_RECEIVED, &[translator::REPORTS]);
    let taken = statistics.stage_total(Stage::Nic).get(&nic::LINK_RECEIVED);
    in_datagrams.saturating_sub(reports + reporters.received + taken)
}

/// Raw frames with a flipped bit, to an RDMA device or between software, that never reached their port: a flip in the
/// Ethernet, IPv4 or UDP header makes them another host's, another protocol's or invalid. Nobody counts all of these, so
/// this is the remainder, but at most what the injector damaged less what the device's port dropped.
fn stopped_on_the_wire(frames: &LinkAccount) -> u64 {
    let left = u64::try_from(frames.unexplained()).unwrap_or(0);
    left.min(frames.corrupted.saturating_sub(frames.device))
}

/// The kernel counts a run dropped at the receive queue or a closed port as one. So each of `dropped` may stand for
/// more: adds the remainder, but no more than runs hold.
fn with_rest_of_runs(link: LinkAccount, dropped: u64) -> LinkAccount {
    let left = u64::try_from(link.unexplained()).unwrap_or(0);
    LinkAccount { kernel: link.kernel + left.min(dropped * (RUN_MAX as u64 - 1)), ..link }
}

/// Whether a NIC is an RDMA device, and has counted something.
fn is_device(nic: &NodeCounters<'_>) -> bool {
    nic.counters_of_definition(&nic::DEVICE_COUNTER).next().is_some()
}

/// What a fault injector did, by fault.
fn collect_fault_counts(of: impl Fn(Fault) -> u64) -> FaultCounts {
    FaultCounts {
        dropped: of(Fault::Dropped),
        duplicated: of(Fault::Duplicated),
        reordered: of(Fault::Reordered),
        corrupted: of(Fault::Corrupted),
        ..FaultCounts::default()
    }
}

/// Packets that a link of the translator did not send, by its own count.
fn unsent_packets(translator: &NodeCounters<'_>, link: &str) -> u64 {
    let lost = translator.counters_of_definition(&translator::LINK_DROPPED);
    let unsent = lost.filter(|(found, _)| {
        found.values[0] == link && LinkLoss::unsent_reason(found.last_value()).is_some()
    });
    unsent.map(|(_, count)| count).sum()
}

/// Frames, or work requests, that the translator's link did not send.
pub(crate) fn unsent_frames(statistics: &TestbedStatistics) -> u64 {
    unsent_packets(&statistics.stage_total(Stage::Translator), translator::ROCE)
}

/// The four links, from the counters of all nodes, and from those of `lo` for what is still missing.
pub fn account_links(
    statistics: &TestbedStatistics,
    reporters: &ReporterSide,
    gaps: &Gaps,
) -> [LinkAccount; 4] {
    let mut left = gaps.loopback_dropped;
    count_links(statistics, reporters, gaps).map(|link| {
        let longest_run = gaps.longest_run_of(&link);
        let missing = u64::try_from(link.unexplained()).unwrap_or(0);
        let explained = missing.min(left * longest_run);
        left -= explained.div_ceil(longest_run);
        LinkAccount { kernel: link.kernel + explained, ..link }
    })
}

/// The four links, from the counters of all nodes.
fn count_links(statistics: &TestbedStatistics, reporters: &ReporterSide, gaps: &Gaps) -> [LinkAccount; 4] {
    let (from, to) = (statistics.stage_total(Stage::Translator), statistics.stage_total(Stage::Nic));
    // A socket counts full queues and wrong checksums as one.
    let queue_full = |drops: u64, corrupted: u64| {
        if corrupted == 0 { drops } else { drops.min(gaps.receive_buffer_errors) }
    };
    let faults_on = |link: &str| {
        collect_fault_counts(|fault| from.get_with_parts(&translator::FAULTS, &[link, fault.name()]))
    };
    let lost_in =
        |link: &str, reason: LinkLoss| from.get_with_parts(&translator::LINK_DROPPED, &[link, reason.name()]);
    let lost_in_nic = |reason: LinkLoss| to.get_with_parts(&nic::LINK_LOST, &[reason.name_at_nic()]);

    let stopped = |corrupted: u64| if reporters.checksum { corrupted } else { 0 };
    let reports_dropped =
        queue_full(lost_in(translator::REPORTS, LinkLoss::ReceiveQueue), reporters.faults.corrupted);
    let reports = LinkAccount {
        name: REPORTS,
        sent: reporters.faults.frames,
        corrupted_stopped: stopped(reporters.faults.corrupted),
        unsent: reporters.unsent,
        kernel: reports_dropped + lost_in(translator::REPORTS, LinkLoss::TooLong) + gaps.reports_dropped,
        killed: gaps.reports_socket,
        received: from.get_with_parts(&translator::LINK_RECEIVED, &[translator::REPORTS]),
        ..LinkAccount::default()
    }
    .with_faults(&reporters.faults);
    let reports = with_rest_of_runs(reports, reports_dropped);

    let nack_faults = faults_on(translator::NACK);
    let nacks = LinkAccount {
        name: NACKS,
        sent: from.get(&translator::NACKS),
        corrupted_stopped: stopped(nack_faults.corrupted),
        unsent: unsent_packets(&from, translator::REPORTS),
        kernel: queue_full(reporters.kernel, nack_faults.corrupted),
        received: reporters.received,
        ..LinkAccount::default()
    }
    .with_faults(&nack_faults);

    let frames = LinkAccount {
        name: "translator-nic",
        sent: from.get(&translator::FRAMES),
        unsent: unsent_packets(&from, translator::ROCE),
        kernel: lost_in_nic(LinkLoss::ReceiveQueue) + lost_in_nic(LinkLoss::TooLong) + gaps.nic_port_closed,
        device: gaps.device_dropped,
        killed: gaps.nic_socket,
        // Not its link's counter: that one is written only now and then, and lags behind when the process is killed.
        received: to.get(&nic::RECEIVED),
        ..LinkAccount::default()
    }
    .with_faults(&faults_on(translator::ROCE));

    let frames = if let Some(WireCounts { sent, dropped, .. }) = gaps.wire {
        // What the device was not given is not a frame yet; what it sends again is one more.
        LinkAccount { sent, dropped: dropped[0], unsent: 0, ..frames }
    } else if is_device(&to) || gaps.raw_frames {
        LinkAccount { corrupted_stopped: stopped_on_the_wire(&frames), ..frames }
    } else {
        with_rest_of_runs(frames, lost_in_nic(LinkLoss::ReceiveQueue) + gaps.nic_port_closed)
    };

    // A batch in hand when the process was killed may have been answered, but not counted.
    let heard = from.get_with_parts(&translator::LINK_RECEIVED, &[translator::ROCE]);
    let answered = to.sum(CounterStep::Answered);
    let uncounted = heard.saturating_sub(answered).min(to.get_by_name(Counter::DroppedKilled.name()));
    let answers = LinkAccount {
        name: "nic-translator",
        sent: answered + uncounted,
        unsent: to
            .counters_of_definition(&nic::LINK_LOST)
            .filter(|(found, _)| LinkLoss::unsent_reason(found.last_value()).is_some())
            .map(|(_, lost)| lost)
            .sum(),
        kernel: lost_in(translator::ROCE, LinkLoss::ReceiveQueue)
            + lost_in(translator::ROCE, LinkLoss::TooLong),
        received: heard,
        ..LinkAccount::default()
    }
    .with_faults(&collect_fault_counts(|fault| to.get_with_parts(&nic::FAULTS, &[fault.name()])));
    // An RDMA device has no injector: faults act on its answers after the translator received them.
    let behind = faults_on(translator::ANSWERS);
    let answers = LinkAccount {
        reordered: answers.reordered + behind.reordered,
        corrupted: answers.corrupted + behind.corrupted,
        ..answers
    };
    if let Some(WireCounts { received, dropped, .. }) = gaps.wire {
        return [reports, nacks, frames, LinkAccount { received, dropped: dropped[1], ..answers }];
    }
    if gaps.raw_frames {
        let answers = LinkAccount { corrupted_stopped: stopped_on_the_wire(&answers), ..answers };
        return [reports, nacks, frames, answers];
    }
    let answers = with_rest_of_runs(answers, lost_in(translator::ROCE, LinkLoss::ReceiveQueue));
    [reports, nacks, frames, answers]
}

/// NIC drops that a ledger already records: damage is the injector's doing, and what RC skips was given up.
const RECORDED: [Counter; 11] = [
    Counter::DroppedIcrc,
    Counter::DroppedIpChecksum,
    Counter::DroppedPsn,
    Counter::DroppedQueuePairError,
    Counter::DroppedLength,
    Counter::DroppedFragment,
    Counter::DroppedOptions,
    Counter::DroppedVersion,
    Counter::DroppedPayloadLength,
    Counter::DroppedOpcode,
    Counter::DroppedNotRoce,
];

/// Reports that did not reach `translator` although no record says so, and those that it dropped, as pools for the
/// checks.
///
/// `expected` is how many reports arrived according to the records, which also show those lost with a killed
/// translator. The second value is how many reports are missing without any count.
pub fn loss_pools(
    statistics: &TestbedStatistics,
    links: &[LinkAccount; 4],
    gaps: &Gaps,
    expected: u64,
) -> (Pools, u64) {
    let node = statistics.stage_total(Stage::Translator);
    let mut pools = Pools::default();
    let mut dropped = 0;
    for (found, count) in node.counters_of_definition(&translator::DROPPED) {
        // A repeat of a received report is not a lost report, and the injector counts damaged ones.
        let reason = found.last_value();
        if !matches!(Reason::from_name(reason), Some(Reason::Duplicate | Reason::Checksum)) {
            pools.add(&format!("{DROPPED_BY_TRANSLATOR}{reason}"), count);
            dropped += count;
        }
    }
    for (name, _, count) in node.counters_at_step(CounterStep::Discarded) {
        let reason = translator::DISCARDED.parse_name(name).map_or(name, |found| found.last_value());
        pools.add(&format!("{DROPPED_BY_TRANSLATOR}{reason}"), count);
    }
    pools.add(HELD, node.get(&translator::HELD));
    let here = node.get(&translator::ACCEPTED) + dropped;
    let missing = expected.saturating_sub(here);
    let known = missing.min(links[0].kernel - gaps.reports_dropped + links[0].unsent);
    pools.add(LOST_TO_TRANSLATOR, known);
    // Anything else that a device drops was damaged by the injector, and is in its ledger.
    let gone = links[2].kernel + links[2].unsent + links[2].killed + gaps.no_queue_pair + gaps.lost_on_wire;
    pools.add_frames(LOST_TO_NIC, gone);
    for (name, found, frames) in statistics.stage_total(Stage::Nic).counters_at_step(CounterStep::Dropped) {
        if !RECORDED.iter().any(|recorded| recorded.name() == name) {
            pools.add_frames(&format!("dropped.nic.{}", found.last_value()), frames);
        }
    }
    (pools, missing - known)
}

/// How many reports of a primitive can be missing because the translator dropped or holds them, and whether lost frames
/// are sent again; `writes` is the transport of writes.
pub fn primitive_limits(
    statistics: &TestbedStatistics,
    primitive: Primitive,
    writes: Transport,
) -> PrimitiveLimits {
    let node = statistics.stage_total(Stage::Translator);
    let get = |counter: &Definition| node.get_with_parts(counter, &[primitive.canonical_name()]);
    // Discards are not counted by primitive.
    let refused = get(&translator::OF_RECEIVED).saturating_sub(get(&translator::OF_ACCEPTED));
    let dropped = refused + node.sum(CounterStep::Discarded);
    PrimitiveLimits {
        dropped,
        held: get(&translator::OF_HELD),
        reliable: primitive.queue_pair_purpose().transport(writes) == Transport::Rc,
    }
}

/// What was lost on RC, in words. RC loses nothing as long as its queue pairs live.
pub fn lost_on_rc(statistics: &TestbedStatistics, writes: Transport) -> Vec<String> {
    let node = statistics.stage_total(Stage::Translator);
    let lost = |primitive: &Primitive| {
        let name = primitive.canonical_name();
        let operations = node.get_with_parts(&translator::OF_LOST_OPERATIONS, &[name]);
        (operations > 0)
            .then(|| format!("RC should lose nothing, but {operations} operations of {name} were lost"))
    };
    let reliable = |primitive: &&Primitive| primitive.queue_pair_purpose().transport(writes) == Transport::Rc;
    Primitive::ALL.iter().filter(reliable).filter_map(lost).collect()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waterfall {
    pub sent: u64,
    /// In memory and part of an answer.
    pub queryable: u64,
    /// Replaced by a newer one with the same key.
    pub superseded: u64,
    /// Replaced by other keys, a turn of the ring or a later epoch.
    pub overwritten: u64,
    pub held: u64,
    /// Lost or dropped, by name.
    pub losses: BTreeMap<String, u64>,
    pub unexplained: u64,
}

impl Waterfall {
    /// Sums up what the checks found. `left` are pools that no check needed: their reports are gone all the same, and
    /// since nobody misses them, other reports must have replaced them; the same goes for the `uncounted`, which no
    /// counter explains.
    pub fn new(sent: u64, ends: &ReportEnds, left: &BTreeMap<String, u64>, uncounted: u64) -> Self {
        let mut all = Self {
            sent,
            queryable: ends.queryable,
            superseded: ends.superseded,
            overwritten: ends.overwritten,
            held: 0,
            losses: ends.lost.clone(),
            unexplained: ends.missing,
        };
        for (name, count) in left {
            let moved = all.take_unmissed(*count);
            if moved > 0 {
                *all.losses.entry(name.clone()).or_default() += moved;
            }
        }
        all.unexplained += all.take_unmissed(uncounted.saturating_sub(ends.missing));
        all.held = all.losses.remove(HELD).unwrap_or(0);
        all
    }

    /// Takes up to `count` reports out of those that nobody misses.
    fn take_unmissed(&mut self, count: u64) -> u64 {
        let from_superseded = count.min(self.superseded);
        self.superseded -= from_superseded;
        let from_overwritten = (count - from_superseded).min(self.overwritten);
        self.overwritten -= from_overwritten;
        from_superseded + from_overwritten
    }

    /// The sum of all ends; always equal to `sent`.
    pub fn total_reports(&self) -> u64 {
        self.queryable
            + self.superseded
            + self.overwritten
            + self.held
            + self.losses.values().sum::<u64>()
            + self.unexplained
    }
}

/// What does not add up within a node, in words.
pub fn node_contradictions(statistics: &TestbedStatistics) -> Vec<String> {
    let mut contradictions = Vec::new();
    let node = statistics.stage_total(Stage::Translator);
    let mut equal = |what: &str, left: u64, right: u64| {
        if left != right {
            contradictions.push(format!("{what}: {left} and {right}"));
        }
    };
    equal(
        "translator: reports received, and accepted + dropped",
        node.get(&translator::RECEIVED),
        node.get(&translator::ACCEPTED) + node.sum(CounterStep::Dropped),
    );
    equal(
        "translator: reports accepted, and emitted + held + superseded + discarded",
        node.get(&translator::ACCEPTED),
        node.get(&translator::EMITTED)
            + node.get(&translator::HELD)
            + node.get(&translator::SUPERSEDED)
            + node.sum(CounterStep::Discarded),
    );
    equal(
        "translator: datagrams off the link, and reports received",
        node.get_with_parts(&translator::LINK_RECEIVED, &[translator::REPORTS]),
        node.get(&translator::RECEIVED),
    );
    // An RDMA device does not say what became of them.
    for nic in statistics.stage_nodes(Stage::Nic).filter(|nic| !is_device(nic)) {
        equal(
            "NIC: frames received, and executed + duplicate + dropped",
            nic.get(&nic::RECEIVED),
            nic.sum(CounterStep::Executed) + nic.sum(CounterStep::Duplicate) + nic.sum(CounterStep::Dropped),
        );
    }
    contradictions
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_proto::control::{Counter, NodeStatistics};

    fn node(node: &str, counters: &[(&str, u64)]) -> NodeStatistics {
        let counters =
            counters.iter().map(|(name, value)| Counter { name: (*name).into(), value: *value }).collect();
        NodeStatistics { node: node.into(), counters, ..NodeStatistics::default() }
    }

    fn statistics(translator: &[(&str, u64)], nic: &[(&str, u64)]) -> TestbedStatistics {
        let mut all = TestbedStatistics::default();
        all.add(vec![node("translator/t", translator), node("nic/soft", nic)]);
        all
    }

    #[test]
    fn frames_that_nothing_counts_are_unexplained_exactly() {
        let all = statistics(
            &[
                ("link.reports.received", 880),
                ("frames", 500),
                ("faults.roce.dropped", 20),
                ("faults.roce.duplicated", 5),
            ],
            &[("received", 470), ("executed.write", 470), ("link.lost.too_long", 3)],
        );
        let side = ReporterSide {
            faults: FaultCounts { frames: 1000, dropped: 10, corrupted: 10, ..FaultCounts::default() },
            checksum: true,
            ..ReporterSide::default()
        };
        let [reports, _, frames, _] = account_links(&all, &side, &Gaps::default());
        assert_eq!(reports.unexplained(), 100);
        assert_eq!(frames.unexplained(), 500 + 5 - 20 - 3 - 470);
    }

    #[test]
    fn damage_on_the_way_to_a_device_explains_no_more_than_was_damaged() {
        let account = |received, device_dropped| {
            let mut all = TestbedStatistics::default();
            all.add(vec![
                node("translator/t", &[("frames", 500), ("faults.roce.corrupted", 20)]),
                node("nic/rxe0", &[("received", received), ("device.rcvd_pkts", received)]),
            ]);
            let [_, _, frames, _] =
                account_links(&all, &ReporterSide::default(), &Gaps { device_dropped, ..Gaps::default() });
            (frames.corrupted_stopped, frames.unexplained())
        };
        // 12 with a wrong iCRC, 8 with damaged headers; then 5 more lost; then a flip that the iCRC does not detect.
        assert_eq!(account(480, 12), (8, 0));
        assert_eq!(account(475, 12), (8, 5));
        assert_eq!(account(481, 12), (7, 0));
        // More received than sent is always an accounting error.
        assert_eq!(account(501, 0), (0, -1));
    }

    #[test]
    fn of_a_device_that_sends_the_wires_own_counts_are_compared() {
        let mut all = TestbedStatistics::default();
        // 500 work requests became 530 packets: 30 were sent again.
        all.add(vec![
            node(
                "translator/t",
                &[("frames", 510), ("link.roce.sent", 500), ("link.roce.dropped.unreachable", 10)],
            ),
            node("nic/rxe0", &[("received", 495), ("device.rcvd_pkts", 495), ("answered", 480)]),
        ]);
        let wire = WireCounts { sent: 530, received: 460, dropped: [33, 20] };
        let gaps = Gaps { wire: Some(wire), device_dropped: 2, ..Gaps::default() };
        let [_, _, frames, answers] = account_links(&all, &ReporterSide::default(), &gaps);
        assert_eq!((frames.sent, frames.dropped, frames.unexplained()), (530, 33, 0));
        assert_eq!(
            (answers.dropped, answers.received, answers.unexplained()),
            (20, 460, answers.sent as i64 - 480)
        );
    }

    #[test]
    fn wrong_checksums_are_not_taken_for_full_queues() {
        let all =
            statistics(&[("link.reports.received", 990), ("link.reports.dropped.receive-queue", 10)], &[]);
        let side = ReporterSide {
            faults: FaultCounts { frames: 1000, corrupted: 10, ..FaultCounts::default() },
            checksum: true,
            ..ReporterSide::default()
        };
        assert_eq!(account_links(&all, &side, &Gaps::default())[0].unexplained(), 0);
    }

    #[test]
    fn a_run_that_the_kernel_dropped_explains_as_many_reports_as_a_run_holds_and_no_more() {
        let account = |received, dropped| {
            let counters =
                [("link.reports.received", received), ("link.reports.dropped.receive-queue", dropped)];
            let faults = FaultCounts { frames: 1000, ..FaultCounts::default() };
            let side = ReporterSide { faults, ..ReporterSide::default() };
            let [reports, ..] = account_links(&statistics(&counters, &[]), &side, &Gaps::default());
            (reports.kernel, reports.unexplained())
        };
        assert_eq!(account(1000, 0), (0, 0));
        assert_eq!(account(990, 10), (10, 0));
        assert_eq!(account(900, 2), (100, 0));
        assert_eq!(account(800, 2), (128, 72));
        // What no queue dropped stays unexplained.
        assert_eq!(account(900, 0), (0, 100));
        assert_eq!(account(998, 5), (5, -3));
    }

    #[test]
    fn what_lo_dropped_explains_missing_reports_and_frames_and_no_more() {
        let account_with = |reports, frames, loopback_dropped, in_runs: [bool; 2]| {
            let translator = [("link.reports.received", reports), ("frames", 1000)];
            let all = statistics(&translator, &[("received", frames)]);
            let faults = FaultCounts { frames: 1000, ..FaultCounts::default() };
            let side = ReporterSide { faults, ..ReporterSide::default() };
            let [reports_in_runs, frames_in_runs] = in_runs;
            let gaps = Gaps { loopback_dropped, reports_in_runs, frames_in_runs, ..Gaps::default() };
            let [reports, _, frames, _] = account_links(&all, &side, &gaps);
            [reports, frames].map(|link| (link.kernel, link.unexplained()))
        };
        let account = |reports, frames, dropped| account_with(reports, frames, dropped, [true, true]);
        assert_eq!(account(995, 1000, 0), [(0, 5), (0, 0)]);
        assert_eq!(account(995, 1000, 7), [(5, 0), (0, 0)]);
        assert_eq!(account(995, 990, 2), [(5, 0), (10, 0)]);
        assert_eq!(account(900, 900, 3), [(100, 0), (64, 36)]);
        assert_eq!(account(900, 900, 1), [(64, 36), (0, 100)]);
        assert_eq!(account(1001, 1000, 5), [(0, -1), (0, 0)]);
        // Without runs, each is one.
        assert_eq!(account_with(900, 900, 90, [false, false]), [(90, 10), (0, 100)]);
        assert_eq!(account_with(995, 900, 7, [false, true]), [(5, 0), (100, 0)]);
        assert_eq!(account_with(900, 995, 5, [true, false]), [(100, 0), (3, 2)]);
    }

    #[test]
    fn runs_of_frames_that_the_kernel_dropped_explain_as_many_frames_as_they_hold_and_no_more() {
        let account = |received, dropped, nic_port_closed| {
            let counters = [("received", received), ("link.lost.receive_queue", dropped)];
            let all = statistics(&[("frames", 1000)], &counters);
            let gaps = Gaps { nic_port_closed, ..Gaps::default() };
            let [.., frames, _] = account_links(&all, &ReporterSide::default(), &gaps);
            (frames.kernel, frames.unexplained())
        };
        assert_eq!(account(1000, 0, 0), (0, 0));
        assert_eq!(account(990, 10, 0), (10, 0));
        assert_eq!(account(900, 2, 0), (100, 0));
        assert_eq!(account(800, 1, 2), (192, 8));
        // What no queue dropped stays unexplained.
        assert_eq!(account(900, 0, 0), (0, 100));
        assert_eq!(account(998, 5, 0), (5, -3));
    }

    #[test]
    fn every_report_ends_once_whatever_is_known_by_count_alone() {
        let ends =
            ReportEnds { queryable: 50, superseded: 40, overwritten: 5, missing: 2, ..ReportEnds::default() };
        let left = BTreeMap::from([("dropped.translator.column".to_owned(), 3), (HELD.to_owned(), 4)]);
        let all = Waterfall::new(97, &ends, &left, 6);
        assert_eq!((all.superseded, all.held, all.unexplained), (40 - 3 - 4 - 4, 4, 6));
        assert_eq!(all.losses["dropped.translator.column"], 3);
        assert_eq!(all.total_reports(), 97);
    }

    #[test]
    fn reports_missing_at_the_translator_are_unexplained_beyond_what_the_kernel_dropped() {
        let all = statistics(&[("accepted", 900), ("dropped.duplicate", 7), ("dropped.column", 2)], &[]);
        let mut accounts: [LinkAccount; 4] = Default::default();
        accounts[0].kernel = 30;
        let (mut pools, uncounted) = loss_pools(&all, &accounts, &Gaps::default(), 1000);
        assert_eq!(uncounted, 1000 - 902 - 30);
        let mut taken = BTreeMap::<String, u64>::new();
        while let Some(name) = pools.take() {
            *taken.entry(name).or_default() += 1;
        }
        assert_eq!(taken.len(), 2);
        assert_eq!(taken[LOST_TO_TRANSLATOR], 30);
    }

    #[test]
    fn a_loss_on_rc_is_reported_and_on_uc_it_is_none() {
        let all = statistics(&[("key-write.lost_operations", 3), ("key-increment.lost_operations", 1)], &[]);
        assert_eq!(lost_on_rc(&all, Transport::Uc).len(), 1);
        assert_eq!(lost_on_rc(&all, Transport::Rc).len(), 2);
        assert!(lost_on_rc(&statistics(&[], &[]), Transport::Rc).is_empty());
        let reliable = |primitive, writes| primitive_limits(&all, primitive, writes).reliable;
        assert!(
            !reliable(Primitive::KeyWrite, Transport::Uc) && reliable(Primitive::KeyIncrement, Transport::Uc)
        );
        assert!(reliable(Primitive::KeyWrite, Transport::Rc));
    }

    #[test]
    fn a_node_that_does_not_add_up_is_reported() {
        let good = statistics(
            &[("received", 3), ("link.reports.received", 3), ("accepted", 3), ("emitted", 3)],
            &[],
        );
        assert!(node_contradictions(&good).is_empty());
        let bad = statistics(&[], &[("received", 3), ("executed.write", 2)]);
        assert_eq!(node_contradictions(&bad).len(), 1);
    }
}

//! Counters that translators hand in: their own and their reporters'.
//!
//! The last counters of every node are kept, including those of ended sessions, because "where did my reports
//! go?" is asked afterwards. A node that restarts counts from 0; the counts of its earlier lives are added,
//! so that a sum over the whole time can be compared with what the next hop counted.
//!
//! Translators and reporters may name any number of nodes and counters, so there are limits, none of which
//! makes a renewal fail. Sessions that ended long ago are summed up in one node per kind (`reporter/ended
//! sessions`). A node of a living session without room is left out, and the caller learns how many were:
//! summing such nodes would need an entry for each, because each continues from its own last value.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime};

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use bincode::{Decode, Encode};
use dta_files::moment;
use dta_proto::counter::{CounterKind, CounterNode, Stage, reporter};

/// Most nodes before ended sessions are folded and room for living ones is short.
pub const KEPT_NODES: usize = 1 << 16;
/// Most bytes before the same happens: `NODE_BYTES` per node and `COUNTER_BYTES` per counter, plus their names.
pub const KEPT_BYTES: usize = 64 << 20;
/// Nodes that each session may keep even if room is short.
pub const SESSION_NODES: usize = 256;
/// Bytes that each session may keep even if room is short.
pub const SESSION_BYTES: usize = 256 << 10;
/// The size of a node without names and counters.
const NODE_BYTES: usize = 64;
/// The size of a counter without its name.
const COUNTER_BYTES: usize = 16;
/// Most ended sessions whose nodes are kept individually.
pub const MAX_ENDED: usize = 256;
/// Most counters of one node, and most sums over its earlier lives.
pub const MAX_COUNTERS: usize = 1024;
/// The longest name of a node or counter, in bytes.
pub const MAX_NAME: usize = 128;

/// How far a session's translators have heard a reporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReporterPosition {
    pub reporter: u16,
    /// The newest sequence that was heard.
    pub sequence: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// `translator/NAME`, `reporter/ID`, …
    pub node: String,
    /// A number that the node chose when it began to count from 0.
    pub life: u64,
    /// When it read the counters, in microseconds since 1970 by its own clock; 0 = unknown.
    pub time_us: u64,
    pub counters: Vec<(String, u64)>,
}

/// One node, over all its lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NodeTotals {
    life: u64,
    earlier: BTreeMap<String, u64>,
    /// The last counters of this life.
    current: BTreeMap<String, u64>,
    /// When they arrived, in milliseconds since 1970: a monotonic clock would not survive a restart.
    at: u64,
    /// When the node read the counters of this life, as in [`NodeSums::time_us`]. Not kept across a restart:
    /// rates need two readings, and the next one comes soon.
    time_us: u64,
}

impl Encode for NodeTotals {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        (self.life, &self.earlier, &self.current, self.at).encode(encoder)
    }
}

impl<C> Decode<C> for NodeTotals {
    fn decode<D: Decoder<Context = C>>(decoder: &mut D) -> Result<Self, DecodeError> {
        let (life, earlier, current, at) = Decode::decode(decoder)?;
        Ok(NodeTotals { life, earlier, current, at, time_us: 0 })
    }
}

bincode::impl_borrow_decode!(NodeTotals);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSums {
    /// The session that handed them in.
    pub session: String,
    pub node: String,
    pub counters: Vec<(String, u64)>,
    pub age: Duration,
    /// When the node read them, in microseconds since 1970 by its own clock, or by this collector's if
    /// unknown. 0 = before this collector started.
    pub time_us: u64,
}

/// In sums of ended sessions, the name of the session and the end of the node's name. No real name can look
/// like this, as names have no spaces.
const ENDED: &str = "ended sessions";

/// How many nodes of a call were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// A name is invalid (empty, longer than [`MAX_NAME`], or with anything but printable ASCII or with a space),
    /// or there are more than [`MAX_COUNTERS`] counters.
    pub bad: usize,
    /// There was no room for them, or for all counters of their earlier lives.
    pub no_room: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StatisticsSize {
    nodes: usize,
    bytes: usize,
}

/// The nodes, by session and name, as they are kept across a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct Nodes(BTreeMap<(String, String), NodeTotals>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionStatistics {
    nodes: Nodes,
    /// The size of all nodes.
    taken: StatisticsSize,
    /// The size of each session's nodes.
    of_session: BTreeMap<String, StatisticsSize>,
    /// Ended sessions that have nodes, the first to end at the front.
    ended: VecDeque<String>,
}

impl NodeTotals {
    /// Adds the counts of the current life, which has ended, to those of earlier ones. Returns whether there
    /// was room for all names.
    fn fold_ended_life(&mut self, of: CounterNode) -> bool {
        let mut all = true;
        for (name, value) in std::mem::take(&mut self.current) {
            if let Some(name) = after_life(of, name) {
                all &= add_bounded(&mut self.earlier, name, value);
            }
        }
        all
    }

    /// The size in bytes of the names of earlier lives once this one has ended.
    fn bytes_after_life(&self, of: CounterNode) -> usize {
        let new = self.current.keys().filter_map(|name| after_life(of, name.clone()));
        let mut new: Vec<_> = new.filter(|name| !self.earlier.contains_key(name)).collect();
        new.sort_unstable();
        new.dedup();
        new.truncate(MAX_COUNTERS.saturating_sub(self.earlier.len()));
        name_bytes(self.earlier.keys()) + name_bytes(new.iter())
    }

    fn size_in_bytes(&self) -> usize {
        name_bytes(self.earlier.keys()) + name_bytes(self.current.keys())
    }
}

impl SessionStatistics {
    /// Restores the nodes of living and ended sessions.
    pub(super) fn from_stored(nodes: Nodes, lives: impl Fn(&str) -> bool) -> Self {
        let mut all = SessionStatistics { nodes, ..SessionStatistics::default() };
        let mut last_word: BTreeMap<&str, u64> = BTreeMap::new();
        for (key @ (session, _), kept) in &mut all.nodes.0 {
            while kept.earlier.len() > MAX_COUNTERS {
                kept.earlier.pop_last();
            }
            let takes = bytes_of_key(key) + kept.size_in_bytes();
            let of_session = all.of_session.entry(session.clone()).or_default();
            for room in [&mut all.taken, of_session] {
                room.nodes += 1;
                room.bytes += takes;
            }
            let at = last_word.entry(session).or_default();
            *at = kept.at.max(*at);
        }
        let mut ended: Vec<(u64, String)> = last_word
            .into_iter()
            .filter(|(session, _)| *session != ENDED && !lives(session))
            .map(|(session, at)| (at, session.to_owned()))
            .collect();
        ended.sort_unstable();
        all.ended = ended.into_iter().map(|(_, session)| session).collect();
        all.fold_ended();
        all
    }

    pub(super) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Records what a session hands in, in one call or several. Returns how many nodes were left out; nodes
    /// without room keep their earlier counters.
    pub fn record_statistics(&mut self, session: &str, nodes: &[NodeCounters], now: SystemTime) -> LeftOut {
        let at = moment::from_system_time(now);
        let mut left_out = LeftOut::default();
        for node in nodes {
            if !is_valid_node(node) {
                left_out.bad += 1;
                continue;
            }
            let key = (session.to_owned(), node.node.clone());
            let current: BTreeMap<String, u64> = node.counters.iter().cloned().collect();
            let of = CounterNode::from_node_name(&node.node);
            let kept = self.nodes.0.get(&key);
            let earlier = match kept {
                Some(kept) if kept.life == node.life => name_bytes(kept.earlier.keys()),
                Some(kept) => kept.bytes_after_life(of),
                None => 0,
            };
            let before = kept.map(|kept| bytes_of_key(&key) + kept.size_in_bytes());
            let takes = bytes_of_key(&key) + earlier + name_bytes(current.keys());
            let more = StatisticsSize {
                nodes: usize::from(before.is_none()),
                bytes: takes.saturating_sub(before.unwrap_or_default()),
            };
            if !self.try_make_room(session, more) {
                left_out.no_room += 1;
                continue;
            }
            let all = self.update_node(key, |kept| {
                let all = kept.life == node.life || kept.fold_ended_life(of);
                kept.life = node.life;
                kept.current = current;
                kept.at = at;
                kept.time_us = if node.time_us == 0 { at * 1000 } else { node.time_us };
                all
            });
            left_out.no_room += usize::from(!all);
        }
        left_out
    }

    /// Notes that a session is opened: its nodes are kept individually again.
    pub fn begin_session(&mut self, session: &str) {
        self.ended.retain(|ended| ended != session);
    }

    /// Notes that a session has ended. Its counts stay, individually as long as there is room.
    pub fn end_session(&mut self, session: &str) {
        self.begin_session(session);
        if self.of_session.contains_key(session) {
            self.ended.push_back(session.to_owned());
        }
        self.fold_ended();
    }

    /// Whether a session may grow by this much. Ended sessions are folded first to make room.
    fn try_make_room(&mut self, session: &str, more: StatisticsSize) -> bool {
        let fits = |taken: StatisticsSize, nodes: usize, bytes: usize| {
            (more.nodes == 0 || taken.nodes + more.nodes <= nodes)
                && (more.bytes == 0 || taken.bytes + more.bytes <= bytes)
        };
        while !fits(self.taken, KEPT_NODES, KEPT_BYTES) && self.fold_oldest() {}
        let own = self.of_session.get(session).copied().unwrap_or_default();
        fits(self.taken, KEPT_NODES, KEPT_BYTES) || fits(own, SESSION_NODES, SESSION_BYTES)
    }

    fn fold_ended(&mut self) {
        let too_much = |all: &Self| {
            all.ended.len() > MAX_ENDED || all.taken.nodes > KEPT_NODES || all.taken.bytes > KEPT_BYTES
        };
        while too_much(self) && self.fold_oldest() {}
    }

    /// Adds the nodes of the first session to end to the sums of all ended ones; returns whether there was one.
    fn fold_oldest(&mut self) -> bool {
        let Some(session) = self.ended.pop_front() else { return false };
        if let Some(room) = self.of_session.remove(&session) {
            self.taken.nodes -= room.nodes;
            self.taken.bytes -= room.bytes;
        }
        let from = (session.clone(), String::new());
        let of = self.nodes.0.range(from..).take_while(|((of, _), _)| *of == session);
        let names: Vec<_> = of.map(|(key, _)| key.clone()).collect();
        for key in names {
            let Some(mut kept) = self.nodes.0.remove(&key) else { continue };
            kept.fold_ended_life(CounterNode::from_node_name(&key.1));
            self.update_node((ENDED.to_owned(), node_stage(&key.1).node_name(ENDED)), |all| {
                all.at = all.at.max(kept.at);
                for (name, value) in kept.earlier {
                    // Sessions choose the names of counters, so this needs a limit, too.
                    add_bounded(&mut all.earlier, name, value);
                }
            });
        }
        true
    }

    /// Changes a node, creating it if needed, and updates its size.
    fn update_node<T>(&mut self, key: (String, String), change: impl FnOnce(&mut NodeTotals) -> T) -> T {
        let (session, of_key) = (key.0.clone(), bytes_of_key(&key));
        let (kept, before) = match self.nodes.0.entry(key) {
            Entry::Occupied(there) => {
                let kept = there.into_mut();
                let before = StatisticsSize { nodes: 1, bytes: of_key + kept.size_in_bytes() };
                (kept, before)
            }
            Entry::Vacant(new) => (new.insert(NodeTotals::default()), StatisticsSize::default()),
        };
        let result = change(kept);
        let takes = of_key + kept.size_in_bytes();
        for room in [&mut self.taken, self.of_session.entry(session).or_default()] {
            room.nodes = room.nodes + 1 - before.nodes;
            room.bytes = room.bytes + takes - before.bytes;
        }
        result
    }

    /// How far the translators of a session had heard their reporters when they last handed in.
    pub fn reporters(&self, session: &str) -> Vec<ReporterPosition> {
        let from = (session.to_owned(), Stage::Reporter.node_name(""));
        self.nodes
            .0
            .range(from..)
            .take_while(|((of, _), _)| of == session)
            .filter_map(|((_, node), kept)| {
                Some(ReporterPosition {
                    reporter: Stage::Reporter.strip_stage(node)?.parse().ok()?,
                    sequence: u32::try_from(*kept.current.get(reporter::NEWEST.name)?).ok()?,
                })
            })
            .collect()
    }

    pub fn node_sums(&self, now: SystemTime) -> Vec<NodeSums> {
        self.nodes
            .0
            .iter()
            .map(|((session, node), kept)| {
                // Sorting two sorted runs is quick.
                let both = kept.earlier.iter().chain(&kept.current);
                let mut counters: Vec<(String, u64)> =
                    both.map(|(name, value)| (name.clone(), *value)).collect();
                counters.sort_by(|a, b| a.0.cmp(&b.0));
                counters.dedup_by(|one, sum| {
                    let same = one.0 == sum.0;
                    if same {
                        sum.1 = sum.1.saturating_add(one.1);
                    }
                    same
                });
                NodeSums {
                    session: session.clone(),
                    node: node.clone(),
                    counters,
                    age: Duration::from_millis(moment::from_system_time(now).saturating_sub(kept.at)),
                    time_us: kept.time_us,
                }
            })
            .collect()
    }
}

/// Whether a node's names are valid and not too many.
fn is_valid_node(node: &NodeCounters) -> bool {
    let name_ok =
        |name: &String| (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    let mut names = std::iter::once(&node.node).chain(node.counters.iter().map(|(name, _)| name));
    node.counters.len() <= MAX_COUNTERS && names.all(name_ok)
}

/// The kind of a node by its name, as far as sums distinguish kinds: sessions hand in only translators and
/// reporters.
fn node_stage(node: &str) -> Stage {
    match Stage::from_node_name(node) {
        stage @ (Stage::Reporter | Stage::Translator) => stage,
        Stage::Agent | Stage::Nic | Stage::Collector | Stage::Other => Stage::Other,
    }
}

/// The name of a counter in the sums of ended lives: what a life still held was never sent, and nobody holds it any
/// more. `None` if it cannot be summed over lives. A counter with an unknown name is assumed to only rise.
fn after_life(of: CounterNode, name: String) -> Option<String> {
    match of.find_counter(&name).map(|found| (found, found.definition.kind)) {
        Some((found, CounterKind::Held { becomes })) => Some(found.sibling_name(becomes)),
        Some((_, CounterKind::Position | CounterKind::Now)) => None,
        Some((_, CounterKind::Counter)) | None => Some(name),
    }
}

fn bytes_of_key((session, node): &(String, String)) -> usize {
    NODE_BYTES + session.len() + node.len()
}

fn name_bytes<'a>(names: impl Iterator<Item = &'a String>) -> usize {
    names.map(|name| COUNTER_BYTES + name.len()).sum()
}

/// Adds to one of at most [`MAX_COUNTERS`] sums; returns whether there was room.
fn add_bounded(sums: &mut BTreeMap<String, u64>, name: String, value: u64) -> bool {
    let has_room = sums.len() < MAX_COUNTERS || sums.contains_key(&name);
    if has_room {
        add(sums, name, value);
    }
    has_room
}

fn add(sums: &mut BTreeMap<String, u64>, name: String, value: u64) {
    let sum = sums.entry(name).or_default();
    *sum = sum.saturating_add(value);
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn node(life: u64, received: u64) -> NodeCounters {
        NodeCounters {
            node: "translator/t".into(),
            life,
            time_us: 0,
            counters: vec![("received".into(), received)],
        }
    }

    fn received(statistics: &SessionStatistics) -> u64 {
        statistics.node_sums(UNIX_EPOCH)[0].counters[0].1
    }

    #[test]
    fn a_later_word_replaces_an_earlier_one_of_the_same_life() {
        let mut s = SessionStatistics::default();
        s.record_statistics("t", &[node(7, 10)], UNIX_EPOCH);
        s.record_statistics("t", &[node(7, 25)], UNIX_EPOCH + Duration::from_secs(5));
        assert_eq!(received(&s), 25);
        assert_eq!(s.node_sums(UNIX_EPOCH + Duration::from_secs(8))[0].age, Duration::from_secs(3));
    }

    #[test]
    fn the_time_is_the_nodes_own_or_when_its_word_came() {
        let mut s = SessionStatistics::default();
        let came = UNIX_EPOCH + Duration::from_secs(50);
        let time = |s: &SessionStatistics| s.node_sums(came)[0].time_us;
        s.record_statistics("t", &[node(7, 10)], came);
        assert_eq!(time(&s), 50_000_000);
        s.record_statistics("t", &[NodeCounters { time_us: 7_000_001, ..node(7, 11) }], came);
        assert_eq!(time(&s), 7_000_001);
        // A restarted collector does not know the time.
        let bytes = bincode::encode_to_vec(s.nodes(), bincode::config::standard()).unwrap();
        let (nodes, _): (Nodes, _) = bincode::decode_from_slice(&bytes, bincode::config::standard()).unwrap();
        let again = SessionStatistics::from_stored(nodes, |_| true);
        assert_eq!((time(&again), received(&again)), (0, 11));
    }

    #[test]
    fn lives_add_up() {
        let mut s = SessionStatistics::default();
        s.record_statistics("t", &[node(7, 10)], UNIX_EPOCH);
        // A new life that has already counted more is still a new life.
        s.record_statistics("t", &[node(8, 25)], UNIX_EPOCH);
        assert_eq!(received(&s), 35);
        s.record_statistics("t", &[node(8, 26)], UNIX_EPOCH);
        assert_eq!(received(&s), 36);
    }

    #[test]
    fn what_a_life_held_at_its_end_is_counted_as_discarded() {
        let mut s = SessionStatistics::default();
        let holding = |life, held| NodeCounters {
            node: "t".into(),
            life,
            counters: vec![("held".into(), held)],
            ..NodeCounters::default()
        };
        s.record_statistics("t", &[holding(1, 5)], UNIX_EPOCH);
        s.record_statistics("t", &[holding(1, 3)], UNIX_EPOCH);
        s.record_statistics("t", &[holding(2, 1)], UNIX_EPOCH);
        assert_eq!(
            s.node_sums(UNIX_EPOCH)[0].counters,
            [("discarded.held_at_restart".to_owned(), 3), ("held".to_owned(), 1)]
        );
        // Also per primitive, even one that only a newer translator has; but a mere suffix of a word does not count.
        for (name, after) in [
            ("append.held", Some("append.discarded.held_at_restart")),
            ("new-primitive.held", Some("new-primitive.discarded.held_at_restart")),
            ("withheld", Some("withheld")),
            ("something.new", Some("something.new")),
            ("queue_pair.write.outstanding", None),
            ("queue_pair.write.sent", Some("queue_pair.write.sent")),
        ] {
            assert_eq!(after_life(CounterNode::Translator, name.into()).as_deref(), after, "{name}");
        }
    }

    #[test]
    fn how_far_reporters_were_heard_is_kept_and_not_added_up() {
        let mut s = SessionStatistics::default();
        let heard = |reporter: u16, life, newest| NodeCounters {
            node: format!("reporter/{reporter}"),
            life,
            counters: vec![("newest".into(), newest)],
            ..NodeCounters::default()
        };
        s.record_statistics("t", &[heard(7, 1, 100), heard(300, 1, 5), node(1, 10)], UNIX_EPOCH);
        s.record_statistics("u", &[heard(7, 1, 900)], UNIX_EPOCH);
        s.record_statistics("t", &[heard(7, 2, 150)], UNIX_EPOCH);
        let position = |reporter, sequence| ReporterPosition { reporter, sequence };
        assert_eq!(s.reporters("t"), [position(300, 5), position(7, 150)]);
        assert_eq!(s.reporters("u"), [position(7, 900)]);
        assert_eq!(s.reporters("v"), []);
        let found = s.node_sums(UNIX_EPOCH).into_iter().find(|n| n.session == "t" && n.node == "reporter/7");
        assert_eq!(found.unwrap().counters, [("newest".to_owned(), 150)]);
    }

    #[test]
    fn two_sessions_that_hear_one_reporter_are_kept_apart() {
        let mut s = SessionStatistics::default();
        s.record_statistics("t", &[node(1, 10)], UNIX_EPOCH);
        s.record_statistics("u", &[node(1, 20)], UNIX_EPOCH);
        assert_eq!(s.node_sums(UNIX_EPOCH).len(), 2);
    }

    #[test]
    fn bad_names_and_floods_are_left_out_and_the_rest_is_taken() {
        let mut s = SessionStatistics::default();
        let mut bad = node(1, 1);
        bad.counters.push(("two words".into(), 1));
        let many = NodeCounters {
            node: "n".into(),
            life: 0,
            counters: (0..=MAX_COUNTERS).map(|i| (format!("c{i}"), 0)).collect(),
            ..NodeCounters::default()
        };
        let nameless = NodeCounters::default();
        let called_so = NodeCounters { node: format!("reporter/{ENDED}"), ..node(1, 9) };
        let left_out = s.record_statistics("t", &[bad, node(1, 5), many, nameless, called_so], UNIX_EPOCH);
        assert_eq!(left_out, LeftOut { bad: 4, no_room: 0 });
        assert_eq!(s.node_sums(UNIX_EPOCH).len(), 1);
        assert_eq!(received(&s), 5);
    }

    fn flood(life: u64, nodes: std::ops::Range<usize>, received: u64) -> Vec<NodeCounters> {
        let node = |n| NodeCounters { node: format!("reporter/{n}"), ..node(life, received) };
        nodes.map(node).collect()
    }

    fn total(s: &SessionStatistics) -> u64 {
        s.node_sums(UNIX_EPOCH).iter().flat_map(|n| &n.counters).map(|(_, value)| value).sum()
    }

    /// Whether the recorded sizes match the nodes.
    fn room_is_right(s: &SessionStatistics) -> bool {
        let again = SessionStatistics::from_stored(s.nodes.clone(), |_| true);
        (again.taken, &again.of_session) == (s.taken, &s.of_session)
    }

    #[test]
    fn what_has_no_room_is_left_out_until_there_is_some() {
        let mut s = SessionStatistics::default();
        s.record_statistics("big", &flood(1, 0..KEPT_NODES, 1), UNIX_EPOCH);
        let more = 5000;
        // Handed in with several calls, as translators do, and each node in a new life.
        let hand_in = |s: &mut SessionStatistics, life: u64, received| -> LeftOut {
            let mut nodes = flood(life, 0..more, received);
            nodes.iter_mut().enumerate().for_each(|(n, node)| node.life += 10 * n as u64);
            let calls = nodes.chunks(1000).map(|call| s.record_statistics("late", call, UNIX_EPOCH));
            calls.reduce(|a, b| LeftOut { bad: a.bad + b.bad, no_room: a.no_room + b.no_room }).unwrap()
        };
        let left_out = LeftOut { bad: 0, no_room: more - SESSION_NODES };
        for (life, received, in_all) in [(1, 1, 1), (1, 4, 4), (2, 1, 5), (2, 3, 7)] {
            assert_eq!(hand_in(&mut s, life, received), left_out);
            let kept = SESSION_NODES as u64 * in_all;
            assert_eq!(total(&s), KEPT_NODES as u64 + kept, "life {life}, {received} each");
            assert_eq!(s.of_session["late"].nodes, SESSION_NODES);
        }
        assert!(room_is_right(&s));
        // Ending `big` makes room: each node has all of its current life, and the kept ones all of both.
        s.end_session("big");
        assert_eq!(hand_in(&mut s, 2, 9), LeftOut::default());
        assert_eq!(total(&s), (KEPT_NODES + more * 9 + SESSION_NODES * 4) as u64);
        assert!(room_is_right(&s));
    }

    /// A node with many counters with long names, in a life of its own.
    fn heavy(node: usize, life: u64, counters: usize) -> NodeCounters {
        let name = |n| format!("{n:08}.{life:08}.{}", "n".repeat(MAX_NAME - 18));
        let counters = (0..counters).map(|n| (name(n), 1)).collect();
        NodeCounters { node: format!("reporter/{node}"), life, time_us: 0, counters }
    }

    #[test]
    fn a_node_that_names_its_counters_anew_has_no_more_than_there_can_be() {
        let mut s = SessionStatistics::default();
        for life in 1..=10 {
            let left_out = s.record_statistics("t", &[heavy(0, life, 500)], UNIX_EPOCH);
            // There is room for two more lives next to the current one, and for part of a third.
            assert_eq!(left_out.no_room, usize::from(life > 3), "life {life}");
        }
        let kept = &s.nodes.0[&("t".to_owned(), "reporter/0".to_owned())];
        assert_eq!((kept.earlier.len(), kept.current.len()), (MAX_COUNTERS, 500));
        assert!(room_is_right(&s));
    }

    #[test]
    fn counters_are_bounded_in_bytes_and_each_session_has_its_own() {
        let mut s = SessionStatistics::default();
        let many: Vec<_> = (0..1000).map(|n| heavy(n, 1, MAX_COUNTERS)).collect();
        let left_out = s.record_statistics("big", &many, UNIX_EPOCH);
        let each =
            bytes_of_key(&("big".into(), "reporter/100".into())) + MAX_COUNTERS * (MAX_NAME + COUNTER_BYTES);
        assert!(left_out.no_room.abs_diff(1000 - KEPT_BYTES / each) <= 1, "{left_out:?}");
        assert!(s.taken.bytes <= KEPT_BYTES);
        // The kept nodes go on; a new life of one has no room, and its earlier counters stay.
        let before = total(&s);
        assert_eq!(s.record_statistics("big", &many, UNIX_EPOCH), left_out);
        assert_eq!(s.record_statistics("big", &[heavy(0, 2, MAX_COUNTERS)], UNIX_EPOCH).no_room, 1);
        assert_eq!(total(&s), before);
        // Others still get their share.
        assert_eq!(
            s.record_statistics("small", &flood(1, 0..SESSION_NODES, 1), UNIX_EPOCH),
            LeftOut::default()
        );
        assert_eq!(s.record_statistics("other", &many, UNIX_EPOCH).no_room, 999);
        assert!(s.of_session["other"].bytes <= SESSION_BYTES);
        assert!(room_is_right(&s));
        // An ended session makes room for bytes, too.
        s.end_session("big");
        assert_eq!(s.record_statistics("other", &many[..300], UNIX_EPOCH), LeftOut::default());
        assert!(room_is_right(&s));
    }

    #[test]
    fn what_was_kept_when_it_was_full_is_taken_and_the_ended_make_room() {
        let mut s = SessionStatistics::default();
        let mut left_out = 0;
        for n in 0..400 {
            let now = UNIX_EPOCH + Duration::from_secs(n);
            left_out += s.record_statistics(&format!("s{n}"), &flood(1, 0..300, 2), now).no_room as u64;
        }
        let (before, all) = (s.nodes.0.len(), total(&s));
        assert!(left_out > 0);
        assert_eq!(all, (400 * 300 - left_out) * 2);
        assert!(before > KEPT_NODES);
        let bytes = bincode::encode_to_vec(s.nodes(), bincode::config::standard()).unwrap();
        let (nodes, _): (Nodes, _) = bincode::decode_from_slice(&bytes, bincode::config::standard()).unwrap();
        let s = SessionStatistics::from_stored(nodes.clone(), |_| true);
        assert_eq!((s.nodes.0.len(), total(&s)), (before, all), "all of them live");
        let mut s = SessionStatistics::from_stored(nodes, |name| name == "s7");
        assert!(s.ended.len() <= MAX_ENDED && s.nodes.0.len() <= KEPT_NODES);
        assert_eq!(total(&s), all);
        assert!(!s.of_session.contains_key("s0") && s.of_session.contains_key("s399"), "the oldest went");
        assert!(s.of_session.contains_key("s7"), "it lives");
        // Everything but the living nodes and the sums of what ended.
        let has = KEPT_NODES - 300 - 1;
        let left_out = s.record_statistics("new", &flood(1, 0..KEPT_NODES, 1), UNIX_EPOCH);
        assert_eq!(left_out.no_room, KEPT_NODES - has);
        assert_eq!(total(&s), all + has as u64);
        assert_eq!(s.ended.len(), 0);
        assert_eq!(s.of_session.values().map(|room| room.nodes).sum::<usize>(), s.nodes.0.len());
        // An ended session that is reopened continues, whether it was folded or not.
        s.end_session("new");
        s.begin_session("new");
        s.record_statistics("new", &flood(2, 0..KEPT_NODES, 2), UNIX_EPOCH);
        s.record_statistics("s0", &flood(2, 0..SESSION_NODES, 1), UNIX_EPOCH);
        assert_eq!(total(&s), all + (3 * has + SESSION_NODES) as u64);
    }
}

//! Counters that translators hand in: their own and their reporters'.
//!
//! The last word of every node is kept, also of those whose session has ended, because "where did my reports go?" is asked
//! afterwards. A node that starts again counts from 0 again; what it counted in earlier lives is added, so that a sum over the whole
//! time can be compared with what the next hop counted.
//!
//! There are as many nodes as translators and reporters care to name, so there is a bound, and no bound makes a renewal fail or a sum
//! wrong: what has no room for itself is added up. Nodes of a session beyond its room become one node of it per kind
//! (`reporter/all others`), sessions that ended long ago one for all of them (`reporter/ended sessions`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bincode::{Decode, Encode};

/// So many nodes are kept one by one before sessions that ended are folded, and room is short for those that live.
pub const MAX_NODES: usize = 1 << 16;
/// So many nodes of each session are kept one by one even where room is short.
pub const SESSION_NODES: usize = 256;
/// The most sessions that have ended and whose nodes are still kept one by one.
pub const MAX_ENDED: usize = 256;
/// The most counters of one node.
pub const MAX_COUNTERS: usize = 1024;
/// The longest name of a node or counter, in bytes.
pub const MAX_NAME: usize = 128;

/// The one number that can fall: reports that a node holds now, neither sent nor dropped. Also `PRIMITIVE.held`.
pub const HELD: &str = "held";
/// What was [`HELD`] at the end of an earlier life: accepted, and never sent.
pub const HELD_AT_RESTART: &str = "discarded.held_at_restart";

/// Of a node `reporter/ID`: the newest sequence that its translator heard. No sum over lives makes sense of it.
pub const NEWEST: &str = "newest";

/// How far a session's translators have heard a reporter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReporterPosition {
    /// Its id.
    pub reporter: u16,
    /// The newest of its sequences that was heard.
    pub sequence: u32,
}

/// What one node tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// `translator/NAME`, `reporter/ID`, …
    pub node: String,
    /// A number that the node chose when it began to count from 0.
    pub life: u64,
    /// Counters by dotted name.
    pub counters: Vec<(String, u64)>,
}

/// One node, over all its lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
struct Kept {
    life: u64,
    /// Sums of earlier lives.
    earlier: BTreeMap<String, u64>,
    /// The last word of this life.
    current: BTreeMap<String, u64>,
    /// When it came, in milliseconds since 1970: a monotonic clock would not survive a restart.
    at: u64,
}

/// One node's sums, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSums {
    /// The session that handed them in.
    pub session: String,
    /// The node.
    pub node: String,
    /// Counters, sorted by name.
    pub counters: Vec<(String, u64)>,
    /// How long ago.
    pub age: Duration,
}

/// The session, and the end of the node's name, under which sessions that ended are added up. No session or node can be called
/// so: names have no spaces.
const ENDED: &str = "ended sessions";
/// The end of a node's name under which a session's nodes without room are added up.
const OTHERS: &str = "all others";

/// The nodes, by session and name, as they are kept over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub(super) struct Nodes(BTreeMap<(String, String), Kept>);

/// What all nodes told last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    nodes: Nodes,
    /// How many nodes each session has.
    of_session: BTreeMap<String, usize>,
    /// Sessions that have ended and have nodes, the one that ended first in front.
    ended: VecDeque<String>,
}

impl Kept {
    /// Adds what the present life counted to the earlier ones: it has ended.
    fn end_life(&mut self) {
        for (name, value) in std::mem::take(&mut self.current) {
            if name == NEWEST {
                continue;
            }
            // What a life still held when it ended was never sent, and nobody holds it any more.
            let name = match name.strip_suffix(HELD) {
                Some("") => HELD_AT_RESTART.to_owned(),
                Some(of) if of.ends_with('.') => format!("{of}{HELD_AT_RESTART}"),
                _ => name,
            };
            add(&mut self.earlier, name, value);
        }
    }
}

impl Statistics {
    /// Nodes as they were kept, of sessions that live or have ended.
    pub(super) fn restore(nodes: Nodes, lives: impl Fn(&str) -> bool) -> Self {
        let mut all = Statistics { nodes, ..Statistics::default() };
        let mut last_word: BTreeMap<&str, u64> = BTreeMap::new();
        for ((session, _), kept) in &all.nodes.0 {
            *all.of_session.entry(session.clone()).or_default() += 1;
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

    /// The nodes, to be kept.
    pub(super) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Takes what a session hands in: all nodes that it has, so that sums over those without room are of all of them. Gives how many
    /// were left out because a name of theirs is none ([`MAX_NAME`] printable ASCII characters and no space), or because they have
    /// more than [`MAX_COUNTERS`] counters.
    pub fn hand_in(&mut self, session: &str, nodes: &[NodeCounters], now: SystemTime) -> usize {
        let at = millis(now);
        let mut left_out = 0;
        let mut others: BTreeMap<&'static str, (u64, BTreeMap<String, u64>)> = BTreeMap::new();
        for node in nodes {
            if !is_good(node) {
                left_out += 1;
                continue;
            }
            let key = (session.to_owned(), node.node.clone());
            if self.nodes.0.contains_key(&key) || self.has_room(session) {
                let kept = self.entry(key);
                if kept.life != node.life {
                    kept.end_life();
                }
                kept.life = node.life;
                kept.current = node.counters.iter().cloned().collect();
                kept.at = at;
            } else {
                let (life, sums) = others.entry(kind(&node.node)).or_default();
                *life = node.life;
                for (name, value) in node.counters.iter().filter(|(name, _)| name != NEWEST) {
                    add(sums, name.clone(), *value);
                }
            }
        }
        for (kind, (life, sums)) in others {
            let kept = self.entry((session.to_owned(), format!("{kind}/{OTHERS}")));
            if kept.life != life {
                kept.end_life();
            }
            kept.life = life;
            for (name, value) in sums {
                // Which nodes these are may change: one that is no longer told of has been counted all the same.
                let falls = name.ends_with(HELD);
                let current = kept.current.entry(name).or_default();
                *current = if falls { value } else { value.max(*current) };
            }
            kept.at = at;
        }
        left_out
    }

    /// A session is opened: what it has is kept one by one again.
    pub fn begin(&mut self, session: &str) {
        self.ended.retain(|ended| ended != session);
    }

    /// A session has ended. What it counted stays, one by one as long as there is room.
    pub fn end(&mut self, session: &str) {
        self.begin(session);
        if self.of_session.contains_key(session) {
            self.ended.push_back(session.to_owned());
        }
        self.fold_ended();
    }

    /// Whether a session may have one more node of its own. Sessions that ended make room first.
    fn has_room(&mut self, session: &str) -> bool {
        while self.nodes.0.len() >= MAX_NODES && self.fold_oldest() {}
        self.nodes.0.len() < MAX_NODES || self.of_session.get(session).is_none_or(|&has| has < SESSION_NODES)
    }

    fn fold_ended(&mut self) {
        while (self.ended.len() > MAX_ENDED || self.nodes.0.len() > MAX_NODES) && self.fold_oldest() {}
    }

    /// Adds the nodes of the session that ended first to those of all that ended; says whether there was one.
    fn fold_oldest(&mut self) -> bool {
        let Some(session) = self.ended.pop_front() else { return false };
        self.of_session.remove(&session);
        let from = (session.clone(), String::new());
        let of = self.nodes.0.range(from..).take_while(|((of, _), _)| *of == session);
        let names: Vec<_> = of.map(|(key, _)| key.clone()).collect();
        for key in names {
            let Some(mut kept) = self.nodes.0.remove(&key) else { continue };
            kept.end_life();
            let all = self.entry((ENDED.to_owned(), format!("{}/{ENDED}", kind(&key.1))));
            all.at = all.at.max(kept.at);
            for (name, value) in kept.earlier {
                // What counters are called is theirs to say, so there is a bound on this too.
                if all.earlier.len() < MAX_COUNTERS || all.earlier.contains_key(&name) {
                    add(&mut all.earlier, name, value);
                }
            }
        }
        true
    }

    fn entry(&mut self, key: (String, String)) -> &mut Kept {
        match self.nodes.0.entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(new) => {
                *self.of_session.entry(new.key().0.clone()).or_default() += 1;
                new.insert(Kept::default())
            }
        }
    }

    /// How far the translators of a session had heard their reporters when they handed in last.
    pub fn reporters(&self, session: &str) -> Vec<ReporterPosition> {
        let from = (session.to_owned(), "reporter/".to_owned());
        self.nodes
            .0
            .range(from..)
            .take_while(|((of, _), _)| of == session)
            .filter_map(|((_, node), kept)| {
                Some(ReporterPosition {
                    reporter: node.strip_prefix("reporter/")?.parse().ok()?,
                    sequence: u32::try_from(*kept.current.get(NEWEST)?).ok()?,
                })
            })
            .collect()
    }

    /// The sums of all nodes, by session and node.
    pub fn sums(&self, now: SystemTime) -> Vec<NodeSums> {
        self.nodes
            .0
            .iter()
            .map(|((session, node), kept)| {
                let mut sums = kept.earlier.clone();
                for (name, value) in &kept.current {
                    add(&mut sums, name.clone(), *value);
                }
                NodeSums {
                    session: session.clone(),
                    node: node.clone(),
                    counters: sums.into_iter().collect(),
                    age: Duration::from_millis(millis(now).saturating_sub(kept.at)),
                }
            })
            .collect()
    }
}

/// Whether the names of a node are names, and not too many.
fn is_good(node: &NodeCounters) -> bool {
    let name_ok =
        |name: &String| (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
    let mut names = std::iter::once(&node.node).chain(node.counters.iter().map(|(name, _)| name));
    node.counters.len() <= MAX_COUNTERS && names.all(name_ok)
}

/// What a node is, by its name, as far as sums are told apart by it.
fn kind(node: &str) -> &'static str {
    match node.split_once('/') {
        Some(("reporter", _)) => "reporter",
        Some(("translator", _)) => "translator",
        _ => "other",
    }
}

fn add(sums: &mut BTreeMap<String, u64>, name: String, value: u64) {
    let sum = sums.entry(name).or_default();
    *sum = sum.saturating_add(value);
}

fn millis(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(life: u64, received: u64) -> NodeCounters {
        NodeCounters { node: "translator/t".into(), life, counters: vec![("received".into(), received)] }
    }

    fn received(statistics: &Statistics) -> u64 {
        statistics.sums(UNIX_EPOCH)[0].counters[0].1
    }

    #[test]
    fn a_later_word_replaces_an_earlier_one_of_the_same_life() {
        let mut s = Statistics::default();
        s.hand_in("t", &[node(7, 10)], UNIX_EPOCH);
        s.hand_in("t", &[node(7, 25)], UNIX_EPOCH + Duration::from_secs(5));
        assert_eq!(received(&s), 25);
        assert_eq!(s.sums(UNIX_EPOCH + Duration::from_secs(8))[0].age, Duration::from_secs(3));
    }

    #[test]
    fn lives_add_up() {
        let mut s = Statistics::default();
        s.hand_in("t", &[node(7, 10)], UNIX_EPOCH);
        // A new life that has already counted more is still a new life.
        s.hand_in("t", &[node(8, 25)], UNIX_EPOCH);
        assert_eq!(received(&s), 35);
        s.hand_in("t", &[node(8, 26)], UNIX_EPOCH);
        assert_eq!(received(&s), 36);
    }

    #[test]
    fn what_a_life_held_at_its_end_is_told_as_discarded() {
        let mut s = Statistics::default();
        let holding =
            |life, held| NodeCounters { node: "t".into(), life, counters: vec![(HELD.into(), held)] };
        s.hand_in("t", &[holding(1, 5)], UNIX_EPOCH);
        s.hand_in("t", &[holding(1, 3)], UNIX_EPOCH);
        s.hand_in("t", &[holding(2, 1)], UNIX_EPOCH);
        assert_eq!(s.sums(UNIX_EPOCH)[0].counters, [(HELD_AT_RESTART.to_owned(), 3), (HELD.to_owned(), 1)]);
    }

    #[test]
    fn how_far_reporters_were_heard_is_kept_and_not_added_up() {
        let mut s = Statistics::default();
        let heard = |reporter: u16, life, newest| NodeCounters {
            node: format!("reporter/{reporter}"),
            life,
            counters: vec![(NEWEST.into(), newest)],
        };
        s.hand_in("t", &[heard(7, 1, 100), heard(300, 1, 5), node(1, 10)], UNIX_EPOCH);
        s.hand_in("u", &[heard(7, 1, 900)], UNIX_EPOCH);
        s.hand_in("t", &[heard(7, 2, 150)], UNIX_EPOCH);
        let position = |reporter, sequence| ReporterPosition { reporter, sequence };
        assert_eq!(s.reporters("t"), [position(300, 5), position(7, 150)]);
        assert_eq!(s.reporters("u"), [position(7, 900)]);
        assert_eq!(s.reporters("v"), []);
        let told = s.sums(UNIX_EPOCH).into_iter().find(|n| n.session == "t" && n.node == "reporter/7");
        assert_eq!(told.unwrap().counters, [(NEWEST.to_owned(), 150)]);
    }

    #[test]
    fn two_sessions_that_hear_one_reporter_are_kept_apart() {
        let mut s = Statistics::default();
        s.hand_in("t", &[node(1, 10)], UNIX_EPOCH);
        s.hand_in("u", &[node(1, 20)], UNIX_EPOCH);
        assert_eq!(s.sums(UNIX_EPOCH).len(), 2);
    }

    #[test]
    fn bad_names_and_floods_are_left_out_and_the_rest_is_taken() {
        let mut s = Statistics::default();
        let mut bad = node(1, 1);
        bad.counters.push(("two words".into(), 1));
        let many = NodeCounters {
            node: "n".into(),
            life: 0,
            counters: (0..=MAX_COUNTERS).map(|i| (format!("c{i}"), 0)).collect(),
        };
        let nameless = NodeCounters::default();
        let called_so = NodeCounters { node: format!("reporter/{OTHERS}"), ..node(1, 9) };
        assert_eq!(s.hand_in("t", &[bad, node(1, 5), many, nameless, called_so], UNIX_EPOCH), 4);
        assert_eq!(s.sums(UNIX_EPOCH).len(), 1);
        assert_eq!(received(&s), 5);
    }

    fn flood(life: u64, nodes: std::ops::Range<usize>, received: u64) -> Vec<NodeCounters> {
        let node = |n| NodeCounters { node: format!("reporter/{n}"), ..node(life, received) };
        nodes.map(node).collect()
    }

    fn total(s: &Statistics) -> u64 {
        s.sums(UNIX_EPOCH).iter().flat_map(|n| &n.counters).map(|(_, value)| value).sum()
    }

    #[test]
    fn what_has_no_room_is_added_up_over_lives_too() {
        let mut s = Statistics::default();
        s.hand_in("big", &flood(1, 0..MAX_NODES, 1), UNIX_EPOCH);
        let more = 5000;
        for (life, received, in_all) in [(1, 1, 1), (1, 4, 4), (2, 1, 5), (2, 3, 7)] {
            s.hand_in("late", &flood(life, 0..more, received), UNIX_EPOCH);
            assert_eq!(total(&s), MAX_NODES as u64 + more as u64 * in_all, "life {life}, {received} each");
            assert_eq!(s.of_session["late"], SESSION_NODES + 1);
        }
        // One that is not told of any more has been counted.
        s.hand_in("late", &flood(2, 0..more - 1000, 3), UNIX_EPOCH);
        assert_eq!(total(&s), MAX_NODES as u64 + more as u64 * 7);
    }

    #[test]
    fn what_was_kept_when_it_was_full_is_taken_and_the_ended_make_room() {
        let mut s = Statistics::default();
        for n in 0..400 {
            s.hand_in(&format!("s{n}"), &flood(1, 0..300, 2), UNIX_EPOCH + Duration::from_secs(n));
        }
        let (before, all) = (s.nodes.0.len(), total(&s));
        assert_eq!(all, 400 * 300 * 2);
        assert!(before > MAX_NODES);
        let bytes = bincode::encode_to_vec(s.nodes(), bincode::config::standard()).unwrap();
        let (nodes, _): (Nodes, _) = bincode::decode_from_slice(&bytes, bincode::config::standard()).unwrap();
        let s = Statistics::restore(nodes.clone(), |_| true);
        assert_eq!((s.nodes.0.len(), total(&s)), (before, all), "all of them live");
        let mut s = Statistics::restore(nodes, |name| name == "s7");
        assert!(s.ended.len() <= MAX_ENDED && s.nodes.0.len() <= MAX_NODES);
        assert_eq!(total(&s), all);
        assert!(!s.of_session.contains_key("s0") && s.of_session.contains_key("s399"), "the oldest went");
        assert!(s.of_session.contains_key("s7"), "it lives");
        s.hand_in("new", &flood(1, 0..MAX_NODES, 1), UNIX_EPOCH);
        assert_eq!(total(&s), all + MAX_NODES as u64);
        assert_eq!(s.ended.len(), 0);
        assert_eq!(s.of_session.values().sum::<usize>(), s.nodes.0.len());
        // A session that ended and is opened again goes on, whether it was folded or not.
        s.end("new");
        s.begin("new");
        s.hand_in("new", &flood(2, 0..MAX_NODES, 2), UNIX_EPOCH);
        s.hand_in("s0", &flood(2, 0..300, 1), UNIX_EPOCH);
        assert_eq!(total(&s), all + 3 * MAX_NODES as u64 + 300);
    }
}

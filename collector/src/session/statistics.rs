//! Counters that translators hand in: their own and their reporters'.
//!
//! The last word of every node is kept, also of those whose session has ended, because "where did my reports go?" is asked
//! afterwards. A node that starts again counts from 0 again; what it counted in earlier lives is added, so that a sum over the whole
//! time can be compared with what the next hop counted.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bincode::{Decode, Encode};

/// The most nodes that are kept.
pub const MAX_NODES: usize = 1 << 16;
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

/// Why statistics are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StatisticsError {
    /// A name that is none.
    #[error("the name {0:?} of a node or counter must have 1 to 128 printable ASCII characters and no space")]
    Name(String),
    /// Too many counters.
    #[error("node {node:?} has {have} counters, but at most {MAX_COUNTERS} are kept")]
    TooManyCounters {
        /// The node.
        node: String,
        /// How many it has.
        have: usize,
    },
    /// Too many nodes.
    #[error("statistics of more than {MAX_NODES} nodes")]
    TooManyNodes,
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

/// What all nodes told last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Statistics {
    nodes: BTreeMap<(String, String), Kept>,
}

impl Statistics {
    /// Takes what a session hands in; all of it or, on error, nothing.
    pub fn hand_in(
        &mut self,
        session: &str,
        nodes: &[NodeCounters],
        now: SystemTime,
    ) -> Result<(), StatisticsError> {
        let name_ok =
            |name: &str| (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
        for node in nodes {
            if node.counters.len() > MAX_COUNTERS {
                return Err(StatisticsError::TooManyCounters {
                    node: node.node.clone(),
                    have: node.counters.len(),
                });
            }
            let names = std::iter::once(&node.node).chain(node.counters.iter().map(|(name, _)| name));
            if let Some(bad) = names.into_iter().find(|name| !name_ok(name)) {
                return Err(StatisticsError::Name(bad.chars().take(MAX_NAME).collect()));
            }
        }
        if self.nodes.len() + nodes.len() > MAX_NODES {
            let new =
                nodes.iter().filter(|n| !self.nodes.contains_key(&(session.to_owned(), n.node.clone())));
            if self.nodes.len() + new.count() > MAX_NODES {
                return Err(StatisticsError::TooManyNodes);
            }
        }
        for node in nodes {
            let kept = self.nodes.entry((session.to_owned(), node.node.clone())).or_default();
            let current: BTreeMap<String, u64> = node.counters.iter().cloned().collect();
            if kept.life != node.life {
                for (name, value) in std::mem::take(&mut kept.current) {
                    if name == NEWEST {
                        continue;
                    }
                    // What a life still held when it ended was never sent, and nobody holds it any more.
                    let name = match name.strip_suffix(HELD) {
                        Some("") => HELD_AT_RESTART.to_owned(),
                        Some(of) if of.ends_with('.') => format!("{of}{HELD_AT_RESTART}"),
                        _ => name,
                    };
                    let sum = kept.earlier.entry(name).or_default();
                    *sum = sum.saturating_add(value);
                }
            }
            kept.life = node.life;
            kept.current = current;
            kept.at = millis(now);
        }
        Ok(())
    }

    /// How far the translators of a session had heard their reporters when they handed in last.
    pub fn reporters(&self, session: &str) -> Vec<ReporterPosition> {
        let from = (session.to_owned(), "reporter/".to_owned());
        self.nodes
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
            .iter()
            .map(|((session, node), kept)| {
                let mut sums = kept.earlier.clone();
                for (name, value) in &kept.current {
                    let sum = sums.entry(name.clone()).or_default();
                    *sum = sum.saturating_add(*value);
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
        s.hand_in("t", &[node(7, 10)], UNIX_EPOCH).unwrap();
        s.hand_in("t", &[node(7, 25)], UNIX_EPOCH + Duration::from_secs(5)).unwrap();
        assert_eq!(received(&s), 25);
        assert_eq!(s.sums(UNIX_EPOCH + Duration::from_secs(8))[0].age, Duration::from_secs(3));
    }

    #[test]
    fn lives_add_up() {
        let mut s = Statistics::default();
        s.hand_in("t", &[node(7, 10)], UNIX_EPOCH).unwrap();
        // A new life that has already counted more is still a new life.
        s.hand_in("t", &[node(8, 25)], UNIX_EPOCH).unwrap();
        assert_eq!(received(&s), 35);
        s.hand_in("t", &[node(8, 26)], UNIX_EPOCH).unwrap();
        assert_eq!(received(&s), 36);
    }

    #[test]
    fn what_a_life_held_at_its_end_is_told_as_discarded() {
        let mut s = Statistics::default();
        let holding =
            |life, held| NodeCounters { node: "t".into(), life, counters: vec![(HELD.into(), held)] };
        s.hand_in("t", &[holding(1, 5)], UNIX_EPOCH).unwrap();
        s.hand_in("t", &[holding(1, 3)], UNIX_EPOCH).unwrap();
        s.hand_in("t", &[holding(2, 1)], UNIX_EPOCH).unwrap();
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
        s.hand_in("t", &[heard(7, 1, 100), heard(300, 1, 5), node(1, 10)], UNIX_EPOCH).unwrap();
        s.hand_in("u", &[heard(7, 1, 900)], UNIX_EPOCH).unwrap();
        s.hand_in("t", &[heard(7, 2, 150)], UNIX_EPOCH).unwrap();
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
        s.hand_in("t", &[node(1, 10)], UNIX_EPOCH).unwrap();
        s.hand_in("u", &[node(1, 20)], UNIX_EPOCH).unwrap();
        assert_eq!(s.sums(UNIX_EPOCH).len(), 2);
    }

    #[test]
    fn bad_names_and_floods_are_refused_whole() {
        let mut s = Statistics::default();
        let mut bad = node(1, 1);
        bad.counters.push(("two words".into(), 1));
        assert!(s.hand_in("t", &[node(1, 1), bad], UNIX_EPOCH).is_err());
        assert!(s.sums(UNIX_EPOCH).is_empty());
        let many = NodeCounters {
            node: "n".into(),
            life: 0,
            counters: (0..=MAX_COUNTERS).map(|i| (format!("c{i}"), 0)).collect(),
        };
        assert!(matches!(s.hand_in("t", &[many], UNIX_EPOCH), Err(StatisticsError::TooManyCounters { .. })));
    }
}

//! A simulated cluster: collectors join, leave and die at random, and each placement is compared with the ideal.

use std::collections::{BTreeMap, BTreeSet};

use dta_proto::placement::ClusterPlacement;
use dta_proto::placement::plan::{BUCKETS, PlacementMember, fewest_moves, next};
use dta_proto::random::SplitMix64;
use serde::Serialize;

#[derive(Clone, Debug)]
pub struct ClusterShape {
    /// Collectors at the beginning; later half to one and a half times as many.
    pub collectors: usize,
    pub events: usize,
    pub copies: usize,
    /// Collectors are assigned to this many zones in turn.
    pub zones: usize,
    /// Each collector has one of these amounts of free memory, chosen at random.
    pub memory: Vec<u64>,
    pub seed: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Simulated {
    /// Collectors after the last event.
    pub collectors: usize,
    pub joins: usize,
    /// Collectors that were drained, then taken away.
    pub leaves: usize,
    /// Collectors that died without notice.
    pub deaths: usize,
    /// Copies of buckets that moved because of an event.
    pub moved: Beside<usize>,
    /// The same at the worst event.
    pub most_moved: Beside<usize>,
    /// The highest load of any collector, relative to its share by weight: mean over all placements.
    pub load: Beside<f64>,
    /// The same at the worst placement.
    pub worst_load: Beside<f64>,
    /// Buckets of all placements with two copies in one zone.
    pub together: usize,
}

/// A figure, and the best that any placement could reach.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Beside<T> {
    pub was: T,
    /// What it would be with whole buckets and without zones.
    pub ideal: T,
}

pub fn run(shape: &ClusterShape) -> Simulated {
    let mut random = SplitMix64(shape.seed);
    let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
    let mut known = 0;
    let mut another = |memory: u64| {
        known += 1;
        let zone = format!("z{}", known % shape.zones);
        PlacementMember {
            id: format!("c{known:05}"),
            zone,
            weight: memory,
            drained: false,
            lists: BTreeMap::new(),
        }
    };
    let memory = &shape.memory;
    let mut members: Vec<PlacementMember> =
        (0..shape.collectors).map(|_| another(memory[below(memory.len())])).collect();
    let mut placement = next(&ClusterPlacement::default(), &members, shape.copies);
    let mut result = Simulated::default();
    for _ in 0..shape.events {
        let is_few = members.len() <= shape.collectors.div_ceil(2);
        let is_many = members.len() >= shape.collectors * 3 / 2;
        match below(4) {
            drawn if is_few || (drawn < 2 && !is_many) => {
                members.push(another(memory[below(memory.len())]));
                result.joins += 1;
            }
            0 | 2 => {
                let drained = below(members.len());
                members[drained].drained = true;
                result.leaves += 1;
            }
            _ => {
                members.swap_remove(below(members.len()));
                result.deaths += 1;
            }
        }
        let after = next(&placement, &members, shape.copies);
        let moved = Beside {
            was: after.moved_since(&placement),
            ideal: fewest_moves(&placement, &members, shape.copies),
        };
        // A drained collector leaves once it holds nothing.
        members.retain(|member| !member.drained);
        placement = after;
        result.moved.was += moved.was;
        result.moved.ideal += moved.ideal;
        if moved.was > result.most_moved.was {
            result.most_moved = moved;
        }
        let load = load(&placement, &members, shape.copies);
        result.load.was += load.was / shape.events as f64;
        result.load.ideal += load.ideal / shape.events as f64;
        if load.was > result.worst_load.was {
            result.worst_load = load;
        }
        result.together += colocated_buckets(&placement, &members);
    }
    result.collectors = members.len();
    result
}

/// The highest load of any collector, relative to its share by weight.
fn load(placement: &ClusterPlacement, members: &[PlacementMember], copies: usize) -> Beside<f64> {
    let copies = copies.min(members.len());
    let all: u64 = members.iter().map(|member| member.weight).sum();
    let parts = copies * BUCKETS;
    let share = |member: &PlacementMember| parts as f64 * member.weight as f64 / all as f64;
    let held = |member: &PlacementMember| -> usize {
        (0..copies).map(|copy| placement.buckets_of_copy(copy, &member.id).iter().count()).sum()
    };
    let relative = |held: usize, member: &PlacementMember| held as f64 / share(member);
    let was = members.iter().map(|member| relative(held(member), member)).fold(0.0, f64::max);
    // The highest load is lowest if each part goes to the collector that it loads least (D'Hondt).
    let mut best = vec![0; members.len()];
    for _ in 0..parts {
        let with_one_more = |n: &usize| relative(best[*n] + 1, &members[*n]);
        let least = (0..members.len()).min_by(|a, b| with_one_more(a).total_cmp(&with_one_more(b)));
        least.into_iter().for_each(|n| best[n] += 1);
    }
    let ideal = members.iter().zip(best).map(|(member, held)| relative(held, member)).fold(0.0, f64::max);
    Beside { was, ideal }
}

/// The buckets with two copies in one zone.
fn colocated_buckets(placement: &ClusterPlacement, members: &[PlacementMember]) -> usize {
    let zones: BTreeMap<&str, &str> =
        members.iter().map(|member| (member.id.as_str(), member.zone.as_str())).collect();
    let is_together = |bucket: &u8| {
        let mut seen = BTreeSet::new();
        !placement.of_bucket(*bucket).all(|id| seen.insert(zones[id]))
    };
    (0..=u8::MAX).filter(is_together).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> ClusterShape {
        ClusterShape { collectors: 12, events: 60, copies: 2, zones: 4, memory: vec![1], seed: 3 }
    }

    #[test]
    fn the_same_seed_gives_the_same_and_each_event_counts() {
        let simulated = run(&shape());
        assert_eq!(simulated.joins + simulated.leaves + simulated.deaths, 60);
        assert_eq!(simulated.collectors, 12 + simulated.joins - simulated.leaves - simulated.deaths);
        assert!((6..=18).contains(&simulated.collectors));
        assert!(simulated.joins > 0 && simulated.leaves > 0 && simulated.deaths > 0);
        let json = |simulated: &Simulated| serde_json::to_string(simulated).unwrap();
        assert_eq!(json(&run(&shape())), json(&simulated));
        assert_ne!(json(&run(&ClusterShape { seed: 4, ..shape() })), json(&simulated));
    }

    #[test]
    fn figures_stand_beside_what_is_possible() {
        let simulated = run(&shape());
        assert!(simulated.moved.was >= simulated.moved.ideal && simulated.moved.ideal > 0);
        assert!(simulated.load.was >= simulated.load.ideal && simulated.load.ideal >= 1.0);
        assert_eq!(simulated.together, 0);
        // All copies are in the only zone there is.
        assert_eq!(run(&ClusterShape { zones: 1, ..shape() }).together, 60 * 256);
    }
}

//! Placements of random clusters over random changes: every part placed, in different zones, balanced, and with no
//! more moved than needed.

use std::collections::{BTreeMap, BTreeSet};

use dta_proto::layout::key_increment::{COLOURS, total_count};
use dta_proto::placement::plan::{BUCKETS, PlacementMember, fewest_moves, next};
use dta_proto::placement::{ClusterPlacement, Colours};
use proptest::prelude::*;

fn member(n: usize, zones: usize, weight: u64) -> PlacementMember {
    PlacementMember {
        id: format!("c{n:02}"),
        zone: format!("z{}", n % zones),
        weight,
        drained: false,
        lists: BTreeMap::from([("events".into(), 16), ("sketch".into(), 1)]),
    }
}

fn equal(collectors: std::ops::Range<usize>) -> Vec<PlacementMember> {
    collectors.map(|n| PlacementMember { zone: String::new(), ..member(n, 1, 7) }).collect()
}

/// What happens to a cluster.
#[derive(Clone, Debug)]
enum Event {
    Join(usize),
    Leave(usize),
    Drain(usize, bool),
}

fn event(most: usize) -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (0..most).prop_map(Event::Join),
        2 => (0..most).prop_map(Event::Leave),
        1 => (0..most, any::<bool>()).prop_map(|(n, is)| Event::Drain(n, is)),
    ]
}

/// The clusters that come of events, beginning with one of a single member.
fn clusters(events: Vec<Event>, zones: usize, weights: &[u64]) -> Vec<Vec<PlacementMember>> {
    let of = |n: usize| member(n, zones, weights[n % weights.len()]);
    let mut members = BTreeMap::from([(0, of(0))]);
    let mut all = vec![members.values().cloned().collect()];
    for event in events {
        match event {
            Event::Join(n) => drop(members.entry(n).or_insert_with(|| of(n))),
            Event::Leave(n) => drop(members.remove(&n)),
            Event::Drain(n, is) => drop(members.entry(n).and_modify(|member| member.drained = is)),
        }
        all.push(members.values().cloned().collect());
    }
    all
}

/// The last of the placements that follow each other before nothing more moves. Usually that is the first.
fn settled(before: &ClusterPlacement, members: &[PlacementMember], copies: usize) -> ClusterPlacement {
    let mut after = next(before, members, copies);
    for _ in 0..8 {
        let again = next(&after, members, copies);
        if again == after {
            return after;
        }
        assert_eq!(again.version, after.version + 1);
        after = again;
    }
    panic!("eight placements follow {before:?} and each other");
}

fn in_service(members: &[PlacementMember]) -> Vec<&PlacementMember> {
    members.iter().filter(|member| !member.drained).collect()
}

fn held(placement: &ClusterPlacement, copy: usize, member: &PlacementMember) -> usize {
    placement.buckets_of_copy(copy, &member.id).iter().count()
}

/// Each bucket and list has its collectors, none of them drained or gone, and in as many zones as can be.
fn assert_placed(placement: &ClusterPlacement, members: &[PlacementMember], copies: usize) {
    let members = in_service(members);
    let zones: BTreeSet<&str> = members.iter().map(|member| member.zone.as_str()).collect();
    let zone = |id: &str| members.iter().find(|member| member.id == id).unwrap().zone.as_str();
    for bucket in 0..=255 {
        let ids: Vec<&str> = placement.of_bucket(bucket).collect();
        assert_eq!(ids.len(), copies.min(members.len()), "{bucket}: {ids:?}");
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{bucket}: {ids:?}");
        let its_zones: BTreeSet<&str> = ids.iter().map(|id| zone(id)).collect();
        assert_eq!(its_zones.len(), copies.min(zones.len()), "{bucket}: {ids:?}");
    }
    for list in 0..16 {
        let id = placement.list_collector("events", list).unwrap();
        assert!(members.iter().any(|member| member.id == id), "{id}");
    }
    assert!(placement.list_collector("sketch", 0).is_some());
    assert!(placement.list_collector("events", 16).is_none());
}

fn assert_balanced(held: usize, weight: u64, all: u64, parts: usize) {
    let share = parts as f64 * weight as f64 / all as f64;
    assert!((held as f64 - share).abs() < 1.0, "{held} of {parts} where {share:.2} would be its share");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With one copy each member has its share to within one, and no bucket moves without need.
    #[test]
    fn one_copy_is_balanced_and_moves_as_little_as_possible(
        events in prop::collection::vec(event(40), 1..30),
        weights in prop::collection::vec(1u64..5, 1..6),
    ) {
        let mut before = ClusterPlacement::default();
        for members in clusters(events, 1, &weights) {
            let after = next(&before, &members, 1);
            let service = in_service(&members);
            if service.is_empty() {
                prop_assert_eq!(&after, &before);
                continue;
            }
            assert_placed(&after, &members, 1);
            let all: u64 = service.iter().map(|member| member.weight).sum();
            for member in service {
                assert_balanced(held(&after, 0, member), member.weight, all, BUCKETS);
                let of_events = (0..16).filter(|list| after.list_collector("events", *list) == Some(&member.id)).count();
                assert_balanced(of_events, member.weight, all, 16);
            }
            prop_assert_eq!(after.moved_since(&before), fewest_moves(&before, &members, 1));
            before = after;
        }
    }

    /// With copies in zones each is where it can be, whatever the weights, and there is an end to moves.
    #[test]
    fn copies_are_in_different_zones_and_settled_in_the_end(
        events in prop::collection::vec(event(24), 1..20),
        weights in prop::collection::vec(0u64..9, 1..6),
        zones in 1usize..6,
        copies in 1usize..5,
    ) {
        let mut before = ClusterPlacement::default();
        for members in clusters(events, zones, &weights) {
            let first = next(&before, &members, copies);
            if !in_service(&members).is_empty() {
                assert_placed(&first, &members, copies);
                prop_assert!(first == before || first.version == before.version + 1);
            }
            let after = settled(&before, &members, copies);
            // It is read by others as it was planned.
            let json = serde_json::to_string(&after).unwrap();
            prop_assert_eq!(serde_json::from_str::<ClusterPlacement>(&json).unwrap(), after.clone());
            before = after;
        }
    }

    /// Whatever happens, a bucket of which a copy is left keeps one where it is.
    #[test]
    fn a_bucket_never_loses_both_copies_while_one_is_left(
        events in prop::collection::vec(event(8), 1..40),
        weights in prop::collection::vec(1u64..4, 1..4),
    ) {
        let of = |n: usize| PlacementMember { zone: String::new(), ..member(n, 1, weights[n % weights.len()]) };
        let mut before = ClusterPlacement::default();
        for members in clusters(events, 1, &[1]) {
            let members: Vec<PlacementMember> = (0..8).filter_map(|n| {
                let drained = members.iter().find(|member| member.id == of(n).id)?.drained;
                Some(PlacementMember { drained, ..of(n) })
            }).collect();
            let after = next(&before, &members, 2);
            if before.keys.len() == after.keys.len() {
                for bucket in 0..=255 {
                    let is_left = |(_, id): &(usize, &str)| in_service(&members).iter().any(|m| m.id == *id);
                    let left: Vec<(usize, &str)> = before.of_bucket(bucket).enumerate().filter(is_left).collect();
                    let now: Vec<&str> = after.of_bucket(bucket).collect();
                    let stays = left.iter().any(|(copy, id)| now[*copy] == *id);
                    prop_assert!(left.is_empty() || stays, "{bucket}: of {left:?}, {now:?} are left");
                }
            }
            before = after;
        }
    }

    /// In zones of equal weight each copy is balanced too, and little more moves than without zones.
    #[test]
    fn two_copies_are_balanced_in_zones_of_equal_weight(racks in prop::collection::vec(0usize..6, 1..12)) {
        let mut before = ClusterPlacement::default();
        let (mut moved, mut fewest) = (0, 0);
        for racks in racks {
            // Four zones with a machine of each rack, and one more rack than was drawn.
            let members: Vec<PlacementMember> = (0..4 * (racks + 1)).map(|n| member(n, 4, 3)).collect();
            let after = settled(&before, &members, 2);
            assert_placed(&after, &members, 2);
            for (copy, member) in (0..2).flat_map(|copy| members.iter().map(move |member| (copy, member))) {
                assert_balanced(held(&after, copy, member), 1, members.len() as u64, BUCKETS);
            }
            moved += after.moved_since(&before);
            fewest += fewest_moves(&before, &members, 2);
            before = after;
        }
        prop_assert!(moved >= fewest && moved * 10 <= fewest * 13, "{moved} moved where {fewest} would do");
    }
}

#[test]
fn a_first_placement_is_in_runs_and_its_copies_are_scattered() {
    let placement = next(&ClusterPlacement::default(), &equal(0..4), 2);
    let first = ["c00", "c01", "c02", "c03"].map(|id| placement.buckets_of_copy(0, id).to_string());
    assert_eq!(first, ["0-63", "64-127", "128-191", "192-255"]);
    assert_eq!(placement.version, 1);
    // When one dies, each of the others takes over a part of its first copies.
    let seconds: BTreeSet<&str> = (0..64).map(|bucket| placement.of_bucket(bucket).nth(1).unwrap()).collect();
    assert_eq!(seconds, BTreeSet::from(["c01", "c02", "c03"]));
}

#[test]
fn who_joins_gets_its_share_of_each_and_who_goes_leaves_its_own_only() {
    let three = next(&ClusterPlacement::default(), &equal(0..3), 1);
    let four = next(&three, &equal(0..4), 1);
    assert_eq!((four.moved_since(&three), four.version), (64, 2));
    let back = next(&four, &equal(0..3), 1);
    assert_eq!(back.moved_since(&four), 64);
    // Who is drained is treated as gone; if all are, all keep what they have.
    let mut drained = equal(0..4);
    drained[3].drained = true;
    assert_eq!(next(&four, &drained, 1), back);
    drained.iter_mut().for_each(|member| member.drained = true);
    assert_eq!(next(&four, &drained, 1), four);
    assert_eq!(next(&four, &[], 1), four);
}

#[test]
fn who_dies_takes_nothing_along_and_the_others_stay_equally_loaded() {
    for count in 3..12 {
        let mut before = ClusterPlacement::default();
        // They come one by one.
        for n in 1..=count {
            before = next(&before, &equal(0..n), 2);
        }
        for dies in 0..count {
            let mut left = equal(0..count);
            let id = left.remove(dies).id;
            let after = next(&before, &left, 2);
            for bucket in 0..=255 {
                let (had, has): (Vec<_>, Vec<_>) =
                    (before.of_bucket(bucket).collect(), after.of_bucket(bucket).collect());
                for copy in 0..2 {
                    // All that moves beside what died is for equal load, of buckets that have both copies.
                    let stays = had[copy] == id || had[copy] == has[copy] || !had.contains(&id.as_str());
                    assert!(stays, "of {count}, {id} dies: bucket {bucket} goes from {had:?} to {has:?}");
                }
            }
            for (copy, member) in (0..2).flat_map(|copy| left.iter().map(move |member| (copy, member))) {
                let (held, share) = (held(&after, copy, member) as f64, BUCKETS as f64 / left.len() as f64);
                assert!(
                    (held - share).abs() < 2.0,
                    "of {count}, {id} dies: {held} of copy {copy}, not {share:.1}"
                );
            }
        }
    }
}

#[test]
fn a_zone_that_weighs_more_than_all_others_gets_one_copy_of_each_bucket() {
    let mut members: Vec<PlacementMember> = (0..4).map(|n| member(n, 4, 1)).collect();
    members[..3].iter_mut().for_each(|member| member.zone = "a".into());
    let placement = next(&ClusterPlacement::default(), &members, 2);
    assert_placed(&placement, &members, 2);
    let held = |member: &PlacementMember| [0, 1].map(|copy| held(&placement, copy, member));
    assert_eq!(held(&members[3]), [64, 192]);
    for member in &members[..3] {
        assert_balanced(held(member).iter().sum(), 1, 3, BUCKETS);
    }
}

#[test]
fn sketches_are_shared_out_and_lists_go_where_their_store_is() {
    let mut members = equal(0..4);
    for member in &mut members {
        member.lists = (0..4).map(|n| (format!("sketch{n}"), 1)).collect();
    }
    members[1].lists.insert("drops".into(), 4096);
    members[2].lists.insert("drops".into(), 4096);
    members[3].lists.insert("drops".into(), 64);
    let placement = next(&ClusterPlacement::default(), &members, 1);
    let of: BTreeSet<&str> =
        (0..4).map(|n| placement.list_collector(&format!("sketch{n}"), 0).unwrap()).collect();
    assert_eq!(of.len(), 4);
    let drops = [0, 2047, 2048, 4095].map(|list| placement.list_collector("drops", list));
    assert_eq!(drops, [Some("c01"), Some("c01"), Some("c02"), Some("c02")]);
    assert_eq!(placement.list_collector("drops", 4096), None);
}

/// What each collector has counted of one key of each bucket, by lane.
#[derive(Default)]
struct Counts {
    lanes: BTreeMap<String, Vec<[u64; COLOURS]>>,
    /// What was reported of each.
    truth: Vec<u64>,
    /// Of that, what one collector counted alone, by its id.
    alone: BTreeMap<String, Vec<u64>>,
}

impl Counts {
    /// Reports `count` of each key; returns of how many buckets there are two collectors of one colour.
    fn report(&mut self, placement: &ClusterPlacement, members: &[&PlacementMember], count: u64) -> usize {
        let mut counted = vec![Vec::new(); BUCKETS];
        for PlacementMember { id, .. } in members {
            let lanes = placement.collector_lanes(2, id);
            let of = self.lanes.entry(id.clone()).or_insert_with(|| vec![[0; COLOURS]; BUCKETS]);
            for (bucket, of) in of.iter_mut().enumerate() {
                for lane in (0..COLOURS).filter(|lane| lanes.buckets_of_copy(*lane).contains(bucket as u8)) {
                    of[lane] += count;
                    counted[bucket].push(id);
                }
            }
        }
        self.truth.resize(BUCKETS, 0);
        for (bucket, by) in counted.iter().enumerate() {
            self.truth[bucket] += count;
            assert!((1..=2).contains(&by.len()), "{bucket}: {by:?}");
            if let [only] = by[..] {
                self.alone.entry(only.clone()).or_insert_with(|| vec![0; BUCKETS])[bucket] += count;
            }
        }
        counted.iter().filter(|by| by.len() < members.len().min(2)).count()
    }

    /// What the collectors that are not lost say of a key of a bucket.
    fn without(&self, placement: &ClusterPlacement, lost: Option<&String>, bucket: usize) -> u64 {
        let mut all = vec![0; COLOURS * COLOURS];
        for (id, lanes) in self.lanes.iter().filter(|(id, _)| Some(*id) != lost) {
            let role = placement.counting_role(id, bucket as u8);
            all.iter_mut().zip(role.by_colour(&lanes[bucket])).for_each(|(all, of)| *all += of);
        }
        total_count(&all)
    }

    /// Whatever one collector is lost, nothing is but what it counted alone.
    fn assert_whole(&self, placement: &ClusterPlacement) {
        for bucket in 0..BUCKETS {
            let truth = self.truth[bucket];
            assert_eq!(self.without(placement, None, bucket), truth, "bucket {bucket}");
            for lost in self.lanes.keys() {
                let alone = self.alone.get(lost).map_or(0, |alone| alone[bucket]);
                let left = self.without(placement, Some(lost), bucket);
                assert_eq!(left, truth - alone, "bucket {bucket} without {lost}");
            }
        }
    }
}

/// Counts while a cluster changes; returns the share of keys that one of two collectors counted alone. Nothing is counted
/// before the placement of a step that has no colours, as an earlier version writes it.
fn count(clusters: Vec<Vec<PlacementMember>>, forgets: Option<usize>) -> f64 {
    let (mut placement, mut counts) = (ClusterPlacement::default(), Counts::default());
    let (mut of_one_colour, mut steps) = (0, 0);
    for (step, members) in clusters.iter().enumerate() {
        placement = next(&placement, members, 2);
        let service = in_service(members);
        if service.is_empty() {
            continue;
        }
        if forgets == Some(step) {
            placement.colours = Colours::default();
            counts = Counts::default();
        }
        of_one_colour += counts.report(&placement, &service, 1 + step as u64);
        steps += 1;
    }
    counts.assert_whole(&placement);
    of_one_colour as f64 / (steps * BUCKETS) as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However collectors come and go: the counts that two of them made at one time survive either.
    #[test]
    fn counts_of_two_collectors_survive_the_loss_of_any_one(
        events in prop::collection::vec(event(12), 1..40),
        zones in 1usize..4,
        forgets in prop::option::of(0usize..10),
    ) {
        count(clusters(events, zones, &[1, 3]), forgets);
    }

    /// Of four collectors, all colours differ.
    #[test]
    fn of_four_collectors_no_two_have_one_colour(events in prop::collection::vec(event(4), 1..40)) {
        prop_assert_eq!(count(clusters(events, 4, &[1, 2]), None), 0.0);
    }
}

#[test]
fn in_a_large_cluster_few_counts_are_made_by_one_of_two_collectors() {
    // Forty collectors, of which one after the other is away for a while.
    let all = equal(0..40);
    let away =
        |n: usize| all.iter().enumerate().filter(|(at, _)| *at != n % 40).map(|(_, m)| m.clone()).collect();
    let share = count((0..120).map(away).collect(), None);
    assert!(share < 0.02, "{share}");
}

//! The next placement when a collector joins, leaves, dies or is drained: least movement, load by weight, and copies in
//! different zones. Pure arithmetic, so that every planner gets the same result.

use std::collections::{BTreeMap, BTreeSet};

use super::ClusterPlacement;
use super::layer::{Fits, Layer, ONE};
use crate::buckets::Buckets;
use crate::list_range::ListRange;

/// Buckets of keys.
pub const BUCKETS: usize = 256;
/// Parts of a store's lists that are placed one by one; a store with fewer lists has a part for each.
const LIST_PARTS: u32 = 256;

/// A collector that buckets and lists can be given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementMember {
    /// Its id.
    pub id: String,
    /// The unit that fails as a whole, such as a rack; empty = the collector itself.
    pub zone: String,
    /// Its part of the load, relative to the other weights, such as its free memory in bytes; 0 counts as 1.
    pub weight: u64,
    /// Whether it is to lose everything that it has.
    pub drained: bool,
    /// The stores that are placed by lists, with their number of lists; a sketch has one. Members that state a smaller
    /// number than the highest get no lists of that store.
    pub lists: BTreeMap<String, u32>,
}

impl PlacementMember {
    fn zone_name(&self) -> &str {
        if self.zone.is_empty() { &self.id } else { &self.zone }
    }
}

/// The placement after `before`, with `copies` copies of each key at different members, or one at each if there are
/// fewer. It is `before` itself, version included, if nothing has to move or no member is left to hold anything.
///
/// - Each member has its share, by weight and to within one, of each copy of all buckets and of each store's lists.
/// - Copies of a bucket are in different zones, or, if there are fewer zones than copies, at different members. This
///   comes before equal load: a zone gets no more than one copy of a bucket.
/// - Of the copies that a bucket has at members that stay, one stays where it is, under its number, as far as zones
///   allow, so that what was written can still be found. This comes before equal load, too.
/// - Whatever need not move for these reasons stays.
/// - If there are to be several copies, each collector with one of a bucket's first two gets a colour there.
pub fn next(before: &ClusterPlacement, members: &[PlacementMember], copies: usize) -> ClusterPlacement {
    let members = in_service(members);
    if members.is_empty() {
        return before.clone();
    }
    let mut carried = vec![0; members.len()];
    let mut next = ClusterPlacement {
        version: before.version,
        since: before.since,
        keys: place_keys(before, &members, copies, &mut carried),
        lists: place_lists(before, &members, &mut carried),
        colours: before.colours.clone(),
    };
    if copies > 1 {
        // A placement without colours may have been in effect while counters were counted.
        for keys in [&before.keys, &next.keys] {
            next.colours.assign_colours(keys, |id| members.iter().any(|member| member.id == id));
        }
    }
    if next != *before {
        next.version = next.version.saturating_add(1);
    }
    next
}

/// The least number of copies of buckets that must move, zones aside, so that none is at a member that is drained or
/// gone, and each member has its share of each copy to within one.
pub fn fewest_moves(before: &ClusterPlacement, members: &[PlacementMember], copies: usize) -> usize {
    let members = in_service(members);
    let shares = by_weight(members.iter().map(|member| member.weight), BUCKETS);
    let of_copy = |of_copy: &BTreeMap<String, Buckets>| -> usize {
        let held =
            |member: &&PlacementMember| of_copy.get(&member.id).map_or(0, |buckets| buckets.iter().count());
        let all_held: usize = members.iter().map(held).sum();
        let (mut over, mut under) = (0, 0);
        for (member, share) in members.iter().zip(&shares) {
            let (held, share) = (held(member), *share as usize);
            let (whole, rest) = (share / ONE as usize, share % ONE as usize);
            over += held.saturating_sub(whole + usize::from(rest > 0));
            under += whole.saturating_sub(held);
        }
        let gone = BUCKETS - all_held;
        gone + over.max(under.saturating_sub(gone))
    };
    let copies = copies.min(members.len());
    before.keys.iter().take(copies).map(of_copy).sum()
}

/// The members that can hold something, sorted by id.
fn in_service(members: &[PlacementMember]) -> Vec<&PlacementMember> {
    let mut all: Vec<&PlacementMember> = members.iter().filter(|member| !member.drained).collect();
    all.sort_by(|a, b| a.id.cmp(&b.id));
    all.dedup_by(|a, b| a.id == b.id);
    all
}

/// The members' shares of `parts` parts, times [`ONE`].
fn by_weight(weights: impl Iterator<Item = u64> + Clone, parts: usize) -> Vec<i64> {
    let all: u128 = weights.clone().map(|weight| u128::from(weight.max(1))).sum();
    let whole = parts as u128 * ONE as u128;
    weights.map(|weight| (whole * u128::from(weight.max(1)) / all) as i64).collect()
}

/// One copy of all buckets: which members may hold it, given where the other copies are.
struct Copy<'a> {
    members: &'a [&'a PlacementMember],
    /// Whether copies are kept apart by zone; else by member.
    by_zone: bool,
    /// The members that have earlier copies of each bucket.
    earlier: Vec<Vec<usize>>,
    /// The members that had later copies, and would have to lose them.
    later: Vec<Vec<usize>>,
    /// What remains of each bucket, by which this copy and later ones decide whether it can still be found. Empty if
    /// there is one copy, or another number of copies than before: all are renumbered then.
    left: Vec<BucketRemainder>,
}

/// What remains of a bucket while only its earlier copies are settled.
#[derive(Clone, Copy)]
enum BucketRemainder {
    /// Nothing remains, or a settled copy stayed in place: the other copies may move.
    Free,
    /// No settled copy stayed in place. The copy to settle next is at this member, if at any.
    At(Option<usize>),
}

impl Copy<'_> {
    /// What no two copies of a bucket may have in common.
    fn failure_domain(&self, member: usize) -> &str {
        if self.by_zone { self.members[member].zone_name() } else { &self.members[member].id }
    }

    fn has_own_domain(&self, others: &[usize], member: usize) -> bool {
        others.iter().all(|other| self.failure_domain(*other) != self.failure_domain(member))
    }

    /// Each member's share: by weight, limited to the buckets that its zone may still have.
    fn member_shares(&self) -> Vec<i64> {
        struct DomainGroup {
            weight: u128,
            may_have: i64,
        }
        let mut groups: BTreeMap<&str, DomainGroup> = BTreeMap::new();
        for (n, member) in self.members.iter().enumerate() {
            let may_have =
                || self.earlier.iter().filter(|earlier| self.has_own_domain(earlier, n)).count() as i64 * ONE;
            let group = groups
                .entry(self.failure_domain(n))
                .or_insert_with(|| DomainGroup { weight: 0, may_have: may_have() });
            group.weight += u128::from(member.weight.max(1));
        }
        let mut of_groups: BTreeMap<&str, i64> = BTreeMap::new();
        let (mut left, mut weight) =
            (BUCKETS as i64 * ONE, groups.values().map(|group| group.weight).sum::<u128>());
        loop {
            let share = |group: &DomainGroup| (left as u128 * group.weight / weight.max(1)) as i64;
            let full: Vec<&str> = groups
                .iter()
                .filter(|(_, group)| share(group) > group.may_have)
                .map(|(name, _)| *name)
                .collect();
            if full.is_empty() {
                of_groups.extend(groups.iter().map(|(name, group)| (*name, share(group))));
                break;
            }
            for name in full {
                let group = groups.remove(name).expect("it was just found");
                left -= group.may_have;
                weight -= group.weight;
                of_groups.insert(name, group.may_have);
            }
        }
        let of_member = |n: usize| {
            let fellows =
                (0..self.members.len()).filter(|other| self.failure_domain(*other) == self.failure_domain(n));
            let all: u128 = fellows.map(|other| u128::from(self.members[other].weight.max(1))).sum();
            (of_groups[self.failure_domain(n)] as u128 * u128::from(self.members[n].weight.max(1)) / all)
                as i64
        };
        (0..self.members.len()).map(of_member).collect()
    }
}

impl Fits for Copy<'_> {
    fn can_hold(&self, part: usize, member: usize) -> bool {
        self.has_own_domain(&self.earlier[part], member)
    }

    fn is_free_move(&self, part: usize, member: usize) -> bool {
        self.has_own_domain(&self.later[part], member)
    }

    fn keeps_some_copy(&self, part: usize, member: usize) -> bool {
        match self.left.get(part) {
            None | Some(BucketRemainder::Free) => true,
            Some(BucketRemainder::At(holder)) => {
                *holder == Some(member)
                    || self.later[part]
                        .iter()
                        .any(|later| self.failure_domain(*later) != self.failure_domain(member))
            }
        }
    }
}

fn place_keys(
    before: &ClusterPlacement,
    members: &[&PlacementMember],
    copies: usize,
    carried: &mut [i64],
) -> Vec<BTreeMap<String, Buckets>> {
    let zones = members.iter().map(|member| member.zone_name()).collect::<BTreeSet<_>>().len();
    let copies = copies.min(members.len());
    // By copy and bucket; copies that are not settled yet are where they were before.
    let mut holders: Vec<Vec<Option<usize>>> = vec![vec![None; BUCKETS]; copies];
    for (of_copy, holders) in before.keys.iter().zip(&mut holders) {
        for (n, member) in members.iter().enumerate() {
            let had = of_copy.get(&member.id).copied().unwrap_or(Buckets::NONE);
            had.iter().for_each(|bucket| holders[usize::from(bucket)] = Some(n));
        }
    }
    let had = holders.clone();
    for copy in 0..copies {
        let left = |bucket: usize| {
            let stays = |n: usize| had[n][bucket].is_some() && holders[n][bucket] == had[n][bucket];
            let is_gone = had.iter().all(|had| had[bucket].is_none());
            if is_gone || (0..copy).any(stays) {
                BucketRemainder::Free
            } else {
                BucketRemainder::At(had[copy][bucket])
            }
        };
        let is_as_before = copies > 1 && before.keys.len() == copies;
        let left = (0..BUCKETS).filter(|_| is_as_before).map(left).collect();
        let of_others = |others: &[Vec<Option<usize>>]| -> Vec<Vec<usize>> {
            (0..BUCKETS).map(|bucket| others.iter().filter_map(|holders| holders[bucket]).collect()).collect()
        };
        let fits = Copy {
            members,
            by_zone: copy < zones,
            earlier: of_others(&holders[..copy]),
            later: of_others(&holders[copy + 1..]),
            left,
        };
        // First copies lie in runs, so that a switch needs few rows. The others are scattered, so that all collectors
        // share the load of one that dies.
        let layer = Layer::new(std::mem::take(&mut holders[copy]), &fits.member_shares(), &fits);
        holders[copy] = layer.distribute_parts(carried, copy == 0);
    }
    let by_member = |holders: Vec<Option<usize>>| {
        let of =
            |n: usize| (0..=u8::MAX).filter(|b| holders[usize::from(*b)] == Some(n)).collect::<Buckets>();
        let all = members.iter().enumerate().map(|(n, member)| (member.id.clone(), of(n)));
        all.filter(|(_, buckets)| *buckets != Buckets::NONE).collect()
    };
    holders.into_iter().map(by_member).collect()
}

/// Whether each member has a store's lists.
struct Has(Vec<bool>);

impl Fits for Has {
    fn can_hold(&self, _: usize, member: usize) -> bool {
        self.0[member]
    }

    fn is_free_move(&self, _: usize, _: usize) -> bool {
        true
    }

    fn keeps_some_copy(&self, _: usize, _: usize) -> bool {
        true
    }
}

fn place_lists(
    before: &ClusterPlacement,
    members: &[&PlacementMember],
    carried: &mut [i64],
) -> BTreeMap<String, Vec<ListRange>> {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for (store, lists) in members.iter().flat_map(|member| &member.lists) {
        let most = counts.entry(store).or_default();
        *most = (*most).max(*lists);
    }
    let mut placed: BTreeMap<String, Vec<ListRange>> = BTreeMap::new();
    for (store, lists) in counts {
        let parts = lists.min(LIST_PARTS);
        let first = |part: u32| (u64::from(part) * u64::from(lists)).div_ceil(parts.into()) as u32;
        let has = Has(members.iter().map(|member| member.lists.get(store) == Some(&lists)).collect());
        let weights = members.iter().zip(&has.0).filter(|(_, has)| **has).map(|(member, _)| member.weight);
        let mut of_those = by_weight(weights, parts as usize).into_iter();
        let shares: Vec<i64> =
            has.0.iter().map(|has| if *has { of_those.next().unwrap_or(0) } else { 0 }).collect();
        let holder = |part: u32| {
            let id = before.list_collector(store, first(part))?;
            members.iter().position(|member| member.id == id)
        };
        let layer = Layer::new((0..parts).map(holder).collect(), &shares, &has);
        for (part, holder) in (0..parts).zip(layer.distribute_parts(carried, true)) {
            let Some(holder) = holder else { continue };
            let ranges = placed.entry(members[holder].id.clone()).or_default();
            let (from, count) = (first(part), first(part + 1) - first(part));
            match ranges.last_mut() {
                Some(last) if last.store == store && last.end_of_lists() == u64::from(from) => {
                    last.count += count
                }
                _ => ranges.push(ListRange { store: store.to_owned(), first: from, count }),
            }
        }
    }
    placed
}

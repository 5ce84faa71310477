//! Assigns one copy of all buckets, or the lists of one store, to members, balanced with as few moves as possible.

/// One part, in the unit in which shares are counted.
pub(super) const ONE: i64 = 1 << 32;

/// Whether a member may hold a part: buckets or lists.
pub(super) trait Fits {
    /// Whether the member is allowed to hold the part at all.
    fn can_hold(&self, part: usize, member: usize) -> bool;
    /// Whether, besides, nothing else would have to move because of it.
    fn is_free_move(&self, part: usize, member: usize) -> bool;
    /// Whether some copy of the part stays where it was.
    fn keeps_some_copy(&self, part: usize, member: usize) -> bool;
}

/// Who holds each part. Members are numbered.
pub(super) struct Layer<'a, F> {
    holders: Vec<Option<usize>>,
    /// Parts that each member holds beyond its share, times [`ONE`].
    over: Vec<i64>,
    fits: &'a F,
}

impl<'a, F: Fits> Layer<'a, F> {
    /// `shares` are the parts that each member should hold, times [`ONE`]; they sum to all parts. Holders that may not
    /// hold their part lose it.
    pub(super) fn new(mut holders: Vec<Option<usize>>, shares: &[i64], fits: &'a F) -> Self {
        let mut over: Vec<i64> = shares.iter().map(|share| -share).collect();
        for (part, holder) in holders.iter_mut().enumerate() {
            *holder = holder.filter(|member| fits.can_hold(part, *member));
            if let Some(member) = *holder {
                over[member] += ONE;
            }
        }
        Layer { holders, over, fits }
    }

    /// Gives each part without a holder to the member that lacks most, then moves parts until each member's number of
    /// parts is less than one off its share, as far as moves are allowed. `carried` is what members hold beyond their
    /// shares elsewhere, and breaks ties. `in_runs` gives consecutive free parts to the same member.
    pub(super) fn distribute_parts(mut self, carried: &mut [i64], in_runs: bool) -> Vec<Option<usize>> {
        for part in 0..self.holders.len() {
            if self.holders[part].is_none() {
                self.holders[part] = self.best_member(part, carried, in_runs);
                if let Some(member) = self.holders[part] {
                    self.over[member] += ONE;
                }
            }
        }
        let may = |fits: &F, part, member| fits.can_hold(part, member) && fits.keeps_some_copy(part, member);
        while self
            .move_one_part(|fits, part, member| may(fits, part, member) && fits.is_free_move(part, member))
            || self.move_one_part(may)
        {}
        carried.iter_mut().zip(&self.over).for_each(|(carried, over)| *carried += over);
        self.holders
    }

    /// The member to give a free part to.
    fn best_member(&self, part: usize, carried: &[i64], in_runs: bool) -> Option<usize> {
        let before = part.checked_sub(1).filter(|_| in_runs).and_then(|part| self.holders[part]);
        let may = |member: &usize| self.fits.can_hold(part, *member);
        let keeps = |member: &usize| self.fits.keeps_some_copy(part, *member);
        let goes_on = |member: &usize| self.over[*member] <= -ONE && may(member) && keeps(member);
        if let Some(member) = before.filter(goes_on) {
            return Some(member);
        }
        let rank = |member: &usize| {
            let (over, is_free) = (self.over[*member], self.fits.is_free_move(part, *member));
            (!keeps(member), over >= 0, !is_free, over + carried[*member])
        };
        (0..self.over.len()).filter(may).min_by_key(rank)
    }

    /// Moves one part away from a member with too many, or to one with too few, along the shortest path of moves that
    /// `may` allows. Returns whether there was such a path.
    fn move_one_part(&mut self, may: impl Fn(&F, usize, usize) -> bool) -> bool {
        let least = self.over.iter().copied().min().unwrap_or(0);
        let mut givers: Vec<usize> =
            (0..self.over.len()).filter(|member| is_balancing_move(self.over[*member], least)).collect();
        givers.sort_by_key(|member| std::cmp::Reverse(self.over[*member]));
        let path = |giver: usize| self.find_move_path(giver, &may).map(|moves| (giver, moves));
        let Some((giver, moves)) = givers.into_iter().find_map(path) else {
            return false;
        };
        self.over[giver] -= ONE;
        self.over[moves[0].1] += ONE;
        for (part, to) in moves {
            self.holders[part] = Some(to);
        }
        true
    }

    /// The moves (part, new holder) after which `giver` has one part less and the first move's taker one more: a
    /// shortest path, to the taker that lacks most among the nearest.
    fn find_move_path(
        &self,
        giver: usize,
        may: &impl Fn(&F, usize, usize) -> bool,
    ) -> Option<Vec<(usize, usize)>> {
        // For each member, the part that it could be given, and the holder of that part.
        let mut by: Vec<Option<(usize, usize)>> = vec![None; self.over.len()];
        let mut reached = vec![giver];
        while !reached.is_empty() {
            let mut next = Vec::new();
            for from in reached {
                for (part, _) in self.holders.iter().enumerate().filter(|(_, holder)| **holder == Some(from))
                {
                    for (to, by) in by.iter_mut().enumerate() {
                        if to != giver && by.is_none() && may(self.fits, part, to) {
                            *by = Some((part, from));
                            next.push(to);
                        }
                    }
                }
            }
            let takers =
                next.iter().copied().filter(|to| is_balancing_move(self.over[giver], self.over[*to]));
            if let Some(taker) = takers.min_by_key(|to| (self.over[*to], *to)) {
                let mut moves = Vec::new();
                let mut at = taker;
                while let Some((part, from)) = by[at] {
                    moves.push((part, at));
                    at = from;
                }
                return Some(moves);
            }
            reached = next;
        }
        None
    }
}

/// Whether a member that is `giver` over its share should give a part to one that is `taker` over its own: the two come
/// closer, and at least one of them is off by one or more.
fn is_balancing_move(giver: i64, taker: i64) -> bool {
    giver - taker > ONE && (giver >= ONE || taker <= -ONE)
}

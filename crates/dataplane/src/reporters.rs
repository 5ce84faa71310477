//! Known reporters: which reports to accept, where to send NACKs, and counters.

use std::net::{Ipv4Addr, SocketAddrV4};

use dta_proto::counter::reporter as names;

use super::age::AgeList;
use super::sequences::{SequenceArrival, Sequences};

/// A reporter not heard for this long (nanoseconds) is evicted for a new one if no other place is free.
const IDLE: u64 = 30_000_000_000;
/// How many reporters to examine at most to find an idle one.
const LOOKED_AT: usize = 8;

/// An address and port in one number: the per-report path compares it and rarely needs its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedSocketAddr(u64);

impl PackedSocketAddr {
    #[inline]
    pub(crate) fn new(ip: Ipv4Addr, port: u16) -> PackedSocketAddr {
        PackedSocketAddr(u64::from(u32::from(ip)) << 16 | u64::from(port))
    }

    #[inline]
    pub(crate) fn from_socket_addr(socket: SocketAddrV4) -> PackedSocketAddr {
        PackedSocketAddr::new(*socket.ip(), socket.port())
    }

    pub(crate) fn ip_address(self) -> Ipv4Addr {
        Ipv4Addr::from((self.0 >> 16) as u32)
    }

    pub(crate) fn to_socket_addr(self) -> SocketAddrV4 {
        SocketAddrV4::new(self.ip_address(), self.0 as u16)
    }

    /// Address and port as one number, for [`PackedSocketAddr::from_bits`].
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> PackedSocketAddr {
        PackedSocketAddr(bits)
    }
}

dta_proto::published_counters! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ReporterCounters {
        pub received: u64 = names::RECEIVED,
        /// Includes those between what was heard of the reporter earlier and its first report here.
        pub gaps: u64 = names::GAPS,
        /// Reordered or retransmitted.
        pub gaps_filled: u64 = names::GAPS_FILLED,
        pub duplicates: u64 = names::DUPLICATES,
        /// Too far behind the newest, or ahead of it.
        pub out_of_window: u64 = names::OUT_OF_WINDOW,
        pub restarts: u64 = names::RESTARTS,
        pub nacks: u64 = names::HEARD_NACKS,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReporterStatus {
    pub id: u16,
    pub counters: ReporterCounters,
    /// The newest sequence heard.
    pub newest: u32,
    /// How many reporters had been evicted when it got its place: the counters of an id that returns start
    /// from 0, and this reveals it.
    pub since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) first: u32,
    pub(crate) count: u16,
}

/// What to do with a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Apply it, and ask for these earlier sequences.
    Apply(Option<Missing>),
    /// Apply it; others are missing, but its reporter gets no more NACKs for now.
    Unasked,
    Duplicate,
    /// Drop it: outside the window.
    OutOfWindow,
    /// Drop it: too many reporters.
    TooMany,
    /// Drop it: the configuration lists reporters, but not this one at this address.
    NotListed,
}

struct KnownReporter {
    id: u16,
    since: u64,
    sequences: Sequences,
}

/// All version-1 reporters, at most a configured number.
pub struct Reporters {
    /// Index + 1 in `list` by reporter id; 0 = not heard.
    index: Vec<u16>,
    list: Vec<KnownReporter>,
    limit: usize,
    /// Places of reporters heard once.
    unconfirmed: AgeList,
    /// The other places, least recently examined first.
    confirmed: AgeList,
    /// By id, how far the reporter was heard before it had a place here: by an earlier run of this
    /// translator, or before its eviction.
    earlier: Vec<Option<u32>>,
    /// By id, the address it may report from. Empty = everybody may report.
    listed: Vec<Option<Ipv4Addr>>,
    evicted: ReporterCounters,
    evictions: u64,
    /// Evictions of reporters that were heard once.
    unconfirmed_evictions: u64,
    /// How often a reporter restarted, or may have done so unnoticed.
    restarts: u32,
    /// Whether the rules of a switch apply.
    reference: bool,
}

impl Reporters {
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.clamp(1, usize::from(u16::MAX));
        Reporters {
            index: vec![0; 1 << 16],
            list: Vec::new(),
            limit,
            unconfirmed: AgeList::new(limit),
            confirmed: AgeList::new(limit),
            earlier: vec![None; 1 << 16],
            listed: Vec::new(),
            evicted: ReporterCounters::default(),
            evictions: 0,
            unconfirmed_evictions: 0,
            restarts: 0,
            reference: false,
        }
    }

    /// Sets whether the rules of a switch apply: `docs/reference-mode.md`. Positions of reporters are kept;
    /// what was seen before is not.
    pub(crate) fn set_reference(&mut self, reference: bool) {
        self.reference = reference;
        for place in &mut self.list {
            place.sequences = place.sequences.without_history();
        }
        self.restarts = self.restarts.wrapping_add(1);
    }

    /// Accepts only these ids, each only from its address; everybody if there are none.
    pub(crate) fn accept_only(&mut self, reporters: &[(u16, Ipv4Addr)]) {
        self.listed = vec![None; if reporters.is_empty() { 0 } else { 1 << 16 }];
        for (id, address) in reporters {
            self.listed[usize::from(*id)] = Some(*address);
        }
    }

    /// Sets how far an earlier run of this translator had heard a reporter: anything between that and the
    /// reporter's first sequence here is missing. It is not requested, because the earlier run may have
    /// accepted some of it without being able to record it.
    pub(crate) fn heard_earlier(&mut self, id: u16, newest: u32) {
        match self.index[usize::from(id)] {
            0 => self.earlier[usize::from(id)] = Some(newest),
            place => self.list[usize::from(place) - 1].sequences.heard_earlier(newest),
        }
    }

    /// Every reporter with a place and more than one report.
    pub fn iter(&self) -> impl Iterator<Item = ReporterStatus> {
        self.list.iter().filter(|place| place.sequences.confirmed).map(|place| ReporterStatus {
            id: place.id,
            counters: place.sequences.counters,
            newest: place.sequences.newest_sequence(),
            since: place.since,
        })
    }

    pub fn evicted_counters(&self) -> ReporterCounters {
        self.evicted
    }

    /// Number of evictions: of reporters with more than one report, and of the others.
    pub fn evictions(&self) -> (u64, u64) {
        (self.evictions, self.unconfirmed_evictions)
    }

    /// Changes whenever a reporter restarts its sequence, or may do so unnoticed.
    pub(crate) fn restart_count(&self) -> u32 {
        self.restarts
    }

    /// Accepts a report if it is the next of its reporter, as nearly all are. Otherwise nothing changes, and
    /// [`Reporters::admit_unexpected`] judges it.
    #[inline]
    pub(crate) fn take_expected(&mut self, now: u64, id: u16, arrival: &SequenceArrival) -> bool {
        // No reporter has place 0, so index -1 never occurs.
        let at = usize::from(self.index[usize::from(id)]).wrapping_sub(1);
        self.list.get_mut(at).is_some_and(|place| place.sequences.take_expected(now, arrival))
    }

    /// Judges a report that is not the next in its sequence.
    pub(crate) fn admit_unexpected(&mut self, now: u64, id: u16, arrival: &SequenceArrival) -> Admission {
        match self.index[usize::from(id)] {
            0 => self.admit_first(now, id, arrival),
            place => self.admit_again(now, usize::from(place) - 1, arrival),
        }
    }

    fn admit_again(&mut self, now: u64, at: usize, arrival: &SequenceArrival) -> Admission {
        let KnownReporter { id, sequences, .. } = &mut self.list[at];
        if !sequences.is_from_source(arrival.source) && !may_report(&self.listed, *id, arrival.source) {
            return Admission::NotListed;
        }
        let (known, restarts) = (sequences.confirmed, sequences.counters.restarts);
        let admission = match self.reference {
            true => sequences.admit_in_reference(now, arrival),
            false => sequences.admit_arrival(now, arrival),
        };
        if sequences.confirmed && !known {
            self.unconfirmed.remove(at);
            self.confirmed.push(at, now);
        }
        if sequences.counters.restarts != restarts {
            self.restarts = self.restarts.wrapping_add(1);
        }
        admission
    }

    fn admit_first(&mut self, now: u64, id: u16, arrival: &SequenceArrival) -> Admission {
        if !may_report(&self.listed, id, arrival.source) {
            return Admission::NotListed;
        }
        let earlier = self.earlier[usize::from(id)];
        let place = |since| KnownReporter { id, since, sequences: Sequences::new(now, arrival, earlier) };
        let at = if self.list.len() < self.limit {
            self.list.push(place(self.evictions + self.unconfirmed_evictions));
            self.list.len() - 1
        } else {
            let Some(at) = self.make_room(now) else { return Admission::TooMany };
            self.list[at] = place(self.evictions + self.unconfirmed_evictions);
            at
        };
        self.index[usize::from(id)] = at as u16 + 1;
        self.unconfirmed.push(at, now);
        Admission::Apply(None)
    }

    /// Evicts the oldest reporter that was heard once, or an idle one.
    fn make_room(&mut self, now: u64) -> Option<usize> {
        if let Some((at, _)) = self.unconfirmed.oldest_element() {
            self.unconfirmed.remove(at);
            self.evicted.add(&self.list[at].sequences.counters);
            self.unconfirmed_evictions += 1;
            self.index[usize::from(self.list[at].id)] = 0;
            return Some(at);
        }
        let mut idle: Option<(usize, u64)> = None;
        for _ in 0..LOOKED_AT.min(self.list.len()) {
            let (at, _) = self.confirmed.oldest_element()?;
            let last_heard = self.list[at].sequences.last_heard;
            self.confirmed.remove(at);
            self.confirmed.push(at, now);
            if now - last_heard >= IDLE && idle.is_none_or(|(_, longest)| last_heard < longest) {
                idle = Some((at, last_heard));
            }
        }
        let (at, _) = idle?;
        let KnownReporter { id, sequences, .. } = &self.list[at];
        self.confirmed.remove(at);
        self.evicted.add(&sequences.counters);
        self.evictions += 1;
        self.restarts = self.restarts.wrapping_add(1);
        // Losses until it has a place again are counted when it returns.
        self.earlier[usize::from(*id)] = Some(sequences.newest_sequence());
        self.index[usize::from(*id)] = 0;
        Some(at)
    }
}

fn may_report(listed: &[Option<Ipv4Addr>], id: u16, source: PackedSocketAddr) -> bool {
    listed.is_empty() || listed[usize::from(id)] == Some(source.ip_address())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(r: &mut Reporters, now: u64, id: u16, sequence: u32) -> Admission {
        let source = PackedSocketAddr::new(Ipv4Addr::new(127, 0, 0, 1), id);
        let arrival = SequenceArrival { sequence, restarted: false, retransmittable: true, source };
        match r.take_expected(now, id, &arrival) {
            true => Admission::Apply(None),
            false => r.admit_unexpected(now, id, &arrival),
        }
    }

    const APPLY: Admission = Admission::Apply(None);

    #[test]
    fn what_no_life_of_the_translator_heard_is_missing_and_not_asked_for() {
        let mut r = Reporters::new(8);
        let counted = |r: &Reporters, id| {
            let c = r.iter().find(|reporter| reporter.id == id).unwrap().counters;
            (c.gaps, c.gaps_filled, c.nacks)
        };
        for id in 1..6 {
            r.heard_earlier(id, 99);
        }
        assert_eq!(send(&mut r, 0, 1, 130), APPLY);
        // One of them was only late; with it, a second report agrees.
        assert_eq!(send(&mut r, 0, 1, 120), APPLY);
        assert_eq!(counted(&r, 1), (30, 1, 0));
        // It continues; it restarts, announced or from further back; it was far ahead.
        let restarted = SequenceArrival {
            sequence: 130,
            restarted: true,
            retransmittable: true,
            source: PackedSocketAddr::new(Ipv4Addr::LOCALHOST, 3),
        };
        r.admit_unexpected(0, 3, &restarted);
        for (id, first) in [(2, 100), (3, 131), (4, 5), (5, 0x7000_0000)] {
            send(&mut r, 0, id, first);
            send(&mut r, 0, id, first + 1);
        }
        assert_eq!(
            [2, 3, 4, 5].map(|id| counted(&r, id)),
            [(0, 0, 0), (0, 0, 0), (0, 0, 0), (0x7000_0000 - 100, 0, 0)]
        );
        // Heard before the session with the earlier run's state opened.
        send(&mut r, 0, 6, 110);
        send(&mut r, 0, 6, 111);
        r.heard_earlier(6, 99);
        assert_eq!(counted(&r, 6), (10, 0, 0));
    }

    #[test]
    fn the_idlest_gives_way_and_what_it_was_counted_for_stays() {
        let mut r = Reporters::new(3);
        for (id, now) in [(1, 5), (2, 0), (3, 9)] {
            for sequence in 0..10 {
                assert_eq!(send(&mut r, now, id, sequence), APPLY);
            }
        }
        assert_eq!(send(&mut r, IDLE - 1, 4, 0), Admission::TooMany);
        assert_eq!(send(&mut r, IDLE, 4, 0), APPLY);
        assert_eq!(send(&mut r, IDLE, 4, 1), APPLY);
        assert_eq!(r.iter().map(|r| r.id).collect::<Vec<_>>(), [1, 4, 3]);
        assert_eq!((r.evicted_counters().received, r.evictions()), (10, (1, 0)));
        // It returns after ten more of its reports, in another's place: nothing is forgotten.
        assert_eq!(send(&mut r, IDLE + 5, 2, 20), APPLY);
        assert_eq!(send(&mut r, IDLE + 5, 2, 21), APPLY);
        let back = r.iter().find(|r| r.id == 2).unwrap();
        assert_eq!((back.counters.received, back.counters.gaps), (2, 10));
        assert_ne!(back.since, 0);
        assert_eq!((r.evicted_counters().received, r.evictions()), (20, (2, 0)));
    }

    #[test]
    fn who_was_heard_once_gives_way_first() {
        let mut r = Reporters::new(2);
        send(&mut r, 0, 1, 0);
        send(&mut r, 0, 1, 1);
        for id in 10..1000 {
            assert_eq!(send(&mut r, 0, id, 7), APPLY);
        }
        assert_eq!(send(&mut r, 0, 999, 8), APPLY);
        assert_eq!(send(&mut r, 0, 999, 8), Admission::Duplicate);
        assert_eq!(send(&mut r, 0, 1000, 8), Admission::TooMany);
        assert_eq!(r.evicted_counters().received, 989);
    }
}

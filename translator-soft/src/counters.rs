//! What the data plane counts. Names are documented in `docs/counters.md`.
//!
//! The unit is the report unless a name says otherwise. At any time, per primitive and in sum:
//! `received = accepted + sum(dropped.*)` and `accepted = emitted + held + superseded + sum(discarded.*)`; and
//! `frames = idle_frames + sum(store.*.frames)`.

use dta_proto::program::Primitive;

macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// Every reason.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Name in counters.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// Why a report was not taken: `dropped.<reason>`.
    Reason {
        /// The datagram's IP or UDP header is not whole, or says another length than the datagram has.
        Header = "header",
        /// The UDP checksum is wrong.
        Checksum = "checksum",
        /// A DTA version other than 0 and 1.
        Version = "version",
        /// No primitive of that version has this opcode.
        Opcode = "opcode",
        /// Shorter or longer than its primitive.
        Length = "length",
        /// A field holds what its primitive does not allow (a hop of 0 in version 0).
        Field = "field",
        /// Version 0, and neither configuration nor a single store of the kind names its store.
        Version0Store = "version0_store",
        /// No store has this id.
        UnknownStore = "unknown_store",
        /// The store is of another primitive.
        WrongPrimitive = "wrong_primitive",
        /// The list is beyond the store's.
        ListRange = "list_range",
        /// The list belongs to another translator.
        ListNotOwned = "list_not_owned",
        /// More copies than the store has, or for a counter other than the store has.
        Redundancy = "redundancy",
        /// The value is not as long as the store's.
        ValueLength = "value_length",
        /// The hop is beyond the path's length or the store's rows.
        Hop = "hop",
        /// The path is longer than the store's rows.
        PathLength = "path_length",
        /// The column is beyond the store's.
        Column = "column",
        /// The epoch has left the store's ring.
        EpochOld = "epoch_old",
        /// The epoch is far ahead of all others, and no other report agrees.
        EpochAhead = "epoch_ahead",
        /// The reporter's column of this epoch was merged before.
        DuplicateColumn = "duplicate_column",
        /// More reporters on one sketch than its bitmap has bits.
        SketchReporters = "sketch_reporters",
        /// More reporters than the translator keeps windows for, and none of them idle.
        Reporters = "reporters",
        /// The configuration lists reporters, and not this one at this address.
        NotListed = "reporter_not_listed",
        /// Its sequence was seen before.
        Duplicate = "duplicate",
        /// Its sequence is behind the window.
        OutOfWindow = "out_of_window",
        /// A postcard of a path that has left whole: sent again, or later than a newer one.
        LatePostcard = "late_postcard",
        /// There is no queue pair for it: no session yet.
        NoQueuePair = "no_queue_pair",
    }
}

reasons! {
    /// Why an accepted report never left: `discarded.<reason>`.
    Discard {
        /// The store or list was taken away while reports were held.
        StoreRemoved = "store_removed",
    }
}

reasons! {
    /// How a queue pair lost operations that were already emitted: `lost.<cause>`.
    LossCause {
        /// The responder refused them with an error NAK, on a new queue pair again.
        QueuePairError = "queue_pair_error",
        /// Their queue pair ended before they were acknowledged, and there is none that they could
        /// leave on.
        QueuePairDown = "queue_pair_down",
        /// Their store was taken away before they were acknowledged.
        StoreRemoved = "store_removed",
        /// FETCH_ADDs that were not acknowledged when their queue pair ended. Nobody knows whether
        /// they were executed, so they are not sent again.
        Unknown = "unknown",
        /// The ring of operations that the queue pair keeps was full.
        QueueFull = "queue_full",
        /// A fault injector on this translator's link dropped or corrupted their frames (UC; RC
        /// sends them again).
        Injected = "injected",
    }
}

/// Counters of one primitive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrimitiveCounters {
    /// Reports decoded as this primitive.
    pub received: u64,
    /// Of them, taken.
    pub accepted: u64,
    /// Accepted, and made into operations.
    pub emitted: u64,
    /// Accepted, but replaced by a later one before it left.
    pub superseded: u64,
    /// Accepted, waiting for the rest of their batch, row or column.
    pub held: u64,
    /// Operations made, copies included.
    pub operations: u64,
    /// Operations saved by adding up increments of one counter.
    pub coalesced: u64,
    /// Emitted reports known to be lost on a queue pair: every copy, or for a counter any copy.
    pub lost_reports: u64,
    /// Operations known to be lost on a queue pair.
    pub lost_operations: u64,
}

/// All counters of the data plane.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Datagrams taken as reports, decodable or not.
    pub received: u64,
    /// By primitive, in the order of [`Primitive::ALL`].
    pub primitives: [PrimitiveCounters; 5],
    dropped: Vec<u64>,
    discarded: Vec<u64>,
    lost: Vec<(u64, u64)>,
    /// NACK datagrams sent.
    pub nacks: u64,
    /// Sequences asked for in them.
    pub nacked_sequences: u64,
    /// NACK datagrams not sent because their reporter had had as many as it may have.
    pub nacks_withheld: u64,
    /// Sequences skipped by version-0 reporters, as far as their retransmittable reports tell.
    pub version0_gaps: u64,
    /// Postcard rows sent with hops missing: they waited too long, or another key needed their place.
    pub partial_rows: u64,
    /// Postcards that came after their row had left, and were put together with it.
    pub joined_postcards: u64,
    /// Accepted reports that asked to wake a reader, of stores whose readers cannot be woken.
    pub immediate_ignored: u64,
    /// Frames given to the link, repeats on RC included.
    pub frames: u64,
    /// Of them, zero-length WRITEs in the place of operations whose store is gone.
    pub idle_frames: u64,
    /// Frames given to the link by the store whose memory they are for: name of the store, frames. A store that goes away stays in the
    /// list.
    pub stores: Vec<(String, u64)>,
}

impl Default for Counters {
    fn default() -> Self {
        Counters {
            received: 0,
            primitives: Default::default(),
            dropped: vec![0; Reason::ALL.len()],
            discarded: vec![0; Discard::ALL.len()],
            lost: vec![(0, 0); LossCause::ALL.len()],
            nacks: 0,
            nacked_sequences: 0,
            nacks_withheld: 0,
            version0_gaps: 0,
            partial_rows: 0,
            joined_postcards: 0,
            immediate_ignored: 0,
            frames: 0,
            idle_frames: 0,
            stores: Vec::new(),
        }
    }
}

impl Counters {
    /// Reports dropped for a reason.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped[reason as usize]
    }

    /// Reports discarded for a reason.
    pub fn discarded(&self, reason: Discard) -> u64 {
        self.discarded[reason as usize]
    }

    /// Reports and operations lost by a cause.
    pub fn lost(&self, cause: LossCause) -> (u64, u64) {
        self.lost[cause as usize]
    }

    pub(crate) fn lose(&mut self, cause: LossCause, primitive: Primitive, reports: u64) {
        let entry = &mut self.lost[cause as usize];
        entry.0 += reports;
        entry.1 += 1;
        let p = self.of(primitive);
        p.lost_reports += reports;
        p.lost_operations += 1;
    }

    pub(crate) fn drop_one(&mut self, reason: Reason) {
        self.dropped[reason as usize] += 1;
    }

    pub(crate) fn discard(&mut self, reason: Discard, reports: u64) {
        self.discarded[reason as usize] += reports;
    }

    /// Where the frames of a store are counted in [`Counters::stores`].
    pub(crate) fn place_of_store(&mut self, name: &str) -> usize {
        if let Some(place) = self.stores.iter().position(|(known, _)| known == name) {
            return place;
        }
        self.stores.push((name.to_owned(), 0));
        self.stores.len() - 1
    }

    pub(crate) fn of(&mut self, primitive: Primitive) -> &mut PrimitiveCounters {
        &mut self.primitives[primitive.index()]
    }

    fn sum(&self, field: impl Fn(&PrimitiveCounters) -> u64) -> u64 {
        self.primitives.iter().map(field).sum()
    }

    /// What does not add up, in words; `None` when every report is accounted for exactly once.
    pub fn check(&self) -> Option<String> {
        let dropped: u64 = self.dropped.iter().sum();
        let discarded: u64 = self.discarded.iter().sum();
        let accepted = self.sum(|p| p.accepted);
        if self.received != accepted + dropped {
            return Some(format!(
                "received {} is not accepted {accepted} + dropped {dropped}",
                self.received
            ));
        }
        let to_stores: u64 = self.stores.iter().map(|(_, frames)| frames).sum();
        if self.frames != self.idle_frames + to_stores {
            return Some(format!(
                "frames {} is not idle {} + frames of stores {to_stores}",
                self.frames, self.idle_frames
            ));
        }
        let (emitted, held, superseded) =
            (self.sum(|p| p.emitted), self.sum(|p| p.held), self.sum(|p| p.superseded));
        if accepted != emitted + held + superseded + discarded {
            return Some(format!(
                "accepted {accepted} is not emitted {emitted} + held {held} + superseded {superseded} + discarded {discarded}"
            ));
        }
        None
    }

    /// Every counter under its dotted name, zeroes of rare reasons left out.
    pub fn named(&self) -> Vec<(String, u64)> {
        let mut list: Vec<(String, u64)> = vec![
            ("received".into(), self.received),
            ("accepted".into(), self.sum(|p| p.accepted)),
            ("emitted".into(), self.sum(|p| p.emitted)),
            ("held".into(), self.sum(|p| p.held)),
            ("superseded".into(), self.sum(|p| p.superseded)),
            ("operations".into(), self.sum(|p| p.operations)),
            ("frames".into(), self.frames),
            ("idle_frames".into(), self.idle_frames),
            ("nacks".into(), self.nacks),
            ("nacked_sequences".into(), self.nacked_sequences),
            ("nacks_withheld".into(), self.nacks_withheld),
            ("version0_gaps".into(), self.version0_gaps),
            ("partial_rows".into(), self.partial_rows),
            ("joined_postcards".into(), self.joined_postcards),
            ("immediate_ignored".into(), self.immediate_ignored),
            ("lost".into(), self.sum(|p| p.lost_reports)),
            ("lost_operations".into(), self.sum(|p| p.lost_operations)),
        ];
        for (reason, count) in Reason::ALL.iter().zip(&self.dropped).filter(|(_, c)| **c != 0) {
            list.push((format!("dropped.{}", reason.name()), *count));
        }
        for (reason, count) in Discard::ALL.iter().zip(&self.discarded).filter(|(_, c)| **c != 0) {
            list.push((format!("discarded.{}", reason.name()), *count));
        }
        for (cause, (reports, operations)) in LossCause::ALL.iter().zip(&self.lost).filter(|(_, l)| l.1 != 0)
        {
            list.push((format!("lost.{}", cause.name()), *reports));
            list.push((format!("lost_operations.{}", cause.name()), *operations));
        }
        for (primitive, p) in Primitive::ALL.iter().zip(&self.primitives) {
            let named = [
                ("received", p.received),
                ("accepted", p.accepted),
                ("emitted", p.emitted),
                ("held", p.held),
                ("superseded", p.superseded),
                ("operations", p.operations),
                ("coalesced", p.coalesced),
                ("lost", p.lost_reports),
                ("lost_operations", p.lost_operations),
            ];
            list.extend(named.map(|(name, value)| (format!("{primitive}.{name}"), value)));
        }
        list.extend(self.stores.iter().map(|(store, frames)| (format!("store.{store}.frames"), *frames)));
        list
    }
}

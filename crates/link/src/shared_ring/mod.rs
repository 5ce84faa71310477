//! Frames between two processes on one machine: a pair of rings in shared memory, one per direction.
//!
//! A NIC opens a [`Door`], which has a name, and offers it to a requester ([`JoinOffer`]). The requester joins
//! ([`join_ring`]), and both get an [`End`]. While both are busy, a frame costs no system call: it is copied in
//! and copied out. An idle end announces that it sleeps and waits on a Unix socket, by which the other wakes it;
//! when the socket closes, the other end is gone.
//!
//! - `memory`: the shared words, and all unsafe code.
//! - `direction`: one ring, and how far the other end's data is trusted.
//! - `end`: a pair of rings and their socket.
//! - `meet`: how two processes set up a pair.
//!
//! `docs/decisions/ring.md` gives the reasons.

mod direction;
mod end;
mod meet;
mod memory;

use dta_proto::counter::ring as names;
use serde::{Deserialize, Serialize};

pub use direction::{Broken, FRAME_MAX};
pub use end::{End, Over};
pub use meet::{Door, JoinError, JoinOffer, NAME_MAX, TOKEN, join_ring};

pub(crate) use end::PushOutcome;
pub(crate) use meet::{Arrivals, confirm_ring_token};

dta_proto::named! {
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum RingUse {
        #[default]
        Auto: "auto",
        Off: "off",
    }
}

dta_proto::parse_by_name!(RingUse);

/// Words of both rings of a pair: powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) requests: usize,
    pub(crate) answers: usize,
}

impl Sizes {
    /// A NIC's default: 1 MiB of requests, about 10,000 writes of 16 bytes; 512 KiB of answers.
    pub(crate) const USUAL: Sizes = Sizes { requests: 1 << 17, answers: 1 << 16 };
    /// A ring has room for at least some frames of [`FRAME_MAX`], and at most 64 MiB.
    const BOUNDS: std::ops::RangeInclusive<usize> = 1 << 12..=1 << 23;

    /// Words of memory for both rings.
    pub(crate) fn memory_words(self) -> usize {
        2 * direction::CONTROL + self.requests + self.answers
    }

    pub(crate) fn are_possible(self) -> bool {
        [self.requests, self.answers]
            .iter()
            .all(|words| words.is_power_of_two() && Self::BOUNDS.contains(words))
    }
}

dta_proto::published_counters! {
    /// Counters of shared rings, in addition to [`crate::LinkCounters`].
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct RingCounters {
        pub opened: u64 = names::OPENED,
        pub broken: u64 = names::BROKEN,
        pub sent: u64 = names::SENT,
        pub sent_bytes: u64,
        pub received: u64 = names::RECEIVED,
        pub received_bytes: u64,
        pub full: u64 = names::FULL,
        pub woken: u64 = names::WOKEN,
        pub left: u64 = names::LEFT,
    }
}

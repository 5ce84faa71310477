//! Frames between two processes of one machine: a pair of rings in shared memory, one each way.
//!
//! A NIC opens a [`Door`], which has a name, and offers it to a requester ([`Offer`]). The requester
//! joins ([`join`]), and both have an [`End`]. While both are busy, a frame costs no system call: it is
//! copied in and copied out. An end that has nothing to do says so and sleeps on a Unix socket, by
//! which the other one wakes it, and by whose closing it learns that the other one has ended.
//!
//! - `memory`: the words that are shared, and all unsafe code.
//! - `direction`: one ring, with what is believed of the other end's writing, and what is not.
//! - `end`: a pair of rings and their socket.
//! - `meet`: how two processes come to have one.
//!
//! The docs/decisions/ring.md says why it is so.

mod direction;
mod end;
mod meet;
mod memory;

use std::fmt;
use std::str::FromStr;

use dta_proto::counter::{Definition, ring as names};
use serde::{Deserialize, Serialize};

pub use direction::{Broken, FRAME_MAX};
pub use end::{End, Over};
pub use meet::{Door, JoinError, NAME_MAX, Offer, TOKEN, join};

pub(crate) use end::Sent;
pub(crate) use meet::{Arrivals, admit};

/// Whether rings are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingUse {
    /// Where they can be.
    #[default]
    Auto,
    /// Never.
    Off,
}

impl fmt::Display for RingUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
        })
    }
}

impl FromStr for RingUse {
    type Err = &'static str;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err("must be auto or off"),
        }
    }
}

/// Words of both rings of a pair: powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) requests: usize,
    pub(crate) answers: usize,
}

impl Sizes {
    /// What a NIC makes: 1 MiB of requests, about 10,000 writes of 16 bytes; 512 KiB of answers.
    pub(crate) const USUAL: Sizes = Sizes { requests: 1 << 17, answers: 1 << 16 };
    /// A ring has at least room for some frames of [`FRAME_MAX`], and is no larger than 64 MiB.
    const BOUNDS: std::ops::RangeInclusive<usize> = 1 << 12..=1 << 23;

    /// Words of the memory of both.
    pub(crate) fn words(self) -> usize {
        2 * direction::CONTROL + self.requests + self.answers
    }

    /// Whether a peer may say so.
    pub(crate) fn are_possible(self) -> bool {
        [self.requests, self.answers]
            .iter()
            .all(|words| words.is_power_of_two() && Self::BOUNDS.contains(words))
    }
}

/// What went through shared rings, beside what [`crate::Counters`] has of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingCounters {
    /// Rings that were opened.
    pub opened: u64,
    /// Rings that were given up because the other end wrote what cannot be.
    pub broken: u64,
    /// Frames put in.
    pub sent: u64,
    /// Bytes of these.
    pub sent_bytes: u64,
    /// Frames taken out.
    pub received: u64,
    /// Bytes of these.
    pub received_bytes: u64,
    /// Times that a ring was full and was waited for.
    pub full: u64,
    /// Times that the other end slept and was woken.
    pub woken: u64,
    /// Of the frames put in, those that an other end that is gone has not taken.
    pub left: u64,
}

impl RingCounters {
    /// Each count that is told, with what it is.
    pub fn named(&self) -> [(&'static Definition, u64); 7] {
        [
            (&names::OPENED, self.opened),
            (&names::BROKEN, self.broken),
            (&names::SENT, self.sent),
            (&names::RECEIVED, self.received),
            (&names::FULL, self.full),
            (&names::WOKEN, self.woken),
            (&names::LEFT, self.left),
        ]
    }

    /// Both together.
    pub fn plus(self, other: RingCounters) -> RingCounters {
        RingCounters {
            opened: self.opened + other.opened,
            broken: self.broken + other.broken,
            sent: self.sent + other.sent,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received: self.received + other.received,
            received_bytes: self.received_bytes + other.received_bytes,
            full: self.full + other.full,
            woken: self.woken + other.woken,
            left: self.left + other.left,
        }
    }
}

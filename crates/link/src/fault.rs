//! Fault injection: drops, duplicates, reorders and corrupts frames before they are sent, from a seed.
//!
//! ```
//! use std::time::Instant;
//! use dta_link::{Scope, fault::{FaultInjector, FaultOutcome, Faults}};
//! use dta_proto::batch::PacketBatch;
//!
//! let faults: Faults = "drop=0.5".parse()?;
//! let mut injector = FaultInjector::new(faults, 7, Scope::Packet);
//! let mut batch = PacketBatch::default();
//! for cookie in 0..10 {
//!     batch.push(&[0x45; 40], cookie).unwrap();
//! }
//! let mut lost = Vec::new();
//! let leaving = injector.apply_to_batch(&mut batch, Instant::now(), |fate, cookie, _packet| {
//!     if fate == FaultOutcome::Dropped {
//!         lost.push(cookie);
//!     }
//! });
//! assert_eq!(leaving.len() + lost.len(), 10);
//! # Ok::<(), dta_link::fault::FaultsError>(())
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use dta_proto::batch::PacketBatch;
use dta_proto::counter::Fault;
use dta_proto::random::SplitMix64;
use dta_proto::wire::datagram::{self, UdpDatagram};
use dta_proto::wire::{ipv4, ipv6};
use serde::{Deserialize, Serialize};

use crate::Scope;

/// A reordered frame is overtaken by at most this many others.
pub const REORDER_MAX: u8 = 16;

/// Longest time that a frame to be reordered waits for others to overtake it. Then it is sent anyway.
pub const HOLD: Duration = Duration::from_millis(20);

/// Most frames held for reordering; beyond that, frames pass unchanged. Only a reorder probability near 1 reaches this.
const HELD_MAX: usize = 64;

/// Probability of each fault, per frame. A frame suffers at most one, so that its fate is one word and each
/// fault occurs with exactly its probability.
///
/// Written `drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01`, without those that are 0; `none` if all are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    drop: f64,
    dup: f64,
    reorder: f64,
    corrupt: f64,
}

/// What is wrong with a description of faults, in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FaultsError(String);

impl Faults {
    pub const NONE: Self = Self { drop: 0.0, dup: 0.0, reorder: 0.0, corrupt: 0.0 };

    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Whether frames may be corrupted, for which some links need a privilege
    /// ([`crate::UdpConfig::corrupt`]).
    pub fn can_corrupt(&self) -> bool {
        self.corrupt > 0.0
    }

    /// Whether frames are at most dropped, and suffer nothing else.
    pub fn only_drop(&self) -> bool {
        self.drop > 0.0 && *self == Self { drop: self.drop, ..Self::NONE }
    }

    /// The share of frames that are dropped.
    pub fn drop_share(&self) -> f64 {
        self.drop
    }

    fn named_probabilities(&self) -> [(&'static str, f64); 4] {
        [("drop", self.drop), ("dup", self.dup), ("reorder", self.reorder), ("corrupt", self.corrupt)]
    }
}

impl FromStr for Faults {
    type Err = FaultsError;

    fn from_str(text: &str) -> Result<Self, FaultsError> {
        let mut faults = Self::NONE;
        if matches!(text.trim(), "" | "none") {
            return Ok(faults);
        }
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim) {
            let form = || format!("`{part}` is not of the form name=probability, such as drop=0.01");
            let (name, value) = part.split_once('=').ok_or_else(|| FaultsError(form()))?;
            let (name, value) = (name.trim(), value.trim());
            let probability = match name {
                "drop" => &mut faults.drop,
                "dup" => &mut faults.dup,
                "reorder" => &mut faults.reorder,
                "corrupt" => &mut faults.corrupt,
                _ => {
                    let there = "there are drop, dup, reorder and corrupt";
                    return Err(FaultsError(format!("there is no fault `{name}`; {there}")));
                }
            };
            if seen.contains(&name) {
                return Err(FaultsError(format!("fault `{name}` is given twice")));
            }
            seen.push(name);
            *probability =
                value.parse().ok().filter(|number| (0.0..=1.0).contains(number)).ok_or_else(|| {
                    FaultsError(format!(
                        "`{value}` is not a probability for {name}: give a number from 0 to 1"
                    ))
                })?;
        }
        let sum = faults.drop + faults.dup + faults.reorder + faults.corrupt;
        // Tenths do not sum exactly in binary.
        if sum > 1.0 + 1e-9 {
            return Err(FaultsError(format!(
                "the probabilities sum to {sum:.3}; a frame suffers at most one fault, so they must sum to at most 1"
            )));
        }
        Ok(faults)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, probability) in
            self.named_probabilities().into_iter().filter(|(_, probability)| *probability > 0.0)
        {
            write!(f, "{separator}{name}={probability}")?;
            separator = ",";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

dta_proto::serde_as_text!(Faults);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultOutcome {
    Passed,
    Dropped,
    /// Sent twice in a row.
    Duplicated,
    /// Sent after this many later frames, 1 to 16. Reported when it is sent.
    Reordered {
        places: u8,
    },
    /// Sent with one bit flipped.
    Corrupted {
        /// The bit, counted from the IP header, most significant bit of each byte first.
        bit: u32,
    },
}

/// Whether a RoCEv2 packet must still be accepted after its bit `bit` was flipped, because no checksum covers it: BTH
/// byte 4 (FECN, BECN and reserved bits) and, over IPv6, the traffic class, flow label and hop limit.
pub fn is_uncovered_bit(packet: &[u8], bit: u32) -> bool {
    match ipv6::is_ipv6(packet) {
        false => bit / 8 == 32,
        true => matches!(bit, 4..32) || matches!(bit / 8, 7 | 52),
    }
}

dta_proto::counters! {
    /// Frames by fate. `frames = passed + dropped + duplicated + reordered + corrupted + held`, and
    /// `frames + duplicated - dropped - held` frames were sent.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct FaultCounts {
        /// Frames handed to the injector.
        pub frames: u64,
        /// Frames of these that were left untouched.
        pub passed: u64,
        /// Frames currently held, to be sent late.
        pub held: u64,
    }
    by counts_by_fault: Fault {
        dropped = Dropped,
        duplicated = Duplicated,
        reordered = Reordered,
        corrupted = Corrupted,
    }
}

/// Applies [`Faults`] to the frames of one link and direction. The same seed and frames give the same fates.
pub struct FaultInjector {
    faults: Faults,
    scope: Scope,
    random: SplitMix64,
    counts: FaultCounts,
    /// The held frames, oldest first.
    held: Vec<HeldFrame>,
    /// The packets of held frames, by [`HeldFrame::slot`].
    store: PacketBatch,
    free: Vec<usize>,
    leaving: PacketBatch,
}

struct HeldFrame {
    slot: usize,
    /// Its sequence number among all frames seen.
    number: u64,
    overtaken: u8,
    places: u8,
    since: Instant,
}

impl FaultInjector {
    /// An injector for a link whose [`crate::Link::corruption_scope`] is `scope`.
    pub fn new(faults: Faults, seed: u64, scope: Scope) -> Self {
        Self {
            faults,
            scope,
            random: SplitMix64(seed),
            counts: FaultCounts::default(),
            held: Vec::with_capacity(HELD_MAX),
            store: PacketBatch::new(0),
            free: Vec::new(),
            leaving: PacketBatch::new(0),
        }
    }

    /// Decides the fate of each frame of `batch` and returns what to send now: `batch` itself if there are no
    /// faults; otherwise another batch, with `batch` emptied. Held frames are sent among later ones, or
    /// [`HOLD`] after they arrived: so call it with an empty batch when there is nothing to send.
    ///
    /// `observe` receives the fate, the cookie and the packet (before any flip) of each frame, once its fate
    /// is known, which may be in a later call.
    pub fn apply_to_batch<'a>(
        &'a mut self,
        batch: &'a mut PacketBatch,
        now: Instant,
        mut observe: impl FnMut(FaultOutcome, u64, &[u8]),
    ) -> &'a mut PacketBatch {
        if self.faults.is_none() {
            self.counts.frames += batch.len() as u64;
            self.counts.passed += batch.len() as u64;
            for index in 0..batch.len() {
                observe(FaultOutcome::Passed, batch.packet_cookie(index), batch.packet(index));
            }
            return batch;
        }
        self.make_room(batch);
        self.leaving.clear();
        while self.held.first().is_some_and(|held| now.saturating_duration_since(held.since) >= HOLD) {
            self.release_frame(0, &mut observe);
        }
        for index in 0..batch.len() {
            self.decide_fate(batch, index, now, &mut observe);
        }
        batch.clear();
        &mut self.leaving
    }

    /// Returns the frames still held, oldest first, to send now: the last call when a link closes.
    pub fn flush_held_frames(
        &mut self,
        mut observe: impl FnMut(FaultOutcome, u64, &[u8]),
    ) -> &mut PacketBatch {
        self.leaving.clear();
        while !self.held.is_empty() {
            self.release_frame(0, &mut observe);
        }
        &mut self.leaving
    }

    pub fn fault_counts(&self) -> FaultCounts {
        FaultCounts { held: self.held.len() as u64, ..self.counts }
    }

    fn decide_fate(
        &mut self,
        batch: &PacketBatch,
        index: usize,
        now: Instant,
        observe: &mut impl FnMut(FaultOutcome, u64, &[u8]),
    ) {
        let number = self.counts.frames;
        self.counts.frames += 1;
        let (cookie, packet) = (batch.packet_cookie(index), batch.packet(index));
        let Faults { drop, dup, reorder, corrupt } = self.faults;
        let at = random_fraction(&mut self.random);
        if at < drop {
            self.counts.dropped += 1;
            observe(FaultOutcome::Dropped, cookie, packet);
            return;
        }
        if at < drop + dup {
            self.counts.duplicated += 1;
            self.leaving.copy_from(batch, index);
            self.leaving.copy_from(batch, index);
            observe(FaultOutcome::Duplicated, cookie, packet);
            return self.release_overtaken(number, observe);
        }
        if at < drop + dup + reorder
            && let Some(slot) = self.free.pop()
        {
            let places = 1 + random_below(&mut self.random, REORDER_MAX.into()) as u8;
            self.store.overwrite(slot, batch, index);
            self.held.push(HeldFrame { slot, number, overtaken: 0, places, since: now });
            return;
        }
        self.leaving.copy_from(batch, index);
        let corrupted = drop + dup + reorder <= at && at < drop + dup + reorder + corrupt;
        match corrupted.then(|| self.flip_random_bit()).flatten() {
            Some(bit) => {
                self.counts.corrupted += 1;
                observe(FaultOutcome::Corrupted { bit }, cookie, packet);
            }
            None => {
                self.counts.passed += 1;
                observe(FaultOutcome::Passed, cookie, packet);
            }
        }
        self.release_overtaken(number, observe);
    }

    /// Frame `number` was sent: releases held frames that have now been overtaken often enough, which in turn
    /// overtake older ones.
    fn release_overtaken(&mut self, number: u64, observe: &mut impl FnMut(FaultOutcome, u64, &[u8])) {
        self.count_overtaken(number);
        // The oldest first: releasing it overtakes no other, so no frame is overtaken too often.
        while let Some(position) = self.held.iter().position(|held| held.overtaken >= held.places) {
            self.release_frame(position, observe);
        }
    }

    fn count_overtaken(&mut self, number: u64) {
        for held in self.held.iter_mut().take_while(|held| held.number < number) {
            held.overtaken += 1;
        }
    }

    fn release_frame(&mut self, position: usize, observe: &mut impl FnMut(FaultOutcome, u64, &[u8])) {
        let HeldFrame { slot, number, overtaken, .. } = self.held.remove(position);
        self.leaving.copy_from(&self.store, slot);
        let fate = match overtaken {
            0 => FaultOutcome::Passed,
            places => FaultOutcome::Reordered { places },
        };
        match fate {
            FaultOutcome::Passed => self.counts.passed += 1,
            _ => self.counts.reordered += 1,
        }
        observe(fate, self.store.packet_cookie(slot), self.store.packet(slot));
        self.free.push(slot);
        self.count_overtaken(number);
    }

    /// Flips one bit of the last outgoing frame and returns which; `None` if there is no bit to flip.
    fn flip_random_bit(&mut self) -> Option<u32> {
        let last = self.leaving.len() - 1;
        let packet = self.leaving.packet_mut(last);
        let first = match self.scope {
            Scope::Packet => 0,
            Scope::Payload if ipv6::is_ipv6(packet) => datagram::IPV6_HEADER_LEN,
            Scope::Payload => datagram::HEADER_LEN,
            Scope::Datagram => {
                UdpDatagram::parse_exact(packet).ok()?;
                datagram::fill_udp_checksum(packet);
                ipv4::HEADER_LEN
            }
        };
        let bits = packet.len().checked_sub(first).filter(|bytes| *bytes > 0)? as u64 * 8;
        let mut chosen = random_below(&mut self.random, bits);
        let toggle = |packet: &mut [u8], bit: usize| packet[bit / 8] ^= 0x80 >> (bit % 8);
        let mut bit = first * 8 + chosen as usize;
        toggle(packet, bit);
        if self.scope == Scope::Datagram {
            // A flip may leave the checksum valid after all (by making it 0, which means none, or by
            // shortening the length where the rest fits). No receiver can see that, so it would not be
            // corruption.
            while datagram::udp_checksum_ok(packet) {
                toggle(packet, bit);
                chosen = (chosen + 1) % bits;
                bit = first * 8 + chosen as usize;
                toggle(packet, bit);
            }
            self.leaving.set_verbatim(last);
        }
        Some(bit as u32)
    }

    /// Grows the batches for what may be sent at once; allocates only at the first call, unless later batches
    /// are larger.
    fn make_room(&mut self, batch: &PacketBatch) {
        let (slots, bytes) = (2 * batch.slot_count() + HELD_MAX, batch.packet_capacity());
        if self.leaving.slot_count() < slots || self.leaving.packet_capacity() < bytes {
            self.leaving =
                PacketBatch::with_packet_capacity(slots, bytes.max(self.leaving.packet_capacity()));
        }
        if self.store.packet_capacity() < bytes || self.store.slot_count() == 0 {
            let mut store = PacketBatch::with_packet_capacity(HELD_MAX, bytes);
            for slot in 0..HELD_MAX {
                match self.held.iter().find(|held| held.slot == slot) {
                    Some(_) => store.copy_from(&self.store, slot),
                    None => store.commit_packet(0, 0),
                }
            }
            self.store = store;
            self.free =
                (0..HELD_MAX).filter(|slot| self.held.iter().all(|held| held.slot != *slot)).collect();
        }
    }
}

fn random_fraction(random: &mut SplitMix64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

fn random_below(random: &mut SplitMix64, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

//! One ring: frames from one producer to one consumer, in words of shared memory.
//!
//! ```text
//! word  written by
//!  0    producer   words written since the beginning (`tail`)
//!  8    consumer   words taken since the beginning (`head`)
//!  9    consumer   frames taken
//! 16    both       1 = the consumer sleeps: wake it when there are frames
//! 24    both       1 = the producer waits for room: wake it when half of the ring is free
//! 64..             frames: a word with the length in bytes, then the bytes, padded to whole words
//! ```
//!
//! The other side may write anything anywhere at any time. So each end keeps its own index in private memory,
//! reads the other's once per call and checks it, and reads the length of a frame exactly once before
//! checking it. Anything impossible is [`Broken`]: the ring is then closed. A malicious producer can thus
//! only spoil its own frames, and a malicious consumer only lose its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use dta_proto::batch::PacketBatch;

use super::memory::Memory;

/// Words before the frames of a ring.
pub(super) const CONTROL: usize = 64;
/// Longest frame: what a jumbo frame carries.
pub const FRAME_MAX: usize = 9216;

const TAIL: usize = 0;
const HEAD: usize = 8;
const TAKEN: usize = 9;
const SLEEPS: usize = 16;
const WAITS: usize = 24;

/// The other end wrote invalid data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// Its index is outside the ring, or decreased.
    #[error("the index of the other end is impossible")]
    Index,
    /// A frame is empty, or longer than the available bytes.
    #[error("a frame has an impossible length")]
    Length,
}

/// Location of a ring in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Its first word.
    pub(super) at: usize,
    /// Words for frames: a power of two.
    pub(super) capacity: usize,
}

impl Extent {
    pub(super) fn len(self) -> usize {
        CONTROL + self.capacity
    }
}

/// The common part of both ends of a ring.
#[derive(Debug)]
struct RingSide {
    memory: Arc<Memory>,
    place: Extent,
}

impl RingSide {
    #[inline]
    fn control_word(&self, word: usize) -> &AtomicU64 {
        &self.memory.as_words()[self.place.at + word]
    }

    #[inline]
    fn data_words(&self) -> &[AtomicU64] {
        &self.memory.as_words()[self.place.at + CONTROL..][..self.place.capacity]
    }

    /// Announces that this end will wait on `flag`.
    fn announce_wait(&self, flag: usize) {
        self.control_word(flag).store(1, Ordering::Relaxed);
        // Before rereading the other end's index: see `claim_wakeup`.
        fence(Ordering::SeqCst);
    }

    fn withdraw_wait(&self, flag: usize) {
        self.control_word(flag).store(0, Ordering::Relaxed);
    }

    /// Whether the other end waits on `flag`, and nobody has claimed the wake-up yet.
    #[inline]
    fn claim_wakeup(&self, flag: usize) -> bool {
        // After storing this end's index. If two ends each store and then load, one sees the other's store:
        // either the flag is seen here, or the index there.
        fence(Ordering::SeqCst);
        let flag = self.control_word(flag);
        flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
    }
}

/// The end that writes frames.
#[derive(Debug)]
pub(super) struct Producer {
    side: RingSide,
    tail: u64,
    /// The other end's index when last read and found valid.
    head: u64,
    published: u64,
    frames: u64,
}

impl Producer {
    pub(super) fn new(memory: Arc<Memory>, place: Extent) -> Self {
        assert!(place.capacity.is_power_of_two(), "a ring of {} words", place.capacity);
        Self { side: RingSide { memory, place }, tail: 0, head: 0, published: 0, frames: 0 }
    }

    /// Writes a frame of 1 to [`FRAME_MAX`] bytes; [`Self::publish_frames`] makes it visible. `false`: no room.
    ///
    /// # Errors
    /// The consumer's index is invalid.
    #[inline]
    pub(super) fn push(&mut self, frame: &[u8]) -> Result<bool, Broken> {
        let words = 1 + frame.len().div_ceil(8);
        if frame.is_empty() || frame.len() > FRAME_MAX || words > self.side.place.capacity {
            return Err(Broken::Length);
        }
        if self.free_words() < words && self.refresh_free_words()? < words {
            return Ok(false);
        }
        let (data, mask) = (self.side.data_words(), self.side.place.capacity - 1);
        let at = self.tail as usize & mask;
        data[at].store(frame.len() as u64, Ordering::Relaxed);
        write_wrapping(data, (at + 1) & mask, frame);
        self.tail += words as u64;
        self.frames += 1;
        Ok(true)
    }

    #[inline]
    fn free_words(&self) -> usize {
        self.side.place.capacity - (self.tail - self.head) as usize
    }

    /// Reads the consumer's index; returns the free words.
    fn refresh_free_words(&mut self) -> Result<usize, Broken> {
        let head = self.side.control_word(HEAD).load(Ordering::Acquire);
        if !(self.head..=self.tail).contains(&head) {
            return Err(Broken::Index);
        }
        self.head = head;
        Ok(self.free_words())
    }

    /// Makes all written frames visible. Returns whether the consumer sleeps and must be woken.
    #[inline]
    pub(super) fn publish_frames(&mut self) -> bool {
        if self.published == self.tail {
            return false;
        }
        self.published = self.tail;
        self.side.control_word(TAIL).store(self.tail, Ordering::Release);
        self.side.claim_wakeup(SLEEPS)
    }

    /// Asks the consumer to wake this end when half of the ring is free. Returns whether there is already
    /// room for any frame.
    pub(super) fn wait_for_room(&mut self) -> Result<bool, Broken> {
        self.side.announce_wait(WAITS);
        let room = self.has_frame_room()?;
        if room {
            self.side.withdraw_wait(WAITS);
        }
        Ok(room)
    }

    /// Whether any frame fits, or the whole ring is free.
    pub(super) fn has_frame_room(&mut self) -> Result<bool, Broken> {
        let least = (1 + FRAME_MAX / 8).min(self.side.place.capacity);
        Ok(self.refresh_free_words()? >= least)
    }

    #[cfg(test)]
    pub(super) fn announce_excess_frames(&mut self) {
        self.side.control_word(TAIL).store(u64::MAX, Ordering::Release);
    }

    /// Frames written but not taken, according to the consumer; never more than were written.
    pub(super) fn untaken_frames(&self) -> u64 {
        self.frames.saturating_sub(self.side.control_word(TAKEN).load(Ordering::Acquire))
    }
}

/// The end that reads frames.
#[derive(Debug)]
pub(super) struct Consumer {
    side: RingSide,
    head: u64,
    taken: u64,
    /// Where the ring ends, once no more frames are expected.
    end: Option<u64>,
}

impl Consumer {
    pub(super) fn new(memory: Arc<Memory>, place: Extent) -> Self {
        assert!(place.capacity.is_power_of_two(), "a ring of {} words", place.capacity);
        Self { side: RingSide { memory, place }, head: 0, taken: 0, end: None }
    }

    /// Whether there are frames to take; errors show up when they are taken.
    pub(super) fn has_frames(&self) -> bool {
        self.available().is_ok_and(|words| words > 0)
    }

    #[inline]
    fn available(&self) -> Result<u64, Broken> {
        let tail = match self.end {
            Some(end) => end,
            None => self.side.control_word(TAIL).load(Ordering::Acquire),
        };
        match tail.checked_sub(self.head) {
            Some(words) if words <= self.side.place.capacity as u64 => Ok(words),
            _ => Err(Broken::Index),
        }
    }

    /// Adds frames to `batch` until it is full or there are no more. Returns how many were lost because they
    /// exceeded its slots, and whether the producer waits for room and must be woken.
    ///
    /// # Errors
    /// The producer's index or a frame's length is invalid. Earlier frames are in the batch.
    #[inline]
    pub(super) fn take(&mut self, batch: &mut PacketBatch) -> Result<Took, Broken> {
        let mut left = self.available()?;
        if left == 0 {
            return Ok(Took { too_long: 0, wake: false });
        }
        let (mut too_long, mut result) = (0, Ok(()));
        while left > 0 && !batch.is_full() {
            let (data, mask) = (self.side.data_words(), self.side.place.capacity - 1);
            let at = self.head as usize & mask;
            // Read once: the producer may change it at any time.
            let len = data[at].load(Ordering::Relaxed);
            let words = 1 + len.div_ceil(8);
            if len == 0 || len > FRAME_MAX as u64 || words > left {
                result = Err(Broken::Length);
                break;
            }
            let len = len as usize;
            match batch.next_slot() {
                Some(slot) if len <= slot.len() => {
                    read(data, (at + 1) & mask, &mut slot[..len]);
                    batch.commit_packet(len, 0);
                }
                _ => too_long += 1,
            }
            self.head += words;
            self.taken += 1;
            left -= words;
        }
        self.side.control_word(TAKEN).store(self.taken, Ordering::Relaxed);
        self.side.control_word(HEAD).store(self.head, Ordering::Release);
        result?;
        let half = left as usize <= self.side.place.capacity / 2;
        Ok(Took { too_long, wake: half && self.side.claim_wakeup(WAITS) })
    }

    /// Takes one frame of any length, as bytes.
    pub(super) fn take_frame(&mut self) -> Result<Option<Vec<u8>>, Broken> {
        let mut batch = PacketBatch::with_packet_capacity(1, FRAME_MAX);
        self.take(&mut batch)?;
        Ok(batch.iter().next().map(<[u8]>::to_vec))
    }

    /// Ignores everything written from now on.
    pub(super) fn stop_at_written(&mut self) -> Result<(), Broken> {
        let end = self.head + self.available()?;
        self.end = Some(end);
        Ok(())
    }

    /// Whether everything expected was taken.
    pub(super) fn is_at_end(&self) -> bool {
        self.end == Some(self.head)
    }

    /// Asks the producer to wake this end when there are frames. Returns whether there are some already.
    pub(super) fn announce_sleep(&self) -> Result<bool, Broken> {
        self.side.announce_wait(SLEEPS);
        let here = self.available()? != 0;
        if here {
            self.side.withdraw_wait(SLEEPS);
        }
        Ok(here)
    }

    pub(super) fn cancel_sleep(&self) {
        self.side.withdraw_wait(SLEEPS);
    }
}

/// Further results of [`Consumer::take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Took {
    pub(super) too_long: u64,
    pub(super) wake: bool,
}

/// Copies bytes into words from `at`, wrapping around. The caller ensures that there is room in `data`.
#[inline]
fn write_wrapping(data: &[AtomicU64], at: usize, bytes: &[u8]) {
    let (before, after) = data.split_at(at);
    let (here, around) = bytes.split_at(bytes.len().min(after.len() * 8));
    write_words(after, here);
    write_words(before, around);
}

/// Copies bytes into the first words.
#[inline(always)] // on the path of every frame
fn write_words(words: &[AtomicU64], bytes: &[u8]) {
    let (eights, rest) = bytes.as_chunks();
    for (word, eight) in words.iter().zip(eights) {
        word.store(u64::from_ne_bytes(*eight), Ordering::Relaxed);
    }
    let Some(word) = words.get(eights.len()).filter(|_| !rest.is_empty()) else { return };
    let mut last = [0; 8];
    match <[u8; 4]>::try_from(rest) {
        // A RoCEv2 packet is a multiple of four bytes: this case needs no call.
        Ok([a, b, c, d]) => last = [a, b, c, d, 0, 0, 0, 0],
        Err(_) => last[..rest.len()].copy_from_slice(rest),
    }
    word.store(u64::from_ne_bytes(last), Ordering::Relaxed);
}

/// Copies bytes from words at `at`, wrapping around.
#[inline]
fn read(data: &[AtomicU64], at: usize, bytes: &mut [u8]) {
    let (before, after) = data.split_at(at);
    let (here, around) = bytes.split_at_mut(bytes.len().min(after.len() * 8));
    get(after, here);
    get(before, around);
}

/// Copies bytes out of the first words.
#[inline(always)] // on the path of every frame
fn get(words: &[AtomicU64], bytes: &mut [u8]) {
    let (eights, rest) = bytes.as_chunks_mut();
    for (word, eight) in words.iter().zip(&mut *eights) {
        *eight = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    let Some(word) = words.get(eights.len()).filter(|_| !rest.is_empty()) else { return };
    let last = word.load(Ordering::Relaxed).to_ne_bytes();
    match <&mut [u8; 4]>::try_from(&mut *rest) {
        Ok(four) => *four = [last[0], last[1], last[2], last[3]],
        Err(_) => rest.copy_from_slice(&last[..rest.len()]),
    }
}

#[cfg(test)]
mod tests;

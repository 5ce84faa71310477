//! Reads and writes memory that others write at the same time.
//!
//! Every access is an atomic load (acquire) or store (release) of 1, 2, 4 or 8 aligned bytes, so a
//! race gives old or new units and never undefined behaviour, and the units of one call are read
//! and written in ascending order. On x86-64 these are plain moves.
//!
//! A load is a relaxed one plus a fence: a region opened for reading is mapped read-only, and for such memory Rust
//! allows only relaxed loads (`std::sync::atomic`, "Atomic accesses to read-only memory").
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::Region;

/// Why an access was refused. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Some of the bytes lie outside the region.
    #[error("{len} bytes at offset {offset} lie outside the region")]
    OutOfRange { offset: u64, len: u64 },
    /// An atomic operation needs its natural alignment.
    #[error("offset {offset} is not aligned")]
    Misaligned { offset: u64 },
    /// The region was opened for reading.
    #[error("the region was opened for reading")]
    ReadOnly,
}

impl Region {
    /// Address of `len` bytes at `offset`, all of them inside the data.
    #[inline(always)]
    fn checked_address(&self, offset: u64, len: usize) -> Result<*mut u8, AccessError> {
        // `len - n` cannot wrap once `n <= len`; `offset + n` could.
        if len > self.len || offset > (self.len - len) as u64 {
            return Err(AccessError::OutOfRange { offset, len: len as u64 });
        }
        Ok(self.mapping.start_address().wrapping_add(self.data + offset as usize))
    }

    #[inline(always)]
    fn address_mut(&self, offset: u64, len: usize) -> Result<*mut u8, AccessError> {
        if !self.writable {
            return Err(AccessError::ReadOnly);
        }
        self.checked_address(offset, len)
    }

    #[inline(always)]
    fn aligned_word(&self, offset: u64, width: usize) -> Result<*mut u8, AccessError> {
        let at = self.checked_address(offset, width)?;
        if at.addr() & (width - 1) != 0 {
            return Err(AccessError::Misaligned { offset });
        }
        Ok(at)
    }

    #[inline(always)]
    fn aligned_word_mut(&self, offset: u64, width: usize) -> Result<*mut u8, AccessError> {
        if !self.writable {
            return Err(AccessError::ReadOnly);
        }
        self.aligned_word(offset, width)
    }

    /// Copies bytes out, in ascending units. A concurrent write may be seen in part.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        let from = self.checked_address(offset, out.len())?;
        // SAFETY: `address` vouches for `out.len()` mapped bytes at `from`, and the mapping lives
        // as long as `self`.
        unsafe { copy_from_shared(from, out) };
        Ok(())
    }

    /// Copies elements of one length out, each as [`Region::read`] would. Stops at the first that lies outside.
    #[inline(always)] // for lengths that the caller knows at compile time
    pub fn read_each<const LEN: usize>(
        &self,
        offsets: impl Iterator<Item = u64>,
        out: &mut [[u8; LEN]],
    ) -> Result<(), AccessError> {
        // Looked up once: after an acquire load, the compiler assumes nothing.
        let (start, len) = (self.checked_address(0, 0)?, self.len);
        for (offset, out) in offsets.zip(out) {
            if LEN > len || offset > (len - LEN) as u64 {
                return Err(AccessError::OutOfRange { offset, len: LEN as u64 });
            }
            // SAFETY: as in `read`: these bytes are inside the data, which begins at `start`.
            unsafe { copy_from_shared(start.wrapping_add(offset as usize), out) };
        }
        Ok(())
    }

    /// Copies bytes in, in ascending units: a reader that sees the last one (acquire) sees all.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), AccessError> {
        let to = self.address_mut(offset, data.len())?;
        // SAFETY: `address_mut` vouches for `data.len()` mapped, writable bytes at `to`, and the
        // mapping lives as long as `self`.
        unsafe { copy_to_shared(to, data) };
        Ok(())
    }

    /// Copies each write in at its offset, as [`Region::write`] would, and returns how many. Skips those that lie
    /// partly outside; writes nothing to a region opened for reading.
    #[inline(always)] // for the iterator
    pub fn write_each<'d>(&self, writes: impl Iterator<Item = (u64, &'d [u8])>) -> usize {
        // Looked up once, as in `read_each`.
        let (start, len) = match self.address_mut(0, 0) {
            Ok(start) => (start, self.len),
            Err(_) => {
                writes.for_each(drop);
                return 0;
            }
        };
        let mut written = 0;
        for (offset, data) in writes {
            if data.len() > len || offset > (len - data.len()) as u64 {
                continue;
            }
            // SAFETY: as in `write`: these bytes are inside the data, which begins at `start` and is writable.
            unsafe { copy_to_shared(start.wrapping_add(offset as usize), data) };
            written += 1;
        }
        written
    }

    /// Loads a `u64` in the host's byte order; `offset` a multiple of 8.
    #[inline]
    pub fn load_u64(&self, offset: u64) -> Result<u64, AccessError> {
        let at = self.aligned_word(offset, 8)?;
        // SAFETY: `word` vouches for 8 mapped, aligned bytes at `at`; in this program they are only
        // accessed atomically.
        Ok(load_acquire(|| unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed)))
    }

    /// Stores a `u64` in the host's byte order; `offset` a multiple of 8.
    #[inline]
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        let at = self.aligned_word_mut(offset, 8)?;
        // SAFETY: as in `load_u64`, and `aligned_word_mut` vouches for write permission.
        unsafe { AtomicU64::from_ptr(at.cast()) }.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to a `u64` in the host's byte order, wrapping, and returns the previous value; `offset` a multiple of 8.
    #[inline]
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, AccessError> {
        let at = self.aligned_word_mut(offset, 8)?;
        // SAFETY: as in `load_u64`, and `aligned_word_mut` vouches for write permission.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) }.fetch_add(add, Ordering::AcqRel))
    }

    /// Replaces a `u64` in the host's byte order by `swap` if it equals `compare`, and returns the previous value;
    /// `offset` a multiple of 8.
    #[inline]
    pub fn compare_swap(&self, offset: u64, compare: u64, swap: u64) -> Result<u64, AccessError> {
        let at = self.aligned_word_mut(offset, 8)?;
        // SAFETY: as in `load_u64`, and `aligned_word_mut` vouches for write permission.
        let cell = unsafe { AtomicU64::from_ptr(at.cast()) };
        Ok(match cell.compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        })
    }

    /// Prefetches the cache line at `offset` for a later read or write. Harmless anywhere.
    #[inline(always)]
    pub fn prefetch_line(&self, offset: u64) {
        let at = self.mapping.start_address().wrapping_add(self.data).wrapping_add(offset as usize);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address, mapped or not, has no effect but on caches.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// A relaxed load with acquire ordering: what follows comes after it.
#[inline(always)]
fn load_acquire<T>(load: impl FnOnce() -> T) -> T {
    let value = load();
    fence(Ordering::Acquire);
    value
}

/// Copies `out.len()` bytes from shared memory.
///
/// # Safety
/// `from` must be valid for atomic reads of `out.len()` bytes.
#[inline(always)]
unsafe fn copy_from_shared(mut from: *mut u8, mut out: &mut [u8]) {
    // Elements are multiples of 8 at multiples of 8, so almost everything goes through this loop.
    if from.addr() & 7 == 0 {
        let (units, rest) = out.as_chunks_mut::<8>();
        for unit in units {
            // SAFETY: `from` is aligned and 8 of the caller's bytes remain.
            *unit = load_acquire(|| unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Relaxed))
                .to_ne_bytes();
            from = from.wrapping_add(8);
        }
        out = rest;
    }
    while !out.is_empty() {
        let width = unit_width(from.addr(), out.len());
        let (unit, rest) = out.split_at_mut(width);
        // SAFETY: `unit_width` gives a width to which `from` is aligned, no more than what remains
        // of the caller's bytes.
        load_acquire(|| unsafe {
            match width {
                8 => unit
                    .copy_from_slice(&AtomicU64::from_ptr(from.cast()).load(Ordering::Relaxed).to_ne_bytes()),
                4 => unit
                    .copy_from_slice(&AtomicU32::from_ptr(from.cast()).load(Ordering::Relaxed).to_ne_bytes()),
                2 => unit
                    .copy_from_slice(&AtomicU16::from_ptr(from.cast()).load(Ordering::Relaxed).to_ne_bytes()),
                _ => unit[0] = AtomicU8::from_ptr(from).load(Ordering::Relaxed),
            }
        });
        out = rest;
        from = from.wrapping_add(width);
    }
}

/// Copies `data` to shared memory.
///
/// # Safety
/// `to` must be valid for atomic writes of `data.len()` bytes.
#[inline(always)]
unsafe fn copy_to_shared(mut to: *mut u8, mut data: &[u8]) {
    if to.addr() & 7 == 0 {
        let (units, rest) = data.as_chunks::<8>();
        if let ([first, second], []) = (units, rest) {
            // The element of most stores, without a loop. SAFETY: `to` is aligned and these are the caller's bytes.
            unsafe {
                AtomicU64::from_ptr(to.cast()).store(u64::from_ne_bytes(*first), Ordering::Release);
                AtomicU64::from_ptr(to.wrapping_add(8).cast())
                    .store(u64::from_ne_bytes(*second), Ordering::Release);
            }
            return;
        }
        for unit in units {
            // SAFETY: `to` is aligned and 8 of the caller's bytes remain.
            unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(*unit), Ordering::Release);
            to = to.wrapping_add(8);
        }
        data = rest;
    }
    while !data.is_empty() {
        let width = unit_width(to.addr(), data.len());
        let (unit, rest) = data.split_at(width);
        // SAFETY: `unit_width` gives a width to which `to` is aligned, no more than what remains of
        // the caller's bytes.
        unsafe {
            match *unit {
                [a, b, c, d, e, f, g, h] => AtomicU64::from_ptr(to.cast())
                    .store(u64::from_ne_bytes([a, b, c, d, e, f, g, h]), Ordering::Release),
                [a, b, c, d] => {
                    AtomicU32::from_ptr(to.cast()).store(u32::from_ne_bytes([a, b, c, d]), Ordering::Release)
                }
                [a, b] => AtomicU16::from_ptr(to.cast()).store(u16::from_ne_bytes([a, b]), Ordering::Release),
                _ => AtomicU8::from_ptr(to).store(unit[0], Ordering::Release),
            }
        }
        data = rest;
        to = to.wrapping_add(width);
    }
}

/// The widest unit of 1, 2, 4 or 8 bytes that is aligned at `address` and fits in `left` (at least 1).
#[inline(always)]
fn unit_width(address: usize, left: usize) -> usize {
    let aligned = 1usize << address.trailing_zeros().min(3);
    let fits = 1usize << left.ilog2().min(3);
    aligned.min(fits)
}

//! Gets memory from the kernel.
//!
//! Nothing here replaces an existing mapping (`MAP_FIXED`). Such a call unmaps the old memory first, so when it then
//! fails it leaves a hole, and another thread's next mapping may land in it: the hole must not be unmapped, and
//! nobody can tell it from what is still ours. So each call either takes free addresses, or changes the protection of
//! memory that stays in place; a failure leaves everything as it was.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ptr::null_mut;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::Pages;

/// Alignment that lets the kernel use huge pages.
pub(super) const HUGE: usize = 2 << 20;

/// Attempts to map a file at an aligned address before any address is accepted.
const PLACES: usize = 16;

/// A mapping of our own; unmapped when dropped.
pub(super) struct MemoryMapping {
    start: *mut u8,
    /// The range to unmap on drop, all of it ours; it contains `start`.
    whole: *mut u8,
    whole_len: usize,
    pages: Pages,
}

// SAFETY: the mapping is plain memory owned by this value alone; the type gives out only its address.
unsafe impl Send for MemoryMapping {}
// SAFETY: as for Send; all accesses through a shared reference are atomic (see `access`).
unsafe impl Sync for MemoryMapping {}

impl MemoryMapping {
    /// Zeroed private memory: reserved huge pages if the pool has enough, else transparent ones, else base pages.
    pub(super) fn anonymous(len: usize, huge: bool) -> Result<MemoryMapping, Errno> {
        if huge
            && len.is_multiple_of(HUGE)
            && let Ok(mapping) = MemoryMapping::reserved_pages(len)
        {
            return Ok(mapping);
        }
        let mapping = MemoryMapping::new_sparse(len)?;
        mapping.advise_huge(len, huge);
        mapping.allocate_pages(len)?;
        Ok(mapping)
    }

    /// Zeroed private memory whose pages are allocated only when touched.
    pub(super) fn new_sparse(len: usize) -> Result<MemoryMapping, Errno> {
        let mapping = MemoryMapping::no_access(len)?;
        // The kernel commits the memory here, or refuses and leaves the reservation as it is.
        // SAFETY: `len` bytes from `start` are our own reservation, which nobody else knows yet.
        unsafe {
            rustix::mm::mprotect(mapping.start.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        Ok(mapping)
    }

    /// The first `len` bytes of `file`, shared. For a file in hugetlbfs, `huge_file` is its page size, and `len` a
    /// multiple of that.
    pub(super) fn from_file(
        file: &File,
        len: usize,
        writable: bool,
        huge: bool,
        huge_file: Option<usize>,
    ) -> Result<MemoryMapping, Errno> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let start = map_file(file, len, protection)?;
        let mut mapping = MemoryMapping { start, whole: start, whole_len: len, pages: Pages::Base4K };
        if let Some(page) = huge_file {
            mapping.pages = Pages::Hugetlb(page);
        } else {
            mapping.advise_huge(len, huge && writable);
        }
        if writable {
            mapping.allocate_pages(len)?;
        }
        Ok(mapping)
    }

    #[inline(always)]
    pub(super) fn start_address(&self) -> *mut u8 {
        self.start
    }

    /// Joins the base pages at `offset` bytes into the mapping into one huge page, if the address there is aligned to
    /// one. Concurrent readers and writers wait, and find everything as it was.
    ///
    /// # Errors
    /// Those of madvise(2) for `MADV_COLLAPSE` (Linux 6.1): the pages stay as they were.
    pub(super) fn collapse_page_at(&self, offset: usize) -> io::Result<()> {
        debug_assert!(self.start.addr() + offset + HUGE <= self.whole.addr() + self.whole_len);
        // SAFETY: `HUGE` bytes from there lie in our own mapping. The advice changes how they are
        // backed, not what they hold.
        let done =
            unsafe { libc::madvise(self.start.wrapping_add(offset).cast(), HUGE, libc::MADV_COLLAPSE) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The kind of pages requested: whether base pages become huge is up to the kernel.
    pub(super) fn page_kind(&self) -> Pages {
        self.pages
    }

    /// Memory in the pool's huge pages. The kernel reserves them here or refuses, so touching them later cannot fail.
    fn reserved_pages(len: usize) -> Result<MemoryMapping, Errno> {
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?
        }
        .cast::<u8>();
        let mapping = MemoryMapping { start, whole: start, whole_len: len, pages: Pages::Hugetlb(HUGE) };
        mapping.allocate_pages(len)?;
        Ok(mapping)
    }

    /// Inaccessible address space for `len` bytes at an aligned address: larger than `len`, so that an aligned
    /// address fits wherever the kernel puts it.
    fn no_access(len: usize) -> Result<MemoryMapping, Errno> {
        let whole_len =
            len.checked_next_multiple_of(HUGE).and_then(|n| n.checked_add(HUGE)).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let whole = unsafe {
            rustix::mm::mmap_anonymous(null_mut(), whole_len, ProtFlags::empty(), MapFlags::PRIVATE)?
        }
        .cast::<u8>();
        let start = whole.wrapping_add(whole.addr().next_multiple_of(HUGE) - whole.addr());
        Ok(MemoryMapping { start, whole, whole_len, pages: Pages::Base4K })
    }

    fn advise_huge(&self, len: usize, huge: bool) {
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // A kernel built without them leaves base pages, and `Region::pages` says so. SAFETY: the advice changes how
        // our own mapping is backed, not what it holds.
        let _ = unsafe { rustix::mm::madvise(self.start.cast(), len, advice) };
    }

    /// Allocates every page now, so that a full file system is an error here and not a signal (SIGBUS) later.
    fn allocate_pages(&self, len: usize) -> Result<(), Errno> {
        // SAFETY: faults in pages of our own mapping and leaves their contents alone.
        match unsafe { rustix::mm::madvise(self.start.cast(), len, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know it: pages are then allocated when touched.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            // This would have been a SIGBUS.
            Err(Errno::FAULT) => Err(Errno::NOSPC),
            Err(e) => Err(e),
        }
    }
}

impl Drop for MemoryMapping {
    fn drop(&mut self) {
        // SAFETY: only this value mapped anything in this range, and with `self` its last user is gone.
        let _ = unsafe { rustix::mm::munmap(self.whole.cast(), self.whole_len) };
    }
}

/// Maps the first `len` bytes of `file`, at an address aligned to [`HUGE`] if there is one.
fn map_file(file: &File, len: usize, protection: ProtFlags) -> Result<*mut u8, Errno> {
    for _ in 0..PLACES {
        // The address space is released at the end of this line, so `place` was free a moment ago.
        let place = MemoryMapping::no_access(len)?.start;
        // Another thread may take the place at any time: the kernel then says so (FIXED_NOREPLACE) and touches
        // nothing. Before Linux 4.17 it chooses another place instead, which is fine, too.
        let flags = MapFlags::SHARED | MapFlags::FIXED_NOREPLACE;
        // SAFETY: a new mapping that replaces none touches nothing that exists.
        match unsafe { rustix::mm::mmap(place.cast(), len, protection, flags, file, 0) } {
            Ok(start) => return Ok(start.cast()),
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
    }
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    unsafe { rustix::mm::mmap(null_mut(), len, protection, MapFlags::SHARED, file, 0) }
        .map(|start| start.cast())
}

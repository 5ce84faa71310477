//! Getting memory from the kernel.
#![allow(unsafe_code)]

use std::fs::File;
use std::ptr::null_mut;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::Pages;

/// Alignment that lets the kernel use huge pages.
pub(super) const HUGE: usize = 2 << 20;

/// A mapping of our own; unmapped when dropped.
pub(super) struct Mapping {
    /// First byte, aligned to [`HUGE`].
    start: *mut u8,
    /// What was reserved: `start` lies inside.
    reserved: *mut u8,
    reserved_len: usize,
    pages: Pages,
}

// SAFETY: the mapping is plain memory that belongs to this value alone; the type gives out nothing but its address.
unsafe impl Send for Mapping {}
// SAFETY: as for Send; all accesses through a shared reference are atomic (see `access`).
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed private memory: reserved huge pages if the pool has enough, else transparent ones, else base pages.
    pub(super) fn anonymous(len: usize, huge: bool) -> Result<Mapping, Errno> {
        let read_write = ProtFlags::READ | ProtFlags::WRITE;
        let mut mapping = Mapping::reserve(len)?;
        if huge && len.is_multiple_of(HUGE) {
            // The kernel reserves the pages here or refuses, so touching them later cannot fail.
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            // SAFETY: replaces `len` bytes inside our own reservation, which nobody else knows of yet.
            if unsafe { rustix::mm::mmap_anonymous(mapping.start.cast(), len, read_write, flags) }.is_ok() {
                mapping.pages = Pages::Hugetlb2M;
                mapping.populate(len)?;
                return Ok(mapping);
            }
            // A failed MAP_FIXED may have removed the reservation; only a new one is ours for certain.
            mapping = Mapping::reserve(len)?;
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: replaces `len` bytes inside our own reservation, which nobody else knows of yet.
        unsafe { rustix::mm::mmap_anonymous(mapping.start.cast(), len, read_write, flags)? };
        mapping.advise_huge(len, huge);
        mapping.populate(len)?;
        Ok(mapping)
    }

    /// The first `len` bytes of `file`, shared. `huge_file` says that it lies in hugetlbfs.
    pub(super) fn file(
        file: &File,
        len: usize,
        writable: bool,
        huge: bool,
        huge_file: bool,
    ) -> Result<Mapping, Errno> {
        let mut mapping = Mapping::reserve(len)?;
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces `len` bytes inside our own reservation, which nobody else knows of yet.
        unsafe { rustix::mm::mmap(mapping.start.cast(), len, protection, flags, file, 0)? };
        if huge_file {
            mapping.pages = Pages::Hugetlb2M;
        } else {
            mapping.advise_huge(len, huge && writable);
        }
        if writable {
            mapping.populate(len)?;
        }
        Ok(mapping)
    }

    /// First byte of the mapping.
    #[inline(always)]
    pub(super) fn address(&self) -> *mut u8 {
        self.start
    }

    /// What it lies in, as far as that was asked for: whether base pages are joined to huge ones is the kernel's to say.
    pub(super) fn pages(&self) -> Pages {
        self.pages
    }

    /// Address space for `len` bytes at an aligned address, with nothing in it.
    fn reserve(len: usize) -> Result<Mapping, Errno> {
        let reserved_len =
            len.checked_next_multiple_of(HUGE).and_then(|n| n.checked_add(HUGE)).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let reserved = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                reserved_len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        }
        .cast::<u8>();
        let start = reserved.wrapping_add(reserved.addr().next_multiple_of(HUGE) - reserved.addr());
        Ok(Mapping { start, reserved, reserved_len, pages: Pages::Base4K })
    }

    fn advise_huge(&self, len: usize, huge: bool) {
        let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        // The kernel may be built without them: then base pages are what there is, and `Region::pages` says so.
        // SAFETY: the advice changes how our own mapping is backed, not what it holds.
        let _ = unsafe { rustix::mm::madvise(self.start.cast(), len, advice) };
    }

    /// Makes every page exist now, so that a full file system is an error here and not a signal (SIGBUS) later.
    fn populate(&self, len: usize) -> Result<(), Errno> {
        // SAFETY: faults in pages of our own mapping and leaves their contents alone.
        match unsafe { rustix::mm::madvise(self.start.cast(), len, Advice::LinuxPopulateWrite) } {
            // Kernels before 5.14 do not know it: pages then come when touched.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            // What would have been a SIGBUS.
            Err(Errno::FAULT) => Err(Errno::NOSPC),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the reservation and what was mapped into it are ours, and with `self` the last user is gone.
        let _ = unsafe { rustix::mm::munmap(self.reserved.cast(), self.reserved_len) };
    }
}

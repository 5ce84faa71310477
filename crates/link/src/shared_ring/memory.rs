//! Memory shared by two processes: words of 64 bits, which both read and write at any time.
//!
//! It is only accessed as `&[AtomicU64]`. Whatever the other process does to it, an atomic load returns some
//! 64 bits, and no reference to plain bytes of it exists. Readers check the meaning of these bits on a copy.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// The seals forbid changes to the file behind the memory: its size, and these seals. So no page of the
/// mapping can vanish, and no access can raise SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Words of memory that others may write.
#[derive(Debug)]
pub(crate) enum Memory {
    Mapped(MemfdMapping),
    /// Private to this process: for tests, where both ends are in this process.
    #[cfg(test)]
    Plain(Box<[AtomicU64]>),
}

/// A mapping of a sealed memfd. It is unmapped when dropped.
#[derive(Debug)]
pub(crate) struct MemfdMapping {
    first: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: a mapping belongs to no thread, and its words are only accessed atomically.
unsafe impl Send for MemfdMapping {}
// SAFETY: as for `Send`.
unsafe impl Sync for MemfdMapping {}

impl Memory {
    /// New memory of `words` zeros, and the file through which another process can map it.
    pub(crate) fn create_sealed(words: usize) -> io::Result<(Memory, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("dta-ring", flags)?;
        rustix::fs::ftruncate(&file, (words * size_of::<u64>()) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((Memory::open(file.as_fd(), words)?, file))
    }

    /// Maps the memory of another process.
    ///
    /// # Errors
    /// It has another size, or is not sealed, so that its owner could remove pages.
    pub(crate) fn open(file: BorrowedFd<'_>, words: usize) -> io::Result<Memory> {
        let sealed = rustix::fs::fcntl_get_seals(file)?;
        if !sealed.contains(SEALS) {
            return Err(io::Error::other("the memory is not sealed"));
        }
        // The seals have been checked: from here on, the size is fixed.
        let len = words * size_of::<u64>();
        if words == 0 || rustix::fs::fstat(file)?.st_size != len as i64 {
            return Err(io::Error::other("the memory does not have the announced size"));
        }
        // Populated now, so that no page is first touched while frames are in flight.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice takes no memory from anybody.
        let start =
            unsafe { rustix::mm::mmap(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, file, 0) }?;
        let first = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Memory::Mapped(MemfdMapping { first, words }))
    }

    /// Memory private to this process.
    #[cfg(test)]
    pub(crate) fn new_private(words: usize) -> Memory {
        Memory::Plain((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    #[inline]
    pub(crate) fn as_words(&self) -> &[AtomicU64] {
        match self {
            // SAFETY: `first` begins a mapping of `words` words, page-aligned, readable and writable,
            // that lives as long as `self`, and whose file can neither shrink nor grow. Any bits are a
            // valid AtomicU64, and it allows for changes by others through shared references. This
            // program accesses the words by way of this slice alone; another process that writes them
            // by other means changes bits between two loads, which is what a load may see anyway.
            Memory::Mapped(mapping) => unsafe {
                std::slice::from_raw_parts(mapping.first.as_ptr(), mapping.words)
            },
            #[cfg(test)]
            Memory::Plain(words) => words,
        }
    }
}

impl Drop for MemfdMapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `open` made, whole, and no slice of it outlives `self`.
        // If the kernel refuses, the memory stays mapped, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), self.words * size_of::<u64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn two_mappings_of_one_file_are_one_memory_that_nobody_can_cut() {
        let (ours, file) = Memory::create_sealed(1024).unwrap();
        let theirs = Memory::open(file.as_fd(), 1024).unwrap();
        ours.as_words()[1023].store(7, Ordering::Release);
        assert_eq!(theirs.as_words()[1023].load(Ordering::Acquire), 7);
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 1 << 20).is_err());
        assert!(rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn memory_of_another_size_or_without_seals_is_refused() {
        let (_, file) = Memory::create_sealed(1024).unwrap();
        for words in [0, 512, 1023, 1025, 2048] {
            assert!(Memory::open(file.as_fd(), words).is_err(), "{words}");
        }
        let bare = rustix::fs::memfd_create("bare", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&bare, 8192).unwrap();
        assert!(Memory::open(bare.as_fd(), 1024).is_err());
        rustix::fs::fcntl_add_seals(&bare, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        assert!(Memory::open(bare.as_fd(), 1024).is_err(), "seals could be added");
        rustix::fs::fcntl_add_seals(&bare, SealFlags::SEAL).unwrap();
        Memory::open(bare.as_fd(), 1024).unwrap();
    }
}

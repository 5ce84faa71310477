//! Memory that a NIC writes while we read it.
//!
//! A [`Region`] is one store's memory: anonymous, or backed by a named shared-memory file with a self-describing
//! header, so that a restarted collector or another process finds it again. It lies in huge pages if the machine has
//! some; [`Region::page_kind`] says what it got.
//!
//! A NIC writes this memory at any time, so there is no way to get a `&[T]` into it: every access is atomic, at most
//! 8 bytes wide, and bounds-checked. `docs/decisions/region-memory.md` gives the reasons.
//!
//! - [`header`]: the header of a region file.
//! - `mapping`: getting memory from the kernel (unsafe).
//! - `access`: reading and writing it (unsafe).
//! - `pages`: what kind of pages the kernel gave.
//! - `collapse`: joining base pages into huge ones, later.
//! - `file`: creating, opening and locking region files.
//! - `last_word`: the error message when a file was truncated while in use (unsafe).

mod access;
mod collapse;
mod file;
pub mod header;
mod last_word;
mod mapping;
mod pages;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

pub use access::AccessError;
pub use header::RegionHeader;
pub use last_word::name_lost_files;

use dta_files::lock::Lock;
use mapping::{HUGE, MemoryMapping};

/// Huge pages that a region of `len` bytes takes from the pool in anonymous memory: for all of it, or none.
pub fn pool_pages(len: u64) -> u64 {
    if len.is_multiple_of(HUGE as u64) { len / HUGE as u64 } else { 0 }
}

/// The memory of one store (or any other registered memory). `Send + Sync`: held in an `Arc` by the NIC that writes
/// it and by the readers. Unmapped on drop; a file stays.
pub struct Region {
    mapping: MemoryMapping,
    /// Where the data begins in the mapping: 0, or the file header's length.
    data: usize,
    /// Bytes of data.
    len: usize,
    writable: bool,
    iova: u64,
    backing: Option<Backing>,
    /// Whether base pages should be joined into huge ones.
    huge_pages: bool,
    collapsed: AtomicBool,
    /// Looked up on first use, and again after pages were joined.
    pages: Mutex<Option<Pages>>,
}

struct Backing {
    path: PathBuf,
    /// The header, if the file is a store's; other files have formats of their own.
    header: Option<RegionHeader>,
    found: bool,
    /// Device and inode of the file, to tell it from another file at the same path.
    inode: (u64, u64),
    /// Held as long as the region lives; a reader holds none.
    _lock: Option<Lock>,
}

/// What kind of pages a region lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved huge pages (hugetlbfs or `MAP_HUGETLB`) of this many bytes each.
    Hugetlb(usize),
    /// Base pages, some of which the kernel has joined into huge pages of 2 MiB.
    Transparent {
        huge: usize,
        /// All 2 MiB pages of the region (a file's header is the first of them).
        of: usize,
    },
    Base4K,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pages::Hugetlb(bytes) => write!(f, "hugetlb {} MiB", bytes >> 20),
            Pages::Transparent { huge, of } => write!(f, "2 MiB pages: {huge} of {of}"),
            Pages::Base4K => f.write_str("4 KiB pages"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RegionOptions {
    /// Try huge pages before base pages (default); otherwise base pages only.
    pub huge_pages: bool,
}

impl Default for RegionOptions {
    fn default() -> Self {
        RegionOptions { huge_pages: true }
    }
}

/// Why a region could not be made or opened.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// A length of 0, or more than this machine can address.
    #[error("a region cannot have {len} bytes")]
    Length { len: u64 },
    #[error(
        "no memory for a region of {len} bytes: {source}; make the stores smaller, or give the machine more memory"
    )]
    Memory { len: u64, source: std::io::Error },
    /// The file system is full.
    #[error(
        "{}: no space for a region of {len} bytes: {source}; make the store smaller, or the file system larger (`mount -o remount,size=…`; on hugetlbfs, reserve more pages: `sysctl vm.nr_hugepages`)",
        path.display()
    )]
    Space {
        path: PathBuf,
        /// The requested length, header included.
        len: u64,
        source: std::io::Error,
    },
    /// Opening, sizing, locking or mapping the file failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    File { path: PathBuf, action: &'static str, source: std::io::Error },
    /// Another process holds the file's lock.
    #[error("{}: another collector has it open; stop that one, or use another directory", path.display())]
    Locked { path: PathBuf },
    /// The file is not a region file, or does not fit.
    #[error("{}: {mismatch}", path.display())]
    Mismatch {
        path: PathBuf,
        /// What does not fit.
        mismatch: header::Mismatch,
    },
}

impl Region {
    /// Anonymous memory of `len` bytes, all zero, with the wire address `iova` (0 for memory that
    /// needs none yet).
    pub fn anonymous(len: u64, iova: u64, options: RegionOptions) -> Result<Region, RegionError> {
        let size = usize::try_from(len).ok().filter(|&n| n > 0).ok_or(RegionError::Length { len })?;
        let mapping = MemoryMapping::anonymous(size, options.huge_pages)
            .map_err(|source| RegionError::Memory { len, source: source.into() })?;
        Ok(Region { iova, huge_pages: options.huge_pages, ..Region::from_mapping(mapping, size) })
    }

    /// Anonymous memory of `len` bytes, all zero, whose pages are allocated only when written: for a few elements of
    /// a store of another time.
    pub fn new_sparse(len: u64) -> Result<Region, RegionError> {
        let size = usize::try_from(len).ok().filter(|&n| n > 0).ok_or(RegionError::Length { len })?;
        let mapping = MemoryMapping::new_sparse(size)
            .map_err(|source| RegionError::Memory { len, source: source.into() })?;
        Ok(Region::from_mapping(mapping, size))
    }

    /// Writable memory of `len` bytes in base pages, from the first byte of a mapping on.
    fn from_mapping(mapping: MemoryMapping, len: usize) -> Region {
        Region {
            mapping,
            data: 0,
            len,
            writable: true,
            iova: 0,
            backing: None,
            huge_pages: false,
            collapsed: AtomicBool::new(false),
            pages: Mutex::default(),
        }
    }

    /// The region of the file `path`, created with `header` if it does not exist.
    ///
    /// An existing file must describe the same store, in this version and byte order and at full
    /// length; its generation and address are then the file's (see [`Region::file_header`],
    /// [`Region::is_preexisting`]). The file is locked (`flock`) while the region lives.
    pub fn open_or_create(
        path: impl AsRef<Path>,
        header: &RegionHeader,
        options: RegionOptions,
    ) -> Result<Region, RegionError> {
        file::open_or_create(path.as_ref(), header, options)
    }

    /// A new region to replace the file `path`, made beside it with the extension `region-new`.
    pub(crate) fn successor(
        path: impl AsRef<Path>,
        header: &RegionHeader,
        options: RegionOptions,
    ) -> Result<Region, RegionError> {
        file::successor(path.as_ref(), header, options)
    }

    /// Puts the file of [`Region::successor`] in place of the file `path`: whoever opens the path finds the old or
    /// the new file whole. The old one stays as `former`, if given; otherwise it is gone once nobody has it open.
    pub(crate) fn replace_region_file(
        &mut self,
        path: &Path,
        former: Option<&Path>,
    ) -> Result<(), RegionError> {
        file::replace_region_file(self.backing.as_mut(), path, former)
    }

    /// The region of the file that replaced this one's, for reading; `None` if none has.
    ///
    /// # Errors
    /// The file cannot be read, or it is still this one's and was truncated.
    pub(crate) fn open_replacement(&self) -> Result<Option<Region>, RegionError> {
        match &self.backing {
            Some(backing)
                if file::is_another(&backing.path, backing.inode, (self.data + self.len) as u64)? =>
            {
                Region::open_read_only(&backing.path).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The region of an existing file, for reading, while another process may write it. Takes no lock.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Region, RegionError> {
        file::open_read_only(path.as_ref())
    }

    /// The first `len` bytes of a file with another format, created and extended with zeros as needed; locked while
    /// the region lives.
    pub(crate) fn open_plain(path: &Path, len: usize) -> Result<Region, RegionError> {
        file::open_plain(path, len)
    }

    /// Logs that the region of [`Region::open_plain`] starts empty although its file existed.
    pub(crate) fn warn_of_blank(&self) {
        if let Some(backing) = self.backing.as_ref().filter(|backing| backing.found) {
            file::warn_of_blank(&backing.path);
        }
    }

    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// The region's address on the wire, aligned to its size.
    pub fn wire_address(&self) -> u64 {
        self.iova
    }

    /// The kind of pages that it lies in. The first call may take long in a process with much memory: see
    /// [`Region::look_up_pages`].
    pub fn page_kind(&self) -> Pages {
        Region::look_up_pages([self]);
        self.known_pages().unwrap_or(Pages::Base4K)
    }

    fn known_pages(&self) -> Option<Pages> {
        *self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up the kinds of pages of many regions, for [`Region::page_kind`], in the time that one lookup takes.
    pub fn look_up_pages<'r>(regions: impl IntoIterator<Item = &'r Region>) {
        Region::look_up_pages_again(regions.into_iter().filter(|region| region.known_pages().is_none()));
    }

    /// Like [`Region::look_up_pages`], but also for regions whose pages are known: some may have been joined since.
    pub fn look_up_pages_again<'r>(regions: impl IntoIterator<Item = &'r Region>) {
        let set = |region: &Region, pages| {
            *region.pages.lock().unwrap_or_else(PoisonError::into_inner) = Some(pages)
        };
        let (reserved, others): (Vec<&Region>, _) =
            regions.into_iter().partition(|r| matches!(r.mapping.page_kind(), Pages::Hugetlb(_)));
        for region in reserved {
            set(region, region.mapping.page_kind());
        }
        if others.is_empty() {
            return;
        }
        let starts: Vec<usize> = others.iter().map(|r| r.mapping.start_address().addr()).collect();
        for (region, bytes) in others.into_iter().zip(pages::transparent(&starts)) {
            let (huge, of) = (bytes / HUGE, (region.data + region.len) / HUGE);
            set(region, if huge > 0 { Pages::Transparent { huge, of } } else { Pages::Base4K });
        }
    }

    /// The file's header, if the region has a file.
    pub fn file_header(&self) -> Option<&RegionHeader> {
        self.backing.as_ref().and_then(|b| b.header.as_ref())
    }

    /// The file's path, if the region has a file.
    pub fn file_path(&self) -> Option<&Path> {
        self.backing.as_ref().map(|b| b.path.as_path())
    }

    /// Whether the file already existed (with data of an earlier run).
    pub fn is_preexisting(&self) -> bool {
        self.backing.as_ref().is_some_and(|b| b.found)
    }

    /// Whether it may be written: false after [`Region::open_read_only`].
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Address of the first byte in this process, for registration with a NIC. Only the NIC dereferences it: in this
    /// program all access goes through the methods of this type.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.start_address().wrapping_add(self.data)
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len)
            .field("pages", &self.page_kind())
            .field("path", &self.file_path())
            .finish_non_exhaustive()
    }
}

/// The wire address of a store's region of `len` bytes: it depends only on the store's id and generation, so that a
/// restart does not change it. Regions of up to 1 TiB overlap neither between stores nor between 128 consecutive
/// generations of a store. Aligned to `len`, a power of two.
pub fn wire_address_for(store: u16, len: u64, generation: u64) -> u64 {
    // Ids take bits 40 to 56.
    let turn = (generation.max(1) - 1) % 128;
    let base = ((u64::from(store) + 1) << 40) | (turn << 57);
    base.next_multiple_of(len.max(1))
}

#[cfg(test)]
mod tests;

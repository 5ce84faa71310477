//! Creating, opening and locking region files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::header::{self, HEADER_LEN, Mismatch, ParsedHeader, RegionHeader};
use super::mapping::{HUGE, MemoryMapping};
use super::{Backing, Region, RegionError, RegionOptions};
use dta_files::lock::Lock;
use dta_files::own_file;

/// `statfs` type of hugetlbfs.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// How long a collector that has just stopped may take until its last call releases the memory.
const LETTING_GO: Duration = Duration::from_secs(2);
/// How often a locked file is retried within that time.
const AGAIN: Duration = Duration::from_millis(10);

pub(super) fn open_or_create(
    path: &Path,
    wanted: &RegionHeader,
    options: RegionOptions,
) -> Result<Region, RegionError> {
    let fail = |action| move |source| RegionError::File { path: path.to_owned(), action, source };
    let lock = open_locked(path)?;
    let file = lock.locked_file();
    let huge_file = huge_page(file);
    let found = match read_header(file, path)? {
        Some(found) if found.header.spec == wanted.spec => Some(found),
        Some(found) => {
            let mismatch =
                Mismatch::Store { file: Box::new(found.header.spec), wanted: Box::new(wanted.spec.clone()) };
            return Err(RegionError::Mismatch { path: path.to_owned(), mismatch });
        }
        None => None,
    };
    let (header, data_offset, data_len, was_there) = match found {
        Some(found) => (found.header, found.data_offset, found.data_len, true),
        None => {
            let len = wanted.spec.region_len();
            (wanted.clone(), data_offset_for(len, huge_file.is_some()), len, false)
        }
    };
    let len = |bytes| usize::try_from(bytes).map_err(|_| RegionError::Length { len: data_len });
    let (data, data_len) = (len(data_offset)?, len(data_len)?);
    let total = data
        .checked_add(data_len)
        .and_then(|total| whole_pages(total, huge_file))
        .ok_or(RegionError::Length { len: data_len as u64 })?;
    if !was_there {
        if file.metadata().map_err(fail("read its size"))?.len() > 0 {
            warn_of_blank(path);
        }
        // Check before filling the file: a tmpfs shares the machine's memory, and pages are made below until one
        // fails. A file system without a limit reports 0 blocks.
        let free = rustix::fs::fstatvfs(file).ok().filter(|fs| fs.f_blocks > 0);
        if free.is_some_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) < total as u64) {
            let _ = std::fs::remove_file(path);
            let source = Errno::NOSPC.into();
            return Err(RegionError::Space { path: path.to_owned(), len: total as u64, source });
        }
        // Truncated first, so that leftovers of an interrupted creation do not show through.
        file.set_len(0).and_then(|()| file.set_len(total as u64)).map_err(fail("set its size"))?;
    }
    let mapping =
        MemoryMapping::from_file(file, total, true, options.huge_pages, huge_file).map_err(|e| match e {
            Errno::NOSPC | Errno::NOMEM => {
                if !was_there {
                    // Leave no half-made file behind; it holds nothing.
                    let _ = std::fs::remove_file(path);
                }
                RegionError::Space { path: path.to_owned(), len: total as u64, source: e.into() }
            }
            e => fail("map it")(e.into()),
        })?;
    let iova = header.iova;
    let mut region = Region { iova, huge_pages: options.huge_pages, ..Region::from_mapping(mapping, total) };
    if !was_there {
        // Through the mapping, because hugetlbfs has no write(2).
        let (bytes, magic) = header::encode_header(&header, data_offset);
        let written = region.write(0, &bytes).and_then(|()| region.write(0, &magic));
        written.map_err(|e| fail("write its header")(io::Error::other(e)))?;
    }
    region.data = data;
    region.len = data_len;
    let inode = file_identity(lock.locked_file()).map_err(fail("read its number"))?;
    region.backing = Some(Backing {
        path: path.to_owned(),
        header: Some(header),
        found: was_there,
        inode,
        _lock: Some(lock),
    });
    Ok(region)
}

pub(super) fn successor(
    path: &Path,
    header: &RegionHeader,
    options: RegionOptions,
) -> Result<Region, RegionError> {
    let new = path.with_extension("region-new");
    let fail = |action| move |source| RegionError::File { path: path.to_owned(), action, source };
    // A leftover of an earlier collector that stopped before it put the file in place.
    match std::fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            return Err(fail("create a replacement next to it")(e));
        }
        _ => {}
    }
    open_or_create(&new, header, options)
}

pub(super) fn replace_region_file(
    backing: Option<&mut Backing>,
    path: &Path,
    former: Option<&Path>,
) -> Result<(), RegionError> {
    let Some(backing) = backing else { return Ok(()) };
    let fail = |action| move |source| RegionError::File { path: path.to_owned(), action, source };
    if let Some(former) = former {
        // Adds the second name first, so that the path always leads to a whole region.
        std::fs::hard_link(path, former).map_err(fail("keep it under another name"))?;
    }
    std::fs::rename(&backing.path, path).map_err(fail("replace it"))?;
    backing.path = path.to_owned();
    Ok(())
}

/// Whether `path` leads to a different file than `than`; a path that leads nowhere does not. It is an error if the
/// file is the same, but shorter than `wants` bytes.
pub(super) fn is_another(path: &Path, than: (u64, u64), wants: u64) -> Result<bool, RegionError> {
    match std::fs::metadata(path) {
        Ok(found) if (found.dev(), found.ino()) != than => Ok(true),
        Ok(found) if found.len() < wants => Err(RegionError::Mismatch {
            path: path.to_owned(),
            mismatch: Mismatch::Truncated { has: found.len(), wants },
        }),
        Ok(_) => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => {
            Err(RegionError::File { path: path.to_owned(), action: "look for another one", source })
        }
    }
}

fn file_identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|found| (found.dev(), found.ino()))
}

pub(super) fn open_read_only(path: &Path) -> Result<Region, RegionError> {
    let fail = |action| move |source| RegionError::File { path: path.to_owned(), action, source };
    let file = own_file::open_to_read(path).map_err(fail("open it"))?;
    let huge_file = huge_page(&file);
    let Some(ParsedHeader { header, data_offset, data_len }) = read_header(&file, path)? else {
        return Err(RegionError::Mismatch { path: path.to_owned(), mismatch: Mismatch::NotARegion });
    };
    let len = |bytes| usize::try_from(bytes).map_err(|_| RegionError::Length { len: data_len });
    let (data, data_len) = (len(data_offset)?, len(data_len)?);
    let total = data
        .checked_add(data_len)
        .and_then(|total| whole_pages(total, huge_file))
        .ok_or(RegionError::Length { len: data_len as u64 })?;
    let mapping = MemoryMapping::from_file(&file, total, false, false, huge_file)
        .map_err(|e| fail("map it")(e.into()))?;
    let iova = header.iova;
    let inode = file_identity(&file).map_err(fail("read its number"))?;
    let backing =
        Some(Backing { path: path.to_owned(), header: Some(header), found: true, inode, _lock: None });
    Ok(Region { data, writable: false, iova, backing, ..Region::from_mapping(mapping, data_len) })
}

pub(super) fn open_plain(path: &Path, len: usize) -> Result<Region, RegionError> {
    let fail = |action| move |source| RegionError::File { path: path.to_owned(), action, source };
    let lock = open_locked(path)?;
    let file = lock.locked_file();
    let huge_file = huge_page(file);
    let total = whole_pages(len, huge_file).ok_or(RegionError::Length { len: len as u64 })?;
    let has = file.metadata().map_err(fail("read its size"))?.len();
    if (1..total as u64).contains(&has) {
        // Created at full length in one step: a shorter file has been cut, and what is missing was not zeros.
        let mismatch = Mismatch::Truncated { has, wants: total as u64 };
        return Err(RegionError::Mismatch { path: path.to_owned(), mismatch });
    }
    if has == 0 {
        file.set_len(total as u64).map_err(fail("set its size"))?;
    }
    let mapping = MemoryMapping::from_file(file, total, true, false, huge_file).map_err(|e| match e {
        Errno::NOSPC | Errno::NOMEM => {
            RegionError::Space { path: path.to_owned(), len: len as u64, source: e.into() }
        }
        e => fail("map it")(e.into()),
    })?;
    let inode = file_identity(lock.locked_file()).map_err(fail("read its number"))?;
    let backing =
        Some(Backing { path: path.to_owned(), header: None, found: has > 0, inode, _lock: Some(lock) });
    Ok(Region { backing, ..Region::from_mapping(mapping, len) })
}

/// Opens or creates a file, and locks it, retrying for [`LETTING_GO`]. An existing empty file is logged: its creator
/// sets its size while holding the lock, or removes the file again.
fn open_locked(path: &Path) -> Result<Lock, RegionError> {
    let fail = |action| move |source| RegionError::File { path: path.to_owned(), action, source };
    let until = Instant::now() + LETTING_GO;
    let mut is_ours = false;
    loop {
        // Only the owner may read what the network reported.
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        let file = match own_file::open(path, options.clone().create_new(true)) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                own_file::open(path, options.create(true).truncate(false))
            }
            created => {
                is_ours |= created.is_ok();
                created
            }
        };
        let file = file.map_err(fail("open or create it"))?;
        match Lock::take(file).map_err(fail("lock it"))? {
            Some(lock) => {
                let has = lock.locked_file().metadata().map_err(fail("read its size"))?.len();
                if has == 0 && !is_ours {
                    tracing::warn!(
                        path = %path.display(),
                        "the file is empty, as after a power loss or a truncation: its contents are lost, and it is created again"
                    );
                }
                return Ok(lock);
            }
            None if Instant::now() > until => return Err(RegionError::Locked { path: path.to_owned() }),
            None => std::thread::sleep(AGAIN),
        }
    }
}

/// Logs that a file with a length but no header is created again.
pub(super) fn warn_of_blank(path: &Path) {
    tracing::warn!(
        path = %path.display(),
        "the file is not empty, but its header is zeros, as after a power loss or an interrupted creation: its contents are lost, \
         and it is created again"
    );
}

/// The header of an existing file, whose length must fit it; `None` for a new file.
fn read_header(file: &File, path: &Path) -> Result<Option<ParsedHeader>, RegionError> {
    let fail = |action| move |source| RegionError::File { path: path.to_owned(), action, source };
    let mismatch = |mismatch| RegionError::Mismatch { path: path.to_owned(), mismatch };
    let has = file.metadata().map_err(fail("read its size"))?.len();
    if has == 0 {
        return Ok(None);
    }
    let mut bytes = [0; HEADER_LEN];
    if has < HEADER_LEN as u64 {
        // Too short for a header; for another kind of file, report that rather than how short it is.
        let mut file = file;
        let begun = file.read(&mut bytes).map_err(fail("read it"))?;
        let is_ours = bytes[..begun.min(7)] == b"DTAREGN"[..begun.min(7)];
        return Err(mismatch(if is_ours {
            Mismatch::Truncated { has, wants: HEADER_LEN as u64 }
        } else {
            Mismatch::NotARegion
        }));
    }
    file.read_exact_at(&mut bytes, 0).map_err(fail("read its header"))?;
    let Some(found) = header::decode_header(&bytes).map_err(mismatch)? else { return Ok(None) };
    let wants = found.data_offset.saturating_add(found.data_len);
    if has < wants {
        return Err(mismatch(Mismatch::Truncated { has, wants }));
    }
    Ok(Some(found))
}

/// Where the data begins: after a whole huge page if the data can lie in huge pages, else after the header.
fn data_offset_for(len: u64, huge_file: bool) -> u64 {
    if huge_file || len >= HUGE as u64 { HUGE as u64 } else { HEADER_LEN as u64 }
}

/// Page size of the file, if it lies in hugetlbfs.
fn huge_page(file: &File) -> Option<usize> {
    let fs = rustix::fs::fstatfs(file).ok().filter(|fs| fs.f_type == HUGETLBFS_MAGIC)?;
    usize::try_from(fs.f_bsize).ok().filter(|page| page.is_power_of_two())
}

/// `len` rounded up to whole pages, for a file in hugetlbfs: the kernel maps and unmaps only whole pages there.
fn whole_pages(len: usize, huge_page: Option<usize>) -> Option<usize> {
    huge_page.map_or(Some(len), |page| len.checked_next_multiple_of(page))
}

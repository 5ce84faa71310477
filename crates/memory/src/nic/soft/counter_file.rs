//! Counters in a file next to the regions: they survive a kill, and the next process continues them.
//!
//! ```text
//! offset  bytes
//!  0      8     magic "DTACNTR\0"
//!  8      4     version, little-endian: 1
//! 12      4     0x01020304 in the writer's byte order, which the numbers use too
//! 16      4     number of entries, little-endian
//! 20      12    0
//! 32      32    the device's name, UTF-8, zeros after it
//! 64      64·n  entries: name (48 bytes, UTF-8, zeros after it), number (u64), 8 bytes 0
//! ```
//!
//! Entries carry their names, so a program with other counters continues those that it knows and keeps the rest. The
//! counting process holds the file locked and mapped, and stores its counts after each batch; others read the file.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::region::{Region, RegionError, RegionOptions};
use dta_files::own_file;

/// Version of the file that this program reads and writes.
pub const VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"DTACNTR\0";
const BYTE_ORDER_MARK: u32 = 0x0102_0304;
const HEADER: usize = 64;
const ENTRY: usize = 64;
const NAME: usize = 48;
const DEVICE: std::ops::Range<usize> = 32..64;
/// Room for 255 entries.
const FILE_LEN: usize = 16384;

/// Why a counter file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CounterFileError {
    /// Opening, locking or mapping it failed.
    #[error(transparent)]
    File(#[from] RegionError),
    #[error("{}: cannot read the counters: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It is not a counter file of this program.
    #[error("{}: {what}; move it away to start counting from 0", path.display())]
    Mismatch {
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// More counters than the file holds.
    #[error("{}: no room for counter `{name}`", path.display())]
    Full {
        path: PathBuf,
        /// The first counter that did not fit.
        name: String,
    },
}

/// The counters of one device, in a file or in plain memory. One process counts; any thread may read.
#[derive(Debug)]
pub struct CounterFile {
    region: Region,
    names: Vec<String>,
}

impl CounterFile {
    /// Opens or creates the file of `device` with the counters `names` (at most 47 bytes each). Existing numbers
    /// under these names are continued, others kept. Without a path, the counters live in memory and begin at 0.
    ///
    /// # Errors
    /// The file is another program's, or of another version or byte order; another process counts in it; or it cannot
    /// be opened.
    pub fn open(path: Option<&Path>, device: &str, names: &[&str]) -> Result<CounterFile, CounterFileError> {
        let Some(path) = path else {
            let options = RegionOptions { huge_pages: false };
            let region = Region::anonymous(FILE_LEN as u64, 0, options)?;
            return Ok(CounterFile { region, names: names.iter().map(|&n| n.to_owned()).collect() });
        };
        let region = Region::open_plain(path, FILE_LEN)?;
        let mut bytes = vec![0; FILE_LEN];
        let unreadable = |error| mismatch_error(path, format!("{error}"));
        region.read(0, &mut bytes).map_err(unreadable)?;
        let old = if bytes[..8] == [0; 8] && !bytes[8..HEADER].iter().any(|&b| b != 0) {
            region.warn_of_blank();
            Vec::new()
        } else {
            parse_counters(&bytes, path)?
        };
        let mut all: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        all.extend(old.iter().map(|(n, _)| n.clone()).filter(|n| !names.contains(&n.as_str())));
        if all.len() > (FILE_LEN - HEADER) / ENTRY {
            return Err(CounterFileError::Full {
                path: path.to_owned(),
                name: all.pop().unwrap_or_default(),
            });
        }
        let known: BTreeMap<_, _> = old.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        if old.iter().map(|(n, _)| n).ne(&all) {
            // Another set of counters: the file is rewritten. The magic goes last, so an interruption may lose
            // numbers but never leaves a wrong file.
            region.write(0, &[0; 8]).map_err(unreadable)?;
            let mut fresh = vec![0; FILE_LEN];
            fresh[8..12].copy_from_slice(&VERSION.to_le_bytes());
            fresh[12..16].copy_from_slice(&BYTE_ORDER_MARK.to_ne_bytes());
            fresh[16..20].copy_from_slice(&(all.len() as u32).to_le_bytes());
            let cut = device.len().min(DEVICE.len());
            fresh[DEVICE][..cut].copy_from_slice(&device.as_bytes()[..cut]);
            for (entry, name) in fresh[HEADER..].chunks_exact_mut(ENTRY).zip(&all) {
                let cut = name.len().min(NAME - 1);
                entry[..cut].copy_from_slice(&name.as_bytes()[..cut]);
                let value = known.get(name.as_str()).copied().unwrap_or(0);
                entry[NAME..NAME + 8].copy_from_slice(&value.to_ne_bytes());
            }
            region.write(8, &fresh[8..]).and_then(|()| region.write(0, &MAGIC)).map_err(unreadable)?;
        }
        Ok(CounterFile { region, names: all })
    }

    /// The counter at `index` of the names given to [`CounterFile::open`]; 0 beyond them.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.region.load_u64(value_offset(index)).unwrap_or(0)
    }

    /// Adds to a counter that several threads share. Does nothing beyond the names.
    #[inline]
    pub fn add(&self, index: usize, more: u64) {
        let _ = self.region.fetch_add(value_offset(index), more);
    }

    /// Stores a number. Does nothing beyond the names.
    #[inline]
    pub fn store_value(&self, index: usize, value: u64) {
        // The file has room for every name, and place() is aligned.
        let _ = self.region.store_u64(value_offset(index), value);
    }

    pub fn named_counters(&self) -> Vec<(String, u64)> {
        self.names.iter().enumerate().map(|(i, n)| (n.clone(), self.load(i))).collect()
    }

    /// One counter of a file, to be read repeatedly; `None` if the file does not have it.
    pub fn watch_counter(path: &Path, name: &str) -> Result<Option<CounterWatch>, CounterFileError> {
        let (_, counters) = CounterFile::read(path)?;
        let Some(index) = counters.iter().position(|(found, _)| found == name) else { return Ok(None) };
        let file = std::fs::File::open(path)
            .map_err(|source| CounterFileError::Read { path: path.to_owned(), source })?;
        Ok(Some(CounterWatch { file, at: value_offset(index) }))
    }

    /// The device and counters of a file, whether or not a process counts in it.
    ///
    /// # Errors
    /// The file cannot be read, or is not a counter file of this version and byte order.
    pub fn read(path: &Path) -> Result<(String, Vec<(String, u64)>), CounterFileError> {
        let bytes = own_file::read(path)
            .map_err(|source| CounterFileError::Read { path: path.to_owned(), source })?;
        let counters = parse_counters(&bytes, path)?;
        Ok((text_until_zero(&bytes[DEVICE]), counters))
    }
}

#[derive(Debug)]
pub struct CounterWatch {
    file: std::fs::File,
    at: u64,
}

impl CounterWatch {
    pub fn load(&self) -> std::io::Result<u64> {
        let mut number = [0; 8];
        self.file.read_exact_at(&mut number, self.at)?;
        Ok(u64::from_ne_bytes(number))
    }
}

fn value_offset(index: usize) -> u64 {
    (HEADER + index * ENTRY + NAME) as u64
}

fn mismatch_error(path: &Path, what: String) -> CounterFileError {
    CounterFileError::Mismatch { path: path.to_owned(), what }
}

fn parse_counters(bytes: &[u8], path: &Path) -> Result<Vec<(String, u64)>, CounterFileError> {
    let fail = |what: String| Err(mismatch_error(path, what));
    if bytes.get(..8) != Some(&MAGIC) {
        return fail("not a counter file (no magic \"DTACNTR\")".into());
    }
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return fail(format!("cut off at {} bytes", bytes.len()));
    };
    let u32_at = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
    let version = u32::from_le_bytes(u32_at(8));
    if version != VERSION {
        return fail(format!("version {version}, this program reads version {VERSION}"));
    }
    if u32_at(12) != BYTE_ORDER_MARK.to_ne_bytes() {
        return fail("written on a machine of the other byte order".into());
    }
    let count = u32::from_le_bytes(u32_at(16)) as usize;
    let Some(entries) = count.checked_mul(ENTRY).and_then(|len| bytes[HEADER..].get(..len)) else {
        return fail(format!("cut off: {} bytes for {count} counters", bytes.len()));
    };
    Ok(entries
        .chunks_exact(ENTRY)
        .map(|entry| {
            let mut value = [0; 8];
            value.copy_from_slice(&entry[NAME..NAME + 8]);
            (text_until_zero(&entry[..NAME]), u64::from_ne_bytes(value))
        })
        .collect())
}

/// Text up to the first zero.
fn text_until_zero(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&b| b == 0).next().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, u64)]) -> Vec<(String, u64)> {
        list.iter().map(|&(n, v)| (n.to_owned(), v)).collect()
    }

    #[test]
    fn numbers_are_continued_and_unknown_ones_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nic.counters");
        let file = CounterFile::open(Some(&path), "soft", &["a", "b"]).unwrap();
        file.store_value(0, 5);
        file.store_value(1, 7);
        // Readable while in use, but not by a second counting process.
        assert_eq!(CounterFile::read(&path).unwrap(), ("soft".into(), pairs(&[("a", 5), ("b", 7)])));
        assert!(matches!(
            CounterFile::open(Some(&path), "soft", &["a"]),
            Err(CounterFileError::File(RegionError::Locked { .. }))
        ));
        drop(file);
        let file = CounterFile::open(Some(&path), "soft", &["a", "b"]).unwrap();
        assert_eq!(file.named_counters(), pairs(&[("a", 5), ("b", 7)]));
        drop(file);
        let file = CounterFile::open(Some(&path), "soft", &["b", "c"]).unwrap();
        assert_eq!(file.named_counters(), pairs(&[("b", 7), ("c", 0), ("a", 5)]));
        file.store_value(1, 9);
        let watch = |name| CounterFile::watch_counter(&path, name).unwrap();
        assert_eq!(watch("c").unwrap().load().unwrap(), 9);
        assert!(watch("d").is_none());
        assert_eq!(CounterFile::read(&path).unwrap().1, pairs(&[("b", 7), ("c", 9), ("a", 5)]));
    }

    #[test]
    fn another_version_byte_order_or_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nic.counters");
        for (at, bytes, says) in [
            (8, 2u32.to_le_bytes(), "version 2"),
            (12, BYTE_ORDER_MARK.swap_bytes().to_ne_bytes(), "byte order"),
            (0, *b"ELF\0", "not a counter file"),
            (16, 9999u32.to_le_bytes(), "cut off"),
        ] {
            drop(CounterFile::open(Some(&path), "soft", &["a"]).unwrap());
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&bytes, at).unwrap();
            for error in [
                CounterFile::open(Some(&path), "soft", &["a"]).unwrap_err().to_string(),
                CounterFile::read(&path).unwrap_err().to_string(),
            ] {
                assert!(error.contains(says) && error.contains("nic.counters"), "{error}");
            }
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn without_a_file_they_live_in_memory() {
        let file = CounterFile::open(None, "soft", &["a"]).unwrap();
        file.store_value(0, 3);
        assert_eq!(file.named_counters(), pairs(&[("a", 3)]));
    }

    #[test]
    fn a_file_cut_short_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nic.counters");
        let file = CounterFile::open(Some(&path), "soft", &["a", "b"]).unwrap();
        file.store_value(1, 7);
        drop(file);
        let whole = std::fs::read(&path).unwrap();
        for len in [1, 8, 63, 64, 100, 128, 191, 192, 4096, whole.len() - 1] {
            std::fs::write(&path, &whole[..len]).unwrap();
            let error = CounterFile::open(Some(&path), "soft", &["a", "b"]).unwrap_err().to_string();
            assert!(error.contains("cut off") && error.contains("nic.counters"), "{len}: {error}");
            assert_eq!(std::fs::read(&path).unwrap(), &whole[..len]);
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(CounterFile::open(Some(&path), "soft", &["a", "b"]).unwrap().load(1), 7);
    }
}

//! Records on disk, and how to find the next one after damage.
//!
//! A record begins at a multiple of [`ALIGN`] bytes in its segment, and is bound to that place: the checksum of its head
//! covers the number of the segment and the offset. So the next record is found without the length of a damaged one, and
//! neither bytes of a body nor a block that a disk wrote to the wrong place are mistaken for one.
//!
//! ```text
//! offset  bytes
//!  0      8     magic "DTASPL", version 2 (u16, little-endian)
//!  8      4     bytes of the head, little-endian
//! 12      4     CRC-32 (ISO-HDLC), little-endian, of: the segment's number and the offset (u64 each, little-endian), the head
//! 16      n     head: JSON
//! 16+n    m     body: the head has its length and CRC-32
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Checkpoint;

pub(super) const ALIGN: u64 = 512;
const MAGIC: [u8; 8] = *b"DTASPL\x02\0";
const FRONT: usize = 16;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RecordHead {
    /// Bytes of the body.
    pub(super) bytes: u64,
    /// CRC-32 of the body.
    pub(super) crc: u32,
    /// Points added to the spool before this record, since it was created. If records in between are gone, this says how many
    /// points they had.
    pub(super) before: u64,
    pub(super) points: u64,
    #[serde(flatten)]
    pub(super) kept: Checkpoint,
}

#[derive(Debug)]
pub(super) struct SegmentRecord {
    pub(super) head: RecordHead,
    pub(super) body: Vec<u8>,
    /// Where it begins in its segment.
    pub(super) at: u64,
    pub(super) end: u64,
}

/// An encoded head with its prefix, for the place `at` of a segment.
pub(super) fn encode_head(head: &impl Serialize, segment: u64, at: u64) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    let length = u32::try_from(head.len()).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(FRONT + head.len());
    bytes.extend(MAGIC);
    bytes.extend(length.to_le_bytes());
    bytes.extend(head_checksum(&head, segment, at).to_le_bytes());
    bytes.extend(head);
    Ok(bytes)
}

/// The head at a place of a segment, whose file is valid up to `until`, and where it ends; `None` if there is no
/// complete one.
pub(super) fn read_head<T: DeserializeOwned>(
    file: &File,
    segment: u64,
    at: u64,
    until: u64,
) -> io::Result<Option<(T, u64)>> {
    let Some(front) = read(file, at, FRONT as u64, until)?.filter(|front| front.starts_with(&MAGIC)) else {
        return Ok(None);
    };
    let word = |i: usize| u32::from_le_bytes([front[i], front[i + 1], front[i + 2], front[i + 3]]);
    let (length, begin) = (word(8).into(), at + FRONT as u64);
    let head = read(file, begin, length, until)?.filter(|head| head_checksum(head, segment, at) == word(12));
    Ok(head.and_then(|head| Some((serde_json::from_slice(&head).ok()?, begin + length))))
}

/// The first valid record of a segment in `from..until`.
pub(super) fn next(file: &File, segment: u64, from: u64, until: u64) -> io::Result<Option<SegmentRecord>> {
    let mut at = from.next_multiple_of(ALIGN);
    while at < until {
        if let Some((head, begin)) = read_head::<RecordHead>(file, segment, at, until)?
            && let Some(body) = read(file, begin, head.bytes, until)?
            && crc32fast::hash(&body) == head.crc
        {
            let end = begin + head.bytes;
            return Ok(Some(SegmentRecord { head, body, at, end }));
        }
        at += ALIGN;
    }
    Ok(None)
}

/// The last valid record of a segment in `from..until`.
pub(super) fn last_record(
    file: &File,
    segment: u64,
    from: u64,
    until: u64,
) -> io::Result<Option<SegmentRecord>> {
    let mut last = None;
    let mut at = from;
    while let Some(found) = next(file, segment, at, until)? {
        at = found.end;
        last = Some(found);
    }
    Ok(last)
}

fn head_checksum(head: &[u8], segment: u64, at: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&segment.to_le_bytes());
    crc.update(&at.to_le_bytes());
    crc.update(head);
    crc.finalize()
}

/// Bytes of a file; `None` if they reach beyond `until` or the end of the file, or the disk cannot read them.
fn read(file: &File, at: u64, length: u64, until: u64) -> io::Result<Option<Vec<u8>>> {
    if at.checked_add(length).is_none_or(|end| end > until) {
        return Ok(None);
    }
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    match file.read_exact_at(&mut bytes, at) {
        Ok(()) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => Ok(None),
        Err(error) => Err(error),
    }
}

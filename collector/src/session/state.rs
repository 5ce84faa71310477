//! What survives a kill: leases, and the counters that translators handed in, in small files next to the
//! regions. Each file is replaced as a whole.
//!
//! ```text
//! offset  bytes
//!  0      8     magic "DTASTAT\0"
//!  8      4     version, little-endian: 1
//! 12      4     CRC-32 (ISO-HDLC) of the body, little-endian
//! 16      n     body: bincode 2, standard configuration
//! ```

use std::path::{Path, PathBuf};

use bincode::{Decode, Encode};
use dta_proto::crc;

use dta_files::own_file;

const MAGIC: [u8; 8] = *b"DTASTAT\0";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 16;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{}: cannot {action}: {source}", path.display())]
    File { path: PathBuf, action: &'static str, source: std::io::Error },
    /// The file is invalid.
    #[error("{}: {reason}; remove it to start without its sessions and statistics", path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// Replaces the file by `value`. Readers see either the old or the new one, complete.
pub(crate) fn save_state(path: &Path, value: &impl Encode) -> Result<(), StateError> {
    write_state(path, &encode_state(path, value)?)
}

/// The bytes that [`write_state`] needs for `value`.
pub(crate) fn encode_state(path: &Path, value: &impl Encode) -> Result<Vec<u8>, StateError> {
    let body = bincode::encode_to_vec(value, bincode::config::standard()).map_err(|e| {
        StateError::Damaged { path: path.to_owned(), reason: format!("cannot be encoded: {e}") }
    })?;
    let mut bytes = Vec::with_capacity(HEADER_LEN + body.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(crc::crc32(&body).to_le_bytes());
    bytes.extend(body);
    Ok(bytes)
}

/// Replaces the file by the bytes from [`encode_state`]. It is on disk when this returns, so this may take long.
pub(crate) fn write_state(path: &Path, bytes: &[u8]) -> Result<(), StateError> {
    own_file::replace_file(path, bytes).map_err(|source| StateError::File {
        path: path.to_owned(),
        action: "replace it",
        source,
    })
}

/// Reads a file that [`save_state`] wrote; `None` if there is none.
pub(crate) fn load<T: Decode<()>>(path: &Path) -> Result<Option<T>, StateError> {
    let bytes = match own_file::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StateError::File { path: path.to_owned(), action: "read it", source }),
    };
    let damaged = |reason: String| StateError::Damaged { path: path.to_owned(), reason };
    let word = |at: usize| bytes.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("4 bytes")));
    if bytes.get(..8) != Some(&MAGIC[..]) {
        return Err(damaged("is not a state file of this program".into()));
    }
    match word(8) {
        Some(VERSION) => {}
        version => {
            return Err(damaged(format!(
                "has version {}, this program reads version {VERSION}",
                version.map_or("none".into(), |v| v.to_string())
            )));
        }
    }
    let body = bytes.get(HEADER_LEN..).unwrap_or_default();
    if word(12) != Some(crc::crc32(body)) {
        return Err(damaged("is damaged (checksum)".into()));
    }
    let (value, used) = bincode::decode_from_slice(body, bincode::config::standard())
        .map_err(|e| damaged(format!("is damaged ({e})")))?;
    if used != body.len() {
        return Err(damaged("is damaged (length)".into()));
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.bin");
        assert_eq!(load::<Vec<u64>>(&path).unwrap(), None);
        let value = vec![1u64, 2, 1 << 40];
        save_state(&path, &value).unwrap();
        save_state(&path, &value).unwrap();
        assert_eq!(load(&path).unwrap(), Some(value));

        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            let error = load::<Vec<u64>>(&path).unwrap_err().to_string();
            assert!(error.contains("state.bin") && error.contains("remove it"), "byte {at}: {error}");
        }
        for len in 0..good.len() {
            std::fs::write(&path, &good[..len]).unwrap();
            assert!(load::<Vec<u64>>(&path).is_err(), "cut to {len}");
        }
    }
}

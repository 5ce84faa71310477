//! Reading files named by a user.

use std::fs::{File, FileType, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Largest configuration in bytes. A file with many thousands of stores takes a tenth of it.
pub const LARGEST_TEXT: u64 = 16 << 20;

/// Reads a configuration, from a regular file only: a device or a pipe may never end, or never start.
///
/// # Errors
/// The system's error; or it is not a regular file, has more than [`LARGEST_TEXT`] bytes, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let file = open(path, |about| about.is_file())?;
    let mut text = String::new();
    // One byte more than allowed: a file can grow while it is read, and one in /proc claims to be empty.
    file.take(LARGEST_TEXT + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST_TEXT {
        let mib = LARGEST_TEXT >> 20;
        return Err(io::Error::new(
            ErrorKind::FileTooLarge,
            format!("it is larger than {mib} MiB, too large for a configuration"),
        ));
    }
    Ok(text)
}

/// Opens a file if `takes` accepts its kind, without waiting.
///
/// # Errors
/// The system's error, or the kind of file if it is not accepted.
pub fn open(path: &Path, takes: impl Fn(&Metadata) -> bool) -> io::Result<File> {
    // Checked before opening: opening a pipe waits for a writer.
    let about = std::fs::metadata(path)?;
    if !takes(&about) {
        let what = file_type_name(about.file_type());
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {what}, not a regular file")));
    }
    File::open(path)
}

fn file_type_name(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_char_device() || kind.is_block_device() => "a device",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_or_is_too_large_is_refused_by_name() {
        let error = |path: &Path| read_text(path).unwrap_err().to_string();
        assert_eq!(error(Path::new("/dev/zero")), "it is a device, not a regular file");
        assert_eq!(error(Path::new("/")), "it is a directory, not a regular file");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        File::create(&path).unwrap().set_len(LARGEST_TEXT + 1).unwrap();
        assert!(error(&path).contains("larger than 16 MiB"), "{}", error(&path));
        File::create(&path).unwrap().set_len(LARGEST_TEXT).unwrap();
        assert_eq!(read_text(&path).unwrap().len() as u64, LARGEST_TEXT);
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(read_text(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(error(&socket), "it is a socket, not a regular file");
    }
}

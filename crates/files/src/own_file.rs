//! A daemon's own files: regular files only, never through a link, and replaced atomically.
//!
//! Anything else under such a name could block the program (opening a fifo waits for its other end), or
//! redirect a write to another file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Opens `path` with `options`; only the owner can read a new file.
///
/// # Errors
/// It is not a regular file (a symbolic link is refused, too), or the system refuses.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Never wait, whatever it is; for a regular file that makes no difference.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let opened = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path);
    let file = opened.map_err(|error| match Errno::from_io_error(&error) {
        // A link; a fifo without a reader, a socket or a missing device; a directory opened for writing.
        Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR) => not_regular(),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Opens `path` for reading, also through a link.
///
/// # Errors
/// It is not a regular file, or the system refuses.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Replaces the file `path` by one with `bytes`, atomically: anyone who opens it, even after a power loss,
/// finds either the old or the new contents. The new file is first written beside it, as `path` plus `.new`,
/// over anything left there by a killed process. It is on disk when this returns.
///
/// # Errors
/// It cannot be written; the old one remains.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut new = PathBuf::from(new);
    let mut file = open(&new, OpenOptions::new().write(true).create(true).truncate(true))?;
    io::Write::write_all(&mut file, bytes)?;
    put_in_place(&file, &mut new, path)
}

/// The last steps of [`replace_file`], for a `file` that is written in another way: syncs it, renames it to `path`, which
/// is in the same directory, and syncs the directory. `at` is its path, and `path` once it has been renamed, even if
/// syncing the directory then fails.
///
/// # Errors
/// The system's error.
pub fn put_in_place(file: &File, at: &mut PathBuf, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    std::fs::rename(at.as_path(), path)?;
    *at = path.to_owned();
    sync_directory(path)
}

/// Syncs the directory of `path`, and so the names of files created in it.
///
/// # Errors
/// The system's error.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// The contents of the file `path`, opened as by [`open`].
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut open(path, OpenOptions::new().read(true))?, &mut bytes)?;
    Ok(bytes)
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file; remove it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_regular_file_is_neither_read_nor_written_nor_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("other"), "somebody's").unwrap();
        std::os::unix::fs::symlink(at("other"), at("link")).unwrap();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        for name in ["link", "fifo", "socket", "folder"] {
            let error = read(&at(name)).unwrap_err().to_string();
            assert!(error.contains("regular file"), "{name}: {error}");
            std::fs::rename(at(name), at("state.bin.new")).unwrap();
            let error = replace_file(&at("state.bin"), b"mine").unwrap_err().to_string();
            assert!(error.contains("regular file"), "{name}: {error}");
            assert!(!at("state.bin").exists());
            std::fs::rename(at("state.bin.new"), at(name)).unwrap();
        }
        assert_eq!(std::fs::read(at("other")).unwrap(), b"somebody's");
        assert_eq!(open_to_read(&at("link")).unwrap().metadata().unwrap().len(), 10);
        assert!(open_to_read(&at("fifo")).unwrap_err().to_string().contains("regular file"));
        replace_file(&at("state.bin"), b"mine").unwrap();
        assert_eq!(read(&at("state.bin")).unwrap(), b"mine");
    }
}

//! A Unix socket that only its owner may use.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::process::umask;
use tokio::net::UnixListener;

/// A listening socket's file; removed when this is dropped.
#[derive(Debug)]
pub struct UnixPath(PathBuf);

impl Drop for UnixPath {
    fn drop(&mut self) {
        // It may be gone with its directory.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on a socket of mode 0600 at `path`. Replaces a socket left by a killed process, but neither another
/// kind of file nor a socket in use. Sets the process's umask for a moment, so call it before there are threads
/// that create files. Must be called within a tokio runtime.
pub fn listen_unix(path: &Path) -> io::Result<(UnixListener, UnixPath)> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    let before = umask(Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    umask(before);
    Ok((listener?, UnixPath(path.to_owned())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[tokio::test]
    async fn it_is_its_owners_and_outlives_a_kill_but_takes_nobody_elses_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (listener, file) = listen_unix(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(listen_unix(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // Left by a killed process: a file without a listener.
        drop(listener);
        std::mem::forget(file);
        let (_listener, file) = listen_unix(&path).unwrap();
        drop(file);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        assert!(listen_unix(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
    }
}

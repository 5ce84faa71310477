//! The folder of a testbed's files, which disappears with the testbed, however it ends.
//!
//! A killed process (-9) removes nothing. So this program runs once more as the folder's keeper, which waits for the
//! other process to end, at the end of a pipe, and then removes what is still there.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

/// Hidden first argument of this program as a keeper; the folder is the second one.
pub const ROLE: &str = "__keeper";

const PREFIX: &str = "dta-testbed-";

/// Daemons that end with the same process may still write a file; after this time they are gone.
const AGAIN: Duration = Duration::from_secs(2);

/// A folder, removed on drop, or when this process ends without that.
#[derive(Debug)]
pub struct Folder {
    // Removed before its keeper wakes up, which then finds nothing.
    folder: tempfile::TempDir,
    _keeper: FolderKeeper,
}

impl Folder {
    /// Makes a folder: in shared memory, or in the temporary folder if there is none.
    pub fn new() -> std::io::Result<Folder> {
        let of = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix(PREFIX);
            builder
        };
        let folder = of().tempdir_in("/dev/shm").or_else(|_| of().tempdir())?;
        let keeper = FolderKeeper::spawn_keeper(folder.path())?;
        Ok(Folder { folder, _keeper: keeper })
    }

    pub fn folder_path(&self) -> &Path {
        self.folder.path()
    }
}

#[derive(Debug)]
struct FolderKeeper {
    child: Child,
    /// The kernel closes this when this process ends.
    pipe: Option<ChildStdin>,
}

impl FolderKeeper {
    fn spawn_keeper(folder: &Path) -> std::io::Result<FolderKeeper> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(ROLE)
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C ends the processes in the foreground.
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        Ok(FolderKeeper { child, pipe })
    }
}

impl Drop for FolderKeeper {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.child.wait();
    }
}

/// Keeps a folder until the other end of standard input is closed.
pub fn keep_until_closed(folder: &Path) -> ExitCode {
    let is_ours = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if !is_ours {
        return ExitCode::FAILURE;
    }
    let mut stdin = std::io::stdin().lock();
    while let Ok(1..) = stdin.read(&mut [0]) {}
    if folder.exists() {
        let _ = std::fs::remove_dir_all(folder);
        std::thread::sleep(AGAIN);
        let _ = std::fs::remove_dir_all(folder);
    }
    ExitCode::SUCCESS
}

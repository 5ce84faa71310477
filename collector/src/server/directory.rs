//! The memory directory, which belongs to this collector alone.

use std::fs::{DirBuilder, File};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use anyhow::anyhow;
use rustix::fs::{Mode, OFlags};

use dta_files::lock::Lock;
use dta_files::owned_folder::OwnedFolder;

/// Creates the memory directory, accessible only to its owner, locks it and marks it as `owner`'s: two
/// collectors sharing one would take each other's state for their own. An existing directory must look as if
/// created here, because in the default location anyone may create it first.
pub(super) fn lock_directory(dir: &Path, owner: &str) -> anyhow::Result<Lock> {
    let fail = |action| move |source| directory_error(action, dir, source);
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(fail("make"))?;
    check_directory(dir).map_err(fail("use"))?;
    let advice = "give this one another name or directory ([collector] name, --memory)";
    Ok(OwnedFolder { path: dir, kind: "memory directory", owner, advice }.lock()?)
}

/// The error for something that the system did not allow with the memory directory.
pub(super) fn directory_error(action: &str, dir: &Path, source: Error) -> anyhow::Error {
    anyhow!("cannot {action} the memory directory {}: {source}; choose another with --memory", dir.display())
}

fn check_directory(dir: &Path) -> Result<(), Error> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
            Error::new(ErrorKind::NotADirectory, "it is not a directory, or it is a symbolic link")
        }
        other => other.into(),
    })?;
    let found = File::from(opened).metadata()?;
    let me = rustix::process::geteuid().as_raw();
    let refuse = |why: String| Err(Error::new(ErrorKind::PermissionDenied, why));
    if found.uid() != me {
        return refuse(format!(
            "it belongs to user {}, and this is user {me}: its owner could change what is reported",
            found.uid()
        ));
    }
    if found.mode() & 0o022 != 0 {
        return refuse(format!("others may write to it (mode {:o}): `chmod go-w` it", found.mode() & 0o7777));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn refusal(dir: &Path) -> String {
        lock_directory(dir, "collector east").expect_err("not to be used").to_string()
    }

    #[test]
    fn a_directory_is_made_for_its_owner_alone_and_locked() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("new/memory");
        let held = lock_directory(&dir, "collector east").unwrap();
        assert_eq!(dir.metadata().unwrap().mode() & 0o7777, 0o700);
        assert!(refusal(&dir).contains("collector east uses the memory directory"));
        drop(held);
        lock_directory(&dir, "collector east").unwrap();
    }

    #[test]
    fn what_others_could_change_is_refused_and_left_as_it_is() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(refusal(&open).contains("others may write to it (mode 777)"), "{}", refusal(&open));
        assert_eq!(open.read_dir().unwrap().count(), 0);

        let own = base.path().join("own");
        std::fs::create_dir(&own).unwrap();
        let link = base.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(refusal(&link).contains("symbolic link"), "{}", refusal(&link));
        assert_eq!(own.read_dir().unwrap().count(), 0);

        if rustix::process::geteuid().is_root() {
            let other = base.path().join("other");
            std::fs::create_dir(&other).unwrap();
            std::os::unix::fs::chown(&other, Some(65534), None).unwrap();
            assert!(refusal(&other).contains("belongs to user 65534"), "{}", refusal(&other));
        }
    }

    #[test]
    fn what_another_collector_left_is_refused_and_left_as_it_is() {
        let base = tempfile::tempdir().unwrap();
        drop(lock_directory(base.path(), "collector west").unwrap());
        assert!(refusal(base.path()).contains("belongs to collector west, and this is collector east"));
        assert_eq!(std::fs::read(base.path().join("lock")).unwrap(), b"collector west\n");
    }

    #[test]
    fn a_lock_that_is_no_regular_file_is_refused_at_once() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("lock");
        let read_write = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, read_write, 0).unwrap();
        let dir = base.path().to_owned();
        let (sender, refusals) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(refusal(&dir)));
        let error = refusals.recv_timeout(std::time::Duration::from_secs(10)).expect("an answer");
        assert!(error.contains("regular file"), "{error}");

        std::fs::remove_file(&path).unwrap();
        let other = base.path().join("other");
        std::fs::write(&other, "somebody's").unwrap();
        symlink(&other, &path).unwrap();
        assert!(refusal(base.path()).contains("regular file"), "{}", refusal(base.path()));
    }
}

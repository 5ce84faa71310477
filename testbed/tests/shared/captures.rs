//! Captures that tests replay. They lie outside the repository: tests of several crates take this file by `#[path]`.

use std::io::Write;
use std::path::{Path, PathBuf};

/// `part` of the folder of captures: `$DTA_CAPTURES`, or `shared/data` beside the checkout. `None` where it is missing;
/// standard error then says that `test` is skipped, also where the output of tests is caught.
///
/// # Panics
/// If it is missing in CI.
pub(crate) fn captures(test: &str, part: &str) -> Option<PathBuf> {
    // Crates lie at different depths.
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(|folder| folder.join("Cargo.lock").exists());
    let beside = root.expect("the workspace has a lock file").join("../shared/data");
    let path = std::env::var_os("DTA_CAPTURES").map_or(beside, PathBuf::from).join(part);
    if path.exists() {
        return Some(path);
    }
    let why = format!("there are no captures at {} (set DTA_CAPTURES)", path.display());
    assert!(std::env::var_os("CI").is_none(), "{test}: {why}");
    // `eprintln!` of a test that passes is not shown. One write: other tests print, too.
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
    None
}

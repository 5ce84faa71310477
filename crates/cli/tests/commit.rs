//! Which commit `--version` shows: the given one, the archive's, or git's; and none without git, as in a
//! release's tarball.

#[path = "../build/commit.rs"]
mod commit;

use std::path::Path;
use std::process::Command;

use commit::find_commit;

const HASH: &str = "0123456789abcdef0123456789abcdef01234567";
/// The file's contents unless an archive was made of it.
const UNSTAMPED: &str = "$Format:%H$";

#[test]
fn what_is_given_goes_before_the_archive_and_the_archive_before_git() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let other = "fedcba9876543210";
    assert_eq!(find_commit(Some(other), HASH, folder, true).commit.as_deref(), Some("fedcba987654"));
    assert_eq!(find_commit(None, HASH, folder, true).commit.as_deref(), Some("0123456789ab"));
    // What is not a commit is not shown as one.
    for given in ["", "main", "012345", "0123456g"] {
        assert_eq!(find_commit(Some(given), UNSTAMPED, folder, false).commit, None, "{given}");
    }
}

#[test]
fn sources_without_git_have_no_commit_and_those_of_another_repository_neither() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("Cargo.toml"), "").unwrap();
    assert_eq!(find_commit(None, UNSTAMPED, folder.path(), true).commit, None);

    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(folder.path()).args(["-c", "user.name=a", "-c", "user.email=a@example"]);
        let output = command.args(arguments).output().expect("git is installed");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "--quiet", "--initial-branch", "main"]);
    git(&["commit", "--quiet", "--allow-empty", "--message", "of somebody else"]);
    assert_eq!(find_commit(None, UNSTAMPED, folder.path(), true).commit, None, "Cargo.toml is not its file");

    git(&["add", "Cargo.toml"]);
    git(&["commit", "--quiet", "--message", "ours"]);
    let found = find_commit(None, UNSTAMPED, folder.path(), true);
    assert_eq!(found.commit.as_deref(), Some(&git(&["rev-parse", "HEAD"])[..12]));
    let watched: Vec<_> = found.watch.iter().map(|file| file.display().to_string()).collect();
    assert!(watched.iter().any(|file| file.ends_with("refs/heads/main")), "{watched:?}");
    assert_eq!(find_commit(None, UNSTAMPED, folder.path(), false).commit, None, "a debug build does not ask");
}

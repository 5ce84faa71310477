//! The commit that a program is built from, for `--version`. Part of the build script; its tests are in
//! `tests/commit.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Displayed length of a commit.
const SHOWN: usize = 12;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceCommit {
    /// The commit; `None` if unknown.
    pub(crate) commit: Option<String>,
    /// Files that change with the commit.
    pub(crate) watch: Vec<PathBuf>,
}

/// Finds the commit of the sources in `folder`: the one `given`, else what `git archive` wrote into `stamp`
/// (the text of `build/commit.txt`), else from git, if `ask_git`.
pub(crate) fn find_commit(given: Option<&str>, stamp: &str, folder: &Path, ask_git: bool) -> SourceCommit {
    let known = given.and_then(parse_commit).or_else(|| parse_commit(stamp));
    match known {
        Some(_) => SourceCommit { commit: known, watch: Vec::new() },
        None if ask_git => commit_from_git(folder).unwrap_or_default(),
        None => SourceCommit::default(),
    }
}

/// A commit as displayed, if the text is one.
fn parse_commit(text: &str) -> Option<String> {
    let text = text.trim();
    let is_hash = (7..=64).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_hexdigit());
    is_hash.then(|| text.chars().take(SHOWN).collect())
}

fn commit_from_git(folder: &Path) -> Option<SourceCommit> {
    let ask = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // The sources may be unpacked inside another repository, whose commit is not theirs.
    ask(&["ls-files", "--error-unmatch", "Cargo.toml"])?;
    let found = parse_commit(&ask(&["rev-parse", "HEAD"])?);
    let path = |name: &str| Some(folder.join(ask(&["rev-parse", "--git-path", name])?));
    // On a branch, the branch's file changes with a commit; a packed one has none.
    let branch = ask(&["symbolic-ref", "--quiet", "HEAD"]);
    let watch = [path("HEAD"), branch.and_then(|name| path(&name)), path("packed-refs")];
    Some(SourceCommit {
        commit: found,
        watch: watch.into_iter().flatten().filter(|file| file.exists()).collect(),
    })
}

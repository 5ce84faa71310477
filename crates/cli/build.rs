//! Embeds the commit that the crate is built from (`DTA_COMMIT`, empty if unknown).
//!
//! Only release builds ask git: a developer's build would otherwise be repeated with each commit, and all
//! programs with it. Packagers can set `DTA_COMMIT`; `git archive` writes the commit into `build/commit.txt`.

#[path = "build/commit.rs"]
mod commit;

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-env-changed=DTA_COMMIT");
    let given = std::env::var("DTA_COMMIT").ok();
    let release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let found =
        commit::find_commit(given.as_deref(), include_str!("build/commit.txt"), Path::new("."), release);
    for file in &found.watch {
        println!("cargo:rerun-if-changed={}", file.display());
    }
    println!("cargo:rustc-env=DTA_COMMIT={}", found.commit.unwrap_or_default());
}

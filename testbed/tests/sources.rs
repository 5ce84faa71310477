//! What is committed of the compilers' outputs is of the sources beside it.

use std::path::{Path, PathBuf};

use dta_proto::crc::crc32c;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../translator-p4")
}

/// The P4 sources of a target in a folder, with those that all targets share, by name.
fn sources(folder: &Path, target: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in ["shared", target] {
        for file in std::fs::read_dir(folder.join(part)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".p4") {
                names.push(format!("{part}/{name}"));
            }
        }
    }
    names.sort();
    names
}

/// `compiled` is where the outputs are, and `then` what is to be done when they are not.
fn is_of_its_sources(folder: &Path, target: &str, compiled: &str, then: &str) {
    let list = format!("compiled/{compiled}/sources.sha256");
    let digest = std::fs::read_to_string(folder.join(&list)).unwrap();
    let mut listed: Vec<(&str, &str)> = digest.lines().filter_map(|line| line.split_once("  ")).collect();
    // Headers of the other program.
    listed.retain(|(_, name)| !name.starts_with("../"));
    listed.sort_by_key(|(_, name)| *name);
    let names: Vec<&str> = listed.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, sources(folder, target), "sources came or went: {then}");
    let output = std::process::Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", &list])
        .current_dir(folder)
        .output()
        .expect("sha256sum of coreutils");
    assert!(
        output.status.success(),
        "the sources have moved on: {then}\n{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn the_compiled_program_is_of_these_sources() {
    is_of_its_sources(&folder(), "v1model", "v1model", "run translator-p4/compile, then make test-p4");
}

#[test]
fn the_program_compiled_for_tofino_is_of_these_sources() {
    for profile in ["tna", "tna-sketches", "tna-batches"] {
        is_of_its_sources(&folder(), "tna", profile, "run translator-p4/compile");
    }
    is_of_its_sources(&folder().join("../reporter-p4"), "tna", "tna", "run reporter-p4/compile");
}

/// The constants of the unrolled CRC-32C, computed from the polynomial.
#[test]
fn the_constants_of_crc32c_are_those_of_the_polynomial() {
    let text = std::fs::read_to_string(folder().join("v1model/crc32c.p4")).unwrap();
    let (of_key, of_number) = text.split_once("action crc32c_of_le32").expect("two actions");
    let constants = |text: &str| -> Vec<u32> {
        let calls = text.split("^ BIT(").skip(1).map(|call| call.split_once(')').unwrap().0);
        calls
            .enumerate()
            .map(|(bit, call)| {
                let parts: Vec<&str> = call.split(", ").collect();
                assert_eq!(parts[1], bit.to_string());
                u32::from_str_radix(parts[2].trim_start_matches("0x"), 16).unwrap()
            })
            .collect()
    };
    let key: Vec<u32> =
        (0..128).map(|bit| crc32c(&(1u128 << bit).to_be_bytes()) ^ crc32c(&[0; 16])).collect();
    assert_eq!(constants(of_key), key);
    let number: Vec<u32> =
        (0..32).map(|bit| crc32c(&(1u32 << bit).to_le_bytes()) ^ crc32c(&[0; 4])).collect();
    assert_eq!(constants(of_number), number);
    for zero in [crc32c(&[0; 16]), crc32c(&[0; 4])] {
        assert!(text.contains(&format!("= 32w{zero:#010x}")), "{zero:#x}");
    }
}

/// Each reason has the number that the README sends the reader to, once.
#[test]
fn reasons_have_names_of_counters() {
    let text = std::fs::read_to_string(folder().join("shared/constants.p4")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("const bit<8> REASON_")) {
        let (name, number) = line.trim_end_matches(';').split_once(" = ").unwrap();
        assert!(seen.insert(number.parse::<u8>().unwrap()), "{line}");
        let name = name.to_lowercase();
        let known = dta_proto::counter::Reason::ALL.iter().any(|reason| {
            reason.name() == name || (name == "not_listed" && reason.name() == "reporter_not_listed")
        });
        assert!(known || name == "none", "{name} is no reason of docs/counters.md");
    }
    assert_eq!(seen.len(), 22);
}

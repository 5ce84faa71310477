//! The examples of the libraries `dta-reporter` and `dta-rpc`, run as programs against a collector and a translator.
//! `cargo test --workspace` builds them; before `--test library_examples` alone, `cargo build --workspace --examples` does.

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::daemon::Daemon;

/// Runs an example, and returns its output.
fn example(name: &str, address: &str) -> String {
    // In the parent of this test program's own folder.
    let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("examples");
    let path: PathBuf = folder.join(name);
    assert!(path.is_file(), "no {}: `cargo build --workspace --examples` builds it", path.display());
    let output = Command::new(&path).arg(address).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} ended with {}: {stderr}", path.display(), output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_the_one_example_reports_the_other_finds() {
    let memory = tempfile::tempdir().unwrap();
    let memory = memory.path().join("memory").display().to_string();
    let collector = Daemon::start(&[
        "__collector",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--soft-port",
        "0",
        "--memory",
        &memory,
    ]);
    let address = collector.said("listen");
    let [_, a, b, c] = std::process::id().to_be_bytes();
    // Not the address of the neighbouring test, which is made in the same way.
    let source = format!("127.{}.{b}.{c}", 224 + (a & 15));
    let ports = ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0", "--source-port", "0"];
    let names = ["__translator", "run", "--ready", "--collector", address, "--source", &source];
    let translator = Daemon::start(&[&names[..], &ports].concat());

    let flow = "10.0.0.1:5000->10.0.0.2:5000/udp";
    assert!(example("query", address).contains(&format!("{flow} has 0 bytes")), "an empty collector");
    assert_eq!(example("report", translator.said("listen")), "2 reports sent\n");
    let wanted = format!(
        "{flow} is Some([00, 00, 00, 2a, 00, 00, 00, 00, 00, 00, 00, 00]), by 2 of 2 copies\n{flow} has 1500 bytes\n"
    );
    let mut found = String::new();
    for _ in 0..1200 {
        found = example("query", address);
        if found == wanted {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the example says {found}, not {wanted}");
}

/// An example is short, or its library is hard to use.
#[test]
fn both_have_at_most_15_lines() {
    for (name, text) in [
        ("report", include_str!("../../reporter/examples/report.rs")),
        ("query", include_str!("../../crates/rpc/examples/query.rs")),
    ] {
        let lines =
            text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//"));
        assert!(lines.clone().count() <= 15, "{name} has {} lines", lines.count());
    }
}

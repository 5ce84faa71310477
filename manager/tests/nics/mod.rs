//! What `dta-manager bench --nic` prints, and what has to be in it.

use std::process::Command;

use serde_json::Value;

/// A figure as JSON has it: name, unit, value and floor, ratio.
pub(crate) type Figure = (String, String, [f64; 2], Option<f64>);

/// Runs the benchmarks briefly, and returns their figures.
pub(crate) fn bench(command: &[&str], nic: &str) -> Vec<Figure> {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let json = folder.path().join("figures.json");
    let output = Command::new(command[0])
        .args(&command[1..])
        .args(["bench", "--quick", "--nic", nic, "--json"])
        .arg(&json)
        .output()
        .expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    print!("{}{stderr}", String::from_utf8_lossy(&output.stdout));
    // 4: one was slower than required, which such a short run does not prove.
    assert!(matches!(output.status.code(), Some(0 | 4)), "{stderr}");
    let figures: Value = serde_json::from_slice(&std::fs::read(&json).expect("the figures")).expect("JSON");
    let figure = |row: &Value| {
        let text = |name: &str| row[name].as_str().expect("text").to_owned();
        let number = |name: &str| row[name].as_f64().expect("a number");
        (text("name"), text("unit"), ["value", "floor"].map(number), row["ratio"].as_f64())
    };
    figures.as_array().expect("a list").iter().map(figure).collect()
}

/// Rates are there for every case and each of `nics`. A frame that did not land is an error of the
/// program itself.
pub(crate) fn complete(figures: &[Figure], nics: &[&str]) {
    let mut names = Vec::new();
    for case in ["uc-write-8", "uc-write-64", "rc-write-8", "rc-write-64", "rc-fetch-add"] {
        for nic in nics {
            names.extend(["ops/s", "ns/op"].map(|unit| (format!("{case}.{nic}"), unit.to_owned())));
        }
    }
    assert_eq!(figures.iter().map(|(n, u, ..)| (n.clone(), u.clone())).collect::<Vec<_>>(), names);
    for (name, unit, [value, floor], ratio) in figures {
        if unit == "ops/s" {
            assert!(*value > 0.0 && *floor > 0.0, "{name}: {value} {floor}");
            assert!(ratio.is_some_and(|ratio| (ratio - value / floor).abs() < 1e-6), "{name}: {ratio:?}");
        }
    }
}

//! `dta-manager bench` as it is run by hand, short. How large a figure is says nothing in a debug build.

mod common;

use common::manager;

#[test]
fn every_benchmark_runs_and_gives_its_row() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("figures.json");
    let output = manager(&["bench", "--quick", "--json", path.to_str().unwrap()]);
    // 1 says that a ratio is below the least one; 2, that something could not run.
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| [0, 4].contains(&code)), "{stderr}");
    let rows: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let rows = rows.as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    let first = [
        "translator",
        "nic",
        "nic-small",
        "chain",
        "workers",
        "query",
        "tail",
        "alerts",
        "flows",
        "flows-distinct",
        "sflow",
        "flows-top",
        "flows-one",
        "ask",
        "loopback",
        "ring",
        "no-ring",
    ];
    let history = ["history-write", "history-nic", "history-query", "history-key", "history-series"];
    assert_eq!(names, [&first[..], &["reports", "reports-plain"], &history, &["nic-file", "page"]].concat());
    for row in rows {
        let [value, floor, ratio] = ["value", "floor", "ratio"].map(|name| row[name].as_f64().unwrap());
        assert!(value > 0.0 && floor > 0.0 && (ratio - value / floor).abs() < 0.01, "{row}");
        assert_eq!(row["unit"], "ops/s");
    }
}

#[test]
fn reports_of_int_over_loopback_give_their_row() {
    let output = manager(&["bench", "--int", "--quick", "--output", "json", "loopback"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| [0, 4].contains(&code)), "{stderr}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let [row] = rows.as_array().unwrap().as_slice() else { panic!("{rows}") };
    assert_eq!((&row["name"], &row["unit"]), (&"int-loopback-3-few".into(), &"ns/report".into()));
    let [value, floor, ratio] = ["value", "floor", "ratio"].map(|name| row[name].as_f64().unwrap());
    assert!(value > 0.0 && floor > 0.0 && (ratio - floor / value).abs() < 0.01, "{row}");
    assert_eq!(row["least_ratio"], 0.3);
}

#[test]
#[ignore = "needs etcd-server"]
#[cfg(feature = "etcd")]
fn queries_of_a_cluster_give_their_row() {
    let output = manager(&["bench", "--cluster", "--quick", "--output", "json"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| [0, 4].contains(&code)), "{stderr}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["least_ratio"]), (&"ask-cluster".into(), &0.8.into()), "{rows}");
}

#[test]
#[ignore = "needs root and ethtool: makes two network namespaces with a veth pair"]
fn reports_and_frames_cross_a_veth_pair_in_runs_cut_and_one_by_one() {
    let output = manager(&["bench", "--wire", "--quick", "--output", "json"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code().is_some_and(|code| [0, 4].contains(&code)), "{stderr}");
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "wire",
            "wire-cut",
            "wire-cut-no-gro",
            "wire-plain",
            "wire-xdp",
            "wire-int-unchanged",
            "wire-reports-xdp"
        ]
    );
    assert!(rows.iter().all(|row| row["value"].as_f64().unwrap() > 0.0), "{rows:?}");
    let left = std::process::Command::new("ip").args(["netns", "list"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&left.stdout).contains("dta-bench"), "namespaces are left");
}

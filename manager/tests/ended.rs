//! `run-testbed` and `demo` are ended from outside: they take their processes and files with them. Needs no privilege.

mod common;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::MANAGER;
use rustix::process::{Pid, Signal, kill_process};

/// Processes that `parent` started, with their command lines, but for the keeper of its folder.
fn children(parent: u32) -> BTreeMap<u32, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(about) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // After the name in parentheses: state, then the parent (proc_pid_stat(5)).
        let of = about.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
        if of == Some(&parent.to_string()) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if !line.contains("__keeper") {
                found.insert(pid, line);
            }
        }
    }
    found
}

/// Waits until the testbed has this many processes; returns them and its folder.
fn started(testbed: &Child, count: usize) -> (Vec<u32>, PathBuf) {
    let start = Instant::now();
    loop {
        let children = children(testbed.id());
        let folder = children.values().find_map(|line| {
            let config = line.split(' ').find(|word| word.ends_with(".toml"))?;
            Path::new(config).parent().map(Path::to_owned)
        });
        if let Some(folder) = folder
            && children.len() >= count
        {
            return (children.into_keys().collect(), folder);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{children:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn end(arguments: &[&str], processes: usize, pause: Duration, signal: Signal) -> std::process::ExitStatus {
    let mut testbed =
        Command::new(MANAGER).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (pids, folder) = started(&testbed, processes);
    std::thread::sleep(pause);
    assert!(folder.is_dir(), "{}", folder.display());
    kill_process(Pid::from_raw(testbed.id() as i32).unwrap(), signal).unwrap();
    let status = testbed.wait().unwrap();
    assert!(!folder.exists(), "{} is still there", folder.display());
    for pid in pids {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        assert!(!line.contains(folder.to_str().unwrap()), "process {pid} still runs: {line}");
    }
    assert_eq!(status.signal(), None, "it ends by itself");
    status
}

#[test]
fn it_takes_processes_and_files_with_it_whenever_it_is_ended() {
    let long = ["run-testbed", "--reports", "100000000"];
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        // While it starts its daemons, and in the middle of the traffic.
        for (processes, pause) in [(1, 0), (2, 500)] {
            let ended = end(&long, processes, Duration::from_millis(pause), signal);
            assert_eq!(ended.code(), Some(status), "{signal:?}, {processes} processes");
        }
    }
}

#[test]
fn one_that_is_killed_leaves_neither_processes_nor_files() {
    let mut testbed = Command::new(MANAGER)
        .args(["run-testbed", "--reports", "100000000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (pids, folder) = started(&testbed, 2);
    std::thread::sleep(Duration::from_millis(500));
    assert!(folder.is_dir(), "{}", folder.display());
    testbed.kill().unwrap();
    testbed.wait().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    // What has ended and waits for somebody to ask has no command line any more.
    let runs = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty());
    while folder.exists() || pids.iter().any(runs) {
        assert!(Instant::now() < until, "{} is still there, or one of {pids:?}", folder.display());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn one_that_is_kept_ends_with_what_it_found() {
    // The signal may come before it is through with its checks: then it has found nothing.
    let ended = end(&["run-testbed", "--reports", "2000", "--keep"], 2, Duration::from_secs(5), Signal::INT);
    assert!(matches!(ended.code(), Some(0 | 130)), "{ended}");
}

#[test]
fn a_demonstration_ends_when_asked_to_and_leaves_nothing() {
    for (processes, signal) in [(1, Signal::TERM), (2, Signal::INT)] {
        let ended = end(&["demo"], processes, Duration::from_millis(500), signal);
        assert_eq!(ended.code(), Some(0), "{signal:?}");
    }
}

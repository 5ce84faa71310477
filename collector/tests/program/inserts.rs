//! Histories inserted into ClickHouse, which a server of our own stands in for.

#[path = "../../../testbed/tests/shared/clickhouse.rs"]
#[allow(dead_code, unreachable_pub, reason = "not all of it is needed here")]
mod clickhouse;

use std::collections::BTreeSet;

use clickhouse::{ClickHouse, DATABASE, Fate, LOGIN};
use dta_history::EpochTable;

use super::epochs::{World, counter, until, value};
use super::*;

/// A collector's folder, with a server that gets its rows.
fn world(keys: u32, server: &ClickHouse, password: &str) -> World {
    let world = World::new(keys);
    std::fs::write(world.path("secret"), password).unwrap();
    let path = world.path("collector.toml");
    let text = format!(
        "{}[history.clickhouse]\nurl = '{}'\ndatabase = '{DATABASE}'\nuser = '{}'\nsecret_file = '{}'\n",
        std::fs::read_to_string(&path).unwrap(),
        server.url(),
        LOGIN.0,
        world.path("secret").display()
    );
    std::fs::write(path, text).unwrap();
    world
}

/// The rows of the table on disk, as epochs and slots.
fn rows(world: &World) -> BTreeSet<(u64, u64)> {
    let table = EpochTable::open_existing(&world.path("history"), "flows").unwrap();
    let mut rows = BTreeSet::new();
    for kept in table.kept_epochs().unwrap() {
        let number = kept.epoch.number;
        table.scan_epoch(number, |slot, _| assert!(rows.insert((number, slot)))).unwrap();
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_in_the_middle_neither_lose_nor_double_rows() {
    let server = ClickHouse::start();
    let world = world(400_000, &server, LOGIN.1);
    // The first epoch has four blocks: before each of them, while it is inserted, and behind it.
    for fate in [Fate::Refused, Fate::After(Duration::from_secs(600)), Fate::AnswerLost] {
        for _ in 0..2 {
            let before = server.table("flows").map_or(0, |table| table.rows.len());
            let (mut left, is_there) = (1, std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
            let reached = is_there.clone();
            server.faults(move |statement| {
                if statement == "SELECT 1" || left > 0 && statement.starts_with("INSERT") {
                    left -= usize::from(statement != "SELECT 1");
                    return Fate::Answered;
                }
                reached.store(true, std::sync::atomic::Ordering::SeqCst);
                fate
            });
            let mut collector = world.start_with(&[]);
            until("it inserts", || is_there.load(std::sync::atomic::Ordering::SeqCst));
            collector.child.kill().unwrap();
            collector.child.wait().unwrap();
            let after = server.table("flows").map_or(0, |table| table.rows.len());
            assert!(after >= before);
        }
    }
    server.faults(|_| Fate::Answered);
    let collector = world.start_with(&[]);
    world.write(7, &value(7));
    let written = world.kept().len();
    until("another epoch is written", || world.kept().len() > written);
    let expected = rows(&world);
    let inserted = || server.table("flows").map_or(0, |table| table.rows.len());
    until("all rows are there", || inserted() >= expected.len());
    assert_eq!(counter(&collector, "insert.missed").await, 0);
    drop(collector);
    let inserted = server.table("flows").unwrap().rows;
    let number = |cell: &Value| cell.as_u64().unwrap();
    let all: BTreeSet<(u64, u64)> = inserted.iter().map(|row| (number(&row[3]), number(&row[4]))).collect();
    assert_eq!(all.len(), inserted.len(), "rows that are there twice");
    assert!(expected.len() > 300_000);
    // Others may have come since.
    let last = expected.last().unwrap().0;
    assert!(all.iter().filter(|(epoch, _)| *epoch <= last).eq(&expected), "other rows");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_away_delays_nothing_and_gets_all_of_it_later() {
    let server = ClickHouse::start();
    server.faults(|_| Fate::Refused);
    let world = world(1000, &server, LOGIN.1);
    let collector = world.start_with(&[]);
    until("epochs are written", || world.kept().len() >= 3);
    assert_eq!(counter(&collector, "epochs.lost").await, 0);
    while counter(&collector, "insert.failed").await < 2 || counter(&collector, "insert.waiting").await < 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(counter(&collector, "insert.epochs").await, 0);
    server.faults(|_| Fate::Answered);
    while counter(&collector, "insert.epochs").await < 3 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(counter(&collector, "insert.missed").await, 0);
    let count = counter(&collector, "insert.rows").await;
    assert!(count > 900, "{count}");
    let log = || std::fs::read_to_string(world.path("log")).unwrap();
    for line in [
        "ClickHouse does not answer",
        "ClickHouse had no table for it",
        "ClickHouse is accepting histories again",
    ] {
        until(line, || log().contains(line));
    }
    let log = log();
    assert!(!log.contains(LOGIN.1), "{log}");
}

#[test]
fn a_password_that_is_refused_ends_the_start() {
    let server = ClickHouse::start();
    let world = world(0, &server, "guessed");
    let run = |command: &str| {
        let mut program = program();
        if command == "serve" {
            program.args(["serve", "--listen", "127.0.0.1:0", "--soft-port", "0", "--memory"]);
            program.arg(world.path("memory"));
        } else {
            program.arg(command);
        }
        let output = program.arg("--config").arg(world.path("collector.toml")).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_good, said) = run("serve");
    let expected = format!(
        "history.clickhouse: {}/: user or password is wrong, or may not do that (Code: 516",
        server.url()
    );
    assert!(!is_good && said.contains(&expected), "{said}");
    // A check makes no connection, but reads the file.
    server.statements();
    let (is_good, said) = run("check-config");
    assert!(is_good, "{said}");
    assert_eq!(server.statements(), []);
    std::fs::remove_file(world.path("secret")).unwrap();
    let (is_good, said) = run("check-config");
    assert!(!is_good && said.contains("history.clickhouse: cannot read"), "{said}");
}

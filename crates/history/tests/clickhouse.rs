//! Epochs as rows in ClickHouse, which a server of our own stands in for. tests/outside has them in ClickHouse's engine.

#[path = "../../../testbed/tests/shared/clickhouse.rs"]
#[allow(dead_code, unreachable_pub, reason = "not all of it is needed here")]
mod clickhouse;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clickhouse::{ClickHouse, DATABASE, Fate, LOGIN};
use dta_history::clickhouse::{BLOCK, ClickHouseError, ClickHouseServer, InsertProgress, Inserter};
use dta_history::{EpochTable, HistoryEpoch, Retention};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::to_hex_digits;
use serde_json::{Value, json};
use tempfile::TempDir;

const MINUTE: u64 = 60_000;
/// 2026-11-26, a multiple of an hour.
const BEGIN: u64 = 1_795_687_200_000;

/// A table with nothing in it, and a server.
struct World {
    folder: TempDir,
    table: EpochTable,
    clickhouse: ClickHouse,
}

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let table = EpochTable::open(folder.path(), &spec()).unwrap();
        World { folder, table, clickhouse: ClickHouse::start() }
    }

    fn server(&self, database: &str, password: &str) -> ClickHouseServer {
        let login = Some((LOGIN.0.to_owned(), password.to_owned()));
        ClickHouseServer::open(&self.clickhouse.url(), database, login, None, "c1").unwrap()
    }

    fn inserter(&self) -> Inserter {
        Inserter::new(Arc::new(self.server(DATABASE, LOGIN.1)), "last")
    }

    /// Writes the epoch of this minute.
    fn write(&self, number: u64, minute: u64, rows: u64) {
        let mut flush = self.table.begin_epoch(number).unwrap();
        for slot in 0..rows {
            let noise = (slot << 20 | minute).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let element = [noise.to_ne_bytes(), noise.rotate_left(29).to_ne_bytes()].concat();
            flush.write_slots(slot, &element).unwrap();
        }
        let opened = BEGIN + minute * MINUTE;
        let flipped_from = opened + MINUTE;
        let epoch = HistoryEpoch {
            number,
            opened,
            flipped_from,
            flipped_to: flipped_from + 20,
            ..HistoryEpoch::default()
        };
        flush.finish(&epoch).unwrap();
    }

    /// The rows of the table, as ClickHouse is to have them.
    fn rows(&self) -> BTreeMap<(u64, u64), Vec<Value>> {
        let mut all = BTreeMap::new();
        for kept in self.table.kept_epochs().unwrap() {
            let HistoryEpoch { number, opened, flipped_to, .. } = kept.epoch;
            let row = |slot: u64, element: &[u8]| {
                let checksum = u32::from_be_bytes(element[..4].try_into().unwrap());
                let value = to_hex_digits(&element[4..]);
                let row = json!(["c1", opened, flipped_to, number, slot, checksum, value]);
                all.insert((number, slot), row.as_array().unwrap().clone());
            };
            self.table.scan_epoch(number, row).unwrap();
        }
        all
    }

    /// Checks that the server has each row once.
    fn check(&self) {
        self.check_rows(self.rows());
    }

    fn check_rows(&self, expected: BTreeMap<(u64, u64), Vec<Value>>) {
        let rows = self.clickhouse.table("last").unwrap().rows;
        assert_eq!(rows.len(), expected.len());
        let key = |row: &Vec<Value>| (row[3].as_u64().unwrap(), row[4].as_u64().unwrap());
        let rows: BTreeMap<_, _> = rows.into_iter().map(|row| (key(&row), row)).collect();
        assert!(rows == expected, "other rows");
    }
}

fn spec() -> StoreSpec {
    let kind = StoreKind::KeyWrite { slots: 1 << 22, value_len: 12, redundancy: 2, keys: Default::default() };
    StoreSpec { id: 1, name: "last".to_owned(), kind }
}

/// Follows until it has no fault; gives how often it had one.
fn follow(inserter: &mut Inserter, table: &EpochTable, done: &mut InsertProgress) -> usize {
    let mut failed = 0;
    while let Err(error) = inserter.insert_new_epochs(table, done) {
        failed += 1;
        assert!(failed < 1000, "{error}");
    }
    failed
}

#[test]
fn epochs_become_rows_in_blocks() {
    let world = World::new();
    let mut inserter = world.inserter();
    world.write(1, 1, 2 * BLOCK + 50);
    world.write(2, 2, 0);
    world.write(3, 3, BLOCK);
    let mut done = InsertProgress::default();
    assert_eq!(follow(&mut inserter, &world.table, &mut done), 0);
    assert_eq!(done, InsertProgress { epochs: 3, rows: 3 * BLOCK + 50, missed: 0, made: 1 });
    assert_eq!(inserter.waiting_epoch_count(), 0);
    world.check();
    let inserts = world.clickhouse.statements();
    let inserts: Vec<_> = inserts.iter().filter(|(statement, ..)| statement.starts_with("INSERT")).collect();
    // The first one twice: there was no table.
    assert_eq!(inserts.len(), 5);
    let columns: Vec<_> = world.clickhouse.table("last").unwrap().columns;
    let columns: Vec<_> = columns.iter().map(|(name, of)| format!("{name} {of}")).collect();
    let expected = [
        "collector LowCardinality(String)",
        "opened DateTime64(3, 'UTC')",
        "closed DateTime64(3, 'UTC')",
        "epoch UInt64",
        "slot UInt64",
        "checksum UInt32",
        "value FixedString(12)",
    ];
    assert_eq!(columns, expected);
    // Nothing is new.
    assert_eq!(follow(&mut inserter, &world.table, &mut done), 0);
    assert_eq!(world.clickhouse.statements(), []);
}

#[test]
fn rows_are_there_once_whatever_goes_wrong() {
    let world = World::new();
    let mut inserter = world.inserter();
    let (mut done, mut failed) = (InsertProgress::default(), 0);
    let fates = [
        Fate::AnswerLost,
        Fate::Status(500, "Code: 241. DB::Exception: Memory limit (total) exceeded"),
        Fate::Answered,
        Fate::Refused,
        Fate::Status(502, "<html>Bad Gateway</html>"),
        Fate::AnswerLost,
        Fate::After(Duration::from_millis(50)),
    ];
    let mut n = 0;
    world.clickhouse.faults(move |_| {
        n += 1;
        fates[n % fates.len()]
    });
    for minute in 1..40 {
        world.write(minute, minute, if minute % 10 == 0 { 2 * BLOCK + 1 } else { 500 });
        failed += follow(&mut inserter, &world.table, &mut done);
        if minute % 10 == 5 {
            // The same rows in other files are no news.
            world.table.compact_span(BEGIN..BEGIN + minute * MINUTE).unwrap();
        }
    }
    assert_eq!(
        done,
        InsertProgress { epochs: 39, rows: 36 * 500 + 3 * (2 * BLOCK + 1), missed: 0, made: done.made }
    );
    assert!(failed > 40, "{failed}");
    world.check();
    // A block has a token of its own, and keeps it when it is sent again.
    let statements = world.clickhouse.statements();
    let inserts = statements.iter().filter(|(statement, ..)| statement.starts_with("INSERT"));
    let mut lengths: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    inserts.for_each(|(_, token, len)| lengths.entry(token).or_default().push(*len));
    assert_eq!(lengths.len(), 36 + 3 * 3);
    assert!(lengths.values().all(|lengths| lengths.iter().all(|len| *len == lengths[0])));
}

#[test]
fn a_restart_goes_on_where_the_last_run_was() {
    let world = World::new();
    world.write(1, 1, 300);
    world.write(2, 2, 3 * BLOCK);
    let mut done = InsertProgress::default();
    // The answer to the second block of epoch 2 is lost, and the program dies.
    let mut inserts = 0;
    world.clickhouse.faults(move |statement| {
        inserts += usize::from(statement.starts_with("INSERT"));
        if inserts == 4 { Fate::AnswerLost } else { Fate::Answered }
    });
    let error = world.inserter().insert_new_epochs(&world.table, &mut done).unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!((done.epochs, done.rows), (1, 300 + BLOCK));
    world.clickhouse.faults(|_| Fate::Answered);
    world.clickhouse.statements();
    // Its files are compacted meanwhile.
    world.table.compact_span(BEGIN..BEGIN + 60 * MINUTE).unwrap().unwrap();
    let mut again = world.inserter();
    assert_eq!(follow(&mut again, &world.table, &mut done), 0);
    assert_eq!((done.epochs, done.rows), (2, 300 + 3 * BLOCK));
    assert_eq!(world.clickhouse.statements().len(), 2);
    world.check();
    // Also without what it knew: the server remembers the blocks.
    std::fs::remove_file(world.table.table_path().join("_clickhouse.json")).unwrap();
    assert_eq!(follow(&mut world.inserter(), &world.table, &mut InsertProgress::default()), 0);
    assert_eq!(world.clickhouse.statements().len(), 4);
    world.check();
    // Another server gets all of it.
    let other = ClickHouse::start();
    let login = Some((LOGIN.0.to_owned(), LOGIN.1.to_owned()));
    let server = ClickHouseServer::open(&other.url(), DATABASE, login, None, "c1").unwrap();
    follow(&mut Inserter::new(Arc::new(server), "last"), &world.table, &mut InsertProgress::default());
    assert_eq!(other.table("last").unwrap().rows.len() as u64, 300 + 3 * BLOCK);
    // The first one gets nothing twice for that.
    assert_eq!(follow(&mut world.inserter(), &world.table, &mut InsertProgress::default()), 0);
    assert_eq!(world.clickhouse.statements(), []);
}

#[test]
fn epochs_that_go_before_the_server_is_there_are_counted() {
    let world = World::new();
    let mut inserter = world.inserter();
    let mut done = InsertProgress::default();
    (1..=10).for_each(|minute| world.write(minute, minute, 500));
    world.clickhouse.faults(|_| Fate::Refused);
    inserter.insert_new_epochs(&world.table, &mut done).unwrap_err();
    assert_eq!((inserter.waiting_epoch_count(), done.missed), (10, 0));
    // 3 go; the others become one.
    let retention = Retention { keep: Some(Duration::from_millis(MINUTE)), keep_bytes: None };
    assert_eq!(world.table.apply_retention(&retention, BEGIN + 5 * MINUTE + 21).unwrap().epochs, [1, 2, 3]);
    world.table.coarsen_span(BEGIN..BEGIN + 60 * MINUTE, |_| Value::Null).unwrap().unwrap();
    inserter.insert_new_epochs(&world.table, &mut done).unwrap_err();
    assert_eq!((inserter.waiting_epoch_count(), done.missed), (1, 3));
    world.clickhouse.faults(|_| Fate::Answered);
    follow(&mut inserter, &world.table, &mut done);
    assert_eq!((inserter.waiting_epoch_count(), done.epochs, done.missed), (0, 1, 3));
    world.check();
    // Those that the server has may become one, or go.
    world.write(11, 11, 500);
    follow(&mut inserter, &world.table, &mut done);
    let rows = world.rows();
    world.table.coarsen_span(BEGIN..BEGIN + 60 * MINUTE, |_| Value::Null).unwrap().unwrap();
    follow(&mut inserter, &world.table, &mut done);
    let retention = Retention { keep: Some(Duration::ZERO), keep_bytes: None };
    world.table.apply_retention(&retention, BEGIN + 60 * MINUTE).unwrap();
    follow(&mut inserter, &world.table, &mut done);
    assert_eq!((done.epochs, done.rows, done.missed), (2, 1000, 3));
    world.check_rows(rows);
    // In a table that has lost all of its epochs numbers begin anew.
    world.write(1, 70, 500);
    let clickhouse = world.clickhouse.drop_table("last").unwrap();
    assert_eq!(clickhouse.rows.len(), 1000);
    follow(&mut inserter, &world.table, &mut done);
    assert_eq!((done.epochs, done.rows, done.missed, done.made), (3, 1500, 3, 2));
    world.check();
}

#[test]
fn an_epoch_that_changes_while_it_is_inserted_is_not_mixed() {
    let world = World::new();
    let (mut inserter, mut done) = (world.inserter(), InsertProgress::default());
    world.write(1, 1, 500);
    world.write(2, 2, BLOCK + 500);
    let mut inserts = 0;
    world.clickhouse.faults(move |_| {
        inserts += 1;
        if inserts > 3 { Fate::Refused } else { Fate::Answered }
    });
    // The table is made, and gets the first epoch; the second has a block left.
    inserter.insert_new_epochs(&world.table, &mut done).unwrap_err();
    assert_eq!((done.epochs, done.rows), (1, 500));
    let mut inserts = 0;
    world.clickhouse.faults(move |_| {
        inserts += 1;
        if inserts > 1 { Fate::Refused } else { Fate::Answered }
    });
    inserter.insert_new_epochs(&world.table, &mut done).unwrap_err();
    assert_eq!((done.epochs, done.rows), (1, 500 + BLOCK));
    let mut rows = world.rows();
    rows.retain(|(epoch, slot), _| *epoch == 1 || *slot < BLOCK);
    world.table.coarsen_span(BEGIN..BEGIN + 60 * MINUTE, |_| Value::Null).unwrap().unwrap();
    world.clickhouse.faults(|_| Fate::Answered);
    let mut inserter = world.inserter();
    follow(&mut inserter, &world.table, &mut done);
    assert_eq!((done.epochs, done.missed, inserter.waiting_epoch_count()), (1, 1, 0));
    world.check_rows(rows);
}

#[test]
fn what_cannot_be_read_does_not_hold_up_the_rest() {
    let world = World::new();
    (1..=3).for_each(|minute| world.write(minute, minute, 500));
    let file =
        world.table.data_files().unwrap().into_iter().find(|file| file.epochs[0].epoch.number == 2).unwrap();
    let mut rows = world.rows();
    let path = world.folder.path().join("last").join(file.name);
    std::fs::write(path, b"nothing of the kind").unwrap();
    let (table, mut done) =
        (EpochTable::open(world.folder.path(), &spec()).unwrap(), InsertProgress::default());
    let mut inserter = world.inserter();
    let error = inserter.insert_new_epochs(&table, &mut done).unwrap_err();
    assert!(matches!(error, ClickHouseError::Table(_)), "{error}");
    assert_eq!(follow(&mut inserter, &table, &mut done), 0);
    assert_eq!((done.epochs, done.missed), (2, 1));
    rows.retain(|(epoch, _), _| *epoch != 2);
    world.check_rows(rows);
}

#[test]
fn what_a_server_refuses_is_said() {
    let world = World::new();
    let refusal = |server: &ClickHouseServer| server.check_server().unwrap_err().to_string();
    world.server(DATABASE, LOGIN.1).check_server().unwrap();
    let url = world.clickhouse.url();
    let refused = refusal(&world.server(DATABASE, "guessed"));
    assert_eq!(
        refused,
        format!(
            "{url}/: user or password is wrong, or may not do that (Code: 516. DB::Exception: writer: Authentication failed: password is incorrect)"
        )
    );
    let refused = refusal(&world.server("nix", LOGIN.1));
    assert!(refused.contains("there is no database \"nix\": create it with CREATE DATABASE"), "{refused}");
    let server = world.server(DATABASE, LOGIN.1);
    for (status, body, expected) in [
        (
            404,
            "Code: 115, e.displayText() = DB::Exception: Unknown setting insert_deduplication_token",
            "22.2 or newer",
        ),
        (404, "not found", "it answers 404 (not found); is this the HTTP port of ClickHouse?"),
        (200, "<html>\n", "it answers \"<html>\\n\"; is this the HTTP port of ClickHouse?"),
    ] {
        world.clickhouse.faults(move |_| Fate::Status(status, body));
        let error = server.check_server().unwrap_err();
        assert!(
            error.is_of_all() && !error.is_transient() && error.to_string().contains(expected),
            "{error}"
        );
    }
    for (status, body) in [(503, ""), (500, "Code: 202. DB::Exception: Too many simultaneous queries")] {
        world.clickhouse.faults(move |_| Fate::Status(status, body));
        assert!(server.check_server().unwrap_err().is_transient());
    }
    // Another table may be taken.
    world.write(1, 1, 5);
    let body = "Code: 16. DB::Exception: No such column checksum in table dta.last";
    world.clickhouse.faults(move |_| Fate::Status(500, body));
    let error = world.inserter().insert_new_epochs(&world.table, &mut InsertProgress::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("{url}/, table last: {body}"));
    assert!(!error.is_of_all());
    let body = "Code: 497. DB::Exception: dta: Not enough privileges";
    world.clickhouse.faults(move |statement| match statement.starts_with("INSERT") {
        true => Fate::Status(404, "Code: 60. DB::Exception: Table dta.last does not exist"),
        false => Fate::Status(403, body),
    });
    let error = world.inserter().insert_new_epochs(&world.table, &mut InsertProgress::default()).unwrap_err();
    assert!(error.to_string().contains("the user may not insert into this table, or create it"), "{error}");
    assert!(!error.is_of_all() && server.check_server().unwrap_err().is_of_all());
    // A password is in no error and no log, even of a server that repeats the request.
    assert!(!format!("{server:?}").contains(LOGIN.1));
    for (status, body) in [
        (200, "X-ClickHouse-Key: ECHO"),
        (403, "you sent ECHO"),
        (503, "you sent ECHO"),
        (500, "Code: 516. DB::Exception: no user with password ECHO"),
    ] {
        let body: &str = body.replace("ECHO", LOGIN.1).leak();
        world.clickhouse.faults(move |_| Fate::Status(status, body));
        let error = server.check_server().unwrap_err().to_string();
        assert!(!error.contains(LOGIN.1) && error.contains("***"), "{error}");
    }
}

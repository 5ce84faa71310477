//! Statements: rows, formats, limits, and what is refused.

use std::time::{SystemTime, UNIX_EPOCH};

use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use dta_history::{EpochTable, HistoryEpoch};
use dta_proto::key::Key;
use dta_proto::layout::hash;
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use dta_proto::to_hex_digits;
use serde_json::{Value, json};

use super::made::{
    BEGIN, EPOCHS, FLOWS, MINUTE, copies, flow, key_writes, postcards, region, reported, used,
};
use super::{dta_program, failure, history, program, rows, sql, text};

#[test]
fn every_row_of_both_stores_is_there_as_it_was_written() {
    let folder = history();
    for spec in [key_writes(), postcards()] {
        let len = spec.element_len() as usize;
        let is_of_key_write = spec.id == 1;
        let columns = if is_of_key_write {
            "value"
        } else {
            "bitmap, length, hop_0, hop_1, hop_2, hop_3, hop_4, hop_5"
        };
        let statement =
            format!("select epoch, slot, checksum, {columns} from {} order by epoch, slot", spec.name);
        let mut expected = Vec::new();
        for epoch in EPOCHS {
            for (slot, element) in region(&spec, epoch).chunks_exact(len).enumerate() {
                if element.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let be32 = |at: usize| u32::from_be_bytes(element[at..at + 4].try_into().unwrap());
                let mut row = json!({ "epoch": epoch, "slot": slot, "checksum": be32(0) });
                if is_of_key_write {
                    row["value"] = to_hex_digits(&element[4..]).into();
                } else {
                    row["bitmap"] = u16::from_be_bytes([element[4], element[5]]).into();
                    row["length"] = element[6].into();
                    for hop in 0..6 {
                        row[format!("hop_{hop}")] = be32(8 + 4 * hop).into();
                    }
                }
                expected.push(row);
            }
        }
        assert_eq!(rows(folder.path(), &statement), expected);
        assert_eq!(
            rows(folder.path(), &format!("select count(*) as n from {}", spec.name)),
            [json!({ "n": expected.len() })]
        );
    }
}

#[test]
fn tables_of_all_kinds_of_stores_have_the_rows_that_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let made = std::process::Command::new(dta_program("examples/history_rows")).arg(folder.path()).output();
    let tables: Vec<Value> = serde_json::from_slice(&made.unwrap().stdout).unwrap();
    assert_eq!(tables.len(), 9);
    for table in tables {
        let store = table["store"].as_str().unwrap();
        let statement = format!("select * except (opened, closed) from \"{store}\"");
        let output = sql(folder.path(), &["-o", "csv", &statement], "");
        assert!(output.status.success(), "{store}: {}", text(&output.stderr));
        let output = text(&output.stdout);
        let cells = |row: &Value| {
            let cells = row.as_array().unwrap().iter();
            let cells = cells.map(|cell| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned));
            cells.collect::<Vec<_>>().join(",")
        };
        let mut expected: Vec<String> = table["rows"].as_array().unwrap().iter().map(cells).collect();
        let mut rows: Vec<&str> = output.lines().skip(1).collect();
        rows.sort_unstable();
        expected.sort_unstable();
        assert!(rows.len() > 1000, "{store}");
        assert_eq!(rows, expected, "{store}");
    }
    // Whose a row is, a slot with an inline key says itself.
    let inline = "\"inline-key-write\" r";
    let counts = rows(
        folder.path(),
        &format!(
            "select count(*) as n, count(*) filter (where dta_match(r.key, checksum, r.key, value)) as own, \
             count(*) filter (where dta_match(dta_key('ab'), checksum, r.key, value)) as others from {inline}"
        ),
    );
    assert_eq!(counts, [json!({ "n": counts[0]["n"], "own": counts[0]["n"], "others": 0 })]);
    assert_eq!(rows(folder.path(), "select * from dta_rows('inline-key-write', 'ab')"), [json!(null); 0]);
    // Tables of flows are of the same epochs as their stores.
    let flows = "select count(*) as n from epochs where store like '%flows'";
    assert_eq!(rows(folder.path(), flows), [json!({ "n": 0 })]);
}

#[test]
fn what_the_logs_say_of_epochs_is_in_columns() {
    let folder = tempfile::tempdir().unwrap();
    let sketches = StoreKind::SketchMerge { columns: 64, rows: 3, epochs: 4, merge: Merge::Sum, expected: 2 };
    let lists = StoreKind::Append { lists: 4, ring: 64, batch_len: 64, entry_len: 12, notify: false };
    let waterfall = json!({
        "sent": 9, "landed": 7, "frames": 14, "overwritten": 3, "missing": 2, "damaged": 1,
        "lost": { "dropped.nic.icrc": 4, "lost.translator-nic": 6 },
    });
    for (name, kind, epoch) in [
        (
            "events",
            lists,
            HistoryEpoch {
                number: 1,
                opened: BEGIN,
                flipped_from: BEGIN + MINUTE,
                flipped_to: BEGIN + MINUTE,
                confirmed: true,
                // It has all that came but for the time in which the collector was down.
                restarted: Some(BEGIN + 1500),
                waterfall,
                ..HistoryEpoch::default()
            },
        ),
        (
            "sizes",
            sketches,
            HistoryEpoch {
                number: 1,
                opened: BEGIN,
                confirmed: true,
                sketch: Some(77),
                ..HistoryEpoch::default()
            },
        ),
    ] {
        let table =
            EpochTable::open(folder.path(), &StoreSpec { id: 1, name: name.to_owned(), kind }).unwrap();
        table.begin_epoch(1).unwrap().finish(&epoch).unwrap();
    }
    let columns = "store, primitive, complete, restarted, rows, sketch_epoch, sent, landed, frames, overwritten, missing, damaged";
    assert_eq!(
        rows(folder.path(), &format!("select {columns} from epochs order by store")),
        [
            json!({
                "store": "events", "primitive": "append", "complete": false, "restarted": "2026-11-24T14:00:01.500Z", "rows": 0,
                "sketch_epoch": null, "sent": 9, "landed": 7, "frames": 14, "overwritten": 3, "missing": 2, "damaged": 1,
            }),
            json!({
                "store": "sizes", "primitive": "sketch-merge", "complete": true, "restarted": null, "rows": 0, "sketch_epoch": 77,
                "sent": null, "landed": null, "frames": null, "overwritten": null, "missing": null, "damaged": null,
            }),
        ]
    );
    assert_eq!(
        rows(folder.path(), "select * from losses order by lost"),
        [("dropped.nic.icrc", 4), ("lost.translator-nic", 6)].map(|(reason, lost)| {
            json!({ "opened": "2026-11-24T14:00:00Z", "closed": "2026-11-24T14:01:00Z", "reason": reason, "lost": lost })
        })
    );
}

#[test]
fn losses_count_once_whichever_stores_have_epochs() {
    let folder = tempfile::tempdir().unwrap();
    // Losses of 1 a minute, and of 5 in minute 7, in epochs of one, two and five minutes; the third store begins before the others.
    let lost = |minutes: std::ops::Range<u64>| -> u64 {
        minutes.map(|minute| if minute == 7 { 5 } else { 1 }).sum()
    };
    for (id, name, length, minutes) in [(1, "flows", 1, 2..8), (2, "paths", 2, 2..8), (3, "bytes", 5, 0..10)]
    {
        let table =
            EpochTable::open(folder.path(), &StoreSpec { id, name: name.into(), ..key_writes() }).unwrap();
        for (number, from) in (1..).zip(minutes.step_by(length as usize)) {
            let opened = BEGIN + from * MINUTE;
            let epoch = HistoryEpoch {
                number,
                opened,
                flipped_from: opened + length * MINUTE,
                // Writers of one are there when the next one has begun.
                flipped_to: opened + length * MINUTE + 1000,
                waterfall: json!({ "lost": { "lost.translator-nic": lost(from..from + length) } }),
                ..HistoryEpoch::default()
            };
            table.begin_epoch(number).unwrap().finish(&epoch).unwrap();
        }
    }
    let summed = "select cast(sum(lost) as bigint) as lost, count(*) as n from losses where opened between '2026-11-24T14:02:00Z' and '2026-11-24T14:07:00Z'";
    assert_eq!(rows(folder.path(), summed), [json!({ "lost": lost(2..8), "n": 6 })]);
    // No two are of one time.
    let pairs = "select count(*) as n from losses a, losses b where a.opened < b.opened and b.opened < a.closed - interval '1 second'";
    assert_eq!(rows(folder.path(), pairs), [json!({ "n": 0 })]);
}

#[test]
fn times_of_which_nothing_is_kept_are_rows() {
    let folder = tempfile::tempdir().unwrap();
    let table = EpochTable::open(folder.path(), &key_writes()).unwrap();
    for (number, minute) in [(1, 0), (2, 1), (3, 5), (4, 6)] {
        let opened = BEGIN + minute * MINUTE;
        let epoch = HistoryEpoch {
            number,
            opened,
            flipped_from: opened + MINUTE,
            flipped_to: opened + MINUTE + 500,
            ..HistoryEpoch::default()
        };
        table.begin_epoch(number).unwrap().finish(&epoch).unwrap();
    }
    assert_eq!(
        rows(folder.path(), "select * from gaps"),
        [json!({ "store": "flows", "since": "2026-11-24T14:02:00.500Z", "until": "2026-11-24T14:05:00Z" })]
    );
}

#[test]
fn moments_choose_epochs_and_files_by_the_log() {
    let folder = history();
    let answer = rows(
        folder.path(),
        "select opened, closed, epoch, count(*) as n from flows where opened > '2026-11-24T14:02:00Z' group by all order by epoch",
    );
    let expected: Vec<_> = (4..=10u64)
        .map(|epoch| {
            json!({
                "opened": format!("2026-11-24T14:{:02}:00Z", epoch - 1), "closed": format!("2026-11-24T14:{epoch:02}:00.500Z"),
                "epoch": epoch, "n": used(&key_writes(), epoch),
            })
        })
        .collect();
    assert_eq!(answer, expected);
    // Epochs 1 to 5 are in one file, 6 to 10 in five: only those that are asked for are read.
    for (condition, files) in [
        ("true", 6),
        ("epoch = 3", 1),
        ("epoch = 9", 1),
        ("timestamp '2026-11-24T14:09:30Z' between opened and closed", 1),
        ("opened >= '2026-11-24T14:08:00Z'", 2),
        ("opened < '2026-11-24T14:00:00Z'", 0),
        ("opened is null", 0),
        ("epoch in (2, 4, 8)", 2),
    ] {
        let explained = sql(
            folder.path(),
            &["-o", "csv", &format!("explain select value from flows where {condition}")],
            "",
        );
        let plan = text(&explained.stdout);
        let found: std::collections::BTreeSet<&str> =
            plan.split(['/', ',', ']', ':']).filter(|part| part.ends_with(".parquet")).collect();
        assert_eq!(found.len(), files, "{condition}\n{plan}");
        let counted = rows(folder.path(), &format!("select count(value) as n from flows where {condition}"));
        let all = rows(folder.path(), "select epoch, opened, closed from flows");
        assert!(all.len() > 400);
        if files == 0 {
            assert_eq!(counted, [json!({ "n": 0 })], "{condition}");
        }
    }
    let in_three =
        rows(folder.path(), "select count(value) as n from flows where epoch in (2, 4, 8) or opened is null");
    let expected: usize = [2, 4, 8].map(|epoch| used(&key_writes(), epoch)).iter().sum();
    assert_eq!(in_three, [json!({ "n": expected })]);
}

#[test]
fn the_rows_of_a_key_are_found_and_no_others() {
    let folder = history();
    for (spec, columns) in
        [(key_writes(), "value"), (postcards(), "bitmap, length, hop_0, hop_1, hop_2, hop_3, hop_4, hop_5")]
    {
        for number in [0, 7, 39] {
            let flow = flow(number);
            let answer = rows(
                folder.path(),
                &format!("select epoch, copy from dta_rows('{}', '{flow}') order by epoch, copy", spec.name),
            );
            let of_epoch = |epoch| {
                copies(&spec, number, epoch)
                    .into_iter()
                    .map(move |copy| json!({ "epoch": epoch, "copy": copy }))
            };
            let expected: Vec<_> = EPOCHS.flat_map(of_epoch).collect();
            assert!(expected.len() > 8);
            assert_eq!(answer, expected, "{} {flow}", spec.name);
            // The same by functions over all rows.
            let all = format!(
                "select epoch, slot from {} where dta_match(dta_key('{flow}'), checksum, {columns}) order by 1, 2",
                spec.name
            );
            assert_eq!(rows(folder.path(), &all).len(), expected.len());
        }
        let none = format!("select * from dta_rows('{}', '10.9.9.9:1->10.9.9.9:2/tcp')", spec.name);
        assert_eq!(rows(folder.path(), &none), [json!(null); 0]);
    }
}

#[test]
fn functions_are_the_arithmetic_of_keys() {
    let folder = history();
    let key: Key = flow(3).parse().unwrap();
    let hex = to_hex_digits(&key.0);
    let slots = hash::key_slots(&key, 2, key_writes().element_count());
    let statement = format!(
        "select dta_flow('{0}') as flow, dta_key('{hex}') as key, dta_key_text(dta_key('{hex}')) as text, dta_slot('flows', dta_key('{0}'), 1) as slot, \
         dta_uint(dta_key('{hex}'), 8, 2) as port, dta_uint(dta_key('{hex}'), 12, 5) as beyond, dta_path(5, 4, 7, 0, 9, 0) as path, \
         dta_path(5, 0, 7, 0, 9, 0) as open, dta_key_text(null) as none",
        flow(3)
    );
    let expected = json!({
        "flow": hex, "key": hex, "text": flow(3), "slot": slots[1], "port": 5000, "beyond": null, "path": "7 > ? > 9 > ?", "open": "7 > ? > 9", "none": null,
    });
    assert_eq!(rows(folder.path(), &statement), [expected]);
    for (wrong, what) in [
        ("dta_flow('10.0.0.1')", "is not a key"),
        ("dta_key('xyz')", "is not a key"),
        ("dta_key_text(dta_uint(dta_key('ab'), 0, 4))", "dta_key_text"),
        ("dta_slot('flows', dta_key('ab'), 2)", "copy is 0 to 1"),
        ("dta_slot('flowz', dta_key('ab'), 0)", "no store \"flowz\""),
        ("dta_uint(dta_key('ab'), 0, 9)", "length 1 to 8"),
        ("dta_match(dta_key('ab'), 1, 2, 3, 4)", "dta_match(key, checksum, bitmap, length, hop_0, …)"),
    ] {
        let error = failure(folder.path(), &[&format!("select {wrong}")]);
        assert!(error.contains(what), "{wrong}: {error}");
    }
    for (wrong, what) in [
        ("dta_rows('flows')", "write dta_rows('STORE', 'KEY')"),
        ("dta_rows('flowz', 'ab')", "there are: flows, paths"),
        ("dta_rows('flows', 'xyz')", "is not a key"),
    ] {
        let error = failure(folder.path(), &[&format!("select * from {wrong}")]);
        assert!(error.contains(what), "{wrong}: {error}");
    }
}

#[test]
fn answers_come_in_each_format() {
    let folder = history();
    let statement = "select opened, reason, lost from losses where opened < '2026-11-24T14:02:00Z' order by opened, lost, reason desc";
    let of = |format: &str| {
        let output = sql(folder.path(), &["-o", format, statement], "");
        assert!(output.status.success(), "{}", text(&output.stderr));
        output.stdout
    };
    assert_eq!(
        text(&of("table")),
        "opened                reason               lost\n\
         2026-11-24T14:00:00Z  lost.translator-nic     1\n\
         2026-11-24T14:00:00Z  dropped.nic.icrc        1\n\
         2026-11-24T14:01:00Z  dropped.nic.icrc        1\n\
         2026-11-24T14:01:00Z  lost.translator-nic     2\n"
    );
    assert_eq!(
        text(&of("csv")),
        "opened,reason,lost\n\
         2026-11-24T14:00:00Z,lost.translator-nic,1\n\
         2026-11-24T14:00:00Z,dropped.nic.icrc,1\n\
         2026-11-24T14:01:00Z,dropped.nic.icrc,1\n\
         2026-11-24T14:01:00Z,lost.translator-nic,2\n"
    );
    assert_eq!(text(&of("json")).lines().count(), 4);
    let file = ParquetRecordBatchReaderBuilder::try_new(prost::bytes::Bytes::from(of("parquet"))).unwrap();
    let batches: Vec<_> = file.build().unwrap().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 4);
    assert_eq!(batches[0].schema().field(0).name(), "opened");
    // Statements of standard input, several of them.
    let output = sql(folder.path(), &["-o", "csv"], "select 1 as a;\nselect ';' as b;\n");
    assert_eq!(text(&output.stdout), "a\n1\nb\n;\n");
    let error = failure(folder.path(), &["-o", "parquet", "select 1; select 2"]);
    assert!(error.contains("one statement"), "{error}");
    // An answer without rows has its columns all the same.
    let output = sql(folder.path(), &["-o", "csv", "select store from epochs where false"], "");
    assert_eq!(text(&output.stdout), "store\n");
}

#[test]
fn nothing_is_written_and_no_other_file_is_read() {
    let folder = history();
    let other = folder.path().join("secret.csv");
    std::fs::write(&other, "a\n1\n").unwrap();
    let secret = other.display();
    let to = folder.path().join("out.csv");
    for statement in [
        format!("create external table t stored as csv location '{secret}'"),
        format!("copy (select 1) to '{}'", to.display()),
        "create table t as select 1".to_owned(),
        "create view v as select 1".to_owned(),
        "insert into epochs select * from epochs".to_owned(),
        "delete from flows".to_owned(),
        "drop table flows".to_owned(),
        "set datafusion.execution.batch_size = 1".to_owned(),
        format!("explain analyze copy (select 1) to '{}'", to.display()),
    ] {
        let error = failure(folder.path(), &[&statement]);
        assert!(error.contains("only reads") || error.contains("nsupported"), "{statement}: {error}");
    }
    for statement in [
        format!("select * from '{secret}'"),
        format!("select * from read_csv('{secret}')"),
        format!("select * from \"{secret}\""),
        "select * from 'flows/_delta_log/00000000000000000000.json'".to_owned(),
    ] {
        let error = failure(folder.path(), &[&statement]);
        assert!(
            error.contains("not found")
                || error.contains("doesn't exist")
                || error.contains("does not exist"),
            "{statement}: {error}"
        );
    }
    assert!(!to.exists());
    assert_eq!(rows(folder.path(), "select count(*) as n from flows where epoch = 1").len(), 1);
}

#[test]
fn a_statement_that_needs_much_memory_spills_or_fails_with_what_to_do() {
    let folder = history();
    // 110 MB are sorted.
    let sorted = "select max(r) as n from (select row_number() over (order by y, x) as r \
                  from (select x, repeat('x', 100) || (x % 1000) as y from generate_series(1, 1000000) a(x)))";
    let output = sql(folder.path(), &["-o", "json", "--memory-mib", "64", sorted], "");
    assert_eq!(text(&output.stdout), "{\"n\":1000000}\n", "{}", text(&output.stderr));
    let all = "select array_agg(value) from generate_series(1, 20000000)";
    let error = failure(folder.path(), &["--memory-mib", "64", all]);
    assert!(error.contains("--memory-mib"), "{error}");
}

#[test]
fn wrong_folders_and_damage_are_named() {
    let folder = history();
    let none = folder.path().join("none");
    let output = sql(&none, &["show tables"], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--history DIR names another"), "{}", text(&output.stderr));
    // The other tables are there.
    let log = folder.path().join("paths/_delta_log/00000000000000000000.json");
    std::fs::write(&log, "{\"commitInfo\":{}}\n").unwrap();
    let output =
        sql(folder.path(), &["-o", "csv", "select count(*) from (select distinct store from epochs)"], "");
    assert!(text(&output.stdout).ends_with("\n1\n"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("store \"paths\" is left out"), "{}", text(&output.stderr));
    // A file whose index is damaged is not read.
    let damaged = std::fs::read_dir(folder.path().join("flows"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.to_string_lossy().contains("000000000007"))
        .unwrap();
    let mut bytes = std::fs::read(&damaged).unwrap();
    let at = bytes.len() - 20;
    bytes[at] ^= 0xff;
    std::fs::write(&damaged, bytes).unwrap();
    let error = failure(folder.path(), &["select * from flows"]);
    assert!(error.contains("its index is damaged"), "{error}");
    assert_eq!(rows_beside_damage(folder.path()), used(&key_writes(), 8));
}

fn rows_beside_damage(folder: &std::path::Path) -> usize {
    let output = sql(folder, &["-o", "json", "select count(value) as n from flows where epoch = 8"], "");
    let row: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    row["n"].as_u64().unwrap() as usize
}

#[test]
fn the_folder_is_that_of_the_collectors_configuration() {
    let folder = history();
    let config = folder.path().join("config/dta");
    std::fs::create_dir_all(&config).unwrap();
    let file = config.join("collector.toml");
    let run = |directory: &str| {
        std::fs::write(&file, format!("[collector]\nname = \"c\"\nlisten = \"127.0.0.1:1\"\n{directory}"))
            .unwrap();
        let mut command = program(folder.path());
        command.env_remove("DTA_HISTORY_HISTORY").env("XDG_CONFIG_HOME", folder.path().join("config"));
        command.env("STATE_DIRECTORY", folder.path().join("state"));
        command.args(["sql", "-o", "csv", "select count(*) from epochs"]).output().unwrap()
    };
    let output = run("");
    assert!(text(&output.stderr).contains("state/history-c"), "{}", text(&output.stderr));
    let output = run(&format!("[history]\ndirectory = {:?}\n", folder.path()));
    assert_eq!(text(&output.stdout).lines().last(), Some("20"), "{}", text(&output.stderr));
    let output = run("[history]\ndirectory = 7\n");
    assert!(text(&output.stderr).contains("collector.toml"), "{}", text(&output.stderr));
}

#[test]
fn examples_of_the_help_are_run() {
    let folder = tempfile::tempdir().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    super::made::history(folder.path(), now - 10 * MINUTE);
    assert!(now > BEGIN - 365 * 86_400_000);
    let mut run = 0;
    for page in [vec!["--help"], vec!["sql", "--help"]] {
        let help = text(&program(folder.path()).args(&page).output().unwrap().stdout);
        let mut lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        let mut example = String::new();
        for line in lines.by_ref().take_while(|line| !line.is_empty()) {
            if line.starts_with("  dta-history") || line.starts_with("  echo") {
                run += usize::from(check(folder.path(), &std::mem::take(&mut example)));
            }
            example += line.trim_start();
            example += " ";
        }
        run += usize::from(check(folder.path(), &example));
    }
    assert_eq!(run, 8);
    let exported = std::fs::read(folder.path().join("epochs.csv")).unwrap();
    assert_eq!(text(&exported).lines().count(), 21);
    assert!(std::fs::read(folder.path().join("hour.parquet")).unwrap().ends_with(b"PAR1"));
}

/// Runs an example; `false` if it would not end by itself: the server, and the prompt, which have tests of their own.
fn check(folder: &std::path::Path, example: &str) -> bool {
    let example = example.trim();
    if example.is_empty() || example == "dta-history serve" || example == "dta-history sql" {
        return false;
    }
    let bin = std::path::Path::new(super::PROGRAM).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", example]).current_dir(folder).env("PATH", path).env("DTA_HISTORY_HISTORY", folder);
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{example}\n{}", text(&output.stderr));
    assert!(example.contains('>') && !example.contains("->") || !output.stdout.is_empty(), "{example}");
    true
}

#[test]
fn flows_of_the_test_are_what_they_should_be() {
    // Questions about them would be empty otherwise.
    assert!(reported(7, 3).is_some() && reported(7, 2).is_none());
    assert!(
        (0..FLOWS).all(|number| EPOCHS.clone().any(|epoch| !copies(&key_writes(), number, epoch).is_empty()))
    );
}

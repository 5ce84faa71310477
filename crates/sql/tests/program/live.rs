//! The memory of a running collector beside the history.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::made::{copies, key_writes, postcards, region, reported};
use super::{history, sql, text};

struct Collector(Child, String);

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A collector whose stores hold what was reported in an epoch: written into its region files, as a NIC does.
fn collector(folder: &Path, epoch: u64) -> Collector {
    let config = folder.join("collector.toml");
    let stores = "[[store]]\nid = 1\nname = \"flows\"\nkind = \"key-write\"\nslots = 4096\nvalue_len = 12\nredundancy = 2\n\
                  [[store]]\nid = 2\nname = \"paths\"\nkind = \"postcarding\"\nslots = 4096\nhops = 6\nredundancy = 2\n\
                  [[store]]\nid = 3\nname = \"counts\"\nkind = \"key-increment\"\nslots = 1024\nredundancy = 1\n";
    std::fs::write(&config, stores).unwrap();
    let memory = folder.join("memory");
    let mut command = Command::new(super::dta_program("dta-collector"));
    command.args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--soft-port",
        "0",
        "--metrics",
        "off",
        "--log",
        "warn",
    ]);
    command.arg("--config").arg(&config).arg("--memory").arg(&memory).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).expect("a ready line");
    for spec in [key_writes(), postcards()] {
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(memory.join(format!("{}.region", spec.name)))
            .unwrap();
        // docs/region-file.md: where the data begins.
        let mut offset = [0; 8];
        file.read_exact_at(&mut offset, 16).unwrap();
        file.write_all_at(&region(&spec, epoch), u64::from_le_bytes(offset)).unwrap();
    }
    Collector(process, ready["listen"].as_str().unwrap().to_owned())
}

#[test]
fn live_memory_is_a_table_beside_the_history() {
    let folder = history();
    // As an epoch would be that is not in the history.
    let collector = collector(folder.path(), 11);
    let ask = |statement: &str| {
        let output = sql(folder.path(), &["-o", "json", "--collector", &collector.1, statement], "");
        assert!(output.status.success(), "{statement}\n{}", text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let tables = ask(
        "select table_schema, table_name from information_schema.tables where table_schema <> 'information_schema' order by 1, 2",
    );
    let names: Vec<String> = tables
        .iter()
        .map(|row| {
            format!("{}.{}", row["table_schema"].as_str().unwrap(), row["table_name"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        names,
        [
            "history.epochs",
            "history.flows",
            "history.gaps",
            "history.losses",
            "history.paths",
            "live.counts",
            "live.flows",
            "live.paths"
        ]
    );
    let [packets, bytes, depth] = reported(5, 11).unwrap();
    let flow = super::made::flow(5);
    let value =
        "dta_uint(value, 0, 4) as packets, dta_uint(value, 4, 4) as bytes, dta_uint(value, 8, 4) as depth";
    let answer = ask(&format!(
        "select epoch, opened, copy, {value} from dta_rows('live.flows', '{flow}') order by copy"
    ));
    let row = |copy| json!({ "epoch": null, "opened": null, "copy": copy, "packets": packets, "bytes": bytes, "depth": depth });
    assert_eq!(answer, copies(&key_writes(), 5, 11).into_iter().map(row).collect::<Vec<_>>());
    // Both together, with the history's columns; and the same copy of memory on both sides of a join.
    let all = ask(
        "select count(*) as n, count(epoch) as kept from (select * from paths union all select * from live.paths)",
    );
    let (kept, live) = (ask("select count(*) as n from paths"), ask("select count(*) as n from live.paths"));
    let n = |rows: &[Value]| rows[0]["n"].as_u64().unwrap();
    assert!(n(&live) > 40);
    assert_eq!((n(&all), all[0]["kept"].as_u64().unwrap()), (n(&kept) + n(&live), n(&kept)));
    assert_eq!(
        n(&ask(
            "select count(*) as n from live.paths a join live.paths b on a.slot = b.slot and a.hop_1 = b.hop_1"
        )),
        n(&live)
    );
    assert_eq!(n(&ask("select count(*) as n from live.flows where epoch = 1 or opened > '2026-01-01'")), 0);
    // Without it the history is there all the same.
    let address = collector.1.clone();
    drop(collector);
    let output =
        sql(folder.path(), &["-o", "csv", "--collector", &address, "select count(*) from epochs"], "");
    assert_eq!(text(&output.stdout).lines().last(), Some("20"));
    assert!(text(&output.stderr).contains("no live.STORE"), "{}", text(&output.stderr));
}

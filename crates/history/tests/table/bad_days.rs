//! Kills at any moment, and full disks.

use std::process::{Command, Stdio};
use std::time::Instant;

use super::*;

/// Set in a process that is there to be killed: the folder of its table.
const TO_BE_KILLED: &str = "DTA_HISTORY_TO_BE_KILLED";
/// Set in a process that has a small file system of its own: where that is.
const SMALL_DISK: &str = "DTA_HISTORY_ON_SMALL_DISK";

/// Writes epochs, compacts and removes them, until it is killed.
fn write_until_killed(dir: &Path, spec: &StoreSpec) {
    let table = EpochTable::open(dir, spec).unwrap();
    let next = table.kept_epochs().unwrap().last().map_or(0, |kept| kept.epoch.number + 1);
    for number in next.. {
        write(&table, &epoch(number), &model(spec, 2, number)).unwrap();
        if number % 5 == 4 {
            table.compact_span((number - 4) * MINUTE..number * MINUTE).unwrap();
        }
        table.make_room(u64::from(number % 7 == 0), 20).unwrap();
    }
}

#[test]
fn whoever_is_killed_leaves_whole_epochs() {
    let spec = key_write(1 << 12, 12);
    if let Some(dir) = std::env::var_os(TO_BE_KILLED) {
        return write_until_killed(Path::new(&dir), &spec);
    }
    let dir = tempfile::tempdir().unwrap();
    let newest = || {
        let table = EpochTable::open_existing(dir.path(), "last").ok()?;
        Some(table.kept_epochs().unwrap().last()?.epoch.number)
    };
    for round in 0..25 {
        let before = newest();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "bad_days::whoever_is_killed_leaves_whole_epochs"])
            .env(TO_BE_KILLED, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while newest() == before {
            assert!(begun.elapsed() < Duration::from_secs(120), "it writes nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        // Somewhere in the next epochs.
        std::thread::sleep(Duration::from_micros(1700 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let table = EpochTable::open(dir.path(), &spec).unwrap();
        assert_eq!(table.log_damage(), Vec::<String>::new());
        let kept = table.kept_epochs().unwrap();
        let numbers: Vec<u64> = kept.iter().map(|kept| kept.epoch.number).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        for kept in kept.iter().rev().take(8) {
            let rows = model(&spec, 2, kept.epoch.number);
            assert_eq!((&kept.epoch, kept.rows), (&epoch(kept.epoch.number), rows.len() as u64));
            assert_eq!(scanned(&table, kept.epoch.number), rows);
        }
        let temporary =
            |folder: &Path| names(folder).into_iter().filter(|name| name.starts_with('.')).count();
        assert_eq!(
            (temporary(table.table_path()), temporary(&table.table_path().join("_delta_log"))),
            (0, 0)
        );
    }
}

#[test]
#[ignore = "mounts a file system, which takes root"]
fn a_full_disk_is_said_to_be_full_and_old_epochs_make_room() {
    let Some(dir) = std::env::var_os(SMALL_DISK) else {
        let folder = tempfile::tempdir().unwrap();
        let mount = format!("mount -t tmpfs -o size=2m none \"${SMALL_DISK}\" && exec \"$@\"");
        let status = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &mount, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "bad_days::a_full_disk_is_said_to_be_full_and_old_epochs_make_room"])
            .args(["--include-ignored", "--nocapture"])
            .env(SMALL_DISK, folder.path())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    };
    let dir = Path::new(&dir);
    let spec = key_write(1 << 14, 12);
    let table = EpochTable::open(dir, &spec).unwrap();
    let mut next = 0;
    let fill = |next: &mut u64| loop {
        match write(&table, &epoch(*next), &model(&spec, 2, *next)) {
            Ok(_) => *next += 1,
            Err(error) => break assert!(error.is_disk_full(), "{error}"),
        }
    };
    fill(&mut next);
    assert!(next > 8, "{next}");
    assert_eq!(data_files(&table).len() as u64, next, "the epoch that had no room left nothing");
    // Somebody else takes what is left: not even a commit fits.
    let rest = fs::write(dir.join("rest"), vec![1; 4 << 20]).unwrap_err();
    assert_eq!(rest.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(table.make_room(1, 3).unwrap().epochs, [0]);
    fs::remove_file(dir.join("rest")).unwrap();
    assert_eq!(table.make_room(300_000, 3).unwrap().epochs[0], 1);
    let before = next;
    fill(&mut next);
    assert!(next > before);
    let again = EpochTable::open(dir, &spec).unwrap();
    for number in [before - 1, next - 1] {
        assert_eq!(scanned(&again, number), model(&spec, 2, number));
    }
}

use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use rustix::fs::{FileType, Mode};

use super::*;

fn kept(n: u32) -> Checkpoint {
    Checkpoint { read: [n, 0, 0, 0], recent: Vec::new() }
}

fn oldest(spool: &Spool) -> Option<SpoolRecord> {
    spool.wait_for_oldest(Duration::ZERO).unwrap()
}

#[test]
fn what_was_not_delivered_is_there_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap();
    let spool = open();
    assert!(oldest(&spool).is_none());
    for n in 1..=3 {
        spool.append_record(&[b'0' + n as u8; 10], 2, kept(n)).unwrap();
    }
    let first = oldest(&spool).unwrap();
    assert_eq!((first.body.as_slice(), first.points), (&[b'1'; 10][..], 2));
    assert!(spool.mark_delivered(&first, || ()).unwrap());
    let refused =
        Spool::open(folder.path(), "exporter influx of east", 1 << 20).expect_err("it is locked").to_string();
    assert!(refused.starts_with("exporter influx of east uses the spool"), "{refused}");
    drop(spool);
    let refused = Spool::open(folder.path(), "exporter influx of west", 1 << 20).unwrap_err().to_string();
    assert!(refused.contains("belongs to exporter influx of east, and this is"), "{refused}");
    let spool = open();
    assert_eq!((spool.pending_points(), spool.checkpoint()), (4, kept(3)));
    for n in 2..=3 {
        let record = oldest(&spool).unwrap();
        assert_eq!(record.body, [b'0' + n; 10]);
        spool.mark_delivered(&record, || ()).unwrap();
    }
    assert!(oldest(&spool).is_none());
    spool.append_record(b"4", 1, kept(4)).unwrap();
    drop(spool);
    let spool = open();
    assert_eq!((oldest(&spool).unwrap().body.as_slice(), spool.checkpoint()), (&b"4"[..], kept(4)));
}

#[test]
fn what_is_gone_from_the_spool_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap();
    spool.append_record(b"1", 1, kept(1)).unwrap();
    let record = oldest(&spool).unwrap();
    let counted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            while spool.pending_points() > 0 {
                std::thread::yield_now();
            }
            counted.load(Ordering::SeqCst)
        });
        let count = || {
            // A reader must wait meanwhile.
            std::thread::sleep(Duration::from_millis(50));
            counted.store(true, Ordering::SeqCst);
        };
        assert!(spool.mark_delivered(&record, count).unwrap());
        assert!(waiting.join().unwrap());
    });
}

#[test]
fn what_was_half_written_is_cut_off_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap();
    (1..=2).for_each(|n| spool.append_record(&[7; 100], 1, kept(n)).unwrap());
    drop(spool);
    let path = segment_path(folder.path(), 1);
    let length = fs::metadata(&path).unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let spool = Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap();
    assert_eq!((spool.pending_points(), spool.checkpoint()), (1, kept(1)));
    spool.append_record(&[8; 100], 1, kept(2)).unwrap();
    let record = oldest(&spool).unwrap();
    spool.mark_delivered(&record, || ()).unwrap();
    assert_eq!(oldest(&spool).unwrap().body, [8; 100]);
}

#[test]
fn beyond_its_bound_the_oldest_is_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), "exporter influx of east", 16 << 10).unwrap();
    for n in 1..=100 {
        spool.append_record(&[n as u8; 1000], 1, kept(n)).unwrap();
        let on_disk: u64 =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert!(on_disk <= 16 << 10, "{on_disk}");
    }
    assert!(spool.dropped_points() > 80);
    assert_eq!(spool.dropped_points() + spool.pending_points(), 100);
    let mut next = spool.dropped_points() + 1;
    while let Some(record) = oldest(&spool) {
        assert_eq!(record.body[0], next as u8);
        next += 1;
        spool.mark_delivered(&record, || ()).unwrap();
    }
    assert_eq!((next, spool.pending_points()), (101, 0));
}

#[test]
fn a_lock_that_is_no_regular_file_is_neither_waited_for_nor_followed() {
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("lock");
    let refused = || Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap_err().to_string();
    std::os::unix::fs::symlink(folder.path().join("other"), &lock).unwrap();
    assert!(refused().contains("regular file"), "{}", refused());
    assert!(!folder.path().join("other").exists());
    fs::remove_file(&lock).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &lock, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let (said, says) = std::sync::mpsc::channel();
    let directory = folder.path().to_owned();
    std::thread::spawn(move || {
        said.send(Spool::open(&directory, "exporter influx of east", 1 << 20).unwrap_err().to_string())
    });
    let said = says.recv_timeout(Duration::from_secs(60)).expect("an answer");
    assert!(said.contains("regular file"), "{said}");
}

#[test]
fn a_record_that_was_dropped_while_it_was_sent_moves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), "exporter influx of east", 4 << 10).unwrap();
    spool.append_record(&[1; 1000], 1, kept(1)).unwrap();
    let sent = oldest(&spool).unwrap();
    (2..=10).for_each(|n| spool.append_record(&[n as u8; 1000], 1, kept(n)).unwrap());
    assert!(!spool.mark_delivered(&sent, || ()).unwrap());
    assert_eq!(spool.dropped_points() + spool.pending_points(), 10);
}

/// The folder on the small disk; set when the test of a full disk runs itself again.
const FULL_DISK: &str = "DTA_SPOOL_ON_FULL_DISK";

/// Points of the record `n`.
fn points(n: u32) -> u64 {
    u64::from(n % 3 + 1)
}

/// The body of record `n`, with a length unlike its neighbours'.
fn body(n: u32) -> Vec<u8> {
    format!("record {n} ").repeat(10 + 37 * (n as usize % 7)).into_bytes()
}

fn append(spool: &Spool, n: u32) {
    spool.append_record(&body(n), points(n), kept(n)).unwrap();
}

/// Reads and acknowledges everything, and returns what was there.
fn deliver(spool: &Spool) -> Vec<u32> {
    let mut all = Vec::new();
    while let Some(record) = oldest(spool) {
        let n = record.kept.read[0];
        assert_eq!((record.body.as_slice(), record.points), (body(n).as_slice(), points(n)));
        all.push(n);
        // On a full disk, there is no room for the position until a whole segment is delivered.
        if let Err(error) = spool.mark_delivered(&record, || ()) {
            assert!(
                error.to_string().contains("No space left on device") && spool.pending_points() > 0,
                "{error}"
            );
        }
    }
    all
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Where record `n` is: the segment's path, and where its body begins.
fn find(folder: &Path, n: u32) -> (PathBuf, usize) {
    let has = |number: &u64| {
        let path = segment_path(folder, *number);
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(body(n).len()).position(|bytes| bytes == body(n))?;
        Some((path, at))
    };
    segment_numbers(folder).unwrap().iter().find_map(has).unwrap()
}

#[test]
fn a_damaged_record_in_the_middle_costs_itself_alone() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Spool::open(folder.path(), "exporter influx of east", 32 << 10).unwrap();
    let spool = open();
    (1..=20).for_each(|n| append(&spool, n));
    drop(spool);
    // A record followed by another in its segment.
    let place = |n| find(folder.path(), n);
    let bad = (5..20).find(|n| place(*n).0 == place(n + 1).0).unwrap();
    let (path, at) = place(bad);
    flip(&path, at);
    let spool = open();
    let total: u64 = (1..=20).map(points).sum();
    assert_eq!((spool.pending_points(), spool.checkpoint()), (total, kept(20)));
    let others: Vec<u32> = (1..=20).filter(|n| *n != bad).collect();
    assert_eq!(deliver(&spool), others);
    assert_eq!((spool.pending_points(), spool.damaged_points(), spool.dropped_points()), (0, points(bad), 0));
}

#[test]
fn a_damaged_first_record_is_counted_though_nothing_was_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap();
    let spool = open();
    (1..=3).for_each(|n| append(&spool, n));
    drop(spool);
    flip(&segment_path(folder.path(), 1), 0);
    let spool = open();
    assert_eq!(spool.pending_points(), (1..=3).map(points).sum::<u64>());
    assert_eq!(deliver(&spool), [2, 3]);
    assert_eq!((spool.pending_points(), spool.damaged_points()), (0, points(1)));
}

#[test]
fn what_was_dropped_is_not_counted_as_damaged_after_a_start() {
    for delivered in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let open = || Spool::open(folder.path(), "exporter influx of east", 32 << 10).unwrap();
        let spool = open();
        (1..=3).for_each(|n| append(&spool, n));
        for _ in 0..delivered {
            spool.mark_delivered(&oldest(&spool).unwrap(), || ()).unwrap();
        }
        (4..=60).for_each(|n| append(&spool, n));
        let left = spool.pending_points();
        assert!(spool.dropped_points() > 0);
        drop(spool);
        let spool = open();
        assert_eq!((spool.pending_points(), spool.checkpoint()), (left, kept(60)));
        assert_eq!(deliver(&spool).iter().map(|n| points(*n)).sum::<u64>(), left);
        assert_eq!((spool.pending_points(), spool.damaged_points(), spool.dropped_points()), (0, 0, 0));
    }
}

#[test]
fn what_is_damaged_while_it_is_open_is_counted_and_writing_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap();
    (1..=3).for_each(|n| append(&spool, n));
    let (path, at) = find(folder.path(), 3);
    flip(&path, at);
    assert_eq!(deliver(&spool), [1, 2]);
    assert_eq!((spool.pending_points(), spool.damaged_points()), (0, points(3)));
    append(&spool, 4);
    fs::remove_file(find(folder.path(), 4).0).unwrap();
    assert!(deliver(&spool).is_empty());
    append(&spool, 5);
    assert_eq!(deliver(&spool), [5]);
    assert_eq!((spool.pending_points(), spool.damaged_points()), (0, points(3) + points(4)));
}

#[test]
fn a_damaged_position_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Spool::open(folder.path(), "exporter influx of east", 1 << 20).unwrap();
    let spool = open();
    (1..=3).for_each(|n| append(&spool, n));
    let first = oldest(&spool).unwrap();
    spool.mark_delivered(&first, || ()).unwrap();
    drop(spool);
    let path = folder.path().join("position");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        fs::write(&path, &good).unwrap();
        flip(&path, at);
        let spool = open();
        assert_eq!(
            (spool.pending_points(), spool.checkpoint()),
            ((1..=3).map(points).sum(), kept(3)),
            "byte {at}"
        );
        assert_eq!(oldest(&spool).unwrap().body, body(1), "byte {at}");
    }
}

/// What happens to the bytes of a segment.
#[derive(Clone, Debug)]
enum Damage {
    /// Each byte of a run is changed.
    Run { length: usize, mask: u8 },
    /// Everything from there on is cut off.
    Cut,
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (Just(1), 1..=255u8).prop_map(|(length, mask)| Damage::Run { length, mask }),
        (2..6_000usize, 1..=255u8).prop_map(|(length, mask)| Damage::Run { length, mask }),
        Just(Damage::Cut),
    ]
}

const RECORDS: u32 = 24;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damage_costs_what_it_overlaps_and_is_counted(
        damage in damage(),
        place in any::<prop::sample::Index>(),
        delivered in 0..6u32,
        is_open in any::<bool>(),
    ) {
        // In memory, as the position is synced for each record.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let open = || Spool::open(folder.path(), "exporter influx of east", 64 << 10).unwrap();
        let spool = open();
        (1..=RECORDS).for_each(|n| append(&spool, n));
        for _ in 0..delivered {
            let record = oldest(&spool).unwrap();
            spool.mark_delivered(&record, || ()).unwrap();
        }
        let segments = segment_numbers(folder.path()).unwrap();
        prop_assert!(segments.len() > 3, "{segments:?}");
        let mut spool = Some(spool).filter(|_| is_open);
        // One byte out of all segments.
        let length = |number: &u64| fs::metadata(segment_path(folder.path(), *number)).unwrap().len() as usize;
        let mut at = place.index(segments.iter().map(length).sum());
        let (number, at) = segments
            .iter()
            .find_map(|number| if at < length(number) { Some((*number, at)) } else { at -= length(number); None })
            .unwrap();
        let path = segment_path(folder.path(), number);
        let before = fs::read(&path).unwrap();
        let mut after = before.clone();
        match damage {
            Damage::Run { length, mask } => after.iter_mut().skip(at).take(length).for_each(|byte| *byte ^= mask),
            Damage::Cut => after.truncate(at),
        }
        // Undamaged records are those whose bytes from head to end are unchanged.
        let is_hit = |n: u32| {
            let there = before.windows(body(n).len()).position(|bytes| bytes == body(n));
            there.is_some_and(|begin| {
                let magic = before[..begin].windows(6).rposition(|bytes| bytes == b"DTASPL").unwrap();
                after.get(magic..begin + body(n).len()) != before.get(magic..begin + body(n).len())
            })
        };
        let hit: Vec<u32> = (1..=RECORDS).filter(|n| is_hit(*n)).collect();
        fs::write(&path, &after).unwrap();
        let spool = spool.take().unwrap_or_else(open);
        let last = spool.checkpoint().read[0];
        // What follows the last valid record is read again: it was damaged, and not delivered.
        prop_assert!((last + 1..=RECORDS).all(|n| n > delivered && hit.contains(&n)));
        prop_assert!(!is_open || last == RECORDS);
        prop_assert_eq!(spool.pending_points(), (delivered + 1..=last).map(points).sum::<u64>());
        let lost: u64 = (delivered + 1..=last).filter(|n| hit.contains(n)).map(points).sum();
        let whole: Vec<u32> = (delivered + 1..=RECORDS).filter(|n| !hit.contains(n)).collect();
        prop_assert_eq!(deliver(&spool), whole);
        prop_assert_eq!((spool.pending_points(), spool.damaged_points(), spool.dropped_points()), (0, lost, 0));
        // It keeps working, now and after a restart.
        append(&spool, RECORDS + 1);
        let mut spool = Some(spool);
        if !is_open {
            drop(spool.take());
        }
        let spool = spool.unwrap_or_else(open);
        prop_assert_eq!(spool.pending_points(), points(RECORDS + 1));
        prop_assert_eq!(deliver(&spool), [RECORDS + 1]);
        drop(spool);
        prop_assert!(deliver(&open()).is_empty());
    }
}

/// Runs a test of this module again in a mount namespace of its own, with a file system of 256 KiB.
fn on_a_small_disk(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=256k none \"$DTA_SPOOL_ON_FULL_DISK\" && exec \"$@\"";
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", mount, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("spool::tests::{test}"), "--include-ignored", "--nocapture"])
        .env(FULL_DISK, folder.path())
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
#[ignore = "mounts a file system, which takes root"]
fn what_was_delivered_makes_room_on_a_full_disk() {
    let Some(folder) = std::env::var_os(FULL_DISK) else {
        return on_a_small_disk("what_was_delivered_makes_room_on_a_full_disk");
    };
    // The limit is larger than the disk, so everything goes into one segment.
    let open = || Spool::open(Path::new(&folder), "exporter influx of east", 256 << 20).unwrap();
    let spool = open();
    let mut n = 1;
    for _ in 0..3 {
        let first = n;
        let full = loop {
            match spool.append_record(&body(n), points(n), kept(n)) {
                Ok(()) => n += 1,
                Err(error) => break error.to_string(),
            }
        };
        assert!(full.contains("No space left on device"), "{full}");
        assert!(n > first + 50);
        assert_eq!(deliver(&spool), (first..n).collect::<Vec<_>>());
        append(&spool, n);
        assert_eq!(deliver(&spool), [n]);
        n += 1;
    }
    drop(spool);
    // Its position is on disk.
    let spool = open();
    assert_eq!((deliver(&spool).len(), spool.checkpoint()), (0, kept(n - 1)));
    // Also if others filled the disk after everything was delivered.
    append(&spool, n);
    deliver(&spool);
    let others = File::create(Path::new(&folder).join("others")).unwrap();
    let mut length = 0;
    while others.write_at(&[1; 4096], length).is_ok() {
        length += 4096;
    }
    append(&spool, n + 1);
    assert_eq!(deliver(&spool), [n + 1]);
}

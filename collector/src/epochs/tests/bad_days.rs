//! Things that go wrong around epochs.

use std::process::Command;

use super::*;

/// Set in a process that has a small file system of its own, to the path of that.
const SMALL_DISK: &str = "DTA_EPOCHS_ON_SMALL_DISK";

fn large() -> StoreSpec {
    store(
        1,
        "flows",
        StoreKind::KeyWrite { slots: 1 << 20, value_len: 12, redundancy: 2, keys: Default::default() },
    )
}

/// Reports new keys, each to the epoch that is open, at most `run` of them per millisecond. Returns how many
/// there are then.
fn report(bench: &Bench, from: u32, run: u32, enough: impl Fn(u32) -> bool) -> u32 {
    let mut next = from;
    while !enough(next) {
        let store = bench.stores.get("flows").unwrap();
        // Holds a key to the memory, so that it is not sealed meanwhile.
        bench.writing.held.lock().unwrap().insert(store.generation);
        if bench.generation() == store.generation {
            write(&store, &key(next), 1 + (next % 200) as u8);
            next += 1;
        }
        bench.writing.held.lock().unwrap().remove(&store.generation);
        if next.is_multiple_of(run) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    next
}

/// The number of epochs in which each key is found.
fn found_in(bench: &Bench, keys: &[Key]) -> Vec<usize> {
    let mut found = vec![0; keys.len()];
    let mut look = |then: &Store| {
        for (n, (key, found)) in keys.iter().zip(&mut found).enumerate() {
            if let Some(value) = value(then, key) {
                assert_eq!(value, 1 + (n % 200) as u8);
                *found += 1;
            }
        }
    };
    let open = bench.stores.get("flows").unwrap();
    look(&open);
    let wanted = elements::slots_of_keys(&open.spec, keys);
    let mut bytes = vec![0; wanted.len() * open.spec.element_len() as usize];
    for epoch in bench.kept("flows") {
        bench.history("flows").read_slots(epoch.number, &wanted, &mut bytes).unwrap();
        look(&elements::sparse_store(&open, epoch.generation, &wanted, &bytes).unwrap());
    }
    found
}

#[test]
fn an_epoch_that_is_written_for_longer_than_one_puts_off_the_next_and_no_report_is_lost_or_doubled() {
    let history = tempfile::tempdir().unwrap();
    let every = Duration::from_millis(20);
    let bench = Bench::start_with(&[large()], &MemoryBacking::Anonymous, keep(history.path()), every);
    let reported = report(&bench, 0, 1, |n| n >= 500 && bench.count("epochs.put_off") >= 5);
    // Once the epoch of the last report is over and nothing waits to be written, the open epoch is empty.
    let generation = bench.generation();
    until("all is written", || {
        bench.generation() > generation + 1 && bench.kept("flows").last().unwrap().generation > generation
    });
    assert_eq!((bench.count("epochs.lost"), bench.count("epochs.failed")), (0, 0));
    let Bench { stores, epochs, writing, stop } = bench;
    stop.send_replace(true);
    epochs.join_threads();
    let keys: Vec<Key> = (0..reported).map(key).collect();
    let found = found_in(&Bench { stores, epochs, writing, stop }, &keys);
    let not_once: Vec<_> = (0..reported).zip(found).filter(|(_, times)| *times != 1).collect();
    assert_eq!(not_once, [], "of {reported}");
}

#[test]
fn an_epoch_of_which_a_writer_never_said_that_it_moved_says_so() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryBacking::Anonymous, history.path());
    let generation = loop {
        let open = bench.generation();
        bench.writing.gone.lock().unwrap().insert(open);
        // If it has changed, the former may have been sealed too early: try again.
        if bench.generation() == open {
            break open;
        }
    };
    let confirmed = |of: u64| {
        bench.kept("flows").iter().find(|epoch| epoch.generation == of).map(|epoch| epoch.confirmed)
    };
    until("two epochs are written", || confirmed(generation + 1).is_some());
    assert_eq!([0, 1].map(|more| confirmed(generation + more)), [Some(false), Some(true)]);
    bench.end();
}

#[test]
fn each_report_counts_in_the_waterfall_of_one_epoch() {
    let history = tempfile::tempdir().unwrap();
    let bench = Bench::start(&MemoryBacking::Anonymous, history.path());
    let count = |received: u64, lost: u64| {
        let translator =
            [("key-write.received", received), ("key-write.emitted", received), ("key-write.lost", lost)];
        let translator = translator.map(|(name, value)| (name.to_owned(), value));
        *bench.writing.counted.lock().unwrap() = vec![
            ("translator/t".into(), translator.into()),
            ("nic/soft".into(), vec![("dropped.icrc".into(), lost)]),
        ];
    };
    until("the first has ended, with nothing", || !bench.kept("flows").is_empty());
    for n in 1..=20 {
        count(1000 * n, 3 * n);
        std::thread::sleep(EVERY / 10);
    }
    let before = bench.kept("flows").len();
    until("the last is written", || bench.kept("flows").len() >= before + 2);
    let sum = |of: &str| {
        let epochs = bench.kept("flows");
        epochs.iter().map(|epoch| epoch.waterfall.pointer(of).map_or(0, |n| n.as_u64().unwrap())).sum::<u64>()
    };
    let sums = ["/sent", "/landed", "/lost/dropped.nic.icrc"].map(sum);
    assert_eq!(sums, [20_000, 20_000 - 60, 60]);
    until("one of the other store is written", || !bench.kept("paths").is_empty());
    assert_eq!(bench.kept("paths")[0].waterfall["sent"], 0);
    bench.end();
}

#[test]
fn a_damaged_log_is_counted_and_what_else_it_says_is_answered() {
    let (memory, history) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let memory = MemoryBacking::Directory(memory.path().to_owned());
    let bench = Bench::start(&memory, history.path());
    let mut moments = Vec::new();
    for n in 1..=3 {
        let (at, generation) = moment(&bench, "flows", |store| super::write(store, &key(1), n));
        moments.push((at, n));
        until("it is written", || {
            bench.kept("flows").last().is_some_and(|last| last.generation >= generation)
        });
    }
    assert_eq!(bench.count("epochs.damaged"), 0);
    let second = bench.history("flows").epoch_at_moment(moments[1].0).unwrap().unwrap().epoch.number;
    let folder = bench.history("flows").table_path().join("_delta_log");
    bench.end();
    // Epochs without reports are named by later commits, so versions are not epoch numbers.
    let mut damaged = 0;
    for log in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let damage = |line: &str| {
            let is_of_second = line.contains(&format!("epoch-{second:012}-")) && line.contains("dta.epochs");
            damaged += u64::from(is_of_second);
            if is_of_second { line.replace("dta.epochs", "dta.epoch\u{0}") } else { line.to_owned() }
        };
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::write(&log, text.split_inclusive('\n').map(damage).collect::<String>()).unwrap();
    }
    assert_ne!(damaged, 0);
    let bench = Bench::start(&memory, history.path());
    until("it is counted", || bench.count("epochs.damaged") == damaged);
    for (at, n) in [&moments[0], &moments[2]] {
        assert_eq!(
            value(&bench.epochs.store_at_moment("flows", &[key(1)], *at).unwrap().0, &key(1)),
            Some(*n)
        );
    }
    let none = bench.epochs.store_at_moment("flows", &[key(1)], moments[1].0).unwrap_err();
    assert!(matches!(none, MomentError::NotKept { .. }), "{none}");
    let kept = bench.kept("flows").len();
    until("epochs go on", || bench.kept("flows").len() > kept);
    bench.end();
}

#[test]
#[ignore = "mounts a file system, which takes root"]
fn on_a_full_disk_the_oldest_epochs_go_then_new_ones_are_lost_and_writers_never_wait() {
    let name = "epochs::tests::bad_days::on_a_full_disk_the_oldest_epochs_go_then_new_ones_are_lost_and_writers_never_wait";
    let Some(disk) = std::env::var_os(SMALL_DISK) else {
        let folder = tempfile::tempdir().unwrap();
        let mount = format!("mount -t tmpfs -o size=2m none \"${SMALL_DISK}\" && exec \"$@\"");
        let status = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &mount, "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--include-ignored", "--nocapture"])
            .env(SMALL_DISK, folder.path())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    };
    let disk = Path::new(&disk);
    let patience = Duration::from_secs(1);
    let every = Duration::from_millis(200);
    let bench =
        Bench::start_with(&[large()], &MemoryBacking::Anonymous, Keep { patience, ..keep(disk) }, every);
    // Some hundred kilobytes per epoch, for as many epochs as it takes to exceed the disk.
    let mut reported = 0;
    let mut fill = |enough: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !enough() {
            assert!(since.elapsed() < Duration::from_secs(120), "not yet");
            let (generation, most) = (bench.generation(), reported + 20_000);
            let is_over = || bench.generation() != generation || enough();
            reported = report(&bench, reported, 1000, |n| n >= most || n.is_multiple_of(1000) && is_over());
            until("the epoch ends", is_over);
            reported += 1;
        }
    };
    fill(&|| bench.kept("flows").first().is_some_and(|first| first.number > 3));
    assert_eq!((bench.count("epochs.lost"), bench.count("epochs.failed")), (0, 0), "the oldest made room");
    let numbers: Vec<u64> = bench.kept("flows").iter().map(|epoch| epoch.number).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    // Somebody else takes up what is left, and what removed epochs give back.
    let full = || {
        let mut rest = std::fs::OpenOptions::new().create(true).append(true).open(disk.join("rest")).unwrap();
        let _ = std::io::Write::write_all(&mut rest, &vec![1; 4 << 20]);
    };
    let first = numbers[0];
    // An epoch may also be lost because the space freed by the oldest one was taken before its removal was written.
    fill(&|| {
        full();
        bench.count("epochs.lost") >= 2 && bench.kept("flows").len() <= super::write::FLOOR
    });
    let kept = bench.kept("flows");
    assert_eq!(kept.len(), super::write::FLOOR, "the newest stay");
    assert!(matches!(
        bench.epochs.store_at_moment("flows", &[], bench.kept("flows")[0].opened - 1),
        Err(MomentError::NotKept { .. })
    ));
    assert!(first < kept[0].number);
    // Moments in lost epochs.
    let newest = kept.last().unwrap().flipped_to;
    let open = bench.epochs.of["flows"].in_memory().open.1.moment;
    let in_memory = bench.epochs.of["flows"].in_memory().former.first().map_or(open, |former| former.opened);
    assert!(matches!(
        bench.epochs.store_at_moment("flows", &[], (newest + in_memory) / 2),
        Err(MomentError::NotKept { .. })
    ));
    // Writers go on, and there is room again.
    let (at, _) = moment(&bench, "flows", |store| super::write(store, &key(u32::MAX), 7));
    std::fs::remove_file(disk.join("rest")).unwrap();
    until("it is written", || bench.kept("flows").last().is_some_and(|last| last.opened >= at));
    bench.end();
}

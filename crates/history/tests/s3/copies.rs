//! What a copy has, and what is done for it.

use std::time::Duration;

use dta_history::Retention;

use super::*;

#[test]
#[ignore = "needs moto (make python)"]
fn a_copy_follows_its_table() {
    let Some(world) = World::new() else { return };
    let (mut mirror, mut done) = (world.mirror(), MirrorProgress::default());
    // Nothing yet but the table.
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.check();
    world.storage.requests();
    (0..3).for_each(|number| world.write(number));
    assert_eq!(mirror.waiting_epoch_count(), 0);
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.check();
    assert_eq!((done.epochs, done.missed, done.commits, mirror.waiting_epoch_count()), (3, 0, 1, 0));
    assert_eq!(done.bytes, world.table.data_bytes());
    // Each file, then the commit that names it; and no other request.
    let requests = world.storage.requests();
    let paths: Vec<&str> = requests.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths.len(), 4, "{paths:#?}");
    assert!(paths[..3].iter().all(|path| path.starts_with("/bucket/of/this/last/epoch-")), "{paths:#?}");
    assert_eq!(paths[3], "/bucket/of/this/last/_delta_log/00000000000000000001.json");
    // Nothing new is no request.
    mirror.mirror_table(&world.table, &mut done).unwrap();
    assert_eq!(world.storage.requests(), []);

    // Files that became one are replaced at once, and are no news to readers of changes.
    world.table.compact_span(0..2 * MINUTE).unwrap().unwrap();
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.check();
    let commits = world.commits();
    let last = commits.last().unwrap();
    let kinds: Vec<&str> =
        last.iter().map(|action| action.as_object().unwrap().keys().next().unwrap().as_str()).collect();
    assert_eq!(kinds, ["commitInfo", "remove", "remove", "add"]);
    assert!(
        last[1..]
            .iter()
            .all(|action| action.as_object().unwrap().values().next().unwrap()["dataChange"] == false)
    );
    // One epoch of several is news.
    world.table.coarsen_span(0..3 * MINUTE, |_| json!({})).unwrap().unwrap();
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.check();
    assert_eq!(world.commits().last().unwrap()[1]["remove"]["dataChange"], true);
    // What is removed goes.
    world.write(3);
    world
        .table
        .apply_retention(&Retention { keep: Some(Duration::ZERO), keep_bytes: None }, 4 * MINUTE)
        .unwrap();
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.check();
    assert_eq!(world.table.kept_epochs().unwrap().len(), 1);
    assert_eq!((done.epochs, done.missed), (4, 0));
    // Files stay for readers that have them open.
    assert_eq!(
        (done.removed, world.storage.keys().iter().filter(|key| key.contains("/epoch-")).count()),
        (0, 6)
    );
    world.check_versions();
}

#[test]
#[ignore = "needs moto (make python)"]
fn removed_files_go_after_ten_minutes() {
    let Some(world) = World::new() else { return };
    (0..3).for_each(|number| world.write(number));
    let mut done = MirrorProgress::default();
    world.mirror().mirror_table(&world.table, &mut done).unwrap();
    world
        .table
        .apply_retention(&Retention { keep: Some(Duration::ZERO), keep_bytes: None }, 2 * MINUTE)
        .unwrap();
    world.mirror().mirror_table(&world.table, &mut done).unwrap();
    assert_eq!(done.removed, 0);
    // As if the commit were older than it is.
    let key = "/bucket/of/this/last/_delta_log/00000000000000000002.json";
    let text = String::from_utf8(world.storage.ask("GET", key, b"").1).unwrap();
    let at = text.find("\"deletionTimestamp\":").unwrap() + "\"deletionTimestamp\":".len();
    let moment = text[at..].split(',').next().unwrap();
    let earlier = (moment.parse::<u64>().unwrap() - 10 * MINUTE).to_string();
    assert_eq!(world.storage.ask("PUT", key, text.replace(moment, &earlier).as_bytes()).0, 200);
    world.mirror().mirror_table(&world.table, &mut done).unwrap();
    assert_eq!(done.removed, 1);
    world.check();
    assert_eq!(world.storage.keys().iter().filter(|key| key.contains("/epoch-")).count(), 2);
}

#[test]
#[ignore = "needs moto (make python)"]
fn a_restart_uploads_nothing_twice() {
    let Some(world) = World::new() else { return };
    (0..40).for_each(|number| world.write(number));
    let mut done = MirrorProgress::default();
    // The program ends between two files, and again where the answer to a commit is lost.
    let stopped = world.stop.clone();
    let mut puts_left = 7;
    world.storage.faults(move |request| {
        puts_left -= i32::from(request.path.contains("/last/epoch-"));
        if puts_left == 0 {
            stopped.send_replace(true);
        }
        Fate::Answered
    });
    let error = world.mirror().mirror_table(&world.table, &mut done).unwrap_err();
    assert!(matches!(error, S3Error::Stopped), "{error}");
    world.stop.send_replace(false);
    let stopped = world.stop.clone();
    world.storage.faults(move |request| {
        if request.path.ends_with("01.json") && request.method == "PUT" {
            stopped.send_replace(true);
            return Fate::AnswerLost;
        }
        Fate::Answered
    });
    let error = world.mirror().mirror_table(&world.table, &mut done).unwrap_err();
    assert!(matches!(error, S3Error::Stopped), "{error}");
    world.stop.send_replace(false);
    world.storage.faults(|_| Fate::Answered);
    world.mirror().mirror_table(&world.table, &mut done).unwrap();
    world.check();
    world.check_versions();
    let puts = puts(&world.storage.requests());
    // But for the one that was on its way.
    assert_eq!(puts.len(), 40);
    assert!(puts.values().sum::<usize>() <= 41, "{puts:#?}");
    assert_eq!(done.missed, 0);
}

#[test]
#[ignore = "needs moto (make python)"]
fn a_start_reads_the_newest_checkpoint() {
    let Some(world) = World::new() else { return };
    let (mut mirror, mut done) = (world.mirror(), MirrorProgress::default());
    for number in 0..104 {
        world.write(number);
        mirror.mirror_table(&world.table, &mut done).unwrap();
    }
    assert!(
        world
            .storage
            .keys()
            .contains(&"of/this/last/_delta_log/00000000000000000099.checkpoint.parquet".to_owned())
    );
    world.storage.requests();
    world.write(104);
    world.mirror().mirror_table(&world.table, &mut done).unwrap();
    let reads = world.storage.requests().into_iter().filter(|request| request.method == "GET").count();
    // The pointer, the checkpoint, five commits and one that is not there, and what files there are.
    assert_eq!(reads, 9);
    world.check();
}

#[test]
#[ignore = "needs moto (make python)"]
fn a_large_file_goes_in_parts() {
    let Some(world) = World::new() else { return };
    write(&world.table, 0, 2_200_000);
    assert!(world.table.data_bytes() > 16 << 20, "{}", world.table.data_bytes());
    // The second part fails for good, once.
    let mut left = 3;
    world.storage.faults(move |request| {
        let fails = request.path.contains("partNumber=2") && left > 0;
        left -= u32::from(fails);
        if fails { Fate::Status(500) } else { Fate::Answered }
    });
    let (mut mirror, mut done) = (world.mirror(), MirrorProgress::default());
    assert!(mirror.mirror_table(&world.table, &mut done).unwrap_err().is_transient());
    let ended = world.storage.requests().into_iter().filter(|request| request.method == "DELETE").count();
    assert_eq!((ended, done.commits, done.bytes), (1, 0, 0));
    mirror.mirror_table(&world.table, &mut done).unwrap();
    assert_eq!(done.bytes, world.table.data_bytes());
    let parts =
        world.storage.requests().into_iter().filter(|request| request.path.contains("partNumber=")).count();
    assert_eq!(parts, 2);
    world.check();
}

#[test]
#[ignore = "needs moto (make python)"]
fn another_table_is_left_alone() {
    let Some(world) = World::new() else { return };
    world.write(0);
    let mut done = MirrorProgress::default();
    world.mirror().mirror_table(&world.table, &mut done).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let other = EpochTable::open(folder.path(), &spec()).unwrap();
    let error = world.mirror().mirror_table(&other, &mut done).unwrap_err().to_string();
    assert!(
        error
            .starts_with("s3://bucket/of/this/last is not a copy of the table: it belongs to another table;"),
        "{error}"
    );
    world.check();
}

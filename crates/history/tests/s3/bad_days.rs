//! Object storage that is away, slow, broken, or does not do what commits need.

use std::time::Duration;

use dta_history::Retention;

use super::*;

/// Longer than a busy machine takes.
const SOON: Duration = Duration::from_secs(120);

#[test]
#[ignore = "needs moto (make python)"]
fn a_server_is_found_out_before_it_is_used() {
    let Some(world) = World::new() else { return };
    world.bucket(URL).unwrap().check_access(SOON).unwrap();
    world.storage.faults(|_| Fate::Unconditional);
    let error = world.bucket(URL).unwrap().check_access(SOON).unwrap_err();
    assert!(matches!(error, S3Error::Unconditional(_)), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("s3://bucket/of/this: its server replaces an object although it was asked not to"),
        "{error}"
    );
    // Nor does one that does not know the header.
    world.storage.faults(|request| if request.method == "PUT" { Fate::Status(501) } else { Fate::Answered });
    let error = world.bucket(URL).unwrap().check_access(SOON).unwrap_err();
    assert!(matches!(error, S3Error::Unconditional(_)), "{error}");
    world.storage.faults(|_| Fate::Answered);
    let error = world.bucket("s3://none").unwrap().check_access(SOON).unwrap_err();
    assert!(
        matches!(error, S3Error::Refused { .. }) && error.to_string().contains("NoSuchBucket"),
        "{error}"
    );
    world.storage.faults(|_| Fate::Status(403));
    let error = world.bucket(URL).unwrap().check_access(SOON).unwrap_err();
    assert!(matches!(error, S3Error::Refused { .. }), "{error}");
    for fate in [Fate::Refused, Fate::AnswerLost, Fate::Status(503)] {
        world.storage.faults(move |_| fate);
        let error = world.bucket(URL).unwrap().check_access(SOON).unwrap_err();
        assert!(error.is_transient(), "{error}");
    }
    world.storage.faults(|_| Fate::After(Duration::from_secs(60)));
    let error = world.bucket(URL).unwrap().check_access(Duration::from_millis(300)).unwrap_err();
    assert!(error.is_transient(), "{error}");
    // Nothing is left there, but where no answer came.
    world.storage.faults(|_| Fate::Answered);
    assert_eq!(world.storage.keys().len(), 1);
}

/// A copy that is made with these faults, while epochs are written, become fewer and are removed.
fn follows_with(of: impl FnMut(&Request) -> Fate + Send + 'static) {
    let Some(world) = World::new() else { return };
    world.storage.faults(of);
    let (mut mirror, mut done, mut failed) = (world.mirror(), MirrorProgress::default(), 0);
    for number in 0..12 {
        world.write(number);
        if number % 6 == 5 {
            world.table.compact_span((number - 5) * MINUTE..(number - 2) * MINUTE).unwrap().unwrap();
        }
        match mirror.mirror_table(&world.table, &mut done) {
            Ok(()) => {}
            Err(error) if error.is_transient() => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    failed += follow(&mut mirror, &world.table, &mut done);
    world.storage.faults(|_| Fate::Answered);
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.check();
    world.check_versions();
    assert!(failed > 0, "there was no fault");
    assert_eq!((done.epochs, done.missed, mirror.waiting_epoch_count()), (12, 0, 0));
    // Only what no answer came of is sent again.
    let puts = puts(&world.storage.requests());
    assert!(puts.values().all(|count| *count == 1), "{puts:#?}");
}

#[test]
#[ignore = "needs moto (make python)"]
fn of_four_requests_three_fail() {
    let mut state = 1u64;
    follows_with(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (state >> 33).is_multiple_of(4) { Fate::Answered } else { Fate::Status(500) }
    });
}

#[test]
#[ignore = "needs moto (make python)"]
fn answers_are_lost() {
    let mut count = 0;
    // More often than a request is sent again.
    follows_with(move |request| {
        let is_put = request.method == "PUT";
        count += u32::from(is_put);
        if is_put && count % 8 < 4 { Fate::AnswerLost } else { Fate::Answered }
    });
}

#[test]
#[ignore = "needs moto (make python)"]
fn a_slow_server_is_waited_for() {
    let Some(world) = World::new() else { return };
    world.storage.faults(|_| Fate::After(Duration::from_millis(300)));
    (0..8).for_each(|number| world.write(number));
    let mut done = MirrorProgress::default();
    world.mirror().mirror_table(&world.table, &mut done).unwrap();
    assert_eq!((done.epochs, done.missed), (8, 0));
    world.check();
}

#[test]
#[ignore = "needs moto (make python)"]
fn what_goes_while_the_server_is_away_is_counted_and_not_uploaded() {
    let Some(world) = World::new() else { return };
    let (mut mirror, mut done) = (world.mirror(), MirrorProgress::default());
    (0..5).for_each(|number| world.write(number));
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.storage.faults(|_| Fate::Refused);
    world.storage.requests();
    for number in 5..40 {
        world.write(number);
        if number % 9 == 0 {
            assert!(mirror.mirror_table(&world.table, &mut done).unwrap_err().is_transient());
        }
    }
    assert!(mirror.mirror_table(&world.table, &mut done).unwrap_err().is_transient());
    assert_eq!(mirror.waiting_epoch_count(), 35);
    // Ten become one file, ten one epoch, ten and the first five go.
    world.table.compact_span(30 * MINUTE..40 * MINUTE).unwrap().unwrap();
    world.table.coarsen_span(20 * MINUTE..30 * MINUTE, |_| json!({})).unwrap().unwrap();
    world
        .table
        .apply_retention(&Retention { keep: Some(Duration::ZERO), keep_bytes: None }, 15 * MINUTE + 30)
        .unwrap();
    assert!(mirror.mirror_table(&world.table, &mut done).unwrap_err().is_transient());
    assert_eq!((done.epochs, done.missed), (5, 10));
    world.storage.faults(|_| Fate::Answered);
    world.storage.requests();
    mirror.mirror_table(&world.table, &mut done).unwrap();
    world.check();
    world.check_versions();
    // Five files as they were written, one of ten epochs, and one epoch of ten.
    let puts = puts(&world.storage.requests());
    assert_eq!((puts.len(), puts.values().sum::<usize>()), (7, 7), "{puts:#?}");
    assert_eq!((done.epochs, done.missed, mirror.waiting_epoch_count()), (21, 10, 0));
}

#[test]
#[ignore = "needs moto (make python)"]
fn a_file_that_cannot_be_read_holds_up_no_other() {
    let Some(world) = World::new() else { return };
    (0..5).for_each(|number| world.write(number));
    let bad = world.table.data_files().unwrap()[2].name.clone();
    std::fs::remove_file(Path::new(world.table.table_path()).join(&bad)).unwrap();
    let (mut mirror, mut done) = (world.mirror(), MirrorProgress::default());
    let error = mirror.mirror_table(&world.table, &mut done).unwrap_err();
    assert!(error.to_string().contains(&bad), "{error}");
    mirror.mirror_table(&world.table, &mut done).unwrap();
    assert_eq!((done.epochs, mirror.waiting_epoch_count()), (4, 1));
    assert_eq!(world.folder.path().join("last"), world.table.table_path());
}

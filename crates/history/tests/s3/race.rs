//! Several writers of one copy.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;

#[test]
#[ignore = "needs moto (make python)"]
fn of_eight_writers_one_takes_each_commit() {
    const EPOCHS: u64 = 24;
    let Some(world) = World::new() else { return };
    let (begun, is_written) = (Barrier::new(9), AtomicBool::new(false));
    let done: Vec<MirrorProgress> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let (mut mirror, mut done) = (world.mirror(), MirrorProgress::default());
                    mirror.mirror_table(&world.table, &mut done).unwrap();
                    begun.wait();
                    loop {
                        let is_last = is_written.load(Ordering::Relaxed);
                        mirror.mirror_table(&world.table, &mut done).unwrap();
                        if is_last {
                            break;
                        }
                        // The table is not for them alone.
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    done
                })
            })
            .collect();
        begun.wait();
        (0..EPOCHS).for_each(|number| {
            world.write(number);
            std::thread::sleep(Duration::from_millis(50));
        });
        is_written.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    world.check();
    world.check_versions();
    let commits = world.commits().len() as u64;
    // One made the table.
    assert_eq!(done.iter().map(|done| done.commits).sum::<u64>(), commits - 1, "{done:#?}");
    let requests = world.storage.requests();
    let of_commits =
        requests.iter().filter(|request| request.method == "PUT" && request.path.ends_with(".json"));
    let taken = of_commits.clone().filter(|request| request.status == Some(200)).count() as u64;
    let refused = of_commits.filter(|request| request.status == Some(412)).count();
    assert_eq!(taken, commits);
    assert!(refused > 0, "there was no race");
}

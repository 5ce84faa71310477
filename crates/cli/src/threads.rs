//! Whether a daemon can create its threads.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

/// Creates this many threads at once and ends them again: runtimes create theirs later, and panic if the
/// system refuses.
///
/// # Errors
/// The system has no room for so many threads; the message says what to do.
pub fn enough_threads(count: usize) -> anyhow::Result<()> {
    try_create_threads(count, |scope, work| thread::Builder::new().spawn_scoped(scope, work).map(drop))
}

type Make = for<'scope, 'env> fn(&'scope thread::Scope<'scope, 'env>, Work<'scope>) -> io::Result<()>;
type Work<'scope> = Box<dyn FnOnce() + Send + 'scope>;

fn try_create_threads(count: usize, make: Make) -> anyhow::Result<()> {
    let (over, ended) = (Mutex::new(false), Condvar::new());
    thread::scope(|scope| {
        let wait = || {
            let over = over.lock().unwrap_or_else(PoisonError::into_inner);
            drop(ended.wait_while(over, |over| !*over));
        };
        let made = (0..count).map(|_| make(scope, Box::new(wait))).enumerate().find_map(|(at, made)| {
            made.err().map(|error| {
                anyhow::anyhow!(
                    "cannot create threads: {error} after {at} of {count}; allow this user or service more (ulimit -u, TasksMax= in systemd, \
                     pids.max of the cgroup)"
                )
            })
        });
        *over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        ended.notify_all();
        made.map_or(Ok(()), Err)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_room_for_threads_is_told_in_words() {
        enough_threads(40).unwrap();
        let error =
            try_create_threads(40, |_, _| Err(io::Error::from_raw_os_error(11))).unwrap_err().to_string();
        assert!(error.contains("cannot create threads") && error.contains("TasksMax="), "{error}");
    }
}

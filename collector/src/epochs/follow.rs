//! The loop of the threads that pass histories on to others: it looks for what is new and retries what
//! failed. Everything is already on disk, so nothing waits for these threads.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dta_proto::backoff::Backoff;
use tokio::sync::watch;

use super::keeper::{add_to_counter, wait_or_stop};

/// How often to check whether a table has changed.
const LOOK: Duration = Duration::from_secs(1);
/// Delay before a failure is retried.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));
/// How often the log repeats that it still fails.
const REMIND: Duration = Duration::from_secs(60);

/// Looks for new epochs until the collector stops. The log shows `to`, who gets them, and `waiting`, how many are left.
pub(super) fn run<E: Error>(
    to: &str,
    stop: &watch::Receiver<bool>,
    failed: &AtomicU64,
    waiting: &AtomicU64,
    mut look: impl FnMut() -> Result<(), E>,
) {
    let (mut again, mut since, mut logged_at) = (AGAIN, None, None::<Instant>);
    let mut next = LOOK;
    while let Ok(()) = wait_or_stop(stop, next) {
        match look() {
            Ok(()) => {
                if let Some(since) = since.take().map(|since: Instant| since.elapsed()) {
                    tracing::info!(seconds = since.as_secs_f64(), "{to} is accepting histories again");
                }
                (again, logged_at, next) = (AGAIN, None, LOOK);
            }
            // The request was cut off.
            Err(_) if *stop.borrow() => return,
            Err(error) => {
                add_to_counter(failed, 1);
                since.get_or_insert_with(Instant::now);
                if logged_at.is_none_or(|logged_at| logged_at.elapsed() > REMIND) {
                    logged_at = Some(Instant::now());
                    let waiting = waiting.load(Ordering::Relaxed);
                    tracing::warn!(%error, waiting, "cannot copy a history to {to}; retrying");
                }
                next = again.next_pause();
            }
        }
    }
}

/// Changes the count `waiting`, which others share, by the difference between `before` and `now`.
pub(super) fn adjust_waiting(waiting: &AtomicU64, before: usize, now: usize) {
    waiting.fetch_add((now as u64).wrapping_sub(before as u64), Ordering::Relaxed);
}

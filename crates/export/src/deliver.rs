//! Delivers from the spool to its receiver, on its own thread: no other thread waits for the receiver.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_proto::backoff::Backoff;

use crate::counters::{ExportCounters, add};
use crate::receiver::{RecordReceiver, WriteOutcome};
use crate::spool::{Spool, SpoolRecord};

/// Pauses before a receiver is tried again.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));
/// The longest pause that a receiver may ask for.
const LEFT_ALONE: Duration = Duration::from_secs(300);
/// How often the log says that a receiver is still down.
const REMIND: Duration = Duration::from_secs(60);
/// Delay when the spool itself fails.
const SPOOL: Duration = Duration::from_secs(1);

/// Delivers until the spool is closed.
pub(crate) fn run(sink: &str, spool: &Spool, receiver: &dyn RecordReceiver, counters: &Arc<ExportCounters>) {
    let mut away = DeliveryOutage::default();
    let mut is_logged = false;
    loop {
        let oldest = spool.wait_for_oldest(Duration::from_secs(3600));
        let is_failed = oldest.is_err();
        match oldest {
            Ok(Some(record)) => {
                if !deliver_record(sink, spool, receiver, counters, &record, &mut away) {
                    return;
                }
            }
            Ok(None) => {
                if spool.wait_for_close(Duration::ZERO) {
                    return;
                }
            }
            Err(error) => {
                if !is_logged {
                    tracing::error!(sink, %error, "cannot read the spool; trying again");
                }
                if spool.wait_for_close(SPOOL) {
                    return;
                }
            }
        }
        is_logged = is_failed;
    }
}

/// What went wrong with the last record.
struct DeliveryOutage {
    since: Option<Instant>,
    logged_at: Option<Instant>,
    again: Backoff,
    /// The last position of the spool could not be written.
    is_unwritten: bool,
}

impl Default for DeliveryOutage {
    fn default() -> Self {
        DeliveryOutage { since: None, logged_at: None, again: AGAIN, is_unwritten: false }
    }
}

/// Sends a record until it is accepted; `false` if the spool was closed before that.
fn deliver_record(
    sink: &str,
    spool: &Spool,
    receiver: &dyn RecordReceiver,
    counters: &ExportCounters,
    record: &SpoolRecord,
    away: &mut DeliveryOutage,
) -> bool {
    // A bad answer might make a library panic.
    let written = catch_unwind(AssertUnwindSafe(|| receiver.write_record(&record.body, record.points)));
    let rejected = match written.unwrap_or_else(|_| WriteOutcome::retry_later("its answer cannot be read")) {
        WriteOutcome::Done => 0,
        WriteOutcome::Rejected { points, reason } => {
            if points > 0 {
                tracing::warn!(
                    sink,
                    points,
                    reason,
                    "the receiver rejected points permanently: dropping them"
                );
            } else {
                tracing::warn!(
                    sink,
                    reason,
                    "the receiver rejected parts of points permanently: dropping those parts"
                );
            }
            points
        }
        WriteOutcome::Later { reason, after } => {
            add(&counters.points.retried, 1);
            away.since.get_or_insert_with(Instant::now);
            if away.logged_at.is_none_or(|logged_at| logged_at.elapsed() > REMIND) {
                away.logged_at = Some(Instant::now());
                tracing::warn!(
                    sink,
                    reason,
                    points = spool.pending_points(),
                    "the receiver does not accept points: they stay in the spool until it does"
                );
            }
            // The next attempt takes the oldest record again: this one may have been dropped meanwhile.
            return !spool.wait_for_close(retry_delay(away.again.next_pause(), after));
        }
    };
    if let Some(since) = away.since {
        tracing::info!(
            sink,
            seconds = since.elapsed().as_secs_f64(),
            "the receiver is accepting points again"
        );
        *away = DeliveryOutage { is_unwritten: away.is_unwritten, ..DeliveryOutage::default() };
    }
    // A record dropped while it was being sent counts as dropped.
    let done = spool.mark_delivered(record, || {
        add(&counters.points.rejected, rejected);
        add(&counters.points.delivered, record.points - rejected);
    });
    if let Err(error) = &done
        && !away.is_unwritten
    {
        tracing::warn!(sink, %error, "cannot write the position of the spool: after a restart, delivered points would be \
            sent again");
    }
    away.is_unwritten = done.is_err();
    true
}

/// How long to wait: as long as the receiver asks, within reason.
fn retry_delay(own: Duration, asked: Option<Duration>) -> Duration {
    own.max(asked.unwrap_or_default().min(LEFT_ALONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_left_alone_as_long_as_it_asks_within_reason() {
        let own = Duration::from_secs(1);
        let pause = |asked: Option<u64>| retry_delay(own, asked.map(Duration::from_secs));
        assert_eq!(pause(None), own);
        assert_eq!(pause(Some(0)), own);
        assert_eq!(pause(Some(7)), Duration::from_secs(7));
        assert_eq!(pause(Some(u64::MAX)), LEFT_ALONE);
    }
}

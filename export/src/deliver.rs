//! From the spool to the database, on its own thread: only this thread waits for the database.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::counters::{ExportCounters, add};
use crate::influx::{Server, Written};
use crate::spool::{Record, Spool};

/// Delay before a database is tried again: doubles each time, up to the longest.
const SHORTEST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(10);
/// How often the log says that a database is still down.
const REMIND: Duration = Duration::from_secs(60);
/// Delay when the spool itself fails.
const SPOOL: Duration = Duration::from_secs(1);

/// Delivers until the spool is closed.
pub(crate) fn run(spool: &Spool, server: &Server, counters: &Arc<ExportCounters>) {
    let mut away = Away::default();
    let mut told = false;
    loop {
        let oldest = spool.oldest(Duration::from_secs(3600));
        let is_failed = oldest.is_err();
        match oldest {
            Ok(Some(record)) => {
                if !deliver(spool, server, counters, &record, &mut away) {
                    return;
                }
            }
            Ok(None) => {
                if spool.sleep(Duration::ZERO) {
                    return;
                }
            }
            Err(error) => {
                if !told {
                    tracing::error!(%error, "cannot read the spool; trying again");
                }
                if spool.sleep(SPOOL) {
                    return;
                }
            }
        }
        told = is_failed;
    }
}

/// What went wrong with the last record.
#[derive(Default)]
struct Away {
    since: Option<Instant>,
    told: Option<Instant>,
    pause: Duration,
    /// The last position of the spool could not be written.
    is_unwritten: bool,
}

/// Sends a record until it is accepted; `false` if the spool was closed before that.
fn deliver(
    spool: &Spool,
    server: &Server,
    counters: &ExportCounters,
    record: &Record,
    away: &mut Away,
) -> bool {
    let rejected = match server.write(&record.body, record.points) {
        Written::Done => 0,
        Written::Rejected { points, reason } => {
            tracing::warn!(points, reason, "the database rejects points for good: they are dropped");
            points
        }
        Written::Later(reason) => {
            add(&counters.retried, 1);
            away.since.get_or_insert_with(Instant::now);
            if away.told.is_none_or(|told| told.elapsed() > REMIND) {
                away.told = Some(Instant::now());
                tracing::warn!(
                    reason,
                    points = spool.points(),
                    "the database does not accept points: they stay in the spool until it does"
                );
            }
            away.pause = (2 * away.pause).clamp(SHORTEST, LONGEST);
            // The next turn takes the oldest record again: this one may have been dropped meanwhile.
            return !spool.sleep(away.pause);
        }
    };
    if let Some(since) = away.since {
        tracing::info!(seconds = since.elapsed().as_secs_f64(), "the database accepts points again");
        *away = Away { is_unwritten: away.is_unwritten, ..Away::default() };
    }
    // Dropped while being sent: it counts as dropped.
    let done = spool.done(record, || {
        add(&counters.rejected, rejected);
        add(&counters.delivered, record.points - rejected);
    });
    if let Err(error) = &done
        && !away.is_unwritten
    {
        tracing::warn!(%error, "cannot write the position of the spool: after a restart, delivered points would be \
            sent again");
    }
    away.is_unwritten = done.is_err();
    true
}

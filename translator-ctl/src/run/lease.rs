//! The lease of a running translator: opening and renewing its session, and keeping the data plane in step with it.

use std::time::{Duration, Instant};

use anyhow::bail;
use dta_proto::program::{Change, EntryKey, Program, Purpose, changes_for_session, diff};
use tracing::{info, warn};

use super::packet_thread::{Command, Snapshot};
use super::service::Control;
use super::stats::{EVICTED, nodes};
use crate::config::Translator;
use crate::session::{BACKOFF, Opened, Session, SessionError};

/// How long operations that nobody acknowledges keep the key to a region of before alive. After that the collector may end it: the next
/// such frame is refused, the queue pair is made anew, and the operations go to the region of now.
const LONGEST_FORMER: Duration = Duration::from_secs(30);

/// Opens the session, programs the data plane, and keeps both in step with the collector. Returns only with an error that
/// waiting does not cure: a refusal at the start, or another translator that has opened the session of this name.
pub(super) async fn keep(
    config: &Translator,
    session: &mut Session,
    control: &Control,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut backoff = BACKOFF.0;
    let mut was_ready = false;
    // Whether the collector has ended the session or will not have it go on, so that the queue pairs lead nowhere.
    let mut ended = false;
    // Whether a queue pair is silent that the collector thinks well of; or, at the start, what an earlier life sent is on its way.
    let mut fresh = true;
    loop {
        match session.open(config.lease_seconds, fresh).await {
            Ok(Opened { program, resumed, reporters }) => {
                info!(name = config.name, resumed, "session is open");
                if !was_ready {
                    control.ask(|reply| Command::Reporters(reporters, reply)).await?;
                }
                apply(control, |have| changes_for_session(have, &program)).await?;
                // Renewals have to know this generation from the first on.
                session.applied();
                if !was_ready {
                    ready()?;
                    was_ready = true;
                }
                backoff = BACKOFF.0;
                let error = renew(config, session, control).await?;
                if let SessionError::Superseded { .. } = error {
                    stand_down(control).await?;
                    bail!(error);
                }
                warn!(%error, "opening the session again");
                ended = !matches!(error, SessionError::Silent);
                fresh = !ended;
                // A renewal takes its time, so this is no busy loop; and nothing arrives until the session is back.
                continue;
            }
            // A collector that took this session before may be starting with another configuration.
            Err(error) if was_ready || error.may_pass() => {
                warn!(%error, "trying again in {} ms", backoff.as_millis());
                if std::mem::take(&mut ended) {
                    stand_down(control).await?;
                    // The data plane knows nothing of these queue pairs any more.
                    fresh = true;
                }
            }
            Err(error) => bail!(error),
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// Renews until the session has to be opened again; gives the reason.
async fn renew(
    config: &Translator,
    session: &mut Session,
    control: &Control,
) -> anyhow::Result<SessionError> {
    let every = Duration::from_millis(u64::from(config.lease_seconds) * 1000 / 3).min(Duration::from_secs(1));
    let mut away = false;
    let mut failed_renewals = 0;
    let mut without_source = 0;
    let mut ahead_since = None;
    loop {
        tokio::time::sleep(every).await;
        let snapshot = control.snapshot().await?;
        // What the last answer told is applied by now, and what left on UC before that has arrived.
        if is_through(session, &snapshot, &mut ahead_since) {
            session.applied();
        }
        let unsent = snapshot.roce_link.unsent_no_source;
        if unsent > without_source {
            warn!(
                frames = unsent - without_source,
                "frames did not leave: another program has the UDP port of a queue pair (0xc000 + the low 14 bits of its number; \
                 `ss -uanp` names it); it is tried again every second"
            );
            without_source = unsent;
        }
        let down = snapshot.queue_pairs.iter().any(|q| q.down);
        let statistics = handed_in(control, &snapshot);
        match session.renew(statistics).await {
            Ok(program) => {
                if std::mem::take(&mut away) {
                    info!("the collector answers again");
                }
                apply(control, |have| diff(have, &program)).await?;
                // The collector rebuilds a queue pair that it finds in error; one that it thinks well of, but that does not answer
                // us, is asked for anew.
                let still_down = down && control.snapshot().await?.queue_pairs.iter().any(|q| q.down);
                failed_renewals = if still_down { failed_renewals + 1 } else { 0 };
                if failed_renewals >= 2 {
                    return Ok(SessionError::Silent);
                }
            }
            Err(error @ SessionError::Away { .. }) => {
                // Frames go on to the old queue pairs: the collector's memory may well be there.
                if !std::mem::replace(&mut away, true) {
                    warn!(%error, "going on with the queue pairs that are there");
                }
            }
            Err(error) => return Ok(error),
        }
    }
}

/// Whether no operation is on its way to a region of before any more, since the collector told of another one; or for too long.
fn is_through(session: &Session, snapshot: &Snapshot, ahead_since: &mut Option<Instant>) -> bool {
    if !session.is_ahead() || snapshot.former_regions == 0 {
        *ahead_since = None;
        return true;
    }
    let too_long = ahead_since.get_or_insert_with(Instant::now).elapsed() > LONGEST_FORMER;
    if too_long {
        *ahead_since = None;
        warn!(
            stores = snapshot.former_regions,
            "operations on their way to a region that was replaced are not acknowledged: they leave again for the new one, on another queue pair"
        );
    }
    too_long
}

/// Takes the queue pairs of a session that has ended out of the data plane: reports are then dropped under that name (`no_queue_pair`),
/// rather than sent to a collector that throws them away.
async fn stand_down(control: &Control) -> anyhow::Result<()> {
    let without = |have: &Program| {
        let mut want = have.clone();
        for purpose in Purpose::ALL {
            want.remove(&EntryKey::QueuePair(purpose));
        }
        want.remove(&EntryKey::Session);
        diff(have, &want)
    };
    apply(control, without).await
}

/// Applies to the data plane the changes that what it holds needs.
async fn apply(control: &Control, needed: impl FnOnce(&Program) -> Vec<Change>) -> anyhow::Result<()> {
    let have = control.ask(Command::Program).await?;
    let changes = needed(&have);
    if !changes.is_empty() {
        info!(changes = changes.len(), "programming the data plane");
        control.ask(|reply| Command::Apply(changes, reply)).await??;
    }
    Ok(())
}

/// What goes to the collector with a renewal.
pub(super) fn handed_in(control: &Control, snapshot: &Snapshot) -> Vec<dta_proto::control::NodeStatistics> {
    let mut nodes = nodes(&control.name, control.life, snapshot);
    nodes.retain(|node| node.node != EVICTED);
    for node in &mut nodes {
        node.counters.retain(|c| is_for_collector(&c.name));
    }
    nodes
}

/// Of the numbers that may fall the collector takes `held` alone, of all and of each primitive; the others are for this translator's
/// own statistics.
fn is_for_collector(counter: &str) -> bool {
    ![".outstanding", ".waiting"].iter().any(|end| counter.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_of_each_primitive_goes_to_the_collector() {
        for (counter, is) in [
            ("held", true),
            ("append.held", true),
            ("append.accepted", true),
            ("queue_pair.write.outstanding", false),
            ("queue_pair.atomic.waiting", false),
        ] {
            assert_eq!(is_for_collector(counter), is, "{counter}");
        }
    }
}

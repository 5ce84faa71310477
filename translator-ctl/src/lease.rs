//! The lease of a translator that runs: opening and renewing its session, and keeping a target in step with it.

use std::time::{Duration, Instant};

use anyhow::bail;
use dta_proto::program::{Entry, EntryKey, Program};
use tracing::{info, warn};

use crate::config::Translator;
use crate::run::for_collector;
use crate::session::{BACKOFF, Opened, Session, SessionError};
use crate::target::{After, ApplyError, Status, Target};

/// How long operations that nobody acknowledges keep the key to a region of before alive. After that the collector may end it: the next
/// such frame is refused, the queue pair is made anew, and the operations go to the region of now.
const LONGEST_FORMER: Duration = Duration::from_secs(30);

/// Opens the session, programs the target, and keeps both in step with the collector. A target that did not do what it was asked is
/// asked again. `ready` is called once, when the target holds the program for the first time.
///
/// # Errors
/// Returns only with one that waiting does not cure: a refusal at the start, a program that the target cannot hold, or another
/// translator that has opened the session of this name.
pub async fn keep(
    config: &Translator,
    session: &mut Session,
    target: &mut impl Target,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut backoff = BACKOFF.0;
    let mut was_ready = false;
    // What the target was to hold last.
    let mut program = Program::default();
    // Whether the collector has ended the session or will not have it go on, so that the queue pairs lead nowhere.
    let mut ended = false;
    // Whether a queue pair is silent that the collector thinks well of; or, at the start, what an earlier life sent is on its way.
    let mut fresh = true;
    loop {
        match session.open(config.lease_seconds, fresh).await {
            Ok(opened) => {
                info!(name = config.name, resumed = opened.resumed, "session is open");
                let begun = begin(target, &opened, !was_ready).await;
                program = opened.program;
                // New queue pairs, if they were asked for, are there by now.
                fresh = false;
                match begun {
                    Ok(()) => {
                        // Renewals have to know this generation from the first on.
                        session.applied();
                        if !was_ready {
                            ready()?;
                            was_ready = true;
                        }
                        backoff = BACKOFF.0;
                        let error = renew(config, session, target, &mut program).await?;
                        if let SessionError::Superseded { .. } = error {
                            stand_down(target, &program).await?;
                            bail!(error);
                        }
                        warn!(%error, "opening the session again");
                        ended = !matches!(error, SessionError::Silent);
                        fresh = !ended;
                        // A renewal takes its time, so this is no busy loop; and nothing arrives until the session is back.
                        continue;
                    }
                    Err(error) if error.error.may_pass() => {
                        warn!(%error, "trying again in {} ms", backoff.as_millis());
                    }
                    Err(error) => bail!(error),
                }
            }
            // A collector that took this session before may be starting with another configuration.
            Err(error) if was_ready || error.may_pass() => {
                warn!(%error, "trying again in {} ms", backoff.as_millis());
                if ended {
                    match stand_down(target, &program).await {
                        Ok(()) => {
                            ended = false;
                            // The target knows nothing of these queue pairs any more.
                            fresh = true;
                        }
                        Err(error) if error.error.may_pass() => {
                            warn!(%error, "queue pairs that lead nowhere are left")
                        }
                        Err(error) => bail!(error),
                    }
                }
            }
            Err(error) => bail!(error),
        }
        tokio::time::sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF.1);
    }
}

/// Makes the target hold the program of a session that was opened. With `first`, also tells it what was before.
async fn begin(target: &mut impl Target, opened: &Opened, first: bool) -> Result<(), ApplyError> {
    if first {
        target.heard_earlier(&opened.reporters).await.map_err(ApplyError::nothing)?;
    }
    target.apply(&opened.program, After::Open).await.map(drop)
}

/// Renews until the session has to be opened again; gives the reason. `program` becomes the newest one.
async fn renew(
    config: &Translator,
    session: &mut Session,
    target: &mut impl Target,
    program: &mut Program,
) -> anyhow::Result<SessionError> {
    let every = Duration::from_millis(u64::from(config.lease_seconds) * 1000 / 3).min(Duration::from_secs(1));
    let mut away = false;
    let mut failed_renewals = 0;
    // Whether the target holds what the collector told last, and since when operations are on their way to what it told before.
    let (mut holds, mut ahead_since) = (true, None);
    loop {
        tokio::time::sleep(every).await;
        // The lease is kept even if the target does not answer just now.
        let Status { mut nodes, silent, former_regions } = status(target).await?;
        for_collector(&mut nodes);
        // What left on UC before the newest program was applied has arrived by now.
        if holds && is_through(session, former_regions, &mut ahead_since) {
            session.applied();
        }
        match session.renew(nodes).await {
            Ok(newest) => {
                if std::mem::take(&mut away) {
                    info!("the collector answers again");
                }
                *program = newest;
                holds = match target.apply(program, After::Renewal).await {
                    Ok(_) => true,
                    Err(error) if error.error.may_pass() => {
                        warn!(%error, "trying again with the next renewal");
                        false
                    }
                    Err(error) => bail!(error),
                };
                // The collector rebuilds a queue pair that it finds in error; one that it thinks well of, but that does not answer
                // us, is asked for anew.
                let still_silent = silent && status(target).await?.silent;
                failed_renewals = if still_silent { failed_renewals + 1 } else { 0 };
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
/// Of a target that does not say how many regions that concerns (`None`), nothing is known: then it is for too long alone.
fn is_through(session: &Session, former_regions: Option<usize>, ahead_since: &mut Option<Instant>) -> bool {
    if !session.is_ahead() || former_regions == Some(0) {
        *ahead_since = None;
        return true;
    }
    let too_long = ahead_since.get_or_insert_with(Instant::now).elapsed() > LONGEST_FORMER;
    if too_long {
        *ahead_since = None;
        warn!(
            stores = former_regions,
            "operations on their way to a region that was replaced are not acknowledged: they leave again for the new one, on another queue pair"
        );
    }
    too_long
}

/// What the target counts; nothing where it does not answer just now.
async fn status(target: &mut impl Target) -> anyhow::Result<Status> {
    match target.status().await {
        Ok(status) => Ok(status),
        Err(error) if error.may_pass() => {
            warn!(%error, "the target's counters are not known");
            Ok(Status::default())
        }
        Err(error) => bail!(error),
    }
}

/// Takes the queue pairs of a session that has ended out of the target: reports are then dropped under that name (`no_queue_pair`),
/// rather than sent to a collector that throws them away.
async fn stand_down(target: &mut impl Target, program: &Program) -> Result<(), ApplyError> {
    let mut want = program.clone();
    let ended = |entry: &&Entry| matches!(entry, Entry::QueuePair(_) | Entry::Session(_));
    let keys: Vec<EntryKey> = program.entries().filter(ended).map(Entry::key).collect();
    keys.iter().for_each(|key| drop(want.remove(key)));
    target.apply(&want, After::Renewal).await.map(drop)
}

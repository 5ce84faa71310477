//! The leases of a running translator, one in each collector: opening and renewing its session, and keeping the data plane in step with it.

use std::cell::Cell;
use std::time::Duration;

use anyhow::bail;
use dta_proto::control::NodeStatistics;
use futures_util::future::try_join_all;
use tracing::{error, info, warn};

use super::data_plane::{DataPlane, Refusal};
use super::packet_thread::Snapshot;
use super::service::Control;
use super::start::Start;
use super::stats::{EVICTED, nodes};
use crate::config::Translator;
use crate::session::{BACKOFF, Opened, Session, SessionError};

/// What the leases of all collectors share.
struct Leases<'a, R> {
    config: &'a Translator,
    data_plane: DataPlane<'a>,
    start: Start,
    ready: R,
    /// Frames that did not leave for want of a source port, as far as that was told.
    without_source: Cell<u64>,
}

/// Why a session is not open, or not of use.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error(transparent)]
    Refusal(#[from] Refusal),
}

/// Keeps the lease of every collector; none waits for another. Calls `ready` when one is programmed and the others are, too, or could not
/// be. Returns only with an error that waiting does not cure: every collector refuses at the start, the data plane cannot hold what they
/// grant at the start, or other translators have opened all sessions of this name.
pub(super) async fn keep_all(
    config: &Translator,
    sessions: &mut [Session],
    control: &Control,
    ready: impl Fn() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let leases = Leases {
        config,
        data_plane: DataPlane::new(config, control),
        start: Start::new(sessions.len()),
        ready,
        without_source: Cell::new(0),
    };
    let over = try_join_all(sessions.iter_mut().map(|session| leases.keep(session))).await?;
    bail!(over.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

impl<R: Fn() -> anyhow::Result<()>> Leases<'_, R> {
    /// Keeps the lease of one collector. Gives why it is over, if another translator has taken it; an error ends the program.
    async fn keep(&self, session: &mut Session) -> anyhow::Result<SessionError> {
        let collector = session.collector();
        let mut backoff = BACKOFF.0;
        let mut was_open = false;
        // Whether the collector has ended the session or will not have it go on, so that the queue pairs lead nowhere.
        let mut ended = false;
        // Whether a queue pair is silent that the collector thinks well of; or, at the start, what an earlier life sent is on its way.
        let mut fresh = true;
        loop {
            match self.open(session, fresh, was_open).await {
                Ok(()) => {
                    was_open = true;
                    if self.start.programmed(collector) {
                        (self.ready)()?;
                    }
                    backoff = BACKOFF.0;
                    let failure = self.renew(session).await?;
                    if let Failure::Session(over @ SessionError::Superseded { .. }) = failure {
                        self.data_plane.stand_down(collector).await?;
                        if self.config.collector.count() > 1 {
                            error!(error = %over, "reports for this collector's stores are dropped until this program is started again");
                        }
                        return Ok(over);
                    }
                    warn!(collector = session.address(), error = %failure, "opening the session again");
                    ended = !matches!(failure, Failure::Session(SessionError::Silent));
                    fresh = !ended;
                    // A renewal takes its time, so this is no busy loop; and nothing arrives until the session is back.
                    continue;
                }
                // A collector that took this session before may be starting with another configuration.
                Err(failure) => {
                    self.judge(collector, &failure)?;
                    let address = session.address();
                    warn!(collector = address, error = %failure, "trying again in {} ms", backoff.as_millis());
                    if std::mem::take(&mut ended) {
                        self.data_plane.stand_down(collector).await?;
                        // The data plane knows nothing of these queue pairs any more.
                        fresh = true;
                    }
                }
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF.1);
        }
    }

    /// Opens the session and programs the data plane.
    async fn open(&self, session: &mut Session, fresh: bool, was_open: bool) -> Result<(), Failure> {
        let Opened { grant, resumed, reporters } = session.open(self.config.lease_seconds, fresh).await?;
        info!(name = self.config.name, collector = session.address(), resumed, "session is open");
        if !was_open {
            self.data_plane.heard_earlier(reporters).await.map_err(Refusal::from)?;
        }
        Ok(self.data_plane.open(session.collector(), grant).await?)
    }

    /// Judges a failed attempt: an error if the program ends by it.
    fn judge(&self, collector: u8, failure: &Failure) -> anyhow::Result<()> {
        let may_pass = match failure {
            Failure::Session(error) => error.may_pass(),
            Failure::Refusal(Refusal::Stopped(stopped)) => bail!(*stopped),
            // Configurations that contradict each other: at the start somebody is there to mend them.
            Failure::Refusal(refusal) if !self.start.is_ready() => bail!("{refusal}"),
            Failure::Refusal(_) => false,
        };
        if self.start.failed(collector, may_pass) {
            (self.ready)()?;
        }
        if self.start.is_hopeless() { bail!("{failure}") } else { Ok(()) }
    }

    /// Renews until the session has to be opened again; gives the reason.
    async fn renew(&self, session: &mut Session) -> anyhow::Result<Failure> {
        let collector = session.collector();
        let (control, lease) = (self.data_plane.control, u64::from(self.config.lease_seconds));
        let every = Duration::from_millis(lease * 1000 / 3).min(Duration::from_secs(1));
        let is_down =
            |snapshot: &Snapshot| snapshot.queue_pairs.iter().any(|q| q.collector == collector && q.down);
        let mut away = false;
        let mut failed_renewals = 0;
        loop {
            tokio::time::sleep(every).await;
            let snapshot = control.snapshot().await?;
            self.look_at_sources(&snapshot);
            let down = is_down(&snapshot);
            let statistics = handed_in(control, &snapshot, self.among_others(collector));
            match session.renew(statistics).await {
                Ok(grant) => {
                    if std::mem::take(&mut away) {
                        info!(collector = session.address(), "the collector answers again");
                    }
                    match self.data_plane.follow(collector, grant).await {
                        Ok(()) => {}
                        Err(Refusal::Stopped(stopped)) => bail!(stopped),
                        Err(refusal) => return Ok(refusal.into()),
                    }
                    // The collector rebuilds a queue pair that it finds in error; one that it thinks well of, but that does not answer
                    // us, is asked for anew.
                    let still_down = down && is_down(&*control.snapshot().await?);
                    failed_renewals = if still_down { failed_renewals + 1 } else { 0 };
                    if failed_renewals >= 2 {
                        return Ok(SessionError::Silent.into());
                    }
                }
                Err(error @ SessionError::Away { .. }) => {
                    // Frames go on to the old queue pairs: the collector's memory may well be there.
                    if !std::mem::replace(&mut away, true) {
                        warn!(%error, "going on with the queue pairs that are there");
                    }
                }
                Err(error) => return Ok(error.into()),
            }
        }
    }

    /// The collector, if it is one of several.
    fn among_others(&self, collector: u8) -> Option<u8> {
        (self.config.collector.count() > 1).then_some(collector)
    }

    /// Warns of frames that did not leave for want of their source port.
    fn look_at_sources(&self, snapshot: &Snapshot) {
        let unsent = snapshot.roce_link.unsent_no_source;
        let told = self.without_source.replace(unsent);
        if unsent > told {
            warn!(
                frames = unsent - told,
                "frames did not leave: another program has the UDP port of a queue pair (0xc000 + the low 14 bits of its number; \
                 `ss -uanp` names it); it is tried again every second"
            );
        }
    }
}

/// Gives a collector the counters of the end. `alone` says that it is the only one.
pub(super) async fn say_last(control: &Control, session: &mut Session, last: &Snapshot, alone: bool) {
    let address = session.address().to_owned();
    let among_others = (!alone).then_some(session.collector());
    let renewal = session.renew(handed_in(control, last, among_others));
    match tokio::time::timeout(Duration::from_secs(2), renewal).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => warn!(%error, "the last counters did not reach the collector"),
        Err(_) => warn!(collector = address, "the last counters did not reach the collector in 2 s"),
    }
}

/// What goes to a collector with a renewal. `among_others` is its index if it is one of several: what it then gets are the
/// reports of the whole translator, and the frames to it alone, so that they can be compared with what its NIC received.
fn handed_in(control: &Control, snapshot: &Snapshot, among_others: Option<u8>) -> Vec<NodeStatistics> {
    let mut nodes = nodes(&control.name, control.life, snapshot);
    nodes.retain(|node| node.node != EVICTED);
    for node in &mut nodes {
        node.counters.retain(|c| is_for_collector(&c.name));
    }
    if let (Some(collector), Some(own)) = (among_others, nodes.first_mut()) {
        let frames_to = frames_to(collector, snapshot);
        // The link does not know whose its frames are.
        own.counters.retain(|c| c.name != "link.roce.sent");
        own.counters.iter_mut().filter(|c| c.name == "frames").for_each(|c| c.value = frames_to);
    }
    nodes
}

/// Frames given to the link for a collector.
fn frames_to(collector: u8, snapshot: &Snapshot) -> u64 {
    let of_it = snapshot.queue_pairs.iter().filter(|q| q.collector == collector);
    of_it.map(|q| q.counters.sent + q.counters.retransmitted).sum()
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

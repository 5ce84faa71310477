//! Fetches what the dashboard shows: one task each for the figures, the open page, and typed queries. None waits
//! for another, and a slow collector never blocks the keyboard.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dta_proto::backoff::Backoff;
use dta_proto::store::StoreSpec;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use super::app::{Errand, ListId, RefreshFailure, Update, WantedData};
use super::events::{self, EventFollower};
use super::follow::{Follow, Scan};
use super::source::{DataSource, FollowedList};
use crate::int::top::Ranking;

/// Most pages of a followed store that are read per refresh: 4 MiB.
const PAGES_AT_ONCE: usize = 64;

/// The part of the time between refreshes spent on scanning for writes: one in this many.
const LOOK_SHARE: u32 = 2;

/// Delays between tries to fetch figures.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// Least time between expensive queries.
const MUCH: Duration = Duration::from_secs(1);

/// What the workers receive, and where their results go.
pub(super) struct Orders {
    pub(super) wanted: watch::Receiver<WantedData>,
    pub(super) errands: mpsc::Receiver<Errand>,
    pub(super) refresh: Arc<Notify>,
    pub(super) updates: mpsc::Sender<Update>,
}

/// Starts the workers. They end when the other ends of their channels are dropped, or with the set.
pub(super) fn start_workers(source: &DataSource, interval: Duration, orders: Orders) -> JoinSet<()> {
    let Orders { wanted, errands, refresh, updates } = orders;
    let mut workers = JoinSet::new();
    workers.spawn(refresh_figures(source.clone(), interval, refresh, updates.clone()));
    workers.spawn(refresh_page(source.clone(), interval, wanted, updates.clone()));
    workers.spawn(run_errands(source.clone(), errands, updates));
    workers
}

/// Fetches figures at every interval; after failures, less and less often.
async fn refresh_figures(
    source: DataSource,
    interval: Duration,
    refresh: Arc<Notify>,
    updates: mpsc::Sender<Update>,
) {
    let mut again = AGAIN;
    loop {
        let snapshot = source.fetch_snapshot().await;
        let wait = if snapshot.is_ok() {
            again = AGAIN;
            interval
        } else {
            again.next_pause()
        };
        let at = Instant::now();
        let snapshot = snapshot.map_err(|error| RefreshFailure { error, at, next: at + wait });
        if updates.send(Update::Snapshot(snapshot)).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = refresh.notified() => {}
        }
    }
}

/// Fetches what the open page wants, at every interval, and at once when that changes. Cancels what is no longer
/// wanted.
async fn refresh_page(
    source: DataSource,
    interval: Duration,
    mut wanted: watch::Receiver<WantedData>,
    updates: mpsc::Sender<Update>,
) {
    let mut page = OpenPage {
        source,
        look: interval / LOOK_SHARE,
        follow: None,
        tail: None,
        events: None,
        ranking: None,
    };
    // Jumping to what a scan found changes what is wanted, but does not start another scan.
    let mut next_look = Instant::now();
    loop {
        let want = wanted.borrow_and_update().clone();
        let work = async {
            page.fetch_wanted(&want, &updates).await?;
            if let Some(spec) = want.follow.as_ref().filter(|_| next_look <= Instant::now()) {
                let seen = page.scan_memory(spec).await;
                next_look = Instant::now() + interval / LOOK_SHARE;
                updates.send(Update::Written(spec.name.clone(), seen)).await.ok()?;
            }
            // Flows and rankings are expensive.
            let much = want.flow.is_some() || want.top.is_some();
            tokio::time::sleep(if much { interval.max(MUCH) } else { interval }).await;
            Some(())
        };
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            done = work => if done.is_none() { return },
        }
    }
}

async fn run_errands(source: DataSource, mut errands: mpsc::Receiver<Errand>, updates: mpsc::Sender<Update>) {
    while let Some(errand) = errands.recv().await {
        let update = match errand {
            Errand::Ask(question) => {
                let answer = source.answer_query(&question).await;
                Update::Answer(question, Instant::now(), answer)
            }
            Errand::Step(step) => Update::Stepped(source.resolve_step(&step).await),
        };
        if updates.send(update).await.is_err() {
            return;
        }
    }
}

/// State of the open page, consistent even after a cancelled fetch.
struct OpenPage {
    source: DataSource,
    /// How long one scan for writes may take.
    look: Duration,
    follow: Option<Follow>,
    tail: Option<FollowedList>,
    events: Option<EventFollower>,
    ranking: Option<Ranking>,
}

impl OpenPage {
    /// Fetches what the page shows; `None` = the receiver is gone.
    async fn fetch_wanted(&mut self, want: &WantedData, updates: &mpsc::Sender<Update>) -> Option<()> {
        if want.follow.is_none() {
            self.follow = None;
        }
        if let Some(window) = &want.memory {
            let bytes = self.source.memory_bytes(window).await;
            updates.send(Update::Memory(window.clone(), Instant::now(), bytes)).await.ok()?;
        }
        match &want.list {
            Some(list) => {
                let read = self.read_list(list).await;
                updates.send(Update::Entries(list.clone(), Instant::now(), read)).await.ok()?;
            }
            None => self.tail = None,
        }
        if want.events {
            let read = self.read_events().await;
            updates.send(Update::Events(Instant::now(), read)).await.ok()?;
        } else if want.flow.is_none() {
            self.events = None;
        }
        if let Some(by) = want.top {
            let ranking = match &mut self.ranking {
                Some(ranking) if ranking.criteria().at == want.at => ranking,
                ranking => ranking.insert(self.source.new_ranking(by, want.at)),
            };
            ranking.set_criterion(by);
            let top = self.source.rank_flows(ranking).await;
            if top.is_err() {
                self.ranking = None;
            }
            updates.send(Update::Top((by, want.at), Instant::now(), top.map(Box::new))).await.ok()?;
        }
        if let Some(flow) = want.flow {
            let lines = self.source.draw_flow(flow, want.at).await;
            updates.send(Update::Flow((flow, want.at), Instant::now(), lines)).await.ok()?;
        }
        Some(())
    }

    async fn read_events(&mut self) -> Result<events::EventLog, String> {
        let followed = match self.events.take() {
            Some(events) => events,
            None => self.source.follow_events().await?,
        };
        // Kept even if reading fails or is cancelled, because it recovers.
        self.events.insert(followed).read().await.cloned()
    }

    async fn read_list(&mut self, list: &ListId) -> Result<super::app::ListEntries, String> {
        let tail = match &mut self.tail {
            Some(tail) if tail.is_following(list) => tail,
            tail => tail.insert(self.source.follow_list(list).await?),
        };
        let read = tail.read().await.cloned();
        if read.is_err() {
            // A broken stream is replaced by a new one.
            self.tail = None;
        }
        read
    }

    /// Scans one more part of a store's memory.
    async fn scan_memory(&mut self, spec: &StoreSpec) -> Result<Scan, String> {
        let began = Instant::now();
        let follow = match &mut self.follow {
            Some(follow) if follow.is_following(spec) => follow,
            follow => follow.insert(Follow::new(spec)),
        };
        let mut seen = Scan::new();
        for _ in 0..PAGES_AT_ONCE.min(follow.page_count()) {
            let window = follow.next_window();
            let bytes = self.source.memory_bytes(&window).await?;
            follow.compare_window(&bytes, Instant::now(), &mut seen);
            if began.elapsed() >= self.look {
                break;
            }
        }
        Ok(seen)
    }
}

//! Changes, as server-sent events. One task queries for all readers of a feed, and only while there are any. A reader that is
//! too slow for the waterfall gets the newest one; a reader too slow for events misses the oldest ones and is told how many.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dta_rpc::ClientError;
use dta_views::int::event::Filter;
use dta_views::int::event_reader::{EventLine, EventReader, PastEvents};
use dta_views::stores::StoreRow;
use dta_views::waterfall::Rates;
use http::StatusCode;
use http_body::{Body, Frame};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, mpsc, watch};
use tokio::task::JoinHandle;

use crate::api::{WATERFALL_STORE_AGE, WebServer, read_waterfall, to_json};
use crate::problem::Problem;

/// Most readers at a time, over all feeds.
const READERS: usize = 32;
/// Messages that may wait for one reader.
const QUEUE: usize = 8;
/// Events that may wait for the slowest reader.
const BACKLOG: usize = 1024;
/// How often counters are read. Translators hand theirs in once a second.
const TICK: Duration = Duration::from_secs(1);
/// After this long without a message, something is sent to check whether the reader is still there.
const QUIET: Duration = Duration::from_secs(15);

pub(crate) struct LiveFeeds {
    places: Arc<Semaphore>,
    waterfall: watch::Sender<Bytes>,
    events: broadcast::Sender<Arc<EventLine>>,
    /// Whether the task of each feed runs.
    running: [Mutex<bool>; 2],
    /// Changes when all streams must end.
    end: watch::Sender<()>,
}

#[derive(Clone, Copy)]
enum Feed {
    Waterfall,
    Events,
}

impl Default for LiveFeeds {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(READERS)),
            waterfall: watch::channel(Bytes::new()).0,
            events: broadcast::channel(BACKLOG).0,
            running: Default::default(),
            end: watch::channel(()).0,
        }
    }
}

/// The body of an answer that goes on.
pub(crate) struct EventStream {
    messages: mpsc::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.messages.poll_recv(cx).map(|message| message.map(|message| Ok(Frame::data(message))))
    }
}

impl LiveFeeds {
    fn new_stream(&self) -> Result<(mpsc::Sender<Bytes>, EventStream), Problem> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let full = format!("{READERS} live views are open, the limit: close one");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, full)
        })?;
        let (sender, messages) = mpsc::channel(QUEUE);
        Ok((sender, EventStream { messages, _place: place }))
    }

    /// Passes a feed's messages on to a reader, in a task, until all streams must end.
    fn start_passing(&self, messages: impl Future<Output = ()> + Send + 'static) {
        let mut end = self.end.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = messages => {}
                _ = end.changed() => {}
            }
        });
    }

    /// Ends all present streams.
    pub(crate) fn end_streams(&self) {
        self.end.send_replace(());
    }

    fn reader_count(&self, feed: Feed) -> usize {
        match feed {
            Feed::Waterfall => self.waterfall.receiver_count(),
            Feed::Events => self.events.receiver_count(),
        }
    }

    /// Whether to start a feed's task; if so, it counts as running from here on.
    fn should_start(&self, feed: Feed) -> bool {
        !std::mem::replace(&mut *self.lock_feed(feed), true)
    }

    /// Whether to end a feed's task because nobody reads it. The next reader starts it again.
    fn should_end(&self, feed: Feed) -> bool {
        let mut running = self.lock_feed(feed);
        let is_unread = self.reader_count(feed) == 0;
        *running = !is_unread;
        is_unread
    }

    fn lock_feed(&self, feed: Feed) -> std::sync::MutexGuard<'_, bool> {
        self.running[feed as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Streams the waterfall, once a second.
pub(crate) fn stream_waterfall(server: &Arc<WebServer>) -> Result<EventStream, Problem> {
    let (sender, stream) = server.feeds.new_stream()?;
    let mut readings = server.feeds.waterfall.subscribe();
    if server.feeds.should_start(Feed::Waterfall) {
        tokio::spawn(publish_waterfall(server.clone()));
    } else {
        // Begin with what the others see now.
        readings.mark_changed();
    }
    server.feeds.start_passing(async move {
        loop {
            let message = match tokio::time::timeout(QUIET, readings.changed()).await {
                Ok(Ok(())) => readings.borrow_and_update().clone(),
                Ok(Err(_)) => return,
                Err(_) => still_there(),
            };
            if !message.is_empty() && sender.send(message).await.is_err() {
                return;
            }
        }
    });
    Ok(stream)
}

async fn publish_waterfall(server: Arc<WebServer>) {
    let mut rates = Rates::default();
    // Counters do not wait until stores are measured, which takes a while if there is much memory.
    let (mut stores, mut measured) = (Arc::default(), measure_stores(&server));
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if server.feeds.should_end(Feed::Waterfall) {
            return;
        }
        if measured.is_finished() {
            if let Ok(Ok(rows)) = measured.await {
                stores = rows;
            }
            measured = measure_stores(&server);
        }
        let message = match read_waterfall(&server, &stores, &mut rates).await {
            Ok(document) => to_message("waterfall", &document),
            Err(problem) => Some(message_of("problem", &problem.to_json())),
        };
        if let Some(message) = message {
            server.feeds.waterfall.send_replace(message);
        }
    }
}

fn measure_stores(server: &Arc<WebServer>) -> JoinHandle<Result<Arc<[StoreRow]>, Problem>> {
    let server = server.clone();
    tokio::spawn(async move { server.stores_younger_than(WATERFALL_STORE_AGE).await })
}

/// Streams events as they come, if the filter admits them.
pub(crate) fn stream_events(server: &Arc<WebServer>, filter: Filter) -> Result<EventStream, Problem> {
    let (sender, stream) = server.feeds.new_stream()?;
    let mut lines = server.feeds.events.subscribe();
    if server.feeds.should_start(Feed::Events) {
        tokio::spawn(publish_events(server.clone()));
    }
    let counters = server.counters.clone();
    server.feeds.start_passing(async move {
        loop {
            let message = match tokio::time::timeout(QUIET, lines.recv()).await {
                Ok(Ok(line)) => match &*line {
                    EventLine::Event(event) if !filter.admits(event) => None,
                    line => to_message("event", line),
                },
                Ok(Err(broadcast::error::RecvError::Lagged(skipped))) => {
                    counters.skipped.fetch_add(skipped, Ordering::Relaxed);
                    to_message("skipped", &skipped)
                }
                Ok(Err(broadcast::error::RecvError::Closed)) => return,
                Err(_) => Some(still_there()),
            };
            if let Some(message) = message
                && sender.send(message).await.is_err()
            {
                return;
            }
        }
    });
    Ok(stream)
}

async fn publish_events(server: Arc<WebServer>) {
    loop {
        let mut reader = EventReader::new(server.names.clone(), Filter::default());
        let follow = async {
            let pass_on = |line| -> Result<(), ClientError> {
                // Sending fails if nobody is reading just now.
                let _ = server.feeds.events.send(Arc::new(line));
                Ok(())
            };
            let last = reader.read_past_events(&server.ask, PastEvents::None, pass_on).await?;
            reader.follow_events(server.ask.clone(), last, pass_on).await
        };
        let unread = async {
            loop {
                tokio::time::sleep(TICK).await;
                if server.feeds.should_end(Feed::Events) {
                    return;
                }
            }
        };
        tokio::select! {
            // The collector is away or has no store for events; both may change.
            ended = follow => if let Err(error) = ended { tracing::debug!(%error, "events cannot be followed") },
            () = unread => return,
        }
        tokio::time::sleep(TICK).await;
        if server.feeds.should_end(Feed::Events) {
            return;
        }
    }
}

fn still_there() -> Bytes {
    Bytes::from_static(b": still there\n\n")
}

fn to_message(event: &str, document: &impl serde::Serialize) -> Option<Bytes> {
    to_json(document).ok().map(|json| message_of(event, &json))
}

/// JSON as serialized has no line breaks.
fn message_of(event: &str, json: &[u8]) -> Bytes {
    [b"event: ", event.as_bytes(), b"\ndata: ", json, b"\n\n"].concat().into()
}

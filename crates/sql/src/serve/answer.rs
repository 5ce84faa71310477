//! Clients' statements, each in a worker, within bounds on how many run at a time and how long each may take. All waiting, timing and passing on of
//! answers happens here, where no statement runs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use dta_rpc::transport::{ConnectionCloser, Permit, Pool};
use futures_util::{Stream, StreamExt, stream};
use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::{sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::protocol::{WorkerRequest, WorkerSetup};
use super::worker::{AnswerFrame, Worker, WorkerPool};
use crate::session::check_statement_size;

/// Parts of an answer that wait for their reader, plus a place for the error that ends it.
const WAITING: usize = 2 + 1;
/// How long a statement waits for a place before it takes that of another, whose answer has waited this long for its reader.
const PATIENCE: Duration = Duration::from_millis(500);
/// After this time a statement yields to others.
const LONG: Duration = Duration::from_secs(1);
/// Most idle workers.
const IDLE: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Statements that run at a time.
    pub(super) statements: usize,
    /// Statements of one caller that run at a time.
    pub(super) statements_per_caller: usize,
    /// How long a statement may take.
    pub(super) time: Duration,
}

#[derive(Clone)]
pub(super) struct StatementRunner {
    workers: Arc<WorkerPool>,
    places: Arc<Pool>,
    displaced: Arc<AtomicU64>,
    bounds: Bounds,
}

type Part = Result<Bytes, Status>;

impl StatementRunner {
    /// # Errors
    /// A worker cannot be started, or there is no history.
    pub(super) async fn start(setup: WorkerSetup, bounds: Bounds) -> anyhow::Result<StatementRunner> {
        let workers = WorkerPool::start(setup, bounds.statements.min(IDLE)).await?;
        let places = Pool::with_patience(bounds.statements, bounds.statements_per_caller, PATIENCE);
        Ok(StatementRunner { workers, places, displaced: Arc::default(), bounds })
    }

    /// Has a worker answer a request, and returns the parts as they arrive.
    ///
    /// # Errors
    /// It is not a statement that only reads, or it fails before the first part; later failures are errors of the stream.
    pub(super) async fn answer(
        &self,
        caller: Arc<str>,
        request: WorkerRequest,
    ) -> Result<impl Stream<Item = Part> + Send + use<>, Status> {
        if let Some(text) = request.statement() {
            check_statement_size(text)
                .map_err(|error| Status::invalid_argument(dta_cli::error_line(&error)))?;
        }
        let until = Instant::now() + self.bounds.time;
        let (parts, answer) = mpsc::channel(WAITING);
        let end = parts.clone().try_reserve_owned().expect("an empty channel");
        let all = self.clone();
        tokio::spawn(async move {
            let (line, cut) = ConnectionCloser::new();
            let done = tokio::select! {
                done = timeout_at(until.into(), all.run_request(&caller, &request, Arc::new(line), &parts)) => done,
                Ok(()) = cut => Ok(Err(displaced_status())),
                // The client is gone.
                () = parts.closed() => return,
            };
            let failed = match done {
                Ok(Ok(())) => return,
                Ok(Err(status)) => status,
                Err(_) => all.timeout_status(),
            };
            tracing::info!(statement = request.statement(), error = failed.message(), "a statement failed");
            end.send(Err(failed));
        });
        let mut parts = ReceiverStream::new(answer);
        match parts.next().await {
            Some(first) => Ok(stream::iter([Ok(first?)]).chain(parts)),
            None => Err(Status::internal("the statement ended without an answer")),
        }
    }

    async fn run_request(
        &self,
        caller: &Arc<str>,
        request: &WorkerRequest,
        line: Arc<ConnectionCloser>,
        to: &mpsc::Sender<Part>,
    ) -> Result<(), Status> {
        let place = self.places.take(caller, 1, &self.displaced).await;
        let mut worker = self.workers.take_worker().await?;
        worker.send_request(request).await?;
        let later = Instant::now() + LONG;
        let (mut is_late, mut unread) = (false, Duration::ZERO);
        loop {
            let process = worker.process_id();
            let frame = {
                let mut next = std::pin::pin!(worker.next_frame());
                loop {
                    tokio::select! {
                        frame = &mut next => break frame?,
                        () = sleep_until(later.into()), if !is_late => {
                            Worker::lower_priority(process);
                            is_late = true;
                        }
                    }
                }
            };
            match frame {
                AnswerFrame::Part(part) => {
                    if !send_part(part, to, &place, &line, &mut unread).await {
                        return Ok(());
                    }
                }
                AnswerFrame::End(end) => {
                    // The worker's priority was lowered, and a process cannot raise it again.
                    if end.is_reusable && !is_late {
                        self.workers.give_back(worker);
                    }
                    return end.result();
                }
            }
        }
    }

    fn timeout_status(&self) -> Status {
        Status::deadline_exceeded(format!(
            "the statement took more than {} s, the limit of this server (--query-seconds): ask for less, or read the answer faster",
            self.bounds.time.as_secs()
        ))
    }
}

/// Passes on a part of an answer; returns whether its reader is still there. While it waits for the reader, another statement may take its place.
/// `unread` is how long the answer has waited so far.
async fn send_part(
    part: Bytes,
    to: &mpsc::Sender<Part>,
    place: &Permit,
    line: &Arc<ConnectionCloser>,
    unread: &mut Duration,
) -> bool {
    let part = match to.try_send(Ok(part)) {
        Ok(()) => return true,
        Err(TrySendError::Full(part)) => part,
        Err(TrySendError::Closed(_)) => return false,
    };
    let begun = Instant::now();
    // A reader that takes a part now and then is still slow.
    place.mark_idle_since(begun.checked_sub(*unread).unwrap_or(begun), line.clone());
    let is_sent = to.send(part).await.is_ok();
    place.mark_busy();
    *unread += begun.elapsed();
    is_sent
}

fn displaced_status() -> Status {
    Status::resource_exhausted(
        "others waited for the place of this statement, whose answer was read too slowly",
    )
}

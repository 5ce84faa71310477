//! Statements of clients, run within bounds.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::encode::{FlightDataEncoder, FlightDataEncoderBuilder};
use arrow_flight::error::FlightError;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use futures_util::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::session::{Engine, describe_error, statement};

/// Batches of an answer that wait for their reader; and a place for what ends it.
const WAITING: usize = 2 + 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Statements that run at a time.
    pub(super) statements: usize,
    /// How long one may take.
    pub(super) time: Duration,
    pub(super) rows: u64,
}

#[derive(Clone)]
pub(super) struct StatementRunner {
    engine: Arc<Engine>,
    runtime: Handle,
    places: Arc<Semaphore>,
    bounds: Bounds,
}

type Batch = Result<RecordBatch, FlightError>;

impl StatementRunner {
    pub(super) fn new(engine: Arc<Engine>, runtime: Handle, bounds: Bounds) -> StatementRunner {
        StatementRunner { engine, runtime, places: Arc::new(Semaphore::new(bounds.statements)), bounds }
    }

    /// Runs work on the threads of statements.
    pub(super) async fn on_engine<T, F>(&self, work: impl FnOnce(Arc<Engine>) -> F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = anyhow::Result<T>> + Send + 'static,
    {
        let done = self.runtime.spawn(work(self.engine.clone())).await;
        done.map_err(|error| Status::internal(error.to_string()))?.map_err(|error| refusal_status(&error))
    }

    /// The columns of a statement's answer.
    ///
    /// # Errors
    /// It is none that reads.
    pub(super) async fn answer_columns(&self, text: String) -> Result<SchemaRef, Status> {
        self.on_engine(|engine| async move { engine.answer_columns(statement(&text)?).await }).await
    }

    /// Runs a statement. Its rows are sent as they are found.
    ///
    /// # Errors
    /// As [`StatementRunner::answer_columns`]; what fails later is the stream's error.
    pub(super) async fn run(&self, text: String) -> Result<FlightDataEncoder, Status> {
        let until = Instant::now() + self.bounds.time;
        let (batches, answer) = mpsc::channel(WAITING);
        let end = batches.clone().try_reserve_owned().expect("an empty channel");
        let (columns, begun) = oneshot::channel();
        let all = self.clone();
        self.runtime.spawn(async move {
            let done = tokio::select! {
                done = timeout_at(until, all.run_statement(&text, columns, &batches)) => done,
                // Whoever asked is gone.
                () = batches.closed() => return,
            };
            let failed = match done {
                Ok(Ok(())) => return,
                Ok(Err(status)) => status,
                Err(_) => all.timeout_status(),
            };
            tracing::info!(statement = text, error = failed.message(), "a statement failed");
            end.send(Err(FlightError::Tonic(Box::new(failed))));
        });
        let mut rows = ReceiverStream::new(answer);
        let Ok(schema) = begun.await else {
            // It ended before it had columns.
            return Err(match rows.next().await {
                Some(Err(FlightError::Tonic(status))) => *status,
                _ => Status::internal("the statement ended without an answer"),
            });
        };
        Ok(FlightDataEncoderBuilder::new().with_schema(schema).build(rows))
    }

    async fn run_statement(
        &self,
        text: &str,
        columns: oneshot::Sender<SchemaRef>,
        to: &mpsc::Sender<Batch>,
    ) -> Result<(), Status> {
        let _place =
            self.places.acquire().await.map_err(|_| Status::unavailable("this server is shutting down"))?;
        let statement = statement(text).map_err(|error| refusal_status(&error))?;
        let mut answer =
            self.engine.begin_statement(statement).await.map_err(|error| refusal_status(&error))?;
        // A client that is gone needs no answer.
        if columns.send(answer.rows.schema()).is_err() {
            return Ok(());
        }
        let mut rows = 0;
        while let Some(batch) = answer.rows.next().await {
            let batch = batch.map_err(|error| refusal_status(&error.into()))?;
            rows += batch.num_rows() as u64;
            if rows > self.bounds.rows {
                return Err(Status::resource_exhausted(format!(
                    "the answer has more than {} rows, which is what this server sends (--query-rows): ask for less, by limit or where",
                    self.bounds.rows
                )));
            }
            if to.send(Ok(batch)).await.is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn timeout_status(&self) -> Status {
        Status::deadline_exceeded(format!(
            "the statement took more than {} s, which is what this server gives it (--query-seconds): ask for less, or read the answer faster",
            self.bounds.time.as_secs()
        ))
    }
}

/// The status that a client receives for a failed statement.
fn refusal_status(error: &anyhow::Error) -> Status {
    use datafusion::common::DataFusionError;
    let text = describe_error(error);
    match error.downcast_ref::<DataFusionError>().map(DataFusionError::find_root) {
        Some(DataFusionError::ResourcesExhausted(_)) => Status::resource_exhausted(text),
        Some(DataFusionError::Internal(_)) => Status::internal(text),
        _ => Status::invalid_argument(text),
    }
}

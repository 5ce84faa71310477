//! A worker: a process that answers one statement after another for the server, and may be killed at any moment. A statement that exceeds its
//! memory or its stack ends only this process.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::Context;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use arrow_flight::sql::{CommandGetDbSchemas, CommandGetTables};
use arrow_flight::{IpcMessage, SchemaAsIpc};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::ipc::writer::IpcWriteOptions;
use datafusion::common::DataFusionError;
use dta_cli::LogFormat;
use futures_util::{Stream, StreamExt, stream};
use prost::Message;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;
use tonic::Status;

use super::metadata;
use super::protocol::{AnswerEnd, END, LONGEST_PART, PART, WorkerRequest, WorkerSetup, frame_prefix};
use crate::session::{Engine, STACK, describe_error, stack_bytes, statement, statement_runtime};

/// The argument that starts a worker, in place of a command: people never use it.
pub(crate) const COMMAND: &str = "serve-worker";

/// Memory of a worker besides what statements reserve, in bytes: the program's own, and data between operators.
const HEADROOM: u64 = 384 << 20;
/// Most memory that a worker may hold, in bytes, while it waits for the next statement.
const IDLE_MEMORY: u64 = 256 << 20;
/// How much its priority is lowered.
const NICE: i32 = 5;

pub(crate) fn main() -> ExitCode {
    match serve_requests() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", dta_cli::error_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve_requests() -> anyhow::Result<()> {
    dta_rpc::transport::give_memory_back();
    let mut lines = io::stdin().lock().lines();
    let setup = lines.next().context("no setup")??;
    let setup: WorkerSetup = serde_json::from_str(&setup)?;
    let format = if setup.log_json { LogFormat::Json } else { LogFormat::Text };
    dta_cli::init_logging(&setup.log, format);
    limit_process(&setup)?;
    let (requests, waiting) = mpsc::channel();
    thread::Builder::new().name("statement".to_owned()).stack_size(STACK).spawn(move || {
        if let Err(error) = answer_requests(&setup, waiting) {
            // The server is gone, or notices that this process is.
            tracing::debug!("{}", dta_cli::error_line(&error));
        }
        std::process::exit(0);
    })?;
    for line in lines {
        requests.send(serde_json::from_str(&line?)?)?;
    }
    // The server is gone, and its statements end with it.
    std::process::exit(0);
}

/// Limits the memory of the process, whatever asks for it. Memory reserved for stacks counts, too.
fn limit_process(setup: &WorkerSetup) -> anyhow::Result<()> {
    let stacks = stack_bytes(setup.limits) as u64;
    let bytes = (u64::from(setup.limits.memory_mib) << 20) + HEADROOM + stacks;
    let set = |resource, bytes: u64| {
        let bytes = getrlimit(resource).maximum.map_or(bytes, |most| bytes.min(most));
        setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) })
    };
    set(Resource::Data, bytes).context("the limit of memory")?;
    // A process that hits its limits must not leave gigabytes on disk.
    set(Resource::Core, 0).context("the limit of core files")?;
    rustix::process::nice(NICE).context("the priority")?;
    Ok(())
}

fn answer_requests(setup: &WorkerSetup, requests: mpsc::Receiver<WorkerRequest>) -> anyhow::Result<()> {
    let runtime = statement_runtime(setup.limits)?;
    let mut output = FrameWriter(io::stdout().lock());
    let engine = {
        let _entered = runtime.enter();
        Engine::new(&setup.source, setup.limits)
    };
    let engine = match engine {
        Ok(engine) => Arc::new(engine),
        Err(error) => return output.write_end(&AnswerEnd::new(Err(refusal_status(&error)), false)),
    };
    output.write_end(&AnswerEnd::new(Ok(()), true))?;
    let worker = StatementWorker { engine, runtime, rows: setup.rows };
    for request in requests {
        let done = worker.answer_request(request, &mut output);
        output.write_end(&AnswerEnd::new(done, resident_bytes() < IDLE_MEMORY))?;
    }
    Ok(())
}

/// Memory in use by this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

struct StatementWorker {
    engine: Arc<Engine>,
    runtime: Runtime,
    rows: u64,
}

impl StatementWorker {
    fn answer_request<W: Write>(
        &self,
        request: WorkerRequest,
        output: &mut FrameWriter<W>,
    ) -> Result<(), Status> {
        self.runtime.block_on(async {
            match request {
                WorkerRequest::Columns(text) => {
                    let columns = async { self.engine.answer_columns(statement(&text)?).await };
                    let columns = columns.await.map_err(|error| refusal_status(&error))?;
                    let message =
                        IpcMessage::try_from(SchemaAsIpc::new(&columns, &IpcWriteOptions::default()));
                    output.write_part(&message.map_err(|error| Status::internal(error.to_string()))?.0)
                }
                WorkerRequest::Rows(text) => {
                    let answer = async { self.engine.begin_statement(statement(&text)?).await };
                    let answer = answer.await.map_err(|error| refusal_status(&error))?;
                    let (mut found, most) = (0, self.rows);
                    let schema = answer.rows.schema();
                    let rows = answer.rows.map(move |batch| {
                        let batch = batch.map_err(|error| refusal_status(&error.into()))?;
                        found += batch.num_rows() as u64;
                        if found > most { Err(row_limit_status(most)) } else { Ok(batch) }
                    });
                    send_batches(schema, rows, output).await
                }
                WorkerRequest::ListSchemas(command) => {
                    let command = CommandGetDbSchemas::decode(&command[..]).map_err(unreadable_status)?;
                    self.send_list(|tables| metadata::schema_batch(command, tables), output).await
                }
                WorkerRequest::ListTables(command) => {
                    let command = CommandGetTables::decode(&command[..]).map_err(unreadable_status)?;
                    self.send_list(|tables| metadata::table_batch(command, tables), output).await
                }
            }
        })
    }

    async fn send_list<W: Write>(
        &self,
        batch: impl FnOnce(&[metadata::Listed]) -> Result<RecordBatch, FlightError>,
        output: &mut FrameWriter<W>,
    ) -> Result<(), Status> {
        let tables = metadata::list_tables(&self.engine).await.map_err(|error| refusal_status(&error))?;
        let batch = batch(&tables)?;
        send_batches(batch.schema(), stream::iter([Ok(batch)]), output).await
    }
}

fn unreadable_status(error: prost::DecodeError) -> Status {
    Status::invalid_argument(error.to_string())
}

fn row_limit_status(rows: u64) -> Status {
    Status::resource_exhausted(format!(
        "the answer has more than {rows} rows, the limit of this server (--query-rows): ask for less, by limit or where"
    ))
}

async fn send_batches<W: Write>(
    schema: SchemaRef,
    batches: impl Stream<Item = Result<RecordBatch, Status>> + Send + 'static,
    output: &mut FrameWriter<W>,
) -> Result<(), Status> {
    let batches = batches.map(|batch| batch.map_err(|status| FlightError::Tonic(Box::new(status))));
    let mut encoder = FlightDataEncoderBuilder::new().with_schema(schema).build(batches);
    while let Some(part) = encoder.next().await {
        output.write_part(&part?.encode_to_vec())?;
    }
    Ok(())
}

/// Writes an answer to the server, which reads as fast as its client does: the statement waits until then.
struct FrameWriter<W>(W);

impl<W: Write> FrameWriter<W> {
    fn write_part(&mut self, bytes: &[u8]) -> Result<(), Status> {
        if bytes.len() > LONGEST_PART {
            return Err(Status::resource_exhausted(format!(
                "rows of the answer have {} bytes together, but may have at most {LONGEST_PART}: ask for shorter ones",
                bytes.len()
            )));
        }
        self.write_frame(PART, bytes).map_err(|error| Status::cancelled(error.to_string()))
    }

    fn write_end(&mut self, end: &AnswerEnd) -> anyhow::Result<()> {
        Ok(self.write_frame(END, &serde_json::to_vec(end)?)?)
    }

    fn write_frame(&mut self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(&frame_prefix(kind, bytes.len()))?;
        self.0.write_all(bytes)?;
        self.0.flush()
    }
}

/// The status that a client receives for a failed statement.
fn refusal_status(error: &anyhow::Error) -> Status {
    let text = describe_error(error);
    match error.downcast_ref::<DataFusionError>().map(DataFusionError::find_root) {
        Some(DataFusionError::ResourcesExhausted(_)) => Status::resource_exhausted(text),
        Some(DataFusionError::Internal(_)) => Status::internal(text),
        _ => Status::invalid_argument(text),
    }
}

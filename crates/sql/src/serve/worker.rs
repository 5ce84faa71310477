//! The server's side of its workers: processes that answer statements ([`work`](super::work)), and can be killed.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use prost::bytes::Bytes;
use rustix::process::{Pid, setpriority_pgrp};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tonic::Status;

use super::protocol::{AnswerEnd, LONGEST_PART, PART, PREFIX, WorkerRequest, WorkerSetup};
use super::work::COMMAND;

/// The running program, even if another one has been installed in its place meanwhile.
const PROGRAM: &str = "/proc/self/exe";
/// The priority of a worker whose statement takes long: others go first.
const LATER: i32 = 15;

/// A part of an answer, or its end.
pub(super) enum AnswerFrame {
    Part(Bytes),
    End(AnswerEnd),
}

/// A worker process, killed on drop.
pub(super) struct Worker {
    process: Option<(Child, TempDir)>,
    requests: ChildStdin,
    frames: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker in a folder of its own below `folder`, for data that does not fit into its memory.
    async fn start(setup: &WorkerSetup, folder: &TempDir) -> anyhow::Result<Worker> {
        let folder = TempDir::new_in(folder).context("a folder for a worker")?;
        let mut command = Command::new(PROGRAM);
        command.arg0("dta-history").arg(COMMAND).env("TMPDIR", folder.path());
        // Signals from a terminal to the server's group are for the server to handle.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a worker")?;
        let (requests, frames) = child.stdin.take().zip(child.stdout.take()).context("no pipes")?;
        let mut worker = Worker { process: Some((child, folder)), requests, frames: BufReader::new(frames) };
        worker.write_line(setup).await?;
        match worker.next_frame().await? {
            AnswerFrame::End(end) => {
                end.result().map_err(|status| anyhow::anyhow!("{}", status.message()))?
            }
            AnswerFrame::Part(_) => anyhow::bail!("a worker answered without a request"),
        }
        Ok(worker)
    }

    pub(super) async fn send_request(&mut self, request: &WorkerRequest) -> Result<(), Status> {
        match self.write_line(request).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.ending_status().await),
        }
    }

    async fn write_line(&mut self, message: &impl serde::Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.requests.write_all(&line).await
    }

    /// Reads the next frame. Must not be called again after it was dropped unfinished.
    pub(super) async fn next_frame(&mut self) -> Result<AnswerFrame, Status> {
        match self.read_frame().await {
            Ok(frame) => Ok(frame),
            Err(_) => Err(self.ending_status().await),
        }
    }

    async fn read_frame(&mut self) -> io::Result<AnswerFrame> {
        let mut prefix = [0; PREFIX];
        self.frames.read_exact(&mut prefix).await?;
        let [kind, a, b, c, d] = prefix;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > LONGEST_PART {
            return Err(io::Error::other("a frame is too long"));
        }
        let mut bytes = vec![0; length];
        self.frames.read_exact(&mut bytes).await?;
        Ok(match kind {
            PART => AnswerFrame::Part(bytes.into()),
            _ => AnswerFrame::End(serde_json::from_slice(&bytes)?),
        })
    }

    /// Lets other work go first from now on.
    pub(super) fn lower_priority(process: Option<u32>) {
        let group = process.and_then(|id| Pid::from_raw(id.cast_signed()));
        // On failure, the process is gone or the system forbids it: it keeps its priority.
        let _ = group.map(|group| setpriority_pgrp(Some(group), LATER));
    }

    pub(super) fn process_id(&self) -> Option<u32> {
        self.process.as_ref()?.0.id()
    }

    /// The status of a statement whose process has ended.
    async fn ending_status(&mut self) -> Status {
        let Some((child, _)) = &mut self.process else { return Status::internal("no process") };
        // It may have closed its pipe but still be alive.
        let _ = child.start_kill();
        match child.wait().await {
            Ok(status) => statement_status(status),
            Err(error) => Status::internal(error.to_string()),
        }
    }

    fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|(child, _)| matches!(child.try_wait(), Ok(None)))
    }
}

/// The status for a client whose statement ended its process.
fn statement_status(status: ExitStatus) -> Status {
    match status.signal() {
        Some(_) => Status::resource_exhausted(
            "the statement needs more memory than its process may have, or nests too deeply (--memory-mib allows more, and so does asking for \
             less)",
        ),
        None => Status::internal(format!("the statement ended its process ({status})")),
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some((mut child, folder)) = self.process.take() else { return };
        // Without a runtime, the server is ending: the process is killed anyway.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = child.kill().await;
            // Removing it may take a while: it may hold gigabytes.
            let _ = tokio::task::spawn_blocking(move || drop(folder)).await;
        });
    }
}

/// Workers waiting for statements.
pub(super) struct WorkerPool {
    setup: WorkerSetup,
    folder: TempDir,
    idle: Mutex<Vec<Worker>>,
    /// Most idle workers.
    most: usize,
    is_starting: AtomicBool,
}

impl WorkerPool {
    /// # Errors
    /// A worker cannot be started, or there is no history.
    pub(super) async fn start(setup: WorkerSetup, most: usize) -> anyhow::Result<Arc<WorkerPool>> {
        let folder = TempDir::with_prefix("dta-history").context("a temporary folder")?;
        let first = Worker::start(&setup, &folder).await?;
        let idle = Mutex::new(vec![first]);
        Ok(Arc::new(WorkerPool { setup, folder, idle, most, is_starting: AtomicBool::new(false) }))
    }

    /// Takes an idle worker, or starts a new one.
    pub(super) async fn take_worker(self: &Arc<Self>) -> Result<Worker, Status> {
        let found = {
            let mut idle = self.lock_idle();
            std::iter::from_fn(|| idle.pop()).find_map(|mut worker| worker.is_running().then_some(worker))
        };
        let worker = match found {
            Some(worker) => worker,
            None => {
                let started = Worker::start(&self.setup, &self.folder).await;
                started.map_err(|error| Status::unavailable(dta_cli::error_line(&error)))?
            }
        };
        self.keep_one_idle();
        Ok(worker)
    }

    pub(super) fn give_back(&self, worker: Worker) {
        let mut idle = self.lock_idle();
        if idle.len() < self.most {
            idle.push(worker);
        }
    }

    /// Starts a worker in the background if none is idle, so that the next statement need not wait for its start.
    fn keep_one_idle(self: &Arc<Self>) {
        if !self.lock_idle().is_empty() || self.is_starting.swap(true, Ordering::Relaxed) {
            return;
        }
        let pool = self.clone();
        tokio::spawn(async move {
            // After a failure, the next statement tries again and reports it.
            if let Ok(worker) = Worker::start(&pool.setup, &pool.folder).await {
                pool.give_back(worker);
            }
            pool.is_starting.store(false, Ordering::Relaxed);
        });
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

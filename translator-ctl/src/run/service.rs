//! The gRPC service `dta.v1.Translator` of a running translator.

use std::sync::mpsc::Sender;

use dta_proto::control::translator_server::Translator;
use dta_proto::control::{
    ApplyProgramRequest, ApplyProgramResponse, CompareProgramRequest, CompareProgramResponse, FlushRequest,
    FlushResponse, TranslatorStatisticsRequest, TranslatorStatisticsResponse,
};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use super::packet_thread::{Command, Snapshot};
use super::stats::nodes;
use dta_proto::program::{Change, Program, changes_for_session, without_keys};

/// The control side's way to the thread that carries reports.
#[derive(Clone)]
pub(super) struct Control {
    /// Name of the translator.
    pub(super) name: String,
    /// Number chosen when counting began.
    pub(super) life: u64,
    commands: Sender<Command>,
    /// Whether programs, which hold keys, are taken where this service listens.
    programs: bool,
}

/// The thread that carries reports has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the data plane has stopped")]
pub(super) struct Stopped;

impl Control {
    /// A control over the thread that `commands` goes to.
    pub(super) fn new(name: String, life: u64, commands: Sender<Command>, programs: bool) -> Self {
        Control { name, life, commands, programs }
    }

    /// Reads a program that somebody sends, and the changes that lead to it.
    async fn needed(&self, program: &str) -> Result<Vec<Change>, Status> {
        if !self.programs {
            return Err(Status::permission_denied(
                "programs hold keys to the collector's memory, which this translator reaches with TLS: it takes them on a unix socket of its \
                 owner alone (start it with --control unix:PATH, and give that address)",
            ));
        }
        let want: Program =
            serde_json::from_str(program).map_err(|e| Status::invalid_argument(format!("program: {e}")))?;
        Ok(changes_for_session(&self.ask(Command::Program).await?, &want))
    }

    /// Sends a command and waits for its answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    /// Counters of now.
    pub(super) async fn snapshot(&self) -> Result<Box<Snapshot>, Stopped> {
        self.ask(Command::Snapshot).await
    }
}

impl From<Stopped> for Status {
    fn from(stopped: Stopped) -> Status {
        Status::unavailable(stopped.to_string())
    }
}

#[tonic::async_trait]
impl Translator for Control {
    async fn statistics(
        &self,
        _: Request<TranslatorStatisticsRequest>,
    ) -> Result<Response<TranslatorStatisticsResponse>, Status> {
        let snapshot = self.snapshot().await?;
        let nodes = nodes(&self.name, self.life, &snapshot);
        Ok(Response::new(TranslatorStatisticsResponse { nodes }))
    }

    async fn flush(&self, _: Request<FlushRequest>) -> Result<Response<FlushResponse>, Status> {
        let flushed = self.ask(Command::Flush).await?;
        Ok(Response::new(FlushResponse { flushed }))
    }

    async fn compare_program(
        &self,
        request: Request<CompareProgramRequest>,
    ) -> Result<Response<CompareProgramResponse>, Status> {
        let changes = self.needed(&request.into_inner().program).await?;
        Ok(Response::new(CompareProgramResponse { changes: changes_json(changes)? }))
    }

    async fn apply_program(
        &self,
        request: Request<ApplyProgramRequest>,
    ) -> Result<Response<ApplyProgramResponse>, Status> {
        let changes = self.needed(&request.into_inner().program).await?;
        let made = changes.clone();
        self.ask(|reply| Command::Apply(changes, reply))
            .await?
            .map_err(|e| Status::invalid_argument(format!("nothing has changed: {e}")))?;
        Ok(Response::new(ApplyProgramResponse { changes: changes_json(made)? }))
    }
}

/// Changes as JSON, with 0 for each remote key.
fn changes_json(changes: Vec<Change>) -> Result<String, Status> {
    serde_json::to_string(&without_keys(changes)).map_err(|e| Status::internal(e.to_string()))
}

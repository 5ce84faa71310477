//! The gRPC service `dta.v1.Translator` of a running translator.

use dta_proto::control::translator_server::Translator;
use dta_proto::control::{
    ApplyProgramRequest, ApplyProgramResponse, CompareProgramRequest, CompareProgramResponse, FlushRequest,
    FlushResponse, ProgramChange, ProgramEntry, TranslatorStatisticsRequest, TranslatorStatisticsResponse,
    program_of,
};
use tonic::{Request, Response, Status};

use crate::software::InProcess;
use dta_proto::program::{DataPlaneChange, Program, without_keys};
use dta_switch::{After, ApplyError, ApplyProgress, Target, TargetError};

/// The service for this process's data plane.
#[derive(Clone)]
pub(super) struct TranslatorService {
    target: InProcess,
    /// Whether this listener accepts programs, which contain rkeys.
    programs: bool,
}

impl TranslatorService {
    pub(super) fn new(target: InProcess, programs: bool) -> Self {
        TranslatorService { target, programs }
    }

    /// Converts a program from a caller.
    fn parse_program(&self, program: &[ProgramEntry]) -> Result<Program, Status> {
        if !self.programs {
            return Err(Status::permission_denied(
                "programs contain rkeys for the collector's memory, which this translator reaches with \
                TLS: it accepts them only on a unix socket of its owner (start it with --control \
                unix:PATH, and give that address)",
            ));
        }
        program_of(program).map_err(|e| Status::invalid_argument(e.to_string()))
    }
}

fn status_of_target(error: TargetError) -> Status {
    match error {
        TargetError::Refused(why) => Status::invalid_argument(why),
        other => Status::unavailable(other.to_string()),
    }
}

fn status_of_apply(error: ApplyError) -> Status {
    match error {
        ApplyError { progress: ApplyProgress::Nothing, error: TargetError::Refused(why) } => {
            Status::invalid_argument(format!("nothing has changed: {why}"))
        }
        other => Status::unavailable(other.to_string()),
    }
}

#[tonic::async_trait]
impl Translator for TranslatorService {
    async fn statistics(
        &self,
        _: Request<TranslatorStatisticsRequest>,
    ) -> Result<Response<TranslatorStatisticsResponse>, Status> {
        let nodes = self.target.clone().statistics().await.map_err(status_of_target)?;
        Ok(Response::new(TranslatorStatisticsResponse { nodes }))
    }

    async fn flush(&self, _: Request<FlushRequest>) -> Result<Response<FlushResponse>, Status> {
        let flushed = self.target.clone().flush_all().await.map_err(status_of_target)?;
        Ok(Response::new(FlushResponse { flushed }))
    }

    async fn compare_program(
        &self,
        request: Request<CompareProgramRequest>,
    ) -> Result<Response<CompareProgramResponse>, Status> {
        let want = self.parse_program(&request.into_inner().program)?;
        let changes =
            self.target.clone().required_changes(&want, After::Open).await.map_err(status_of_target)?;
        Ok(Response::new(CompareProgramResponse { changes: to_messages(changes) }))
    }

    async fn apply_program(
        &self,
        request: Request<ApplyProgramRequest>,
    ) -> Result<Response<ApplyProgramResponse>, Status> {
        let want = self.parse_program(&request.into_inner().program)?;
        let made = self.target.clone().apply_program(&want, After::Open).await.map_err(status_of_apply)?;
        Ok(Response::new(ApplyProgramResponse { changes: to_messages(made) }))
    }
}

/// Changes as messages, with every rkey 0.
fn to_messages(changes: Vec<DataPlaneChange>) -> Vec<ProgramChange> {
    without_keys(changes).iter().map(ProgramChange::from).collect()
}

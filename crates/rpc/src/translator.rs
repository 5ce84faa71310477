//! A client of a running translator's own service: `dta.v1.Translator`.

use std::time::Duration;

use crate::transport::dial::UNIX;
use dta_proto::control::translator_client::TranslatorClient;
use dta_proto::control::{
    ApplyProgramRequest, CompareProgramRequest, FlushRequest, NodeStatistics, ProgramChange,
    TranslatorStatisticsRequest, program_message,
};
use dta_proto::program::{DataPlaneChange, Program};
use tonic::Status;
use tonic::transport::Channel;

use crate::{ClientError, ClientOptions, MAX_ANSWER, ServerKind, channel};

/// Timeout of one call.
const CALL: Duration = Duration::from_secs(10);

/// A client that connects on first use, and again after the translator was down. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RemoteTranslator {
    inner: TranslatorClient<Channel>,
    address: String,
}

impl RemoteTranslator {
    /// A client of the translator at HOST:PORT (optionally after `http://`) or `unix:PATH`.
    pub fn connect_lazy(address: &str) -> Result<Self, ClientError> {
        let options = ClientOptions { call: Some(CALL), ..ClientOptions::without_tls(address) };
        let channel = if address.starts_with(UNIX) {
            channel::unix_lazy(ServerKind::Translator, &options)?
        } else {
            channel::connect_lazy(ServerKind::Translator, &options)?
        };
        let inner = TranslatorClient::new(channel).max_decoding_message_size(MAX_ANSWER);
        Ok(Self { inner, address: options.address })
    }

    /// Counters of the translator and of the reporters that it hears.
    pub async fn statistics(&mut self) -> Result<Vec<NodeStatistics>, ClientError> {
        let answer = self.inner.statistics(TranslatorStatisticsRequest {}).await;
        Ok(answer.map_err(|status| self.call_error(status))?.into_inner().nodes)
    }

    /// Makes the translator send what it holds; returns the number of reports.
    pub async fn flush_reports(&mut self) -> Result<u64, ClientError> {
        let answer = self.inner.flush(FlushRequest {}).await;
        Ok(answer.map_err(|status| self.call_error(status))?.into_inner().flushed)
    }

    /// The changes that the translator needs to hold `program`. Their keys are 0.
    pub async fn compare_program(&mut self, program: &Program) -> Result<Vec<DataPlaneChange>, ClientError> {
        let request = CompareProgramRequest { program: program_message(program) };
        let answer = self.inner.compare_program(request).await.map_err(|status| self.call_error(status))?;
        self.parse_changes(&answer.into_inner().changes)
    }

    /// Makes the translator hold `program`; returns the changes that were needed, with 0 for each key.
    pub async fn apply_program(&mut self, program: &Program) -> Result<Vec<DataPlaneChange>, ClientError> {
        let request = ApplyProgramRequest { program: program_message(program) };
        let answer = self.inner.apply_program(request).await.map_err(|status| self.call_error(status))?;
        self.parse_changes(&answer.into_inner().changes)
    }

    fn parse_changes(&self, messages: &[ProgramChange]) -> Result<Vec<DataPlaneChange>, ClientError> {
        let read = messages.iter().map(DataPlaneChange::try_from).collect::<Result<_, _>>();
        read.map_err(|reason| ClientError::Answer { address: self.address.clone(), reason })
    }

    fn call_error(&self, status: Status) -> ClientError {
        ClientError::Translator { address: self.address.clone(), status }
    }
}

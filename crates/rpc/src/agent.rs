//! A client of a host's agent: `dta.v1.Agent`.

use dta_proto::control::agent_client::AgentClient;
use dta_proto::control::{AgentStatus, AgentStatusRequest, SetTraceRequest, TraceWanted};
use tonic::Status;
use tonic::transport::Channel;

use crate::{ClientError, ClientOptions, Server, channel};

/// A connected client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    inner: AgentClient<Channel>,
    address: String,
}

impl Client {
    /// Connects.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        let inner = AgentClient::new(channel::connect(Server::Agent, options).await?);
        Ok(Self { inner, address: options.address.clone() })
    }

    /// What it traces, and its counters.
    pub async fn status(&mut self) -> Result<AgentStatus, ClientError> {
        let answer = self.inner.status(AgentStatusRequest {}).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Sets what it traces; without `trace`, back to its configuration.
    pub async fn set_trace(&mut self, trace: Option<TraceWanted>) -> Result<AgentStatus, ClientError> {
        let answer = self.inner.set_trace(SetTraceRequest { trace }).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    fn error(&self, status: Status) -> ClientError {
        ClientError::Agent { address: self.address.clone(), status }
    }
}

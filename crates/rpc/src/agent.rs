//! A client of a host's agent: `dta.v1.Agent`.

use dta_proto::control::agent_client::AgentClient;
use dta_proto::control::{AgentStatus, AgentStatusRequest, SetTraceRequest, TraceSettings};
use tonic::Status;
use tonic::transport::Channel;

use crate::{ClientError, ClientOptions, ServerKind, channel};

/// A connected client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RemoteAgent {
    inner: AgentClient<Channel>,
    address: String,
}

impl RemoteAgent {
    /// Connects to an agent.
    pub async fn connect(options: &ClientOptions) -> Result<Self, ClientError> {
        let inner = AgentClient::new(channel::connect(ServerKind::Agent, options).await?);
        Ok(Self { inner, address: options.address.clone() })
    }

    /// Asks what the agent traces, and for its counters.
    pub async fn fetch_status(&mut self) -> Result<AgentStatus, ClientError> {
        let answer = self.inner.status(AgentStatusRequest {}).await;
        Ok(answer.map_err(|status| self.call_error(status))?.into_inner())
    }

    /// Sets what the agent traces; without `trace`, back to its configuration.
    pub async fn set_trace(&mut self, trace: Option<TraceSettings>) -> Result<AgentStatus, ClientError> {
        let answer = self.inner.set_trace(SetTraceRequest { trace }).await;
        Ok(answer.map_err(|status| self.call_error(status))?.into_inner())
    }

    fn call_error(&self, status: Status) -> ClientError {
        ClientError::Agent { address: self.address.clone(), status }
    }
}

//! The connection to a switch: binding to its program, the description of its tables, reads and writes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::messages::bfruntime::bfrt::*;
use crate::messages::bfruntime::update_errors;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tracing::info;

use super::{BfRuntime, Described, schema_from_bfrt};
use crate::TargetError;
use crate::bfrt_json::BfrtInfo;
use crate::runtime::{self, CALL, Runtime as _};

/// Longest time until a switch notices that its previous client has gone, and the polling interval.
const GONE: Duration = Duration::from_secs(2);
const ASK: Duration = Duration::from_millis(50);
/// All pipes, directions and parsers.
const EVERYWHERE: (u32, u32, u32) = (0xffff, 0xff, 0xff);
/// This control plane's client number at the switch.
const CLIENT: u32 = 1;

impl BfRuntime {
    pub(super) fn status_error(&self, status: &Status) -> TargetError {
        let text = format!("the switch at {}: {}", self.address, dta_rpc::transport::status_reason(status));
        runtime::error_from_status(status, text)
    }

    pub(super) fn switch_failure(&self, what: &str) -> TargetError {
        TargetError::Failed(format!("the switch at {}: {what}", self.address))
    }

    fn all_pipes_target(&self) -> Option<TargetDevice> {
        let (all_pipes, ..) = EVERYWHERE;
        self.pipe_target(all_pipes)
    }

    pub(super) fn pipe_target(&self, pipe_id: u32) -> Option<TargetDevice> {
        let (_, direction, prsr_id) = EVERYWHERE;
        Some(TargetDevice { device_id: self.device, pipe_id, direction, prsr_id })
    }

    /// The switch's description of its tables; `None` if it runs another program.
    pub(super) async fn fetch_description(&mut self) -> Result<Option<Arc<Described>>, TargetError> {
        if let Some(info) = &self.info {
            return Ok(Some(info.clone()));
        }
        let request = GetForwardingPipelineConfigRequest { device_id: self.device, client_id: CLIENT };
        let answer = self
            .client
            .get_forwarding_pipeline_config(request)
            .await
            .map_err(|status| self.status_error(&status))?;
        let answer = answer.into_inner();
        let Some(config) = answer.config.iter().find(|config| config.p4_name == self.pipeline.name) else {
            return Ok(None);
        };
        let read = |bytes: &[u8]| -> Result<BfrtInfo, TargetError> {
            let info = serde_json::from_slice(bytes);
            info.map_err(|error| {
                TargetError::Refused(format!(
                    "the switch's description of its tables is not a bfrt.json: {error}"
                ))
            })
        };
        let program = read(&config.bfruntime_info)?;
        let own = answer
            .non_p4_config
            .as_ref()
            .map(|own| read(&own.bfruntime_info))
            .transpose()?
            .unwrap_or_default();
        (self.pipeline.tofino.check_profile)(self.profile, &program)
            .map_err(|why| TargetError::Refused(format!("the switch at {}: {why}", self.address)))?;
        let schema = schema_from_bfrt(&program);
        schema
            .check_required(self.required_schema())
            .map_err(|error| TargetError::Refused(error.to_string()))?;
        let described = Arc::new(Described { program, own, schema });
        self.check_own(&described)?;
        self.check_registers(&described)?;
        self.info = Some(described.clone());
        Ok(Some(described))
    }

    /// Becomes a client of the program: the bound client writes. Only one can be bound, and a client that has
    /// just gone may still be registered.
    pub(super) async fn bind(&mut self) -> Result<(), TargetError> {
        if self.stream.as_ref().is_some_and(|stream| !stream.is_closed()) {
            return Ok(());
        }
        let until = Instant::now() + GONE;
        loop {
            let is_taken =
                |status: &Status| matches!(status.code(), Code::AlreadyExists | Code::InvalidArgument);
            match self.try_bind().await {
                Ok(()) => return Ok(()),
                Err(status) if is_taken(&status) && Instant::now() < until => tokio::time::sleep(ASK).await,
                Err(status) if is_taken(&status) => {
                    return Err(self.switch_failure(&format!(
                        "it rejects this control plane as a client; only one can be bound: is another one \
                        running (dta-translator watch)? {}",
                        dta_rpc::transport::status_reason(&status)
                    )));
                }
                Err(status) => return Err(self.status_error(&status)),
            }
        }
    }

    async fn try_bind(&mut self) -> Result<(), Status> {
        let (requests, queue) = tokio::sync::mpsc::channel(16);
        let notifications = subscribe::Notifications::default();
        let subscribe =
            Subscribe { device_id: self.device, notifications: Some(notifications), status: None };
        let first = stream_message_request::Update::Subscribe(subscribe);
        if requests.send(StreamMessageRequest { client_id: CLIENT, update: Some(first) }).await.is_err() {
            return Err(Status::unavailable("the stream ended"));
        }
        // The stream lasts as long as the connection: it has no timeout.
        let mut request = tonic::Request::new(ReceiverStream::new(queue));
        request.set_timeout(Duration::from_secs(u64::from(u32::MAX)));
        let mut answers = self.client.stream_channel(request).await?.into_inner();
        let first = tokio::time::timeout(CALL, answers.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("it does not answer the subscription"))?;
        match first?.and_then(|message| message.update) {
            Some(stream_message_response::Update::Subscribe(answer)) => match answer.status {
                Some(status) if status.code != 0 => {
                    return Err(Status::new(Code::from_i32(status.code), status.message));
                }
                _ => {}
            },
            _ => return Err(Status::unavailable("it does not answer the subscription")),
        }
        let config = ForwardingPipelineConfig {
            p4_name: self.pipeline.name.into(),
            ..ForwardingPipelineConfig::default()
        };
        let request = SetForwardingPipelineConfigRequest {
            device_id: self.device,
            client_id: CLIENT,
            action: set_forwarding_pipeline_config_request::Action::Bind.into(),
            base_path: String::new(),
            config: vec![config],
        };
        self.client.set_forwarding_pipeline_config(request).await?;
        info!(switch = self.address, program = self.pipeline.name, "bound to the program");
        tokio::spawn(async move { while let Ok(Some(_)) = answers.message().await {} });
        self.stream = Some(requests);
        Ok(())
    }

    /// As [`BfRuntime::fetch_description`], for a switch that must run the program.
    pub(super) async fn described(&mut self) -> Result<Arc<Described>, TargetError> {
        let described = self.fetch_description().await?;
        described.ok_or_else(|| {
            self.switch_failure(&format!("it does not run the program {}", self.pipeline.name))
        })
    }

    pub(super) async fn read_entities(
        &mut self,
        entities: Vec<Entity>,
    ) -> Result<Vec<TableEntry>, TargetError> {
        let request = ReadRequest {
            target: self.all_pipes_target(),
            client_id: CLIENT,
            entities,
            p4_name: self.pipeline.name.into(),
        };
        let mut answer =
            self.client.read(request).await.map_err(|status| self.status_error(&status))?.into_inner();
        let mut entries = Vec::new();
        while let Some(part) = answer.message().await.map_err(|status| self.status_error(&status))? {
            for entity in part.entities {
                if let Some(entity::Entity::TableEntry(entry)) = entity.entity {
                    entries.push(entry);
                }
            }
        }
        Ok(entries)
    }

    /// Applies updates in one request, as many as possible. On an error, returns the result of each if the
    /// answer has it.
    pub(super) async fn send(
        &mut self,
        updates: Vec<Update>,
    ) -> Result<(), (Option<Vec<Error>>, TargetError)> {
        let request = WriteRequest {
            target: self.all_pipes_target(),
            client_id: CLIENT,
            updates,
            atomicity: write_request::Atomicity::ContinueOnError.into(),
            p4_name: self.pipeline.name.into(),
        };
        let Err(status) = self.client.write(request).await else { return Ok(()) };
        let errors = update_errors(&status);
        match errors.iter().find(|error| error.canonical_code != 0) {
            Some(first) => {
                let first = Status::new(Code::from_i32(first.canonical_code), first.message.clone());
                let error = self.status_error(&first);
                Err((Some(errors), error))
            }
            None => Err((None, self.status_error(&status))),
        }
    }
}

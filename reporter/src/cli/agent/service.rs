//! The agent's gRPC service: passes each call to the tracing thread, and returns its answer.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow};
use dta_proto::control::agent_server::{Agent, AgentServer};
use dta_proto::control::{AgentStatus, AgentStatusRequest, SetTraceRequest, TraceSettings};
use dta_rpc::transport::standard::{self, Health};
use dta_rpc::transport::tls::{self, ServerFiles, Validity};
use dta_rpc::transport::{ConnectionCounters, Listen, MAX_MESSAGE, Method, ServerLimits};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tonic::{Request, Response, Status};

use super::config::{AgentTlsTable, Config};

/// Full name of the agents' gRPC service.
const SERVICE: &str = "dta.v1.Agent";

/// A command for the tracing thread.
pub(super) enum Command {
    Status(oneshot::Sender<AgentStatus>),
    /// Trace as configured, or nothing.
    Set(Option<TraceSettings>, oneshot::Sender<Result<AgentStatus, String>>),
    Reload,
    End,
}

struct AgentService {
    commands: mpsc::Sender<Command>,
}

impl AgentService {
    /// Sends the tracing thread a command, and waits for the answer. It does so on a thread of its own, so that no
    /// more commands wait than calls may be in progress, however many are cancelled.
    async fn send_command<T: Send + 'static>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command + Send + 'static,
    ) -> Result<T, Status> {
        let commands = self.commands.clone();
        let asked = dta_rpc::transport::run_blocking(move || {
            let (sender, answer) = oneshot::channel();
            commands.send(command(sender)).ok()?;
            answer.blocking_recv().ok()
        });
        asked.await.ok().flatten().ok_or_else(|| Status::unavailable("the agent is ending"))
    }
}

#[tonic::async_trait]
impl Agent for AgentService {
    async fn status(&self, _: Request<AgentStatusRequest>) -> Result<Response<AgentStatus>, Status> {
        self.send_command(Command::Status).await.map(Response::new)
    }

    async fn set_trace(&self, request: Request<SetTraceRequest>) -> Result<Response<AgentStatus>, Status> {
        let peer =
            request.extensions().get::<dta_rpc::transport::Peer>().map(dta_rpc::transport::Peer::address);
        let trace = request.into_inner().trace;
        // The settings may be long, and are logged once parsed.
        let points = trace.as_ref().map(|trace| trace.at.len());
        tracing::info!(?peer, points, "request to trace");
        let result = self.send_command(|answer| Command::Set(trace, answer)).await?;
        result.map(Response::new).map_err(Status::invalid_argument)
    }
}

pub(super) struct AgentGrpcServer {
    /// Its address, with the actual port.
    pub(super) listen: SocketAddr,
    listener: Arc<TcpListener>,
    health: Health,
    commands: mpsc::Sender<Command>,
    halt: watch::Sender<bool>,
    validity: Option<Validity>,
}

fn tls_files(tls: Option<&AgentTlsTable>) -> Option<ServerFiles<'_>> {
    tls.map(|tls| ServerFiles { cert: &tls.cert, key: &tls.key, client_ca: &tls.client_ca })
}

/// The TLS files, read and checked.
fn load_tls(tls: Option<&AgentTlsTable>) -> Result<Option<tls::ServerTls>> {
    Ok(tls_files(tls).map(|files| tls::load_server_tls(&files, SystemTime::now())).transpose()?)
}

/// Whether the TLS files are usable; warns if they expire soon, or if others could use or read what they should not.
pub(super) fn check_tls(config: &Config) -> Result<Vec<String>> {
    let soon = load_tls(config.tls.as_ref())?.and_then(|tls| expiry_warning(&tls.validity));
    Ok(soon.into_iter().chain(exposure_warnings(config)).collect())
}

fn exposure_warnings(config: &Config) -> Vec<String> {
    let files = tls_files(config.tls.as_ref());
    tls::exposure_warnings(config.agent.listen, files.as_ref(), "choose what is traced")
}

fn expiry_warning(validity: &Validity) -> Option<String> {
    let cure = "replace it and send the agent SIGHUP";
    Some(match validity.ends_soon(SystemTime::now())? {
        Duration::ZERO => format!("the TLS certificate has expired and clients reject it; {cure}"),
        left => {
            format!("the TLS certificate expires in {}: {cure} before then", tls::for_people(left))
        }
    })
}

impl AgentGrpcServer {
    pub(super) fn start(runtime: &Runtime, config: &Config, commands: mpsc::Sender<Command>) -> Result<Self> {
        let _inside = runtime.enter();
        exposure_warnings(config).iter().for_each(|warning| tracing::warn!("{warning}"));
        let wanted = config.agent.listen;
        let listener = runtime
            .block_on(TcpListener::bind(wanted))
            .with_context(|| format!("cannot listen for gRPC on {wanted} (listen in [agent])"))?;
        let listen = listener.local_addr()?;
        let health = standard::start_health(SERVICE);
        let (halt, _) = watch::channel(false);
        let mut server =
            Self { listen, listener: Arc::new(listener), health, commands, halt, validity: None };
        server.serve(config)?;
        server.health.set(true);
        Ok(server)
    }

    /// Switches to the current TLS files. Calls in progress finish normally.
    ///
    /// # Errors
    /// The files are unusable; then nothing changes.
    pub(super) fn reload_tls(&mut self, runtime: &Runtime, config: &Config) -> Result<()> {
        let _inside = runtime.enter();
        self.serve(config)
    }

    fn serve(&mut self, config: &Config) -> Result<()> {
        let tls = load_tls(config.tls.as_ref())?;
        let reflection =
            standard::reflection(dta_proto::control::DESCRIPTORS).map_err(|error| anyhow!(error))?;
        self.validity = tls.as_ref().map(|tls| tls.validity);
        let (halt, halted) = watch::channel(false);
        let until = |mut halted: watch::Receiver<bool>| async move {
            // An error means that the server was dropped.
            let _ = halted.wait_for(|halt| *halt).await;
        };
        let listen = Listen { limits: ServerLimits::FEW, tls: tls.map(|tls| tls.config) };
        let counters = Arc::new(ConnectionCounters::default());
        let incoming = dta_rpc::transport::accept_until(
            self.listener.clone(),
            listen,
            counters.clone(),
            until(halted.clone()),
        );
        let service = AgentService { commands: self.commands.clone() };
        tokio::spawn(
            dta_rpc::transport::build_server(ServerLimits::FEW, |_| Method::Ordinary, counters)
                .add_service(AgentServer::new(service).max_decoding_message_size(MAX_MESSAGE))
                .add_service(self.health.health_service())
                .add_service(reflection)
                .serve_with_incoming_shutdown(incoming, until(halted)),
        );
        std::mem::replace(&mut self.halt, halt).send_replace(true);
        Ok(())
    }

    /// A warning about its certificate, if one is due.
    pub(super) fn certificate_warning(&self) -> Option<String> {
        self.validity.as_ref().and_then(expiry_warning)
    }
}

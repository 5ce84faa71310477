//! A collector as a translator sees it: the gRPC calls of a session, and a socket instead of the NIC.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dta_proto::control::collector_server::{Collector, CollectorServer};
use dta_proto::control::*;
use dta_proto::store::{StoreKind, StoreSpec};
use dta_rpc::transport::tls::{ServerFiles, ServerTls};
use tonic::{Request, Response, Status};

/// What the collector was asked, and how it answers.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) opened: Vec<OpenSessionRequest>,
    pub(crate) renewed: Vec<RenewSessionRequest>,
    pub(crate) ended: Vec<EndSessionRequest>,
    pub(crate) refuse: Option<String>,
    pub(crate) away: bool,
    /// How often it was asked to open a session while unreachable.
    pub(crate) turned_away: u64,
    pub(crate) reporters: Vec<ReporterPosition>,
    /// Whether the session has ended.
    pub(crate) gone: bool,
    /// Whether another translator has taken the session.
    pub(crate) superseded: bool,
    pub(crate) generation: u64,
    /// How often store `flows` got another region.
    pub(crate) moved: u64,
    /// How many stores it has, as it says.
    pub(crate) offered: u32,
    /// Writes go over RC.
    pub(crate) rc: bool,
    /// Bytes of the batches of store `events`; 0 for those of [`stores`].
    pub(crate) batch_len: u16,
    open: bool,
}

#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) state: Arc<Mutex<State>>,
    pub(crate) address: SocketAddr,
    nic_port: u16,
    beyond: u16,
    has_tls: bool,
}

pub(crate) fn stores() -> Vec<StoreSpec> {
    let spec = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
    vec![
        spec(
            1,
            "flows",
            StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2, keys: Default::default() },
        ),
        spec(
            2,
            "events",
            StoreKind::Append { lists: 4, ring: 4, batch_len: 32, entry_len: 8, notify: false },
        ),
    ]
}

/// Instead of the NIC: returns the arriving frames, with the stripped headers restored.
pub(crate) struct Nic(pub(crate) UdpSocket);

impl Nic {
    /// The next frame's UDP payload, waiting up to a second.
    pub(crate) fn recv(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 2048];
        self.0.recv_from(&mut bytes).ok().map(|(n, _)| bytes[..n].to_vec())
    }
}

impl Fake {
    /// Serves until the process ends.
    pub(crate) fn start() -> (Fake, Nic) {
        Fake::start_beyond(0)
    }

    /// As [`Fake::start`], with shifted store ids and other names.
    pub(crate) fn start_beyond(beyond: u16) -> (Fake, Nic) {
        Fake::start_as(beyond, None)
    }

    /// As [`Fake::start`], with TLS.
    #[allow(dead_code, reason = "most tests are of plain connections")]
    pub(crate) fn start_with_tls(files: &ServerFiles<'_>) -> (Fake, Nic) {
        Fake::start_as(0, Some(dta_rpc::transport::tls::load_server_tls(files, SystemTime::now()).unwrap()))
    }

    fn start_as(beyond: u16, tls: Option<ServerTls>) -> (Fake, Nic) {
        let nic = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        nic.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let fake = Fake {
            state: Arc::new(Mutex::new(State { generation: 1, ..State::default() })),
            address: listener.local_addr().unwrap(),
            nic_port: nic.local_addr().unwrap().port(),
            beyond,
            has_tls: tls.is_some(),
        };
        let served = fake.clone();
        std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let tls = tls.map(|tls| tls.config);
                let listen =
                    dta_rpc::transport::Listen { limits: dta_rpc::transport::ServerLimits::FEW, tls };
                tonic::transport::Server::builder()
                    .add_service(CollectorServer::new(served))
                    .serve_with_incoming(dta_rpc::transport::accept_tcp(listener, listen, Arc::default()))
                    .await
                    .unwrap();
            });
        });
        (fake, Nic(nic))
    }

    /// The port of the socket in the place of the NIC.
    #[allow(dead_code, reason = "not every test knows where frames go")]
    pub(crate) fn nic_port(&self) -> u16 {
        self.nic_port
    }

    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.has_tls { "https" } else { "http" }, self.address)
    }

    fn session(&self, state: &State, resumed: bool) -> Session {
        let name = |name: &str| if self.beyond == 0 { name.into() } else { format!("{name}{}", self.beyond) };
        let mut stores = stores();
        for spec in &mut stores {
            (spec.id, spec.name) = (spec.id + self.beyond, name(&spec.name));
            if let StoreKind::Append { batch_len, .. } = &mut spec.kind
                && state.batch_len != 0
            {
                *batch_len = state.batch_len;
            }
        }
        let moved = |spec: &StoreSpec| if spec.id == 1 { state.moved } else { 0 };
        let regions = stores.iter().map(|spec| Region {
            store: Some(Store::from(spec)),
            address: (u64::from(spec.id) << 32) + (moved(spec) << 57),
            length: spec.region_len(),
            rkey: 0xdead_0000 + u32::from(spec.id) + (moved(spec) as u32) * 0x100,
            generation: 1 + moved(spec),
            replicas: 1,
            placement: None,
        });
        let pair = |purpose: Purpose, transport: Transport, qpn| ResponderQueuePair {
            purpose: purpose.into(),
            transport: transport.into(),
            qpn: qpn + state.generation as u32 * 16,
            expected_psn: 100,
            max_dest_rd_atomic: 16,
            replaced: None,
            generation: state.generation,
        };
        Session {
            name: "t".into(),
            generation: state.generation + state.moved,
            resumed,
            collector: Some(Endpoint {
                mac: vec![],
                ip: "127.0.0.1".into(),
                gid: vec![],
                port: self.nic_port.into(),
                runs: false,
            }),
            queue_pairs: vec![
                pair(Purpose::Write, if state.rc { Transport::Rc } else { Transport::Uc }, 1),
                pair(Purpose::Atomic, Transport::Rc, 2),
            ],
            regions: regions.collect(),
            lists: vec![ListRange { store: name("events"), first: 0, count: 4 }],
            positions: vec![ListPosition { store: name("events"), list: 1, sequence: 5 }],
            lease_seconds: 30,
            mtu: 1024,
            reporters: state.reporters.clone(),
            translator: state.opened.last().and_then(|o| o.translator.clone()),
            stores_offered: state.offered,
            ring: None,
        }
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Collector for Fake {
    async fn open_session(&self, request: Request<OpenSessionRequest>) -> Answer<Session> {
        let mut state = self.state.lock().unwrap();
        if state.away {
            state.turned_away += 1;
            return Err(Status::unavailable("gone fishing"));
        }
        if let Some(reason) = &state.refuse {
            return Err(Status::failed_precondition(reason.clone()));
        }
        state.opened.push(request.into_inner());
        let resumed = std::mem::replace(&mut state.open, true);
        Ok(Response::new(self.session(&state, resumed)))
    }

    async fn preview_session(&self, _: Request<OpenSessionRequest>) -> Answer<Session> {
        let state = self.state.lock().unwrap();
        if let Some(reason) = &state.refuse {
            return Err(Status::failed_precondition(reason.clone()));
        }
        Ok(Response::new(self.session(&state, state.open)))
    }

    async fn renew_session(&self, request: Request<RenewSessionRequest>) -> Answer<Session> {
        let mut state = self.state.lock().unwrap();
        if state.away {
            return Err(Status::unavailable("gone fishing"));
        }
        if state.gone {
            return Err(Status::not_found("no such session"));
        }
        if state.superseded {
            return Err(Status::aborted("another translator has it"));
        }
        state.renewed.push(request.into_inner());
        // Positions come with an opening alone.
        Ok(Response::new(Session { positions: Vec::new(), ..self.session(&state, true) }))
    }

    async fn end_session(&self, request: Request<EndSessionRequest>) -> Answer<EndSessionResponse> {
        let mut state = self.state.lock().unwrap();
        state.open = false;
        state.ended.push(request.into_inner());
        Ok(Response::new(EndSessionResponse {}))
    }

    async fn list_sessions(&self, _: Request<ListSessionsRequest>) -> Answer<ListSessionsResponse> {
        Err(Status::unimplemented(""))
    }
    async fn list_stores(&self, _: Request<ListStoresRequest>) -> Answer<ListStoresResponse> {
        Err(Status::unimplemented(""))
    }
    async fn placement(&self, _: Request<PlacementRequest>) -> Answer<PlacementResponse> {
        Err(Status::unimplemented(""))
    }
    async fn query(&self, _: Request<QueryRequest>) -> Answer<QueryResponse> {
        Err(Status::unimplemented(""))
    }
    async fn flows(&self, _: Request<FlowsRequest>) -> Answer<FlowsResponse> {
        Err(Status::unimplemented(""))
    }

    async fn alerts(&self, _: Request<AlertsRequest>) -> Answer<AlertsResponse> {
        Err(Status::unimplemented(""))
    }
    async fn query_series(&self, _: Request<QuerySeriesRequest>) -> Answer<QuerySeriesResponse> {
        Err(Status::unimplemented(""))
    }
    async fn epochs(&self, _: Request<EpochsRequest>) -> Answer<EpochsResponse> {
        Err(Status::unimplemented(""))
    }
    type TailStream = Pin<Box<dyn tokio_stream::Stream<Item = Result<TailResponse, Status>> + Send>>;
    async fn tail(&self, _: Request<TailRequest>) -> Answer<Self::TailStream> {
        Err(Status::unimplemented(""))
    }
    type EntriesStream = Self::TailStream;
    async fn entries(&self, _: Request<EntriesRequest>) -> Answer<Self::EntriesStream> {
        Err(Status::unimplemented(""))
    }
    async fn statistics(&self, _: Request<StatisticsRequest>) -> Answer<StatisticsResponse> {
        Err(Status::unimplemented(""))
    }
    async fn read_memory(&self, _: Request<ReadMemoryRequest>) -> Answer<ReadMemoryResponse> {
        Err(Status::unimplemented(""))
    }
}

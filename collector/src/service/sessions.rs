//! Opening, renewing, ending and listing sessions.

use std::time::Instant;

use dta_proto::control;
use tonic::Status;

use super::{CollectorService, convert, status};
use crate::session::{GrantedSession, Lease, SessionCaller};

impl CollectorService {
    pub(super) fn open(
        &self,
        caller: SessionCaller,
        request: control::OpenSessionRequest,
    ) -> Result<control::Session, Status> {
        let request = convert::open_request(request, caller)?;
        let session = self.sessions.open(&request, Instant::now()).map_err(status::from_session_error)?;
        tracing::info!(
            session = %session.lease.name,
            generation = session.lease.generation,
            resumed = session.resumed,
            translator = %session.lease.translator.ip,
            "session opened"
        );
        self.with_ring(session)
    }

    pub(super) fn handle_preview(
        &self,
        caller: SessionCaller,
        request: control::OpenSessionRequest,
    ) -> Result<control::Session, Status> {
        let request = convert::open_request(request, caller)?;
        let session =
            self.sessions.preview_open(&request, Instant::now()).map_err(status::from_session_error)?;
        self.session_message(session)
    }

    pub(super) fn handle_renewal(
        &self,
        caller: &SessionCaller,
        request: control::RenewSessionRequest,
    ) -> Result<control::Session, Status> {
        self.sessions.may_renew(&request.name, caller).map_err(status::from_session_error)?;
        let statistics = convert::node_counters(request.statistics)?;
        let session = self
            .sessions
            .renew_session(&request.name, caller, request.generation, &statistics, Instant::now())
            .map_err(status::from_session_error)?;
        if let Some(cluster) = &self.cluster {
            cluster.confirm_version(&request.name, request.placement, Instant::now());
        }
        self.sessions.note_frames_by(&request.name, &request.frames_by);
        self.sessions.note_leaving(&request.name, request.leaving);
        self.with_ring(session)
    }

    pub(super) fn handle_end(
        &self,
        caller: &SessionCaller,
        request: control::EndSessionRequest,
    ) -> Result<control::EndSessionResponse, Status> {
        if !request.statistics.is_empty() {
            self.sessions.may_renew(&request.name, caller).map_err(status::from_session_error)?;
        }
        let statistics = convert::node_counters(request.statistics)?;
        let last = (request.generation != 0).then_some((request.generation, statistics.as_slice()));
        self.sessions
            .end_session(&request.name, caller, last, Instant::now())
            .map_err(status::from_session_error)?;
        tracing::info!(session = %request.name, "session ended");
        Ok(control::EndSessionResponse {})
    }

    pub(super) fn list_sessions(&self) -> Result<control::ListSessionsResponse, Status> {
        let now = Instant::now();
        let sessions = self.sessions.list_sessions(now).map_err(status::from_nic_error)?;
        let info = |session: crate::session::SessionStatus| control::SessionInfo {
            name: session.lease.name.clone(),
            generation: session.lease.generation,
            translator: Some((&session.lease.translator).into()),
            queue_pairs: session
                .queue_pairs
                .into_iter()
                .map(|pair| control::QueuePairStatus {
                    qpn: pair.qpn,
                    purpose: control::Purpose::from(pair.request.purpose).into(),
                    transport: control::Transport::from(pair.request.transport).into(),
                    state: pair.state.to_string(),
                    expected_psn: pair.expected_psn,
                    peer_qpn: pair.request.peer_qpn,
                    counters: convert::counter_messages(pair.counters),
                })
                .collect(),
            expires_in_seconds: expires_in(&session.lease, now),
            frames_by: frames_by(self.nic.has_ring_for(&session.lease.translator), session.frames_by),
            owner: session.lease.owner.unwrap_or_default(),
            stores: session.lease.stores,
        };
        let device = self.nic.describe_device();
        Ok(control::ListSessionsResponse {
            sessions: sessions.into_iter().map(info).collect(),
            device: device.name,
            collector: Some((&device.endpoint).into()),
        })
    }

    /// The session, with a ring to join if there is one.
    fn with_ring(&self, session: GrantedSession) -> Result<control::Session, Status> {
        let offer = self.nic.offer_ring(&session.lease.translator);
        let ring = offer.map(|offer| control::RingOffer { name: offer.name, token: offer.token.to_vec() });
        Ok(control::Session { ring, ..self.session_message(session)? })
    }

    /// The session with its keys, for its translator only.
    fn session_message(&self, session: GrantedSession) -> Result<control::Session, Status> {
        let mtu = self.nic.describe_device().mtu;
        let endpoint = self.nic.endpoint_for_peer(session.lease.translator.ip);
        let mut regions = Vec::with_capacity(session.grant.regions.len());
        for region in &session.grant.regions {
            let store = self.stores.get(&region.store).map_err(status::from_store_error)?;
            regions.push(control::Region {
                store: Some((&store.spec).into()),
                address: region.registration.iova,
                length: region.registration.len,
                rkey: region.registration.rkey,
                generation: region.generation,
                replicas: self.replica_count(&store.spec.name) as u32,
                placement: self.cluster.as_ref().and_then(|c| c.version_of(&region.store, region.memory)),
            });
        }
        Ok(control::Session {
            name: session.lease.name,
            generation: session.lease.generation,
            resumed: session.resumed,
            collector: Some((&endpoint).into()),
            queue_pairs: session
                .grant
                .queue_pairs
                .iter()
                .map(|pair| control::ResponderQueuePair {
                    purpose: control::Purpose::from(pair.purpose).into(),
                    transport: control::Transport::from(pair.transport).into(),
                    qpn: pair.info.qpn,
                    expected_psn: pair.info.expected_psn,
                    max_dest_rd_atomic: pair.info.max_dest_rd_atomic.into(),
                    replaced: pair
                        .replaced
                        .map(|old| control::EndedQueuePair { qpn: old.qpn, expected_psn: old.expected_psn }),
                    generation: pair.generation,
                })
                .collect(),
            regions,
            lists: session.lease.lists.into_iter().map(Into::into).collect(),
            positions: session
                .positions
                .into_iter()
                .map(|p| control::ListPosition { store: p.store, list: p.list, sequence: p.sequence })
                .collect(),
            reporters: session
                .reporters
                .into_iter()
                .map(|p| control::ReporterPosition { reporter: p.reporter.into(), sequence: p.sequence })
                .collect(),
            lease_seconds: session.lease.lease.map_or(0, |l| l.as_secs() as u32),
            mtu,
            translator: Some((&session.lease.translator).into()),
            ring: None,
            stores_offered: u32::try_from(self.stores.current_stores().len()).unwrap_or(u32::MAX),
        })
    }
}

/// How a session's frames travel: through the NIC's ring if it has one, otherwise as the translator says.
fn frames_by(ring: bool, said: String) -> String {
    match (ring, said.as_str()) {
        (true, _) => "ring".to_owned(),
        (false, "ring") => "udp: the ring is over".to_owned(),
        (false, _) => said,
    }
}

fn expires_in(lease: &Lease, now: Instant) -> f64 {
    lease.expires.map_or(-1.0, |at| at.saturating_duration_since(now).as_secs_f64())
}

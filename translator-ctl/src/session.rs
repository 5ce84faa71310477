//! The lease at the collector: opening, renewing, and following the collector's changes.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddrV4};
use std::time::Duration;

use dta_link::shared_ring::{JoinOffer, NAME_MAX};
use dta_proto::codec::MAX_PARTS;
use dta_proto::control::{
    self, EndSessionRequest, NodeStatistics, OpenSessionRequest, RenewSessionRequest, RequesterQueuePair,
};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{ClientError, ClientOptions};
use tonic::Code;

use crate::config::TranslatorConfig;
use crate::program::{Grant, GrantError};
use dta_proto::program::{Endpoint, Purpose, Transport};
use dta_switch::{DeviceSource, RingAt};

/// First and longest wait between attempts to reach the collector.
pub const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Longest time for one call.
const CALL: Duration = Duration::from_secs(10);

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The collector does not answer, but may later.
    #[error("{0}")]
    Away(String),
    /// A TLS problem at either end.
    #[error("{0}")]
    Security(String),
    /// The collector refuses, in its own words.
    #[error("{0}")]
    Refused(String),
    /// The lease has ended, with its queue pairs and rkeys.
    #[error("{0}")]
    Gone(String),
    /// Another translator has opened the session of this name, which invalidated this one's queue pairs and
    /// rkeys.
    #[error("{0}")]
    Superseded(String),
    /// A queue pair is silent although the collector considers it healthy.
    #[error("a queue pair does not answer")]
    Silent,
    /// The collector has additional stores that this session wants.
    #[error("the collector has more stores")]
    MoreStores,
    /// The collector's grant is unusable.
    #[error(transparent)]
    Grant(#[from] GrantError),
}

impl SessionError {
    /// Whether trying again may help without a change of configuration.
    pub fn is_retryable(&self) -> bool {
        matches!(self, SessionError::Away(_) | SessionError::Security(_) | SessionError::Gone(_))
    }
}

pub struct Opened {
    pub grant: Grant,
    /// Whether the session existed before.
    pub resumed: bool,
    /// How far its earlier holders had heard their reporters: id and newest sequence.
    pub reporters: Vec<(u16, u32)>,
}

/// A session as it would be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// What the collector would grant. Numbers and rkeys that are not assigned yet are 0.
    pub grant: Grant,
    /// Whether a session of this name is open.
    pub is_open: bool,
    /// The source of that session's frames, if different from ours: opening it would replace that translator.
    pub elsewhere: Option<String>,
}

pub struct LeasedSession {
    config: TranslatorConfig,
    collector: u8,
    endpoint: Endpoint,
    /// Numbers of the queue pairs at this side, if an RDMA device gave them.
    queue_pairs: Option<[u32; 2]>,
    client: RemoteCollector,
    /// The collector's latest grant.
    generation: u64,
    /// What the data plane uses: renewals report it.
    applied: u64,
    /// How many stores the collector had when the session was opened, and has now.
    offered: (u32, u32),
    /// The collector's latest ring offer, and its NIC's address.
    ring: Option<RingAt>,
    /// Where its lists were when it was opened: renewals do not say.
    positions: Vec<control::ListPosition>,
}

impl LeasedSession {
    /// An unopened session with the collector of this index. `endpoint` is the source of frames and
    /// destination of answers, with the actual port.
    pub fn new(
        config: &TranslatorConfig,
        collector: u8,
        endpoint: Endpoint,
    ) -> Result<LeasedSession, SessionError> {
        let options = ClientOptions { call: Some(CALL), ..config.client_options(collector) };
        let client = RemoteCollector::connect_lazy(&options)?;
        Ok(LeasedSession {
            config: config.clone(),
            collector,
            endpoint,
            queue_pairs: None,
            client,
            generation: 0,
            applied: 0,
            offered: (0, 0),
            ring: None,
            positions: Vec::new(),
        })
    }

    /// The same session under another configuration. It must be reopened to take effect.
    ///
    /// # Errors
    /// As [`LeasedSession::new`].
    pub fn with_config(&self, config: &TranslatorConfig) -> Result<LeasedSession, SessionError> {
        let new = LeasedSession::new(config, self.collector, self.endpoint)?;
        let positions = self.positions.clone();
        Ok(LeasedSession {
            queue_pairs: self.queue_pairs,
            generation: self.generation,
            applied: self.applied,
            offered: self.offered,
            positions,
            ..new
        })
    }

    /// How many stores the collector has, if there are more since the session was opened and the session
    /// wants all of them.
    pub fn more_stores(&self) -> Option<u32> {
        let (at_open, now) = self.offered;
        (now > at_open && self.config.wanted_of(self.collector).0.is_empty()).then_some(now)
    }

    pub fn ring_offer(&self) -> Option<&RingAt> {
        self.ring.as_ref()
    }

    pub fn collector(&self) -> u8 {
        self.collector
    }

    pub fn collector_address(&self) -> &str {
        self.config.collector.address_at(self.collector)
    }

    fn session_error(&self, error: ClientError) -> SessionError {
        let ClientError::Status(status) = error else {
            return error.into();
        };
        let (address, message) = (self.collector_address(), dta_rpc::transport::status_reason(&status));
        if std::error::Error::source(&status).and_then(dta_rpc::transport::known_tls_reason).is_some() {
            return SessionError::Security(format!(
                "cannot communicate with the collector at {address}: {message}"
            ));
        }
        match status.code() {
            // tonic's own errors for a missing or broken connection.
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                SessionError::Away(format!(
                    "the collector at {address} is unavailable: {message}; if it is not running, start it (`dta-collector \
                     serve`) or give its address with --collector"
                ))
            }
            Code::Aborted => SessionError::Superseded(format!(
                "the collector at {address} has given this translator's session to another one: {message}"
            )),
            Code::NotFound => SessionError::Gone(format!(
                "the collector at {address} no longer has this session: {message}"
            )),
            _ => SessionError::Refused(format!("the collector at {address} refuses the session: {message}")),
        }
    }

    /// Notes that the data plane uses the latest grant, and that no operation is in flight to a former
    /// region. The next renewal reports it, and the collector then revokes those regions' rkeys.
    pub fn mark_applied(&mut self) {
        self.applied = self.generation;
    }

    /// Whether the data plane is not known to use the latest grant.
    pub fn has_unapplied_grant(&self) -> bool {
        self.applied != self.generation
    }

    /// Whether it was ever open and applied.
    pub fn is_open(&self) -> bool {
        self.applied != 0
    }

    /// Opens or resumes the session for `lease_seconds` (0 = no expiry). With `fresh` its RC queue pairs are
    /// replaced: for a data plane that does not know what is in flight on the existing ones, or got no answer
    /// from one.
    pub async fn open(&mut self, lease_seconds: u32, fresh: bool) -> Result<Opened, SessionError> {
        let request = OpenSessionRequest { fresh, ..self.open_request(lease_seconds) };
        let session = self.client.open_session(request).await.map_err(|e| self.session_error(e))?;
        self.generation = session.generation;
        self.offered = (session.stores_offered, session.stores_offered);
        self.ring = parse_ring_offer(&session);
        self.positions.clone_from(&session.positions);
        let reporters =
            session.reporters.iter().filter_map(|p| Some((u16::try_from(p.reporter).ok()?, p.sequence)));
        Ok(Opened {
            grant: self.parse_grant(&session)?,
            resumed: session.resumed,
            reporters: reporters.collect(),
        })
    }

    /// What opening the session would grant; nothing changes at the collector.
    pub async fn preview_grant(&mut self) -> Result<Preview, SessionError> {
        let request = self.open_request(self.config.lease_seconds);
        let session = self.client.preview_session(request).await.map_err(|e| self.session_error(e))?;
        let held = session.translator.clone().filter(|_| session.resumed);
        let mut elsewhere = None;
        if let Some(held) = &held {
            // Only the running translator knows a port chosen by the kernel and an interface's own address.
            if self.config.source_port == 0 {
                self.endpoint.port = u16::try_from(held.port).unwrap_or(0);
            }
            if let Some(mac) = Endpoint::try_from(held).ok().and_then(|held| held.known_mac())
                && self.config.mac.is_none()
            {
                self.endpoint.mac = mac;
            }
            let own = (self.endpoint.ip.to_string(), u32::from(self.endpoint.port));
            if own != (held.ip.clone(), held.port) {
                elsewhere = Some(format!("{}:{}", held.ip, held.port));
            }
        }
        Ok(Preview { grant: self.parse_grant(&session)?, is_open: held.is_some(), elsewhere })
    }

    /// The transport that the collector wants writes to use. Nothing changes there.
    pub(crate) async fn preview_transport(&mut self) -> Result<Transport, SessionError> {
        let request = self.open_request(self.config.lease_seconds);
        let session = self.client.preview_session(request).await.map_err(|e| self.session_error(e))?;
        let grant = self.parse_grant(&session)?;
        let write = grant.queue_pairs.iter().find(|pair| pair.purpose == Purpose::Write);
        Ok(write.map_or(Transport::default(), |pair| pair.transport))
    }

    /// Opens the session with an RDMA device's queue pairs from now on.
    pub(crate) fn set_device_source(&mut self, source: DeviceSource) {
        (self.endpoint, self.queue_pairs) = (source.endpoint, Some(source.queue_pairs));
    }

    fn open_request(&self, lease_seconds: u32) -> OpenSessionRequest {
        let c = &self.config;
        let pair = |purpose: control::Purpose, qpn: u32| RequesterQueuePair {
            purpose: purpose.into(),
            qpn,
            start_psn: start_psn(),
        };
        let (stores, lists) = c.wanted_of(self.collector);
        let [write, atomic] = self.queue_pairs.unwrap_or_else(|| c.queue_pairs_of(self.collector));
        OpenSessionRequest {
            name: c.name.clone(),
            translator: Some((&self.endpoint).into()),
            queue_pairs: vec![pair(control::Purpose::Write, write), pair(control::Purpose::Atomic, atomic)],
            lease_seconds,
            stores: stores.to_vec(),
            lists: lists.iter().cloned().map(Into::into).collect(),
            fresh: false,
            // In a cluster, collectors know themselves what each has.
            shares: if c.cluster.is_none() { c.collector.collector_shares() } else { Vec::new() },
            own_share: self.collector.into(),
        }
    }

    /// Renews the lease and hands in counters. Returns the collector's current grant, which is
    /// [applied](LeasedSession::mark_applied) later. `frames_by` describes how frames travel; `placement` is the version of the
    /// cluster's placement that the data plane goes by, or 0.
    pub async fn renew_lease(
        &mut self,
        statistics: Vec<NodeStatistics>,
        frames_by: &str,
        placement: u64,
    ) -> Result<Grant, SessionError> {
        self.renew_or_leave(statistics, frames_by, placement, false).await
    }

    /// Hands in the final counters and says goodbye: everything held has been sent. The lease runs on, so
    /// that the next start resumes the session.
    pub async fn leave_session(&mut self, statistics: Vec<NodeStatistics>) -> Result<(), SessionError> {
        self.renew_or_leave(statistics, "", 0, true).await.map(drop)
    }

    async fn renew_or_leave(
        &mut self,
        mut statistics: Vec<NodeStatistics>,
        frames_by: &str,
        placement: u64,
        leaving: bool,
    ) -> Result<Grant, SessionError> {
        loop {
            let rest = statistics.split_off(in_one_call(&statistics));
            let request = RenewSessionRequest {
                name: self.config.name.clone(),
                generation: self.applied,
                statistics,
                frames_by: frames_by.to_owned(),
                placement,
                leaving: leaving && rest.is_empty(),
            };
            let mut session = self.client.renew_session(request).await.map_err(|e| self.session_error(e))?;
            self.generation = session.generation;
            self.offered.1 = session.stores_offered;
            self.ring = parse_ring_offer(&session);
            if rest.is_empty() {
                session.positions.clone_from(&self.positions);
                return Ok(self.parse_grant(&session)?);
            }
            statistics = rest;
        }
    }

    /// Ends the session with its queue pairs and rkeys; memory stays.
    pub async fn end_session(&mut self, statistics: Vec<NodeStatistics>) -> Result<(), SessionError> {
        let request =
            EndSessionRequest { name: self.config.name.clone(), generation: self.applied, statistics };
        self.client.give_up_session(request).await.map_err(|e| self.session_error(e))
    }

    fn parse_grant(&self, session: &control::Session) -> Result<Grant, GrantError> {
        let mut source = self.config.frame_source(self.collector, self.endpoint);
        if let Some([write, atomic]) = self.queue_pairs {
            (source.write_qpn, source.atomic_qpn) = (write, atomic);
        }
        Grant::read(session, self.collector, &source)
    }
}

fn parse_ring_offer(session: &control::Session) -> Option<RingAt> {
    let (ring, nic) = (session.ring.as_ref()?, Endpoint::try_from(session.collector.as_ref()?).ok()?);
    let IpAddr::V4(ip) = nic.ip else { return None };
    let token = ring.token.as_slice().try_into().ok()?;
    let fits = (1..=NAME_MAX).contains(&ring.name.len());
    fits.then(|| RingAt {
        offer: JoinOffer { name: ring.name.clone(), token },
        nic: SocketAddrV4::new(ip, nic.port),
    })
}

/// Most bytes per renewal: half of what collectors accept.
const PARTS: usize = MAX_PARTS / 2;
const BYTES: usize = dta_rpc::transport::MAX_MESSAGE / 2;
const NODES: usize = control::MAX_NODES / 2;

/// How many of these nodes fit in one renewal.
fn in_one_call(nodes: &[NodeStatistics]) -> usize {
    let (mut parts, mut bytes) = (0, 0);
    let fits = |node: &&NodeStatistics| {
        parts += node.counters.len() + 4;
        bytes += node.node.len() + 32 + node.counters.iter().map(|c| c.name.len() + 16).sum::<usize>();
        parts <= PARTS && bytes <= BYTES
    };
    nodes.iter().take(NODES).take_while(fits).count().max(1).min(nodes.len())
}

/// An initial PSN that an earlier run of this translator is unlikely to have just used (InfiniBand recommends
/// a random one).
fn start_psn() -> u32 {
    // The standard library's hasher is seeded from the system's random bits.
    let random = RandomState::new().hash_one(());
    (random >> 40) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_many_reporters_go_in_several_calls() {
        assert_eq!(in_one_call(&[]), 0);
        let node = |counters: usize, len: usize| NodeStatistics {
            node: "reporter/7".into(),
            counters: vec![control::Counter { name: "n".repeat(len), value: u64::MAX }; counters],
            ..Default::default()
        };
        assert_eq!(in_one_call(&vec![node(8, 10); 100]), 100);
        assert_eq!(in_one_call(&vec![node(0, 0); 65_535]), NODES);
        let (small, large) = (vec![node(8, 10); 65_535], vec![node(1000, 100); 100]);
        for nodes in [&small, &large] {
            let n = in_one_call(nodes);
            let sum: usize = nodes[..n].iter().map(prost::Message::encoded_len).sum();
            assert!((1 << 19..=BYTES).contains(&sum), "{n} nodes with {sum} bytes");
            assert!(nodes[..n].iter().map(|node| node.counters.len() + 4).sum::<usize>() <= PARTS);
        }
        // A single one that is too long is sent alone, and refused.
        assert_eq!(in_one_call(&[node(200_000, 1), node(1, 1)]), 1);
    }
}

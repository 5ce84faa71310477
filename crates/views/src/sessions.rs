//! Sessions as rows: for people, and for programs as `dta-collector sessions -o json` prints them.

use std::collections::BTreeMap;

use dta_proto::control::{Purpose, SessionInfo, Transport};
use dta_rpc::{ClientError, Spread, SpreadMember};
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SessionRow {
    /// The address of the collector, if several are asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collector: Option<String>,
    pub name: String,
    pub generation: u64,
    pub translator: String,
    /// Seconds; `null` = never.
    pub expires_in: Option<f64>,
    pub stores: Vec<String>,
    /// Names of the certificate that opened it; absent without TLS.
    pub owner: Option<String>,
    /// How its frames travel: `ring`, or `udp: ` and the reason; absent if its translator does not say.
    pub frames_by: Option<String>,
    pub queue_pairs: Vec<QueuePairRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueuePairRow {
    pub qpn: u32,
    pub purpose: &'static str,
    pub transport: &'static str,
    pub state: String,
    pub expected_psn: u32,
    pub peer_qpn: u32,
    pub counters: BTreeMap<String, u64>,
}

/// The sessions of several collectors.
#[derive(Debug, Default)]
pub struct SessionRows {
    pub sessions: Vec<SessionRow>,
    /// Collectors that did not answer, by address.
    pub unreachable: Vec<(String, ClientError)>,
}

impl SessionRow {
    /// A session; `collector` is its address if several are asked.
    pub fn from_session(session: SessionInfo, collector: Option<String>) -> SessionRow {
        let translator = session.translator.unwrap_or_default();
        SessionRow {
            collector,
            name: session.name,
            generation: session.generation,
            translator: format!("{}:{}", translator.ip, translator.port),
            expires_in: (session.expires_in_seconds >= 0.0).then_some(session.expires_in_seconds),
            stores: session.stores,
            owner: (!session.owner.is_empty()).then_some(session.owner),
            frames_by: (!session.frames_by.is_empty()).then_some(session.frames_by),
            queue_pairs: session
                .queue_pairs
                .into_iter()
                .map(|pair| QueuePairRow {
                    qpn: pair.qpn,
                    purpose: match pair.purpose() {
                        Purpose::Write => "write",
                        Purpose::Atomic => "atomic",
                    },
                    transport: match pair.transport() {
                        Transport::Uc => "UC",
                        Transport::Rc => "RC",
                    },
                    state: pair.state,
                    expected_psn: pair.expected_psn,
                    peer_qpn: pair.peer_qpn,
                    counters: pair.counters.into_iter().map(|c| (c.name, c.value)).collect(),
                })
                .collect(),
        }
    }
}

/// The sessions of the collectors that answer.
pub async fn fetch_session_rows(ask: &Spread) -> Result<SessionRows, ClientError> {
    let members = ask.members();
    let (several, mut rows) = (members.len() > 1, SessionRows::default());
    for SpreadMember { address, ask } in members.iter() {
        match ask.fetch_sessions().await {
            Ok(answer) => rows.sessions.extend(
                answer
                    .sessions
                    .into_iter()
                    .map(|session| SessionRow::from_session(session, several.then(|| address.clone()))),
            ),
            Err(error) => rows.unreachable.push((address.clone(), error)),
        }
    }
    if rows.unreachable.len() == members.len()
        && let Some((_, error)) = rows.unreachable.pop()
    {
        return Err(error);
    }
    Ok(rows)
}

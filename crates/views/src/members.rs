//! The collectors that are queried as one, each with its part of the stores: for people and for programs.

use std::time::Duration;

use dta_rpc::{ClientError, Spread, SpreadMember};
use futures_util::future::join_all;
use serde::Serialize;

use crate::stores::{StoreRow, StoreShareRow};

/// How long a collector may take before it counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(5);

/// One of several collectors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberRow {
    pub address: String,
    /// Why it does not answer; `null` = it does.
    pub unreachable: Option<String>,
    /// Sessions of translators; `null` if it does not answer.
    pub sessions: Option<u64>,
    pub stores: Vec<MemberStoreRow>,
}

/// What one of several collectors has of a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemberStoreRow {
    pub name: String,
    /// The part that it has, such as `buckets 0-127`; `null` = all of it.
    pub part: Option<String>,
    pub used: u64,
    pub capacity: u64,
    pub load: f64,
    pub survival: Option<f64>,
}

impl From<StoreRow> for MemberStoreRow {
    fn from(store: StoreRow) -> MemberStoreRow {
        MemberStoreRow {
            name: store.spec.name,
            part: store.here.as_ref().map(StoreShareRow::describe),
            used: store.used,
            capacity: store.capacity,
            load: store.load,
            survival: store.survival,
        }
    }
}

/// Asks all of them at once, and includes those that do not answer.
pub async fn fetch_member_rows(ask: &Spread) -> Vec<MemberRow> {
    let members = ask.members();
    join_all(members.iter().map(fetch_member_row)).await
}

async fn fetch_member_row(member: &SpreadMember) -> MemberRow {
    let answers = async {
        let (stores, sessions) = (member.ask.fetch_stores().await?, member.ask.fetch_sessions().await?);
        let stores: Result<Vec<_>, ClientError> = stores.into_iter().map(StoreRow::try_from).collect();
        Ok::<_, ClientError>((stores?, sessions.sessions.len() as u64))
    };
    let late = || format!("it has not answered for {} s", PATIENCE.as_secs());
    let answered = match tokio::time::timeout(PATIENCE, answers).await {
        Ok(answered) => answered.map_err(|error| error.to_string()),
        Err(_) => Err(late()),
    };
    let address = member.address.clone();
    match answered {
        Ok((stores, sessions)) => MemberRow {
            address,
            unreachable: None,
            sessions: Some(sessions),
            stores: stores.into_iter().map(MemberStoreRow::from).collect(),
        },
        Err(reason) => MemberRow { address, unreachable: Some(reason), sessions: None, stores: Vec::new() },
    }
}

//! Answers about keys for programs, as `dta-collector query … -o json` prints them.

use std::fmt;
use std::str::FromStr;

use dta_proto::control::{Epoch, KeyWriteAnswer, PathAnswer, SketchAnswer};
use dta_proto::key::{Flow, Key, ParseError};
use dta_proto::to_hex_digits;
use dta_proto::wire::dta::Primitive;
use dta_proto::{store, telemetry};
use dta_rpc::{Ask as _, ClientError, Spread};
use serde::{Serialize, Serializer};

use crate::epoch::{EarlierSummary, EpochSummary};
use crate::missing_reports::{MissingReports, missing_from_store};

/// A key with the spelling to show it by: an IPv6 flow cannot be read back from its key.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedKey {
    pub key: Key,
    name: String,
}

impl NamedKey {
    pub fn keys(named: &[NamedKey]) -> Vec<Key> {
        named.iter().map(|named| named.key).collect()
    }
}

impl FromStr for NamedKey {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<NamedKey, ParseError> {
        let key: Key = text.parse()?;
        let name = text.parse::<Flow>().map_or_else(|_| key.to_string(), |flow| flow.to_string());
        Ok(NamedKey { key, name })
    }
}

impl fmt::Display for NamedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl Serialize for NamedKey {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueResult {
    pub key: NamedKey,
    pub value: Option<String>,
    pub agreeing: u32,
    pub differing: u32,
    pub copies: u32,
    /// Where the value is from, if nothing was reported in `epoch`; otherwise `null`.
    pub earlier: Option<EarlierSummary>,
    /// `null` = the store has no epochs.
    pub epoch: Option<EpochSummary>,
}

impl ValueResult {
    pub fn from_answer(key: &NamedKey, answer: &KeyWriteAnswer, epoch: Option<&Epoch>) -> Self {
        Self {
            key: key.clone(),
            value: answer.value.as_deref().map(to_hex_digits),
            agreeing: answer.agreeing,
            differing: answer.differing,
            copies: answer.copies,
            earlier: answer.earlier.as_ref().map(EarlierSummary::from),
            epoch: epoch.map(EpochSummary::from),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathResult {
    pub key: NamedKey,
    pub found: bool,
    #[serde(flatten)]
    pub route: PathHops,
    pub agreeing: u32,
    pub differing: u32,
    pub copies: u32,
    /// Where the path is from, if nothing was reported in `epoch`; otherwise `null`.
    pub earlier: Option<EarlierSummary>,
    pub epoch: Option<EpochSummary>,
}

impl PathResult {
    pub fn from_answer(key: &NamedKey, answer: &PathAnswer, epoch: Option<&Epoch>) -> Self {
        Self {
            key: key.clone(),
            found: answer.found,
            route: PathHops::from_answer(answer),
            agreeing: answer.agreeing,
            differing: answer.differing,
            copies: answer.copies,
            earlier: answer.earlier.as_ref().map(EarlierSummary::from),
            epoch: epoch.map(EpochSummary::from),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathHops {
    /// `null` = unknown.
    pub hops: Vec<Option<u32>>,
    pub path_length: Option<u32>,
    pub complete: bool,
}

impl PathHops {
    pub fn from_answer(answer: &PathAnswer) -> Self {
        let hops = answer.hops.iter().zip(&answer.present);
        Self {
            hops: hops.map(|(hop, there)| there.then_some(*hop)).collect(),
            path_length: (answer.path_length != 0).then_some(answer.path_length),
            complete: answer.complete,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CounterResult<'a> {
    pub key: NamedKey,
    /// May be too high by other keys in the same counters, and too low by `lacks`.
    pub counted: u64,
    /// `null` = unknown, for another moment than now.
    pub lacks: Option<&'a MissingReports>,
    /// `null` = the store has no epochs.
    pub epoch: Option<EpochSummary>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SketchResult {
    pub key: NamedKey,
    pub epoch: u32,
    pub estimate: Option<u64>,
    pub merged: u32,
    pub expected: u32,
    /// The epoch in the history; `null` = the store has none.
    pub table_epoch: Option<EpochSummary>,
}

impl SketchResult {
    pub fn from_answer(key: &NamedKey, answer: &SketchAnswer, number: u32, epoch: Option<&Epoch>) -> Self {
        Self {
            key: key.clone(),
            epoch: number,
            estimate: answer.estimate,
            merged: answer.merged,
            expected: answer.expected,
            table_epoch: epoch.map(EpochSummary::from),
        }
    }
}

/// The name of the key-increment store that `named` means (empty: the only one), and what its counts may be missing.
pub async fn fetch_missing_counts(
    ask: &Spread,
    named: &str,
) -> Result<(String, MissingReports), ClientError> {
    let stores = ask.placement_that_answers().await?.stores;
    let specs: Vec<store::StoreSpec> =
        stores.into_iter().filter_map(|place| store::StoreSpec::try_from(&place.store?).ok()).collect();
    let spec = match named {
        "" => specs.iter().find(|spec| {
            spec.kind.primitive() == Primitive::KeyIncrement && !telemetry::is_telemetry_store(&spec.name)
        }),
        named => store::find_store(specs.iter(), |spec| spec, named),
    };
    let name = spec.map_or_else(|| named.to_owned(), |spec| spec.name.clone());
    let (sessions, nodes) = (ask.fetch_sessions().await?.sessions, ask.statistics().await?);
    let missing = missing_from_store(&name, Primitive::KeyIncrement, &sessions, &nodes);
    Ok((name, missing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_flow_is_shown_as_it_was_written() {
        let flow = "[2001:db8::1]:5000->[2001:db8::2]:443/udp";
        let named: NamedKey = flow.parse().unwrap();
        assert_eq!((named.key, named.to_string()), (flow.parse().unwrap(), flow.to_owned()));
        assert_eq!("0a".parse::<NamedKey>().unwrap().to_string(), "0a000000000000000000000000000000");
    }
}

//! Checks before sending whether reports can land: a report is a datagram without an answer.

use std::fmt;
use std::net::SocketAddrV4;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dta_link::netstat;
use dta_proto::control::StoreInfo;
use dta_proto::fit;
use dta_proto::store::StoreSpec;
use dta_proto::telemetry;
use dta_proto::wire::dta::{DtaBody, Primitive, Version};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::{Ask as _, ClientError, ClientOptions, DEFAULT_COLLECTOR};
use serde::Deserialize;

/// Longest wait for the collector's list of stores.
const PATIENCE: Duration = Duration::from_secs(3);

/// A store as named by the user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum StoreArg {
    /// By the id used in reports.
    Id(u16),
    /// By its name in the collector.
    Name(String),
}

impl FromStr for StoreArg {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Id))
    }
}

impl fmt::Display for StoreArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Name(name) => write!(f, "`{name}`"),
        }
    }
}

/// What is known about the collector's stores.
pub(super) enum CollectorStores {
    /// Nothing: nobody was asked, or nobody answered.
    Unknown,
    Known(Vec<StoreSpec>),
}

impl CollectorStores {
    /// Asks the collector at `address`, or else the default one. Only a named collector must answer.
    pub(super) fn query_collector(address: Option<&str>) -> Result<Self> {
        let options = ClientOptions {
            call: Some(PATIENCE),
            ..ClientOptions::without_tls(address.unwrap_or(DEFAULT_COLLECTOR))
        };
        let asked = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?
            .block_on(async {
                let all = async { RemoteCollector::connect(&options).await?.fetch_stores().await };
                tokio::time::timeout(PATIENCE, all).await.ok()
            });
        match (asked, address) {
            (Some(Ok(stores)), _) => Ok(Self::Known(store_specs(stores)?)),
            (failed, Some(address)) => Err(match failed {
                Some(Err(error)) => anyhow::Error::from(error),
                _ => anyhow::anyhow!("the collector at {address} did not answer within {PATIENCE:?}"),
            }
            .context("cannot check whether the reports can land (--unchecked sends them without asking)")),
            (Some(Err(ClientError::Unreachable { .. })) | None, None) => {
                eprintln!(
                    "dta-reporter: no collector at {DEFAULT_COLLECTOR}: the reports are sent unchecked (start one with dta-collector serve, give \
                     its address with --collector, or --unchecked)"
                );
                Ok(Self::Unknown)
            }
            (Some(Err(error)), None) => Err(anyhow::Error::from(error).context(
                "cannot check whether the reports can land (--unchecked sends them without asking)",
            )),
        }
    }

    /// The store id for a report, if the report can land there.
    pub(super) fn choose_store(
        &self,
        version: Version,
        store: Option<&StoreArg>,
        body: &DtaBody<'_>,
    ) -> Result<u16, String> {
        match (self, store) {
            (Self::Known(all), _) if version == Version::V0 => select_version0_store(all, body),
            (Self::Known(all), store) => select_store(all, store, body),
            (Self::Unknown, _) if version == Version::V0 => Ok(0),
            (Self::Unknown, Some(StoreArg::Id(id))) => Ok(*id),
            (Self::Unknown, Some(StoreArg::Name(name))) => Err(format!(
                "the id of store `{name}` is unknown because no collector was asked: start one (dta-collector serve), or give its address with --collector, or \
                 the store's id"
            )),
            (Self::Unknown, None) => {
                Err("no store: give the id of one with --store, or a collector to ask with --collector"
                    .into())
            }
        }
    }
}

fn store_specs(stores: Vec<StoreInfo>) -> Result<Vec<StoreSpec>> {
    let spec = |info: StoreInfo| {
        let store = info.store.context("the collector described a store without saying which")?;
        Ok(StoreSpec::try_from(&store)?)
    };
    stores.into_iter().map(spec).collect()
}

fn select_store(all: &[StoreSpec], store: Option<&StoreArg>, body: &DtaBody<'_>) -> Result<u16, String> {
    let primitive = body.primitive();
    let have = || {
        let each: Vec<_> = all.iter().map(|s| format!("{} `{}` ({})", s.id, s.name, s.primitive())).collect();
        each.join(", ")
    };
    let spec = match store {
        Some(StoreArg::Id(id)) => all.iter().find(|s| s.id == *id),
        Some(StoreArg::Name(name)) => all.iter().find(|s| s.name == *name),
        None => {
            let mut of_kind = default_candidates(all, primitive);
            let first = of_kind
                .next()
                .ok_or_else(|| format!("the collector has no {primitive} store, but {}", have()))?;
            if of_kind.next().is_some() {
                return Err(format!(
                    "the collector has several {primitive} stores: select one with --store; it has {}",
                    have()
                ));
            }
            Some(first)
        }
    };
    let spec = spec.ok_or_else(|| match store {
        Some(store) => format!("the collector has no store {store}, but {}", have()),
        None => format!("the collector has {}", have()),
    })?;
    fit::check_report_fit(spec, body).map_err(|misfit| misfit.to_string())?;
    Ok(spec.id)
}

/// The candidate stores of a primitive for a report that names none: INT stores do not count.
fn default_candidates(all: &[StoreSpec], primitive: Primitive) -> impl Iterator<Item = &StoreSpec> {
    all.iter().filter(move |s| s.kind.primitive() == primitive && !telemetry::is_telemetry_store(&s.name))
}

/// The translator assigns a version-0 report to the only store of its kind, unless configured otherwise. If
/// there are several, only the translator knows.
fn select_version0_store(all: &[StoreSpec], body: &DtaBody<'_>) -> Result<u16, String> {
    let primitive = body.primitive();
    let of_kind: Vec<_> = default_candidates(all, primitive).collect();
    match of_kind[..] {
        [] => Err(format!("the collector has no {primitive} store for version-0 reports")),
        [only] => fit::check_report_fit(only, body).map(|()| 0).map_err(|misfit| misfit.to_string()),
        _ => Ok(0),
    }
}

/// Refuses to send to an address of this host where nobody listens. Other hosts cannot be checked.
pub(super) fn somebody_listens(to: SocketAddrV4) -> Result<()> {
    if netstat::is_nobody_at(to) {
        bail!(
            "nobody listens at {to}: start a translator there (dta-translator run), or give the address of \
            one with --translator (--unchecked sends anyway)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use dta_proto::key::Key;
    use dta_proto::store::StoreKind;

    fn stores() -> CollectorStores {
        let store = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
        let append = StoreKind::Append { lists: 4, ring: 8, batch_len: 64, entry_len: 4, notify: false };
        CollectorStores::Known(vec![
            store(
                1,
                "flows",
                StoreKind::KeyWrite { slots: 8, value_len: 12, redundancy: 2, keys: Default::default() },
            ),
            store(2, "events", append.clone()),
            store(3, "drops", append),
            // An INT store is never the default.
            store(
                16,
                "int-values",
                StoreKind::KeyWrite { slots: 8, value_len: 12, redundancy: 2, keys: Default::default() },
            ),
        ])
    }

    #[test]
    fn a_store_is_found_by_name_by_id_and_as_the_only_one() {
        let write = DtaBody::KeyWrite { redundancy: 0, key: Key([1; 16]), value: &[1; 12] };
        let append = DtaBody::Append { list: 1, value: &[1; 4] };
        let place = |store: Option<&str>, body| {
            stores().choose_store(Version::V1, store.map(|s| s.parse().unwrap()).as_ref(), body)
        };
        assert_eq!(place(Some("flows"), &write), Ok(1));
        assert_eq!(place(Some("1"), &write), Ok(1));
        assert_eq!(place(None, &write), Ok(1));
        assert_eq!(place(Some("drops"), &append), Ok(3));
        for (store, body, expected) in [
            (None, &append, "several append stores"),
            (Some("0"), &append, "no store 0, but 1 `flows` (key-write), 2 `events` (append)"),
            (Some("flow"), &append, "no store `flow`"),
            (Some("flows"), &append, "takes no append reports"),
            (
                None,
                &DtaBody::KeyIncrement { redundancy: 0, key: Key([1; 16]), delta: 1 },
                "no key-increment store",
            ),
        ] {
            let error = place(store, body).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn without_a_collector_only_ids_are_known() {
        let append = DtaBody::Append { list: 1, value: &[1; 4] };
        let place = |store: Option<&str>, version| {
            CollectorStores::Unknown.choose_store(
                version,
                store.map(|s| s.parse().unwrap()).as_ref(),
                &append,
            )
        };
        assert_eq!(place(Some("9"), Version::V1), Ok(9));
        assert!(place(Some("events"), Version::V1).unwrap_err().contains("--collector"));
        assert!(place(None, Version::V1).unwrap_err().contains("--store"));
        assert_eq!(place(None, Version::V0), Ok(0));
    }

    #[test]
    fn a_version_0_report_is_held_against_the_only_store_of_its_kind() {
        let place = |body| stores().choose_store(Version::V0, None, body);
        assert_eq!(place(&DtaBody::KeyWrite { redundancy: 0, key: Key([1; 16]), value: &[1; 4] }), Ok(0));
        assert_eq!(place(&DtaBody::Append { list: 1 << 20, value: &[1; 4] }), Ok(0));
        assert!(place(&DtaBody::KeyWrite { redundancy: 3, key: Key([1; 16]), value: &[1; 4] }).is_err());
    }

    #[test]
    fn an_address_of_this_host_needs_somebody_who_listens() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let std::net::SocketAddr::V4(address) = socket.local_addr().unwrap() else { panic!() };
        somebody_listens(address).unwrap();
        drop(socket);
        assert!(somebody_listens(address).unwrap_err().to_string().contains("nobody listens"));
        // An address reserved for documentation (RFC 5737), which no host has.
        somebody_listens("192.0.2.1:9".parse().unwrap()).unwrap();
    }
}

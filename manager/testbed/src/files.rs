//! Configurations of collectors and translator.

use std::net::Ipv4Addr;
use std::path::Path;

use serde::Serialize;

use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::{EpochEnd, Primitive};

use super::daemons::Plan;
use crate::share::Share;

/// Where a collector is.
pub struct CollectorPlace<'a> {
    /// Its number among all.
    pub number: usize,
    /// Where gRPC listens.
    pub listen: String,
    /// File of the stores.
    pub memory: String,
    /// Where the software NIC takes frames.
    pub address: Ipv4Addr,
    /// See `address`.
    pub port: u16,
    /// `soft`, or an RDMA device.
    pub device: &'a str,
    /// Address of an RDMA device.
    pub verbs: Option<Ipv4Addr>,
    /// Its link; `None` = a UDP socket.
    pub link: Option<&'a str>,
}

/// The collector's configuration file, as far as a testbed needs it.
#[derive(Serialize)]
struct CollectorFile<'a> {
    collector: CollectorTable<'a>,
    soft: SoftTable<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verbs: Option<VerbsTable>,
    metrics: MetricsTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryTable>,
    store: Vec<StoreTable<'a>>,
}

#[derive(Serialize)]
struct HistoryTable {
    directory: String,
}

#[derive(Serialize)]
struct StoreTable<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spread_copies: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replicas: Option<usize>,
    #[serde(flatten)]
    spec: &'a StoreSpec,
}

#[derive(Serialize)]
struct MetricsTable {
    listen: &'static str,
}

#[derive(Serialize)]
struct CollectorTable<'a> {
    name: &'static str,
    listen: &'a str,
    memory: &'a str,
    device: &'a str,
    transport: &'static str,
}

#[derive(Serialize)]
struct VerbsTable {
    address: String,
}

#[derive(Serialize)]
struct SoftTable<'a> {
    address: String,
    port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<&'a str>,
}

/// The configuration of a collector.
pub fn collector(plan: &Plan<'_>, place: &CollectorPlace<'_>) -> anyhow::Result<String> {
    let epoch = |spec: &StoreSpec| {
        let begins_empty = spec.kind.primitive().epoch_end() == EpochEnd::Replaces;
        plan.epochs.filter(|_| begins_empty).map(|every| format!("{}s", every.as_secs()))
    };
    let share = plan.topology.share();
    let stores = share.stores(place.number, &plan.topology.stores);
    let table = |spec| {
        let (spread_copies, replicas) = replicas(share, spec);
        StoreTable { epoch: epoch(spec), spread_copies, replicas, spec }
    };
    let file = CollectorFile {
        collector: CollectorTable {
            name: "testbed",
            listen: &place.listen,
            memory: &place.memory,
            device: place.device,
            transport: plan.transport.name(),
        },
        soft: SoftTable { address: place.address.to_string(), port: place.port, link: place.link },
        verbs: place.verbs.map(|address| VerbsTable { address: address.to_string() }),
        metrics: MetricsTable { listen: "off" },
        history: plan.epochs.map(|_| HistoryTable { directory: history(&place.memory) }),
        store: stores.into_iter().map(table).collect(),
    };
    Ok(toml::to_string(&file)?)
}

/// What a store's table says of the collectors that have each key: `spread_copies` and `replicas`.
fn replicas(share: Share, spec: &StoreSpec) -> (Option<bool>, Option<usize>) {
    let replicas = Some(share.replicas()).filter(|replicas| *replicas > 1);
    match spec.kind.primitive() {
        Primitive::KeyWrite => (replicas.map(|_| true), None),
        Primitive::Postcarding | Primitive::KeyIncrement => (None, replicas),
        Primitive::Append | Primitive::SketchMerge => (None, None),
    }
}

/// Where a collector keeps its history: beside its memory.
pub fn history(memory: &str) -> String {
    Path::new(memory).with_file_name("history").display().to_string()
}

/// The arguments of a collector.
pub fn collector_arguments(plan: &Plan<'_>, config: String) -> Vec<String> {
    vec![
        "serve".into(),
        "--config".into(),
        config,
        "--soft-faults".into(),
        plan.faults.to_string(),
        "--soft-fault-seed".into(),
        (plan.seed ^ 0xacac).to_string(),
        "--soft-threads".into(),
        plan.nic_threads.to_string(),
    ]
}

/// Addresses of a translator.
pub struct TranslatorPlace {
    /// Address for reports.
    pub listen: String,
    /// Address of its own gRPC.
    pub control: String,
    /// Where it reaches the collectors' gRPC, in their order.
    pub collectors: Vec<String>,
    /// Where RoCEv2 frames come from.
    pub source: Ipv4Addr,
    /// See `source`.
    pub source_port: u16,
    /// Whether a ring in shared memory is used.
    pub ring: String,
}

/// The configuration of a translator.
pub fn translator(plan: &Plan<'_>, place: &TranslatorPlace) -> String {
    let flush = plan.flush_ms();
    let TranslatorPlace { listen, control, collectors, source, source_port, ring } = place;
    let collectors = plan.topology.share().tables(collectors, &plan.topology.stores);
    format!(
        "[translator]\nname = \"testbed\"\nlisten = \"{listen}\"\ncontrol = \"{control}\"\nmetrics = \"off\"\n\
         source = \"{source}\"\nsource_port = {source_port}\nring = \"{ring}\"\nruns = {}\nworkers = {}\nlease_seconds = {}\n\n{collectors}\n\
         [translator.flush]\nappend_ms = {flush}\npostcarding_ms = {flush}\nsketch_merge_ms = {flush}\n",
        plan.runs, plan.workers, plan.topology.translator.lease_seconds,
    )
}

/// The arguments of a translator, without its link.
pub fn translator_arguments(plan: &Plan<'_>, config: String, ledger: String) -> Vec<String> {
    let mut arguments: Vec<String> = vec!["run".into(), "--config".into(), config];
    arguments.extend(plan.reference.then(|| "--reference".into()));
    arguments.extend([
        "--ready".into(),
        "--faults".into(),
        plan.faults.to_string(),
        "--nack-faults".into(),
        plan.report_faults.to_string(),
        "--seed".into(),
        (plan.seed ^ 0x7a7a).to_string(),
        "--ledger".into(),
        ledger,
    ]);
    arguments
}

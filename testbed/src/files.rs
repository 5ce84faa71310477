//! Configurations of collectors and translator.

use std::net::IpAddr;
use std::path::Path;

use dta_proto::store::StoreSpec;
use dta_proto::wire::dta::{EpochEnd, Replicas};

use super::daemons::Plan;

pub struct CollectorPlace<'a> {
    pub number: usize,
    pub listen: String,
    pub memory: String,
    /// Where the software NIC takes frames.
    pub address: IpAddr,
    /// See `address`.
    pub port: u16,
    /// `soft`, or an RDMA device.
    pub device: &'a str,
    /// Address of an RDMA device.
    pub verbs: Option<IpAddr>,
    /// Its link; `None` = a UDP socket.
    pub link: Option<&'a str>,
}

pub fn collector(plan: &Plan<'_>, place: &CollectorPlace<'_>) -> anyhow::Result<String> {
    let stores = plan.topology.collector_share().stores_at_collector(place.number, &plan.topology.stores);
    let stores = stores.into_iter().map(|spec| store_table(plan, spec)).collect::<Result<Vec<_>, _>>()?;
    let stores = toml::Table::from_iter([("store".to_owned(), stores.into())]);
    // Shown as TOML, in quotes.
    let text = |text: &str| toml::Value::from(text);
    let (listen, memory, device) = (text(&place.listen), text(&place.memory), text(place.device));
    let link = place.link.map(|link| format!("link = {}\n", text(link))).unwrap_or_default();
    let verbs = place.verbs.map(|address| format!("[verbs]\naddress = \"{address}\"\n")).unwrap_or_default();
    let history =
        plan.epochs.map(|_| format!("[history]\ndirectory = {}\n", text(&history_path(&place.memory))));
    let page = if plan.page { "127.0.0.1:0" } else { "off" };
    Ok(format!(
        "{stores}\n[collector]\nname = \"testbed\"\nlisten = {listen}\nmemory = {memory}\ndevice = {device}\n\
         transport = \"{}\"\n[metrics]\nlisten = \"off\"\n[web]\nlisten = \"{page}\"\n[soft]\naddress = \"{}\"\nport = {}\n{link}{verbs}{}",
        plan.transport.canonical_name(),
        place.address,
        place.port,
        history.unwrap_or_default(),
    ))
}

/// The table of a store: what it is, its epoch, and what is said of the collectors that have each key.
fn store_table(plan: &Plan<'_>, spec: &StoreSpec) -> Result<toml::Table, toml::ser::Error> {
    let mut table = toml::Table::try_from(spec)?;
    let primitive = spec.kind.primitive();
    if let Some(every) = plan.epochs
        && primitive.epoch_end() == EpochEnd::Replaces
    {
        table.insert("epoch".into(), format!("{}s", every.as_secs()).into());
    }
    let replicas = plan.topology.collector_share().replicas();
    if replicas > 1 {
        match primitive.replicas() {
            Replicas::None => None,
            Replicas::Copies => table.insert("spread_copies".into(), true.into()),
            Replicas::Whole | Replicas::Counts => table.insert("replicas".into(), (replicas as i64).into()),
        };
    }
    Ok(table)
}

/// Where a collector keeps its history: beside its memory.
pub fn history_path(memory: &str) -> String {
    Path::new(memory).with_file_name("history").display().to_string()
}

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

pub struct TranslatorPlace {
    pub listen: String,
    /// Address of its own gRPC.
    pub control: String,
    /// Where it reaches the collectors' gRPC, in their order.
    pub collectors: Vec<String>,
    /// Where RoCEv2 frames come from.
    pub source: IpAddr,
    /// See `source`.
    pub source_port: u16,
    /// Whether a ring in shared memory is used.
    pub ring: String,
}

pub fn translator(plan: &Plan<'_>, place: &TranslatorPlace) -> String {
    let flush = plan.flush_timeout_ms();
    let TranslatorPlace { listen, control, collectors, source, source_port, ring } = place;
    let collectors = plan.topology.collector_share().collector_tables(collectors, &plan.topology.stores);
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

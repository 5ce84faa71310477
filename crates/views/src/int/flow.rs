//! Everything that a collector knows about a flow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dta_cli::number::format_count;
use dta_export::directory::{Directory, Meaning};
use dta_export::names::Names;
use dta_export::networks::FlowNetworks;
use dta_export::source::Lost;
use dta_proto::control::EarlierEpoch;
use dta_proto::drop_reason::DropReason;
use dta_proto::flow_query::{FlowFilter, FlowQuestion, FlowSum};
use dta_proto::flow_record;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{
    self, InterfaceCounter, Metric, SwitchNumber, SwitchPath, TelemetryEntry, TimedValue, list, store,
};
use dta_proto::to_hex_digits;
use dta_proto::trace::store as trace_store;
use dta_proto::wire::dta::Primitive;
use dta_rpc::{Ask, AskKeys, Policy};
use serde::Serialize;

use super::stores::{self, StoreCatalog};
use super::{IntError, moment};
use crate::trace::read::count_sampled_packets;

/// Stores of DTA reports to query, in addition to those for INT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DtaStores {
    /// Postcarding: paths of flows, a switch for each hop.
    pub paths: Vec<String>,
    /// Key-increment: counts of flows.
    pub counters: Vec<String>,
    /// Key-write: values of flows.
    pub values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The number; 4294967295 means that or more.
    pub value: u32,
    /// When: nanoseconds since 1970, or what the switch sent.
    pub time: u64,
    /// Its age; `None` if the time is a switch's own.
    pub age_seconds: Option<f64>,
}

/// A queue of the flow's egress port.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Queue {
    /// Its number; `None` if not available.
    pub queue: Option<u32>,
    /// Its occupancy, whichever flow reported it.
    pub occupancy: Option<Measured>,
    pub congestion: Option<Measured>,
}

/// A switch that the flow passes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Hop {
    /// The switch; `None` = unknown.
    pub switch: Option<u32>,
    pub switch_name: Option<String>,
    /// Nanoseconds of the flow in this switch.
    pub latency: Option<Measured>,
    /// The egress port; `None` = the switch does not report it, or it is no longer known.
    pub port: Option<u32>,
    /// Its name, from the file of names or as the switch reports it.
    pub port_name: Option<String>,
    /// Utilisation of that port, as the switch reports it.
    pub utilization: Option<Measured>,
    /// The nonzero counts of that interface, by name ([`InterfaceCounter`]), if its switch sends flow records of the flow.
    pub counters: BTreeMap<&'static str, u64>,
    pub queues: Vec<Queue>,
    /// Whether a port was reported, even if only as not available.
    #[serde(skip)]
    pub port_reported: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowRoute {
    pub store: String,
    /// The number of hops on the whole path, which may be more than the known ones.
    pub length: Option<u32>,
    /// Whether each hop is known.
    pub complete: bool,
    /// Whether a switch is on it twice.
    pub looped: bool,
    /// How many copies hold it, and how many were read.
    pub agreeing: u32,
    pub copies: u32,
    /// The age of the last event about it; if none is in the ring, how long ago the epoch that has it ended, if it has.
    pub age_seconds: Option<f64>,
}

/// Drops of the flow for one reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowDropCount {
    pub reason: DropReason,
    /// Whose number the reason is: `int` or `sflow`.
    pub reason_source: &'static str,
    pub reason_name: Option<String>,
    /// Their count; `None` without a counter store.
    pub counted: Option<u64>,
    /// Switches of the drops that are still in the ring.
    pub switches: Vec<u32>,
    /// The age of the last of these drops.
    pub age_seconds: Option<f64>,
}

/// Packets of the flow, still in the ring, that waited in congested queues.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Congested {
    pub packets: u64,
    /// The switch of the last one.
    pub switch: Option<u32>,
    /// The occupancy of its queue.
    pub occupancy: Option<u32>,
    /// Nanoseconds in that switch.
    pub latency: Option<u32>,
    /// The age of the last one.
    pub age_seconds: Option<f64>,
}

/// What a store of DTA reports holds for the flow; all `None` = nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StoreAnswer {
    pub store: String,
    /// Hops of a path; `None` for unknown ones.
    pub path: Option<Vec<Option<u32>>>,
    pub counted: Option<u64>,
    pub value: Option<String>,
}

impl DtaStores {
    fn all_store_names(&self) -> [&Vec<String>; 3] {
        [&self.paths, &self.counters, &self.values]
    }
}

impl StoreAnswer {
    fn for_store(store: &str) -> Self {
        Self { store: store.to_owned(), ..Self::default() }
    }

    pub fn is_absent(&self) -> bool {
        self.path.is_none() && self.counted.is_none() && self.value.is_none()
    }
}

/// What an exporter reported about a flow, as far as its records are in memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowExporter {
    /// Its address.
    pub exporter: IpAddr,
    pub exporter_name: Option<String>,
    pub packets: u64,
    pub bytes: u64,
    pub records: u64,
}

/// Everything known about a flow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowSummary {
    pub flow: Flow,
    #[serde(flatten)]
    pub ends: FlowNetworks,
    /// The moment asked about; `None` = now. Ages are relative to it.
    pub at: Option<String>,
    /// Whether anything is known about it.
    pub found: bool,
    pub path: Option<FlowRoute>,
    /// The switches on it, in the order in which packets pass them.
    pub hops: Vec<Hop>,
    /// Switches that reported a latency of this flow but are not on that path.
    pub others: Vec<Hop>,
    /// Nanoseconds through all hops.
    pub latency: Option<Measured>,
    /// Reports; `None` if none was counted.
    pub reports: Option<u64>,
    /// Packets; `None` if none was counted.
    pub packets: Option<u64>,
    /// Bytes; `None` if none was counted.
    pub bytes: Option<u64>,
    /// The exporters that reported it in flow records, the one with the most bytes first. If there are any, packets and
    /// bytes are those of the first.
    pub exporters: Vec<FlowExporter>,
    pub drops: Vec<FlowDropCount>,
    pub congested: Option<Congested>,
    /// Sampled packets that hosts traced, about which [`crate::trace`] knows more; `None` = none.
    pub traced: Option<u64>,
    /// What stores of DTA reports contain.
    pub stores: Vec<StoreAnswer>,
    /// What is unknown, and why, in sentences.
    pub unknown: Vec<String>,
}

/// Most exporters of a flow.
const MAX_EXPORTERS: usize = 64;

/// Queries a collector about flows.
#[derive(Clone)]
pub struct FlowQuery {
    pub ask: Arc<dyn Ask>,
    /// Its stores of DTA reports to query, too.
    pub dta: DtaStores,
    /// Names of switches, ports and drop reasons.
    pub names: Arc<Names>,
    /// The moment asked about, in milliseconds since 1970; `None` = now. Stores that have nothing of it are left out, and
    /// named; only events up to then count.
    pub at: Option<u64>,
}

/// One pass over the lists of events, for some flows.
#[derive(Default)]
struct EventScan {
    directory: Directory,
    flows: BTreeMap<Key, FlowEvents>,
    missed: [Lost; list::COUNT as usize],
}

#[derive(Default)]
struct FlowEvents {
    /// When the path was last reported.
    path: Option<u64>,
    /// By switch: when its egress port was reported, and the port.
    ports: BTreeMap<u32, (u64, Option<u32>)>,
    /// By reason: switches and the last time.
    drops: BTreeMap<DropReason, (BTreeSet<u32>, u64)>,
    /// With the time of the last packet.
    congested: Option<(u64, Congested)>,
}

impl FlowQuery {
    /// What is known about flows, in the order given.
    ///
    /// # Errors
    /// The collector does not answer, or has none of the stores to query.
    pub async fn summarize_flows(&self, flows: &[Flow]) -> Result<Vec<FlowSummary>, IntError> {
        let catalog = StoreCatalog::fetch_from(&*self.ask).await?;
        self.check_stores(&catalog)?;
        let Some(at) = self.at else { return self.of_stores(flows, &catalog, &catalog, &[]).await };
        let of_dta =
            |name: &str| self.dta.all_store_names().iter().any(|names| names.iter().any(|own| own == name));
        let asked = |name: &str| name.starts_with(telemetry::STORE_PREFIX) || of_dta(name);
        let (then, silent) = catalog.with_data_at(&*self.ask, at, asked).await?;
        let mut dta = self.dta.clone();
        for names in [&mut dta.paths, &mut dta.counters, &mut dta.values] {
            names.retain(|name| then.find_store(name).is_some());
        }
        if !then.has_int_keys() && dta == DtaStores::default() {
            return Err(IntError::NotKept(silent.join(" ")));
        }
        let query = Self { ask: stores::at_moment(&self.ask, self.at), dta, ..self.clone() };
        query.of_stores(flows, &catalog, &then, &silent).await
    }

    /// What the stores in `catalog` know, out of `all` of the collector; `silent` says why the others know nothing.
    async fn of_stores(
        &self,
        flows: &[Flow],
        all: &StoreCatalog,
        catalog: &StoreCatalog,
        silent: &[String],
    ) -> Result<Vec<FlowSummary>, IntError> {
        let mut scan = self.scan_events(flows, catalog).await?;
        let mut reports = Vec::with_capacity(flows.len());
        let traced = self.count_traced_packets(flows, catalog).await?;
        for (flow, traced) in flows.iter().zip(traced) {
            let mut report = self.summarize_flow(flow, catalog, &mut scan).await?;
            report.traced = (traced > 0).then_some(traced);
            report.found |= traced > 0;
            report.unknown = silent.to_vec();
            list_unknowns(&mut report, all, catalog, &scan.missed);
            reports.push(report);
        }
        Ok(reports)
    }

    /// How many packets of each flow hosts traced; known only for now.
    async fn count_traced_packets(
        &self,
        flows: &[Flow],
        catalog: &StoreCatalog,
    ) -> Result<Vec<u64>, IntError> {
        if self.at.is_some() || !catalog.has_store(trace_store::EVENTS, Primitive::Append) {
            return Ok(vec![0; flows.len()]);
        }
        Ok(count_sampled_packets(&*self.ask, flows).await?)
    }

    /// The moment asked about, in nanoseconds since 1970.
    fn now(&self) -> u64 {
        self.at.map_or_else(moment::now, |at| at.saturating_mul(1_000_000))
    }

    /// Whether something with this time had happened by then.
    fn has_happened(&self, time: u64) -> bool {
        self.at.is_none() || moment::age_in_seconds(time, 0).is_some() && time <= self.now()
    }

    fn check_stores(&self, catalog: &StoreCatalog) -> Result<(), IntError> {
        let named = [
            (&self.dta.paths, Primitive::Postcarding),
            (&self.dta.counters, Primitive::KeyIncrement),
            (&self.dta.values, Primitive::KeyWrite),
        ];
        for (names, primitive) in named {
            if let Some(name) = names.iter().find(|name| !catalog.has_store(name, primitive)) {
                let what = match catalog.find_store(name) {
                    Some(spec) => format!("store {name} is of {}", spec.primitive()),
                    None => format!("there is no store {name}; there are {}", catalog.store_names()),
                };
                return Err(IntError::NoStore(format!(
                    "{what}: name a store of {}",
                    primitive.canonical_name()
                )));
            }
        }
        let is_traced = self.at.is_none() && catalog.has_store(trace_store::EVENTS, Primitive::Append);
        if !catalog.has_int_stores() && self.dta == DtaStores::default() && !is_traced {
            return Err(IntError::NoStore(format!(
                "this collector has no stores for INT (int-...); name stores of DTA reports with --paths, --counters and --values; it has {}",
                catalog.store_names()
            )));
        }
        Ok(())
    }

    /// Reads the lists once for all flows.
    async fn scan_events(&self, flows: &[Flow], catalog: &StoreCatalog) -> Result<EventScan, IntError> {
        let mut scan = EventScan::default();
        if !catalog.has_store(store::EVENTS, Primitive::Append) {
            return Ok(scan);
        }
        for flow in flows {
            scan.flows.insert(flow.to_key(), FlowEvents::default());
        }
        // A hop's key is made of CRCs of the flow, so it is computed for each known flow and switch.
        let mut hops: BTreeMap<u32, Vec<(Key, Key)>> = BTreeMap::new();
        let all = [list::CHANGES, list::DROPS, list::CONGESTION, list::KEYS];
        let EventScan { directory, flows: known, missed } = &mut scan;
        super::read(&self.ask, store::EVENTS, &all, |batch| {
            missed[batch.list as usize].add(&batch.lost);
            for entry in &batch.entries {
                directory.take(entry);
                let of_hop = match entry {
                    TelemetryEntry::Change { metric: Metric::HopLatency, key, place, .. } => {
                        place.switch.and_then(|switch| {
                            let keys = hops.entry(switch).or_insert_with(|| {
                                let key =
                                    |flow: &Flow| (telemetry::hop_latency_key(flow, switch), flow.to_key());
                                flows.iter().map(key).collect()
                            });
                            keys.iter().find(|(hop, _)| hop == key).map(|(_, flow)| *flow)
                        })
                    }
                    _ => None,
                };
                if entry.event_time().is_some_and(|time| self.has_happened(time)) {
                    record_event(known, entry, of_hop);
                }
            }
        })
        .await?;
        Ok(scan)
    }

    async fn summarize_flow(
        &self,
        flow: &Flow,
        catalog: &StoreCatalog,
        scan: &mut EventScan,
    ) -> Result<FlowSummary, IntError> {
        let (now, key) = (self.now(), flow.to_key());
        let of_flow = scan.flows.remove(&key).unwrap_or_default();
        let about = DirectoryFacts::from_directory(&key, &mut scan.directory);
        let (path, switches) = self.find_path(key, catalog, &of_flow, now).await?;
        let mut report = FlowSummary {
            flow: *flow,
            ends: self.names.flow_networks(Some(*flow)),
            at: self.at.map(dta_files::moment::format_utc),
            found: false,
            path,
            hops: Vec::new(),
            others: Vec::new(),
            latency: None,
            reports: None,
            packets: None,
            bytes: None,
            exporters: Vec::new(),
            drops: Vec::new(),
            congested: of_flow.congested.as_ref().map(|(time, last)| Congested {
                age_seconds: moment::age_in_seconds(*time, now),
                ..last.clone()
            }),
            traced: None,
            stores: Vec::new(),
            unknown: Vec::new(),
        };
        let others: BTreeSet<u32> = about
            .hops
            .keys()
            .chain(of_flow.ports.keys())
            .copied()
            .filter(|s| !switches.contains(&Some(*s)))
            .collect();
        if catalog.has_store(store::VALUES, Primitive::KeyWrite) {
            let values = Values { ask: &*self.ask, now };
            report.latency = values.fetch_measured(key).await?;
            for switch in switches {
                let hop = self.measure_hop(flow, switch, &of_flow, &about, &values).await?;
                report.hops.push(hop);
            }
            for switch in others {
                let hop = self.measure_hop(flow, Some(switch), &of_flow, &about, &values).await?;
                report.others.push(hop);
            }
            report.others.retain(|hop| hop.latency.is_some());
        } else {
            report.hops = switches.into_iter().map(|switch| self.bare_hop(switch)).collect();
        }
        self.add_flow_records(flow, catalog, &mut report).await?;
        self.add_counts(flow, catalog, &of_flow, &about, &mut report, now).await?;
        if let Some(most) = report.exporters.first() {
            (report.packets, report.bytes) = (Some(most.packets), Some(most.bytes));
        }
        self.add_dta_answers(key, &mut report).await?;
        report.found = report.path.is_some()
            || report.latency.is_some()
            || report.reports.or(report.packets).or(report.bytes).is_some()
            || !report.drops.is_empty()
            || !report.others.is_empty()
            || report.congested.is_some()
            || report.stores.iter().any(|answer| !answer.is_absent());
        Ok(report)
    }

    /// Adds the exporters that reported the flow.
    async fn add_flow_records(
        &self,
        flow: &Flow,
        catalog: &StoreCatalog,
        report: &mut FlowSummary,
    ) -> Result<(), IntError> {
        if self.at.is_some() || !catalog.has_store(flow_record::STORE, Primitive::Append) {
            return Ok(());
        }
        let question = FlowQuestion {
            filter: FlowFilter::from_flow(flow),
            group: FlowQuestion::parse_group("exporter").unwrap_or_default(),
            ..FlowQuestion::default()
        };
        let (answer, _) =
            self.ask.query_flows(flow_record::STORE, &question, FlowSum::Bytes, MAX_EXPORTERS).await?;
        for row in &answer.rows {
            let Some(address) = row.values.first().map(|value| Ipv6Addr::from_bits(*value)) else { continue };
            let ipv4 = address.to_ipv4_mapped();
            let name = ipv4.and_then(|address| self.names.switch_name(address.to_bits()));
            report.exporters.push(FlowExporter {
                exporter: ipv4.map_or(IpAddr::V6(address), IpAddr::V4),
                exporter_name: name.map(str::to_owned),
                packets: row.sums.packets,
                bytes: row.sums.bytes,
                records: row.sums.flows,
            });
        }
        Ok(())
    }

    /// Finds the path of a flow, and the switches on it.
    async fn find_path(
        &self,
        key: Key,
        catalog: &StoreCatalog,
        events: &FlowEvents,
        now: u64,
    ) -> Result<(Option<FlowRoute>, Vec<Option<u32>>), IntError> {
        let of_event = events.path.and_then(|time| moment::age_in_seconds(time, now));
        let age = |earlier: Option<EarlierEpoch>| {
            of_event.or_else(|| moment::age_in_seconds(earlier?.closed.saturating_mul(1_000_000), now))
        };
        if catalog.has_store(store::PATHS, Primitive::KeyWrite) {
            let answer = self.ask.key_write(store::PATHS, &[key], Policy::First, 0).await?.pop();
            if let Some(answer) = answer
                && let Some(path) = answer.value.and_then(|value| SwitchPath::parse_bytes(&value))
            {
                let known = |switch: &u32| Some(*switch).filter(|switch| *switch != u32::MAX);
                let switches: Vec<_> = path.stored_switches().iter().map(known).collect();
                let complete =
                    usize::from(path.hops) == switches.len() && switches.iter().all(Option::is_some);
                let route = FlowRoute {
                    store: store::PATHS.to_owned(),
                    length: Some(path.hops.into()),
                    complete,
                    looped: path.looped,
                    agreeing: answer.agreeing,
                    copies: answer.copies,
                    age_seconds: age(answer.earlier),
                };
                return Ok((Some(route), switches));
            }
        }
        let int = catalog.has_store(store::POSTCARDS, Primitive::Postcarding).then_some(store::POSTCARDS);
        for name in int.into_iter().chain(self.dta.paths.iter().map(String::as_str)) {
            let Some(answer) = stores::query_path(&*self.ask, name, key).await? else { continue };
            let switches: Vec<Option<u32>> =
                answer.hops.iter().zip(&answer.present).map(|(hop, there)| there.then_some(*hop)).collect();
            let known_switches: Vec<u32> = switches.iter().flatten().copied().collect();
            let route = FlowRoute {
                store: name.to_owned(),
                length: (answer.path_length != 0).then_some(answer.path_length),
                complete: answer.complete,
                looped: known_switches
                    .iter()
                    .enumerate()
                    .any(|(n, switch)| known_switches[..n].contains(switch)),
                agreeing: answer.agreeing,
                copies: answer.copies,
                age_seconds: if name == store::POSTCARDS { age(answer.earlier) } else { None },
            };
            return Ok((Some(route), switches));
        }
        Ok((None, Vec::new()))
    }

    fn bare_hop(&self, switch: Option<u32>) -> Hop {
        let switch_name = switch.and_then(|switch| self.names.switch_name(switch)).map(str::to_owned);
        Hop { switch, switch_name, ..Hop::default() }
    }

    /// Collects what is known about the flow in one switch.
    async fn measure_hop(
        &self,
        flow: &Flow,
        switch: Option<u32>,
        events: &FlowEvents,
        known: &DirectoryFacts,
        values: &Values<'_>,
    ) -> Result<Hop, IntError> {
        let mut hop = self.bare_hop(switch);
        let Some(switch) = switch else { return Ok(hop) };
        hop.latency = values.fetch_measured(telemetry::hop_latency_key(flow, switch)).await?;
        // The latest report wins: the port is in each event of the latency, and in the key directory if only the port
        // changed. Within a batch of reports both have the same time, and the directory is the later one.
        let of_event = events.ports.get(&switch).copied();
        let of_key = known.hops.get(&switch).copied().flatten().filter(|(time, _)| self.has_happened(*time));
        let latest = match (of_event, of_key) {
            (Some(event), Some(key)) if event.0 > key.0 => Some(event),
            (event, key) => key.or(event),
        };
        // Queues and links of a switch that does not report ports have keys without a port.
        let port = latest.and_then(|(_, port)| port);
        (hop.port, hop.port_reported) = (port, latest.is_some());
        hop.port_name = port.and_then(|port| {
            let reported = || known.interfaces.get(&(switch, port)).cloned();
            self.names.port_name(switch, port).map(str::to_owned).or_else(reported)
        });
        hop.utilization = values.fetch_measured(telemetry::link_utilization_key(switch, port)).await?;
        for (_, _, queue) in known.queues.iter().filter(|queue| (queue.0, queue.1) == (switch, port)) {
            let occupancy =
                values.fetch_measured(telemetry::queue_occupancy_key(switch, port, *queue)).await?;
            let congestion =
                values.fetch_measured(telemetry::queue_congestion_key(switch, port, *queue)).await?;
            if occupancy.is_some() || congestion.is_some() {
                hop.queues.push(Queue { queue: *queue, occupancy, congestion });
            }
        }
        Ok(hop)
    }

    async fn add_counts(
        &self,
        flow: &Flow,
        catalog: &StoreCatalog,
        events: &FlowEvents,
        known: &DirectoryFacts,
        report: &mut FlowSummary,
        now: u64,
    ) -> Result<(), IntError> {
        let reasons: Vec<DropReason> = known
            .reasons
            .iter()
            .chain(events.drops.keys())
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let mut counted = vec![None; reasons.len()];
        if catalog.has_store(store::COUNTERS, Primitive::KeyIncrement) {
            let of_flow = [flow.to_key(), telemetry::packets_key(flow), telemetry::bytes_key(flow)];
            let of_drops = reasons.iter().map(|reason| telemetry::flow_drops_key(flow, *reason));
            let keys: Vec<Key> = of_flow.into_iter().chain(of_drops).collect();
            let counts = stores::query_counts(&*self.ask, store::COUNTERS, &keys).await?;
            let there = |n: usize| counts.get(n).copied().filter(|count| *count != 0);
            (report.reports, report.packets, report.bytes) = (there(0), there(1), there(2));
            counted = counts.into_iter().skip(of_flow.len()).map(Some).collect();
            self.count_interfaces(report).await?;
        }
        report.drops = reasons
            .iter()
            .zip(counted)
            .map(|(reason, counted)| {
                let listed = events.drops.get(reason);
                let switches: Vec<u32> = listed.iter().flat_map(|(switches, _)| switches).copied().collect();
                let name = self.names.common_drop_reason(switches.iter().copied(), *reason);
                FlowDropCount {
                    reason: *reason,
                    reason_source: reason.source_name(),
                    reason_name: name.map(str::to_owned),
                    counted,
                    switches,
                    age_seconds: listed.and_then(|(_, time)| moment::age_in_seconds(*time, now)),
                }
            })
            .collect();
        Ok(())
    }

    /// Adds the counts of the interfaces through which the flow leaves exporters.
    async fn count_interfaces(&self, report: &mut FlowSummary) -> Result<(), IntError> {
        const ALL: [InterfaceCounter; InterfaceCounter::ALL.len()] = InterfaceCounter::ALL;
        let exporters: Vec<u32> =
            report.exporters.iter().map(|of| flow_record::switch_from_exporter(of.exporter)).collect();
        let is_exporter = |hop: &&mut Hop| hop.switch.is_some_and(|switch| exporters.contains(&switch));
        let of: Vec<_> = report
            .hops
            .iter_mut()
            .filter(is_exporter)
            .filter_map(|hop| Some((hop.switch?, hop.port?, hop)))
            .collect();
        let key = |switch, port| ALL.map(|counter| telemetry::interface_counter_key(switch, port, counter));
        let keys: Vec<Key> = of.iter().flat_map(|(switch, port, _)| key(*switch, *port)).collect();
        let counts = stores::query_counts(&*self.ask, store::COUNTERS, &keys).await?;
        for ((_, _, hop), counts) in of.into_iter().zip(counts.chunks_exact(ALL.len())) {
            let counted = ALL.iter().zip(counts).filter(|(_, count)| **count != 0);
            hop.counters = counted.map(|(counter, count)| (counter.name(), *count)).collect();
        }
        Ok(())
    }

    async fn add_dta_answers(&self, key: Key, report: &mut FlowSummary) -> Result<(), IntError> {
        let ask = &*self.ask;
        for store in &self.dta.paths {
            let path = stores::query_path(ask, store, key).await?;
            let hops = path.map(|answer| {
                answer.hops.iter().zip(&answer.present).map(|(hop, there)| there.then_some(*hop)).collect()
            });
            report.stores.push(StoreAnswer { path: hops, ..StoreAnswer::for_store(store) });
        }
        for store in &self.dta.counters {
            let count = stores::query_counts(ask, store, &[key]).await?.pop();
            report.stores.push(StoreAnswer {
                counted: count.filter(|count| *count != 0),
                ..StoreAnswer::for_store(store)
            });
        }
        for store in &self.dta.values {
            let value = stores::query_values(ask, store, &[key]).await?.pop().flatten();
            report.stores.push(StoreAnswer {
                value: value.map(|value| to_hex_digits(&value)),
                ..StoreAnswer::for_store(store)
            });
        }
        Ok(())
    }
}

/// Records an entry about one of these flows; `of_hop` is the flow of a hop's latency.
fn record_event(flows: &mut BTreeMap<Key, FlowEvents>, entry: &TelemetryEntry, of_hop: Option<Key>) {
    match *entry {
        TelemetryEntry::Change { metric: Metric::FlowPath, key, time, .. } => {
            if let Some(events) = flows.get_mut(&key) {
                events.path = Some(time);
            }
        }
        TelemetryEntry::Change { metric: Metric::HopLatency, place, time, .. } => {
            let events = of_hop.and_then(|flow| flows.get_mut(&flow));
            if let (Some(events), Some(switch)) = (events, place.switch) {
                events.ports.insert(switch, (time, place.port));
            }
        }
        TelemetryEntry::Drop { key, time, place, reason, .. } => {
            if let Some(events) = flows.get_mut(&key) {
                let (switches, last) = events.drops.entry(reason).or_default();
                switches.extend(place.switch);
                *last = time;
            }
        }
        TelemetryEntry::Congestion { key, time, place, occupancy, latency } => {
            if let Some(events) = flows.get_mut(&key) {
                let packets = events.congested.as_ref().map_or(0, |(_, before)| before.packets) + 1;
                let switch = place.switch;
                let last = Congested { packets, switch, occupancy, latency, age_seconds: None };
                events.congested = Some((time, last));
            }
        }
        TelemetryEntry::Change { .. } | TelemetryEntry::Key { .. } => {}
    }
}

/// What the key directory says about one flow.
#[derive(Default)]
struct DirectoryFacts {
    /// By switch on its path: when the egress port was reported, and the port; `None` = it was not.
    hops: BTreeMap<u32, Option<(u64, Option<u32>)>>,
    /// Reasons for which its packets were dropped.
    reasons: BTreeSet<DropReason>,
    /// Names of interfaces, by switch and port.
    interfaces: BTreeMap<(u32, u32), String>,
    /// Switch, port and queue of all queues.
    queues: BTreeSet<(u32, Option<u32>, Option<u32>)>,
}

impl DirectoryFacts {
    fn from_directory(key: &Key, directory: &mut Directory) -> DirectoryFacts {
        let mut known = DirectoryFacts::default();
        let keys: Vec<Key> = directory.known_keys().collect();
        for of in &keys {
            let Some(meaning) = directory.resolve_key(of) else { continue };
            match meaning {
                Meaning::Hop { flow_key, switch, .. } if flow_key == *key => {
                    let leaves = directory.egress_port(of);
                    if let Some((_, Some(port))) = leaves
                        && let Some(name) = directory.interface(switch, port)
                    {
                        known.interfaces.insert((switch, port), name);
                    }
                    known.hops.insert(switch, leaves);
                }
                Meaning::FlowDrops { flow_key, reason, .. } if flow_key == *key => {
                    known.reasons.insert(reason);
                }
                Meaning::Queue { switch, port, queue } => {
                    known.queues.insert((switch, port, queue));
                }
                _ => {}
            }
        }
        known
    }
}

struct Values<'a> {
    ask: &'a dyn Ask,
    now: u64,
}

impl Values<'_> {
    async fn fetch_measured(&self, key: Key) -> Result<Option<Measured>, IntError> {
        let value = stores::query_values(self.ask, store::VALUES, &[key]).await?.pop().flatten();
        Ok(value.and_then(|value| TimedValue::parse_bytes(&value)).map(|TimedValue { value, time }| {
            Measured { value, time, age_seconds: moment::age_in_seconds(time, self.now) }
        }))
    }
}

/// Lists what is unknown, and why.
fn list_unknowns(
    report: &mut FlowSummary,
    of_collector: &StoreCatalog,
    catalog: &StoreCatalog,
    missed: &[Lost],
) {
    let mut all = std::mem::take(&mut report.unknown);
    let stores = [
        (store::PATHS, Primitive::KeyWrite, "paths"),
        (store::VALUES, Primitive::KeyWrite, "latencies, queues and links"),
        (store::EVENTS, Primitive::Append, "ports, reasons of drops and the age of the path"),
        (store::COUNTERS, Primitive::KeyIncrement, "reports, packets, bytes and drops"),
    ];
    for (name, primitive, what) in stores {
        if of_collector.has_int_stores() && !of_collector.has_store(name, primitive) {
            all.push(format!("The collector has no store {name}, which has {what}."));
        }
    }
    if report.found {
        unknown_of_found(report, catalog, missed, &mut all);
    }
    report.unknown = all;
}

/// As [`list_unknowns`], for a flow about which something is known.
fn unknown_of_found(report: &FlowSummary, catalog: &StoreCatalog, missed: &[Lost], all: &mut Vec<String>) {
    if report.path.is_none() {
        all.push("No path of this flow was reported lately, or other flows have overwritten it.".into());
    }
    if let Some(route) = &report.path {
        if !route.complete {
            let known = report.hops.iter().filter(|hop| hop.switch.is_some()).count();
            let length = route.length.map_or("unknown".to_owned(), |length| length.to_string());
            all.push(format!("Known hops of the path: {known} of {length}."));
        }
        if route.age_seconds.is_none() && route.store.starts_with(telemetry::STORE_PREFIX) {
            all.push("Age of the path: no event about it with a time since 1970 is in the ring.".into());
        }
    }
    if catalog.has_store(store::EVENTS, Primitive::Append) {
        without_port(report, missed, all);
    }
    let of_switches = report.path.as_ref().is_some_and(|route| route.store == store::POSTCARDS);
    if of_switches && report.latency.is_none() {
        all.push(
            "Latency through all hops: the switches of this flow each report for themselves (INT-XD, INT-MX), and none \
             of them sees all hops."
                .into(),
        );
    }
    if report.packets.is_none() && catalog.has_store(store::COUNTERS, Primitive::KeyIncrement) {
        all.push("Packets and bytes are known with per_packet = true and from flow records.".into());
    }
    for (of, missed) in (0..).zip(missed) {
        if missed.overwritten > 0 {
            all.push(format!(
                "List {of} ({}) no longer has its first {}: what only they reported is unknown.",
                list::list_name(of),
                format_count(missed.overwritten, "batch", "batches")
            ));
        }
    }
}

/// Lists the hops whose egress port is unknown, and why.
fn without_port(report: &FlowSummary, missed: &[Lost], all: &mut Vec<String>) {
    let of = |is: &dyn Fn(&Hop) -> bool| {
        let hops = report.hops.iter().filter(|hop| hop.port.is_none() && is(hop));
        hops.filter_map(|hop| hop.switch)
            .map(|switch| SwitchNumber(switch).to_string())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let is_silent = |hop: &Hop| hop.queues.is_empty() && hop.utilization.is_none();
    let not_said = of(&|hop| hop.port_reported || !is_silent(hop));
    if !not_said.is_empty() {
        all.push(format!(
            "Ports at switch {not_said}: not in the reports. Queues and links are those reported \
             without a port."
        ));
    }
    let not_reported = of(&|hop| !hop.port_reported && is_silent(hop));
    if not_reported.is_empty() {
        return;
    }
    let lost = |list: u32| missed.get(list as usize).is_some_and(|missed| missed.lost_batches() > 0);
    all.push(match lost(list::CHANGES) || lost(list::KEYS) {
        true => format!(
            "Ports, queues and links at switch {not_reported}: the rings of {} no longer hold them. \
             `dta-collector stores` says whether they are too small.",
            store::EVENTS
        ),
        false => format!(
            "Ports, queues and links at switch {not_reported}: no report of this flow has its egress port."
        ),
    });
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use dta_proto::control::{CounterAnswer, PathAnswer};
    use dta_proto::flow_record::{FlowRecord, to_mapped_address};
    use dta_proto::store::StoreKind;
    use dta_proto::telemetry::{Location, Why};
    use dta_proto::trace::{self, PacketSighting, TraceEntry};

    use super::*;
    use crate::test_collector::TestCollector;

    /// INT-XD and INT-MX: a path of postcards, and what each switch reported on its own.
    #[tokio::test]
    async fn a_flow_whose_switches_each_report_for_themselves_has_no_latency_and_is_shown_why() {
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap();
        let paths = StoreKind::Postcarding { slots: 64, hops: 6, redundancy: 1 };
        let values =
            StoreKind::KeyWrite { slots: 64, value_len: 12, redundancy: 2, keys: Default::default() };
        let mut fake = TestCollector::with_stores([(store::POSTCARDS, paths), (store::VALUES, values)]);
        let path = PathAnswer {
            found: true,
            hops: vec![4, 5],
            present: vec![true, true],
            path_length: 2,
            complete: true,
            ..PathAnswer::default()
        };
        fake.put_answer(store::POSTCARDS, flow.to_key(), path);
        let value = |value| TimedValue { value, time: 7 }.to_bytes();
        fake.put_value(store::VALUES, telemetry::hop_latency_key(&flow, 4), &value(400));
        let about = async |fake: TestCollector| {
            let query =
                FlowQuery { ask: Arc::new(fake), dta: DtaStores::default(), names: Arc::default(), at: None };
            query.summarize_flows(&[flow]).await.unwrap().remove(0)
        };
        let of = about(fake).await;
        let latency = |hop: &Hop| (hop.switch, hop.latency.map(|latency| latency.value));
        let hops: Vec<_> = of.hops.iter().map(latency).collect();
        assert_eq!((hops, of.latency), (vec![(Some(4), Some(400)), (Some(5), None)], None));
        let why =
            "Latency through all hops: the switches of this flow each report for themselves (INT-XD, INT-MX)";
        assert!(of.unknown.iter().any(|reason| reason.starts_with(why)), "{:?}", of.unknown);
    }

    #[tokio::test]
    async fn what_hosts_traced_of_a_flow_is_named() {
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap();
        let other = Flow { sport: 7, ..flow };
        let events = StoreKind::Append { lists: 4, ring: 16, batch_len: 128, entry_len: 60, notify: false };
        let mut fake = TestCollector::with_stores([(trace_store::EVENTS, events)]);
        // The second host sees one of the first host's packets again.
        let packets = [(1, 11), (1, 12), (2, 12)].map(|(host, digest)| {
            let seen = PacketSighting { flow: flow.to_key(), digest, host, ..PacketSighting::default() };
            TraceEntry::Packet { seen, points: 1, left: digest }.to_bytes().to_vec()
        });
        fake.add(trace_store::EVENTS, trace::list::PACKETS, packets);
        let query =
            FlowQuery { ask: Arc::new(fake), dta: DtaStores::default(), names: Arc::default(), at: None };
        let reports = query.summarize_flows(&[flow, other]).await.unwrap();
        let known: Vec<_> = reports.iter().map(|report| (report.found, report.traced)).collect();
        assert_eq!(known, [(true, Some(2)), (false, None)]);
        let drawn = super::super::draw::flow_lines(&reports[0]).join("\n");
        let advice = "2 packets by hosts: dta-collector trace '10.0.0.1:5000->10.0.0.2:5000/udp'";
        assert!(drawn.split_whitespace().collect::<Vec<_>>().join(" ").contains(advice), "{drawn}");
    }

    #[tokio::test]
    async fn an_exporter_has_the_counters_of_the_interface_by_which_the_flow_leaves_it() {
        let flow: Flow = "10.0.0.1:5000->10.0.0.2:5000/udp".parse().unwrap();
        let paths = StoreKind::Postcarding { slots: 64, hops: 6, redundancy: 1 };
        let values =
            StoreKind::KeyWrite { slots: 64, value_len: 12, redundancy: 2, keys: Default::default() };
        let counters = StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 1 };
        let events = StoreKind::Append { lists: 4, ring: 16, batch_len: 128, entry_len: 60, notify: false };
        let entry_len = flow_record::ENTRY_LEN as u8;
        let records = StoreKind::Append { lists: 1, ring: 16, batch_len: 1024, entry_len, notify: false };
        let stores = [
            (store::POSTCARDS, paths),
            (store::VALUES, values),
            (store::COUNTERS, counters),
            (store::EVENTS, events),
            (flow_record::STORE, records),
        ];
        let mut fake = TestCollector::with_stores(stores);
        let (hops, present) = (vec![4, 5], vec![true, true]);
        let path = PathAnswer { found: true, hops, present, path_length: 2, ..PathAnswer::default() };
        fake.put_answer(store::POSTCARDS, flow.to_key(), path);
        for switch in [4, 5] {
            let place = Location { switch: Some(switch), port: Some(3), queue: None };
            let (key, metric, why) =
                (telemetry::hop_latency_key(&flow, switch), Metric::HopLatency, Why::New);
            let entry =
                TelemetryEntry::Change { time: 7, key, metric, why, old: 0, new: 1, place, path: None };
            fake.add(store::EVENTS, list::CHANGES, [entry.to_bytes().to_vec()]);
            for (counter, value) in [(InterfaceCounter::InErrors, 2), (InterfaceCounter::OutOctets, 900)] {
                let key = telemetry::interface_counter_key(switch, 3, counter);
                fake.put_answer(store::COUNTERS, key, CounterAnswer { value, ..CounterAnswer::default() });
            }
        }
        // The other switch sends no flow records.
        let record = FlowRecord {
            exporter: Ipv4Addr::from_bits(5).to_ipv6_mapped(),
            src: to_mapped_address(flow.src),
            dst: to_mapped_address(flow.dst),
            src_port: flow.sport,
            dst_port: flow.dport,
            protocol: flow.proto,
            bytes: 1500,
            packets: 3,
            ..FlowRecord::EMPTY
        };
        fake.put_flow_records(&[record, record]);
        let (ask, dta) = (Arc::new(fake), DtaStores::default());
        let query = FlowQuery { ask, dta, names: Arc::default(), at: None };
        let of = query.summarize_flows(&[flow]).await.unwrap().remove(0);
        let counted: Vec<_> = of.hops.iter().map(|hop| (hop.port, hop.counters.clone())).collect();
        let there = BTreeMap::from([("in-errors", 2), ("out-octets", 900)]);
        assert_eq!(counted, [(Some(3), BTreeMap::new()), (Some(3), there)]);
        let [exporter] = &of.exporters[..] else { panic!("{:?}", of.exporters) };
        assert_eq!((exporter.exporter, exporter.records), ([0, 0, 0, 5].into(), 2));
        assert_eq!((of.packets, of.bytes), (Some(6), Some(3000)));
    }
}

//! The network as reported paths connect it: hosts, switches, exporters of flow records, and the links between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use dta_export::directory::Directory;
use dta_export::names::Names;
use dta_proto::flow_query::{FlowQuestion, FlowSum, flow_from_values};
use dta_proto::flow_record;
use dta_proto::key::{Flow, Key};
use dta_proto::telemetry::{self, Metric, SwitchNumber, SwitchPath, TelemetryEntry, TimedValue, list, store};
use dta_proto::wire::dta::Primitive;
use dta_rpc::{Ask, AskKeys, Policy};
use serde::Serialize;

use super::event::known_switches;
use super::top::{Criteria, Ranking};
use super::{IntError, moment, stores};
use crate::int::StoreCatalog;

/// A part of the network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NetworkMap {
    /// The busiest nodes, those with the most flows and drops first.
    pub nodes: Vec<MapNode>,
    /// Links between these nodes, those with the most flows first.
    pub links: Vec<MapLink>,
    /// How many nodes and links there are in total.
    pub node_count: u64,
    pub link_count: u64,
    /// The store that the flows come from.
    pub keys: String,
    /// How many flows were asked about: those reported last.
    pub flows: u64,
    /// How many of these have a path.
    pub with_path: u64,
    /// Flows without a path that exporters recorded. If several did, the order in which the flow passes them is
    /// unknown.
    pub recorded: u64,
    /// Batches of events that could not be read: their drops and ports are missing.
    pub missed_batches: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MapNode {
    /// `host`, `switch` or `exporter`, a colon, and its address or number.
    pub id: String,
    pub kind: &'static str,
    /// From the file of names; for a host, its network.
    pub name: Option<String>,
    /// Number of links to the nearest host; `None` if none is connected.
    pub tier: Option<u32>,
    pub flows: u64,
    /// Dropped packets, from the events in the ring.
    pub drops: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MapLink {
    pub from: String,
    pub to: String,
    pub flows: u64,
    /// Bytes of these flows; `None` if none were counted.
    pub bytes: Option<u64>,
    /// Egress ports of `from`, by name or number.
    pub ports: Vec<String>,
    /// The highest utilization of these ports, as the switch reports it, and its age.
    pub utilization: Option<u32>,
    pub utilization_age_seconds: Option<f64>,
    /// Packets that these ports dropped, from the events in the ring.
    pub drops: u64,
}

/// Which part of the network to show.
#[derive(Clone, Debug, Default)]
pub struct MapCriteria {
    /// Most flows whose paths are queried.
    pub flows: usize,
    /// Most nodes.
    pub nodes: usize,
    /// Only the node with this id, or those with this in their id or name, and what is one link away.
    pub around: Option<String>,
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MapEnd {
    Switch(u32),
    Host(IpAddr),
}

impl MapEnd {
    fn kind_name(self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Switch(number) => SwitchNumber(number).role_name(),
        }
    }

    fn id(self) -> String {
        match self {
            Self::Host(address) => format!("{}:{address}", self.kind_name()),
            Self::Switch(number) => format!("{}:{}", self.kind_name(), SwitchNumber(number)),
        }
    }
}

/// A switch and one of its egress ports; `None` if the switch does not report ports.
type Port = (u32, Option<u32>);

#[derive(Default)]
struct NodeTally {
    flows: u64,
    drops: u64,
    name: Option<String>,
    tier: Option<u32>,
}

#[derive(Default)]
struct LinkTally {
    flows: u64,
    bytes: u64,
    ports: BTreeSet<Option<u32>>,
}

#[derive(Default)]
struct Network {
    nodes: BTreeMap<MapEnd, NodeTally>,
    links: BTreeMap<(MapEnd, MapEnd), LinkTally>,
}

/// What the events say about places.
#[derive(Default)]
struct PlaceEvents {
    drops: BTreeMap<Port, u64>,
    /// By the key of a hop's latency: when the flow left the hop, and by which port.
    egress: BTreeMap<Key, (u64, Option<u32>)>,
    missed_batches: u64,
}

/// The network, from the paths of the flows that were reported last.
///
/// # Errors
/// The collector does not answer, or has no store of flows.
pub async fn map_network(
    ask: &Arc<dyn Ask>,
    names: &Names,
    criteria: &MapCriteria,
) -> Result<NetworkMap, IntError> {
    let catalog = StoreCatalog::fetch_from(&**ask).await?;
    let mut ranking = Ranking::new(ask.clone(), Criteria::default());
    let has_records = catalog.has_store(flow_record::STORE, Primitive::Append);
    let (keys, flows) = match ranking.list_recent_flows(&catalog, criteria.flows).await {
        Err(IntError::NoStore(_)) if has_records => (flow_record::STORE.to_owned(), Vec::new()),
        listed => listed?,
    };
    let paths = fetch_paths(&**ask, &catalog, &flows).await?;
    let with_path: Vec<(&Flow, FlowHops)> =
        flows.iter().zip(paths).filter_map(|(flow, path)| Some((flow, path?))).collect();
    let events = read_place_events(ask, &catalog).await?;
    let bytes = match catalog.has_store(store::COUNTERS, Primitive::KeyIncrement) {
        true => {
            let keys: Vec<Key> = with_path.iter().map(|(flow, _)| telemetry::bytes_key(flow)).collect();
            stores::query_counts(&**ask, store::COUNTERS, &keys).await?
        }
        false => vec![0; with_path.len()],
    };
    let mut network = Network::default();
    for ((flow, path), bytes) in with_path.iter().zip(bytes) {
        network.add_flow(flow, std::slice::from_ref(path), bytes, &events, ranking.directory(), names);
    }
    let mut recorded =
        if has_records { fetch_recorded_flows(&**ask, criteria.flows).await? } else { BTreeMap::new() };
    with_path.iter().for_each(|(flow, _)| drop(recorded.remove(&flow.to_key())));
    for RecordedFlow { flow, exporters, bytes } in recorded.values() {
        network.add_flow(flow, exporters, *bytes, &events, ranking.directory(), names);
    }
    for ((switch, _), drops) in &events.drops {
        network.nodes.entry(MapEnd::Switch(*switch)).or_default().drops += drops;
    }
    for (end, node) in &mut network.nodes {
        if let MapEnd::Switch(number) = end {
            node.name = names.switch_name(*number).map(str::to_owned);
        }
    }
    network.find_tiers();
    let chosen = network.choose_nodes(criteria);
    let links =
        network.describe_links(&**ask, &catalog, &chosen, &events, ranking.directory(), names).await?;
    let node = |end: &MapEnd| {
        let NodeTally { flows, drops, name, tier } = &network.nodes[end];
        let (flows, drops, tier) = (*flows, *drops, *tier);
        MapNode { id: end.id(), kind: end.kind_name(), name: name.clone(), tier, flows, drops }
    };
    Ok(NetworkMap {
        nodes: chosen.iter().map(node).collect(),
        links,
        node_count: network.nodes.len() as u64,
        link_count: network.links.len() as u64,
        keys,
        flows: flows.len() as u64,
        with_path: with_path.len() as u64,
        recorded: recorded.len() as u64,
        missed_batches: events.missed_batches,
    })
}

/// The switches that a flow passes, with `None` for unknown ones, and whether these are all.
struct FlowHops {
    switches: Vec<Option<u32>>,
    is_whole: bool,
}

/// The path of each flow, from the first store that has it.
async fn fetch_paths(
    ask: &dyn Ask,
    catalog: &StoreCatalog,
    flows: &[Flow],
) -> Result<Vec<Option<FlowHops>>, IntError> {
    let mut paths: Vec<Option<FlowHops>> = flows.iter().map(|_| None).collect();
    if catalog.has_store(store::PATHS, Primitive::KeyWrite) {
        let keys: Vec<Key> = flows.iter().map(Flow::to_key).collect();
        let answers = ask.key_write(store::PATHS, &keys, Policy::First, 0).await?;
        for (path, answer) in paths.iter_mut().zip(answers) {
            let known = answer.value.and_then(|value| SwitchPath::parse_bytes(&value));
            *path = known.map(|known| {
                let switches = known_switches(&known);
                FlowHops { is_whole: usize::from(known.hops) == switches.len(), switches }
            });
        }
    }
    let int =
        catalog.has_store(store::POSTCARDS, Primitive::Postcarding).then(|| store::POSTCARDS.to_owned());
    for name in int.into_iter().chain(catalog.dta_stores().paths) {
        let missing: Vec<usize> = (0..flows.len()).filter(|place| paths[*place].is_none()).collect();
        let keys: Vec<Key> = missing.iter().map(|place| flows[*place].to_key()).collect();
        for (place, answer) in missing.into_iter().zip(ask.query_paths(&name, &keys).await?) {
            if answer.found {
                let hops = answer.hops.iter().zip(&answer.present);
                let switches = hops.map(|(hop, is_known)| is_known.then_some(*hop)).collect();
                paths[place] = Some(FlowHops { switches, is_whole: answer.complete });
            }
        }
    }
    Ok(paths)
}

/// A flow from records, with each exporter as a separate piece of its path.
struct RecordedFlow {
    flow: Flow,
    exporters: Vec<FlowHops>,
    /// As counted by the exporter that counted most.
    bytes: u64,
}

/// The largest flows in the records of the last hour.
async fn fetch_recorded_flows(ask: &dyn Ask, most: usize) -> Result<BTreeMap<Key, RecordedFlow>, IntError> {
    let question = FlowQuestion {
        group: FlowQuestion::parse_group("exporter,flow").unwrap_or_default(),
        since: moment::now().saturating_sub(3_600_000_000_000),
        ..FlowQuestion::default()
    };
    let (answer, _) = ask.query_flows(flow_record::STORE, &question, FlowSum::Bytes, most).await?;
    let mut flows: BTreeMap<Key, RecordedFlow> = BTreeMap::new();
    for row in answer.rows {
        let Some((exporter, values)) = row.values.split_first() else { continue };
        let Some(flow) = flow_from_values(values) else { continue };
        let new = || RecordedFlow { flow, exporters: Vec::new(), bytes: 0 };
        let recorded = flows.entry(flow.to_key()).or_insert_with(new);
        let switch = flow_record::switch_from_exporter(Ipv6Addr::from_bits(*exporter).into());
        recorded.exporters.push(FlowHops { switches: vec![Some(switch)], is_whole: true });
        recorded.bytes = recorded.bytes.max(row.sums.bytes);
    }
    Ok(flows)
}

async fn read_place_events(ask: &Arc<dyn Ask>, catalog: &StoreCatalog) -> Result<PlaceEvents, IntError> {
    let mut events = PlaceEvents::default();
    if !catalog.has_store(store::EVENTS, Primitive::Append) {
        return Ok(events);
    }
    super::read(ask, store::EVENTS, &[list::CHANGES, list::DROPS], |batch| {
        events.missed_batches += batch.lost.lost_batches();
        for entry in &batch.entries {
            match *entry {
                TelemetryEntry::Change { metric: Metric::HopLatency, key, time, place, .. } => {
                    events.egress.insert(key, (time, place.port));
                }
                TelemetryEntry::Drop { place, .. } => {
                    if let Some(switch) = place.switch {
                        *events.drops.entry((switch, place.port)).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
    })
    .await?;
    Ok(events)
}

impl Network {
    fn add_flow(
        &mut self,
        flow: &Flow,
        routes: &[FlowHops],
        bytes: u64,
        events: &PlaceEvents,
        directory: &Directory,
        names: &Names,
    ) {
        let ends = names.flow_networks(Some(*flow));
        let hosts = [(flow.src, ends.source_network), (flow.dst, ends.destination_network)];
        for (address, network) in hosts {
            let node = self.nodes.entry(MapEnd::Host(address)).or_default();
            node.name = node.name.take().or(network);
        }
        let mut passed = BTreeSet::new();
        for route in routes {
            // In an incomplete path, what follows the last known switch is unknown.
            let last = route.is_whole.then_some(MapEnd::Host(flow.dst));
            let switches = route.switches.iter().map(|switch| switch.map(MapEnd::Switch));
            let ends: Vec<Option<MapEnd>> =
                [Some(MapEnd::Host(flow.src))].into_iter().chain(switches).chain([last]).collect();
            passed.extend(ends.iter().flatten().copied());
            for pair in ends.windows(2) {
                let &[Some(from), Some(to)] = pair else { continue };
                let link = self.links.entry((from, to)).or_default();
                link.flows += 1;
                link.bytes += bytes;
                if let MapEnd::Switch(switch) = from {
                    let hop = telemetry::hop_latency_key(flow, switch);
                    let reports = [events.egress.get(&hop).copied(), directory.egress_port(&hop)];
                    link.ports.insert(reports.into_iter().flatten().max().and_then(|(_, port)| port));
                }
            }
        }
        for end in passed {
            self.nodes.entry(end).or_default().flows += 1;
        }
    }

    /// Finds how many links away from the nearest host each node is.
    fn find_tiers(&mut self) {
        let mut neighbours: BTreeMap<MapEnd, Vec<MapEnd>> = BTreeMap::new();
        for (from, to) in self.links.keys() {
            neighbours.entry(*from).or_default().push(*to);
            neighbours.entry(*to).or_default().push(*from);
        }
        let mut next: VecDeque<(MapEnd, u32)> =
            self.nodes.keys().filter(|end| matches!(end, MapEnd::Host(_))).map(|end| (*end, 0)).collect();
        while let Some((end, tier)) = next.pop_front() {
            let Some(node) = self.nodes.get_mut(&end).filter(|node| node.tier.is_none()) else { continue };
            node.tier = Some(tier);
            next.extend(neighbours.get(&end).into_iter().flatten().map(|other| (*other, tier + 1)));
        }
    }

    /// The nodes asked for, busiest first.
    fn choose_nodes(&self, criteria: &MapCriteria) -> Vec<MapEnd> {
        let mut first = BTreeSet::new();
        if let Some(around) = &criteria.around {
            let wanted = around.to_lowercase();
            let is_named = |end: &MapEnd| end.id() == *around;
            let has_words = |(end, node): (&MapEnd, &NodeTally)| {
                let name = node.name.as_deref().unwrap_or_default().to_lowercase();
                (end.id().contains(&wanted) || name.contains(&wanted)).then_some(*end)
            };
            match self.nodes.keys().find(|end| is_named(end)) {
                Some(end) => drop(first.insert(*end)),
                None => first.extend(self.nodes.iter().filter_map(has_words)),
            }
        }
        let mut all: BTreeSet<MapEnd> = match criteria.around {
            Some(_) => first.clone(),
            None => self.nodes.keys().copied().collect(),
        };
        for (from, to) in self.links.keys() {
            if first.contains(from) || first.contains(to) {
                all.extend([*from, *to]);
            }
        }
        let mut chosen: Vec<MapEnd> = all.into_iter().collect();
        // Equally busy nodes keep their order, switches before hosts.
        chosen.sort_by_key(|end| {
            let node = &self.nodes[end];
            (!first.contains(end), std::cmp::Reverse(node.flows + node.drops))
        });
        chosen.truncate(criteria.nodes);
        chosen
    }

    async fn describe_links(
        &self,
        ask: &dyn Ask,
        catalog: &StoreCatalog,
        chosen: &[MapEnd],
        events: &PlaceEvents,
        directory: &Directory,
        names: &Names,
    ) -> Result<Vec<MapLink>, IntError> {
        let chosen: BTreeSet<&MapEnd> = chosen.iter().collect();
        let mut links: Vec<(&(MapEnd, MapEnd), &LinkTally)> = self
            .links
            .iter()
            .filter(|((from, to), _)| chosen.contains(from) && chosen.contains(to))
            .collect();
        links.sort_by_key(|(_, link)| std::cmp::Reverse(link.flows));
        let of_link = |&(&(from, _), link): &(&(MapEnd, MapEnd), &LinkTally)| -> Vec<Port> {
            let MapEnd::Switch(switch) = from else { return Vec::new() };
            link.ports.iter().map(|port| (switch, *port)).collect()
        };
        let ports: Vec<Port> = links.iter().flat_map(of_link).collect();
        let mut values = Vec::new();
        if catalog.has_store(store::VALUES, Primitive::KeyWrite) {
            let key = |(switch, port): &Port| telemetry::link_utilization_key(*switch, *port);
            let keys: Vec<Key> = ports.iter().map(key).collect();
            values = stores::query_values(ask, store::VALUES, &keys).await?;
        }
        let measured: BTreeMap<Port, TimedValue> = ports
            .into_iter()
            .zip(values)
            .filter_map(|(port, value)| Some((port, TimedValue::parse_bytes(&value?)?)))
            .collect();
        let port_name = |(switch, port): &Port| {
            let port = (*port)?;
            let name = names.port_name(*switch, port).map(str::to_owned);
            Some(name.or_else(|| directory.interface(*switch, port)).unwrap_or_else(|| port.to_string()))
        };
        let now = moment::now();
        let describe = |link: &(&(MapEnd, MapEnd), &LinkTally)| {
            let (ports, &((from, to), tally)) = (of_link(link), link);
            let busiest = ports.iter().filter_map(|port| measured.get(port)).max_by_key(|value| value.value);
            MapLink {
                from: from.id(),
                to: to.id(),
                flows: tally.flows,
                bytes: (tally.bytes > 0).then_some(tally.bytes),
                utilization: busiest.map(|value| value.value),
                utilization_age_seconds: busiest.and_then(|value| moment::age_in_seconds(value.time, now)),
                // Drops at an unknown port count for the switch only.
                drops: ports
                    .iter()
                    .filter(|(_, port)| port.is_some())
                    .filter_map(|port| events.drops.get(port))
                    .sum(),
                ports: ports.iter().filter_map(port_name).collect(),
            }
        };
        Ok(links.iter().map(describe).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::Path;

    use dta_proto::control::CounterAnswer;
    use dta_proto::drop_reason::DropReason;
    use dta_proto::flow_record::{FlowRecord, to_mapped_address};
    use dta_proto::store::StoreKind;
    use dta_proto::telemetry::{Location, Means, Why};

    use super::*;
    use crate::test_collector::TestCollector;

    fn udp_flow(source: u8, destination: u8) -> Flow {
        format!("10.0.0.{source}:1->10.0.0.{destination}:2/udp").parse().unwrap()
    }

    /// Hosts 1 and 2 below switches 1 and 2, with switch 9 above them; only the first switch of a third flow is known.
    fn collector() -> Arc<dyn Ask> {
        let values =
            StoreKind::KeyWrite { slots: 64, value_len: 12, redundancy: 2, keys: Default::default() };
        let counters = StoreKind::KeyIncrement { slots: 64, redundancy: 2, replicas: 1 };
        let events = StoreKind::Append { lists: 4, ring: 16, batch_len: 128, entry_len: 60, notify: false };
        let stores = [
            (store::PATHS, values.clone()),
            (store::VALUES, values),
            (store::COUNTERS, counters),
            (store::EVENTS, events),
        ];
        let mut fake = TestCollector::with_stores(stores);
        let flows = [udp_flow(1, 2), udp_flow(2, 1), udp_flow(1, 3)];
        let paths = [&[1, 9, 2][..], &[2, 9, 1], &[1, u32::MAX]];
        for (flow, switches) in flows.iter().zip(paths) {
            let key = flow.to_key();
            fake.put_value(store::PATHS, key, &SwitchPath::from_switches(switches).to_bytes());
            let entry = TelemetryEntry::Key { key, means: Means::Itself };
            fake.add(store::EVENTS, list::KEYS, [entry.to_bytes().to_vec()]);
            let bytes = CounterAnswer { value: 100, ..CounterAnswer::default() };
            fake.put_answer(store::COUNTERS, telemetry::bytes_key(flow), bytes);
        }
        let place = Location { switch: Some(1), port: Some(7), queue: None };
        let (key, metric, why) = (telemetry::hop_latency_key(&flows[0], 1), Metric::HopLatency, Why::New);
        let entry = TelemetryEntry::Change { time: 7, key, metric, why, old: 0, new: 1, place, path: None };
        fake.add(store::EVENTS, list::CHANGES, [entry.to_bytes().to_vec()]);
        let used = TimedValue { value: 80, time: 7 }.to_bytes();
        fake.put_value(store::VALUES, telemetry::link_utilization_key(1, Some(7)), &used);
        for switch in [1, 1, 5] {
            let place = Location { switch: Some(switch), ..place };
            let (key, reason) = (flows[0].to_key(), DropReason::from_int(71));
            let entry = TelemetryEntry::Drop { time: 8, key, place, ingress_port: None, reason };
            fake.add(store::EVENTS, list::DROPS, [entry.to_bytes().to_vec()]);
        }
        Arc::new(fake)
    }

    async fn map_around(around: Option<&str>, nodes: usize) -> NetworkMap {
        let names = Names::parse("[switch.9]\nname = \"Spine1\"\n", Path::new("x")).unwrap();
        let criteria = MapCriteria { flows: 100, nodes, around: around.map(str::to_owned) };
        map_network(&collector(), &names, &criteria).await.unwrap()
    }

    #[tokio::test]
    async fn paths_make_links_with_use_and_drops_in_place() {
        let map = map_around(None, 100).await;
        assert_eq!((map.flows, map.with_path, map.keys.as_str()), (3, 3, store::EVENTS));
        let nodes: Vec<_> =
            map.nodes.iter().map(|node| (&*node.id, node.flows, node.drops, node.tier)).collect();
        let expected = [
            ("switch:1", 3, 2, Some(1)),
            ("host:10.0.0.1", 3, 0, Some(0)),
            ("switch:2", 2, 0, Some(1)),
            ("switch:9", 2, 0, Some(2)),
            ("host:10.0.0.2", 2, 0, Some(0)),
            // It dropped packets, but is on no path.
            ("switch:5", 0, 1, None),
            // The third flow ends there, by an unknown way.
            ("host:10.0.0.3", 1, 0, Some(0)),
        ];
        assert_eq!(nodes, expected);
        let first = &map.links[0];
        assert_eq!((&*first.from, &*first.to, first.flows), ("host:10.0.0.1", "switch:1", 2));
        let link =
            map.links.iter().find(|link| (&*link.from, &*link.to) == ("switch:1", "switch:9")).unwrap();
        let expected = MapLink {
            from: "switch:1".into(),
            to: "switch:9".into(),
            flows: 1,
            bytes: Some(100),
            ports: vec!["7".into()],
            utilization: Some(80),
            utilization_age_seconds: None,
            drops: 2,
        };
        assert_eq!((link, map.link_count), (&expected, 8));
    }

    #[tokio::test]
    async fn exporters_are_between_the_ends_of_the_flows_that_they_recorded() {
        let entry_len = flow_record::ENTRY_LEN as u8;
        let records = StoreKind::Append { lists: 1, ring: 16, batch_len: 1024, entry_len, notify: false };
        let mut fake = TestCollector::with_stores([(flow_record::STORE, records)]);
        let record = |exporter: u8, bytes| FlowRecord {
            exporter: Ipv4Addr::new(192, 0, 2, exporter).to_ipv6_mapped(),
            received: moment::now(),
            src: to_mapped_address([10, 0, 0, 1].into()),
            dst: to_mapped_address([10, 0, 0, 2].into()),
            protocol: 6,
            bytes,
            packets: 1,
            ..FlowRecord::EMPTY
        };
        fake.put_flow_records(&[record(1, 50), record(1, 50), record(2, 40)]);
        let ask: Arc<dyn Ask> = Arc::new(fake);
        let criteria = MapCriteria { flows: 100, nodes: 100, around: None };
        let map = map_network(&ask, &Names::default(), &criteria).await.unwrap();
        let nodes: Vec<_> = map.nodes.iter().map(|node| (&*node.id, node.flows)).collect();
        let expected = [
            ("exporter:192.0.2.1", 1),
            ("exporter:192.0.2.2", 1),
            ("host:10.0.0.1", 1),
            ("host:10.0.0.2", 1),
        ];
        assert_eq!((nodes, map.recorded, map.links.len()), (expected.to_vec(), 1, 4));
        assert!(map.links.iter().all(|link| link.bytes == Some(100)), "{:?}", map.links);
    }

    #[tokio::test]
    async fn a_part_is_chosen_by_id_or_name_and_by_the_busiest() {
        let ids = |map: &NetworkMap| map.nodes.iter().map(|node| node.id.clone()).collect::<Vec<_>>();
        let spine = ["switch:9", "switch:1", "switch:2"];
        assert_eq!(ids(&map_around(Some("switch:9"), 100).await), spine);
        let found = map_around(Some("spine"), 2).await;
        assert_eq!(
            (ids(&found), found.links.len(), found.node_count),
            (spine[..2].iter().map(|name| (*name).to_owned()).collect(), 2, 7)
        );
        assert_eq!(ids(&map_around(Some("nothing"), 100).await), [""; 0]);
        assert_eq!(ids(&map_around(None, 1).await), ["switch:1"]);
    }
}

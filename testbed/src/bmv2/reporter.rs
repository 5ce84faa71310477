//! What the reporter does (`docs/switches.md`), as the configuration of its control plane.

use std::net::Ipv4Addr;

use dta_proto::program::Mac;

use super::truth::{ACL_DENY, CapturedTraffic, DENIED_PORT, Station, switch_id};

/// Where it is, and what is at its ports.
#[derive(Clone, Debug)]
pub(super) struct Wiring {
    /// Its number among all reporters, from 0.
    pub(super) number: usize,
    /// The switch: `type`, `control`, `device` and `mac`, as `[switch.NAME]` of dta-translator has them.
    pub(super) switch: toml::Table,
    pub(super) source: Ipv4Addr,
    /// The ports of both hosts.
    pub(super) hosts: [u16; 2],
    /// The port that leads to the translator, and the translator's addresses.
    pub(super) port: u16,
    pub(super) translator: Ipv4Addr,
    pub(super) translator_mac: String,
}

impl Wiring {
    /// The number by which the translator knows it.
    fn id(&self) -> usize {
        self.number + 1
    }

    pub(super) fn config_name(&self) -> String {
        format!("r{}", self.id())
    }
}

/// The stores that reports go to, by their ids.
pub(super) const LENGTHS: u16 = 1;
pub(super) const PATHS: u16 = 2;
pub(super) const FLOWS: u16 = 3;
pub(super) const COUNTERS: u16 = 4;

/// Reports of one packet: about a flow, and about a drop.
pub(super) const OF_FLOW: u64 = 5;
pub(super) const OF_DROP: u64 = 3;

/// Clone sessions of flow and of drop reports.
pub(super) const FLOW_SESSION: usize = 1;
pub(super) const DROP_SESSION: usize = 4;

/// A power of two in nanoseconds: a bit more than a second.
pub(super) const INTERVAL: u32 = 30;
/// Changes of hop latency by 2^26 ns. SD-Fabric's 2^14 ns would report each packet: bmv2's latency changes by more
/// from one packet to the next.
const LATENCY: u32 = 26;

#[derive(Clone, Copy, Debug)]
pub(super) enum Filter {
    None,
    /// What a switch reports by default, and only the flows of one network of 24 bits.
    Network(Ipv4Addr),
}

/// The flow's length, its path, and its key in a list; its packets and bytes; drops in a list, by reason of the
/// switch and of the flow.
const REPORTS: &str = "
    { of = ['flow'], as = 'key-write', store = 'lengths', key = 'flow', value = 'bytes', time = false },
    { of = ['flow'], as = 'postcard', store = 'paths' },
    { of = ['flow'], as = 'append', store = 'flows', list = 0 },
    { of = ['flow'], as = 'key-increment', store = 'counters', key = 'packets' },
    { of = ['flow'], as = 'key-increment', store = 'counters', key = 'bytes', value = 'bytes' },
    { of = ['drop'], as = 'key-increment', store = 'counters', key = 'drops' },
    { of = ['drop'], as = 'key-increment', store = 'counters', key = 'flow-drops' },
    { of = ['drop'], as = 'append', store = 'flows', entry = 'flow', list = 1 },
";

pub(super) fn reporter_table(wiring: &Wiring, traffic: &CapturedTraffic, filter: Filter) -> String {
    let Wiring { number, switch, source, hosts: [one, other], port: out, translator, translator_mac } =
        wiring;
    let (name, id, switch_id) = (wiring.config_name(), wiring.id(), switch_id(*number));
    let (mut stations, mut flood) = (String::new(), String::new());
    for (mac, station) in &traffic.stations[*number] {
        match station {
            Station::Host(host) => {
                let port = wiring.hosts[usize::from(*host) - 1];
                stations += &format!("{{ mac = '{}', port = {port} }}, ", Mac(*mac));
            }
            Station::All => flood += &format!("'{}', ", Mac(*mac)),
        }
    }
    let filter = match filter {
        Filter::None => format!(
            "every_packet = true\ninterval_ns = 0\nmin_flow_hop_latency_change_ns = {}\nwatch = [{{ report = ['flow', 'drop'] }}]",
            1_u64 << 32
        ),
        Filter::Network(network) => {
            let watch = |side: &str| format!("{{ {side} = '{network}/24', report = ['flow', 'drop'] }}");
            format!(
                "interval_ns = {}\nmin_flow_hop_latency_change_ns = {}\nwatch = [{}, {}]",
                1_u64 << INTERVAL,
                1_u64 << LATENCY,
                watch("source"),
                watch("destination")
            )
        }
    };
    format!(
        "[switch.{name}]\nrole = 'reporter'\nsource = '{source}'\n{switch}\
         flood = [{one}, {other}]\nstations = [{stations}]\n\
         [switch.{name}.reporter]\nswitch_id = {switch_id}\n{filter}\nflood_macs = [{flood}]\n\
         ports = [{{ port = {one}, is_last_hop = true }}, {{ port = {other}, is_last_hop = true }}, {{ port = {out} }}]\n\
         acl = [{{ protocol = 'udp', destination_ports = {DENIED_PORT}, reason = {ACL_DENY} }}]\n\
         stores = {{ lengths = {LENGTHS}, paths = {PATHS}, flows = {FLOWS}, counters = {COUNTERS} }}\n\
         destination = [{{ name = 'translator', collector_ip = '{translator}', reporter = {id}, port = {out}, mac = '{translator_mac}' }}]\n\
         report = [{REPORTS}]\n"
    )
}

//! A leaf-spine network: racks of hosts behind leaves, spines between them, and the internet behind the last leaf.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use dta_proto::key::Flow;
use dta_proto::random::SplitMix64;

/// Leaves have the switch numbers 1 to 8.
pub const LEAVES: u32 = 8;
/// Behind this leaf is the internet: all that is not in a rack.
pub const BORDER: u32 = LEAVES;
pub const SPINES: u32 = 4;
/// Switch number of the first spine.
const FIRST_SPINE: u32 = 11;
/// Hosts of a rack, from 10.0.LEAF.1 on.
pub const HOSTS: u8 = 16;
/// Bits per second of each port.
pub const LINK_RATE: f64 = 1e9;
/// Port of a leaf to the first spine; below it are those of hosts.
const FIRST_UPLINK: u16 = 49;

/// A switch's number and one of its ports.
pub type Port = (u32, u16);

/// What a packet does at a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathHop {
    pub switch: u32,
    pub in_port: u16,
    pub out_port: u16,
}

/// The switch number of a spine, from 0.
pub fn spine_switch(spine: u32) -> u32 {
    FIRST_SPINE + spine
}

pub fn uplink_port(spine: u32) -> u16 {
    FIRST_UPLINK + spine as u16
}

pub fn rack_host(leaf: u32, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, leaf as u8, host)
}

/// The leaf behind which an address is.
pub fn leaf_of_address(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(address) => match address.octets() {
            [10, 0, leaf, _] if (1..BORDER).contains(&leaf.into()) => leaf.into(),
            _ => BORDER,
        },
        IpAddr::V6(_) => BORDER,
    }
}

fn host_port(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(address) if leaf_of_address(address.into()) != BORDER => address.octets()[3].into(),
        _ => 1,
    }
}

/// The spine to which equal-cost routing hashes a flow, from 0, when the link between `avoided` leaf and spine is down.
pub fn spine_of_flow(flow: &Flow, avoided: Option<(u32, u32)>) -> u32 {
    let bits = u128::from_be_bytes(flow.to_key().0);
    let hash = SplitMix64(bits as u64 ^ (bits >> 64) as u64).next_u64();
    let ends = [flow.src, flow.dst].map(leaf_of_address);
    let spines = (0..SPINES)
        .filter(|spine| avoided.is_none_or(|(leaf, down)| *spine != down || !ends.contains(&leaf)));
    let usable: Vec<_> = spines.collect();
    usable[(hash % usable.len() as u64) as usize]
}

/// The switches that a flow crosses, in order. With a `detour`, the spine sends it to that leaf, which sends it back.
pub fn path_of_flow(flow: &Flow, spine: u32, detour: Option<u32>) -> Vec<PathHop> {
    let [from, to] = [flow.src, flow.dst].map(leaf_of_address);
    let (in_port, out_port) = (host_port(flow.src), host_port(flow.dst));
    if from == to {
        return vec![PathHop { switch: from, in_port, out_port }];
    }
    let (up, at_spine) = (uplink_port(spine), spine_switch(spine));
    let mut path = vec![PathHop { switch: from, in_port, out_port: up }];
    let mut came_from = from as u16;
    if let Some(leaf) = detour {
        path.push(PathHop { switch: at_spine, in_port: came_from, out_port: leaf as u16 });
        path.push(PathHop { switch: leaf, in_port: up, out_port: up });
        came_from = leaf as u16;
    }
    path.push(PathHop { switch: at_spine, in_port: came_from, out_port: to as u16 });
    path.push(PathHop { switch: to, in_port: up, out_port });
    path
}

/// The ports of all links between switches.
pub(super) fn links() -> impl Iterator<Item = Port> {
    let ends = (1..=LEAVES).flat_map(|leaf| (0..SPINES).map(move |spine| (leaf, spine)));
    ends.flat_map(|(leaf, spine)| [(leaf, uplink_port(spine)), (spine_switch(spine), leaf as u16)])
}

/// The address from which the flow exporter of a leaf sends.
pub fn exporter_address(leaf: u32) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 10, leaf as u8)
}

/// The address by which the sFlow agent of a switch names itself.
pub fn agent_address(switch: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 0, switch as u8)
}

pub fn switch_name(switch: u32) -> String {
    match switch.checked_sub(FIRST_SPINE) {
        Some(spine) => format!("spine{}", spine + 1),
        None => format!("leaf{switch}"),
    }
}

pub fn exporter_name(leaf: u32) -> String {
    format!("{}-netflow", switch_name(leaf))
}

pub fn agent_name(switch: u32) -> String {
    format!("{}-sflow", switch_name(switch))
}

/// Names of switches, ports and exporters, as a file of names has them.
pub fn render_names() -> String {
    let mut text = String::new();
    let spines = (0..SPINES).map(spine_switch);
    for switch in (1..=LEAVES).chain(spines) {
        let (name, agent) = (switch_name(switch), agent_address(switch));
        let _ = write!(
            text,
            "[switch.{switch}]\nname = \"{name}\"\n[switch.{switch}.port]\n{}[switch.\"{agent}\"]\nname = \"{}\"\n",
            port_names(switch),
            agent_name(switch)
        );
    }
    for leaf in 1..=LEAVES {
        let _ = write!(text, "[switch.\"{}\"]\nname = \"{}\"\n", exporter_address(leaf), exporter_name(leaf));
    }
    text
}

fn port_names(switch: u32) -> String {
    if switch >= FIRST_SPINE {
        return (1..=LEAVES).map(|leaf| format!("{leaf} = \"to {}\"\n", switch_name(leaf))).collect();
    }
    let uplink = |spine| format!("{} = \"to {}\"\n", uplink_port(spine), switch_name(spine_switch(spine)));
    let internet = if switch == BORDER { "1 = \"internet\"\n" } else { "" };
    internet.to_owned() + &(0..SPINES).map(uplink).collect::<String>()
}

/// Names of the racks' prefixes, as a file of networks has them.
pub fn render_networks() -> String {
    let racks = (1..BORDER).map(|leaf| format!("10.0.{leaf}.0/24,rack{leaf},\n"));
    std::iter::once("prefix,name,asn\n".to_owned()).chain(racks).collect()
}

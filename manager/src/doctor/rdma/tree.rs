//! The contents of `/sys/class/infiniband`.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::Path;

use dta_memory::nic::verbs::{GidEntry, GidType};

use crate::doctor::{list_sorted_names, read_trimmed};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) ports: Vec<RdmaPort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RdmaPort {
    pub(crate) number: u8,
    /// As the kernel prints it: `4: ACTIVE`.
    pub(crate) state: String,
    /// `Ethernet` or `InfiniBand`; empty if the kernel does not say.
    pub(crate) link_layer: String,
    /// The entries of the table in use.
    pub(crate) gids: Vec<GidEntry>,
    /// `hw_counters` and `counters` together, under the kernel's names.
    pub(crate) counters: BTreeMap<String, u64>,
}

impl RdmaPort {
    pub(crate) fn is_active(&self) -> bool {
        self.state.contains("ACTIVE")
    }
}

impl Device {
    pub(crate) fn gid_entries(&self) -> Vec<GidEntry> {
        self.ports.iter().flat_map(|port| port.gids.iter().cloned()).collect()
    }

    /// A counter, summed over all ports that have it.
    pub(crate) fn counter_total(&self, name: &str) -> Option<u64> {
        self.ports.iter().filter_map(|port| port.counters.get(name)).copied().reduce(|a, b| a + b)
    }
}

/// All devices, by name. `root` is `/` except in tests.
pub(crate) fn list_devices(root: &Path) -> Vec<Device> {
    let class = root.join("sys/class/infiniband");
    list_sorted_names(&class)
        .into_iter()
        .map(|name| {
            let ports = class.join(&name).join("ports");
            let ports =
                list_sorted_names(&ports).iter().filter_map(|number| read_port(&ports, number)).collect();
            Device { name, ports }
        })
        .collect()
}

fn read_port(ports: &Path, number: &str) -> Option<RdmaPort> {
    let path = ports.join(number);
    let number = number.parse().ok()?;
    let gids = list_sorted_names(path.join("gids"))
        .iter()
        .filter_map(|index| read_gid_entry(&path, number, index))
        .collect();
    let mut counters = BTreeMap::new();
    for folder in ["counters", "hw_counters"] {
        for name in list_sorted_names(path.join(folder)) {
            // How long the kernel caches the values: a setting, not a counter.
            if name != "lifespan"
                && let Some(value) = read_trimmed(path.join(folder).join(&name)).and_then(|s| s.parse().ok())
            {
                counters.insert(name, value);
            }
        }
    }
    Some(RdmaPort {
        number,
        state: read_trimmed(path.join("state")).unwrap_or_else(|| "unknown".into()),
        link_layer: read_trimmed(path.join("link_layer")).unwrap_or_default(),
        gids,
        counters,
    })
}

fn read_gid_entry(port: &Path, number: u8, index: &str) -> Option<GidEntry> {
    let gid: Ipv6Addr = read_trimmed(port.join("gids").join(index))?.parse().ok()?;
    // The table also shows its empty entries; those have no readable type.
    let kind = read_trimmed(port.join("gid_attrs/types").join(index)).filter(|_| !gid.is_unspecified())?;
    Some(GidEntry {
        port: number,
        index: index.parse().ok()?,
        gid: gid.octets(),
        kind: match kind.as_str() {
            "RoCE v2" => GidType::RoceV2,
            // The kernel's name for the type shared by InfiniBand and RoCE version 1.
            "IB/RoCE v1" => GidType::RoceV1,
            _ => GidType::Other(u32::MAX),
        },
        interface: read_trimmed(port.join("gid_attrs/ndevs").join(index)).filter(|name| !name.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::test_machine::TestMachine;
    use super::*;

    #[test]
    fn devices_ports_gids_and_counters_are_read() {
        let tree = TestMachine::with_rxe();
        // An empty entry of the table, as the kernel shows it: zeros, and an unreadable type.
        tree.add(&[(
            "sys/class/infiniband/rxe0/ports/1/gids/2",
            "0000:0000:0000:0000:0000:0000:0000:0000\n",
        )]);
        tree.add(&[("sys/class/infiniband/rxe0/ports/1/counters/port_rcv_errors", "3\n")]);
        let devices = list_devices(tree.root_path());
        assert_eq!(devices.len(), 1);
        let port = &devices[0].ports[0];
        assert!(port.is_active());
        let gids: Vec<_> = port.gids.iter().map(ToString::to_string).collect();
        assert_eq!(gids, ["port 1 index 0: fe80::ff:fe00:1 (RoCE v2)", "port 1 index 1: 10.9.0.1 (RoCE v2)"]);
        assert_eq!(port.gids[1].interface.as_deref(), Some("vrx"));
        let counters: Vec<_> = port.counters.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(counters, [("port_rcv_errors", 3), ("rcvd_pkts", 100), ("sent_pkts", 7)]);
        assert_eq!(
            (devices[0].counter_total("rcvd_pkts"), devices[0].counter_total("none")),
            (Some(100), None)
        );
    }
}

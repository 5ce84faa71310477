//! Devices and their ports.

use super::tree::Device;
use crate::doctor::Finding;

const CHECK: &str = "RDMA devices";

pub(super) fn no_device_finding() -> Finding {
    Finding::new_note(
        CHECK,
        "none",
        "the software NIC needs none; for soft-RoCE: rdma link add rxe0 type rxe netdev eth0",
    )
}

/// Whether a device has a usable port.
pub(super) fn check_device_ports(device: &Device) -> Finding {
    let ports: Vec<String> = device
        .ports
        .iter()
        .map(|port| {
            let link =
                if port.link_layer.is_empty() { String::new() } else { format!(", {}", port.link_layer) };
            format!("port {} {}{link}", port.number, port.state)
        })
        .collect();
    let found =
        format!("{}: {}", device.name, if ports.is_empty() { "no port".into() } else { ports.join("; ") });
    if device.ports.iter().any(|port| port.is_active() && port.link_layer != "InfiniBand") {
        Finding::new_ok(CHECK, found)
    } else if device.ports.iter().any(|port| port.is_active()) {
        Finding::new_note(
            CHECK,
            found,
            format!("RoCEv2 needs Ethernet: mlxconfig -d {} set LINK_TYPE_P1=ETH, and a reboot", device.name),
        )
    } else {
        let interface = device.gid_entries().iter().find_map(|gid| gid.interface.clone());
        let interface = interface.unwrap_or_else(|| "NETDEV".into());
        Finding::new_note(
            CHECK,
            found,
            format!("bring its network interface up: ip link set dev {interface} up"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Level;
    use super::super::super::tree::Tree;

    #[test]
    fn a_port_that_works_is_told_from_one_that_does_not() {
        let tree = Tree::with_rxe();
        let good = tree.finding_of_check("RDMA devices");
        assert_eq!((good.level, good.found.as_str()), (Level::Ok, "rxe0: port 1 4: ACTIVE, Ethernet"));
        tree.add(&[("sys/class/infiniband/rxe0/ports/1/state", "1: DOWN\n")]);
        let down = tree.finding_of_check("RDMA devices");
        assert_eq!(down.level, Level::Note);
        assert!(down.advice.unwrap().ends_with("ip link set dev vrx up"));
        tree.add(&[
            ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/rxe0/ports/1/link_layer", "InfiniBand\n"),
        ]);
        assert!(tree.finding_of_check("RDMA devices").advice.unwrap().contains("LINK_TYPE_P1=ETH"));
        assert!(Tree::new(&[]).finding_of_check("RDMA devices").advice.unwrap().contains("rdma link add"));
    }
}

//! RDMA devices as the kernel shows them under `/sys` and `/proc`: no library is needed.

pub(super) mod tree;

use std::fs::File;
use std::io;
use std::path::Path;

use dta_memory::nic::verbs::GidWish;
use dta_memory::nic::verbs::gid::choose_gid;

use super::{Finding, list_sorted_names, read_trimmed};
use tree::Device;

/// Devices with their GIDs and counters, and the modules behind them.
pub(super) fn examine_rdma(root: &Path) -> Vec<Finding> {
    let devices = tree::list_devices(root);
    let mut findings = Vec::new();
    if devices.is_empty() {
        findings.push(no_device_finding());
    }
    for device in &devices {
        findings.push(check_device_ports(device));
        findings.extend(check_gids(device));
        findings.extend(check_counters(device));
        findings.push(check_device_access(root, device));
    }
    findings.push(check_module(root));
    findings
}

const DEVICES: &str = "RDMA devices";

fn no_device_finding() -> Finding {
    Finding::new_note(
        DEVICES,
        "none",
        "the software NIC needs none; for soft-RoCE: rdma link add rxe0 type rxe netdev eth0",
    )
}

fn check_device_ports(device: &Device) -> Finding {
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
        Finding::new_ok(DEVICES, found)
    } else if device.ports.iter().any(|port| port.is_active()) {
        Finding::new_note(
            DEVICES,
            found,
            format!("RoCEv2 needs Ethernet: mlxconfig -d {} set LINK_TYPE_P1=ETH, and a reboot", device.name),
        )
    } else {
        let interface = device.gid_entries().iter().find_map(|gid| gid.interface.clone());
        let interface = interface.unwrap_or_else(|| "NETDEV".into());
        Finding::new_note(
            DEVICES,
            found,
            format!("bring its network interface up: ip link set dev {interface} up"),
        )
    }
}

const GIDS: &str = "GIDs";

fn check_gids(device: &Device) -> Vec<Finding> {
    device
        .ports
        .iter()
        .map(|port| {
            let name = &device.name;
            let shown: Vec<String> = port.gids.iter().map(ToString::to_string).collect();
            match choose_gid(&port.gids, GidWish::default()) {
                Ok(chosen) => Finding::new_ok(
                    GIDS,
                    format!(
                        "{name}: {}; with --device {name}, collector and translator take index {}",
                        shown.join(", "),
                        chosen.index
                    ),
                ),
                Err(error) => {
                    let interface = port.gids.iter().find_map(|gid| gid.interface.as_deref());
                    Finding::new_note(
                        GIDS,
                        format!("{name}: {error}"),
                        format!(
                            "give its network interface an IP address: ip address add ADDRESS/LENGTH dev {}",
                            interface.unwrap_or("NETDEV")
                        ),
                    )
                }
            }
        })
        .collect()
}

const COUNTERS: &str = "RDMA counters";

/// Counters that indicate a problem: the kernel's name, its meaning, what to do. The first group is soft-RoCE's
/// (the kernel's `rxe_hw_counters.c`), the second mlx5's ("Understanding mlx5 Linux Counters", NVIDIA), and every
/// device has the last (the kernel's `Documentation/ABI/stable/sysfs-class-infiniband`).
const TROUBLE: [(&str, &str, &str); 17] = [
    ("out_of_seq_request", "RC requests after a gap: frames before them were lost", LOST),
    ("send_rnr_err", "WRITEs with immediate that found no posted receive", RNR),
    ("retry_exceeded_err", "an RC peer gave no answer", LOST),
    ("completer_retry_err", "RC requests sent again", LOST),
    ("link_downed", "the link went down", "check the cable, the switch port and `dmesg`"),
    (
        "rx_icrc_encapsulated",
        "RoCE frames with a wrong iCRC",
        "the sender computes it wrongly, or something on the way changes the frames: dta-manager doctor --collector",
    ),
    ("out_of_sequence", "RC requests after a gap: frames before them were lost", LOST),
    ("packet_seq_err", "an RC peer reported a gap", LOST),
    ("local_ack_timeout_err", "an RC peer gave no answer in time", LOST),
    ("out_of_buffer", "WRITEs with immediate that found no posted receive", RNR),
    (
        "resp_remote_access_errors",
        "requests with a wrong key or outside the region",
        "the switch holds keys of an earlier session: dta-translator setup, or restart the translator",
    ),
    (
        "resp_local_length_error",
        "requests of a wrong length",
        "translator and collector disagree about a store: dta-translator plan --against",
    ),
    ("port_rcv_errors", "frames damaged on the last wire", "change the cable or transceiver"),
    (
        "port_rcv_remote_physical_errors",
        "frames damaged on an earlier wire",
        "look for the bad link upstream",
    ),
    ("port_xmit_discards", "frames that could not be sent", "the link is down or overloaded"),
    (
        "port_rcv_switch_relay_errors",
        "frames that a switch could not pass on",
        "look at the switch's counters",
    ),
    ("excessive_buffer_overrun_errors", "receive buffers overflowed", "the sender is too fast for this port"),
];

const LOST: &str = "look for lost or reordered frames: dta-collector stats shows lost.translator-nic";
const RNR: &str = "readers of lists marked `notify` do not keep up; leave `notify` off for lists that are written that fast";

/// The device's counts since it was created, if it has any.
fn check_counters(device: &Device) -> Option<Finding> {
    if device.ports.iter().all(|port| port.counters.is_empty()) {
        return Some(Finding::new_note(
            COUNTERS,
            format!("{}: it shows no counters", device.name),
            "losses on UC cannot be measured on this device; use transport = \"rc\", which detects them",
        ));
    }
    let count = |name: &str| device.counter_total(name).unwrap_or(0);
    let mut found: Vec<String> = ["rcvd_pkts", "sent_pkts", "rx_write_requests", "rx_atomic_requests"]
        .iter()
        .filter_map(|name| Some(format!("{name} {}", device.counter_total(name)?)))
        .collect();
    let wrong: Vec<_> = TROUBLE.iter().filter(|(name, ..)| count(name) != 0).collect();
    found.extend(wrong.iter().map(|(name, meaning, _)| format!("{name} {}: {meaning}", count(name))));
    let found =
        format!("{}: {}", device.name, if found.is_empty() { "all 0".into() } else { found.join("; ") });
    let mut cures: Vec<&str> = wrong.iter().map(|(.., cure)| *cure).collect();
    cures.dedup();
    Some(if cures.is_empty() {
        Finding::new_ok(COUNTERS, found)
    } else {
        Finding::new_note(COUNTERS, found, cures.join("; "))
    })
}

const VERBS: &str = "verbs";

/// Whether this user may open it.
fn check_device_access(root: &Path, device: &Device) -> Finding {
    let class = root.join("sys/class/infiniband_verbs");
    let name = list_sorted_names(&class)
        .into_iter()
        .find(|node| read_trimmed(class.join(node).join("ibdev")).as_deref() == Some(device.name.as_str()));
    let Some(name) = name else {
        return Finding::new_note(
            VERBS,
            format!("{}: the kernel offers no verbs for it", device.name),
            "modprobe ib_uverbs",
        );
    };
    let node = root.join("dev/infiniband").join(&name);
    match File::options().read(true).write(true).open(&node) {
        Ok(_) => Finding::new_ok(VERBS, format!("{}: /dev/infiniband/{name} can be opened", device.name)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Finding::new_note(
            VERBS,
            format!("{}: /dev/infiniband/{name}: {error}", device.name),
            "run the collector as root, or as a user with access (udev's rdma rules; group rdma)",
        ),
        Err(error) => Finding::new_note(
            VERBS,
            format!("{}: /dev/infiniband/{name}: {error}", device.name),
            "modprobe ib_uverbs; in a container, pass /dev/infiniband in",
        ),
    }
}

const MODULE: &str = "soft-RoCE";

fn check_module(root: &Path) -> Finding {
    let release = read_trimmed(root.join("proc/sys/kernel/osrelease")).unwrap_or_default();
    let modules = root.join("lib/modules").join(&release);
    let listed = |file| read_trimmed(modules.join(file)).is_some_and(|s| s.contains("/rdma_rxe.ko"));
    let loaded = read_trimmed(root.join("proc/modules"))
        .is_some_and(|s| s.lines().any(|l| l.starts_with("rdma_rxe ")));
    if loaded || listed("modules.builtin") {
        Finding::new_ok(MODULE, "rdma_rxe is in the kernel")
    } else if listed("modules.dep") {
        Finding::new_note(MODULE, "rdma_rxe is there, but not loaded", "modprobe rdma_rxe")
    } else {
        Finding::new_note(
            MODULE,
            format!("kernel {release} has no rdma_rxe"),
            "the software NIC needs none; to test with real verbs, testbed/rxe-guest boots a kernel with it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::test_machine::TestMachine;

    #[test]
    fn a_port_that_works_is_distinguished_from_one_that_does_not() {
        let tree = TestMachine::with_rxe();
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
        assert!(
            TestMachine::new(&[]).finding_of_check("RDMA devices").advice.unwrap().contains("rdma link add")
        );
    }

    #[test]
    fn the_gid_that_a_collector_takes_is_named_or_what_to_do_for_one() {
        let tree = TestMachine::with_rxe();
        let good = tree.finding_of_check("GIDs");
        assert_eq!(good.level, Level::Ok);
        assert!(
            good.found.ends_with(
                "index 1: 10.9.0.1 (RoCE v2); with --device rxe0, collector and translator take index 1"
            ),
            "{good:?}"
        );
        for file in ["gids/1", "gid_attrs/types/1", "gid_attrs/ndevs/1"] {
            tree.remove(&format!("sys/class/infiniband/rxe0/ports/1/{file}"));
        }
        // The link-local address that is left is not one that collector and translator use.
        let link_local = tree.finding_of_check("GIDs");
        assert_eq!(link_local.level, Level::Note);
        assert!(link_local.found.contains("a global IPv6 address"), "{link_local:?}");
        tree.remove("sys/class/infiniband/rxe0/ports/1/gids");
        let none = tree.finding_of_check("GIDs");
        assert!(none.found.contains("none") && none.level == Level::Note, "{none:?}");
        assert!(none.advice.unwrap().contains("an IP address"));
    }

    #[test]
    fn what_went_wrong_is_explained_in_words() {
        let tree = TestMachine::with_rxe();
        let good = tree.finding_of_check("RDMA counters");
        assert_eq!((good.level, good.found.as_str()), (Level::Ok, "rxe0: rcvd_pkts 100; sent_pkts 7"));
        tree.add(&[("sys/class/infiniband/rxe0/ports/1/hw_counters/rx_icrc_encapsulated", "4\n")]);
        let bad = tree.finding_of_check("RDMA counters");
        assert_eq!(bad.level, Level::Note);
        assert!(bad.found.contains("rx_icrc_encapsulated 4: RoCE frames with a wrong iCRC"), "{bad:?}");
        tree.remove("sys/class/infiniband/rxe0/ports/1/hw_counters");
        assert!(tree.finding_of_check("RDMA counters").advice.unwrap().contains("cannot be measured"));
    }

    #[test]
    fn a_device_without_its_file_is_reported() {
        let tree = TestMachine::with_rxe();
        assert_eq!(tree.finding_of_check("verbs").level, Level::Ok);
        tree.remove("dev/infiniband/uverbs0");
        assert!(tree.finding_of_check("verbs").found.contains("/dev/infiniband/uverbs0"));
        tree.remove("sys/class/infiniband_verbs");
        assert_eq!(tree.finding_of_check("verbs").advice.as_deref(), Some("modprobe ib_uverbs"));
    }

    #[test]
    fn the_module_is_loaded_loadable_or_not_there() {
        assert_eq!(TestMachine::with_rxe().finding_of_check("soft-RoCE").level, Level::Ok);
        let release = ("proc/sys/kernel/osrelease", "6.1.0-x\n");
        let listed =
            ("lib/modules/6.1.0-x/modules.dep", "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko: a.ko\n");
        assert_eq!(
            TestMachine::new(&[release, listed]).finding_of_check("soft-RoCE").advice.as_deref(),
            Some("modprobe rdma_rxe")
        );
        let other = ("lib/modules/6.1.0-y/modules.dep", listed.1);
        assert_eq!(
            TestMachine::new(&[release, other]).finding_of_check("soft-RoCE").found,
            "kernel 6.1.0-x has no rdma_rxe"
        );
    }
}

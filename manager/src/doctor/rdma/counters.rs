//! The device's own counters, with explanations of those that show losses.

use super::tree::Device;
use crate::doctor::Finding;

const CHECK: &str = "RDMA counters";

/// Counters that indicate a problem: the kernel's name, its meaning, what to do. The first group is of the kernel's
/// soft-RoCE (`rxe_hw_counters.c`), the second of mlx5 ("Understanding mlx5 Linux Counters", NVIDIA), the last of
/// every device (`Documentation/ABI/stable/sysfs-class-infiniband` of the kernel).
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

/// The device's counts since it was made, if it has any.
pub(super) fn check_counters(device: &Device) -> Option<Finding> {
    if device.ports.iter().all(|port| port.counters.is_empty()) {
        return Some(Finding::new_note(
            CHECK,
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
        Finding::new_ok(CHECK, found)
    } else {
        Finding::new_note(CHECK, found, cures.join("; "))
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::Level;
    use super::super::super::tree::Tree;

    #[test]
    fn what_went_wrong_is_told_in_words() {
        let tree = Tree::with_rxe();
        let good = tree.finding_of_check("RDMA counters");
        assert_eq!((good.level, good.found.as_str()), (Level::Ok, "rxe0: rcvd_pkts 100; sent_pkts 7"));
        tree.add(&[("sys/class/infiniband/rxe0/ports/1/hw_counters/rx_icrc_encapsulated", "4\n")]);
        let bad = tree.finding_of_check("RDMA counters");
        assert_eq!(bad.level, Level::Note);
        assert!(bad.found.contains("rx_icrc_encapsulated 4: RoCE frames with a wrong iCRC"), "{bad:?}");
        tree.remove("sys/class/infiniband/rxe0/ports/1/hw_counters");
        assert!(tree.finding_of_check("RDMA counters").advice.unwrap().contains("cannot be measured"));
    }
}

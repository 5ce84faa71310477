//! Do frames arrive undamaged?
//!
//! Soft-RoCE does not count what it drops for a wrong iCRC. It shows in two ways: as the difference between frames
//! that reached the port and `rcvd_pkts`, and in the frames themselves, whose iCRC can be recomputed.

use dta_cli::number::{format_count, format_grouped};
use dta_proto::counter::nic::Counter;

use super::Evidence;
use crate::doctor::Finding;

const CHECK: &str = "iCRC drops";

const CURE: &str = "either the sender computes the iCRC wrongly (docs/wire-format.md has vectors), or something on the way changes what it covers: \
                    the IP id, DF, the UDP source port (NAT, segmentation offload) or the payload (compare `tcpdump -w` at both ends)";

pub(super) fn check_icrc(e: &Evidence) -> Option<Finding> {
    // What the NIC itself counts: the software NIC, and mlx5.
    let by_nic = if e.is_soft_nic() {
        e.nic_counter_rise(Counter::DroppedIcrc.name())
    } else {
        e.device_rise("rx_icrc_encapsulated")
    };
    if let Some(dropped) = by_nic.filter(|n| *n > 0) {
        let found = format!("the NIC dropped {} for a wrong iCRC", e.frames_in_window(dropped));
        return Some(Finding::new_problem(CHECK, found, CURE));
    }
    if e.is_soft_nic() {
        return None;
    }
    let taken = e.device_rise("rcvd_pkts");
    match e.counted_frames() {
        Some(frames) => {
            let reached = frames.sum(|flow| flow.destination == e.collector && flow.to_us);
            let less = taken.map(|taken| {
                format!(
                    "{} reached port {}, and {} took {} (rcvd_pkts): {} less",
                    e.frames_in_window(reached.frames),
                    e.port,
                    e.device,
                    format_grouped(taken),
                    format_grouped(reached.frames.saturating_sub(taken))
                )
            });
            if reached.wrong_icrc > 0 {
                let found = format!(
                    "the iCRC of {} is wrong; {}",
                    format_count(reached.wrong_icrc, "frame", "frames"),
                    less.unwrap_or_default()
                );
                return Some(Finding::new_problem(CHECK, found, CURE));
            }
            // What else rxe drops before it counts is covered by the checks of GID and queue pairs.
            let less = less.filter(|_| reached.frames > 0)?;
            Some(Finding::new_ok("iCRC", format!("right in all frames; {less}")))
        }
        None => {
            // All datagrams of this host, so only a hint.
            let (datagrams, taken) = (e.host.as_ref()?.datagrams?, taken?);
            let less = datagrams.saturating_sub(taken);
            (less > 0).then(|| {
                Finding::new_note(
                    CHECK,
                    format!(
                        "this host took {datagrams} UDP datagrams {}, and {} counted {taken} (rcvd_pkts): up to {less} may have had a wrong iCRC",
                        e.in_window(),
                        e.device
                    ),
                    "run this command as root to check the frames themselves",
                )
            })
        }
    }
}

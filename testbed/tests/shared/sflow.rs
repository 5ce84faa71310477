//! sFlow of real traffic, made by `sflow.py`, and what must be read of it by tshark's account of the capture. Tests of several
//! crates take this file by `#[path]`, beside `softflowd.rs`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use dta_proto::drop_reason::DropReason;
use dta_proto::key::Flow;

use super::softflowd::{Flows, packets};

/// One packet in so many is sampled.
pub(crate) const RATE: u32 = 10;
/// What the script writes of a dropped packet, in turn.
const REASONS: [u32; 7] = [0, 3, 256, 257, 258, 261, 289];

/// Drops by flow and reason; those of packets that are not IP have no flow.
pub(crate) type Drops = BTreeMap<(Option<Flow>, DropReason), u64>;

/// The datagrams for a capture, as a capture themselves and as payloads.
pub(crate) fn made(capture: &Path, into: &Path) -> Vec<Vec<u8>> {
    let mut python = Command::new("python3");
    python.args(["-c", include_str!("sflow.py")]).arg(capture).arg(RATE.to_string()).arg(into);
    let output = python.output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let payloads = payloads(into);
    assert!(payloads.len() > 20, "{} datagrams", payloads.len());
    payloads
}

/// Payloads of the UDP datagrams of a capture.
pub(crate) fn payloads(capture: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(capture).unwrap();
    let (mut rest, mut payloads) = (&bytes[24..], Vec::new());
    while let Some(head) = rest.first_chunk::<16>() {
        let len = u32::from_le_bytes(*head[8..].first_chunk().unwrap()) as usize;
        // Behind Ethernet, IPv4 and UDP.
        payloads.push(rest[16 + 42..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    payloads
}

/// Packets and bytes of the sampled flows, scaled; the number of samples without a flow; and the drops.
pub(crate) fn truth(capture: &Path) -> (Flows, u64, Drops) {
    let (mut flows, mut others, mut drops) = (Flows::new(), 0, Drops::new());
    for (number, packet) in (1u64..).zip(packets(capture)) {
        if number % u64::from(RATE) == 0 {
            match packet {
                Some(packet) => {
                    let sum = flows.entry(packet.flow).or_default();
                    *sum = (sum.0 + u64::from(RATE), sum.1 + packet.ip_bytes * u64::from(RATE));
                }
                None => others += 1,
            }
        }
        if number % 50 == 7 {
            let reason = DropReason::from_sflow(REASONS[(number / 50) as usize % REASONS.len()]);
            *drops.entry((packet.map(|packet| packet.flow), reason)).or_default() += 1;
        }
    }
    assert!(flows.len() > 50 && drops.len() > 20, "{} flows, {} drops", flows.len(), drops.len());
    (flows, others, drops)
}

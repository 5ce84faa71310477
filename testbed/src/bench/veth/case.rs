//! What is measured, and its frames.

use std::net::Ipv4Addr;

use anyhow::Context;
use dta_memory::nic::{Access, Purpose, QueuePairInfo, Registration, Transport};
use dta_memory::region::Region;
use dta_proto::batch::{Addresses, PacketBatch};
use dta_proto::wire::ethernet::Mac;
use dta_proto::wire::frame::{FetchAddTemplate, FrameRoute, WriteTemplate};
use dta_proto::wire::roce::{self, Psn};

/// An operation on a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VethCase {
    /// Name, for filters and reports.
    pub name: &'static str,
    pub what: &'static str,
    pub(super) transport: Transport,
    pub(super) operation: VethOperation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VethOperation {
    /// With this many bytes, a multiple of 8.
    Write(usize),
    FetchAdd,
}

const fn veth_case(
    name: &'static str,
    what: &'static str,
    transport: Transport,
    operation: VethOperation,
) -> VethCase {
    VethCase { name, what, transport, operation }
}

/// All cases, in report order.
pub const CASES: [VethCase; 5] = [
    veth_case("uc-write-8", "UC WRITE of 8 bytes", Transport::Uc, VethOperation::Write(8)),
    veth_case("uc-write-64", "UC WRITE of 64 bytes", Transport::Uc, VethOperation::Write(64)),
    veth_case("rc-write-8", "RC WRITE of 8 bytes", Transport::Rc, VethOperation::Write(8)),
    veth_case("rc-write-64", "RC WRITE of 64 bytes", Transport::Rc, VethOperation::Write(64)),
    veth_case("rc-fetch-add", "RC FETCH_ADD", Transport::Rc, VethOperation::FetchAdd),
];

/// Frames of one burst: a batch of the translator's.
pub(super) const BURST: u64 = 64;
/// On RC, a write with this PSN modulo 64 asks for an acknowledgement, as the translator's do.
const ACK_EVERY: u64 = 64;

impl VethCase {
    pub(super) fn queue_pair_purpose(&self) -> Purpose {
        match self.operation {
            VethOperation::Write(_) => Purpose::Write,
            VethOperation::FetchAdd => Purpose::Atomic,
        }
    }

    /// The least rights that it needs.
    pub(super) fn required_access(&self) -> Access {
        match self.operation {
            VethOperation::Write(_) => Access::WRITE,
            VethOperation::FetchAdd => Access::ATOMIC,
        }
    }

    pub(super) fn slot_len(&self) -> u64 {
        match self.operation {
            VethOperation::Write(len) => len as u64,
            VethOperation::FetchAdd => 8,
        }
    }

    /// The slot of frame `number` of `frames` (a power of two): scattered over the region, as for reports.
    pub(super) fn slot_offset(&self, number: u64, frames: u64) -> u64 {
        // Multiplying by an odd number permutes the numbers below a power of two.
        (number.wrapping_mul(0x9e37_79b1) & (frames - 1)) * self.slot_len()
    }

    /// Whether frame `number` of `frames` has landed in `region` completely.
    pub(super) fn has_landed(&self, region: &Region, number: u64, frames: u64) -> bool {
        let at = self.slot_offset(number, frames);
        (0..self.slot_len() / 8)
            .all(|word| region.load_u64(at + 8 * word).is_ok_and(|v| v == slot_value(number)))
    }

    /// Makes frames 0 to `frames` - 1 for a queue pair that expects PSN 0, in bursts.
    pub(super) fn build_bursts(&self, frames: u64, to: &Destination) -> anyhow::Result<Vec<PacketBatch>> {
        let route = FrameRoute::new(to.from, to.ip, to.queue_pair.qpn);
        let route = match to.by {
            By::Frames { mac, from_mac } => FrameRoute { ethernet: Some((mac, from_mac)), ..route },
            By::Sockets { .. } => route,
        };
        let qpn = to.queue_pair.qpn;
        let Registration { iova, rkey, .. } = to.region;
        let emit: Box<Emit> = match self.operation {
            VethOperation::Write(len) => {
                let (transport, acked) = match self.transport {
                    Transport::Uc => (roce::Transport::Uc, false),
                    Transport::Rc => (roce::Transport::Rc, true),
                };
                let template = WriteTemplate::new(&route, transport, qpn, len)?;
                let case = *self;
                Box::new(move |number, buffer| {
                    let ack = acked && number % ACK_EVERY == ACK_EVERY - 1;
                    let payload = slot_value(number).to_ne_bytes().repeat(len / 8);
                    let va = iova + case.slot_offset(number, frames);
                    template.write_frame(Psn::new(number as u32), ack, va, rkey, &payload, buffer)
                })
            }
            VethOperation::FetchAdd => {
                let template = FetchAddTemplate::new(&route, qpn)?;
                let case = *self;
                Box::new(move |number, buffer| {
                    let ack = number % ACK_EVERY == ACK_EVERY - 1;
                    let va = iova + case.slot_offset(number, frames);
                    template.write_frame(Psn::new(number as u32), ack, va, rkey, slot_value(number), buffer)
                })
            }
        };
        let mut buffer = [0; 256];
        (0..frames.div_ceil(BURST))
            .map(|burst| {
                let mut batch = PacketBatch::with_packet_capacity(BURST as usize, 144);
                for number in burst * BURST..frames.min((burst + 1) * BURST) {
                    let len = emit(number, &mut buffer).context("a frame")?;
                    let By::Sockets { runs } = to.by else {
                        batch.push_frame(&buffer[..len], 0).context("a frame")?;
                        continue;
                    };
                    let addresses = Addresses::from_route(&route, runs);
                    batch.add_datagram(len, addresses, 0).copy_from_slice(&buffer[..len]);
                }
                Ok(batch)
            })
            .collect()
    }
}

/// Writes the frame of a number into a buffer and returns its length.
type Emit = dyn Fn(u64, &mut [u8]) -> dta_proto::wire::Result<usize>;

/// What frame `number` leaves in its slot: never what was there before.
fn slot_value(number: u64) -> u64 {
    number + 1
}

#[derive(Clone, Copy)]
pub(super) enum By {
    /// As whole frames between these.
    Frames { mac: Mac, from_mac: Mac },
    /// By UDP sockets, in runs or one by one.
    Sockets { runs: bool },
}

/// Source and destination of frames.
pub(super) struct Destination {
    pub(super) by: By,
    pub(super) ip: Ipv4Addr,
    pub(super) from: Ipv4Addr,
    pub(super) queue_pair: QueuePairInfo,
    pub(super) region: Registration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use dta_memory::nic::soft::{Responder, ResponderConfig};
    use dta_memory::nic::{Endpoint, QueuePairRequest};
    use dta_memory::region::RegionOptions;
    use std::sync::Arc;

    #[test]
    fn every_frame_lands_in_a_slot_of_its_own_and_a_missing_one_is_seen() {
        const FRAMES: u64 = 256;
        let (near, far) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        for case in CASES {
            let len = (FRAMES * case.slot_len()).next_multiple_of(4096);
            let region = Region::anonymous(len, 1 << 40, RegionOptions { huge_pages: false }).unwrap();
            let region = Arc::new(region);
            let mut responder = Responder::new(ResponderConfig {
                device: "test".into(),
                ip: near.into(),
                port: roce::PORT,
                mtu: 1024,
                max_dest_rd_atomic: 16,
            });
            let registration =
                responder.register_region(Arc::clone(&region), case.required_access()).unwrap();
            let queue_pair = responder
                .create_queue_pair(&QueuePairRequest {
                    purpose: case.queue_pair_purpose(),
                    transport: case.transport,
                    peer: Endpoint::new(far.into()),
                    peer_qpn: 1,
                    start_psn: 0,
                    access: case.required_access(),
                    receives: 0,
                })
                .unwrap();
            let to = Destination {
                by: By::Frames { mac: Mac([2, 0, 0, 0, 0, 1]), from_mac: Mac([2, 0, 0, 0, 0, 2]) },
                ip: near,
                from: far,
                queue_pair,
                region: registration,
            };
            let batches = case.build_bursts(FRAMES, &to).unwrap();
            let mut answers = responder.answer_batch(256);
            let landed = || (0..FRAMES).filter(|&n| case.has_landed(&region, n, FRAMES)).count();
            for (nth, batch) in batches.iter().enumerate() {
                assert_eq!(landed(), nth * BURST as usize, "{}", case.name);
                responder.process_packets(batch, &mut answers, &mut |full| full.clear());
            }
            assert_eq!(landed() as u64, FRAMES, "{}: {:?}", case.name, responder.counts().nonzero_counters());
            let expected = match (case.transport, case.operation) {
                (Transport::Uc, _) => 0,
                (Transport::Rc, VethOperation::Write(_)) => FRAMES / 64,
                (Transport::Rc, VethOperation::FetchAdd) => FRAMES,
            };
            assert_eq!(answers.len() as u64, expected, "{}: answers", case.name);
        }
    }
}

//! One turn: frames are made, sent and counted.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dta_link::{Link, PacketConfig, RunUse, SocketKind, UdpConfig, UdpLink, Wire, WireLink};
use dta_memory::nic::soft::{SoftNic, SoftNicConfig};
use dta_memory::nic::verbs::{self, GidWish, VerbsOptions};
use dta_memory::nic::{Endpoint, Nic, QueuePairInfo, QueuePairRequest, Registration};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::batch::PacketBatch;
use dta_proto::wire::frame::source_port;
use dta_proto::wire::roce;

use super::case::{BURST, By, Destination, VethCase};
use super::cpu::Moment;
use super::pair::{DEVICE, FAR, FAR_IP, NEAR, NEAR_IP, NEAR_MAC, NOBODY, SENDER_MAC, SOFT_MAC, VethPair};

/// Most bursts in flight. 256 frames and their answers are less than the 1,000 that the kernel's receive queue of a
/// CPU holds (`net.core.netdev_max_backlog`), and than a socket holds under the kernel's usual limit.
const AHEAD: usize = 4;
/// Bursts per stretch: the fastest stretch of a turn counts, because whatever else the machine does spoils some.
/// Every frame has landed at its end, so that none counts for the next.
const STRETCH: usize = 16;
/// After this time, a frame that has not landed is lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// Wire address of the region.
const IOVA: u64 = 1 << 40;

/// The cost of a frame in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) took: f64,
    /// CPU time of the whole machine.
    pub(super) busy: f64,
}

impl Measured {
    pub(super) const MAX: Measured = Measured { took: f64::MAX, busy: f64::MAX };

    /// The lesser time of each kind.
    pub(super) fn min_with(self, other: Measured) -> Measured {
        Measured { took: self.took.min(other.took), busy: self.busy.min(other.busy) }
    }
}

/// A sender and its target.
pub(super) struct Turn<'a> {
    pair: &'a VethPair,
    frames: u64,
}

impl Turn<'_> {
    pub(super) fn new(pair: &VethPair, frames: u64) -> anyhow::Result<Turn<'_>> {
        ensure!(
            frames.is_power_of_two() && frames >= BURST,
            "{frames} frames are not a power of two, {BURST} or more"
        );
        Ok(Turn { pair, frames })
    }

    /// Sends the frames by sockets of this `kind` to an Ethernet address that nobody has.
    pub(super) fn send_to_nobody(&mut self, case: &VethCase, kind: SocketKind) -> anyhow::Result<Measured> {
        let queue_pair = QueuePairInfo { qpn: 0x11, expected_psn: 0, max_dest_rd_atomic: 0 };
        let region = Registration { iova: IOVA, len: self.frames * case.slot_len(), rkey: 1 };
        let by = By::Frames { mac: NOBODY, from_mac: SENDER_MAC };
        let mut bursts = case.build_bursts(self.frames, &destination(by, queue_pair, region))?;
        send(&mut open_far_sender(kind)?, &mut bursts, |_| true)
    }

    /// Sends the frames to the software NIC on raw frames, both by sockets of this `kind`.
    pub(super) fn send_to_soft_nic(&mut self, case: &VethCase, kind: SocketKind) -> anyhow::Result<Measured> {
        let mut config = SoftNicConfig::new(SocketAddrV4::new(NEAR_IP, roce::PORT));
        config.mac = Some(SOFT_MAC);
        let nic = SoftNic::with_wire(config, &Wire { kind, interface: NEAR.into() })?;
        let by = By::Frames { mac: SOFT_MAC, from_mac: SENDER_MAC };
        self.send_through_link(case, &nic, by, |_| open_far_sender(kind)).context("the software NIC")
    }

    /// Sends the frames to soft-RoCE, through the collector's verbs backend.
    pub(super) fn send_raw_to_rxe(&mut self, case: &VethCase) -> anyhow::Result<Measured> {
        let by = By::Frames { mac: NEAR_MAC, from_mac: SENDER_MAC };
        self.send_to_rxe(case, by, |_| open_far_sender(SocketKind::Packet))
    }

    /// The same by UDP sockets of the far end, in runs or one by one.
    pub(super) fn rxe_by_sockets(&mut self, case: &VethCase, runs: bool) -> anyhow::Result<Measured> {
        let far = self.pair.far_with_address()?;
        let open = |qpn| {
            let address = SocketAddrV4::new(FAR_IP, roce::PORT).into();
            let config =
                if runs { UdpConfig::roce_in_runs(address) } else { UdpConfig::for_roce_frames(address) };
            far.run_inside(|| {
                let mut link = UdpLink::open(&config)?;
                // A socket stays in the namespace in which it was created.
                link.open_source(SocketAddrV4::new(FAR_IP, source_port(qpn)))?;
                ensure!(link.run_use() == RunUse { send: runs, receive: runs }, "{}", link.run_use());
                Ok(link)
            })
        };
        self.send_to_rxe(case, By::Sockets { runs }, open)
    }

    fn send_to_rxe<L: Link>(
        &mut self,
        case: &VethCase,
        by: By,
        open: impl FnOnce(u32) -> anyhow::Result<L>,
    ) -> anyhow::Result<Measured> {
        let _device = self.pair.add_rxe_device()?;
        let options = VerbsOptions {
            device: DEVICE.to_owned(),
            gid: GidWish { address: Some(NEAR_IP.into()), index: None },
            ..VerbsOptions::default()
        };
        // Declared after the device, so dropped before it.
        let nic = verbs::open(&options)?;
        self.send_through_link(case, &*nic, by, open).context("soft-RoCE")
    }

    /// Sends the frames to a NIC through the link that `open` makes for a queue pair.
    fn send_through_link<L: Link>(
        &mut self,
        case: &VethCase,
        nic: &dyn Nic,
        by: By,
        open: impl FnOnce(u32) -> anyhow::Result<L>,
    ) -> anyhow::Result<Measured> {
        let frames = self.frames;
        let len = (frames * case.slot_len()).next_multiple_of(4096);
        let region =
            Region::anonymous(len, IOVA, RegionOptions::default()).context("memory for the region")?;
        let region = Arc::new(region);
        // Every page exists before anything is measured.
        for page in 0..len / 4096 {
            region.store_u64(page * 4096, 0).context("inside the region")?;
        }
        let registration = nic.register_region(Arc::clone(&region), case.required_access())?;
        let mut peer = Endpoint::new(FAR_IP.into());
        peer.mac = SENDER_MAC;
        let queue_pair = nic.create_queue_pair(&QueuePairRequest {
            purpose: case.queue_pair_purpose(),
            transport: case.transport,
            peer,
            peer_qpn: 0x11,
            start_psn: 0,
            access: case.required_access(),
            receives: 0,
        })?;
        let mut bursts = case.build_bursts(frames, &destination(by, queue_pair, registration))?;
        let last_of = |burst: usize| (burst as u64 + 1) * BURST - 1;
        let mut link = open(queue_pair.qpn)?;
        let sent = send(&mut link, &mut bursts, |burst| case.has_landed(&region, last_of(burst), frames));
        let landed = (0..frames).filter(|&number| case.has_landed(&region, number, frames)).count() as u64;
        ensure!(
            landed == frames,
            "{} of {frames} frames did not land, so its figures would say nothing; counters: {:?}",
            frames - landed,
            nic.named_counters().iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>()
        );
        sent
    }
}

/// Sends from the far end. Without ports it receives nothing: the kernel drops answers, as nobody there has their
/// address.
fn open_far_sender(kind: SocketKind) -> anyhow::Result<WireLink> {
    Ok(WireLink::open(kind, &PacketConfig::new(FAR, []), None)?)
}

fn destination(by: By, queue_pair: QueuePairInfo, region: Registration) -> Destination {
    Destination { by, ip: NEAR_IP, from: FAR_IP, queue_pair, region }
}

/// Sends all bursts, at most `AHEAD` of them in flight: `landed` returns whether all frames up to the end of a burst
/// have landed.
fn send(
    link: &mut impl Link,
    bursts: &mut [PacketBatch],
    landed: impl Fn(usize) -> bool,
) -> anyhow::Result<Measured> {
    let wait = |burst: usize| {
        let since = Instant::now();
        while !landed(burst) {
            ensure!(since.elapsed() < PATIENCE, "burst {burst} did not land");
            // The NIC's thread is pinned to the same CPU, so this lets it run, and the CPU is never idle because of
            // the sender.
            std::thread::yield_now();
        }
        Ok(())
    };
    let start = Moment::now()?;
    let mut best = f64::MAX;
    let mut number = 0;
    for stretch in bursts.chunks_mut(STRETCH) {
        let (begun, first) = (Instant::now(), number);
        let mut frames = 0;
        for burst in stretch {
            if number >= first + AHEAD {
                wait(number - AHEAD)?;
            }
            let count = burst.len();
            let sent = link.send(burst)?;
            ensure!(sent == count, "{} frames were not sent: {:?}", count - sent, link.link_counters());
            frames += count;
            number += 1;
        }
        wait(number - 1)?;
        best = best.min(begun.elapsed().as_nanos() as f64 / frames as f64);
    }
    // Idle time is counted in hundredths of a second: enough for a turn, not for a stretch.
    let cpu = start.cpu_time_until(&Moment::now()?);
    Ok(Measured { took: best, busy: best * cpu.busy.as_secs_f64() / cpu.took.as_secs_f64() })
}

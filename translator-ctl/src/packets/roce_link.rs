//! The link for outgoing RoCEv2 frames and incoming answers: a UDP socket, raw frames on an interface, or an RDMA device
//! that makes the frames itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context as _;
use dta_dataplane::{Engine, EngineOutput, place_for_pair};
use dta_link::shared_ring::End;
use dta_link::{
    EthernetLink, HostLink, Ipv6FrameLink, Link, LinkCounters, PacketConfig, Result, RingCounters, RunUse,
    Scope, UdpConfig, UdpLink,
};
use dta_memory::nic::NicError;
use dta_memory::nic::verbs::send::{SendOptions, open_sender};
use dta_memory::nic::verbs::{GidWish, VerbsOptions};
use dta_proto::batch::PacketBatch;
use dta_proto::program::{
    DataPlaneChange, DataPlaneEntry, Endpoint, MAX_COLLECTORS, Mac, Program, Purpose, Transport,
};
use dta_proto::wire::roce::{BTH_LEN, ICRC_LEN, IMM_DT_LEN, RETH_LEN, settle_icrc};
use dta_proto::wire::{ipv4, ipv6, udp};
use dta_switch::DeviceSource;
use tracing::{info, warn};

use super::device_link::{DeviceCounters, DeviceLink};
use crate::config::TranslatorConfig;

/// Bytes of a write's packet besides its payload and IP header.
const WRITE_OVERHEAD: u32 = (udp::HEADER_LEN + BTH_LEN + RETH_LEN + IMM_DT_LEN + ICRC_LEN) as u32;

/// Bytes of a write's packet to this address, besides its payload.
fn write_overhead(to: IpAddr) -> u32 {
    WRITE_OVERHEAD + if to.is_ipv4() { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN } as u32
}

/// Operations of a store do not fit the link: a message of one packet cannot be split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "writes to store `{store}` are packets of {packet} bytes, but {path_limit}: set a smaller batch_len at the collector, or \
     raise the MTU"
)]
pub struct PacketTooLong {
    store: String,
    packet: u64,
    path_limit: String,
}

/// A UDP socket, raw frames under an address of our own, or an RDMA device.
pub enum RoceLink {
    /// Unprivileged; uses shared-memory rings to collectors on this host that offer one.
    Udp(Box<HostLink>),
    /// The same over IPv6, without rings.
    UdpIpv6(Box<Ipv6FrameLink>),
    /// Whole frames: needed by a NIC behind a wire.
    Ethernet(Box<EthernetLink>),
    /// Work requests instead of frames.
    Device(Box<DeviceLink>),
}

impl RoceLink {
    /// Opens the configured link. Returns the endpoint for the collector's answers.
    ///
    /// # Errors
    /// As for the links.
    pub fn open(config: &TranslatorConfig) -> anyhow::Result<(RoceLink, Endpoint)> {
        match &config.device {
            Some(device) => open_device(config, device).context("cannot post to the RDMA device (--device)"),
            None => RoceLink::open_frames(config)
                .context("cannot send frames and receive the NIC's answers (--source, --source-port)"),
        }
    }

    fn open_frames(config: &TranslatorConfig) -> Result<(RoceLink, Endpoint)> {
        let endpoint = config.frame_endpoint();
        let source = SocketAddr::new(config.source, config.source_port);
        let Some(wire) = &config.link else {
            if let SocketAddr::V6(source) = source {
                let link = Ipv6FrameLink::open(source)?;
                let port = link.local_addr().port();
                return Ok((RoceLink::UdpIpv6(Box::new(link)), Endpoint { port, ..endpoint }));
            }
            // In reference mode, frames leave as they are made.
            let udp = match config.runs && !config.reference {
                true => UdpConfig::roce_in_runs(source),
                false => UdpConfig::for_roce_frames(source),
            };
            let link = UdpLink::open(&udp)?;
            let (port, runs) = (link.local_addr().port(), link.run_use().receive);
            return Ok((RoceLink::from_udp_link(link), Endpoint { port, runs, ..endpoint }));
        };
        let ports = PacketConfig::new(&*wire.interface, [config.source_port]);
        let link = EthernetLink::open_with_kind(wire.kind, &ports, config.source)?;
        match link.wire_link().fallback_reason() {
            None => info!(%wire, frames = link.wire_link().describe(), "the link to collectors"),
            Some(_) => warn!(%wire, frames = link.wire_link().describe(), "the link to collectors"),
        }
        let mac = link.interface().mac;
        Ok((RoceLink::Ethernet(Box::new(link)), Endpoint { mac: Mac(mac), ..endpoint }))
    }

    /// A UDP socket without rings.
    pub fn from_udp_link(link: UdpLink) -> RoceLink {
        RoceLink::Udp(Box::new(HostLink::new(link)))
    }

    /// How runs of frames are handled on a UDP socket.
    pub fn udp_run_use(&self) -> Option<RunUse> {
        match self {
            RoceLink::Udp(link) => Some(link.udp_link().run_use()),
            RoceLink::UdpIpv6(_) | RoceLink::Ethernet(_) | RoceLink::Device(_) => None,
        }
    }

    /// Learns the destinations of the queue pairs among `changes`.
    pub fn learn_destinations(&mut self, changes: &[DataPlaneChange]) {
        let RoceLink::Ethernet(link) = self else { return };
        for change in changes {
            if let DataPlaneChange::Insert { entry: DataPlaneEntry::QueuePair(pair) }
            | DataPlaneChange::Modify { to: DataPlaneEntry::QueuePair(pair), .. } = change
            {
                link.add_neighbour(pair.destination.ip, pair.destination.known_mac().map(|mac| mac.0));
            }
        }
    }

    /// Checks that the packets of a program's stores fit the link.
    ///
    /// # Errors
    /// The first store whose packets do not.
    pub fn check_packet_lengths(&self, program: &Program) -> std::result::Result<(), PacketTooLong> {
        let mut limits = BTreeMap::new();
        for entry in program.entries() {
            if let DataPlaneEntry::QueuePair(pair) = entry
                && let Some(limit) = self.path_limit(pair.destination)
            {
                limits.insert(pair.collector, (limit, write_overhead(pair.destination.ip)));
            }
        }
        for entry in program.entries() {
            let DataPlaneEntry::Store(store) = entry else { continue };
            let Some(((most, path_limit), overhead)) = limits.get(&store.collector) else { continue };
            let packet = u64::from(*overhead) + store.spec.element_len();
            if packet > *most {
                let (store, path_limit) = (store.spec.name.clone(), path_limit.clone());
                return Err(PacketTooLong { store, packet, path_limit });
            }
        }
        Ok(())
    }

    /// The longest packet to a collector's NIC, and why; `None` as long as there is no route.
    fn path_limit(&self, nic: Endpoint) -> Option<(u64, String)> {
        match self {
            RoceLink::Udp(link) => {
                let IpAddr::V4(ip) = nic.ip else { return None };
                let mtu = link.udp_link().path_mtu(SocketAddrV4::new(ip, nic.port)).ok()?;
                Some((mtu.into(), describe_path_mtu(nic.ip, mtu)))
            }
            RoceLink::UdpIpv6(link) => {
                let IpAddr::V6(ip) = nic.ip else { return None };
                let mtu = link.path_mtu(SocketAddrV6::new(ip, nic.port, 0, 0)).ok()?;
                Some((mtu.into(), describe_path_mtu(nic.ip, mtu)))
            }
            RoceLink::Ethernet(link) => {
                let interface = link.interface();
                let (name, mtu) = (&interface.name, interface.mtu);
                Some((mtu.into(), format!("the interface {name} carries {mtu} (its MTU)")))
            }
            // It would split a longer payload into several packets, and count a PSN for each.
            RoceLink::Device(link) => {
                let (device, mtu) = (link.device_name(), link.payload_len());
                let most = u64::from(write_overhead(nic.ip) + mtu);
                let limit =
                    format!("those of the RDMA device {device} have {most} (its active MTU is {mtu})");
                Some((most, limit))
            }
        }
    }

    /// Whether frames can be sent: each destination's Ethernet address is known, or it was silent for so long
    /// that frames to it now count as unreachable. Call it repeatedly until true.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub fn resolve_destinations(&mut self) -> Result<bool> {
        match self {
            RoceLink::Udp(_) | RoceLink::UdpIpv6(_) | RoceLink::Device(_) => Ok(true),
            RoceLink::Ethernet(link) => link.resolve_neighbours(),
        }
    }

    /// Sends frames to the NIC at the other end of `end` through the ring from now on.
    pub fn add_ring(&mut self, end: End) {
        if let RoceLink::Udp(link) = self {
            link.add(end);
        }
    }

    /// Whether frames to the NIC at this address go through a ring.
    pub fn has_ring(&self, nic: SocketAddrV4) -> bool {
        matches!(self, RoceLink::Udp(link) if link.has_ring(nic))
    }

    /// Logs which rings have ended.
    pub fn log_ended_rings(&mut self) {
        let RoceLink::Udp(link) = self else { return };
        for (collector, over) in link.take_over() {
            warn!(%collector, reason = %over, "the ring has ended: frames go by UDP until there is a new one");
        }
    }

    /// Waits for answers, or for something at `others`.
    ///
    /// # Errors
    /// As [`dta_link::wait_readable`].
    pub fn wait_for_answers(&mut self, others: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool> {
        match self {
            RoceLink::Udp(link) => link.wait_for_input(others, Some(timeout)),
            RoceLink::UdpIpv6(link) => wait_for_any(link.as_fd(), others, timeout),
            RoceLink::Ethernet(link) => wait_for_any(link.as_fd(), others, timeout),
            RoceLink::Device(link) => link.wait_for_completions(others, timeout),
        }
    }

    /// If there is an RDMA device: the source of its frames to a collector. `writes` is the transport of writes.
    ///
    /// # Errors
    /// The device is away.
    pub fn device_source(
        &mut self,
        collector: u8,
        writes: Transport,
    ) -> std::result::Result<Option<DeviceSource>, NicError> {
        match self {
            RoceLink::Device(link) => link.source_for(collector, writes).map(Some),
            RoceLink::Udp(_) | RoceLink::UdpIpv6(_) | RoceLink::Ethernet(_) => Ok(None),
        }
    }

    /// Connects an RDMA device's queue pairs as `changes` say, right before the engine applies them.
    ///
    /// # Errors
    /// The device, or the collector's, is away.
    pub fn connect_changed(
        &mut self,
        changes: &[DataPlaneChange],
        engine: &mut Engine,
        out: &mut EngineOutput,
    ) -> std::result::Result<(), NicError> {
        match self {
            RoceLink::Device(link) => link.connect_changed(changes, engine, out),
            RoceLink::Udp(_) | RoceLink::UdpIpv6(_) | RoceLink::Ethernet(_) => Ok(()),
        }
    }

    /// Posts the engine's work requests, if it makes any.
    pub fn post_requests(&mut self, out: &mut EngineOutput, engine: &mut Engine) {
        if let RoceLink::Device(link) = self
            && !out.requests.is_empty()
        {
            link.post_requests(out, engine);
            out.requests.clear();
            out.meta.clear();
        }
    }

    /// Passes an RDMA device's completions to the engine. Returns their number.
    pub fn take_completions(&mut self, now: u64, engine: &mut Engine, out: &mut EngineOutput) -> usize {
        match self {
            RoceLink::Device(link) => link.take_answers(now, engine, out),
            RoceLink::Udp(_) | RoceLink::UdpIpv6(_) | RoceLink::Ethernet(_) => 0,
        }
    }

    /// Whether anything sent on a queue pair is lost before it leaves, as far as is known.
    pub fn is_pair_down(&self, collector: u8, purpose: Purpose) -> bool {
        matches!(self, RoceLink::Device(link) if link.is_down(place_for_pair(collector, purpose)))
    }

    /// Counters of the RDMA device, if there is one.
    pub fn device_counters(&self) -> Option<DeviceCounters> {
        match self {
            RoceLink::Device(link) => Some(link.device_counters()),
            RoceLink::Udp(_) | RoceLink::UdpIpv6(_) | RoceLink::Ethernet(_) => None,
        }
    }

    /// Waits until everything has left: nothing comes after it.
    pub fn finish(&mut self, engine: &mut Engine, out: &mut EngineOutput) {
        if let RoceLink::Device(link) = self {
            link.finish(engine, out);
        }
    }

    pub fn silent_destinations(&self) -> Vec<IpAddr> {
        match self {
            RoceLink::Udp(_) | RoceLink::UdpIpv6(_) | RoceLink::Device(_) => Vec::new(),
            RoceLink::Ethernet(link) => link.silent_neighbours().collect(),
        }
    }
}

impl Link for RoceLink {
    fn recv(&mut self, batch: &mut PacketBatch, timeout: Option<Duration>) -> Result<usize> {
        match self {
            RoceLink::Udp(link) => {
                let received = link.recv(batch, timeout)?;
                for index in 0..batch.len() {
                    if batch.id_unknown(index) {
                        settle_icrc(batch.packet_mut(index));
                    }
                }
                Ok(received)
            }
            RoceLink::UdpIpv6(link) => link.recv(batch, timeout),
            RoceLink::Ethernet(link) => link.recv(batch, timeout),
            RoceLink::Device(_) => {
                batch.clear();
                Ok(0)
            }
        }
    }

    fn send(&mut self, batch: &mut PacketBatch) -> Result<usize> {
        match self {
            RoceLink::Udp(link) => link.send(batch),
            RoceLink::UdpIpv6(link) => link.send(batch),
            RoceLink::Ethernet(link) => link.send(batch),
            // The engine makes no frames for it.
            RoceLink::Device(_) => Ok(0),
        }
    }

    fn link_counters(&self) -> LinkCounters {
        match self {
            RoceLink::Udp(link) => link.link_counters(),
            RoceLink::UdpIpv6(link) => link.link_counters(),
            RoceLink::Ethernet(link) => link.link_counters(),
            RoceLink::Device(link) => link.link_counters(),
        }
    }

    fn ring_counters(&self) -> RingCounters {
        match self {
            RoceLink::Udp(link) => link.ring_counters(),
            RoceLink::UdpIpv6(link) => link.ring_counters(),
            RoceLink::Ethernet(link) => link.ring_counters(),
            RoceLink::Device(_) => RingCounters::default(),
        }
    }

    fn corruption_scope(&self) -> Scope {
        match self {
            RoceLink::Udp(link) => link.corruption_scope(),
            RoceLink::UdpIpv6(link) => link.corruption_scope(),
            RoceLink::Ethernet(link) => link.corruption_scope(),
            // No frame passes through here.
            RoceLink::Device(_) => Scope::Payload,
        }
    }
}

/// Waits until one of several receivers has something.
fn wait_for_any(own: BorrowedFd<'_>, others: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool> {
    let all: Vec<_> = std::iter::once(own).chain(others.iter().copied()).collect();
    dta_link::wait_readable(&all, Some(timeout))
}

fn describe_path_mtu(to: IpAddr, mtu: u32) -> String {
    format!("the path to {to} carries {mtu} (its MTU)")
}

fn open_device(config: &TranslatorConfig, device: &str) -> anyhow::Result<(RoceLink, Endpoint)> {
    let collectors = if config.cluster.is_some() { MAX_COLLECTORS.into() } else { config.collector.count() };
    let options = SendOptions {
        verbs: VerbsOptions {
            device: device.to_owned(),
            // Loopback, the address of frames by socket, takes the first GID of its family.
            gid: GidWish { address: Some(config.source), index: None },
            ..VerbsOptions::default()
        },
        depth: config.rc.window,
        queue_pairs: (Purpose::ALL.len() * collectors) as u32,
    };
    let (link, endpoint) = DeviceLink::open(device, Box::new(move || open_sender(&options)))?;
    Ok((RoceLink::Device(Box::new(link)), endpoint))
}

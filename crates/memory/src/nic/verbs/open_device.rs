//! An open device: its regions and passive queue pairs. It is usable as long as the device exists.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::num::TryFromIntError;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dta_proto::counter::nic as names;
use dta_proto::queue_pair::has_24_bits;
use dta_proto::wire::ethernet::Mac;
use ibverbs_sys::ibv_qp_state;
use rustix::io::Errno;
use tracing::{info, warn};

use super::devices::{DeviceInfo, DeviceLimits, PortInfo};
use super::error::{self, VerbsError};
use super::ffi::{Completion, Completions, MemoryRegion, ProtectionDomain, QueuePairPath, VerbsQueuePair};
use super::gid::{self, GidEntry};
use super::{VerbsOptions, query};
use crate::nic::{
    Access, Device, Endpoint, Immediate, NicError, Purpose, QueuePairInfo, QueuePairRequest, QueuePairState,
    QueuePairStatus, ROCE_PORT, Registration, Transport,
};
use crate::region::Region;

/// Receives posted at once over all queue pairs: the size of the single completion queue.
const COMPLETIONS: u32 = 16384;
/// Most atomics in flight that a device is asked for. Each takes device memory, and no translator uses more.
const RD_ATOMIC: u32 = 128;

#[derive(Debug, Default)]
pub(super) struct VerbsTallies {
    errors: AtomicU64,
    immediates: AtomicU64,
}

impl VerbsTallies {
    pub(super) fn to_named_counts(&self) -> [(String, u64); 2] {
        [
            (names::DEVICE_QUEUE_PAIR_ERRORS.format_name(&[]), self.errors.load(Ordering::Relaxed)),
            (names::DEVICE_IMMEDIATES.format_name(&[]), self.immediates.load(Ordering::Relaxed)),
        ]
    }
}

/// An open RDMA device: regions, and passive queue pairs in state RTR.
pub(super) struct OpenDevice {
    device: Device,
    limits: DeviceLimits,
    atomics: &'static str,
    port: u8,
    /// The GID of [`Device::endpoint`], and the one for peers of the other family, if there is one.
    gids: Vec<LocalGid>,
    mtu: u32,
    node: DeviceNode,
    tallies: Arc<VerbsTallies>,
    state: Mutex<OpenDeviceState>,
    completions: Arc<Completions>,
    domain: Arc<ProtectionDomain>,
}

/// This side's GID and address in packets of one family.
struct LocalGid {
    index: u8,
    interface: String,
    endpoint: Endpoint,
}

impl LocalGid {
    fn from_entry(entry: &GidEntry) -> Result<LocalGid, TryFromIntError> {
        let interface = entry.interface.clone().unwrap_or_default();
        // The device reads the IPv4 id of each frame, so it can check frames that a run numbers.
        let endpoint =
            Endpoint { mac: interface_mac(&interface), runs: true, ..Endpoint::new(entry.ip_address()) };
        Ok(LocalGid { index: u8::try_from(entry.index)?, interface, endpoint })
    }
}

#[derive(Default)]
struct OpenDeviceState {
    regions: BTreeMap<u32, MemoryRegion>,
    queue_pairs: BTreeMap<u32, Passive>,
}

struct Passive {
    queue_pair: VerbsQueuePair,
    request: QueuePairRequest,
    state: QueuePairState,
    immediates: u64,
}

/// Where the kernel shows a device to programs. It vanishes as soon as the device is removed, even if the kernel then
/// delays the rest until programs have closed the device, as for drivers that cannot take a device away from them
/// (`ib_uverbs_remove_one`; rxe).
pub(super) struct DeviceNode {
    path: PathBuf,
    /// A later device may have the same name.
    inode: u64,
}

impl DeviceNode {
    pub(super) fn new(name: &str) -> io::Result<DeviceNode> {
        let path = PathBuf::from("/sys/class/infiniband_verbs").join(name);
        let inode = std::fs::metadata(&path)?.ino();
        Ok(DeviceNode { path, inode })
    }

    pub(super) fn is_present(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|now| now.ino() == self.inode)
    }
}

impl OpenDevice {
    /// Opens a device, chooses port and GID, and logs them.
    pub(super) fn open(options: &VerbsOptions, tallies: Arc<VerbsTallies>) -> Result<OpenDevice, VerbsError> {
        let name = options.device.as_str();
        let context = Arc::new(query::open(name)?);
        let cannot_open = |source: io::Error| error::cannot_open(name, source);
        let node = DeviceNode::new(&context.kernel_node_name()).map_err(cannot_open)?;
        let about = query::describe_device(name, &context).map_err(cannot_open)?;
        let (port, entry) = choose_port_and_gid(&about, options)?;
        info!(
            device = name,
            port = port.number,
            gid_index = entry.index,
            gid_type = %entry.kind,
            address = %entry.ip_address(),
            interface = entry.interface.as_deref().unwrap_or("unknown"),
            mtu = port.active_mtu,
            atomics = about.atomics,
            "RDMA device"
        );
        if let Some(wish) = options.gid.address
            && wish != entry.ip_address()
        {
            warn!(%wish, chosen = %entry.ip_address(), "no RoCE v2 GID has the configured address; using another");
        }

        let domain = Arc::new(ProtectionDomain::new(context.clone()).map_err(cannot_open)?);
        let entries = COMPLETIONS.min(about.limits.completions);
        let completions = Arc::new(Completions::new(context, entries).map_err(cannot_open)?);
        // If an index was asked for, no other one is used.
        let other = match options.gid.index {
            None => gid::choose_gid_of_other_family(&port.gids, entry),
            Some(_) => None,
        };
        let gids = std::iter::once(entry).chain(other).map(LocalGid::from_entry);
        let gids: Vec<LocalGid> =
            gids.collect::<Result<_, _>>().map_err(|e| cannot_open(io::Error::other(e)))?;
        let device = Device {
            name: name.to_owned(),
            endpoint: gids[0].endpoint,
            mtu: port.active_mtu,
            max_dest_rd_atomic: options
                .max_dest_rd_atomic
                .map_or(RD_ATOMIC, u32::from)
                .min(about.limits.rd_atomic)
                .min(255) as u8,
            atomics: about.atomics != "none",
        };
        Ok(OpenDevice {
            limits: about.limits,
            atomics: about.atomics,
            port: port.number,
            gids,
            mtu: port.active_mtu,
            node,
            tallies,
            state: Mutex::new(OpenDeviceState::default()),
            completions,
            domain,
            device,
        })
    }

    /// Whether the device still exists. When it is removed, the kernel takes it from programs at once, but may delay
    /// the rest until they have closed it.
    pub(super) fn is_present(&self) -> bool {
        self.node.is_present()
    }

    /// Ends all queue pairs: from here on no packet is executed, and counters of received packets stand still.
    pub(super) fn end_queue_pairs(&self) {
        let ended = std::mem::take(&mut self.lock_state().queue_pairs);
        // Not under the lock: the kernel may wait for packets in hand.
        drop(ended);
    }

    pub(super) fn port_number(&self) -> u8 {
        self.port
    }

    fn lock_state(&self) -> MutexGuard<'_, OpenDeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn system_error(&self, action: &str, source: io::Error) -> NicError {
        if matches!(Errno::from_io_error(&source), Some(Errno::NODEV | Errno::IO)) {
            let gone = format!("the RDMA device `{}` is gone ({source})", self.device.name);
            return VerbsError::Away(gone).into();
        }
        NicError::System { action: format!("{action} on `{}`", self.device.name), source }
    }

    /// Reads the immediates of completed receives as [`Nic::take_immediates`](crate::nic::Nic::take_immediates) does,
    /// but posts no new receives.
    pub(super) fn read_immediates(
        &self,
        out: &mut Vec<Immediate>,
        timeout: Duration,
    ) -> Result<(), NicError> {
        let mut completed: Vec<Completion> = Vec::new();
        self.completions
            .take(&mut completed, timeout)
            .map_err(|source| self.system_error("read completions", source))?;
        if completed.is_empty() {
            return Ok(());
        }
        let mut state = self.lock_state();
        for Completion { qpn, len, immediate } in completed {
            // Receives of a queue pair in ERROR complete without an immediate; reposted, they would do so again.
            let Some(value) = immediate else { continue };
            out.push(Immediate { qpn, value, len });
            self.tallies.immediates.fetch_add(1, Ordering::Relaxed);
            if let Some(passive) = state.queue_pairs.get_mut(&qpn) {
                passive.immediates += 1;
            }
        }
        Ok(())
    }

    /// Posts `count` more receives to a queue pair; none if it has ended.
    pub(super) fn post_receives(&self, qpn: u32, count: u32) -> Result<(), NicError> {
        match self.lock_state().queue_pairs.get(&qpn) {
            Some(passive) => passive
                .queue_pair
                .post_receives(count)
                .map_err(|source| self.system_error("post receives", source)),
            None => Ok(()),
        }
    }

    fn gid_for_peer(&self, peer: IpAddr) -> Option<&LocalGid> {
        self.gids.iter().find(|gid| gid.endpoint.ip.is_ipv4() == peer.is_ipv4())
    }

    /// As [`crate::nic::Nic::endpoint_for_peer`].
    pub(super) fn endpoint_for_peer(&self, peer: IpAddr) -> Endpoint {
        self.gid_for_peer(peer).map_or(self.device.endpoint, |gid| gid.endpoint)
    }

    fn check_request(&self, request: &QueuePairRequest, posted: u32) -> Result<(), NicError> {
        let wrong = |field, value: String, must| Err(NicError::Request { field, value, must });
        if !has_24_bits(request.peer_qpn) {
            return wrong("peer_qpn", request.peer_qpn.to_string(), "a 24-bit number");
        }
        if !has_24_bits(request.start_psn) {
            return wrong("start_psn", request.start_psn.to_string(), "a 24-bit number");
        }
        if request.peer.port != ROCE_PORT {
            return wrong(
                "peer.port",
                request.peer.port.to_string(),
                "4791: an RDMA device sends to no other port",
            );
        }
        let room = COMPLETIONS.min(self.limits.completions).saturating_sub(posted);
        if request.receives > room.min(self.limits.work_requests) {
            return wrong(
                "receives",
                request.receives.to_string(),
                "within what the device can hold in addition to the others",
            );
        }
        if request.transport == Transport::Uc && request.purpose == Purpose::Atomic {
            return wrong("transport", "UC".to_owned(), "RC for atomics");
        }
        Ok(())
    }

    /// Makes a queue pair in state RTR, or reports the step that failed.
    fn bring_up_queue_pair(&self, request: &QueuePairRequest) -> Result<VerbsQueuePair, NicError> {
        let peer = request.peer.ip;
        let Some(gid) = self.gid_for_peer(peer) else {
            return Err(VerbsError::Away(format!(
                "the RDMA device `{}` has no RoCE v2 GID of the address family of its peer {peer}, only {}; give its network \
                 interface such an address, or have the translator send from another (its `source`)",
                self.device.name, self.device.endpoint.ip
            ))
            .into());
        };
        let queue_pair = VerbsQueuePair::new(
            self.domain.clone(),
            self.completions.clone(),
            request.transport,
            request.receives,
        )
        .map_err(|source| match Errno::from_io_error(&source) {
            Some(Errno::NOMEM) => NicError::TooManyQueuePairs {
                device: self.device.name.clone(),
                limit: self.limits.queue_pairs as usize,
            },
            _ => self.system_error("make a queue pair", source),
        })?;
        queue_pair
            .initialise(self.port, request.access)
            .map_err(|source| self.system_error("move a queue pair to INIT", source))?;
        // Before the first packet can arrive.
        queue_pair
            .post_receives(request.receives)
            .map_err(|source| self.system_error("post receives", source))?;
        queue_pair
            .receive_from(&QueuePairPath {
                port: self.port,
                gid_index: gid.index,
                peer_gid: request.peer.to_gid(),
                peer_qpn: request.peer_qpn,
                start_psn: request.start_psn,
                mtu: self.mtu,
                rd_atomic: self.device.max_dest_rd_atomic,
            })
            .map_err(|source| error::cannot_receive_from(peer, &self.device.name, &gid.interface, source))?;
        Ok(queue_pair)
    }
}

pub(super) fn choose_port_and_gid<'a>(
    about: &'a DeviceInfo,
    options: &VerbsOptions,
) -> Result<(&'a PortInfo, &'a GidEntry), VerbsError> {
    let device = &about.name;
    let usable = |port: &PortInfo| -> Result<(), VerbsError> {
        let refuse = |state: String, cure| {
            let port = port.number;
            Err(VerbsError::Away(format!("port {port} of the RDMA device `{device}` is {state}; {cure}")))
        };
        if port.link != "ethernet" {
            return refuse(
                format!("of link layer {}", port.link),
                "RoCEv2 needs Ethernet: set the port's link type with mlxconfig, or use another",
            );
        }
        if port.state != "active" {
            return refuse(
                port.state.to_owned(),
                "bring its network interface up (`ip link set IFACE up`) and see that the cable has a link",
            );
        }
        Ok(())
    };
    let gid = |port: &'a PortInfo| {
        gid::choose_gid(&port.gids, options.gid)
            .map_err(|why| VerbsError::Away(format!("the RDMA device `{device}` cannot be used: {why}")))
    };
    let no_port = |port: u8| {
        let ports = about.ports.len();
        VerbsError::Unusable(format!("the RDMA device `{device}` has ports 1 to {ports}, not {port}"))
    };
    if let Some(number) = options.port {
        let port = about.ports.iter().find(|p| p.number == number).ok_or_else(|| no_port(number))?;
        usable(port)?;
        return Ok((port, gid(port)?));
    }
    let mut found = Vec::new();
    let mut first_error = None;
    for port in &about.ports {
        match usable(port).and_then(|()| gid(port)) {
            Ok(entry) => found.push((port, entry)),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    // A port with the requested address comes before a lower one without it.
    let wished = |entry: &GidEntry| options.gid.address == Some(entry.ip_address());
    found.sort_by_key(|(port, entry)| (!wished(entry), port.number));
    found.first().copied().ok_or_else(|| first_error.unwrap_or_else(|| no_port(1)))
}

pub(super) fn interface_mac(interface: &str) -> Mac {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"));
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default()
}

fn queue_pair_state(state: ibv_qp_state::Type) -> QueuePairState {
    match state {
        ibv_qp_state::IBV_QPS_RTR | ibv_qp_state::IBV_QPS_RTS => QueuePairState::ReadyToReceive,
        _ => QueuePairState::Error,
    }
}

impl OpenDevice {
    pub(super) fn device_description(&self) -> Device {
        self.device.clone()
    }

    /// As [`crate::nic::Nic::register_region`].
    pub(super) fn register(&self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        let (iova, len) = (region.wire_address(), region.len());
        let device = &self.device.name;
        if len > self.limits.region_len {
            return Err(VerbsError::Unusable(format!(
                "the RDMA device `{device}` supports regions of at most {} bytes (max_mr_size), not {len}; make the store smaller",
                self.limits.region_len
            ))
            .into());
        }
        if access.remote_atomic && !self.device.atomics {
            return Err(VerbsError::Unusable(format!(
                "the RDMA device `{device}` does not support atomics (its capability is {}), which stores of kind key-increment need; leave those out, or use another device",
                self.atomics
            ))
            .into());
        }
        if !region.is_writable() {
            return Err(NicError::Region { iova, len, reason: "it is open for reading only" });
        }
        let mut state = self.lock_state();
        let pinned: u64 = state.regions.values().map(MemoryRegion::len).sum();
        let region = MemoryRegion::new(self.domain.clone(), region, access).map_err(|source| {
            // The kernel returns ENOMEM both for too much locked memory and for too many regions.
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            match (Errno::from_io_error(&source), limit) {
                (Some(Errno::NOMEM | Errno::AGAIN | Errno::PERM), Some(limit)) if pinned + len > limit => {
                    VerbsError::Unusable(format!(
                        "cannot pin {len} bytes for the RDMA device `{device}` on top of {pinned} already pinned: this process may lock {limit} (RLIMIT_MEMLOCK); raise it with `ulimit -l`, or LimitMEMLOCK=infinity in its systemd unit, or run it with CAP_IPC_LOCK"
                    ))
                    .into()
                }
                (Some(Errno::NOMEM), _) if state.regions.len() >= self.limits.regions as usize => {
                    let limit = self.limits.regions as usize;
                    NicError::TooManyRegistrations { device: device.clone(), limit }
                }
                _ => self.system_error("register a region", source),
            }
        })?;
        let rkey = region.remote_key();
        state.regions.insert(rkey, region);
        Ok(Registration { iova, len, rkey })
    }

    /// As [`crate::nic::Nic::deregister`].
    pub(super) fn deregister(&self, rkey: u32) -> Result<(), NicError> {
        self.lock_state().regions.remove(&rkey).map(drop).ok_or(NicError::NoRegistration)
    }

    /// As [`crate::nic::Nic::create_queue_pair`].
    pub(super) fn create_queue_pair(&self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        let posted = self.lock_state().queue_pairs.values().map(|q| q.request.receives).sum();
        self.check_request(request, posted)?;
        // Resolving the peer's Ethernet address can take seconds: not under the lock.
        let queue_pair = self.bring_up_queue_pair(request)?;
        let qpn = queue_pair.queue_pair_number();
        self.lock_state().queue_pairs.insert(
            qpn,
            Passive {
                queue_pair,
                request: request.clone(),
                state: QueuePairState::ReadyToReceive,
                immediates: 0,
            },
        );
        Ok(QueuePairInfo {
            qpn,
            expected_psn: request.start_psn,
            max_dest_rd_atomic: match request.transport {
                Transport::Rc => self.device.max_dest_rd_atomic,
                Transport::Uc => 0,
            },
        })
    }

    /// As [`crate::nic::Nic::destroy_queue_pair`].
    pub(super) fn destroy_queue_pair(&self, qpn: u32) -> Result<Option<u32>, NicError> {
        let ended = self.lock_state().queue_pairs.remove(&qpn).ok_or(NicError::NoQueuePair { qpn })?;
        Ok(ended
            .queue_pair
            .enter_error_state()
            .inspect_err(|error| warn!(%error, "cannot read the expected PSN of a queue pair"))
            .ok())
    }

    /// As [`crate::nic::Nic::queue_pairs`].
    pub(super) fn queue_pairs(&self) -> Result<Vec<QueuePairStatus>, NicError> {
        let mut state = self.lock_state();
        let mut all = Vec::with_capacity(state.queue_pairs.len());
        for (&qpn, passive) in &mut state.queue_pairs {
            let (now, expected_psn) = passive
                .queue_pair
                .query_state()
                .map_err(|source| self.system_error("query a queue pair", source))?;
            let now = queue_pair_state(now);
            if now == QueuePairState::Error && passive.state != now {
                self.tallies.errors.fetch_add(1, Ordering::Relaxed);
                warn!(qpn = format_args!("{qpn:#08x}"), expected_psn, "queue pair fell into ERROR");
            }
            passive.state = now;
            all.push(QueuePairStatus {
                qpn,
                request: passive.request.clone(),
                state: now,
                expected_psn,
                counters: vec![(names::DEVICE_IMMEDIATES.format_name(&[]), passive.immediates)],
            });
        }
        Ok(all)
    }
}

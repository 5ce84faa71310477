//! A sending device, through libibverbs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use tracing::info;

use super::ffi::{
    Completions, MemoryRegion, ProtectionDomain, QueuePairPath, SendChain, Sending, VerbsQueuePair,
};
use super::open_device::{DeviceNode, choose_port_and_gid, interface_mac};
use super::send::{SendCompletion, SendDevice, SendOptions, SendPeer, SendRequest};
use super::{VerbsError, error, query};
use crate::nic::{Access, Endpoint, NicError, Transport};
use crate::region::{Region, RegionOptions};

/// Work requests that a queue pair holds, if the device has room for them.
const QUEUE_DEPTH: u32 = 1024;
/// Bytes of payload that a queue pair accepts within the request, if the device can.
const INLINE_LEN: u32 = 128;
/// Address of payloads in work requests, which only the device uses.
const PAYLOAD_ADDRESS: u64 = 1 << 36;
/// How long the device waits for an answer before it resends, 4.096 µs · 2^14 = 67 ms; RC only.
const ACK_TIMEOUT: u8 = 14;

/// An RDMA device with sending queue pairs.
pub(super) struct VerbsSender {
    // Dropped in this order.
    queue_pairs: BTreeMap<u32, SendQueuePair>,
    chain: SendChain,
    completions: Arc<Completions>,
    domain: Arc<ProtectionDomain>,
    node: DeviceNode,
    device: String,
    interface: String,
    endpoint: Endpoint,
    port: u8,
    gid_index: u8,
    mtu: u32,
    rd_atomic: u8,
    depth: u32,
    max_queue_pairs: u32,
}

struct SendQueuePair {
    queue_pair: VerbsQueuePair,
    /// Payloads of posted requests, by place; the values that atomics return also land there.
    payloads: MemoryRegion,
    /// Place of the next request.
    next: u32,
    /// Atomics that it may have in flight; RC only.
    rd_atomic: u8,
}

impl VerbsSender {
    pub(super) fn open(options: &SendOptions) -> Result<VerbsSender, NicError> {
        let device = options.verbs.device.clone();
        let context = Arc::new(query::open(&device)?);
        let cannot_open = |source: io::Error| error::cannot_open(&device, source);
        let node = DeviceNode::new(&context.kernel_node_name()).map_err(cannot_open)?;
        let about = query::describe_device(&device, &context).map_err(cannot_open)?;
        let (port, entry) = choose_port_and_gid(&about, &options.verbs)?;
        let depth = QUEUE_DEPTH.max(options.depth).min(about.limits.work_requests);
        if depth < options.depth {
            return Err(VerbsError::Unusable(format!(
                "the RDMA device `{device}` has room for {depth} work requests of a queue pair, not {}; lower `rc.window`",
                options.depth
            ))
            .into());
        }
        let interface = entry.interface.clone().unwrap_or_default();
        info!(
            device,
            port = port.number,
            gid_index = entry.index,
            address = %entry.ip_address(),
            interface,
            mtu = port.active_mtu,
            atomics = about.atomics,
            "RDMA device to send"
        );
        // Never more completions than there is room for: the device would stop.
        let entries = depth.saturating_mul(options.queue_pairs).min(about.limits.completions);
        let completions = Arc::new(Completions::new(Arc::clone(&context), entries).map_err(cannot_open)?);
        let domain = Arc::new(ProtectionDomain::new(context).map_err(cannot_open)?);
        Ok(VerbsSender {
            queue_pairs: BTreeMap::new(),
            chain: SendChain::default(),
            completions,
            domain,
            node,
            endpoint: Endpoint {
                mac: interface_mac(&interface),
                runs: true,
                ..Endpoint::new(entry.ip_address())
            },
            interface,
            port: port.number,
            gid_index: u8::try_from(entry.index).map_err(|e| cannot_open(io::Error::other(e)))?,
            mtu: port.active_mtu,
            rd_atomic: about.limits.rd_atomic_sent.min(255) as u8,
            depth,
            max_queue_pairs: entries / depth,
            device,
        })
    }

    fn system_error(&self, action: &str, source: io::Error) -> NicError {
        NicError::System { action: format!("{action} on `{}`", self.device), source }
    }

    fn queue_pair_by_number(&self, qpn: u32) -> Result<&SendQueuePair, NicError> {
        self.queue_pairs.get(&qpn).ok_or(NicError::NoQueuePair { qpn })
    }
}

impl SendDevice for VerbsSender {
    fn local_endpoint(&self) -> Endpoint {
        self.endpoint
    }

    fn is_present(&self) -> bool {
        self.node.is_present()
    }

    fn make_queue_pair(&mut self, transport: Transport) -> Result<u32, NicError> {
        if self.queue_pairs.len() >= self.max_queue_pairs as usize {
            return Err(VerbsError::Unusable(format!(
                "the RDMA device `{}` has room for the completions of {} queue pairs with {} work requests each, and each \
                 collector needs two: send to fewer collectors",
                self.device, self.max_queue_pairs, self.depth
            ))
            .into());
        }
        let len = u64::from(self.depth) * u64::from(self.mtu);
        let memory = Region::anonymous(len, PAYLOAD_ADDRESS, RegionOptions { huge_pages: false })
            .map_err(|error| self.system_error("have memory for payloads", io::Error::other(error)))?;
        let payloads = MemoryRegion::register_local(Arc::clone(&self.domain), Arc::new(memory))
            .map_err(|source| self.system_error("register memory for payloads", source))?;
        let (domain, completions) = (&self.domain, &self.completions);
        let make = |inline| {
            VerbsQueuePair::for_requests(domain.clone(), completions.clone(), transport, self.depth, inline)
        };
        // Not every device has room for payloads within the request.
        let queue_pair = make(INLINE_LEN)
            .or_else(|_| make(0))
            .map_err(|source| self.system_error("make a queue pair", source))?;
        let qpn = queue_pair.queue_pair_number();
        self.queue_pairs.insert(qpn, SendQueuePair { queue_pair, payloads, next: 0, rd_atomic: 0 });
        Ok(qpn)
    }

    fn end_queue_pair(&mut self, qpn: u32) {
        self.queue_pairs.remove(&qpn);
    }

    fn payload_len(&self) -> u32 {
        self.mtu
    }

    fn queue_depth(&self) -> u32 {
        self.depth
    }

    fn connect(&mut self, qpn: u32, peer: &SendPeer) -> Result<(), NicError> {
        let queue_pair = &self.queue_pair_by_number(qpn)?.queue_pair;
        queue_pair.reset().map_err(|source| self.system_error("move a queue pair to RESET", source))?;
        queue_pair
            .initialise(self.port, Access::default())
            .map_err(|source| self.system_error("move a queue pair to INIT", source))?;
        let (port, gid_index) = (self.port, self.gid_index);
        let path = QueuePairPath::to_peer(port, gid_index, &peer.endpoint, peer.qpn, self.mtu);
        queue_pair.receive_from(&path).map_err(|source| {
            error::cannot_receive_from(peer.endpoint.ip, &self.device, &self.interface, source)
        })?;
        let rd_atomic = peer.rd_atomic.min(self.rd_atomic);
        self.queue_pairs.entry(qpn).and_modify(|pair| (pair.next, pair.rd_atomic) = (0, rd_atomic));
        Ok(())
    }

    fn start_sending(&mut self, qpn: u32, start_psn: u32) -> Result<(), NicError> {
        let SendQueuePair { queue_pair, rd_atomic, .. } = self.queue_pair_by_number(qpn)?;
        let rd_atomic = *rd_atomic;
        queue_pair
            .enter_ready_to_send(&Sending { start_psn, rd_atomic, timeout: ACK_TIMEOUT })
            .map_err(|source| self.system_error("move a queue pair to RTS", source))
    }

    fn post_requests(&mut self, qpn: u32, requests: &[SendRequest<'_>]) -> Result<usize, NicError> {
        let VerbsSender { queue_pairs, chain, depth, device, .. } = self;
        let pair = queue_pairs.get_mut(&qpn).ok_or(NicError::NoQueuePair { qpn })?;
        let posted =
            pair.queue_pair.post_chain(chain, &pair.payloads, (pair.next, *depth), requests).map_err(
                |source| NicError::System { action: format!("post work requests on `{device}`"), source },
            )?;
        pair.next = (pair.next + posted as u32) % *depth;
        Ok(posted)
    }

    fn poll_completions(&mut self, out: &mut Vec<SendCompletion>) -> Result<(), NicError> {
        self.completions.take_sent(out).map_err(|source| self.system_error("read completions", source))
    }

    fn request_notification(&mut self) -> io::Result<()> {
        self.completions.acknowledge_events();
        self.completions.request_notification()
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.completions.descriptor()
    }
}

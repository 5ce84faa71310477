//! A verbs requester: one queue pair of an RDMA device that writes, reads and adds to a peer's memory.
//!
//! A collector never is one; its peers are. It lets tests check the software NIC against a real device's idea of
//! ACKs, NAKs, READ responses and retransmission, not our own. `crates/memory/tests/requester_rxe.rs` uses it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ffi::{Completions, MemoryRegion, ProtectionDomain, QueuePairPath, Sending, VerbsQueuePair};
use super::open_device::choose_port_and_gid;
pub use super::send::{CompletionStatus, SendCompletion};
use super::{VerbsOptions, error, query};
use crate::nic::{Access, Endpoint, NicError, Transport};
use crate::region::Region;

/// Pause between two polls for completions.
const PAUSE: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaOperation {
    /// From this side to the peer, with an optional immediate (host order) for the reader that the peer wakes.
    Write { immediate: Option<u32> },
    /// From the peer to this side.
    Read,
    /// Adds to 8 bytes of the peer, a number in its host's byte order; the previous value goes to this side.
    FetchAdd { add: u64 },
    /// Replaces 8 bytes of the peer by `swap` if they equal `compare`; the previous value goes to this side.
    CompareSwap { compare: u64, swap: u64 },
}

/// One operation to be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The caller's number for it; its completion has the same one.
    pub id: u64,
    pub operation: RdmaOperation,
    /// Offset in this side's memory of the data sent or received.
    pub local: u64,
    /// Bytes; 8 for atomics.
    pub len: u32,
    pub remote: u64,
    pub rkey: u32,
}

/// One queue pair of a device, with memory to send from and to receive into.
pub struct Requester {
    queue_pair: VerbsQueuePair,
    memory: MemoryRegion,
    completions: Arc<Completions>,
    device: String,
    interface: String,
    endpoint: Endpoint,
    port: u8,
    gid_index: u8,
    mtu: u32,
    rd_atomic: u8,
}

impl Requester {
    /// Opens a device and makes a queue pair in state INIT, with room for `sends` pending operations. It sends from
    /// and receives into `memory`.
    pub fn open(
        options: &VerbsOptions,
        transport: Transport,
        sends: u32,
        memory: Arc<Region>,
    ) -> Result<Requester, NicError> {
        let device = options.device.clone();
        let context = Arc::new(query::open(&device)?);
        let cannot_open = |source: io::Error| error::cannot_open(&device, source);
        let about = query::describe_device(&device, &context).map_err(cannot_open)?;
        let (port, entry) = choose_port_and_gid(&about, options)?;
        let system = |action: &'static str| {
            let device = &device;
            move |source| NicError::System { action: format!("{action} on `{device}`"), source }
        };
        let completions = Completions::new(Arc::clone(&context), sends).map_err(cannot_open)?;
        let completions = Arc::new(completions);
        let domain = Arc::new(ProtectionDomain::new(context).map_err(cannot_open)?);
        let memory = MemoryRegion::register_local(Arc::clone(&domain), memory)
            .map_err(system("register the requester's memory"))?;
        let queue_pair = VerbsQueuePair::for_requests(domain, Arc::clone(&completions), transport, sends, 0)
            .map_err(system("make a queue pair"))?;
        queue_pair.initialise(port.number, Access::default()).map_err(system("move a queue pair to INIT"))?;
        Ok(Requester {
            queue_pair,
            memory,
            completions,
            interface: entry.interface.clone().unwrap_or_default(),
            endpoint: Endpoint::new(entry.ip_address()),
            port: port.number,
            gid_index: u8::try_from(entry.index).map_err(|e| cannot_open(io::Error::other(e)))?,
            mtu: port.active_mtu,
            rd_atomic: about.limits.rd_atomic.min(255) as u8,
            device,
        })
    }

    /// The number of its queue pair, where the peer's answers go.
    pub fn queue_pair_number(&self) -> u32 {
        self.queue_pair.queue_pair_number()
    }

    pub fn local_endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// INIT to RTS: from now on it sends to the queue pair `qpn` of `peer`, which expects `start_psn` first and
    /// answers `rd_atomic` atomics and READs in flight. Unanswered packets are resent after 4.096 µs · 2^`timeout`,
    /// up to 7 times; never if `timeout` is 0. The kernel resolves the peer's Ethernet address before this returns.
    pub fn connect_peer(
        &self,
        peer: &Endpoint,
        qpn: u32,
        start_psn: u32,
        rd_atomic: u8,
        timeout: u8,
    ) -> Result<(), NicError> {
        let system = |action: &str, source| NicError::System {
            action: format!("{action} on `{}`", self.device),
            source,
        };
        let path = QueuePairPath::to_peer(self.port, self.gid_index, peer, qpn, self.mtu);
        self.queue_pair
            .receive_from(&path)
            .map_err(|source| error::cannot_receive_from(peer.ip, &self.device, &self.interface, source))?;
        let rd_atomic = rd_atomic.min(self.rd_atomic);
        self.queue_pair
            .enter_ready_to_send(&Sending { start_psn, rd_atomic, timeout })
            .map_err(|source| system("move a queue pair to RTS", source))
    }

    /// Posts an operation; fails if there is no room for it.
    pub fn post_operation(&self, work: &Work) -> Result<(), NicError> {
        self.queue_pair.post_send(&self.memory, work).map_err(|source| NicError::System {
            action: format!("post a send on `{}`", self.device),
            source,
        })
    }

    /// Appends completions to `out`, oldest first; waits up to `timeout` if there are none.
    pub fn completed(&self, out: &mut Vec<SendCompletion>, timeout: Duration) -> Result<(), NicError> {
        let (before, end) = (out.len(), Instant::now() + timeout);
        loop {
            self.completions.take_sent(out).map_err(|source| NicError::System {
                action: format!("read completions on `{}`", self.device),
                source,
            })?;
            if out.len() > before || Instant::now() >= end {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

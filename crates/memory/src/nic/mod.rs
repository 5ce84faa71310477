//! What a collector needs from an RDMA NIC, and no more: registering memory, making passive queue pairs that receive
//! from a given peer, reading counters.
//!
//! Backends: [`soft`], a RoCEv2 responder in user space, and [`verbs`], RDMA devices through libibverbs.

pub mod soft;
pub mod verbs;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dta_link::shared_ring::JoinOffer;
pub use dta_proto::counter::nic::SOFT;
pub use dta_proto::endpoint::Endpoint;
pub use dta_proto::queue_pair::{Purpose, Transport};
use dta_proto::store::StoreKind;
pub use dta_proto::wire::roce::PORT as ROCE_PORT;

use crate::region::Region;

/// An RDMA NIC as the collector uses it. All methods may be called from any thread; none is for the data path.
pub trait Nic: Send + Sync {
    /// What this NIC is and can do.
    fn describe_device(&self) -> Device;

    /// The local address for packets to and from a peer: of the peer's family, if the device has one.
    fn endpoint_for_peer(&self, peer: IpAddr) -> Endpoint {
        let _ = peer;
        self.describe_device().endpoint
    }

    /// Increases each time the device was lost and reopened: earlier registrations and queue pairs are then void, and
    /// their keys and numbers may be given out again. Any call that needs the device notices this, such as
    /// [`Nic::queue_pairs`].
    fn device_epoch(&self) -> u64 {
        0
    }

    /// Whether registered memory is pinned, so that its pages can no longer be moved.
    fn pins_memory(&self) -> bool {
        false
    }

    /// Lets remote peers access `region` with the rights `access`, at its own [`Region::wire_address`].
    fn register_region(&self, region: Arc<Region>, access: Access) -> Result<Registration, NicError>;

    /// Ends a registration: its rkey becomes invalid.
    fn deregister(&self, rkey: u32) -> Result<(), NicError>;

    /// Makes a queue pair in state RTR for the peer of the request.
    fn create_queue_pair(&self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError>;

    /// Ends a queue pair. Returns its expected PSN at that moment, if the device knows it.
    fn destroy_queue_pair(&self, qpn: u32) -> Result<Option<u32>, NicError>;

    /// The current status of every queue pair. A passive queue pair that falls into ERROR raises no event: only this
    /// shows it.
    fn queue_pairs(&self) -> Result<Vec<QueuePairStatus>, NicError>;

    /// The device's counters, by dotted name (`received`, `executed.write`, `dropped.icrc`, …).
    fn named_counters(&self) -> Vec<(String, u64)>;

    /// Why the device has stopped for good, if it has: nothing is written any more until it is reopened.
    fn fatal_failure(&self) -> Option<String>;

    /// How often this NIC's thread has polled for packets; a number that stands still for seconds means it is stuck.
    /// `None` for a NIC without a thread, like an RDMA device.
    fn poll_count(&self) -> Option<u64> {
        None
    }

    /// How a requester on this host, at this address, joins a ring of frames in shared memory; `None` if it cannot.
    /// The answer stays the same for the lifetime of this NIC.
    fn offer_ring(&self, requester: &Endpoint) -> Option<JoinOffer> {
        let _ = requester;
        None
    }

    /// Whether the requester at this address sends through such a ring.
    fn has_ring_for(&self, requester: &Endpoint) -> bool {
        let _ = requester;
        false
    }

    /// Appends the immediates received since the last call, oldest first, to `out`; waits up to `timeout` if there
    /// are none. Each one taken reposts its receive. A queue pair holds as many receives as its request asked for,
    /// and a WRITE with immediate that finds none left is refused (`dropped.no_receive`).
    fn take_immediates(&self, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError>;
}

/// What a NIC is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// `soft`, or the RDMA device's name.
    pub name: String,
    pub endpoint: Endpoint,
    /// Payload bytes of one RoCEv2 packet: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// The most atomics and reads in flight per queue pair.
    pub max_dest_rd_atomic: u8,
    /// Whether FETCH_ADD and CMP_SWAP are executed.
    pub atomics: bool,
}

/// What a remote peer is allowed to do with registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub remote_write: bool,
    pub remote_read: bool,
    /// FETCH_ADD and CMP_SWAP.
    pub remote_atomic: bool,
}

impl Access {
    /// RDMA WRITE alone.
    pub const WRITE: Access = Access { remote_write: true, remote_read: false, remote_atomic: false };
    /// Atomics alone.
    pub const ATOMIC: Access = Access { remote_write: false, remote_read: false, remote_atomic: true };

    /// The fewest rights with which a translator can fill a store.
    pub fn for_store(kind: &StoreKind) -> Access {
        match kind.primitive().queue_pair_purpose() {
            Purpose::Write => Access::WRITE,
            Purpose::Atomic => Access::ATOMIC,
        }
    }
}

/// A registered region as a requester addresses it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Address of the first byte on the wire.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Remote key: a secret, never logged.
    pub rkey: u32,
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("iova", &self.iova)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairRequest {
    /// Its purpose, for people; it grants nothing.
    pub purpose: Purpose,
    pub transport: Transport,
    /// The requester: packets from other IP addresses are dropped, answers go here.
    pub peer: Endpoint,
    /// The requester's queue pair number (24 bits): destination of ACKs and NAKs.
    pub peer_qpn: u32,
    /// PSN of the requester's first packet (24 bits).
    pub start_psn: u32,
    /// What the requester may do over this queue pair, as far as the region's registration allows it.
    pub access: Access,
    /// How many receives to keep posted for WRITEs with immediate; 0 if no reader wants to be woken.
    pub receives: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairInfo {
    /// Queue pair number (24 bits).
    pub qpn: u32,
    pub expected_psn: u32,
    /// Atomics and reads that may be in flight; 0 on UC.
    pub max_dest_rd_atomic: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    ReadyToReceive,
    /// It hit an error that its transport does not survive: it drops everything until it is recreated.
    Error,
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueuePairState::ReadyToReceive => "rtr",
            QueuePairState::Error => "error",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairStatus {
    pub qpn: u32,
    /// The request that created it.
    pub request: QueuePairRequest,
    pub state: QueuePairState,
    pub expected_psn: u32,
    /// Counters of this queue pair, by dotted name, without those that the device cannot measure.
    pub counters: Vec<(String, u64)>,
}

/// The immediate of an executed WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The queue pair that received it.
    pub qpn: u32,
    /// Its 32 bits, as a big-endian number.
    pub value: u32,
    /// Bytes written by the WRITE.
    pub len: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum NicError {
    /// No room for another registration.
    #[error("the NIC `{device}` holds {limit} registrations, its limit; end a session or use fewer stores")]
    TooManyRegistrations { device: String, limit: usize },
    /// No room for another queue pair.
    #[error("the NIC `{device}` holds {limit} queue pairs, its limit; end a session first")]
    TooManyQueuePairs { device: String, limit: usize },
    /// The region cannot be registered as asked.
    #[error("a region of {len} bytes at address {iova:#x} cannot be registered: {reason}")]
    Region {
        /// Its address on the wire.
        iova: u64,
        len: u64,
        reason: &'static str,
    },
    /// A field of a queue pair request is out of range.
    #[error("queue pair request: {field} is {value}, but must be {must}")]
    Request { field: &'static str, value: String, must: &'static str },
    /// An RDMA device cannot be used this way.
    #[error(transparent)]
    Verbs(#[from] verbs::VerbsError),
    #[error("no region has that rkey")]
    NoRegistration,
    #[error("there is no queue pair {qpn:#08x}")]
    NoQueuePair { qpn: u32 },
    #[error("the NIC has stopped: {reason}")]
    Stopped { reason: String },
    /// The device was lost during the call; it may be back.
    #[error("the RDMA device `{device}` was lost during this call; try again")]
    Lost { device: String },
    #[error("cannot {action}: {source}")]
    System { action: String, source: std::io::Error },
}

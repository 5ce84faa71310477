//! What a translator needs from an RDMA device: queue pairs that send, work requests posted to them, and their
//! completions.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

#[cfg(not(feature = "verbs"))]
use super::VerbsError;
use super::VerbsOptions;
use crate::nic::{Endpoint, NicError, Transport};

/// An open RDMA device that sends. Once the device is removed, calls fail and it is of no more use.
pub trait SendDevice: Send {
    /// The source of its packets.
    fn local_endpoint(&self) -> Endpoint;

    /// Whether the device still exists: on removal the kernel takes it from programs at once, but may delay the rest
    /// until they have closed it.
    fn is_present(&self) -> bool;

    /// Makes an unconnected queue pair with room for [`SendDevice::queue_depth`] requests. Returns its number.
    fn make_queue_pair(&mut self, transport: Transport) -> Result<u32, NicError>;

    /// Ends a queue pair. Its completions may still be polled.
    fn end_queue_pair(&mut self, qpn: u32);

    /// Longest payload of a work request that fits in one packet.
    fn payload_len(&self) -> u32;

    /// Work requests of one queue pair that may be posted but not yet known to be complete.
    fn queue_depth(&self) -> u32;

    /// Makes a queue pair in any state forget what was posted, and connects it to `peer`. The kernel resolves the peer's
    /// Ethernet address, which takes up to a second if nobody answers.
    fn connect(&mut self, qpn: u32, peer: &SendPeer) -> Result<(), NicError>;

    /// Lets a connected queue pair send; the first packet has the PSN `start_psn`.
    fn start_sending(&mut self, qpn: u32, start_psn: u32) -> Result<(), NicError>;

    /// Posts work requests with one doorbell and returns how many the device took, in order. Payloads are copied. The
    /// caller ensures that there is room.
    fn post_requests(&mut self, qpn: u32, requests: &[SendRequest<'_>]) -> Result<usize, NicError>;

    /// Appends completions of all queue pairs, those of each in the order of its requests.
    fn poll_completions(&mut self, out: &mut Vec<SendCompletion>) -> Result<(), NicError>;

    /// Makes [`SendDevice::as_fd`] readable at the next completion, but not for one that is already there.
    fn request_notification(&mut self) -> io::Result<()>;

    /// Readable after a [requested](SendDevice::request_notification) completion.
    fn as_fd(&self) -> BorrowedFd<'_>;
}

/// The queue pair to send to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendPeer {
    pub endpoint: Endpoint,
    pub qpn: u32,
    /// Atomics in flight that it answers; RC only.
    pub rd_atomic: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOperation {
    Write,
    /// With the immediate in host order.
    WriteImmediate(u32),
    /// Adds to 8 bytes of the peer, in its host's byte order. The previous value is not needed.
    FetchAdd(u64),
}

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// The caller's number for it; its completion has the same one.
    pub id: u64,
    /// Whether its success is reported. Its completion then also stands for earlier requests of the queue pair.
    pub is_signalled: bool,
    pub operation: SendOperation,
    pub address: u64,
    pub rkey: u32,
    /// The bytes to write, at most [`SendDevice::payload_len`].
    pub payload: &'a [u8],
}

/// The outcome of an operation (the `IBV_WC_` codes of ibv_poll_cq(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionStatus {
    Success,
    /// `REM_ACCESS_ERR`: the peer does not allow the access.
    RemoteAccessError,
    /// `REM_INV_REQ_ERR`: the peer's queue pair does not accept it.
    RemoteInvalidRequest,
    /// `REM_OP_ERR`: the peer could not do it.
    RemoteOperationError,
    /// `RETRY_EXC_ERR`: no answer after all retries.
    RetriesExceeded,
    /// `RNR_RETRY_EXC_ERR`: the peer was never ready to receive it.
    ReceiverNotReady,
    /// `WR_FLUSH_ERR`: an earlier request failed, and the queue pair with it.
    Flushed,
    Other(u32),
}

/// What has failed.
impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CompletionStatus::Success => "nothing",
            CompletionStatus::RemoteAccessError => "the collector's device does not allow the access",
            CompletionStatus::RemoteInvalidRequest => {
                "the collector's queue pair does not accept the operation"
            }
            CompletionStatus::RemoteOperationError => "the collector's device could not carry it out",
            CompletionStatus::RetriesExceeded => "the collector's device does not answer",
            CompletionStatus::ReceiverNotReady => "the collector's queue pair is never ready to receive",
            CompletionStatus::Flushed => "the device ended it",
            CompletionStatus::Other(code) => {
                return write!(f, "the device says status {code} (ibv_wc_status)");
            }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendCompletion {
    /// The number of its request.
    pub id: u64,
    pub status: CompletionStatus,
}

/// How to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    pub verbs: VerbsOptions,
    /// Least number of work requests that each queue pair needs room for.
    pub depth: u32,
    /// Most queue pairs.
    pub queue_pairs: u32,
}

/// Opens a device for sending.
#[cfg(feature = "verbs")]
pub fn open_sender(options: &SendOptions) -> Result<Box<dyn SendDevice>, NicError> {
    Ok(Box::new(super::send_device::VerbsSender::open(options)?))
}

/// Returns an error that says how to get a program that can open devices: this one was built without libibverbs.
#[cfg(not(feature = "verbs"))]
pub fn open_sender(_options: &SendOptions) -> Result<Box<dyn SendDevice>, NicError> {
    Err(VerbsError::NotBuilt.into())
}

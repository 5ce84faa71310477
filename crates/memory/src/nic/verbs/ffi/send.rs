//! What a requester does but a passive queue pair never does: send from its own memory, and poll for completions.
#![allow(unsafe_code)]

use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use ibverbs_sys as ibv;

use super::{Completions, MemoryRegion, ProtectionDomain, VerbsQueuePair, check_errno};
use crate::nic::Transport;
use crate::nic::verbs::send::{CompletionStatus, SendCompletion, SendOperation, SendRequest};
use crate::region::Region;

impl MemoryRegion {
    /// Registers `region` for this side only, as the source of sends and the target of READs and atomics. No peer has any
    /// right to it.
    pub(in crate::nic::verbs) fn register_local(
        domain: Arc<ProtectionDomain>,
        region: Arc<Region>,
    ) -> io::Result<MemoryRegion> {
        MemoryRegion::register_region(domain, region, ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
    }

    /// The local key (lkey) for work requests of this side.
    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the structure is the library's, lives until the registration ends, and this field
        // never changes.
        unsafe { (*self.raw.as_ptr()).lkey }
    }
}

/// How a queue pair sends.
pub(in crate::nic::verbs) struct Sending {
    /// PSN of the first packet.
    pub(in crate::nic::verbs) start_psn: u32,
    /// Atomics and READs that may be in flight; RC only.
    pub(in crate::nic::verbs) rd_atomic: u8,
    /// How long to wait for an answer before resending, 4.096 µs · 2^`timeout`; RC only.
    pub(in crate::nic::verbs) timeout: u8,
}

/// Retries before the requester gives up: the largest value of the field.
const RETRIES: u8 = 7;
/// Retries after RNR NAKs, where 7 means no limit (ibv_modify_qp(3)).
const RNR_RETRIES: u8 = 7;

impl VerbsQueuePair {
    /// Makes a queue pair in state RESET with room for `sends`, whose requests can hold `inline` bytes of payload.
    pub(in crate::nic::verbs) fn for_requests(
        domain: Arc<ProtectionDomain>,
        completions: Arc<Completions>,
        transport: Transport,
        sends: u32,
        inline: u32,
    ) -> io::Result<VerbsQueuePair> {
        VerbsQueuePair::with_queues(domain, completions, transport, (sends, inline), 0)
    }

    /// Any state to RESET: posted requests are forgotten.
    pub(in crate::nic::verbs) fn reset(&self) -> io::Result<()> {
        let attributes =
            ibv::ibv_qp_attr { qp_state: ibv::ibv_qp_state::IBV_QPS_RESET, ..Default::default() };
        self.modify_attributes(attributes, ibv::ibv_qp_attr_mask::IBV_QP_STATE)
    }

    /// RTR to RTS: ready to send.
    pub(in crate::nic::verbs) fn enter_ready_to_send(&self, sending: &Sending) -> io::Result<()> {
        use ibv::ibv_qp_attr_mask as mask;
        let mut attributes = ibv::ibv_qp_attr {
            qp_state: ibv::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: sending.start_psn,
            ..Default::default()
        };
        let mut fields = mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN;
        if self.transport == Transport::Rc {
            attributes.timeout = sending.timeout;
            attributes.retry_cnt = RETRIES;
            attributes.rnr_retry = RNR_RETRIES;
            attributes.max_rd_atomic = sending.rd_atomic;
            fields |= mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        }
        self.modify_attributes(attributes, fields)
    }

    /// Posts work requests as one list. Until request n is complete, its payload is in place `first` + n of the `depth`
    /// places of `payloads`. Returns how many were taken.
    pub(in crate::nic::verbs) fn post_chain(
        &self,
        chain: &mut SendChain,
        payloads: &MemoryRegion,
        (first, depth): (u32, u32),
        requests: &[SendRequest<'_>],
    ) -> io::Result<usize> {
        let SendChain { list, pieces } = chain;
        let room = payloads.len() / u64::from(depth);
        list.clear();
        pieces.clear();
        for (index, request) in requests.iter().enumerate() {
            if request.payload.len() as u64 > room {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "a payload that is too long"));
            }
            let place = (u64::from(first) + index as u64) % u64::from(depth) * room;
            payloads.region.write(place, request.payload).map_err(io::Error::other)?;
            let (piece, wr) = self.work_request(payloads, place, request);
            pieces.push(piece);
            list.push(wr);
        }
        if list.is_empty() {
            return Ok(0);
        }
        // All links come from one pointer: borrowing an element again would make an earlier pointer to it invalid.
        let (first_request, len) = (list.as_mut_ptr(), list.len());
        for (index, piece) in pieces.iter_mut().enumerate() {
            list[index].sg_list = piece;
            list[index].next =
                if index + 1 < len { first_request.wrapping_add(index + 1) } else { null_mut() };
        }
        let mut refused = null_mut();
        // SAFETY: the queue pair is alive and the table of functions is constant while its context is open; post_send,
        // which every device has, reads the list, whose links and pieces are elements of the two vectors, during the call
        // only. Pieces lie in `payloads`: those sent inline are read during the call at their addresses in this process,
        // others later, through a key that becomes invalid when the registration ends.
        let posted = check_errno(unsafe {
            let context = (*self.raw.as_ptr()).context;
            let post = (*context).ops.post_send.ok_or(io::ErrorKind::Unsupported)?;
            post(self.raw.as_ptr(), list.as_mut_ptr(), &mut refused)
        });
        let taken = list.iter().take_while(|wr| !std::ptr::eq(*wr, refused)).count();
        match posted {
            Err(error) if refused.is_null() || taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    /// A request whose payload is at `place` of `payloads`; not linked yet.
    fn work_request(
        &self,
        payloads: &MemoryRegion,
        place: u64,
        request: &SendRequest<'_>,
    ) -> (ibv::ibv_sge, ibv::ibv_send_wr) {
        use ibv::ibv_send_flags as flags;
        use ibv::ibv_wr_opcode as opcode;
        let SendRequest { id, is_signalled, operation, address, rkey, payload } = *request;
        let is_atomic = matches!(operation, SendOperation::FetchAdd(_));
        let len = if is_atomic { 8 } else { payload.len() as u32 };
        let is_inline = !is_atomic && len > 0 && len <= self.max_inline;
        let start = match is_inline {
            true => payloads.region.as_ptr().addr() as u64,
            false => payloads.region.wire_address(),
        };
        let piece = ibv::ibv_sge { addr: start + place, length: len, lkey: payloads.local_key() };
        let mut wr = ibv::ibv_send_wr {
            wr_id: id,
            // A piece of length 0 would mean 2^31 bytes on some devices (InfiniBand specification, 10.7.3.1).
            num_sge: i32::from(len > 0),
            send_flags: if is_signalled { flags::IBV_SEND_SIGNALED.0 } else { 0 }
                | if is_inline { flags::IBV_SEND_INLINE.0 } else { 0 },
            ..Default::default()
        };
        match operation {
            SendOperation::Write => wr.opcode = opcode::IBV_WR_RDMA_WRITE,
            SendOperation::WriteImmediate(immediate) => {
                wr.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                wr.__bindgen_anon_1.imm_data = immediate.to_be();
            }
            SendOperation::FetchAdd(_) => wr.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD,
        }
        if let SendOperation::FetchAdd(add) = operation {
            wr.wr.atomic = ibv::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
                remote_addr: address,
                compare_add: add,
                swap: 0,
                rkey,
            };
        } else {
            wr.wr.rdma = ibv::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: address, rkey };
        }
        (piece, wr)
    }
}

/// Memory for a list of work requests, reused for each list.
#[derive(Default)]
pub(in crate::nic::verbs) struct SendChain {
    list: Vec<ibv::ibv_send_wr>,
    pieces: Vec<ibv::ibv_sge>,
}

// SAFETY: the pointers in it are valid and used only during one call, which sets them anew.
unsafe impl Send for SendChain {}

impl Completions {
    /// Appends completed sends to `out`, oldest first, without waiting.
    pub(in crate::nic::verbs) fn take_sent(&self, out: &mut Vec<SendCompletion>) -> io::Result<()> {
        self.poll_each(|wc| {
            let status = wc.error().map_or(CompletionStatus::Success, |(code, _)| completion_status(code));
            out.push(SendCompletion { id: wc.wr_id(), status });
        })
    }
}

fn completion_status(code: ibv::ibv_wc_status::Type) -> CompletionStatus {
    use ibv::ibv_wc_status as s;
    match code {
        s::IBV_WC_SUCCESS => CompletionStatus::Success,
        s::IBV_WC_REM_ACCESS_ERR => CompletionStatus::RemoteAccessError,
        s::IBV_WC_REM_INV_REQ_ERR => CompletionStatus::RemoteInvalidRequest,
        s::IBV_WC_REM_OP_ERR => CompletionStatus::RemoteOperationError,
        s::IBV_WC_RETRY_EXC_ERR => CompletionStatus::RetriesExceeded,
        s::IBV_WC_RNR_RETRY_EXC_ERR => CompletionStatus::ReceiverNotReady,
        s::IBV_WC_WR_FLUSH_ERR => CompletionStatus::Flushed,
        other => CompletionStatus::Other(other),
    }
}

//! What a requester does and a passive queue pair never does: it sends from its own memory, and polls for
//! completions.
#![allow(unsafe_code)]

use std::io;
use std::ptr::null_mut;
use std::sync::Arc;

use ibverbs_sys as ibv;

use super::{Completions, MemoryRegion, ProtectionDomain, VerbsQueuePair, check_errno};
use crate::nic::Transport;
use crate::nic::verbs::requester::{Completion, CompletionStatus, RdmaOperation, Work};
use crate::region::Region;

impl MemoryRegion {
    /// Registers `region` for this side only, as the source of sends and the target of READs and atomics. No peer has
    /// any right to it.
    pub(in crate::nic::verbs) fn register_local(
        domain: Arc<ProtectionDomain>,
        region: Arc<Region>,
    ) -> io::Result<MemoryRegion> {
        MemoryRegion::register_region(domain, region, ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE)
    }

    /// The local key (lkey) for work requests of this side.
    fn local_key(&self) -> u32 {
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

/// Retries before the requester gives up: the most that the field holds.
const RETRIES: u8 = 7;
/// The same after RNR NAKs, where 7 means no limit (ibv_modify_qp(3)).
const RNR_RETRIES: u8 = 7;

impl VerbsQueuePair {
    /// Makes one in state RESET, with room for `sends`.
    pub(in crate::nic::verbs) fn for_requests(
        domain: Arc<ProtectionDomain>,
        completions: Arc<Completions>,
        transport: Transport,
        sends: u32,
    ) -> io::Result<VerbsQueuePair> {
        VerbsQueuePair::with_queues(domain, completions, transport, sends, 0)
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

    /// Posts one operation from or to its place in `local`. It completes once, whatever its outcome.
    pub(in crate::nic::verbs) fn post_send(&self, local: &MemoryRegion, work: &Work) -> io::Result<()> {
        use ibv::ibv_wr_opcode as opcode;
        let end = work.local.checked_add(u64::from(work.len));
        if end.is_none_or(|end| end > local.len()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "outside the requester's memory"));
        }
        let mut piece = ibv::ibv_sge {
            addr: local.region.wire_address() + work.local,
            length: work.len,
            lkey: local.local_key(),
        };
        let mut request = ibv::ibv_send_wr {
            wr_id: work.id,
            sg_list: &mut piece,
            // A piece of length 0 means 2^31 bytes on some devices (InfiniBand specification, 10.7.3.1).
            num_sge: i32::from(work.len > 0),
            send_flags: ibv::ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        let place =
            ibv::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: work.remote, rkey: work.rkey };
        let atomic = |compare_add, swap| ibv::ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
            remote_addr: work.remote,
            compare_add,
            swap,
            rkey: work.rkey,
        };
        match work.operation {
            RdmaOperation::Write { immediate: None } => {
                request.opcode = opcode::IBV_WR_RDMA_WRITE;
                request.wr.rdma = place;
            }
            RdmaOperation::Write { immediate: Some(immediate) } => {
                request.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                request.wr.rdma = place;
                request.__bindgen_anon_1.imm_data = immediate.to_be();
            }
            RdmaOperation::Read => {
                request.opcode = opcode::IBV_WR_RDMA_READ;
                request.wr.rdma = place;
            }
            RdmaOperation::FetchAdd { add } => {
                request.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.wr.atomic = atomic(add, 0);
            }
            RdmaOperation::CompareSwap { compare, swap } => {
                request.opcode = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr.atomic = atomic(compare, swap);
            }
        }
        let mut refused = null_mut();
        // SAFETY: the queue pair is alive and the table of functions is constant while its context is open;
        // post_send, which every device has, reads the one request, whose list is empty, and its one piece during the
        // call only. The device touches the bytes of the piece later, through a key that becomes invalid when the
        // registration ends: a `MemoryRegion` dropped too early makes the operation fail, but frees no memory in use.
        check_errno(unsafe {
            let context = (*self.raw.as_ptr()).context;
            let post = (*context).ops.post_send.ok_or(io::ErrorKind::Unsupported)?;
            post(self.raw.as_ptr(), &mut request, &mut refused)
        })
    }
}

impl Completions {
    /// Appends completed sends to `out`, oldest first, without waiting.
    pub(in crate::nic::verbs) fn take_sent(&self, out: &mut Vec<Completion>) -> io::Result<()> {
        self.poll_each(|wc| {
            let status = wc.error().map_or(CompletionStatus::Success, |(code, _)| completion_status(code));
            out.push(Completion { id: wc.wr_id(), status });
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

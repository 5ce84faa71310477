//! Single operations of a requester, with everything that tests need beyond what a translator sends.
#![allow(unsafe_code)]

use std::io;
use std::ptr::null_mut;

use ibverbs_sys as ibv;

use super::{MemoryRegion, VerbsQueuePair, check_errno};
use crate::nic::verbs::requester::{RdmaOperation, Work};

impl VerbsQueuePair {
    /// Posts one operation from or to its place in `local`. It completes once, whatever the outcome.
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
            // A piece of length 0 would mean 2^31 bytes on some devices (InfiniBand specification, 10.7.3.1).
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

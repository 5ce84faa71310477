//! libibverbs objects as safe types: the only module that calls the library.
//!
//! Each type owns one object of the library and keeps alive, by `Arc`, what that object depends on: a context for its
//! domain, a domain for its regions and queue pairs, a completion queue for the queue pairs that complete into it,
//! the memory of a region for its registration. So objects end in the order that the library requires. Every verb may
//! be called from any thread (ibv_open_device(3), "libibverbs is thread-safe"), hence Send and Sync.
//!
//! Destruction fails with EIO if the device was unplugged. The library has then freed its own side or leaks it; all
//! that is left to do is to log it.
#![allow(unsafe_code)]

#[cfg(feature = "verbs-requester")]
mod requester;
mod send;

use std::ffi::CStr;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dta_proto::wire::roce::Psn;
use ibverbs_sys as ibv;
use rustix::event::{PollFd, PollFlags, Timespec};

pub(super) use send::{SendChain, Sending};

use crate::nic::verbs::query::mtu_code;
use crate::nic::{Access, Endpoint, Transport};
use crate::region::Region;

/// The result of a verb that returns an errno.
fn check_errno(errno: i32) -> io::Result<()> {
    match errno {
        0 => Ok(()),
        // Some return -1 and set errno; most return it.
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// An object of the library.
struct Raw<T>(NonNull<T>);

// SAFETY: verbs are thread-safe, and no object is tied to the thread that created it.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as for Send.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// The result of a verb: an object, or null with errno set.
    fn new(made: *mut T) -> io::Result<Raw<T>> {
        NonNull::new(made).map(Raw).ok_or_else(io::Error::last_os_error)
    }

    fn as_ptr(&self) -> *mut T {
        self.0.as_ptr()
    }
}

fn log_failed(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::debug!(%error, "cannot destroy {what}: its device is gone");
    }
}

struct DeviceList {
    first: NonNull<*mut ibv::ibv_device>,
    len: usize,
}

impl DeviceList {
    fn get() -> io::Result<DeviceList> {
        let mut len = 0;
        // SAFETY: the library writes the count to `len`, which lives through the call, and returns
        // an array or null.
        let first = unsafe { ibv::ibv_get_device_list(&mut len) };
        let first = NonNull::new(first).ok_or_else(io::Error::last_os_error)?;
        Ok(DeviceList { first, len: usize::try_from(len).unwrap_or(0) })
    }

    fn iter(&self) -> impl Iterator<Item = (String, NonNull<ibv::ibv_device>)> {
        // SAFETY: ibv_get_device_list gave an array of `len` pointers, which is ours and unchanged
        // until it is freed in drop; the slice borrows `self`.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        devices.iter().filter_map(|&device| {
            let device = NonNull::new(device)?;
            // SAFETY: `device` is an element of the list, valid while the list is.
            let name = NonNull::new(unsafe { ibv::ibv_get_device_name(device.as_ptr()) }.cast_mut())?;
            // SAFETY: the name is a terminated string inside the device, valid while the list is;
            // it is copied here.
            let name = unsafe { CStr::from_ptr(name.as_ptr()) };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the array came from ibv_get_device_list and is freed once. Devices that were opened stay (its
        // manual page says so), others are not used after this: no pointer leaves `iter` except to ibv_open_device.
        unsafe { ibv::ibv_free_device_list(self.first.as_ptr()) }
    }
}

pub(super) fn device_names() -> io::Result<Vec<String>> {
    Ok(DeviceList::get()?.iter().map(|(name, _)| name).collect())
}

pub(super) struct Context {
    raw: Raw<ibv::ibv_context>,
}

impl Context {
    /// Opens the device with this name; `None` if there is none.
    pub(super) fn open(name: &str) -> io::Result<Option<Context>> {
        let list = DeviceList::get()?;
        let Some((_, device)) = list.iter().find(|(n, _)| n == name) else { return Ok(None) };
        // SAFETY: `device` is an element of `list`, which lives until after the call.
        let raw = unsafe { ibv::ibv_open_device(device.as_ptr()) };
        Ok(Some(Context { raw: Raw::new(raw)? }))
    }

    /// Name of the kernel's node for the device, such as `uverbs0`.
    pub(super) fn kernel_node_name(&self) -> String {
        // SAFETY: an open context holds its device's structure, which the library fills before it
        // gives the device out and leaves alone; the name in it is a terminated string, copied
        // here.
        let name = unsafe { CStr::from_ptr((*(*self.raw.as_ptr()).device).dev_name.as_ptr()) };
        name.to_string_lossy().into_owned()
    }

    pub(super) fn attributes(&self) -> io::Result<ibv::ibv_device_attr> {
        let mut attributes = ibv::ibv_device_attr::default();
        // SAFETY: the context is open; the library fills the structure that it is given, which is
        // the one of its header.
        check_errno(unsafe { ibv::ibv_query_device(self.raw.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }

    /// Attributes of a port, from 1.
    pub(super) fn query_port(&self, number: u8) -> io::Result<ibv::ibv_port_attr> {
        let mut attributes = ibv::ibv_port_attr::default();
        // SAFETY: the context is open. The exported function fills `_compat_ibv_port_attr`, a prefix of
        // `ibv_port_attr` (verbs.h casts the same way); what follows the prefix stays zero.
        check_errno(unsafe {
            ibv::ibv_query_port(self.raw.as_ptr(), number, std::ptr::from_mut(&mut attributes).cast())
        })?;
        Ok(attributes)
    }

    /// The used entries of the GID tables of all ports, at most `most`.
    pub(super) fn query_gids(&self, most: usize) -> io::Result<Vec<ibv::ibv_gid_entry>> {
        let mut entries = vec![ibv::ibv_gid_entry::default(); most];
        // SAFETY: the context is open; the library writes at most `most` entries of the size that
        // is given, and the vector has that many.
        let count = unsafe {
            ibv::_ibv_query_gid_table(
                self.raw.as_ptr(),
                entries.as_mut_ptr(),
                most,
                0,
                size_of::<ibv::ibv_gid_entry>(),
            )
        };
        let count = usize::try_from(count).map_err(|_| {
            io::Error::from_raw_os_error(
                i32::try_from(-count).unwrap_or(rustix::io::Errno::IO.raw_os_error()),
            )
        })?;
        entries.truncate(count);
        Ok(entries)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: opened by us, closed once; what was made from it held an Arc and is gone.
        log_failed("a context", check_errno(unsafe { ibv::ibv_close_device(self.raw.as_ptr()) }));
    }
}

/// A protection domain: its queue pairs reach only its own regions.
pub(super) struct ProtectionDomain {
    raw: Raw<ibv::ibv_pd>,
    _context: Arc<Context>,
}

impl ProtectionDomain {
    pub(super) fn new(context: Arc<Context>) -> io::Result<ProtectionDomain> {
        // SAFETY: the context is open, and stays so for as long as the domain holds its Arc.
        let raw = unsafe { ibv::ibv_alloc_pd(context.raw.as_ptr()) };
        Ok(ProtectionDomain { raw: Raw::new(raw)?, _context: context })
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: made by us, freed once; its regions and queue pairs held an Arc and are gone.
        log_failed("a protection domain", check_errno(unsafe { ibv::ibv_dealloc_pd(self.raw.as_ptr()) }));
    }
}

/// Access flags of the library: the requested rights and no more. Either remote right that changes memory requires
/// local write (ibv_reg_mr(3)). Relaxed ordering is never set: readers rely on the order of a region's writes.
fn access_flags(access: Access) -> ibv::ibv_access_flags {
    let mut flags = ibv::ibv_access_flags(0);
    if access.remote_write {
        flags |=
            ibv::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE | ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.remote_atomic {
        flags |=
            ibv::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC | ibv::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    }
    if access.remote_read {
        flags |= ibv::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
    }
    flags
}

pub(super) struct MemoryRegion {
    raw: Raw<ibv::ibv_mr>,
    region: Arc<Region>,
    _domain: Arc<ProtectionDomain>,
}

impl MemoryRegion {
    /// Registers all of `region` at its own address on the wire.
    pub(super) fn new(
        domain: Arc<ProtectionDomain>,
        region: Arc<Region>,
        access: Access,
    ) -> io::Result<MemoryRegion> {
        MemoryRegion::register_region(domain, region, access_flags(access))
    }

    fn register_region(
        domain: Arc<ProtectionDomain>,
        region: Arc<Region>,
        flags: ibv::ibv_access_flags,
    ) -> io::Result<MemoryRegion> {
        let len = usize::try_from(region.len()).map_err(io::Error::other)?;
        let flags = i32::try_from(flags.0).map_err(io::Error::other)?;
        // SAFETY: the domain is alive. `region` owns `len` mapped bytes from `as_ptr` on, keeps
        // them at their place while it lives, and is held by the value made here until after the
        // registration ended: so whatever the device writes lands in memory that is mapped. Nobody
        // holds a reference into it: all of `Region`'s accesses are atomic.
        let raw = unsafe {
            ibv::ibv_reg_mr_iova(
                domain.raw.as_ptr(),
                region.as_ptr().cast(),
                len,
                region.wire_address(),
                flags,
            )
        };
        Ok(MemoryRegion { raw: Raw::new(raw)?, region, _domain: domain })
    }

    pub(super) fn remote_key(&self) -> u32 {
        // SAFETY: the structure is the library's, lives until the registration ends, and this field
        // never changes.
        unsafe { (*self.raw.as_ptr()).rkey }
    }

    pub(super) fn len(&self) -> u64 {
        self.region.len()
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered by us, ended once. On success the device has stopped using the memory
        // when this returns.
        let ended = check_errno(unsafe { ibv::ibv_dereg_mr(self.raw.as_ptr()) });
        if ended.is_err() {
            // The registration may still exist, so its memory must stay mapped.
            std::mem::forget(Arc::clone(&self.region));
        }
        log_failed("a registration", ended);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// The queue pair that received.
    pub(super) qpn: u32,
    /// Bytes that the WRITE wrote.
    pub(super) len: u32,
    /// Its immediate, in host order. `None` for a receive that completed without one, as on a queue pair in ERROR.
    pub(super) immediate: Option<u32>,
}

/// A completion queue, with the channel that wakes its waiters.
pub(super) struct Completions {
    cq: Raw<ibv::ibv_cq>,
    channel: Raw<ibv::ibv_comp_channel>,
    context: Arc<Context>,
    /// Whether somebody waits for an event. Only one may: an event taken by one waiter would not wake another.
    waiting: Mutex<bool>,
    /// Notified when the waiter has finished.
    free: Condvar,
}

/// The right to wait for events of a channel, released on drop.
struct Turn<'a>(&'a Completions);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.free.notify_one();
    }
}

/// Completions read in one call.
const BATCH: usize = 64;

impl Completions {
    pub(super) fn new(context: Arc<Context>, entries: u32) -> io::Result<Completions> {
        let entries = i32::try_from(entries).map_err(io::Error::other)?;
        // SAFETY: the context is open and kept by the value made here.
        let channel = unsafe { ibv::ibv_create_comp_channel(context.raw.as_ptr()) };
        let channel = Raw::new(channel)?;
        // SAFETY: context and channel are alive, and outlive the queue: drop ends the queue first.
        let cq =
            unsafe { ibv::ibv_create_cq(context.raw.as_ptr(), entries, null_mut(), channel.as_ptr(), 0) };
        let cq = Raw::new(cq).inspect_err(|_| {
            // SAFETY: made above, not used by any queue, ended once.
            log_failed("a channel", check_errno(unsafe { ibv::ibv_destroy_comp_channel(channel.as_ptr()) }));
        })?;
        let completions =
            Completions { cq, channel, context, waiting: Mutex::new(false), free: Condvar::new() };
        rustix::io::ioctl_fionbio(completions.descriptor(), true)?;
        Ok(completions)
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's structure is the library's and lives until drop; this field never changes.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open for as long as the channel is, which is not ended before `self` is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Appends completed receives to `out`, oldest first; waits up to `timeout` if there are none.
    pub(super) fn take(&self, out: &mut Vec<Completion>, timeout: Duration) -> io::Result<()> {
        let before = out.len();
        let end = Instant::now() + timeout;
        self.poll(out)?;
        if out.len() > before || timeout.is_zero() {
            return Ok(());
        }
        let Some(_turn) = self.acquire_wait_turn(end) else { return Ok(()) };
        self.poll(out)?;
        while out.len() == before {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Armed first, then polled again: a completion in between raised no event.
            self.request_notification()?;
            self.poll(out)?;
            if out.len() > before {
                break;
            }
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let descriptor = self.descriptor();
            let mut wanted = [PollFd::new(&descriptor, PollFlags::IN)];
            match rustix::event::poll(&mut wanted, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            // The event may be for completions polled before; then this waits again.
            self.acknowledge_events();
            self.poll(out)?;
        }
        Ok(())
    }

    /// The right to wait for events, once nobody else has it; `None` if somebody still has it at `end`.
    fn acquire_wait_turn(&self, end: Instant) -> Option<Turn<'_>> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let left = end.saturating_duration_since(Instant::now());
        let (mut waiting, _) = self
            .free
            .wait_timeout_while(waiting, left, |waiting| *waiting)
            .unwrap_or_else(PoisonError::into_inner);
        if *waiting {
            return None;
        }
        *waiting = true;
        Some(Turn(self))
    }

    fn poll(&self, out: &mut Vec<Completion>) -> io::Result<()> {
        self.poll_each(|wc| {
            out.push(Completion {
                qpn: wc.qp_num,
                len: u32::try_from(wc.len()).unwrap_or(u32::MAX),
                immediate: wc.imm_data().map(u32::from_be),
            });
        })
    }

    /// Polls what is there, a batch at a time.
    fn poll_each(&self, mut each: impl FnMut(&ibv::ibv_wc)) -> io::Result<()> {
        let mut batch = [ibv::ibv_wc::default(); BATCH];
        loop {
            // SAFETY: the context's table of functions is filled by ibv_open_device and constant
            // after; poll_cq, which every device has, writes at most BATCH entries to the array, of
            // the structure in its header.
            let count = unsafe {
                let poll = (*self.context.raw.as_ptr()).ops.poll_cq.ok_or(io::ErrorKind::Unsupported)?;
                poll(self.cq.as_ptr(), BATCH as i32, batch.as_mut_ptr())
            };
            let count = usize::try_from(count).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
            batch[..count].iter().for_each(&mut each);
            if count < BATCH {
                return Ok(());
            }
        }
    }

    pub(super) fn request_notification(&self) -> io::Result<()> {
        // SAFETY: as in `poll`; the queue is alive.
        check_errno(unsafe {
            let notify = (*self.context.raw.as_ptr()).ops.req_notify_cq.ok_or(io::ErrorKind::Unsupported)?;
            notify(self.cq.as_ptr(), 0)
        })
    }

    /// Takes the events off the channel: an unacknowledged event would block the destruction of the queue.
    pub(super) fn acknowledge_events(&self) {
        let (mut cq, mut cookie) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and its descriptor does not block; the library writes both
        // pointers on success.
        while unsafe { ibv::ibv_get_cq_event(self.channel.as_ptr(), &mut cq, &mut cookie) } == 0 {
            // SAFETY: `cq` is the queue of the event just taken, ours, since the channel serves no other.
            unsafe { ibv::ibv_ack_cq_events(cq, 1) };
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: made by us, ended once; queue pairs that complete into it held an Arc and are
        // gone, and every event taken was acknowledged.
        log_failed("a completion queue", check_errno(unsafe { ibv::ibv_destroy_cq(self.cq.as_ptr()) }));
        // SAFETY: made by us, ended once, after the queue that used it.
        log_failed("a channel", check_errno(unsafe { ibv::ibv_destroy_comp_channel(self.channel.as_ptr()) }));
    }
}

/// The path of a queue pair's packets and answers.
pub(super) struct QueuePairPath {
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) peer_gid: [u8; 16],
    /// The peer's queue pair.
    pub(super) peer_qpn: u32,
    /// PSN of the first packet.
    pub(super) start_psn: u32,
    /// Path MTU in bytes.
    pub(super) mtu: u32,
    /// Atomics and reads in flight that the queue pair answers; RC only.
    pub(super) rd_atomic: u8,
}

impl QueuePairPath {
    /// The path of a queue pair that sends, and receives only answers.
    pub(super) fn to_peer(
        port: u8,
        gid_index: u8,
        peer: &Endpoint,
        peer_qpn: u32,
        mtu: u32,
    ) -> QueuePairPath {
        QueuePairPath { port, gid_index, peer_gid: peer.to_gid(), peer_qpn, start_psn: 0, mtu, rd_atomic: 0 }
    }
}

/// How long a requester waits after an RNR NAK: code 12 is 0.64 ms (InfiniBand specification, table 45).
const RNR_TIMER: u8 = 12;

pub(super) struct VerbsQueuePair {
    raw: Raw<ibv::ibv_qp>,
    transport: Transport,
    /// Bytes of payload that fit in a work request.
    max_inline: u32,
    _completions: Arc<Completions>,
    _domain: Arc<ProtectionDomain>,
}

impl VerbsQueuePair {
    /// Makes a queue pair in state RESET that has room for `receives` and never sends.
    pub(super) fn new(
        domain: Arc<ProtectionDomain>,
        completions: Arc<Completions>,
        transport: Transport,
        receives: u32,
    ) -> io::Result<VerbsQueuePair> {
        VerbsQueuePair::with_queues(domain, completions, transport, (0, 0), receives)
    }

    fn with_queues(
        domain: Arc<ProtectionDomain>,
        completions: Arc<Completions>,
        transport: Transport,
        (sends, inline): (u32, u32),
        receives: u32,
    ) -> io::Result<VerbsQueuePair> {
        let mut wanted = ibv::ibv_qp_init_attr {
            send_cq: completions.cq.as_ptr(),
            recv_cq: completions.cq.as_ptr(),
            cap: ibv::ibv_qp_cap {
                // Some devices refuse queues of length 0.
                max_send_wr: sends.max(1),
                max_recv_wr: receives.max(1),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: inline,
            },
            qp_type: match transport {
                Transport::Uc => ibv::ibv_qp_type::IBV_QPT_UC,
                Transport::Rc => ibv::ibv_qp_type::IBV_QPT_RC,
            },
            ..Default::default()
        };
        // SAFETY: the domain and the completion queue are alive and of one context, and kept by the
        // value made here; the library reads and updates the structure during the call only.
        let raw = unsafe { ibv::ibv_create_qp(domain.raw.as_ptr(), &mut wanted) };
        let (raw, max_inline) = (Raw::new(raw)?, wanted.cap.max_inline_data);
        Ok(VerbsQueuePair { raw, transport, max_inline, _completions: completions, _domain: domain })
    }

    fn modify_attributes(
        &self,
        mut attributes: ibv::ibv_qp_attr,
        mask: ibv::ibv_qp_attr_mask,
    ) -> io::Result<()> {
        let mask = i32::try_from(mask.0).map_err(io::Error::other)?;
        // SAFETY: the queue pair is alive; the library reads the fields that the mask names, during
        // the call only.
        check_errno(unsafe { ibv::ibv_modify_qp(self.raw.as_ptr(), &mut attributes, mask) })
    }

    /// RESET to INIT: grants `access` over this queue pair.
    pub(super) fn initialise(&self, port: u8, access: Access) -> io::Result<()> {
        use ibv::ibv_qp_attr_mask as mask;
        let attributes = ibv::ibv_qp_attr {
            qp_state: ibv::ibv_qp_state::IBV_QPS_INIT,
            pkey_index: 0,
            port_num: port,
            qp_access_flags: access_flags(access).0,
            ..Default::default()
        };
        self.modify_attributes(
            attributes,
            mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS,
        )
    }

    /// INIT to RTR: a passive queue pair goes no further.
    pub(super) fn receive_from(&self, path: &QueuePairPath) -> io::Result<()> {
        use ibv::ibv_qp_attr_mask as mask;
        let mut attributes = ibv::ibv_qp_attr {
            qp_state: ibv::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: mtu_code(path.mtu),
            dest_qp_num: path.peer_qpn,
            rq_psn: path.start_psn,
            ah_attr: ibv::ibv_ah_attr {
                grh: ibv::ibv_global_route {
                    dgid: ibv::ibv_gid { raw: path.peer_gid },
                    sgid_index: path.gid_index,
                    hop_limit: 64,
                    ..Default::default()
                },
                is_global: 1,
                port_num: path.port,
                ..Default::default()
            },
            ..Default::default()
        };
        let mut fields = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN;
        if self.transport == Transport::Rc {
            attributes.max_dest_rd_atomic = path.rd_atomic;
            attributes.min_rnr_timer = RNR_TIMER;
            fields |= mask::IBV_QP_MAX_DEST_RD_ATOMIC | mask::IBV_QP_MIN_RNR_TIMER;
        }
        self.modify_attributes(attributes, fields)
    }

    pub(super) fn queue_pair_number(&self) -> u32 {
        // SAFETY: the structure is the library's, lives until the queue pair ends, and this field
        // never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// Its current state and expected PSN, as the device reports them.
    pub(super) fn query_state(&self) -> io::Result<(ibv::ibv_qp_state::Type, u32)> {
        use ibv::ibv_qp_attr_mask as mask;
        let mut attributes = ibv::ibv_qp_attr::default();
        let mut made_with = ibv::ibv_qp_init_attr::default();
        let wanted = i32::try_from((mask::IBV_QP_STATE | mask::IBV_QP_RQ_PSN).0).map_err(io::Error::other)?;
        // SAFETY: the queue pair is alive; the library fills both structures, which live through the call.
        check_errno(unsafe {
            ibv::ibv_query_qp(self.raw.as_ptr(), &mut attributes, wanted, &mut made_with)
        })?;
        Ok((attributes.qp_state, attributes.rq_psn & Psn::MASK))
    }

    /// Moves it to ERROR, where it accepts nothing more. Returns its expected PSN at that moment.
    pub(super) fn enter_error_state(&self) -> io::Result<u32> {
        use ibv::ibv_qp_attr_mask as mask;
        let attributes = ibv::ibv_qp_attr { qp_state: ibv::ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify_attributes(attributes, mask::IBV_QP_STATE)?;
        // The kernel's soft-RoCE may still have had a packet in hand.
        std::thread::sleep(std::time::Duration::from_millis(1));
        self.query_state().map(|(_, expected_psn)| expected_psn)
    }

    /// Posts `count` receives, which take immediates and no data.
    pub(super) fn post_receives(&self, count: u32) -> io::Result<()> {
        for _ in 0..count {
            let mut request = ibv::ibv_recv_wr::default();
            let mut refused = null_mut();
            // SAFETY: the table of functions is constant while the context is open; post_recv,
            // which every device has, reads the one request, whose list is empty, during the call
            // only.
            check_errno(unsafe {
                let context = (*self.raw.as_ptr()).context;
                let post = (*context).ops.post_recv.ok_or(io::ErrorKind::Unsupported)?;
                post(self.raw.as_ptr(), &mut request, &mut refused)
            })?;
        }
        Ok(())
    }
}

impl Drop for VerbsQueuePair {
    fn drop(&mut self) {
        // SAFETY: made by us, ended once; nothing refers to it but its completions, which are copies.
        log_failed("a queue pair", check_errno(unsafe { ibv::ibv_destroy_qp(self.raw.as_ptr()) }));
    }
}

/// The bytes of an entry's GID, in network order.
pub(super) fn gid_bytes(entry: &ibv::ibv_gid_entry) -> [u8; 16] {
    // SAFETY: both variants of the union are plain integers that fill it, so every value is valid as bytes.
    unsafe { entry.gid.raw }
}

//! The kernel's receive ring for frames: packet_mmap (the kernel's networking/packet_mmap.rst), TPACKET_V2.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_void, tpacket_req, tpacket2_hdr};

use super::{set_option, set_option_bytes};

// From linux/if_packet.h; the libc crate has the structures, but not these.
const PACKET_RX_RING: c_int = 5;
const PACKET_VERSION: c_int = 10;

/// Bytes of a slot before a frame's packet: its header, the sender's address, and room for the Ethernet
/// header (`TPACKET2_HDRLEN` and what tpacket_rcv() makes of it).
const BEFORE_PACKET: usize = 80;
/// The ring's memory is allocated in pieces of this size, or of a slot if that is larger.
const BLOCK: usize = 1 << 16;
/// Slots hold at least a full Ethernet frame, and at most a jumbo one: longer frames are truncated.
const SLOT: [usize; 2] = [2048, 16384];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) truncated: bool,
    /// Whether the UDP checksum was left for hardware to fill in.
    pub(crate) checksum_pending: bool,
}

/// The receive ring of a packet socket. Each slot belongs to the kernel or to us, as its first word says; we
/// take them in turn. It outlives the socket: the kernel keeps the memory as long as it is mapped.
pub(crate) struct FrameRing {
    memory: NonNull<u8>,
    len: usize,
    slot: usize,
    next: usize,
}

// SAFETY: the mapping is ours alone, and not tied to the thread that made it.
unsafe impl Send for FrameRing {}

impl FrameRing {
    /// Makes the packet socket `fd`, which must not be bound yet, receive into a ring of at least one block
    /// and about `bytes` bytes, for packets of up to `packet` bytes.
    pub(crate) fn new(fd: BorrowedFd<'_>, packet: usize, bytes: usize) -> io::Result<FrameRing> {
        let slot = (BEFORE_PACKET + packet).next_power_of_two().clamp(SLOT[0], SLOT[1]);
        let block = BLOCK.max(slot);
        let blocks = (bytes / block).max(1);
        let len = block * blocks;
        set_option(fd, libc::SOL_PACKET, PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as c_int)?;
        let request = tpacket_req {
            tp_block_size: block as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: slot as u32,
            tp_frame_nr: (len / slot) as u32,
        };
        set_option_bytes(fd, libc::SOL_PACKET, PACKET_RX_RING, &request)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours; the
        // length is the ring's.
        let memory = unsafe {
            libc::mmap(
                null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(FrameRing { memory, len, slot, next: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Shows `take` the oldest frame, which then leaves the ring; returns `None` if there is none.
    pub(crate) fn take<T>(&mut self, take: impl FnOnce(Frame<'_>) -> T) -> Option<T> {
        // SAFETY: `next` is below the number of slots, and slots fill the mapping: the pointer is inside it.
        let slot = unsafe { self.memory.add(self.next * self.slot) };
        // SAFETY: a slot begins with its status, a word aligned as slots are. While the slot may
        // change hands, kernel and we access it atomically alone; the plain read below is of a slot
        // that is ours.
        let status = unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) };
        // Acquire: the kernel wrote the frame before the status.
        let now = status.load(Ordering::Acquire);
        if now & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is ours, so nobody writes it; it begins with a header of plain integers.
        let header = unsafe { slot.cast::<tpacket2_hdr>().read() };
        let (at, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let bytes: &[u8] = if at + len <= self.slot {
            // SAFETY: inside the slot, as just seen, which is ours until its status is stored
            // below; the slice does not live longer than that, for `take` cannot keep it.
            unsafe { std::slice::from_raw_parts(slot.add(at).as_ptr(), len) }
        } else {
            // The kernel's numbers are checked against each other, not trusted.
            &[]
        };
        let taken = take(Frame {
            bytes,
            truncated: header.tp_len as usize > bytes.len(),
            checksum_pending: now & libc::TP_STATUS_CSUMNOTREADY != 0,
        });
        // Release: what was read of the slot was read before the kernel may write it again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % (self.len / self.slot);
        Some(taken)
    }
}

impl Drop for FrameRing {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once; no slice into it is left (see `take`).
        unsafe { libc::munmap(self.memory.as_ptr().cast::<c_void>(), self.len) };
    }
}

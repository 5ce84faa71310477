//! AF_XDP sockets (the kernel's networking/af_xdp.rst): memory for frames, and the four rings that pass its
//! chunks.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::sockopt;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};

use crate::xdp::index::{Consumer, Producer};

/// Bytes of a chunk before a received frame, which the kernel keeps for XDP programs.
pub(crate) const HEADROOM: usize = 256;

/// linux/if_xdp.h (Linux 6.17): the most frames that one call sends.
const XDP_MAX_TX_SKB_BUDGET: c_int = 9;
/// The most frames that one call sends on kernels without that option.
const BUDGET: usize = 32;
const BUDGET_WANTED: u32 = 256;
/// linux/if_xdp.h: ring flag; the kernel sleeps until it is called.
const NEED_WAKEUP: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UmemLayout {
    /// Size of a chunk: 2,048 or 4,096 bytes.
    pub(crate) chunk: usize,
    /// Chunks for receiving: a power of two. 0: the socket receives nothing.
    pub(crate) receive: u32,
    /// Chunks for sending: a power of two, at least 1.
    pub(crate) send: u32,
}

impl UmemLayout {
    /// The same layout for a socket that only receives.
    pub(crate) fn without_sending(self) -> Self {
        Self { send: 1, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XdpOpenStep {
    Socket,
    /// Sharing memory with the kernel.
    Memory,
    Rings,
    /// Binding the socket to a queue.
    Bind,
}

/// Mapped memory, unmapped on drop.
struct XdpMapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is its owner's alone, and not tied to the thread that made it.
unsafe impl Send for XdpMapping {}

impl XdpMapping {
    fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )
        }?;
        Ok(Self { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    fn map_ring_memory(socket: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Self> {
        // SAFETY: as above.
        let at = unsafe {
            rustix::mm::mmap(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                offset,
            )
        }?;
        Ok(Self { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }
}

impl Drop for XdpMapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, unmapped once; what points into it does not outlive its owner.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// An array that an XDP program and this process access atomically, as 8-byte words.
pub struct SharedWords(XdpMapping);

// SAFETY: all accesses are atomic.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps `words` words of an array map that was created to be mapped.
    pub(crate) fn map_array(array: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        XdpMapping::map_ring_memory(array, words * 8, 0).map(Self)
    }
}

impl std::ops::Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping begins at a page, has this length, and lives as long as this; its words are accessed atomically
        // by everybody, and any bytes are a number.
        unsafe { std::slice::from_raw_parts(self.0.at.as_ptr().cast(), self.0.len / 8) }
    }
}

/// A ring shared with the kernel. All accesses are atomic, so nothing depends on who uses which place.
struct XdpRing {
    memory: XdpMapping,
    producer: usize,
    consumer: usize,
    flags: Option<usize>,
    entries: usize,
    /// 8-byte words per entry: 1 or 2.
    words: usize,
    places: u32,
}

impl XdpRing {
    fn from_socket(
        socket: BorrowedFd<'_>,
        at: u64,
        offsets: &XdpRingOffset,
        places: u32,
        words: usize,
    ) -> io::Result<Self> {
        let bytes = places as usize * words * 8;
        let memory = XdpMapping::map_ring_memory(socket, offsets.desc as usize + bytes, at)?;
        let ring = Self {
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            flags: offsets.flags.map(|flags| flags as usize),
            entries: offsets.desc as usize,
            memory,
            words,
            places,
        };
        let whole = |at: usize, size: usize| at.is_multiple_of(size) && at + size <= ring.memory.len;
        let words_fit = [Some(ring.producer), Some(ring.consumer), ring.flags];
        // The accesses below rely on this.
        match words_fit.into_iter().flatten().all(|at| whole(at, 4)) && ring.entries.is_multiple_of(8) {
            true => Ok(ring),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn control_word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `map` saw that the word is aligned and inside the mapping, which lives as long as the
        // ring; everybody accesses it atomically.
        unsafe { AtomicU32::from_ptr(self.memory.at.add(at).cast().as_ptr()) }
    }

    fn entry_word(&self, place: usize, word: usize) -> &AtomicU64 {
        assert!(place < self.places as usize && word < self.words, "no such place of a ring");
        let at = self.entries + (place * self.words + word) * 8;
        // SAFETY: inside the mapping, for the place is one of the ring's, and aligned, as `map` saw; we
        // access it atomically alone.
        unsafe { AtomicU64::from_ptr(self.memory.at.add(at).cast().as_ptr()) }
    }

    fn load(&self, place: usize, word: usize) -> u64 {
        self.entry_word(place, word).load(Ordering::Relaxed)
    }

    fn store_entry(&self, place: usize, word: usize, value: u64) {
        self.entry_word(place, word).store(value, Ordering::Relaxed);
    }

    /// Acquire: makes visible what the kernel did before it advanced.
    fn written_count(&self) -> u32 {
        self.control_word(self.producer).load(Ordering::Acquire)
    }

    fn read(&self) -> u32 {
        self.control_word(self.consumer).load(Ordering::Acquire)
    }

    /// Release: what we did before we advanced is visible to the kernel.
    fn publish_written(&self, count: u32) {
        self.control_word(self.producer).store(count, Ordering::Release);
    }

    fn publish_read(&self, count: u32) {
        self.control_word(self.consumer).store(count, Ordering::Release);
    }

    fn needs_wakeup(&self) -> bool {
        self.flags.is_some_and(|at| self.control_word(at).load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }
}

/// The result of sending the frames put into a socket.
#[derive(Debug)]
pub(crate) struct XdpSendOutcome {
    /// Frames that the kernel accepted, in order.
    pub(crate) taken: usize,
    /// Why the others were not accepted, or why the last accepted one was not sent (EBUSY).
    pub(crate) error: Option<io::Error>,
}

/// A receive ring, and our end of it.
type ReceiveRing = (XdpRing, Consumer);

/// A further socket on the queue of an [`XdpSocket`], which receives into that one's memory. [`XdpSocket::receive_frame_of`]
/// shows its frames.
pub(crate) struct XdpReader {
    socket: OwnedFd,
    rx: ReceiveRing,
}

/// Frames that the kernel dropped at a socket since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct XdpKernelDrops {
    /// No chunk was free, or the frame was longer than a chunk without [`HEADROOM`].
    pub(crate) no_free_chunk: u64,
    /// The receive ring was full.
    pub(crate) ring_full: u64,
    /// Times that no chunk was free in the memory, for all sockets that share it. Without copies, the driver then waits and
    /// drops frames in the device.
    pub(crate) fill_empty: u64,
}

impl XdpKernelDrops {
    fn of_socket(socket: BorrowedFd<'_>) -> Self {
        sockopt::xdp_statistics(socket).map_or_else(
            |_| Self::default(),
            |counts| Self {
                no_free_chunk: counts.rx_dropped,
                ring_full: counts.rx_ring_full.unwrap_or(0),
                fill_empty: counts.rx_fill_ring_empty_descs.unwrap_or(0),
            },
        )
    }
}

impl XdpReader {
    pub(crate) fn kernel_drops(&self) -> XdpKernelDrops {
        XdpKernelDrops::of_socket(self.socket.as_fd())
    }

    /// The pending error of the socket, if any: ENETDOWN once the interface was removed.
    pub(crate) fn pending_error(&self) -> io::Result<()> {
        super::pending_error(self.socket.as_fd())
    }
}

impl AsFd for XdpReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A socket on one queue of an interface, with the memory of its frames.
///
/// Chunks 0 to `receive` - 1 belong to the kernel for receiving, except the one that [`XdpSocket::receive_frame`]
/// shows. The others are ours until a frame in them is sent, and come back afterwards.
pub(crate) struct XdpSocket {
    // First, so that it is closed before memory is unmapped.
    socket: OwnedFd,
    shape: UmemLayout,
    zero_copy: bool,
    memory: XdpMapping,
    fill: (XdpRing, Producer),
    /// `None` if only [readers](XdpReader) receive.
    rx: Option<ReceiveRing>,
    tx: (XdpRing, Producer),
    done: (XdpRing, Consumer),
    free: Vec<u32>,
    /// Frames put but not sent yet.
    put: usize,
    /// Most frames that one of our calls makes the kernel send.
    budget: usize,
    /// The chunks of voided entries, in order: see [`XdpSocket::unqueue_last`].
    void: Vec<u32>,
    /// Total voided entries that the kernel has skipped.
    passed: u64,
}

impl XdpSocket {
    /// Opens a socket on queue `queue` of the interface with index `interface`. `copy`: do not ask the driver to access our
    /// memory directly. `receives`: whether this socket receives, if the layout has memory for that.
    pub(crate) fn open(
        interface: u32,
        queue: u32,
        shape: UmemLayout,
        copy: bool,
        receives: bool,
    ) -> Result<Self, (XdpOpenStep, io::Error)> {
        let failed = |step: XdpOpenStep| move |error: rustix::io::Errno| (step, io::Error::from(error));
        let socket = super::open_socket(libc::AF_XDP, libc::SOCK_RAW, 0)
            .map_err(|error| (XdpOpenStep::Socket, error))?;
        let fd = socket.as_fd();
        let chunks = shape.receive + shape.send;
        let len = chunks as usize * shape.chunk;
        let memory = XdpMapping::anonymous(len).map_err(|error| (XdpOpenStep::Memory, error))?;
        let registration = XdpUmemReg {
            addr: memory.at.as_ptr() as u64,
            len: len as u64,
            chunk_size: shape.chunk as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(fd, registration).map_err(failed(XdpOpenStep::Memory))?;
        // Every socket needs both rings of its memory, even if it never receives.
        let fill_places = shape.receive.max(1);
        sockopt::set_xdp_umem_fill_ring_size(fd, fill_places).map_err(failed(XdpOpenStep::Rings))?;
        sockopt::set_xdp_umem_completion_ring_size(fd, shape.send).map_err(failed(XdpOpenStep::Rings))?;
        sockopt::set_xdp_tx_ring_size(fd, shape.send).map_err(failed(XdpOpenStep::Rings))?;
        let receives = receives && shape.receive > 0;
        if receives {
            sockopt::set_xdp_rx_ring_size(fd, shape.receive).map_err(failed(XdpOpenStep::Rings))?;
        }
        let offsets = sockopt::xdp_mmap_offsets(fd).map_err(failed(XdpOpenStep::Rings))?;
        let ring = |at, offsets, places, words| {
            XdpRing::from_socket(fd, at, offsets, places, words).map_err(|error| (XdpOpenStep::Rings, error))
        };
        let fill = ring(XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, fill_places, 1)?;
        let done = ring(XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, shape.send, 1)?;
        let tx = ring(XDP_PGOFF_TX_RING, &offsets.tx, shape.send, 2)?;
        let rx = match receives {
            false => None,
            true => {
                let places = shape.receive;
                Some((ring(XDP_PGOFF_RX_RING, &offsets.rx, places, 2)?, Consumer::new(places, 0)))
            }
        };
        let mut opened = Self {
            shape,
            zero_copy: false,
            memory,
            fill: (fill, Producer::new(fill_places, 0)),
            rx,
            tx: (tx, Producer::new(shape.send, 0)),
            done: (done, Consumer::new(shape.send, 0)),
            free: (shape.receive..chunks).rev().collect(),
            put: 0,
            budget: BUDGET.min(shape.send as usize),
            void: Vec::new(),
            passed: 0,
            socket,
        };
        for chunk in 0..shape.receive {
            give_receive_chunk(&mut opened.fill, u64::from(chunk) * shape.chunk as u64);
        }
        opened.return_received_chunks();
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        if copy {
            flags |= SocketAddrXdpFlags::XDP_COPY;
        }
        let address = SocketAddrXdp::new(flags, interface, queue);
        rustix::net::bind(opened.socket.as_fd(), &address).map_err(failed(XdpOpenStep::Bind))?;
        opened.zero_copy = sockopt::xdp_options(opened.socket.as_fd())
            .is_ok_and(|options| options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        let wanted = shape.send.min(BUDGET_WANTED);
        let fd = opened.socket.as_fd();
        if super::set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, wanted as c_int).is_ok() {
            opened.budget = wanted as usize;
        }
        Ok(opened)
    }

    pub(crate) fn layout(&self) -> UmemLayout {
        self.shape
    }

    /// Whether the driver accesses our memory directly.
    pub(crate) fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Opens a further socket on the same queue, for frames that the XDP program sends to it.
    pub(crate) fn open_reader(
        &self,
        interface: u32,
        queue: u32,
    ) -> Result<XdpReader, (XdpOpenStep, io::Error)> {
        let failed = |step: XdpOpenStep| move |error: rustix::io::Errno| (step, io::Error::from(error));
        let socket = super::open_socket(libc::AF_XDP, libc::SOCK_RAW, 0)
            .map_err(|error| (XdpOpenStep::Socket, error))?;
        let places = self.shape.receive;
        sockopt::set_xdp_rx_ring_size(&socket, places).map_err(failed(XdpOpenStep::Rings))?;
        let offsets = sockopt::xdp_mmap_offsets(&socket).map_err(failed(XdpOpenStep::Rings))?;
        let ring = XdpRing::from_socket(socket.as_fd(), XDP_PGOFF_RX_RING, &offsets.rx, places, 2)
            .map_err(|error| (XdpOpenStep::Rings, error))?;
        let address = SocketAddrXdpWithSharedUmem {
            addr: SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, interface, queue),
            shared_umem_fd: self.socket.as_fd(),
        };
        rustix::net::bind(&socket, &address).map_err(failed(XdpOpenStep::Bind))?;
        Ok(XdpReader { socket, rx: (ring, Consumer::new(places, 0)) })
    }

    /// Shows `take` the oldest received frame and removes it; returns `None` if there is none. Its memory
    /// returns to the kernel with [`XdpSocket::return_received_chunks`].
    #[inline]
    pub(crate) fn receive_frame<T>(&mut self, take: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let Self { rx, memory, shape, fill, .. } = self;
        receive_from(rx.as_mut()?, memory, *shape, fill, take)
    }

    /// As [`XdpSocket::receive_frame`], for one of its readers; [`XdpSocket::return_chunks_of`] returns the memory.
    #[inline]
    pub(crate) fn receive_frame_of<T>(
        &mut self,
        reader: &mut XdpReader,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        let Self { memory, shape, fill, .. } = self;
        receive_from(&mut reader.rx, memory, *shape, fill, take)
    }

    /// Returns received frames' chunks to the kernel.
    pub(crate) fn return_received_chunks(&mut self) {
        if let Some((ring, end)) = &self.rx {
            ring.publish_read(end.read());
        }
        self.return_chunks();
    }

    /// Returns the chunks of a reader's frames to the kernel.
    pub(crate) fn return_chunks_of(&mut self, reader: &XdpReader) {
        let (ring, end) = &reader.rx;
        ring.publish_read(end.read());
        self.return_chunks();
    }

    fn return_chunks(&self) {
        self.fill.0.publish_written(self.fill.1.written_count());
        if self.zero_copy && self.fill.0.needs_wakeup() {
            // The ring shows whether there is a frame.
            let _ = super::wait_for_events(
                &[self.socket.as_fd()],
                super::READABLE,
                Some(std::time::Duration::ZERO),
            );
        }
    }

    /// Queues a copy of a frame; `false` if there is no room, if as many are queued as one call sends, or if the frame is
    /// longer than a chunk.
    #[inline]
    pub(crate) fn queue_frame(&mut self, frame: &[u8]) -> bool {
        if frame.len() > self.shape.chunk || self.put >= self.budget {
            return false;
        }
        if self.free.is_empty() {
            self.reclaim_sent_chunks();
        }
        let Some(chunk) = self.free.pop() else { return false };
        let (ring, end) = &mut self.tx;
        let Some(place) = end.take(|| ring.read()) else {
            self.free.push(chunk);
            return false;
        };
        let at = chunk as usize * self.shape.chunk;
        // SAFETY: chunks to send from are inside the memory and were free, so that the kernel does not
        // read this one and nothing else points into it; the frame is no longer than a chunk.
        unsafe { self.memory.at.add(at).as_ptr().copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
        ring.store_entry(place, 0, at as u64);
        ring.store_entry(place, 1, length_word(frame.len()));
        self.put += 1;
        true
    }

    fn reclaim_sent_chunks(&mut self) {
        let (ring, end) = &mut self.done;
        while let Some(place) = end.take(|| ring.written_count()) {
            let chunk = ring.load(place, 0) / self.shape.chunk as u64;
            // Only send chunks: the kernel's word decides nothing else.
            if (u64::from(self.shape.receive)..u64::from(self.shape.receive + self.shape.send))
                .contains(&chunk)
            {
                self.free.push(chunk as u32);
            }
        }
        ring.publish_read(end.read());
    }

    /// Makes the kernel send the queued frames. Frames that it did not accept are no longer queued, except if the driver
    /// accesses our memory directly: then all are accepted, and sent when possible. In copy mode the kernel reads the ring
    /// only during our calls.
    pub(crate) fn send(&mut self) -> XdpSendOutcome {
        let put = std::mem::take(&mut self.put);
        let (ring, end) = &mut self.tx;
        ring.publish_written(end.written_count());
        if self.zero_copy {
            let called = match ring.needs_wakeup() {
                true => call(self.socket.as_fd()),
                false => Ok(()),
            };
            return XdpSendOutcome { taken: put, error: called.err().filter(|_| put == 0) };
        }
        let error = self.call_until_read().err();
        if self.all_is_read() && error.is_none() {
            if !self.void.is_empty() {
                self.settle_void_entries();
            }
            return XdpSendOutcome { taken: put, error };
        }
        XdpSendOutcome { taken: self.unqueue_last(put), error }
    }

    /// In copy mode, after a call that failed before it had read all entries: unqueues the last `put` entries, and returns
    /// how many of them the kernel had accepted.
    ///
    /// The kernel's position does not tell: it records that it has read entries only once it has read all that it saw (since
    /// Linux 6.17, after each frame sent), and it remembers how many it saw, so none can be taken back. So the entries are
    /// voided, and the kernel is called until it has skipped them, which it counts. If it does not even look, because the
    /// interface is down, they stay in the ring and count as not accepted.
    fn unqueue_last(&mut self, put: usize) -> usize {
        let (ring, end) = &self.tx;
        let (older, beyond) = (self.void.len(), self.memory.len as u64);
        for place in end.last_places(put as u32) {
            self.void.push((ring.load(place, 0) / self.shape.chunk as u64) as u32);
            ring.store_entry(place, 0, beyond);
        }
        // The caller knows the reason from the earlier call.
        let _ = self.call_until_read();
        match self.all_is_read() {
            true => self.settle_void_entries().saturating_sub(older),
            false => 0,
        }
    }

    /// Once everything is read: returns how many of the void entries had been accepted before they were voided, and frees the
    /// chunks of the others. The kernel reads entries in order.
    fn settle_void_entries(&mut self) -> usize {
        let passed = sockopt::xdp_statistics(self.socket.as_fd())
            .map_or(self.passed, |counts| counts.tx_invalid_descs);
        let new = usize::try_from(passed - self.passed).unwrap_or(usize::MAX).min(self.void.len());
        self.passed = passed;
        let taken = self.void.len() - new;
        self.free.extend(self.void.drain(..).skip(taken));
        taken
    }

    fn all_is_read(&self) -> bool {
        self.tx.0.read() == self.tx.1.written_count()
    }

    /// Calls the kernel until it has read everything queued; without void entries, the first call does. Some
    /// kernels skip only one void entry per call.
    fn call_until_read(&self) -> io::Result<()> {
        let waiting = self.tx.1.written_count().wrapping_sub(self.tx.0.read()).min(self.shape.send);
        for _ in 0..=waiting {
            call(self.socket.as_fd())?;
            if self.all_is_read() {
                break;
            }
        }
        Ok(())
    }

    /// Frames that the kernel dropped here since the socket was opened.
    pub(crate) fn kernel_drops(&self) -> u64 {
        let drops = XdpKernelDrops::of_socket(self.socket.as_fd());
        drops.no_free_chunk + drops.ring_full
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Gives the kernel a chunk to receive into.
fn give_receive_chunk(fill: &mut (XdpRing, Producer), chunk: u64) {
    let (ring, end) = fill;
    // There is room for every receive chunk.
    if let Some(place) = end.take(|| ring.read()) {
        ring.store_entry(place, 0, chunk);
    }
}

/// Shows `take` the oldest frame of a receive ring whose frames are in `memory`, and removes it.
#[inline]
fn receive_from<T>(
    rx: &mut ReceiveRing,
    memory: &XdpMapping,
    shape: UmemLayout,
    fill: &mut (XdpRing, Producer),
    take: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    let (ring, end) = rx;
    let place = end.take(|| ring.written_count())?;
    let (address, len) = (ring.load(place, 0), length_of(ring.load(place, 1)));
    let chunk = address & !(shape.chunk as u64 - 1);
    let received = chunk / (shape.chunk as u64) < u64::from(shape.receive);
    let inside = (address - chunk) as usize + len <= shape.chunk;
    let bytes: &[u8] = if received && inside {
        // SAFETY: inside one chunk of the memory, as just seen. The kernel gave the chunk to us with this
        // entry and does not write it until `give_receive_chunk` below; it is none that frames are sent from, so
        // nothing else points into it. The slice does not live longer: `take` cannot keep it.
        unsafe { std::slice::from_raw_parts(memory.at.add(address as usize).as_ptr(), len) }
    } else {
        // The kernel's numbers are checked against each other, not trusted.
        &[]
    };
    let taken = take(bytes);
    if received {
        give_receive_chunk(fill, chunk);
    }
    Some(taken)
}

/// Makes the kernel look at the transmit ring.
fn call(socket: BorrowedFd<'_>) -> io::Result<()> {
    rustix::net::send(socket, &[], rustix::net::SendFlags::DONTWAIT)?;
    Ok(())
}

/// The second word of a descriptor: 4 bytes of length and 4 bytes of (no) options.
fn length_word(len: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

fn length_of(word: u64) -> usize {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d]) as usize
}

//! Plain UDP datagrams to the listeners at one interface: one program, and for each receive queue one memory, which the
//! queue's sockets share. Each listener has its own socket on each queue.
#![cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "nothing can be opened"))]

use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dta_proto::batch::{ETHERNET_LEN, PacketBatch, PushError};
use dta_proto::wire::datagram::UdpDatagram;

use super::events::{EventLimits, EventTables, QueueCounts, ReportForm};
use super::{Mode, SharedWords, Watch, count_queues, explain_refusal, retry_while_busy, umem_layout};
use crate::packet::NetworkInterface;
use crate::sys::{self, XdpReader, XdpSocket};
use crate::{LinkCounters, LinkError, Result};

#[cfg(feature = "xdp")]
use super::program::{INTAKE_LISTENERS, INTAKE_QUEUES, IntakeProgram};

/// Memory of an interface's frames, over all queues.
const RECEIVE_BUFFER: usize = 16 << 20;

/// The program at an interface, and the memory of each queue.
pub(crate) struct XdpIntake {
    #[cfg(feature = "xdp")]
    program: Arc<Mutex<IntakeProgram>>,
    interface: NetworkInterface,
    mode: Mode,
    queues: Vec<Arc<Mutex<XdpSocket>>>,
    listeners: u32,
    events: Option<InterfaceEvents>,
}

/// The tables of a program that drops unchanged reports.
struct InterfaceEvents {
    limits: EventLimits,
    queues: Arc<SharedWords>,
    /// `None` once somebody has taken them.
    tables: Option<EventTables>,
}

impl XdpIntake {
    /// Attaches the program to an interface, and opens a socket on each of its queues.
    ///
    /// # Errors
    /// As [`super::XdpLink::open`], and if the interface has no IPv4 address.
    pub(crate) fn open(interface: &str, mode: Option<Mode>, events: Option<EventLimits>) -> Result<Self> {
        retry_while_busy(|| Self::open_without_retry(interface, mode, events))
    }

    #[cfg(not(feature = "xdp"))]
    fn open_without_retry(interface: &str, _: Option<Mode>, _: Option<EventLimits>) -> Result<Self> {
        let reason = "this program was built without the feature `xdp` of dta-link".into();
        Err(LinkError::NoXdp { interface: interface.into(), reason })
    }

    #[cfg(feature = "xdp")]
    fn open_without_retry(interface: &str, mode: Option<Mode>, events: Option<EventLimits>) -> Result<Self> {
        let interface = NetworkInterface::lookup_by_name(interface)?;
        let addresses = sys::interface_addresses(&interface.name).map_err(LinkError::io_with_context(
            format!("cannot list the addresses of {}", interface.name),
        ))?;
        let count = count_queues(&interface)?.min(INTAKE_QUEUES);
        let shape = umem_layout(&interface, RECEIVE_BUFFER, true, count)?;
        let (mut program, mode) = IntakeProgram::load(&interface, &addresses, mode, events)?;
        let tables =
            events.map(|limits| program.event_tables(&limits).map(|tables| (limits, tables))).transpose()?;
        let events = tables.map(|(limits, tables)| {
            let queues = Arc::clone(&tables.queues);
            InterfaceEvents { limits, queues, tables: Some(tables) }
        });
        let open = |queue| {
            XdpSocket::open(interface.index, queue, shape.without_sending(), mode == Mode::Generic, false)
                .map(|socket| Arc::new(Mutex::new(socket)))
                .map_err(|(step, error)| explain_refusal(&interface, queue, shape, step, error))
        };
        let queues = (0..count).map(open).collect::<Result<_>>()?;
        let program = Arc::new(Mutex::new(program));
        Ok(Self { program, interface, mode, queues, listeners: 0, events })
    }

    pub(crate) fn interface_name(&self) -> &str {
        &self.interface.name
    }

    /// The tables of a program that drops unchanged reports; only the first call returns them.
    pub(crate) fn take_event_tables(&mut self) -> Option<EventTables> {
        self.events.as_mut()?.tables.take()
    }

    pub(crate) fn last_listener(&self) -> u32 {
        self.listeners.saturating_sub(1)
    }

    /// A description of what carries the datagrams.
    pub(crate) fn describe(&self) -> String {
        let zero_copy = self.queues.iter().all(|queue| lock(queue).zero_copy());
        let copies = if zero_copy { "without copies" } else { "with a copy" };
        format!("AF_XDP, {} mode, {copies} in the kernel, queues: {}", self.mode, self.queues.len())
    }

    /// Receives datagrams to `port` of each address of the interface from now on, in `count` parts: queues are assigned to
    /// the parts in turn, so that the datagrams of a queue stay together. With a `form`, the program drops unchanged
    /// reports, which it parses in that form.
    ///
    /// # Errors
    /// There are fewer queues than parts, or too many listeners, or the kernel refuses.
    pub(crate) fn add_listener(
        &mut self,
        port: u16,
        count: usize,
        form: Option<ReportForm>,
    ) -> Result<Vec<XdpReceiver>> {
        let name = || self.interface.name.clone();
        if self.queues.len() < count {
            return Err(LinkError::TooFewQueues {
                interface: name(),
                queues: self.queues.len(),
                threads: count,
            });
        }
        #[cfg(feature = "xdp")]
        if self.listeners == INTAKE_LISTENERS {
            return Err(LinkError::TooManyListeners { interface: name(), most: INTAKE_LISTENERS });
        }
        let mut parts: Vec<_> = (0..count)
            .map(|_| XdpReceiver {
                #[cfg(feature = "xdp")]
                _program: Arc::clone(&self.program),
                interface: name(),
                queues: Vec::new(),
                next: 0,
                counts_fills: self.listeners == 0,
                counters: LinkCounters::default(),
            })
            .collect();
        for (number, memory) in (0..).zip(&self.queues) {
            let opened = lock(memory).open_reader(self.interface.index, number);
            let reader = opened.map_err(|(step, error)| {
                explain_refusal(&self.interface, number, lock(memory).layout(), step, error)
            })?;
            #[cfg(feature = "xdp")]
            lock(&self.program).add_socket(self.listeners, number, reader.as_fd())?;
            let events = self.events.as_ref().filter(|_| form.is_some());
            #[cfg(feature = "xdp")]
            let events = events.map(|events| QueueCounts::new(&events.queues, self.listeners, number));
            #[cfg(not(feature = "xdp"))]
            let events = events.and(None);
            let queue = ReceiverQueue { memory: Arc::clone(memory), reader, events, last: None };
            parts[number as usize % count].queues.push(queue);
        }
        #[cfg(feature = "xdp")]
        if let (Some(events), Some(form)) = (&self.events, form) {
            lock(&self.program).drop_unchanged(self.listeners, form, &events.limits)?;
        }
        // Last, so that no datagram finds a listener without sockets.
        #[cfg(feature = "xdp")]
        lock(&self.program).add_listener(self.listeners, port)?;
        self.listeners += 1;
        Ok(parts)
    }
}

/// The datagrams of a listener on some queues.
pub(crate) struct XdpReceiver {
    // First, so that no more frames arrive when the sockets are closed.
    #[cfg(feature = "xdp")]
    _program: Arc<Mutex<IntakeProgram>>,
    interface: String,
    queues: Vec<ReceiverQueue>,
    /// The queue to read first next time.
    next: usize,
    /// Whether it counts, on behalf of all listeners of its queues, how often their memory had no free frame.
    counts_fills: bool,
    counters: LinkCounters,
}

struct ReceiverQueue {
    /// Shared with other listeners of this thread.
    memory: Arc<Mutex<XdpSocket>>,
    /// This listener's socket.
    reader: XdpReader,
    /// `None` unless the program drops unchanged reports for this listener.
    events: Option<QueueCounts>,
    /// The number that the program gave to the last report taken, if not confirmed yet.
    last: Option<u32>,
}

impl XdpReceiver {
    /// Has `watch` become readable when one of the sockets does.
    pub(crate) fn watch_with(&self, watch: &Watch) -> Result<()> {
        self.queues.iter().try_for_each(|queue| watch.add(queue.reader.as_fd()))
    }

    /// Replaces the contents of `batch` by the datagrams that have arrived, up to its capacity, without a system call. They
    /// have the same headers as those of a socket.
    pub(crate) fn take(&mut self, batch: &mut PacketBatch) {
        batch.clear();
        let Self { queues, next, counters, .. } = self;
        for _ in 0..queues.len() {
            // The next queue comes first next time.
            if batch.is_full() {
                break;
            }
            let count = queues.len();
            let ReceiverQueue { memory, reader, events, last } = &mut queues[*next];
            *next = (*next + 1) % count;
            // Uncontended: one thread reads all listeners of a queue. One listener's ring can hold all of the queue's
            // chunks, so a listener that is not read for a while takes them from the others.
            let mut memory = lock(memory);
            let mut any = false;
            while !batch.is_full() {
                let take = |frame: &[u8]| {
                    if events.is_some() {
                        // The program writes it in place of the sender's Ethernet address.
                        *last = frame
                            .get(6..)
                            .and_then(|rest| rest.first_chunk().copied())
                            .map(u32::from_ne_bytes);
                    }
                    push_datagram(frame, batch, counters);
                };
                if memory.receive_frame_of(reader, take).is_none() {
                    break;
                }
                any = true;
            }
            if any {
                memory.return_chunks_of(reader);
            }
        }
    }

    /// Confirms to the program that everything taken so far has been processed.
    pub(crate) fn confirm_processed(&mut self) {
        for queue in &mut self.queues {
            if let (Some(events), Some(number)) = (&queue.events, queue.last.take()) {
                events.publish_processed(number);
            }
        }
    }

    /// Checks that the interface is still there.
    ///
    /// # Errors
    /// [`LinkError::NoInterface`] if it was removed.
    pub(crate) fn check_interface(&self) -> Result<()> {
        // All sockets get the error; only one is asked, because this happens whenever nothing came.
        let Some(queue) = self.queues.first() else { return Ok(()) };
        queue.reader.pending_error().map_err(|error| match error.raw_os_error() {
            Some(libc::ENETDOWN) => LinkError::NoInterface(self.interface.clone()),
            _ => LinkError::io_with_context(format!("cannot receive datagrams on {}", self.interface))(error),
        })
    }

    /// What was received, and what was dropped by the kernel and here.
    pub(crate) fn receive_counters(&self) -> LinkCounters {
        let mut counters = self.counters;
        for ReceiverQueue { memory, reader, events, .. } in &self.queues {
            if let Some((dropped, bytes)) = events.as_ref().map(QueueCounts::dropped) {
                counters.received += dropped;
                counters.received_bytes += bytes;
                counters.xdp_received += dropped;
                counters.xdp_unchanged += dropped;
            }
            let drops = reader.kernel_drops();
            counters.xdp_ring_full += drops.ring_full;
            counters.xdp_no_free_frame += match lock(memory).zero_copy() {
                false => drops.no_free_chunk,
                true if self.counts_fills => drops.fill_empty,
                true => 0,
            };
            counters.dropped_by_kernel += drops.ring_full + drops.no_free_chunk;
        }
        // A socket's kernel counts these as dropped.
        counters.dropped_by_kernel += counters.xdp_checksum;
        counters
    }
}

/// A thread that panicked leaves a socket as usable as before: each call leaves the rings consistent.
fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the datagram of a frame to a batch that is not full, with the headers that a socket's datagram has, or counts why it
/// cannot. The kernel has checked nothing of it.
fn push_datagram(frame: &[u8], batch: &mut PacketBatch, counters: &mut LinkCounters) {
    let parsed = frame.get(ETHERNET_LEN..).and_then(|packet| UdpDatagram::parse_packet(packet).ok());
    let Some(datagram) = parsed.filter(|datagram| datagram.ipv4.checksum_ok()) else {
        counters.xdp_malformed += 1;
        return;
    };
    if datagram.verify_checksum().is_err() && !datagram.is_checksum_pending() {
        counters.xdp_checksum += 1;
        return;
    }
    match batch.push_datagram(datagram.source(), datagram.destination(), datagram.payload(), 0) {
        Ok(()) => {
            counters.xdp_received += 1;
            counters.count_received(batch.packet(batch.len() - 1).len());
        }
        Err(PushError::TooLong { .. } | PushError::Full) => counters.dropped_too_long += 1,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use dta_proto::wire::datagram::{encode_header, fill_udp_checksum, header_with};

    use super::*;

    const HEADER: [u8; ETHERNET_LEN] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];

    fn endpoint(last: u8, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new([10, 9, 1, last].into(), port)
    }

    fn frame(payload: &[u8]) -> Vec<u8> {
        let mut packet =
            [&encode_header(endpoint(9, 9), endpoint(2, 40040), payload.len()), payload].concat();
        fill_udp_checksum(&mut packet);
        [&HEADER[..], &packet].concat()
    }

    fn taken(frame: &[u8]) -> (Vec<Vec<u8>>, LinkCounters) {
        let (mut batch, mut counters) = (PacketBatch::new(2), LinkCounters::default());
        push_datagram(frame, &mut batch, &mut counters);
        (batch.iter().map(<[u8]>::to_vec).collect(), counters)
    }

    #[test]
    fn a_datagram_is_as_a_socket_gives_it() {
        let whole = frame(&[7; 5]);
        let expected = [&encode_header(endpoint(9, 9), endpoint(2, 40040), 5)[..], &[7; 5]].concat();
        let received =
            LinkCounters { received: 1, received_bytes: 33, xdp_received: 1, ..LinkCounters::default() };
        let ok = (vec![expected], received);
        assert_eq!(taken(&whole), ok);
        // Padding after the frame; another type of service and time to live; no checksum.
        assert_eq!(taken(&[&whole[..], &[0xee; 13]].concat()), ok);
        let mut other = whole.clone();
        other[ETHERNET_LEN..][..28].copy_from_slice(&header_with(
            endpoint(9, 9),
            endpoint(2, 40040),
            5,
            0xb8,
            3,
        ));
        assert_eq!(taken(&other), ok);
        // A checksum that the sender left to its device, the sum of the pseudo header: 0a09 + 0109 + 0a09 + 0102 + 11 + d.
        other[ETHERNET_LEN + 26..][..2].copy_from_slice(&[0x16, 0x3b]);
        assert_eq!(taken(&other), ok);
    }

    #[test]
    fn what_is_damaged_is_counted_and_no_byte_leads_out_of_the_frame() {
        let whole = frame(&[7; 5]);
        let is = |frame: &[u8], malformed: u64, checksum: u64| {
            let expected =
                LinkCounters { xdp_malformed: malformed, xdp_checksum: checksum, ..LinkCounters::default() };
            assert_eq!(taken(frame), (Vec::new(), expected), "{frame:x?}");
        };
        for len in 0..whole.len() {
            is(&whole[..len], 1, 0);
        }
        for bit in 0..8 * (whole.len() - ETHERNET_LEN) {
            let mut damaged = whole.clone();
            damaged[ETHERNET_LEN + bit / 8] ^= 1 << (bit % 8);
            // The flipped bit breaks the checksum or a length of the IPv4 header, or the length or checksum of UDP.
            let of_ip = bit < 160;
            let (packets, counters) = taken(&damaged);
            assert!(packets.is_empty(), "bit {bit}");
            assert_eq!(counters.xdp_malformed + counters.xdp_checksum, 1, "bit {bit}");
            assert!(!of_ip || counters.xdp_malformed == 1, "bit {bit}");
        }
        // A UDP length beyond the packet.
        let mut long = whole.clone();
        long[ETHERNET_LEN + 25] += 1;
        is(&long, 1, 0);
        // Longer than a slot.
        let (packets, counters) = taken(&frame(&[1; 3000]));
        assert_eq!(
            (packets.len(), counters),
            (0, LinkCounters { dropped_too_long: 1, ..LinkCounters::default() })
        );
    }
}

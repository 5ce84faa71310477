//! What leaves: finished packets in one buffer, made from templates ([`dta_proto::wire::frame`]).

use std::net::IpAddr;

use dta_proto::wire::frame::{FetchAddTemplate, Route, WriteImmTemplate, WriteTemplate};
use dta_proto::wire::roce;

use super::losses::FrameMeta;
use super::pair_place;
use super::requester::{Departure, Verb};
use dta_proto::program::{QueuePair, Store, Transport};

/// Finished packets, one after another, IPv4 header onwards.
#[derive(Debug, Default)]
pub struct Frames {
    /// The first `used` bytes are packets; what follows is left over, so that nothing has to be zeroed for a new packet.
    bytes: Vec<u8>,
    used: usize,
    ends: Vec<u32>,
}

impl Frames {
    /// How many.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Packet `index`.
    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.bytes[start..self.ends[index] as usize]
    }

    /// All packets in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Forgets all, keeping the memory.
    pub fn clear(&mut self) {
        self.used = 0;
        self.ends.clear();
    }

    /// Adds a packet of `len` bytes and gives it to be filled in; it holds anything before.
    #[inline]
    pub(crate) fn push(&mut self, len: usize) -> &mut [u8] {
        let start = self.used;
        self.used += len;
        self.ends.push(self.used as u32);
        if self.used > self.bytes.len() {
            self.grow();
        }
        &mut self.bytes[start..self.used]
    }

    #[cold]
    fn grow(&mut self) {
        self.bytes.resize(self.used.next_power_of_two().max(1 << 14), 0);
    }
}

/// What leaves the data plane in one go.
#[derive(Debug, Default)]
pub struct Output {
    /// RoCEv2 packets for the collector's NIC, in order of departure.
    pub frames: Frames,
    /// What each of `frames` carries.
    pub meta: Vec<FrameMeta>,
    /// NACK datagrams for reporters, as IPv4 packets.
    pub nacks: Frames,
    /// Reports that queue pairs lost, one per report and copy. Filled only where the data plane keeps the names of reports.
    pub lost: Vec<(super::losses::Origin, u8)>,
}

impl Output {
    /// Forgets all, keeping the memory.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.meta.clear();
        self.nacks.clear();
        self.lost.clear();
    }
}

/// The frames of one store on its queue pair.
#[derive(Clone, Debug)]
pub(crate) struct StoreFrames {
    /// Place of the queue pair that they travel on.
    pub(crate) pair: u8,
    /// Where the frames are counted.
    pub(crate) counter: usize,
    base: u64,
    rkey: u32,
    write: WriteTemplate,
    write_immediate: WriteImmTemplate,
    fetch_add: FetchAddTemplate,
}

/// Zero-length WRITEs of one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct IdleFrames(WriteTemplate);

/// Everything below the BTH that the frames of a queue pair share; `None` for IPv6.
fn route(pair: &QueuePair) -> Option<Route> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (pair.source.ip, pair.destination.ip) else { return None };
    let plain = Route::new(src, dst, pair.remote_qpn);
    Some(Route { dst_port: pair.destination.port, tos: pair.tos, ..plain })
}

fn transport(pair: &QueuePair) -> roce::Transport {
    match pair.transport {
        Transport::Uc => roce::Transport::Uc,
        Transport::Rc => roce::Transport::Rc,
    }
}

impl IdleFrames {
    pub(crate) fn new(pair: &QueuePair) -> Option<IdleFrames> {
        WriteTemplate::new(&route(pair)?, transport(pair), pair.remote_qpn, 0).ok().map(IdleFrames)
    }

    pub(crate) fn write(&self, departure: &Departure<'_>, frames: &mut Frames) {
        let frame = frames.push(self.0.frame_len());
        let written = self.0.emit(departure.psn, departure.ack_request, 0, 0, &[], frame);
        debug_assert!(written.is_ok());
    }
}

impl StoreFrames {
    pub(crate) fn new(pair: &QueuePair, store: &Store, counter: usize) -> Option<StoreFrames> {
        let route = route(pair)?;
        let (transport, qpn, len) = (transport(pair), pair.remote_qpn, store.spec.element_len() as usize);
        Some(StoreFrames {
            pair: pair_place::of_store(store),
            counter,
            base: store.address,
            rkey: store.rkey.0,
            write: WriteTemplate::new(&route, transport, qpn, len).ok()?,
            write_immediate: WriteImmTemplate::new(&route, transport, qpn, len).ok()?,
            fetch_add: FetchAddTemplate::new(&route, qpn).ok()?,
        })
    }

    /// Appends the frame of a departure.
    #[inline]
    pub(crate) fn write(&self, departure: &Departure<'_>, frames: &mut Frames) {
        let Departure { psn, ack_request, payload, .. } = *departure;
        // Bases are aligned to their region's length.
        let va = self.base | departure.offset;
        let written = match departure.action.verb {
            Verb::Write | Verb::Idle => {
                let frame = frames.push(self.write.frame_len());
                self.write.emit(psn, ack_request, va, self.rkey, payload, frame)
            }
            Verb::WriteImmediate => {
                let immediate = departure.action.number as u32;
                let frame = frames.push(self.write_immediate.frame_len());
                self.write_immediate.emit(psn, ack_request, va, self.rkey, immediate, payload, frame)
            }
            Verb::FetchAdd => {
                let addend = departure.action.number;
                let frame = frames.push(self.fetch_add.frame_len());
                self.fetch_add.emit(psn, ack_request, va, self.rkey, addend, frame)
            }
        };
        // The buffer is as long as the template says, and the payload one element of the store.
        debug_assert!(written.is_ok());
    }
}

//! The responder: packets in, memory changed, answers out. One thread, no I/O, no clock.
//!
//! It gives the verdicts of Linux 6.1's soft-RoCE, packet by packet; `testbed/roce-conformance/` lists them, and where
//! and why the two differ.
//!
//! A batch goes through in two passes. The first reads each packet, checks it for damage, finds its key and asks the
//! CPU to fetch the memory that it will change; by the time the second pass writes there, the memory is near.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use dta_link::Batch;
use dta_proto::wire::ethernet::Mac;
use dta_proto::wire::roce::{self, Aeth, NakCode, Opcode, Psn, Syndrome};

use super::answer::{self, Way};
use super::counter::{Counter, Counts};
use super::keys::{Keys, MAX_REGISTRATIONS};
use super::packets::Packets;
use super::queue_pair::{MAX_QUEUE_PAIRS, Message, QueuePair, QueuePairs, Resource};
use super::request::{Local, Request};
use crate::nic::{
    Access, Immediate, NicError, QueuePairInfo, QueuePairRequest, QueuePairState, QueuePairStatus,
    Registration, Transport,
};
use crate::region::Region;

/// RNR timer code of 0.64 ms (InfiniBand specification 1.4, 9.7.5.2.8), as `ibv_modify_qp` is usually given it.
const RNR_TIMER: u8 = 12;

/// Most bytes of a message (InfiniBand specification 1.4, 9.4.1).
const MOST_LENGTH: u32 = 1 << 31;

/// What a responder is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// Name, for errors.
    pub device: String,
    /// Address that requests are sent to; others are dropped.
    pub ip: Ipv4Addr,
    /// UDP port that requests are sent to.
    pub port: u16,
    /// Ethernet address that ARP is answered with, on links that carry whole frames.
    pub mac: Option<Mac>,
    /// Path MTU: payload bytes of one packet, 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Responder resources per RC queue pair: atomics and READs that may be in flight. With 0, both are refused.
    pub max_dest_rd_atomic: u8,
}

/// A RoCEv2 responder. See the module's documentation.
pub struct Responder {
    config: ResponderConfig,
    keys: Keys,
    queue_pairs: QueuePairs,
    counts: Counts,
    immediates: Vec<Immediate>,
    prepared: Vec<Result<Prepared, Counter>>,
}

/// A request, and the place of its queue pair.
#[derive(Clone, Copy)]
struct Prepared {
    request: Request,
    queue_pair: usize,
}

/// What comes of a request: the counter of its fate.
type Fate = Counter;

/// Where answers go: a batch, and what empties it when it is full.
struct Out<'a> {
    batch: &'a mut Batch,
    send: &'a mut dyn FnMut(&mut Batch),
    counts: &'a mut Counts,
}

impl Out<'_> {
    /// Makes room, lets `write` write one answer, and counts it.
    fn push(&mut self, counter: Counter, write: impl FnOnce(&mut Batch) -> bool) {
        if self.batch.is_full() {
            (self.send)(self.batch);
        }
        self.counts.count(if write(self.batch) { counter } else { Counter::UnsentAnswer });
    }
}

impl Responder {
    /// A responder with no regions and no queue pairs.
    pub fn new(config: ResponderConfig) -> Responder {
        Responder {
            config,
            keys: Keys::default(),
            queue_pairs: QueuePairs::default(),
            counts: Counts::default(),
            immediates: Vec::new(),
            prepared: Vec::new(),
        }
    }

    /// What it was made with.
    pub fn config(&self) -> &ResponderConfig {
        &self.config
    }

    /// Counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts so far, to be continued from an earlier run.
    pub fn counts_mut(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Registers a region at its own address, for the accesses `access`.
    ///
    /// # Errors
    /// The region is read-only or its address is not a multiple of 8, or there are too many registrations.
    pub fn register(&mut self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        let refuse = |reason| NicError::Region { iova: region.iova(), len: region.len(), reason };
        if !region.writable() {
            return Err(refuse("it was opened for reading only"));
        }
        // Atomics are checked for alignment by their place in the region, requesters align their addresses.
        if !region.iova().is_multiple_of(8) {
            return Err(refuse("the address is not a multiple of 8"));
        }
        if region.iova().checked_add(region.len()).is_none() {
            return Err(refuse("its end lies beyond 2^64"));
        }
        let random = random()?;
        self.keys.insert(region, access, random).ok_or_else(|| NicError::TooManyRegistrations {
            device: self.config.device.clone(),
            limit: MAX_REGISTRATIONS,
        })
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// There is none of that key.
    pub fn deregister(&mut self, rkey: u32) -> Result<(), NicError> {
        if self.keys.remove(rkey) { Ok(()) } else { Err(NicError::NoRegistration) }
    }

    /// Makes a queue pair, ready to receive.
    ///
    /// # Errors
    /// A field of the request is out of range, or there are too many queue pairs.
    pub fn create_queue_pair(&mut self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        let fail = |field, value: String, must| Err(NicError::Request { field, value, must });
        let IpAddr::V4(peer_ip) = request.peer.ip else {
            return fail("peer", request.peer.ip.to_string(), "an IPv4 address: RoCEv2 goes over IPv4 here");
        };
        if request.peer_qpn > roce::QPN_MASK {
            return fail("peer_qpn", request.peer_qpn.to_string(), "a number below 2^24");
        }
        if request.start_psn > Psn::MASK {
            return fail("start_psn", request.start_psn.to_string(), "a number below 2^24");
        }
        let resources = match request.transport {
            Transport::Rc => self.config.max_dest_rd_atomic,
            Transport::Uc => 0,
        };
        let psn = Psn::new(request.start_psn);
        let make = |qpn| QueuePair {
            qpn,
            request: request.clone(),
            peer_ip,
            state: QueuePairState::ReadyToReceive,
            psn,
            ack_psn: psn,
            msn: 0,
            sequence_nak_sent: false,
            drop_message: false,
            message: None,
            receives: request.receives,
            resources: vec![None; usize::from(resources)],
            next_resource: 0,
            counts: Counts::default(),
        };
        let random = random()?;
        let qp = self.queue_pairs.insert(random, make).ok_or_else(|| NicError::TooManyQueuePairs {
            device: self.config.device.clone(),
            limit: MAX_QUEUE_PAIRS,
        })?;
        Ok(QueuePairInfo { qpn: qp.qpn, expected_psn: psn.get(), max_dest_rd_atomic: resources })
    }

    /// Ends a queue pair.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn destroy_queue_pair(&mut self, qpn: u32) -> Result<(), NicError> {
        if self.queue_pairs.remove(qpn) { Ok(()) } else { Err(NicError::NoQueuePair { qpn }) }
    }

    /// Every queue pair as it stands.
    pub fn queue_pairs(&self) -> Vec<QueuePairStatus> {
        self.queue_pairs.iter().map(QueuePair::status).collect()
    }

    /// Immediates received and not taken yet, oldest first. There are never more than receives were posted.
    pub fn immediates(&mut self) -> &mut Vec<Immediate> {
        &mut self.immediates
    }

    /// Posts `count` receives more to a queue pair; does nothing if it has ended.
    pub fn post_receives(&mut self, qpn: u32, count: u32) {
        if let Some(qp) = self.queue_pairs.get(qpn) {
            qp.receives = qp.receives.saturating_add(count);
        }
    }

    /// A batch of `slots` for answers.
    pub fn answer_batch(&self, slots: usize) -> Batch {
        Batch::with_packet_capacity(slots, self.config.mtu as usize + answer::OVERHEAD)
    }

    /// Executes all packets of `input`, in order, and writes the answers to `output`. When `output` is full, `send` is
    /// called and must empty it; what is in it in the end is the caller's to send. An answer for which there is no room
    /// (see [`Responder::answer_batch`]) is counted and lost, as if on the way.
    pub fn process<P: Packets + ?Sized>(
        &mut self,
        input: &P,
        output: &mut Batch,
        send: &mut dyn FnMut(&mut Batch),
    ) {
        self.counts.add(Counter::Received, input.count() as u64);
        self.prepare(input);
        let Self { config, keys, queue_pairs, counts, immediates, prepared } = self;
        for (index, prepared) in prepared.iter().enumerate() {
            let Prepared { request, queue_pair } = match prepared {
                Ok(prepared) => prepared,
                Err(Counter::DroppedNotRoce) => {
                    counts.count(Counter::DroppedNotRoce);
                    if let (Some(mac), Some(frame)) = (config.mac, input.frame(index))
                        && let Some(request) = answer::arp_request(frame, config.ip)
                    {
                        let mut out = Out { batch: output, send, counts };
                        out.push(Counter::SentArp, |out| answer::push_arp(out, &request, mac));
                    }
                    continue;
                }
                Err(reason) => {
                    counts.count(*reason);
                    continue;
                }
            };
            // The queue pair was there in the first pass, and nothing but requests happens in between.
            let Some(qp) = queue_pairs.at(*queue_pair) else { continue };
            if qp.state == QueuePairState::Error {
                counts.count(Counter::DroppedQueuePairError);
                qp.counts.count(Counter::DroppedQueuePairError);
                continue;
            }
            let mut execution = Execution {
                config,
                keys,
                immediates,
                request,
                packet: input.packet(index),
                frame: input.frame(index),
                out: Out { batch: output, send, counts },
            };
            let fate = match qp.request.transport {
                Transport::Uc => execution.unreliable(qp),
                Transport::Rc => execution.reliable(qp),
            };
            counts.count(fate);
            qp.counts.count(fate);
        }
    }

    /// The first pass.
    fn prepare<P: Packets + ?Sized>(&mut self, input: &P) {
        let Self { config, keys, queue_pairs, prepared, .. } = self;
        let local = Local { ip: config.ip, port: config.port };
        prepared.clear();
        for index in 0..input.count() {
            let request = Request::parse(input.packet(index), local, input.checksum_pending(index));
            prepared.push(request.and_then(|request| {
                let queue_pair = queue_pairs.index(request.qpn).ok_or(Counter::DroppedUnknownQueuePair)?;
                if let Some(qp) = queue_pairs.at(queue_pair) {
                    admit(qp, &request)?;
                }
                if let Some(entry) = keys.get(request.reth.rkey) {
                    // A prefetch of any address is harmless, so the range is checked later.
                    entry.region.prefetch(request.reth.va.wrapping_sub(entry.iova));
                }
                Ok(Prepared { request, queue_pair })
            }));
        }
    }
}

/// A random tag.
fn random() -> Result<u32, NicError> {
    getrandom::u32().map_err(|error| NicError::System {
        action: "get random bytes for a key".into(),
        source: std::io::Error::other(error.to_string()),
    })
}

/// Whether a request may go to a queue pair at all.
#[inline]
fn admit(qp: &QueuePair, request: &Request) -> Result<(), Counter> {
    let transport = match request.opcode.transport() {
        roce::Transport::Rc => Transport::Rc,
        roce::Transport::Uc => Transport::Uc,
    };
    if transport != qp.request.transport {
        return Err(Counter::DroppedOpcode);
    }
    if request.source != qp.peer_ip {
        return Err(Counter::DroppedPeer);
    }
    // The partition is the default one; full (0xffff) and limited (0x7fff) members talk to us, a full member.
    if request.pkey & 0x7fff != 0x7fff {
        return Err(Counter::DroppedPkey);
    }
    Ok(())
}

/// One request on its way.
struct Execution<'a> {
    config: &'a ResponderConfig,
    keys: &'a Keys,
    immediates: &'a mut Vec<Immediate>,
    request: &'a Request,
    packet: &'a [u8],
    frame: Option<&'a [u8]>,
    out: Out<'a>,
}

impl Execution<'_> {
    /// A request on a UC queue pair: taken or dropped, never answered.
    #[inline]
    fn unreliable(&mut self, qp: &mut QueuePair) -> Fate {
        let request = self.request;
        if request.opcode.is_start() {
            // A new message at any PSN; an unfinished one before it is forgotten.
            qp.drop_message = false;
            qp.message = None;
        } else {
            let reason = if qp.drop_message || qp.message.is_none() {
                Some(Counter::DroppedIncompleteMessage)
            } else if request.psn != qp.psn {
                Some(Counter::DroppedPsn)
            } else {
                None
            };
            if let Some(reason) = reason {
                qp.drop_message = true;
                qp.message = None;
                return reason;
            }
        }
        match self.write(qp) {
            Ok(fate) => fate,
            Err(refusal) => {
                qp.drop_message = true;
                qp.message = None;
                refusal.reason
            }
        }
    }

    /// A request on an RC queue pair: in order, answered, errors are final.
    fn reliable(&mut self, qp: &mut QueuePair) -> Fate {
        let request = self.request;
        match request.psn.since(qp.psn) {
            1.. => {
                if !qp.sequence_nak_sent {
                    qp.sequence_nak_sent = true;
                    self.nak(qp, NakCode::PsnSequenceError, qp.psn);
                }
                return Counter::DroppedPsn;
            }
            ..0 => return self.repeat(qp),
            0 => qp.sequence_nak_sent = false,
        }
        let continues =
            matches!(request.opcode, Opcode::RcWriteMiddle | Opcode::RcWriteLast | Opcode::RcWriteLastImm);
        if continues != qp.message.is_some() {
            return self.fail(qp, Refusal::invalid(Counter::DroppedIncompleteMessage));
        }
        let done = match request.opcode {
            Opcode::RcFetchAdd | Opcode::RcCmpSwap => self.atomic(qp),
            Opcode::RcReadRequest => self.read(qp),
            _ => self.write(qp),
        };
        match done {
            Ok(fate) => fate,
            Err(Refusal { reason: Counter::DroppedNoReceive, .. }) => {
                let syndrome = Syndrome::RnrNak { timer: RNR_TIMER };
                self.ack(qp, Counter::SentRnr, request.psn, syndrome);
                Counter::DroppedNoReceive
            }
            Err(refusal) => self.fail(qp, refusal),
        }
    }

    /// A WRITE packet of any place, on either transport.
    #[inline]
    fn write(&mut self, qp: &mut QueuePair) -> Result<Fate, Refusal> {
        let request = self.request;
        if !qp.request.access.remote_write {
            return Err(Refusal::invalid(Counter::DroppedPermission));
        }
        let immediate = request.immediate(self.packet);
        if immediate.is_some() && qp.receives == 0 {
            return Err(Refusal::invalid(Counter::DroppedNoReceive));
        }
        let (start, end) = (request.opcode.is_start(), request.opcode.is_end());
        let message = if start {
            let roce::Reth { va, rkey, length } = request.reth;
            Message { rkey, va, left: length, length }
        } else {
            // Checked by the caller: there is a message to continue.
            qp.message.ok_or(Refusal::invalid(Counter::DroppedIncompleteMessage))?
        };
        let payload = request.payload_len();
        let fate = if start && message.length == 0 {
            // Nothing to write, so address and key mean nothing.
            if payload != 0 || !end {
                return Err(Refusal::invalid(Counter::DroppedPayloadLength));
            }
            Counter::ExecutedProbe
        } else {
            let entry = self.keys.get(message.rkey).ok_or(Refusal::access(Counter::DroppedRkey))?;
            if !entry.access.remote_write {
                return Err(Refusal::access(Counter::DroppedPermission));
            }
            let Some(offset) = entry.offset(message.va, u64::from(message.left)) else {
                return Err(Refusal::access(Counter::DroppedRange));
            };
            let fits = if end {
                payload == message.left && payload <= self.config.mtu
            } else {
                // More than this packet's worth has to be left, or there would be nothing for the LAST.
                payload == self.config.mtu && message.left > payload
            };
            let pad = payload.wrapping_neg() & 3;
            if !fits || u32::from(request.pad) != pad || message.length > MOST_LENGTH {
                return Err(Refusal::invalid(Counter::DroppedPayloadLength));
            }
            if entry.region.write(offset, request.payload(self.packet)).is_err() {
                return Err(Refusal::access(Counter::DroppedRange));
            }
            Counter::ExecutedWrite
        };
        if end {
            qp.message = None;
            qp.msn = qp.msn.wrapping_add(1);
        } else {
            let va = message.va.wrapping_add(u64::from(payload));
            qp.message = Some(Message { va, left: message.left - payload, ..message });
        }
        qp.psn = request.psn.next();
        qp.ack_psn = qp.psn;
        if let Some(value) = immediate {
            qp.receives -= 1;
            self.immediates.push(Immediate { qpn: qp.qpn, value, len: message.length });
            self.out.counts.count(Counter::Immediates);
        }
        if request.ack_req && qp.request.transport == Transport::Rc {
            self.ack(qp, Counter::SentAck, request.psn, Syndrome::ACK);
        }
        Ok(fate)
    }

    /// FETCH_ADD or CMP_SWAP.
    fn atomic(&mut self, qp: &mut QueuePair) -> Result<Fate, Refusal> {
        let request = self.request;
        if !qp.request.access.remote_atomic {
            return Err(Refusal::invalid(Counter::DroppedPermission));
        }
        if qp.resources.is_empty() {
            return Err(Refusal::invalid(Counter::DroppedNoResources));
        }
        let operands = request.atomic(self.packet).ok_or(Refusal::invalid(Counter::DroppedLength))?;
        let entry = self.keys.get(operands.rkey).ok_or(Refusal::access(Counter::DroppedRkey))?;
        if !entry.access.remote_atomic {
            return Err(Refusal::access(Counter::DroppedPermission));
        }
        let offset = entry.offset(operands.va, 8).ok_or(Refusal::access(Counter::DroppedRange))?;
        let (done, fate) = match request.opcode {
            Opcode::RcCmpSwap => (
                entry.region.compare_swap(offset, operands.compare, operands.swap_add),
                Counter::ExecutedCompareSwap,
            ),
            _ => (entry.region.fetch_add(offset, operands.swap_add), Counter::ExecutedFetchAdd),
        };
        // The range was checked and the region is writable: what is left is alignment.
        let before = done.map_err(|_| Refusal::invalid(Counter::DroppedMisaligned))?;
        qp.keep(Resource::Atomic { psn: request.psn, before });
        qp.msn = qp.msn.wrapping_add(1);
        qp.psn = request.psn.next();
        qp.ack_psn = qp.psn;
        self.atomic_ack(qp, before);
        Ok(fate)
    }

    /// READ.
    fn read(&mut self, qp: &mut QueuePair) -> Result<Fate, Refusal> {
        let request = self.request;
        if !qp.request.access.remote_read {
            return Err(Refusal::invalid(Counter::DroppedPermission));
        }
        if qp.resources.is_empty() {
            return Err(Refusal::invalid(Counter::DroppedNoResources));
        }
        let roce::Reth { va, rkey, length } = request.reth;
        self.readable(va, rkey, length)?;
        if length > MOST_LENGTH {
            return Err(Refusal::invalid(Counter::DroppedPayloadLength));
        }
        qp.msn = qp.msn.wrapping_add(1);
        let packets = length.div_ceil(self.config.mtu).max(1);
        qp.keep(Resource::Read { psn: request.psn, packets, va, length, rkey });
        self.read_response(qp, va, length, true);
        qp.psn = request.psn.plus(packets);
        Ok(Counter::ExecutedRead)
    }

    /// Whether `length` bytes may be read; nothing may always be.
    fn readable(&self, va: u64, rkey: u32, length: u32) -> Result<(), Refusal> {
        if length == 0 {
            return Ok(());
        }
        let entry = self.keys.get(rkey).ok_or(Refusal::access(Counter::DroppedRkey))?;
        if !entry.access.remote_read {
            return Err(Refusal::access(Counter::DroppedPermission));
        }
        entry.offset(va, u64::from(length)).ok_or(Refusal::access(Counter::DroppedRange))?;
        Ok(())
    }

    /// A request whose PSN is in the past.
    fn repeat(&mut self, qp: &mut QueuePair) -> Fate {
        let request = self.request;
        match request.opcode {
            Opcode::RcFetchAdd | Opcode::RcCmpSwap => match qp.resource(request.psn) {
                Some(&mut Resource::Atomic { before, .. }) => {
                    self.atomic_ack(qp, before);
                    Counter::DuplicateAtomic
                }
                _ => Counter::DroppedForgotten,
            },
            Opcode::RcReadRequest => {
                let asked = request.reth;
                let Some(Resource::Read { psn, va, length, rkey, .. }) = qp.resource(request.psn) else {
                    return Counter::DroppedForgotten;
                };
                let last = va.checked_add(u64::from(*length));
                let inside = asked.va >= *va
                    && asked.length <= *length
                    && asked.va.checked_add(u64::from(asked.length)) <= last;
                if !inside || asked.rkey != *rkey {
                    return Counter::DroppedForgotten;
                }
                let whole = request.psn == *psn;
                // Keys may have ended since.
                if self.readable(asked.va, asked.rkey, asked.length).is_err() {
                    return Counter::DroppedForgotten;
                }
                self.read_response(qp, asked.va, asked.length, whole);
                Counter::DuplicateRead
            }
            _ => {
                // The ACK speaks of the last operation executed, whatever was repeated.
                self.ack(qp, Counter::SentAck, qp.ack_psn.minus(1), Syndrome::ACK);
                Counter::DuplicateWrite
            }
        }
    }

    /// Refuses for good: NAK, and the queue pair is in ERROR.
    #[cold]
    fn fail(&mut self, qp: &mut QueuePair, refusal: Refusal) -> Fate {
        self.nak(qp, refusal.nak, self.request.psn);
        qp.state = QueuePairState::Error;
        self.out.counts.count(Counter::QueuePairErrors);
        refusal.reason
    }

    fn nak(&mut self, qp: &mut QueuePair, code: NakCode, psn: Psn) {
        let counter = match code {
            NakCode::PsnSequenceError => Counter::SentNakSequence,
            NakCode::RemoteAccessError => Counter::SentNakAccess,
            _ => Counter::SentNakInvalid,
        };
        self.ack(qp, counter, psn, Syndrome::Nak(code));
    }

    fn ack(&mut self, qp: &QueuePair, counter: Counter, psn: Psn, syndrome: Syndrome) {
        let way = self.way(qp);
        self.out.push(counter, |out| answer::push_ack(out, &way, psn, syndrome, qp.msn));
    }

    fn atomic_ack(&mut self, qp: &QueuePair, before: u64) {
        let way = self.way(qp);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: qp.msn };
        let psn = self.request.psn;
        self.out.push(Counter::SentAtomicAck, |out| {
            answer::push(
                out,
                &way,
                Opcode::RcAtomicAck,
                psn,
                Some(aeth),
                Some(before),
                (0, |_: &mut [u8]| {}),
            )
        });
    }

    /// Answers a READ of memory that was found readable. `whole` says whether the answer begins with its FIRST packet.
    fn read_response(&mut self, qp: &QueuePair, va: u64, length: u32, whole: bool) {
        let way = self.way(qp);
        let entry = self.keys.get(self.request.reth.rkey);
        let mtu = self.config.mtu;
        let packets = length.div_ceil(mtu).max(1);
        for n in 0..packets {
            let done = n * mtu;
            let size = (length - done).min(mtu);
            let last = n + 1 == packets;
            let opcode = match (n == 0 && whole, last) {
                (true, true) => Opcode::RcReadResponseOnly,
                (true, false) => Opcode::RcReadResponseFirst,
                (false, true) => Opcode::RcReadResponseLast,
                (false, false) => Opcode::RcReadResponseMiddle,
            };
            let aeth = (opcode != Opcode::RcReadResponseMiddle)
                .then_some(Aeth { syndrome: Syndrome::ACK, msn: qp.msn });
            let psn = self.request.psn.plus(n);
            let offset = entry.map_or(0, |entry| va.wrapping_sub(entry.iova)) + u64::from(done);
            self.out.push(Counter::SentReadResponse, |out| {
                answer::push(
                    out,
                    &way,
                    opcode,
                    psn,
                    aeth,
                    None,
                    (size as usize, |data: &mut [u8]| {
                        // Without an entry there is nothing to read; with one, the range was checked.
                        if let Some(entry) = entry
                            && entry.region.read(offset, data).is_err()
                        {
                            data.fill(0);
                        }
                    }),
                )
            });
        }
    }

    /// The way back: to the peer, from the address and port that the request came to.
    fn way(&self, qp: &QueuePair) -> Way {
        let ethernet = self.frame.and_then(|frame| frame.first_chunk::<14>()).map(|request| {
            let mut answer = *request;
            answer[..6].copy_from_slice(&request[6..12]);
            answer[6..12].copy_from_slice(&request[..6]);
            if let Some(mac) = qp.request.peer.mac {
                answer[..6].copy_from_slice(&mac);
            }
            answer
        });
        Way {
            from: SocketAddrV4::new(self.config.ip, self.config.port),
            to: SocketAddrV4::new(qp.peer_ip, qp.request.peer.port),
            peer_qpn: qp.request.peer_qpn,
            ethernet,
        }
    }
}

/// Why a request is refused: what is counted, and on RC what is answered.
#[derive(Clone, Copy)]
struct Refusal {
    reason: Counter,
    nak: NakCode,
}

impl Refusal {
    fn invalid(reason: Counter) -> Refusal {
        Refusal { reason, nak: NakCode::InvalidRequest }
    }

    fn access(reason: Counter) -> Refusal {
        Refusal { reason, nak: NakCode::RemoteAccessError }
    }
}

//! The responder: packets in, memory changed, answers out. One thread, no I/O, no clock.
//!
//! It gives the verdicts of Linux 6.1's soft-RoCE, packet by packet; `testbed/roce-conformance/` lists them, with the
//! differences and their reasons.
//!
//! A batch takes two passes. The first parses each packet, checks it for damage, looks up its rkey and prefetches the
//! memory that it will change, so that this memory is in the cache when the second pass writes there. Prefetches are
//! issued for several packets at once: spread out between the checks of one packet and the next, few could be in
//! flight at a time.

use std::net::IpAddr;
use std::sync::Arc;

use dta_proto::batch::PacketBatch;
use dta_proto::queue_pair::has_24_bits;
use dta_proto::wire::AddressPair;
use dta_proto::wire::roce::{self, ICRC_LEN, Opcode, Psn};

use super::alike::Alike;
use super::answer;
use super::counter::{Counter, NicCounts};
use super::execute::{self, Execution, Out};
use super::keys::{Keys, MAX_REGISTRATIONS, RegisteredRegion};
use super::packets::Packets;
use super::queue_pair::{MAX_QUEUE_PAIRS, PassiveQueuePair, QueuePairs};
use super::refused::{Refused, RefusedRequest};
use super::request::{CheckedPacket, Local, Request, has_no_checksum, is_undamaged, psn_and_address};
use super::steering;
use crate::nic::{
    Access, Endpoint, Immediate, NicError, QueuePairInfo, QueuePairRequest, QueuePairState, QueuePairStatus,
    Registration, Transport,
};
use crate::region::Region;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    pub device: String,
    /// Address that requests are sent to; others are dropped, and so are packets of the other IP version.
    pub ip: IpAddr,
    /// UDP port that requests are sent to.
    pub port: u16,
    /// Path MTU: payload bytes of one packet, 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Responder resources per RC queue pair: atomics and READs in flight. With 0, both are refused.
    pub max_dest_rd_atomic: u8,
}

/// A RoCEv2 responder; see the module's documentation.
pub struct Responder {
    config: ResponderConfig,
    keys: Keys,
    queue_pairs: QueuePairs,
    counts: NicCounts,
    immediates: Vec<Immediate>,
    steps: Vec<PacketStep>,
    requests: Vec<PreparedRequest>,
    refused: Refused,
    /// Its number, and how many responders share the NIC's queue pairs.
    part: (usize, usize),
}

/// What the first pass turned a packet into.
enum PacketStep {
    /// A WRITE ONLY on UC. Its verdict depends on no earlier packet, so it is already accepted: what remains is to store
    /// `payload` (a range of the packet).
    Write(AcceptedWrite),
    /// Any other request, at this index in `requests`.
    Request(usize),
    Drop(Counter),
}

#[derive(Clone, Copy)]
struct AcceptedWrite {
    /// Places of its queue pair and of its region.
    to: (u32, u32),
    psn: Psn,
    /// The range of its payload in the packet.
    payload: (u16, u16),
    /// Its offset in the region.
    offset: u64,
}

/// A request, and the place of its queue pair.
struct PreparedRequest {
    request: Request,
    queue_pair: usize,
}

impl Responder {
    /// A responder without regions or queue pairs.
    pub fn new(config: ResponderConfig) -> Responder {
        Responder {
            config,
            keys: Keys::default(),
            queue_pairs: QueuePairs::default(),
            counts: NicCounts::default(),
            immediates: Vec::new(),
            steps: Vec::new(),
            requests: Vec::new(),
            refused: Refused::default(),
            part: (0, 1),
        }
    }

    /// The same, as one of `parts` responders: no other one has its queue pair numbers.
    pub(super) fn with_partition(self, number: usize, parts: usize) -> Responder {
        Responder { part: (number, parts), ..self }
    }

    /// The configuration that it was created with.
    pub fn config(&self) -> &ResponderConfig {
        &self.config
    }

    pub fn counts(&self) -> &NicCounts {
        &self.counts
    }

    /// Counts so far, to continue those of an earlier run.
    pub fn counts_mut(&mut self) -> &mut NicCounts {
        &mut self.counts
    }

    /// Registers a region at its own address, with the rights `access`.
    ///
    /// # Errors
    /// The region is read-only, its address is not a multiple of 8, or there are too many registrations.
    pub fn register_region(&mut self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        self.register_as(None, region, access)
    }

    /// The same, under an rkey that another responder of this NIC has given out, if there is one.
    pub(super) fn register_as(
        &mut self,
        rkey: Option<u32>,
        region: Arc<Region>,
        access: Access,
    ) -> Result<Registration, NicError> {
        let refuse = |reason| NicError::Region { iova: region.wire_address(), len: region.len(), reason };
        if !region.is_writable() {
            return Err(refuse("it was opened for reading only"));
        }
        // Atomics are checked for alignment by their offset in the region, but requesters align addresses.
        if !region.wire_address().is_multiple_of(8) {
            return Err(refuse("the address is not a multiple of 8"));
        }
        if region.wire_address().checked_add(region.len()).is_none() {
            return Err(refuse("its end lies beyond 2^64"));
        }
        self.keys.insert(region, access, rkey, random_bits)?.ok_or_else(|| NicError::TooManyRegistrations {
            device: self.config.device.clone(),
            limit: MAX_REGISTRATIONS,
        })
    }

    pub fn deregister(&mut self, rkey: u32) -> Result<(), NicError> {
        if self.keys.remove(rkey) { Ok(()) } else { Err(NicError::NoRegistration) }
    }

    /// Makes a queue pair in state RTR.
    ///
    /// # Errors
    /// A field of the request is out of range, or there are too many queue pairs.
    pub fn create_queue_pair(&mut self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        let fail = |field, value: String, must| Err(NicError::Request { field, value, must });
        let Some(ends) = AddressPair::from_addresses(self.config.ip, request.peer.ip) else {
            let must = "an address of the same IP version as this NIC's (`soft.address`)";
            return fail("peer", request.peer.ip.to_string(), must);
        };
        if !has_24_bits(request.peer_qpn) {
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
        let make = |qpn| PassiveQueuePair {
            qpn,
            request: request.clone(),
            ends,
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
            counts: NicCounts::default(),
        };
        let (number, parts) = self.part;
        let ours = |qpn| steering::part_for_qpn(qpn, parts) == number;
        let qp = self.queue_pairs.insert(ours, random_bits, make)?.ok_or_else(|| {
            NicError::TooManyQueuePairs { device: self.config.device.clone(), limit: MAX_QUEUE_PAIRS }
        })?;
        Ok(QueuePairInfo { qpn: qp.qpn, expected_psn: psn.get(), max_dest_rd_atomic: resources })
    }

    /// Ends a queue pair. Returns its expected PSN.
    pub fn destroy_queue_pair(&mut self, qpn: u32) -> Result<u32, NicError> {
        let ended = self.queue_pairs.remove(qpn).ok_or(NicError::NoQueuePair { qpn })?;
        Ok(ended.psn.get())
    }

    pub fn queue_pairs(&self) -> Vec<QueuePairStatus> {
        self.queue_pairs.iter().map(PassiveQueuePair::status).collect()
    }

    /// How many queue pairs this requester (by address and port) has here, and how many there are in all.
    pub(super) fn queue_pairs_by(&self, requester: &Endpoint) -> (usize, usize) {
        let place = |peer: &Endpoint| (peer.ip, peer.port);
        let own = self.queue_pairs.iter().filter(|qp| place(&qp.request.peer) == place(requester));
        (own.count(), self.queue_pairs.iter().count())
    }

    /// Immediates not yet taken, oldest first. There are never more than the receives that were posted.
    pub fn immediates(&mut self) -> &mut Vec<Immediate> {
        &mut self.immediates
    }

    /// Posts `count` more receives to a queue pair; does nothing if it has ended.
    pub fn post_receives(&mut self, qpn: u32, count: u32) {
        if let Some(qp) = self.queue_pairs.get(qpn) {
            qp.receives = qp.receives.saturating_add(count);
        }
    }

    /// Refused requests since the last call: one example per reason.
    pub fn take_refused(&mut self) -> Vec<RefusedRequest> {
        self.refused.take()
    }

    pub fn answer_batch(&self, slots: usize) -> PacketBatch {
        PacketBatch::with_packet_capacity(slots, self.config.mtu as usize + answer::OVERHEAD)
    }

    /// Executes all packets of `input`, in order, and writes the answers to `output`. When `output` is full, `send` is
    /// called and must empty it; the caller sends what remains in it at the end. An answer that finds no room (see
    /// [`Responder::answer_batch`]) is counted and lost, as if on the way.
    pub fn process_packets<P: Packets + ?Sized>(
        &mut self,
        input: &P,
        output: &mut PacketBatch,
        send: &mut dyn FnMut(&mut PacketBatch),
    ) {
        self.counts.add(Counter::Received, input.packet_count() as u64);
        self.prepare_packets(input);
        let start = self.local().packet_start();
        let Self { config, keys, queue_pairs, counts, immediates, steps, requests, refused, .. } = self;
        let mut index = 0;
        while let Some(step) = steps.get(index) {
            let PreparedRequest { request, queue_pair } = match step {
                PacketStep::Write(first) => {
                    let steps = &steps[index..];
                    index += store_payloads((input, start), index, first, steps, keys, queue_pairs, counts);
                    continue;
                }
                PacketStep::Request(at) => &requests[*at],
                PacketStep::Drop(reason) => {
                    counts.increment(*reason);
                    index += 1;
                    continue;
                }
            };
            // The first pass found it long enough.
            let packet = input.packet_at(index).get(start..).unwrap_or_default();
            let frame = input.frame_at(index);
            index += 1;
            // The queue pair existed in the first pass, and only requests are executed in between.
            let Some(qp) = queue_pairs.queue_pair_at(*queue_pair) else { continue };
            let mut execution = Execution {
                config,
                keys,
                immediates,
                request,
                packet,
                frame,
                out: Out { batch: output, send, counts },
            };
            let fate = execution.run(qp);
            counts.increment(fate);
            qp.counts.increment(fate);
            refused.note_refusal(fate, request.source, request.qpn);
        }
    }

    fn local(&self) -> Local {
        Local { ip: self.config.ip, port: self.config.port }
    }

    /// The first pass.
    fn prepare_packets<P: Packets + ?Sized>(&mut self, input: &P) {
        let local = self.local();
        let Self { config, keys, queue_pairs, steps, requests, refused, .. } = self;
        let is_ipv4 = local.ip.is_ipv4();
        steps.clear();
        requests.clear();
        let (pair, region, write) = (None, None, None);
        let mut pass =
            Pass { mtu: config.mtu, keys, queue_pairs, steps, requests, refused, pair, region, write };
        let mut asked = 0;
        for index in 0..input.packet_count() {
            let (packet, whole) = (input.packet_at(index), input.frame_at(index).is_some());
            let (pending, id) = (|| input.checksum_pending(index), || input.id_unknown(index));
            if whole || !pass.repeat_write(packet, id) {
                let checked = Request::check_packet(packet, local, whole, pending, id);
                let prepared = checked.and_then(|packet| match packet.opcode {
                    UC_WRITE_ONLY => pass.prepare_packet(&packet, Opcode::UcWriteOnly),
                    _ => pass.prepare_any(&packet),
                });
                match prepared {
                    Ok(()) if !whole && is_ipv4 => pass.remember_write(packet),
                    Ok(()) => {}
                    Err(reason) => pass.steps.push(PacketStep::Drop(reason)),
                }
            }
            if index % AT_ONCE == AT_ONCE - 1 {
                prefetch_targets(pass.keys, &pass.steps[asked..]);
                asked = index + 1;
            }
        }
        prefetch_targets(pass.keys, &pass.steps[asked..]);
    }
}

const AT_ONCE: usize = 16;

/// Prefetches the memory that WRITEs will change.
#[inline]
fn prefetch_targets(keys: &Keys, steps: &[PacketStep]) {
    for step in steps {
        if let PacketStep::Write(AcceptedWrite { to: (_, key), offset, .. }) = *step
            && let Some(entry) = keys.region_at(key as usize)
        {
            entry.region.prefetch_line(offset);
        }
    }
}

/// Stores the payloads of the leading WRITEs of `steps`, as long as they are on one queue pair and to one region. Packet
/// `index` belongs to the first of them, and payloads are ranges of packets from byte `start` on. Returns how many.
#[inline]
fn store_payloads<P: Packets + ?Sized>(
    (input, start): (&P, usize),
    index: usize,
    first: &AcceptedWrite,
    steps: &[PacketStep],
    keys: &Keys,
    queue_pairs: &mut QueuePairs,
    counts: &mut NicCounts,
) -> usize {
    let AcceptedWrite { to: (queue_pair, key), mut psn, .. } = *first;
    // Both existed in the first pass.
    let (Some(entry), Some(qp)) =
        (keys.region_at(key as usize), queue_pairs.queue_pair_at(queue_pair as usize))
    else {
        return 1;
    };
    let alike = steps.iter().map_while(|step| match step {
        PacketStep::Write(write) if write.to == first.to => Some(write),
        _ => None,
    });
    let mut taken = 0;
    let payloads = alike.enumerate().map(|(n, write)| {
        (taken, psn) = (n + 1, write.psn);
        let payload = start + usize::from(write.payload.0)..start + usize::from(write.payload.1);
        (write.offset, &input.packet_at(index + n)[payload])
    });
    let stored = entry.region.write_each(payloads);
    qp.begin_message();
    qp.end_messages(psn, taken as u32);
    for counts in [counts, &mut qp.counts] {
        counts.add(Counter::ExecutedWrite, stored as u64);
        counts.add(Counter::DroppedRange, (taken - stored) as u64);
    }
    taken
}

/// The first byte of the BTH in nearly all packets.
const UC_WRITE_ONLY: u8 = Opcode::UcWriteOnly.to_byte();

/// What the first pass needs for each packet.
struct Pass<'a> {
    mtu: u32,
    keys: &'a Keys,
    queue_pairs: &'a QueuePairs,
    steps: &'a mut Vec<PacketStep>,
    requests: &'a mut Vec<PreparedRequest>,
    refused: &'a mut Refused,
    /// The last queue pair found, with its number and place: packets of one queue pair come in a row.
    pair: Option<(u32, usize, &'a PassiveQueuePair)>,
    /// The last region found, with its rkey and place.
    region: Option<(u32, usize, &'a RegisteredRegion)>,
    /// The last packet that became a [`PacketStep::Write`] other than by [`Pass::repeat_write`], and its region.
    write: Option<(Alike, AcceptedWrite, &'a RegisteredRegion)>,
}

impl<'a> Pass<'a> {
    /// Adds a step for a packet that is like the last WRITE. If it is not, or anything is wrong with it, returns `false`
    /// and does nothing.
    #[inline(always)]
    fn repeat_write(&mut self, packet: &[u8], id_unknown: impl FnOnce() -> bool) -> bool {
        let Some((alike, write, entry)) = &self.write else { return false };
        if !alike.matches_packet(packet) || !is_undamaged(packet, id_unknown) {
            return false;
        }
        let (psn, va) = psn_and_address(packet);
        let Some(offset) = entry.offset_of_range(va, u64::from(write.payload.1 - write.payload.0)) else {
            return false;
        };
        self.steps.push(PacketStep::Write(AcceptedWrite { psn, offset, ..*write }));
        true
    }

    /// Remembers the last step if it is a WRITE in whose packet nothing follows the iCRC, without a UDP checksum (which
    /// would differ in each packet).
    fn remember_write(&mut self, packet: &[u8]) {
        let (Some(PacketStep::Write(write)), Some((_, _, entry))) = (self.steps.last(), self.region) else {
            return;
        };
        if packet.len() == usize::from(write.payload.1).next_multiple_of(4) + ICRC_LEN
            && has_no_checksum(packet)
        {
            self.write = Alike::from_packet(packet).map(|alike| (alike, *write, entry));
        }
    }

    /// Adds a step for an undamaged packet, or says why it is dropped.
    #[inline(always)] // on every packet's path: what depends on the opcode alone is decided at compile time
    fn prepare_packet(&mut self, packet: &CheckedPacket<'_>, opcode: Opcode) -> Result<(), Counter> {
        let request = Request::read(packet.bytes, packet.source, opcode)?;
        let Some((queue_pair, qp)) = self.find_queue_pair(request.qpn) else {
            return self.refuse_request(request.source, request.qpn, Counter::DroppedUnknownQueuePair);
        };
        if let Err(reason) = check_admission(qp, &request) {
            return self.refuse_request(request.source, request.qpn, reason);
        }
        let found = self.region_of(request.reth.rkey);
        if opcode == Opcode::UcWriteOnly
            && qp.request.access.remote_write
            && let Ok(Some(place)) = execute::locate_payload(found, self.mtu, &request, &request.to_message())
        {
            // Built in place: moving what was just written piece by piece takes longer than writing it.
            self.steps.push(PacketStep::Write(AcceptedWrite {
                to: (queue_pair as u32, place.key as u32),
                psn: request.psn,
                payload: request.payload,
                offset: place.offset,
            }));
            return Ok(());
        }
        if let Some((_, entry)) = found {
            // Prefetching any address is harmless, so the range is checked later.
            entry.region.prefetch_line(request.reth.va.wrapping_sub(entry.iova));
        }
        self.defer_request(PreparedRequest { request, queue_pair });
        Ok(())
    }

    /// The queue pair with a number, and its place.
    #[inline(always)]
    fn find_queue_pair(&mut self, qpn: u32) -> Option<(usize, &'a PassiveQueuePair)> {
        match self.pair {
            Some((last, place, qp)) if last == qpn => Some((place, qp)),
            _ => {
                let (place, qp) = self.queue_pairs.find_queue_pair(qpn)?;
                self.pair = Some((qpn, place, qp));
                Some((place, qp))
            }
        }
    }

    /// The region with an rkey, and its place.
    #[inline(always)]
    fn region_of(&mut self, rkey: u32) -> Option<(usize, &'a RegisteredRegion)> {
        match self.region {
            Some((last, place, entry)) if last == rkey => Some((place, entry)),
            _ => {
                let (place, entry) = self.keys.find_region(rkey)?;
                self.region = Some((rkey, place, entry));
                Some((place, entry))
            }
        }
    }

    /// Leaves a request to the second pass. Out of line, so that the fast path stays in registers.
    #[inline(never)]
    fn defer_request(&mut self, request: PreparedRequest) {
        self.steps.push(PacketStep::Request(self.requests.len()));
        self.requests.push(request);
    }

    #[cold]
    fn refuse_request(&mut self, source: IpAddr, qpn: u32, reason: Counter) -> Result<(), Counter> {
        self.refused.note_refusal(reason, source, qpn);
        Err(reason)
    }

    /// The same for any opcode.
    #[inline(never)]
    fn prepare_any(&mut self, packet: &CheckedPacket<'_>) -> Result<(), Counter> {
        self.prepare_packet(packet, Request::parse_opcode(packet.opcode)?)
    }
}

/// 32 random bits.
fn random_bits() -> Result<u32, NicError> {
    getrandom::u32().map_err(|error| NicError::System {
        action: "get random bytes for a key".into(),
        source: std::io::Error::other(error.to_string()),
    })
}

/// Whether a request may use a queue pair at all.
#[inline]
fn check_admission(qp: &PassiveQueuePair, request: &Request) -> Result<(), Counter> {
    let transport = match request.opcode.transport() {
        roce::Transport::Rc => Transport::Rc,
        roce::Transport::Uc => Transport::Uc,
    };
    if transport != qp.request.transport {
        return Err(Counter::DroppedOpcode);
    }
    if request.source != qp.ends.destination() {
        return Err(Counter::DroppedPeer);
    }
    // Only the default partition: full members (0xffff) and limited ones (0x7fff) may talk to us, a full member.
    if request.pkey & 0x7fff != 0x7fff {
        return Err(Counter::DroppedPkey);
    }
    Ok(())
}

//! Verdicts: what a request does on an RC or UC queue pair, and the answer to it.

use dta_proto::batch::PacketBatch;
use dta_proto::wire::roce::{self, Aeth, NakCode, Opcode, Psn, Syndrome};

use super::answer::{self, ReturnPath};
use super::counter::{Counter, NicCounts};
use super::keys::{Keys, RegisteredRegion};
use super::queue_pair::{PassiveQueuePair, Resource, WriteMessage};
use super::request::Request;
use super::responder::ResponderConfig;
use crate::nic::{Immediate, QueuePairState, Transport};

/// RNR timer code of 0.64 ms (InfiniBand specification 1.4, 9.7.5.2.8), the usual argument of `ibv_modify_qp`.
const RNR_TIMER: u8 = 12;

/// Longest message in bytes (InfiniBand specification 1.4, 9.4.1).
const MOST_LENGTH: u32 = 1 << 31;

/// The fate of a request, as its counter.
pub(super) type Fate = Counter;

/// Where answers go: a batch, and a function that empties it when it is full.
pub(super) struct Out<'a> {
    pub(super) batch: &'a mut PacketBatch,
    pub(super) send: &'a mut dyn FnMut(&mut PacketBatch),
    pub(super) counts: &'a mut NicCounts,
}

impl Out<'_> {
    /// Makes room, lets `write` write one answer, and counts it.
    pub(super) fn push(&mut self, counter: Counter, write: impl FnOnce(&mut PacketBatch) -> bool) {
        if self.batch.is_full() {
            (self.send)(self.batch);
        }
        self.counts.increment(if write(self.batch) { counter } else { Counter::UnsentAnswer });
    }
}

pub(super) struct WriteTarget<'k> {
    pub(super) entry: &'k RegisteredRegion,
    /// The place of `entry` in the table of keys.
    pub(super) key: usize,
    pub(super) offset: u64,
}

/// Where the payload of a WRITE packet goes; `None` if the WRITE is empty. `message` is the message that the packet
/// begins or continues, `found` the region of its rkey.
#[inline(always)]
pub(super) fn locate_payload<'k>(
    found: Option<(usize, &'k RegisteredRegion)>,
    mtu: u32,
    request: &Request,
    message: &WriteMessage,
) -> Result<Option<WriteTarget<'k>>, RequestRefusal> {
    let payload = request.payload_len();
    let (start, end) = (request.opcode.is_message_start(), request.opcode.is_message_end());
    if start && message.length == 0 {
        // Nothing to write, so address and rkey do not matter.
        return if payload == 0 && end {
            Ok(None)
        } else {
            Err(RequestRefusal::invalid_request(Counter::DroppedPayloadLength))
        };
    }
    let (key, entry) = found.ok_or(RequestRefusal::access_error(Counter::DroppedRkey))?;
    if !entry.access.remote_write {
        return Err(RequestRefusal::access_error(Counter::DroppedPermission));
    }
    let Some(offset) = entry.offset_of_range(message.va, u64::from(message.left)) else {
        return Err(RequestRefusal::access_error(Counter::DroppedRange));
    };
    let fits = if end {
        payload == message.left && payload <= mtu
    } else {
        // More than this packet must remain, or nothing would be left for the LAST.
        payload == mtu && message.left > payload
    };
    let pad = payload.wrapping_neg() & 3;
    if !fits || u32::from(request.pad) != pad || message.length > MOST_LENGTH {
        return Err(RequestRefusal::invalid_request(Counter::DroppedPayloadLength));
    }
    Ok(Some(WriteTarget { entry, key, offset }))
}

pub(super) struct Execution<'a> {
    pub(super) config: &'a ResponderConfig,
    pub(super) keys: &'a Keys,
    pub(super) immediates: &'a mut Vec<Immediate>,
    pub(super) request: &'a Request,
    pub(super) packet: &'a [u8],
    pub(super) frame: Option<&'a [u8]>,
    pub(super) out: Out<'a>,
}

impl Execution<'_> {
    /// Executes or refuses it, answers it, and returns its fate.
    pub(super) fn run(&mut self, qp: &mut PassiveQueuePair) -> Fate {
        if qp.state == QueuePairState::Error {
            return Counter::DroppedQueuePairError;
        }
        match qp.request.transport {
            Transport::Uc => self.unreliable(qp),
            Transport::Rc => self.reliable(qp),
        }
    }

    /// A request on a UC queue pair: taken or dropped, never answered.
    fn unreliable(&mut self, qp: &mut PassiveQueuePair) -> Fate {
        let request = self.request;
        if request.opcode.is_message_start() {
            // Any PSN is accepted.
            qp.begin_message();
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
        match self.execute_write(qp) {
            Ok(fate) => fate,
            Err(refusal) => {
                qp.drop_message = true;
                qp.message = None;
                refusal.reason
            }
        }
    }

    /// A request on an RC queue pair: in order, answered, errors are final.
    fn reliable(&mut self, qp: &mut PassiveQueuePair) -> Fate {
        let request = self.request;
        match request.psn.distance_from(qp.psn) {
            1.. => {
                if !qp.sequence_nak_sent {
                    qp.sequence_nak_sent = true;
                    self.send_nak(qp, NakCode::PsnSequenceError, qp.psn);
                }
                return Counter::DroppedPsn;
            }
            ..0 => return self.answer_repeat(qp),
            0 => qp.sequence_nak_sent = false,
        }
        let continues =
            matches!(request.opcode, Opcode::RcWriteMiddle | Opcode::RcWriteLast | Opcode::RcWriteLastImm);
        if continues != qp.message.is_some() {
            return self
                .refuse_fatally(qp, RequestRefusal::invalid_request(Counter::DroppedIncompleteMessage));
        }
        let done = match request.opcode {
            Opcode::RcFetchAdd | Opcode::RcCmpSwap => self.execute_atomic(qp),
            Opcode::RcReadRequest => self.read(qp),
            _ => self.execute_write(qp),
        };
        match done {
            Ok(fate) => fate,
            Err(RequestRefusal { reason: Counter::DroppedNoReceive, .. }) => {
                let syndrome = Syndrome::RnrNak { timer: RNR_TIMER };
                self.send_ack(qp, Counter::SentRnr, request.psn, syndrome);
                Counter::DroppedNoReceive
            }
            Err(refusal) => self.refuse_fatally(qp, refusal),
        }
    }

    /// A WRITE packet of any position, on either transport.
    fn execute_write(&mut self, qp: &mut PassiveQueuePair) -> Result<Fate, RequestRefusal> {
        let request = self.request;
        if !qp.request.access.remote_write {
            return Err(RequestRefusal::invalid_request(Counter::DroppedPermission));
        }
        let immediate = request.immediate(self.packet);
        if immediate.is_some() && qp.receives == 0 {
            return Err(RequestRefusal::invalid_request(Counter::DroppedNoReceive));
        }
        let message = if request.opcode.is_message_start() {
            request.to_message()
        } else {
            // The caller checked that there is a message to continue.
            qp.message.ok_or(RequestRefusal::invalid_request(Counter::DroppedIncompleteMessage))?
        };
        let fate =
            match locate_payload(self.keys.find_region(message.rkey), self.config.mtu, request, &message)? {
                None => Counter::ExecutedProbe,
                Some(WriteTarget { entry, offset, .. }) => {
                    if entry.region.write(offset, request.payload(self.packet)).is_err() {
                        return Err(RequestRefusal::access_error(Counter::DroppedRange));
                    }
                    Counter::ExecutedWrite
                }
            };
        if request.opcode.is_message_end() {
            qp.end_message(request.psn);
        } else {
            let payload = request.payload_len();
            let va = message.va.wrapping_add(u64::from(payload));
            qp.message = Some(WriteMessage { va, left: message.left - payload, ..message });
            qp.mark_executed(request.psn);
        }
        if let Some(value) = immediate {
            qp.receives -= 1;
            self.immediates.push(Immediate { qpn: qp.qpn, value, len: message.length });
            self.out.counts.increment(Counter::Immediates);
        }
        if request.ack_req && qp.request.transport == Transport::Rc {
            self.send_ack(qp, Counter::SentAck, request.psn, Syndrome::ACK);
        }
        Ok(fate)
    }

    /// FETCH_ADD or CMP_SWAP.
    fn execute_atomic(&mut self, qp: &mut PassiveQueuePair) -> Result<Fate, RequestRefusal> {
        let request = self.request;
        if !qp.request.access.remote_atomic {
            return Err(RequestRefusal::invalid_request(Counter::DroppedPermission));
        }
        if qp.resources.is_empty() {
            return Err(RequestRefusal::invalid_request(Counter::DroppedNoResources));
        }
        if request.payload_len() != 0 {
            return Err(RequestRefusal::invalid_request(Counter::DroppedPayloadLength));
        }
        let operands = request
            .atomic_operands(self.packet)
            .ok_or(RequestRefusal::invalid_request(Counter::DroppedLength))?;
        let entry = self.keys.get(operands.rkey).ok_or(RequestRefusal::access_error(Counter::DroppedRkey))?;
        if !entry.access.remote_atomic {
            return Err(RequestRefusal::access_error(Counter::DroppedPermission));
        }
        let offset = entry
            .offset_of_range(operands.va, 8)
            .ok_or(RequestRefusal::access_error(Counter::DroppedRange))?;
        let (done, fate) = match request.opcode {
            Opcode::RcCmpSwap => (
                entry.region.compare_swap(offset, operands.compare, operands.swap_add),
                Counter::ExecutedCompareSwap,
            ),
            _ => (entry.region.fetch_add(offset, operands.swap_add), Counter::ExecutedFetchAdd),
        };
        // The range was checked and the region is writable: only alignment can fail.
        let before = done.map_err(|_| RequestRefusal::invalid_request(Counter::DroppedMisaligned))?;
        qp.retain_resource(Resource::Atomic { psn: request.psn, before });
        qp.end_message(request.psn);
        self.atomic_ack(qp, before);
        Ok(fate)
    }

    fn read(&mut self, qp: &mut PassiveQueuePair) -> Result<Fate, RequestRefusal> {
        let request = self.request;
        if !qp.request.access.remote_read {
            return Err(RequestRefusal::invalid_request(Counter::DroppedPermission));
        }
        if qp.resources.is_empty() {
            return Err(RequestRefusal::invalid_request(Counter::DroppedNoResources));
        }
        if request.payload_len() != 0 {
            return Err(RequestRefusal::invalid_request(Counter::DroppedPayloadLength));
        }
        let roce::Reth { va, rkey, length } = request.reth;
        self.check_readable(va, rkey, length)?;
        if length > MOST_LENGTH {
            return Err(RequestRefusal::invalid_request(Counter::DroppedPayloadLength));
        }
        qp.msn = qp.msn.wrapping_add(1);
        let packets = length.div_ceil(self.config.mtu).max(1);
        qp.retain_resource(Resource::Read { psn: request.psn, packets, va, length, rkey });
        self.read_response(qp, va, length, true);
        qp.psn = request.psn.wrapping_add(packets);
        Ok(Counter::ExecutedRead)
    }

    /// Whether `length` bytes may be read; zero bytes always may.
    fn check_readable(&self, va: u64, rkey: u32, length: u32) -> Result<(), RequestRefusal> {
        if length == 0 {
            return Ok(());
        }
        let entry = self.keys.get(rkey).ok_or(RequestRefusal::access_error(Counter::DroppedRkey))?;
        if !entry.access.remote_read {
            return Err(RequestRefusal::access_error(Counter::DroppedPermission));
        }
        entry
            .offset_of_range(va, u64::from(length))
            .ok_or(RequestRefusal::access_error(Counter::DroppedRange))?;
        Ok(())
    }

    /// A request whose PSN is in the past.
    fn answer_repeat(&mut self, qp: &mut PassiveQueuePair) -> Fate {
        let request = self.request;
        match request.opcode {
            Opcode::RcFetchAdd | Opcode::RcCmpSwap => match qp.resource_at_psn(request.psn) {
                Some(&mut Resource::Atomic { before, .. }) => {
                    self.atomic_ack(qp, before);
                    Counter::DuplicateAtomic
                }
                _ => Counter::DroppedForgotten,
            },
            Opcode::RcReadRequest => {
                let asked = request.reth;
                let Some(Resource::Read { psn, va, length, rkey, .. }) = qp.resource_at_psn(request.psn)
                else {
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
                // Keys may have been revoked since.
                if self.check_readable(asked.va, asked.rkey, asked.length).is_err() {
                    return Counter::DroppedForgotten;
                }
                self.read_response(qp, asked.va, asked.length, whole);
                Counter::DuplicateRead
            }
            _ => {
                // The ACK is for the last operation executed, whatever was repeated.
                self.send_ack(qp, Counter::SentAck, qp.ack_psn.wrapping_sub(1), Syndrome::ACK);
                Counter::DuplicateWrite
            }
        }
    }

    /// Refuses fatally: NAK, and the queue pair goes to ERROR.
    #[cold]
    fn refuse_fatally(&mut self, qp: &mut PassiveQueuePair, refusal: RequestRefusal) -> Fate {
        self.send_nak(qp, refusal.nak, self.request.psn);
        qp.state = QueuePairState::Error;
        self.out.counts.increment(Counter::QueuePairErrors);
        refusal.reason
    }

    fn send_nak(&mut self, qp: &mut PassiveQueuePair, code: NakCode, psn: Psn) {
        let counter = match code {
            NakCode::PsnSequenceError => Counter::SentNakSequence,
            NakCode::RemoteAccessError => Counter::SentNakAccess,
            _ => Counter::SentNakInvalid,
        };
        self.send_ack(qp, counter, psn, Syndrome::Nak(code));
    }

    fn send_ack(&mut self, qp: &PassiveQueuePair, counter: Counter, psn: Psn, syndrome: Syndrome) {
        let path = self.return_path(qp);
        self.out.push(counter, |out| answer::push_ack(out, &path, psn, syndrome, qp.msn));
    }

    fn atomic_ack(&mut self, qp: &PassiveQueuePair, before: u64) {
        let path = self.return_path(qp);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: qp.msn };
        let psn = self.request.psn;
        self.out.push(Counter::SentAtomicAck, |out| {
            answer::push(
                out,
                &path,
                Opcode::RcAtomicAck,
                psn,
                Some(aeth),
                Some(before),
                (0, |_: &mut [u8]| {}),
            )
        });
    }

    /// Answers a READ of readable memory. `whole` says whether the answer begins with its FIRST packet.
    fn read_response(&mut self, qp: &PassiveQueuePair, va: u64, length: u32, whole: bool) {
        let path = self.return_path(qp);
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
            let psn = self.request.psn.wrapping_add(n);
            let offset = entry.map_or(0, |entry| va.wrapping_sub(entry.iova)) + u64::from(done);
            self.out.push(Counter::SentReadResponse, |out| {
                answer::push(
                    out,
                    &path,
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

    /// The return path: to the peer, from the address and port that the request was sent to.
    fn return_path(&self, qp: &PassiveQueuePair) -> ReturnPath {
        let ethernet = self.frame.and_then(|frame| frame.first_chunk::<14>()).map(|request| {
            let mut answer = *request;
            answer[..6].copy_from_slice(&request[6..12]);
            answer[6..12].copy_from_slice(&request[..6]);
            if let Some(mac) = qp.request.peer.known_mac() {
                answer[..6].copy_from_slice(&mac.0);
            }
            answer
        });
        ReturnPath {
            addresses: qp.ends,
            ports: (self.config.port, qp.request.peer.port),
            peer_qpn: qp.request.peer_qpn,
            runs: qp.request.peer.runs,
            ethernet,
        }
    }
}

/// Why a request is refused: the counter, and on RC the NAK.
#[derive(Clone, Copy)]
pub(super) struct RequestRefusal {
    reason: Counter,
    nak: NakCode,
}

impl RequestRefusal {
    fn invalid_request(reason: Counter) -> RequestRefusal {
        RequestRefusal { reason, nak: NakCode::InvalidRequest }
    }

    fn access_error(reason: Counter) -> RequestRefusal {
        RequestRefusal { reason, nak: NakCode::RemoteAccessError }
    }
}

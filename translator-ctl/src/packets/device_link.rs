//! The way to collectors through an RDMA device: the engine's operations go in as work requests, and their completions
//! come out as the answers that the engine knows. `docs/decisions/posting.md` gives the reasons.
//!
//! The engine keeps all the accounts. This holds only what the device needs: which of its queue pairs sends for which
//! of the program's, how many requests each holds, and, on UC, what they carry until they have left.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use dta_dataplane::counters::LossCause;
use dta_dataplane::losses::FrameMeta;
use dta_dataplane::requester::{OperationEffect, ResponderAnswer, Verb};
use dta_dataplane::{Engine, EngineOutput, WorkRequests, place_for_pair};
use dta_link::{LinkCounters, wait_readable};
use dta_memory::nic::NicError;
use dta_memory::nic::verbs::send::{
    CompletionStatus, SendCompletion, SendDevice, SendOperation, SendPeer, SendRequest,
};
use dta_proto::counter::translator as names;
use dta_proto::program::{DataPlaneChange, DataPlaneEntry, Endpoint, ProgramQueuePair, Purpose, Transport};
use dta_proto::wire::roce::Psn;
use dta_switch::DeviceSource;
use tracing::{info, warn};

/// Maximum number of work requests per doorbell.
const MAX_CHAIN: usize = 64;
/// One in this many work requests of a queue pair completes visibly even if nobody asks for it: a completion makes room.
const SIGNAL_INTERVAL: u64 = 32;
/// Longest time that one output of the engine waits for room in queues, and that the last requests have to leave.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);
/// The least time that each queue pair gets for that, however long others have waited.
const SHORTEST_QUEUE_TIMEOUT: Duration = Duration::from_millis(10);
/// Longest time that a queue pair has to send what it holds before it is connected to another, or to none.
const DISCONNECT_TIMEOUT: Duration = Duration::from_millis(10);
/// Nanoseconds between two checks of whether the device is there and its UC queue pairs work.
const CHECK_INTERVAL: u64 = 1_000_000_000;

/// Opens the device.
pub(super) type OpenDevice = Box<dyn FnMut() -> Result<Box<dyn SendDevice>, NicError> + Send>;

dta_proto::published_counters! {
    /// What happened to the device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DeviceCounters {
        pub lost: u64 = names::DEVICE_LOST,
        pub queue_pair_errors: u64 = names::DEVICE_QUEUE_PAIR_ERRORS,
        pub doorbells: u64 = names::DEVICE_DOORBELLS,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairState {
    /// It has no peer.
    Unconnected,
    /// It has a peer, and will send from the PSN of its first request on.
    Connected,
    Sending,
    /// An operation failed, and the queue pair with it.
    Broken,
}

/// What a request on UC that did not leave carried, and why it did not leave.
type UnsentRequest = (FrameMeta, LossCause);

/// A queue pair of the device.
struct SendingPair {
    qpn: u32,
    transport: Transport,
    state: PairState,
    /// The program's entry for which it was connected.
    entry: Option<ProgramQueuePair>,
    /// Rises with each connection: completions of earlier ones are void.
    connection: u16,
    /// PSN of request number 0.
    first_psn: Psn,
    /// Number of the next request.
    posted: u64,
    /// Requests before this one are complete.
    completed: u64,
    /// What requests from `completed` on carry; UC only.
    carried: VecDeque<FrameMeta>,
}

impl SendingPair {
    fn is_usable(&self) -> bool {
        matches!(self.state, PairState::Connected | PairState::Sending)
    }

    fn is_connected_for(&self, entry: &ProgramQueuePair) -> bool {
        let identity = |e: &ProgramQueuePair| (e.remote_qpn, e.local_qpn, e.generation, e.destination.ip);
        self.is_usable() && self.entry.as_ref().is_some_and(|now| identity(now) == identity(entry))
    }

    fn psn_of_number(&self, number: u64) -> Psn {
        self.first_psn.wrapping_add((number & u64::from(Psn::MASK)) as u32)
    }

    /// Begins another connection. What the last one did not send is appended to `unsent`.
    fn begin_connection(&mut self, state: PairState, unsent: &mut Vec<UnsentRequest>) {
        self.state = state;
        self.connection = self.connection.wrapping_add(1);
        (self.posted, self.completed) = (0, 0);
        unsent.extend(self.carried.drain(..).map(|meta| (meta, LossCause::QueuePairDown)));
    }
}

/// A work request's number for the device: the connection, the queue pair's place, and the request's number there.
fn request_id(connection: u16, place: u8, number: u64) -> u64 {
    (u64::from(connection) << 48) | (u64::from(place) << 40) | (number & NUMBER)
}

const NUMBER: u64 = (1 << 40) - 1;

/// An RDMA device to which operations are posted.
pub struct DeviceLink {
    name: String,
    open: OpenDevice,
    /// `None` while it is away.
    device: Option<Box<dyn SendDevice>>,
    /// Longest payload of one packet, as the device had it last.
    payload_len: u32,
    /// By the places of the engine's queue pairs.
    pairs: Vec<Option<SendingPair>>,
    /// By place, the entries for which UC queue pairs were connected when the device was lost.
    lost_entries: BTreeMap<u8, ProgramQueuePair>,
    completions: Vec<SendCompletion>,
    /// Answers that the engine has not seen yet.
    answers: Vec<(u8, Psn, ResponderAnswer)>,
    /// Requests on UC that did not leave, which the engine has not counted yet.
    unsent: Vec<UnsentRequest>,
    next_check: u64,
    counters: LinkCounters,
    device_counters: DeviceCounters,
}

impl DeviceLink {
    /// Opens the device. Also returns the source of its packets.
    ///
    /// # Errors
    /// It cannot be opened, or has no usable port and address.
    pub(super) fn open(name: &str, mut open: OpenDevice) -> Result<(DeviceLink, Endpoint), NicError> {
        let device = open()?;
        let (endpoint, payload_len) = (device.local_endpoint(), device.payload_len());
        let link = DeviceLink {
            name: name.to_owned(),
            open,
            device: Some(device),
            payload_len,
            pairs: Vec::new(),
            lost_entries: BTreeMap::new(),
            completions: Vec::new(),
            answers: Vec::new(),
            unsent: Vec::new(),
            next_check: 0,
            counters: LinkCounters::default(),
            device_counters: DeviceCounters::default(),
        };
        Ok((link, endpoint))
    }

    pub(super) fn link_counters(&self) -> LinkCounters {
        self.counters
    }

    pub(super) fn device_name(&self) -> &str {
        &self.name
    }

    pub(super) fn payload_len(&self) -> u32 {
        self.payload_len
    }

    pub(super) fn device_counters(&self) -> DeviceCounters {
        self.device_counters
    }

    fn pair_at(&self, place: u8) -> Option<&SendingPair> {
        self.pairs.get(usize::from(place))?.as_ref()
    }

    fn pair_at_mut(&mut self, place: u8) -> Option<&mut SendingPair> {
        self.pairs.get_mut(usize::from(place))?.as_mut()
    }

    /// The places of all queue pairs.
    fn places(&self) -> Range<u8> {
        0..self.pairs.len() as u8
    }

    /// Whether anything posted for the program's queue pair at this place is lost.
    pub(super) fn is_down(&self, place: u8) -> bool {
        !self.pair_at(place).is_some_and(SendingPair::is_usable)
    }

    /// The source of packets to a collector, and the numbers of the queue pairs that send them. Creates these
    /// if necessary, and opens the device if it was away. `writes` is the transport of writes.
    ///
    /// # Errors
    /// The device is away, or has no room.
    pub(super) fn source_for(&mut self, collector: u8, writes: Transport) -> Result<DeviceSource, NicError> {
        self.check_presence();
        if self.device.is_none() {
            let device = (self.open)()?;
            self.payload_len = device.payload_len();
            self.device = Some(device);
            info!(device = self.name, "the RDMA device is back");
            self.next_check = 0;
        }
        let mut numbers = Vec::new();
        for purpose in Purpose::ALL {
            let place = place_for_pair(collector, purpose);
            numbers.push(self.queue_pair_at(place, purpose.transport(writes))?);
        }
        let endpoint = self.opened()?.local_endpoint();
        Ok(DeviceSource { endpoint, queue_pairs: [numbers[0], numbers[1]] })
    }

    fn opened(&mut self) -> Result<&mut Box<dyn SendDevice>, NicError> {
        let device = self.name.clone();
        self.device.as_mut().ok_or(NicError::Lost { device })
    }

    /// The number of the queue pair at a place, which is created if there is none of this transport.
    fn queue_pair_at(&mut self, place: u8, transport: Transport) -> Result<u32, NicError> {
        if let Some(pair) = self.pair_at(place).filter(|pair| pair.transport == transport) {
            return Ok(pair.qpn);
        }
        let at = usize::from(place);
        if self.pairs.len() <= at {
            self.pairs.resize_with(at + 1, || None);
        }
        self.wait_until_sent(place..place + 1, DISCONNECT_TIMEOUT);
        let mut connection = 0;
        if let Some(mut former) = self.pairs[at].take() {
            former.begin_connection(PairState::Unconnected, &mut self.unsent);
            connection = former.connection;
            self.opened()?.end_queue_pair(former.qpn);
        }
        let qpn = self.opened()?.make_queue_pair(transport)?;
        // If the number is the same, the program may stay as it is, and nobody says again to whom it sends.
        let is_same = |entry: &ProgramQueuePair| (entry.local_qpn, entry.transport) == (qpn, transport);
        let entry = self.lost_entries.remove(&place).filter(is_same);
        self.pairs[at] = Some(SendingPair {
            qpn,
            transport,
            state: if entry.is_some() { PairState::Broken } else { PairState::Unconnected },
            entry,
            connection,
            first_psn: Psn::new(0),
            posted: 0,
            completed: 0,
            carried: VecDeque::new(),
        });
        Ok(qpn)
    }

    /// Connects the queue pairs that are new among `changes`, and disconnects those that are removed. The engine must
    /// have seen all answers, and must not post before it has applied the changes.
    ///
    /// # Errors
    /// Why one cannot be connected. Then none of them is, so that nothing is sent with the PSNs and keys of another.
    pub(super) fn connect_changed(
        &mut self,
        changes: &[DataPlaneChange],
        engine: &mut Engine,
        out: &mut EngineOutput,
    ) -> Result<(), NicError> {
        let mut result = Ok(());
        for change in changes {
            match change {
                DataPlaneChange::Insert { entry: DataPlaneEntry::QueuePair(entry) }
                | DataPlaneChange::Modify { to: DataPlaneEntry::QueuePair(entry), .. }
                    if result.is_ok() =>
                {
                    result = self.connect(entry);
                }
                DataPlaneChange::Delete { entry } | DataPlaneChange::Forget { entry } => {
                    self.disconnect(entry)
                }
                _ => {}
            }
        }
        if result.is_err() {
            for change in changes {
                if let DataPlaneChange::Insert { entry } | DataPlaneChange::Modify { to: entry, .. } = change
                {
                    self.disconnect(entry);
                }
            }
        }
        // While the engine still has the queue pairs.
        self.count_unsent(engine, out);
        result
    }

    fn connect(&mut self, entry: &ProgramQueuePair) -> Result<(), NicError> {
        let place = place_for_pair(entry.collector, entry.purpose);
        let fits = |pair: &&SendingPair| (pair.qpn, pair.transport) == (entry.local_qpn, entry.transport);
        let Some(pair) = self.pair_at(place).filter(fits) else {
            // The device was lost since the session was opened.
            return Err(NicError::Lost { device: self.name.clone() });
        };
        if pair.is_connected_for(entry) {
            return Ok(());
        }
        self.wait_until_sent(place..place + 1, DISCONNECT_TIMEOUT);
        // They are about another queue pair, whose PSNs may mean something else here.
        self.answers.retain(|(of, ..)| *of != place);
        let peer = SendPeer {
            endpoint: entry.destination,
            qpn: entry.remote_qpn,
            rd_atomic: entry.max_dest_rd_atomic.min(255) as u8,
        };
        let connected = self.opened()?.connect(entry.local_qpn, &peer);
        let Self { pairs, unsent, .. } = self;
        if let Some(Some(pair)) = pairs.get_mut(usize::from(place)) {
            let state = if connected.is_ok() { PairState::Connected } else { PairState::Broken };
            pair.begin_connection(state, unsent);
            pair.entry = Some(entry.clone());
        }
        connected
    }

    fn disconnect(&mut self, entry: &DataPlaneEntry) {
        let DataPlaneEntry::QueuePair(entry) = entry else { return };
        let place = place_for_pair(entry.collector, entry.purpose);
        self.wait_until_sent(place..place + 1, DISCONNECT_TIMEOUT);
        let Self { pairs, unsent, .. } = self;
        if let Some(Some(pair)) = pairs.get_mut(usize::from(place)) {
            pair.begin_connection(PairState::Unconnected, unsent);
            pair.entry = None;
        }
    }

    /// Waits until what is posted on UC at these places has left.
    fn wait_until_sent(&mut self, places: Range<u8>, timeout: Duration) {
        let until = Instant::now() + timeout;
        let is_sent = |pair: &SendingPair| pair.carried.is_empty();
        while !places.clone().all(|place| self.pair_at(place).is_none_or(is_sent)) && Instant::now() < until {
            self.poll_or_yield();
        }
    }

    /// Posts the engine's work requests, those of each queue pair with one doorbell per [`MAX_CHAIN`] of them.
    pub(super) fn post_requests(&mut self, out: &mut EngineOutput, engine: &mut Engine) {
        let until = Instant::now() + QUEUE_TIMEOUT;
        let mut done = [0u64; 4];
        for (request, _) in out.requests.iter() {
            let (word, bit) = (usize::from(request.pair) / 64, 1 << (request.pair % 64));
            if done[word] & bit == 0 {
                done[word] |= bit;
                let until = until.max(Instant::now() + SHORTEST_QUEUE_TIMEOUT);
                self.post_requests_of(request.pair, &out.requests, &out.meta, until);
            }
        }
        self.count_unsent(engine, out);
    }

    /// Posts the requests of one queue pair. They wait for room in its queue until this time.
    fn post_requests_of(&mut self, place: u8, requests: &WorkRequests, metas: &[FrameMeta], until: Instant) {
        let mut chain = [NO_REQUEST; MAX_CHAIN];
        let mut carried = [FrameMeta::IDLE; MAX_CHAIN];
        let (mut len, mut first_psn) = (0, Psn::new(0));
        for ((request, payload), meta) in requests.iter().zip(metas) {
            if request.pair != place {
                continue;
            }
            if len == 0 {
                first_psn = request.psn;
            }
            chain[len] = SendRequest {
                id: 0,
                is_signalled: request.ack_request || request.effect.verb == Verb::FetchAdd,
                operation: operation(request.effect),
                address: request.address,
                rkey: request.rkey,
                payload,
            };
            carried[len] = *meta;
            len += 1;
            if len == MAX_CHAIN {
                self.post_chain(place, first_psn, &mut chain, &carried, until);
                len = 0;
            }
        }
        if len != 0 {
            self.post_chain(place, first_psn, &mut chain[..len], &carried[..len], until);
        }
    }

    /// Posts work requests of one queue pair, the first of which has this PSN on RC.
    fn post_chain(
        &mut self,
        place: u8,
        first_psn: Psn,
        chain: &mut [SendRequest<'_>],
        carried: &[FrameMeta],
        until: Instant,
    ) {
        let mut at = 0;
        while at < chain.len() {
            let psn = first_psn.wrapping_add(at as u32);
            let room = match self.room_at(place, psn) {
                Ok(room) => room,
                Err(error) => {
                    self.give_up(place, &error);
                    0
                }
            };
            if self.is_down(place) {
                break;
            }
            let Some(pair) = self.pair_at(place) else { break };
            let (connection, number) = (pair.connection, pair.posted);
            let part = &mut chain[at..];
            let count = part.len().min(room);
            let part = &mut part[..count];
            for (index, request) in part.iter_mut().enumerate() {
                let number = number + index as u64;
                request.id = request_id(connection, place, number);
                request.is_signalled |= index + 1 == count || number % SIGNAL_INTERVAL == SIGNAL_INTERVAL - 1;
            }
            let posted = if count == 0 { Ok(0) } else { self.post_part(place, part) };
            match posted {
                Ok(0) if Instant::now() >= until => {
                    self.counters.unsent_queue_full += (chain.len() - at) as u64;
                    return self.refuse_requests(place, psn, &carried[at..], LossCause::QueueFull);
                }
                Ok(0) => self.poll_or_yield(),
                Ok(posted) => {
                    if let Some(pair) = self.pair_at_mut(place) {
                        pair.posted += posted as u64;
                        if pair.transport == Transport::Uc {
                            pair.carried.extend(&carried[at..at + posted]);
                        }
                    }
                    at += posted;
                }
                Err(error) => {
                    // What had left before is not lost.
                    self.poll();
                    self.give_up(place, &error);
                }
            }
        }
        if at < chain.len() {
            self.counters.unsent_unreachable += (chain.len() - at) as u64;
            let psn = first_psn.wrapping_add(at as u32);
            self.refuse_requests(place, psn, &carried[at..], LossCause::QueuePairDown);
        }
    }

    /// How many requests a queue pair has room for; the next has this PSN on RC.
    fn room_at(&mut self, place: u8, psn: Psn) -> Result<usize, NicError> {
        let Self { pairs, device, .. } = self;
        let (Some(Some(pair)), Some(device)) = (pairs.get_mut(usize::from(place)), device) else {
            return Ok(0);
        };
        match pair.state {
            PairState::Unconnected | PairState::Broken => return Ok(0),
            PairState::Connected => {
                device.start_sending(pair.qpn, psn.get())?;
                pair.first_psn = psn;
                pair.state = PairState::Sending;
            }
            // The device counts PSNs itself: a request that it counts differently would be acknowledged as another.
            PairState::Sending
                if pair.transport == Transport::Rc && pair.psn_of_number(pair.posted) != psn =>
            {
                let action = format!("send PSN {} after {} requests", psn.get(), pair.posted);
                return Err(NicError::System { action, source: std::io::ErrorKind::InvalidInput.into() });
            }
            PairState::Sending => {}
        }
        let on_the_way = pair.posted - pair.completed;
        Ok(u64::from(device.queue_depth()).saturating_sub(on_the_way) as usize)
    }

    fn post_part(&mut self, place: u8, requests: &[SendRequest<'_>]) -> Result<usize, NicError> {
        let Self { pairs, device, counters, device_counters, .. } = self;
        let (Some(Some(pair)), Some(device)) = (pairs.get(usize::from(place)), device) else { return Ok(0) };
        let posted = device.post_requests(pair.qpn, requests)?;
        counters.sent += posted as u64;
        device_counters.doorbells += 1;
        Ok(posted)
    }

    /// Notes that requests were not posted. On RC, where the first has this PSN, the engine posts them to the next
    /// queue pair; on UC, it counts what they carry as lost.
    fn refuse_requests(&mut self, place: u8, psn: Psn, carried: &[FrameMeta], cause: LossCause) {
        self.answers.push((place, psn, ResponderAnswer::NotPosted));
        self.unsent.extend(carried.iter().map(|meta| (*meta, cause)));
    }

    fn count_unsent(&mut self, engine: &mut Engine, out: &mut EngineOutput) {
        for (meta, cause) in self.unsent.drain(..) {
            engine.lose_request(&meta, cause, out);
        }
    }

    /// Passes completions to the engine, and checks on the device now and then. Returns the number of completions.
    pub(super) fn take_answers(&mut self, now: u64, engine: &mut Engine, out: &mut EngineOutput) -> usize {
        if now >= self.next_check {
            let begun = Instant::now();
            self.check_presence();
            self.restore_pairs();
            // Resolving a silent neighbour takes a second: at most a tenth of the time goes into that.
            let took = begun.elapsed().as_nanos() as u64;
            self.next_check = now + took + CHECK_INTERVAL.max(10 * took);
        }
        let count = self.poll();
        if !self.answers.is_empty() {
            engine.handle_completions(now, self.answers.drain(..), out);
        }
        self.count_unsent(engine, out);
        count
    }

    /// Reads completions. Returns their number.
    fn poll(&mut self) -> usize {
        let Some(device) = &mut self.device else { return 0 };
        let polled = device.poll_completions(&mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        let count = completions.len();
        completions.drain(..).for_each(|completion| self.take_completion(&completion));
        self.completions = completions;
        if let Err(error) = polled {
            warn!(device = self.name, %error, "the RDMA device is no longer usable");
            self.lose_device();
        }
        count
    }

    /// A queue empties in microseconds, so it polls, but lets software that sends for the device run.
    fn poll_or_yield(&mut self) {
        if self.poll() == 0 {
            std::thread::yield_now();
        }
    }

    fn take_completion(&mut self, completion: &SendCompletion) {
        let place = (completion.id >> 40) as u8;
        let Some(pair) = self.pairs.get_mut(usize::from(place)).and_then(Option::as_mut) else { return };
        // Of a former connection, or already known.
        let ahead = (completion.id & NUMBER).wrapping_sub(pair.completed) & NUMBER;
        if (completion.id >> 48) as u16 != pair.connection || ahead >= pair.posted - pair.completed {
            return;
        }
        let number = pair.completed + ahead;
        let is_success = completion.status == CompletionStatus::Success;
        // A queue pair's operations end in order: those before this one succeeded.
        let succeeded = ahead as usize + usize::from(is_success);
        pair.completed += succeeded as u64;
        let psn = pair.psn_of_number(number);
        match pair.transport {
            Transport::Uc => _ = pair.carried.drain(..succeeded.min(pair.carried.len())),
            Transport::Rc => match completion.status {
                CompletionStatus::Success => self.answers.push((place, psn, ResponderAnswer::Ack)),
                CompletionStatus::RemoteAccessError
                | CompletionStatus::RemoteInvalidRequest
                | CompletionStatus::RemoteOperationError => {
                    self.answers.push((place, psn, ResponderAnswer::NakError));
                }
                // If those before this one were flushed too, nothing is said about them.
                CompletionStatus::Flushed
                | CompletionStatus::RetriesExceeded
                | CompletionStatus::ReceiverNotReady
                | CompletionStatus::Other(_) => {}
            },
        }
        if !is_success {
            self.give_up(place, &completion.status);
        }
    }

    /// Gives up a queue pair that no longer works.
    fn give_up(&mut self, place: u8, why: &dyn std::fmt::Display) {
        let Self { pairs, unsent, answers, name, device_counters, .. } = self;
        let Some(Some(pair)) = pairs.get_mut(usize::from(place)) else { return };
        if pair.state == PairState::Broken {
            return;
        }
        let (collector, purpose) = match &pair.entry {
            Some(entry) => (entry.collector, entry.purpose.name()),
            None => (place / Purpose::ALL.len() as u8, ""),
        };
        warn!(device = *name, collector, purpose, reason = %why, "a queue pair failed: reconnecting it");
        device_counters.queue_pair_errors += 1;
        pair.begin_connection(PairState::Broken, unsent);
        if pair.transport == Transport::Rc {
            answers.push((place, Psn::new(0), ResponderAnswer::GivenUp));
        }
    }

    /// Notices that the device has been removed: the kernel waits until it is closed here.
    fn check_presence(&mut self) {
        if self.device.as_ref().is_some_and(|device| !device.is_present()) {
            warn!(device = self.name, "the RDMA device is gone, and its queue pairs with it");
            // What it had sent before is not lost.
            self.poll();
            if self.device.is_some() {
                self.lose_device();
            }
        }
    }

    fn lose_device(&mut self) {
        self.device = None;
        self.device_counters.lost += 1;
        for (place, pair) in self.pairs.drain(..).enumerate() {
            let Some(mut pair) = pair else { continue };
            pair.begin_connection(PairState::Unconnected, &mut self.unsent);
            match (pair.transport, pair.entry) {
                (Transport::Rc, _) => {
                    self.answers.push((place as u8, Psn::new(0), ResponderAnswer::GivenUp));
                }
                (Transport::Uc, entry) => {
                    self.lost_entries.extend(entry.map(|entry| (place as u8, entry)));
                }
            }
        }
    }

    /// Reconnects broken UC queue pairs: the receiver accepts any PSN, so the session need not know.
    fn restore_pairs(&mut self) {
        for place in self.places() {
            let broken =
                |pair: &&SendingPair| pair.state == PairState::Broken && pair.transport == Transport::Uc;
            let Some(entry) = self.pair_at(place).filter(broken).and_then(|pair| pair.entry.clone()) else {
                continue;
            };
            match self.connect(&entry) {
                Ok(()) => {
                    info!(device = self.name, collector = entry.collector, "the queue pair works again")
                }
                Err(error) => {
                    warn!(
                        device = self.name, collector = entry.collector, %error,
                        "cannot reconnect a queue pair"
                    )
                }
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.pairs.iter().flatten().all(|pair| pair.posted == pair.completed)
    }

    /// Waits for completions, or for something at `others`.
    ///
    /// # Errors
    /// As [`dta_link::wait_readable`].
    pub(super) fn wait_for_completions(
        &mut self,
        others: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> dta_link::Result<bool> {
        // Posting may have polled: what it found is not waited for.
        if !self.answers.is_empty() || !self.unsent.is_empty() {
            return Ok(true);
        }
        let is_idle = self.is_idle();
        let Some(device) = &mut self.device else { return wait_readable(others, Some(timeout)) };
        // What has completed before the request raises no event. An error of either shows when it is polled next.
        if !is_idle
            && (device.request_notification().is_err()
                || device.poll_completions(&mut self.completions).is_err()
                || !self.completions.is_empty())
        {
            return Ok(true);
        }
        let own = (!is_idle).then(|| device.as_fd());
        let all: Vec<_> = own.into_iter().chain(others.iter().copied()).collect();
        wait_readable(&all, Some(timeout))
    }

    /// Waits until everything posted on UC has left, or for a second: nothing comes after it. What has not left then is lost.
    pub(super) fn finish(&mut self, engine: &mut Engine, out: &mut EngineOutput) {
        self.wait_until_sent(self.places(), QUEUE_TIMEOUT);
        let Self { pairs, unsent, .. } = self;
        for pair in pairs.iter_mut().flatten() {
            pair.begin_connection(PairState::Unconnected, unsent);
        }
        self.count_unsent(engine, out);
    }
}

const NO_REQUEST: SendRequest<'_> = SendRequest {
    id: 0,
    is_signalled: false,
    operation: SendOperation::Write,
    address: 0,
    rkey: 0,
    payload: &[],
};

fn operation(effect: OperationEffect) -> SendOperation {
    match effect.verb {
        Verb::Write | Verb::Idle => SendOperation::Write,
        Verb::WriteImmediate => SendOperation::WriteImmediate(effect.number as u32),
        Verb::FetchAdd => SendOperation::FetchAdd(effect.number),
    }
}

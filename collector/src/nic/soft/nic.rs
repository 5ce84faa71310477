//! The software NIC as the collector uses it: one thread that moves packets between a link and the responder.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dta_link::fault::{FaultInjector, Faults};
use dta_link::shared_ring::{Door, Offer, TOKEN};
use dta_link::{Batch, EthernetLink, HostLink, Link, PacketConfig, UdpConfig, UdpLink, Way, Wire};
use dta_proto::counter::nic as names;
use dta_proto::wire::ethernet::Mac;

use super::counter::{Counter, Counts};
use super::counter_file::CounterFile;
use super::responder::Responder;
use super::responder_config::ResponderConfig;
use crate::nic::{
    Access, Device, Endpoint, Immediate, Nic, NicError, QueuePairInfo, QueuePairRequest, QueuePairStatus,
    Registration,
};
use crate::region::Region;

/// Packets that are received at once.
const BATCH: usize = 256;

/// How long the thread waits for packets before it looks whether it is to stop.
const IDLE: Duration = Duration::from_millis(20);

/// How often the link's own counters are read, which costs a system call.
const LINK_COUNTERS: Duration = Duration::from_millis(100);

/// How often the log says what was refused, at most: what is sent here decides nothing about how
/// much is logged.
const TELL_REFUSED: Duration = Duration::from_secs(10);

/// How often the data thread yields to a control call that waits, at most.
const STEP_ASIDE: usize = 1000;

/// What a software NIC is.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftNicConfig {
    /// Address, port, path MTU and responder resources.
    pub responder: ResponderConfig,
    /// File of the counters; `None` keeps them in memory.
    pub counter_file: Option<PathBuf>,
    /// On raw frames, its Ethernet address; without one, [`SoftNic::raw`] takes the interface's.
    /// With one of its own, the kernel's IP stack drops frames to it at once instead of looking for
    /// a route for them.
    pub mac: Option<Mac>,
    /// Faults on the answers that leave.
    pub faults: Faults,
    /// Seed of the faults.
    pub seed: u64,
    /// Whether [`SoftNic::udp`] takes frames of requesters on this host through shared memory, too.
    pub ring: bool,
}

impl SoftNicConfig {
    /// The NIC `soft` at an address: path MTU 1024, 16 responder resources, no counter file, no faults,
    /// no ring.
    pub fn new(address: SocketAddrV4) -> SoftNicConfig {
        SoftNicConfig {
            responder: ResponderConfig {
                device: names::SOFT.into(),
                ip: *address.ip(),
                port: address.port(),
                mtu: 1024,
                max_dest_rd_atomic: 16,
            },
            counter_file: None,
            mac: None,
            faults: Faults::NONE,
            seed: 0,
            ring: false,
        }
    }
}

/// A running software NIC. It stops when dropped.
pub struct SoftNic {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Where requesters of this host come in.
    door: Option<Door>,
}

struct Shared {
    config: SoftNicConfig,
    /// Taken by the data thread once per batch, and by control calls.
    responder: Mutex<Responder>,
    /// Control calls that wait for the lock: the data thread lets them go first.
    waiting: AtomicUsize,
    stop: AtomicBool,
    /// How often the data thread has looked for packets.
    turns: AtomicU64,
    counters: CounterFile,
    immediates: Mutex<Vec<Immediate>>,
    immediate_came: Condvar,
    /// Why the data thread ended by itself.
    failure: Mutex<Option<String>>,
}

impl SoftNic {
    /// A NIC on a UDP socket, which needs no privilege. With port 0 the kernel chooses one; see
    /// [`Nic::device`].
    ///
    /// # Errors
    /// The address cannot be bound, or the counter file cannot be used.
    pub fn udp(mut config: SoftNicConfig) -> Result<SoftNic, NicError> {
        let address = SocketAddr::new(config.responder.ip.into(), config.responder.port);
        let link = UdpLink::open(&UdpConfig::roce(address))
            .map_err(|error| link_error("open its socket (--soft-address, --soft-port)", &error))?;
        config.responder.port = link.local_addr().port();
        if !config.ring {
            return SoftNic::start(config, link);
        }
        let system = |action: &str, source| NicError::System { action: action.into(), source };
        // One that nobody can guess, so that nobody is there before.
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|error| {
            system("get random bytes for a name", std::io::Error::other(error.to_string()))
        })?;
        let name = format!("dta-ring-{:032x}", u128::from_le_bytes(random));
        let (link, door) =
            HostLink::new(link).with_door(name).map_err(|source| system("open a door for rings", source))?;
        let mut nic = SoftNic::start(config, link)?;
        nic.door = Some(door);
        Ok(nic)
    }

    /// A NIC on the raw frames of a network interface, which needs CAP_NET_RAW. The link answers
    /// ARP for the NIC's address, which should be none of the kernel's.
    ///
    /// # Errors
    /// There is no such interface or no privilege, or the counter file cannot be used.
    pub fn raw(config: SoftNicConfig, interface: &str) -> Result<SoftNic, NicError> {
        SoftNic::wire(config, &Wire { way: Way::Packet, interface: interface.into() })
    }

    /// The same, by packet socket or AF_XDP, which needs CAP_BPF and CAP_NET_ADMIN too.
    ///
    /// # Errors
    /// As [`SoftNic::raw`], and as [`dta_link::XdpLink::open`].
    pub fn wire(mut config: SoftNicConfig, wire: &Wire) -> Result<SoftNic, NicError> {
        let interface = &*wire.interface;
        let mut ports = PacketConfig::new(interface, [config.responder.port]);
        ports.mac = config.mac.map(|mac| mac.0);
        let link = EthernetLink::open_by(wire.way, &ports, config.responder.ip)
            .map_err(|error| link_error("open a link", &error))?;
        match link.wire().fallback() {
            None => tracing::info!(interface, frames = link.wire().describe(), "the software NIC's link"),
            Some(_) => tracing::warn!(interface, frames = link.wire().describe(), "the software NIC's link"),
        }
        if config.mac.is_some() && link.interface().ipv4 == Some(config.responder.ip) {
            tracing::warn!(
                interface,
                address = %config.responder.ip,
                "the kernel has this address too, and answers ARP for it with the interface's Ethernet address: whichever answer \
                 comes last is believed; take the address off the interface"
            );
        }
        config.mac = Some(Mac(link.mac()));
        SoftNic::start_thread(config, link, true)
    }

    /// A NIC on any link.
    ///
    /// # Errors
    /// The counter file cannot be used, or the system refuses a thread.
    pub fn start(config: SoftNicConfig, link: impl Link + 'static) -> Result<SoftNic, NicError> {
        SoftNic::start_thread(config, link, false)
    }

    /// `batches`: whether the thread lets senders on its processor finish their batches, which
    /// takes a link with a long queue.
    fn start_thread(
        config: SoftNicConfig,
        link: impl Link + 'static,
        batches: bool,
    ) -> Result<SoftNic, NicError> {
        let names = counter_names(&link);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let counters = CounterFile::open(config.counter_file.as_deref(), &config.responder.device, &names)
            .map_err(|error| NicError::System {
                action: "open the counters".into(),
                source: std::io::Error::other(error),
            })?;
        let mut responder = Responder::new(config.responder.clone());
        for (index, &counter) in Counter::ALL.iter().enumerate() {
            responder.counts_mut().set(counter, counters.load(index));
        }
        // An earlier process that died had counted the batch in hand, and not what came of it.
        let killed = responder.counts().unfinished();
        responder.counts_mut().add(Counter::DroppedKilled, killed);
        let shared = Arc::new(Shared {
            config,
            responder: Mutex::new(responder),
            waiting: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            counters,
            immediates: Mutex::new(Vec::new()),
            immediate_came: Condvar::new(),
            failure: Mutex::new(None),
        });
        let data = DataThread::new(Arc::clone(&shared), Box::new(link));
        let thread = std::thread::Builder::new()
            .name("soft-nic".into())
            .spawn(move || {
                if batches && let Err(error) = dta_link::work_in_batches() {
                    tracing::debug!(%error, "the software NIC's thread is scheduled as any other");
                }
                data.run();
            })
            .map_err(|source| NicError::System { action: "start the NIC's thread".into(), source })?;
        Ok(SoftNic { shared, thread: Some(thread), door: None })
    }

    /// Locks the responder for a control call, ahead of the data thread.
    fn control<T>(&self, call: impl FnOnce(&mut Responder) -> Result<T, NicError>) -> Result<T, NicError> {
        if let Some(reason) = &*lock(&self.shared.failure) {
            return Err(NicError::Stopped { reason: reason.clone() });
        }
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let mut responder = lock(&self.shared.responder);
        self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
        call(&mut responder)
    }
}

impl Nic for SoftNic {
    fn device(&self) -> Device {
        let config = &self.shared.config.responder;
        let mut endpoint = Endpoint::new(IpAddr::V4(config.ip));
        endpoint.port = config.port;
        endpoint.mac = self.shared.config.mac.unwrap_or_default();
        Device {
            name: config.device.clone(),
            endpoint,
            mtu: config.mtu,
            max_dest_rd_atomic: config.max_dest_rd_atomic,
            atomics: true,
        }
    }

    fn register(&self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        self.control(|responder| responder.register(region, access))
    }

    fn deregister(&self, rkey: u32) -> Result<(), NicError> {
        self.control(|responder| responder.deregister(rkey))
    }

    fn create_queue_pair(&self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        self.control(|responder| responder.create_queue_pair(request))
    }

    fn destroy_queue_pair(&self, qpn: u32) -> Result<Option<u32>, NicError> {
        self.control(|responder| responder.destroy_queue_pair(qpn).map(Some))
    }

    fn queue_pairs(&self) -> Result<Vec<QueuePairStatus>, NicError> {
        self.control(|responder| Ok(responder.queue_pairs()))
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.shared.counters.named()
    }

    fn failure(&self) -> Option<String> {
        lock(&self.shared.failure).clone()
    }

    fn turns(&self) -> Option<u64> {
        Some(self.shared.turns.load(Ordering::Relaxed))
    }

    fn offer_ring(&self, requester: &Endpoint) -> Option<Offer> {
        let (door, requester) = (self.door.as_ref()?, address(requester)?);
        // An address of this host can be bound, whatever the port.
        UdpSocket::bind((*requester.ip(), 0)).ok()?;
        let mut token = [0; TOKEN];
        getrandom::fill(&mut token).ok()?;
        door.offer(requester, token)
    }

    fn has_ring(&self, requester: &Endpoint) -> bool {
        self.door.as_ref().zip(address(requester)).is_some_and(|(door, at)| door.has_ring(at))
    }

    fn take_immediates(&self, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError> {
        let waiting = lock(&self.shared.immediates);
        let (mut came, _) = self
            .shared
            .immediate_came
            .wait_timeout_while(waiting, timeout, |came| {
                came.is_empty() && !self.shared.stop.load(Ordering::Acquire)
            })
            .unwrap_or_else(PoisonError::into_inner);
        if came.is_empty() {
            drop(came);
            return self.control(|_| Ok(()));
        }
        let taken = out.len();
        out.append(&mut came);
        drop(came);
        self.control(|responder| {
            for immediate in &out[taken..] {
                responder.post_receives(immediate.qpn, 1);
            }
            Ok(())
        })
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.immediate_came.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed; there is nothing more to do about it here.
            let _ = thread.join();
        }
    }
}

/// Where a requester's frames come from.
fn address(requester: &Endpoint) -> Option<SocketAddrV4> {
    match requester.ip {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, requester.port)),
        IpAddr::V6(_) => None,
    }
}

/// The thread that moves packets.
struct DataThread {
    shared: Arc<Shared>,
    link: Box<dyn Link>,
    injector: FaultInjector,
    input: Batch,
    output: Batch,
    /// What the counter file held of the link's and the injector's counters when this link was opened.
    link_base: Vec<u64>,
    link_counters_read: Instant,
    /// When refusals were last written to the log, and what was counted then.
    refusals_logged: (Option<Instant>, Counts),
}

impl DataThread {
    fn new(shared: Arc<Shared>, link: Box<dyn Link>) -> DataThread {
        let injector = FaultInjector::new(shared.config.faults, shared.config.seed, link.scope());
        let responder = lock(&shared.responder);
        let (output, counts) = (responder.answer_batch(BATCH), responder.counts().clone());
        drop(responder);
        let first = Counter::ALL.len();
        let link_base =
            (0..link_counters(&*link, &injector).len()).map(|i| shared.counters.load(first + i)).collect();
        DataThread {
            input: Batch::with_packet_capacity(BATCH, shared.config.responder.mtu.max(1500) as usize + 128),
            output,
            shared,
            link,
            injector,
            link_base,
            link_counters_read: Instant::now(),
            refusals_logged: (None, counts),
        }
    }

    fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        publish(&shared.counters, lock(&shared.responder).counts());
        let result = self.serve(&shared);
        let leaving = self.injector.flush(|_, _, _| {});
        if !leaving.is_empty() {
            // The link is closing: what does not leave is counted there.
            let _ = self.link.send(leaving);
        }
        self.read_link_counters();
        if let Err(error) = result {
            tracing::error!(%error, "the software NIC has stopped");
            *lock(&shared.failure) = Some(error.to_string());
        }
    }

    fn serve(&mut self, shared: &Shared) -> dta_link::Result<()> {
        let mut turns = 0;
        while !shared.stop.load(Ordering::Acquire) {
            turns += 1;
            // Nobody else writes it, and nothing else is read by way of it.
            shared.turns.store(turns, Ordering::Relaxed);
            // Frames held back for reordering leave by time.
            let timeout = if self.injector.counts().held > 0 { Duration::from_millis(2) } else { IDLE };
            let received = match self.link.recv(&mut self.input, Some(timeout)) {
                Ok(received) => received,
                // In-process links end with their other side.
                Err(dta_link::LinkError::Closed) => return Ok(()),
                Err(error) => return Err(error),
            };
            if received > 0 {
                self.execute(shared);
            }
            if !self.output.is_empty() || self.injector.counts().held > 0 {
                send(&mut *self.link, &mut self.injector, &mut self.output)?;
            }
            if self.link_counters_read.elapsed() >= LINK_COUNTERS {
                self.read_link_counters();
                self.tell_refused(shared);
            }
        }
        Ok(())
    }

    /// Says in the log whom the NIC refused what, if it did and has not said so just now.
    fn tell_refused(&mut self, shared: &Shared) {
        let (logged, before) = &mut self.refusals_logged;
        if logged.is_some_and(|at| at.elapsed() < TELL_REFUSED) {
            return;
        }
        let mut responder = lock(&shared.responder);
        let refused = responder.take_refused();
        if refused.is_empty() {
            return;
        }
        let now = responder.counts().clone();
        drop(responder);
        for refusal in refused {
            tracing::warn!(
                sender = %refusal.sender,
                queue_pair = format_args!("{:#08x}", refusal.qpn),
                reason = refusal.reason.name(),
                frames = now.get(refusal.reason) - before.get(refusal.reason),
                "the NIC refused RDMA requests, of which this is the first: a requester goes on with what an earlier session gave \
                 it, or is faulty, or somebody guesses (docs/rdma.md)"
            );
        }
        let broken = now.get(Counter::QueuePairErrors) - before.get(Counter::QueuePairErrors);
        if broken > 0 {
            tracing::warn!(queue_pairs = broken, "RC queue pairs fell into ERROR for that");
        }
        *logged = Some(Instant::now());
        *before = now;
    }

    /// Runs one batch through the responder.
    fn execute(&mut self, shared: &Shared) {
        let Self { link, injector, input, output, .. } = self;
        let mut responder = lock(&shared.responder);
        // Counted as received before anything is executed: if this process is killed in between,
        // the next one knows how many packets it had in hand.
        shared.counters.store(
            Counter::Received as usize,
            responder.counts().get(Counter::Received) + input.len() as u64,
        );
        responder.process(input, output, &mut |full| {
            if let Err(error) = send(&mut **link, injector, full) {
                tracing::warn!(%error, "answers did not leave");
                full.clear();
            }
        });
        publish(&shared.counters, responder.counts());
        let came = responder.immediates();
        if !came.is_empty() {
            lock(&shared.immediates).append(came);
            shared.immediate_came.notify_all();
        }
        drop(responder);
        // Locks are not fair: without this, a busy data thread could take it again and again before
        // a control call does.
        for _ in 0..STEP_ASIDE {
            if shared.waiting.load(Ordering::Acquire) == 0 {
                break;
            }
            std::thread::yield_now();
        }
    }

    fn read_link_counters(&mut self) {
        self.link_counters_read = Instant::now();
        let first = Counter::ALL.len();
        for (index, (_, value)) in link_counters(&*self.link, &self.injector).into_iter().enumerate() {
            self.shared.counters.store(first + index, self.link_base[index] + value);
        }
    }
}

/// Sends answers through the faults.
fn send(link: &mut dyn Link, injector: &mut FaultInjector, output: &mut Batch) -> dta_link::Result<()> {
    let leaving = injector.apply(output, Instant::now(), |_, _, _| {});
    if !leaving.is_empty() {
        link.send(leaving)?;
    }
    output.clear();
    Ok(())
}

/// Writes the responder's counts to the counter file.
fn publish(file: &CounterFile, counts: &Counts) {
    for (index, &counter) in Counter::ALL.iter().enumerate() {
        file.store(index, counts.get(counter));
    }
}

/// The link's and the fault injector's counters, always the same ones in the same order.
fn link_counters(link: &dyn Link, injector: &FaultInjector) -> Vec<(String, u64)> {
    let counters = link.counters();
    let named = [
        (&names::LINK_RECEIVED, counters.received),
        (&names::LINK_RECEIVED_BYTES, counters.received_bytes),
        (&names::LINK_SENT, counters.sent),
        (&names::LINK_SENT_BYTES, counters.sent_bytes),
    ];
    let mut named: Vec<_> = named.map(|(counter, count)| (counter.of(&[]), count)).into();
    let losses = counters.losses();
    named.extend(losses.map(|(loss, count)| (names::LINK_LOST.of(&[loss.name_at_nic()]), count)));
    let ring = link.ring_counters().named();
    named.extend(ring.map(|(counter, count)| (counter.of(&[]), count)));
    let faults = injector.counts().by_fault();
    named.extend(faults.map(|(fault, count)| (names::FAULTS.of(&[fault.name()]), count)));
    named
}

fn counter_names(link: &dyn Link) -> Vec<String> {
    let injector = FaultInjector::new(Faults::NONE, 0, link.scope());
    let mut names: Vec<String> = Counter::ALL.iter().map(|c| c.name().to_owned()).collect();
    names.extend(link_counters(link, &injector).into_iter().map(|(name, _)| name));
    names
}

/// Locks, whatever happened to an earlier holder: every value here is whole between statements that
/// can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn link_error(action: &str, error: &dta_link::LinkError) -> NicError {
    NicError::System { action: action.to_owned(), source: std::io::Error::other(error.to_string()) }
}

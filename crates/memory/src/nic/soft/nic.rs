//! The software NIC as the collector uses it: threads that move packets, each between its own link and responder.
//!
//! A queue pair belongs to one thread for its whole life. Its number tells which: the kernel's program on the sockets
//! steers by it. All threads know all rkeys.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use dta_link::fault::Faults;
use dta_link::shared_ring::{Door, JoinOffer, TOKEN};
use dta_link::{EthernetLink, HostLink, Ipv6FrameLink, Link, PacketConfig, UdpConfig, UdpLink, Wire};
use dta_proto::counter::nic as names;
use dta_proto::wire::ethernet::Mac;

use super::counter::{Counter, NicCounts};
use super::counter_file::CounterFile;
use super::responder::Responder;
use super::responder::ResponderConfig;
use super::steering;
use super::thread::{self, DataThread, SharedResponder, SoftNicState, lock_ignoring_poison};
use crate::nic::{
    Access, Device, Endpoint, Immediate, Nic, NicError, QueuePairInfo, QueuePairRequest, QueuePairStatus,
    Registration,
};
use crate::region::Region;

pub const MAX_THREADS: usize = 16;

const OPEN_SOCKET: &str = "open its socket (--soft-address, --soft-port)";

#[derive(Clone, Debug, PartialEq)]
pub struct SoftNicConfig {
    /// Address, port, path MTU and responder resources.
    pub responder: ResponderConfig,
    /// File of the counters; `None` keeps them in memory.
    pub counter_file: Option<PathBuf>,
    /// On raw frames, its Ethernet address; if `None`, [`SoftNic::with_wire`] takes the interface's. With an address of its
    /// own, the kernel's IP stack drops frames to it at once instead of looking for a route.
    pub mac: Option<Mac>,
    pub faults: Faults,
    pub seed: u64,
    /// Whether [`SoftNic::with_udp`] also accepts frames through shared memory, from requesters on this host.
    pub ring: bool,
    /// Whether [`SoftNic::with_udp`] accepts frames in runs, and frames whose iCRC is right for any id of a run
    /// ([`UdpConfig::runs`]). No other link does.
    pub runs: bool,
    /// Threads of [`SoftNic::with_udp`], 1 to [`MAX_THREADS`]; any other link has one.
    pub threads: usize,
}

impl SoftNicConfig {
    /// The NIC `soft` at an address: path MTU 1024, 16 responder resources, no counter file, no faults, no ring, runs, one
    /// thread.
    pub fn new(address: impl Into<SocketAddr>) -> SoftNicConfig {
        let address = address.into();
        SoftNicConfig {
            responder: ResponderConfig {
                device: names::SOFT.into(),
                ip: address.ip(),
                port: address.port(),
                mtu: 1024,
                max_dest_rd_atomic: 16,
            },
            counter_file: None,
            mac: None,
            faults: Faults::NONE,
            seed: 0,
            ring: false,
            runs: true,
            threads: 1,
        }
    }
}

/// A running software NIC. It stops when dropped.
pub struct SoftNic {
    shared: Arc<SoftNicState>,
    lanes: Vec<Lane>,
    /// Held while a thread is chosen for a queue pair.
    placing: Mutex<()>,
    progress: Mutex<ThreadProgress>,
}

/// A thread, as seen by control calls.
struct Lane {
    part: Arc<SharedResponder>,
    thread: Option<JoinHandle<()>>,
    /// Lets requesters on this host in.
    door: Option<Door>,
}

/// A number that increases once every thread has made progress.
#[derive(Default)]
struct ThreadProgress {
    /// The progress of each thread when the number last increased.
    seen: Vec<u64>,
    rises: u64,
}

impl SoftNic {
    /// A NIC on a UDP socket, which needs no privileges. With port 0 the kernel chooses a port; see
    /// [`Nic::describe_device`]. Over IPv6 it has no rings, and neither sends runs nor asks for them.
    ///
    /// # Errors
    /// The address cannot be bound, or the counter file cannot be used.
    pub fn with_udp(config: SoftNicConfig) -> Result<SoftNic, NicError> {
        match SocketAddr::new(config.responder.ip, config.responder.port) {
            SocketAddr::V4(address) => SoftNic::with_ipv4_sockets(config, address),
            SocketAddr::V6(address) => SoftNic::with_ipv6_sockets(config, address),
        }
    }

    fn with_ipv6_sockets(mut config: SoftNicConfig, address: SocketAddrV6) -> Result<SoftNic, NicError> {
        let threads = config.threads.clamp(1, MAX_THREADS);
        let links = match threads {
            1 => Ipv6FrameLink::open(address).map(|link| vec![link]),
            _ => Ipv6FrameLink::open_group(address, threads, &steering::steering_program(threads)),
        };
        let links = links.map_err(|error| link_error(OPEN_SOCKET, &error))?;
        if let Some(first) = links.first() {
            config.responder.port = first.local_addr().port();
        }
        config.runs = false;
        let links = links.into_iter().map(|link| (Box::new(link) as Box<dyn Link>, None));
        SoftNic::start_threads(config, links.collect(), false)
    }

    fn with_ipv4_sockets(mut config: SoftNicConfig, address: SocketAddrV4) -> Result<SoftNic, NicError> {
        let threads = config.threads.clamp(1, MAX_THREADS);
        let sockets = match config.runs {
            true => UdpConfig::roce_in_runs(address.into()),
            false => UdpConfig::for_roce_frames(address.into()),
        };
        let links = match threads {
            1 => UdpLink::open(&sockets).map(|link| vec![link]),
            _ => UdpLink::open_group(&sockets, threads, &steering::steering_program(threads)),
        };
        let links = links.map_err(|error| link_error(OPEN_SOCKET, &error))?;
        if let Some(first) = links.first() {
            config.responder.port = first.local_addr().port();
        }
        if !config.ring {
            let links = links.into_iter().map(|link| (Box::new(link) as Box<dyn Link>, None));
            return SoftNic::start_threads(config, links.collect(), false);
        }
        let with_door = |link| {
            let system = |action: &str, source| NicError::System { action: action.into(), source };
            // A name that nobody can guess, so that nobody can bind it first.
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(|error| {
                system("get random bytes for a name", std::io::Error::other(error.to_string()))
            })?;
            let name = format!("dta-ring-{:032x}", u128::from_le_bytes(random));
            let (link, door) = HostLink::new(link)
                .with_door(name)
                .map_err(|source| system("open a door for rings", source))?;
            Ok((Box::new(link) as Box<dyn Link>, Some(door)))
        };
        let links = links.into_iter().map(with_door).collect::<Result<_, NicError>>()?;
        SoftNic::start_threads(config, links, false)
    }

    /// A NIC on the raw frames of a network interface, by packet socket (needs CAP_NET_RAW) or AF_XDP (needs CAP_BPF and
    /// CAP_NET_ADMIN as well). The link answers ARP or neighbour discovery for the NIC's address, which the kernel should
    /// not have.
    ///
    /// # Errors
    /// There is no such interface, privileges are missing, or the counter file cannot be used; and those of
    /// [`dta_link::XdpLink::open`].
    pub fn with_wire(mut config: SoftNicConfig, wire: &Wire) -> Result<SoftNic, NicError> {
        let interface = &*wire.interface;
        let mut ports = PacketConfig::new(interface, [config.responder.port]);
        ports.mac = config.mac.map(|mac| mac.0);
        let link = EthernetLink::open_with_kind(wire.kind, &ports, config.responder.ip)
            .map_err(|error| link_error("open a link", &error))?;
        match link.wire_link().fallback_reason() {
            None => {
                tracing::info!(interface, frames = link.wire_link().describe(), "the software NIC's link")
            }
            Some(_) => {
                tracing::warn!(interface, frames = link.wire_link().describe(), "the software NIC's link")
            }
        }
        if config.mac.is_some() && link.interface().ipv4.map(IpAddr::V4) == Some(config.responder.ip) {
            tracing::warn!(
                interface,
                address = %config.responder.ip,
                "the kernel also has this address, and answers ARP for it with the interface's Ethernet address: whichever answer \
                 comes last wins; remove the address from the interface"
            );
        }
        config.mac = Some(Mac(link.mac_address()));
        // Such links deliver whole runs if nothing on the way cuts them.
        config.runs = false;
        SoftNic::start_threads(config, vec![(Box::new(link), None)], true)
    }

    /// A NIC on any link.
    ///
    /// # Errors
    /// The counter file cannot be used, or the system refuses a thread.
    pub fn with_link(mut config: SoftNicConfig, link: impl Link + 'static) -> Result<SoftNic, NicError> {
        config.runs = false;
        SoftNic::start_threads(config, vec![(Box::new(link), None)], false)
    }

    /// Starts a thread for each link. `batches` lets senders on the same processor finish their batches first, which
    /// requires a link with a long queue.
    fn start_threads(
        config: SoftNicConfig,
        links: Vec<(Box<dyn Link>, Option<Door>)>,
        batches: bool,
    ) -> Result<SoftNic, NicError> {
        let names = links.first().map(|(link, _)| thread::counter_names(&**link)).unwrap_or_default();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let counters = CounterFile::open(config.counter_file.as_deref(), &config.responder.device, &names)
            .map_err(|error| NicError::System {
                action: "open the counters".into(),
                source: std::io::Error::other(error),
            })?;
        let mut before = NicCounts::default();
        for (index, &counter) in Counter::ALL.iter().enumerate() {
            before.set(counter, counters.load(index));
        }
        let mut nic = SoftNic {
            shared: Arc::new(SoftNicState {
                config,
                stop: AtomicBool::new(false),
                counters,
                immediates: Mutex::new(Vec::new()),
                immediate_came: Condvar::new(),
                failure: Mutex::new(None),
            }),
            lanes: Vec::new(),
            placing: Mutex::new(()),
            progress: Mutex::new(ThreadProgress::default()),
        };
        let threads = links.len();
        for (number, (link, door)) in links.into_iter().enumerate() {
            let config = nic.shared.config.responder.clone();
            let mut responder = Responder::new(config).with_partition(number, threads);
            // The first thread continues where an earlier process ended.
            let published = if number == 0 { before.clone() } else { NicCounts::default() };
            *responder.counts_mut() = published.clone();
            // A process that was killed had counted the batch in hand as received, but not its packets' fates.
            responder.counts_mut().add(Counter::DroppedKilled, published.unfinished());
            let part = Arc::new(SharedResponder::new(responder));
            let data = DataThread::new((Arc::clone(&nic.shared), Arc::clone(&part)), number, link, published);
            let name = if threads == 1 { "soft-nic".into() } else { format!("soft-nic-{number}") };
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(move || {
                    if batches && let Err(error) = dta_link::work_in_batches() {
                        tracing::debug!(%error, "the software NIC's thread runs with the default scheduling");
                    }
                    data.run();
                })
                .map_err(|source| NicError::System { action: "start the NIC's thread".into(), source })?;
            nic.lanes.push(Lane { part, thread: Some(thread), door });
        }
        Ok(nic)
    }

    fn check_running(&self) -> Result<(), NicError> {
        match &*lock_ignoring_poison(&self.shared.failure) {
            Some(reason) => Err(NicError::Stopped { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    /// The part that this queue pair number belongs to.
    fn part_of_qpn(&self, qpn: u32) -> Result<&SharedResponder, NicError> {
        self.check_running()?;
        let lane = self.lanes.get(steering::part_for_qpn(qpn, self.lanes.len()));
        Ok(&*lane.ok_or(NicError::NoQueuePair { qpn })?.part)
    }

    /// The thread for a requester's frames: the one that already has a queue pair or a ring of the requester, because a
    /// ring leads to one thread; else the one with the fewest queue pairs.
    fn choose_lane(&self, requester: &Endpoint) -> Option<&Lane> {
        if let [only] = &*self.lanes {
            return Some(only);
        }
        let counts =
            |lane: &Lane| lane.part.run_control_call(|responder| responder.queue_pairs_by(requester));
        let has_ring = |lane: &Lane| {
            lane.door.as_ref().zip(source_address(requester)).is_some_and(|(door, at)| door.has_ring(at))
        };
        // By most queue pairs of the requester, then its ring, then fewest others.
        self.lanes.iter().min_by_key(|lane| {
            let (own, all) = counts(lane);
            (std::cmp::Reverse(own), !has_ring(lane), all)
        })
    }
}

impl Nic for SoftNic {
    fn describe_device(&self) -> Device {
        let config = &self.shared.config.responder;
        let mut endpoint = Endpoint::new(config.ip);
        endpoint.port = config.port;
        endpoint.mac = self.shared.config.mac.unwrap_or_default();
        endpoint.runs = self.shared.config.runs;
        Device {
            name: config.device.clone(),
            endpoint,
            mtu: config.mtu,
            max_dest_rd_atomic: config.max_dest_rd_atomic,
            atomics: true,
        }
    }

    fn register_region(&self, region: Arc<Region>, access: Access) -> Result<Registration, NicError> {
        self.check_running()?;
        // Two concurrent calls would register in different orders.
        let _one_by_one = lock_ignoring_poison(&self.placing);
        let mut registered: Option<Registration> = None;
        for lane in &self.lanes {
            let rkey = registered.map(|registration| registration.rkey);
            let done =
                lane.part.run_control_call(|responder| responder.register_as(rkey, region.clone(), access));
            match done {
                Ok(registration) => registered = Some(registration),
                Err(error) => {
                    if let Some(rkey) = rkey {
                        for lane in &self.lanes {
                            // The threads after this one do not have the rkey.
                            let _ = lane.part.run_control_call(|responder| responder.deregister(rkey));
                        }
                    }
                    return Err(error);
                }
            }
        }
        registered.ok_or(NicError::NoRegistration)
    }

    fn deregister(&self, rkey: u32) -> Result<(), NicError> {
        self.check_running()?;
        let _one_by_one = lock_ignoring_poison(&self.placing);
        let each =
            self.lanes.iter().map(|lane| lane.part.run_control_call(|responder| responder.deregister(rkey)));
        // Asks every thread, whatever one answers.
        each.fold(Ok(()), Result::and)
    }

    fn create_queue_pair(&self, request: &QueuePairRequest) -> Result<QueuePairInfo, NicError> {
        self.check_running()?;
        let _one_by_one = lock_ignoring_poison(&self.placing);
        let lane = self.choose_lane(&request.peer).ok_or(NicError::NoRegistration)?;
        lane.part.run_control_call(|responder| responder.create_queue_pair(request))
    }

    fn destroy_queue_pair(&self, qpn: u32) -> Result<Option<u32>, NicError> {
        self.part_of_qpn(qpn)?.run_control_call(|responder| responder.destroy_queue_pair(qpn).map(Some))
    }

    fn queue_pairs(&self) -> Result<Vec<QueuePairStatus>, NicError> {
        self.check_running()?;
        let each =
            self.lanes.iter().map(|lane| lane.part.run_control_call(|responder| responder.queue_pairs()));
        Ok(each.flatten().collect())
    }

    fn named_counters(&self) -> Vec<(String, u64)> {
        self.shared.counters.named_counters()
    }

    fn fatal_failure(&self) -> Option<String> {
        lock_ignoring_poison(&self.shared.failure).clone()
    }

    fn poll_count(&self) -> Option<u64> {
        let now = self.lanes.iter().map(|lane| lane.part.poll_count());
        Some(lock_ignoring_poison(&self.progress).update_progress(now.collect()))
    }

    fn offer_ring(&self, requester: &Endpoint) -> Option<JoinOffer> {
        let lane = self.choose_lane(requester)?;
        let (door, requester) = (lane.door.as_ref()?, source_address(requester)?);
        if let Some(error) = door.take_trouble() {
            tracing::warn!(%error, "translators could not join their rings for a while: accepting a connection failed");
        }
        // Only an address of this host can be bound, whatever the port.
        UdpSocket::bind((*requester.ip(), 0)).ok()?;
        let mut token = [0; TOKEN];
        getrandom::fill(&mut token).ok()?;
        door.offer_ring(requester, token)
    }

    fn has_ring_for(&self, requester: &Endpoint) -> bool {
        let Some(at) = source_address(requester) else { return false };
        self.lanes.iter().filter_map(|lane| lane.door.as_ref()).any(|door| door.has_ring(at))
    }

    fn take_immediates(&self, out: &mut Vec<Immediate>, timeout: Duration) -> Result<(), NicError> {
        let waiting = lock_ignoring_poison(&self.shared.immediates);
        let (mut came, _) = self
            .shared
            .immediate_came
            .wait_timeout_while(waiting, timeout, |came| {
                came.is_empty() && !self.shared.stop.load(Ordering::Acquire)
            })
            .unwrap_or_else(PoisonError::into_inner);
        if came.is_empty() {
            drop(came);
            return self.check_running();
        }
        let taken = out.len();
        out.append(&mut came);
        drop(came);
        for immediate in &out[taken..] {
            let part = self.part_of_qpn(immediate.qpn)?;
            part.run_control_call(|responder| responder.post_receives(immediate.qpn, 1));
        }
        Ok(())
    }
}

impl ThreadProgress {
    fn update_progress(&mut self, now: Vec<u64>) -> u64 {
        let gone_on =
            self.seen.len() != now.len() || now.iter().zip(&self.seen).all(|(now, seen)| now != seen);
        if gone_on {
            self.seen = now;
            self.rises += 1;
        }
        self.rises
    }
}

impl Drop for SoftNic {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.immediate_came.notify_all();
        for thread in self.lanes.iter_mut().filter_map(|lane| lane.thread.take()) {
            // The thread's panic has been printed; there is nothing more to do here.
            let _ = thread.join();
        }
    }
}

fn source_address(requester: &Endpoint) -> Option<SocketAddrV4> {
    match requester.ip {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, requester.port)),
        IpAddr::V6(_) => None,
    }
}

fn link_error(action: &str, error: &dta_link::LinkError) -> NicError {
    NicError::System { action: action.to_owned(), source: std::io::Error::other(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_stands_still_with_any_thread_that_does() {
        let mut progress = ThreadProgress::default();
        let first = progress.update_progress(vec![5, 70]);
        assert_eq!(progress.update_progress(vec![5, 90]), first);
        assert_eq!(progress.update_progress(vec![5, 120]), first);
        let second = progress.update_progress(vec![6, 120]);
        assert!(second > first);
        assert_eq!(progress.update_progress(vec![9, 120]), second);
    }
}

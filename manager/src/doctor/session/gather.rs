//! Takes two readings, and the frames between them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dta_link::netstat::UdpStats;
use dta_link::packet::NetworkInterface;
use dta_link::{Link, PacketConfig, PacketLink};
use dta_memory::nic::{ROCE_PORT, SOFT};
use dta_proto::batch::PacketBatch;
use dta_proto::control::{ListSessionsResponse, NodeStatistics, SessionInfo};
use dta_proto::counter::Stage;
use dta_proto::name;
use dta_proto::store::StoreSpec;
use dta_proto::wire::{ethernet, ipv4, ipv6, udp};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::event_rings::{self, WrappedRing};
use dta_rpc::{Ask, ClientError, ClientOptions};

use super::evidence::{Evidence, HostEvidence, Nodes, translator_ip};
use super::frames::FrameCounts;
use super::neighbours::{Neighbours, NextHop};
use crate::doctor::rdma::tree::{self, Device};
use crate::doctor::read_trimmed;

#[derive(Clone, Debug)]
pub struct LookOptions {
    pub collector: ClientOptions,
    pub session: Option<String>,
    pub time: Duration,
}

/// Why a collector could not be examined.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// It does not answer.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It does not report its NIC's address.
    #[error("the collector does not say which address its NIC has: it is older than this program")]
    NoEndpoint,
}

/// The longest that the kernel caches a device's counters (`lifespan`, 12 ms on rxe).
const STALE: Duration = Duration::from_millis(40);

/// Translators report their counters every second; on a busy machine, or over a slow network, some are late.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// The same for a session's first counters: a switch that was set up reports none.
const FIRST_REPORT_WITHIN: Duration = Duration::from_millis(1500);

/// Watches for [`LookOptions::time`]. `root` is `/` except in tests.
pub async fn gather_evidence(root: &Path, options: &LookOptions) -> Result<Evidence, LookError> {
    let mut client = RemoteCollector::connect(&options.collector).await?;
    let first = fetch_sessions(&mut client).await?;
    let endpoint = first.collector.clone().unwrap_or_default();
    let collector: IpAddr = endpoint.ip.parse().map_err(|_| LookError::NoEndpoint)?;
    let port = u16::try_from(endpoint.port).ok().filter(|port| *port != 0).unwrap_or(ROCE_PORT);

    let local = first.device != SOFT && find_device(root, &first.device).is_some();
    // Only an address of this host can be bound.
    let local = local || UdpSocket::bind((collector, 0)).is_ok();
    let interface = interface(root, &first.device, collector);
    if local {
        ask_for_neighbours(root, &first);
    }

    let before = Nodes::new(fresh_statistics(&mut client, &first).await?);
    let (device_before, datagrams_before) = (find_device(root, &first.device), datagrams());
    let start = Instant::now();
    let counting = local.then(|| Counting::start(interface.as_deref(), (collector, port), &endpoint.mac));
    tokio::time::sleep(options.time).await;
    let frames = counting.map(Counting::stop_and_collect);
    let window = start.elapsed();
    let datagrams_after = datagrams();
    tokio::time::sleep(STALE).await;
    let device_after = find_device(root, &first.device);
    let last = fetch_sessions(&mut client).await?;
    let after = Nodes::new(client.statistics().await?);
    let rings = wrapped_rings(&client).await?;

    let host = frames.map(|frames| HostEvidence {
        interface,
        device_before,
        device_after,
        datagrams: datagrams_after.zip(datagrams_before).map(|(after, before)| after.saturating_sub(before)),
        neighbours: Neighbours::read(root),
        frames,
    });
    let asked = |name: &str| options.session.as_deref().is_none_or(|asked| asked == name);
    Ok(Evidence {
        device: last.device,
        collector,
        port,
        asked: options.session.clone(),
        all_sessions: last.sessions.iter().map(|session| session.name.clone()).collect(),
        queue_pairs: last.sessions.iter().flat_map(|session| session.queue_pairs.clone()).collect(),
        sessions: last.sessions.into_iter().filter(|session| asked(&session.name)).collect(),
        window,
        before,
        after,
        rings,
        host,
    })
}

/// All counters, once each session's translator has reported new ones, or after [`REPORTED_WITHIN`]. With older ones,
/// frames sent earlier would seem to have been sent in between.
async fn fresh_statistics(
    client: &mut RemoteCollector,
    sessions: &ListSessionsResponse,
) -> Result<Vec<NodeStatistics>, LookError> {
    let start = Instant::now();
    loop {
        tokio::time::sleep(STALE).await;
        let nodes = client.statistics().await?;
        let waited = start.elapsed();
        let has_reported = |session: &SessionInfo| {
            let translators =
                nodes.iter().filter(|node| Stage::from_node_name(&node.node) == Stage::Translator);
            let ages = translators.filter(|node| node.session == session.name).map(|node| node.age_seconds);
            match ages.min_by(f64::total_cmp) {
                Some(age) => age < waited.as_secs_f64(),
                None => waited > FIRST_REPORT_WITHIN,
            }
        };
        let first = |session: &&SessionInfo| name::translator_of(&session.name) == session.name;
        if waited > REPORTED_WITHIN || sessions.sessions.iter().filter(first).all(has_reported) {
            return Ok(nodes);
        }
    }
}

/// The rings of INT events that have turned over.
async fn wrapped_rings(client: &RemoteCollector) -> Result<Vec<WrappedRing>, LookError> {
    let mut all = Vec::new();
    for placement in client.placement().await?.stores {
        if let Some(Ok(spec)) = placement.store.as_ref().map(StoreSpec::try_from) {
            // Lists of a shared store may be at another collector.
            all.extend(event_rings::turned_over(client, &spec).await.unwrap_or_default());
        }
    }
    Ok(all)
}

async fn fetch_sessions(client: &mut RemoteCollector) -> Result<ListSessionsResponse, LookError> {
    Ok(client.fetch_sessions().await?)
}

fn find_device(root: &Path, name: &str) -> Option<Device> {
    tree::list_devices(root).into_iter().find(|device| device.name == name)
}

fn datagrams() -> Option<u64> {
    UdpStats::read().ok().map(|stats| stats.in_datagrams)
}

/// The interface on which frames for the collector arrive.
fn interface(root: &Path, device_name: &str, ip: IpAddr) -> Option<String> {
    if ip.is_loopback() {
        return Some("lo".to_owned());
    }
    let gids = find_device(root, device_name).map(|device| device.gid_entries()).unwrap_or_default();
    let named = |gid: &&dta_memory::nic::verbs::GidEntry| gid.interface.is_some();
    // The GID's own interface, or the device's, if the address is no longer in its table.
    let of_device = gids.iter().filter(named).min_by_key(|gid| gid.ip_address() != ip);
    of_device.and_then(|gid| gid.interface.clone()).or_else(|| match ip {
        IpAddr::V4(ip) => {
            let all = crate::doctor::list_sorted_names(root.join("sys/class/net"));
            let has_address =
                |name: &String| NetworkInterface::lookup_by_name(name).is_ok_and(|i| i.ipv4 == Some(ip));
            all.into_iter().find(has_address)
        }
        IpAddr::V6(ip) => interface_with_ipv6(root, ip),
    })
}

/// The interface with an address in `proc/net/if_inet6`, whose lines are `fd000000000000000000000000000001 05 40 00 80 eth1`:
/// address, index, prefix, scope, flags, name.
fn interface_with_ipv6(root: &Path, ip: Ipv6Addr) -> Option<String> {
    let addresses = read_trimmed(root.join("proc/net/if_inet6"))?;
    let name = addresses.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let address = u128::from_str_radix(fields.next()?, 16).ok()?;
        (address == ip.to_bits()).then(|| fields.next_back()).flatten()
    });
    name.map(str::to_owned)
}

/// Makes the kernel resolve neighbours that it has not needed lately, so that a missing entry means something: one
/// empty datagram to the discard port (RFC 863) of each translator.
fn ask_for_neighbours(root: &Path, sessions: &ListSessionsResponse) {
    let neighbours = Neighbours::read(root);
    for session in &sessions.sessions {
        if let Some(std::net::IpAddr::V4(ip)) = translator_ip(session)
            && !ip.is_loopback()
            && matches!(neighbours.next_hop(ip), NextHop::Unasked { .. })
            && let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        {
            // If it cannot be sent, there is no entry either, which is reported.
            let _ = socket.send_to(&[], SocketAddrV4::new(ip, 9));
        }
    }
}

/// Counts frames on a separate thread until stopped.
struct Counting {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Result<FrameCounts, String>>>,
    refused: Option<String>,
}

impl Counting {
    /// `mac` is the NIC's, if it has its own in addition to the interface's.
    fn start(interface: Option<&str>, (ip, port): (IpAddr, u16), mac: &[u8]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let Some(interface) = interface else {
            let refused = Some("no interface has the collector's address".to_owned());
            return Self { stop, thread: None, refused };
        };
        let ipv6_address = if let IpAddr::V6(ip) = ip { Some(ip) } else { None };
        match PacketLink::open(&PacketConfig { ipv6_address, ..PacketConfig::new(interface, [port]) }) {
            Ok(link) => {
                let stopped = stop.clone();
                let mac = mac.try_into().unwrap_or(link.interface().mac);
                let thread = Some(thread::spawn(move || count_frames(link, port, mac, &stopped)));
                Self { stop, thread, refused: None }
            }
            Err(error) => Self { stop, thread: None, refused: Some(error.to_string()) },
        }
    }

    fn stop_and_collect(self) -> Result<FrameCounts, String> {
        self.stop.store(true, Ordering::Release);
        match (self.thread, self.refused) {
            (Some(thread), _) => {
                thread.join().unwrap_or_else(|_| Err("the counting thread stopped unexpectedly".to_owned()))
            }
            (None, refused) => Err(refused.unwrap_or_default()),
        }
    }
}

fn count_frames(
    mut link: PacketLink,
    port: u16,
    ours: [u8; 6],
    stop: &AtomicBool,
) -> Result<FrameCounts, String> {
    // A jumbo frame is fine, too.
    let mut batch = PacketBatch::with_packet_capacity(64, 9216);
    let mut frames = FrameCounts::default();
    while !stop.load(Ordering::Acquire) {
        link.recv(&mut batch, Some(Duration::from_millis(20))).map_err(|error| error.to_string())?;
        for index in 0..batch.len() {
            let (Some(frame), packet) = (batch.ethernet_frame(index), batch.packet(index)) else { continue };
            let Ok(frame) = ethernet::EthernetFrame::new_checked(frame) else { continue };
            // ARP and neighbour discovery arrive, too.
            let is_ip = [ethernet::TYPE_IPV4, ethernet::TYPE_IPV6].contains(&frame.ethertype());
            if is_ip && destination_port(packet) == Some(port) {
                frames.count_packet(packet, frame.destination_mac().0 == ours);
            }
        }
    }
    let counters = link.link_counters();
    frames.missed = counters.dropped_by_kernel + counters.dropped_too_long;
    Ok(frames)
}

fn destination_port(packet: &[u8]) -> Option<u16> {
    let header_len = match ipv6::is_ipv6(packet) {
        true => {
            let is_udp = ipv6::Ipv6Header::from_first_bytes(packet)?.next_header() == ipv4::PROTOCOL_UDP;
            is_udp.then_some(ipv6::HEADER_LEN)?
        }
        false => ipv4::Ipv4Header::from_first_bytes(packet)?.header_len(),
    };
    let behind = packet.get(header_len..)?;
    Some(udp::UdpHeader::from_first_bytes(behind)?.destination_port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::test_machine::TestMachine;

    #[test]
    fn the_interface_with_an_ipv6_address_is_found() {
        let addresses = "00000000000000000000000000000001 01 80 10 80       lo\n\
                         fd000000000000000000000000000001 05 40 00 80     eth1\n\
                         nonsense\n";
        let tree = TestMachine::new(&[("proc/net/if_inet6", addresses)]);
        let of = |ip: &str| interface(tree.root_path(), SOFT, ip.parse().unwrap());
        assert_eq!(of("fd00::1").as_deref(), Some("eth1"));
        assert_eq!(of("::1").as_deref(), Some("lo"));
        assert_eq!(of("fd00::2"), None);
    }
}

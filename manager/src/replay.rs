//! Replays the datagrams or frames of a capture.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use dta_link::{Link, LinkError, PacketConfig, PacketLink, UdpConfig, UdpLink, netstat};
use dta_proto::batch::PacketBatch;
use dta_proto::batch::PushError;
use dta_proto::counter::LinkLoss;
use dta_testbed::capture::{self, CaptureCut, CaptureError, LinkType};

/// What to send from a capture.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// UDP payloads, or whole frames, in file order.
    pub packets: Vec<Vec<u8>>,
    pub read: u64,
    /// Those that are not sent.
    pub skipped: u64,
    /// Where the capture ends early.
    pub cut: Option<CaptureCut>,
}

#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// Datagrams per second; `None` = as fast as the link takes them.
    pub rate: Option<u64>,
    /// How many times to send the whole capture.
    pub times: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayOutcome {
    pub sent: u64,
    /// From the first to the last.
    pub seconds: f64,
    /// Those not sent, by reason.
    pub losses: BTreeMap<&'static str, u64>,
}

/// The payloads of the capture's UDP datagrams to one of `ports`.
pub fn load_datagrams(path: &Path, ports: &[u16]) -> Result<Load, CaptureError> {
    let mut load = Load::default();
    let summary = capture::read(path, |packet| match capture::udp_payload(&packet) {
        Some((flow, payload)) if ports.contains(&flow.dport) => load.packets.push(payload.to_vec()),
        _ => load.skipped += 1,
    })?;
    (load.read, load.cut) = (summary.packets, summary.cut);
    Ok(load)
}

pub fn load_frames(path: &Path) -> Result<Load, CaptureError> {
    let mut load = Load::default();
    let summary = capture::read(path, |packet| {
        if packet.link == LinkType::Ethernet && packet.data.len() as u32 >= packet.original_len {
            load.packets.push(packet.data.to_vec());
        } else {
            load.skipped += 1;
        }
    })?;
    (load.read, load.cut) = (summary.packets, summary.cut);
    Ok(load)
}

/// Sends the payloads to `to`; calls `progress` with the number handled so far.
pub fn send_datagrams(
    load: &Load,
    to: SocketAddrV4,
    options: &ReplayOptions,
    progress: impl FnMut(u64),
) -> Result<ReplayOutcome, LinkError> {
    let mut link = UdpLink::open(&UdpConfig::for_reports(SocketAddr::new(address_towards(to)?, 0), false))?;
    let local = link.local_addr();
    let mut batch = batch_for(load);
    let push = |batch: &mut PacketBatch, payload: &[u8]| batch.push_datagram(local, to, payload, 0);
    let before_batch = || if to.ip().is_loopback() { wait_for_room(to) } else { Ok(()) };
    send(load, options, &mut link, &mut batch, push, before_batch, progress)
}

/// The source address that this host's routes choose for `to`. Connecting a UDP socket sends nothing.
fn address_towards(to: SocketAddrV4) -> Result<IpAddr, LinkError> {
    let route = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(to)?;
        socket.local_addr()
    };
    let found = route().map_err(|source| LinkError::Io { what: format!("no route to {to}"), source })?;
    Ok(found.ip())
}

/// Pauses for a busy receiver on this host: nobody else would notice that its queue overflows.
fn wait_for_room(to: SocketAddrV4) -> Result<(), LinkError> {
    let start = Instant::now();
    while start.elapsed() < LONGEST_WAIT && netstat::socket_backlog(to)?.is_some_and(|bytes| bytes > BACKLOG)
    {
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Sends the frames on `interface`, unchanged; needs CAP_NET_RAW.
pub fn send_frames(
    load: &Load,
    interface: &str,
    options: &ReplayOptions,
    progress: impl FnMut(u64),
) -> Result<ReplayOutcome, LinkError> {
    let mut link = PacketLink::open(&PacketConfig::new(interface, []))?;
    let mut batch = batch_for(load);
    let push = |batch: &mut PacketBatch, frame: &[u8]| batch.push_frame(frame, 0);
    send(load, options, &mut link, &mut batch, push, || Ok(()), progress)
}

/// A batch with room for the longest packet of the capture.
fn batch_for(load: &Load) -> PacketBatch {
    let longest = load.packets.iter().map(Vec::len).max().unwrap_or(0);
    PacketBatch::with_packet_capacity(BATCH, longest + 28)
}

/// Sending pauses while a local receiver's queue holds more bytes than this: half of Linux's default.
const BACKLOG: u64 = 100 << 10;
/// A receiver that takes nothing for this long is no longer waited for.
const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// Datagrams passed to the link at once.
const BATCH: usize = 64;

/// Sends the batches through `link`, paced.
fn send(
    load: &Load,
    options: &ReplayOptions,
    link: &mut impl Link,
    batch: &mut PacketBatch,
    push: impl Fn(&mut PacketBatch, &[u8]) -> Result<(), PushError>,
    before_batch: impl Fn() -> Result<(), LinkError>,
    mut progress: impl FnMut(u64),
) -> Result<ReplayOutcome, LinkError> {
    let start = Instant::now();
    // At low rates a batch would be a burst, so it is never more than 10 ms of datagrams.
    let most = options.rate.map_or(BATCH as u64, |rate| (rate / 100).clamp(1, BATCH as u64));
    let mut handled = 0;
    let mut unfit = 0;
    for _ in 0..options.times {
        for packet in &load.packets {
            if push(batch, packet).is_err() {
                unfit += 1;
            }
            handled += 1;
            if batch.len() as u64 >= most {
                before_batch()?;
                link.send(batch)?;
                progress(handled);
                wait_until_due(start, handled, options.rate);
            }
        }
    }
    link.send(batch)?;
    progress(handled);
    let counters = link.link_counters();
    let mut losses: BTreeMap<_, _> = counters
        .losses_by_reason()
        .into_iter()
        .filter(|(loss, count)| loss.is_unsent() && *count > 0)
        .map(|(loss, count)| (loss.name(), count))
        .collect();
    if unfit > 0 {
        losses.insert(LinkLoss::UnsentMalformed.name(), unfit);
    }
    Ok(ReplayOutcome { sent: counters.sent, seconds: start.elapsed().as_secs_f64(), losses })
}

fn wait_until_due(start: Instant, handled: u64, rate: Option<u64>) {
    let Some(rate) = rate else { return };
    let due = Duration::from_secs_f64(handled as f64 / rate as f64);
    if let Some(wait) = due.checked_sub(start.elapsed()) {
        std::thread::sleep(wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_in_order_as_often_as_asked_and_no_faster() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let SocketAddr::V4(to) = receiver.local_addr().unwrap() else { unreachable!() };
        let load = Load { packets: vec![b"one".to_vec(), b"three".to_vec()], read: 2, ..Load::default() };
        let mut reported = 0;
        let options = ReplayOptions { rate: Some(100), times: 3 };
        let sent = send_datagrams(&load, to, &options, |n| reported = n).unwrap();
        assert_eq!((sent.sent, reported, sent.losses.len()), (6, 6, 0));
        assert!(sent.seconds >= 0.05, "6 datagrams at 100/s took {} s", sent.seconds);
        let mut buffer = [0; 100];
        for n in 0..6 {
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], if n % 2 == 0 { &b"one"[..] } else { b"three" });
        }
    }
}

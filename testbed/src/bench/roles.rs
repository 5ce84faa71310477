//! The processes of the loopback floor: they only receive and forward, or receive and discard, datagrams.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use dta_link::{Link, UdpConfig, UdpLink};
use dta_memory::nic::soft::CounterFile;
use dta_proto::batch::PacketBatch;
use dta_proto::counter::nic;

/// Datagrams received at once, as in the daemons.
const BATCH: usize = 256;

/// Runs as `__sink COUNTERS` or `__forward TO LENGTH` if the arguments say so.
pub fn run_role(arguments: &[String]) -> Option<ExitCode> {
    let result = match arguments {
        [role, counters] if role == "__sink" => run_sink(Path::new(counters)),
        [role, to, length] if role == "__forward" => run_forwarder(to, length),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

fn open() -> anyhow::Result<UdpLink> {
    let link = UdpLink::open(&UdpConfig::for_roce_frames(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()))?;
    println!("{}", serde_json::json!({ "ready": true, "listen": link.local_addr().to_string() }));
    Ok(link)
}

fn run_sink(counters: &Path) -> anyhow::Result<()> {
    let counters = CounterFile::open(Some(counters), "sink", &[nic::RECEIVED.name])?;
    let mut link = open()?;
    let mut batch = PacketBatch::with_packet_capacity(BATCH, 512);
    let mut received = 0;
    loop {
        received += link.recv(&mut batch, Some(Duration::from_millis(100)))? as u64;
        counters.store_value(0, received);
    }
}

/// Sends a datagram of `length` bytes on for each that it receives.
fn run_forwarder(to: &str, length: &str) -> anyhow::Result<()> {
    let to: SocketAddrV4 = to.parse().context("where to forward to")?;
    let payload = vec![0x5a; length.parse().context("length of a datagram")?];
    let mut link = open()?;
    let from = link.local_addr();
    let mut input = PacketBatch::with_packet_capacity(BATCH, 512);
    let mut output = PacketBatch::with_packet_capacity(BATCH, 512);
    loop {
        let received = link.recv(&mut input, Some(Duration::from_millis(100)))?;
        for _ in 0..received {
            output.push_datagram(from, to, &payload, 0)?;
        }
        link.send(&mut output)?;
    }
}

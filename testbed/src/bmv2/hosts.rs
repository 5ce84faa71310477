//! The hosts whose traffic a reporter forwards: interfaces of this machine.

use anyhow::{Context, bail, ensure};
use dta_link::Link;
use dta_link::packet::{PacketConfig, PacketLink};
use dta_proto::batch::PacketBatch;

/// Interfaces that send frames, and count incoming packets.
pub struct Hosts {
    names: Vec<String>,
    links: Vec<PacketLink>,
    batch: PacketBatch,
    /// What had come in before.
    before: Vec<(u64, u64)>,
}

impl Hosts {
    pub fn open(interfaces: &[String]) -> anyhow::Result<Hosts> {
        let link = |name: &String| {
            PacketLink::open(&PacketConfig::new(name, []))
                .with_context(|| format!("cannot send whole frames on {name}"))
        };
        Ok(Hosts {
            links: interfaces.iter().map(link).collect::<anyhow::Result<_>>()?,
            before: interfaces.iter().map(|name| received_counts(name)).collect::<anyhow::Result<_>>()?,
            names: interfaces.to_vec(),
            batch: PacketBatch::with_packet_capacity(1, usize::from(u16::MAX)),
        })
    }

    /// Sends frames, each from its host, counted from 1.
    pub fn send<'a>(&mut self, frames: impl Iterator<Item = (u8, &'a Vec<u8>)>) -> anyhow::Result<()> {
        for (host, frame) in frames {
            let index = usize::from(host).checked_sub(1);
            let host = index.and_then(|index| Some((self.links.get_mut(index)?, &self.names[index])));
            let (link, name) = host.context("there is no such host")?;
            self.batch.push_frame(frame, 0)?;
            let sent = link.send(&mut self.batch);
            ensure!(
                matches!(sent, Ok(1)),
                "cannot send a frame of {} bytes on {name}: is its MTU large enough? {}",
                frame.len(),
                sent.err().map(|error| error.to_string()).unwrap_or_default()
            );
        }
        Ok(())
    }

    /// Packets and bytes received on each since they were opened.
    pub fn received_counts(&self) -> anyhow::Result<Vec<(u64, u64)>> {
        let since = |(name, before): (&String, &(u64, u64))| {
            let now = received_counts(name)?;
            Ok((now.0 - before.0, now.1 - before.1))
        };
        self.names.iter().zip(&self.before).map(since).collect()
    }
}

/// Packets and bytes received on an interface, by the kernel's count. Not from /sys, which shows the interfaces of
/// the namespace in which it was mounted.
pub(super) fn received_counts(interface: &str) -> anyhow::Result<(u64, u64)> {
    const PATH: &str = "/proc/self/net/dev";
    let text = std::fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}"))?;
    let counts = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let mut counts = counts.into_iter().flat_map(str::split_whitespace).map_while(|count| count.parse().ok());
    match (counts.next(), counts.next()) {
        (Some(bytes), Some(packets)) => Ok((packets, bytes)),
        _ => bail!("{PATH} does not have {interface}"),
    }
}

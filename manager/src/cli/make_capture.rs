//! `dta-manager make-capture`.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use dta_cli::CommandStatus;

use dta_cli::number::format_count;
use dta_testbed::capture;
use dta_testbed::traffic::{Synthetic, TrafficShape};

#[derive(Args)]
#[command(after_help = "\
Packets are TCP and UDP over IPv4, with headers only. A few flows are large and most are small, as on real links. The same seed gives the same file.

Examples:
  dta-manager make-capture traffic.pcap
  dta-manager make-capture traffic.pcap --packets 100000 --flows 5000 --seed 7")]
pub(super) struct MakeCapture {
    /// File to write (classic pcap)
    file: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    /// Packets
    #[arg(long, value_name = "N", default_value = "10000", value_parser = clap::value_parser!(u64).range(1..))]
    packets: u64,
    /// Flows to choose from
    #[arg(long, value_name = "N", default_value = "300", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    flows: u32,
    /// Seed of the traffic
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
}

impl MakeCapture {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let write = || -> std::io::Result<usize> {
            let file = if self.force { File::create(&self.file) } else { File::create_new(&self.file) };
            let mut file = BufWriter::new(file?);
            let mut flows = HashSet::new();
            capture::write_header(&mut file)?;
            let shape = TrafficShape { flows: self.flows, exponent: 1.1, seed: self.seed };
            for packet in Synthetic::new(shape).take(self.packets as usize) {
                flows.insert(packet.packet.flow);
                capture::write_packet(&mut file, &packet.packet, packet.time_ns)?;
            }
            file.flush()?;
            Ok(flows.len())
        };
        let flows = match write() {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                anyhow::bail!("{} exists; --force overwrites it", self.file.display())
            }
            written => written.with_context(|| format!("cannot write {}", self.file.display()))?,
        };
        dta_cli::print_line(format_args!(
            "{} of {} {} in {}",
            format_count(self.packets, "packet", "packets"),
            format_count(flows as u64, "flow", "flows"),
            if self.packets == 1 { "is" } else { "are" },
            self.file.display()
        ))?;
        Ok(CommandStatus::Done)
    }
}

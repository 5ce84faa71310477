//! `dta-manager replay`.

use std::io::IsTerminal;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use dta_cli::Status;
use indicatif::{ProgressBar, ProgressStyle};

use crate::replay::{self, Options};

#[derive(Args)]
#[command(after_help = "\
Takes the UDP datagrams of FILE that were addressed to a DTA port and sends their payloads, as they stand, to ADDR:PORT.
A capture that is cut short is sent up to the cut, with a warning.

Examples:
  dta-manager replay reports.pcap --to 127.0.0.1:40040
  dta-manager replay reports.pcapng --to 10.0.0.1:40040 --port 5000 --rate 10000 --loop 100
  dta-manager replay frames.pcap --raw veth0      whole frames, as captured (needs CAP_NET_RAW)")]
pub(super) struct Replay {
    /// Capture to send, pcap or pcapng
    file: PathBuf,
    /// Translator to send to (IPv4)
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "raw")]
    to: Option<SocketAddrV4>,
    /// Destination ports in the capture that carry DTA
    #[arg(long, value_name = "PORT", value_delimiter = ',', default_values_t = [dta_proto::wire::dta::PORT])]
    port: Vec<u16>,
    /// Send all frames of the capture unchanged on this interface instead (AF_PACKET)
    #[arg(long, value_name = "IFACE", conflicts_with_all = ["to", "port"])]
    raw: Option<String>,
    /// Datagrams per second; as fast as possible where not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// How many times to send the whole capture
    #[arg(long = "loop", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
}

impl Replay {
    pub(super) fn run(self) -> anyhow::Result<Status> {
        let load = match self.raw {
            Some(_) => replay::load_frames(&self.file),
            None => replay::load_datagrams(&self.file, &self.port),
        }?;
        if let (0, Some(cut)) = (load.read, &load.cut) {
            anyhow::bail!("{} holds no packet that can be read: it is {cut}", self.file.display());
        }
        if let Some(cut) = &load.cut {
            eprintln!("dta-manager: warning: {} is {cut}; what came before is sent", self.file.display());
        }
        if load.packets.is_empty() {
            anyhow::bail!(
                "{} holds {} packets, none of them UDP to port {}; --port names others",
                self.file.display(),
                load.read,
                self.port.iter().map(u16::to_string).collect::<Vec<_>>().join(" or ")
            );
        }
        let bar = progress(load.packets.len() as u64 * self.times);
        let options = Options { rate: self.rate, times: self.times };
        let sent = match (&self.raw, self.to) {
            (Some(interface), _) => replay::send_frames(&load, interface, &options, |n| bar.set_position(n))
                .with_context(|| format!("cannot send frames on {interface}"))?,
            (None, Some(to)) => replay::send_datagrams(&load, to, &options, |n| bar.set_position(n))
                .with_context(|| format!("cannot send to {to}"))?,
            (None, None) => unreachable!("clap asks for --to or --raw"),
        };
        bar.finish_and_clear();
        let seconds = sent.seconds.max(1e-9);
        dta_cli::print(format_args!(
            "{} of {} datagrams sent in {:.3} s ({:.0}/s); {} packets of the capture were not for {}",
            sent.sent,
            load.packets.len() as u64 * self.times,
            seconds,
            sent.sent as f64 / seconds,
            load.skipped,
            if self.raw.is_some() { "sending" } else { "these ports" },
        ))?;
        for (reason, count) in &sent.losses {
            dta_cli::print(format_args!("  not sent, {reason}: {count}"))?;
        }
        Ok(if sent.losses.is_empty() { Status::Done } else { Status::Failed })
    }
}

/// A progress bar on a terminal, nothing elsewhere.
pub(super) fn progress(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{msg:12} [{bar:30}] {human_pos}/{human_len} {per_sec} {eta}";
    let style = ProgressStyle::with_template(style).expect("the template is well-formed");
    ProgressBar::new(total).with_style(style.progress_chars("=> "))
}

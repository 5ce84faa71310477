//! `dta-manager replay`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use dta_cli::CommandStatus;
use dta_cli::number::{format_count, format_grouped, format_short};
use dta_cli::output::OutputFlag;
use dta_files::host;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::replay::{self, ReplayOptions};

#[derive(Args)]
#[command(after_help = "\
Sends the payloads of the UDP datagrams in FILE that were addressed to a DTA port, unchanged, to HOST:PORT. A truncated capture is sent up to the cut, with a warning.

Examples:
  dta-manager replay reports.pcap --translator 127.0.0.1:40040
  dta-manager replay reports.pcapng --translator tor1.example:40040 \\
      --port 5000 --rate 10000 --loop 100
  dta-manager replay frames.pcap --raw veth0      whole frames (CAP_NET_RAW)")]
pub(super) struct Replay {
    /// Capture to send: pcap or pcapng, also packed with gzip
    file: PathBuf,
    /// Translator to send to (IPv4)
    #[arg(long = "translator", alias = "to", value_name = "HOST:PORT", value_parser = host::socket_v4, required_unless_present = "raw")]
    to: Option<SocketAddrV4>,
    /// Destination ports in the capture that carry DTA
    #[arg(long, value_name = "PORT", value_delimiter = ',', default_values_t = [dta_proto::wire::dta::PORT])]
    port: Vec<u16>,
    /// Instead, send all frames of the capture unchanged on this interface (AF_PACKET)
    #[arg(long, value_name = "IFACE", conflicts_with_all = ["to", "port"])]
    raw: Option<String>,
    /// Datagrams per second [default: as fast as possible]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// How many times to send the whole capture
    #[arg(long = "loop", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,
    #[command(flatten)]
    output: OutputFlag,
}

#[derive(Serialize)]
struct ReplayResult {
    sent: u64,
    /// How many were to be sent.
    of: u64,
    /// Duration in seconds.
    seconds: f64,
    /// Packets of the capture that were not to be sent.
    skipped: u64,
    /// How many were not sent, by reason.
    lost: BTreeMap<String, u64>,
}

impl Replay {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let load = match self.raw {
            Some(_) => replay::load_frames(&self.file),
            None => replay::load_datagrams(&self.file, &self.port),
        }?;
        if let (0, Some(cut)) = (load.read, &load.cut) {
            anyhow::bail!("{} holds no readable packet: it is {cut}", self.file.display());
        }
        if let Some(cut) = &load.cut {
            eprintln!(
                "dta-manager: warning: {} is {cut}; sending what comes before the cut",
                self.file.display()
            );
        }
        if load.packets.is_empty() {
            anyhow::bail!(
                "{} holds {}, none of them UDP to port {}; give others with --port",
                self.file.display(),
                format_count(load.read, "packet", "packets"),
                self.port.iter().map(u16::to_string).collect::<Vec<_>>().join(" or ")
            );
        }
        if let Some(to) = self.to
            && dta_link::netstat::is_nobody_at(to)
        {
            eprintln!(
                "dta-manager: warning: nothing is listening at {to}, so everything is lost: is a translator running there (dta-translator run)?"
            );
        }
        let bar = progress_bar(load.packets.len() as u64 * self.times);
        let options = ReplayOptions { rate: self.rate, times: self.times };
        let sent = match (&self.raw, self.to) {
            (Some(interface), _) => replay::send_frames(&load, interface, &options, |n| bar.set_position(n))
                .with_context(|| format!("cannot send frames on {interface}"))?,
            (None, Some(to)) => replay::send_datagrams(&load, to, &options, |n| bar.set_position(n))
                .with_context(|| format!("cannot send to {to}"))?,
            (None, None) => unreachable!("clap asks for --translator or --raw"),
        };
        bar.finish_and_clear();
        let done = ReplayResult {
            sent: sent.sent,
            of: load.packets.len() as u64 * self.times,
            seconds: sent.seconds,
            skipped: load.skipped,
            lost: sent.losses.iter().map(|(reason, count)| (reason.to_string(), *count)).collect(),
        };
        let others = if self.raw.is_some() { "not for sending" } else { "not for these ports" };
        self.output.print_document(&done, |done| describe_result(done, others))?;
        Ok(if sent.losses.is_empty() { CommandStatus::Done } else { CommandStatus::Failed })
    }
}

fn describe_result(done: &ReplayResult, others: &str) -> String {
    let rate = format_short(done.sent as f64 / done.seconds.max(1e-9));
    let (sent, of) = (format_grouped(done.sent), format_count(done.of, "datagram", "datagrams"));
    let mut lines = vec![format!("{sent} of {of} sent in {:.3} s ({rate}/s)", done.seconds)];
    if done.skipped > 0 {
        lines.push(format!(
            "{} {others}",
            format_count(done.skipped, "packet of the capture was", "packets of the capture were")
        ));
    }
    lines.extend(
        done.lost.iter().map(|(reason, count)| format!("  not sent, {reason}: {}", format_grouped(*count))),
    );
    lines.join("\n")
}

/// A progress bar on a terminal, nothing elsewhere.
pub(super) fn progress_bar(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{msg:12} [{bar:30}] {human_pos}/{human_len} {rate} {eta}";
    let style = ProgressStyle::with_template(style).expect("the template is well-formed").with_key(
        "rate",
        |state: &ProgressState, text: &mut dyn std::fmt::Write| {
            let _ = write!(text, "{}/s", format_short(state.per_sec()));
        },
    );
    ProgressBar::new(total).with_style(style.progress_chars("=> "))
}

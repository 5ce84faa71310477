//! Arguments.

use std::net::SocketAddrV4;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use dta_cli::output::OutputFormat;
use dta_files::host;
use dta_link::fault::Faults;
use dta_proto::wire::dta::{PORT, Version};

use super::check::StoreArg;
use super::report::ReportArgs;

#[derive(Debug, Parser)]
#[command(
    name = "dta-reporter",
    version,
    about = "Report to a collector through a DTA translator",
    propagate_version = false,
    after_help = "\
Examples:
  dta-reporter send key-write --store flows --value 1500 \\
      --key '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-reporter points"
)]
pub(super) struct ReporterCli {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Send reports
    #[command(after_help = SEND_HELP)]
    Send(Box<Send>),
    /// List the points at which this kernel can trace packets, and why others are unavailable
    #[cfg(all(feature = "ebpf", target_os = "linux"))]
    #[command(after_help = super::trace::POINTS_HELP)]
    Points(super::trace::Points),
    /// Trace packets through this host: where they spend time, and where they are dropped
    #[cfg(all(feature = "ebpf", target_os = "linux"))]
    #[command(after_help = super::trace::TRACE_HELP)]
    Trace(Box<super::trace::TracerArgs>),
    /// Trace this host continuously; points and filters change over gRPC
    #[cfg(all(feature = "ebpf", target_os = "linux"))]
    #[command(after_help = super::agent::AGENT_HELP)]
    Agent(super::agent::AgentArgs),
    /// Check an agent's configuration
    #[cfg(all(feature = "ebpf", target_os = "linux"))]
    #[command(after_help = super::agent::CHECK_HELP)]
    CheckConfig(super::agent::ConfigFile),
    /// Print an example configuration of an agent
    #[cfg(all(feature = "ebpf", target_os = "linux"))]
    #[command(after_help = super::agent::CONFIG_HELP)]
    Config(dta_cli::program::Example),
    #[command(flatten)]
    Common(dta_cli::program::Common),
}

const SEND_HELP: &str = "\
Values are numbers (4 bytes each, big-endian) or 0x and hex digits in groups of 8; several are joined by \
commas. A key is a flow such as 10.0.0.1:5000->10.0.0.2:5000/udp, or up to 32 hex digits.

Examples:
  The last value of a flow, into the store `flows`:
    dta-reporter send key-write --store flows --value 1500 \\
        --key '10.0.0.1:5000->10.0.0.2:5000/udp'
  A thousand keys at 1,000 a second, retransmitted if the translator misses one:
    dta-reporter send key-write --key 0a000000 --value 7 --vary key \\
        --count 1000 --rate 1000 --retransmittable
  An entry of 16 bytes at the end of list 3 of store 3:
    dta-reporter send append --store 3 --list 3 --value 1,2,3,0xdeadbeef
  1,500 bytes more for a flow:
    dta-reporter send key-increment --delta 1500 \\
        --key '10.0.0.1:5000->10.0.0.2:5000/udp'
  The third of five hops of a path (hops count from 0):
    dta-reporter send postcarding --hop 2 --path-length 5 --value 103 \\
        --key '10.0.0.1:5000->10.0.0.2:5000/udp'
  One column of a sketch with 3 rows:
    dta-reporter send sketch-merge --epoch 1 --column 17 --cells 12,40,8
  Many reports, one JSON object per line:
    echo '{\"primitive\":\"append\",\"list\":2,\"value\":[1,2,3,4]}' |
        dta-reporter send --file -
  As older reporters send (version 0: 4-byte keys and values, no store):
    dta-reporter send key-write --dta-version 0 --key 0a0b0c0d --value 7";

const FILE_HELP: &str = "\
Send the reports of a file, one JSON object per line; - reads standard input

Fields are primitive, store, and those of the primitive as the options are called with _ for -: key, value, list, delta, hop, path_length, epoch, \
column, cells, redundancy; and immediate, retransmittable. value and cells are a number, a list of \
numbers, or \"0x…\". An invalid line is reported by its number; the others are sent.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = false, subcommand_negates_reqs = true)]
pub(super) struct Send {
    #[command(subcommand)]
    pub(super) report: Option<ReportArgs>,

    #[arg(long, value_name = "FILE", required = true, help = FILE_HELP.split("\n\n").next(), long_help = FILE_HELP)]
    pub(super) file: Option<PathBuf>,

    /// The translator's address and port
    #[arg(long = "translator", alias = "to", global = true, env, value_name = "HOST:PORT", value_parser = host::socket_v4, default_value_t = SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, PORT))]
    pub(super) to: SocketAddrV4,

    /// Address and port to send from, which also receives NACKs. Default: the address chosen by the host's
    /// routes, and any port
    #[arg(long, global = true, env, value_name = "HOST:PORT", value_parser = host::socket_v4)]
    pub(super) from: Option<SocketAddrV4>,

    /// This reporter's id: the translator distinguishes reporters by it
    #[arg(long, global = true, env, value_name = "ID", default_value_t = 0)]
    pub(super) reporter_id: u16,

    /// The store, by name or id [default: the only one of the report's kind that the collector has]
    #[arg(long, global = true, value_name = "NAME|ID")]
    pub(super) store: Option<StoreArg>,

    /// The collector's gRPC address: before sending, it is asked whether it has the store and the reports fit
    /// [default: 127.0.0.1:40050, if a collector is there]
    #[arg(long, global = true, env, value_name = "HOST:PORT")]
    pub(super) collector: Option<String>,

    /// Send without asking the collector, and without checking for a listener
    #[arg(long, global = true)]
    pub(super) unchecked: bool,

    /// Version of the report format
    #[arg(long, global = true, value_name = "0|1", default_value = "1", value_parser = parse_version)]
    pub(super) dta_version: Version,

    /// How many times to send the report
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    pub(super) count: u64,

    /// With --count, what to increment in each further report: the key's or the value's first 4 bytes, as a
    /// big-endian number
    #[arg(long, global = true, value_name = "WHAT", value_enum)]
    pub(super) vary: Option<Vary>,

    /// Reports per second; 0 = as fast as possible
    #[arg(long, global = true, value_name = "N", default_value_t = 0.0, value_parser = parse_rate)]
    pub(super) rate: f64,

    /// Keep reports and retransmit them when the translator misses them
    #[arg(long, global = true)]
    pub(super) retransmittable: bool,

    /// Wake a reader now; only lists marked notify can: for other stores the report is written as usual, and
    /// the translator counts the request
    #[arg(long, global = true)]
    pub(super) immediate: bool,

    /// Number of retransmittable reports to keep
    #[arg(long, global = true, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(super) backup: u32,

    /// Milliseconds to wait for NACKs after the last report [default: 1000 with retransmittable
    /// reports, else 0]
    #[arg(long, global = true, value_name = "MS")]
    pub(super) linger: Option<u64>,

    /// Faults on the way out, for tests: drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01 (corrupt
    /// needs CAP_NET_RAW)
    #[arg(long, global = true, value_name = "FAULTS", default_value = "none")]
    pub(super) faults: Faults,

    /// Seed for the faults
    #[arg(long, global = true, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// Output format
    #[arg(long, short, global = true, env, value_enum, default_value_t)]
    pub(super) output: OutputFormat,

    /// Print only errors
    #[arg(long, short, global = true, conflicts_with = "output")]
    pub(super) quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Vary {
    Key,
    Value,
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text {
        "0" => Ok(Version::V0),
        "1" => Ok(Version::V1),
        _ => Err("there are versions 0 and 1".into()),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if rate >= 0.0 && rate.is_finite() { Ok(rate) } else { Err("give a number from 0 on".into()) }
}

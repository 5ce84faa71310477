//! `dta-manager simulate`.

use clap::{Args, Subcommand};
use dta_cli::CommandStatus;
use dta_cli::number::{format_count, format_grouped};
use dta_cli::output::OutputFlag;
use dta_cli::table::TextTable;
use dta_files::size;

use crate::simulate::{self, Beside, ClusterShape, Simulated};

#[derive(Args)]
#[command(after_help = "\
Examples:
  dta-manager simulate placement                  100 collectors, 1,000 events")]
pub(super) struct Simulate {
    #[command(subcommand)]
    what: SimulateCommand,
}

#[derive(Subcommand)]
enum SimulateCommand {
    /// Which buckets move, and how even the load stays, while collectors come and go
    Placement(PlacementArgs),
}

#[derive(Args)]
#[command(after_help = "\
Collectors join (half of the events), leave after being drained, or die. Each placement is the planner's; its moves and load stand beside the best that whole buckets allow. The same seed gives the same events.

Examples:
  dta-manager simulate placement
  dta-manager simulate placement --collectors 16 --events 5000 --copies 2
  dta-manager simulate placement --memory 64GiB,256GiB --seed 7 -o json")]
struct PlacementArgs {
    /// Collectors at the beginning; later half to one and a half times as many
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u16).range(1..=1000))]
    collectors: u16,
    /// Collectors that join, leave or die, one after the other
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(u32).range(1..))]
    events: u32,
    /// Copies of each key, at different collectors
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=i64::from(dta_proto::store::MAX_REDUNDANCY)))]
    copies: u8,
    /// Zones that the collectors are in, in turn
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..))]
    zones: u16,
    /// Free memory of a collector, one of these by chance
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "256GiB", value_parser = size::parse_size)]
    memory: Vec<u64>,
    /// Seed of the events
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    output: OutputFlag,
}

impl Simulate {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let SimulateCommand::Placement(wanted) = self.what;
        let shape = ClusterShape {
            collectors: wanted.collectors.into(),
            events: wanted.events as usize,
            copies: wanted.copies.into(),
            zones: wanted.zones.into(),
            memory: wanted.memory,
            seed: wanted.seed,
        };
        wanted.output.print_document(&simulate::run(&shape), describe_result)?;
        Ok(CommandStatus::Done)
    }
}

fn describe_result(simulated: &Simulated) -> String {
    let Simulated { collectors, joins, leaves, deaths, .. } = simulated;
    let count = |n: usize, one: &str, many: &str| format_count(n as u64, one, many);
    let mut table = TextTable::new(&["", "was", "ideal"], &[1, 2]);
    for (what, Beside { was, ideal }) in
        [("copies of buckets that moved", simulated.moved), ("at the worst event", simulated.most_moved)]
    {
        table.add_row([what.into(), format_grouped(was as u64), format_grouped(ideal as u64)]);
    }
    for (what, Beside { was, ideal }) in
        [("highest load / share, mean", simulated.load), ("at the worst placement", simulated.worst_load)]
    {
        table.add_row([what.into(), format!("{was:.3}"), format!("{ideal:.3}")]);
    }
    format!(
        "{}, {} and {}; then {}\n\n{table}\n\n{} with two copies in one zone",
        count(*joins, "join", "joins"),
        count(*leaves, "leave", "leaves"),
        count(*deaths, "death", "deaths"),
        count(*collectors, "collector", "collectors"),
        count(simulated.together, "bucket", "buckets"),
    )
}

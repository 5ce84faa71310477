//! `dta-manager alerts-truth`.

use std::path::PathBuf;

use clap::Args;
use dta_cli::CommandStatus;
use dta_testbed::scenario::AlertTruth;

#[derive(Args)]
#[command(after_help = "\
The network of `dta-manager demo` runs for hours of simulated time: an hour in which nothing goes wrong, then an episode every ten minutes: those that are 20 % below and above a limit, and each kind (flood, scan, blackhole, …) in its usual size. The translator's decoders and rules read what its devices send, and the collector's default rules are evaluated on what they make of it.

A table says for each rule which share of its episodes it found (recall), which share of its alerts was about something (precision), and how many windows after its beginning an episode was found (median, and the longest). docs/alerts.md keeps the table.

Exit status 4 if an episode was missed or an alert was false.

Examples:
  dta-manager alerts-truth
  dta-manager alerts-truth --seeds 10
  dta-manager alerts-truth --pcap traffic.pcap")]
pub(super) struct AlertsTruthArgs {
    /// Runs, each with another seed: 8.8 hours of simulated time
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// A capture whose traffic is replayed beside that of the network, again and again
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

impl AlertsTruthArgs {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let bar = super::replay::progress_bar(0);
        bar.set_message("seconds of a run");
        let truth = AlertTruth::measure(1..=self.seeds, self.pcap.as_deref(), |elapsed, length| {
            bar.set_length(length.as_secs());
            bar.set_position(elapsed.as_secs());
        });
        bar.finish_and_clear();
        let truth = truth?;
        dta_cli::print_line(truth.render())?;
        Ok(CommandStatus::from_check(truth.is_perfect()))
    }
}

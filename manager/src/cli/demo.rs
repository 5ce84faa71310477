//! `dta-manager demo`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use dta_cli::CommandStatus;
use dta_cli::number::{format_bytes, format_count};
use dta_files::moment;
use dta_testbed::daemons::ANY_PORT;
use dta_testbed::folder::Folder;
use dta_testbed::processes::unless_ended;
use dta_testbed::scenario::{Episode, LiveNetwork, Scenario, page_view, tracked_flow};

#[derive(Args)]
#[command(after_help = "\
Eight leaves, four spines and a hundred hosts are simulated; all behind them is real. Leaves export NetFlow of the traffic that enters there; switches report paths, queues, latencies and drops by INT, and damaged packets by sFlow. A translator takes it all and writes it by RDMA (a software NIC here) into the memory of a collector, whose page shows it.

Every six seconds something goes wrong for eight seconds, one of each in turn:
  elephant, blackhole, flapping path, SYN flood, slow hop, DNS amplification,
  microburst, port scan, routing loop, host scan, lossy link, dropped flow,
  denied traffic, dead exporter
It is printed when it begins, with the address of what shows it; and so are the alerts by which the collector finds it.

No privilege is needed, and only loopback is used. Ctrl-C ends it; files, in shared memory, are removed. The same seed gives the same traffic.

Examples:
  dta-manager demo
  dta-manager demo --for 5m
  dta-manager demo --listen 127.0.0.1:40050     where dta-collector looks
  dta-manager demo --keep demo-files            leave memory and logs there")]
pub(super) struct Demo {
    /// End after this time [default: at Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = dta_files::span::parse_duration)]
    length: Option<Duration>,
    /// Seed of traffic and of what goes wrong
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Loopback address of the collector's gRPC [default: a free port]
    #[arg(long, value_name = "ADDR:PORT", default_value_t = ANY_PORT, hide_default_value = true)]
    listen: SocketAddr,
    /// Write memory, configurations and logs into this directory, and leave them there
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Without `--for`, nothing goes wrong after this time.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

impl Demo {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // A signal is how it usually ends.
        let played = runtime.block_on(unless_ended(self.run_network())).context("cannot wait for signals")?;
        played.unwrap_or(Ok(()))?;
        Ok(CommandStatus::Done)
    }

    async fn run_network(&self) -> anyhow::Result<()> {
        let length = self.length.unwrap_or(LONGEST);
        let temporary;
        let folder = match &self.keep {
            Some(folder) => {
                let failed = || format!("cannot make {}", folder.display());
                std::fs::create_dir_all(folder).with_context(failed)?;
                folder.as_path()
            }
            None => {
                temporary = Folder::new().context("cannot make a folder for files")?;
                temporary.folder_path()
            }
        };
        dta_cli::print_line("Starting a collector and a translator …")?;
        let episodes = Episode::demonstration(self.seed, length);
        let scenario = Scenario::new(self.seed, episodes, moment::now_ns());
        let mut network = LiveNetwork::start(scenario, self.listen, folder).await?;
        print_introduction(&network)?;
        let page = network.page_url()?.to_owned();
        let mut begun = 0;
        while network.scenario.elapsed() < length {
            network.play_tick().await?;
            let scenario = &network.scenario;
            while let Some(episode) = scenario.episodes().get(begun)
                && episode.start < scenario.elapsed()
            {
                print_episode(episode, &page)?;
                begun += 1;
            }
            if scenario.elapsed().subsec_nanos() == 0 {
                for alert in network.fetch_fired_alerts().await? {
                    dta_cli::print_line(format_args!("        alert {}: {}", alert.rule, alert.text))?;
                }
            }
        }
        let truth = network.scenario.truth();
        dta_cli::print_line(format_args!(
            "Sent: {} of {}, {}.",
            format_count(truth.all.records, "flow record", "flow records"),
            format_bytes(truth.all.bytes),
            format_count(truth.int_reports, "INT report", "INT reports"),
        ))?;
        Ok(())
    }
}

fn print_introduction(network: &LiveNetwork) -> anyhow::Result<()> {
    let page = network.page_url()?;
    let flow = tracked_flow().to_string();
    dta_cli::print_line(format_args!(
        "A network of 12 switches reports, until Ctrl-C. Open {page}, and look at\n  \
         who sends most     {page}{}\n  \
         a flow's path      {page}{}\n  \
         drops, and why     {page}{}\n\
         or, in another terminal,\n  \
         dta-collector dashboard --collector {}\n\
         (where it is not installed: cargo run --release -p dta-collector -- dashboard …)\n\n\
         What goes wrong meanwhile:",
        page_view("flows", &[("span", "5m"), ("group", "src,dst")]),
        page_view("flow", &[("flow", &flow)]),
        page_view("drops", &[]),
        network.collector_address()?,
    ))?;
    Ok(())
}

fn print_episode(episode: &Episode, page: &str) -> anyhow::Result<()> {
    let seconds = episode.start.as_secs();
    dta_cli::print_line(format_args!(
        "{:>3}:{:02}  {}\n        {page}{}",
        seconds / 60,
        seconds % 60,
        episode.describe(),
        episode.page_view()
    ))?;
    Ok(())
}

//! `dta-collector dashboard`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dta_cli::CommandStatus;
use dta_rpc::collector::RemoteCollector;
use dta_views::dashboard::{self, DataSource};

use super::client_flags::ClientFlags;
use crate::answers::Memory;
use crate::cli::names_flag::NamesFlag;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  dta-collector dashboard
  dta-collector dashboard --collector 10.0.0.5:40050,10.0.0.7:40050
  dta-collector dashboard --cluster etcd://10.0.0.1:2379
  dta-collector dashboard --memory /dev/shm/dta-collector

Of several collectors it shows everything as one; memory is read from one at a time.

With --memory it reads the region files directly, even if their collector is not running.

Keys are listed at the bottom of every page; ? explains them and the page; q quits. NO_COLOR=1 turns colours off. docs/dashboard.md has pictures.")]
pub(in crate::cli) struct Args {
    /// Read a memory directory instead of asking a collector
    #[arg(long, value_name = "DIR")]
    memory: Option<PathBuf>,
    /// Milliseconds between refreshes
    #[arg(long, default_value_t = 500, value_name = "MS", value_parser = clap::value_parser!(u64).range(50..=60_000))]
    interval: u64,
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let names = args.names.read()?;
    let interval = Duration::from_millis(args.interval);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let source = match (&args.memory, args.client.collectors_title()) {
            (Some(dir), _) => {
                let memory = Memory::open(dir)?;
                DataSource::from_ask(Arc::new(memory), format!("memory {}", dir.display()), false)
            }
            (None, Some(title)) => {
                DataSource::from_ask(Arc::new(args.client.connect_all().await?), title, true)
            }
            (None, None) => {
                let options = args.client.client_options()?;
                // Lazy, so that the dashboard survives a restart of the collector; but if it was never there,
                // that is reported at once.
                RemoteCollector::connect(&options).await?;
                DataSource::from_collector(RemoteCollector::connect_lazy(&options)?, &options.address)
            }
        };
        dashboard::run(source.with_names(names), interval).await?;
        anyhow::Ok(())
    })?;
    Ok(CommandStatus::Done)
}

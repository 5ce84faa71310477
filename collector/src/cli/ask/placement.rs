//! `dta-collector placement`

use std::collections::BTreeMap;

use clap::Subcommand;
use dta_cli::Status;
use dta_cli::number::{bytes, counted};
use dta_cli::output::OutputFlag;
use dta_cli::table::Table;
use dta_cluster::{Collector, View};
use dta_proto::placement::Placement;
use serde::Serialize;

use super::cluster_flag::ClusterFlag;

#[derive(clap::Args)]
#[command(after_help = "Example:\n  dta-collector placement show --cluster etcd://10.0.0.1:2379")]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show which collectors there are, and what each has
    #[command(after_help = "Example:\n  dta-collector placement show --cluster etcd://10.0.0.1:2379")]
    Show(Show),
    /// Move everything off a collector before it is removed
    #[command(after_help = "\
Stores with epochs move when their next epochs begin. The collector stays in the cluster, with nothing, until it stops.

Examples:
  dta-collector placement drain c3 --cluster etcd://10.0.0.1:2379
  dta-collector placement drain c3 --undo --cluster etcd://10.0.0.1:2379")]
    Drain(Drain),
    /// Place everything anew, in one range for each collector
    #[command(after_help = "\
Without it, only as much moves as must, so that ranges become short; a switch takes a row for each.

Example:
  dta-collector placement rebalance --cluster etcd://10.0.0.1:2379")]
    Rebalance(Show),
}

#[derive(clap::Args)]
struct Show {
    #[command(flatten)]
    cluster: ClusterFlag,
    #[command(flatten)]
    output: OutputFlag,
}

#[derive(clap::Args)]
struct Drain {
    /// The collector's id
    id: String,
    /// Let it have something again
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    cluster: ClusterFlag,
    #[command(flatten)]
    output: OutputFlag,
}

/// What `show` prints.
#[derive(Serialize)]
struct Shown<'a> {
    version: u64,
    /// By id. One that is gone, and still has something, has no collector.
    collectors: BTreeMap<&'a str, Part<'a>>,
}

#[derive(Serialize)]
struct Part<'a> {
    collector: Option<&'a Collector>,
    drained: bool,
    /// By copy, of the keys' 256 buckets.
    buckets: Vec<String>,
    lists: &'a [dta_proto::list_range::ListRange],
}

/// What `drain` prints.
#[derive(Serialize)]
struct Drained {
    id: String,
    drained: bool,
}

/// What `rebalance` prints.
#[derive(Serialize)]
struct Rebalanced {
    version: u64,
    /// Copies of buckets that moved.
    moved: usize,
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    match args.command {
        Command::Show(Show { cluster, output }) => {
            let view = super::block_on(async { Ok(dta_cluster::read(&cluster.required()?).await?) })?;
            output.print(&shown(&view), table)?;
        }
        Command::Drain(Drain { id, undo, cluster, output }) => {
            super::block_on(async {
                let config = cluster.required()?;
                let view = dta_cluster::read(&config).await?;
                anyhow::ensure!(
                    view.collectors.contains_key(&id) || view.drained.contains(&id),
                    "there is no collector {id:?}; there are {}",
                    view.collectors.keys().cloned().collect::<Vec<_>>().join(", ")
                );
                Ok(dta_cluster::drain(&config, &id, !undo).await?)
            })?;
            output.print(&Drained { id, drained: !undo }, |drained| match drained.drained {
                true => format!("{} is to have nothing", drained.id),
                false => format!("{} may have something again", drained.id),
            })?;
        }
        Command::Rebalance(Show { cluster, output }) => {
            let [before, after] =
                super::block_on(async { Ok(dta_cluster::rebalance(&cluster.required()?).await?) })?;
            let done = Rebalanced { version: after.version, moved: after.moved_since(&before) };
            output.print(&done, |done| {
                let moved = counted(done.moved as u64, "bucket moves", "buckets move");
                format!("placement {}: {moved}", done.version)
            })?;
        }
    }
    Ok(Status::Done)
}

fn shown(view: &View) -> Shown<'_> {
    let View { collectors, drained, placement, .. } = view;
    let Placement { version, keys, lists, .. } = placement;
    let have = keys.iter().flat_map(BTreeMap::keys).chain(lists.keys());
    let part = |id: &'_ str| Part {
        collector: collectors.get(id),
        drained: drained.contains(id),
        buckets: (0..keys.len()).map(|copy| placement.buckets(copy, id).to_string()).collect(),
        lists: lists.get(id).map_or(&[], Vec::as_slice),
    };
    let ids = collectors.keys().chain(have).map(String::as_str);
    Shown { version: *version, collectors: ids.map(|id| (id, part(id))).collect() }
}

fn table(shown: &Shown<'_>) -> String {
    let mut table =
        Table::new(&["collector", "address", "zone", "memory", "state", "buckets", "lists"], &[3]);
    for (id, part) in &shown.collectors {
        let state = match (part.collector, part.drained) {
            (None, _) => "gone",
            (Some(_), true) => "drained",
            (Some(_), false) => "there",
        };
        let of = |say: fn(&Collector) -> String| part.collector.map_or_else(|| "-".to_owned(), say);
        let lists = part.lists.iter().map(|range| {
            let last = range.end().saturating_sub(1);
            format!("{} {}-{last}", range.store, range.first)
        });
        table.row([
            (*id).to_owned(),
            of(|collector| collector.address.clone()),
            of(|collector| collector.zone.clone()),
            of(|collector| bytes(collector.free_memory)),
            state.to_owned(),
            part.buckets.join(" / "),
            lists.collect::<Vec<_>>().join(", "),
        ]);
    }
    format!("placement {}\n{table}", shown.version)
}

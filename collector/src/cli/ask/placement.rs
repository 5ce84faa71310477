//! `dta-collector placement`

use std::collections::BTreeMap;

use clap::Subcommand;
use dta_cli::CommandStatus;
use dta_cli::number::{format_bytes, format_count};
use dta_cli::output::OutputFlag;
use dta_cli::table::TextTable;
use dta_cluster::{CollectorRecord, View};
use dta_proto::placement::ClusterPlacement;
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
struct PlacementOverview<'a> {
    version: u64,
    /// By id. If one is gone but still holds something, its `collector` is `None`.
    collectors: BTreeMap<&'a str, CollectorHoldings<'a>>,
}

#[derive(Serialize)]
struct CollectorHoldings<'a> {
    collector: Option<&'a CollectorRecord>,
    drained: bool,
    /// For each copy, its share of the keys' 256 buckets.
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
    /// How many copies of buckets moved.
    moved: usize,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    match args.command {
        Command::Show(Show { cluster, output }) => {
            let view = super::block_on(async { Ok(dta_cluster::read(&cluster.required_config()?).await?) })?;
            output.print_document(&placement_overview(&view), render_table)?;
        }
        Command::Drain(Drain { id, undo, cluster, output }) => {
            super::block_on(async {
                let config = cluster.required_config()?;
                let view = dta_cluster::read(&config).await?;
                anyhow::ensure!(
                    view.collectors.contains_key(&id) || view.drained.contains(&id),
                    "there is no collector {id:?}; there are {}",
                    view.collectors.keys().cloned().collect::<Vec<_>>().join(", ")
                );
                Ok(dta_cluster::set_drained(&config, &id, !undo).await?)
            })?;
            output.print_document(&Drained { id, drained: !undo }, |drained| match drained.drained {
                true => format!("{} is being drained", drained.id),
                false => format!("{} is no longer drained", drained.id),
            })?;
        }
        Command::Rebalance(Show { cluster, output }) => {
            let [before, after] =
                super::block_on(async { Ok(dta_cluster::rebalance(&cluster.required_config()?).await?) })?;
            let done = Rebalanced { version: after.version, moved: after.moved_since(&before) };
            output.print_document(&done, |done| {
                let moved = format_count(done.moved as u64, "bucket moves", "buckets move");
                format!("placement {}: {moved}", done.version)
            })?;
        }
    }
    Ok(CommandStatus::Done)
}

fn placement_overview(view: &View) -> PlacementOverview<'_> {
    let View { collectors, drained, placement, .. } = view;
    let ClusterPlacement { version, keys, lists, .. } = placement;
    let have = keys.iter().flat_map(BTreeMap::keys).chain(lists.keys());
    let part = |id: &'_ str| CollectorHoldings {
        collector: collectors.get(id),
        drained: drained.contains(id),
        buckets: (0..keys.len()).map(|copy| placement.buckets_of_copy(copy, id).to_string()).collect(),
        lists: lists.get(id).map_or(&[], Vec::as_slice),
    };
    let ids = collectors.keys().chain(have).map(String::as_str);
    PlacementOverview { version: *version, collectors: ids.map(|id| (id, part(id))).collect() }
}

fn render_table(shown: &PlacementOverview<'_>) -> String {
    let mut table =
        TextTable::new(&["collector", "address", "zone", "memory", "state", "buckets", "lists"], &[3]);
    for (id, part) in &shown.collectors {
        let state = match (part.collector, part.drained) {
            (None, _) => "gone",
            (Some(_), true) => "drained",
            (Some(_), false) => "there",
        };
        let of = |say: fn(&CollectorRecord) -> String| part.collector.map_or_else(|| "-".to_owned(), say);
        let lists = part.lists.iter().map(|range| {
            let last = range.end_of_lists().saturating_sub(1);
            format!("{} {}-{last}", range.store, range.first)
        });
        table.add_row([
            (*id).to_owned(),
            of(|collector| collector.address.clone()),
            of(|collector| collector.zone.clone()),
            of(|collector| format_bytes(collector.free_memory)),
            state.to_owned(),
            part.buckets.join(" / "),
            lists.collect::<Vec<_>>().join(", "),
        ]);
    }
    format!("placement {}\n{table}", shown.version)
}

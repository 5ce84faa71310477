//! `dta-collector stores`

use dta_cli::CommandStatus;
use dta_cli::number::{format_bytes, format_grouped, format_percent};
use dta_cli::table::TextTable;
use dta_proto::control::{self, StoreInfo};
use dta_proto::store::StoreSpec;
use dta_rpc::event_rings::{self, WrappedRing};
use serde::Serialize;

use super::client_flags::ClientFlags;

#[derive(clap::Args)]
#[command(after_help = "\
\"used\" is the number of keys, counted in a store of up to 16 MiB and estimated from a sample of a larger one; \"load\" is keys per slot (of lists and sketches: batches or columns in use). \"survival\" is the share of keys that are still there (of counters: whose count is exact). \"N\" is the number of copies of a key. More copies help only while load times copies is below 0.69; \"advised\" is the best number at this load. \"here\" is the part of a shared store that this collector has, or that all collectors named with --collector have together.

Examples:
  dta-collector stores
  dta-collector stores -o wide    with layout, capacity, memory, what is here")]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Serialize)]
struct StoreRow {
    #[serde(flatten)]
    spec: StoreSpec,
    generation: u64,
    bytes: u64,
    memory: String,
    file: Option<String>,
    used: u64,
    capacity: u64,
    load: f64,
    survival: Option<f64>,
    advised_redundancy: Option<u32>,
    /// What is here, if several collectors share the store; `null` = all of it.
    here: Option<StoreShareRow>,
    /// Of INT events: the rings that have turned over, and how far back they reach.
    rings: Vec<WrappedRing>,
}

#[derive(Serialize)]
struct StoreShareRow {
    /// Of the keys' 256 buckets.
    buckets: Option<String>,
    lists: Option<Vec<Range>>,
    /// The collector that has all of it.
    elsewhere: Option<String>,
}

#[derive(Serialize)]
struct Range {
    first: u32,
    count: u32,
}

impl StoreShareRow {
    fn from_store_info(info: &StoreInfo) -> anyhow::Result<Option<StoreShareRow>> {
        let buckets = control::copies_from_ranges(&info.buckets)?;
        let lists = || info.lists.iter().map(|l| Range { first: l.first, count: l.count }).collect();
        let here = StoreShareRow {
            buckets: (!buckets.is_whole_store()).then(|| buckets.to_string()),
            lists: (!info.lists.is_empty()).then(lists),
            elsewhere: (!info.elsewhere.is_empty()).then(|| info.elsewhere.clone()),
        };
        let is_all = here.buckets.is_none() && here.lists.is_none() && here.elsewhere.is_none();
        Ok((!is_all).then_some(here))
    }

    fn describe(&self) -> String {
        if let Some(address) = &self.elsewhere {
            return format!("nothing, {address} has it");
        }
        if let Some(buckets) = &self.buckets {
            return format!("buckets {buckets}");
        }
        let range = |l: &Range| match l.count {
            1 => l.first.to_string(),
            count => format!("{}-{}", l.first, u64::from(l.first) + u64::from(count) - 1),
        };
        let lists: Vec<String> = self.lists.iter().flatten().map(range).collect();
        format!("lists {}", lists.join(","))
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let stores = super::block_on(async {
        let ask = args.client.connect_all().await?;
        let mut stores = Vec::new();
        for info in ask.stores_that_answer().await? {
            let mut store = store_row(info)?;
            // Lists of a shared store may be at another collector: rings that cannot be read here are left out.
            store.rings = event_rings::turned_over(&ask, &store.spec).await.unwrap_or_default();
            stores.push(store);
        }
        anyhow::Ok(stores)
    })?;
    args.client.output.print_document(&stores, |stores| {
        let table = render_table(stores, args.client.is_wide_output());
        let short = stores.iter().flat_map(|store| &store.rings).filter(|ring| ring.is_short());
        short.fold(table, |text, ring| {
            let (found, advice) = ring.describe_with_advice();
            format!("{}\n\nwarning: {found}.\n{advice}.", text.trim_end())
        })
    })?;
    Ok(CommandStatus::Done)
}

fn render_table(stores: &[StoreRow], wide: bool) -> String {
    let mut table = if wide {
        TextTable::new(
            &[
                "id",
                "store",
                "primitive",
                "layout",
                "size",
                "used",
                "of",
                "load",
                "survival",
                "N",
                "advised",
                "memory",
                "here",
            ],
            &[0, 4, 5, 6, 7, 8, 9, 10],
        )
    } else {
        TextTable::new(
            &["id", "store", "primitive", "size", "used", "load", "survival", "N", "advised"],
            &[0, 3, 4, 5, 6, 7, 8],
        )
    };
    for s in stores {
        let dash = || "-".to_owned();
        let (id, name, primitive) =
            (s.spec.id.to_string(), s.spec.name.clone(), s.spec.primitive().to_owned());
        let (size, used, load) = (format_bytes(s.bytes), format_grouped(s.used), format_percent(s.load));
        let survival = s.survival.map_or_else(dash, format_percent);
        let redundancy = s.spec.redundancy().map_or_else(dash, |n| n.to_string());
        let advised = s.advised_redundancy.map_or_else(dash, |n| n.to_string());
        if wide {
            let (layout, of, memory) =
                (s.spec.kind.describe_layout(), format_grouped(s.capacity), s.memory.clone());
            let here = s.here.as_ref().map_or_else(|| "all".to_owned(), StoreShareRow::describe);
            table.add_row([
                id, name, primitive, layout, size, used, of, load, survival, redundancy, advised, memory,
                here,
            ]);
        } else {
            table.add_row([id, name, primitive, size, used, load, survival, redundancy, advised]);
        }
    }
    table.to_string()
}

fn store_row(info: StoreInfo) -> anyhow::Result<StoreRow> {
    let spec = info.store.as_ref().map(StoreSpec::try_from).transpose()?;
    let here = StoreShareRow::from_store_info(&info)?;
    Ok(StoreRow {
        spec: spec.ok_or_else(|| anyhow::anyhow!("the collector described a store without naming it"))?,
        generation: info.generation,
        bytes: info.length,
        memory: info.memory,
        file: (!info.file.is_empty()).then_some(info.file),
        used: info.used,
        capacity: info.capacity,
        load: info.load,
        survival: info.survival,
        advised_redundancy: info.advised_redundancy,
        here,
        rings: Vec::new(),
    })
}

//! `dta-collector stores`

use dta_cli::CommandStatus;
use dta_cli::number::{format_bytes, format_grouped, format_percent};
use dta_cli::table::TextTable;
use dta_views::stores::{StoreRow, StoreShareRow, fetch_store_rows};

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

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let stores = super::block_on(async { Ok(fetch_store_rows(&args.client.connect_all().await?).await?) })?;
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

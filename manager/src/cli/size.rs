//! `dta-manager size`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use clap::builder::PossibleValuesParser;
use dta_cli::number::{format_bytes, format_count, format_grouped, format_percent, format_short};
use dta_cli::output::OutputFlag;
use dta_cli::table::{OutputStyle, TextTable};
use dta_cli::{CommandStatus, misuse_error};
use dta_collector::config::{Config, default_stores};
use dta_files::span;
use dta_proto::store::{SlotKeys, StoreKind, StoreSpec};
use dta_proto::wire::dta::Primitive;
use serde::Serialize;

use crate::size::rates::{self, CoreRates, Machines, Rate, ReportPath};
use crate::size::{self, SizingTraffic};

#[derive(Args)]
#[command(after_help = "\
Sizes one store of each kind, by the formulas that the programs themselves use (docs/sizing.md explains them), and says what it takes: slots, copies (N), memory, huge pages, history. --config prints these stores for a collector's configuration file.

The rates are arithmetic: what one core does in each step was measured by itself, and what a link carries follows from the bytes. Each store is taken to get all of the reports. --figures takes what `dta-manager bench` measured on your machine.

Examples:
  dta-manager size --flows 1000000 --reports 5M --retention 60s
  dta-manager size --flows 250k --survival 99.9 --only key-write,append
  dta-manager size --flows 10M --epoch 60s --reporters 32 --link 25G --plain
  dta-manager size --reports 2M --cores 16 -o json | jq .stores[].choose
  dta-manager size --flows 1M --config > collector.toml")]
pub(super) struct SizeArgs {
    #[command(flatten)]
    traffic: SizingTraffic,

    /// Only stores of these kinds
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = PossibleValuesParser::new(Primitive::IN_TABLES.map(Primitive::canonical_name)), help_heading = "Stores")]
    only: Vec<String>,
    /// Bytes of a value: 4, 12, 28 or 60
    #[arg(long, value_name = "BYTES", default_value = "12", help_heading = "Stores")]
    value_len: u8,
    /// Slots hold their keys, too (12-byte values)
    #[arg(long, help_heading = "Stores")]
    inline_keys: bool,
    /// Hops of a path: 6 or 14
    #[arg(long, value_name = "N", default_value = "6", help_heading = "Stores")]
    hops: u8,
    /// Append lists, which share the reports evenly
    #[arg(long, value_name = "N", default_value = "16", help_heading = "Stores")]
    lists: u32,
    /// Bytes of a list's entry
    #[arg(long, value_name = "BYTES", default_value = "16", help_heading = "Stores")]
    entry_len: u8,
    /// Bytes of a list's batch: a power of two from 16 to 4096
    #[arg(long, value_name = "BYTES", default_value = "64", help_heading = "Stores")]
    batch_len: u16,
    /// Rows of a sketch
    #[arg(long, value_name = "N", default_value = "3", help_heading = "Stores")]
    rows: u8,
    /// Length of a sketch's epoch
    #[arg(long, value_name = "SPAN", default_value = "10s", value_parser = span::parse_duration, help_heading = "Stores")]
    sketch_epoch: Duration,

    #[command(flatten)]
    machines: Machines,
    /// Output of `dta-manager bench -o json` on the machines in question
    #[arg(long, value_name = "FILE", help_heading = "Machines")]
    figures: Option<PathBuf>,

    /// Print the stores as tables of a collector's configuration
    #[arg(long)]
    config: bool,
    #[command(flatten)]
    output: OutputFlag,
}

#[derive(Serialize)]
struct Sized {
    flows: u64,
    reports_per_second: u64,
    retention_seconds: f64,
    /// Stores, each with all of the reports.
    stores: Vec<SizedStore>,
    memory_bytes: u64,
    huge_pages: u64,
}

#[derive(Serialize)]
struct SizedStore {
    #[serde(flatten)]
    size: size::StoreSize,
    ways: [Rate; ReportPath::ALL.len()],
    choose: Choice,
}

#[derive(Serialize)]
struct Choice {
    way: ReportPath,
    /// How many, each with a translator.
    collectors: u64,
}

impl SizeArgs {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        let mut parts = CoreRates::default();
        if let Some(path) = &self.figures {
            read_figures(path, &mut parts).map_err(misuse_error)?;
        }
        let sized = self.compute_sizes(&parts).map_err(misuse_error)?;
        let text = self.configuration(&sized.stores).map_err(misuse_error)?;
        if self.config {
            dta_cli::print_line(text.trim_end())?;
            return Ok(CommandStatus::Done);
        }
        self.output.print_document(&sized, |sized| sizes_table(sized, OutputStyle::for_stdout()))?;
        Ok(CommandStatus::Done)
    }

    fn compute_sizes(&self, parts: &CoreRates) -> anyhow::Result<Sized> {
        let stores = self.size_stores(parts)?;
        let sum =
            |of: fn(&size::StoreSize) -> u64| -> u64 { stores.iter().map(|store| of(&store.size)).sum() };
        Ok(Sized {
            flows: self.traffic.flows,
            reports_per_second: self.traffic.reports,
            retention_seconds: self.traffic.retention.as_secs_f64(),
            memory_bytes: sum(|size| size.memory_bytes),
            huge_pages: sum(|size| size.huge_pages),
            stores,
        })
    }

    fn size_stores(&self, parts: &CoreRates) -> anyhow::Result<Vec<SizedStore>> {
        let sized = |shape| {
            let size = size::StoreSize::for_traffic(shape, self.sketch_epoch, &self.traffic)?;
            let ways = ReportPath::ALL.map(|way| rates::store_rate(&size, way, parts, &self.machines));
            let (way, collectors) = rates::choose_report_path(&ways, self.traffic.reports);
            Ok(SizedStore { size, ways, choose: Choice { way, collectors } })
        };
        self.store_shapes().map(sized).collect()
    }

    /// The collector's default store of each wanted kind, as the flags say.
    fn store_shapes(&self) -> impl Iterator<Item = StoreSpec> {
        let wanted = |kind: &Primitive| {
            self.only.is_empty() || self.only.iter().any(|name| name == kind.canonical_name())
        };
        let defaults = default_stores();
        Primitive::IN_TABLES.into_iter().filter(wanted).filter_map(move |kind| {
            let mut store = defaults.iter().find(|store| store.kind.primitive() == kind)?.clone();
            match &mut store.kind {
                StoreKind::KeyWrite { value_len, keys, .. } => {
                    *value_len = self.value_len;
                    *keys = if self.inline_keys { SlotKeys::Inline } else { SlotKeys::Hashed };
                }
                StoreKind::Postcarding { hops, .. } => *hops = self.hops,
                StoreKind::Append { lists, batch_len, entry_len, .. } => {
                    (*lists, *batch_len, *entry_len) = (self.lists, self.batch_len, self.entry_len);
                }
                StoreKind::SketchMerge { rows, expected, .. } => {
                    (*rows, *expected) = (self.rows, self.machines.reporters.min(32) as u8);
                }
                _ => {}
            }
            Some(store)
        })
    }

    /// The tables of the stores, as a collector accepts them.
    fn configuration(&self, stores: &[SizedStore]) -> anyhow::Result<String> {
        let stores: Vec<_> = stores.iter().map(|store| store.size.store.clone()).collect();
        let epochs: BTreeMap<_, _> =
            stores.iter().filter_map(|store| Some((store.name.clone(), self.traffic.epoch?))).collect();
        let text = Config { stores, epochs, ..Config::default() }.stores_to_toml()?;
        Config::parse_toml(&text, Path::new("these stores"))?;
        Ok(text)
    }
}

fn read_figures(path: &Path, parts: &mut CoreRates) -> anyhow::Result<()> {
    let text = dta_files::file::read_text(path).with_context(|| format!("cannot read {}", path.display()))?;
    let figures: Vec<rates::Figure> = serde_json::from_str(&text)
        .with_context(|| format!("{} is not output of `dta-manager bench -o json`", path.display()))?;
    let names = parts.benchmarks().map(|(name, _)| name).join(" ");
    anyhow::ensure!(parts.take(&figures), "{} lacks one of these benchmarks: {names}", path.display());
    Ok(())
}

fn sizes_table(sized: &Sized, look: OutputStyle) -> String {
    let found = ["N = 1", "N = 2", "N = 3", "N = 4"];
    let takes = ["best N", "memory", "per million", "history a day"];
    let header = [&["store", "kind", "size", "N"], &found[..], &takes[..]].concat();
    let mut stores = TextTable::new(&header, &[3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let names = sized.stores.iter().map(|store| store.size.store.name.as_str());
    let header: Vec<_> = ["reports per second"].into_iter().chain(names).collect();
    let mut rates = TextTable::new(&header, &[]);
    for SizedStore { size, .. } in &sized.stores {
        let store = &size.store;
        let number = |n: Option<u8>| n.map_or_else(String::new, |n| n.to_string());
        let what = [
            store.name.clone(),
            store.primitive().to_owned(),
            describe_extent(store),
            number(store.redundancy()),
        ];
        let found = size.survival.map_or_else(Default::default, |shares| shares.map(format_percent));
        let takes = [
            number(size.advised_redundancy),
            format_bytes(size.memory_bytes),
            format_bytes(size.memory_bytes_per_million),
            size.history_bytes_per_day.map_or_else(String::new, format_bytes),
        ];
        stores.add_row(what.into_iter().chain(found).chain(takes));
    }
    for (index, way) in ReportPath::ALL.into_iter().enumerate() {
        let cell = |store: &SizedStore| {
            let limit = store.ways[index].limit;
            format!("{} ({})", format_short(limit.reports_per_second), limit.part)
        };
        rates.add_row([way.to_string()].into_iter().chain(sized.stores.iter().map(cell)));
    }
    let choice = |SizedStore { choose: Choice { way, collectors }, .. }: &SizedStore| {
        let many =
            if *collectors == 1 { String::new() } else { format!("{} × ", format_grouped(*collectors)) };
        many + way.name()
    };
    let wanted = format!("for {}, choose", format_short(sized.reports_per_second as f64));
    rates.add_row([wanted].into_iter().chain(sized.stores.iter().map(choice)));
    format!(
        "{}\n\n{} of memory, {} of 2 MiB (sysctl -w vm.nr_hugepages={})\n\n{}",
        stores.render_for(look),
        format_bytes(sized.memory_bytes),
        format_count(sized.huge_pages, "huge page", "huge pages"),
        sized.huge_pages,
        rates.render_for(look),
    )
}

/// How many elements it has, in words.
fn describe_extent(store: &StoreSpec) -> String {
    match store.kind {
        StoreKind::Append { lists, ring, .. } => {
            format!(
                "{} of {}",
                format_count(lists.into(), "list", "lists"),
                format_count(ring, "batch", "batches")
            )
        }
        StoreKind::SketchMerge { columns, epochs, .. } => {
            format!(
                "{} epochs of {}",
                format_grouped(epochs.into()),
                format_count(columns.into(), "column", "columns")
            )
        }
        _ => format_count(store.element_count(), "slot", "slots"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use dta_collector::config::MemoryBacking;
    use dta_memory::region::RegionOptions;
    use dta_memory::store::ServedStores;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        size: SizeArgs,
    }

    fn size(flags: &str) -> SizeArgs {
        Line::parse_from(["size"].into_iter().chain(flags.split_whitespace())).size
    }

    #[test]
    fn a_collector_makes_what_is_shown() {
        for flags in [
            "--flows 1000 --reports 2k --retention 2s",
            "--flows 3000 --survival 90 --value-len 60 --hops 14 --entry-len 60 --batch-len 128 --rows 1 --reports 100",
            "--flows 100 --inline-keys --epoch 90s --only key-write,key-increment --copies 2",
        ] {
            let size = size(flags);
            let sized = size.size_stores(&CoreRates::default()).unwrap();
            let text = size.configuration(&sized).unwrap();
            let (config, _) = Config::parse_toml(&text, Path::new("collector.toml")).unwrap();
            let specs: Vec<_> = sized.iter().map(|store| store.size.store.clone()).collect();
            assert_eq!(config.stores, specs, "{flags}");
            let epochs: Vec<_> = config.epochs.values().copied().collect();
            assert_eq!(
                epochs,
                size.traffic.epoch.map_or(vec![], |every| vec![every; specs.len()]),
                "{flags}"
            );
            let made =
                ServedStores::open(&config.stores, &MemoryBacking::Anonymous, RegionOptions::default())
                    .unwrap();
            for (store, sized) in made.current_stores().iter().zip(&sized) {
                let replaced =
                    matches!(store.spec.kind, StoreKind::KeyWrite { .. }) && size.traffic.epoch.is_some();
                let generations = if replaced { 3 } else { 1 };
                assert_eq!(
                    sized.size.memory_bytes,
                    store.region.len() * generations,
                    "{flags}: {:?}",
                    store.spec
                );
            }
        }
    }

    #[test]
    fn what_no_store_can_be_is_refused() {
        let error = |flags: &str| {
            let size = size(flags);
            let sized =
                size.size_stores(&CoreRates::default()).and_then(|stores| size.configuration(&stores));
            format!("{:#}", sized.unwrap_err())
        };
        for (flags, says) in [
            ("--value-len 5", "value_len is 5"),
            ("--entry-len 60", "entry_len is 60"),
            ("--lists 3", "lists is 3"),
            ("--rows 9", "rows is 9"),
            ("--flows 100G", "store `flows`: no size is large enough for 100000000000 keys"),
            ("--reports 10G --retention 30d", "ring is"),
            ("--retention 30d --sketch-epoch 1s --only sketch-merge", "epochs is"),
            ("--flows 1000 --reports 1k --epoch 1s", "at least 2 seconds"),
        ] {
            assert!(error(flags).contains(says), "{flags}: {}", error(flags));
        }
        for bad in
            ["--flows 0", "--survival 100", "--survival 0", "--copies 5", "--retention 0s", "--only heap"]
        {
            let line = ["size"].into_iter().chain(bad.split_whitespace());
            assert!(Line::try_parse_from(line).is_err(), "{bad}");
        }
    }

    #[test]
    fn figures_of_another_machine_take_the_place_of_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures.json");
        let row =
            |name: &str, value: f64| json!({"name": name, "unit": "ops/s", "value": value, "floor": 1.0});
        let mut rows = vec![row("chain", 1.0), row("reports-plain", 3.0), row("translator", 4.0)];
        let read = |rows: &[serde_json::Value]| {
            std::fs::write(&path, serde_json::to_string(rows).unwrap()).unwrap();
            let mut parts = CoreRates::default();
            read_figures(&path, &mut parts).map(|()| parts)
        };
        assert!(read(&rows).unwrap_err().to_string().contains("reports-plain translator nic"));
        rows.push(row("nic", 5.0));
        let parts = read(&rows).unwrap();
        assert_eq!([parts.reports_plain, parts.translator, parts.nic], [3.0, 4.0, 5.0]);
        assert_eq!(parts.ring, CoreRates::default().ring);
        std::fs::write(&path, "[{}]").unwrap();
        assert!(
            read_figures(&path, &mut CoreRates::default()).unwrap_err().to_string().contains("bench -o json")
        );
    }

    #[test]
    fn the_page_shows_what_is_printed() {
        let page = include_str!("../../../docs/sizing.md");
        let sized = size("--flows 1000000 --reports 5M --retention 60s")
            .compute_sizes(&CoreRates::default())
            .unwrap();
        let shown = sizes_table(&sized, OutputStyle::PIPE);
        for line in shown.lines().filter(|line| !line.is_empty()) {
            assert!(
                page.lines().any(|page_line| page_line == format!("    {line}")),
                "docs/sizing.md lacks\n{shown}"
            );
        }
    }
}

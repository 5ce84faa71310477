//! `dta-manager bench`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use crate::bench::{self, CASES, Scale};
use crate::testbed::show::grouped;

#[derive(Args)]
#[command(after_help = "\
Each figure stands beside its floor, the same memory accesses and checksums with nothing else, measured in turns with it; of
both the fastest turn counts. The ratio decides: other machines have other floors. Build with --release.

Benchmarks: translator, nic, chain, query, tail, loopback. `memory` runs only when it is named: a long run that watches
the memory of the processes.

Exit status 1 if a ratio is below the least one, or memory grows.

Examples:
  dta-manager bench
  dta-manager bench nic chain --json figures.json
  dta-manager bench --quick
  dta-manager bench memory --reports 100000000")]
pub(super) struct Bench {
    /// Only benchmarks whose name contains one of these
    filter: Vec<String>,
    /// Write the figures as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Short turns and small memory: to see that it works
    #[arg(long)]
    quick: bool,
    /// Reports of the memory run
    #[arg(long, value_name = "N", default_value = "10000000", value_parser = clap::value_parser!(u64).range(1000..))]
    reports: u64,
}

impl Bench {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.filter.iter().any(|name| name == "memory") {
            return self.memory();
        }
        let scale = if self.quick { Scale::QUICK } else { Scale::FULL };
        let wanted = |name: &str| {
            self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
        };
        let cases: Vec<_> = CASES.iter().filter(|case| wanted(case.name)).collect();
        if cases.is_empty() {
            let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
            anyhow::bail!(
                "there is no benchmark {}; there are {} and memory",
                self.filter.join(" or "),
                names.join(", ")
            );
        }
        if cfg!(debug_assertions) {
            eprintln!("dta-manager: warning: a debug build; its figures mean nothing");
        }
        let mut figures = Vec::new();
        for case in cases {
            eprintln!("{} …", case.what());
            // A benchmark pins its thread: each gets one of its own.
            let run = std::thread::scope(|scope| scope.spawn(|| case.run(&scale)).join());
            figures.push(run.map_err(|_| anyhow::anyhow!("benchmark {} panicked", case.name))??);
        }
        dta_cli::print(bench::table(&figures))?;
        if let Some(path) = &self.json {
            std::fs::write(path, bench::json(&figures) + "\n")
                .with_context(|| format!("cannot write the figures to {}", path.display()))?;
        }
        let below = figures.iter().any(|figure| figure.ratio < figure.least_ratio);
        Ok(ExitCode::from(u8::from(below)))
    }

    fn memory(&self) -> anyhow::Result<ExitCode> {
        let bar = super::replay::progress(self.reports);
        bar.set_message("reports");
        let figure = bench::memory(self.reports, |made| bar.set_position(made))?;
        bar.finish_and_clear();
        dta_cli::print(format_args!(
            "{} reports in {:.0} s, {} accepted, {} operations executed\nresident memory beside the stores, KiB: after a tenth of the run, and at most later",
            grouped(figure.reports),
            figure.seconds,
            grouped(figure.accepted),
            grouped(figure.executed)
        ))?;
        for (name, [early, most]) in [
            ("collector", figure.collector),
            ("translator", figure.translator),
            ("reporter", figure.reporter),
        ] {
            dta_cli::print(format_args!("  {name:<12}{:>10}{:>10}", grouped(early), grouped(most)))?;
        }
        dta_cli::print(if figure.is_flat() { "FLAT" } else { "IT GROWS" })?;
        if let Some(path) = &self.json {
            std::fs::write(path, serde_json::to_string_pretty(&figure)? + "\n")
                .with_context(|| format!("cannot write the figure to {}", path.display()))?;
        }
        Ok(ExitCode::from(u8::from(!figure.is_flat())))
    }
}

//! `dta-manager bench`.

use std::path::PathBuf;

use clap::Args;
use dta_cli::number::format_grouped;
use dta_cli::output::OutputFlag;
use dta_cli::table::OutputStyle;
use dta_cli::{CommandStatus, output};
use dta_testbed::bench::int;
use dta_testbed::bench::veth::{self, Length};
use dta_testbed::bench::{BenchCase, CASES, CLUSTER, Figure, Scale, WIRE};
use dta_testbed::ground::NicKind;
use serde::Serialize;

#[derive(Args)]
#[command(after_help = "\
Each figure is compared with its floor, the same memory accesses and checksums with nothing else, measured in turns with it; the fastest turn of each counts. The ratio decides: other machines have other floors. Build with --release.

Benchmarks: translator, nic, nic-small, chain, workers, query, tail, alerts, flows, flows-distinct, sflow, flows-top, flows-one, ask, loopback, ring, no-ring, reports, reports-plain, history-write, history-nic, history-query, history-key, history-series, nic-file, page. `memory` runs only when it is named: a long run that watches the memory of the processes.

--nic rxe compares the software NIC with the kernel's soft-RoCE, on the same frames from the same veth pair (uc-write-8, uc-write-64, rc-write-8, rc-write-64, rc-fetch-add). CPU time is the whole machine's, less that of sending the same frames to nobody; run nothing else. Frames by UDP sockets to soft-RoCE in runs are compared with single ones (runs/plain). A translator that posts its operations to soft-RoCE (uc-report, rc-report, rc-increment) is compared with one that sends them as raw frames (posted/frames), with and without the CPU time of softirqs, in which soft-RoCE works. --nic soft compares sender and software NIC by AF_XDP (xdp) with both by AF_PACKET (soft). Both need root, and the first a kernel with rdma_rxe and a build with libibverbs.

--int measures Telemetry Reports of INT v1.0 with 3 and with 6 hops of all fields, of 100 and of 100,000 flows, from frame to memory on one core, in nanoseconds per report. The floor of int-unchanged is reading the reports and one load per value, that of int-changed and int-always (each value is written with each report) reading them and as many key-writes. int-loopback receives the reports of int-changed from a socket, and a NIC in another thread executes their frames from shared memory; its floor is the same datagrams received and discarded.

--wire measures reporter, translator and collector as three processes in two network namespaces, so that reports and frames cross a veth pair: in runs, in runs that are cut before they cross it (with and without GRO behind it), with frames one by one, and by AF_XDP. Its floor is that of `ring`. wire-reports-xdp measures reports that come singly over such a pair, taken by AF_XDP; its floor is the same by a socket. wire-int-unchanged measures INT reports that say nothing new, which the program at the interface drops; its floor is the same by a socket. Needs root.

--cluster measures queries of two collectors that find each other in etcd (ask-cluster), and starts a node of it: install etcd-server, and build with the feature etcd.

--trace measures what host tracing (`dta-reporter trace`) costs per packet at an interface, by the kernel's own test runs, in nanoseconds, compared with an empty program: reported, filtered out, sampled out, inside VXLAN, and with the defaults. Needs root.

Exit status 4 if a ratio is below its minimum, memory grows, a write takes the software NIC more CPU time than soft-RoCE, AF_XDP has fewer writes per second than AF_PACKET, or tracing costs more than it should.

Examples:
  dta-manager bench
  dta-manager bench nic chain -o json > figures.json
  dta-manager bench --quick
  dta-manager bench --int unchanged
  dta-manager bench --wire
  dta-manager bench --cluster
  dta-manager bench --trace
  testbed/rxe-guest/run --timeout 300 -- \\
      target/release/dta-manager bench --nic rxe
  dta-manager bench memory --reports 100000000")]
pub(super) struct Bench {
    /// Only benchmarks whose name contains one of these
    filter: Vec<String>,
    /// Also write the figures as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    output: OutputFlag,
    /// Short turns and small memory: only a check that it works
    #[arg(long)]
    quick: bool,
    /// Measure the cost of INT Telemetry Reports
    #[arg(long, conflicts_with = "nic")]
    int: bool,
    /// Measure three processes over a veth pair
    #[arg(long, conflicts_with_all = ["nic", "int", "trace"])]
    wire: bool,
    /// Measure queries of a cluster
    #[arg(long, conflicts_with_all = ["nic", "int", "trace", "wire"])]
    cluster: bool,
    /// Measure the cost of host tracing per packet, in the kernel
    #[arg(long, conflicts_with_all = ["nic", "int"])]
    trace: bool,
    /// Measure on a veth pair: the software NIC against the kernel's soft-RoCE (rxe), or AF_XDP against AF_PACKET
    /// (soft)
    #[arg(long, value_enum)]
    nic: Option<NicKind>,
    /// Number of reports in the memory run
    #[arg(long, value_name = "N", default_value = "10000000", value_parser = clap::value_parser!(u64).range(1000..))]
    reports: u64,
}

impl Bench {
    pub(super) fn run(self) -> anyhow::Result<CommandStatus> {
        if self.filter.iter().any(|name| name == "memory") {
            return self.run_memory();
        }
        if self.trace {
            // The kernel runs the programs: this program's build does not matter.
            let mut rows = dta_testbed::bench::trace::measure_path_costs(self.quick)?;
            self.check_selection(" with --trace", rows.iter().map(|row| row.name))?;
            rows.retain(|row| self.is_selected(row.name));
            self.print_figures(&rows, |rows| {
                dta_testbed::bench::trace::render_costs(rows, OutputStyle::for_stdout())
            })?;
            return Ok(CommandStatus::from_check(
                !rows.iter().any(dta_testbed::bench::trace::TracePathCost::is_above_limit),
            ));
        }
        if let Some(nic) = self.nic {
            return self.run_veth(nic);
        }
        let scale = if self.quick { Scale::QUICK } else { Scale::FULL };
        let (with, cases): (_, &[BenchCase]) = match (self.wire, self.cluster, self.int) {
            (true, ..) => (" with --wire", &WIRE),
            (_, true, _) => (" with --cluster", &CLUSTER),
            (.., true) => (" with --int", &int::CASES),
            _ => ("", &CASES),
        };
        let table = if self.int { int::render_figures } else { dta_testbed::bench::render_figures };
        self.check_selection(with, cases.iter().map(|case| case.name))?;
        let cases = cases.iter().filter(|case| self.is_selected(case.name));
        warn_of_debug();
        let figures = dta_testbed::bench::run_cases(cases, &scale, |case| eprintln!("{} …", case.what))?;
        self.print_figures(&figures, |figures| table(figures, OutputStyle::for_stdout()))?;
        Ok(CommandStatus::from_check(!figures.iter().any(Figure::is_below_required)))
    }

    fn is_selected(&self, name: &str) -> bool {
        self.filter.is_empty() || self.filter.iter().any(|part| name.contains(part.as_str()))
    }

    /// Checks that one of these names is selected; `with` is the flag that chose them.
    fn check_selection<'a>(
        &self,
        with: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> anyhow::Result<()> {
        let names: Vec<&str> = names.into_iter().collect();
        anyhow::ensure!(
            names.iter().any(|name| self.is_selected(name)),
            "there is no benchmark {}{with}; there are {}",
            self.filter.join(" or "),
            names.join(", ")
        );
        Ok(())
    }

    fn run_veth(&self, nic: NicKind) -> anyhow::Result<CommandStatus> {
        self.check_selection(" with --nic", veth::case_names(nic))?;
        warn_of_debug();
        let length = if self.quick { Length::QUICK } else { Length::FULL };
        let rows = veth::run(nic, &length, |name| self.is_selected(name), |what| eprintln!("{what} …"))?;
        self.print_figures(&rows, |rows| veth::render_figures(rows, OutputStyle::for_stdout()))?;
        Ok(CommandStatus::from_check(!rows.iter().any(|row| row.is_soft_slower() || row.is_xdp_slower())))
    }

    fn run_memory(&self) -> anyhow::Result<CommandStatus> {
        let bar = super::replay::progress_bar(self.reports);
        bar.set_message("reports");
        let figure = dta_testbed::bench::memory(self.reports, |made| bar.set_position(made))?;
        bar.finish_and_clear();
        self.print_figures(&figure, memory_table)?;
        Ok(CommandStatus::from_check(figure.is_memory_flat()))
    }

    /// Prints the figures, and writes them to the file of --json.
    fn print_figures<T: Serialize>(&self, what: &T, table: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
        self.output.print_document(what, table)?;
        match &self.json {
            Some(path) => output::json_file(path, what),
            None => Ok(()),
        }
    }
}

/// Prints the memory run for people.
fn memory_table(figure: &dta_testbed::bench::MemoryFigure) -> String {
    let mut lines = vec![
        format!(
            "{} reports in {:.0} s, {} accepted, {} operations executed",
            format_grouped(figure.reports),
            figure.seconds,
            format_grouped(figure.accepted),
            format_grouped(figure.executed)
        ),
        "resident memory without the stores, KiB:".to_owned(),
        "after a tenth of the run, and maximum after that".to_owned(),
    ];
    let processes =
        [("collector", figure.collector), ("translator", figure.translator), ("reporter", figure.reporter)];
    lines.extend(processes.map(|(name, [early, most])| {
        format!("  {name:<12}{:>10}{:>10}", format_grouped(early), format_grouped(most))
    }));
    lines.push(if figure.is_memory_flat() { "FLAT" } else { "IT GROWS" }.to_owned());
    lines.join("\n")
}

pub(super) fn warn_of_debug() {
    if cfg!(debug_assertions) {
        eprintln!("dta-manager: warning: a debug build; its figures mean nothing");
    }
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;

    #[test]
    fn the_help_names_each_benchmark() {
        let help = Bench::augment_args(clap::Command::new("bench")).render_long_help().to_string();
        let named = help.split_once("Benchmarks: ").and_then(|(_, names)| names.split_once('.'));
        let named: Vec<_> =
            named.unwrap().0.split_whitespace().map(|name| name.trim_end_matches(',')).collect();
        assert_eq!(named, CASES.iter().map(|case| case.name).collect::<Vec<_>>());
    }
}

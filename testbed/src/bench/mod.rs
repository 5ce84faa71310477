//! Rates of the data path, each compared with its floor: the same memory accesses and checksums with nothing else,
//! measured in the same run on the same memory.
//!
//! A machine that does other things is slow at times, for both alike or for one. So work and floor take turns, and
//! the fastest turn of each counts.

mod alerts;
mod ask;
mod chain;
mod flow_questions;
mod harness;
mod history;
pub mod int;
mod key_write_bench;
mod loopback;
mod memory;
mod page;
mod query;
mod reports;
mod roles;
mod show;
mod tail;
pub mod trace;
pub mod veth;
mod wire;
mod workers;
mod write_bench;

use harness::on_a_thread;
pub use harness::{Beside, Figure, Scale};
pub use memory::{MemoryFigure, run as memory};
pub use roles::run_role;
pub use show::render_figures;

/// A benchmark: its name, and how to run it.
pub struct BenchCase {
    /// Name, for filters and reports.
    pub name: &'static str,
    /// What it measures, in one line.
    pub what: &'static str,
    /// The required ratio of rate to floor; 0 if there is none.
    pub least_ratio: f64,
    /// What its figure is compared with besides the floor.
    pub beside: Beside,
    /// Whether it is part of a glance: one core, without sockets, files and other processes.
    pub glance: bool,
    run: BenchRun,
}

enum BenchRun {
    By(fn(&Scale) -> anyhow::Result<harness::Rates>),
    Int(int::Reports),
}

/// Makes the table of benchmarks: name, how to run it, required ratio, target rate, whether it is part of a glance, and
/// what it measures.
macro_rules! cases {
    ($(#[$about:meta])* $ALL:ident; $($name:literal: $run:path, $least_ratio:literal, $target:expr, $glance:literal, $what:literal;)+) => {
        $(#[$about])*
        pub const $ALL: [BenchCase; [$($name),+].len()] = [$(BenchCase {
            name: $name,
            what: $what,
            least_ratio: $least_ratio,
            beside: Beside::Target($target),
            glance: $glance,
            run: BenchRun::By($run),
        }),+];
    };
}

cases! {
    /// All benchmarks that need no privilege, in report order.
    CASES;
    "translator": key_write_bench::run, 0.45, None, true, "software translator: key-write datagram to RoCEv2 frame, N = 1";
    "nic": write_bench::bench_large_region, 0.5, Some(30e6), true, "software NIC: UC WRITE of 16 B, checked iCRC, random in 1 GiB";
    "nic-small": write_bench::bench_small_region, 0.0, None, false, "the same in 4 MiB";
    "chain": chain::run, 0.5, Some(10e6), true, "both in one process: report to memory";
    "workers": workers::run, 1.7, None, false, "two workers on two cores, report to memory, vs one worker";
    "query": query::run, 0.4, Some(25e6), true, "key-write query, N = 2, random keys, 1 GiB";
    "tail": tail::run, 0.5, None, true, "append tail, 64-byte batches of 4-byte entries (entries)";
    "alerts": alerts::run, 0.02, Some(1e6), false, "1,000 alert rules and the default set on flow records as they are read, vs reading them";
    "flows": int::flows::bench_netflow, 0.15, None, false, "records of NetFlow v9, of 100,000 flows, to memory, vs decoding them";
    "flows-distinct": int::flows::bench_distinct_flows, 0.15, Some(3e6), false, "the same, each record of a new flow";
    "sflow": int::flows::bench_sflow, 0.25, None, false, "samples of packets by sFlow, of 100,000 flows, to memory, vs decoding them";
    "flows-top": flow_questions::bench_largest, 0.05, None, false, "the ten largest of as many flows as records, on one core (records), vs copying and checking them";
    "flows-one": flow_questions::bench_one_flow, 0.4, None, false, "the records of one flow of these (records), vs the same";
    "ask": ask::run, 0.8, None, false, "one key of two collectors over gRPC, vs one key of one collector";
    "loopback": loopback::run, 0.5, None, false, "UDP loopback, three processes: report to memory";
    "ring": loopback::bench_with_ring, 0.3, Some(3e6), false, "reporter, translator, collector: reports in runs, frames in shared memory, vs `chain`";
    "no-ring": loopback::bench_without_ring, 0.0, None, false, "the same with frames in runs by UDP";
    "reports": reports::bench_in_runs, 0.5, None, false, "UDP loopback, reporter to translator, in runs: reports counted and dropped";
    "reports-plain": reports::bench_single_messages, 0.0, None, false, "the same, one message each";
    "history-write": history::bench_epoch_writes, 0.5, None, false, "an epoch of 1 GiB, a third used, to disk (slots), vs reading and compressing it";
    "history-nic": history::bench_nic_during_writes, 0.95, None, false, "software NIC while an epoch is written, vs without";
    "history-query": history::bench_queries_during_writes, 0.95, None, false, "key-write query while an epoch is written, vs without";
    "history-key": history::bench_key_lookups, 0.0, Some(100.0), false, "one key at a moment of a day of 1-minute epochs, vs a table of one epoch";
    "history-series": history::bench_key_series, 0.0, None, false, "one key over an hour of 1-minute epochs (epochs), vs single moments";
    "nic-file": write_bench::bench_file, 0.0, None, false, "NIC into a file in 2 MiB pages, vs the same in 4 KiB pages";
    "page": page::bench_with_page, 0.95, None, false, "reporter, translator, collector as `ring`, while somebody has the page open, vs nobody";
}

cases! {
    /// Benchmarks over a veth pair between two network namespaces, which need root.
    WIRE;
    "wire": wire::bench_in_runs, 0.3, Some(3e6), false, "reporter, translator, collector over a veth pair: reports and frames in runs, vs `chain`";
    "wire-cut": wire::bench_cut_runs, 0.0, None, false, "the same, with runs cut before they cross the pair, and GRO behind it";
    "wire-cut-no-gro": wire::cut_without_gro, 0.0, None, false, "the same without GRO";
    "wire-plain": wire::bench_single_frames, 0.0, None, false, "as `wire`, with frames one by one";
    "wire-xdp": wire::bench_xdp, 0.0, None, false, "as `wire`, with frames by AF_XDP";
    "wire-int-unchanged": wire::bench_unchanged_int, 0.0, None, false, "single INT reports from a veth pair in which nothing changes, per second of CPU time: dropped by the program at the interface, vs by a socket";
    "wire-reports-xdp": wire::bench_reports_by_xdp, 0.0, None, false, "single reports from a veth pair, counted and dropped, per second of CPU time: by AF_XDP, vs by a socket";
}

cases! {
    /// Benchmarks of a cluster, which need etcd.
    CLUSTER;
    "ask-cluster": ask::in_cluster, 0.8, None, false, "one key of two collectors of a cluster over gRPC, vs one key of one collector";
}

/// Runs these benchmarks. Calls `about` before each.
pub fn run_cases<'a>(
    cases: impl IntoIterator<Item = &'a BenchCase>,
    scale: &Scale,
    about: impl Fn(&BenchCase),
) -> anyhow::Result<Vec<Figure>> {
    cases
        .into_iter()
        .inspect(|case| about(case))
        .map(|case| on_a_thread(case.name, || case.run(scale)))
        .collect()
}

impl BenchCase {
    pub fn run(&self, scale: &Scale) -> anyhow::Result<Figure> {
        let (rates, unit) = match &self.run {
            BenchRun::By(run) => (run(scale)?, "ops/s"),
            BenchRun::Int(reports) => (reports.run(scale)?, "ns/report"),
        };
        let in_unit = |rate: f64| if unit == "ops/s" { rate } else { 1e9 / rate };
        Ok(Figure {
            name: self.name,
            unit,
            value: in_unit(rates.work),
            floor: in_unit(rates.floor),
            ratio: rates.work / rates.floor,
            least_ratio: self.least_ratio,
            beside: self.beside,
            what: self.what,
        })
    }
}

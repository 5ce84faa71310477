//! Rates of the data path, each compared with its floor: the same memory accesses and checksums with nothing else,
//! measured in the same run on the same memory.
//!
//! A machine that does other things is slow at times, for both alike or for one. So work and floor take turns, and
//! the fastest turn of each counts.

mod ask;
mod chain;
mod harness;
pub mod int;
mod key_write_bench;
mod loopback;
mod memory;
mod nic;
mod nic_file;
mod query;
mod reports;
mod roles;
mod show;
mod tail;
pub mod trace;
mod translator;
pub mod veth;
mod workers;
mod write_bench;

use harness::on_a_thread;
pub use harness::{Figure, Scale};
pub use memory::{MemoryFigure, run as memory};
pub use roles::role;
pub use show::table;

/// A benchmark: its name, and how to run it.
pub struct Case {
    /// Name, for filters and reports.
    pub name: &'static str,
    /// What it measures, in one line.
    pub what: &'static str,
    /// The required ratio of rate to floor; 0 if there is none.
    pub least_ratio: f64,
    /// The target rate on a server CPU in operations per second, if there is one.
    pub target: Option<f64>,
    /// Whether it is part of a glance: one core, without sockets, files and other processes.
    pub glance: bool,
    run: fn(&Scale) -> anyhow::Result<harness::Rates>,
}

/// All benchmarks, in report order.
pub const CASES: [Case; 13] = [
    Case {
        name: "translator",
        what: "software translator: key-write datagram to RoCEv2 frame, N = 1",
        least_ratio: 0.45,
        target: None,
        glance: true,
        run: translator::run,
    },
    Case {
        name: "nic",
        what: "software NIC: UC WRITE of 16 B, checked iCRC, random in 1 GiB",
        least_ratio: 0.5,
        target: Some(30e6),
        glance: true,
        run: nic::run,
    },
    Case {
        name: "chain",
        what: "both in one process: report to memory",
        least_ratio: 0.5,
        target: Some(10e6),
        glance: true,
        run: chain::run,
    },
    Case {
        name: "workers",
        what: "two workers on two cores, report to memory, beside one worker",
        least_ratio: 1.7,
        target: None,
        glance: false,
        run: workers::run,
    },
    Case {
        name: "query",
        what: "key-write query, N = 2, random keys, 1 GiB",
        least_ratio: 0.4,
        target: Some(25e6),
        glance: true,
        run: query::run,
    },
    Case {
        name: "tail",
        what: "append tail, 64-byte batches of 4-byte entries (entries)",
        least_ratio: 0.5,
        target: None,
        glance: true,
        run: tail::run,
    },
    Case {
        name: "ask",
        what: "one key of two collectors over gRPC, beside one key of one collector",
        least_ratio: 0.8,
        target: None,
        glance: false,
        run: ask::run,
    },
    Case {
        name: "loopback",
        what: "UDP loopback, three processes: report to memory",
        least_ratio: 0.5,
        target: None,
        glance: false,
        run: loopback::run,
    },
    Case {
        name: "ring",
        what: "reporter, translator, collector: reports in runs, frames in shared memory, beside `chain`",
        least_ratio: 0.3,
        target: Some(3e6),
        glance: false,
        run: loopback::ring,
    },
    Case {
        name: "no-ring",
        what: "the same with frames by UDP",
        least_ratio: 0.0,
        target: None,
        glance: false,
        run: loopback::no_ring,
    },
    Case {
        name: "reports",
        what: "UDP loopback, reporter to translator, in runs: reports counted and dropped",
        least_ratio: 0.5,
        target: None,
        glance: false,
        run: reports::in_runs,
    },
    Case {
        name: "reports-plain",
        what: "the same, one message each",
        least_ratio: 0.0,
        target: None,
        glance: false,
        run: reports::plain,
    },
    Case {
        name: "nic-file",
        what: "NIC into a file in 2 MiB pages, beside the same in 4 KiB pages",
        least_ratio: 0.0,
        target: None,
        glance: false,
        run: nic_file::run,
    },
];

/// Runs these, each on its own thread, because a benchmark pins its thread. Calls `about` before each.
pub fn figures<'a>(
    cases: impl IntoIterator<Item = &'a Case>,
    scale: &Scale,
    about: impl Fn(&Case),
) -> anyhow::Result<Vec<Figure>> {
    let one = |case: &'a Case| {
        about(case);
        on_a_thread(case.name, || case.run(scale))
    };
    cases.into_iter().map(one).collect()
}

impl Case {
    /// Runs it.
    pub fn run(&self, scale: &Scale) -> anyhow::Result<Figure> {
        let rates = (self.run)(scale)?;
        Ok(Figure {
            name: self.name,
            unit: "ops/s",
            value: rates.work,
            floor: rates.floor,
            ratio: rates.work / rates.floor,
            least_ratio: self.least_ratio,
            target: self.target,
            what: self.what,
        })
    }
}

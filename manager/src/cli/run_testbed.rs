//! `dta-manager run-testbed`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use dta_cli::Status;
use dta_link::fault::Faults;

use crate::testbed::chaos::{self, Chaos};
use crate::testbed::ground::NicKind;
use crate::testbed::processes::unless_ended;
use crate::testbed::run::{self, Options, Testbed};
use crate::testbed::show;
use crate::topology::{RXE, Topology, Transport};

#[derive(Args)]
#[command(after_help = "\
Starts a collector and a translator as processes on loopback, simulates switches that report each packet by all five
primitives, then asks the collector about everything and compares each answer with the truth. Needs no privilege;
without CAP_NET_RAW, corrupt acts on RoCEv2 frames alone: a damaged report cannot leave through an ordinary socket.

Each report ends in exactly one way: queryable, superseded (a newer one of its key), overwritten (other keys, or a turn
of a ring), held, dropped.HOP.REASON, lost.LINK, or unexplained.

Exit status: 0 nothing is wrong and nothing unexplained; 1 something is; 2 the testbed could not be run; 130 or 143 it was
ended by SIGINT or SIGTERM. Then too all processes are ended, and all files removed.

Examples:
  dta-manager run-testbed
  dta-manager run-testbed --pcap traffic.pcap --json outcome.json
  dta-manager run-testbed --faults drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01 --seed 7
  dta-manager run-testbed --transport rc --reports 1000000
  dta-manager run-testbed --nic rxe --transport rc   over real RDMA verbs (root, and a kernel with rdma_rxe)
  dta-manager run-testbed --topology testbed/topologies/crowded.toml
  dta-manager run-testbed --chaos kill-collector  the collector is killed (-9) and started again
  dta-manager run-testbed --chaos kill-translator  the same with the translator
  dta-manager run-testbed --chaos kill-translator --chaos-reports 350000 --reports 1200000   away for long
  dta-manager run-testbed --nic rxe --chaos remove-device  the RDMA device is removed and put back
  dta-manager run-testbed --keep                  then look at it with the dashboard")]
pub(super) struct RunTestbed {
    /// Topology file: network, traffic, stores; the embedded one where not given
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Play a capture (pcap or pcapng) instead of synthetic traffic
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Make exactly this many reports, or as many as the capture gives; sketches of epochs for
    /// which there is no room are left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    reports: Option<u64>,
    /// Seed of traffic and faults: the same seed gives the same run
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Faults on every link and direction, as shares of frames: drop=P,dup=P,reorder=P,corrupt=P
    #[arg(long, value_name = "FAULTS", default_value = "none")]
    faults: Faults,
    /// Faults on reports and NACKs, where they are to be others than those on RoCEv2 frames and answers
    #[arg(long, value_name = "FAULTS")]
    report_faults: Option<Faults>,
    /// Transport of writes; atomics are always on RC
    #[arg(long, value_parser = dta_cli::one_of::<Transport>(&Transport::NAMES))]
    transport: Option<Transport>,
    /// Do something to the daemons in the middle, and see what it costs
    #[arg(long, value_enum, value_name = "WHAT")]
    chaos: Option<Chaos>,
    /// Reports made while it is away; more than 65,536 of one switch, where there are two in each
    /// tier, from 350,000 on
    #[arg(long, value_name = "N", default_value_t = chaos::REPORTS, value_parser = clap::value_parser!(u64).range(1..), requires = "chaos")]
    chaos_reports: u64,
    /// The NIC: the software one on loopback, or the kernel's soft-RoCE behind a veth pair
    #[arg(long, value_enum, default_value_t)]
    nic: NicKind,
    /// Write the outcome as JSON to this file (- for standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave everything running afterwards, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

impl RunTestbed {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let topology = match (&self.topology, self.nic) {
            (None, NicKind::Rxe) => Topology::parse(RXE, "topology of soft-RoCE"),
            (path, _) => Topology::load(path.as_deref()),
        };
        let topology = topology.map_err(dta_cli::misuse)?;
        let options = Options {
            topology,
            capture: self.pcap.clone(),
            reports: self.reports,
            seed: self.seed,
            faults: self.faults,
            report_faults: self.report_faults,
            transport: self.transport,
            chaos: self.chaos,
            chaos_reports: self.chaos_reports,
            nic: self.nic,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = async {
            let bar = super::replay::progress(0);
            bar.set_message("reports");
            let testbed = run::run(&options, |made, of| {
                bar.set_length(of);
                bar.set_position(made);
            })
            .await;
            bar.finish_and_clear();
            let testbed = testbed?;
            self.tell(&testbed)?;
            anyhow::Ok(testbed)
        };
        const SIGNALS: &str = "cannot wait for signals";
        let testbed = match runtime.block_on(unless_ended(run)).context(SIGNALS)? {
            Ok(result) => result?,
            Err(ended) => return Ok(ended.status()),
        };
        if self.keep {
            keep(&testbed)?;
            let ended = runtime.block_on(unless_ended(std::future::pending::<()>()));
            ended.map(drop).context(SIGNALS)?;
        }
        Ok(Status::of(testbed.outcome.is_good()).into())
    }

    fn tell(&self, testbed: &Testbed) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(&testbed.outcome)?;
        match self.json.as_deref() {
            Some(path) if path.as_os_str() == "-" => {
                dta_cli::print(json)?;
                return Ok(());
            }
            Some(path) => std::fs::write(path, json + "\n")
                .with_context(|| format!("cannot write the outcome to {}", path.display()))?,
            None => {}
        }
        dta_cli::print(show::report(&testbed.outcome))?;
        if !self.keep {
            dta_cli::print(format_args!("\n{}", self.next()))?;
        }
        Ok(())
    }

    /// What to try next: what this run did not show.
    fn next(&self) -> String {
        let mut tries = Vec::new();
        if self.faults.is_none() {
            tries.push("--faults drop=0.01,dup=0.01,reorder=0.01   with losses, all of them accounted for");
        }
        if self.pcap.is_none() {
            tries.push("--pcap FILE                                on real traffic");
        }
        if self.topology.is_none() {
            tries.push("--topology testbed/topologies/crowded.toml stores that are far too small");
        }
        tries.push("--keep                                     and look at it with the dashboard");
        format!("Try next: dta-manager run-testbed\n  {}", tries.join("\n  "))
    }
}

fn keep(testbed: &Testbed) -> anyhow::Result<()> {
    let daemons = &testbed.daemons;
    dta_cli::print(format_args!(
        "\nStill running, until Ctrl-C. Look at it from another terminal:\n  \
         dta-collector dashboard --collector {0}\n  dta-collector stats --collector {0}\n  \
         dta-translator stats --translator http://{1}\n  \
         dta-manager replay reports.pcap --to {2}\n\
         (where they are not installed: cargo run --release -p dta-collector -- dashboard …)\nFiles are in {3}.",
        daemons.collector_address,
        daemons.control_address,
        daemons.reports,
        testbed.folder.path().display()
    ))?;
    Ok(())
}

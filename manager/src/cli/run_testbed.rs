//! `dta-manager run-testbed`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use dta_cli::output::OutputFlag;
use dta_cli::table::OutputStyle;
use dta_cli::{CommandStatus, output};
use dta_testbed::bench::{CASES, Scale};
use dta_testbed::bmv2;
use dta_testbed::chaos::Chaos;
use dta_testbed::daemons::ANY_PORT;
use dta_testbed::ground::{FrameIp, FrameSender, NicKind};
use dta_testbed::processes::unless_ended;
use dta_testbed::run::{self, Flags, Testbed, TestbedOptions};
use dta_testbed::show;
use dta_testbed::topology::{RXE, Topology};
use dta_testbed::turns::Turns;
use indicatif::ProgressBar;

#[derive(Args)]
#[command(after_help = "\
Starts a collector and a translator as processes on loopback, simulates switches that report each packet by all primitives, then asks the collector about everything and compares each answer with the truth. Needs no privilege; without CAP_NET_RAW, corrupt acts on RoCEv2 frames alone: a damaged report cannot leave through an ordinary socket.

Each report ends in exactly one way: queryable, superseded (a newer one of its key), overwritten (other keys, or a turn of a ring), held, dropped.HOP.REASON, lost.LINK, or unexplained.

Exit status 4 if something is wrong or unexplained, 1 if the testbed could not be run. SIGINT and SIGTERM end it, and all of its processes; its files are removed.

Examples:
  dta-manager run-testbed
  dta-manager run-testbed --bench
  dta-manager run-testbed --pcap traffic.pcap --json outcome.json
  dta-manager run-testbed --faults drop=0.01,dup=0.01,reorder=0.01,corrupt=0.01
  dta-manager run-testbed --transport rc --reports 1000000
  dta-manager run-testbed --topology testbed/topologies/crowded.toml

Epochs turn while traffic runs (docs/history.md); each is asked afterwards, from memory, from the history, and, on this machine, after the collector was killed:
  dta-manager run-testbed --epochs 3
  dta-manager run-testbed --epochs 10 --pcap traffic.pcap --faults drop=0.1

Left running, where the dashboard and other commands look for a collector:
  dta-manager run-testbed --keep --listen 127.0.0.1:40050

Over IPv6, raw frames on a veth pair (as root):
  dta-manager run-testbed --ip 6

Over real RDMA verbs (as root, on a kernel with rdma_rxe); at both ends, where --faults acts on the wire between the devices:
  dta-manager run-testbed --nic rxe --transport rc
  dta-manager run-testbed --nic rxe --translator-nic rxe --faults drop=0.1
  dta-manager run-testbed --nic rxe --translator-nic rxe --ip 6

Reporter and translator on bmv2 (as root, with simple_switch_grpc on PATH):
  dta-manager run-testbed --switch bmv2 --pcap traffic.pcap
  dta-manager run-testbed --switch bmv2 --collectors 2 \\
      --pcap traffic.pcap -o json
  dta-manager run-testbed --switch bmv2 --nic rxe --pcap traffic.pcap

On other machines, by ssh, where the topology file has tables [[machine]] (docs/testbed-machines.md):
  dta-manager run-testbed --topology hardware.toml --pcap traffic.pcap \\
      --logs logs

            [[machine]]       # a machine has one role or several; all roles
                              # but translator may belong to several machines
            name = \"store1\"
            ssh = \"dta@store1.example\"   # or a Host of ~/.ssh/config
            roles = [\"collector\"]        # collector, translator, host; or, with
                              # a reporter switch, reporter and traffic
            address = \"192.0.2.1\"        # in the network of reports and frames
            deploy = true     # or program = \"PATH of dta-manager there\"

A daemon is killed (-9) and started again, or the RDMA device is removed and put back:
  dta-manager run-testbed --chaos kill-collector
  dta-manager run-testbed --chaos kill-translator --chaos-reports 350000 \\
      --reports 1200000
  dta-manager run-testbed --nic rxe --chaos remove-device")]
pub(super) struct RunTestbed {
    /// Topology file: network, traffic, stores, and the machines to run on [default: the embedded one]
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// Play a capture (pcap or pcapng, also packed with gzip) instead of synthetic traffic
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
    /// Run reporter and translator on switches of this type instead, and replay the capture through
    /// them, once with each packet reported and then with default filters; needs root and
    /// simple_switch_grpc
    #[arg(long, value_enum, value_name = "TYPE", requires = "pcap", conflicts_with_all = [
        "topology", "reports", "seed", "faults", "report_faults", "transport", "translator_nic", "ip", "ring", "no_runs", "chaos_reports", "bench",
        "listen", "keep", "logs",
    ])]
    switch: Option<SwitchType>,
    /// Collectors behind the switches, 1 or 2, which share the keys and lists
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u8).range(1..=2), requires = "switch")]
    collectors: u8,
    /// Give stores of values and paths epochs of three seconds, spread the traffic over N of them, and ask each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    epochs: Option<u32>,
    /// Also write the outcome as JSON to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Finish with a second of `dta-manager bench`: one core, without sockets and processes between
    #[arg(long, conflicts_with = "keep")]
    bench: bool,
    #[command(flatten)]
    output: OutputFlag,
    /// Loopback address of the collector's gRPC [default: a free port]
    #[arg(long, value_name = "ADDR:PORT", default_value_t = ANY_PORT, hide_default_value = true)]
    listen: SocketAddr,
    /// Copy the logs of the topology's machines into this directory, as MACHINE-DAEMON.log
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Leave everything running until Ctrl-C
    #[arg(long)]
    keep: bool,
}

/// How many epochs turn until the benchmarks of `--bench` are over.
const GLANCED_EPOCHS: u32 = 3;
const SIGNALS: &str = "cannot wait for signals";

/// A bar that counts something; its total becomes known with the first one.
fn named_progress_bar(what: &'static str) -> ProgressBar {
    let bar = super::replay::progress_bar(0);
    bar.set_message(what);
    bar
}

fn advance_bar(bar: &ProgressBar, so_far: u64, of: u64) {
    bar.set_length(of);
    bar.set_position(so_far);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SwitchType {
    /// bmv2's simple_switch_grpc
    Bmv2,
}

/// A second of the single-process benchmarks.
fn run_benchmarks() -> anyhow::Result<()> {
    super::bench::warn_of_debug();
    let figures =
        dta_testbed::bench::run_cases(CASES.iter().filter(|case| case.glance), &Scale::GLANCE, |_| {})?;
    let table = dta_testbed::bench::render_figures(&figures, OutputStyle::for_stdout());
    dta_cli::print_line(format_args!(
        "\nOne core, without sockets and processes between (dta-manager bench measures this with care):\n{table}"
    ))?;
    Ok(())
}

impl RunTestbed {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let (Some(SwitchType::Bmv2), Some(pcap)) = (self.switch, &self.pcap) {
            let options = bmv2::SwitchRunOptions {
                capture: pcap.clone(),
                collectors: self.collectors,
                nic: self.flags.nic,
                epochs: self.epoch_turns(),
                chaos: self.flags.chaos,
            };
            return self.run_on_bmv2(&options);
        }
        let has_rxe = (self.flags.nic, self.flags.translator_nic) != (NicKind::Soft, FrameSender::Soft);
        let topology = match &self.topology {
            None if has_rxe => Topology::parse_and_check(RXE, "topology of soft-RoCE"),
            path => Topology::load(path.as_deref()),
        };
        self.check_sender()?;
        let topology = topology.map_err(dta_cli::misuse_error)?;
        if topology.has_reporter_switch() {
            return self.on_switches_there(topology);
        }
        let options = TestbedOptions {
            topology,
            capture: self.pcap.clone(),
            flags: self.flags.clone(),
            listen: self.listen,
            page: self.keep,
            epochs: self.epoch_turns(),
            logs: self.logs.clone(),
        };
        self.check_machines(&options.topology)?;
        let runtime = build_runtime()?;
        let run = async {
            let bar = named_progress_bar("reports");
            let testbed = run::run(&options, |made, of| advance_bar(&bar, made, of)).await;
            bar.finish_and_clear();
            let testbed = testbed?;
            let is_good = self.print_outcome(&testbed).await?;
            anyhow::Ok((testbed, is_good))
        };
        let (testbed, is_good) = match runtime.block_on(unless_ended(run)).context(SIGNALS)? {
            Ok(result) => result?,
            Err(ended) => return Ok(ended.exit_status()),
        };
        if self.keep {
            announce_running(&testbed)?;
            let ended = runtime.block_on(unless_ended(std::future::pending::<()>()));
            ended.map(drop).context(SIGNALS)?;
        }
        Ok(CommandStatus::from_check(is_good).into())
    }

    /// The epochs of `--epochs`; with `--bench`, those that pass anyway.
    fn epoch_turns(&self) -> Option<Turns> {
        let glanced = Turns { count: GLANCED_EPOCHS, spread: false };
        let spread = self.epochs.map(|count| Turns { count, spread: true });
        spread.or(self.should_benchmark().then_some(glanced))
    }

    /// Whether the single-process benchmarks follow.
    fn should_benchmark(&self) -> bool {
        self.bench && !self.output.is_json()
    }

    /// Options that do not fit a device that sends the translator's frames.
    fn check_sender(&self) -> anyhow::Result<()> {
        let refuse = |what: &str| Err(dta_cli::misuse_error(anyhow::anyhow!("{what}")));
        let Flags { nic, translator_nic, faults, chaos, ip, .. } = &self.flags;
        match translator_nic {
            FrameSender::Soft => Ok(()),
            FrameSender::Rxe if *nic != NicKind::Rxe && chaos.is_some() => {
                refuse("--chaos with --translator-nic rxe needs a device at both ends: add --nic rxe")
            }
            FrameSender::Rxe if *nic != NicKind::Rxe && *ip == FrameIp::V6 => {
                refuse("--ip 6 with --translator-nic rxe needs a device at both ends: add --nic rxe")
            }
            FrameSender::Rxe if !(faults.is_none() || faults.only_drop()) => refuse(
                "with --translator-nic rxe, --faults acts on the wire, where only drops are counted: --faults drop=0.1",
            ),
            FrameSender::Rxe => Ok(()),
        }
    }

    /// Options that are not possible on other machines, or only there.
    fn check_machines(&self, topology: &Topology) -> anyhow::Result<()> {
        let refuse = |what: &str| Err(dta_cli::misuse_error(anyhow::anyhow!("{what}")));
        if topology.machines.is_empty() {
            return match self.logs {
                Some(_) => {
                    refuse("--logs copies the logs of other machines here: the topology has no [[machine]]")
                }
                None => Ok(()),
            };
        }
        let here = [
            ("--chaos", self.flags.chaos.is_some()),
            ("--nic", self.flags.nic != NicKind::default()),
            ("--ip", self.flags.ip != FrameIp::default()),
            ("--translator-nic", self.flags.translator_nic != FrameSender::default()),
            ("--listen", self.listen != ANY_PORT),
        ];
        if let Some((flag, _)) = here.iter().find(|(_, given)| *given) {
            return refuse(&format!(
                "{flag} is for a testbed on this machine: the topology has machines of its own"
            ));
        }
        let Some(switch) = topology.machines.iter().find(|machine| machine.switch.is_some()) else {
            return Ok(());
        };
        if self.epoch_turns().is_some() && switch.simple_switch.is_empty() {
            return refuse(
                "--epochs and --bench need a switch that the run starts (`simple_switch` of its machine): `dta-translator \
                 watch` holds it meanwhile, and a Tofino accepts no second control plane, which reads its counters",
            );
        }
        if !self.flags.faults.is_none() {
            return refuse(
                "--faults is for links between programs of software, which play the faults: the topology has a switch. Its \
                 reports can be dropped: --report-faults drop=0.1",
            );
        }
        match self.flags.report_faults.is_none_or(|faults| faults.is_none() || faults.only_drop()) {
            true => Ok(()),
            false => refuse(
                "--report-faults can only drop reports to a switch: it takes repeats (docs/reference-mode.md), which lists \
                 and counters would show",
            ),
        }
    }

    fn run_on_bmv2(&self, options: &bmv2::SwitchRunOptions) -> anyhow::Result<ExitCode> {
        if options.nic == NicKind::Rxe && options.collectors > 1 {
            return Err(dta_cli::misuse_error(anyhow::anyhow!(
                "--nic rxe has one collector: leave --collectors out"
            )));
        }
        match options.chaos {
            None => {}
            Some(Chaos::RemoveDevice | Chaos::RemoveSender) => {
                return Err(dta_cli::misuse_error(anyhow::anyhow!(
                    "--chaos remove-device and remove-sender are for a translator of software: leave --switch out"
                )));
            }
            Some(_) if options.epochs.is_none() => {
                return Err(dta_cli::misuse_error(anyhow::anyhow!(
                    "--chaos with --switch needs --epochs: without epochs, the switches are programmed once, and nothing \
                     keeps them in step with the collector"
                )));
            }
            Some(_) => {}
        }
        bmv2::enter_own_namespace(options.nic)?;
        let runtime = build_runtime()?;
        let bar = named_progress_bar("packets");
        let run = bmv2::run(options, |sent, of| advance_bar(&bar, sent, of));
        self.log_switches(&runtime, run, &bar)
    }

    /// A reporter switch, and everything else, on other machines.
    fn on_switches_there(&self, topology: Topology) -> anyhow::Result<ExitCode> {
        let refuse = |what: &str| Err(dta_cli::misuse_error(anyhow::anyhow!("{what}")));
        self.check_machines(&topology)?;
        let of_simulated = [
            ("--reports", self.flags.reports.is_some()),
            ("--transport", self.flags.transport.is_some()),
            ("--workers", self.flags.workers != 1),
            ("--nic-threads", self.flags.nic_threads != 1),
            ("--keep", self.keep),
            ("--bench", self.bench),
            ("--epochs", self.epochs.is_some()),
            ("--report-faults", self.flags.report_faults.is_some()),
        ];
        if let Some((flag, _)) = of_simulated.iter().find(|(_, given)| *given) {
            return refuse(&format!("{flag} is not possible with a machine of the role reporter"));
        }
        let Some(capture) = self.pcap.clone() else {
            return refuse("a machine of the role reporter forwards a capture: give one with --pcap");
        };
        let options = bmv2::OptionsOnMachines { topology, capture, logs: self.logs.clone() };
        let runtime = build_runtime()?;
        let bar = named_progress_bar("packets");
        let run = bmv2::run_on_machines(&options, |sent, of| advance_bar(&bar, sent, of));
        self.log_switches(&runtime, run, &bar)
    }

    /// Waits for a run of switches, whose packets `bar` shows, and prints the result.
    fn log_switches(
        &self,
        runtime: &tokio::runtime::Runtime,
        run: impl Future<Output = anyhow::Result<bmv2::SwitchRunOutcome>>,
        bar: &ProgressBar,
    ) -> anyhow::Result<ExitCode> {
        let ended = runtime.block_on(unless_ended(run)).context(SIGNALS)?;
        bar.finish_and_clear();
        let outcome = match ended {
            Ok(outcome) => outcome?,
            Err(ended) => return Ok(ended.exit_status()),
        };
        let document = outcome.to_testbed_outcome();
        if let Some(path) = &self.json {
            output::json_file(path, &document)?;
        }
        self.output.print_document(&document, |_| outcome.to_string())?;
        Ok(CommandStatus::from_check(outcome.is_success()).into())
    }

    /// Prints the result; returns whether it is good.
    async fn print_outcome(&self, testbed: &Testbed) -> anyhow::Result<bool> {
        let mut is_good = testbed.outcome.is_success();
        if let Some(path) = &self.json {
            output::json_file(path, &testbed.outcome)?;
        }
        self.output.print_document(&testbed.outcome, show::render_report)?;
        if self.should_benchmark() {
            run_benchmarks()?;
            let again = testbed.ask_again(GLANCED_EPOCHS).await?;
            is_good &= again.changed.is_none();
            dta_cli::print_line(format_args!("\n{}", show::render_repeated_answers(&again)))?;
            // The table above has scrolled it off a screen of 24 lines.
            dta_cli::print_line(format_args!(
                "\nThe run before these figures was {}",
                show::verdict_line(&testbed.outcome)
            ))?;
        }
        if !self.keep && !self.output.is_json() {
            dta_cli::print_line(format_args!("\n{}", self.next()))?;
        }
        Ok(is_good)
    }

    /// What to try next: what this run did not show.
    fn next(&self) -> String {
        let program = std::env::args().next().unwrap_or_else(|| "dta-manager".to_owned());
        let mut tries = Vec::new();
        if self.flags.faults.is_none() {
            tries.push("--faults drop=0.01,dup=0.01,reorder=0.01   with losses, all accounted for");
        }
        if self.pcap.is_none() {
            tries.push("--pcap FILE                                on real traffic");
        }
        if self.topology.is_none() {
            tries.push("--topology testbed/topologies/crowded.toml stores that are far too small");
        }
        tries.push("--keep                                     and look at it with the dashboard");
        format!(
            "Try next: {program} run-testbed\n  {}\nA network to look at in a browser:\n  {program} demo",
            tries.join("\n  ")
        )
    }
}

/// A runtime that keeps working while a thread waits for another machine to end: the tunnels to it must end, too.
fn build_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

fn announce_running(testbed: &Testbed) -> anyhow::Result<()> {
    let daemons = &testbed.daemons;
    dta_cli::print_line(format_args!(
        "\nStill running, until Ctrl-C.{4} Look at it from another terminal:\n  \
         dta-collector dashboard --collector {0}\n  dta-collector stats --collector {0}\n  \
         dta-collector top --by bytes --collector {0}\n  \
         dta-translator stats --translator http://{1}\n  \
         dta-manager replay FILE --translator {2}         DTA reports of a pcap file\n\
         (where they are not installed: cargo run --release -p dta-collector -- dashboard …)\nFiles are in {3}.",
        daemons.collector_addresses(),
        daemons.control_address,
        daemons.reports,
        testbed.folder.folder_path().display(),
        daemons.page_url().map(|url| format!(" Open {url} in a browser.")).unwrap_or_default()
    ))?;
    Ok(())
}

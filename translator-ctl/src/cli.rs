//! The program's command line.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use comfy_table::{Table, presets::UTF8_HORIZONTAL_ONLY};
use dta_cli::config_file::{self, Places};
use dta_cli::program::Common;
use dta_cli::{LogFormat, Status};
use dta_client::translator::Client;
use dta_link::fault::Faults;
use dta_proto::control::NodeStatistics;
use serde_json::json;
use tracing::info;

use crate::collectors::Collectors;
use crate::config::{Config, ConfigError, EXAMPLE, Translator};
use crate::control_address::ControlAddress;
use crate::program::{changes_json, changes_table, program_json, program_table};
use crate::run::{self, Options};
use crate::setup;

/// Turns telemetry reports into RDMA operations on a collector's memory.
#[derive(Parser)]
#[command(
    name = "dta-translator",
    version,
    after_help = "Examples:\n  \
        dta-translator run                             translate, with a collector on this host\n  \
        dta-translator run --collector http://10.0.0.5:40050 --listen 10.0.0.6:40040 --source 10.0.0.6\n  \
        dta-translator stats                           what the running translator counted\n  \
        dta-translator plan --against http://127.0.0.1:40051\n  \
        dta-translator plan --switch tor1 --against    what the switch of [switch.tor1] lacks\n  \
        dta-translator setup --switch tor1             program the switch of [switch.tor1]\n\n\
        Every flag of `run` that configures has a key in the file and a DTA_TRANSLATOR_* variable. Flags go before variables, variables before \
        the file. `dta-translator check-config` prints what results."
)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Settings {
    /// TOML file; `none` reads no file [default: ~/.config/dta/translator.toml or
    /// /etc/dta/translator.toml, if there is one; else the defaults serve a collector on this host]
    #[arg(long, short, global = true, env)]
    config: Option<PathBuf>,
    /// Name of the session in the collector [default: translator]
    #[arg(long, global = true, env)]
    name: Option<String>,
    /// The collector's gRPC address; several collectors, 16 at most, by a comma between their
    /// addresses [default: http://127.0.0.1:40050]
    #[arg(long, global = true, env, value_name = "HOST:PORT", value_delimiter = ',')]
    collector: Option<Vec<String>>,
    /// What to log, for instance `info` or `dta_translator=debug`
    #[arg(long, global = true, env, default_value = "info")]
    log: String,
    /// How to write the log
    #[arg(long, global = true, env, value_name = "FORMAT", default_value = "text", value_parser = dta_cli::one_of::<LogFormat>(&LogFormat::NAMES))]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Take reports and write them into the collector's memory
    #[command(after_help = "Examples:\n  \
        dta-translator run\n  \
        dta-translator run --faults drop=0.01,dup=0.01 --seed 7 --ledger /tmp/ledger\n  \
        dta-translator run --link eth1 --source 10.9.0.2 --collector https://10.9.0.1:40050\n  \
        dta-translator run --collector 10.0.0.5:40050,10.0.0.7:40050 --listen 10.0.0.6:40040 --source 10.0.0.6\n  \
        dta-translator run --check-config --config translator.toml\n\n\
        With several collectors, each has stores of its own, and a session of this translator's name. It is ready when one of them is \
        programmed and each of the others is, too, or could not be: it is away, or refuses. Those are tried again until they do; their stores \
        are not known before, so reports for them are dropped as `unknown_store`. A collector that goes away, or ends the session, later \
        does not stop the others: its reports go to its queue pairs until the session has ended, and are dropped as `no_queue_pair` then. A store \
        that two collectors offer (same name or same id) ends the start.\n\n\
        SIGHUP reads the configuration again: TLS files, stores and lists, flush times, reporters, version 0 and the lease change; \
        anything else that has changed is told, and then nothing changes.\n\n\
        Ends on SIGINT or SIGTERM after sending everything it holds. The session stays in the collector until its lease runs out, and \
        the next start under the same name resumes it; `dta-translator teardown` ends it at once.")]
    Run(Box<RunArgs>),
    /// Program a switch of the configuration; a second time changes nothing, and after a failure
    /// does what was left
    Setup(SetupArgs),
    /// Print what a switch should hold, or what it lacks
    #[command(after_help = "Examples:\n  \
        dta-translator plan                                      what the session gives\n  \
        dta-translator plan --against http://127.0.0.1:40051     the difference to a running translator\n  \
        dta-translator plan --switch tor1                        what the session of [switch.tor1] gives\n  \
        dta-translator plan --switch tor1 --against              the difference to that switch\n  \
        dta-translator plan --output json | jq '.[] | select(.table == \"store\")'\n\n\
        Changes nothing: neither in the collector nor in a switch. Of a session that is not open yet, queue pair numbers and keys are 0.")]
    Plan(PlanArgs),
    /// Print what a running translator counts
    Stats(ControlArgs),
    /// Make a running translator send everything that it holds
    Flush(ControlArgs),
    /// End a session, with each collector: its queue pairs and keys end, what is in memory stays
    Teardown(TeardownArgs),
    /// Print the configuration that results from file, variables and flags, and check it
    CheckConfig,
    /// Print a commented configuration to start from
    #[command(
        after_help = "Example:\n  dta-translator config --example > translator.toml\n  dta-translator run --check-config --config translator.toml"
    )]
    Config {
        /// Print a commented file with every setting and its default
        #[arg(long, required = true)]
        example: bool,
    },
    #[command(flatten)]
    Common(Common),
}

#[derive(Args)]
struct RunArgs {
    /// Where reports are taken [default: 127.0.0.1:40040]
    #[arg(long, env)]
    listen: Option<SocketAddr>,
    /// Address that RoCEv2 frames come from and answers go to [default: 127.0.0.2]
    #[arg(long, env)]
    source: Option<IpAddr>,
    /// UDP port on which answers are taken; 0 lets the kernel choose [default: 4791]
    #[arg(long, env)]
    source_port: Option<u16>,
    /// Interface on which frames leave and come in whole, which an RDMA NIC needs; without it, a UDP socket
    #[arg(long, env, value_name = "INTERFACE")]
    link: Option<String>,
    /// Where statistics, flush and program are served over gRPC; with TLS, a program only over
    /// unix:PATH [default: 127.0.0.1:40051]
    #[arg(long, env, value_name = "ADDR:PORT|unix:PATH")]
    control: Option<ControlAddress>,
    /// Stores wanted of the only collector, by name; all if not given
    #[arg(long, env, value_delimiter = ',')]
    stores: Option<Vec<String>>,
    /// No coalescing and no timed flush, so that different targets make equal bytes
    #[arg(long, env)]
    reference: bool,
    /// Faults on frames (and on NACKs): drop=P,dup=P,reorder=P,corrupt=P
    #[arg(long, env, default_value = "none")]
    faults: Faults,
    /// Faults on NACKs, where they are to be others
    #[arg(long, env)]
    nack_faults: Option<Faults>,
    /// Faults on the NIC's answers as they come in, for a NIC that injects none itself
    #[arg(long, env, default_value = "none")]
    answer_faults: Faults,
    /// Seed of the faults
    #[arg(long, env, default_value_t = 1)]
    seed: u64,
    /// Write there which report copies did not arrive as they were sent (for testbeds)
    #[arg(long, env)]
    ledger: Option<PathBuf>,
    /// Print one line of JSON on stdout once reports are taken
    #[arg(long)]
    ready: bool,
    /// Open no session; wait to be programmed by `dta-translator setup`
    #[arg(long)]
    blank: bool,
    /// Check configuration and flags, and end
    #[arg(long)]
    check_config: bool,
}

#[derive(Args)]
struct SetupArgs {
    /// Name of a [switch.NAME] table in the configuration
    #[arg(long)]
    switch: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct PlanArgs {
    /// Plan for the session of this [switch.NAME], instead of that of [translator]
    #[arg(long, value_name = "NAME")]
    switch: Option<String>,
    /// Print only what is lacking: to the running translator at this gRPC address or, without one,
    /// to the switch of --switch
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
    against: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct TeardownArgs {
    /// End the session of this [switch.NAME], instead of that of [translator]
    #[arg(long, value_name = "NAME")]
    switch: Option<String>,
}

#[derive(Args)]
struct OutputArgs {
    /// How to print
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// Print remote keys: whoever knows them can write to the collector's memory
    #[arg(long)]
    show_secrets: bool,
}

#[derive(Args)]
struct ControlArgs {
    /// gRPC address of the running translator: HOST:PORT or unix:PATH
    #[arg(long, env, default_value = "http://127.0.0.1:40051")]
    translator: String,
    /// How to print
    #[arg(long, short, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

impl Cli {
    /// Refuses what the parser does not know to be wrong.
    fn checked(self) -> Result<Cli, clap::Error> {
        if let Command::Plan(PlanArgs { against: Some(address), switch: None, .. }) = &self.command
            && address.is_empty()
        {
            let message = "--against without an address takes that of --switch NAME, which is missing";
            return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, message));
        }
        Ok(self)
    }
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    main_from(std::env::args_os())
}

/// The program has no features of cargo's.
const FEATURES: &[&str] = &[];

/// Runs the program with these arguments, the first being its name.
pub fn main_from(args: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    dta_cli::program::run(args, FEATURES, |cli: Cli| {
        let cli = cli.checked().unwrap_or_else(|error| error.exit());
        dta_cli::log(&cli.settings.log, cli.settings.log_format);
        // A wrong configuration is wrong use, wherever it is noticed.
        dispatch(cli).map(|()| Status::Done).map_err(|error| match error.is::<ConfigError>() {
            true => dta_cli::misuse(error),
            false => error,
        })
    })
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    // They need no configuration.
    match &cli.command {
        Command::Common(common) => return common.run::<Cli>(FEATURES).map(drop),
        Command::Config { .. } => return print(EXAMPLE.trim_end()),
        Command::Stats(args) => return block_on(stats(args)),
        Command::Flush(args) => return block_on(flush(args)),
        _ => {}
    }
    let config = configuration(&cli)?;
    match &cli.command {
        Command::Run(args) if args.check_config => print_config(&config),
        Command::Run(args) => run::run(
            &config.translator,
            &Options {
                faults: args.faults,
                nack_faults: args.nack_faults,
                answer_faults: args.answer_faults,
                seed: args.seed,
                ledger: args.ledger.clone(),
                ready: args.ready,
                blank: args.blank,
            },
            &|| Ok(configuration(&cli)?.translator),
        ),
        Command::CheckConfig => print_config(&config),
        Command::Common(_) | Command::Config { .. } | Command::Stats(_) | Command::Flush(_) => Ok(()),
        Command::Setup(args) => block_on(async {
            let changes = setup::setup(&config, &args.switch).await?;
            print(&match args.output.output {
                Format::Json => changes_json(&changes, args.output.show_secrets).to_string(),
                Format::Table => changes_table(&changes, args.output.show_secrets),
            })
        }),
        Command::Plan(args) => block_on(plan(&config, args)),
        Command::Teardown(args) => {
            block_on(async { teardown(&session_of(&config, args.switch.as_deref())?).await })
        }
    }
}

/// The file, with flags and variables over it.
fn configuration(cli: &Cli) -> anyhow::Result<Config> {
    let path = config_file::place(cli.settings.config.as_deref(), "translator.toml");
    let (mut config, mut places) = match &path {
        Some(path) => Config::load(path)?,
        None => Default::default(),
    };
    match (&path, &cli.command) {
        (Some(path), _) => info!(config = %path.display(), "the configuration was read"),
        (None, Command::Run(_)) => info!("no configuration file: the defaults are served"),
        (None, _) => {}
    }
    // What a flag says is not the file's fault.
    let forget = |places: &mut Places, key: &str, given: bool| {
        if given {
            places.forget(&format!("translator.{key}"));
        }
    };
    forget(&mut places, "name", cli.settings.name.is_some());
    forget(&mut places, "collector", cli.settings.collector.is_some());
    let t = &mut config.translator;
    set(&mut t.name, &cli.settings.name);
    set(&mut t.collector, &cli.settings.collector.clone().map(Collectors::at));
    if let Command::Run(args) = &cli.command {
        for (key, given) in [
            ("listen", args.listen.is_some()),
            ("source", args.source.is_some()),
            ("source_port", args.source_port.is_some()),
            ("link", args.link.is_some()),
            ("control", args.control.is_some()),
            ("stores", args.stores.is_some()),
        ] {
            forget(&mut places, key, given);
        }
        set(&mut t.listen, &args.listen);
        set(&mut t.source, &args.source);
        set(&mut t.source_port, &args.source_port);
        if args.link.is_some() {
            t.link.clone_from(&args.link);
        }
        set(&mut t.control, &args.control);
        set(&mut t.stores, &args.stores);
        t.reference |= args.reference;
    }
    config.check().map_err(|error| error.at(&places))?;
    Ok(config)
}

/// The translator whose session is meant: a switch, or the translator itself.
fn session_of(config: &Config, switch: Option<&str>) -> Result<Translator, ConfigError> {
    match switch {
        Some(switch) => config.translator_of(switch),
        None => Ok(config.translator.clone()),
    }
}

fn set<T: Clone>(value: &mut T, over: &Option<T>) {
    if let Some(over) = over {
        *value = over.clone();
    }
}

fn print_config(config: &Config) -> anyhow::Result<()> {
    print(toml::to_string(config).context("cannot write the configuration")?.trim_end())
}

fn block_on(future: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(dta_cli::print(text)?)
}

async fn plan(config: &Config, args: &PlanArgs) -> anyhow::Result<()> {
    let secrets = args.output.show_secrets;
    let translator = session_of(config, args.switch.as_deref())?;
    let want = setup::planned(&translator).await?;
    let changes = match (args.against.as_deref(), &args.switch) {
        (None, _) => {
            return print(&match args.output.output {
                Format::Json => program_json(&want, secrets).to_string(),
                Format::Table => program_table(&want, secrets),
            });
        }
        (Some(""), Some(switch)) => setup::switch_lacks(config, switch, &want).await?,
        (Some(control), _) => setup::lacks(&translator, control, &want).await?,
    };
    print(&match args.output.output {
        Format::Json => changes_json(&changes, secrets).to_string(),
        Format::Table => changes_table(&changes, secrets),
    })
}

async fn teardown(config: &Translator) -> anyhow::Result<()> {
    let (ended, errors) = setup::teardown(config).await;
    for address in ended {
        match config.collector.count() {
            1 => print(&format!("session {} has ended", config.name))?,
            _ => print(&format!("session {} at {address} has ended", config.name))?,
        }
    }
    match &errors.iter().map(ToString::to_string).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        errors => Err(anyhow::anyhow!(errors.join("; "))),
    }
}

async fn stats(args: &ControlArgs) -> anyhow::Result<()> {
    let nodes = Client::connect_lazy(&args.translator)?.statistics().await?;
    print(&match args.output {
        Format::Json => nodes_json(&nodes).to_string(),
        Format::Table => nodes_table(&nodes),
    })
}

fn nodes_json(nodes: &[NodeStatistics]) -> serde_json::Value {
    let counters = |n: &NodeStatistics| {
        n.counters.iter().map(|c| (c.name.clone(), json!(c.value))).collect::<serde_json::Map<_, _>>()
    };
    nodes.iter().map(|n| json!({"node": n.node, "counters": counters(n)})).collect()
}

fn nodes_table(nodes: &[NodeStatistics]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(["node", "counter", "value"]);
    for node in nodes {
        let mut name = node.node.as_str();
        for counter in node.counters.iter().filter(|c| c.value != 0) {
            table.add_row([name.to_string(), counter.name.clone(), counter.value.to_string()]);
            name = "";
        }
    }
    table.to_string()
}

async fn flush(args: &ControlArgs) -> anyhow::Result<()> {
    let flushed = Client::connect_lazy(&args.translator)?.flush().await?;
    print(&match args.output {
        Format::Json => json!({ "flushed": flushed }).to_string(),
        Format::Table => format!("{flushed} reports were held and are on their way"),
    })
}

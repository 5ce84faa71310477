//! The program's command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use dta_cli::number::{format_count, format_grouped};
use dta_cli::output::OutputFlag;
use dta_cli::program::{Common, Example};
use dta_cli::table::TextTable;
use dta_cli::{CommandStatus, LogFormat, counters};
use dta_files::config_file;
use dta_files::host;
use dta_link::Wire;
use dta_link::shared_ring::RingUse;
use dta_proto::control::NodeStatistics;
use dta_proto::counter::Stage;
use dta_proto::program::DataPlaneChange;
use dta_rpc::translator::RemoteTranslator;
use serde::Serialize;
use serde_json::json;
use tracing::info;

use crate::collectors::Collectors;
use crate::config::{
    Config, ConfigError, EXAMPLE, FlowListener, IntListener, ListenAddress, TranslatorConfig,
};
use crate::control_address::ControlAddress;
use crate::program::{changes_json, changes_table, program_json, program_table};
use crate::reporter_tables::{tables_json, tables_table, updates_json, updates_table};
use crate::reporter_watch;
use crate::run::{self, TranslatorRunOptions};
use crate::setup;
use crate::switch_watch;
use crate::targets::{any_switch, reporter_switch};
use dta_switch::After;

/// Turns telemetry reports into RDMA operations on a collector's memory.
#[derive(Parser)]
#[command(
    name = "dta-translator",
    version,
    after_help = "Examples:\n  \
        dta-translator run                            with a collector on this host\n  \
        dta-translator run --collector 10.0.0.5:40050 --listen 10.0.0.6:40040 \\\n      \
            --source 10.0.0.6\n  \
        dta-translator stats                          counters of the running one\n  \
        dta-translator plan --against 127.0.0.1:40051\n  \
        dta-translator plan --switch tor1 --against   what [switch.tor1] lacks\n  \
        dta-translator setup --switch tor1            program [switch.tor1]\n\n\
        Every configuration flag of `run` has a key in the file and a DTA_TRANSLATOR_* variable. Flags \
        override variables, variables override the file. `dta-translator check-config` prints the result."
)]
struct TranslatorCli {
    #[command(flatten)]
    settings: TranslatorFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct TranslatorFlags {
    /// TOML file; `none` reads no file [default: ~/.config/dta/translator.toml or /etc/dta/translator.toml,
    /// if there is one; else defaults for a collector on this host]
    #[arg(long, short, global = true, env)]
    config: Option<PathBuf>,
    /// Name of the session in the collector [default: translator]
    #[arg(long, global = true, env)]
    name: Option<String>,
    /// The collector's gRPC address; up to 64 collectors as addresses separated by commas [default:
    /// http://127.0.0.1:40050]
    #[arg(long, global = true, env, value_name = "HOST:PORT", value_delimiter = ',')]
    collector: Option<Vec<String>>,
    /// Use the collectors of the cluster in etcd, as they come and go: etcd://HOST:PORT[,HOST:PORT][/PREFIX]
    #[arg(long, global = true, env, value_name = "URL", conflicts_with = "collector")]
    cluster: Option<dta_cluster::Config>,
    /// What to log, such as `info` or `dta_translator=debug`
    #[arg(long, global = true, env, default_value = "info")]
    log: String,
    /// Log format
    #[arg(long, global = true, env, value_name = "FORMAT", default_value = "text", value_parser = dta_cli::one_of_names::<LogFormat>(&LogFormat::NAMES))]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Receive reports and write them into the collector's memory
    #[command(after_help = "Examples:\n  \
        dta-translator run\n  \
        dta-translator run --faults drop=0.01,dup=0.01 --seed 7 --ledger /tmp/ledger\n  \
        dta-translator run --link eth1 --source 10.9.0.2 --collector 10.9.0.1:40050\n  \
        dta-translator run --collector 10.0.0.5:40050,10.0.0.7:40050 \\\n      \
            --listen 10.0.0.6:40040 --source 10.0.0.6\n  \
        dta-translator run --cluster etcd://10.0.0.1:2379 \\\n      \
            --listen 10.0.0.6:40040 --source 10.0.0.6\n  \
        dta-translator run --int 'udp://0.0.0.0:32766?dialect=sdfabric'\n  \
        dta-translator run --flows udp://0.0.0.0:2055 --sflow udp://0.0.0.0:6343\n  \
        dta-translator run --listen xdp:eth1 --int xdp:eth1 --flows xdp:eth1\n  \
        dta-translator check-config --config translator.toml\n\n\
        Each of several collectors has its own stores, and a session with this translator's name. The \
        translator is ready when one session is open and every other collector was tried: one that is \
        unreachable or refuses is tried again. Until it answers, its stores are unknown, and reports for \
        them are dropped as `unknown_store`. A collector that later fails or ends the session does not \
        stop the others: its reports go to its queue pairs until the session ends, and are then dropped as \
        `no_queue_pair`. If two collectors offer the same store (by name or id), the translator does not \
        start.\n\n\
        SIGHUP reloads the configuration: TLS files, stores and lists, flush times, reporters, version 0 \
        and the lease can change. If anything else has changed, the reload is refused with an error and \
        nothing changes.\n\n\
        Ends on SIGINT or SIGTERM after sending everything it holds. The session remains open at the \
        collector until its lease expires, and the next start under the same name resumes it; \
        `dta-translator teardown` ends it at once.")]
    Run(Box<RunArgs>),
    /// Program a switch of the configuration. Repeating it changes nothing; after a failure it does the rest
    #[command(after_help = "\
A switch with role = \"reporter\" has no session: the configuration says what it reports. `plan`, `status`, `stats`, `watch` and `teardown` support it; `flush` does not.

Example:
  dta-translator setup --switch edge1")]
    Setup(SwitchArgs),
    /// Print what a switch should hold, or what it lacks
    #[command(after_help = "Examples:\n  \
        dta-translator plan                             the session's program\n  \
        dta-translator plan --against 127.0.0.1:40051   what a running one lacks\n  \
        dta-translator plan --switch tor1               the program of [switch.tor1]\n  \
        dta-translator plan --switch tor1 --against     what that switch lacks\n  \
        dta-translator plan -o json | jq '.[] | select(.table == \"store\")'\n\n\
        Changes nothing, neither at the collector nor in a switch. If the session is not open yet, queue \
        pair numbers and rkeys are 0.")]
    Plan(PlanArgs),
    /// Print the counters of a running translator or a switch
    #[command(after_help = "Examples:\n  \
        dta-translator stats\n  \
        dta-translator stats --switch edge1")]
    Stats(ControlArgs),
    /// Make a running translator or a switch send everything it holds
    #[command(after_help = "\
A switch sends its lists, postcard rows and sketch columns.

Examples:
  dta-translator flush
  dta-translator flush --switch leaf1")]
    Flush(ControlArgs),
    /// Print a switch's entries as they were written, in the format of `plan`
    #[command(after_help = "Example:\n  dta-translator status --switch edge1")]
    Status(SwitchArgs),
    /// Keep a P4 switch programmed: renew its lease, follow the collector, flush by age; reprogram a reporter
    /// when needed
    #[command(after_help = "\
The switch is programmed as by `setup`, with a lease that is renewed. When a collector restarts or a queue \
pair changes, it is programmed again. Batches and paths older than the flush times \
([translator.flush]) are sent, and sketch columns once per flush time: a switch sends none of them on its \
own. A silent RC queue pair is probed and, if it does not answer, replaced. In a cluster \
([translator.cluster]), the switch is programmed again when collectors come and go.

A switch with role = \"reporter\" has no lease: it is checked every two seconds, and reprogrammed if it \
restarted or its entries were changed. Counters that changed are logged every minute and at the end.

Ends on SIGINT or SIGTERM. The switch continues as it is, and the session remains open at the collector \
until its lease expires.

Example:
  dta-translator watch --switch leaf1")]
    Watch(WatchArgs),
    /// End a session with every collector: its queue pairs and rkeys end, memory stays
    #[command(after_help = "\
A P4 switch first sends what it holds, and is then cleared except for forwarding. A reporter has no \
session: it stops reporting.

Example:
  dta-translator teardown --switch tor1")]
    Teardown(TeardownArgs),
    /// Check the configuration that results from file, variables and flags
    #[command(after_help = "\
Takes the flags and variables of `run`, but starts nothing. Prints the resulting configuration as a file.

Example:
  dta-translator check-config --config translator.toml")]
    CheckConfig(Box<TranslatorRunFlags>),
    /// Print a commented configuration to start from
    #[command(
        after_help = "Example:\n  dta-translator config --example > translator.toml\n  dta-translator check-config --config translator.toml"
    )]
    Config(Example),
    #[command(flatten)]
    Common(Common),
}

#[derive(Args)]
struct RunArgs {
    #[command(flatten)]
    own: TranslatorRunFlags,
    #[command(flatten)]
    options: TranslatorRunOptions,
}

/// Settings that apply only to the running translator.
#[derive(Args)]
struct TranslatorRunFlags {
    /// Where to receive reports: an address, or an interface by AF_XDP (xdp:eth1 or xdp:eth1:40040)
    /// [default: 127.0.0.1:40040]
    #[arg(long, env, value_name = "HOST:PORT|xdp:INTERFACE")]
    listen: Option<ListenAddress>,
    /// Threads that receive reports and flow exports and send frames, 1 to 16; each has its share of the
    /// keys, lists, columns and exporters [default: 1]
    #[arg(long, env, value_name = "N")]
    workers: Option<usize>,
    /// Also receive INT Telemetry Reports here; several separated by commas. DIALECT is auto, v0.5, v1.0,
    /// v2.0, sdfabric, intcollector, geant or noviflow. By AF_XDP: xdp:eth1:32766?dialect=DIALECT
    /// [default: nowhere]
    #[arg(long, env, value_delimiter = ',', value_name = "udp://ADDR:PORT?dialect=DIALECT")]
    int: Option<Vec<IntListener>>,
    /// Also receive NetFlow v5, v9, IPFIX and sFlow v5 here, each on any of these ports; several separated
    /// by commas. By AF_XDP: xdp:eth1:2055 [default: nowhere]
    #[arg(long, visible_alias = "sflow", env, value_delimiter = ',', value_name = "udp://ADDR:PORT")]
    flows: Option<Vec<FlowListener>>,
    /// Source address of RoCEv2 frames, to which answers go [default: 127.0.0.2]
    #[arg(long, env, value_name = "HOST", value_parser = host::resolve_ip)]
    source: Option<IpAddr>,
    /// UDP port for answers; 0 lets the kernel choose [default: 4791]
    #[arg(long, env)]
    source_port: Option<u16>,
    /// Interface for whole frames: its name, or `xdp:NAME` (AF_XDP) or `auto:NAME`
    /// (AF_XDP if available); without it, a UDP socket
    #[arg(long, env, value_name = "INTERFACE")]
    link: Option<Wire>,
    /// RDMA device that sends, in place of frames made here; `dta-collector devices` lists them
    #[arg(long, env, value_name = "DEVICE", conflicts_with_all = ["link", "reference"])]
    device: Option<String>,
    /// Whether frames to a collector on this host use a shared-memory ring if the collector offers one: auto
    /// or off [default: auto]
    #[arg(long, env, value_name = "auto|off")]
    ring: Option<RingUse>,
    /// Where to serve statistics, flush and program over gRPC; with TLS, programs only over unix:PATH
    /// [default: 127.0.0.1:40051]
    #[arg(long, env, value_name = "HOST:PORT|unix:PATH")]
    control: Option<ControlAddress>,
    /// Where to serve metrics: HOST:PORT, `off`, or `auto` for 127.0.0.1:40053 if free
    #[arg(long, env, value_name = "HOST:PORT|auto|off")]
    metrics: Option<dta_export::metrics::Address>,
    /// Stores to use at the only collector, by name or id; all if not given
    #[arg(long, env, value_name = "NAME|ID", value_delimiter = ',')]
    stores: Option<Vec<String>>,
    /// Do exactly what a switch does, byte for byte (docs/reference-mode.md): repeats are accepted too
    #[arg(long, env)]
    reference: bool,
}

#[derive(Args)]
struct SwitchArgs {
    /// Name of a [switch.NAME] table in the configuration
    #[arg(long)]
    switch: String,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct PlanArgs {
    /// Plan for the session of this [switch.NAME] instead of [translator]'s
    #[arg(long, value_name = "NAME")]
    switch: Option<String>,
    /// Print only what is missing in the running translator at this gRPC address or, without one, in the
    /// switch of --switch
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
    against: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
struct TeardownArgs {
    /// End the session of this [switch.NAME] instead of [translator]'s
    #[arg(long, value_name = "NAME")]
    switch: Option<String>,
    #[command(flatten)]
    output: OutputFlag,
}

#[derive(Args)]
struct OutputArgs {
    #[command(flatten)]
    print: OutputFlag,
    /// Print rkeys: anyone who knows them can write to the collector's memory
    #[arg(long)]
    show_secrets: bool,
}

#[derive(Args)]
struct WatchArgs {
    /// Name of a [switch.NAME] table in the configuration
    #[arg(long)]
    switch: String,
    /// Print one line of JSON on stdout when a translator is programmed
    #[arg(long, hide = true)]
    ready: bool,
}

#[derive(Args)]
struct ControlArgs {
    /// gRPC address of the running translator: HOST:PORT or unix:PATH
    #[arg(long, env, default_value = "http://127.0.0.1:40051")]
    translator: String,
    /// Ask this [switch.NAME] of the configuration instead
    #[arg(long, value_name = "NAME", conflicts_with = "translator")]
    switch: Option<String>,
    #[command(flatten)]
    output: OutputFlag,
}

/// Result of `teardown`.
#[derive(Serialize)]
struct TeardownResult {
    /// The session's name; for a reporter, which has none, the switch's.
    session: String,
    /// Addresses of the collectors where it ended.
    ended: Vec<String>,
}

/// Result of `flush`.
#[derive(Serialize)]
struct Flushed {
    /// Number of reports that were held.
    flushed: u64,
}

/// Result of `stats`.
#[derive(Serialize)]
struct TranslatorStatistics {
    nodes: Vec<counters::NodeCountersDocument>,
}

impl TranslatorCli {
    /// Rejects combinations that the parser cannot.
    fn validate_arguments(self) -> Result<TranslatorCli, clap::Error> {
        if let Command::Plan(PlanArgs { against: Some(address), switch: None, .. }) = &self.command
            && address.is_empty()
        {
            let message = "--against without an address needs --switch NAME";
            return Err(TranslatorCli::command().error(ErrorKind::MissingRequiredArgument, message));
        }
        Ok(self)
    }
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    main_from(std::env::args_os())
}

/// The cargo features built in, as `--version` prints them.
const FEATURES: &[&str] = if cfg!(feature = "etcd") { &["etcd"] } else { &[] };

/// Runs the program with these arguments, the first being its name.
pub fn main_from(args: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    dta_cli::program::run(args, FEATURES, |cli: TranslatorCli| {
        let cli = cli.validate_arguments().unwrap_or_else(|error| error.exit());
        dta_cli::init_logging(&cli.settings.log, cli.settings.log_format);
        // A bad configuration counts as wrong usage, wherever it is detected.
        run_command(cli).map(|()| CommandStatus::Done).map_err(|error| match error.is::<ConfigError>() {
            true => dta_cli::misuse_error(error),
            false => error,
        })
    })
}

fn run_command(cli: TranslatorCli) -> anyhow::Result<()> {
    // These need no configuration.
    match &cli.command {
        Command::Common(common) => return common.run::<TranslatorCli>(FEATURES).map(drop),
        Command::Config(_) => return Ok(dta_cli::print_line(EXAMPLE.trim_end())?),
        Command::Stats(args) if args.switch.is_none() => return block_on(run_stats(args)),
        Command::Flush(args) if args.switch.is_none() => return block_on(run_flush(args)),
        _ => {}
    }
    let config = configuration(&cli)?;
    if let Some(switch) = switch_of(&cli.command)
        && config.find_switch(switch)?.is_reporter()
    {
        return block_on(of_reporter(&config, switch, &cli.command));
    }
    let needs_list = matches!(cli.command, Command::Setup(_) | Command::Plan(_) | Command::Teardown(_));
    if needs_list && config.translator.cluster.is_some() {
        let must = "left out for `setup`, `plan` and `teardown`, which take a list of collectors (`collector`); `watch` follows a cluster";
        return Err(ConfigError::invalid_value("translator.cluster", "given", must).into());
    }
    match &cli.command {
        Command::Run(args) => {
            run::run(&config.translator, &args.options, &|| Ok(configuration(&cli)?.translator))
        }
        Command::CheckConfig(_) => print_config(&config),
        Command::Common(_) | Command::Config { .. } => Ok(()),
        Command::Stats(args) => block_on(async {
            let nodes = any_switch(&config, args.switch.as_deref().unwrap_or_default())?.statistics().await?;
            print_statistics(nodes, args.output)
        }),
        Command::Flush(args) => block_on(async {
            let flushed =
                any_switch(&config, args.switch.as_deref().unwrap_or_default())?.flush_all().await?;
            print_flushed(flushed, args.output)
        }),
        Command::Status(args) => block_on(async {
            let held = any_switch(&config, &args.switch)?.held_program().await?;
            let (json, secrets) = (program_json(&held, args.output.show_secrets), args.output.show_secrets);
            args.output.print.print_document(&json, |_| match held.is_empty() {
                true => format!("[switch.{}] runs no translator program", args.switch),
                false => program_table(&held, secrets),
            })
        }),
        Command::Watch(args) => {
            block_on(switch_watch::watch_switch(&config, &args.switch, || match args.ready {
                true => Ok(dta_cli::print_line(json!({ "ready": true }))?),
                false => Ok(()),
            }))
        }
        Command::Setup(args) => block_on(async {
            let changes = setup::program_switch(&config, &args.switch).await?;
            print_changes(&changes, &args.output)
        }),
        Command::Plan(args) => block_on(run_plan(&config, args)),
        Command::Teardown(args) => {
            let session = session_of(&config, args.switch.as_deref())?;
            block_on(async {
                if let Some(switch) = &args.switch {
                    setup::flush_switch(&config, switch).await;
                }
                let ended = run_teardown(&session, args.output).await;
                if let Some(switch) = &args.switch {
                    setup::clear_switch(&config, switch).await?;
                }
                ended
            })
        }
    }
}

fn switch_of(command: &Command) -> Option<&str> {
    match command {
        Command::Setup(args) | Command::Status(args) => Some(&args.switch),
        Command::Watch(args) => Some(&args.switch),
        Command::Plan(args) => args.switch.as_deref(),
        Command::Teardown(args) => args.switch.as_deref(),
        Command::Stats(args) | Command::Flush(args) => args.switch.as_deref(),
        Command::Run(_) | Command::CheckConfig(_) | Command::Config { .. } | Command::Common(_) => None,
    }
}

/// Runs a command on a reporter switch, which has no session.
async fn of_reporter(config: &Config, switch: &str, command: &Command) -> anyhow::Result<()> {
    let Some(mut reporter) = reporter_switch(config, switch)? else { return Ok(()) };
    let used = reporter.required_schema();
    match command {
        Command::Setup(args) => {
            let updates = reporter.apply_settings().await?;
            let json = updates_json(used, &updates);
            args.output.print.print_document(&json, |_| updates_table(used, &updates))
        }
        Command::Plan(args) => match args.against.as_deref() {
            None => {
                let wanted = reporter.wanted_tables();
                args.output.print.print_document(&tables_json(used, &wanted), |_| tables_table(used, &wanted))
            }
            Some("") => {
                let updates = reporter.required_updates().await?;
                let json = updates_json(used, &updates);
                args.output.print.print_document(&json, |_| updates_table(used, &updates))
            }
            Some(address) => bail!(
                "[switch.{switch}] is a reporter: give --against without {address}, because a running translator holds none of its entries"
            ),
        },
        Command::Status(args) => {
            let held = reporter.held_tables().await?;
            args.output.print.print_document(&tables_json(used, &held), |_| tables_table(used, &held))
        }
        Command::Teardown(args) => {
            reporter.stop_reporting().await?;
            let done = TeardownResult { session: switch.into(), ended: Vec::new() };
            args.output.print_document(&done, |_| {
                format!("[switch.{switch}] stopped reporting; forwarding is unchanged")
            })
        }
        Command::Stats(args) => print_statistics(vec![reporter.statistics().await?], args.output),
        Command::Flush(_) => {
            bail!("[switch.{switch}] is a reporter: it holds no reports to flush")
        }
        Command::Watch(_) => reporter_watch::watch_reporter(reporter, switch).await,
        Command::Run(_) | Command::CheckConfig(_) | Command::Config { .. } | Command::Common(_) => Ok(()),
    }
}

/// The file, overridden by flags and variables.
fn configuration(cli: &TranslatorCli) -> anyhow::Result<Config> {
    let path = config_file::find_config_file(cli.settings.config.as_deref(), "translator.toml");
    let (mut config, mut places) = match &path {
        Some(path) => Config::load(path)?,
        None => Default::default(),
    };
    match (&path, &cli.command) {
        (Some(path), _) => info!(config = %path.display(), "configuration read"),
        (None, Command::Run(_)) => info!("no configuration file: using the defaults"),
        (None, _) => {}
    }
    let t = &mut config.translator;
    places.apply_flag("translator.name", &mut t.name, &cli.settings.name);
    let collectors = cli.settings.collector.clone().map(Collectors::from_addresses);
    places.apply_flag("translator.collector", &mut t.collector, &collectors);
    places.apply_flag("translator.cluster", &mut t.cluster, &cli.settings.cluster.clone().map(Some));
    if collectors.is_some() {
        t.cluster = None;
    }
    let own = match &cli.command {
        Command::Run(args) => Some(&args.own),
        Command::CheckConfig(own) => Some(own.as_ref()),
        _ => None,
    };
    if let Some(args) = own {
        places.apply_flag("translator.listen", &mut t.listen, &args.listen);
        places.apply_flag("translator.workers", &mut t.workers, &args.workers);
        places.apply_flag("translator.int.listen", &mut t.int.listen, &args.int);
        places.apply_flag("translator.flows.listen", &mut t.flows.listen, &args.flows);
        places.apply_flag("translator.source", &mut t.source, &args.source);
        places.apply_flag("translator.source_port", &mut t.source_port, &args.source_port);
        places.apply_flag("translator.link", &mut t.link, &args.link.clone().map(Some));
        places.apply_flag("translator.device", &mut t.device, &args.device.clone().map(Some));
        places.apply_flag("translator.ring", &mut t.ring, &args.ring);
        places.apply_flag("translator.control", &mut t.control, &args.control);
        places.apply_flag("translator.metrics", &mut t.metrics, &args.metrics);
        places.apply_flag("translator.stores", &mut t.stores, &args.stores);
        t.reference |= args.reference;
    }
    config.check_values().map_err(|error| places.locate_error(error))?;
    Ok(config)
}

/// The translator with the session: a switch, or the translator itself.
fn session_of(config: &Config, switch: Option<&str>) -> Result<TranslatorConfig, ConfigError> {
    match switch {
        Some(switch) => config.translator_of(switch),
        None => Ok(config.translator.clone()),
    }
}

fn print_config(config: &Config) -> anyhow::Result<()> {
    let text = toml::to_string(config).context("cannot write the configuration")?;
    dta_cli::configuration_is_good(&text, &config.translator.client_tls_warnings()).map(drop)
}

fn block_on(future: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}

async fn run_plan(config: &Config, args: &PlanArgs) -> anyhow::Result<()> {
    let secrets = args.output.show_secrets;
    let translator = session_of(config, args.switch.as_deref())?;
    let want = setup::preview_program(&translator).await?;
    let changes = match (args.against.as_deref(), &args.switch) {
        (None, _) => {
            let json = program_json(&want, secrets);
            return args.output.print.print_document(&json, |_| program_table(&want, secrets));
        }
        (Some(""), Some(switch)) => any_switch(config, switch)?.required_changes(&want, After::Open).await?,
        (Some(control), _) => setup::required_changes(&translator, control, &want).await?,
    };
    print_changes(&changes, &args.output)
}

fn print_changes(changes: &[DataPlaneChange], args: &OutputArgs) -> anyhow::Result<()> {
    let json = changes_json(changes, args.show_secrets);
    args.print.print_document(&json, |_| changes_table(changes, args.show_secrets))
}

async fn run_teardown(config: &TranslatorConfig, output: OutputFlag) -> anyhow::Result<()> {
    let (ended, errors) = setup::end_sessions(config).await;
    let done = TeardownResult { session: config.name.clone(), ended };
    if !done.ended.is_empty() || output.is_json() {
        output.print_document(&done, |done| match config.collector.count() {
            1 => format!("session {} ended", done.session),
            _ => {
                let at = |address: &String| format!("session {} at {address} ended", done.session);
                done.ended.iter().map(at).collect::<Vec<_>>().join("\n")
            }
        })?;
    }
    match &errors.iter().map(ToString::to_string).collect::<Vec<_>>()[..] {
        [] => Ok(()),
        errors => Err(anyhow::anyhow!(errors.join("; "))),
    }
}

async fn run_stats(args: &ControlArgs) -> anyhow::Result<()> {
    let nodes = RemoteTranslator::connect_lazy(&args.translator)?.statistics().await?;
    print_statistics(nodes, args.output)
}

fn print_statistics(nodes: Vec<NodeStatistics>, output: OutputFlag) -> anyhow::Result<()> {
    let statistics = TranslatorStatistics { nodes: nodes.into_iter().map(node_counters).collect() };
    output.print_document(&statistics, nodes_table)
}

fn node_counters(node: NodeStatistics) -> counters::NodeCountersDocument {
    let stage = Stage::from_node_name(&node.node).name();
    counters::NodeCountersDocument::now(
        node.node,
        stage,
        node.counters.into_iter().map(|c| (c.name, c.value)),
    )
}

fn nodes_table(statistics: &TranslatorStatistics) -> String {
    let mut table = TextTable::new(&["node", "counter", "value"], &[2]);
    for node in &statistics.nodes {
        let mut name = node.node.as_str();
        for (counter, value) in node.counters.iter().filter(|(_, value)| **value != 0) {
            table.add_row([name.to_owned(), counter.clone(), format_grouped(*value)]);
            name = "";
        }
    }
    table.to_string()
}

async fn run_flush(args: &ControlArgs) -> anyhow::Result<()> {
    let flushed = RemoteTranslator::connect_lazy(&args.translator)?.flush_reports().await?;
    print_flushed(flushed, args.output)
}

fn print_flushed(flushed: u64, output: OutputFlag) -> anyhow::Result<()> {
    output.print_document(&Flushed { flushed }, |_| {
        if flushed == 0 {
            return "nothing was waiting".to_owned();
        }
        let on = if flushed == 1 { "is on its way" } else { "are on their way" };
        format!("{} waiting and {on}", format_count(flushed, "report was", "reports were"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_sound_and_each_help_page_has_an_example() {
        dta_cli::help::assert_sound(dta_cli::program::program_command::<TranslatorCli>(FEATURES));
    }
}

//! `dta-collector alerts`

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use dta_cli::CommandStatus;
use dta_cli::number::format_count;
use dta_cli::output::OutputFlag;
use dta_cli::table::TextTable;
use dta_export::alert::AlertsDocument;
use dta_export::names::Names;
use dta_files::config_file;
use dta_files::moment::format_utc;
use dta_proto::control::{AlertsRequest, AlertsResponse};
use dta_rpc::Ask;
use serde::Serialize;

use super::client_flags::ClientFlags;
use crate::alerts::{AlertsConfig, Rule, RuleTestResult, RuleTests};
use crate::cli::names_flag::NamesFlag;
use crate::config::Config;

#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  dta-collector alerts                       those of the last hour
  dta-collector alerts -o json               with evidence and transitions
  dta-collector alerts check collector.toml  the rules of a configuration
  dta-collector alerts test tests.toml       rules on records that you write

Rules are [[alerts.rule]] of the collector's configuration: docs/alerts.md."
)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// How many of the latest transitions -o json has
    #[arg(long, short, value_name = "N", default_value_t = 20)]
    number: u32,
    #[command(flatten)]
    client: ClientFlags,
}

#[derive(Subcommand)]
enum Command {
    /// Check the rules of a configuration, and list them
    #[command(after_help = "\
Names of exporters and switches are those of --names or, without it, of the configuration.

Example:
  dta-collector alerts check collector.toml")]
    Check {
        /// The collector's configuration
        file: PathBuf,
        #[command(flatten)]
        names: NamesFlag,
        #[command(flatten)]
        output: OutputFlag,
    },
    /// Run rules over flow records of a file or a history, and compare the alerts with those expected
    #[command(after_help = "\
The file says which records come in which second, or names a history that has them, and which alerts they make fire; others are problems. Exit status 4: there are problems.

Example:
  dta-collector alerts test tests.toml")]
    Test {
        /// The tests: docs/alerts.md
        file: PathBuf,
        #[command(flatten)]
        names: NamesFlag,
        #[command(flatten)]
        output: OutputFlag,
    },
}

#[derive(Serialize)]
struct RulesDocument {
    rules: Vec<RuleRow>,
}

#[derive(Serialize)]
struct RuleRow {
    name: String,
    severity: &'static str,
    condition: String,
}

#[derive(Serialize)]
struct TestsDocument {
    tests: Vec<RuleTestResult>,
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    match args.command {
        None => {
            let request = AlertsRequest { after: 0, most: args.number };
            let answer = super::block_on(async {
                let ask = args.client.connect_all().await?;
                let answer = ask.fetch_alerts(request).await?;
                for address in ask.unreachable_addresses() {
                    eprintln!(
                        "dta-collector: the collector at {address} does not answer: its alerts are missing"
                    );
                }
                Ok(answer)
            })?;
            let document = AlertsDocument::from(answer.clone());
            args.client.output.print_document(&document, |_| render_alerts(&answer))?;
            Ok(CommandStatus::Done)
        }
        Some(Command::Check { file, names, output }) => {
            let rules = load_rules(Some(&file), &names)?.0;
            let row = |rule: &Rule| RuleRow {
                name: rule.name().to_owned(),
                severity: rule.severity().name(),
                condition: rule.describe(),
            };
            let document = RulesDocument { rules: rules.iter().map(row).collect() };
            output.print_document(&document, render_rules)?;
            Ok(CommandStatus::Done)
        }
        Some(Command::Test { file, names, output }) => {
            let text = config_file::read(&file, "the tests").map_err(dta_cli::misuse_error)?;
            let (tests, places) =
                config_file::parse_config::<RuleTests>(&text, &file).map_err(dta_cli::misuse_error)?;
            let folder = file.parent().unwrap_or(Path::new(""));
            let beside = |rules: &PathBuf| folder.join(rules);
            let (rules, names) = load_rules(tests.rules.as_ref().map(beside).as_deref(), &names)?;
            let mut results = Vec::new();
            for (index, test) in tests.test.iter().enumerate() {
                let result = test.run(index, rules.clone(), &names, folder);
                results.push(result.map_err(|error| dta_cli::misuse_error(places.locate_error(error)))?);
            }
            let is_good = results.iter().all(|result| result.problems.is_empty());
            output.print_document(&TestsDocument { tests: results }, render_tests)?;
            Ok(if is_good { CommandStatus::Done } else { CommandStatus::NotWell })
        }
    }
}

/// The rules of a configuration, or the default set, with the names of exporters and switches.
fn load_rules(file: Option<&Path>, names: &NamesFlag) -> anyhow::Result<(Vec<Rule>, Arc<Names>)> {
    let Some(file) = file else {
        let names = Arc::new(names.read()?);
        return Ok((AlertsConfig::default().to_rules(&names).map_err(dta_cli::misuse_error)?, names));
    };
    let (config, places) = Config::load(file).map_err(dta_cli::misuse_error)?;
    let names = NamesFlag { names: names.names.clone().or(config.names) }.read()?;
    let rules = config.alerts.to_rules(&names);
    let rules = rules.map_err(|error| dta_cli::misuse_error(places.locate_error(error)))?;
    Ok((rules, Arc::new(names)))
}

fn render_alerts(answer: &AlertsResponse) -> String {
    let mut lines = Vec::new();
    if !answer.alerts.is_empty() {
        let mut table = TextTable::new(&["state", "severity", "since (UTC)", "rule", "what"], &[]);
        for alert in &answer.alerts {
            let text = dta_cli::terminal::for_stdout(&alert.text);
            let row = [&alert.state, &alert.severity, &format_utc(alert.since), &alert.rule, &text];
            table.add_row(row.map(String::to_owned).to_vec());
        }
        lines.push(table.to_string());
    }
    let firing = answer.alerts.iter().filter(|alert| alert.is_firing()).count();
    lines.push(format!(
        "{} of {} firing",
        format_count(firing as u64, "alert", "alerts"),
        format_count(answer.rules.into(), "rule", "rules")
    ));
    lines.join("\n")
}

fn render_rules(document: &RulesDocument) -> String {
    let mut table = TextTable::new(&["rule", "severity", "condition"], &[]);
    for rule in &document.rules {
        table.add_row(vec![rule.name.clone(), rule.severity.into(), rule.condition.clone()]);
    }
    table.to_string()
}

fn render_tests(document: &TestsDocument) -> String {
    let mut lines = Vec::new();
    for test in &document.tests {
        lines.push(format!("{} {}", if test.problems.is_empty() { "good" } else { "BAD " }, test.name));
        lines.extend(test.problems.iter().map(|problem| format!("     {problem}")));
        lines.extend(
            test.fired.iter().map(|alert| format!("     after {} s: {}", alert.fired_after, alert.text)),
        );
    }
    lines.join("\n")
}

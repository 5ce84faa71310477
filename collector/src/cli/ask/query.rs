//! `dta-collector query`

use std::io::BufRead;
use std::str::FromStr;

use anyhow::Context;
use clap::Subcommand;
use dta_cli::Status;
use dta_cli::number::{grouped, hex};
use dta_cli::table::Table;
use dta_cli::terminal;
use dta_client::{Ask, AskKeys, ClientError, Spread};
use dta_proto::control::{CounterAnswer, KeyWriteAnswer, PathAnswer, Policy, SketchAnswer};
use dta_proto::key::Key;
use dta_proto::telemetry;
use dta_proto::wire::dta::Primitive;
use dta_views::lacks::Lacks;
use serde::Serialize;

use super::client_flags::ClientFlags;
use super::epochs;

macro_rules! keys {
    () => {
        "\
Keys are flows, written 10.0.0.1:5000->10.0.0.2:5000/udp, [2001:db8::1]:1->[2001:db8::2]:2/tcp or 10.0.0.1->10.0.0.2/icmp, or up to 32 hex digits (fewer are the leading bytes). `-` reads keys from standard input, one per line.

Exit status 3: at least one of the keys is absent."
    };
}

/// The help below a query: its examples, and how to write keys.
macro_rules! help {
    ($examples:literal) => {
        concat!("Examples:\n", $examples, "\n\n", keys!())
    };
}

#[derive(clap::Args)]
#[command(after_help = help!("  dta-collector query flow '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query key-increment - < keys.txt"))]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    query: Query,
}

#[derive(Subcommand)]
enum Query {
    /// Everything known about flows, drawn as a path
    #[command(after_help = super::query_flow::HELP)]
    Flow(super::query_flow::What),
    /// The last value of keys
    #[command(after_help = help!("  dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query key-write --store flows --policy at-least=2 0a000000"))]
    KeyWrite {
        #[command(flatten)]
        what: What,
        /// How to choose among copies: `first` match, `plurality`, or `at-least=N` that agree
        #[arg(long, default_value = "first", value_parser = policy, value_name = "POLICY")]
        policy: (Policy, u32),
    },
    /// The path of keys
    #[command(visible_alias = "path", after_help = help!("  dta-collector query postcarding '10.0.0.1:5000->10.0.0.2:5000/udp'"))]
    Postcarding {
        #[command(flatten)]
        what: What,
    },
    /// The count of keys, and what it may be missing
    #[command(visible_alias = "counter", after_help = help!("  dta-collector query key-increment '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query key-increment - < keys.txt"))]
    KeyIncrement {
        #[command(flatten)]
        what: What,
    },
    /// The estimate of keys in one epoch
    #[command(
        visible_alias = "sketch",
        mut_arg("keys", |keys| keys.required(false).required_unless_present("epochs")),
        after_help = help!("  dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp' --epoch 1
  dta-collector query sketch-merge --epochs     list epochs

An epoch is complete when every column has been merged from all reporters. Finding the newest one reads the whole store.")
    )]
    SketchMerge {
        #[command(flatten)]
        what: What,
        /// Which epoch [default: the newest that is complete]
        #[arg(long, short)]
        epoch: Option<u32>,
        /// List the epochs in the store, newest first
        #[arg(long, conflicts_with_all = ["epoch", "keys"])]
        epochs: bool,
    },
}

#[derive(clap::Args)]
struct What {
    /// Keys, or `-`
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// The store, by name or id [default: the only one of the primitive]
    #[arg(long, short, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
    store: String,
    /// The moment that is asked about, of stores with epochs: 2026-11-24T14:00, or -1h [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = dta_cli::moment::parse, allow_hyphen_values = true)]
    at: Option<u64>,
    #[command(flatten)]
    client: ClientFlags,
}

impl What {
    /// Whom it asks, about the moment that was named.
    async fn ask(&self) -> Result<Spread, ClientError> {
        Ok(self.client.ask().await?.at(self.at.unwrap_or_default().into()))
    }
}

#[derive(Serialize)]
struct Value {
    key: Key,
    /// Hex.
    value: Option<String>,
    agreeing: u32,
    differing: u32,
    copies: u32,
}

#[derive(Serialize)]
struct Path {
    key: Key,
    found: bool,
    /// `null` = not known.
    hops: Vec<Option<u32>>,
    path_length: Option<u32>,
    complete: bool,
    agreeing: u32,
    differing: u32,
}

#[derive(Serialize)]
struct Counter<'a> {
    key: Key,
    /// Too high by other keys in the same counters, too low by `lacks`.
    counted: u64,
    lacks: &'a Lacks,
}

/// The name of the key-increment store that `store` means (empty: the only one), and what its counts may be missing.
async fn lacks(client: &Spread, store: &str) -> anyhow::Result<(String, Lacks)> {
    let specs = super::specs(client).await?;
    let spec = match store {
        "" => specs.iter().find(|spec| {
            spec.kind.primitive() == Primitive::KeyIncrement && !telemetry::is_store(&spec.name)
        }),
        store => dta_proto::store::named(specs.iter(), |spec| spec, store),
    };
    let store = spec.map_or_else(|| store.to_owned(), |spec| spec.name.clone());
    let (sessions, nodes) = (client.sessions().await?.sessions, client.statistics().await?);
    let lacks = dta_views::lacks::of_store(&store, Primitive::KeyIncrement, &sessions, &nodes);
    Ok((store, lacks))
}

#[derive(Serialize)]
struct Sketch {
    key: Key,
    epoch: u32,
    estimate: Option<u64>,
    merged: u32,
    expected: u32,
}

pub(super) fn run(args: Args) -> anyhow::Result<Status> {
    let all_there = match args.query {
        Query::Flow(what) => return super::query_flow::run(what),
        Query::KeyWrite { what, policy: (policy, at_least) } => {
            let keys = keys(&what.keys)?;
            let answers = super::block_on(async {
                Ok(what.ask().await?.key_write(&what.store, &keys, policy, at_least).await?)
            })?;
            show(
                &what,
                &["key", "value", "copies"],
                &[2],
                keys.iter().zip(answers).map(|(k, a)| value(*k, a)),
                |v| v.value.is_some(),
                value_row,
            )?
        }
        Query::Postcarding { what } => {
            let keys = keys(&what.keys)?;
            let answers = super::block_on(async { Ok(what.ask().await?.path(&what.store, &keys).await?) })?;
            show(
                &what,
                &["key", "path", "hops", "copies"],
                &[3],
                keys.iter().zip(answers).map(|(k, a)| path(*k, a)),
                |p| p.found,
                path_row,
            )?
        }
        Query::KeyIncrement { what } => {
            let keys = keys(&what.keys)?;
            let (answers, store, lacks) = super::block_on(async {
                let client = what.ask().await?;
                let answers = client.counter(&what.store, &keys).await?;
                let (store, lacks) = lacks(&client, &what.store).await?;
                Ok((answers, store, lacks))
            })?;
            let counter =
                |(key, a): (&Key, CounterAnswer)| Counter { key: *key, counted: a.value, lacks: &lacks };
            let all_there = show(
                &what,
                &["key", "counted"],
                &[1],
                keys.iter().zip(answers).map(counter),
                |c| c.counted != 0,
                |c| vec![c.key.to_string(), grouped(c.counted)],
            )?;
            if !what.client.output.is_json() {
                dta_cli::print(terminal::for_stdout(&lacks.in_words(&store)))?;
            }
            all_there
        }
        Query::SketchMerge { what, epochs: true, .. } => {
            let found = super::block_on(async {
                epochs::of(&what.ask().await?, &what.client.each().await?, &what.store).await
            });
            what.client.output.print(&found?.1, |found| epochs::table(found))?;
            true
        }
        Query::SketchMerge { what, epoch: named, .. } => {
            let keys = keys(&what.keys)?;
            let (answers, epoch) = super::block_on(async {
                let ask = what.ask().await?;
                let epoch = match named {
                    Some(epoch) => epoch,
                    None => {
                        let (store, found) =
                            epochs::of(&ask, &what.client.each().await?, &what.store).await?;
                        epochs::newest(&store, &found)?
                    }
                };
                Ok((ask.sketch(&what.store, &keys, epoch).await?, epoch))
            })?;
            let sketch = |(key, a): (&Key, SketchAnswer)| Sketch {
                key: *key,
                epoch,
                estimate: a.estimate,
                merged: a.merged,
                expected: a.expected,
            };
            let all_there = show(
                &what,
                &["key", "estimate", "reporters"],
                &[1, 2],
                keys.iter().zip(answers).map(sketch),
                |s| s.estimate.is_some(),
                |s| {
                    let estimate = s.estimate.map_or_else(|| "unknown".to_owned(), grouped);
                    vec![s.key.to_string(), estimate, format!("{} of {}", s.merged, s.expected)]
                },
            )?;
            if named.is_none() && !what.client.output.is_json() {
                dta_cli::print(format!("epoch {epoch}, the newest that is complete"))?;
            }
            all_there
        }
    };
    Ok(if all_there { Status::Done } else { Status::Absent })
}

/// Prints answers; returns whether all keys were found.
fn show<T: Serialize>(
    what: &What,
    header: &[&str],
    right: &[usize],
    answers: impl Iterator<Item = T>,
    is_there: impl Fn(&T) -> bool,
    row: impl Fn(&T) -> Vec<String>,
) -> anyhow::Result<bool> {
    let answers: Vec<T> = answers.collect();
    what.client.output.print(&answers, |answers| {
        let mut table = Table::new(header, right);
        answers.iter().for_each(|answer| table.row(row(answer)));
        table.to_string()
    })?;
    Ok(answers.iter().all(is_there))
}

fn keys(texts: &[String]) -> anyhow::Result<Vec<Key>> {
    written(texts, "keys")
}

/// The arguments; `-` stands for the lines of standard input.
pub(super) fn written<T: FromStr>(texts: &[String], what: &str) -> anyhow::Result<Vec<T>>
where
    T::Err: Into<anyhow::Error>,
{
    let mut all = Vec::new();
    for text in texts {
        if text != "-" {
            all.push(text.parse::<T>().map_err(dta_cli::misuse)?);
            continue;
        }
        for line in std::io::stdin().lock().lines() {
            let line = line.with_context(|| format!("cannot read {what} from standard input"))?;
            if !line.trim().is_empty() {
                all.push(line.trim().parse::<T>().map_err(Into::into)?);
            }
        }
    }
    Ok(all)
}

fn policy(text: &str) -> Result<(Policy, u32), String> {
    match text.split_once('=') {
        None if text == "first" => Ok((Policy::First, 0)),
        None if text == "plurality" => Ok((Policy::Plurality, 0)),
        Some(("at-least", n)) => {
            n.parse().map(|n| (Policy::AtLeast, n)).map_err(|_| format!("{n:?} is not a number of copies"))
        }
        _ => Err("must be first, plurality or at-least=N".into()),
    }
}

fn value(key: Key, answer: KeyWriteAnswer) -> Value {
    Value {
        key,
        value: answer.value.map(|v| hex(&v)),
        agreeing: answer.agreeing,
        differing: answer.differing,
        copies: answer.copies,
    }
}

fn value_row(v: &Value) -> Vec<String> {
    let absent = if v.agreeing > 0 { "undecided" } else { "absent" };
    let differing = if v.differing > 0 { format!(", {} differ", v.differing) } else { String::new() };
    vec![
        v.key.to_string(),
        v.value.clone().unwrap_or_else(|| absent.to_owned()),
        format!("{} of {} agree{differing}", v.agreeing, v.copies),
    ]
}

fn path(key: Key, answer: PathAnswer) -> Path {
    Path {
        key,
        found: answer.found,
        hops: answer.hops.iter().zip(&answer.present).map(|(hop, there)| there.then_some(*hop)).collect(),
        path_length: (answer.path_length != 0).then_some(answer.path_length),
        complete: answer.complete,
        agreeing: answer.agreeing,
        differing: answer.differing,
    }
}

fn path_row(p: &Path) -> Vec<String> {
    let hops: Vec<String> =
        p.hops.iter().map(|h| h.map_or_else(|| "?".to_owned(), |h| h.to_string())).collect();
    let known = p.hops.iter().flatten().count();
    let length = p.path_length.map_or_else(|| "unknown".to_owned(), |l| l.to_string());
    let differing = if p.differing > 0 { format!(", {} differ", p.differing) } else { String::new() };
    vec![
        p.key.to_string(),
        if p.found { hops.join(" \u{2192} ") } else { "absent".to_owned() },
        match (p.found, p.complete) {
            (false, _) => String::new(),
            (true, true) => format!("all {known}"),
            (true, false) => format!("{known} of {length}"),
        },
        format!("{} agree{differing}", p.agreeing),
    ]
}

//! `dta-collector query`

use std::io::BufRead;
use std::str::FromStr;

use anyhow::Context;
use clap::Subcommand;
use dta_cli::CommandStatus;
use dta_cli::number::format_grouped;
use dta_cli::table::TextTable;
use dta_cli::terminal;
use dta_proto::control::{
    CounterAnswer, Epoch, EpochsRequest, KeyWriteAnswer, MAX_KEYS, PathAnswer, Policy, SketchAnswer,
};
use dta_proto::to_hex_digits;
use dta_rpc::{Ask, ClientError, KeyAnswer, Question, QuestionKind, Spread};
use dta_views::answers::{
    CounterResult, NamedKey, PathHops, PathResult, SketchResult, ValueResult, fetch_missing_counts,
};
use dta_views::epoch::{EarlierSummary, EpochSummary};
use serde::Serialize;

use super::client_flags::ClientFlags;
use super::query_series::{self, SpanFlags};
use super::sketch_epochs;

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
    Flow(super::query_flow::FlowQueryArgs),
    /// The last value of keys
    #[command(after_help = help!("  dta-collector query key-write '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query key-write --store flows --policy at-least=2 0a000000
  dta-collector query key-write 0a000000 --at -1h        an hour ago
  dta-collector query key-write 0a000000 --since -1h     and since then"))]
    KeyWrite {
        #[command(flatten)]
        what: KeyQueryArgs,
        #[command(flatten)]
        span: SpanFlags,
        /// How to choose among copies: `first` match, `plurality`, or `at-least=N` that agree
        #[arg(long, default_value = "first", value_parser = parse_policy, value_name = "POLICY")]
        policy: (Policy, u32),
    },
    /// The path of keys
    #[command(visible_alias = "path", after_help = help!("  dta-collector query postcarding '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query postcarding 0a000000 --since -1h   its changes"))]
    Postcarding {
        #[command(flatten)]
        what: KeyQueryArgs,
        #[command(flatten)]
        span: SpanFlags,
    },
    /// The count of keys, and what it may be missing
    #[command(visible_alias = "counter", after_help = help!("  dta-collector query key-increment '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query key-increment - < keys.txt
  dta-collector query key-increment 0a000000 --since -1h  its changes"))]
    KeyIncrement {
        #[command(flatten)]
        what: KeyQueryArgs,
        #[command(flatten)]
        span: SpanFlags,
    },
    /// The estimate of keys in one epoch
    #[command(
        visible_alias = "sketch",
        mut_arg("keys", |keys| keys.required(false).required_unless_present("epochs")),
        after_help = help!("  dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp'
  dta-collector query sketch-merge '10.0.0.1:5000->10.0.0.2:5000/udp' --epoch 1
  dta-collector query sketch-merge --epochs     list epochs
  dta-collector query sketch-merge 0a000000 --at -1h  the epoch of an hour ago

An epoch is complete when every column has been merged from all reporters. Finding the newest one reads the whole store.")
    )]
    SketchMerge {
        #[command(flatten)]
        what: KeyQueryArgs,
        /// Which epoch, as reporters number them [default: the newest that is complete; with --at, that of the moment]
        #[arg(long, short)]
        epoch: Option<u32>,
        /// List the epochs in the store, newest first
        #[arg(long, conflicts_with_all = ["epoch", "keys", "at"])]
        epochs: bool,
    },
}

#[derive(clap::Args)]
pub(super) struct KeyQueryArgs {
    /// Keys, or `-`
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<String>,
    /// The store, by name or id [default: the only one of the primitive]
    #[arg(long, short, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
    pub(super) store: String,
    /// The moment that is asked about, of stores with epochs: 2026-11-24T14:00, or -1h [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true)]
    at: Option<u64>,
    #[command(flatten)]
    pub(super) client: ClientFlags,
}

impl KeyQueryArgs {
    pub(super) fn parse_keys(&self) -> anyhow::Result<Vec<NamedKey>> {
        parse_arguments(&self.keys, "keys")
    }

    /// Connects to the collectors, to ask about the given moment.
    pub(super) async fn connect_at_moment(&self) -> anyhow::Result<Spread> {
        Ok(self.client.connect_all().await?.at_moment(self.at.unwrap_or_default().into()))
    }

    /// Asks the store about the keys.
    fn query_answers<A>(&self, keys: &[NamedKey], kind: QuestionKind) -> anyhow::Result<AnsweredKeys<A>>
    where
        A: TryFrom<KeyAnswer, Error = ClientError> + Send,
    {
        super::block_on(async {
            let ask = self.connect_at_moment().await?;
            let (mut answers, mut unanswered, mut reason) = (Vec::new(), Vec::new(), None);
            for keys in keys.chunks(MAX_KEYS) {
                let question = Question::now(&self.store, NamedKey::keys(keys), kind);
                let known = ask.query_known_keys(question).await?;
                let is_unanswered = |place: &usize| known.unanswered.binary_search(place).is_ok();
                let (missing, there): (Vec<usize>, Vec<usize>) = (0..keys.len()).partition(is_unanswered);
                for (place, answer) in there.into_iter().zip(known.answers.of_keys) {
                    answers.push((keys[place].clone(), A::try_from(answer)?, known.answers.epoch.clone()));
                }
                unanswered.extend(missing.into_iter().map(|place| keys[place].clone()));
                reason = reason.or(known.reason);
            }
            match reason {
                Some(reason) if answers.is_empty() => return Err(reason.into()),
                None => ask.unreachable_addresses().iter().for_each(|address| {
                    eprintln!(
                        "dta-collector: the collector at {address} does not answer: answers are from the other collectors only"
                    );
                }),
                Some(_) => {}
            }
            Ok(AnsweredKeys { answers, unanswered, reason })
        })
    }
}

/// What is known about keys, and which ones have no answer.
struct AnsweredKeys<A> {
    answers: Vec<(NamedKey, A, Option<Epoch>)>,
    /// Keys held only by collectors that do not answer, and the error of the first of these.
    unanswered: Vec<NamedKey>,
    reason: Option<ClientError>,
}

impl<A> AnsweredKeys<A> {
    /// Prints for people which epochs answered, and fails if keys are unanswered; otherwise returns `all_there`.
    fn finish(self, what: &KeyQueryArgs, all_there: bool) -> anyhow::Result<bool> {
        let mut epochs: Vec<&Epoch> = self.answers.iter().filter_map(|(.., epoch)| epoch.as_ref()).collect();
        epochs.dedup();
        // Whoever asks about now knows that it is the open one.
        if what.at.is_some() && !what.client.output.is_json() {
            epochs.into_iter().try_for_each(|of| {
                dta_cli::print_line(format!("of {}", EpochSummary::from(of).describe()))
            })?;
        }
        let Some(reason) = self.reason else { return Ok(all_there) };
        let missing = self.unanswered.len();
        let named: Vec<String> = self.unanswered.iter().take(NAMED).map(NamedKey::to_string).collect();
        let rest = if missing > NAMED { ", \u{2026}" } else { "" };
        let all = missing + self.answers.len();
        Err(anyhow::Error::from(reason)
            .context(format!("{missing} of {all} keys have no answer ({}{rest})", named.join(", "))))
    }
}

/// How many unanswered keys are named.
const NAMED: usize = 10;

/// The sketch epoch to ask about if none was named: with a moment, the epoch of that moment; otherwise the
/// newest complete one.
async fn sketch_epoch(what: &KeyQueryArgs) -> anyhow::Result<u32> {
    let ask = what.client.connect_all().await?;
    if let Some(at) = what.at {
        let store = sketch_epochs::sketch_store(&ask, &what.store).await?.name;
        let request = EpochsRequest { store, since: at, until: at + 1, most: 1 };
        match ask.fetch_epochs(request).await?.epochs.first() {
            Some(Epoch { sketch: Some(epoch), .. }) => return Ok(*epoch),
            // No kept epoch covers the moment, as the answer to the question will say.
            None => return Ok(0),
            // It is still being merged.
            Some(_) => {}
        }
    }
    let (store, found) =
        sketch_epochs::query_epochs(&ask, &what.client.connect_each().await?, &what.store).await?;
    match (what.at, found.first()) {
        (Some(_), Some(newest)) => Ok(newest.epoch),
        _ => sketch_epochs::newest_complete(&store, &found),
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<CommandStatus> {
    let all_there = match args.query {
        Query::Flow(what) => return super::query_flow::run(what),
        Query::KeyWrite { what, span, policy: (policy, at_least) } => {
            let kind = QuestionKind::KeyWrite { policy, at_least };
            if let Some(span) = span.requested_span() {
                let value = |answer: &KeyWriteAnswer| answer.value.as_deref().map(to_hex_digits);
                return query_series::run(&what, span, kind, &["value"], value, |value| vec![value.clone()]);
            }
            let known = what.query_answers(&what.parse_keys()?, kind)?;
            let all_there = print_answers(
                &what,
                &["key", "value", "copies"],
                &[2],
                known.answers.iter().map(|(k, a, epoch)| ValueResult::from_answer(k, a, epoch.as_ref())),
                |v| v.value.is_some(),
                value_row,
            )?;
            known.finish(&what, all_there)?
        }
        Query::Postcarding { what, span } => {
            if let Some(span) = span.requested_span() {
                let route = |answer: &PathAnswer| answer.found.then(|| PathHops::from_answer(answer));
                let kind = QuestionKind::Postcarding;
                return query_series::run(&what, span, kind, &["path", "hops"], route, hop_cells);
            }
            let known = what.query_answers(&what.parse_keys()?, QuestionKind::Postcarding)?;
            let all_there = print_answers(
                &what,
                &["key", "path", "hops", "copies"],
                &[3],
                known.answers.iter().map(|(k, a, epoch)| PathResult::from_answer(k, a, epoch.as_ref())),
                |p| p.found,
                path_row,
            )?;
            known.finish(&what, all_there)?
        }
        Query::KeyIncrement { what, span } => {
            if let Some(span) = span.requested_span() {
                let count = |answer: &CounterAnswer| (answer.value != 0).then_some(answer.value);
                let cells = |count: &u64| vec![format_grouped(*count)];
                return query_series::run(
                    &what,
                    span,
                    QuestionKind::KeyIncrement,
                    &["counted"],
                    count,
                    cells,
                );
            }
            let known =
                what.query_answers::<CounterAnswer>(&what.parse_keys()?, QuestionKind::KeyIncrement)?;
            // What is lacking is known only for now.
            let lacks = match what.at {
                None => Some(super::block_on(async {
                    Ok(fetch_missing_counts(&what.connect_at_moment().await?, &what.store).await?)
                })?),
                Some(_) => None,
            };
            let counter = |(key, answer, epoch): &(NamedKey, CounterAnswer, Option<Epoch>)| CounterResult {
                key: key.clone(),
                counted: answer.value,
                lacks: lacks.as_ref().map(|(_, lacks)| lacks),
                epoch: epoch.as_ref().map(EpochSummary::from),
            };
            let all_there = print_answers(
                &what,
                &["key", "counted"],
                &[1],
                known.answers.iter().map(counter),
                |c| c.counted != 0,
                |c| vec![c.key.to_string(), format_grouped(c.counted)],
            )?;
            if let Some((store, lacks)) = &lacks
                && !what.client.output.is_json()
            {
                dta_cli::print_line(terminal::for_stdout(&lacks.describe(store)))?;
            }
            known.finish(&what, all_there)?
        }
        Query::SketchMerge { what, epochs: true, .. } => {
            let found = super::block_on(async {
                sketch_epochs::query_epochs(
                    &what.connect_at_moment().await?,
                    &what.client.connect_each().await?,
                    &what.store,
                )
                .await
            });
            what.client.output.print_document(&found?.1, |found| sketch_epochs::render_table(found))?;
            true
        }
        Query::SketchMerge { what, epoch: named, .. } => {
            let keys = what.parse_keys()?;
            let epoch = match named {
                Some(epoch) => epoch,
                None => super::block_on(sketch_epoch(&what))?,
            };
            let known = what.query_answers::<SketchAnswer>(&keys, QuestionKind::SketchMerge { epoch })?;
            let sketch = |(key, answer, of): &(NamedKey, SketchAnswer, Option<Epoch>)| {
                SketchResult::from_answer(key, answer, epoch, of.as_ref())
            };
            let all_there = print_answers(
                &what,
                &["key", "estimate", "reporters"],
                &[1, 2],
                known.answers.iter().map(sketch),
                |s| s.estimate.is_some(),
                |s| {
                    let estimate = s.estimate.map_or_else(|| "unknown".to_owned(), format_grouped);
                    vec![s.key.to_string(), estimate, format!("{} of {}", s.merged, s.expected)]
                },
            )?;
            if named.is_none() && !what.client.output.is_json() {
                let which =
                    if what.at.is_some() { "that of the moment" } else { "the newest that is complete" };
                dta_cli::print_line(format!("epoch {epoch}, {which}"))?;
            }
            known.finish(&what, all_there)?
        }
    };
    Ok(if all_there { CommandStatus::Done } else { CommandStatus::Absent })
}

/// Prints answers; returns whether all keys were found.
fn print_answers<T: Serialize>(
    what: &KeyQueryArgs,
    header: &[&str],
    right: &[usize],
    answers: impl Iterator<Item = T>,
    is_there: impl Fn(&T) -> bool,
    row: impl Fn(&T) -> Vec<String>,
) -> anyhow::Result<bool> {
    let answers: Vec<T> = answers.collect();
    what.client.output.print_document(&answers, |answers| {
        let mut table = TextTable::new(header, right);
        answers.iter().for_each(|answer| table.add_row(row(answer)));
        table.to_string()
    })?;
    Ok(answers.iter().all(is_there))
}

/// Parses the arguments; `-` stands for the lines of standard input.
pub(super) fn parse_arguments<T: FromStr>(texts: &[String], what: &str) -> anyhow::Result<Vec<T>>
where
    T::Err: Into<anyhow::Error>,
{
    let mut all = Vec::new();
    for text in texts {
        if text != "-" {
            all.push(text.parse::<T>().map_err(dta_cli::misuse_error)?);
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

fn parse_policy(text: &str) -> Result<(Policy, u32), String> {
    match text.split_once('=') {
        None if text == "first" => Ok((Policy::First, 0)),
        None if text == "plurality" => Ok((Policy::Plurality, 0)),
        Some(("at-least", n)) => {
            n.parse().map(|n| (Policy::AtLeast, n)).map_err(|_| format!("{n:?} is not a number of copies"))
        }
        _ => Err("must be first, plurality or at-least=N".into()),
    }
}

fn value_row(v: &ValueResult) -> Vec<String> {
    let absent = if v.agreeing > 0 { "undecided" } else { "absent" };
    let differing = if v.differing > 0 { format!(", {} differ", v.differing) } else { String::new() };
    let age = describe_earlier(v.earlier.as_ref());
    vec![
        v.key.to_string(),
        v.value.clone().unwrap_or_else(|| absent.to_owned()),
        format!("{} of {} copies{differing}{age}", v.agreeing, v.copies),
    ]
}

fn path_row(p: &PathResult) -> Vec<String> {
    let differing = if p.differing > 0 { format!(", {} differ", p.differing) } else { String::new() };
    let route = if p.found { hop_cells(&p.route) } else { vec!["absent".to_owned(), String::new()] };
    let age = describe_earlier(p.earlier.as_ref());
    let cells = [
        vec![p.key.to_string()],
        route,
        vec![format!("{} of {} copies{differing}{age}", p.agreeing, p.copies)],
    ];
    cells.concat()
}

/// The hops as cells, and how many of them are known.
fn hop_cells(route: &PathHops) -> Vec<String> {
    let hop = |hop: &Option<u32>| hop.map_or_else(|| "?".to_owned(), |hop| hop.to_string());
    let hops: Vec<String> = route.hops.iter().map(hop).collect();
    let known = route.hops.iter().flatten().count();
    let length = route.path_length.map_or_else(|| "unknown".to_owned(), |length| length.to_string());
    let of = if route.complete { format!("all {known}") } else { format!("{known} of {length}") };
    vec![hops.join(" \u{2192} "), of]
}

/// When an answer from an earlier epoch was reported.
fn describe_earlier(earlier: Option<&EarlierSummary>) -> String {
    earlier.map_or_else(String::new, |earlier| format!("; {}", earlier.describe()))
}

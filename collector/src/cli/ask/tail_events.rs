//! `dta-collector tail events`

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use dta_cli::Status;
use dta_cli::number::counted;
use dta_cli::output::{self, OutputFlag};
use dta_client::Ask;
use dta_export::directory::Directory;
use dta_export::names::Names;
use dta_export::source::{Batch, Begin, LISTS, Options, Source};
use dta_proto::key::Flow;
use dta_proto::prefix::Prefix;
use dta_proto::telemetry::{list, store};
use dta_views::int::event::{Event, Filter, Kind};
use dta_views::int::{self, Missed, moment};
use serde::Serialize;

use super::client_flags::ClientFlags;
use crate::cli::names_flag::NamesFlag;

pub(super) const HELP: &str = "\
Follows the lists of int-events and prints a line for each event: time, kind, flow or place, the value and the one before. Flows of long keys are named by the key directory.

Examples:
  dta-collector tail events
  dta-collector tail events -n 20 --once            the last 20
  dta-collector tail events --kind drop,loop --from 10m
  dta-collector tail events --prefix 10.0.0.0/8 --switch leaf1 -o json

Past events in the rings are printed in order of time, new ones as they come. What could not be read is printed on separate lines.";

#[derive(clap::Args)]
pub(super) struct What {
    /// Only events of these kinds, separated by commas [default: all but `key`]
    #[arg(long, short, value_name = "KIND", value_delimiter = ',', value_parser = dta_cli::one_of::<Kind>(&Kind::NAMES))]
    kind: Vec<Kind>,
    /// Only events of this flow
    #[arg(long, short, value_name = "FLOW", conflicts_with = "prefix")]
    flow: Option<Flow>,
    /// Only events of flows with an end in this prefix, such as 10.0.0.0/8
    #[arg(long, short, value_name = "PREFIX")]
    prefix: Option<Prefix>,
    /// Only events at this switch, by number or name
    #[arg(long, value_name = "SWITCH")]
    switch: Option<String>,
    /// Begin with the oldest events that the rings hold
    #[arg(long, conflicts_with_all = ["from", "number"])]
    from_start: bool,
    /// Begin this long ago, as 30s, 10m or 2h
    #[arg(long, value_name = "WHEN")]
    from: Option<Ago>,
    /// Begin with the last N past events
    #[arg(long, short, value_name = "N")]
    number: Option<usize>,
    /// Stop when everything that is there has been read
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

/// A time in the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ago(Duration);

impl FromStr for Ago {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "must be a time such as 30s, 10m or 2h (from the start: --from-start)".to_owned();
        let unit = match text.chars().last() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86_400,
            _ => return Err(wrong()),
        };
        let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
        number.checked_mul(unit).map(|seconds| Self(Duration::from_secs(seconds))).ok_or_else(wrong)
    }
}

/// A line of the output.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Event(Box<Event>),
    /// What could not be read of a list.
    Missed {
        list: &'static str,
        #[serde(flatten)]
        missed: Missed,
    },
}

/// Formats what comes.
struct Teller {
    directory: Directory,
    names: Names,
    filter: Filter,
    output: OutputFlag,
}

pub(super) fn run(what: What) -> anyhow::Result<Status> {
    let names = what.names.read()?;
    let switch = what.switch.as_deref().map(|switch| number_of(switch, &names)).transpose()?;
    let filter = Filter { kinds: what.kind.clone(), flow: what.flow, prefix: what.prefix, switch };
    let output = what.client.output;
    let mut teller = Teller { directory: Directory::default(), names, filter, output };
    super::block_on(async {
        let ask: Arc<dyn Ask> = Arc::new(what.client.ask().await?);
        let last = teller.past(&ask, &what).await?;
        if !what.once {
            teller.follow(ask, last).await?;
        }
        anyhow::Ok(())
    })?;
    Ok(Status::Done)
}

fn number_of(switch: &str, names: &Names) -> anyhow::Result<u32> {
    let number = names.number_of(switch).or_else(|| switch.parse().ok());
    number.ok_or_else(|| {
        dta_cli::misuse(anyhow::anyhow!(
            "no switch is called {switch:?} in the file of names (--names), and it is no number"
        ))
    })
}

impl Teller {
    /// Reads and prints the wanted past events. Returns the last batch of each list.
    async fn past(&mut self, ask: &Arc<dyn Ask>, what: &What) -> anyhow::Result<[u32; LISTS]> {
        // The lists are read even if no past events are wanted: to learn the keys, and where the lists end.
        let wanted = what.from_start || what.from.is_some() || what.number.is_some() || what.once;
        let since = match what.from {
            Some(Ago(ago)) => moment::now().saturating_sub(ago.as_nanos().try_into().unwrap_or(u64::MAX)),
            None => 0,
        };
        let mut last = [0; LISTS];
        let mut missed = [Missed::default(); LISTS];
        let mut events: VecDeque<Event> = VecDeque::new();
        let mut lists = self.filter.lists();
        lists.push(list::KEYS);
        lists.dedup();
        let most = what.number.unwrap_or(usize::MAX);
        int::read(ask, store::EVENTS, &lists, |batch| {
            last[batch.list as usize] = batch.sequence;
            missed[batch.list as usize].add(&batch.lost);
            for event in self.events(&batch).filter(|_| wanted) {
                if event.time.is_none_or(|time| time >= since) {
                    events.push_back(event);
                }
            }
        })
        .await?;
        let mut events = Vec::from(events);
        // Key entries have no time: they come first, in their order.
        events.sort_by_key(|event| event.time);
        let wanted_lists = self.filter.lists();
        if wanted {
            for (of, missed) in (0..).zip(missed).filter(|(of, _)| wanted_lists.contains(of)) {
                self.tell_missed(of, missed)?;
            }
        }
        let skip = events.len().saturating_sub(most);
        for event in events.into_iter().skip(skip) {
            self.tell(event)?;
        }
        Ok(last)
    }

    /// Prints what comes after the last batches that were read.
    async fn follow(&mut self, ask: Arc<dyn Ask>, last: [u32; LISTS]) -> anyhow::Result<()> {
        let mut begin = [None; LISTS];
        self.filter
            .lists()
            .iter()
            .for_each(|list| begin[*list as usize] = Some(Begin::Behind(last[*list as usize])));
        begin[list::KEYS as usize] = Some(Begin::Behind(last[list::KEYS as usize]));
        let options = Options { store: store::EVENTS.into(), begin, once: false };
        let mut source = Source::new(ask, &options, Arc::default());
        while let Some(batch) = source.next().await {
            let batch = batch?;
            let mut missed = Missed::default();
            missed.add(&batch.lost);
            self.tell_missed(batch.list, missed)?;
            for event in self.events(&batch).collect::<Vec<_>>() {
                self.tell(event)?;
            }
        }
        Ok(())
    }

    /// The wanted events of a batch.
    fn events(&mut self, batch: &Batch) -> impl Iterator<Item = Event> {
        let Self { directory, names, filter, .. } = self;
        batch.entries.iter().filter_map(|entry| {
            directory.take(entry);
            let event = Event::of(entry, directory, names);
            filter.admits(&event).then_some(event)
        })
    }

    fn tell(&self, event: Event) -> anyhow::Result<()> {
        match self.output.is_json() {
            true => output::json_line(&Line::Event(Box::new(event))),
            false => Ok(dta_cli::print(event.line())?),
        }
    }

    fn tell_missed(&self, of: u32, missed: Missed) -> anyhow::Result<()> {
        if missed == Missed::default() {
            return Ok(());
        }
        let list = list::name(of);
        if self.output.is_json() {
            return output::json_line(&Line::Missed { list, missed });
        }
        let told = [
            (missed.overwritten, "batch", "batches", "overwritten before they were read"),
            (missed.missing, "batch", "batches", "never came"),
            (missed.damaged, "batch", "batches", "damaged"),
            (missed.unreadable, "entry", "entries", "cannot be read by this version"),
        ];
        for (number, one, many, what) in told.into_iter().filter(|(number, ..)| *number > 0) {
            dta_cli::print(format_args!("-- list {of} ({list}): {} {what}", counted(number, one, many)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_a_time() {
        let ago = |seconds| Ok(Ago(Duration::from_secs(seconds)));
        assert_eq!(
            ["30s", "10m", "2h", "1d"].map(|text| text.parse::<Ago>()),
            [30, 600, 7200, 86_400].map(ago)
        );
        assert!("start".parse::<Ago>().unwrap_err().contains("--from-start"));
        for text in ["", "m", "10", "-5m", "now", "99999999999999999999s", "9999999999999999999d", "1µ"] {
            assert!(text.parse::<Ago>().unwrap_err().contains("30s"), "{text}");
        }
    }
}

//! `dta-collector tail events`

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use dta_cli::CommandStatus;
use dta_cli::number::format_count;
use dta_cli::output::{self, OutputFlag};
use dta_export::directory::Directory;
use dta_export::kind::EventKind;
use dta_export::names::Names;
use dta_export::source::{Begin, EntryBatch, EventSource, LISTS, Lost, SourceOptions};
use dta_proto::control::{EntriesRequest, Epoch, EpochState, TailResponse};
use dta_proto::key::Flow;
use dta_proto::prefix::Prefix;
use dta_proto::telemetry::{TelemetryEntry, list, store};
use dta_rpc::{Ask, ClientError, Span, TailMessages};
use dta_views::epoch::EpochSummary;
use dta_views::int::event::{Filter, IntEvent};
use dta_views::int::{self, moment};
use serde::Serialize;

use super::client_flags::ClientFlags;
use super::tail::{EpochCoverage, NOT_WRITTEN, NotKept};
use crate::cli::names_flag::NamesFlag;

pub(super) const HELP: &str = "\
Follows the lists of int-events and prints a line for each event: time, kind, flow or place, the value and the one before. Flows of long keys are named by the key directory.

Examples:
  dta-collector tail events
  dta-collector tail events -n 20 --once            the last 20
  dta-collector tail events --kind drop,loop --from 10m
  dta-collector tail events --prefix 10.0.0.0/8 --switch leaf1 -o json
  dta-collector tail events --kind drop --at -1h     in the epoch of an hour ago
  dta-collector tail events --since 2026-11-24T14:00 --until 2026-11-24T15:00

Past events in the rings are printed in order of time, new ones as they come. What could not be read is printed on separate lines. With --at and --since, a line names each epoch before the events that came in it, and others name what is not kept, and what will only be there once the epoch is written. Exit status 3: there are no such events then.";

#[derive(clap::Args)]
pub(super) struct TailEventsArgs {
    /// Only events of these kinds, separated by commas [default: all but `key`]
    #[arg(long, short, value_name = "KIND", value_delimiter = ',', value_parser = dta_cli::one_of_names::<EventKind>(&EventKind::NAMES))]
    kind: Vec<EventKind>,
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
    /// The events that came in the epoch of this moment, where int-events has epochs: 2026-11-24T14:00, or -1h
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = FOLLOWING)]
    at: Option<u64>,
    /// The events of all epochs from this moment on
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, conflicts_with_all = FOLLOWING, conflicts_with = "at")]
    since: Option<u64>,
    /// With --since: only up to this moment [default: now]
    #[arg(long, value_name = "MOMENT", value_parser = dta_files::moment::parse_moment, allow_hyphen_values = true, requires = "since")]
    until: Option<u64>,
    #[command(flatten)]
    names: NamesFlag,
    #[command(flatten)]
    client: ClientFlags,
}

/// What is said of lists that are followed, and not of past ones.
const FOLLOWING: [&str; 4] = ["from_start", "from", "number", "once"];

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
enum TailEventLine {
    Event(Box<IntEvent>),
    /// What could not be read of a list.
    Missed {
        list: &'static str,
        #[serde(flatten)]
        missed: Lost,
    },
    /// What follows came in this epoch.
    Epoch(EpochSummary),
    NotKept(NotKept),
    /// Batches of the open epoch that are in the ring no more.
    NotWritten {
        list: &'static str,
        batches: u64,
    },
}

struct Teller {
    directory: Directory,
    names: Names,
    filter: Filter,
    output: OutputFlag,
}

pub(super) fn run(what: TailEventsArgs) -> anyhow::Result<CommandStatus> {
    let names = what.names.read()?;
    let switch = what.switch.as_deref().map(|switch| number_of(switch, &names)).transpose()?;
    let filter = Filter { kinds: what.kind.clone(), flow: what.flow, prefix: what.prefix, switch };
    let output = what.client.output;
    let mut teller = Teller { directory: Directory::default(), names, filter, output };
    super::block_on(async {
        let ask: Arc<dyn Ask> = Arc::new(what.client.connect_all().await?);
        if let Some(span) = super::asked_span(what.at, what.since, what.until) {
            return teller.print_epoch_events(&ask, span).await;
        }
        let last = teller.print_past_events(&ask, &what).await?;
        if !what.once {
            teller.print_new_events(ask, last).await?;
        }
        anyhow::Ok(CommandStatus::Done)
    })
}

fn number_of(switch: &str, names: &Names) -> anyhow::Result<u32> {
    let number = names.number_of(switch).or_else(|| switch.parse().ok());
    number.ok_or_else(|| {
        dta_cli::misuse_error(anyhow::anyhow!(
            "no switch is called {switch:?} in the file of names (--names), and it is no number"
        ))
    })
}

impl Teller {
    /// The lists that have wanted events, and the key directory.
    fn read_lists(&self) -> Vec<u32> {
        let mut lists = self.filter.relevant_lists();
        lists.push(list::KEYS);
        lists.dedup();
        lists
    }

    /// Reads and prints the wanted past events. Returns the last batch of each list.
    async fn print_past_events(
        &mut self,
        ask: &Arc<dyn Ask>,
        what: &TailEventsArgs,
    ) -> anyhow::Result<[u32; LISTS]> {
        // The lists are read even if no past events are wanted: to learn the keys, and where the lists end.
        let wanted = what.from_start || what.from.is_some() || what.number.is_some() || what.once;
        let since = match what.from {
            Some(Ago(ago)) => moment::now().saturating_sub(ago.as_nanos().try_into().unwrap_or(u64::MAX)),
            None => 0,
        };
        let mut last = [0; LISTS];
        let mut missed = [Lost::default(); LISTS];
        let mut events: VecDeque<IntEvent> = VecDeque::new();
        let most = what.number.unwrap_or(usize::MAX);
        int::read(ask, store::EVENTS, &self.read_lists(), |batch| {
            last[batch.list as usize] = batch.sequence;
            missed[batch.list as usize].add(&batch.lost);
            for event in self.wanted_events(&batch.entries).filter(|_| wanted) {
                if event.time.is_none_or(|time| time >= since) {
                    events.push_back(event);
                }
            }
        })
        .await?;
        let mut events = Vec::from(events);
        // Key entries have no time: they come first, in their order.
        events.sort_by_key(|event| event.time);
        let wanted_lists = self.filter.relevant_lists();
        if wanted {
            for (of, missed) in (0..).zip(missed).filter(|(of, _)| wanted_lists.contains(of)) {
                TailEventLine::from_losses(of, missed)
                    .map_or(Ok(()), |line| print_line(&line, self.output))?;
            }
        }
        let skip = events.len().saturating_sub(most);
        for event in events.into_iter().skip(skip) {
            print_line(&TailEventLine::from_event(event), self.output)?;
        }
        Ok(last)
    }

    /// Prints what comes after the last batches that were read.
    async fn print_new_events(&mut self, ask: Arc<dyn Ask>, last: [u32; LISTS]) -> anyhow::Result<()> {
        let mut begin = [None; LISTS];
        self.read_lists()
            .iter()
            .for_each(|list| begin[*list as usize] = Some(Begin::Behind(last[*list as usize])));
        let options = SourceOptions { store: store::EVENTS.into(), begin, once: false };
        let mut source = EventSource::new(ask, &options, Arc::default());
        while let Some(batch) = source.next().await {
            let batch = batch?;
            let missed = TailEventLine::from_losses(batch.list, batch.lost);
            let output = self.output;
            for line in
                missed.into_iter().chain(self.wanted_events(&batch.entries).map(TailEventLine::from_event))
            {
                print_line(&line, output)?;
            }
        }
        Ok(())
    }

    /// Prints the wanted events of epochs. Says whether there were any.
    async fn print_epoch_events(&mut self, ask: &Arc<dyn Ask>, span: Span) -> anyhow::Result<CommandStatus> {
        // Keys are reported again and again: what the directory has now names most of what came then.
        int::read(ask, store::EVENTS, &[list::KEYS], |batch| {
            batch.entries.iter().for_each(|entry| self.directory.take(entry));
        })
        .await?;
        let mut lists = Vec::new();
        for list in self.read_lists() {
            lists.push(PastList::query_list(ask, list, span).await?);
        }
        let output = self.output;
        self.of_epochs(lists, span, |line| print_line(&line, output)).await
    }

    /// Passes on lines about lists in the epochs of a span. Says whether there were events.
    async fn of_epochs(
        &mut self,
        mut lists: Vec<PastList>,
        span: Span,
        mut each: impl FnMut(TailEventLine) -> anyhow::Result<()>,
    ) -> anyhow::Result<CommandStatus> {
        let wanted = self.filter.relevant_lists();
        let (mut known, mut status) = (EpochCoverage(span.since), CommandStatus::Absent);
        // Of the epochs that come next, the one that began first.
        while let Some(opened) = lists.iter().filter_map(PastList::next_opened).min() {
            let mut all = Vec::new();
            for list in &mut lists {
                all.extend(list.read(opened).await?);
            }
            // Keys may come after the first event about them.
            all.iter().flat_map(|past| &past.entries).for_each(|entry| self.directory.take(entry));
            known
                .gap_before_epoch(&all[0].epoch)
                .map_or(Ok(()), |before| each(TailEventLine::NotKept(before)))?;
            each(TailEventLine::Epoch(EpochSummary::from(&all[0].epoch)))?;
            let mut events = Vec::new();
            for Past { list, epoch, entries, mut missed } in all {
                if !wanted.contains(&list) {
                    continue;
                }
                if epoch.state() == EpochState::Open && missed.overwritten > 0 {
                    let batches = std::mem::take(&mut missed.overwritten);
                    each(TailEventLine::NotWritten { list: list::list_name(list), batches })?;
                }
                TailEventLine::from_losses(list, missed).map_or(Ok(()), &mut each)?;
                events.extend(self.wanted_events(&entries));
            }
            // Key entries have no time: they come first, in their order.
            events.sort_by_key(|event| event.time);
            for event in events {
                status = CommandStatus::Done;
                each(TailEventLine::from_event(event))?;
            }
        }
        known.before_moment(span.until).map_or(Ok(()), |rest| each(TailEventLine::NotKept(rest)))?;
        Ok(status)
    }

    /// The wanted ones of some entries.
    fn wanted_events(&mut self, entries: &[TelemetryEntry]) -> impl Iterator<Item = IntEvent> {
        let Self { directory, names, filter, .. } = self;
        entries.iter().filter_map(|entry| {
            directory.take(entry);
            let event = IntEvent::from_entry(entry, directory, names);
            filter.admits(&event).then_some(event)
        })
    }
}

fn print_line(line: &TailEventLine, output: OutputFlag) -> anyhow::Result<()> {
    if output.is_json() {
        return output::json_line(line);
    }
    for text in line.to_texts() {
        dta_cli::print_line(text)?;
    }
    Ok(())
}

impl TailEventLine {
    fn from_event(event: IntEvent) -> TailEventLine {
        TailEventLine::Event(Box::new(event))
    }

    /// What could not be read of a list, if there is any.
    fn from_losses(list: u32, missed: Lost) -> Option<TailEventLine> {
        (missed != Lost::default()).then(|| TailEventLine::Missed { list: list::list_name(list), missed })
    }

    fn to_texts(&self) -> Vec<String> {
        match self {
            TailEventLine::Event(event) => vec![event.to_line()],
            TailEventLine::Missed { list, missed } => [
                (missed.overwritten, "batch", "batches", "overwritten before they were read"),
                (missed.missing, "batch", "batches", "never came"),
                (missed.damaged, "batch", "batches", "damaged"),
                (missed.unreadable, "entry", "entries", "cannot be read by this version"),
            ]
            .into_iter()
            .filter(|(number, ..)| *number > 0)
            .map(|(number, one, many, what)| {
                format!("-- list {list}: {} {what}", format_count(number, one, many))
            })
            .collect(),
            TailEventLine::Epoch(epoch) => vec![format!("-- {}", epoch.describe())],
            TailEventLine::NotKept(moments) => vec![format!("-- {moments}")],
            TailEventLine::NotWritten { list, batches } => {
                vec![format!("-- list {list}: {} {NOT_WRITTEN}", format_count(*batches, "batch", "batches"))]
            }
        }
    }
}

/// A list in the epochs of a span.
struct PastList {
    list: u32,
    messages: TailMessages,
    /// The epoch that comes next, and the first message of it.
    next: Option<(Epoch, TailResponse)>,
}

/// What came in a list in an epoch.
struct Past {
    list: u32,
    epoch: Epoch,
    entries: Vec<TelemetryEntry>,
    missed: Lost,
}

impl PastList {
    async fn query_list(ask: &Arc<dyn Ask>, list: u32, span: Span) -> Result<PastList, ClientError> {
        let Span { since, until } = span;
        let request = EntriesRequest { store: store::EVENTS.to_owned(), list, since, until };
        PastList::from_messages(list, ask.stream_entries(request).await?).await
    }

    async fn from_messages(list: u32, mut messages: TailMessages) -> Result<PastList, ClientError> {
        let first = messages.next_message().await?;
        let next = first.and_then(|mut message| Some((message.epoch.take()?, message)));
        Ok(PastList { list, messages, next })
    }

    /// When the epoch that comes next began.
    fn next_opened(&self) -> Option<u64> {
        self.next.as_ref().map(|(epoch, _)| epoch.opened)
    }

    /// Reads the epoch that comes next, if it is the one that began then.
    async fn read(&mut self, opened: u64) -> Result<Option<Past>, ClientError> {
        let Some((epoch, mut message)) = self.next.take_if(|(epoch, _)| epoch.opened == opened) else {
            return Ok(None);
        };
        let mut past = Past { list: self.list, epoch, entries: Vec::new(), missed: Lost::default() };
        loop {
            let batch: EntryBatch = EntryBatch::from_message(self.list, message);
            past.entries.extend(batch.entries);
            past.missed.add(&batch.lost);
            match self.messages.next_message().await? {
                None => return Ok(Some(past)),
                Some(next) => message = next,
            }
            if let Some(epoch) = message.epoch.take() {
                self.next = Some((epoch, message));
                return Ok(Some(past));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dta_proto::telemetry::{Location, Means};

    use super::*;

    const FLOW: &str = "[2001:db8::1]:1->[2001:db8::2]:2/udp";

    fn came(opened: u64, closed: u64, entries: &[TelemetryEntry]) -> TailResponse {
        let state = if closed == 0 { EpochState::Open } else { EpochState::Kept };
        let ends = Epoch { flipped_from: closed, flipped_to: closed, confirmed: true, ..Epoch::default() };
        TailResponse {
            epoch: Some(Epoch { opened, state: state.into(), ..ends }),
            entries: entries.iter().map(|entry| entry.to_bytes().to_vec()).collect(),
            ..TailResponse::default()
        }
    }

    #[tokio::test]
    async fn past_events_of_all_lists_come_by_epoch_in_order_of_time() {
        let flow: Flow = FLOW.parse().unwrap();
        let (key, place) = (flow.to_key(), Location { switch: Some(6), ..Location::default() });
        let drop = |time| TelemetryEntry::Drop { time, key, place, ingress_port: None, reason: 71 };
        let waited =
            |time| TelemetryEntry::Congestion { time, key, place, occupancy: Some(9), latency: None };
        let more = |entry: TelemetryEntry| TailResponse {
            entries: vec![entry.to_bytes().to_vec()],
            ..TailResponse::default()
        };
        let drops = vec![
            came(2000, 3000, &[drop(7)]),
            more(drop(9)),
            TailResponse { overwritten_batches: 4, missing_batches: 1, ..came(5000, 0, &[]) },
        ];
        let congestion = vec![came(2000, 3000, &[waited(8)]), came(5000, 0, &[waited(12), waited(11)])];
        // The key of the first event is reported in a later epoch, and is read of the ring.
        let keys = vec![
            came(2000, 3000, &[]),
            came(5000, 0, &[TelemetryEntry::Key { key, means: Means::Flow(flow) }]),
        ];
        let mut teller = Teller {
            directory: Directory::default(),
            names: Names::default(),
            filter: Filter { kinds: vec![EventKind::Drop, EventKind::CongestedPacket], ..Filter::default() },
            output: OutputFlag { output: dta_cli::output::OutputFormat::default() },
        };
        teller.directory.remember_key(key, Means::Flow(flow));
        assert_eq!(teller.read_lists(), [list::DROPS, list::CONGESTION, list::KEYS]);
        let mut lists = Vec::new();
        for (list, messages) in teller.read_lists().into_iter().zip([drops, congestion, keys]) {
            let stream = tokio_stream::iter(messages.into_iter().map(Ok));
            lists.push(PastList::from_messages(list, TailMessages::new(stream)).await.unwrap());
        }
        let mut lines = Vec::new();
        let each = |line: TailEventLine| {
            lines.push(match line {
                TailEventLine::Event(event) => {
                    assert_eq!(event.flow, Some(flow));
                    format!("{} {}", event.kind.name(), event.time.unwrap())
                }
                line => line.to_texts().join("; "),
            });
            Ok(())
        };
        let status = teller.of_epochs(lists, Span { since: 1000, until: 9000 }, each).await.unwrap();
        let text = "-- nothing is kept from 1970-01-01T00:00:01.000Z to 1970-01-01T00:00:02.000Z
-- the epoch from 1970-01-01T00:00:02.000Z to 1970-01-01T00:00:03.000Z
drop 7
congested-packet 8
drop 9
-- nothing is kept from 1970-01-01T00:00:03.000Z to 1970-01-01T00:00:05.000Z
-- the open epoch, since 1970-01-01T00:00:05.000Z
-- list drops: 4 batches no longer in the ring: what was read of them comes once the epoch is written
-- list drops: 1 batch never came
congested-packet 11
congested-packet 12";
        assert_eq!((lines.join("\n").as_str(), status), (text, CommandStatus::Done));
    }

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

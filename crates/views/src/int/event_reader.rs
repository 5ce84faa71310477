//! Events of a collector, line by line: those in the rings, those to come, and those of past epochs. The command line
//! and the web page show the same lines.

use std::sync::Arc;

use dta_cli::number::format_count;
use dta_export::directory::Directory;
use dta_export::names::Names;
use dta_export::source::{Begin, EntryBatch, EventSource, LISTS, Lost, SourceOptions};
use dta_proto::control::{EntriesRequest, Epoch, EpochState, TailResponse};
use dta_proto::telemetry::{TelemetryEntry, list, store};
use dta_rpc::{Ask, ClientError, Span, TailMessages};
use serde::Serialize;

use super::event::{Filter, IntEvent};
use crate::epoch::{EpochCoverage, EpochSummary, NOT_WRITTEN, NotKept};

/// A line; for programs, as `dta-collector tail events -o json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventLine {
    Event(Box<IntEvent>),
    /// What could not be read of a list.
    Missed {
        list: &'static str,
        #[serde(flatten)]
        missed: Lost,
    },
    /// The following events came in this epoch.
    Epoch(EpochSummary),
    NotKept(NotKept),
    /// Batches of the open epoch that are no longer in the ring.
    NotWritten {
        list: &'static str,
        batches: u64,
    },
}

impl EventLine {
    fn from_event(event: IntEvent) -> EventLine {
        EventLine::Event(Box::new(event))
    }

    /// What could not be read of a list, if anything.
    fn from_losses(list: u32, missed: Lost) -> Option<EventLine> {
        (missed != Lost::default()).then(|| EventLine::Missed { list: list::list_name(list), missed })
    }

    pub fn to_texts(&self) -> Vec<String> {
        match self {
            EventLine::Event(event) => vec![event.to_line()],
            EventLine::Missed { list, missed } => [
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
            EventLine::Epoch(epoch) => vec![format!("-- {}", epoch.describe())],
            EventLine::NotKept(moments) => vec![format!("-- {moments}")],
            EventLine::NotWritten { list, batches } => {
                vec![format!("-- list {list}: {} {NOT_WRITTEN}", format_count(*batches, "batch", "batches"))]
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PastEvents {
    /// None, but the lists are still read, to learn the keys and where the lists end.
    #[default]
    None,
    /// Those within this span.
    Within(Span),
    Newest(usize),
}

/// Reads events and names their subjects.
pub struct EventReader {
    directory: Directory,
    names: Arc<Names>,
    filter: Filter,
}

impl EventReader {
    pub fn new(names: Arc<Names>, filter: Filter) -> Self {
        Self { directory: Directory::default(), names, filter }
    }

    /// The lists that can have wanted events, and the key directory.
    fn read_lists(&self) -> Vec<u32> {
        let mut lists = self.filter.relevant_lists();
        lists.push(list::KEYS);
        lists.dedup();
        lists
    }

    /// Passes on the past events in order of time, after what could not be read. Returns the last batch of each list.
    pub async fn read_past_events<E: From<ClientError>>(
        &mut self,
        ask: &Arc<dyn Ask>,
        past: PastEvents,
        mut each: impl FnMut(EventLine) -> Result<(), E>,
    ) -> Result<[u32; LISTS], E> {
        let (span, most) = match past {
            PastEvents::None => (Span::default(), 0),
            PastEvents::Within(span) => (span, usize::MAX),
            PastEvents::Newest(most) => (Span::default(), most),
        };
        let is_within = |time: u64| {
            let millis = time / 1_000_000;
            millis >= span.since && (span.until == 0 || millis < span.until)
        };
        let mut last = [0; LISTS];
        let mut missed = [Lost::default(); LISTS];
        let mut events: Vec<IntEvent> = Vec::new();
        super::read(ask, store::EVENTS, &self.read_lists(), |batch| {
            last[batch.list as usize] = batch.sequence;
            missed[batch.list as usize].add(&batch.lost);
            let of_batch = self.wanted_events(&batch.entries);
            if past == PastEvents::None {
                return of_batch.for_each(drop);
            }
            events.extend(of_batch.filter(|event| event.time.is_none_or(is_within)));
            // Rings may hold many times as many events as are wanted.
            if events.len() / 2 > most {
                keep_newest(&mut events, most);
            }
        })
        .await?;
        keep_newest(&mut events, most);
        let wanted_lists = self.filter.relevant_lists();
        if past != PastEvents::None {
            for (of, missed) in (0..).zip(missed).filter(|(of, _)| wanted_lists.contains(of)) {
                EventLine::from_losses(of, missed).map_or(Ok(()), &mut each)?;
            }
        }
        events.into_iter().map(EventLine::from_event).try_for_each(each)?;
        Ok(last)
    }

    /// Passes on what comes after the last batches read, until `each` fails.
    pub async fn follow_events<E: From<ClientError>>(
        &mut self,
        ask: Arc<dyn Ask>,
        last: [u32; LISTS],
        mut each: impl FnMut(EventLine) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut begin = [None; LISTS];
        self.read_lists()
            .iter()
            .for_each(|list| begin[*list as usize] = Some(Begin::Behind(last[*list as usize])));
        let options = SourceOptions { store: store::EVENTS.into(), begin, once: false };
        let mut source = EventSource::new(ask, &options, Arc::default());
        while let Some(batch) = source.next().await {
            let batch = batch?;
            EventLine::from_losses(batch.list, batch.lost).map_or(Ok(()), &mut each)?;
            self.wanted_events(&batch.entries).map(EventLine::from_event).try_for_each(&mut each)?;
        }
        Ok(())
    }

    /// Passes on the events in the epochs of a span. Returns whether there were any.
    pub async fn read_epoch_events<E: From<ClientError>>(
        &mut self,
        ask: &Arc<dyn Ask>,
        span: Span,
        each: impl FnMut(EventLine) -> Result<(), E>,
    ) -> Result<bool, E> {
        // Keys are reported again and again, so the current directory can name most of what came then.
        super::read(ask, store::EVENTS, &[list::KEYS], |batch| {
            batch.entries.iter().for_each(|entry| self.directory.take(entry));
        })
        .await?;
        let mut lists = Vec::new();
        for list in self.read_lists() {
            lists.push(PastList::query_list(ask, list, span).await?);
        }
        self.merge_epochs(lists, span, each).await
    }

    /// Passes on lines about lists in the epochs of a span. Returns whether there were events.
    async fn merge_epochs<E: From<ClientError>>(
        &mut self,
        mut lists: Vec<PastList>,
        span: Span,
        mut each: impl FnMut(EventLine) -> Result<(), E>,
    ) -> Result<bool, E> {
        let wanted = self.filter.relevant_lists();
        let (mut known, mut has_events) = (EpochCoverage(span.since), false);
        // Continue with the next epoch that began first.
        while let Some(opened) = lists.iter().filter_map(PastList::next_opened).min() {
            let mut all = Vec::new();
            for list in &mut lists {
                all.extend(list.read(opened).await?);
            }
            // Keys may come after the first event about them.
            all.iter().flat_map(|past| &past.entries).for_each(|entry| self.directory.take(entry));
            known
                .gap_before_epoch(&all[0].epoch)
                .map_or(Ok(()), |before| each(EventLine::NotKept(before)))?;
            each(EventLine::Epoch(EpochSummary::from(&all[0].epoch)))?;
            let mut events = Vec::new();
            for EpochEntries { list, epoch, entries, mut missed } in all {
                if !wanted.contains(&list) {
                    continue;
                }
                if epoch.state() == EpochState::Open && missed.overwritten > 0 {
                    let batches = std::mem::take(&mut missed.overwritten);
                    each(EventLine::NotWritten { list: list::list_name(list), batches })?;
                }
                EventLine::from_losses(list, missed).map_or(Ok(()), &mut each)?;
                events.extend(self.wanted_events(&entries));
            }
            // Key entries have no time: they come first, in their order.
            events.sort_by_key(|event| event.time);
            has_events |= !events.is_empty();
            events.into_iter().map(EventLine::from_event).try_for_each(&mut each)?;
        }
        known.before_moment(span.until).map_or(Ok(()), |rest| each(EventLine::NotKept(rest)))?;
        Ok(has_events)
    }

    fn wanted_events(&mut self, entries: &[TelemetryEntry]) -> impl Iterator<Item = IntEvent> {
        let Self { directory, names, filter } = self;
        entries.iter().filter_map(|entry| {
            directory.take(entry);
            let event = IntEvent::from_entry(entry, directory, names);
            filter.admits(&event).then_some(event)
        })
    }
}

/// Sorts events by time, and keeps the newest. Key entries have no time: they come first, in their order.
fn keep_newest(events: &mut Vec<IntEvent>, most: usize) {
    events.sort_by_key(|event| event.time);
    events.drain(..events.len().saturating_sub(most));
}

/// A list in the epochs of a span.
struct PastList {
    list: u32,
    messages: TailMessages,
    /// The next epoch, and its first message.
    next: Option<(Epoch, TailResponse)>,
}

struct EpochEntries {
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

    /// When the next epoch began.
    fn next_opened(&self) -> Option<u64> {
        self.next.as_ref().map(|(epoch, _)| epoch.opened)
    }

    /// Reads the next epoch, if it began at that moment.
    async fn read(&mut self, opened: u64) -> Result<Option<EpochEntries>, ClientError> {
        let Some((epoch, mut message)) = self.next.take_if(|(epoch, _)| epoch.opened == opened) else {
            return Ok(None);
        };
        let mut past = EpochEntries { list: self.list, epoch, entries: Vec::new(), missed: Lost::default() };
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
    use dta_export::kind::EventKind;
    use dta_proto::drop_reason::DropReason;
    use dta_proto::key::Flow;
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
        let drop = |time| TelemetryEntry::Drop {
            time,
            key,
            place,
            ingress_port: None,
            reason: DropReason::from_int(71),
        };
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
        // The key of the first event is reported only in a later epoch, and is read from the ring.
        let keys = vec![
            came(2000, 3000, &[]),
            came(5000, 0, &[TelemetryEntry::Key { key, means: Means::Flow(flow) }]),
        ];
        let kinds = vec![EventKind::Drop, EventKind::CongestedPacket];
        let mut reader = EventReader::new(Arc::default(), Filter { kinds, ..Filter::default() });
        reader.directory.remember_key(key, Means::Flow(flow));
        assert_eq!(reader.read_lists(), [list::DROPS, list::CONGESTION, list::KEYS]);
        let mut lists = Vec::new();
        for (list, messages) in reader.read_lists().into_iter().zip([drops, congestion, keys]) {
            let stream = tokio_stream::iter(messages.into_iter().map(Ok));
            lists.push(PastList::from_messages(list, TailMessages::new(stream)).await.unwrap());
        }
        let mut lines = Vec::new();
        let each = |line: EventLine| -> Result<(), ClientError> {
            lines.push(match line {
                EventLine::Event(event) => {
                    assert_eq!(event.flow, Some(flow));
                    format!("{} {}", event.kind.name(), event.time.unwrap())
                }
                line => line.to_texts().join("; "),
            });
            Ok(())
        };
        let has_events = reader.merge_epochs(lists, Span { since: 1000, until: 9000 }, each).await.unwrap();
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
        assert_eq!((lines.join("\n").as_str(), has_events), (text, true));
    }

    #[test]
    fn the_newest_events_are_left_in_order_of_time() {
        let names = Names::default();
        let event = |time| {
            let entry = TelemetryEntry::Drop {
                time,
                key: FLOW.parse::<Flow>().unwrap().to_key(),
                place: Location::default(),
                ingress_port: None,
                reason: DropReason::from_int(1),
            };
            IntEvent::from_entry(&entry, &mut Directory::default(), &names)
        };
        let mut events: Vec<IntEvent> = [7, 3, 9, 1, 8].map(event).into();
        keep_newest(&mut events, 3);
        assert_eq!(events.iter().map(|event| event.time).collect::<Vec<_>>(), [Some(7), Some(8), Some(9)]);
    }
}

//! The dashboard's state, and what keys do. No I/O and no clock: workers read [`App::wanted_data`] and answer through
//! [`App::apply_update`]; the caller passes all times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use dta_export::kind::EventKind;
use dta_proto::control::{SessionInfo, StoreInfo};
use dta_proto::counter::{Stage, translator};
use dta_proto::key::Flow;
use dta_proto::store::{StoreKind, StoreSpec};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::connection::RefreshStatus;
use super::events;
use super::follow::{ElementChange, Scan};
use super::history::RateHistory;
use super::past_epoch::{EpochStep, PastEpoch, To};
use crate::int::event::IntEvent;
use crate::int::top::{By, Top};
use crate::waterfall::{self, Rates, WaterfallNode, WaterfallRow};

/// Bytes fetched for the memory view: more than any terminal shows, less than one request may ask.
const WINDOW_BYTES: u64 = 16 << 10;

/// Everything fetched in one refresh.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) stores: Vec<StoreInfo>,
    pub(super) sessions: Vec<SessionInfo>,
    pub(super) nodes: Vec<WaterfallNode>,
    /// The time that the nodes' ages refer to.
    pub(super) taken: Instant,
    /// Whether a running collector answered, rather than memory alone, which has no sessions or counters.
    pub(super) live: bool,
}

/// A range of a store's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryWindow {
    pub(super) store: String,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// A list of an append store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListId {
    pub(super) store: String,
    pub(super) list: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListEntries {
    pub(super) newest: VecDeque<Vec<u8>>,
    pub(super) total: u64,
    pub(super) sequence: u64,
    pub(super) overwritten: u64,
    pub(super) torn: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypedQuery {
    pub(super) store: String,
    pub(super) key: String,
    pub(super) epoch: u32,
    /// The moment to ask about, in milliseconds since 1970; `None` = now.
    pub(super) at: Option<u64>,
    pub(super) text: String,
}

/// What the page of top flows ranks by; `None` = whatever is known about flows.
pub(super) type RankedBy = Option<By>;

/// What the workers should fetch besides the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WantedData {
    pub(super) memory: Option<MemoryWindow>,
    /// The store whose writes the memory view follows.
    pub(super) follow: Option<StoreSpec>,
    pub(super) list: Option<ListId>,
    pub(super) events: bool,
    /// What to rank flows by.
    pub(super) top: Option<RankedBy>,
    pub(super) flow: Option<Flow>,
    /// The moment of the flow or the ranking, in milliseconds since 1970; `None` = now.
    pub(super) at: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Update {
    Snapshot(Result<Snapshot, RefreshFailure>),
    /// The bytes at that time.
    Memory(MemoryWindow, Instant, Result<Vec<u8>, String>),
    /// The result of a scan for writes to the store with that name.
    Written(String, Result<Scan, String>),
    Entries(ListId, Instant, Result<ListEntries, String>),
    Answer(TypedQuery, Instant, Result<Vec<String>, String>),
    Events(Instant, Result<events::EventLog, String>),
    /// A ranking, and its moment.
    Top((RankedBy, Option<u64>), Instant, Result<Box<Top>, String>),
    /// A flow at a moment, drawn.
    Flow((Flow, Option<u64>), Instant, Result<Vec<String>, String>),
    /// Where a step led; `None` = to now.
    Stepped(Result<Option<PastEpoch>, String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RefreshFailure {
    pub(super) error: String,
    pub(super) at: Instant,
    /// The time of the next try.
    pub(super) next: Instant,
}

/// What is done once, one after another.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Errand {
    Ask(TypedQuery),
    Step(Box<EpochStep>),
}

/// What a key asks the main loop to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyAction {
    Do(Errand),
    Refresh,
    /// Release the terminal until the shell resumes this program.
    Suspend,
}

dta_proto::named! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) enum Tab {
        #[default]
        Waterfall: "Waterfall",
        Stores: "Stores",
        Sessions: "Sessions",
        Memory: "Memory",
        Lists: "Lists",
        Query: "Query",
        Events: "Events",
        Top: "Top",
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct MemoryView {
    /// First element shown.
    pub(super) element: u64,
    pub(super) follow: bool,
    /// The last scan for writes, and the last change that any scan found.
    pub(super) seen: Option<Scan>,
    pub(super) change: Option<ElementChange>,
    pub(super) window: Option<(MemoryWindow, Vec<u8>)>,
    pub(super) read: Option<Instant>,
    /// The same window one refresh earlier: differences have been written since.
    pub(super) before: Option<(MemoryWindow, Vec<u8>)>,
    /// An element number being typed (`g`).
    pub(super) goto: Option<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct EventsView {
    /// With the time when they were read.
    pub(super) seen: Option<(Instant, events::EventLog)>,
    /// The kind shown; `None` = all.
    pub(super) kind: Option<EventKind>,
    /// The index of the selected event, newest first.
    pub(super) selected: usize,
}

impl EventsView {
    /// The events of the kind shown, newest first.
    pub(super) fn shown_events(&self) -> impl Iterator<Item = &IntEvent> {
        let newest = self.seen.iter().flat_map(|(_, seen)| seen.newest.iter().rev());
        newest.filter(|event| self.kind.is_none_or(|kind| event.kind == kind))
    }

    /// Takes new events. The selection stays on its event, unless that was the newest: then it moves to the new newest one.
    fn take(&mut self, at: Instant, seen: events::EventLog) {
        let count = |seen: &events::EventLog| seen.event_count(None);
        let new = self.seen.as_ref().map_or(0, |(_, before)| count(&seen).saturating_sub(count(before)));
        let kind = self.kind;
        let of_kind = |event: &&IntEvent| kind.is_none_or(|kind| event.kind == kind);
        let news = seen.newest.iter().rev().take(new as usize).filter(of_kind).count();
        if self.selected > 0 {
            self.selected += news;
        }
        self.seen = Some((at, seen));
    }

    /// Goes to the next or previous kind; "all kinds" comes before the first.
    fn cycle_kind(&mut self, forward: bool) {
        let kinds: Vec<Option<EventKind>> = std::iter::once(None).chain(EventKind::SHOWN.map(Some)).collect();
        let at = kinds.iter().position(|kind| *kind == self.kind).unwrap_or_default();
        self.kind = kinds[(at + if forward { 1 } else { kinds.len() - 1 }) % kinds.len()];
        self.selected = 0;
    }
}

/// The page of top flows.
#[derive(Clone, Debug, Default)]
pub(super) struct TopView {
    pub(super) by: RankedBy,
    /// The ranking, what it ranks by, and its time.
    pub(super) found: Option<(RankedBy, Instant, Top)>,
    pub(super) selected: usize,
}

impl TopView {
    fn cycle_ranking(&mut self, forward: bool) {
        let shown = || self.found.as_ref().and_then(|(.., top)| top.by.parse::<By>().ok());
        let (all, count) = (By::ALL, By::ALL.len());
        let next = self.by.or_else(shown).map_or(0, |by| by as usize + if forward { 1 } else { count - 1 });
        self.by = Some(all[next % count]);
        self.selected = 0;
    }
}

#[derive(Clone, Debug)]
pub(super) struct FlowView {
    pub(super) flow: Flow,
    /// With the time when it was queried.
    pub(super) lines: Option<(Instant, Vec<String>)>,
    /// First line shown.
    pub(super) top: usize,
}

#[derive(Clone, Debug)]
pub(super) struct QueryReply {
    pub(super) asked: String,
    pub(super) lines: Vec<String>,
    /// `None` if it never left this program.
    pub(super) at: Option<Instant>,
}

/// The state of the whole dashboard.
#[derive(Debug, Default)]
pub(super) struct App {
    pub(super) title: String,
    pub(super) interval: Duration,
    pub(super) tab: Tab,
    /// The page before Query, to which Esc goes back.
    pub(super) before_query: Tab,
    pub(super) quit: bool,
    /// First line shown of the help, while it is open.
    pub(super) help: Option<usize>,
    pub(super) now: Option<Snapshot>,
    pub(super) rates: Rates,
    pub(super) history: RateHistory,
    pub(super) connection: RefreshStatus,
    /// Why the page has nothing new to show although the collector answers.
    pub(super) error: Option<String>,
    /// The selected store (index in the snapshot).
    pub(super) store: usize,
    /// Whether the waterfall shows zero counters, and each reporter.
    pub(super) all: bool,
    /// First line shown of the waterfall and of the sessions, limited when drawn.
    pub(super) scroll: [usize; 2],
    pub(super) memory: MemoryView,
    pub(super) list: u32,
    /// With the time when they were read.
    pub(super) entries: Option<(ListId, Instant, ListEntries)>,
    pub(super) events: EventsView,
    pub(super) top: TopView,
    /// The flow shown over the pages of events and of top flows.
    pub(super) flow: Option<FlowView>,
    pub(super) input: String,
    pub(super) answers: VecDeque<QueryReply>,
    /// Queries without an answer yet.
    pub(super) asking: usize,
    /// The past epoch shown on pages that can; `None` = now.
    pub(super) then: Option<PastEpoch>,
    /// Whether a step to another epoch has no answer yet.
    pub(super) stepping: bool,
}

impl App {
    pub(super) fn new(title: String, interval: Duration) -> Self {
        Self { title, interval, ..Self::default() }
    }

    pub(super) fn selected_store(&self) -> Option<StoreSpec> {
        let store = self.now.as_ref()?.stores.get(self.store)?.store.as_ref()?;
        StoreSpec::try_from(store).ok()
    }

    /// The append store that the Lists tab shows: the selected one, else the first.
    pub(super) fn append_store(&self) -> Option<StoreSpec> {
        let specs = || {
            let stores = self.now.iter().flat_map(|s| &s.stores);
            stores.filter_map(|s| StoreSpec::try_from(s.store.as_ref()?).ok())
        };
        let is_append = |s: &StoreSpec| matches!(s.kind, StoreKind::Append { .. });
        self.selected_store().filter(is_append).or_else(|| specs().find(is_append))
    }

    /// Frames per second that all translators write to a store; `None` if unknown.
    pub(super) fn write_rate(&self, store: &str) -> Option<f64> {
        let translators =
            self.now.iter().flat_map(|now| &now.nodes).filter(|node| node.stage == Stage::Translator);
        self.rates.sum(translators, &translator::STORE_FRAMES.format_name(&[store]))
    }

    /// What the workers should fetch: nothing while the collector is away, everything once it is back.
    pub(super) fn wanted_data(&self) -> WantedData {
        let mut want = WantedData::default();
        if self.connection.is_lost() {
            return want;
        }
        match self.tab {
            Tab::Events | Tab::Top if self.flow.is_some() => {
                (want.flow, want.at) = (self.flow.as_ref().map(|view| view.flow), self.shown_moment());
            }
            Tab::Events => want.events = true,
            Tab::Top => (want.top, want.at) = (Some(self.top.by), self.shown_moment()),
            Tab::Memory => {
                if let Some(spec) = self.selected_store() {
                    let offset = self.memory.element.min(spec.element_count() - 1) * spec.element_len();
                    let length = WINDOW_BYTES.min(spec.region_len() - offset) as u32;
                    want.follow = self.memory.follow.then(|| spec.clone());
                    want.memory = Some(MemoryWindow { store: spec.name, offset, length });
                }
            }
            Tab::Lists => {
                want.list = self.append_store().map(|spec| ListId { store: spec.name, list: self.list });
            }
            Tab::Stores | Tab::Waterfall | Tab::Sessions | Tab::Query => {}
        }
        want
    }

    /// Takes what the workers fetched.
    pub(super) fn apply_update(&mut self, update: Update) {
        match update {
            Update::Snapshot(Ok(snapshot)) => self.apply_snapshot(snapshot),
            Update::Snapshot(Err(RefreshFailure { error, at, next })) => {
                self.connection.record_failure(error, at, next)
            }
            Update::Memory(window, at, Ok(bytes)) => {
                self.error = None;
                let view = &mut self.memory;
                let same = view.window.as_ref().is_some_and(|(old, _)| *old == window);
                let old = view.window.replace((window, bytes));
                view.before = if same { old } else { None };
                view.read = Some(at);
            }
            Update::Written(store, Ok(seen)) => {
                if self.memory.follow && self.selected_store().is_some_and(|spec| spec.name == store) {
                    if let Some(change) = seen.change {
                        self.memory.element = change.element;
                        self.memory.change = Some(change);
                    }
                    self.memory.seen = Some(seen);
                }
            }
            Update::Entries(list, at, Ok(entries)) => {
                self.error = None;
                self.entries = Some((list, at, entries));
            }
            Update::Events(at, Ok(seen)) => {
                self.error = None;
                self.events.take(at, seen);
            }
            // An answer about another moment comes too late.
            Update::Top((_, then), ..) | Update::Flow((_, then), ..) if then != self.shown_moment() => {}
            Update::Top((by, _), at, Ok(top)) => {
                self.error = None;
                self.top.found = Some((by, at, *top));
            }
            Update::Flow((flow, _), at, Ok(lines)) => {
                if let Some(view) = self.flow.as_mut().filter(|view| view.flow == flow) {
                    self.error = None;
                    view.lines = Some((at, lines));
                }
            }
            Update::Answer(question, at, answer) => {
                self.asking = self.asking.saturating_sub(1);
                let lines = answer.unwrap_or_else(|error| vec![format!("error: {error}")]);
                self.push_answer(question.text, lines, Some(at));
            }
            Update::Stepped(to) => {
                self.stepping = false;
                match to {
                    Ok(then) => self.show_moment(then),
                    Err(error) => self.error = Some(error),
                }
            }
            Update::Memory(_, _, Err(error))
            | Update::Written(_, Err(error))
            | Update::Entries(_, _, Err(error))
            | Update::Events(_, Err(error))
            | Update::Top(_, _, Err(error))
            | Update::Flow(_, _, Err(error)) => {
                self.error = Some(error);
            }
        }
    }

    fn apply_snapshot(&mut self, snapshot: Snapshot) {
        self.connection.record_success(snapshot.taken);
        self.store = self.store.min(snapshot.stores.len().saturating_sub(1));
        self.rates.take(&snapshot.nodes);
        let taken = snapshot.taken;
        self.now = Some(snapshot);
        if self.history.is_due(taken) {
            let rates = self.present_rates();
            self.history.record_rates(taken, rates);
        }
    }

    /// The rates with a history: those in the waterfall without details, and the writes to stores.
    fn present_rates(&self) -> Vec<((String, String), Option<f64>)> {
        let now = self.now.iter();
        let counters = now.clone().flat_map(|now| waterfall::waterfall_rows(&now.nodes, &self.rates, false));
        let counters = counters.filter_map(|row| match row {
            WaterfallRow::Counter { node, name, rate, .. } => Some(((node, name), rate)),
            WaterfallRow::Node { .. } | WaterfallRow::Link(_) => None,
        });
        let stores = now.flat_map(|now| &now.stores).filter_map(|info| info.store.as_ref());
        let stores =
            stores.map(|store| ((store.name.clone(), WRITTEN.to_owned()), self.write_rate(&store.name)));
        counters.chain(stores).collect()
    }

    /// The moment shown on pages that can, in milliseconds since 1970; `None` = now.
    pub(super) fn shown_moment(&self) -> Option<u64> {
        self.then.as_ref().map(PastEpoch::middle_moment)
    }

    /// Whether the page can show another moment.
    pub(super) fn page_has_moments(&self) -> bool {
        self.flow.is_some() || matches!(self.tab, Tab::Query | Tab::Top)
    }

    /// Shows another moment, on pages that can.
    fn show_moment(&mut self, then: Option<PastEpoch>) {
        self.error = None;
        if self.then != then {
            self.then = then;
            self.top.found = None;
            if let Some(view) = &mut self.flow {
                view.lines = None;
            }
        }
    }

    /// A step through the epochs of the selected store or, if it has none, of the first one that has some.
    fn step_epoch(&mut self, to: To) -> Option<KeyAction> {
        if self.stepping || (to == To::Newer && self.then.is_none()) {
            return None;
        }
        self.stepping = true;
        let selected = self.selected_store().map(|spec| spec.name);
        let all = self.now.iter().flat_map(|now| &now.stores).filter_map(|info| info.store.as_ref());
        let stores = selected.into_iter().chain(all.map(|store| store.name.clone())).collect();
        Some(KeyAction::Do(Errand::Step(Box::new(EpochStep { from: self.then.clone(), to, stores }))))
    }

    fn push_answer(&mut self, asked: String, lines: Vec<String>, at: Option<Instant>) {
        self.answers.push_front(QueryReply { asked, lines, at });
        self.answers.truncate(20);
    }

    /// Reports that something could not be sent.
    pub(super) fn report_unsent(&mut self, errand: Errand) {
        match errand {
            Errand::Ask(question) => {
                self.asking = self.asking.saturating_sub(1);
                let lines = vec!["not sent: earlier queries have no answer yet".into()];
                self.push_answer(question.text, lines, None);
            }
            Errand::Step(_) => self.stepping = false,
        }
    }

    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Option<KeyAction> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => self.quit = true,
                KeyCode::Char('z') => return Some(KeyAction::Suspend),
                KeyCode::Char('l') => return Some(KeyAction::Refresh),
                _ => {}
            }
            return None;
        }
        if let Some(top) = &mut self.help {
            match scroll_target(*top, key.code) {
                Some(to) => *top = to,
                None => self.help = None,
            }
            return None;
        }
        let types = self.tab == Tab::Query && !self.input.is_empty();
        match key.code {
            KeyCode::F(1) => self.help = Some(0),
            KeyCode::Char('?') if !types => self.help = Some(0),
            KeyCode::Char('[') if !types => return self.step_epoch(To::Older),
            KeyCode::Char(']') if !types => return self.step_epoch(To::Newer),
            KeyCode::Char('}') if !types => self.show_moment(None),
            KeyCode::Tab => self.cycle_tab(1),
            KeyCode::BackTab => self.cycle_tab(Tab::ALL.len() - 1),
            KeyCode::Esc if self.memory.goto.take().is_some() => {}
            KeyCode::Esc if self.flow.take().is_some() => self.error = None,
            KeyCode::Esc if types => self.input.clear(),
            KeyCode::Esc if self.tab == Tab::Query => self.open_tab(self.before_query),
            KeyCode::Esc => {}
            _ if self.tab == Tab::Query => return self.query_key(key.code),
            _ if self.tab == Tab::Memory && self.memory.goto.is_some() => self.handle_goto_key(key.code),
            KeyCode::Char('q') => self.quit = true,
            KeyCode::Char('r') => return Some(KeyAction::Refresh),
            KeyCode::Char(digit @ '1'..='8') => self.open_tab(Tab::ALL[digit as usize - '1' as usize]),
            code => match self.tab {
                Tab::Stores => self.store_key(code),
                Tab::Waterfall if code == KeyCode::Char('a') => self.all = !self.all,
                Tab::Waterfall => self.scroll_key(0, code),
                Tab::Sessions => self.scroll_key(1, code),
                Tab::Memory => self.memory_key(code),
                Tab::Lists => self.handle_list_key(code),
                Tab::Events | Tab::Top if self.flow.is_some() => self.handle_flow_key(code),
                Tab::Events => self.events_key(code),
                Tab::Top => self.handle_top_key(code),
                Tab::Query => {}
            },
        }
        None
    }

    fn handle_flow_key(&mut self, code: KeyCode) {
        let Some(view) = &mut self.flow else { return };
        match (scroll_target(view.top, code), code) {
            (Some(to), _) => view.top = to,
            (None, KeyCode::Enter | KeyCode::Backspace | KeyCode::Left) => self.flow = None,
            (None, _) => {}
        }
    }

    fn events_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Right | KeyCode::Char('l') => self.events.cycle_kind(true),
            KeyCode::Left | KeyCode::Char('h') => self.events.cycle_kind(false),
            KeyCode::Enter => {
                let flow = self.events.shown_events().nth(self.events.selected).and_then(|event| event.flow);
                self.open(flow);
            }
            // Limited when drawn.
            code => {
                self.events.selected =
                    scroll_target(self.events.selected, code).unwrap_or(self.events.selected)
            }
        }
    }

    fn handle_top_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Right | KeyCode::Char('l') => self.rank_by_next(true),
            KeyCode::Left | KeyCode::Char('h') => self.rank_by_next(false),
            KeyCode::Enter => {
                let found = self.top.found.as_ref().filter(|(by, ..)| *by == self.top.by);
                let row = found.and_then(|(_, _, top)| top.flows.get(self.top.selected));
                let flow = row.and_then(|row| row.flow);
                self.open(flow);
            }
            code => self.top.selected = scroll_target(self.top.selected, code).unwrap_or(self.top.selected),
        }
    }

    fn rank_by_next(&mut self, forward: bool) {
        self.top.cycle_ranking(forward);
        self.error = None;
    }

    /// Opens a flow, if one is known.
    fn open(&mut self, flow: Option<Flow>) {
        if let Some(flow) = flow {
            self.flow = Some(FlowView { flow, lines: None, top: 0 });
            self.error = None;
        }
    }

    fn open_tab(&mut self, tab: Tab) {
        if tab == Tab::Query && self.tab != Tab::Query {
            self.before_query = self.tab;
        }
        self.tab = tab;
        self.error = None;
        self.flow = None;
    }

    fn cycle_tab(&mut self, by: usize) {
        self.open_tab(Tab::ALL[(self.tab as usize + by) % Tab::ALL.len()]);
    }

    fn select_store(&mut self, forward: bool) {
        let count = self.now.as_ref().map_or(0, |s| s.stores.len());
        if count > 0 {
            self.store = (self.store + if forward { 1 } else { count - 1 }) % count;
            self.memory = MemoryView { follow: self.memory.follow, ..MemoryView::default() };
        }
    }

    fn store_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.select_store(true),
            KeyCode::Up | KeyCode::Char('k') => self.select_store(false),
            KeyCode::Enter => self.open_tab(Tab::Memory),
            _ => {}
        }
    }

    fn scroll_key(&mut self, page: usize, code: KeyCode) {
        if let Some(to) = scroll_target(self.scroll[page], code) {
            self.scroll[page] = to;
        }
    }

    fn memory_key(&mut self, code: KeyCode) {
        let Some(spec) = self.selected_store() else { return };
        let last = spec.element_count() - 1;
        let at = self.memory.element;
        let to = match code {
            KeyCode::Right | KeyCode::Char('l') => return self.select_store(true),
            KeyCode::Left | KeyCode::Char('h') => return self.select_store(false),
            KeyCode::Char('f') => {
                self.memory.follow = !self.memory.follow;
                (self.memory.seen, self.memory.change) = (None, None);
                return;
            }
            KeyCode::Char('g') => {
                self.memory.goto = Some(String::new());
                return;
            }
            KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::PageDown => at.saturating_add(16),
            KeyCode::PageUp => at.saturating_sub(16),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => return,
        };
        self.memory.follow = false;
        self.memory.element = to.min(last);
    }

    fn handle_goto_key(&mut self, code: KeyCode) {
        let Some(typed) = &mut self.memory.goto else { return };
        match code {
            KeyCode::Char(digit) if digit.is_ascii_digit() && typed.len() < 19 => typed.push(digit),
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Enter => {
                if let (Ok(element), Some(spec)) = (typed.parse::<u64>(), self.selected_store()) {
                    self.memory.element = element.min(spec.element_count() - 1);
                    self.memory.follow = false;
                }
                self.memory.goto = None;
            }
            _ => {}
        }
    }

    fn handle_list_key(&mut self, code: KeyCode) {
        let Some(StoreKind::Append { lists, .. }) = self.append_store().map(|s| s.kind) else { return };
        self.list = match code {
            KeyCode::Right | KeyCode::Down | KeyCode::Char('l' | 'j') => (self.list + 1) % lists,
            KeyCode::Left | KeyCode::Up | KeyCode::Char('h' | 'k') => (self.list + lists - 1) % lists,
            KeyCode::Home => 0,
            KeyCode::End => lists - 1,
            _ => return,
        };
    }

    fn query_key(&mut self, code: KeyCode) -> Option<KeyAction> {
        match code {
            KeyCode::Char(c) if self.input.len() < 200 => self.input.push(c),
            KeyCode::Backspace => {
                self.input.pop();
            }
            KeyCode::Up => {
                if let Some(answered) = self.answers.front() {
                    self.input.clone_from(&answered.asked);
                }
            }
            KeyCode::Enter => match parse_question(&self.input, self.shown_moment()) {
                Ok(question) => {
                    self.input.clear();
                    self.asking += 1;
                    return Some(KeyAction::Do(Errand::Ask(question)));
                }
                Err(error) if !self.input.is_empty() => {
                    self.push_answer(self.input.clone(), vec![error], None)
                }
                Err(_) => {}
            },
            _ => {}
        }
        None
    }
}

/// `STORE KEY [EPOCH]`.
fn parse_question(input: &str, at: Option<u64>) -> Result<TypedQuery, String> {
    let mut words = input.split_whitespace();
    let (Some(store), Some(key)) = (words.next(), words.next()) else {
        return Err("type a store's name and a key, such as flows 10.0.0.1:5000->10.0.0.2:5000/udp".into());
    };
    let epoch = match words.next() {
        None => 0,
        Some(word) => word.parse().map_err(|_| format!("the epoch must be a number, not {word:?}"))?,
    };
    Ok(TypedQuery { store: store.into(), key: key.into(), epoch, at, text: input.into() })
}

/// The name in the history of the writes to a store.
pub(super) const WRITTEN: &str = "written";

/// Where a key scrolls to; `None` for other keys. Limited when drawn.
fn scroll_target(from: usize, code: KeyCode) -> Option<usize> {
    Some(match code {
        KeyCode::Down | KeyCode::Char('j') => from + 1,
        KeyCode::Up | KeyCode::Char('k') => from.saturating_sub(1),
        KeyCode::PageDown => from + 10,
        KeyCode::PageUp => from.saturating_sub(10),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX / 2,
        _ => return None,
    })
}

//! What the dashboard shows and what keys do. No I/O: the worker is told by [`App::want`], and
//! tells by [`App::update`].

use std::collections::VecDeque;
use std::time::Instant;

use dta_proto::control::{NodeStatistics, SessionInfo, StoreInfo};
use dta_proto::store::{StoreKind, StoreSpec};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Bytes fetched for the memory view: more than any terminal shows, less than one request may ask.
const WINDOW_BYTES: u64 = 16 << 10;

/// Everything fetched at one time.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) stores: Vec<StoreInfo>,
    pub(super) sessions: Vec<SessionInfo>,
    pub(super) nodes: Vec<NodeStatistics>,
    pub(super) taken: Instant,
    /// From a running collector (rather than from memory, which knows no sessions or counters).
    pub(super) live: bool,
}

/// A stretch of a store's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
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

/// What has been read of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Entries {
    pub(super) newest: VecDeque<Vec<u8>>,
    pub(super) total: u64,
    pub(super) sequence: u64,
    pub(super) overwritten: u64,
    pub(super) torn: u64,
}

/// A question typed by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) store: String,
    pub(super) key: String,
    pub(super) epoch: u32,
}

/// What the worker should fetch besides the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Want {
    pub(super) memory: Option<Window>,
    /// The store whose writes the memory view follows.
    pub(super) follow: Option<StoreSpec>,
    pub(super) list: Option<ListId>,
}

/// What the worker fetched.
#[derive(Clone, Debug)]
pub(super) enum Update {
    Snapshot(Result<Snapshot, String>),
    Memory(Window, Result<Vec<u8>, String>),
    /// A store was written at this offset since the last look.
    Written(String, u64),
    Entries(ListId, Result<Entries, String>),
    Answer(Question, Result<Vec<String>, String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Stores,
    Traffic,
    Memory,
    Lists,
    Query,
}

impl Tab {
    pub(super) const ALL: [Tab; 5] = [Tab::Stores, Tab::Traffic, Tab::Memory, Tab::Lists, Tab::Query];

    pub(super) fn title(self) -> &'static str {
        match self {
            Tab::Stores => "Stores",
            Tab::Traffic => "Traffic",
            Tab::Memory => "Memory",
            Tab::Lists => "Lists",
            Tab::Query => "Query",
        }
    }

    pub(super) fn index(self) -> usize {
        Self::ALL.iter().position(|t| *t == self).unwrap_or_default()
    }
}

/// The memory view.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryView {
    /// First element shown.
    pub(super) element: u64,
    pub(super) follow: bool,
    pub(super) window: Option<(Window, Vec<u8>)>,
    /// The same window one refresh earlier: what differs was written since.
    pub(super) before: Option<(Window, Vec<u8>)>,
    /// An element number being typed (`g`).
    pub(super) goto: Option<String>,
}

/// The state of the whole dashboard.
#[derive(Debug)]
pub(super) struct App {
    pub(super) title: String,
    pub(super) tab: Tab,
    pub(super) quit: bool,
    pub(super) now: Option<Snapshot>,
    pub(super) earlier: Option<Snapshot>,
    /// The last error, until something works again.
    pub(super) error: Option<String>,
    /// Which store is selected (index in the snapshot).
    pub(super) store: usize,
    /// First line shown of the Traffic tab.
    pub(super) scroll: u16,
    pub(super) memory: MemoryView,
    pub(super) list: u32,
    pub(super) entries: Option<(ListId, Entries)>,
    pub(super) input: String,
    pub(super) answers: VecDeque<(String, Vec<String>)>,
}

impl App {
    pub(super) fn new(title: String) -> Self {
        Self {
            title,
            tab: Tab::Stores,
            quit: false,
            now: None,
            earlier: None,
            error: None,
            store: 0,
            scroll: 0,
            memory: MemoryView::default(),
            list: 0,
            entries: None,
            input: String::new(),
            answers: VecDeque::new(),
        }
    }

    /// The selected store.
    pub(super) fn spec(&self) -> Option<StoreSpec> {
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
        self.spec().filter(is_append).or_else(|| specs().find(is_append))
    }

    /// What the worker should fetch.
    pub(super) fn want(&self) -> Want {
        let mut want = Want::default();
        match self.tab {
            Tab::Memory => {
                if let Some(spec) = self.spec() {
                    let offset = self.memory.element.min(spec.elements() - 1) * spec.element_len();
                    let length = WINDOW_BYTES.min(spec.region_len() - offset) as u32;
                    want.follow = self.memory.follow.then(|| spec.clone());
                    want.memory = Some(Window { store: spec.name, offset, length });
                }
            }
            Tab::Lists => {
                want.list = self.append_store().map(|spec| ListId { store: spec.name, list: self.list });
            }
            Tab::Stores | Tab::Traffic | Tab::Query => {}
        }
        want
    }

    /// Takes in what the worker fetched.
    pub(super) fn update(&mut self, update: Update) {
        match update {
            Update::Snapshot(Ok(snapshot)) => {
                self.error = None;
                self.store = self.store.min(snapshot.stores.len().saturating_sub(1));
                self.earlier = self.now.replace(snapshot);
            }
            Update::Memory(window, Ok(bytes)) => {
                let view = &mut self.memory;
                let same = view.window.as_ref().is_some_and(|(old, _)| *old == window);
                let old = view.window.replace((window, bytes));
                view.before = if same { old } else { None };
            }
            Update::Written(store, offset) => {
                if let Some(spec) = self.spec()
                    && self.memory.follow
                    && spec.name == store
                {
                    self.memory.element = offset / spec.element_len();
                }
            }
            Update::Entries(list, Ok(entries)) => self.entries = Some((list, entries)),
            Update::Answer(question, answer) => {
                let lines = answer.unwrap_or_else(|error| vec![format!("error: {error}")]);
                self.answers.push_front((format!("{} {}", question.store, question.key), lines));
                self.answers.truncate(20);
            }
            Update::Snapshot(Err(error)) | Update::Memory(_, Err(error)) | Update::Entries(_, Err(error)) => {
                self.error = Some(error);
            }
        }
    }

    /// What a key does; a question is for the worker.
    pub(super) fn key(&mut self, key: KeyEvent) -> Option<Question> {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.quit = true;
            return None;
        }
        match key.code {
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(Tab::ALL.len() - 1),
            KeyCode::Esc if self.memory.goto.take().is_some() => {}
            KeyCode::Esc => self.quit = true,
            _ if self.tab == Tab::Query => return self.query_key(key.code),
            _ if self.tab == Tab::Memory && self.memory.goto.is_some() => self.goto_key(key.code),
            KeyCode::Char('q') => self.quit = true,
            KeyCode::Char(digit @ '1'..='5') => self.tab = Tab::ALL[digit as usize - '1' as usize],
            code => match self.tab {
                Tab::Stores => self.store_key(code),
                Tab::Traffic => self.traffic_key(code),
                Tab::Memory => self.memory_key(code),
                Tab::Lists => self.list_key(code),
                Tab::Query => {}
            },
        }
        None
    }

    fn turn(&mut self, by: usize) {
        self.tab = Tab::ALL[(self.tab.index() + by) % Tab::ALL.len()];
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
            KeyCode::Enter => self.tab = Tab::Memory,
            _ => {}
        }
    }

    fn traffic_key(&mut self, code: KeyCode) {
        self.scroll = match code {
            KeyCode::Down | KeyCode::Char('j') => self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll.saturating_add(10),
            KeyCode::PageUp => self.scroll.saturating_sub(10),
            KeyCode::Home => 0,
            _ => return,
        };
    }

    fn memory_key(&mut self, code: KeyCode) {
        let Some(spec) = self.spec() else { return };
        let last = spec.elements() - 1;
        let at = self.memory.element;
        let to = match code {
            KeyCode::Right | KeyCode::Char('l') => return self.select_store(true),
            KeyCode::Left | KeyCode::Char('h') => return self.select_store(false),
            KeyCode::Char('f') => {
                self.memory.follow = !self.memory.follow;
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

    fn goto_key(&mut self, code: KeyCode) {
        let Some(typed) = &mut self.memory.goto else { return };
        match code {
            KeyCode::Char(digit) if digit.is_ascii_digit() && typed.len() < 19 => typed.push(digit),
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Enter => {
                if let (Ok(element), Some(spec)) = (typed.parse::<u64>(), self.spec()) {
                    self.memory.element = element.min(spec.elements() - 1);
                    self.memory.follow = false;
                }
                self.memory.goto = None;
            }
            _ => {}
        }
    }

    fn list_key(&mut self, code: KeyCode) {
        let Some(StoreKind::Append { lists, .. }) = self.append_store().map(|s| s.kind) else { return };
        self.list = match code {
            KeyCode::Right | KeyCode::Down | KeyCode::Char('l' | 'j') => (self.list + 1) % lists,
            KeyCode::Left | KeyCode::Up | KeyCode::Char('h' | 'k') => (self.list + lists - 1) % lists,
            KeyCode::Home => 0,
            KeyCode::End => lists - 1,
            _ => return,
        };
    }

    fn query_key(&mut self, code: KeyCode) -> Option<Question> {
        match code {
            KeyCode::Char(c) if self.input.len() < 200 => self.input.push(c),
            KeyCode::Backspace => {
                self.input.pop();
            }
            KeyCode::Up => {
                if let Some((asked, _)) = self.answers.front() {
                    self.input.clone_from(asked);
                }
            }
            KeyCode::Enter => match parse_question(&self.input) {
                Ok(question) => {
                    self.input.clear();
                    return Some(question);
                }
                Err(error) if !self.input.is_empty() => {
                    self.answers.push_front((self.input.clone(), vec![error]));
                }
                Err(_) => {}
            },
            _ => {}
        }
        None
    }
}

/// `STORE KEY [EPOCH]`.
fn parse_question(input: &str) -> Result<Question, String> {
    let mut words = input.split_whitespace();
    let (Some(store), Some(key)) = (words.next(), words.next()) else {
        return Err("type a store's name and a key, as flows 10.0.0.1:5000->10.0.0.2:5000/udp".into());
    };
    let epoch = match words.next() {
        None => 0,
        Some(word) => word.parse().map_err(|_| format!("the epoch is a number, not {word:?}"))?,
    };
    Ok(Question { store: store.into(), key: key.into(), epoch })
}

/// Per second, between two readings of a counter; `None` where there are no two readings.
pub(super) fn rate(now: (u64, Instant), earlier: Option<(u64, Instant)>) -> Option<f64> {
    let (before, then) = earlier?;
    let seconds = now.1.checked_duration_since(then)?.as_secs_f64();
    // A counter that fell is one that began anew.
    (seconds > 0.0 && now.0 >= before).then(|| (now.0 - before) as f64 / seconds)
}

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dta_export::directory::Directory;
use dta_export::kind::EventKind;
use dta_export::names::Names;
use dta_export::source::Lost;
use dta_proto::control::{
    self, Counter, EntriesRequest, Epoch, EpochState, EpochsRequest, EpochsResponse, ListSessionsResponse,
    NodeStatistics, PlacementResponse, ReadMemoryRequest, ReadMemoryResponse, StoreInfo, TailRequest,
};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::{Flow, Key};
use dta_proto::layout::{append, key_write};
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use dta_proto::telemetry::{self, Location, Metric, TelemetryEntry, Why};
use dta_rpc::{self as client, Ask, ClientError, QueryAnswers, TailMessages};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};
use tokio::sync::{Notify, mpsc, watch};

use super::app::{
    App, Errand, KeyAction, ListEntries, ListId, MemoryWindow, RefreshFailure, Snapshot, Tab, TypedQuery,
    Update, WantedData,
};
use super::events;
use super::follow::{ElementChange, Scan};
use super::past_epoch::{PastEpoch, To};
use super::source::DataSource;
use super::view::{self, Theme};
use super::worker::{self, Orders};
use crate::int::event::IntEvent;
use crate::int::top::{By, RankedFlow, Top};
use crate::test_collector::TestCollector;
use crate::waterfall;

const INTERVAL: Duration = Duration::from_millis(500);

fn specs() -> Vec<StoreSpec> {
    let spec = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
    vec![
        spec(
            1,
            "flows",
            StoreKind::KeyWrite { slots: 1 << 20, value_len: 12, redundancy: 2, keys: Default::default() },
        ),
        spec(2, "paths", StoreKind::Postcarding { slots: 1 << 18, hops: 6, redundancy: 2 }),
        spec(
            3,
            "events",
            StoreKind::Append { lists: 4, ring: 1024, batch_len: 64, entry_len: 12, notify: false },
        ),
        spec(4, "bytes", StoreKind::KeyIncrement { slots: 1 << 20, redundancy: 2, replicas: 1 }),
        spec(
            5,
            "packets",
            StoreKind::SketchMerge { columns: 4096, rows: 4, epochs: 2, merge: Merge::Sum, expected: 2 },
        ),
    ]
}

fn infos() -> Vec<StoreInfo> {
    let info = |spec: &StoreSpec| StoreInfo {
        store: Some(spec.into()),
        generation: 1,
        length: spec.region_len(),
        memory: "2 MiB pages: 513 of 513".into(),
        file: format!("/dev/shm/dta/{}.region", spec.name),
        used: spec.element_count() / 4,
        capacity: spec.element_count(),
        load: 0.25,
        survival: spec.redundancy().map(|_| 0.9511),
        advised_redundancy: spec.redundancy().map(|_| 3),
        buckets: Vec::new(),
        lists: Vec::new(),
        elsewhere: String::new(),
        written: None,
        overwritten: matches!(spec.kind, StoreKind::Append { .. }).then_some(77),
    };
    specs().iter().map(info).collect()
}

/// A node's counters at a time on its own clock, in seconds.
fn node(name: &str, session: &str, age: f64, seconds: f64, counters: &[(&str, u64)]) -> NodeStatistics {
    NodeStatistics {
        node: name.into(),
        session: session.into(),
        age_seconds: age,
        time_us: (seconds * 1e6) as u64,
        counters: counters
            .iter()
            .map(|(name, value)| Counter { name: (*name).into(), value: *value })
            .collect(),
        ..NodeStatistics::default()
    }
}

/// A collector with two translators, some seconds after it began: each receives 500,000 reports a second, some of
/// which are dropped or lost. The three clocks differ.
fn snapshot(taken: Instant, second: u64) -> Snapshot {
    let n = second * 500_000;
    let translator = |name: &str, session: &str, clock: f64, dropped: u64| {
        let counters = [
            ("received", n),
            ("dropped.unknown_store", dropped),
            ("accepted", n - dropped),
            ("emitted", n - dropped),
            ("operations", 2 * (n - dropped)),
            ("frames", 2 * (n - dropped)),
            ("store.flows.frames", 2 * (n - dropped)),
        ];
        node(name, session, 0.4, clock + second as f64, &counters)
    };
    let sent = 4 * n - 2 * 1200;
    let nodes = vec![
        node(
            "nic/soft",
            "",
            0.0,
            50.0 + second as f64,
            &[
                ("received", sent - 300),
                ("executed.write", sent - 307),
                ("dropped.icrc", 7),
                ("dropped.pkey", 0),
            ],
        ),
        node("collector", "", 0.0, 50.0 + second as f64, &[("session.opened", 2)]),
        translator("translator/a", "a", 1000.0, 1200),
        translator("translator/b", "b", 2000.25, 0),
        node(
            "reporter/7",
            "a",
            0.4,
            1000.0 + second as f64,
            &[("received", n), ("gaps", 31), ("gaps_filled", 11)],
        ),
    ];
    let sessions = vec![control::SessionInfo {
        name: "tofino1".into(),
        generation: 3,
        translator: Some(control::Endpoint { ip: "127.0.0.2".into(), ..Default::default() }),
        queue_pairs: vec![control::QueuePairStatus {
            qpn: 0x11,
            purpose: control::Purpose::Write.into(),
            transport: control::Transport::Uc.into(),
            state: "rtr".into(),
            expected_psn: 4242,
            peer_qpn: 0x100,
            counters: vec![],
        }],
        stores: vec!["flows".into()],
        expires_in_seconds: 28.4,
        owner: String::new(),
        frames_by: String::new(),
    }];
    Snapshot { stores: infos(), sessions, nodes: waterfall::ordered_nodes(nodes), taken, live: true }
}

/// An app that has had figures for ten seconds, on the page of stores, and the time of the last ones.
fn app_at() -> (App, Instant) {
    let mut app = App { tab: Tab::Stores, ..App::new("collector 127.0.0.1:40050".into(), INTERVAL) };
    let start = Instant::now();
    let at = |second: u64| start + Duration::from_secs(second);
    for second in 1..=10 {
        app.apply_update(Update::Snapshot(Ok(snapshot(at(second), second))));
    }
    (app, at(10))
}

fn app() -> App {
    app_at().0
}

fn press(app: &mut App, code: KeyCode) -> Option<KeyAction> {
    app.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(app: &mut App, text: &str) {
    for c in text.chars() {
        assert_eq!(press(app, KeyCode::Char(c)), None);
    }
}

fn terminal(app: &mut App, theme: &Theme, now: Instant, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
    terminal.draw(|frame| view::draw_dashboard(frame, app, theme, now)).expect("drawn");
    terminal
}

/// The screen some seconds after the last figures.
fn screen_after(app: &mut App, seconds: f64, width: u16, height: u16) -> String {
    let taken = app.now.as_ref().map_or_else(Instant::now, |snapshot| snapshot.taken);
    let now = taken + Duration::from_secs_f64(seconds);
    terminal(app, &Theme::COLOURS, now, width, height).backend().to_string()
}

fn screen(app: &mut App, width: u16, height: u16) -> String {
    screen_after(app, 0.2, width, height)
}

/// The words of the screen, on one line.
fn words_of_screen(app: &mut App) -> String {
    let shown = screen(app, 80, 24).replace(['"', '\n'], " ");
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The cells of a line.
fn cells(buffer: &Buffer, y: u16) -> Vec<Cell> {
    (0..buffer.area.width).map(|x| buffer[(x, y)].clone()).collect()
}

fn away(app: &mut App, at: Instant, tries_in: f64) {
    let error = "the collector has not answered for 3 s".into();
    let next = at + Duration::from_secs_f64(tries_in);
    app.apply_update(Update::Snapshot(Err(RefreshFailure { error, at, next })));
}

#[test]
fn stores_at_80x24() {
    insta::assert_snapshot!(screen(&mut app(), 80, 24));
}

#[test]
fn waterfall_at_80x24() {
    let mut app = app();
    press(&mut app, KeyCode::Char('1'));
    insta::assert_snapshot!(screen(&mut app, 80, 24));
}

#[test]
fn waterfall_at_120x40() {
    let mut app = app();
    press(&mut app, KeyCode::Char('1'));
    insta::assert_snapshot!(screen(&mut app, 120, 40));
}

#[test]
fn the_waterfall_names_each_loss_and_why() {
    let mut app = app();
    press(&mut app, KeyCode::Char('1'));
    let all = screen(&mut app, 100, 60);
    for (loss, value, why) in [
        ("↓ lost.reporter-translator", "20", "31 sequences skipped, 11 came later"),
        ("✗ dropped.unknown_store", "1,200", "store"),
        ("↓ lost.translator-nic", "300", "frames sent"),
        ("✗ dropped.icrc", "7", "the iCRC is wrong: damaged on the way"),
    ] {
        let lines: Vec<&str> = all.lines().collect();
        let at =
            lines.iter().position(|line| line.contains(loss)).unwrap_or_else(|| panic!("{loss} in {all}"));
        assert!(lines[at].contains(value) && lines[at + 1].contains(why), "{loss}: {:?}", &lines[at..at + 2]);
    }
    assert!(all.contains("✓ executed.write") && !all.contains("dropped.pkey"), "{all}");
    press(&mut app, KeyCode::Char('a'));
    assert!(screen(&mut app, 100, 60).contains("dropped.pkey"));
}

#[test]
fn sessions_at_80x24() {
    let mut app = app();
    press(&mut app, KeyCode::Char('3'));
    insta::assert_snapshot!(screen(&mut app, 80, 24));
}

#[test]
fn help_at_80x24_and_how_to_leave_it() {
    let mut app = app();
    press(&mut app, KeyCode::Char('?'));
    insta::assert_snapshot!(screen(&mut app, 80, 24));
    press(&mut app, KeyCode::End);
    assert!(screen(&mut app, 80, 24).contains("second line from below says when"));
    press(&mut app, KeyCode::Char('q'));
    assert!(app.help.is_none() && !app.quit, "q closes the help alone");
    for (width, height) in [(40, 10), (200, 60)] {
        press(&mut app, KeyCode::F(1));
        assert!(screen(&mut app, width, height).contains("help"));
        press(&mut app, KeyCode::Esc);
    }
    // The question is being typed, not asked.
    press(&mut app, KeyCode::Char('6'));
    type_text(&mut app, "a?");
    assert_eq!((app.input.as_str(), app.help), ("a?", None));
}

#[test]
fn memory_shows_slots_in_hex_and_decoded() {
    let mut app = app();
    press(&mut app, KeyCode::Char('4'));
    let window = app.wanted_data().memory.expect("the memory page wants memory");
    assert_eq!(window, MemoryWindow { store: "flows".into(), offset: 0, length: 16384 });
    let mut bytes = vec![0; 16384];
    key_write::encode_slot(&mut bytes[16..32], &Key([7; 16]), b"hello world!");
    app.apply_update(Update::Memory(window, Instant::now(), Ok(bytes)));
    insta::assert_snapshot!(screen(&mut app, 80, 24));
}

#[test]
fn memory_marks_what_changed() {
    let mut app = app();
    press(&mut app, KeyCode::Char('4'));
    let window = app.wanted_data().memory.expect("a window");
    let mut bytes = vec![1; 16384];
    app.apply_update(Update::Memory(window.clone(), Instant::now(), Ok(bytes.clone())));
    bytes[17] = 2;
    app.apply_update(Update::Memory(window, Instant::now(), Ok(bytes)));
    let now = Instant::now();
    let drawn = terminal(&mut app, &Theme::COLOURS, now, 80, 24);
    let green = |c: &&Cell| c.fg == Color::Green;
    let content = drawn.backend().buffer().content();
    let marked: String = content.iter().filter(green).map(|c| c.symbol()).collect();
    assert_eq!(marked, "02");
}

#[test]
fn memory_scrolls_jumps_and_follows() {
    let mut app = app();
    press(&mut app, KeyCode::Char('4'));
    press(&mut app, KeyCode::End);
    assert_eq!(app.memory.element, (1 << 20) - 1);
    assert_eq!(app.wanted_data().memory.map(|w| w.length), Some(16), "no window past the end");
    press(&mut app, KeyCode::Down);
    assert_eq!(app.memory.element, (1 << 20) - 1);
    press(&mut app, KeyCode::Char('g'));
    type_text(&mut app, "77");
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.memory.element, 77);
    press(&mut app, KeyCode::Char('f'));
    let change = ElementChange { element: 10, of: 1, others: 3, within: 2 * INTERVAL, at: Instant::now() };
    let seen = Scan { change: Some(change), elements: 1 << 18, known: 1.0 };
    app.apply_update(Update::Written("flows".into(), Ok(seen.clone())));
    assert_eq!(app.memory.element, 10);
    app.apply_update(Update::Written("paths".into(), Ok(Scan { change: None, ..seen })));
    assert_eq!((app.memory.element, app.memory.change), (10, Some(change)), "another store's news");
    press(&mut app, KeyCode::Left);
    assert_eq!(
        app.selected_store().map(|s| s.name),
        Some("packets".into()),
        "to the left of the first is the last"
    );
}

#[test]
fn lists_at_80x24() {
    let mut app = app();
    press(&mut app, KeyCode::Char('5'));
    press(&mut app, KeyCode::Right);
    let list = app.wanted_data().list.expect("the lists page wants a list");
    assert_eq!(list, ListId { store: "events".into(), list: 1 });
    let newest = (0u8..30).map(|i| vec![i; 12]).collect();
    app.apply_update(Update::Entries(
        list,
        Instant::now(),
        Ok(ListEntries { newest, total: 30, sequence: 8, overwritten: 2, torn: 1 }),
    ));
    insta::assert_snapshot!(screen(&mut app, 80, 24));
}

#[test]
fn query_asks_and_shows_answers_and_mistakes() {
    let mut app = app();
    press(&mut app, KeyCode::Char('6'));
    type_text(&mut app, "flows");
    assert_eq!(press(&mut app, KeyCode::Enter), None);
    assert_eq!(app.answers.len(), 1, "a mistake is answered on the spot");
    type_text(&mut app, " 10.0.0.1:1->10.0.0.2:2/udp 3");
    let key = "10.0.0.1:1->10.0.0.2:2/udp".to_owned();
    let question = TypedQuery {
        store: "flows".into(),
        key: key.clone(),
        epoch: 3,
        at: None,
        text: format!("flows {key} 3"),
    };
    assert_eq!(press(&mut app, KeyCode::Enter), Some(KeyAction::Do(Errand::Ask(question.clone()))));
    assert!(screen(&mut app, 80, 24).contains("asking …"));
    let at = app.now.as_ref().unwrap().taken;
    app.apply_update(Update::Answer(
        question,
        at,
        Ok(vec!["00000001".into(), "2 of 2 copies agree, 0 differ".into()]),
    ));
    insta::assert_snapshot!(screen(&mut app, 80, 24));
}

#[test]
fn letters_are_typed_on_the_query_page_and_commands_elsewhere() {
    let mut app = app();
    press(&mut app, KeyCode::Char('6'));
    type_text(&mut app, "q2");
    assert!(!app.quit);
    assert_eq!(app.input, "q2");
    press(&mut app, KeyCode::Tab);
    assert_eq!(app.tab, Tab::Events);
    press(&mut app, KeyCode::Char('q'));
    assert!(app.quit);
}

#[test]
fn it_opens_on_where_reports_went_or_on_stores_if_memory_alone_is_read() {
    assert_eq!((App::new("x".into(), INTERVAL).tab, Tab::ALL[0]), (Tab::Waterfall, Tab::Waterfall));
    let source = |running| DataSource::from_ask(Arc::new(TestCollector::default()), "x".into(), running);
    assert_eq!([true, false].map(|running| source(running).first_page()), [Tab::Waterfall, Tab::Stores]);
}

#[test]
fn escape_leads_back_and_never_out() {
    let mut app = app();
    press(&mut app, KeyCode::Char('7'));
    press(&mut app, KeyCode::Char('6'));
    type_text(&mut app, "flows");
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.input.as_str(), app.tab), ("", Tab::Query));
    press(&mut app, KeyCode::Esc);
    assert_eq!(app.tab, Tab::Events, "the page before");
    press(&mut app, KeyCode::Esc);
    assert_eq!((app.tab, app.quit), (Tab::Events, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_without_its_stores_says_what_is_missing_and_what_to_do() {
    let sketch = StoreKind::SketchMerge { columns: 64, rows: 4, epochs: 2, merge: Merge::Sum, expected: 2 };
    let keys = StoreKind::Append { lists: 1, ring: 16, batch_len: 64, entry_len: 16, notify: false };
    let counts = StoreKind::KeyIncrement { slots: 1 << 10, redundancy: 2, replicas: 1 };
    let mut fake = TestCollector::with_stores([("packets", sketch), ("keys", keys), ("bytes", counts)]);
    fake.add("keys", 0, [flow().to_key().0.to_vec()]);
    fake.put_answer("bytes", flow().to_key(), control::CounterAnswer { value: 1500, ..Default::default() });
    let source = DataSource::from_ask(Arc::new(fake), "x".into(), false);
    let mut bench = Bench::new(&source, Duration::from_millis(20));
    bench.until("figures", |app| app.now.is_some()).await;
    bench.press(KeyCode::Char('7'));
    bench.until("an error", |app| app.error.is_some()).await;
    let shown = words_of_screen(&mut bench.app);
    assert!(
        !shown.contains("reading") && shown.contains("no events here: they are in int-events"),
        "{shown}"
    );
    assert!(shown.contains("docs/int.md") && shown.contains("this collector has packets, keys,"), "{shown}");
    // Nothing particular is asked for: it ranks by what is there.
    bench.press(KeyCode::Char('8'));
    bench.until("a flow", |app| app.top.found.is_some()).await;
    let shown = screen(&mut bench.app, 80, 24);
    assert!(shown.contains("flows by bytes: known for 1 of 1 flows") && shown.contains("1,500"), "{shown}");
    // The next lower ranking.
    bench.press(KeyCode::Left);
    bench.until("an error", |app| app.error.is_some()).await;
    let shown = words_of_screen(&mut bench.app);
    assert!(
        shown.contains("store packets is of sketch-merge") && shown.contains("try --by bytes"),
        "{shown}"
    );
    bench.press(KeyCode::Right);
    assert_eq!(bench.app.top.by, Some(By::Bytes));
}

#[test]
fn every_page_draws_at_any_size() {
    let mut app = app();
    let window = MemoryWindow { store: "flows".into(), offset: 0, length: 16384 };
    app.apply_update(Update::Memory(window, Instant::now(), Ok(vec![0; 16384])));
    for tab in ['1', '2', '3', '4', '5', '6', '7', '8'] {
        press(&mut app, KeyCode::Char(tab));
        for (width, height) in [(1, 1), (3, 2), (20, 5), (39, 9), (40, 10), (61, 13), (80, 24), (200, 60)] {
            screen(&mut app, width, height);
        }
    }
}

#[test]
fn a_collector_that_is_away_leaves_the_key_help_and_dims_what_is_old() {
    let (mut app, taken) = app_at();
    let at = |seconds: f64| taken + Duration::from_secs_f64(seconds);
    let store_line =
        |app: &mut App, now| cells(terminal(app, &Theme::COLOURS, now, 80, 24).backend().buffer(), 4);
    let dim = |cells: &[Cell]| {
        cells.iter().filter(|cell| cell.symbol() != " ").all(|cell| cell.fg == Color::DarkGray)
    };
    assert!(screen(&mut app, 80, 24).contains("live, every 0.5 s"));
    assert!(!dim(&store_line(&mut app, at(0.2))));

    away(&mut app, at(4.0), 2.0);
    let shown = screen_after(&mut app, 4.7, 80, 24);
    for expected in [
        "NO ANSWER for 0 s, figures are 4 s old",
        "! Trying again in 2 s (r: now): the collector has not answered for 3 s",
        "? help  q quit",
        "key-write",
    ] {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    assert!(dim(&store_line(&mut app, at(4.7))));
    assert_eq!(app.wanted_data(), WantedData::default(), "nothing else is asked meanwhile");
    assert!(screen_after(&mut app, 6.5, 80, 24).contains("Trying again now:"));
    away(&mut app, at(9.0), 4.0);
    assert!(screen_after(&mut app, 10.1, 80, 24).contains("NO ANSWER for 6 s, figures are 10 s old"));
    assert_eq!(press(&mut app, KeyCode::Char('r')), Some(KeyAction::Refresh));

    app.apply_update(Update::Snapshot(Ok(snapshot(at(13.0), 11))));
    let shown = screen(&mut app, 80, 24);
    assert!(shown.contains("live") && !shown.contains("has not answered"), "{shown}");
    assert!(!dim(&store_line(&mut app, at(13.1))));
}

#[test]
fn figures_that_stop_coming_are_old_before_anything_fails() {
    let (mut app, taken) = app_at();
    assert!(screen_after(&mut app, 3.1, 80, 24).contains("waiting, figures are 3 s old"));
    let drawn = terminal(&mut app, &Theme::COLOURS, taken + Duration::from_secs(3), 80, 24);
    assert!(cells(drawn.backend().buffer(), 4).iter().all(|cell| cell.fg == Color::DarkGray));
}

#[test]
fn the_age_of_what_a_node_reported_goes_on() {
    let mut app = app();
    press(&mut app, KeyCode::Char('1'));
    assert!(screen_after(&mut app, 0.3, 80, 24).contains("translator/a  seen 0 s ago"));
    assert!(screen_after(&mut app, 2.7, 80, 24).contains("translator/a  seen 3 s ago"));
    assert!(screen_after(&mut app, 30.0, 80, 24).contains("seen 30 s ago  silent"));
}

#[test]
fn write_rates_are_steady_though_translators_report_less_often_than_is_asked() {
    let mut app = App { tab: Tab::Stores, ..App::new("x".into(), INTERVAL) };
    let start = Instant::now();
    for half in 0..20u32 {
        // Queried every half second; it reports every second, with 1000 frames written in each.
        let reported = f64::from(half / 2);
        let frames = 1000 * u64::from(half / 2);
        let nodes = vec![node("translator/t", "t", 0.0, 77.0 + reported, &[("store.flows.frames", frames)])];
        let nodes = waterfall::ordered_nodes(nodes);
        let taken = start + INTERVAL * half;
        app.apply_update(Update::Snapshot(Ok(Snapshot {
            stores: infos(),
            sessions: vec![],
            nodes,
            taken,
            live: true,
        })));
        let shown = screen(&mut app, 80, 24);
        let known = if half < 2 { "written: unknown" } else { "written: 1.0k frames/s" };
        assert!(shown.contains(known), "after {half} halves: {shown}");
    }
    assert!(screen(&mut app, 80, 24).contains("████████"), "the sparkline is as steady");
}

#[test]
fn write_rates_of_translators_are_added_up() {
    // 500,000 reports with two copies each to two translators.
    assert!(screen(&mut app(), 80, 24).contains("written: 2.00M frames/s"));
}

#[test]
fn without_colours_there_are_none_and_what_is_selected_can_be_seen() {
    let theme = Theme::with_colours(false);
    let (mut app, taken) = app_at();
    away(&mut app, taken, 2.0);
    for tab in ['1', '2', '3', '4', '5', '6', '7', '8'] {
        press(&mut app, KeyCode::Char(tab));
        let drawn = terminal(&mut app, &theme, taken, 80, 24);
        let content = drawn.backend().buffer().content();
        assert!(content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset), "page {tab}");
        assert!(content.iter().any(|cell| cell.modifier.contains(Modifier::REVERSED)), "page {tab}");
        assert!(content.iter().any(|cell| cell.modifier.contains(Modifier::DIM)), "page {tab}");
    }
}

#[test]
fn a_small_terminal_says_what_is_missing() {
    let mut app = app();
    assert!(!screen(&mut app, 80, 24).contains("not shown"));
    let shown = screen(&mut app, 60, 16);
    assert!(shown.contains("not shown, 80x24 has room: kind, size, details"), "{shown}");
    let shown = screen(&mut app, 30, 8);
    assert!(shown.contains("30x8 is too small"), "{shown}");
    press(&mut app, KeyCode::Char('1'));
    let shown = screen(&mut app, 50, 12);
    assert!(shown.contains("lines 1 to 8 of"), "{shown}");
    assert!(screen(&mut app, 60, 60).contains("not shown below 72 columns: rates and bars"));
}

#[test]
fn scrolling_ends_where_there_is_no_more() {
    let mut app = app();
    press(&mut app, KeyCode::Char('1'));
    for _ in 0..100 {
        press(&mut app, KeyCode::PageDown);
    }
    let end = screen(&mut app, 80, 16);
    press(&mut app, KeyCode::Up);
    assert_ne!(screen(&mut app, 80, 16), end, "one key up is one line up");
}

#[test]
fn many_stores_scroll_with_the_selection() {
    let mut app = app();
    let mut snapshot = app.now.clone().unwrap();
    let one = snapshot.stores[0].clone();
    snapshot.stores = (0..40)
        .map(|i| {
            let mut info = one.clone();
            info.store.as_mut().unwrap().name = format!("s{i}");
            info
        })
        .collect();
    app.apply_update(Update::Snapshot(Ok(snapshot)));
    press(&mut app, KeyCode::Up);
    let shown = screen(&mut app, 80, 24);
    assert!(shown.contains("s39") && shown.contains("of 40"), "{shown}");
}

const FLOW: &str = "10.0.0.1:5000->10.0.0.2:5000/udp";
/// 2026-11-22T05:01:02.123Z
const TIME: u64 = 1_795_323_662_123_456_789;

fn flow() -> Flow {
    FLOW.parse().unwrap()
}

/// This many latencies of one flow, a second apart, and a drop at the end.
fn entries(latencies: u64) -> Vec<TelemetryEntry> {
    let key = flow().to_key();
    let change = |n| TelemetryEntry::Change {
        path: None,
        time: TIME + n * 1_000_000_000,
        key,
        metric: Metric::FlowLatency,
        why: Why::Moved,
        old: 1000 + n,
        new: 1001 + n,
        place: Location::default(),
    };
    let place = Location { switch: Some(6), port: Some(12), queue: Some(5) };
    let time = TIME + latencies * 1_000_000_000;
    let drop =
        TelemetryEntry::Drop { time, key, place, ingress_port: Some(3), reason: DropReason::from_int(71) };
    (0..latencies).map(change).chain([drop]).collect()
}

fn seen(entries: &[TelemetryEntry]) -> events::EventLog {
    let names = "[switch.6]\nname = \"leaf1\"\n[switch.6.port]\n12 = \"uplink\"\n";
    let names = Names::parse(names, std::path::Path::new("x")).unwrap();
    let mut directory = Directory::default();
    let newest: VecDeque<_> =
        entries.iter().map(|entry| IntEvent::from_entry(entry, &mut directory, &names)).collect();
    let missed = Lost { overwritten: 7, ..Lost::default() };
    let mut of_kind = [0; EventKind::NAMES.len()];
    newest.iter().for_each(|event| of_kind[event.kind as usize] += 1);
    events::EventLog { newest, of_kind, missed }
}

#[test]
fn a_name_cannot_turn_the_direction_of_a_line() {
    let names = "[switch.6]\nname = \"le\u{202e}af1\"\n[switch.6.port]\n12 = \"\u{2066}uplink\"\n";
    let names = Names::parse(names, std::path::Path::new("x")).unwrap();
    let event = IntEvent::from_entry(&entries(0)[0], &mut Directory::default(), &names);
    let mut app = app();
    press(&mut app, KeyCode::Char('7'));
    let log = events::EventLog {
        newest: [event].into(),
        of_kind: [1; EventKind::NAMES.len()],
        missed: Lost::default(),
    };
    app.apply_update(Update::Events(Instant::now(), Ok(log)));
    let text = screen(&mut app, 200, 24);
    assert!(text.contains("le\\u202eaf1 (6)") && text.contains("port \\u2066uplink (12)"), "{text}");
    assert!(!text.contains(['\u{202e}', '\u{2066}']), "{text}");
}

#[test]
fn events_at_80x24() {
    let mut app = app();
    press(&mut app, KeyCode::Char('7'));
    assert!(app.wanted_data().events);
    app.apply_update(Update::Events(Instant::now(), Ok(seen(&entries(30)))));
    insta::assert_snapshot!(screen(&mut app, 80, 24));
    assert!(
        screen(&mut app, 120, 24).contains("11-22 05:01:32.123Z 10.0.0.1:5000"),
        "wide ones have the day"
    );
    // The second event, and its flow.
    press(&mut app, KeyCode::Down);
    assert!(screen(&mut app, 80, 24).contains("latency 1,030 ns, before 1,029 ns"));
    // One more came: the same event is selected.
    app.apply_update(Update::Events(Instant::now(), Ok(seen(&entries(31)))));
    assert_eq!(app.events.selected, 2);
    press(&mut app, KeyCode::Enter);
    assert_eq!((app.wanted_data().flow, app.wanted_data().events), (Some(flow()), false));
    press(&mut app, KeyCode::Esc);
    assert!(app.flow.is_none() && !app.quit, "Esc goes back");
    // A single kind.
    press(&mut app, KeyCode::Right);
    assert_eq!((app.events.kind, app.events.shown_events().count()), (Some(EventKind::Drop), 1));
    assert!(screen(&mut app, 80, 24).contains("events drop, newest first: 1; 7 batches"));
    // If a line is too long, the flow gives way to what happened to it.
    assert!(
        screen(&mut app, 80, 24)
            .contains("10.0.0.1:5000->10.0.0.2:5000/udp, s…: dropped, traffic-manager (71)")
    );
    press(&mut app, KeyCode::Left);
    press(&mut app, KeyCode::Left);
    assert_eq!(app.events.kind, Some(EventKind::LinkUtilization));
    assert!(screen(&mut app, 80, 24).contains("no event yet"));
}

fn top(rows: u64) -> Top {
    let row = |n: u64| {
        let flow = Flow { sport: n as u16, ..flow() };
        RankedFlow {
            flow: Some(flow),
            ends: Default::default(),
            key: flow.to_key(),
            value: 1_000_000 - n,
            age_seconds: Some(n as f64),
        }
    };
    let mut flows: Vec<RankedFlow> = (0..rows).map(row).collect();
    flows.push(RankedFlow {
        flow: None,
        ends: Default::default(),
        key: Key([0xab; 16]),
        value: 7,
        age_seconds: None,
    });
    Top {
        by: "latency".into(),
        store: "int-values".into(),
        epoch: None,
        keys: "int-events".into(),
        with_figure: flows.len() as u64,
        flows,
        known: 1200,
        missed: Lost { overwritten: 1234, ..Lost::default() },
        forgotten: 0,
        others: Vec::new(),
    }
}

#[test]
fn top_flows_at_80x24_and_the_path_of_one() {
    let mut app = app();
    press(&mut app, KeyCode::Char('8'));
    assert_eq!(app.wanted_data().top, Some(None), "whatever is known");
    let now = Instant::now();
    app.apply_update(Update::Top((None, None), now, Ok(Box::new(top(5)))));
    insta::assert_snapshot!("top_flows_at_80x24", screen(&mut app, 80, 24));
    // Many flows have more lines than fit.
    app.apply_update(Update::Top((None, None), now, Ok(Box::new(top(99)))));
    press(&mut app, KeyCode::End);
    let shown = screen(&mut app, 80, 24);
    assert!(shown.contains("of 100: ↑↓") && shown.contains("key abab"), "{shown}");
    // The flow of that key is unknown, so there is nothing to open.
    press(&mut app, KeyCode::Enter);
    assert!(app.flow.is_none());
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Enter);
    let flow = Flow { sport: 1, ..flow() };
    assert_eq!(app.wanted_data().flow, Some(flow));
    assert!(screen(&mut app, 80, 24).contains("10.0.0.1:1->10.0.0.2:5000/udp: querying"));
    let lines = ["10.0.0.1:1->10.0.0.2:5000/udp", "", "  path       6:5:4"].map(str::to_owned);
    app.apply_update(Update::Flow((flow, None), now, Ok(lines.to_vec())));
    insta::assert_snapshot!("a_flow_at_80x24", screen(&mut app, 80, 24));
    press(&mut app, KeyCode::Enter);
    press(&mut app, KeyCode::Right);
    assert_eq!(app.wanted_data().top, Some(Some(By::Drops)));
    assert!(
        screen(&mut app, 80, 24).contains("flows by drops: reading"),
        "what was ranked by latency is not shown"
    );
    press(&mut app, KeyCode::Char('2'));
    assert_eq!(app.wanted_data(), WantedData::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_top_flow_is_opened_as_a_path() {
    let append = StoreKind::Append { lists: 4, ring: 16, batch_len: 128, entry_len: 60, notify: false };
    let values =
        StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2, keys: Default::default() };
    let paths =
        StoreKind::KeyWrite { slots: 1 << 10, value_len: 60, redundancy: 2, keys: Default::default() };
    let mut fake = TestCollector::with_stores([
        (telemetry::store::EVENTS, append),
        (telemetry::store::VALUES, values),
        (telemetry::store::PATHS, paths),
    ]);
    let key = flow().to_key();
    let known = TelemetryEntry::Key { key, means: telemetry::Means::Itself };
    for entry in std::iter::once(known).chain(entries(2)) {
        let list = match entry {
            TelemetryEntry::Key { .. } => telemetry::list::KEYS,
            TelemetryEntry::Drop { .. } => telemetry::list::DROPS,
            _ => telemetry::list::CHANGES,
        };
        fake.add(telemetry::store::EVENTS, list, [entry.to_bytes().to_vec()]);
    }
    let latency = telemetry::TimedValue { value: 1002, time: TIME };
    fake.put_value(telemetry::store::VALUES, key, &latency.to_bytes());
    fake.put_value(telemetry::store::PATHS, key, &telemetry::SwitchPath::from_switches(&[6, 5]).to_bytes());

    let source = DataSource::from_ask(Arc::new(fake), "x".into(), false);
    let mut bench = Bench::new(&source, Duration::from_millis(20));
    bench.until("figures", |app| app.now.is_some()).await;
    bench.press(KeyCode::Char('7'));
    bench.until("three events", |app| app.events.shown_events().count() == 3).await;
    let shown = screen(&mut bench.app, 80, 24);
    assert!(shown.contains("dropped, traffic-manager (71)"), "{shown}");
    bench.press(KeyCode::Char('8'));
    bench.until("a flow", |app| app.top.found.as_ref().is_some_and(|(_, _, top)| top.flows.len() == 1)).await;
    let shown = screen(&mut bench.app, 80, 24);
    assert!(shown.contains(FLOW) && shown.contains("1,002 ns"), "{shown}");
    bench.press(KeyCode::Enter);
    bench.until("its path", |app| app.flow.as_ref().is_some_and(|view| view.lines.is_some())).await;
    let shown = screen(&mut bench.app, 80, 24);
    assert!(
        shown.contains("path       6:5") && shown.contains("● 5") && shown.contains("latency    1,002 ns"),
        "{shown}"
    );
    assert!(shown.contains("traffic-manager (71), at switch 6"), "{shown}");
}

/// The epochs of a store, from 2026-11-22T05:00 on: a minute each, the last one open.
fn epochs(count: u64) -> Vec<Epoch> {
    let epoch = |n: u64| {
        let opened = 1_795_323_600_000 + n * 60_000;
        let state = if n + 1 == count { EpochState::Open } else { EpochState::Kept };
        let flipped_from = if state == EpochState::Open { 0 } else { opened + 60_000 };
        let confirmed = flipped_from != 0;
        Epoch { generation: n + 1, opened, flipped_from, confirmed, state: state.into(), ..Epoch::default() }
    };
    (0..count).map(epoch).collect()
}

#[test]
fn a_past_epoch_is_shown_by_pages_that_can_and_others_say_now() {
    let mut app = app();
    assert_eq!(press(&mut app, KeyCode::Char(']')), None, "there is nothing newer than now");
    let Some(KeyAction::Do(Errand::Step(step))) = press(&mut app, KeyCode::Char('[')) else {
        panic!("no step");
    };
    assert_eq!((step.from.as_ref(), step.to, &*step.stores[0]), (None, To::Older, "flows"));
    assert_eq!(press(&mut app, KeyCode::Char('[')), None, "one step at a time");
    let then = PastEpoch { store: "flows".into(), epoch: epochs(3).remove(1) };
    app.apply_update(Update::Stepped(Ok(Some(then.clone()))));
    insta::assert_snapshot!("stores_while_a_past_epoch_is_shown_at_80x24", screen(&mut app, 80, 24));
    press(&mut app, KeyCode::Char('8'));
    assert_eq!((app.wanted_data().top, app.wanted_data().at), (Some(None), Some(then.epoch.opened + 30_000)));
    let now = Instant::now();
    // An answer about now comes too late.
    app.apply_update(Update::Top((None, None), now, Ok(Box::new(top(5)))));
    assert!(screen(&mut app, 80, 24).contains("flows: reading"));
    app.apply_update(Update::Top((None, app.shown_moment()), now, Ok(Box::new(top(5)))));
    insta::assert_snapshot!("top_flows_of_a_past_epoch_at_80x24", screen(&mut app, 80, 24));
    // A question about this moment; brackets belong to it once something is typed.
    press(&mut app, KeyCode::Char('6'));
    for c in "flows [2001:db8::1]:1->[2001:db8::2]:2/tcp".chars() {
        press(&mut app, KeyCode::Char(c));
    }
    let Some(KeyAction::Do(Errand::Ask(question))) = press(&mut app, KeyCode::Enter) else {
        panic!("no question")
    };
    assert_eq!((&*question.key, question.at), ("[2001:db8::1]:1->[2001:db8::2]:2/tcp", app.shown_moment()));
    // Forward again, and back to now.
    let step = press(&mut app, KeyCode::Char(']'));
    assert!(
        matches!(step, Some(KeyAction::Do(Errand::Step(step))) if step.from.as_ref() == Some(&then) && step.to == To::Newer)
    );
    app.apply_update(Update::Stepped(Err("no answer".into())));
    assert!(screen(&mut app, 80, 24).contains("! no answer"));
    assert_eq!(app.then, Some(then));
    press(&mut app, KeyCode::Char('}'));
    assert_eq!((app.shown_moment(), &app.error), (None, &None));
    assert!(!screen(&mut app, 80, 24).contains("UTC"));
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_are_stepped_through_and_asked() {
    let append = StoreKind::Append { lists: 4, ring: 16, batch_len: 128, entry_len: 60, notify: false };
    let values =
        StoreKind::KeyWrite { slots: 1 << 10, value_len: 12, redundancy: 2, keys: Default::default() };
    let counts = StoreKind::KeyIncrement { slots: 1 << 10, redundancy: 2, replicas: 1 };
    let mut fake = TestCollector::with_stores([
        (telemetry::store::EVENTS, append),
        (telemetry::store::COUNTERS, counts),
        (telemetry::store::VALUES, values),
    ]);
    let key = flow().to_key();
    fake.add(
        telemetry::store::EVENTS,
        telemetry::list::KEYS,
        [TelemetryEntry::Key { key, means: telemetry::Means::Itself }.to_bytes().to_vec()],
    );
    let all = epochs(3);
    let value =
        |value| telemetry::TimedValue { value, time: (all[1].opened + 20_000) * 1_000_000 }.to_bytes();
    fake.put_value(telemetry::store::VALUES, key, &value(7));
    fake.put_past_value(telemetry::store::VALUES, key, all[1].opened, &value(1234));
    fake.epochs.insert(telemetry::store::VALUES.into(), all.clone());

    let source = DataSource::from_ask(Arc::new(fake), "x".into(), false);
    let mut bench = Bench::new(&source, Duration::from_millis(20));
    bench.until("figures", |app| app.now.is_some()).await;
    bench.press(KeyCode::Char('8'));
    let latency = |app: &App| Some(app.top.found.as_ref()?.2.flows.first()?.value);
    bench.until("now", |app| latency(app) == Some(7)).await;
    // The selected store has no epochs: those of the first store that has some are used.
    let opened = |app: &App| app.then.as_ref().map(|then| then.epoch.opened);
    bench.press(KeyCode::Char('['));
    bench.until("the epoch before", |app| opened(app) == Some(all[1].opened)).await;
    bench.wish();
    bench.until("its figures", |app| latency(app) == Some(1234)).await;
    let top = bench.app.top.found.clone().unwrap().2;
    assert_eq!((top.flows[0].age_seconds, top.epoch.unwrap().generation), (Some(10.0), Some(2)));
    bench.press(KeyCode::Enter);
    let drawn = |app: &App| Some(app.flow.as_ref()?.lines.as_ref()?.1.join("\n"));
    bench.until("the flow of then", |app| drawn(app).is_some()).await;
    let lines = drawn(&bench.app).unwrap();
    assert!(lines.contains("at 2026-11-22T05:01:30.000Z") && lines.contains("1,234 ns"), "{lines}");
    assert!(lines.contains("Store int-counters has no epochs"), "{lines}");
    bench.press(KeyCode::Esc);
    // The oldest epoch has no such flow, and nothing precedes it.
    bench.press(KeyCode::Char('['));
    bench.until("the oldest", |app| opened(app) == Some(all[0].opened)).await;
    bench.wish();
    bench
        .until("no figure", |app| app.top.found.as_ref().is_some_and(|(.., top)| top.flows.is_empty()))
        .await;
    bench.press(KeyCode::Char('['));
    bench.until("the end", |app| app.error.as_deref() == Some("no older epoch of int-values is kept")).await;
    // A query shows its epoch.
    bench.press(KeyCode::Char('6'));
    bench.press(KeyCode::Char(']'));
    bench.until("the newer one", |app| opened(app) == Some(all[1].opened)).await;
    format!("int-values {FLOW}").chars().for_each(|c| bench.press(KeyCode::Char(c)));
    bench.press(KeyCode::Enter);
    bench.until("an answer", |app| !app.answers.is_empty()).await;
    let lines = &bench.app.answers[0].lines;
    assert_eq!(lines[2], "of the epoch from 2026-11-22T05:01:00.000Z to 2026-11-22T05:02:00.000Z");
    // The next epoch is open, which means now.
    bench.press(KeyCode::Char(']'));
    bench.until("now", |app| app.then.is_none() && !app.stepping).await;
}

/// A source that answers with figures at once, and with memory after a while or never.
struct Slow {
    memory: Duration,
    is_there: watch::Receiver<bool>,
    /// Reads of memory that have started.
    reads: Arc<AtomicU32>,
}

impl Slow {
    fn new(memory: Duration, is_there: watch::Receiver<bool>) -> Self {
        Slow { memory, is_there, reads: Arc::default() }
    }
}

#[tonic::async_trait]
impl Ask for Slow {
    async fn fetch_stores(&self) -> Result<Vec<StoreInfo>, ClientError> {
        if *self.is_there.borrow() {
            Ok(infos())
        } else {
            Err(tonic::Status::unavailable("nobody listens").into())
        }
    }

    async fn placement(&self) -> Result<PlacementResponse, ClientError> {
        std::future::pending().await
    }

    async fn query_keys(&self, _: client::Question) -> Result<QueryAnswers, ClientError> {
        std::future::pending().await
    }

    async fn query_keys_in_span(
        &self,
        _: client::Question,
        _: client::Span,
    ) -> Result<client::Series, ClientError> {
        std::future::pending().await
    }

    async fn fetch_epochs(&self, _: EpochsRequest) -> Result<EpochsResponse, ClientError> {
        std::future::pending().await
    }

    async fn tail_list(&self, _: TailRequest) -> Result<TailMessages, ClientError> {
        std::future::pending().await
    }

    async fn stream_entries(&self, _: EntriesRequest) -> Result<TailMessages, ClientError> {
        std::future::pending().await
    }

    async fn read_memory(&self, request: ReadMemoryRequest) -> Result<ReadMemoryResponse, ClientError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(self.memory).await;
        Ok(ReadMemoryResponse { data: vec![0; request.length as usize], generation: 1 })
    }

    async fn fetch_sessions(&self) -> Result<ListSessionsResponse, ClientError> {
        Ok(ListSessionsResponse::default())
    }

    async fn statistics(&self) -> Result<Vec<NodeStatistics>, ClientError> {
        Ok(Vec::new())
    }
}

/// An app with its workers, without keyboard and terminal.
struct Bench {
    app: App,
    want: watch::Sender<WantedData>,
    errands: mpsc::Sender<Errand>,
    updated: mpsc::Receiver<Update>,
    refresh: Arc<Notify>,
    _workers: tokio::task::JoinSet<()>,
}

impl Bench {
    fn new(source: &DataSource, interval: Duration) -> Self {
        let app = App::new("x".into(), interval);
        let (want, wanted) = watch::channel(app.wanted_data());
        let (errands, sent) = mpsc::channel(8);
        let (updates, updated) = mpsc::channel(64);
        let refresh = Arc::new(Notify::new());
        let orders = Orders { wanted, errands: sent, refresh: refresh.clone(), updates };
        let workers = worker::start_workers(source, interval, orders);
        Self { app, want, errands, updated, refresh, _workers: workers }
    }

    fn press(&mut self, code: KeyCode) {
        match press(&mut self.app, code) {
            Some(KeyAction::Do(errand)) => self.errands.try_send(errand).unwrap(),
            Some(KeyAction::Refresh) => self.refresh.notify_one(),
            _ => {}
        }
        self.wish();
    }

    fn wish(&mut self) {
        let wish = self.app.wanted_data();
        self.want.send_if_modified(|old| {
            let changed = *old != wish;
            *old = wish;
            changed
        });
    }

    /// Applies updates until a condition is met.
    async fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut App) -> bool) {
        let all = async {
            while !is_so(&mut self.app) {
                let update = self.updated.recv().await.expect("the workers live");
                self.app.apply_update(update);
                let wish = self.app.wanted_data();
                self.want.send_if_modified(|old| {
                    let changed = *old != wish;
                    *old = wish;
                    changed
                });
            }
        };
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    /// Waits for this many figures.
    async fn figures(&mut self, count: u32) {
        for _ in 0..count {
            self.until("figures", figures_since(Instant::now())).await;
        }
    }
}

/// Whether figures have come since.
fn figures_since(since: Instant) -> impl FnMut(&mut App) -> bool {
    move |app| app.now.as_ref().is_some_and(|now| now.taken > since)
}

#[tokio::test(flavor = "multi_thread")]
async fn following_writes_never_holds_up_the_figures() {
    let (_there, is_there) = watch::channel(true);
    let slow = Slow::new(Duration::from_secs(1), is_there);
    let reads = Arc::clone(&slow.reads);
    let mut bench =
        Bench::new(&DataSource::from_ask(Arc::new(slow), "x".into(), true), Duration::from_millis(100));
    bench.until("figures", |app| app.now.is_some()).await;
    bench.press(KeyCode::Char('4'));
    bench.press(KeyCode::Char('f'));
    // A scan is under way. Each page of memory takes a second: figures that waited for it would be as rare.
    let (mut figures, mut pages) = (0, 0);
    // After a stall, in which neither comes, it goes on with more pages.
    while pages < 4 || (figures <= 2 * pages && pages < 20) {
        bench.figures(1).await;
        figures += 1;
        pages = reads.load(Ordering::Relaxed);
        assert!(figures < 1000, "it does not look");
    }
    assert!(figures > 2 * pages, "{figures} figures while {pages} pages were read");
    bench.press(KeyCode::Char('1'));
    bench.figures(5).await;
    let before = reads.load(Ordering::Relaxed);
    bench.figures(20).await;
    assert_eq!(reads.load(Ordering::Relaxed), before, "the look was given up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_without_an_answer_holds_up_nothing() {
    let (_there, is_there) = watch::channel(true);
    let slow = Slow::new(Duration::ZERO, is_there);
    let mut bench =
        Bench::new(&DataSource::from_ask(Arc::new(slow), "x".into(), true), Duration::from_millis(100));
    bench.until("figures", |app| app.now.is_some()).await;
    bench.press(KeyCode::Char('6'));
    type_text(&mut bench.app, "flows 0a000001");
    let begun = Instant::now();
    bench.press(KeyCode::Enter);
    bench.until("figures", figures_since(Instant::now())).await;
    // After a stall, it may have been given up by now.
    assert!(bench.app.asking == 1 || begun.elapsed() >= Duration::from_secs(3));
    bench.until("an answer", |app| app.asking == 0).await;
    assert_eq!(bench.app.answers[0].lines, ["error: the collector has not answered for 3 s"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_tries_again_less_and_less_often_and_comes_back_by_itself() {
    let (there, is_there) = watch::channel(false);
    let slow = Slow::new(Duration::ZERO, is_there);
    let mut bench = Bench::new(&DataSource::from_ask(Arc::new(slow), "x".into(), true), INTERVAL);
    let failure = async |bench: &mut Bench| match bench.updated.recv().await {
        Some(Update::Snapshot(Err(failure))) => failure,
        other => panic!("nobody is there, but {other:?}"),
    };
    let mut failures: Vec<RefreshFailure> = Vec::new();
    for _ in 0..4 {
        failures.push(failure(&mut bench).await);
    }
    for (waits, tries) in [500, 1000, 2000].into_iter().zip(failures.windows(2)) {
        assert_eq!(tries[0].next - tries[0].at, Duration::from_millis(waits));
        assert!(tries[1].at >= tries[0].next, "not before it said");
    }
    let mut last = failures.pop().unwrap();
    assert!(last.error.contains("nobody listens"), "{last:?}");
    bench.app.apply_update(Update::Snapshot(Err(last.clone())));
    // A key makes it try at once. After a stall it may have tried by itself, before the key.
    let mut tries_at_once = false;
    for _ in 0..4 {
        bench.press(KeyCode::Char('r'));
        let next = failure(&mut bench).await;
        tries_at_once = next.at < last.next;
        if tries_at_once {
            break;
        }
        last = next;
    }
    assert!(tries_at_once, "the key does nothing");
    there.send_replace(true);
    bench.until("it is back", |app| app.now.is_some() && !app.connection.is_lost()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn following_writes_shows_the_element_that_was_written() {
    let kind = StoreKind::KeyWrite { slots: 1 << 14, value_len: 12, redundancy: 2, keys: Default::default() };
    let fake = Arc::new(TestCollector::with_stores([("flows", kind)]));
    fake.memory.lock().unwrap().insert("flows".into(), vec![0; 16 << 14]);
    let source = DataSource::from_ask(fake.clone(), "x".into(), false);
    let mut bench = Bench::new(&source, Duration::from_millis(20));
    bench.until("figures", |app| app.now.is_some()).await;
    bench.press(KeyCode::Char('4'));
    bench.press(KeyCode::Char('f'));
    bench
        .until("all was looked at", |app| app.memory.seen.as_ref().is_some_and(|seen| seen.known >= 1.0))
        .await;
    assert!(bench.app.memory.change.is_none());
    // In the middle of a page of 64 KiB, and the last element of all.
    for element in [5001u64, (1 << 14) - 1] {
        let mut slot = [0; 16];
        key_write::encode_slot(&mut slot, &Key([element as u8; 16]), b"hello world!");
        let start = element as usize * 16;
        fake.memory.lock().unwrap().get_mut("flows").unwrap()[start..start + 16].copy_from_slice(&slot);
        bench.until("the element is found", |app| app.memory.element == element).await;
        bench
            .until("its bytes are shown", |app| {
                let window = app.memory.window.as_ref();
                window.is_some_and(|(window, bytes)| window.offset == element * 16 && bytes[..16] == slot)
            })
            .await;
        let shown = screen(&mut bench.app, 100, 24);
        assert!(shown.contains(&format!("element {element} changed within")), "{shown}");
        assert!(shown.contains("value \"hello world!\"") && shown.contains('▶'), "{shown}");
    }
}

#[test]
fn elements_are_decoded() {
    let events = &specs()[2];
    let mut batch = [0u8; 64];
    assert_eq!(crate::element::describe_element(events, 0, &batch), "empty");
    append::encode_batch(&mut batch, 1, 9, 2, &[5; 24]);
    assert_eq!(crate::element::describe_element(events, 1024 + 8, &batch), "list 1 batch 9, 2 entries");
    assert_eq!(crate::element::describe_element(events, 8, &batch), "list 0, being written or damaged");
    let counter = 77u64.to_le_bytes();
    assert_eq!(crate::element::describe_element(&specs()[3], 0, &counter), "count 77");
}

use std::time::{Duration, Instant};

use dta_proto::control::{self, Counter, NodeStatistics, StoreInfo};
use dta_proto::key::Key;
use dta_proto::layout::{append, key_write};
use dta_proto::store::{Merge, StoreKind, StoreSpec};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{App, Entries, ListId, Question, Snapshot, Tab, Update, Window, rate};
use super::view;

fn specs() -> Vec<StoreSpec> {
    let spec = |id, name: &str, kind| StoreSpec { id, name: name.into(), kind };
    vec![
        spec(1, "flows", StoreKind::KeyWrite { slots: 1 << 20, value_len: 12, redundancy: 2 }),
        spec(2, "paths", StoreKind::Postcarding { slots: 1 << 18, hops: 6, redundancy: 2 }),
        spec(
            3,
            "events",
            StoreKind::Append { lists: 4, ring: 1024, batch_len: 64, entry_len: 12, notify: false },
        ),
        spec(4, "bytes", StoreKind::KeyIncrement { slots: 1 << 20, redundancy: 2 }),
        spec(
            5,
            "packets",
            StoreKind::SketchMerge { columns: 4096, rows: 4, epochs: 2, merge: Merge::Sum, expected: 2 },
        ),
    ]
}

fn snapshot(taken: Instant, received: u64) -> Snapshot {
    let stores = specs()
        .iter()
        .map(|spec| StoreInfo {
            store: Some(spec.into()),
            generation: 1,
            length: spec.region_len(),
            memory: "2 MiB pages: 513 of 513".into(),
            file: format!("/dev/shm/dta/{}.region", spec.name),
            used: spec.elements() / 4,
            capacity: spec.elements(),
            load: 0.25,
            survival: spec.redundancy().map(|_| 0.9511),
            advised_redundancy: spec.redundancy().map(|_| 3),
        })
        .collect();
    let counter = |name: &str, value| Counter { name: name.into(), value };
    let mut nodes = vec![NodeStatistics {
        node: "nic/soft".into(),
        counters: vec![counter("received", received), counter("dropped.icrc", 7), counter("dropped.pkey", 0)],
        ..Default::default()
    }];
    // Two translators write to one store.
    nodes.extend([("translator/a", received / 5), ("translator/b", received - received / 5)].map(
        |(node, frames)| NodeStatistics {
            node: node.into(),
            counters: vec![counter("store.flows.frames", frames)],
            ..Default::default()
        },
    ));
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
    }];
    Snapshot { stores, sessions, nodes, taken, live: true }
}

/// An app that has seen two snapshots, a second apart.
fn app() -> App {
    let mut app = App::new("collector 127.0.0.1:40050".into());
    let start = Instant::now();
    app.update(Update::Snapshot(Ok(snapshot(start, 1_000_000))));
    app.update(Update::Snapshot(Ok(snapshot(start + Duration::from_secs(1), 3_500_000))));
    app
}

fn press(app: &mut App, code: KeyCode) -> Option<Question> {
    app.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_text(app: &mut App, text: &str) {
    for c in text.chars() {
        assert_eq!(press(app, KeyCode::Char(c)), None);
    }
}

fn screen(app: &App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test terminal");
    terminal.draw(|frame| view::draw(frame, app)).expect("drawn");
    terminal.backend().to_string()
}

#[test]
fn stores_at_80x24() {
    insta::assert_snapshot!(screen(&app(), 80, 24));
}

#[test]
fn traffic_at_80x24() {
    let mut app = app();
    press(&mut app, KeyCode::Char('2'));
    insta::assert_snapshot!(screen(&app, 80, 24));
}

#[test]
fn memory_shows_slots_in_hex_and_decoded() {
    let mut app = app();
    press(&mut app, KeyCode::Char('3'));
    let window = app.want().memory.expect("the memory page wants memory");
    assert_eq!(window, Window { store: "flows".into(), offset: 0, length: 16384 });
    let mut bytes = vec![0; 16384];
    key_write::encode(&mut bytes[16..32], &Key([7; 16]), b"hello world!");
    app.update(Update::Memory(window, Ok(bytes)));
    insta::assert_snapshot!(screen(&app, 80, 24));
}

#[test]
fn memory_marks_what_changed() {
    let mut app = app();
    press(&mut app, KeyCode::Char('3'));
    let window = app.want().memory.expect("a window");
    let mut bytes = vec![1; 16384];
    app.update(Update::Memory(window.clone(), Ok(bytes.clone())));
    bytes[17] = 2;
    app.update(Update::Memory(window, Ok(bytes)));
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a test terminal");
    terminal.draw(|frame| view::draw(frame, &app)).expect("drawn");
    let green = |c: &ratatui::buffer::Cell| c.fg == ratatui::style::Color::Green;
    let marked: String =
        terminal.backend().buffer().content().iter().filter(|c| green(c)).map(|c| c.symbol()).collect();
    assert_eq!(marked, "02");
}

#[test]
fn memory_scrolls_jumps_and_follows() {
    let mut app = app();
    press(&mut app, KeyCode::Char('3'));
    press(&mut app, KeyCode::End);
    assert_eq!(app.memory.element, (1 << 20) - 1);
    assert_eq!(app.want().memory.map(|w| w.length), Some(16), "no window past the end");
    press(&mut app, KeyCode::Down);
    assert_eq!(app.memory.element, (1 << 20) - 1);
    press(&mut app, KeyCode::Char('g'));
    type_text(&mut app, "77");
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.memory.element, 77);
    press(&mut app, KeyCode::Char('f'));
    app.update(Update::Written("flows".into(), 160));
    assert_eq!(app.memory.element, 10);
    app.update(Update::Written("paths".into(), 0));
    assert_eq!(app.memory.element, 10, "another store's news");
    press(&mut app, KeyCode::Left);
    assert_eq!(app.spec().map(|s| s.name), Some("packets".into()), "to the left of the first is the last");
}

#[test]
fn lists_at_80x24() {
    let mut app = app();
    press(&mut app, KeyCode::Char('4'));
    press(&mut app, KeyCode::Right);
    let list = app.want().list.expect("the lists page wants a list");
    assert_eq!(list, ListId { store: "events".into(), list: 1 });
    let newest = (0u8..30).map(|i| vec![i; 12]).collect();
    app.update(Update::Entries(
        list,
        Ok(Entries { newest, total: 30, sequence: 8, overwritten: 2, torn: 1 }),
    ));
    insta::assert_snapshot!(screen(&app, 80, 24));
}

#[test]
fn query_asks_and_shows_answers_and_mistakes() {
    let mut app = app();
    press(&mut app, KeyCode::Char('5'));
    type_text(&mut app, "flows");
    assert_eq!(press(&mut app, KeyCode::Enter), None);
    assert_eq!(app.answers.len(), 1, "a mistake is answered on the spot");
    type_text(&mut app, " 10.0.0.1:1->10.0.0.2:2/udp 3");
    let question = press(&mut app, KeyCode::Enter).expect("a question");
    assert_eq!(
        question,
        Question { store: "flows".into(), key: "10.0.0.1:1->10.0.0.2:2/udp".into(), epoch: 3 }
    );
    app.update(Update::Answer(question, Ok(vec!["00000001".into(), "2 of 2 copies agree, 0 differ".into()])));
    insta::assert_snapshot!(screen(&app, 80, 24));
}

#[test]
fn letters_are_typed_on_the_query_page_and_commands_elsewhere() {
    let mut app = app();
    press(&mut app, KeyCode::Char('5'));
    type_text(&mut app, "q2");
    assert!(!app.quit);
    assert_eq!(app.input, "q2");
    press(&mut app, KeyCode::Tab);
    assert_eq!(app.tab, Tab::Stores);
    press(&mut app, KeyCode::Char('q'));
    assert!(app.quit);
}

#[test]
fn every_page_draws_at_any_size() {
    let mut app = app();
    for tab in ['1', '2', '3', '4'] {
        press(&mut app, KeyCode::Char(tab));
        for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (200, 60)] {
            screen(&app, width, height);
        }
    }
}

#[test]
fn an_error_is_shown_and_goes_when_things_work_again() {
    let mut app = app();
    app.update(Update::Snapshot(Err("the collector has not answered for 3 s".into())));
    assert!(screen(&app, 80, 24).contains("! the collector has not answered for 3 s"));
    app.update(Update::Snapshot(Ok(snapshot(Instant::now(), 1))));
    assert!(!screen(&app, 80, 24).contains("has not answered"));
}

#[test]
fn a_counter_that_begins_anew_has_no_rate() {
    let then = Instant::now();
    let now = then + Duration::from_secs(2);
    assert_eq!(rate((30, now), Some((10, then))), Some(10.0));
    assert_eq!(rate((3, now), Some((10, then))), None);
    assert_eq!(rate((3, now), None), None);
}

#[test]
fn elements_are_decoded() {
    let events = &specs()[2];
    let mut batch = [0u8; 64];
    assert_eq!(super::element::describe(events, 0, &batch), "empty");
    append::encode(&mut batch, 1, 9, 2, &[5; 24]);
    assert_eq!(super::element::describe(events, 1024 + 8, &batch), "list 1 batch 9, 2 entries");
    assert_eq!(super::element::describe(events, 8, &batch), "list 0, being written or damaged");
    let counter = 77u64.to_le_bytes();
    assert_eq!(super::element::describe(&specs()[3], 0, &counter), "counter 77");
}

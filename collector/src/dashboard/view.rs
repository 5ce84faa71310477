//! Draws the dashboard. Everything fits in 80x24 and grows with the terminal.

use dta_proto::control::{Counter, NodeStatistics, StoreInfo};
use dta_proto::counter::{self, Step};
use dta_proto::store::StoreSpec;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, Tabs};

use super::app::{App, Snapshot, Tab, rate};
use super::element;

const DIM: Style = Style::new().fg(Color::DarkGray);
const HEADER: Style = Style::new().add_modifier(Modifier::BOLD);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

pub(super) fn draw(frame: &mut Frame, app: &App) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    draw_head(frame, head, app);
    match (&app.now, app.tab) {
        (None, _) => frame.render_widget(Paragraph::new("waiting for the first figures …").style(DIM), body),
        (Some(now), Tab::Stores) => draw_stores(frame, body, app, now),
        (Some(now), Tab::Traffic) => draw_traffic(frame, body, app, now),
        (Some(_), Tab::Memory) => draw_memory(frame, body, app),
        (Some(_), Tab::Lists) => draw_lists(frame, body, app),
        (Some(_), Tab::Query) => draw_query(frame, body, app),
    }
    draw_foot(frame, foot, app);
}

fn draw_head(frame: &mut Frame, area: Rect, app: &App) {
    let [title, tabs] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    frame.render_widget(Line::from(vec![Span::styled("DTA ", HEADER), Span::raw(app.title.as_str())]), title);
    let titles = Tab::ALL.iter().enumerate().map(|(i, tab)| format!("{} {}", i + 1, tab.title()));
    frame.render_widget(Tabs::new(titles).select(app.tab.index()).highlight_style(SELECTED), tabs);
}

fn draw_foot(frame: &mut Frame, area: Rect, app: &App) {
    let line = match (&app.error, app.tab) {
        (Some(error), _) => Line::from(format!("! {error}")).style(Style::new().fg(Color::Red)),
        (None, Tab::Stores) => Line::from("↑↓ store  Enter its memory  1-5 Tab pages  q quit").style(DIM),
        (None, Tab::Traffic) => Line::from("↑↓ scroll  1-5 Tab pages  q quit").style(DIM),
        (None, Tab::Memory) => match &app.memory.goto {
            Some(typed) => Line::from(format!("go to element: {typed}▏")),
            None => Line::from("↑↓ PgUp PgDn scroll  g go to  f follow writes  ←→ store  q quit").style(DIM),
        },
        (None, Tab::Lists) => Line::from("←→ list  1-5 Tab pages  q quit").style(DIM),
        (None, Tab::Query) => Line::from("Enter ask  ↑ last question  Tab pages  Esc quit").style(DIM),
    };
    frame.render_widget(line, area);
}

fn draw_stores(frame: &mut Frame, area: Rect, app: &App, now: &Snapshot) {
    let [table, detail] = Layout::vertical([Constraint::Min(3), Constraint::Length(7)]).areas(area);
    let rows = now.stores.iter().enumerate().map(|(i, info)| {
        let spec = info.store.as_ref().and_then(|s| StoreSpec::try_from(s).ok());
        let (name, kind, n) = spec.map_or_else(Default::default, |s| {
            (s.name.clone(), s.primitive(), s.redundancy().map_or("-".into(), |n| n.to_string()))
        });
        let row = Row::new([
            Cell::from(name),
            Cell::from(kind),
            Cell::from(bytes(info.length)),
            Cell::from(gauge(info.load, 12)),
            Cell::from(format!("{:.3}", info.load)),
            Cell::from(info.survival.map_or("-".into(), |s| format!("{:.1} %", s * 100.0))),
            Cell::from(advice(info, &n)),
        ]);
        if i == app.store { row.style(SELECTED) } else { row }
    });
    let widths = [
        Constraint::Min(10),
        Constraint::Length(13),
        Constraint::Length(8),
        Constraint::Length(12),
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(12),
    ];
    let header = Row::new(["store", "kind", "size", "", "load", "survive", "N"]).style(HEADER);
    frame.render_widget(Table::new(rows, widths).header(header), table);

    let Some(info) = now.stores.get(app.store) else { return };
    let mut lines = vec![
        Line::from(format!("{} of {} in use, generation {}", info.used, info.capacity, info.generation)),
        Line::from(format!("memory: {}{}", info.memory, at_file(&info.file))),
    ];
    if let Some(spec) = app.spec() {
        lines.push(Line::from(format!("{} elements: {}", spec.elements(), spec.kind.shape())));
        match written(now, app.earlier.as_ref(), &spec.name) {
            Some(rate) => lines.push(Line::from(format!("written: {} frames/s", count(rate)))),
            None => lines.push(Line::from("written: no translator has said").style(DIM)),
        }
    }
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" selected store ")), detail);
}

fn at_file(file: &str) -> String {
    if file.is_empty() { String::new() } else { format!(", {file}") }
}

/// N, and the better one where there is one.
fn advice(info: &StoreInfo, n: &str) -> String {
    match info.advised_redundancy {
        Some(advised) if advised.to_string() != n => format!("{n}, try {advised}"),
        _ => n.into(),
    }
}

/// Writes per second that all translators sent to a store; `None` before any has said so twice.
fn written(now: &Snapshot, earlier: Option<&Snapshot>, store: &str) -> Option<f64> {
    let name = counter::translator::STORE_FRAMES.of(&[store]);
    let sum = |snapshot: &Snapshot| {
        let counters = snapshot.nodes.iter().flat_map(|n| &n.counters).filter(|c| c.name == name);
        counters.map(|c| c.value).reduce(|a, b| a + b).map(|frames| (frames, snapshot.taken))
    };
    rate(sum(now)?, earlier.and_then(sum))
}

fn draw_traffic(frame: &mut Frame, area: Rect, app: &App, now: &Snapshot) {
    let mut lines = Vec::new();
    if !now.live {
        lines.push(
            Line::from("Memory alone knows no counters or queue pairs: attach to the collector's address.")
                .style(DIM),
        );
    }
    for session in &now.sessions {
        let expires = if session.expires_in_seconds < 0.0 {
            "no expiry".into()
        } else {
            format!("expires in {:.0} s", session.expires_in_seconds)
        };
        let ip = session.translator.as_ref().map_or("", |t| &t.ip);
        lines.push(Line::from(vec![
            Span::styled(format!("session {} ", session.name), HEADER),
            Span::raw(format!("from {ip}, generation {}, {expires}", session.generation)),
        ]));
        for pair in &session.queue_pairs {
            let line = Line::from(format!(
                "  queue pair {:#08x} {} {}  {}  expects PSN {}",
                pair.qpn,
                enum_word(pair.purpose().as_str_name()),
                enum_word(pair.transport().as_str_name()).to_uppercase(),
                pair.state,
                pair.expected_psn,
            ));
            lines.push(if pair.state == "error" { line.fg(Color::Red) } else { line });
        }
    }
    for node in &now.nodes {
        lines.push(Line::from(vec![
            Span::styled(node.node.clone(), HEADER),
            Span::styled(format!("  {:.0} s ago", node.age_seconds), DIM),
        ]));
        let earlier = app.earlier.as_ref();
        for counter in node.counters.iter().filter(|c| c.value > 0) {
            lines.push(counter_line(node, counter, now, earlier));
        }
    }
    let most = (lines.len() as u16).saturating_sub(area.height);
    frame.render_widget(Paragraph::new(lines).scroll((app.scroll.min(most), 0)), area);
}

fn counter_line<'a>(
    node: &NodeStatistics,
    counter: &Counter,
    now: &Snapshot,
    earlier: Option<&Snapshot>,
) -> Line<'a> {
    let before = earlier.and_then(|e| {
        let node = e.nodes.iter().find(|n| n.node == node.node)?;
        node.counters.iter().find(|c| c.name == counter.name).map(|c| (c.value, e.taken))
    });
    let per_second = rate((counter.value, now.taken), before).filter(|r| *r > 0.0);
    let text = format!(
        "  {:<40} {:>16} {:>14}",
        counter.name,
        counter.value,
        per_second.map_or(String::new(), |r| format!("{}/s", count(r)))
    );
    let bad = counter::find(&node.node, &counter.name)
        .is_some_and(|found| matches!(found.definition.step, Step::Dropped | Step::Lost));
    if bad { Line::from(text).fg(Color::Yellow) } else { Line::from(text) }
}

/// `PURPOSE_WRITE` → `write`.
fn enum_word(name: &str) -> String {
    name.split_once('_').map_or(name, |(_, word)| word).to_ascii_lowercase()
}

fn draw_memory(frame: &mut Frame, area: Rect, app: &App) {
    let Some(spec) = app.spec() else { return };
    let [title, body] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let follow = if app.memory.follow { ", following writes" } else { "" };
    frame.render_widget(
        Line::from(format!(
            "{} ({}), element {} of {}{follow}",
            spec.name,
            spec.primitive(),
            app.memory.element,
            spec.elements()
        ))
        .style(HEADER),
        title,
    );
    let Some((window, memory)) = app.memory.window.as_ref().filter(|(w, _)| w.store == spec.name) else {
        frame.render_widget(Line::from("reading …").style(DIM), body);
        return;
    };
    let before = app.memory.before.as_ref().map(|(_, bytes)| &**bytes);
    let len = spec.element_len() as usize;
    let first = window.offset / spec.element_len();
    let mut lines = Vec::new();
    for (i, bytes) in memory.chunks_exact(len).enumerate() {
        if lines.len() >= usize::from(body.height) {
            break;
        }
        let index = first + i as u64;
        let old = before.and_then(|b| b.get(i * len..(i + 1) * len));
        let says = element::describe(&spec, index, bytes);
        let width = usize::from(body.width).saturating_sub(10 + PER_LINE * 2 + PER_LINE / 4 + 1);
        for (row, part) in bytes.chunks(PER_LINE).enumerate() {
            let mut spans =
                vec![Span::styled(if row == 0 { format!("{index:>8}  ") } else { " ".repeat(10) }, DIM)];
            spans.extend(hex_spans(part, old.and_then(|o| o.get(row * PER_LINE..)).unwrap_or(part)));
            // What an element says may need more room than the terminal has beside one line of hex:
            // it goes on beside the next.
            let said: String = says.chars().skip(row * width).take(width).collect();
            spans.push(Span::raw(said));
            lines.push(Line::from(spans));
        }
    }
    frame.render_widget(Paragraph::new(lines), body);
}

/// Bytes of hex on a line.
const PER_LINE: usize = 16;

/// Hex of one line; bytes that differ from `old` stand out.
fn hex_spans<'a>(bytes: &[u8], old: &[u8]) -> Vec<Span<'a>> {
    let mut spans = Vec::new();
    for i in 0..PER_LINE {
        let gap = if i % 4 == 3 { " " } else { "" };
        spans.push(match bytes.get(i) {
            Some(byte) if old.get(i) == Some(byte) => {
                let style = if *byte == 0 { DIM } else { Style::new() };
                Span::styled(format!("{byte:02x}{gap}"), style)
            }
            Some(byte) => Span::styled(
                format!("{byte:02x}{gap}"),
                Style::new().fg(Color::Green).add_modifier(Modifier::BOLD),
            ),
            None => Span::raw(format!("  {gap}")),
        });
    }
    spans.push(Span::raw(" "));
    spans
}

fn draw_lists(frame: &mut Frame, area: Rect, app: &App) {
    let Some(spec) = app.append_store() else {
        frame.render_widget(Line::from("this collector has no append store").style(DIM), area);
        return;
    };
    let [title, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(area);
    let seen =
        app.entries.as_ref().filter(|(id, _)| id.store == spec.name && id.list == app.list).map(|(_, e)| e);
    let mut head = vec![Line::from(format!("{} list {}", spec.name, app.list)).style(HEADER)];
    head.push(match seen {
        None => Line::from("reading …").style(DIM),
        Some(e) => Line::from(format!(
            "{} entries, to batch {}; batches overwritten {}, half-written {}",
            e.total, e.sequence, e.overwritten, e.torn
        )),
    });
    frame.render_widget(Paragraph::new(head), title);
    let entries = seen.into_iter().flat_map(|e| e.newest.iter().rev());
    let lines: Vec<_> = entries
        .take(usize::from(body.height))
        .map(|entry| {
            let text: String = entry
                .iter()
                .map(|b| if b.is_ascii_graphic() || *b == b' ' { *b as char } else { '.' })
                .collect();
            Line::from(vec![Span::raw(element::hex(entry)), Span::styled(format!("  {text}"), DIM)])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), body);
}

fn draw_query(frame: &mut Frame, area: Rect, app: &App) {
    let [input, body] = Layout::vertical([Constraint::Length(3), Constraint::Min(0)]).areas(area);
    let typed = if app.input.is_empty() {
        Line::from("▏STORE KEY [EPOCH], as: flows 10.0.0.1:5000->10.0.0.2:5000/udp").style(DIM)
    } else {
        Line::from(format!("{}▏", app.input))
    };
    frame.render_widget(Paragraph::new(typed).block(Block::bordered().title(" ask ")), input);
    let mut lines = Vec::new();
    for (asked, answer) in &app.answers {
        lines.push(Line::from(asked.as_str()).style(HEADER));
        lines.extend(answer.iter().map(|line| Line::from(format!("  {line}"))));
    }
    frame.render_widget(Paragraph::new(lines), body);
}

/// A share as a bar of `width` characters; full at 1 and above.
fn gauge(share: f64, width: usize) -> String {
    let filled = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

fn count(n: f64) -> String {
    match n {
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e4 => format!("{:.1} k", n / 1e3),
        n if n >= 10.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

//! The page of events.

use dta_cli::number::{format_count, format_grouped};
use dta_cli::table::words_in_lines;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::DrawContext;
use super::text::{escape_hidden_lines, truncate_text};
use crate::dashboard::app::App;
use crate::int::event::IntEvent;

/// Lines of the selected event, with its frame.
const DETAILS: u16 = 5;
/// Least lines of the list above it.
const LEAST: u16 = 5;
/// From this width on, events are shown with their day.
const DATED: usize = 100;
/// Least characters for the subject of an event.
const LEAST_ABOUT: usize = 12;

pub(super) fn draw_events(
    frame: &mut Frame,
    area: Rect,
    app: &mut App,
    look: &DrawContext,
) -> Option<String> {
    let has_details = area.height >= LEAST + DETAILS;
    let details = Constraint::Length(if has_details { DETAILS } else { 0 });
    let [title, body, detail] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), details]).areas(area);
    let kind = app.events.kind.map_or("of all kinds", |kind| kind.name());
    let Some((_, seen)) = &app.events.seen else {
        super::draw_waiting(frame, area, app, "reading …", look);
        return None;
    };
    let missed = match seen.missed.lost_batches() {
        0 => String::new(),
        batches => format!("; {} lost or overwritten", format_count(batches, "batch", "batches")),
    };
    let head =
        format!("events {kind}, newest first: {}{missed}", format_grouped(seen.event_count(app.events.kind)));
    app.events.selected = app.events.selected.min(app.events.shown_events().count().saturating_sub(1));
    let shown: Vec<&IntEvent> = app.events.shown_events().collect();
    let room = usize::from(body.height);
    let first = app.events.selected.saturating_sub(room.saturating_sub(1));
    let width = usize::from(body.width);
    let lines: Vec<Line> = shown
        .iter()
        .enumerate()
        .skip(first)
        .take(room)
        .map(|(n, event)| {
            let time = event_time(event, width >= DATED);
            let words = event_text(event, width.saturating_sub(time.len()));
            let line = Line::from(vec![Span::styled(time, look.theme.dim), Span::raw(words)]);
            if n == app.events.selected { line.style(look.theme.selected) } else { line }
        })
        .collect();
    frame.render_widget(Paragraph::new(escape_hidden_lines(lines)), body);
    let selected = shown.get(app.events.selected);
    let day = selected.and_then(|event| event.utc.as_deref()?.get(..10));
    let head = format!("{head}  {}", day.map_or("UTC".to_owned(), |day| format!("{day}, UTC")));
    frame.render_widget(Line::from(head).style(look.theme.header), title);
    if let (Some(event), true) = (selected, has_details) {
        let inner = usize::from(detail.width.saturating_sub(2));
        let lines: Vec<Line> = words_in_lines(&event.to_line(), inner).into_iter().map(Line::from).collect();
        let lines = escape_hidden_lines(lines);
        frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" selected event ")), detail);
    }
    match shown.len() {
        0 => Some("no event yet".into()),
        all if all > room => {
            Some(format!("events {} to {} of {all}: ↑↓", first + 1, (first + room).min(all)))
        }
        _ if !has_details => Some("not shown, 80x24 has room: the selected event in full".into()),
        _ => None,
    }
}

/// The subject of an event, and what happened, in `width` characters. If they do not fit, the subject is cut, as the
/// selected event is shown in full.
fn event_text(event: &IntEvent, width: usize) -> String {
    let (about, what) = (event.describe_subject(), event.describe_occurrence());
    let room = width.saturating_sub(what.chars().count() + 2);
    truncate_text(&format!("{}: {what}", truncate_text(&about, room.max(LEAST_ABOUT))), width)
}

/// The time in UTC, with the day if there is room, or a switch's own time; followed by a blank.
fn event_time(event: &IntEvent, with_day: bool) -> String {
    // The part of 2026-11-22T05:01:02.123Z to show.
    let part = if with_day { 5..24 } else { 11..23 };
    let columns = part.len();
    let time = match (&event.utc, event.time) {
        (Some(utc), _) => utc.get(part).unwrap_or_default().replace('T', " "),
        (None, Some(time)) => truncate_text(&time.to_string(), columns),
        (None, None) => String::new(),
    };
    format!("{time:columns$} ")
}

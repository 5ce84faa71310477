//! Draws the dashboard: one module per page. Everything fits in 80x24 and grows with the terminal; on a smaller one,
//! a note says what has no room.

mod events;
mod help;
mod lists;
mod memory;
mod query;
mod sessions;
mod stores;
mod text;
mod theme;
mod top;
mod waterfall;

use std::time::Instant;

use dta_cli::table::words_in_lines;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::app::{App, FlowView, Tab};

pub(super) use theme::Theme;

/// The fewest columns and lines on which a page is drawn.
const LEAST: (u16, u16) = (40, 10);

/// Columns for the names of all pages.
const NAMES: u16 = 80;

struct DrawContext<'a> {
    theme: &'a Theme,
    now: Instant,
}

/// Draws everything as of `now`.
pub(super) fn draw_dashboard(frame: &mut Frame, app: &mut App, theme: &Theme, now: Instant) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return too_small(frame, area);
    }
    let moment = Constraint::Length(u16::from(app.then.is_some()));
    let line = Constraint::Length(1);
    let heights = [Constraint::Length(2), moment, Constraint::Min(0), line, line];
    let [head, moment, body, note, foot] = Layout::vertical(heights).areas(area);
    let look = DrawContext { theme, now };
    draw_head(frame, head, app, &look);
    if let Some(then) = &app.then {
        let said = match app.page_has_moments() {
            true => format!("epoch {}; [ ] other epochs, }} now", then.format_span()),
            false => format!("this page shows now; Query and Top: {}", then.format_span()),
        };
        let said = text::truncate_text(&said, usize::from(moment.width));
        frame.render_widget(Line::from(said).style(theme.changed), moment);
    }
    let said = draw_page(frame, body, app, &look);
    if app.tab != Tab::Query && app.connection.is_stale(now, app.interval) {
        frame.buffer_mut().set_style(body, theme.old);
    }
    let (said, style) = match (app.connection.describe_trouble(now), &app.error) {
        (Some(trouble), _) => (format!("! {trouble}"), theme.bad),
        (None, Some(error)) => (format!("! {error}"), theme.bad),
        (None, None) => (said.unwrap_or_default(), theme.dim),
    };
    let said = text::truncate_text(&said, usize::from(note.width));
    frame.render_widget(Line::from(said).style(style), note);
    frame.render_widget(Line::from(key_hints(app)).style(theme.dim), foot);
    if let Some(top) = &mut app.help {
        help::draw_help(frame, area, top, theme);
    }
    text::escape_hidden_cells(frame.buffer_mut());
}

fn too_small(frame: &mut Frame, area: Rect) {
    let text = format!(
        "{}x{} is too small: the dashboard needs {}x{}, and shows everything at 80x24. q quits.",
        area.width, area.height, LEAST.0, LEAST.1
    );
    let lines = words_in_lines(&text, usize::from(area.width)).into_iter().map(Line::from);
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

fn draw_head(frame: &mut Frame, area: Rect, app: &App, look: &DrawContext) {
    let [title, tabs] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    let state = app.connection.describe_state(look.now, app.interval);
    let style = if app.connection.is_lost() { look.theme.bad } else { look.theme.dim };
    let [left, right] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(state.chars().count() as u16)])
            .spacing(1)
            .areas(title);
    let name = Line::from(vec![Span::styled("DTA ", look.theme.header), Span::raw(app.title.as_str())]);
    frame.render_widget(name, left);
    frame.render_widget(Line::from(state).style(style), right);

    let names = area.width >= NAMES;
    let lines = area.width >= NAMES + Tab::ALL.len() as u16 - 1;
    let mut spans = Vec::new();
    for (i, tab) in Tab::ALL.iter().enumerate() {
        if i > 0 {
            spans.push(Span::styled(if lines { "│" } else { "" }, look.theme.dim));
        }
        let selected = *tab == app.tab;
        let text =
            if names || selected { format!(" {} {} ", i + 1, tab.name()) } else { format!(" {} ", i + 1) };
        spans.push(if selected { Span::styled(text, look.theme.selected) } else { Span::raw(text) });
    }
    frame.render_widget(Line::from(spans), tabs);
}

/// Draws the page; returns a note on what did not fit.
fn draw_page(frame: &mut Frame, area: Rect, app: &mut App, look: &DrawContext) -> Option<String> {
    if app.now.is_none() {
        frame.render_widget(Line::from("waiting for the first figures …").style(look.theme.dim), area);
        return None;
    }
    if let (Tab::Events | Tab::Top, Some(view)) = (app.tab, &app.flow)
        && view.lines.is_none()
    {
        draw_waiting(frame, area, app, &format!("{}: querying …", view.flow), look);
        return None;
    }
    if let (Tab::Events | Tab::Top, Some(view)) = (app.tab, &mut app.flow) {
        return draw_flow(frame, area, view, look);
    }
    match app.tab {
        Tab::Events => events::draw_events(frame, area, app, look),
        Tab::Top => top::draw_top_flows(frame, area, app, look),
        Tab::Stores => stores::draw_stores(frame, area, app, look),
        Tab::Waterfall => waterfall::draw_waterfall(frame, area, app, look),
        Tab::Sessions => sessions::draw_sessions(frame, area, app, look),
        Tab::Memory => memory::draw_memory(frame, area, app, look),
        Tab::Lists => lists::draw_lists(frame, area, app, look),
        Tab::Query => query::draw_query(frame, area, app, look),
    }
}

/// Draws a page without data: what it is doing, or why it has none.
fn draw_waiting(frame: &mut Frame, area: Rect, app: &App, doing: &str, look: &DrawContext) {
    let text = app.error.as_deref().unwrap_or(doing);
    let lines = words_in_lines(text, usize::from(area.width)).into_iter().map(Line::from);
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()).style(look.theme.dim), area);
}

/// The keys of the page, after those of all pages: a narrow terminal cuts off the end.
fn key_hints(app: &App) -> String {
    if app.help.is_some() {
        return "↑↓ scroll  any other key closes the help".into();
    }
    match app.tab {
        Tab::Events | Tab::Top if app.flow.is_some() => {
            "? help  q quit  ↑↓ scroll  Enter Esc back  1-8 Tab pages".into()
        }
        Tab::Events => "? help  q quit  ↑↓ event  ←→ kind  Enter its flow  1-8 Tab pages".into(),
        Tab::Top => "? help  q quit  ↑↓ flow  ←→ by what  Enter its path  1-8 Tab pages".into(),
        Tab::Stores => "? help  q quit  ↑↓ store  Enter its memory  1-8 Tab pages".into(),
        Tab::Waterfall if app.all => "? help  q quit  ↑↓ scroll  a only what is not 0  1-8 Tab pages".into(),
        Tab::Waterfall => "? help  q quit  ↑↓ scroll  a all counters  1-8 Tab pages".into(),
        Tab::Sessions => "? help  q quit  ↑↓ scroll  1-8 Tab pages".into(),
        Tab::Memory => match &app.memory.goto {
            Some(typed) => format!("go to element: {typed}▏   Enter go  Esc cancel"),
            None => "? help  q quit  ↑↓ PgUp PgDn scroll  g go to  f follow writes  ←→ store".into(),
        },
        Tab::Lists => "? help  q quit  ←→ list  1-8 Tab pages".into(),
        Tab::Query => "? help  Esc back  Enter ask  ↑ last question  Tab pages".into(),
    }
}

/// Draws lines from `top` on, limited to those that exist; returns a note on which are shown if there are more.
fn draw_lines(frame: &mut Frame, area: Rect, lines: Vec<Line>, top: &mut usize) -> Option<String> {
    let (all, room) = (lines.len(), usize::from(area.height));
    *top = (*top).min(all.saturating_sub(room));
    let shown: Vec<Line> = lines.into_iter().skip(*top).take(room).collect();
    let last = *top + shown.len();
    frame.render_widget(Paragraph::new(text::escape_hidden_lines(shown)), area);
    (all > room).then(|| format!("lines {} to {last} of {all}: ↑↓", *top + 1))
}

/// Draws one flow as a path: opened from the pages of events and of top flows.
fn draw_flow(frame: &mut Frame, area: Rect, view: &mut FlowView, look: &DrawContext) -> Option<String> {
    let (_, lines) = view.lines.as_ref()?;
    let lines = lines.iter().enumerate().map(|(n, line)| {
        let line = Line::from(line.as_str());
        if n == 0 { line.style(look.theme.header) } else { line }
    });
    draw_lines(frame, area, lines.collect(), &mut view.top)
}

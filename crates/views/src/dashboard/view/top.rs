//! The page of top flows.

use dta_cli::number::format_grouped;
use dta_cli::table::words_in_lines;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use super::DrawContext;
use super::text::truncate_text;
use crate::dashboard::app::App;
use crate::int::moment::age_in_words;
use crate::int::top::By;

/// Columns of a figure and of its age.
const FIGURE: u16 = 16;
const AGE: u16 = 12;

pub(super) fn draw_top_flows(
    frame: &mut Frame,
    area: Rect,
    app: &mut App,
    look: &DrawContext,
) -> Option<String> {
    let found = app.top.found.as_ref().filter(|(by, ..)| *by == app.top.by);
    let Some((_, _, top)) = found else {
        let doing = match app.top.by {
            Some(by) => format!("flows by {}: reading …", by.name()),
            None => "flows: reading …".to_owned(),
        };
        super::draw_waiting(frame, area, app, &doing, look);
        return None;
    };
    app.top.selected = app.top.selected.min(top.flows.len().saturating_sub(1));
    let width = usize::from(area.width);
    let missing: Vec<Line> = top
        .describe_gaps()
        .iter()
        .flat_map(|sentence| words_in_lines(sentence, width))
        .map(|line| Line::from(line).style(look.theme.dim))
        .collect();
    let lacking = Constraint::Length((missing.len() as u16).min(area.height / 2));
    let [title, body, below] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), lacking]).areas(area);
    let head = format!(
        "flows by {}: known for {} of {} flows",
        top.by,
        format_grouped(top.with_figure),
        format_grouped(top.known)
    );
    frame.render_widget(Line::from(head).style(look.theme.header), title);
    frame.render_widget(Paragraph::new(missing), below);
    let has_ages = top.by == By::Latency.name();
    let unit = if has_ages { " ns" } else { "" };
    let widths =
        [4, area.width.saturating_sub(4 + FIGURE + if has_ages { AGE + 1 } else { 0 } + 2), FIGURE, AGE];
    let rows = (1..).zip(&top.flows).map(|(number, row)| {
        let flow = row.flow.map_or_else(|| format!("key {}", row.key), |flow| flow.to_string());
        let mut cells = vec![
            Line::from(format!("{number}")).right_aligned(),
            Line::from(truncate_text(&flow, usize::from(widths[1]))),
            Line::from(format!("{}{unit}", format_grouped(row.value))).right_aligned(),
        ];
        if has_ages {
            // A switch's own time has no age.
            let age = row.age_seconds.map_or_else(String::new, |age| age_in_words(Some(age)));
            cells.push(Line::from(age).right_aligned());
        }
        Row::new(cells)
    });
    let columns = widths.iter().take(if has_ages { 4 } else { 3 }).map(|width| Constraint::Length(*width));
    let table = Table::new(rows, columns).row_highlight_style(look.theme.selected);
    let selected = (!top.flows.is_empty()).then_some(app.top.selected);
    let mut state = TableState::default().with_selected(selected);
    frame.render_stateful_widget(table, body, &mut state);
    let room = usize::from(body.height);
    (top.flows.len() > room).then(|| {
        format!("flows {} to {} of {}: ↑↓", state.offset() + 1, state.offset() + room, top.flows.len())
    })
}

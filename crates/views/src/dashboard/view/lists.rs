//! The page of an append list.

use dta_cli::number::format_grouped;
use dta_proto::hex_groups;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::DrawContext;
use crate::dashboard::app::App;

pub(super) fn draw_lists(frame: &mut Frame, area: Rect, app: &App, look: &DrawContext) -> Option<String> {
    let Some(spec) = app.append_store() else {
        let text = "this collector has no append store";
        frame.render_widget(Line::from(text).style(look.theme.dim), area);
        return None;
    };
    let [title, body] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(area);
    let seen = app.entries.as_ref().filter(|(id, _, _)| id.store == spec.name && id.list == app.list);
    let seen = seen.map(|(_, _, entries)| entries);
    let mut head = vec![Line::from(format!("{} list {}", spec.name, app.list)).style(look.theme.header)];
    head.push(match seen {
        None => Line::from("reading …").style(look.theme.dim),
        Some(e) => Line::from(format!(
            "{} entries, to batch {}; batches overwritten {}, half-written {}",
            format_grouped(e.total),
            e.sequence,
            format_grouped(e.overwritten),
            format_grouped(e.torn)
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
            Line::from(vec![Span::raw(hex_groups(entry)), Span::styled(format!("  {text}"), look.theme.dim)])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), body);
    seen.filter(|e| e.total > u64::from(body.height)).map(|_| "the newest entries, the last one first".into())
}

//! The page of a store's memory.

use dta_cli::number::{format_grouped, format_percent};
use dta_proto::store::StoreSpec;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::DrawContext;
use crate::dashboard::app::{App, MemoryView};
use crate::element;
use dta_cli::number::format_duration;

/// Columns of the element number.
const NUMBER: usize = 11;

pub(super) fn draw_memory(frame: &mut Frame, area: Rect, app: &App, look: &DrawContext) -> Option<String> {
    let Some(spec) = app.selected_store() else {
        frame.render_widget(Line::from("there is no store").style(look.theme.dim), area);
        return None;
    };
    let view = &app.memory;
    let heights = [Constraint::Length(1), Constraint::Length(u16::from(view.follow)), Constraint::Min(0)];
    let [title, follow, body] = Layout::vertical(heights).areas(area);
    let at =
        format!("{} ({}), element {} of {}", spec.name, spec.primitive(), view.element, spec.element_count());
    frame.render_widget(Line::from(at).style(look.theme.header), title);
    if view.follow {
        frame.render_widget(Line::from(describe_scan(view, &spec, look)).style(look.theme.changed), follow);
    }
    let Some((window, memory)) = view.window.as_ref().filter(|(w, _)| w.store == spec.name) else {
        super::draw_waiting(frame, body, app, "reading …", look);
        return None;
    };
    let before = view.before.as_ref().map(|(_, bytes)| &**bytes);
    let per_line = if body.width >= 66 { 16 } else { 8 };
    let room = usize::from(body.width).saturating_sub(NUMBER + per_line * 2 + per_line / 4 + 1);
    let len = spec.element_len() as usize;
    let first = window.offset / spec.element_len();
    let found = view.change.filter(|_| view.follow).map(|change| change.element..change.element + change.of);
    let mut lines = Vec::new();
    for (i, bytes) in memory.chunks_exact(len).enumerate() {
        if lines.len() >= usize::from(body.height) {
            break;
        }
        let index = first + i as u64;
        let is_found = found.as_ref().is_some_and(|found| found.contains(&index));
        let (mark, style) = if is_found { ('▶', look.theme.changed) } else { (' ', look.theme.dim) };
        let old = before.and_then(|b| b.get(i * len..(i + 1) * len));
        let says = element::describe_element(&spec, index, bytes);
        for (row, part) in bytes.chunks(per_line).enumerate() {
            let number = if row == 0 { format!("{mark}{index:>8}  ") } else { " ".repeat(NUMBER) };
            let mut spans = vec![Span::styled(number, style)];
            let old = old.and_then(|o| o.get(row * per_line..)).unwrap_or(part);
            spans.extend(hex_spans(part, old, per_line, look));
            // A decoded element may need more room than there is next to one line of hex: it continues next to
            // the following lines.
            let said: String = says.chars().skip(row * room).take(room).collect();
            spans.push(Span::raw(said));
            lines.push(Line::from(spans));
        }
    }
    frame.render_widget(Paragraph::new(lines), body);
    (room < 20).then(|| "there is little room for decoded elements: 80 columns have more".into())
}

/// What a scan for writes has found, claiming no more than a comparison of memory can show.
fn describe_scan(view: &MemoryView, spec: &StoreSpec, look: &DrawContext) -> String {
    let Some(seen) = &view.seen else { return "follows writes: first scan".into() };
    if let Some(change) = view.change {
        let what = match change.of {
            1 => format!("element {} changed", change.element),
            of => {
                format!("one or more of elements {} to {} changed", change.element, change.element + of - 1)
            }
        };
        let within = change.within.as_secs_f64();
        let since = format_duration(look.now.saturating_duration_since(change.at));
        let others = if change.others > 0 {
            format!(", and {} others", format_grouped(change.others))
        } else {
            String::new()
        };
        return format!("follows writes: {what} within {within:.1} s, {since} ago{others}");
    }
    if seen.known < 1.0 {
        return format!(
            "follows writes: has read {} of the store once, compares it next",
            format_percent(seen.known)
        );
    }
    let share = seen.elements as f64 / spec.element_count() as f64;
    format!("follows writes: nothing changed yet; each scan compares {}", format_percent(share))
}

/// Hex of one line; bytes that differ from `old` stand out.
fn hex_spans<'a>(bytes: &[u8], old: &[u8], per_line: usize, look: &DrawContext) -> Vec<Span<'a>> {
    let mut spans = Vec::new();
    for i in 0..per_line {
        let gap = if i % 4 == 3 { " " } else { "" };
        spans.push(match bytes.get(i) {
            Some(byte) if old.get(i) == Some(byte) => {
                let style = if *byte == 0 { look.theme.dim } else { Style::new() };
                Span::styled(format!("{byte:02x}{gap}"), style)
            }
            Some(byte) => Span::styled(format!("{byte:02x}{gap}"), look.theme.changed),
            None => Span::raw(format!("  {gap}")),
        });
    }
    spans.push(Span::raw(" "));
    spans
}

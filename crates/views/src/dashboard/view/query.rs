//! The query page.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph};

use super::{DrawContext, text};
use crate::dashboard::app::App;
use dta_cli::number::format_duration;

pub(super) fn draw_query(frame: &mut Frame, area: Rect, app: &App, look: &DrawContext) -> Option<String> {
    let [input, body] = Layout::vertical([Constraint::Length(3), Constraint::Min(0)]).areas(area);
    let typed = if app.input.is_empty() {
        Line::from("▏STORE KEY [EPOCH], e.g. flows 10.0.0.1:5000->10.0.0.2:5000/udp").style(look.theme.dim)
    } else {
        // The end is where the user is typing.
        let room = usize::from(input.width.saturating_sub(3));
        let skip = app.input.chars().count().saturating_sub(room);
        Line::from(format!("{}▏", app.input.chars().skip(skip).collect::<String>()))
    };
    frame.render_widget(Paragraph::new(typed).block(Block::bordered().title(" ask ")), input);
    let mut lines = Vec::new();
    if app.asking > 0 {
        lines.push(Line::from("asking …").style(look.theme.dim));
    }
    for answered in &app.answers {
        let age = answered
            .at
            .map(|at| format!("  {} ago", format_duration(look.now.saturating_duration_since(at))));
        lines.push(Line::from(vec![
            Span::styled(answered.asked.as_str(), look.theme.header),
            Span::styled(age.unwrap_or_default(), look.theme.dim),
        ]));
        let width = usize::from(body.width.saturating_sub(2)).max(1);
        let fitted = answered.lines.iter().flat_map(|line| text::wrap_to_width(line, width));
        lines.extend(fitted.map(|line| Line::from(format!("  {line}"))));
    }
    super::draw_lines(frame, body, lines, &mut 0).map(|_| "older answers have no room".into())
}

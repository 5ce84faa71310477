//! One flow, drawn as a path: opened from the pages of events and of top flows.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::{DrawContext, draw_lines};
use crate::dashboard::app::FlowView;

pub(super) fn draw_flow(
    frame: &mut Frame,
    area: Rect,
    view: &mut FlowView,
    look: &DrawContext,
) -> Option<String> {
    let Some((_, lines)) = &view.lines else {
        frame.render_widget(Line::from(format!("{}: querying …", view.flow)).style(look.theme.dim), area);
        return None;
    };
    let lines = lines.iter().enumerate().map(|(n, line)| {
        let line = Line::from(line.as_str());
        if n == 0 { line.style(look.theme.header) } else { line }
    });
    draw_lines(frame, area, lines.collect(), &mut view.top)
}

//! The page of sessions and their queue pairs.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::{DrawContext, text};
use crate::dashboard::app::App;

const WRITES: &str = "  writes ";

pub(super) fn draw_sessions(
    frame: &mut Frame,
    area: Rect,
    app: &mut App,
    look: &DrawContext,
) -> Option<String> {
    let now = app.now.as_ref()?;
    let mut lines = Vec::new();
    if !now.live {
        let text = "Memory alone has no sessions: attach to the collector's address.";
        lines.push(Line::from(text).style(look.theme.dim));
    } else if now.sessions.is_empty() {
        let text = "No sessions: start a translator (dta-translator run).";
        lines.push(Line::from(text).style(look.theme.dim));
    }
    let passed = look.now.saturating_duration_since(now.taken).as_secs_f64();
    for session in &now.sessions {
        let left = session.expires_in_seconds - passed;
        let expires = if session.expires_in_seconds < 0.0 {
            "no expiry".into()
        } else {
            format!("expires in {:.0} s", left.max(0.0))
        };
        let ip = session.translator.as_ref().map_or("", |t| &t.ip);
        let mut spans = vec![
            Span::styled(format!("session {} ", session.name), look.theme.header),
            Span::raw(format!("from {ip}, generation {}, {expires}", session.generation)),
        ];
        if !session.owner.is_empty() {
            spans.push(Span::raw(format!(", of {}", session.owner)));
        }
        lines.push(Line::from(spans));
        let width = usize::from(area.width).saturating_sub(WRITES.len()).max(1);
        for (i, stores) in text::wrap_to_width(&session.stores.join(", "), width).into_iter().enumerate() {
            let before = if i == 0 { WRITES } else { "" };
            lines.push(Line::from(format!("{before:width$}{stores}", width = WRITES.len())));
        }
        for pair in &session.queue_pairs {
            let line = Line::from(format!(
                "  queue pair {:#08x} {} {}  {}  expects PSN {}",
                pair.qpn,
                enum_word(pair.purpose().as_str_name()),
                enum_word(pair.transport().as_str_name()).to_uppercase(),
                pair.state,
                pair.expected_psn,
            ));
            lines.push(if pair.state == "error" { line.style(look.theme.bad) } else { line });
        }
    }
    super::draw_lines(frame, area, lines, &mut app.scroll[1])
}

/// `PURPOSE_WRITE` → `write`.
fn enum_word(name: &str) -> String {
    name.split_once('_').map_or(name, |(_, word)| word).to_ascii_lowercase()
}

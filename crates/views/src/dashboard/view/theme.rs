//! Colours, and their substitutes without colours.

use ratatui::style::{Color, Modifier, Style};

/// Styles of everything but plain text.
#[derive(Clone, Copy, Debug)]
pub(in crate::dashboard) struct Theme {
    pub(super) header: Style,
    pub(super) selected: Style,
    pub(super) dim: Style,
    /// Figures that may be stale.
    pub(super) old: Style,
    pub(super) bad: Style,
    pub(super) lost: Style,
    pub(super) changed: Style,
    pub(super) bar: Style,
}

impl Theme {
    const PLAIN: Style = Style::new();
    const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
    const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

    pub(in crate::dashboard) const COLOURS: Theme = Theme {
        header: Self::BOLD,
        selected: Style::new().add_modifier(Modifier::REVERSED),
        dim: Style::new().fg(Color::DarkGray),
        old: Style::new().fg(Color::DarkGray).remove_modifier(Modifier::BOLD),
        bad: Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
        lost: Style::new().fg(Color::Yellow),
        changed: Style::new().fg(Color::Green).add_modifier(Modifier::BOLD),
        bar: Style::new().fg(Color::Cyan),
    };

    /// Without colours: only bold, faint and reversed text.
    pub(in crate::dashboard) const MONOCHROME: Theme = Theme {
        header: Self::BOLD,
        selected: Style::new().add_modifier(Modifier::REVERSED),
        dim: Self::FAINT,
        old: Self::FAINT.remove_modifier(Modifier::BOLD),
        bad: Self::BOLD,
        lost: Self::BOLD,
        changed: Self::BOLD,
        bar: Self::PLAIN,
    };

    pub(in crate::dashboard) fn with_colours(has_colours: bool) -> Theme {
        if has_colours { Self::COLOURS } else { Self::MONOCHROME }
    }
}

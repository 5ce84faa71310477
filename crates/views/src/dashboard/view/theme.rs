//! Colours, and their substitutes without colours.

use ratatui::style::{Color, Modifier, Style};

/// Styles of everything but plain text.
#[derive(Clone, Copy, Debug)]
pub(in crate::dashboard) struct Theme {
    /// Names, titles.
    pub(super) header: Style,
    /// What is selected.
    pub(super) selected: Style,
    /// What matters less.
    pub(super) dim: Style,
    /// Figures that may be stale.
    pub(super) old: Style,
    /// Errors.
    pub(super) bad: Style,
    /// Lost reports.
    pub(super) lost: Style,
    /// What has just changed.
    pub(super) changed: Style,
    /// Bars and sparklines.
    pub(super) bar: Style,
}

impl Theme {
    const PLAIN: Style = Style::new();
    const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
    const FAINT: Style = Style::new().add_modifier(Modifier::DIM);

    /// With colours.
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

    /// Without: only bold, faint and reversed text.
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

    /// With colours or without.
    pub(in crate::dashboard) fn with_colours(has_colours: bool) -> Theme {
        if has_colours { Self::COLOURS } else { Self::MONOCHROME }
    }
}

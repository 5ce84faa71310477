//! Colours, and what stands for them where there are none.

use std::ffi::OsString;

use ratatui::style::{Color, Modifier, Style};

/// How things look that are not plain text.
#[derive(Clone, Copy, Debug)]
pub(in crate::dashboard) struct Theme {
    /// Names, titles.
    pub(super) header: Style,
    /// What is selected.
    pub(super) selected: Style,
    /// What matters less.
    pub(super) dim: Style,
    /// Figures that may not be those of now.
    pub(super) old: Style,
    /// What went wrong.
    pub(super) bad: Style,
    /// Reports that were lost.
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

    /// Without: bold, faint and reversed text alone.
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

    /// By the environment variable `NO_COLOR` (no-color.org): there are no colours where it is set and not empty.
    pub(in crate::dashboard) fn of_environment(no_color: Option<OsString>) -> Theme {
        if no_color.is_some_and(|value| !value.is_empty()) { Self::MONOCHROME } else { Self::COLOURS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_is_taken_where_it_is_not_empty() {
        let has_colours = |value: Option<&str>| Theme::of_environment(value.map(Into::into)).dim.fg.is_some();
        assert_eq!([None, Some(""), Some("0"), Some("1")].map(has_colours), [true, true, false, false]);
    }
}

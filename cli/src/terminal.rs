//! Where output goes: to a terminal of so many columns, with or without colours, or to a file or pipe.

use std::io::{self, IsTerminal};

/// Columns of a terminal that does not say how many it has.
const USUAL: u16 = 80;

/// Columns of the terminal that standard output is; `None` for a file or a pipe, where lines are as
/// long as they are.
pub fn columns() -> Option<u16> {
    let stdout = io::stdout();
    stdout.is_terminal().then(|| match terminal_size::terminal_size_of(stdout) {
        Some((terminal_size::Width(columns), _)) if columns > 0 => columns,
        _ => USUAL,
    })
}

/// Whether colours may be sent to this output: it is a terminal that knows them, and the variable
/// `NO_COLOR` is unset or empty (<https://no-color.org>).
pub fn has_colours(output: &impl IsTerminal) -> bool {
    output.is_terminal() && wanted(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
}

/// Whether codes that clear the screen or go to a place of it may be sent to standard output.
pub fn has_screen() -> bool {
    io::stdout().is_terminal() && !is_dumb(std::env::var("TERM").ok().as_deref())
}

fn wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty()) && !is_dumb(variable("TERM").as_deref())
}

fn is_dumb(term: Option<&str>) -> bool {
    term == Some("dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_color_and_dumb_terminals_have_no_colours() {
        let with = |name: &'static str, value: &'static str| {
            wanted(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(with("TERM", "xterm") && with("NO_COLOR", ""));
        assert!(!with("TERM", "dumb") && !with("NO_COLOR", "1") && !with("NO_COLOR", "0"));
    }
}

//! The output: a terminal with a width, with or without colours, or a file or pipe.

use std::io::{self, IsTerminal, Write};

use crate::escape::escape_hidden;

/// Width of a terminal that does not report it.
const USUAL: u16 = 80;

/// Width of the terminal at standard output; `None` for a file or a pipe, where lines are not wrapped.
pub fn stdout_columns() -> Option<u16> {
    let stdout = io::stdout();
    stdout.is_terminal().then(|| match terminal_size::terminal_size_of(stdout) {
        Some((terminal_size::Width(columns), _)) if columns > 0 => columns,
        _ => USUAL,
    })
}

/// Whether colours may be sent to this output: it is a terminal that supports them, and the variable
/// `NO_COLOR` is unset or empty (<https://no-color.org>).
pub fn has_colours(output: &impl IsTerminal) -> bool {
    output.is_terminal()
        && allows_colours(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
}

/// Clears the screen, if standard output is a terminal that can. `false` if not.
pub fn clear_screen() -> io::Result<bool> {
    let has_screen = io::stdout().is_terminal() && !is_dumb_terminal(std::env::var("TERM").ok().as_deref());
    if has_screen {
        io::stdout().lock().write_all(b"\x1b[2J\x1b[H")?;
    }
    Ok(has_screen)
}

/// A text for standard error, with what a terminal would act on escaped. On a terminal it is wrapped between words; the
/// terminal itself would break inside them.
pub fn for_stderr(text: &str) -> String {
    let text = &escape_hidden(text);
    let stderr = io::stderr();
    match terminal_size::terminal_size_of(&stderr) {
        Some((terminal_size::Width(columns), _)) if columns > 0 && stderr.is_terminal() => {
            wrap_lines(text, columns.into())
        }
        _ => text.clone().into_owned(),
    }
}

/// A text for standard output, as [`for_stderr`].
pub fn for_stdout(text: &str) -> String {
    let text = &escape_hidden(text);
    match stdout_columns() {
        Some(columns) => wrap_lines(text, columns.into()),
        None => text.clone().into_owned(),
    }
}

/// Wraps lines between words at this width; longer words stay whole.
fn wrap_lines(text: &str, columns: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut now = String::new();
        for word in line.split(' ') {
            let width = unicode_width::UnicodeWidthStr::width;
            if !now.is_empty() && width(now.as_str()) + 1 + width(word) > columns {
                lines.push(std::mem::take(&mut now));
            } else if !now.is_empty() {
                now.push(' ');
            }
            now.push_str(word);
        }
        lines.push(now);
    }
    lines.join("\n")
}

fn allows_colours(variable: impl Fn(&str) -> Option<String>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty())
        && !is_dumb_terminal(variable("TERM").as_deref())
}

fn is_dumb_terminal(term: Option<&str>) -> bool {
    term == Some("dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_broken_between_words() {
        let text = "dta-collector: this program was built without libibverbs";
        assert_eq!(wrap_lines(text, 20), "dta-collector: this\nprogram was built\nwithout libibverbs");
        assert_eq!(wrap_lines(text, 200), text);
        assert_eq!(wrap_lines("a\nbb cc", 3), "a\nbb\ncc");
    }

    #[test]
    fn no_color_and_dumb_terminals_have_no_colours() {
        let with = |name: &'static str, value: &'static str| {
            allows_colours(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert!(with("TERM", "xterm") && with("NO_COLOR", ""));
        assert!(!with("TERM", "dumb") && !with("NO_COLOR", "1") && !with("NO_COLOR", "0"));
    }
}

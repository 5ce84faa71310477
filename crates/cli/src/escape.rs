//! Characters that a terminal acts on instead of showing them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Whether a terminal would act on it instead of showing it: control characters, and those that change the direction of
/// text, so that it reads as something else.
pub fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text with each hidden character as `\u202e`, which is the same string in JSON. Line ends and tabs stay.
pub fn escape_hidden(text: &str) -> Cow<'_, str> {
    escape_unless(text, |character| matches!(character, '\n' | '\t'))
}

/// Like [`escape_hidden`], for text with colours of our own.
pub fn escape_hidden_but_colours(text: &str) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return escape_hidden(text);
    }
    let mut parts = text.split("\x1b[");
    let mut escaped = escape_hidden(parts.next().unwrap_or_default()).into_owned();
    for part in parts {
        let parameters = part.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(part.len());
        let is_colour = part[parameters..].starts_with('m');
        escaped.push_str(if is_colour { "\x1b[" } else { "\\u001b[" });
        escaped.push_str(&escape_hidden(part));
    }
    escaped.into()
}

fn escape_unless(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character: char| is_hidden(character) && !stays(character);
    if !text.contains(is_escaped) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            // All of them are below 2^16. Writing to a string cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    escaped.into()
}

/// Standard error for logs, which write whole lines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EscapedStderr;

impl Write for EscapedStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        io::stderr().lock().write_all(escape_hidden_but_colours(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_and_everything_else_stays() {
        for (text, shown) in [
            ("leaf1 – Köln\n\tx", "leaf1 – Köln\n\tx"),
            ("a\u{202e}b\u{2066}c\u{200f}d\u{61c}e", "a\\u202eb\\u2066c\\u200fd\\u061ce"),
            ("\x1b]0;title\x07\r\x7f\u{9b}1m", "\\u001b]0;title\\u0007\\u000d\\u007f\\u009b1m"),
            ("\x1b[31mred\x1b[0m", "\\u001b[31mred\\u001b[0m"),
        ] {
            assert_eq!(escape_hidden(text), shown);
        }
        let text = "\u{202e}\x1b";
        let json = escape_hidden(text);
        assert_eq!(serde_json::from_str::<String>(&format!("\"{json}\"")).unwrap(), text);
    }

    #[test]
    fn our_colours_pass_and_no_other_command_does() {
        for (text, shown) in [
            ("\x1b[1;31mred\x1b[0m, \u{202e}", "\x1b[1;31mred\x1b[0m, \\u202e"),
            ("\x1b[2J\x1b[31\x1b[", "\\u001b[2J\\u001b[31\\u001b["),
            ("\x1b]0;x\x07\x1b[m", "\\u001b]0;x\\u0007\x1b[m"),
        ] {
            assert_eq!(escape_hidden_but_colours(text), shown);
        }
    }
}

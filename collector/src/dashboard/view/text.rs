//! Numbers as text, and bars.

/// A share as a bar of `width` characters; full at 1 and above.
pub(super) fn gauge(share: f64, width: usize) -> String {
    let filled = ((share.clamp(0.0, 1.0) * width as f64).round() as usize).min(width);
    "█".repeat(filled) + &"░".repeat(width - filled)
}

/// Bytes in the unit that people would use.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A count in few characters: `12.3 k`.
pub(super) fn short(n: f64) -> String {
    match n {
        n if n >= 1e9 => format!("{:.1} G", n / 1e9),
        n if n >= 1e6 => format!("{:.1} M", n / 1e6),
        n if n >= 1e4 => format!("{:.1} k", n / 1e3),
        n if n >= 10.0 || n == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

/// A count per second in few characters; empty where it is not known.
pub(super) fn per_second(rate: Option<f64>) -> String {
    rate.map_or_else(String::new, |rate| format!("{}/s", short(rate)))
}

/// A count with thousands set apart.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as per cent. What is less than can be shown is not shown as nothing.
pub(super) fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p > 0.0 && p < 0.1 => "< 0.1 %".into(),
        p => format!("{p:.1} %"),
    }
}

/// At most `width` characters (one at least); what is cut off leaves a mark.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Words in lines of at most `width` characters; a word that is longer has a line of its own.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_true() {
        assert_eq!(
            [0.0, 0.4, 12.4, 9999.0, 12_345.0, 2.5e6, 3e9].map(short),
            ["0", "0.4", "12", "9999", "12.3 k", "2.5 M", "3.0 G"]
        );
        assert_eq!([0.0, 0.0001, 0.5, 1.0].map(percent), ["0.0 %", "< 0.1 %", "50.0 %", "100.0 %"]);
        assert_eq!([512, 1536, 16 << 20].map(bytes), ["512 B", "1.5 KiB", "16 MiB"]);
        assert_eq!((cut("abcdef", 4), cut("abcd", 4)), ("abc…".into(), "abcd".into()));
        assert_eq!(gauge(0.5, 4), "██░░");
        assert_eq!(wrap("to be or not to be", 6), ["to be", "or not", "to be"]);
    }
}

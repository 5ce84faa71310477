//! Numbers for people.

use std::time::Duration;

/// A count with thousands separators: `1,234,567`.
pub fn format_grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count and its noun: `1 packet`, `1,234 packets`.
pub fn format_count(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", format_grouped(n), if n == 1 { one } else { many })
}

/// A rate in a few characters: `950`, `12.3k`, `4.50M`.
pub fn format_short(rate: f64) -> String {
    match rate {
        r if r < 1000.0 => format!("{r:.0}"),
        r if r < 1e6 => format!("{:.1}k", r / 1e3),
        r if r < 1e9 => format!("{:.2}M", r / 1e6),
        r => format!("{:.2}G", r / 1e9),
    }
}

/// Reads a count from 1 as [`format_short`] writes it: `250k`, `1.5M`, `10G`, or all of its digits.
pub fn parse_short(text: &str) -> Result<u64, String> {
    let units = [("k", 1e3), ("M", 1e6), ("G", 1e9)];
    let scaled = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let count = match scaled {
        None => text.parse().ok(),
        Some((number, scale)) => {
            let count = number.parse::<f64>().ok().map(|number| (number * scale).round());
            count.filter(|count| *count < 2f64.powi(63)).map(|count| count as u64)
        }
    };
    count.filter(|count| *count > 0).ok_or_else(|| "must be a count such as 1000000, 250k or 1.5M".to_owned())
}

pub fn format_percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

pub fn format_bytes(n: u64) -> String {
    let (mut value, mut unit) = (n as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// A duration in a readable unit: `90 s`, `5 min`, `3 h`.
pub fn format_duration(time: Duration) -> String {
    match time.as_secs() {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(format_grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 1, 1234].map(|n| format_count(n, "batch", "batches")),
            ["0 batches", "1 batch", "1,234 batches"]
        );
        assert_eq!([5.0, 12_300.0, 4_500_000.0].map(format_short), ["5", "12.3k", "4.50M"]);
        assert_eq!(format_short(16_621.310_1), "16.6k");
        assert_eq!([512, 1024, 1536, 16 << 20].map(format_bytes), ["512 B", "1 KiB", "1.5 KiB", "16 MiB"]);
        assert_eq!(
            ["7", "1000000", "250k", "1.5M", "10G"].map(|text| parse_short(text).unwrap()),
            [7, 1_000_000, 250_000, 1_500_000, 10_000_000_000]
        );
        for bad in ["", "0", "0.0001k", "-5k", "1.5", "nanM", "infG", "1e30k", "5 M", "5T"] {
            assert!(parse_short(bad).is_err(), "{bad}");
        }
        assert_eq!(format_percent(0.25), "25.00 %");
        assert_eq!(
            [7, 119, 300, 7200].map(|s| format_duration(Duration::from_secs(s))),
            ["7 s", "119 s", "5 min", "2 h"]
        );
    }
}

//! Moments: milliseconds since 1970, and as people write them.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

/// A system time; what lies before 1970 is 0.
pub fn from_system_time(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Now, by this machine's clock.
pub fn now() -> u64 {
    from_system_time(SystemTime::now())
}

/// Now, in nanoseconds since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A moment in UTC, as [`parse_moment`] takes it: `2026-11-24T14:00:00.250Z`. Beyond the year 9999, its number.
pub fn format_utc(at: u64) -> String {
    let moment = i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    moment.map_or_else(|| at.to_string(), |moment| format!("{moment:.3}"))
}

/// Reads a moment: `2026-11-24T14:00` in this machine's time zone, the same with an offset
/// or `Z`, or a time ago, such as `-1h`.
///
/// # Errors
/// What it must be, in words.
pub fn parse_moment(text: &str) -> Result<u64, String> {
    let must = || {
        "must be a moment such as 2026-11-24T14:00 or 2026-11-24T14:00Z, or a time ago such as -1h".to_owned()
    };
    let moment = if let Some(ago) = text.strip_prefix('-') {
        let span: Span = ago.parse().map_err(|_| must())?;
        Zoned::now().checked_sub(span).map_err(|_| must())?.timestamp()
    } else if let Ok(moment) = text.parse::<Timestamp>() {
        moment
    } else {
        let local: DateTime = text.parse().map_err(|_| must())?;
        local.to_zoned(TimeZone::system()).map_err(|_| must())?.timestamp()
    };
    u64::try_from(moment.as_millisecond()).ok().filter(|moment| *moment > 0).ok_or_else(must)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_and_others_are_refused() {
        assert_eq!(parse_moment("2026-11-24T14:00:00Z"), Ok(1_795_528_800_000));
        assert_eq!(parse_moment("2026-11-24T14:00:00.250+02:00"), Ok(1_795_521_600_250));
        assert!(parse_moment("2026-11-24T14:00").is_ok() && parse_moment("2026-11-24").is_ok());
        let now = now();
        let ago = parse_moment("-1h").unwrap();
        assert!((now - 3_600_000..now).contains(&ago), "{ago} {now}");
        for bad in ["", "now", "14", "-", "-soon", "2026-13-01", "1960-01-01T00:00Z"] {
            assert!(parse_moment(bad).is_err_and(|must| must.contains("-1h")), "{bad}");
        }
    }

    #[test]
    fn moments_are_written_as_they_are_read() {
        assert_eq!(format_utc(1_795_528_800_250), "2026-11-24T14:00:00.250Z");
        assert_eq!(
            (format_utc(0).as_str(), format_utc(u64::MAX)),
            ("1970-01-01T00:00:00.000Z", u64::MAX.to_string())
        );
        assert_eq!(parse_moment(&format_utc(1_795_528_800_000)), Ok(1_795_528_800_000));
        assert_eq!(from_system_time(UNIX_EPOCH - std::time::Duration::from_secs(1)), 0);
    }
}

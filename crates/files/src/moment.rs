//! Points in time: as milliseconds since 1970, and as people write them.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Span, Timestamp, ToSpan, Zoned};

/// Milliseconds since 1970; 0 for anything earlier.
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

/// A moment in UTC as [`parse_moment`] reads it: `2026-11-24T14:00:00.250Z`. Beyond the year 9999, its bare number.
pub fn format_utc(at: u64) -> String {
    let moment = i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok());
    moment.map_or_else(|| at.to_string(), |moment| format!("{moment:.3}"))
}

/// A number of seconds since 1970 has at least this many digits: fewer would be a moment before 1973, or a year.
const SECONDS_DIGITS: usize = 9;

/// Reads a moment: `2026-11-24T14:00` in this machine's time zone, the same with an offset or `Z`, the last `14:00`, a time
/// ago, such as `1h` or `-1h`, or seconds since 1970.
pub fn parse_moment(text: &str) -> Result<u64, String> {
    let must = || {
        "must be a moment such as 2026-11-24T14:00, 2026-11-24T14:00Z or 14:00, a time ago such as 1h, or seconds since 1970"
            .to_owned()
    };
    parse_timestamp(text)
        .and_then(|moment| u64::try_from(moment.as_millisecond()).ok())
        .filter(|moment| *moment > 0)
        .ok_or_else(must)
}

fn parse_timestamp(text: &str) -> Option<Timestamp> {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    if whole.len() >= SECONDS_DIGITS && whole.bytes().all(|byte| byte.is_ascii_digit()) {
        let since = SignedDuration::try_from_secs_f64(text.parse().ok()?).ok()?;
        return Timestamp::from_duration(since).ok();
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Some(moment);
    }
    if let Ok(local) = text.parse::<DateTime>() {
        return Some(local.to_zoned(TimeZone::system()).ok()?.timestamp());
    }
    let now = Zoned::now();
    // A number alone would be an hour, or hours and minutes.
    if text.contains(':')
        && let Ok(time) = text.parse::<Time>()
    {
        let today = now.date().to_datetime(time).to_zoned(TimeZone::system()).ok()?;
        let last = if today > now { today.checked_sub(1.day()).ok()? } else { today };
        return Some(last.timestamp());
    }
    let ago: Span = text.strip_prefix('-').unwrap_or(text).parse().ok()?;
    Some(now.checked_sub(ago).ok()?.timestamp())
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
        for hour in ["-1h", "1h", "60m"] {
            let ago = parse_moment(hour).unwrap();
            assert!((now - 3_600_000..now).contains(&ago), "{hour}: {ago} {now}");
        }
        assert_eq!(parse_moment("1795528800"), Ok(1_795_528_800_000));
        assert_eq!(parse_moment("1795528800.25"), Ok(1_795_528_800_250));
        for time in ["00:00", "14:00", "23:59:59.999"] {
            let last = parse_moment(time).unwrap();
            // The longest day has 25 hours.
            assert!(last <= super::now() && now - last <= 25 * 3_600_000, "{time}: {last} {now}");
            let local = Timestamp::from_millisecond(last as i64).unwrap().to_zoned(TimeZone::system());
            assert_eq!(local.time(), time.parse().unwrap());
        }
        for bad in ["", "now", "14", "2026", "-", "-soon", "25:00", "2026-13-01", "1960-01-01T00:00Z"] {
            assert!(parse_moment(bad).is_err_and(|must| must.contains("1h")), "{bad}");
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

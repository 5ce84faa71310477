//! Moments as people write them.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, Zoned};

/// Reads a moment, as milliseconds since 1970: `2026-11-24T14:00` in this machine's time zone, the same with an offset
/// or `Z`, or a time ago, such as `-1h`.
///
/// # Errors
/// What it must be, in words.
pub fn parse(text: &str) -> Result<u64, String> {
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
        assert_eq!(parse("2026-11-24T14:00:00Z"), Ok(1_795_528_800_000));
        assert_eq!(parse("2026-11-24T14:00:00.250+02:00"), Ok(1_795_521_600_250));
        assert!(parse("2026-11-24T14:00").is_ok() && parse("2026-11-24").is_ok());
        let now = Timestamp::now().as_millisecond() as u64;
        let ago = parse("-1h").unwrap();
        assert!((now - 3_600_000..now).contains(&ago), "{ago} {now}");
        for bad in ["", "now", "14", "-", "-soon", "2026-13-01", "1960-01-01T00:00Z"] {
            assert!(parse(bad).is_err_and(|must| must.contains("-1h")), "{bad}");
        }
    }
}

//! Times of values and events: nanoseconds since 1970, or a switch's own time.

use std::time::Duration;

use dta_cli::number::format_duration;
pub use dta_files::moment::now_ns as now;
pub use dta_proto::telemetry::age_in_seconds;
use dta_proto::telemetry::is_since_1970;

/// A time as `2026-11-22T05:01:02.123Z`; `None` for a switch's own time.
pub fn format_utc(time: u64) -> Option<String> {
    is_since_1970(time).then(|| dta_files::moment::format_utc(time / 1_000_000))
}

/// The age of a value, in a few words.
pub fn age_in_words(age: Option<f64>) -> String {
    match age {
        Some(age) => format!("{} ago", format_duration(Duration::from_secs_f64(age.max(0.0)))),
        None => "at a switch's own time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_an_age_if_they_are_since_1970() {
        let time = 1_795_323_662_123_456_789;
        assert_eq!(format_utc(time).unwrap(), "2026-11-22T05:01:02.123Z");
        assert_eq!(format_utc(time / 1_000_000_000 * 1_000_000_000).unwrap(), "2026-11-22T05:01:02.000Z");
        assert_eq!(age_in_seconds(time, time + 2_500_000_000), Some(2.5));
        assert_eq!(age_in_seconds(time + 5, time), Some(0.0));
        assert_eq!((age_in_seconds(0x5ad9_f94a, time), format_utc(0x5ad9_f94a)), (None, None));
        assert_eq!(
            (age_in_words(Some(3.9)).as_str(), age_in_words(None).as_str()),
            ("3 s ago", "at a switch's own time")
        );
        assert!(age_in_seconds(now(), now() + 1).is_some());
    }
}

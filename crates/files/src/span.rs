//! Lengths of time in configurations: `60s`, `1h 30m`, `7d`.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};
use serde::{Deserialize, Deserializer, Serializer};

/// Reads a length of time above 0; a day has 24 hours.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let span: Result<Span, _> = text.parse();
    let length = span.and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let length =
        length.ok().and_then(|length| Duration::try_from(length).ok()).filter(|length| !length.is_zero());
    length.ok_or_else(|| "a length of time such as \"60s\", \"5m\", \"1h\" or \"7d\"".to_owned())
}

/// For fields of configurations (`#[serde(with = "dta_files::span")]`).
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map_err(|must| serde::de::Error::custom(format!("{text:?} is not {must}")))
}

/// For fields of configurations.
pub fn serialize<S: Serializer>(length: &Duration, to: S) -> Result<S::Ok, S::Error> {
    let length = SignedDuration::try_from(*length).unwrap_or(SignedDuration::MAX);
    to.collect_str(&format_args!("{length:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_and_others_are_refused() {
        let seconds = |text: &str| parse_duration(text).map(|length| length.as_secs());
        assert_eq!(seconds("60s"), Ok(60));
        assert_eq!(seconds("1h 30m"), Ok(5400));
        assert_eq!(seconds("7d"), Ok(7 * 86_400));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["", "60", "0s", "-1h", "soon", "1y", "99999999999999999999s"] {
            assert!(seconds(bad).is_err_and(|must| must.contains("60s")), "{bad}");
        }
    }
}

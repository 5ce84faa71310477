//! A point of a time series, and its InfluxDB format.
//!
//! Line protocol: `measurement[,tag=value ..] field=value[,..] time`. In a measurement, commas and spaces are escaped
//! with a backslash; in tags and field names, equals signs too. A backslash itself cannot be escaped there. Field texts
//! are quoted, with quotes and backslashes escaped. (InfluxDB documentation, "Line protocol".)

use std::fmt::Write as _;

#[derive(Clone, Debug, PartialEq)]
pub enum PointValue {
    /// Written `5i`; values beyond an `i64` become its largest.
    Integer(u64),
    /// Written `5`: a float to InfluxDB, which is what INTCollector writes.
    Number(u64),
    /// Written `"text"`.
    Text(String),
    /// Written `true` or `false`.
    Bool(bool),
}

#[derive(Clone, Debug, PartialEq)]
pub struct InfluxPoint {
    pub measurement: String,
    /// Tags: together with the measurement, they name the series. Empty values are not written.
    pub tags: Vec<(&'static str, String)>,
    pub fields: Vec<(&'static str, PointValue)>,
    /// Nanoseconds since 1970, or whatever the translator was configured to send.
    pub time: u64,
}

impl InfluxPoint {
    /// Measurement and tags in line protocol: the name of the series.
    pub fn series_name(&self) -> String {
        let mut series = String::with_capacity(128);
        push_series_text(&mut series, &self.measurement, &[',', ' ']);
        for (name, value) in self.tags.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = write!(series, ",{name}=");
            push_series_text(&mut series, value, &[',', ' ', '=']);
        }
        series
    }

    /// Appends the line, with its newline, of this point of `series` ([`InfluxPoint::series_name`]) at `time`.
    pub fn write_line(&self, line: &mut String, series: &str, time: u64) {
        line.push_str(series);
        for (n, (name, value)) in self.fields.iter().enumerate() {
            line.push(if n == 0 { ' ' } else { ',' });
            line.push_str(name);
            line.push('=');
            let _ = match value {
                PointValue::Integer(number) => write!(line, "{}i", (*number).min(i64::MAX as u64)),
                PointValue::Number(number) => write!(line, "{number}"),
                PointValue::Bool(truth) => write!(line, "{truth}"),
                PointValue::Text(text) => {
                    line.push('"');
                    for c in text.chars().map(one_line) {
                        if matches!(c, '"' | '\\') {
                            line.push('\\');
                        }
                        line.push(c);
                    }
                    line.push('"');
                    Ok(())
                }
            };
        }
        let _ = writeln!(line, " {}", time.min(i64::MAX as u64));
    }
}

/// A newline would end the line: it becomes a space.
fn one_line(c: char) -> char {
    if c == '\n' { ' ' } else { c }
}

/// Appends a measurement or a tag's value, with these characters escaped. A backslash at the end would escape what
/// follows the text, so it becomes a slash.
fn push_series_text(series: &mut String, text: &str, special: &[char]) {
    for c in text.chars().map(one_line) {
        if special.contains(&c) {
            series.push('\\');
        }
        series.push(c);
    }
    if text.ends_with('\\') {
        series.pop();
        series.push('/');
    }
}

//! A point of a time series, and how InfluxDB writes it.
//!
//! Line protocol: `measurement[,tag=value ..] field=value[,..] time`. In a measurement, commas and spaces are escaped by
//! a backslash; in tags and the names of fields, equals signs too. Texts in fields stand in quotes, and quotes and
//! backslashes in them are escaped. (InfluxDB documentation, "Line protocol".)

use std::fmt::Write as _;

/// A value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// Written `5i`; larger ones than an `i64` holds are its largest.
    Integer(u64),
    /// Written `5`: a float to InfluxDB, which is what INTCollector writes.
    Number(u64),
    /// Written `"text"`.
    Text(String),
    /// Written `true` or `false`.
    Bool(bool),
}

/// A point.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The measurement.
    pub measurement: String,
    /// Tags: with the measurement, they name the series. Empty values are left out when it is written.
    pub tags: Vec<(&'static str, String)>,
    /// At least one.
    pub fields: Vec<(&'static str, Field)>,
    /// Nanoseconds since 1970, or whatever the translator was told to send.
    pub time: u64,
}

impl Point {
    /// Measurement and tags as they are written: what names the series.
    pub fn series(&self) -> String {
        let mut series = String::with_capacity(128);
        escaped(&mut series, &self.measurement, &[',', ' ']);
        for (name, value) in self.tags.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = write!(series, ",{name}=");
            escaped(&mut series, value, &[',', ' ', '=']);
        }
        series
    }

    /// Appends the line, with the newline, of this point of `series` ([`Point::series`]) at `time`.
    pub fn write(&self, line: &mut String, series: &str, time: u64) {
        line.push_str(series);
        for (n, (name, value)) in self.fields.iter().enumerate() {
            line.push(if n == 0 { ' ' } else { ',' });
            line.push_str(name);
            line.push('=');
            let _ = match value {
                Field::Integer(number) => write!(line, "{}i", (*number).min(i64::MAX as u64)),
                Field::Number(number) => write!(line, "{number}"),
                Field::Bool(truth) => write!(line, "{truth}"),
                Field::Text(text) => {
                    line.push('"');
                    escaped(line, text, &['"', '\\']);
                    line.push('"');
                    Ok(())
                }
            };
        }
        let _ = writeln!(line, " {}", time.min(i64::MAX as u64));
    }
}

/// Appends a text with a backslash in front of these characters. A newline would end the line: it becomes a space.
fn escaped(to: &mut String, text: &str, special: &[char]) {
    for c in text.chars() {
        let c = if c == '\n' { ' ' } else { c };
        if special.contains(&c) {
            to.push('\\');
        }
        to.push(c);
    }
}

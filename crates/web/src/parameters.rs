//! Parameters of requests, declared once for each route: requests are checked against that, and `/api/openapi.json` is
//! made from it.

use std::str::FromStr;

use dta_files::moment;
use percent_encoding::percent_decode_str;

use crate::problem::Problem;

const MOST: usize = 256;

/// A parameter that a route takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) kind: ParameterKind,
    pub(crate) required: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParameterKind {
    Text,
    /// May be given several times.
    Texts,
    Number,
    /// `2026-11-24T14:00`, or `-1h`.
    Moment,
}

/// The parameters of a request, all of which its route knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parameters(Vec<(&'static str, String)>);

impl Parameters {
    pub(crate) fn parse(query: &str, known: &[Parameter]) -> Result<Self, Problem> {
        let mut all: Vec<(&'static str, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode_text(name)?, decode_text(value)?);
            let Some(parameter) = known.iter().find(|parameter| parameter.name == name) else {
                let names: Vec<&str> = known.iter().map(|parameter| parameter.name).collect();
                let known = if names.is_empty() { "it takes none".to_owned() } else { names.join(", ") };
                return Err(Problem::bad_request(format!("there is no parameter {name:?} here: {known}")));
            };
            let is_repeated = all.iter().any(|(given, _)| *given == parameter.name);
            if is_repeated && parameter.kind != ParameterKind::Texts {
                return Err(Problem::bad_request(format!("give the parameter {name} once")));
            }
            if all.len() == MOST {
                return Err(Problem::bad_request(format!(
                    "more than {MOST} parameters: ask in several requests"
                )));
            }
            // An empty form field counts as not given.
            if !value.is_empty() {
                all.push((parameter.name, value));
            }
        }
        let missing = known
            .iter()
            .find(|parameter| parameter.required && !all.iter().any(|(given, _)| *given == parameter.name));
        match missing {
            Some(missing) => Err(Problem::bad_request(format!(
                "the parameter {} is missing: {}",
                missing.name, missing.description
            ))),
            None => Ok(Self(all)),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.get_all(name).next()
    }

    pub(crate) fn get_all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn parse_as<T: FromStr>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        self.get(name).map(|value| parse_value(name, value)).transpose()
    }

    pub(crate) fn parse_each<T: FromStr>(&self, name: &str) -> Result<Vec<T>, Problem>
    where
        T::Err: std::fmt::Display,
    {
        self.get_all(name).map(|value| parse_value(name, value)).collect()
    }

    pub(crate) fn number(&self, name: &str, usual: u64, most: u64) -> Result<u64, Problem> {
        match self.parse_as::<u64>(name)? {
            Some(number) if number > most => {
                Err(Problem::bad_request(format!("{name} is {number}, but must be at most {most}")))
            }
            number => Ok(number.unwrap_or(usual)),
        }
    }

    /// A moment in milliseconds since 1970.
    pub(crate) fn moment(&self, name: &str) -> Result<Option<u64>, Problem> {
        let parse = |value: &str| {
            moment::parse_moment(value)
                .map_err(|why| Problem::bad_request(format!("{name} is {value:?}: {why}")))
        };
        self.get(name).map(parse).transpose()
    }
}

fn parse_value<T: FromStr>(name: &str, value: &str) -> Result<T, Problem>
where
    T::Err: std::fmt::Display,
{
    value.parse().map_err(|why| Problem::bad_request(format!("{name} is {value:?}: {why}")))
}

/// Decodes text of a query string, in which `+` may stand for a blank.
fn decode_text(text: &str) -> Result<String, Problem> {
    let blanks = text.replace('+', " ");
    let decoded = percent_decode_str(&blanks).decode_utf8();
    let text = decoded.map_err(|_| Problem::bad_request("the query string is not UTF-8"))?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Parameter; 4] = [
        Parameter { name: "flow", description: "a flow", kind: ParameterKind::Texts, required: true },
        Parameter { name: "n", description: "how many", kind: ParameterKind::Number, required: false },
        Parameter { name: "at", description: "when", kind: ParameterKind::Moment, required: false },
        Parameter { name: "text", description: "any", kind: ParameterKind::Text, required: false },
    ];

    #[test]
    fn parameters_are_decoded_and_unknown_repeated_and_missing_ones_are_refused() {
        let all = Parameters::parse("flow=a%3Eb&flow=c+d&n=7&text=", &KNOWN).unwrap();
        assert_eq!(all.get_all("flow").collect::<Vec<_>>(), ["a>b", "c d"]);
        assert_eq!((all.number("n", 1, 10).unwrap(), all.get("text")), (7, None));
        assert!(all.number("n", 1, 6).unwrap_err().detail.contains("at most 6"));
        let refused = |query: &str| Parameters::parse(query, &KNOWN).unwrap_err().detail;
        assert_eq!(refused("n=1"), "the parameter flow is missing: a flow");
        assert!(refused("flow=a&x=1").contains("\"x\""));
        assert!(refused("flow=a&n=1&n=2").contains("once"));
        assert!(refused("flow=%ff").contains("UTF-8"));
        assert!(refused(&"flow=a&".repeat(300)).contains("256"));
        let moments = Parameters::parse("flow=a&at=-1h", &KNOWN).unwrap();
        assert!(moments.moment("at").unwrap().unwrap() < moment::now());
        assert!(moments.parse_as::<u64>("flow").unwrap_err().detail.starts_with("flow is \"a\""));
    }
}

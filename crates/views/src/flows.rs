//! Questions about flow records as people ask them, and answers as documents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use dta_export::names::Names;
use dta_files::moment::now_ns;
use dta_proto::flow_query::{
    FilterError, FlowAnswer, FlowFilter, FlowQuestion, FlowRow, FlowSum, FlowSums, GroupError, ScanCounts,
    address_value, format_value,
};
use dta_proto::flow_record::{Column, ColumnType};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// How far ahead an exporter's clock may be, in milliseconds, when asking for flows that ran at a moment.
const CLOCK_AHEAD: u64 = 60_000;
/// Milliseconds within which a flow that ran at a moment has been reported: twice the active timeout of most routers.
const REPORTED_WITHIN: u64 = 3_600_000;

/// A question as text; moments are in milliseconds since 1970.
#[derive(Clone, Debug, Default)]
pub struct FlowQueryText<'a> {
    /// Columns to group by, separated by commas; `total` = none.
    pub group: &'a str,
    pub condition: &'a str,
    /// Only records of this exporter, by address or name.
    pub exporter: Option<&'a str>,
    /// Only flows that ran at this moment.
    pub at: Option<u64>,
    pub since: Option<u64>,
    pub until: Option<u64>,
    /// Length of a time bucket.
    pub per: Option<Duration>,
}

/// What is wrong with the text of a question.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowQueryTextError {
    #[error(transparent)]
    Condition(FilterError),
    #[error("{0:?} is neither an address nor a name in the file of names")]
    Exporter(String),
    #[error(transparent)]
    Group(GroupError),
    #[error("give a moment or a span, not both")]
    MomentAndSpan,
    #[error("`since` must be earlier than `until`")]
    EmptySpan,
}

impl FlowQueryText<'_> {
    /// Parses the question.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn to_question(&self, names: &Names) -> Result<FlowQuestion, FlowQueryTextError> {
        let address_by_name =
            |name: &str| names.number_of(name).map(|number| IpAddr::V4(Ipv4Addr::from_bits(number)));
        let mut filter =
            FlowFilter::parse(self.condition, &address_by_name).map_err(FlowQueryTextError::Condition)?;
        if let (Some(exporter), Some(column)) = (self.exporter, Column::from_name("exporter")) {
            let address = exporter.parse().ok().or_else(|| address_by_name(exporter));
            let address = address.ok_or_else(|| FlowQueryTextError::Exporter(exporter.to_owned()))?;
            filter = filter.and_equal(column, address_value(address));
        }
        let group = if self.group == "total" { "" } else { self.group };
        let group = FlowQuestion::parse_group(group).map_err(FlowQueryTextError::Group)?;
        let nanoseconds = |milliseconds: u64| milliseconds.saturating_mul(1_000_000);
        let (mut since, mut until) = (self.since.unwrap_or(0), self.until.unwrap_or(0));
        if let Some(at) = self.at {
            if (since, until) != (0, 0) {
                return Err(FlowQueryTextError::MomentAndSpan);
            }
            filter = filter.and_running_at(nanoseconds(at));
            (since, until) = (at.saturating_sub(CLOCK_AHEAD), at.saturating_add(REPORTED_WITHIN));
        }
        if until != 0 && since >= until {
            return Err(FlowQueryTextError::EmptySpan);
        }
        let per = self.per.map_or(0, |per| per.as_nanos().try_into().unwrap_or(u64::MAX));
        let since = nanoseconds(since).min(now_ns());
        Ok(FlowQuestion { filter, group, since, until: nanoseconds(until), per })
    }
}

/// A column's value for people: an exporter by its name, if it has one.
pub fn describe_value(column: &Column, value: u128, names: &Names) -> String {
    let ipv4 = || Ipv6Addr::from_bits(value).to_ipv4_mapped();
    let name = (column.name == "exporter").then(ipv4).flatten();
    match name.and_then(|address| names.switch_name(address.to_bits())) {
        Some(name) => name.to_owned(),
        None => format_value(column, value),
    }
}

/// The largest groups, as `dta-collector flows -o json` and the HTTP interface show them.
#[derive(Debug, Serialize)]
pub struct FlowsDocument {
    by: &'static str,
    groups: Vec<FlowGroup>,
    total: FlowSumsDocument,
    group_count: u64,
    /// Counted in the total but in no group, because there were too many.
    beyond: FlowSumsDocument,
    batches: u64,
    overwritten: u64,
    missing: u64,
    torn: u64,
    /// Collectors that did not answer: their records are missing.
    unreachable: Vec<String>,
}

#[derive(Debug, Serialize)]
struct FlowGroup {
    values: GroupValues,
    sums: FlowSumsDocument,
    series: Vec<FlowBucket>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct FlowSumsDocument {
    bytes: u64,
    packets: u64,
    flows: u64,
}

#[derive(Debug, Serialize)]
struct FlowBucket {
    /// Nanoseconds since 1970.
    start: u64,
    #[serde(flatten)]
    sums: FlowSumsDocument,
}

/// The grouping columns, with `_` in their names.
#[derive(Debug)]
struct GroupValues(Vec<(&'static Column, u128, String)>);

impl Serialize for GroupValues {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (column, value, text) in &self.0 {
            let name = column.name.replace('-', "_");
            match u64::try_from(*value) {
                Ok(number) if has_numbers(column) => map.serialize_entry(&name, &number)?,
                _ => map.serialize_entry(&name, text)?,
            }
        }
        map.end()
    }
}

/// Whether programs get the values as numbers; addresses and protocols are text.
fn has_numbers(column: &Column) -> bool {
    column.kind != ColumnType::Address && column.name != "protocol"
}

impl From<FlowSums> for FlowSumsDocument {
    fn from(sums: FlowSums) -> FlowSumsDocument {
        let FlowSums { bytes, packets, flows } = sums;
        FlowSumsDocument { bytes, packets, flows }
    }
}

impl FlowsDocument {
    pub fn new(by: FlowSum, answer: &FlowAnswer, scanned: ScanCounts, names: &Names) -> FlowsDocument {
        let group = |row: &FlowRow| {
            let value = |(column, value): (&&'static Column, &u128)| {
                (*column, *value, describe_value(column, *value, names))
            };
            let bucket = |(start, sums): &(u64, FlowSums)| FlowBucket { start: *start, sums: (*sums).into() };
            FlowGroup {
                values: GroupValues(answer.group.iter().zip(&row.values).map(value).collect()),
                sums: row.sums.into(),
                series: row.series.iter().map(bucket).collect(),
            }
        };
        let ScanCounts { batches, overwritten, missing, torn } = scanned;
        FlowsDocument {
            by: by.name(),
            groups: answer.rows.iter().map(group).collect(),
            total: answer.total.into(),
            group_count: answer.groups,
            beyond: answer.beyond.into(),
            batches,
            overwritten,
            missing,
            torn,
            unreachable: answer.unreachable.clone(),
        }
    }
}

/// The groups as comma-separated values, with a header: a line for each group, or for each of its time buckets if
/// the question asked for them (`per`, their length in nanoseconds, is not 0).
pub fn render_flows_csv(answer: &FlowAnswer, per: u64, names: &Names) -> String {
    let mut header: Vec<String> = answer.group.iter().map(|column| column.name.replace('-', "_")).collect();
    header.extend((per != 0).then(|| "bucket_start".to_owned()));
    header.extend(["bytes", "packets", "flows"].map(str::to_owned));
    let mut lines = vec![header.join(",")];
    for row in &answer.rows {
        let value = |(column, value): (&&Column, &u128)| quote_csv(describe_value(column, *value, names));
        let values: Vec<String> = answer.group.iter().zip(&row.values).map(value).collect();
        let line = |start: Option<u64>, sums: FlowSums| {
            let numbers = start.into_iter().chain([sums.bytes, sums.packets, sums.flows]);
            values.iter().cloned().chain(numbers.map(|n| n.to_string())).collect::<Vec<_>>().join(",")
        };
        match per {
            0 => lines.push(line(None, row.sums)),
            _ => lines.extend(row.series.iter().map(|(start, sums)| line(Some(*start), *sums))),
        }
    }
    lines.join("\n")
}

/// Quotes a field of comma-separated values (RFC 4180). Names from a file may contain anything.
fn quote_csv(text: String) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use dta_proto::flow_record::FlowRecord;
    use serde_json::json;

    use super::*;

    fn switch_names() -> Names {
        let text = format!("[switch.{}]\nname = 'edge, \"1\"'\n", u32::from_be_bytes([192, 0, 2, 1]));
        Names::parse(&text, std::path::Path::new("names.toml")).unwrap()
    }

    fn answer() -> FlowAnswer {
        let sums = |bytes| FlowSums { bytes, packets: 2, flows: 1 };
        let exporter = |last: u8| address_value(IpAddr::from([192, 0, 2, last]));
        FlowAnswer {
            group: FlowQuestion::parse_group("exporter,protocol,dst-port").unwrap(),
            rows: vec![
                FlowRow {
                    values: vec![exporter(1), 6, 443],
                    sums: sums(5000),
                    series: vec![(10, sums(5000))],
                },
                FlowRow { values: vec![exporter(2), 253, 0], sums: sums(7), series: Vec::new() },
            ],
            total: FlowSums { bytes: 5008, packets: 5, flows: 3 },
            groups: 2,
            beyond: FlowSums { bytes: 1, packets: 1, flows: 1 },
            unreachable: vec!["192.0.2.9:50051".to_owned()],
        }
    }

    #[test]
    fn exporters_have_names_and_numbers_their_types() {
        let scanned = ScanCounts { batches: 1, overwritten: 2, missing: 0, torn: 0 };
        let document = json!(FlowsDocument::new(FlowSum::Bytes, &answer(), scanned, &switch_names()));
        let first = &document["groups"][0];
        assert_eq!(first["values"], json!({ "exporter": "edge, \"1\"", "protocol": "tcp", "dst_port": 443 }));
        assert_eq!(first["series"][0], json!({ "start": 10, "bytes": 5000, "packets": 2, "flows": 1 }));
        assert_eq!(document["groups"][1]["values"]["protocol"], "253");
        assert_eq!(document["unreachable"], json!(["192.0.2.9:50051"]));
    }

    #[test]
    fn csv_has_time_buckets_where_the_question_asks_for_them() {
        let lines = |answer: &FlowAnswer, per| {
            let csv = render_flows_csv(answer, per, &switch_names());
            csv.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let whole =
            ["exporter,protocol,dst_port,bytes,packets,flows", "\"edge, \"\"1\"\"\",tcp,443,5000,2,1"];
        assert_eq!(lines(&answer(), 0)[..2], whole);
        let in_buckets = [
            "exporter,protocol,dst_port,bucket_start,bytes,packets,flows",
            "\"edge, \"\"1\"\"\",tcp,443,10,5000,2,1",
        ];
        assert_eq!(lines(&answer(), 10), in_buckets);
        let none = FlowAnswer { rows: Vec::new(), ..answer() };
        assert_eq!(lines(&none, 10), in_buckets[..1]);
    }

    #[test]
    fn text_becomes_a_question_or_what_is_wrong_is_said() {
        let text = FlowQueryText {
            group: "exporter,flow",
            condition: "dst-port = 443",
            exporter: Some("edge, \"1\""),
            per: Some(Duration::from_secs(10)),
            ..FlowQueryText::default()
        };
        let question = text.to_question(&switch_names()).unwrap();
        assert_eq!((question.since, question.until, question.per), (0, 0, 10_000_000_000));
        assert_eq!(question.group.len(), 6);
        assert_eq!(question.filter.to_string(), "dst-port = 443 and exporter = 192.0.2.1");
        let wrong = |text: FlowQueryText<'_>| text.to_question(&Names::default()).unwrap_err();
        assert_eq!(wrong(text.clone()), FlowQueryTextError::Exporter("edge, \"1\"".into()));
        let text = FlowQueryText::default();
        assert!(matches!(
            wrong(FlowQueryText { condition: "dst-port", ..text.clone() }),
            FlowQueryTextError::Condition(_)
        ));
        assert!(matches!(
            wrong(FlowQueryText { group: "size", ..text.clone() }),
            FlowQueryTextError::Group(_)
        ));
        let [since, until] = [Some(2), Some(1)];
        assert_eq!(wrong(FlowQueryText { since, until, ..text.clone() }), FlowQueryTextError::EmptySpan);
        assert_eq!(wrong(FlowQueryText { since, at: until, ..text }), FlowQueryTextError::MomentAndSpan);
    }

    #[test]
    fn flows_of_a_moment_are_those_that_ran_then() {
        const SECOND: u64 = 1_000_000_000;
        let at = Some(1_000_000);
        let question =
            FlowQueryText { at, ..FlowQueryText::default() }.to_question(&Names::default()).unwrap();
        let is_included = |start: u64, end: u64, received: u64| {
            let [start, end, received] = [start, end, received].map(|seconds| seconds * SECOND);
            question.includes(&FlowRecord { start, end, received, ..FlowRecord::EMPTY }.to_entry())
        };
        assert!(is_included(900, 1100, 1101) && is_included(1000, 1000, 1001));
        assert!(!is_included(900, 999, 1001), "it had ended");
        assert!(!is_included(1001, 1002, 1003), "it had not begun");
        assert!(!is_included(900, 1100, 9000), "reported too late to be looked at");
        assert!(!is_included(0, 0, 1000), "nobody knows when it ran");
    }
}

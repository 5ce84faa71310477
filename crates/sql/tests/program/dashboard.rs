//! The dashboard `testbed/dashboards/flightsql`: each of its queries, as Grafana's data source sends it, is answered with something, in types
//! that it shows.

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, TimeUnit, TimestampNanosecondType};
use dta_history::{EpochTable, HistoryEpoch};
use dta_proto::key::Key;
use dta_proto::layout::{hash, key_increment};
use dta_proto::store::{StoreKind, StoreSpec};
use serde_json::Value;

use super::flight::{Server, asked};
use super::made::{BEGIN, MINUTE, flow};
use super::{history, text};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/dashboards/flightsql/history.json");

/// A query with values in the places of variables and macros, as version 1.1 of Grafana's data source puts them there.
fn filled(query: &str) -> String {
    let mut query = query.to_owned();
    for (variable, value) in
        [("$store", "flows"), ("$values", "flows"), ("$paths", "paths"), ("$counters", "bytes")]
    {
        query = query.replace(variable, value);
    }
    query = query.replace("$flow", &flow(7));
    while let Some((before, column, behind)) = query.split_once("$__timeRange(").and_then(|(before, rest)| {
        let (column, behind) = rest.split_once(')')?;
        Some((before, column, behind))
    }) {
        let range = format!("{column} >= '2026-11-24T14:00:00Z' AND {column} <= '2026-11-24T14:10:00Z'");
        query = format!("{before}{range}{behind}");
    }
    assert!(!query.contains('$'), "{query} has a variable that this test does not know");
    query
}

/// Types that the data source knows; it takes all timestamps for nanoseconds.
fn is_shown(of: &DataType) -> bool {
    of.is_integer()
        || matches!(of, DataType::Utf8 | DataType::Boolean | DataType::Float64)
        || matches!(of, DataType::Timestamp(TimeUnit::Nanosecond, _))
}

/// A store of counters beside the others.
fn counters(folder: &std::path::Path) {
    let kind = StoreKind::KeyIncrement { slots: 1024, redundancy: 1, replicas: 1 };
    let table = EpochTable::open(folder, &StoreSpec { id: 3, name: "bytes".to_owned(), kind }).unwrap();
    let slot = hash::key_slots(&flow(7).parse::<Key>().unwrap(), 1, 1024)[0];
    let mut flush = table.begin_epoch(1).unwrap();
    flush.write_slots(slot, &key_increment::encode_counter(640)).unwrap();
    let epoch = HistoryEpoch {
        number: 1,
        opened: BEGIN,
        flipped_to: BEGIN + MINUTE,
        confirmed: true,
        ..HistoryEpoch::default()
    };
    flush.finish(&epoch).unwrap();
}

#[tokio::test]
async fn each_query_of_the_dashboard_is_answered_with_what_grafana_shows() {
    let folder = history();
    counters(folder.path());
    let server = Server::start(folder.path(), &[]);
    let mut client = server.client().await;
    let mut ask = async |query: &str| -> RecordBatch {
        let query = filled(query);
        let rows = asked(&mut client, &query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
        let rows = datafusion::arrow::compute::concat_batches(&rows[0].schema(), &rows).unwrap();
        assert!(rows.num_rows() > 0, "{query}");
        rows
    };
    let dashboard: Value = serde_json::from_slice(&std::fs::read(FILE).unwrap()).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert_eq!(variables[0]["query"], "influxdata-flightsql-datasource");
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let names = ask(variable["query"].as_str().unwrap()).await;
        assert_eq!(names.num_columns(), 1);
        assert!(names.column(0).as_string::<i32>().iter().all(|name| name.is_some()));
    }
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 5);
    for panel in panels {
        for target in panel["targets"].as_array().unwrap() {
            let rows = ask(target["queryText"].as_str().unwrap()).await;
            let schema = rows.schema();
            for field in schema.fields() {
                assert!(is_shown(field.data_type()), "{}: {field}", panel["title"]);
            }
            if target["format"] == "time_series" {
                // Rows of several series become columns only in this order.
                let times =
                    rows.column_by_name("time").expect("time").as_primitive::<TimestampNanosecondType>();
                assert!(times.values().is_sorted(), "{}", panel["title"]);
                assert_eq!(times.value(0), BEGIN as i64 * 1_000_000, "{}", panel["title"]);
            }
        }
    }
}

#[test]
fn the_file_is_as_it_is_made() {
    let make = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/dashboards/make");
    let made = std::process::Command::new(make).arg("--check").output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
}

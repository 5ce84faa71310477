use std::sync::Arc;

use dta_export::config::{Config, Json};
use dta_export::run::{ExportOptions, Exporters};
use dta_proto::telemetry::list;
use dta_rpc::Ask;
use serde_json::Value;

use crate::lists::Lists;
use crate::recorder::pages;
use crate::source::drop_at;

#[tokio::test]
async fn a_file_gets_each_event_once_over_several_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let config = Config { json: Some(Json { file: file.clone(), names: true }), ..Config::default() };
    let lists = Lists::default();
    let ask: Arc<dyn Ask> = Arc::new(lists.clone());
    for run in 0..3 {
        (1..=3).for_each(|n| lists.put(list::DROPS, vec![drop_at(10 * run + n)]));
        let run = ExportOptions { once: true, ..ExportOptions::default() };
        let mut exporters = Exporters::start(&config, "json", &ask, &pages(), run).unwrap();
        exporters.wait_until_done().await;
        exporters.stop_exporters().await;
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let times: Vec<u64> = lines.iter().map(|line| line["time"].as_u64().unwrap()).collect();
    assert_eq!(times, [1, 2, 3, 11, 12, 13, 21, 22, 23]);
    assert_eq!(
        (&lines[0]["event"], &lines[0]["reason_name"], &lines[0]["switch"]),
        (&"drop".into(), &"traffic-manager".into(), &1.into())
    );
}

#[tokio::test]
async fn names_can_be_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("events.jsonl");
    let config = Config { json: Some(Json { file: file.clone(), names: false }), ..Config::default() };
    let lists = Lists::default();
    lists.put(list::DROPS, vec![drop_at(5)]);
    let ask: Arc<dyn Ask> = Arc::new(lists);
    let run = ExportOptions { once: true, ..ExportOptions::default() };
    let mut exporters = Exporters::start(&config, "json", &ask, &pages(), run).unwrap();
    exporters.wait_until_done().await;
    exporters.stop_exporters().await;
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&line["reason"], line.get("reason_name")), (&71.into(), None));
    assert_eq!(line["reason_source"], "int");
}

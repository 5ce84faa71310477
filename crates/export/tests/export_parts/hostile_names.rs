//! Names that break what is escaped wrongly arrive as they are, or as the page on exporters says.

#[path = "../../../../testbed/tests/shared/influx.rs"]
mod influx_server;

use std::path::Path;
use std::sync::Arc;

use dta_export::config::{Config, Influx, Json};
use dta_export::names::Names;
use dta_export::run::{ExportOptions, Exporters};
use dta_proto::drop_reason::DropReason;
use dta_proto::key::Key;
use dta_proto::telemetry::{Location, TelemetryEntry, list};
use dta_rpc::Ask;
use serde_json::Value;

use crate::recorder::{Bed, end, pages};
use influx_server::Influx as InfluxServer;

/// Names, and how a tag of InfluxDB has them where that differs.
pub(crate) const NAMES: [(&str, Option<&str>); 16] = [
    (r"ends\", Some("ends/")),
    (r"ends\\", Some(r"ends\/")),
    (r"\", Some("/")),
    (r"before\,comma", None),
    (r"before\ blank", None),
    (r"before\=sign", None),
    (r"in\the\\middle", None),
    (r#""quoted""#, None),
    (r#"back\"quoted"#, None),
    ("it's", None),
    ("a b,c=d", None),
    (",", None),
    ("=", None),
    ("#comment", None),
    ("\u{202e}txt.exe", None),
    ("\u{e4}\u{1f600}${x}%0a&lt;", None),
];

/// Each name is a switch's, from 1 on, and that of its port 7.
pub(crate) fn hostile_names() -> Arc<Names> {
    let switch = |(name, number): (&(&str, _), u32)| {
        // Strings of JSON are strings of TOML.
        let name = serde_json::to_string(name.0).unwrap();
        format!("[switch.{number}]\nname = {name}\n[switch.{number}.port]\n7 = {name}\n")
    };
    let text: String = NAMES.iter().zip(1..).map(switch).collect();
    Arc::new(Names::parse(&text, Path::new("names.toml")).unwrap())
}

/// A drop at port 7 of each switch.
pub(crate) fn drops() -> Vec<Vec<u8>> {
    let drop = |number: u32| TelemetryEntry::Drop {
        time: 1_700_000_000_000_000_000 + u64::from(number),
        key: Key::default(),
        place: Location { switch: Some(number), port: Some(7), queue: None },
        ingress_port: None,
        reason: DropReason::from_int(71),
    };
    (1..=NAMES.len() as u32).map(|number| drop(number).to_bytes().to_vec()).collect()
}

/// Exports the drops by the only exporter of a bed.
pub(crate) async fn export_drops(bed: &Bed) {
    bed.lists.put(list::DROPS, drops());
    let ask: Arc<dyn Ask> = Arc::new(bed.lists.clone());
    let run = ExportOptions { once: true, names: hostile_names(), ..ExportOptions::default() };
    let mut exporters = Exporters::start(&bed.config, "test", &ask, &pages(), run).unwrap();
    end(&mut exporters).await;
    exporters.stop_exporters().await;
}

#[tokio::test]
#[ignore = "starts Debian's influxd (scripts/install-deps test)"]
async fn an_influxdb_has_every_point_with_its_name() {
    let server = InfluxServer::start();
    let bed = Bed::new(|folder| {
        let influx = Influx {
            url: server.url(),
            database: Some("int".into()),
            spool: Some(folder.join("spool")),
            ..Influx::default()
        };
        Config { influx: Some(influx), ..Config::default() }
    });
    export_drops(&bed).await;
    let query = "SELECT switch, switch_name, egress_port_name FROM drops";
    let rows = server.ask(query).remove("drops").unwrap_or_default();
    let found: Vec<_> = rows.iter().map(|row| row[1..].to_vec()).collect();
    let expected: Vec<Vec<Value>> = (1..)
        .zip(NAMES)
        .map(|(number, (name, tag))| vec![number.to_string().into(), tag.unwrap_or(name).into(), name.into()])
        .collect();
    assert_eq!(found, expected);
}

/// What Kafka gets is such a line, too.
#[tokio::test]
async fn a_line_of_json_has_every_name() {
    let mut bed = Bed::new(|_| Config::default());
    let file = bed.folder.path().join("events.jsonl");
    bed.config.json = Some(Json { file: file.clone(), names: true });
    bed.lists.put(list::DROPS, drops());
    let ask: Arc<dyn Ask> = Arc::new(bed.lists.clone());
    let run = ExportOptions { once: true, names: hostile_names(), ..ExportOptions::default() };
    let mut exporters = Exporters::start(&bed.config, "test", &ask, &pages(), run).unwrap();
    exporters.wait_until_done().await;
    exporters.stop_exporters().await;
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> = lines.iter().map(|line| line["switch_name"].as_str().unwrap()).collect();
    assert_eq!(found, NAMES.map(|(name, _)| name));
}

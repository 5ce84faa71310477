//! A real InfluxDB (Debian's `influxdb`, 1.6). Tests of several crates take this file by `#[path]`.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::loopback::free_address;

const PATIENCE: Duration = Duration::from_secs(60);

/// A server that keeps its files while it is stopped.
pub(crate) struct Influx {
    address: SocketAddr,
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Influx {
    pub(crate) fn start() -> Self {
        let address = free_address();
        let mut influx = Self { address, folder: tempfile::tempdir().unwrap(), child: None };
        influx.go_on();
        influx
    }

    pub(crate) fn go_on(&mut self) {
        let path = |name: &str| self.folder.path().join(name);
        let log = std::fs::File::create(path("log")).unwrap();
        let child = Command::new("influxd")
            .args(["run", "-config", "/dev/null"])
            .env("INFLUXDB_META_DIR", path("meta"))
            .env("INFLUXDB_DATA_DIR", path("data"))
            .env("INFLUXDB_DATA_WAL_DIR", path("wal"))
            .env("INFLUXDB_HTTP_BIND_ADDRESS", self.address.to_string())
            .env("INFLUXDB_BIND_ADDRESS", "127.0.0.1:0")
            .env("INFLUXDB_REPORTING_DISABLED", "true")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("influxd is there (scripts/install-deps test)");
        self.child = Some(child);
        let begun = Instant::now();
        while self.try_ask("SHOW DATABASES").is_none() {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(begun.elapsed() < PATIENCE, "influxd does not answer: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The answer to a query in the database `int`.
    pub(crate) fn try_ask(&self, query: &str) -> Option<Value> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut stream = TcpStream::connect(self.address).ok()?;
        write!(stream, "GET /query?db=int&epoch=ns&q={query} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        serde_json::from_str(body).ok()
    }

    /// Columns of each row, by measurement.
    pub(crate) fn ask(&self, query: &str) -> BTreeMap<String, Vec<Vec<Value>>> {
        let answer = self.try_ask(query).unwrap();
        let result = &answer["results"][0];
        assert!(result.get("error").is_none(), "{query}: {answer}");
        let series = result["series"].as_array().cloned().unwrap_or_default();
        let rows = |series: &Value| {
            let name = series["name"].as_str().unwrap().to_owned();
            (name, serde_json::from_value(series["values"].clone()).unwrap())
        };
        series.iter().map(rows).collect()
    }
}

impl Drop for Influx {
    fn drop(&mut self) {
        self.stop();
    }
}

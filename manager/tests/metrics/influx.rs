//! A real InfluxDB 1.x that a collector exports to.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::loopback::free_address;
use crate::http::{encoded, get};

/// The database that is exported to.
pub(crate) const DATABASE: &str = "dta";

/// A server that ends with the test.
pub(crate) struct Influx {
    child: Child,
    /// Where its HTTP is.
    pub(crate) address: String,
}

impl Influx {
    /// Its files lie in the folder.
    pub(crate) fn start(folder: &Path) -> Influx {
        let data = folder.join("influxdb").display().to_string();
        let address = free_address().to_string();
        let config = folder.join("influxdb.conf");
        let text = format!(
            "bind-address = \"127.0.0.1:0\"\nreporting-disabled = true\n[meta]\ndir = \"{data}/meta\"\n\
             [data]\ndir = \"{data}/data\"\nwal-dir = \"{data}/wal\"\n[http]\nbind-address = \"{address}\"\n\
             [monitor]\nstore-enabled = false\n[logging]\nlevel = \"error\"\n"
        );
        std::fs::write(&config, text).unwrap();
        let child = Command::new("influxd")
            .arg("-config")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Debian's package influxdb is installed (scripts/install-deps test)");
        let influx = Influx { child, address };
        let began = Instant::now();
        while get(&influx.address, "/ping").is_none_or(|(status, _)| status != 204) {
            assert!(began.elapsed() < Duration::from_secs(60), "influxd is not there in a minute");
            std::thread::sleep(Duration::from_millis(200));
        }
        influx
    }

    /// The series in a query's result, each with its rows.
    pub(crate) fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let path = format!("/query?db={DATABASE}&q={}", encoded(query));
        let (status, body) = get(&self.address, &path).ok_or("no answer")?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        let result = &answer["results"][0];
        if status != 200 || !result["error"].is_null() {
            return Err(body);
        }
        Ok(result["series"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until a measurement has this many points.
    pub(crate) fn expect(&self, measurement: &str, points: u64) {
        let began = Instant::now();
        loop {
            let answer = self.query(&format!("SELECT count(*) FROM \"{measurement}\""));
            let count = answer.as_ref().ok().and_then(|series| series.first()?["values"][0][1].as_u64());
            if count >= Some(points) {
                return;
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{measurement} has {answer:?} and not {points} points"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Influx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! A collector and a translator that take captures of INT and are scraped.

use std::path::PathBuf;
use std::time::Duration;

use dta_client::collector::Client;
use dta_client::{Ask as _, ClientOptions, translator};
use dta_proto::counter::Stage;

use crate::common::daemon::{Daemon, counter};
use crate::common::{captures, manager};
use crate::http;

pub(crate) struct Bed {
    pub(crate) collector: Daemon,
    pub(crate) translator: Daemon,
    pub(crate) client: Client,
    pub(crate) control: translator::Client,
    pub(crate) folder: tempfile::TempDir,
    reports: u64,
}

impl Bed {
    /// With telemetry of this schema, from reports of this dialect.
    pub(crate) async fn start(schema: &str, dialect: &str) -> Bed {
        Self::with(schema, dialect, "").await
    }

    /// As [`Bed::start`], with more tables of the collector's configuration.
    pub(crate) async fn with(schema: &str, dialect: &str, more: &str) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let file = format!(
            "[collector]\nname = \"metrics\"\nlisten = \"127.0.0.1:0\"\nmemory = \"{}\"\n[soft]\nport = 0\n\
             [metrics]\nlisten = \"127.0.0.1:0\"\ntelemetry = \"{schema}\"\n{more}",
            path("memory")
        );
        std::fs::write(path("collector.toml"), file).unwrap();
        let collector = Daemon::start(&["__collector", "serve", "--config", &path("collector.toml")]);
        // Addresses of their own, so that tests run side by side.
        let (a, b) = (std::process::id(), place());
        let file = format!(
            "[translator]\nname = \"metrics\"\nlisten = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\n\
             collector = \"http://{}\"\nsource = \"127.{}.{}.{}\"\nsource_port = 0\nlease_seconds = 6\n",
            collector.said("listen"),
            192 + (a >> 8 & 31),
            a & 255,
            1 + b % 250,
        );
        std::fs::write(path("translator.toml"), file).unwrap();
        let int = format!("udp://127.0.0.1:0?dialect={dialect}");
        let config = path("translator.toml");
        let translator =
            Daemon::start(&["__translator", "run", "--ready", "--int", &int, "--config", &config]);
        let client = Client::connect(&ClientOptions::plain(collector.said("listen"))).await.unwrap();
        let control = translator::Client::connect_lazy(translator.said("control")).unwrap();
        Bed { collector, translator, client, control, folder, reports: 0 }
    }

    /// Replays a capture of so many datagrams, and waits until all are in memory and the collector was told. `false` if
    /// there are no captures.
    pub(crate) async fn replay(&mut self, capture: &str, port: &str, datagrams: u64) -> bool {
        let Some(folder) = captures(capture) else { return false };
        let capture: PathBuf = folder.join("int").join(capture);
        let to = self.translator.ready["int"][0].as_str().unwrap().to_owned();
        let output = manager(&["replay", capture.to_str().unwrap(), "--to", &to, "--port", port]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.reports += datagrams;
        for _ in 0..600 {
            self.control.flush().await.unwrap();
            let own = self.control.statistics().await.unwrap();
            let all = self.client.statistics().await.unwrap();
            let here = |name| counter(&own, "translator/", name);
            let there = |name| counter(&all, "translator/", name);
            let executed =
                counter(&all, "nic/", "executed.write") + counter(&all, "nic/", "executed.fetch_add");
            if here("int.datagrams") == self.reports
                && here("held") == 0
                && executed == here("operations")
                && there("received") == here("received")
            {
                assert!(all.iter().any(|node| Stage::of(&node.node) == Stage::Nic));
                return true;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the reports of {} were not executed", capture.display());
    }

    /// Where both are scraped.
    pub(crate) fn addresses(&self) -> [String; 2] {
        [&self.collector, &self.translator].map(|daemon| daemon.said("metrics").to_owned())
    }

    /// What both tell, once it is of now.
    pub(crate) fn pages(&self) -> [String; 2] {
        // A page is made once a second.
        std::thread::sleep(Duration::from_millis(1100));
        self.addresses().map(|address| {
            let (status, page) = http::get(&address, "/metrics").expect("an answer");
            assert_eq!(status, 200, "{page}");
            page
        })
    }
}

/// A number that is another for each bed.
fn place() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

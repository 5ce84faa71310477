//! OTLP to a real collector: rotel (PyPI), which prints what it takes.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dta_export::config::{Config, Otlp, OtlpProtocol, Signal};
use dta_proto::telemetry::{Metric, SwitchPath, Why, list};

use crate::loopback::free_address;
use crate::recorder::{Bed, counted, end, until};
use crate::source::drop_at;
use crate::traces::{at, change, flow};

const PATIENCE: Duration = Duration::from_secs(60);

struct Rotel {
    folder: PathBuf,
    program: PathBuf,
    child: Option<Child>,
    /// Of HTTP and gRPC, by protocol.
    addresses: [SocketAddr; 2],
    lines: Arc<Mutex<Vec<String>>>,
}

impl Rotel {
    /// `None` if it is not installed, which is printed.
    fn start(folder: &FilePath) -> Option<Rotel> {
        let packages = FilePath::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("outside-readers");
        if !packages.exists() {
            println!("SKIPPED: rotel is not installed in {} (make python)", packages.display());
            return None;
        }
        let mut rotel = Rotel {
            folder: folder.to_owned(),
            program: packages.join("rotel/rotel-agent"),
            child: None,
            addresses: [free_address(), free_address()],
            lines: Arc::default(),
        };
        rotel.go_on();
        Some(rotel)
    }

    fn go_on(&mut self) {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(&self.program)
            .args(["start", "--exporter", "blackhole", "--debug-log-verbosity", "detailed"])
            .args(["--debug-log", "logs", "--debug-log", "metrics", "--debug-log", "traces"])
            .arg(format!("--otlp-http-endpoint={}", self.addresses[0]))
            .arg(format!("--otlp-grpc-endpoint={}", self.addresses[1]))
            .arg(format!("--pid-file={}", self.folder.join("pid").display()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (out, all) = (BufReader::new(child.stdout.take().unwrap()), self.lines.clone());
        std::thread::spawn(move || out.lines().for_each(|line| all.lock().unwrap().push(line.unwrap())));
        self.child = Some(child);
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Waits until this line has been printed so often.
    fn until(&self, line: &str, count: usize) {
        let begun = Instant::now();
        let printed = || self.lines.lock().unwrap().iter().filter(|shown| shown.trim() == line).count();
        while printed() < count {
            let all = self.lines.lock().unwrap().join("\n");
            assert!(begun.elapsed() < PATIENCE, "{line:?} is not there {count} times: {all}");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(printed(), count, "{line}");
    }
}

impl Drop for Rotel {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn takes_logs_metrics_and_traces(protocol: OtlpProtocol) {
    let mut bed = Bed::new(|folder| {
        let otlp = Otlp { protocol, spool: Some(folder.join("spool")), ..Otlp::default() };
        Config { otlp: Some(otlp), ..Config::default() }
    });
    let Some(mut rotel) = Rotel::start(bed.folder.path()) else { return };
    bed.config.otlp.as_mut().unwrap().url = format!("http://{}", rotel.addresses[protocol as usize]);
    // Away at first: what it misses arrives afterwards, once.
    rotel.stop();
    bed.lists.put(list::DROPS, (0..1000).map(drop_at).collect());
    bed.config.otlp.as_mut().unwrap().signals = vec![Signal::Logs];
    let exporters = bed.start(false);
    until(&exporters, "spooled", 1000).await;
    until(&exporters, "retried", 1).await;
    exporters.stop_exporters().await;
    rotel.go_on();
    let path = SwitchPath::from_switches(&[6, 5, 4]);
    let change = |n| change(&flow(1), Metric::FlowPath, Why::Moved, 3, &path, at(n));
    bed.lists.put(list::CHANGES, (0..100).map(change).collect());
    bed.config.otlp.as_mut().unwrap().traces.one_in = 1;
    for signal in Signal::ALL {
        bed.config.otlp.as_mut().unwrap().signals = vec![signal];
        bed.lists.put(list::DROPS, (1000..6000).map(drop_at).collect());
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        assert_eq!(counted(&exporters, "dropped.rejected"), 0);
        exporters.stop_exporters().await;
    }
    rotel.until("EventName: dta.drop", 6000);
    rotel.until("-> dta.reason_name: Str(traffic-manager)", 6000);
    rotel.until("Body: Str(packet dropped at switch 1: traffic-manager)", 6000);
    rotel.until("Name           : 10.0.0.1:5000->10.1.0.1:5000/udp", 100);
    rotel.until("Name           : switch 5", 100);
    rotel.until("-> Name: dta_test", 1);
    rotel.until("-> reason: Str(a b)", 1);
}

#[tokio::test]
#[ignore = "starts rotel (make python)"]
async fn a_real_collector_takes_logs_metrics_and_traces_over_http() {
    takes_logs_metrics_and_traces(OtlpProtocol::Http).await;
}

#[tokio::test]
#[ignore = "starts rotel (make python)"]
async fn a_real_collector_takes_logs_metrics_and_traces_over_grpc() {
    takes_logs_metrics_and_traces(OtlpProtocol::Grpc).await;
}

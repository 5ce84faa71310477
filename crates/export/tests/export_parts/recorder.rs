//! A server that records what it is sent, and exporters to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dta_export::alert::{AlertFeeds, AlertMessage, ExportedAlert};
use dta_export::config::Config;
use dta_export::metrics::{MetricKind, MetricsPage};
use dta_export::run::{ExportOptions, Exporters, Pages};
use dta_proto::control::{Alert, AlertTransition};
use dta_rpc::Ask;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::lists::Lists;

/// A request: its first line with the headers, and its body.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.split_once(':').is_some_and(|(n, _)| n.eq_ignore_ascii_case(name));
        self.head.lines().find(named).and_then(|line| Some(line.split_once(':')?.1.trim()))
    }
}

/// An answer: status and headers, and a body.
pub(crate) type Answer = (String, Vec<u8>);

/// A server that records its requests.
pub(crate) struct Recorder {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Recorder {
    /// Answers with each of these in turn, the last one for ever: status, `|`, body.
    pub(crate) fn start(answers: &'static [&'static str]) -> Self {
        Self::answering(|n, _| answer(answers[n.min(answers.len() - 1)]))
    }

    /// Answers what `answer` says to the request of this number, from 0, and this body.
    pub(crate) fn answering(answer: impl Fn(usize, &[u8]) -> Answer + Send + 'static) -> Self {
        Self::listening("http", answer, |stream| stream)
    }

    /// The same over TLS.
    pub(crate) fn over_tls(
        tls: Arc<ServerConfig>,
        answer: impl Fn(usize, &[u8]) -> Answer + Send + 'static,
    ) -> Self {
        let secure = move |stream| StreamOwned::new(ServerConnection::new(tls.clone()).unwrap(), stream);
        Self::listening("https", answer, secure)
    }

    fn listening<S: Read + Write>(
        scheme: &str,
        answer: impl Fn(usize, &[u8]) -> Answer + Send + 'static,
        secure: impl Fn(TcpStream) -> S + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{scheme}://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let record = asked.clone();
        std::thread::spawn(move || {
            let mut n = 0;
            for stream in listener.incoming() {
                let mut reader = BufReader::new(secure(stream.unwrap()));
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).is_err() {
                        // A client that does not trust this server.
                        break;
                    }
                    if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                        length = n.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                    head += &line;
                }
                if head.is_empty() {
                    continue;
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let (status, said) = answer(n, &body);
                n += 1;
                record.lock().unwrap().push(Asked { head, body });
                let (stream, length) = (reader.get_mut(), said.len());
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")
                    .unwrap();
                stream.write_all(&said).unwrap();
                stream.flush().unwrap();
            }
        });
        Self { url, asked }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// An answer written as status, `|`, body.
pub(crate) fn answer(text: &str) -> Answer {
    let (status, body) = text.split_once('|').unwrap();
    (status.into(), body.into())
}

/// Exporters of lists, and of the counter `dta_test_total`, which is the number of pages made.
pub(crate) struct Bed {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) lists: Lists,
    pub(crate) config: Config,
}

impl Bed {
    /// The configuration gets a folder with the file `token`.
    pub(crate) fn new(config: impl FnOnce(&std::path::Path) -> Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "very-secret\n").unwrap();
        let config = config(folder.path());
        Self { folder, lists: Lists::default(), config }
    }

    pub(crate) fn start(&self, once: bool) -> Exporters {
        self.start_with(ExportOptions { once, ..ExportOptions::default() })
    }

    /// Starts the only exporter, which takes alerts from the sender.
    pub(crate) fn start_with_alerts(&self) -> (Exporters, mpsc::Sender<ExportedAlert>) {
        let (sender, receiver) = mpsc::channel(1);
        let receiver = std::sync::Mutex::new(Some(receiver));
        let feeds: AlertFeeds = Arc::new(move |_| receiver.lock().unwrap().take().unwrap());
        (self.start_with(ExportOptions { alerts: Some(feeds), ..ExportOptions::default() }), sender)
    }

    fn start_with(&self, run: ExportOptions) -> Exporters {
        let ask: Arc<dyn Ask> = Arc::new(self.lists.clone());
        Exporters::start(&self.config, "test", &ask, &pages(), run).unwrap()
    }
}

/// The `number`th transition of a collector: an alert that fires, or is resolved if the number is even.
pub(crate) fn alert_message(number: u64) -> AlertMessage {
    let state = if number.is_multiple_of(2) { "resolved" } else { "firing" };
    let alert = Alert {
        rule: "syn-flood".into(),
        severity: "critical".into(),
        state: state.into(),
        labels: [("dst".to_owned(), "192.0.2.7".to_owned())].into(),
        fingerprint: "00000000000000ab".into(),
        value: 120_000.5,
        unit: "packets/s".into(),
        text: "120k SYN/s to 192.0.2.7".into(),
        rows: vec!["src 10.0.0.1: 1 kB, 1 packet".into()],
        ..Alert::default()
    };
    let transition = AlertTransition { number, at: 1_800_000_000_000 + number, alert: Some(alert) };
    let id = format!("edge-{}-{number}", transition.at);
    AlertMessage { id, collector: "edge".into(), url: None, transition }
}

/// Hands an alert over, and waits until it is in the spool.
pub(crate) async fn export_alert(to: &mpsc::Sender<ExportedAlert>, number: u64) {
    let (spooled, is_spooled) = oneshot::channel();
    to.send(ExportedAlert { message: alert_message(number), spooled }).await.unwrap();
    tokio::time::timeout(Duration::from_secs(60), is_spooled).await.unwrap().unwrap();
}

/// Makes pages of one counter.
pub(crate) fn pages() -> Pages {
    let made = Arc::new(std::sync::atomic::AtomicU64::new(0));
    Arc::new(move || {
        let n = made.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        Box::pin(async move {
            let mut page = MetricsPage::default();
            page.add("dta_test", MetricKind::Counter, "pages", vec![("reason".into(), "a b".into())], n);
            Ok(page)
        })
    })
}

/// A counter of the only exporter.
pub(crate) fn counted(exporters: &Exporters, name: &str) -> u64 {
    let (sink, counters) = &exporters.exporter_counters()[0];
    let name = format!("export.{sink}.{name}");
    counters.named_counters(sink).iter().find(|counter| counter.0 == name).unwrap().1
}

/// Waits until a counter of the only exporter is at least this.
pub(crate) async fn until(exporters: &Exporters, name: &str, least: u64) {
    let reached = async {
        while counted(exporters, name) < least {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let reached = tokio::time::timeout(Duration::from_secs(60), reached).await;
    reached.unwrap_or_else(|_| panic!("{name} is {} and not {least}", counted(exporters, name)));
}

/// Waits for the end, when each point made has been counted as delivered or dropped. Fails where a minute is not enough.
pub(crate) async fn end(exporters: &mut Exporters) {
    let ended = tokio::time::timeout(Duration::from_secs(60), exporters.wait_until_done()).await;
    ended.expect("what was made is delivered or dropped");
    let done = counted(exporters, "delivered") + counted(exporters, "dropped.rejected");
    assert_eq!(counted(exporters, "made") + counted(exporters, "found"), done);
}

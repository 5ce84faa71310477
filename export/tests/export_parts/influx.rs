//! Against a server that records what it is sent, as no InfluxDB 2.x is at hand; 1.x is tested on a real one
//! (`manager/tests/export.rs`).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dta_client::Ask;
use dta_export::config::{Config, Influx};
use dta_export::run::{Exporters, Run};
use dta_proto::telemetry::list;

use crate::lists::Lists;
use crate::source::drop_at;

/// A request: its first line with the headers, and its body.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    head: String,
    body: String,
}

/// A server that records its requests.
struct Recorder {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Recorder {
    /// Answers with each of these in turn, the last one for ever.
    fn start(answers: &'static [&'static str]) -> Self {
        Self::answering(|n, _| answers[n.min(answers.len() - 1)])
    }

    /// Answers what `answer` says to the request of this number, from 0, and this body: status, `|`, body.
    fn answering(answer: impl Fn(usize, &str) -> &'static str + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let record = asked.clone();
        std::thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                        length = n.trim().parse().unwrap();
                    }
                    if line.trim().is_empty() {
                        break;
                    }
                    head += &line;
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let body = String::from_utf8(body).unwrap();
                let (status, said) = answer(n, &body).split_once('|').unwrap();
                record.lock().unwrap().push(Asked { head, body });
                let length = said.len();
                write!(
                    stream,
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{said}"
                )
                .unwrap();
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

struct Bed {
    folder: tempfile::TempDir,
    lists: Lists,
    config: Config,
}

impl Bed {
    fn new(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret_file = folder.path().join("token");
        std::fs::write(&secret_file, "very-secret\n").unwrap();
        let influx = Influx {
            url: url.to_owned(),
            org: Some("my org".into()),
            bucket: Some("b".into()),
            secret_file: Some(secret_file),
            spool: Some(folder.path().join("spool")),
            ..Influx::default()
        };
        let config = Config { influx: Some(influx), ..Config::default() };
        Self { folder, lists: Lists::default(), config }
    }

    fn start(&self, once: bool) -> Exporters {
        let ask: Arc<dyn Ask> = Arc::new(self.lists.clone());
        Exporters::start(&self.config, "test", &ask, Run { once, ..Run::default() }).unwrap()
    }
}

/// A counter of the only exporter.
fn counted(exporters: &Exporters, name: &str) -> u64 {
    let (sink, counters) = &exporters.counters()[0];
    let name = format!("export.influx.{name}");
    counters.named(sink).iter().find(|counter| counter.0 == name).unwrap().1
}

/// Waits for the end, when each point made has been counted as delivered or dropped. Fails where a minute is not enough.
async fn end(exporters: &mut Exporters) {
    let ended = tokio::time::timeout(Duration::from_secs(60), exporters.ended()).await;
    ended.expect("what was made is delivered or dropped");
    let done = counted(exporters, "delivered") + counted(exporters, "dropped.rejected");
    assert_eq!(counted(exporters, "made"), done);
}

#[tokio::test]
async fn a_2x_server_gets_token_organisation_and_bucket() {
    let server = Recorder::start(&["503 Away|{\"message\":\"not now\"}", "204 No Content|"]);
    let bed = Bed::new(&server.url);
    bed.lists.put(list::DROPS, vec![drop_at(5), drop_at(5), drop_at(6)]);
    let mut exporters = bed.start(true);
    end(&mut exporters).await;
    let asked = server.asked();
    // The same again, until it is taken. No time is there twice in a series.
    assert_eq!((asked.len(), &asked[0]), (2, &asked[1]));
    assert_eq!(
        asked[0].body,
        [5, 6, 7]
            .map(|time| format!("drops,reason=71,reason_name=traffic-manager,switch=1 value=1i {time}\n"))
            .concat()
    );
    let head = &asked[0].head;
    assert!(head.starts_with("POST /api/v2/write?org=my%20org&bucket=b&precision=ns HTTP/1.1\r\n"), "{head}");
    assert!(head.to_lowercase().contains("\r\nauthorization: token very-secret\r\n"), "{head}");
    assert_eq!(
        ["made", "delivered", "spooled", "retried"].map(|name| counted(&exporters, name)),
        [3, 3, 0, 1]
    );
    assert!(!format!("{exporters:?}").contains("very-secret"));
    exporters.stop().await;
}

#[tokio::test]
async fn what_a_server_refuses_for_good_is_counted_and_stops_nothing() {
    const REFUSED: &str = "422 Unprocessable|{\"message\":\"points beyond retention policy dropped=2\"}";
    let server = Recorder::start(&[REFUSED, "204 No Content|"]);
    let bed = Bed::new(&server.url);
    bed.lists.put(list::DROPS, vec![drop_at(1), drop_at(2), drop_at(3)]);
    let exporters = bed.start(false);
    while counted(&exporters, "delivered") < 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bed.lists.put(list::DROPS, vec![drop_at(4)]);
    while counted(&exporters, "delivered") < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(
        ["made", "dropped.rejected", "spooled", "retried"].map(|name| counted(&exporters, name)),
        [4, 2, 0, 0]
    );
    exporters.stop().await;
    assert_eq!(server.asked().len(), 2);
}

#[tokio::test]
async fn what_a_server_refuses_whole_arrives_in_parts_but_for_the_lines_at_fault() {
    const POINTS: u64 = 40;
    for (refusal, most_lines, bad, dropped) in [
        ("413 Too Large|", 10, None, 0),
        ("400 Bad Request|{\"error\":\"unable to parse\"}", POINTS as usize, Some(7), 1),
        ("422 Unprocessable|{\"message\":\"no such field\"}", POINTS as usize, Some(33), 1),
    ] {
        let is_bad = move |line: &str| bad.is_some_and(|bad| line.ends_with(&format!(" {bad}")));
        let is_taken = move |body: &str| body.lines().count() <= most_lines && !body.lines().any(is_bad);
        let server =
            Recorder::answering(move |_, body| if is_taken(body) { "204 No Content|" } else { refusal });
        let bed = Bed::new(&server.url);
        bed.lists.put(list::DROPS, (1..=POINTS).map(drop_at).collect());
        let mut exporters = bed.start(true);
        end(&mut exporters).await;
        let counts = ["made", "delivered", "dropped.rejected", "spooled", "retried"];
        assert_eq!(
            counts.map(|name| counted(&exporters, name)),
            [POINTS, POINTS - dropped, dropped, 0, 0],
            "{refusal}"
        );
        exporters.stop().await;
        let asked = server.asked();
        assert_eq!(asked[0].body.lines().count() as u64, POINTS, "{refusal}: not one request");
        let taken: BTreeSet<&str> =
            asked.iter().filter(|asked| is_taken(&asked.body)).flat_map(|asked| asked.body.lines()).collect();
        let sent: BTreeSet<&str> = asked[0].body.lines().filter(|line| !is_bad(line)).collect();
        assert_eq!(taken, sent, "{refusal}");
    }
}

#[tokio::test]
async fn names_can_be_left_out() {
    let server = Recorder::start(&["204 No Content|"]);
    let mut bed = Bed::new(&server.url);
    bed.config.influx.as_mut().unwrap().names = false;
    bed.lists.put(list::DROPS, vec![drop_at(5)]);
    let mut exporters = bed.start(true);
    exporters.ended().await;
    exporters.stop().await;
    assert_eq!(server.asked()[0].body, "drops,reason=71,switch=1 value=1i 5\n");
}

#[tokio::test]
async fn a_server_that_is_away_stops_nothing_and_another_life_goes_on() {
    // Nothing listens there.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bed = Bed::new(&format!("http://{nobody}"));
    bed.lists.put(list::DROPS, vec![drop_at(1), drop_at(2)]);
    let exporters = bed.start(false);
    while counted(&exporters, "spooled") < 2 || counted(&exporters, "retried") == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    bed.lists.put(list::DROPS, vec![drop_at(3)]);
    while counted(&exporters, "spooled") < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    exporters.stop().await;
    // Nothing that only its owner may read is open to others.
    use std::os::unix::fs::PermissionsExt;
    let segment = std::fs::metadata(bed.folder.path().join("spool/1.spool")).unwrap();
    assert_eq!(segment.permissions().mode() & 0o077, 0);
    let server = Recorder::start(&["204 No Content|"]);
    bed.config.influx.as_mut().unwrap().url = server.url.clone();
    bed.lists.put(list::DROPS, vec![drop_at(3), drop_at(4)]);
    let mut exporters = bed.start(true);
    assert_eq!(counted(&exporters, "found"), 3);
    exporters.ended().await;
    exporters.stop().await;
    let lines: String = server.asked().into_iter().map(|asked| asked.body).collect();
    // The fourth event has the third's time, which another process gave.
    assert_eq!(
        lines,
        [1, 2, 3, 4, 5]
            .map(|time| format!("drops,reason=71,reason_name=traffic-manager,switch=1 value=1i {time}\n"))
            .concat()
    );
}

//! Other sites, slow readers, many connections and malformed requests: refused, bounded and counted.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use dta_proto::drop_reason::DropReason;
use dta_proto::key::Key;
use dta_proto::telemetry::{Location, TelemetryEntry, list, store};
use dta_proto::wire::dta::DtaBody;
use dta_reporter::{Config, Reporter};
use dta_rpc::collector::RemoteCollector;
use dta_rpc::transport::tls;
use dta_rpc::{Ask as _, ClientOptions, Spread, SpreadMember};
use dta_web::{Access, ServedWeb, WebCounters, WebOptions, WebPort};
use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::common::int_bed::{PATIENCE, until_room};
use crate::{WebBed, http};

/// Waits until the collector counts at least so many.
async fn until_counted(bed: &WebBed, name: &str, least: u64) {
    let begun = Instant::now();
    loop {
        let counted = bed.counted(name).await;
        if counted >= least {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{name} is {counted}, not {least}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_other_sites_are_refused_and_counted() {
    let Some(bed) = WebBed::start().await else { return };
    let status = |method: &str, headers: &[(&str, &str)]| {
        http::request(&bed.page, method, "/api/v1/stores", headers, "").map(|answer| answer.status)
    };
    assert_eq!(status("GET", &[]), Some(200));
    for headers in [
        &[("Host", "attacker.example")][..],
        &[("Origin", "http://attacker.example")],
        &[("Origin", "null")],
        &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
    ] {
        assert_eq!(status("GET", headers), Some(403), "{headers:?}");
    }
    assert_eq!(bed.counted("web.refused").await, 4);
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        assert_eq!(status(method, &[]), Some(405), "{method}");
    }
    let page = http::get(&bed.page, "/");
    let policy = page.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("access-control-allow-origin"), "");
    assert_eq!(page.header("x-content-type-options"), "nosniff");
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_and_giant_requests_end_their_connection_alone() {
    let Some(bed) = WebBed::start().await else { return };
    let giant = format!("GET /{} HTTP/1.1\r\nHost: {}\r\n\r\n", "a".repeat(1 << 20), bed.page);
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(1000));
    let requests: [&[u8]; 5] = [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\0\0\0\0\r\n\r\n",
        giant.as_bytes(),
        many.as_bytes(),
    ];
    for request in requests {
        let mut stream = TcpStream::connect(&bed.page).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be cut off in the middle.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    until_counted(&bed, "web.malformed", 3).await;
    let body = http::request(&bed.page, "GET", "/api/v1/stores", &[], &"x".repeat(1 << 20));
    assert!(body.is_none_or(|answer| answer.status == 200));
    assert_eq!(http::get(&bed.page, "/api/v1/stores").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_and_slow_readers_lock_nobody_out() {
    let Some(bed) = WebBed::start().await else { return };
    let before = bed.int.collector.as_ref().unwrap().most_memory();
    // Many more than there are places; two of three say something, and none reads.
    let mut held = Vec::new();
    for number in 0..10_000 {
        let Ok(mut stream) = TcpStream::connect(&bed.page) else { continue };
        let _ = match number % 3 {
            0 => Ok(()),
            1 => stream.write_all(b"GET / HTTP/1.1\r\nHost: 127."),
            _ => write!(stream, "GET /api/v1/events/live HTTP/1.1\r\nHost: {}\r\n\r\n", bed.page),
        };
        held.push(stream);
    }
    assert!(held.len() > 600, "only {} connections were made", held.len());
    // 128 have places, and a queue of the system's as many again.
    until_counted(&bed, "web.displaced", held.len() as u64 / 2).await;
    let files = bed.int.collector.as_ref().unwrap().open_files();
    assert!(files < 1024, "{files} files are open");
    assert_eq!(http::get(&bed.page, "/api/v1/stores").status, 200);
    assert_eq!(http::get(&bed.page, "/").status, 200);
    // One that asks without end and never reads.
    let mut deaf = TcpStream::connect(&bed.page).unwrap();
    deaf.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let request = format!("GET /api/openapi.json HTTP/1.1\r\nHost: {}\r\n\r\n", bed.page);
    for _ in 0..100_000 {
        if deaf.write_all(request.as_bytes()).is_err() {
            break;
        }
    }
    until_counted(&bed, "web.unread", 1).await;
    let grown = bed.int.collector.as_ref().unwrap().most_memory() - before;
    assert!(grown < 64 << 20, "{grown} bytes more");
    // gRPC did not notice.
    assert_eq!(bed.counted("connections.refused").await, 0);
}

/// Asks for what does not end; the status, and what comes after the answer's head.
fn open_live(page: &str, path: &str) -> (u16, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(page).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // What the system holds for a slow reader is little.
    set_socket_recv_buffer_size(&stream, 4096).unwrap();
    write!(stream, "GET /api/v1/{path} HTTP/1.1\r\nHost: {page}\r\n\r\n").unwrap();
    let mut reader = BufReader::with_capacity(1024, stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    (line.split(' ').nth(1).unwrap().parse().unwrap(), reader)
}

#[tokio::test(flavor = "multi_thread")]
async fn live_views_have_places_which_are_free_again_once_one_is_closed() {
    let Some(bed) = WebBed::start().await else { return };
    let mut open: Vec<_> = (0..32).map(|_| open_live(&bed.page, "waterfall/live")).collect();
    assert!(open.iter().all(|(status, _)| *status == 200));
    let refused = http::get(&bed.page, "/api/v1/events/live");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "2"));
    assert!(refused.json()["detail"].as_str().unwrap().contains("32 live views"), "{}", refused.body);
    assert_eq!(http::get(&bed.page, "/api/v1/stores").status, 200);
    open.pop();
    let begun = Instant::now();
    while open_live(&bed.page, "events/live").0 != 200 {
        assert!(begun.elapsed() < PATIENCE, "the place of a view that was closed is still taken");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_view_that_reads_too_slowly_learns_how_many_events_it_missed() {
    let Some(bed) = WebBed::start().await else { return };
    let (status, mut reader) = open_live(&bed.page, "events/live");
    assert_eq!(status, 200);
    reader.get_ref().set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let stores = bed.int.client.fetch_stores().await.unwrap();
    let mut stores = stores.iter().filter_map(|info| info.store.as_ref());
    let events = stores.find(|found| found.name == store::EVENTS).unwrap().id.try_into().unwrap();
    let reports: SocketAddrV4 = bed.int.translator.said("listen").parse().unwrap();
    let mut reporter = Reporter::open(Config::new(reports)).unwrap();
    let dropped = |time| TelemetryEntry::Drop {
        time,
        key: Key::default(),
        place: Location { switch: Some(6), port: Some(1), queue: None },
        ingress_port: Some(2),
        reason: DropReason::from_int(26),
    };
    let begun = Instant::now();
    let mut time = 0;
    let (mut seen, mut part) = (Vec::new(), vec![0; 16 << 10]);
    while bed.counted("web.skipped").await == 0 {
        assert!(begun.elapsed() < PATIENCE, "no event was skipped: {time} were sent");
        for _ in 0..2000 {
            time += 1;
            let entry = dropped(time).to_bytes();
            reporter.report(events, DtaBody::Append { list: list::DROPS, value: &entry }).unwrap();
            if time % 64 == 0 {
                reporter.flush().unwrap();
                until_room(reports);
            }
        }
        reporter.flush().unwrap();
        // Some of what may be there: whoever reads nothing is cut off.
        if let Ok(len) = reader.read(&mut part) {
            seen.extend_from_slice(&part[..len]);
        }
    }
    // The view may have learnt it while it read some.
    reader.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
    let counted = Instant::now();
    let skipped: u64 = loop {
        let text = String::from_utf8_lossy(&seen);
        let behind =
            text.split_once("event: skipped\ndata: ").and_then(|(_, behind)| behind.split_once('\n'));
        if let Some((number, _)) = behind {
            break number.parse().unwrap();
        }
        assert!(counted.elapsed() < PATIENCE, "the view did not learn it");
        let len = reader.read(&mut part).unwrap();
        assert!(len > 0, "the view has ended");
        seen.extend_from_slice(&part[..len]);
    };
    assert!(skipped > 0 && skipped <= bed.counted("web.skipped").await, "{skipped}");
}

/// A collector that takes connections and never answers, and what its page counts.
struct SilentCollector {
    listener: TcpListener,
    counters: Arc<WebCounters>,
}

impl SilentCollector {
    fn new() -> SilentCollector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        SilentCollector { listener, counters: Arc::default() }
    }

    async fn serve_page(&self, tls: Option<Arc<tls::RustlsServerConfig>>) -> ServedWeb {
        let address = self.listener.local_addr().unwrap().to_string();
        let ask = RemoteCollector::connect_lazy(&ClientOptions::without_tls(&address)).unwrap();
        let options = WebOptions {
            ask: Spread::new(vec![SpreadMember { address, ask: Arc::new(ask) }]),
            names: Arc::default(),
            title: "silent".into(),
            version: "0",
            access: Access::default(),
            counters: self.counters.clone(),
            own_notices: Arc::new(Vec::new),
        };
        let port = WebPort::open(&"127.0.0.1:0".parse().unwrap()).await.unwrap().unwrap();
        port.serve(options, tls)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_handshakes_that_do_not_go_on_lock_nobody_out_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate =
        rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let [cert, key_file] = ["page.crt", "page.key"].map(|name| folder.path().join(name));
    std::fs::write(&cert, certificate.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let files = tls::ServerFiles { cert: &cert, key: &key_file, client_ca: &cert };
    let silent = SilentCollector::new();
    let served = silent.serve_page(Some(tls::load_page_tls(&files, false, SystemTime::now()).unwrap())).await;
    // Twice as many as there are places: some say nothing, others the beginning of a handshake.
    let held: Vec<TcpStream> = (0..256)
        .map(|number| {
            let mut stream = TcpStream::connect(served.address).unwrap();
            stream.write_all(if number % 2 == 0 { b"" } else { b"\x16\x03\x01\x02\x00\x01\x00" }).unwrap();
            stream
        })
        .collect();
    let url = served.page_url();
    let answer = tokio::process::Command::new("curl")
        .args(["-sk", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code}", &url])
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout), "200", "{url}");
    // Those for which there was a place are closed after the time that a handshake has.
    for mut stream in held {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ended = stream.read(&mut [0; 64]);
        assert!(
            ended.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |len| *len == 0),
            "{ended:?}"
        );
    }
    let displaced = silent.counters.named_counters().into_iter().find(|(name, _)| name == "web.displaced");
    assert!(displaced.as_ref().is_some_and(|(_, count)| *count >= 128), "{displaced:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_too_long_for_a_turn_is_sent_away() {
    let silent = SilentCollector::new();
    let served = silent.serve_page(None).await;
    let page = served.address.to_string();
    // Four have turns.
    let (sender, mut answers) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..5 {
        let (page, sender) = (page.clone(), sender.clone());
        std::thread::spawn(move || sender.send(http::get(&page, "/api/v1/stores")));
    }
    let first = answers.recv().await.unwrap();
    assert_eq!((first.status, first.header("retry-after")), (503, "2"));
    assert!(
        first.json()["detail"].as_str().unwrap().contains("too many requests are being answered"),
        "{}",
        first.body
    );
    assert!(silent.counters.named_counters().contains(&("web.busy".to_owned(), 1)));
    // What needs no turn is there.
    assert_eq!(http::get(&page, "/").status, 200);
}

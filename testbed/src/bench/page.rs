//! Report to memory with and without an open page, in turns. A page sends requests only now and then, so whole turns
//! count here instead of their best stretches, and a turn is long enough for all of its requests.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};

use super::harness::{Rates, Scale};
use super::loopback::{WINDOW_OF_RUNS, Work, bench_topology, counter_file};
use crate::daemons::{Daemons, Plan};
use crate::folder::Folder;

/// Length of a turn, in turns of other benchmarks: ten seconds at full scale.
const TURN: u32 = 25;
/// What the overview requests, and at which intervals.
const REQUESTS: [(&str, Duration); 4] = [
    ("health", Duration::from_secs(10)),
    ("stores", Duration::from_secs(10)),
    ("sessions", Duration::from_secs(3)),
    ("sources", Duration::from_secs(10)),
];
/// How often a page checks whether to close.
const PAUSE: Duration = Duration::from_millis(50);
/// How long it waits for the first live data.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(super) fn bench_with_page(scale: &Scale) -> anyhow::Result<Rates> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folder = Folder::new()?;
    let topology = bench_topology(scale)?;
    let plan = Plan { page: true, ..Plan::with_soft_nic(&topology, folder.folder_path()) };
    let daemons = runtime.block_on(Daemons::start_all(&plan))?;
    let url = daemons.page_url().context("the collector has no page")?;
    let host = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut work = Work::with_runs(daemons.reports, Ipv4Addr::LOCALHOST, counter_file(&daemons)?)?;
    let turn = scale.turn * TURN;
    let mut best = Rates { work: 0.0, floor: 0.0 };
    for _ in 0..scale.turns.div_ceil(2) {
        best.floor = best.floor.max(work.mean_arrival_rate(turn, WINDOW_OF_RUNS)?);
        let page = OpenPage::open(&host);
        best.work = best.work.max(work.mean_arrival_rate(turn, WINDOW_OF_RUNS)?);
        page.close()?;
    }
    Ok(best)
}

/// What a collector sees of a browser that shows the overview.
struct OpenPage {
    closed: Arc<AtomicBool>,
    readers: [JoinHandle<anyhow::Result<()>>; 2],
}

impl OpenPage {
    /// Opens it at a host and port.
    fn open(host: &str) -> OpenPage {
        let closed = Arc::new(AtomicBool::new(false));
        let [follow, ask] = [(); 2].map(|()| (host.to_owned(), closed.clone()));
        let readers = [
            std::thread::spawn(move || follow_waterfall(&follow.0, &follow.1)),
            std::thread::spawn(move || ask_again(&ask.0, &ask.1)),
        ];
        OpenPage { closed, readers }
    }

    fn close(self) -> anyhow::Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        self.readers.into_iter().try_for_each(|reader| {
            reader.join().map_err(|_| anyhow!("what reads the page panicked"))?.context("the page")
        })
    }
}

fn send_request(host: &str, path: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(host)?;
    write!(stream, "GET /api/v1/{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    Ok(stream)
}

fn follow_waterfall(host: &str, closed: &AtomicBool) -> anyhow::Result<()> {
    let mut stream = send_request(host, "waterfall/live")?;
    stream.set_read_timeout(Some(PAUSE))?;
    let (mut part, mut bytes) = ([0; 16 << 10], 0);
    let begun = Instant::now();
    // A busy collector may answer only after a short turn's end.
    while !closed.load(Ordering::Relaxed) || (bytes == 0 && begun.elapsed() < LONGEST_WAIT) {
        match stream.read(&mut part) {
            Ok(0) => break,
            Ok(read) => bytes += read,
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    ensure!(bytes > 0 && closed.load(Ordering::Relaxed), "the live waterfall ended after {bytes} bytes");
    Ok(())
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

fn ask_again(host: &str, closed: &AtomicBool) -> anyhow::Result<()> {
    let mut due = REQUESTS.map(|(path, every)| (path, every, Instant::now()));
    while !closed.load(Ordering::Relaxed) {
        for (path, every, at) in &mut due {
            if *at <= Instant::now() {
                let mut answer = String::new();
                send_request(host, path)?.read_to_string(&mut answer)?;
                ensure!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
                *at += *every;
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

//! Reporter to translator over UDP loopback: the reporter's library on one side, the translator's link and engine on
//! the other, which has no store for the reports: it counts and drops them. The floor is datagrams of the same
//! length, received by the same system calls and discarded.
//!
//! In both, no more datagrams are in flight than the socket holds, so that no work is wasted.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use dta_dataplane::{Engine, EngineLimits, EngineOutput};
use dta_link::bare::{BareReceiver, BareSender};
use dta_link::udp::RUN_MAX;
use dta_link::{Link, RunUse, UdpConfig, UdpLink};
use dta_proto::batch::PacketBatch;
use dta_proto::counter::Reason;
use dta_proto::key::Key;
use dta_proto::random::SplitMix64;
use dta_proto::wire::dta::DtaBody;
use dta_reporter::{Config, Reporter};

use super::harness::{Rates, Scale};

/// Bytes of value of a report, and of the whole report.
const VALUE: usize = 12;
const REPORT: u16 = 12 + 16 + VALUE as u16;
/// Most datagrams in flight, in runs and one by one: what a socket holds under the kernel's usual limit.
pub(super) const WINDOW: [u64; 2] = [4096, 256];
/// How long a receiver waits before it checks whether to end.
pub(super) const WAIT: Duration = Duration::from_millis(20);

pub(super) fn bench_in_runs(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, true)
}

/// With a message for each datagram.
pub(super) fn bench_single_messages(scale: &Scale) -> anyhow::Result<Rates> {
    run(scale, false)
}

fn run(scale: &Scale, runs: bool) -> anyhow::Result<Rates> {
    let window = if runs { WINDOW[0] } else { WINDOW[1] };
    measure_pipelines(scale, window, work_pipeline(runs)?, floor_pipeline(runs)?)
}

/// Measures both in turns, with at most `window` datagrams in flight.
pub(super) fn measure_pipelines(
    scale: &Scale,
    window: u64,
    mut work: ReportPipeline,
    mut floor: ReportPipeline,
) -> anyhow::Result<Rates> {
    let mut best = Rates { work: 0.0, floor: 0.0 };
    for _ in 0..scale.turns {
        best.floor = best.floor.max(floor.best_arrival_rate(scale.turn, window)?);
        best.work = best.work.max(work.best_arrival_rate(scale.turn, window)?);
    }
    floor.stop_receiver()?;
    work.stop_receiver()?;
    Ok(best)
}

/// A sender, and a thread that receives.
pub(super) struct ReportPipeline {
    send: Box<dyn FnMut() -> anyhow::Result<u64>>,
    arrived: Arc<AtomicU64>,
    sent: u64,
    stop: Arc<AtomicBool>,
    receiver: JoinHandle<anyhow::Result<()>>,
}

impl ReportPipeline {
    /// `receive` returns how many datagrams came in one call to `receiver`; `end` is called after the last one, with
    /// the total.
    pub(super) fn new<R: Send + 'static>(
        send: impl FnMut() -> anyhow::Result<u64> + 'static,
        mut receiver: R,
        mut receive: impl FnMut(&mut R) -> anyhow::Result<u64> + Send + 'static,
        end: impl FnOnce(R, u64) -> anyhow::Result<()> + Send + 'static,
    ) -> ReportPipeline {
        let (arrived, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, is_stopped) = (Arc::clone(&arrived), Arc::clone(&stop));
        let receiver = std::thread::spawn(move || {
            let mut all = 0;
            while !is_stopped.load(Ordering::Relaxed) {
                all += receive(&mut receiver)?;
                count.store(all, Ordering::Release);
            }
            end(receiver, all)
        });
        ReportPipeline { send: Box::new(send), arrived, sent: 0, stop, receiver }
    }

    /// To a receiver that discards everything.
    pub(super) fn with_bare_receiver(
        send: impl FnMut() -> anyhow::Result<u64> + 'static,
        receiver: BareReceiver,
    ) -> ReportPipeline {
        ReportPipeline::new(send, receiver, |receiver| Ok(receiver.recv(WAIT)? as u64), |_, _| Ok(()))
    }

    /// Sends for `length`, and returns the best rate of arrivals over a tenth of it.
    pub(super) fn best_arrival_rate(&mut self, length: Duration, window: u64) -> anyhow::Result<f64> {
        let (start, mut best) = (Instant::now(), 0f64);
        let mut stretch = (Instant::now(), self.sent);
        while start.elapsed() < length {
            let here = self.wait_for_arrivals(window - RUN_MAX as u64)?;
            while self.sent < here + window {
                self.sent += (self.send)()?;
            }
            let took = stretch.0.elapsed();
            if took > length / 10 {
                best = best.max((here - stretch.1.min(here)) as f64 / took.as_secs_f64());
                stretch = (Instant::now(), here);
            }
        }
        self.wait_for_arrivals(0)?;
        Ok(best)
    }

    /// Waits until at most `left` datagrams are in flight; returns how many have arrived.
    fn wait_for_arrivals(&self, left: u64) -> anyhow::Result<u64> {
        let start = Instant::now();
        loop {
            let here = self.arrived.load(Ordering::Acquire);
            if self.sent <= here + left {
                return Ok(here);
            }
            anyhow::ensure!(!self.receiver.is_finished(), "the receiver has ended");
            anyhow::ensure!(
                start.elapsed() < Duration::from_secs(60),
                "{} datagrams of {} did not arrive",
                self.sent - here,
                self.sent
            );
            std::thread::yield_now();
        }
    }

    pub(super) fn stop_receiver(self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.receiver.join().map_err(|_| anyhow::anyhow!("the receiver panicked"))?
    }
}

fn work_pipeline(runs: bool) -> anyhow::Result<ReportPipeline> {
    let here = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
    let asked = if runs { RunUse::BOTH } else { RunUse::NONE };
    let mut link = UdpLink::open(&UdpConfig { runs: asked, ..UdpConfig::for_reports(here.into(), false) })?;
    anyhow::ensure!(
        link.run_use() == asked,
        "not supported by this kernel: runs of datagrams are {}",
        link.run_use()
    );
    let config = Config { reporter: 1, batch: RUN_MAX, backup: 0, runs, ..Config::new(link.local_addr()) };
    let mut reporter = Reporter::open(config.bind(here))?;
    let mut random = SplitMix64(3);
    let like = DtaBody::KeyWrite { redundancy: 0, key: Key([0; 16]), value: &[7; VALUE] };
    let send = move || {
        reporter.report_many(1, like, RUN_MAX, |_, fields| {
            fields.key[..8].copy_from_slice(&random.next_u64().to_be_bytes());
        })?;
        reporter.flush()?;
        let unsent = reporter.counters().link.unsent_packets();
        anyhow::ensure!(unsent == 0, "{unsent} reports were not sent");
        Ok(RUN_MAX as u64)
    };
    let mut batch = PacketBatch::with_packet_capacity(128, 2032);
    let (engine, mut out) = (Engine::new(EngineLimits::default()), EngineOutput::default());
    let start = Instant::now();
    let receive = move |engine: &mut Engine| {
        let received = link.recv(&mut batch, Some(WAIT))? as u64;
        engine.ingest_packets(start.elapsed().as_nanos() as u64, batch.iter(), &mut out);
        out.clear();
        Ok(received)
    };
    let end = |engine: Engine, all| {
        let counters = engine.engine_counters();
        let dropped = counters.dropped_reports(Reason::UnknownStore);
        anyhow::ensure!(
            (counters.received, dropped) == (all, all),
            "{all} reports came, the translator counts {} and dropped {dropped}",
            counters.received
        );
        Ok(())
    };
    Ok(ReportPipeline::new(send, engine, receive, end))
}

fn floor_pipeline(runs: bool) -> anyhow::Result<ReportPipeline> {
    let receiver = BareReceiver::open(runs)?;
    let (run, messages) = if runs { (RUN_MAX, 1) } else { (1, RUN_MAX) };
    let mut sender = BareSender::open(receiver.local_addr(), REPORT, run, messages)?;
    let send = move || Ok(sender.send().context("the floor")? as u64);
    Ok(ReportPipeline::with_bare_receiver(send, receiver))
}

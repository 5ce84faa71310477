//! Reports that change everything, as datagrams over UDP loopback: the translator's INT side receives them, and a
//! ring in shared memory takes their frames to a software NIC in another thread, which executes them. The floor is
//! the same datagrams, received by the same system calls and discarded.
//!
//! No more datagrams are in flight than the socket holds.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use crate::programmed::programmed;
use anyhow::{Context as _, ensure};
use dta_dataplane::{Engine, EngineOutput};
use dta_link::bare::BareReceiver;
use dta_link::shared_ring::join_ring;
use dta_link::{IntakeOpener, Link, UdpConfig, UdpLink};
use dta_memory::nic::soft::{SoftNic, SoftNicConfig};
use dta_memory::nic::{Endpoint, Nic as _};
use dta_memory::region::RegionOptions;
use dta_memory::store::Store;
use dta_proto::batch::PacketBatch;
use dta_proto::counter::translator as names;
use dta_telemetry::int::IntSettings;
use dta_translator::config::{FlowTable, IntListener, IntStores};
use dta_translator::packets::{IntSide, RoceLink};

use super::super::harness::{Rates, Scale};
use super::super::reports::{ReportPipeline, WAIT, WINDOW, measure_pipelines};
use super::Reports;
use super::traffic::IntTraffic;
use super::world::{engine_of, queue_pairs_between, store_specs};

/// How long to wait for the last frames.
const LIMIT: Duration = Duration::from_secs(30);
const HERE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);

pub(super) fn run(of: &Reports, scale: &Scale) -> anyhow::Result<Rates> {
    let (mut work, floor) = (work_pipeline(of)?, floor_pipeline(of)?);
    // New values are reported before the clock starts.
    work.best_arrival_rate(scale.turn, WINDOW[1])?;
    measure_pipelines(scale, WINDOW[1], work, floor)
}

/// Sends reports, one batch per call.
fn open_report_sender(
    of: &Reports,
    to: SocketAddrV4,
) -> anyhow::Result<impl FnMut() -> anyhow::Result<u64> + 'static> {
    let mut link = UdpLink::open(&UdpConfig::for_roce_frames(HERE.into()))?;
    let mut traffic = IntTraffic::new(of.flows, of.hops, true).with_endpoints(link.local_addr(), to);
    let mut next = 0;
    Ok(move || {
        if next == 0 {
            traffic.make_ready();
        }
        let ready = traffic.prepared_batches();
        let sent = link.send(&mut ready[next])?;
        next = (next + 1) % ready.len();
        Ok(sent as u64)
    })
}

fn floor_pipeline(of: &Reports) -> anyhow::Result<ReportPipeline> {
    let receiver = BareReceiver::open(false)?;
    Ok(ReportPipeline::with_bare_receiver(open_report_sender(of, receiver.local_addr())?, receiver))
}

fn work_pipeline(of: &Reports) -> anyhow::Result<ReportPipeline> {
    let translator = LoopbackTranslator::new(of)?;
    let send = open_report_sender(of, translator.int.addresses().first().context("no listener")?.parse()?)?;
    Ok(ReportPipeline::new(
        send,
        translator,
        LoopbackTranslator::poll_datagrams,
        LoopbackTranslator::finish_and_check,
    ))
}

/// What a translator's thread has, except for DTA reports and commands; and the NIC with its memory.
struct LoopbackTranslator {
    int: IntSide,
    engine: Engine,
    roce: RoceLink,
    out: EngineOutput,
    answers: PacketBatch,
    start: Instant,
    nic: SoftNic,
    _stores: Vec<Store>,
}

impl LoopbackTranslator {
    fn new(of: &Reports) -> anyhow::Result<LoopbackTranslator> {
        let link = UdpLink::open(&UdpConfig::for_roce_frames(HERE.into()))?;
        let requester = link.local_addr();
        let nic = SoftNic::with_udp(SoftNicConfig { ring: true, ..SoftNicConfig::new(HERE) })?;
        let at = SocketAddrV4::new(*HERE.ip(), nic.describe_device().endpoint.port);
        let (stores, program) = programmed(
            &store_specs(of.flows, of.flows * (1 + of.hops)),
            RegionOptions::default(),
            &queue_pairs_between([requester, at]),
            |region, access| nic.register_region(region, access),
            |request| nic.create_queue_pair(request),
        )?;
        let mut roce = RoceLink::from_udp_link(link);
        let peer = Endpoint { port: requester.port(), ..Endpoint::new((*requester.ip()).into()) };
        roce.add_ring(join_ring(&nic.offer_ring(&peer).context("the NIC has no ring")?, at)?);
        let listener = IntListener {
            listen: SocketAddr::from(HERE).into(),
            settings: IntSettings::default(),
            drops_unchanged: false,
        };
        let (names, flows) = (IntStores::default(), FlowTable::default());
        let (rules, mut interfaces) = (of.telemetry_rules(), IntakeOpener::default());
        let mut int = IntSide::open_for_workers(&[listener], &names, &rules, &flows, 1, &mut interfaces)?;
        let mut int = int.pop().context("there is no listener")?;
        int.resolve_stores(&program);
        Ok(LoopbackTranslator {
            int,
            engine: engine_of(&program)?,
            roce,
            out: EngineOutput::default(),
            answers: PacketBatch::with_packet_capacity(128, 2032),
            start: Instant::now(),
            nic,
            _stores: stores,
        })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Receives datagrams and sends what they become; waits if there are none. Returns how many came.
    fn poll_datagrams(&mut self) -> anyhow::Result<u64> {
        let now = self.now();
        let received = self.int.receive_datagrams(now, true, &mut self.engine, None, &mut self.out)?;
        self.int.write_due_counts(now, self.engine.queue_headroom(), &mut self.engine, &mut self.out);
        let answers = self.exchange_frames()?;
        if received + answers == 0 {
            let sockets: Vec<_> = self.int.sockets().collect();
            self.roce.wait_for_answers(&sockets, WAIT)?;
        }
        Ok(received as u64)
    }

    /// Receives answers, and sends all frames. Returns the number of answers.
    fn exchange_frames(&mut self) -> anyhow::Result<usize> {
        let answers = self.roce.recv(&mut self.answers, Some(Duration::ZERO))?;
        let now = self.now();
        self.engine.handle_answers(now, self.answers.iter(), &mut self.out);
        self.engine.run_timers(now, &mut self.out);
        for batch in self.out.frames.batches_mut() {
            self.roce.send(batch)?;
        }
        self.out.clear();
        Ok(answers)
    }

    /// Checks that everything received is in memory.
    fn finish_and_check(mut self, all: u64) -> anyhow::Result<()> {
        let named = self.int.named_counters();
        let of = |name: &str| named.iter().find(|(other, _)| other == name).map_or(0, |(_, count)| *count);
        let [taken, changed, events] = [&names::INT_DATAGRAMS, &names::INT_CHANGED, &names::INT_EVENTS]
            .map(|name| of(&name.format_name(&[])));
        ensure!(
            (taken, changed) == (all, all) && events >= 10 * all,
            "{all} reports came, {taken} were taken, {changed} of them changed something, {events} events"
        );
        self.int.start_flush(None);
        let limit = Instant::now() + LIMIT;
        loop {
            let now = self.now();
            self.int.write_due_counts(now, self.engine.queue_headroom(), &mut self.engine, &mut self.out);
            self.engine.flush_held_reports(now, &mut self.out);
            self.exchange_frames()?;
            let pairs = self.engine.queue_pairs();
            let held: usize = pairs.iter().map(|pair| pair.outstanding as usize + pair.waiting).sum();
            // What RC sent repeatedly was executed once.
            let operations: u64 = pairs.iter().map(|pair| pair.counters.sent).sum();
            let (sent, through) = (self.roce.link_counters().sent, self.roce.ring_counters().sent);
            ensure!(sent == through, "{through} of {sent} frames went through the ring");
            let counters = self.nic.named_counters();
            let executed = counters.iter().filter(|(name, _)| name.starts_with("executed."));
            let executed: u64 = executed.map(|(_, count)| count).sum();
            if held == 0 && executed == operations && !self.int.is_flushing() {
                return Ok(());
            }
            ensure!(Instant::now() < limit, "the NIC has executed {executed} of {operations} operations");
            std::thread::yield_now();
        }
    }
}

//! What a translator's operations cost if an RDMA device sends them, compared with frames by raw sockets.
//!
//! One thread has the translator's engine and link, and makes operations of reports. Soft-RoCE executes them at the
//! other end of the testbed's veth pair, and at the near end it sends them, or a raw socket does. At most a few bursts
//! are in flight. CPU time is that of the machine, in two parts (`/proc/stat`): that of tasks is the translator's with
//! its system calls, and that of softirqs is soft-RoCE's, at both ends, and the path's between them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddrV4};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use dta_dataplane::{Engine, EngineOutput};
use dta_link::{Link, SocketKind, Wire};
use dta_memory::nic::verbs::{self, GidWish, VerbsOptions};
use dta_memory::nic::{Nic, ROCE_PORT, Transport};
use dta_memory::region::{Region, RegionOptions};
use dta_proto::batch::PacketBatch;
use dta_proto::key::Key;
use dta_proto::program::{DataPlaneEntry, Program, diff_programs};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::wire::dta::DtaBody;
use dta_proto::wire::frame::Received;
use dta_translator::config::TranslatorConfig;
use dta_translator::packets::RoceLink;

use super::case::BURST;
use super::cpu::Moment;
use super::turn::Measured;
use crate::ground::{FrameIp, FrameSender, NicKind, RxeGround, run_command};
use crate::programmed::{Pairs, programmed};

/// Most bursts in flight, as for the other figures.
const AHEAD: usize = 4;
/// Operations of a stretch: the fastest of a turn counts.
const STRETCH: u64 = 16 * BURST;
const SLOTS: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// Reports that become one operation each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostingCase {
    pub name: &'static str,
    pub what: &'static str,
    writes: Transport,
    is_increment: bool,
}

const fn posting_case(
    name: &'static str,
    what: &'static str,
    writes: Transport,
    is_increment: bool,
) -> PostingCase {
    PostingCase { name, what, writes, is_increment }
}

pub const POSTING_CASES: [PostingCase; 3] = [
    posting_case("uc-report", "key-writes on UC, posted and as frames", Transport::Uc, false),
    posting_case("rc-report", "key-writes on RC, posted and as frames", Transport::Rc, false),
    posting_case("rc-increment", "increments, posted and as frames", Transport::Uc, true),
];

/// The cost of an operation: of the whole machine, and of tasks alone.
#[derive(Clone, Copy)]
pub(super) struct OperationCost {
    pub(super) all: Measured,
    pub(super) tasks: Measured,
}

impl OperationCost {
    pub(super) const MAX: OperationCost = OperationCost { all: Measured::MAX, tasks: Measured::MAX };

    pub(super) fn min_with(self, other: OperationCost) -> OperationCost {
        OperationCost { all: self.all.min_with(other.all), tasks: self.tasks.min_with(other.tasks) }
    }
}

/// Measures a case with this sender.
pub(super) fn measure(
    case: &PostingCase,
    sender: FrameSender,
    reports: u64,
) -> anyhow::Result<OperationCost> {
    let ground = RxeGround::set_up(NicKind::Rxe, sender, FrameIp::V4, 0.0)?;
    let mut translator = PostingTranslator::open(case, &ground)?;
    // Queue pairs, pages and caches are in use before anything is measured.
    translator.run(case, 0..STRETCH)?;
    let (start, mut best) = (Moment::now()?, Duration::MAX);
    for stretch in 1..=reports / STRETCH {
        let begun = Instant::now();
        translator.run(case, stretch * STRETCH..(stretch + 1) * STRETCH)?;
        best = best.min(begun.elapsed());
    }
    let cpu = start.cpu_time_until(&Moment::now()?);
    translator.check_counts(STRETCH + reports / STRETCH * STRETCH)?;
    let took = best.as_nanos() as f64 / STRETCH as f64;
    let measured =
        |busy: Duration| Measured { took, busy: took * busy.as_secs_f64() / cpu.took.as_secs_f64() };
    Ok(OperationCost { all: measured(cpu.busy), tasks: measured(cpu.busy.saturating_sub(cpu.interrupts)) })
}

/// A translator's engine and link, and the store to which it writes.
struct PostingTranslator {
    // Dropped first, because they use the device.
    roce: RoceLink,
    nic: Arc<dyn Nic>,
    engine: Engine,
    out: EngineOutput,
    answers: PacketBatch,
    start: Instant,
    region: Arc<Region>,
    address: u64,
}

impl PostingTranslator {
    fn open(case: &PostingCase, ground: &RxeGround) -> anyhow::Result<PostingTranslator> {
        let mac = std::fs::read_to_string(format!("/sys/class/net/{}/address", ground.link))?;
        let (ip, near) = (ground.translator, ground.near);
        run_command("ip", &format!("neigh replace {ip} lladdr {} nud permanent dev {near}", mac.trim()))?;
        let nic = verbs::open(&VerbsOptions {
            device: ground.device.to_owned(),
            gid: GidWish { address: Some(ground.collector), index: None },
            ..VerbsOptions::default()
        })?;
        let mut config = TranslatorConfig { source: ground.translator, ..TranslatorConfig::default() };
        match &ground.sender {
            Some(sender) => config.device = Some(sender.device.to_owned()),
            None => config.link = Some(Wire { kind: SocketKind::Packet, interface: ground.link.to_owned() }),
        }
        let (mut roce, _) = RoceLink::open(&config)?;
        let source = roce.device_source(0, case.writes)?;
        let at = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => Ok(SocketAddrV4::new(ip, ROCE_PORT)),
            IpAddr::V6(_) => Err(anyhow!("{ip} is not an IPv4 address")),
        };
        let pairs = Pairs {
            translator: at(ground.translator)?,
            nic: at(ground.collector)?,
            writes: case.writes,
            start_psn: 0,
            receives: 0,
            local_qpns: source.map_or(config.queue_pairs, |source| source.queue_pairs),
        };
        let (stores, program) = programmed(
            &[case.store()],
            RegionOptions::default(),
            &pairs,
            |region, access| nic.register_region(region, access),
            |request| nic.create_queue_pair(request),
        )?;
        let mut engine = Engine::new(config.engine_limits(false));
        let mut out = EngineOutput::default();
        let changes = diff_programs(&Program::default(), &program);
        roce.connect_changed(&changes, &mut engine, &mut out)?;
        engine.apply_changes(0, &changes, &mut out)?;
        roce.learn_destinations(&changes);
        let mut answers = PacketBatch::with_packet_capacity(128, 2032);
        while !roce.resolve_destinations()? {
            roce.recv(&mut answers, Some(Duration::from_millis(1)))?;
        }
        let store = program.entries().find_map(|entry| match entry {
            DataPlaneEntry::Store(store) => Some(store.address),
            _ => None,
        });
        let region = Arc::clone(&stores.first().context("no store")?.region);
        for page in 0..region.len() / 4096 {
            region.store_u64(page * 4096, 0)?;
        }
        let (start, address) = (Instant::now(), store.context("no store")?);
        Ok(PostingTranslator { roce, nic, engine, out, answers, start, region, address })
    }

    /// Makes operations of reports with these numbers, until all are in memory.
    fn run(&mut self, case: &PostingCase, reports: Range<u64>) -> anyhow::Result<()> {
        let mut in_flight = VecDeque::new();
        for first in reports.step_by(BURST as usize) {
            let now = self.start.elapsed().as_nanos() as u64;
            let burst = (first..first + BURST).map(|number| (1, case.report(number)));
            self.engine.execute_unnumbered(now, burst, &mut self.out);
            self.engine.flush_held_reports(now, &mut self.out);
            if let Some(last) = self.last_offset() {
                in_flight.push_back((last, self.region.load_u64(last)?));
            }
            self.send_output()?;
            self.take_answers()?;
            if in_flight.len() > AHEAD {
                let (offset, before) = in_flight.pop_front().context("a burst")?;
                self.wait_until(|this| Ok(this.region.load_u64(offset)? != before))?;
            }
        }
        for (offset, before) in in_flight {
            self.wait_until(|this| Ok(this.region.load_u64(offset)? != before))?;
        }
        self.wait_until(|this| {
            Ok(this.engine.queue_pairs().iter().all(|pair| pair.outstanding == 0 && pair.waiting == 0))
        })
    }

    /// Where in the region the last operation of the output writes.
    fn last_offset(&self) -> Option<u64> {
        let of_frame = |packet| {
            let frame = Received::parse_packet(packet).ok()?.roce;
            frame.rdma_header().map(|header| header.va).or(frame.atomic_header().map(|header| header.va))
        };
        let posted = self.out.requests.iter().last().map(|(request, _)| request.address);
        posted.or_else(|| self.out.frames.iter().last().and_then(of_frame)).map(|va| va - self.address)
    }

    fn send_output(&mut self) -> anyhow::Result<()> {
        self.roce.post_requests(&mut self.out, &mut self.engine);
        for batch in self.out.frames.batches_mut().iter_mut().filter(|batch| !batch.is_empty()) {
            self.roce.send(batch)?;
        }
        self.out.clear();
        Ok(())
    }

    fn take_answers(&mut self) -> anyhow::Result<()> {
        let now = self.start.elapsed().as_nanos() as u64;
        self.roce.take_completions(now, &mut self.engine, &mut self.out);
        if self.roce.recv(&mut self.answers, Some(Duration::ZERO))? != 0 {
            self.engine.handle_answers(now, self.answers.iter(), &mut self.out);
        }
        self.engine.run_timers(now, &mut self.out);
        self.send_output()
    }

    fn wait_until(&mut self, is_so: impl Fn(&Self) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let since = Instant::now();
        while !is_so(self)? {
            ensure!(since.elapsed() < PATIENCE, "an operation did not land: {:?}", self.roce.link_counters());
            // Soft-RoCE sends in a thread of the kernel.
            std::thread::yield_now();
            self.take_answers()?;
        }
        Ok(())
    }

    /// Checks that each of `reports` reports became an operation that the NIC received.
    fn check_counts(&self, reports: u64) -> anyhow::Result<()> {
        // The device's counters are up to 12 ms old.
        std::thread::sleep(Duration::from_millis(50));
        let received = self.nic.named_counters().into_iter().find(|(name, _)| name == "received");
        let received = received.context("the device does not count what it receives")?.1;
        ensure!(received >= reports, "of {reports} operations, the NIC received {received}");
        Ok(())
    }
}

impl PostingCase {
    fn store(&self) -> StoreSpec {
        let kind = match self.is_increment {
            true => StoreKind::KeyIncrement { slots: SLOTS, redundancy: 1, replicas: 1 },
            false => {
                StoreKind::KeyWrite { slots: SLOTS, value_len: 12, redundancy: 1, keys: Default::default() }
            }
        };
        StoreSpec { id: 1, name: "bench".into(), kind }
    }

    fn report(&self, number: u64) -> DtaBody<'static> {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        match self.is_increment {
            true => DtaBody::KeyIncrement { redundancy: 0, key: Key(key), delta: 1 },
            false => DtaBody::KeyWrite { redundancy: 0, key: Key(key), value: &[7; 12] },
        }
    }
}

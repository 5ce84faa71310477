//! The engine and the software NIC, with a faulty wire between them and a clock that the test moves.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use dta_dataplane::losses::FrameMeta;
use dta_dataplane::{Engine, EngineLimits, EngineOutput};
use dta_link::Scope;
use dta_link::fault::{FaultInjector, FaultOutcome, Faults};
use dta_memory::nic::ROCE_PORT;
use dta_memory::nic::soft::{Responder, ResponderConfig};
use dta_memory::region::RegionOptions;
use dta_memory::store::Store;
use dta_proto::batch::PacketBatch;
use dta_proto::program::{DataPlaneEntry, FlushDelay, Mode, Primitive, Program, Transport, diff_programs};
use dta_testbed::programmed::{Pairs, programmed};

use crate::reports::stores;
use crate::truth::Arrivals;

const COLLECTOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const TRANSLATOR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const MS: u64 = 1_000_000;
/// Longer than any run, so that what is held leaves whole or at the end.
const FLUSH_MS: u32 = 3_600_000;
/// After which a wire without faults, or RC with any, has delivered everything.
const LONGEST: u64 = 60_000 * MS;

/// What a frame on its way carries.
struct Carried {
    meta: FrameMeta,
    reports: Vec<(u16, u32)>,
    /// On UC: what becomes of it says what becomes of its reports.
    once: bool,
}

pub(crate) struct World {
    pub(crate) engine: Engine,
    pub(crate) responder: Responder,
    pub(crate) stores: Vec<Store>,
    pub(crate) frame_faults: FaultInjector,
    pub(crate) arrivals: Arrivals,
    /// Transport of the writes.
    pub(crate) writes: Transport,
    /// The list numbers that readers were woken with.
    pub(crate) woken: Vec<u32>,
    answer_faults: FaultInjector,
    answers: PacketBatch,
    out: EngineOutput,
    /// Frames that an injector may hold or has not seen yet, by their number.
    on_the_way: HashMap<u64, Carried>,
    start: Instant,
    now: u64,
}

impl World {
    pub(crate) fn new(writes: Transport, frames: Faults, answers: Faults, seed: u64) -> World {
        let responder = RefCell::new(Responder::new(ResponderConfig {
            device: "soft".into(),
            ip: COLLECTOR.into(),
            port: ROCE_PORT,
            mtu: 1024,
            max_dest_rd_atomic: 16,
        }));
        let [translator, nic] = [TRANSLATOR, COLLECTOR].map(|ip| SocketAddrV4::new(ip, ROCE_PORT));
        // PSNs wrap on the way; and nobody takes the receives before the end, so there are more than batches.
        let pairs = Pairs {
            translator,
            nic,
            writes,
            start_psn: 0xff_ff00,
            local_qpns: [0x111, 0x112],
            receives: 1 << 16,
        };
        let (stores, mut program) = programmed(
            &stores(),
            RegionOptions { huge_pages: false },
            &pairs,
            |region, access| responder.borrow_mut().register_region(region, access),
            |request| responder.borrow_mut().create_queue_pair(request),
        )
        .expect("memory for small stores, and room for their queue pairs");
        let responder = responder.into_inner();
        program.set(DataPlaneEntry::Mode(Mode { reference: false }));
        for primitive in Primitive::ALL {
            program.set(DataPlaneEntry::Flush(FlushDelay { primitive, after_ms: FLUSH_MS }));
        }
        let mut engine = Engine::new(EngineLimits { name_reports: true, ..EngineLimits::default() });
        let mut out = EngineOutput::default();
        engine
            .apply_changes(0, &diff_programs(&Program::default(), &program), &mut out)
            .expect("a program that can be held");
        let answers_batch = responder.answer_batch(1024);
        World {
            engine,
            responder,
            stores,
            frame_faults: FaultInjector::new(frames, seed, Scope::Packet),
            answer_faults: FaultInjector::new(answers, seed ^ 0x4143_4b53, Scope::Packet),
            arrivals: Arrivals::default(),
            writes,
            woken: Vec::new(),
            answers: answers_batch,
            out,
            on_the_way: HashMap::new(),
            start: Instant::now(),
            now: 0,
        }
    }

    pub(crate) fn store(&self, id: u16) -> &Store {
        self.stores.iter().find(|store| store.spec.id == id).expect("a store of this test")
    }

    /// Takes a batch of reports, and lets a millisecond pass.
    pub(crate) fn report(&mut self, packets: &[Vec<u8>]) {
        self.engine.ingest_packets(self.now, packets.iter().map(Vec::as_slice), &mut self.out);
        self.carry();
        self.pass();
    }

    /// Sends what is held, and waits until everything has come that will.
    pub(crate) fn finish(&mut self) {
        self.engine.flush_held_reports(self.now, &mut self.out);
        self.carry();
        let mut quiet = 0;
        // An injector holds a frame for 20 ms.
        while quiet < 30 {
            let pairs = self.engine.queue_pairs();
            let open = pairs.iter().any(|pair| pair.outstanding != 0 || pair.waiting != 0);
            quiet = if open { 0 } else { quiet + 1 };
            assert!(self.now < LONGEST, "the queue pairs come to no end: {pairs:#?}");
            self.pass();
        }
        let faults = [self.frame_faults.fault_counts(), self.answer_faults.fault_counts()];
        assert!(faults.iter().all(|counts| counts.held == 0), "{faults:?}");
    }

    fn pass(&mut self) {
        self.now += MS;
        self.engine.run_timers(self.now, &mut self.out);
        self.carry();
    }

    /// Carries frames to the NIC and answers back, until there is nothing more to carry now.
    fn carry(&mut self) {
        loop {
            self.send_frames();
            self.out.clear();
            let when = self.start + Duration::from_nanos(self.now);
            let back = self.answer_faults.apply_to_batch(&mut self.answers, when, |_, _, _| {});
            self.engine.handle_answers(self.now, back.iter(), &mut self.out);
            self.answers.clear();
            if self.out.frames.is_empty() {
                return;
            }
        }
    }

    fn send_frames(&mut self) {
        let Self { engine, responder, frame_faults, arrivals, woken, answers, out, on_the_way, .. } = self;
        let when = self.start + Duration::from_nanos(self.now);
        let mut metas = out.meta.iter();
        for batch in out.frames.batches_mut() {
            for (index, meta) in (0..batch.len()).zip(&mut metas) {
                let reports =
                    engine.report_origins().frame_origins(meta).map(|o| (o.reporter, o.sequence)).collect();
                let carried = Carried { meta: *meta, reports, once: engine.leaves_once(meta) };
                on_the_way.insert(batch.packet_cookie(index), carried);
            }
            let leaving = frame_faults.apply_to_batch(batch, when, |fate, number, _| {
                if fate == FaultOutcome::Dropped {
                    engine.injected_loss(&on_the_way[&number].meta);
                }
            });
            for index in 0..leaving.len() {
                let carried = &on_the_way[&leaving.packet_cookie(index)];
                if carried.once {
                    arrivals.came(&carried.reports, carried.meta.copy);
                }
            }
            responder
                .process_packets(leaving, answers, &mut |_| panic!("more answers than there is room for"));
            woken.extend(responder.immediates().drain(..).map(|immediate| immediate.value));
        }
        assert_eq!(metas.next(), None, "each frame has its own");
    }
}

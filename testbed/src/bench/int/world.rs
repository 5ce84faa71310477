//! Rules, engine and software NIC in one thread, and the stores that the rules write.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use crate::programmed::{Pairs, programmed};
use anyhow::Context as _;
use dta_dataplane::{Engine, EngineLimits, EngineOutput};
use dta_memory::nic::ROCE_PORT;
use dta_memory::nic::soft::{Responder, ResponderConfig};
use dta_memory::region::RegionOptions;
use dta_memory::store::Store;
use dta_proto::batch::PacketBatch;
use dta_proto::flow_record;
use dta_proto::program::{Program, Transport, diff_programs};
use dta_proto::store::{StoreKind, StoreSpec};
use dta_proto::telemetry::{ENTRY_LEN, PATH_LEN, VALUE_LEN, list, store};
use dta_proto::wire::dta::DtaBody;
use dta_telemetry::flows::Decoder;
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, RecordStore, Rules, StoreIds, Telemetry};

const COLLECTOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const TRANSLATOR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// The value store: see [`StoreIds`].
pub(super) const VALUES: u16 = 17;
pub(super) const COUNTERS: u16 = 19;
pub(super) const RECORD_STORE: u16 = 21;
/// Batches of a list of flow records.
const RECORD_RING: u64 = 1 << 12;
const RECORD_LISTS: u32 = 4;
const STORES: StoreIds = StoreIds {
    paths: Some(16),
    values: Some(VALUES),
    events: Some(18),
    counters: Some(COUNTERS),
    postcards: Some(20),
};
/// Answers per batch: each count may be two FETCH_ADDs.
const ANSWERS: usize = 4096;

/// Everything between a frame and memory.
pub(super) struct World {
    pub(super) telemetry: Telemetry,
    pub(super) engine: Engine,
    pub(super) stores: Vec<Store>,
    responder: Responder,
    made: PrimitiveBatch,
    out: EngineOutput,
    answers: PacketBatch,
    start: Instant,
    /// The time in nanoseconds, if it is not that of this machine.
    pub(super) clock: Option<u64>,
}

/// The collector's default stores, with slots for this many values.
pub(super) fn store_specs(flows: usize, values: usize) -> Vec<StoreSpec> {
    let slots = |of: usize, least: u64| ((4 * of) as u64).next_power_of_two().max(least);
    let kinds = [
        (
            16,
            store::PATHS,
            StoreKind::KeyWrite {
                slots: slots(flows, 1 << 16),
                value_len: PATH_LEN as u8,
                redundancy: 4,
                keys: Default::default(),
            },
        ),
        (
            VALUES,
            store::VALUES,
            StoreKind::KeyWrite {
                slots: slots(values, 1 << 18),
                value_len: VALUE_LEN as u8,
                redundancy: 4,
                keys: Default::default(),
            },
        ),
        (
            18,
            store::EVENTS,
            StoreKind::Append {
                lists: list::COUNT,
                ring: 1 << 12,
                batch_len: 128,
                entry_len: ENTRY_LEN as u8,
                notify: false,
            },
        ),
        (
            20,
            store::POSTCARDS,
            StoreKind::Postcarding { slots: slots(flows, 1 << 15), hops: 6, redundancy: 4 },
        ),
        (
            COUNTERS,
            store::COUNTERS,
            StoreKind::KeyIncrement { slots: slots(flows, 1 << 18), redundancy: 2, replicas: 1 },
        ),
        (
            RECORD_STORE,
            flow_record::STORE,
            StoreKind::Append {
                lists: RECORD_LISTS,
                ring: RECORD_RING,
                batch_len: 1024,
                entry_len: flow_record::ENTRY_LEN as u8,
                notify: false,
            },
        ),
    ];
    kinds.map(|(id, name, kind)| StoreSpec { id, name: name.into(), kind }).into()
}

/// Queue pairs from the first of two endpoints to the NIC at the second.
pub(super) fn queue_pairs_between([translator, nic]: [SocketAddrV4; 2]) -> Pairs {
    Pairs { translator, nic, writes: Transport::Uc, start_psn: 0, local_qpns: [0x111, 0x112], receives: 0 }
}

/// A data plane with this program.
pub(super) fn engine_of(program: &Program) -> anyhow::Result<Engine> {
    let mut engine = Engine::new(EngineLimits::default());
    let applied =
        engine.apply_changes(0, &diff_programs(&Program::default(), program), &mut EngineOutput::default());
    anyhow::ensure!(applied.is_ok(), "the engine does not take the benchmark's program");
    Ok(engine)
}

impl World {
    pub(super) fn new(rules: Rules, flows: usize, values: usize) -> anyhow::Result<World> {
        let responder = RefCell::new(Responder::new(ResponderConfig {
            device: "bench".into(),
            ip: COLLECTOR.into(),
            port: ROCE_PORT,
            mtu: 1024,
            max_dest_rd_atomic: 16,
        }));
        let (stores, program) = programmed(
            &store_specs(flows, values),
            RegionOptions::default(),
            &queue_pairs_between([TRANSLATOR, COLLECTOR].map(|ip| SocketAddrV4::new(ip, ROCE_PORT))),
            |region, access| responder.borrow_mut().register_region(region, access),
            |request| responder.borrow_mut().create_queue_pair(request),
        )?;
        let (responder, engine) = (responder.into_inner(), engine_of(&program)?);
        let mut telemetry = Telemetry::new(rules);
        telemetry.set_stores(STORES);
        telemetry.set_record_store(RecordStore { id: RECORD_STORE, lists: (0..RECORD_LISTS).collect() });
        let answers = responder.answer_batch(ANSWERS);
        Ok(World {
            telemetry,
            engine,
            stores,
            responder,
            made: PrimitiveBatch::default(),
            out: EngineOutput::default(),
            answers,
            start: Instant::now(),
            clock: None,
        })
    }

    fn now(&self) -> u64 {
        self.clock.unwrap_or_else(|| self.start.elapsed().as_nanos() as u64)
    }

    pub(super) fn take(&mut self, batch: &PacketBatch, settings: &IntSettings) {
        let now = self.now();
        let at = ArrivalTime { now, wall: 1_700_000_000_000_000_000 + now };
        let datagrams = (0..batch.len()).filter_map(|index| {
            let datagram = batch.udp_datagram(index)?;
            Some((IpAddr::V4(*datagram.source().ip()), datagram.payload()))
        });
        self.telemetry.ingest_all(at, datagrams, settings, None, &mut self.made);
        self.execute_primitives(now);
    }

    /// From datagrams of an exporter to memory.
    pub(super) fn take_exports(&mut self, decoder: &mut Decoder, datagrams: &[Vec<u8>]) {
        let now = self.now();
        let at = ArrivalTime { now, wall: 1_700_000_000_000_000_000 + now };
        for datagram in datagrams {
            decoder.decode_datagram(at, (TRANSLATOR, 2055).into(), datagram, |exported| match exported {
                Ok(exported) => self.telemetry.ingest_exported(at, &exported, &mut self.made),
                Err(reason) => self.telemetry.drop_record(reason),
            });
        }
        self.execute_primitives(now);
    }

    /// A turn in which nothing comes.
    #[cfg(test)]
    pub(super) fn advance_idle(&mut self) {
        self.execute_primitives(self.now());
    }

    fn execute_primitives(&mut self, now: u64) {
        self.telemetry.write_due_counts(now, self.engine.queue_headroom(), &mut self.made);
        self.engine.execute_unnumbered(now, self.made.iter(), &mut self.out);
        self.made.clear();
        self.engine.run_timers(now, &mut self.out);
        self.exchange_frames();
    }

    /// Key-writes only, through engine and NIC.
    pub(super) fn execute_writes<'a>(&mut self, writes: impl IntoIterator<Item = (u16, DtaBody<'a>)>) {
        let now = self.now();
        self.engine.execute_unnumbered(now, writes, &mut self.out);
        self.exchange_frames();
    }

    /// Sends what is held, and waits until all of it is in memory.
    ///
    /// # Errors
    /// An operation was lost, now or earlier, or the queue pairs do not become idle.
    pub(super) fn flush_to_memory(&mut self) -> anyhow::Result<()> {
        let limit = Instant::now() + Duration::from_secs(10);
        self.telemetry.request_flush();
        while self.telemetry.is_flushing() {
            self.execute_primitives(self.now());
        }
        self.engine.flush_held_reports(self.now(), &mut self.out);
        loop {
            self.exchange_frames();
            if self.engine.queue_pairs().iter().all(|pair| pair.outstanding == 0 && pair.waiting == 0) {
                break;
            }
            anyhow::ensure!(Instant::now() < limit, "the benchmark's queue pairs do not become idle");
            self.engine.run_timers(self.now(), &mut self.out);
        }
        let lost: u64 = self.engine.engine_counters().primitives.iter().map(|of| of.lost_operations).sum();
        anyhow::ensure!(lost == 0, "{lost} operations were lost");
        Ok(())
    }

    /// Passes frames to the NIC and answers back, until there are none.
    fn exchange_frames(&mut self) {
        let mut answers_lost = false;
        loop {
            for batch in self.out.frames.batches() {
                self.responder.process_packets(batch, &mut self.answers, &mut |full| {
                    answers_lost = true;
                    full.clear();
                });
            }
            self.out.clear();
            if self.answers.is_empty() {
                break;
            }
            self.engine.handle_answers(self.now(), self.answers.iter(), &mut self.out);
            self.answers.clear();
            if self.out.frames.is_empty() {
                break;
            }
        }
        debug_assert!(!answers_lost);
    }

    /// The sum of all increments that are in memory.
    #[cfg(test)]
    pub(super) fn incremented(&self) -> anyhow::Result<u64> {
        let store = self.store_by_id(COUNTERS)?;
        let StoreKind::KeyIncrement { slots, redundancy, .. } = store.spec.kind else {
            anyhow::bail!("not a store of counters")
        };
        let mut sum = 0;
        for slot in 0..slots {
            sum += store.region.load_u64(dta_proto::layout::key_increment::counter_offset(slot))?;
        }
        // Every increment is in each copy.
        Ok(sum / u64::from(redundancy))
    }

    /// Batches of a list of flow records that memory holds: one exporter has one list.
    pub(super) fn record_ring(&self) -> anyhow::Result<u64> {
        Ok(self.store_by_id(RECORD_STORE)?.spec.element_count() / u64::from(RECORD_LISTS))
    }

    pub(super) fn store_by_id(&self, id: u16) -> anyhow::Result<&Store> {
        self.stores.iter().find(|store| store.spec.id == id).context("a store of the benchmark")
    }
}

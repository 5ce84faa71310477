//! The INT side of the packet thread: its sockets and those of flow exports, and the rules that turn
//! Telemetry Reports and flow records into primitives.

use std::os::fd::BorrowedFd;

use dta_dataplane::workers::Crew;
use dta_dataplane::{Engine, EngineOutput};
use dta_files::moment::now_ns;
use dta_link::xdp::{EventWords, SourceSequence, SourceSequences};
use dta_link::{IntakeOpener, LinkCounters, LinkError};
use dta_proto::batch::PacketBatch;
use dta_proto::counter::gaps::GapCounters;
use dta_proto::flow_record;
use dta_proto::program::{DataPlaneEntry, Primitive, Program};
use dta_proto::store::StoreKind;
use dta_proto::telemetry::{self, ENTRY_LEN, PATH_LEN, VALUE_LEN};
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::{
    ArrivalTime, PrimitiveBatch, RecordRoom, RecordStore, Rules, SharedTables, SourceName, StoreIds,
    Telemetry,
};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::flow_handover::ExportsInTransit;
use super::flow_listeners::FlowListeners;
use super::listener::{RECEIVED, TelemetryListener, sum_link_counters};
use crate::config::{FlowTable, IntListener, IntStores};

/// Maximum number of listeners, including those for flows.
pub const MOST_LISTENERS: usize = 16;
const BATCH: usize = 128;

/// The listeners and the rules of one worker. The first receives for INT, all receive flow exports.
pub struct IntSide {
    /// This worker's number, and how many there are.
    place: (usize, usize),
    listeners: Vec<(TelemetryListener, IntSettings)>,
    flows: FlowListeners,
    stores: IntStores,
    telemetry: Telemetry,
    /// For an interface whose program drops unchanged reports: the sequence numbers, and the tables until they are shared.
    events: Option<(SourceSequences, Option<EventWords>)>,
    made: PrimitiveBatch,
    batch: PacketBatch,
    /// The program's last store ids, so that they are logged once.
    ids: Option<StoreIds>,
    /// The same for the store of flow records.
    records: Option<RecordStore>,
    /// The workers to which the first worker last steered exporters.
    exporters_at: Vec<usize>,
    /// Who waits for a flush.
    flushes: Vec<oneshot::Sender<u64>>,
}

impl IntSide {
    /// Events that a batch may make for another worker, unless its datagrams are full of them.
    pub const ROOM_FOR_EVENTS: usize = 2048;

    /// Opens the listeners, at most [`MOST_LISTENERS`] together, for this many workers. Returns nothing if there are none, and
    /// only the first worker's side if there are none for flows. `interfaces` has the interfaces that are open.
    ///
    /// # Errors
    /// A port in use, an address that is not of this host, or as [`IntakeOpener::open`].
    pub fn open_for_workers(
        listeners: &[IntListener],
        stores: &IntStores,
        rules: &Rules,
        flows: &FlowTable,
        workers: usize,
        interfaces: &mut IntakeOpener,
    ) -> Result<Vec<IntSide>, LinkError> {
        let count = match (flows.listen.is_empty(), listeners.is_empty()) {
            (false, _) => workers,
            (true, false) => 1,
            (true, true) => 0,
        };
        let mut for_int = Vec::new();
        for listener in listeners.iter().take(MOST_LISTENERS) {
            for link in TelemetryListener::open_for_workers(
                &listener.listen,
                listener.report_form(),
                1,
                &[],
                interfaces,
            )? {
                let (listen, dialect) = (link.describe_address(), listener.settings.dialect);
                info!(listen, %dialect, "receiving Telemetry Reports");
                for_int.push((link, listener.settings));
            }
        }
        let mut for_int = Some(for_int);
        let mut events = interfaces.take_event_tables().map(|tables| (tables.sequences, Some(tables.words)));
        let flows = FlowListeners::open_for_workers(flows, count, interfaces)?;
        let of_worker = |(worker, flows)| IntSide {
            place: (worker, workers),
            listeners: for_int.take().unwrap_or_default(),
            events: events.take(),
            flows,
            stores: stores.clone(),
            telemetry: Telemetry::new(rules.clone()),
            made: PrimitiveBatch::default(),
            batch: PacketBatch::with_packet_capacity(BATCH, RECEIVED),
            ids: None,
            records: None,
            exporters_at: (0..workers).collect(),
            flushes: Vec::new(),
        };
        Ok(flows.into_iter().enumerate().map(of_worker).collect())
    }

    /// The addresses of INT's listeners, in the order of the configuration.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().map(|(link, _)| link.describe_address()).collect()
    }

    /// As [`IntSide::addresses`], for flow listeners.
    pub fn flow_addresses(&self) -> Vec<String> {
        self.flows.addresses()
    }

    /// What the thread waits for.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|(link, _)| link.socket()).chain(self.flows.sockets())
    }

    /// Whether flow exports wait until other workers take what they were handed.
    pub fn is_blocked(&self) -> bool {
        self.flows.is_blocked()
    }

    /// Whether other workers have handed over flow exports that wait here.
    pub fn is_handed_over(&self) -> bool {
        self.flows.is_handed_over()
    }

    /// The workers that were handed flow exports since the last call: bit n for worker n.
    pub fn take_news(&mut self) -> u32 {
        self.flows.take_news()
    }

    /// The flow exports that all workers have handed over to each other.
    pub fn exports_in_transit(&self) -> ExportsInTransit {
        self.flows.in_transit()
    }

    /// Finds the stores after a change of program.
    pub fn resolve_stores(&mut self, program: &Program) {
        self.resolve_record_store(program);
        let ids = find_store_ids(program, &self.stores);
        if self.ids == Some(ids) {
            return;
        }
        let wanted = [
            (&self.stores.paths, ids.paths, "key-write, value_len 60"),
            (&self.stores.values, ids.values, "key-write, value_len 12 or more"),
            (&self.stores.events, ids.events, "append, entry_len 60, 4 lists"),
            (&self.stores.counters, ids.counters, "key-increment"),
            (&self.stores.postcards, ids.postcards, "postcarding"),
        ];
        for (store, _, must) in wanted.iter().filter(|(_, id, _)| id.is_none() && self.place.0 == 0) {
            warn!(%store, must, "no such store: INT results for it are dropped");
        }
        self.telemetry.set_stores(ids);
        self.ids = Some(ids);
    }

    /// Finds the store of flow records, and which of its lists are this worker's.
    fn resolve_record_store(&mut self, program: &Program) {
        if self.flows.is_empty() {
            return;
        }
        let mut records = find_record_store(program);
        let (worker, workers) = self.place;
        let is_owner = |owner: &usize| records.lists.iter().any(|list| is_list_of(*list, *owner, workers));
        let owners = Vec::from_iter((0..workers).filter(is_owner));
        records.lists.retain(|list| is_list_of(*list, worker, workers));
        if self.records.as_ref() != Some(&records) {
            if worker == 0 && owners.is_empty() {
                warn!(
                    store = flow_record::STORE,
                    must = "append, entry_len 192, lists that no other translator has",
                    "no such store: flow records are dropped"
                );
            }
            self.telemetry.set_record_store(records.clone());
            self.records = Some(records);
        }
        // A worker without a list gets no exporters, unless there is no list at all.
        if worker == 0 && !owners.is_empty() && owners != self.exporters_at {
            if let Err(error) = self.flows.steer_to_workers(&owners) {
                warn!(%error, "dropping the records of some exporters: they reach workers without a list");
            }
            self.exporters_at = owners;
        }
    }

    /// Takes flow exports that other workers have handed over and, if it `accepts` datagrams, a batch from each
    /// listener. Returns the number of datagrams. Call [`write_due_counts`](IntSide::write_due_counts) afterwards.
    pub fn receive_datagrams(
        &mut self,
        now: u64,
        accepts: bool,
        engine: &mut Engine,
        mut crew: Option<&mut Crew>,
        out: &mut EngineOutput,
    ) -> Result<usize, LinkError> {
        let mut received = 0;
        if let Some(words) = self.events.as_mut().and_then(|(_, words)| words.take()) {
            let EventWords { generation, buckets, templates, slots } = words;
            let tables = SharedTables {
                generation: Box::new(generation),
                buckets: Box::new(buckets),
                templates: Box::new(templates),
                slots: Box::new(slots),
            };
            self.telemetry.share_with_program(tables, monotonic_ns().saturating_sub(now));
        }
        for (link, settings) in self.listeners.iter_mut().filter(|_| accepts) {
            if crew.as_deref_mut().is_some_and(|crew| !crew.has_room_for(IntSide::ROOM_FOR_EVENTS)) {
                break;
            }
            let count = link.recv(&mut self.batch)?;
            if count == 0 {
                // Damaged datagrams may have come.
                link.confirm_processed();
                continue;
            }
            received += count;
            let at = ArrivalTime { now, wall: now_ns() };
            let batch = &self.batch;
            // A listener's packets have complete headers.
            let datagrams = (0..batch.len()).filter_map(|index| {
                let (source, payload) = batch.source_and_payload(index)?;
                Some((source.ip(), payload))
            });
            let program = link.events_of_last_batch();
            self.telemetry.ingest_all(at, datagrams, settings, program, &mut self.made);
            link.confirm_processed();
            execute_primitives(&mut self.made, now, engine, crew.as_deref_mut(), out);
        }
        let has_room = crew.as_deref_mut().is_none_or(|crew| crew.has_room_for(IntSide::ROOM_FOR_EVENTS));
        if !self.flows.is_empty() && has_room {
            self.telemetry.set_record_room(RecordRoom {
                records: self.records.as_ref().map_or(0, |records| engine.store_headroom(records.id)),
                counts: self.ids.and_then(|ids| ids.counters).map_or(0, |id| engine.store_headroom(id)),
            });
            received += self.flows.receive_exports(now, accepts, &mut self.telemetry, &mut self.made)?;
        }
        execute_primitives(&mut self.made, now, engine, crew, out);
        self.flows.confirm_decoded();
        Ok(received)
    }

    /// Writes the counts that are due, even without input, as far as there is `room` for operations. Then ends flushes, if
    /// nothing waits from before them.
    pub fn write_due_counts(&mut self, now: u64, room: usize, engine: &mut Engine, out: &mut EngineOutput) {
        self.telemetry.count_dropped_reports(now, self.telemetry.is_flushing(), &mut self.made);
        self.telemetry.write_due_counts(now, room, &mut self.made);
        // Counters belong to no particular worker.
        execute_primitives(&mut self.made, now, engine, None, out);
        if !self.flushes.is_empty() && !self.telemetry.is_flushing() {
            let flushed = engine.flush_held_reports(now, out);
            self.flushes.drain(..).for_each(|reply| _ = reply.send(flushed));
        }
    }

    /// Makes a program at an interface pass on all reports, before what it dropped is counted for the last time.
    pub fn stop_dropping(&mut self) {
        self.telemetry.stop_dropping();
    }

    /// Makes all waiting counts due. Once they are written, sends everything that the engine holds, and
    /// replies with the number of reports.
    pub fn start_flush(&mut self, reply: Option<oneshot::Sender<u64>>) {
        self.telemetry.request_flush();
        self.flushes.extend(reply);
    }

    /// Whether some of the counts to flush still wait.
    pub fn is_flushing(&self) -> bool {
        self.telemetry.is_flushing()
    }

    /// Every counter by its dotted name.
    pub fn named_counters(&mut self) -> Vec<(String, u64)> {
        use dta_proto::counter::translator as names;
        if let Some((sequences, _)) = &self.events {
            let sources = sequences.read().into_iter().map(source_counters).collect();
            self.telemetry.set_program_sources(sources, sequences.beyond_limit());
        }
        let mut named = self.telemetry.named_counters();
        if !self.flows.is_empty() {
            named.extend(self.telemetry.named_records());
            named.extend(self.flows.named_counters());
        }
        named.extend(GapCounters::largest_gaps(
            self.telemetry.int_sources().iter(),
            [&names::INT_GAPS_OF, &names::INT_GAPS_FILLED_OF],
        ));
        named
    }

    /// Counters of the links of INT's listeners, summed.
    pub(super) fn link_counters(&self) -> LinkCounters {
        sum_link_counters(self.listeners.iter().map(|(link, _)| link))
    }

    /// As `link_counters`, for flow listeners; `None` if there are none.
    pub(super) fn flows_link(&self) -> Option<LinkCounters> {
        (!self.flows.is_empty()).then(|| self.flows.link_counters())
    }
}

/// What a program counted of a source's sequence numbers.
fn source_counters(counted: SourceSequence) -> (SourceName, GapCounters) {
    let SourceSequence { source, part, gaps, filled, repeats, restarts } = counted;
    let name = match source {
        Ok(switch) => SourceName::Switch(switch, part),
        Err(address) => SourceName::Address(address.into(), part),
    };
    (name, GapCounters { gaps, gaps_filled: filled, repeats, restarts })
}

/// The program's clock, in nanoseconds.
fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Executes what was made; with several workers, hands the others what is theirs.
fn execute_primitives(
    made: &mut PrimitiveBatch,
    now: u64,
    engine: &mut Engine,
    crew: Option<&mut Crew>,
    out: &mut EngineOutput,
) {
    if made.is_empty() {
        return;
    }
    match crew {
        Some(crew) => engine.execute_unnumbered_among(now, made.iter(), crew, out),
        None => engine.execute_unnumbered(now, made.iter(), out),
    }
    made.clear();
}

/// Whether a list is this worker's, as for reports (`docs/decisions/workers.md`).
fn is_list_of(list: u32, worker: usize, workers: usize) -> bool {
    list as usize % workers == worker
}

/// The store of flow records, with the lists that this translator owns.
fn find_record_store(program: &Program) -> RecordStore {
    let holds_records = |kind: &StoreKind| matches!(kind, StoreKind::Append { entry_len, .. } if usize::from(*entry_len) == flow_record::ENTRY_LEN);
    let Some(id) = find_store_id(program, flow_record::STORE, &holds_records) else {
        return RecordStore::default();
    };
    let owned = program.entries().filter_map(|entry| match entry {
        DataPlaneEntry::Lists(lists) if lists.store == id => Some(lists.first..lists.first + lists.count),
        _ => None,
    });
    let mut lists: Vec<u32> = owned.flatten().collect();
    lists.sort_unstable();
    RecordStore { id, lists }
}

/// The id of a store with this name that can hold what is written.
fn find_store_id(program: &Program, name: &str, fits: &dyn Fn(&StoreKind) -> bool) -> Option<u16> {
    program.entries().find_map(|entry| match entry {
        DataPlaneEntry::Store(store) if store.spec.name == name && fits(&store.spec.kind) => {
            Some(store.spec.id)
        }
        _ => None,
    })
}

/// The ids of stores with these names that can hold what is written.
fn find_store_ids(program: &Program, names: &IntStores) -> StoreIds {
    let store = |name: &str, fits: &dyn Fn(&StoreKind) -> bool| find_store_id(program, name, fits);
    let holds = |least: usize| move |kind: &StoreKind| matches!(kind, StoreKind::KeyWrite { value_len, .. } if usize::from(*value_len) >= least);
    let events = |kind: &StoreKind| {
        matches!(kind, StoreKind::Append { lists, entry_len, .. }
            if usize::from(*entry_len) == ENTRY_LEN && *lists >= telemetry::list::COUNT)
    };
    StoreIds {
        paths: store(&names.paths, &holds(PATH_LEN)),
        values: store(&names.values, &holds(VALUE_LEN)),
        events: store(&names.events, &events),
        counters: store(&names.counters, &|kind| kind.primitive() == Primitive::KeyIncrement),
        postcards: store(&names.postcards, &|kind| kind.primitive() == Primitive::Postcarding),
    }
}

//! The INT side of the packet thread: its sockets and those of flow exports, and the rules that turn Telemetry Reports and
//! flow records into primitives.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_dataplane::{Engine, EngineOutput};
use dta_files::moment::now_ns;
use dta_link::{Link, LinkCounters, LinkError, UdpConfig, UdpLink};
use dta_proto::batch::PacketBatch;
use dta_proto::counter::gaps::GapCounters;
use dta_proto::program::{DataPlaneEntry, Primitive, Program};
use dta_proto::store::StoreKind;
use dta_proto::telemetry::{self, ENTRY_LEN, PATH_LEN, VALUE_LEN};
use dta_telemetry::int::IntSettings;
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Rules, StoreIds, Telemetry};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::flow_listeners::FlowListeners;
use crate::config::{FlowTable, IntListener, IntStores};

/// Most listeners, those for flows included.
pub const MOST_LISTENERS: usize = 16;
const BATCH: usize = 128;
/// Longest datagram received: a jumbo frame's. The link counts longer ones.
pub(super) const RECEIVED: usize = 9216;

/// The listeners and the rules.
pub struct IntSide {
    listeners: Vec<(UdpLink, IntSettings)>,
    flows: FlowListeners,
    stores: IntStores,
    telemetry: Telemetry,
    made: PrimitiveBatch,
    batch: PacketBatch,
    /// The program's last store ids, so that they are logged once.
    ids: Option<StoreIds>,
    /// Who waits for a flush.
    flushes: Vec<oneshot::Sender<u64>>,
}

impl IntSide {
    /// Opens the listeners, at most [`MOST_LISTENERS`] together; `None` if there are none.
    ///
    /// # Errors
    /// A port in use, or an address that is not of this host.
    pub fn open(
        listeners: &[IntListener],
        stores: &IntStores,
        rules: Rules,
        flows: &FlowTable,
    ) -> Result<Option<IntSide>, LinkError> {
        if listeners.is_empty() && flows.listen.is_empty() {
            return Ok(None);
        }
        let open = |listener: &IntListener| {
            let link = UdpLink::open(&UdpConfig::for_reports(listener.listen, false))?;
            info!(listen = %link.local_addr(), dialect = %listener.settings.dialect, "receiving Telemetry Reports");
            Ok((link, listener.settings))
        };
        Ok(Some(IntSide {
            listeners: listeners.iter().take(MOST_LISTENERS).map(open).collect::<Result<_, LinkError>>()?,
            flows: FlowListeners::open(flows)?,
            stores: stores.clone(),
            telemetry: Telemetry::new(rules),
            made: PrimitiveBatch::default(),
            batch: PacketBatch::with_packet_capacity(BATCH, RECEIVED),
            ids: None,
            flushes: Vec::new(),
        }))
    }

    /// The addresses of INT's listeners, in the order of the configuration.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().map(|(link, _)| link.local_addr().to_string()).collect()
    }

    /// The same of the listeners for flows.
    pub fn flow_addresses(&self) -> Vec<String> {
        self.flows.addresses()
    }

    /// What the thread waits for.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.listeners.iter().map(|(link, _)| link.as_fd()).chain(self.flows.sockets())
    }

    /// Finds the stores after a change of program.
    pub fn resolve_stores(&mut self, program: &Program) {
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
        for (store, _, must) in wanted.iter().filter(|(_, id, _)| id.is_none()) {
            warn!(%store, must, "no such store: the INT rules write nothing for it");
        }
        self.telemetry.set_stores(ids);
        self.ids = Some(ids);
    }

    /// Receives a batch from each listener; returns the number of datagrams. Behind it comes a [`write_due_counts`](IntSide::write_due_counts).
    ///
    /// # Errors
    /// As [`Link::recv`].
    pub fn take(
        &mut self,
        now: u64,
        engine: &mut Engine,
        out: &mut EngineOutput,
    ) -> Result<usize, LinkError> {
        let mut received = 0;
        for (link, settings) in &mut self.listeners {
            let count = link.recv(&mut self.batch, Some(Duration::ZERO))?;
            if count == 0 {
                continue;
            }
            received += count;
            let at = ArrivalTime { now, wall: now_ns() };
            let batch = &self.batch;
            // A socket's packets have complete headers.
            let datagrams = (0..batch.len()).filter_map(|index| {
                let datagram = batch.udp_datagram(index)?;
                Some((IpAddr::V4(*datagram.source().ip()), datagram.payload()))
            });
            self.telemetry.ingest_all(at, datagrams, settings, &mut self.made);
            execute_primitives(&mut self.made, now, engine, out);
        }
        received += self.flows.take(now, &mut self.telemetry, &mut self.made)?;
        execute_primitives(&mut self.made, now, engine, out);
        Ok(received)
    }

    /// Writes the counts that are due, even without input, as far as there is `room` for operations. Then ends flushes, if
    /// nothing waits from before them.
    pub fn write_due_counts(&mut self, now: u64, room: usize, engine: &mut Engine, out: &mut EngineOutput) {
        self.telemetry.write_due_counts(now, room, &mut self.made);
        execute_primitives(&mut self.made, now, engine, out);
        if !self.flushes.is_empty() && !self.telemetry.is_flushing() {
            let flushed = engine.flush_held_reports(now, out);
            self.flushes.drain(..).for_each(|reply| _ = reply.send(flushed));
        }
    }

    /// Makes all waiting counts due. Once they are written, sends everything that the engine holds, and says how many
    /// reports that were.
    pub fn start_flush(&mut self, reply: Option<oneshot::Sender<u64>>) {
        self.telemetry.request_flush();
        self.flushes.extend(reply);
    }

    /// Whether some of those still wait.
    pub fn is_flushing(&self) -> bool {
        self.telemetry.is_flushing()
    }

    /// Every counter by its dotted name.
    pub fn named_counters(&self) -> Vec<(String, u64)> {
        use dta_proto::counter::translator as names;
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
        sum(self.listeners.iter().map(|(link, _)| link))
    }

    /// The same of the listeners for flows; `None` if there are none.
    pub(super) fn flows_link(&self) -> Option<LinkCounters> {
        (!self.flows.is_empty()).then(|| self.flows.link_counters())
    }
}

/// Counters of links that receive, summed.
pub(super) fn sum<'a>(links: impl Iterator<Item = &'a UdpLink>) -> LinkCounters {
    links.fold(LinkCounters::default(), |mut sum, link| {
        let counters = link.link_counters();
        sum.received += counters.received;
        sum.dropped_too_long += counters.dropped_too_long;
        sum.dropped_by_kernel += counters.dropped_by_kernel;
        sum
    })
}

/// Passes on what was made.
fn execute_primitives(made: &mut PrimitiveBatch, now: u64, engine: &mut Engine, out: &mut EngineOutput) {
    if !made.is_empty() {
        engine.execute_unnumbered(now, made.iter(), out);
        made.clear();
    }
}

/// The ids of stores with these names that can hold what is written.
fn find_store_ids(program: &Program, names: &IntStores) -> StoreIds {
    let store = |name: &str, fits: &dyn Fn(&StoreKind) -> bool| {
        program.entries().find_map(|entry| match entry {
            DataPlaneEntry::Store(store) if store.spec.name == name && fits(&store.spec.kind) => {
                Some(store.spec.id)
            }
            _ => None,
        })
    };
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

//! The listeners for flow exports, beside those of INT.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dta_files::moment::now_ns;
use dta_link::{IntakeOpener, LinkCounters, LinkError};
use dta_proto::batch::PacketBatch;
use dta_telemetry::flows::{Decoder, SourceRegistry};
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Telemetry};
use tracing::info;

use super::flow_handover::{ExportHandover, ExportsInTransit};
use super::listener::{RECEIVED, TelemetryListener, sum_link_counters};
use super::steering::{exporter_steering, exporter_worker};
use crate::config::FlowTable;

/// Datagrams per batch. Each has some thirty records, and each record several operations.
const BATCH: usize = 16;

/// The workers to which exporters are steered. All workers follow a change at once, as the kernel does.
struct ExporterWorkers {
    /// Increases with each change.
    generation: AtomicU32,
    workers: Mutex<Arc<[usize]>>,
}

impl ExporterWorkers {
    fn new(workers: usize) -> ExporterWorkers {
        ExporterWorkers { generation: AtomicU32::new(0), workers: Mutex::new((0..workers).collect()) }
    }

    fn replace(&self, workers: &[usize]) {
        *self.workers.lock().unwrap_or_else(PoisonError::into_inner) = workers.into();
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn read(&self) -> Arc<[usize]> {
        Arc::clone(&self.workers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A worker's part of the listeners, and what is known of its exporters.
pub(super) struct FlowListeners {
    worker: usize,
    links: Vec<TelemetryListener>,
    decoder: Decoder,
    batch: PacketBatch,
    /// Present if several workers share an interface's queues.
    handover: Option<ExportHandover>,
    /// Whether datagrams wait at an interface until others take what was handed over.
    is_blocked: bool,
    shared: Arc<ExporterWorkers>,
    /// The workers to which exporters are steered, and the generation of that choice.
    workers: (u32, Arc<[usize]>),
    /// Whether the decoder may know exporters that come to other workers.
    has_others: bool,
}

impl FlowListeners {
    /// Opens the listeners for `workers` workers; there may be none.
    pub(super) fn open_for_workers(
        table: &FlowTable,
        workers: usize,
        interfaces: &mut IntakeOpener,
    ) -> Result<Vec<FlowListeners>, LinkError> {
        let registry = Arc::new(SourceRegistry::default());
        // Until the lists are known, as if each worker had one.
        let shared = Arc::new(ExporterWorkers::new(workers));
        let by_queues = table.listen.iter().any(|listener| listener.0.xdp_address().is_some());
        let mut ends = Vec::new();
        if by_queues && workers > 1 {
            ends = ExportHandover::build_for_workers(workers, BATCH, RECEIVED);
        }
        let mut ends = ends.into_iter();
        let one = |worker| FlowListeners {
            worker,
            links: Vec::new(),
            decoder: Decoder::with_registry(table.decoder_options(), Arc::clone(&registry)),
            batch: PacketBatch::with_packet_capacity(BATCH, RECEIVED),
            handover: ends.next(),
            is_blocked: false,
            shared: Arc::clone(&shared),
            workers: (0, shared.read()),
            has_others: false,
        };
        let mut all: Vec<_> = (0..workers).map(one).collect();
        let steering = exporter_steering(&shared.read());
        for listener in &table.listen {
            let links =
                TelemetryListener::open_for_workers(&listener.0, None, workers, &steering, interfaces)?;
            let listen = links.first().map(TelemetryListener::describe_address);
            info!(listen, "receiving flow exports");
            all.iter_mut().zip(links).for_each(|(worker, link)| worker.links.push(link));
        }
        Ok(all)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Their addresses, in the order of the configuration.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.links.iter().map(TelemetryListener::describe_address).collect()
    }

    /// What the thread waits for: without the listeners at an interface while they are [blocked](Self::is_blocked).
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_open = |link: &&TelemetryListener| !(self.is_blocked && link.is_at_interface());
        self.links.iter().filter(is_open).map(TelemetryListener::socket)
    }

    /// Whether datagrams wait at an interface until others take what was handed over.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// Whether other workers have handed over something that waits here.
    pub(super) fn is_handed_over(&self) -> bool {
        self.handover.as_ref().is_some_and(ExportHandover::is_waiting)
    }

    /// The workers that were handed something since the last call: bit n for worker n.
    pub(super) fn take_news(&mut self) -> u32 {
        self.handover.as_mut().map_or(0, ExportHandover::take_news)
    }

    /// Notes that the primitives of all datagrams received so far have been passed on.
    pub(super) fn confirm_decoded(&mut self) {
        self.handover.iter_mut().for_each(ExportHandover::confirm_decoded);
    }

    /// What all workers have handed over to each other.
    pub(super) fn in_transit(&self) -> ExportsInTransit {
        self.handover.as_ref().map(ExportHandover::in_transit).unwrap_or_default()
    }

    /// Sends exporters to these workers from now on.
    pub(super) fn steer_to_workers(&self, workers: &[usize]) -> Result<(), LinkError> {
        let before = self.shared.read();
        // Workers first: what still comes to the former worker is decoded there, and its place is freed afterwards.
        self.shared.replace(workers);
        let steer = |workers: &[usize]| {
            let steering = exporter_steering(workers);
            self.links.iter().try_for_each(|link| link.replace_steering(&steering))
        };
        steer(workers).inspect_err(|_| {
            self.shared.replace(&before);
            // Some listeners may have been steered.
            _ = steer(&before);
        })
    }

    /// Takes a batch of what each other worker has handed over and, if it `accepts` datagrams, a batch from each listener. Makes
    /// primitives of the records of this worker's exporters, and hands over datagrams of others that came through an interface's
    /// queue. Returns the number of datagrams. Call [`confirm_decoded`](Self::confirm_decoded) afterwards.
    pub(super) fn receive_exports(
        &mut self,
        now: u64,
        accepts: bool,
        telemetry: &mut Telemetry,
        made: &mut PrimitiveBatch,
    ) -> Result<usize, LinkError> {
        let mut of_others = false;
        self.decoder.take_part_in_search(now);
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.workers.0 {
            self.workers = (generation, self.shared.read());
            self.has_others = true;
        }
        let (worker, workers) = (self.worker, &self.workers.1);
        let mut decode = |at: ArrivalTime, from: SocketAddr, payload: &[u8]| {
            of_others |= exporter_worker(from.ip(), workers) != worker;
            self.decoder.decode_datagram(at, from, payload, |exported| match exported {
                Ok(exported) => telemetry.ingest_exported(at, &exported, made),
                Err(reason) => telemetry.drop_record(reason),
            });
        };
        let mut received = self.handover.as_mut().map_or(0, |handover| {
            // A listener's packets have complete headers.
            handover.take(|batch| {
                let at = ArrivalTime { now, wall: now_ns() };
                (0..batch.len())
                    .filter_map(|index| batch.source_and_payload(index))
                    .for_each(|(from, payload)| decode(at, from, payload));
            })
        });
        self.is_blocked = false;
        for link in self.links.iter_mut().filter(|_| accepts) {
            if link.is_at_interface() && self.handover.as_mut().is_some_and(|handover| !handover.has_room()) {
                self.is_blocked = true;
                continue;
            }
            let count = link.recv(&mut self.batch)?;
            if count == 0 {
                continue;
            }
            received += count;
            let at = ArrivalTime { now, wall: now_ns() };
            // What came through a socket was already dealt out by exporter in the kernel.
            let mut handover = self.handover.as_mut().filter(|_| link.is_last_by_queue());
            for index in 0..self.batch.len() {
                let Some((from, payload)) = self.batch.source_and_payload(index) else { continue };
                let owner = exporter_worker(from.ip(), workers);
                let is_put = |handover: &mut &mut ExportHandover| {
                    handover.push_datagram(owner, self.batch.packet(index))
                };
                if owner == worker || !handover.as_mut().is_some_and(is_put) {
                    decode(at, from, payload);
                }
            }
            handover.into_iter().for_each(ExportHandover::send);
        }
        for sender in self.decoder.take_new_senders() {
            info!(%sender, "receiving flow exports from a new sender");
        }
        // What came before a change is read as before, including what others have handed over. After that,
        // exporters that moved have their places at other workers.
        self.has_others |= of_others;
        if self.has_others && !of_others && !self.is_handed_over() {
            self.decoder.keep_senders(|sender| exporter_worker(sender, &self.workers.1) == self.worker);
            self.has_others = false;
        }
        Ok(received)
    }

    /// Counters of the exporters by their dotted names.
    pub(super) fn named_counters(&self) -> Vec<(String, u64)> {
        self.decoder.named_counters()
    }

    pub(super) fn link_counters(&self) -> LinkCounters {
        sum_link_counters(self.links.iter())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};

    use dta_telemetry::reports::Rules;

    use super::*;

    /// A datagram of NetFlow v5 without records.
    const EMPTY: [u8; 24] = {
        let mut datagram = [0; 24];
        datagram[1] = 5;
        datagram
    };

    /// The listeners of two workers at one port, and exporters of NetFlow v5 at addresses of loopback.
    struct Exporters {
        workers: Vec<FlowListeners>,
        sockets: Vec<UdpSocket>,
        to: SocketAddr,
        telemetry: Telemetry,
        now: u64,
    }

    impl Exporters {
        fn new() -> Exporters {
            let listen = vec!["udp://127.0.0.1:0".parse().unwrap()];
            let table = FlowTable { listen, ..FlowTable::default() };
            let workers = FlowListeners::open_for_workers(&table, 2, &mut IntakeOpener::default()).unwrap();
            let bind = |number: u8| UdpSocket::bind((Ipv4Addr::new(127, 0, number, 1), 0)).unwrap();
            let to = workers[0].addresses()[0].parse().unwrap();
            let telemetry = Telemetry::new(Rules::default());
            Exporters { workers, sockets: (0..20).map(bind).collect(), to, telemetry, now: 0 }
        }

        /// Each exporter sends a datagram without records.
        fn send(&self) {
            for socket in &self.sockets {
                assert_eq!(socket.send_to(&EMPTY, self.to).unwrap(), EMPTY.len());
            }
        }

        fn addresses(&self) -> impl Iterator<Item = SocketAddrV4> {
            self.sockets.iter().filter_map(|socket| match socket.local_addr().unwrap() {
                SocketAddr::V4(address) => Some(address),
                SocketAddr::V6(_) => None,
            })
        }

        /// A turn of a worker.
        fn take_at(&mut self, worker: usize) -> usize {
            self.now += 1;
            let worker = &mut self.workers[worker];
            let taken = worker
                .receive_exports(self.now, true, &mut self.telemetry, &mut PrimitiveBatch::default())
                .unwrap();
            worker.confirm_decoded();
            taken
        }

        /// Both workers take until this many have come, and look once more; returns how many each took.
        fn take(&mut self, expected: usize) -> [usize; 2] {
            let mut taken = [0; 2];
            loop {
                let is_last = taken.iter().sum::<usize>() == expected;
                for (worker, taken) in taken.iter_mut().enumerate() {
                    *taken += self.take_at(worker);
                }
                if is_last {
                    return taken;
                }
            }
        }

        fn sources(&self) -> [u64; 2] {
            let sources = |worker: &FlowListeners| {
                let named = worker.named_counters();
                named.into_iter().find(|(name, _)| name == "flows.sources").unwrap().1
            };
            [sources(&self.workers[0]), sources(&self.workers[1])]
        }
    }

    #[test]
    fn exporters_leave_no_places_behind_when_they_come_to_other_workers() {
        let mut exporters = Exporters::new();
        let all = exporters.sockets.len();
        exporters.send();
        let [first, second] = exporters.take(all);
        assert!(first > 0 && second > 0, "{first} and {second}");
        assert_eq!(exporters.sources(), [first as u64, second as u64]);
        // What came to the first worker before the change is read there, and takes no place for longer than that.
        exporters.send();
        exporters.workers[0].steer_to_workers(&[1]).unwrap();
        exporters.send();
        exporters.take(2 * all);
        assert_eq!(exporters.sources(), [0, all as u64]);
        // Those that stay with their worker keep their places.
        exporters.workers[0].steer_to_workers(&[0, 1]).unwrap();
        exporters.take(0);
        assert_eq!(exporters.sources(), [0, second as u64]);
        exporters.send();
        assert_eq!(exporters.take(all), [first, second]);
        assert_eq!(exporters.sources(), [first as u64, second as u64]);
    }

    #[test]
    fn exporters_keep_their_places_while_datagrams_wait_that_were_handed_over() {
        let mut exporters = Exporters::new();
        exporters.send();
        let [first, second] = exporters.take(exporters.sockets.len());
        assert!(first > 0 && second > 0, "{first} and {second}");
        let ends = ExportHandover::build_for_workers(2, BATCH, RECEIVED);
        exporters.workers.iter_mut().zip(ends).for_each(|(worker, end)| worker.handover = Some(end));
        // Two batches wait at the first worker: of exporters that are its own from the change on, then of those that were.
        exporters.workers[0].steer_to_workers(&[1, 0]).unwrap();
        for is_own in [true, false] {
            let mut packets = PacketBatch::default();
            let is_wanted =
                |from: &SocketAddrV4| (exporter_worker(IpAddr::V4(*from.ip()), &[1, 0]) == 0) == is_own;
            for from in exporters.addresses().filter(is_wanted) {
                packets.push_datagram(from, from, &EMPTY, 0).unwrap();
            }
            let handover = exporters.workers[1].handover.as_mut().unwrap();
            assert!(
                handover.has_room()
                    && packets.iter().take(BATCH).all(|packet| handover.push_datagram(0, packet))
            );
            handover.send();
        }
        // The first batch has nothing of others, yet the exporters of the second one keep their places until it is read.
        exporters.take_at(0);
        assert_eq!(exporters.sources()[0], (first + second) as u64);
        exporters.take_at(0);
        exporters.take_at(0);
        assert_eq!(exporters.sources()[0], second as u64);
    }
}

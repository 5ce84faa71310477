//! The listeners for flow exports, beside those of INT.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dta_files::moment::now_ns;
use dta_link::{IntakeOpener, LinkCounters, LinkError};
use dta_proto::batch::PacketBatch;
use dta_telemetry::flows::{Decoder, SourceRegistry};
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Telemetry};
use tracing::info;

use super::listener::{RECEIVED, TelemetryListener, sum_link_counters};
use super::steering::{exporter_steering, exporter_worker};
use crate::config::FlowTable;

/// Datagrams per batch. Each has some thirty records, and each record several operations.
const BATCH: usize = 16;

/// The workers to which exporters come. All go by it at once, as the kernel does.
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
    shared: Arc<ExporterWorkers>,
    /// The workers to which exporters come, and the generation of that.
    workers: (u32, Arc<[usize]>),
    /// Whether the decoder may know exporters that come to other workers.
    has_others: bool,
}

impl FlowListeners {
    /// Opens the listeners for so many workers; there may be none.
    pub(super) fn open_for_workers(
        table: &FlowTable,
        workers: usize,
        interfaces: &mut IntakeOpener,
    ) -> Result<Vec<FlowListeners>, LinkError> {
        let registry = Arc::new(SourceRegistry::default());
        // Until the lists are known, as if each worker had one.
        let shared = Arc::new(ExporterWorkers::new(workers));
        let one = |worker| FlowListeners {
            worker,
            links: Vec::new(),
            decoder: Decoder::with_registry(table.decoder_options(), Arc::clone(&registry)),
            batch: PacketBatch::with_packet_capacity(BATCH, RECEIVED),
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

    /// What the thread waits for.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.links.iter().map(TelemetryListener::socket)
    }

    /// Sends exporters to these workers from now on.
    pub(super) fn steer_to_workers(&self, workers: &[usize]) -> Result<(), LinkError> {
        let before = self.shared.read();
        // Workers first: what still comes to the former one is decoded there, and its place is freed behind it.
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

    /// Receives a batch from each listener, and makes primitives of its records; returns the number of datagrams.
    pub(super) fn receive_exports(
        &mut self,
        now: u64,
        telemetry: &mut Telemetry,
        made: &mut PrimitiveBatch,
    ) -> Result<usize, LinkError> {
        let (mut received, mut of_others) = (0, false);
        self.decoder.take_part_in_search(now);
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.workers.0 {
            self.workers = (generation, self.shared.read());
            self.has_others = true;
        }
        for link in &mut self.links {
            let count = link.recv(&mut self.batch)?;
            if count == 0 {
                continue;
            }
            received += count;
            let at = ArrivalTime { now, wall: now_ns() };
            // A listener's packets have complete headers.
            for (from, payload) in
                (0..self.batch.len()).filter_map(|index| self.batch.source_and_payload(index))
            {
                of_others |= exporter_worker(from.ip(), &self.workers.1) != self.worker;
                self.decoder.decode_datagram(at, from, payload, |exported| match exported {
                    Ok(exported) => telemetry.ingest_exported(at, &exported, made),
                    Err(reason) => telemetry.drop_record(reason),
                });
            }
            for sender in self.decoder.take_new_senders() {
                info!(%sender, "taking flow exports of a new sender");
            }
        }
        // What came before a change is read as before. Behind it, the places of its exporters are those of other workers.
        self.has_others |= of_others;
        if self.has_others && !of_others {
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
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use dta_telemetry::reports::Rules;

    use super::*;

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
                let mut datagram = [0; 24];
                datagram[1] = 5;
                assert_eq!(socket.send_to(&datagram, self.to).unwrap(), datagram.len());
            }
        }

        /// Both workers take until so many have come, and look once more; returns how many each took.
        fn take(&mut self, expected: usize) -> [usize; 2] {
            let mut taken = [0; 2];
            loop {
                let is_last = taken.iter().sum::<usize>() == expected;
                for (worker, taken) in self.workers.iter_mut().zip(&mut taken) {
                    self.now += 1;
                    *taken += worker
                        .receive_exports(self.now, &mut self.telemetry, &mut PrimitiveBatch::default())
                        .unwrap();
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
        // What has come to the first before the change is read, and takes no place for longer than that.
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
}

//! The listeners for flow exports, beside those of INT.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use dta_files::moment::now_ns;
use dta_link::{Link, LinkCounters, LinkError, UdpConfig, UdpLink};
use dta_proto::batch::PacketBatch;
use dta_telemetry::flows::Decoder;
use dta_telemetry::reports::{ArrivalTime, PrimitiveBatch, Telemetry};
use tracing::info;

use super::int_side::RECEIVED;
use crate::config::FlowTable;

/// Datagrams per batch. Each has some thirty records, and each record several operations.
const BATCH: usize = 16;

/// The listeners, and what is known of the exporters.
pub(super) struct FlowListeners {
    links: Vec<UdpLink>,
    decoder: Decoder,
    batch: PacketBatch,
}

impl FlowListeners {
    /// Opens the listeners; there may be none.
    pub(super) fn open(table: &FlowTable) -> Result<FlowListeners, LinkError> {
        let open = |listener: &crate::config::FlowListener| {
            let link = UdpLink::open(&UdpConfig::for_reports(listener.0, false))?;
            info!(listen = %link.local_addr(), "receiving flow exports");
            Ok(link)
        };
        Ok(FlowListeners {
            links: table.listen.iter().map(open).collect::<Result<_, LinkError>>()?,
            decoder: Decoder::new(table.decoder_options()),
            batch: PacketBatch::with_packet_capacity(BATCH, RECEIVED),
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Their addresses, in the order of the configuration.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.links.iter().map(|link| link.local_addr().to_string()).collect()
    }

    /// What the thread waits for.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.links.iter().map(AsFd::as_fd)
    }

    /// Receives a batch from each listener, and makes primitives of its records; returns the number of datagrams.
    pub(super) fn take(
        &mut self,
        now: u64,
        telemetry: &mut Telemetry,
        made: &mut PrimitiveBatch,
    ) -> Result<usize, LinkError> {
        let mut received = 0;
        for link in &mut self.links {
            let count = link.recv(&mut self.batch, Some(Duration::ZERO))?;
            if count == 0 {
                continue;
            }
            received += count;
            let at = ArrivalTime { now, wall: now_ns() };
            // A socket's packets have complete headers.
            for datagram in (0..self.batch.len()).filter_map(|index| self.batch.udp_datagram(index)) {
                let from = SocketAddr::V4(datagram.source());
                self.decoder.decode_datagram(at, from, datagram.payload(), |exported| match exported {
                    Ok(exported) => telemetry.ingest_exported(at, &exported, made),
                    Err(reason) => telemetry.drop_record(reason),
                });
            }
            for sender in self.decoder.take_new_senders() {
                info!(%sender, "taking flow exports of a new sender");
            }
        }
        Ok(received)
    }

    /// Counters of the exporters by their dotted names.
    pub(super) fn named_counters(&self) -> Vec<(String, u64)> {
        self.decoder.named_counters()
    }

    pub(super) fn link_counters(&self) -> LinkCounters {
        super::int_side::sum(self.links.iter())
    }
}

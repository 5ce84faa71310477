//! Groups reports of one length before they are sent.

use dta_proto::batch::PacketBatch;
use dta_proto::wire::datagram;
use dta_proto::wire::dta::Version;

use crate::backup::Backup;
use crate::reporter::{AGAIN, FLAGS, RETRANSMITTABLE, number_report};

/// Reorders batches. Allocates on creation.
pub(crate) struct Gather {
    version: Version,
    ordered: PacketBatch,
    order: Vec<(usize, usize)>,
    /// Each store in the batch, with the length of its reports.
    stores: Vec<(u16, usize)>,
    /// Sequences in their new order.
    sequences: Vec<u32>,
}

impl Gather {
    /// Handles batches of up to `batch` reports.
    pub(crate) fn new(version: Version, batch: usize) -> Gather {
        Gather {
            version,
            ordered: PacketBatch::new(0),
            order: Vec::with_capacity(batch),
            stores: Vec::with_capacity(batch),
            sequences: Vec::with_capacity(batch),
        }
    }

    /// Returns the reports of `batch` grouped by length, otherwise in order, and renumbered; keeps the
    /// retransmittable ones for retransmission. `batch` is then empty, unless it is returned. If two
    /// reports for one store differ in length, all stay in place: they may be for one key.
    pub(crate) fn put_in_order<'a>(
        &'a mut self,
        batch: &'a mut PacketBatch,
        backup: &mut Backup,
    ) -> &'a mut PacketBatch {
        self.order.clear();
        self.stores.clear();
        let (mut in_order, mut mixed) = (true, false);
        for index in 0..batch.len() {
            let len = batch.packet(index).len();
            in_order &= self.order.last().is_none_or(|(last, _)| *last <= len);
            let store = report_destination(self.version, &batch.packet(index)[datagram::HEADER_LEN..]);
            match self.stores.iter().find(|(known, _)| *known == store) {
                Some((_, known)) => mixed |= *known != len,
                None => self.stores.push((store, len)),
            }
            self.order.push((len, index));
        }
        let leaving = if in_order || mixed {
            batch
        } else {
            // Sorted by place within a length: no allocation, and a stable order.
            self.order.sort_unstable();
            if self.ordered.slot_count() < batch.slot_count()
                || self.ordered.packet_capacity() < batch.packet_capacity()
            {
                self.ordered = PacketBatch::with_packet_capacity(batch.slot_count(), batch.packet_capacity());
            }
            self.ordered.clear();
            self.sequences.clear();
            let new =
                (0..batch.len()).map(|index| batch.packet_cookie(index)).filter(|cookie| cookie & AGAIN == 0);
            self.sequences.extend(new.map(|cookie| cookie as u32));
            let mut sequences = self.sequences.iter();
            for (_, index) in &self.order {
                let again = batch.packet_cookie(*index) & AGAIN != 0;
                let cookie = match again {
                    true => batch.packet_cookie(*index),
                    false => u64::from(sequences.next().copied().unwrap_or_default()),
                };
                let packet = batch.packet(*index);
                let Some(slot) = self.ordered.next_slot() else { break };
                slot[..packet.len()].copy_from_slice(packet);
                if !again {
                    number_report(self.version, &mut slot[datagram::HEADER_LEN..packet.len()], cookie as u32);
                }
                match batch.addresses(*index) {
                    Some(addresses) => self.ordered.commit_datagram(packet.len(), addresses, cookie),
                    None => self.ordered.commit_packet(packet.len(), cookie),
                }
            }
            batch.clear();
            &mut self.ordered
        };
        for index in 0..leaving.len() {
            let report = &leaving.packet(index)[datagram::HEADER_LEN..];
            if report[FLAGS] & RETRANSMITTABLE != 0 && leaving.packet_cookie(index) & AGAIN == 0 {
                backup.retain_report(leaving.packet_cookie(index) as u32, report);
            }
        }
        leaving
    }
}

/// The destination of a report: its store; in version 0, which names none, its primitive.
fn report_destination(version: Version, report: &[u8]) -> u16 {
    match version {
        Version::V0 => report[0].into(),
        Version::V1 => u16::from_be_bytes([report[4], report[5]]),
    }
}

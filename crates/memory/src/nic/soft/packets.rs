//! Where a responder reads packets from.

use dta_proto::batch::PacketBatch;

pub trait Packets {
    fn packet_count(&self) -> usize;

    /// Packet `index`, from its IPv4 header on.
    fn packet_at(&self, index: usize) -> &[u8];

    /// Packet `index` with its Ethernet header, if it came with one: answers then carry one, too.
    fn frame_at(&self, index: usize) -> Option<&[u8]> {
        let _ = index;
        None
    }

    /// Whether the UDP checksum of packet `index` was never filled in.
    fn checksum_pending(&self, index: usize) -> bool {
        let _ = index;
        false
    }

    /// Whether the IPv4 id in the header of packet `index` is not the one it was sent with.
    fn id_unknown(&self, index: usize) -> bool {
        let _ = index;
        false
    }
}

impl Packets for PacketBatch {
    #[inline]
    fn packet_count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn packet_at(&self, index: usize) -> &[u8] {
        PacketBatch::packet(self, index)
    }

    #[inline]
    fn frame_at(&self, index: usize) -> Option<&[u8]> {
        PacketBatch::ethernet_frame(self, index)
    }

    #[inline]
    fn checksum_pending(&self, index: usize) -> bool {
        PacketBatch::checksum_pending(self, index)
    }

    #[inline]
    fn id_unknown(&self, index: usize) -> bool {
        PacketBatch::id_unknown(self, index)
    }
}

/// Packets in memory, for tests and for programs that own both ends of a link.
impl<B: AsRef<[u8]>> Packets for [B] {
    #[inline]
    fn packet_count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn packet_at(&self, index: usize) -> &[u8] {
        self[index].as_ref()
    }
}

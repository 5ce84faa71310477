//! What the decoder counts: what became of every byte, and what was learned.

use dta_proto::counter::{Enterprise, FlowReason, translator as names};

use crate::exported::Exported;

dta_proto::published_counters! {
    /// Counters of the decoder. `bytes = read_bytes + unread_bytes` after every datagram.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct DecoderCounters {
        pub datagrams: u64 = names::FLOWS_DATAGRAMS,
        pub bytes: u64 = names::FLOWS_BYTES,
        pub read_bytes: u64 = names::FLOWS_READ_BYTES,
        pub options: u64 = names::FLOWS_OPTIONS,
        pub names: u64 = names::FLOWS_NAMES,
        pub interfaces: u64 = names::FLOWS_INTERFACES,
        pub hops: u64 = names::FLOWS_HOPS,
        pub unused: u64 = names::FLOWS_UNUSED,
    }
    by {
        unread_bytes: FlowReason = names::FLOWS_UNREAD_BYTES,
        enterprise_sets: Enterprise = names::FLOWS_ENTERPRISE_SETS,
    }
}

impl DecoderCounters {
    /// Counts bytes that are not read, and passes on the reason.
    pub(crate) fn refuse(
        &mut self,
        reason: FlowReason,
        len: usize,
        each: &mut impl FnMut(Result<Exported, FlowReason>),
    ) {
        self.unread_bytes[reason as usize] += len as u64;
        each(Err(reason));
    }

    #[inline]
    pub(crate) fn note_read(&mut self, len: usize) {
        self.read_bytes += len as u64;
    }

    /// Says what does not add up.
    pub fn find_imbalance(&self) -> Option<String> {
        let unread: u64 = self.unread_bytes.iter().sum();
        (self.bytes != self.read_bytes + unread).then(|| {
            format!("{} bytes of flow exports, {} read and {unread} not", self.bytes, self.read_bytes)
        })
    }
}

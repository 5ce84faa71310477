//! What an end of a shared ring counts: the collector's and the translator's alike (`docs/rdma.md`).

use super::table;

table! {
    /// Frames in shared memory, between two programs of one host.
    RING "shared ring" {
        OPENED: "ring.opened", Times, Beside, "shared rings that were opened (docs/rdma.md)" .detail();
        BROKEN: "ring.broken", Times, Beside,
            "of them, those that were given up because the other end wrote what cannot be";
        SENT: "ring.sent", Packets, Beside, "of the packets that the link took, those that went into a ring"
            .detail();
        RECEIVED: "ring.received", Packets, Beside,
            "of the packets that the link gave, those that came out of a ring" .detail();
        FULL: "ring.full", Times, Beside, "times that a ring was full and was waited for" .detail();
        WOKEN: "ring.woken", Times, Beside, "times that the other end slept and was woken" .detail();
        LEFT: "ring.left", Packets, Beside,
            "of the packets in rings, those that an other end that is gone has not taken";
    }
}

//! What an end of a shared ring counts: the collector's and the translator's alike (`docs/rdma.md`).

use super::table;

table! {
    /// Frames in shared memory, between two programs of one host.
    RING "shared ring" {
        OPENED: "ring.opened", Times, Beside, "shared rings that were opened (docs/rdma.md)" .detail();
        BROKEN: "ring.broken", Times, Beside,
            "shared rings that were given up because the other end wrote what cannot be";
        SENT: "ring.sent", Packets, Beside, "packets sent through a shared ring"
            .detail();
        RECEIVED: "ring.received", Packets, Beside,
            "packets received through a shared ring" .detail();
        FULL: "ring.full", Times, Beside, "times that a shared ring was full and was waited for" .detail();
        WOKEN: "ring.woken", Times, Beside, "times that the other end of a shared ring slept and was woken" .detail();
        LEFT: "ring.left", Packets, Beside,
            "packets in shared rings that their other end had not taken when it went away";
    }
}

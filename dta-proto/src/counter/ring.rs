//! Counters of one end of a shared ring, at the collector and at the translator (`docs/rdma.md`).

use super::table;

table! {
    /// Frames in shared memory, between two programs of one host.
    RING "shared ring" {
        OPENED: "ring.opened", Times, Beside, "shared rings opened (docs/rdma.md)" .as_detail();
        BROKEN: "ring.broken", Times, Beside,
            "shared rings closed because the other end wrote invalid data";
        SENT: "ring.sent", Packets, Beside, "packets sent through a shared ring"
            .as_detail();
        RECEIVED: "ring.received", Packets, Beside,
            "packets received through a shared ring" .as_detail();
        FULL: "ring.full", Times, Beside, "times that a full shared ring had to be waited for" .as_detail();
        WOKEN: "ring.woken", Times, Beside, "times that the other end of a shared ring slept and was woken" .as_detail();
        LEFT: "ring.left", Packets, Beside,
            "packets that the other end of a shared ring had not taken when it went away";
    }
}

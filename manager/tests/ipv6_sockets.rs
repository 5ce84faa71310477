//! Collector and translator, each a process, whose frames go over IPv6 by UDP sockets.

mod common;
mod exact;

use exact::{Bed, Counted, KEYS};

#[tokio::test]
async fn answers_over_ipv6_by_sockets_are_exact() {
    for (transport, threads) in [("uc", 1), ("rc", 2)] {
        let collector = format!(
            "listen = '127.0.0.1:0'\ntransport = '{transport}'\n[soft]\naddress = '::1'\nport = 0\nthreads = {threads}"
        );
        let mut bed = Bed::start(&collector, "source = '::1'\nsource_port = 0", || ());
        let landed = |counted: &Counted| {
            let executed = counted.nic("executed.write") + counted.nic("executed.fetch_add");
            executed == counted.translator("operations")
                && counted.translator("link.roce.sent") == counted.nic("link.received")
                && counted.translator("link.roce.received") == counted.nic("link.sent")
        };
        let counted = bed.answers_exactly(landed).await;
        assert!(counted.translator("link.roce.sent") > KEYS.into(), "{transport}");
        assert!(counted.translator("link.roce.received") > 0, "{transport}: increments are acknowledged");
        // Rings and runs are of IPv4.
        assert_eq!(counted.translator("ring.sent"), 0);
    }
}

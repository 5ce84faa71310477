// Forwarding. Every drop has a reason.
#ifndef REPORTER_TNA_FORWARD
#define REPORTER_TNA_FORWARD

control Forward(inout ingress_headers_t hdr, inout ingress_metadata_t meta, inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    action drop(bit<8> reason) {
        meta.dropped = 1;
        meta.reason = reason;
    }
    action forward(bit<9> port) {
        to_tm.ucast_egress_port = port;
        hdr.bridge.egress_port = 7w0 ++ port;
    }
    // To all ports of a multicast group. Egress drops the copy for the ingress port. The traffic manager does not deflect
    // copies.
    action flood(bit<16> group) {
        to_tm.mcast_grp_a = group;
        to_tm.deflect_on_drop = 0;
        hdr.bridge.flooded = 1;
    }
    action route() {}
    action next_hop(bit<9> port, bit<48> source, bit<48> destination) {
        to_tm.ucast_egress_port = port;
        hdr.bridge.egress_port = 7w0 ++ port;
        hdr.ethernet.source = source;
        hdr.ethernet.destination = destination;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        meta.routed = 1;
    }

    table l2 {
        key = { hdr.ethernet.destination: exact @name("destination"); }
        actions = { forward; flood; route; drop; }
        const default_action = drop(REASON_BRIDGING_MISS);
        size = 4096;
    }

    table l3 {
        key = { hdr.ipv4.destination: lpm @name("destination"); }
        actions = { next_hop; drop; }
        const default_action = drop(REASON_IP_MISS);
        size = 4096;
    }

    apply {
        switch (l2.apply().action_run) {
            route: {
                if (!hdr.ipv4.isValid()) {
                    drop(REASON_IP_MISS);
                } else if (hdr.ipv4.ttl == 0 || hdr.ipv4.ttl == 1) {
                    drop(REASON_IP_TTL_ZERO);
                } else {
                    l3.apply();
                }
            }
        }
    }
}

#endif

// Forwarding. Every drop has a reason.
#ifndef REPORTER_V1MODEL_FORWARD
#define REPORTER_V1MODEL_FORWARD

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop(bit<8> reason) {
        meta.dropped = 1;
        meta.reason = reason;
    }
    action forward(bit<9> port) {
        standard.egress_spec = port;
    }
    // To all ports of a multicast group. Egress drops the copy for the ingress port.
    action flood(bit<16> group) {
        standard.mcast_grp = group;
    }
    action route() {}
    // Adds to the checksum what the TTL loses (RFC 1141).
    action next_hop(bit<9> port, bit<48> source, bit<48> destination) {
        standard.egress_spec = port;
        hdr.ethernet.source = source;
        hdr.ethernet.destination = destination;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        bit<17> sum = (bit<17>)hdr.ipv4.checksum + 0x100;
        hdr.ipv4.checksum = sum[15:0] + (bit<16>)sum[16:16];
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
                } else if (hdr.ipv4.ttl <= 1) {
                    drop(REASON_IP_TTL_ZERO);
                } else {
                    l3.apply();
                }
            }
        }
    }
}

#endif

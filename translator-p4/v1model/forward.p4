// Traffic that is not for the translator: switched by its destination MAC address, or routed if
// that is the switch's own.
#ifndef DTA_V1MODEL_FORWARD
#define DTA_V1MODEL_FORWARD

control Forward(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action drop() {
        mark_to_drop(standard);
    }
    action forward(bit<9> port) {
        standard.egress_spec = port;
    }
    // To all ports of a multicast group. Egress drops the copy for the ingress port.
    action flood(bit<16> group) {
        standard.mcast_grp = group;
    }
    action route() {}
    action next_hop(bit<9> port, bit<48> source, bit<48> destination) {
        standard.egress_spec = port;
        hdr.ethernet.source = source;
        hdr.ethernet.destination = destination;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        meta.header_changed = 1;
    }

    table l2 {
        key = { hdr.ethernet.destination: exact @name("mac"); }
        actions = { forward; flood; route; drop; }
        const default_action = drop();
        size = 4096;
    }

    table l3 {
        key = { hdr.ipv4.destination: lpm @name("address"); }
        actions = { next_hop; drop; }
        const default_action = drop();
        size = 4096;
    }

    apply {
        switch (l2.apply().action_run) {
            route: {
                if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
                    l3.apply();
                } else {
                    drop();
                }
            }
        }
    }
}

#endif

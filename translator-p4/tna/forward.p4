// Traffic that is not for the translator: switched by its destination MAC address, or routed if
// that is the switch's own.
#ifndef DTA_TNA_FORWARD
#define DTA_TNA_FORWARD

control Forward(inout ingress_headers_t hdr, inout ingress_metadata_t meta, inout ingress_intrinsic_metadata_for_deparser_t to_deparser, inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    bit<1> routed = 0;

    action drop() {
        to_deparser.drop_ctl = 1;
    }
    action forward(bit<9> port) {
        to_tm.ucast_egress_port = port;
    }
    // To all ports of a multicast group. Egress drops the copy for the ingress port.
    action flood(bit<16> group) {
        to_tm.mcast_grp_a = group;
        hdr.kind.flooded = 1;
    }
    action route() {
        routed = 1;
    }
    action next_hop(bit<9> port, bit<48> source, bit<48> destination) {
        to_tm.ucast_egress_port = port;
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
        size = 2048;
    }

    apply {
        l2.apply();
        if (routed == 1) {
            if (hdr.ipv4.isValid() && hdr.ipv4.ttl > 1) {
                l3.apply();
            } else {
                drop();
            }
        }
    }
}

#endif

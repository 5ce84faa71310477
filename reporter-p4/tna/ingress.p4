// Ingress: the flow of a packet, whether it is watched, and where it goes. Packets dropped here are reported from here.
#ifndef REPORTER_TNA_INGRESS
#define REPORTER_TNA_INGRESS

control Arrival(
    inout ingress_headers_t hdr, inout ingress_metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
    in ingress_intrinsic_metadata_from_parser_t from_parser,
    inout ingress_intrinsic_metadata_for_deparser_t to_deparser, inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    // Packets by ingress port.
    Counter<bit<64>, bit<9>>(512, CounterType_t.PACKETS_AND_BYTES) received;
    // Packets without an IPv4 flow: 0 IPv6, 1 others.
    Counter<bit<64>, bit<1>>(2, CounterType_t.PACKETS) no_flow;
    // Packets of DTA, RoCEv2 and INT, which are never watched.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) excluded_packets;
    // Packets that match the watchlist.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) watched;
    // Packets dropped here, by reason.
    Counter<bit<64>, bit<8>>(256, CounterType_t.PACKETS) dropped;
    // Clones requested here, by the mask of their kinds.
    Counter<bit<64>, bit<4>>(16, CounterType_t.PACKETS) ingress_mirrored;

    Forward() forwarding;

    // ---- Allowed ingress ports.
    action admit(bit<4> hop) {
        hdr.bridge.hop = 4w0 ++ hop;
    }
    action refuse() {
        meta.dropped = 1;
        meta.reason = REASON_INGRESS_PORT_MISS;
    }
    table ingress_port {
        key = { intrinsic.ingress_port: exact @name("ingress_port"); }
        actions = { admit; @defaultonly refuse; }
        const default_action = refuse();
        size = 512;
    }

    // ---- The ACL, on the outer header.
    action permit() {}
    action deny(bit<8> reason) {
        meta.dropped = 1;
        meta.reason = reason;
    }
    table acl {
        key = {
            intrinsic.ingress_port: ternary @name("ingress_port");
            hdr.ipv4.source: ternary @name("source");
            hdr.ipv4.destination: ternary @name("destination");
            hdr.ipv4.protocol: ternary @name("protocol");
            hdr.ports.source: range @name("source_port");
            hdr.ports.destination: range @name("destination_port");
        }
        actions = { permit; deny; }
        const default_action = permit();
        size = 512;
    }

    // ---- The queue of a packet, by its DSCP.
    action use_queue(bit<5> queue) {
        to_tm.qid = queue;
        hdr.bridge.queue = 3w0 ++ queue;
    }
    table queue_of {
        key = { hdr.ipv4.tos[7:2]: exact @name("dscp"); }
        actions = { use_queue; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    // ---- Traffic of DTA, RoCEv2 and INT, known by its ports, is never watched.
    action own() {
        meta.is_own = 1;
    }
    table own_traffic {
        key = {
            hdr.ipv4.isValid(): exact;
            hdr.ipv4.protocol: ternary;
            hdr.ports.isValid(): ternary;
            hdr.ports.source: ternary;
            hdr.ports.destination: ternary;
            hdr.inner_ipv4.protocol: ternary;
            hdr.inner_ports.isValid(): ternary;
            hdr.inner_ports.source: ternary;
            hdr.inner_ports.destination: ternary;
        }
        actions = { own; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, PROTOCOL_UDP, true, PORT_DTA, _, _, _, _, _): own();
            (true, PROTOCOL_UDP, true, _, PORT_DTA, _, _, _, _): own();
            (true, PROTOCOL_UDP, true, _, PORT_NACK_V0, _, _, _, _): own();
            (true, PROTOCOL_UDP, true, _, PORT_ROCE, _, _, _, _): own();
            (true, _, _, _, _, PROTOCOL_UDP, true, PORT_DTA, _): own();
            (true, _, _, _, _, PROTOCOL_UDP, true, _, PORT_DTA): own();
            (true, _, _, _, _, PROTOCOL_UDP, true, _, PORT_NACK_V0): own();
            (true, _, _, _, _, PROTOCOL_UDP, true, _, PORT_ROCE): own();
        }
        size = 16;
    }
    action exclude() {
        meta.is_own = 1;
    }
    table excluded {
        key = {
            hdr.ipv4.destination: ternary @name("destination");
            hdr.ipv4.protocol: exact @name("protocol");
            hdr.ports.destination: ternary @name("destination_port");
        }
        actions = { exclude; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    // ---- What is watched, and what is reported of it. `deflect`: the traffic manager sends what it would drop to egress.
    action watch(bit<1> flows, bit<1> queues, bit<1> drops, bit<1> deflect) {
        hdr.bridge.watch_flows = flows;
        hdr.bridge.watch_queues = queues;
        hdr.bridge.watch_drops = drops;
        to_tm.deflect_on_drop = deflect;
        watched.count(0);
    }
    action ignore() {}
    table watchlist {
        key = {
            hdr.bridge.source: ternary @name("source");
            hdr.bridge.destination: ternary @name("destination");
            hdr.bridge.protocol: ternary @name("protocol");
            hdr.bridge.source_port: range @name("source_port");
            hdr.bridge.destination_port: range @name("destination_port");
        }
        actions = { watch; ignore; }
        const default_action = ignore();
        size = 512;
    }

    // ---- The flow of a packet: the inner one if it is tunnelled.
    action outer_flow() {
        meta.has_flow = 1;
        hdr.bridge.source = hdr.ipv4.source;
        hdr.bridge.destination = hdr.ipv4.destination;
        hdr.bridge.protocol = hdr.ipv4.protocol;
    }
    action outer_flow_with_ports() {
        outer_flow();
        hdr.bridge.source_port = hdr.ports.source;
        hdr.bridge.destination_port = hdr.ports.destination;
    }
    action inner_flow() {
        meta.has_flow = 1;
        hdr.bridge.source = hdr.inner_ipv4.source;
        hdr.bridge.destination = hdr.inner_ipv4.destination;
        hdr.bridge.protocol = hdr.inner_ipv4.protocol;
    }
    action inner_flow_with_ports() {
        inner_flow();
        hdr.bridge.source_port = hdr.inner_ports.source;
        hdr.bridge.destination_port = hdr.inner_ports.destination;
    }
    // Keyed by the headers that are present and valid: version 4, at least five words. Whether a header is longer
    // than its packet is not checked; bmv2's program does check it.
    table flow {
        key = {
            hdr.ipv4.isValid(): exact;
            hdr.ipv4.version: ternary;
            hdr.ipv4.ihl: ternary;
            hdr.ports.isValid(): exact;
            hdr.inner_ipv4.isValid(): exact;
            hdr.inner_ipv4.version: ternary;
            hdr.inner_ipv4.ihl: ternary;
            hdr.inner_ports.isValid(): ternary;
        }
        actions = { outer_flow; outer_flow_with_ports; inner_flow; inner_flow_with_ports; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 4, 5, true, true, 4, 5, true): inner_flow_with_ports();
            (true, 4, 5, true, true, 4, 6 &&& 0x0e, false): inner_flow();
            (true, 4, 5, true, true, 4, 8 &&& 0x08, false): inner_flow();
            (true, 4, 5, true, true, 4, 5, false): inner_flow();
            (true, 4, 5, true, true, _, _, _): outer_flow_with_ports();
            (true, 4, 5, true, false, _, _, _): outer_flow_with_ports();
            (true, 4, 5, false, false, _, _, _): outer_flow();
            (true, 4, 6 &&& 0x0e, false, false, _, _, _): outer_flow();
            (true, 4, 8 &&& 0x08, false, false, _, _, _): outer_flow();
        }
        size = 16;
    }

    apply {
        received.count(intrinsic.ingress_port);
        hdr.bridge.setValid();
        hdr.bridge.work = WORK_FORWARD;
        hdr.bridge.watch_flows = 0;
        hdr.bridge.watch_queues = 0;
        hdr.bridge.watch_drops = 0;
        hdr.bridge.flooded = 0;
        hdr.bridge.hop = 0;
        hdr.bridge.source_port = 0;
        hdr.bridge.destination_port = 0;
        hdr.bridge.ingress_port = 7w0 ++ intrinsic.ingress_port;
        hdr.bridge.egress_port = 0xffff;
        hdr.bridge.queue = 0;
        to_tm.deflect_on_drop = 0;
        hdr.bridge.arrived = from_parser.global_tstamp[31:0];
        meta.seen = from_parser.global_tstamp[31:0];

        // ---- The flow.
        flow.apply();
        own_traffic.apply();
        if (hdr.ipv4.isValid()) {
            excluded.apply();
        }
        if (meta.has_flow == 1) {
            if (meta.is_own == 1) {
                excluded_packets.count(0);
            } else {
                watchlist.apply();
            }
        } else if (hdr.ethernet.type == ETHERTYPE_IPV6) {
            no_flow.count(0);
        } else {
            no_flow.count(1);
        }

        // ---- Forwarding.
        ingress_port.apply();
        if (meta.dropped == 0 && hdr.ipv4.isValid()) {
            acl.apply();
        }
        if (meta.dropped == 0) {
            forwarding.apply(hdr, meta, to_tm);
        }
        if (meta.dropped == 1) {
            to_deparser.drop_ctl = 1;
            dropped.count(meta.reason);
            if (hdr.bridge.watch_drops == 1) {
                meta.kinds = (bit<8>)KIND_DROP;
                meta.place = 0;
                meta.egress_port = 0xffff;
                meta.latency = 0;
                meta.session = 4;
                meta.queue_and_depth = 0xff000000;
                to_deparser.mirror_type = MIRROR_REPORT;
                ingress_mirrored.count(KIND_DROP);
            }
        } else if (hdr.ipv4.isValid()) {
            queue_of.apply();
        }
    }
}

#endif

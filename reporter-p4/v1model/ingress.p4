// Ingress: the flow of a packet, whether it is watched, and where it goes. Packets dropped here are
// reported from here.
#ifndef REPORTER_V1MODEL_INGRESS
#define REPORTER_V1MODEL_INGRESS

control Arrival(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // Packets by ingress port.
    counter(512, CounterType.packets_and_bytes) received;
    // Packets without an IPv4 flow: 0 IPv6, 1 others.
    counter(2, CounterType.packets) no_flow;
    // Packets of DTA, RoCEv2 and INT, which are never watched.
    counter(1, CounterType.packets) excluded_packets;
    // Packets that match the watchlist.
    counter(1, CounterType.packets) watched;
    // Packets dropped here, by reason.
    counter(256, CounterType.packets) dropped;
    // Clones requested here, by the mask of their kinds.
    counter(16, CounterType.packets) ingress_mirrored;

    Forward() forwarding;

    // ---- Allowed ingress ports.
    action admit(bit<4> hop) {
        meta.hop = hop;
    }
    action refuse() {
        meta.dropped = 1;
        meta.reason = REASON_INGRESS_PORT_MISS;
    }
    table ingress_port {
        key = { standard.ingress_port: exact @name("ingress_port"); }
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
            standard.ingress_port: ternary @name("ingress_port");
            hdr.ipv4.source: ternary @name("source");
            hdr.ipv4.destination: ternary @name("destination");
            hdr.ipv4.protocol: ternary @name("protocol");
            hdr.ports.source: range @name("source_port");
            hdr.ports.destination: range @name("destination_port");
        }
        actions = { permit; deny; }
        const default_action = permit();
        size = 1024;
    }

    // ---- The queue of a packet, by its DSCP. bmv2 has one queue unless started with `--priority-queues`.
    action use_queue(bit<3> queue) {
        standard.priority = queue;
        meta.queue = (bit<32>)queue;
    }
    table queue_of {
        key = { hdr.ipv4.tos[7:2]: exact @name("dscp"); }
        actions = { use_queue; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    // ---- INT traffic, which is never watched. DTA and RoCEv2 are recognised by their ports below.
    action exclude() {
        meta.has_flow = 0;
        excluded_packets.count(0);
    }
    table excluded {
        key = {
            meta.destination: ternary @name("destination");
            meta.protocol: exact @name("protocol");
            meta.destination_port: ternary @name("destination_port");
        }
        actions = { exclude; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    // ---- What is watched, and what is reported of it.
    action watch(bit<1> flows, bit<1> queues, bit<1> drops) {
        meta.watch_flows = flows;
        meta.watch_queues = queues;
        meta.watch_drops = drops;
        watched.count(0);
    }
    action ignore() {}
    table watchlist {
        key = {
            meta.source: ternary @name("source");
            meta.destination: ternary @name("destination");
            meta.protocol: ternary @name("protocol");
            meta.source_port: range @name("source_port");
            meta.destination_port: range @name("destination_port");
        }
        actions = { watch; ignore; }
        const default_action = ignore();
        size = 1024;
    }

    action outer_flow() {
        meta.has_flow = 1;
        meta.source = hdr.ipv4.source;
        meta.destination = hdr.ipv4.destination;
        meta.protocol = hdr.ipv4.protocol;
    }
    action inner_flow() {
        meta.source = hdr.inner_ipv4.source;
        meta.destination = hdr.inner_ipv4.destination;
        meta.protocol = hdr.inner_ipv4.protocol;
    }

    apply {
        received.count((bit<32>)standard.ingress_port);
        meta.ingress_port = (bit<32>)standard.ingress_port;
        meta.egress_port = NOT_AVAILABLE;
        meta.queue = NOT_AVAILABLE;
        meta.bytes = standard.packet_length;
        meta.arrived = standard.ingress_global_timestamp;
        meta.seen = standard.ingress_global_timestamp;

        // ---- The flow.
        if (hdr.ipv4.isValid() && hdr.ipv4.version == 4 && hdr.ipv4.ihl >= 5
            && hdr.ipv4.total_length >= (bit<16>)hdr.ipv4.ihl << 2) {
            outer_flow();
            if (hdr.ports.isValid()) {
                meta.source_port = hdr.ports.source;
                meta.destination_port = hdr.ports.destination;
            }
            bool is_dta = meta.protocol == PROTOCOL_UDP
                && (meta.destination_port == PORT_DTA || meta.source_port == PORT_DTA
                    || meta.destination_port == PORT_NACK_V0 || meta.destination_port == PORT_ROCE);
            if (!is_dta) {
                excluded.apply();
            }
            if (hdr.inner_ipv4.isValid() && hdr.inner_ipv4.version == 4 && hdr.inner_ipv4.ihl >= 5
                && hdr.inner_ipv4.total_length >= (bit<16>)hdr.inner_ipv4.ihl << 2) {
                inner_flow();
                meta.source_port = 0;
                meta.destination_port = 0;
                if (hdr.inner_ports.isValid()) {
                    meta.source_port = hdr.inner_ports.source;
                    meta.destination_port = hdr.inner_ports.destination;
                }
                is_dta = is_dta || meta.protocol == PROTOCOL_UDP
                    && (meta.destination_port == PORT_DTA || meta.source_port == PORT_DTA
                        || meta.destination_port == PORT_NACK_V0 || meta.destination_port == PORT_ROCE);
            }
            if (is_dta) {
                exclude();
            } else if (meta.has_flow == 1) {
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
            forwarding.apply(hdr, meta, standard);
        }
        if (meta.dropped == 1) {
            mark_to_drop(standard);
            dropped.count((bit<32>)meta.reason);
            if (meta.watch_drops == 1) {
                meta.kinds = KIND_DROP;
                ingress_mirrored.count((bit<32>)KIND_DROP);
                clone_preserving_field_list(CloneType.I2E, (bit<32>)KIND_DROP, KEPT);
            }
        } else {
            meta.queue = 0;
            if (hdr.ipv4.isValid()) {
                queue_of.apply();
            }
        }
    }
}

#endif

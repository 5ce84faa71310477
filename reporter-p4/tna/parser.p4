// Parses packets, down to the inner flow of a tunnel.
#ifndef REPORTER_TNA_PARSER
#define REPORTER_TNA_PARSER

// A packet that ends too early has the headers up to there: its ports are 0, or it has no flow.
parser Packets(packet_in packet, out ingress_headers_t hdr, out ingress_metadata_t meta, out ingress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        // Fields that may be read without having been written.
        meta.has_flow = 0;
        meta.is_own = 0;
        meta.dropped = 0;
        meta.reason = 0;
        meta.routed = 0;
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_VLAN: vlan;
            ETHERTYPE_PROVIDER_VLAN: vlan;
            ETHERTYPE_OLD_VLAN: vlan;
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state vlan {
        packet.extract(hdr.vlan[0]);
        transition select(hdr.vlan[0].type) {
            ETHERTYPE_VLAN: second_vlan;
            ETHERTYPE_PROVIDER_VLAN: second_vlan;
            ETHERTYPE_OLD_VLAN: second_vlan;
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state second_vlan {
        packet.extract(hdr.vlan[1]);
        transition select(hdr.vlan[1].type) {
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    // Nothing after options is parsed: the ports of such a flow are 0.
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0, PROTOCOL_UDP): udp;
            (4, 5, 0, PROTOCOL_TCP): ports;
            (4, 5, 0, PROTOCOL_DCCP): ports;
            (4, 5, 0, PROTOCOL_SCTP): ports;
            (4, 5, 0, PROTOCOL_UDP_LITE): ports;
            default: accept;
        }
    }
    state ports {
        packet.extract(hdr.ports);
        transition accept;
    }
    state udp {
        packet.extract(hdr.ports);
        transition select(hdr.ports.destination) {
            PORT_VXLAN: vxlan;
            PORT_GTPU: gtpu;
            default: accept;
        }
    }
    state vxlan {
        packet.extract(hdr.udp_rest);
        packet.extract(hdr.vxlan);
        transition select(hdr.vxlan.has_network) {
            1: inner_ethernet;
            default: accept;
        }
    }
    state inner_ethernet {
        packet.extract(hdr.inner_ethernet);
        transition select(hdr.inner_ethernet.type) {
            ETHERTYPE_IPV4: inner_ipv4;
            default: accept;
        }
    }
    state gtpu {
        packet.extract(hdr.udp_rest);
        packet.extract(hdr.gtpu);
        transition select(hdr.gtpu.version, hdr.gtpu.protocol_type, hdr.gtpu.type,
                          hdr.gtpu.has_extension, hdr.gtpu.has_sequence, hdr.gtpu.has_npdu) {
            (1, 1, GTPU_USER_PACKET, 0, 0, 0): behind_gtpu;
            (1, 1, GTPU_USER_PACKET, 0, _, _): gtpu_more;
            (1, 1, GTPU_USER_PACKET, 1, _, _): gtpu_more_and_extension;
            default: accept;
        }
    }
    state gtpu_more {
        packet.extract(hdr.gtpu_more);
        transition behind_gtpu;
    }
    state gtpu_more_and_extension {
        packet.extract(hdr.gtpu_more);
        transition select(hdr.gtpu_more.next) {
            0: behind_gtpu;
            default: gtpu_extension;
        }
    }
    // One extension of one word, such as that of a PDU session.
    state gtpu_extension {
        packet.extract(hdr.gtpu_extension);
        transition select(hdr.gtpu_extension.words, hdr.gtpu_extension.next) {
            (1, 0): behind_gtpu;
            default: accept;
        }
    }
    state behind_gtpu {
        transition select(packet.lookahead<bit<4>>()) {
            4: inner_ipv4;
            default: accept;
        }
    }
    state inner_ipv4 {
        packet.extract(hdr.inner_ipv4);
        transition select(hdr.inner_ipv4.version, hdr.inner_ipv4.ihl, hdr.inner_ipv4.fragment_offset, hdr.inner_ipv4.protocol) {
            (4, 5, 0, PROTOCOL_UDP): inner_ports;
            (4, 5, 0, PROTOCOL_TCP): inner_ports;
            (4, 5, 0, PROTOCOL_DCCP): inner_ports;
            (4, 5, 0, PROTOCOL_SCTP): inner_ports;
            (4, 5, 0, PROTOCOL_UDP_LITE): inner_ports;
            default: accept;
        }
    }
    state inner_ports {
        packet.extract(hdr.inner_ports);
        transition accept;
    }
}

control ArrivalDeparser(packet_out packet, inout ingress_headers_t hdr, in ingress_metadata_t meta, in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    Checksum() header_checksum;
    Mirror() report;

    apply {
        if (to_deparser.mirror_type == MIRROR_REPORT) {
            report.emit<seen_parts_t>(meta.session, {
                meta.kinds, meta.place, hdr.bridge.protocol, meta.reason, hdr.bridge.source, hdr.bridge.destination,
                hdr.bridge.source_port, hdr.bridge.destination_port, hdr.bridge.ingress_port,
                meta.egress_port, meta.queue_and_depth, meta.latency, meta.seen
            });
        }
        if (meta.routed == 1) {
            hdr.ipv4.checksum = header_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.id,
                hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,
                hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source,
                hdr.ipv4.destination
            });
        }
        packet.emit(hdr);
    }
}

// A forwarded packet is not parsed again; of a clone, only its `seen` header and first header are.
parser Copies(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta, out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        transition select(packet.lookahead<bit<8>>()) {
            WORK_FORWARD: forward;
            default: report;
        }
    }
    state forward {
        // Fields that may be read without having been written. These flags share a container that the parser does not
        // fill. p4c would put others beside bits that it extracts, which would overwrite them: tables write those.
        meta.is_flow = 0;
        meta.is_queue = 0;
        meta.is_drop = 0;
        packet.extract(hdr.bridge);
        transition accept;
    }
    state report {
        meta.primitive = 0;
        meta.key_kind = 0;
        meta.value_kind = 0;
        meta.entry_kind = 0;
        packet.extract(hdr.seen);
        packet.extract(hdr.seen_source);
        packet.extract(hdr.seen_destination);
        packet.extract(hdr.seen_flow_ports);
        packet.extract(hdr.seen_ports);
        packet.extract(hdr.seen_queue_and_depth);
        packet.extract(hdr.seen_latency);
        packet.extract(hdr.seen_seen);
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control Frames(packet_out packet, inout egress_headers_t hdr, in egress_metadata_t meta, in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    Checksum() header_checksum;
    Mirror() report;

    apply {
        if (to_deparser.mirror_type == MIRROR_REPORT) {
            report.emit<seen_parts_t>(meta.session, {
                meta.kinds, meta.place, hdr.bridge.protocol, meta.reason, hdr.bridge.source, hdr.bridge.destination,
                hdr.bridge.source_port, hdr.bridge.destination_port, hdr.bridge.ingress_port,
                meta.egress_port, meta.queue_and_depth, meta.latency, meta.now_low
            });
        }
        if (hdr.report_ipv4.isValid()) {
            hdr.report_ipv4.checksum = header_checksum.update({
                hdr.report_ipv4.version, hdr.report_ipv4.ihl, hdr.report_ipv4.tos,
                hdr.report_ipv4.total_length, hdr.report_ipv4.id, hdr.report_ipv4.reserved,
                hdr.report_ipv4.dont_fragment, hdr.report_ipv4.more_fragments,
                hdr.report_ipv4.fragment_offset, hdr.report_ipv4.ttl, hdr.report_ipv4.protocol,
                hdr.report_ipv4.source, hdr.report_ipv4.destination
            });
        }
        packet.emit(hdr.report_ethernet);
        packet.emit(hdr.report_ipv4);
        packet.emit(hdr.report_udp);
        packet.emit(hdr.dta);
        packet.emit(hdr.v1);
        packet.emit(hdr.list);
        packet.emit(hdr.entry_name);
        packet.emit(hdr.entry_high);
        packet.emit(hdr.entry_low);
        packet.emit(hdr.key_a);
        packet.emit(hdr.key_b);
        packet.emit(hdr.key_c);
        packet.emit(hdr.key_d);
        packet.emit(hdr.telemetry);
        packet.emit(hdr.telemetry_sequence);
        packet.emit(hdr.telemetry_ingress_time);
        packet.emit(hdr.switch_id);
        packet.emit(hdr.telemetry_ports);
        packet.emit(hdr.telemetry_queue);
        packet.emit(hdr.telemetry_local_egress_time);
        packet.emit(hdr.drop_ingress_port);
        packet.emit(hdr.entry_egress_port);
        packet.emit(hdr.entry_queue);
        packet.emit(hdr.drop_reason);
        packet.emit(hdr.congestion_occupancy);
        packet.emit(hdr.delta_high);
        packet.emit(hdr.value);
        packet.emit(hdr.latency);
        packet.emit(hdr.moment_high);
        packet.emit(hdr.moment_low);
        packet.emit(hdr.drop);
        packet.emit(hdr.congestion);
        packet.emit(hdr.ethernet);
    }
}

#endif

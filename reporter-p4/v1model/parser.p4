// Parses packets, down to the inner flow of a tunnel.
#ifndef REPORTER_V1MODEL_PARSER
#define REPORTER_V1MODEL_PARSER

// A packet that ends too early has the headers up to there: its ports are 0, or it has no flow.
parser Packets(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
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
        packet.extract(hdr.vlan.next);
        transition select(hdr.vlan.last.type) {
            ETHERTYPE_VLAN: vlan;
            ETHERTYPE_PROVIDER_VLAN: vlan;
            ETHERTYPE_OLD_VLAN: vlan;
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl) {
            (4, 5): behind_ipv4;
            (4, 6 .. 15): options;
            default: accept;
        }
    }
    state options {
        packet.extract(hdr.options, ((bit<32>)hdr.ipv4.ihl - 5) << 5);
        transition behind_ipv4;
    }
    state behind_ipv4 {
        transition select(hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (0, PROTOCOL_UDP): udp;
            (0, PROTOCOL_TCP): ports;
            (0, PROTOCOL_DCCP): ports;
            (0, PROTOCOL_SCTP): ports;
            (0, PROTOCOL_UDP_LITE): ports;
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
            ETHERTYPE_VLAN: inner_vlan;
            ETHERTYPE_PROVIDER_VLAN: inner_vlan;
            ETHERTYPE_OLD_VLAN: inner_vlan;
            ETHERTYPE_IPV4: inner_ipv4;
            default: accept;
        }
    }
    state inner_vlan {
        packet.extract(hdr.inner_vlan.next);
        transition select(hdr.inner_vlan.last.type) {
            ETHERTYPE_VLAN: inner_vlan;
            ETHERTYPE_PROVIDER_VLAN: inner_vlan;
            ETHERTYPE_OLD_VLAN: inner_vlan;
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
            (1, 1, GTPU_USER_PACKET, 1, _, _): gtpu_more_and_extensions;
            default: accept;
        }
    }
    state gtpu_more {
        packet.extract(hdr.gtpu_more);
        transition behind_gtpu;
    }
    state gtpu_more_and_extensions {
        packet.extract(hdr.gtpu_more);
        transition select(hdr.gtpu_more.next) {
            0: behind_gtpu;
            default: gtpu_extension;
        }
    }
    state gtpu_extension {
        packet.extract(hdr.gtpu_extension.next);
        meta.words_left = hdr.gtpu_extension.last.words;
        transition select(meta.words_left) {
            0: accept;
            default: gtpu_extension_word;
        }
    }
    // `words_left` still counts the word just parsed.
    state gtpu_extension_word {
        meta.words_left = meta.words_left - 1;
        transition select(meta.words_left, hdr.gtpu_extension.last.next) {
            (0, 0): behind_gtpu;
            (0, _): gtpu_extension;
            default: gtpu_extension_more;
        }
    }
    state gtpu_extension_more {
        packet.extract(hdr.gtpu_extension.next);
        transition gtpu_extension_word;
    }
    state behind_gtpu {
        transition select(packet.lookahead<bit<4>>()) {
            4: inner_ipv4;
            default: accept;
        }
    }
    state inner_ipv4 {
        packet.extract(hdr.inner_ipv4);
        transition select(hdr.inner_ipv4.version, hdr.inner_ipv4.ihl) {
            (4, 5): behind_inner_ipv4;
            (4, 6 .. 15): inner_options;
            default: accept;
        }
    }
    state inner_options {
        packet.extract(hdr.inner_options, ((bit<32>)hdr.inner_ipv4.ihl - 5) << 5);
        transition behind_inner_ipv4;
    }
    state behind_inner_ipv4 {
        transition select(hdr.inner_ipv4.fragment_offset, hdr.inner_ipv4.protocol) {
            (0, PROTOCOL_UDP): inner_ports;
            (0, PROTOCOL_TCP): inner_ports;
            (0, PROTOCOL_DCCP): inner_ports;
            (0, PROTOCOL_SCTP): inner_ports;
            (0, PROTOCOL_UDP_LITE): inner_ports;
            default: accept;
        }
    }
    state inner_ports {
        packet.extract(hdr.inner_ports);
        transition accept;
    }
}

control NoVerification(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

// The IPv4 header checksum of reports. `next_hop` updates that of routed packets.
control HeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            hdr.report_ipv4.isValid(),
            {
                hdr.report_ipv4.version, hdr.report_ipv4.ihl, hdr.report_ipv4.tos,
                hdr.report_ipv4.total_length, hdr.report_ipv4.id, hdr.report_ipv4.reserved,
                hdr.report_ipv4.dont_fragment, hdr.report_ipv4.more_fragments,
                hdr.report_ipv4.fragment_offset, hdr.report_ipv4.ttl, hdr.report_ipv4.protocol,
                hdr.report_ipv4.source, hdr.report_ipv4.destination
            },
            hdr.report_ipv4.checksum, HashAlgorithm.csum16);
    }
}

// Emits the headers in the order of their declaration.
control Frames(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

#endif

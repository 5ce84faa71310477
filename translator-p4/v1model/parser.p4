// Packets in and out.
#ifndef DTA_V1MODEL_PARSER
#define DTA_V1MODEL_PARSER

// Parses a report completely, or (`parsed` is 0) as far as it is valid: ingress then finds out why it
// is dropped.
parser Reports(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: command;
            default: ethernet;
        }
    }
    state command {
        packet.extract(hdr.packet_out);
        transition accept;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.destination, hdr.udp.length) {
            (PORT_DTA, 11 .. 65535): dta;
            (PORT_ROCE, 24 .. 65535): bth;
            default: accept;
        }
    }
    state bth {
        packet.extract(hdr.bth);
        transition select(hdr.bth.opcode) {
            RC_ACKNOWLEDGE: aeth;
            RC_ATOMIC_ACKNOWLEDGE: aeth;
            default: accept;
        }
    }
    state aeth {
        packet.extract(hdr.aeth);
        transition accept;
    }
    state dta {
        packet.extract(hdr.dta);
        meta.value = 0;
        transition select(hdr.dta.version, hdr.dta.opcode, hdr.udp.length) {
            (0, KEY_WRITE, 20): v0_key_write;
            (0, APPEND, 19): v0_append;
            (0, KEY_INCREMENT, 24): v0_key_increment;
            (0, POSTCARDING, 20): v0_postcard;
            (1, _, 20 .. 65535): v1;
            default: accept;
        }
    }
    state v0_key_write {
        packet.extract(hdr.v0_redundancy);
        packet.extract(hdr.v0_key);
        meta.words = 1;
        transition words;
    }
    state v0_append {
        packet.extract(hdr.list);
        meta.words = 1;
        transition words;
    }
    state v0_key_increment {
        packet.extract(hdr.v0_redundancy);
        packet.extract(hdr.v0_key);
        meta.words = 2;
        transition words;
    }
    state v0_postcard {
        packet.extract(hdr.v0_key);
        packet.extract(hdr.v0_hop);
        meta.words = 1;
        transition words;
    }
    state v1 {
        packet.extract(hdr.v1);
        transition select(hdr.dta.opcode, hdr.udp.length, hdr.udp.length[1:0]) {
            (KEY_WRITE, 40 .. 96, 0): v1_key_write;
            (APPEND, 28 .. 84, 0): v1_append;
            (KEY_INCREMENT, 44, _): v1_key_increment;
            (POSTCARDING, 40, _): v1_postcard;
            (SKETCH_MERGE, 32 .. 44, 0): v1_sketch_merge;
            default: accept;
        }
    }
    state v1_key_write {
        packet.extract(hdr.key);
        meta.words = (bit<8>)((hdr.udp.length - 36) >> 2);
        transition words;
    }
    state v1_append {
        packet.extract(hdr.list);
        meta.words = (bit<8>)((hdr.udp.length - 24) >> 2);
        transition words;
    }
    state v1_key_increment {
        packet.extract(hdr.key);
        meta.words = 2;
        transition words;
    }
    state v1_postcard {
        packet.extract(hdr.key);
        meta.words = 1;
        transition words;
    }
    state v1_sketch_merge {
        packet.extract(hdr.column);
        meta.words = (bit<8>)((hdr.udp.length - 28) >> 2);
        transition words;
    }
    // Parses the value word by word, shifting earlier words up.
    state words {
        meta.words_left = meta.words;
        transition word;
    }
    state word {
        packet.extract(hdr.word.next);
        meta.value = (meta.value << 32) | (bit<480>)hdr.word.last.word;
        meta.words_left = meta.words_left - 1;
        transition select(meta.words_left) {
            0: whole;
            default: word;
        }
    }
    state whole {
        meta.parsed = 1;
        transition accept;
    }
}

control NoVerification(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

// The IPv4 header checksum of packets that this program makes or routes.
control HeaderChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            meta.header_changed == 1,
            {
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.id,
                hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,
                hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source,
                hdr.ipv4.destination
            },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control Frames(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.nack);
        packet.emit(hdr.dta);
        packet.emit(hdr.v1);
        packet.emit(hdr.v0_redundancy);
        packet.emit(hdr.v0_key);
        packet.emit(hdr.v0_hop);
        packet.emit(hdr.key);
        packet.emit(hdr.list);
        packet.emit(hdr.column);
        packet.emit(hdr.word);
        packet.emit(hdr.bth);
        packet.emit(hdr.reth);
        packet.emit(hdr.atomic_eth);
        packet.emit(hdr.aeth);
        packet.emit(hdr.immediate);
        packet.emit(hdr.payload8);
        packet.emit(hdr.payload16);
        packet.emit(hdr.payload32);
        packet.emit(hdr.payload64);
        packet.emit(hdr.icrc);
    }
}

#endif

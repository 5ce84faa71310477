// Packets in and out of the ingress.
#ifndef DTA_TNA_PARSER
#define DTA_TNA_PARSER

// Parses a report completely, or as far as it is valid: ingress then finds out why it is dropped.
parser Reports(packet_in packet, out ingress_headers_t hdr, out ingress_metadata_t meta, out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() header_checksum;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        meta.header_bad = false;
        meta.header_changed = 0;
        meta.store = 0;
        meta.reporter = 0;
        meta.redundancy = 0;
        // Fields that may be read without having been written.
        meta.reason = 0;
        meta.postcard_reason = 0;
        meta.is_not_listed = 0;
        meta.no_version0 = 0;
        meta.is_unknown = 0;
        meta.is_wrong = 0;
        meta.bad_redundancy = 0;
        meta.bad_length = 0;
        meta.is_not_owned = 0;
        meta.no_pair = 0;
        meta.primitive = 0;
        meta.is_checked = 0;
        meta.sequence_low = 0;
        meta.gap = 0;
        meta.taken = 0;
        meta.is_row = 0;
        meta.once_more = 0;
        meta.same = 0;
        meta.leaves = 0;
        meta.is_command = 0;
#ifdef DTA_POSTCARDS
        meta.other_pipe = 0;
        transition select(intrinsic.ingress_port) {
            CPU_PORT_OF_2_PIPES: command_of_cpu;
            CPU_PORT_OF_4_PIPES: command_of_cpu;
            COMMAND_PORT &&& PORT_OF_A_PIPE: recirculated;
            default: ethernet;
        }
#else
        transition select(intrinsic.ingress_port) {
            CPU_PORT_OF_2_PIPES: command;
            CPU_PORT_OF_4_PIPES: command;
            default: ethernet;
        }
#endif
    }
#ifdef DTA_POSTCARDS
    // A command names its pipe: 0 is the one that it arrives in, n + 1 is pipe n. There it arrives again, on a port that cannot be
    // reached from the network.
    state command_of_cpu {
        transition select(packet.lookahead<bit<128>>()[7:0]) {
            1: to_pipe_0;
            2: to_pipe_1;
            3: to_pipe_2;
            4: to_pipe_3;
            default: command;
        }
    }
    state to_pipe_0 { meta.other_pipe = COMMAND_PORT; transition accept; }
    state to_pipe_1 { meta.other_pipe = COMMAND_PORT + 128; transition accept; }
    state to_pipe_2 { meta.other_pipe = COMMAND_PORT + 256; transition accept; }
    state to_pipe_3 { meta.other_pipe = COMMAND_PORT + 384; transition accept; }
    state recirculated {
        transition select(packet.lookahead<bit<112>>()[15:0]) {
            ETHERTYPE_COMMAND: command;
            default: ethernet;
        }
    }
#endif
    // After the Ethernet header: the work, the pipe, the store, the number of copies, the index of a row. Then what ingress would
    // have derived from a report.
    state command {
        packet.advance(112);
        meta.is_command = 1;
        meta.command_work = packet.lookahead<bit<8>>();
        meta.store = packet.lookahead<bit<32>>()[15:0];
        meta.copies = packet.lookahead<bit<48>>()[15:0];
#ifdef DTA_POSTCARDS
        meta.row = packet.lookahead<bit<80>>()[31:0];
#endif
        packet.advance(80);
        packet.extract(hdr.bridge);
#ifdef DTA_POSTCARDS
        transition select(meta.command_work) {
            POSTCARDING: command_row;
            default: accept;
        }
#else
        transition accept;
#endif
    }
#ifdef DTA_POSTCARDS
    // No row has this path length, so any row is evicted, and nothing replaces it.
    state command_row {
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        meta.is_row = 1;
        meta.path_length = 7;
        meta.hop = 7;
        meta.head = 0;
        transition accept;
    }
#endif
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_IPV4: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        header_checksum.add(hdr.ipv4);
        meta.header_bad = header_checksum.verify();
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.destination) {
            PORT_DTA: dta_length;
            PORT_ROCE: bth_length;
            default: accept;
        }
    }
    state bth_length {
        transition select(hdr.udp.length) {
            0 .. 23: accept;
            default: bth;
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
    state dta_length {
        transition select(hdr.udp.length) {
            0 .. 10: accept;
            default: dta;
        }
    }
    state dta {
        packet.extract(hdr.dta);
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
        meta.redundancy = hdr.v0_redundancy.redundancy;
        packet.extract(hdr.key_first);
        transition one;
    }
#ifdef DTA_LONG_BATCHES
    // Entries stay in the payload; egress parses them.
    state v0_append {
        packet.extract(hdr.list);
        transition accept;
    }
    state list {
        packet.extract(hdr.list);
        transition accept;
    }
#else
    state v0_append {
        packet.extract(hdr.list);
        transition one;
    }
    state list_one { packet.extract(hdr.list); transition one; }
    state list_two { packet.extract(hdr.list); transition two; }
#endif
    state v0_key_increment {
        packet.extract(hdr.v0_redundancy);
        meta.redundancy = hdr.v0_redundancy.redundancy;
        packet.extract(hdr.key_first);
        transition two;
    }
    state v0_postcard {
        packet.extract(hdr.key_first);
        packet.extract(hdr.v0_hop);
        transition one;
    }
    state v1 {
        meta.sequence_low = packet.lookahead<bit<72>>()[7:0];
        packet.extract(hdr.v1);
        meta.store = hdr.v1.store;
        meta.reporter = hdr.v1.reporter;
        meta.redundancy = hdr.v1.argument;
        transition select(hdr.dta.opcode, hdr.udp.length) {
            (KEY_WRITE, 40): key_one;
            (KEY_WRITE, 44): key_two;
            (KEY_WRITE, 48): key_three;
            (KEY_WRITE, 52): key_four;
            (KEY_WRITE, 56): key_five;
            (KEY_WRITE, 60): key_six;
            (KEY_WRITE, 64): key_seven;
            (KEY_INCREMENT, 44): key_two;
            (POSTCARDING, 40): key_one;
#ifdef DTA_LONG_BATCHES
            (APPEND, _): list;
#else
            (APPEND, 28): list_one;
            (APPEND, 32): list_two;
#endif
#ifdef DTA_SKETCHES
            (SKETCH_MERGE, 32): column_one;
            (SKETCH_MERGE, 36): column_two;
            (SKETCH_MERGE, 40): column_three;
            (SKETCH_MERGE, 44): column_four;
#endif
            default: accept;
        }
    }
    state key_one { packet.extract(hdr.key_first); packet.extract(hdr.key); transition one; }
    state key_two { packet.extract(hdr.key_first); packet.extract(hdr.key); transition two; }
    state key_three { packet.extract(hdr.key_first); packet.extract(hdr.key); transition three; }
    state key_four {
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        packet.extract(hdr.w3);
        transition accept;
    }
    state key_five {
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        packet.extract(hdr.w3);
        packet.extract(hdr.w4);
        transition accept;
    }
    state key_six {
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        packet.extract(hdr.w3);
        packet.extract(hdr.w4);
        packet.extract(hdr.w5);
        transition accept;
    }
    state key_seven {
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        packet.extract(hdr.w3);
        packet.extract(hdr.w4);
        packet.extract(hdr.w5);
        packet.extract(hdr.w6);
        transition accept;
    }
#ifdef DTA_SKETCHES
    state column_one { packet.extract(hdr.column); transition one; }
    state column_two { packet.extract(hdr.column); transition two; }
    state column_three { packet.extract(hdr.column); transition three; }
    state column_four {
        packet.extract(hdr.column);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        packet.extract(hdr.w3);
        transition accept;
    }
#endif
    state one { packet.extract(hdr.w0); transition accept; }
    state two { packet.extract(hdr.w0); packet.extract(hdr.w1); transition accept; }
    state three { packet.extract(hdr.w0); packet.extract(hdr.w1); packet.extract(hdr.w2); transition accept; }
}

control AdmissionDeparser(packet_out packet, inout ingress_headers_t hdr, in ingress_metadata_t meta, in ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    Checksum() header_checksum;
    Mirror() report;

    apply {
        if (to_deparser.mirror_type == MIRROR_REPORT) {
            report.emit<mirrored_t>(meta.mirror_session, { meta.mirror_work, meta.ahead });
        }
        if (meta.header_changed == 1) {
            hdr.ipv4.checksum = header_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.id,
                hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,
                hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source,
                hdr.ipv4.destination
            });
        }
        packet.emit(hdr.kind);
        packet.emit(hdr.bridge);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.dta);
        packet.emit(hdr.v1);
        packet.emit(hdr.v0_redundancy);
        packet.emit(hdr.key_first);
        packet.emit(hdr.key);
        packet.emit(hdr.v0_hop);
        packet.emit(hdr.list);
#ifdef DTA_SKETCHES
        packet.emit(hdr.column);
        packet.emit(hdr.sketch);
        packet.emit(hdr.column_head);
#endif
        packet.emit(hdr.w0);
        packet.emit(hdr.w1);
        packet.emit(hdr.w2);
        packet.emit(hdr.w3);
        packet.emit(hdr.w4);
        packet.emit(hdr.w5);
        packet.emit(hdr.w6);
        packet.emit(hdr.bth);
        packet.emit(hdr.aeth);
    }
}

#endif

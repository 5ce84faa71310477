// Egress: makes frames of reports. A packet passes once for each copy. The state of lists and queue pairs is here,
// in the pipe of the collector's port, so that PSNs and sequences are assigned in the order of departure.
#ifndef DTA_TNA_EGRESS
#define DTA_TNA_EGRESS

parser Work(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta, out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        meta.rc = 0;
        meta.has_pair = 0;
        meta.sends = 0;
        meta.before = 0;
        meta.psn = 0;
#ifdef DTA_SKETCHES
        meta.fate = FATE_NONE;
        meta.one_more = 0x00010000;
#endif
        transition select(packet.lookahead<bit<8>>()) {
            WORK_NACK: report;
            WORK_AGAIN: again;
            default: kind;
        }
    }
    state again {
        packet.extract(hdr.mirrored);
        transition accept;
    }
    // Only version-1 reports are answered with NACKs.
    state report {
        meta.ahead_16 = packet.lookahead<bit<40>>()[15:0];
        meta.ahead_8 = packet.lookahead<bit<40>>()[7:0];
        packet.extract(hdr.mirrored);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.dta);
        packet.extract(hdr.v1);
        transition accept;
    }
    state kind {
        packet.extract(hdr.kind);
        transition select(hdr.kind.work) {
            WORK_FORWARD: accept;
            default: bridge;
        }
    }
    state bridge {
        packet.extract(hdr.bridge);
        transition select(hdr.kind.work, hdr.bridge.element_shift) {
            (APPEND, _): list;
#ifdef DTA_KEYS
#ifdef DTA_VALUES_OF_4
            (KEY_WRITE, 3): key_one;
#endif
            (KEY_WRITE, 4): key_three;
            (KEY_WRITE, 5): slot_of_32;
            (POSTCARDING, _): key_seven;
            (KEY_INCREMENT, _): key_two;
#endif
#ifdef DTA_SKETCHES
            (SKETCH_MERGE, 4): column_16;
            (SKETCH_MERGE, 5): column_32;
#endif
            default: accept;
        }
    }
#ifdef DTA_KEYS
#ifdef DTA_VALUES_OF_4
    state key_one {
        meta.sends = 1;
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        transition accept;
    }
#endif
    state key_two {
        meta.sends = 1;
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        transition accept;
    }
    state key_three {
        meta.sends = 1;
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        transition accept;
    }
    state slot_of_32 {
        transition select(hdr.bridge.inline_keys) {
            1: key_before_three;
            default: key_seven;
        }
    }
    // The key is parsed twice: for its hash, and as the first words of the slot.
    state key_before_three {
        meta.sends = 1;
        hdr.w0.setValid();
        hdr.w0.word = packet.lookahead<bit<32>>();
        hdr.w1.setValid();
        hdr.w1.word = packet.lookahead<bit<64>>()[31:0];
        hdr.w2.setValid();
        hdr.w2.word = packet.lookahead<bit<96>>()[31:0];
        hdr.w3.setValid();
        hdr.w3.word = packet.lookahead<bit<128>>()[31:0];
        packet.extract(hdr.key_first);
        packet.extract(hdr.key);
        packet.extract(hdr.w4);
        packet.extract(hdr.w5);
        packet.extract(hdr.w6);
        transition accept;
    }
    state key_seven {
        meta.sends = 1;
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
#endif
#ifdef DTA_LONG_BATCHES
    // The words of an entry, parsed to where a batch has its first entry.
    state list {
        packet.extract(hdr.list);
        packet.extract(hdr.sum);
        transition select(hdr.bridge.words) {
            1: accept;
            default: list_2;
        }
    }
    state list_2 {
        packet.extract(hdr.w0);
        transition select(hdr.bridge.words) {
            2: accept;
            default: list_3;
        }
    }
    state list_3 {
        packet.extract(hdr.w1);
        transition select(hdr.bridge.words) {
            3: accept;
            default: list_4;
        }
    }
    state list_4 {
        packet.extract(hdr.w2);
        transition select(hdr.bridge.words) {
            4: accept;
            default: list_5;
        }
    }
    state list_5 {
        packet.extract(hdr.w3);
        transition select(hdr.bridge.words) {
            5: accept;
            default: list_6;
        }
    }
    state list_6 {
        packet.extract(hdr.w4);
        transition select(hdr.bridge.words) {
            6: accept;
            default: list_7;
        }
    }
    state list_7 {
        packet.extract(hdr.w5);
        transition select(hdr.bridge.words) {
            7: accept;
            default: list_8;
        }
    }
    state list_8 {
        packet.extract(hdr.w6);
        transition select(hdr.bridge.words) {
            8: accept;
            default: list_9;
        }
    }
    state list_9 {
        packet.extract(hdr.w7);
        transition select(hdr.bridge.words) {
            9: accept;
            default: list_10;
        }
    }
    state list_10 {
        packet.extract(hdr.w8);
        transition select(hdr.bridge.words) {
            10: accept;
            default: list_11;
        }
    }
    state list_11 {
        packet.extract(hdr.w9);
        transition select(hdr.bridge.words) {
            11: accept;
            default: list_12;
        }
    }
    state list_12 {
        packet.extract(hdr.w10);
        transition select(hdr.bridge.words) {
            12: accept;
            default: list_13;
        }
    }
    state list_13 {
        packet.extract(hdr.w11);
        transition select(hdr.bridge.words) {
            13: accept;
            default: list_14;
        }
    }
    state list_14 {
        packet.extract(hdr.w12);
        transition accept;
    }
#else
    state list {
        packet.extract(hdr.list);
        packet.extract(hdr.w0);
        transition select(hdr.bridge.words) {
            2: list_two;
            default: accept;
        }
    }
    state list_two {
        packet.extract(hdr.w1);
        transition accept;
    }
#endif
#ifdef DTA_SKETCHES
    state column_16 {
        packet.extract(hdr.sketch);
        packet.extract(hdr.sum);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        transition accept;
    }
    state column_32 {
        packet.extract(hdr.sketch);
        packet.extract(hdr.sum);
        packet.extract(hdr.w0);
        packet.extract(hdr.w1);
        packet.extract(hdr.w2);
        packet.extract(hdr.w3);
        packet.extract(hdr.w4);
        packet.extract(hdr.w5);
        packet.extract(hdr.w6);
        transition accept;
    }
#endif
}

control Departure(
    inout egress_headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
    in egress_intrinsic_metadata_from_parser_t from_parser,
    inout egress_intrinsic_metadata_for_deparser_t to_deparser,
    inout egress_intrinsic_metadata_for_output_port_t to_port) {
    // Frames by primitive and reports per frame: index = primitive * 16 + reports.
    Counter<bit<64>, bit<8>>(256, CounterType_t.PACKETS) emitted_reports;
    // Operations by primitive.
    Counter<bit<64>, bit<8>>(8, CounterType_t.PACKETS) operations;
    // Reports whose queue pair disappeared between ingress and egress, by primitive; copy 0 only.
    Counter<bit<64>, bit<8>>(8, CounterType_t.PACKETS) lost;
    // Frames by the number of the store, and by queue pair.
    Counter<bit<64>, bit<8>>(256, CounterType_t.PACKETS) store_frames;
    Counter<bit<64>, bit<8>>(QUEUE_PAIRS, CounterType_t.PACKETS) pair_frames;
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) nacks;

    // The next PSN of each queue pair, which only this register assigns.
    Register<bit<32>, bit<8>>(QUEUE_PAIRS, 0) next_psn;
    RegisterAction<bit<32>, bit<8>, bit<32>>(next_psn) count_psn = {
        void apply(inout bit<32> value, out bit<32> psn) {
            psn = value;
            value = value + 1;
        }
    };
    RegisterAction<bit<32>, bit<8>, bit<32>>(next_psn) set_psn = {
        void apply(inout bit<32> value) {
            value = hdr.bridge.index;
        }
    };
    action counts_psn() {
        meta.psn = count_psn.execute(hdr.bridge.pair);
    }
    action sets_psn() {
        set_psn.execute(hdr.bridge.pair);
    }
    table psn {
        key = {
            hdr.bridge.isValid(): exact;
            hdr.kind.work: ternary;
            meta.sends: ternary;
            meta.has_pair: ternary;
        }
        actions = { counts_psn; sets_psn; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, WORK_SET_PSN, _, _): sets_psn();
            (true, _, 1, 1): counts_psn();
        }
        size = 2;
    }
    // Sequences requested by NACKs, modulo 2^32.
    Register<bit<32>, bit<1>>(1, 0) nacked_sequences;
    RegisterAction<bit<32>, bit<1>, bit<32>>(nacked_sequences) sum_nacked = {
        void apply(inout bit<32> value) {
            value = value + meta.sequence_count;
        }
    };
    action sums_nacked() {
        sum_nacked.execute(0);
    }

    Lists() lists;
#ifdef DTA_SKETCHES
    Columns() columns;
#endif
    Icrc() icrc;

    // ---- Postcard rows: the number of postcards, by the bitmap. Missing hops are sent as 0.
    action has_reports(bit<8> reports) {
        hdr.bridge.reports = reports;
    }
    table postcards {
        key = { hdr.w0.word[21:16]: exact; }
        actions = { has_reports; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            1: has_reports(0x41);
            2: has_reports(0x41);
            3: has_reports(0x42);
            4: has_reports(0x41);
            5: has_reports(0x42);
            6: has_reports(0x42);
            7: has_reports(0x43);
            8: has_reports(0x41);
            9: has_reports(0x42);
            10: has_reports(0x42);
            11: has_reports(0x43);
            12: has_reports(0x42);
            13: has_reports(0x43);
            14: has_reports(0x43);
            15: has_reports(0x44);
            16: has_reports(0x41);
            17: has_reports(0x42);
            18: has_reports(0x42);
            19: has_reports(0x43);
            20: has_reports(0x42);
            21: has_reports(0x43);
            22: has_reports(0x43);
            23: has_reports(0x44);
            24: has_reports(0x42);
            25: has_reports(0x43);
            26: has_reports(0x43);
            27: has_reports(0x44);
            28: has_reports(0x43);
            29: has_reports(0x44);
            30: has_reports(0x44);
            31: has_reports(0x45);
            32: has_reports(0x41);
            33: has_reports(0x42);
            34: has_reports(0x42);
            35: has_reports(0x43);
            36: has_reports(0x42);
            37: has_reports(0x43);
            38: has_reports(0x43);
            39: has_reports(0x44);
            40: has_reports(0x42);
            41: has_reports(0x43);
            42: has_reports(0x43);
            43: has_reports(0x44);
            44: has_reports(0x43);
            45: has_reports(0x44);
            46: has_reports(0x44);
            47: has_reports(0x45);
            48: has_reports(0x42);
            49: has_reports(0x43);
            50: has_reports(0x43);
            51: has_reports(0x44);
            52: has_reports(0x43);
            53: has_reports(0x44);
            54: has_reports(0x44);
            55: has_reports(0x45);
            56: has_reports(0x43);
            57: has_reports(0x44);
            58: has_reports(0x44);
            59: has_reports(0x45);
            60: has_reports(0x44);
            61: has_reports(0x45);
            62: has_reports(0x45);
            63: has_reports(0x46);
        }
        size = 64;
    }
#define NO_HOP(N, WORD) action no_hop_##N() { WORD.word = 0; }
    NO_HOP(0, hdr.w1)
    NO_HOP(1, hdr.w2)
    NO_HOP(2, hdr.w3)
    NO_HOP(3, hdr.w4)
    NO_HOP(4, hdr.w5)
    NO_HOP(5, hdr.w6)

    // ---- The constant part of a queue pair's frames.
    action use_queue_pair(bit<1> rc, bit<24> remote_qpn, bit<48> source_mac, bit<48> destination_mac, bit<32> source_ip, bit<32> destination_ip, bit<16> udp_port, bit<8> tos) {
        meta.has_pair = 1;
        meta.rc = rc;
        hdr.ethernet.setValid();
        hdr.ethernet.source = source_mac;
        hdr.ethernet.destination = destination_mac;
        hdr.ethernet.type = ETHERTYPE_IPV4;
        hdr.ipv4.setValid();
        hdr.ipv4.version = 4;
        hdr.ipv4.ihl = 5;
        hdr.ipv4.tos = tos;
        hdr.ipv4.id = 0;
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.more_fragments = 0;
        hdr.ipv4.fragment_offset = 0;
        hdr.ipv4.ttl = 64;
        hdr.ipv4.protocol = PROTOCOL_UDP;
        hdr.ipv4.source = source_ip;
        hdr.ipv4.destination = destination_ip;
        hdr.udp.setValid();
        hdr.udp.source = 2w3 ++ remote_qpn[13:0];
        hdr.udp.destination = udp_port;
        hdr.udp.checksum = 0;
        hdr.bth.setValid();
        hdr.bth.solicited = 0;
        hdr.bth.migrated = 1;
        hdr.bth.pad = 0;
        hdr.bth.transport_version = 0;
        hdr.bth.pkey = 0xffff;
        hdr.bth.congestion = 0;
        hdr.bth.destination_qp = remote_qpn;
        hdr.bth.ack_request = 0;
        hdr.bth.reserved = 0;
    }
    table queue_pair {
        key = { hdr.bridge.pair: exact @name("pair"); }
        actions = { use_queue_pair; @defaultonly NoAction; }
        const default_action = NoAction();
        size = QUEUE_PAIRS;
    }

#ifdef DTA_KEYS
    // ---- The slot of this copy.
    action copy_is(bit<32> constant) {
        SLOT_KEY = hdr.bridge.index + constant;
    }
    table copy {
        key = { intrinsic.egress_rid: exact; }
        actions = { copy_is; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            0: copy_is(SLOT_C0);
            1: copy_is(SLOT_C1);
            2: copy_is(SLOT_C2);
            3: copy_is(SLOT_C3);
        }
        size = 4;
    }
    CRCPolynomial<bit<32>>(32w0x1edc6f41, true, false, false, 32w0xffffffff, 32w0xffffffff) castagnoli;
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, castagnoli) slot_hash;
    action hash_slot() {
        meta.place = slot_hash.get({
            SLOT_KEY[7:0], SLOT_KEY[15:8], SLOT_KEY[23:16], SLOT_KEY[31:24]
        });
    }
#endif
    action place_in_store() {
        meta.slot = meta.place & hdr.bridge.mask;
    }
    action by_32() {
        meta.offset_low = meta.slot << 5;
        meta.offset_high = meta.slot >> 27;
    }
#ifdef DTA_LONG_BATCHES
    action by_64() {
        meta.offset_low = meta.slot << 6;
        meta.offset_high = meta.slot >> 26;
    }
    table element {
        key = { hdr.bridge.element_shift: exact; }
        actions = { by_32; by_64; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            5: by_32();
            6: by_64();
        }
        size = 2;
    }
#else
    action by_8() {
        meta.offset_low = meta.slot << 3;
        meta.offset_high = meta.slot >> 29;
    }
    action by_16() {
        meta.offset_low = meta.slot << 4;
        meta.offset_high = meta.slot >> 28;
    }
    table element {
        key = { hdr.bridge.element_shift: exact; }
        actions = { by_8; by_16; by_32; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            3: by_8();
            4: by_16();
            5: by_32();
        }
        size = 4;
    }
#endif
    action address() {
        hdr.target.address_high = hdr.bridge.address_high | meta.offset_high;
        hdr.target.address_low = hdr.bridge.address_low | meta.offset_low;
    }

    // ---- Lengths and opcode by kind of frame.
    action frame_is(bit<8> opcode, bit<16> total_length, bit<16> udp_length, bit<32> length) {
        hdr.bth.opcode = opcode;
        hdr.ipv4.total_length = total_length;
        hdr.udp.length = udp_length;
        hdr.target.setValid();
        hdr.target.rkey = hdr.bridge.rkey;
        hdr.length.setValid();
        hdr.length.length = length;
    }
    action frame_wakes(bit<8> opcode, bit<16> total_length, bit<16> udp_length, bit<32> length) {
        frame_is(opcode, total_length, udp_length, length);
        hdr.immediate.setValid();
        hdr.immediate.data = hdr.list.list;
    }
#ifdef DTA_KEYS
    action frame_adds(bit<8> opcode, bit<16> total_length, bit<16> udp_length) {
        hdr.bth.opcode = opcode;
        hdr.ipv4.total_length = total_length;
        hdr.udp.length = udp_length;
        hdr.target.setValid();
        hdr.target.rkey = hdr.bridge.rkey;
        hdr.compare.setValid();
        hdr.compare.high = 0;
        hdr.compare.low = 0;
    }
#endif
    table frame {
        key = {
            hdr.kind.work: exact;
            hdr.bridge.element_shift: exact;
            hdr.bridge.notify: exact;
            meta.rc: exact;
        }
        actions = {
            frame_is; frame_wakes;
#ifdef DTA_KEYS
            frame_adds;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
#ifdef DTA_KEYS
#ifdef DTA_VALUES_OF_4
            (KEY_WRITE, 3, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 68, 48, 8);
            (KEY_WRITE, 3, 0, 1): frame_is(RC_WRITE_ONLY, 68, 48, 8);
#endif
            (KEY_WRITE, 4, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 76, 56, 16);
            (KEY_WRITE, 4, 0, 1): frame_is(RC_WRITE_ONLY, 76, 56, 16);
            (KEY_WRITE, 5, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 92, 72, 32);
            (KEY_WRITE, 5, 0, 1): frame_is(RC_WRITE_ONLY, 92, 72, 32);
            (POSTCARDING, 5, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 92, 72, 32);
            (POSTCARDING, 5, 0, 1): frame_is(RC_WRITE_ONLY, 92, 72, 32);
            (APPEND, 4, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 76, 56, 16);
            (APPEND, 4, 0, 1): frame_is(RC_WRITE_ONLY, 76, 56, 16);
            (APPEND, 4, 1, 0): frame_wakes(RC_WRITE_ONLY_IMMEDIATE + UC_OFFSET, 80, 60, 16);
            (APPEND, 4, 1, 1): frame_wakes(RC_WRITE_ONLY_IMMEDIATE, 80, 60, 16);
            (KEY_INCREMENT, 3, 0, 0): frame_adds(RC_FETCH_ADD, 72, 52);
            (KEY_INCREMENT, 3, 0, 1): frame_adds(RC_FETCH_ADD, 72, 52);
#endif
#ifdef DTA_LONG_BATCHES
            (APPEND, 5, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 92, 72, 32);
            (APPEND, 5, 0, 1): frame_is(RC_WRITE_ONLY, 92, 72, 32);
            (APPEND, 5, 1, 0): frame_wakes(RC_WRITE_ONLY_IMMEDIATE + UC_OFFSET, 96, 76, 32);
            (APPEND, 5, 1, 1): frame_wakes(RC_WRITE_ONLY_IMMEDIATE, 96, 76, 32);
            (APPEND, 6, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 124, 104, 64);
            (APPEND, 6, 0, 1): frame_is(RC_WRITE_ONLY, 124, 104, 64);
            (APPEND, 6, 1, 0): frame_wakes(RC_WRITE_ONLY_IMMEDIATE + UC_OFFSET, 128, 108, 64);
            (APPEND, 6, 1, 1): frame_wakes(RC_WRITE_ONLY_IMMEDIATE, 128, 108, 64);
#endif
#ifdef DTA_SKETCHES
            (SKETCH_MERGE, 4, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 76, 56, 16);
            (SKETCH_MERGE, 4, 0, 1): frame_is(RC_WRITE_ONLY, 76, 56, 16);
            (SKETCH_MERGE, 5, 0, 0): frame_is(RC_WRITE_ONLY + UC_OFFSET, 92, 72, 32);
            (SKETCH_MERGE, 5, 0, 1): frame_is(RC_WRITE_ONLY, 92, 72, 32);
#endif
        }
        size = 32;
    }

    // ---- The checksum of an element, over a key and all words, or over a list and its batch.
#ifdef DTA_KEYS
    Hash<bit<32>>(HashAlgorithm_t.CRC32) sum_of_16;
    Hash<bit<32>>(HashAlgorithm_t.CRC32) sum_of_32;
    Hash<bit<24>>(HashAlgorithm_t.CRC32) check_of_16;
#define KEY hdr.key_first.word, hdr.key.b, hdr.key.c, hdr.key.d
#ifdef DTA_VALUES_OF_4
    Hash<bit<32>>(HashAlgorithm_t.CRC32) sum_of_8;
    action sum_8() {
        hdr.sum.setValid();
        hdr.sum.word = sum_of_8.get({ KEY, hdr.w0.word });
    }
#endif
    action sum_16() {
        hdr.sum.setValid();
        hdr.sum.word = sum_of_16.get({ KEY, hdr.w0.word, hdr.w1.word, hdr.w2.word });
    }
    action sum_32() {
        hdr.sum.setValid();
        hdr.sum.word = sum_of_32.get({
            KEY, hdr.w0.word, hdr.w1.word, hdr.w2.word, hdr.w3.word, hdr.w4.word, WORD_32_6.word, WORD_32_7.word
        });
    }
    action check_16() {
        hdr.w2.word[23:0] = check_of_16.get({
            hdr.list.list, hdr.sum.word, hdr.w0.word, hdr.w1.word, hdr.w2.word[31:24]
        });
    }
#endif
#ifdef DTA_LONG_BATCHES
    Hash<bit<24>>(HashAlgorithm_t.CRC32) check_of_32;
    Hash<bit<24>>(HashAlgorithm_t.CRC32) check_of_64;
    action check_32() {
        WORD_32_7.word[23:0] = check_of_32.get({
            hdr.list.list, hdr.sum.word, hdr.w0.word, hdr.w1.word, hdr.w2.word, hdr.w3.word, hdr.w4.word, WORD_32_6.word, WORD_32_7.word[31:24]
        });
    }
    action check_64() {
        hdr.w14.word[23:0] = check_of_64.get({
            hdr.list.list, hdr.sum.word, hdr.w0.word, hdr.w1.word, hdr.w2.word, hdr.w3.word, hdr.w4.word, hdr.w5.word, hdr.w6.word,
            hdr.w7.word, hdr.w8.word, hdr.w9.word, hdr.w10.word, hdr.w11.word, hdr.w12.word, hdr.w13.word, hdr.w14.word[31:24]
        });
    }
#endif

    // ---- Turns the report that shows a gap into a NACK, which recirculates to ingress and is forwarded there.
    action make_nack() {
        bit<48> mac = hdr.ethernet.source;
        bit<32> ip = hdr.ipv4.source;
        bit<16> port = hdr.udp.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = ip;
        hdr.ipv4.tos = 0;
        hdr.ipv4.id = 0;
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.ttl = 64;
        hdr.ipv4.total_length = 40;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = port;
        hdr.udp.length = 20;
        hdr.udp.checksum = 0;
        hdr.nack.setValid();
        hdr.nack.flags = 0x81;
        hdr.nack.reporter = hdr.v1.reporter;
        hdr.nack.reserved = 0;
        hdr.dta.setInvalid();
        hdr.v1.setInvalid();
    }
    action number_nack() {
        hdr.nack.first = hdr.v1.sequence - meta.sequence_count;
        hdr.nack.count = meta.sequence_count_16;
        hdr.nack.sequence = hdr.dta.sequence - meta.sequence_count_8;
        nacks.count(0);
    }

    // Requests the sequences right before this one, at most as many as the software translator does.
    action all_before() {
        meta.sequence_count = hdr.mirrored.ahead;
        meta.sequence_count_16 = meta.ahead_16;
        meta.sequence_count_8 = meta.ahead_8;
    }
    action last_before() {
        meta.sequence_count = 1023;
        meta.sequence_count_16 = 1023;
        meta.sequence_count_8 = 255;
    }
    table nack_count {
        key = { hdr.mirrored.ahead: ternary; }
        actions = { all_before; last_before; }
        const default_action = last_before();
        const entries = {
            0 &&& 0xfffffc00: all_before();
        }
        size = 1;
    }

    apply {
        // Each step tests its condition again: a condition that spans several stages keeps everything else out of
        // them.
        if (hdr.bridge.isValid() && hdr.kind.work != WORK_SET_PSN) {
            queue_pair.apply();
        }
        // Lists come first, because they are done sooner with the fields that columns write, too.
        lists.apply(hdr, meta);
        if (hdr.mirrored.isValid() && hdr.v1.isValid()) {
            nack_count.apply();
        }
        if (hdr.mirrored.isValid() && hdr.v1.isValid()) {
            number_nack();
            sums_nacked();
            make_nack();
        }
        // A flooded packet is not sent back to its ingress port.
        if (hdr.kind.isValid() && hdr.kind.flooded == 1 && intrinsic.egress_port == hdr.kind.port) {
            to_deparser.drop_ctl = 1;
        }
#ifdef DTA_POSTCARDS
        if (hdr.kind.isValid() && hdr.kind.work == POSTCARDING) {
            postcards.apply();
            if (hdr.w0.word[16:16] == 0) { no_hop_0(); }
            if (hdr.w0.word[17:17] == 0) { no_hop_1(); }
            if (hdr.w0.word[18:18] == 0) { no_hop_2(); }
            if (hdr.w0.word[19:19] == 0) { no_hop_3(); }
            if (hdr.w0.word[20:20] == 0) { no_hop_4(); }
            if (hdr.w0.word[21:21] == 0) { no_hop_5(); }
        }
#endif
#ifdef DTA_KEYS
        // Over the words as they arrived, or as a row has them, before columns change theirs. Each tests its own condition, so that
        // others can be placed between them.
#ifdef DTA_VALUES_OF_4
        if (hdr.key_first.isValid() && hdr.kind.work == KEY_WRITE && hdr.bridge.element_shift == 3) {
            sum_8();
        }
#endif
        if (hdr.key_first.isValid() && hdr.kind.work == KEY_WRITE && hdr.bridge.element_shift == 4) {
            sum_16();
        }
        if (hdr.key_first.isValid() && hdr.kind.work != KEY_INCREMENT && hdr.bridge.element_shift == 5) {
            sum_32();
        }
#endif
#ifdef DTA_SKETCHES
        columns.apply(hdr, meta);
#endif
        if (hdr.list.isValid()) {
#ifdef DTA_LONG_BATCHES
            if (hdr.bridge.element_shift == 5) {
                check_32();
            } else {
                check_64();
            }
#else
            check_16();
#endif
        }
#ifdef DTA_KEYS
        if (hdr.key_first.isValid()) {
            copy.apply();
        }
        if (hdr.key_first.isValid()) {
            hash_slot();
        }
#endif
        if (hdr.bridge.isValid()) {
            frame.apply();
        }
        // Each counter tests its condition again, too.
        if (meta.sends == 1 && meta.has_pair == 1) {
            operations.count(hdr.kind.work);
        }
        if (meta.sends == 1 && meta.has_pair == 1) {
            store_frames.count(hdr.bridge.store_number);
        }
        if (meta.sends == 1 && meta.has_pair == 1) {
            pair_frames.count(hdr.bridge.pair);
        }
        if (meta.sends == 1 && meta.has_pair == 1 && intrinsic.egress_rid == 0) {
            emitted_reports.count(hdr.bridge.reports);
        }
        if (meta.sends == 1 && meta.has_pair == 0 && intrinsic.egress_rid == 0) {
            lost.count(hdr.kind.work);
        }
        psn.apply();
        place_in_store();
        element.apply();
        if (hdr.bridge.isValid()) {
            address();
            hdr.bth.psn = meta.psn[23:0];
        }
        if (meta.rc == 1 && meta.psn[5:0] == 63) {
            hdr.bth.ack_request = 1;
        }
        if (hdr.bridge.isValid() && (meta.sends == 0 || meta.has_pair == 0)) {
            to_deparser.drop_ctl = 1;
        }
        if (hdr.target.isValid()) {
            icrc.apply(hdr, meta);
        }
        hdr.mirrored.setInvalid();
        hdr.kind.setInvalid();
        hdr.bridge.setInvalid();
        hdr.key_first.setInvalid();
        hdr.key.setInvalid();
        hdr.list.setInvalid();
#ifdef DTA_SKETCHES
        hdr.sketch.setInvalid();
#endif
    }
}

control Frames(packet_out packet, inout egress_headers_t hdr, in egress_metadata_t meta, in egress_intrinsic_metadata_for_deparser_t to_deparser) {
    Checksum() header_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = header_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.id,
                hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments,
                hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source,
                hdr.ipv4.destination
            });
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.nack);
        packet.emit(hdr.dta);
        packet.emit(hdr.v1);
        packet.emit(hdr.bth);
        packet.emit(hdr.target);
        packet.emit(hdr.length);
        packet.emit(hdr.immediate);
        packet.emit(hdr.sum);
        packet.emit(hdr.w0);
        packet.emit(hdr.w1);
        packet.emit(hdr.w2);
        packet.emit(hdr.w3);
        packet.emit(hdr.w4);
        packet.emit(hdr.w5);
        packet.emit(hdr.w6);
#ifdef DTA_LONG_BATCHES
        packet.emit(hdr.w7);
        packet.emit(hdr.w8);
        packet.emit(hdr.w9);
        packet.emit(hdr.w10);
        packet.emit(hdr.w11);
        packet.emit(hdr.w12);
        packet.emit(hdr.w13);
        packet.emit(hdr.w14);
#endif
        packet.emit(hdr.compare);
        packet.emit(hdr.icrc);
    }
}

#endif

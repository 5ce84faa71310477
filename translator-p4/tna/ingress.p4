// Ingress: which reports are accepted, for which store, and where they go. The postcard cache is
// here, because a row is sent in several copies. Queue pairs and lists are at egress.
#ifndef DTA_TNA_INGRESS
#define DTA_TNA_INGRESS

control Admission(
    inout ingress_headers_t hdr, inout ingress_metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
    in ingress_intrinsic_metadata_from_parser_t from_parser,
    inout ingress_intrinsic_metadata_for_deparser_t to_deparser, inout ingress_intrinsic_metadata_for_tm_t to_tm) {
    // Reports by primitive: index 0 counts unreadable datagrams, 1 to 5 those of an opcode.
    Counter<bit<64>, bit<8>>(8, CounterType_t.PACKETS) received;
    Counter<bit<64>, bit<8>>(8, CounterType_t.PACKETS) accepted;
    // Reports that were dropped, by REASON_*.
    Counter<bit<64>, bit<8>>(REASONS, CounterType_t.PACKETS) dropped;
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) immediate_ignored;
    // Rows whose queue pair is gone, by the bitmap of their hops.
    Counter<bit<64>, bit<8>>(64, CounterType_t.PACKETS) rows_discarded;
    // Answers to queue pairs: 0 ACKs, 1 sequence-error NAKs, 2 others.
    Counter<bit<64>, bit<2>>(4, CounterType_t.PACKETS) answers;

    Forward() forwarding;
    Shape() shape;
    Postcard() postcard;
    Fit() fit;
    Ring() ring;
#ifdef DTA_SKETCHES
    Place() place;
#endif
    Sequences() sequences;
#ifdef DTA_POSTCARDS
    Rows() rows;
#endif

    bit<1> is_report = 0;
    bit<1> is_answer = 0;

    // ---- The address and port of the service.
    action take_reports() {
        is_report = 1;
    }
    table service {
        key = {
            hdr.ipv4.destination: exact @name("address");
            hdr.udp.destination: exact @name("port");
        }
        actions = { take_reports; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    // ---- Who may report: everyone, or only those listed.
    action permit() {}
    action not_listed() {
        meta.is_not_listed = 1;
    }
    table reporter {
        key = {
            hdr.dta.version: exact @name("version");
            meta.reporter: exact @name("reporter");
            hdr.ipv4.source: exact @name("source");
        }
        actions = { permit; not_listed; }
        default_action = permit();
        size = 4096;
    }

    // ---- The store of a version-0 primitive.
    action use_store(bit<16> store) {
        meta.store = store;
    }
    action no_version0_store() {
        meta.no_version0 = 1;
    }
    table version0 {
        key = { hdr.dta.opcode: exact @name("primitive"); }
        actions = { use_store; @defaultonly no_version0_store; }
        const default_action = no_version0_store();
        size = 8;
    }

    // ---- Stores.
#ifdef DTA_KEYS
    action key_write_store(bit<8> number, bit<8> copies, bit<8> value_words, bit<1> inline_keys, bit<32> slots_mask, bit<8> element_shift) {
        meta.primitive = KEY_WRITE;
        hdr.bridge.reports = 0x11;
        meta.copies = (bit<16>)copies;
        meta.store_words = value_words;
        hdr.bridge.inline_keys = inline_keys;
        hdr.bridge.store_number = number;
        hdr.bridge.mask = slots_mask;
        hdr.bridge.element_shift = element_shift;
    }
    action key_increment_store(bit<8> number, bit<8> copies, bit<32> slots_mask) {
        meta.primitive = KEY_INCREMENT;
        hdr.bridge.reports = 0x31;
        meta.copies = (bit<16>)copies;
        hdr.bridge.store_number = number;
        hdr.bridge.mask = slots_mask;
        hdr.bridge.element_shift = 3;
    }
#endif
#ifdef DTA_POSTCARDS
    action postcarding_store(bit<8> number, bit<8> copies, bit<8> hops, bit<32> slots_mask, bit<8> element_shift, bit<32> cache_base, bit<32> cache_mask) {
        meta.primitive = POSTCARDING;
        meta.copies = (bit<16>)copies;
        meta.cache_base = cache_base;
        meta.cache_mask = cache_mask;
        hdr.bridge.store_number = number;
        hdr.bridge.mask = slots_mask;
        hdr.bridge.element_shift = element_shift;
    }
#endif
    action append_store(bit<8> number, bit<32> lists, bit<8> ring_shift, bit<32> ring_mask, bit<8> element_shift, bit<8> entry_words, bit<8> entries, bit<1> notify) {
        meta.primitive = APPEND;
        meta.copies = 1;
        meta.lists_left = lists |-| hdr.list.list;
        meta.ring_shift = ring_shift;
        meta.store_words = entry_words;
        hdr.bridge.store_number = number;
        hdr.bridge.mask = ring_mask;
        hdr.bridge.element_shift = element_shift;
        hdr.bridge.words = entry_words;
#ifdef DTA_LONG_BATCHES
        hdr.bridge.last = entries;
#endif
        hdr.bridge.notify = notify;
    }
#ifdef DTA_SKETCHES
    // `columns` is their number; `others` the reporters that complete a column, minus 1.
    action sketch_merge_store(bit<8> number, bit<8> rows, bit<8> merge, bit<16> expected_reporters, bit<8> others, bit<8> columns_shift, bit<32> columns, bit<32> epochs_mask, bit<8> element_shift, bit<32> state_base) {
        meta.primitive = SKETCH_MERGE;
        meta.copies = 1;
        meta.store_words = rows;
        meta.lists_left = columns |-| hdr.column.column;
        meta.columns_shift = columns_shift;
        meta.epochs_mask = epochs_mask;
        meta.state_base = state_base;
        hdr.bridge.store_number = number;
        // The address is complete here: a mask of 0 removes what egress hashes.
        hdr.bridge.mask = 0;
        hdr.bridge.element_shift = element_shift;
        hdr.sketch.setValid();
        hdr.sketch.epoch = hdr.column.epoch;
        hdr.sketch.merge = merge;
        hdr.sketch.others = others;
        hdr.column_head.setValid();
        hdr.column_head.epoch = hdr.column.epoch;
        hdr.column_head.merged = 1;
        hdr.column_head.expected = expected_reporters;
    }
#endif
    action unknown_store() {
        meta.is_unknown = 1;
    }
    table store {
        key = { meta.store: exact @name("store"); }
        actions = {
            append_store;
#ifdef DTA_KEYS
            key_write_store; key_increment_store;
#endif
#ifdef DTA_POSTCARDS
            postcarding_store;
#endif
#ifdef DTA_SKETCHES
            sketch_merge_store;
#endif
            @defaultonly unknown_store;
        }
        const default_action = unknown_store();
        size = 256;
    }

    // ---- The memory of a store, by the bucket of a key: the top 8 bits of its hash.
    action use_region(bit<8> pair, bit<64> address, bit<32> rkey) {
        hdr.bridge.pair = pair;
        hdr.bridge.address_high = address[63:32];
        hdr.bridge.address_low = address[31:0];
        hdr.bridge.rkey = rkey;
    }
    action no_queue_pair() {
        meta.no_pair = 1;
    }
    table region {
        key = {
            meta.store: exact @name("store");
            hdr.bridge.index[31:24]: range @name("bucket");
        }
        actions = { use_region; @defaultonly no_queue_pair; }
        const default_action = no_queue_pair();
        size = 1024;
    }
#ifdef DTA_POSTCARDS
    // The same for the key of an evicted row: in a second table, because a packet passes each table once.
    action use_row_region(bit<8> pair, bit<64> address, bit<32> rkey) {
        hdr.bridge.pair = pair;
        hdr.bridge.address_high = address[63:32];
        hdr.bridge.address_low = address[31:0];
        hdr.bridge.rkey = rkey;
    }
    table row_region {
        key = {
            meta.store: exact @name("store");
            hdr.bridge.index[31:24]: range @name("bucket");
        }
        actions = { use_row_region; @defaultonly no_queue_pair; }
        const default_action = no_queue_pair();
        size = 1024;
    }

#endif
    // ---- Lists that this switch writes, by prefixes of their numbers. The state of list l has index
    // `state_offset` + l, modulo 2^32.
    action use_list(bit<32> state_offset, bit<8> pair, bit<64> address, bit<32> rkey) {
        hdr.bridge.index = state_offset + hdr.list.list;
        hdr.bridge.pair = pair;
        hdr.bridge.address_high = address[63:32];
        hdr.bridge.address_low = address[31:0];
        hdr.bridge.rkey = rkey;
    }
    action list_not_owned() {
        meta.is_not_owned = 1;
    }
    table lists {
        key = {
            meta.store: exact @name("store");
            hdr.list.list: lpm @name("list");
        }
        actions = { use_list; @defaultonly list_not_owned; }
        const default_action = list_not_owned();
        size = 1024;
    }

#ifdef DTA_SKETCHES
    // ---- The bit of a reporter in the columns of a sketch, as a mask.
    action use_bit(bit<32> mask) {
        hdr.sketch.own = mask;
    }
    action no_bit() {
        hdr.sketch.own = 0;
    }
    table sketch_reporter {
        key = {
            meta.store: exact @name("store");
            meta.reporter: exact @name("reporter");
        }
        actions = { use_bit; @defaultonly no_bit; }
        const default_action = no_bit();
        size = 1024;
    }
    action column_state() {
        hdr.bridge.index = meta.state_base | meta.place;
    }
    action column_of_16() {
        meta.offset_high = 0;
        meta.offset_low = meta.place << 4;
    }
    action column_of_32() {
        meta.offset_high = 0;
        meta.offset_low = meta.place << 5;
    }
#endif

    // ---- The way to a queue pair: multicast groups `group` + 1 to `group` + 4 make one to four copies
    // (rid 0 is copy 0).
    action depart(bit<16> group) {
        to_tm.mcast_grp_a = group + meta.copies;
    }
    table departure {
        key = { hdr.bridge.pair: exact @name("pair"); }
        actions = { depart; @defaultonly NoAction; }
        const default_action = NoAction();
        size = QUEUE_PAIRS;
    }

    // ---- Answers of the collectors' queue pairs.
    action answer_of(bit<8> pair) {
        is_answer = 1;
        hdr.bridge.pair = pair;
    }
    table answer {
        key = {
            hdr.ipv4.destination: exact @name("address");
            hdr.bth.destination_qp: exact @name("local_qpn");
        }
        actions = { answer_of; @defaultonly NoAction; }
        const default_action = NoAction();
        size = QUEUE_PAIRS;
    }

    // ---- The drop reason that takes precedence.
    action because(bit<8> reason) {
        meta.reason = reason;
    }
    action because_of_its_hop() {
        meta.reason = meta.postcard_reason;
    }
    action take() {
        meta.taken = 1;
        hdr.kind.work = meta.primitive;
    }
    action take_postcard() {
        meta.is_row = 1;
        take();
    }
    table verdict {
        key = {
            meta.reason: ternary;
            hdr.v1.isValid(): ternary;
            meta.sequence_low: ternary;
            meta.postcard_reason: ternary;
            meta.is_not_listed: ternary;
            meta.no_version0: ternary;
            meta.is_unknown: ternary;
            meta.is_wrong: ternary;
            meta.lists_left: ternary;
            meta.bad_redundancy: ternary;
            meta.bad_length: ternary;
            meta.is_not_owned: ternary;
            meta.no_pair: ternary;
            meta.primitive: ternary;
        }
        actions = { because; because_of_its_hop; take; take_postcard; NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, true, 0x01 &&& 0x01, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, true, 0x02 &&& 0x02, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, true, 0x04 &&& 0x04, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, true, 0x08 &&& 0x08, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, true, 0x10 &&& 0x10, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, true, 0x20 &&& 0x20, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, true, 0x40 &&& 0x40, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, true, 0x80 &&& 0x80, _, _, _, _, _, _, _, _, _, _, _): because(REASON_FIELD);
            (0, _, _, 0, 1, _, _, _, _, _, _, _, _, _): because(REASON_NOT_LISTED);
            (0, _, _, 0, _, 1, _, _, _, _, _, _, _, _): because(REASON_VERSION0_STORE);
            (0, _, _, 0, _, _, 1, _, _, _, _, _, _, _): because(REASON_UNKNOWN_STORE);
            (0, _, _, 0, _, _, _, 1, _, _, _, _, _, _): because(REASON_WRONG_PRIMITIVE);
            (0, _, _, 0, _, _, _, _, 0, _, _, _, _, APPEND): because(REASON_LIST_RANGE);
#ifdef DTA_SKETCHES
            (0, _, _, 0, _, _, _, _, 0, _, _, _, _, SKETCH_MERGE): because(REASON_COLUMN);
#endif
            (0, _, _, 0, _, _, _, _, _, 1, _, _, _, _): because(REASON_REDUNDANCY);
            (0, _, _, 0, _, _, _, _, _, _, 1, _, _, _): because(REASON_VALUE_LENGTH);
            (0, _, _, 0, _, _, _, _, _, _, _, 1, _, _): because(REASON_LIST_NOT_OWNED);
            (0, _, _, 0, _, _, _, _, _, _, _, _, 1, _): because(REASON_NO_QUEUE_PAIR);
            (0, _, _, 0, _, _, _, _, _, _, _, _, _, POSTCARDING): take_postcard();
            (0, _, _, 0, _, _, _, _, _, _, _, _, _, _): take();
            (0, _, _, _, _, _, _, _, _, _, _, _, _, _): because_of_its_hop();
        }
        size = 32;
    }

    // ---- h = CRC-32C of a key of 16 bytes.
    CRCPolynomial<bit<32>>(32w0x1edc6f41, true, false, false, 32w0xffffffff, 32w0xffffffff) castagnoli;
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, castagnoli) key_hash;
    action hash_key() {
        hdr.bridge.index = key_hash.get({ hdr.key_first.word, hdr.key.b, hdr.key.c, hdr.key.d });
    }

    // A key of version 0 has 4 bytes.
    action fill_key() {
        hdr.key.setValid();
        hdr.key.b = 0;
        hdr.key.c = 0;
        hdr.key.d = 0;
    }
    action row_in_store() {
        meta.row = hdr.bridge.index & meta.cache_mask;
    }
    action row_in_cache() {
        meta.row = meta.row | meta.cache_base;
    }
    action ring_in_region() {
        hdr.bridge.address_low = hdr.bridge.address_low | meta.offset_low;
        hdr.bridge.address_high = hdr.bridge.address_high | meta.offset_high;
#ifdef DTA_LONG_BATCHES
        hdr.bridge.last = hdr.bridge.last - 1;
#endif
    }
    // Removes the report's headers, except those that the frame contains.
    action forget_report() {
        hdr.ethernet.setInvalid();
        hdr.ipv4.setInvalid();
        hdr.udp.setInvalid();
        hdr.dta.setInvalid();
        hdr.v1.setInvalid();
        hdr.v0_redundancy.setInvalid();
        hdr.v0_hop.setInvalid();
#ifdef DTA_SKETCHES
        hdr.column.setInvalid();
#endif
        hdr.bth.setInvalid();
        hdr.aeth.setInvalid();
        hdr.bridge.setValid();
    }
    // All words of a row are valid: validity bits share a container, which one table per stage can write.
    action forget_postcard() {
        forget_report();
        hdr.w1.setValid();
        hdr.w2.setValid();
        hdr.w3.setValid();
        hdr.w4.setValid();
        hdr.w5.setValid();
        hdr.w6.setValid();
    }

    apply {
        hdr.kind.setValid();
        hdr.kind.work = WORK_FORWARD;
        hdr.kind.flooded = 0;
        hdr.kind.port = intrinsic.ingress_port;
        if (meta.is_command == 0) {
            hdr.bridge.inline_keys = 0;
            hdr.bridge.hurries = 0;
            hdr.bridge.notify = 0;
            hdr.bridge.flush = 0;
        }
        meta.slack = hdr.ipv4.total_length - hdr.udp.length;
        // 0 if the low byte of the sequence equals the sequence byte of the first header.
        meta.sequence_low = meta.sequence_low ^ hdr.dta.sequence;

        if (hdr.bth.isValid()) {
            answer.apply();
        } else if (hdr.udp.isValid()) {
            service.apply();
        }
        if (is_report == 1) {
            if (!hdr.v1.isValid()) {
                version0.apply();
                fill_key();
            }
            shape.apply(hdr, meta);
            reporter.apply();
            hash_key();
            store.apply();
#ifdef DTA_POSTCARDS
            if (hdr.dta.opcode == POSTCARDING) {
                postcard.apply(hdr, meta);
            }
#endif
            if (meta.primitive != hdr.dta.opcode) {
                meta.is_wrong = 1;
            }
            fit.apply(hdr, meta);
#ifdef DTA_POSTCARDS
            // Not used by other primitives.
            row_in_store();
            row_in_cache();
#endif
            if (meta.primitive == APPEND) {
                ring.apply(hdr, meta);
                lists.apply();
            } else {
                region.apply();
            }
#ifdef DTA_SKETCHES
            if (meta.primitive == SKETCH_MERGE) {
                place.apply(hdr, meta);
            }
            if (meta.primitive == SKETCH_MERGE) {
                sketch_reporter.apply();
                column_state();
                if (hdr.bridge.element_shift == 4) {
                    column_of_16();
                } else {
                    column_of_32();
                }
            }
            if (meta.primitive == APPEND || meta.primitive == SKETCH_MERGE) {
                ring_in_region();
            }
#else
            if (meta.primitive == APPEND) {
                ring_in_region();
            }
#endif
            if (intrinsic.ingress_port != AGAIN_PORT) {
                if (meta.reason == 0) {
                    received.count(hdr.dta.opcode);
                } else {
                    received.count(0);
                }
            }
            sequences.apply(hdr, meta, intrinsic);
            verdict.apply();
            if (meta.taken == 0) {
                dropped.count(meta.reason);
                to_deparser.drop_ctl = 1;
#ifdef DTA_SKETCHES
            } else if (meta.primitive == SKETCH_MERGE) {
                // Egress decides what becomes of it.
                hdr.bridge.hurries = hdr.dta.immediate;
#endif
            } else if (intrinsic.ingress_port != AGAIN_PORT) {
                accepted.count(meta.primitive);
            }
#ifdef DTA_SKETCHES
            if (meta.taken == 1 && meta.primitive != SKETCH_MERGE && hdr.dta.immediate == 1) {
#else
            if (meta.taken == 1 && intrinsic.ingress_port != AGAIN_PORT && hdr.dta.immediate == 1) {
#endif
                if (hdr.bridge.notify == 1) {
                    hdr.bridge.hurries = 1;
                } else {
                    immediate_ignored.count(0);
                }
            }
            if (meta.gap == 1 && hdr.dta.retransmittable == 1) {
                to_deparser.mirror_type = MIRROR_REPORT;
                meta.mirror_work = WORK_NACK;
                meta.mirror_session = NACK_SESSION;
            }
            if (meta.is_row == 1) {
                // Most are only cached.
                to_deparser.drop_ctl = 1;
                forget_postcard();
            } else if (meta.taken == 1) {
                forget_report();
            }
        } else if (is_answer == 1) {
            // ---- An answer of a collector's queue pair.
            if (hdr.aeth.isValid() && hdr.aeth.syndrome[6:5] == 0) {
                answers.count(0);
                to_deparser.drop_ctl = 1;
            } else if (hdr.aeth.isValid() && hdr.aeth.syndrome == SYNDROME_SEQUENCE_ERROR) {
                // The responder misses frames: the next frame must have the PSN that it expects.
                answers.count(1);
                hdr.kind.work = WORK_SET_PSN;
                hdr.bridge.index = (bit<32>)hdr.bth.psn;
                meta.copies = 1;
                forget_report();
            } else {
                answers.count(2);
                to_deparser.drop_ctl = 1;
            }
        } else if (meta.is_command == 1) {
            // ---- A command: continues as a report would from here.
            hdr.kind.work = meta.command_work;
#ifdef DTA_POSTCARDS
            if (meta.is_row == 1) {
                to_deparser.drop_ctl = 1;
                forget_postcard();
            }
#endif
#ifdef DTA_POSTCARDS
        } else if (meta.other_pipe != 0) {
            // ---- A command for another pipe: forwarded unchanged.
            to_tm.ucast_egress_port = meta.other_pipe;
#endif
        } else {
            // ---- Everything else.
            forwarding.apply(hdr, meta, to_deparser, to_tm);
        }
#ifdef DTA_POSTCARDS
        // Each step on a row tests its condition again: a condition that spans several stages keeps everything else out of
        // them.
        rows.apply(hdr, meta, to_deparser);
        if (meta.is_row == 1) {
            row_region.apply();
        }
        if (meta.once_more == 1) {
            to_deparser.mirror_type = MIRROR_REPORT;
            meta.mirror_work = WORK_AGAIN;
            meta.mirror_session = AGAIN_SESSION;
        }
        if (meta.leaves == 1 && meta.no_pair == 1) {
            rows_discarded.count(2w0 ++ hdr.w0.word[21:16]);
            to_deparser.drop_ctl = 1;
        }
#endif
        // The destination, if it is not dropped.
        if (is_report == 1 || is_answer == 1 || meta.is_command == 1) {
            departure.apply();
        }
        // A frame of the control plane is sent unchanged.
        if (meta.is_command == 1 && meta.command_work == WORK_FORWARD) {
            hdr.bridge.setInvalid();
        }
    }
}

#endif

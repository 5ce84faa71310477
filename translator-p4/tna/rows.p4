// Incomplete rows of postcards, one per place.
#ifndef DTA_TNA_ROWS
#define DTA_TNA_ROWS

// A row has one key and one path length; a postcard with another evicts it. A postcard can access each register only
// once, so it exchanges its value for the previous one. The previous values are what is sent, both when a row is
// evicted and when the last hop arrives, as the key and length are the postcard's own then.
control Rows(inout ingress_headers_t hdr, inout ingress_metadata_t meta, inout ingress_intrinsic_metadata_for_deparser_t to_deparser) {
    // A word of the key. Each register returns its previous value.
#define ROW_WORD(NAME, WORD, WAS) \
    Register<bit<32>, bit<32>>(ROW_STATES, 0) row_##NAME; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(row_##NAME) swap_##NAME = { \
        void apply(inout bit<32> value, out bit<32> was) { was = value; value = WORD; } \
    }; \
    action take_##NAME() { WAS = swap_##NAME.execute(meta.row); }

    ROW_WORD(key_a, hdr.key_first.word, meta.key_a)
    ROW_WORD(key_b, hdr.key.b, meta.key_b)
    ROW_WORD(key_c, hdr.key.c, meta.key_c)
    ROW_WORD(key_d, hdr.key.d, meta.key_d)

    Register<bit<8>, bit<32>>(ROW_STATES, 0) row_length;
    RegisterAction<bit<8>, bit<32>, bit<8>>(row_length) swap_length = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = meta.path_length;
        }
    };
    action take_length() {
        meta.length_was = swap_length.execute(meta.row);
    }

    // A hop. The postcard's own hop is replaced, the others are only read.
#define ROW_HOP(HOP, WORD) \
    Register<bit<32>, bit<32>>(ROW_STATES, 0) row_##HOP; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(row_##HOP) swap_##HOP = { \
        void apply(inout bit<32> value, out bit<32> was) { was = value; value = hdr.w0.word; } \
    }; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(row_##HOP) read_##HOP = { \
        void apply(inout bit<32> value, out bit<32> was) { was = value; } \
    }; \
    action take_##HOP() { WORD.word = swap_##HOP.execute(meta.row); } \
    action give_##HOP() { WORD.word = read_##HOP.execute(meta.row); }

    ROW_HOP(hop_0, hdr.w1)
    ROW_HOP(hop_1, hdr.w2)
    ROW_HOP(hop_2, hdr.w3)
    ROW_HOP(hop_3, hdr.w4)
    ROW_HOP(hop_4, hdr.w5)
    ROW_HOP(hop_5, hdr.w6)

    // Bitmap (upper 16 bits), path length, 0. A row is free while this is 0, as a key can be 0.
    Register<bit<32>, bit<32>>(ROW_STATES, 0) row_head;
    // The row has this key: the postcard completes it, or adds a hop.
    RegisterAction<bit<32>, bit<32>, bit<32>>(row_head) add = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            if (value == meta.rest) {
                value = 0;
            } else {
                value = value | meta.head;
            }
        }
    };
    // The row has another key, or is free.
    RegisterAction<bit<32>, bit<32>, bit<32>>(row_head) begin = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            value = meta.head;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(row_head) clear = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            value = 0;
        }
    };

    // Equal words become 0.
    action differences() {
        hdr.key_first.word = hdr.key_first.word ^ meta.key_a;
        hdr.key.b = hdr.key.b ^ meta.key_b;
        hdr.key.c = hdr.key.c ^ meta.key_c;
        hdr.key.d = hdr.key.d ^ meta.key_d;
    }
    action adds() {
        meta.same = 1;
        meta.was = add.execute(meta.row);
    }
    action begins() {
        meta.was = begin.execute(meta.row);
    }
    // A one-hop path: frees the row, and the postcard passes ingress again.
    action clears() {
        meta.once_more = 1;
        meta.was = clear.execute(meta.row);
    }
    table row {
        key = {
            hdr.key_first.word: ternary;
            hdr.key.b: ternary;
            hdr.key.c: ternary;
            hdr.key.d: ternary;
            meta.path_length: ternary;
            meta.length_was: ternary;
        }
        actions = { adds; begins; clears; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, 0, 0, 0, 0, 0): adds();
            (0, 0, 0, 0, 1, 1): adds();
            (0, 0, 0, 0, 2, 2): adds();
            (0, 0, 0, 0, 3, 3): adds();
            (0, 0, 0, 0, 4, 4): adds();
            (0, 0, 0, 0, 5, 5): adds();
            (0, 0, 0, 0, 6, 6): adds();
            (_, _, _, _, 1, _): clears();
            (_, _, _, _, _, _): begins();
        }
        size = 16;
    }

    // The evicted row has the previous key.
    action restore_key() {
        hdr.key_first.word = meta.key_a;
        hdr.key.b = meta.key_b;
        hdr.key.c = meta.key_c;
        hdr.key.d = meta.key_d;
    }
    CRCPolynomial<bit<32>>(32w0x1edc6f41, true, false, false, 32w0xffffffff, 32w0xffffffff) castagnoli;
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, castagnoli) row_hash;
    action hash_row() {
        hdr.bridge.index = row_hash.get({ meta.key_a, meta.key_b, meta.key_c, meta.key_d });
    }

    // A complete path: its last hop is the postcard's.
#define COMPLETE(N, WORD) \
    action complete_##N() { \
        WORD.word = hdr.w0.word; \
        hdr.w0.word = meta.was | meta.head; \
        meta.leaves = 1; \
        to_deparser.drop_ctl = 0; \
    }
    COMPLETE(0, hdr.w1)
    COMPLETE(1, hdr.w2)
    COMPLETE(2, hdr.w3)
    COMPLETE(3, hdr.w4)
    COMPLETE(4, hdr.w5)
    COMPLETE(5, hdr.w6)
    table complete {
        key = { meta.hop: exact; }
        actions = { complete_0; complete_1; complete_2; complete_3; complete_4; complete_5; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            0: complete_0();
            1: complete_1();
            2: complete_2();
            3: complete_3();
            4: complete_4();
            5: complete_5();
        }
        size = 8;
    }
    action evict() {
        hdr.w0.word = meta.was;
        meta.leaves = 1;
        to_deparser.drop_ctl = 0;
    }

    // Index 0: postcards that replaced one of the same hop.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) superseded;
    // Index 0: rows of known path length that were sent with hops missing.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) partial_rows;
    action supersede() {
        superseded.count(0);
    }
    table hop_again {
        key = {
            meta.hop: ternary;
            meta.was: ternary;
        }
        actions = { supersede; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, 0x00010000 &&& 0x00010000): supersede();
            (1, 0x00020000 &&& 0x00020000): supersede();
            (2, 0x00040000 &&& 0x00040000): supersede();
            (3, 0x00080000 &&& 0x00080000): supersede();
            (4, 0x00100000 &&& 0x00100000): supersede();
            (5, 0x00200000 &&& 0x00200000): supersede();
        }
        size = 8;
    }

    apply {
        if (meta.is_row == 1) {
            take_key_a();
            take_key_b();
            take_key_c();
            take_key_d();
            take_length();
        }
        if (meta.is_row == 1) {
            if (meta.hop == 0) { take_hop_0(); } else { give_hop_0(); }
            if (meta.hop == 1) { take_hop_1(); } else { give_hop_1(); }
            if (meta.hop == 2) { take_hop_2(); } else { give_hop_2(); }
        }
        if (meta.is_row == 1) {
            if (meta.hop == 3) { take_hop_3(); } else { give_hop_3(); }
            if (meta.hop == 4) { take_hop_4(); } else { give_hop_4(); }
            if (meta.hop == 5) { take_hop_5(); } else { give_hop_5(); }
        }
        if (meta.is_row == 1) {
            hash_row();
            differences();
        }
        if (meta.is_row == 1) {
            row.apply();
            restore_key();
        }
        if (meta.same == 1) {
            if (meta.was == meta.rest) {
                complete.apply();
            } else {
                hop_again.apply();
            }
        } else if (meta.is_row == 1 && meta.was != 0) {
            evict();
            if (meta.length_was != 0) {
                partial_rows.count(0);
            }
        }
    }
}

#endif

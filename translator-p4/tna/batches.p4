// Incomplete batches of 32 and 64 bytes, one per list. All entries of a batch but the last are held here.
#ifndef DTA_TNA_BATCHES
#define DTA_TNA_BATCHES

// A batch has 14 words for entries, `sum` and `w0` to `w12`. The last two words of the frame, `w13` and `w14`, are its
// sequence, its count and its check. The packet arrives with its entry in the first words.
control Lists(inout egress_headers_t hdr, inout egress_metadata_t meta) {
    // Number of entries held.
    Register<bit<8>, bit<32>>(LIST_STATES, 0) list_count;
    RegisterAction<bit<8>, bit<32>, bit<8>>(list_count) enter = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            if (value == hdr.bridge.last) {
                value = 0;
            } else {
                value = value + 1;
            }
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(list_count) leave = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = 0;
        }
    };
    action enters() {
        meta.before = enter.execute(hdr.bridge.index);
    }
    action leaves() {
        meta.before = leave.execute(hdr.bridge.index);
    }

    // Sequence of the newest batch; 0 before the first. A batch's place in the ring is its sequence minus 1, which is
    // the previous sequence. 1 follows 2^32 - 1, so here 0 stands for 2^32 - 1. It is signed because registers can be
    // compared with small constants only.
    Register<bit<32>, bit<32>>(LIST_STATES, 0) list_sequence;
    RegisterAction<bit<32>, bit<32>, bit<32>>(list_sequence) follow = {
        void apply(inout bit<32> value, out bit<32> place) {
            place = value;
            if ((int<32>)value == -2) {
                value = 0;
            } else {
                value = value + 1;
            }
        }
    };
    action sends() {
        meta.sends = 1;
        meta.place = follow.execute(hdr.bridge.index);
    }

    // Copies the entry to each position that it can have in its batch.
    action spread_1() {
        hdr.w0.word = hdr.sum.word;
        hdr.w1.word = hdr.sum.word;
        hdr.w2.word = hdr.sum.word;
        hdr.w3.word = hdr.sum.word;
        hdr.w4.word = hdr.sum.word;
        hdr.w5.word = hdr.sum.word;
        hdr.w6.word = hdr.sum.word;
        hdr.w7.word = hdr.sum.word;
        hdr.w8.word = hdr.sum.word;
        hdr.w9.word = hdr.sum.word;
        hdr.w10.word = hdr.sum.word;
        hdr.w11.word = hdr.sum.word;
        hdr.w12.word = hdr.sum.word;
    }
    action spread_2() {
        hdr.w1.word = hdr.sum.word;
        hdr.w2.word = hdr.w0.word;
        hdr.w3.word = hdr.sum.word;
        hdr.w4.word = hdr.w0.word;
        hdr.w5.word = hdr.sum.word;
        hdr.w6.word = hdr.w0.word;
        hdr.w7.word = hdr.sum.word;
        hdr.w8.word = hdr.w0.word;
        hdr.w9.word = hdr.sum.word;
        hdr.w10.word = hdr.w0.word;
        hdr.w11.word = hdr.sum.word;
        hdr.w12.word = hdr.w0.word;
    }
    action spread_3() {
        hdr.w2.word = hdr.sum.word;
        hdr.w3.word = hdr.w0.word;
        hdr.w4.word = hdr.w1.word;
        hdr.w5.word = hdr.sum.word;
        hdr.w6.word = hdr.w0.word;
        hdr.w7.word = hdr.w1.word;
        hdr.w8.word = hdr.sum.word;
        hdr.w9.word = hdr.w0.word;
        hdr.w10.word = hdr.w1.word;
    }
    action spread_4() {
        hdr.w3.word = hdr.sum.word;
        hdr.w4.word = hdr.w0.word;
        hdr.w5.word = hdr.w1.word;
        hdr.w6.word = hdr.w2.word;
        hdr.w7.word = hdr.sum.word;
        hdr.w8.word = hdr.w0.word;
        hdr.w9.word = hdr.w1.word;
        hdr.w10.word = hdr.w2.word;
    }
    action spread_5() {
        hdr.w4.word = hdr.sum.word;
        hdr.w5.word = hdr.w0.word;
        hdr.w6.word = hdr.w1.word;
        hdr.w7.word = hdr.w2.word;
        hdr.w8.word = hdr.w3.word;
    }
    action spread_6() {
        hdr.w5.word = hdr.sum.word;
        hdr.w6.word = hdr.w0.word;
        hdr.w7.word = hdr.w1.word;
        hdr.w8.word = hdr.w2.word;
        hdr.w9.word = hdr.w3.word;
        hdr.w10.word = hdr.w4.word;
    }
    action spread_7() {
        hdr.w6.word = hdr.sum.word;
        hdr.w7.word = hdr.w0.word;
        hdr.w8.word = hdr.w1.word;
        hdr.w9.word = hdr.w2.word;
        hdr.w10.word = hdr.w3.word;
        hdr.w11.word = hdr.w4.word;
        hdr.w12.word = hdr.w5.word;
    }
    table spread {
        key = {
            hdr.list.isValid(): exact;
            hdr.bridge.words: exact;
        }
        actions = { spread_1; spread_2; spread_3; spread_4; spread_5; spread_6; spread_7; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 1): spread_1();
            (true, 2): spread_2();
            (true, 3): spread_3();
            (true, 4): spread_4();
            (true, 5): spread_5();
            (true, 6): spread_6();
            (true, 7): spread_7();
        }
        size = 8;
    }

    // Words of the batch, bit n for word n: those of this entry, and those of earlier ones.
    action stands(bit<16> own, bit<16> past) {
        meta.own = own;
        meta.past = past;
        meta.count = meta.before + 1;
        hdr.bridge.reports = meta.before + 0x21;
    }
    // A flush has no entry of its own.
    action stands_alone(bit<16> past) {
        meta.own = 0;
        meta.past = past;
        meta.count = meta.before;
        hdr.bridge.reports = meta.before + 0x20;
    }
    table position {
        key = {
            hdr.list.isValid(): exact;
            hdr.bridge.words: exact;
            meta.before: exact;
            hdr.bridge.flush: exact;
        }
        actions = { stands; stands_alone; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 1, 0, 0): stands(0x0001, 0x0000);
            (true, 1, 1, 0): stands(0x0002, 0x0001);
            (true, 1, 2, 0): stands(0x0004, 0x0003);
            (true, 1, 3, 0): stands(0x0008, 0x0007);
            (true, 1, 4, 0): stands(0x0010, 0x000f);
            (true, 1, 5, 0): stands(0x0020, 0x001f);
            (true, 1, 6, 0): stands(0x0040, 0x003f);
            (true, 1, 7, 0): stands(0x0080, 0x007f);
            (true, 1, 8, 0): stands(0x0100, 0x00ff);
            (true, 1, 9, 0): stands(0x0200, 0x01ff);
            (true, 1, 10, 0): stands(0x0400, 0x03ff);
            (true, 1, 11, 0): stands(0x0800, 0x07ff);
            (true, 1, 12, 0): stands(0x1000, 0x0fff);
            (true, 1, 13, 0): stands(0x2000, 0x1fff);
            (true, 2, 0, 0): stands(0x0003, 0x0000);
            (true, 2, 1, 0): stands(0x000c, 0x0003);
            (true, 2, 2, 0): stands(0x0030, 0x000f);
            (true, 2, 3, 0): stands(0x00c0, 0x003f);
            (true, 2, 4, 0): stands(0x0300, 0x00ff);
            (true, 2, 5, 0): stands(0x0c00, 0x03ff);
            (true, 2, 6, 0): stands(0x3000, 0x0fff);
            (true, 3, 0, 0): stands(0x0007, 0x0000);
            (true, 3, 1, 0): stands(0x0038, 0x0007);
            (true, 3, 2, 0): stands(0x01c0, 0x003f);
            (true, 3, 3, 0): stands(0x0e00, 0x01ff);
            (true, 4, 0, 0): stands(0x000f, 0x0000);
            (true, 4, 1, 0): stands(0x00f0, 0x000f);
            (true, 4, 2, 0): stands(0x0f00, 0x00ff);
            (true, 5, 0, 0): stands(0x001f, 0x0000);
            (true, 5, 1, 0): stands(0x03e0, 0x001f);
            (true, 6, 0, 0): stands(0x003f, 0x0000);
            (true, 6, 1, 0): stands(0x0fc0, 0x003f);
            (true, 7, 0, 0): stands(0x007f, 0x0000);
            (true, 7, 1, 0): stands(0x3f80, 0x007f);
            (true, 8, 0, 0): stands(0x00ff, 0x0000);
            (true, 9, 0, 0): stands(0x01ff, 0x0000);
            (true, 10, 0, 0): stands(0x03ff, 0x0000);
            (true, 11, 0, 0): stands(0x07ff, 0x0000);
            (true, 12, 0, 0): stands(0x0fff, 0x0000);
            (true, 13, 0, 0): stands(0x1fff, 0x0000);
            (true, 14, 0, 0): stands(0x3fff, 0x0000);
            (true, 1, 1, 1): stands_alone(0x0001);
            (true, 1, 2, 1): stands_alone(0x0003);
            (true, 1, 3, 1): stands_alone(0x0007);
            (true, 1, 4, 1): stands_alone(0x000f);
            (true, 1, 5, 1): stands_alone(0x001f);
            (true, 1, 6, 1): stands_alone(0x003f);
            (true, 1, 7, 1): stands_alone(0x007f);
            (true, 1, 8, 1): stands_alone(0x00ff);
            (true, 1, 9, 1): stands_alone(0x01ff);
            (true, 1, 10, 1): stands_alone(0x03ff);
            (true, 1, 11, 1): stands_alone(0x07ff);
            (true, 1, 12, 1): stands_alone(0x0fff);
            (true, 1, 13, 1): stands_alone(0x1fff);
            (true, 2, 1, 1): stands_alone(0x0003);
            (true, 2, 2, 1): stands_alone(0x000f);
            (true, 2, 3, 1): stands_alone(0x003f);
            (true, 2, 4, 1): stands_alone(0x00ff);
            (true, 2, 5, 1): stands_alone(0x03ff);
            (true, 2, 6, 1): stands_alone(0x0fff);
            (true, 3, 1, 1): stands_alone(0x0007);
            (true, 3, 2, 1): stands_alone(0x003f);
            (true, 3, 3, 1): stands_alone(0x01ff);
            (true, 4, 1, 1): stands_alone(0x000f);
            (true, 4, 2, 1): stands_alone(0x00ff);
            (true, 5, 1, 1): stands_alone(0x001f);
            (true, 6, 1, 1): stands_alone(0x003f);
            (true, 7, 1, 1): stands_alone(0x007f);
        }
        size = 128;
    }

    // One word. Stored if its entry waits; in a batch that is sent, read from an earlier entry, or 0 after the last one.
#define BATCH_WORD(N, WORD) \
    Register<bit<32>, bit<32>>(LIST_STATES, 0) list_word_##N; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(list_word_##N) keep_##N = { \
        void apply(inout bit<32> value) { value = WORD; } \
    }; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(list_word_##N) give_##N = { \
        void apply(inout bit<32> value, out bit<32> was) { was = value; } \
    }; \
    action keeps_##N() { keep_##N.execute(hdr.bridge.index); } \
    action gives_##N() { WORD = give_##N.execute(hdr.bridge.index); } \
    action clears_##N() { WORD = 0; } \
    table word_##N { \
        key = { \
            hdr.list.isValid(): exact; \
            meta.sends: exact; \
            meta.own[N:N]: exact; \
            meta.past[N:N]: exact; \
        } \
        actions = { keeps_##N; gives_##N; clears_##N; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            (true, 0, 1, 0): keeps_##N(); \
            (true, 1, 0, 1): gives_##N(); \
            (true, 1, 0, 0): clears_##N(); \
        } \
        size = 4; \
    }
    BATCH_WORD(0, hdr.sum.word)
    BATCH_WORD(1, hdr.w0.word)
    BATCH_WORD(2, hdr.w1.word)
    BATCH_WORD(3, hdr.w2.word)
    BATCH_WORD(4, hdr.w3.word)
    BATCH_WORD(5, hdr.w4.word)
    BATCH_WORD(6, hdr.w5.word)
    BATCH_WORD(7, hdr.w6.word)
    BATCH_WORD(8, hdr.w7.word)
    BATCH_WORD(9, hdr.w8.word)
    BATCH_WORD(10, hdr.w9.word)
    BATCH_WORD(11, hdr.w10.word)
    BATCH_WORD(12, hdr.w11.word)

    // The last word is never stored, because it is always of the last entry.
    action clears_13() {
        hdr.w12.word = 0;
    }

    action ends() {
        hdr.w13.setValid();
        hdr.w14.setValid();
        hdr.w13.word = meta.place + 1;
        hdr.w14.word[31:24] = meta.count;
    }
    action trailer_32() {
        hdr.sum.setValid();
        hdr.w0.setValid();
        hdr.w1.setValid();
        hdr.w2.setValid();
        hdr.w3.setValid();
        hdr.w4.setValid();
        ends();
    }
    action trailer_64() {
        hdr.sum.setValid();
        hdr.w0.setValid();
        hdr.w1.setValid();
        hdr.w2.setValid();
        hdr.w3.setValid();
        hdr.w4.setValid();
        hdr.w5.setValid();
        hdr.w6.setValid();
        hdr.w7.setValid();
        hdr.w8.setValid();
        hdr.w9.setValid();
        hdr.w10.setValid();
        hdr.w11.setValid();
        hdr.w12.setValid();
        ends();
    }
    table trailer {
        key = {
            hdr.list.isValid(): exact;
            hdr.bridge.element_shift: exact;
        }
        actions = { trailer_32; trailer_64; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 5): trailer_32();
            (true, 6): trailer_64();
        }
        size = 2;
    }

    apply {
        if (hdr.list.isValid()) {
            if (hdr.bridge.hurries == 1) {
                leaves();
            } else {
                enters();
            }
        }
        spread.apply();
        if (hdr.list.isValid() && hdr.bridge.flush == 0 && (hdr.bridge.hurries == 1 || meta.before == hdr.bridge.last)) {
            sends();
        } else if (hdr.list.isValid() && hdr.bridge.flush == 1 && meta.before != 0) {
            sends();
        }
        position.apply();
        word_0.apply();
        word_1.apply();
        word_2.apply();
        word_3.apply();
        word_4.apply();
        word_5.apply();
        word_6.apply();
        word_7.apply();
        word_8.apply();
        word_9.apply();
        word_10.apply();
        word_11.apply();
        word_12.apply();
        if (hdr.list.isValid() && meta.own[13:13] == 0) {
            clears_13();
        }
        trailer.apply();
    }
}

#endif

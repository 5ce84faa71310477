// Batches in the making, each list with its own. What is held of a batch is all entries but its last.
#ifndef DTA_TNA_LISTS
#define DTA_TNA_LISTS

// Batches of 16 bytes: two entries of one word, or one of two words. The frame has `sum`, `w0` for the entries,
// `w1` for the sequence, `w2` for the count and the check.
control Lists(inout egress_headers_t hdr, inout egress_metadata_t meta) {
    // Entries held.
    Register<bit<8>, bit<32>>(LIST_STATES, 0) list_count;
    // Sequence of the newest batch; 0: none yet.
    Register<bit<32>, bit<32>>(LIST_STATES, 0) list_sequence;
    Register<bit<32>, bit<32>>(LIST_STATES, 0) list_word_0;

    RegisterAction<bit<8>, bit<32>, bit<8>>(list_count) enter = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            if (value == 0) {
                value = 1;
            } else {
                value = 0;
            }
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(list_count) leave = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = 0;
        }
    };
    // The place in the ring is the sequence less 1, which is the newest one before. After 2^32 - 1 comes 1, so that 0
    // stands for 2^32 - 1 here. The sign: a register is compared with small numbers alone.
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
    RegisterAction<bit<32>, bit<32>, bit<32>>(list_word_0) swap_word_0 = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            value = hdr.w0.word;
        }
    };

    action enters() {
        meta.before = enter.execute(hdr.bridge.index);
    }
    action leaves() {
        meta.before = leave.execute(hdr.bridge.index);
    }
    action follows() {
        meta.place = follow.execute(hdr.bridge.index);
    }
    // The entry is the first of its batch, or not.
    action first_entry() {
        hdr.sum.word = hdr.w0.word;
        hdr.w0.word = hdr.w1.word;
        meta.count = 1;
        hdr.bridge.reports = 0x21;
    }
    action only_entry() {
        hdr.sum.word = hdr.w0.word;
        hdr.w0.word = 0;
        meta.count = 1;
        hdr.bridge.reports = 0x21;
    }
    action hold_entry() {
        swap_word_0.execute(hdr.bridge.index);
    }
    // A flush: the one that is held leaves alone.
    action held_entry() {
        hdr.sum.word = swap_word_0.execute(hdr.bridge.index);
        meta.count = 1;
        hdr.bridge.reports = 0x21;
    }
    action second_entry() {
        hdr.sum.word = swap_word_0.execute(hdr.bridge.index);
        meta.count = 2;
        hdr.bridge.reports = 0x22;
    }
    table entry {
        key = {
            hdr.bridge.words: exact;
            meta.before: exact;
            hdr.bridge.hurries: exact;
            hdr.bridge.flush: exact;
        }
        actions = { first_entry; only_entry; second_entry; hold_entry; held_entry; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, 0, 0, 0): hold_entry();
            (1, 0, 1, 0): only_entry();
            (1, 1, 0, 0): second_entry();
            (1, 1, 1, 0): second_entry();
            (2, 0, 0, 0): first_entry();
            (2, 0, 1, 0): first_entry();
            (1, 1, 1, 1): held_entry();
        }
        size = 8;
    }

    action sends() {
        meta.sends = 1;
        follows();
    }
    action sequence_and_count() {
        hdr.w1.word = meta.place + 1;
        hdr.w2.word[31:24] = meta.count;
    }

    apply {
        // An entry of two words is a batch by itself.
        if (hdr.list.isValid() && hdr.bridge.words == 1) {
            if (hdr.bridge.hurries == 1) {
                leaves();
            } else {
                enters();
            }
        }
        if (hdr.list.isValid() && ((hdr.bridge.hurries == 1 && hdr.bridge.flush == 0) || hdr.bridge.words == 2 || meta.before == 1)) {
            sends();
        }
        if (hdr.list.isValid()) {
            entry.apply();
            hdr.sum.setValid();
            hdr.w1.setValid();
            hdr.w2.setValid();
        }
        if (hdr.list.isValid()) {
            sequence_and_count();
        }
    }
}

#endif

// Incomplete batches, one per list. All entries of a batch but the last are held here.
#ifndef DTA_TNA_LISTS
#define DTA_TNA_LISTS

// Batches of 16 bytes: two one-word entries or one two-word entry. In the frame, `sum` and `w0` are the entries,
// `w1` the sequence, `w2` the count and the check.
control Lists(inout egress_headers_t hdr, inout egress_metadata_t meta) {
    // Number of entries held.
    Register<bit<8>, bit<32>>(LIST_STATES, 0) list_count;
    // Sequence of the newest batch; 0 before the first.
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
    // A batch's place in the ring is its sequence minus 1, which is the previous sequence. 1 follows 2^32 - 1, so here 0
    // stands for 2^32 - 1. It is signed because registers can be compared with small constants only.
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
    // The entry is the first or a later one of its batch.
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
    // A flush: sends the entry that is held.
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
        // A two-word entry fills a batch.
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

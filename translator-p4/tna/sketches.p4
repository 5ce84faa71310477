// Incomplete sketch columns, each with one place for all epochs.
#ifndef DTA_TNA_SKETCHES
#define DTA_TNA_SKETCHES

// Two words of a register, accessed together.
struct two_words_t {
    bit<32> first;
    bit<32> second;
}

// Each register is passed once by a report. What it does there is said by tables with a key of their own, one after the
// other: a condition around several of them would let nothing else be done in their stages. The packet has one reporter and the expected ones in `w0`, and its cells in `w1` to `w4`, as they are in memory.
control Columns(inout egress_headers_t hdr, inout egress_metadata_t meta) {
    // Whether anything has been merged here: no epoch number, not even 0, can mean an empty place.
    Register<bit<8>, bit<32>>(COLUMN_STATES, 0) column_used;
    RegisterAction<bit<8>, bit<32>, bit<8>>(column_used) use = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = 1;
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(column_used) look_used = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
        }
    };
    action uses() {
        meta.used = use.execute(hdr.bridge.index);
    }
    action looks_used() {
        meta.used = look_used.execute(hdr.bridge.index);
    }
    // A reporter without a bit changes nothing.
    table used {
        key = {
            hdr.sketch.isValid(): exact;
            hdr.sketch.own: ternary;
        }
        actions = { uses; looks_used; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 0): looks_used();
            (true, _): uses();
        }
        size = 2;
    }

    // The epoch, and how far a report's is ahead of it, modulo 2^32. A later epoch replaces it.
    Register<two_words_t, bit<32>>(COLUMN_STATES, {0, 0}) column_epoch;
    RegisterAction<two_words_t, bit<32>, bit<32>>(column_epoch) begin_epoch = {
        void apply(inout two_words_t value, out bit<32> ahead) {
            value.second = 0;
            value.first = hdr.sketch.epoch;
            ahead = value.second;
        }
    };
    RegisterAction<two_words_t, bit<32>, bit<32>>(column_epoch) follow_epoch = {
        void apply(inout two_words_t value, out bit<32> ahead) {
            value.second = hdr.sketch.epoch - value.first;
            if ((int<32>)hdr.sketch.epoch - (int<32>)value.first > 0) {
                value.first = hdr.sketch.epoch;
            }
            ahead = value.second;
        }
    };
    RegisterAction<two_words_t, bit<32>, bit<32>>(column_epoch) look_epoch = {
        void apply(inout two_words_t value, out bit<32> ahead) {
            value.second = hdr.sketch.epoch - value.first;
            ahead = value.second;
        }
    };
    action begins_epoch() {
        meta.epochs_ahead = begin_epoch.execute(hdr.bridge.index);
    }
    action follows_epoch() {
        meta.epochs_ahead = follow_epoch.execute(hdr.bridge.index);
    }
    action looks_epoch() {
        meta.epochs_ahead = look_epoch.execute(hdr.bridge.index);
    }
    table epoch {
        key = {
            hdr.sketch.isValid(): exact;
            hdr.sketch.own: ternary;
            meta.used: ternary;
        }
        actions = { begins_epoch; follows_epoch; looks_epoch; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 0, _): looks_epoch();
            (true, _, 0): begins_epoch();
            (true, _, _): follows_epoch();
        }
        size = 4;
    }

    // Bits of the reporters merged, and the report's own bit if it was among them.
    Register<two_words_t, bit<32>>(COLUMN_STATES, {0, 0}) column_reporters;
    RegisterAction<two_words_t, bit<32>, bit<32>>(column_reporters) begin_reporters = {
        void apply(inout two_words_t value, out bit<32> again) {
            value.second = 0;
            value.first = hdr.sketch.own;
            again = value.second;
        }
    };
    RegisterAction<two_words_t, bit<32>, bit<32>>(column_reporters) join_reporters = {
        void apply(inout two_words_t value, out bit<32> again) {
            value.second = value.first & hdr.sketch.own;
            value.first = value.first | hdr.sketch.own;
            again = value.second;
        }
    };
    action begins() {
        meta.fate = FATE_BEGINS;
        meta.again = begin_reporters.execute(hdr.bridge.index);
    }
    action joins() {
        meta.fate = FATE_JOINS;
        meta.again = join_reporters.execute(hdr.bridge.index);
    }
    action refuses(bit<8> reason) {
        meta.fate = FATE_DROPPED;
        meta.refused = reason;
    }
    // A flush has no reporter, and names the epoch.
    action leaves() {
        meta.fate = FATE_LEAVES;
    }
    table fate {
        key = {
            hdr.sketch.isValid(): exact;
            hdr.bridge.flush: ternary;
            hdr.sketch.own: ternary;
            meta.used: ternary;
            meta.epochs_ahead: ternary;
        }
        actions = { begins; joins; refuses; leaves; NoAction; }
        const default_action = NoAction();
        const entries = {
            (true, 1, _, 1, 0): leaves();
            (true, 1, _, _, _): NoAction();
            (true, _, 0, _, _): refuses(REASON_SKETCH_REPORTERS);
            (true, _, _, 1, 0x80000000 &&& 0x80000000): refuses(REASON_EPOCH_OLD);
            (true, _, _, 0, _): begins();
            (true, _, _, _, 0): joins();
            (true, _, _, _, _): begins();
        }
        size = 8;
    }

    // Reporters merged (upper half) and expected (lower half), as in memory; and how many are missing.
    Register<bit<32>, bit<32>>(COLUMN_STATES, 0) column_merged;
    RegisterAction<bit<32>, bit<32>, bit<32>>(column_merged) begin_merged = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = hdr.w0.word;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(column_merged) join_merged = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + meta.one_more;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(column_merged) look_merged = {
        void apply(inout bit<32> value, out bit<32> now) {
            now = value;
        }
    };
    Register<bit<8>, bit<32>>(COLUMN_STATES, 0) column_missing;
    RegisterAction<bit<8>, bit<32>, bit<8>>(column_missing) begin_missing = {
        void apply(inout bit<8> value, out bit<8> now) {
            value = hdr.sketch.others;
            now = value;
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(column_missing) join_missing = {
        void apply(inout bit<8> value, out bit<8> now) {
            value = value |-| 1;
            now = value;
        }
    };
    action begins_merged() {
        hdr.w0.word = begin_merged.execute(hdr.bridge.index);
    }
    action joins_merged() {
        hdr.w0.word = join_merged.execute(hdr.bridge.index);
    }
    action looks_merged() {
        hdr.w0.word = look_merged.execute(hdr.bridge.index);
    }
    action begins_missing() {
        meta.missing = begin_missing.execute(hdr.bridge.index);
    }
    action joins_missing() {
        meta.missing = join_missing.execute(hdr.bridge.index);
    }
    action again() {
        meta.fate = FATE_DROPPED;
        meta.refused = REASON_DUPLICATE_COLUMN;
    }
    table merged {
        key = {
            meta.fate: exact;
            meta.again: ternary;
        }
        actions = { begins_merged; joins_merged; looks_merged; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (FATE_BEGINS, _): begins_merged();
            (FATE_JOINS, 0): joins_merged();
            (FATE_LEAVES, _): looks_merged();
        }
        size = 4;
    }
    table missing {
        key = {
            meta.fate: exact;
            meta.again: ternary;
        }
        actions = { begins_missing; joins_missing; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (FATE_BEGINS, _): begins_missing();
            (FATE_JOINS, 0): joins_missing();
        }
        size = 2;
    }

    // A cell; 0 until somebody reports it. The words of a flush are 0, which changes none.
#define CELL(N, WORD) \
    Register<bit<32>, bit<32>>(COLUMN_STATES, 0) column_cell_##N; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(column_cell_##N) begin_cell_##N = { \
        void apply(inout bit<32> value, out bit<32> now) { value = WORD; now = value; } \
    }; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(column_cell_##N) sum_cell_##N = { \
        void apply(inout bit<32> value, out bit<32> now) { value = value |+| WORD; now = value; } \
    }; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(column_cell_##N) max_cell_##N = { \
        void apply(inout bit<32> value, out bit<32> now) { value = max(value, WORD); now = value; } \
    }; \
    RegisterAction<bit<32>, bit<32>, bit<32>>(column_cell_##N) or_cell_##N = { \
        void apply(inout bit<32> value, out bit<32> now) { value = value | WORD; now = value; } \
    }; \
    action begins_cell_##N() { WORD = begin_cell_##N.execute(hdr.bridge.index); } \
    action sums_cell_##N() { WORD = sum_cell_##N.execute(hdr.bridge.index); } \
    action maxes_cell_##N() { WORD = max_cell_##N.execute(hdr.bridge.index); } \
    action ors_cell_##N() { WORD = or_cell_##N.execute(hdr.bridge.index); } \
    table cell_##N { \
        key = { \
            meta.fate: exact; \
            meta.again: ternary; \
            hdr.sketch.merge: ternary; \
        } \
        actions = { begins_cell_##N; sums_cell_##N; maxes_cell_##N; ors_cell_##N; @defaultonly NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            (FATE_BEGINS, _, _): begins_cell_##N(); \
            (FATE_JOINS, 0, 0): sums_cell_##N(); \
            (FATE_JOINS, 0, 1): maxes_cell_##N(); \
            (FATE_JOINS, 0, 2): ors_cell_##N(); \
            (FATE_LEAVES, _, _): ors_cell_##N(); \
        } \
        size = 8; \
    }
    CELL(0, hdr.w1.word)
    CELL(1, hdr.w2.word)
    CELL(2, hdr.w3.word)
    CELL(3, hdr.w4.word)

    // Reports not sent yet.
    Register<bit<8>, bit<32>>(COLUMN_STATES, 0) column_unsent;
    RegisterAction<bit<8>, bit<32>, bit<8>>(column_unsent) first_unsent = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = 1;
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(column_unsent) one_more_unsent = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = value + 1;
        }
    };
    RegisterAction<bit<8>, bit<32>, bit<8>>(column_unsent) all_sent = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = 0;
        }
    };
    action keeps_first() {
        meta.unsent = first_unsent.execute(hdr.bridge.index);
    }
    action keeps_one_more() {
        meta.unsent = one_more_unsent.execute(hdr.bridge.index);
    }
    action sends_first() {
        meta.unsent = all_sent.execute(hdr.bridge.index);
        meta.sends = 1;
    }
    action sends_all() {
        meta.unsent = all_sent.execute(hdr.bridge.index);
        meta.sends = 1;
    }
    table unsent {
        key = {
            meta.fate: exact;
            meta.again: ternary;
            meta.missing: ternary;
        }
        actions = { keeps_first; keeps_one_more; sends_first; sends_all; again; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (FATE_BEGINS, _, 0): sends_first();
            (FATE_BEGINS, _, _): keeps_first();
            (FATE_JOINS, 0, 0): sends_all();
            (FATE_JOINS, 0, _): keeps_one_more();
            (FATE_JOINS, _, _): again();
            (FATE_LEAVES, _, _): sends_all();
        }
        size = 8;
    }

    // Reports accepted, as egress decides it. Superseded reports are counted by their number.
    Counter<bit<64>, bit<8>>(8, CounterType_t.PACKETS) egress_accepted;
    Counter<bit<64>, bit<8>>(REASONS, CounterType_t.PACKETS) egress_dropped;
    Counter<bit<64>, bit<8>>(64, CounterType_t.PACKETS) superseded_by_number;
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) egress_immediate_ignored;

    action accepts() {
        egress_accepted.count(SKETCH_MERGE);
    }
    table accepted {
        key = { meta.fate: exact; }
        actions = { accepts; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            FATE_BEGINS: accepts();
            FATE_JOINS: accepts();
        }
        size = 2;
    }
    action ignores() {
        egress_immediate_ignored.count(0);
    }
    table ignored {
        key = {
            meta.fate: exact;
            hdr.bridge.hurries: exact;
        }
        actions = { ignores; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (FATE_BEGINS, 1): ignores();
            (FATE_JOINS, 1): ignores();
        }
        size = 2;
    }
    // Columns use the indices from 80 on of the counter of emitted reports.
    action emits_first() {
        superseded_by_number.count(meta.unsent);
        hdr.bridge.reports = 0x51;
    }
    action supersedes() {
        superseded_by_number.count(meta.unsent);
    }
    action emits_all() {
        hdr.bridge.reports = meta.unsent + 0x51;
    }
    // A flush is not a report. (If all had been sent already, the same column is sent again.)
    action emits_held() {
        hdr.bridge.reports = meta.unsent + 0x50;
    }
    table number {
        key = {
            meta.fate: exact;
            meta.sends: exact;
        }
        actions = { emits_first; supersedes; emits_all; emits_held; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (FATE_BEGINS, 0): supersedes();
            (FATE_BEGINS, 1): emits_first();
            (FATE_JOINS, 1): emits_all();
            (FATE_LEAVES, 1): emits_held();
        }
        size = 4;
    }
    action drops() {
        egress_dropped.count(meta.refused);
    }
    table dropped {
        key = { meta.fate: exact; }
        actions = { drops; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            FATE_DROPPED: drops();
        }
        size = 2;
    }
    apply {
        used.apply();
        epoch.apply();
        fate.apply();
        merged.apply();
        missing.apply();
        cell_0.apply();
        cell_1.apply();
        cell_2.apply();
        cell_3.apply();
        unsent.apply();
        accepted.apply();
        ignored.apply();
        dropped.apply();
        number.apply();
    }
}

#endif

// Tables with constant entries: valid forms of reports, and what fits their store.
#ifndef DTA_TNA_SHAPES
#define DTA_TNA_SHAPES

// The number of words in a report, or why it cannot be read.
control Shape(in ingress_headers_t hdr, inout ingress_metadata_t meta) {
    action has_words(bit<8> words) {
        meta.words = words;
    }
    action cannot_be_read(bit<8> reason) {
        meta.reason = reason;
    }
    table shape {
        key = {
            meta.header_bad: ternary;
            meta.slack: range;
            hdr.dta.isValid(): ternary;
            hdr.dta.version: ternary;
            hdr.dta.opcode: ternary;
            hdr.v1.isValid(): ternary;
            hdr.udp.length: range;
        }
        actions = { has_words; cannot_be_read; }
        const default_action = cannot_be_read(REASON_LENGTH);
        const entries = {
            (true, _, _, _, _, _, _): cannot_be_read(REASON_HEADER);
            (_, 0 .. 19, _, _, _, _, _): cannot_be_read(REASON_HEADER);
            (_, 32768 .. 65535, _, _, _, _, _): cannot_be_read(REASON_HEADER);
            (_, _, true, 0, KEY_WRITE, _, 20 .. 20): has_words(1);
            (_, _, true, 0, APPEND, _, 19 .. 19): has_words(1);
            (_, _, true, 0, KEY_INCREMENT, _, 24 .. 24): has_words(2);
            (_, _, true, 0, POSTCARDING, _, 20 .. 20): has_words(1);
            (_, _, true, 1, KEY_WRITE, true, 40 .. 40): has_words(1);
            (_, _, true, 1, KEY_WRITE, true, 44 .. 44): has_words(2);
            (_, _, true, 1, KEY_WRITE, true, 48 .. 48): has_words(3);
            (_, _, true, 1, KEY_WRITE, true, 52 .. 52): has_words(4);
            (_, _, true, 1, KEY_WRITE, true, 56 .. 56): has_words(5);
            (_, _, true, 1, KEY_WRITE, true, 60 .. 60): has_words(6);
            (_, _, true, 1, KEY_WRITE, true, 64 .. 64): has_words(7);
            (_, _, true, 1, APPEND, true, 28 .. 28): has_words(1);
            (_, _, true, 1, APPEND, true, 32 .. 32): has_words(2);
#ifdef DTA_LONG_BATCHES
            (_, _, true, 1, APPEND, true, 36 .. 36): has_words(3);
            (_, _, true, 1, APPEND, true, 40 .. 40): has_words(4);
            (_, _, true, 1, APPEND, true, 44 .. 44): has_words(5);
            (_, _, true, 1, APPEND, true, 48 .. 48): has_words(6);
            (_, _, true, 1, APPEND, true, 52 .. 52): has_words(7);
            (_, _, true, 1, APPEND, true, 56 .. 56): has_words(8);
            (_, _, true, 1, APPEND, true, 60 .. 60): has_words(9);
            (_, _, true, 1, APPEND, true, 64 .. 64): has_words(10);
            (_, _, true, 1, APPEND, true, 68 .. 68): has_words(11);
            (_, _, true, 1, APPEND, true, 72 .. 72): has_words(12);
            (_, _, true, 1, APPEND, true, 76 .. 76): has_words(13);
            (_, _, true, 1, APPEND, true, 80 .. 80): has_words(14);
#endif
            (_, _, true, 1, KEY_INCREMENT, true, 44 .. 44): has_words(2);
            (_, _, true, 1, POSTCARDING, true, 40 .. 40): has_words(1);
#ifdef DTA_SKETCHES
            (_, _, true, 1, SKETCH_MERGE, true, 32 .. 32): has_words(1);
            (_, _, true, 1, SKETCH_MERGE, true, 36 .. 36): has_words(2);
            (_, _, true, 1, SKETCH_MERGE, true, 40 .. 40): has_words(3);
            (_, _, true, 1, SKETCH_MERGE, true, 44 .. 44): has_words(4);
#endif
            (_, _, true, 2 &&& 2, _, _, _): cannot_be_read(REASON_VERSION);
            (_, _, true, 1, _, false, _): cannot_be_read(REASON_LENGTH);
            (_, _, true, 1, KEY_WRITE, true, 36 .. 65535): cannot_be_read(REASON_VALUE_LENGTH);
            (_, _, true, 1, APPEND, true, 24 .. 65535): cannot_be_read(REASON_VALUE_LENGTH);
            (_, _, true, _, KEY_WRITE, _, _): cannot_be_read(REASON_LENGTH);
            (_, _, true, _, APPEND, _, _): cannot_be_read(REASON_LENGTH);
            (_, _, true, _, KEY_INCREMENT, _, _): cannot_be_read(REASON_LENGTH);
            (_, _, true, _, POSTCARDING, _, _): cannot_be_read(REASON_LENGTH);
#ifdef DTA_SKETCHES
            (_, _, true, 1, SKETCH_MERGE, true, 28 .. 65535): cannot_be_read(REASON_VALUE_LENGTH);
            (_, _, true, 1, SKETCH_MERGE, true, _): cannot_be_read(REASON_LENGTH);
#else
            // This profile has no sketch stores.
            (_, _, true, 1, SKETCH_MERGE, true, _): cannot_be_read(REASON_UNKNOWN_STORE);
#endif
            (_, _, true, _, _, _, _): cannot_be_read(REASON_OPCODE);
        }
        size = 64;
    }
    apply {
        shape.apply();
    }
}

// The hop of a postcard: what it adds to the head of its row, and the head that a row has when only this hop is
// missing (0 if it is the only hop, all ones if the length is unknown).
control Postcard(in ingress_headers_t hdr, inout ingress_metadata_t meta) {
    action hop_is(bit<8> hop, bit<8> path_length, bit<32> head, bit<32> rest) {
        meta.hop = hop;
        meta.path_length = path_length;
        meta.head = head;
        meta.rest = rest;
    }
    action hop_cannot_be(bit<8> reason) {
        meta.postcard_reason = reason;
    }
    // Keyed by the hop of version 0, from 1, or by the argument of version 1: path length and hop.
    table postcard {
        key = {
            hdr.v1.isValid(): ternary;
            hdr.v0_hop.hop: ternary;
            meta.redundancy: ternary;
        }
        actions = { hop_is; hop_cannot_be; }
        const default_action = hop_cannot_be(REASON_HOP);
        const entries = {
            (false, 1, _): hop_is(0, 0, 0x00010000, 0xffffffff);
            (false, 2, _): hop_is(1, 0, 0x00020000, 0xffffffff);
            (false, 3, _): hop_is(2, 0, 0x00040000, 0xffffffff);
            (false, 4, _): hop_is(3, 0, 0x00080000, 0xffffffff);
            (false, 5, _): hop_is(4, 0, 0x00100000, 0xffffffff);
            (false, 6, _): hop_is(5, 0, 0x00200000, 0xffffffff);
            (true, _, 0x00): hop_is(0, 0, 0x00010000, 0xffffffff);
            (true, _, 0x01): hop_is(1, 0, 0x00020000, 0xffffffff);
            (true, _, 0x02): hop_is(2, 0, 0x00040000, 0xffffffff);
            (true, _, 0x03): hop_is(3, 0, 0x00080000, 0xffffffff);
            (true, _, 0x04): hop_is(4, 0, 0x00100000, 0xffffffff);
            (true, _, 0x05): hop_is(5, 0, 0x00200000, 0xffffffff);
            (true, _, 0x10): hop_is(0, 1, 0x00010100, 0x00000000);
            (true, _, 0x20): hop_is(0, 2, 0x00010200, 0x00020200);
            (true, _, 0x21): hop_is(1, 2, 0x00020200, 0x00010200);
            (true, _, 0x30): hop_is(0, 3, 0x00010300, 0x00060300);
            (true, _, 0x31): hop_is(1, 3, 0x00020300, 0x00050300);
            (true, _, 0x32): hop_is(2, 3, 0x00040300, 0x00030300);
            (true, _, 0x40): hop_is(0, 4, 0x00010400, 0x000e0400);
            (true, _, 0x41): hop_is(1, 4, 0x00020400, 0x000d0400);
            (true, _, 0x42): hop_is(2, 4, 0x00040400, 0x000b0400);
            (true, _, 0x43): hop_is(3, 4, 0x00080400, 0x00070400);
            (true, _, 0x50): hop_is(0, 5, 0x00010500, 0x001e0500);
            (true, _, 0x51): hop_is(1, 5, 0x00020500, 0x001d0500);
            (true, _, 0x52): hop_is(2, 5, 0x00040500, 0x001b0500);
            (true, _, 0x53): hop_is(3, 5, 0x00080500, 0x00170500);
            (true, _, 0x54): hop_is(4, 5, 0x00100500, 0x000f0500);
            (true, _, 0x60): hop_is(0, 6, 0x00010600, 0x003e0600);
            (true, _, 0x61): hop_is(1, 6, 0x00020600, 0x003d0600);
            (true, _, 0x62): hop_is(2, 6, 0x00040600, 0x003b0600);
            (true, _, 0x63): hop_is(3, 6, 0x00080600, 0x00370600);
            (true, _, 0x64): hop_is(4, 6, 0x00100600, 0x002f0600);
            (true, _, 0x65): hop_is(5, 6, 0x00200600, 0x001f0600);
            (true, _, 0x0e &&& 0x0e): hop_cannot_be(REASON_HOP);
            (true, _, 0x00 &&& 0xf0): hop_cannot_be(REASON_HOP);
            (true, _, _): hop_cannot_be(REASON_PATH_LENGTH);
        }
        size = 64;
    }
    apply {
        postcard.apply();
    }
}

// Whether a report fits its store: its number of copies, and zeros after a shorter value.
control Fit(inout ingress_headers_t hdr, inout ingress_metadata_t meta) {
    action makes(bit<16> copies) {
        meta.copies = copies;
    }
    action wrong_redundancy() {
        meta.bad_redundancy = 1;
    }
    table copies {
        key = {
            meta.primitive: ternary;
            meta.redundancy: ternary;
            meta.copies: ternary;
        }
        actions = { makes; wrong_redundancy; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (KEY_WRITE, 0, 1): makes(1);
            (KEY_WRITE, 1, 1): makes(1);
            (KEY_WRITE, 0, 2): makes(2);
            (KEY_WRITE, 1, 2): makes(1);
            (KEY_WRITE, 2, 2): makes(2);
            (KEY_WRITE, 0, 3): makes(3);
            (KEY_WRITE, 1, 3): makes(1);
            (KEY_WRITE, 2, 3): makes(2);
            (KEY_WRITE, 3, 3): makes(3);
            (KEY_WRITE, 0, 4): makes(4);
            (KEY_WRITE, 1, 4): makes(1);
            (KEY_WRITE, 2, 4): makes(2);
            (KEY_WRITE, 3, 4): makes(3);
            (KEY_WRITE, 4, 4): makes(4);
            (KEY_WRITE, _, _): wrong_redundancy();
            (KEY_INCREMENT, 0, 1): makes(1);
            (KEY_INCREMENT, 1, 1): makes(1);
            (KEY_INCREMENT, 0, 2): makes(2);
            (KEY_INCREMENT, 2, 2): makes(2);
            (KEY_INCREMENT, 0, 3): makes(3);
            (KEY_INCREMENT, 3, 3): makes(3);
            (KEY_INCREMENT, 0, 4): makes(4);
            (KEY_INCREMENT, 4, 4): makes(4);
            (KEY_INCREMENT, _, _): wrong_redundancy();
        }
        size = 32;
    }

    action wrong_length() {
        meta.bad_length = 1;
    }
    action as_it_is() {}
    action zeros_1_to_2() {
        hdr.w1.setValid();
        hdr.w1.word = 0;
        hdr.w2.setValid();
        hdr.w2.word = 0;
    }
    action zeros_1_to_6() {
        hdr.w1.setValid();
        hdr.w1.word = 0;
        hdr.w2.setValid();
        hdr.w2.word = 0;
        hdr.w3.setValid();
        hdr.w3.word = 0;
        hdr.w4.setValid();
        hdr.w4.word = 0;
        hdr.w5.setValid();
        hdr.w5.word = 0;
        hdr.w6.setValid();
        hdr.w6.word = 0;
    }
    action zeros_2_to_2() {
        hdr.w2.setValid();
        hdr.w2.word = 0;
    }
    action zeros_2_to_6() {
        hdr.w2.setValid();
        hdr.w2.word = 0;
        hdr.w3.setValid();
        hdr.w3.word = 0;
        hdr.w4.setValid();
        hdr.w4.word = 0;
        hdr.w5.setValid();
        hdr.w5.word = 0;
        hdr.w6.setValid();
        hdr.w6.word = 0;
    }
    action zeros_3_to_6() {
        hdr.w3.setValid();
        hdr.w3.word = 0;
        hdr.w4.setValid();
        hdr.w4.word = 0;
        hdr.w5.setValid();
        hdr.w5.word = 0;
        hdr.w6.setValid();
        hdr.w6.word = 0;
    }
    action zeros_4_to_6() {
        hdr.w4.setValid();
        hdr.w4.word = 0;
        hdr.w5.setValid();
        hdr.w5.word = 0;
        hdr.w6.setValid();
        hdr.w6.word = 0;
    }
    action zeros_5_to_6() {
        hdr.w5.setValid();
        hdr.w5.word = 0;
        hdr.w6.setValid();
        hdr.w6.word = 0;
    }
    action zeros_6_to_6() {
        hdr.w6.setValid();
        hdr.w6.word = 0;
    }
#ifdef DTA_SKETCHES
    // The element of a column has two or six words of cells.
    action zeros_1_to_1() {
        hdr.w1.setValid();
        hdr.w1.word = 0;
    }
    action zeros_3_to_5() {
        hdr.w3.setValid();
        hdr.w3.word = 0;
        hdr.w4.setValid();
        hdr.w4.word = 0;
        hdr.w5.setValid();
        hdr.w5.word = 0;
    }
    action zeros_4_to_5() {
        hdr.w4.setValid();
        hdr.w4.word = 0;
        hdr.w5.setValid();
        hdr.w5.word = 0;
    }
#endif
    table fit {
        key = {
            meta.primitive: ternary;
            meta.words: ternary;
            meta.store_words: ternary;
        }
        actions = {
            as_it_is; wrong_length; zeros_1_to_2; zeros_1_to_6; zeros_2_to_2; zeros_2_to_6; zeros_3_to_6; zeros_4_to_6; zeros_5_to_6; zeros_6_to_6;
#ifdef DTA_SKETCHES
            zeros_1_to_1; zeros_3_to_5; zeros_4_to_5;
#endif
        }
        const default_action = wrong_length();
        const entries = {
            (KEY_WRITE, 1, 1): as_it_is();
            (KEY_WRITE, 3, 3): as_it_is();
            (KEY_WRITE, 7, 7): as_it_is();
            (APPEND, 1, 1): as_it_is();
            (APPEND, 2, 2): as_it_is();
#ifdef DTA_LONG_BATCHES
            (APPEND, 3, 3): as_it_is();
            (APPEND, 4, 4): as_it_is();
            (APPEND, 5, 5): as_it_is();
            (APPEND, 6, 6): as_it_is();
            (APPEND, 7, 7): as_it_is();
            (APPEND, 8, 8): as_it_is();
            (APPEND, 9, 9): as_it_is();
            (APPEND, 10, 10): as_it_is();
            (APPEND, 11, 11): as_it_is();
            (APPEND, 12, 12): as_it_is();
            (APPEND, 13, 13): as_it_is();
            (APPEND, 14, 14): as_it_is();
#endif
#ifdef DTA_SKETCHES
            (SKETCH_MERGE, 1, 1): zeros_1_to_1();
            (SKETCH_MERGE, 2, 2): as_it_is();
            (SKETCH_MERGE, 3, 3): zeros_3_to_5();
            (SKETCH_MERGE, 4, 4): zeros_4_to_5();
#endif
            (KEY_INCREMENT, _, _): as_it_is();
            (POSTCARDING, _, _): as_it_is();
            (KEY_WRITE, 1, 3): zeros_1_to_2();
            (KEY_WRITE, 2, 3): zeros_2_to_2();
            (KEY_WRITE, 1, 7): zeros_1_to_6();
            (KEY_WRITE, 2, 7): zeros_2_to_6();
            (KEY_WRITE, 3, 7): zeros_3_to_6();
            (KEY_WRITE, 4, 7): zeros_4_to_6();
            (KEY_WRITE, 5, 7): zeros_5_to_6();
            (KEY_WRITE, 6, 7): zeros_6_to_6();
        }
        size = 32;
    }
    apply {
        copies.apply();
        fit.apply();
    }
}

#ifdef DTA_SKETCHES
// The index of a column among those of all epochs: (epoch mod epochs) * columns + column.
control Place(in ingress_headers_t hdr, inout ingress_metadata_t meta) {
    action turn() {
        meta.place = hdr.column.epoch & meta.epochs_mask;
    }
    action by_1() {
        meta.place = meta.place << 1;
    }
    action by_2() {
        meta.place = meta.place << 2;
    }
    action by_3() {
        meta.place = meta.place << 3;
    }
    action by_4() {
        meta.place = meta.place << 4;
    }
    action by_5() {
        meta.place = meta.place << 5;
    }
    action by_6() {
        meta.place = meta.place << 6;
    }
    action by_7() {
        meta.place = meta.place << 7;
    }
    action by_8() {
        meta.place = meta.place << 8;
    }
    action by_9() {
        meta.place = meta.place << 9;
    }
    action by_10() {
        meta.place = meta.place << 10;
    }
    action by_11() {
        meta.place = meta.place << 11;
    }
    action by_12() {
        meta.place = meta.place << 12;
    }
    action by_13() {
        meta.place = meta.place << 13;
    }
    action by_14() {
        meta.place = meta.place << 14;
    }
    action by_15() {
        meta.place = meta.place << 15;
    }
    table columns {
        key = { meta.columns_shift: exact; }
        actions = { by_1; by_2; by_3; by_4; by_5; by_6; by_7; by_8; by_9; by_10; by_11; by_12; by_13; by_14; by_15; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            1: by_1();
            2: by_2();
            3: by_3();
            4: by_4();
            5: by_5();
            6: by_6();
            7: by_7();
            8: by_8();
            9: by_9();
            10: by_10();
            11: by_11();
            12: by_12();
            13: by_13();
            14: by_14();
            15: by_15();
        }
        size = 16;
    }
    action column() {
        meta.place = meta.place | hdr.column.column;
    }
    apply {
        turn();
        columns.apply();
        column();
    }
}
#endif

// The offset of a list's ring: its number times the length of a ring, 2^(4 + ring_shift) bytes.
control Ring(in ingress_headers_t hdr, inout ingress_metadata_t meta) {
    action by_4() {
        meta.offset_low = hdr.list.list << 4;
        meta.offset_high = hdr.list.list >> 28;
    }
    action by_5() {
        meta.offset_low = hdr.list.list << 5;
        meta.offset_high = hdr.list.list >> 27;
    }
    action by_6() {
        meta.offset_low = hdr.list.list << 6;
        meta.offset_high = hdr.list.list >> 26;
    }
    action by_7() {
        meta.offset_low = hdr.list.list << 7;
        meta.offset_high = hdr.list.list >> 25;
    }
    action by_8() {
        meta.offset_low = hdr.list.list << 8;
        meta.offset_high = hdr.list.list >> 24;
    }
    action by_9() {
        meta.offset_low = hdr.list.list << 9;
        meta.offset_high = hdr.list.list >> 23;
    }
    action by_10() {
        meta.offset_low = hdr.list.list << 10;
        meta.offset_high = hdr.list.list >> 22;
    }
    action by_11() {
        meta.offset_low = hdr.list.list << 11;
        meta.offset_high = hdr.list.list >> 21;
    }
    action by_12() {
        meta.offset_low = hdr.list.list << 12;
        meta.offset_high = hdr.list.list >> 20;
    }
    action by_13() {
        meta.offset_low = hdr.list.list << 13;
        meta.offset_high = hdr.list.list >> 19;
    }
    action by_14() {
        meta.offset_low = hdr.list.list << 14;
        meta.offset_high = hdr.list.list >> 18;
    }
    action by_15() {
        meta.offset_low = hdr.list.list << 15;
        meta.offset_high = hdr.list.list >> 17;
    }
    action by_16() {
        meta.offset_low = hdr.list.list << 16;
        meta.offset_high = hdr.list.list >> 16;
    }
    action by_17() {
        meta.offset_low = hdr.list.list << 17;
        meta.offset_high = hdr.list.list >> 15;
    }
    action by_18() {
        meta.offset_low = hdr.list.list << 18;
        meta.offset_high = hdr.list.list >> 14;
    }
    action by_19() {
        meta.offset_low = hdr.list.list << 19;
        meta.offset_high = hdr.list.list >> 13;
    }
    action by_20() {
        meta.offset_low = hdr.list.list << 20;
        meta.offset_high = hdr.list.list >> 12;
    }
    action by_21() {
        meta.offset_low = hdr.list.list << 21;
        meta.offset_high = hdr.list.list >> 11;
    }
    action by_22() {
        meta.offset_low = hdr.list.list << 22;
        meta.offset_high = hdr.list.list >> 10;
    }
    action by_23() {
        meta.offset_low = hdr.list.list << 23;
        meta.offset_high = hdr.list.list >> 9;
    }
    action by_24() {
        meta.offset_low = hdr.list.list << 24;
        meta.offset_high = hdr.list.list >> 8;
    }
#ifdef DTA_LONG_BATCHES
    action by_25() {
        meta.offset_low = hdr.list.list << 25;
        meta.offset_high = hdr.list.list >> 7;
    }
    action by_26() {
        meta.offset_low = hdr.list.list << 26;
        meta.offset_high = hdr.list.list >> 6;
    }
#endif
    table ring {
        key = { meta.ring_shift: exact; }
        actions = {
            by_4; by_5; by_6; by_7; by_8; by_9; by_10; by_11; by_12; by_13; by_14; by_15; by_16; by_17; by_18; by_19; by_20; by_21; by_22; by_23; by_24;
#ifdef DTA_LONG_BATCHES
            by_25; by_26;
#endif
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        const entries = {
            0: by_4();
            1: by_5();
            2: by_6();
            3: by_7();
            4: by_8();
            5: by_9();
            6: by_10();
            7: by_11();
            8: by_12();
            9: by_13();
            10: by_14();
            11: by_15();
            12: by_16();
            13: by_17();
            14: by_18();
            15: by_19();
            16: by_20();
            17: by_21();
            18: by_22();
            19: by_23();
            20: by_24();
#ifdef DTA_LONG_BATCHES
            21: by_25();
            22: by_26();
#endif
        }
        size = 32;
    }
    apply {
        ring.apply();
    }
}

#endif

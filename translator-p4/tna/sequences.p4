// Is anything missing before a report of version 1?
#ifndef DTA_TNA_SEQUENCES
#define DTA_TNA_SEQUENCES

// Gives `ahead`, the sequence of a report less the newest one before it: 1 is the one expected, 2 and more a gap.
// Others, and `ahead` = 0, are late or repeats, or nothing was heard of the reporter before.
//
// A register compares numbers as they are, and sequences wrap. So those of the two middle quarters of all numbers
// are compared without a sign, and the others with one: both are right where the two are less than 2^30 apart.
control Sequences(in ingress_headers_t hdr, inout ingress_metadata_t meta, in ingress_intrinsic_metadata_t intrinsic) {
    Register<bit<8>, bit<16>>(REPORTER_IDS, 0) heard;
    Register<bit<32>, bit<16>>(REPORTER_IDS, 0) newest;

    RegisterAction<bit<8>, bit<16>, bit<8>>(heard) hear = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = 1;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(newest) begin = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = 0;
            value = hdr.v1.sequence;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(newest) middle = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            if (hdr.v1.sequence > value) {
                value = hdr.v1.sequence;
            }
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(newest) edge = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            if ((int<32>)hdr.v1.sequence > (int<32>)value) {
                value = hdr.v1.sequence;
            }
        }
    };

    action hears() {
        meta.is_checked = 1;
        meta.known = hear.execute(meta.reporter);
    }
    action begins() {
        meta.before = begin.execute(meta.reporter);
    }
    action follows_in_the_middle() {
        meta.before = middle.execute(meta.reporter);
    }
    action follows_at_the_edge() {
        meta.before = edge.execute(meta.reporter);
    }
    table follow {
        key = {
            meta.is_checked: exact;
            meta.known: exact;
            hdr.dta.restarted: ternary;
            hdr.v1.sequence: ternary;
        }
        actions = { begins; follows_in_the_middle; follows_at_the_edge; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, 0, _, _): begins();
            (1, 1, 1, _): begins();
            (1, 1, 0, 0x00000000 &&& 0xc0000000): follows_at_the_edge();
            (1, 1, 0, 0x40000000 &&& 0xc0000000): follows_in_the_middle();
            (1, 1, 0, 0x80000000 &&& 0xc0000000): follows_in_the_middle();
            (1, 1, 0, 0xc0000000 &&& 0xc0000000): follows_at_the_edge();
        }
        size = 8;
    }

    action compare() {
        meta.ahead = hdr.v1.sequence - meta.before;
    }

    action has_gap() {
        meta.gap = 1;
    }
    table gap {
        key = {
            meta.is_checked: exact;
            meta.known: exact;
            hdr.dta.restarted: exact;
            meta.ahead: ternary;
        }
        actions = { has_gap; NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, 1, 0, 0): NoAction();
            (1, 1, 0, 1): NoAction();
            (1, 1, 0, 0x80000000 &&& 0x80000000): NoAction();
            (1, 1, 0, _): has_gap();
        }
        size = 4;
    }

    apply {
        if (intrinsic.ingress_port != AGAIN_PORT && hdr.v1.isValid() && meta.reason == 0 && meta.sequence_low == 0 && meta.is_not_listed == 0) {
            hears();
        }
        follow.apply();
        compare();
        gap.apply();
    }
}

#endif

// Detects gaps before version-1 reports.
#ifndef DTA_TNA_SEQUENCES
#define DTA_TNA_SEQUENCES

// Computes `ahead`, the sequence of a report minus the expected one, modulo 2^32. Up to 2^31 - 1, it is the number of missing
// reports. Beyond, the report is late or a repeat, or the reporter was not heard before.
control Sequences(in ingress_headers_t hdr, inout ingress_metadata_t meta, in ingress_intrinsic_metadata_t intrinsic) {
    Register<bit<8>, bit<16>>(REPORTER_IDS, 0) heard;
    Register<bit<32>, bit<16>>(REPORTER_IDS, 0) next_sequence;

    RegisterAction<bit<8>, bit<16>, bit<8>>(heard) hear = {
        void apply(inout bit<8> value, out bit<8> was) {
            was = value;
            value = 1;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(next_sequence) begin = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = 0;
            value = hdr.v1.sequence + 1;
        }
    };
    // The difference is cast, not its operands: it must wrap as sequences do before it is compared with 0.
    RegisterAction<bit<32>, bit<16>, bit<32>>(next_sequence) follow_next = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            if ((int<32>)hdr.v1.sequence - (int<32>)value >= 0) {
                value = hdr.v1.sequence + 1;
            }
        }
    };

    action hears() {
        meta.is_checked = 1;
        meta.known = hear.execute(meta.reporter);
    }
    action begins() {
        meta.expected = begin.execute(meta.reporter);
    }
    action follows() {
        meta.expected = follow_next.execute(meta.reporter);
    }
    table follow {
        key = {
            meta.is_checked: exact;
            meta.known: exact;
            hdr.dta.restarted: ternary;
        }
        actions = { begins; follows; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, 0, _): begins();
            (1, 1, 1): begins();
            (1, 1, 0): follows();
        }
        size = 4;
    }

    action compare() {
        meta.ahead = hdr.v1.sequence - meta.expected;
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

// Keys of reports, as dta-proto/src/telemetry.rs describes them.
#ifndef REPORTER_TNA_KEYS
#define REPORTER_TNA_KEYS

// Makes the key of the kind `meta.key_kind`.
control ReportKey(inout egress_headers_t hdr, inout egress_metadata_t meta) {
    CRCPolynomial<bit<32>>(32w0x1edc6f41, true, false, false, 32w0xffffffff, 32w0xffffffff) castagnoli;
    CRCPolynomial<bit<32>>(32w0x741b8cd7, true, false, false, 32w0xffffffff, 32w0xffffffff) koopman;
    // CRC-32, CRC-32C and CRC-32K of the flow, alone, with the switch, and with the reason.
#define SEEN_FLOW hdr.seen_source.word, hdr.seen_destination.word, hdr.seen_flow_ports.word, hdr.seen.protocol
#define SUMS(NAME, ...) \
    Hash<bit<32>>(HashAlgorithm_t.CRC32) sum_##NAME; \
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, castagnoli) sum_c_##NAME; \
    Hash<bit<32>>(HashAlgorithm_t.CUSTOM, koopman) sum_k_##NAME; \
    action sums_##NAME() { hdr.key_a.word = sum_##NAME.get({ __VA_ARGS__ }); } \
    action sums_c_##NAME() { hdr.key_b.word = sum_c_##NAME.get({ __VA_ARGS__ }); } \
    action sums_k_##NAME() { hdr.key_c.word = sum_k_##NAME.get({ __VA_ARGS__ }); }
    SUMS(flow, SEEN_FLOW)
    SUMS(switch, SEEN_FLOW, meta.switch_id)
    SUMS(reason, SEEN_FLOW, hdr.seen.reason)

    action flow_key() {
        hdr.key_a.setValid();
        hdr.key_b.setValid();
        hdr.key_c.setValid();
        hdr.key_d.setValid();
        hdr.key_a.word = hdr.seen_source.word;
        hdr.key_b.word = hdr.seen_destination.word;
        hdr.key_c.word = hdr.seen_flow_ports.word;
        hdr.key_d.word = hdr.seen.protocol ++ 24w0;
    }
    action queue_key() {
        hdr.key_a.setValid();
        hdr.key_b.setValid();
        hdr.key_c.setValid();
        hdr.key_d.setValid();
        hdr.key_a.word = meta.switch_id;
        hdr.key_b.word = meta.egress_word;
        hdr.key_c.word = meta.queue_word;
        hdr.key_d.word = NAME_QUEUE_OCCUPANCY;
    }
    action drops_key() {
        hdr.key_a.setValid();
        hdr.key_b.setValid();
        hdr.key_c.setValid();
        hdr.key_d.setValid();
        hdr.key_a.word = meta.switch_id;
        hdr.key_b.word = meta.reason_word;
        hdr.key_c.word = 0;
        hdr.key_d.word = NAME_DROPS;
    }
    action named(bit<32> name) {
        hdr.key_a.setValid();
        hdr.key_b.setValid();
        hdr.key_c.setValid();
        hdr.key_d.setValid();
        hdr.key_d.word = name;
    }
    table key {
        key = { meta.key_kind: exact; }
        actions = { flow_key; queue_key; drops_key; named; }
        const default_action = flow_key();
        const entries = {
            KEY_FLOW: flow_key();
            KEY_HOP_LATENCY: named(NAME_HOP_LATENCY);
            KEY_QUEUE_OCCUPANCY: queue_key();
            KEY_DROPS: drops_key();
            KEY_FLOW_DROPS: named(NAME_FLOW_DROPS);
            KEY_PACKETS: named(NAME_PACKETS);
            KEY_BYTES: named(NAME_BYTES);
        }
        size = 8;
    }

    apply {
        key.apply();
        if (meta.key_kind == KEY_HOP_LATENCY) {
            sums_switch();
            sums_c_switch();
            sums_k_switch();
        } else if (meta.key_kind == KEY_FLOW_DROPS) {
            sums_reason();
            sums_c_reason();
            sums_k_reason();
        } else if (meta.key_kind == KEY_PACKETS || meta.key_kind == KEY_BYTES) {
            sums_flow();
            sums_c_flow();
            sums_k_flow();
        }
    }
}

#endif

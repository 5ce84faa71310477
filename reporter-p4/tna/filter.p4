// Which packets are reported: flows that are new, changed or due, and packets in congested queues.
#ifndef REPORTER_TNA_FILTER
#define REPORTER_TNA_FILTER

control Filter(in egress_headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic) {
    // Packets of watched flows that had nothing new to report.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) unchanged;
    // Packets in congested queues beyond the quota.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) over_quota;

    // Digests of what was reported last, at two places per flow: if another flow takes one of them, the other is still
    // there. Bit 31 is set, so that 0 means empty.
    Register<bit<32>, place_t>(DIGESTS, 0) digest_1;
    Register<bit<32>, place_t>(DIGESTS, 0) digest_2;
    // Packets of a queue that were reported since its latency was below `reset`.
    Register<bit<16>, bit<16>>(QUEUES, 0) quota_used;

#define FLOW hdr.bridge.source, hdr.bridge.destination, hdr.bridge.source_port, hdr.bridge.destination_port, hdr.bridge.protocol
    Hash<bit<32>>(HashAlgorithm_t.CRC32) digest_hash;
    Hash<place_t>(HashAlgorithm_t.CRC16) place_1_hash;
    Hash<place_t>(HashAlgorithm_t.CRC32) place_2_hash;
    action mask() {
        meta.masked_latency = meta.latency & meta.latency_mask;
        meta.masked_low = meta.now_low & meta.interval_mask_low;
        meta.masked_high = meta.now_high & meta.interval_mask_high;
    }
    action hash_digest() {
        meta.digest = digest_hash.get({
            FLOW, hdr.bridge.ingress_port, meta.egress_port, intrinsic.egress_qid, 3w0, meta.masked_latency, meta.masked_high, meta.masked_low
        });
    }
    action hash_places() {
        meta.place_1 = place_1_hash.get({ FLOW });
        meta.place_2 = place_2_hash.get({ FLOW });
    }
    action mark_digest() {
        meta.digest = meta.digest | 0x80000000;
    }
    RegisterAction<bit<32>, place_t, bit<8>>(digest_1) look_1 = {
        void apply(inout bit<32> value, out bit<8> known) {
            known = 0;
            if (value == meta.digest) {
                known = 1;
            }
            value = meta.digest;
        }
    };
    RegisterAction<bit<32>, place_t, bit<8>>(digest_2) look_2 = {
        void apply(inout bit<32> value, out bit<8> known) {
            known = 0;
            if (value == meta.digest) {
                known = 1;
            }
            value = meta.digest;
        }
    };
    action looks_1() { meta.known_1 = look_1.execute(meta.place_1); }
    action looks_2() { meta.known_2 = look_2.execute(meta.place_2); }

    // ---- Limits of a queue: nanoseconds in the switch, and the most reports from `trigger` to `reset`.
    action limit(bit<32> trigger_ns, bit<32> reset_ns, bit<16> reports) {
        meta.trigger = trigger_ns;
        meta.reset = reset_ns;
        meta.quota = reports;
    }
    table queue_limits {
        key = {
            intrinsic.egress_port: ternary @name("egress_port");
            intrinsic.egress_qid: exact @name("queue");
        }
        actions = { limit; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 512;
    }
    action compare_latency() {
        meta.below_trigger = meta.trigger |-| meta.latency;
        meta.below_reset = meta.reset |-| meta.latency;
        meta.queue_place = 4w0 ++ intrinsic.egress_port ++ intrinsic.egress_qid[2:0];
    }
    RegisterAction<bit<16>, bit<16>, bit<8>>(quota_used) use_quota = {
        void apply(inout bit<16> used, out bit<8> has) {
            has = 0;
            if (used < meta.quota) {
                has = 1;
                used = used + 1;
            }
        }
    };
    RegisterAction<bit<16>, bit<16>, bit<8>>(quota_used) clear_quota = {
        void apply(inout bit<16> used) {
            used = 0;
        }
    };
    action uses_quota() { meta.has_quota = use_quota.execute(meta.queue_place); }
    action clears_quota() { clear_quota.execute(meta.queue_place); }

    apply {
        if (hdr.bridge.watch_flows == 1) {
            mask();
            hash_places();
            hash_digest();
            mark_digest();
            looks_1();
            looks_2();
            if (meta.known_1 == 0 && meta.known_2 == 0 || meta.every_packet == 1) {
                meta.is_flow = 1;
            } else {
                unchanged.count(0);
            }
        }
        if (hdr.bridge.watch_queues == 1) {
            if (queue_limits.apply().hit) {
                compare_latency();
                if (meta.below_trigger == 0) {
                    uses_quota();
                    if (meta.has_quota == 1) {
                        meta.is_queue = 1;
                    } else {
                        over_quota.count(0);
                    }
                } else if (meta.below_reset != 0) {
                    clears_quota();
                }
            }
        }
    }
}

#endif

// Which packets are reported: flows that are new, changed or due, and packets in congested queues.
#ifndef REPORTER_V1MODEL_FILTER
#define REPORTER_V1MODEL_FILTER

control Filter(inout metadata_t meta, inout standard_metadata_t standard) {
    // Packets of watched flows that had nothing new to report.
    counter(1, CounterType.packets) unchanged;
    // Packets in congested queues beyond the quota.
    counter(1, CounterType.packets) over_quota;

    // Digests of what was reported last, at two places per flow: if another flow takes one of them, the
    // other is still there. Bit 31 is set, so that 0 means empty.
    register<bit<32>>(DIGESTS) digest_1;
    register<bit<32>>(DIGESTS) digest_2;
    // Packets of a queue that were reported since its latency was below `reset`.
    register<bit<16>>(QUEUES) quota_used;

    bit<32> now = 0;
    bit<1> is_known = 0;
    bit<32> trigger = 0;
    bit<32> reset = 0;
    bit<16> quota = 0;
    bit<1> is_congested = 0;
    bit<1> has_quota = 0;

    // One action: bmv2 locks an action's registers, so that no other packet comes between read and write.
    action look_at_digests() {
        bit<16> place_1 = 0;
        bit<32> place_2 = 0;
        bit<32> first = 0;
        bit<32> second = 0;
        hash(now, HashAlgorithm.crc32, 64w0, {
            meta.source, meta.destination, meta.source_port, meta.destination_port, meta.protocol,
            meta.ingress_port, meta.egress_port, meta.queue, meta.latency & meta.latency_mask,
            meta.time & meta.interval_mask
        }, 64w0x100000000);
        now = now | 0x80000000;
        hash(place_1, HashAlgorithm.crc16, 64w0, {
            meta.source, meta.destination, meta.source_port, meta.destination_port, meta.protocol
        }, 64w0x10000);
        hash(place_2, HashAlgorithm.crc32, 64w0, {
            meta.source, meta.destination, meta.source_port, meta.destination_port, meta.protocol
        }, 64w0x100000000);
        digest_1.read(first, (bit<32>)place_1);
        digest_2.read(second, (bit<32>)place_2[15:0]);
        digest_1.write((bit<32>)place_1, now);
        digest_2.write((bit<32>)place_2[15:0], now);
        is_known = (first == now || second == now) ? 1w1 : 1w0;
    }

    // ---- Limits of a queue: nanoseconds in the switch, and the most reports from `trigger` to `reset`.
    action limit(bit<32> trigger_ns, bit<32> reset_ns, bit<16> reports) {
        trigger = trigger_ns;
        reset = reset_ns;
        quota = reports;
    }
    table queue_limits {
        key = {
            standard.egress_port: ternary @name("egress_port");
            meta.queue: exact @name("queue");
        }
        actions = { limit; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 512;
    }
    action look_at_quota() {
        bit<32> place = (bit<32>)standard.egress_port << 3 | meta.queue & 7;
        bit<16> used = 0;
        quota_used.read(used, place);
        is_congested = meta.latency >= trigger ? 1w1 : 1w0;
        has_quota = used < quota ? 1w1 : 1w0;
        used = (is_congested == 1 && has_quota == 1) ? used + 1 : used;
        used = meta.latency < reset ? 0 : used;
        quota_used.write(place, used);
    }

    apply {
        if (meta.watch_flows == 1) {
            look_at_digests();
            if (is_known == 1 && meta.every_packet == 0) {
                unchanged.count(0);
            } else {
                meta.kinds = meta.kinds | KIND_FLOW;
            }
        }
        if (meta.watch_queues == 1) {
            if (queue_limits.apply().hit) {
                look_at_quota();
                if (is_congested == 1 && has_quota == 1) {
                    meta.kinds = meta.kinds | KIND_QUEUE;
                } else if (is_congested == 1) {
                    over_quota.count(0);
                }
            }
        }
    }
}

#endif

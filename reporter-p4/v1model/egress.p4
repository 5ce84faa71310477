// Egress: what a packet met on its way through the switch, and reports. A clone passes once for
// each report that is made of it.
#ifndef REPORTER_V1MODEL_EGRESS
#define REPORTER_V1MODEL_EGRESS

control Departure(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // Packets by egress port.
    counter(512, CounterType.packets_and_bytes) forwarded;
    // Packets dropped here, by reason.
    counter(256, CounterType.packets) egress_dropped;
    // Clones requested, by the mask of their kinds.
    counter(16, CounterType.packets) mirrored;

    Filter() filter;
    MakeReport() make_report;

    // ---- Settings of the switch.
    action set(bit<32> switch_id, bit<64> time_offset, bit<64> interval_mask, bit<32> latency_mask, bit<1> every_packet) {
        meta.switch_id = switch_id;
        meta.time_offset = time_offset;
        meta.interval_mask = interval_mask;
        meta.latency_mask = latency_mask;
        meta.every_packet = every_packet;
    }
    table settings {
        actions = { set; }
        // Switch 0, an interval of 2^30 ns, and latencies in steps of 2^14 ns.
        default_action = set(0, 0, 0xffffffffc0000000, 0xffffc000, 0);
    }

    // ---- Allowed egress ports.
    action allow(bit<1> is_last_hop) {
        meta.is_last_hop = is_last_hop;
    }
    action refuse() {
        meta.dropped = 1;
        meta.reason = REASON_EGRESS_NEXT_MISS;
    }
    table egress_port {
        key = { standard.egress_port: exact @name("egress_port"); }
        actions = { allow; @defaultonly refuse; }
        const default_action = refuse();
        size = 512;
    }

    apply {
        settings.apply();
        if (standard.instance_type == INGRESS_CLONE || standard.instance_type == EGRESS_CLONE) {
            meta.time = (bit<64>)meta.seen * 1000 + meta.time_offset;
            make_report.apply(hdr, meta, standard);
            exit;
        }
        // A flooded packet is not sent back to its ingress port.
        if (standard.instance_type == REPLICA && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
            exit;
        }
        meta.seen = standard.egress_global_timestamp;
        meta.time = (bit<64>)meta.seen * 1000 + meta.time_offset;
        meta.egress_port = (bit<32>)standard.egress_port;
        meta.occupancy = (bit<32>)standard.enq_qdepth;
        bit<64> latency = (bit<64>)(meta.seen - meta.arrived) * 1000;
        meta.latency = latency > 0xfffffffe ? 0xfffffffe : latency[31:0];
        egress_port.apply();
        if (meta.dropped == 1) {
            mark_to_drop(standard);
            egress_dropped.count((bit<32>)meta.reason);
            if (meta.watch_drops == 1) {
                meta.kinds = KIND_DROP;
            }
        } else {
            forwarded.count((bit<32>)standard.egress_port);
            filter.apply(meta, standard);
        }
        if (meta.kinds != 0) {
            mirrored.count((bit<32>)meta.kinds);
            clone_preserving_field_list(CloneType.E2E, (bit<32>)meta.kinds, KEPT);
        }
    }
}

#endif

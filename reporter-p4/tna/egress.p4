// Egress: what a packet met on its way through the switch, and reports. A clone passes once for each report that is made
// of it.
#ifndef REPORTER_TNA_EGRESS
#define REPORTER_TNA_EGRESS

control Departure(
    inout egress_headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
    in egress_intrinsic_metadata_from_parser_t from_parser,
    inout egress_intrinsic_metadata_for_deparser_t to_deparser,
    inout egress_intrinsic_metadata_for_output_port_t to_port) {
    // Packets by egress port.
    Counter<bit<64>, bit<9>>(512, CounterType_t.PACKETS_AND_BYTES) forwarded;
    // Packets dropped here, by reason.
    Counter<bit<64>, bit<8>>(256, CounterType_t.PACKETS) egress_dropped;
    // Clones requested, by the mask of their kinds.
    Counter<bit<64>, bit<4>>(16, CounterType_t.PACKETS) mirrored;

    Filter() filter;
    MakeReport() make_report;

    // ---- Settings of the switch. Masks and offsets are split in halves.
    action set(bit<32> switch_id, bit<32> time_offset_high, bit<32> time_offset_low, bit<16> interval_mask_high, bit<32> interval_mask_low, bit<32> latency_mask, bit<1> every_packet) {
        meta.switch_id = switch_id;
        meta.offset_high = time_offset_high;
        meta.offset_low = time_offset_low;
        meta.interval_mask_high = interval_mask_high;
        meta.interval_mask_low = interval_mask_low;
        meta.latency_mask = latency_mask;
        meta.every_packet = every_packet;
    }
    table settings {
        actions = { set; }
        // Switch 0, an interval of 2^30 ns, and latencies in steps of 2^14 ns.
        default_action = set(0, 0, 0, 0xffff, 0xc0000000, 0xffffc000, 0);
    }

    // ---- Allowed egress ports.
    action allow(bit<1> is_last_hop) {
        meta.dropped = 0;
        meta.is_last_hop = is_last_hop;
        meta.reason = 0;
    }
    action refuse() {
        meta.dropped = 1;
        meta.is_last_hop = 0;
        meta.reason = REASON_EGRESS_NEXT_MISS;
    }
    table egress_port {
        key = { intrinsic.egress_port: exact @name("egress_port"); }
        actions = { allow; @defaultonly refuse; }
        const default_action = refuse();
        size = 512;
    }

    // ---- Only the last switch reports the path length: hops ++ hop.
    action path(bit<8> argument) {
        meta.place = argument;
    }
    table place {
        key = {
            meta.is_last_hop: exact;
            hdr.bridge.hop: exact;
        }
        actions = { path; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, 0): path(0x00);
            (0, 1): path(0x01);
            (0, 2): path(0x02);
            (0, 3): path(0x03);
            (0, 4): path(0x04);
            (0, 5): path(0x05);
            (0, 6): path(0x06);
            (0, 7): path(0x07);
            (0, 8): path(0x08);
            (0, 9): path(0x09);
            (0, 10): path(0x0a);
            (0, 11): path(0x0b);
            (0, 12): path(0x0c);
            (0, 13): path(0x0d);
            (0, 14): path(0x0e);
            (0, 15): path(0x0f);
            (1, 0): path(0x10);
            (1, 1): path(0x21);
            (1, 2): path(0x32);
            (1, 3): path(0x43);
            (1, 4): path(0x54);
            (1, 5): path(0x65);
            (1, 6): path(0x76);
            (1, 7): path(0x87);
            (1, 8): path(0x98);
            (1, 9): path(0xa9);
            (1, 10): path(0xba);
            (1, 11): path(0xcb);
            (1, 12): path(0xdc);
            (1, 13): path(0xed);
            (1, 14): path(0xfe);
            (1, 15): path(0x0f);
        }
        size = 32;
    }

    // ---- What is reported of a packet: the number of its clone session is the mask of its kinds.
    action clone_as(bit<8> kinds, MirrorId_t session) {
        meta.kinds = kinds;
        meta.session = session;
        to_deparser.mirror_type = MIRROR_REPORT;
    }
    table clone {
        key = {
            meta.is_flow: exact;
            meta.is_queue: exact;
            meta.is_drop: exact;
        }
        actions = { clone_as; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, 0, 0): clone_as(1, 1);
            (0, 1, 0): clone_as(2, 2);
            (1, 1, 0): clone_as(3, 3);
            (0, 0, 1): clone_as(4, 4);
        }
        size = 4;
    }
    action look_at_time() {
        meta.now_low = from_parser.global_tstamp[31:0];
        meta.now_high = from_parser.global_tstamp[47:32];
        meta.egress_port = 7w0 ++ intrinsic.egress_port;
        meta.queue_and_depth = 3w0 ++ intrinsic.egress_qid ++ 5w0 ++ intrinsic.enq_qdepth;
    }
    // A deflected packet was meant for another port and another queue than the one where it arrives.
    action deflected() {
        meta.dropped = 1;
        meta.is_last_hop = 0;
        meta.reason = REASON_TRAFFIC_MANAGER;
        meta.egress_port = hdr.bridge.egress_port;
        meta.queue_and_depth = hdr.bridge.queue ++ 24w0;
    }
    action find_latency() {
        meta.latency = meta.now_low - hdr.bridge.arrived;
    }

    // ---- A clone.
    action look_at_clone() {
        // Without the `seen` header.
        meta.packet_bytes = intrinsic.pkt_length - 32;
        // A signed shift: all ones (not available) stay all ones.
        meta.queue_word = (bit<32>)((int<32>)hdr.seen_queue_and_depth.word >> 24);
        meta.occupancy = hdr.seen_queue_and_depth.word & 0x00ffffff;
        meta.queue_on_top = hdr.seen_queue_and_depth.word & 0xff000000;
    }
    // The time when it was seen: the clone has the low half; the high half is the current one, or the one before.
    action time_low() {
        meta.time_low = hdr.seen_seen.word + meta.offset_low;
        meta.wrapped = hdr.seen_seen.word |-| meta.clone_now;
    }
    // Identity hashes: the only way in which the chip moves parts of a word into another word.
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) of_bytes;
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) of_ingress_port;
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) of_egress_port;
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) of_reason;
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) of_reason_behind;
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) of_high;
    action widen_high() { meta.time_high = of_high.get({ 16w0, from_parser.global_tstamp[47:32] }); }
    Hash<bit<32>>(HashAlgorithm_t.IDENTITY) of_now;
    action look_at_now() { meta.clone_now = of_now.get({ from_parser.global_tstamp[31:0] }); }
    action widen_bytes() { meta.bytes = of_bytes.get({ 16w0, meta.packet_bytes }); }
    action widen_ingress_port() { meta.ingress_word = of_ingress_port.get({ 16w0, hdr.seen_ports.word[31:16] }); }
    action widen_egress_port() { meta.egress_word = of_egress_port.get({ 16w0, hdr.seen_ports.word[15:0] }); }
    action widen_reason() { meta.reason_word = of_reason.get({ hdr.seen.reason, 24w0 }); }
    action place_reason() { meta.reason_behind = of_reason_behind.get({ 8w0, hdr.seen.reason, 16w0 }); }
    action time_high() {
        meta.time_high = meta.time_high + meta.offset_high;
        meta.carry = hdr.seen_seen.word |-| meta.time_low;
    }
    action carries() { meta.time_high = meta.time_high + 1; }
    action borrows() { meta.time_high = meta.time_high - 1; }

    apply {
        settings.apply();
        if (hdr.seen.isValid()) {
            look_at_clone();
            look_at_now();
            widen_high();
            widen_bytes();
            widen_ingress_port();
            widen_egress_port();
            widen_reason();
            place_reason();
            time_low();
            time_high();
            if (meta.carry != 0 && meta.wrapped == 0) {
                carries();
            } else if (meta.carry == 0 && meta.wrapped != 0) {
                borrows();
            }
            make_report.apply(hdr, meta, intrinsic, to_deparser);
            hdr.seen.setInvalid();
            hdr.seen_source.setInvalid();
            hdr.seen_destination.setInvalid();
            hdr.seen_flow_ports.setInvalid();
            hdr.seen_ports.setInvalid();
            hdr.seen_queue_and_depth.setInvalid();
            hdr.seen_latency.setInvalid();
            hdr.seen_seen.setInvalid();
        } else if (hdr.bridge.flooded == 1 && 7w0 ++ intrinsic.egress_port == hdr.bridge.ingress_port) {
            // A flooded packet is not sent back to its ingress port.
            to_deparser.drop_ctl = 1;
        } else {
            look_at_time();
            find_latency();
            if (intrinsic.deflection_flag == 1) {
                deflected();
            } else {
                egress_port.apply();
            }
            if (meta.dropped == 1) {
                to_deparser.drop_ctl = 1;
                egress_dropped.count(meta.reason);
                if (hdr.bridge.watch_drops == 1) {
                    meta.is_drop = 1;
                }
            } else {
                forwarded.count(intrinsic.egress_port);
                filter.apply(hdr, meta, intrinsic);
            }
            place.apply();
            if (clone.apply().hit) {
                mirrored.count(meta.kinds[3:0]);
            }
        }
        hdr.bridge.setInvalid();
    }
}

#endif

// Turns a clone into a report. Each copy of a clone has a replica number (egress_rid), and a table says which report it
// becomes.
#ifndef REPORTER_TNA_REPORT
#define REPORTER_TNA_REPORT

control MakeReport(
    inout egress_headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
    inout egress_intrinsic_metadata_for_deparser_t to_deparser) {
    // Reports by replica number.
    DirectCounter<bit<64>>(CounterType_t.PACKETS) made;
    // Reports by destination.
    Counter<bit<64>, bit<8>>(DESTINATIONS, CounterType_t.PACKETS) sent;
    // Clones without an entry of `report`, and reports whose destination has none.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) no_report;
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS) no_destination;

    // The next sequence of each destination, and whether it has been used before.
    Register<bit<32>, bit<8>>(DESTINATIONS, 0) next_sequence;
    Register<bit<8>, bit<8>>(DESTINATIONS, 0) has_begun;
    RegisterAction<bit<32>, bit<8>, bit<32>>(next_sequence) count_sequence = {
        void apply(inout bit<32> value, out bit<32> sequence) {
            sequence = value;
            value = value + 1;
        }
    };
    RegisterAction<bit<8>, bit<8>, bit<8>>(has_begun) begin = {
        void apply(inout bit<8> value, out bit<8> before) {
            before = value;
            value = 1;
        }
    };
    action counts_sequence() { meta.sequence = count_sequence.execute(meta.destination_number); }
    action begins() { meta.began = begin.execute(meta.destination_number); }

    ReportKey() report_key;

    // ---- Which report a replica becomes.
    action no_flags() {
        meta.with_time = 0;
        meta.immediate = 0;
    }
    action key_write(bit<8> destination, bit<16> store, bit<8> redundancy, bit<8> key_kind, bit<8> value_kind, bit<1> with_time) {
        made.count();
        meta.primitive = KEY_WRITE;
        meta.destination_number = destination;
        hdr.v1.store = store;
        hdr.v1.argument = redundancy;
        meta.key_kind = key_kind;
        meta.value_kind = value_kind;
        meta.with_time = with_time;
        meta.immediate = 0;
    }
    action append(bit<8> destination, bit<16> store, bit<32> list_number, bit<8> entry_kind, @name("immediate") bit<1> at_once) {
        made.count();
        meta.primitive = APPEND;
        meta.destination_number = destination;
        hdr.v1.store = store;
        hdr.v1.argument = 0;
        hdr.list.list = list_number;
        meta.entry_kind = entry_kind;
        meta.with_time = 0;
        meta.immediate = at_once;
    }
    action key_increment(bit<8> destination, bit<16> store, bit<8> redundancy, bit<8> key_kind, bit<8> value_kind) {
        made.count();
        meta.primitive = KEY_INCREMENT;
        meta.destination_number = destination;
        no_flags();
        hdr.v1.store = store;
        hdr.v1.argument = redundancy;
        meta.key_kind = key_kind;
        meta.value_kind = value_kind;
    }
    action postcard(bit<8> destination, bit<16> store, bit<8> value_kind) {
        made.count();
        meta.primitive = POSTCARDING;
        meta.destination_number = destination;
        hdr.v1.store = store;
        meta.value_kind = value_kind;
        no_flags();
    }
    action telemetry_report(bit<8> destination) {
        made.count();
        meta.destination_number = destination;
        no_flags();
    }
    table report {
        key = { intrinsic.egress_rid: exact @name("replica"); }
        actions = { key_write; append; key_increment; postcard; telemetry_report; @defaultonly NoAction; }
        const default_action = NoAction();
        counters = made;
        size = 256;
    }

    // ---- The destination of reports.
    action send(bit<48> source_mac, bit<48> destination_mac, bit<32> source_ip, bit<32> destination_ip, bit<16> source_port, bit<16> destination_port, bit<8> tos) {
        hdr.report_ethernet.setValid();
        hdr.report_ethernet.source = source_mac;
        hdr.report_ethernet.destination = destination_mac;
        hdr.report_ethernet.type = ETHERTYPE_IPV4;
        hdr.report_ipv4.setValid();
        hdr.report_ipv4.version = 4;
        hdr.report_ipv4.ihl = 5;
        hdr.report_ipv4.tos = tos;
        hdr.report_ipv4.id = 0;
        hdr.report_ipv4.reserved = 0;
        hdr.report_ipv4.dont_fragment = 1;
        hdr.report_ipv4.more_fragments = 0;
        hdr.report_ipv4.fragment_offset = 0;
        hdr.report_ipv4.ttl = 64;
        hdr.report_ipv4.protocol = PROTOCOL_UDP;
        hdr.report_ipv4.source = source_ip;
        hdr.report_ipv4.destination = destination_ip;
        hdr.report_udp.setValid();
        hdr.report_udp.source = source_port;
        hdr.report_udp.destination = destination_port;
        hdr.report_udp.checksum = 0;
    }
    action translator(bit<16> reporter, bit<48> source_mac, bit<48> destination_mac, bit<32> source_ip, bit<32> destination_ip, bit<16> source_port, bit<16> destination_port, bit<8> tos) {
        meta.is_translator = 1;
        hdr.v1.reporter = reporter;
        send(source_mac, destination_mac, source_ip, destination_ip, source_port, destination_port, tos);
    }
    action int_collector(bit<6> hardware, bit<16> packet_bytes, bit<48> source_mac, bit<48> destination_mac, bit<32> source_ip, bit<32> destination_ip, bit<16> source_port, bit<16> destination_port, bit<8> tos) {
        meta.is_translator = 0;
        hdr.telemetry.hardware = 10w0 ++ hardware;
        send(source_mac, destination_mac, source_ip, destination_ip, source_port, destination_port, tos);
    }
    table destination {
        key = { meta.destination_number: exact @name("number"); }
        actions = { translator; int_collector; @defaultonly NoAction; }
        const default_action = NoAction();
        size = DESTINATIONS;
    }

    // ---- The value.
    // Does not copy the latency: a computed word and one put together of parts must not share a field.
    action value_is_latency() {}
    action value_occupancy() { meta.value = meta.occupancy; }
    action value_switch() { meta.value = meta.switch_id; }
    action value_one() { meta.value = 1; }
    action value_bytes() { meta.value = meta.bytes; }
    table value {
        key = { meta.value_kind: exact; }
        actions = { value_is_latency; value_occupancy; value_switch; value_one; value_bytes; }
        const default_action = value_is_latency();
        const entries = {
            VALUE_OCCUPANCY: value_occupancy();
            VALUE_SWITCH: value_switch();
            VALUE_ONE: value_one();
            VALUE_BYTES: value_bytes();
        }
        size = 8;
    }

    // ---- The headers of the report, and its lengths.
    action is_dta(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        hdr.report_udp.length = udp_length;
        hdr.report_ipv4.total_length = total_length;
        hdr.ethernet.setInvalid();
        hdr.dta.setValid();
        hdr.dta.opcode = opcode;
        hdr.v1.setValid();
    }
    action is_value(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_dta(opcode, udp_length, total_length);
        hdr.value.setValid();
        hdr.value.value = meta.value;
    }
    action is_value_and_moment(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_value(opcode, udp_length, total_length);
        hdr.moment_high.setValid();
        hdr.moment_low.setValid();
        hdr.moment_high.word = meta.time_high;
        hdr.moment_low.word = meta.time_low;
    }
    // A 64-bit number whose upper half is 0.
    action is_delta(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_dta(opcode, udp_length, total_length);
        hdr.delta_high.setValid();
        hdr.value.setValid();
        hdr.delta_high.word = 0;
        hdr.value.value = meta.value;
    }
    // The same with the latency.
    action is_latency(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_dta(opcode, udp_length, total_length);
        hdr.latency.setValid();
        hdr.latency.word = hdr.seen_latency.word;
    }
    action is_latency_and_moment(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_latency(opcode, udp_length, total_length);
        hdr.moment_high.setValid();
        hdr.moment_low.setValid();
        hdr.moment_high.word = meta.time_high;
        hdr.moment_low.word = meta.time_low;
    }
    action is_latency_delta(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_dta(opcode, udp_length, total_length);
        hdr.delta_high.setValid();
        hdr.latency.setValid();
        hdr.delta_high.word = 0;
        hdr.latency.word = hdr.seen_latency.word;
    }
    action entry_head(bit<32> name) {
        hdr.list.setValid();
        hdr.entry_name.setValid();
        hdr.entry_high.setValid();
        hdr.entry_low.setValid();
        hdr.entry_name.word = name;
        hdr.entry_high.word = meta.time_high;
        hdr.entry_low.word = meta.time_low;
    }
    action is_drop_entry(bit<8> opcode, bit<16> udp_length, bit<16> total_length, bit<32> no_port) {
        is_dta(opcode, udp_length, total_length);
        entry_head(NAME_DROPS);
        hdr.switch_id.setValid();
        hdr.drop_ingress_port.setValid();
        hdr.entry_egress_port.setValid();
        hdr.entry_queue.setValid();
        hdr.drop_reason.setValid();
        hdr.drop.setValid();
        hdr.switch_id.word = meta.switch_id;
        hdr.drop_ingress_port.word = meta.ingress_word;
        hdr.entry_egress_port.word = meta.egress_word | no_port;
        hdr.entry_queue.word = meta.queue_word;
        hdr.drop_reason.word = meta.reason_word;
        hdr.drop.zeros = 0;
    }
    action is_congestion_entry(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_dta(opcode, udp_length, total_length);
        entry_head(NAME_CONGESTION);
        hdr.switch_id.setValid();
        hdr.entry_egress_port.setValid();
        hdr.entry_queue.setValid();
        hdr.congestion_occupancy.setValid();
        hdr.latency.setValid();
        hdr.congestion.setValid();
        hdr.switch_id.word = meta.switch_id;
        hdr.entry_egress_port.word = meta.egress_word;
        hdr.entry_queue.word = meta.queue_word;
        hdr.congestion_occupancy.word = meta.occupancy;
        hdr.latency.word = hdr.seen_latency.word;
        hdr.congestion.zeros = 0;
    }
    action is_flow_entry(bit<8> opcode, bit<16> udp_length, bit<16> total_length) {
        is_dta(opcode, udp_length, total_length);
        hdr.list.setValid();
    }
    action is_wrong() {
        no_destination.count(0);
        to_deparser.drop_ctl = 1;
    }
    table parts {
        key = {
            meta.is_translator: exact;
            meta.primitive: ternary;
            meta.with_time: ternary;
            meta.entry_kind: ternary;
            hdr.seen_ports.word[15:0]: ternary;
            meta.value_kind: ternary;
        }
        actions = {
            is_latency; is_latency_and_moment; is_latency_delta; is_value; is_value_and_moment; is_delta; is_drop_entry; is_congestion_entry; is_flow_entry; is_wrong; NoAction;
        }
        const default_action = NoAction();
        const entries = {
            (1, KEY_WRITE, 0, _, _, VALUE_LATENCY): is_latency(KEY_WRITE, 40, 60);
            (1, KEY_WRITE, 1, _, _, VALUE_LATENCY): is_latency_and_moment(KEY_WRITE, 48, 68);
            (1, POSTCARDING, _, _, _, VALUE_LATENCY): is_latency(POSTCARDING, 40, 60);
            (1, KEY_INCREMENT, _, _, _, VALUE_LATENCY): is_latency_delta(KEY_INCREMENT, 44, 64);
            (1, KEY_WRITE, 0, _, _, _): is_value(KEY_WRITE, 40, 60);
            (1, KEY_WRITE, 1, _, _, _): is_value_and_moment(KEY_WRITE, 48, 68);
            (1, POSTCARDING, _, _, _, _): is_value(POSTCARDING, 40, 60);
            (1, KEY_INCREMENT, _, _, _, _): is_delta(KEY_INCREMENT, 44, 64);
            (1, APPEND, _, ENTRY_DROP, 0xffff, _): is_drop_entry(APPEND, 84, 104, 0xffff0000);
            (1, APPEND, _, ENTRY_DROP, _, _): is_drop_entry(APPEND, 84, 104, 0);
            (1, APPEND, _, ENTRY_CONGESTION, _, _): is_congestion_entry(APPEND, 84, 104);
            (1, APPEND, _, _, _, _): is_flow_entry(APPEND, 40, 60);
            (1, 0, _, _, _, _): is_wrong();
            (0, KEY_WRITE, _, _, _, _): is_wrong();
            (0, APPEND, _, _, _, _): is_wrong();
            (0, KEY_INCREMENT, _, _, _, _): is_wrong();
            (0, POSTCARDING, _, _, _, _): is_wrong();
        }
        size = 32;
    }
    // A Telemetry Report, followed by the packet as truncated by its session.
    action is_telemetry(bit<4> next_protocol) {
        hdr.telemetry.setValid();
        hdr.telemetry_sequence.setValid();
        hdr.telemetry_ingress_time.setValid();
        hdr.telemetry.version = 4w0 ++ next_protocol;
        hdr.telemetry_ingress_time.word = meta.time_low - hdr.seen_latency.word;
        hdr.telemetry_sequence.word = meta.sequence;
    }
    // The upper bits: dropped, congested, tracked.
    action telemetry_flags(bit<8> flags) {
        hdr.telemetry.flags = flags;
    }
    table kinds {
        key = { hdr.seen.kinds: exact; }
        actions = { telemetry_flags; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            1: telemetry_flags(0x20);
            2: telemetry_flags(0x40);
            3: telemetry_flags(0x60);
            4: telemetry_flags(0x80);
        }
        size = 4;
    }
    action is_telemetry_drop() {
        is_telemetry(TELEMETRY_DROP);
        hdr.switch_id.setValid();
        hdr.telemetry_ports.setValid();
        hdr.telemetry_queue.setValid();
        hdr.switch_id.word = meta.switch_id;
        hdr.telemetry_ports.word = hdr.seen_ports.word;
        hdr.telemetry_queue.word = meta.queue_on_top | meta.reason_behind;
        // What follows the `seen` header, 8 bytes of UDP and 24 of Telemetry Report.
        hdr.report_udp.length = meta.packet_bytes + 32;
        hdr.report_ipv4.total_length = meta.packet_bytes + 52;
    }
    action is_telemetry_local() {
        is_telemetry(TELEMETRY_LOCAL);
        hdr.switch_id.setValid();
        hdr.telemetry_ports.setValid();
        hdr.telemetry_queue.setValid();
        hdr.telemetry_local_egress_time.setValid();
        hdr.switch_id.word = meta.switch_id;
        hdr.telemetry_ports.word = hdr.seen_ports.word;
        hdr.telemetry_queue.word = hdr.seen_queue_and_depth.word;
        hdr.telemetry_local_egress_time.word = meta.time_low;
        hdr.report_udp.length = meta.packet_bytes + 36;
        hdr.report_ipv4.total_length = meta.packet_bytes + 56;
    }
    // Bit 7: immediate. Bit 5: restarted. The rest: version 1.
    action dta_flags(bit<8> flags) {
        hdr.dta.flags = flags;
    }
    table flags {
        key = {
            meta.began: exact;
            meta.immediate: exact;
        }
        actions = { dta_flags; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, 0): dta_flags(0x21);
            (0, 1): dta_flags(0xa1);
            (1, 0): dta_flags(0x01);
            (1, 1): dta_flags(0x81);
        }
        size = 4;
    }
    Hash<bit<8>>(HashAlgorithm_t.IDENTITY) low_byte;
    action number_dta_low() {
        hdr.dta.sequence = low_byte.get({ meta.sequence[7:0] });
    }
    action number_dta() {
        hdr.v1.sequence = meta.sequence;
    }

    apply {
        if (!report.apply().hit) {
            no_report.count(0);
            to_deparser.drop_ctl = 1;
        } else if (!destination.apply().hit) {
            no_destination.count(0);
            to_deparser.drop_ctl = 1;
        } else {
            counts_sequence();
            begins();
            sent.count(meta.destination_number);
            if (meta.primitive == 0) {
                kinds.apply();
                if (hdr.seen.kinds == 4) {
                    is_telemetry_drop();
                } else {
                    is_telemetry_local();
                }
            } else {
                if (meta.primitive == POSTCARDING) {
                    hdr.v1.argument = hdr.seen.place;
                }
                value.apply();
                report_key.apply(hdr, meta);
                number_dta();
                number_dta_low();
                flags.apply();
            }
            parts.apply();
        }
    }
}

#endif

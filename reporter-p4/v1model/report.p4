// Turns a clone into a report. Each copy of a clone has a replica number (egress_rid), and a table
// says which report it becomes.
#ifndef REPORTER_V1MODEL_REPORT
#define REPORTER_V1MODEL_REPORT

control MakeReport(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // Reports by replica number.
    direct_counter(CounterType.packets) made;
    // Reports by destination.
    counter(DESTINATIONS, CounterType.packets) sent;
    // Clones without an entry of `report`, and reports whose destination has none.
    counter(1, CounterType.packets) no_report;
    counter(1, CounterType.packets) no_destination;

    // The next sequence of each destination; bit 32 is set once it has been used.
    register<bit<33>>(DESTINATIONS) next_sequence;

    ReportKey() report_key;
    bit<16> sum = 0;

    // ---- Which report a replica becomes.
    action key_write(bit<8> destination, bit<16> store, bit<8> redundancy, bit<8> key_kind, bit<8> value_kind, bit<1> with_time) {
        made.count();
        meta.primitive = KEY_WRITE;
        meta.destination_number = destination;
        meta.store = store;
        meta.argument = redundancy;
        meta.key_kind = key_kind;
        meta.value_kind = value_kind;
        meta.with_time = with_time;
    }
    action append(bit<8> destination, bit<16> store, bit<32> list_number, bit<8> entry_kind, bit<1> immediate) {
        made.count();
        meta.primitive = APPEND;
        meta.destination_number = destination;
        meta.store = store;
        meta.list_number = list_number;
        meta.entry_kind = entry_kind;
        meta.immediate = immediate;
    }
    action key_increment(bit<8> destination, bit<16> store, bit<8> redundancy, bit<8> key_kind, bit<8> value_kind) {
        made.count();
        meta.primitive = KEY_INCREMENT;
        meta.destination_number = destination;
        meta.store = store;
        meta.argument = redundancy;
        meta.key_kind = key_kind;
        meta.value_kind = value_kind;
    }
    // Only the last switch reports the path length.
    action postcard(bit<8> destination, bit<16> store, bit<8> value_kind) {
        made.count();
        meta.primitive = POSTCARDING;
        meta.destination_number = destination;
        meta.store = store;
        meta.value_kind = value_kind;
        bit<4> hops = meta.is_last_hop == 1 ? meta.hop + 1 : 0;
        meta.argument = hops ++ meta.hop;
    }
    action telemetry_report(bit<8> destination) {
        made.count();
        meta.destination_number = destination;
    }
    table report {
        key = { standard.egress_rid: exact @name("replica"); }
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
        meta.reporter = reporter;
        send(source_mac, destination_mac, source_ip, destination_ip, source_port, destination_port, tos);
    }
    action int_collector(bit<6> hardware, bit<16> packet_bytes, bit<48> source_mac, bit<48> destination_mac, bit<32> source_ip, bit<32> destination_ip, bit<16> source_port, bit<16> destination_port, bit<8> tos) {
        meta.hardware = hardware;
        meta.limit = (bit<32>)packet_bytes;
        send(source_mac, destination_mac, source_ip, destination_ip, source_port, destination_port, tos);
    }
    table destination {
        key = { meta.destination_number: exact @name("number"); }
        actions = { translator; int_collector; @defaultonly NoAction; }
        const default_action = NoAction();
        size = DESTINATIONS;
    }

    // One action: bmv2 locks an action's registers, so that no other report comes between read and write.
    action number_report() {
        bit<33> next = 0;
        next_sequence.read(next, (bit<32>)meta.destination_number);
        meta.sequence = next[31:0];
        meta.restarted = ~next[32:32];
        next_sequence.write((bit<32>)meta.destination_number, 1w1 ++ (next[31:0] + 1));
    }

    // Removes the packet: a DTA report has nothing of it.
    action forget_packet() {
        hdr.ethernet.setInvalid();
        hdr.vlan[0].setInvalid();
        hdr.vlan[1].setInvalid();
        hdr.vlan[2].setInvalid();
        hdr.vlan[3].setInvalid();
        hdr.ipv4.setInvalid();
        hdr.options.setInvalid();
        hdr.ports.setInvalid();
        hdr.udp_rest.setInvalid();
        hdr.vxlan.setInvalid();
        hdr.gtpu.setInvalid();
        hdr.gtpu_more.setInvalid();
        hdr.gtpu_extension[0].setInvalid();
        hdr.gtpu_extension[1].setInvalid();
        hdr.gtpu_extension[2].setInvalid();
        hdr.gtpu_extension[3].setInvalid();
        hdr.gtpu_extension[4].setInvalid();
        hdr.gtpu_extension[5].setInvalid();
        hdr.gtpu_extension[6].setInvalid();
        hdr.gtpu_extension[7].setInvalid();
        hdr.gtpu_extension[8].setInvalid();
        hdr.gtpu_extension[9].setInvalid();
        hdr.gtpu_extension[10].setInvalid();
        hdr.gtpu_extension[11].setInvalid();
        hdr.gtpu_extension[12].setInvalid();
        hdr.gtpu_extension[13].setInvalid();
        hdr.gtpu_extension[14].setInvalid();
        hdr.gtpu_extension[15].setInvalid();
        hdr.inner_ethernet.setInvalid();
        hdr.inner_vlan[0].setInvalid();
        hdr.inner_vlan[1].setInvalid();
        hdr.inner_vlan[2].setInvalid();
        hdr.inner_vlan[3].setInvalid();
        hdr.inner_ipv4.setInvalid();
        hdr.inner_options.setInvalid();
        hdr.inner_ports.setInvalid();
    }

    // What the UDP checksum of every DTA report covers first. Only valid headers may be summed: bmv2 would
    // use the stale contents of others.
#define PSEUDO_HEADER \
    hdr.report_ipv4.source, hdr.report_ipv4.destination, 8w0, hdr.report_ipv4.protocol, hdr.report_udp.length, \
    hdr.report_udp.source, hdr.report_udp.destination, hdr.report_udp.length, \
    hdr.dta.opcode, hdr.dta.sequence, hdr.dta.immediate, hdr.dta.retransmittable, hdr.dta.restarted, \
    hdr.dta.reserved, hdr.dta.version, hdr.v1.argument, hdr.v1.store, hdr.v1.reporter, hdr.v1.sequence
    action sum_value() {
        hash(sum, HashAlgorithm.csum16, 64w0, { PSEUDO_HEADER, hdr.key.key, hdr.value.value }, 64w0x10000);
    }
    action sum_value_and_moment() {
        hash(sum, HashAlgorithm.csum16, 64w0, {
            PSEUDO_HEADER, hdr.key.key, hdr.value.value, hdr.moment.time
        }, 64w0x10000);
    }
    action sum_delta() {
        hash(sum, HashAlgorithm.csum16, 64w0, { PSEUDO_HEADER, hdr.key.key, hdr.delta.delta }, 64w0x10000);
    }
    action sum_drop_entry() {
        hash(sum, HashAlgorithm.csum16, 64w0, {
            PSEUDO_HEADER, hdr.list.list,
            hdr.drop_entry.name, hdr.drop_entry.time, hdr.drop_entry.key, hdr.drop_entry.switch_id,
            hdr.drop_entry.ingress_port, hdr.drop_entry.egress_port, hdr.drop_entry.queue, hdr.drop_entry.reason,
            hdr.drop_entry.zeros
        }, 64w0x10000);
    }
    action sum_congestion_entry() {
        hash(sum, HashAlgorithm.csum16, 64w0, {
            PSEUDO_HEADER, hdr.list.list,
            hdr.congestion_entry.name, hdr.congestion_entry.time, hdr.congestion_entry.key,
            hdr.congestion_entry.switch_id, hdr.congestion_entry.egress_port, hdr.congestion_entry.queue,
            hdr.congestion_entry.occupancy, hdr.congestion_entry.latency, hdr.congestion_entry.zeros
        }, 64w0x10000);
    }
    action sum_flow_entry() {
        hash(sum, HashAlgorithm.csum16, 64w0, { PSEUDO_HEADER, hdr.list.list, hdr.flow_entry.key }, 64w0x10000);
    }

    action drop_entry() {
        hdr.drop_entry.setValid();
        hdr.drop_entry.name = NAME_DROPS;
        hdr.drop_entry.time = meta.time;
        hdr.drop_entry.key = meta.key;
        hdr.drop_entry.switch_id = meta.switch_id;
        hdr.drop_entry.ingress_port = meta.ingress_port;
        hdr.drop_entry.egress_port = meta.egress_port;
        hdr.drop_entry.queue = meta.queue;
        hdr.drop_entry.reason = meta.reason;
        hdr.drop_entry.zeros = 0;
    }
    action congestion_entry() {
        hdr.congestion_entry.setValid();
        hdr.congestion_entry.name = NAME_CONGESTION;
        hdr.congestion_entry.time = meta.time;
        hdr.congestion_entry.key = meta.key;
        hdr.congestion_entry.switch_id = meta.switch_id;
        hdr.congestion_entry.egress_port = meta.egress_port;
        hdr.congestion_entry.queue = meta.queue;
        hdr.congestion_entry.occupancy = meta.occupancy;
        hdr.congestion_entry.latency = meta.latency;
        hdr.congestion_entry.zeros = 0;
    }

    apply {
        if (!report.apply().hit) {
            no_report.count(0);
            mark_to_drop(standard);
            exit;
        }
        if (!destination.apply().hit) {
            no_destination.count(0);
            mark_to_drop(standard);
            exit;
        }
        if ((meta.primitive == 0) == (meta.is_translator == 1)) {
            // The destination is of the other kind.
            no_destination.count(0);
            mark_to_drop(standard);
            exit;
        }
        number_report();
        sent.count((bit<32>)meta.destination_number);

        if (meta.primitive == 0) {
            // ---- A Telemetry Report, followed by at most `limit` bytes of the packet.
            hdr.telemetry.setValid();
            hdr.telemetry.version = 0;
            hdr.telemetry.dropped = meta.kinds[2:2];
            hdr.telemetry.congested = meta.kinds[1:1];
            hdr.telemetry.tracked = meta.kinds[0:0];
            hdr.telemetry.reserved = 0;
            hdr.telemetry.hardware = meta.hardware;
            hdr.telemetry.sequence = meta.sequence;
            bit<64> arrived = (bit<64>)meta.arrived * 1000 + meta.time_offset;
            hdr.telemetry.ingress_time = arrived[31:0];
            bit<32> length = meta.bytes;
            if (length > meta.limit) {
                length = meta.limit;
            }
            if (meta.kinds[2:2] == 1) {
                hdr.telemetry.next_protocol = TELEMETRY_DROP;
                hdr.telemetry_drop.setValid();
                hdr.telemetry_drop.switch_id = meta.switch_id;
                hdr.telemetry_drop.ingress_port = meta.ingress_port[15:0];
                hdr.telemetry_drop.egress_port = meta.egress_port[15:0];
                hdr.telemetry_drop.queue = meta.queue[7:0];
                hdr.telemetry_drop.reason = meta.reason;
                hdr.telemetry_drop.pad = 0;
                length = length + 24;
            } else {
                hdr.telemetry.next_protocol = TELEMETRY_LOCAL;
                hdr.telemetry_local.setValid();
                hdr.telemetry_local.switch_id = meta.switch_id;
                hdr.telemetry_local.ingress_port = meta.ingress_port[15:0];
                hdr.telemetry_local.egress_port = meta.egress_port[15:0];
                hdr.telemetry_local.queue = meta.queue[7:0];
                hdr.telemetry_local.occupancy = meta.occupancy[23:0];
                hdr.telemetry_local.egress_time = meta.time[31:0];
                length = length + 28;
            }
            meta.length = (bit<16>)length;
        } else {
            // ---- A DTA report.
            forget_packet();
            hdr.dta.setValid();
            hdr.dta.opcode = meta.primitive;
            hdr.dta.sequence = meta.sequence[7:0];
            hdr.dta.immediate = meta.immediate;
            hdr.dta.retransmittable = 0;
            hdr.dta.restarted = meta.restarted;
            hdr.dta.reserved = 0;
            hdr.dta.version = 1;
            hdr.v1.setValid();
            hdr.v1.argument = meta.argument;
            hdr.v1.store = meta.store;
            hdr.v1.reporter = meta.reporter;
            hdr.v1.sequence = meta.sequence;
            meta.length = 12;
            report_key.apply(meta);

            bit<32> value = meta.latency;
            if (meta.value_kind == VALUE_OCCUPANCY) {
                value = meta.occupancy;
            } else if (meta.value_kind == VALUE_SWITCH) {
                value = meta.switch_id;
            } else if (meta.value_kind == VALUE_ONE) {
                value = 1;
            } else if (meta.value_kind == VALUE_BYTES) {
                value = meta.bytes;
            }
            if (meta.primitive == APPEND) {
                hdr.list.setValid();
                hdr.list.list = meta.list_number;
                if (meta.entry_kind == ENTRY_DROP) {
                    drop_entry();
                    meta.length = meta.length + 64;
                } else if (meta.entry_kind == ENTRY_CONGESTION) {
                    congestion_entry();
                    meta.length = meta.length + 64;
                } else {
                    hdr.flow_entry.setValid();
                    hdr.flow_entry.key = meta.key;
                    meta.length = meta.length + 20;
                }
            } else {
                hdr.key.setValid();
                hdr.key.key = meta.key;
                if (meta.primitive == KEY_INCREMENT) {
                    hdr.delta.setValid();
                    hdr.delta.delta = (bit<64>)value;
                    meta.length = meta.length + 24;
                } else {
                    hdr.value.setValid();
                    hdr.value.value = value;
                    meta.length = meta.length + 20;
                    if (meta.primitive == KEY_WRITE && meta.with_time == 1) {
                        hdr.moment.setValid();
                        hdr.moment.time = meta.time;
                        meta.length = meta.length + 8;
                    }
                }
            }
        }
        hdr.report_udp.length = 8 + meta.length;
        hdr.report_ipv4.total_length = 28 + meta.length;
        if (meta.primitive != 0) {
            if (hdr.moment.isValid()) {
                sum_value_and_moment();
            } else if (hdr.value.isValid()) {
                sum_value();
            } else if (hdr.delta.isValid()) {
                sum_delta();
            } else if (hdr.drop_entry.isValid()) {
                sum_drop_entry();
            } else if (hdr.congestion_entry.isValid()) {
                sum_congestion_entry();
            } else {
                sum_flow_entry();
            }
            // A checksum of 0 would mean none.
            hdr.report_udp.checksum = sum == 0 ? 16w0xffff : sum;
        }
        truncate((bit<32>)meta.length + 42);
    }
}

#endif

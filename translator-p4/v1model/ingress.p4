// Ingress: which reports are accepted, for which store, and where they go. The postcard cache is
// here, because a row is sent in several copies. Queue pairs, lists and columns are at egress.
#ifndef DTA_V1MODEL_INGRESS
#define DTA_V1MODEL_INGRESS

// What the UDP checksum covers in any report, and in a version-1 report.
#define SUMMED \
    hdr.ipv4.source, hdr.ipv4.destination, 8w0, hdr.ipv4.protocol, hdr.udp.length, \
    hdr.udp.source, hdr.udp.destination, hdr.udp.length, hdr.dta.opcode, hdr.dta.sequence, \
    hdr.dta.immediate, hdr.dta.retransmittable, hdr.dta.restarted, hdr.dta.reserved, hdr.dta.version
#define SUMMED_V1 hdr.v1.argument, hdr.v1.store, hdr.v1.reporter, hdr.v1.sequence

control Admission(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // Reports by primitive: index 0 counts all datagrams for the service, 1 to 5 those of an opcode.
    counter(8, CounterType.packets) received;
    counter(8, CounterType.packets) accepted;
    // Reports that were dropped, by REASON_*.
    counter(REASONS, CounterType.packets) dropped;
    // Index 0: postcards that replaced one of the same hop.
    counter(1, CounterType.packets) superseded;
    // Postcards in rows that a command discarded, counted by the bits of their number (index = bit).
    counter(8, CounterType.packets) discarded;
    counter(1, CounterType.packets) immediate_ignored;
    // Index 0: rows of known path length that were sent with hops missing.
    counter(1, CounterType.packets) partial_rows;
    counter(1, CounterType.packets) nacks;
    // Sequences requested by NACKs, counted by the bits of their number: index b stands for 2^b.
    counter(16, CounterType.packets) nacked_sequences;
    // Answers to queue pairs: 0 ACKs, 1 sequence-error NAKs, 2 others.
    counter(4, CounterType.packets) answers;
    counter(16, CounterType.packets) commands;

    // The next sequence of each reporter; bit 32 is set once it was heard.
    register<bit<33>>(REPORTER_IDS) expected;

    // Incomplete rows of postcards. A row is free while its bitmap is 0, as a key can be 0.
    register<bit<128>>(ROW_STATES) row_key;
    register<bit<32>>(ROW_STATES) row_hash;
    // Bitmap, path length, number of postcards.
    register<bit<32>>(ROW_STATES) row_head;
    register<bit<448>>(ROW_STATES) row_hops;
    // When the first postcard of the row came, in microseconds.
    register<bit<48>>(ROW_STATES) row_born;

    Forward() forwarding;

    // ---- The address and port of the service.
    action take_reports() {}
    table service {
        key = {
            hdr.ipv4.destination: exact @name("address");
            hdr.udp.destination: exact @name("port");
        }
        actions = { take_reports; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    // ---- Who may report: everyone, or only those listed.
    action permit() {}
    action not_listed() {
        meta.reason = REASON_NOT_LISTED;
    }
    table reporter {
        key = {
            hdr.dta.version: exact @name("version");
            meta.reporter: exact @name("reporter");
            hdr.ipv4.source: exact @name("source");
        }
        actions = { permit; not_listed; }
        default_action = permit();
        size = 4096;
    }

    // ---- The store of a version-0 primitive.
    action use_store(bit<16> store) {
        meta.store = store;
    }
    action no_version0_store() {
        meta.reason = REASON_VERSION0_STORE;
    }
    table version0 {
        key = { hdr.dta.opcode: exact @name("primitive"); }
        actions = { use_store; @defaultonly no_version0_store; }
        const default_action = no_version0_store();
        size = 8;
    }

    // ---- Stores.
    action key_write_store(bit<8> number, bit<8> copies, bit<8> value_words, bit<1> inline_keys, bit<32> slots_mask, bit<8> element_shift) {
        meta.primitive = KEY_WRITE;
        meta.store_number = number;
        meta.copies = copies;
        meta.store_words = value_words;
        meta.inline_keys = inline_keys;
        meta.slots_mask = slots_mask;
        meta.element_shift = element_shift;
    }
    action key_increment_store(bit<8> number, bit<8> copies, bit<32> slots_mask) {
        meta.primitive = KEY_INCREMENT;
        meta.store_number = number;
        meta.copies = copies;
        meta.slots_mask = slots_mask;
        meta.element_shift = 3;
    }
    action postcarding_store(bit<8> number, bit<8> copies, bit<8> hops, bit<32> slots_mask, bit<8> element_shift, bit<32> cache_base, bit<32> cache_mask) {
        meta.primitive = POSTCARDING;
        meta.store_number = number;
        meta.copies = copies;
        meta.hops = hops;
        meta.slots_mask = slots_mask;
        meta.element_shift = element_shift;
        meta.cache_base = cache_base;
        meta.cache_mask = cache_mask;
    }
    action append_store(bit<8> number, bit<32> lists, bit<8> ring_shift, bit<32> ring_mask, bit<8> element_shift, bit<8> entry_words, bit<8> entries, bit<1> notify) {
        meta.primitive = APPEND;
        meta.store_number = number;
        meta.copies = 1;
        meta.lists = lists;
        meta.ring_shift = ring_shift;
        meta.ring_mask = ring_mask;
        meta.element_shift = element_shift;
        meta.store_words = entry_words;
        meta.entries = entries;
        meta.notify = notify;
    }
    action sketch_merge_store(bit<8> number, bit<8> rows, bit<2> merge, bit<16> expected_reporters, bit<8> columns_shift, bit<32> columns_mask, bit<32> epochs_mask, bit<8> element_shift, bit<32> state_base) {
        meta.primitive = SKETCH_MERGE;
        meta.store_number = number;
        meta.copies = 1;
        meta.store_words = rows;
        meta.merge = merge;
        meta.expected = expected_reporters;
        meta.columns_shift = columns_shift;
        meta.columns_mask = columns_mask;
        meta.epochs_mask = epochs_mask;
        meta.element_shift = element_shift;
        meta.state = state_base;
    }
    action unknown_store() {
        meta.reason = REASON_UNKNOWN_STORE;
    }
    table store {
        key = { meta.store: exact @name("store"); }
        actions = {
            key_write_store; key_increment_store; postcarding_store; append_store; sketch_merge_store;
            @defaultonly unknown_store;
        }
        const default_action = unknown_store();
        size = 256;
    }

    // ---- The memory of a store, by the bucket of a key: the top 8 bits of its hash. Sketches only have
    // bucket 0.
    action use_region(bit<8> pair, bit<64> address, bit<32> rkey) {
        meta.pair = pair;
        meta.address = address;
        meta.rkey = rkey;
    }
    action no_queue_pair() {
        meta.reason = REASON_NO_QUEUE_PAIR;
    }
    table region {
        key = {
            meta.store: exact @name("store");
            meta.h[31:24]: range @name("bucket");
        }
        actions = { use_region; @defaultonly no_queue_pair; }
        const default_action = no_queue_pair();
        size = 4096;
    }

    // ---- Lists that this switch writes, and their memory. The state of list l has index
    // `state_offset` + l, modulo 2^32.
    action use_list(bit<32> state_offset, bit<8> pair, bit<64> address, bit<32> rkey) {
        meta.state = state_offset + meta.number;
        use_region(pair, address, rkey);
    }
    action list_not_owned() {
        meta.reason = REASON_LIST_NOT_OWNED;
    }
    table lists {
        key = {
            meta.store: exact @name("store");
            meta.number: range @name("list");
        }
        actions = { use_list; @defaultonly list_not_owned; }
        const default_action = list_not_owned();
        size = 1024;
    }

    // ---- The bit of a reporter in the columns of a sketch, as a mask.
    action use_bit(bit<32> mask) {
        meta.reporter_bit = mask;
    }
    table sketch_reporter {
        key = {
            meta.store: exact @name("store");
            meta.reporter: exact @name("reporter");
        }
        actions = { use_bit; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

    // ---- The way to a queue pair: multicast groups `group` + 1 to `group` + 4 make one to four copies
    // (rid 0 is copy 0), and so do the clone sessions with these numbers.
    action depart(bit<16> group) {
        meta.group = group;
    }
    table departure {
        key = { meta.pair: exact @name("pair"); }
        actions = { depart; @defaultonly no_queue_pair; }
        const default_action = no_queue_pair();
        size = QUEUE_PAIRS;
    }

    // ---- Answers of the collectors' queue pairs.
    action answer_of(bit<8> pair) {
        meta.pair = pair;
    }
    table answer {
        key = {
            hdr.ipv4.destination: exact @name("address");
            hdr.bth.destination_qp: exact @name("local_qpn");
        }
        actions = { answer_of; @defaultonly NoAction; }
        const default_action = NoAction();
        size = QUEUE_PAIRS;
    }

    // Why a datagram is not a report, in the order in which a parser finds out.
    action check_lengths() {
        bit<16> ones = 0;
        hash(ones, HashAlgorithm.csum16, 32w0, {
            hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.id,
            hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
            hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.checksum, hdr.ipv4.source, hdr.ipv4.destination
        }, 32w0x10000);
        bool bad = ones != 0 || standard.packet_length < 14 + (bit<32>)hdr.ipv4.total_length;
        bad = bad || hdr.udp.length < 8 || (bit<32>)hdr.udp.length + 20 > (bit<32>)hdr.ipv4.total_length;
        meta.reason = bad ? REASON_HEADER : meta.reason;
    }

    apply {
        bool is_command = hdr.packet_out.isValid();
        bool is_report = false;
        bool has_pair = false;
        bit<8> command = 0;

        if (is_command) {
            // ---- A command of the control plane.
            command = hdr.packet_out.command;
            commands.count((bit<32>)command);
            meta.store = hdr.packet_out.store;
            meta.pair = hdr.packet_out.pair;
            meta.number = hdr.packet_out.index;
            meta.epoch = hdr.packet_out.value;
            meta.flush = 1;
            if (command == COMMAND_SET_PSN) {
                has_pair = true;
                meta.work = WORK_SET_PSN;
                meta.number = hdr.packet_out.value;
            } else if (command == COMMAND_PROBE) {
                has_pair = true;
                meta.work = WORK_PROBE;
            }
        } else if (hdr.bth.isValid() && answer.apply().hit) {
            // ---- An answer of a collector's queue pair.
            if (hdr.aeth.isValid() && hdr.aeth.syndrome[6:5] == 0) {
                answers.count(0);
                mark_to_drop(standard);
                exit;
            }
            if (hdr.aeth.isValid() && hdr.aeth.syndrome == SYNDROME_SEQUENCE_ERROR) {
                // The responder misses frames: the next frame must have the PSN that it expects.
                answers.count(1);
                has_pair = true;
                meta.work = WORK_SET_PSN;
                meta.number = (bit<32>)hdr.bth.psn;
            } else {
                answers.count(2);
                hdr.packet_in.setValid();
                hdr.packet_in.pair = meta.pair;
                hdr.packet_in.opcode = hdr.bth.opcode;
                hdr.packet_in.syndrome = hdr.aeth.isValid() ? hdr.aeth.syndrome : 0;
                hdr.packet_in.psn = hdr.bth.psn;
                standard.egress_spec = CPU_PORT;
                exit;
            }
        } else if (!hdr.udp.isValid() || !service.apply().hit) {
            // ---- Everything else.
            forwarding.apply(hdr, meta, standard);
            exit;
        } else {
            is_report = true;
        }

        bool v1 = hdr.dta.version == 1;
        bit<8> opcode = hdr.dta.opcode;
        if (is_report) {
            // ---- A report: whether it can be read.
            if (meta.admitted == 0) {
                received.count(0);
            }
            check_lengths();
            // Left-aligns the value, with zeros after it. bmv2 shifts by at most 255 bits at a time, so
            // every shift is done in two halves.
            bit<8> up = (15 - meta.words) << 4;
            meta.value = (meta.value << up) << up;
            if (meta.reason == REASON_NONE && meta.parsed == 1 && hdr.udp.checksum != 0) {
                // The UDP checksum of a whole report. A sum of 0 is sent as 0xffff.
                bit<16> sum = 0;
                if (hdr.key.isValid()) {
                    hash(sum, HashAlgorithm.csum16, 32w0, { SUMMED, SUMMED_V1, hdr.key.key, meta.value }, 32w0x10000);
                } else if (hdr.column.isValid()) {
                    hash(sum, HashAlgorithm.csum16, 32w0, {
                        SUMMED, SUMMED_V1, hdr.column.epoch, hdr.column.column, meta.value
                    }, 32w0x10000);
                } else if (hdr.v1.isValid()) {
                    hash(sum, HashAlgorithm.csum16, 32w0, { SUMMED, SUMMED_V1, hdr.list.list, meta.value }, 32w0x10000);
                } else if (hdr.list.isValid()) {
                    hash(sum, HashAlgorithm.csum16, 32w0, { SUMMED, hdr.list.list, meta.value, 8w0 }, 32w0x10000);
                } else if (hdr.v0_hop.isValid()) {
                    hash(sum, HashAlgorithm.csum16, 32w0, {
                        SUMMED, hdr.v0_key.key, hdr.v0_hop.hop, meta.value
                    }, 32w0x10000);
                } else {
                    hash(sum, HashAlgorithm.csum16, 32w0, {
                        SUMMED, hdr.v0_redundancy.redundancy, hdr.v0_key.key, meta.value
                    }, 32w0x10000);
                }
                sum = sum == 0 ? 16w0xffff : sum;
                if (sum != hdr.udp.checksum) {
                    meta.reason = REASON_CHECKSUM;
                }
            }
            bit<16> length = hdr.udp.length - 8;
            if (meta.reason != REASON_NONE) {
                // No field after these can be trusted.
            } else if (!hdr.dta.isValid()) {
                meta.reason = REASON_LENGTH;
            } else if (hdr.dta.version > 1) {
                meta.reason = REASON_VERSION;
            } else if (v1 && !hdr.v1.isValid()) {
                meta.reason = REASON_LENGTH;
            } else if (hdr.dta.opcode == 0 || hdr.dta.opcode > SKETCH_MERGE || (!v1 && hdr.dta.opcode == SKETCH_MERGE)) {
                meta.reason = REASON_OPCODE;
            } else if (v1 && hdr.dta.opcode == POSTCARDING && hdr.v1.argument[3:0] >= MAX_HOPS) {
                meta.reason = REASON_HOP;
            } else if (v1 && hdr.dta.opcode == POSTCARDING && hdr.v1.argument[7:4] != 0
                       && (hdr.v1.argument[7:4] > MAX_HOPS || hdr.v1.argument[7:4] <= hdr.v1.argument[3:0])) {
                meta.reason = REASON_PATH_LENGTH;
            } else if (meta.parsed == 0) {
                bool value = v1 && ((hdr.dta.opcode == KEY_WRITE && length >= 28)
                                    || (hdr.dta.opcode == APPEND && length >= 16)
                                    || (hdr.dta.opcode == SKETCH_MERGE && length >= 20));
                meta.reason = value ? REASON_VALUE_LENGTH : REASON_LENGTH;
            } else if (v1 && hdr.dta.sequence != hdr.v1.sequence[7:0]) {
                meta.reason = REASON_FIELD;
            } else if (!v1 && hdr.dta.opcode == POSTCARDING && (hdr.v0_hop.hop == 0 || hdr.v0_hop.hop > MAX_HOPS)) {
                meta.reason = REASON_HOP;
            }
            if (meta.reason != REASON_NONE) {
                dropped.count((bit<32>)meta.reason);
                mark_to_drop(standard);
                exit;
            }

            // ---- From here on, both versions are treated alike.
            if (meta.admitted == 0) {
                received.count((bit<32>)opcode);
            }
            meta.immediate = hdr.dta.immediate;
            meta.number = hdr.list.isValid() ? hdr.list.list : 0;
            if (v1) {
                meta.reporter = hdr.v1.reporter;
                meta.store = hdr.v1.store;
                meta.redundancy = hdr.v1.argument;
                meta.hop = (bit<8>)hdr.v1.argument[3:0];
                meta.path_length = (bit<8>)hdr.v1.argument[7:4];
                meta.key = hdr.key.isValid() ? hdr.key.key : 0;
            } else {
                meta.redundancy = hdr.v0_redundancy.isValid() ? hdr.v0_redundancy.redundancy : 0;
                meta.key = hdr.v0_key.isValid() ? hdr.v0_key.key ++ 96w0 : 0;
                meta.hop = hdr.v0_hop.isValid() ? hdr.v0_hop.hop - 1 : 0;
            }
            reporter.apply();

            // ---- Gaps in the sequence. Repeats are applied again.
            if (meta.reason == REASON_NONE && v1 && meta.admitted == 0) {
                bit<33> next;
                bit<32> sequence = hdr.v1.sequence;
                expected.read(next, (bit<32>)meta.reporter);
                bit<32> ahead = sequence - next[31:0];
                bool known = next[32:32] == 1 && hdr.dta.restarted == 0;
                if (!known || ahead[31:31] == 0) {
                    expected.write((bit<32>)meta.reporter, 1w1 ++ (sequence + 1));
                }
                if (known && ahead != 0 && ahead[31:31] == 0 && hdr.dta.retransmittable == 1) {
                    // Requests the sequences right before this one, at most as many as the software translator does.
                    bit<32> count = ahead > 1023 ? 1023 : ahead;
                    meta.nack_reporter = meta.reporter;
                    meta.nack_first = sequence - count;
                    meta.nack_count = count[15:0];
                    nacks.count(0);
                    if (count[0:0] == 1) { nacked_sequences.count(0); }
                    if (count[1:1] == 1) { nacked_sequences.count(1); }
                    if (count[2:2] == 1) { nacked_sequences.count(2); }
                    if (count[3:3] == 1) { nacked_sequences.count(3); }
                    if (count[4:4] == 1) { nacked_sequences.count(4); }
                    if (count[5:5] == 1) { nacked_sequences.count(5); }
                    if (count[6:6] == 1) { nacked_sequences.count(6); }
                    if (count[7:7] == 1) { nacked_sequences.count(7); }
                    if (count[8:8] == 1) { nacked_sequences.count(8); }
                    if (count[9:9] == 1) { nacked_sequences.count(9); }
                    meta.work = WORK_NACK;
                    clone_preserving_field_list(CloneType.I2E, NACK_SESSION, KEPT_NACK);
                    // A packet can be cloned once, and the report may need its clone for a row: so the report passes
                    // ingress again, before any other packet.
                    meta.admitted = 1;
                    resubmit_preserving_field_list(KEPT_ADMITTED);
                    exit;
                }
            }
            if (meta.reason == REASON_NONE && !v1) {
                version0.apply();
            }
        }

        // ---- The store.
        if (meta.reason == REASON_NONE && !has_pair) {
            store.apply();
        }
        if (is_report && meta.reason == REASON_NONE && meta.primitive != opcode) {
            meta.reason = REASON_WRONG_PRIMITIVE;
        }

        // ---- Whether it fits its store.
        if (meta.reason != REASON_NONE || has_pair) {
            // Dropped below, or there is nothing to check.
        } else if (meta.primitive == KEY_WRITE) {
            if (is_command) {
                meta.reason = REASON_WRONG_PRIMITIVE;
            } else if (meta.redundancy > meta.copies) {
                meta.reason = REASON_REDUNDANCY;
            } else if (meta.words > meta.store_words) {
                meta.reason = REASON_VALUE_LENGTH;
            }
            meta.copies = meta.redundancy == 0 ? meta.copies : meta.redundancy;
            if (meta.inline_keys == 1) {
                meta.value = meta.key ++ meta.value[479:128];
            }
        } else if (meta.primitive == KEY_INCREMENT) {
            if (is_command) {
                meta.reason = REASON_WRONG_PRIMITIVE;
            } else if (meta.redundancy != 0 && meta.redundancy != meta.copies) {
                meta.reason = REASON_REDUNDANCY;
            }
        } else if (meta.primitive == APPEND) {
            if (meta.number >= meta.lists) {
                meta.reason = REASON_LIST_RANGE;
            } else if (is_report && meta.words != meta.store_words) {
                meta.reason = REASON_VALUE_LENGTH;
            }
        } else if (meta.primitive == POSTCARDING) {
            if (is_report && meta.path_length > meta.hops) {
                meta.reason = REASON_PATH_LENGTH;
            } else if (is_report && meta.hop >= meta.hops) {
                meta.reason = REASON_HOP;
            }
        } else {
            if (is_report) {
                meta.number = hdr.column.column;
                meta.epoch = hdr.column.epoch;
            }
            if (meta.number > meta.columns_mask) {
                meta.reason = REASON_COLUMN;
            } else if (is_report && meta.words != meta.store_words) {
                meta.reason = REASON_VALUE_LENGTH;
            }
        }

        // ---- The row of a postcard.
        bit<32> at = 0;
        bit<32> head = 0;
        bit<448> hops = 0;
        bool leaves = false;
        bool fits = meta.reason == REASON_NONE && !has_pair;
        if (fits && is_report && (meta.primitive == KEY_WRITE || meta.primitive == KEY_INCREMENT || meta.primitive == POSTCARDING)) {
            crc32c_of_key(meta.key, meta.h);
        }
        if (fits && meta.primitive == POSTCARDING) {
            bit<128> held_key;
            bit<48> born;
            at = meta.cache_base + ((is_command ? meta.number : meta.h) & meta.cache_mask);
            row_head.read(head, at);
            row_hops.read(hops, at);
            row_key.read(held_key, at);
            row_born.read(born, at);
            if (is_command) {
                leaves = head[31:16] != 0 && standard.ingress_global_timestamp - born >= (bit<48>)meta.epoch;
                if (!leaves) {
                    mark_to_drop(standard);
                    exit;
                }
            } else {
                // A row has one key and one path length.
                leaves = head[31:16] != 0 && (held_key != meta.key || head[15:8] != meta.path_length);
            }
            if (leaves) {
                // It is sent to the slots and through the queue pair of its own key.
                meta.key = held_key;
                row_hash.read(meta.h, at);
            }
        }

        // ---- The memory, and the way there.
        if (fits) {
            if (meta.primitive == APPEND) {
                lists.apply();
            } else {
                region.apply();
            }
        }
        if (meta.reason == REASON_NONE) {
            departure.apply();
        }
        if (leaves) {
            row_head.write(at, 0);
            if (meta.reason == REASON_NONE && command != COMMAND_FORGET_ROW) {
                meta.work = POSTCARDING;
                meta.reports = head[7:0];
                meta.value = head[31:8] ++ 8w0 ++ hops;
                if (head[15:8] != 0) {
                    partial_rows.count(0);
                }
                if (is_command) {
                    standard.mcast_grp = meta.group + (bit<16>)meta.copies;
                    exit;
                }
                clone_preserving_field_list(CloneType.I2E, (bit<32>)(meta.group + (bit<16>)meta.copies), KEPT_ROW);
            } else {
                // A command discards it, or its memory can no longer be reached.
                if (head[0:0] == 1) { discarded.count(0); }
                if (head[1:1] == 1) { discarded.count(1); }
                if (head[2:2] == 1) { discarded.count(2); }
                if (head[3:3] == 1) { discarded.count(3); }
                if (is_command) {
                    mark_to_drop(standard);
                    exit;
                }
            }
            // The place is free now. The postcard passes ingress again, before any other packet.
            meta.admitted = 1;
            resubmit_preserving_field_list(KEPT_ADMITTED);
            exit;
        }
        if (meta.reason != REASON_NONE) {
            if (is_report) {
                dropped.count((bit<32>)meta.reason);
            }
            mark_to_drop(standard);
            exit;
        }
        if (has_pair) {
            standard.mcast_grp = meta.group + 1;
            exit;
        }

        // ---- Accepted. Egress decides what becomes of a sketch column.
        meta.reports = 1;
        meta.forget = command == COMMAND_FORGET_LIST || command == COMMAND_FORGET_COLUMN ? 1w1 : 0;
        if (meta.primitive == SKETCH_MERGE) {
            meta.state = meta.state + (((meta.epoch & meta.epochs_mask) << meta.columns_shift) | meta.number);
            sketch_reporter.apply();
        } else if (is_report) {
            accepted.count((bit<32>)meta.primitive);
            if (meta.immediate == 1 && !(meta.primitive == APPEND && meta.notify == 1)) {
                immediate_ignored.count(0);
            }
        }
        if (meta.primitive == POSTCARDING) {
            bit<8> half = meta.hop << 4;
            bit<448> mask = 32w0xffffffff ++ 416w0;
            bit<448> mine = meta.value[479:448] ++ 416w0;
            if (head[31:16] == 0) {
                head = 0;
                hops = 0;
                row_key.write(at, meta.key);
                row_hash.write(at, meta.h);
                row_born.write(at, standard.ingress_global_timestamp);
            }
            if (((head[31:16] >> meta.hop) & 1) == 1) {
                superseded.count(0);
            } else {
                head[7:0] = head[7:0] + 1;
            }
            hops = (hops & ~((mask >> half) >> half)) | ((mine >> half) >> half);
            head[31:16] = head[31:16] | (16w1 << meta.hop);
            head[15:8] = meta.path_length;
            bool complete = head[15:8] != 0 && head[31:16] == (16w1 << head[15:8]) - 1;
            meta.reports = head[7:0];
            meta.value = head[31:8] ++ 8w0 ++ hops;
            row_hops.write(at, hops);
            row_head.write(at, complete ? 0 : head);
            if (!complete) {
                mark_to_drop(standard);
                exit;
            }
        }
        meta.work = command == COMMAND_SET_LIST ? WORK_SET_LIST : meta.primitive[3:0];
        standard.mcast_grp = meta.group + (bit<16>)meta.copies;
    }
}

#endif

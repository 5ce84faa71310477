// Egress: makes frames of reports. A packet passes once for each copy. The state of lists, columns and queue
// pairs is here, so that PSNs and sequences are assigned in the order of departure.
#ifndef DTA_V1MODEL_EGRESS
#define DTA_V1MODEL_EGRESS

// Counts n reports: index = primitive * 8 + bit, where a count of bit b stands for 2^b reports.
#define COUNT_REPORTS(counter, primitive, n) \
    if (n[0:0] == 1) { counter.count(primitive * 8); } \
    if (n[1:1] == 1) { counter.count(primitive * 8 + 1); } \
    if (n[2:2] == 1) { counter.count(primitive * 8 + 2); } \
    if (n[3:3] == 1) { counter.count(primitive * 8 + 3); } \
    if (n[4:4] == 1) { counter.count(primitive * 8 + 4); } \
    if (n[5:5] == 1) { counter.count(primitive * 8 + 5); }

control Departure(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // Reports by primitive, counted by the bits of their number.
    counter(48, CounterType.packets) emitted;
    counter(48, CounterType.packets) egress_superseded;
    counter(48, CounterType.packets) egress_discarded;
    // Operations by primitive.
    counter(8, CounterType.packets) operations;
    // Sketch reports accepted (index 5), and those dropped, by REASON_*.
    counter(8, CounterType.packets) egress_accepted;
    counter(REASONS, CounterType.packets) egress_dropped;
    counter(1, CounterType.packets) egress_immediate_ignored;
    // Reports whose queue pair disappeared between ingress and egress, by primitive; copy 0 only.
    counter(8, CounterType.packets) lost;
    // Frames by the number of the store, and by queue pair.
    counter(256, CounterType.packets) store_frames;
    counter(QUEUE_PAIRS, CounterType.packets) pair_frames;

    // The next PSN of each queue pair, which only this register assigns.
    register<bit<24>>(QUEUE_PAIRS) next_psn;

    // Lists: sequence of the newest batch (modulo 2^32, skipping 0), number of entries held, and their bytes.
    register<bit<32>>(LIST_STATES) list_sequence;
    register<bit<8>>(LIST_STATES) list_count;
    register<bit<448>>(LIST_STATES) list_entries;
    register<bit<48>>(LIST_STATES) list_born;

    // Columns: epoch, reporters merged (how many, and which), reports not sent yet, cells.
    register<bit<32>>(COLUMN_STATES) column_epoch;
    register<bit<16>>(COLUMN_STATES) column_merged;
    register<bit<32>>(COLUMN_STATES) column_reporters;
    register<bit<8>>(COLUMN_STATES) column_unsent;
    register<bit<128>>(COLUMN_STATES) column_cells;
    register<bit<48>>(COLUMN_STATES) column_born;

    bit<8> copy = 0;
    bit<64> offset = 0;
    bool sends = false;
    bit<1> reliable = 0;
    bit<1> wakes = 0;
    bit<32> length = 0;

    // ---- The constant part of a queue pair's frames.
    action use_queue_pair(bit<1> rc, bit<24> remote_qpn, bit<48> source_mac, bit<48> destination_mac, bit<32> source_ip, bit<32> destination_ip, bit<16> udp_port, bit<8> tos) {
        reliable = rc;
        hdr.ethernet.setValid();
        hdr.ethernet.source = source_mac;
        hdr.ethernet.destination = destination_mac;
        hdr.ethernet.type = ETHERTYPE_IPV4;
        hdr.ipv4.setValid();
        hdr.ipv4.version = 4;
        hdr.ipv4.ihl = 5;
        hdr.ipv4.tos = tos;
        hdr.ipv4.id = 0;
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.more_fragments = 0;
        hdr.ipv4.fragment_offset = 0;
        hdr.ipv4.ttl = 64;
        hdr.ipv4.protocol = PROTOCOL_UDP;
        hdr.ipv4.source = source_ip;
        hdr.ipv4.destination = destination_ip;
        hdr.udp.setValid();
        hdr.udp.source = 0xc000 | (remote_qpn[15:0] & 0x3fff);
        hdr.udp.destination = udp_port;
        hdr.udp.checksum = 0;
        hdr.bth.setValid();
        hdr.bth.solicited = 0;
        hdr.bth.migrated = 1;
        hdr.bth.pad = 0;
        hdr.bth.transport_version = 0;
        hdr.bth.pkey = 0xffff;
        hdr.bth.congestion = 0;
        hdr.bth.destination_qp = remote_qpn;
        hdr.bth.reserved = 0;
    }
    table queue_pair {
        key = { meta.pair: exact @name("pair"); }
        actions = { use_queue_pair; @defaultonly NoAction; }
        const default_action = NoAction();
        size = QUEUE_PAIRS;
    }

    // Removes the report from the frame.
    action forget_report() {
        hdr.packet_out.setInvalid();
        hdr.dta.setInvalid();
        hdr.v1.setInvalid();
        hdr.v0_redundancy.setInvalid();
        hdr.v0_key.setInvalid();
        hdr.v0_hop.setInvalid();
        hdr.key.setInvalid();
        hdr.list.setInvalid();
        hdr.column.setInvalid();
        hdr.aeth.setInvalid();
        hdr.word[0].setInvalid();
        hdr.word[1].setInvalid();
        hdr.word[2].setInvalid();
        hdr.word[3].setInvalid();
        hdr.word[4].setInvalid();
        hdr.word[5].setInvalid();
        hdr.word[6].setInvalid();
        hdr.word[7].setInvalid();
        hdr.word[8].setInvalid();
        hdr.word[9].setInvalid();
        hdr.word[10].setInvalid();
        hdr.word[11].setInvalid();
        hdr.word[12].setInvalid();
        hdr.word[13].setInvalid();
        hdr.word[14].setInvalid();
    }

    // The headers of all frames as the iCRC covers them: fields that may change on the way count as ones.
#define ICRC_HEADERS \
    64w0xffffffffffffffff, hdr.ipv4.version, hdr.ipv4.ihl, 8w0xff, hdr.ipv4.total_length, hdr.ipv4.id, \
    hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset, 8w0xff, \
    hdr.ipv4.protocol, 16w0xffff, hdr.ipv4.source, hdr.ipv4.destination, \
    hdr.udp.source, hdr.udp.destination, hdr.udp.length, 16w0xffff, \
    hdr.bth.opcode, hdr.bth.solicited, hdr.bth.migrated, hdr.bth.pad, hdr.bth.transport_version, \
    hdr.bth.pkey, 8w0xff, hdr.bth.destination_qp, hdr.bth.ack_request, hdr.bth.reserved, hdr.bth.psn
#define ICRC_RETH ICRC_HEADERS, hdr.reth.address, hdr.reth.rkey, hdr.reth.length
#define PAYLOAD_8 hdr.payload8.first, hdr.payload8.words
#define PAYLOAD_16 PAYLOAD_8, hdr.payload16.words
#define PAYLOAD_32 PAYLOAD_16, hdr.payload32.words
#define PAYLOAD_64 PAYLOAD_32, hdr.payload64.words

    // Turns the report's packet into a NACK, which recirculates to ingress and is forwarded there.
    action make_nack() {
        bit<48> mac = hdr.ethernet.source;
        bit<32> ip = hdr.ipv4.source;
        bit<16> port = hdr.udp.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = ip;
        hdr.ipv4.tos = 0;
        hdr.ipv4.id = 0;
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.ttl = 64;
        hdr.ipv4.total_length = 40;
        meta.header_changed = 1;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = port;
        hdr.udp.length = 20;
        hdr.udp.checksum = 0;
        hdr.nack.setValid();
        hdr.nack.sequence = meta.nack_first[7:0];
        hdr.nack.is_nack = 1;
        hdr.nack.reserved = 0;
        hdr.nack.version = 1;
        hdr.nack.reporter = meta.nack_reporter;
        hdr.nack.first = meta.nack_first;
        hdr.nack.count = meta.nack_count;
        hdr.nack.reserved2 = 0;
    }

    apply {
        if (meta.work == WORK_FORWARD) {
            // A flooded packet is not sent back to its ingress port.
            if (standard.instance_type == 5 && standard.egress_port == standard.ingress_port) {
                mark_to_drop(standard);
            }
            exit;
        }
        if (meta.work == WORK_NACK) {
            forget_report();
            make_nack();
            truncate(54);
            recirculate_preserving_field_list(KEPT_NOTHING);
            exit;
        }
        if (meta.work == WORK_SET_PSN) {
            next_psn.write((bit<32>)meta.pair, meta.number[23:0]);
            mark_to_drop(standard);
            exit;
        }
        if (meta.work == WORK_SET_LIST) {
            list_sequence.write(meta.state, meta.epoch);
            mark_to_drop(standard);
            exit;
        }

        bit<32> primitive = (bit<32>)meta.work;
        copy = (bit<8>)standard.egress_rid;
        forget_report();
        bit<32> first = 0;
        bool is_keyed = false;

        if (meta.work == KEY_WRITE || meta.work == POSTCARDING || meta.work == KEY_INCREMENT) {
            // The slot of this copy.
            if (copy == 0) {
                meta.h = meta.h + SLOT_C0;
            } else if (copy == 1) {
                meta.h = meta.h + SLOT_C1;
            } else if (copy == 2) {
                meta.h = meta.h + SLOT_C2;
            } else {
                meta.h = meta.h + SLOT_C3;
            }
            bit<32> slot;
            crc32c_of_le32(meta.h, slot);
            offset = (bit<64>)(slot & meta.slots_mask) << meta.element_shift;
            is_keyed = meta.work != KEY_INCREMENT;
            sends = true;
        } else if (meta.work == APPEND) {
            // ---- Adds the entry to the batch of its list.
            bit<32> sequence;
            bit<8> count;
            bit<448> entries;
            bit<48> born;
            list_sequence.read(sequence, meta.state);
            list_count.read(count, meta.state);
            list_entries.read(entries, meta.state);
            list_born.read(born, meta.state);
            if (meta.flush == 0) {
                bit<8> half = (count * meta.store_words) << 4;
                entries = (count == 0 ? 0 : entries) | ((meta.value[479:32] >> half) >> half);
                if (count == 0) {
                    list_born.write(meta.state, standard.egress_global_timestamp);
                }
                count = count + 1;
                sends = count >= meta.entries || (meta.immediate == 1 && meta.notify == 1);
            } else if (meta.forget == 1) {
                COUNT_REPORTS(egress_discarded, primitive, count)
                count = 0;
            } else {
                sends = count != 0 && standard.egress_global_timestamp - born >= (bit<48>)meta.epoch;
            }
            meta.reports = count;
            list_count.write(meta.state, sends ? 0 : count);
            list_entries.write(meta.state, entries);
            if (sends) {
                // Sequences count from 1, and wrap to 1.
                sequence = sequence + 1;
                if (sequence == 0) {
                    sequence = 1;
                }
                list_sequence.write(meta.state, sequence);
                bit<32> place = (sequence - 1) & meta.ring_mask;
                offset = (((bit<64>)meta.number << meta.ring_shift) | (bit<64>)place) << meta.element_shift;
                // The entries, and an 8-byte trailer: sequence, count, and room for the check.
                bit<512> batch = entries ++ 64w0;
                bit<64> trailer = sequence ++ count ++ 24w0;
                if (meta.element_shift == 4) {
                    batch = batch | (64w0 ++ trailer ++ 384w0);
                } else if (meta.element_shift == 5) {
                    batch = batch | (192w0 ++ trailer ++ 256w0);
                } else {
                    batch = batch | (448w0 ++ trailer);
                }
                first = batch[511:480];
                meta.value = batch[479:0];
                wakes = meta.notify;
            }
        } else if (meta.work == SKETCH_MERGE) {
            // ---- Merges the cells into the column of their epoch.
            bit<32> epoch;
            bit<16> merged;
            bit<32> reporters;
            bit<8> unsent;
            bit<128> cells;
            bit<48> born;
            column_epoch.read(epoch, meta.state);
            column_merged.read(merged, meta.state);
            column_reporters.read(reporters, meta.state);
            column_unsent.read(unsent, meta.state);
            column_cells.read(cells, meta.state);
            column_born.read(born, meta.state);
            if (meta.flush == 1) {
                if (meta.forget == 1) {
                    COUNT_REPORTS(egress_discarded, primitive, unsent)
                    column_merged.write(meta.state, 0);
                    column_reporters.write(meta.state, 0);
                    column_unsent.write(meta.state, 0);
                } else {
                    sends = unsent != 0;
                    meta.epoch = epoch;
                }
            } else {
                bit<8> reason = REASON_NONE;
                bit<32> own = meta.reporter_bit;
                bit<32> ahead = meta.epoch - epoch;
                if (own == 0) {
                    reason = REASON_SKETCH_REPORTERS;
                } else if (merged != 0 && ahead[31:31] == 1) {
                    reason = REASON_EPOCH_OLD;
                }
                if (reason == REASON_NONE && merged != 0 && epoch != meta.epoch) {
                    // A newer epoch takes the place: what was not sent of the older one is superseded.
                    COUNT_REPORTS(egress_superseded, primitive, unsent)
                    merged = 0;
                    reporters = 0;
                    unsent = 0;
                }
                if (reason == REASON_NONE && (reporters & own) != 0) {
                    reason = REASON_DUPLICATE_COLUMN;
                }
                if (reason != REASON_NONE) {
                    egress_dropped.count((bit<32>)reason);
                } else {
                    egress_accepted.count(primitive);
                    if (meta.immediate == 1) {
                        egress_immediate_ignored.count(0);
                    }
                    bit<128> theirs = meta.value[479:352];
                    if (merged == 0) {
                        cells = theirs;
                        reporters = 0;
                        unsent = 0;
                    } else if (meta.merge == MERGE_SUM) {
                        cells[127:96] = cells[127:96] |+| theirs[127:96];
                        cells[95:64] = cells[95:64] |+| theirs[95:64];
                        cells[63:32] = cells[63:32] |+| theirs[63:32];
                        cells[31:0] = cells[31:0] |+| theirs[31:0];
                    } else if (meta.merge == MERGE_MAX) {
                        cells[127:96] = cells[127:96] > theirs[127:96] ? cells[127:96] : theirs[127:96];
                        cells[95:64] = cells[95:64] > theirs[95:64] ? cells[95:64] : theirs[95:64];
                        cells[63:32] = cells[63:32] > theirs[63:32] ? cells[63:32] : theirs[63:32];
                        cells[31:0] = cells[31:0] > theirs[31:0] ? cells[31:0] : theirs[31:0];
                    } else {
                        cells = cells | theirs;
                    }
                    if (unsent == 0) {
                        column_born.write(meta.state, standard.egress_global_timestamp);
                    }
                    merged = merged + 1;
                    unsent = unsent + 1;
                    column_epoch.write(meta.state, meta.epoch);
                    column_merged.write(meta.state, merged);
                    column_reporters.write(meta.state, reporters | own);
                    column_unsent.write(meta.state, unsent);
                    column_cells.write(meta.state, cells);
                    sends = merged >= meta.expected;
                }
            }
            if (sends) {
                column_unsent.write(meta.state, 0);
                meta.reports = unsent;
                offset = (bit<64>)(((meta.epoch & meta.epochs_mask) << meta.columns_shift) | meta.number) << meta.element_shift;
                first = meta.epoch;
                meta.value = merged ++ meta.expected ++ cells ++ 320w0;
            }
        } else {
            // WORK_PROBE: a WRITE of 0 bytes.
            sends = true;
        }
        if (!sends) {
            mark_to_drop(standard);
            exit;
        }

        // ---- The frame.
        if (!queue_pair.apply().hit) {
            if (copy == 0) {
                lost.count(primitive);
            }
            mark_to_drop(standard);
            exit;
        }
        bit<64> address = ADDRESS(meta.address, offset);
        hdr.bth.opcode = RC_WRITE_ONLY;
        if (meta.work == KEY_INCREMENT) {
            hdr.bth.opcode = RC_FETCH_ADD;
            hdr.atomic_eth.setValid();
            hdr.atomic_eth.address = address;
            hdr.atomic_eth.rkey = meta.rkey;
            hdr.atomic_eth.add = meta.value[479:416];
            hdr.atomic_eth.compare = 0;
            length = 28;
        } else {
            if (meta.work != WORK_PROBE) {
                hdr.payload8.setValid();
                hdr.payload8.first = first;
                hdr.payload8.words = meta.value[479:448];
                length = 8;
                if (meta.element_shift >= 4) {
                    hdr.payload16.setValid();
                    hdr.payload16.words = meta.value[447:384];
                    length = 16;
                }
                if (meta.element_shift >= 5) {
                    hdr.payload32.setValid();
                    hdr.payload32.words = meta.value[383:256];
                    length = 32;
                }
                if (meta.element_shift >= 6) {
                    hdr.payload64.setValid();
                    hdr.payload64.words = meta.value[255:0];
                    length = 64;
                }
            }
            hdr.reth.setValid();
            hdr.reth.address = address;
            hdr.reth.rkey = meta.rkey;
            hdr.reth.length = length;
            if (wakes == 1) {
                hdr.bth.opcode = RC_WRITE_ONLY_IMMEDIATE;
                hdr.immediate.setValid();
                hdr.immediate.data = meta.number;
                length = length + 4;
            }
            length = length + 16;
            if (reliable == 0) {
                hdr.bth.opcode = hdr.bth.opcode + UC_OFFSET;
            }
        }
        // ---- The checksum in memory: over the key and all words after the checksum, or over the list
        // and the batch up to its check.
        bit<32> sum = 0;
        if (is_keyed) {
            if (meta.element_shift == 3) {
                hash(sum, HashAlgorithm.crc32, 64w0, { meta.key, hdr.payload8.words }, 64w0x100000000);
            } else if (meta.element_shift == 4) {
                hash(sum, HashAlgorithm.crc32, 64w0, {
                    meta.key, hdr.payload8.words, hdr.payload16.words
                }, 64w0x100000000);
            } else if (meta.element_shift == 5) {
                hash(sum, HashAlgorithm.crc32, 64w0, {
                    meta.key, hdr.payload8.words, hdr.payload16.words, hdr.payload32.words
                }, 64w0x100000000);
            } else {
                hash(sum, HashAlgorithm.crc32, 64w0, {
                    meta.key, hdr.payload8.words, hdr.payload16.words, hdr.payload32.words, hdr.payload64.words
                }, 64w0x100000000);
            }
            hdr.payload8.first = sum;
        } else if (meta.work == APPEND) {
            if (meta.element_shift == 4) {
                hash(sum, HashAlgorithm.crc32, 64w0, {
                    meta.number, PAYLOAD_8, hdr.payload16.words[63:24]
                }, 64w0x100000000);
                hdr.payload16.words[23:0] = sum[23:0];
            } else if (meta.element_shift == 5) {
                hash(sum, HashAlgorithm.crc32, 64w0, {
                    meta.number, PAYLOAD_16, hdr.payload32.words[127:24]
                }, 64w0x100000000);
                hdr.payload32.words[23:0] = sum[23:0];
            } else {
                hash(sum, HashAlgorithm.crc32, 64w0, {
                    meta.number, PAYLOAD_32, hdr.payload64.words[255:24]
                }, 64w0x100000000);
                hdr.payload64.words[23:0] = sum[23:0];
            }
        }
        hdr.ipv4.total_length = 44 + (bit<16>)length;
        hdr.udp.length = 24 + (bit<16>)length;
        meta.header_changed = 1;

        // ---- The PSN, in the order of departure.
        bit<24> psn;
        next_psn.read(psn, (bit<32>)meta.pair);
        next_psn.write((bit<32>)meta.pair, psn + 1);
        hdr.bth.psn = psn;
        hdr.bth.ack_request = reliable == 1 && (psn[5:0] == 63 || meta.work == WORK_PROBE) ? 1w1 : 0;

        // ---- The iCRC, for each form of a frame.
        if (meta.work == KEY_INCREMENT) {
            hash(sum, HashAlgorithm.crc32, 64w0, {
                ICRC_HEADERS, hdr.atomic_eth.address, hdr.atomic_eth.rkey, hdr.atomic_eth.add, hdr.atomic_eth.compare
            }, 64w0x100000000);
        } else if (meta.work == WORK_PROBE) {
            hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH }, 64w0x100000000);
        } else if (wakes == 1) {
            if (meta.element_shift == 4) {
                hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH, hdr.immediate.data, PAYLOAD_16 }, 64w0x100000000);
            } else if (meta.element_shift == 5) {
                hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH, hdr.immediate.data, PAYLOAD_32 }, 64w0x100000000);
            } else {
                hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH, hdr.immediate.data, PAYLOAD_64 }, 64w0x100000000);
            }
        } else if (meta.element_shift == 3) {
            hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH, PAYLOAD_8 }, 64w0x100000000);
        } else if (meta.element_shift == 4) {
            hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH, PAYLOAD_16 }, 64w0x100000000);
        } else if (meta.element_shift == 5) {
            hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH, PAYLOAD_32 }, 64w0x100000000);
        } else {
            hash(sum, HashAlgorithm.crc32, 64w0, { ICRC_RETH, PAYLOAD_64 }, 64w0x100000000);
        }
        hdr.icrc.setValid();
        hdr.icrc.icrc = SWAP32(sum);
        truncate(58 + length);

        pair_frames.count((bit<32>)meta.pair);
        if (meta.work != WORK_PROBE) {
            store_frames.count((bit<32>)meta.store_number);
            operations.count(primitive);
            if (copy == 0) {
                COUNT_REPORTS(emitted, primitive, meta.reports)
            }
        }
    }
}

#endif

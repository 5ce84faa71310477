// Keys of reports, as dta-proto/src/telemetry.rs describes them.
#ifndef REPORTER_V1MODEL_KEYS
#define REPORTER_V1MODEL_KEYS

// Makes the key of the kind `meta.key_kind`.
control ReportKey(inout metadata_t meta) {
    bit<32> sum = 0;
    bit<32> sum_c = 0;
    bit<32> sum_k = 0;
    bit<32> name = 0;

    action flow_key() {
        meta.key = meta.source ++ meta.destination ++ meta.source_port ++ meta.destination_port ++ meta.protocol ++ 24w0;
    }
    action sum_flow() {
        hash(sum, HashAlgorithm.crc32, 64w0, {
            meta.source, meta.destination, meta.source_port, meta.destination_port, meta.protocol
        }, 64w0x100000000);
    }
    action sum_flow_and_switch() {
        hash(sum, HashAlgorithm.crc32, 64w0, {
            meta.source, meta.destination, meta.source_port, meta.destination_port, meta.protocol, meta.switch_id
        }, 64w0x100000000);
    }
    action sum_flow_and_reason() {
        hash(sum, HashAlgorithm.crc32, 64w0, {
            meta.source, meta.destination, meta.source_port, meta.destination_port, meta.protocol, meta.reason
        }, 64w0x100000000);
    }

    apply {
        flow_key();
        if (meta.key_kind == KEY_QUEUE_OCCUPANCY) {
            meta.key = meta.switch_id ++ meta.egress_port ++ meta.queue ++ NAME_QUEUE_OCCUPANCY;
        } else if (meta.key_kind == KEY_DROPS) {
            meta.key = meta.switch_id ++ meta.reason ++ 56w0 ++ NAME_DROPS;
        } else if (meta.key_kind != KEY_FLOW) {
            bit<104> flow = meta.source ++ meta.destination ++ meta.source_port ++ meta.destination_port ++ meta.protocol;
            bit<136> data = 0;
            bit<32> constant_c = 0;
            bit<32> constant_k = 0;
            if (meta.key_kind == KEY_HOP_LATENCY) {
                name = NAME_HOP_LATENCY;
                data = flow ++ meta.switch_id;
                constant_c = CRC32C_OF_17;
                constant_k = CRC32K_OF_17;
                sum_flow_and_switch();
            } else if (meta.key_kind == KEY_FLOW_DROPS) {
                name = NAME_FLOW_DROPS;
                data = 24w0 ++ flow ++ meta.reason;
                constant_c = CRC32C_OF_14;
                constant_k = CRC32K_OF_14;
                sum_flow_and_reason();
            } else {
                name = meta.key_kind == KEY_PACKETS ? NAME_PACKETS : NAME_BYTES;
                data = 32w0 ++ flow;
                constant_c = CRC32C_OF_13;
                constant_k = CRC32K_OF_13;
                sum_flow();
            }
            crc32c(data, constant_c, sum_c);
            crc32k(data, constant_k, sum_k);
            meta.key = sum ++ sum_c ++ sum_k ++ name;
        }
    }
}

#endif

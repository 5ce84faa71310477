// The iCRC of a frame: CRC-32 over the fields that do not change on the way; the others count as ones.
#ifndef DTA_TNA_ICRC
#define DTA_TNA_ICRC

#define ICRC_HEADERS \
    64w0xffffffffffffffff, 8w0x45, 8w0xff, hdr.ipv4.total_length, 32w0x4000, 8w0xff, 8w17, 16w0xffff, \
    hdr.ipv4.source, hdr.ipv4.destination, \
    hdr.udp.source, hdr.udp.destination, hdr.udp.length, 16w0xffff, \
    hdr.bth.opcode, 8w0x40, 16w0xffff, 8w0xff, hdr.bth.destination_qp, hdr.bth.ack_request, 7w0, hdr.bth.psn, \
    hdr.target.address_high, hdr.target.address_low, hdr.target.rkey
#define PAYLOAD_8 hdr.sum.word, hdr.w0.word
#define PAYLOAD_16 hdr.sum.word, hdr.w0.word, hdr.w1.word, hdr.w2.word
#define PAYLOAD_32 hdr.sum.word, hdr.w0.word, hdr.w1.word, hdr.w2.word, hdr.w3.word, hdr.w4.word, WORD_32_6.word, WORD_32_7.word
#define PAYLOAD_64 hdr.sum.word, hdr.w0.word, hdr.w1.word, hdr.w2.word, hdr.w3.word, hdr.w4.word, hdr.w5.word, hdr.w6.word, \
    hdr.w7.word, hdr.w8.word, hdr.w9.word, hdr.w10.word, hdr.w11.word, hdr.w12.word, hdr.w13.word, hdr.w14.word

control Icrc(inout egress_headers_t hdr, inout egress_metadata_t meta) {
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_write_32;
    action write_32() {
        meta.icrc = of_write_32.get({ ICRC_HEADERS, hdr.length.length, PAYLOAD_32 });
    }
#ifdef DTA_KEYS
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_write_16;
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_write_16_immediate;
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_fetch_add;
#ifdef DTA_VALUES_OF_4
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_write_8;
    action write_8() {
        meta.icrc = of_write_8.get({ ICRC_HEADERS, hdr.length.length, PAYLOAD_8 });
    }
#endif
    action write_16() {
        meta.icrc = of_write_16.get({ ICRC_HEADERS, hdr.length.length, PAYLOAD_16 });
    }
    action write_16_immediate() {
        meta.icrc = of_write_16_immediate.get({ ICRC_HEADERS, hdr.length.length, hdr.immediate.data, PAYLOAD_16 });
    }
    action fetch_add() {
        meta.icrc = of_fetch_add.get({ ICRC_HEADERS, hdr.w0.word, hdr.w1.word, 64w0 });
    }
#endif
#ifdef DTA_LONG_BATCHES
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_write_32_immediate;
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_write_64;
    Hash<bit<32>>(HashAlgorithm_t.CRC32) of_write_64_immediate;
    action write_32_immediate() {
        meta.icrc = of_write_32_immediate.get({ ICRC_HEADERS, hdr.length.length, hdr.immediate.data, PAYLOAD_32 });
    }
    action write_64() {
        meta.icrc = of_write_64.get({ ICRC_HEADERS, hdr.length.length, PAYLOAD_64 });
    }
    action write_64_immediate() {
        meta.icrc = of_write_64_immediate.get({ ICRC_HEADERS, hdr.length.length, hdr.immediate.data, PAYLOAD_64 });
    }
#endif

    apply {
#ifdef DTA_LONG_BATCHES
        if (hdr.immediate.isValid() && hdr.bridge.element_shift == 6) {
            write_64_immediate();
        } else if (hdr.bridge.element_shift == 6) {
            write_64();
        } else if (hdr.immediate.isValid()) {
            write_32_immediate();
        } else {
            write_32();
        }
#else
        if (hdr.compare.isValid()) {
            fetch_add();
        } else if (hdr.immediate.isValid()) {
            write_16_immediate();
#ifdef DTA_VALUES_OF_4
        } else if (hdr.bridge.element_shift == 3) {
            write_8();
#endif
        } else if (hdr.bridge.element_shift == 4) {
            write_16();
        } else {
            write_32();
        }
#endif
        hdr.icrc.setValid();
        hdr.icrc.a = meta.icrc[7:0];
        hdr.icrc.b = meta.icrc[15:8];
        hdr.icrc.c = meta.icrc[23:16];
        hdr.icrc.d = meta.icrc[31:24];
    }
}

#endif

// The headers of packets and frames; docs/wire-format.md has their bytes.
#ifndef DTA_HEADERS
#define DTA_HEADERS

header ethernet_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

header ipv4_t {
    bit<4> version;
    bit<4> ihl;
    bit<8> tos;
    bit<16> total_length;
    bit<16> id;
    bit<1> reserved;
    bit<1> dont_fragment;
    bit<1> more_fragments;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

header udp_t {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

// The first bytes of a report of either version.
header dta_t {
    bit<8> opcode;
    bit<8> sequence;
    bit<1> immediate;
    bit<1> retransmittable;
    bit<1> restarted;
    bit<3> reserved;
    bit<2> version;
}

// The rest of the header of version 1.
header dta_v1_t {
    bit<8> argument;
    bit<16> store;
    bit<16> reporter;
    bit<32> sequence;
}

header v0_redundancy_t { bit<8> redundancy; }
header v0_key_t { bit<32> key; }
header v0_hop_t { bit<8> hop; }
header key_t { bit<128> key; }
header list_t { bit<32> list; }
header column_t {
    bit<32> epoch;
    bit<32> column;
}
// Four bytes of a value, delta or cell.
header word_t { bit<32> word; }

header nack_t {
    bit<8> sequence;
    bit<1> is_nack;
    bit<5> reserved;
    bit<2> version;
    bit<16> reporter;
    bit<32> first;
    bit<16> count;
    bit<16> reserved2;
}

header bth_t {
    bit<8> opcode;
    bit<1> solicited;
    bit<1> migrated;
    bit<2> pad;
    bit<4> transport_version;
    bit<16> pkey;
    bit<8> congestion;
    bit<24> destination_qp;
    bit<1> ack_request;
    bit<7> reserved;
    bit<24> psn;
}

header reth_t {
    bit<64> address;
    bit<32> rkey;
    bit<32> length;
}

header atomic_eth_t {
    bit<64> address;
    bit<32> rkey;
    bit<64> add;
    bit<64> compare;
}

header immediate_t { bit<32> data; }

header aeth_t {
    bit<8> syndrome;
    bit<24> msn;
}

// The payload of a WRITE of 8, 16, 32 or 64 bytes: each part doubles the length.
header payload8_t {
    bit<32> first;
    bit<32> words;
}
header payload16_t { bit<64> words; }
header payload32_t { bit<128> words; }
header payload64_t { bit<256> words; }

header icrc_t { bit<32> icrc; }

#endif

// Headers that the reporter parses and emits, in addition to those of translator-p4/shared/headers.p4.
#ifndef REPORTER_HEADERS
#define REPORTER_HEADERS

header vlan_t {
    bit<16> tag;
    bit<16> type;
}

header options_t { varbit<320> options; }

// The first four bytes of TCP, UDP, DCCP, SCTP and UDP-Lite.
header ports_t {
    bit<16> source;
    bit<16> destination;
}

// The rest of UDP.
header udp_rest_t {
    bit<16> length;
    bit<16> checksum;
}

header vxlan_t {
    bit<4> reserved;
    bit<1> has_network;
    bit<27> reserved2;
    bit<24> network;
    bit<8> reserved3;
}

header gtpu_t {
    bit<3> version;
    bit<1> protocol_type;
    bit<1> reserved;
    bit<1> has_extension;
    bit<1> has_sequence;
    bit<1> has_npdu;
    bit<8> type;
    bit<16> length;
    bit<32> tunnel;
}

// Follows gtpu_t if any of its three flags is set.
header gtpu_more_t {
    bit<16> sequence;
    bit<8> npdu;
    bit<8> next;
}

// One word of an extension. In the first word, the first byte is the number of words; in the last
// word, the last byte is the type of the next extension.
header gtpu_extension_t {
    bit<8> words;
    bit<16> content;
    bit<8> next;
}

// ---- Values and entries, as in dta-proto/src/telemetry.rs.

header value_t { bit<32> value; }

header moment_t { bit<64> time; }

header delta_t { bit<64> delta; }

header drop_entry_t {
    bit<32> name;
    bit<64> time;
    bit<128> key;
    bit<32> switch_id;
    bit<32> ingress_port;
    bit<32> egress_port;
    bit<32> queue;
    bit<8> reason;
    bit<120> zeros;
}

header congestion_entry_t {
    bit<32> name;
    bit<64> time;
    bit<128> key;
    bit<32> switch_id;
    bit<32> egress_port;
    bit<32> queue;
    bit<32> occupancy;
    bit<32> latency;
    bit<96> zeros;
}

header flow_entry_t { bit<128> key; }

// ---- Telemetry Report v0.5.

header telemetry_t {
    bit<4> version;
    bit<4> next_protocol;
    bit<1> dropped;
    bit<1> congested;
    bit<1> tracked;
    bit<15> reserved;
    bit<6> hardware;
    bit<32> sequence;
    bit<32> ingress_time;
}

header telemetry_drop_t {
    bit<32> switch_id;
    bit<16> ingress_port;
    bit<16> egress_port;
    bit<8> queue;
    bit<8> reason;
    bit<16> pad;
}

header telemetry_local_t {
    bit<32> switch_id;
    bit<16> ingress_port;
    bit<16> egress_port;
    bit<8> queue;
    bit<24> occupancy;
    bit<32> egress_time;
}

#endif

// Headers and metadata of the program.
#ifndef REPORTER_TNA_TYPES
#define REPORTER_TNA_TYPES

// Entries in each of the two digest registers.
#define DIGESTS 65536
// Reason of a packet that the traffic manager dropped.
const bit<8> REASON_TRAFFIC_MANAGER = 71;

// Queues: 512 ports of 8.
#define QUEUES 4096
#define DESTINATIONS 256

// Every packet reaches egress with one of these as its first byte.
#define WORK_FORWARD 8w0
// Other values mark clones: the mask of their kinds.

#define MIRROR_NOTHING 3w0
#define MIRROR_REPORT 3w1

typedef bit<16> place_t;

// In front of packets from the traffic manager: what ingress found out.
header bridge_t {
    bit<8> work;
    bit<1> watch_flows;
    bit<1> watch_queues;
    bit<1> watch_drops;
    bit<1> flooded;
    bit<4> reserved;
    bit<8> hop;
    bit<8> protocol;
    bit<32> source;
    bit<32> destination;
    bit<16> source_port;
    bit<16> destination_port;
    bit<16> ingress_port;
    // The intended egress port: packets that the traffic manager drops come to egress on another port. All ones if it is
    // flooded.
    bit<16> egress_port;
    bit<8> queue;
    // Low 32 bits of the switch's clock, in nanoseconds.
    bit<32> arrived;
}

// In front of a clone: what was seen of the packet, which follows. Mirroring has room for 32 bytes of this, and the fields
// are whole bytes, as containers are.
header seen_t {
    bit<8> kinds;
    // The argument of a postcard: path length and hop.
    bit<8> place;
    bit<8> protocol;
    // For a drop.
    bit<8> reason;
}

// The same in the parts from which it is made.
header seen_parts_t {
    bit<8> kinds;
    bit<8> place;
    bit<8> protocol;
    bit<8> reason;
    bit<32> source;
    bit<32> destination;
    bit<16> source_port;
    bit<16> destination_port;
    bit<16> ingress_port;
    bit<16> egress_port;
    bit<32> queue_and_depth;
    bit<32> latency;
    bit<32> seen;
}

// The first bytes of a report and of a Telemetry Report, as whole bytes: parts of a byte cannot be written by themselves.
header dta_bytes_t {
    bit<8> opcode;
    bit<8> sequence;
    bit<8> flags;
}
header telemetry_bytes_t {
    bit<8> version;
    bit<8> flags;
    bit<16> hardware;
}

header zeros_t { bit<96> zeros; }

struct ingress_headers_t {
    bridge_t bridge;
    ethernet_t ethernet;
    vlan_t[2] vlan;
    ipv4_t ipv4;
    ports_t ports;
    udp_rest_t udp_rest;
    vxlan_t vxlan;
    gtpu_t gtpu;
    gtpu_more_t gtpu_more;
    gtpu_extension_t gtpu_extension;
    ethernet_t inner_ethernet;
    ipv4_t inner_ipv4;
    ports_t inner_ports;
}

struct ingress_metadata_t {
    bit<1> has_flow;
    bit<1> is_own;
    bit<1> dropped;
    bit<8> reason;
    bit<1> routed;
    // ---- A clone.
    bit<8> kinds;
    bit<8> place;
    MirrorId_t session;
    bit<16> egress_port;
    bit<32> queue_and_depth;
    bit<32> latency;
    bit<32> seen;
}

// Each word is a header of its own: the compiler places the fields of a header together, and it does not find a placement if
// fields of several headers are copied into one another.
struct egress_headers_t {
    bridge_t bridge;
    seen_t seen;
    word_t seen_source;
    word_t seen_destination;
    word_t seen_flow_ports;
    word_t seen_ports;
    word_t seen_queue_and_depth;
    word_t seen_latency;
    word_t seen_seen;
    ethernet_t report_ethernet;
    ipv4_t report_ipv4;
    udp_t report_udp;
    dta_bytes_t dta;
    dta_v1_t v1;
    list_t list;
    word_t entry_name;
    word_t entry_high;
    word_t entry_low;
    word_t key_a;
    word_t key_b;
    word_t key_c;
    word_t key_d;
    value_t value;
    word_t latency;
    word_t switch_id;
    word_t entry_egress_port;
    word_t entry_queue;
    word_t telemetry_ports;
    word_t telemetry_queue;
    word_t moment_high;
    word_t moment_low;
    word_t delta_high;
    word_t drop_ingress_port;
    word_t drop_reason;
    zeros_t drop;
    word_t congestion_occupancy;
    zeros_t congestion;
    telemetry_bytes_t telemetry;
    word_t telemetry_sequence;
    word_t telemetry_ingress_time;
    word_t telemetry_local_egress_time;
    ethernet_t ethernet;
}

struct egress_metadata_t {
    // ---- Settings.
    bit<32> switch_id;
    bit<32> offset_high;
    bit<32> offset_low;
    bit<16> interval_mask_high;
    bit<32> interval_mask_low;
    bit<32> latency_mask;
    bit<1> every_packet;

    // ---- A forwarded packet.
    bit<1> dropped;
    bit<1> is_last_hop;
    bit<32> latency;
    bit<32> now_low;
    bit<16> now_high;
    bit<1> is_flow;
    bit<1> is_queue;
    bit<1> is_drop;
    // ---- Its clone.
    bit<8> kinds;
    bit<8> place;
    bit<8> reason;
    bit<16> egress_port;
    MirrorId_t session;
    bit<32> queue_and_depth;

    // ---- The filter.
    bit<32> masked_latency;
    bit<32> masked_low;
    bit<16> masked_high;
    bit<32> digest;
    place_t place_1;
    place_t place_2;
    bit<8> known_1;
    bit<8> known_2;
    bit<32> trigger;
    bit<32> reset;
    bit<16> quota;
    bit<16> queue_place;
    bit<32> below_trigger;
    bit<32> below_reset;
    bit<8> has_quota;

    // ---- The report.
    bit<8> primitive;
    bit<8> destination_number;
    bit<8> key_kind;
    bit<8> value_kind;
    bit<8> entry_kind;
    bit<1> with_time;
    bit<1> immediate;
    bit<1> is_translator;
    bit<32> sequence;
    bit<8> began;
    bit<32> time_low;
    bit<32> time_high;
    bit<32> carry;
    bit<32> wrapped;
    bit<32> clone_now;
    bit<32> value;
    bit<16> packet_bytes;
    bit<32> bytes;
    bit<32> ingress_word;
    bit<32> egress_word;
    bit<32> queue_word;
    bit<32> occupancy;
    bit<32> reason_word;
    bit<32> queue_on_top;
    bit<32> reason_behind;
}

#endif

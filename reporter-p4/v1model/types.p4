// Headers and metadata of the program.
#ifndef REPORTER_V1MODEL_TYPES
#define REPORTER_V1MODEL_TYPES

// Field list: the metadata that a clone keeps of its packet.
#define KEPT 1

// Values of `instance_type`.
const bit<32> INGRESS_CLONE = 1;
const bit<32> EGRESS_CLONE = 2;
const bit<32> REPLICA = 5;

// Entries in each of the two digest registers.
#define DIGESTS 65536
// Queues: 512 ports of 8.
#define QUEUES 4096
#define DESTINATIONS 256

struct headers_t {
    // ---- A report.
    ethernet_t report_ethernet;
    ipv4_t report_ipv4;
    udp_t report_udp;
    dta_t dta;
    dta_v1_t v1;
    key_t key;
    list_t list;
    value_t value;
    moment_t moment;
    delta_t delta;
    drop_entry_t drop_entry;
    congestion_entry_t congestion_entry;
    flow_entry_t flow_entry;
    telemetry_t telemetry;
    telemetry_drop_t telemetry_drop;
    telemetry_local_t telemetry_local;
    // ---- A packet, and its inner packet if it is tunnelled.
    ethernet_t ethernet;
    vlan_t[4] vlan;
    ipv4_t ipv4;
    options_t options;
    ports_t ports;
    udp_rest_t udp_rest;
    vxlan_t vxlan;
    gtpu_t gtpu;
    gtpu_more_t gtpu_more;
    gtpu_extension_t[16] gtpu_extension;
    ethernet_t inner_ethernet;
    vlan_t[4] inner_vlan;
    ipv4_t inner_ipv4;
    options_t inner_options;
    ports_t inner_ports;
}

struct metadata_t {
    // Words of a GTP-U extension that are not parsed yet.
    bit<8> words_left;

    // ---- The flow: the inner one if the packet is tunnelled.
    bit<1> has_flow;
    @field_list(KEPT)
    bit<32> source;
    @field_list(KEPT)
    bit<32> destination;
    @field_list(KEPT)
    bit<16> source_port;
    @field_list(KEPT)
    bit<16> destination_port;
    @field_list(KEPT)
    bit<8> protocol;

    // ---- What is reported of the flow.
    bit<1> watch_flows;
    bit<1> watch_queues;
    bit<1> watch_drops;
    // Mask of KIND_*.
    @field_list(KEPT)
    bit<4> kinds;

    // ---- What the packet met in the switch. A number that is not available is all ones.
    bit<1> dropped;
    @field_list(KEPT)
    bit<8> reason;
    @field_list(KEPT)
    bit<32> ingress_port;
    @field_list(KEPT)
    bit<32> egress_port;
    @field_list(KEPT)
    bit<32> queue;
    @field_list(KEPT)
    bit<32> occupancy;
    // Nanoseconds in the switch.
    @field_list(KEPT)
    bit<32> latency;
    // Microseconds of the switch's clock: arrival at ingress, and when this was observed.
    @field_list(KEPT)
    bit<48> arrived;
    @field_list(KEPT)
    bit<48> seen;
    // Length of the frame in bytes.
    @field_list(KEPT)
    bit<32> bytes;
    // Position of this switch on the path, from the ingress port; whether the path ends here, from
    // the egress port.
    @field_list(KEPT)
    bit<4> hop;
    @field_list(KEPT)
    bit<1> is_last_hop;

    // ---- Settings.
    bit<32> switch_id;
    bit<64> time_offset;
    bit<64> interval_mask;
    bit<32> latency_mask;
    bit<1> every_packet;

    // ---- The report.
    bit<8> primitive;
    bit<8> destination_number;
    bit<16> store;
    bit<8> argument;
    bit<1> immediate;
    bit<32> list_number;
    bit<8> key_kind;
    bit<8> value_kind;
    bit<8> entry_kind;
    bit<1> with_time;
    bit<16> reporter;
    bit<128> key;
    bit<32> sequence;
    bit<1> restarted;
    bit<1> is_translator;
    bit<6> hardware;
    bit<32> limit;
    bit<64> time;
    bit<16> length;
}

#endif

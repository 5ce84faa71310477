// Headers and metadata of the program.
#ifndef DTA_V1MODEL_TYPES
#define DTA_V1MODEL_TYPES

// A packet-out is a command of the control plane to the data plane. Commands set and flush
// registers, because P4Runtime cannot write registers on bmv2.
@controller_header("packet_out")
header packet_out_t {
    bit<8> command;
    bit<8> pair;
    bit<16> store;
    bit<32> index;
    bit<32> value;
}

// A packet-in tells the control plane of an answer to a queue pair that is not a plain ACK.
@controller_header("packet_in")
header packet_in_t {
    bit<8> pair;
    bit<8> opcode;
    bit<8> syndrome;
    bit<24> psn;
}

// Commands.
#define COMMAND_SET_PSN 8w1
#define COMMAND_SET_LIST 8w2
#define COMMAND_FLUSH_LIST 8w3
#define COMMAND_FLUSH_ROW 8w4
#define COMMAND_FLUSH_COLUMN 8w5
#define COMMAND_FORGET_ROW 8w6
#define COMMAND_FORGET_COLUMN 8w7
#define COMMAND_PROBE 8w8
#define COMMAND_FORGET_LIST 8w9

// The port of packet-out and packet-in (simple_switch_grpc --cpu-port 255).
const bit<9> CPU_PORT = 255;

// Clone session of NACKs. Its port does not matter: egress turns the copy into a NACK, which
// recirculates to ingress and is forwarded like any packet.
const bit<32> NACK_SESSION = 1;

// Sizes of the state, over all stores.
#define REPORTER_IDS 65536
#define LIST_STATES 65536
#define ROW_STATES 65536
#define COLUMN_STATES 262144
#define QUEUE_PAIRS 64

// What egress makes of a packet: the number of its primitive, or one of these.
const bit<4> WORK_FORWARD = 0;
const bit<4> WORK_NACK = 6;
const bit<4> WORK_SET_PSN = 7;
const bit<4> WORK_PROBE = 8;
const bit<4> WORK_SET_LIST = 9;

// Field lists: of an evicted row, of a NACK, of a report that passes ingress again.
#define KEPT_ROW 1
#define KEPT_NACK 2
#define KEPT_ADMITTED 3
#define KEPT_NOTHING 4

struct headers_t {
    packet_out_t packet_out;
    packet_in_t packet_in;
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    dta_t dta;
    dta_v1_t v1;
    v0_redundancy_t v0_redundancy;
    v0_key_t v0_key;
    v0_hop_t v0_hop;
    key_t key;
    list_t list;
    column_t column;
    word_t[15] word;
    nack_t nack;
    bth_t bth;
    reth_t reth;
    atomic_eth_t atomic_eth;
    aeth_t aeth;
    immediate_t immediate;
    payload8_t payload8;
    payload16_t payload16;
    payload32_t payload32;
    payload64_t payload64;
    icrc_t icrc;
}

struct metadata_t {
    // ---- What egress makes of the packet.
    @field_list(KEPT_ROW, KEPT_NACK)
    bit<4> work;
    // Whether its sequence has been checked.
    @field_list(KEPT_ADMITTED)
    bit<1> admitted;

    // ---- The report.
    // Whether it was complete, with nothing after it.
    bit<1> parsed;
    // Whether the IPv4 header checksum has to be computed.
    bit<1> header_changed;
    // Words in its value.
    bit<8> words;
    bit<8> words_left;
    bit<8> redundancy;
    bit<8> hop;
    bit<8> path_length;
    bit<16> store;
    bit<16> reporter;
    bit<1> immediate;
    bit<8> reason;

    // ---- The store.
    bit<8> primitive;
    // Words of the store's values, entries or cells.
    bit<8> store_words;
    // Slots hold the key in front of the value.
    bit<1> inline_keys;
    bit<8> copies;
    bit<8> hops;
    bit<32> lists;
    bit<32> columns_mask;
    bit<32> epochs_mask;
    bit<8> columns_shift;
    bit<32> cache_base;
    bit<32> cache_mask;
    bit<16> group;

    // ---- The element to write.
    @field_list(KEPT_ROW)
    bit<8> store_number;
    @field_list(KEPT_ROW)
    bit<8> pair;
    @field_list(KEPT_ROW)
    bit<64> address;
    @field_list(KEPT_ROW)
    bit<32> rkey;
    @field_list(KEPT_ROW)
    bit<128> key;
    @field_list(KEPT_ROW)
    bit<32> h;
    // The value, left-aligned, with zeros after it. For a postcard row: bitmap, path length, 0, hops.
    @field_list(KEPT_ROW)
    bit<480> value;
    @field_list(KEPT_ROW)
    bit<32> slots_mask;
    // Log2 of the element's length in bytes.
    @field_list(KEPT_ROW)
    bit<8> element_shift;
    // Number of reports in it.
    @field_list(KEPT_ROW)
    bit<8> reports;
    // Index of the state of its list or column.
    bit<32> state;
    bit<8> entries;
    bit<1> notify;
    bit<1> flush;
    bit<1> forget;
    bit<8> ring_shift;
    bit<32> ring_mask;
    bit<2> merge;
    bit<16> expected;
    bit<32> reporter_bit;
    bit<32> number;
    bit<32> epoch;

    // A packet that recirculates keeps nothing, but a field list must have a field.
    @field_list(KEPT_NOTHING)
    bit<1> nothing;

    // ---- A NACK.
    @field_list(KEPT_NACK)
    bit<16> nack_reporter;
    @field_list(KEPT_NACK)
    bit<32> nack_first;
    @field_list(KEPT_NACK)
    bit<16> nack_count;
}

#endif

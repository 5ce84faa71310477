// Headers and metadata of the program.
#ifndef DTA_TNA_TYPES
#define DTA_TNA_TYPES

// The profiles of this source, which select what a switch takes. With DTA_LONG_BATCHES: only batches of 32 and 64 bytes.
// Otherwise: batches of 16 bytes, key-write and key-increment; and in addition sketch columns with DTA_SKETCHES, or postcards
// and key-write with 4-byte values without it.
#ifndef DTA_LONG_BATCHES
#define DTA_KEYS
#ifndef DTA_SKETCHES
#define DTA_POSTCARDS
#define DTA_VALUES_OF_4
#endif
#endif

// The recirculation port for postcards that pass ingress a second time. NACKs use another.
const PortId_t AGAIN_PORT = 69;

// The port of the switch's own CPU, on chips with two pipes and with four. Packets from there are commands of the control
// plane: nobody else can send on it.
const PortId_t CPU_PORT_OF_2_PIPES = 192;
const PortId_t CPU_PORT_OF_4_PIPES = 320;

#ifdef DTA_POSTCARDS
// Commands for the rows of a pipe arrive on its recirculation port 68; the two bits above it are the number of the pipe.
// NACKs, which are IPv4, come back on that port of pipe 0.
#define COMMAND_PORT 9w68
#define PORT_OF_A_PIPE 9w0x07f
// The EtherType of such a command.
const bit<16> ETHERTYPE_COMMAND = 0x88b5;
#endif

// Mirror sessions of NACKs and of postcards that pass ingress a second time.
const MirrorId_t NACK_SESSION = 1;
const MirrorId_t AGAIN_SESSION = 2;

// Sizes of the state, over all stores.
#define REPORTER_IDS 65536
#ifdef DTA_LONG_BATCHES
// Each list holds 13 words; four of their registers fit in one stage.
#define LIST_STATES 16384
#else
#define LIST_STATES 65536
#endif
#define ROW_STATES 16384
#define COLUMN_STATES 32768
#define QUEUE_PAIRS 64

// What egress makes of a packet: the number of its primitive, or one of these.
#define WORK_FORWARD 8w0
#define WORK_NACK 8w6
#define WORK_SET_PSN 8w7
#define WORK_AGAIN 8w10

// Mirror types.
#define MIRROR_NOTHING 3w0
#define MIRROR_REPORT 3w1

// ---- Between ingress and egress. Every packet reaches egress with `work` as its first byte.

// In front of packets from the traffic manager.
header kind_t {
    bit<8> work;
    bit<8> flooded;
    bit<7> reserved;
    // The ingress port.
    bit<9> port;
}

// In front of mirrored packets; the report follows unchanged.
header mirrored_t {
    bit<8> work;
    // Its sequence minus the expected one.
    bit<32> ahead;
}

// Where a report is written. Its key or list and the words of its value follow.
header bridge_t {
    bit<8> pair;
    bit<8> store_number;
    // Index into `emitted_reports`: primitive * 16 + reports in the element.
    bit<8> reports;
    bit<3> reserved;
    // The slot holds the key before the value.
    bit<1> inline_keys;
    // The batch is sent with this report, full or not.
    bit<1> hurries;
    // Its frame has an immediate, which wakes the reader.
    bit<1> notify;
    // A flush: adds nothing, and sends what is held.
    bit<1> flush;
    bit<1> reserved2;
    // Log2 of the element's length in bytes.
    bit<8> element_shift;
    // Words per entry.
    bit<8> words;
#ifdef DTA_LONG_BATCHES
    // Entries per batch, minus 1.
    bit<8> last;
#endif
    // The hash h of a key, the index of a list's state, or the PSN that the responder expects.
    bit<32> index;
    // Slots of the store or batches of the ring, minus 1.
    bit<32> mask;
    bit<32> address_high;
    bit<32> address_low;
    bit<32> rkey;
}

// A sketch column: the words of its element in front of its cells, which follow.
header sketch_t {
    // The epoch, a second time: list entries write the frame's word, and columns would have to wait for that.
    bit<32> epoch;
    // The reporter's bit; 0 if it has none.
    bit<32> own;
    bit<8> merge;
    // Reporters that complete a column, minus 1.
    bit<8> others;
}
// Follows it, laid out as in memory.
header column_head_t {
    bit<32> epoch;
    bit<16> merged;
    bit<16> expected;
}

// A key without its first word.
header key_rest_t {
    bit<32> b;
    bit<32> c;
    bit<32> d;
}

// ---- Frames: RETH and AtomicETH in parts. The words of a value follow, or the addend.
header target_t {
    bit<32> address_high;
    bit<32> address_low;
    bit<32> rkey;
}
header length_t { bit<32> length; }
header compare_t {
    bit<32> high;
    bit<32> low;
}
// A NACK in whole bytes, the unit of header containers.
header nack_bytes_t {
    bit<8> sequence;
    // Bit 7 marks a NACK; version 1.
    bit<8> flags;
    bit<16> reporter;
    bit<32> first;
    bit<16> count;
    bit<16> reserved;
}
// Little-endian.
header icrc_bytes_t {
    bit<8> a;
    bit<8> b;
    bit<8> c;
    bit<8> d;
}

// p4c overlays two headers if no packet is parsed into both. It ignores that tables make headers valid, too: the fields of
// those must not be overlaid.
@pa_no_overlay("ingress", "hdr.bridge.pair")
@pa_no_overlay("ingress", "hdr.bridge.store_number")
@pa_no_overlay("ingress", "hdr.bridge.reports")
@pa_no_overlay("ingress", "hdr.bridge.inline_keys")
@pa_no_overlay("ingress", "hdr.bridge.hurries")
@pa_no_overlay("ingress", "hdr.bridge.notify")
@pa_no_overlay("ingress", "hdr.bridge.flush")
@pa_no_overlay("ingress", "hdr.bridge.element_shift")
@pa_no_overlay("ingress", "hdr.bridge.words")
@pa_no_overlay("ingress", "hdr.bridge.index")
@pa_no_overlay("ingress", "hdr.bridge.mask")
@pa_no_overlay("ingress", "hdr.bridge.address_high")
@pa_no_overlay("ingress", "hdr.bridge.address_low")
@pa_no_overlay("ingress", "hdr.bridge.rkey")
#ifdef DTA_LONG_BATCHES
@pa_no_overlay("ingress", "hdr.bridge.last")
#endif
@pa_no_overlay("ingress", "hdr.key.b")
@pa_no_overlay("ingress", "hdr.key.c")
@pa_no_overlay("ingress", "hdr.key.d")
@pa_no_overlay("ingress", "hdr.w1.word")
@pa_no_overlay("ingress", "hdr.w2.word")
@pa_no_overlay("ingress", "hdr.w3.word")
@pa_no_overlay("ingress", "hdr.w4.word")
@pa_no_overlay("ingress", "hdr.w5.word")
@pa_no_overlay("ingress", "hdr.w6.word")
struct ingress_headers_t {
    kind_t kind;
    bridge_t bridge;
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    dta_t dta;
    dta_v1_t v1;
    v0_redundancy_t v0_redundancy;
    // Version 0 has only this word of the key.
    word_t key_first;
    key_rest_t key;
    v0_hop_t v0_hop;
    list_t list;
#ifdef DTA_SKETCHES
    column_t column;
    sketch_t sketch;
    column_head_t column_head;
#endif
    word_t w0;
    word_t w1;
    word_t w2;
    word_t w3;
    word_t w4;
    word_t w5;
    word_t w6;
    bth_t bth;
    aeth_t aeth;
}

// Fields written by several tables of one stage must not share a container.
@pa_solitary("ingress", "meta.is_wrong")
@pa_solitary("ingress", "meta.is_not_listed")
@pa_solitary("ingress", "meta.no_version0")
@pa_solitary("ingress", "meta.is_unknown")
@pa_solitary("ingress", "meta.bad_redundancy")
@pa_solitary("ingress", "meta.bad_length")
@pa_solitary("ingress", "meta.no_pair")
struct ingress_metadata_t {
    // The header of the mirrored copy.
    bit<8> mirror_work;
    MirrorId_t mirror_session;
    bit<32> ahead;

    // It is a command, which asks for `command_work`.
    bit<1> is_command;
    bit<8> command_work;
#ifdef DTA_POSTCARDS
    // For a command to another pipe: the recirculation port that leads there; otherwise 0.
    PortId_t other_pipe;
#endif

    bool header_bad;
    bit<1> header_changed;
    // IPv4 payload bytes beyond the UDP length.
    bit<16> slack;
    bit<8> reason;
    // The low byte of the version-1 sequence, then its XOR with the sequence byte of the first header: 0 if they agree.
    bit<8> sequence_low;
    // What is wrong with a report, by precedence.
    bit<8> postcard_reason;
    bit<1> is_not_listed;
    bit<1> no_version0;
    bit<1> is_unknown;
    bit<1> is_wrong;
    bit<1> bad_redundancy;
    bit<1> bad_length;
    bit<1> is_not_owned;
    bit<1> no_pair;
    // Words in its value.
    bit<8> words;
    bit<8> redundancy;
    bit<16> store;
    bit<16> reporter;

    // ---- The store.
    bit<8> primitive;
    bit<8> store_words;
    bit<16> copies;
    bit<8> ring_shift;
    // How many lists or columns of the store remain from this one on; 0 if it is not in the store.
    bit<32> lists_left;
    bit<32> offset_high;
    bit<32> offset_low;

    // ---- The sequence: whether it is checked, whether there was one before, and the expected one.
    bit<1> is_checked;
    bit<8> known;
    bit<32> expected;

    // ---- The row.
    bit<32> cache_base;
    bit<32> cache_mask;
    bit<32> row;
    // Bitmap (upper half), path length, 0: what this postcard adds to a row, the row that it completes, and the previous row.
    bit<32> head;
    bit<32> rest;
    bit<32> was;
    bit<8> path_length;
    bit<8> length_was;
    bit<8> hop;
    // It has to pass ingress again.
    bit<1> once_more;
    bit<1> same;
    // The report is accepted; it is a postcard.
    bit<1> taken;
    bit<1> is_row;
    bit<1> gap;
    bit<1> leaves;
#ifdef DTA_SKETCHES
    // ---- The column.
    bit<8> columns_shift;
    bit<32> epochs_mask;
    bit<32> state_base;
    // Its index among the columns of all epochs.
    bit<32> place;
#endif
    bit<32> key_a;
    bit<32> key_b;
    bit<32> key_c;
    bit<32> key_d;
}

#ifdef DTA_SKETCHES
// What happens to a column: nothing, it starts over, it gains a reporter, or the report is dropped.
#define FATE_NONE 8w0
#define FATE_BEGINS 8w1
#define FATE_JOINS 8w2
#define FATE_DROPPED 8w3
// A flush sends it.
#define FATE_LEAVES 8w4
#endif

// The words of an element at egress are `sum`, `w0`, `w1` and so on. With long batches, the last two words of a batch (sequence,
// count, check) are `w13` and `w14` whatever its length: they are written in parts, and such a word must not be the target of
// a copy.
#ifdef DTA_LONG_BATCHES
#define WORD_32_6 hdr.w13
#define WORD_32_7 hdr.w14
#else
#define WORD_32_6 hdr.w5
#define WORD_32_7 hdr.w6
#endif

// The input of a copy's slot hash.
#ifdef DTA_SKETCHES
#define SLOT_KEY meta.slot_key
#else
#define SLOT_KEY hdr.bridge.index
#endif

@pa_no_overlay("egress", "hdr.ethernet.destination")
@pa_no_overlay("egress", "hdr.ethernet.source")
@pa_no_overlay("egress", "hdr.ethernet.type")
@pa_no_overlay("egress", "hdr.ipv4.version")
@pa_no_overlay("egress", "hdr.ipv4.ihl")
@pa_no_overlay("egress", "hdr.ipv4.tos")
@pa_no_overlay("egress", "hdr.ipv4.total_length")
@pa_no_overlay("egress", "hdr.ipv4.id")
@pa_no_overlay("egress", "hdr.ipv4.reserved")
@pa_no_overlay("egress", "hdr.ipv4.dont_fragment")
@pa_no_overlay("egress", "hdr.ipv4.more_fragments")
@pa_no_overlay("egress", "hdr.ipv4.fragment_offset")
@pa_no_overlay("egress", "hdr.ipv4.ttl")
@pa_no_overlay("egress", "hdr.ipv4.protocol")
@pa_no_overlay("egress", "hdr.ipv4.checksum")
@pa_no_overlay("egress", "hdr.ipv4.source")
@pa_no_overlay("egress", "hdr.ipv4.destination")
@pa_no_overlay("egress", "hdr.udp.source")
@pa_no_overlay("egress", "hdr.udp.destination")
@pa_no_overlay("egress", "hdr.udp.length")
@pa_no_overlay("egress", "hdr.udp.checksum")
@pa_no_overlay("egress", "hdr.sum.word")
@pa_no_overlay("egress", "hdr.w1.word")
@pa_no_overlay("egress", "hdr.w2.word")
struct egress_headers_t {
    kind_t kind;
    mirrored_t mirrored;
    bridge_t bridge;
    ethernet_t ethernet;
    ipv4_t ipv4;
    udp_t udp;
    dta_t dta;
    dta_v1_t v1;
    nack_bytes_t nack;
    word_t key_first;
    key_rest_t key;
    list_t list;
#ifdef DTA_SKETCHES
    sketch_t sketch;
#endif
    bth_t bth;
    target_t target;
    length_t length;
    immediate_t immediate;
    word_t sum;
    word_t w0;
    word_t w1;
    word_t w2;
    word_t w3;
    word_t w4;
    word_t w5;
    word_t w6;
#ifdef DTA_LONG_BATCHES
    word_t w7;
    word_t w8;
    word_t w9;
    word_t w10;
    word_t w11;
    word_t w12;
    word_t w13;
    word_t w14;
#endif
    compare_t compare;
    icrc_bytes_t icrc;
}

#ifdef DTA_LONG_BATCHES
// The low byte of the PSN decides whether a frame requests an acknowledgement, and is compared by itself.
@pa_container_size("egress", "meta.psn", 16, 8, 8)
#endif
struct egress_metadata_t {
    bit<1> rc;
    // Its queue pair exists.
    bit<1> has_pair;
    bit<1> sends;
    // Entries in the batch.
    bit<8> count;
    bit<32> offset_high;
    bit<32> offset_low;
    bit<32> psn;
    bit<8> before;
#ifdef DTA_LONG_BATCHES
    // Words of the batch, bit n for word n: those of this entry, and those of earlier entries.
    bit<16> own;
    bit<16> past;
#endif
#ifdef DTA_SKETCHES
    // What happens to the column, FATE_*.
    bit<8> fate;
    bit<8> used;
    // The report's epoch minus the column's; the reporter's bit if the column has it already.
    bit<32> epochs_ahead;
    bit<32> again;
    // One reporter in the units of `w0`; reporters still missing; reports not sent yet.
    bit<32> one_more;
    bit<8> missing;
    bit<8> unsent;
    // Why the report is dropped.
    bit<8> refused;
    // The input of a copy's slot hash: not `index`, which finds columns at the same time.
    bit<32> slot_key;
#endif
    // The hash of a slot or the number of a batch; the same modulo the size of the store.
    bit<32> place;
    bit<32> slot;
    bit<32> icrc;
    // For a NACK.
    bit<32> sequence_count;
    bit<16> sequence_count_16;
    bit<8> sequence_count_8;
    // The low bits of `ahead`.
    bit<16> ahead_16;
    bit<8> ahead_8;
}

#endif

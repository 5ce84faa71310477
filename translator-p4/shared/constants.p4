// Constants of all programs, explained in docs/wire-format.md and docs/memory-layout.md.
#ifndef DTA_CONSTANTS
#define DTA_CONSTANTS

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;
const bit<16> PORT_DTA = 40040;
const bit<16> PORT_ROCE = 4791;

// Opcodes of reports, which are also the numbers of the primitives in these programs.
#define KEY_WRITE 1
#define APPEND 2
#define KEY_INCREMENT 3
#define POSTCARDING 4
#define SKETCH_MERGE 5

// The most hops in a path; version 1 counts them from 0.
#define MAX_HOPS 14

// Opcodes of BTH: those of UC are those of RC plus 0x20.
const bit<8> RC_WRITE_ONLY = 0x0a;
const bit<8> RC_WRITE_ONLY_IMMEDIATE = 0x0b;
const bit<8> RC_ACKNOWLEDGE = 0x11;
const bit<8> RC_ATOMIC_ACKNOWLEDGE = 0x12;
const bit<8> RC_FETCH_ADD = 0x14;
const bit<8> UC_OFFSET = 0x20;

// AETH syndrome of a NAK for a PSN sequence error.
const bit<8> SYNDROME_SEQUENCE_ERROR = 0x60;

// The constants C_0 to C_3 of the slot hashes.
#define SLOT_C0 32w0x9e3779b9
#define SLOT_C1 32w0x7f4a7c15
#define SLOT_C2 32w0x94d049bb
#define SLOT_C3 32w0xbf58476d

// CRC-32C, reflected.
#define CRC32C_POLYNOMIAL 32w0x82f63b78

// How cells are merged.
#define MERGE_SUM 2w0
#define MERGE_MAX 2w1
#define MERGE_OR 2w2

// Indices into the counters `dropped`: why a report was dropped.
const bit<8> REASON_NONE = 0;
const bit<8> REASON_HEADER = 1;
const bit<8> REASON_CHECKSUM = 2;
const bit<8> REASON_VERSION = 3;
const bit<8> REASON_OPCODE = 4;
const bit<8> REASON_LENGTH = 5;
const bit<8> REASON_FIELD = 6;
const bit<8> REASON_VERSION0_STORE = 7;
const bit<8> REASON_UNKNOWN_STORE = 8;
const bit<8> REASON_WRONG_PRIMITIVE = 9;
const bit<8> REASON_LIST_RANGE = 10;
const bit<8> REASON_LIST_NOT_OWNED = 11;
const bit<8> REASON_REDUNDANCY = 12;
const bit<8> REASON_VALUE_LENGTH = 13;
const bit<8> REASON_HOP = 14;
const bit<8> REASON_PATH_LENGTH = 15;
const bit<8> REASON_COLUMN = 16;
const bit<8> REASON_EPOCH_OLD = 17;
const bit<8> REASON_DUPLICATE_COLUMN = 18;
const bit<8> REASON_SKETCH_REPORTERS = 19;
const bit<8> REASON_NOT_LISTED = 20;
const bit<8> REASON_NO_QUEUE_PAIR = 21;
#define REASONS 32

#endif

/* The programs' records and settings. reporter/src/packet_trace/ reads and writes these layouts. */
#pragma once
#include "helpers.h"

/* Kinds of points; reporter/src/packet_trace/record.rs. */
enum { INGRESS, EGRESS, XDP, DEV_QUEUE, DEV_START_XMIT, NETIF_RECEIVE, KFREE, CONSUME, FUNCTION };

enum {
    FLAG_IPV6 = 1,
    FLAG_FRAGMENT = 1 << 1,
    FLAG_TUNNEL = 1 << 2,
    FLAG_SEGMENTS = 1 << 3,
    FLAG_DROPPED = 1 << 4,
    FLAG_CONSUMED = 1 << 5,
    FLAG_LEAVES = 1 << 6,
    FLAG_PARTIAL = 1 << 7,
    FLAG_TRANSLATED = 1 << 8,
    /* Not a packet but a function call in a process: `reason` is the process, `interface` the thread, `source` its name. */
    FLAG_CALL = 1 << 9,
};

struct record {
    /* From bpf_ktime_get_ns(), which is cheaper than TAI; the reader of the ring adds the difference of the two clocks. */
    u64 time, digest, first, core;
    u64 source[2], destination[2];
    u16 source_port, destination_port;
    u8 protocol, unused;
    u16 flags;
    u32 length, reason, name_space, interface;
    u16 point, cpu, segments, unused2;
};
_Static_assert(sizeof(struct record) == 96, "reporter/src/packet_trace/record.rs reads 96 bytes");

/* Counters of a point, on one processor. */
struct books {
    u64 seen, reported, filtered, sampled_out, ring_full, not_ip, unreadable, flows_full, own;
};

struct flow_at {
    u64 source[2], destination[2];
    u16 source_port, destination_port;
    u8 protocol, unused;
    u16 point;
    u32 name_space, interface;
};

struct flow_count {
    u64 packets, bytes, drops;
};

#define KINDS 16
#define SETTING_FOLLOW 1
/* The filter chooses every packet. */
#define SETTING_ALL 2
/* In place of a point's number: there is no point of this kind. */
#define NO_POINT 0xffff

struct settings {
    /* A packet is sampled if the upper half of its core digest is below this. */
    u64 threshold;
    /* Which of the filter's two tables is in use. */
    u32 table;
    u32 flags;
    /* Kinds of points at which flows are counted, one bit each. */
    u32 count_flows;
    /* With more bytes than this waiting, the ring wakes its reader, which otherwise polls. */
    u32 wake_at;
    /* For each kind, the point that sees the packets of all interfaces; NO_POINT if there is none. */
    u16 point[KINDS];
    /* Where reports go (UDP over IPv4), as numbers; port 0 = nowhere. Packets to and from there are excluded. */
    u32 translator;
    u16 translator_port, unused;
};

/* An interface that has a point, in a table with open addressing. */
struct slot {
    u32 interface, name_space;
    u16 kind, point;
    /* Bytes of the header in front of IP: 14, or 0 where the device has none. */
    u8 link_header;
    u8 used;
    /* Another namespace has an interface of the same index and kind in this table: compare namespaces. */
    u8 shared;
    u8 unused;
};
#define SLOTS 1024
/* Slots of the table per interface: one for each kind that belongs to an interface, and two more. */
#define STRIDE 8
#define PROBES 8
#define POINTS 256

#define TESTS 32
#define TERMS 64

/* The fields of a packet that a filter can test. Addresses are numbers, with the first byte highest. */
#define WORDS 12
struct words {
    u64 word[WORDS];
};

struct test {
    u32 word, unused;
    u64 mask, low, high;
};

struct term {
    u32 ones, zeros;
};

struct table {
    u32 tests, terms;
    struct test test[TESTS];
    struct term term[TERMS];
};

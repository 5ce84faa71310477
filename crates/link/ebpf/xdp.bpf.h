/* What the XDP programs of a link have in common. Types, maps and helper functions are declared here so that the objects
 * depend on the compiler only. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
/* A map is described by the types of a struct's members. */
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) typeof(type) *name

/* linux/bpf.h */
enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_XSKMAP = 17 };
enum { MMAPABLE = 1024, NOEXIST = 1 };
enum { DROP = 1, PASS = 2 };
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const redirect_map)(void *map, u64 key, u64 otherwise) = (void *)51;
static long (*const spin_lock)(void *lock) = (void *)93;
static long (*const spin_unlock)(void *lock) = (void *)94;
static u64 (*const coarse_now_ns)(void) = (void *)160;

/* The context of an XDP program. */
struct xdp_md {
    u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

char terms[] SECTION("license") = "Dual BSD/GPL";

struct ethernet {
    u8 destination[6], source[6];
    u16 type;
} __attribute__((packed));

struct ipv4 {
    u8 version_length, service;
    u16 length, id, fragment;
    u8 time, protocol;
    u16 checksum;
    u32 source, destination;
} __attribute__((packed));

struct ipv6 {
    u32 version_class_label;
    u16 length;
    u8 next, hops;
    u8 source[16], destination[16];
} __attribute__((packed));

struct udp {
    u16 source, destination, length, checksum;
} __attribute__((packed));

#define SWAP16(value) __builtin_bswap16(value)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK16(value) SWAP16(value)
#define NETWORK32(value) __builtin_bswap32(value)
#else
#define NETWORK16(value) (value)
#define NETWORK32(value) (value)
#endif

enum { TYPE_IPV4 = 0x0800, TYPE_IPV6 = 0x86dd, PROTOCOL_UDP = 17, FRAGMENT_OFFSET = 0x1fff, FRAGMENT = 0x3fff };

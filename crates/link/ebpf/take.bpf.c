/* Takes our frames from an interface and leaves every other frame to the kernel. It neither changes nor drops any.
 * `make ebpf` builds take.bpf.o, which is committed; docs/decisions/af-xdp.md explains why.
 * Types, maps and helper functions are declared here so that the object depends on the compiler only. */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define SECTION(name) __attribute__((section(name), used))
/* A map is described by the types of a struct's members. */
#define NUMBER(name, value) int(*name)[value]
#define TYPE(name, type) typeof(type) *name

/* linux/bpf.h */
enum { MAP_ARRAY = 2, MAP_XSKMAP = 17 };
enum { PASS = 2 };
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const redirect_map)(void *map, u64 key, u64 otherwise) = (void *)51;

/* The context of an XDP program. */
struct xdp_md {
    u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

char terms[] SECTION("license") = "Dual BSD/GPL";

/* One socket for each receive queue; the loader sets how many there are. */
struct {
    NUMBER(type, MAP_XSKMAP);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, u32);
} sockets SECTION(".maps");

/* A bit for each of our UDP ports: bit `port % 64` of word `port / 64`. */
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 1024);
    TYPE(key, u32);
    TYPE(value, u64);
} ports SECTION(".maps");

/* Our IPv4 address in network byte order, to recognize fragments without ports; 0 if we have none. */
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, u32);
} address SECTION(".maps");

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

struct udp {
    u16 source, destination, length, checksum;
} __attribute__((packed));

#define SWAP16(value) __builtin_bswap16(value)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK16(value) SWAP16(value)
#else
#define NETWORK16(value) (value)
#endif

enum { TYPE_IPV4 = 0x0800, PROTOCOL_UDP = 17, FRAGMENT_OFFSET = 0x1fff };

static inline __attribute__((always_inline)) int is_ours(struct xdp_md *context)
{
    void *data = (void *)(unsigned long)context->data, *end = (void *)(unsigned long)context->data_end;
    struct ethernet *ethernet = data;
    struct ipv4 *ip = data + sizeof(*ethernet);
    struct udp *udp;
    u32 header, port, word, zero = 0, *ours;
    u64 *bits;

    /* Frames with a VLAN tag have another EtherType, and stay with the kernel. */
    if ((void *)(ip + 1) > end || ethernet->type != NETWORK16(TYPE_IPV4) || ip->protocol != PROTOCOL_UDP)
        return 0;
    if (ip->fragment & NETWORK16(FRAGMENT_OFFSET)) {
        ours = map_lookup(&address, &zero);
        return ours && *ours && *ours == ip->destination;
    }
    header = (ip->version_length & 15) * 4;
    if (header < sizeof(*ip))
        return 0;
    udp = (void *)ip + header;
    if ((void *)(udp + 1) > end)
        return 0;
    port = NETWORK16(udp->destination);
    word = port / 64;
    bits = map_lookup(&ports, &word);
    return bits && *bits >> (port % 64) & 1;
}

SECTION("xdp") int take(struct xdp_md *context)
{
    /* A queue without a socket leaves its frames to the kernel. */
    return is_ours(context) ? redirect_map(&sockets, context->rx_queue_index, PASS) : PASS;
}

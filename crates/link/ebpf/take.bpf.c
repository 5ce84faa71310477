/* Takes our frames from an interface and leaves every other frame to the kernel. It neither changes nor drops any.
 * `make ebpf` builds take.bpf.o, which is committed; docs/decisions/af-xdp.md explains why. */

#include "xdp.bpf.h"

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

/* Whether frames over IPv6 are taken. */
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, u32);
} takes_ipv6 SECTION(".maps");

static inline __attribute__((always_inline)) int is_our_port(struct udp *udp, void *end)
{
    u32 port, word;
    u64 *bits;

    if ((void *)(udp + 1) > end)
        return 0;
    port = NETWORK16(udp->destination);
    word = port / 64;
    bits = map_lookup(&ports, &word);
    return bits && *bits >> (port % 64) & 1;
}

/* Extension headers, and so fragments, stay with the kernel. */
static inline __attribute__((always_inline)) int is_ours_over_ipv6(struct ipv6 *ip, void *end)
{
    u32 zero = 0, *taken = map_lookup(&takes_ipv6, &zero);

    return taken && *taken && (void *)(ip + 1) <= end && ip->next == PROTOCOL_UDP && is_our_port((void *)(ip + 1), end);
}

static inline __attribute__((always_inline)) int is_ours(struct xdp_md *context)
{
    void *data = (void *)(unsigned long)context->data, *end = (void *)(unsigned long)context->data_end;
    struct ethernet *ethernet = data;
    struct ipv4 *ip = data + sizeof(*ethernet);
    u32 header, zero = 0, *ours;

    /* Frames with a VLAN tag have another EtherType, and stay with the kernel. */
    if ((void *)(ip + 1) > end)
        return 0;
    if (ethernet->type == NETWORK16(TYPE_IPV6))
        return is_ours_over_ipv6((void *)ip, end);
    if (ethernet->type != NETWORK16(TYPE_IPV4) || ip->protocol != PROTOCOL_UDP)
        return 0;
    if (ip->fragment & NETWORK16(FRAGMENT_OFFSET)) {
        ours = map_lookup(&address, &zero);
        return ours && *ours && *ours == ip->destination;
    }
    header = (ip->version_length & 15) * 4;
    if (header < sizeof(*ip))
        return 0;
    return is_our_port((void *)ip + header, end);
}

SECTION("xdp") int take(struct xdp_md *context)
{
    /* A queue without a socket leaves its frames to the kernel. */
    return is_ours(context) ? redirect_map(&sockets, context->rx_queue_index, PASS) : PASS;
}

/* Which datagrams a listener of ours takes from an interface: plain UDP to an address that the interface had when its link was
 * opened. Fragments, IP options, tags and whatever else stay with the kernel, whose socket at the same port then has them. */

#include "xdp.bpf.h"

/* As in src/xdp/program.rs. */
#define QUEUES 64
#define LISTENERS 32

/* The socket of listener `n` on queue `q` is number `n * QUEUES + q`. */
struct {
    NUMBER(type, MAP_XSKMAP);
    NUMBER(max_entries, QUEUES * LISTENERS);
    TYPE(key, u32);
    TYPE(value, u32);
} sockets SECTION(".maps");

/* An address and port in network byte order. */
struct place {
    u32 address;
    u16 port, zero;
};

/* The number of the listener at each place; the loader sets how many there are. */
struct {
    NUMBER(type, MAP_HASH);
    NUMBER(max_entries, 1);
    TYPE(key, struct place);
    TYPE(value, u32);
} places SECTION(".maps");

/* The interface's Ethernet address, in 6 of 8 bytes. */
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, u64);
} own SECTION(".maps");

/* The number of the listener that takes a frame; 0 if none does. */
static inline u32 *find_listener(struct xdp_md *context)
{
    void *data = (void *)(unsigned long)context->data, *end = (void *)(unsigned long)context->data_end;
    struct ethernet *ethernet = data;
    struct ipv4 *ip = data + sizeof(*ethernet);
    struct udp *udp = (void *)(ip + 1);
    struct place place = {};
    u32 zero = 0, *listener;
    u8 *mac, from;

    if ((void *)(udp + 1) > end || ethernet->type != NETWORK16(TYPE_IPV4) || ip->version_length != 0x45
        || ip->protocol != PROTOCOL_UDP || ip->fragment & NETWORK16(FRAGMENT) || context->rx_queue_index >= QUEUES)
        return 0;
    place.address = ip->destination;
    place.port = udp->destination;
    listener = map_lookup(&places, &place);
    if (!listener)
        return 0;
    /* Sources that the kernel takes from no interface: this network, loopback, groups and reserved ones. */
    from = *(u8 *)&ip->source;
    if (from == 0 || from == 127 || from >= 224)
        return 0;
    /* An interface in promiscuous mode sees frames to others, too. */
    mac = map_lookup(&own, &zero);
    if (!mac || __builtin_memcmp(ethernet->destination, mac, sizeof(ethernet->destination)))
        return 0;
    return listener;
}

/* Which datagrams a listener of ours takes from an interface: plain UDP to an address that the interface had when its link was
 * opened. Fragments, IP options, tags and everything else stay with the kernel, whose socket at the same port then gets them. */

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

/* An interface: its Ethernet address, its first IPv4 address, and the port of each of its listeners; in network byte order. */
struct interface {
    u8 mac[6];
    u16 listeners;
    u32 address;
    u16 ports[LISTENERS];
};
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct interface);
} own SECTION(".maps");

/* Its other IPv4 addresses; the loader sets how many there are. */
struct {
    NUMBER(type, MAP_HASH);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, u32);
} addresses SECTION(".maps");

/* No listener. */
#define NOBODY (~0u)

/* The number of the listener that takes a frame; NOBODY if none does. Needs no hash for the first address: finding a listener in
 * a hash map would take most of this program's time. */
static inline u32 find_listener(struct xdp_md *context)
{
    void *data = (void *)(unsigned long)context->data, *end = (void *)(unsigned long)context->data_end;
    struct ethernet *ethernet = data;
    struct ipv4 *ip = data + sizeof(*ethernet);
    struct udp *udp = (void *)(ip + 1);
    struct interface *interface;
    u32 zero = 0, listener, address;
    u8 from;

    if ((void *)(udp + 1) > end || ethernet->type != NETWORK16(TYPE_IPV4) || ip->version_length != 0x45
        || ip->protocol != PROTOCOL_UDP || ip->fragment & NETWORK16(FRAGMENT) || context->rx_queue_index >= QUEUES)
        return NOBODY;
    interface = map_lookup(&own, &zero);
    if (!interface)
        return NOBODY;
    for (listener = 0; listener < LISTENERS; listener++) {
        if (listener >= interface->listeners)
            return NOBODY;
        if (interface->ports[listener] == udp->destination)
            break;
    }
    if (listener == LISTENERS)
        return NOBODY;
    address = ip->destination;
    if (address != interface->address && !map_lookup(&addresses, &address))
        return NOBODY;
    /* Sources that the kernel takes from no interface: this network, loopback, groups and reserved ones. */
    from = *(u8 *)&ip->source;
    if (from == 0 || from == 127 || from >= 224)
        return NOBODY;
    /* An interface in promiscuous mode sees frames to others, too. */
    if (__builtin_memcmp(ethernet->destination, interface->mac, sizeof(ethernet->destination)))
        return NOBODY;
    return listener;
}

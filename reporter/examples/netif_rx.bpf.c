/* A custom program for `dta-reporter trace --program netif_rx.o`: reports packets that a driver hands to the processor's backlog, at a
 * tracepoint (netif_rx) for which there is no built-in point. docs/host-tracing.md has the record's layout. To build it:
 *
 *     clang-19 -target bpf -mcpu=v3 -O2 -g -I reporter/ebpf -c reporter/examples/netif_rx.bpf.c -o netif_rx.o
 *
 * The headers parse a packet down to its innermost IP header and compute its digest, by which other points know it, too. */
#include "packet.h"

char licence[] SECTION("license") = "Dual BSD/GPL";

/* Records go here. The map must have this name. */
struct {
    NUMBER(type, MAP_RINGBUF);
    NUMBER(max_entries, 1048576);
} ring SECTION(".maps");

struct work {
    struct scratch scratch;
    struct packet packet;
};

struct {
    NUMBER(type, MAP_PERCPU_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct work);
} works SECTION(".maps");

/* The name of the section says where to attach. */
SECTION("tp_btf/netif_rx") int received(u64 *arguments)
{
    struct sk_buff *skb = (struct sk_buff *)arguments[0];
    struct net_device *device = skb->dev;
    u32 zero = 0, linear = skb->len - skb->data_len;
    struct work *work = map_lookup(&works, &zero);
    struct source from = {};
    struct packet *packet;
    struct record *record;
    u64 core;

    if (!device || !work || !linear)
        return 0;
    packet = &work->packet;
    /* The Ethernet header was removed earlier. */
    from.end = skb->len;
    from.have = copied(linear);
    if (probe_read(work->scratch.bytes, from.have, skb->data))
        return 0;
    if (read_packet(&work->scratch, &from, 0, packet))
        return 0;
    record = ring_reserve(&ring, sizeof(*record), 0);
    if (!record)
        return 0;
    __builtin_memset(record, 0, sizeof(*record));
    record->time = time_ns();
    core = core_of(&packet->identity);
    for (int i = 0; i < 2; i++) {
        record->source[i] = __builtin_bswap64(packet->words.word[i]);
        record->destination[i] = __builtin_bswap64(packet->words.word[2 + i]);
    }
    record->digest = full_of(core, record->source, record->destination, packet->identity.source_port, packet->identity.destination_port);
    record->first = record->digest;
    record->core = finish(core);
    record->source_port = packet->source_port;
    record->destination_port = packet->destination_port;
    record->protocol = packet->identity.protocol;
    record->flags = packet->flags;
    record->length = packet->length;
    record->interface = device->ifindex;
    if (device->nd_net.net)
        record->name_space = device->nd_net.net->ns.inum;
    record->cpu = processor();
    record->segments = 1;
    ring_submit(record, RING_NO_WAKEUP);
    return 0;
}

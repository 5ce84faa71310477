/* Programs that report each packet at the points that it passes. None of them changes, delays or drops a packet.
 * `make ebpf` builds trace.bpf.o, which is committed; docs/host-tracing.md has the overview. */
#include "helpers.h"
#include "kernel.h"
#include "matching.h"
#include "packet.h"
#include "record.h"

char licence_of_programs[] SECTION("license") = "Dual BSD/GPL";

struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct settings);
} settings SECTION(".maps");

/* Two tables for the filter: one is written while the other is in use. */
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 2);
    TYPE(key, u32);
    TYPE(value, struct table);
} filter SECTION(".maps");

struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, SLOTS);
    TYPE(key, u32);
    TYPE(value, struct slot);
} slots SECTION(".maps");

struct {
    NUMBER(type, MAP_PERCPU_ARRAY);
    NUMBER(max_entries, POINTS);
    TYPE(key, u32);
    TYPE(value, struct books);
} books SECTION(".maps");

struct {
    NUMBER(type, MAP_PERCPU_HASH);
    NUMBER(max_entries, 16384);
    TYPE(key, struct flow_at);
    TYPE(value, struct flow_count);
} flows SECTION(".maps");

/* A buffer's packet as this host saw it first. A digest of 0, which no packet has, marks one that is excluded as our own. */
struct first {
    u64 digest, core, time;
};

struct {
    NUMBER(type, MAP_LRU_HASH);
    NUMBER(max_entries, 65536);
    TYPE(key, u64);
    TYPE(value, struct first);
} firsts SECTION(".maps");

struct {
    NUMBER(type, MAP_RINGBUF);
    NUMBER(max_entries, 4194304);
} ring SECTION(".maps");

/* A packet's first bytes and what was parsed from them, per processor and kind of point: on one processor, a program can interrupt others but never itself. */
struct work {
    struct scratch scratch;
    struct packet packet;
};

struct {
    NUMBER(type, MAP_PERCPU_ARRAY);
    NUMBER(max_entries, KINDS);
    TYPE(key, u32);
    TYPE(value, struct work);
} scratches SECTION(".maps");

/* An entry of a buffer older than this belongs to another packet. */
#define FIRST_NS 10000000000ull

/* Where a packet was seen. */
struct place {
    u64 buffer;
    u32 name_space, interface, reason;
    u16 point, kind, flags, segments;
};

/* Half of an address, in the packet's byte order. */
#define ADDRESS(packet, half) __builtin_bswap64((packet)->words.word[half])
/* The second half of ::ffff:a.b.c.d, from where a.b.c.d stands. */
#define PLAIN_ADDRESS(frame, at) ((u64)U32(frame, at) << 32 | 0xffff0000ull)

#define ROCE 4791

/* Whether a datagram goes to or comes from the translator: reports, NACKs, or RoCEv2 in either direction. */
INLINE int is_ours(const struct settings *set, u32 source, u32 destination, u16 source_port, u16 destination_port)
{
    if (destination == set->translator && (destination_port == set->translator_port || destination_port == ROCE))
        return 1;
    return source == set->translator && (source_port == set->translator_port || destination_port == ROCE);
}

/* Whether a packet is caused by reports. Reporting it would make reports about reports, without end. */
INLINE int is_own(const struct settings *set, const struct packet *packet)
{
    const u64 *quoted = packet->identity.payload;

    if (!set->translator_port || packet->flags & FLAG_IPV6)
        return 0;
    if (packet->identity.protocol == 17)
        return is_ours(set, packet->words.word[1], packet->words.word[3], packet->source_port, packet->destination_port);
    if (packet->identity.protocol != 1)
        return 0;
    /* An ICMP error quotes the first bytes of a datagram: IPv4 without options. */
    switch (packet->identity.sequence >> 24) {
    case 3:
    case 4:
    case 5:
    case 11:
    case 12:
        return (u8)quoted[0] == 0x45 && (u8)(quoted[1] >> 8) == 17
               && is_ours(set, __builtin_bswap32(quoted[1] >> 32), __builtin_bswap32(quoted[2]), __builtin_bswap16(quoted[2] >> 32),
                          __builtin_bswap16(quoted[2] >> 48));
    default:
        return 0;
    }
}

INLINE void count_flow(struct books *book, const struct packet *packet, const struct place *place)
{
    struct flow_at at = {
        .source = { ADDRESS(packet, 0), ADDRESS(packet, 1) },
        .destination = { ADDRESS(packet, 2), ADDRESS(packet, 3) },
        .source_port = packet->source_port,
        .destination_port = packet->destination_port,
        .protocol = packet->identity.protocol,
        .point = place->point,
        .name_space = place->name_space,
        .interface = place->interface,
    };
    struct flow_count *count = map_lookup(&flows, &at);

    if (!count) {
        struct flow_count none = {};

        map_update(&flows, &at, &none, UPDATE_NOEXIST);
        count = map_lookup(&flows, &at);
        if (!count) {
            book->flows_full++;
            return;
        }
    }
    count->packets += place->segments;
    count->bytes += packet->length;
    if (place->flags & FLAG_DROPPED)
        count->drops += place->segments;
}

/* What a record says about the packet itself. Addresses are in the packet's byte order. */
struct observation {
    u64 source[2], destination[2];
    /* Its digest, core and time, in the form that `firsts` stores: the stack has no room for a copy. */
    struct first is;
    u64 first;
    u32 length;
    u16 source_port, destination_port, flags;
    u8 protocol;
};

/* Submits a record. Checks how full the ring is for only one record in sixteen: the check takes time, and the ring has room for
 * many more. */
INLINE void submit(struct record *record, struct books *book, const struct settings *set)
{
    if (book->reported++ % 16 == 0 && ring_query(&ring, RING_AVAILABLE) >= set->wake_at)
        ring_submit(record, RING_FORCE_WAKEUP);
    else
        ring_submit(record, RING_NO_WAKEUP);
}

/* Puts a record into the ring. A time of 0 means that the clock has not been read yet. */
INLINE void hand_up(const struct observation *of, const struct place *place, struct books *book, const struct settings *set)
{
    struct record *record = ring_reserve(&ring, sizeof(*record), 0);

    if (!record) {
        book->ring_full++;
        return;
    }
    record->time = of->is.time ? of->is.time : time_ns();
    record->digest = of->is.digest;
    record->first = of->first;
    record->core = of->is.core;
    record->source[0] = of->source[0];
    record->source[1] = of->source[1];
    record->destination[0] = of->destination[0];
    record->destination[1] = of->destination[1];
    record->source_port = of->source_port;
    record->destination_port = of->destination_port;
    record->protocol = of->protocol;
    record->unused = 0;
    record->flags = of->flags;
    record->length = of->length;
    record->reason = place->reason;
    record->name_space = place->name_space;
    record->interface = place->interface;
    record->point = place->point;
    record->cpu = processor();
    record->segments = place->segments;
    record->unused2 = 0;
    submit(record, book, set);
}

/* Counts, filters and reports a parsed packet. `state` is its core_of(). */
ONCE int report_parsed(struct packet *packet, struct place *place, u64 state)
{
    u32 zero = 0, point, index;
    struct settings *set;
    struct books *book;
    struct first *first = 0;
    struct table *table;
    struct observation observed;
    /* The key must be on the stack: Linux 6.1 accepts none through a pointer argument. */
    u64 core = finish(state), now = 0, buffer;
    u16 flags;
    int follow;

    if (!packet || !place)
        return 0;
    point = place->point;
    buffer = place->buffer;
    set = map_lookup(&settings, &zero);
    book = map_lookup(&books, &point);
    if (!set || !book)
        return 0;
    book->seen++;
    flags = packet->flags | place->flags;
    if (place->segments > 1)
        flags |= FLAG_SEGMENTS;
    follow = (set->flags & SETTING_FOLLOW) && buffer;
    if (follow) {
        now = time_ns();
        first = map_lookup(&firsts, &buffer);
        if (first && (first->core != core || now - first->time > FIRST_NS))
            first = 0;
    }
    if (first ? !first->digest : is_own(set, packet)) {
        book->own++;
        if (follow && !first) {
            observed.is = (struct first){ .core = core, .time = now };
            map_update(&firsts, &buffer, &observed.is, UPDATE_ANY);
        }
        return 0;
    }
    /* A packet that matched before its addresses were translated (NAT) still matches. */
    if (!first && !(set->flags & SETTING_ALL)) {
        index = set->table & 1;
        table = map_lookup(&filter, &index);
        if (!table)
            return 0;
        packet->words.word[10] = (packet->words.word[10] & ~0xffffull) | flags;
        packet->words.word[11] = (u64)place->name_space << 32 | place->interface;
        if (!chooses(table, &packet->words)) {
            book->filtered++;
            return 0;
        }
    }
    if (set->count_flows >> (place->kind & (KINDS - 1)) & 1)
        count_flow(book, packet, place);
    if ((core >> 32) >= set->threshold) {
        book->sampled_out++;
        return 0;
    }
    observed.source[0] = ADDRESS(packet, 0);
    observed.source[1] = ADDRESS(packet, 1);
    observed.destination[0] = ADDRESS(packet, 2);
    observed.destination[1] = ADDRESS(packet, 3);
    observed.is.digest = full_of(state, observed.source, observed.destination, packet->identity.source_port, packet->identity.destination_port);
    observed.is.core = core;
    observed.is.time = now;
    observed.first = observed.is.digest;
    if (first && first->digest != observed.is.digest) {
        observed.first = first->digest;
        flags |= FLAG_TRANSLATED;
    }
    if (follow && !first)
        map_update(&firsts, &buffer, &observed.is, UPDATE_ANY);
    observed.source_port = packet->source_port;
    observed.destination_port = packet->destination_port;
    observed.protocol = packet->identity.protocol;
    observed.flags = flags;
    observed.length = packet->length;
    hand_up(&observed, place, book, set);
    return 0;
}

/* As report_parsed(); `result` says whether the packet could be parsed. */
ONCE int report(struct packet *packet, struct place *place, int result)
{
    struct books *book;
    u32 point;

    if (!packet || !place)
        return 0;
    if (!result)
        return report_parsed(packet, place, core_of(&packet->identity));
    point = place->point;
    book = map_lookup(&books, &point);
    if (!book)
        return 0;
    book->seen++;
    if (result == NOT_IP)
        book->not_ip++;
    else
        book->unreadable++;
    return 0;
}

/* Handles a plain packet at an interface. If it need not be filtered, counted or followed, only reported or excluded, nothing but
 * the record is written. */
INLINE int at_interface(const u8 *frame, const u8 *end, u32 length, u16 vlan, struct place *place, const struct settings *set)
{
    struct plain plain;
    struct work *work;
    u32 kind = place->kind;
    u64 state;

    if (!read_plain(frame, end, length, &plain))
        return 0;
    state = core_of(&plain.identity);
    if ((set->flags & (SETTING_FOLLOW | SETTING_ALL)) == SETTING_ALL && !(set->count_flows >> (kind & (KINDS - 1)) & 1)) {
        u32 point = place->point;
        struct books *book = map_lookup(&books, &point);
        u64 core = finish(state);
        struct observation observed = {
            .source = { 0, PLAIN_ADDRESS(frame, 26) },
            .destination = { 0, PLAIN_ADDRESS(frame, 30) },
            .is.core = core,
            .length = length - 14,
            .source_port = plain.identity.source_port,
            .destination_port = plain.identity.destination_port,
            .flags = place->flags,
            .protocol = plain.identity.protocol,
        };

        if (!book)
            return 1;
        book->seen++;
        if (set->translator_port && plain.identity.protocol == 17
            && is_ours(set, BE32(frame, 26), BE32(frame, 30), plain.identity.source_port, plain.identity.destination_port)) {
            book->own++;
            return 1;
        }
        if ((core >> 32) >= set->threshold) {
            book->sampled_out++;
            return 1;
        }
        if (place->segments > 1)
            observed.flags |= FLAG_SEGMENTS;
        observed.is.digest = full_of(state, observed.source, observed.destination, observed.source_port, observed.destination_port);
        observed.first = observed.is.digest;
        hand_up(&observed, place, book, set);
        return 1;
    }
    work = map_lookup(&scratches, &kind);
    if (!work)
        return 1;
    fill(frame, length, vlan, &plain, &work->packet);
    report_parsed(&work->packet, place, state);
    return 1;
}

/* The slot of an interface. */
INLINE struct slot *find(u32 interface, u16 kind, void *context)
{
    u32 begin = interface * STRIDE + kind, name_space = 0;

    for (u32 i = 0; i < PROBES; i++) {
        u32 index = (begin + i) & (SLOTS - 1);
        struct slot *slot = map_lookup(&slots, &index);

        if (!slot || !slot->used)
            return 0;
        if (slot->interface != interface || slot->kind != kind)
            continue;
        if (!slot->shared)
            return slot;
        if (!name_space) {
            struct net_device *device = 0;
            struct net *net = 0;

            /* The kernel's own struct behind the context. */
            if (kind == XDP) {
                struct xdp_rxq_info *queue = 0;

                READ(queue, ((struct xdp_buff *)context)->rxq);
                READ(device, queue->dev);
            } else {
                READ(device, ((struct sk_buff *)context)->dev);
            }
            READ(net, device->nd_net.net);
            READ(name_space, net->ns.inum);
        }
        if (slot->name_space == name_space)
            return slot;
    }
    return 0;
}

/* Any other packet: its first bytes are copied. */
ONCE int far(struct __sk_buff *context, struct place *place, u32 kind, u32 link_header)
{
    struct work *work = map_lookup(&scratches, &kind);
    struct source from = {};
    int result = UNREADABLE;

    if (!context || !place || !work)
        return 0;
    from.end = context->len;
    from.have = copied(from.end);
    from.ethernet = link_header != 0;
    if (!skb_load(context, 0, work->scratch.bytes, from.have))
        result = read_packet(&work->scratch, &from, context->vlan_present ? context->vlan_tci & 0xfff : 0, &work->packet);
    return report(&work->packet, place, result);
}

INLINE void classifier(struct __sk_buff *context, u16 kind)
{
    struct slot *slot = find(context->ifindex, kind, context);
    u32 zero = 0;
    struct settings *set = map_lookup(&settings, &zero);
    struct place place = {};

    if (!slot || !set)
        return;
    place.point = slot->point;
    place.kind = kind;
    place.name_space = slot->name_space;
    place.interface = slot->interface;
    place.flags = kind == EGRESS ? FLAG_LEAVES : 0;
    place.segments = context->gso_segs > 1 ? context->gso_segs : 1;
    if (set->flags & SETTING_FOLLOW) {
        unsigned char *head = 0;

        READ(head, ((struct sk_buff *)context)->head);
        place.buffer = (u64)head;
    }
    if (slot->link_header
        && at_interface((const u8 *)(u64)context->data, (const u8 *)(u64)context->data_end, context->len,
                        context->vlan_present ? context->vlan_tci & 0xfff : 0, &place, set))
        return;
    far(context, &place, kind, slot->link_header);
}

#define NEXT -1

SECTION("classifier") int dta_ingress(struct __sk_buff *context)
{
    classifier(context, INGRESS);
    return NEXT;
}

SECTION("classifier") int dta_egress(struct __sk_buff *context)
{
    classifier(context, EGRESS);
    return NEXT;
}

/* The baseline of the benchmarks. */
SECTION("classifier") int dta_empty(struct __sk_buff *context)
{
    return NEXT;
}

#define XDP_PASS 2

SECTION("xdp") int dta_xdp(struct xdp_md *context)
{
    struct slot *slot = find(context->ingress_ifindex, XDP, context);
    u32 index = XDP;
    struct work *work = map_lookup(&scratches, &index);
    struct place place = {};
    struct source from = {};
    int result = UNREADABLE;

    if (!slot || !work)
        return XDP_PASS;
    from.end = xdp_length(context);
    from.have = copied(from.end);
    from.ethernet = 1;
    place.point = slot->point;
    place.kind = XDP;
    place.name_space = slot->name_space;
    place.interface = slot->interface;
    place.segments = 1;
    if (!xdp_load(context, 0, work->scratch.bytes, from.have))
        result = read_packet(&work->scratch, &from, 0, &work->packet);
    report(&work->packet, &place, result);
    return XDP_PASS;
}

/* What a program at a tracepoint or function needs from a buffer, read once. */
struct buffer {
    u64 head, data;
    u32 length, paged, end;
    u32 name_space, interface;
    u16 network, protocol, vlan, device_type;
};

INLINE void read_buffer_direct(struct sk_buff *skb, struct buffer *to)
{
    struct net_device *device = skb->dev;

    to->head = (u64)skb->head;
    to->data = (u64)skb->data;
    to->length = skb->len;
    to->paged = skb->data_len;
    to->end = skb->end;
    to->network = skb->network_header;
    to->protocol = skb->protocol;
    to->vlan = skb->vlan_tci;
    if (device) {
        to->interface = device->ifindex;
        to->device_type = device->type;
        if (device->nd_net.net)
            to->name_space = device->nd_net.net->ns.inum;
    }
}

INLINE void read_buffer_by_address(struct sk_buff *skb, struct buffer *to)
{
    struct net_device *device = 0;
    struct net *net = 0;
    unsigned char *pointer = 0;

    READ(pointer, skb->head);
    to->head = (u64)pointer;
    READ(pointer, skb->data);
    to->data = (u64)pointer;
    READ(to->length, skb->len);
    READ(to->paged, skb->data_len);
    READ(to->end, skb->end);
    READ(to->network, skb->network_header);
    READ(to->protocol, skb->protocol);
    READ(to->vlan, skb->vlan_tci);
    READ(device, skb->dev);
    if (device) {
        READ(to->interface, device->ifindex);
        READ(to->device_type, device->type);
        READ(net, device->nd_net.net);
        READ(to->name_space, net->ns.inum);
    }
}

/* Namespace numbers begin here; a lower one means that what was read was no device. */
#define FIRST_NAMESPACE 0xe0000000u
#define LOOPBACK 772

/* The number of the packet's point: that of its interface, else that of all interfaces. */
ONCE u32 point_of(struct buffer *buffer, u32 kind)
{
    u32 zero = 0, begin;
    struct settings *set = map_lookup(&settings, &zero);

    if (!set || !buffer || kind >= KINDS)
        return NO_POINT;
    if (kind < DEV_QUEUE || kind > NETIF_RECEIVE)
        return set->point[kind];
    begin = buffer->interface * STRIDE + kind;
    for (u32 i = 0; i < PROBES; i++) {
        u32 index = (begin + i) & (SLOTS - 1);
        struct slot *slot = map_lookup(&slots, &index);

        if (!slot || !slot->used)
            break;
        if (slot->interface == buffer->interface && slot->kind == kind && slot->name_space == buffer->name_space)
            return slot->point;
    }
    return set->point[kind];
}

/* The length of the VLAN tag at a place in a buffer that says it has one: the kernel removes the outer of two tags, and in a packet that
 * came in, the inner one lies where the network header begins. In a packet that leaves, the IP header lies there. */
ONCE u32 tag_length(struct buffer *buffer, u32 at)
{
    u8 bytes[5] = {};
    u16 ethertype;

    if (!buffer || probe_read(bytes, sizeof(bytes), (void *)(buffer->head + at)))
        return 0;
    ethertype = BE16(bytes, 2);
    return is_ip(ethertype) && bytes[4] >> 4 == (ethertype == 0x0800 ? 4 : 6) ? 4 : 0;
}

ONCE int at_buffer(struct buffer *buffer, u32 kind, u32 reason)
{
    u32 data, at, linear, point;
    struct work *work = map_lookup(&scratches, &kind);
    struct skb_shared_info *shared;
    struct place place = {};
    struct source from = {};
    u16 segments = 0;
    int result = UNREADABLE;

    if (!work || !buffer || kind >= KINDS)
        return 0;
    data = buffer->data - buffer->head;
    shared = (void *)(buffer->head + buffer->end);
    point = point_of(buffer, kind);
    if (point == NO_POINT)
        return 0;
    place.point = point;
    place.kind = kind;
    place.reason = reason;
    place.buffer = buffer->head;
    if (buffer->name_space >= FIRST_NAMESPACE) {
        place.name_space = buffer->name_space;
        place.interface = buffer->interface;
    }
    /* Offset of the packet in the buffer. */
    at = data;
    if (kind == DEV_QUEUE || kind == DEV_START_XMIT) {
        from.ethernet = buffer->device_type == 1 || buffer->device_type == LOOPBACK;
        place.flags = FLAG_LEAVES;
    } else if (kind == NETIF_RECEIVE) {
        /* The frame has a VLAN tag: its last 4 bytes are where the Ethernet header was removed. */
        if (buffer->protocol == 0x0081 || buffer->protocol == 0xa888) {
            at -= 14;
            from.ethernet = 1;
        }
    } else {
        at = buffer->network;
        if (is_vlan(__builtin_bswap16(buffer->protocol)))
            at += tag_length(buffer, at);
        place.flags = kind == KFREE ? FLAG_DROPPED : kind == CONSUME ? FLAG_CONSUMED : 0;
    }
    linear = data + buffer->length - buffer->paged;
    if (kind >= KFREE && !is_ip(__builtin_bswap16(buffer->protocol)) && !is_vlan(__builtin_bswap16(buffer->protocol))) {
        result = NOT_IP;
    } else if (at < linear) {
        from.end = data + buffer->length - at;
        from.have = copied(linear - at);
        if (!probe_read(work->scratch.bytes, from.have, (void *)(buffer->head + at)))
            result = read_packet(&work->scratch, &from, buffer->vlan & 0xfff, &work->packet);
    }
    if (!result)
        READ(segments, shared->gso_segs);
    place.segments = segments > 1 ? segments : 1;
    return report(&work->packet, &place, result);
}

#define TRACEPOINT(event, kind, reason)                                                                                        \
    SECTION("tp_btf/" #event) int dta_##event(u64 *arguments)                                                                  \
    {                                                                                                                          \
        struct buffer buffer = {};                                                                                             \
                                                                                                                               \
        read_buffer_direct((struct sk_buff *)arguments[0], &buffer);                                                           \
        at_buffer(&buffer, kind, reason);                                                                                      \
        return 0;                                                                                                              \
    }

TRACEPOINT(net_dev_queue, DEV_QUEUE, 0)
TRACEPOINT(net_dev_start_xmit, DEV_START_XMIT, 0)
TRACEPOINT(netif_receive_skb, NETIF_RECEIVE, 0)
TRACEPOINT(kfree_skb, KFREE, (u32)arguments[2])
TRACEPOINT(consume_skb, CONSUME, 0)

/* Up to four functions whose first argument is a buffer. */
#define FENTRY(n)                                                                                                              \
    SECTION("fentry") int dta_fentry_##n(u64 *arguments)                                                                       \
    {                                                                                                                          \
        struct buffer buffer = {};                                                                                             \
                                                                                                                               \
        read_buffer_by_address((struct sk_buff *)arguments[0], &buffer);                                                       \
        at_buffer(&buffer, FUNCTION + n, 0);                                                                                   \
        return 0;                                                                                                              \
    }

FENTRY(0)
FENTRY(1)
FENTRY(2)
FENTRY(3)

/* The registers of x86-64 as a kprobe sees them; only the one with the first argument is named. */
struct registers {
    u64 before[14], first_argument;
};

#define KPROBE(n)                                                                                                              \
    SECTION("kprobe") int dta_kprobe_##n(struct registers *registers)                                                          \
    {                                                                                                                          \
        struct buffer buffer = {};                                                                                             \
                                                                                                                               \
        read_buffer_by_address((struct sk_buff *)registers->first_argument, &buffer);                                          \
        at_buffer(&buffer, FUNCTION + 4 + n, 0);                                                                               \
        return 0;                                                                                                              \
    }

KPROBE(0)
KPROBE(1)
KPROBE(2)
KPROBE(3)

/* A function of a program or library. There is no packet; the record says which thread called it. The attachment's cookie is the number
 * of the point, so one program serves all of them. */
SECTION("uprobe") int dta_uprobe(struct registers *registers)
{
    u32 zero = 0, point = cookie_of(registers);
    struct settings *set = map_lookup(&settings, &zero);
    struct books *book = map_lookup(&books, &point);
    struct record *record;
    u64 thread;

    if (!set || !book)
        return 0;
    book->seen++;
    record = ring_reserve(&ring, sizeof(*record), 0);
    if (!record) {
        book->ring_full++;
        return 0;
    }
    __builtin_memset(record, 0, sizeof(*record));
    record->time = time_ns();
    thread = process_and_thread();
    record->reason = thread >> 32;
    record->interface = thread;
    name_of_thread(record->source, sizeof(record->source));
    record->flags = FLAG_CALL;
    record->point = point;
    record->cpu = processor();
    submit(record, book, set);
    return 0;
}

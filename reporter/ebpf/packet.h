/* Reads a packet down to its innermost IP header: twin of reporter/tests/twin/packet.rs, where the rules are explained. */
#pragma once
#include "digest.h"
#include "kernel.h"
#include "record.h"

#define LAYERS 3
#define EXTENSIONS 4
/* How many bytes of a packet are parsed. They are copied once: a helper call per header costs several times as much. */
#define SCRATCH 256

struct scratch {
    u8 bytes[SCRATCH];
};

/* The scratch: the packet from its first byte on. */
struct source {
    /* Number of bytes copied. */
    u32 have;
    /* End of the frame, which may lie beyond them. */
    u32 end;
    /* Whether it begins with an Ethernet header. */
    u32 ethernet;
};

struct packet {
    struct identity identity;
    struct words words;
    u32 length;
    u16 flags;
    u16 source_port, destination_port;
};

enum { OK = 0, NOT_IP = -1, UNREADABLE = -2 };

/* How many bytes of a packet to copy. The verifier must see 1 to SCRATCH, even if the compiler can prove it. */
INLINE u32 copied(u32 length)
{
    if (length > SCRATCH)
        length = SCRATCH;
    asm volatile("" : "+r"(length));
    return ((length - 1) & (SCRATCH - 1)) + 1;
}

/* Numbers at any offset in the scratch: unaligned reads are fine. */
#define U32(bytes, at) (*(const u32 *)((bytes) + (at)))
#define U64(bytes, at) (*(const u64 *)((bytes) + (at)))
#define BE16(bytes, at) __builtin_bswap16(*(const u16 *)((bytes) + (at)))
#define BE32(bytes, at) __builtin_bswap32(U32(bytes, at))

/* `length` bytes at `at`; null if they are not all there. */
INLINE const u8 *part(const struct scratch *scratch, const struct source *from, u32 at, u32 length)
{
    /* The verifier must see the bound of the offset. */
    asm volatile("" : "+r"(at));
    if (at > SCRATCH - length)
        return 0;
    if (at + length > from->have)
        return 0;
    return scratch->bytes + at;
}

INLINE int is_ip(u16 ethertype)
{
    return ethertype == 0x0800 || ethertype == 0x86dd;
}

INLINE int is_vlan(u16 ethertype)
{
    return ethertype == 0x8100 || ethertype == 0x88a8 || ethertype == 0x9100;
}

/* Moves `at` past an Ethernet header and at most two VLAN tags. */
INLINE int ethernet(const struct scratch *scratch, const struct source *from, u32 *at, u16 *vlan)
{
    const u8 *header = part(scratch, from, *at, 14);
    u16 ethertype;

    if (!header)
        return UNREADABLE;
    ethertype = BE16(header, 12);
    *at += 14;
    for (int tag = 0; tag < 2; tag++) {
        if (!is_vlan(ethertype))
            break;
        header = part(scratch, from, *at, 4);
        if (!header)
            return UNREADABLE;
        if (tag == 0)
            *vlan = BE16(header, 0) & 0xfff;
        ethertype = BE16(header, 2);
        *at += 4;
    }
    return is_ip(ethertype) ? OK : NOT_IP;
}

/* Where an inner packet begins. */
struct inner {
    u32 at;
    u8 found, ethernet;
};

/* VXLAN or Geneve. */
INLINE int is_tunnel(u16 port)
{
    return port == 4789 || port == 8472 || port == 6081;
}

INLINE void udp_tunnel(const u8 *header, u16 port, u32 behind, struct inner *inner)
{
    u16 ethertype;

    inner->at = behind;
    inner->ethernet = 1;
    if (port != 6081) {
        inner->found = (header[0] & 0x08) != 0;
        return;
    }
    inner->at += 4 * (header[0] & 0x3f);
    ethertype = BE16(header, 2);
    inner->ethernet = ethertype == 0x6558;
    inner->found = !(header[0] >> 6) && (inner->ethernet || is_ip(ethertype));
}

/* The payload's first bytes, then zeros. */
INLINE int payload(const struct scratch *scratch, const struct source *from, u32 at, u32 there, u64 *to)
{
    const u8 *bytes;

    if (there > PAYLOAD)
        there = PAYLOAD;
    if (at + there > from->have)
        return FLAG_PARTIAL;
    /* This reads more than there is: what follows in the scratch is masked. */
    asm volatile("" : "+r"(at));
    if (at > SCRATCH - PAYLOAD)
        return FLAG_PARTIAL;
    bytes = scratch->bytes + at;
    for (u32 i = 0; i < PAYLOAD / 8; i++) {
        if (there >= 8 * i + 8)
            to[i] = U64(bytes, 8 * i);
        else if (there > 8 * i)
            to[i] = U64(bytes, 8 * i) & ((1ull << 8 * (there - 8 * i)) - 1);
    }
    return 0;
}

/* Parses one IP packet and finds the packet inside it. Writes nothing if it is not IP. */
ONCE int layer(struct scratch *scratch, struct source *from, u32 at, struct packet *packet, struct inner *inner)
{
    struct identity *identity;
    const u8 *header;
    u32 transport, end, room, data, wanted = 1;
    u16 flags = 0, source_port = 0, destination_port = 0;
    u8 version, protocol, tcp_flags = 0;

    if (!scratch || !from || !packet || !inner)
        return UNREADABLE;
    identity = &packet->identity;
    inner->found = 0;
    header = part(scratch, from, at, 20);
    if (!header)
        return UNREADABLE;
    version = header[0] >> 4;
    if (version == 4) {
        u16 fragment, total;

        if ((header[0] & 0xf) < 5)
            return NOT_IP;
        __builtin_memset(identity, 0, sizeof(*identity));
        transport = at + 4 * (header[0] & 0xf);
        total = BE16(header, 2);
        end = total ? at + total : from->end;
        identity->ip_id = BE16(header, 4);
        fragment = BE16(header, 6);
        identity->fragment_offset = fragment & 0x1fff;
        if (fragment & 0x3fff)
            flags |= FLAG_FRAGMENT;
        protocol = header[9];
        /* ::ffff:a.b.c.d */
        packet->words.word[0] = packet->words.word[2] = 0;
        packet->words.word[1] = 0xffff00000000ull | BE32(header, 12);
        packet->words.word[3] = 0xffff00000000ull | BE32(header, 16);
    } else if (version == 6) {
        u16 length;

        header = part(scratch, from, at, 40);
        if (!header)
            return UNREADABLE;
        __builtin_memset(identity, 0, sizeof(*identity));
        transport = at + 40;
        length = BE16(header, 4);
        end = length ? transport + length : from->end;
        flags |= FLAG_IPV6;
        protocol = header[6];
        for (int i = 0; i < 4; i++)
            packet->words.word[i] = __builtin_bswap64(U64(header, 8 + 8 * i));
        for (int i = 0; i < EXTENSIONS; i++) {
            u8 next = protocol;

            if ((next != 0 && next != 43 && next != 44 && next != 60) || identity->fragment_offset)
                break;
            header = part(scratch, from, transport, 8);
            if (!header)
                return UNREADABLE;
            if (next == 44) {
                flags |= FLAG_FRAGMENT;
                identity->fragment_offset = BE16(header, 2) >> 3;
                identity->ip_id = BE16(header, 6);
                transport += 8;
            } else {
                transport += 8 * (header[1] + 1);
            }
            protocol = header[0];
        }
    } else {
        return NOT_IP;
    }
    identity->protocol = protocol;

    room = end > transport ? end - transport : 0;
    data = transport;
    if (identity->fragment_offset) {
        /* no transport header */
    } else if (protocol == 6 && room >= 20) {
        u32 length;

        header = part(scratch, from, transport, 20);
        if (!header)
            return UNREADABLE;
        source_port = BE16(header, 0);
        destination_port = BE16(header, 2);
        identity->sequence = BE32(header, 4);
        identity->acknowledgement = BE32(header, 8);
        length = 4 * (header[12] >> 4);
        tcp_flags = header[13];
        identity->has_data = room > length;
        wanted = 0;
        if (length >= 32 && room >= 32) {
            header = part(scratch, from, transport + 20, 12);
            if (!header)
                return UNREADABLE;
            if (U32(header, 0) == 0x0a080101)
                identity->payload[0] = U64(header, 4);
        }
    } else if (protocol == 17 && room >= 8) {
        header = part(scratch, from, transport, 8);
        if (!header)
            return UNREADABLE;
        source_port = BE16(header, 0);
        destination_port = BE16(header, 2);
        identity->sequence = BE16(header, 4);
        data += 8;
        if (room >= 16 && is_tunnel(destination_port)) {
            header = part(scratch, from, transport + 8, 8);
            if (!header)
                return UNREADABLE;
            udp_tunnel(header, destination_port, transport + 16, inner);
        }
    } else if ((protocol == 1 || protocol == 58) && room >= 8) {
        int echo;

        header = part(scratch, from, transport, 8);
        if (!header)
            return UNREADABLE;
        identity->sequence = (u32)BE16(header, 0) << 16;
        echo = protocol == 1 ? header[0] == 0 || header[0] == 8 : header[0] == 128 || header[0] == 129;
        if (echo) {
            identity->destination_port = BE16(header, 4);
            identity->sequence |= BE16(header, 6);
        }
        data += 8;
    } else if (protocol == 132 && room >= 12) {
        header = part(scratch, from, transport, 4);
        if (!header)
            return UNREADABLE;
        source_port = BE16(header, 0);
        destination_port = BE16(header, 2);
        data += 12;
    } else if (protocol == 47 && room >= 4) {
        u16 ethertype;

        header = part(scratch, from, transport, 4);
        if (!header)
            return UNREADABLE;
        inner->at = transport + 4 + 4 * (!!(header[0] & 0x80) + !!(header[0] & 0x20) + !!(header[0] & 0x10));
        ethertype = BE16(header, 2);
        inner->ethernet = ethertype == 0x6558;
        inner->found = !(header[1] & 7) && (inner->ethernet || is_ip(ethertype));
    } else if ((protocol == 4 || protocol == 41) && room >= 20) {
        inner->at = transport;
        inner->ethernet = 0;
        inner->found = 1;
    }
    if (protocol != 1 && protocol != 58) {
        identity->source_port = source_port;
        identity->destination_port = destination_port;
    }
    if (wanted && end > data)
        flags |= payload(scratch, from, data, end - data, identity->payload);
    packet->flags = flags;
    packet->source_port = source_port;
    packet->destination_port = destination_port;
    packet->words.word[4] = (u64)version << 56 | (u64)protocol << 48 | (u64)source_port << 32 | (u64)destination_port << 16
                            | (identity->fragment_offset ? 1 << 8 : 0) | tcp_flags;
    return OK;
}

/* Leaves the words after that of the frame unchanged. */
INLINE int read_packet(struct scratch *scratch, struct source *from, u16 vlan, struct packet *packet)
{
    struct inner inner = {};
    u32 at = 0, begin;
    u16 tunnel = 0;
    int result;

    if (from->ethernet) {
        result = ethernet(scratch, from, &at, &vlan);
        if (result)
            return result;
    }
    begin = at;
    for (int depth = 0; depth < LAYERS; depth++) {
        result = layer(scratch, from, at, packet, &inner);
        if (result == NOT_IP && depth > 0)
            break;
        if (result)
            return result;
        if (depth == 0) {
            for (int i = 0; i < 5; i++)
                packet->words.word[5 + i] = packet->words.word[i];
        } else {
            tunnel = FLAG_TUNNEL;
        }
        if (!inner.found)
            break;
        at = inner.at;
        if (inner.ethernet) {
            u16 unused = 0;

            result = ethernet(scratch, from, &at, &unused);
            if (result == NOT_IP)
                break;
            if (result)
                return result;
        }
    }
    packet->flags |= tunnel;
    packet->length = from->end - begin;
    packet->words.word[10] = (u64)packet->length << 32 | (u64)vlan << 16 | packet->flags;
    return OK;
}

/* Bytes read from a plain packet: Ethernet, IPv4, then TCP with timestamps, or UDP with as much payload as the digest covers. */
#define PLAIN (14 + 20 + 8 + PAYLOAD)

/* Parses in place what nearly all packets are: untagged Ethernet, IPv4 without options or fragmentation, TCP or UDP
 * that is not a tunnel.
 * The identity is the one that layer() computes; fill() needs the rest. */
struct plain {
    struct identity identity;
    u8 tcp_flags;
};

INLINE int read_plain(const u8 *frame, const u8 *frame_end, u32 length, struct plain *to)
{
    struct identity *identity = &to->identity;
    const u8 *transport;
    u32 total;

    if (frame + PLAIN > frame_end)
        return 0;
    if (*(const u16 *)(frame + 12) != 0x0008 || frame[14] != 0x45 || *(const u16 *)(frame + 20) & 0xff3f)
        return 0;
    total = BE16(frame, 16);
    /* The packet is complete, so nothing of it is read from padding. */
    if (total < PLAIN - 14 || total + 14 > length)
        return 0;
    transport = frame + 34;
    identity->source_port = BE16(transport, 0);
    identity->destination_port = BE16(transport, 2);
    identity->ip_id = BE16(frame, 18);
    identity->fragment_offset = 0;
    identity->protocol = frame[23];
    if (identity->protocol == 17) {
        if (is_tunnel(identity->destination_port))
            return 0;
        identity->sequence = BE16(transport, 4);
        identity->acknowledgement = 0;
        identity->has_data = 0;
        to->tcp_flags = 0;
        for (int i = 0; i < PAYLOAD / 8; i++)
            identity->payload[i] = U64(transport, 8 + 8 * i);
        return 1;
    }
    if (identity->protocol == 6) {
        u32 header = 4 * (transport[12] >> 4);

        identity->sequence = BE32(transport, 4);
        identity->acknowledgement = BE32(transport, 8);
        identity->has_data = total - 20 > header;
        to->tcp_flags = transport[13];
        identity->payload[0] = header >= 32 && U32(transport, 20) == 0x0a080101 ? U64(transport, 24) : 0;
        for (int i = 1; i < PAYLOAD / 8; i++)
            identity->payload[i] = 0;
        return 1;
    }
    return 0;
}

/* Fills in the packet as read_packet() would have; `frame` is one that read_plain() accepted. */
INLINE void fill(const u8 *frame, u32 length, u16 vlan, const struct plain *plain, struct packet *packet)
{
    packet->identity = plain->identity;
    packet->words.word[0] = packet->words.word[2] = 0;
    packet->words.word[1] = 0xffff00000000ull | BE32(frame, 26);
    packet->words.word[3] = 0xffff00000000ull | BE32(frame, 30);
    packet->words.word[4] = 4ull << 56 | (u64)plain->identity.protocol << 48 | (u64)plain->identity.source_port << 32
                            | (u64)plain->identity.destination_port << 16 | plain->tcp_flags;
    for (int i = 0; i < 5; i++)
        packet->words.word[5 + i] = packet->words.word[i];
    packet->length = length - 14;
    packet->flags = 0;
    packet->source_port = plain->identity.source_port;
    packet->destination_port = plain->identity.destination_port;
    packet->words.word[10] = (u64)packet->length << 32 | (u64)vlan << 16;
    packet->words.word[11] = 0;
}

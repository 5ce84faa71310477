/* Reads a packet down to its innermost IP header: twin of trace/src/packet.rs, where the rules are explained. */
#pragma once
#include "digest.h"
#include "kernel.h"
#include "record.h"

#define LAYERS 3
#define EXTENSIONS 4

/* How the bytes of a packet are reached; constant in each program, so that the choice costs nothing at run time. */
enum { BY_SKB, BY_XDP, BY_ADDRESS };

struct source {
    /* The buffer's begin; offsets count from here, else from the packet's first byte. */
    u64 head;
    /* Where what can be read ends, and where the frame ends. */
    u32 readable, end;
    /* Where the packet begins, and whether with an Ethernet header. */
    u32 at;
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

#define BE16(bytes, at) __builtin_bswap16(*(u16 *)((u8 *)(bytes) + (at)))
#define BE32(bytes, at) __builtin_bswap32(*(u32 *)((u8 *)(bytes) + (at)))

INLINE int load(int how, void *context, const struct source *from, u32 at, void *to, u32 length)
{
    if (at > 0xfffff || at + length > from->readable)
        return UNREADABLE;
    if (how == BY_SKB)
        return skb_load(context, at, to, length) ? UNREADABLE : OK;
    if (how == BY_XDP)
        return xdp_load(context, at, to, length) ? UNREADABLE : OK;
    return probe_read(to, length, (void *)(from->head + at)) ? UNREADABLE : OK;
}

INLINE int is_ip(u16 ethertype)
{
    return ethertype == 0x0800 || ethertype == 0x86dd;
}

/* Moves `at` behind an Ethernet header and at most two VLAN tags. */
INLINE int ethernet(int how, void *context, const struct source *from, u32 *at, u16 *vlan)
{
    u32 header[2];
    u16 ethertype;

    if (load(how, context, from, *at + 10, header, 4))
        return UNREADABLE;
    ethertype = BE16(header, 2);
    *at += 14;
    for (int tag = 0; tag < 2; tag++) {
        if (ethertype != 0x8100 && ethertype != 0x88a8 && ethertype != 0x9100)
            break;
        if (load(how, context, from, *at, header, 4))
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

INLINE void udp_tunnel(const u64 *header, u16 port, u32 behind, struct inner *inner)
{
    const u8 *bytes = (const u8 *)header;
    u16 ethertype;

    inner->at = behind;
    inner->ethernet = 1;
    if (port != 6081) {
        inner->found = (bytes[0] & 0x08) != 0;
        return;
    }
    inner->at += 4 * (bytes[0] & 0x3f);
    ethertype = BE16(header, 2);
    inner->ethernet = ethertype == 0x6558;
    inner->found = !(bytes[0] >> 6) && (inner->ethernet || is_ip(ethertype));
}

INLINE int layer(int how, void *context, const struct source *from, u32 at, struct packet *packet, struct inner *inner)
{
    struct identity *identity = &packet->identity;
    u64 header[5];
    u8 *bytes = (u8 *)header;
    u32 transport, end, room, payload, wanted = PAYLOAD;
    u16 flags = 0, source_port = 0, destination_port = 0;
    u8 version, tcp_flags = 0;

    if (!from || !packet || !inner)
        return UNREADABLE;
    inner->found = 0;
    if (load(how, context, from, at, header, 20))
        return UNREADABLE;
    version = bytes[0] >> 4;
    if (version == 4) {
        u16 fragment, total;

        if ((bytes[0] & 0xf) < 5)
            return NOT_IP;
        transport = at + 4 * (bytes[0] & 0xf);
        total = BE16(header, 2);
        end = total ? at + total : from->end;
        __builtin_memset(identity, 0, sizeof(*identity));
        identity->ip_id = BE16(header, 4);
        fragment = BE16(header, 6);
        identity->fragment_offset = fragment & 0x1fff;
        if (fragment & 0x3fff)
            flags |= FLAG_FRAGMENT;
        identity->protocol = bytes[9];
        /* ::ffff:a.b.c.d */
        packet->words.word[0] = packet->words.word[2] = 0;
        packet->words.word[1] = 0xffff00000000ull | BE32(header, 12);
        packet->words.word[3] = 0xffff00000000ull | BE32(header, 16);
    } else if (version == 6) {
        u16 length;

        if (load(how, context, from, at + 20, bytes + 20, 20))
            return UNREADABLE;
        transport = at + 40;
        length = BE16(header, 4);
        end = length ? transport + length : from->end;
        flags |= FLAG_IPV6;
        __builtin_memset(identity, 0, sizeof(*identity));
        identity->protocol = bytes[6];
        for (int i = 0; i < 4; i++)
            packet->words.word[i] = __builtin_bswap64(header[1 + i]);
        for (int i = 0; i < EXTENSIONS; i++) {
            u8 next = identity->protocol;

            if ((next != 0 && next != 43 && next != 44 && next != 60) || identity->fragment_offset)
                break;
            if (load(how, context, from, transport, header, 8))
                return UNREADABLE;
            if (next == 44) {
                flags |= FLAG_FRAGMENT;
                identity->fragment_offset = BE16(header, 2) >> 3;
                identity->ip_id = BE16(header, 6);
                transport += 8;
            } else {
                transport += 8 * (bytes[1] + 1);
            }
            identity->protocol = bytes[0];
        }
    } else {
        return NOT_IP;
    }

    room = end > transport ? end - transport : 0;
    payload = transport;
    if (identity->fragment_offset) {
        /* no transport header */
    } else if (identity->protocol == 6 && room >= 20) {
        u32 length;

        if (load(how, context, from, transport, header, 20))
            return UNREADABLE;
        source_port = BE16(header, 0);
        destination_port = BE16(header, 2);
        identity->sequence = BE32(header, 4);
        identity->acknowledgement = BE32(header, 8);
        length = 4 * (bytes[12] >> 4);
        tcp_flags = bytes[13];
        identity->has_data = room > length;
        wanted = 0;
        if (length >= 32 && room >= 32) {
            if (load(how, context, from, transport + 20, header, 12))
                return UNREADABLE;
            if (*(u32 *)bytes == 0x0a080101)
                identity->payload[0] = (u64)*(u32 *)(bytes + 4) | (u64)*(u32 *)(bytes + 8) << 32;
        }
    } else if (identity->protocol == 17 && room >= 8) {
        if (load(how, context, from, transport, header, 8))
            return UNREADABLE;
        source_port = BE16(header, 0);
        destination_port = BE16(header, 2);
        identity->sequence = BE16(header, 4);
        payload += 8;
        if (room >= 16 && (destination_port == 4789 || destination_port == 8472 || destination_port == 6081)) {
            if (load(how, context, from, transport + 8, header, 8))
                return UNREADABLE;
            udp_tunnel(header, destination_port, transport + 16, inner);
        }
    } else if ((identity->protocol == 1 || identity->protocol == 58) && room >= 8) {
        int echo;

        if (load(how, context, from, transport, header, 8))
            return UNREADABLE;
        identity->sequence = (u32)BE16(header, 0) << 16;
        echo = identity->protocol == 1 ? bytes[0] == 0 || bytes[0] == 8 : bytes[0] == 128 || bytes[0] == 129;
        if (echo) {
            identity->destination_port = BE16(header, 4);
            identity->sequence |= BE16(header, 6);
        }
        payload += 8;
    } else if (identity->protocol == 132 && room >= 12) {
        if (load(how, context, from, transport, header, 4))
            return UNREADABLE;
        source_port = BE16(header, 0);
        destination_port = BE16(header, 2);
        payload += 12;
    } else if (identity->protocol == 47 && room >= 4) {
        u16 ethertype;

        if (load(how, context, from, transport, header, 4))
            return UNREADABLE;
        inner->at = transport + 4 + 4 * (!!(bytes[0] & 0x80) + !!(bytes[0] & 0x20) + !!(bytes[0] & 0x10));
        ethertype = BE16(header, 2);
        inner->ethernet = ethertype == 0x6558;
        inner->found = !(bytes[1] & 7) && (inner->ethernet || is_ip(ethertype));
    } else if ((identity->protocol == 4 || identity->protocol == 41) && room >= 20) {
        inner->at = transport;
        inner->ethernet = 0;
        inner->found = 1;
    }
    if (identity->protocol != 1 && identity->protocol != 58) {
        identity->source_port = source_port;
        identity->destination_port = destination_port;
    }

    if (wanted) {
        u32 there = end > payload ? end - payload : 0;

        if (there >= PAYLOAD) {
            if (load(how, context, from, payload, identity->payload, PAYLOAD))
                flags |= FLAG_PARTIAL;
        } else if (there) {
            /* The verifier has to see 1 to 32, whatever the compiler knows. */
            asm volatile("" : "+r"(there));
            there = ((there - 1) & (PAYLOAD - 1)) + 1;
            if (load(how, context, from, payload, identity->payload, there))
                flags |= FLAG_PARTIAL;
        }
    }
    packet->flags = flags;
    packet->source_port = source_port;
    packet->destination_port = destination_port;
    packet->words.word[4] = (u64)version << 56 | (u64)identity->protocol << 48 | (u64)source_port << 32 | (u64)destination_port << 16
                       | (identity->fragment_offset ? 1 << 8 : 0) | tcp_flags;
    return OK;
}

ONCE int layer_by_skb(struct __sk_buff *context, struct source *from, u32 at, struct packet *packet, struct inner *inner)
{
    return layer(BY_SKB, context, from, at, packet, inner);
}

ONCE int layer_by_xdp(struct xdp_md *context, struct source *from, u32 at, struct packet *packet, struct inner *inner)
{
    return layer(BY_XDP, context, from, at, packet, inner);
}

ONCE int layer_by_address(struct source *from, u32 at, struct packet *packet, struct inner *inner)
{
    return layer(BY_ADDRESS, 0, from, at, packet, inner);
}

/* Words above that of the frame stay as they are. */
INLINE int read_packet(int how, void *context, struct source *from, u16 vlan, struct packet *packet)
{
    struct inner inner = {};
    u32 at = from->at, begin;
    u16 tunnel = 0;
    int result;

    if (from->ethernet) {
        result = ethernet(how, context, from, &at, &vlan);
        if (result)
            return result;
    }
    begin = at;
    for (int depth = 0; depth < LAYERS; depth++) {
        result = how == BY_SKB   ? layer_by_skb(context, from, at, packet, &inner)
                 : how == BY_XDP ? layer_by_xdp(context, from, at, packet, &inner)
                                 : layer_by_address(from, at, packet, &inner);
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

            result = ethernet(how, context, from, &at, &unused);
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

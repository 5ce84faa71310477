/* The digest: twin of reporter/tests/twin/digest.rs. */
#pragma once
#include "record.h"

#define PAYLOAD 32

/* Addresses are kept separately, in the packet's words. */
struct identity {
    u64 payload[PAYLOAD / 8];
    u32 sequence, acknowledgement;
    u16 source_port, destination_port;
    u16 ip_id, fragment_offset;
    u8 protocol, has_data;
};

/* Digits of pi, made odd; as in reporter/tests/twin/digest.rs. */
#define SEED 0x243f6a8885a308d3ull
#define SPREAD 0x9e3779b97f4a7c15ull
static const u64 multipliers[11] = {
    0x13198a2e03707345ull, 0xa4093822299f31d1ull, 0x082efa98ec4e6c89ull, 0x452821e638d01377ull,
    0xbe5466cf34e90c6dull, 0xc0ac29b7c97c50ddull, 0x3f84d5b5b5470917ull, 0x9216d5d98979fb1bull,
    0xd1310ba698dfb5adull, 0x2ffd72dbd01adfb7ull, 0xb8e1afed6a267e97ull,
};

/* A word's contribution. Words do not depend on one another, so the processor multiplies several at a time. */
INLINE u64 term_of(u64 word, int place)
{
    u64 product = word * SPREAD;
    return (product ^ (product >> 32)) * multipliers[place];
}

INLINE u64 finish(u64 state)
{
    state ^= state >> 30;
    state *= 0xbf58476d1ce4e5b9ull;
    state ^= state >> 27;
    state *= 0x94d049bb133111ebull;
    return state ^ (state >> 31);
}

/* The core of the digest: over everything but addresses and ports; to be passed to finish(). */
INLINE u64 core_of(const struct identity *of)
{
    u64 state = SEED;

    state += term_of((u64)of->protocol | (u64)of->has_data << 8 | (u64)of->ip_id << 16 | (u64)of->fragment_offset << 32, 0);
    state += term_of((u64)of->sequence | (u64)of->acknowledgement << 32, 1);
#pragma unroll
    for (int i = 0; i < PAYLOAD / 8; i++)
        state += term_of(of->payload[i], 2 + i);
    return state;
}

/* Continues from core_of(). Addresses are two halves each, as in the packet, with the first byte lowest. */
INLINE u64 full_of(u64 state, const u64 source[2], const u64 destination[2], u16 source_port, u16 destination_port)
{
    state += term_of(source[0], 6) + term_of(source[1], 7);
    state += term_of(destination[0], 8) + term_of(destination[1], 9);
    state = finish(state + term_of((u64)source_port | (u64)destination_port << 16, 10));
    return state ? state : 1;
}

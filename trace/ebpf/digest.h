/* The digest: twin of trace/src/digest.rs. */
#pragma once
#include "record.h"

#define PAYLOAD 32

/* Addresses are beside it, in the packet's words. */
struct identity {
    u64 payload[PAYLOAD / 8];
    u32 sequence, acknowledgement;
    u16 source_port, destination_port;
    u16 ip_id, fragment_offset;
    u8 protocol, has_data;
};

INLINE u64 mix(u64 state, u64 word)
{
    u64 product = (state ^ word) * 0x9e3779b97f4a7c15ull;
    return product ^ (product >> 29);
}

INLINE u64 finish(u64 state)
{
    state ^= state >> 30;
    state *= 0xbf58476d1ce4e5b9ull;
    state ^= state >> 27;
    state *= 0x94d049bb133111ebull;
    return state ^ (state >> 31);
}

/* Over all but addresses and ports, not finished. */
INLINE u64 core_of(const struct identity *of)
{
    u64 state = 0x243f6a8885a308d3ull;

    state = mix(state, (u64)of->protocol | (u64)of->has_data << 8 | (u64)of->ip_id << 16 | (u64)of->fragment_offset << 32);
    state = mix(state, (u64)of->sequence | (u64)of->acknowledgement << 32);
    for (int i = 0; i < PAYLOAD / 8; i++)
        state = mix(state, of->payload[i]);
    return state;
}

/* Goes on from there. */
INLINE u64 full_of(u64 state, const struct identity *of, const struct words *words)
{
    for (int i = 0; i < 4; i++)
        state = mix(state, __builtin_bswap64(words->word[i]));
    state = finish(mix(state, (u64)of->source_port | (u64)of->destination_port << 16));
    return state ? state : 1;
}

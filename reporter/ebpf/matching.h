/* Runs the filter's table over a packet's words: twin of reporter/src/packet_trace/matching.rs. */
#pragma once
#include "record.h"

ONCE int chooses(struct table *table, struct words *words)
{
    u32 bits = 0;

    if (!table || !words)
        return 0;

    for (u32 i = 0; i < TESTS && i < table->tests; i++) {
        const struct test *test = &table->test[i];
        u32 word = test->word;
        u64 part;

        if (word >= WORDS)
            return 0;
        part = words->word[word] & test->mask;
        if (test->low <= part && part <= test->high)
            bits |= 1u << i;
    }
    for (u32 i = 0; i < TERMS && i < table->terms; i++) {
        const struct term *term = &table->term[i];

        if ((bits & term->ones) == term->ones && !(bits & term->zeros))
            return 1;
    }
    return 0;
}

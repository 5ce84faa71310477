/* Runs the filter's table over a packet's words: twin of trace/src/matching.rs. */
#pragma once
#include "record.h"

/* `words` has 16 places, so that a masked index is always inside. */
INLINE int chooses(const struct table *table, const u64 *words)
{
    u32 bits = 0;

    for (u32 i = 0; i < TESTS && i < table->tests; i++) {
        const struct test *test = &table->test[i];
        u64 part = words[test->word & 15] & test->mask;

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

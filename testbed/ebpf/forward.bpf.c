/* Sends each frame on by an interface, or drops it: for benchmarks, whose frames come from the kernel's test runs.
 * `make ebpf` builds forward.bpf.o, which is committed. */

#include "../../crates/link/ebpf/xdp.bpf.h"

static long (*const redirect)(u32 interface, u64 flags) = (void *)23;

/* The index of the interface; 0 = frames are dropped. */
struct {
    NUMBER(type, MAP_ARRAY);
    NUMBER(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, u32);
} interface SECTION(".maps");

SECTION("xdp") int forward(struct xdp_md *context)
{
    u32 zero = 0, *to = map_lookup(&interface, &zero);

    return to && *to ? redirect(*to, 0) : DROP;
}

/* Takes plain UDP datagrams to our listeners from an interface and leaves every other frame to the kernel. It neither changes
 * nor drops any. `make ebpf` builds intake.bpf.o, which is committed. */

#include "intake.bpf.h"

SECTION("xdp") int intake(struct xdp_md *context)
{
    u32 listener = find_listener(context);

    if (listener == NOBODY)
        return PASS;
    /* A queue without a socket leaves its frames to the kernel. */
    return redirect_map(&sockets, listener * QUEUES + context->rx_queue_index, PASS);
}

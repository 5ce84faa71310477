#!/bin/bash
# Recovery over the kernel's soft-RoCE, under load: the collector killed with -9, the translator killed with -9, the RDMA device
# removed and put back, over UC and over RC. Each time everything has to come back without a hand, with what was in memory before, and
# every frame of the gap has to be accounted for.
# Runs in the guest; `run-recovery` starts it there.
# usage: recovery.sh DTA-MANAGER [RUN-TESTBED-ARGS...]
set -euo pipefail
manager=$1
outcome=$(mktemp)
failed=0
for transport in uc rc; do
    for chaos in kill-collector kill-translator remove-device; do
        echo "=== run-testbed --nic rxe --transport $transport --chaos $chaos"
        # Its exit status says whether an answer is wrong or gone, a frame unexplained, or the session did not continue.
        "$manager" run-testbed --nic rxe --reports 20000 --transport "$transport" --chaos "$chaos" --json "$outcome" "${@:2}" || failed=1
        # A gap that cost nothing was none: then nothing was shown.
        if ! grep -qE '"frames_lost": *[1-9]' "$outcome"; then
            echo "FAILED  $chaos over $transport: no frame was lost, so nothing had to recover"
            failed=1
        fi
    done
done
exit $failed

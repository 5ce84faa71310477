#!/bin/bash
# Recovery over the kernel's soft-RoCE, under load: the collector killed with -9, the translator killed with -9, the RDMA device
# removed and put back, over UC and over RC; the same where the translator posts to a device of its own, and that one removed, too.
# Each time everything has to come back without a hand, with what was in memory before, and every frame of the gap has to be
# accounted for.
# Runs in the guest; `run-recovery` starts it there.
# usage: recovery.sh DTA-MANAGER [RUN-TESTBED-ARGS...]
set -euo pipefail
# shellcheck source=testbed/rxe-guest/attempts.sh
. "$(dirname "$0")/attempts.sh"
manager=$1
outcome=$(mktemp)
recover() { # TRANSPORT CHAOS [RUN-TESTBED-ARGS...]
    local status=0
    # Its exit status says whether an answer is wrong or gone, a frame unexplained, or the session did not continue.
    "$manager" run-testbed --nic rxe --reports 20000 --transport "$1" --chaos "$2" --json "$outcome" "${@:3}" || status=$?
    # A gap that cost nothing was none: then nothing was shown. But without its device, the translator keeps what is to leave on RC: there, that
    # its session was resumed, as the exit status says, shows the gap.
    if [[ "$1 $2" != "rc remove-sender" ]] && ! grep -qE '"frames_lost": *[1-9]' "$outcome"; then
        echo "FAILED  $2 over $1: no frame was lost, so nothing had to recover"
        ((status)) || status=1
    fi
    return "$status"
}
disturb() { # TRANSPORT CHAOS [RUN-TESTBED-ARGS...]
    run_testbed "run-testbed --nic rxe --transport $1 --chaos $2 ${*:3}" recover "$@"
}
for transport in uc rc; do
    for chaos in kill-collector kill-translator remove-device; do
        disturb "$transport" "$chaos" "${@:2}"
    done
    # The translator posts to a device of its own.
    for chaos in kill-collector kill-translator remove-device remove-sender; do
        disturb "$transport" "$chaos" --translator-nic rxe "${@:2}"
    done
done
all_good

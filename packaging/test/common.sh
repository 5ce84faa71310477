# What the tests of packages and static programs share. Sourced; `in_root` is the command that runs a program in the tested root.
# shellcheck shell=bash

flow='10.0.0.1:5000->10.0.0.2:5000/udp'
: "${in_root=}"

fail() {
    echo "FAILED: $1" >&2
    exit 1
}

ok() {
    echo "ok      $1"
}

# Waits until a command succeeds, two minutes at most.
eventually() {
    for _ in $(seq 1200); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    fail "still not after two minutes: $*"
}

# Runs a program of DTA where it is tested.
dta() {
    # shellcheck disable=SC2086  # words
    $in_root "$@"
}

# Whether the collector holds this value of the flow. More arguments go to the query.
holds() { # VALUE [ARGUMENT...]
    dta dta-collector query key-write --store flows "$flow" --output json "${@:2}" | tr -d ' \n' | grep -q "$1"
}

# Reports a value until the collector answers with it. Once may not be enough: a collector that has just come back loses reports
# until its translator knows.
report_and_ask() { # VALUE
    local n
    for n in $(seq 600); do
        if [ $((n % 20)) = 1 ]; then
            dta dta-reporter send key-write --store flows --key "$flow" --value "0x$1" --retransmittable >/dev/null || true
        fi
        if holds "$1" 2>/dev/null; then return 0; fi
        sleep 0.1
    done
    fail "the collector does not answer with $1, which was reported"
}

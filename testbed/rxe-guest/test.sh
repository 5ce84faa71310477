#!/bin/bash
# Tests the guest itself: the device is there and carries RC, UC and atomic operations; output, exit status,
# directory, environment and shares pass; a guest that hangs or dies is ended and named.
# Needs what `install` installs. Takes seven boots.
set -euo pipefail
cd "$(dirname "$0")"
run=$PWD/run
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

failed=0
check() { # NAME COMMAND...: the command must succeed
    if "${@:2}"; then
        echo "ok      $1"
    else
        echo "FAILED  $1"
        failed=1
        sed 's/^/        | /' "$tmp/out" "$tmp/err"
    fi
}
guest() { # ARGS...: runs the guest, keeps stdout, stderr and status
    status=0
    "$run" "$@" >"$tmp/out" 2>"$tmp/err" || status=$?
}

"$run" --prepare

# The device, and traffic over it: both ends are rxe0, which turns the packets round inside.
cat >"$tmp/smoke" <<'END'
set -euo pipefail
ibv_devices
gid=$(grep -l ffff:0a09:0001 /sys/class/infiniband/rxe0/ports/1/gids/? | head -n 1)
gid=${gid##*/}
echo "gid index $gid"
# The server of these tools listens at TCP port 18515.
listens() { grep -qsE '^ *[0-9]+: [0-9A-F]+:4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; }
both() {
    "$@" >/tmp/server 2>&1 & server=$!
    until listens; do
        kill -0 "$server" || { cat /tmp/server; return 1; }
        sleep 0.1
    done
    "$@" 127.0.0.1 && wait "$server" || { cat /tmp/server; return 1; }
}
both ibv_rc_pingpong -d rxe0 -g "$gid" -n 100
both ibv_uc_pingpong -d rxe0 -g "$gid" -n 100
both ib_atomic_bw -d rxe0 -x "$gid" -n 200 -F
END
guest --timeout 600 -- bash "$tmp/smoke"
check "smoke test exits 0" test "$status" = 0
check "ibv_devices shows rxe0" grep -q '^ *rxe0 ' "$tmp/out"
check "RC and UC pingpong" test "$(grep -c '^100 iters' "$tmp/out")" = 2
check "atomics" grep -qsE '^ *8 +200 ' "$tmp/out"

# What passes in and out.
mkdir "$tmp/results"
cat >"$tmp/pass" <<'END'
printf 'directory %s\n' "$PWD"
printf 'argument %s\n' "$@"
printf 'DTA_PROBE %s\n' "$DTA_PROBE"
printf 'PROBE_OTHER %s\n' "$PROBE_OTHER"
printf 'PROBE_NOT %s\n' "${PROBE_NOT-unset}"
head -c 300000 /dev/zero | tr '\0' x; echo
echo to stderr >&2
echo kept >"$1/kept"
echo lost >"$2/lost"
exit 42
END
DTA_PROBE=$'two\nlines' PROBE_OTHER="it's" PROBE_NOT=no guest --timeout 600 --no-rxe --share "$tmp/results" --env PROBE_OTHER -- \
    bash "$tmp/pass" "$tmp/results" "$tmp" $'blank and \' quote'
check "exit status" test "$status" = 42
check "stdout, whole and alone" cmp -s "$tmp/out" <(
    printf 'directory %s\nargument %s\nargument %s\nargument %s\nDTA_PROBE two\nlines\nPROBE_OTHER it'\''s\nPROBE_NOT unset\n' \
        "$PWD" "$tmp/results" "$tmp" $'blank and \' quote'
    head -c 300000 /dev/zero | tr '\0' x
    echo
)
check "stderr, alone" test "$(<"$tmp/err")" = "to stderr"
check "a shared directory takes what is written" test "$(cat "$tmp/results/kept" 2>/dev/null)" = kept
check "any other directory does not" test ! -e "$tmp/lost"

guest --timeout 600 --no-rxe -- test -e /sys/class/infiniband/rxe0
check "--no-rxe makes no device" test "$status" = 1
guest --timeout 600 --no-rxe -- bash -c 'sleep 1000 & echo done'
check "a process left behind holds nothing up" test "$status/$(<"$tmp/out")" = 0/done

# Output comes while the command runs; a guest that hangs is killed and named.
guest --timeout 90 --no-rxe -- bash -c 'echo early; sleep 1000'
check "a hung guest: exit status" test "$status" = 124
check "a hung guest: what came before is there" grep -qx early "$tmp/out"
check "a hung guest is named" grep -q 'rxe-guest-[0-9]* .*early.* gave no exit status within 90 s.*killed' "$tmp/err"
guest --timeout 600 --no-rxe -- bash -c 'echo c >/proc/sysrq-trigger'
check "a guest whose kernel panics: exit status" test "$status" = 125
check "a guest whose kernel panics: its last words" grep -q 'sysrq triggered crash' "$tmp/err"

# Two at once, as `make -j` would.
"$run" --timeout 600 -- ibv_devices >"$tmp/first" 2>&1 &
guest --timeout 600 -- ibv_devices
wait $! || status=1
check "two guests at once" test "$status$(grep -c rxe0 "$tmp/first" "$tmp/out" | cut -d: -f2 | tr -d '\n')" = 011

check "wrong options are refused" test "$("$run" --timeout soon -- true 2>&1)" = "rxe-guest: --timeout soon: not a whole number of seconds"
exit $failed

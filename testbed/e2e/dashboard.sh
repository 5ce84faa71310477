#!/usr/bin/env bash
# The dashboard in a real terminal (tmux): every page draws at 80x24, a resize is followed, a typed question is answered, and quitting leaves
# the terminal as it was. Live first, then on the memory of the collector after it was killed.
set -euo pipefail
: "${DTA_BIN:?the folder of the built programs}"
folder=$(mktemp -d)
socket="$folder/tmux"
tmux() { command tmux -S "$socket" "$@"; }

cleanup() {
    tmux kill-server 2>/dev/null || true
    for pid in $(jobs -p); do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$folder"
}
trap cleanup EXIT

fail() {
    echo "dashboard: $1" >&2
    echo "--- screen" >&2
    tmux capture-pane -p -t t >&2 || true
    exit 1
}

# Waits until the screen shows a text.
shows() {
    for _ in $(seq 600); do
        if tmux capture-pane -p -t t | grep -qF -- "$1"; then return; fi
        sleep 0.1
    done
    fail "the screen does not show: $1"
}

# Waits until a command succeeds.
eventually() {
    for _ in $(seq 600); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "still failing after a minute: $*"
}

collector=127.0.0.1:21150
"$DTA_BIN/dta-collector" serve --listen "$collector" --memory "$folder/memory" --soft-port 21151 >"$folder/collector.log" 2>&1 &
collector_pid=$!
eventually "$DTA_BIN/dta-collector" stores --collector "$collector"
"$DTA_BIN/dta-translator" run --collector "http://$collector" --listen 127.0.0.1:21152 >"$folder/translator.log" 2>&1 &
eventually sh -c "'$DTA_BIN/dta-collector' sessions list --collector $collector | grep -q UC"
key='10.0.0.1:5000->10.0.0.2:5000/udp'
# The session opens a moment before the translator is programmed, so the first report may come too early.
lands() {
    "$DTA_BIN/dta-reporter" send key-write --translator 127.0.0.1:21152 --store 1 --key "$key" --value 0x68656c6c6f20776f726c6421
    sleep 0.2
    "$DTA_BIN/dta-collector" query key-write "$key" --collector "$collector" | grep -q 68656c6c6f20776f726c6421
}
eventually lands

tmux new-session -d -s t -x 80 -y 24 "env TERM=screen $DTA_BIN/dta-collector dashboard --collector $collector; echo left with \$?; exec cat"
shows "1 Waterfall"
shows "executed.write"
tmux send-keys -t t 2
shows "key-write"
tmux send-keys -t t 3
shows "session "
tmux send-keys -t t 4
shows "element 0 of"
tmux send-keys -t t 5
shows " list 0"
tmux send-keys -t t 6
shows "ask"
tmux send-keys -t t -l "flows $key"
tmux send-keys -t t Enter
shows "68656c6c 6f20776f 726c6421"
tmux resize-window -t t -x 120 -y 40
shows "68656c6c 6f20776f 726c6421"
tmux send-keys -t t Tab Tab Tab Tab # past Events and Top, round to Stores
shows "survive"
tmux send-keys -t t q
shows "left with 0"

kill -9 "$collector_pid"
tmux kill-server
# A server of its own: the old one may still be ending.
socket="$folder/tmux-memory"
tmux new-session -d -s t -x 80 -y 24 "env TERM=screen $DTA_BIN/dta-collector dashboard --memory $folder/memory; echo left with \$?; exec cat"
shows "key-write"
tmux send-keys -t t 6
tmux send-keys -t t -l "flows $key"
tmux send-keys -t t Enter
shows "68656c6c 6f20776f 726c6421"
tmux send-keys -t t Escape
shows "key-write"
tmux send-keys -t t q
shows "left with 0"
echo "dashboard: every page drawn, a question answered live and from memory, quit clean"

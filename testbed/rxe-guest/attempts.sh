# Runs of which few may be made once more, and what came of each. To be sourced.
# shellcheck shell=bash
failed=0
results=()
# How many runs that were not good may be made once more: more than these are no accident. What passes only then is named.
second_attempts=2
run_once() { # COMMAND...: sets `result`
    local status=0
    "$@" || status=$?
    case $status in
    0) result=GOOD ;;
    4) result="BAD (an answer is wrong, or something unexplained)" ;;
    124) result="BAD (killed at its time limit)" ;;
    *) result="BAD (exit status $status)" ;;
    esac
}
run_testbed() { # NAME COMMAND...
    local start=$SECONDS result
    echo "=== $1"
    run_once "${@:2}"
    if [[ $result != GOOD ]] && ((second_attempts-- > 0)); then
        echo "$result: once more"
        run_once "${@:2}"
        [[ $result != GOOD ]] || result="GOOD, but only at the second attempt"
    fi
    results+=("$result  $1  $((SECONDS - start)) s")
    echo "${results[-1]}"
    [[ $result == GOOD* ]] || failed=$((failed + 1))
}
all_good() { # says of each run whether it was good
    echo "=== $failed of ${#results[@]} runs failed"
    printf '%s\n' "${results[@]}"
    ((failed == 0))
}

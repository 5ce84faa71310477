# What everything that runs in the guest is built with, so that it is built once. To be sourced.
# With the whole workspace and the examples, dependencies have the features that they have for tests.
# shellcheck shell=bash disable=SC2034
features=(--features "$(<testbed/features)")
programs=(--workspace --exclude dta-sql --bins --examples "${features[@]}")

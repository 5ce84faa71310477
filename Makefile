# What people type. Everything else is cargo.
#
#   make demo     the whole system on this machine: reporters, translator, collector, answers checked
#   make test     installs what the tests need (Debian packages, as root), then runs them all
#   make          builds the release programs, with libibverbs support
#   make help     lists the targets

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
CARGO ?= cargo
SOAK_SEEDS ?= 10
SOAK_CASES ?= 5000
TARGET = $(or $(CARGO_TARGET_DIR),target)
IMAGE ?= dta
DTA_CAPTURES ?= $(abspath ../shared/data)
export DTA_CAPTURES
# The distribution's libibverbs, for a release of ibverbs-sys that reads these (docs/decisions/verbs-binding.md).
export RDMA_CORE_INCLUDE_DIR ?= /usr/include
export RDMA_CORE_LIB_DIR ?= /usr/lib/$(shell gcc -print-multiarch 2>/dev/null)
export IBVERBS_HEADER_DIR ?= /usr/include/infiniband

# Everything in bash or sh (netcfg-to-toml and run-tests are Python).
SCRIPTS = .ci/run $(filter-out %.md,$(wildcard scripts/* testbed/e2e/* testbed/rxe-guest/* testbed/rxe-guest/guest/*) reporter-p4/compile reporter-p4/test/run translator-p4/compile)
SCRIPTS := $(filter-out testbed/rxe-guest/guest scripts/netcfg-to-toml scripts/run-tests,$(SCRIPTS))
SCRIPTS += testbed/tracing/overlay testbed/tracing/queue
SCRIPTS += $(addprefix packaging/,build-deb build-static build-container release rustc-static test/packages test/release test/in-systemd test/static test/common.sh)
# What depends on the pool of huge pages: the most that these take at a time is 44 pages.
POOL_TESTS = --lib --test region_memory --test service --test program
POOL_CRATES = /(collector|memory|testbed) 
POOLS ?= 0 2 128

# All that is tested is built with these features, so that it is built once.
TESTED = --workspace --exclude dta-sql --features "$(shell cat testbed/features)"

# Tests that are built only where they are named.
GUEST_TESTS = $(shell awk -F'"' '/^name = / { name = $$2 } /^test = false/ { print "--test", name }' */Cargo.toml crates/*/Cargo.toml)

# `cargo test` that runs the few tests that failed once more, by themselves (docs/decisions/build-time.md).
RUN_TESTS = CARGO=$(CARGO) scripts/run-tests

FUZZ_SECONDS ?= 60

PYTHON ?= /usr/bin/python3

# For what compiles or packs beside tests: tests come first.
LATER = nice -n 10

# What clippy-driver denies as the compiler's wrapper.
LINTS = -Dwarnings__CLIPPY_HACKERY__

# SQL over the history, which no other target builds (docs/decisions/history.md). Clippy lints during compilation.
HISTORY_TEST = env DTA_PROGRAMS=$(abspath $(TARGET))/debug RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=$(LINTS) \
    $(RUN_TESTS) -p dta-sql --profile sql
HISTORY_NEEDS = $(TESTED) --bin dta-collector --bin dta-manager --example history_rows

.DEFAULT_GOAL := build
.PHONY: build pictures ebpf ebpf-check deb deb-history static container release package demo test on-host in-guest soak lint style unit python history pools privileged test-p4 e2e rxe fuzz bench history-built install-test-deps install-build-deps help

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

build: install-build-deps ## release programs, with RDMA devices (verbs), object storage (s3) and clusters (etcd)
	$(CARGO) build --release --workspace --exclude dta-sql --features dta-collector/verbs,dta-translator/verbs,dta-collector/s3,dta-collector/kafka,dta-collector/otlp,dta-collector/remote-write,dta-collector/etcd,dta-translator/etcd

deb: build install-package-deps ## Debian packages of the daemons and their tools, in target/packages
	packaging/build-deb $(TARGET)/release $(TARGET)/packages

deb-history: install-build-deps install-package-deps ## Debian package of dta-history, in target/packages
	$(CARGO) build --release -p dta-sql
	packaging/build-deb $(TARGET)/release $(TARGET)/packages dta-history

static: ## static programs without verbs, in target/static
	packaging/build-static release $(TARGET)/static

container: static ## an image of the static programs and nothing else
	packaging/build-container $(TARGET)/static $(IMAGE)

release: install-build-deps install-package-deps ## what is published of the tag vX.Y.Z at this commit, in target/dist
	scripts/install-deps cross
	packaging/release $(TARGET)/dist $(RELEASE_TARGETS)

demo: ## one command from report to answer; no root needed
	$(CARGO) run --profile demo -p dta-manager -- run-testbed --bench

pictures: ## the pictures of the page in docs/pictures, from a testbed that runs; needs chromium and pngquant
	scripts/make-pictures

ebpf: ## the kernel's programs: all committed *.bpf.o, with the pinned compiler
	scripts/install-deps ebpf
	scripts/build-ebpf

ebpf-check: ## whether the objects that are committed are what their sources make
	scripts/build-ebpf check

# Clippy lints during compilation: on its own, it would go through every crate again. Leaving line numbers out of backtraces saves a
# seventh of the compilation. The static programs keep cargo waiting while they are compiled, and `pools` changes the pool of the whole
# machine, so no tests run beside these. Tests wait more than they compute, so `history`, which compiles a lot, and `rxe`, which emulates one
# CPU, run beside them. Where the machine has no huge pages, `unit` and `privileged` are the run of `pools` with none. Figures:
# docs/decisions/build-time.md.
test: export RUSTC_WORKSPACE_WRAPPER = clippy-driver
test: export CLIPPY_ARGS = $(LINTS)
test: export CARGO_PROFILE_DEV_DEBUG = false
# A change is judged by the same cases each time; `soak` looks for others.
test: export PROPTEST_RNG_SEED = 1
test: install-test-deps ebpf-check ## everything, as CI runs it
	$(CARGO) test $(TESTED) --no-run
	packaging/build-static dev $(TARGET)/package-test
	$(MAKE) -j2 pools history-built $(if $(filter 0,$(shell cat /proc/sys/vm/nr_hugepages)),POOLS="2 128")
	$(MAKE) -j4 on-host in-guest history package
	$(MAKE) test-p4
	$(MAKE) e2e

# Four at a time on a small machine, as most wait.
on-host: export RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n > 4 ? n : 4)))
on-host:
	$(MAKE) unit
	$(MAKE) privileged

in-guest:
	$(MAKE) style
	$(MAKE) python
	$(MAKE) rxe

soak: ## property tests with thousands of random cases; the accounting with a tenth of all frames damaged, ten seeds, also with INT, flows and epochs at once; captures in ten epochs, asked over gRPC and with SQL, and INT captures with and without epochs, as fast as they are; ten million reports of random flows, and ten million hostile flow exports; a database and object storage away for a minute; each attack on each daemon for a minute, as root; SOAK_REPORTS=100000000: also whether memory stays flat
	PROPTEST_CASES=$(SOAK_CASES) $(CARGO) test $(TESTED) --no-fail-fast
	DTA_SEEDS=$(SOAK_SEEDS) $(CARGO) test $(TESTED) --test faults
	DTA_EPOCHS=10 $(CARGO) test $(TESTED) --test epochs
	DTA_SPEEDUP=1 $(CARGO) test $(TESTED) --test moments
	$(CARGO) build $(HISTORY_NEEDS)
	DTA_EPOCHS=10 $(HISTORY_TEST) testbed
	DTA_INT_REPORTS=10000000 $(CARGO) test $(TESTED) --test int_flood -- --nocapture
	DTA_FLOW_DATAGRAMS=10000000 $(CARGO) test $(TESTED) --test flow_flood -- --nocapture
	DTA_OUTAGE_SECONDS=60 $(CARGO) test $(TESTED) --test export -- --ignored a_database
	PYTHON=$(PYTHON) scripts/install-outside-readers $(TARGET)/outside-readers
	DTA_OUTAGE_SECONDS=60 $(CARGO) test $(TESTED) --test program -- --ignored object_storage
	DTA_ATTACK_SECONDS=60 $(CARGO) test $(TESTED) --test attack -- --include-ignored --nocapture --test-threads 1
	$(if $(SOAK_REPORTS),$(CARGO) run --release -p dta-manager -- bench memory --reports $(SOAK_REPORTS))

lint: style ## style, and clippy
	$(CARGO) clippy $(TESTED) --all-targets $(GUEST_TESTS) -- -D warnings

style: ## formatting, lock files, scripts, licences and advisories of the dependencies
	$(CARGO) fmt --all --check
	$(CARGO) metadata --locked --format-version 1 --manifest-path testbed/fuzz/Cargo.toml >/dev/null
	shellcheck -x $(SCRIPTS)
	scripts/check-dependencies

unit: ## tests that need no root
	$(RUN_TESTS) $(TESTED)

python: ## the Python package: its types, and its tests against the Rust readers; history read by others
	$(CARGO) build $(TESTED) --bin dta-collector --example region_answers --example history_rows
	cd python && $(PYTHON) -m mypy && $(PYTHON) -m pytest -q -p no:cacheprovider
	PYTHON=$(PYTHON) scripts/install-outside-readers $(TARGET)/outside-readers
	if [ -e $(TARGET)/outside-readers ]; then \
	    PYTHONPATH=$(TARGET)/outside-readers $(PYTHON) -m pytest -q -p no:cacheprovider crates/history/tests/outside; \
	fi

history-built:
	$(LATER) $(HISTORY_TEST) --no-run

history: history-built ## SQL over the history (dta-history): built in target/sql, clippy, and its tests
	$(CARGO) build $(HISTORY_NEEDS)
	$(HISTORY_TEST)
	PYTHON=$(PYTHON) scripts/install-outside-readers $(TARGET)/outside-readers
	if [ -e $(TARGET)/outside-readers ]; then \
	    DTA_PROGRAMS=$(abspath $(TARGET))/debug DTA_HISTORY=$(abspath $(TARGET))/sql/dta-history \
	    PYTHONPATH=$(TARGET)/outside-readers $(PYTHON) -m pytest -q -p no:cacheprovider crates/sql/tests/outside; \
	fi

pools: ## the tests of memory with no huge pages, with too few and with enough; sets the pool and puts it back, as root
	mkdir -p $(TARGET)
	$(CARGO) test $(TESTED) $(POOL_TESTS) --no-run --message-format json \
	    | jq -r 'select(.executable and .profile.test) | "\(.manifest_path | rtrimstr("/Cargo.toml")) \(.executable)"' \
	    | grep -E '$(POOL_CRATES)' >$(TARGET)/pool-programs
	for pages in $(POOLS); do \
	    while read -r folder program; do \
	        echo "=== with $$pages huge pages: $$program"; \
	        (cd "$$folder" && $(CURDIR)/scripts/with-huge-pages $$pages $(CURDIR)/scripts/run-tests --program "$$program" </dev/null); \
	    done <$(TARGET)/pool-programs; \
	    scripts/with-huge-pages $$pages env $(RUN_TESTS) $(TESTED) --test region_memory -- --ignored; \
	done

privileged: ## tests marked ignored because they need root, namespaces, tshark, moto or axe-core
	PYTHON=$(PYTHON) scripts/install-outside-readers $(TARGET)/outside-readers
	$(RUN_TESTS) $(TESTED) -- --ignored

package: ## the Helm chart; Debian packages, static programs and image, made of a debug build and used; as root
	$(CARGO) build $(TESTED) --bins --examples
	$(LATER) packaging/build-deb $(TARGET)/debug $(TARGET)/package-test
	PYTHON=$(PYTHON) scripts/install-outside-readers $(TARGET)/outside-readers
	DTA_PROGRAMS=$(abspath $(TARGET))/debug PYTHONPATH=$(TARGET)/outside-readers $(PYTHON) -m pytest -q -p no:cacheprovider packaging/test
	packaging/test/packages $(TARGET)/package-test
	packaging/build-static dev $(TARGET)/package-test
	packaging/test/release
	packaging/test/static $(TARGET)/package-test

test-p4: ## the P4 translator and reporter: compiled where p4c is on PATH, run on bmv2 where simple_switch_grpc is; as root
	translator-p4/compile $(TARGET)/p4
	$(CARGO) test $(TESTED) --test sources --test frames
	$(CARGO) test $(TESTED) --test bmv2 --test machines_switch --test machines_reporter -- --ignored --nocapture --test-threads 1
	reporter-p4/test/run

e2e: ## whole-system runs against ground truth
	testbed/e2e/run-all

rxe: ## the RDMA tests, and those of host tracing on Linux 6.1, in a guest with soft-RoCE
	testbed/rxe-guest/install
	testbed/rxe-guest/test.sh
	testbed/rxe-guest/run-tests
	testbed/rxe-guest/run-testbeds
	testbed/rxe-guest/run-recovery

fuzz: ## the fuzz targets under libFuzzer, FUZZ_SECONDS each (60); needs a nightly compiler
	$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	$(CARGO) run -q -p dta-testbed --example corpus testbed/fuzz/corpus
	for target in $$(cd testbed/fuzz/fuzz_targets && ls | sed 's/\.rs$$//'); do \
	    $(CARGO) +nightly fuzz run --fuzz-dir testbed/fuzz $$target -- -max_total_time=$(FUZZ_SECONDS) -max_len=4096; \
	done

bench: ## every speed beside its floor
	$(CARGO) run --release -p dta-manager -- bench

install-test-deps:
	scripts/install-deps test

install-build-deps:
	scripts/install-deps build

install-package-deps:
	scripts/install-deps package

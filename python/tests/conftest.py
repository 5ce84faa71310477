"""Region files with all kinds of contents, the Rust readers' answers for them, and a collector that serves them.

`make python` builds the programs. `DTA_PROGRAMS` is the folder where they are, if it is not `target/debug`.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

import dta

#: Seconds until something is taken to hang.
HANGS = 120

PROGRAMS = Path(os.environ.get("DTA_PROGRAMS", Path(__file__).parents[2] / "target/debug"))


def program(name):
    path = PROGRAMS / name
    assert path.exists(), f"there is no {path}: run `make python`, which builds it"
    return path


class Truth:
    """What the Rust program wrote and answered."""

    def __init__(self, folder):
        made = subprocess.run([program("examples/region_answers"), folder], check=True, capture_output=True)
        output = json.loads(made.stdout)
        self.folder, self.memory = folder, folder / "memory"
        self.texts, self.keys, self.stores = output["texts"], output["keys"], output["stores"]
        self.key_array = dta.keys([bytes.fromhex(key) for key, _ in self.keys])


@pytest.fixture(scope="session")
def truth(tmp_path_factory):
    return Truth(tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="session")
def collector_address(truth):
    """A collector that serves the same memory."""
    config = ["--config", truth.folder / "collector.toml", "--memory", truth.memory]
    ports = ["--listen", "127.0.0.1:0", "--soft-port", "0"]
    command = [program("dta-collector"), "serve", *config, *ports]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "DTA_COLLECTOR_LOG": "warn"})
    try:
        yield json.loads(process.stdout.readline())["listen"]
    finally:
        process.terminate()
        process.wait(HANGS)


@pytest.fixture(scope="session")
def live(collector_address):
    with dta.connect(collector_address, timeout=HANGS) as collector:
        yield collector


@pytest.fixture(scope="session", params=["files", "collector"])
def stores(request, truth):
    """The stores, from the region files and from the collector."""
    return dta.open_memory(truth.memory) if request.param == "files" else request.getfixturevalue("live")

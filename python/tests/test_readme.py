"""The examples of README.md, run as they stand: in a memory directory, with a collector that serves it."""

import doctest
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_examples(truth, collector_address, monkeypatch):
    monkeypatch.chdir(truth.memory)
    monkeypatch.setenv("DTA_COLLECTOR_COLLECTOR", collector_address)
    # The fence that ends a block is not output.
    text = README.read_text().replace("```", "")
    examples = doctest.DocTestParser().get_doctest(text, {}, "README.md", str(README), 0)
    failed, tried = doctest.DocTestRunner().run(examples)
    assert tried > 15 and not failed

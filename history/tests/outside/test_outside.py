"""Tables of history as others read them: the same rows as the library reads.

`make python` installs the readers and builds the program. `DTA_PROGRAMS` is the folder of the programs, if it is not `target/debug`.
"""

import importlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

PROGRAMS = Path(os.environ.get("DTA_PROGRAMS", Path(__file__).parents[3] / "target/debug"))


def reader(name):
    """A package; the test is skipped without it, but in CI it fails."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{name} is not installed: {error}; run `make python`")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """The folder of the tables, and what the library reads there."""
    folder = tmp_path_factory.mktemp("history")
    made = subprocess.run([PROGRAMS / "examples/history_rows", folder], check=True, capture_output=True)
    return folder, json.loads(made.stdout)


@pytest.fixture(scope="module")
def storage():
    """Object storage, which moto's server stands in for, with an empty bucket: what the environment says of it."""
    reader("moto")
    command = [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = next(line for line in server.stderr if "Running on" in line).split()[-1]
            # It logs each request.
            threading.Thread(target=server.stderr.read, daemon=True).start()
            urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"))
            yield {
                "AWS_ENDPOINT_URL": url,
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
            }
        finally:
            server.kill()


@pytest.fixture(scope="module")
def copies(tmp_path_factory, storage):
    """The same of copies in object storage; no file of the tables themselves is left."""
    folder = tmp_path_factory.mktemp("copied")
    command = [PROGRAMS / "examples/history_rows", folder / "history", "s3://bucket/dta"]
    made = subprocess.run(command, check=True, capture_output=True, env=os.environ | storage)
    (folder / "history").rename(folder / "away")
    return "s3://bucket/dta", json.loads(made.stdout)


# By the beginning of a store's name.
COLUMNS = {
    "key-write": ["epoch", "slot", "checksum", "value"],
    "inline-key-write": ["epoch", "slot", "checksum", "key", "value"],
    "postcarding": ["epoch", "slot", "checksum", "bitmap", "length", *(f"hop_{hop}" for hop in range(6))],
    "key-increment": ["epoch", "slot", "count"],
    "sketch-merge": ["epoch", "column", "sketch_epoch", "merged", "expected", "cell_0", "cell_1", "cell_2"],
    "append": ["epoch", "list", "sequence", "number", "entry"],
    "int-values.flows": ["epoch", "flow", "src", "dst", "name", "sport", "latency", "time"],
    "int-events.events": ["epoch", "list", "sequence", "number", "name", "time", "src"],
}


def columns(table):
    """Its columns, of which the names must be these."""
    return next(columns for name, columns in COLUMNS.items() if table["store"].startswith(name))


def plain(row):
    return tuple(cell.hex() if isinstance(cell, bytes) else cell for cell in row)


# All rows; and few, for which a reader leaves out files, row groups and pages by their statistics.
# The second column is the slot or its like, of which lists have four.
WHERE = {
    "all": ("true", lambda row: True),
    "some": ("epoch = 4 and {slot} between 2 and 200", lambda row: row[0] == 4 and 2 <= row[1] <= 200),
}


@pytest.fixture(params=WHERE)
def where(request):
    """A condition for SQL, and what it means."""
    return WHERE[request.param]


def check(tables, where, read):
    folder, made = tables
    for table in made:
        expected = [tuple(row) for row in table["rows"] if where[1](row)]
        assert len(expected) > 10
        rows = read(f"{folder}/{table['store']}", table, where[0].format(slot=f'"{columns(table)[1]}"'))
        assert sorted(map(plain, rows)) == sorted(expected), table["store"]


def test_delta_rs(tables, where):
    deltalake = reader("deltalake")

    def read(path, table, condition):
        delta = deltalake.DeltaTable(path)
        assert [field.name for field in delta.schema().fields] == columns(table)
        assert delta.metadata().name == table["store"]
        assert json.loads(delta.metadata().configuration["dta.store"])["name"] == table["store"].split(".")[0]
        query = deltalake.QueryBuilder().register("history", delta)
        answer = query.execute(f"select * from history where {condition}").read_all()
        return zip(*([cell.as_py() for cell in answer.column(name)] for name in columns(table)))

    check(tables, where, read)


def test_duckdb(tables, where):
    """The files that delta-rs names: DuckDB's own reader of the log is an extension that it downloads."""
    deltalake, duckdb = reader("deltalake"), reader("duckdb")

    def read(path, table, condition):
        files = deltalake.DeltaTable(path).file_uris()
        return duckdb.execute(f"select * from read_parquet(?) where {condition}", [files]).fetchall()

    check(tables, where, read)


def clickhouse(chdb, source, table, condition):
    """Rows of a table function."""
    is_bytes = [name in ("key", "value", "entry") for name in columns(table)]
    cells = [f'lower(hex("{name}"))' if of else f'"{name}"' for name, of in zip(columns(table), is_bytes)]
    query = f"select {', '.join(cells)} from {source} where {condition}"
    lines = str(chdb.query(query, "JSONCompactEachRow")).splitlines()
    is_text = [name in ("key", "value", "entry", "src", "dst", "name") for name in columns(table)]
    return [[cell if of else int(cell) for of, cell in zip(is_text, json.loads(line))] for line in lines]


def test_clickhouse(tables, where, monkeypatch):
    chdb = reader("chdb")
    # It reads nothing outside of its directory.
    monkeypatch.chdir(tables[0])

    def read(path, table, condition):
        return clickhouse(chdb, f"deltaLakeLocal('{path}')", table, condition)

    check(tables, where, read)


def test_a_version_of_the_past_is_read_as_it_was(tables):
    """Before its epochs became one file: the commits say which files there were."""
    deltalake = reader("deltalake")
    folder, made = tables
    for table in made[:-3]:
        files = [set(deltalake.DeltaTable(str(folder / table["store"]), version=version).file_uris()) for version in range(10)]
        assert [len(of_version) for of_version in files] == [0, 1, 2, 3, 4, 5, 6, 7, 5, 4]
        assert len(files[7] & files[8]) == 4


def test_delta_rs_from_object_storage(copies, storage, where):
    deltalake = reader("deltalake")
    options = storage | {"AWS_ALLOW_HTTP": "true"}

    def read(path, table, condition):
        delta = deltalake.DeltaTable(path, storage_options=options)
        query = deltalake.QueryBuilder().register("history", delta)
        answer = query.execute(f"select * from history where {condition}").read_all()
        return zip(*([cell.as_py() for cell in answer.column(name)] for name in columns(table)))

    check(copies, where, read)


def test_duckdb_from_object_storage(copies, storage, where):
    """What delta-rs hands over as Arrow: DuckDB's own reader of S3 is an extension that it downloads."""
    deltalake, duckdb = reader("deltalake"), reader("duckdb")
    reader("pyarrow")
    options = storage | {"AWS_ALLOW_HTTP": "true"}

    def read(path, table, condition):
        history = deltalake.DeltaTable(path, storage_options=options).to_pyarrow_dataset()
        connection = duckdb.connect()
        connection.register("history", history)
        return connection.execute(f"select * from history where {condition}").fetchall()

    check(copies, where, read)


def test_clickhouse_from_object_storage(copies, storage, where):
    chdb = reader("chdb")

    def read(path, table, condition):
        url = path.replace("s3://", f"{storage['AWS_ENDPOINT_URL']}/")
        source = f"deltaLake('{url}', '{storage['AWS_ACCESS_KEY_ID']}', '{storage['AWS_SECRET_ACCESS_KEY']}')"
        return clickhouse(chdb, source, table, condition)

    check(copies, where, read)

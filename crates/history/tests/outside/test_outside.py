"""Tables of history as others read them: the same rows as the library reads.

`make python` installs the readers and builds the program. `DTA_PROGRAMS` is the folder of the programs, if it is not `target/debug`.
"""

import importlib
import json
import os
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

PROGRAMS = Path(os.environ.get("DTA_PROGRAMS", Path(__file__).parents[4] / "target/debug"))


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


MOMENTS = ["opened", "closed"]

# By the beginning of a store's name. All tables have the moments of a row's epoch behind these.
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
        assert [field.name for field in delta.schema().fields] == columns(table) + MOMENTS
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
        return duckdb.execute(f"select * exclude (opened, closed) from read_parquet(?) where {condition}", [files]).fetchall()

    check(tables, where, read)


def test_rows_have_the_moments_of_their_epochs(tables):
    """Epoch n was opened n milliseconds after 1970, and closed in the next one."""
    deltalake = reader("deltalake")
    folder, made = tables
    for table in made:
        delta = deltalake.DeltaTable(f"{folder}/{table['store']}")
        query = deltalake.QueryBuilder().register("history", delta)
        answer = query.execute("select distinct epoch, opened, closed from history").read_all()
        rows = list(zip(*([cell.as_py() for cell in answer.column(name)] for name in ["epoch", *MOMENTS])))
        assert len(rows) > 1
        for epoch, *moments in rows:
            moments = [round(moment.timestamp() * 1000) for moment in moments]
            assert moments == [epoch, epoch + 1], table["store"]


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
        return connection.execute(f"select * exclude (opened, closed) from history where {condition}").fetchall()

    check(copies, where, read)


def test_clickhouse_from_object_storage(copies, storage, where):
    chdb = reader("chdb")

    def read(path, table, condition):
        url = path.replace("s3://", f"{storage['AWS_ENDPOINT_URL']}/")
        source = f"deltaLake('{url}', '{storage['AWS_ACCESS_KEY_ID']}', '{storage['AWS_SECRET_ACCESS_KEY']}')"
        return clickhouse(chdb, source, table, condition)

    check(copies, where, read)


def test_clickhouse_reads_two_collectors_as_one_table(tmp_path, storage):
    """The view of docs/history.md: each row once, with its collector."""
    chdb_session = reader("chdb.session")
    parts, expected = [], []
    for number in (1, 2):
        prefix = f"collector-{number}"
        command = [PROGRAMS / "examples/history_rows", tmp_path / prefix, f"s3://bucket/{prefix}"]
        made = subprocess.run(command, check=True, capture_output=True, env=os.environ | storage)
        table = next(table for table in json.loads(made.stdout) if table["store"].endswith(".flows"))
        url = f"{storage['AWS_ENDPOINT_URL']}/bucket/{prefix}/{table['store']}"
        source = f"deltaLake('{url}', '{storage['AWS_ACCESS_KEY_ID']}', '{storage['AWS_SECRET_ACCESS_KEY']}')"
        parts.append(f"select {number} as collector, * from {source}")
        expected += [[number, *row[:2]] for row in table["rows"]]
    session = chdb_session.Session(str(tmp_path / "clickhouse"))
    session.query(f"create database dta; create view dta.flows as {' union all '.join(parts)}")
    rows = session.query("select collector, epoch, flow from dta.flows", "JSONCompactEachRow")
    assert sorted([int(cell) for cell in json.loads(line)] for line in str(rows).splitlines()) == sorted(expected)


@pytest.fixture
def server(tmp_path):
    """ClickHouse's HTTP interface as far as inserts need it, in front of its engine: URL and session. Each insert is done twice, as if its answer
    had been lost."""
    session = reader("chdb.session").Session(str(tmp_path / "clickhouse"))
    session.query("create database dta")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            parameters = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
            (tmp_path / "body").write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
            statement, database = parameters.pop("query"), parameters.pop("database")
            # Not a setting but a parameter of the interface: that an answer comes when all is done.
            assert parameters.pop("wait_end_of_query") == "1"
            settings = ", ".join(f"{name} = '{value}'" for name, value in parameters.items())
            infile = f"FROM INFILE '{tmp_path}/body' SETTINGS {settings} FORMAT RowBinary"
            status, answer = 200, ""
            try:
                session.query(f"use {database}")
                if statement.startswith("INSERT"):
                    for _ in range(2):
                        session.query(statement.replace("FORMAT RowBinary", infile))
                else:
                    answer = str(session.query(statement, "TabSeparated"))
            except RuntimeError as error:
                # As the server says it.
                status, answer = 404, str(error)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer.encode())))
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever).start()
        yield f"http://127.0.0.1:{http.server_port}", session
        http.shutdown()
    session.close()


def test_rows_inserted_into_clickhouse(server, tmp_path):
    url, session = server
    command = [PROGRAMS / "examples/history_rows", tmp_path / "history", url]
    made = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for table in made:
        name, names = table["store"], columns(table)
        types = str(session.query(f"describe table dta.`{name}`", "JSONCompactEachRow"))
        types = [json.loads(line)[:2] for line in types.splitlines()]
        assert [column for column, _ in types] == ["collector", "opened", "closed", *names]
        is_bytes = [of.startswith("FixedString") for _, of in types[3:]]
        cells = [f"lower(hex(`{column}`))" if of else f"`{column}`" for column, of in zip(names, is_bytes)]
        query = f"select {', '.join(cells)} from dta.`{name}` where collector = 'c1' and closed >= opened"
        rows = map(json.loads, str(session.query(query, "JSONCompactEachRow")).splitlines())
        is_number = [of.startswith("UInt") for _, of in types[3:]]
        rows = [tuple(int(cell) if of else cell for cell, of in zip(row, is_number)) for row in rows]
        # Delta has no unsigned numbers.
        expected = [tuple(cell % 2**64 if of else cell for cell, of in zip(row, is_number)) for row in table["rows"]]
        assert len(rows) > 1000 or "checkpoint" in name
        assert sorted(rows) == sorted(expected), name
    # Moments are those of epochs.
    query = "select epoch, any(toUnixTimestamp64Milli(opened)), any(toUnixTimestamp64Milli(closed)) from dta.`key-write` group by epoch order by epoch"
    rows = [json.loads(line) for line in str(session.query(query, "JSONCompactEachRow")).splitlines()]
    assert [[int(cell) for cell in row] for row in rows] == [[n, n, n + 1] for n in (1, 2, 3, 4, 6)]

"""`dta-history serve` as ADBC's driver for Flight SQL sees it.

`make history` builds the program and installs the driver. `DTA_HISTORY` is the program, if it is not in `target/sql`; the folder of the
history is made by the example `history_rows` of `dta-history`.
"""

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PROGRAM = Path(os.environ.get("DTA_HISTORY", ROOT / "target/sql/dta-history"))
PROGRAMS = Path(os.environ.get("DTA_PROGRAMS", ROOT / "target/debug"))


def driver():
    """The driver; the test is skipped without it, but in CI it fails."""
    try:
        importlib.import_module("pyarrow")
        return importlib.import_module("adbc_driver_flightsql.dbapi")
    except ImportError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"it is not installed: {error}; run `make history`")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A connection to a server, and what the library reads in its folder."""
    dbapi = driver()
    folder = tmp_path_factory.mktemp("history")
    made = subprocess.run([PROGRAMS / "examples/history_rows", folder], check=True, capture_output=True)
    command = [PROGRAM, "serve", "--history", folder, "--listen", "127.0.0.1:0", "--query-rows", "1000000"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = json.loads(server.stdout.readline())["listen"]
        with dbapi.connect(f"grpc://{address}", autocommit=True) as connection:
            yield connection, json.loads(made.stdout)
    finally:
        server.terminate()
        assert server.wait(120) == 0


def test_rows_are_those_that_the_library_reads(served):
    connection, made = served
    for table in made:
        assert len(table["rows"]) > 10
        with connection.cursor() as cursor:
            cursor.execute(f'select * from "{table["store"]}"')
            answer = cursor.fetch_arrow_table()
        columns = [name for name in answer.column_names if name not in ("opened", "closed")]
        cells = zip(*(answer.column(name).to_pylist() for name in columns))
        rows = [tuple(cell.hex() if isinstance(cell, bytes) else cell for cell in row) for row in cells]
        assert sorted(rows) == sorted(tuple(row) for row in table["rows"])


def test_tables_and_columns_are_listed(served):
    connection, made = served
    objects = connection.adbc_get_objects(depth="columns").read_all().to_pylist()
    (catalog,) = objects
    (schema,) = [schema for schema in catalog["catalog_db_schemas"] if schema["db_schema_name"] == "history"]
    tables = {table["table_name"]: [column["column_name"] for column in table["table_columns"]] for table in schema["db_schema_tables"]}
    assert set(tables) == {"epochs", "gaps", "losses", *(table["store"] for table in made)}
    assert tables["key-write"] == ["epoch", "opened", "closed", "slot", "checksum", "value"]
    assert connection.adbc_get_info()["vendor_name"] == "dta-history"


def test_mistakes_are_errors_in_words(served):
    connection, _ = served
    dbapi = driver()
    with connection.cursor() as cursor:
        with pytest.raises(dbapi.Error, match="only reads"):
            cursor.execute("create table t as select 1")
            cursor.fetchall()
        cursor.execute("select 7")
        assert cursor.fetchone() == (7,)

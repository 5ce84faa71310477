"""Saves flows as Parquet, and prints what pyarrow and DuckDB read of them.

The argument is the page's address.
"""

import json
import pathlib
import sys
import tempfile
import urllib.request

import duckdb
from pyarrow import parquet

query = "api/v1/flows?group=dst,protocol,dst-port&format=parquet"
with urllib.request.urlopen(sys.argv[1] + query) as answer, tempfile.TemporaryDirectory() as folder:
    saved = pathlib.Path(folder) / "flows.parquet"
    saved.write_bytes(answer.read())
    table = parquet.read_table(saved)
    rows = [list(row.values()) for row in table.to_pylist()]
    total = duckdb.sql(f"SELECT sum(bytes)::BIGINT FROM '{saved}'").fetchall()[0][0]
print(json.dumps({
    "names": table.schema.names,
    "types": [str(column) for column in table.schema.types],
    "rows": rows,
    "bytes": total,
}))

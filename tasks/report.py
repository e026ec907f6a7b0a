"""Tables and figures: the one module of style."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.files import write_bytes


def write_client_table(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
    """A row for each client and round, as CSV."""
    columns = sorted({c for r in records for row in r["clients"].values() for c in row})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["round", "client", "dropped", *columns])
    for record in records:
        for client, row in record["clients"].items():
            values = ["" if row.get(c) is None else row[c] for c in columns]
            writer.writerow([record["round"], client, int(client in record["dropped"]), *values])
    write_bytes(path, text.getvalue().encode())
    return path

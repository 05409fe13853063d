"""JSON lines with a schema version: a ``run`` line first, what happened in between, a ``summary`` line last."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
KINDS = ("run", "warmup", "block", "note", "summary")


class RecordWriter:
    """Writes ``PATH.partial`` line by line and moves it to ``PATH`` when it is complete.

    A run that was interrupted leaves its lines in the partial file and the previous record as it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = path.with_name(path.name + ".partial")
        self._file = self._partial.open("w", encoding="ascii")

    def write(self, kind: str, **fields: Any) -> None:
        """One line. A number that is not finite is an error: what was not measured is -1."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is not a kind of record: {', '.join(KINDS)}")
        line = {"schema": SCHEMA_VERSION, "kind": kind, **fields}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def complete(self) -> None:
        self.abandon()
        os.replace(self._partial, self.path)

    def abandon(self) -> None:
        self._file.close()


def read_records(path: Path) -> list[dict[str, Any]]:
    """All lines of a complete record; a ``ValueError`` names the line that is not one."""
    records: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text(encoding="ascii").splitlines(), 1):
        line = json.loads(text)
        if not isinstance(line, dict) or line.get("schema") != SCHEMA_VERSION or line.get("kind") not in KINDS:
            raise ValueError(f"{path}:{number} is not a record of schema {SCHEMA_VERSION}")
        records.append(line)
    if not records or records[0]["kind"] != "run" or records[-1]["kind"] != "summary":
        raise ValueError(f"{path} does not begin with a run and end with a summary: the run did not end")
    return records

"""Calls a function of the tests in a child process: what it returned, how it ended, and what it wrote."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Called:
    exit_code: int  # the negative number of the signal that ended the child, if one did
    stdout: str
    stderr: str
    result: Any  # what the function returned; None when it did not return

    def checked(self) -> Any:
        """The result of a child that returned, exited with 0 and wrote nothing."""
        assert (self.exit_code, self.stdout, self.stderr) == (0, "", "")
        return self.result


def call_in_child(
    function: Callable[..., Any],
    *arguments: object,
    timeout: float = 120,
    environment: Mapping[str, str] | None = None,
) -> Called:
    """Call ``function``, found again by its module and name, with ``arguments`` (JSON or paths) in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        call = json.dumps([str(one) if isinstance(one, Path) else one for one in arguments])
        done = subprocess.run(
            [sys.executable, "-W", "error", "-m", __name__, function.__module__, function.__qualname__, str(result), call],
            capture_output=True, text=True, errors="replace", timeout=timeout, cwd=ROOT, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **(environment or {})},
        )  # fmt: skip
        returned = json.loads(result.read_text("utf-8")) if result.exists() else None
    return Called(done.returncode, done.stdout, done.stderr, returned)


def main(module: str, function: str, result: str, call: str) -> None:
    returned = getattr(importlib.import_module(module), function)(*json.loads(call))
    Path(result).write_text(json.dumps(returned), "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

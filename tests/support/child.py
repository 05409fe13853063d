"""Runs a program in a child interpreter: for what may kill, hang or end a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_child(program: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run ``program`` with ``arguments`` as its ``sys.argv[1:]``; the tests and this process's import path are its own too."""
    path = [str(ROOT), *(entry for entry in sys.path if entry)]
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True, text=True, timeout=timeout, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
    )  # fmt: skip


def assert_silent_success(done: subprocess.CompletedProcess[str], stdout: str | None = None) -> None:
    """The child ended by itself with status 0 and wrote nothing to stderr; ``stdout``: what it printed, if that matters."""
    assert (done.returncode, done.stderr) == (0, ""), f"status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert stdout is None or done.stdout.strip() == stdout, done.stdout[-2000:]

"""A program at a real pseudo-terminal: what a person would type, and what they would see."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

# Makes the terminal on stdin the controlling one, so that its Ctrl-C is a signal, and becomes the program.
_LAUNCHER = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


class Terminal:
    """``python *arguments`` at a terminal; ``stdout``: a file for that stream alone."""

    def __init__(self, arguments: Sequence[str], *, stdout: IO[bytes] | None = None, cwd: Path | None = None) -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, *arguments],
            stdin=theirs, stdout=stdout or theirs, stderr=theirs, start_new_session=True, env=environment, cwd=cwd,
        )  # fmt: skip
        os.close(theirs)
        self.seen = ""
        self._pending = b""

    def send(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def wait_for(self, text: str, timeout: float = 60) -> str:
        """Read until ``text`` has appeared after what was waited for last; returns all up to and including it."""
        deadline = time.monotonic() + timeout
        while text not in self.seen:
            assert self._read(deadline), f"{text!r} did not come; what came: {self.seen!r}"
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def wait_for_more(self, n_characters: int, timeout: float = 60) -> None:
        """Read until so many characters have come after what was waited for last."""
        deadline = time.monotonic() + timeout
        while len(self.seen) < n_characters:
            assert self._read(deadline), f"no more came than {self.seen!r}"

    def finish(self, timeout: float = 60) -> int:
        """Read to the end; returns the exit status."""
        deadline = time.monotonic() + timeout
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            piece = os.read(self._ours, 65536)
        except OSError:  # the other end is closed: EIO
            return False
        self._pending += piece
        text = self._pending.decode("utf-8", "ignore")
        self._pending = self._pending[len(text.encode()) :]
        self.seen += text
        return bool(piece)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._ours)
        self.process.kill()
        self.process.wait()

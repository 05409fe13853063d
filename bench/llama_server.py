"""Runs one llama-server and asks it over its own HTTP."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aner.measure import MISSING
from peers import Peer
from timed import Timed

START_TIMEOUT_S = 60.0
SETTLE_S = 0.3  # after an answer the program's workers poll for more before they sleep: not into somebody else's sample


@dataclass(frozen=True)
class Settings:
    """Options by their long names; None leaves the program's own default."""

    name: str
    context: int
    threads: int | None = None
    batch_size: int | None = None
    ubatch_size: int | None = None
    flash_attn: str | None = None
    parallel: int | None = None
    more: tuple[str, ...] = ()

    def arguments(self) -> list[str]:
        given = {
            "--ctx-size": self.context,
            "--threads": self.threads,
            "--threads-batch": self.threads,
            "--batch-size": self.batch_size,
            "--ubatch-size": self.ubatch_size,
            "--flash-attn": self.flash_attn,
            "--parallel": self.parallel,
        }
        return [word for name, value in given.items() if value is not None for word in (name, str(value))] + [*self.more]


class Server:
    """A running server: one request at a time, each over a connection of its own that stands before the clock starts."""

    def __init__(self, port: int) -> None:
        self._port = port

    def complete(self, prompt: Sequence[int], max_tokens: int, *, ignore_eos: bool = False) -> Timed:
        """One greedy request with the server's prompt cache on, read event by event."""
        body = json.dumps(
            {
                "prompt": list(prompt),
                "n_predict": max_tokens,
                "temperature": 0.0,
                "samplers": ["top_k"],
                "top_k": 1,
                "cache_prompt": True,
                "ignore_eos": ignore_eos,
                "stream": True,
            }
        )
        text = ""
        pieces: list[float] = []
        last: dict[str, Any] = {}
        with closing(self._connection()) as connection:
            started = time.perf_counter_ns()
            connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"llama-server answered {answer.status}: {answer.read(2000)!r}")
            while not last:
                line = answer.readline()
                if not line:
                    raise RuntimeError("llama-server ended its answer early")
                if not line.startswith(b"data: "):
                    continue
                event: dict[str, Any] = json.loads(line[6:])
                text += event["content"]
                if event["content"]:
                    pieces.append((time.perf_counter_ns() - started) / 1e6)
                last = event if event["stop"] else {}
            total = (time.perf_counter_ns() - started) / 1e6
        time.sleep(SETTLE_S)
        details = {
            "timings": last["timings"],
            "text_hash": hashlib.sha256(text.encode()).hexdigest(),
            "finish_reason": last["stop_type"],
        }
        first = pieces[0] if pieces else MISSING
        return Timed(last["timings"]["predicted_n"], first, total, details, pieces_ms=tuple(pieces))

    def healthy(self) -> bool:
        try:
            with closing(self._connection()) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def _connection(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=300)
        connection.connect()
        return connection


@contextmanager
def serving(peer: Peer, model: Path, settings: Settings) -> Iterator[Server]:
    """The program, started, warmed up by itself, and stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(peer.path), "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *settings.arguments()]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            server = Server(port)
            deadline = time.monotonic() + START_TIMEOUT_S
            while not server.healthy():
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"{' '.join(command)} did not start: {log.read()[-2000:]!r}")
                time.sleep(0.05)
            yield server
        finally:
            process.terminate()
            process.wait()

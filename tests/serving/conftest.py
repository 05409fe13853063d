"""Applications for the tests: real servers on free ports, over small models."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from aner import api, llm

ENDLESS = {"max_tokens": 1800, "ignore_eos": True}


@pytest.fixture(scope="package")
def exact(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    """An ordinary lease whose tokens depend on the request alone."""
    with llm.load(synthetic("llama"), context=512, reproducible=True) as model:
        yield model


@pytest.fixture(scope="package")
def batching(exact: llm.Model) -> Iterator[llm.Model]:
    """The same model with two slots."""
    with exact.with_batching(2) as model:
        yield model


@pytest.fixture(scope="package")
def roomy(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    """An ordinary lease with room for requests that take long."""
    with llm.load(synthetic("llama"), context=4096) as model:
        yield model


@pytest.fixture(scope="package")
def url(batching: llm.Model, exact: llm.Model) -> Iterator[str]:
    """A server with a batching path that keeps sessions, and an ordinary one."""
    app = (
        api.app("Test").llm(path="/chat", model=batching, alias="batched").llm(path="/plain", model=exact, alias="plain")
        .sessions("/chat", exact, max_sessions=2).bind(port=0).limits(max_rows=8).output_limit(64)
    )  # fmt: skip
    with app.running() as running:
        yield running


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as made:
        yield made


def sent(url: str, body: dict[str, Any]) -> socket.socket:
    """A connection that has sent a request and reads nothing."""
    connection = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
    content = json.dumps(body).encode()
    head = f"POST /chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


@contextlib.contextmanager
def occupied(url: str, n: int) -> Iterator[Callable[[], None]]:
    """``n`` streams that last until the function is called, or the block is left."""
    connections = [sent(url, {"prompt": "a", "stream": True, **ENDLESS}) for _ in range(n)]

    def release() -> None:
        for connection in connections:
            connection.close()

    try:
        yield release
    finally:
        release()


def load_of(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/aner/status") as answer:  # at once, unlike a new client of httpx
        return json.load(answer)["load"]  # type: ignore[no-any-return]


def becomes(url: str, seconds: float = 10, **wanted: int) -> None:
    """Wait until the load has these figures."""
    until = time.monotonic() + seconds
    while {name: load_of(url)[name] for name in wanted} != wanted:
        assert time.monotonic() < until, load_of(url)
        time.sleep(0.01)


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, which has the shape that OpenAI clients know."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return answer.status_code, error["code"]

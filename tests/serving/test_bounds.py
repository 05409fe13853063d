"""What a server refuses, and that it is well afterwards: bad bodies, too much, too slow, too many, and clients that go away."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from aner import api, llm
from tests.serving.conftest import ENDLESS, becomes, error_of, load_of, occupied, sent

JSON = {"content-type": "application/json"}


def is_well(url: str) -> None:
    assert httpx.post(f"{url}/chat", json={"prompt": "Hello", "max_tokens": 1}).status_code == 200


def raw(url: str, *parts: bytes, pause: float = 0.0, seconds: float = 15) -> bytes:
    """What comes back for these bytes, sent with pauses, until the server closes or the time is over."""
    port = int(url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
        answer = b""
        with contextlib.suppress(ConnectionError, TimeoutError):
            while received := connection.recv(65536):
                answer += received
    return answer


# -- bodies ------------------------------------------------------------------------------------------------------------------

BODIES = {
    "cut": b"{:",
    "empty": b"",
    "latin-1": '{"prompt": "gr\u00fc\u00dfe"}'.encode("latin-1"),
    "array": b"[]",
    "null": b"null",
    "number": b"1",
    "prompt-object": b'{"prompt": {"a": 1}}',
    "prompt-null": b'{"prompt": null}',
    "prompt-list": b'{"prompt": ["a"]}',
    "deep": b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep-open": b"[" * 100_000,
    "nan": b'{"prompt": "a", "temperature": NaN}',
    "infinite": b'{"prompt": "a", "temperature": 1e999}',
    "huge-number": b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}",
    "seed": b'{"prompt": "a", "seed": 18446744073709551616}',
    "seed-text": b'{"prompt": "a", "seed": "x"}',
    "top_p": b'{"prompt": "a", "top_p": -1}',
    "top_k": b'{"prompt": "a", "top_k": -5}',
    "repeat": b'{"prompt": "a", "repeat_penalty": 0}',
    "hot": b'{"prompt": "a", "temperature": 1000000}',
    "max_tokens": b'{"prompt": "a", "max_tokens": -1}',
    "max_tokens-bool": b'{"prompt": "a", "max_tokens": true}',
    "surrogate": b'{"prompt": "\\ud800"}',
    "surrogate-message": b'{"messages": [{"role": "user", "content": "\\udc00"}]}',
    "stop": b'{"prompt": "a", "stop": [1]}',
    "unknown": b'{"prompt": "a", "no_such_field": 1}',
    "both": b'{"prompt": "a", "messages": [{"role": "user", "content": "a"}]}',
    "no-messages": b'{"messages": []}',
    "role": b'{"messages": [{"content": "a"}]}',
    "content": b'{"messages": [{"role": "user", "content": null}]}',
    "image": b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}',
    "message-text": b'{"messages": ["a"]}',
}


@pytest.mark.contract("E2", "H4")
@pytest.mark.parametrize("path", ["/chat", "/plain", "/v1/chat/completions"])
@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_a_400_and_the_server_is_well(url: str, client: httpx.Client, path: str, name: str) -> None:
    answer = client.post(path, content=BODIES[name], headers=JSON)
    assert error_of(answer)[0] == 400
    is_well(url)


@pytest.mark.contract("H4")
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_refused_with_both_counts(client: httpx.Client, stream: bool) -> None:
    for path in ("/chat", "/plain"):
        answer = client.post(path, json={"prompt": "word " * 600, "stream": stream})
        assert error_of(answer) == (400, "context_length_exceeded")
        assert "512" in answer.text


@pytest.mark.contract("H4")
def test_rows_and_tokens_beyond_the_limits_are_refused(client: httpx.Client) -> None:
    message = {"role": "user", "content": "a"}
    assert error_of(client.post("/chat", json={"messages": [message] * 9})) == (400, "too_many_rows")
    assert error_of(client.post("/v1/completions", json={"model": "plain", "prompt": ["a"] * 9})) == (400, "too_many_rows")
    assert error_of(client.post("/v1/completions", json={"model": "plain", "prompt": ["a"] * 3, "n": 3})) == (
        400,
        "too_many_rows",
    )
    assert error_of(client.post("/chat", json={"prompt": "a", "max_tokens": 65})) == (400, "max_tokens_exceeded")


@pytest.mark.contract("H4")
def test_a_large_body_is_a_413_announced_or_not(url: str, client: httpx.Client) -> None:
    def chunks(n_bytes: int) -> Iterator[bytes]:
        for _ in range(n_bytes // 65536):
            yield b" " * 65536

    for n_bytes in (8 * 1024, 50 * 1024, 2**20):
        body = json.dumps({"prompt": "a", "stop": "x" * n_bytes}).encode()
        assert error_of(client.post("/chat", content=body, headers=JSON))[0] == 400  # read whole; the stop string is too long
    for n_bytes in (3 * 2**20, 100 * 2**20):
        assert error_of(client.post("/chat", content=chunks(n_bytes), headers=JSON)) == (413, "body_too_large")
        assert error_of(client.post("/chat", content=b" " * n_bytes, headers=JSON)) == (413, "body_too_large")
    expecting = b"POST /chat HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 104857600\r\n\r\n"
    assert raw(url, expecting).startswith(b"HTTP/1.1 413 ")
    is_well(url)


@pytest.mark.contract("H4")
def test_a_body_must_say_that_it_is_json(client: httpx.Client) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    for headers in ({}, {"content-type": "text/plain"}, {**JSON, "content-encoding": "gzip"}):
        assert error_of(client.post("/chat", content=body, headers=headers)) == (415, "unsupported_media_type")
    assert client.post("/chat", content=body, headers={"content-type": "application/json; charset=utf-8"}).status_code == 200


@pytest.mark.contract("H4")
def test_what_is_sent_too_slowly_is_ended(exact: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=exact).bind(port=0)
    with app.limits(body_timeout_ms=300, header_timeout_ms=400).running() as running:
        head = b"POST /chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        drip = [bytes([byte]) for byte in b'{"prompt": "aaaaaaaaaaaaaaaaaaaa'] * 2
        assert raw(running, head, *drip, pause=0.05).startswith(b"HTTP/1.1 408 ")
        assert raw(running, b"POST /chat HT", *drip, pause=0.05).startswith(b"HTTP/1.1 408 ")
        before = time.monotonic()
        assert raw(running) == b""  # nothing was sent
        assert time.monotonic() - before < 5
        is_well(running)


@pytest.mark.contract("H4", "E2")
@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\xff\x16\x03\x01\r\n\r\n",
        b"GET /\r\n\r\n",
        b"POST /chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
        b"POST /chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"POST /chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_not_http_is_a_400_and_the_server_is_well(url: str, sent: bytes) -> None:
    assert raw(url, sent, seconds=5).startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    is_well(url)


# -- capacity and time -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H4", "H8")
@pytest.mark.real_model
@pytest.mark.parametrize("batched", [False, True])
def test_beyond_the_slots_and_eight_waiting_a_request_is_busy_at_once_and_health_answers(
    demo_model: llm.Model, batched: bool
) -> None:
    model = demo_model.with_batching(1) if batched else demo_model
    app = api.app("Test").llm(path="/chat", model=model).bind(port=0).output_limit(1800)
    with app.running() as running, httpx.Client(base_url=running, timeout=30) as client:
        with occupied(running, 9):
            becomes(running, running=1, waiting=8)
            before = time.monotonic()
            refused = client.post("/chat", json={"prompt": "a"})
            assert error_of(refused) == (429, "busy")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert time.monotonic() - before < 0.5
            assert 'aner_rejections_total{code="busy"} 1.0' in client.get("/metrics").text
        becomes(running, running=0, waiting=0)
        long = {"prompt": "word " * 1500, "max_tokens": 1}
        with sent(running, long), occupied(running, 8):  # behind its prefill
            becomes(running, running=1, waiting=8)
            durations = []
            for _ in range(10):
                before = time.monotonic()
                assert client.get("/readyz").json() == {"status": "ready"}
                durations.append(time.monotonic() - before)
            assert load_of(running)["running"] == 1
        becomes(running, running=0, waiting=0)
        assert max(durations) < 0.1, durations
        is_well(running)
    if batched:
        model.close()


@pytest.mark.contract("H4")
@pytest.mark.parametrize("batched", [False, True])
def test_over_time_is_a_504_running_or_waiting_and_the_work_stops(roomy: llm.Model, batched: bool) -> None:
    model = roomy.with_batching(1) if batched else roomy
    app = api.app("Test").llm(path="/chat", model=model).bind(port=0).output_limit(3000).limits(timeout_ms=250)
    body = {"prompt": "a", **ENDLESS}
    with app.running() as running, ThreadPoolExecutor(3) as pool:
        before = time.monotonic()
        answers = [*pool.map(lambda _: httpx.post(f"{running}/chat", json=body), range(3))]
        assert [error_of(one) for one in answers] == [(504, "timeout")] * 3
        assert time.monotonic() - before < 1.5
        assert answers[0].headers["x-should-retry"] == "false"
        becomes(running, seconds=2, running=0, waiting=0)
        streamed = httpx.post(f"{running}/chat", json={**body, "stream": True}).text
        assert '"code":"timeout"' in streamed.split("\n\n")[-2]
        is_well(running)
    if batched:
        model.close()


@pytest.mark.contract("H4")
def test_connections_are_bounded_and_health_still_answers(exact: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=exact).bind(port=0).limits(max_connections=3)
    with app.running() as running, contextlib.ExitStack() as held:
        port = int(running.rpartition(":")[2])
        for _ in range(3):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        time.sleep(0.1)
        refused = httpx.post(f"{running}/chat", json={"prompt": "a"})
        assert error_of(refused) == (429, "too_many_connections")
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{running}/livez").status_code == 200
        for _ in range(4):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"{running}/livez")
        held.close()
        time.sleep(0.1)
        is_well(running)


# -- clients that go away ----------------------------------------------------------------------------------------------------


@pytest.mark.contract("H5")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_a_client_that_goes_away_stops_costing_queued_or_running(roomy: llm.Model, batched: bool, stream: bool) -> None:
    model = roomy.with_batching(1) if batched else roomy
    app = api.app("Test").llm(path="/chat", model=model).bind(port=0).output_limit(3900)
    body = {"prompt": "a", "stream": stream, "max_tokens": 3900, "ignore_eos": True}
    with app.running() as running:
        running_one, *queued = [sent(running, body) for _ in range(3)]
        becomes(running, running=1, waiting=2)
        queued[0].close()
        becomes(running, seconds=1, running=1, waiting=1)
        running_one.close()
        becomes(running, seconds=1, running=1, waiting=0)
        queued[1].close()
        becomes(running, seconds=1, running=0, waiting=0, requests=1)  # the one that asks
        metrics = httpx.get(f"{running}/metrics").text
        assert f'aner_cancel_seconds_count{{model="{load_of(running)["models"][0]["alias"]}"}} 3.0' in metrics
        assert "aner_requests_total{" not in metrics  # nothing ran to its end
        is_well(running)
    if batched:
        model.close()


@pytest.mark.contract("H5")
def test_a_client_that_goes_away_in_its_prefill_stops_costing(roomy: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=roomy).bind(port=0)
    with app.running() as running:
        for _ in range(3):
            sent(running, {"prompt": "word " * 700, "max_tokens": 1}).close()
        becomes(running, seconds=3, running=0, waiting=0)
        is_well(running)


@pytest.mark.contract("H4")
def test_a_client_that_does_not_read_is_given_up_when_its_time_is_over(roomy: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=roomy).bind(port=0).output_limit(3900).limits(timeout_ms=1000)
    body = {"prompt": "a", "stream": True, "max_tokens": 3900, "ignore_eos": True, "logit_bias": {}}
    with app.running() as running, sent(running, body) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        becomes(running, running=1)
        becomes(running, seconds=6, running=0, waiting=0, requests=1)
        is_well(running)


@pytest.mark.contract("H3", "H5")
def test_answers_are_those_of_each_client_alone_while_others_come_and_go(exact: llm.Model) -> None:
    """48 requests by 15 clients, each with a marker of its own and a third of them abandoned."""
    expected = {n: exact.generate(f"marker {n} " * 4, max_tokens=24).output_hash() for n in range(48) if n % 3}
    with exact.with_batching(4) as model:
        app = api.app("Test").llm(path="/chat", model=model).bind(port=0)
        with app.running() as running, ThreadPoolExecutor(15) as pool:

            def one(n: int) -> tuple[int, str]:
                body = {"prompt": f"marker {n} " * 4, "max_tokens": 24}
                if n % 3 == 0:
                    sent(running, {**body, "max_tokens": 256, "ignore_eos": True}).close()
                    return n, ""
                while (answer := httpx.post(f"{running}/chat", json=body)).status_code == 429:
                    time.sleep(0.05)
                return n, answer.json()["output_hash"]

            found = {n: output_hash for n, output_hash in pool.map(one, range(48)) if output_hash}
            becomes(running, seconds=5, running=0, waiting=0)
    assert found == expected


@pytest.mark.contract("H5", "Z2")
def test_after_clients_that_were_killed_at_random_every_slot_is_free_and_memory_is_flat(exact: llm.Model) -> None:
    expected = exact.generate("Hello", max_tokens=20).output_hash()
    with exact.with_batching(4) as model:
        app = api.app("Test").llm(path="/chat", model=model, alias="m").llm(path="/plain", model=exact, alias="p").bind(port=0)
        with app.running() as running, ThreadPoolExecutor(6) as pool:

            def killed(seed: int) -> None:
                chance = random.Random(seed)
                body = {"prompt": "word " * chance.randrange(1, 80), "stream": chance.random() < 0.5, "max_tokens": 200}
                with sent(running, body) as connection:
                    connection.settimeout(chance.random() * 0.06)
                    with contextlib.suppress(TimeoutError, ConnectionError):
                        while connection.recv(4096):
                            pass

            sizes = []
            for part in range(4):
                for _ in pool.map(killed, range(part * 60, part * 60 + 60)):
                    pass
                becomes(running, running=0, waiting=0)
                sizes.append(psutil.Process().memory_info().rss)
            assert max(sizes[2:]) - sizes[1] < 8 * 2**20, sizes
            for path in ("/chat", "/plain"):
                answer = httpx.post(f"{running}{path}", json={"prompt": "Hello", "max_tokens": 20}).json()
                assert answer["output_hash"] == expected


@pytest.mark.contract("H4")
def test_a_small_answer_is_not_held_back_by_the_connection(url: str) -> None:
    """Small packets leave at once: an answer does not wait for the acknowledgement of the one before."""
    connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]))
    durations = []
    for _ in range(30):
        before = time.monotonic()
        connection.request("POST", "/chat", json.dumps({"prompt": "a", "max_tokens": 1}), JSON)
        connection.getresponse().read()
        durations.append(time.monotonic() - before)
    connection.close()
    assert statistics.median(durations) < 0.03

"""Running a server: health, metrics, keys, TLS, CORS, names, logs, draining, the command."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from aner import api, llm
from tests.serving.conftest import becomes, error_of, load_of

pytestmark = pytest.mark.contract("H8")

KEY = "first-key-of-the-test"
CHAT = {"prompt": "Hello", "max_tokens": 2}


# -- health, status, metrics -------------------------------------------------------------------------------------------------


def test_health_is_answered(client: httpx.Client) -> None:
    assert client.get("/livez").json() == {"status": "alive"}
    assert client.get("/readyz").json() == client.get("/health").json() == {"status": "ready"}


def test_status_tells_what_is_served_and_how_busy_it_is(client: httpx.Client, batching: llm.Model, exact: llm.Model) -> None:
    status = client.get("/aner/status").json()
    batched, plain = status["models"]
    assert status["name"] == "Test"
    assert (batched["path"], batched["alias"], batched["context"]) == ("/chat", "batched", 512)
    assert (batched["profile"]["max_sequences"], plain["profile"]["max_sequences"]) == (2, 0)
    assert "continuous_batching" in batched["supports"]
    assert "session" in plain["supports"]
    assert batched["fingerprint"] == plain["fingerprint"] == exact.fingerprint()
    assert (status["load"]["running"], status["load"]["waiting"], status["load"]["draining"]) == (0, 0, False)
    assert status["load"]["slots"] == 2 + 1 + 1  # batching, sessions, plain


def test_metrics_count_what_was_done(batching: llm.Model, exact: llm.Model) -> None:
    with exact.with_optimizer(0, 0, 512, 128, 1, 256, 4) as tuned:
        app = api.app("Test").llm("/chat", batching, alias="b").llm("/fast", tuned, alias="t").bind(port=0)
        with app.running() as running, httpx.Client(base_url=running) as client:
            timings = [client.post("/chat", json={**CHAT, "max_tokens": n}).json()["timings"] for n in (5, 6)]
            copying = {"prompt": "one two three " * 6, "max_tokens": 200, "ignore_eos": True}
            fast = [client.post("/fast", json=copying).json()["timings"] for _ in range(2)]
            client.post("/chat", json={"prompt": 1})
            text = client.get("/metrics").text

    def figure(name: str, labels: str) -> float:
        found = re.search(rf"^{name}{{{labels}}} (\S+)$", text, re.MULTILINE)
        assert found, f"{name}{{{labels}}} is not in:\n{text}"
        return float(found[1])

    assert figure("aner_output_tokens_total", 'model="b"') == sum(one["output_tokens"] for one in timings)
    assert figure("aner_input_tokens_total", 'model="b"') == sum(one["input_tokens"] for one in timings)
    assert figure("aner_cached_input_tokens_total", 'model="t"') == fast[1]["cached_input_tokens"] > 0
    for name in ("proposed", "accepted"):
        counted = sum(one[f"speculative_{name}_tokens"] for one in fast)
        assert figure(f"aner_speculative_{name}_tokens_total", 'model="t"') == counted > 0
    assert figure("aner_first_token_seconds_count", 'model="b"') == 2
    assert figure("aner_output_token_seconds_count", 'model="b"') == 2
    assert figure("aner_queue_seconds_count", 'model="b"') == 2
    assert figure("aner_slots", 'model="b"') == 2
    assert figure("aner_running", 'model="b"') == figure("aner_waiting", 'model="b"') == 0
    assert figure("aner_kv_bytes", 'model="b"') == batching.memory_summary()["kv_bytes_per_context"] > 0
    assert figure("aner_rejections_total", 'code="invalid_request"') == 1


# -- who may use it ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(exact: llm.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """A server with two keys, of a file."""
    file = tmp_path / "keys"
    file.write_text(f"# who is who\n{KEY}\n\nsecond-key-of-the-test\n", "utf-8")
    app = api.app("Test").llm(path="/chat", model=exact, alias="m").bind(port=0).api_keys(file=file)
    assert KEY not in repr(app)
    with caplog.at_level(logging.DEBUG), app.running() as running:
        yield running
    assert KEY not in caplog.text


def test_a_key_opens_everything_and_only_health_is_open_without(locked: str) -> None:
    with httpx.Client(base_url=locked) as client:
        for path in ("/livez", "/readyz", "/health"):
            assert client.get(path).status_code == 200
        for path in ("/metrics", "/v1/models", "/aner/status", "/openapi.json", "/no/such/path"):
            assert error_of(client.get(path)) == (401, "invalid_api_key")
        for header in ("", "Bearer", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"Basic {KEY}", KEY, "Bearer \u00fc"):
            refused = client.post("/chat", json=CHAT, headers={"Authorization": header.encode("latin-1")})
            assert error_of(refused) == (401, "invalid_api_key")
            assert refused.headers["www-authenticate"] == "Bearer"
        for key in (KEY, "second-key-of-the-test"):
            assert client.post("/chat", json=CHAT, headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/metrics", headers={"Authorization": f"bearer {KEY}"}).status_code == 200


def test_keys_may_come_from_the_environment(exact: llm.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS_OF_THE_TEST", f" {KEY},another-key")
    app = api.app("Test").llm(path="/chat", model=exact).bind(port=0).api_keys(environment="KEYS_OF_THE_TEST")
    with app.running() as running:
        assert httpx.post(f"{running}/chat", json=CHAT).status_code == 401
        assert httpx.post(f"{running}/chat", json=CHAT, headers={"Authorization": "Bearer another-key"}).status_code == 200


def test_no_page_elsewhere_may_call_it_unless_it_was_asked_for(url: str, exact: llm.Model) -> None:
    origin = {"Origin": "https://example.org"}
    asking = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    refused = httpx.options(f"{url}/chat", headers=asking)
    answered = httpx.post(f"{url}/chat", json=CHAT, headers=origin)
    assert not [name for one in (refused, answered) for name in one.headers if name.startswith("access-control")]
    app = api.app("Test").llm(path="/chat", model=exact).bind(port=0).cors("https://example.org").api_keys(KEY)
    with app.running() as running:
        assert httpx.options(f"{running}/chat", headers=asking).headers["access-control-allow-origin"] == "https://example.org"
        denied = httpx.post(f"{running}/chat", json=CHAT, headers=origin)
        assert error_of(denied) == (401, "invalid_api_key")
        assert denied.headers["access-control-allow-origin"] == "https://example.org"
        other = httpx.post(f"{running}/chat", json=CHAT, headers={"Origin": "https://example.com"})
        assert "access-control-allow-origin" not in other.headers


def test_a_name_that_is_not_this_machines_is_refused_where_no_key_protects(url: str, exact: llm.Model) -> None:
    for host in ("localhost", "localhost:1", "127.0.0.1:5", "[::1]:5", "LOCALHOST"):
        assert httpx.get(f"{url}/livez", headers={"Host": host}).status_code == 200
    for host in ("attacker.example", "localhost.attacker.example:11435", "127.0.0.1.attacker.example"):
        assert error_of(httpx.get(f"{url}/livez", headers={"Host": host})) == (403, "host_not_allowed")
    app = api.app("Test").llm(path="/chat", model=exact).bind(port=0, names=["models.example"])
    with app.running() as running:
        assert httpx.get(f"{running}/livez", headers={"Host": "Models.example"}).status_code == 200


def test_tls_serves_https(exact: llm.Model, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    app = api.app("Test").llm(path="/chat", model=exact).bind(port=0).tls(certificate, key)
    with app.running() as running:
        assert running.startswith("https://127.0.0.1:")
        with httpx.Client(base_url=running, verify=ssl.create_default_context(cafile=str(certificate))) as client:
            assert client.post("/chat", json=CHAT).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(running.replace("https", "http") + "/livez")


def test_logs_hold_no_prompt_and_no_answer(
    exact: llm.Model, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "the launch code is 8231"
    with caplog.at_level(logging.DEBUG), api.app("Test").llm(path="/chat", model=exact).bind(port=0).running() as running:
        answer = httpx.post(f"{running}/chat", json={"prompt": secret, "max_tokens": 20}).json()
        httpx.post(f"{running}/chat", json={"prompt": secret, "temperature": -1})
        httpx.post(f"{running}/chat", json={"prompt": secret, secret: 1})
        httpx.post(f"{running}/chat", content=json.dumps({"prompt": secret})[:-1], headers={"content-type": "application/json"})
    ours = "\n".join(one.getMessage() for one in caplog.records if not one.name.startswith("http"))
    assert "POST '/chat' 200" in ours
    assert "POST '/chat' 400" in ours
    assert secret not in ours
    assert answer["text"] not in ours
    assert capfd.readouterr() == ("", "")


# -- ending ------------------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from aner import api, llm
base = llm.load(sys.argv[1], context=4096)
model = base.with_batching(2)
app = api.app("Test").llm(path="/chat", model=model).bind(port=0).output_limit(3900).limits(drain_timeout_ms=int(sys.argv[2]))
app.serve(ready=lambda url: print(url, flush=True))
print("over", flush=True)
"""


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


def served(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    line = running.stdout.readline().strip()
    assert line.startswith("http://"), running.communicate()
    return line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_unready_at_once_accepted_work_finishes_exit_0(synthetic: Callable[[str], Path], number: int) -> None:
    with process(sys.executable, "-c", PROGRAM, str(synthetic("llama")), "60000") as running:
        url = served(running)
        answers: list[httpx.Response] = []
        body = {"prompt": "a", "max_tokens": 700, "ignore_eos": True}
        threads = [
            threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/chat", json=body, timeout=180))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        becomes(url, running=2, waiting=1)
        with httpx.Client(base_url=url) as client:
            client.get("/livez")
            running.send_signal(number)
            time.sleep(0.05)
            assert error_of(client.get("/readyz")) == (503, "shutting_down")
            assert client.get("/livez").status_code == 200
            refused = client.post("/chat", json=CHAT)
            assert error_of(refused) == (503, "shutting_down")
        for thread in threads:
            thread.join()
        assert [(one.status_code, one.json()["usage"]["output_tokens"]) for one in answers] == [(200, 700)] * 3
        output, errors = running.communicate(timeout=20)
        assert (running.returncode, output, errors) == (0, "over\n", "")


def test_work_that_outlasts_the_drain_time_is_ended_and_told_so(synthetic: Callable[[str], Path]) -> None:
    with process(sys.executable, "-c", PROGRAM, str(synthetic("llama")), "100") as running:
        url = served(running)
        answers: list[httpx.Response] = []
        body = {"prompt": "a", "max_tokens": 3900, "ignore_eos": True}
        threads = [
            threading.Thread(target=lambda: answers.append(httpx.post(f"{url}/chat", json=body, timeout=60))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        becomes(url, running=2, waiting=4)
        running.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert {error_of(one) for one in answers if one.status_code != 200} == {(503, "shutting_down")}
        assert running.wait(timeout=10) == 0


def test_the_end_of_running_leaves_nothing_behind(batching: llm.Model) -> None:
    def descriptors() -> int:
        gc.collect()  # an event loop goes with its cycles
        return len(os.listdir("/proc/self/fd"))

    def once() -> None:
        with api.app("Test").llm(path="/chat", model=batching).bind(port=0).running() as running:
            assert httpx.post(f"{running}/chat", json=CHAT).status_code == 200

    once()
    before, threads = descriptors(), threading.active_count()
    for _ in range(3):
        once()
    assert (descriptors(), threading.active_count()) == (before, threads)


def test_asgi_is_served_by_a_server_of_ones_own(exact: llm.Model) -> None:
    import asyncio

    application = api.app("Test").llm(path="/chat", model=exact).asgi()

    async def answers() -> list[int]:
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [(await client.post("/chat", json=CHAT)).status_code, (await client.post("/chat", json={})).status_code]

    assert asyncio.run(answers()) == [200, 400]


# -- the command -------------------------------------------------------------------------------------------------------------


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "aner", "serve", *map(str, arguments)]


def test_the_command_serves_with_options_and_a_file(synthetic: Callable[[str], Path], tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    keys, config = tmp_path / "keys", tmp_path / "serve.toml"
    keys.write_text(KEY, "utf-8")
    config.write_text(
        f'port = {port}\nalias = "mine"\nmax_sequences = 3\nmax_tokens = 9\ncontext = 512\nmax_sessions = 1\nreproducible = true\n'
        f'api_key_file = "{keys}"\ncors_origin = ["https://example.org"]\n',
        "utf-8",
    )
    with process(*command(synthetic("llama"), "--config", config, "--max-tokens", 7, "--path", "/talk")) as running:
        assert running.stderr is not None
        line = running.stderr.readline()
        assert f"http://127.0.0.1:{port}" in line
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {KEY}"}) as client:
            model = client.get("/aner/status").json()["models"][0]
            assert (model["path"], model["alias"], model["context"]) == ("/talk", "mine", 512)
            assert model["profile"]["max_sequences"] == 3
            assert client.post("/talk", json={"prompt": "a", "ignore_eos": True}).json()["usage"]["output_tokens"] == 7
            assert client.post("/talk/sessions").status_code == 201
        running.send_signal(signal.SIGTERM)
        output, errors = running.communicate(timeout=20)
    assert (running.returncode, output, errors) == (0, "", "")


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("port", "port = 70000"),
        ("port", 'port = "x"'),
        ("port", "port = 1.5"),
        ("max_rows", "max_rows = 0"),
        ("max_rows", "max_rows = true"),
        ("no_such_setting", "no_such_setting = 1"),
        ("path", 'path = "chat"'),
        ("temperature", "temperature = -1"),
        ("api_key", 'api_key_file = "/nowhere/keys"'),
        ("tls", 'tls_certificate = "/nowhere.pem"'),
        ("max_sequences", "max_sequences = 600"),
        ("config", "port = "),
        ("limits", "[limits]\nmax_rows = 1"),
    ],
)
def test_a_wrong_setting_fails_at_start_with_its_name(
    synthetic: Callable[[str], Path], tmp_path: Path, named: str, text: str
) -> None:
    config = tmp_path / "serve.toml"
    config.write_text(text, "utf-8")
    done = subprocess.run(command(synthetic("llama"), "--config", config), capture_output=True, text=True, timeout=60)
    assert done.returncode in {1, 2}, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert named in done.stderr.replace("-", "_") or named in done.stderr


def test_the_load_of_an_idle_server_is_nothing(url: str) -> None:
    load = load_of(url)
    assert (load["running"], load["waiting"]) == (0, 0)

"""Our own endpoint: what it answers, what it refuses, conversations that it keeps."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from aner import api, llm
from aner.errors import ConfigurationError
from tests.serving.conftest import becomes, error_of


def events(answer: httpx.Response) -> Iterator[tuple[str, Any]]:
    for block in answer.text.split("\n\n")[:-1]:
        kind, data = block.split("\n")
        yield kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


# -- building ----------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H1")
def test_builders_return_new_values_and_leave_the_old_one(exact: llm.Model) -> None:
    first = api.app("Test")
    second = first.llm(path="/chat", model=exact).bind(host="127.0.0.1", port=0).limits(max_rows=3).output_limit(max_tokens=7)
    assert (first.paths, first.bounds.max_rows, first.max_tokens) == ((), 64, 256)
    assert (second.bounds.max_rows, second.bounds.timeout_ms, second.max_tokens) == (3, 120_000, 7)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.port = 1  # type: ignore[misc]


@pytest.mark.contract("H1")
@pytest.mark.parametrize(
    ("named", "build"),
    [
        ("name", lambda app, model: api.app("")),
        ("path", lambda app, model: app.llm(path="chat", model=model)),
        ("path", lambda app, model: app.llm(path="/v1/chat", model=model)),
        ("path", lambda app, model: app.llm(path="/chat/", model=model)),
        ("path", lambda app, model: app.llm(path="/chat", model=model)),
        ("alias", lambda app, model: app.llm(path="/b", model=model, alias="m")),
        ("alias", lambda app, model: app.llm(path="/b", model=model, alias="a b")),
        ("model", lambda app, model: app.llm(path="/b", model="model.gguf")),
        ("temperature", lambda app, model: app.llm(path="/b", model=model, alias="b", temperature=-1)),
        ("workers", lambda app, model: app.llm(path="/b", model=model, alias="b", workers=0)),
        ("path", lambda app, model: app.sessions("/b", model)),
        ("max_sessions", lambda app, model: app.sessions("/chat", model, max_sessions=0)),
        ("port", lambda app, model: app.bind(port=65_536)),
        ("port", lambda app, model: app.bind(port=True)),
        ("host", lambda app, model: app.bind(host="")),
        ("max_rows", lambda app, model: app.limits(max_rows=0)),
        ("timeout_ms", lambda app, model: app.limits(timeout_ms=1.5)),
        ("max_lines", lambda app, model: app.limits(max_lines=1)),
        ("max_tokens", lambda app, model: app.output_limit(max_tokens=0)),
        ("key", lambda app, model: app.api_keys("short")),
        ("key", lambda app, model: app.api_keys()),
        ("api_keys", lambda app, model: app.api_keys(file="/nowhere/keys")),
        ("certificate", lambda app, model: app.tls("/nowhere.pem", "/nowhere.key")),
        ("origin", lambda app, model: app.cors("*")),
    ],
)
def test_a_wrong_setting_is_refused_by_name_when_it_is_built(exact: llm.Model, named: str, build: Callable[..., Any]) -> None:
    app = api.app("Test").llm(path="/chat", model=exact, alias="m")
    with pytest.raises(ConfigurationError, match=named):
        build(app, exact)


@pytest.mark.contract("H1")
def test_an_application_without_a_model_is_not_served() -> None:
    with pytest.raises(ConfigurationError, match="nothing to serve"), api.app("Test").running():
        pass


def test_a_port_that_is_taken_is_an_error_that_names_it(url: str, exact: llm.Model) -> None:
    port = int(url.rpartition(":")[2])
    app = api.app("Test").llm(path="/chat", model=exact).bind(port=port)
    with pytest.raises(OSError, match=str(port)), app.running():
        pass


@pytest.mark.contract("H1")
def test_importing_aner_imports_no_web_framework() -> None:
    program = (
        "import sys, aner.llm, aner.api; print([name for name in ('fastapi', 'uvicorn', 'pydantic') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


# -- answers -----------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H2")
@pytest.mark.parametrize("path", ["/chat", "/plain"])
def test_an_answer_is_that_of_the_model(client: httpx.Client, exact: llm.Model, path: str) -> None:
    expected = exact.generate("Hello", max_tokens=12, temperature=0.7, seed=5)
    answer = client.post(path, json={"prompt": "Hello", "max_tokens": 12, "temperature": 0.7, "seed": 5}).json()
    assert set(answer) == {"text", "finish_reason", "usage", "timings", "fingerprint", "seed", "output_hash"}
    assert (answer["text"], answer["output_hash"]) == (expected.text(), expected.output_hash())
    assert (answer["seed"], answer["finish_reason"]) == (5, expected.finish_reason())
    assert answer["fingerprint"] == exact.fingerprint()
    assert set(answer["timings"]) == set(expected.timings())
    assert answer["usage"]["output_tokens"] == len(expected.token_ids())


@pytest.mark.contract("H2")
def test_messages_are_rendered_whole(client: httpx.Client, exact: llm.Model) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    expected = exact.generate(messages=messages, max_tokens=8)
    answer = client.post("/chat", json={"messages": messages, "max_tokens": 8}).json()
    assert answer["output_hash"] == expected.output_hash()
    assert answer["usage"]["input_tokens"] == expected.timings()["input_tokens"]


@pytest.mark.contract("H2")
@pytest.mark.parametrize("path", ["/chat", "/plain"])
def test_streamed_pieces_joined_are_the_answer(client: httpx.Client, path: str) -> None:
    body = {"prompt": "Hello", "max_tokens": 20, "temperature": 0.9, "seed": 3, "stop": ["zz"]}
    whole = client.post(path, json=body).json()
    answer = client.post(path, json={**body, "stream": True})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *pieces, (kind, last) = events(answer)
    assert {kind for kind, _ in pieces} == {"text"}
    assert kind == "done"
    assert "".join(piece["text"] for _, piece in pieces) == whole["text"] == last["text"]
    assert last["output_hash"] == whole["output_hash"]


@pytest.mark.contract("H2")
def test_the_seeds_curl_line_works_as_written(url: str, exact: llm.Model) -> None:
    assert shutil.which("curl"), "curl is missing"
    prompt = "Explain why local inference uses KV memory."
    line = (
        "curl --fail-with-body http://127.0.0.1:11435/chat "
        "-H 'Content-Type: application/json' "
        '--data \'{"prompt":"' + prompt + '","max_tokens":96,"temperature":0.0}\''
    )
    app = api.app("Local batched inference").llm(path="/chat", model=exact).bind(host="127.0.0.1", port=0)
    app = app.limits(max_rows=64, timeout_ms=120000).output_limit(max_tokens=256)
    with app.running() as running:
        done = subprocess.run(
            line.replace("http://127.0.0.1:11435", running), shell=True, capture_output=True, text=True, check=True
        )
    assert json.loads(done.stdout)["output_hash"] == exact.generate(prompt, max_tokens=96).output_hash()


@pytest.mark.contract("H2")
def test_no_tokens_are_an_empty_answer(client: httpx.Client) -> None:
    answer = client.post("/chat", json={"prompt": "Hello", "max_tokens": 0}).json()
    assert (answer["text"], answer["usage"]["output_tokens"]) == ("", 0)


@pytest.mark.contract("H3")
def test_concurrent_requests_share_target_calls_and_keep_their_answers(client: httpx.Client, exact: llm.Model) -> None:
    prompts = [f"Prompt number {n} of the test" for n in range(10)]
    bodies = [{"prompt": prompt, "max_tokens": 48, "ignore_eos": True} for prompt in prompts]
    with ThreadPoolExecutor(10) as pool:
        answers = [one.json() for one in pool.map(lambda body: client.post("/chat", json=body), bodies)]
    expected = [exact.generate(prompt, max_tokens=48, ignore_eos=True).output_hash() for prompt in prompts]
    assert [one["output_hash"] for one in answers] == expected
    assert max(one["timings"]["batch_peak_sequences"] for one in answers) == 2


@pytest.mark.contract("H3")
def test_a_latency_path_shares_its_pool_between_requests(exact: llm.Model) -> None:
    with exact.with_optimizer(0, 0, 512, 128, 1, 256) as tuned:
        app = api.app("Test").llm(path="/chat", model=tuned).bind(port=0)
        with app.running() as running:
            prompt = "One two three four five six seven."
            cold, warm = (httpx.post(f"{running}/chat", json={"prompt": prompt, "max_tokens": 4}).json() for _ in range(2))
    assert cold["usage"]["cached_input_tokens"] == 0
    assert warm["usage"]["cached_input_tokens"] == warm["usage"]["input_tokens"] - 1
    assert warm["output_hash"] == cold["output_hash"]


@pytest.mark.contract("H2")
def test_a_speculative_path_answers_only_greedy_requests(exact: llm.Model) -> None:
    with exact.with_optimizer(0, 0, 512, 128, 0, 256, 4) as tuned:
        with pytest.raises(ConfigurationError, match="temperature"):
            api.app("Test").llm(path="/chat", model=tuned, temperature=0.5)
        with api.app("Test").llm(path="/chat", model=tuned).bind(port=0).running() as running:
            assert error_of(httpx.post(f"{running}/chat", json={"prompt": "a", "temperature": 0.5})) == (400, "invalid_request")
            assert httpx.post(f"{running}/chat", json={"prompt": "a", "max_tokens": 4}).status_code == 200


@pytest.mark.contract("H2")
def test_the_applications_temperature_is_the_default_of_its_requests(exact: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=exact, temperature=1.5).bind(port=0)
    with app.running() as running:
        answer = httpx.post(f"{running}/chat", json={"prompt": "Hello", "max_tokens": 16, "seed": 1}).json()
    assert answer["output_hash"] == exact.generate("Hello", max_tokens=16, seed=1, temperature=1.5).output_hash()
    assert answer["output_hash"] != exact.generate("Hello", max_tokens=16, seed=1).output_hash()


# -- conversations -----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H6")
def test_a_session_continues_its_conversation_and_keeps_its_kv(client: httpx.Client, exact: llm.Model) -> None:
    name = client.post("/chat/sessions").json()["session"]
    turns = [
        client.post("/chat", json={"session": name, "prompt": text, "max_tokens": 10}).json() for text in ("One two", "Three")
    ]
    with exact.session() as session:
        expected = [session.generate(text, max_tokens=10) for text in ("One two", "Three")]
    assert [one["output_hash"] for one in turns] == [one.output_hash() for one in expected]
    assert turns[1]["usage"]["cached_input_tokens"] == expected[1].timings()["cached_input_tokens"] > 0
    assert turns[1]["session"] == name
    streamed = client.post("/chat", json={"session": name, "prompt": "Four", "max_tokens": 5, "stream": True})
    assert [*events(streamed)][-1][0] == "done"
    assert client.delete(f"/chat/sessions/{name}").json() == {"session": name}
    assert error_of(client.post("/chat", json={"session": name, "prompt": "Five"})) == (404, "session_not_found")
    assert error_of(client.delete(f"/chat/sessions/{name}")) == (404, "session_not_found")


@pytest.mark.contract("H6")
def test_sessions_are_bounded_named_once_and_never_rebuilt(client: httpx.Client) -> None:
    assert client.post("/chat/sessions", json={"name": "first"}).status_code == 201
    assert error_of(client.post("/chat/sessions", json={"name": "first"})) == (409, "session_exists")
    assert client.post("/chat/sessions", json={"name": "second"}).status_code == 201
    refused = client.post("/chat/sessions")
    assert error_of(refused) == (429, "session_limit")
    assert int(refused.headers["retry-after"]) > 500
    assert error_of(client.post("/chat/sessions", json={"name": "a/b"})) == (400, "invalid_request")
    assert error_of(client.post("/plain", json={"prompt": "a", "session": "first"})) == (400, "sessions_not_served")
    for name in ("first", "second"):
        client.delete(f"/chat/sessions/{name}").raise_for_status()


@pytest.mark.contract("H6")
def test_an_idle_session_expires_and_a_busy_one_does_not(exact: llm.Model, roomy: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=exact).sessions("/chat", roomy, max_sessions=1, idle_ms=150).bind(port=0)
    with app.output_limit(3000).running() as running, httpx.Client(base_url=running, timeout=30) as client:
        client.post("/chat/sessions", json={"name": "one"})
        answer = client.post("/chat", json={"session": "one", "prompt": "a", "max_tokens": 1500, "ignore_eos": True})
        assert answer.json()["timings"]["total_duration"] > 150e6
        assert client.post("/chat", json={"session": "one", "prompt": "b", "max_tokens": 1}).status_code == 200
        threading.Event().wait(0.3)
        assert error_of(client.post("/chat", json={"session": "one", "prompt": "c"})) == (404, "session_not_found")
        assert client.post("/chat/sessions", json={"name": "two"}).status_code == 201
        becomes(running, sessions=1)


@pytest.mark.contract("H6")
def test_turns_of_one_session_take_turns(client: httpx.Client) -> None:
    client.post("/chat/sessions", json={"name": "shared"})
    body = {"session": "shared", "prompt": "Hello", "max_tokens": 4}
    with ThreadPoolExecutor(4) as pool:
        answers = [*pool.map(lambda _: client.post("/chat", json=body), range(4))]
    client.delete("/chat/sessions/shared")
    assert [one.status_code for one in answers] == [200] * 4
    assert len({one.json()["usage"]["input_tokens"] for one in answers}) == 4  # each sees those before it


# -- tokens ------------------------------------------------------------------------------------------------------------------


def test_tokens_and_back(client: httpx.Client, exact: llm.Model) -> None:
    text = "Gr\u00fc\u00dfe <|im_end|> \U0001f600"
    tokens = client.post("/tokenize", json={"text": text, "model": "plain"}).json()["tokens"]
    assert tokens == exact.tokenize(text)
    assert client.post("/detokenize", json={"tokens": tokens, "model": "plain"}).json() == {"text": text}
    assert error_of(client.post("/tokenize", json={"text": text})) == (400, "model_required")
    assert error_of(client.post("/tokenize", json={"text": text, "model": "other"})) == (404, "model_not_found")
    assert error_of(client.post("/detokenize", json={"tokens": [10**6], "model": "plain"})) == (400, "invalid_request")


def test_closing_the_lease_that_was_given_ends_nothing(exact: llm.Model) -> None:
    lease = exact.native_stateless()
    with api.app("Test").llm(path="/chat", model=lease).bind(port=0).running() as running:
        lease.close()
        assert httpx.post(f"{running}/chat", json={"prompt": "a", "max_tokens": 2}).status_code == 200

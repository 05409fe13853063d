"""The endpoints for OpenAI clients, met with the official client, unchanged."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from aner import api, llm
from tests.serving.conftest import becomes, error_of, occupied

pytestmark = pytest.mark.contract("H7")

MESSAGES: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def official(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="not needed", max_retries=0, timeout=30) as client:
        yield client


def test_models_are_listed_and_found(official: openai.OpenAI) -> None:
    assert [one.id for one in official.models.list()] == ["batched", "plain"]
    assert official.models.retrieve("plain").owned_by == "aner"
    with pytest.raises(openai.NotFoundError) as error:
        official.models.retrieve("other")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize("alias", ["batched", "plain"])
def test_a_chat_completion_is_the_models_answer(official: openai.OpenAI, exact: llm.Model, alias: str) -> None:
    expected = exact.generate(messages=MESSAGES, max_tokens=12, temperature=0.8, seed=11)
    answer = official.chat.completions.create(model=alias, messages=MESSAGES, max_tokens=12, temperature=0.8, seed=11)
    assert answer.choices[0].message.content == expected.text()
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == expected.finish_reason()
    assert answer.model == alias
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == expected.timings()["input_tokens"]
    assert answer.usage.completion_tokens == len(expected.token_ids())
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.timings["output_tokens"] == len(expected.token_ids())  # type: ignore[attr-defined]


@pytest.mark.parametrize("alias", ["batched", "plain"])
def test_a_streamed_chat_completion_joins_to_the_same_text(official: openai.OpenAI, alias: str) -> None:
    options: Any = {"model": alias, "messages": MESSAGES, "max_completion_tokens": 20, "temperature": 0.9, "seed": 2}
    whole = official.chat.completions.create(**options)
    chunks = [*official.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})]
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    assert text == whole.choices[0].message.content
    assert [one.choices[0].finish_reason for one in chunks if one.choices and one.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].timings["output_tokens"] == whole.usage.completion_tokens  # type: ignore[attr-defined, union-attr]
    assert len({one.id for one in chunks}) == 1


def test_the_last_chunk_carries_the_timings_also_without_usage(official: openai.OpenAI) -> None:
    chunks = [*official.chat.completions.create(model="plain", messages=MESSAGES, max_tokens=3, stream=True)]
    assert chunks[-1].choices[0].finish_reason is not None
    assert chunks[-1].timings["total_duration"] > 0  # type: ignore[attr-defined]
    assert all(one.usage is None for one in chunks)


def test_the_async_client_streams_many_at_once(url: str, exact: llm.Model) -> None:
    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="not needed", max_retries=0) as client:

            async def one(n: int) -> str:
                stream = await client.chat.completions.create(
                    model="batched", messages=[{"role": "user", "content": f"Number {n}"}], max_tokens=24, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(8)))

    expected = [exact.generate(f"Number {n}", max_tokens=24).text() for n in range(8)]
    assert asyncio.run(all_of_them()) == expected


@pytest.mark.parametrize("alias", ["batched", "plain"])
def test_several_answers_take_seeds_one_after_the_other(official: openai.OpenAI, exact: llm.Model, alias: str) -> None:
    options: Any = {"model": alias, "messages": MESSAGES, "max_tokens": 10, "temperature": 1.2, "seed": 40, "n": 3}
    expected = [exact.generate(messages=MESSAGES, max_tokens=10, temperature=1.2, seed=40 + n) for n in range(3)]
    answer = official.chat.completions.create(**options)
    assert [one.message.content for one in answer.choices] == [one.text() for one in expected]
    assert [one.index for one in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(one.token_ids()) for one in expected)
    assert answer.usage.prompt_tokens == expected[0].timings()["input_tokens"]
    streamed = ["", "", ""]
    for chunk in official.chat.completions.create(**options, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [one.text() for one in expected]


def test_requests_for_several_answers_at_a_time_never_wait_for_each_other(exact: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=exact, alias="m", workers=3).bind(port=0).limits(timeout_ms=20_000)
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 6, "n": 3, "seed": 1, "temperature": 1.0}
    with app.running() as running, ThreadPoolExecutor(6) as pool:
        answers = [*pool.map(lambda _: httpx.post(f"{running}/v1/chat/completions", json=body, timeout=30), range(6))]
    assert [one.status_code for one in answers] == [200] * 6
    assert len({tuple(choice["message"]["content"] for choice in one.json()["choices"]) for one in answers}) == 1


def test_completions_continue_text_tokens_and_lists_of_them(official: openai.OpenAI, exact: llm.Model) -> None:
    def texts(prompt: Any, **more: Any) -> list[str]:
        answer = official.completions.create(model="batched", prompt=prompt, max_tokens=8, **more)
        return [one.text for one in answer.choices]

    raw = {text: exact.generate(text, raw=True, max_tokens=8).text() for text in ("One two", "Three four")}
    ids = exact.tokenize("One two", add_bos=True)
    assert texts("One two") == [raw["One two"]]
    assert texts(["One two", "Three four"]) == [*raw.values()]
    assert texts(ids) == [raw["One two"]]
    assert texts([ids, ids]) == [raw["One two"]] * 2
    assert texts(["One two", "Three four"], n=2) == [raw["One two"]] * 2 + [raw["Three four"]] * 2
    chunks = [*official.completions.create(model="plain", prompt="One two", max_tokens=8, stream=True)]
    assert "".join(one.choices[0].text for one in chunks) == raw["One two"]
    assert chunks[-1].choices[0].finish_reason in {"stop", "length"}


def test_options_reach_the_model(official: openai.OpenAI, exact: llm.Model) -> None:
    plain = exact.generate(messages=MESSAGES, max_tokens=12)
    banned = plain.token_ids()[0]
    answer = official.chat.completions.create(
        model="batched", messages=MESSAGES, max_tokens=12, logit_bias={str(banned): -100}, frequency_penalty=0.5,
        extra_body={"min_tokens": 12, "ignore_eos": True, "top_k": 5},
    )  # fmt: skip
    expected = exact.generate(
        messages=MESSAGES,
        max_tokens=12,
        logit_bias={banned: -100},
        frequency_penalty=0.5,
        min_tokens=12,
        ignore_eos=True,
        top_k=5,
    )
    assert answer.choices[0].message.content == expected.text() != plain.text()
    stop = plain.text()[2:4]
    stopped = official.chat.completions.create(model="plain", messages=MESSAGES, max_tokens=12, stop=[stop])
    assert stopped.choices[0].message.content == plain.text().split(stop)[0]
    assert stopped.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_the_model(official: openai.OpenAI, exact: llm.Model, stream: bool) -> None:
    options: Any = {"model": "plain", "messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 3}
    expected = exact.generate(messages=MESSAGES, max_tokens=4, logprobs=3).logprobs()
    assert expected is not None
    if stream:
        found = [*official.chat.completions.create(**options, stream=True)][-1].choices[0].logprobs
    else:
        found = official.chat.completions.create(**options).choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [bytes(one.bytes or ()) for one in found.content] == [one.bytes for one in expected]
    assert all(math.isclose(a.logprob, b.logprob, abs_tol=1e-6) for a, b in zip(found.content, expected, strict=True))
    assert [[bytes(top.bytes or ()) for top in one.top_logprobs] for one in found.content] == [
        [top.bytes for top in one.top] for one in expected
    ]


def test_completions_have_the_older_form_of_log_probabilities(official: openai.OpenAI, exact: llm.Model) -> None:
    found = official.completions.create(model="plain", prompt="One", max_tokens=3, logprobs=2).choices[0].logprobs
    expected = exact.generate("One", raw=True, max_tokens=3, logprobs=2).logprobs()
    assert found is not None
    assert expected is not None
    assert found.token_logprobs == pytest.approx([one.logprob for one in expected])
    assert found.text_offset is not None
    assert len(found.text_offset) == 3


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}], "unsupported_field"),
        ("tool_choice", "required", "unsupported_field"),
        ("response_format", {"type": "json_object"}, "unsupported_field"),
        ("reasoning_effort", "low", "unsupported_field"),
        ("modalities", ["audio"], "unsupported_field"),
        ("no_such_field", 1, "unknown_field"),
        ("top_logprobs", 2, "invalid_request"),
        ("n", 0, "invalid_request"),
        ("n", 9, "too_many_rows"),
        ("temperature", -1, "invalid_request"),
        ("temperature", "0", "invalid_request"),
        ("top_p", 2, "invalid_request"),
        ("seed", -1, "invalid_request"),
        ("logit_bias", {"x": 1}, "invalid_request"),
        ("max_tokens", 65, "max_tokens_exceeded"),
        ("max_completion_tokens", 65, "max_tokens_exceeded"),
        ("max_tokens", -1, "invalid_request"),
        ("stream_options", {"include_usage": True}, "invalid_request"),
    ],
)
def test_what_would_change_the_answer_and_is_not_supported_is_refused(
    client: httpx.Client, field: str, value: Any, code: str
) -> None:
    answer = client.post("/v1/chat/completions", json={"model": "plain", "messages": MESSAGES, field: value})
    assert error_of(answer) == (400, code)
    assert field in answer.text


def test_what_is_harmless_is_accepted(client: httpx.Client) -> None:
    ignored = {
        "user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True, "tools": [],
        "tool_choice": "auto", "response_format": {"type": "text"}, "modalities": ["text"], "seed": None, "stop": None, "n": None,
        "prompt_cache_key": "k", "audio": None, "max_tokens": 2,
    }  # fmt: skip
    answer = client.post("/v1/chat/completions", json={"model": "plain", "messages": MESSAGES, **ignored})
    assert answer.status_code == 200, answer.text


@pytest.mark.real_model
def test_the_official_client_retries_when_it_is_busy(demo_model: llm.Model) -> None:
    app = api.app("Test").llm(path="/chat", model=demo_model, alias="m").bind(port=0).output_limit(1800)
    with app.running() as running, openai.OpenAI(base_url=f"{running}/v1", api_key="none", max_retries=5) as client:
        with occupied(running, 9) as release:
            becomes(running, running=1, waiting=8)
            with pytest.raises(openai.RateLimitError) as refused:
                client.with_options(max_retries=0).chat.completions.create(model="m", messages=MESSAGES, max_tokens=2)
            assert refused.value.code == "busy"
            assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
            threading.Timer(0.3, release).start()
            before = time.monotonic()
            answer = client.with_options(max_retries=5).chat.completions.create(model="m", messages=MESSAGES, max_tokens=2)
            assert time.monotonic() - before > 0.3
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2

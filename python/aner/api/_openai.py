"""The endpoints that OpenAI clients know: models, chat completions, completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import Response as HTTPResponse

from aner.api._chat import json_answer
from aner.api._fields import NEUTRAL, ChatCompletionRequest, CompletionRequest, OpenAIOptions
from aner.api._lane import Begin
from aner.api._openai_shapes import ChatShape, CompletionShape, Shape
from aner.api._refusals import Refusal, encode
from aner.api._service import Served, Service, begin_on, timings_of
from aner.api._work import EventStream, Work
from aner.llm import Response

_MAX_SEED = 2**64


class OpenAI:
    """The endpoints of all paths together; ``model`` chooses one by its alias."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self) -> HTTPResponse:
        return json_answer({"object": "list", "data": [self._model(one) for one in self._service.served]})

    async def model(self, alias: str) -> HTTPResponse:
        return json_answer(self._model(self._service.by_alias(alias)))

    def _model(self, served: Served) -> dict[str, Any]:
        return {"id": served.alias, "object": "model", "created": self._service.created, "owned_by": "aner"}

    # -- completions ---------------------------------------------------------------------------------------------------------

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> HTTPResponse:
        service = self._service
        served = self._checked(body)
        service.check_rows(len(body.messages), "the number of messages", "messages")
        asked, param = body.max_tokens, "max_tokens"
        if body.max_completion_tokens is not None:
            if asked is not None and asked != body.max_completion_tokens:
                raise Refusal(
                    400, "invalid_request", "max_tokens and max_completion_tokens differ: give one", param="max_tokens"
                )
            asked, param = body.max_completion_tokens, "max_completion_tokens"
        options = service.options(served, body, asked, param)
        if body.top_logprobs is not None and not body.logprobs:
            raise Refusal(400, "invalid_request", "top_logprobs needs logprobs", param="top_logprobs")
        if body.logprobs:
            options["logprobs"] = body.top_logprobs or 0
        begins = self._begins([(None, body.messages)], body, options)
        return await self._answered(served, ChatShape(), begins, 1, body, request, options["max_tokens"])

    async def completions(self, body: CompletionRequest, request: Request) -> HTTPResponse:
        served = self._checked(body)
        options = self._service.options(served, body, body.max_tokens)
        if body.logprobs is not None:
            options["logprobs"] = body.logprobs
        prompts = _prompts(body.prompt)
        begins = self._begins([(prompt, None) for prompt in prompts], body, options)
        return await self._answered(served, CompletionShape(), begins, len(prompts), body, request, options["max_tokens"])

    def _checked(self, body: OpenAIOptions) -> Served:
        served = self._service.by_alias(body.model)
        for name, neutral in NEUTRAL.items():
            value = getattr(body, name, None)
            if value is not None and not any(type(value) is type(one) and value == one for one in neutral):
                raise Refusal(
                    400, "unsupported_field", f"{name} is not supported here, and would change the answer", param=name
                )
        if body.stream_options is not None and not body.stream:
            raise Refusal(400, "invalid_request", "stream_options goes with stream", param="stream_options")
        if body.n is not None and body.n < 1:
            raise Refusal(400, "invalid_request", f"n must be at least 1, it is {body.n}", param="n")
        return served

    def _begins(self, rows: list[tuple[Any, Any]], body: OpenAIOptions, options: dict[str, Any]) -> list[Begin]:
        n = body.n or 1
        self._service.check_rows(len(rows) * n, "prompts times n", "n" if n > 1 else "prompt")
        begins = []
        for index in range(len(rows) * n):
            prompt, messages = rows[index // n]
            seeded = {**options, "seed": (options["seed"] + index) % _MAX_SEED} if index and _is_seed(options) else options
            begins.append(begin_on(prompt, messages, isinstance(prompt, str), seeded))
        return begins

    async def _answered(
        self, served: Served, shape: Shape, begins: list[Begin], n_prompts: int, body: OpenAIOptions, request: Request,
        max_tokens: int,
    ) -> HTTPResponse:  # fmt: skip
        work = self._service.work(served.lane, begins, request.state.deadline, max_tokens)
        head = {
            "id": f"{shape.prefix}-{secrets.token_hex(12)}",
            "object": shape.kind,
            "created": int(time.time()),
            "model": served.alias,
            "system_fingerprint": f"fp_{served.fingerprint[:12]}",
        }
        try:
            if body.stream:
                await work.watched(work.start(), request.receive)
                wants_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
                return EventStream(work, self._chunks(work, shape, head, len(begins), n_prompts, wants_usage))
            responses = await work.watched(work.responses(), request.receive)
        except BaseException:
            work.end()
            raise
        work.end()
        choices = [shape.choice(index, response) for index, response in enumerate(responses)]
        if len(responses) > 1:
            choices = [{**one, "timings": timings_of(responses[index])} for index, one in enumerate(choices)]
        usage = _usage(responses, n_prompts)
        return json_answer({**head, "choices": choices, "usage": usage, "timings": timings_of(responses[0])})

    async def _chunks(
        self, work: Work, shape: Shape, head: dict[str, Any], n_choices: int, n_prompts: int, wants_usage: bool
    ) -> AsyncIterator[bytes]:
        head = {**head, "object": shape.chunk_kind, **({"usage": None} if wants_usage else {})}
        responses: dict[int, Response] = {}
        try:
            for index in range(n_choices):
                if first := shape.first(index):
                    yield _event({**head, "choices": [first]})
            async for index, event in work.events():
                if isinstance(event, str):
                    yield _event({**head, "choices": [shape.piece(index, event)]})
                else:
                    responses[index] = event
                    yield _event({**head, "choices": [shape.last(index, event)], "timings": timings_of(event)})
            if wants_usage:
                ordered = [responses[index] for index in range(n_choices)]
                timings = timings_of(ordered[0])
                yield _event({**head, "choices": [], "usage": _usage(ordered, n_prompts), "timings": timings})
        except Exception as error:
            yield _event(self._service.refused(error).body())
        yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _is_seed(options: dict[str, Any]) -> bool:
    return "seed" in options and 0 <= options["seed"] < _MAX_SEED


def _prompts(given: Any) -> list[Any]:
    """One prompt, or several."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise Refusal(400, "invalid_request", "prompt is an empty list", param="prompt")
    return [given] if isinstance(given[0], int) else list(given)


def _usage(responses: list[Response], n_prompts: int) -> dict[str, Any]:
    """Tokens together; a prompt with several answers counts once."""
    each = len(responses) // n_prompts
    prompt = sum(one.timings()["input_tokens"] for one in responses[::each])
    cached = sum(max(0, one.timings()["cached_input_tokens"]) for one in responses[::each])
    completion = sum(one.timings()["output_tokens"] for one in responses)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }

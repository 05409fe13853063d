"""Our own endpoints: a path's answers and its conversations, tokens and text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import Response as HTTPResponse

from aner.api._fields import ChatRequest, DetokenizeRequest, SessionRequest, TokenizeRequest
from aner.api._refusals import Refusal, encode
from aner.api._service import Served, Service, begin_on, timings_of
from aner.api._sessions import Conversations
from aner.api._work import EventStream, Work
from aner.llm import Response


def json_answer(value: object, status: int = 200) -> HTTPResponse:
    return HTTPResponse(encode(value), status, media_type="application/json")


class Chat:
    """The endpoints of one path."""

    def __init__(self, service: Service, served: Served) -> None:
        self._service = service
        self._served = served

    async def chat(self, body: ChatRequest, request: Request) -> HTTPResponse:
        service, served = self._service, self._served
        if (body.prompt is None) == (body.messages is None):
            raise Refusal(400, "invalid_request", "give either prompt or messages, and not both", param="prompt")
        if body.messages is not None:
            service.check_rows(len(body.messages), "the number of messages", "messages")
        options = service.options(served, body, body.max_tokens)
        work = self._admitted(body, options, request.state.deadline)
        try:
            if body.stream:
                await work.watched(work.start(), request.receive)
                return EventStream(work, self._events(work, body.session))
            (response,) = await work.watched(work.responses(), request.receive)
        except BaseException:
            work.end()
            raise
        work.end()
        return json_answer(self._answer(response, body.session))

    def _admitted(self, body: ChatRequest, options: dict[str, Any], deadline: float) -> Work:
        service, max_tokens = self._service, options["max_tokens"]
        if body.session is None:
            begin = begin_on(body.prompt, body.messages, False, options)
            return service.work(self._served.lane, [begin], deadline, max_tokens)
        conversations = self._conversations()
        kept = conversations.use(body.session)
        try:
            begin = conversations.begin(body.session, body.prompt, body.messages, options)
            work = service.work(conversations.lane, [begin], deadline, max_tokens)
        except BaseException:
            conversations.done(kept)
            raise
        work.on_end = lambda: conversations.done(kept)
        return work

    def _answer(self, response: Response, session: str | None) -> dict[str, Any]:
        timings = timings_of(response)
        answer = {
            "text": response.text(),
            "finish_reason": response.finish_reason(),
            "usage": {
                "input_tokens": timings["input_tokens"],
                "cached_input_tokens": max(0, timings["cached_input_tokens"]),
                "output_tokens": timings["output_tokens"],
            },
            "timings": timings,
            "fingerprint": self._served.fingerprint,
            "seed": response.seed(),
            "output_hash": response.output_hash(),
        }
        return answer if session is None else {**answer, "session": session}

    async def _events(self, work: Work, session: str | None) -> AsyncIterator[bytes]:
        try:
            async for _, event in work.events():
                if isinstance(event, str):
                    yield b"event: text\ndata: " + encode({"text": event}) + b"\n\n"
                else:
                    yield b"event: done\ndata: " + encode(self._answer(event, session)) + b"\n\n"
        except Exception as error:
            yield b"event: error\ndata: " + encode(self._service.refused(error).body()) + b"\n\n"

    # -- conversations -------------------------------------------------------------------------------------------------------

    def _conversations(self) -> Conversations:
        if self._served.conversations is None:
            raise Refusal(400, "sessions_not_served", f"{self._served.settings.path} keeps no sessions", param="session")
        return self._served.conversations

    async def make_session(self, body: SessionRequest | None = None) -> HTTPResponse:
        name = await self._conversations().make(body.name if body is not None else None)
        return json_answer({"session": name}, 201)

    async def delete_session(self, name: str) -> HTTPResponse:
        self._conversations().delete(name)
        return json_answer({"session": name})


class Tokens:
    """Text to tokens and back, by the vocabulary of a model."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, body: TokenizeRequest) -> HTTPResponse:
        model = self._service.by_alias(body.model).model
        tokens = await asyncio.to_thread(lambda: model.tokenize(body.text, add_bos=body.add_bos, control=body.control))
        return json_answer({"tokens": tokens})

    async def detokenize(self, body: DetokenizeRequest) -> HTTPResponse:
        model = self._service.by_alias(body.model).model
        return json_answer({"text": await asyncio.to_thread(model.detokenize, body.tokens)})

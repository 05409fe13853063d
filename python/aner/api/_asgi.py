"""The ASGI application: which path has which endpoint, and the OpenAPI document."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response as HTTPResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

import aner
from aner.api import _answers as answers
from aner.api import _metrics
from aner.api._app import App
from aner.api._chat import Chat, Tokens, json_answer
from aner.api._guard import Guard
from aner.api._openai import OpenAI
from aner.api._page import page
from aner.api._refusals import Refusal
from aner.api._service import Service
from aner.errors import AnerError

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}
_REFUSALS = {
    400: "The request is wrong; the message says how.",
    401: "An API key is missing or wrong.",
    403: "The host is not one of this server's names.",
    404: "There is no such model or session.",
    405: "The path has no such method.",
    408: "The body did not arrive in time.",
    409: "The name is taken.",
    413: "The body is too large.",
    431: "The header is too large.",
    415: "The body is not JSON.",
    429: "Busy: try again after Retry-After seconds.",
    500: "The server failed.",
    503: "Shutting down, or out of memory.",
    504: "The request took longer than the time limit.",
}


@dataclass(frozen=True)
class Built:
    """An application that can be served, and the service inside it."""

    asgi: Any
    service: Service


def build(app: App) -> Built:
    service = Service(app)
    web = FastAPI(
        title=app.name, version=aner.__version__, docs_url=None, redoc_url=None, openapi_url=None, lifespan=service.lifespan,
        redirect_slashes=False,
    )  # fmt: skip
    _refusing(web, service)
    _paths(web, service)
    _openai(web, OpenAI(service), Tokens(service))
    _state(web, service)
    asgi: Any = Guard(web, service)
    if app.origins:
        asgi = CORSMiddleware(
            asgi,
            allow_origins=app.origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type"],
        )
    return Built(asgi, service)


def _responses(
    model: type | None, *, stream: bool = False, status: int = 200, content: str | None = None
) -> dict[int | str, Any]:
    ok: dict[str, Any] = {"description": "The answer."}
    if model is not None:
        ok["model"] = model
    if stream:
        ok["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    if content is not None:
        ok["content"] = {content: {"schema": {"type": "string"}}}
    refusals: dict[int | str, Any] = {
        code: {"description": text, "model": answers.ErrorAnswer} for code, text in _REFUSALS.items()
    }
    return {status: ok, **refusals}


def _paths(web: FastAPI, service: Service) -> None:
    for served in service.served:
        chat, path = Chat(service, served), served.settings.path
        tags: Any = [served.alias]
        web.add_api_route(
            path, chat.chat, methods=["POST"], tags=tags, summary="Answer a message or a conversation",
            response_class=HTTPResponse, responses=_responses(answers.ChatAnswer, stream=True),
        )  # fmt: skip
        if served.conversations is None:
            continue
        web.add_api_route(
            path + "/sessions", chat.make_session, methods=["POST"], tags=tags, summary="Begin a conversation that is kept",
            status_code=201, response_class=HTTPResponse, responses=_responses(answers.SessionAnswer, status=201),
        )  # fmt: skip
        web.add_api_route(
            path + "/sessions/{name}", chat.delete_session, methods=["DELETE"], tags=tags, summary="End a conversation",
            response_class=HTTPResponse, responses=_responses(answers.SessionAnswer),
        )  # fmt: skip


def _openai(web: FastAPI, openai: OpenAI, tokens: Tokens) -> None:
    for path, endpoint, method, model, stream, summary in (
        ("/v1/models", openai.models, "GET", answers.ModelList, False, "The aliases that are served"),
        ("/v1/models/{alias:path}", openai.model, "GET", None, False, "One of them"),
        ("/v1/chat/completions", openai.chat_completions, "POST", answers.Completion, True, "Continue a conversation"),
        ("/v1/completions", openai.completions, "POST", answers.Completion, True, "Continue a text"),
        ("/tokenize", tokens.tokenize, "POST", answers.Tokens, False, "Text to tokens"),
        ("/detokenize", tokens.detokenize, "POST", answers.Text, False, "Tokens to text"),
    ):
        web.add_api_route(
            path, endpoint, methods=[method], summary=summary, response_class=HTTPResponse,
            responses=_responses(model, stream=stream),
        )  # fmt: skip


def _state(web: FastAPI, service: Service) -> None:
    async def livez() -> HTTPResponse:
        return json_answer({"status": "alive"})

    async def readyz() -> HTTPResponse:
        if service.draining:
            raise Refusal(503, "shutting_down", "the server is shutting down")
        return json_answer({"status": "ready"})

    async def metrics() -> HTTPResponse:
        return HTTPResponse(service.metrics.text(), headers={"content-type": _metrics.CONTENT_TYPE})

    async def status() -> HTTPResponse:
        loads: list[dict[str, Any]] = [{"alias": one.alias, **one.load()} for one in service.served]
        total = {name: sum(load[name] for load in loads) for name in ("running", "waiting", "slots", "sessions")}
        state = {**total, "requests": service.n_requests, "draining": service.draining, "models": loads}
        return json_answer({"name": service.app.name, "models": [one.facts() for one in service.served], "load": state})

    async def openapi() -> HTTPResponse:
        return json_answer(document(web, bool(service.app.keys)))

    for path, endpoint, summary, content in (
        ("/livez", livez, "Whether the process answers", None),
        ("/readyz", readyz, "Whether it takes requests", None),
        ("/health", readyz, "The same as /readyz", None),
        ("/metrics", metrics, "Figures for Prometheus", "text/plain"),
        ("/aner/status", status, "What is served, and how busy it is", None),
    ):
        web.add_api_route(
            path,
            endpoint,
            methods=["GET"],
            summary=summary,
            response_class=HTTPResponse,
            responses=_responses(None, content=content),
        )
    web.add_api_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)
    page_file = Path(__file__).with_name("page.html")
    if page_file.is_file():
        web.add_api_route("/", page(page_file), methods=["GET"], include_in_schema=False)


def document(web: FastAPI, has_keys: bool) -> dict[str, Any]:
    """The OpenAPI document, without what the framework adds and we do not answer."""
    if web.openapi_schema is None:
        schema = web.openapi()
        for item in schema["paths"].values():
            for operation in item.values():
                operation["responses"].pop("422", None)
                if has_keys:
                    operation["security"] = [{"key": []}]
        schemas = schema.get("components", {}).get("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        if has_keys:
            schema.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    assert web.openapi_schema is not None
    return web.openapi_schema


# -- refusals ----------------------------------------------------------------------------------------------------------------


def _refusing(web: FastAPI, service: Service) -> None:
    async def refuse(request: Request, error: Exception) -> HTTPResponse:
        refusal = service.refused(error)
        return HTTPResponse(refusal.encoded(), refusal.status, headers=refusal.headers, media_type="application/json")

    async def invalid(request: Request, error: Exception) -> HTTPResponse:
        assert isinstance(error, RequestValidationError)
        return await refuse(request, _invalid(error))

    async def http(request: Request, error: Exception) -> HTTPResponse:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "http_error")
        text = {400: "the body is not valid JSON", 404: "there is nothing at this path"}.get(
            error.status_code, str(error.detail)
        )
        return await refuse(request, Refusal(error.status_code, code, text, headers=error.headers))

    web.add_exception_handler(Refusal, refuse)
    web.add_exception_handler(AnerError, refuse)
    web.add_exception_handler(RequestValidationError, invalid)
    web.add_exception_handler(HTTPException, http)


def _invalid(error: RequestValidationError) -> Refusal:
    """The first complaint about a body, by the name of its field; values are not repeated."""
    first = error.errors()[0]
    place = [str(one) for one in first["loc"][1:]]
    kind = first["type"]
    if kind == "json_invalid":
        return Refusal(400, "invalid_json", f"the body is not valid JSON, at character {place[0] if place else 0}")
    name = ".".join(place)
    if kind == "extra_forbidden":
        return Refusal(400, "unknown_field", f"{name} is not a field of this request", param=name)
    if kind == "missing":
        return Refusal(400, "missing_field", f"{name or 'a JSON body'} is missing", param=name or None)
    message = re.sub(r"^Input should be", "must be", first["msg"])
    return Refusal(400, "invalid_request", f"{name or 'the body'} {message[0].lower() + message[1:]}", param=name or None)


@contextlib.contextmanager
def built(app: App) -> Iterator[Built]:
    """For servers that may fail before the application starts: its leases are given up in any case."""
    made = build(app)
    try:
        yield made
    finally:
        made.service.close()

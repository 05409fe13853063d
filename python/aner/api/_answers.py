"""The bodies of answers, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class Usage(BaseModel):
    """Tokens of one request."""

    input_tokens: int
    cached_input_tokens: int = Field(description="Of these, taken from retained KV.")
    output_tokens: int


class ChatAnswer(BaseModel):
    """The answer of a path."""

    text: str
    finish_reason: str = Field(description="stop, or length: the limit or the end of the context.")
    usage: Usage
    timings: dict[str, int] = Field(description="Durations in nanoseconds and counts; -1: not measured (docs/timings.md).")
    fingerprint: str = Field(description="SHA-256 of the model's content.")
    seed: int
    output_hash: str = Field(description="SHA-256 of the output's token ids.")
    session: str | None = None


class ErrorDetails(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetails


class SessionAnswer(BaseModel):
    """A conversation that was made or deleted."""

    session: str


class Tokens(BaseModel):
    """Token ids."""

    tokens: list[int]


class Text(BaseModel):
    """The text of tokens."""

    text: str


class Completion(BaseModel):
    """As OpenAI describes it, with ``timings``."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any]
    timings: dict[str, int]


class ModelList(BaseModel):
    """The aliases that are served."""

    object: str
    data: list[dict[str, Any]]

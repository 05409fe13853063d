"""How OpenAI writes an answer, a piece of one, and its log probabilities."""

from __future__ import annotations

import abc
import math
from typing import Any

from aner.llm import Response, TokenLogprob, TopLogprob

#: What OpenAI writes for a probability of 0.
_LEAST_LOGPROB = -9999.0


class Shape(abc.ABC):
    """One of the two kinds of answer."""

    prefix: str
    kind: str
    chunk_kind: str

    def first(self, index: int) -> dict[str, Any] | None:
        """What a stream says of a choice before its text."""
        return None

    @abc.abstractmethod
    def choice(self, index: int, response: Response) -> dict[str, Any]: ...

    @abc.abstractmethod
    def piece(self, index: int, text: str) -> dict[str, Any]: ...

    @abc.abstractmethod
    def last(self, index: int, response: Response) -> dict[str, Any]:
        """What a stream says of a choice after its text; its log probabilities are known only then."""


class ChatShape(Shape):
    """chat.completion"""

    prefix = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def choice(self, index: int, response: Response) -> dict[str, Any]:
        message = {"role": "assistant", "content": response.text(), "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": _chat_logprobs(response),
            "finish_reason": response.finish_reason(),
        }

    def first(self, index: int) -> dict[str, Any] | None:
        return self._delta(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str) -> dict[str, Any]:
        return self._delta(index, {"content": text})

    def last(self, index: int, response: Response) -> dict[str, Any]:
        return {
            **self._delta(index, {}),
            "logprobs": _chat_logprobs(response),
            "finish_reason": response.finish_reason(),
        }

    @staticmethod
    def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


class CompletionShape(Shape):
    """text_completion"""

    prefix = "cmpl"
    kind = chunk_kind = "text_completion"

    def choice(self, index: int, response: Response) -> dict[str, Any]:
        return {
            "index": index,
            "text": response.text(),
            "logprobs": _completion_logprobs(response),
            "finish_reason": response.finish_reason(),
        }

    def piece(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def last(self, index: int, response: Response) -> dict[str, Any]:
        return {**self.choice(index, response), "text": ""}


def _number(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST_LOGPROB


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def _chat_logprobs(response: Response) -> dict[str, Any] | None:
    def one(entry: TokenLogprob | TopLogprob) -> dict[str, Any]:
        return {"token": _text(entry.bytes), "logprob": _number(entry.logprob), "bytes": list(entry.bytes)}

    entries = response.logprobs()
    if entries is None:
        return None
    content = [{**one(entry), "top_logprobs": [one(top) for top in entry.top]} for entry in entries]
    return {"content": content, "refusal": None}


def _completion_logprobs(response: Response) -> dict[str, Any] | None:
    entries = response.logprobs()
    if entries is None:
        return None
    offsets, reached = [], 0
    for entry in entries:
        offsets.append(reached)
        reached += len(_text(entry.bytes))
    return {
        "tokens": [_text(entry.bytes) for entry in entries],
        "token_logprobs": [_number(entry.logprob) for entry in entries],
        "top_logprobs": [{_text(top.bytes): _number(top.logprob) for top in entry.top} for entry in entries],
        "text_offset": offsets,
    }

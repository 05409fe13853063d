"""What a finished request gives back."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aner.llm._figures import Figures

__all__ = ["Response", "TokenLogprob", "TopLogprob"]


@dataclass(frozen=True)
class TopLogprob:
    """One alternative for a position: its token id, its bytes and its natural log probability."""

    token_id: int
    bytes: bytes
    logprob: float


@dataclass(frozen=True)
class TokenLogprob:
    """The log probability of an output token under the model's raw distribution, before any sampling option, and the best ones."""

    token_id: int
    bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...]


class Response:
    """The result of one request: immutable, independent of the model that made it.

    Everything is a method: ``response.text()``, ``response.timings()``.
    """

    __slots__ = ("_finish_reason", "_logprobs", "_seed", "_text", "_timed_tokens", "_timings", "_tokens")

    def __init__(self, result: Mapping[str, Any], logprobs: tuple[TokenLogprob, ...] | None) -> None:
        self._text: str = result["text"]
        self._tokens: tuple[int, ...] = tuple(result["tokens"])
        self._finish_reason: str = result["finish_reason"]
        self._seed: int = result["seed"]
        self._timed_tokens: int = result["timed_tokens"]
        self._timings = Figures(result["timings"])
        self._logprobs = logprobs

    def text(self) -> str:
        """The generated text, without the prompt, the stop string or end-of-generation tokens."""
        return self._text

    def token_ids(self) -> list[int]:
        """The output's token ids, without the end-of-generation or stop token that ended it."""
        return list(self._tokens)

    def finish_reason(self) -> str:
        """``"stop"``: the model ended, or a stop string or token was reached. ``"length"``: max_tokens or the context's end."""
        return self._finish_reason

    def output_hash(self) -> str:
        """SHA-256, in hexadecimal, of the output ids as little-endian 32-bit integers."""
        return hashlib.sha256(struct.pack(f"<{len(self._tokens)}i", *self._tokens)).hexdigest()

    def seed(self) -> int:
        """The seed that was used; the one drawn, when none was given."""
        return self._seed

    def timings(self) -> Figures:
        """Read-only: durations in integer nanoseconds, counts as integers, -1 for what was not measured (docs/timings.md)."""
        return self._timings

    def tokens_per_second(self) -> float | None:
        """Tokens that came from timed decode steps over the time of those steps; None when there was none."""
        duration: int = self._timings["generation_duration"]
        if duration <= 0 or self._timed_tokens <= 0:
            return None
        return self._timed_tokens / (duration / 1e9)

    def logprobs(self) -> list[TokenLogprob] | None:
        """One entry for each output token when ``logprobs=`` was given, else None."""
        return None if self._logprobs is None else list(self._logprobs)

    def __repr__(self) -> str:
        text = self._text if len(self._text) <= 60 else self._text[:57] + "..."
        return f"<Response {len(self._tokens)} tokens, {self._finish_reason}, {text!r}>"

"""Conversations that a path keeps: named, bounded in number, closed when nobody continues them for long."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from dataclasses import dataclass
from typing import Any

from aner.api._lane import Begin, Lane
from aner.api._refusals import Refusal
from aner.api._settings import Sessions
from aner.llm import Session, Stream


@dataclass
class _Kept:
    session: Session | None  # None: it is being made
    last_used: float
    n_turns: int = 0


class Conversations:
    """The sessions of one path. Their turns run one at a time, in the order of asking."""

    def __init__(self, settings: Sessions) -> None:
        self._model = settings.model.native_stateless()
        self._limit = settings.max_sessions
        self._idle_seconds = settings.idle_ms / 1000
        self._kept: dict[str, _Kept] = {}
        self.lane = Lane([object()], 1, False)

    def __len__(self) -> int:
        return len(self._kept)

    async def make(self, name: str | None) -> str:
        """A new conversation, or a refusal: the name is taken, or there are as many as there may be."""
        self.expire()
        name = secrets.token_urlsafe(18) if name is None else name
        if name in self._kept:
            raise Refusal(
                409, "session_exists", f"there is a session {name!r} already: continue it, or delete it first", param="name"
            )
        if len(self._kept) >= self._limit:
            oldest = min(kept.last_used for kept in self._kept.values())
            wait = max(1, math.ceil(oldest + self._idle_seconds - time.monotonic()))
            raise Refusal(
                429, "session_limit", f"{self._limit} sessions are kept here, and no more: delete one, or try again later",
                headers={"Retry-After": str(wait)},
            )  # fmt: skip
        kept = self._kept[name] = _Kept(None, time.monotonic())
        try:
            kept.session = await asyncio.to_thread(self._model.session)
        except BaseException:
            self._kept.pop(name, None)
            raise
        if self._kept.get(name) is not kept:  # deleted meanwhile
            kept.session.close()
        return name

    def delete(self, name: str) -> None:
        kept = self._find(name)
        del self._kept[name]
        if kept.session is not None:
            kept.session.close()

    def use(self, name: str) -> _Kept:
        """Take part in a conversation: it does not expire before ``done``."""
        self.expire()
        kept = self._find(name)
        kept.n_turns += 1
        return kept

    def done(self, kept: _Kept) -> None:
        kept.n_turns -= 1
        kept.last_used = time.monotonic()

    def begin(self, name: str, content: str | None, messages: Any, options: dict[str, Any]) -> Begin:
        def start(_: Any, timeout: float) -> Stream:
            kept = self._find(name)
            assert kept.session is not None
            return kept.session.stream(content, messages=messages, timeout=timeout, **options)

        return start

    def expire(self) -> None:
        now = time.monotonic()
        for name, kept in [*self._kept.items()]:
            if kept.session is not None and not kept.n_turns and now - kept.last_used > self._idle_seconds:
                self.delete(name)

    def close(self) -> None:
        for name in [*self._kept]:
            self.delete(name)
        self._model.close()

    def _find(self, name: str) -> _Kept:
        kept = self._kept.get(name)
        if kept is None or kept.session is None:
            message = f"there is no session {name[:64]!r}: it was never made, deleted, or idle for too long"
            raise Refusal(404, "session_not_found", message)
        return kept

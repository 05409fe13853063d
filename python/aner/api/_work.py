"""The choices of one request, run on the turns that it was admitted to, for an answer or for a stream of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.responses import Response as HTTPResponse

from aner.api._lane import Begin, Lane, Turn
from aner.errors import CancelledError, RequestTimeoutError
from aner.llm import Response

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
#: Which choice, and a piece of its text or its result.
Event = tuple[int, "str | Response"]

_UNREAD_EVENTS = 16
_GRACE_SECONDS = 1.0  # for sending that the time ran out


class Work:
    """Admitted when it is made (BusyError otherwise). ``end()`` is always called, and gives everything back."""

    def __init__(self, lane: Lane, begins: Sequence[Begin], deadline: float, max_tokens: int) -> None:
        self._begins = begins
        self.lane = lane
        self.deadline = deadline
        self.on_end: Callable[[], object] = lambda: None
        self._ended = False
        # A lane that does not batch gives one: requests that hold some leases and wait for others could wait for each other.
        self.turns = lane.reserve(min(len(begins), lane.n_slots) if lane.batched else 1, deadline)
        self._rest = iter(range(len(self.turns), len(begins)))
        for turn in self.turns:
            turn.max_tokens = max_tokens * len(begins) // len(self.turns)

    async def start(self) -> None:
        """Begin the first choices; raises what one of them is refused with."""
        await _all(turn.start(self._begins[index]) for index, turn in enumerate(self.turns))

    async def responses(self) -> list[Response]:
        """Every result, in the order of the choices."""
        found: dict[int, Response] = {}

        async def put(event: Event) -> None:
            if isinstance(event[1], Response):
                found[event[0]] = event[1]

        await self.start()
        await _all(self._run(turn, index, put, False) for index, turn in enumerate(self.turns))
        return [found[index] for index in range(len(self._begins))]

    async def events(self) -> AsyncIterator[Event]:
        """Pieces and results as they come, after ``start()``."""
        if len(self._begins) == 1:
            while piece := await self.turns[0].piece():
                yield 0, piece
            yield 0, await self.turns[0].response()
            return
        queue: asyncio.Queue[Event | None] = asyncio.Queue(_UNREAD_EVENTS)

        async def all_of_them() -> None:
            try:
                await _all(self._run(turn, index, queue.put, True) for index, turn in enumerate(self.turns))
            finally:
                await queue.put(None)

        task = asyncio.ensure_future(all_of_them())
        try:
            while (event := await queue.get()) is not None:
                yield event
            await task
        finally:
            task.cancel()

    async def _run(self, turn: Turn, index: int | None, put: Callable[[Event], Awaitable[object]], pieces: bool) -> None:
        first = True
        while index is not None:
            if not first:
                await turn.start(self._begins[index])
            while pieces and (piece := await turn.piece()):
                await put((index, piece))
            await put((index, await turn.response()))
            index, first = next(self._rest, None), False

    def cancel_for(self, error: Exception) -> None:
        for turn in self.turns:
            turn.cancel(error)  # type: ignore[arg-type]

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.on_end()
        for turn in self.turns:
            turn.end()

    async def watched(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """The result of ``work``, which is cancelled when the client goes away."""
        task, watcher = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.cancel_for(CancelledError("the client went away"))
            return await task
        finally:
            watcher.cancel()
            task.cancel()


class EventStream(HTTPResponse):
    """Server-sent events made by ``events``. A client that goes away, or does not read until the time is over, ends the work."""

    media_type = "text/event-stream"

    def __init__(self, work: Work, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._work = work
        self._events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sending = asyncio.ensure_future(self._send(send))
        watcher = asyncio.ensure_future(_gone(receive))
        try:
            patience = max(0.0, self._work.deadline - time.monotonic()) + _GRACE_SECONDS
            await asyncio.wait({sending, watcher}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if watcher.done() and not sending.done():
                self._work.cancel_for(CancelledError("the client went away"))
                await asyncio.wait({sending}, timeout=_GRACE_SECONDS)
            if not sending.done():
                self._work.cancel_for(RequestTimeoutError("the client did not read its answer in time"))
                sending.cancel()
                if abort := scope.get("extensions", {}).get("aner.abort"):
                    abort()
                await asyncio.wait({sending})
            elif not sending.cancelled() and (error := sending.exception()) is not None:
                raise error
        finally:
            watcher.cancel()
            sending.cancel()
            self._work.end()

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for chunk in self._events:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _all(works: Any) -> None:
    """Wait for all of them, also when one fails; then raise the first failure."""
    for failure in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(failure, BaseException):
            raise failure

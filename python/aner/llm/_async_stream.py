"""A running request for asyncio."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import TYPE_CHECKING

import aner_native

from aner.errors import BusyError
from aner.llm._response import Response
from aner.llm._stream import Stream

if TYPE_CHECKING:  # it brings sockets along, which whoever only generates has no use for: imported where a loop runs already
    import asyncio

__all__ = ["AsyncStream"]


class _Waker:
    """What an event loop is woken by: one pipe for all requests that it awaits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pipe = aner_native.WakePipe()
        self._waiting: set[asyncio.Future[None]] = set()
        loop.add_reader(self.pipe.fileno(), self._wake)

    def news(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Done at the next news of any request; ask before looking, so that none is missed."""
        future = loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        return future

    def _wake(self) -> None:
        self.pipe.drain()
        for future in [*self._waiting]:
            if not future.done():
                future.set_result(None)


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waker] = weakref.WeakKeyDictionary()


def _waker(loop: asyncio.AbstractEventLoop) -> _Waker:
    waker = _wakers.get(loop)
    if waker is None:
        waker = _wakers[loop] = _Waker(loop)
    return waker


def _poll(generation: aner_native.NativeGeneration) -> tuple[str, bool]:
    return generation.poll()


def _next(generation: aner_native.NativeGeneration) -> tuple[str, bool]:
    return generation.next()


class AsyncStream:
    """One request, read by coroutines of one event loop.

    ``async for`` gives pieces of text; leaving the loop, or cancelling the task, cancels the request. ``await response()`` runs
    what is left and gives the result. The request begins with the first of them, which raises what ``Model.start`` would.
    """

    def __init__(self, start: Callable[[], Stream], batched: bool) -> None:
        self._start = start
        self._batched = batched
        self._stream: Stream | None = None

    async def _started(self) -> Stream:
        import asyncio

        if self._stream is None:
            # Tokenizing a long prompt, and on an ordinary lease making a context, take time that the event loop does not have.
            starting = asyncio.ensure_future(asyncio.to_thread(self._start))
            try:
                self._stream = await asyncio.shield(starting)
            except asyncio.CancelledError:
                starting.add_done_callback(_cancel_result)
                raise
            if self._batched and (generation := self._stream._generation) is not None:
                generation.set_waker(_waker(asyncio.get_running_loop()).pipe)
        return self._stream

    async def _advance(self, stream: Stream) -> str:
        """One piece of text; empty only when the request is over."""
        import asyncio

        loop = asyncio.get_running_loop()
        try:
            while stream._response is None:
                if self._batched:
                    news = _waker(loop).news(loop)
                    try:
                        text = stream._advance(_poll)
                        if not text and stream._response is None:
                            await news
                    finally:
                        news.cancel()
                else:
                    text = await asyncio.to_thread(stream._advance, _next)
                if text:
                    return text
        except BusyError:
            raise  # another task is reading: the request is that one's
        except BaseException:
            stream.cancel()
            raise
        return ""

    async def __aiter__(self) -> AsyncGenerator[str, None]:
        stream = await self._started()
        try:
            while piece := await self._advance(stream):
                yield piece
        finally:
            if stream._response is None:
                stream.cancel()

    async def response(self) -> Response:
        """The result; runs the request to its end first."""
        stream = await self._started()
        if self._batched and (generation := stream._generation) is not None:
            generation.want_result_only()
        while stream._response is None:
            await self._advance(stream)
        return stream._response

    def cancel(self) -> None:
        """End the request within one step; harmless when it is over or never began."""
        if self._stream is not None:
            self._stream.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()


def _cancel_result(starting: asyncio.Future[Stream]) -> None:
    if not starting.cancelled() and starting.exception() is None:
        starting.result().cancel()

"""A running request: an iterator of text that can be cancelled, and the response at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from aner._logging import flush_engine_log
from aner.errors import AnerError, BusyError, ReentrantRequestError
from aner.llm._response import Response, TokenLogprob, TopLogprob

if TYPE_CHECKING:
    import aner_native

__all__ = ["Stream"]


def _next(generation: aner_native.NativeGeneration) -> tuple[str, bool]:
    return generation.next()


def _run(generation: aner_native.NativeGeneration) -> tuple[str, bool]:
    return generation.run()


class Stream:
    """One request, run step by step as it is read.

    Iterate it for pieces of text (``str``, never empty, joined they are the whole text); leaving the loop cancels the request.
    ``response()`` runs what is left and gives the result. Everything that the request held is freed as soon as it ends,
    whichever way. One thread reads at a time; ``cancel()`` and ``close()`` work from any thread.

    On an ordinary lease nothing runs while nobody reads; on a batching one a reader that is far behind holds up itself alone.
    """

    def __init__(
        self,
        generation: aner_native.NativeGeneration,
        piece: Callable[[int], bytes],
        wants_logprobs: bool,
        *,
        on_finished: Callable[[Response], None] | None = None,
    ) -> None:
        self._generation: aner_native.NativeGeneration | None = generation
        self._piece = piece
        self._wants_logprobs = wants_logprobs
        self._on_finished = on_finished
        self._response: Response | None = None
        self._error: AnerError | None = None

    def __iter__(self) -> Generator[str, None, None]:
        """Pieces of text. Leaving the loop early cancels the request."""
        try:
            while (piece := self._next_piece()) is not None:
                yield piece
        except BusyError:  # another thread is reading: the request is that thread's
            raise
        except BaseException:
            self.cancel()
            raise

    def __next__(self) -> str:
        piece = self._next_piece()
        if piece is None:
            raise StopIteration
        return piece

    def _next_piece(self) -> str | None:
        while self._response is None:
            text = self._advance(_next)
            if text:
                return text
        return None

    def response(self) -> Response:
        """The result; runs the request to its end first. Raises CancelledError when it was cancelled before."""
        while self._response is None:
            self._advance(_run)
        return self._response

    def _advance(self, how: Callable[[aner_native.NativeGeneration], tuple[str, bool]]) -> str:
        """One step, or all that is left. However the request ends, what it held goes: the weights may be closed by then."""
        generation = self._generation
        if generation is None:
            if self._error is not None:
                raise self._error
            return ""
        try:
            text, finished = how(generation)
        except BusyError:
            raise  # another thread is reading: nothing has ended
        except AnerError as error:
            flush_engine_log()
            self._error = error.with_traceback(None)
            self._generation = None
            raise
        except BaseException:  # KeyboardInterrupt, or what a signal handler raised: the request ends with it
            self.cancel()
            raise
        if finished:
            result = generation.result()
            response = Response(result, self._logprobs(result) if self._wants_logprobs else None)
            if self._on_finished is not None:
                self._on_finished(response)
            self._response = response
            self._generation = None
        return text

    def _logprobs(self, result: dict[str, Any]) -> tuple[TokenLogprob, ...]:
        piece = self._piece
        return tuple(
            TokenLogprob(token, piece(token), logprob, tuple(TopLogprob(t, piece(t), p) for t, p in top))
            for token, logprob, top in result["logprobs"]
        )

    def cancel(self) -> None:
        """End the request within one step; whoever waits for it gets CancelledError. Harmless when it is over already."""
        generation = self._generation
        if generation is not None:
            generation.cancel()

    def close(self) -> None:
        """The same as ``cancel()``; also what leaving a ``with`` block does."""
        self.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_generation", None) is not None:
            self.cancel()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Stream cannot be pickled or copied: it is a request running in this process; send its text instead")

    def __repr__(self) -> str:
        state = "finished" if self._response is not None else "running" if self._error is None else "failed"
        return f"<Stream {state}>"


def started(
    start: Callable[[], aner_native.NativeGeneration],
    piece: Callable[[int], bytes],
    wants_logprobs: bool,
    *,
    on_finished: Callable[[Response], None] | None = None,
) -> Stream:
    """The stream of the request that ``start`` begins. An interrupt before the caller has it ends the request."""
    generation = None
    try:
        generation = start()
        flush_engine_log()
        return Stream(generation, piece, wants_logprobs, on_finished=on_finished)
    except BaseException:
        if generation is not None:
            generation.cancel()
        flush_engine_log()
        raise


class _Callbacks(threading.local):
    """Schedulers whose requests have a callback running on this thread."""

    def __init__(self) -> None:
        self.schedulers: list[int] = []


_callbacks = _Callbacks()


@contextmanager
def inside_callback(scheduler: int) -> Iterator[None]:
    """While a callback of one of this scheduler's requests runs on this thread."""
    _callbacks.schedulers.append(scheduler)
    try:
        yield
    finally:
        _callbacks.schedulers.pop()


def refuse_reentry(scheduler: int) -> None:
    """ReentrantRequestError from a callback of the same scheduler: its own request would not go on meanwhile."""
    if scheduler and scheduler in _callbacks.schedulers:
        raise ReentrantRequestError(
            "this request comes from a callback of a request on the same scheduler, whose reader would wait for it: start it "
            "after the callback, or from another thread"
        )


def run_with_callback(stream: Stream, on_text: Callable[[str], object], scheduler: int = 0) -> Response:
    """Read ``stream`` to its end, handing each piece to ``on_text``; its exception cancels the request and passes on."""
    for piece in stream:
        with inside_callback(scheduler):
            on_text(piece)
    return stream.response()

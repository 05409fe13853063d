"""A running request: an iterator of text that can be cancelled, and the response at its end."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from aner._logging import flush_engine_log
from aner.errors import AnerError, BusyError
from aner.llm._response import Response, TokenLogprob, TopLogprob

if TYPE_CHECKING:
    import aner_native

__all__ = ["Stream"]


class Stream:
    """One request, run step by step as it is read.

    Iterate it for pieces of text (``str``, never empty, joined they are the whole text); leaving the loop cancels the request.
    ``response()`` runs what is left and gives the result. Everything that the request held is freed as soon as it ends,
    whichever way. One thread reads at a time; ``cancel()`` and ``close()`` work from any thread.

    On an ordinary lease nothing runs while nobody reads.
    """

    def __init__(self, generation: aner_native.NativeGeneration, piece: Callable[[int], bytes], wants_logprobs: bool) -> None:
        self._generation = generation
        self._piece = piece
        self._wants_logprobs = wants_logprobs
        self._finished = False

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
        while not self._finished:
            text = self._step()
            if text:
                return text
        return None

    def _step(self) -> str:
        try:
            text, self._finished = self._generation.next()
        except AnerError:
            flush_engine_log()
            raise
        except BaseException:  # KeyboardInterrupt, or what a signal handler raised: the request ends with it
            self.cancel()
            raise
        return text

    def response(self) -> Response:
        """The result; runs the request to its end first. Raises CancelledError when it was cancelled before."""
        if not self._finished:
            try:
                self._generation.run()
            except AnerError:
                flush_engine_log()
                raise
            except BaseException:
                self.cancel()
                raise
            self._finished = True
        result = self._generation.result()
        return Response(result, self._logprobs(result) if self._wants_logprobs else None)

    def _logprobs(self, result: dict[str, Any]) -> tuple[TokenLogprob, ...]:
        piece = self._piece
        return tuple(
            TokenLogprob(token, piece(token), logprob, tuple(TopLogprob(t, piece(t), p) for t, p in top))
            for token, logprob, top in result["logprobs"]
        )

    def cancel(self) -> None:
        """End the request within one step; whoever waits for it gets CancelledError. Harmless when it is over already."""
        self._generation.cancel()

    def close(self) -> None:
        """The same as ``cancel()``; also what leaving a ``with`` block does."""
        self.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        generation = getattr(self, "_generation", None)
        if generation is not None and not self._finished:
            generation.cancel()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Stream cannot be pickled or copied: it is a request running in this process; send its text instead")

    def __repr__(self) -> str:
        return f"<Stream {'finished' if self._finished else 'running'}>"


def run_with_callback(stream: Stream, on_text: Callable[[str], object]) -> Response:
    """Read ``stream`` to its end, handing each piece to ``on_text``; its exception cancels the request and passes on."""
    for piece in stream:
        on_text(piece)
    return stream.response()



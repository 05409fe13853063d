"""A conversation that keeps its own KV across turns."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import aner_native

from aner.errors import (
    ClosedError,
    EngineError,
    ForkedProcessError,
    InvalidRequestError,
    SnapshotError,
    UnsupportedOperationError,
)
from aner.llm import _snapshot
from aner.llm._options import native_options
from aner.llm._prompt import Prompter
from aner.llm._response import Response
from aner.llm._stream import Stream, run_with_callback, started

__all__ = ["Session"]


class Session:
    """A conversation: its history, and a context of its own that borrows from no pool.

    Each turn renders the whole history and evaluates only what its context does not hold yet; generated tokens count as held.
    A turn that fails or is cancelled leaves history and context as they were. One turn at a time.
    """

    def __init__(self, lease: aner_native.NativeLease, native: aner_native.NativeSession, prompter: Prompter) -> None:
        self._handles: tuple[aner_native.NativeLease, aner_native.NativeSession] | None = (lease, native)
        self._prompter = prompter
        self._history: list[dict[str, Any]] = []

    def generate(
        self,
        content: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] | None = None,
        on_text: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Response:
        """Run one turn: a user message, or several ``messages`` that continue the history. Options as in ``Model.generate``.

        ContextFullError when the conversation does not fit any more; nothing is dropped.
        """
        if on_text is not None and not callable(on_text):
            raise InvalidRequestError(f"on_text must be callable, it is {on_text!r:.100}")
        stream = self.stream(content, messages=messages, **options)
        try:
            return stream.response() if on_text is None else run_with_callback(stream, on_text)
        finally:
            stream.close()

    def stream(
        self, content: str | None = None, *, messages: Sequence[Mapping[str, Any]] | None = None, **options: Any
    ) -> Stream:
        """Start one turn and iterate its text; the history grows when it finishes."""
        clock = aner_native.Clock()
        lease, native = self._require()
        if (content is None) == (messages is None):
            raise InvalidRequestError("give either the content of a user message or messages=, and not both")
        new = [{"role": "user", "content": content}] if messages is None else copy.deepcopy(list(messages))
        checked = native_options(options)
        tokens, measured = self._prompter.conversation(lease, [*self._history, *new])

        def append(response: Response) -> None:
            self._history += [*new, {"role": "assistant", "content": response.text()}]

        return started(
            lambda: native.start(tokens, checked, clock, measured), lease.piece, checked["logprobs"] >= 0,
            on_finished=append if checked["max_tokens"] else None,
        )  # fmt: skip

    def history(self) -> list[dict[str, Any]]:
        """A copy of the messages so far, answers included."""
        return copy.deepcopy(self._history)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a snapshot that ``llm.restore_session`` takes back: history, tokens and KV, with the identity of all that made it.

        Whole or not at all; BusyError during a turn, OSError as the system gives it.
        """
        lease, native = self._require()
        tokens, memory = native.save()
        _snapshot.write(Path(path), _snapshot.identity_of(lease, native), self._history, tokens, memory)

    def _restore(self, path: str | os.PathLike[str]) -> None:
        lease, native = self._require()
        history, tokens, memory = _snapshot.read(Path(path), _snapshot.identity_of(lease, native))
        try:
            native.restore(tokens, memory)
        except (EngineError, InvalidRequestError) as error:
            raise SnapshotError(f"{path} is not a valid session snapshot: {error}") from None
        self._history = history

    def reset(self) -> None:
        """Forget the conversation; the context stays, empty."""
        self._require()[1].reset()
        self._history = []

    def close(self) -> None:
        """Give up the session and its context. Idempotent; a running turn finishes."""
        self._handles = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _require(self) -> tuple[aner_native.NativeLease, aner_native.NativeSession]:
        handles = self._handles
        if handles is None:
            raise ClosedError("this session was closed: make a new one with model.session()")
        if handles[1].foreign():
            raise ForkedProcessError(
                "this session was made before the process forked: make one from a model loaded in the child"
            )
        return handles

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session cannot be pickled or copied: its context lives in this process; keep its history() instead")

    def _reject(self, *_: Any, **__: Any) -> NoReturn:
        raise UnsupportedOperationError(
            "a session rejects reconfiguration: configure the model lease, then make a session from it"
        )

    with_optimizer = with_context_pool = with_adapter = with_batching = session = _reject
